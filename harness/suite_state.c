#include "harness/suite_state.h"
#include "harness/columns.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Processes ------------------------------------------------------------------------------------------------- */

typedef struct Stat {
  char state;
  int64_t parent, start_ticks;
} Stat;

/* The command's name, in parentheses, may have blanks and parentheses of its own. */
static bool read_stat(int64_t pid, Stat *stat) {
  char path[64], line[1024];
  snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
  FILE *file = fopen(path, "r");
  if (!file) return false;
  size_t length = fread(line, 1, sizeof line - 1, file);
  fclose(file);
  line[length] = '\0';
  const char *rest = strrchr(line, ')');
  long long parent, start;
  if (!rest ||
      sscanf(rest + 1, " %c %lld %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lld",
             &stat->state, &parent, &start) != 3)
    return false;
  stat->parent = parent;
  stat->start_ticks = start;
  return true;
}

static void read_boot(char boot[40]) {
  FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
  boot[0] = '\0';
  if (!file) return;
  if (fscanf(file, "%39s", boot) != 1) boot[0] = '\0';
  fclose(file);
}

ProcessId vl_process_self(void) {
  ProcessId process = {.pid = getpid(), .start_ticks = -1};
  Stat stat;
  if (read_stat(process.pid, &stat)) process.start_ticks = stat.start_ticks;
  read_boot(process.boot);
  return process;
}

bool vl_process_is_alive(const ProcessId *process) {
  Stat stat;
  char boot[40];
  read_boot(boot);
  if (*boot && *process->boot && strcmp(boot, process->boot) != 0) return false;
  return read_stat(process->pid, &stat) && stat.state != 'Z' && stat.state != 'X' &&
         stat.start_ticks == process->start_ticks;
}

/* VmRSS and VmHWM, in bytes. */
static void add_memory(int64_t pid, int64_t *now_bytes, int64_t *peak_bytes) {
  char path[64], line[256];
  long long kib;
  snprintf(path, sizeof path, "/proc/%lld/status", (long long)pid);
  FILE *file = fopen(path, "r");
  while (file && fgets(line, sizeof line, file)) {
    if (sscanf(line, "VmRSS: %lld kB", &kib) == 1)
      *now_bytes = (*now_bytes < 0 ? 0 : *now_bytes) + kib * 1024;
    if (sscanf(line, "VmHWM: %lld kB", &kib) == 1)
      *peak_bytes = (*peak_bytes < 0 ? 0 : *peak_bytes) + kib * 1024;
  }
  if (file) fclose(file);
}

static bool descends(int64_t pid, int64_t from) {
  Stat stat;
  for (int depth = 0; depth < 32 && pid > 1; depth++) {
    if (!read_stat(pid, &stat)) return false;
    if (stat.parent == from) return true;
    pid = stat.parent;
  }
  return false;
}

void vl_process_descendants_memory(int64_t pid, int64_t *now_bytes, int64_t *peak_bytes) {
  *now_bytes = *peak_bytes = -1;
  DIR *directory = opendir("/proc");
  if (!directory) return;
  for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
    int64_t its = isdigit((unsigned char)entry->d_name[0]) ? strtoll(entry->d_name, NULL, 10) : 0;
    if (its > 1 && descends(its, pid)) add_memory(its, now_bytes, peak_bytes);
  }
  closedir(directory);
}

/* ---- The file -------------------------------------------------------------------------------------------------- */

static const char file_name[] = "status.json";

static json_t *number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

