/* The codes of optimizer state of kernels/cuda, for tests/kernels/test_state_codes.c. */
#include "kernels/cuda/state_codes.cuh"

extern "C" {
#include "kernels/cpu/state_codes.h"
extern const StateCodes state_codes_cuda;
}

static void read_codes(const uint8_t *codes, bool is_signed, float scale, int64_t count, float *values) {
  for (int64_t i = 0; i < count; i++) {
    float value = is_signed ? value_of_code<true>(codes[i]) : value_of_code<false>(codes[i]);
    values[i] = __fmul_rn(value, scale);
  }
}

static void write_codes(const float *values, bool is_signed, float factor, int64_t count, uint8_t *codes) {
  for (int64_t i = 0; i < count; i++)
    codes[i] = is_signed ? code_of_value<true>(values[i], factor) : code_of_value<false>(values[i], factor);
}

const StateCodes state_codes_cuda = {read_codes, write_codes};
