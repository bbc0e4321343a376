/* graph: what is computed. Tensors, storages, nodes, the table of ops, differentiation, the schedule and
 * the lifetimes of its buffers. Knows only base; nothing here computes. */
#ifndef VRAMLAB_GRAPH_H
#define VRAMLAB_GRAPH_H

#include "base/base.h"
#include <stdio.h>

enum { VL_MAX_DIMS = 5, VL_MAX_INPUTS = 8, VL_MAX_OUTPUTS = 4 };

/* Optimizer state in 8 bits: elements that share a scale (as in current bitsandbytes; 2048 in the paper), and
 * the elements below which a parameter's state stays in its own type. */
enum { VL_STATE_BLOCK = 256, VL_STATE_LEAST = 4096 };

/* The label of a row that a loss does not count (PyTorch's ignore_index). */
enum { VL_IGNORED_LABEL = -100 };

/* What a storage is for; decides its category in memory and how long it lives. */
typedef enum Role {
  ROLE_ACTIVATION = 0, /* made by a node; also gradients of activations */
  ROLE_INPUT,          /* given by the caller each step: images, labels */
  ROLE_PARAMETER,      /* learned; persistent, in State */
  ROLE_STATISTIC,      /* running statistics and counters; persistent, in State */
  ROLE_OPTIMIZER,      /* optimizer state; persistent, in State */
  ROLE_GRADIENT,       /* gradient of a parameter */
  ROLE_SOURCE          /* what others are derived from when State is filled; itself not kept */
} Role;
const char *vl_role_name(Role role);
/* Parameter, statistic and optimizer state: allocated before step 1 and kept. */
bool vl_role_is_persistent(Role role);

/* Where bytes are: on the device, or in the tier it offloads to (pinned host memory, a file), where nothing
 * computes and from where they are copied back. */
typedef enum Tier { TIER_DEVICE = 0, TIER_OFFLOAD, TIER_COUNT } Tier;

/* How a device lays a storage out. Numbers are the device's own; these two are everybody's. */
typedef int32_t LayoutId;
enum { LAYOUT_PLAIN = 0 /* dense row-major */, LAYOUT_ANY = -1 /* not decided yet */ };

/* Initial value of a persistent storage, from Philox keyed by its name with step 0; element e of the
 * logical shape is sample 0, element e. Synthetic value of an input, keyed by the step too; element e of
 * sample n is the same whatever the micro-batch. */
typedef enum InitKind { INIT_ZERO = 0, INIT_CONSTANT, INIT_UNIFORM } InitKind;
typedef struct Init {
  InitKind kind;
  double value; /* the constant, or the bound b: (2u - 1) * b in double, rounded once to the dtype; whole
                   numbers are floor(u * b), 0..b-1 */
} Init;

typedef struct Tensor Tensor;
typedef struct Node Node;
typedef struct Graph Graph;
typedef struct Storage Storage;

/* How a persistent storage gets its value from those of others, once, when State is filled: in double from
 * what they hold, rounded once to its own type. With s = gamma / sqrt(var + epsilon) by channel: */
typedef enum DerivationKind {
  DERIVED_CONVERTED = 0, /* value */
  DERIVED_SCALED,        /* weight * s of its output channel: weight, gamma, var */
  DERIVED_SHIFT          /* beta - mean * s: beta, mean, gamma, var */
} DerivationKind;
const char *vl_derivation_kind_name(DerivationKind kind);
/* How many storages one of a kind is made from. */
int32_t vl_derivation_source_count(DerivationKind kind);

enum { VL_MAX_SOURCES = 4 };
typedef struct Derivation {
  DerivationKind kind;
  Storage *sources[VL_MAX_SOURCES]; /* in the order above; parameters and statistics, or ROLE_SOURCE */
  double epsilon;
} Derivation;

