/* Loss scaling and clipping: torch.amp.GradScaler's bookkeeping, skipped steps that leave everything as it
 * was, clipping after unscaling, and nothing of it without fp16. The net is sum(weight * x), so that the
 * gradient of weight is x.
 *
 * usage: test_engine_scaler [DEVICE] */
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

enum { SEED = 3, SIZE = 2 };
static const char *device_name = "reference";
static char path[] = "/tmp/vramlab-scaler-XXXXXX";

static void build_net(Program *program) {
  Graph *graph = vl_graph_create("scaler");
  vl_program_init(program, graph);
  program->training = true;
  int64_t shape[] = {1, SIZE};
  Tensor *x = vl_graph_input(graph, "x", DTYPE_F32, 2, shape, 0), *product = NULL;
  Tensor *weight =
      vl_graph_parameter(graph, "weight", ROLE_PARAMETER, DTYPE_F32, 2, shape, (Init){INIT_UNIFORM, 1.0});
  require_ok(vl_apply(graph, "mul", NULL, (Tensor *[]){weight, x}, 2, &product));
  OpParams all = {.axes = {0, 1}, .axis_count = 2, .dtype = DTYPE_F32};
  require_ok(vl_apply(graph, "sum", &all, &product, 1, &program->loss));
}

static void build_adamw(Program *program) {
  build_net(program);
  program->optimizer = vl_optimizer_adamw();
  program->scaling = vl_loss_scaling_dynamic();
  program->scaling.interval = 4;
}

/* One step with that gradient. */
static void step_with(Job *job, uint64_t step, float first, float second) {
  StepResult result;
  float x[SIZE] = {first, second};
  job->run.step = step;
  require_ok(vl_inputs_write(job->inputs, "x", x, sizeof x));
  require_ok(vl_run_step(&job->run, job->inputs, &result, NULL));
}

static Scaler scaler_of(const Job *job) {
  Scaler scaler;
  require_ok(vl_run_scaler(&job->run, &scaler));
  return scaler;
}

/* ---- The scaler ----------------------------------------------------------------------------------------------- */

/* A step of nine overflows: by NaN and by infinity, in one element of the gradient. */
static void scale_backs_off_and_grows_c1(void **state) {
  (void)state;
  static const float overflows[] = {NAN, INFINITY, -INFINITY};
  static const double scales[] = {65536, 65536, 65536, 32768, 32768, 32768, 32768, 65536, 65536};
  for (int which = 0; which < 3; which++) {
    Program program;
    Job job, clean;
    build_adamw(&program);
    job_open(&job, device_name, &program, "baseline", SEED, 0);
    build_adamw(&program);
    job_open(&clean, device_name, &program, "baseline", SEED, 0);
    for (uint64_t step = 0, taken = 0; step < 9; step++) {
      Recording before = {0}, after = {0};
      bool skips = step == 3;
      float second = 0.25F * (float)step;
      job_read_state(&job, &before);
      step_with(&job, step, skips ? overflows[which] : 0.5F, second);
      job_read_state(&job, &after);
      assert_true(scaler_of(&job).scale == scales[step]);
      if (!skips) step_with(&clean, taken++, 0.5F, second);
      for (int32_t i = 0; skips && i < before.count; i++) {
        const Item *item = &before.items[i];
        if (strncmp(item->name, "loss_scale", 10) == 0) continue;
        assert_memory_equal(item->data, recording_find(&after, item->name)->data, (size_t)item->bytes);
      }
      recording_clear(&before);
      recording_clear(&after);
    }
    Scaler scaler = scaler_of(&job);
    assert_int_equal(scaler.steps, 8);
    assert_int_equal(scaler.skipped, 1);
    assert_int_equal(scaler.clean, 1);
    /* As if the skipped step had never been: the bias correction, too, counts eight. */
    static const char *const names[] = {"weight", "weight.exp_avg", "weight.exp_avg_sq"};
    for (int i = 0; i < 3; i++) {
      float with[SIZE], without[SIZE];
      require_ok(vl_state_read(job.state, names[i], with, sizeof with));
      require_ok(vl_state_read(clean.state, names[i], without, sizeof without));
      assert_memory_equal(with, without, sizeof with);
    }
    job_close(&job);
    job_close(&clean);
  }
}

static double falling_rate(void *context, int64_t steps) {
  double **next = context, rate = 1.0 - 0.1 * (double)steps;
  *(*next)++ = rate;
  return rate;
}

