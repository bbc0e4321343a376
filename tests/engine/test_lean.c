/* What people turn on first, on a BERT in small, dropout on: updates in backward, AdamW's moments in 8 bits,
 * a loss in parts, frozen embeddings and layers.
 *
 * usage: test_engine_lean [DEVICE] */
#include "tests/engine/job.h"
#include "tests/graph/networks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { SEED = 23, BATCH = 4, SEQUENCE = 16, LAYERS = 2, VOCABULARY = 61, PREDICTIONS = 3 };
static const char *device_name = "reference";

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* Its largest matrices are of (256, 64) elements: moments that fit in 8 bits. */
static void build_bert(Program *program) {
  const Case *bert = vl_case_find("bert-base");
  const char *settings[] = {"sequence=16", "layers=2", "hidden=64", "heads=4", "vocabulary=61"};
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  require_ok(vl_case_arguments(bert, BATCH, settings, COUNT(settings), values));
  require_ok(bert->build(values, true, program));
}

static void build_bottlenecks(Program *program) {
  network_bottlenecks(&(NetOptions){.batch = BATCH, .size = 16}, program);
}

typedef struct Outcome {
  Job job; /* owns the names */
  double loss;
  Recording gradients, state; /* of the last step */
} Outcome;

static void open_outcome(void (*build)(Program *), const char *recipe, Outcome *outcome) {
  Program program;
  *outcome = (Outcome){0};
  build(&program);
  job_open(&outcome->job, device_name, &program, recipe, SEED, 0);
}

static void outcome_of(void (*build)(Program *), const char *recipe, int32_t steps, Outcome *outcome) {
  open_outcome(build, recipe, outcome);
  for (int32_t step = 0; step < steps; step++) {
    if (step == steps - 1) job_record_gradients(&outcome->job, &outcome->gradients);
    outcome->loss = job_step(&outcome->job, (uint64_t)step);
  }
  job_read_state(&outcome->job, &outcome->state);
}

static void outcome_clear(Outcome *outcome) {
  recording_clear(&outcome->gradients);
  recording_clear(&outcome->state);
  job_close(&outcome->job);
}

static double element(const Item *item, int64_t i) { return vl_element_get(item->data, item->dtype, i); }

static int64_t elements(const Item *item) { return item->bytes * 8 / vl_dtype_bits(item->dtype); }

/* |a - b|, b NULL: |a|. */
static double distance(const Item *a, const Item *b) {
  double square = 0.0;
  for (int64_t i = 0; i < elements(a); i++) {
    double difference = element(a, i) - (b ? element(b, i) : 0.0);
    square += difference * difference;
  }
  return sqrt(square);
}

/* ---- update=in-backward --------------------------------------------------------------------------------------- */

/* The most bytes of gradients at once. */
static int64_t gradient_peak(const Job *job) {
  int64_t count = 0, bytes = 0, most = 0;
  const MemoryEvent *events = vl_tracker_events(job->tracker, &count);
  for (int64_t i = 0; i < count; i++) {
    if (events[i].category != MEMORY_GRADIENT) continue;
    if (events[i].action == MEMORY_OBTAIN) bytes += events[i].bytes;
    if (events[i].action == MEMORY_RELEASE) bytes -= events[i].bytes;
    most = bytes > most ? bytes : most;
  }
  return most;
}

/* The tied table's gradient waits for its second part, and its update with it. */
static void updates_in_backward_are_bitwise_the_same(void **state) {
  (void)state;
  static const char *const recipes[] = {
      "baseline",
      "stack=vramlab",
      "amp=bf16",
      "stack=vramlab amp=bf16",
      "checkpoint=1",
      "loss-chunks=5",
      "optimizer-state=8bit",
      "freeze=1",
      "stack=vramlab amp=bf16 checkpoint=1 loss-chunks=5 optimizer-state=8bit"};
  for (size_t i = 0; i < COUNT(recipes); i++) {
    Outcome after, within;
    char recipe[128];
    snprintf(recipe, sizeof recipe, "%s update=in-backward", i == 0 ? "" : recipes[i]);
    outcome_of(build_bert, recipes[i], 3, &after);
    outcome_of(build_bert, recipe, 3, &within);
    assert_memory_equal(&after.loss, &within.loss, sizeof after.loss);
    assert_recordings_equal(&after.gradients, &within.gradients, recipe);
    assert_recordings_equal(&after.state, &within.state, recipe);
    int64_t all = gradient_peak(&after.job), most = gradient_peak(&within.job);
    print_message("%s: at most %lld bytes of gradients instead of %lld\n", recipe, (long long)most,
                  (long long)all);
    assert_true(strstr(recipe, "freeze") || 2 * most <= all);
    outcome_clear(&after);
    outcome_clear(&within);
  }
}

