/* tests/model: runs training steps of a case on a device through the engine and keeps what came out. */
#ifndef VRAMLAB_TESTS_MODEL_STEP_H
#define VRAMLAB_TESTS_MODEL_STEP_H

#include "engine/engine.h"

/* A gradient or statistic after step 0, as double in logical order. */
typedef struct StepTensor {
  char name[96];
  bool is_gradient;
  int64_t elements;
  double *values;
} StepTensor;

enum { STEP_MAX_LOSSES = 8 };

typedef struct StepRecord {
  StepTensor *tensors;
  int32_t tensor_count;
  double losses[STEP_MAX_LOSSES];
  int64_t parameters;
  int32_t recomputed; /* launches that repeat a forward node */
} StepRecord;

typedef struct StepSpec {
  const char *case_name, *recipe;
  const char *settings[VL_MAX_SETTINGS];
  int32_t setting_count;
  int64_t micro_batch;
  uint64_t seed;
  int32_t steps;
  bool inference; /* the evaluation graph */
} StepSpec;

/* Runs the steps. Values of the reference device are read as the doubles they are. */
Status step_record(const StepSpec *spec, Device *device, StepRecord *record) VL_CHECKED;
/* The same for a program made by the caller, recipe applied; takes it over. Of the spec only seed and
 * steps are read. */
Status step_record_program(const StepSpec *spec, Program *program, Device *device,
                           StepRecord *record) VL_CHECKED;
void step_clear(StepRecord *record);
const StepTensor *step_find(const StepRecord *record, const char *name); /* NULL: none */
/* L2 distance over the norm of `truth`. */
double step_relative_error(const StepTensor *tensor, const StepTensor *truth);
/* The program alone, recipe applied: for running it node by node. */
Status step_build(const StepSpec *spec, Program *program) VL_CHECKED;

#endif
