/* Recipes compose: every combination of precision, recomputation, accumulation, offloading, attention and
 * update, in both stacks, on a small BERT with dropout. Two gates. What promises bitwise equality
 * (recomputation, offloading, the update in backward) must not change a bit of what the rest of the recipe
 * gives: losses and gradients over the steps, and all of State afterwards. The rest must stay within rounding
 * of the baseline: loss and gradients of the first step. What makes no sense together is refused, with the
 * reason.
 *
 * usage: test_engine_cross [DEVICE] */
#include "tests/engine/job.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 2, SEED = 5, SAMPLES = 4, LAYERS = 3 };
static const char *device_name = "reference";

/* ---- The axes ----------------------------------------------------------------------------------------------- */

enum { MAX_VALUES = 6, TEXT_BYTES = 256 };

typedef struct Axis {
  const char *values[MAX_VALUES]; /* "": the key is left out; NULL: no more */
  bool bitwise;
} Axis;

static const Axis axes[] = {
    {{"", "stack=vramlab"}, false},
    {{"", "amp=bf16", "amp=fp16"}, false},
    {{"", "accumulate=2"}, false},
    {{"", "attention=materialised", "attention=fused"}, false},
    {{"", "checkpoint=2", "checkpoint=ops:9", "checkpoint=model", "checkpoint=selective"}, true},
    {{"", "offload=activations", "offload=activations:1+optimizer"}, true},
    {{"", "update=in-backward"}, true},
};
enum { AXES = sizeof axes / sizeof *axes };

/* Moves on to the next combination of the axes chosen; false after the last. */
static bool advance(int32_t *choice, bool bitwise) {
  for (int32_t a = 0; a < AXES; a++) {
    if (axes[a].bitwise != bitwise) continue;
    if (++choice[a] < MAX_VALUES && axes[a].values[choice[a]]) return true;
    choice[a] = 0;
  }
  return false;
}

static void write_recipe(const int32_t *choice, char text[TEXT_BYTES]) {
  size_t used = 0;
  text[0] = '\0';
  for (int32_t a = 0; a < AXES; a++)
    used += (size_t)snprintf(text + used, TEXT_BYTES - used, " %s", axes[a].values[choice[a]]);
}

static bool has(const char *recipe, const char *item) { return strstr(recipe, item) != NULL; }

/* ---- The net --------------------------------------------------------------------------------------------------- */

/* Of all the samples of a step, so that a recipe that divides them runs fewer at once. */
static void build(const char *recipe, Program *program) {
  const Case *bert = vl_case_find("bert-base");
  const char *settings[] = {"sequence=12", "layers=3", "hidden=32", "heads=4", "vocabulary=90"};
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  require_ok(vl_case_arguments(bert, has(recipe, "accumulate=2") ? SAMPLES / 2 : SAMPLES, settings,
                               sizeof settings / sizeof *settings, values));
  require_ok(bert->build(values, true, program));
}

typedef struct Outcome {
  double losses[STEPS];
  double scale; /* of the first step's gradients */
  Recording gradients[STEPS], state;
  Job job; /* owns the names */
} Outcome;

static void run(const char *recipe, Outcome *outcome) {
  Program program;
  *outcome = (Outcome){0};
  build(recipe, &program);
  job_open(&outcome->job, device_name, &program, recipe, SEED, 0);
  Scaler scaler;
  require_ok(vl_run_scaler(&outcome->job.run, &scaler));
  outcome->scale = scaler.scale;
  for (int32_t step = 0; step < STEPS; step++) {
    job_record_gradients(&outcome->job, &outcome->gradients[step]);
    outcome->losses[step] = job_step(&outcome->job, (uint64_t)step);
    assert_true(isfinite(outcome->losses[step]));
  }
  job_read_state(&outcome->job, &outcome->state);
}

static void clear(Outcome *outcome) {
  for (int32_t step = 0; step < STEPS; step++)
    recording_clear(&outcome->gradients[step]);
  recording_clear(&outcome->state);
  job_close(&outcome->job);
}

/* ---- Gates ------------------------------------------------------------------------------------------------------- */

static void assert_equal_bits(const Outcome *expected, const Outcome *actual, const char *recipe) {
  for (int32_t step = 0; step < STEPS; step++) {
    if (memcmp(&expected->losses[step], &actual->losses[step], sizeof(double)) != 0)
      fail_msg("%s: loss %d is %.17g instead of %.17g", recipe, step, actual->losses[step],
               expected->losses[step]);
    assert_recordings_equal(&expected->gradients[step], &actual->gradients[step], recipe);
  }
  assert_recordings_equal(&expected->state, &actual->state, recipe);
}

/* |a / scale - b| / |b| over all gradients together: a key's bias has none, and would be all rounding alone.
 */
static double gradient_error(const Recording *a, double scale, const Recording *b) {
  double difference = 0.0, norm = 0.0;
  assert_int_equal(a->count, b->count);
  for (int32_t i = 0; i < b->count; i++) {
    const Item *expected = &b->items[i], *actual = recording_find(a, expected->name);
    if (!actual) fail_msg("%s has no gradient", expected->name);
    int64_t elements = expected->bytes * 8 / vl_dtype_bits(expected->dtype);
    for (int64_t e = 0; e < elements; e++) {
      double x = vl_element_get(actual->data, actual->dtype, e) / scale;
      double y = vl_element_get(expected->data, expected->dtype, e);
      difference += (x - y) * (x - y);
      norm += y * y;
    }
  }
  return sqrt(difference / norm);
}

