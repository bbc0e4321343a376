/* kernels/cpu: the cpu backend on oneDNN and OpenMP; private header of the folder.
 * device.c implements devices/device.h, layouts.c names memory formats, primitive.c shares oneDNN's primitive
 * descriptors, table.c lists the ops, <op>.c computes one op (or family). */
#ifndef VRAMLAB_KERNELS_CPU_H
#define VRAMLAB_KERNELS_CPU_H

#include "base/base.h"
#include "devices/device.h"
#include "graph/graph.h"
#include "oneapi/dnnl/dnnl.h"

typedef struct LayoutTable LayoutTable;
typedef struct PrimitiveCache PrimitiveCache;
typedef struct CpuOffload CpuOffload;

typedef struct CpuDevice {
  Device device; /* first: a Device pointer is a CpuDevice pointer */
  dnnl_engine_t engine;
  dnnl_stream_t stream;
  int32_t threads;
  char model[128]; /* of the CPU */
  LayoutTable *layouts;
  PrimitiveCache *primitives;
  dnnl_primitive_attr_t attributes; /* user scratchpad: what a primitive needs is charged to the heap */
  Backing backing;
  char *offload_directory; /* NULL: the system's own */
  CpuOffload *offload;     /* NULL until opened */
} CpuDevice;

/* ---- Ops ---------------------------------------------------------------------------------------------- */

typedef struct CpuOp CpuOp;

/* A node in given layouts. Made by the device (zeroed, op, node, layouts and threads set), then op->prepare,
 * which may replace op by another way to compute the same. */
struct Kernel {
  const CpuOp *op;
  const Node *node; /* outlives the kernel */
  LayoutId inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS];
  int64_t workspace_bytes;
  char implementation[64]; /* "own" unless prepare says otherwise */
  void *data;              /* the op's, from vl_allocate; freed by the device after destroy */
  int32_t threads;
  dnnl_stream_t stream;
};

/* Addresses are of the tensors' first elements (views included), 64-byte aligned for whole storages, 0 for
 * absent tensors. Storages of a blocked layout hold zeros in the padding of their channels, and a kernel that
 * writes one keeps it so. */
struct CpuOp {
  const char *name;
  /* Optional: whether the op can run these dtypes and shapes; VL_UNSUPPORTED says why not. */
  Status (*supports)(CpuDevice *device, const Node *node);
  /* Replaces every entry by the layout wanted: see choose_layouts in devices/device.h. */
  Status (*choose_layouts)(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs);
  /* Checks the layouts, sets workspace_bytes and implementation; compiles nothing, since plan calls it too.
   */
  Status (*prepare)(CpuDevice *device, Kernel *kernel);
  /* Optional: compiles what launch needs. */
  Status (*build)(CpuDevice *device, Kernel *kernel);
  /* Computes; allocates nothing. */
  Status (*launch)(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                   uintptr_t workspace, const LaunchContext *context);
  /* Optional: gives back what prepare and build made, data's own memory excepted. */
  void (*destroy)(CpuDevice *device, Kernel *kernel);
};

/* The op of that name (table.c), NULL when the device has none. */
const CpuOp *cpu_op_find(const char *name);

/* Every tensor plain. */
Status cpu_choose_plain(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) VL_CHECKED;
/* Tensors of input 0's rank (3 or more) take input 0's layout, plain when undecided; all others (per-channel
 * vectors, scalars) are plain. */
Status cpu_choose_follow(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) VL_CHECKED;
/* VL_UNSUPPORTED, naming tensor and accepted types, unless every float tensor of the node is f32 or bf16. */
Status cpu_supports_f32_bf16(CpuDevice *device, const Node *node) VL_CHECKED;

/* ---- Layouts --------------------------------------------------------------------------------------------
 * A layout is an order of dimensions and a list of inner blocks, whatever the shape: one number serves every
 * tensor of a rank. LAYOUT_PLAIN is dense row-major of any rank. */

/* An activation (N, C, spatial...) in memory: [n][channel_blocks][spatial][block]. Plain has block 1 and
 * channel_blocks = channels, nChw16c block 16, channels-last one block of all channels. The last block may be
 * padded: channel_blocks * block >= channels. A tensor of rank 0 or 1 is n = 1, channels = its elements. */
