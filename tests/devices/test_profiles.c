/* Profiles: the shipped ones are read, and what is misspelt, missing, absurd or not YAML is refused with
 * file, line and accepted keys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "devices/device.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHIPPED VRAMLAB_SOURCE_DIR "/devices/profiles"

static const char good[] = "name: T\n"
                           "describes: a test card\n"
                           "source: none\n"
                           "memory: 8GiB\n"
                           "context_low: 100MiB\n"
                           "context_high: 200MiB\n"
                           "workspace_low: 0\n"
                           "workspace_high: 64MiB\n"
                           "low_types: bf16, fp16\n"
                           "flops_f32: 1.5e13\n"
                           "flops_low: 120e12\n"
                           "memory_rate: 9e11\n"
                           "host_rate: 16e9\n";

/* A folder with the one profile T.yaml of that text. */
typedef struct Folder {
  char path[64], file[80];
} Folder;

static Folder make_folder(const char *text) {
  Folder folder = {.path = "/tmp/vramlab-profiles-XXXXXX"};
  assert_non_null(mkdtemp(folder.path));
  snprintf(folder.file, sizeof folder.file, "%s/T.yaml", folder.path);
  FILE *file = fopen(folder.file, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
  return folder;
}

static void remove_folder(const Folder *folder) {
  unlink(folder->file);
  rmdir(folder->path);
}

static Status load_text(const char *text, DeviceProfile *profile) {
  Folder folder = make_folder(text);
  Status status = vl_profile_load(folder.path, "T", profile);
  remove_folder(&folder);
  return status;
}

/* The good text with a line replaced. */
static void assert_refused(const char *line, const char *replacement, const char *first, const char *second) {
  char text[1024];
  const char *at = strstr(good, line);
  assert_non_null(at);
  snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, replacement, at + strlen(line));
  DeviceProfile profile;
  Status status = load_text(text, &profile);
  if (!strstr(status.message, first) || !strstr(status.message, second))
    print_message("wanted \"%s\" and \"%s\" in \"%s\"\n", first, second, status.message);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, first));
  assert_non_null(strstr(status.message, second));
}

static void reads_every_field(void **state) {
  (void)state;
  DeviceProfile profile;
  assert_int_equal(load_text(good, &profile).code, VL_OK);
  assert_string_equal(profile.name, "T");
  assert_string_equal(profile.describes, "a test card");
  assert_string_equal(profile.source, "none");
  assert_int_equal(profile.memory_bytes, INT64_C(8) << 30);
  assert_int_equal(profile.context_low_bytes, 100 << 20);
  assert_int_equal(profile.context_high_bytes, 200 << 20);
  assert_int_equal(profile.workspace_low_bytes, 0);
  assert_int_equal(profile.workspace_high_bytes, 64 << 20);
  assert_true(profile.has_bf16);
  assert_true(profile.flops_f32_per_s == 1.5e13 && profile.flops_low_per_s == 1.2e14);
  assert_true(profile.memory_bytes_per_s == 9e11 && profile.host_bytes_per_s == 1.6e10);
  assert_false(profile.has_time);
}

static void refuses_what_it_does_not_know(void **state) {
  (void)state;
  assert_refused("memory: 8GiB\n", "memory: 8GiB\nbandwidth: 900\n", "T.yaml:5: unknown key \"bandwidth\"",
                 "accepted keys: name,");
  assert_refused("memory: 8GiB\n", "memory: 8GiB\nmemory: 8GiB\n", "T.yaml:5: twice \"memory\"",
                 "accepted keys");
  assert_refused("memory: 8GiB\n", "", "the key \"memory\" is missing", "accepted keys");
  assert_refused("memory: 8GiB\n", "memory: [8GiB]\n", "T.yaml:4: one value is expected", "accepted keys");
  assert_refused("name: T\n", "name: U\n", "name is \"U\"", "\"T\"");
}

