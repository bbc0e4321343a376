/* Shared by the files of a cell: cell.c runs one, cell_setup.c makes what it runs on, cell_steps.c runs its
 * steps and takes their figures, cell_timeline.c keeps the events of the last, cell_divide.c finds
 * accumulate=auto. */
#ifndef VRAMLAB_ENGINE_CELL_H
#define VRAMLAB_ENGINE_CELL_H

#include "engine/internal.h"

typedef struct Mark {
  int64_t event_count;
  Segment segment;
} Mark;

/* The program for what a window leaves over: fewer samples than a micro-batch. */
typedef struct Tail {
  int64_t samples;
  Executable *executable;
  Inputs *inputs;
} Tail;

typedef struct Watch Watch; /* of a step that is diagnosed */

typedef struct Cell {
  const CellSpec *spec;
  const CellObserver *observer;
  bool low_end; /* of a profile's intervals */
  CellResult *result;
  const Case *workload;
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  Recipe recipe;
  Device *device;
  Tracker *tracker;
  Heap *heap;
  Tracker *offload_tracker; /* of the offload tier, where the recipe uses one */
  Heap *offload_heap;
  Tracker *emulation_tracker; /* with its heap only where kernels are emulated */
  Heap *emulation;
  State *state;
  Executable *executable;
  Inputs *inputs;
  Tail tails[2]; /* of a batch that the micro-batch does not divide, and of an epoch's last one */
  int32_t tail_count;
  Feed *feed;
  Prefetch *prefetch; /* while steps run, where the device has staging */
  int64_t fill_ns;    /* that nothing overlapped: inputs of the measured steps */
  uint64_t end_step;  /* of this run: none is prefetched */
  Block *injected;    /* what the spec wants held besides */
  Block *window_sums; /* of a volume that is told of, not given; held while its windows run */
  Retained retained;
  LiveNames *names_before; /* what lived after the first step */
  Run run;
  int64_t first_step; /* of this run: 0, or where the loaded state ended */
  const char *stage;  /* where an allocation fails outside a step */
  int64_t driver_start_bytes;
  int64_t energy_start_mj;      /* of the card when the measured steps begin; -1: not known */
  Monitor *monitor;             /* where the spec asks for it */
  Interference others;          /* when the measured steps begin */
  DeviceGraphs graphs_start;    /* when the measured steps begin */
  DeviceCrossCheck check_start; /* when the measured steps begin, where the spec asks for it */
  Mark *marks;
  int64_t mark_count, mark_capacity;
  bool marks_segments; /* in this step, for the timeline */
  TimelineEvent *held; /* what the timeline begins with */
  int64_t held_count;
  int64_t *batch_ends; /* of a queue: events of the timeline when each batch had ended */
  int64_t batch_end_count, batch_end_capacity;
} Cell;

/* ---- cell.c ---- */

/* Writes a recipe into a spec with another value of one of its keys. */
Status cell_set_value(const Recipe *of, const char *key, const char *value, CellSpec *spec) VL_CHECKED;
/* The peak query of a Target, whose context is the cell: plans it with another value of a key of its recipe.
 */
Status cell_plan_needed(void *context, const char *key, const char *value, int64_t *bytes) VL_CHECKED;
/* The cell of a spec, its batch already divided, at one end of a profile's intervals. */
Status cell_run_at_end(const CellSpec *spec, const CellObserver *observer, bool low_end,
                       CellResult *result) VL_CHECKED;

/* ---- cell_setup.c ---- */

/* The value of a case argument by name, or -1. */
int64_t cell_argument(const Cell *cell, const char *name);
/* The case's graph for so many samples under a recipe. */
Status cell_build_program(Cell *cell, const Recipe *recipe, bool training, int64_t samples,
                          Program *program) VL_CHECKED;
/* Everything before the first step: device, programs, heaps, weights, inputs, kernels. */
Status cell_set_up(Cell *cell) VL_CHECKED;
void cell_tear_down(Cell *cell);
/* As many samples of a step as the inputs take. */
Status cell_fill_inputs(Cell *cell, Inputs *inputs, int64_t batch, uint64_t step,
                        int64_t first_sample) VL_CHECKED;
