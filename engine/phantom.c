/* Phantoms: generated volumes whose labels are known. A body holds an organ of each class but the first,
 * which is everything else: ellipsoids and bent tubes, each around a place of its class, turned, shifted and
 * stretched at random. Slices are further apart than voxels within them. A smooth field multiplies the
 * intensities, so that no threshold tells two organs apart everywhere, and noise is added to every voxel. */
#include "engine/volumes.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TRAINING = 32, DEFAULT_HELD_OUT = 8, MOST_PHANTOMS = 100000, FIELD_TERMS = 9 };

typedef struct Organ {
  double centre_mm[3], rotation[3][3];
  double half_mm[3]; /* of an ellipsoid, its semi-axes; of a tube half its length and, twice, its radius */
  bool is_tube;
  double bend[2]; /* of a tube's axis, sideways, at its ends, in parts of its length */
  double reach_mm;
} Organ;

typedef struct Phantom {
  Volume volume;
  double middle_mm[3], body_mm[3]; /* of the whole volume; semi-axes */
  double field[FIELD_TERMS];
  uint64_t noise_key;
  Organ *organs; /* [classes - 1] */
} Phantom;

typedef struct Phantoms {
  VolumeShape shape;
  double *contrasts; /* (channels, classes + 1): of each class, and last of the body */
  Phantom *phantoms; /* those to train on, then those held out */
  int64_t counts[2];
} Phantoms;

/* ---- Drawing one ---------------------------------------------------------------------------------------------------- */

/* Numbers in [0, 1), one after another. */
typedef struct Draws {
  uint64_t key, sample, next;
} Draws;

static double draw(Draws *draws, double low, double high) {
  double unit = (double)vl_random_unit(vl_random_word(draws->key, draws->sample, draws->next++));
  return low + (high - low) * unit;
}

/* A rotation, from a quaternion drawn uniformly (Shoemake, Graphics Gems III, 1992). */
static void draw_rotation(Draws *draws, double rotation[3][3]) {
  const double turn = 2.0 * acos(-1.0);
  double u = draw(draws, 0, 1), a = draw(draws, 0, turn), b = draw(draws, 0, turn);
  double x = sqrt(1 - u) * sin(a), y = sqrt(1 - u) * cos(a), z = sqrt(u) * sin(b), w = sqrt(u) * cos(b);
  const double matrix[3][3] = {{1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)},
                               {2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)},
                               {2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)}};
  memcpy(rotation, matrix, sizeof matrix);
}

/* Where organs of a class are: directions on a spiral around the sphere, so that any number is spread evenly,
 * and of many also at several distances. In parts of the body's semi-axes. */
static void usual_place(int64_t number, int64_t count, double place[3]) {
  const double golden_angle = acos(-1.0) * (3.0 - sqrt(5.0));
  double height = 1.0 - (2.0 * (double)number + 1.0) / (double)count, angle = golden_angle * (double)number;
  double part = (double)number * (sqrt(5.0) - 1.0) / 2.0, ring = sqrt(1.0 - height * height);
  double distance = count < 5 ? 0.45 : 0.75 * cbrt(part - floor(part));
  place[0] = distance * height;
  place[1] = distance * ring * cos(angle);
  place[2] = distance * ring * sin(angle);
}