/* ---- optimizer-state=8bit ------------------------------------------------------------------------------------- */

/* Names of codes end like this; their absmax beside them. */
static bool is_coded(const Recording *state, const char *parameter) {
  char name[128];
  snprintf(name, sizeof name, "%s.absmax", parameter);
  return recording_find(state, name) != NULL;
}

/* Half a bin is at most 0.45 / 64 of the largest m of a block, which for values that are normal is about 3
 * times their root mean square: 2 % of a step. v's bins are twice as many; where they are widest for their
 * numbers, at the lower end of a power of ten, half of one is 3.5 % of the largest's tenth, 7 % of its
 * hundredth, of which the root takes half. Errors of both signs, together less than 5 % of what is moved. */
static void moments_in_8_bits_train_alike(void **state) {
  (void)state;
  enum { STEPS = 20 };
  Outcome start, whole, coded;
  outcome_of(build_bert, "baseline", 0, &start);
  outcome_of(build_bert, "baseline", STEPS, &whole);
  outcome_of(build_bert, "optimizer-state=8bit", STEPS, &coded);
  double worst = 0.0, moved_square = 0.0, off_square = 0.0;
  int32_t coded_count = 0;
  for (int32_t i = 0; i < whole.state.count; i++) {
    const Item *want = &whole.state.items[i], *got = recording_find(&coded.state, want->name);
    const char *dot = strrchr(want->name, '.');
    if (dot && strncmp(dot, ".exp_avg", 8) == 0) continue;
    double moved = distance(want, recording_find(&start.state, want->name)), off = distance(got, want);
    moved_square += moved * moved;
    off_square += off * off;
    coded_count += is_coded(&coded.state, want->name);
    if (off > worst * moved) worst = off / moved;
  }
  double all = sqrt(off_square / moved_square);
  print_message("%d steps: off by %.2g of what is moved, a tensor by at most %.2g; loss %.6f, not %.6f\n",
                STEPS, all, worst, coded.loss, whole.loss);
  assert_int_equal(coded_count, 4 * LAYERS + 2); /* qkv, o, f1, f2; tr, pool; not w, nor biases */
  assert_true(all > 0.0 && all <= 0.05);
  /* The loss moves by the gradient times what the weights are off by, of which it is no more than it moved.
   */
  assert_true(fabs(coded.loss - whole.loss) <= 0.05 * fabs(whole.loss));
  outcome_clear(&start);
  outcome_clear(&whole);
  outcome_clear(&coded);
}

/* Two bytes a parameter and a scale of each moment for 256. */
static void moments_in_8_bits_take_a_quarter(void **state) {
  (void)state;
  Outcome coded;
  open_outcome(build_bert, "optimizer-state=8bit", &coded);
  job_read_state(&coded.job, &coded.state);
  for (int32_t i = 0; i < coded.state.count; i++) {
    const Item *weight = &coded.state.items[i];
    char name[128];
    if (!is_coded(&coded.state, weight->name)) continue;
    int64_t bytes = 0, count = elements(weight);
    static const char *const parts[] = {"exp_avg", "exp_avg_sq", "absmax"};
    for (size_t p = 0; p < COUNT(parts); p++) {
      snprintf(name, sizeof name, "%s.%s", weight->name, parts[p]);
      bytes += recording_find(&coded.state, name)->bytes;
    }
    assert_int_equal(bytes, 2 * count + 8 * ((count + VL_STATE_BLOCK - 1) / VL_STATE_BLOCK));
  }
  outcome_clear(&coded);
}

