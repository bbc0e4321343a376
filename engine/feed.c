/* What a program's inputs hold: samples of a data file, images, volumes or text as the inputs ask for, or
 * Philox's. */
#include "engine/volumes.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct Feed {
  uint64_t seed;
  bool labelled; /* the program has labels among its inputs */
  DataSet *images;
  VolumeSet *volumes;
  TextSet *text; /* none of them: synthetic */
  TextShape shape;
  int64_t batch;          /* samples of a micro-batch */
  int64_t image_elements; /* of a sample */
  int64_t labels;         /* of a sample */
  int64_t classes;        /* scores of a label */
};

/* Samples from `first` of the held-out part or of a step on. */
typedef struct Draw {
  bool held_out;
  int64_t batch, first;
  uint64_t step;
  Window window;
} Draw;

static const Storage *input_named(const Program *program, const char *name) {
  for (int32_t i = 0; i < program->graph->storage_count; i++) {
    const Storage *storage = program->graph->storages[i];
    if (storage->role == ROLE_INPUT && strcmp(storage->name, name) == 0) return storage;
  }
  return NULL;
}

static Status open_text(Feed *feed, const char *path, const Storage *tokens, const Storage *positions) {
  feed->shape = (TextShape){.vocabulary = (int64_t)tokens->init.value,
                            .sequence = tokens->root->shape[1],
                            .predictions = positions->root->shape[1]};
  feed->batch = tokens->root->shape[0];
  feed->labels = feed->shape.predictions;
  feed->classes = feed->shape.vocabulary;
  return engine_text_open(path, feed->shape, &feed->text);
}

static Status open_images(Feed *feed, const char *path, const Storage *images, int64_t classes) {
  const int64_t *shape = images->root->shape;
  feed->batch = shape[0];
  feed->labels = 1;
  feed->image_elements = shape[1] * shape[2] * shape[3];
  feed->classes = classes;
  return engine_data_open(path, shape[1], shape[2], classes, &feed->images);
}

static Status open_volumes(Feed *feed, const char *path, const Storage *images, int64_t classes) {
  const int64_t *shape = images->root->shape;
  VolumeShape of = {shape[1], classes, {shape[2], shape[3], shape[4]}};
  feed->batch = shape[0];
  feed->labels = shape[2] * shape[3] * shape[4];
  feed->image_elements = shape[1] * feed->labels;
  feed->classes = classes;
  return engine_volumes_open(path, of, &feed->volumes);
}

static Status open_file(Feed *feed, const char *path, const Program *program) {
  const Storage *images = input_named(program, "images"), *tokens = input_named(program, "tokens"),
                *positions = input_named(program, "positions");
  if (tokens && positions) return open_text(feed, path, tokens, positions);
  bool scored = images && program->logits, of_volumes = scored && images->root->rank == 5;
  if (engine_is_phantoms(path) && !of_volumes)
    return vl_error(VL_INVALID, "%s is no case of volumes: it learns nothing from phantoms",
                    program->graph->name);
  if (of_volumes) return open_volumes(feed, path, images, program->logits->shape[1]);
  if (scored) return open_images(feed, path, images, program->logits->shape[1]);
  return vl_error(VL_INVALID, "%s cannot be read from a data file", program->graph->name);
}

Status engine_feed_open(const char *path, const Program *program, uint64_t seed, Feed **out) {
  Feed *feed = vl_allocate(sizeof *feed);
  *feed = (Feed){.seed = seed, .labelled = input_named(program, "labels") != NULL};
  Status status = path[0] ? open_file(feed, path, program) : vl_ok();
  if (status.code != VL_OK) engine_feed_close(&feed);
  *out = feed;
  return status;
}

void engine_feed_close(Feed **feed) {
  Feed *it = *feed;
  if (!it) return;
  engine_data_close(&it->images);
  engine_volumes_close(&it->volumes);
  engine_text_close(&it->text);
  free(it);
  *feed = NULL;
}

static Status write_i32(Inputs *inputs, const char *name, const int32_t *values, int64_t count) {
  return vl_inputs_write(inputs, name, values, count * (int64_t)sizeof *values);
}

static Status write_images(Feed *feed, Inputs *inputs, Draw draw, int32_t *labels) {
  int64_t bytes = draw.batch * feed->image_elements * (int64_t)sizeof(float);
  float *images = vl_allocate((size_t)bytes);
  int64_t drawn = draw.window.drawn + draw.first;
  Status status = draw.held_out
                      ? engine_data_held_out(feed->images, draw.first, draw.batch, images, labels)
                      : engine_data_batch(feed->images, feed->seed, drawn, draw.batch, images, labels);
  if (status.code == VL_OK) status = vl_inputs_write(inputs, "images", images, bytes);
  free(images);
  return status;
}

