/* A store in the formats that other tools read. */
#ifndef VRAMLAB_HARNESS_EXPORT_H
#define VRAMLAB_HARNESS_EXPORT_H

#include "harness/claims.h"

typedef struct ExportInput {
  const Store *store;
  RecordSet records;  /* the store's, or the one cell asked for */
  const char *cell;   /* beginning of a cell's key; NULL: all, or the only one with a timeline */
  const char *output; /* directory, for formats that are one */
} ExportInput;

typedef struct ExportFormat {
  const char *name, *help;
  bool is_directory; /* writes into a directory, not to `out`, which is NULL */
  Status (*write)(const ExportInput *input, FILE *out);
} ExportFormat;
const ExportFormat *vl_export_all(int32_t *count);

Status vl_export_csv(const ExportInput *input, FILE *out) VL_CHECKED;
Status vl_export_jsonl(const ExportInput *input, FILE *out) VL_CHECKED;
Status vl_export_junit(const ExportInput *input, FILE *out) VL_CHECKED;
Status vl_export_prometheus(const ExportInput *input, FILE *out) VL_CHECKED;
/* Chrome's trace events, which Perfetto opens: bytes by category, lifetimes of tensors, segments of the step.
 */
Status vl_export_trace(const ExportInput *input, FILE *out) VL_CHECKED;
/* PyTorch's memory snapshot (torch.cuda.memory._dump_snapshot), for its memory_viz. */
Status vl_export_snapshot(const ExportInput *input, FILE *out) VL_CHECKED;
Status vl_export_tensorboard(const ExportInput *input, FILE *out) VL_CHECKED;

/* Text as XML 1.0 may have it. */
void vl_xml_put(const char *text, FILE *out);
/* A finite number, 17 digits, "." whatever the locale; else `otherwise`. */
void vl_number_put(double value, const char *otherwise, FILE *out);

#endif
