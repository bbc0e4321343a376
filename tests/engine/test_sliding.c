/* Inference by sliding windows: they cover any volume, what they say is the weighted mean that it should be,
 * and that does not depend on the batch, nor on where it is added up.
 *
 * usage: test_engine_sliding [DEVICE] */
#include "engine/volumes.h"
#include "tests/engine/job.h"
#include "tests/graph/networks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FEATURES = 3, CLASSES = 2, RADIUS = 2, TAPS = 27, SEED = 9 };
static const char *device_name = "reference";
static const double UNIT = 0x1p-24; /* half of an f32's last place */

/* ---- Windows ------------------------------------------------------------------------------------------------------ */

static void check_grid(int64_t size, int64_t window, double overlap) {
  WindowGrid grid = engine_window_grid((int64_t[]){1, size, 3}, (int64_t[]){1, window, 3}, overlap);
  int64_t count = engine_window_count(&grid), before = 0;
  int64_t stride = (int64_t)((double)window * (1.0 - overlap));
  for (int64_t i = 0; i < count; i++) {
    VolumeBox box = engine_window_at(&grid, i);
    assert_true(box.start[0] == 0 && box.start[2] == 0 && box.size[1] == window);
    if (size <= window) {
      assert_int_equal(count, 1);
      assert_int_equal(box.start[1], -((window - size) / 2));
      return;
    }
    assert_true(i == 0 ? box.start[1] == 0 : box.start[1] > before);
    assert_true(box.start[1] - before <= (stride < 1 ? 1 : stride));
    before = box.start[1];
  }
  assert_int_equal(before + window, size);
}

static void windows_cover_any_size(void **state) {
  (void)state;
  for (int64_t size = 1; size < 70; size++) {
    for (int64_t window = 1; window < 40; window += 3) {
      check_grid(size, window, 0.0);
      check_grid(size, window, 0.5);
      check_grid(size, window, 0.9);
    }
  }
  WindowGrid grid = engine_window_grid((int64_t[]){20, 31, 8}, (int64_t[]){10, 16, 8}, 0.5);
  assert_memory_equal(grid.count, ((int64_t[]){3, 3, 1}), sizeof grid.count);
  VolumeBox last = engine_window_at(&grid, 8), fourth = engine_window_at(&grid, 4);
  assert_memory_equal(last.start, ((int64_t[]){10, 15, 0}), sizeof last.start);
  assert_memory_equal(fourth.start, ((int64_t[]){5, 8, 0}), sizeof fourth.start);
}

static void weights_are_gaussian(void **state) {
  (void)state;
  for (int64_t side = 1; side < 130; side++) {
    float factors[130];
    engine_window_factors(side, factors);
    for (int64_t i = 0; i < side; i++) {
      assert_true(factors[i] > 0.0F && factors[i] <= 1.0F && factors[i] == factors[side - 1 - i]);
      double from = ((double)i - (double)(side - 1) / 2) / ((double)side / 8);
      assert_true(fabs((double)factors[i] / exp(-0.5 * from * from) - 1.0) <= 2.0 * UNIT);
    }
  }
}

/* ---- A net of small receptive field -------------------------------------------------------------------------------------- */

/* Two convolutions of 3 x 3 x 3 with a ReLU between: what a voxel gets depends on those up to RADIUS away. */
static void build_net(int64_t batch, const int64_t window[3], Program *program) {
  Graph *graph = vl_graph_create("net");
  vl_program_init(program, graph);
  program->training = false;
  Tensor *x = vl_graph_input(graph, "images", DTYPE_F32, 5,
                             (int64_t[]){batch, 1, window[0], window[1], window[2]}, 0);
  for (int32_t i = 0; i < 2; i++) {
    const char *name = i == 0 ? "first.weight" : "second.weight";
    int64_t shape[5] = {i == 0 ? FEATURES : CLASSES, x->shape[1], 3, 3, 3};
    vl_graph_set_scope(graph, i == 0 ? "first" : "second");
    Tensor *weight =
        vl_graph_parameter(graph, name, ROLE_PARAMETER, DTYPE_F32, 5, shape, (Init){INIT_UNIFORM, 0.3});
    require_ok(vl_conv(graph, x, weight, 1, 1, 1, &x));
    if (i == 0) require_ok(vl_apply(graph, "relu", NULL, &x, 1, &x));
  }
  program->logits = x;
  require_ok(vl_graph_check(graph));
}

