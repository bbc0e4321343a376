/* The handles of cuDNN and cuBLASLt, what these libraries answered, and their errors as Status. */
#include "kernels/cuda/cuda.h"

#include <cublasLt.h>
#include <cudnn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A problem and what was chosen for it: key_bytes of the one, then of the other. */
typedef struct Choice {
  uint64_t hash;
  size_t key_bytes;
  unsigned char *bytes;
} Choice;

struct CudaLibraries {
  cudnnHandle_t cudnn;
  cublasLtHandle_t cublaslt;
  Choice *choices; /* tens in a model */
  int32_t choice_count, choice_capacity;
};

static CudaLibraries *libraries_of(CudaDevice *device) {
  if (!device->libraries) device->libraries = vl_allocate(sizeof *device->libraries);
  return device->libraries;
}

/* ---- Errors and versions ------------------------------------------------------------------------------------ */

static Status library_error(StatusCode code, const char *call, const Node *node, int status,
                            const char *text) {
  if (!node) return vl_error(code, "cuda: %s gave code %d: %s", call, status, text);
  return vl_error(code, "cuda: %s for %s in %s gave code %d: %s", call, node->op->name,
                  node->scope && node->scope[0] ? node->scope : "no scope", status, text);
}

static StatusCode code_of_cudnn(int status) {
  if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED) return VL_UNSUPPORTED;
  bool no_memory = status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                   status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
  return no_memory ? VL_OUT_OF_MEMORY : VL_INTERNAL;
}

Status cuda_cudnn_status(int status, const char *call, const Node *node) {
  if (status == CUDNN_STATUS_SUCCESS) return vl_ok();
  return library_error(code_of_cudnn(status), call, node, status, cudnnGetErrorString((cudnnStatus_t)status));
}

static StatusCode code_of_cublaslt(int status) {
  switch (status) {
  case CUBLAS_STATUS_NOT_SUPPORTED:
  case CUBLAS_STATUS_ARCH_MISMATCH: return VL_UNSUPPORTED;
  case CUBLAS_STATUS_ALLOC_FAILED: return VL_OUT_OF_MEMORY;
  default: return VL_INTERNAL;
  }
}

Status cuda_cublaslt_status(int status, const char *call, const Node *node) {
  if (status == CUBLAS_STATUS_SUCCESS) return vl_ok();
  return library_error(code_of_cublaslt(status), call, node, status,
                       cublasLtGetStatusString((cublasStatus_t)status));
}

/* Both count versions as 10000 major + 100 minor + patch. */
void cuda_libraries_describe(char *text, size_t size) {
  int cudnn = (int)cudnnGetVersion(), cublaslt = (int)cublasLtGetVersion();
  snprintf(text, size, "cuDNN %d.%d.%d, cuBLASLt %d.%d.%d", cudnn / 10000, cudnn / 100 % 100, cudnn % 100,
           cublaslt / 10000, cublaslt / 100 % 100, cublaslt % 100);
}

/* ---- Handles -------------------------------------------------------------------------------------------------- */

/* That no handle can be made is the machine's fault unless memory ran out: a part of the library is missing,
 * or the driver does not fit it. */
static Status opening_error(Status status) {
  char versions[64];
  if (status.code == VL_OK || status.code == VL_OUT_OF_MEMORY) return status;
  cuda_libraries_describe(versions, sizeof versions);
  return vl_error(VL_ENVIRONMENT,
                  "%s (%s; all of the library's files must be found by the loader, and be of this version)",
                  status.message, versions);
}

Status cuda_cudnn(CudaDevice *device, struct cudnnContext **handle) {
  CudaLibraries *libraries = libraries_of(device);
  if (!libraries->cudnn) {
    cudnnHandle_t made = NULL;
    VL_TRY(opening_error(cuda_cudnn_status(cudnnCreate(&made), "cudnnCreate", NULL)));
    libraries->cudnn = made;
    VL_TRY(cuda_cudnn_status(cudnnSetStream(made, device->stream), "cudnnSetStream", NULL));
  }
  *handle = libraries->cudnn;
  return vl_ok();
}

Status cuda_cublaslt(CudaDevice *device, struct cublasLtContext **handle) {
  CudaLibraries *libraries = libraries_of(device);
  if (!libraries->cublaslt)
    VL_TRY(opening_error(cuda_cublaslt_status(cublasLtCreate(&libraries->cublaslt), "cublasLtCreate", NULL)));
  *handle = libraries->cublaslt;
  return vl_ok();
}

void cuda_libraries_close(CudaLibraries **libraries) {
  CudaLibraries *closing = *libraries;
  if (!closing) return;
  if (closing->cudnn) (void)cudnnDestroy(closing->cudnn);
  if (closing->cublaslt) (void)cublasLtDestroy(closing->cublaslt);
  for (int32_t i = 0; i < closing->choice_count; i++)
    free(closing->choices[i].bytes);
  free(closing->choices);
  free(closing);
  *libraries = NULL;
}

/* ---- Choices ---------------------------------------------------------------------------------------------------- */

const void *cuda_choice_find(const CudaDevice *device, const void *key, size_t key_bytes) {
  const CudaLibraries *libraries = device->libraries;
  uint64_t hash = vl_hash_bytes(vl_hash_start, key, key_bytes);
  for (int32_t i = 0; libraries && i < libraries->choice_count; i++) {
    const Choice *choice = &libraries->choices[i];
    if (choice->hash == hash && choice->key_bytes == key_bytes && memcmp(choice->bytes, key, key_bytes) == 0)
      return choice->bytes + (key_bytes + 15) / 16 * 16;
  }
  return NULL;
}

void cuda_choice_keep(CudaDevice *device, const void *key, size_t key_bytes, const void *choice,
                      size_t choice_bytes) {
  CudaLibraries *libraries = libraries_of(device);
  if (libraries->choice_count == libraries->choice_capacity) {
    libraries->choice_capacity = libraries->choice_capacity ? 2 * libraries->choice_capacity : 64;
    libraries->choices =
        vl_reallocate(libraries->choices, (size_t)libraries->choice_capacity * sizeof *libraries->choices);
  }
  size_t begin = (key_bytes + 15) / 16 * 16; /* of the choice, which may be any struct */
  Choice kept = {.hash = vl_hash_bytes(vl_hash_start, key, key_bytes),
                 .key_bytes = key_bytes,
                 .bytes = vl_allocate(begin + choice_bytes)};
  memcpy(kept.bytes, key, key_bytes);
  memcpy(kept.bytes + begin, choice, choice_bytes);
  libraries->choices[libraries->choice_count++] = kept;
}
