/* One writer at a time: a lock on the journal, and beside it a note of who holds it, for whoever comes
 * second. The lock goes with its process; a note that a kill left behind says nothing. */
#include "harness/columns.h"
#include "harness/h5.h"
#include "harness/store.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static const char writer_name[] = "writer.json";

/* What process a number of this machine is, as it was typed; "" when it is not known. */
static void command_of(int64_t pid, char *text, size_t size) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%lld/cmdline", (long long)pid);
  text[0] = '\0';
  FILE *file = fopen(path, "r");
  if (!file) return;
  size_t length = fread(text, 1, size - 1, file);
  fclose(file);
  while (length > 0 && text[length - 1] == '\0')
    length--;
  for (size_t i = 0; i < length; i++)
    if (text[i] == '\0') text[i] = ' ';
  text[length] = '\0';
}

/* ": process 17 on host since ... (command)"; "" when nobody left a note. */
static void describe_writer(const Store *store, char *text, size_t size) {
  char path[PATH_MAX], host[256], command[160] = "";
  snprintf(path, sizeof path, "%.*s/%s", PATH_MAX - 32, store->directory, writer_name);
  json_t *note = json_load_file(path, 0, NULL);
  const char *its_host = json_string_value(json_object_get(note, "hostname"));
  const char *since = json_string_value(json_object_get(note, "since_utc"));
  int64_t pid = json_integer_value(json_object_get(note, "pid"));
  text[0] = '\0';
  vl_host_name(host, sizeof host);
  if (its_host && strcmp(its_host, host) == 0) command_of(pid, command, sizeof command);
  if (its_host && since)
    snprintf(text, size, ": process %lld on %s since %s%s%s%s", (long long)pid, its_host, since,
             *command ? " (" : "", command, *command ? ")" : "");
  json_decref(note);
}

static void leave_note(const Store *store) {
  char path[PATH_MAX], host[256], since[32];
  vl_host_name(host, sizeof host);
  vl_utc_text(since, sizeof since);
  json_t *note = json_pack("{sI so ss}", "pid", (json_int_t)getpid(), "hostname", vl_json_text(host),
                           "since_utc", since);
  char *text = json_dumps(note, JSON_COMPACT);
  json_decref(note);
  snprintf(path, sizeof path, "%.*s/%s", PATH_MAX - 32, store->directory, writer_name);
  /* For people only: a store that has no room for it works without. */
  Status status = vl_replace_file(path, text, strlen(text));
  (void)status;
  free(text);
}

/* "results.h5.17.tmp" of a process that is no more. */
static bool is_left_behind(const char *name) {
  const char *end = strrchr(name, '.');
  if (!end || strcmp(end, ".tmp") != 0) return false;
  const char *digits = end;
  while (digits > name && digits[-1] >= '0' && digits[-1] <= '9')
    digits--;
  if (digits == end || digits == name || digits[-1] != '.') return false;
  return kill((pid_t)strtol(digits, NULL, 10), 0) != 0 && errno == ESRCH;
}

/* Files that a kill left unfinished under their temporary names. */
static void remove_left_behind(const char *directory) {
  DIR *listing = opendir(directory);
  if (!listing) return;
  for (struct dirent *entry; (entry = readdir(listing));)
    if (is_left_behind(entry->d_name)) unlinkat(dirfd(listing), entry->d_name, 0);
  closedir(listing);
}

Status vl_store_lock(Store *store) {
  char writer[640], cells[PATH_MAX];
  if (flock(store->journal, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      describe_writer(store, writer, sizeof writer);
      return vl_error(VL_ENVIRONMENT, "%s: another process is writing to it%s", store->directory, writer);
    }
    fprintf(stderr, "vramlab: %s: this file system has no locks (%s); let nobody else write there\n",
            store->directory, strerror(errno));
  }
  remove_left_behind(store->directory);
  snprintf(cells, sizeof cells, "%.*s/cells", PATH_MAX - 32, store->directory);
  remove_left_behind(cells);
  leave_note(store);
  store->locked = true;
  return vl_ok();
}

void vl_store_unlock(Store *store) {
  char path[PATH_MAX];
  if (!store->locked) return;
  snprintf(path, sizeof path, "%.*s/%s", PATH_MAX - 32, store->directory, writer_name);
  unlink(path);
  store->locked = false;
}
