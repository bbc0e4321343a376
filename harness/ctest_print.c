#include "harness/ctest_print.h"

#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void print_numbers(const json_t *record) {
  static const char *const names[] = {"needed_bytes", "peak_allocated_bytes", "peak_reserved_bytes",
                                      "step_s",       "samples_per_s",        "oom_request_bytes"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    const json_t *value = json_object_get(record, names[i]);
    if (!json_is_number(value)) continue; /* not known is no number */
    printf("<CTestMeasurement type=\"numeric/double\" name=\"%s\">%.17g</CTestMeasurement>\n", names[i],
           json_number_value(value));
  }
}

static int is_png(const struct dirent *entry) {
  const char *dot = strrchr(entry->d_name, '.');
  return dot && strcmp(dot, ".png") == 0;
}

static void print_figures(const char *directory) {
  char figures[PATH_MAX], *whole;
  struct dirent **entries;
  snprintf(figures, sizeof figures, "%s/figures", directory);
  whole = realpath(figures, NULL);
  int count = whole ? scandir(whole, &entries, is_png, alphasort) : -1;
  for (int i = 0; i < count; i++) {
    const char *name = entries[i]->d_name;
    printf("<CTestMeasurementFile type=\"image/png\" name=\"%.*s\">%s/%s</CTestMeasurementFile>\n",
           (int)(strlen(name) - strlen(".png")), name, whole, name);
    free(entries[i]);
  }
  if (count >= 0) free(entries);
  free(whole);
}

/* Whether the comma-separated list in VRAMLAB_REQUIRE has the device. */
static bool is_required(const char *device) {
  const char *list = getenv("VRAMLAB_REQUIRE");
  size_t length = strlen(device);
  for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (strncmp(at, device, length) == 0 && (at[length] == '\0' || at[length] == ',')) return true;
  return false;
}

int vl_ctest_print(const json_t *record, const char *directory) {
  const char *status = vl_record_text(record, "status"), *error = vl_record_text(record, "error");
  const char *device = vl_record_text(record, "device");
  bool skipped = strcmp(status, "skipped") == 0;
  printf("<CTestMeasurement type=\"text/string\" name=\"status\">%s</CTestMeasurement>\n", status);
  print_numbers(record);
  if (directory) print_figures(directory);
  if (strcmp(status, "ok") == 0) return 0;
  bool required = skipped && device && is_required(device);
  printf("%s: %s%s\n", status, error ? error : "no reason",
         required ? " (VRAMLAB_REQUIRE names its device)" : "");
  if (strcmp(status, "oom") == 0) return 0;
  return (skipped && !required) || strcmp(status, "unsupported") == 0 ? 77 : 1;
}
