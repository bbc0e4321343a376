/* A backing that hands out numbers for addresses, and a heap on it. Closing the fixture checks that
 * everything was given back and that the tracker reads zero. */
#ifndef VRAMLAB_TESTS_MEMORY_FIXTURE_H
#define VRAMLAB_TESTS_MEMORY_FIXTURE_H

#include "memory/memory.h"

#include <setjmp.h>

#include <cmocka.h>

#define KIB INT64_C(1024)
#define MIB (KIB * 1024)

/* Where the fake machine puts segments. */
typedef enum FakePlacement {
  FAKE_ASCENDING,
  FAKE_DESCENDING,
  FAKE_SCATTERED,
  FAKE_PLACEMENT_COUNT
} FakePlacement;

enum { FAKE_SEGMENT_LIMIT = 65536, FAKE_RANGE_LIMIT = 64 };

typedef struct FakeSegment {
  uintptr_t address;
  int64_t bytes; /* 0: given back */
} FakeSegment;

/* Addresses without memory. */
typedef struct FakeRange {
  uintptr_t address;
  int64_t bytes, granule_bytes; /* 0: given back */
  bool *committed;              /* by granule */
} FakeRange;

typedef struct FakeBacking {
  Backing backing;
  FakePlacement placement;
  int64_t machine_bytes; /* what the fake machine has; 0: no limit */
  int64_t reserved_bytes;
  FakeSegment *segments; /* in order of reservation; never reused */
  int64_t segment_count;
  FakeRange ranges[FAKE_RANGE_LIMIT]; /* in order of reservation; never reused */
  int64_t range_count;
  StatusCode failure; /* when not VL_OK, the next reserve fails with it */
} FakeBacking;

typedef struct Fixture {
  FakeBacking fake;
  Tracker *tracker;
  Heap *heap;
} Fixture;

void fixture_open(Fixture *fixture, int64_t capacity_bytes, FakePlacement placement);
void fixture_open_with(Fixture *fixture, const HeapOptions *options, FakePlacement placement);
void fixture_close(Fixture *fixture);
/* A block that must be obtained: stream 0, an activation. */
Block *fixture_obtain(Fixture *fixture, int64_t bytes);
Status fixture_try_obtain(Fixture *fixture, int64_t bytes, Block **block) VL_CHECKED;
MemoryStatistics fixture_statistics(const Fixture *fixture);

/* The live segment that holds the whole range, as its number in order of reservation; -1: none. */
int64_t fake_segment_of(const FakeBacking *fake, uintptr_t address, int64_t bytes);
int64_t fake_live_segments(const FakeBacking *fake);

#endif