/* What the heap allocates and lifetimes are of. */
struct Storage {
  int32_t id;
  const char *name;  /* unique; State and files use it */
  const char *scope; /* layer, "layer1.0.conv1" */
  Role role;
  DType dtype;
  int64_t elements;
  Tensor *root;    /* the tensor that gives the logical shape */
  LayoutId layout; /* LAYOUT_ANY until compiled */
  Tier tier;       /* of a persistent storage: where it is kept while nobody uses it */
  Init init;
  bool frozen;               /* a parameter that is not trained: no gradient, no optimizer state, no update */
  const Derivation *derived; /* NULL: its value is its own */
};

/* A view of a storage. Shapes are logical: (N, C, [D,] H, W); (O, I/g, [kD,] kH, kW) for weights. */
struct Tensor {
  int32_t id;
  const char *name;
  DType dtype;
  int32_t rank; /* 0: a scalar of one element */
  int64_t shape[VL_MAX_DIMS];
  Storage *storage;
  int64_t offset; /* elements from the storage's start */
  Node *producer; /* NULL for inputs and persistent tensors */
};
int64_t vl_tensor_elements(const Tensor *tensor);
int64_t vl_tensor_bytes(const Tensor *tensor); /* dense */
bool vl_tensor_same_shape(const Tensor *a, const Tensor *b);
/* "(16, 64, 112, 112) f32" */
void vl_tensor_describe(const Tensor *tensor, char *text, size_t size);

/* ---- Ops ------------------------------------------------------------------------------------------------ */

/* Parameters of a node; which ones an op reads is in its fields table. */
typedef struct OpParams {
  int64_t kernel[3], stride[3], padding[3]; /* spatial, outermost first; unused ones 0 */
  int64_t groups;
  int64_t count;                      /* batch_norm_update: elements per channel; relu_backward: copies */
  double epsilon;                     /* batch norm, AdamW */
  double momentum;                    /* batch norm running statistics; SGD */
  double rate;                        /* dropout probability */
  double learning_rate, weight_decay; /* SGD, AdamW */
  double beta1, beta2;                /* AdamW */
  double alpha;                       /* scale factor; GELU: unused */
  double max_norm;                    /* gradient_factor: of all gradients; 0: any */
  double growth, backoff;             /* gradient_factor: factors of the loss scale */
  int64_t interval;                   /* gradient_factor: clean steps until the scale grows */
  int64_t relu;                       /* 1: a ReLU ends the op */
  int64_t transpose_a, transpose_b;   /* matmul */
  int64_t axes[VL_MAX_DIMS];          /* transpose, sum: the axes, in order */
  int64_t axis;                       /* concat: the one along which inputs follow each other */
  int64_t axis_count;
  int64_t shape[VL_MAX_DIMS]; /* reshape, broadcast, slice sizes, shape of a gradient's target */
  int64_t rank;
  int64_t start[VL_MAX_DIMS]; /* slice */
  int64_t dtype;              /* cast, and ops whose output dtype is chosen: a DType */
  const char *random_scope;   /* dropout: the name that keys its mask, shared by forward and backward */
} OpParams;

typedef enum FieldType { FIELD_INTEGER = 0, FIELD_REAL, FIELD_DTYPE, FIELD_TEXT } FieldType;
/* One named member of OpParams that an op uses: printing, JSON and hashes go through this table. */
typedef struct OpField {
  const char *name;
  FieldType type;
  size_t offset;
  int32_t count; /* elements of an array member; 1 otherwise */
} OpField;

/* What mixed precision does with an op: run it in the low type, in fp32, or in the widest of its inputs'
 * types (with parameters of norms left alone); PRECISION_KEEP is never touched. */
typedef enum Precision { PRECISION_LOW = 0, PRECISION_FP32, PRECISION_PROMOTE, PRECISION_KEEP } Precision;

typedef struct Gradients Gradients; /* see differentiation below */

