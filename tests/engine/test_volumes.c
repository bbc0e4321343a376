/* Volumes as data: what a file holds comes back, files that are not what they should be are refused with the
 * place, patches are drawn as often as they should be and the same whatever the micro-batch, phantoms are
 * what they say, and Dice is what it is defined as. */
#include "engine/volumes.h"
#include "tests/graph/networks.h"
#include <hdf5.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { CHANNELS = 2, CLASSES = 4, SEED = 5 };
static char directory[] = "/tmp/vramlab-volumes-XXXXXX";
static char path[64];
static const VolumeShape shape = {CHANNELS, CLASSES, {8, 10, 12}};

/* ---- Files ------------------------------------------------------------------------------------------------------ */

/* Of volumes written here: the value of a voxel tells where it is, channel 1 is constant. */
static float value_at(int64_t number, int64_t channel, int64_t z, int64_t y, int64_t x) {
  return channel == 1 ? 7.0F : (float)(number * 1000000 + z * 10000 + y * 100 + x);
}

static int32_t label_at(int64_t z, int64_t y, int64_t x) {
  if (z == 1 && y == 1 && x < 2) return 3; /* a class of two voxels */
  return (z + y) % 5 == 0 ? 1 : 0;
}

static const int64_t sizes[][3] = {{20, 24, 28}, {8, 10, 12}, {5, 30, 9}, {9, 3, 40}};
enum { TRAINING = 3, HELD_OUT = 1 };

static void add_volume(VolumeWriter *writer, int64_t number, bool held_out) {
  char name[32];
  const int64_t *size = sizes[number];
  int64_t voxels = size[0] * size[1] * size[2];
  float *image = vl_allocate((size_t)(CHANNELS * voxels) * sizeof *image);
  int32_t *labels = vl_allocate((size_t)voxels * sizeof *labels);
  for (int64_t i = 0; i < voxels; i++) {
    int64_t z = i / (size[1] * size[2]), y = i / size[2] % size[1], x = i % size[2];
    labels[i] = label_at(z, y, x);
    for (int64_t c = 0; c < CHANNELS; c++)
      image[c * voxels + i] = value_at(number, c, z, y, x);
  }
  snprintf(name, sizeof name, "volume %lld", (long long)number);
  NewVolume volume = {.name = name,
                      .held_out = held_out,
                      .channels = CHANNELS,
                      .size = {size[0], size[1], size[2]},
                      .spacing_mm = {3.0, 0.5, 0.75},
                      .image = image,
                      .labels = labels};
  require_ok(vl_volume_writer_add(writer, &volume));
  free(image);
  free(labels);
}

static void write_file(void) {
  VolumeWriter *writer;
  require_ok(vl_volume_writer_create(path, &writer));
  for (int64_t i = 0; i < TRAINING; i++)
    add_volume(writer, i, false);
  add_volume(writer, TRAINING, true);
  require_ok(vl_volume_writer_finish(&writer));
}

static VolumeSet *open_file(void) {
  VolumeSet *set;
  write_file();
  require_ok(engine_volumes_open(path, shape, &set));
  return set;
}

/* Mean and deviation of channel 0 of a volume, as the file has them. */
static void statistics_of(int64_t number, double *mean, double *deviation) {
  const int64_t *size = sizes[number];
  double sum = 0.0, squares = 0.0, count = (double)(size[0] * size[1] * size[2]);
  for (int64_t pass = 0; pass < 2; pass++) {
    for (int64_t z = 0; z < size[0]; z++) {
      for (int64_t y = 0; y < size[1]; y++) {
        for (int64_t x = 0; x < size[2]; x++) {
          double value = (double)value_at(number, 0, z, y, x), from_mean = value - sum / count;
          if (pass == 0)
            sum += value;
          else
            squares += from_mean * from_mean;
        }
      }
    }
  }
  *mean = sum / count;
  *deviation = sqrt(squares / count);
}

