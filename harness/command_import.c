/* vramlab import: adds cells that ran elsewhere to a store, so that figures and reports show them beside
 * ours: records as `run --json` prints them, and what scripts/peers/pytorch_step.py prints. */
#include "harness/options.h"

#include <stdlib.h>
#include <string.h>

typedef struct ImportCommand {
  const char *store;
  int64_t repeat;
  char **stores; /* to be merged, not owned */
  int store_count;
} ImportCommand;

enum { KEY_STORE = 0x200, KEY_REPEAT };

static const struct argp_option options_table[] = {
    {"store", KEY_STORE, "DIR", 0, "the store to add to; made when it does not exist", 1},
    {"repeat", KEY_REPEAT, "N", 0, "which repetition of the same cell this is, from 0", 2},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state) {
  ImportCommand *command = state->input;
  switch (key) {
  case KEY_STORE: command->store = text; return 0;
  case KEY_REPEAT: {
    Status status = vl_parse_integer("--repeat", text, 0, 1000000, &command->repeat);
    if (status.code != VL_OK) argp_error(state, "%s", status.message);
    return 0;
  }
  case ARGP_KEY_ARGS:
    command->stores = state->argv + state->next;
    command->store_count = state->argc - state->next;
    return 0;
  case ARGP_KEY_END:
    if (!command->store) argp_error(state, "give --store");
    if (command->store_count > 0 && command->repeat > 0)
      argp_error(state, "--repeat is for one record, not for stores");
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp import_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "\nSTORE...",
    .doc =
        "Without STORE: reads one JSON object from standard input and adds it to a store: a record that "
        "`vramlab run "
        "--json` "
        "printed, or the line of the PyTorch peer, which becomes a record with engine torch.\n\n"
        "With STORE...: adds all cells of these stores, parts of one suite (run --shard), with their "
        "timelines. Of a cell that several have, one that is ok stays before one that is not, else the later "
        "one."};

/* A number the peer must have printed. */
static Status peer_number(const json_t *peer, const char *key, double *value) {
  const json_t *number = json_object_get(peer, key);
  if (!json_is_number(number)) {
    return vl_error(VL_INVALID, "standard input: the peer's line has no number '%s'", key);
  }
  *value = json_number_value(number);
  return vl_ok();
}

/* What the peer was told, as a recipe: the keys PyTorch's side has. */
static void peer_recipe(const json_t *peer, char *recipe, size_t size) {
  const char *amp = json_string_value(json_object_get(peer, "amp"));
  json_int_t interval = json_integer_value(json_object_get(peer, "ckpt"));
  size_t used = amp ? (size_t)snprintf(recipe, size, "amp=%s", amp) : 0;
  if (!amp) *recipe = '\0';
  if (interval > 0) {
    used += (size_t)snprintf(recipe + used, size - used, "%scheckpoint=%lld", used ? " " : "",
                             (long long)interval);
  }
  if (json_is_true(json_object_get(peer, "tf32")))
    snprintf(recipe + used, size - used, "%sprecision=tf32", used ? " " : "");
}

/* What the peer was told of the model, as settings of the case. */
static void peer_settings(const json_t *peer, CellSpec *spec) {
  static const struct {
    const char *key, *setting;
    json_int_t usual;
  } settings[] = {{"size", "size", 0}, {"seq", "sequence", 0}, {"groups", "groups", 1}};
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
    json_int_t value = json_integer_value(json_object_get(peer, settings[i].key));
    if (value > settings[i].usual)
      snprintf(spec->settings[spec->setting_count++], VL_NAME_BYTES, "%s=%lld", settings[i].setting,
               (long long)value);
  }
}

static void set_text(json_t *record, const char *key, const char *text) {
  json_object_set_new(record, key, json_string(text));
}

static void set_integer(json_t *record, const char *key, double value) {
  json_object_set_new(record, key, json_integer((json_int_t)value));
}

