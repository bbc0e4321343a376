/* The store's journal: one line a finished cell, on disk before the next cell starts. Its first line is the
 * head. What a kill can leave is a last line without its end, which readers leave out and writers cut off. */
#include "harness/store.h"
#include "harness/columns.h"
#include "harness/h5.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char journal_name[] = "journal.jsonl";
static const char results_name[] = "results.h5";

/* ---- Places ------------------------------------------------------------------------------------------------ */

static Status join(const char *directory, const char *name, char path[PATH_MAX]) {
  if (snprintf(path, PATH_MAX, "%s/%s", directory, name) >= PATH_MAX)
    return vl_error(VL_INVALID, "path too long (%zu characters): %.80s...", strlen(directory), directory);
  return vl_ok();
}

Status vl_make_directories(const char *directory) {
  char path[PATH_MAX];
  if (snprintf(path, sizeof path, "%s", directory) >= (int)sizeof path)
    return vl_error(VL_INVALID, "path too long (%zu characters): %.80s...", strlen(directory), directory);
  for (char *slash = strchr(path + 1, '/');; slash = strchr(slash + 1, '/')) {
    if (slash) *slash = '\0';
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
      return vl_error(VL_ENVIRONMENT, "cannot make %.400s: %s", path, strerror(errno));
    if (slash) {
      *slash = '/';
      continue;
    }
    struct stat facts;
    if (stat(path, &facts) == 0 && !S_ISDIR(facts.st_mode))
      return vl_error(VL_ENVIRONMENT, "%.400s is a file, not a directory", path);
    return vl_ok();
  }
}

/* Nothing in it but what a writer that was killed before its first line leaves. */
static bool is_empty_directory(const char *directory) {
  DIR *listing = opendir(directory);
  if (!listing) return false;
  bool empty = true;
  for (struct dirent *entry; (entry = readdir(listing));) {
    const char *name = entry->d_name, *end = strrchr(name, '.');
    bool ours = strncmp(name, journal_name, strlen(journal_name)) == 0 && end && strcmp(end, ".tmp") == 0;
    empty =
        empty && (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, "cells") == 0 || ours);
  }
  closedir(listing);
  return empty;
}

static Store *new_store(void) {
  Store *store = vl_allocate(sizeof *store);
  store->journal = -1;
  store->records = json_array();
  store->index = json_object();
  return store;
}

/* ---- Reading the journal --------------------------------------------------------------------------------------- */

Status vl_store_remember(Store *store, const json_t *record) {
  const char *key = json_string_value(json_object_get(record, "cell_key"));
  if (!key || !*key) return vl_error(VL_INVALID, "a record without \"cell_key\"");
  json_t *copy = json_deep_copy(record);
  vl_record_complete(copy);
  const json_t *place = json_object_get(store->index, key);
  if (place) {
    json_array_set_new(store->records, (size_t)json_integer_value(place), copy);
  } else {
    json_object_set_new(store->index, key, json_integer((json_int_t)json_array_size(store->records)));
    json_array_append_new(store->records, copy);
  }
  return vl_ok();
}

Status vl_store_take_head(Store *store, json_t *head, const char *path) {
  const json_t *version = json_object_get(head, "vramlab_journal");
  if (!json_is_integer(version)) return vl_error(VL_INVALID, "%s: not a vramlab journal", path);
  if (json_integer_value(version) > VL_SCHEMA_VERSION)
    return vl_error(VL_INVALID, "%s: written by a newer vramlab (schema %lld, this one reads up to %d)", path,
                    (long long)json_integer_value(version), VL_SCHEMA_VERSION);
  store->head = json_incref(head);
  return vl_ok();
}

static Status take_line(Store *store, const char *text, size_t length, int64_t number, const char *path) {
  json_error_t problem;
  json_t *line = json_loadb(text, length, JSON_REJECT_DUPLICATES, &problem);
  Status status;
  if (number == 1)
    status = vl_store_take_head(store, line, path);
  else if (json_is_object(line))
    status = vl_store_remember(store, line);
  else
    status = vl_error(VL_INVALID, "%s", line ? "not an object" : problem.text);
  json_decref(line);
  if (status.code == VL_OK || number == 1) return status;
  return vl_error(
      VL_INVALID,
      "%s:%lld: damaged line (%.120s); delete it to read the others, and its cell runs again with "
      "the suite",
      path, (long long)number, status.message);
}