static void skipped_steps_do_not_advance_the_schedule_c2(void **state) {
  (void)state;
  static const double expected[] = {1.0, 1.0, 0.9, 0.8, 0.7, 0.6};
  double rates[6], *next = rates;
  Program program;
  Job job;
  build_adamw(&program);
  program.optimizer =
      (OptimizerSettings){.kind = OPTIMIZER_SGD, .learning_rate = 1e6}; /* the schedule's is taken instead */
  job_open(&job, device_name, &program, "baseline", SEED, 0);
  job.run.schedule = falling_rate;
  job.run.schedule_context = &next;
  float before[SIZE], after[SIZE];
  require_ok(vl_state_read(job.state, "weight", before, sizeof before));
  for (uint64_t step = 0; step < 5; step++)
    step_with(&job, step, step == 0 ? INFINITY : 1.0F, 0.0F);
  require_ok(vl_state_read(job.state, "weight", after, sizeof after));
  falling_rate(&next, scaler_of(&job).steps);
  for (int i = 0; i < 6; i++)
    assert_true(fabs(rates[i] - expected[i]) < 1e-12);
  assert_true(fabs((double)before[0] - (double)after[0] - (1.0 + 0.9 + 0.8 + 0.7)) < 1e-6);
  job_close(&job);
}

/* What is saved after a skipped step goes on bit for bit. */
static void a_scaler_goes_on_where_it_was_saved(void **state) {
  (void)state;
  if (strcmp(device_name, "reference") == 0) skip(); /* saving rounds its doubles */
  Program program;
  Job whole, second;
  Recording expected = {0}, actual = {0};
  build_adamw(&program);
  job_open(&whole, device_name, &program, "baseline", SEED, 0);
  for (uint64_t step = 0; step < 9; step++) {
    if (step == 5) require_ok(vl_state_save(whole.state, path, 5, SEED));
    step_with(&whole, step, step == 2 ? NAN : 0.5F, (float)step);
  }
  job_read_state(&whole, &expected);
  build_adamw(&program);
  job_open(&second, device_name, &program, "baseline", SEED, 0);
  int64_t step;
  uint64_t seed;
  require_ok(vl_state_load(second.state, path, &step, &seed));
  assert_int_equal(scaler_of(&second).skipped, 1);
  assert_int_equal(scaler_of(&second).clean, 2);
  assert_true(scaler_of(&second).scale == 32768.0);
  for (; step < 9; step++)
    step_with(&second, (uint64_t)step, 0.5F, (float)step);
  job_read_state(&second, &actual);
  assert_recordings_equal(&expected, &actual, "resumed");
  recording_clear(&expected);
  recording_clear(&actual);
  job_close(&whole);
  job_close(&second);
}

/* ---- Clipping ------------------------------------------------------------------------------------------------------ */

static void take_norm(void *context, const Run *run, const Instance *instance, const uintptr_t *outputs) {
  if (strcmp(instance->node->op->name, "gradient_factor") != 0) return;
  require_ok(run->device->interface->download(run->device, instance->node->outputs[1]->storage, outputs[1],
                                              context));
}

