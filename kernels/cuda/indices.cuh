/* kernels/cuda: whole numbers that pick rows or classes, checked where they are read, since nothing can be
 * refused once it is queued; private to the folder, CUDA only. */
#ifndef VRAMLAB_KERNELS_CUDA_INDICES_CUH
#define VRAMLAB_KERNELS_CUDA_INDICES_CUH

#include "kernels/cuda/kernel.cuh"

/* An input of the node's; 0 .. below-1 are accepted, another one is a fault. */
struct Indices {
  const int32_t *at;
  int64_t below;
  CudaFault *fault;
  const Tensor *tensor;
  const Node *node;
};

inline Indices indices_of(const Kernel *kernel, const CudaLaunch *launch, int32_t input, int64_t below) {
  return Indices{reinterpret_cast<const int32_t *>(launch->inputs[input]), below, launch->fault,
                 kernel->node->inputs[input], kernel->node};
}

/* The number at a place, -1 where it is out of range. */
__device__ inline int32_t index_at(const Indices &indices, int64_t place) {
  int32_t index = indices.at[place];
  if (index >= 0 && index < indices.below) return index;
  raise_fault(indices.fault, indices.node, indices.tensor, place, index, indices.below);
  return -1;
}

/* The class at a place, -1 where none counts: where it is ignored, or out of range. */
__device__ inline int32_t label_at(const Indices &labels, int64_t place) {
  return labels.at[place] == VL_IGNORED_LABEL ? -1 : index_at(labels, place);
}

#endif
