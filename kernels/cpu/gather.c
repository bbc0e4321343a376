/* Rows picked by number: embedding, gather_tokens, and their gradients; plain. A number out of range is
 * refused before anything is written. */
#include "kernels/cpu/vector.h"

#include <omp.h>

/* Every index of `tensor` lies within 0 and limit - 1. */
static Status check_indices(const Kernel *kernel, const char *name, const Tensor *tensor,
                            const int32_t *indices, int64_t limit) {
  int64_t count = vl_tensor_elements(tensor);
  for (int64_t i = 0; i < count; i++) {
    if (indices[i] >= 0 && indices[i] < limit) continue;
    char place[80];
    int used = 0;
    int64_t stride = count;
    for (int32_t d = 0; d < tensor->rank; d++) {
      stride /= tensor->shape[d];
      used += snprintf(place + used, sizeof place - (size_t)used, "%s%lld", d == 0 ? "" : ", ",
                       (long long)(i / stride % tensor->shape[d]));
    }
    return vl_error(VL_INVALID, "%s in %s: %s[%s] is %d; must be within 0 and %lld", kernel->op->name,
                    kernel->node->scope, name, place, indices[i], (long long)(limit - 1));
  }
  return vl_ok();
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  (void)device;
  (void)kernel;
  return vl_ok();
}

/* to[i] = from[i / each * rows + indices[i]], rows of row_bytes: every `each` indices have `rows` of their
 * own to pick from. */
static void pick_rows(char *to, const char *from, const int32_t *indices, Range range, int64_t each,
                      int64_t rows, size_t row_bytes) {
  for (int64_t i = range.begin; i < range.end; i++)
    memcpy(to + (size_t)i * row_bytes, from + (size_t)(i / each * rows + indices[i]) * row_bytes, row_bytes);
}

static void pick(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs, int64_t each,
                 int64_t rows) {
  const Tensor *y = kernel->node->outputs[0];
  int64_t count = vl_tensor_elements(kernel->node->inputs[1]);
  size_t row_bytes = (size_t)(vl_tensor_bytes(y) / count);
  int32_t wanted = vector_threads(kernel, vl_tensor_elements(y));
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    Range share = vector_share(count, omp_get_num_threads(), omp_get_thread_num());
    pick_rows((char *)outputs[0], (const char *)inputs[0], (const int32_t *)inputs[1], share, each, rows,
              row_bytes);
  }
}

/* ---- embedding -------------------------------------------------------------------------------------------- */

static Status embedding_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                               uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  const Tensor *table = kernel->node->inputs[0], *ids = kernel->node->inputs[1];
  VL_TRY(check_indices(kernel, "ids", ids, (const int32_t *)inputs[1], table->shape[0]));
  pick(kernel, inputs, outputs, vl_tensor_elements(ids), table->shape[0]);
  return vl_ok();
}

VECTOR_INLINE void add_as(float *restrict to, const void *x, int64_t offset, int64_t count, bool bf16) {
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    to[i] += vector_load(x, offset + i, bf16);
}

/* to[i] += x[offset + i] */
VECTOR_CLONES
static void add_row(float *to, VectorArray x, int64_t offset, int64_t count) {
  if (x.dtype == DTYPE_BF16)
    add_as(to, x.address, offset, count, true);
  else
    add_as(to, x.address, offset, count, false);
}

/* Threads share out columns, so that each row is summed in the order of positions whatever their number. */
static void add_rows(float *table, VectorArray dy, const int32_t *ids, int64_t count, int64_t width,
                     Range columns) {
  int64_t each = columns.end - columns.begin;
  for (int64_t i = 0; i < count && each > 0; i++)
    add_row(table + ids[i] * width + columns.begin, dy, i * width + columns.begin, each);
}

