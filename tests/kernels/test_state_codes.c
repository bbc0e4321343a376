/* 8-bit codes of optimizer state: every code and the numbers around every edge of a bin, of any count, are
 * the same bits on the machine's fastest path, or with OTHER_STATE_CODES on another one, and on the portable
 * one; and the reference's but where rounding decides. */
#include "kernels/cpu/state_codes.h"
#include "tests/reference/reference.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef OTHER_STATE_CODES
extern const StateCodes OTHER_STATE_CODES;
static const StateCodes *fastest_codes(void) { return &OTHER_STATE_CODES; }
#else
static const StateCodes *fastest_codes(void) { return state_codes_choose(); }
#endif

enum { CODES = 256, AROUND = 3000, STRIDE = 4001 };

static float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static void every_code_is_read(void **state) {
  (void)state;
  static const float scales[] = {1.0F, 3e-5F, 7.0F, 0.0F, 1e-42F, 1e38F, INFINITY};
  uint8_t codes[CODES];
  for (int32_t i = 0; i < CODES; i++)
    codes[i] = (uint8_t)i;
  for (int32_t is_signed = 0; is_signed < 2; is_signed++) {
    for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
      float portable[CODES], fastest[CODES];
      state_codes_portable.read(codes, is_signed, scales[s], CODES, portable);
      fastest_codes()->read(codes, is_signed, scales[s], CODES, fastest);
      for (int32_t i = 0; i < CODES; i++)
        if (!isnan(portable[i]) || !isnan(fastest[i]))
          assert_int_equal(bits_of(portable[i]), bits_of(fastest[i]));
      for (int32_t i = 0; i < CODES && s == 0; i++) {
        double value = vl_reference_code_value(i, is_signed);
        assert_true(fabs(portable[i] - value) <= 52 * 0x1p-24 * fabs(value));
      }
    }
  }
}

static void check_numbers(const float *values, bool is_signed, int64_t count) {
  uint8_t *portable = malloc((size_t)count), *fastest = malloc((size_t)count);
  state_codes_portable.write(values, is_signed, 1.0F, count, portable);
  fastest_codes()->write(values, is_signed, 1.0F, count, fastest);
  for (int64_t i = 0; i < count; i++)
    if (portable[i] != fastest[i])
      fail_msg("%a has code %d, and %d on the fastest path", (double)values[i], portable[i], fastest[i]);
  free(portable);
  free(fastest);
}

/* Every number near an edge, and every so many of the others. */
static void numbers_around_edges_have_one_code(void **state) {
  (void)state;
  float *values = malloc(2 * AROUND * sizeof *values);
  for (int32_t is_signed = 0; is_signed < 2; is_signed++) {
    int32_t top = is_signed ? 128 : 255;
    for (int32_t code = 1; code <= top; code++) {
      double low, high;
      vl_reference_code(fabs(vl_reference_code_value(code, is_signed)), is_signed, &low, &high);
      for (int32_t i = 0; i < 2 * AROUND; i++)
        values[i] = float_of_bits(bits_of((float)low) + (uint32_t)i - AROUND);
      check_numbers(values, is_signed, 2 * AROUND);
      for (int32_t i = 0; i < 2 * AROUND; i++)
        values[i] = -values[i];
      if (is_signed) check_numbers(values, true, 2 * AROUND);
    }
  }
  free(values);
}

static void other_numbers_have_one_code(void **state) {
  (void)state;
  const uint32_t one = bits_of(1.0F), count = one / STRIDE + 8;
  float *values = malloc(count * sizeof *values);
  uint8_t *codes = malloc(count);
  for (uint32_t i = 0; i < count; i++)
    values[i] = float_of_bits(i * STRIDE < one ? i * STRIDE : one);
  values[1] = NAN;
  values[2] = INFINITY;
  for (int32_t is_signed = 0; is_signed < 2; is_signed++) {
    check_numbers(values, is_signed, count);
    fastest_codes()->write(values, is_signed, 1.0F, count, codes);
    for (uint32_t i = 3; i < count; i++) {
      double low, high, x = (double)values[i];
      int32_t code = vl_reference_code(x, is_signed, &low, &high);
      if (!is_signed && code == 0 && x > 0) code = 1;
      /* Three roundings of a line's terms, which are at most the code's own size and one. */
      double error = 3 * 0x1p-24 * (2 * code + 2) * fmin(high - fmax(low, 0), 1) + 0x1p-23 * x;
      if (code != codes[i] && x > low + error && x < high - error)
        fail_msg("%a has code %d, not %d", x, codes[i], code);
    }
  }
  for (uint32_t i = 0; i < count; i++)
    values[i] = -values[i];
  check_numbers(values, true, count);
  free(values);
  free(codes);
}

/* Nothing before or behind is touched. */
static void any_count_is_done(void **state) {
  (void)state;
  enum { MOST = 70, FENCE = 0xA5 };
  for (int64_t count = 0; count <= MOST; count++) {
    for (int32_t is_signed = 0; is_signed < 2; is_signed++) {
      uint8_t codes[2][MOST + 2];
      float values[2][MOST + 2], numbers[MOST];
      memset(codes, FENCE, sizeof codes);
      memset(values, FENCE, sizeof values);
      for (int64_t i = 0; i < count; i++)
        numbers[i] = (float)((i * 37 % 101) - (is_signed ? 50 : 0)) / 101.0F;
      for (int32_t fastest = 0; fastest < 2; fastest++) {
        const StateCodes *path = fastest ? fastest_codes() : &state_codes_portable;
        path->write(numbers, is_signed, 1.0F, count, codes[fastest] + 1);
        path->read(codes[0] + 1, is_signed, 2.0F, count, values[fastest] + 1);
        assert_int_equal(codes[fastest][0], FENCE);
        assert_int_equal(codes[fastest][count + 1], FENCE);
        assert_int_equal(bits_of(values[fastest][count + 1]), 0x01010101U * FENCE);
      }
      assert_memory_equal(codes[0], codes[1], sizeof codes[0]);
      assert_memory_equal(values[0], values[1], sizeof values[0]);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_code_is_read),
      cmocka_unit_test(numbers_around_edges_have_one_code),
      cmocka_unit_test(other_numbers_have_one_code),
      cmocka_unit_test(any_count_is_done),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