static void moments_in_8_bits_are_saved_and_go_on(void **state) {
  (void)state;
  char path[] = "/tmp/vramlab-lean-XXXXXX";
  int file = mkstemp(path);
  Outcome straight, first, second;
  int64_t step = 0;
  uint64_t seed = 0;
  assert_true(file >= 0);
  close(file);
  outcome_of(build_bert, "optimizer-state=8bit", 5, &straight);
  outcome_of(build_bert, "optimizer-state=8bit", 3, &first);
  require_ok(vl_state_save(first.job.state, path, 3, SEED));
  open_outcome(build_bert, "optimizer-state=8bit", &second);
  require_ok(vl_state_load(second.job.state, path, &step, &seed));
  assert_int_equal(step, 3);
  for (; step < 5; step++)
    job_step(&second.job, (uint64_t)step);
  job_read_state(&second.job, &second.state);
  /* A file keeps weights in f32; the reference device goes on with doubles where it was not saved. */
  if (strcmp(device_name, "reference") != 0)
    assert_recordings_equal(&straight.state, &second.state, "saved and loaded");
  outcome_clear(&second);
  /* Codes are not moments: another recipe says what it misses. */
  open_outcome(build_bert, "baseline", &second);
  Status status = vl_state_load(second.job.state, path, &step, &seed);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "exp_avg"));
  unlink(path);
  outcome_clear(&straight);
  outcome_clear(&first);
  outcome_clear(&second);
}

/* ---- freeze ---------------------------------------------------------------------------------------------------- */

/* What is trained has the gradients it had; what is not has none and stays. */
static void check_frozen(void (*build)(Program *), const char *recipe, int32_t expected_frozen) {
  Outcome whole, part;
  outcome_of(build, "baseline", 1, &whole);
  outcome_of(build, recipe, 1, &part);
  assert_memory_equal(&whole.loss, &part.loss, sizeof whole.loss);
  int32_t frozen = 0;
  for (int32_t i = 0; i < whole.gradients.count; i++) {
    const Item *want = &whole.gradients.items[i], *got = recording_find(&part.gradients, want->name);
    char name[128];
    snprintf(name, sizeof name, "%.*s", (int)(strlen(want->name) - strlen(".grad")), want->name);
    const Item *weight = recording_find(&part.state, name);
    assert_non_null(weight);
    Outcome start;
    if (got) {
      assert_memory_equal(got->data, want->data, (size_t)want->bytes);
      continue;
    }
    open_outcome(build, recipe, &start);
    job_read_state(&start.job, &start.state);
    assert_memory_equal(weight->data, recording_find(&start.state, name)->data, (size_t)weight->bytes);
    outcome_clear(&start);
    frozen++;
  }
  assert_int_equal(frozen, expected_frozen);
  for (int32_t i = 0; i < whole.state.count; i++) { /* running statistics go on */
    const Item *want = &whole.state.items[i];
    if (!strstr(want->name, "running")) continue;
    assert_memory_equal(recording_find(&part.state, want->name)->data, want->data, (size_t)want->bytes);
  }
  assert_true(vl_executable_schedule(part.job.executable)->instance_count <
              vl_executable_schedule(whole.job.executable)->instance_count);
  outcome_clear(&whole);
  outcome_clear(&part);
}

static void frozen_parameters_stay(void **state) {
  (void)state;
  enum { EMBEDDINGS = 5, LAYER = 12, STEM = 3, BLOCK = 12 };
  check_frozen(build_bert, "freeze=embeddings", EMBEDDINGS);
  check_frozen(build_bert, "freeze=1", EMBEDDINGS + LAYER);
  check_frozen(build_bert, "freeze=2", EMBEDDINGS + LAYERS * LAYER);
  check_frozen(build_bottlenecks, "freeze=1", STEM + BLOCK);
}

static void freezing_goes_with_the_others(void **state) {
  (void)state;
  static const char *const recipes[] = {"amp=bf16",      "checkpoint=1",
                                        "accumulate=2",  "optimizer-state=8bit",
                                        "loss-chunks=3", "stack=vramlab update=in-backward"};
  for (size_t i = 0; i < COUNT(recipes); i++) {
    Outcome outcome;
    char recipe[128];
    snprintf(recipe, sizeof recipe, "freeze=1 %s", recipes[i]);
    outcome_of(build_bert, recipe, 2, &outcome);
    assert_true(isfinite(outcome.loss));
    assert_null(recording_find(&outcome.gradients, "w.weight.grad"));
    assert_null(recording_find(&outcome.state, "w.weight.exp_avg"));
    assert_non_null(recording_find(&outcome.gradients, "layers.1.f1.weight.grad"));
    outcome_clear(&outcome);
  }
}

/* What repeats, moves or overwrites tensors changes no bit of what these give, in any precision, accumulated
 * or not. */
