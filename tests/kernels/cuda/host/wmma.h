/* nvcuda::wmma on the host machine: products of a warp's fragments in f16, bf16 and TF32, summed in f32.
 *
 * Which lane holds which element is not specified on a GPU, differs between architectures, and in f16 an
 * element may be held more than once. So here elements are scattered over lanes and places by an order that
 * no card has, another for each use, and of an element that is held twice either copy may be the one that is
 * read: code that counts on an order fails. An order stays the same for all fragments of a type, so one found
 * by loading known values is right.
 *
 * Every lane moves its own elements, when its turn comes: as on a GPU, what other lanes wrote is there only
 * after
 * __syncwarp. A product is computed by the warp's first lane, which finds the fragments of the others through
 * a table. */
#ifndef VRAMLAB_TESTS_HOST_WMMA_H
#define VRAMLAB_TESTS_HOST_WMMA_H

#include "machine.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace nvcuda {
namespace wmma {

struct row_major;
struct col_major;
struct matrix_a;
struct matrix_b;
struct accumulator;
namespace precision {
struct tf32;
}
enum layout_t { mem_row_major, mem_col_major };

namespace host {

constexpr int lanes = 32;

template <typename T> struct Storage { using Type = T; };
template <> struct Storage<precision::tf32> { using Type = float; };

template <typename A, typename B> constexpr bool same = false;
template <typename A> constexpr bool same<A, A> = true;

/* Rows and columns of a fragment, and the number that tells its order from others. */
template <typename Use, int m, int n, int k> struct Shape;
template <int m, int n, int k> struct Shape<matrix_a, m, n, k> {
  static constexpr int rows = m, columns = k, order = 1;
};
template <int m, int n, int k> struct Shape<matrix_b, m, n, k> {
  static constexpr int rows = k, columns = n, order = 2;
};
template <int m, int n, int k> struct Shape<accumulator, m, n, k> {
  static constexpr int rows = m, columns = n, order = 3;
};

/* f16 operands take 16 places a lane whatever their size. */
template <typename Use, typename T>
constexpr int least_places = same<T, __half> && !same<Use, accumulator> ? 16 : 1;

inline int lane() { return machine_thread.lane; }
inline int warp() {
  unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  return (int)(thread / lanes);
}

inline void check_address(const void *address, const char *what) {
  if ((uintptr_t)address % 32 == 0) return;
  fprintf(stderr, "wmma: %s of address %p, which is not aligned to 32 bytes\n", what, address);
  abort();
}
inline void check_stride(unsigned stride, size_t element_bytes) {
  if (stride * element_bytes % 16 == 0 && stride > 0) return;
  fprintf(stderr, "wmma: a stride of %u elements, %zu bytes, is no multiple of 16 bytes\n", stride,
          stride * element_bytes);
  abort();
}

/* The first ten bits of the mantissa, which is what the multiplier of a GPU reads of a TF32 operand. */
inline float tf32_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits &= 0xFFFFE000U;
  memcpy(&value, &bits, sizeof value);
  return value;
}

inline float factor(float value) { return tf32_bits(value); }
inline float factor(__half value) { return __half2float(value); }
inline float factor(__nv_bfloat16 value) { return __bfloat162float(value); }

} // namespace host

template <typename Use, int m, int n, int k, typename T, typename Layout = void> class fragment {
public:
  using element_type = T;
  using storage_element_type = typename host::Storage<T>::Type;
  using Shape = host::Shape<Use, m, n, k>;
  static constexpr int elements = Shape::rows * Shape::columns;
  enum {
    num_elements = elements / host::lanes > host::least_places<Use, T> ? elements / host::lanes
                                                                       : host::least_places<Use, T>,
    num_storage_elements = num_elements
  };
  static constexpr int copies = (int)num_elements * host::lanes / elements;
  storage_element_type x[num_elements];
};

template <typename Use, int m, int n, int k, typename T, typename Layout, typename V>
inline void fill_fragment(fragment<Use, m, n, k, T, Layout> &to, V value) {
  for (int i = 0; i < (int)to.num_elements; i++)
    to.x[i] = static_cast<typename fragment<Use, m, n, k, T, Layout>::storage_element_type>(value);
}

