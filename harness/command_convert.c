/* vramlab convert: a folder of NIfTI images and labels to a data file for `run --data`. */
#include "harness/options.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEY_HELD_OUT = 0x200, PATH_BYTES = 1024 };

typedef struct ConvertCommand {
  const char *folder, *output;
  int64_t held_out; /* every so many */
} ConvertCommand;

static const struct argp_option options_table[] = {
    {"held-out", KEY_HELD_OUT, "N", 0, "hold out every Nth volume (default 5)", 1}, {0}};

static error_t parse_option(int key, char *text, struct argp_state *state) {
  ConvertCommand *command = state->input;
  switch (key) {
  case KEY_HELD_OUT: {
    Status status = vl_parse_integer("--held-out", text, 2, 1000000, &command->held_out);
    if (status.code != VL_OK) argp_error(state, "%s", status.message);
    return 0;
  }
  case ARGP_KEY_ARG:
    if (command->output) argp_error(state, "unexpected argument: %s", text);
    *(command->folder ? &command->output : &command->folder) = text;
    return 0;
  case ARGP_KEY_END:
    if (!command->output) argp_error(state, "give the folder to read and the file to write");
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp convert_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "FOLDER OUT.h5",
    .doc =
        "Reads NIfTI-1 volumes with a label for every voxel and writes a data file for `vramlab run --data`."
        "\vFOLDER holds imagesTr and labelsTr, as the Medical Segmentation Decathlon and nnU-Net have them: "
        "to "
        "labelsTr/NAME.nii.gz (or .nii) belongs imagesTr/NAME.nii.gz, whose fourth dimension is channels, or "
        "imagesTr/NAME_0000.nii.gz, NAME_0001.nii.gz and so on, a channel each. Values are scaled as the "
        "files "
        "say and stored with their mean and deviation, volumes turned to go from left to right, behind to "
        "before and below to above; spacing is kept, nothing is resampled. Every Nth volume, in order of the "
        "names, is held out.\n\n"
        "OUT.h5, for programs that write such files themselves: groups volumes and held_out_volumes; in each "
        "a "
        "group a volume with datasets image (channels, depth, height, width), numbers, and labels (depth, "
        "height, width), whole numbers from 0 on, and the attribute spacing_mm (3). With attributes mean and "
        "standard_deviation (channels) of image, it is read less the one in units of the other."};

/* ---- One volume -------------------------------------------------------------------------------------------------------- */

/* The file of a name without its ending; empty when there is none. */
static void find_file(const char *folder, const char *part, const char *name, char path[PATH_BYTES]) {
  static const char *const endings[] = {".nii.gz", ".nii"};
  for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
    int length = snprintf(path, PATH_BYTES, "%s/%s/%s%s", folder, part, name, endings[i]);
    if (length < PATH_BYTES && access(path, F_OK) == 0) return;
  }
  *path = '\0';
}

/* The grids of two images are the same one. */
static Status check_grid(const char *path, const NiftiImage *image, const char *as, const NiftiImage *other) {
  for (int32_t i = 0; i < 3; i++) {
    bool close = fabs(image->spacing_mm[i] - other->spacing_mm[i]) <= 0.01 * other->spacing_mm[i];
    if (image->size[i] == other->size[i] && close) continue;
    return vl_error(
        VL_INVALID,
        "%s has %lld x %lld x %lld voxels of %g x %g x %g mm, %s has %lld x %lld x %lld of %g x %g "
        "x %g mm",
        path, (long long)image->size[0], (long long)image->size[1], (long long)image->size[2],
        image->spacing_mm[0], image->spacing_mm[1], image->spacing_mm[2], as, (long long)other->size[0],
        (long long)other->size[1], (long long)other->size[2], other->spacing_mm[0], other->spacing_mm[1],
        other->spacing_mm[2]);
  }
  return vl_ok();
}

/* Adds the channels of a file to those there are. */
static Status append_channels(const char *path, NiftiImage *image) {
  NiftiImage more;
  VL_TRY(vl_nifti_read(path, &more));
  Status status = image->channels > 0 ? check_grid(path, &more, "its first channel", image) : vl_ok();
  if (status.code == VL_OK && image->channels + more.channels > VL_MAX_CHANNELS)
    status = vl_error(VL_INVALID, "%s would be channel %lld of a volume, which has up to %d", path,
                      (long long)image->channels, VL_MAX_CHANNELS);
  if (status.code == VL_OK && image->channels == 0) {
    *image = more;
    return status;
  }
  if (status.code == VL_OK) {
    int64_t voxels = more.size[0] * more.size[1] * more.size[2];
    image->values = vl_reallocate(image->values, (size_t)((image->channels + more.channels) * voxels) *
                                                     sizeof *image->values);
    memcpy(image->values + image->channels * voxels, more.values,
           (size_t)(more.channels * voxels) * sizeof *more.values);
    image->channels += more.channels;
  }
  vl_nifti_clear(&more);
  return status;
}

static Status read_image(const char *folder, const char *name, NiftiImage *image) {
  char path[PATH_BYTES], channel[sizeof((struct dirent *)0)->d_name + 16];
  find_file(folder, "imagesTr", name, path);
  if (*path) return append_channels(path, image);
  for (int32_t c = 0;; c++) {
    snprintf(channel, sizeof channel, "%s_%04d", name, c);
    find_file(folder, "imagesTr", channel, path);
    if (!*path && c > 0) return vl_ok();
    if (!*path)
      return vl_error(VL_INVALID, "%s/imagesTr has neither %s.nii.gz nor %s.nii.gz, to which labels belong",
                      folder, name, channel);
    VL_TRY(append_channels(path, image));
  }
}

