/* NIfTI-1 images, read with nifticlib where the build has it. The library trusts headers: here they are
 * checked first, against each other and against the file. */
#include "engine/engine.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { HEADER_BYTES = 348, NIFTI_2_HEADER_BYTES = 540, LEAST_OFFSET = 352 };

typedef struct NiftiType {
  int32_t code, bits;
} NiftiType;
static const NiftiType types[] = {{2, 8},   {4, 16},   {8, 32},   {16, 32},   {64, 64},
                                  {256, 8}, {512, 16}, {768, 32}, {1024, 64}, {1280, 64}};

/* ---- The header ------------------------------------------------------------------------------------------------------ */

/* A header's bytes, possibly of the other byte order. */
typedef struct Bytes {
  const uint8_t *at;
  bool swapped;
} Bytes;

static uint32_t word_at(Bytes bytes, int32_t offset, int32_t width) {
  uint32_t word = 0;
  for (int32_t i = 0; i < width; i++) {
    int32_t from = bytes.swapped ? i : width - 1 - i;
    word = word << 8 | bytes.at[offset + from];
  }
  return word;
}

static int32_t short_at(Bytes bytes, int32_t offset) { return (int16_t)word_at(bytes, offset, 2); }

static double float_at(Bytes bytes, int32_t offset) {
  uint32_t word = word_at(bytes, offset, 4);
  float value;
  memcpy(&value, &word, sizeof value);
  return (double)value;
}

static Status check_kind(const char *path, Bytes *bytes) {
  uint32_t size = word_at(*bytes, 0, 4);
  bytes->swapped = size != HEADER_BYTES && size != NIFTI_2_HEADER_BYTES;
  size = word_at(*bytes, 0, 4);
  if (size == NIFTI_2_HEADER_BYTES) return vl_error(VL_INVALID, "%s is NIfTI-2; NIfTI-1 is read", path);
  const uint8_t *magic = bytes->at + 344;
  if (size == HEADER_BYTES && memcmp(magic, "ni1", 4) == 0)
    return vl_error(VL_INVALID, "%s is one of a pair of header and image; a single NIfTI-1 file is read",
                    path);
  if (size == HEADER_BYTES && memcmp(magic, "n+1", 4) == 0) return vl_ok();
  return vl_error(VL_INVALID, "%s is not NIfTI-1: its header does not begin with 348 and end with n+1", path);
}

/* Extents: three of space, channels, and then ones. */
static Status check_extents(const char *path, Bytes bytes, NiftiHeader *header) {
  int32_t rank = short_at(bytes, 40);
  if (rank < 3 || rank > 7)
    return vl_error(VL_INVALID, "%s: dim[0] is %d; images of 3 dimensions, or 4 with channels, are read",
                    path, rank);
  for (int32_t i = 1; i <= rank; i++) {
    int32_t extent = short_at(bytes, 40 + 2 * i);
    if (extent < 1 || (i == 4 && extent > VL_MAX_CHANNELS) || (i > 4 && extent != 1)) {
      return vl_error(VL_INVALID, "%s: dim[%d] is %d; accepted: %s", path, i, extent,
                      i < 4    ? "1 to 32767"
                      : i == 4 ? "channels, 1 to 64"
                               : "1");
    }
    if (i < 4) header->extent[i - 1] = extent;
    if (i == 4) header->channels = extent;
  }
  return vl_ok();
}

static Status check_type(const char *path, Bytes bytes, NiftiHeader *header) {
  int32_t code = short_at(bytes, 70), bits = short_at(bytes, 72);
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    if (types[i].code != code) continue;
    header->datatype = code;
    header->bytes = bits / 8;
    if (types[i].bits == bits) return vl_ok();
    return vl_error(VL_INVALID, "%s: bitpix is %d, a voxel of datatype %d has %d bits", path, bits, code,
                    types[i].bits);
  }
  return vl_error(VL_INVALID, "%s: datatype %d is not read; whole and real numbers are, not complex or color",
                  path, code);
}

static Status check_spacing(const char *path, Bytes bytes, NiftiHeader *header) {
  int32_t units = bytes.at[123] & 7; /* 1: metres, 2: millimetres, 3: micrometres; 0: unknown */
  double to_mm = units == 1 ? 1000.0 : units == 3 ? 0.001 : 1.0;
  for (int32_t i = 0; i < 3; i++) {
    double spacing = fabs(float_at(bytes, 80 + 4 * i));
    header->spacing_mm[i] = spacing * to_mm;
    if (spacing > 0.0 && header->spacing_mm[i] >= 1e-6 && header->spacing_mm[i] <= 1e6) continue;
    return vl_error(VL_INVALID, "%s: pixdim[%d] is %g; voxels must be of some size", path, i + 1, spacing);
  }
  return vl_ok();
}

