/* Every op of the cuda backend. Adding one: its file, a declaration and a line here. */
#include "kernels/cuda/cuda.h"

#include <string.h>

extern const CudaOp cuda_op_linear, cuda_op_matmul;

static const CudaOp *const ops[] = {
    &cuda_op_linear,
    &cuda_op_matmul,
};

const CudaOp *cuda_op_find(const char *name) {
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
    if (strcmp(ops[i]->name, name) == 0) return ops[i];
  return NULL;
}
