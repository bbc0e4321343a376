/* Allocation traces as files: JSON lines, described in results/TRACE.md. */
#ifndef VRAMLAB_HARNESS_TRACE_H
#define VRAMLAB_HARNESS_TRACE_H

#include "harness/harness.h"

typedef struct TraceFile {
  Arena *arena;
  Trace trace;
  uint64_t *addresses;         /* of each block, where the recorded allocator put it, [trace.block_count] */
  const char *source;          /* what recorded it; "" when it does not say */
  int64_t capacity_bytes;      /* most that allocator could reserve; 0: not known */
  int64_t reserved_peak_bytes; /* most it did reserve; -1: not known */
} TraceFile;

/* A trace from the bytes of a file called `name`. VL_INVALID names the line, what is wrong and what is
 * accepted.
 */
Status vl_trace_parse(const char *text, size_t size, const char *name, TraceFile **file) VL_CHECKED;
Status vl_trace_read(const char *path, TraceFile **file) VL_CHECKED;
/* The last step of a cell: what was held when it began, and its requests. VL_INVALID when the timeline comes
 * from a store that does not tell where blocks lay. */
Status vl_trace_from_timeline(const TimelineEvent *events, int64_t count, TraceFile **file) VL_CHECKED;
/* What vl_trace_parse reads. */
Status vl_trace_write(const TraceFile *file, FILE *out) VL_CHECKED;
void vl_trace_destroy(TraceFile **file);

#endif