/* The longest path from a token to the loss passes the embedding's 4 kernels, 14 a layer (projection, scores,
 * softmax, dropout, values, projection, dropout, addition, norm; projection, GELU, projection, dropout, and
 * the second addition with its norm as one more each) and 5 of the head; to a gradient as many back. A kernel
 * rounds its result once, an error of at most u of its norm, and norms after each branch keep a relative
 * error from growing: n u to first order. In f32 both runs have it, and inner products of up to 128 terms
 * round some 4 times as much as one operation. */
static double rounding_bound(const char *recipe) {
  double kernels = 2.0 * (4 + 14 * LAYERS + 5);
  if (has(recipe, "amp=bf16")) return kernels * ldexp(1.0, -9);
  if (has(recipe, "amp=fp16")) return kernels * ldexp(1.0, -11);
  return 2.0 * 4.0 * kernels * ldexp(1.0, -24);
}

static void assert_close(const Outcome *expected, const Outcome *actual, const char *recipe) {
  double bound = rounding_bound(recipe);
  double loss = fabs(actual->losses[0] / expected->losses[0] - 1.0);
  double gradients = gradient_error(&actual->gradients[0], actual->scale, &expected->gradients[0]);
  print_message("  %-72s loss %.1e gradients %.1e bound %.1e\n", recipe, loss, gradients, bound);
  if (!(loss <= bound && gradients <= bound))
    fail_msg("%s: loss off by %.3g, gradients by %.3g, bound %.3g", recipe, loss, gradients, bound);
}

/* Whether keys of the recipe exclude each other; with which reason is the last test's. */
static bool is_refused(const char *recipe) {
  bool fused = has(recipe, "attention=fused") ||
               (has(recipe, "stack=vramlab") && !has(recipe, "attention=materialised"));
  bool last = has(recipe, "accumulate=2") || has(recipe, "amp=fp16"); /* who knows what only at the end */
  return (has(recipe, "update=in-backward") && last) || (has(recipe, "checkpoint=selective") && fused);
}

static void assert_promise(const char *text, Preserves expected) {
  Recipe recipe;
  require_ok(vl_recipe_parse(text, &recipe));
  assert_int_equal(vl_recipe_preserves(&recipe, NULL), expected);
}

static Status apply(const char *text) {
  Program program;
  Recipe recipe;
  Target target = {.ranks = 1};
  build(text, &program);
  Status status = vl_recipe_parse(text, &recipe);
  if (status.code == VL_OK) status = vl_recipe_apply(&recipe, &program, &target);
  vl_program_destroy(&program);
  return status;
}

/* Every combination of the bitwise axes beside the choice of the others, of which this is the `turn`-th.
 * Where kernels take long to make, every fifth, beginning with another each turn. */
static int32_t check_bitwise(const Outcome *expected, int32_t *choice, int32_t turn) {
  int32_t checked = 0, part = strcmp(device_name, "reference") == 0 ? 1 : 5;
  char recipe[TEXT_BYTES];
  for (int32_t i = turn; advance(choice, true); i++) {
    if (i % part != 0) continue;
    write_recipe(choice, recipe);
    if (is_refused(recipe)) {
      assert_int_equal(apply(recipe).code, VL_UNSUPPORTED);
      continue;
    }
    Outcome actual;
    run(recipe, &actual);
    assert_equal_bits(expected, &actual, recipe);
    clear(&actual);
    checked++;
  }
  return checked;
}

static void every_combination_passes_its_gate(void **state) {
  (void)state;
  int32_t choice[AXES] = {0}, checked = 0, turn = 0;
  char recipe[TEXT_BYTES];
  Outcome baseline;
  run("", &baseline);
  assert_true(baseline.losses[0] != baseline.losses[1]);
  do {
    Outcome outcome;
    write_recipe(choice, recipe);
    bool is_baseline = strspn(recipe, " ") == strlen(recipe);
    assert_promise(recipe, is_baseline ? PRESERVES_BITWISE : PRESERVES_TOLERANCE);
    run(recipe, &outcome);
    assert_close(&baseline, &outcome, recipe);
    checked += 1 + check_bitwise(&outcome, choice, turn++);
    clear(&outcome);
  } while (advance(choice, false));
  clear(&baseline);
  print_message("%d combinations\n", checked);
}

/* ---- Refusals ------------------------------------------------------------------------------------------------------ */

static void what_makes_no_sense_is_refused_with_the_reason(void **state) {
  (void)state;
  static const struct {
    const char *recipe, *reason;
  } refused[] = {
      {"update=in-backward accumulate=2", "a gradient is complete only after the last micro-batch"},
      {"update=in-backward amp=fp16",
       "whether the step is skipped is known only when the last gradient exists"},
      {"checkpoint=segments:9", "has only 3 blocks"},
      {"checkpoint=selective attention=fused", "nothing of size sequence x sequence is kept"},
      {"checkpoint=auto", "needs a capacity"},
  };
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    static const char *const beside[] = {"", " inplace=all", " stack=vramlab",
                                         " weights=on-use stack=vramlab"};
    for (size_t k = 0; k < sizeof beside / sizeof *beside; k++) {
      char recipe[TEXT_BYTES];
      snprintf(recipe, sizeof recipe, "%s%s", refused[i].recipe, beside[k]);
      Status status = apply(recipe);
      if (status.code == VL_OK) fail_msg("%s is not refused", recipe);
      if (!strstr(status.message, refused[i].reason))
        fail_msg("%s: '%s' does not say '%s'", recipe, status.message, refused[i].reason);
    }
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_combination_passes_its_gate),
      cmocka_unit_test(what_makes_no_sense_is_refused_with_the_reason),
  };
  if (argc > 1) device_name = argv[1];
  return cmocka_run_group_tests(tests, NULL, NULL);
}
