/* Shared by the files of engine. */
#ifndef VRAMLAB_ENGINE_INTERNAL_H
#define VRAMLAB_ENGINE_INTERNAL_H

#include "engine/engine.h"

typedef struct StepPlaces StepPlaces;

struct Executable {
  Program program;
  Device *device; /* borrowed */
  Schedule *schedule;
  Kernel **kernels;       /* by node id; NULL for views that need no copy */
  int64_t *storage_bytes; /* by storage id, in the device's layout */
  StepPlaces *places;     /* of the steps run on a planned heap so far */
  const Node *oversized;  /* whose workspace a mistake makes larger; NULL: none */
};

/* Gives every storage a layout and inserts the copies this takes (layouts.c). */
Status engine_assign_layouts(Program *program, Device *device, const State *state) VL_CHECKED;

/* One persistent storage in State. */
typedef struct StateEntry {
  Storage storage; /* a copy, with what it is derived from */
  Block *block;
} StateEntry;
/* NULL when State has no such name. */
const StateEntry *engine_state_find(const State *state, const char *name);
/* "" when none was set or loaded. */
const char *engine_state_vocabulary(const State *state);
int32_t engine_state_count(const State *state);
const StateEntry *engine_state_entry(const State *state, int32_t index);

/* Whether some value in State was derived from others, which it does not have. */
bool engine_state_is_derived(const State *state);
/* A value from those of its sources, each in its own type; host: room for the storage, zeroed. */
void engine_derive(const Storage *storage, void *const *sources, void *host);

/* Address of an input's block by storage; 0 when the program does not have it. */
uintptr_t engine_input_address(const Inputs *inputs, const Storage *storage);

/* A step of so many samples begins; its first micro-batch is in the inputs. */
void engine_inputs_begin_step(Inputs *inputs, int64_t samples);
/* These inputs take the step's further micro-batches. */
void engine_inputs_go_on(Inputs *inputs, const Inputs *from);
void engine_inputs_begin_micro_batch(Inputs *inputs);
/* Labels that count in the whole step. */
int64_t engine_inputs_counted(const Inputs *inputs, const Storage *labels);
/* Of them in the micro-batch that is in the inputs. */
int64_t engine_inputs_counted_here(const Inputs *inputs, const Storage *labels);
/* After the last micro-batch: VL_INVALID when the labels seen are not as many as were counted on. */
Status engine_inputs_check_counted(const Inputs *inputs, const Storage *labels) VL_CHECKED;
void engine_inputs_end_step(Inputs *inputs);

MemoryCategory engine_category_of(Role role);

/* The inputs of a smaller program that ends the step stand beside the program's own. */
void engine_account_tail(const Executable *tail, MemoryAccount *account);
/* What windows over the volume that a program is told of are added up in on the device; 0: nothing is. */
int64_t engine_window_sums_bytes(const Program *program);
/* Something else that is held then; a reckoning that is not known stays so. */
void engine_account_besides(MemoryCategory category, const char *name, int64_t bytes, MemoryAccount *account);

/* Where what a step obtains lies in the step region of a planned heap (places.c): recorded once, by a walk
 * that runs nothing, for so many whole micro-batches and a tail (NULL: none); then packed. */
StepPlaces *engine_places_find(const Executable *executable, int32_t whole, const Executable *tail);
StepPlaces *engine_places_create(int32_t whole, const Executable *tail);
/* All of a list. */
void engine_places_destroy(StepPlaces **places);
/* A stand-in for a block, with a lifetime where it is to have a place. */
Block *engine_places_obtain(StepPlaces *places, const AllocationRequest *request, bool placed);
void engine_places_release(StepPlaces *places, Block **block);
void engine_places_begin_micro_batch(StepPlaces *places);
void engine_places_pack(StepPlaces *places);
/* Into the executable's list, which owns it. */
void engine_places_keep(Executable *executable, StepPlaces *places);
/* Of the region that they take. */
int64_t engine_places_bytes(const StepPlaces *places);
/* The place of the block obtained as number `index`. VL_INTERNAL when another one was recorded. */
Status engine_places_of(const StepPlaces *places, int64_t index, AllocationRequest *request) VL_CHECKED;
/* One after the other in a region of their own: what is there for all steps. */
typedef struct PlaceCursor {
  int32_t region;
  int64_t offset;
} PlaceCursor;
/* What a block takes of a region. */
int64_t engine_place_bytes(int64_t bytes);
/* A region for blocks that take so many bytes together. */
PlaceCursor engine_place_begin(Heap *heap, int64_t bytes);
void engine_place_next(PlaceCursor *cursor, AllocationRequest *request);

