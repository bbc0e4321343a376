#include "real.h"

#include <sys/mman.h>

static Status map(int64_t bytes, int protection, uintptr_t *address) {
  void *start = mmap(NULL, (size_t)bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) return vl_error(VL_OUT_OF_MEMORY, "no %lld bytes to map", (long long)bytes);
  *address = (uintptr_t)start;
  return vl_ok();
}

static Status reserve(void *context, int64_t bytes, uintptr_t *address) {
  (void)context;
  return map(bytes, PROT_READ | PROT_WRITE, address);
}

static void release(void *context, uintptr_t address, int64_t bytes) {
  (void)context;
  munmap((void *)address, (size_t)bytes);
}

static Status reserve_addresses(void *context, int64_t bytes, int64_t granule_bytes, uintptr_t *address) {
  (void)context;
  (void)granule_bytes;
  return map(bytes, PROT_NONE, address);
}

static Status commit(void *context, uintptr_t address, int64_t bytes) {
  (void)context;
  if (mprotect((void *)address, (size_t)bytes, PROT_READ | PROT_WRITE) == 0) return vl_ok();
  return vl_error(VL_OUT_OF_MEMORY, "no %lld bytes to commit", (long long)bytes);
}

/* What is written there afterwards ends the test. */
static void decommit(void *context, uintptr_t address, int64_t bytes) {
  (void)context;
  (void)mmap((void *)address, (size_t)bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static Status move(void *context, uintptr_t to, uintptr_t from, int64_t bytes) {
  (void)context;
  /* From the lower end, as a copy without memmove's care may do it: what is moved down survives that. */
  char *target = (char *)to;
  const char *source = (const char *)from;
  if (to > from && to < from + (uintptr_t)bytes)
    return vl_error(VL_INTERNAL, "a block is moved up over itself, by %lld bytes", (long long)(to - from));
  for (int64_t i = 0; i < bytes; i++)
    target[i] = source[i];
  return vl_ok();
}

const Backing real_backing = {.reserve = reserve,
                              .release = release,
                              .reserve_addresses = reserve_addresses,
                              .release_addresses = release,
                              .commit = commit,
                              .decommit = decommit,
                              .move = move};

static uint64_t word_of(uint64_t owner, int64_t at) {
  return owner * UINT64_C(0x9e3779b97f4a7c15) ^ ((uint64_t)at << 20);
}

void real_fill(const Block *block, uint64_t owner) {
  uint64_t *words = (uint64_t *)block->address;
  for (int64_t i = 0; i < block->bytes / 8; i++)
    words[i] = word_of(owner, i);
}

bool real_is_filled(const Block *block, uint64_t owner) {
  const uint64_t *words = (const uint64_t *)block->address;
  for (int64_t i = 0; i < block->bytes / 8; i++)
    if (words[i] != word_of(owner, i)) return false;
  return true;
}
