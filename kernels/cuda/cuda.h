/* kernels/cuda: the cuda backend on the CUDA runtime, cuDNN, cuBLASLt and own kernels; private header of the
 * folder, for C and CUDA alike. device.c implements devices/device.h, table.c lists the ops, <op>.c
 * (libraries) or <op>.cu (own kernels) computes one op or family, kernel.cuh is what own kernels share. The
 * same sources are built a second time against the host machine in tests/kernels/cuda/host, where they run
 * without a GPU. */
#ifndef VRAMLAB_KERNELS_CUDA_H
#define VRAMLAB_KERNELS_CUDA_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "base/base.h"
#include "devices/device.h"
#include "graph/graph.h"

/* Layouts: dense row-major (LAYOUT_PLAIN), and for activations and weights of rank 3 to 5 the channels last,
 * "nhwc", "ndhwc"; of weights that is (O, [kD,] kH, kW, I/g). Neither pads. */
enum { CUDA_CHANNELS_LAST = 1 };

typedef struct CudaAddresses CudaAddresses;
typedef struct CudnnPlans CudnnPlans;       /* of convolutions, each made once: cudnn.c */
typedef struct CudaLibraries CudaLibraries; /* handles of cuDNN and cuBLASLt, opened when first used */

/* What changes from step to step, in device memory: kernels read it there, so that a captured graph of a step
 * can be launched again. See LaunchContext in devices/device.h. */
typedef struct CudaStep {
  uint64_t seed, step;
  int64_t first_sample, counted_rows;
  double learning_rate;
} CudaStep;

/* A value that a kernel cannot use (a label out of range), written by the first thread that meets one; in
 * mapped host memory. synchronize reports it as VL_INVALID and clears it. */
typedef struct CudaFault {
  int32_t raised;   /* 0: nothing */
  const Node *node; /* the kernel's, and its input: the host's addresses, which the card passes on */
  const Tensor *tensor;
  int64_t place; /* index of the element */
  int64_t value; /* what stood there */
  int64_t below; /* values 0 .. below-1 were accepted */
} CudaFault;

typedef struct CudaSequences CudaSequences;
typedef struct CudaOffload CudaOffload;
typedef struct CudaRanges CudaRanges;

typedef struct CudaDevice {
  Device device; /* first: a Device pointer is a CudaDevice pointer */
  cudaStream_t
      stream; /* of every launch; made without blocking, so that the legacy stream waits for nothing */
  Backing backing;
  CudaAddresses *addresses; /* NULL: the driver has no virtual memory management */
  CudnnPlans *convolutions; /* NULL until first used */
  cudaMemPool_t pool;       /* of policy async; NULL until first used */
  int64_t pool_bytes;       /* what it held when last looked at */
  void *bounce;             /* what moves over itself goes through it; NULL until then */
  CudaLibraries *libraries; /* NULL until first used */
  struct StepSlots *slots;  /* of launches that are in no graph */
  CudaSequences *sequences; /* NULL until one begins */
  CudaRanges *ranges;       /* NULL until a node is launched */
  CudaOffload *offload;     /* NULL until opened */
  struct CudaNvml *nvml;    /* NULL: no library, or it does not know the card */
  CudaFault *fault;         /* mapped host memory, the host's address */
  CudaFault *fault_address;
  DeviceDescription description;
  int32_t major, minor; /* compute capability */
  int32_t multiprocessors;
  bool tf32;                  /* products of f32 in TF32: DeviceOptions.tf32 where the card has it (8.0 on) */
  int64_t shared_bytes;       /* the most a block may have */
  bool deterministic;         /* no algorithm whose sums depend on timing */
  bool timed;                 /* plans of convolutions are the fastest of several, by trial */
  bool cross_check;           /* CUPTI traces */
  int64_t used_at_open_bytes; /* of the card, by everybody, this process's context included */
  int64_t peak_bytes;         /* the highest driver_bytes seen */
} CudaDevice;

