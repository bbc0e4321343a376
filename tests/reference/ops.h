/* What the files of tests/reference share: one function per op, found by name. */
#ifndef VRAMLAB_TESTS_REFERENCE_OPS_H
#define VRAMLAB_TESTS_REFERENCE_OPS_H

#include "devices/device.h"

/* What a node computes from and to; NULL where a tensor is absent. */
typedef struct Arrays {
  double *const *inputs;
  double *const *outputs;
  const LaunchContext *context;
} Arrays;

typedef void (*Compute)(const Node *node, const Arrays *arrays);

typedef struct ReferenceOp {
  const char *name;
  Compute compute;
} ReferenceOp;

/* Each file's ops, ended by a NULL name. */
extern const ReferenceOp reference_adamw_8bit_ops[], reference_dice_ops[];

/* Inputs `index` and `index` + 1 of an update: what its gradient is multiplied by, which step this is, and
 * whether it is skipped. */
typedef struct UpdateFactor {
  double factor, steps;
  bool skip;
} UpdateFactor;
UpdateFactor reference_update_factor(const Node *node, int32_t index, const Arrays *arrays);
/* An output of a skipped update is its input. */
void reference_keep(const Node *node, const Arrays *arrays, int32_t output, int32_t input);
extern const ReferenceOp reference_attention_ops[];
extern const ReferenceOp reference_convolution_ops[];
extern const ReferenceOp reference_normalization_ops[];
extern const ReferenceOp reference_elementwise_ops[];
extern const ReferenceOp reference_pooling_ops[];
extern const ReferenceOp reference_product_ops[];
extern const ReferenceOp reference_shape_ops[];

/* A window sliding over space, written with three spatial dims always (a missing one is 1 wide). */
typedef struct Window {
  int64_t samples, channels; /* of the tensor that is slid over */
  int64_t in[3], out[3], kernel[3], stride[3], padding[3];
} Window;

/* From a node's stride, padding and kernel; `in` and `out` are the tensors on both sides of the window. */
Window reference_window(const OpParams *params, const int64_t *kernel, const Tensor *in, const Tensor *out);
int64_t reference_volume(const int64_t *extent);
/* The outputs o of one dim for which input o * stride - padding + k exists: [*first, *last). */
void reference_valid_outputs(const Window *window, int dim, int64_t k, int64_t *first, int64_t *last);

#endif
