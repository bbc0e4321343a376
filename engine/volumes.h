/* Volumes of different sizes with a label for every voxel: where they come from (volume_file.c, phantom.c),
 * the patches that training draws from them (volumes.c), inference by windows that slide over them
 * (sliding.c), and Dice (dice.c). Sizes and places are depth, height, width. */
#ifndef VRAMLAB_ENGINE_VOLUMES_H
#define VRAMLAB_ENGINE_VOLUMES_H

#include "engine/internal.h"

/* What a case takes of a data set. */
typedef struct VolumeShape {
  int64_t channels, classes;
  int64_t patch[3];
} VolumeShape;

typedef struct Volume {
  char name[VL_NAME_BYTES];
  int64_t size[3];
  double spacing_mm[3]; /* between the centres of voxels */
} Volume;

/* Voxels of a volume, possibly beyond its ends. */
typedef struct VolumeBox {
  int64_t start[3], size[3];
} VolumeBox;

/* A box inside a volume, and where its first voxel goes in a buffer of (channels,) size. */
typedef struct VolumePart {
  VolumeBox box;
  int64_t to[3], size[3];
} VolumePart;

/* Where volumes come from. */
typedef struct VolumeSource {
  void *context;
  int64_t counts[2]; /* to train on, held out */
  const Volume *(*volume)(const void *context, bool held_out, int64_t index);
  /* NULL: not asked for. Writes what the part covers and nothing else. */
  Status (*read)(void *context, bool held_out, int64_t index, const VolumePart *part, float *image,
                 int32_t *labels);
  void (*close)(void *context);
} VolumeSource;
/* An HDF5 file: groups `volumes` and `held_out_volumes`, in each a group a volume, in order of their names,
 * with `image` (C, D, H, W), `labels` (D, H, W), whole numbers, and the attribute `spacing_mm` (3), 1 where
 * it is missing. Attributes `mean` and `standard_deviation` (C) of `image`: a channel is read less its mean,
 * in units of its deviation. */
Status engine_volume_file_open(const char *path, VolumeShape shape, VolumeSource *source) VL_CHECKED;
/* "phantoms" or "phantoms:TRAINING+HELD_OUT": generated bodies with classes - 1 organs, of sides between 3/4
 * and 7/4 of the patch's. Every voxel is a function of (number of the phantom, place): nothing is stored. */
bool engine_is_phantoms(const char *path);
Status engine_phantoms_open(const char *path, VolumeShape shape, VolumeSource *source) VL_CHECKED;

/* ---- Patches (volumes.c) ---- */

typedef struct VolumeSet VolumeSet;
/* Reads every label: a bad one must not end an epoch that has begun. */
Status engine_volumes_open(const char *path, VolumeShape shape, VolumeSet **set) VL_CHECKED;
void engine_volumes_close(VolumeSet **set);
int64_t engine_volumes_count(const VolumeSet *set, bool held_out);
int64_t engine_volumes_channels(const VolumeSet *set);
const Volume *engine_volume(const VolumeSet *set, bool held_out, int64_t index);
/* Voxels of a volume: image (channels, box) and labels (box), NULL where not asked for. Beyond the volume the
 * image is 0, which is its mean, and the label VL_IGNORED_LABEL. */
Status engine_volume_read(VolumeSet *set, bool held_out, int64_t index, VolumeBox box, float *image,
                          int32_t *labels) VL_CHECKED;
/* Training patches from `first` of a step on. An epoch draws every volume once, a patch of it each time: one
 * in three around a voxel of some class but the first, all classes that are there as often, the others
 * anywhere. A volume that is smaller than the patch is in its middle. */
Status engine_volumes_batch(VolumeSet *set, StepPlace at, int64_t first, int64_t count, float *images,
                            int32_t *labels) VL_CHECKED;
/* Labels that count in the whole step. */
int64_t engine_volumes_counted(VolumeSet *set, StepPlace at);

/* ---- Sliding windows (sliding.c) ---- */

/* Windows that cover a volume, evenly, so that neighbours overlap by `overlap` of a side or more. A volume
 * that is smaller than the window is in its middle. */
typedef struct WindowGrid {
  int64_t size[3], window[3], count[3];
} WindowGrid;
/* overlap: in [0, 1). */
WindowGrid engine_window_grid(const int64_t size[3], const int64_t window[3], double overlap);
int64_t engine_window_count(const WindowGrid *grid);
VolumeBox engine_window_at(const WindowGrid *grid, int64_t number);
/* The weight of a window's voxel is the product of one factor an axis: a Gaussian around the middle whose
 * standard deviation is an eighth of the side. factors: room for `side`. */
void engine_window_factors(int64_t side, float *factors);

/* Logits of a volume. */
typedef struct VolumeLogits {
  float *values; /* (classes, volume), readable by the host */
  Block *block;  /* where the sums are memory of the device, else NULL */
  bool is_view;  /* values are the block's */
} VolumeLogits;
/* Infers a whole volume by an evaluation program, whose logits (N, classes, window) tell batch and window:
 * the mean of what the windows say, weighted. Windows are added up in their order, so that the result depends
 * on the batch no more than the program's does. The sums, one number a class and voxel and one more a voxel,
 * are memory of the device unless the program wants them on the host. */
Status engine_sliding_infer(VolumeSet *set, bool held_out, int64_t index, double overlap, Run *run,
                            Inputs *inputs, VolumeLogits *logits) VL_CHECKED;
void engine_volume_logits_clear(const Run *run, VolumeLogits *logits);

/* ---- Dice (dice.c) ---- */

/* How well predicted classes agree with labels. Dice of a class in a volume is 2 |P and T| / (|P| + |T|); a
 * volume in which the class is neither predicted nor true does not count for it. */
typedef struct DiceSums {
  double sum[VL_MAX_CLASSES]; /* of the Dice of volumes that count */
  int64_t volumes[VL_MAX_CLASSES];
} DiceSums;
/* Adds a volume. Voxels of VL_IGNORED_LABEL do not count. */
void engine_dice_add(DiceSums *sums, int32_t classes, const int32_t *predicted, const int32_t *labels,
                     int64_t voxels);
/* The mean over the volumes that count; NaN: none does. */
double engine_dice_of_class(const DiceSums *sums, int32_t class_number);
/* The mean over the classes with a value, all but the first, which is what is no organ; NaN: none has one. */
double engine_dice_mean(const DiceSums *sums, int32_t classes);

#endif
