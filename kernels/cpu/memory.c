/* Memory of the cpu device: committed mappings, and what the system says this process holds. */
#include "kernels/cpu/cpu.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Left to the system and to this process's own growth: below it the kernel starts to reclaim what others
 * need, and a refusal in numbers beats a kill. */
static const int64_t margin_bytes = INT64_C(256) << 20;
static const int64_t huge_page_bytes = INT64_C(2) << 20;

/* The number of a "Name:   1234 kB" or "name 1234" line of a file; -1 when there is none. */
static int64_t read_field(const char *path, const char *name) {
  FILE *file = fopen(path, "r");
  if (!file) return -1;
  char line[256];
  size_t length = strlen(name);
  int64_t number = -1;
  while (number < 0 && fgets(line, sizeof line, file))
    if (strncmp(line, name, length) == 0 && (line[length] == ':' || line[length] == ' ') &&
        sscanf(line + length + 1, "%" SCNd64, &number) != 1)
      number = -1;
  fclose(file);
  return number;
}

/* From a file under /proc. */
static int64_t read_kilobytes(const char *path, const char *name) {
  int64_t kilobytes = read_field(path, name);
  return kilobytes < 0 ? -1 : kilobytes * 1024;
}

static int64_t read_number(const char *path) {
  FILE *file = fopen(path, "r");
  if (!file) return -1;
  int64_t number = -1;
  if (fscanf(file, "%" SCNd64, &number) != 1) number = -1; /* "max": no limit */
  fclose(file);
  return number;
}

/* What the container holds less the pages of files, which the system drops when it needs them (the offload
 * tier's among them; those that wait to be written it writes first). */
static int64_t container_used_bytes(void) {
  int64_t used = read_number("/sys/fs/cgroup/memory.current");
  int64_t active = read_field("/sys/fs/cgroup/memory.stat", "active_file");
  int64_t inactive = read_field("/sys/fs/cgroup/memory.stat", "inactive_file");
  int64_t files = (active > 0 ? active : 0) + (inactive > 0 ? inactive : 0);
  return used > files ? used - files : used; /* the two are read at different moments */
}

/* What the machine, or the container's limit where that is nearer, still has. */
static int64_t available_bytes(const char **source) {
  int64_t available = read_kilobytes("/proc/meminfo", "MemAvailable");
  int64_t limit = read_number("/sys/fs/cgroup/memory.max");
  int64_t used = container_used_bytes();
  *source = "MemAvailable";
  if (limit >= 0 && used >= 0 && (available < 0 || limit - used < available)) {
    available = limit - used;
    *source = "the container's memory.max less what it holds";
  }
  return available;
}

static Status refuse(int64_t bytes, int64_t available, const char *source, const char *reason) {
  char wanted[32], have[32], margin[32];
  vl_format_bytes(bytes, wanted, sizeof wanted);
  vl_format_bytes(available, have, sizeof have);
  vl_format_bytes(margin_bytes, margin, sizeof margin);
  return vl_error(VL_OUT_OF_MEMORY, "cpu: %s asked for, %s has %s of which %s stay free: %s", wanted, source,
                  have, margin, reason);
}

/* Makes every page resident, in huge pages where the system gives them. */
static bool commit(char *start, size_t bytes) {
  (void)madvise(start, bytes, MADV_HUGEPAGE); /* a wish */
#ifdef MADV_POPULATE_WRITE
  if (madvise(start, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false; /* EINVAL: a kernel before 5.14 */
#endif
  size_t page = (size_t)sysconf(_SC_PAGE_SIZE);
  for (size_t i = 0; i < bytes; i += page)
    *(volatile char *)(start + i) = 0;
  return true;
}

static size_t whole_pages(int64_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGE_SIZE);
  return ((size_t)bytes + page - 1) / page * page;
}

/* A mapping that begins where a huge page can; NULL: the system refused. */
static char *map_aligned(size_t bytes, int protection, int flags) {
  size_t alignment = (size_t)huge_page_bytes;
  char *map = mmap(NULL, bytes + alignment, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (map == MAP_FAILED) return NULL;
  char *start = (char *)(((uintptr_t)map + alignment - 1) / alignment * alignment);
  if (start > map) munmap(map, (size_t)(start - map));
  if (start < map + alignment) munmap(start + bytes, (size_t)(map + alignment - start));
  return start;
}

static Status reserve(void *context, int64_t bytes, uintptr_t *address) {
  (void)context;
  const char *source;
  int64_t available = available_bytes(&source);
  if (available >= 0 && bytes > available - margin_bytes)
    return refuse(bytes, available, source, "too little");
  size_t size = whole_pages(bytes);
  char *start = map_aligned(size, PROT_READ | PROT_WRITE, 0);
  if (!start) return refuse(bytes, available, source, strerror(errno));
  if (!commit(start, size)) {
    int error = errno;
    munmap(start, size);
    return refuse(bytes, available, source, strerror(error));
  }
  *address = (uintptr_t)start;
  return vl_ok();
}

static void release(void *context, uintptr_t address, int64_t bytes) {
  (void)context;
  munmap((void *)address, whole_pages(bytes));
}

/* ---- Addresses without memory ----------------------------------------------------------------------------- */

static Status reserve_addresses(void *context, int64_t bytes, int64_t granule_bytes, uintptr_t *address) {
  (void)context;
  (void)granule_bytes; /* any page can come and go */
  char *start = map_aligned((size_t)bytes, PROT_NONE, MAP_NORESERVE);
  if (!start)
    return vl_error(VL_OUT_OF_MEMORY, "cpu: no %" PRId64 " bytes of addresses to commit memory in: %s", bytes,
                    strerror(errno));
  *address = (uintptr_t)start;
  return vl_ok();
}

static void release_addresses(void *context, uintptr_t address, int64_t bytes) {
  (void)context;
  munmap((void *)address, (size_t)bytes);
}

/* A mapping put over the old one takes its pages away. */
static void decommit_pages(void *context, uintptr_t address, int64_t bytes) {
  (void)context;
  (void)mmap((void *)address, (size_t)bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

static Status commit_pages(void *context, uintptr_t address, int64_t bytes) {
  const char *source;
  int64_t available = available_bytes(&source);
  if (available >= 0 && bytes > available - margin_bytes)
    return refuse(bytes, available, source, "too little");
  if (mprotect((void *)address, (size_t)bytes, PROT_READ | PROT_WRITE) == 0 &&
      commit((char *)address, (size_t)bytes))
    return vl_ok();
  int error = errno;
  decommit_pages(context, address, bytes);
  return refuse(bytes, available, source, strerror(error));
}

static Status move(void *context, uintptr_t to, uintptr_t from, int64_t bytes) {
  (void)context;
  memmove((void *)to, (const void *)from, (size_t)bytes);
  return vl_ok();
}

Backing cpu_backing(void) {
  return (Backing){.reserve = reserve,
                   .release = release,
                   .reserve_addresses = reserve_addresses,
                   .release_addresses = release_addresses,
                   .commit = commit_pages,
                   .decommit = decommit_pages,
                   .move = move};
}

int64_t cpu_resident_bytes(void) { return read_kilobytes("/proc/self/status", "VmRSS"); }

int64_t cpu_resident_peak_bytes(bool reset) {
  int64_t peak = read_kilobytes("/proc/self/status", "VmHWM");
  if (!reset) return peak;
  int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  if (file < 0) return -1;
  bool done = write(file, "5", 1) == 1;
  close(file);
  return done ? peak : -1;
}
