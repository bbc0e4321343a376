/* Element types: sizes, names, conversions. Conversions work on bits, so they do not depend on the
 * processor's flush-to-zero or rounding mode. */
#include "base/base.h"

#include <assert.h>
#include <math.h>
#include <string.h>

typedef struct DTypeFacts {
  const char *name;
  int bits;
  bool is_float;
} DTypeFacts;

static const DTypeFacts dtype_facts[DTYPE_COUNT] = {
    [DTYPE_F32] = {"f32", 32, true}, [DTYPE_BF16] = {"bf16", 16, true}, [DTYPE_F16] = {"f16", 16, true},
    [DTYPE_F64] = {"f64", 64, true}, [DTYPE_I32] = {"i32", 32, false},  [DTYPE_I64] = {"i64", 64, false},
    [DTYPE_U8] = {"u8", 8, false},
};

static const DTypeFacts *facts_of(DType dtype) {
  assert((unsigned)dtype < DTYPE_COUNT);
  return &dtype_facts[dtype];
}

int vl_dtype_bits(DType dtype) { return facts_of(dtype)->bits; }

int64_t vl_dtype_bytes(DType dtype, int64_t count) {
  /* Whole bytes first, so that the product does not overflow earlier than the result. */
  int bits = vl_dtype_bits(dtype);
  return count * (bits / 8) + (count * (bits % 8) + 7) / 8;
}

const char *vl_dtype_name(DType dtype) { return facts_of(dtype)->name; }

Status vl_dtype_parse(const char *name, DType *dtype) {
  for (int i = 0; i < DTYPE_COUNT; i++) {
    if (strcmp(name, dtype_facts[i].name) == 0) {
      *dtype = (DType)i;
      return vl_ok();
    }
  }
  return vl_error(VL_INVALID, "element type '%s' is unknown; accepted: f32, bf16, f16, f64, i32, i64, u8",
                  name);
}

bool vl_dtype_is_float(DType dtype) { return facts_of(dtype)->is_float; }

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* value >> shift, rounded to nearest, ties to even; 0 < shift < 32. */
static uint32_t shift_to_nearest(uint32_t value, unsigned shift) {
  uint32_t kept = value >> shift;
  uint32_t dropped = value & ((1U << shift) - 1U);
  uint32_t half = 1U << (shift - 1U);
  return kept + (dropped > half || (dropped == half && (kept & 1U) != 0) ? 1U : 0U);
}

uint16_t vl_bf16_from_f32(float value) {
  uint32_t bits = bits_of(value);
  /* A NaN whose payload sits in the dropped half must not become infinity: set the quiet bit. */
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return (uint16_t)((bits >> 16) | 0x0040U);
  /* Sign, exponent and mantissa are one number: a carry out of the mantissa is the next binade, and out
   * of the largest one infinity. */
  return (uint16_t)((bits & 0x80000000U) >> 16 | shift_to_nearest(bits & 0x7FFFFFFFU, 16));
}

float vl_f32_from_bf16(uint16_t bits) { return float_of((uint32_t)bits << 16); }

uint16_t vl_f16_from_f32(float value) {
  uint32_t bits = bits_of(value);
  uint32_t sign = (bits >> 16) & 0x8000U;
  uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return (uint16_t)(sign | 0x7E00U | ((magnitude >> 13) & 0x01FFU));
  if (magnitude >= 0x47800000U) return (uint16_t)(sign | 0x7C00U); /* 65536 and above */
  if (magnitude >= 0x38800000U) { /* 2^-14 and above: normal; rounding may carry up to infinity */
    return (uint16_t)(sign | shift_to_nearest(magnitude - (112U << 23), 13));
  }
  if (magnitude <= 0x33000000U) return (uint16_t)sign; /* 2^-25 and below round to zero */
  /* Subnormal: units of 2^-24. The float is mantissa * 2^(exponent - 150). */
  uint32_t exponent = magnitude >> 23;
  uint32_t mantissa = (magnitude & 0x007FFFFFU) | 0x00800000U;
  return (uint16_t)(sign | shift_to_nearest(mantissa, 126U - exponent));
}

float vl_f32_from_f16(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000U) << 16;
  uint32_t exponent = (bits >> 10) & 0x1FU;
  uint32_t mantissa = bits & 0x03FFU;
  if (exponent == 0x1FU) return float_of(sign | 0x7F800000U | mantissa << 13);
  if (exponent != 0) return float_of(sign | (exponent + 112U) << 23 | mantissa << 13);
  float magnitude = (float)mantissa * 0x1p-24F; /* exact */
  return float_of(sign | bits_of(magnitude));
}

/* Rounds a double to a float so that a second rounding to 16 bits gives what one rounding would: towards
 * zero, with the last bit set when anything was dropped. */
static float float_rounded_to_odd(double value) {
  float nearest = (float)value;
  if (isnan(value) || isinf(value) || (double)nearest == value) return nearest;
  uint32_t bits = bits_of(nearest);
  if (fabs((double)nearest) > fabs(value)) bits -= 1U;
  return float_of(bits | 1U);
}

/* Nearest integer within [low, high]; NaN becomes 0. A cast alone is undefined outside the range. */
static int64_t integer_within(double value, int64_t low, int64_t high) {
  if (isnan(value)) return 0;
  double rounded = nearbyint(value);
  if (rounded <= (double)low) return low;
  if (rounded >= (double)high) return high;
  return (int64_t)rounded;
}

double vl_element_get(const void *data, DType dtype, int64_t i) {
  switch (dtype) {
  case DTYPE_F32: return (double)((const float *)data)[i];
  case DTYPE_BF16: return (double)vl_f32_from_bf16(((const uint16_t *)data)[i]);
  case DTYPE_F16: return (double)vl_f32_from_f16(((const uint16_t *)data)[i]);
  case DTYPE_F64: return ((const double *)data)[i];
  case DTYPE_I32: return (double)((const int32_t *)data)[i];
  case DTYPE_I64: return (double)((const int64_t *)data)[i];
  case DTYPE_U8: return (double)((const uint8_t *)data)[i];
  case DTYPE_COUNT: break;
  }
  assert(false && "element type out of range");
  return 0.0;
}

void vl_element_set(void *data, DType dtype, int64_t i, double value) {
  switch (dtype) {
  case DTYPE_F32: ((float *)data)[i] = (float)value; return;
  case DTYPE_BF16: ((uint16_t *)data)[i] = vl_bf16_from_f32(float_rounded_to_odd(value)); return;
  case DTYPE_F16: ((uint16_t *)data)[i] = vl_f16_from_f32(float_rounded_to_odd(value)); return;
  case DTYPE_F64: ((double *)data)[i] = value; return;
  case DTYPE_I32: ((int32_t *)data)[i] = (int32_t)integer_within(value, INT32_MIN, INT32_MAX); return;
  case DTYPE_I64: ((int64_t *)data)[i] = integer_within(value, INT64_MIN, INT64_MAX); return;
  case DTYPE_U8: ((uint8_t *)data)[i] = (uint8_t)integer_within(value, 0, UINT8_MAX); return;
  case DTYPE_COUNT: break;
  }
  assert(false && "element type out of range");
}