static Status embedding_backward_launch(const Kernel *kernel, const uintptr_t *inputs,
                                        const uintptr_t *outputs, uintptr_t workspace,
                                        const LaunchContext *context) {
  (void)workspace;
  (void)context;
  const Node *node = kernel->node;
  VectorArray dy = vector_input(kernel, inputs, 0);
  const int32_t *ids = (const int32_t *)inputs[1];
  float *table = (float *)outputs[0];
  int64_t rows = node->params.shape[0], width = node->params.shape[1];
  int64_t count = vl_tensor_elements(node->inputs[1]), lines = vector_by_lines(width) / VECTOR_LANES;
  bool fresh = node->input_count < 3 || node->inputs[2] == NULL;
  VL_TRY(check_indices(kernel, "ids", node->inputs[1], ids, rows));
  int32_t wanted = vector_threads(kernel, (count + (fresh ? rows : 0)) * width);
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    int32_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    if (fresh) {
      Range share = vector_share(rows, threads, thread);
      memset(table + share.begin * width, 0, (size_t)((share.end - share.begin) * width) * sizeof *table);
#pragma omp barrier
    }
    Range share = vector_share(lines, threads, thread);
    int64_t end = share.end * VECTOR_LANES;
    add_rows(table, dy, ids, count, width, (Range){share.begin * VECTOR_LANES, end < width ? end : width});
  }
  return vl_ok();
}

/* The sum is kept in f32. */
static Status supports_f32_table(CpuDevice *device, const Node *node) {
  VL_TRY(cpu_supports_f32_bf16(device, node));
  if (node->params.dtype == DTYPE_F32) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "%s in %s: the gradient as %s; f32 is possible", node->op->name,
                  node->scope, vl_dtype_name((DType)node->params.dtype));
}

/* ---- gather_tokens ----------------------------------------------------------------------------------------- */

static Status gather_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                            uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  const Tensor *x = kernel->node->inputs[0], *positions = kernel->node->inputs[1];
  VL_TRY(check_indices(kernel, "positions", positions, (const int32_t *)inputs[1], x->shape[1]));
  pick(kernel, inputs, outputs, positions->shape[1], x->shape[1]);
  return vl_ok();
}

typedef struct Gathered {
  int64_t picked, length, width; /* rows of dy and of dx in a sample, and their elements */
} Gathered;

/* Row `row` of dx: the sum, in f32, of the rows of dy that were taken from it. Each is written once. */
static void sum_row(const Gathered *shape, VectorArray dx, VectorArray dy, const int32_t *positions,
                    int64_t row) {
  _Alignas(64) float sums[VECTOR_TILE];
  int64_t sample = row / shape->length, place = row % shape->length, first = sample * shape->picked;
  for (int64_t at = 0; at < shape->width; at += VECTOR_TILE) {
    int64_t count = shape->width - at < VECTOR_TILE ? shape->width - at : VECTOR_TILE;
    memset(sums, 0, (size_t)count * sizeof *sums);
    for (int64_t m = first; m < first + shape->picked; m++)
      if (positions[m] == place) add_row(sums, dy, m * shape->width + at, count);
    vector_write(dx, row * shape->width + at, count, sums);
  }
}

static Status gather_backward_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                     uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  VectorArray dy = vector_input(kernel, inputs, 0), dx = vector_output(kernel, outputs, 0);
  const Tensor *x = kernel->node->outputs[0], *positions = kernel->node->inputs[1];
  const int32_t *places = (const int32_t *)inputs[1];
  VL_TRY(check_indices(kernel, "positions", positions, places, x->shape[1]));
  Gathered shape = {.picked = positions->shape[1], .length = x->shape[1], .width = x->shape[2]};
  int32_t wanted = vector_threads(kernel, vl_tensor_elements(x));
#pragma omp parallel num_threads(wanted) if (wanted > 1)
  {
    Range share = vector_share(x->shape[0] * shape.length, omp_get_num_threads(), omp_get_thread_num());
    for (int64_t row = share.begin; row < share.end; row++)
      sum_row(&shape, dx, dy, places, row);
  }
  return vl_ok();
}

const CpuOp cpu_op_embedding = {
    .name = "embedding",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = embedding_launch,
};

const CpuOp cpu_op_embedding_backward = {
    .name = "embedding_backward",
    .supports = supports_f32_table,
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = embedding_backward_launch,
};

const CpuOp cpu_op_gather_tokens = {
    .name = "gather_tokens",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = gather_launch,
};

const CpuOp cpu_op_gather_tokens_backward = {
    .name = "gather_tokens_backward",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = cpu_choose_plain,
    .prepare = prepare,
    .launch = gather_backward_launch,
};
