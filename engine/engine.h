/* engine: compiles a program for a device, runs its schedule through the heap, trains, keeps State. */
#ifndef VRAMLAB_ENGINE_H
#define VRAMLAB_ENGINE_H

#include "base/base.h"
#include "cases/cases.h"
#include "devices/device.h"
#include "graph/graph.h"
#include "memory/memory.h"
#include "optimizations/optimizations.h"

/* ---- Compiled programs --------------------------------------------------------------------------------- */

typedef struct State State;           /* persistent storages by name; see below */
typedef struct Executable Executable; /* a program compiled for a device */

/* Layouts, copies, schedule and kernels for a program; takes over the program (also on failure). What
 * `state` (NULL allowed) already holds keeps its layout. Nothing is allocated on the device yet.
 * VL_UNSUPPORTED names the node the device cannot run. */
Status vl_executable_create(Program *program, Device *device, const State *state,
                            Executable **executable) VL_CHECKED;
void vl_executable_destroy(Executable **executable);
const Program *vl_executable_program(const Executable *executable);
const Schedule *vl_executable_schedule(const Executable *executable);
/* The policy its recipe asks for, with its options. */
HeapOptions vl_program_heap_options(const Program *program);
/* Whether the device runs some node by kernels that stand in for others (fp16 on a cpu): numbers are what
 * they should be, speed is not, and conversion buffers are no part of what is needed. */
bool vl_executable_is_emulated(const Executable *executable);
/* Compiles the kernels (the device's build); separate so that what it takes is seen apart. */
Status vl_executable_build(Executable *executable) VL_CHECKED;

/* One summand of a peak: `count` tensors of a kind. */
typedef struct MemoryTerm {
  MemoryCategory category;
  char name[64]; /* "weights", "saved: softmax", "made again: linear" */
  int64_t count;
  int64_t bytes;          /* dense, in the device's layout */
  int64_t rounding_bytes; /* what rounding each up to a block adds */
} MemoryTerm;

enum { VL_MAX_TERMS = 64 };

/* What a step holds at a moment. */
typedef struct MemoryAccount {
  MemoryTerm terms[VL_MAX_TERMS];
  int32_t term_count;
  int64_t by_category[MEMORY_CATEGORY_COUNT]; /* sums of the terms, dense */
  char op[64], scope[64];                     /* the node that runs then */
  Segment segment;
  int64_t highest_bytes; /* of all moments, each tensor rounded up to a block */
} MemoryAccount;
/* Reckons it from what is needed when, without schedule, heap or tracker: to hold their figures against.
 * place: the position of the node, as the tracker has it; -1: where it reckons the peak to be. */
void vl_executable_account(const Executable *executable, int64_t place, MemoryAccount *account);

/* ---- State ------------------------------------------------------------------------------------------------ */

/* An empty State on a device and heap (borrowed). */
State *vl_state_create(Device *device, Heap *heap);
/* Where storages of the offload tier are kept from now on (borrowed); the device has opened it. */
void vl_state_use_offload_heap(State *state, Heap *heap);
/* Releases every block. */
void vl_state_destroy(State **state);
/* Allocates and initialises what the executable's program needs and State does not have yet: parameters and
 * statistics, and with `optimizer` the optimizer's state too. What is there already is shared (evaluation
 * uses the training program's weights). */
Status vl_state_prepare(State *state, const Executable *executable, uint64_t seed, bool optimizer) VL_CHECKED;
/* Copies a persistent storage out or in, by name, in logical layout and the storage's dtype. bytes must
 * match. VL_INVALID: no such name. */
Status vl_state_read(State *state, const char *name, void *host, int64_t bytes) VL_CHECKED;
Status vl_state_write(State *state, const char *name, const void *host, int64_t bytes) VL_CHECKED;
/* Says by which vocabulary tokens are numbered (a digest; "": by none, or it is not known). A file keeps it;
 * what a file says becomes State's where State says nothing. */
void vl_state_set_vocabulary(State *state, const char *digest);
/* Whole State and the step count to a file in the safetensors format (logical layout; temp and rename),
 * and back. VL_INVALID names the file and what does not match, the vocabulary too. */
Status vl_state_save(State *state, const char *path, int64_t step, uint64_t seed) VL_CHECKED;
Status vl_state_load(State *state, const char *path, int64_t *step, uint64_t *seed) VL_CHECKED;