/* Every voxel of a box is the volume's, or padding. */
static void check_box(int64_t number, VolumeBox box, const float *image, const int32_t *labels) {
  const int64_t *size = sizes[number];
  double mean, deviation;
  statistics_of(number, &mean, &deviation);
  int64_t voxels = box.size[0] * box.size[1] * box.size[2];
  for (int64_t i = 0; i < voxels; i++) {
    int64_t z = box.start[0] + i / (box.size[1] * box.size[2]),
            y = box.start[1] + i / box.size[2] % box.size[1], x = box.start[2] + i % box.size[2];
    bool inside = z >= 0 && z < size[0] && y >= 0 && y < size[1] && x >= 0 && x < size[2];
    assert_int_equal(labels[i], inside ? label_at(z, y, x) : VL_IGNORED_LABEL);
    double expected = inside ? ((double)value_at(number, 0, z, y, x) - mean) / deviation : 0.0;
    assert_true(fabs((double)image[i] - expected) <= 1e-5 * (1.0 + fabs(expected)));
    assert_true(image[voxels + i] == 0.0F); /* a constant channel is its mean */
  }
}

static void what_was_written_comes_back(void **state) {
  (void)state;
  VolumeSet *set = open_file();
  assert_int_equal(engine_volumes_count(set, false), TRAINING);
  assert_int_equal(engine_volumes_count(set, true), HELD_OUT);
  static const VolumeBox boxes[] = {{{0, 0, 0}, {5, 3, 9}},     {{1, 2, 3}, {3, 1, 4}},
                                    {{-2, -3, -1}, {9, 8, 12}}, {{3, 2, 5}, {20, 40, 60}},
                                    {{-4, 1, 2}, {2, 2, 2}},    {{100, 0, 0}, {3, 3, 3}}};
  for (int64_t number = 0; number < TRAINING + HELD_OUT; number++) {
    bool held_out = number >= TRAINING;
    int64_t index = held_out ? number - TRAINING : number;
    const Volume *volume = engine_volume(set, held_out, index);
    assert_memory_equal(volume->size, sizes[number], sizeof volume->size);
    assert_true(volume->spacing_mm[0] == 3.0 && volume->spacing_mm[1] == 0.5 &&
                volume->spacing_mm[2] == 0.75);
    for (size_t b = 0; b < sizeof boxes / sizeof *boxes; b++) {
      int64_t voxels = boxes[b].size[0] * boxes[b].size[1] * boxes[b].size[2];
      float *image = vl_allocate((size_t)(CHANNELS * voxels) * sizeof *image);
      int32_t *labels = vl_allocate((size_t)voxels * sizeof *labels);
      require_ok(engine_volume_read(set, held_out, index, boxes[b], image, labels));
      check_box(number, boxes[b], image, labels);
      memset(labels, 1, (size_t)voxels * sizeof *labels);
      require_ok(engine_volume_read(set, held_out, index, boxes[b], NULL, labels));
      check_box(number, boxes[b], image, labels);
      free(image);
      free(labels);
    }
  }
  engine_volumes_close(&set);
  assert_null(set);
}

static void a_file_that_is_not_finished_leaves_nothing(void **state) {
  (void)state;
  char temporary[80];
  VolumeWriter *writer;
  snprintf(temporary, sizeof temporary, "%s.tmp", path);
  unlink(path);
  require_ok(vl_volume_writer_create(path, &writer));
  add_volume(writer, 0, false);
  vl_volume_writer_abandon(&writer);
  assert_null(writer);
  assert_int_not_equal(access(path, F_OK), 0);
  assert_int_not_equal(access(temporary, F_OK), 0);
}

/* ---- Bad files ---------------------------------------------------------------------------------------------------- */

static void assert_refused(VolumeShape of, const char *place) {
  VolumeSet *set = NULL;
  Status status = engine_volumes_open(path, of, &set);
  if (status.code != VL_INVALID || !strstr(status.message, place) || !strstr(status.message, path))
    fail_msg("expected a refusal that names '%s', got %s: %s", place, vl_status_name(status.code),
             status.message);
  assert_null(set);
}

