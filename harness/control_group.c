#include "harness/control_group.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Names of one version of the interface. */
typedef struct Names {
  const char *limit, *used, *droppable;
} Names;
static const Names names_v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
static const Names names_v2 = {"memory.max", "memory.current", "inactive_file"};

/* Version 1 writes "no limit" as the largest multiple of a page. */
static const int64_t no_limit_from_bytes = (int64_t)1 << 60;

static FILE *open_in(const char *directory, const char *name) {
  char *path;
  if (asprintf(&path, "%s/%s", directory, name) < 0) return NULL;
  FILE *file = fopen(path, "r");
  free(path);
  return file;
}

/* The number in a file; -1 when it is not there or says "max". */
static int64_t read_number(const char *directory, const char *name) {
  long long value = -1;
  FILE *file = open_in(directory, name);
  if (!file) return -1;
  if (fscanf(file, "%lld", &value) != 1) value = -1;
  fclose(file);
  return value;
}

/* The number behind a name in memory.stat; 0 when it is not there. */
static int64_t read_statistic(const char *directory, const char *name) {
  char key[64];
  long long value, found = 0;
  FILE *file = open_in(directory, "memory.stat");
  if (!file) return 0;
  while (fscanf(file, "%63s %lld", key, &value) == 2)
    if (strcmp(key, name) == 0) found = value;
  fclose(file);
  return found;
}

static void read_memory(const char *directory, const Names *names, ControlGroup *group) {
  int64_t limit = read_number(directory, names->limit), used = read_number(directory, names->used);
  if (limit < 0 || limit >= no_limit_from_bytes) return;
  int64_t left = limit - (used < 0 ? 0 : used - read_statistic(directory, names->droppable));
  if (left < 0) left = 0;
  if (left > limit) left = limit;
  if (group->memory_limit_bytes < 0 || limit < group->memory_limit_bytes) group->memory_limit_bytes = limit;
  if (group->memory_free_bytes < 0 || left < group->memory_free_bytes) group->memory_free_bytes = left;
}

static void read_processors(const char *directory, const Names *names, ControlGroup *group) {
  long long quota = -1, period = -1;
  if (names == &names_v1) {
    quota = read_number(directory, "cpu.cfs_quota_us");
    period = read_number(directory, "cpu.cfs_period_us");
  } else {
    FILE *file = open_in(directory, "cpu.max");
    if (file && fscanf(file, "%lld %lld", &quota, &period) != 2) quota = -1;
    if (file) fclose(file);
  }
  if (quota <= 0 || period <= 0) return;
  double processors = (double)quota / (double)period;
  if (isnan(group->processors) || processors < group->processors) group->processors = processors;
}

/* A group and all that it lies in, up to the mounted one. */
static void read_upwards(const char *mount, const char *group_path, const Names *names,
                         void (*read)(const char *, const Names *, ControlGroup *), ControlGroup *group) {
  char directory[PATH_MAX];
  size_t mount_length = strlen(mount);
  snprintf(directory, sizeof directory, "%s%s", mount, group_path);
  if (access(directory, F_OK) != 0) snprintf(directory, sizeof directory, "%s", mount);
  for (;;) {
    read(directory, names, group);
    char *slash = strrchr(directory, '/');
    if (!slash || (size_t)(slash - directory) < mount_length) return;
    *slash = '\0';
  }
}

/* Whether a comma-separated list has the word. */
static bool has_word(const char *list, const char *word) {
  size_t length = strlen(word);
  for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
    if (strncmp(at, word, length) == 0 && (at[length] == '\0' || at[length] == ',')) return true;
  return false;
}

/* One line of /proc/self/cgroup: "number:controllers:path". */
static void read_line(const char *root, char *line, ControlGroup *group) {
  char mount[PATH_MAX];
  char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
  if (!path) return;
  *path++ = '\0';
  controllers++;
  path[strcspn(path, "\n")] = '\0';
  if (strcmp(path, "/") == 0) *path = '\0';
  if (*controllers == '\0') {
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
    if (group->version == 0) group->version = 2;
    read_upwards(mount, path, &names_v2, read_memory, group);
    read_upwards(mount, path, &names_v2, read_processors, group);
  }
  if (has_word(controllers, "memory")) {
    group->version = 1;
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/memory", root);
    read_upwards(mount, path, &names_v1, read_memory, group);
  }
  if (has_word(controllers, "cpu")) {
    group->version = 1;
    snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/cpu", root);
    read_upwards(mount, path, &names_v1, read_processors, group);
  }
}

void vl_control_group_read(const char *root, ControlGroup *group) {
  char line[PATH_MAX + 256];
  *group = (ControlGroup){.memory_limit_bytes = -1, .memory_free_bytes = -1, .processors = NAN};
  snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
  FILE *file = fopen(line, "r");
  while (file && fgets(line, sizeof line, file))
    read_line(root, line, group);
  if (file) fclose(file);
}