void vl_suite_state_write(const char *directory, const SuiteState *state) {
  char path[PATH_MAX], temporary[PATH_MAX];
  if (!*directory || snprintf(path, sizeof path, "%s/%s", directory, file_name) >= (int)sizeof path - 8)
    return;
  snprintf(temporary, sizeof temporary, "%.*s.tmp", (int)sizeof temporary - 8, path);
  json_t *json =
      json_pack("{si ss ss ss sI sI ss sI sI sI sI sI ss si si so so sI ss}", "vramlab_status", 1, "suite",
                state->suite, "host", state->host, "end", state->end, "pid", (json_int_t)state->process.pid,
                "start_ticks", (json_int_t)state->process.start_ticks, "boot", state->process.boot, "total",
                (json_int_t)state->total, "done", (json_int_t)state->done, "failed",
                (json_int_t)state->failed, "skipped", (json_int_t)state->skipped, "already_there",
                (json_int_t)state->already_there, "label", state->label, "step", (int)state->step, "steps",
                (int)state->steps, "cell_s", number(state->cell_s), "left_s", number(state->left_s),
                "updated_ns", (json_int_t)state->updated_ns, "updated_utc", state->updated_utc);
  char *text = json ? json_dumps(json, JSON_REAL_PRECISION(17)) : NULL;
  json_decref(json);
  FILE *file = text ? fopen(temporary, "w") : NULL;
  if (file) {
    bool written = fprintf(file, "%s\n", text) > 0;
    written = fclose(file) == 0 && written;
    if (!written || rename(temporary, path) != 0) unlink(temporary);
  }
  free(text);
}

static void take_text(const json_t *json, const char *key, char *text, size_t size) {
  const char *value = json_string_value(json_object_get(json, key));
  snprintf(text, size, "%s", value ? value : "");
}

static int64_t take_whole(const json_t *json, const char *key) {
  const json_t *value = json_object_get(json, key);
  return json_is_integer(value) ? json_integer_value(value) : -1;
}

static double take_real(const json_t *json, const char *key) {
  const json_t *value = json_object_get(json, key);
  return json_is_number(value) ? json_number_value(value) : NAN;
}

Status vl_suite_state_read(const char *directory, SuiteState *state) {
  char path[PATH_MAX];
  json_error_t error;
  if (!vl_store_exists(directory))
    return vl_error(VL_INVALID, "%s: not a store (it has no journal.jsonl)", directory);
  if (snprintf(path, sizeof path, "%s/%s", directory, file_name) >= (int)sizeof path)
    return vl_error(VL_INVALID, "%s: too long a path", directory);
  if (access(path, F_OK) != 0)
    return vl_error(VL_INVALID,
                    "%s: no suite has told how far it is (%s is missing: single cells, or an older "
                    "version)",
                    directory, file_name);
  json_t *json = json_load_file(path, 0, &error);
  bool known = json_is_object(json) && take_whole(json, "vramlab_status") == 1 &&
               take_whole(json, "pid") > 0 && take_whole(json, "total") >= 0 && take_whole(json, "done") >= 0;
  if (!known) {
    json_decref(json);
    return vl_error(VL_INVALID, "%s: not understood; written by another version, or damaged", path);
  }
  *state = (SuiteState){.total = take_whole(json, "total"),
                        .done = take_whole(json, "done"),
                        .failed = take_whole(json, "failed"),
                        .skipped = take_whole(json, "skipped"),
                        .already_there = take_whole(json, "already_there"),
                        .step = (int32_t)take_whole(json, "step"),
                        .steps = (int32_t)take_whole(json, "steps"),
                        .cell_s = take_real(json, "cell_s"),
                        .left_s = take_real(json, "left_s"),
                        .updated_ns = take_whole(json, "updated_ns")};
  state->process.pid = take_whole(json, "pid");
  state->process.start_ticks = take_whole(json, "start_ticks");
  take_text(json, "boot", state->process.boot, sizeof state->process.boot);
  take_text(json, "suite", state->suite, sizeof state->suite);
  take_text(json, "host", state->host, sizeof state->host);
  take_text(json, "end", state->end, sizeof state->end);
  take_text(json, "updated_utc", state->updated_utc, sizeof state->updated_utc);
  take_text(json, "label", state->label, sizeof state->label);
  json_decref(json);
  return vl_ok();
}
