/* Volumes in HDF5: reading them, and making such a file. */
#include "engine/volumes.h"
#include <hdf5.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct FileVolume {
  Volume volume;
  hid_t image, labels;
  double mean[VL_MAX_CHANNELS], deviation[VL_MAX_CHANNELS];
} FileVolume;

typedef struct VolumeFile {
  const char *path; /* borrowed, while opening */
  hid_t file;
  VolumeShape shape;
  FileVolume *volumes[2];
  int64_t counts[2];
} VolumeFile;

static const char *const group_names[2] = {"volumes", "held_out_volumes"};

static void close_file(void *context) {
  VolumeFile *it = context;
  for (int32_t split = 0; split < 2; split++) {
    for (int64_t i = 0; i < it->counts[split]; i++) {
      if (it->volumes[split][i].image > 0) H5Dclose(it->volumes[split][i].image);
      if (it->volumes[split][i].labels > 0) H5Dclose(it->volumes[split][i].labels);
    }
    free(it->volumes[split]);
  }
  if (it->file > 0) H5Fclose(it->file);
  free(it);
}

/* ---- Opening -------------------------------------------------------------------------------------------------------- */

/* The dataset `part` of a group; its extents in shape. */
static Status open_part(const VolumeFile *file, const char *group, const char *part, int32_t rank, hid_t *set,
                        hsize_t *shape) {
  char name[3 * VL_NAME_BYTES];
  snprintf(name, sizeof name, "%s/%s", group, part);
  *set = H5Lexists(file->file, name, H5P_DEFAULT) > 0 ? H5Dopen2(file->file, name, H5P_DEFAULT) : -1;
  if (*set < 0) return vl_error(VL_INVALID, "%s lacks the dataset '%s'", file->path, name);
  hid_t space = H5Dget_space(*set), type = H5Dget_type(*set);
  H5T_class_t class = H5Tget_class(type);
  bool ranked = H5Sget_simple_extent_ndims(space) == rank;
  if (ranked) H5Sget_simple_extent_dims(space, shape, NULL);
  H5Tclose(type);
  H5Sclose(space);
  if (!ranked) return vl_error(VL_INVALID, "%s: '%s' must have %d dimensions", file->path, name, rank);
  bool whole = class == H5T_INTEGER;
  if (whole || (rank == 4 && class == H5T_FLOAT)) return vl_ok();
  return vl_error(VL_INVALID, "%s: '%s' must hold %s", file->path, name,
                  rank == 4 ? "numbers" : "whole numbers");
}

/* A list of numbers; values is left alone where it is missing. */
static Status read_numbers(const VolumeFile *file, hid_t object, const char *of, const char *name,
                           int64_t count, bool positive, double *values) {
  if (H5Aexists(object, name) <= 0) return vl_ok();
  hid_t attribute = H5Aopen(object, name, H5P_DEFAULT);
  hid_t space = attribute < 0 ? -1 : H5Aget_space(attribute);
  bool read = attribute >= 0 && H5Sget_simple_extent_npoints(space) == count &&
              H5Aread(attribute, H5T_NATIVE_DOUBLE, values) >= 0;
  for (int64_t i = 0; i < count && read; i++)
    read = isfinite(values[i]) && (!positive || values[i] > 0.0);
  if (space >= 0) H5Sclose(space);
  if (attribute >= 0) H5Aclose(attribute);
  if (read) return vl_ok();
  return vl_error(VL_INVALID, "%s: attribute '%s' of '%s' must be %lld %s numbers", file->path, name, of,
                  (long long)count, positive ? "positive" : "finite");
}

static Status read_attributes(const VolumeFile *file, const char *group, FileVolume *of) {
  int64_t channels = file->shape.channels;
  hid_t object = H5Gopen2(file->file, group, H5P_DEFAULT);
  for (int32_t i = 0; i < 3; i++)
    of->volume.spacing_mm[i] = 1.0;
  for (int64_t c = 0; c < channels; c++)
    of->deviation[c] = 1.0;
  Status status = read_numbers(file, object, group, "spacing_mm", 3, true, of->volume.spacing_mm);
  if (status.code == VL_OK) status = read_numbers(file, of->image, group, "mean", channels, false, of->mean);
  if (status.code == VL_OK)
    status = read_numbers(file, of->image, group, "standard_deviation", channels, true, of->deviation);
  H5Gclose(object);
  return status;
}

