/* What the system tells of its processors' clocks, governor and heat is read where it is, and nothing is made
 * up where it is not: virtual machines have no cpufreq, containers no sensors. */
#include "engine/internal.h"
#include "tests/harness/temporary_directory.h"

#include <limits.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static size_t own_processor(void) {
  cpu_set_t set;
  size_t i = 0;
  assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
  while (!CPU_ISSET(i, &set))
    i++;
  return i;
}

static void put_frequency(const char *root, size_t processor, const char *name, const char *text) {
  char path[256];
  snprintf(path, sizeof path, "sys/devices/system/cpu/cpu%zu/cpufreq/%s", processor, name);
  write_file_in(root, path, text);
}

static void nothing_is_made_up(void **state) {
  ProcessorState found = engine_processor_state(*state);
  assert_int_equal(found.clock_mhz, -1);
  assert_int_equal(found.clock_max_mhz, -1);
  assert_int_equal(found.temperature_c, -1);
  assert_string_equal(found.governor, "");
}

static void clocks_governor_and_heat_are_read(void **state) {
  size_t processor = own_processor();
  put_frequency(*state, processor, "scaling_cur_freq", "2400123\n");
  put_frequency(*state, processor, "scaling_max_freq", "3700000\n");
  put_frequency(*state, processor, "scaling_governor", "powersave\n");
  put_frequency(*state, CPU_SETSIZE - 1, "scaling_cur_freq", "9900000\n"); /* not for this process */
  write_file_in(*state, "proc/cpuinfo", "processor\t: 0\ncpu MHz\t\t: 1111.5\n");
  write_file_in(*state, "sys/class/hwmon/hwmon0/name", "nvme\n");
  write_file_in(*state, "sys/class/hwmon/hwmon0/temp1_input", "81850\n");
  write_file_in(*state, "sys/class/hwmon/hwmon3/name", "k10temp\n");
  write_file_in(*state, "sys/class/hwmon/hwmon3/temp1_input", "55250\n");
  ProcessorState found = engine_processor_state(*state);
  assert_int_equal(found.clock_mhz, 2400);
  assert_int_equal(found.clock_max_mhz, 3700);
  assert_string_equal(found.governor, "powersave");
  assert_int_equal(found.temperature_c, 55);
}

static void a_virtual_machine_has_a_clock_alone(void **state) {
  write_file_in(*state, "proc/cpuinfo",
                "processor\t: 0\ncpu MHz\t\t: 2596.124\n\nprocessor\t: 1\ncpu MHz\t\t: 3000.0\n");
  ProcessorState found = engine_processor_state(*state);
  assert_int_equal(found.clock_mhz, 2596);
  assert_int_equal(found.clock_max_mhz, -1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(nothing_is_made_up, set_up_directory, tear_down_directory),
      cmocka_unit_test_setup_teardown(clocks_governor_and_heat_are_read, set_up_directory,
                                      tear_down_directory),
      cmocka_unit_test_setup_teardown(a_virtual_machine_has_a_clock_alone, set_up_directory,
                                      tear_down_directory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
