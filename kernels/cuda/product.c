/* Nodes that multiply matrices, described to cuBLASLt: see product.h. */
#include "kernels/cuda/product.h"

#include <string.h>

/* Bytes that divide the address of a tensor, whose storage is aligned. */
static int32_t alignment_of(const Tensor *tensor) {
  int64_t begin = vl_dtype_bytes(tensor->dtype, tensor->offset), alignment = CUDA_PRODUCT_ALIGNMENT;
  while (begin % alignment != 0)
    alignment /= 2;
  return (int32_t)alignment;
}

/* Products of the first `count` sizes. */
static int64_t sizes(const Tensor *tensor, int32_t count) {
  int64_t product = 1;
  for (int32_t i = 0; i < count; i++)
    product *= tensor->shape[i];
  return product;
}

void cuda_product_of(const Node *node, bool tf32, CudaProduct *product) {
  static const char of_cublaslt;
  const Tensor *a = node->inputs[0], *b = node->inputs[1], *y = node->outputs[0];
  bool linear = strcmp(node->op->name, "linear") == 0;
  memset(product, 0, sizeof *product);
  product->begins = &of_cublaslt;
  product->transpose_a = !linear && node->params.transpose_a != 0;
  product->transpose_b = linear || node->params.transpose_b != 0;
  product->columns = y->shape[y->rank - 1];
  product->inner = b->shape[b->rank - (product->transpose_b ? 1 : 2)];
  /* Rows that meet the same b are one matrix, however they are counted. */
  product->batches = b->rank > 2 ? sizes(y, y->rank - 2) : 1;
  product->rows = sizes(y, y->rank - 1) / product->batches;
  product->a_dtype = (int32_t)a->dtype;
  product->y_dtype = (int32_t)y->dtype;
  product->adds = !linear && node->input_count > 2 && node->inputs[2];
  product->bias = linear && node->input_count > 2 && node->inputs[2];
  product->tf32 = tf32 && a->dtype == DTYPE_F32;
  product->a_alignment = alignment_of(a);
  product->b_alignment = alignment_of(b);
  product->y_alignment = alignment_of(y);
}

static cudaDataType_t type_of(int32_t dtype) {
  switch (dtype) {
  case DTYPE_BF16: return CUDA_R_16BF;
  case DTYPE_F16: return CUDA_R_16F;
  default: return CUDA_R_32F;
  }
}

/* A dense matrix of ours, (rows, columns) as it lies: to cuBLASLt columns of `columns` elements. */
static cublasStatus_t describe_matrix(int32_t dtype, int64_t rows, int64_t columns, int64_t batches,
                                      cublasLtMatrixLayoutOpaque_t *layout) {
  int32_t count = (int32_t)batches;
  int64_t stride = rows * columns;
  cublasStatus_t status =
      cublasLtMatrixLayoutInit(layout, type_of(dtype), (uint64_t)columns, (uint64_t)rows, columns);
  if (status == CUBLAS_STATUS_SUCCESS)
    status =
        cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                              sizeof stride);
  return status;
}

static cublasStatus_t set_transposes(const CudaProduct *product, cublasLtMatmulDesc_t operation) {
  int32_t left = product->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  int32_t right = product->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  cublasStatus_t status =
      cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof left);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof right);
  return status;
}

/* The bias is the only epilogue that is ours: cuBLASLt's GELU is the approximation by tanh, our `gelu` the
 * exact one by erf, so its GELU epilogues would be another model. */
static cublasStatus_t set_bias(cublasLtMatmulDesc_t operation) {
  uint32_t epilogue = CUBLASLT_EPILOGUE_BIAS;
  const void *aligned = (const void *)(uintptr_t)CUDA_PRODUCT_ALIGNMENT;
  cublasStatus_t status =
      cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = cublasLtMatmulDescSetAttribute(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &aligned,
                                            sizeof aligned);
  return status;
}

cublasStatus_t cuda_product_describe(const CudaProduct *product, CudaProductDescriptors *descriptors) {
  int64_t rows = product->rows, columns = product->columns, inner = product->inner;
  cublasComputeType_t compute = product->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  cublasStatus_t status = cublasLtMatmulDescInit(&descriptors->operation, compute, CUDA_R_32F);
  if (status == CUBLAS_STATUS_SUCCESS) status = set_transposes(product, &descriptors->operation);
  if (status == CUBLAS_STATUS_SUCCESS && product->bias) status = set_bias(&descriptors->operation);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = describe_matrix(product->a_dtype, product->transpose_a ? inner : rows,
                             product->transpose_a ? rows : inner, product->batches, &descriptors->a);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = describe_matrix(product->a_dtype, product->transpose_b ? columns : inner,
                             product->transpose_b ? inner : columns, product->batches, &descriptors->b);
  if (status == CUBLAS_STATUS_SUCCESS)
    status = describe_matrix(product->y_dtype, rows, columns, product->batches, &descriptors->y);
  return status;
}