static void draw_organ(Draws *draws, const Phantom *phantom, int64_t number, int64_t count, Organ *organ) {
  const double *body = phantom->body_mm;
  double place[3], share = 0.5 * cbrt(body[0] * body[1] * body[2] / (double)count);
  double radius = fmin(share, 0.6 * fmin(body[0], fmin(body[1], body[2])));
  usual_place(number, count, place);
  for (int32_t i = 0; i < 3; i++)
    organ->centre_mm[i] = phantom->middle_mm[i] + phantom->body_mm[i] * (place[i] + draw(draws, -0.1, 0.1));
  draw_rotation(draws, organ->rotation);
  organ->is_tube = number % 2 == 1;
  for (int32_t i = 0; i < 3; i++)
    organ->half_mm[i] = radius * draw(draws, 0.7, 1.3);
  if (organ->is_tube) {
    organ->half_mm[0] *= 1.6;
    organ->half_mm[1] = organ->half_mm[2] = 0.5 * organ->half_mm[1];
  }
  for (int32_t i = 0; i < 2; i++)
    organ->bend[i] = draw(draws, -0.5, 0.5);
  /* Of a tube a point of the axis is at most 2/3 of the bend away from the straight one. */
  double across = organ->half_mm[1] + (organ->is_tube ? 0.5 * organ->half_mm[0] : 0.0);
  organ->reach_mm = organ->half_mm[0] + across + organ->half_mm[2];
}

static void draw_phantom(const VolumeShape *shape, int64_t number, Phantom *phantom) {
  Draws draws = {vl_random_key(0, 0, "phantom"), (uint64_t)number, 0};
  Volume *volume = &phantom->volume;
  int64_t organs = shape->classes - 1;
  snprintf(volume->name, sizeof volume->name, "phantom %lld", (long long)number);
  for (int32_t i = 0; i < 3; i++) {
    double side = (double)shape->patch[i] * draw(&draws, 0.75, 1.75);
    volume->size[i] = side < 1.0 ? 1 : (int64_t)side;
    volume->spacing_mm[i] = i == 0 ? draw(&draws, 1.0, 2.5) : i == 1 ? draw(&draws, 0.7, 1.0) : 0.0;
  }
  volume->spacing_mm[2] = volume->spacing_mm[1];
  for (int32_t i = 0; i < 3; i++) {
    phantom->middle_mm[i] = 0.5 * (double)volume->size[i] * volume->spacing_mm[i];
    phantom->body_mm[i] = 0.92 * phantom->middle_mm[i];
  }
  for (int32_t i = 0; i < FIELD_TERMS; i++)
    phantom->field[i] = draw(&draws, -0.1, 0.1);
  phantom->noise_key = vl_random_key(0, (uint64_t)number, "phantom noise");
  phantom->organs = vl_allocate((size_t)organs * sizeof *phantom->organs);
  for (int64_t i = 0; i < organs; i++)
    draw_organ(&draws, phantom, i, organs, &phantom->organs[i]);
}

/* ---- A voxel ------------------------------------------------------------------------------------------------------ */

static bool in_organ(const Organ *organ, const double at_mm[3]) {
  double from[3], along[3];
  for (int32_t i = 0; i < 3; i++)
    from[i] = at_mm[i] - organ->centre_mm[i];
  if (from[0] * from[0] + from[1] * from[1] + from[2] * from[2] > organ->reach_mm * organ->reach_mm)
    return false;
  for (int32_t i = 0; i < 3; i++)
    along[i] =
        organ->rotation[i][0] * from[0] + organ->rotation[i][1] * from[1] + organ->rotation[i][2] * from[2];
  double t = along[0] / organ->half_mm[0];
  if (organ->is_tube) {
    if (fabs(t) > 1.0) return false;
    /* A parabola whose middle is in the centre. */
    along[1] -= organ->bend[0] * organ->half_mm[0] * (t * t - 1.0 / 3.0);
    along[2] -= organ->bend[1] * organ->half_mm[0] * (t * t - 1.0 / 3.0);
    t = 0.0;
  }
  double u = along[1] / organ->half_mm[1], v = along[2] / organ->half_mm[2];
  return t * t + u * u + v * v < 1.0;
}

/* Numbers of organs, the highest first. */
typedef struct Near {
  int32_t organs[VL_MAX_CLASSES], count;
} Near;

