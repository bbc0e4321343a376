/* kernels/cuda: where elements lie, and copies from one order of them to another; private to the folder, CUDA
 * only. */
#ifndef VRAMLAB_KERNELS_CUDA_BOX_CUH
#define VRAMLAB_KERNELS_CUDA_BOX_CUH

#include "kernels/cuda/kernel.cuh"

/* Division by a number that is known when a kernel is launched, as a product: with l = ceil(log2 d) and
 * m = floor(2^(63 + l) / d) + 1, n / d is floor(n m / 2^(63 + l)) for 0 <= n < 2^63 (Granlund and Montgomery,
 * Division by invariant integers using multiplication, 1994, theorem 4.2). */
struct Divisor {
  uint64_t multiplier;
  int64_t divisor;
  int32_t shift;
};

inline Divisor divisor_of(int64_t divisor) {
  int32_t shift = divisor > 1 ? 64 - __builtin_clzll((unsigned long long)divisor - 1) : 0;
  uint64_t multiplier = (uint64_t)(((unsigned __int128)1 << (63 + shift)) / (uint64_t)divisor + 1);
  return Divisor{multiplier, divisor, shift};
}

/* The quotient; *rest is the remainder. */
__device__ inline int64_t divide(int64_t number, const Divisor &by, int64_t *rest) {
  int64_t quotient = (int64_t)(__umul64hi((uint64_t)number << 1, by.multiplier) >> by.shift);
  *rest = number - quotient * by.divisor;
  return quotient;
}

/* Element `index`, counted with the last dimension fastest, lies at the sum of its coordinates times strides.
 * Stride 0 repeats. */
struct Places {
  int32_t rank;
  Divisor sizes[VL_MAX_DIMS];
  int64_t strides[VL_MAX_DIMS];
};

/* Appends a dimension, as part of the last one where both are walked as one. */
inline void places_add(Places *places, int64_t size, int64_t stride) {
  if (size == 1) return;
  int32_t last = places->rank - 1;
  bool joins = last >= 0 && places->strides[last] == size * stride;
  if (!joins) last = places->rank++;
  places->sizes[last] = divisor_of(joins ? places->sizes[last].divisor * size : size);
  places->strides[last] = stride;
}

__device__ inline int64_t place_of(const Places &places, int64_t index) {
  int64_t place = 0, rest;
  for (int d = places.rank - 1; d > 0; d--) {
    index = divide(index, places.sizes[d], &rest);
    place += rest * places.strides[d];
  }
  return places.rank > 0 ? place + index * places.strides[0] : 0;
}

/* A copy between two strided boxes. Dimensions are in the order in which `to` has them. */
struct Box {
  int32_t rank;
  int64_t sizes[VL_MAX_DIMS], to_strides[VL_MAX_DIMS], from_strides[VL_MAX_DIMS];
};

/* Appends a dimension, as part of the last one where both are walked as one on either side. */
inline void box_add(Box *box, int64_t size, int64_t to_stride, int64_t from_stride) {
  if (size == 1) return;
  int32_t last = box->rank - 1;
  bool joins =
      last >= 0 && box->to_strides[last] == size * to_stride && box->from_strides[last] == size * from_stride;
  if (!joins) box->sizes[box->rank++] = size;
  if (joins) box->sizes[last] *= size;
  box->to_strides[box->rank - 1] = to_stride;
  box->from_strides[box->rank - 1] = from_stride;
}

/* Queues the copy of elements of 1, 2, 4 or 8 bytes: in pieces as large as sizes, strides and addresses
 * allow, by way of shared memory where the sides are transposed. `to` and `from` do not overlap. */
cudaError_t cuda_box_copy(cudaStream_t stream, const Box *box, int64_t element_bytes, uintptr_t to,
                          uintptr_t from);
/* The copy of a dense activation or of weights from one layout to another. */
Box cuda_box_of_layouts(const Tensor *tensor, LayoutId from_layout, LayoutId to_layout);

#endif
