/* Division by a product with a number made beforehand, as own kernels find places by it, against division. */
#include "kernels/cuda/box.cuh"

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
extern "C" {
#include <cmocka.h>
}

namespace {

constexpr int64_t largest = INT64_MAX;

void check(int64_t number, int64_t divisor) {
  int64_t rest, quotient = divide(number, divisor_of(divisor), &rest);
  if (quotient != number / divisor || rest != number % divisor)
    fail_msg("%lld / %lld gives %lld, rest %lld", (long long)number, (long long)divisor, (long long)quotient,
             (long long)rest);
}

/* Multiples of the divisor, where quotients change, and the largest numbers. */
void check_around(int64_t divisor) {
  const int64_t most = largest / divisor, quotients[] = {0, 1, 2, 3, most / 3, most - 1, most};
  for (int64_t quotient : quotients) {
    if (quotient < 0 || quotient > most) continue;
    int64_t number = quotient * divisor;
    check(number, divisor);
    if (number > 0) check(number - 1, divisor);
    if (number < largest) check(number + 1, divisor);
  }
  check(largest, divisor);
}

void small_divisors(void **) {
  for (int64_t divisor = 1; divisor <= 5000; divisor++)
    check_around(divisor);
}

void divisors_around_powers_of_two(void **) {
  for (int shift = 1; shift < 63; shift++)
    for (int64_t off = -2; off <= 2; off++)
      if (((int64_t)1 << shift) + off > 0) check_around(((int64_t)1 << shift) + off);
  check_around(largest);
}

void numbers_drawn(void **) {
  uint64_t key = vl_random_key(0, 0, "division");
  for (uint64_t i = 0; i < 200000; i++) {
    uint64_t number = (uint64_t)vl_random_word(key, i, 0) << 32 | vl_random_word(key, i, 1);
    uint64_t divisor = (uint64_t)vl_random_word(key, i, 2) << 32 | vl_random_word(key, i, 3);
    uint32_t shifts = vl_random_word(key, i, 4);
    check((int64_t)(number >> (1 + shifts % 63)), (int64_t)(divisor >> (1 + shifts / 63 % 63)) | 1);
  }
}

} // namespace

int main() {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(small_divisors),
      cmocka_unit_test(divisors_around_powers_of_two),
      cmocka_unit_test(numbers_drawn),
  };
  return cmocka_run_group_tests_name("host division", tests, nullptr, nullptr);
}
