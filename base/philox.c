/* Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011): a value is a function of counter and key, so
 * nothing is stored and any element can be drawn alone. */
#include "base/base.h"

enum { ROUNDS = 10 };

void vl_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < ROUNDS; round++) {
    uint64_t product0 = UINT64_C(0xD2511F53) * c0;
    uint64_t product1 = UINT64_C(0xCD9E8D57) * c2;
    c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)product1;
    c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)product0;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

/* One step of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection that spreads every input bit. */
static uint64_t splitmix64_mix(uint64_t z) {
  z += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

uint64_t vl_random_key(uint64_t seed, uint64_t step, const char *scope) {
  uint64_t mixed = splitmix64_mix(splitmix64_mix(seed) ^ step);
  return splitmix64_mix(mixed ^ vl_hash_text(vl_hash_start, scope));
}

uint32_t vl_random_word(uint64_t key, uint64_t sample, uint64_t element) {
  uint64_t block = element / 4;
  const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)sample,
                               (uint32_t)(sample >> 32)};
  const uint32_t key_words[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
  uint32_t words[4];
  vl_philox(counter, key_words, words);
  return words[element % 4];
}

float vl_random_unit(uint32_t word) { return (float)(word >> 8) * 0x1p-24F; }
