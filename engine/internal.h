/* Shared by the files of engine. */
#ifndef VRAMLAB_ENGINE_INTERNAL_H
#define VRAMLAB_ENGINE_INTERNAL_H

#include "engine/engine.h"

struct Executable {
  Program program;
  Device *device; /* borrowed */
  Schedule *schedule;
  Kernel **kernels;       /* by node id; NULL for views that need no copy */
  int64_t *storage_bytes; /* by storage id, in the device's layout */
};

/* Gives every storage a layout and inserts the copies this takes (layouts.c). */
Status engine_assign_layouts(Program *program, Device *device, const State *state) VL_CHECKED;
/* Whether a view shares its input's storage and is legal there: nothing to launch. */
bool engine_is_free_view(const Node *node);

/* One persistent storage in State. */
typedef struct StateEntry {
  Storage storage; /* a copy with its own name; root is not kept */
  Tensor root;
  Block *block;
} StateEntry;
/* NULL when State has no such name. */
const StateEntry *engine_state_find(const State *state, const char *name);
int32_t engine_state_count(const State *state);
const StateEntry *engine_state_entry(const State *state, int32_t index);

/* Address of an input's block by storage; 0 when the program does not have it. */
uintptr_t engine_input_address(const Inputs *inputs, const Storage *storage);

/* A step of `micro_batches` begins; one of them is in the inputs. */
void engine_inputs_begin_step(Inputs *inputs, int32_t micro_batches);
void engine_inputs_begin_micro_batch(Inputs *inputs);
/* Labels that count in the whole step. */
int64_t engine_inputs_counted(const Inputs *inputs, const Storage *labels);
/* After the last micro-batch: VL_INVALID when the labels seen are not as many as were counted on. */
Status engine_inputs_check_counted(const Inputs *inputs, const Storage *labels) VL_CHECKED;
void engine_inputs_end_step(Inputs *inputs);

MemoryCategory engine_category_of(Role role);

/* Images and labels in an HDF5 file (data.c). */
typedef struct DataSet DataSet;
Status engine_data_open(const char *path, int64_t channels, int64_t size, int64_t classes,
                        DataSet **data) VL_CHECKED;
void engine_data_close(DataSet **data);
int64_t engine_data_count(const DataSet *data, bool held_out);
/* Batch number `step` of the training images, each epoch in its own Philox order. */
Status engine_data_batch(DataSet *data, uint64_t seed, uint64_t step, int64_t batch, float *images,
                         int32_t *labels) VL_CHECKED;
/* Held-out samples [first, first + batch), wrapping at the end. */
Status engine_data_held_out(DataSet *data, int64_t first, int64_t batch, float *images,
                            int32_t *labels) VL_CHECKED;

#endif