/* ---- Ops ---------------------------------------------------------------------------------------------- */

typedef struct CudaOp CudaOp;

/* A node in given layouts. Made by the device (zeroed, device, op, node and layouts set), then op->prepare.
 */
struct Kernel {
  CudaDevice *device;
  const CudaOp *op;
  const Node *node; /* outlives the kernel */
  LayoutId inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS];
  int64_t workspace_bytes;
  char implementation[64]; /* "own" unless prepare says otherwise */
  void *data;              /* the op's, from vl_allocate; freed by the device after destroy */
};

/* Addresses are of the tensors' first elements (views included), of whole storages aligned to 256 bytes, 0
 * for absent tensors. */
typedef struct CudaLaunch {
  const uintptr_t *inputs, *outputs;
  uintptr_t workspace;
  cudaStream_t stream;
  const CudaStep *step; /* device memory */
  CudaFault *fault;     /* device address of mapped host memory */
} CudaLaunch;

struct CudaOp {
  const char *name;
  /* Optional: whether the op can run these dtypes and shapes; VL_UNSUPPORTED says why not. */
  Status (*supports)(CudaDevice *device, const Node *node);
  /* Replaces every entry by the layout wanted: see choose_layouts in devices/device.h. */
  Status (*choose_layouts)(CudaDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs);
  /* Optional: checks the layouts, sets workspace_bytes and implementation. Plan calls it too. */
  Status (*prepare)(CudaDevice *device, Kernel *kernel);
  /* Optional: what launch needs of the libraries. */
  Status (*build)(CudaDevice *device, Kernel *kernel);
  /* Queues the work on launch->stream: never blocks, allocates nothing, reads no host memory that changes
   * from step to step, so that it can be captured. */
  Status (*launch)(const Kernel *kernel, const CudaLaunch *launch);
  /* Optional: queues the first of `count` launches, and those right after it that can go along in one kernel;
   * all are of this op. *queued: how many those were. */
  Status (*launch_together)(const Kernel *const *kernels, const CudaLaunch *launches, int32_t count,
                            int32_t *queued);
  /* Optional: gives back what prepare and build made, data's own memory excepted. */
  void (*destroy)(CudaDevice *device, Kernel *kernel);
};

/* The op of that name (table.c), NULL when the device has none. */
const CudaOp *cuda_op_find(const char *name);

/* VL_INTERNAL (VL_OUT_OF_MEMORY for cudaErrorMemoryAllocation) with the call, the node's scope (NULL: no
 * node) and the code; VL_OK for cudaSuccess. Clears an error that is not sticky. */
Status cuda_status(cudaError_t error, const char *call, const Node *node) VL_CHECKED;

/* Every tensor plain. */
Status cuda_choose_plain(CudaDevice *device, const Node *node, LayoutId *inputs,
                         LayoutId *outputs) VL_CHECKED;
/* Tensors of rank 3 or more are channels last, all others plain. */
Status cuda_choose_channels_last(CudaDevice *device, const Node *node, LayoutId *inputs,
                                 LayoutId *outputs) VL_CHECKED;
/* Tensors of input 0's rank (3 or more) take input 0's layout, plain when undecided; all others are plain.
 * For what goes element by element. */
Status cuda_choose_follow(CudaDevice *device, const Node *node, LayoutId *inputs,
                          LayoutId *outputs) VL_CHECKED;
/* Tensors of rank 3 or more share one layout, all others are plain: the one an output is preset to, else
 * channels last where an input has it. For what walks over elements in the order of memory. */
Status cuda_choose_shared(CudaDevice *device, const Node *node, LayoutId *inputs,
                          LayoutId *outputs) VL_CHECKED;
