/* tests/kernels/cuda/host: a CUDA runtime whose device is this process. Streams are queues that run when
 * somebody waits for them, so that nothing may count on work being done when a call returns; a stream made
 * without blocking is not waited for by copies of the legacy stream; while a stream is captured, calls that
 * CUDA forbids fail as there. Device memory is the host's, holds NaN when new, and ends at a capacity.
 *
 * Set in the environment, for faults: VRAMLAB_HOST_CARD, words of
 *   driver=13000   the driver's version; 0: none is loaded; less than the runtime's: error 35
 *   cards=1        0: error 100
 *   sm=90          compute capability
 *   memory=BYTES   of the card (8 GiB)
 *   fail=N         the N-th allocation of the process is refused
 *   library=BYTES  taken with the first stream and held, as libraries do for themselves
 *   pools=1        0: no stream-ordered pools
 *   mig=0          1: it is an instance of a card, which its name tells
 *   captures=1     0: whatever is captured is invalidated */
#include "runtime.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <deque>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <vector>

using Work = std::function<void()>;

struct CUgraph_st {
  std::vector<Work> work;
};
struct CUgraphExec_st {
  std::vector<Work> work;
};
struct CUstream_st {
  std::deque<Work> queue;
  bool non_blocking = false;
  bool running = false;
  CUgraph_st *graph = nullptr; /* while captured */
  bool broken = false;         /* a forbidden call ended the capture */
};
struct CUevent_st {
  CUstream_st *stream = nullptr; /* last recorded on */
  uint64_t recorded = 0, done = 0;
  int64_t time_ns = 0;
  bool timing = true;
  CUgraph_st *graph = nullptr; /* recorded while captured */
};

/* Chunks of memory cut into ranges, which are in use or free. */
struct CUmemPoolHandle_st {
  struct Chunk {
    char *memory;
    size_t bytes;
    std::map<size_t, size_t> used; /* bytes by offset */
  };
  std::vector<Chunk> chunks;
  CUstream_st *stream = nullptr; /* of the last call */
  size_t returning = 0;          /* frees that have not run */
};

namespace {

constexpr size_t context_bytes = 300U << 20;

struct Allocation {
  size_t bytes;
};

struct Card {
  long driver = CUDART_VERSION, cards = 1, sm = 90, fail = 0, pools = 1, captures = 1, mig = 0;
  size_t memory = size_t{8} << 30, library = 0;
  size_t used = context_bytes;
  long allocations = 0;
};

Card card;
bool card_is_read;
std::map<uintptr_t, Allocation> device_memory, pinned_memory;
std::vector<CUstream_st *> streams;
CUstream_st legacy;
cudaError_t last_error = cudaSuccess;
std::recursive_mutex lock;

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void read_card() {
  if (card_is_read) return;
  card_is_read = true;
  const char *text = getenv("VRAMLAB_HOST_CARD");
  std::string words = text ? text : "";
  for (size_t at = 0; at < words.size();) {
    size_t end = words.find(' ', at);
    if (end == std::string::npos) end = words.size();
    std::string word = words.substr(at, end - at);
    size_t equal = word.find('=');
    long long value = equal == std::string::npos ? 0 : atoll(word.c_str() + equal + 1);
    std::string name = word.substr(0, equal);
    if (name == "driver")
      card.driver = (long)value;
    else if (name == "cards")
      card.cards = (long)value;
    else if (name == "sm")
      card.sm = (long)value;
    else if (name == "memory")
      card.memory = (size_t)value;
    else if (name == "fail")
      card.fail = (long)value;
    else if (name == "library")
      card.library = (size_t)value;
    else if (name == "captures")
      card.captures = (long)value;
    else if (name == "mig")
      card.mig = (long)value;
    else if (name == "pools")
      card.pools = (long)value;
    else if (!name.empty()) {
      fprintf(stderr, "VRAMLAB_HOST_CARD: unknown word '%s'\n", name.c_str());
      abort();
    }
    at = end + 1;
  }
}

/* What every call meets first. */
cudaError_t usable() {
  read_card();
  if (card.driver < CUDART_VERSION / 1000 * 1000) return cudaErrorInsufficientDriver;
  if (card.cards < 1) return cudaErrorNoDevice;
  return cudaSuccess;
}

CUstream_st *stream_of(cudaStream_t stream) {
  return stream == nullptr || stream == cudaStreamLegacy ? &legacy : stream;
}

void drain(CUstream_st *stream) {
  if (stream->running) return;
  stream->running = true;
  while (!stream->queue.empty()) {
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    work();
  }
  stream->running = false;
}

void drain_until(CUstream_st *stream, const CUevent_st *event, uint64_t number) {
  while (event->done < number && !stream->queue.empty()) {
    Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    work();
  }
}

void drain_all() {
  drain(&legacy);
  for (CUstream_st *stream : streams)
    drain(stream);
}

/* Calls that wait or allocate end a capture that is going on. */
bool forbidden() {
  bool any = false;
  for (CUstream_st *stream : streams)
    if (stream->graph) {
      stream->broken = true;
      any = true;
    }
  return any;
}

void queue(CUstream_st *stream, Work work) {
  if (stream->graph)
    stream->graph->work.push_back(std::move(work));
  else
    stream->queue.push_back(std::move(work));
}

bool is_pinned(const void *at) {
  auto next = pinned_memory.upper_bound(reinterpret_cast<uintptr_t>(at));
  if (next == pinned_memory.begin()) return false;
  --next;
  return reinterpret_cast<uintptr_t>(at) < next->first + next->second.bytes;
}

void *take(size_t bytes) {
  void *memory = nullptr;
  if (posix_memalign(&memory, 512, bytes ? bytes : 1) != 0) return nullptr;
  memset(memory, 0xFF, bytes);
  return memory;
}

bool is_refused(size_t bytes) {
  card.allocations++;
  return card.allocations == card.fail || card.used + bytes > card.memory;
}

} // namespace