static Status open_volume(const VolumeFile *file, const char *group, FileVolume *of) {
  hsize_t image[4] = {0}, labels[3] = {0};
  VL_TRY(open_part(file, group, "image", 4, &of->image, image));
  VL_TRY(open_part(file, group, "labels", 3, &of->labels, labels));
  if ((int64_t)image[0] != file->shape.channels) {
    return vl_error(VL_INVALID, "%s: '%s' has %llu channels, the case takes %lld (--set channels=%llu)",
                    file->path, group, (unsigned long long)image[0], (long long)file->shape.channels,
                    (unsigned long long)image[0]);
  }
  for (int32_t i = 0; i < 3; i++) {
    of->volume.size[i] = (int64_t)labels[i];
    if (labels[i] == image[i + 1] && labels[i] > 0 && labels[i] <= INT32_MAX) continue;
    return vl_error(VL_INVALID,
                    "%s: '%s' has an image of %llu x %llu x %llu voxels and labels of %llu x %llu x "
                    "%llu; they must be as many, and at least one",
                    file->path, group, (unsigned long long)image[1], (unsigned long long)image[2],
                    (unsigned long long)image[3], (unsigned long long)labels[0],
                    (unsigned long long)labels[1], (unsigned long long)labels[2]);
  }
  return read_attributes(file, group, of);
}

static Status open_split(VolumeFile *file, int32_t split) {
  H5G_info_t info;
  const char *top = group_names[split];
  hid_t group = H5Lexists(file->file, top, H5P_DEFAULT) > 0 ? H5Gopen2(file->file, top, H5P_DEFAULT) : -1;
  if (group < 0) return vl_error(VL_INVALID, "%s lacks the group '%s'", file->path, top);
  H5Gget_info(group, &info);
  file->volumes[split] = vl_allocate(((size_t)info.nlinks + 1) * sizeof *file->volumes[split]);
  Status status = vl_ok();
  for (hsize_t i = 0; i < info.nlinks && status.code == VL_OK; i++) {
    char path[2 * VL_NAME_BYTES];
    FileVolume *of = &file->volumes[split][file->counts[split]++];
    H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, of->volume.name, sizeof of->volume.name,
                       H5P_DEFAULT);
    snprintf(path, sizeof path, "%s/%s", top, of->volume.name);
    if (H5Oexists_by_name(file->file, path, H5P_DEFAULT) <= 0)
      status = vl_error(VL_INVALID, "%s: '%s' has a name of more than %d bytes or leads nowhere", file->path,
                        path, VL_NAME_BYTES - 1);
    else
      status = open_volume(file, path, of);
  }
  H5Gclose(group);
  return status;
}

/* ---- Reading -------------------------------------------------------------------------------------------------------- */

static const Volume *volume(const void *context, bool held_out, int64_t index) {
  const VolumeFile *file = context;
  return &file->volumes[held_out][index].volume;
}

/* Reads what the part covers of a dataset with `leading` values in front of the three dimensions. */
static herr_t read_dataset(hid_t dataset, hid_t type, int64_t leading, const VolumePart *part, void *to) {
  hsize_t start[4] = {0}, count[4] = {(hsize_t)leading}, buffer[4] = {(hsize_t)leading}, at[4] = {0};
  for (int32_t i = 0; i < 3; i++) {
    start[i + 1] = (hsize_t)part->box.start[i];
    count[i + 1] = (hsize_t)part->box.size[i];
    buffer[i + 1] = (hsize_t)part->size[i];
    at[i + 1] = (hsize_t)part->to[i];
  }
  int32_t skipped = leading > 0 ? 0 : 1;
  hid_t file_space = H5Dget_space(dataset),
        memory_space = H5Screate_simple(4 - skipped, buffer + skipped, NULL);
  H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start + skipped, NULL, count + skipped, NULL);
  H5Sselect_hyperslab(memory_space, H5S_SELECT_SET, at + skipped, NULL, count + skipped, NULL);
  herr_t failed = H5Dread(dataset, type, memory_space, file_space, H5P_DEFAULT, to);
  H5Sclose(file_space);
  H5Sclose(memory_space);
  return failed;
}

