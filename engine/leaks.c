/* Which tensors a leak consists of: what lives after the last step, less what lived after the first. */
#include "engine/internal.h"
#include <stdlib.h>
#include <string.h>

typedef struct LiveName {
  const char *name, *scope; /* of the graph */
  int64_t bytes;
} LiveName;

struct LiveNames {
  LiveName *items; /* by scope and name, each once */
  int64_t count, capacity;
};

static int compare(const void *a, const void *b) {
  const LiveName *left = a, *right = b;
  int by_scope = strcmp(left->scope, right->scope);
  return by_scope ? by_scope : strcmp(left->name, right->name);
}

static int by_growth(const void *a, const void *b) {
  const LiveName *left = a, *right = b;
  if (left->bytes != right->bytes) return left->bytes > right->bytes ? -1 : 1;
  return compare(a, b);
}

static void add(void *context, const Block *block) {
  LiveNames *names = context;
  if (names->count == names->capacity) {
    names->capacity = names->capacity ? 2 * names->capacity : 1024;
    names->items = vl_reallocate(names->items, (size_t)names->capacity * sizeof *names->items);
  }
  names->items[names->count++] =
      (LiveName){block->name ? block->name : "", block->scope ? block->scope : "", block->bytes};
}

LiveNames *engine_live_names(const Heap *heap) {
  LiveNames *names = vl_allocate(sizeof *names);
  vl_heap_each_block(heap, add, names);
  if (names->count > 0) qsort(names->items, (size_t)names->count, sizeof *names->items, compare);
  int64_t kept = 0;
  for (int64_t i = 0; i < names->count; i++) {
    if (kept > 0 && compare(&names->items[kept - 1], &names->items[i]) == 0)
      names->items[kept - 1].bytes += names->items[i].bytes;
    else
      names->items[kept++] = names->items[i];
  }
  names->count = kept;
  return names;
}

void engine_live_names_destroy(LiveNames **names) {
  if (!*names) return;
  free((*names)->items);
  free(*names);
  *names = NULL;
}

void engine_live_names_grown(const Heap *heap, const LiveNames *before, int32_t steps, CellResult *result) {
  LiveNames *names = engine_live_names(heap);
  int64_t grown = 0;
  for (int64_t i = 0; i < names->count; i++) {
    LiveName name = names->items[i];
    const LiveName *was = before->count > 0 ? bsearch(&name, before->items, (size_t)before->count,
                                                      sizeof *before->items, compare)
                                            : NULL;
    name.bytes = (name.bytes - (was ? was->bytes : 0)) / steps;
    if (name.bytes > 0) names->items[grown++] = name;
  }
  if (grown > 0) qsort(names->items, (size_t)grown, sizeof *names->items, by_growth);
  for (int64_t i = 0; i < grown; i++) {
    const LiveName *name = &names->items[i];
    result->leaks_bytes_per_step += name->bytes;
    if (result->leak_count == VL_MAX_LEAKS) continue;
    snprintf(result->leaks[result->leak_count].name, VL_NAME_BYTES, "%s", name->name);
    snprintf(result->leaks[result->leak_count].scope, VL_NAME_BYTES, "%s", name->scope);
    result->leaks[result->leak_count++].bytes_per_step = name->bytes;
  }
  engine_live_names_destroy(&names);
}
