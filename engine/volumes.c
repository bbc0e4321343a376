/* A data set of volumes, and the patches that are drawn from it. */
#include "engine/volumes.h"
#include <stdlib.h>
#include <string.h>

enum { SPLITS = 2, SLAB = 32 /* slices whose labels are read at once */ };

struct VolumeSet {
  VolumeShape shape;
  VolumeSource source;
  int64_t **in_slices; /* [volume to train on]: voxels of each class in each slice, (depth, classes) */
  EpochOrder order;
};

static int64_t product(const int64_t size[3]) { return size[0] * size[1] * size[2]; }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- Opening and reading ---------------------------------------------------------------------------------------- */

int64_t engine_volumes_count(const VolumeSet *set, bool held_out) { return set->source.counts[held_out]; }

int64_t engine_volumes_channels(const VolumeSet *set) { return set->shape.channels; }

const Volume *engine_volume(const VolumeSet *set, bool held_out, int64_t index) {
  return set->source.volume(set->source.context, held_out, index);
}

Status engine_volume_read(VolumeSet *set, bool held_out, int64_t index, VolumeBox box, float *image,
                          int32_t *labels) {
  const int64_t *size = engine_volume(set, held_out, index)->size;
  VolumePart part = {.size = {box.size[0], box.size[1], box.size[2]}};
  bool whole = true, empty = false;
  for (int32_t i = 0; i < 3; i++) {
    int64_t end = smaller(box.start[i] + box.size[i], size[i]), start = box.start[i] > 0 ? box.start[i] : 0;
    part.box.start[i] = start;
    part.box.size[i] = end - start;
    part.to[i] = start - box.start[i];
    whole = whole && end - start == box.size[i];
    empty = empty || end <= start;
  }
  int64_t voxels = product(box.size);
  if (!whole && image) memset(image, 0, (size_t)(set->shape.channels * voxels) * sizeof *image);
  for (int64_t i = 0; !whole && labels && i < voxels; i++)
    labels[i] = VL_IGNORED_LABEL;
  return empty ? vl_ok() : set->source.read(set->source.context, held_out, index, &part, image, labels);
}

/* The labels of a volume are classes; in_slices: NULL, or where they are counted. */
static Status check_labels(VolumeSet *set, const char *path, bool held_out, int64_t index,
                           int64_t *in_slices) {
  const Volume *volume = engine_volume(set, held_out, index);
  int64_t classes = set->shape.classes, of_slice = volume->size[1] * volume->size[2];
  int32_t *labels = vl_allocate((size_t)(SLAB * of_slice) * sizeof *labels);
  Status status = vl_ok();
  for (int64_t z = 0; z < volume->size[0] && status.code == VL_OK; z += SLAB) {
    VolumeBox slab = {{z, 0, 0}, {smaller(SLAB, volume->size[0] - z), volume->size[1], volume->size[2]}};
    status = engine_volume_read(set, held_out, index, slab, NULL, labels);
    for (int64_t i = 0; i < product(slab.size) && status.code == VL_OK; i++) {
      int64_t slice = z + i / of_slice, y = i % of_slice / volume->size[2], x = i % volume->size[2];
      if (labels[i] < 0 || labels[i] >= classes) {
        status = vl_error(VL_INVALID,
                          "%s: label %d of volume '%s', at (%lld, %lld, %lld), is not in [0, %lld) "
                          "(--set classes=)",
                          path, labels[i], volume->name, (long long)slice, (long long)y, (long long)x,
                          (long long)classes);
      } else if (in_slices) {
        in_slices[slice * classes + labels[i]]++;
      }
    }
  }
  free(labels);
  return status;
}

static Status check_all(VolumeSet *set, const char *path) {
  if (set->source.counts[0] == 0 || set->source.counts[1] == 0) {
    return vl_error(VL_INVALID, "%s holds %lld volumes to train on and %lld held out; it takes one of each",
                    path, (long long)set->source.counts[0], (long long)set->source.counts[1]);
  }
  set->in_slices = vl_allocate((size_t)set->source.counts[0] * sizeof *set->in_slices);
  for (int64_t i = 0; i < set->source.counts[0]; i++) {
    int64_t cells = engine_volume(set, false, i)->size[0] * set->shape.classes;
    set->in_slices[i] = vl_allocate((size_t)cells * sizeof **set->in_slices);
    VL_TRY(check_labels(set, path, false, i, set->in_slices[i]));
  }
  for (int64_t i = 0; i < set->source.counts[1]; i++)
    VL_TRY(check_labels(set, path, true, i, NULL));
  return vl_ok();
}

static Status open_source(const char *path, VolumeSet *set) {
  if (set->shape.classes > VL_MAX_CLASSES)
    return vl_error(VL_INVALID, "%s: %lld classes are more than the %d that Dice is told of", path,
                    (long long)set->shape.classes, VL_MAX_CLASSES);
  if (engine_is_phantoms(path)) return engine_phantoms_open(path, set->shape, &set->source);
  return engine_volume_file_open(path, set->shape, &set->source);
}

Status engine_volumes_open(const char *path, VolumeShape shape, VolumeSet **out) {
  VolumeSet *set = vl_allocate(sizeof *set);
  *set = (VolumeSet){.shape = shape};
  Status status = open_source(path, set);
  if (status.code == VL_OK) status = check_all(set, path);
  if (status.code != VL_OK) engine_volumes_close(&set);
  *out = set;
  return status;
}

