/* NIfTI-1: images of every type, byte order, scaling and orientation are read as they are meant; headers that
 * make no sense, and files that hold less than theirs say, are refused with the place. */
#include "engine/engine.h"
#include "tests/engine/nifti_bytes.h"
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

static char directory[] = "/tmp/vramlab-nifti-XXXXXX";
static char plain[64], compressed[64];

enum { I8 = 256, U8 = 2, I16 = 4, U16 = 512, I32 = 8, U32 = 768, I64 = 1024, U64 = 1280, F32 = 16, F64 = 64 };
static const struct {
  int32_t code, bits;
} types[] = {{I8, 8},   {U8, 8},   {I16, 16}, {U16, 16}, {I32, 32},
             {U32, 32}, {I64, 64}, {U64, 64}, {F32, 32}, {F64, 64}};

static void put_value(uint8_t *to, int32_t code, int64_t value) {
  const float single = (float)value;
  const double real = (double)value;
  if (code == F32)
    memcpy(to, &single, sizeof single);
  else if (code == F64)
    memcpy(to, &real, sizeof real);
  else
    memcpy(to, &value,
           code == I8 || code == U8     ? 1
           : code == I16 || code == U16 ? 2
           : code == I32 || code == U32 ? 4
                                        : 8);
}

static void swap(uint8_t *bytes, int32_t width) {
  for (int32_t i = 0; i < width / 2; i++) {
    uint8_t kept = bytes[i];
    bytes[i] = bytes[width - 1 - i];
    bytes[width - 1 - i] = kept;
  }
}

/* The other byte order: numbers of 2 and 4 bytes where the format has them. */
static void swap_header(uint8_t *header) {
  swap(header, 4);
  for (int32_t at = 40; at < 56; at += 2)
    swap(header + at, 2);
  for (int32_t at = 68; at < 76; at += 2)
    swap(header + at, 2);
  for (int32_t at = 76; at < 120; at += 4)
    swap(header + at, 4);
  for (int32_t at = 252; at < 256; at += 2)
    swap(header + at, 2);
  for (int32_t at = 256; at < 328; at += 4)
    swap(header + at, 4);
}

static void write_bytes(const char *path, const uint8_t *data, size_t bytes) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(data, 1, bytes, file), bytes);
  fclose(file);
}

/* Through gzip(1), which the tests' machines have. */
static void compress_file(void) {
  char command[192];
  snprintf(command, sizeof command, "gzip -c '%s' >'%s'", plain, compressed);
  assert_int_equal(system(command), 0);
}

/* A file of 2 x 3 x 4 voxels, whose values count up from `first`; returns its bytes, to be freed. */
static const int32_t extent[3] = {2, 3, 4};
enum { VOXELS = 24 };
static uint8_t *usual(int32_t code, int32_t bits, int32_t channels, int64_t first, size_t *bytes) {
  int32_t width = bits / 8;
  *bytes = NIFTI_VOXELS_AT + (size_t)(VOXELS * channels * width);
  uint8_t *data = vl_allocate(*bytes);
  nifti_write_header(data, extent, channels, code, bits);
  for (int32_t i = 0; i < VOXELS * channels; i++)
    put_value(data + NIFTI_VOXELS_AT + (ptrdiff_t)i * width, code, first + i);
  return data;
}

static void skip_without_library(void) {
  if (!vl_nifti_is_there()) skip();
}

/* ---- Good files ------------------------------------------------------------------------------------------------------ */

static void check_usual(const char *path, int32_t channels, int64_t first) {
  NiftiImage image;
  require_ok(vl_nifti_read(path, &image));
  assert_int_equal(image.channels, channels);
  assert_memory_equal(image.size, ((int64_t[]){4, 3, 2}), sizeof image.size);
  assert_true(image.spacing_mm[0] == 3.0 && image.spacing_mm[1] == 2.0 && image.spacing_mm[2] == 1.0);
  for (int32_t i = 0; i < VOXELS * channels; i++)
    assert_true(image.values[i] == (float)(first + i));
  vl_nifti_clear(&image);
}

static void every_type_and_byte_order_is_read(void **state) {
  (void)state;
  skip_without_library();
  for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
    bool has_sign =
        types[t].code != U8 && types[t].code != U16 && types[t].code != U32 && types[t].code != U64;
    for (int32_t channels = 1; channels < 4; channels++) {
      size_t bytes;
      int64_t first = has_sign ? -30 : 100;
      uint8_t *data = usual(types[t].code, types[t].bits, channels, first, &bytes);
      write_bytes(plain, data, bytes);
      check_usual(plain, channels, first);
      compress_file();
      check_usual(compressed, channels, first);
      swap_header(data);
      for (size_t at = NIFTI_VOXELS_AT; at < bytes; at += (size_t)types[t].bits / 8)
        swap(data + at, types[t].bits / 8);
      write_bytes(plain, data, bytes);
      check_usual(plain, channels, first);
      free(data);
    }
  }
}

