/* tests/kernels/cuda/host: a CUPTI for the host machine, built as libcupti.so.13 with the records of the real
 * header. The runtime of the host machine tells it what happens, when it is loaded. As the real one does, it
 * keeps records of memory and of kernels in buffers of the client's, hands them back full or at a flush, and
 * counts those it had no buffer for. */
#include <cuda.h>
#include <cupti.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct Buffer {
  uint8_t *memory; /* NULL: none */
  size_t size, used;
} Buffer;

static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static bool memory_enabled, kernels_enabled;
static Buffer memory_records, kernel_records;
static size_t lost;

/* What runtime.cpp calls. */
void host_cupti_memory(bool allocates, bool pinned, uint64_t address, uint64_t bytes, uint64_t time_ns);
void host_cupti_kernel(uint64_t start_ns, uint64_t end_ns);

static void hand_back(Buffer *buffer) {
  if (!buffer->memory) return;
  complete(NULL, 0, buffer->memory, buffer->size, buffer->used);
  *buffer = (Buffer){0};
}

static void append(Buffer *buffer, const void *record, size_t bytes) {
  if (buffer->memory && buffer->size - buffer->used < bytes) hand_back(buffer);
  if (!buffer->memory) {
    size_t most = 0;
    request(&buffer->memory, &buffer->size, &most);
  }
  if (!buffer->memory || buffer->size < bytes) {
    lost++;
    return;
  }
  memcpy(buffer->memory + buffer->used, record, bytes);
  buffer->used += bytes;
}

void host_cupti_memory(bool allocates, bool pinned, uint64_t address, uint64_t bytes, uint64_t time_ns) {
  if (!memory_enabled) return;
  CUpti_ActivityMemory4 record = {
      .kind = CUPTI_ACTIVITY_KIND_MEMORY2,
      .memoryOperationType = allocates ? CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION
                                       : CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE,
      .memoryKind = pinned ? CUPTI_ACTIVITY_MEMORY_KIND_PINNED : CUPTI_ACTIVITY_MEMORY_KIND_DEVICE,
      .address = address,
      .bytes = bytes,
      .timestamp = time_ns};
  append(&memory_records, &record, sizeof record);
}

void host_cupti_kernel(uint64_t start_ns, uint64_t end_ns) {
  if (!kernels_enabled) return;
  CUpti_ActivityKernel10 record;
  memset(&record, 0, sizeof record);
  record.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  record.start = start_ns;
  record.end = end_ns;
  append(&kernel_records, &record, sizeof record);
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
                                           CUpti_BuffersCallbackCompleteFunc completed) {
  request = requested;
  complete = completed;
  return requested && completed ? CUPTI_SUCCESS : CUPTI_ERROR_INVALID_PARAMETER;
}

static CUptiResult enable(CUpti_ActivityKind kind, bool on) {
  if (kind == CUPTI_ACTIVITY_KIND_MEMORY2)
    memory_enabled = on;
  else if (kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
    kernels_enabled = on;
  else
    return CUPTI_ERROR_INVALID_KIND;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  return getenv("VRAMLAB_HOST_CUPTI_IN_USE") ? CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
                                             : enable(kind, true);
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) { return enable(kind, false); }

/* Kernels first: whoever reads must not count on the order. */
CUptiResult cuptiActivityFlushAll(uint32_t flag) {
  (void)flag;
  hand_back(&kernel_records);
  hand_back(&memory_records);
  return CUPTI_SUCCESS;
}

static size_t record_bytes(const uint8_t *record) {
  CUpti_ActivityKind kind;
  memcpy(&kind, record, sizeof kind);
  return kind == CUPTI_ACTIVITY_KIND_MEMORY2 ? sizeof(CUpti_ActivityMemory4) : sizeof(CUpti_ActivityKernel10);
}
CUptiResult cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, CUpti_Activity **record) {
  uint8_t *next = *record ? (uint8_t *)*record + record_bytes((uint8_t *)*record) : buffer;
  if (next >= buffer + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = (CUpti_Activity *)(void *)next;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *dropped) {
  (void)context, (void)stream;
  *dropped = lost;
  lost = 0;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetResultString(CUptiResult result, const char **text) {
  *text = result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED ? "held by another" : "an error";
  return CUPTI_SUCCESS;
}