/* A quaternion with its offset (6 numbers) and an affine (12), each where its code says that it holds. */
static Status check_orientation(const char *path, Bytes bytes) {
  bool quaternion = short_at(bytes, 252) > 0, affine = short_at(bytes, 254) > 0;
  for (int32_t i = 0; i < 18; i++) {
    int32_t offset = 256 + 4 * i;
    if (isfinite(float_at(bytes, offset)) || !(i < 6 ? quaternion : affine)) continue;
    return vl_error(VL_INVALID, "%s: the orientation is not finite (byte %d of the header)", path, offset);
  }
  return vl_ok();
}

/* A slope that is zero or no number means that values are not scaled. */
static Status check_scaling(const char *path, Bytes bytes, NiftiHeader *header) {
  header->slope = float_at(bytes, 112);
  header->intercept = float_at(bytes, 116);
  if (header->slope == 0.0 || !isfinite(header->slope)) {
    header->slope = 1.0;
    header->intercept = 0.0;
  }
  if (isfinite(header->intercept)) return vl_ok();
  return vl_error(VL_INVALID, "%s: scl_inter is %g; it must be finite", path, header->intercept);
}

static Status check_size(const char *path, Bytes bytes, int64_t file_bytes, const NiftiHeader *header) {
  double offset = float_at(bytes, 108);
  if (!(offset >= LEAST_OFFSET) || offset > INT32_MAX || offset != floor(offset))
    return vl_error(VL_INVALID, "%s: vox_offset is %g; a single file's voxels begin at 352 or later", path,
                    offset);
  int64_t needed = (int64_t)offset + header->bytes * header->channels * header->extent[0] *
                                         header->extent[1] * header->extent[2];
  if (needed <= file_bytes) return vl_ok();
  return vl_error(
      VL_INVALID,
      "%s is truncated: its header tells of %lld bytes (%lld x %lld x %lld voxels, %lld channels), "
      "there are %lld",
      path, (long long)needed, (long long)header->extent[0], (long long)header->extent[1],
      (long long)header->extent[2], (long long)header->channels, (long long)file_bytes);
}

Status vl_nifti_check_header(const char *path, const uint8_t *data, int64_t bytes_read, int64_t file_bytes,
                             NiftiHeader *header) {
  *header = (NiftiHeader){.channels = 1};
  if (bytes_read < HEADER_BYTES)
    return vl_error(VL_INVALID, "%s is truncated: it has %lld bytes of a header's 348", path,
                    (long long)bytes_read);
  Bytes bytes = {data, false};
  VL_TRY(check_kind(path, &bytes));
  VL_TRY(check_extents(path, bytes, header));
  VL_TRY(check_type(path, bytes, header));
  VL_TRY(check_spacing(path, bytes, header));
  VL_TRY(check_orientation(path, bytes));
  VL_TRY(check_scaling(path, bytes, header));
  return check_size(path, bytes, file_bytes, header);
}

void vl_nifti_clear(NiftiImage *image) {
  free(image->values);
  *image = (NiftiImage){0};
}

/* ---- The image -------------------------------------------------------------------------------------------------------- */

#if !VRAMLAB_NIFTI

bool vl_nifti_is_there(void) { return false; }

Status vl_nifti_read(const char *path, NiftiImage *image) {
  *image = (NiftiImage){0};
  return vl_error(VL_ENVIRONMENT,
                  "cannot read %s: this program was built without nifticlib (Debian: libnifti2-dev)", path);
}

#else

#include <nifti1_io.h>

bool vl_nifti_is_there(void) { return true; }

static bool ends_with(const char *text, const char *end) {
  size_t length = strlen(text), of_end = strlen(end);
  return length > of_end && strcmp(text + length - of_end, end) == 0;
}

/* Reads a stream to its end: how many bytes there are, and whether zlib found all of them whole. */
static bool read_to_end(znzFile *stream, int64_t *count) {
  enum { AT_ONCE = 1 << 16 };
  uint8_t *buffer = vl_allocate(AT_ONCE);
  size_t got;
  do {
    got = znzread(buffer, 1, AT_ONCE, *stream); /* of an error more than asked for: -1 as a size */
    if (got <= AT_ONCE) *count += (int64_t)got;
  } while (got > 0 && got <= AT_ONCE);
  free(buffer);
  return Xznzclose(stream) == 0 && got == 0;
}

static Status read_header(const char *path, NiftiHeader *header) {
  uint8_t data[HEADER_BYTES];
  struct stat file;
  bool compressed = ends_with(path, ".gz");
  if (!ends_with(path, ".nii") && !ends_with(path, ".nii.gz"))
    return vl_error(VL_INVALID, "%s: the name of a NIfTI-1 file ends in .nii or .nii.gz", path);
  znzFile stream = stat(path, &file) == 0 && S_ISREG(file.st_mode) ? znzopen(path, "rb", compressed) : NULL;
  if (znz_isnull(stream)) return vl_error(VL_ENVIRONMENT, "cannot read %s", path);
  size_t got = znzread(data, 1, sizeof data, stream);
  int64_t bytes = (int64_t)got;
  bool sound = got <= sizeof data, ended = read_to_end(&stream, &bytes);
  if (sound) VL_TRY(vl_nifti_check_header(path, data, (int64_t)got, bytes, header));
  if (sound && ended) return vl_ok();
  return vl_error(VL_INVALID, "%s: its compressed data are damaged or truncated", path);
}

