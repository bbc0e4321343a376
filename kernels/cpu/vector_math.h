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

/* log x of a positive normal number within 2 units in the last place, NaN stays. Cephes' polynomial (logf.c)
 * of m - 1 for x = 2^e m, m from sqrt(1/2) to sqrt(2). */
VECTOR_INLINE float vector_log(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t root = 0x3F3504F3U; /* sqrt(1/2) */
  int32_t exponent = (int32_t)(bits - root) >> 23;
  float m = vector_float_of_bits(bits - ((uint32_t)exponent << 23)) - 1.0F, e = (float)exponent;
  float square = m * m;
  float p = 7.0376836292e-2F;
  p = p * m - 1.1514610310e-1F;
  p = p * m + 1.1676998740e-1F;
  p = p * m - 1.2420140846e-1F;
  p = p * m + 1.4249322787e-1F;
  p = p * m - 1.6668057665e-1F;
  p = p * m + 2.0000714765e-1F;
  p = p * m - 2.4999993993e-1F;
  p = p * m + 3.3333331174e-1F;
  float rest = (p * m * square - 2.12194440e-4F * e) - 0.5F * square;
  float value = (m + rest) + 0.693359375F * e;
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