/* NULL, with the status, when it cannot be read; free() it. */
static char *read_text(const char *path, size_t *size, Status *status) {
  FILE *file = fopen(path, "rb");
  *size = 0;
  *status = file ? vl_ok() : vl_error(VL_INVALID, "%s: %s", path, strerror(errno));
  if (!file) return NULL;
  size_t room = (size_t)1 << 16;
  char *text = vl_allocate(room);
  for (size_t got; (got = fread(text + *size, 1, room - *size, file)) > 0;) {
    *size += got;
    if (*size == room) text = vl_reallocate(text, room *= 2);
  }
  bool failed = ferror(file);
  fclose(file);
  if (!failed) return text;
  *status = vl_error(VL_ENVIRONMENT, "%s: cannot be read", path);
  free(text);
  return NULL;
}

static Status read_journal(Store *store) {
  char path[PATH_MAX];
  size_t size;
  Status status;
  VL_TRY(join(store->directory, journal_name, path));
  char *text = read_text(path, &size, &status);
  if (!text) return status;
  size_t start = 0;
  for (int64_t number = 1; status.code == VL_OK; number++) {
    const char *end = memchr(text + start, '\n', size - start);
    if (!end) break;
    size_t length = (size_t)(end - (text + start));
    status = take_line(store, text + start, length, number, path);
    start += length + 1;
  }
  if (status.code == VL_OK && !store->head)
    status = vl_error(VL_INVALID, "%s: %s", path, size ? "not a vramlab journal" : "empty");
  if (status.code == VL_OK && start < size)
    fprintf(stderr,
            "vramlab: %s: left out an unfinished last line of %zu bytes; %lld finished cells are intact\n",
            path, size - start, (long long)vl_store_count(store));
  store->journal_bytes = (int64_t)start;
  free(text);
  return status;
}

/* ---- Opening --------------------------------------------------------------------------------------------------- */

/* A directory, or a file that lies in one: its directory when a journal is there too. */
static Status find_directory(Store *store, const char *path) {
  struct stat facts;
  char journal[PATH_MAX];
  if (stat(path, &facts) != 0)
    return vl_error(VL_INVALID, "no results at %.300s: %s; `vramlab run` makes some", path, strerror(errno));
  if (S_ISDIR(facts.st_mode)) {
    snprintf(store->directory, sizeof store->directory, "%s", path);
  } else {
    const char *slash = strrchr(path, '/');
    snprintf(store->directory, sizeof store->directory, "%.*s", slash ? (int)(slash - path) : 1,
             slash ? path : ".");
    snprintf(store->results, sizeof store->results, "%s", path);
    VL_TRY(join(store->directory, journal_name, journal));
    const char *name = slash ? slash + 1 : path;
    bool ours = strcmp(name, results_name) == 0 || strcmp(name, journal_name) == 0;
    if (!ours || access(journal, F_OK) != 0) store->directory[0] = '\0';
    if (!*store->directory) return vl_ok();
  }
  VL_TRY(join(store->directory, journal_name, journal));
  if (access(journal, F_OK) != 0)
    return vl_error(VL_INVALID, "%s: not a result directory (no %s)", path, journal_name);
  return join(store->directory, results_name, store->results);
}

static Status open_into(Store *store, const char *path) {
  VL_TRY(find_directory(store, path));
  if (!*store->directory) return vl_results_read(store);
  VL_TRY(read_journal(store));
  Status rebuilt = vl_store_rebuild(store);
  /* The journal has everything; whoever opens results.h5 with other tools should know that it lags. */
  if (rebuilt.code != VL_OK)
    fprintf(stderr, "vramlab: %s is not up to date: %s\n", store->results, rebuilt.message);
  return vl_ok();
}