/* Labels are whole numbers from 0 on. */
static Status read_labels(const char *path, const NiftiImage *labels, int32_t *out, int32_t *highest) {
  int64_t voxels = labels->size[0] * labels->size[1] * labels->size[2];
  if (labels->channels != 1)
    return vl_error(VL_INVALID, "%s has %lld channels; labels have one", path, (long long)labels->channels);
  for (int64_t i = 0; i < voxels; i++) {
    float value = labels->values[i];
    if (!(value >= 0.0F && value < VL_MAX_CLASSES && value == floorf(value)))
      return vl_error(VL_INVALID, "%s: label %g, at (%lld, %lld, %lld), is no whole number below %d", path,
                      (double)value, (long long)(i / labels->size[2] / labels->size[1]),
                      (long long)(i / labels->size[2] % labels->size[1]), (long long)(i % labels->size[2]),
                      VL_MAX_CLASSES);
    out[i] = (int32_t)value;
    if (out[i] > *highest) *highest = out[i];
  }
  return vl_ok();
}

static Status check_finite(const char *name, const NiftiImage *image) {
  int64_t values = image->channels * image->size[0] * image->size[1] * image->size[2];
  for (int64_t i = 0; i < values; i++)
    if (!isfinite(image->values[i]))
      return vl_error(VL_INVALID, "volume '%s': value %lld is %g", name, (long long)i,
                      (double)image->values[i]);
  return vl_ok();
}

/* What the file holds so far. */
typedef struct Summary {
  int64_t counts[2], channels;
  int32_t highest;
} Summary;

static Status add_volume(const ConvertCommand *command, const char *name, bool held_out, VolumeWriter *writer,
                         Summary *summary, NiftiImage *image, NiftiImage *labels) {
  char path[PATH_BYTES];
  find_file(command->folder, "labelsTr", name, path);
  VL_TRY(vl_nifti_read(path, labels));
  VL_TRY(read_image(command->folder, name, image));
  VL_TRY(check_finite(name, image));
  VL_TRY(check_grid(path, labels, "its image", image));
  if (summary->channels > 0 && summary->channels != image->channels)
    return vl_error(VL_INVALID, "volume '%s' has %lld channels, those before it have %lld", name,
                    (long long)image->channels, (long long)summary->channels);
  int64_t voxels = image->size[0] * image->size[1] * image->size[2];
  int32_t *classes = vl_allocate((size_t)voxels * sizeof *classes);
  Status status = read_labels(path, labels, classes, &summary->highest);
  if (status.code == VL_OK) {
    NewVolume volume = {.name = name,
                        .held_out = held_out,
                        .channels = image->channels,
                        .image = image->values,
                        .labels = classes};
    memcpy(volume.size, image->size, sizeof volume.size);
    memcpy(volume.spacing_mm, image->spacing_mm, sizeof volume.spacing_mm);
    status = vl_volume_writer_add(writer, &volume);
  }
  free(classes);
  summary->channels = image->channels;
  summary->counts[held_out]++;
  return status;
}

/* ---- All of them --------------------------------------------------------------------------------------------------------- */

static int is_nifti(const struct dirent *entry) {
  const char *ending = strstr(entry->d_name, ".nii");
  return *entry->d_name != '.' && ending && (strcmp(ending, ".nii") == 0 || strcmp(ending, ".nii.gz") == 0);
}

static Status add_all(const ConvertCommand *command, struct dirent **entries, int count, VolumeWriter *writer,
                      Summary *summary) {
  for (int i = 0; i < count; i++) {
    NiftiImage image = {0}, labels = {0};
    char *name = entries[i]->d_name;
    *strstr(name, ".nii") = '\0';
    bool held_out =
        i % command->held_out == command->held_out - 1 || (i == count - 1 && count < command->held_out);
    fprintf(stderr, "%d of %d: %s\n", i + 1, count, name);
    Status status = add_volume(command, name, held_out, writer, summary, &image, &labels);
    vl_nifti_clear(&image);
    vl_nifti_clear(&labels);
    if (status.code != VL_OK) return status;
  }
  return vl_ok();
}

static Status convert(const ConvertCommand *command) {
  char path[PATH_BYTES];
  struct dirent **entries = NULL;
  VolumeWriter *writer = NULL;
  Summary summary = {0};
  snprintf(path, sizeof path, "%s/labelsTr", command->folder);
  int count = scandir(path, &entries, is_nifti, alphasort);
  Status status = vl_ok();
  if (count < 0) status = vl_error(VL_INVALID, "cannot read the folder %s", path);
  if (count >= 0 && count < 2)
    status =
        vl_error(VL_INVALID, "%s holds %d NIfTI files; two are the least, one of them held out", path, count);
  if (status.code == VL_OK) status = vl_volume_writer_create(command->output, &writer);
  if (status.code == VL_OK) status = add_all(command, entries, count, writer, &summary);
  if (status.code == VL_OK) status = vl_volume_writer_finish(&writer);
  vl_volume_writer_abandon(&writer);
  for (int i = 0; i < count; i++)
    free(entries[i]);
  free(entries);
  if (status.code == VL_OK)
    printf("%s: %lld volumes to train on, %lld held out, %lld channels, %d classes\n"
           "Next:   vramlab run --case unet3d --set channels=%lld --set classes=%d --data %s\n",
           command->output, (long long)summary.counts[0], (long long)summary.counts[1],
           (long long)summary.channels, summary.highest + 1, (long long)summary.channels, summary.highest + 1,
           command->output);
  return status;
}

int vl_command_convert(int argc, char **argv) {
  ConvertCommand command = {.held_out = 5};
  vl_command_parse(&convert_argp, argc, argv, &command);
  Status status = convert(&command);
  return status.code == VL_OK ? 0 : vl_command_fail(status);
}