/* The configuration beside the recipe: what distinguishes one peer run from another. */
static void peer_name(const json_t *peer, char *text, size_t size) {
  const char *version = json_string_value(json_object_get(peer, "torch"));
  const char *malloc_name = json_string_value(json_object_get(peer, "malloc"));
  snprintf(text, size, "PyTorch %s%s%s%s%s%s", version ? version : "?",
           json_is_true(json_object_get(peer, "compile")) ? " compile" : " eager",
           json_is_true(json_object_get(peer, "channels_last")) ? " channels-last" : "",
           json_is_true(json_object_get(peer, "cudnn_benchmark")) ? " cudnn-benchmark" : "",
           malloc_name ? " malloc=" : "", malloc_name ? malloc_name : "");
}

static Status record_from_peer(const json_t *peer, json_t **out) {
  double batch = 0, rate = 0, step_s = 0, base_bytes = 0, peak_bytes = 0, threads = 0, params = 0;
  double allocated_bytes = 0, reserved_bytes = 0;
  const char *gpu = json_string_value(json_object_get(peer, "gpu"));
  VL_TRY(peer_number(peer, "batch", &batch));
  VL_TRY(peer_number(peer, "samples_per_s", &rate));
  VL_TRY(peer_number(peer, "step_s", &step_s));
  VL_TRY(peer_number(peer, gpu ? "base_driver_bytes" : "base_rss_bytes", &base_bytes));
  VL_TRY(peer_number(peer, gpu ? "peak_driver_bytes" : "peak_rss_bytes", &peak_bytes));
  if (gpu) VL_TRY(peer_number(peer, "peak_allocated_bytes", &allocated_bytes));
  if (gpu) VL_TRY(peer_number(peer, "peak_reserved_bytes", &reserved_bytes));
  VL_TRY(peer_number(peer, "threads", &threads));
  VL_TRY(peer_number(peer, "params", &params));
  const char *case_name = json_string_value(json_object_get(peer, "case"));
  if (!case_name) return vl_error(VL_INVALID, "standard input: the peer's line has no 'case'");
  SuiteCell cell = {0};
  vl_cell_spec_init(&cell.spec);
  snprintf(cell.spec.case_name, sizeof cell.spec.case_name, "%s", case_name);
  peer_recipe(peer, cell.spec.recipe, sizeof cell.spec.recipe);
  cell.spec.micro_batch = (int64_t)batch;
  if (!gpu) cell.spec.threads = (int32_t)threads;
  cell.spec.inference = json_is_true(json_object_get(peer, "infer"));
  if (gpu) snprintf(cell.spec.device, sizeof cell.spec.device, "cuda");
  peer_settings(peer, &cell.spec);
  VL_TRY(vl_cell_check(&cell.spec));
  json_t *record = vl_record_create_failure(&cell, "ok", "");
  char name[128];
  peer_name(peer, name, sizeof name);
  set_text(record, "engine", "torch");
  set_text(record, "library", name);
  set_text(record, "provenance", "measured");
  json_object_set_new(record, "error", json_null());
  json_object_set_new(record, "samples_per_s", json_real(rate));
  json_object_set_new(record, "step_s", json_real(step_s));
  set_integer(record, "params", params);
  set_integer(record, "base_bytes", base_bytes);
  set_integer(record, "peak_step_bytes", peak_bytes - base_bytes);
  if (gpu) {
    set_text(record, "hardware", gpu);
    set_integer(record, "peak_allocated_bytes", allocated_bytes);
    set_integer(record, "peak_reserved_bytes", reserved_bytes);
  }
  json_t *losses = json_object_get(peer, "losses");
  if (json_is_array(losses)) json_object_set(record, "losses", losses);
  *out = record;
  return vl_ok();
}

/* A repetition, or another configuration of the peer, is a cell of its own. */
static void make_key_own(json_t *record, int64_t repeat) {
  uint64_t hash = vl_hash_text(vl_hash_start, vl_record_text(record, "cell_key"));
  hash = vl_hash_text(hash, vl_record_text(record, "engine"));
  if (strcmp(vl_record_text(record, "engine"), "torch") == 0) {
    hash = vl_hash_text(hash, vl_record_text(record, "library"));
  }
  hash = vl_hash_bytes(hash, &repeat, sizeof repeat);
  char key[17];
  snprintf(key, sizeof key, "%016llx", (unsigned long long)hash);
  set_text(record, "cell_key", key);
  json_object_set_new(record, "repeat", json_integer((json_int_t)repeat));
}

