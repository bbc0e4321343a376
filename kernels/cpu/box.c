/* Copies between strided boxes. The last dimension is the inner loop: a copy, a repetition, or a
 * transposition with the dimension whose elements lie side by side in the source. */
#include "kernels/cpu/box.h"

#include <omp.h>

enum { SIDE = 16 /* of a square that is transposed: its lines stay in the first-level cache */ };

void box_strides(const Tensor *tensor, int64_t strides[VL_MAX_DIMS]) {
  int64_t stride = 1;
  for (int32_t i = tensor->rank - 1; i >= 0; i--) {
    strides[i] = stride;
    stride *= tensor->shape[i];
  }
}

void box_simplify(Box *box) {
  int32_t kept = 0;
  BoxDimension *d = box->dimensions;
  for (int32_t i = 0; i < box->rank; i++) {
    if (d[i].size == 1) continue;
    BoxDimension *last = kept > 0 ? &d[kept - 1] : NULL;
    if (last != NULL && last->to_stride == d[i].to_stride * d[i].size &&
        last->from_stride == d[i].from_stride * d[i].size)
      *last = (BoxDimension){last->size * d[i].size, d[i].to_stride, d[i].from_stride};
    else
      d[kept++] = d[i];
  }
  if (kept == 0) d[kept++] = (BoxDimension){1, 1, 1};
  box->rank = kept;
}

/* The inner loops, and what is left outside. */
typedef struct Inner {
  BoxDimension row;  /* the last dimension */
  BoxDimension side; /* of a transposition: the source's dense dimension; size 1 without one */
  Box outer;
} Inner;

static Inner inner_of(const Box *box) {
  Inner inner = {.row = box->dimensions[box->rank - 1], .side = {.size = 1}, .outer = *box};
  inner.outer.rank--;
  if (inner.row.from_stride <= 1) return inner;
  for (int32_t i = 0; i < inner.outer.rank; i++) {
    if (inner.outer.dimensions[i].from_stride != 1) continue;
    inner.side = inner.outer.dimensions[i];
    inner.outer.rank--;
    memmove(&inner.outer.dimensions[i], &inner.outer.dimensions[i + 1],
            (size_t)(inner.outer.rank - i) * sizeof(BoxDimension));
    break;
  }
  return inner;
}

/* The starts of item `index` of the outer dimensions, in elements. */
static void outer_starts(const Box *outer, int64_t index, int64_t *to, int64_t *from) {
  *to = outer->to_start;
  *from = outer->from_start;
  for (int32_t i = outer->rank - 1; i >= 0; i--) {
    const BoxDimension *d = &outer->dimensions[i];
    *to += index % d->size * d->to_stride;
    *from += index % d->size * d->from_stride;
    index /= d->size;
  }
}

/* Repeats the element at `to`; what is filled doubles each time. */
static void repeat(char *to, int64_t element_bytes, int64_t count) {
  int64_t bytes = count * element_bytes;
  for (int64_t done = element_bytes; done < bytes; done *= 2)
    memcpy(to + done, to, (size_t)(done < bytes - done ? done : bytes - done));
}

VECTOR_INLINE void move_element(char *to, const char *from, int64_t element_bytes) {
  memcpy(to, from, (size_t)element_bytes);
}

VECTOR_INLINE void move_sized(const Inner *inner, char *to, const char *from, Range side, int64_t bytes) {
  BoxDimension row = inner->row, across = inner->side;
  for (int64_t first = 0; first < row.size; first += SIDE) {
    int64_t end = first + SIDE < row.size ? first + SIDE : row.size;
    for (int64_t i = side.begin; i < side.end; i++)
      for (int64_t j = first; j < end; j++)
        move_element(to + (i * across.to_stride + j * row.to_stride) * bytes,
                     from + (i * across.from_stride + j * row.from_stride) * bytes, bytes);
  }
}

/* Rows [side.begin, side.end) of the inner loops. A constant element size makes a load and a store of each.
 */
static void move_rows(const Inner *inner, char *to, const char *from, Range side) {
  int64_t bytes = inner->outer.element_bytes;
  if (inner->row.to_stride == 1 && inner->row.from_stride == 1) {
    memcpy(to, from, (size_t)(inner->row.size * bytes));
  } else if (inner->row.to_stride == 1 && inner->row.from_stride == 0) {
    memcpy(to, from, (size_t)bytes);
    repeat(to, bytes, inner->row.size);
  } else {
    switch (bytes) {
    case 1: move_sized(inner, to, from, side, 1); break;
    case 2: move_sized(inner, to, from, side, 2); break;
    case 4: move_sized(inner, to, from, side, 4); break;
    default: move_sized(inner, to, from, side, 8); break;
    }
  }
}

static void copy_items(const Inner *inner, char *to, const char *from, int64_t strips, Range items) {
  int64_t bytes = inner->outer.element_bytes;
  for (int64_t item = items.begin; item < items.end; item++) {
    int64_t to_start, from_start, strip = item % strips * SIDE;
    outer_starts(&inner->outer, item / strips, &to_start, &from_start);
    Range side = {strip, strip + SIDE < inner->side.size ? strip + SIDE : inner->side.size};
    move_rows(inner, to + to_start * bytes, from + from_start * bytes, side);
  }
}

static void copy_dense(const Box *box, char *to, const char *from, int32_t threads) {
  int64_t bytes = box->element_bytes;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Range share = vector_share(box->dimensions[0].size, omp_get_num_threads(), omp_get_thread_num());
    memcpy(to + (box->to_start + share.begin) * bytes, from + (box->from_start + share.begin) * bytes,
           (size_t)((share.end - share.begin) * bytes));
  }
}

void box_copy(const Box *box, void *to, const void *from, int32_t threads) {
  if (box->rank == 1 && box->dimensions[0].to_stride == 1 && box->dimensions[0].from_stride == 1) {
    copy_dense(box, to, from, threads);
    return;
  }
  Inner inner = inner_of(box);
  int64_t strips = (inner.side.size + SIDE - 1) / SIDE, items = strips;
  for (int32_t i = 0; i < inner.outer.rank; i++)
    items *= inner.outer.dimensions[i].size;
#pragma omp parallel num_threads(threads) if (threads > 1)
  copy_items(&inner, to, from, strips, vector_share(items, omp_get_num_threads(), omp_get_thread_num()));
}
