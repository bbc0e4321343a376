#include "engine/queue.h"
#include "engine/internal.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_SAMPLES = 65536, MOST_SIZE = 1 << 20 };

static Status bad_entry(const char *entry) {
  return vl_error(VL_INVALID,
                  "queue: '%s' is not of the form SIZE:COUNT, as in 64x64x64:8 (at most %d sizes a sample, "
                  "whole numbers above 0)",
                  entry, QUEUE_DIMENSIONS);
}

/* One entry, cut apart in place. */
static Status parse_entry(char *entry, QueueShape *shape) {
  char whole[VL_SHAPE_BYTES + 32];
  snprintf(whole, sizeof whole, "%s", entry);
  char *colon = strchr(entry, ':');
  if (!colon || strlen(entry) >= sizeof whole || colon - entry >= VL_SHAPE_BYTES) return bad_entry(whole);
  *colon = '\0';
  snprintf(shape->text, sizeof shape->text, "%s", entry);
  if (vl_parse_integer("queue", colon + 1, 1, MOST_SAMPLES, &shape->samples).code != VL_OK)
    return bad_entry(whole);
  for (char *at = entry; at;) {
    char *next = strchr(at, 'x');
    if (next) *next++ = '\0';
    if (shape->rank == QUEUE_DIMENSIONS) return bad_entry(whole);
    if (vl_parse_integer("queue", at, 1, MOST_SIZE, &shape->sizes[shape->rank++]).code != VL_OK)
      return bad_entry(whole);
    at = next;
  }
  return vl_ok();
}

static Status parse_shapes(char *text, Queue *queue) {
  for (char *entry = text; entry;) {
    char *next = strchr(entry, ',');
    if (next) *next++ = '\0';
    if (queue->shape_count == VL_MAX_SHAPES)
      return vl_error(VL_INVALID, "queue: more than %d sizes", VL_MAX_SHAPES);
    QueueShape *shape = &queue->shapes[queue->shape_count];
    VL_TRY(parse_entry(entry, shape));
    for (int32_t i = 0; i < queue->shape_count; i++)
      if (strcmp(queue->shapes[i].text, shape->text) == 0)
        return vl_error(VL_INVALID, "queue: %s is listed twice", shape->text);
    shape->first_sample = queue->samples;
    queue->samples += shape->samples;
    if (queue->samples > MOST_SAMPLES)
      return vl_error(VL_INVALID, "queue: more than %d samples", MOST_SAMPLES);
    queue->shape_count++;
    entry = next;
  }
  return vl_ok();
}

static int32_t shape_of(const Queue *queue, int64_t sample) {
  int32_t shape = queue->shape_count - 1;
  while (sample < queue->shapes[shape].first_sample)
    shape--;
  return shape;
}

/* The queue's order, and how long runs of each shape are in it. */
static void draw_order(uint64_t seed, Queue *queue) {
  EpochOrder drawn = {0};
  int64_t run = 0;
  queue->order = vl_allocate((size_t)queue->samples * sizeof *queue->order);
  for (int64_t i = 0; i < queue->samples; i++) {
    int32_t shape = shape_of(queue, engine_order_at(&drawn, seed, queue->samples, i));
    queue->order[i] = shape;
    run = i > 0 && queue->order[i - 1] == shape ? run + 1 : 1;
    if (run > queue->shapes[shape].longest) queue->shapes[shape].longest = run;
  }
  engine_order_clear(&drawn);
}

Status engine_queue_parse(const char *text, uint64_t seed, Queue *queue) {
  *queue = (Queue){0};
  char *copy = vl_copy_text(text);
  Status status = parse_shapes(copy, queue);
  free(copy);
  VL_TRY(status);
  draw_order(seed, queue);
  return vl_ok();
}

void engine_queue_clear(Queue *queue) {
  free(queue->order);
  *queue = (Queue){0};
}

static int64_t elements_of(const QueueShape *shape) {
  int64_t elements = 1; /* to compare: sizes that are not given are alike */
  for (int32_t i = 0; i < shape->rank; i++)
    elements *= shape->sizes[i];
  return elements;
}

/* The largest shape that `done` leaves; the first of equals. */
static int32_t largest_left(const Queue *queue, const bool *done) {
  int32_t largest = -1;
  for (int32_t i = 0; i < queue->shape_count; i++) {
    if (done[i]) continue;
    if (largest < 0 || elements_of(&queue->shapes[i]) > elements_of(&queue->shapes[largest])) largest = i;
  }
  return largest;
}

/* Divides `samples` of a shape that follow each other. */
static void add_batches(QueueBatch *batches, int32_t *count, QueueBatch all, int64_t size) {
  for (int64_t left = all.samples; left > 0; left -= size) {
    QueueBatch *batch = &batches[(*count)++];
    *batch = all;
    batch->first_sample += all.samples - left;
    batch->samples = left < size ? left : size;
  }
}

QueueBatch *engine_queue_batches(const Queue *queue, bool bucketed, const int64_t *sizes, int32_t *count) {
  QueueBatch *batches = vl_allocate((size_t)queue->samples * sizeof *batches);
  *count = 0;
  if (bucketed) {
    bool done[VL_MAX_SHAPES] = {false};
    for (int32_t shape; (shape = largest_left(queue, done)) >= 0; done[shape] = true) {
      QueueBatch all = {shape, queue->shapes[shape].first_sample, queue->shapes[shape].samples};
      add_batches(batches, count, all, sizes[shape]);
    }
    return batches;
  }
  int64_t taken[VL_MAX_SHAPES] = {0}, run;
  for (int64_t i = 0; i < queue->samples; i += run) {
    int32_t shape = queue->order[i];
    for (run = 1; i + run < queue->samples && queue->order[i + run] == shape;)
      run++;
    QueueBatch all = {shape, queue->shapes[shape].first_sample + taken[shape], run};
    add_batches(batches, count, all, sizes[shape]);
    taken[shape] += run;
  }
  return batches;
}

void engine_queue_write_sizes(const Queue *queue, const int64_t *sizes, char text[VL_QUEUE_BATCHES_BYTES]) {
  size_t used = 0;
  text[0] = '\0';
  for (int32_t i = 0; i < queue->shape_count && used < VL_QUEUE_BATCHES_BYTES; i++)
    used += (size_t)snprintf(text + used, VL_QUEUE_BATCHES_BYTES - used, "%s%lld", i ? "," : "",
                             (long long)sizes[i]);
}

Status engine_queue_read_sizes(const Queue *queue, const char *text, int64_t *sizes) {
  char *copy = vl_copy_text(text), *rest = NULL;
  int32_t count = 0;
  Status status = vl_ok();
  for (char *item = strtok_r(copy, ",", &rest); item && status.code == VL_OK;
       item = strtok_r(NULL, ",", &rest))
    status = count == queue->shape_count
                 ? vl_error(VL_INVALID, "queue: '%s' has more sizes than shapes", text)
                 : vl_parse_integer("queue", item, 1, MOST_SAMPLES, &sizes[count++]);
  free(copy);
  VL_TRY(status);
  if (count == queue->shape_count) return vl_ok();
  return vl_error(VL_INVALID, "queue: '%s' has %d sizes for %d shapes", text, count, queue->shape_count);
}