static void open_net(Job *job, int64_t batch, const int64_t window[3], const char *recipe,
                     int64_t capacity_bytes) {
  Program program;
  build_net(batch, window, &program);
  job_open(job, device_name, &program, recipe, SEED, capacity_bytes);
}

static VolumeSet *open_phantoms(void) {
  VolumeSet *set;
  require_ok(engine_volumes_open("phantoms:5+1", (VolumeShape){1, 3, {14, 16, 12}}, &set));
  return set;
}

static int64_t voxels_of(const int64_t size[3]) { return size[0] * size[1] * size[2]; }

/* The logits of a volume, on the host. */
static float *infer(VolumeSet *set, int64_t index, int64_t batch, const int64_t window[3]) {
  Job job;
  VolumeLogits logits;
  open_net(&job, batch, window, "window-sums=host", 0);
  require_ok(engine_sliding_infer(set, false, index, 0.5, &job.run, job.inputs, &logits));
  assert_null(logits.block);
  job_close(&job);
  return logits.values;
}

static const int64_t windows[][3] = {{8, 8, 8}, {9, 12, 7}, {16, 20, 12}, {40, 40, 40}};
enum { WINDOWS = sizeof windows / sizeof *windows };

static void the_batch_changes_nothing(void **state) {
  (void)state;
  VolumeSet *set = open_phantoms();
  for (int64_t index = 0; index < 2; index++) {
    int64_t bytes = CLASSES * voxels_of(engine_volume(set, false, index)->size) * (int64_t)sizeof(float);
    for (int32_t w = 0; w < WINDOWS; w++) {
      float *one = infer(set, index, 1, windows[w]);
      for (int64_t batch = 2; batch < 6; batch++) {
        float *many = infer(set, index, batch, windows[w]);
        assert_memory_equal(one, many, (size_t)bytes);
        free(many);
      }
      free(one);
    }
  }
  engine_volumes_close(&set);
}

/* ---- Against double precision -------------------------------------------------------------------------------------------- */

typedef struct Weights {
  float first[FEATURES * TAPS], second[CLASSES * FEATURES * TAPS];
} Weights;

static Weights read_weights(void) {
  Job job;
  Weights weights;
  open_net(&job, 1, windows[0], "", 0);
  require_ok(vl_state_read(job.state, "first.weight", weights.first, sizeof weights.first));
  require_ok(vl_state_read(job.state, "second.weight", weights.second, sizeof weights.second));
  job_close(&job);
  return weights;
}

/* A number and how far an f32 computation of it may be off. */
typedef struct Value {
  double is, off;
} Value;

/* One output of a convolution; n additions err by less than n units of the sum of the terms' sizes. */
static Value convolve(const Value *x, int64_t channels, const int64_t size[3], const float *weight,
                      int64_t at) {
  int64_t place[3] = {at / (size[1] * size[2]), at / size[2] % size[1], at % size[2]};
  double sum = 0.0, sizes = 0.0, off = 0.0;
  for (int64_t tap = 0; tap < channels * TAPS; tap++) {
    int64_t z = place[0] + tap / 9 % 3 - 1, y = place[1] + tap / 3 % 3 - 1, v = place[2] + tap % 3 - 1;
    if (z < 0 || z >= size[0] || y < 0 || y >= size[1] || v < 0 || v >= size[2]) continue;
    Value from = x[tap / TAPS * voxels_of(size) + (z * size[1] + y) * size[2] + v];
    sum += (double)weight[tap] * from.is;
    sizes += fabs((double)weight[tap]) * (fabs(from.is) + from.off);
    off += fabs((double)weight[tap]) * from.off;
  }
  return (Value){sum, off + (double)(channels * TAPS + 1) * UNIT * sizes};
}

