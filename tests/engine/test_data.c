/* Data files: read as they are meant, each sample once an epoch whatever the batch; files that are not what
 * they should be are refused with the reason. */
#include "engine/internal.h"
#include "tests/graph/networks.h"
#include <hdf5.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { CHANNELS = 3, SIZE = 4, ELEMENTS = CHANNELS * SIZE * SIZE, SAMPLES = 10, HELD_OUT = 4, CLASSES = 5 };
static char directory[] = "/tmp/vramlab-data-XXXXXX";
static char path[64];

typedef struct Part {
  int rank;
  hsize_t shape[4];
  hid_t type; /* of the file; 0: the part's usual one */
} Part;

/* What a file holds; a part of rank 0 is left out. */
typedef struct Layout {
  Part images, labels, held_out_images, held_out_labels;
  int32_t first_label; /* labels count up from it, modulo CLASSES */
} Layout;

static Layout usual(void) {
  return (Layout){.images = {4, {SAMPLES, CHANNELS, SIZE, SIZE}, 0},
                  .labels = {1, {SAMPLES}, 0},
                  .held_out_images = {4, {HELD_OUT, CHANNELS, SIZE, SIZE}, 0},
                  .held_out_labels = {1, {HELD_OUT}, 0}};
}

/* Sample n of images is n * 10 everywhere but in its first element, which is 255, and its second, 0. */
static void write_part(hid_t file, const char *name, const Part *part, bool labels, int32_t first_label) {
  if (part->rank == 0) return;
  hsize_t elements = 1;
  for (int i = 0; i < part->rank; i++)
    elements *= part->shape[i];
  int32_t *values = vl_allocate((size_t)(elements + 1) * sizeof *values);
  hsize_t per_sample = part->shape[0] > 0 ? elements / part->shape[0] : 1;
  for (hsize_t i = 0; i < elements; i++) {
    int32_t sample = (int32_t)(i / per_sample);
    int32_t pixel = i % per_sample == 0 ? 255 : i % per_sample == 1 ? 0 : sample * 10;
    values[i] = labels ? (sample % CLASSES) + first_label : pixel;
  }
  hid_t space = H5Screate_simple(part->rank, part->shape, NULL);
  hid_t type = part->type ? part->type : labels ? H5T_STD_I32LE : H5T_STD_U8LE;
  hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  assert_true(set >= 0);
  if (H5Tget_class(type) != H5T_STRING) {
    assert_true(H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
  }
  H5Dclose(set);
  H5Sclose(space);
  free(values);
}

static void write_file(const Layout *layout) {
  hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  assert_true(file >= 0);
  write_part(file, "images", &layout->images, false, 0);
  write_part(file, "labels", &layout->labels, true, layout->first_label);
  write_part(file, "held_out_images", &layout->held_out_images, false, 0);
  write_part(file, "held_out_labels", &layout->held_out_labels, true, layout->first_label);
  H5Fclose(file);
}

static DataSet *open_usual(void) {
  Layout layout = usual();
  DataSet *data = NULL;
  write_file(&layout);
  require_ok(engine_data_open(path, CHANNELS, SIZE, CLASSES, &data));
  return data;
}

/* ---- Good files -------------------------------------------------------------------------------------------------------- */

static void bytes_become_minus_one_to_one(void **state) {
  (void)state;
  DataSet *data = open_usual();
  float images[HELD_OUT * ELEMENTS];
  int32_t labels[HELD_OUT];
  assert_int_equal(engine_data_count(data, false), SAMPLES);
  assert_int_equal(engine_data_count(data, true), HELD_OUT);
  require_ok(engine_data_held_out(data, 0, HELD_OUT, images, labels));
  for (int32_t n = 0; n < HELD_OUT; n++) {
    assert_true(images[n * ELEMENTS] == 1.0F && images[n * ELEMENTS + 1] == -1.0F);
    for (int32_t i = 2; i < ELEMENTS; i++)
      assert_true(images[n * ELEMENTS + i] == (float)(n * 10) / 127.5F - 1.0F);
    assert_int_equal(labels[n], n % CLASSES);
  }
  engine_data_close(&data);
  assert_null(data);
}

/* Each part by its own type: float images beside byte ones are taken as they are. */
static void floats_are_taken_as_they_are(void **state) {
  (void)state;
  for (int32_t training = 0; training < 2; training++) {
    Layout layout = usual();
    *(training ? &layout.images.type : &layout.held_out_images.type) = H5T_IEEE_F32LE;
    write_file(&layout);
    DataSet *data = NULL;
    float image[ELEMENTS];
    int32_t label;
    require_ok(engine_data_open(path, CHANNELS, SIZE, CLASSES, &data));
    require_ok(engine_data_held_out(data, 1, 1, image, &label));
    assert_true(image[0] == (training ? 1.0F : 255.0F));
    require_ok(engine_data_batch(data, 0, 0, 1, image, &label));
    assert_true(image[0] == (training ? 255.0F : 1.0F));
    engine_data_close(&data);
  }
}

static void held_out_samples_wrap_at_the_end(void **state) {
  (void)state;
  DataSet *data = open_usual();
  float images[3 * ELEMENTS];
  int32_t labels[3];
  require_ok(engine_data_held_out(data, HELD_OUT - 1, 3, images, labels));
  assert_int_equal(labels[0], (HELD_OUT - 1) % CLASSES);
  assert_int_equal(labels[1], 0);
  assert_int_equal(labels[2], 1);
  engine_data_close(&data);
}

/* The order in which samples are drawn over epochs, read from their pixels. */
static void drawn_order(uint64_t seed, int64_t most, int64_t epochs, int32_t *order) {
  DataSet *data = open_usual();
  float *images = vl_allocate((size_t)(most * ELEMENTS) * sizeof *images);
  int32_t *labels = vl_allocate((size_t)most * sizeof *labels);
  for (int64_t drawn = 0; drawn < epochs * SAMPLES;) {
    int64_t left = SAMPLES - drawn % SAMPLES, batch = left < most ? left : most;
    require_ok(engine_data_batch(data, seed, drawn, batch, images, labels));
    for (int64_t n = 0; n < batch; n++, drawn++) {
      int32_t sample = (int32_t)((images[n * ELEMENTS + 2] + 1.0F) * 12.75F + 0.5F);
      assert_int_equal(labels[n], sample % CLASSES);
      order[drawn] = sample;
    }
  }
  free(images);
  free(labels);
  engine_data_close(&data);
}

static void every_epoch_draws_each_sample_once(void **state) {
  (void)state;
  int32_t order[4 * SAMPLES], other[4 * SAMPLES], reseeded[4 * SAMPLES];
  drawn_order(1, 5, 4, order);
  for (int32_t epoch = 0; epoch < 4; epoch++) {
    bool seen[SAMPLES] = {false};
    for (int32_t i = 0; i < SAMPLES; i++) {
      int32_t sample = order[epoch * SAMPLES + i];
      assert_in_range(sample, 0, SAMPLES - 1);
      assert_false(seen[sample]);
      seen[sample] = true;
    }
  }
  assert_memory_not_equal(order, order + SAMPLES, SAMPLES * sizeof *order);
  drawn_order(1, 4, 4, other); /* the last batch of an epoch is smaller */
  assert_memory_equal(order, other, sizeof order);
  drawn_order(2, 5, 4, reseeded);
  assert_memory_not_equal(order, reseeded, sizeof order);
}

/* A run that goes on in the second half of the fourth epoch reads what the whole run read there. */
static void a_later_step_does_not_need_the_earlier_ones(void **state) {
  (void)state;
  int32_t order[SAMPLES * 4], labels[5];
  drawn_order(1, 5, 4, order);
  DataSet *data = open_usual();
  float images[5 * ELEMENTS];
  require_ok(engine_data_batch(data, 1, 35, 5, images, labels));
  for (int32_t n = 0; n < 5; n++)
    assert_int_equal(labels[n], order[35 + n] % CLASSES);
  require_ok(engine_data_batch(data, 1, 0, 5, images, labels));
  for (int32_t n = 0; n < 5; n++)
    assert_int_equal(labels[n], order[n] % CLASSES);
  engine_data_close(&data);
}

/* ---- Bad files ---------------------------------------------------------------------------------------------------------- */

static void assert_refused(const char *place) {
  DataSet *data = NULL;
  Status status = engine_data_open(path, CHANNELS, SIZE, CLASSES, &data);
  if (status.code != VL_INVALID || !strstr(status.message, place) || !strstr(status.message, path)) {
    fail_msg("expected a refusal that names '%s', got %s: %s", place, vl_status_name(status.code),
             status.message);
  }
  assert_null(data);
}

static void what_is_not_hdf5_is_refused(void **state) {
  (void)state;
  unlink(path);
  assert_refused("missing or not an HDF5 file");
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  fputs("label,pixels\n1,0 0 0\n", file);
  fclose(file);
  assert_refused("missing or not an HDF5 file");
  Layout layout = usual();
  write_file(&layout);
  assert_int_equal(truncate(path, 900), 0);
  assert_refused("HDF5");
}

static void missing_datasets_are_named(void **state) {
  (void)state;
  for (int32_t i = 0; i < 4; i++) {
    Layout layout = usual();
    Part *parts[] = {&layout.images, &layout.labels, &layout.held_out_images, &layout.held_out_labels};
    static const char *const names[] = {"'images'", "'labels'", "'held_out_images'", "'held_out_labels'"};
    parts[i]->rank = 0;
    write_file(&layout);
    assert_refused(names[i]);
  }
  Layout layout = usual();
  layout.images.rank = 0;
  write_file(&layout);
  hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
  H5Gclose(H5Gcreate2(file, "images", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H5Fclose(file);
  assert_refused("'images'");
}

static void wrong_shapes_are_refused(void **state) {
  (void)state;
  static const struct {
    Part images, labels;
    const char *place;
  } cases[] = {
      {{3, {SAMPLES, SIZE, SIZE}, 0}, {1, {SAMPLES}, 0}, "must be (N, C, H, W)"},
      {{4, {SAMPLES, CHANNELS, SIZE, SIZE}, 0}, {2, {SAMPLES, 1}, 0}, "(N)"},
      {{4, {SAMPLES, CHANNELS, SIZE, SIZE}, 0}, {1, {SAMPLES + 1}, 0}, "(N)"},
      {{4, {0, CHANNELS, SIZE, SIZE}, 0}, {1, {0}, 0}, "N of at least 1"},
      {{4, {SAMPLES, 1, SIZE, SIZE}, 0},
       {1, {SAMPLES}, 0},
       "holds 1 x 4 x 4 images, the case takes 3 x 4 x 4"},
      {{4, {SAMPLES, CHANNELS, SIZE, SIZE + 1}, 0}, {1, {SAMPLES}, 0}, "3 x 4 x 5"},
      {{4, {SAMPLES, CHANNELS, 8, 8}, 0}, {1, {SAMPLES}, 0}, "--set size=8"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Layout layout = usual();
    layout.images = cases[i].images;
    layout.labels = cases[i].labels;
    write_file(&layout);
    assert_refused(cases[i].place);
    layout = usual();
    layout.held_out_images = cases[i].images;
    layout.held_out_labels = cases[i].labels;
    write_file(&layout);
    assert_refused(cases[i].place);
  }
}

static void wrong_types_are_refused(void **state) {
  (void)state;
  Layout layout = usual();
  layout.labels.type = H5T_IEEE_F32LE;
  write_file(&layout);
  assert_refused("'labels'");
  layout = usual();
  layout.images.type = H5T_STD_I16LE;
  write_file(&layout);
  assert_refused("'images'");
  layout = usual();
  layout.images.type = H5T_C_S1;
  write_file(&layout);
  assert_refused("'images'");
}

/* Found before the first step, not in the middle of an epoch. */
static void labels_out_of_range_are_refused(void **state) {
  (void)state;
  Layout layout = usual();
  layout.first_label = 1; /* 1 to 5, for classes 0 to 4 */
  write_file(&layout);
  assert_refused("label 5");
  layout.first_label = -1;
  write_file(&layout);
  assert_refused("label -1");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bytes_become_minus_one_to_one),
      cmocka_unit_test(floats_are_taken_as_they_are),
      cmocka_unit_test(held_out_samples_wrap_at_the_end),
      cmocka_unit_test(every_epoch_draws_each_sample_once),
      cmocka_unit_test(a_later_step_does_not_need_the_earlier_ones),
      cmocka_unit_test(what_is_not_hdf5_is_refused),
      cmocka_unit_test(missing_datasets_are_named),
      cmocka_unit_test(wrong_shapes_are_refused),
      cmocka_unit_test(wrong_types_are_refused),
      cmocka_unit_test(labels_out_of_range_are_refused),
  };
  if (!mkdtemp(directory)) return 1;
  snprintf(path, sizeof path, "%s/data.h5", directory);
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  unlink(path);
  rmdir(directory);
  return failed;
}