/* In units of the channel's deviation around its mean. */
static void normalise(const FileVolume *of, int64_t channels, const VolumePart *part, float *image) {
  const int64_t *size = part->size, *to = part->to, *count = part->box.size;
  for (int64_t c = 0; c < channels; c++) {
    for (int64_t row = 0; row < count[0] * count[1]; row++) {
      int64_t z = to[0] + row / count[1], y = to[1] + row % count[1];
      float *values = image + ((c * size[0] + z) * size[1] + y) * size[2] + to[2];
      for (int64_t x = 0; x < count[2]; x++)
        values[x] = (float)(((double)values[x] - of->mean[c]) / of->deviation[c]);
    }
  }
}

static Status read_part(void *context, bool held_out, int64_t index, const VolumePart *part, float *image,
                        int32_t *labels) {
  const VolumeFile *file = context;
  const FileVolume *of = &file->volumes[held_out][index];
  if ((image && read_dataset(of->image, H5T_NATIVE_FLOAT, file->shape.channels, part, image) < 0) ||
      (labels && read_dataset(of->labels, H5T_NATIVE_INT32, 0, part, labels) < 0)) {
    return vl_error(VL_ENVIRONMENT, "cannot read volume '%s' at (%lld, %lld, %lld): the file is damaged",
                    of->volume.name, (long long)part->box.start[0], (long long)part->box.start[1],
                    (long long)part->box.start[2]);
  }
  if (image) normalise(of, file->shape.channels, part, image);
  return vl_ok();
}

Status engine_volume_file_open(const char *path, VolumeShape shape, VolumeSource *source) {
  H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* messages are ours */
  if (shape.channels > VL_MAX_CHANNELS)
    return vl_error(VL_INVALID, "%s: files hold up to %d channels, the case takes %lld", path,
                    VL_MAX_CHANNELS, (long long)shape.channels);
  VolumeFile *file = vl_allocate(sizeof *file);
  *file = (VolumeFile){.path = path, .shape = shape, .file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT)};
  Status status = vl_ok();
  if (file->file < 0)
    status = vl_error(VL_INVALID, "cannot read %s as HDF5 (missing, truncated or not an HDF5 file)", path);
  for (int32_t split = 0; split < 2 && status.code == VL_OK; split++)
    status = open_split(file, split);
  file->path = NULL;
  if (status.code != VL_OK) {
    close_file(file);
    return status;
  }
  *source = (VolumeSource){file, {file->counts[0], file->counts[1]}, volume, read_part, close_file};
  return vl_ok();
}

/* ---- Making a file ---------------------------------------------------------------------------------------------------- */

struct VolumeWriter {
  char *path, *temporary;
  hid_t file;
  int64_t counts[2];
};

