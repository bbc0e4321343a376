/* The offload tier of the cpu device: a file that has no name, so that its bytes go with the process however
 * that ends, and one thread that copies to and from it in order. Bytes read and written are in the system's
 * page cache as far as there is room; they are not this process's memory, and the system may drop them once
 * they are on the disk. */
#include "kernels/cpu/cpu.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Copy {
  struct Copy *next;
  bool out;
  char *memory;
  off_t offset;
  size_t bytes;
} Copy;

struct CpuOffload {
  int file;
  char directory[256];
  off_t end; /* of what was reserved so far */
  Backing backing;
  pthread_t thread;
  pthread_mutex_t mutex; /* of all that follows */
  pthread_cond_t queued, ended;
  Copy *first, *last;
  uint64_t queued_count, ended_count; /* copies ever: an event is its copy's number, from 1 */
  bool stop;
  Status failure; /* of the first copy that failed */
  int64_t stall_ns;
};

/* Address 0 is an absent tensor's. */
static const uintptr_t first_address = (uintptr_t)1 << 21;

/* ---- Bytes of the file ---------------------------------------------------------------------------------- */

static bool is_full(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

static void release(void *context, uintptr_t address, int64_t bytes) {
  CpuOffload *offload = context;
  /* Without holes in files (an old file system) they stay until the end. */
  int result = fallocate(offload->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                         (off_t)(address - first_address), (off_t)bytes);
  (void)result;
}

static Status reserve(void *context, int64_t bytes, uintptr_t *address) {
  CpuOffload *offload = context;
  char wanted[32];
  *address = first_address + (uintptr_t)offload->end;
  int error = posix_fallocate(offload->file, offload->end, (off_t)bytes);
  if (error == 0) {
    offload->end += (off_t)bytes;
    return vl_ok();
  }
  release(context, *address, bytes); /* the part that was there */
  vl_format_bytes(bytes, wanted, sizeof wanted);
  return vl_error(is_full(error) ? VL_OUT_OF_MEMORY : VL_ENVIRONMENT, "%s asked for in a file of %s: %s",
                  wanted, offload->directory, strerror(error));
}

/* ---- Copies ----------------------------------------------------------------------------------------------- */

static Status move(const CpuOffload *offload, const Copy *copy) {
  for (size_t done = 0; done < copy->bytes;) {
    off_t at = copy->offset + (off_t)done;
    ssize_t moved = copy->out ? pwrite(offload->file, copy->memory + done, copy->bytes - done, at)
                              : pread(offload->file, copy->memory + done, copy->bytes - done, at);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0)
      return vl_error(moved < 0 && is_full(errno) ? VL_OUT_OF_MEMORY : VL_ENVIRONMENT,
                      "offload tier: a file of %s cannot be %s: %s", offload->directory,
                      copy->out ? "written" : "read", moved < 0 ? strerror(errno) : "it has become shorter");
    done += (size_t)moved;
  }
  return vl_ok();
}

/* The next copy, once there is one; NULL when none will come. The mutex is held. */
static Copy *take(CpuOffload *offload) {
  while (!offload->first && !offload->stop)
    pthread_cond_wait(&offload->queued, &offload->mutex);
  Copy *copy = offload->first;
  if (copy) offload->first = copy->next;
  if (!offload->first) offload->last = NULL;
  return copy;
}

static void *copy_all(void *context) {
  CpuOffload *offload = context;
  pthread_mutex_lock(&offload->mutex);
  for (Copy *copy = take(offload); copy; copy = take(offload)) {
    bool failed = offload->failure.code != VL_OK;
    pthread_mutex_unlock(&offload->mutex);
    Status status = failed ? vl_ok() : move(offload, copy); /* after a failure what is read means nothing */
    free(copy);
    pthread_mutex_lock(&offload->mutex);
    if (status.code != VL_OK) offload->failure = status;
    offload->ended_count++;
    pthread_cond_broadcast(&offload->ended);
  }
  pthread_mutex_unlock(&offload->mutex);
  return NULL;
}

