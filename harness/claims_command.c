/* vramlab claims: every claim of the article, and what one or several stores say about it. */
#include "harness/options.h"
#include "harness/report.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEY_JSON = 0x200, KEY_FILE, KEY_FORMAT, MAX_STORES = 32 };

typedef enum ClaimsFormat { FORMAT_TABLE = 0, FORMAT_MARKDOWN, FORMAT_JSON } ClaimsFormat;

typedef struct ClaimsCommand {
  const char *stores[MAX_STORES];
  int32_t store_count;
  const char *file, *ids[VL_MAX_LISTED];
  int32_t id_count;
  ClaimsFormat format;
} ClaimsCommand;

static const struct argp_option options_table[] = {
    {"id", 'i', "ID", 0, "only this one; may be repeated", 0},
    {"format", KEY_FORMAT, "FORMAT", 0, "table (the default), md or json", 0},
    {"json", KEY_JSON, NULL, 0, "the same as --format json", 0},
    {"file", KEY_FILE, "FILE", 0, "another claims file", 0},
    {0}};

static ClaimsFormat parse_format(const char *text, struct argp_state *state) {
  static const char *const names[] = {"table", "md", "json"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
    if (strcmp(text, names[i]) == 0) return (ClaimsFormat)i;
  argp_error(state, "--format is table, md or json, not \"%s\"", text);
  return FORMAT_TABLE;
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
  ClaimsCommand *command = state->input;
  switch (key) {
  case 'i':
    if (command->id_count == VL_MAX_LISTED) argp_error(state, "more than %d claims", VL_MAX_LISTED);
    command->ids[command->id_count++] = text;
    return 0;
  case KEY_FORMAT: command->format = parse_format(text, state); return 0;
  case KEY_FILE: command->file = text; return 0;
  case KEY_JSON: command->format = FORMAT_JSON; return 0;
  case ARGP_KEY_ARG:
    if (command->store_count == MAX_STORES) argp_error(state, "more than %d stores", MAX_STORES);
    command->stores[command->store_count++] = text;
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp claims_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "[STORE...]",
    .doc =
        "Lists every claim of the article: the statement, how it is tested, the region that was fixed before "
        "the run, the verdict with its scope and the numbers that decide it, or what is missing to decide "
        "it. Evidence comes from all the stores that are given. What was not measured supports nothing. "
        "STORE is a directory, its results.h5, or latest (the default)."};

static bool is_asked(const ClaimsCommand *command, const Claim *claim) {
  for (int32_t i = 0; i < command->id_count; i++)
    if (strcmp(command->ids[i], claim->id) == 0) return true;
  return command->id_count == 0;
}

static Status check_ids(const ClaimsCommand *command, const ClaimFile *file) {
  for (int32_t i = 0; i < command->id_count; i++)
    if (vl_claims_find(file, command->ids[i]) == NULL)
      return vl_error(VL_INVALID, "%s has no claim \"%s\"; vramlab claims lists them", file->path,
                      command->ids[i]);
  return vl_ok();
}

/* "36 claims: 3 supported, 8 refuted, ...". */
static void print_tally(const int32_t *tally, int32_t count, FILE *out) {
  fprintf(out, "%d %s:", count, count == 1 ? "claim" : "claims");
  const char *before = " ";
  for (int32_t v = 0; v < VERDICT_COUNT; v++) {
    if (tally[v] == 0) continue;
    fprintf(out, "%s%d %s", before, tally[v], vl_verdict_name((Verdict)v));
    before = ", ";
  }
  fputs("\n\n", out);
}

static void print_json(ClaimVerdict *const *verdicts, int32_t count) {
  json_t *list = json_array();
  for (int32_t i = 0; i < count; i++)
    json_array_append_new(list, vl_claim_verdict_json(verdicts[i]));
  json_dumpf(list, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
  putchar('\n');
  json_decref(list);
}

static void print_verdicts(const ClaimsCommand *command, const ClaimFile *file, ClaimVerdict *const *verdicts,
                           int32_t count) {
  int32_t tally[VERDICT_COUNT] = {0};
  for (int32_t i = 0; i < count; i++)
    tally[verdicts[i]->verdict]++;
  if (command->format == FORMAT_JSON) {
    print_json(verdicts, count);
    return;
  }
  if (command->format == FORMAT_MARKDOWN) printf("# Claims: %s\n\n", file->article);
  print_tally(tally, count, stdout);
  for (int32_t i = 0; i < count; i++) {
    if (command->format == FORMAT_MARKDOWN) {
      vl_claim_print_markdown(verdicts[i], stdout);
    } else {
      vl_claim_print_text(verdicts[i], stdout, vl_terminal_width(stdout), vl_terminal_color(stdout));
      if (i + 1 < count) putchar('\n');
    }
  }
}

static void decide_and_print(const ClaimsCommand *command, const ClaimFile *file, const RecordSet *records) {
  ClaimVerdict **verdicts = vl_allocate(sizeof(*verdicts) * (size_t)(file->count + 1));
  int32_t count = 0;
  for (int32_t i = 0; i < file->count; i++) {
    if (!is_asked(command, &file->claims[i])) continue;
    verdicts[count] = vl_allocate(sizeof(**verdicts));
    vl_claim_decide(&file->claims[i], records, verdicts[count++]);
  }
  print_verdicts(command, file, verdicts, count);
  for (int32_t i = 0; i < count; i++)
    free(verdicts[i]);
  free(verdicts);
}

/* Adds a store's records, without those that an earlier store has too: a copy is no further evidence. */
static void add_records(RecordSet *records, json_t *seen, const Store *store) {
  RecordSet its = vl_store_records(store);
  records->records =
      vl_reallocate(records->records, sizeof(json_t *) * (size_t)(records->count + its.count + 1));
  for (int32_t i = 0; i < its.count; i++) {
    const char *key = vl_record_text(its.records[i], "cell_key");
    const char *created = vl_record_text(its.records[i], "created_utc");
    const char *host = vl_record_text(its.records[i], "hostname");
    char run[512];
    snprintf(run, sizeof(run), "%s %s %s", key, created ? created : "", host ? host : "");
    if (json_object_get(seen, run) != NULL) continue;
    json_object_set_new(seen, run, json_true());
    records->records[records->count++] = its.records[i];
  }
  free(its.records);
}

/* Records of all stores together, in their order. */
static Status claims(const ClaimsCommand *command) {
  Store *stores[MAX_STORES] = {NULL};
  /* Without any run the claims are listed all the same: nothing decides them yet. */
  bool none = command->store_count == 0 && access("vramlab-results/latest", F_OK) != 0;
  int32_t wanted = none ? 0 : command->store_count > 0 ? command->store_count : 1;
  RecordSet records = {.records = vl_allocate(sizeof(json_t *))};
  json_t *seen = json_object();
  Status status = vl_ok();
  for (int32_t i = 0; i < wanted && status.code == VL_OK; i++) {
    status = vl_store_open(command->store_count > 0 ? command->stores[i] : NULL, &stores[i]);
    if (status.code == VL_OK) add_records(&records, seen, stores[i]);
  }
  ClaimFile *file = NULL;
  if (none) fputs("vramlab: no store here or named: no claim has evidence\n", stderr);
  if (status.code == VL_OK) status = vl_claims_load(command->file, &file);
  if (status.code == VL_OK) status = check_ids(command, file);
  if (status.code == VL_OK) decide_and_print(command, file, &records);
  vl_claims_destroy(&file);
  json_decref(seen);
  free(records.records);
  for (int32_t i = 0; i < wanted; i++)
    vl_store_close(&stores[i]);
  return status;
}

int vl_command_claims(int argc, char **argv) {
  ClaimsCommand command = {.format = FORMAT_TABLE};
  vl_command_parse(&claims_argp, argc, argv, &command);
  locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0), before = uselocale(c);
  Status status = claims(&command);
  uselocale(before);
  freelocale(c);
  return status.code == VL_OK ? 0 : vl_command_fail(status);
}
