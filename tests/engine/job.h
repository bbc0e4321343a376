/* A program compiled on a device with everything it takes to run steps, and recordings of what a run leaves.
 */
#ifndef VRAMLAB_TESTS_ENGINE_JOB_H
#define VRAMLAB_TESTS_ENGINE_JOB_H

#include "engine/engine.h"

/* Fails the test with the message when the status is not VL_OK. */
void require_ok(Status status);

/* "reference", or a name vl_device_open takes. Ends the program with 77 when a module does not exist. */
void job_device_open(const char *name, Device **device);

typedef struct Job {
  Device *device;
  Tracker *tracker; /* keeps every event */
  Heap *heap;
  Tracker *offload_tracker; /* of the offload tier, where the recipe uses one; keeps every event */
  Heap *offload_heap;
  State *state;
  Executable *executable;
  Inputs *inputs;
  Run run;
} Job;

/* Applies the recipe to the forward program, which it takes over, compiles and allocates. capacity_bytes: of
 * the heap, 0: none. */
void job_open(Job *job, const char *device, Program *program, const char *recipe, uint64_t seed,
              int64_t capacity_bytes);
/* The same with a limit to the offload tier, 0: none; fails where job_open would fail the test. */
Status job_try_open(Job *job, const char *device, Program *program, const char *recipe, uint64_t seed,
                    int64_t capacity_bytes, int64_t offload_capacity_bytes) VL_CHECKED;
/* Everything goes; checks that the heaps then hold nothing. */
void job_close(Job *job);
/* Step number `step` on synthetic inputs of that step; the loss. */
double job_step(Job *job, uint64_t step);

/* Named arrays of bytes. */
typedef struct Item {
  const char *name;
  void *data;
  int64_t bytes;
  DType dtype;
} Item;
typedef struct Recording {
  Item *items;
  int32_t count, capacity;
} Recording;
void recording_clear(Recording *recording);
const Item *recording_find(const Recording *recording, const char *name);

/* All of State, by name. */
void job_read_state(Job *job, Recording *recording);
/* From now on every gradient of a parameter replaces that name's entry as it is made. */
void job_record_gradients(Job *job, Recording *recording);

/* Same names and same bytes; what: for the message. */
void assert_recordings_equal(const Recording *a, const Recording *b, const char *what);

#endif