/* Changes the usual file: removes a link, and puts a dataset of these extents (rank 0: none) in its place. */
static void replace(const char *name, int rank, const hsize_t *extents, hid_t type, int32_t value) {
  write_file();
  hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
  assert_true(file >= 0 && H5Ldelete(file, name, H5P_DEFAULT) >= 0);
  if (rank > 0) {
    hsize_t elements = 1;
    for (int i = 0; i < rank; i++)
      elements *= extents[i];
    int32_t *values = vl_allocate((size_t)(elements + 1) * sizeof *values);
    for (hsize_t i = 0; i < elements; i++)
      values[i] = i == elements - 1 ? value : 0;
    hid_t space = H5Screate_simple(rank, extents, NULL);
    hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(set >= 0 && H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    H5Dclose(set);
    H5Sclose(space);
    free(values);
  }
  H5Fclose(file);
}

static void what_is_not_such_a_file_is_refused(void **state) {
  (void)state;
  unlink(path);
  assert_refused(shape, "missing, truncated or not an HDF5 file");
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  fputs("n+1", file);
  fclose(file);
  assert_refused(shape, "missing, truncated or not an HDF5 file");
  write_file();
  assert_int_equal(truncate(path, 3000), 0);
  assert_refused(shape, path);
}

static void missing_parts_are_named(void **state) {
  (void)state;
  static const char *const names[] = {"volumes", "held_out_volumes", "volumes/volume 1/image",
                                      "held_out_volumes/volume 3/labels"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    replace(names[i], 0, NULL, -1, 0);
    assert_refused(shape, names[i]);
  }
  replace("held_out_volumes/volume 3", 0, NULL, -1, 0);
  assert_refused(shape, "0 held out");
}

static void parts_that_do_not_fit_are_refused(void **state) {
  (void)state;
  static const char image[] = "volumes/volume 1/image", labels[] = "volumes/volume 1/labels";
  replace(image, 3, (hsize_t[]){8, 10, 12}, H5T_STD_I32LE, 0);
  assert_refused(shape, "must have 4 dimensions");
  replace(image, 4, (hsize_t[]){3, 8, 10, 12}, H5T_STD_I32LE, 0);
  assert_refused(shape, "--set channels=3");
  replace(image, 4, (hsize_t[]){2, 8, 10, 13}, H5T_STD_I32LE, 0);
  assert_refused(shape, "8 x 10 x 13");
  replace(image, 4, (hsize_t[]){2, 0, 10, 12}, H5T_STD_I32LE, 0);
  assert_refused(shape, "0 x 10 x 12");
  replace(labels, 3, (hsize_t[]){8, 10, 12}, H5T_IEEE_F32LE, 0);
  assert_refused(shape, "must hold whole numbers");
  replace(labels, 3, (hsize_t[]){8, 10, 12}, H5T_STD_I16LE, 4);
  assert_refused(shape, "label 4 of volume 'volume 1', at (7, 9, 11)");
  replace(labels, 3, (hsize_t[]){8, 10, 12}, H5T_STD_I16LE, -1);
  assert_refused(shape, "label -1");
  replace(image, 4, (hsize_t[]){2, 8, 10, 12}, H5T_STD_I16LE, 0); /* whole numbers are an image too */
  VolumeSet *set;
  require_ok(engine_volumes_open(path, shape, &set));
  engine_volumes_close(&set);
}

static void bad_attributes_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *object, *name;
    double values[3];
    hsize_t count;
  } bad[] = {{"volumes/volume 0", "spacing_mm", {1, 0, 1}, 3},
             {"volumes/volume 0", "spacing_mm", {1, 1, NAN}, 3},
             {"volumes/volume 0", "spacing_mm", {1, 1}, 2},
             {"volumes/volume 0/image", "mean", {INFINITY, 0}, 2},
             {"volumes/volume 0/image", "standard_deviation", {1, -1}, 2}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    write_file();
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    assert_true(H5Adelete_by_name(file, bad[i].object, bad[i].name, H5P_DEFAULT) >= 0);
    hid_t space = H5Screate_simple(1, &bad[i].count, NULL);
    hid_t attribute = H5Acreate_by_name(file, bad[i].object, bad[i].name, H5T_IEEE_F64LE, space, H5P_DEFAULT,
                                        H5P_DEFAULT, H5P_DEFAULT);
    assert_true(attribute >= 0 && H5Awrite(attribute, H5T_NATIVE_DOUBLE, bad[i].values) >= 0);
    H5Aclose(attribute);
    H5Sclose(space);
    H5Fclose(file);
    assert_refused(shape, bad[i].name);
  }
}