/* Training patches; held-out volumes are seen whole. */
static Status write_patches(Feed *feed, Inputs *inputs, Draw draw, int32_t *labels) {
  StepPlace at = {feed->seed, draw.step, draw.window.samples, draw.window.drawn};
  int64_t bytes = draw.batch * feed->image_elements * (int64_t)sizeof(float);
  float *images = vl_allocate((size_t)bytes);
  Status status = engine_volumes_batch(feed->volumes, at, draw.first, draw.batch, images, labels);
  if (status.code == VL_OK) status = vl_inputs_write(inputs, "images", images, bytes);
  if (status.code == VL_OK && feed->labelled && draw.first == 0)
    status = vl_inputs_set_counted(inputs, "labels", engine_volumes_counted(feed->volumes, at));
  free(images);
  return status;
}

static Status write_batch(const Feed *feed, Inputs *inputs, const TextBatch *batch, bool labelled) {
  int64_t tokens = batch->count * feed->shape.sequence;
  VL_TRY(write_i32(inputs, "tokens", batch->tokens, tokens));
  VL_TRY(write_i32(inputs, "segments", batch->segments, tokens));
  VL_TRY(write_i32(inputs, "positions", batch->positions, batch->count * feed->labels));
  VL_TRY(vl_inputs_write(inputs, "mask", batch->mask, tokens * (int64_t)sizeof(float)));
  return labelled ? write_i32(inputs, "follows", batch->follows, batch->count) : vl_ok();
}

static Status write_text(Feed *feed, Inputs *inputs, Draw draw, int32_t *labels) {
  int64_t tokens = draw.batch * feed->shape.sequence, predictions = draw.batch * feed->labels;
  StepPlace at = {feed->seed, draw.step, draw.window.samples, draw.window.drawn};
  int32_t *numbers = vl_allocate((size_t)(2 * tokens + predictions + draw.batch) * sizeof *numbers);
  TextBatch batch = {.count = draw.batch,
                     .tokens = numbers,
                     .segments = numbers + tokens,
                     .positions = numbers + 2 * tokens,
                     .follows = numbers + 2 * tokens + predictions,
                     .labels = labels,
                     .mask = vl_allocate((size_t)tokens * sizeof(float))};
  Status status = draw.held_out ? engine_text_held_out(feed->text, draw.first, &batch)
                                : engine_text_batch(feed->text, at, draw.first, &batch);
  bool labelled = feed->labelled && !draw.held_out;
  if (status.code == VL_OK) status = write_batch(feed, inputs, &batch, labelled);
  if (status.code == VL_OK && labelled && draw.first == 0)
    status = vl_inputs_set_counted(inputs, "labels", engine_text_counted(feed->text, at));
  free(numbers);
  free(batch.mask);
  return status;
}

/* All inputs but the labels, which are handed out. */
static Status write_samples(Feed *feed, Inputs *inputs, Draw draw, int32_t *labels) {
  if (feed->volumes) return write_patches(feed, inputs, draw, labels);
  return feed->text ? write_text(feed, inputs, draw, labels) : write_images(feed, inputs, draw, labels);
}

const char *engine_feed_vocabulary(const Feed *feed) {
  return feed->text ? engine_text_vocabulary(feed->text) : "";
}

int64_t engine_feed_count(const Feed *feed) {
  if (feed->text) return engine_text_count(feed->text, false);
  if (feed->volumes) return engine_volumes_count(feed->volumes, false);
  return feed->images ? engine_data_count(feed->images, false) : 0;
}

Window engine_feed_window(const Feed *feed, uint64_t step, int64_t global_batch) {
  int64_t count = engine_feed_count(feed);
  if (count == 0) return (Window){(int64_t)step * global_batch, global_batch};
  int64_t steps = (count + global_batch - 1) / global_batch;
  int64_t epoch = (int64_t)step / steps, first = (int64_t)step % steps * global_batch, left = count - first;
  return (Window){epoch * count + first, left < global_batch ? left : global_batch};
}

Status engine_feed_fill(Feed *feed, Inputs *inputs, int64_t batch, uint64_t step, int64_t global_batch,
                        int64_t first) {
  if (!feed->text && !feed->images && !feed->volumes)
    return vl_inputs_synthesize(inputs, feed->seed, step, first);
  Window window = engine_feed_window(feed, step, global_batch);
  Draw draw = {.batch = batch, .first = first, .step = step, .window = window};
  int32_t *labels = vl_allocate((size_t)(batch * feed->labels) * sizeof *labels);
  Status status = write_samples(feed, inputs, draw, labels);
  if (status.code == VL_OK && feed->labelled)
    status = write_i32(inputs, "labels", labels, batch * feed->labels);
  free(labels);
  return status;
}

/* ---- Evaluation ------------------------------------------------------------------------------------------------ */

/* Windows over a volume overlap by half of a side, as is usual. */
static const double WINDOW_OVERLAP = 0.5;