typedef struct ChannelView {
  int64_t n, channels, channel_blocks, spatial, block;
} ChannelView;
/* VL_UNSUPPORTED for a layout that has no such form. */
Status cpu_channel_view(CpuDevice *device, LayoutId layout, const Tensor *tensor,
                        ChannelView *view) VL_CHECKED;
/* Whether some channels of a single sample lie in a layout as a tensor of their own would: whole blocks of
 * them, from where the part's offset says. */
bool cpu_is_channel_part(CpuDevice *device, LayoutId layout, const Tensor *whole, const Tensor *part);
/* Elements a tensor occupies in a layout, padding included: what an element-wise op walks when all its
 * tensors share the layout. */
int64_t cpu_padded_elements(CpuDevice *device, LayoutId layout, const Tensor *tensor);

LayoutTable *cpu_layouts_create(void);
void cpu_layouts_destroy(LayoutTable **layouts);
/* The number of a descriptor's format. `groups` > 1: the descriptor has the group as a dimension of its own
 * before the tensor's (grouped weights); else 1. VL_UNSUPPORTED for what order and blocks cannot express. */
Status cpu_layout_of(CpuDevice *device, const_dnnl_memory_desc_t descriptor, int64_t groups,
                     LayoutId *layout) VL_CHECKED;
/* The descriptor of a shape in a layout; LAYOUT_ANY gives the library the choice. `groups` as above: the
 * first dimension is split. */
Status cpu_layout_descriptor(CpuDevice *device, LayoutId layout, DType dtype, int32_t rank,
                             const int64_t *shape, int64_t groups, dnnl_memory_desc_t *descriptor) VL_CHECKED;
/* 1 but for layouts of grouped weights. */
int64_t cpu_layout_groups(CpuDevice *device, LayoutId layout);
/* Channels last or channels in blocks. */
bool cpu_layout_is_activation(CpuDevice *device, LayoutId layout);
/* Channels last for activations of that rank (3 to 5), "nhwc". */
LayoutId cpu_layout_channels_last(CpuDevice *device, int32_t rank);
/* Channels in blocks of 16, "nChw16c"; the wanted block may also be 8. */
LayoutId cpu_layout_blocked(CpuDevice *device, int32_t rank, int64_t block);
/* "plain", "nhwc", "nChw16c", or the order with blocks as oneDNN's tags spell it, "ABcd16b16a". */
const char *cpu_layout_name(CpuDevice *device, LayoutId layout);

/* ---- Memory (memory.c) ------------------------------------------------------------------------------------ */

/* Committed anonymous memory, aligned to 2 MiB, huge pages asked for. Refuses with VL_OUT_OF_MEMORY what the
 * machine or the container's limit does not have, before the system would kill. */
Backing cpu_backing(void);
/* Resident bytes of this process, and the most since the last reset; -1: the system does not say. */
int64_t cpu_resident_bytes(void);
int64_t cpu_resident_peak_bytes(bool reset);

/* ---- Offload tier (offload.c): a file without a name, and a thread that copies to and from it -------------- */

/* directory: NULL for TMPDIR, else /tmp. VL_ENVIRONMENT names it when no file can be written there. */
Status cpu_offload_open(const char *directory, CpuOffload **offload) VL_CHECKED;
/* Ends the thread after what is queued; the file and its bytes are gone. NULL is allowed. */
void cpu_offload_close(CpuOffload **offload);
/* The file's bytes: VL_OUT_OF_MEMORY where the disk has no more. Its addresses are offsets. */
const Backing *cpu_offload_backing(CpuOffload *offload);
/* As the device's offload_copy, offload_wait and offload_stall_ns; drain waits for every copy. */
uint64_t cpu_offload_copy(CpuOffload *offload, bool out, uintptr_t address, uintptr_t tier_address,
                          int64_t bytes);
Status cpu_offload_wait(CpuOffload *offload, uint64_t event) VL_CHECKED;
Status cpu_offload_drain(CpuOffload *offload) VL_CHECKED;
int64_t cpu_offload_stall_ns(CpuOffload *offload);

/* ---- oneDNN ------------------------------------------------------------------------------------------------ */

/* Maps a library status: `what` and the node (NULL: none) name the place. VL_UNSUPPORTED for
 * dnnl_unimplemented. */