static void refuses_absurd_values(void **state) {
  (void)state;
  assert_refused("memory: 8GiB\n", "memory: 8\n", "T.yaml:4: memory is 8", "accepted: 256.00 MiB to");
  assert_refused("memory: 8GiB\n", "memory: 8 gigs\n", "T.yaml:4: memory:", "8 gigs");
  assert_refused("memory: 8GiB\n", "memory: -8GiB\n", "T.yaml:4: memory:", "-8GiB");
  assert_refused("context_low: 100MiB\n", "context_low: 300MiB\n", "context_low is 314572800",
                 "context_high");
  assert_refused("context_high: 200MiB\n", "context_high: 9GiB\n", "context_high is", "memory");
  assert_refused("workspace_high: 64MiB\n", "workspace_high: 1TiB\n", "T.yaml:8: workspace_high is 1TiB",
                 "16.000 GiB");
  assert_refused("low_types: bf16, fp16\n", "low_types: bf16\n", "T.yaml:9: low_types is \"bf16\"",
                 "accepted: fp16 (before sm_80), or bf16, fp16");
  assert_refused("host_rate: 16e9\n", "host_rate: 16\n", "T.yaml:13: host_rate is 16",
                 "accepted: a number a second, 1e+08 to");
  assert_refused("host_rate: 16e9\n", "host_rate: 16GB\n", "T.yaml:13: host_rate is 16GB", "a number");
  assert_refused("flops_f32: 1.5e13\n", "flops_f32: nan\n", "T.yaml:10: flops_f32 is nan", "a number");
  assert_refused("describes: a test card\n", "describes: ''\n", "T.yaml:2: describes has 0 characters",
                 "1 to 127");
}

static void refuses_what_is_not_a_profile(void **state) {
  (void)state;
  DeviceProfile profile;
  const char *const texts[] = {
      "", "- name\n", "name: T\n---\nname: T\n", "\t", "name: \"T\n", "name: *nobody\n", "{name: T,\n"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; ++i) {
    Status status = load_text(texts[i], &profile);
    assert_int_equal(status.code, VL_INVALID);
    assert_non_null(strstr(status.message, "T.yaml:"));
  }
}

static void unknown_profile_names_the_known(void **state) {
  (void)state;
  DeviceProfile profile;
  Status status = vl_profile_load(SHIPPED, "V100-64GB", &profile);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "\"V100-64GB\""));
  assert_non_null(strstr(status.message, "A100-80GB, H100-80GB, H200, V100-32GB"));
  assert_int_equal(vl_profile_load(SHIPPED, "../profiles/H200", &profile).code, VL_INVALID);
}

static void count_profile(const DeviceProfile *profile, void *context) {
  int *count = context;
  ++*count;
  assert_true(profile->memory_bytes > INT64_C(16) << 30);
  assert_true(profile->workspace_low_bytes < profile->workspace_high_bytes);
  assert_int_equal(profile->has_bf16, strncmp(profile->name, "V100", 4) != 0);
  assert_true(profile->flops_f32_per_s < profile->flops_low_per_s);
  assert_true(profile->host_bytes_per_s < profile->memory_bytes_per_s);
}

static void shipped_profiles_are_valid(void **state) {
  (void)state;
  int count = 0;
  Status status = vl_profile_each(SHIPPED, count_profile, &count);
  if (status.code != VL_OK) print_message("%s\n", status.message);
  assert_int_equal(status.code, VL_OK);
  assert_true(count >= 3);
}

/* The built tree has them where an installed one will. */
static void default_folder_is_beside_the_modules(void **state) {
  (void)state;
  DeviceProfile profile;
  Status status = vl_profile_load(NULL, "H200", &profile);
  if (status.code != VL_OK) print_message("%s\n", status.message);
  assert_int_equal(status.code, VL_OK);
  assert_int_equal(vl_profile_load("/nowhere", "H200", &profile).code, VL_ENVIRONMENT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reads_every_field),
      cmocka_unit_test(refuses_what_it_does_not_know),
      cmocka_unit_test(refuses_absurd_values),
      cmocka_unit_test(refuses_what_is_not_a_profile),
      cmocka_unit_test(unknown_profile_names_the_known),
      cmocka_unit_test(shipped_profiles_are_valid),
      cmocka_unit_test(default_folder_is_beside_the_modules),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
