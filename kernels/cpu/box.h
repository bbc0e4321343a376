/* kernels/cpu: values that change place: a copy between two strided boxes; private to the folder. */
#ifndef VRAMLAB_KERNELS_CPU_BOX_H
#define VRAMLAB_KERNELS_CPU_BOX_H

#include "kernels/cpu/vector.h"

/* An activation in blocks has one more dimension in memory. */
enum { BOX_MAX_DIMS = VL_MAX_DIMS + 1 };

typedef struct BoxDimension {
  int64_t size, to_stride, from_stride; /* in elements; from_stride 0 repeats */
} BoxDimension;

/* to[to_start + sum i to_stride] = from[from_start + sum i from_stride], for every index. */
typedef struct Box {
  int32_t rank;
  BoxDimension dimensions[BOX_MAX_DIMS];
  int64_t to_start, from_start;
  int64_t element_bytes; /* 1, 2, 4 or 8 */
} Box;

/* The strides of a dense tensor. */
void box_strides(const Tensor *tensor, int64_t strides[VL_MAX_DIMS]);
/* Drops dimensions of size 1 and joins those that are walked as one. */
void box_simplify(Box *box);
/* Whether a part of `whole`, of part's sizes and from `start` on, is a box in memory when both have this
 * layout: channels are cut between blocks only. */
bool box_part_fits(CpuDevice *device, LayoutId layout, const Tensor *whole, const Tensor *part,
                   const int64_t *start);
/* The copy of that part out of `whole`; VL_INTERNAL where it does not fit. */
Status box_part(CpuDevice *device, LayoutId layout, const Tensor *whole, const Tensor *part,
                const int64_t *start, Box *box) VL_CHECKED;
/* The copy the other way. */
Box box_reversed(const Box *box);
/* Copies a simplified box; element types do not matter. */
void box_copy(const Box *box, void *to, const void *from, int32_t threads);

#endif
