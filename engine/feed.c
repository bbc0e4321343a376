/* What a program's inputs hold: samples of a data file, images or text as the inputs ask for, or Philox's. */
#include "engine/internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct Feed {
  uint64_t seed;
  bool labelled; /* the program has labels among its inputs */
  DataSet *images;
  TextSet *text; /* neither: synthetic */
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

static Status open_file(Feed *feed, const char *path, const Program *program) {
  const Storage *images = input_named(program, "images"), *tokens = input_named(program, "tokens"),
                *positions = input_named(program, "positions");
  if (tokens && positions) return open_text(feed, path, tokens, positions);
  if (images && program->logits) return open_images(feed, path, images, program->logits->shape[1]);
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
  TextPlace at = {feed->seed, draw.step, draw.window.samples, draw.window.drawn};
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
  return feed->text ? write_text(feed, inputs, draw, labels) : write_images(feed, inputs, draw, labels);
}

int64_t engine_feed_count(const Feed *feed) {
  if (feed->text) return engine_text_count(feed->text, false);
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
  if (!feed->text && !feed->images) return vl_inputs_synthesize(inputs, feed->seed, step, first);
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

typedef struct Score {
  double loss; /* summed */
  int64_t correct, counted;
} Score;

static void score_label(const float *logits, int64_t classes, int32_t label, Score *score) {
  int64_t best = 0;
  double sum = 0.0;
  for (int64_t c = 1; c < classes; c++)
    if (logits[c] > logits[best]) best = c;
  for (int64_t c = 0; c < classes; c++)
    sum += exp((double)logits[c] - (double)logits[best]);
  score->loss += log(sum) + (double)logits[best] - (double)logits[label];
  score->correct += best == label;
  score->counted++;
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
        score_label(logits + row * feed->classes, feed->classes, labels[row], score);
    }
  }
  free(labels);
  free(logits);
  return status;
}

Status engine_feed_evaluate(Feed *feed, Run *run, Inputs *inputs, double *loss, double *accuracy) {
  Score score = {0};
  VL_TRY(score_all(feed, run, inputs, &score));
  *loss = score.loss / (double)score.counted;
  *accuracy = (double)score.correct / (double)score.counted;
  return vl_ok();
}
