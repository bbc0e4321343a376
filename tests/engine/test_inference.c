/* Inference: the evaluation graph keeps nothing for a backward pass; what belongs to training is refused;
 * folded batch norms give the outputs of those that are not, within their roundings; what is planned is what
 * is allocated.
 *
 * Bounds. A folded weight and bias are rounded once from double, so that an output of a convolution, a sum of
 * products of x with them, is off by at most u (sum |x||w'| + |b'|), u the roundoff of their type: no other
 * error is there on the reference device. Through a whole net of L layers each rounding its results once, in
 * u as well, relative errors add up to L u to first order where norms keep them from growing: ResNet-50's
 * longest path has about 50, and sums of up to 4608 terms round some sqrt(4608) = 68 times as much. */
#include "tests/engine/job.h"
#include "tests/graph/networks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { SEED = 3, SAMPLES = 2, INPUTS = 5, OUTPUTS = 7, HEIGHT = 6, WIDTH = 9, TAPS = INPUTS * 9 };
static const double f32_roundoff = 0x1p-24;
static const double layers = 50.0, sum_growth = 68.0;

static CellSpec small_spec(const char *recipe) {
  CellSpec spec;
  vl_cell_spec_init(&spec);
  snprintf(spec.case_name, sizeof spec.case_name, "resnet50");
  snprintf(spec.recipe, sizeof spec.recipe, "%s", recipe);
  snprintf(spec.settings[0], sizeof spec.settings[0], "size=32");
  snprintf(spec.settings[1], sizeof spec.settings[1], "classes=10");
  spec.setting_count = 2;
  spec.micro_batch = SAMPLES;
  spec.threads = 2;
  spec.steps = 2;
  spec.inference = true;
  return spec;
}

static CellResult run(const CellSpec *spec) {
  CellResult result;
  require_ok(vl_cell_run(spec, NULL, &result));
  return result;
}

/* ---- One convolution and its norm --------------------------------------------------------------------------- */

static const char *const vectors[] = {"n.weight", "n.bias", "n.running_mean", "n.running_var"};

static void build_layer(Program *program) {
  Graph *graph = vl_graph_create("layer");
  vl_program_init(program, graph);
  Tensor *x = vl_graph_input(graph, "x", DTYPE_F32, 4, (int64_t[]){SAMPLES, INPUTS, HEIGHT, WIDTH}, 0), *y;
  Tensor *w = vl_graph_parameter(graph, "c.weight", ROLE_PARAMETER, DTYPE_F32, 4,
                                 (int64_t[]){OUTPUTS, INPUTS, 3, 3}, (Init){INIT_UNIFORM, 0.5});
  vl_graph_set_scope(graph, "c");
  require_ok(vl_conv(graph, x, w, 1, 1, 1, &y));
  vl_graph_set_scope(graph, "n");
  require_ok(vl_batch_norm(graph, y, false, 1e-3, 0.1, &program->logits));
}

/* Runs it once; weights: room for the persistent values named. */
static void evaluate_layer(Job *job, float *y) {
  StepResult step;
  require_ok(vl_inputs_synthesize(job->inputs, SEED, 0, 0));
  require_ok(vl_run_step(&job->run, job->inputs, &step, y));
}

static void folded_norms_round_once(void **state) {
  (void)state;
  enum { ELEMENTS = SAMPLES * OUTPUTS * HEIGHT * WIDTH };
  char directory[] = "/tmp/vramlab-fold-XXXXXX", path[64];
  float values[4][OUTPUTS], expected[ELEMENTS], folded[ELEMENTS], weight[OUTPUTS * TAPS], bias[OUTPUTS];
  Program program;
  Job job;
  int64_t step;
  uint64_t seed;
  assert_non_null(mkdtemp(directory));
  snprintf(path, sizeof path, "%s/state", directory);
  build_layer(&program);
  job_open(&job, "reference", &program, "baseline", SEED, 0);
  for (int32_t c = 0; c < OUTPUTS; c++) { /* of no channel like another's */
    values[0][c] = 0.3F + 0.1F * (float)c;
    values[1][c] = 0.7F - 0.2F * (float)c;
    values[2][c] = 0.11F * (float)(c - 3);
    values[3][c] = 0.05F + 0.4F * (float)c;
  }
  for (int32_t i = 0; i < 4; i++)
    require_ok(vl_state_write(job.state, vectors[i], values[i], sizeof values[i]));
  evaluate_layer(&job, expected);
  require_ok(vl_state_save(job.state, path, 4, SEED));
  job_close(&job);

  build_layer(&program);
  job_open(&job, "reference", &program, "fold=norm", SEED, 0);
  const Program *made = vl_executable_program(job.executable);
  assert_int_equal(made->graph->node_count, 1);
  assert_string_equal(made->graph->nodes[0]->op->name, "conv_epilogue");
  assert_int_equal(vl_graph_parameter_count(made->graph), OUTPUTS * TAPS + OUTPUTS);
  require_ok(vl_state_load(job.state, path, &step, &seed));
  assert_int_equal(step, 4);
  evaluate_layer(&job, folded);
  require_ok(vl_state_read(job.state, "c.weight.folded", weight, sizeof weight));
  require_ok(vl_state_read(job.state, "n.bias.folded", bias, sizeof bias));
  Status status = vl_state_save(job.state, path, 0, SEED);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "derived"));
  job_close(&job);

  /* |x| is at most the root of 3, of whatever 45 taps see. */
  for (int64_t i = 0; i < ELEMENTS; i++) {
    int64_t channel = i / (HEIGHT * WIDTH) % OUTPUTS;
    double magnitude = fabs((double)bias[channel]);
    for (int32_t k = 0; k < TAPS; k++)
      magnitude += sqrt(3.0) * fabs((double)weight[channel * TAPS + k]);
    double off = fabs((double)folded[i] - (double)expected[i]);
    double bound = f32_roundoff * (magnitude + 2.0 * fabs((double)expected[i])); /* and both read as f32 */
    if (!(off <= bound)) fail_msg("element %lld is off by %g, bound %g", (long long)i, off, bound);
  }
  unlink(path);
  rmdir(directory);
}