Status vl_volume_writer_create(const char *path, VolumeWriter **out) {
  H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
  VolumeWriter *writer = vl_allocate(sizeof *writer);
  *writer = (VolumeWriter){.path = vl_copy_text(path), .temporary = vl_allocate(strlen(path) + 5)};
  snprintf(writer->temporary, strlen(path) + 5, "%s.tmp", path);
  writer->file = H5Fcreate(writer->temporary, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  bool made = writer->file >= 0;
  for (int32_t split = 0; split < 2 && made; split++) {
    hid_t group = H5Gcreate2(writer->file, group_names[split], H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    made = group >= 0 && H5Gclose(group) >= 0;
  }
  *out = writer;
  if (made) return vl_ok();
  Status status = vl_error(VL_ENVIRONMENT, "cannot write %s", writer->temporary);
  vl_volume_writer_abandon(out);
  return status;
}

static bool write_numbers(hid_t object, const char *name, int64_t count, const double *values) {
  hsize_t extent = (hsize_t)count;
  hid_t space = H5Screate_simple(1, &extent, NULL);
  hid_t attribute = H5Acreate2(object, name, H5T_IEEE_F64LE, space, H5P_DEFAULT, H5P_DEFAULT);
  bool written = attribute >= 0 && H5Awrite(attribute, H5T_NATIVE_DOUBLE, values) >= 0;
  if (attribute >= 0) H5Aclose(attribute);
  H5Sclose(space);
  return written;
}

/* Mean and deviation of each channel of an image, in double; the deviation of a constant one is 1. */
static bool write_statistics(hid_t dataset, int64_t channels, int64_t voxels, const float *image) {
  double mean[VL_MAX_CHANNELS], deviation[VL_MAX_CHANNELS];
  for (int64_t c = 0; c < channels; c++) {
    double sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < voxels; i++)
      sum += (double)image[c * voxels + i];
    mean[c] = sum / (double)voxels;
    for (int64_t i = 0; i < voxels; i++) {
      double from_mean = (double)image[c * voxels + i] - mean[c];
      squares += from_mean * from_mean;
    }
    deviation[c] = squares > 0.0 ? sqrt(squares / (double)voxels) : 1.0;
  }
  return write_numbers(dataset, "mean", channels, mean) &&
         write_numbers(dataset, "standard_deviation", channels, deviation);
}

/* In blocks of which a patch needs few; compressed where that is asked for and this HDF5 can. */
static hid_t create_dataset(hid_t group, const char *name, hid_t type, int32_t rank, const hsize_t *shape,
                            const hsize_t *block, bool compressed) {
  hsize_t least[4];
  for (int32_t i = 0; i < rank; i++)
    least[i] = shape[i] < block[i] ? shape[i] : block[i];
  hid_t space = H5Screate_simple(rank, shape, NULL), creation = H5Pcreate(H5P_DATASET_CREATE);
  H5Pset_chunk(creation, rank, least);
  if (compressed && H5Zfilter_avail(H5Z_FILTER_DEFLATE) > 0) H5Pset_deflate(creation, 1);
  hid_t dataset = H5Dcreate2(group, name, type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
  H5Pclose(creation);
  H5Sclose(space);
  return dataset;
}

static bool write_volume(hid_t group, const NewVolume *volume) {
  hsize_t shape[4] = {(hsize_t)volume->channels, (hsize_t)volume->size[0], (hsize_t)volume->size[1],
                      (hsize_t)volume->size[2]};
  int64_t voxels = volume->size[0] * volume->size[1] * volume->size[2];
  static const hsize_t image_block[] = {1, 32, 32, 32}, label_block[] = {8, 64, 64};
  hid_t image = create_dataset(group, "image", H5T_IEEE_F32LE, 4, shape, image_block, false);
  hid_t labels = create_dataset(group, "labels", H5T_STD_U8LE, 3, shape + 1, label_block, true);
  bool written = image >= 0 && labels >= 0 &&
                 H5Dwrite(image, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, volume->image) >= 0 &&
                 H5Dwrite(labels, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, volume->labels) >= 0 &&
                 write_statistics(image, volume->channels, voxels, volume->image) &&
                 write_numbers(group, "spacing_mm", 3, volume->spacing_mm);
  if (image >= 0) H5Dclose(image);
  if (labels >= 0) H5Dclose(labels);
  return written;
}

Status vl_volume_writer_add(VolumeWriter *writer, const NewVolume *volume) {
  char name[2 * VL_NAME_BYTES];
  const char *top = group_names[volume->held_out];
  if (volume->channels > VL_MAX_CHANNELS)
    return vl_error(VL_INVALID, "volume '%s' has %lld channels; a file holds up to %d", volume->name,
                    (long long)volume->channels, VL_MAX_CHANNELS);
  snprintf(name, sizeof name, "%s/%s", top, volume->name);
  if (strlen(volume->name) >= VL_NAME_BYTES || strchr(volume->name, '/'))
    return vl_error(VL_INVALID, "'%s' is no name for a volume: it takes up to %d bytes and no '/'",
                    volume->name, VL_NAME_BYTES - 1);
  hid_t group = H5Gcreate2(writer->file, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  bool written = group >= 0 && write_volume(group, volume);
  if (group >= 0) H5Gclose(group);
  writer->counts[volume->held_out] += written;
  if (written) return vl_ok();
  return vl_error(VL_ENVIRONMENT, "cannot write volume '%s' to %s", volume->name, writer->temporary);
}

void vl_volume_writer_abandon(VolumeWriter **writer) {
  VolumeWriter *it = *writer;
  if (!it) return;
  if (it->file > 0) {
    H5Fclose(it->file);
    unlink(it->temporary);
  }
  free(it->path);
  free(it->temporary);
  free(it);
  *writer = NULL;
}

Status vl_volume_writer_finish(VolumeWriter **writer) {
  VolumeWriter *it = *writer;
  Status status = vl_ok();
  bool closed = H5Fclose(it->file) >= 0;
  it->file = -1;
  if (!closed || rename(it->temporary, it->path) != 0) {
    status = vl_error(VL_ENVIRONMENT, "cannot write %s", it->path);
    unlink(it->temporary);
  }
  vl_volume_writer_abandon(writer);
  return status;
}