/* How many samples a step has: the last of an epoch may have fewer. */
int64_t cell_window_samples(const Cell *cell, uint64_t step);

/* ---- cell_inject.c ---- */

/* VL_INVALID names what may be injected. */
Status cell_check_inject(const CellSpec *spec) VL_CHECKED;
/* Holds what is to be allocated besides, until the cell is torn down. */
Status cell_inject_block(Cell *cell) VL_CHECKED;
/* Lets time pass after a step that took step_ns; how much. */
int64_t cell_inject_time(const Cell *cell, int64_t step_ns);

/* ---- cell_steps.c ---- */

/* Warm-up and measured steps, with what each needed. */
Status cell_run_steps(Cell *cell) VL_CHECKED;
/* Peaks since the last reset, into the warm-up or steady fields, and the overall ones where higher. */
void cell_take_peaks(Cell *cell, bool steady);
/* The same when a step has ended, and its own: a spike in one step (a new shape, a new algorithm) must be
 * seen with its step. Peaks start again. */
void cell_take_step_peak(Cell *cell, bool steady);
/* What grew from step to step, by name. */
void cell_take_leaks(Cell *cell);
/* Driver figures and what follows from them. */
void cell_take_driver(Cell *cell);
/* What the tracker costs of a step, at most. */
void cell_measure_tracker(Cell *cell);
/* How much of what is reserved is used, and what the policy has to say, after a step. */
void cell_take_allocation(Cell *cell, const StepResult *step);
/* Runs inference once more for a sketch of its outputs; what it takes is in no figure. */
Status cell_take_outputs(Cell *cell) VL_CHECKED;
/* The loss scale and the steps it skipped. */
Status cell_take_scaler(Cell *cell) VL_CHECKED;

/* The last step once more, for who observes it. */
Status cell_repeat_step(Cell *cell) VL_CHECKED;

/* What runs steps of the cell's own program. */
Run cell_plain_run(Cell *cell);

/* Run.observe of a timeline and of monitoring; the context is the cell. */
void cell_observe(void *context, const Run *run, const Instance *instance, const uintptr_t *outputs);

/* ---- cell_timeline.c ---- */

/* Begins the timeline of a step with what is held now. */
void cell_begin_timeline(Cell *cell);
/* An instance was launched: the events up to here are those of its segment. */
void cell_mark_segment(Cell *cell, const Instance *instance);
/* A batch of a queue has ended; nothing where no timeline is kept. */
void cell_mark_batch(Cell *cell);
/* Puts what was held and the events since into the result, and keeps no more. */
void cell_end_timeline(Cell *cell);
/* Keeps no more, and forgets the events since it began. */
void cell_drop_timeline(Cell *cell);

/* ---- cell_ops.c ---- */

/* Where the spec asks for a timeline: one more step, of which no other figure knows, for the time of every
 * op. */
Status cell_record_ops(Cell *cell) VL_CHECKED;

/* ---- diagnose.c ---- */

/* Watches what a step obtains and releases from here on; the timeline is not kept meanwhile. */
Watch *engine_watch_begin(const Cell *cell);
/* Ends it; what was found goes to the result when the step ended well. */
void engine_watch_end(Watch **watch, bool ended_well, Diagnosis *result);

/* ---- cell_copies.c ---- */

/* The mistake copy-weights: an fp32 copy of every parameter, held as long as the cell. */
Status cell_copy_weights(Cell *cell) VL_CHECKED;

/* ---- cell_divide.c ---- */

/* Whether a cell of one batch fits its capacity, by a plan of two steps, the second with all state there.
 * What is not a question of memory passes: the run itself will say it. */
Status cell_plan_fits(const CellSpec *spec, bool low_end, bool *fits) VL_CHECKED;

/* The fewest micro-batches that fit in the place of accumulate=auto; when none do, those of one sample. */
Status cell_decide_accumulate(CellSpec *spec) VL_CHECKED;

/* ---- cell_queue.c ---- */

/* VL_INVALID when the spec's queue, or a recipe that needs one, cannot be run. */
Status cell_check_queue(const Cell *cell) VL_CHECKED;
/* The whole cell, of a spec with a queue. */
Status cell_run_queue(Cell *cell) VL_CHECKED;

#endif