/* ---- Patches ------------------------------------------------------------------------------------------------------ */

enum { BATCH = 6, VOXELS = 8 * 10 * 12 };

typedef struct Patches {
  float images[BATCH * CHANNELS * VOXELS];
  int32_t labels[BATCH * VOXELS];
} Patches;

/* A step of BATCH patches in micro-batches. */
static void draw_step(VolumeSet *set, uint64_t step, int64_t micro_batch, Patches *patches) {
  StepPlace at = {SEED, step, BATCH, (int64_t)step * BATCH};
  for (int64_t first = 0; first < BATCH; first += micro_batch) {
    int64_t count = BATCH - first < micro_batch ? BATCH - first : micro_batch;
    require_ok(engine_volumes_batch(set, at, first, count, patches->images + first * CHANNELS * VOXELS,
                                    patches->labels + first * VOXELS));
  }
  int64_t counted = 0;
  for (int64_t i = 0; i < BATCH * VOXELS; i++)
    counted += patches->labels[i] != VL_IGNORED_LABEL;
  assert_int_equal(engine_volumes_counted(set, at), counted);
}

static void micro_batches_change_nothing(void **state) {
  (void)state;
  VolumeSet *set = open_file();
  Patches *whole = vl_allocate(sizeof *whole), *parts = vl_allocate(sizeof *parts);
  for (uint64_t step = 0; step < 4; step++) {
    draw_step(set, step, BATCH, whole);
    for (int64_t micro_batch = 1; micro_batch < BATCH; micro_batch++) {
      draw_step(set, step, micro_batch, parts);
      assert_memory_equal(whole, parts, sizeof *whole);
    }
  }
  draw_step(set, 2, BATCH, whole); /* and a step does not need those before it */
  draw_step(set, 3, BATCH, parts);
  assert_memory_not_equal(whole->images, parts->images, sizeof whole->images);
  VolumeSet *again = open_file();
  draw_step(again, 3, BATCH, whole);
  assert_memory_equal(whole, parts, sizeof *whole);
  engine_volumes_close(&again);
  engine_volumes_close(&set);
  free(whole);
  free(parts);
}

/* Where a patch of a volume starts, from its first value. */
static VolumeBox locate(int64_t number, const float *image, const int32_t *labels) {
  VolumeBox box;
  double mean, deviation;
  int64_t first = 0;
  while (labels[first] == VL_IGNORED_LABEL)
    first++;
  statistics_of(number, &mean, &deviation);
  int64_t code = llround((double)image[first] * deviation + mean) - number * 1000000;
  int64_t place[3] = {code / 10000, code / 100 % 100, code % 100},
          at[3] = {first / 120, first / 12 % 10, first % 12};
  for (int32_t i = 0; i < 3; i++) {
    box.start[i] = place[i] - at[i];
    box.size[i] = shape.patch[i];
  }
  return box;
}

/* Patches hold what is at their place, all of an epoch's volumes once, volumes that are too small in the
 * middle; one in three is around a voxel of a class drawn among those there are, so the rare class is seen
 * far more often than by chance. */
static void patches_are_drawn_as_they_should_be(void **state) {
  (void)state;
  enum { STEPS = 200 };
  VolumeSet *set = open_file();
  Patches *patches = vl_allocate(sizeof *patches);
  EpochOrder order = {0};
  int64_t drawn[TRAINING] = {0}, rare = 0, starts[20] = {0};
  for (uint64_t step = 0; step < STEPS; step++) {
    draw_step(set, step, BATCH, patches);
    for (int64_t n = 0; n < BATCH; n++) {
      const float *image = patches->images + n * CHANNELS * VOXELS;
      const int32_t *labels = patches->labels + n * VOXELS;
      int64_t number = engine_order_at(&order, SEED, TRAINING, (int64_t)step * BATCH + n);
      VolumeBox box = locate(number, image, labels);
      if (step < 3) check_box(number, box, image, labels);
      drawn[number]++;
      for (int32_t i = 0; i < 3; i++) {
        int64_t room = sizes[number][i] - shape.patch[i];
        assert_true(room > 0 ? box.start[i] >= 0 && box.start[i] <= room : box.start[i] == -(-room / 2));
      }
      if (number != 0) continue;
      starts[box.start[0]]++;
      bool has_rare = false;
      for (int64_t i = 0; i < VOXELS; i++)
        has_rare = has_rare || labels[i] == 3;
      rare += has_rare;
    }
  }
  for (int64_t number = 0; number < TRAINING; number++)
    assert_int_equal(drawn[number], STEPS * BATCH / TRAINING);
  /* Of volume 0 a patch anywhere has the two voxels of class 3, at (1, 1, 0..1), when it starts at or before
   * (1, 1, 1): with probability 2/13 * 2/15 * 2/17 < 0.003; one around a voxel does half of the time, when
   * the class is this one: 1/6 of 400 patches are 67, give or take 7.5 (one sigma). */
  assert_in_range(rare, 67 - 30, 67 + 30);
  for (int64_t start = 0; start <= 12; start++)
    assert_true(starts[start] > 0);
  engine_order_clear(&order);
  engine_volumes_close(&set);
  free(patches);
}