static void values_are_scaled(void **state) {
  (void)state;
  skip_without_library();
  static const struct {
    float slope, intercept;
    double factor, added;
  } cases[] = {
      {0.5F, -3.0F, 0.5, -3.0}, {0.0F, 7.0F, 1.0, 0.0}, {-2.0F, 0.0F, -2.0, 0.0}, {NAN, 7.0F, 1.0, 0.0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    size_t bytes;
    NiftiImage image;
    uint8_t *data = usual(I16, 16, 1, -5, &bytes);
    nifti_put_float(data, 112, cases[i].slope);
    nifti_put_float(data, 116, cases[i].intercept);
    write_bytes(plain, data, bytes);
    require_ok(vl_nifti_read(plain, &image));
    for (int32_t v = 0; v < VOXELS; v++)
      assert_true(image.values[v] == (float)((v - 5) * cases[i].factor + cases[i].added));
    vl_nifti_clear(&image);
    free(data);
  }
}

static void units_of_length_become_millimetres(void **state) {
  (void)state;
  uint8_t header[NIFTI_VOXELS_AT];
  NiftiHeader read;
  static const double to_mm[] = {1.0, 1000.0, 1.0, 0.001};
  for (uint8_t units = 0; units < 4; units++) {
    nifti_write_header(header, extent, 1, U8, 8);
    header[123] = units | 8; /* and seconds */
    require_ok(vl_nifti_check_header("x.nii", header, sizeof header, 10000, &read));
    for (int32_t i = 0; i < 3; i++)
      assert_true(fabs(read.spacing_mm[i] - (i + 1) * to_mm[units]) <= 1e-12);
  }
}

/* Stored from right to left and before to behind, and with axes in another order, by affine and by
 * quaternion. */
static void volumes_are_turned(void **state) {
  (void)state;
  skip_without_library();
  static const struct {
    float affine[12];
    int32_t axis[3]; /* of depth, height, width */
    bool backwards[3];
  } cases[] = {
      {{1, 0, 0, 5, 0, 2, 0, 6, 0, 0, 3, 7}, {2, 1, 0}, {false, false, false}},
      {{-1, 0, 0, 5, 0, -2, 0, 6, 0, 0, 3, 7}, {2, 1, 0}, {false, true, true}},
      {{0, 2, 0, 0, 0, 0, -3, 0, 1, 0, 0, 0}, {0, 2, 1}, {false, true, false}},
      {{0, 0, 3, 0, -1, 0.1F, 0, 0, 0, -2, 0.1F, 0}, {1, 0, 2}, {true, true, false}}, /* slightly oblique */
  };
  for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
    size_t bytes;
    NiftiImage image;
    uint8_t *data = usual(U8, 8, 2, 0, &bytes);
    nifti_put_short(data, 254, 1);
    for (int32_t i = 0; i < 12; i++)
      nifti_put_float(data, 280 + 4 * i, cases[n].affine[i]);
    write_bytes(plain, data, bytes);
    require_ok(vl_nifti_read(plain, &image));
    for (int32_t i = 0; i < 3; i++) {
      assert_int_equal(image.size[i], extent[cases[n].axis[i]]);
      assert_true(image.spacing_mm[i] == cases[n].axis[i] + 1);
    }
    for (int64_t i = 0; i < 2 * VOXELS; i++) {
      int64_t v = i % VOXELS;
      int64_t place[3] = {v / (image.size[1] * image.size[2]), v / image.size[2] % image.size[1],
                          v % image.size[2]};
      int64_t from[3];
      for (int32_t a = 0; a < 3; a++)
        from[cases[n].axis[a]] = cases[n].backwards[a] ? image.size[a] - 1 - place[a] : place[a];
      assert_true(image.values[i] == (float)(i / VOXELS * VOXELS + (from[2] * 3 + from[1]) * 2 + from[0]));
    }
    vl_nifti_clear(&image);
    free(data);
  }
  /* A half turn around the third axis. */
  size_t bytes;
  NiftiImage image;
  uint8_t *data = usual(U8, 8, 1, 0, &bytes);
  nifti_put_short(data, 252, 1);
  nifti_put_float(data, 264, 1.0F);
  nifti_put_float(data, 76, 1.0F);
  write_bytes(plain, data, bytes);
  require_ok(vl_nifti_read(plain, &image));
  for (int32_t v = 0; v < VOXELS; v++)
    assert_true(image.values[v] == (float)(v / 6 * 6 + 5 - v % 6));
  vl_nifti_clear(&image);
  free(data);
}

