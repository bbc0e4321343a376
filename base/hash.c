/* FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv. */
#include "base/base.h"

#include <string.h>

const uint64_t vl_hash_start = UINT64_C(0xcbf29ce484222325);

uint64_t vl_hash_bytes(uint64_t hash, const void *data, size_t bytes) {
  const unsigned char *byte = data;
  for (size_t i = 0; i < bytes; i++) {
    hash ^= byte[i];
    hash *= UINT64_C(0x100000001b3);
  }
  return hash;
}

uint64_t vl_hash_text(uint64_t hash, const char *text) { return vl_hash_bytes(hash, text, strlen(text)); }