static double value_at(const void *data, int32_t datatype, int64_t i) {
  switch (datatype) {
  case NIFTI_TYPE_UINT8: return ((const uint8_t *)data)[i];
  case NIFTI_TYPE_INT8: return ((const int8_t *)data)[i];
  case NIFTI_TYPE_INT16: return ((const int16_t *)data)[i];
  case NIFTI_TYPE_UINT16: return ((const uint16_t *)data)[i];
  case NIFTI_TYPE_INT32: return ((const int32_t *)data)[i];
  case NIFTI_TYPE_UINT32: return ((const uint32_t *)data)[i];
  case NIFTI_TYPE_FLOAT32: return (double)((const float *)data)[i];
  case NIFTI_TYPE_FLOAT64: return ((const double *)data)[i];
  case NIFTI_TYPE_INT64: return (double)((const int64_t *)data)[i];
  case NIFTI_TYPE_UINT64: return (double)((const uint64_t *)data)[i];
  default: return 0.0;
  }
}

/* Along which of the file's axes depth, height and width go, and whether backwards: depth from below upwards,
 * height from behind forwards, width from left to right, as far as the file tells; else as it stores them. */
typedef struct Orientation {
  int32_t axis[3];
  bool backwards[3];
} Orientation;

static Orientation orientation_of(const nifti_image *nifti) {
  Orientation found = {{2, 1, 0}, {false, false, false}}, stored = found;
  int codes[3] = {0, 0, 0};
  bool seen[3] = {false, false, false};
  if (nifti->sform_code <= 0 && nifti->qform_code <= 0) return stored;
  nifti_mat44_to_orientation(nifti->sform_code > 0 ? nifti->sto_xyz : nifti->qto_xyz, &codes[0], &codes[1],
                             &codes[2]);
  for (int32_t axis = 0; axis < 3; axis++) {
    /* Codes 1 and 2 are of left and right, 3 and 4 of behind and before, 5 and 6 of below and above. */
    if (codes[axis] < 1 || codes[axis] > 6) return stored;
    int32_t to = 2 - (codes[axis] - 1) / 2;
    if (seen[to]) return stored;
    seen[to] = true;
    found.axis[to] = axis;
    found.backwards[to] = codes[axis] % 2 == 0;
  }
  return found;
}

static void copy_values(const nifti_image *nifti, const NiftiHeader *header, NiftiImage *image) {
  Orientation orientation = orientation_of(nifti);
  const int64_t *extent = header->extent;
  int64_t stride[3] = {1, extent[0], extent[0] * extent[1]}, channel = stride[2] * extent[2], at = 0;
  for (int32_t i = 0; i < 3; i++) {
    image->size[i] = extent[orientation.axis[i]];
    image->spacing_mm[i] = header->spacing_mm[orientation.axis[i]];
  }
  for (int64_t c = 0; c < image->channels; c++) {
    for (int64_t i = 0; i < channel; i++) {
      int64_t place[3] = {i / (image->size[1] * image->size[2]), i / image->size[2] % image->size[1],
                          i % image->size[2]};
      int64_t from = c * channel;
      for (int32_t axis = 0; axis < 3; axis++) {
        int64_t along = orientation.backwards[axis] ? image->size[axis] - 1 - place[axis] : place[axis];
        from += along * stride[orientation.axis[axis]];
      }
      double value = value_at(nifti->data, header->datatype, from);
      image->values[at++] = (float)(value * header->slope + header->intercept);
    }
  }
}

/* The library read the same header. */
static bool agrees(const nifti_image *nifti, const NiftiHeader *header) {
  return nifti->nx == header->extent[0] && nifti->ny == header->extent[1] && nifti->nz == header->extent[2] &&
         (int64_t)nifti->nvox ==
             header->extent[0] * header->extent[1] * header->extent[2] * header->channels &&
         nifti->datatype == header->datatype && nifti->nbyper == header->bytes && nifti->data;
}

Status vl_nifti_read(const char *path, NiftiImage *image) {
  NiftiHeader header;
  *image = (NiftiImage){0};
  nifti_set_debug_level(0); /* messages are ours */
  VL_TRY(read_header(path, &header));
  nifti_image *nifti = nifti_image_read(path, 1);
  if (!nifti || !agrees(nifti, &header)) {
    nifti_image_free(nifti);
    return vl_error(VL_INVALID, "%s: nifticlib cannot read its voxels", path);
  }
  image->channels = header.channels;
  image->values = malloc(nifti->nvox * sizeof *image->values);
  if (!image->values) {
    nifti_image_free(nifti);
    return vl_error(VL_OUT_OF_MEMORY, "%s: no memory for its voxels", path);
  }
  copy_values(nifti, &header, image);
  nifti_image_free(nifti);
  return vl_ok();
}

#endif