/* ---- Tracing: cupti.c is told, once the program has loaded it ------------------------------------------------- */

namespace {

void (*tell_memory)(bool, bool, uint64_t, uint64_t, uint64_t);
void (*tell_kernel)(uint64_t, uint64_t);

uint64_t now_ns() {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

void trace_memory(bool allocates, bool pinned, const void *memory, size_t bytes) {
  void *library = tell_memory ? nullptr : dlopen("libcupti.so.13", RTLD_LAZY | RTLD_NOLOAD);
  if (library) {
    tell_memory = reinterpret_cast<decltype(tell_memory)>(dlsym(library, "host_cupti_memory"));
    tell_kernel = reinterpret_cast<decltype(tell_kernel)>(dlsym(library, "host_cupti_kernel"));
  }
  if (tell_memory) tell_memory(allocates, pinned, reinterpret_cast<uintptr_t>(memory), bytes, now_ns());
}

} // namespace

cudaError_t runtime_queue(cudaStream_t stream, std::function<void()> work) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  queue(stream_of(stream), [work = std::move(work)] {
    uint64_t start_ns = tell_kernel ? now_ns() : 0;
    work();
    if (tell_kernel) tell_kernel(start_ns, now_ns());
  });
  return cudaSuccess;
}

extern "C" {

/* ---- Cards and errors ---------------------------------------------------------------------------------------- */

cudaError_t cudaDriverGetVersion(int *version) {
  read_card();
  *version = (int)card.driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count) {
  *count = 0;
  cudaError_t error = usable();
  if (error == cudaSuccess) *count = (int)card.cards;
  return result(error);
}
cudaError_t cudaSetDevice(int device) {
  cudaError_t error = usable();
  return result(error == cudaSuccess && (device < 0 || device >= card.cards) ? cudaErrorInvalidDevice
                                                                             : error);
}
cudaError_t cudaGetDevice(int *device) {
  *device = 0;
  return result(usable());
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
  (void)device;
  memset(properties, 0, sizeof *properties);
  const cudaError_t error = usable();
  snprintf(properties->name, sizeof properties->name, "host machine, not a GPU%s", card.mig ? " MIG 1g.10gb" : "");
  properties->major = (int)(card.sm / 10);
  properties->minor = (int)(card.sm % 10);
  properties->multiProcessorCount = 4;
  properties->totalGlobalMem = card.memory;
  properties->sharedMemPerBlock = 48 * 1024;
  properties->sharedMemPerBlockOptin = (size_t)(card.sm >= 90 ? 227 : card.sm >= 80 ? 99 : 64) * 1024;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  return result(error);
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  (void)device;
  switch ((int)attribute) {
  case cudaDevAttrMultiProcessorCount: *value = 4; break;
  case cudaDevAttrMaxSharedMemoryPerBlockOptin:
    *value = (card.sm >= 90 ? 227 : card.sm >= 80 ? 99 : 64) * 1024;
    break;
  case cudaDevAttrMemoryPoolsSupported: *value = (int)card.pools; break;
  default: return result(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
  (void)device;
  snprintf(text, (size_t)size, "0000:01:00.0");
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  cudaError_t error = usable();
  *total_bytes = card.memory;
  *free_bytes = card.memory - card.used;
  return result(error);
}
cudaError_t cudaGetLastError(void) {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }
const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
  case cudaSuccess: return "cudaSuccess";
  case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
  case cudaErrorNoDevice: return "cudaErrorNoDevice";
  case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
  case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
  case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
  case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
  default: return "cudaError";
  }
}
const char *cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

cudaError_t cudaMalloc(void **memory, size_t bytes) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  cudaError_t error = usable();
  if (error != cudaSuccess) return result(error);
  if (forbidden()) return result(cudaErrorStreamCaptureUnsupported);
  *memory = is_refused(bytes) ? nullptr : take(bytes);
  if (!*memory) return result(cudaErrorMemoryAllocation);
  device_memory[reinterpret_cast<uintptr_t>(*memory)] = {bytes};
  card.used += bytes;
  trace_memory(true, false, *memory, bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void *memory) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  if (!memory) return result(usable());
  if (forbidden()) return result(cudaErrorStreamCaptureUnsupported);
  drain_all();
  auto found = device_memory.find(reinterpret_cast<uintptr_t>(memory));
  if (found == device_memory.end()) return result(cudaErrorInvalidValue);
  card.used -= found->second.bytes;
  trace_memory(false, false, memory, found->second.bytes);
  device_memory.erase(found);
  free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags) {
  (void)flags;
  std::lock_guard<std::recursive_mutex> hold(lock);
  cudaError_t error = usable();
  if (error != cudaSuccess) return result(error);
  if (forbidden()) return result(cudaErrorStreamCaptureUnsupported);
  *memory = take(bytes);
  if (!*memory) return result(cudaErrorMemoryAllocation);
  pinned_memory[reinterpret_cast<uintptr_t>(*memory)] = {bytes};
  trace_memory(true, true, *memory, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void *memory) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  if (!memory) return cudaSuccess;
  drain_all();
  if (pinned_memory.erase(reinterpret_cast<uintptr_t>(memory)) == 0) return result(cudaErrorInvalidValue);
  trace_memory(false, true, memory, 0);
  free(memory);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
  (void)flags;
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  (void)kind;
  std::lock_guard<std::recursive_mutex> hold(lock);
  if (forbidden()) return result(cudaErrorStreamCaptureImplicit);
  drain(&legacy);
  for (CUstream_st *stream : streams)
    if (!stream->non_blocking) drain(stream);
  memmove(to, from, bytes);
  return cudaSuccess;
}
/* Host memory that is not pinned is read at once, and what is written to it waits, as CUDA's staging does. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  CUstream_st *own = stream_of(stream);
  if (kind == cudaMemcpyHostToDevice && !is_pinned(from)) {
    auto copy = std::make_shared<std::vector<char>>(static_cast<const char *>(from),
                                                    static_cast<const char *>(from) + bytes);
    queue(own, [=] { memcpy(to, copy->data(), bytes); });
    return cudaSuccess;
  }
  queue(own, [=] { memmove(to, from, bytes); });
  if (kind == cudaMemcpyDeviceToHost && !is_pinned(to)) {
    if (own->graph) return result(cudaErrorStreamCaptureUnsupported);
    drain(own);
  }
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t stream) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  queue(stream_of(stream), [=] { memset(at, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemset(void *at, int value, size_t bytes) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  if (forbidden()) return result(cudaErrorStreamCaptureImplicit);
  drain(&legacy);
  memset(at, value, bytes);
  return cudaSuccess;
}

/* ---- Pools ------------------------------------------------------------------------------------------------------- */