/* ---- Running ------------------------------------------------------------------------------------------------ */

typedef struct Inputs Inputs; /* input blocks of a program: allocated once, filled for each micro-batch */

/* What a scaler has done so far (State's "loss_scale" and "loss_scale.counters"). */
typedef struct Scaler {
  double scale;
  int64_t clean;   /* steps in a row that were not skipped, since the scale last changed */
  int64_t skipped; /* steps that were skipped */
  int64_t steps;   /* steps that were not */
} Scaler;

/* Blocks that nobody gives back: what retain-graph=every-step leaks, until a run ends. */
typedef struct Retained {
  Block **blocks;
  int64_t count, capacity;
} Retained;
void vl_retained_release(Retained *retained, Heap *heap);

typedef struct Run {
  Executable *executable;
  State *state;
  Heap *heap;
  Heap *offload_heap; /* of the offload tier; NULL: the schedule moves nothing */
  Heap
      *emulation; /* for conversion buffers of emulated kernels, which no peak shall have in it; NULL: heap */
  Tracker *tracker;
  Device *device;
  uint64_t seed;
  uint64_t step;
  Rounding *rounding;   /* of the low-precision results of backward, added to; NULL: not counted */
  double learning_rate; /* <= 0: the program's own */
  /* A schedule: the rate of the step that follows `steps` successful ones, which skipped steps do not
   * advance; becomes learning_rate. NULL: none. */
  double (*schedule)(void *context, int64_t steps);
  void *schedule_context;
  const char
      *failed_segment; /* where vl_run_step ran out of memory; what it asked for: vl_heap_last_failure */
  /* Called after each instance when set: a view of what was just written (tests, monitors). */
  void (*observe)(void *context, const struct Run *run, const Instance *instance, const uintptr_t *outputs);
  void *observe_context;
  int64_t launch_start_ns; /* for `observe`: when the launch it is told of began */
  Retained *retained;      /* of a program that leaks on purpose; else NULL will do */
  /* Accumulation: puts a micro-batch's samples, from `first_sample` of the step on, in the inputs. Called
   * before each micro-batch but the first, whose inputs the caller has filled; its time is not the step's. */
  Status (*fill)(void *context, Inputs *inputs, int64_t first_sample);
  void *fill_context;
  /* A window that is not `accumulate` whole micro-batches (the last one of an epoch, a batch that does not
   * divide): the samples of the step, 0: all. Whole micro-batches come first; a smaller one left over is run
   * by `tail`, the same recipe's program for just as many samples, on the same State and heap, which takes
   * over the sums. A loss is the mean over what the window has. */
  int64_t samples;
  Executable *tail; /* NULL: nothing is left over */
  Inputs *tail_inputs;
} Run;

Status vl_inputs_create(const Executable *executable, Device *device, Heap *heap, Inputs **inputs) VL_CHECKED;
void vl_inputs_destroy(Inputs **inputs);
/* Synthetic: as each input's Init says, from Philox keyed (seed, step, input's name) and first_sample. */
Status vl_inputs_synthesize(Inputs *inputs, uint64_t seed, uint64_t step, int64_t first_sample) VL_CHECKED;
/* Plain host data into the named input. */
Status vl_inputs_write(Inputs *inputs, const char *name, const void *host, int64_t bytes) VL_CHECKED;
/* How many labels of the named input are not VL_IGNORED_LABEL in all micro-batches of the next step: what a
 * mean over them divides by, needed before the first backward. When not called: all of them. */
Status vl_inputs_set_counted(Inputs *inputs, const char *name, int64_t counted) VL_CHECKED;

/* Reads the scaler; without loss scaling scale 1, nothing skipped, and run->step steps. Waits for the device.
 */
Status vl_run_scaler(const Run *run, Scaler *scaler) VL_CHECKED;

typedef struct StepResult {
  double loss;                          /* NaN where nothing computes (plan) */
  int64_t step_ns;                      /* synchronised */
  int64_t evicted_bytes, fetched_bytes; /* copied to the offload tier and back */
  int64_t stall_ns;                     /* launches waited for those copies; -1: not known */
  HeapMoved moved;                      /* by the compaction after it; its time is the step's */
} StepResult;
/* Runs one step: obtains, launches and releases along the schedule. On failure everything obtained in the
 * step has been released. With accumulation the loss is the mean over all its micro-batches; VL_INVALID, with
 * nothing updated, when their labels are not as many as vl_inputs_set_counted said. logits: NULL or room for
 * the program's logits, plain f32. */
