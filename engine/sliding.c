/* Inference by windows that slide over a volume. */
#include "engine/volumes.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

WindowGrid engine_window_grid(const int64_t size[3], const int64_t window[3], double overlap) {
  WindowGrid grid;
  for (int32_t i = 0; i < 3; i++) {
    int64_t stride = (int64_t)((double)window[i] * (1.0 - overlap)), beyond = size[i] - window[i];
    if (stride < 1) stride = 1;
    grid.size[i] = size[i];
    grid.window[i] = window[i];
    grid.count[i] = beyond > 0 ? (beyond + stride - 1) / stride + 1 : 1;
  }
  return grid;
}

int64_t engine_window_count(const WindowGrid *grid) {
  return grid->count[0] * grid->count[1] * grid->count[2];
}

VolumeBox engine_window_at(const WindowGrid *grid, int64_t number) {
  VolumeBox box;
  for (int32_t i = 2; i >= 0; i--) {
    int64_t at = number % grid->count[i], beyond = grid->size[i] - grid->window[i], last = grid->count[i] - 1;
    number /= grid->count[i];
    box.start[i] = beyond > 0 ? (at * beyond + last / 2) / last : -(-beyond / 2);
    box.size[i] = grid->window[i];
  }
  return box;
}

void engine_window_factors(int64_t side, float *factors) {
  double middle = (double)(side - 1) / 2.0, deviation = (double)side / 8.0;
  for (int64_t i = 0; i < side; i++) {
    double from_middle = ((double)i - middle) / deviation;
    factors[i] = (float)exp(-0.5 * from_middle * from_middle);
  }
}

/* The sums of a volume. */
typedef struct Fusion {
  WindowGrid grid;
  int64_t classes;
  float *factors[3];
  float *sums, *weights; /* (classes, volume) and (volume); borrowed */
  Device *device;        /* adds them up itself, */
  uintptr_t on_device;   /* here; 0: the host does */
} Fusion;

/* The voxels of a window that are in the volume: [from, end) of the window along an axis. */
static void clip(const VolumeBox *window, const int64_t size[3], int64_t from[3], int64_t end[3]) {
  for (int32_t i = 0; i < 3; i++) {
    from[i] = window->start[i] < 0 ? -window->start[i] : 0;
    int64_t left = size[i] - window->start[i];
    end[i] = left < window->size[i] ? left : window->size[i];
  }
}

/* Adds what a row of a window says, of one class; logits NULL: the weights themselves. */
static void add_row(float *to, const float *logits, const float *factors, float factor, int64_t count) {
  if (!logits) {
    for (int64_t x = 0; x < count; x++)
      to[x] += factor * factors[x];
    return;
  }
  for (int64_t x = 0; x < count; x++)
    to[x] += factor * factors[x] * logits[x];
}

static Status add_on_device(const Fusion *fusion, const VolumeBox *box, const float *logits) {
  DeviceWindow window = {.sums = fusion->on_device, .logits = logits, .classes = fusion->classes};
  for (int32_t i = 0; i < 3; i++) {
    window.factors[i] = fusion->factors[i];
    window.size[i] = fusion->grid.size[i];
    window.side[i] = fusion->grid.window[i];
    window.start[i] = box->start[i];
  }
  return fusion->device->interface->window_add(fusion->device, &window);
}

static void add_on_host(Fusion *fusion, const VolumeBox *window, const float *logits) {
  const int64_t *size = fusion->grid.size, *side = fusion->grid.window;
  int64_t from[3], end[3];
  clip(window, size, from, end);
  for (int64_t c = -1; c < fusion->classes; c++) {
    float *to = c < 0 ? fusion->weights : fusion->sums + c * size[0] * size[1] * size[2];
    for (int64_t z = from[0]; z < end[0]; z++) {
      for (int64_t y = from[1]; y < end[1]; y++) {
        int64_t at =
            ((window->start[0] + z) * size[1] + window->start[1] + y) * size[2] + window->start[2] + from[2];
        int64_t read = ((c * side[0] + z) * side[1] + y) * side[2] + from[2];
        add_row(to + at, c < 0 ? NULL : logits + read, fusion->factors[2] + from[2],
                fusion->factors[0][z] * fusion->factors[1][y], end[2] - from[2]);
      }
    }
  }
}

static void divide(Fusion *fusion) {
  int64_t voxels = fusion->grid.size[0] * fusion->grid.size[1] * fusion->grid.size[2];
  for (int64_t c = 0; c < fusion->classes; c++) {
    for (int64_t i = 0; i < voxels; i++)
      fusion->sums[c * voxels + i] /= fusion->weights[i];
  }
}

/* The sums and weights as a storage, to be copied. */
static Storage sums_storage(int64_t count) {
  return (Storage){.name = "window sums",
                   .scope = "windows",
                   .dtype = DTYPE_F32,
                   .elements = count,
                   .layout = LAYOUT_PLAIN};
}

/* To the host, which reads labels off them. */
static Status bring_sums(const Fusion *fusion) {
  if (!fusion->on_device) return vl_ok();
  const int64_t *size = fusion->grid.size;
  Storage storage = sums_storage((fusion->classes + 1) * size[0] * size[1] * size[2]);
  return fusion->device->interface->download(fusion->device, &storage, fusion->on_device, fusion->sums);
}

/* What a batch of windows needs on the host. */
typedef struct Windows {
  int64_t count, image_elements, logit_elements;
  float *images, *logits;
} Windows;

