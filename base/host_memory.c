/* Host memory for metadata. Small by design, so running out of it is the end of the process; what a
 * workload needs comes from the heap, where running out is a result. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *checked(void *memory, size_t bytes) {
  if (memory == NULL) {
    fprintf(stderr, "vramlab: the host has no memory left for %zu bytes of metadata\n", bytes);
    abort();
  }
  return memory;
}

void *vl_allocate(size_t bytes) {
  /* calloc(0) may return NULL, which would look like a failure. */
  return checked(calloc(1, bytes == 0 ? 1 : bytes), bytes);
}

void *vl_reallocate(void *memory, size_t bytes) {
  return checked(realloc(memory, bytes == 0 ? 1 : bytes), bytes);
}

char *vl_copy_text(const char *text) {
  size_t bytes = strlen(text) + 1;
  char *copy = vl_allocate(bytes);
  memcpy(copy, text, bytes);
  return copy;
}
