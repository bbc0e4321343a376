#include "harness/options.h"
#include "harness/cell_json.h"
#include "harness/machine.h"

#include <string.h>

enum {
  KEY_CASE = 0x100,
  KEY_BATCH,
  KEY_MICRO_BATCH,
  KEY_RECIPE,
  KEY_DEVICE,
  KEY_PROFILE,
  KEY_CAPACITY,
  KEY_THREADS,
  KEY_SEED,
  KEY_DATA,
  KEY_INFERENCE,
  KEY_TIMELINE,
  KEY_MONITOR,
  KEY_CROSS_CHECK,
  KEY_LEARNING_RATE,
  KEY_SAVE_STATE,
  KEY_LOAD_STATE,
  KEY_TIMEOUT,
  KEY_OFFLOAD_CAPACITY,
  KEY_OFFLOAD_DIRECTORY,
  KEY_QUEUE,
  KEY_INJECT,
  KEY_MAX_NOISE,
  KEY_MAX_TIME
};

static const struct argp_option options_table[] = {
    {NULL, 0, NULL, 0, "Which cell:", 1},
    {"case", KEY_CASE, "NAME", 0, "workload (vramlab list cases)", 1},
    {"batch", KEY_BATCH, "N", 0, "global batch: samples an optimizer step sees", 1},
    {"global-batch", 0, NULL, OPTION_ALIAS, NULL, 1},
    {"micro-batch", KEY_MICRO_BATCH, "N", 0, "samples one rank runs at once", 1},
    {"recipe", KEY_RECIPE, "RECIPE", 0, "optimizations, as in \"amp=bf16 checkpoint=4\"", 1},
    {"device", KEY_DEVICE, "NAME", 0, "cpu, cuda, plan (predicts) or auto", 1},
    {"profile", KEY_PROFILE, "NAME", 0, "plan for this device on paper (vramlab list profiles)", 1},
    {"capacity", KEY_CAPACITY, "SIZE", 0, "most the heap may hold, as in 16GiB", 1},
    {"offload-capacity", KEY_OFFLOAD_CAPACITY, "SIZE", 0, "most the tier that recipes offload to may hold",
     1},
    {"set", 'S', "KEY=VALUE", 0, "an argument of the case, as in size=96; may be repeated", 1},
    {"infer", KEY_INFERENCE, NULL, 0, "inference: the evaluation graph, forward only", 1},
    {"inference", 0, NULL, OPTION_ALIAS, NULL, 1},
    {"queue", KEY_QUEUE, "SIZES", 0,
     "samples of several sizes, as in 64x64x64:8,96x96x64:4; a step is a pass over all, in batches of one "
     "size",
     1},
    {"data", KEY_DATA, "FILE", 0,
     "HDF5 file of images or text (scripts/data) or volumes (vramlab convert); phantoms: generated volumes",
     1},
    {"lr", KEY_LEARNING_RATE, "RATE", 0, "learning rate", 1},
    {"seed", KEY_SEED, "N", 0, "of weights, inputs and masks", 1},
    {"load-state", KEY_LOAD_STATE, "FILE", 0, "begin from a saved state", 1},
    {"save-state", KEY_SAVE_STATE, "FILE", 0, "save the state at the end", 1},
    {NULL, 0, NULL, 0, "How it is measured:", 2},
    {"steps", 'r', "N", 0, "measured steps", 2},
    {"runs", 0, NULL, OPTION_ALIAS, NULL, 2},
    {"warmup", 'w', "N", 0, "steps before them", 2},
    {"max-noise", KEY_MAX_NOISE, "PERCENT", 0,
     "go on after --steps until the median's 95 % interval is within this on both sides", 2},
    {"max-time", KEY_MAX_TIME, "SECONDS", 0, "but no longer than this (60)", 2},
    {"threads", KEY_THREADS, "N", 0, "0: all", 2},
    {"offload-dir", KEY_OFFLOAD_DIRECTORY, "DIR", 0,
     "cpu: where the file that recipes offload to is (TMPDIR, else /tmp)", 2},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0, "end the cell after this long", 2},
    {"timeline", KEY_TIMELINE, NULL, 0,
     "keep the allocations of the last step, or of the first when it runs out of memory, and the ops of one "
     "more",
     2},
    {"monitor", KEY_MONITOR, NULL, 0,
     "watch the numbers of every step: loss scale, norms, infinities; no times", 2},
    {"cross-check", KEY_CROSS_CHECK, NULL, 0,
     "cuda: CUPTI's account of memory and kernels beside the tracker's; no times", 2},
    {"inject", KEY_INJECT, "FAULT", 0,
     "a fault on purpose, to see it found by compare: slowdown=0.05, allocate=1MiB:activation", 2},
    {0}};

