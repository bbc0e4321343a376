/* linear and matmul on cuBLASLt, each in one call: rows that meet the same b are one matrix, equal leading
 * sizes a batch at a stride, a transpose a way of reading. Sums are in f32 whatever the types, and so are
 * those of parts of a sum that run side by side (split K): reductions in y's type, or in place by counters,
 * are not allowed, so that a result is rounded once and does not depend on who comes first. */
#include "kernels/cuda/linear_bias.h"
#include "kernels/cuda/product.h"

#include <stdio.h>
#include <string.h>

/* What cuBLASLt may ask for; Hopper's fastest kernels want more (NVIDIA's own advice for cuBLAS). */
static const int64_t workspace_limit_bytes = 4 << 20, workspace_limit_bytes_sm90 = 32 << 20;

/* cuBLASLt's answer to a problem. */
typedef struct Algorithm {
  cublasLtMatmulAlgo_t algorithm;
  int64_t workspace_bytes;
} Algorithm;

typedef struct Product {
  CudaProductDescriptors descriptors;
  Algorithm chosen;
  float onto; /* y is onto y + a b */
  bool has_bias;
  int64_t bias_bytes; /* at the workspace's beginning, where the bias must be rounded; 0: it need not */
} Product;

static Status check_size(const Node *node, const char *what, int64_t size) {
  if (size <= INT32_MAX) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "cuda: %s of %s has %lld %s; cuBLASLt takes up to %d", node->op->name,
                  node->scope, (long long)size, what, INT32_MAX);
}

static Status supports(CudaDevice *device, const Node *node) {
  VL_TRY(cuda_supports_floats(device, node));
  const Tensor *a = node->inputs[0], *b = node->inputs[1], *y = node->outputs[0];
  if (a->dtype != b->dtype || (y->dtype != a->dtype && y->dtype != DTYPE_F32))
    return vl_error(VL_UNSUPPORTED,
                    "cuda: %s of %s on %s and %s into %s; accepted: two of a type into that type or f32",
                    node->op->name, node->scope, vl_dtype_name(a->dtype), vl_dtype_name(b->dtype),
                    vl_dtype_name(y->dtype));
  CudaProduct product;
  cuda_product_of(node, false, &product);
  VL_TRY(check_size(node, "rows", product.rows));
  VL_TRY(check_size(node, "columns", product.columns));
  VL_TRY(check_size(node, "terms in a sum", product.inner));
  return check_size(node, "products", product.batches);
}

/* ---- Algorithms ------------------------------------------------------------------------------------------------- */

static cublasStatus_t set_preference(cublasLtMatmulPreference_t preference,
                                     cublasLtMatmulPreferenceAttributes_t attribute, uint32_t value) {
  return cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value);
}

static cublasStatus_t state_preference(const CudaDevice *device, const CudaProduct *product,
                                       cublasLtMatmulPreference_t preference) {
  uint64_t limit = (uint64_t)(device->major >= 9 ? workspace_limit_bytes_sm90 : workspace_limit_bytes);
  cublasStatus_t status = cublasLtMatmulPreferenceInit(preference);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                  &limit, sizeof limit);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = set_preference(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                            CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                            (uint32_t)product->b_alignment);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            (uint32_t)product->a_alignment);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                            (uint32_t)product->y_alignment);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = set_preference(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                            (uint32_t)product->y_alignment);
  return status;
}

/* The heuristics' first algorithm, asked for once per problem. */
static Status choose(CudaDevice *device, const Node *node, const CudaProduct *product,
                     CudaProductDescriptors *descriptors, Algorithm *chosen) {
  const Algorithm *known = cuda_choice_find(device, product, sizeof *product);
  if (known) {
    *chosen = *known;
    return vl_ok();
  }
  cublasLtHandle_t handle = NULL;
  cublasLtMatmulPreferenceOpaque_t preference;
  cublasLtMatmulHeuristicResult_t result;
  int count = 0;
  VL_TRY(cuda_cublaslt(device, &handle));
  VL_TRY(cuda_cublaslt_status(state_preference(device, product, &preference),
                              "cublasLtMatmulPreferenceSetAttribute", node));
  cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle, &descriptors->operation, &descriptors->b, &descriptors->a,
                                     &descriptors->y, &descriptors->y, &preference, 1, &result, &count);
  if (status == CUBLAS_STATUS_SUCCESS && count > 0) status = result.state;
  if (status == CUBLAS_STATUS_SUCCESS && count == 0) status = CUBLAS_STATUS_NOT_SUPPORTED;
  VL_TRY(cuda_cublaslt_status(status, "cublasLtMatmulAlgoGetHeuristic", node));
  *chosen = (Algorithm){.algorithm = result.algo,
                        .workspace_bytes = ((int64_t)result.workspaceSize + 255) / 256 * 256};
  cuda_choice_keep(device, product, sizeof *product, chosen, sizeof *chosen);
  return vl_ok();
}

