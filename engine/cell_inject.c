/* Faults put into a run on purpose, to show that `compare` finds them: the record says so. */
#include "engine/cell.h"

#include <stdlib.h>
#include <string.h>

static Status refuse(const char *text) {
  return vl_error(
      VL_INVALID,
      "inject '%s': accepted: slowdown=SHARE (0 to 10: so much longer is every step, as in 0.05) and "
      "allocate=SIZE:CATEGORY (as in 1MiB:activation)",
      text);
}

static Status parse(const char *text, double *slowdown, int64_t *bytes, MemoryCategory *category) {
  static const char slow[] = "slowdown=", more[] = "allocate=";
  *slowdown = 0;
  *bytes = 0;
  if (!*text) return vl_ok();
  if (strncmp(text, slow, strlen(slow)) == 0) {
    char *end;
    *slowdown = strtod(text + strlen(slow), &end);
    return *end == '\0' && *slowdown > 0 && *slowdown <= 10 ? vl_ok() : refuse(text);
  }
  const char *colon = strchr(text, ':');
  if (strncmp(text, more, strlen(more)) != 0 || !colon) return refuse(text);
  char size[VL_NAME_BYTES];
  snprintf(size, sizeof size, "%.*s", (int)(colon - text) - (int)strlen(more), text + strlen(more));
  Status status = vl_parse_bytes(size, bytes);
  if (status.code != VL_OK || *bytes <= 0) return refuse(text);
  for (int32_t i = 0; i < MEMORY_CATEGORY_COUNT; i++)
    if (strcmp(colon + 1, vl_memory_category_name((MemoryCategory)i)) == 0) {
      *category = (MemoryCategory)i;
      return vl_ok();
    }
  return refuse(text);
}

Status cell_check_inject(const CellSpec *spec) {
  double slowdown;
  int64_t bytes;
  MemoryCategory category;
  VL_TRY(parse(spec->inject, &slowdown, &bytes, &category));
  if (*spec->inject && *spec->queue) return vl_error(VL_INVALID, "inject: not with a queue");
  return vl_ok();
}

Status cell_inject_block(Cell *cell) {
  double slowdown;
  AllocationRequest request = {.name = "injected", .scope = "injected"};
  VL_TRY(parse(cell->spec->inject, &slowdown, &request.bytes, &request.category));
  return request.bytes > 0 ? vl_heap_obtain(cell->heap, &request, &cell->injected) : vl_ok();
}

int64_t cell_inject_time(const Cell *cell, int64_t step_ns) {
  double slowdown;
  int64_t bytes;
  MemoryCategory category;
  if (parse(cell->spec->inject, &slowdown, &bytes, &category).code != VL_OK || !(slowdown > 0)) return 0;
  int64_t start_ns = vl_monotonic_ns(), now_ns = start_ns;
  while ((double)(now_ns - start_ns) < slowdown * (double)step_ns)
    now_ns = vl_monotonic_ns();
  return now_ns - start_ns;
}
