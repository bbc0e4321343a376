/* libFuzzer: any bytes are read as a trace or refused; what is read can be written and read again, and
 * replayed. */
#include "harness/replay.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  TraceFile *file, *again;
  Status status = vl_trace_parse((const char *)data, size, "input", &file);
  if (status.code != VL_OK) return 0;
  char *text;
  size_t length;
  FILE *out = open_memstream(&text, &length);
  if (out == NULL) abort();
  status = vl_trace_write(file, out);
  fclose(out);
  if (status.code == VL_OK) status = vl_trace_parse(text, length, "written", &again);
  if (status.code != VL_OK || again->trace.event_count != file->trace.event_count) abort();
  ReplaySet set;
  status = vl_replay_run(again, NULL, file->capacity_bytes, size % 2 == 0, &set);
  if (status.code != VL_OK) abort();
  vl_replay_free(&set);
  vl_trace_destroy(&again);
  vl_trace_destroy(&file);
  free(text);
  return 0;
}
