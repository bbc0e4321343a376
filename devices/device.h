/* devices: the interface every backend implements, the plan device that computes nothing, and profiles
 * of hardware. */
#ifndef VRAMLAB_DEVICE_H
#define VRAMLAB_DEVICE_H

#include "base/base.h"
#include "graph/graph.h"
#include "memory/memory.h"

typedef struct Device Device;
typedef struct Kernel Kernel; /* owned by the device that prepared it */

/* What rounding results to a low-precision type did, counted by kernels that can tell. */
typedef struct Rounding {
  int64_t values;  /* that were rounded */
  int64_t flushed; /* of them: zero now, and not before */
} Rounding;

/* What changes from launch to launch. */
typedef struct LaunchContext {
  uint64_t seed;
  uint64_t step;        /* 0 for the first; adamw's bias correction counts from 1 */
  int64_t first_sample; /* global index of this micro-batch's first sample */
  int64_t
      counted_rows; /* what a mean over rows divides by when they are part of a step's; 0: its own count */
  double learning_rate; /* overrides the update nodes' own when positive */
  Rounding *rounding;   /* to be added to; NULL: not counted */
} LaunchContext;

/* Names of everything that decides a kernel's numbers and speed. */
typedef struct DeviceDescription {
  char name[64];        /* "cpu", "plan:cpu", "plan:V100-32GB", "cuda" */
  char hardware[128];   /* CPU or GPU model */
  char isa[64];         /* what the library dispatches to */
  char library[96];     /* "oneDNN 3.2.0" */
  char driver[64];      /* the version of a card's driver, as its management library tells; "": it does not */
  char mig_profile[32]; /* of an instance that a card is cut into: "1g.10gb"; "": it is whole */
  int32_t threads;
  int64_t memory_bytes;    /* what the machine or card has */
  int64_t context_bytes;   /* a profile: what context and libraries take beside the heap; else 0 */
  double host_bytes_per_s; /* a profile: copies to or from host memory; 0: not known */
  bool predicts;           /* numbers are predicted, not measured */
  bool has_time;           /* false: memory only, no step time */
  bool has_tf32;           /* fp32 products may run in TF32 */
  bool has_trials;         /* it may choose among a library's algorithms by running them */
} DeviceDescription;

/* What is read off a card beside its work; -1: it cannot be told. */
typedef struct DeviceReadings {
  int64_t process_bytes; /* of this process, context and libraries included */
  int64_t card_total_bytes, card_reserved_bytes,
      card_used_bytes;         /* by everybody; reserved by the driver itself */
  int64_t power_mw, energy_mj; /* energy since the driver was loaded: differences count */
  int32_t clock_mhz, memory_clock_mhz, temperature_c;
  int32_t clock_max_mhz;  /* the most that the multiprocessors can be clocked at */
  int64_t power_limit_mw; /* above which clocks go down */
  int32_t throttled;      /* 1: power or heat holds the clocks down */
  int32_t mig;            /* 1: the card is cut into instances */
} DeviceReadings;
/* All -1. In the header for the modules, which link no devices. */
static inline DeviceReadings vl_no_readings(void) {
  return (DeviceReadings){.process_bytes = -1,
                          .card_total_bytes = -1,
                          .card_reserved_bytes = -1,
                          .card_used_bytes = -1,
                          .power_mw = -1,
                          .energy_mj = -1,
                          .clock_mhz = -1,
                          .memory_clock_mhz = -1,
                          .temperature_c = -1,
                          .clock_max_mhz = -1,
                          .power_limit_mw = -1,
                          .throttled = -1,
                          .mig = -1};
}

/* What the vendor's own tracing (CUPTI) has seen since the device was opened with DeviceOptions.cross_check:
 * every allocation of the card's memory, those that libraries make by themselves among them, and every
 * kernel.
 */
typedef struct DeviceCrossCheck {
  int64_t peak_bytes, live_bytes; /* of the card's memory, the context's own excepted */
  int64_t own_bytes;              /* of live_bytes: what the backend itself holds beside the heaps */
  int64_t allocations;
  int64_t kernels, kernel_ns; /* the sum of their times */
  int64_t dropped;            /* records that were lost: the other figures lack them */
} DeviceCrossCheck;

