#include "report_records.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int64_t weights_bytes = 102228128; /* 25,557,032 parameters */

static void fill_bytes(CellResult *result, const Synthetic *cell) {
  int64_t activations = (int64_t)(cell->activation_bytes * (double)cell->batch);
  int64_t *category = result->peak_by_category;
  category[MEMORY_PARAMETER] = weights_bytes + 212480;
  category[MEMORY_GRADIENT] = 9 * 1024 * 1024;
  category[MEMORY_OPTIMIZER] = weights_bytes;
  category[MEMORY_ACTIVATION] = activations;
  category[MEMORY_INPUT] = cell->batch * 3 * 224 * 224 * 4;
  category[MEMORY_WORKSPACE] = 16 * 1024 * 1024;
  category[MEMORY_COMMUNICATION] = 0;
  int64_t allocated = 0;
  for (int i = 0; i < MEMORY_CATEGORY_COUNT; i++)
    allocated += category[i];
  /* Asked for is a little less than allocated; the weights are as reckoned, activations 1 % above. */
  MemoryAccount *account = &result->account;
  snprintf(account->op, sizeof(account->op), "conv_backward_weights");
  snprintf(account->scope, sizeof(account->scope), "layer4.2.conv3");
  account->segment = SEGMENT_BACKWARD;
  for (int i = 0; i < MEMORY_CATEGORY_COUNT; i++)
    result->requested_by_category[i] = account->by_category[i] = category[i];
  account->by_category[MEMORY_ACTIVATION] = activations / 101 * 100;
  result->requested_by_category[MEMORY_PARAMETER] = account->by_category[MEMORY_PARAMETER] = weights_bytes;
  account->highest_bytes = allocated;
  account->terms[account->term_count++] = (MemoryTerm){.category = MEMORY_PARAMETER,
                                                       .name = "weights",
                                                       .count = 161,
                                                       .bytes = weights_bytes,
                                                       .rounding_bytes = 212480};
  account->terms[account->term_count++] = (MemoryTerm){
      .category = MEMORY_ACTIVATION, .name = "saved: conv", .count = 53, .bytes = activations / 101 * 100};
  result->cached_free_bytes = 30 * 1024 * 1024 + activations / 50;
  result->untracked_bytes = 12 * 1024 * 1024;
  result->peak_allocated_bytes = allocated;
  result->peak_requested_bytes = allocated - 4096;
  result->peak_reserved_bytes = allocated + result->cached_free_bytes;
  result->needed_bytes = result->peak_reserved_bytes + result->untracked_bytes;
  result->peak_driver_bytes = result->needed_bytes;
  result->warmup_peak_allocated_bytes = result->steady_peak_allocated_bytes = allocated;
  result->warmup_peak_reserved_bytes = result->steady_peak_reserved_bytes = result->peak_reserved_bytes;
  result->peak_step_bytes = result->needed_bytes - weights_bytes;
  result->base_bytes = weights_bytes + category[MEMORY_INPUT];
  result->saved_activation_bytes = activations;
}

static void fill_description(CellResult *result, const Synthetic *cell) {
  snprintf(result->status, sizeof(result->status), "%s", cell->status != NULL ? cell->status : "ok");
  snprintf(result->error, sizeof(result->error), "%s", cell->error != NULL ? cell->error : "");
  snprintf(result->recipe, sizeof(result->recipe), "%s", cell->recipe);
  bool vramlab = strstr(cell->recipe, "stack=vramlab") != NULL;
  snprintf(result->stack, sizeof(result->stack), "%s", vramlab ? "vramlab" : "pytorch");
  snprintf(result->preserves, sizeof(result->preserves), "%s", cell->preserves);
  snprintf(result->provenance, sizeof(result->provenance), "%s", cell->predicted ? "predicted" : "measured");
  snprintf(result->device.name, sizeof(result->device.name), "%s", cell->predicted ? "plan:cpu" : "cpu");
  snprintf(result->device.hardware, sizeof(result->device.hardware), "Example CPU 9000, 2 cores");
  snprintf(result->device.isa, sizeof(result->device.isa), "avx512_core_bf16");
  snprintf(result->device.library, sizeof(result->device.library), "oneDNN 3.2.0");
  result->device.threads = 2;
  result->device.memory_bytes = (int64_t)24 << 30;
  result->device.predicts = cell->predicted;
  result->device.has_time = !cell->predicted;
}