typedef struct Score {
  double loss; /* summed */
  int64_t correct, counted;
  DiceSums dice;        /* of volumes */
  int64_t inference_ns; /* of all of them */
} Score;

/* Scores of a label's classes are `stride` apart. Returns the class predicted. */
static int32_t score_label(const float *logits, int64_t classes, int64_t stride, int32_t label,
                           Score *score) {
  int64_t best = 0;
  double sum = 0.0;
  for (int64_t c = 1; c < classes; c++)
    if (logits[c * stride] > logits[best * stride]) best = c;
  for (int64_t c = 0; c < classes; c++)
    sum += exp((double)logits[c * stride] - (double)logits[best * stride]);
  score->loss += log(sum) + (double)logits[best * stride] - (double)logits[label * stride];
  score->correct += best == label;
  score->counted++;
  return (int32_t)best;
}

static Status score_all(Feed *feed, Run *run, Inputs *inputs, Score *score) {
  int64_t count = feed->text ? engine_text_count(feed->text, true) : engine_data_count(feed->images, true);
  int64_t all = feed->batch * feed->labels;
  int32_t *labels = vl_allocate((size_t)all * sizeof *labels);
  float *logits = vl_allocate((size_t)(all * feed->classes) * sizeof *logits);
  Status status = vl_ok();
  for (int64_t first = 0; first < count && status.code == VL_OK; first += feed->batch) {
    StepResult step;
    status =
        write_samples(feed, inputs, (Draw){.held_out = true, .batch = feed->batch, .first = first}, labels);
    if (status.code == VL_OK) status = vl_run_step(run, inputs, &step, logits);
    int64_t rows = (count - first < feed->batch ? count - first : feed->batch) * feed->labels;
    for (int64_t row = 0; row < rows && status.code == VL_OK; row++) {
      if (labels[row] != VL_IGNORED_LABEL)
        score_label(logits + row * feed->classes, feed->classes, 1, labels[row], score);
    }
  }
  free(labels);
  free(logits);
  return status;
}

static Status score_volume(Feed *feed, int64_t index, Run *run, Inputs *inputs, Score *score) {
  const int64_t *size = engine_volume(feed->volumes, true, index)->size;
  int64_t voxels = size[0] * size[1] * size[2], start_ns = vl_monotonic_ns();
  VolumeLogits logits;
  VL_TRY(engine_sliding_infer(feed->volumes, true, index, WINDOW_OVERLAP, run, inputs, &logits));
  score->inference_ns += vl_monotonic_ns() - start_ns;
  VolumeBox whole = {{0, 0, 0}, {size[0], size[1], size[2]}};
  int32_t *labels = vl_allocate((size_t)(2 * voxels) * sizeof *labels), *predicted = labels + voxels;
  Status status = engine_volume_read(feed->volumes, true, index, whole, NULL, labels);
  for (int64_t i = 0; i < voxels && status.code == VL_OK; i++)
    predicted[i] = score_label(logits.values + i, feed->classes, voxels, labels[i], score);
  if (status.code == VL_OK) engine_dice_add(&score->dice, (int32_t)feed->classes, predicted, labels, voxels);
  free(labels);
  engine_volume_logits_clear(run, &logits);
  return status;
}

static Status score_volumes(Feed *feed, Run *run, Inputs *inputs, Score *score, CellResult *result) {
  int64_t count = engine_volumes_count(feed->volumes, true);
  for (int64_t i = 0; i < count; i++)
    VL_TRY(score_volume(feed, i, run, inputs, score));
  result->dice_count = (int32_t)feed->classes;
  for (int32_t c = 0; c < result->dice_count; c++)
    result->dice[c] = engine_dice_of_class(&score->dice, c);
  result->dice_mean = engine_dice_mean(&score->dice, result->dice_count);
  result->volume_s = (double)score->inference_ns * 1e-9 / (double)count;
  return vl_ok();
}

int64_t engine_feed_window_sums_bytes(const Feed *feed) {
  int64_t most = 0;
  for (int64_t i = 0; feed->volumes && i < engine_volumes_count(feed->volumes, true); i++) {
    const int64_t *size = engine_volume(feed->volumes, true, i)->size;
    int64_t voxels = size[0] * size[1] * size[2];
    if (voxels > most) most = voxels;
  }
  return (feed->classes + 1) * most * (int64_t)sizeof(float);
}

Status engine_feed_evaluate(Feed *feed, Run *run, Inputs *inputs, CellResult *result) {
  Score score = {0};
  VL_TRY(feed->volumes ? score_volumes(feed, run, inputs, &score, result)
                       : score_all(feed, run, inputs, &score));
  result->held_out_loss = score.loss / (double)score.counted;
  result->accuracy = (double)score.correct / (double)score.counted;
  return vl_ok();
}
