/* Conversions are exact: every 16-bit pattern is decoded against ldexp, and around every midpoint between
 * neighbours the encoder rounds to nearest, ties to even. Nothing here has a tolerance. */
#include "base/base.h"

#include <math.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

enum { F16_INFINITY = 0x7C00, BF16_INFINITY = 0x7F80 };

static void sizes_and_names(void **state) {
  (void)state;
  const struct {
    DType dtype;
    const char *name;
    int bits;
    bool is_float;
  } rows[] = {{DTYPE_F32, "f32", 32, true}, {DTYPE_BF16, "bf16", 16, true}, {DTYPE_F16, "f16", 16, true},
              {DTYPE_F64, "f64", 64, true}, {DTYPE_I32, "i32", 32, false},  {DTYPE_I64, "i64", 64, false},
              {DTYPE_U8, "u8", 8, false}};
  assert_int_equal(sizeof rows / sizeof rows[0], DTYPE_COUNT);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    assert_string_equal(vl_dtype_name(rows[i].dtype), rows[i].name);
    assert_int_equal(vl_dtype_bits(rows[i].dtype), rows[i].bits);
    assert_int_equal(vl_dtype_bytes(rows[i].dtype, 7), 7 * rows[i].bits / 8);
    assert_true(vl_dtype_is_float(rows[i].dtype) == rows[i].is_float);
    DType parsed;
    assert_int_equal(vl_dtype_parse(rows[i].name, &parsed).code, VL_OK);
    assert_int_equal(parsed, rows[i].dtype);
  }
  DType untouched = DTYPE_U8;
  Status status = vl_dtype_parse("fp32", &untouched);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "'fp32'"));
  assert_non_null(strstr(status.message, "bf16"));
  assert_int_equal(untouched, DTYPE_U8);
}

