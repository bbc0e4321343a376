/* kernels/cuda: a product of matrices as cuBLASLt is asked for it; private to the folder. Needs no GPU.
 *
 * cuBLASLt's matrices are column-major, ours row-major. What lies in memory as a matrix of ours is the
 * transpose of it to cuBLASLt, so instead of y = a b it computes y' = b' a': its left factor is our b and its
 * right one our a, neither of them moved, and the rows of its result, along which a bias lies, are the
 * columns of y. */
#ifndef VRAMLAB_KERNELS_CUDA_PRODUCT_H
#define VRAMLAB_KERNELS_CUDA_PRODUCT_H

#include "kernels/cuda/cuda.h"

#include <cublasLt.h>

/* Everything that an algorithm depends on: y (rows, columns) = a (rows, inner) b (inner, columns), `batches`
 * times one after the other. No padding: it is a key of cuda_choice_find. */
typedef struct CudaProduct {
  const void *begins; /* of the key: what no other op's begins with */
  int64_t rows, columns, inner, batches;
  int32_t a_dtype, y_dtype;         /* DType; b is of a's */
  int32_t transpose_a, transpose_b; /* a lies as (inner, rows), b as (columns, inner) */
  int32_t adds;                     /* y += a b */
  int32_t bias;                     /* one of y's type is added to each row */
  int32_t tf32;
  int32_t a_alignment, b_alignment, y_alignment; /* bytes that divide the addresses */
} CudaProduct;

typedef struct CudaProductDescriptors {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, y;
} CudaProductDescriptors;

/* The product that a linear or matmul node is. */
void cuda_product_of(const Node *node, bool tf32, CudaProduct *product);
/* Describes it to cuBLASLt; the first status that is not success. The bias pointer is one that says how
 * biases are aligned (the heuristics read it); a launch sets its own. */
cublasStatus_t cuda_product_describe(const CudaProduct *product, CudaProductDescriptors *descriptors);
/* Alignment of what kernels are told to expect: they read at most 16 bytes at once. */
enum { CUDA_PRODUCT_ALIGNMENT = 16 };

#endif