/* Holds a block until vl_retained_release. */
void engine_retain(Retained *retained, Block *block);

/* What lives in a heap, by name and scope (leaks.c). */
typedef struct LiveNames LiveNames;
LiveNames *engine_live_names(const Heap *heap);
void engine_live_names_destroy(LiveNames **names);
/* Writes into result->leaks what grew since `before`, over so many steps. */
void engine_live_names_grown(const Heap *heap, const LiveNames *before, int32_t steps, CellResult *result);

/* Watches the numbers of steps (monitor.c). */
typedef struct Monitor Monitor;
Monitor *engine_monitor_create(void);
void engine_monitor_destroy(Monitor **monitor);
/* Around a step; observe is called after each of its instances. */
Status engine_monitor_begin(Monitor *monitor, Run *run) VL_CHECKED;
void engine_monitor_observe(Monitor *monitor, const Run *run, const Instance *instance,
                            const uintptr_t *outputs);
Status engine_monitor_end(Monitor *monitor, Run *run, StepMonitor *result) VL_CHECKED;
/* Of all steps so far. */
const NonFinite *engine_monitor_first(const Monitor *monitor);

/* The sums of StepMonitor.sketch of one named tensor: an element's word says in which it is, and its sign. */
void engine_sketch(const char *name, const void *values, DType dtype, int64_t elements,
                   double sums[VL_SKETCH_SUMS]);

/* The order in which an epoch's samples are drawn: Philox's, keyed by seed and epoch. */
typedef struct EpochOrder {
  int64_t *samples; /* of `epoch`; NULL before the first draw */
  int64_t epoch;
} EpochOrder;
/* Which of `count` samples is drawn as number `drawn` of the run. */
int64_t engine_order_at(EpochOrder *order, uint64_t seed, int64_t count, int64_t drawn);
void engine_order_clear(EpochOrder *order);

/* Images and labels in an HDF5 file (data.c). */
typedef struct DataSet DataSet;
Status engine_data_open(const char *path, int64_t channels, int64_t size, int64_t classes,
                        DataSet **data) VL_CHECKED;
void engine_data_close(DataSet **data);
int64_t engine_data_count(const DataSet *data, bool held_out);
/* Training samples from number `drawn` of the run on; each epoch has its own Philox order. */
Status engine_data_batch(DataSet *data, uint64_t seed, int64_t drawn, int64_t batch, float *images,
                         int32_t *labels) VL_CHECKED;
/* Held-out samples [first, first + batch), wrapping at the end. */
Status engine_data_held_out(DataSet *data, int64_t first, int64_t batch, float *images,
                            int32_t *labels) VL_CHECKED;

/* The step a batch is part of. */
typedef struct StepPlace {
  uint64_t seed, step;
  int64_t samples; /* of the step */
  int64_t drawn;   /* number in the run of the first of them */
} StepPlace;

/* Tokens, sentences and documents in an HDF5 file (text.c), as pairs of sentences with masked tokens. */
typedef struct TextSet TextSet;
typedef struct TextShape {
  int64_t vocabulary, sequence, predictions; /* tokens there are; of a sequence; masked ones at most */
} TextShape;
typedef struct TextBatch {
  int64_t count;               /* sequences */
  int32_t *tokens, *segments;  /* (count, sequence); 1: the second sentence and its [SEP] */
  float *mask;                 /* (count, sequence); 0, or -infinity at padding */
  int32_t *positions, *labels; /* (count, predictions); VL_IGNORED_LABEL where none is left */
  int32_t *follows;            /* (count); 1: the second sentence follows the first */
} TextBatch;
Status engine_text_open(const char *path, TextShape shape, TextSet **text) VL_CHECKED;
void engine_text_close(TextSet **text);
/* The digest of the vocabulary, as the file has it; "": it has none. */
const char *engine_text_vocabulary(const TextSet *text);
int64_t engine_text_count(const TextSet *text, bool held_out);
/* The training samples from `first` of the step on. */
Status engine_text_batch(TextSet *text, StepPlace at, int64_t first, const TextBatch *batch) VL_CHECKED;
/* Labels that count in the whole step. */
int64_t engine_text_counted(TextSet *text, StepPlace at);
/* Held-out samples from `first` on, wrapping at the end. */
Status engine_text_held_out(TextSet *text, int64_t first, const TextBatch *batch) VL_CHECKED;

