/* What bounds do not say of norms: layer norm of rows that are one value throughout is exactly the bias,
 * since the mean of equal values is that value and everything between input and output is f32; and the
 * gradient of a batch norm finds the very sign that forward's output had. usage: test_norms DEVICE; exits
 * with 77 when the machine does not offer it. */
#include "tests/devices/open_device.h"
#include "tests/devices/run_node.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *device_name = "cpu";
static Device *device;

static void require_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

static void *typed(DType dtype, int64_t count) { return vl_allocate((size_t)vl_dtype_bytes(dtype, count)); }

static void *filled(DType dtype, int64_t count, double value) {
  void *array = typed(dtype, count);
  for (int64_t i = 0; i < count; i++)
    vl_element_set(array, dtype, i, value);
  return array;
}

/* ---- Constant rows (fault case C9) ------------------------------------------------------------------------- */

enum { ROWS = 3 };

typedef struct Constant {
  DType dtype;
  int64_t width;
  double value, epsilon, bias;
} Constant;

static void normalise(const Constant *of) {
  Graph *graph = vl_graph_create("constant");
  Tensor *inputs[] = {vl_graph_input(graph, "x", of->dtype, 2, (int64_t[]){ROWS, of->width}, 0),
                      vl_graph_input(graph, "gamma", DTYPE_F32, 1, &of->width, 0),
                      vl_graph_input(graph, "beta", DTYPE_F32, 1, &of->width, 0)};
  Node *node = NULL;
  require_ok(vl_graph_add(graph, "layer_norm", &(OpParams){.epsilon = of->epsilon}, inputs, 3, &node));
  void *x = filled(of->dtype, ROWS * of->width, of->value), *gamma = filled(DTYPE_F32, of->width, 1.0),
       *beta = filled(DTYPE_F32, of->width, of->bias), *y = typed(of->dtype, ROWS * of->width);
  require_ok(run_node(device, node, (const void *[]){x, gamma, beta}, (void *[]){y, NULL, NULL}));
  for (int64_t i = 0; i < ROWS * of->width; i++) {
    double got = vl_element_get(y, of->dtype, i);
    if (got != of->bias)
      fail_msg("%s, rows of %lld times %g, epsilon %g: %.9g, not %g", vl_dtype_name(of->dtype),
               (long long)of->width, of->value, of->epsilon, got, of->bias);
  }
  free(x);
  free(gamma);
  free(beta);
  free(y);
  vl_graph_destroy(&graph);
}

static void constant_rows_are_the_bias_c9(void **state) {
  (void)state;
  static const DType dtypes[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32};
  static const int64_t widths[] = {1, 10, 33, 1025, 9001}; /* the last: longer than any kernel keeps */
  for (int i = 0; i < 3 * 5 * 2 * 2 * 2; i++)
    normalise(&(Constant){.dtype = dtypes[i % 3],
                          .width = widths[i / 3 % 5],
                          .value = i / 15 % 2 ? 3.0 : 0.0,
                          .epsilon = i / 30 % 2 ? 1e-12 : 1e-5,
                          .bias = i / 60 % 2 ? 0.25 : 0.0});
}

/* ---- Signs --------------------------------------------------------------------------------------------------- */

enum { CHANNELS = 4099 }; /* one sample: what dbeta is of a channel is one element's gradient */

/* Values of every channel; beta makes the result zero but for what rounding leaves. */
typedef struct Channels {
  void *x, *ones;
  float *mean, *var, *gamma, *beta;
} Channels;