void vl_cell_options_init(CellOptions *options) {
  memset(options, 0, sizeof *options);
  vl_cell_spec_init(&options->spec);
}

/* ---- Parsing ------------------------------------------------------------------------------------------------- */

static void must(struct argp_state *state, Status status) {
  if (status.code != VL_OK) argp_error(state, "%s", status.message);
}

static void take_text(struct argp_state *state, const char *option, const char *text, char *to, size_t size) {
  if (strlen(text) >= size)
    argp_error(state, "--%s is longer than the %zu characters allowed", option, size - 1);
  snprintf(to, size, "%s", text);
}

static void take_number(struct argp_state *state, const char *option, const char *text, int64_t low,
                        int64_t high, int64_t *to) {
  must(state, vl_parse_integer(option, text, low, high, to));
}

static void take_whole(struct argp_state *state, const char *option, const char *text, int64_t low,
                       int64_t high, int32_t *to) {
  int64_t value = 0;
  take_number(state, option, text, low, high, &value);
  *to = (int32_t)value;
}

static void take_positive(struct argp_state *state, const char *option, const char *text, double *to) {
  json_t *json = json_loads(text, JSON_DECODE_ANY, NULL);
  *to = json_number_value(json);
  bool positive = json_is_number(json) && *to > 0;
  json_decref(json);
  if (!positive) argp_error(state, "%s '%s' is not a number above 0", option, text);
}

static void take_recipe(struct argp_state *state, CellOptions *options, const char *text) {
  Recipe recipe;
  must(state, vl_recipe_parse(text, &recipe));
  if (options->recipe_count == VL_MAX_LISTED) argp_error(state, "more than %d recipes", VL_MAX_LISTED);
  if (options->recipe_count == 0)
    take_text(state, "recipe", text, options->spec.recipe, sizeof options->spec.recipe);
  options->recipes[options->recipe_count++] = text;
}

static void take_capacity(struct argp_state *state, CellOptions *options, const char *text) {
  int64_t bytes = 0;
  must(state, vl_parse_bytes(text, &bytes));
  if (bytes == 0) argp_error(state, "--capacity 0 holds nothing");
  if (options->capacity_count == VL_MAX_LISTED) argp_error(state, "more than %d capacities", VL_MAX_LISTED);
  if (options->capacity_count == 0) options->spec.capacity_bytes = bytes;
  options->capacities[options->capacity_count++] = bytes;
}

static void take_setting(struct argp_state *state, CellSpec *spec, const char *text) {
  if (!strchr(text, '=')) argp_error(state, "--set '%s' is not of the form KEY=VALUE", text);
  if (spec->setting_count == VL_MAX_SETTINGS) argp_error(state, "more than %d settings", VL_MAX_SETTINGS);
  take_text(state, "set", text, spec->settings[spec->setting_count++], VL_NAME_BYTES);
}

static void take_file(struct argp_state *state, const char *option, const char *text, char *to) {
  take_text(state, option, text, to, sizeof((CellSpec *)0)->data);
}