json_t *synthetic_record(const Synthetic *cell) {
  SuiteCell spec = {.repeat = 0};
  vl_cell_spec_init(&spec.spec);
  snprintf(spec.spec.case_name, VL_NAME_BYTES, "resnet50");
  snprintf(spec.spec.recipe, VL_RECIPE_BYTES, "%s", cell->recipe);
  snprintf(spec.spec.device, sizeof(spec.spec.device), "%s", cell->predicted ? "plan" : "cpu");
  spec.spec.micro_batch = cell->batch;
  spec.spec.capacity_bytes = cell->capacity_bytes;
  CellResult *result = vl_allocate(sizeof(*result));
  fill_description(result, cell);
  fill_bytes(result, cell);
  result->micro_batch = result->global_batch = cell->batch;
  result->accumulate = result->ranks = 1;
  result->tokens_per_sample = -1;
  result->parameters = 25557032;
  result->flops_per_step = 24600000000 * cell->batch;
  double steps[7], losses[8];
  for (int i = 0; i < 7; i++)
    steps[i] = (double)cell->batch / cell->samples_per_s * (1 + 0.01 * (i % 3));
  for (int i = 0; i < 8; i++)
    losses[i] = 7.0 - 0.05 * i + cell->loss_shift;
  bool computed = !cell->predicted && cell->samples_per_s > 0;
  result->step_s = steps;
  result->step_count = computed ? 7 : 0;
  result->losses = losses;
  result->loss_count = computed ? 8 : 0;
  result->energy_mj = cell->energy_mj > 0 ? cell->energy_mj : -1;
  result->build_s = result->tracker_share = result->accuracy = NAN;
  result->oom_request_bytes = (int64_t)98 << 20;
  result->oom_largest_free_bytes = (int64_t)20 << 20;
  snprintf(result->oom_segment, sizeof(result->oom_segment), "%s",
           cell->oom_segment != NULL ? cell->oom_segment : "");
  if (strcmp(result->status, "ok") != 0) result->needed_bytes = -1;
  json_t *record = vl_record_create(&spec, result);
  json_object_set_new(record, "suite", json_string(cell->suite));
  free(result);
  return record;
}

json_t *synthetic_max_batch(const char *suite, const char *recipe, int64_t capacity_bytes, int64_t batch) {
  return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I}", "kind", "max-batch", "suite",
                   suite, "status", "ok", "case", "resnet50", "recipe", recipe, "device", "plan",
                   "device_name", "plan:cpu", "hardware", "Example CPU 9000, 2 cores", "provenance",
                   "predicted", "capacity_bytes", (json_int_t)capacity_bytes, "batch", (json_int_t)batch);
}

json_t *synthetic_peer(const SyntheticPeer *peer) {
  Synthetic cell = {.recipe = peer->recipe,
                    .preserves = "bitwise",
                    .batch = 16,
                    .activation_bytes = 105e6,
                    .samples_per_s = peer->samples_per_s,
                    .loss_shift = -1};
  json_t *record = synthetic_record(&cell);
  static const char *const unknown[] = {"hardware", "needed_bytes", "peak_by_category", "suite"};
  for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
    json_object_set_new(record, unknown[i], json_null());
  json_object_set_new(record, "engine", json_string("torch"));
  json_object_set_new(record, "library", json_string(peer->configuration));
  json_object_set_new(record, "samples_per_s", json_real(peer->samples_per_s));
  json_object_set_new(record, "peak_step_bytes", json_integer(peer->step_bytes));
  json_object_set_new(record, "repeat", json_integer(peer->repeat));
  return record;
}