static void run_net(const Weights *weights, const int64_t size[3], const float *image, Value *logits) {
  int64_t voxels = voxels_of(size);
  Value *x = vl_allocate((size_t)voxels * sizeof *x),
        *h = vl_allocate((size_t)(FEATURES * voxels) * sizeof *h);
  for (int64_t i = 0; i < voxels; i++)
    x[i] = (Value){(double)image[i], 0.0};
  for (int64_t i = 0; i < FEATURES * voxels; i++) {
    h[i] = convolve(x, 1, size, weights->first + i / voxels * TAPS, i % voxels);
    if (h[i].is < 0.0) h[i].is = 0.0;
  }
  for (int64_t i = 0; i < CLASSES * voxels; i++)
    logits[i] = convolve(h, FEATURES, size, weights->second + i / voxels * FEATURES * TAPS, i % voxels);
  free(x);
  free(h);
}

static double weight_at(const int64_t window[3], const int64_t place[3]) {
  double exponent = 0.0;
  for (int32_t i = 0; i < 3; i++) {
    double from = ((double)place[i] - (double)(window[i] - 1) / 2) / ((double)window[i] / 8);
    exponent += from * from;
  }
  return exp(-0.5 * exponent);
}

/* The weighted mean over all windows. */
static Value *infer_in_double(VolumeSet *set, int64_t index, const int64_t window[3],
                              const Weights *weights) {
  const int64_t *size = engine_volume(set, false, index)->size;
  int64_t voxels = voxels_of(size), of_window = voxels_of(window);
  WindowGrid grid = engine_window_grid(size, window, 0.5);
  Value *mean = vl_allocate((size_t)(CLASSES * voxels) * sizeof *mean);
  double *sizes = vl_allocate((size_t)(CLASSES * voxels) * sizeof *sizes);
  double *total = vl_allocate((size_t)voxels * sizeof *total),
         *covering = vl_allocate((size_t)voxels * sizeof *covering);
  float *image = vl_allocate((size_t)of_window * sizeof *image);
  Value *logits = vl_allocate((size_t)(CLASSES * of_window) * sizeof *logits);
  for (int64_t n = 0; n < engine_window_count(&grid); n++) {
    VolumeBox box = engine_window_at(&grid, n);
    require_ok(engine_volume_read(set, false, index, box, image, NULL));
    run_net(weights, window, image, logits);
    for (int64_t i = 0; i < of_window; i++) {
      int64_t place[3] = {i / (window[1] * window[2]), i / window[2] % window[1], i % window[2]};
      int64_t z = box.start[0] + place[0], y = box.start[1] + place[1], x = box.start[2] + place[2];
      if (z < 0 || z >= size[0] || y < 0 || y >= size[1] || x < 0 || x >= size[2]) continue;
      int64_t at = (z * size[1] + y) * size[2] + x;
      double weight = weight_at(window, place);
      total[at] += weight;
      covering[at] += 1.0;
      for (int64_t c = 0; c < CLASSES; c++) {
        Value value = logits[c * of_window + i];
        mean[c * voxels + at].is += weight * value.is;
        mean[c * voxels + at].off += weight * value.off;
        sizes[c * voxels + at] += weight * fabs(value.is);
      }
    }
  }
  /* Three factors, two products of them, one with the logit and n sums, above and but for the logit below;
   * the quotient; and what is of second order. */
  for (int64_t i = 0; i < CLASSES * voxels; i++) {
    double of = total[i % voxels], roundings = 2.0 * covering[i % voxels] + 12.0;
    mean[i].is /= of;
    mean[i].off = 1.01 * (mean[i].off + roundings * UNIT * sizes[i]) / of;
  }
  free(sizes);
  free(total);
  free(covering);
  free(image);
  free(logits);
  return mean;
}