/* Launches queued between sequence_begin and sequence_end since the device was opened. */
typedef struct DeviceGraphs {
  int64_t sequences, as_graphs; /* ended, and those of them that went as one graph */
  char refusal[192];            /* why one could not be captured, the first time; "": none was refused */
} DeviceGraphs;

/* What a window says of a volume, to be added to sums in device memory. The window may reach beyond the
 * volume on both sides: what is outside is left out. */
typedef struct DeviceWindow {
  uintptr_t sums;          /* f32 (classes, volume), and behind them the sums of weights, (volume) */
  const float *logits;     /* (classes, window), the host's */
  const float *factors[3]; /* whose product is a voxel's weight, by its place in the window; the host's */
  int64_t classes;
  int64_t size[3], side[3]; /* of volume and window */
  int64_t start[3];         /* of the window in the volume */
} DeviceWindow;

typedef struct DeviceInterface {
  /* -- describe: needs no hardware where the library allows ------------------------------------------ */
  void (*describe)(const Device *device, DeviceDescription *description);
  /* VL_UNSUPPORTED with the reason when the device cannot run the node. */
  Status (*supports)(Device *device, const Node *node);
  /* On entry: the layouts decided so far, LAYOUT_ANY for the rest; outputs may be preset where a gradient
   * must match its parameter. On return every entry is the layout this node wants; where it differs from
   * a decided input the engine inserts a `copy`. Absent tensors are ignored. */
  Status (*choose_layouts)(Device *device, const Node *node, LayoutId *inputs, LayoutId *outputs);
  /* Bytes of a storage in a layout (padding included). */
  int64_t (*storage_bytes)(Device *device, LayoutId layout, const Storage *storage);
  /* Whether `view` of a storage in that layout needs no copy. */
  bool (*view_is_legal)(Device *device, LayoutId layout, const Tensor *view);
  /* "plain", "nChw16c", ... */
  const char *(*layout_name)(Device *device, LayoutId layout);
  /* A handle for a node in given layouts, ready to be asked; nothing is compiled yet. */
  Status (*prepare)(Device *device, const Node *node, const LayoutId *inputs, const LayoutId *outputs,
                    Kernel **kernel);
  int64_t (*workspace_bytes)(const Kernel *kernel);
  /* Optional: how long a launch takes at the rates of a data sheet. */
  int64_t (*launch_ns)(const Kernel *kernel);
  /* The implementation the library picked. */
  const char *(*implementation)(const Kernel *kernel);
  /* Optional (NULL: none is): whether a kernel stands in for one the hardware does not have. Its workspace is
   * then conversion buffers, which the real one would not need. */
  bool (*is_emulated)(const Kernel *kernel);
  void (*kernel_destroy)(Device *device, Kernel **kernel);
  /* -- execute ------------------------------------------------------------------------------------------ */
  /* Compiles the kernel for launching. */
  Status (*build)(Device *device, Kernel *kernel);
  /* Memory of the device; borrowed. */
  const Backing *(*backing)(Device *device);
  /* Plain host data of the storage's logical shape and dtype into the device's layout, and back. Padding
   * is written as zero. */
  Status (*upload)(Device *device, const Storage *storage, const void *host, uintptr_t address);
  Status (*download)(Device *device, const Storage *storage, uintptr_t address, void *host);
  /* Optional: where the host may write a plain storage directly, so that no second copy of it exists; NULL
   * where device memory is not the host's. */
  void *(*host_view)(Device *device, uintptr_t address);
  /* Optional, all or none, where the device computes while the host has nothing to do: memory of the host's
   * that copies to the device take from at full speed; a storage's plain host data into its layout there,
   * which a thread of its own may do; and the copy, which has ended when it returns. */
  Status (*staging_obtain)(Device *device, int64_t bytes, void **memory);
  void (*staging_release)(Device *device, void *memory);
  void (*lay_out)(const Storage *storage, const void *host, void *staged);
  Status (*upload_staged)(Device *device, const Storage *storage, const void *staged, uintptr_t address);
  /* Optional, where host_view is not: adds a window, in f32 as the host would, each product and sum rounded.
   * The host's memory may be used again when this returns. */
  Status (*window_add)(Device *device, const DeviceWindow *window);
  /* Queues the kernel; never blocks on an asynchronous device. Absent tensors have address 0. */
  Status (*launch)(Device *device, Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                   uintptr_t workspace, const LaunchContext *context);
  Status (*synchronize)(Device *device);
  /* Optional, all or none: what is launched between begin and end is queued at the end, at once, as a graph
   * where the same launches with the same addresses were queued under the same key before (CUDA graphs).
   * Whatever else is asked of the device meanwhile is done after what was launched so far. Errors of launches
   * may come from end. */
  void (*sequence_begin)(Device *device, const void *key);
  Status (*sequence_end)(Device *device);
  void (*graphs)(const Device *device, DeviceGraphs *graphs);
  /* -- offload: another tier of memory, with a stream of copies; offload_open is NULL where there is none --
   */
  /* The tier's memory, opened at the first call; its addresses are for copies only. VL_ENVIRONMENT names what
   * cannot be used. */
  Status (*offload_open)(Device *device, const Backing **backing);
  /* Queues a copy from device memory to the tier (out) or back, in order among copies, to begin after what
   * was launched so far; never blocks. */
  Status (*offload_copy)(Device *device, bool out, uintptr_t address, uintptr_t tier_address, int64_t bytes,
                         uint64_t *event);
  /* What is launched from now on begins when that copy has ended. A copy that failed is reported here, by a
   * later wait or by synchronize. */
  Status (*offload_wait)(Device *device, uint64_t event);
  /* How long launches waited for copies since the last call, after synchronize; -1: cannot tell. */
  int64_t (*offload_stall_ns)(Device *device);
  /* What driver or operating system say this process holds on the device (RSS on cpu); -1: cannot tell. */
  int64_t (*driver_bytes)(Device *device);
  /* The highest driver_bytes since the last call with reset; -1: cannot tell. */
  int64_t (*driver_peak_bytes)(Device *device, bool reset);
  /* Optional: what the card's management library says now. Slow (a millisecond): not within a timed step. */
  void (*read)(Device *device, DeviceReadings *readings);
  /* Optional: waits for what was launched and tells what was traced so far; for devices opened with
   * DeviceOptions.cross_check. */
  Status (*cross_check)(Device *device, DeviceCrossCheck *check);
  void (*close)(Device *device);
} DeviceInterface;