/* A `prepare` that does nothing; VL_INTERNAL unless tensors of rank 3 or more do share one layout. */
Status cuda_check_shared(CudaDevice *device, Kernel *kernel) VL_CHECKED;
/* VL_UNSUPPORTED, naming tensor and accepted types, unless every float tensor is f32, bf16 or f16. */
Status cuda_supports_floats(CudaDevice *device, const Node *node) VL_CHECKED;

/* An activation (N, C, spatial...) as kernels see it: element (n, c, s) lies at
 * n * channels * spatial + c * channel_stride + s * spatial_stride. A tensor of rank 2 is channels last with
 * spatial 1, of rank 0 or 1 is n = 1, channels = its elements. */
typedef struct CudaChannels {
  int64_t n, channels, spatial, channel_stride, spatial_stride;
} CudaChannels;
CudaChannels cuda_channels(LayoutId layout, const Tensor *tensor);
/* Queues the copy of `shape`'s elements, of that type, from one layout to another; `from` and `to` are device
 * memory and do not overlap. */
Status cuda_convert(cudaStream_t stream, DType dtype, const Tensor *shape, LayoutId from_layout,
                    LayoutId to_layout, uintptr_t from, uintptr_t to) VL_CHECKED;

/* Host data between plain order and a layout; count is the storage's elements. For upload and download. */
void cuda_host_to_layout(LayoutId layout, const Storage *storage, const void *plain, void *laid_out);
void cuda_host_from_layout(LayoutId layout, const Storage *storage, const void *laid_out, void *plain);

/* ---- Staging (staging.c): inputs on their way to the card, see device.h ------------------------------------------ */

Status cuda_staging_obtain(Device *device, int64_t bytes, void **memory) VL_CHECKED;
void cuda_staging_release(Device *device, void *memory);
void cuda_lay_out(const Storage *storage, const void *host, void *staged);

/* ---- Memory (memory.c) ------------------------------------------------------------------------------------------ */

/* The card's memory: cudaMalloc, and where the driver has it virtual memory management (addresses.c). */
Backing cuda_backing(CudaDevice *device);
/* What the card's use has grown by since opening, -1: cannot tell. Every call may raise peak_bytes. */
int64_t cuda_driver_bytes(CudaDevice *device);
enum { CUDA_BOUNCE_BYTES = 32 << 20 };
/* Allocates device->bounce, which has so many bytes and is nobody's between calls, where it is not yet. */
Status cuda_bounce_open(CudaDevice *device) VL_CHECKED;
/* What the device itself holds of the card's memory: slots of steps, and what blocks are moved through. */
int64_t cuda_own_bytes(const CudaDevice *device);

/* ---- Steps (steps.c): values that change from step to step -------------------------------------------------------- */

/* Pinned host memory and device memory side by side: a copy before the first kernel that reads a slot. */
typedef struct StepSlots {
  CudaStep *host, *on_card;
  int32_t count, used;
} StepSlots;
Status cuda_slots_open(StepSlots *slots, int32_t count) VL_CHECKED;
/* Of the card's memory. */
int64_t cuda_slots_bytes(const StepSlots *slots);
void cuda_slots_close(StepSlots *slots);
/* Device memory that will hold the context's values for what is queued from now on; waits when all slots are
 * in use. */
Status cuda_slots_at(CudaDevice *device, StepSlots *slots, const LaunchContext *context,
                     const CudaStep **step) VL_CHECKED;
void cuda_step_set(CudaStep *step, const LaunchContext *context);

/* ---- Sequences (sequence.c): launches that are queued together, as CUDA graphs ------------------------------------- */

void cuda_sequence_begin(Device *device, const void *key);
Status cuda_sequence_end(Device *device) VL_CHECKED;
void cuda_sequence_graphs(const Device *device, DeviceGraphs *graphs);
/* Whether a launch was taken by a sequence that has begun; else the caller queues it. */
bool cuda_sequence_take(CudaDevice *device, Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                        uintptr_t workspace, const LaunchContext *context);
/* Queues what a sequence holds back, before anything that is not a launch. An error comes from the next
 * synchronize or end. */
