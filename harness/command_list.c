/* vramlab list: what there is, by name or by a name it has elsewhere. */
#include "harness/options.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_JSON = 0x200 };

/* Everything is gathered as JSON, then printed as it is or as text. */
typedef struct Listing {
  const char *wanted; /* part of a name or synonym; NULL: all */
  json_t *kinds;      /* kind -> list of entries */
  json_t *entries;    /* of the kind being gathered */
} Listing;

static const char *const kind_names[] = {"cases", "optimizations", "suites", "figures", "profiles"};
enum { KIND_COUNT = sizeof kind_names / sizeof kind_names[0] };

/* Lower case without spaces, dashes and underscores: "Gradient checkpointing" is "gradientcheckpointing". */
static void fold(const char *text, char *folded, size_t size) {
  size_t used = 0;
  for (; *text && used + 1 < size; text++)
    if (!strchr(" -_", *text)) folded[used++] = (char)tolower((unsigned char)*text);
  folded[used] = '\0';
}

static bool is_wanted(const Listing *listing, const char *name, const char *also_called) {
  char wanted[128], names[512];
  if (!listing->wanted) return true;
  fold(listing->wanted, wanted, sizeof wanted);
  fold(name, names, sizeof names);
  if (strstr(names, wanted)) return true;
  fold(also_called ? also_called : "", names, sizeof names);
  return strstr(names, wanted) != NULL;
}

static void add(Listing *listing, const char *name, const char *also_called, json_t *entry) {
  if (is_wanted(listing, name, also_called))
    json_array_append_new(listing->entries, entry);
  else
    json_decref(entry);
}

static Status gather_cases(Listing *listing) {
  int32_t count;
  const Case *const *cases = vl_case_all(&count);
  for (int32_t i = 0; i < count; i++) {
    json_t *arguments = json_array();
    for (int32_t a = 1; a < cases[i]->argument_count; a++) {
      const CaseArgument *argument = &cases[i]->arguments[a];
      json_array_append_new(arguments,
                            json_pack("{ss sI sI sI ss}", "name", argument->name, "default",
                                      (json_int_t)argument->default_value, "low", (json_int_t)argument->low,
                                      "high", (json_int_t)argument->high, "help", argument->help));
    }
    add(listing, cases[i]->name, cases[i]->also_called,
        json_pack("{ss ss ss so}", "name", cases[i]->name, "also_called", cases[i]->also_called, "help",
                  cases[i]->help, "arguments", arguments));
  }
  return vl_ok();
}

static Status gather_optimizations(Listing *listing) {
  int32_t count;
  const Optimization *const *all = vl_optimization_all(&count);
  for (int32_t i = 0; i < count; i++)
    add(listing, all[i]->name, all[i]->also_called,
        json_pack("{ss ss ss ss ss ss ss}", "name", all[i]->name, "also_called", all[i]->also_called, "help",
                  all[i]->help, "values", all[i]->values, "phase", vl_phase_name(all[i]->phase), "preserves",
                  vl_preserves_name(all[i]->preserves), "turn_on", all[i]->turn_on));
  return vl_ok();
}

static void visit_suite(const char *name, const char *title, const char *help, void *context) {
  add(context, name, title, json_pack("{ss ss ss}", "name", name, "title", title, "help", help));
}
static Status gather_suites(Listing *listing) { return vl_suite_each(visit_suite, listing); }

static void visit_plot(const char *name, const char *help, void *context) {
  add(context, name, help, json_pack("{ss ss}", "name", name, "help", help));
}
static Status gather_figures(Listing *listing) { return vl_plot_each(visit_plot, listing); }

static void visit_profile(const DeviceProfile *profile, void *context) {
  add(context, profile->name, profile->describes,
      json_pack("{ss ss sI ss}", "name", profile->name, "help", profile->describes, "memory_bytes",
                (json_int_t)profile->memory_bytes, "source", profile->source));
}
static Status gather_profiles(Listing *listing) { return vl_profile_each(NULL, visit_profile, listing); }

static Status (*const gatherers[KIND_COUNT])(Listing *) = {gather_cases, gather_optimizations, gather_suites,
                                                           gather_figures, gather_profiles};

