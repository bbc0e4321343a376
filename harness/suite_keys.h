/* What a key of a cell means: shared by the expansion of a suite and the table of its keys. */
#ifndef VRAMLAB_HARNESS_SUITE_KEYS_H
#define VRAMLAB_HARNESS_SUITE_KEYS_H

#include "harness/harness.h"

/* The values of one cell while it is put together. */
typedef struct CellDraft {
  SuiteCell cell;
  int64_t batch; /* global; 0: micro_batch was given */
  int64_t repeats;
} CellDraft;

typedef struct SuiteKey {
  const char *name;
  /* VL_INVALID names the place, the value and what is accepted. */
  Status (*set)(const YamlNode *node, CellDraft *draft);
} SuiteKey;

enum { VL_SUITE_KEY_COUNT = 21 };
extern const SuiteKey vl_suite_keys[VL_SUITE_KEY_COUNT];

#endif
