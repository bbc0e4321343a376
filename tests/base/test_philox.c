/* Philox 4x32-10 is the published one, and the key and counter layout are those the golden script uses. */
#include "base/base.h"

#include <math.h>
#include <setjmp.h>

#include <cmocka.h>

/* kat_vectors of Random123 (Salmon and others, SC 2011). */
static void blocks_match_known_answers(void **state) {
  (void)state;
  const struct {
    uint32_t counter[4], key[2], expected[4];
  } rows[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    uint32_t out[4];
    vl_philox(rows[i].counter, rows[i].key, out);
    assert_memory_equal(out, rows[i].expected, sizeof out);
  }
}

/* Values computed by an independent implementation of the formula in base.h. */
static void keys_match_the_formula(void **state) {
  (void)state;
  assert_true(vl_random_key(0, 0, "") == UINT64_C(0x7dc2c42b173ebf65));
  assert_true(vl_random_key(7, 3, "encoder.0.dropout") == UINT64_C(0x23be61ad2a4ed275));
  assert_true(vl_random_key(UINT64_MAX, UINT64_C(1) << 40, "x") == UINT64_C(0x9891324d4ae62482));
}

/* As above: samples and elements past 32 bits, every lane used. */
static void words_match_the_counter_layout(void **state) {
  (void)state;
  uint64_t key = vl_random_key(7, 3, "encoder.0.dropout");
  assert_true(vl_random_word(key, 0, 0) == 0xdaa93783);
  assert_true(vl_random_word(key, 0, 5) == 0x4e2bab7b);
  assert_true(vl_random_word(key, UINT64_C(12345678901), 3) == 0x26a687b3);
  assert_true(vl_random_word(key, 5, (UINT64_C(1) << 34) + 6) == 0x30170d13);
}

static void unit_is_exact_and_below_one(void **state) {
  (void)state;
  assert_true(vl_random_unit(0) == 0.0F);
  assert_true(vl_random_unit(0x80000000) == 0.5F);
  assert_true(vl_random_unit(UINT32_MAX) == 1.0F - 0x1p-24F);
}

/* The mean of n uniform numbers has standard deviation 1/sqrt(12 n); the seed is fixed, so 4 of them are a
 * plain check that lanes, samples and steps are not stuck, not a gamble. */
static void uniform_numbers_have_the_right_mean(void **state) {
  (void)state;
  enum { SAMPLES = 64, ELEMENTS = 256 };
  uint64_t key = vl_random_key(1, 0, "mean");
  double sum = 0;
  for (uint64_t s = 0; s < SAMPLES; s++) {
    for (uint64_t e = 0; e < ELEMENTS; e++)
      sum += (double)vl_random_unit(vl_random_word(key, s, e));
  }
  double count = SAMPLES * ELEMENTS;
  assert_true(fabs(sum / count - 0.5) < 4.0 / sqrt(12.0 * count));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(blocks_match_known_answers),          cmocka_unit_test(keys_match_the_formula),
      cmocka_unit_test(words_match_the_counter_layout),      cmocka_unit_test(unit_is_exact_and_below_one),
      cmocka_unit_test(uniform_numbers_have_the_right_mean),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