void synthetic_beside_peers(SyntheticSet *set) {
  static const char *const recipes[2] = {"stack=vramlab recompute=norm update=in-backward",
                                         "stack=vramlab amp=bf16 recompute=norm update=in-backward"};
  for (int64_t repeat = 0; repeat < 3; repeat++)
    for (int precision = 0; precision < 2; precision++) {
      /* The machine's mood: it slows all three runs of a repetition. */
      double speed = (precision == 0 ? 12 : 24) / (1 + 0.5 * (double)repeat);
      Synthetic ours = {.recipe = recipes[precision],
                        .preserves = "tolerance",
                        .batch = 16,
                        .activation_bytes = 50e6,
                        .samples_per_s = speed};
      json_t *record = synthetic_record(&ours);
      json_object_set_new(record, "suite", json_null());
      json_object_set_new(record, "samples_per_s", json_real(speed * 1.25));
      json_object_set_new(record, "peak_step_bytes", json_integer((int64_t)3 << 28));
      json_object_set_new(record, "repeat", json_integer(repeat));
      synthetic_add(set, record);
      SyntheticPeer peer = {precision == 0 ? "baseline" : "amp=bf16",
                            "PyTorch 2.14.1+cu130 compile channels-last malloc=keep", speed, (int64_t)2 << 30,
                            repeat};
      synthetic_add(set, synthetic_peer(&peer));
      peer.configuration = "PyTorch 2.14.1+cu130 eager malloc=huge";
      peer.samples_per_s = speed * 0.75;
      peer.step_bytes = (int64_t)1 << 30;
      synthetic_add(set, synthetic_peer(&peer));
    }
}

void synthetic_add(SyntheticSet *set, json_t *record) { set->owned[set->count++] = record; }

void synthetic_clear(SyntheticSet *set) {
  for (int32_t i = 0; i < set->count; i++)
    json_decref(set->owned[i]);
  set->count = 0;
}

typedef struct RecipeModel {
  const char *recipe, *preserves;
  double activation_bytes, samples_per_s, loss_shift;
} RecipeModel;

static const RecipeModel models[] = {
    {"baseline", "bitwise", 105e6, 6.1, 0},
    {"amp=bf16", "tolerance", 54e6, 9.8, 3e-3},
    {"checkpoint=4", "bitwise", 46e6, 4.7, 0},
    {"stack=vramlab", "tolerance", 84.3e6, 7.6, 1e-6},
    {"stack=vramlab recompute=norm update=in-backward", "tolerance", 52e6, 7.1, 1e-6},
    {"stack=vramlab amp=bf16 recompute=norm update=in-backward", "tolerance", 27e6, 11.2, 3e-3},
};
enum { MODEL_COUNT = sizeof(models) / sizeof(models[0]) };

static void add_model(SyntheticSet *set, const char *suite, const RecipeModel *model, int64_t batch,
                      bool predicted) {
  Synthetic cell = {.suite = suite,
                    .recipe = model->recipe,
                    .preserves = model->preserves,
                    .predicted = predicted,
                    .batch = batch,
                    .activation_bytes = model->activation_bytes,
                    .samples_per_s = model->samples_per_s * (double)batch / (double)(batch + 2),
                    .loss_shift = model->loss_shift};
  synthetic_add(set, synthetic_record(&cell));
}

void synthetic_quick(SyntheticSet *set) {
  static const int64_t capacities[] = {8, 16, 24};
  for (int m = 0; m < MODEL_COUNT; m++) {
    add_model(set, "quick", &models[m], 16, false);
    for (int c = 0; c < 3; c++) {
      int64_t capacity = capacities[c] << 30;
      int64_t batch = (int64_t)(((double)capacity - 0.35e9) / (models[m].activation_bytes * 1.02));
      synthetic_add(set, synthetic_max_batch("quick", models[m].recipe, capacity, batch));
    }
  }
}

void synthetic_growth(SyntheticSet *set) {
  static const int64_t batches[] = {1, 8, 16, 32, 64, 96, 128, 192, 256};
  for (int m = 0; m < 4; m++)
    for (size_t b = 0; b < sizeof(batches) / sizeof(batches[0]); b++) {
      add_model(set, "resnet-growth", &models[m], batches[b], true);
      if (batches[b] <= (m == 0 ? 128 : 256)) {
        add_model(set, "resnet-growth", &models[m], batches[b], false);
        continue;
      }
      Synthetic failed = {.suite = "resnet-growth",
                          .recipe = models[m].recipe,
                          .preserves = "bitwise",
                          .batch = batches[b],
                          .activation_bytes = models[m].activation_bytes,
                          .status = batches[b] == 192 ? "oom" : "skipped",
                          .error = "needs more than there is"};
      synthetic_add(set, synthetic_record(&failed));
    }
}