static uint32_t take_option(int key, char *text, struct argp_state *state, CellOptions *options) {
  CellSpec *spec = &options->spec;
  int64_t seed = 0;
  switch (key) {
  case KEY_CASE: take_text(state, "case", text, spec->case_name, sizeof spec->case_name); return GIVEN_CASE;
  case KEY_BATCH: take_number(state, "--batch", text, 1, INT32_MAX, &options->batch); return GIVEN_BATCH;
  case KEY_MICRO_BATCH:
    take_number(state, "--micro-batch", text, 1, INT32_MAX, &spec->micro_batch);
    return GIVEN_MICRO_BATCH;
  case KEY_RECIPE: take_recipe(state, options, text); return GIVEN_RECIPE;
  case KEY_DEVICE: take_text(state, "device", text, spec->device, sizeof spec->device); return GIVEN_DEVICE;
  case KEY_PROFILE:
    take_text(state, "profile", text, spec->profile, sizeof spec->profile);
    return GIVEN_PROFILE;
  case KEY_CAPACITY: take_capacity(state, options, text); return GIVEN_CAPACITY;
  case 'S': take_setting(state, spec, text); return GIVEN_SETTINGS;
  case 'r': take_whole(state, "--steps", text, 1, VL_MAX_STEPS, &spec->steps); return GIVEN_STEPS;
  case 'w': take_whole(state, "--warmup", text, 1, VL_MAX_STEPS, &spec->warmup); return GIVEN_WARMUP;
  case KEY_THREADS: take_whole(state, "--threads", text, 0, 4096, &spec->threads); return GIVEN_THREADS;
  case KEY_SEED:
    take_number(state, "--seed", text, 0, INT64_MAX, &seed);
    spec->seed = (uint64_t)seed;
    return GIVEN_SEED;
  case KEY_DATA: take_file(state, "data", text, spec->data); return GIVEN_DATA;
  case KEY_SAVE_STATE: take_file(state, "save-state", text, spec->save_state); return GIVEN_SAVE_STATE;
  case KEY_LOAD_STATE: take_file(state, "load-state", text, spec->load_state); return GIVEN_LOAD_STATE;
  case KEY_QUEUE: take_text(state, "queue", text, spec->queue, sizeof spec->queue); return GIVEN_QUEUE;
  case KEY_INFERENCE: spec->inference = true; return GIVEN_INFERENCE;
  case KEY_TIMELINE: spec->timeline = true; return GIVEN_TIMELINE;
  case KEY_MONITOR: spec->monitor = true; return GIVEN_MONITOR;
  case KEY_MAX_NOISE:
    take_positive(state, "--max-noise", text, &spec->max_noise);
    spec->max_noise /= 100;
    return GIVEN_MAX_NOISE;
  case KEY_MAX_TIME: take_positive(state, "--max-time", text, &spec->max_time_s); return GIVEN_MAX_TIME;
  case KEY_INJECT: take_text(state, "inject", text, spec->inject, sizeof spec->inject); return GIVEN_INJECT;
  case KEY_CROSS_CHECK: spec->cross_check = true; return GIVEN_CROSS_CHECK;
  case KEY_LEARNING_RATE:
    take_positive(state, "--lr", text, &spec->learning_rate);
    return GIVEN_LEARNING_RATE;
  case KEY_OFFLOAD_CAPACITY:
    must(state, vl_parse_bytes(text, &spec->offload_capacity_bytes));
    if (spec->offload_capacity_bytes == 0) argp_error(state, "--offload-capacity 0 holds nothing");
    return GIVEN_OFFLOAD_CAPACITY;
  case KEY_OFFLOAD_DIRECTORY:
    take_text(state, "offload-dir", text, spec->offload_directory, sizeof spec->offload_directory);
    return GIVEN_OFFLOAD_DIRECTORY;
  case KEY_TIMEOUT: take_positive(state, "--timeout", text, &options->timeout_s); return GIVEN_TIMEOUT;
  default: return 0;
  }
}

