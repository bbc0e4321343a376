/* kernels/cuda/probe: whether this module's machine code runs on the current GPU. */
#ifndef VRAMLAB_CUDA_PROBE_H
#define VRAMLAB_CUDA_PROBE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Launches one thread that writes a known word, and reads it back. Returns the first cudaError_t, 0 when the
 * kernel ran; *right says whether the word came back. */
int vl_cuda_probe(int *right);

#ifdef __cplusplus
}
#endif

#endif