/* The value of a finite pattern with that many exponent and mantissa bits, from the definition. */
static double decode(uint16_t bits, int mantissa_bits, int bias) {
  int exponent = (bits & 0x7FFF) >> mantissa_bits;
  int mantissa = bits & ((1 << mantissa_bits) - 1);
  double magnitude = exponent == 0 ? ldexp(mantissa, 1 - bias - mantissa_bits)
                                   : ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

static void every_f16_decodes_exactly_and_returns(void **state) {
  (void)state;
  for (uint32_t i = 0; i <= UINT16_MAX; i++) {
    uint16_t bits = (uint16_t)i;
    float value = vl_f32_from_f16(bits);
    if ((bits & 0x7FFF) > F16_INFINITY) {
      assert_true(isnan(value) && isnan(vl_f32_from_f16(vl_f16_from_f32(value))));
      continue;
    }
    if ((bits & 0x7FFF) == F16_INFINITY) {
      assert_true(isinf(value) && (value < 0) == (bits >= 0x8000));
    } else {
      assert_true((double)value == decode(bits, 10, 15));
    }
    assert_int_equal(vl_f16_from_f32(value), bits); /* keeps the sign of zero, too */
  }
}

static void every_bf16_decodes_exactly_and_returns(void **state) {
  (void)state;
  for (uint32_t i = 0; i <= UINT16_MAX; i++) {
    uint16_t bits = (uint16_t)i;
    float value = vl_f32_from_bf16(bits);
    if ((bits & 0x7FFF) > BF16_INFINITY) {
      assert_true(isnan(value) && isnan(vl_f32_from_bf16(vl_bf16_from_f32(value))));
      continue;
    }
    if ((bits & 0x7FFF) == BF16_INFINITY) {
      assert_true(isinf(value) && (value < 0) == (bits >= 0x8000));
    } else {
      assert_true((double)value == decode(bits, 7, 127));
    }
    assert_int_equal(vl_bf16_from_f32(value), bits);
  }
}

/* Around the midpoint of each pair of neighbours; the one after the largest finite value is infinity. */
static void rounding_is_to_nearest_even(void **state) {
  (void)state;
  const struct {
    uint16_t (*encode)(float);
    int mantissa_bits, bias;
    uint16_t infinity;
  } formats[] = {{vl_f16_from_f32, 10, 15, F16_INFINITY}, {vl_bf16_from_f32, 7, 127, BF16_INFINITY}};
  for (size_t f = 0; f < 2; f++) {
    for (uint16_t low = 0; low < formats[f].infinity; low++) {
      double below = decode(low, formats[f].mantissa_bits, formats[f].bias);
      double above = decode((uint16_t)(low + 1), formats[f].mantissa_bits, formats[f].bias);
      float middle = (float)(0.5 * (below + above)); /* exact: one bit more than the format has */
      uint16_t high = (uint16_t)(low + 1);
      uint16_t even = (low & 1) == 0 ? low : high;
      assert_int_equal(formats[f].encode(middle), even);
      assert_int_equal(formats[f].encode(-middle), even | 0x8000);
      assert_int_equal(formats[f].encode(nextafterf(middle, 0.0F)), low);
      assert_int_equal(formats[f].encode(nextafterf(middle, INFINITY)), high);
    }
  }
}

/* From double there is one rounding, not two: just off a midpoint by less than a float can hold. */
static void writing_a_double_rounds_once(void **state) {
  (void)state;
  const DType dtypes[] = {DTYPE_F16, DTYPE_BF16};
  const int mantissa_bits[] = {10, 7};
  for (size_t d = 0; d < 2; d++) {
    double half_step = ldexp(1.0, -mantissa_bits[d] - 1);
    double step = 2 * half_step;
    const struct {
      double value, expected;
    } rows[] = {{1 + half_step, 1},
                {1 + half_step + 0x1p-50, 1 + step},
                {1 + half_step - 0x1p-50, 1},
                {1 + step + half_step, 1 + 2 * step},
                {1 + step + half_step - 0x1p-50, 1 + step},
                {-1 - half_step - 0x1p-50, -1 - step},
                {1e300, INFINITY},
                {-1e300, -INFINITY},
                {1e-300, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
      uint16_t bits;
      vl_element_set(&bits, dtypes[d], 0, rows[i].value);
      assert_true(vl_element_get(&bits, dtypes[d], 0) == rows[i].expected);
    }
    uint16_t bits;
    vl_element_set(&bits, dtypes[d], 0, NAN);
    assert_true(isnan(vl_element_get(&bits, dtypes[d], 0)));
  }
}

/* What loss scaling is for: a gradient of 1e-8 is lost in fp16 and comes back with a scale; bf16 keeps
 * even 1e-30. The expected values are the nearest representable ones. */
static void conversions_c7(void **state) {
  (void)state;
  assert_int_equal(vl_f16_from_f32(1e-8F), 0);
  double scaled = (double)vl_f32_from_f16(vl_f16_from_f32(1e-8F * 1024.0F)) / 1024.0;
  assert_true(scaled == 172 * 0x1p-24 / 1024.0);
  assert_true(fabs(scaled / 1e-8 - 1.0012) < 5e-5); /* 1.0012e-8 as printed, to its last digit */
  double kept = (double)vl_f32_from_bf16(vl_bf16_from_f32(1e-30F));
  assert_true(fabs(kept / 1e-30 - 0.9984) < 5e-5);
}

static void elements_of_every_type_keep_their_place(void **state) {
  (void)state;
  for (int d = 0; d < DTYPE_COUNT; d++) {
    DType dtype = (DType)d;
    double room[8] = {0};
    for (int i = 0; i < 8; i++)
      vl_element_set(room, dtype, i, 3 * i + 1);
    for (int i = 0; i < 8; i++)
      assert_true(vl_element_get(room, dtype, i) == 3 * i + 1);
  }
}

static void whole_numbers_round_and_saturate(void **state) {
  (void)state;
  int32_t i32;
  vl_element_set(&i32, DTYPE_I32, 0, 2.5);
  assert_int_equal(i32, 2);
  vl_element_set(&i32, DTYPE_I32, 0, -1e20);
  assert_true(i32 == INT32_MIN);
  int64_t i64;
  vl_element_set(&i64, DTYPE_I64, 0, 1e20);
  assert_true(i64 == INT64_MAX);
  vl_element_set(&i64, DTYPE_I64, 0, NAN);
  assert_true(i64 == 0);
  uint8_t u8;
  vl_element_set(&u8, DTYPE_U8, 0, 255.4);
  assert_int_equal(u8, 255);
  vl_element_set(&u8, DTYPE_U8, 0, -1);
  assert_int_equal(u8, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sizes_and_names),
      cmocka_unit_test(every_f16_decodes_exactly_and_returns),
      cmocka_unit_test(every_bf16_decodes_exactly_and_returns),
      cmocka_unit_test(rounding_is_to_nearest_even),
      cmocka_unit_test(writing_a_double_rounds_once),
      cmocka_unit_test(conversions_c7),
      cmocka_unit_test(elements_of_every_type_keep_their_place),
      cmocka_unit_test(whole_numbers_round_and_saturate),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