Status cpu_dnnl_status(dnnl_status_t status, const char *what, const Node *node) VL_CHECKED;
/* The library's name of a type; dnnl_data_type_undef for those it has none for (i64). */
dnnl_data_type_t cpu_dnnl_type(DType dtype);

enum { PRIMITIVE_OPERANDS = 4 };

/* One tensor of a primitive. Unused bytes are zero: specs are compared and hashed as bytes. */
typedef struct PrimitiveOperand {
  int64_t shape[VL_MAX_DIMS];
  int64_t groups; /* 1, or the number the first dimension is split by */
  int32_t rank;
  int32_t dtype;      /* a DType */
  LayoutId layout;    /* LAYOUT_ANY: the library's choice */
  int32_t transposed; /* the last two dimensions are swapped in memory */
} PrimitiveOperand;

typedef struct PrimitiveSpec PrimitiveSpec;

/* A kind of primitive: how its descriptor is made and what its operands are called. */
typedef struct PrimitiveKind {
  const char *name;
  dnnl_status_t (*create)(CpuDevice *device, const PrimitiveSpec *spec, const dnnl_memory_desc_t *operands,
                          dnnl_primitive_desc_t *descriptor);
  dnnl_query_t queries[PRIMITIVE_OPERANDS];
  int arguments[PRIMITIVE_OPERANDS];
  int indices[PRIMITIVE_OPERANDS]; /* of the query; 0 but for a bias */
} PrimitiveKind;

/* Everything that decides a primitive: equal specs share one. */
struct PrimitiveSpec {
  const PrimitiveKind *kind;
  PrimitiveOperand operands[PRIMITIVE_OPERANDS];
  int64_t operand_count;
  int64_t adds; /* 1: to what the result's memory holds */
  dnnl_dims_t stride, padding;
};

/* A primitive descriptor and what it decided, shared by every kernel with the same spec; owned by the device.
 */
typedef struct Primitive {
  dnnl_primitive_desc_t descriptor;
  dnnl_primitive_t primitive; /* NULL until a kernel is built */
  LayoutId layouts[PRIMITIVE_OPERANDS];
  int64_t scratchpad_bytes;
  const char *implementation; /* the library's text */
  bool is_reference;          /* the library has only its slow reference for this spec */
} Primitive;

PrimitiveCache *cpu_primitives_create(void);
void cpu_primitives_destroy(PrimitiveCache **cache);
/* Finds or makes the primitive descriptor of a spec. `node` is for messages. */
Status cpu_primitive_find(CpuDevice *device, const PrimitiveSpec *spec, const Node *node,
                          Primitive **primitive) VL_CHECKED;
/* Compiles it unless that was done. */
Status cpu_primitive_compile(Primitive *primitive, const Node *node) VL_CHECKED;
/* The spec of a conversion between layouts and element types; in copy.c. */
void cpu_reorder_spec(CpuDevice *device, const Tensor *from, LayoutId from_layout, const Tensor *to,
                      LayoutId to_layout, PrimitiveSpec *spec);
/* Copies 64-bit whole numbers from one activation layout to another, padding zeroed; in copy.c. */
void cpu_copy_i64(const ChannelView *from, const ChannelView *to, const int64_t *source, int64_t *target);
/* The layout in which the gradient of a convolution's weights comes when they take part in another type than
 * their own: what a `cast` node of a parameter gives the parameter. Plain where no convolution does. In
 * conv.c. */
Status cpu_conv_gradient_layout(CpuDevice *device, const Node *node, LayoutId *layout) VL_CHECKED;
/* Fills an operand from a tensor. */
void cpu_operand_set(PrimitiveOperand *operand, const Tensor *tensor, LayoutId layout, int64_t groups);

/* Kernels that are one primitive: prepare with a spec and, per operand, where its address comes from (input i
 * as i, output i as OPERAND_OUTPUT + i); the others fit CpuOp's slots as they are. */
enum { OPERAND_OUTPUT = VL_MAX_INPUTS };
Status cpu_primitive_prepare(CpuDevice *device, Kernel *kernel, const PrimitiveSpec *spec,
                             const int32_t *sources) VL_CHECKED;
Status cpu_primitive_build(CpuDevice *device, Kernel *kernel) VL_CHECKED;
Status cpu_primitive_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                            uintptr_t workspace, const LaunchContext *context) VL_CHECKED;
void cpu_primitive_destroy(CpuDevice *device, Kernel *kernel);

#endif