struct Device {
  const DeviceInterface *interface;
};

typedef struct DeviceOptions {
  int32_t threads;     /* 0: all */
  bool low_end;        /* plan with a profile: the lower ends of its intervals, not the upper */
  bool unlimited;      /* plan with a profile: its memory does not end */
  bool tf32;           /* fp32 products in TF32, where has_tf32 says that the device can */
  bool deterministic;  /* no algorithm whose sums depend on timing */
  bool timed;          /* algorithms are chosen by trial, where has_trials says that they can be */
  bool cross_check;    /* its interface's cross_check will be asked; nothing is at full speed then */
  const char *profile; /* plan only: a profile's name, or NULL: the machine's cpu */
  const char *profile_directory; /* NULL: the installed ones */
  const char *offload_directory; /* cpu: where the file of the offload tier is; NULL: TMPDIR, else /tmp */
} DeviceOptions;

/* Opens "cpu", "cuda" or "plan"; loads the backend's module (vramlab_<name>.so beside the program, or in
 * VRAMLAB_MODULES). VL_INVALID: unknown name, with the accepted ones; VL_ENVIRONMENT: module, library or
 * hardware missing, with what to install. */
Status vl_device_open(const char *name, const DeviceOptions *options, Device **device) VL_CHECKED;
/* Closes and sets to NULL; NULL is allowed. */
void vl_device_close(Device **device);

