/* NVTX ranges, so that Nsight Systems shows a step by segment and layer. Without a tool they cost a look at a
 * pointer. */
#include "kernels/cuda/cuda.h"

#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>
#include <string.h>

struct CudaRanges {
  nvtxDomainHandle_t domain;
  const char *scope; /* of the open range; NULL: none is open */
  Segment segment;
};

/* Tools are loaded by NVTX where this names them, and know a graph as one thing only. */
bool cuda_ranges_are_watched(void) { return getenv("NVTX_INJECTION64_PATH") != NULL; }

static void push(const CudaRanges *ranges, const char *text) {
  nvtxEventAttributes_t attributes = {.version = NVTX_VERSION,
                                      .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                      .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                      .message.ascii = text};
  (void)nvtxDomainRangePushEx(ranges->domain, &attributes);
}

void cuda_ranges_end(CudaDevice *device) {
  CudaRanges *ranges = device->ranges;
  if (!ranges || !ranges->scope) return;
  (void)nvtxDomainRangePop(ranges->domain);
  (void)nvtxDomainRangePop(ranges->domain);
  ranges->scope = NULL;
}

void cuda_ranges_enter(CudaDevice *device, const Node *node) {
  const char *scope = node->scope && node->scope[0] ? node->scope : node->op->name;
  if (!device->ranges) {
    device->ranges = vl_allocate(sizeof *device->ranges);
    device->ranges->domain = nvtxDomainCreateA("vramlab");
  }
  CudaRanges *ranges = device->ranges;
  bool same_segment = ranges->scope && ranges->segment == node->segment;
  if (same_segment && strcmp(ranges->scope, scope) == 0) return;
  if (same_segment)
    (void)nvtxDomainRangePop(ranges->domain);
  else
    cuda_ranges_end(device);
  if (!same_segment) push(ranges, vl_segment_name(node->segment));
  push(ranges, scope);
  ranges->scope = scope;
  ranges->segment = node->segment;
}

void cuda_ranges_close(CudaDevice *device) {
  if (!device->ranges) return;
  cuda_ranges_end(device);
  nvtxDomainDestroy(device->ranges->domain);
  free(device->ranges);
  device->ranges = NULL;
}
