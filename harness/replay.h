/* Replays of a trace under the policies there are. */
#ifndef VRAMLAB_HARNESS_REPLAY_H
#define VRAMLAB_HARNESS_REPLAY_H

#include "harness/trace.h"

/* A policy with its options, and how PyTorch is told. */
typedef struct ReplayPolicy {
  const char *name;    /* of the row */
  HeapOptions options; /* without a capacity */
  bool defragment;     /* where steps end */
  const char
      *setting; /* of PyTorch's allocator: "max_split_size_mb:128"; "": its default; NULL: it has none */
} ReplayPolicy;
/* All there are, PyTorch's default first. */
const ReplayPolicy *vl_replay_policies(int32_t *count);

/* One row: a policy, and what became of the trace under it. */
typedef struct Replay {
  const ReplayPolicy *policy;
  ReplayResult result; /* under the capacity asked for, or without any */
  int64_t least_bytes; /* least capacity it runs in, to 1/256; -1: not known */
  ReplayResult least;  /* the run there */
} Replay;

/* What was replayed: rows in the order of the table. */
typedef struct ReplaySet {
  const TraceFile *file;
  int64_t capacity_bytes; /* 0: none */
  bool searched;
  bool planned_left_out; /* very many blocks take long to plan */
  TracePeak peak;        /* the lower bound */
  TracePlan plan;        /* for policy planned, where it is among the rows */
  Replay *rows;
  int32_t count;
} ReplaySet;
/* Under every policy, or those of a name (HeapOptions.policy; NULL: all). search: also for the least
 * capacities. VL_INVALID names the accepted policies. */
Status vl_replay_run(const TraceFile *file, const char *policy, int64_t capacity_bytes, bool search,
                     ReplaySet *set) VL_CHECKED;
void vl_replay_free(ReplaySet *set);

void vl_replay_print(const ReplaySet *set, FILE *out);
json_t *vl_replay_json(const ReplaySet *set);

#endif