static void windows_are_averaged_as_they_should_be(void **state) {
  (void)state;
  VolumeSet *set = open_phantoms();
  Weights weights = read_weights();
  for (int64_t index = 0; index < 3; index++) {
    int64_t voxels = voxels_of(engine_volume(set, false, index)->size);
    for (int32_t w = 0; w < WINDOWS; w++) {
      float *got = infer(set, index, 2, windows[w]);
      Value *expected = infer_in_double(set, index, windows[w], &weights);
      for (int64_t i = 0; i < CLASSES * voxels; i++)
        assert_true(fabs((double)got[i] - expected[i].is) <= expected[i].off);
      free(got);
      free(expected);
    }
  }
  engine_volumes_close(&set);
}

/* ---- Against the whole volume ---------------------------------------------------------------------------------------------- */

/* Whether all windows over a voxel see as much around it as the whole volume has. */
static bool is_seen_whole(const WindowGrid *grid, const int64_t at[3]) {
  for (int64_t n = 0; n < engine_window_count(grid); n++) {
    VolumeBox box = engine_window_at(grid, n);
    bool inside = true, whole = true;
    for (int32_t i = 0; i < 3; i++) {
      int64_t end = box.start[i] + box.size[i];
      inside = inside && at[i] >= box.start[i] && at[i] < end;
      /* Where a window ends with its volume both are padded alike, beyond it only the image is. */
      int64_t first = box.start[i] > 0 ? box.start[i] : 0, last = end < grid->size[i] ? end : grid->size[i];
      whole = whole && (box.start[i] == 0 || at[i] - RADIUS >= first) &&
              (end == grid->size[i] || at[i] + RADIUS < last);
    }
    if (inside && !whole) return false;
  }
  return true;
}

/* Where windows see all that counts, their mean is what the net says of the whole volume. */
static void inner_voxels_are_those_of_the_whole_volume(void **state) {
  (void)state;
  VolumeSet *set = open_phantoms();
  Weights weights = read_weights();
  for (int64_t index = 0; index < 3; index++) {
    const int64_t *size = engine_volume(set, false, index)->size, window[3] = {12, 12, 12};
    int64_t voxels = voxels_of(size), compared = 0;
    WindowGrid grid = engine_window_grid(size, window, 0.25);
    Job job;
    VolumeLogits parts;
    open_net(&job, 3, window, "window-sums=host", 0);
    require_ok(engine_sliding_infer(set, false, index, 0.25, &job.run, job.inputs, &parts));
    float *whole = infer(set, index, 1, size);
    Value *bound = infer_in_double(set, index, size, &weights);
    for (int64_t i = 0; i < CLASSES * voxels; i++) {
      int64_t v = i % voxels, at[3] = {v / (size[1] * size[2]), v / size[2] % size[1], v % size[2]};
      if (!is_seen_whole(&grid, at)) continue;
      compared++;
      double roundings = 2.0 * (double)engine_window_count(&grid) + 12.0;
      double off = 2.0 * bound[i].off + roundings * UNIT * fabs(bound[i].is) * 1.01;
      assert_true(fabs((double)parts.values[i] - (double)whole[i]) <= off);
    }
    assert_true(compared > CLASSES * voxels / 20);
    engine_volume_logits_clear(&job.run, &parts);
    job_close(&job);
    free(whole);
    free(bound);
  }
  engine_volumes_close(&set);
}

/* ---- Where sums are ---------------------------------------------------------------------------------------------------------- */