/* ---- Phantoms ------------------------------------------------------------------------------------------------------ */

static void phantoms_are_what_they_say(void **state) {
  (void)state;
  enum { ORGANS = 3, COUNT = 12 };
  VolumeShape of = {2, ORGANS + 1, {24, 24, 24}};
  VolumeSet *set;
  require_ok(engine_volumes_open("phantoms:12+3", of, &set));
  assert_int_equal(engine_volumes_count(set, false), COUNT);
  assert_int_equal(engine_volumes_count(set, true), 3);
  for (int64_t n = 0; n < COUNT; n++) {
    const Volume *volume = engine_volume(set, false, n);
    int64_t voxels = 1, of_class[ORGANS + 1] = {0};
    for (int32_t i = 0; i < 3; i++) {
      assert_in_range(volume->size[i], 18, 41);
      voxels *= volume->size[i];
    }
    assert_true(volume->spacing_mm[0] > volume->spacing_mm[1] &&
                volume->spacing_mm[1] == volume->spacing_mm[2]);
    VolumeBox whole = {{0, 0, 0}, {volume->size[0], volume->size[1], volume->size[2]}};
    float *image = vl_allocate((size_t)(2 * voxels) * sizeof *image), part[2 * 4 * 5 * 6];
    int32_t *labels = vl_allocate((size_t)voxels * sizeof *labels), some[4 * 5 * 6];
    require_ok(engine_volume_read(set, false, n, whole, image, labels));
    for (int64_t i = 0; i < voxels; i++)
      of_class[labels[i]]++;
    for (int32_t c = 1; c <= ORGANS; c++) /* each organ is there, none is all there is */
      assert_in_range(of_class[c], voxels / 1000, voxels / 3);
    assert_true(of_class[0] > voxels / 3);
    VolumeBox box = {{7, 6, 5}, {4, 5, 6}}; /* a part is that part of the whole */
    require_ok(engine_volume_read(set, false, n, box, part, some));
    for (int64_t i = 0; i < 120; i++) {
      int64_t at = ((7 + i / 30) * volume->size[1] + 6 + i / 6 % 5) * volume->size[2] + 5 + i % 6;
      assert_true(part[i] == image[at] && part[120 + i] == image[voxels + at] && some[i] == labels[at]);
    }
    free(image);
    free(labels);
  }
  assert_memory_not_equal(engine_volume(set, false, 0), engine_volume(set, true, 0), sizeof(Volume));
  engine_volumes_close(&set);
}

