/* cuda_pipeline_primitives.h on the host machine: copies from global into shared memory that go on beside the
 * thread. Here none is made before the thread waits for it, so that what is read too early is wrong. */
#ifndef VRAMLAB_TESTS_HOST_PIPELINE_H
#define VRAMLAB_TESTS_HOST_PIPELINE_H

#include "machine.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

namespace host_pipeline {

struct Copy {
  void *to;
  const void *from;
  size_t bytes;
};
/* Of every thread of the block that runs: what is queued, and how many copies each committed group has. */
struct Thread {
  std::deque<Copy> copies;
  std::deque<size_t> groups;
  size_t open;
};
inline Thread threads[1024];

inline Thread &self() { return threads[threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)]; }

} // namespace host_pipeline

inline void __pipeline_memcpy_async(void *to, const void *from, size_t bytes) {
  bool aligned = (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % bytes == 0;
  if (!aligned || (bytes != 4 && bytes != 8 && bytes != 16)) {
    fprintf(stderr, "__pipeline_memcpy_async: %zu bytes from %p to %p, which must be aligned to 4, 8 or 16\n",
            bytes, from, to);
    abort();
  }
  host_pipeline::self().copies.push_back({to, from, bytes});
  host_pipeline::self().open++;
}

inline void __pipeline_commit() {
  host_pipeline::Thread &thread = host_pipeline::self();
  thread.groups.push_back(thread.open);
  thread.open = 0;
}

/* Waits for all groups but the last `prior`. */
inline void __pipeline_wait_prior(size_t prior) {
  host_pipeline::Thread &thread = host_pipeline::self();
  for (; thread.groups.size() > prior; thread.groups.pop_front())
    for (size_t i = 0; i < thread.groups.front(); i++) {
      host_pipeline::Copy copy = thread.copies.front();
      memcpy(copy.to, copy.from, copy.bytes);
      thread.copies.pop_front();
    }
}

#endif