typedef struct Op {
  const char *name;
  const OpField *fields;
  int32_t field_count;
  int32_t min_inputs, max_inputs;
  Precision precision;
  bool side_effect; /* changes persistent storage or counters: recomputation never includes it */
  bool is_view;     /* moves nothing where the layout lets the output lie in its inputs' storage */
  /* Bit i of [k]: output k may take input i's storage when shapes and dtypes agree. */
  uint32_t inplace[VL_MAX_OUTPUTS];
  /* Checks inputs and parameters and creates the outputs (shape, dtype); VL_INVALID names the node and
   * the numbers that clash. */
  Status (*infer)(Graph *graph, Node *node);
  /* Adds nodes that compute the gradients of node's inputs from those of its outputs; NULL: not
   * differentiable (gradient nodes, updates). */
  Status (*gradient)(Gradients *gradients, Node *node);
  /* Floating-point operations (a multiply-add is two). NULL: one per output element. */
  int64_t (*flops)(const Node *node);
} Op;

/* By name; NULL when unknown. */
const Op *vl_op_find(const char *name);
/* All ops in table order. */
const Op *const *vl_op_all(int32_t *count);

/* ---- Nodes ---------------------------------------------------------------------------------------------------- */

typedef enum Segment { SEGMENT_FORWARD = 0, SEGMENT_BACKWARD, SEGMENT_UPDATE } Segment;
const char *vl_segment_name(Segment segment);

/* How long the source program has a variable for what a node makes, beside what reads it. */
typedef enum Hold { HOLD_NOTHING = 0, HOLD_BLOCK, HOLD_FORWARD } Hold; /* until its block, or forward, ends */
const char *vl_hold_name(Hold hold);

struct Node {
  int32_t id;
  int32_t position; /* index in the graph's order */
  const Op *op;
  OpParams params;
  Tensor *inputs[VL_MAX_INPUTS]; /* an optional input that is absent is NULL */
  int32_t input_count;
  Tensor *outputs[VL_MAX_OUTPUTS]; /* an output nobody asked for is NULL */
  int32_t output_count;
  const char *scope;
  Segment segment;
  int32_t block;     /* checkpoint granularity set by the case: 1..blocks; 0: outside any block; a gradient
                        node is in the block of the node it belongs to */
  bool inplace_hint; /* the source program writes this op in place (nn.ReLU(inplace=True), +=) */
  Hold hold;         /* of the first output, in the source program; for holds_variables */
  /* Recomputation, set by optimizations; 0 and false: outputs are kept for backward. */
  int32_t checkpoint_segment; /* > 0: outputs are dropped and the segment is replayed before its backward */
  bool recompute_on_use; /* outputs are dropped and this node alone is repeated where backward needs it */
  /* An `add` over its own input: the output is the sum over the step's micro-batches so far. Input 0 stands
   * for that sum as the micro-batch before left it; in the first one the output is input 1, and nothing
   * runs. */
  bool accumulates;
};

struct Graph {
  Arena *arena; /* owns everything below */
  const char *name;
  Storage **storages;
  int32_t storage_count, storage_capacity;
  Tensor **tensors;
  int32_t tensor_count, tensor_capacity;
  Node **nodes; /* in order of execution */
  int32_t node_count, node_capacity;
  int32_t next_node_id; /* ids of removed nodes are not given again */
  int32_t block_count;
  /* Set while building, copied into new nodes and storages. */
  const char *scope;
  Segment segment;
  int32_t block;
};

