/* Sum, product and multiple, element by element over whole storages (zero padding stays zero); sum and
 * product with what is repeated, row by row of plain tensors; and a constant. */
#include "kernels/cpu/vector.h"

#include <omp.h>
#include <string.h>

VECTOR_CLONES
static void add(float *y, const float *a, const float *b, int64_t count, float parameter) {
  (void)parameter;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    y[i] = a[i] + b[i];
}

VECTOR_CLONES
static void multiply(float *y, const float *a, const float *b, int64_t count, float parameter) {
  (void)parameter;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    y[i] = a[i] * b[i];
}

VECTOR_CLONES
static void scale(float *y, const float *x, const float *unused, int64_t count, float factor) {
  (void)unused;
#pragma omp simd
  for (int64_t i = 0; i < count; i++)
    y[i] = factor * x[i];
}

static Status prepare(CpuDevice *device, Kernel *kernel) {
  return vector_prepare_map(device, kernel, kernel->node->input_count);
}

/* ---- Sum and product with a repeated b ---------------------------------------------------------------------- */

/* b's place for a row of a, the last dimension: sum of index * stride over the dimensions before it. */
typedef struct Repeated {
  int32_t rank; /* of what is before the last dimension */
  int64_t sizes[VL_MAX_DIMS], strides[VL_MAX_DIMS];
  int64_t width, rows;
  bool one_a_row; /* b is repeated along the last dimension */
} Repeated;

static bool repeats(const Node *node) { return !vl_tensor_same_shape(node->inputs[0], node->inputs[1]); }

static Status choose(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  return repeats(node) ? cpu_choose_plain(device, node, inputs, outputs)
                       : vector_choose(device, node, inputs, outputs);
}

static Status prepare_repeated(CpuDevice *device, Kernel *kernel) {
  (void)device;
  const Tensor *a = kernel->node->inputs[0], *b = kernel->node->inputs[1];
  Repeated *own = vl_allocate(sizeof *own);
  kernel->data = own;
  own->rank = a->rank - 1;
  own->width = a->shape[a->rank - 1];
  own->rows = vl_tensor_elements(a) / own->width;
  own->one_a_row = b->rank == 0 || b->shape[b->rank - 1] != own->width;
  int64_t stride = b->rank == 0 ? 1 : b->shape[b->rank - 1];
  for (int32_t i = own->rank - 1; i >= 0; i--) {
    int32_t of_b = i - (a->rank - b->rank);
    own->sizes[i] = a->shape[i];
    own->strides[i] = of_b >= 0 && b->shape[of_b] > 1 ? stride : 0;
    if (of_b >= 0) stride *= b->shape[of_b];
  }
  return vl_ok();
}

static int64_t place_in_b(const Repeated *own, int64_t row) {
  int64_t place = 0;
  for (int32_t i = own->rank - 1; i >= 0; i--) {
    place += row % own->sizes[i] * own->strides[i];
    row /= own->sizes[i];
  }
  return place;
}

/* Some elements of a row. */
static void compute_run(VectorFunction *function, VectorArray y, VectorArray a, int64_t offset, int64_t count,
                        const float *b) {
  _Alignas(64) float buffer[2][VECTOR_TILE];
  const float *from = vector_read(a, offset, count, buffer[0]);
  float *to = vector_target(y, offset, buffer[1]);
  function(to, from, b, count, 0.0F);
  vector_write(y, offset, count, to);
}

static void compute_rows(const Repeated *own, VectorFunction *function, VectorArray y, VectorArray a,
                         VectorArray b, Range rows) {
  _Alignas(64) float buffer[VECTOR_TILE];
  for (int64_t row = rows.begin; row < rows.end; row++) {
    int64_t place = place_in_b(own, row);
    for (int64_t i = 0; i < own->width; i += VECTOR_TILE) {
      int64_t count = own->width - i < VECTOR_TILE ? own->width - i : VECTOR_TILE;
      const float *of_b = buffer;
      for (int64_t k = 0; own->one_a_row && i == 0 && k < count; k++)
        buffer[k] = vector_element(b, place);
      if (!own->one_a_row) of_b = vector_read(b, place + i, count, buffer);
      compute_run(function, y, a, row * own->width + i, count, of_b);
    }
  }
}