Status vl_run_step(Run *run, Inputs *inputs, StepResult *result, float *logits) VL_CHECKED;

/* ---- Data ---------------------------------------------------------------------------------------------------- */

/* Classes Dice is told of, and channels a data file's volumes may have. */
enum { VL_MAX_CLASSES = 128, VL_MAX_CHANNELS = 64 };

/* A data file of volumes (`--data`), being made: appears under its name when it is finished. */
typedef struct VolumeWriter VolumeWriter;
typedef struct NewVolume {
  const char *name; /* up to VL_NAME_BYTES - 1 bytes, unique; volumes are used in the order of their names */
  bool held_out;
  int64_t channels, size[3]; /* depth, height, width */
  double spacing_mm[3];
  const float *image;    /* (channels, size) */
  const int32_t *labels; /* (size), below VL_MAX_CLASSES */
} NewVolume;
Status vl_volume_writer_create(const char *path, VolumeWriter **writer) VL_CHECKED;
Status vl_volume_writer_add(VolumeWriter *writer, const NewVolume *volume) VL_CHECKED;
Status vl_volume_writer_finish(VolumeWriter **writer) VL_CHECKED;
/* Leaves no file behind; does nothing to one that is finished. */
void vl_volume_writer_abandon(VolumeWriter **writer);

/* A NIfTI-1 file's image, scaled, in the orientation from left to right, behind to before, below to above. */
typedef struct NiftiImage {
  int64_t channels, size[3]; /* depth, height, width: from below, behind, left */
  double spacing_mm[3];
  float *values; /* (channels, size) */
} NiftiImage;
/* VL_INVALID says what is wrong with the file, VL_ENVIRONMENT that it is not there or that this program was
 * built without nifticlib. */
Status vl_nifti_read(const char *path, NiftiImage *image) VL_CHECKED;
void vl_nifti_clear(NiftiImage *image);
/* Whether this program was built with nifticlib. */
bool vl_nifti_is_there(void);

/* What a NIfTI-1 header says, once it makes sense. */
typedef struct NiftiHeader {
  int64_t extent[3], channels; /* the fastest first */
  int32_t datatype, bytes;     /* of a voxel */
  double spacing_mm[3], slope, intercept;
} NiftiHeader;
/* Checks the first bytes of a file against each other and against how many bytes there are, decompressed. */
Status vl_nifti_check_header(const char *path, const uint8_t *data, int64_t bytes_read, int64_t file_bytes,
                             NiftiHeader *header) VL_CHECKED;

/* ---- One cell: a case under a recipe on a device ------------------------------------------------------------- */

enum { VL_MAX_SETTINGS = 12, VL_NAME_BYTES = 64, VL_RECIPE_BYTES = 256 };
enum { VL_MAX_SHAPES = 16, VL_SHAPE_BYTES = 24, VL_QUEUE_BYTES = 256, VL_QUEUE_BATCHES_BYTES = 96 };

