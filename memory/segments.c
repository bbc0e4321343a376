/* Segments: taken from the backing under the capacity, and counted. */
#include "memory/internal.h"

#include <inttypes.h>

Status vl_segment_reserve(SegmentSource *source, int64_t bytes, int stream, uintptr_t *address) {
  /* A difference, so that a huge request cannot overflow. */
  if (source->capacity_bytes > 0 && bytes > source->capacity_bytes - source->reserved_bytes) {
    source->backing_refused = false;
    return vl_error(VL_OUT_OF_MEMORY,
                    "a segment of %" PRId64 " bytes beside the %" PRId64 " reserved exceeds the capacity",
                    bytes, source->reserved_bytes);
  }
  Status status = source->backing->reserve(source->backing->context, bytes, address);
  if (status.code != VL_OK) {
    source->backing_refused = true;
    return status;
  }
  source->reserved_bytes += bytes;
  vl_tracker_record_segment(source->tracker, MEMORY_SEGMENT_RESERVE, *address, bytes, stream);
  return vl_ok();
}

void vl_segment_release(SegmentSource *source, uintptr_t address, int64_t bytes, int stream) {
  source->backing->release(source->backing->context, address, bytes);
  source->reserved_bytes -= bytes;
  vl_tracker_record_segment(source->tracker, MEMORY_SEGMENT_RELEASE, address, bytes, stream);
}
