/* Statistics of whole volumes, whose first planes are often nothing like the rest: mean and rstd of each
 * against double precision, with one thread and with three, which share out every volume. usage:
 * test_instance_norm DEVICE; exits with 77 when the machine does not offer it. */
#include "tests/devices/open_device.h"
#include "tests/devices/run_node.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

enum { SIDE = 48, PLANE = SIDE * SIDE, PLACES = SIDE * PLANE };
static const char *device_name = "cpu";
static const double epsilon = 1e-5;

static void require_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

/* Of each volume: what lies in its first `background` places, and around what the rest is spread. */
static const struct {
  const char *what;
  int64_t background;
  double value, mean, spread;
} volumes[] = {{"noise", 0, 0.0, 0.0, 1.0},
               {"noise far from zero", 0, 0.0, 1000.0, 1.0},
               {"two thirds air", 2 * PLACES / 3, -1024.0, 40.0, 100.0},
               {"all but the last plane air", PLACES - PLANE, 0.0, 300.0, 20.0},
               {"a bright first line", SIDE, 1000.0, 1.0, 0.01},
               {"one bright place", 1, 1e4, 0.1, 0.0},
               {"constant", 0, 0.0, 3.3, 0.0}};
enum { VOLUMES = sizeof volumes / sizeof *volumes };

static void fill(float *x) {
  uint64_t key = vl_random_key(3, 0, "volumes");
  for (int64_t v = 0; v < VOLUMES; v++)
    for (int64_t i = 0; i < PLACES; i++) {
      double unit = 2.0 * (double)vl_random_unit(vl_random_word(key, (uint64_t)v, (uint64_t)i)) - 1.0;
      bool outside = i < volumes[v].background;
      x[v * PLACES + i] = (float)(outside ? volumes[v].value : volumes[v].mean + volumes[v].spread * unit);
    }
}

static void statistics_of(const float *x, double *mean, double *rstd) {
  double sum = 0.0, squares = 0.0;
  for (int64_t i = 0; i < PLACES; i++)
    sum += (double)x[i];
  *mean = sum / PLACES;
  for (int64_t i = 0; i < PLACES; i++)
    squares += ((double)x[i] - *mean) * ((double)x[i] - *mean);
  *rstd = 1.0 / sqrt(squares / PLACES + epsilon);
}

/* mean and rstd of one sample whose channels are the volumes. */
static void run(int32_t threads, const float *x, float *mean, float *rstd) {
  Device *device = NULL;
  require_ok(vl_device_open(device_name, &(DeviceOptions){.threads = threads}, &device));
  Graph *graph = vl_graph_create("volumes");
  float ones[VOLUMES];
  for (int i = 0; i < VOLUMES; i++)
    ones[i] = 1.0F;
  Tensor *input = vl_graph_input(graph, "x", DTYPE_F32, 5, (int64_t[]){1, VOLUMES, SIDE, SIDE, SIDE}, 0);
  Tensor *gamma = vl_graph_input(graph, "gamma", DTYPE_F32, 1, (int64_t[]){VOLUMES}, 0);
  Node *node = NULL;
  require_ok(vl_graph_add(graph, "instance_norm", &(OpParams){.epsilon = epsilon},
                          (Tensor *[]){input, gamma, gamma}, 3, &node));
  require_ok(run_node(device, node, (const void *[]){x, ones, ones}, (void *[]){NULL, mean, rstd}));
  vl_graph_destroy(&graph);
  vl_device_close(&device);
}

/* A mean within a unit of its rounding and 128 of the spread's (kernels/cpu/instance_norm.c), rstd within
 * 1e-5: of a variance found in one reading from a shift that takes the bright first line for the volume, not
 * one digit would be right. */
static void statistics_hold_in_volumes(void **state) {
  (void)state;
  float *x = vl_allocate((size_t)VOLUMES * PLACES * sizeof *x);
  fill(x);
  for (int32_t threads = 1; threads <= 3; threads += 2) {
    float mean[VOLUMES], rstd[VOLUMES];
    run(threads, x, mean, rstd);
    for (int v = 0; v < VOLUMES; v++) {
      double right_mean, right_rstd;
      statistics_of(x + (int64_t)v * PLACES, &right_mean, &right_rstd);
      double of_mean = fabs((double)mean[v] - right_mean), of_rstd = fabs((double)rstd[v] / right_rstd - 1.0);
      if (of_mean > 0x1p-24 * (2.0 * fabs(right_mean) + 128.0 / right_rstd) || of_rstd > 1e-5)
        fail_msg("%s, %d threads: mean %.9g, not %.9g; rstd %.9g, not %.9g", volumes[v].what, threads,
                 (double)mean[v], right_mean, (double)rstd[v], right_rstd);
    }
  }
  free(x);
}

int main(int argc, char **argv) {
  if (argc > 1) device_name = argv[1];
  Device *device = NULL;
  int refused = open_device_or_skip(device_name, &(DeviceOptions){0}, &device);
  if (refused) return refused;
  vl_device_close(&device);
  const struct CMUnitTest tests[] = {cmocka_unit_test(statistics_hold_in_volumes)};
  return cmocka_run_group_tests_name("instance_norm", tests, NULL, NULL);
}