typedef struct CellSpec {
  char case_name[VL_NAME_BYTES];
  char recipe[VL_RECIPE_BYTES];
  char device[16];                               /* cpu, cuda, plan */
  char profile[VL_NAME_BYTES];                   /* plan: "" = the machine's cpu */
  char settings[VL_MAX_SETTINGS][VL_NAME_BYTES]; /* "size=96" */
  int32_t setting_count;
  int64_t micro_batch;    /* accumulate=auto: the samples of a step, which it divides */
  int64_t global_batch;   /* samples of a step, the last micro-batch being smaller; 0: all are whole */
  int64_t capacity_bytes; /* 0: none */
  int64_t offload_capacity_bytes; /* of the offload tier; 0: none */
  char offload_directory[512];    /* cpu: where the offload tier's file is; "" = TMPDIR, else /tmp */
  int32_t threads;                /* 0: all */
  int32_t warmup;                 /* steps dropped from statistics; at least 1 */
  int32_t steps;                  /* measured steps; at least 1 */
  uint64_t seed;
  /* Samples of several sizes instead of batches of one: "64x64x64:8,96x96x64:4", in an order drawn with the
   * seed. A step is a pass over all of them, in batches of neighbours of one size, micro_batch at most; with
   * dynamic-batch, of as many as fit. "": none. */
  char queue[VL_QUEUE_BYTES];
  char queue_batches[VL_QUEUE_BATCHES_BYTES]; /* what dynamic-batch would decide, "4,2,1"; "": it does */
  bool inference;
  bool unlimited;   /* plan: goes on past the capacity and a profile's memory, to tell what is needed */
  bool timeline;    /* keep the events of the last step, or of the first when it runs out of memory */
  bool monitor;     /* watch the numbers of every step, which then tells nothing about time */
  bool diagnose;    /* hold the last step against the account of its program */
  bool cross_check; /* the device's own tracing beside the tracker; no time is told either */
  char data[512];   /* HDF5 file of images, text or volumes, or "phantoms"; "" = synthetic */
  char save_state[512], load_state[512];
  double learning_rate; /* <= 0: the case's */
  double max_noise;     /* > 0: goes on after `steps` until the median's interval is within this share on both
                           sides */
  double max_time_s;    /* but no longer than this; only with max_noise, 0: a minute */
  char inject[48];      /* a fault on purpose: "slowdown=0.05", "allocate=1MiB:activation"; "": none */
} CellSpec;
/* Defaults: device cpu, batch 1, warmup 1, steps 5, seed 0. */
void vl_cell_spec_init(CellSpec *spec);

/* One event of the last step's timeline, with names that outlive the run. Before the step's own stand what
 * was held when it began, segments first, as MEMORY_SEGMENT_HELD and MEMORY_HELD. */
typedef struct TimelineEvent {
  int64_t time_ns; /* since the step began */
  int32_t action;  /* MemoryAction */
  int32_t category;
  int64_t bytes, requested_bytes, allocated_bytes, reserved_bytes;
  int64_t offset;       /* from the beginning of the heap's segment it lies in */
  int32_t heap_segment; /* number of that, in order of reservation; -1: none */
  int32_t segment;      /* Segment of the instance it belongs to */
  int32_t stream;
  int32_t op; /* OpRecord it belongs to: obtained for it, or released behind it; -1: none */
  char name[VL_NAME_BYTES];
  char scope[VL_NAME_BYTES];
} TimelineEvent;

/* One launch of a step, in order. Its time is that of one more step like the one of the timeline, which waits
 * for the device behind every launch: what launching costs is in it, and nothing overlaps. */
typedef struct OpRecord {
  char op[VL_NAME_BYTES], scope[VL_NAME_BYTES];
  char implementation[VL_NAME_BYTES]; /* the library's name of what it chose; "": not told */
  int32_t segment;                    /* Segment */
  int32_t stream, micro_batch;
  int32_t pass;         /* above 0: made again for backward */
  int64_t start_ns;     /* since the first was launched */
  int64_t duration_ns;  /* where the device predicts, the least by a data sheet's rates; -1, with start_ns:
                           nothing  tells time */
  int64_t flops, bytes; /* counted from shapes: vl_node_flops, vl_node_bytes */
} OpRecord;

enum { VL_SKETCH_SUMS = 32 };

/* What a step did to its numbers. */
typedef struct StepMonitor {
  double loss_scale; /* it was computed with; 1 without loss scaling */
  bool skipped;      /* some gradient was not finite */
  double
      gradient_norm; /* of all gradients together, unscaled, before clipping; not finite where one is not */
  double flushed_share; /* of the low-precision results of backward, by rounding; NaN: kernels do not tell */
  /* All gradients of parameters, unscaled, each element in one of the sums, with a sign; Philox keyed by the
   * parameter's name says which, times sqrt(32). It is the same in every cell and step, so the difference of
   * two cells' sums is the sketch of the difference of their gradients, and the mean square of the sums is
   * its squared norm, unbiased (count sketch: Charikar, Chen, Farach-Colton, ICALP 2002). With 32 sums the
   * standard deviation of a squared norm is at most sqrt(2 / 32) = 1/4 of it, that of a norm about 1/8. */
  double sketch[VL_SKETCH_SUMS];
} StepMonitor;
/* The distance of two sketches over a norm: the relative error of the first's gradients, estimated. */
double vl_sketch_error(const double sketch[VL_SKETCH_SUMS], const double of[VL_SKETCH_SUMS]);