/* A number of an algorithm's configuration, -1 when it has none. */
static int configuration(const Algorithm *chosen, cublasLtMatmulAlgoConfigAttributes_t attribute) {
  int32_t value = 0;
  size_t written = 0;
  cublasStatus_t status =
      cublasLtMatmulAlgoConfigGetAttribute(&chosen->algorithm, attribute, &value, sizeof value, &written);
  return status == CUBLAS_STATUS_SUCCESS ? value : -1;
}

static void name_implementation(const CudaProduct *product, const Algorithm *chosen, char *text,
                                size_t size) {
  snprintf(text, size, "cublaslt %d%s tile %d stages %d split %d",
           configuration(chosen, CUBLASLT_ALGO_CONFIG_ID), product->tf32 ? " tf32" : "",
           configuration(chosen, CUBLASLT_ALGO_CONFIG_TILE_ID),
           configuration(chosen, CUBLASLT_ALGO_CONFIG_STAGES_ID),
           configuration(chosen, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
}

/* ---- Kernels ------------------------------------------------------------------------------------------------------ */

/* The epilogue takes a bias of y's type alone. An f32 one beside low factors is rounded first, as autocast
 * rounds it, which costs what one row of y does; to add it later would read and write all of y again. */
static int64_t rounded_bias_bytes(const Node *node, const CudaProduct *product) {
  if (!product->bias || node->inputs[2]->dtype == node->outputs[0]->dtype) return 0;
  return (vl_dtype_bytes(node->outputs[0]->dtype, product->columns) + 255) / 256 * 256;
}

static Status prepare(CudaDevice *device, Kernel *kernel) {
  const Node *node = kernel->node;
  CudaProduct problem;
  Product *product = vl_allocate(sizeof *product);
  kernel->data = product;
  cuda_product_of(node, device->tf32, &problem);
  product->onto = problem.adds ? 1.0F : 0.0F;
  product->has_bias = problem.bias != 0;
  product->bias_bytes = rounded_bias_bytes(node, &problem);
  VL_TRY(cuda_cublaslt_status(cuda_product_describe(&problem, &product->descriptors),
                              "describing a product to cuBLASLt", node));
  VL_TRY(choose(device, node, &problem, &product->descriptors, &product->chosen));
  kernel->workspace_bytes = product->bias_bytes + product->chosen.workspace_bytes;
  name_implementation(&problem, &product->chosen, kernel->implementation, sizeof kernel->implementation);
  return vl_ok();
}

/* The bias as the epilogue reads it, in its own place or rounded into the workspace. */
static Status give_bias(const Node *node, Product *product, const CudaLaunch *launch) {
  const void *bias = (const void *)launch->inputs[2];
  if (product->bias_bytes > 0) {
    void *rounded = (void *)launch->workspace;
    int64_t count = vl_tensor_elements(node->inputs[2]);
    VL_TRY(cuda_status(cuda_round_bias(bias, count, node->outputs[0]->dtype, rounded, launch->stream),
                       "rounding a bias", node));
    bias = rounded;
  }
  return cuda_cublaslt_status(cublasLtMatmulDescSetAttribute(&product->descriptors.operation,
                                                             CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                                             sizeof bias),
                              "cublasLtMatmulDescSetAttribute", node);
}

/* C and D are both y, as they lie: what is added onto is the output. */
static Status launch_product(const Kernel *kernel, const CudaLaunch *launch) {
  static const float one = 1.0F;
  Product *product = kernel->data;
  cublasLtHandle_t handle = NULL;
  VL_TRY(cuda_cublaslt(kernel->device, &handle));
  if (product->has_bias) VL_TRY(give_bias(kernel->node, product, launch));
  void *y = (void *)launch->outputs[0];
  cublasStatus_t status =
      cublasLtMatmul(handle, &product->descriptors.operation, &one, (const void *)launch->inputs[1],
                     &product->descriptors.b, (const void *)launch->inputs[0], &product->descriptors.a,
                     &product->onto, y, &product->descriptors.y, y, &product->descriptors.y,
                     &product->chosen.algorithm, (void *)(launch->workspace + (uintptr_t)product->bias_bytes),
                     (size_t)product->chosen.workspace_bytes, launch->stream);
  return cuda_cublaslt_status(status, "cublasLtMatmul", kernel->node);
}

const CudaOp cuda_op_linear = {.name = "linear",
                               .supports = supports,
                               .choose_layouts = cuda_choose_plain,
                               .prepare = prepare,
                               .launch = launch_product};
const CudaOp cuda_op_matmul = {.name = "matmul",
                               .supports = supports,
                               .choose_layouts = cuda_choose_plain,
                               .prepare = prepare,
                               .launch = launch_product};