Status vl_store_open(const char *path, Store **store) {
  Store *opened = new_store();
  bool latest = !path || strcmp(path, "latest") == 0;
  Status status = open_into(opened, latest ? "vramlab-results/latest" : path);
  if (status.code != VL_OK) vl_store_close(&opened);
  *store = opened;
  return status;
}

/* Opens the journal for appending. */
static Status open_journal(Store *store) {
  char path[PATH_MAX];
  VL_TRY(join(store->directory, journal_name, path));
  store->journal = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
  if (store->journal < 0) return vl_error(VL_ENVIRONMENT, "%s: %s", path, strerror(errno));
  return vl_store_lock(store);
}

static Status open_append_into(Store *store, const char *directory) {
  snprintf(store->directory, sizeof store->directory, "%s", directory);
  VL_TRY(join(directory, results_name, store->results));
  VL_TRY(open_journal(store));
  VL_TRY(read_journal(store));
  if (ftruncate(store->journal, store->journal_bytes) != 0)
    return vl_error(VL_ENVIRONMENT, "%s: cannot cut off the unfinished line: %s", directory, strerror(errno));
  return vl_ok();
}

bool vl_store_exists(const char *directory) {
  char journal[PATH_MAX];
  Status status = join(directory, journal_name, journal);
  return status.code == VL_OK && access(journal, F_OK) == 0;
}

Status vl_store_open_append(const char *directory, Store **store) {
  Store *opened = new_store();
  Status status = open_append_into(opened, directory);
  if (status.code != VL_OK) vl_store_close(&opened);
  *store = opened;
  return status;
}

static json_t *make_head(const char *suite, const char *command_line) {
  char created[32], host[256];
  vl_utc_text(created, sizeof created);
  vl_host_name(host, sizeof host);
  BuildFacts facts = vl_build_facts();
  return json_pack("{si so so ss so ss ss sb}", "vramlab_journal", VL_SCHEMA_VERSION, "suite",
                   vl_json_text(suite), "command_line", vl_json_text(command_line ? command_line : ""),
                   "created_utc", created, "hostname", vl_json_text(host), "tool_version", facts.version,
                   "git_commit", facts.git_commit, "git_dirty", facts.git_dirty);
}

static Status create_into(Store *store, const char *directory, const char *suite, const char *command_line) {
  char journal[PATH_MAX];
  VL_TRY(vl_make_directories(directory));
  if (!is_empty_directory(directory))
    return vl_error(VL_INVALID, "%s: not empty, and not a result directory to go on with", directory);
  snprintf(store->directory, sizeof store->directory, "%s", directory);
  VL_TRY(join(directory, results_name, store->results));
  VL_TRY(join(directory, journal_name, journal));
  store->head = make_head(suite, command_line);
  char *line = vl_record_format(store->head);
  size_t length = strlen(line);
  line[length] = '\n';
  Status status = vl_create_file(journal, line, length + 1);
  free(line);
  store->journal_bytes = (int64_t)length + 1;
  VL_TRY(status);
  return open_journal(store);
}

Status vl_store_create(const char *directory, const char *suite, const char *command_line, Store **store) {
  Store *created = new_store();
  Status status = create_into(created, directory, suite, command_line);
  if (status.code != VL_OK) vl_store_close(&created);
  *store = created;
  return status;
}

Status vl_store_begin(const char *directory, const char *suite, const char *command_line, Store **store) {
  if (!vl_store_exists(directory)) {
    Status status = vl_store_create(directory, suite, command_line, store);
    if (status.code == VL_OK || !vl_store_exists(directory)) return status; /* else another was quicker */
  }
  return vl_store_open_append(directory, store);
}

void vl_store_close(Store **store) {
  if (!*store) return;
  vl_store_unlock(*store);
  if ((*store)->journal >= 0) close((*store)->journal);
  json_decref((*store)->head);
  json_decref((*store)->records);
  json_decref((*store)->index);
  free(*store);
  *store = NULL;
}

/* ---- Adding and asking ------------------------------------------------------------------------------------------ */

