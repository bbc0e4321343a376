/* vramlab doctor: what this machine offers, what is missing and how to install it. */
#include "harness/columns.h"
#include "harness/doctor.h"
#include "harness/options.h"

#include <stdlib.h>
#include <string.h>

enum { KEY_JSON = 0x200, KEY_RESOURCES };

static const struct argp_option options_table[] = {
    {"json", KEY_JSON, NULL, 0, "print one JSON object", 0},
    {"ctest-resources", KEY_RESOURCES, NULL, 0, "print the GPUs as a resource file for ctest", 0},
    {0}};

typedef struct DoctorCommand {
  bool json, resources;
} DoctorCommand;

static error_t parse_option(int key, char *text, struct argp_state *state) {
  DoctorCommand *command = state->input;
  switch (key) {
  case KEY_JSON: command->json = true; return 0;
  case KEY_RESOURCES: command->resources = true; return 0;
  case ARGP_KEY_ARG: argp_error(state, "unexpected argument: %s", text); return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp doctor_argp = {
    .options = options_table,
    .parser = parse_option,
    .doc =
        "Says what this machine offers, what is missing, and how to install it. Exits 0 whatever it finds."};

/* ---- Findings --------------------------------------------------------------------------------------------------- */

static const char *const state_names[] = {"ok", "attention", "missing", "absent"};

void vl_finding_add(json_t *findings, const char *name, FindingState state, const char *detail,
                    const char *remedy, json_t *facts) {
  json_t *finding =
      json_pack("{ss ss so}", "name", name, "state", state_names[state], "detail", vl_json_text(detail));
  if (remedy) json_object_set_new(finding, "remedy", json_string(remedy));
  if (facts) json_object_set_new(finding, "facts", facts);
  json_array_append_new(findings, finding);
}

static void look_at_program(json_t *findings) {
  char text[256];
  BuildFacts facts = vl_build_facts();
  snprintf(text, sizeof text, "%s%s%.12s%s", facts.version, *facts.git_commit ? ", commit " : "",
           facts.git_commit, facts.git_dirty ? " with changes" : "");
  vl_finding_add(findings, "vramlab", FINDING_OK, text, NULL,
                 json_pack("{ss ss sb}", "version", facts.version, "git_commit", facts.git_commit,
                           "git_dirty", facts.git_dirty));
}

/* ---- Printing ----------------------------------------------------------------------------------------------------- */

/* What stands before the detail of a finding. */
static const char *state_mark(const char *state) {
  if (strcmp(state, "missing") == 0) return "missing: ";
  if (strcmp(state, "absent") == 0) return "not here: ";
  return "";
}

static void print_findings(const json_t *findings) {
  for (size_t i = 0; i < json_array_size(findings); i++) {
    const json_t *finding = json_array_get(findings, i);
    printf("%-12s %s%s\n", vl_record_text(finding, "name"), state_mark(vl_record_text(finding, "state")),
           vl_record_text(finding, "detail"));
    const char *remedy = vl_record_text(finding, "remedy");
    if (remedy) printf("%-12s -> %s\n", "", remedy);
  }
}

static void print_json(json_t *json) {
  char *text = json_dumps(json, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
  puts(text);
  free(text);
  json_decref(json);
}

int vl_command_doctor(int argc, char **argv) {
  DoctorCommand command = {0};
  vl_command_parse(&doctor_argp, argc, argv, &command);
  if (command.resources) {
    print_json(vl_doctor_resources());
    return 0;
  }
  json_t *findings = json_array();
  look_at_program(findings);
  vl_doctor_machine(findings);
  vl_doctor_software(findings);
  vl_doctor_gpu(findings);
  if (command.json) {
    print_json(json_pack("{si so}", "schema_version", 1, "findings", findings));
  } else {
    print_findings(findings);
    json_decref(findings);
  }
  return 0;
}