/* The first result that was not finite. */
typedef struct NonFinite {
  int64_t step; /* -1: none was */
  char tensor[VL_NAME_BYTES], op[VL_NAME_BYTES], scope[VL_NAME_BYTES], segment[16];
} NonFinite;

enum { VL_MAX_STEPS = 1000000, VL_MAX_MONITORED_STEPS = 10000, VL_MAX_SCOPES = 256, VL_MAX_LEAKS = 64 };

/* Of a queue: what one size of sample needs. */
typedef struct ShapeResult {
  char shape[VL_SHAPE_BYTES]; /* "64x64x64" */
  int64_t samples, batches;   /* of a pass */
  int64_t batch;              /* samples of the largest batch */
  double samples_per_s;       /* over the time of its batches, median of the measured passes */
  double batch_s;             /* mean time of a batch in that pass */
  int64_t peak_allocated_bytes, peak_reserved_bytes; /* while its batches ran */
} ShapeResult;

/* What `diagnose` finds in a step beside what the program accounts for. */
typedef enum AnomalyKind {
  ANOMALY_RETAINED_GRAPH = 0, /* what steps saved for their backward is never given back */
  ANOMALY_KEPT_LOSS,          /* what forward saved lives beyond the last node that reads it */
  ANOMALY_WEIGHT_COPY,        /* a parameter lives twice */
  ANOMALY_WORKSPACE,          /* a kernel was given more workspace than it needs */
  ANOMALY_KEPT_RECOMPUTED,    /* what was made again lives beyond the last node that reads it */
  ANOMALY_GROWTH,             /* something else that every step leaves behind */
  ANOMALY_HELD,               /* held when the step begins, and not of the program */
  ANOMALY_SIZE,               /* a tensor takes other bytes than it should */
  ANOMALY_KIND_COUNT
} AnomalyKind;
/* "retained-graph", "kept-loss", "weight-copy", "workspace", "kept-recomputed", "growth", "held", "size". */
const char *vl_anomaly_name(AnomalyKind kind);

/* All tensors of one kind; op, scope and name are the largest one's. */
typedef struct Anomaly {
  AnomalyKind kind;
  int64_t bytes; /* of all, each rounded up to VL_BLOCK_BYTES; of workspace and sizes what is too much; of
                    what grows, what one step adds */
  int32_t tensors;
  int64_t largest_bytes;
  char tensor[VL_NAME_BYTES], op[VL_NAME_BYTES], scope[VL_NAME_BYTES];
} Anomaly;

/* The last step of a cell held against the account of its program (diagnose.c). */
typedef struct Diagnosis {
  bool made;
  int64_t start_bytes, expected_start_bytes; /* live when it began; what the program keeps between steps */
  int64_t rest_bytes; /* of blocks that hold that: what was too small to split off, and is theirs */
  int64_t peak_bytes, expected_peak_bytes; /* live at most; by the account of what is needed when */
  int64_t end_bytes;                       /* live when it had ended */
  int32_t anomaly_count;
  Anomaly anomalies[ANOMALY_KIND_COUNT]; /* by kind, each once */
} Diagnosis;