namespace {

constexpr size_t pool_block = 512, pool_chunk = size_t{2} << 20;
std::vector<cudaMemPool_t> pools;

size_t round_up(size_t bytes, size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

/* The first gap that is wide enough; nullptr: none. */
char *take_from(CUmemPoolHandle_st::Chunk &chunk, size_t bytes) {
  size_t at = 0;
  for (const auto &[offset, used] : chunk.used) {
    if (offset - at >= bytes) break;
    at = offset + used;
  }
  if (chunk.bytes - at < bytes) return nullptr;
  chunk.used[at] = bytes;
  return chunk.memory + at;
}

void drop_unused_chunks(cudaMemPool_t pool) {
  for (size_t i = pool->chunks.size(); i-- > 0;) {
    if (!pool->chunks[i].used.empty()) continue;
    card.used -= pool->chunks[i].bytes;
    free(pool->chunks[i].memory);
    pool->chunks.erase(pool->chunks.begin() + (long)i);
  }
}

} // namespace

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  if (card.pools == 0) return result(cudaErrorNotSupported);
  if (properties->allocType != cudaMemAllocationTypePinned ||
      properties->location.type != cudaMemLocationTypeDevice)
    return result(cudaErrorInvalidValue);
  *pool = new CUmemPoolHandle_st;
  pools.push_back(*pool);
  return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  drain_all();
  for (size_t i = 0; i < pools.size(); i++)
    if (pools[i] == pool) pools.erase(pools.begin() + (long)i);
  drop_unused_chunks(pool);
  for (const auto &chunk : pool->chunks) {
    fprintf(stderr, "cudaMemPoolDestroy: %zu blocks are in use\n", chunk.used.size());
    abort();
  }
  delete pool;
  return cudaSuccess;
}
/* A pool that keeps all it has is the only one there is here. */
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  (void)pool;
  bool keeps_all =
      attribute == cudaMemPoolAttrReleaseThreshold && *static_cast<uint64_t *>(value) == UINT64_MAX;
  return keeps_all ? cudaSuccess : result(cudaErrorInvalidValue);
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  uint64_t reserved = 0;
  if (attribute != cudaMemPoolAttrReservedMemCurrent) return result(cudaErrorInvalidValue);
  for (const auto &chunk : pool->chunks)
    reserved += chunk.bytes;
  memcpy(value, &reserved, sizeof reserved);
  return cudaSuccess;
}
/* Memory whose freeing has not been seen by the host stays. */
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  if (bytes != 0) return result(cudaErrorInvalidValue);
  if (pool->returning == 0) drop_unused_chunks(pool);
  return cudaSuccess;
}
/* While a stream is captured CUDA makes a node of it, which nothing here wants. */
cudaError_t cudaMallocFromPoolAsync(void **memory, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  CUstream_st *own = stream_of(stream);
  *memory = nullptr;
  if (forbidden()) return result(cudaErrorStreamCaptureUnsupported);
  if (pool->stream && pool->stream != own) drain(pool->stream);
  pool->stream = own;
  bytes = round_up(bytes ? bytes : 1, pool_block);
  for (auto &chunk : pool->chunks)
    if ((*memory = take_from(chunk, bytes))) return cudaSuccess;
  size_t chunk_bytes = round_up(bytes, pool_chunk);
  char *made = is_refused(chunk_bytes) ? nullptr : static_cast<char *>(take(chunk_bytes));
  if (!made) return result(cudaErrorMemoryAllocation);
  card.used += chunk_bytes;
  pool->chunks.push_back({made, chunk_bytes, {{0, bytes}}});
  *memory = made;
  return cudaSuccess;
}
/* To be had again at once, by what comes later in the stream; what is read of it after the free is NaN. */
cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  CUstream_st *own = stream_of(stream);
  if (forbidden()) return result(cudaErrorStreamCaptureUnsupported);
  for (cudaMemPool_t pool : pools)
    for (auto &chunk : pool->chunks) {
      char *at = static_cast<char *>(memory);
      if (at < chunk.memory || at >= chunk.memory + chunk.bytes) continue;
      auto found = chunk.used.find((size_t)(at - chunk.memory));
      if (found == chunk.used.end()) return result(cudaErrorInvalidValue);
      size_t bytes = found->second;
      chunk.used.erase(found);
      pool->returning++;
      queue(own, [=] {
        memset(at, 0xFF, bytes);
        pool->returning--;
      });
      return cudaSuccess;
    }
  return result(cudaErrorInvalidValue);
}