/* Seven segments of 480 MiB and one of weights are held. Forward obtains an activation and a workspace a
 * layer, backward releases and obtains gradients. */
int64_t synthetic_timeline(TimelineEvent *events, int64_t capacity) {
  int64_t count = 0, allocated = (int64_t)320 << 20;
  for (; count <= SYNTHETIC_SEGMENTS; count++)
    events[count] = (TimelineEvent){.action = count < SYNTHETIC_SEGMENTS ? MEMORY_SEGMENT_HELD : MEMORY_HELD,
                                    .category = MEMORY_PARAMETER,
                                    .bytes = count < 7 ? (int64_t)480 << 20 : allocated,
                                    .requested_bytes = count < 7 ? (int64_t)480 << 20 : allocated,
                                    .allocated_bytes = allocated,
                                    .reserved_bytes = (int64_t)(7 * 480 + 320) << 20,
                                    .heap_segment = (int32_t)(count < 7 ? count : 7)};
  for (int layer = 0; layer < 60 && count + 4 < capacity; layer++) {
    int64_t bytes = (int64_t)(40 - layer / 2) << 20;
    const struct {
      int32_t action, category;
      int64_t bytes;
    } steps[] = {{MEMORY_OBTAIN, MEMORY_ACTIVATION, bytes},
                 {MEMORY_OBTAIN, MEMORY_WORKSPACE, (int64_t)24 << 20},
                 {MEMORY_RELEASE, MEMORY_WORKSPACE, (int64_t)24 << 20}};
    for (int i = 0; i < 3; i++) {
      allocated += steps[i].action == MEMORY_OBTAIN ? steps[i].bytes : -steps[i].bytes;
      events[count] = (TimelineEvent){.time_ns = count * 700000,
                                      .action = steps[i].action,
                                      .category = steps[i].category,
                                      .bytes = steps[i].bytes,
                                      .allocated_bytes = allocated,
                                      .requested_bytes = steps[i].bytes,
                                      .reserved_bytes = allocated + ((int64_t)64 << 20),
                                      .heap_segment = i == 0 ? layer / 10 : 6,
                                      .offset = i == 0 ? (int64_t)(layer % 10) * 48 << 20 : 0};
      snprintf(events[count].name, VL_NAME_BYTES, "layer%d", layer);
      count++;
    }
  }
  int64_t peak = allocated;
  for (int layer = 59; layer >= 0 && count + 2 < capacity; layer--) {
    int64_t bytes = (int64_t)(40 - layer / 2) << 20;
    allocated += (int64_t)3 << 20;
    const TimelineEvent gradient = {.action = MEMORY_OBTAIN,
                                    .category = MEMORY_GRADIENT,
                                    .bytes = (int64_t)3 << 20,
                                    .allocated_bytes = allocated,
                                    .heap_segment = 6,
                                    .offset = (int64_t)(24 + 3 * layer) << 20,
                                    .name = "grad"};
    allocated -= bytes;
    const TimelineEvent activation = {.action = MEMORY_RELEASE,
                                      .category = MEMORY_ACTIVATION,
                                      .bytes = bytes,
                                      .allocated_bytes = allocated,
                                      .heap_segment = layer / 10,
                                      .offset = (int64_t)(layer % 10) * 48 << 20,
                                      .name = "act"};
    const TimelineEvent both[] = {gradient, activation};
    for (int i = 0; i < 2; i++) {
      events[count] = both[i];
      events[count].time_ns = count * 700000;
      events[count].requested_bytes = both[i].bytes;
      events[count].reserved_bytes = peak + (4 << 20);
      events[count].segment = SEGMENT_BACKWARD;
      snprintf(events[count].scope, VL_NAME_BYTES, "layer");
      count++;
    }
  }
  return count;
}
