/* Inference by sliding windows: what a window says, added to the sums of a volume in device memory. Windows
 * come one after the other from the host, so every voxel's sum is in their order. Products and sums are
 * rounded one by one, as the host's are: both give the same bits. */
#include "kernels/cuda/box.cuh"

namespace {

constexpr int block_threads = 256;

/* A window's sides, the factors of its weights, and where it lies; for kernels. */
struct Place {
  const float *factors[3];
  int64_t size[3], start[3];
  Divisor height, width; /* of the window */
};

/* Adds so many elements of the window, from a row on; values NULL: the weights themselves. */
__global__ void __launch_bounds__(block_threads)
    add_rows(const __grid_constant__ Place place, const float *values, int64_t first_row, int64_t elements,
             float *to) {
  for (int64_t i = global_index(); i < elements; i += grid_threads()) {
    int64_t at[3], z, y, x;
    at[0] = divide(first_row + divide(i, place.width, &at[2]), place.height, &at[1]);
    z = place.start[0] + at[0], y = place.start[1] + at[1], x = place.start[2] + at[2];
    bool inside = z >= 0 && z < place.size[0] && y >= 0 && y < place.size[1] && x >= 0 && x < place.size[2];
    if (!inside) continue;
    float factor = __fmul_rn(place.factors[0][at[0]], place.factors[1][at[1]]);
    float value = __fmul_rn(factor, place.factors[2][at[2]]);
    if (values != nullptr) value = __fmul_rn(value, values[i]);
    float *sum = to + (z * place.size[1] + y) * place.size[2] + x;
    *sum = __fadd_rn(*sum, value);
  }
}

Status to_card(const CudaDevice *device, uintptr_t to, const float *from, int64_t count) {
  return cuda_status(cudaMemcpyAsync((void *)to, from, (size_t)count * sizeof(float), cudaMemcpyHostToDevice,
                                     device->stream),
                     "cudaMemcpyAsync of a window to the card", nullptr);
}

/* In parts that the buffer behind the factors holds. */
Status add_class(const CudaDevice *device, const DeviceWindow *window, const Place &place, uintptr_t buffer,
                 int64_t buffer_rows, const float *logits, float *to) {
  int64_t rows = window->side[0] * window->side[1], width = window->side[2];
  for (int64_t first = 0; first < rows; first += buffer_rows) {
    int64_t elements = (rows - first < buffer_rows ? rows - first : buffer_rows) * width;
    if (logits != nullptr) VL_TRY(to_card(device, buffer, logits + first * width, elements));
    cudaError_t error =
        cuda_launch(add_rows, grid_for(elements, block_threads), block_threads, 0, device->stream, place,
                    logits ? (const float *)buffer : nullptr, first, elements, to);
    VL_TRY(cuda_status(error, "cudaLaunchKernelEx of window sums", nullptr));
  }
  return vl_ok();
}

} // namespace

Status cuda_window_add(Device *device, const DeviceWindow *window) {
  CudaDevice *cuda = (CudaDevice *)(void *)device;
  const int64_t *side = window->side, *size = window->size, factors = side[0] + side[1] + side[2];
  int64_t room = CUDA_BOUNCE_BYTES / (int64_t)sizeof(float) - factors, voxels = size[0] * size[1] * size[2];
  if (room < side[2])
    return vl_error(VL_UNSUPPORTED, "cuda: windows of %lld x %lld x %lld voxels: a row is too long",
                    (long long)side[0], (long long)side[1], (long long)side[2]);
  cuda_sequence_flush(cuda);
  VL_TRY(cuda_bounce_open(cuda));
  uintptr_t buffer = (uintptr_t)cuda->bounce;
  Place place = {};
  place.height = divisor_of(side[1]);
  place.width = divisor_of(side[2]);
  for (int i = 0; i < 3; i++) {
    VL_TRY(to_card(cuda, buffer, window->factors[i], side[i]));
    place.factors[i] = (const float *)buffer;
    place.size[i] = size[i];
    place.start[i] = window->start[i];
    buffer += (uintptr_t)side[i] * sizeof(float);
  }
  float *sums = (float *)window->sums;
  VL_TRY(add_class(cuda, window, place, buffer, side[0] * side[1], nullptr, sums + window->classes * voxels));
  for (int64_t c = 0; c < window->classes; c++)
    VL_TRY(add_class(cuda, window, place, buffer, room / side[2],
                     window->logits + c * side[0] * side[1] * side[2], sums + c * voxels));
  return cuda_status(cudaStreamSynchronize(cuda->stream), "cudaStreamSynchronize", nullptr);
}
