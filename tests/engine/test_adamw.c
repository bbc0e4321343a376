/* AdamW through a program, an engine and State, against PyTorch: its float64 to what storing f32 rounds, and
 * on a device in f32 within twice what PyTorch's own fused kernel differs from its float64. The net is
 * sum(weight * x), so that the gradient is x itself.
 *
 * usage: test_engine_adamw [DEVICE] */
#include "tests/engine/job.h"
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_SIZE = 64 };
static const char *device_name = "reference";
static const double f32_roundoff = 0x1p-24;
static json_t *golden;

void require_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s: %s", vl_status_name(status.code), status.message);
}

static double real(const json_t *object, const char *key) {
  return json_number_value(json_object_get(object, key));
}

static int64_t whole(const json_t *object, const char *key) {
  return json_integer_value(json_object_get(object, key));
}

static void build_net(OptimizerSettings optimizer, Program *program) {
  Graph *graph = vl_graph_create("adamw");
  vl_program_init(program, graph);
  program->training = true;
  program->optimizer = optimizer;
  int64_t shape[] = {1, whole(golden, "size")};
  Tensor *x = vl_graph_input(graph, "x", DTYPE_F32, 2, shape, 0), *product = NULL;
  Tensor *weight = vl_graph_parameter(graph, "weight", ROLE_PARAMETER, DTYPE_F32, 2, shape,
                                      (Init){INIT_UNIFORM, real(golden, "bound")});
  require_ok(vl_apply(graph, "mul", NULL, (Tensor *[]){weight, x}, 2, &product));
  OpParams all = {.axes = {0, 1}, .axis_count = 2, .dtype = DTYPE_F32};
  require_ok(vl_apply(graph, "sum", &all, &product, 1, &program->loss));
}

/* The largest |a - b|. */
static double distance(const double *a, const double *b, size_t count) {
  double most = 0.0;
  for (size_t i = 0; i < count; i++)
    most = fmax(most, fabs(a[i] - b[i]));
  return most;
}

static void read_values(const json_t *list, size_t count, double *values) {
  assert_int_equal(json_array_size(list), count);
  for (size_t i = 0; i < count; i++)
    values[i] = json_number_value(json_array_get(list, i));
}

static void check_tensor(Job *job, const char *name, const json_t *expected, int64_t steps) {
  size_t size = (size_t)whole(golden, "size");
  float stored[MAX_SIZE];
  double got[MAX_SIZE], exact[MAX_SIZE], fused[MAX_SIZE], zeros[MAX_SIZE] = {0.0};
  require_ok(vl_state_read(job->state, name, stored, (int64_t)(size * sizeof(float))));
  for (size_t i = 0; i < size; i++)
    got[i] = (double)stored[i];
  read_values(json_object_get(expected, "f64"), size, exact);
  read_values(json_object_get(expected, "fused_f32"), size, fused);
  double rounding = f32_roundoff * distance(exact, zeros, size);
  bool in_double = strcmp(device_name, "reference") == 0;
  double bound = in_double ? rounding : 2.0 * distance(fused, exact, size) + rounding;
  double error = distance(got, exact, size);
  print_message("  %s after %lld steps: off by %.2g, bound %.2g\n", name, (long long)steps, error, bound);
  if (!(error <= bound)) fail_msg("%s after %lld steps", name, (long long)steps);
}

static OptimizerSettings settings_of(const json_t *item) {
  return (OptimizerSettings){.kind = OPTIMIZER_ADAMW,
                             .learning_rate = real(item, "learning_rate"),
                             .weight_decay = real(item, "weight_decay"),
                             .beta1 = real(item, "beta1"),
                             .beta2 = real(item, "beta2"),
                             .epsilon = real(item, "epsilon")};
}

/* given: the rate comes from the run, as a schedule gives it, and the program's own is nonsense. */
static void check_case(const json_t *item, bool given) {
  Job job;
  Program program;
  const char *name;
  json_t *expected;
  OptimizerSettings settings = settings_of(item);
  if (given) settings.learning_rate = 1e6;
  build_net(settings, &program);
  job_open(&job, device_name, &program, "baseline", (uint64_t)whole(golden, "seed"), 0);
  if (given) job.run.learning_rate = real(item, "learning_rate");
  for (int64_t step = 0; step < whole(item, "steps"); step++)
    job_step(&job, (uint64_t)step);
  json_object_foreach(json_object_get(item, "values"), name, expected) {
    check_tensor(&job, name, expected, whole(item, "steps"));
  }
  job_close(&job);
}

static void steps_are_pytorchs(void **state) {
  (void)state;
  size_t index;
  json_t *item;
  json_array_foreach(json_object_get(golden, "cases"), index, item) { check_case(item, false); }
}

static void a_given_learning_rate_decays_too(void **state) {
  (void)state;
  check_case(json_array_get(json_object_get(golden, "cases"), 5), true);
}

static void defaults_are_pytorchs(void **state) {
  (void)state;
  OptimizerSettings ours = vl_optimizer_adamw(),
                    theirs = settings_of(json_array_get(json_object_get(golden, "cases"), 0));
  assert_memory_equal(&ours, &theirs, sizeof ours);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(steps_are_pytorchs),
      cmocka_unit_test(a_given_learning_rate_decays_too),
      cmocka_unit_test(defaults_are_pytorchs),
  };
  if (argc > 1) device_name = argv[1];
  golden = json_load_file(VRAMLAB_SOURCE_DIR "/tests/goldens/adamw.json", 0, NULL);
  if (!golden || whole(golden, "size") > MAX_SIZE) return 1;
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  json_decref(golden);
  return failed;
}
