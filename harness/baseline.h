/* Baselines: what cells measured on a machine when somebody said that this is how it should be. A file for
 * each kind of machine, `<directory>/<key>.jsonl`: a first line with the key, when it was updated last and
 * every reason so far, then a record a line without its long lists. Small, and differences of two versions
 * can be read. */
#ifndef VRAMLAB_HARNESS_BASELINE_H
#define VRAMLAB_HARNESS_BASELINE_H

#include "harness/claims.h"

typedef struct Baseline {
  RecordSet records;
  json_t *owned;                /* the records */
  char path[1024], reason[256]; /* of the first file; its last reason */
} Baseline;

/* What has one baseline: "amd-epyc-9b45-16gib-2-threads", from the model of CPU or GPU, its memory, MIG
 * profile and power cap where a record tells them, and threads; "plan-A100-40GB" of predictions. Versions of
 * drivers and libraries are in the records and no part of it. */
void vl_baseline_key(const json_t *record, char *key, size_t size);
/* The baselines of the machines that these records ran on. directory NULL: results/baselines. VL_ENVIRONMENT:
 * there is none, with the command that makes one. VL_INVALID names the file and line that is malformed. */
Status vl_baseline_load(const char *directory, const RecordSet *records, Baseline *baseline) VL_CHECKED;
void vl_baseline_free(Baseline *baseline);
/* Puts records in the place of those of the same cell and repetition, keeps the others, notes the reason; one
 * line of what was written goes to `out` for each file. */
Status vl_baseline_update(const char *directory, const RecordSet *records, const char *reason,
                          FILE *out) VL_CHECKED;

#endif
