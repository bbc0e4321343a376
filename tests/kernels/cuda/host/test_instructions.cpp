/* The host machine's instructions by themselves: matrices go through registers, in the layouts of the PTX
 * ISA, and come out as products and transposes. */
#include "kernels/cuda/instructions.cuh"
#include "runtime.h"

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
extern "C" {
#include <cmocka.h>
}

/* A stream that runs at once. */
cudaError_t runtime_queue(cudaStream_t, std::function<void()> work) {
  work();
  return cudaSuccess;
}

namespace {

/* Halves of small whole numbers, which every type has. */
float value_of(int i) { return (float)(i * 37 % 29 - 14) * 0.5F; }

/* c += a b for one warp: a is 16 by 16 by rows, b 16 by 8, by columns or by rows, c 16 by 8. */
template <typename T, bool b_by_rows> void product(const T *a, const T *b, float *c) {
  int lane = (int)threadIdx.x, g = lane / 4, t = lane % 4;
  uint32_t left[4], right[4];
  float sum[4];
  load_matrices(left, a + lane % 16 * 16 + lane / 16 * 8);
  /* The last two matrices are not looked at. */
  if (b_by_rows)
    load_transposed(right, b + lane % 16 * 8);
  else
    load_matrices(right, b + lane % 8 * 16 + lane / 8 % 2 * 8);
  for (int i = 0; i < 4; i++)
    sum[i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  uint32_t two[2] = {right[0], right[1]};
  multiply_add<T>(sum, left, two);
  for (int i = 0; i < 4; i++)
    c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}

template <typename T, bool b_by_rows> void check() {
  alignas(16) T a[256], b[128];
  float c[128];
  for (int i = 0; i < 256; i++)
    a[i] = from_float<T>(value_of(i));
  for (int i = 0; i < 128; i++)
    b[i] = from_float<T>(value_of(3 * i + 5));
  for (int i = 0; i < 128; i++)
    c[i] = value_of(7 * i);
  assert_int_equal(cuda_launch(product<T, b_by_rows>, dim3(1), dim3(32), 0, nullptr, a, b, c), cudaSuccess);
  for (int row = 0; row < 16; row++)
    for (int column = 0; column < 8; column++) {
      float wanted = value_of(7 * (row * 8 + column));
      for (int k = 0; k < 16; k++)
        wanted += to_float(a[row * 16 + k]) * to_float(b[b_by_rows ? k * 8 + column : column * 16 + k]);
      assert_true(c[row * 8 + column] == wanted); /* exact, these numbers being what they are */
    }
}

void products_of_16_bits_are_right(void **) {
  check<f16, false>();
  check<f16, true>();
  check<bf16, false>();
  check<bf16, true>();
}

/* a is 16 by 8 by rows, b 8 by 8 by columns, through the same loads: a row of 16 bytes is 4 values. */
void product_in_tf32(const float *a, const float *b, float *c) {
  int lane = (int)threadIdx.x, g = lane / 4, t = lane % 4;
  uint32_t left[4], right[4];
  float sum[4] = {0.0F, 0.0F, 0.0F, 0.0F};
  load_matrices(left, a + lane % 16 * 8 + lane / 16 * 4);
  load_matrices(right, b + lane % 8 * 8 + lane / 8 % 2 * 4);
  for (int i = 0; i < 4; i++) {
    left[i] = to_tf32(__uint_as_float(left[i]));
    right[i] = to_tf32(__uint_as_float(right[i]));
  }
  uint32_t two[2] = {right[0], right[1]};
  multiply_add_tf32(sum, left, two);
  for (int i = 0; i < 4; i++)
    c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}

void products_in_tf32_are_right(void **) {
  alignas(16) float a[128], b[64], c[128];
  for (int i = 0; i < 128; i++)
    a[i] = value_of(i);
  for (int i = 0; i < 64; i++)
    b[i] = value_of(3 * i + 5);
  assert_int_equal(cuda_launch(product_in_tf32, dim3(1), dim3(32), 0, nullptr, a, b, c), cudaSuccess);
  for (int row = 0; row < 16; row++)
    for (int column = 0; column < 8; column++) {
      float wanted = 0.0F;
      for (int k = 0; k < 8; k++)
        wanted += a[row * 8 + k] * b[column * 8 + k];
      assert_true(c[row * 8 + column] == wanted);
    }
}

float rounded(float value) { return __uint_as_float(to_tf32(value)); }

void tf32_is_rounded_to_nearest(void **) {
  assert_true(rounded(1.0F + 0x1p-11F) == 1.0F + 0x1p-10F); /* ties away from zero */
  assert_true(rounded(1.0F + 0x1p-12F) == 1.0F);
  assert_true(rounded(-3.0F) == -3.0F);
  assert_true(std::isinf(rounded(INFINITY)));
  assert_true(std::isnan(rounded(NAN)));
}

} // namespace

int main() {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(products_of_16_bits_are_right),
      cmocka_unit_test(products_in_tf32_are_right),
      cmocka_unit_test(tf32_is_rounded_to_nearest),
  };
  return cmocka_run_group_tests_name("host instructions", tests, nullptr, nullptr);
}
