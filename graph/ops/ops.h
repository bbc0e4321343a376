/* graph/ops: what the files of this folder share. Private to it. */
#ifndef VRAMLAB_GRAPH_OPS_H
#define VRAMLAB_GRAPH_OPS_H

#include "graph/graph.h"

/* One line of a fields table: a member of OpParams under its own name. */
#define OP_FIELD(kind, member, elements)                                                                     \
  { #member, kind, offsetof(OpParams, member), elements }
#define OP_INTEGER(member) OP_FIELD(FIELD_INTEGER, member, 1)
#define OP_REAL(member) OP_FIELD(FIELD_REAL, member, 1)
#define OP_SPATIAL(member) OP_FIELD(FIELD_INTEGER, member, 3)
#define OP_SIZES(member) OP_FIELD(FIELD_INTEGER, member, VL_MAX_DIMS)
#define OP_FIELDS(table) .fields = (table), .field_count = (int32_t)(sizeof(table) / sizeof *(table))

extern const Op op_conv, op_conv_backward_data, op_conv_backward_weights, op_conv_transpose, op_conv_epilogue;
extern const Op op_batch_norm_stats, op_batch_norm_apply, op_batch_norm_update, op_batch_norm_backward;
extern const Op op_batch_norm_invert;
extern const Op op_layer_norm, op_layer_norm_backward, op_residual_norm, op_residual_norm_backward;
extern const Op op_instance_norm, op_instance_norm_backward;
extern const Op op_dice_cross_entropy, op_dice_cross_entropy_backward;
extern const Op op_relu, op_relu_backward, op_gelu, op_gelu_backward, op_add, op_mul, op_scale;
extern const Op op_max_pool, op_max_pool_backward, op_avg_pool, op_avg_pool_backward;
extern const Op op_global_avg_pool, op_global_avg_pool_backward;
extern const Op op_linear, op_matmul, op_sum, op_broadcast;
extern const Op op_attention, op_attention_backward;
extern const Op op_reshape, op_transpose, op_slice, op_pad, op_concat;
extern const Op op_rsqrt, op_rsqrt_backward, op_magnitude, op_magnitude_backward;
extern const Op op_tanh, op_tanh_backward, op_softmax, op_softmax_backward;
extern const Op op_embedding, op_embedding_backward, op_gather_tokens, op_gather_tokens_backward;
extern const Op op_dropout, op_softmax_cross_entropy, op_softmax_cross_entropy_backward, op_correct_count;
extern const Op op_cast, op_copy, op_fill, op_sgd, op_adamw, op_adamw_8bit;
extern const Op op_square_sum, op_gradient_factor;

/* ---- Checks: VL_INVALID names the op, its scope and the numbers that clash ------------------------------- */

/* "<op> in <scope>: <message>". */
Status op_error(StatusCode code, const Node *node, const char *format, ...)
    __attribute__((format(printf, 3, 4))) VL_CHECKED;
/* Input `index` is there and has `rank` dimensions; -1: any number. */
Status op_check_input(const Node *node, int32_t index, const char *name, int32_t rank) VL_CHECKED;
/* As above, and its elements are floating point. */
Status op_check_float_input(const Node *node, int32_t index, const char *name, int32_t rank) VL_CHECKED;
/* Input `index` is there and has `dtype` and the shape (size). */
Status op_check_vector(const Node *node, int32_t index, const char *name, int64_t size,
                       DType dtype) VL_CHECKED;
/* Inputs a and b are there, floating point, and agree in shape and dtype. */
Status op_check_alike(const Node *node, int32_t a, int32_t b) VL_CHECKED;
/* Input `index` has exactly these sizes. */
Status op_check_sizes(const Node *node, int32_t index, const char *name, int32_t rank,
                      const int64_t *shape) VL_CHECKED;
/* Sizes from params.shape and params.rank, or computed: 0..VL_MAX_DIMS of them, each at least 1, and few
 * enough elements to count their bits in 63 bits. */
Status op_check_shape(const Node *node, int64_t rank, const int64_t *shape) VL_CHECKED;
/* params.dtype names a floating-point type. */
Status op_check_float_dtype(const Node *node) VL_CHECKED;
/* A flag is 0 or 1. */
Status op_check_flag(const Node *node, const char *name, int64_t value) VL_CHECKED;
/* Input `index`, gamma or beta of a norm, is one number a channel, in any floating-point type. */
Status op_check_channels(const Node *node, int32_t index, const char *name, int64_t channels) VL_CHECKED;
/* Inputs `index` and `index` + 1 of an update, both optional: what its gradient is multiplied by, and the
 * counters of a scaler, which may have it skip the step. */
Status op_check_factor(const Node *node, int32_t index) VL_CHECKED;
/* Input `index`, a bias, is absent, or one number a channel in x's type or f32. */
Status op_check_bias(const Node *node, int32_t index, int64_t channels) VL_CHECKED;
/* params.epsilon is not negative. */
Status op_check_epsilon(const Node *node) VL_CHECKED;
/* The window, stride and padding of a spatial dimension are within what the ops take. */
Status op_check_window(const Node *node, int32_t dimension, int64_t kernel) VL_CHECKED;
/* The output sizes of a window that slides over `spatial` dimensions with params.stride and
 * params.padding. */
Status op_window_sizes(const Node *node, int32_t spatial, const int64_t *input, const int64_t *kernel,
                       int64_t *output) VL_CHECKED;

/* A node whose outputs are in place already, though no tensor names it as its producer yet: infers a copy in
 * `scratch`, whose tensors are dropped, and compares. */
Status op_verify(const Node *node, Graph *scratch) VL_CHECKED;

/* ---- Outputs ---------------------------------------------------------------------------------------------- */

/* Appends an output with a storage of its own, named "<scope>.<op>[.<part>]". part: NULL for the only
 * output. */
Status op_add_output(Graph *graph, Node *node, const char *part, DType dtype, int64_t rank,
                     const int64_t *shape) VL_CHECKED;
/* Appends an output that looks like another tensor. */
Status op_add_output_like(Graph *graph, Node *node, const char *part, const Tensor *like) VL_CHECKED;
/* Appends an output that is a view of `of`, from its start. */
Status op_add_view(Graph *graph, Node *node, const char *part, Tensor *of, int64_t rank,
                   const int64_t *shape) VL_CHECKED;

/* ---- Gradients -------------------------------------------------------------------------------------------- */

/* Adds a node in the scope of `of`, the node whose gradient it is; returns its first output. */
Status op_gradient_node(Gradients *gradients, const Node *of, const char *op, const OpParams *params,
                        Tensor *const *inputs, int32_t input_count, Tensor **out) VL_CHECKED;
/* A tensor in another dtype: itself, or the output of a `cast`. */
Status op_gradient_cast(Gradients *gradients, const Node *of, Tensor *tensor, DType dtype,
                        Tensor **out) VL_CHECKED;
/* Gives `gradient` to input `index` of `of`, in the input's dtype. */
Status op_gradient_give(Gradients *gradients, const Node *of, int32_t index, Tensor *gradient) VL_CHECKED;
/* Input `index` is there and needs a gradient. */
bool op_gradient_wanted(const Gradients *gradients, const Node *of, int32_t index);
/* Gives input `index`, a bias, the sum of dy over all dimensions but `channels`; nothing where it is absent
 * or wants none. */
Status op_gradient_give_bias(Gradients *gradients, const Node *of, int32_t index, Tensor *dy,
                             int32_t channels) VL_CHECKED;
/* params.shape and params.rank of a tensor. */
void op_set_shape(OpParams *params, const Tensor *tensor);

/* ---- Numbers ---------------------------------------------------------------------------------------------- */

/* a * b for counts, INT64_MAX when it does not fit. */
int64_t op_multiply(int64_t a, int64_t b);
/* f64 for f64, else f32: what statistics and reductions of x are kept in. */
DType op_statistics_dtype(DType x);
/* Nothing is computed: values are moved. */
int64_t op_no_flops(const Node *node);

#endif
