/* CUPTI's activity records of memory and kernels. A runtime may come without CUPTI's headers: the few types
 * used are declared here as its documentation has them, records up to the last member that is read, as later
 * versions only add members. tests/kernels/cuda/host/cupti.c holds them against the real header. */
#include "kernels/cuda/cupti.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef int CuptiResult; /* 0: success */

enum { ACTIVITY_KERNEL = 10, ACTIVITY_MEMORY = 49 }; /* CONCURRENT_KERNEL and MEMORY2 */
enum { OPERATION_ALLOCATION = 1, OPERATION_RELEASE = 2, MEMORY_DEVICE = 3 };

typedef struct ActivityMemory {
  int32_t kind, operation, memory_kind;
  uint32_t correlation;
  uint64_t address, bytes, time_ns;
} ActivityMemory;

typedef struct ActivityKernel {
  int32_t kind;
  uint8_t cache, shared_memory;
  uint16_t registers;
  int32_t cache_requested, cache_executed;
  uint64_t start_ns, end_ns;
} ActivityKernel;

typedef void (*BufferRequested)(uint8_t **buffer, size_t *size, size_t *most_records);
typedef void (*BufferCompleted)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

/* An allocation or release; records come in the order of buffers, not of time. */
typedef struct TracedMemory {
  uint64_t time_ns, address;
  int64_t bytes, order;
  bool allocates;
} TracedMemory;

typedef struct LiveMemory {
  uint64_t address;
  int64_t bytes;
} LiveMemory;

/* CUPTI is the process's and its callbacks have no context: so is this. */
static struct {
  CuptiResult (*callbacks)(BufferRequested, BufferCompleted);
  CuptiResult (*enable)(int kind);
  CuptiResult (*disable)(int kind);
  CuptiResult (*flush)(uint32_t flags);
  CuptiResult (*next)(uint8_t *buffer, size_t valid, void **record);
  CuptiResult (*dropped)(void *context, uint32_t stream, size_t *count);
  CuptiResult (*text)(CuptiResult result, const char **text);
} cupti;

static struct {
  pthread_mutex_t lock; /* buffers come back on a thread of CUPTI's */
  bool open;
  TracedMemory *events; /* since the last read */
  int64_t event_count, event_capacity;
  LiveMemory *live;
  int64_t live_count, live_capacity;
  DeviceCrossCheck seen;
} tracing = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- The library ------------------------------------------------------------------------------------------ */

/* Never closed: it has hooks in the driver that outlive any device. */
static Status load(void) {
  void *library = dlopen("libcupti.so.13", RTLD_NOW | RTLD_LOCAL);
  if (!library) library = dlopen("libcupti.so", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return vl_error(VL_ENVIRONMENT,
                    "--cross-check needs CUPTI: %s; it comes with the CUDA toolkit, mostly in "
                    "extras/CUPTI/lib64: name its folder in LD_LIBRARY_PATH",
                    dlerror());
  const struct {
    const char *name;
    void *function;
  } symbols[] = {
      {"cuptiActivityRegisterCallbacks", &cupti.callbacks},
      {"cuptiActivityEnable", &cupti.enable},
      {"cuptiActivityDisable", &cupti.disable},
      {"cuptiActivityFlushAll", &cupti.flush},
      {"cuptiActivityGetNextRecord", &cupti.next},
      {"cuptiActivityGetNumDroppedRecords", &cupti.dropped},
      {"cuptiGetResultString", &cupti.text},
  };
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    void *symbol = dlsym(library, symbols[i].name);
    if (!symbol) return vl_error(VL_ENVIRONMENT, "--cross-check: this libcupti has no %s", symbols[i].name);
    memcpy(symbols[i].function, &symbol, sizeof symbol); /* ISO C knows no cast from object to function */
  }
  return vl_ok();
}

static Status check(CuptiResult result, const char *call) {
  const char *text = NULL;
  if (result == 0) return vl_ok();
  if (cupti.text(result, &text) != 0 || !text) text = "unknown";
  return vl_error(VL_ENVIRONMENT, "--cross-check: %s gave %d (%s); another profiler may hold CUPTI", call,
                  result, text);
}

/* ---- Records ---------------------------------------------------------------------------------------------- */

enum { BUFFER_BYTES = 1 << 20, RECORD_ALIGNMENT = 8 };

static void buffer_requested(uint8_t **buffer, size_t *size, size_t *most_records) {
  *buffer = aligned_alloc(RECORD_ALIGNMENT, BUFFER_BYTES); /* NULL: records are dropped, and counted */
  *size = *buffer ? BUFFER_BYTES : 0;
  *most_records = 0; /* as many as it holds */
}