void cuda_sequence_flush(CudaDevice *device);
/* Forgets every graph: a kernel is about to go, or the device. */
void cuda_sequences_drop(CudaDevice *device);
void cuda_sequences_close(CudaDevice *device);
/* Of the card's memory, by their slots. */
int64_t cuda_sequences_bytes(const CudaDevice *device);
/* Queues one launch. */
Status cuda_launch_now(CudaDevice *device, StepSlots *slots, Kernel *kernel, const uintptr_t *inputs,
                       const uintptr_t *outputs, uintptr_t workspace,
                       const LaunchContext *context) VL_CHECKED;

/* ---- Ranges (ranges.c): NVTX ---------------------------------------------------------------------------------------- */

/* What is queued from now on belongs to the node's segment and layer. */
void cuda_ranges_enter(CudaDevice *device, const Node *node);
void cuda_ranges_end(CudaDevice *device);
void cuda_ranges_close(CudaDevice *device);
/* Whether a tool watches: then launches are not put together, so that each is seen in its range. */
bool cuda_ranges_are_watched(void);

/* ---- Offload tier (offload.c): pinned host memory, and a stream of copies ---------------------------------------- */

Status cuda_offload_open(Device *device, const Backing **backing) VL_CHECKED;
Status cuda_offload_copy(Device *device, bool out, uintptr_t address, uintptr_t tier_address, int64_t bytes,
                         uint64_t *event) VL_CHECKED;
Status cuda_offload_wait(Device *device, uint64_t event) VL_CHECKED;
Status cuda_offload_synchronize(CudaOffload *offload) VL_CHECKED;
int64_t cuda_offload_stall_ns(Device *device);
void cuda_offload_close(CudaOffload **offload);

/* ---- Windows (window_sums.cu) ------------------------------------------------------------------------------------ */

Status cuda_window_add(Device *device, const DeviceWindow *window) VL_CHECKED;

/* ---- Libraries (libraries.c) --------------------------------------------------------------------------------- */

/* Forward declarations keep the libraries' headers out of own kernels. */
struct cudnnContext;
struct cublasLtContext;
/* The library's handle, made at the first call, on the device's stream. VL_ENVIRONMENT names what is missing.
 */
Status cuda_cudnn(CudaDevice *device, struct cudnnContext **handle) VL_CHECKED;
Status cuda_cublaslt(CudaDevice *device, struct cublasLtContext **handle) VL_CHECKED;
/* VL_OK for 0, a library's success; else its text with the call and the node's scope (NULL: no node):
 * VL_UNSUPPORTED where the library says that it cannot, VL_OUT_OF_MEMORY where it found none, else
 * VL_INTERNAL.
 */
Status cuda_cudnn_status(int status, const char *call, const Node *node) VL_CHECKED;
Status cuda_cublaslt_status(int status, const char *call, const Node *node) VL_CHECKED;
/* "cuDNN 9.13.1, cuBLASLt 13.0.2": of the libraries that are loaded. Needs no GPU. */
void cuda_libraries_describe(char *text, size_t size);
/* What was chosen for a problem before (an algorithm), NULL when nothing was; the library's answer is kept so
 * that each problem is asked about once. A key is a struct without padding that begins with its CudaOp, or
 * with what else no other problem begins. */
const void *cuda_choice_find(const CudaDevice *device, const void *key, size_t key_bytes);
void cuda_choice_keep(CudaDevice *device, const void *key, size_t key_bytes, const void *choice,
                      size_t choice_bytes);
/* Destroys the handles and choices and sets to NULL; NULL is allowed. */
void cuda_libraries_close(CudaLibraries **libraries);

/* Destroys the plans of convolutions (cudnn.c) and sets to NULL; NULL is allowed. Before the libraries'
 * handles. */
void cuda_cudnn_plans_close(CudnnPlans **plans);

#ifdef __cplusplus
}
#endif

#endif