/* ---- Streams and events ---------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  cudaError_t error = usable();
  if (error != cudaSuccess) return result(error);
  size_t library = card.library;
  void *held;
  card.library = 0;
  if (library > 0 && cudaMalloc(&held, library) != cudaSuccess) return last_error;
  *stream = new CUstream_st;
  (*stream)->non_blocking = flags == cudaStreamNonBlocking;
  streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  drain(stream);
  for (size_t i = 0; i < streams.size(); i++)
    if (streams[i] == stream) streams.erase(streams.begin() + (long)i);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  if (forbidden()) return result(cudaErrorStreamCaptureUnsupported);
  drain(stream_of(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  CUstream_st *own = stream_of(stream);
  if (own->queue.empty()) return cudaSuccess;
  Work work = std::move(own->queue.front());
  own->queue.pop_front();
  work();
  return cudaErrorNotReady;
}
cudaError_t cudaDeviceSynchronize(void) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  cudaError_t error = usable();
  if (error != cudaSuccess) return result(error);
  if (forbidden()) return result(cudaErrorStreamCaptureUnsupported);
  drain_all();
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  *event = new CUevent_st;
  (*event)->timing = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  drain_all(); /* a queued record writes to it */
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  CUstream_st *own = stream_of(stream);
  event->graph = own->graph;
  if (own->graph) return cudaSuccess;
  event->stream = own;
  uint64_t number = ++event->recorded;
  queue(own, [=] {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    event->time_ns = now.tv_sec * 1000000000LL + now.tv_nsec;
    event->done = number;
  });
  return cudaSuccess;
}
/* A graph's work is in the order of calls, which is one of those its edges allow. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  (void)flags;
  std::lock_guard<std::recursive_mutex> hold(lock);
  CUstream_st *own = stream_of(stream);
  if (event->graph) {
    own->graph = event->graph;
    return cudaSuccess;
  }
  if (own->graph) return result(cudaErrorStreamCaptureIsolation);
  uint64_t number = event->recorded;
  CUstream_st *other = event->stream;
  if (other && other != own) queue(own, [=] { drain_until(other, event, number); });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  if (event->stream) drain_until(event->stream, event, event->recorded);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event->done == event->recorded) return cudaSuccess;
  (void)cudaStreamQuery(event->stream);
  return cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
  if (!start->timing || !end->timing) return result(cudaErrorInvalidResourceHandle);
  if (start->done != start->recorded || end->done != end->recorded) return cudaErrorNotReady;
  *ms = (float)(end->time_ns - start->time_ns) * 1e-6F;
  return cudaSuccess;
}

/* ---- Graphs -------------------------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  (void)mode;
  std::lock_guard<std::recursive_mutex> hold(lock);
  if (stream_of(stream) == &legacy || stream->graph) return result(cudaErrorStreamCaptureUnsupported);
  stream->graph = new CUgraph_st;
  stream->broken = card.captures == 0;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  bool broken = stream->broken;
  CUgraph_st *captured = stream->graph;
  *graph = nullptr;
  if (!captured) return result(cudaErrorIllegalState);
  for (CUstream_st *each : streams)
    if (each->graph == captured) each->graph = nullptr;
  if (broken) {
    delete captured;
    return result(cudaErrorStreamCaptureInvalidated);
  }
  *graph = captured;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
  (void)flags;
  *executable = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  for (const Work &work : executable->work)
    queue(stream_of(stream), work);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  drain_all();
  delete executable;
  return cudaSuccess;
}

/* ---- The driver's virtual memory ------------------------------------------------------------------------------------------ */

