/* Arena: a list of chunks, filled from the front and freed as a whole. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 16, CHUNK_BYTES = 64 * 1024 };

typedef struct Chunk {
  struct Chunk *next;
  size_t capacity;
  size_t used;
  size_t unused; /* keeps data 16-byte aligned */
  unsigned char data[];
} Chunk;

_Static_assert(offsetof(Chunk, data) % ALIGNMENT == 0, "chunk data must be aligned");

struct Arena {
  Chunk *current;
};

static Chunk *chunk_create(size_t capacity) {
  Chunk *chunk = vl_allocate(sizeof(Chunk) + capacity);
  chunk->capacity = capacity;
  return chunk;
}

Arena *vl_arena_create(void) { return vl_allocate(sizeof(Arena)); }

void vl_arena_destroy(Arena **arena) {
  if (*arena == NULL) return;
  Chunk *chunk = (*arena)->current;
  while (chunk != NULL) {
    Chunk *next = chunk->next;
    free(chunk);
    chunk = next;
  }
  free(*arena);
  *arena = NULL;
}

void *vl_arena_allocate(Arena *arena, size_t bytes) {
  size_t rounded = bytes == 0 ? ALIGNMENT : (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  Chunk *current = arena->current;
  if (current != NULL && rounded <= current->capacity - current->used) {
    void *memory = current->data + current->used;
    current->used += rounded;
    return memory;
  }
  if (rounded > CHUNK_BYTES / 4) {
    /* A large piece gets its own chunk behind the current one, whose rest stays in use. */
    Chunk *chunk = chunk_create(rounded);
    chunk->used = rounded;
    if (current != NULL) {
      chunk->next = current->next;
      current->next = chunk;
    } else {
      arena->current = chunk;
    }
    return chunk->data;
  }
  Chunk *chunk = chunk_create(CHUNK_BYTES);
  chunk->next = current;
  chunk->used = rounded;
  arena->current = chunk;
  return chunk->data;
}

char *vl_arena_copy_text(Arena *arena, const char *text) {
  size_t bytes = strlen(text) + 1;
  char *copy = vl_arena_allocate(arena, bytes);
  memcpy(copy, text, bytes);
  return copy;
}

char *vl_arena_format(Arena *arena, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  va_list again;
  va_copy(again, arguments);
  int length = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  char *text = vl_arena_allocate(arena, length < 0 ? 1 : (size_t)length + 1);
  if (length > 0) vsnprintf(text, (size_t)length + 1, format, again);
  va_end(again);
  return text;
}