/* Scaled and not; a norm that is not reached changes nothing. */
static void clipping_is_of_unscaled_gradients_c5(void **state) {
  (void)state;
  static const struct {
    double scale, max_norm, expected[2];
  } cases[] = {{1024, 1, {0.6, 0.8}}, {0, 1, {0.6, 0.8}}, {1024, 10, {3, 4}}, {0, 10, {3, 4}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Program program;
    Job job;
    float before[SIZE], after[SIZE], norm = NAN;
    build_net(&program);
    program.optimizer = (OptimizerSettings){.kind = OPTIMIZER_SGD, .learning_rate = 1.0};
    program.scaling = vl_loss_scaling_dynamic();
    program.scaling.initial = cases[i].scale;
    job_open(&job, device_name, &program, cases[i].max_norm == 1.0 ? "clip=1" : "clip=1e1", SEED, 0);
    job.run.observe = take_norm;
    job.run.observe_context = &norm;
    require_ok(vl_state_read(job.state, "weight", before, sizeof before));
    step_with(&job, 0, 3.0F, 4.0F);
    require_ok(vl_state_read(job.state, "weight", after, sizeof after));
    assert_true(norm == 5.0F);
    for (int k = 0; k < SIZE; k++) /* within weights' f32, and the 1e-6 beside the norm */
      assert_true(fabs((double)before[k] - (double)after[k] - cases[i].expected[k]) < 1e-6);
    job_close(&job);
  }
}

/* ---- By precision ---------------------------------------------------------------------------------------------------- */

static int32_t count_nodes(const Graph *graph, const char *op) {
  int32_t count = 0;
  for (int32_t i = 0; i < graph->node_count; i++)
    count += strcmp(graph->nodes[i]->op->name, op) == 0;
  return count;
}

static void open_bottlenecks(Job *job, const char *recipe) {
  Program program;
  network_bottlenecks(&(NetOptions){.batch = 4, .size = 16, .adamw = true}, &program);
  job_open(job, device_name, &program, recipe, SEED, 0);
}

/* No unscaling, no check, no state: scale 1 and nothing skipped. */
static void only_fp16_has_a_scaler_c7(void **state) {
  (void)state;
  static const struct {
    const char *recipe;
    bool scales;
  } cases[] = {{"baseline", false},
               {"amp=bf16", false},
               {"amp=fp16 loss-scale=off", false},
               {"amp=fp16", true},
               {"amp=fp16 loss-scale=dynamic", true},
               {"amp=fp16 loss-scale=1024", true},
               {"amp=fp16 accumulate=2", true},
               {"stack=vramlab amp=fp16 checkpoint=1", true}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Job job;
    open_bottlenecks(&job, cases[i].recipe);
    const Program *program = vl_executable_program(job.executable);
    bool scales = cases[i].scales, fixed = strstr(cases[i].recipe, "1024") != NULL;
    assert_int_equal(count_nodes(program->graph, "gradient_factor"), scales);
    assert_int_equal(count_nodes(program->graph, "square_sum"), scales ? program->gradient_count : 0);
    assert_int_equal(count_nodes(program->graph, "fill"), !scales);
    for (uint64_t step = 0; step < 2; step++)
      assert_true(isfinite(job_step(&job, step)));
    Scaler scaler = scaler_of(&job);
    assert_true(scaler.scale == (!scales ? 1.0 : fixed ? 1024.0 : 65536.0));
    assert_int_equal(scaler.skipped, 0);
    assert_int_equal(scaler.clean, scales ? 2 : 0);
    job_close(&job);
  }
}

/* A gradient of 1e-8 passes fp16 only when it is scaled; bf16 needs no scale for 1e-30. The loss is 1e-8
 * (1e-30) times the sum of a low copy of the weight. */
static void small_gradients_need_the_scale_c7(void **state) {
  (void)state;
  if (strcmp(device_name, "reference") == 0) skip(); /* rounds nothing */
  static const struct {
    DType low;
    double gradient, scale, expected;
  } cases[] = {{DTYPE_F16, 1e-8, 0, 0},
               {DTYPE_F16, 1e-8, 1, 0},
               {DTYPE_F16, 1e-8, 1024, 1.0012e-8},
               {DTYPE_BF16, 1e-30, 0, 9.984e-31}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Graph *graph = vl_graph_create("small");
    Program program;
    Job job;
    int64_t shape[] = {1, SIZE};
    vl_program_init(&program, graph);
    program.training = true;
    program.optimizer = (OptimizerSettings){.kind = OPTIMIZER_SGD, .learning_rate = 1.0};
    program.scaling = vl_loss_scaling_dynamic();
    program.scaling.initial = cases[i].scale;
    vl_graph_input(graph, "x", DTYPE_F32, 2, shape, 0);
    Tensor *weight = vl_graph_parameter(graph, "weight", ROLE_PARAMETER, DTYPE_F32, 2, shape, (Init){0}), *y;
    OpParams all = {.axes = {0, 1}, .axis_count = 2, .dtype = DTYPE_F32};
    require_ok(vl_apply(graph, "cast", &(OpParams){.dtype = cases[i].low}, &weight, 1, &y));
    require_ok(vl_apply(graph, "sum", &all, &y, 1, &y));
    require_ok(vl_apply(graph, "scale", &(OpParams){.alpha = cases[i].gradient}, &y, 1, &program.loss));
    job_open(&job, device_name, &program, "baseline", SEED, 0);
    step_with(&job, 0, 0.0F, 0.0F);
    float after[SIZE];
    require_ok(vl_state_read(job.state, "weight", after, sizeof after));
    for (int k = 0; k < SIZE; k++)
      assert_true(fabs(-(double)after[k] - cases[i].expected) <= 1e-4 * cases[i].expected);
    job_close(&job);
  }
}

/* Layer norm of constant rows in f16, by one op or by primitives: the bias, and no NaN, since everything
 * between input and output is f32. */
static void normalise_constant(const char *recipe, int64_t width, double value, double epsilon, double bias) {
  Graph *graph = vl_graph_create("constant");
  Program program;
  Job job;
  Tensor *x = vl_graph_input(graph, "x", DTYPE_F32, 2, (int64_t[]){2, width}, 0), *half;
  Tensor *gain =
      vl_graph_parameter(graph, "gain", ROLE_PARAMETER, DTYPE_F32, 1, &width, (Init){INIT_CONSTANT, 1});
  Tensor *beta =
      vl_graph_parameter(graph, "beta", ROLE_PARAMETER, DTYPE_F32, 1, &width, (Init){INIT_CONSTANT, bias});
  vl_program_init(&program, graph);
  Node *norm;
  OpParams params = {.epsilon = epsilon};
  require_ok(vl_apply(graph, "cast", &(OpParams){.dtype = DTYPE_F16}, &x, 1, &half));
  require_ok(vl_graph_add(graph, "layer_norm", &params, (Tensor *[]){half, gain, beta}, 3, &norm));
  require_ok(vl_apply(graph, "cast", &(OpParams){.dtype = DTYPE_F16}, norm->outputs, 1, &program.logits));
  job_open(&job, device_name, &program, recipe, SEED, 0);
  float *rows = vl_allocate((size_t)(2 * width) * sizeof *rows),
        *y = vl_allocate((size_t)(2 * width) * sizeof *y);
  for (int64_t i = 0; i < 2 * width; i++)
    rows[i] = (float)value;
  StepResult result;
  require_ok(vl_inputs_write(job.inputs, "x", rows, 2 * width * (int64_t)sizeof *rows));
  require_ok(vl_run_step(&job.run, job.inputs, &result, y));
  for (int64_t i = 0; i < 2 * width; i++)
    if (!(fabs((double)y[i] - bias) < 1e-3))
      fail_msg("%s, %lld of %g, epsilon %g: %g instead of %g", recipe, (long long)width, value, epsilon,
               (double)y[i], bias);
  free(rows);
  free(y);
  job_close(&job);
}

static void constant_rows_become_the_bias_in_fp16_c9(void **state) {
  (void)state;
  static const char *const recipes[] = {"baseline", "amp=fp16", "amp=fp16 layer-norm=composed"};
  static const int64_t widths[] = {1, 10, 33, 1025};
  for (int i = 0; i < 3 * 4 * 2 * 2 * 2; i++)
    normalise_constant(recipes[i % 3], widths[i / 3 % 4], i / 12 % 2 ? 3.0 : 0.0, i / 24 % 2 ? 1e-12 : 1e-5,
                       i / 48 % 2 ? 0.25 : 0.0);
}

static void combinations_without_sense_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *recipe, *reason;
  } cases[] = {{"amp=fp16 update=in-backward", "only when the last gradient exists"},
               {"clip=1 update=in-backward", "only when the last one exists"},
               {"loss-scale=dynamic", "without amp=fp16"},
               {"amp=bf16 loss-scale=1024", "without amp=fp16"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Program program;
    Recipe recipe;
    network_bottlenecks(&(NetOptions){.batch = 4, .size = 16}, &program);
    require_ok(vl_recipe_parse(cases[i].recipe, &recipe));
    Status status = vl_recipe_apply(&recipe, &program, &(Target){.ranks = 1});
    assert_int_equal(status.code, VL_UNSUPPORTED);
    if (!strstr(status.message, cases[i].reason)) fail_msg("%s: %s", cases[i].recipe, status.message);
    vl_program_destroy(&program);
  }
  static const char *const invalid[] = {"clip=0",
                                        "clip=-1",
                                        "clip=inf",
                                        "clip=0x1",
                                        "clip=1x",
                                        "amp=fp16 loss-scale=nan",
                                        "amp=fp16 loss-scale=0"};
  for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) {
    Recipe recipe;
    assert_int_equal(vl_recipe_parse(invalid[i], &recipe).code, VL_INVALID);
  }
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(scale_backs_off_and_grows_c1),
      cmocka_unit_test(skipped_steps_do_not_advance_the_schedule_c2),
      cmocka_unit_test(a_scaler_goes_on_where_it_was_saved),
      cmocka_unit_test(clipping_is_of_unscaled_gradients_c5),
      cmocka_unit_test(only_fp16_has_a_scaler_c7),
      cmocka_unit_test(small_gradients_need_the_scale_c7),
      cmocka_unit_test(constant_rows_become_the_bias_in_fp16_c9),
      cmocka_unit_test(combinations_without_sense_are_refused),
  };
  if (argc > 1) device_name = argv[1];
  int file = mkstemp(path);
  if (file < 0) return 1;
  close(file);
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  unlink(path);
  return failed;
}
