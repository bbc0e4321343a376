/* nvcuda::wmma of the host machine by itself: products of every shape and type against sums in double, and
 * what code may count on, that fragments of a type hold an element at one place, whichever that is. */
#include "runtime.h"
#include "wmma.h"

#include <vector>

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
extern "C" {
#include "base/base.h"
#include <cmocka.h>
}

/* A stream that runs at once. */
cudaError_t runtime_queue(cudaStream_t, std::function<void()> work) {
  work();
  return cudaSuccess;
}

namespace {

namespace wmma = nvcuda::wmma;

constexpr int most = 32 * 32;

template <typename E> E element(float value);
template <> float element<float>(float value) { return value; }
template <> __half element<__half>(float value) { return __float2half_rn(value); }
template <> __nv_bfloat16 element<__nv_bfloat16>(float value) { return __float2bfloat16_rn(value); }

/* Halves of small whole numbers, which every type has. */
float value_of(int i) { return (float)(i * 37 % 29 - 14) * 0.5F; }

/* Of one warp: c = 2 a b + c, with strides that are longer than rows. */
template <typename T, int m, int n, int k, typename LayoutA, typename LayoutB, typename E>
void multiply(const E *a, const E *b, float *c, unsigned stride) {
  wmma::fragment<wmma::matrix_a, m, n, k, T, LayoutA> left;
  wmma::fragment<wmma::matrix_b, m, n, k, T, LayoutB> right;
  wmma::fragment<wmma::accumulator, m, n, k, float> sum;
  wmma::load_matrix_sync(left, a, stride);
  wmma::load_matrix_sync(right, b, stride);
  wmma::load_matrix_sync(sum, c, stride, wmma::mem_row_major);
  for (int i = 0; i < (int)left.num_elements; i++)
    left.x[i] = element<E>((float)left.x[i] * 2.0F);
  wmma::mma_sync(sum, left, right, sum);
  wmma::store_matrix_sync(c, sum, stride, wmma::mem_row_major);
}

struct alignas(32) Matrix {
  std::vector<unsigned char> bytes = std::vector<unsigned char>(most * sizeof(float) + 32);
  template <typename E> E *of() {
    uintptr_t address = reinterpret_cast<uintptr_t>(bytes.data());
    return reinterpret_cast<E *>((address + 31) / 32 * 32);
  }
};

template <typename T, int m, int n, int k, typename LayoutA, typename LayoutB, typename E> void check() {
  constexpr unsigned stride = 32;
  constexpr bool a_by_rows = std::is_same_v<LayoutA, wmma::row_major>;
  constexpr bool b_by_rows = std::is_same_v<LayoutB, wmma::row_major>;
  Matrix a, b, c;
  for (int i = 0; i < most; i++) {
    a.of<E>()[i] = element<E>(value_of(i));
    b.of<E>()[i] = element<E>(value_of(3 * i + 5));
    c.of<float>()[i] = value_of(7 * i);
  }
  assert_int_equal(cuda_launch(multiply<T, m, n, k, LayoutA, LayoutB, E>, dim3(1), dim3(32), 0, nullptr,
                               a.of<E>(), b.of<E>(), c.of<float>(), stride),
                   cudaSuccess);
  for (int row = 0; row < 32; row++)
    for (int column = 0; column < 32; column++) {
      float wanted = value_of(7 * (row * 32 + column));
      for (int i = 0; i < k && row < m && column < n; i++)
        wanted += 2.0F * (float)a.of<E>()[a_by_rows ? row * 32 + i : i * 32 + row] *
                  (float)b.of<E>()[b_by_rows ? i * 32 + column : column * 32 + i];
      assert_true(c.of<float>()[row * 32 + column] == wanted); /* exact, these numbers being what they are */
    }
}

template <typename T, int m, int n, int k, typename E = T> void check_layouts() {
  using Rows = wmma::row_major;
  using Columns = wmma::col_major;
  check<T, m, n, k, Rows, Rows, E>();
  check<T, m, n, k, Rows, Columns, E>();
  check<T, m, n, k, Columns, Rows, E>();
  check<T, m, n, k, Columns, Columns, E>();
}

void products_are_right(void **) {
  check_layouts<__half, 16, 16, 16>();
  check_layouts<__half, 32, 8, 16>();
  check_layouts<__half, 8, 32, 16>();
  check_layouts<__nv_bfloat16, 16, 16, 16>();
  check_layouts<__nv_bfloat16, 32, 8, 16>();
  check_layouts<__nv_bfloat16, 8, 32, 16>();
  check_layouts<wmma::precision::tf32, 16, 16, 8, float>();
}

/* Overflow and NaN as f32 has them, which is what sums are in. */
void sums_are_f32(void **) {
  Matrix a, b, c;
  for (int i = 0; i < most; i++) {
    a.of<__half>()[i] = element<__half>(i % 32 ? 0.0F : 60000.0F);
    b.of<__half>()[i] = element<__half>(i / 32 ? 0.0F : 60000.0F);
    c.of<float>()[i] = i == 0 ? NAN : i == 1 ? INFINITY : 0.0F;
  }
  assert_int_equal(cuda_launch(multiply<__half, 16, 16, 16, wmma::row_major, wmma::row_major, __half>,
                               dim3(1), dim3(32), 0, nullptr, a.of<__half>(), b.of<__half>(), c.of<float>(),
                               32U),
                   cudaSuccess);
  assert_true(std::isnan(c.of<float>()[0]));
  assert_true(std::isinf(c.of<float>()[1]));
  /* 2 * 60000 is infinite in f16 already. */
  assert_true(std::isinf(c.of<float>()[2]));
}

void tf32_is_rounded_to_nearest(void **) {
  assert_true(wmma::__float_to_tf32(1.0F + 0x1p-11F) == 1.0F + 0x1p-10F); /* ties away from zero */
  assert_true(wmma::__float_to_tf32(1.0F + 0x1p-12F) == 1.0F);
  assert_true(wmma::__float_to_tf32(-3.0F) == -3.0F);
  assert_true(std::isinf(wmma::__float_to_tf32(INFINITY)));
}

/* Every element of an accumulator has one place, and no lane has a row or a column. */
void places(float *numbers, int *lanes) {
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> held;
  wmma::load_matrix_sync(held, numbers, 16, wmma::mem_row_major);
  unsigned rows = 0, columns = 0;
  for (int i = 0; i < (int)held.num_elements; i++) {
    int number = (int)held.x[i];
    lanes[number]++;
    rows |= 1U << (number / 16);
    columns |= 1U << (number % 16);
  }
  lanes[256 + threadIdx.x] = __builtin_popcount(rows) + __builtin_popcount(columns);
}

void elements_are_scattered(void **) {
  Matrix numbers;
  int lanes[256 + 32] = {0};
  for (int i = 0; i < 256; i++)
    numbers.of<float>()[i] = (float)i;
  assert_int_equal(cuda_launch(places, dim3(1), dim3(32), 0, nullptr, numbers.of<float>(), lanes),
                   cudaSuccess);
  for (int i = 0; i < 256; i++)
    assert_int_equal(lanes[i], 1);
  for (int i = 0; i < 32; i++)
    assert_true(lanes[256 + i] > 6); /* a card's lanes have two rows and four columns */
}

} // namespace

int main() {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(products_are_right),
      cmocka_unit_test(sums_are_f32),
      cmocka_unit_test(tf32_is_rounded_to_nearest),
      cmocka_unit_test(elements_are_scattered),
  };
  return cmocka_run_group_tests_name("host wmma", tests, nullptr, nullptr);
}
