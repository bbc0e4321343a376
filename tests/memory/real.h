/* A backing of this process's own memory, so that contents can be looked at, and blocks filled with a pattern
 * of their own. */
#ifndef VRAMLAB_TESTS_MEMORY_REAL_H
#define VRAMLAB_TESTS_MEMORY_REAL_H

#include "memory/memory.h"

extern const Backing real_backing;

/* Every 8 bytes of a block say whose they are and where they lie in it. */
void real_fill(const Block *block, uint64_t owner);
/* Whether all of a block is as it was filled. */
bool real_is_filled(const Block *block, uint64_t owner);

#endif