/* No threshold tells the organs apart, but their means differ. */
static void phantoms_are_neither_trivial_nor_hopeless(void **state) {
  (void)state;
  VolumeShape of = {1, 3, {32, 32, 32}};
  VolumeSet *set;
  require_ok(engine_volumes_open("phantoms:4+1", of, &set));
  double sums[3] = {0}, squares[3] = {0}, counts[3] = {0};
  for (int64_t n = 0; n < 4; n++) {
    const int64_t *size = engine_volume(set, false, n)->size;
    int64_t voxels = size[0] * size[1] * size[2];
    float *image = vl_allocate((size_t)voxels * sizeof *image);
    int32_t *labels = vl_allocate((size_t)voxels * sizeof *labels);
    require_ok(engine_volume_read(set, false, n, (VolumeBox){{0, 0, 0}, {size[0], size[1], size[2]}}, image,
                                  labels));
    for (int64_t i = 0; i < voxels; i++) {
      sums[labels[i]] += (double)image[i];
      squares[labels[i]] += (double)image[i] * (double)image[i];
      counts[labels[i]]++;
    }
    free(image);
    free(labels);
  }
  double mean[3], deviation[3];
  for (int32_t c = 0; c < 3; c++) {
    mean[c] = sums[c] / counts[c];
    deviation[c] = sqrt(squares[c] / counts[c] - mean[c] * mean[c]);
  }
  double apart = fabs(mean[1] - mean[2]) / (deviation[1] + deviation[2]);
  assert_true(apart > 0.3 && apart < 2.0);
  assert_true(mean[1] > mean[0] && mean[2] > mean[0]);
  engine_volumes_close(&set);
}

static void bad_numbers_of_phantoms_are_refused(void **state) {
  (void)state;
  static const char *const bad[] = {"phantoms:", "phantoms:3", "phantoms:0+1", "phantoms:3+0",
                                    "phantoms:3+x"};
  VolumeSet *set;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    Status status = engine_volumes_open(bad[i], shape, &set);
    assert_int_equal(status.code, VL_INVALID);
    assert_null(set);
  }
  assert_false(engine_is_phantoms("phantoms.h5"));
}

/* ---- Dice ---------------------------------------------------------------------------------------------------------- */

static void dice_is_as_defined(void **state) {
  (void)state;
  /* Class 1: two predicted, three true, one both: 2/5. Class 2: all right. Class 3: predicted, not true: 0.
   * Class 4: neither. One voxel does not count. */
  static const int32_t predicted[] = {0, 1, 1, 0, 0, 2, 3, 4},
                       truth[] = {0, 1, 0, 1, 1, 2, 0, VL_IGNORED_LABEL};
  static const int32_t second[] = {1, 1, 0, 0, 0, 0, 0, 0};
  DiceSums sums = {0};
  engine_dice_add(&sums, 5, predicted, truth, 8);
  assert_true(engine_dice_of_class(&sums, 0) == 2.0 * 1 / (3 + 3));
  assert_true(engine_dice_of_class(&sums, 1) == 2.0 * 1 / (2 + 3));
  assert_true(engine_dice_of_class(&sums, 2) == 1.0);
  assert_true(engine_dice_of_class(&sums, 3) == 0.0);
  assert_true(isnan(engine_dice_of_class(&sums, 4)));
  assert_true(fabs(engine_dice_mean(&sums, 5) - (0.4 + 1.0 + 0.0) / 3.0) < 1e-15);
  engine_dice_add(&sums, 5, second, second, 8); /* classes 2 to 4 are not in this volume */
  assert_true(engine_dice_of_class(&sums, 1) == (0.4 + 1.0) / 2.0);
  assert_true(engine_dice_of_class(&sums, 2) == 1.0 && engine_dice_of_class(&sums, 3) == 0.0);
  DiceSums none = {0};
  assert_true(isnan(engine_dice_mean(&none, 5)));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_was_written_comes_back),
      cmocka_unit_test(a_file_that_is_not_finished_leaves_nothing),
      cmocka_unit_test(what_is_not_such_a_file_is_refused),
      cmocka_unit_test(missing_parts_are_named),
      cmocka_unit_test(parts_that_do_not_fit_are_refused),
      cmocka_unit_test(bad_attributes_are_refused),
      cmocka_unit_test(micro_batches_change_nothing),
      cmocka_unit_test(patches_are_drawn_as_they_should_be),
      cmocka_unit_test(phantoms_are_what_they_say),
      cmocka_unit_test(phantoms_are_neither_trivial_nor_hopeless),
      cmocka_unit_test(bad_numbers_of_phantoms_are_refused),
      cmocka_unit_test(dice_is_as_defined),
  };
  if (!mkdtemp(directory)) return 1;
  snprintf(path, sizeof path, "%s/volumes.h5", directory);
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  unlink(path);
  rmdir(directory);
  return failed;
}