/* ---- A net that was trained --------------------------------------------------------------------------------- */

static void train(const char *path) {
  CellSpec spec = small_spec("baseline");
  spec.inference = false;
  spec.steps = 3;
  snprintf(spec.save_state, sizeof spec.save_state, "%s", path);
  CellResult r = run(&spec);
  assert_string_equal(r.status, "ok");
  vl_cell_result_clear(&r);
}

static CellResult infer(const char *path, const char *recipe) {
  CellSpec spec = small_spec(recipe);
  snprintf(spec.load_state, sizeof spec.load_state, "%s", path);
  CellResult r = run(&spec);
  if (strcmp(r.status, "ok") != 0) fail_msg("%s: %s, %s", recipe, r.status, r.error);
  return r;
}

static void recipes_agree_on_the_outputs(void **state) {
  (void)state;
  static const struct {
    const char *recipe, *of;
    double roundoff; /* 0: bitwise */
  } rows[] = {{"inplace=all", "baseline", 0.0},
              {"fuse=norm", "baseline", 0x1p-24},
              {"fold=norm", "baseline", 0x1p-24},
              {"stack=vramlab", "baseline", 0x1p-24},
              {"amp=bf16 weights=once", "amp=bf16", 0.0},
              {"amp=bf16", "baseline", 0x1p-8},
              {"stack=vramlab amp=bf16 weights=once", "baseline", 0x1p-8}};
  char directory[] = "/tmp/vramlab-infer-XXXXXX", path[64];
  assert_non_null(mkdtemp(directory));
  snprintf(path, sizeof path, "%s/state", directory);
  train(path);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    CellResult of = infer(path, rows[i].of), r = infer(path, rows[i].recipe);
    double error = vl_sketch_error(r.output_sketch, of.output_sketch);
    /* Low results are rounded once a layer; sums are in f32. */
    double growth = rows[i].roundoff > f32_roundoff ? 1.0 : sum_growth;
    double bound = rows[i].roundoff * layers * growth;
    print_message("  %-40s against %-10s %.1e, bound %.1e\n", rows[i].recipe, rows[i].of, error, bound);
    assert_true(error <= bound);
    vl_cell_result_clear(&of);
    vl_cell_result_clear(&r);
  }
  unlink(path);
  rmdir(directory);
}

/* ---- Memory --------------------------------------------------------------------------------------------------- */

/* Of images that need more than the weights do. */
static CellResult plan_large(const char *recipe) {
  CellSpec spec = small_spec(recipe);
  snprintf(spec.device, sizeof spec.device, "plan");
  snprintf(spec.settings[0], sizeof spec.settings[0], "size=224");
  spec.micro_batch = 16;
  return run(&spec);
}

static void nothing_is_kept(void **state) {
  (void)state;
  CellResult eager = plan_large("baseline"), own = plan_large("stack=vramlab"),
             once = plan_large("amp=bf16 weights=once");
  assert_string_equal(eager.status, "ok");
  assert_int_equal(eager.saved_activation_bytes, 0);
  assert_int_equal(eager.peak_by_category[MEMORY_GRADIENT], 0);
  assert_int_equal(eager.peak_by_category[MEMORY_OPTIMIZER], 0);
  assert_true(own.peak_by_category[MEMORY_ACTIVATION] < eager.peak_by_category[MEMORY_ACTIVATION]);
  /* Norms are biases; bf16 weights are in the place of the fp32 ones. */
  assert_true(own.peak_by_category[MEMORY_PARAMETER] < eager.peak_by_category[MEMORY_PARAMETER]);
  assert_true(once.peak_by_category[MEMORY_PARAMETER] < eager.peak_by_category[MEMORY_PARAMETER] * 6 / 10);
  print_message("  allocated %lld, own %lld, bf16 once %lld\n", (long long)eager.peak_allocated_bytes,
                (long long)own.peak_allocated_bytes, (long long)once.peak_allocated_bytes);
  vl_cell_result_clear(&eager);
  vl_cell_result_clear(&own);
  vl_cell_result_clear(&once);
}