/* Those that a row along the third axis can meet. */
static Near near_row(const Phantom *phantom, int64_t organs, const double row_mm[2]) {
  Near near = {.count = 0};
  for (int64_t i = organs - 1; i >= 0; i--) {
    const Organ *organ = &phantom->organs[i];
    double z = row_mm[0] - organ->centre_mm[0], y = row_mm[1] - organ->centre_mm[1];
    if (z * z + y * y <= organ->reach_mm * organ->reach_mm) near.organs[near.count++] = (int32_t)i;
  }
  return near;
}

/* The class of a place, 0 outside the organs. Where two meet, the one of higher number is there. */
static int32_t class_at(const Phantom *phantom, const Near *near, const double at_mm[3]) {
  for (int32_t i = 0; i < near->count; i++)
    if (in_organ(&phantom->organs[near->organs[i]], at_mm)) return near->organs[i] + 1;
  return 0;
}

static bool in_body(const Phantom *phantom, const double at_mm[3]) {
  double sum = 0.0;
  for (int32_t i = 0; i < 3; i++) {
    double part = (at_mm[i] - phantom->middle_mm[i]) / phantom->body_mm[i];
    sum += part * part;
  }
  return sum < 1.0;
}

/* A polynomial of degree 2 around 1. */
static double field_at(const Phantom *phantom, const double at_mm[3]) {
  double at[3], sum = 1.0;
  int32_t term = 0;
  for (int32_t i = 0; i < 3; i++)
    at[i] = at_mm[i] / phantom->middle_mm[i] - 1.0;
  for (int32_t i = 0; i < 3; i++) {
    sum += phantom->field[term++] * at[i];
    for (int32_t j = i; j < 3; j++)
      sum += phantom->field[term++] * at[i] * at[j];
  }
  return sum;
}

/* Nearly Gaussian, of mean 0 and deviation 1: the sum of four bytes. */
static double noise(uint64_t key, int64_t channel, int64_t voxel) {
  uint32_t word = vl_random_word(key, (uint64_t)channel, (uint64_t)voxel);
  double sum = (double)((word & 255) + (word >> 8 & 255) + (word >> 16 & 255) + (word >> 24));
  return (sum - 510.0) / sqrt(4.0 * (256.0 * 256.0 - 1.0) / 12.0);
}

/* ---- Reading -------------------------------------------------------------------------------------------------------- */

static const Phantom *phantom_of(const Phantoms *set, bool held_out, int64_t index) {
  return &set->phantoms[(held_out ? set->counts[0] : 0) + index];
}

static const Volume *volume(const void *context, bool held_out, int64_t index) {
  return &phantom_of(context, held_out, index)->volume;
}

/* Intensities of a voxel in all channels, `stride` apart. */
static void write_image(const Phantoms *set, const Phantom *phantom, const double at_mm[3],
                        int32_t class_number, int64_t voxel, int64_t stride, float *image) {
  int64_t classes = set->shape.classes;
  int64_t what = class_number == 0 && in_body(phantom, at_mm) ? classes : class_number;
  double field = field_at(phantom, at_mm);
  for (int64_t c = 0; c < set->shape.channels; c++) {
    double value =
        set->contrasts[c * (classes + 1) + what] * field + 0.12 * noise(phantom->noise_key, c, voxel);
    image[c * stride] = (float)(2.0 * (value - 0.4));
  }
}

static double middle_of(int64_t voxel, double spacing_mm) { return ((double)voxel + 0.5) * spacing_mm; }

/* Row (z, y) of a part. */
static void read_row(const Phantoms *set, const Phantom *phantom, const VolumePart *part, int64_t z,
                     int64_t y, float *image, int32_t *labels) {
  const Volume *of = &phantom->volume;
  const int64_t *start = part->box.start, *size = part->size;
  double at_mm[3] = {middle_of(start[0] + z, of->spacing_mm[0]), middle_of(start[1] + y, of->spacing_mm[1])};
  Near near = near_row(phantom, set->shape.classes - 1, at_mm);
  for (int64_t x = 0; x < part->box.size[2]; x++) {
    int64_t at = ((part->to[0] + z) * size[1] + part->to[1] + y) * size[2] + part->to[2] + x;
    int64_t voxel = ((start[0] + z) * of->size[1] + start[1] + y) * of->size[2] + start[2] + x;
    at_mm[2] = middle_of(start[2] + x, of->spacing_mm[2]);
    int32_t class_number = class_at(phantom, &near, at_mm);
    if (labels) labels[at] = class_number;
    if (image) write_image(set, phantom, at_mm, class_number, voxel, size[0] * size[1] * size[2], image + at);
  }
}