static error_t parse_option(int key, char *text, struct argp_state *state) {
  CellOptions *options = state->input;
  uint32_t given = take_option(key, text, state, options);
  options->given |= given;
  return given ? 0 : ARGP_ERR_UNKNOWN;
}

const struct argp vl_cell_argp = {.options = options_table, .parser = parse_option};

void vl_command_parse(const struct argp *argp, int argc, char **argv, void *input) {
  argp_err_exit_status = 2;
  argp_parse(argp, argc, argv, ARGP_IN_ORDER, NULL, input);
}

/* ---- Meaning --------------------------------------------------------------------------------------------------- */

Status vl_recipe_accumulate(const char *text, int64_t *accumulate) {
  Recipe recipe;
  *accumulate = 1;
  VL_TRY(vl_recipe_parse(text, &recipe));
  *accumulate = vl_accumulate_count(&recipe);
  return vl_ok();
}

Status vl_cell_divide(CellSpec *spec, int64_t batch) {
  int64_t accumulate;
  VL_TRY(vl_recipe_accumulate(spec->recipe, &accumulate));
  VL_TRY(vl_accumulate_micro_batch(batch, accumulate > 0 ? accumulate : 1, &spec->micro_batch));
  bool whole = accumulate == 0 || spec->micro_batch * accumulate == batch;
  spec->global_batch = whole ? 0 : batch;
  return vl_ok();
}

/* Both batches given: the recipe must accumulate as often as they say, and does so when it says nothing. */
static Status reconcile_batches(CellOptions *options) {
  CellSpec *spec = &options->spec;
  Recipe recipe;
  int64_t accumulate, batch = options->batch, micro_batch = spec->micro_batch;
  VL_TRY(vl_recipe_parse(spec->recipe, &recipe));
  VL_TRY(vl_recipe_accumulate(spec->recipe, &accumulate));
  if (accumulate == 0)
    return vl_error(VL_INVALID, "accumulate=auto chooses what --micro-batch gives: one of them");
  int64_t wanted = (batch + micro_batch - 1) / micro_batch;
  if (micro_batch > batch)
    return vl_error(VL_INVALID, "--micro-batch %lld is more than the --batch %lld it is part of",
                    (long long)micro_batch, (long long)batch);
  spec->global_batch = wanted * micro_batch == batch ? 0 : batch;
  if (wanted == accumulate) return vl_ok();
  if (accumulate != 1 || vl_recipe_value(&recipe, "accumulate"))
    return vl_error(
        VL_INVALID, "--batch %lld over --micro-batch %lld is accumulate=%lld, and the recipe says %lld",
        (long long)options->batch, (long long)spec->micro_batch, (long long)wanted, (long long)accumulate);
  size_t used = strlen(spec->recipe);
  snprintf(spec->recipe + used, sizeof spec->recipe - used, "%saccumulate=%lld", used ? " " : "",
           (long long)wanted);
  return vl_ok();
}

static Status resolve_batch(CellOptions *options) {
  if (!(options->given & GIVEN_BATCH)) return vl_ok();
  if (options->given & GIVEN_MICRO_BATCH) return reconcile_batches(options);
  return vl_cell_divide(&options->spec, options->batch);
}

static void resolve_device(CellOptions *options) {
  CellSpec *spec = &options->spec;
  if (strcmp(spec->device, "auto") == 0)
    snprintf(spec->device, sizeof spec->device, "%s", vl_machine_has_gpu() ? "cuda" : "cpu");
  /* A card on paper can only be planned for. */
  if ((options->given & GIVEN_PROFILE) && !(options->given & GIVEN_DEVICE))
    snprintf(spec->device, sizeof spec->device, "plan");
}

Status vl_cell_options_resolve(CellOptions *options) {
  resolve_device(options);
  VL_TRY(resolve_batch(options));
  vl_cell_normalize(&options->spec);
  return vl_cell_check(&options->spec);
}