static void plan_is_what_is_allocated(void **state) {
  (void)state;
  static const char *const recipes[] = {"baseline", "amp=bf16", "stack=vramlab",
                                        "stack=vramlab amp=bf16 weights=once", "amp=bf16 weights=once"};
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
    CellSpec spec = small_spec(recipes[i]);
    CellResult measured = run(&spec);
    snprintf(spec.device, sizeof spec.device, "plan");
    CellResult planned = run(&spec);
    assert_string_equal(planned.provenance, "predicted");
    assert_int_equal(planned.peak_requested_bytes, measured.peak_requested_bytes);
    assert_int_equal(planned.peak_allocated_bytes, measured.peak_allocated_bytes);
    assert_int_equal(planned.peak_reserved_bytes, measured.peak_reserved_bytes);
    assert_memory_equal(planned.peak_by_category, measured.peak_by_category, sizeof planned.peak_by_category);
    /* Blocks are rounded up in the account; what they leave over is not. */
    assert_true(planned.account.highest_bytes >= measured.peak_requested_bytes &&
                planned.account.highest_bytes <= measured.peak_allocated_bytes);
    vl_cell_result_clear(&measured);
    vl_cell_result_clear(&planned);
  }
}

/* An eager program's variables hold what a block read until it ends: the input of a block with a projection
 * is there while its norm runs. */
static void pytorch_holds_block_inputs(void **state) {
  (void)state;
  CellSpec spec = small_spec("baseline");
  snprintf(spec.device, sizeof spec.device, "plan");
  spec.micro_batch = 64;
  CellResult eager = run(&spec);
  snprintf(spec.recipe, sizeof spec.recipe, "stack=vramlab fuse=bias-gelu fold=norm inplace=source");
  CellResult own = run(&spec);
  assert_true(eager.peak_by_category[MEMORY_ACTIVATION] > own.peak_by_category[MEMORY_ACTIVATION]);
  vl_cell_result_clear(&eager);
  vl_cell_result_clear(&own);
}

/* ---- Refusals ------------------------------------------------------------------------------------------------- */

static void assert_unsupported(const CellSpec *spec, const char *reason) {
  CellResult r = run(spec);
  if (strcmp(r.status, "unsupported") != 0 || !strstr(r.error, reason))
    fail_msg("%s: %s, '%s' does not say '%s'", spec->recipe, r.status, r.error, reason);
  vl_cell_result_clear(&r);
}

static void what_is_for_training_is_refused(void **state) {
  (void)state;
  static const char *const rows[][2] = {{"checkpoint=2", "checkpoint=2 in inference: nothing is kept"},
                                        {"recompute=norm", "nothing is kept"},
                                        {"update=in-backward", "nothing is updated"},
                                        {"offload=activations", "nothing is kept"},
                                        {"offload=optimizer", "no optimizer"},
                                        {"optimizer-state=8bit", "there is no optimizer"},
                                        {"clip=1", "there are no gradients"},
                                        {"loss-scale=dynamic", "there is no loss"},
                                        {"loss-chunks=2", "there is no loss"},
                                        {"dropout=mask", "nothing is dropped"},
                                        {"stack=vramlab checkpoint=1", "nothing is kept"}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    CellSpec spec = small_spec(rows[i][0]);
    assert_unsupported(&spec, rows[i][1]);
  }
  CellSpec spec = small_spec("fold=norm");
  spec.inference = false;
  assert_unsupported(&spec, "fold=norm in training: the statistics");
  snprintf(spec.recipe, sizeof spec.recipe, "amp=bf16 weights=once");
  assert_unsupported(&spec, "weights=once in training");
  spec = small_spec("fold=norm");
  snprintf(spec.case_name, sizeof spec.case_name, "bert-base");
  spec.setting_count = 0;
  assert_unsupported(&spec, "no batch norm behind a convolution");
}

/* What stack=vramlab says for the other mode does not count; a text that names it does the same. */
static void the_stack_goes_both_ways(void **state) {
  (void)state;
  CellSpec spec = small_spec("stack=vramlab");
  CellResult r = run(&spec);
  assert_string_equal(r.status, "ok");
  assert_string_equal(r.preserves, "tolerance");
  vl_cell_result_clear(&r);
  spec.inference = false;
  r = run(&spec);
  assert_string_equal(r.status, "ok");
  vl_cell_result_clear(&r);
  spec = small_spec("stack=vramlab");
  snprintf(spec.save_state, sizeof spec.save_state, "/tmp/vramlab-never-written");
  Status status = vl_cell_run(&spec, NULL, &r);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "--save-state"));
  vl_cell_result_clear(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(folded_norms_round_once),
      cmocka_unit_test(recipes_agree_on_the_outputs),
      cmocka_unit_test(nothing_is_kept),
      cmocka_unit_test(plan_is_what_is_allocated),
      cmocka_unit_test(pytorch_holds_block_inputs),
      cmocka_unit_test(what_is_for_training_is_refused),
      cmocka_unit_test(the_stack_goes_both_ways),
  };
  return cmocka_run_group_tests_name("inference", tests, NULL, NULL);
}