/* Sizes of what crosses between program and module: a module built from other headers is refused, not run. */
static inline uint64_t vl_device_interface(void) {
  const size_t sizes[] = {sizeof(Status),
                          sizeof(Tensor),
                          sizeof(Storage),
                          sizeof(Node),
                          sizeof(Op),
                          sizeof(OpParams),
                          sizeof(LaunchContext),
                          sizeof(Backing),
                          sizeof(DeviceReadings),
                          sizeof(DeviceCrossCheck),
                          sizeof(DeviceGraphs),
                          sizeof(DeviceWindow),
                          DTYPE_COUNT,
                          sizeof(DeviceOptions),
                          sizeof(DeviceDescription),
                          sizeof(DeviceInterface)};
  return vl_hash_bytes(vl_hash_start, sizes, sizeof sizes);
}

/* The symbol a module exports; VL_ENVIRONMENT when `version` is not its own vl_device_interface(). */
typedef Status (*DeviceOpenFunction)(uint64_t version, const DeviceOptions *options, Device **device);
#define VL_DEVICE_OPEN_SYMBOL "vl_module_device_open"

enum { VL_MAX_VISIBLE = 64 };

/* The GPUs that CUDA_VISIBLE_DEVICES names, in its order, as it names them: "0", "GPU-aaaa0000", "MIG-...".
 */
typedef struct VisibleDevices {
  bool all; /* it is not set */
  int32_t count;
  char names[VL_MAX_VISIBLE][96];
} VisibleDevices;
/* Reads the value (NULL: not set). Empty is none; what follows -1 is ignored. VL_INVALID names an entry that
 * is no device, or one that is there twice. */
Status vl_visible_devices(const char *text, VisibleDevices *visible) VL_CHECKED;
/* In a test that CTest gave cards (RESOURCE_GROUPS "gpus:n" and a resource file): makes CUDA_VISIBLE_DEVICES
 * those, once; else does nothing. Before threads are started. VL_INVALID names what CTest's variable has that
 * is no card. CMake's ctest(1), "Resource Allocation". */
Status vl_visible_from_ctest(void) VL_CHECKED;

/* Wraps the describe half of `inner` (taken over) and replaces the execute half: memory is numbers, a
 * launch does nothing. `capacity_bytes` is what the imagined machine has; 0: no limit. */
Status vl_plan_device_create(Device *inner, const char *name, int64_t capacity_bytes,
                             Device **device) VL_CHECKED;

/* ---- Profiles --------------------------------------------------------------------------------------------- */

/* A device on paper (devices/profiles/<name>.yaml): name, memory, what context and libraries take, rates, the
 * workspace of convolutions as an interval, since it depends on the algorithm a library picks, and the types
 * of 16 bits it multiplies. */
typedef struct DeviceProfile {
  char name[64];
  char describes[128];
  char source[256];
  int64_t memory_bytes;
  int64_t context_low_bytes, context_high_bytes;     /* CUDA context and library handles */
  int64_t workspace_low_bytes, workspace_high_bytes; /* per convolution or product */
  bool has_bf16;                                     /* natively, as from sm_80 on; fp16 all have */
  /* Of a data sheet, and so never reached: operations in f32 and in 16-bit types, the card's own memory, and
   * the link to the host in one direction. */
  double flops_f32_per_s, flops_low_per_s, memory_bytes_per_s, host_bytes_per_s;
  bool has_time;
} DeviceProfile;
/* VL_INVALID names file, line and accepted keys. */
Status vl_profile_load(const char *directory, const char *name, DeviceProfile *profile) VL_CHECKED;
/* Calls visit for each profile found, by name. */
Status vl_profile_each(const char *directory, void (*visit)(const DeviceProfile *, void *),
                       void *context) VL_CHECKED;
/* A describe-only device for a profile: plain layouts, the profile's workspace and context at one end of
 * their intervals. */
Status vl_profile_device_create(const DeviceProfile *profile, bool low_end, Device **device) VL_CHECKED;

#endif