Status vl_cell_options_usual_capacity(CellOptions *options) {
  int64_t bytes = vl_machine_available_bytes();
  if (options->capacity_count > 0) return vl_ok();
  if (*options->spec.profile) {
    DeviceProfile profile;
    VL_TRY(vl_profile_load(NULL, options->spec.profile, &profile));
    bytes = profile.memory_bytes; /* what is needed has the context in it */
  }
  if (bytes <= 0) return vl_error(VL_ENVIRONMENT, "this system does not tell its memory; give --capacity");
  options->capacities[options->capacity_count++] = bytes;
  return vl_ok();
}

Status vl_cell_options_override(const CellOptions *options, SuiteCell *cell) {
  static const struct {
    uint32_t bit;
    const char *name;
  } fixed[] = {
      {GIVEN_CASE, "case"},       {GIVEN_BATCH, "batch"},           {GIVEN_MICRO_BATCH, "micro-batch"},
      {GIVEN_RECIPE, "recipe"},   {GIVEN_SETTINGS, "set"},          {GIVEN_DATA, "data"},
      {GIVEN_INFERENCE, "infer"}, {GIVEN_SAVE_STATE, "save-state"}, {GIVEN_LOAD_STATE, "load-state"},
      {GIVEN_QUEUE, "queue"}};
  for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
    if (options->given & fixed[i].bit)
      return vl_error(VL_INVALID,
                      "--%s does not go with a suite: its cells say that; --filter chooses among them",
                      fixed[i].name);
  const CellSpec *from = &options->spec;
  CellSpec *to = &cell->spec;
  if ((options->given & GIVEN_DEVICE) && !cell->max_batch)
    snprintf(to->device, sizeof to->device, "%s", from->device);
  if (strcmp(to->device, "plan") != 0) to->profile[0] = '\0';
  if (options->given & GIVEN_PROFILE) snprintf(to->profile, sizeof to->profile, "%s", from->profile);
  if (options->given & GIVEN_CAPACITY) to->capacity_bytes = from->capacity_bytes;
  if (options->given & GIVEN_OFFLOAD_CAPACITY) to->offload_capacity_bytes = from->offload_capacity_bytes;
  if (options->given & GIVEN_OFFLOAD_DIRECTORY)
    snprintf(to->offload_directory, sizeof to->offload_directory, "%s", from->offload_directory);
  if (options->given & GIVEN_STEPS) to->steps = from->steps;
  if (options->given & GIVEN_WARMUP) to->warmup = from->warmup;
  if (options->given & GIVEN_THREADS) to->threads = from->threads;
  if (options->given & GIVEN_SEED) to->seed = from->seed;
  if (options->given & GIVEN_TIMELINE) to->timeline = !cell->max_batch;
  if (options->given & GIVEN_MONITOR) to->monitor = !cell->max_batch;
  if (options->given & GIVEN_CROSS_CHECK) to->cross_check = !cell->max_batch;
  if (options->given & GIVEN_INJECT && !cell->max_batch)
    snprintf(to->inject, sizeof to->inject, "%s", from->inject);
  bool measured = strcmp(to->device, "plan") != 0 && !cell->max_batch && !*to->queue;
  if ((options->given & GIVEN_MAX_NOISE) && measured) to->max_noise = from->max_noise;
  if ((options->given & GIVEN_MAX_TIME) && measured) to->max_time_s = from->max_time_s;
  if (options->given & GIVEN_LEARNING_RATE) to->learning_rate = from->learning_rate;
  if (options->given & GIVEN_TIMEOUT) cell->timeout_s = options->timeout_s;
  return vl_cell_check(to);
}

int vl_cell_exit_code(const json_t *record) {
  const char *status = vl_record_text(record, "status");
  if (strcmp(status, "ok") == 0) return 0;
  return strcmp(status, "skipped") == 0 ? 77 : 1;
}