/* Where a program's inputs come from (feed.c): a data file of what its inputs are, or Philox. */
typedef struct Feed Feed;
/* path: "" for synthetic inputs. The program is only read. */
Status engine_feed_open(const char *path, const Program *program, uint64_t seed, Feed **feed) VL_CHECKED;
void engine_feed_close(Feed **feed);
/* The samples of a step, from number `drawn` of the run on. Of a file every epoch has ceil(samples / batch)
 * steps, and none takes samples of two: the last may have fewer. */
typedef struct Window {
  int64_t drawn, samples;
} Window;
Window engine_feed_window(const Feed *feed, uint64_t step, int64_t global_batch);
/* The digest of a text's vocabulary; "" for anything else, and where the file has none. */
const char *engine_feed_vocabulary(const Feed *feed);
/* Training samples of an epoch; 0: synthetic, there is no end. */
int64_t engine_feed_count(const Feed *feed);
/* The `batch` samples from `first` of a step on, into inputs for as many; with first = 0 also how many labels
 * count in the step. */
Status engine_feed_fill(Feed *feed, Inputs *inputs, int64_t batch, uint64_t step, int64_t global_batch,
                        int64_t first) VL_CHECKED;
/* ---- Prefetch: the next micro-batch's inputs, filled by a thread of its own while the device computes ---- */

/* Inputs like these in memory of the host's, to be filled in any thread and delivered later; NULL where the
 * device has no staging. */
Status engine_inputs_stage(const Inputs *inputs, Inputs **staged) VL_CHECKED;
/* What was written there, to inputs on the device. */
Status engine_inputs_deliver(Inputs *staged, Inputs *inputs) VL_CHECKED;

typedef struct Prefetch Prefetch;
typedef Status (*PrefetchFill)(void *context, Inputs *inputs, uint64_t step, int64_t first_sample);
/* For `inputs`, borrowed; NULL where the device has no staging. fill is called by the thread or the caller of
 * take, never by both at once; whoever else uses its context waits by take or close. */
Status engine_prefetch_open(const Inputs *inputs, PrefetchFill fill, void *context,
                            Prefetch **prefetch) VL_CHECKED;
/* Begins with a micro-batch; returns at once. */
void engine_prefetch_begin(Prefetch *prefetch, uint64_t step, int64_t first_sample);
/* Fills any inputs with a micro-batch: by a copy where it is the one begun, else here and now. */
Status engine_prefetch_take(Prefetch *prefetch, Inputs *inputs, uint64_t step,
                            int64_t first_sample) VL_CHECKED;
/* Waits and sets to NULL; NULL is allowed. */
void engine_prefetch_close(Prefetch **prefetch);

/* ---- Interference: who else used the machine ---- */

typedef struct Interference {
  bool known;
  int64_t at_ns;                  /* of the monotonic clock */
  double all_s, used_s, stolen_s; /* of all processors, since the system started */
  double own_s;                   /* of this process */
  int64_t involuntary_switches;
} Interference;
Interference engine_interference_begin(void);
/* Since then, into the result's fields. Shares of the processors stay unknown below half a second: the kernel
 * counts in hundredths, and a tick more or less would pass for a neighbour. */
void engine_interference_end(const Interference *begun, CellResult *result);

/* ---- Processors ---- */

/* -1, "": the system does not tell. */
typedef struct ProcessorState {
  int64_t clock_mhz,
      clock_max_mhz; /* of the fastest that this process may run on: now, and as it is let run */
  int64_t temperature_c;
  char governor[32];
} ProcessorState;
/* root is "" but in tests. */
ProcessorState engine_processor_state(const char *root);

/* Mean loss over the held-out labels, share of those predicted right and, of volumes, Dice, by an evaluation
 * program. */
Status engine_feed_evaluate(Feed *feed, Run *run, Inputs *inputs, CellResult *result) VL_CHECKED;

/* What windows that slide over the largest held-out volume are added up in; 0: there are none. */
int64_t engine_feed_window_sums_bytes(const Feed *feed);

#endif