static void take_memory(const ActivityMemory *record) {
  if (record->memory_kind != MEMORY_DEVICE) return;
  if (tracing.event_count == tracing.event_capacity) {
    tracing.event_capacity = tracing.event_capacity ? 2 * tracing.event_capacity : 1024;
    tracing.events = vl_reallocate(tracing.events, (size_t)tracing.event_capacity * sizeof *tracing.events);
  }
  tracing.events[tracing.event_count] =
      (TracedMemory){.time_ns = record->time_ns,
                     .address = record->address,
                     .bytes = (int64_t)record->bytes,
                     .order = tracing.event_count,
                     .allocates = record->operation == OPERATION_ALLOCATION};
  tracing.event_count += record->operation == OPERATION_ALLOCATION || record->operation == OPERATION_RELEASE;
}

static void take_kernel(const ActivityKernel *record) {
  tracing.seen.kernels++;
  if (record->end_ns > record->start_ns)
    tracing.seen.kernel_ns += (int64_t)(record->end_ns - record->start_ns);
}

static void buffer_completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
  (void)size;
  void *record = NULL;
  size_t dropped = 0;
  pthread_mutex_lock(&tracing.lock);
  while (tracing.open && cupti.next(buffer, valid, &record) == 0) {
    int32_t kind;
    memcpy(&kind, record, sizeof kind);
    if (kind == ACTIVITY_MEMORY) take_memory(record);
    if (kind == ACTIVITY_KERNEL) take_kernel(record);
  }
  if (cupti.dropped(context, stream, &dropped) == 0) tracing.seen.dropped += (int64_t)dropped;
  pthread_mutex_unlock(&tracing.lock);
  free(buffer);
}

/* ---- Bytes over time -------------------------------------------------------------------------------------- */

static int compare_events(const void *left, const void *right) {
  const TracedMemory *a = left, *b = right;
  if (a->time_ns != b->time_ns) return a->time_ns < b->time_ns ? -1 : 1;
  return (a->order > b->order) - (a->order < b->order);
}

static void add_live(const TracedMemory *event) {
  if (tracing.live_count == tracing.live_capacity) {
    tracing.live_capacity = tracing.live_capacity ? 2 * tracing.live_capacity : 64;
    tracing.live = vl_reallocate(tracing.live, (size_t)tracing.live_capacity * sizeof *tracing.live);
  }
  tracing.live[tracing.live_count++] = (LiveMemory){event->address, event->bytes};
  tracing.seen.allocations++;
  tracing.seen.live_bytes += event->bytes;
  if (tracing.seen.live_bytes > tracing.seen.peak_bytes) tracing.seen.peak_bytes = tracing.seen.live_bytes;
}

/* What was allocated before tracing began is not known, and neither is its release. The newest first: what
 * lives shortly is released most often. */
static void drop_live(const TracedMemory *event) {
  for (int64_t i = tracing.live_count - 1; i >= 0; i--) {
    if (tracing.live[i].address != event->address) continue;
    tracing.seen.live_bytes -= tracing.live[i].bytes;
    tracing.live[i] = tracing.live[--tracing.live_count];
    return;
  }
}

static void follow_events(void) {
  if (tracing.event_count > 0)
    qsort(tracing.events, (size_t)tracing.event_count, sizeof *tracing.events, compare_events);
  for (int64_t i = 0; i < tracing.event_count; i++) {
    if (tracing.events[i].allocates)
      add_live(&tracing.events[i]);
    else
      drop_live(&tracing.events[i]);
  }
  tracing.event_count = 0;
}

/* ---- Open, read, close ------------------------------------------------------------------------------------- */

Status cuda_cupti_open(void) {
  if (tracing.open)
    return vl_error(VL_ENVIRONMENT, "--cross-check: a device of this process is traced already");
  VL_TRY(load());
  memset(&tracing.seen, 0, sizeof tracing.seen);
  tracing.open = true;
  Status status =
      check(cupti.callbacks(buffer_requested, buffer_completed), "cuptiActivityRegisterCallbacks");
  if (status.code == VL_OK) status = check(cupti.enable(ACTIVITY_MEMORY), "cuptiActivityEnable of memory");
  if (status.code == VL_OK) status = check(cupti.enable(ACTIVITY_KERNEL), "cuptiActivityEnable of kernels");
  if (status.code != VL_OK) cuda_cupti_close();
  return status;
}

Status cuda_cupti_read(DeviceCrossCheck *result) {
  VL_TRY(check(cupti.flush(0), "cuptiActivityFlushAll"));
  pthread_mutex_lock(&tracing.lock);
  follow_events();
  *result = tracing.seen;
  pthread_mutex_unlock(&tracing.lock);
  return vl_ok();
}

void cuda_cupti_close(void) {
  (void)cupti.disable(ACTIVITY_KERNEL);
  (void)cupti.disable(ACTIVITY_MEMORY);
  (void)cupti.flush(1); /* incomplete ones too: nothing is to come back later */
  pthread_mutex_lock(&tracing.lock);
  tracing.open = false;
  free(tracing.events);
  free(tracing.live);
  tracing.events = NULL;
  tracing.live = NULL;
  tracing.event_count = tracing.event_capacity = tracing.live_count = tracing.live_capacity = 0;
  pthread_mutex_unlock(&tracing.lock);
}
