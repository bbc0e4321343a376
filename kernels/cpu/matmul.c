/* Products on oneDNN's matmul: linear layers (x w^T + b) and batched products. Everything is plain;
 * transposed factors are read as they lie. */
#include "kernels/cpu/cpu.h"
#include <string.h>

enum { LEFT = 0, RIGHT, RESULT, BIAS };

/* The device's attributes, and that the result is added to what is there. */
static dnnl_status_t add_to_result(CpuDevice *device, dnnl_primitive_attr_t *attributes) {
  dnnl_post_ops_t sum = NULL;
  dnnl_status_t status = dnnl_primitive_attr_clone(attributes, device->attributes);
  if (status == dnnl_success) status = dnnl_post_ops_create(&sum);
  if (status == dnnl_success) status = dnnl_post_ops_append_sum(sum, 1.0F, 0, dnnl_data_type_undef);
  if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(*attributes, sum);
  if (sum) dnnl_post_ops_destroy(sum);
  return status;
}

static dnnl_status_t create(CpuDevice *device, const PrimitiveSpec *spec, const dnnl_memory_desc_t *mds,
                            dnnl_primitive_desc_t *descriptor) {
  dnnl_primitive_attr_t adding = NULL;
  dnnl_status_t status = spec->adds ? add_to_result(device, &adding) : dnnl_success;
  if (status == dnnl_success)
    status = dnnl_matmul_primitive_desc_create(descriptor, device->engine, mds[LEFT], mds[RIGHT],
                                               spec->operand_count > BIAS ? mds[BIAS] : NULL, mds[RESULT],
                                               adding ? adding : device->attributes);
  if (adding) dnnl_primitive_attr_destroy(adding);
  return status;
}

/* The bias is weights 1 to a query. */
static const PrimitiveKind kind = {
    "product",
    create,
    {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md, dnnl_query_weights_md},
    {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
    {0, 0, 0, 1}};

static const int32_t matmul_sources[] = {0, 1, OPERAND_OUTPUT};
static const int32_t linear_sources[] = {0, 1, OPERAND_OUTPUT, 2};

static void set_factor(PrimitiveOperand *operand, const Tensor *tensor, bool transposed) {
  cpu_operand_set(operand, tensor, LAYOUT_PLAIN, 1);
  if (!transposed) return;
  operand->transposed = 1;
  operand->shape[tensor->rank - 2] = tensor->shape[tensor->rank - 1];
  operand->shape[tensor->rank - 1] = tensor->shape[tensor->rank - 2];
}

/* Makes all dimensions but the last one: what meets one matrix is one product, however its rows are counted.
 */
static void join_rows(PrimitiveOperand *operand) {
  if (operand->rank == 2) return;
  int32_t last = operand->rank - 1;
  int64_t rows = 1, columns = operand->shape[last];
  for (int32_t i = 0; i < last; i++)
    rows *= operand->shape[i];
  memset(operand->shape, 0, sizeof operand->shape);
  operand->shape[0] = rows;
  operand->shape[1] = columns;
  operand->rank = 2;
}

static void fill_spec(const Node *node, bool transpose_left, bool transpose_right, PrimitiveSpec *spec) {
  memset(spec, 0, sizeof *spec);
  spec->kind = &kind;
  spec->operand_count = BIAS;
  set_factor(&spec->operands[LEFT], node->inputs[0], transpose_left);
  set_factor(&spec->operands[RIGHT], node->inputs[1], transpose_right);
  set_factor(&spec->operands[RESULT], node->outputs[0], false);
  if (spec->operands[RIGHT].rank > 2) return;
  join_rows(&spec->operands[LEFT]);
  join_rows(&spec->operands[RESULT]);
}

static Status supports(CpuDevice *device, const Node *node) {
  VL_TRY(cpu_supports_f32_bf16(device, node));
  const Tensor *a = node->inputs[0], *b = node->inputs[1], *y = node->outputs[0];
  if (a->dtype != b->dtype || (a->dtype == DTYPE_F32 && y && y->dtype != DTYPE_F32))
    return vl_error(VL_UNSUPPORTED,
                    "cpu: %s of %s on %s and %s into %s; accepted: f32 into f32, bf16 into bf16 or f32",
                    node->op->name, node->scope, vl_dtype_name(a->dtype), vl_dtype_name(b->dtype),
                    y ? vl_dtype_name(y->dtype) : "nothing");
  return vl_ok();
}

static Status prepare_matmul(CpuDevice *device, Kernel *kernel) {
  PrimitiveSpec spec;
  const OpParams *params = &kernel->node->params;
  fill_spec(kernel->node, params->transpose_a != 0, params->transpose_b != 0, &spec);
  spec.adds = kernel->node->input_count > 2;
  return cpu_primitive_prepare(device, kernel, &spec, matmul_sources);
}

static Status prepare_linear(CpuDevice *device, Kernel *kernel) {
  const Node *node = kernel->node;
  PrimitiveSpec spec;
  fill_spec(node, false, true, &spec);
  const Tensor *bias = node->input_count > 2 ? node->inputs[2] : NULL;
  if (bias) {
    PrimitiveOperand *operand = &spec.operands[BIAS];
    spec.operand_count = BIAS + 1;
    cpu_operand_set(operand, bias, LAYOUT_PLAIN, 1);
    operand->rank = 2;
    operand->shape[0] = 1;
    operand->shape[1] = bias->shape[0];
  }
  return cpu_primitive_prepare(device, kernel, &spec, linear_sources);
}

const CpuOp cpu_op_matmul = {"matmul",
                             supports,
                             cpu_choose_plain,
                             prepare_matmul,
                             cpu_primitive_build,
                             cpu_primitive_launch,
                             cpu_primitive_destroy};
const CpuOp cpu_op_linear = {"linear",
                             supports,
                             cpu_choose_plain,
                             prepare_linear,
                             cpu_primitive_build,
                             cpu_primitive_launch,
                             cpu_primitive_destroy};