static Channels draw_channels(DType dtype, double epsilon) {
  Channels all = {typed(dtype, CHANNELS),     filled(dtype, CHANNELS, 1.0), typed(DTYPE_F32, CHANNELS),
                  typed(DTYPE_F32, CHANNELS), typed(DTYPE_F32, CHANNELS),   typed(DTYPE_F32, CHANNELS)};
  uint64_t key = vl_random_key(5, 0, "signs");
  for (int64_t c = 0; c < CHANNELS; c++) {
    float unit[4];
    for (int k = 0; k < 4; k++)
      unit[k] = vl_random_unit(vl_random_word(key, (uint64_t)k, (uint64_t)c));
    vl_element_set(all.x, dtype, c, 4.0 * (double)unit[0] - 2.0);
    all.mean[c] = unit[1] - 0.5F;
    all.var[c] = 0.25F + unit[2];
    all.gamma[c] = 0.5F + unit[3];
    double scale = (double)all.gamma[c] / sqrt((double)all.var[c] + epsilon);
    all.beta[c] = (float)(-scale * (vl_element_get(all.x, dtype, c) - (double)all.mean[c]));
  }
  return all;
}

static void free_channels(Channels *all) {
  free(all->x);
  free(all->ones);
  free(all->mean);
  free(all->var);
  free(all->gamma);
  free(all->beta);
}

static void signs_agree_in(DType dtype) {
  OpParams params = {.epsilon = 1e-5, .relu = 1};
  Channels all = draw_channels(dtype, params.epsilon);
  Graph *graph = vl_graph_create("signs");
  int64_t channels = CHANNELS;
  Tensor *x = vl_graph_input(graph, "x", dtype, 2, (int64_t[]){1, CHANNELS}, 0);
  Tensor *dy = vl_graph_input(graph, "dy", dtype, 2, (int64_t[]){1, CHANNELS}, 0);
  static const char *const names[] = {"mean", "var", "gamma", "beta"};
  Tensor *by[4];
  for (int k = 0; k < 4; k++)
    by[k] = vl_graph_input(graph, names[k], DTYPE_F32, 1, &channels, 0);
  Node *forward = NULL, *backward = NULL;
  require_ok(vl_graph_add(graph, "batch_norm_apply", &params, (Tensor *[]){x, by[0], by[1], by[2], by[3]}, 5,
                          &forward));
  require_ok(vl_graph_add(graph, "batch_norm_backward", &params,
                          (Tensor *[]){dy, x, by[0], by[1], by[2], by[3]}, 6, &backward));
  void *y = typed(dtype, CHANNELS);
  float *dbeta = typed(DTYPE_F32, CHANNELS);
  require_ok(run_node(device, forward, (const void *[]){all.x, all.mean, all.var, all.gamma, all.beta},
                      (void *[]){y}));
  require_ok(run_node(device, backward,
                      (const void *[]){all.ones, all.x, all.mean, all.var, all.gamma, all.beta},
                      (void *[]){NULL, NULL, dbeta}));
  int positive = 0;
  for (int64_t c = 0; c < CHANNELS; c++) {
    double result = vl_element_get(y, dtype, c);
    positive += result > 0.0;
    if ((result > 0.0) != (dbeta[c] == 1.0F))
      fail_msg("%s, channel %lld: forward gave %g, and backward let %g through", vl_dtype_name(dtype),
               (long long)c, result, (double)dbeta[c]);
  }
  assert_in_range(positive, 1, CHANNELS - 1);
  free(y);
  free(dbeta);
  free_channels(&all);
  vl_graph_destroy(&graph);
}

/* The cpu's f16 is f32 between conversions, where what f16 flushed to zero is positive yet. */
static void backward_finds_the_signs_of_forward(void **state) {
  (void)state;
  signs_agree_in(DTYPE_F32);
  signs_agree_in(DTYPE_BF16);
  if (strcmp(device_name, "cpu") != 0) signs_agree_in(DTYPE_F16);
}

int main(int argc, char **argv) {
  if (argc > 1) device_name = argv[1];
  int refused = open_device_or_skip(device_name, &(DeviceOptions){0}, &device);
  if (refused) return refused;
  const struct CMUnitTest tests[] = {cmocka_unit_test(constant_rows_are_the_bias_c9),
                                     cmocka_unit_test(backward_finds_the_signs_of_forward)};
  int failed = cmocka_run_group_tests_name("norms", tests, NULL, NULL);
  vl_device_close(&device);
  return failed;
}
