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

bool box_part_fits(CpuDevice *device, LayoutId layout, const Tensor *whole, const Tensor *part,
                   const int64_t *start) {
  ChannelView view;
  if (layout == LAYOUT_PLAIN || layout == cpu_layout_channels_last(device, whole->rank)) return true;
  if (cpu_channel_view(device, layout, whole, &view).code != VL_OK) return false;
  bool to_the_end = start[1] + part->shape[1] == whole->shape[1]; /* with the last block's padding */
  return start[1] % view.block == 0 && (to_the_end || part->shape[1] % view.block == 0);
}

/* Appends a dimension that is `first` to `first` + size of the whole's. */
static void append(Box *box, int64_t size, int64_t first, int64_t to_stride, int64_t from_stride) {
  box->dimensions[box->rank++] = (BoxDimension){size, to_stride, from_stride};
  box->from_start += first * from_stride;
}

/* Samples, channel blocks, space, the channels of a block. */
static void append_blocked(const Tensor *part, const int64_t *start, const ChannelView *whole_view,
                           const ChannelView *view, bool last, const Tensor *whole, Box *box) {
  int64_t to = view->spatial * view->block, from = whole_view->spatial * whole_view->block;
  append(box, view->n, start[0], to * view->channel_blocks, from * whole_view->channel_blocks);
  append(box, view->channel_blocks, last ? 0 : start[1] / view->block, to, from);
  for (int32_t i = 2; i < part->rank; i++) {
    to /= part->shape[i];
    from /= whole->shape[i];
    append(box, part->shape[i], start[i], to, from);
  }
  append(box, view->block, last ? start[1] : 0, 1, 1);
}

Status box_part(CpuDevice *device, LayoutId layout, const Tensor *whole, const Tensor *part,
                const int64_t *start, Box *box) {
  if (!box_part_fits(device, layout, whole, part, start))
    return vl_error(VL_INTERNAL, "cpu: channels %lld to %lld of %s cut a block of layout %s",
                    (long long)start[1], (long long)(start[1] + part->shape[1] - 1), whole->name,
                    cpu_layout_name(device, layout));
  *box = (Box){.element_bytes = vl_dtype_bytes(whole->dtype, 1)};
  if (layout == LAYOUT_PLAIN) {
    int64_t to[VL_MAX_DIMS], from[VL_MAX_DIMS];
    box_strides(part, to);
    box_strides(whole, from);
    for (int32_t i = 0; i < part->rank; i++)
      append(box, part->shape[i], start[i], to[i], from[i]);
  } else {
    ChannelView view, whole_view;
    VL_TRY(cpu_channel_view(device, layout, part, &view));
    VL_TRY(cpu_channel_view(device, layout, whole, &whole_view));
    bool last = layout == cpu_layout_channels_last(device, whole->rank);
    append_blocked(part, start, &whole_view, &view, last, whole, box);
  }
  box_simplify(box);
  return vl_ok();
}

Box box_reversed(const Box *box) {
  Box reversed = *box;
  for (int32_t i = 0; i < box->rank; i++)
    reversed.dimensions[i] =
        (BoxDimension){box->dimensions[i].size, box->dimensions[i].from_stride, box->dimensions[i].to_stride};
  reversed.to_start = box->from_start;
  reversed.from_start = box->to_start;
  return reversed;
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
  if (inner->row.to_stride == 1 && inner->row.from_stride == 0) {
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

/* Elements of dense rows, all rows counted through: threads share rows too. */
static void copy_dense(const Inner *inner, char *to, const char *from, Range elements) {
  int64_t bytes = inner->outer.element_bytes, width = inner->row.size;
  for (int64_t at = elements.begin; at < elements.end;) {
    int64_t to_start, from_start, column = at % width, count = width - column;
    if (count > elements.end - at) count = elements.end - at;
    outer_starts(&inner->outer, at / width, &to_start, &from_start);
    memcpy(to + (to_start + column) * bytes, from + (from_start + column) * bytes, (size_t)(count * bytes));
    at += count;
  }
}

void box_copy(const Box *box, void *to, const void *from, int32_t threads) {
  Inner inner = inner_of(box);
  bool dense = inner.row.to_stride == 1 && inner.row.from_stride == 1;
  int64_t strips = (inner.side.size + SIDE - 1) / SIDE, items = strips;
  for (int32_t i = 0; i < inner.outer.rank; i++)
    items *= inner.outer.dimensions[i].size;
  if (dense) items *= inner.row.size;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    Range share = vector_share(items, omp_get_num_threads(), omp_get_thread_num());
    if (dense)
      copy_dense(&inner, to, from, share);
    else
      copy_items(&inner, to, from, strips, share);
  }
}
