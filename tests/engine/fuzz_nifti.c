/* libFuzzer: any bytes are read as a NIfTI-1 file, plain or compressed, or refused; what is read makes sense.
 */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_as(const uint8_t *data, size_t size, const char *ending) {
  char path[64];
  snprintf(path, sizeof path, "/tmp/vramlab-fuzz-%d%s", (int)getpid(), ending);
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(data, 1, size, file) != size) abort();
  fclose(file);
  NiftiImage image;
  Status status = vl_nifti_read(path, &image);
  unlink(path);
  if (status.code != VL_OK) {
    if (!strstr(status.message, path)) abort();
    return;
  }
  int64_t values = image.channels * image.size[0] * image.size[1] * image.size[2];
  volatile float last = 0.0F;
  for (int64_t i = 0; i < values; i++)
    last = image.values[i]; /* all of them are there */
  (void)last;
  if (values < 1) abort();
  vl_nifti_clear(&image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  NiftiHeader header;
  Status status = vl_nifti_check_header("memory", data, (int64_t)size, (int64_t)size, &header);
  if (status.code == VL_OK && (header.channels < 1 || header.bytes < 1)) abort();
  read_as(data, size, ".nii");
  read_as(data, size, ".nii.gz");
  return 0;
}
