#include "harness/baseline.h"
#include "harness/columns.h"
#include "harness/report_select.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BASELINE_VERSION = 1 };
static const char usual_directory[] = "results/baselines";

static void append_word(char *key, size_t size, const char *word) {
  size_t used = strlen(key);
  if (used > 0 && used + 1 < size) key[used++] = '-', key[used] = '\0';
  for (bool gap = false; *word && used + 2 < size; word++) {
    bool plain = isalnum((unsigned char)*word) || *word == '.';
    if (plain && gap && used > 0 && key[used - 1] != '-') key[used++] = '-';
    if (plain) key[used++] = (char)tolower((unsigned char)*word);
    gap = !plain;
    key[used] = '\0';
  }
}

void vl_baseline_key(const json_t *record, char *key, size_t size) {
  char number[64];
  const char *profile = vl_record_text(record, "profile"), *hardware = vl_record_text(record, "hardware");
  const char *mig = vl_record_text(record, "mig_profile");
  int64_t bytes = vl_record_integer(record, "memory_bytes"), threads = vl_record_integer(record, "threads");
  int64_t watts = vl_record_integer(record, "power_limit_w");
  key[0] = '\0';
  if (vl_record_is_predicted(record)) append_word(key, size, "plan");
  if (vl_record_is_predicted(record) && profile && *profile) {
    append_word(key, size, profile);
    return;
  }
  append_word(key, size, hardware ? hardware : "unknown");
  snprintf(number, sizeof number, "%" PRId64 "gib", (bytes + (INT64_C(1) << 29)) >> 30);
  if (bytes > 0) append_word(key, size, number);
  if (mig && *mig && !(hardware && strstr(hardware, mig))) append_word(key, size, mig);
  snprintf(number, sizeof number, "%" PRId64 "w", watts);
  if (watts > 0) append_word(key, size, number);
  snprintf(number, sizeof number, "%" PRId64 "-threads", threads);
  if (threads > 0) append_word(key, size, number);
}

static Status path_of(const char *directory, const char *key, char path[1024]) {
  if (snprintf(path, 1024, "%s/%s.jsonl", directory ? directory : usual_directory, key) < 1024)
    return vl_ok();
  return vl_error(VL_INVALID, "%s: path too long", directory);
}

/* ---- Reading --------------------------------------------------------------------------------------------------- */

static Status check_head(const char *path, const json_t *head) {
  json_int_t version = json_integer_value(json_object_get(head, "vramlab_baseline"));
  if (version == BASELINE_VERSION && json_is_array(json_object_get(head, "reasons"))) return vl_ok();
  if (version > BASELINE_VERSION)
    return vl_error(VL_INVALID, "%s:1: a baseline of version %lld; this program reads up to %d", path,
                    (long long)version, BASELINE_VERSION);
  return vl_error(VL_INVALID, "%s:1: not the first line of a baseline", path);
}

/* head and records are new; NULL when there is no such file. */
static Status read_file(const char *path, json_t **head, json_t **records) {
  *head = *records = NULL;
  FILE *file = fopen(path, "r");
  if (!file && errno == ENOENT) return vl_ok();
  if (!file) return vl_error(VL_ENVIRONMENT, "%s: %s", path, strerror(errno));
  char *line = NULL;
  size_t capacity = 0;
  Status status = vl_ok();
  json_t *list = json_array();
  for (int64_t number = 1; status.code == VL_OK && getline(&line, &capacity, file) >= 0; number++) {
    json_error_t error;
    json_t *json = json_loads(line, 0, &error);
    if (!json_is_object(json)) {
      status =
          vl_error(VL_INVALID, "%s:%lld: %s", path, (long long)number, json ? "not an object" : error.text);
      json_decref(json);
    } else if (number == 1) {
      *head = json;
      status = check_head(path, json);
    } else {
      json_array_append_new(list, json);
    }
  }
  if (status.code == VL_OK && !*head) status = vl_error(VL_INVALID, "%s: empty", path);
  free(line);
  fclose(file);
  if (status.code == VL_OK) {
    *records = list;
    return status;
  }
  json_decref(list);
  json_decref(*head);
  *head = NULL;
  return status;
}

/* The different keys of records, in order. */
static json_t *keys_of(const RecordSet *records) {
  json_t *keys = json_object();
  for (int32_t i = 0; i < records->count; i++) {
    char key[256];
    vl_baseline_key(records->records[i], key, sizeof key);
    json_object_set_new(keys, key, json_true());
  }
  return keys;
}

static Status load_one(const char *directory, const char *key, Baseline *baseline) {
  char path[1024];
  json_t *head, *records;
  VL_TRY(path_of(directory, key, path));
  VL_TRY(read_file(path, &head, &records));
  if (!records) return vl_ok();
  if (!*baseline->path) {
    const json_t *reasons = json_object_get(head, "reasons");
    const json_t *last = json_array_get(reasons, json_array_size(reasons) - 1);
    const char *reason = json_string_value(json_object_get(last, "reason"));
    const char *when = json_string_value(json_object_get(last, "updated_utc"));
    snprintf(baseline->path, sizeof baseline->path, "%s", path);
    snprintf(baseline->reason, sizeof baseline->reason, "%.30s, %.200s", when ? when : "?",
             reason ? reason : "?");
  }
  json_array_extend(baseline->owned, records);
  json_decref(records);
  json_decref(head);
  return vl_ok();
}