/* Everything a cell yields. -1 in a byte field and NaN in a real one mean not known here. */
typedef struct CellResult {
  char status[16]; /* ok, oom, diverged, unsupported; the harness adds timeout, crashed, skipped */
  char error[VL_STATUS_MESSAGE_BYTES];
  char recipe[VL_RECIPE_BYTES]; /* canonical */
  char stack[16];               /* pytorch, vramlab */
  char preserves[24];           /* bitwise, tolerance, different-model: against the baseline */
  char provenance[16];          /* measured, predicted */
  DeviceDescription device;
  int64_t micro_batch, accumulate, ranks, global_batch;
  int64_t tokens_per_sample; /* of a case with sequences */
  int64_t parameters;
  int64_t flops_per_step, recompute_flops;       /* counted; recompute is part of the former */
  int64_t saved_activation_bytes;                /* vl_program_saved_bytes */
  char checkpoint_chosen[VL_RECIPE_VALUE_BYTES]; /* what checkpoint=auto stood for; "" */
  double checkpoint_blocks_optimum;              /* k* by theory: blocks a checkpoint, */
  double checkpoint_ops_optimum;                 /* and operators */
  int32_t step_count;                            /* measured steps */
  double *step_s;                                /* raw, [step_count] */
  int64_t *step_peak_bytes; /* allocated peak of every step, warm-up included, [peak_count] */
  int32_t peak_count;
  int64_t *live_bytes;          /* allocated when each step had ended, [peak_count] */
  int64_t *step_reserved_bytes; /* reserved peak of every step, [peak_count] */
  double *step_fragmentation;   /* HeapFreeSpace.fragmentation when each step had ended, [peak_count] */
  int64_t leak_bytes_per_step;  /* vl_leak_find after the first step; 0: none, -1: too few steps to tell */
  int32_t leak_count;
  struct {
    char name[VL_NAME_BYTES], scope[VL_NAME_BYTES];
    int64_t bytes_per_step;     /* its mean growth after the first step */
  } leaks[VL_MAX_LEAKS];        /* of a leak: the tensors that grow, largest first */
  int64_t leaks_bytes_per_step; /* of all that grow, shown or not */
  Diagnosis diagnosis;          /* where the spec asks for it */
  double *losses;               /* every step, warm-up included, [warmup + step_count] */
  int32_t loss_count;
  double build_s; /* compile and kernel creation */
  /* Peaks, in bytes. */
  int64_t needed_bytes;     /* larger of warm-up and steady reserved, plus untracked */
  int64_t needed_low_bytes; /* a profile: with the lower ends of its intervals; else equal to needed_bytes */
  int64_t peak_requested_bytes, peak_allocated_bytes, peak_reserved_bytes, peak_driver_bytes;
  int64_t warmup_peak_allocated_bytes, warmup_peak_reserved_bytes;
  int64_t steady_peak_allocated_bytes, steady_peak_reserved_bytes;
  double reserved_over_allocated;     /* of the steady peaks */
  double fragmentation;               /* the highest of step_fragmentation in steady steps */
  int64_t moved_bytes;                /* by the compaction after the last step */
  int64_t unplanned_bytes;            /* allocator=planned: most that was served without a place, */
  char unplanned_name[VL_NAME_BYTES]; /* and the largest of it */
  /* What the card's management library says (NVML); -1: there is no card, or it cannot tell. */
  int64_t peak_process_bytes; /* of this process, context and libraries included: the most after any step */
  int64_t card_used_bytes;    /* of the card, by everybody, after the last step */
  int64_t clock_mhz, memory_clock_mhz,
      temperature_c;                     /* after the last step; of a cpu what the system tells */
  int64_t clock_max_mhz, power_limit_mw; /* what it may reach: clock, and power of a card */
  char governor[32];       /* of the processors' clocks, of a cpu; "": the system does not tell */
  int64_t throttled_steps; /* measured steps after which power or heat held the clocks down */
  int64_t energy_mj;       /* of the card in the measured steps */
  /* Of the measured steps, from what the kernel counts; NaN, -1: it does not. */
  double steal_share;           /* of the processors' time: taken by the hypervisor */
  double other_cpu_share;       /* and used by other processes */
  double load_average;          /* of one minute, when the last step had ended */
  int64_t involuntary_switches; /* times this process was put aside for another */
  char stopped_by[8]; /* of max_noise: noise, the interval was narrow enough; time, there was no more; "" */
  double input_s;     /* mean time that inputs of a measured step took between launches; no part of step_s */
  double graph_share; /* of the launches queued together in measured steps: what went as a CUDA graph */
  char graph_refusal[192]; /* why some could not; "": none was refused */
  /* What the device's own tracing saw when the last step had ended, where the spec asks for it. */
  bool cross_checked;
  bool cross_check_compares; /* false: of the heap's kind of memory it is not known to be traced */
  DeviceCrossCheck cross_check;
  int64_t cross_check_difference_bytes;       /* its peak, less the tracker's reserved and own_bytes */
  int64_t cross_check_live_difference_bytes;  /* the same of what lives */
  double kernels_per_step, kernel_s_per_step; /* of measured steps */
  int64_t peak_step_bytes;                    /* driver peak above the state just before the first step */
  int64_t base_bytes;      /* driver, when weights and input exist and nothing else of the step does */
  int64_t untracked_bytes; /* driver growth less reserved */
  bool emulated;           /* some kernel stands in for one that is not there: no speed is told */
  int64_t emulation_bytes; /* category workspace:emulation: conversion buffers, peak; in none of the others */
  int64_t peak_by_category[MEMORY_CATEGORY_COUNT];      /* split at the allocated peak */
  int64_t requested_by_category[MEMORY_CATEGORY_COUNT]; /* the same blocks as asked for */
  MemoryAccount account;                                /* what that should be; no terms: not known */
  int64_t cached_free_bytes; /* peak reserved less peak allocated: what the categories leave of it */
  /* A recipe that offloads: bytes copied to the tier and back by a step, and the mean time a measured step's
   * launches waited for copies. */
  int64_t evicted_bytes, fetched_bytes, peak_offload_bytes;
  double offload_stall_s;
  int64_t oom_request_bytes, oom_largest_free_bytes; /* status oom only; the latter -1: not known */
  char oom_segment[16];                              /* forward, backward, update or setup */
  int64_t events_per_step;
  double tracker_share; /* events per step x measured cost per event / step time; NaN unmeasured */
  double held_out_loss; /* mean over the held-out labels, with data only: of classes or masked tokens */
  double accuracy;      /* share of them predicted right */
  /* Volumes with a label for every voxel: mean Dice over the held-out volumes in which a class is predicted
   * or true, NaN without any; and the mean over all classes but the first. */
  int32_t dice_count;
  double dice[VL_MAX_CLASSES], dice_mean;
  double volume_s;   /* mean time to infer a held-out volume by sliding windows */
  double loss_scale; /* after the last step; 1 without loss scaling */
  int64_t skipped_steps;
  ShapeResult shapes[VL_MAX_SHAPES]; /* of a queue, as it lists them */
  int32_t shape_count;
  int32_t shape_failed;                       /* the one whose batch ran out of memory; -1: none */
  char queue_batches[VL_QUEUE_BATCHES_BYTES]; /* samples of a batch at most, by shape, as they ran; "" */
  /* Inference: what StepMonitor.sketch is of gradients, of the outputs for the samples of the first step.
   * NaN: not known. */
  double output_sketch[VL_SKETCH_SUMS];
  StepMonitor *monitors; /* of every step, warm-up included, where the spec asks for it */
  int32_t monitor_count;
  NonFinite first_nonfinite;
  int32_t scope_count;
  struct {
    char scope[VL_NAME_BYTES];
    int64_t bytes;
  } scopes[VL_MAX_SCOPES];
  TimelineEvent *timeline;
  int64_t timeline_count;
  OpRecord *ops; /* with a timeline of a step that ended well; none of a queue's */
  int64_t op_count;
} CellResult;
/* Everything unknown: -1 in byte fields, NaN in real ones; one rank, no accumulation. */
void vl_cell_result_init(CellResult *result);
/* Frees what it holds and zeroes it. */
void vl_cell_result_clear(CellResult *result);

/* Progress while a cell runs; NULL callbacks are skipped. */
typedef struct CellObserver {
  void (*step_done)(void *context, int32_t step, int32_t total, const StepResult *result);
  bool (*stop_requested)(void *context);
  /* How uncertain the median of measured times is, as a share of it; for CellSpec.max_noise. */
  double (*noise)(const double *step_s, int64_t count);
  void *context;
} CellObserver;

/* Runs a cell from nothing to a result. VL_INVALID for a bad spec; out of memory, divergence and
 * unsupported are results (status in *result) and return VL_OK. */
Status vl_cell_run(const CellSpec *spec, const CellObserver *observer, CellResult *result) VL_CHECKED;
/* Puts what a recipe says about the case's arguments (groups=4) in the place of their defaults.
 * VL_UNSUPPORTED when the case has no such argument, VL_INVALID when it was set to something else or does not
 * take the value.
 */
Status vl_recipe_arguments(const Recipe *recipe, const Case *of, int64_t *values) VL_CHECKED;
/* Checks a spec without running: case, recipe, settings, device names. */
Status vl_cell_check(const CellSpec *spec) VL_CHECKED;

#endif