static Status read_record(json_t **record) {
  json_error_t error;
  json_t *value = json_loadf(stdin, JSON_REJECT_DUPLICATES, &error);
  if (!json_is_object(value)) {
    json_decref(value);
    return vl_error(VL_INVALID, "standard input:%d: not one JSON object (%s)", error.line, error.text);
  }
  Status status = vl_ok();
  if (json_object_get(value, "torch")) {
    status = record_from_peer(value, record);
    json_decref(value);
  } else if (vl_record_text(value, "cell_key") && vl_record_text(value, "status") &&
             vl_record_text(value, "engine")) {
    *record = value;
  } else {
    json_decref(value);
    status =
        vl_error(VL_INVALID, "standard input: neither a record (no cell_key, status, engine) nor a peer's "
                             "line (no torch)");
  }
  return status;
}

/* ---- Stores ------------------------------------------------------------------------------------------------------- */

static Status add_record(Store *store, const Store *from, const json_t *record) {
  TimelineEvent *events;
  int64_t count;
  const char *key = vl_record_text(record, "cell_key");
  const json_t *there = vl_store_find(store, key);
  if (there && (json_equal(there, record) ||
                (vl_record_has_status(there, "ok") && !vl_record_has_status(record, "ok"))))
    return vl_ok();
  VL_TRY(vl_store_timeline(from, key, &events, &count));
  OpRecord *ops;
  int64_t op_count;
  Status status = vl_store_ops(from, key, &ops, &op_count);
  if (status.code == VL_OK) status = vl_store_append_step(store, record, events, count, ops, op_count);
  free(events);
  free(ops);
  return status;
}

static Status add_store(const char *path, const char *into, Store **store) {
  Store *from;
  VL_TRY(vl_store_open(path, &from));
  const char *suite = vl_record_text(vl_store_head(from), "suite");
  Status status = vl_ok();
  if (!suite) suite = "import";
  if (!*store) status = vl_store_begin(into, suite, "vramlab import", store);
  const char *theirs = *store ? vl_record_text(vl_store_head(*store), "suite") : NULL;
  if (status.code == VL_OK && (!theirs || strcmp(theirs, suite) != 0))
    status = vl_error(VL_INVALID, "%s holds suite \"%s\", %s suite \"%s\": they are no parts of one", into,
                      theirs ? theirs : "?", path, suite);
  for (int64_t i = 0; i < vl_store_count(from) && status.code == VL_OK; i++)
    status = add_record(*store, from, vl_store_record(from, i));
  vl_store_close(&from);
  return status;
}

static Status merge(const ImportCommand *command) {
  Store *store = NULL;
  Status status = vl_ok();
  for (int i = 0; i < command->store_count && status.code == VL_OK; i++)
    status = add_store(command->stores[i], command->store, &store);
  if (status.code == VL_OK) status = vl_store_rebuild(store);
  vl_store_close(&store);
  return status;
}

static Status import(const ImportCommand *command) {
  json_t *record = NULL;
  VL_TRY(read_record(&record));
  make_key_own(record, command->repeat);
  Store *store = NULL;
  Status status = vl_store_begin(command->store, "import", "vramlab import", &store);
  if (status.code == VL_OK) status = vl_store_append(store, record, NULL, 0);
  if (status.code == VL_OK) status = vl_store_rebuild(store);
  vl_store_close(&store);
  json_decref(record);
  return status;
}

int vl_command_import(int argc, char **argv) {
  ImportCommand command = {0};
  vl_command_parse(&import_argp, argc, argv, &command);
  Status status = command.store_count > 0 ? merge(&command) : import(&command);
  return status.code == VL_OK ? 0 : vl_command_fail(status);
}
