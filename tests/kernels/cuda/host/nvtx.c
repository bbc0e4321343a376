/* tests/kernels/cuda/host: a tool that NVTX loads where NVTX_INJECTION64_PATH names it, as Nsight Systems'
 * is. Writes a line to the file VRAMLAB_HOST_NVTX for every range: how many lie around it, its domain and its
 * name; "-" where a range ends that never began. */
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>

static FILE *lines;
static int depth;

static nvtxDomainHandle_t create_domain(const char *name) {
  return (nvtxDomainHandle_t)(void *)(uintptr_t)name;
}

static void destroy_domain(nvtxDomainHandle_t domain) {
  (void)domain;
  fprintf(lines, "%d end\n", depth);
  fflush(lines);
}

static int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes) {
  fprintf(lines, "%d %s %s\n", depth, (const char *)(void *)domain, attributes->message.ascii);
  return depth++;
}

static int pop(nvtxDomainHandle_t domain) {
  (void)domain;
  if (depth == 0) fprintf(lines, "-\n");
  return --depth;
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t table) {
  const NvtxExportTableCallbacks *callbacks = table(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable functions = NULL;
  unsigned size = 0;
  const char *path = getenv("VRAMLAB_HOST_NVTX");
  if (!path || !callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &functions, &size))
    return 0;
  lines = fopen(path, "a");
  if (!lines || size <= NVTX_CBID_CORE2_DomainDestroy) return 0;
  *functions[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create_domain;
  *functions[NVTX_CBID_CORE2_DomainDestroy] = (NvtxFunctionPointer)destroy_domain;
  *functions[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
  *functions[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
  return 1;
}
