/* vramlab claims: what one or several stores say about the article. */
#include "harness/options.h"
#include "harness/report.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_JSON = 0x200, KEY_FILE, KEY_ALL, MAX_STORES = 32 };

typedef struct ClaimsCommand {
  const char *stores[MAX_STORES];
  int32_t store_count;
  const char *file, *claims[VL_MAX_LISTED];
  int32_t claim_count;
  bool json, all;
} ClaimsCommand;

static const struct argp_option options_table[] = {
    {"claim", 'c', "ID", 0, "only this one, in full; may be repeated", 0},
    {"all", KEY_ALL, NULL, 0, "also the claims these stores have no cells for", 0},
    {"file", KEY_FILE, "FILE", 0, "another claims file", 0},
    {"json", KEY_JSON, NULL, 0, "print one JSON array", 0},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state) {
  ClaimsCommand *command = state->input;
  switch (key) {
  case 'c':
    if (command->claim_count == VL_MAX_LISTED) argp_error(state, "more than %d claims", VL_MAX_LISTED);
    command->claims[command->claim_count++] = text;
    return 0;
  case KEY_ALL: command->all = true; return 0;
  case KEY_FILE: command->file = text; return 0;
  case KEY_JSON: command->json = true; return 0;
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
    .doc = "Prints the verdict on each claim of the article, with its scope and the numbers that decide it. "
           "STORE is a directory, its results.h5, or latest (the default)."};

static bool is_asked(const ClaimsCommand *command, const Claim *claim) {
  for (int32_t i = 0; i < command->claim_count; i++)
    if (strcmp(command->claims[i], claim->id) == 0) return true;
  return command->claim_count == 0;
}

/* A claim in full: with its original, every finding, and how to reproduce it. */
static void print_details(const ClaimFile *file, const ClaimVerdict *verdict) {
  const Claim *claim = verdict->claim;
  printf("              %s\n              section:     %s\n              metric:      %s\n", claim->sentence,
         claim->section, claim->metric);
  printf("              denominator: %s\n              trap:        %s\n", claim->denominator, claim->trap);
  for (int32_t i = 0; i < verdict->finding_count; i++) {
    const Finding *finding = &verdict->findings[i];
    printf("              %s%s: %s. %s%s\n", finding->scope, finding->in_setting ? "" : " (elsewhere)",
           vl_verdict_name(finding->verdict), finding->numbers,
           finding->region_changed ? " (region changed after this run)" : "");
  }
  printf("              region:      %s%s%s\n              reproduce:   %s\n",
         file->commit[0] != '\0' ? "fixed by commit " : "commit unknown", file->commit,
         file->uncommitted ? ", changed since and not committed" : "", claim->command);
}

static void print_verdict(const ClaimsCommand *command, const ClaimFile *file, const ClaimVerdict *verdict) {
  char scope[2 * VL_SCOPE_BYTES];
  vl_claim_scope(verdict, scope, sizeof(scope));
  ClaimPassage passage = {.id = verdict->claim->id,
                          .verdict = vl_verdict_name(verdict->verdict),
                          .translation = verdict->claim->translation,
                          .scope = scope,
                          .numbers = verdict->numbers};
  vl_report_term_claim(&passage, stdout, vl_terminal_width(stdout), vl_terminal_color(stdout));
  if (command->claim_count > 0) print_details(file, verdict);
  for (int32_t i = 0; i < verdict->finding_count && command->claim_count == 0; i++)
    if (verdict->findings[i].region_changed) {
      printf("              region changed after this run\n");
      break;
    }
}

static Status print_claims(const ClaimsCommand *command, const ClaimFile *file, const RecordSet *records) {
  json_t *list = json_array();
  int32_t left_out = 0;
  for (int32_t i = 0; i < command->claim_count; i++)
    if (vl_claims_find(file, command->claims[i]) == NULL) {
      json_decref(list);
      return vl_error(VL_INVALID, "%s has no claim \"%s\" (vramlab claims --all)", file->path,
                      command->claims[i]);
    }
  ClaimVerdict *verdict = vl_allocate(sizeof(*verdict));
  for (int32_t i = 0; i < file->count; i++) {
    if (!is_asked(command, &file->claims[i])) continue;
    vl_claim_decide(&file->claims[i], records, verdict);
    if (command->json)
      json_array_append_new(list, vl_claim_verdict_json(file, verdict));
    else if (verdict->finding_count > 0 || command->all || command->claim_count > 0)
      print_verdict(command, file, verdict);
    else
      left_out++;
  }
  free(verdict);
  if (command->json) {
    json_dumpf(list, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    putchar('\n');
  } else if (left_out > 0) {
    printf("  %d further claims have no cells here (--all shows them).\n", left_out);
  }
  json_decref(list);
  return vl_ok();
}

/* Records of all stores together, in their order. */
static Status claims(const ClaimsCommand *command) {
  Store *stores[MAX_STORES] = {NULL};
  int32_t opened = 0, wanted = command->store_count > 0 ? command->store_count : 1;
  RecordSet records = {.records = vl_allocate(sizeof(json_t *))};
  Status status = vl_ok();
  for (; opened < wanted && status.code == VL_OK; opened++) {
    status = vl_store_open(command->store_count > 0 ? command->stores[opened] : NULL, &stores[opened]);
    if (status.code != VL_OK) break;
    RecordSet its = vl_store_records(stores[opened]);
    records.records =
        vl_reallocate(records.records, sizeof(json_t *) * (size_t)(records.count + its.count + 1));
    memcpy(&records.records[records.count], its.records, sizeof(json_t *) * (size_t)its.count);
    records.count += its.count;
    free(its.records);
  }
  ClaimFile *file = NULL;
  if (status.code == VL_OK) status = vl_claims_load(command->file, &file);
  if (status.code == VL_OK) status = print_claims(command, file, &records);
  vl_claims_destroy(&file);
  free(records.records);
  for (int32_t i = 0; i < wanted; i++)
    vl_store_close(&stores[i]);
  return status;
}

int vl_command_claims(int argc, char **argv) {
  ClaimsCommand command = {.json = false};
  vl_command_parse(&claims_argp, argc, argv, &command);
  locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0), before = uselocale(c);
  Status status = claims(&command);
  uselocale(before);
  freelocale(c);
  return status.code == VL_OK ? 0 : vl_command_fail(status);
}
