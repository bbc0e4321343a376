/* Images and labels from HDF5: datasets images (N, C, H, W) and labels (N), held_out_images and
 * held_out_labels. u8 images are scaled to [-1, 1], float ones taken as they are. */
#include "engine/internal.h"
#include <hdf5.h>
#include <stdlib.h>
#include <string.h>

typedef struct Split {
  hid_t images, labels;
  int64_t count;
  bool bytes; /* images are u8 */
} Split;

struct DataSet {
  hid_t file;
  Split training, held_out;
  int64_t channels, size, classes;
  EpochOrder order;
};

static void close_split(Split *split) {
  if (split->images > 0) H5Dclose(split->images);
  if (split->labels > 0) H5Dclose(split->labels);
}

void engine_data_close(DataSet **data) {
  DataSet *it = *data;
  if (!it) return;
  close_split(&it->training);
  close_split(&it->held_out);
  if (it->file > 0) H5Fclose(it->file);
  engine_order_clear(&it->order);
  free(it);
  *data = NULL;
}

static int read_shape(hid_t dataset, hsize_t *shape, int capacity) {
  hid_t space = H5Dget_space(dataset);
  int rank = H5Sget_simple_extent_ndims(space);
  if (rank > 0 && rank <= capacity) H5Sget_simple_extent_dims(space, shape, NULL);
  H5Sclose(space);
  return rank;
}

static Status check_types(Split *split, const char *path, const char *images, const char *labels) {
  hid_t type = H5Dget_type(split->images), label_type = H5Dget_type(split->labels);
  H5T_class_t class = H5Tget_class(type);
  split->bytes = class == H5T_INTEGER && H5Tget_size(type) == 1 && H5Tget_sign(type) == H5T_SGN_NONE;
  bool images_fit = split->bytes || class == H5T_FLOAT, labels_fit = H5Tget_class(label_type) == H5T_INTEGER;
  H5Tclose(type);
  H5Tclose(label_type);
  if (!images_fit)
    return vl_error(VL_INVALID, "%s: '%s' must hold u8 or floating-point numbers", path, images);
  if (!labels_fit) return vl_error(VL_INVALID, "%s: '%s' must hold whole numbers", path, labels);
  return vl_ok();
}