static void sums_on_the_device_are_counted_and_equal(void **state) {
  (void)state;
  VolumeSet *set = open_phantoms();
  const int64_t *window = windows[0];
  int64_t voxels = voxels_of(engine_volume(set, false, 0)->size), bytes = (CLASSES + 1) * voxels * 4;
  Job job;
  VolumeLogits logits;
  open_net(&job, 2, window, "", 0);
  if (!job.device->interface->host_view && !job.device->interface->window_add) {
    Status status = engine_sliding_infer(set, false, 0, 0.5, &job.run, job.inputs, &logits);
    assert_int_equal(status.code, VL_UNSUPPORTED);
    assert_non_null(strstr(status.message, "window-sums=host"));
    job_close(&job);
    engine_volumes_close(&set);
    return;
  }
  MemoryStatistics before, after;
  vl_tracker_statistics(job.tracker, &before);
  require_ok(engine_sliding_infer(set, false, 0, 0.5, &job.run, job.inputs, &logits));
  vl_tracker_statistics(job.tracker, &after);
  assert_true(after.allocated.current_bytes - before.allocated.current_bytes >= bytes);
  float *on_host = infer(set, 0, 2, window);
  assert_memory_equal(on_host, logits.values, (size_t)(CLASSES * voxels) * sizeof *on_host);
  engine_volume_logits_clear(&job.run, &logits);
  vl_tracker_statistics(job.tracker, &after);
  assert_int_equal(after.allocated.current_bytes, before.allocated.current_bytes);
  int64_t reserved = after.reserved.peak_bytes;
  job_close(&job);

  /* With no room for them on the device, there is room on the host. */
  open_net(&job, 2, window, "", 0);
  StepResult step;
  require_ok(vl_inputs_synthesize(job.inputs, SEED, 0, 0));
  require_ok(vl_run_step(&job.run, job.inputs, &step, NULL));
  vl_tracker_statistics(job.tracker, &before);
  int64_t without = before.reserved.peak_bytes;
  job_close(&job);
  if (without < reserved) {
    open_net(&job, 2, window, "", without);
    Status status = engine_sliding_infer(set, false, 0, 0.5, &job.run, job.inputs, &logits);
    assert_int_equal(status.code, VL_OUT_OF_MEMORY);
    job_close(&job);
  }
  open_net(&job, 2, window, "window-sums=host", without);
  require_ok(engine_sliding_infer(set, false, 0, 0.5, &job.run, job.inputs, &logits));
  assert_memory_equal(on_host, logits.values, (size_t)(CLASSES * voxels) * sizeof *on_host);
  engine_volume_logits_clear(&job.run, &logits);
  job_close(&job);
  free(on_host);
  engine_volumes_close(&set);
}

/* Windows smaller than the volume, larger, and larger along some axes. */
static void sums_on_the_device_are_the_hosts_for_every_batch(void **state) {
  (void)state;
  VolumeSet *set = open_phantoms();
  int64_t bytes = CLASSES * voxels_of(engine_volume(set, false, 1)->size) * (int64_t)sizeof(float);
  for (int32_t w = 0; w < WINDOWS; w++) {
    float *on_host = infer(set, 1, 1, windows[w]);
    for (int64_t batch = 1; batch < 5; batch++) {
      Job job;
      VolumeLogits logits;
      open_net(&job, batch, windows[w], "", 0);
      Status status = engine_sliding_infer(set, false, 1, 0.5, &job.run, job.inputs, &logits);
      if (status.code != VL_UNSUPPORTED) { /* of a device that can add none up */
        require_ok(status);
        assert_non_null(logits.block);
        assert_memory_equal(on_host, logits.values, (size_t)bytes);
        engine_volume_logits_clear(&job.run, &logits);
      }
      job_close(&job);
    }
    free(on_host);
  }
  engine_volumes_close(&set);
}

int main(int argc, char **argv) {
  if (argc > 1) device_name = argv[1];
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(windows_cover_any_size),
      cmocka_unit_test(weights_are_gaussian),
      cmocka_unit_test(the_batch_changes_nothing),
      cmocka_unit_test(windows_are_averaged_as_they_should_be),
      cmocka_unit_test(inner_voxels_are_those_of_the_whole_volume),
      cmocka_unit_test(sums_on_the_device_are_counted_and_equal),
      cmocka_unit_test(sums_on_the_device_are_the_hosts_for_every_batch),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