static void others_change_nothing_of_them(void **state) {
  (void)state;
  static const char *const bases[] = {
      "loss-chunks=3 optimizer-state=8bit", "amp=bf16 loss-chunks=3 optimizer-state=8bit",
      "accumulate=2 loss-chunks=3 optimizer-state=8bit", "freeze=1 amp=bf16 loss-chunks=3 accumulate=2",
      "amp=fp16 loss-chunks=3 optimizer-state=8bit"};
  static const char *const added[] = {"checkpoint=1", "checkpoint=selective", "inplace=all",
                                      "offload=activations"};
  for (size_t b = 0; b < COUNT(bases); b++) {
    Outcome plain;
    outcome_of(build_bert, bases[b], 2, &plain);
    for (size_t i = 0; i < COUNT(added); i++) {
      Outcome with;
      char recipe[160];
      snprintf(recipe, sizeof recipe, "%s %s", bases[b], added[i]);
      outcome_of(build_bert, recipe, 2, &with);
      assert_memory_equal(&plain.loss, &with.loss, sizeof plain.loss);
      assert_recordings_equal(&plain.gradients, &with.gradients, recipe);
      assert_recordings_equal(&plain.state, &with.state, recipe);
      outcome_clear(&with);
    }
    outcome_clear(&plain);
  }
}

/* ---- loss-chunks ------------------------------------------------------------------------------------------------ */

/* A step whose labels count in the last rows only. */
static void step_with_ignored(const char *recipe, Outcome *outcome) {
  int32_t labels[BATCH * PREDICTIONS];
  StepResult result;
  open_outcome(build_bert, recipe, outcome);
  for (int32_t i = 0; i < BATCH * PREDICTIONS; i++)
    labels[i] = i < 5 || i == 8 ? VL_IGNORED_LABEL : i;
  job_record_gradients(&outcome->job, &outcome->gradients);
  require_ok(vl_inputs_synthesize(outcome->job.inputs, SEED, 0, 0));
  require_ok(vl_inputs_write(outcome->job.inputs, "labels", labels, sizeof labels));
  require_ok(vl_run_step(&outcome->job.run, outcome->job.inputs, &result, NULL));
  outcome->loss = result.loss;
}

/* The first part has none that counts, and its mean is not asked for. */
static void a_loss_in_parts_counts_labels_of_all(void **state) {
  (void)state;
  Outcome whole, parts;
  step_with_ignored("baseline", &whole);
  step_with_ignored("loss-chunks=4", &parts);
  assert_true(isfinite(whole.loss) && fabs(parts.loss - whole.loss) <= 8 * 0x1p-24 * whole.loss);
  for (int32_t i = 0; i < whole.gradients.count; i++) {
    const Item *want = &whole.gradients.items[i], *got = recording_find(&parts.gradients, want->name);
    assert_true(distance(got, want) <= 1e-5 * distance(want, NULL) + 1e-9);
  }
  outcome_clear(&whole);
  outcome_clear(&parts);
}

/* The parts of a weight's gradient are added up in fp32: what mixed precision is off by does not grow. */
static void a_loss_in_parts_is_no_worse_in_mixed_precision(void **state) {
  (void)state;
  Outcome truth, whole, parts;
  outcome_of(build_bert, "baseline", 1, &truth);
  outcome_of(build_bert, "amp=bf16", 1, &whole);
  outcome_of(build_bert, "amp=bf16 loss-chunks=5", 1, &parts);
  for (int32_t i = 0; i < truth.gradients.count; i++) {
    const Item *right = &truth.gradients.items[i];
    double before = distance(recording_find(&whole.gradients, right->name), right);
    double after = distance(recording_find(&parts.gradients, right->name), right);
    if (after > 1.5 * before + 1e-6 * distance(right, NULL))
      fail_msg("%s is off by %g in parts, by %g as a whole", right->name, after, before);
  }
  outcome_clear(&truth);
  outcome_clear(&whole);
  outcome_clear(&parts);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(updates_in_backward_are_bitwise_the_same),
      cmocka_unit_test(moments_in_8_bits_train_alike),
      cmocka_unit_test(moments_in_8_bits_take_a_quarter),
      cmocka_unit_test(moments_in_8_bits_are_saved_and_go_on),
      cmocka_unit_test(frozen_parameters_stay),
      cmocka_unit_test(freezing_goes_with_the_others),
      cmocka_unit_test(others_change_nothing_of_them),
      cmocka_unit_test(a_loss_in_parts_counts_labels_of_all),
      cmocka_unit_test(a_loss_in_parts_is_no_worse_in_mixed_precision),
  };
  if (argc > 1) device_name = argv[1];
  return cmocka_run_group_tests(tests, NULL, NULL);
}