Status vl_baseline_load(const char *directory, const RecordSet *records, Baseline *baseline) {
  *baseline = (Baseline){.owned = json_array()};
  json_t *keys = keys_of(records), *value;
  const char *key, *first = NULL;
  json_object_foreach(keys, key, value) {
    Status status = load_one(directory, key, baseline);
    if (status.code != VL_OK) {
      json_decref(keys);
      return status;
    }
    if (!first) first = key;
  }
  size_t count = json_array_size(baseline->owned);
  Status status = vl_ok();
  if (count == 0)
    status = vl_error(
        VL_ENVIRONMENT,
        "no baseline of this machine (%s/%s.jsonl); make one: vramlab baseline update STORE --reason TEXT",
        directory ? directory : usual_directory, first ? first : "KEY");
  json_decref(keys);
  VL_TRY(status);
  baseline->records.records = vl_allocate(count * sizeof *baseline->records.records);
  for (size_t i = 0; i < count; i++)
    baseline->records.records[baseline->records.count++] = json_array_get(baseline->owned, i);
  return vl_ok();
}

void vl_baseline_free(Baseline *baseline) {
  free(baseline->records.records);
  json_decref(baseline->owned);
  *baseline = (Baseline){.owned = NULL};
}

/* ---- Writing --------------------------------------------------------------------------------------------------- */

/* Without what is not known, and without lists but the times and losses of steps. */
static json_t *shorten(const json_t *record) {
  json_t *kept = json_object(), *value;
  const char *name;
  json_object_foreach((json_t *)record, name, value) {
    bool of_steps = strcmp(name, "step_times_s") == 0 || strcmp(name, "losses") == 0;
    if (json_is_null(value) || (json_is_array(value) && !of_steps) || strcmp(name, "null_reasons") == 0)
      continue;
    json_object_set(kept, name, value);
  }
  return kept;
}

/* In the place of the record of the same cell and repetition, or at the end. */
static void put(json_t *records, const json_t *record) {
  json_t *kept = shorten(record);
  for (size_t i = 0; i < json_array_size(records); i++)
    if (vl_record_same_text(json_array_get(records, i), record, "cell_key")) {
      json_array_set_new(records, i, kept);
      return;
    }
  json_array_append_new(records, kept);
}

static void note_reason(json_t *head, const char *reason) {
  char now[32];
  time_t seconds = time(NULL);
  struct tm utc;
  gmtime_r(&seconds, &utc);
  strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", &utc);
  json_array_append_new(json_object_get(head, "reasons"),
                        json_pack("{ss so ss}", "updated_utc", now, "reason", vl_json_text(reason),
                                  "git_commit", vl_build_facts().git_commit));
}

/* Whole or not at all. */
static Status write_file(const char *path, const json_t *head, const json_t *records) {
  char temporary[1100];
  snprintf(temporary, sizeof temporary, "%s.tmp", path);
  FILE *file = fopen(temporary, "w");
  if (!file) return vl_error(VL_ENVIRONMENT, "%s: %s", temporary, strerror(errno));
  char *line = vl_record_format(head);
  fprintf(file, "%s\n", line);
  free(line);
  for (size_t i = 0; i < json_array_size(records); i++) {
    line = vl_record_format(json_array_get(records, i));
    fprintf(file, "%s\n", line);
    free(line);
  }
  bool failed = fflush(file) != 0 || fsync(fileno(file)) != 0;
  int error = errno;
  failed = fclose(file) != 0 || failed;
  if (!failed && rename(temporary, path) == 0) return vl_ok();
  if (!failed) error = errno;
  (void)unlink(temporary);
  return vl_error(VL_ENVIRONMENT, "%s: %s", path, strerror(error));
}

static Status update_one(const char *directory, const char *key, const RecordSet *records, const char *reason,
                         FILE *out) {
  char path[1024];
  json_t *head, *kept;
  VL_TRY(path_of(directory, key, path));
  VL_TRY(read_file(path, &head, &kept));
  if (!head) {
    head = json_pack("{si ss s[]}", "vramlab_baseline", BASELINE_VERSION, "key", key, "reasons");
    kept = json_array();
  }
  int32_t count = 0;
  for (int32_t i = 0; i < records->count; i++) {
    char its[256];
    vl_baseline_key(records->records[i], its, sizeof its);
    if (strcmp(its, key) != 0) continue;
    put(kept, records->records[i]);
    count++;
  }
  note_reason(head, reason);
  Status status = write_file(path, head, kept);
  if (status.code == VL_OK)
    fprintf(out, "%s: %" PRId32 " of %zu records\n", path, count, json_array_size(kept));
  json_decref(head);
  json_decref(kept);
  return status;
}

static Status make_directory(const char *directory) {
  const char *path = directory ? directory : usual_directory;
  if (mkdir(path, 0777) == 0 || errno == EEXIST) return vl_ok();
  return vl_error(VL_ENVIRONMENT, "cannot make %s: %s", path, strerror(errno));
}

Status vl_baseline_update(const char *directory, const RecordSet *records, const char *reason, FILE *out) {
  for (int32_t i = 0; i < records->count; i++)
    if (vl_record_text(records->records[i], "injected"))
      return vl_error(VL_INVALID, "cell %s has an injected fault (%s): it is no baseline",
                      vl_record_text(records->records[i], "cell_key"),
                      vl_record_text(records->records[i], "injected"));
  VL_TRY(make_directory(directory));
  json_t *keys = keys_of(records), *value;
  const char *key;
  Status status = vl_ok();
  json_object_foreach(keys, key, value) if (status.code == VL_OK) status =
      update_one(directory, key, records, reason, out);
  json_decref(keys);
  return status;
}