void engine_volumes_close(VolumeSet **set) {
  VolumeSet *it = *set;
  if (!it) return;
  for (int64_t i = 0; it->in_slices && i < it->source.counts[0]; i++)
    free(it->in_slices[i]);
  free(it->in_slices);
  if (it->source.close) it->source.close(it->source.context);
  engine_order_clear(&it->order);
  free(it);
  *set = NULL;
}

/* ---- Drawing ------------------------------------------------------------------------------------------------------ */

/* The choices of a patch, by the element of its Philox counter. */
enum { AROUND_A_VOXEL = 0, CLASS, VOXEL_LOW, VOXEL_HIGH, START };

static int64_t below(uint32_t word, int64_t count) { return (int64_t)((word * (uint64_t)count) >> 32); }

static int64_t class_voxels(const VolumeSet *set, int64_t index, int64_t class_number) {
  int64_t voxels = 0, depth = engine_volume(set, false, index)->size[0];
  for (int64_t z = 0; z < depth; z++)
    voxels += set->in_slices[index][z * set->shape.classes + class_number];
  return voxels;
}

/* Voxel number `rank` of a class, in order. */
static Status find_voxel(VolumeSet *set, int64_t index, int64_t class_number, int64_t rank, int64_t at[3]) {
  const int64_t *in_slices = set->in_slices[index], *size = engine_volume(set, false, index)->size;
  int64_t z = 0, of_slice = size[1] * size[2], i = 0;
  for (; rank >= in_slices[z * set->shape.classes + class_number]; z++)
    rank -= in_slices[z * set->shape.classes + class_number];
  int32_t *labels = vl_allocate((size_t)of_slice * sizeof *labels);
  Status status =
      engine_volume_read(set, false, index, (VolumeBox){{z, 0, 0}, {1, size[1], size[2]}}, NULL, labels);
  for (; status.code == VL_OK && i < of_slice; i++)
    if (labels[i] == class_number && rank-- == 0) break;
  at[0] = z;
  at[1] = i / size[2];
  at[2] = i % size[2];
  free(labels);
  return status;
}

/* A voxel of some class but the first, where there is one. */
static Status draw_voxel(VolumeSet *set, uint64_t key, uint64_t place, int64_t index, bool *found,
                         int64_t at[3]) {
  int64_t present[VL_MAX_CLASSES], count = 0;
  for (int64_t c = 1; c < set->shape.classes; c++)
    if (class_voxels(set, index, c) > 0) present[count++] = c;
  *found = count > 0;
  if (count == 0) return vl_ok();
  int64_t chosen = present[below(vl_random_word(key, place, CLASS), count)];
  uint64_t word = vl_random_word(key, place, VOXEL_LOW) | (uint64_t)vl_random_word(key, place, VOXEL_HIGH)
                                                              << 32;
  int64_t rank = (int64_t)(word % (uint64_t)class_voxels(set, index, chosen));
  return find_voxel(set, index, chosen, rank, at);
}

static Status draw_patch(VolumeSet *set, uint64_t key, uint64_t place, int64_t index, VolumeBox *box) {
  const int64_t *size = engine_volume(set, false, index)->size, *patch = set->shape.patch;
  int64_t voxel[3] = {0};
  bool around = below(vl_random_word(key, place, AROUND_A_VOXEL), 3) == 0;
  if (around) VL_TRY(draw_voxel(set, key, place, index, &around, voxel));
  for (int32_t i = 0; i < 3; i++) {
    int64_t free_places = size[i] - patch[i] + 1, start = -((patch[i] - size[i]) / 2);
    if (free_places > 0) {
      start = around ? voxel[i] - patch[i] / 2
                     : below(vl_random_word(key, place, START + (uint64_t)i), free_places);
      start = start < 0 ? 0 : smaller(start, free_places - 1);
    }
    box->start[i] = start;
    box->size[i] = patch[i];
  }
  return vl_ok();
}

static int64_t drawn_volume(VolumeSet *set, const StepPlace *at, int64_t place) {
  return engine_order_at(&set->order, at->seed, set->source.counts[0], at->drawn + place);
}

Status engine_volumes_batch(VolumeSet *set, StepPlace at, int64_t first, int64_t count, float *images,
                            int32_t *labels) {
  uint64_t key = vl_random_key(at.seed, at.step, "patch");
  int64_t voxels = product(set->shape.patch);
  for (int64_t n = 0; n < count; n++) {
    VolumeBox box;
    int64_t index = drawn_volume(set, &at, first + n);
    VL_TRY(draw_patch(set, key, (uint64_t)(first + n), index, &box));
    VL_TRY(engine_volume_read(set, false, index, box, images + n * set->shape.channels * voxels,
                              labels + n * voxels));
  }
  return vl_ok();
}

/* Wherever a patch is, it holds as much of its volume as there can be. */
int64_t engine_volumes_counted(VolumeSet *set, StepPlace at) {
  int64_t counted = 0;
  for (int64_t place = 0; place < at.samples; place++) {
    const int64_t *size = engine_volume(set, false, drawn_volume(set, &at, place))->size;
    int64_t voxels = 1;
    for (int32_t i = 0; i < 3; i++)
      voxels *= smaller(size[i], set->shape.patch[i]);
    counted += voxels;
  }
  return counted;
}