static Status run_windows(Fusion *fusion, VolumeSet *set, bool held_out, int64_t index, Run *run,
                          Inputs *inputs, const Windows *windows) {
  int64_t total = engine_window_count(&fusion->grid);
  for (int64_t first = 0; first < total; first += windows->count) {
    /* A last batch that is not full ends with a window it has already. */
    for (int64_t n = 0; n < windows->count; n++) {
      int64_t number = first + n < total ? first + n : total - 1;
      VolumeBox box = engine_window_at(&fusion->grid, number);
      VL_TRY(
          engine_volume_read(set, held_out, index, box, windows->images + n * windows->image_elements, NULL));
    }
    VL_TRY(vl_inputs_write(inputs, "images", windows->images,
                           windows->count * windows->image_elements * (int64_t)sizeof(float)));
    StepResult step;
    VL_TRY(vl_run_step(run, inputs, &step, windows->logits));
    for (int64_t n = 0; n < windows->count && first + n < total; n++) {
      VolumeBox box = engine_window_at(&fusion->grid, first + n);
      const float *logits = windows->logits + n * windows->logit_elements;
      if (fusion->on_device)
        VL_TRY(add_on_device(fusion, &box, logits));
      else
        add_on_host(fusion, &box, logits);
    }
  }
  VL_TRY(bring_sums(fusion));
  divide(fusion);
  return vl_ok();
}

void engine_volume_logits_clear(const Run *run, VolumeLogits *logits) {
  if (!logits->is_view) free(logits->values);
  if (logits->block) vl_heap_release(run->heap, &logits->block);
  *logits = (VolumeLogits){0};
}

static Status obtain_host_sums(int64_t bytes, VolumeLogits *sums) {
  sums->values = calloc(1, (size_t)bytes);
  if (sums->values) return vl_ok();
  return vl_error(VL_OUT_OF_MEMORY, "no host memory for %lld bytes of window sums", (long long)bytes);
}

/* Room for the sums of a volume on the device, zeroed; where the host cannot see it, with room on the host to
 * read them from in the end. */
static Status obtain_device_sums(const Run *run, int64_t count, VolumeLogits *sums) {
  Device *device = run->device;
  int64_t bytes = count * (int64_t)sizeof(float);
  AllocationRequest request = {
      .bytes = bytes, .category = MEMORY_ACTIVATION, .name = "window sums", .scope = "windows"};
  PlaceCursor cursor = engine_place_begin(run->heap, bytes);
  engine_place_next(&cursor, &request);
  sums->is_view = device->interface->host_view != NULL;
  if (!sums->is_view && !device->interface->window_add)
    return vl_error(VL_UNSUPPORTED, "windows are added up on the host with this device: window-sums=host");
  VL_TRY(vl_heap_obtain(run->heap, &request, &sums->block));
  if (sums->is_view) {
    sums->values = device->interface->host_view(device, sums->block->address);
    memset(sums->values, 0, (size_t)bytes);
    return vl_ok();
  }
  VL_TRY(obtain_host_sums(bytes, sums));
  Storage storage = sums_storage(count);
  return device->interface->upload(device, &storage, sums->values, sums->block->address);
}

static Status infer(VolumeSet *set, bool held_out, int64_t index, Fusion *fusion, Run *run, Inputs *inputs) {
  const Tensor *out = vl_executable_program(run->executable)->logits;
  const int64_t *window = out->shape + 2;
  int64_t voxels = window[0] * window[1] * window[2];
  Windows windows = {.count = out->shape[0],
                     .image_elements = engine_volumes_channels(set) * voxels,
                     .logit_elements = out->shape[1] * voxels};
  windows.images = vl_allocate((size_t)(windows.count * windows.image_elements) * sizeof(float));
  windows.logits = vl_allocate((size_t)(windows.count * windows.logit_elements) * sizeof(float));
  for (int32_t i = 0; i < 3; i++) {
    fusion->factors[i] = vl_allocate((size_t)window[i] * sizeof(float));
    engine_window_factors(window[i], fusion->factors[i]);
  }
  Status status = run_windows(fusion, set, held_out, index, run, inputs, &windows);
  for (int32_t i = 0; i < 3; i++)
    free(fusion->factors[i]);
  free(windows.images);
  free(windows.logits);
  return status;
}

Status engine_sliding_infer(VolumeSet *set, bool held_out, int64_t index, double overlap, Run *run,
                            Inputs *inputs, VolumeLogits *logits) {
  const Tensor *out = vl_executable_program(run->executable)->logits;
  const int64_t *size = engine_volume(set, held_out, index)->size;
  int64_t voxels = size[0] * size[1] * size[2], classes = out->shape[1];
  *logits = (VolumeLogits){0};
  bool on_host = vl_executable_program(run->executable)->window_sums_on_host;
  int64_t count = (classes + 1) * voxels;
  Status status = on_host ? obtain_host_sums(count * (int64_t)sizeof(float), logits)
                          : obtain_device_sums(run, count, logits);
  if (status.code == VL_OK) {
    Fusion fusion = {.grid = engine_window_grid(size, out->shape + 2, overlap),
                     .classes = classes,
                     .weights = logits->values + classes * voxels,
                     .sums = logits->values,
                     .device = run->device,
                     .on_device = logits->block && !logits->is_view ? logits->block->address : 0};
    status = infer(set, held_out, index, &fusion, run, inputs);
  }
  if (status.code != VL_OK) engine_volume_logits_clear(run, logits);
  return status;
}
