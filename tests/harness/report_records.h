/* Synthetic records for tests of claims, figures and reports: a ResNet-50-like memory model, through the same
 * function that makes real ones. */
#ifndef VRAMLAB_TESTS_REPORT_RECORDS_H
#define VRAMLAB_TESTS_REPORT_RECORDS_H

#include "harness/harness.h"

/* A cell that ran. activation_bytes: of one sample; predicted cells belong to plan. samples_per_s <= 0: no
 * time. losses differ from the baseline's by `loss_shift`. The caller owns the record. */
typedef struct Synthetic {
  const char *suite, *recipe, *preserves;
  bool predicted;
  int64_t batch;
  double activation_bytes;
  double samples_per_s;
  double loss_shift;
  int64_t capacity_bytes; /* 0: none */
  int64_t energy_mj;      /* 0: not read */
  const char *status;     /* NULL: ok */
  const char *oom_segment, *error;
} Synthetic;
json_t *synthetic_record(const Synthetic *cell);
/* A max-batch record. */
json_t *synthetic_max_batch(const char *suite, const char *recipe, int64_t capacity_bytes, int64_t batch);

/* What `vramlab import` makes of a run of another engine at batch 16: no needed_bytes, and losses of its own.
 */
typedef struct SyntheticPeer {
  const char *recipe, *configuration;
  double samples_per_s;
  int64_t step_bytes, repeat;
} SyntheticPeer;
json_t *synthetic_peer(const SyntheticPeer *peer);

/* A list of owned records, and the set that borrows them. */
typedef struct SyntheticSet {
  json_t *owned[256];
  int32_t count;
} SyntheticSet;
void synthetic_add(SyntheticSet *set, json_t *record);
void synthetic_clear(SyntheticSet *set);
/* The suite quick on 2 CPU cores, and resnet-growth with plan and cpu cells, as a suite run would leave them.
 */
void synthetic_quick(SyntheticSet *set);
void synthetic_growth(SyntheticSet *set);
/* Ours in fp32 and bf16 beside two configurations of PyTorch in each, three repetitions of all: of every
 * repetition the same ratios, whatever its speed. */
void synthetic_beside_peers(SyntheticSet *set);
enum {
  SYNTHETIC_SEGMENTS = 8,
  SYNTHETIC_HELD = SYNTHETIC_SEGMENTS + 1
}; /* the first events: what was held */
/* Events of one step of a small network. Returns the count; at most capacity. */
int64_t synthetic_timeline(TimelineEvent *events, int64_t capacity);

#endif
