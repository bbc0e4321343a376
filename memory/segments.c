/* Segments: taken from the backing under the capacity, and counted. */
#include "memory/internal.h"

#include <inttypes.h>

static Status refuse_beyond_capacity(SegmentSource *source, int64_t bytes) {
  /* A difference, so that a huge request cannot overflow. */
  if (source->capacity_bytes == 0 || bytes <= source->capacity_bytes - source->reserved_bytes) return vl_ok();
  source->backing_refused = false;
  return vl_error(VL_OUT_OF_MEMORY,
                  "a segment of %" PRId64 " bytes beside the %" PRId64 " reserved exceeds the capacity",
                  bytes, source->reserved_bytes);
}

/* Counts what the backing gave, or notes that it refused. */
static Status take(SegmentSource *source, const Status *given, uintptr_t origin, uintptr_t address,
                   int64_t bytes, int stream) {
  if (given->code != VL_OK) {
    source->backing_refused = true;
    return *given;
  }
  source->reserved_bytes += bytes;
  vl_tracker_record_segment(source->tracker, MEMORY_SEGMENT_RESERVE, origin, address, bytes, stream);
  return vl_ok();
}

static void give_back(SegmentSource *source, uintptr_t origin, uintptr_t address, int64_t bytes, int stream) {
  source->reserved_bytes -= bytes;
  vl_tracker_record_segment(source->tracker, MEMORY_SEGMENT_RELEASE, origin, address, bytes, stream);
}

Status vl_segment_reserve(SegmentSource *source, int64_t bytes, int stream, uintptr_t *address) {
  VL_TRY(refuse_beyond_capacity(source, bytes));
  Status given = source->backing->reserve(source->backing->context, bytes, address);
  return take(source, &given, *address, *address, bytes, stream);
}

void vl_segment_release(SegmentSource *source, uintptr_t address, int64_t bytes, int stream) {
  source->backing->release(source->backing->context, address, bytes);
  give_back(source, address, address, bytes, stream);
}

Status vl_segment_commit(SegmentSource *source, uintptr_t origin, int64_t offset, int64_t bytes, int stream) {
  uintptr_t address = origin + (uintptr_t)offset;
  VL_TRY(refuse_beyond_capacity(source, bytes));
  Status given = source->backing->commit(source->backing->context, address, bytes);
  return take(source, &given, origin, address, bytes, stream);
}

void vl_segment_decommit(SegmentSource *source, uintptr_t origin, int64_t offset, int64_t bytes, int stream) {
  uintptr_t address = origin + (uintptr_t)offset;
  source->backing->decommit(source->backing->context, address, bytes);
  give_back(source, origin, address, bytes, stream);
}

void vl_segment_follow_pool(SegmentSource *source, int stream) {
  int64_t held_bytes = source->backing->pool_reserved_bytes(source->backing->context);
  int64_t change_bytes = held_bytes - source->reserved_bytes;
  source->reserved_bytes = held_bytes;
  if (change_bytes > 0)
    vl_tracker_record_segment(source->tracker, MEMORY_SEGMENT_RESERVE, 0, 0, change_bytes, stream);
  if (change_bytes < 0)
    vl_tracker_record_segment(source->tracker, MEMORY_SEGMENT_RELEASE, 0, 0, -change_bytes, stream);
}