Graph *vl_graph_create(const char *name);
void vl_graph_destroy(Graph **graph);
/* Names the layer that nodes created from now on belong to, printf style; borrowed by them. */
void vl_graph_set_scope(Graph *graph, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A tensor with a storage of its own. The name is made unique by a suffix when taken. */
Tensor *vl_graph_tensor(Graph *graph, const char *name, Role role, DType dtype, int32_t rank,
                        const int64_t *shape);
/* A persistent tensor; Init as given. */
Tensor *vl_graph_parameter(Graph *graph, const char *name, Role role, DType dtype, int32_t rank,
                           const int64_t *shape, Init init);
/* An input. Synthetic floats have mean 0 and variance 1, whole numbers are 0..below-1. */
Tensor *vl_graph_input(Graph *graph, const char *name, DType dtype, int32_t rank, const int64_t *shape,
                       int64_t below);
/* Whether a node moves nothing: an op that may be a view, whose output lies where its inputs do. */
bool vl_node_is_view(const Node *node);
/* Whether nodes write their parts of a storage, whose whole is a concat that moves nothing. */
bool vl_storage_is_joined(const Storage *storage);
/* A parameter derived from others. */
Tensor *vl_graph_derived(Graph *graph, const char *name, DType dtype, int32_t rank, const int64_t *shape,
                         const Derivation *derivation);
/* Makes a persistent storage a source unless some node reads it or a view of it. */
void vl_graph_release_parameter(Graph *graph, Storage *storage);
/* Another view of tensor's storage. */
Tensor *vl_graph_view(Graph *graph, const char *name, Tensor *of, int32_t rank, const int64_t *shape,
                      int64_t offset);
/* Appends a node; infer creates its outputs. The node belongs to the current scope, segment and block. */
Status vl_graph_add(Graph *graph, const char *op, const OpParams *params, Tensor *const *inputs,
                    int32_t input_count, Node **node) VL_CHECKED;
/* Repeats shape and dtype inference after an input's dtype changed; the outputs stay the same tensors. */
Status vl_graph_infer_again(Graph *graph, Node *node) VL_CHECKED;
/* Moves a node to stand right before another. */
void vl_graph_move_before(Graph *graph, Node *node, const Node *anchor);
/* Removes a node; its outputs must have no readers left. */
void vl_graph_remove(Graph *graph, Node *node);
/* Every tensor in storage `from` is from now on in `to`. */
void vl_graph_move_storage(Graph *graph, const Storage *from, Storage *to);
/* Every reader of `from` reads `to`; views of `from` become views of `to`. */
void vl_graph_replace_reads(Graph *graph, const Tensor *from, Tensor *to);
/* Number of reads of a tensor; with `reader`, the last node that does. */
int32_t vl_graph_reads(const Graph *graph, const Tensor *tensor, Node **reader);
/* Checks order, references, shapes and unique names; VL_INVALID names the node. */
Status vl_graph_check(const Graph *graph) VL_CHECKED;

/* ---- Building blocks: short forms cases use. Each appends the nodes named and returns the result in *out. -- */

Status vl_conv(Graph *graph, Tensor *x, Tensor *weight, int64_t stride, int64_t padding, int64_t groups,
               Tensor **out) VL_CHECKED;
/* bias: NULL for none. */
Status vl_conv_transpose(Graph *graph, Tensor *x, Tensor *weight, Tensor *bias, int64_t stride,
                         int64_t padding, int64_t groups, Tensor **out) VL_CHECKED;
/* Inputs one after the other along an axis. */
Status vl_concat(Graph *graph, Tensor *const *inputs, int32_t input_count, int64_t axis,
                 Tensor **out) VL_CHECKED;
/* Training: batch_norm_stats, batch_norm_apply and batch_norm_update; evaluation: apply with the running
 * statistics. Creates <scope>.weight, .bias, .running_mean, .running_var, .num_batches_tracked. */
Status vl_batch_norm(Graph *graph, Tensor *x, bool training, double epsilon, double momentum,
                     Tensor **out) VL_CHECKED;
/* instance_norm, the same in training and evaluation. Creates <scope>.weight and .bias. */
Status vl_instance_norm(Graph *graph, Tensor *x, double epsilon, Tensor **out) VL_CHECKED;
/* Any op with one output and the given parameters (NULL: none). */
Status vl_apply(Graph *graph, const char *op, const OpParams *params, Tensor *const *inputs,
                int32_t input_count, Tensor **out) VL_CHECKED;

/* ---- Differentiation ------------------------------------------------------------------------------------------ */

/* What a gradient builder works with: which tensors need gradients, and the ones made so far. */
struct Gradients {
  Graph *graph;
  bool weight_first; /* a convolution's weight gradient before its data gradient, so that its saved input
                        can go before the data gradient is made */
  bool onto;         /* an embedding adds its gradient to what has arrived at its table, where autograd
                        makes another of the table's size and adds the two */
  Tensor **of;       /* by tensor id: the gradient, or NULL */
  bool *needed;      /* by tensor id */
  int32_t capacity;
};
/* The gradient that has arrived at a tensor, NULL when none has. */
Tensor *vl_gradient_of(const Gradients *gradients, const Tensor *tensor);
bool vl_gradient_needed(const Gradients *gradients, const Tensor *tensor);
/* Adds `gradient` to what has arrived at tensor: an `add` node when something has. */
Status vl_gradient_accumulate(Gradients *gradients, Tensor *tensor, Tensor *gradient) VL_CHECKED;
/* Takes away what has arrived at tensor, for a node that adds to it in place and gives the sum back; NULL
 * when nothing has arrived, its storage is also another tensor's gradient, or `onto` is not set. */
Tensor *vl_gradient_take(Gradients *gradients, const Tensor *tensor);

/* ---- Program: a graph and how it is to be run -------------------------------------------------------------------- */

typedef struct ParameterGradient {
  Tensor *parameter;
  Tensor *gradient;
} ParameterGradient;

/* When what backward has read is freed. Anything but the first is a mistake, made to be measured. */
typedef enum Retention {
  RETAIN_NOTHING = 0, /* with its last reader */
  RETAIN_STEP,        /* when the step ends: losses kept with their graphs */
  RETAIN_RUN          /* never: a leak */
} Retention;

typedef enum OptimizerKind { OPTIMIZER_SGD = 0, OPTIMIZER_ADAMW } OptimizerKind;

/* Weight decay is of every parameter, as in PyTorch without parameter groups. */
typedef struct OptimizerSettings {
  OptimizerKind kind;
  double learning_rate, weight_decay;
  double momentum;              /* SGD */
  double beta1, beta2, epsilon; /* AdamW */
  bool state_8bit;              /* AdamW: moments as 8-bit codes, where vl_parameter_takes_8bit says so */
} OptimizerSettings;
/* AdamW with the defaults of torch.optim.AdamW. */
OptimizerSettings vl_optimizer_adamw(void);

/* Loss scaling as torch.amp.GradScaler does it: the loss is multiplied by `initial` before differentiation,
 * the gradients are divided by it before the update, and a step with one that is not finite is skipped. */
typedef struct LossScaling {
  double initial; /* 0: off */
  double growth;  /* after `interval` steps in a row that were not skipped */
  double backoff; /* after a skipped one */
  int64_t interval;
} LossScaling;
/* The defaults of torch.amp.GradScaler. */
LossScaling vl_loss_scaling_dynamic(void);

/* Places in State's "loss_scale.counters", i64, beside "loss_scale", f32. */
enum {
  SCALER_CLEAN = 0, /* steps in a row that were not skipped, since the scale last changed */
  SCALER_SKIPPED,   /* steps that were skipped */
  SCALER_STEPS,     /* steps that were not: what bias corrections and schedules count */
  SCALER_COUNTERS
};

/* What passes take and return. The graph is owned by the program. */
typedef struct Program {
  Graph *graph;
  Tensor *loss;   /* NULL in an inference program */
  Tensor *logits; /* what evaluation reads */
  bool training;
  ParameterGradient *gradients; /* after differentiation; in the graph's arena */
  int32_t gradient_count;
  OptimizerSettings optimizer;
  Tensor *loss_scale; /* made by differentiation where the loss is scaled, else NULL */
  /* Set by optimizations. */
  DType amp; /* DTYPE_F32: off */
  LossScaling scaling;
  double max_norm; /* gradients are clipped to it together; 0: not */
  bool weight_gradient_first;
  bool cast_cache;               /* casts of weights live to the end of forward at least, as in the cache of
                                    torch.autocast */
  bool gradients_onto;           /* see Gradients.onto */
  bool release_gradients;        /* gradients are freed after the update (set to none) */
  bool update_in_backward;       /* each update as soon as its gradient is complete */
  int32_t accumulate;            /* micro-batches per optimizer step; 1 */
  int32_t offload_blocks;        /* what is made up to the end of this block is in the offload tier until
                                    backward reads it; 0: nothing, INT32_MAX: everything */
  bool accumulate_wrong;         /* a mistake: sums in new storage, each micro-batch a mean of its own */
  Retention retain;              /* of what forward saves */
  bool keep_recomputed;          /* a mistake: what is made again stays until the step ends */
  bool copies_weights;           /* a mistake: an fp32 copy of every parameter stands beside it */
  int64_t oversize_bytes;        /* a mistake: the largest kernel's workspace is so much larger */
  int64_t growth_bytes;          /* a mistake: every step leaves so much behind */
  bool holds_variables;          /* evaluation: values live as long as the variables and calls of an eager
                                    program: what a block reads until it ends, what a node says (Hold) */
  int64_t window_voxels;         /* inference: of the volume that windows slide over; 0: none is told */
  bool window_sums_on_host;      /* what they say of it is added up there, not on the device */
  const char *allocation_policy; /* "caching"; with its options, as memory/memory.h has them: */
  int64_t max_split_bytes;
  double gc_threshold;
  int32_t round_divisions;
  bool remap;
  bool defragment;               /* the heap is compacted between steps */
  const char *checkpoint_chosen; /* the value checkpoint=auto stands for here; NULL */
} Program;

void vl_program_init(Program *program, Graph *graph);
void vl_program_destroy(Program *program);

/* Appends the backward segment for program->loss (seeded with 1, or with the loss scale) and fills
 * program->gradients, one entry per parameter that is not frozen, in order of creation. Gradients of
 * parameters get ROLE_GRADIENT and the name
 * "<parameter>.grad". */
Status vl_program_differentiate(Program *program) VL_CHECKED;
/* Whether a parameter's optimizer state is kept in 8 bits when that is asked for: matrices of at least
 * VL_STATE_LEAST elements that are no table of embeddings, whose rows' gradients come and go. What has more
 * dimensions lies in a device's own layout, where elements of a block are not neighbours. */
bool vl_parameter_takes_8bit(const Graph *graph, const Tensor *parameter);
/* Appends the update segment, one node per parameter with its state in the parameter's type: `sgd` with
 * "<parameter>.momentum", or `adamw` with PyTorch's "<parameter>.exp_avg" and "<parameter>.exp_avg_sq"; with
 * state_8bit `adamw_8bit` with the same as u8 and "<parameter>.absmax" of shape (2, blocks). How
 * many steps AdamW has made is the number of the step it runs in, which State files keep. With loss
 * scaling or clipping, first the norm of all gradients and `gradient_factor`, whose factor the updates apply
 * as they read a gradient; AdamW then counts the steps that were not skipped. */
Status vl_program_add_updates(Program *program) VL_CHECKED;

/* ---- Schedule ------------------------------------------------------------------------------------------------------ */

/* One life of a storage: (storage, micro-batch, pass, tier). Pass 0 is the forward pass; recomputation makes
 * further ones. Persistent storages and inputs have one buffer, alive throughout; sums over micro-batches
 * are in the first one's. What comes back from the offload tier begins another life on the device. */
typedef struct Buffer {
  int32_t id;
  Storage *storage;
  int32_t micro_batch;
  int32_t pass;
  Tier tier;
  bool given;          /* there before the step and after it: persistent, or an input */
  bool leaks;          /* no instance releases it (RETAIN_RUN) */
  int32_t first, last; /* first instance that writes, last that touches; -1, -1: lives throughout */
} Buffer;

/* What an instance does. An evict copies a buffer of the device to one of the offload tier, a fetch the other
 * way, both after what was launched before them; what comes after a wait begins when its transfer has ended.
 * So a buffer is freed at a fixed place in the schedule, however long a copy takes. */
typedef enum InstanceKind {
  INSTANCE_LAUNCH = 0,
  INSTANCE_EVICT, /* inputs[0] to outputs[0] */
  INSTANCE_FETCH, /* inputs[0] to outputs[0] */
  INSTANCE_WAIT   /* inputs[0]: what the transfer read */
} InstanceKind;
const char *vl_instance_kind_name(InstanceKind kind);

/* Of a launch and of what is done for it; copies have a stream of their own, in order among themselves. */
enum { STREAM_COMPUTE = 0, STREAM_COPY };

/* One launch, transfer or wait. */
typedef struct Instance {
  InstanceKind kind;
  Node
      *node; /* what is launched; of the others: the launch they stand beside, and its micro-batch and pass */
  int32_t micro_batch;
  int32_t pass;
  int32_t inputs[VL_MAX_INPUTS]; /* buffer ids, -1: absent */
  int32_t outputs[VL_MAX_OUTPUTS];
  int32_t *obtain; /* buffers that begin here, in order */
  int32_t obtain_count;
  int32_t *release; /* buffers that end here, in order */
  int32_t release_count;
  int32_t stream;
  int32_t transfer; /* of a wait: the instance it waits for; else -1 */
} Instance;

typedef struct Schedule {
  Arena *arena;
  Instance *instances;
  int32_t instance_count;
  Buffer *buffers;
  int32_t buffer_count;
  int64_t recompute_flops; /* of instances that repeat a forward node */
  int32_t recompute_instances;
  int32_t transfers; /* evicts and fetches */
} Schedule;

/* Generates the schedule of one optimizer step from the program's segments and policies, with lifetimes.
 * VL_INTERNAL when a node would read a value that was overwritten in place. */
Status vl_schedule_build(const Program *program, Schedule **schedule) VL_CHECKED;
void vl_schedule_destroy(Schedule **schedule);
/* Dense bytes that are live while each instance runs: what is given throughout and the buffers that have
 * begun and not ended. live: room for instance_count. Without workspaces and rounding. */
void vl_schedule_live_bytes(const Program *program, const Schedule *schedule, int64_t *live);

/* Sizes of n_layers layers in runs of `interval` (the last may be shorter), or in `segments` parts whose
 * sizes differ by at most one. VL_INVALID for counts below one; more segments than layers are clamped and
 * *clamped set. sizes: room for n_layers. (Fault case D5.) */
Status vl_partition_interval(int32_t layers, int32_t interval, int32_t *sizes, int32_t *count) VL_CHECKED;
Status vl_partition_segments(int32_t layers, int32_t segments, int32_t *sizes, int32_t *count,
                             bool *clamped) VL_CHECKED;
/* The interval at which a chain of equal layers needs least: with a checkpoint of boundary_bytes every k of
 * `layers` layers that keep inner_bytes each, layers / k * boundary + k * inner is lowest at
 * k* = sqrt(layers * boundary / inner). Below 1: every layer. NaN when nothing is known. */
double vl_checkpoint_interval(double layers, double boundary_bytes, double inner_bytes);

/* ---- Costs and printing ---------------------------------------------------------------------------------------------- */

int64_t vl_node_flops(const Node *node);
int64_t vl_node_bytes(const Node *node); /* read and written, dense */
int64_t vl_graph_parameter_count(const Graph *graph);
/* Bytes of forward activations and inputs that backward reads (each storage once, dense), before any
 * recomputation: "saved activations". Parameters and their casts are not counted. */
int64_t vl_program_saved_bytes(const Program *program);
/* Samples of a micro-batch: the leading dimension of the inputs; -1 when they differ or there are none. */
int64_t vl_program_samples(const Program *program);
/* The input whose labels, or a run of them, a cross entropy (softmax_, dice_) or its gradient counts; NULL
 * for another node, or when the labels are not an input's, in its order. */
const Storage *vl_labels_of(const Node *node);

void vl_graph_print(const Graph *graph, FILE *out);     /* one node a line, with shapes, FLOPs and bytes */
void vl_graph_print_dot(const Graph *graph, FILE *out); /* Graphviz */
void vl_schedule_print(const Schedule *schedule, FILE *out);
/* The JSON graph format (schema in graph/json.c): writing and reading are inverse. */
Status vl_graph_write_json(const Graph *graph, FILE *out) VL_CHECKED;
/* VL_INVALID names the element and what was expected. */
Status vl_graph_read_json(const char *text, size_t size, Graph **graph) VL_CHECKED;

#endif
