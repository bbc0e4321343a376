/* kernels/cpu: functions that libm offers one value at a time, as expressions the compiler vectorises;
 * private to the folder. Checked over their ranges against libm in double. */
#ifndef VRAMLAB_KERNELS_CPU_VECTOR_MATH_H
#define VRAMLAB_KERNELS_CPU_VECTOR_MATH_H

#include "kernels/cpu/vector.h"

/* e^x within 2 units in the last place (subnormal results: of the smallest number); 0 below -104, infinity
 * above 88.73, NaN stays. x = n ln 2 + r, e^r from Cephes' polynomial (expf.c). */
VECTOR_INLINE float vector_exp(float x) {
  const float round = 0x1.8p23F; /* adding and taking it away rounds to a whole number */
  float inside = x > 89.0F ? 89.0F : x;
  inside = inside > -105.0F ? inside : -105.0F; /* NaN too, so that n is a number */
  float n = (inside * 1.44269504F + round) - round;
  float r = (inside - n * 0.693359375F) + n * 2.12194440e-4F; /* the first product is exact */
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  float fraction = (p * (r * r) + r) + 1.0F;
  /* 2^n as two factors, since n reaches -152 and 128. */
  int32_t whole = (int32_t)n;
  int32_t half = whole / 2;
  float first = vector_float_of_bits((uint32_t)(half + 127) << 23);
  float second = vector_float_of_bits((uint32_t)(whole - half + 127) << 23);
  float value = fraction * first * second;
  return x == x ? value : x;
}

/* tanh x within 2 units in the last place, NaN stays. Near 0 Cephes' polynomial (tanhf.c), else from e^2|x|.
 */
VECTOR_INLINE float vector_tanh(float x) {
  float t = x < 0.0F ? -x : x;
  float square = x * x;
  float p = -5.70498872745e-3F;
  p = p * square + 2.06390887954e-2F;
  p = p * square - 5.37397155531e-2F;
  p = p * square + 1.33314422036e-1F;
  p = p * square - 3.33332819422e-1F;
  float near = x + x * (square * p);
  float far = 1.0F - 2.0F / (vector_exp(t + t) + 1.0F);
  far = x < 0.0F ? -far : far;
  return t < 0.625F ? near : far;
}

#endif
