/* A card older or newer than what the module was compiled for fails at its first launch; better at opening.
 */
#include "kernels/cuda/kernel.cuh"
#include "probe.h"

namespace {

constexpr unsigned known_word = 0x56524D4CU; /* "VRML" */

__global__ void write_word(unsigned *word) { *word = known_word; }

} // namespace

extern "C" int vl_cuda_probe(int *right) {
  unsigned *word = nullptr;
  unsigned seen = 0;
  *right = 0;
  cudaError_t error = cudaMalloc(reinterpret_cast<void **>(&word), sizeof *word);
  if (error != cudaSuccess) return error;
  error = cuda_launch(write_word, dim3(1), dim3(1), 0, nullptr, word);
  if (error == cudaSuccess) error = cudaMemcpy(&seen, word, sizeof seen, cudaMemcpyDeviceToHost);
  cudaFree(word);
  *right = seen == known_word;
  return error;
}
