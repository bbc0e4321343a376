/* How fast the processors are let run: cpufreq (Linux's Documentation/admin-guide/pm/cpufreq.rst),
 * /proc/cpuinfo where a virtual machine has none, and their sensor (Documentation/hwmon/sysfs-interface.rst).
 */
#include "engine/internal.h"

#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* The first line of a file; false when it cannot be read. */
static bool read_line(const char *path, char *line, size_t size) {
  FILE *file = fopen(path, "r");
  bool read = file && fgets(line, (int)size, file);
  if (file) fclose(file);
  if (read) line[strcspn(line, "\n")] = '\0';
  return read;
}

static bool read_frequency(const char *root, size_t processor, const char *name, int64_t *mhz) {
  char path[PATH_MAX], line[64];
  snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%zu/cpufreq/%s", root, processor, name);
  if (!read_line(path, line, sizeof line)) return false;
  *mhz = strtoll(line, NULL, 10) / 1000; /* it tells kHz */
  return *mhz > 0;
}

/* Of the processors that this process may run on the fastest: others may have nothing to do. */
static void read_frequencies(const char *root, ProcessorState *state) {
  char path[PATH_MAX];
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return;
  for (size_t i = 0; i < CPU_SETSIZE; i++) {
    int64_t mhz;
    if (!CPU_ISSET(i, &set)) continue;
    if (read_frequency(root, i, "scaling_cur_freq", &mhz) && mhz > state->clock_mhz) state->clock_mhz = mhz;
    if (read_frequency(root, i, "scaling_max_freq", &mhz) && mhz > state->clock_max_mhz)
      state->clock_max_mhz = mhz;
    if (*state->governor) continue;
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%zu/cpufreq/scaling_governor", root, i);
    if (!read_line(path, state->governor, sizeof state->governor)) state->governor[0] = '\0';
  }
}

/* Of the first that is listed. */
static void read_listed_clock(const char *root, ProcessorState *state) {
  char path[PATH_MAX], line[256];
  snprintf(path, sizeof path, "%s/proc/cpuinfo", root);
  FILE *file = fopen(path, "r");
  if (!file) return;
  while (state->clock_mhz < 0 && fgets(line, sizeof line, file)) {
    const char *colon = strchr(line, ':');
    if (strncmp(line, "cpu MHz", 7) != 0 || !colon) continue;
    int64_t mhz = strtoll(colon + 1, NULL, 10); /* whole ones: a point is not a point in every locale */
    if (mhz > 0) state->clock_mhz = mhz;
  }
  fclose(file);
}

static void read_temperature(const char *root, ProcessorState *state) {
  static const char *const sensors[] = {"coretemp", "k10temp", "zenpower", "cpu_thermal"};
  enum { MOST_SENSORS = 64 };
  char path[PATH_MAX], name[64], line[64];
  for (int i = 0; i < MOST_SENSORS; i++) {
    snprintf(path, sizeof path, "%s/sys/class/hwmon/hwmon%d/name", root, i);
    if (!read_line(path, name, sizeof name)) continue;
    for (size_t s = 0; s < sizeof sensors / sizeof *sensors; s++) {
      if (strcmp(name, sensors[s]) != 0) continue;
      snprintf(path, sizeof path, "%s/sys/class/hwmon/hwmon%d/temp1_input", root, i);
      if (!read_line(path, line, sizeof line)) continue;
      int64_t celsius = strtoll(line, NULL, 10) / 1000; /* it tells thousandths */
      if (celsius > state->temperature_c) state->temperature_c = celsius;
    }
  }
}

ProcessorState engine_processor_state(const char *root) {
  ProcessorState state = {.clock_mhz = -1, .clock_max_mhz = -1, .temperature_c = -1};
  read_frequencies(root, &state);
  if (state.clock_mhz < 0) read_listed_clock(root, &state);
  read_temperature(root, &state);
  return state;
}