static void print_entry(const json_t *entry) {
  static const struct {
    const char *key, *label;
  } details[] = {{"also_called", "also called"},
                 {"values", "values"},
                 {"preserves", "results"},
                 {"turn_on", "elsewhere"}};
  const char *help = vl_record_text(entry, "help"), *title = vl_record_text(entry, "title");
  printf("  %-16s %s\n", vl_record_text(entry, "name"), help && *help ? help : title ? title : "");
  for (size_t i = 0; i < sizeof details / sizeof details[0]; i++) {
    const char *text = vl_record_text(entry, details[i].key);
    if (text && *text) printf("  %-16s   %s: %s\n", "", details[i].label, text);
  }
  size_t index;
  json_t *argument;
  json_array_foreach(json_object_get(entry, "arguments"), index, argument) {
    printf("  %-16s   --set %s=%lld: %s\n", "", vl_record_text(argument, "name"),
           (long long)vl_record_integer(argument, "default"), vl_record_text(argument, "help"));
  }
  int64_t bytes = vl_record_integer(entry, "memory_bytes");
  if (bytes < 0) return;
  char text[32];
  vl_format_bytes(bytes, text, sizeof text);
  printf("  %-16s   memory: %s\n", "", text);
}

static void print_listing(const Listing *listing) {
  const char *kind;
  json_t *entries;
  json_object_foreach(listing->kinds, kind, entries) {
    if (json_array_size(entries) == 0) continue;
    printf("%s\n", kind);
    for (size_t i = 0; i < json_array_size(entries); i++)
      print_entry(json_array_get(entries, i));
  }
}

/* ---- The command ------------------------------------------------------------------------------------------------ */

typedef struct ListCommand {
  const char *kind, *wanted;
  bool json;
} ListCommand;

static const struct argp_option options_table[] = {{"json", KEY_JSON, NULL, 0, "print one JSON object", 0},
                                                   {0}};

static error_t parse_option(int key, char *text, struct argp_state *state) {
  ListCommand *command = state->input;
  switch (key) {
  case KEY_JSON: command->json = true; return 0;
  case ARGP_KEY_ARG:
    for (int i = 0; i < KIND_COUNT && state->arg_num == 0; i++)
      if (strcmp(text, kind_names[i]) == 0) command->kind = kind_names[i];
    if (command->kind && state->arg_num == 0) return 0;
    if (command->wanted) argp_error(state, "unexpected argument: %s", text);
    command->wanted = text;
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp list_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "[cases|optimizations|suites|figures|profiles] [NAME]",
    .doc = "Lists what there is. NAME may be part of a name or of what it is called elsewhere, as in "
           "\"activation recomputation\"."};

/* One kind that cannot be read does not keep the others from being shown. */
static int gather(const ListCommand *command, Listing *listing) {
  int exit_code = 0;
  for (int i = 0; i < KIND_COUNT; i++) {
    if (command->kind && command->kind != kind_names[i]) continue;
    listing->entries = json_array();
    json_object_set_new(listing->kinds, kind_names[i], listing->entries);
    Status status = gatherers[i](listing);
    if (status.code != VL_OK) exit_code = vl_command_fail(status);
  }
  return exit_code;
}

static size_t count_entries(const Listing *listing) {
  size_t count = 0;
  const char *kind;
  json_t *entries;
  json_object_foreach(listing->kinds, kind, entries) count += json_array_size(entries);
  return count;
}

int vl_command_list(int argc, char **argv) {
  ListCommand command = {0};
  vl_command_parse(&list_argp, argc, argv, &command);
  Listing listing = {.wanted = command.wanted, .kinds = json_object()};
  int exit_code = gather(&command, &listing);
  if (exit_code == 0 && count_entries(&listing) == 0 && command.wanted)
    exit_code = vl_command_fail(vl_error(VL_INVALID, "nothing is called \"%s\"", command.wanted));
  if (command.json) {
    char *text = json_dumps(listing.kinds, JSON_INDENT(2));
    puts(text);
    free(text);
  } else {
    print_listing(&listing);
  }
  json_decref(listing.kinds);
  return exit_code;
}