namespace host {

/* Which element x[place] of a lane is, and which copy of it. */
struct Place {
  int row, column, copy;
};

/* Multiplying by an odd number permutes whole numbers below a power of 2. */
template <typename Fragment> inline Place place_of(int lane, int place) {
  using Shape = typename Fragment::Shape;
  constexpr int factors[] = {1, 77, 43, 109};
  int distinct = Fragment::elements / lanes, copy = place / distinct;
  int scattered = place % distinct * lanes + (lane + 7 * copy) % lanes;
  int element = (scattered * factors[Shape::order] + 11 * Shape::order) % Fragment::elements;
  return Place{element / Shape::columns, element % Shape::columns, copy};
}

/* Calls function(element, offset in memory) for every element that the lane holds. */
template <typename Fragment, typename F>
inline void each_element(Fragment &held, unsigned stride, bool by_rows, F function) {
  for (int i = 0; i < (int)held.num_elements; i++) {
    Place place = place_of<Fragment>(lane(), i);
    size_t major = (size_t)(by_rows ? place.row : place.column);
    size_t minor = (size_t)(by_rows ? place.column : place.row);
    function(held.x[i], major * stride + minor);
  }
}

template <typename Fragment, typename S>
inline void load(Fragment &to, const S *from, unsigned stride, bool by_rows) {
  check_address(from, "load_matrix_sync");
  check_stride(stride, sizeof(S));
  each_element(to, stride, by_rows, [&](S &element, size_t offset) { element = from[offset]; });
}

} // namespace host

template <typename Use, int m, int n, int k, typename T, typename Layout>
inline void load_matrix_sync(fragment<Use, m, n, k, T, Layout> &to,
                             const typename host::Storage<T>::Type *from, unsigned stride) {
  static_assert(!host::same<Use, accumulator>, "accumulators are loaded with a layout");
  host::load(to, from, stride, host::same<Layout, row_major>);
}
template <int m, int n, int k, typename T>
inline void load_matrix_sync(fragment<accumulator, m, n, k, T> &to, const T *from, unsigned stride,
                             layout_t layout) {
  host::load(to, from, stride, layout == mem_row_major);
}
template <int m, int n, int k, typename T>
inline void store_matrix_sync(T *to, const fragment<accumulator, m, n, k, T> &from, unsigned stride,
                              layout_t layout) {
  host::check_address(to, "store_matrix_sync");
  host::check_stride(stride, sizeof(T));
  host::each_element(from, stride, layout == mem_row_major,
                     [&](const T &element, size_t offset) { to[offset] = element; });
}

/* To nearest, ties away from zero, as cvt.rna.tf32 does. */
inline float __float_to_tf32(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7F800000U) != 0x7F800000U) bits = (bits + 0x1000U) & 0xFFFFE000U;
  memcpy(&value, &bits, sizeof value);
  return value;
}

namespace host {

/* The operands of a product, as every lane of a warp holds them. */
struct Operands {
  const void *a, *b, *c;
  void *d;
};
/* Of the block that this system thread runs. */
inline thread_local Operands operands[32][lanes];

/* The values of a fragment that a product reads: of one copy of each element. */
template <typename Fragment, int rows, int columns>
inline void gather(const void *(*held)(const Operands &), const Operands *warp,
                   float (&values)[rows][columns]) {
  for (int lane = 0; lane < lanes; lane++) {
    const Fragment *of_lane = static_cast<const Fragment *>(held(warp[lane]));
    for (int i = 0; i < (int)of_lane->num_elements; i++) {
      Place place = place_of<Fragment>(lane, i);
      bool read = (place.row + 3 * place.column) % Fragment::copies == place.copy;
      if (read) values[place.row][place.column] = factor(of_lane->x[i]);
    }
  }
}

} // namespace host

/* Products are exact in f32; their sum, from k = 0 on, is added to c. */
template <int m, int n, int k, typename T, typename LayoutA, typename LayoutB>
inline void
mma_sync(fragment<accumulator, m, n, k, float> &d, const fragment<matrix_a, m, n, k, T, LayoutA> &a,
         const fragment<matrix_b, m, n, k, T, LayoutB> &b, const fragment<accumulator, m, n, k, float> &c) {
  using A = fragment<matrix_a, m, n, k, T, LayoutA>;
  using B = fragment<matrix_b, m, n, k, T, LayoutB>;
  using C = fragment<accumulator, m, n, k, float>;
  host::Operands *warp = host::operands[host::warp()];
  warp[host::lane()] = host::Operands{&a, &b, &c, &d};
  __syncwarp();
  if (host::lane() == 0) {
    float left[m][k], right[k][n], sum[m][n] = {};
    host::gather<A>([](const host::Operands &of) { return of.a; }, warp, left);
    host::gather<B>([](const host::Operands &of) { return of.b; }, warp, right);
    for (int step = 0; step < k; step++)
      for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++)
          sum[i][j] += left[i][step] * right[step][j];
    for (int lane = 0; lane < host::lanes; lane++) {
      for (int i = 0; i < (int)c.num_elements; i++) {
        host::Place place = host::place_of<C>(lane, i);
        static_cast<C *>(warp[lane].d)->x[i] =
            static_cast<const C *>(warp[lane].c)->x[i] + sum[place.row][place.column];
      }
    }
  }
  __syncwarp();
}

} // namespace wmma
} // namespace nvcuda

#endif