/* ---- Bad ones -------------------------------------------------------------------------------------------------------- */

static void assert_refused(const uint8_t *header, int64_t bytes, int64_t file_bytes, const char *place) {
  NiftiHeader read;
  Status status = vl_nifti_check_header("x.nii", header, bytes, file_bytes, &read);
  if (status.code != VL_INVALID || !strstr(status.message, place) || !strstr(status.message, "x.nii"))
    fail_msg("expected a refusal that says '%s', got %s: %s", place, vl_status_name(status.code),
             status.message);
}

/* One field of a good header at a time. */
typedef struct Change {
  int32_t offset;
  bool is_float;
  double value;
  const char *place;
} Change;

static const Change changes[] = {
    {40, false, 0, "dim[0] is 0"},      {40, false, 2, "dim[0] is 2"},
    {40, false, 8, "dim[0] is 8"},      {40, false, -1, "dim[0] is -1"},
    {42, false, 0, "dim[1] is 0"},      {44, false, -32768, "dim[2] is -32768"},
    {46, false, 32767, "truncated"},    {70, false, 0, "datatype 0"},
    {70, false, 32, "datatype 32"},   /* complex */
    {70, false, 128, "datatype 128"}, /* color */
    {70, false, 1536, "datatype 1536"}, {72, false, 16, "bitpix is 16"},
    {72, false, -8, "bitpix is -8"},    {80, true, 0.0, "pixdim[1]"},
    {84, true, NAN, "pixdim[2]"},       {88, true, INFINITY, "pixdim[3]"},
    {88, true, 1e30, "pixdim[3]"},      {108, true, 0.0, "vox_offset"},
    {108, true, 351.0, "vox_offset"},   {108, true, 352.5, "vox_offset"},
    {108, true, -352.0, "vox_offset"},  {108, true, NAN, "vox_offset"},
    {108, true, 1e20, "vox_offset"},    {108, true, 353.0, "truncated"},
    {116, true, INFINITY, "scl_inter"},
};

static void absurd_headers_are_refused(void **state) {
  (void)state;
  uint8_t header[NIFTI_VOXELS_AT];
  NiftiHeader read;
  int64_t file_bytes = NIFTI_VOXELS_AT + VOXELS;
  nifti_write_header(header, extent, 1, U8, 8);
  require_ok(vl_nifti_check_header("x.nii", header, NIFTI_HEADER, file_bytes, &read));
  assert_refused(header, NIFTI_HEADER, file_bytes - 1, "truncated");
  for (int64_t bytes = 0; bytes < NIFTI_HEADER; bytes += 29)
    assert_refused(header, bytes, bytes, "of a header's 348");
  for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
    nifti_write_header(header, extent, 1, U8, 8);
    if (changes[i].is_float)
      nifti_put_float(header, changes[i].offset, (float)changes[i].value);
    else
      nifti_put_short(header, changes[i].offset, (int32_t)changes[i].value);
    if (strcmp(changes[i].place, "scl_inter") == 0) nifti_put_float(header, 112, 1.0F);
    assert_refused(header, NIFTI_HEADER, file_bytes, changes[i].place);
  }
  nifti_write_header(header, extent, 65, U8, 8);
  assert_refused(header, NIFTI_HEADER, 1 << 20, "dim[4] is 65");
  nifti_write_header(header, extent, 2, U8, 8);
  nifti_put_short(header, 40, 5);
  nifti_put_short(header, 50, 2);
  assert_refused(header, NIFTI_HEADER, 1 << 20, "dim[5] is 2");
  nifti_write_header(header, (int32_t[]){32767, 32767, 32767}, 64, F64, 64);
  assert_refused(header, NIFTI_HEADER, INT64_C(1) << 40, "truncated");
}

static void other_formats_are_named(void **state) {
  (void)state;
  uint8_t header[NIFTI_VOXELS_AT];
  const int32_t two = 540;
  nifti_write_header(header, extent, 1, U8, 8);
  memcpy(header, &two, sizeof two);
  assert_refused(header, NIFTI_HEADER, 1000, "NIfTI-2");
  swap(header, 4);
  assert_refused(header, NIFTI_HEADER, 1000, "NIfTI-2");
  nifti_write_header(header, extent, 1, U8, 8);
  memcpy(header + 344, "ni1", 4);
  assert_refused(header, NIFTI_HEADER, 1000, "pair");
  memcpy(header + 344, "\0\0\0", 4); /* ANALYZE 7.5 */
  assert_refused(header, NIFTI_HEADER, 1000, "not NIfTI-1");
  memset(header, 0, sizeof header);
  assert_refused(header, NIFTI_HEADER, 1000, "not NIfTI-1");
}