static void map_repeated(const Kernel *kernel, VectorFunction *function, const uintptr_t *inputs,
                         const uintptr_t *outputs) {
  const Repeated *own = kernel->data;
  VectorArray a = vector_input(kernel, inputs, 0), b = vector_input(kernel, inputs, 1),
              y = vector_output(kernel, outputs, 0);
  int32_t threads = vector_threads(kernel, own->rows * own->width);
#pragma omp parallel num_threads(threads) if (threads > 1)
  compute_rows(own, function, y, a, b, vector_share(own->rows, omp_get_num_threads(), omp_get_thread_num()));
}

static Status add_repeated_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                                  uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  map_repeated(kernel, add, inputs, outputs);
  return vl_ok();
}

static Status multiply_repeated_launch(const Kernel *kernel, const uintptr_t *inputs,
                                       const uintptr_t *outputs, uintptr_t workspace,
                                       const LaunchContext *context) {
  (void)workspace;
  (void)context;
  map_repeated(kernel, multiply, inputs, outputs);
  return vl_ok();
}

static const CpuOp add_repeated = {
    .name = "add",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = choose,
    .prepare = prepare_repeated,
    .launch = add_repeated_launch,
};

static const CpuOp multiply_repeated = {
    .name = "mul",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = choose,
    .prepare = prepare_repeated,
    .launch = multiply_repeated_launch,
};

static Status prepare_add(CpuDevice *device, Kernel *kernel) {
  if (!repeats(kernel->node)) return prepare(device, kernel);
  kernel->op = &add_repeated;
  return prepare_repeated(device, kernel);
}

static Status prepare_multiply(CpuDevice *device, Kernel *kernel) {
  if (!repeats(kernel->node)) return prepare(device, kernel);
  kernel->op = &multiply_repeated;
  return prepare_repeated(device, kernel);
}

/* ---- Same shapes ------------------------------------------------------------------------------------------------ */

static Status add_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                         uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  vector_map(kernel, add, 0.0F, vector_output(kernel, outputs, 0), vector_input(kernel, inputs, 0),
             vector_input(kernel, inputs, 1));
  return vl_ok();
}

static Status multiply_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                              uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  vector_map(kernel, multiply, 0.0F, vector_output(kernel, outputs, 0), vector_input(kernel, inputs, 0),
             vector_input(kernel, inputs, 1));
  return vl_ok();
}

static Status scale_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                           uintptr_t workspace, const LaunchContext *context) {
  (void)workspace;
  (void)context;
  vector_map(kernel, scale, (float)kernel->node->params.alpha, vector_output(kernel, outputs, 0),
             vector_input(kernel, inputs, 0), (VectorArray){.address = NULL});
  return vl_ok();
}

const CpuOp cpu_op_add = {
    .name = "add",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = choose,
    .prepare = prepare_add,
    .launch = add_launch,
};

const CpuOp cpu_op_mul = {
    .name = "mul",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = choose,
    .prepare = prepare_multiply,
    .launch = multiply_launch,
};

const CpuOp cpu_op_scale = {
    .name = "scale",
    .supports = cpu_supports_f32_bf16,
    .choose_layouts = vector_choose,
    .prepare = prepare,
    .launch = scale_launch,
};

/* ---- Constant: any type, plain, since padding would have to stay zero -------------------------------------- */

static Status fill_prepare(CpuDevice *device, Kernel *kernel) {
  if (kernel->outputs[0] == LAYOUT_PLAIN) return vl_ok();
  return vl_error(VL_INTERNAL, "fill in %s: layout %s; only plain is possible", kernel->node->scope,
                  cpu_layout_name(device, kernel->outputs[0]));
}

static Status fill_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                          uintptr_t workspace, const LaunchContext *context) {
  (void)inputs;
  (void)workspace;
  (void)context;
  const Tensor *y = kernel->node->outputs[0];
  char *to = (char *)outputs[0];
  int64_t element_bytes = vl_dtype_bytes(y->dtype, 1), bytes = vl_tensor_bytes(y);
  vl_element_set(to, y->dtype, 0, kernel->node->params.alpha);
  /* What is filled doubles each time. */
  for (int64_t done = element_bytes; done < bytes; done *= 2)
    memcpy(to + done, to, (size_t)(done < bytes - done ? done : bytes - done));
  return vl_ok();
}

const CpuOp cpu_op_fill = {
    .name = "fill",
    .choose_layouts = cpu_choose_plain,
    .prepare = fill_prepare,
    .launch = fill_launch,
};
