/* tests/kernels/cuda/host: a cuDNN that has a handle and nothing else, until convolutions are there. */
#include <cudnn.h>

extern "C" {
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
  *handle = nullptr;
  return CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t) { return CUDNN_STATUS_SUCCESS; }
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t) { return CUDNN_STATUS_SUCCESS; }
const char *cudnnGetErrorString(cudnnStatus_t) { return "not there"; }
size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
}