static Status read_part(void *context, bool held_out, int64_t index, const VolumePart *part, float *image,
                        int32_t *labels) {
  const Phantoms *set = context;
  for (int64_t z = 0; z < part->box.size[0]; z++)
    for (int64_t y = 0; y < part->box.size[1]; y++)
      read_row(set, phantom_of(set, held_out, index), part, z, y, image, labels);
  return vl_ok();
}

/* ---- Opening -------------------------------------------------------------------------------------------------------- */

/* What classes look like: in the first channel neighbours differ by about the field, in others as it comes.
 * Outside the body there is nothing. */
static void choose_contrasts(Phantoms *set) {
  int64_t channels = set->shape.channels, classes = set->shape.classes;
  uint64_t key = vl_random_key(0, 0, "phantom contrast");
  set->contrasts = vl_allocate((size_t)(channels * (classes + 1)) * sizeof *set->contrasts);
  for (int64_t c = 0; c < channels; c++) {
    double *of = set->contrasts + c * (classes + 1);
    for (int64_t k = 1; k <= classes; k++) {
      double drawn = 0.3 + (double)vl_random_unit(vl_random_word(key, (uint64_t)c, (uint64_t)k));
      of[k] = c > 0 ? drawn : k == classes ? 0.45 : 0.7 + 0.15 * (double)(5 * k % 7);
    }
  }
}

bool engine_is_phantoms(const char *path) {
  return strncmp(path, "phantoms", 8) == 0 && (path[8] == '\0' || path[8] == ':');
}

static Status read_counts(const char *path, int64_t counts[2]) {
  char text[64];
  counts[0] = DEFAULT_TRAINING;
  counts[1] = DEFAULT_HELD_OUT;
  if (path[8] == '\0') return vl_ok();
  snprintf(text, sizeof text, "%s", path + 9);
  char *plus = strchr(text, '+');
  if (!plus)
    return vl_error(VL_INVALID,
                    "'%s': after the colon are two numbers, as in phantoms:%d+%d, those to train "
                    "on and those held out",
                    path, DEFAULT_TRAINING, DEFAULT_HELD_OUT);
  *plus = '\0';
  VL_TRY(vl_parse_integer("phantoms to train on", text, 1, MOST_PHANTOMS, &counts[0]));
  return vl_parse_integer("phantoms held out", plus + 1, 1, MOST_PHANTOMS, &counts[1]);
}

static void close_phantoms(void *context) {
  Phantoms *set = context;
  for (int64_t i = 0; i < set->counts[0] + set->counts[1]; i++)
    free(set->phantoms[i].organs);
  free(set->phantoms);
  free(set->contrasts);
  free(set);
}

Status engine_phantoms_open(const char *path, VolumeShape shape, VolumeSource *source) {
  int64_t counts[2];
  VL_TRY(read_counts(path, counts));
  Phantoms *set = vl_allocate(sizeof *set);
  *set = (Phantoms){.shape = shape, .counts = {counts[0], counts[1]}};
  choose_contrasts(set);
  int64_t all = counts[0] + counts[1];
  set->phantoms = vl_allocate((size_t)all * sizeof *set->phantoms);
  for (int64_t i = 0; i < all; i++)
    draw_phantom(&set->shape, i, &set->phantoms[i]);
  *source = (VolumeSource){set, {counts[0], counts[1]}, volume, read_part, close_phantoms};
  return vl_ok();
}