/* Appends and syncs; a line that could not be written whole is taken back. */
static Status append_line(Store *store, const char *line, size_t length) {
  for (size_t done = 0; done < length;) {
    ssize_t written = write(store->journal, line + done, length - done);
    if (written < 0 && errno == EINTR) continue;
    if (written >= 0) {
      done += (size_t)written;
      continue;
    }
    int problem = errno;
    bool cut = ftruncate(store->journal, store->journal_bytes) == 0;
    return vl_error(VL_ENVIRONMENT, "%s: cannot write the journal: %s; %lld finished cells are intact%s",
                    store->directory, strerror(problem), (long long)vl_store_count(store),
                    cut ? "" : ", and an unfinished line that readers leave out");
  }
  if (fdatasync(store->journal) != 0)
    return vl_error(VL_ENVIRONMENT, "%s: the journal is not on disk: %s", store->directory, strerror(errno));
  store->journal_bytes += (int64_t)length;
  return vl_ok();
}

static Status timeline_path(const Store *store, const char *key, char path[PATH_MAX]) {
  char name[64];
  if (strlen(key) > 40 || strspn(key, "0123456789abcdefghijklmnopqrstuvwxyz-_") != strlen(key))
    return vl_error(VL_INVALID, "\"%s\" is not a cell key", key);
  snprintf(name, sizeof name, "cells/%s.h5", key);
  return join(store->directory, name, path);
}

Status vl_store_append(Store *store, const json_t *record, const TimelineEvent *timeline,
                       int64_t timeline_count) {
  return vl_store_append_step(store, record, timeline, timeline_count, NULL, 0);
}

Status vl_store_append_step(Store *store, const json_t *record, const TimelineEvent *timeline,
                            int64_t timeline_count, const OpRecord *ops, int64_t op_count) {
  const char *key = json_string_value(json_object_get(record, "cell_key"));
  if (!key) return vl_error(VL_INVALID, "a record without \"cell_key\"");
  if (store->journal < 0) return vl_error(VL_INVALID, "%s was opened for reading", store->directory);
  if (timeline_count > 0) {
    char path[PATH_MAX], cells[PATH_MAX];
    VL_TRY(join(store->directory, "cells", cells));
    VL_TRY(vl_make_directories(cells));
    VL_TRY(timeline_path(store, key, path));
    VL_TRY(vl_timeline_write(path, timeline, timeline_count, ops, op_count));
  }
  char *line = vl_record_format(record);
  if (!line) return vl_error(VL_INVALID, "a record that is not valid JSON");
  size_t length = strlen(line);
  line[length] = '\n';
  Status status = append_line(store, line, length + 1);
  free(line);
  VL_TRY(status);
  return vl_store_remember(store, record);
}

int64_t vl_store_count(const Store *store) { return (int64_t)json_array_size(store->records); }

const json_t *vl_store_record(const Store *store, int64_t i) {
  return json_array_get(store->records, (size_t)i);
}

const json_t *vl_store_find(const Store *store, const char *key) {
  const json_t *place = json_object_get(store->index, key);
  return place ? json_array_get(store->records, (size_t)json_integer_value(place)) : NULL;
}

const json_t *vl_store_head(const Store *store) { return store->head; }

const char *vl_store_path(const Store *store) { return store->directory; }

Status vl_store_timeline(const Store *store, const char *key, TimelineEvent **events, int64_t *count) {
  char path[PATH_MAX];
  *events = NULL;
  *count = 0;
  if (!*store->directory) return vl_timeline_read(store->results, key, events, count);
  VL_TRY(timeline_path(store, key, path));
  return access(path, F_OK) == 0 ? vl_timeline_read(path, NULL, events, count) : vl_ok();
}

Status vl_store_ops(const Store *store, const char *key, OpRecord **ops, int64_t *count) {
  char path[PATH_MAX];
  *ops = NULL;
  *count = 0;
  if (!*store->directory) return vl_ops_read(store->results, key, ops, count);
  VL_TRY(timeline_path(store, key, path));
  return access(path, F_OK) == 0 ? vl_ops_read(path, NULL, ops, count) : vl_ok();
}

Status vl_store_rebuild(Store *store) {
  if (!*store->directory || vl_results_current(store)) return vl_ok();
  return vl_results_write(store);
}
