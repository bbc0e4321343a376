/* NIfTI-1 headers as bytes, for tests. */
#ifndef VRAMLAB_TESTS_NIFTI_BYTES_H
#define VRAMLAB_TESTS_NIFTI_BYTES_H

#include <stdint.h>
#include <string.h>

enum { NIFTI_HEADER = 348, NIFTI_VOXELS_AT = 352 };

static inline void nifti_put_short(uint8_t *header, int32_t offset, int32_t value) {
  int16_t narrow = (int16_t)value;
  memcpy(header + offset, &narrow, sizeof narrow);
}

static inline void nifti_put_float(uint8_t *header, int32_t offset, float value) {
  memcpy(header + offset, &value, sizeof value);
}

/* Of this machine's byte order, without scaling or orientation. */
static inline void nifti_write_header(uint8_t header[NIFTI_VOXELS_AT], const int32_t extent[3],
                                      int32_t channels, int32_t datatype, int32_t bits) {
  const int32_t size = NIFTI_HEADER;
  memset(header, 0, NIFTI_VOXELS_AT);
  memcpy(header, &size, sizeof size);
  nifti_put_short(header, 40, channels > 1 ? 4 : 3);
  for (int32_t i = 1; i < 8; i++) {
    nifti_put_short(header, 40 + 2 * i, i < 4 ? extent[i - 1] : i == 4 ? channels : 1);
    nifti_put_float(header, 76 + 4 * i, i < 4 ? (float)i : 1.0F); /* spacing 1, 2, 3 */
  }
  nifti_put_short(header, 70, datatype);
  nifti_put_short(header, 72, bits);
  nifti_put_float(header, 108, (float)NIFTI_VOXELS_AT);
  memcpy(header + 344, "n+1", 4);
}

#endif
