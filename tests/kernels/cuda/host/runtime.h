/* tests/kernels/cuda/host: what the doubles of libraries share with runtime.cpp. */
#ifndef VRAMLAB_HOST_RUNTIME_H
#define VRAMLAB_HOST_RUNTIME_H

#include <cuda_runtime_api.h>
#include <functional>

/* Queues a kernel on a stream (NULL: the legacy one): it runs when somebody waits for it, in the stream's
 * order; while the stream is captured it goes into the graph. */
cudaError_t runtime_queue(cudaStream_t stream, std::function<void()> work);

#endif