struct Chunk {
  int file;
  size_t bytes;
};

static CUresult host_address_reserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
                                     unsigned long long flags) {
  (void)alignment;
  (void)hint;
  (void)flags;
  void *memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = (CUdeviceptr)memory;
  return CUDA_SUCCESS;
}
static CUresult host_address_free(CUdeviceptr address, size_t bytes) {
  return munmap((void *)address, bytes) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult host_create(CUmemGenericAllocationHandle *handle, size_t bytes,
                            const CUmemAllocationProp *properties, unsigned long long flags) {
  (void)flags;
  std::lock_guard<std::recursive_mutex> hold(lock);
  if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED || bytes % (2U << 20) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (is_refused(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  Chunk *chunk = new Chunk{memfd_create("granule", 0), bytes};
  if (chunk->file < 0 || ftruncate(chunk->file, (off_t)bytes) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  card.used += bytes;
  *handle = (CUmemGenericAllocationHandle)chunk;
  return CUDA_SUCCESS;
}
static CUresult host_release(CUmemGenericAllocationHandle handle) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  Chunk *chunk = reinterpret_cast<Chunk *>(handle);
  close(chunk->file);
  card.used -= chunk->bytes;
  delete chunk;
  return CUDA_SUCCESS;
}
/* Mapped memory may not be touched before access to it is set. */
static CUresult host_map(CUdeviceptr address, size_t bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags) {
  (void)flags;
  const Chunk *chunk = reinterpret_cast<Chunk *>(handle);
  void *memory = mmap((void *)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, chunk->file, (off_t)offset);
  return memory == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
static CUresult host_unmap(CUdeviceptr address, size_t bytes) {
  std::lock_guard<std::recursive_mutex> hold(lock);
  for (CUstream_st *stream : streams)
    if (!stream->queue.empty()) {
      fprintf(stderr, "host machine: memory was unmapped while work is queued\n");
      abort();
    }
  void *memory =
      mmap((void *)address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return memory == MAP_FAILED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
static CUresult host_set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                                size_t count) {
  if (count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_INVALID_VALUE;
  return mprotect((void *)address, bytes, PROT_READ | PROT_WRITE) == 0 ? CUDA_SUCCESS
                                                                       : CUDA_ERROR_INVALID_VALUE;
}
static CUresult host_context_device(CUdevice *device) {
  *device = 0;
  return CUDA_SUCCESS;
}
static CUresult host_attribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  (void)device;
  *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found) {
  (void)version;
  (void)flags;
  static const struct {
    const char *name;
    void *function;
  } functions[] = {
      {"cuMemAddressReserve", reinterpret_cast<void *>(host_address_reserve)},
      {"cuMemAddressFree", reinterpret_cast<void *>(host_address_free)},
      {"cuMemCreate", reinterpret_cast<void *>(host_create)},
      {"cuMemRelease", reinterpret_cast<void *>(host_release)},
      {"cuMemMap", reinterpret_cast<void *>(host_map)},
      {"cuMemUnmap", reinterpret_cast<void *>(host_unmap)},
      {"cuMemSetAccess", reinterpret_cast<void *>(host_set_access)},
      {"cuCtxGetDevice", reinterpret_cast<void *>(host_context_device)},
      {"cuDeviceGetAttribute", reinterpret_cast<void *>(host_attribute)},
  };
  *function = nullptr;
  for (const auto &each : functions)
    if (strcmp(each.name, name) == 0) *function = each.function;
  if (found) *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

} // extern "C"
