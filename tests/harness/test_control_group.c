/* Limits of control groups, a container with less memory than its machine: both versions of the interface,
 * limits of groups further up, files that can be dropped, and groups that are not where the process says. */
#include "tests/harness/temporary_directory.h"

#include "harness/control_group.h"

#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static const int64_t mib = 1 << 20;

static void no_group_is_no_limit(void **state) {
  ControlGroup group;
  vl_control_group_read(*state, &group);
  assert_int_equal(group.version, 0);
  assert_int_equal(group.memory_limit_bytes, -1);
  assert_int_equal(group.memory_free_bytes, -1);
  assert_true(isnan(group.processors));
}

static void the_tightest_group_counts(void **state) {
  ControlGroup group;
  write_file_in(*state, "proc/self/cgroup", "0::/jobs/job_7/step_0\n");
  write_file_in(*state, "sys/fs/cgroup/jobs/memory.max", "max\n");
  write_file_in(*state, "sys/fs/cgroup/jobs/job_7/memory.max", "1073741824\n");
  write_file_in(*state, "sys/fs/cgroup/jobs/job_7/memory.current", "536870912\n");
  write_file_in(*state, "sys/fs/cgroup/jobs/job_7/memory.stat", "anon 1\ninactive_file 104857600\n");
  write_file_in(*state, "sys/fs/cgroup/jobs/job_7/cpu.max", "150000 100000\n");
  write_file_in(*state, "sys/fs/cgroup/jobs/job_7/step_0/memory.max", "2147483648\n");
  write_file_in(*state, "sys/fs/cgroup/jobs/job_7/step_0/cpu.max", "max 100000\n");
  vl_control_group_read(*state, &group);
  assert_int_equal(group.version, 2);
  assert_int_equal(group.memory_limit_bytes, 1024 * mib);
  assert_int_equal(group.memory_free_bytes, (1024 - 512 + 100) * mib);
  assert_true(group.processors == 1.5);
}

static void the_first_version_is_read_too(void **state) {
  ControlGroup group;
  write_file_in(*state, "proc/self/cgroup",
                "5:cpuset:/\n4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n");
  write_file_in(*state, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write_file_in(*state, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "536870912\n");
  write_file_in(*state, "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "600000000\n");
  write_file_in(*state, "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "400000\n");
  write_file_in(*state, "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n");
  vl_control_group_read(*state, &group);
  assert_int_equal(group.version, 1);
  assert_int_equal(group.memory_limit_bytes, 512 * mib);
  assert_int_equal(group.memory_free_bytes, 0); /* never less */
  assert_true(group.processors == 4.0);
}

static void a_group_out_of_sight_is_the_mounted_one(void **state) {
  ControlGroup group;
  write_file_in(*state, "proc/self/cgroup", "0::/machine/of/the/host\n");
  write_file_in(*state, "sys/fs/cgroup/memory.max", "268435456\n");
  vl_control_group_read(*state, &group);
  assert_int_equal(group.memory_limit_bytes, 256 * mib);
  assert_int_equal(group.memory_free_bytes, 256 * mib);
}

static void no_limit_is_none(void **state) {
  ControlGroup group;
  write_file_in(*state, "proc/self/cgroup", "4:memory:/\n2:cpu:/\n");
  write_file_in(*state, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write_file_in(*state, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write_file_in(*state, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  vl_control_group_read(*state, &group);
  assert_int_equal(group.version, 1);
  assert_int_equal(group.memory_limit_bytes, -1);
  assert_true(isnan(group.processors));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(no_group_is_no_limit, set_up_directory, tear_down_directory),
      cmocka_unit_test_setup_teardown(the_tightest_group_counts, set_up_directory, tear_down_directory),
      cmocka_unit_test_setup_teardown(the_first_version_is_read_too, set_up_directory, tear_down_directory),
      cmocka_unit_test_setup_teardown(a_group_out_of_sight_is_the_mounted_one, set_up_directory,
                                      tear_down_directory),
      cmocka_unit_test_setup_teardown(no_limit_is_none, set_up_directory, tear_down_directory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