uint64_t cpu_offload_copy(CpuOffload *offload, bool out, uintptr_t address, uintptr_t tier_address,
                          int64_t bytes) {
  Copy *copy = vl_allocate(sizeof *copy);
  copy->out = out;
  copy->memory = (char *)address;
  copy->offset = (off_t)(tier_address - first_address);
  copy->bytes = (size_t)bytes;
  pthread_mutex_lock(&offload->mutex);
  if (offload->last)
    offload->last->next = copy;
  else
    offload->first = copy;
  offload->last = copy;
  uint64_t event = ++offload->queued_count;
  pthread_cond_signal(&offload->queued);
  pthread_mutex_unlock(&offload->mutex);
  return event;
}

Status cpu_offload_wait(CpuOffload *offload, uint64_t event) {
  pthread_mutex_lock(&offload->mutex);
  if (offload->ended_count < event) {
    int64_t start_ns = vl_monotonic_ns();
    while (offload->ended_count < event)
      pthread_cond_wait(&offload->ended, &offload->mutex);
    offload->stall_ns += vl_monotonic_ns() - start_ns;
  }
  Status status = offload->failure;
  pthread_mutex_unlock(&offload->mutex);
  return status;
}

/* A failure is told once: what comes later starts anew. */
Status cpu_offload_drain(CpuOffload *offload) {
  pthread_mutex_lock(&offload->mutex);
  while (offload->ended_count < offload->queued_count)
    pthread_cond_wait(&offload->ended, &offload->mutex);
  Status status = offload->failure;
  offload->failure = vl_ok();
  pthread_mutex_unlock(&offload->mutex);
  return status;
}

int64_t cpu_offload_stall_ns(CpuOffload *offload) {
  pthread_mutex_lock(&offload->mutex);
  int64_t stall_ns = offload->stall_ns;
  offload->stall_ns = 0;
  pthread_mutex_unlock(&offload->mutex);
  return stall_ns;
}

const Backing *cpu_offload_backing(CpuOffload *offload) { return &offload->backing; }

/* ---- Opening ------------------------------------------------------------------------------------------------- */

static const char *default_directory(void) {
  const char *chosen = getenv("TMPDIR");
  return chosen && *chosen ? chosen : "/tmp";
}

/* A file without a name, or, where the file system knows none, one whose name is removed at once. */
static int open_file(const char *directory) {
  char path[320];
  int file = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
  snprintf(path, sizeof path, "%s/vramlab-offload-XXXXXX", directory);
  file = mkostemp(path, O_CLOEXEC);
  if (file >= 0) unlink(path);
  return file;
}

Status cpu_offload_open(const char *directory, CpuOffload **out) {
  if (!directory) directory = default_directory();
  CpuOffload *offload = vl_allocate(sizeof *offload);
  if (strlen(directory) >= sizeof offload->directory) {
    free(offload);
    return vl_error(VL_INVALID, "offload tier: the folder's name is longer than %zu characters",
                    sizeof offload->directory - 1);
  }
  snprintf(offload->directory, sizeof offload->directory, "%s", directory);
  offload->file = open_file(directory);
  if (offload->file < 0) {
    Status status = vl_error(VL_ENVIRONMENT,
                             "offload tier: no file can be written in %s: %s; --offload-dir or TMPDIR names "
                             "another folder",
                             directory, strerror(errno));
    free(offload);
    return status;
  }
  offload->backing = (Backing){.context = offload, .reserve = reserve, .release = release};
  pthread_mutex_init(&offload->mutex, NULL);
  pthread_cond_init(&offload->queued, NULL);
  pthread_cond_init(&offload->ended, NULL);
  int error = pthread_create(&offload->thread, NULL, copy_all, offload);
  if (error != 0) {
    close(offload->file);
    free(offload);
    return vl_error(VL_ENVIRONMENT, "offload tier: no thread to copy: %s", strerror(error));
  }
  *out = offload;
  return vl_ok();
}

void cpu_offload_close(CpuOffload **offload) {
  CpuOffload *it = *offload;
  if (!it) return;
  pthread_mutex_lock(&it->mutex);
  it->stop = true;
  pthread_cond_signal(&it->queued);
  pthread_mutex_unlock(&it->mutex);
  pthread_join(it->thread, NULL);
  pthread_cond_destroy(&it->ended);
  pthread_cond_destroy(&it->queued);
  pthread_mutex_destroy(&it->mutex);
  close(it->file);
  free(it);
  *offload = NULL;
}