/* All of them now: a bad one must not end an epoch that has begun. */
static Status check_labels(const DataSet *data, const Split *split, const char *path, const char *name) {
  int64_t *values = vl_allocate((size_t)split->count * sizeof *values);
  Status status = vl_ok();
  if (H5Dread(split->labels, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0) {
    status = vl_error(VL_INVALID, "%s: '%s' cannot be read: the file is damaged", path, name);
  }
  for (int64_t i = 0; i < split->count && status.code == VL_OK; i++) {
    if (values[i] >= 0 && values[i] < data->classes) continue;
    status = vl_error(VL_INVALID, "%s: label %lld of '%s', at %lld, is not in [0, %lld) (--set classes=)",
                      path, (long long)values[i], name, (long long)i, (long long)data->classes);
  }
  free(values);
  return status;
}

static Status open_split(DataSet *data, const char *path, const char *images, const char *labels,
                         Split *split) {
  if (H5Lexists(data->file, images, H5P_DEFAULT) <= 0 || H5Lexists(data->file, labels, H5P_DEFAULT) <= 0) {
    return vl_error(VL_INVALID, "%s lacks the datasets '%s' and '%s'", path, images, labels);
  }
  split->images = H5Dopen2(data->file, images, H5P_DEFAULT);
  split->labels = H5Dopen2(data->file, labels, H5P_DEFAULT);
  hsize_t shape[4] = {0}, label_shape[1] = {0};
  if (read_shape(split->images, shape, 4) != 4 || read_shape(split->labels, label_shape, 1) != 1 ||
      shape[0] != label_shape[0] || shape[0] == 0) {
    return vl_error(VL_INVALID, "%s: '%s' must be (N, C, H, W) and '%s' (N), with N of at least 1", path,
                    images, labels);
  }
  if ((int64_t)shape[1] != data->channels || (int64_t)shape[2] != data->size ||
      (int64_t)shape[3] != data->size) {
    return vl_error(
        VL_INVALID,
        "%s: '%s' holds %llu x %llu x %llu images, the case takes %lld x %lld x %lld (--set size=%llu)", path,
        images, (unsigned long long)shape[1], (unsigned long long)shape[2], (unsigned long long)shape[3],
        (long long)data->channels, (long long)data->size, (long long)data->size,
        (unsigned long long)shape[2]);
  }
  split->count = (int64_t)shape[0];
  VL_TRY(check_types(split, path, images, labels));
  return check_labels(data, split, path, labels);
}

Status engine_data_open(const char *path, int64_t channels, int64_t size, int64_t classes, DataSet **out) {
  H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* messages are ours */
  DataSet *data = vl_allocate(sizeof *data);
  *data = (DataSet){.channels = channels, .size = size, .classes = classes};
  data->file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
  Status status = data->file < 0
                      ? vl_error(VL_INVALID, "cannot read %s as HDF5 (missing or not an HDF5 file)", path)
                      : open_split(data, path, "images", "labels", &data->training);
  if (status.code == VL_OK) {
    status = open_split(data, path, "held_out_images", "held_out_labels", &data->held_out);
  }
  if (status.code != VL_OK) {
    engine_data_close(&data);
    return status;
  }
  *out = data;
  return vl_ok();
}

int64_t engine_data_count(const DataSet *data, bool held_out) {
  return held_out ? data->held_out.count : data->training.count;
}

/* Fisher-Yates, drawn from Philox keyed by the epoch. */
static void shuffle(EpochOrder *order, uint64_t seed, int64_t count, int64_t epoch) {
  if (!order->samples) order->samples = vl_allocate((size_t)count * sizeof *order->samples);
  order->epoch = epoch;
  uint64_t key = vl_random_key(seed, (uint64_t)epoch, "data order");
  for (int64_t i = 0; i < count; i++)
    order->samples[i] = i;
  for (int64_t i = count - 1; i > 0; i--) {
    uint64_t word = vl_random_word(key, 0, (uint64_t)i);
    int64_t other = (int64_t)((word * (uint64_t)(i + 1)) >> 32);
    int64_t swap = order->samples[i];
    order->samples[i] = order->samples[other];
    order->samples[other] = swap;
  }
}

int64_t engine_order_at(EpochOrder *order, uint64_t seed, int64_t count, int64_t drawn) {
  int64_t epoch = drawn / count;
  if (!order->samples || order->epoch != epoch) shuffle(order, seed, count, epoch);
  return order->samples[drawn % count];
}

void engine_order_clear(EpochOrder *order) {
  free(order->samples);
  *order = (EpochOrder){0};
}

static Status read_sample(const DataSet *data, const Split *split, int64_t at, float *image, int32_t *label) {
  hsize_t start[4] = {(hsize_t)at, 0, 0, 0};
  hsize_t count[4] = {1, (hsize_t)data->channels, (hsize_t)data->size, (hsize_t)data->size};
  hid_t file_space = H5Dget_space(split->images), memory_space = H5Screate_simple(4, count, NULL);
  H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start, NULL, count, NULL);
  herr_t failed = H5Dread(split->images, H5T_NATIVE_FLOAT, memory_space, file_space, H5P_DEFAULT, image);
  H5Sclose(file_space);
  H5Sclose(memory_space);
  file_space = H5Dget_space(split->labels);
  memory_space = H5Screate_simple(1, count, NULL);
  H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start, NULL, count, NULL);
  if (failed >= 0)
    failed = H5Dread(split->labels, H5T_NATIVE_INT32, memory_space, file_space, H5P_DEFAULT, label);
  H5Sclose(file_space);
  H5Sclose(memory_space);
  if (failed < 0)
    return vl_error(VL_ENVIRONMENT, "cannot read image %lld: the file is damaged", (long long)at);
  int64_t elements = data->channels * data->size * data->size;
  for (int64_t i = 0; split->bytes && i < elements; i++)
    image[i] = image[i] / 127.5F - 1.0F;
  return vl_ok();
}

Status engine_data_batch(DataSet *data, uint64_t seed, int64_t drawn, int64_t batch, float *images,
                         int32_t *labels) {
  int64_t elements = data->channels * data->size * data->size;
  for (int64_t n = 0; n < batch; n++) {
    int64_t at = engine_order_at(&data->order, seed, data->training.count, drawn + n);
    VL_TRY(read_sample(data, &data->training, at, images + n * elements, labels + n));
  }
  return vl_ok();
}

Status engine_data_held_out(DataSet *data, int64_t first, int64_t batch, float *images, int32_t *labels) {
  int64_t elements = data->channels * data->size * data->size;
  for (int64_t n = 0; n < batch; n++) {
    int64_t at = (first + n) % data->held_out.count;
    VL_TRY(read_sample(data, &data->held_out, at, images + n * elements, labels + n));
  }
  return vl_ok();
}