/* An orientation counts where its code says that it holds. */
static void orientations_must_be_finite(void **state) {
  (void)state;
  uint8_t header[NIFTI_VOXELS_AT];
  NiftiHeader read;
  for (int32_t i = 0; i < 18; i++) {
    nifti_write_header(header, extent, 1, U8, 8);
    nifti_put_float(header, 256 + 4 * i, NAN);
    require_ok(vl_nifti_check_header("x.nii", header, NIFTI_HEADER, 1000, &read));
    nifti_put_short(header, i < 6 ? 252 : 254, 1);
    assert_refused(header, NIFTI_HEADER, 1000, "orientation");
  }
}

static void assert_file_refused(const char *path, const char *place) {
  NiftiImage image;
  Status status = vl_nifti_read(path, &image);
  if (status.code == VL_OK || !strstr(status.message, place) || !strstr(status.message, path))
    fail_msg("expected a refusal that says '%s', got %s: %s", place, vl_status_name(status.code),
             status.message);
  assert_null(image.values);
}

static void files_with_less_than_they_say_are_refused(void **state) {
  (void)state;
  skip_without_library();
  size_t bytes;
  uint8_t *data = usual(I16, 16, 1, 0, &bytes);
  for (size_t kept = 0; kept < bytes; kept += 13) {
    write_bytes(plain, data, kept);
    assert_file_refused(plain, "truncated");
  }
  write_bytes(plain, data, bytes);
  compress_file();
  FILE *file = fopen(compressed, "rb");
  uint8_t packed[1024];
  assert_non_null(file);
  size_t size = fread(packed, 1, sizeof packed, file);
  fclose(file);
  for (size_t kept = 0; kept < size; kept += 7) {
    write_bytes(compressed, packed, kept);
    assert_file_refused(compressed, "");
  }
  nifti_put_short(data, 46, 400);
  write_bytes(plain, data, bytes);
  compress_file();
  assert_file_refused(compressed, "truncated");
  packed[size / 2] ^= 4;
  write_bytes(compressed, packed, size);
  assert_file_refused(compressed, compressed);
  packed[size / 2] ^= 4;
  packed[size - 6] ^= 1; /* in the checksum */
  write_bytes(compressed, packed, size);
  assert_file_refused(compressed, "damaged or truncated");
  write_bytes(compressed, data, bytes); /* not compressed at all: read as it is */
  assert_file_refused(compressed, "");
  assert_file_refused("/nowhere/image.nii", "cannot read");
  assert_file_refused(directory, "");
  assert_file_refused("image.hdr", "ends in .nii");
  free(data);
}

/* Bytes changed at random never end in anything but an image or a refusal. */
static void damaged_files_do_no_harm(void **state) {
  (void)state;
  skip_without_library();
  enum { ROUNDS = 3000 };
  int32_t read = 0, refused = 0;
  uint64_t key = vl_random_key(1, 0, "damage");
  for (uint64_t round = 0; round < ROUNDS; round++) {
    size_t bytes;
    NiftiImage image;
    int32_t type = (int32_t)(vl_random_word(key, round, 0) % (sizeof types / sizeof *types));
    uint8_t *data = usual(types[type].code, types[type].bits, 1 + (int32_t)(round % 3), 0, &bytes);
    for (uint64_t i = 0; i < 1 + round % 6; i++) {
      uint32_t word = vl_random_word(key, round, 1 + i);
      data[(word >> 8) % NIFTI_VOXELS_AT] = (uint8_t)word;
    }
    write_bytes(plain, data, bytes - vl_random_word(key, round, 20) % 5 % bytes);
    Status status = vl_nifti_read(plain, &image);
    status.code == VL_OK ? read++ : refused++;
    if (status.code == VL_OK) assert_true(image.channels * image.size[0] * image.size[1] * image.size[2] > 0);
    if (status.code != VL_OK) assert_non_null(strstr(status.message, plain));
    vl_nifti_clear(&image);
    free(data);
  }
  assert_true(read > ROUNDS / 20 && refused > ROUNDS / 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_type_and_byte_order_is_read),
      cmocka_unit_test(values_are_scaled),
      cmocka_unit_test(units_of_length_become_millimetres),
      cmocka_unit_test(volumes_are_turned),
      cmocka_unit_test(absurd_headers_are_refused),
      cmocka_unit_test(other_formats_are_named),
      cmocka_unit_test(orientations_must_be_finite),
      cmocka_unit_test(files_with_less_than_they_say_are_refused),
      cmocka_unit_test(damaged_files_do_no_harm),
  };
  if (!mkdtemp(directory)) return 1;
  snprintf(plain, sizeof plain, "%s/image.nii", directory);
  snprintf(compressed, sizeof compressed, "%s/image.nii.gz", directory);
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  unlink(plain);
  unlink(compressed);
  rmdir(directory);
  return failed;
}
