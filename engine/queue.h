/* A queue of samples of different sizes, and its division into batches of one size each. */
#ifndef VRAMLAB_ENGINE_QUEUE_H
#define VRAMLAB_ENGINE_QUEUE_H

#include "engine/engine.h"

enum { QUEUE_DIMENSIONS = VL_SHAPE_ARGUMENTS };

/* All samples of one size. */
typedef struct QueueShape {
  char text[VL_SHAPE_BYTES]; /* "64x96x96" */
  int64_t sizes[QUEUE_DIMENSIONS];
  int32_t rank;
  int64_t samples;
  int64_t first_sample; /* samples are numbered shape by shape, so a number means one sample in any batch */
  int64_t longest;      /* run of them in the queue */
} QueueShape;

typedef struct Queue {
  QueueShape shapes[VL_MAX_SHAPES];
  int32_t shape_count;
  int32_t *order; /* by place in the queue: the shape */
  int64_t samples;
} Queue;

/* From "64x64x64:8,96x96x64:4": sizes and how many, which stand in the queue in an order drawn with the seed.
 * VL_INVALID names the entry. */
Status engine_queue_parse(const char *text, uint64_t seed, Queue *queue) VL_CHECKED;
void engine_queue_clear(Queue *queue);

typedef struct QueueBatch {
  int32_t shape;
  int64_t first_sample, samples;
} QueueBatch;
/* Batches of at most sizes[shape] samples: neighbours in the queue, or bucketed all of a shape, the largest
 * first. free() them. */
QueueBatch *engine_queue_batches(const Queue *queue, bool bucketed, const int64_t *sizes, int32_t *count);

/* "4,2,1" and back: sizes of batches by shape. VL_INVALID when they are not one a shape. */
void engine_queue_write_sizes(const Queue *queue, const int64_t *sizes, char text[VL_QUEUE_BATCHES_BYTES]);
Status engine_queue_read_sizes(const Queue *queue, const char *text, int64_t *sizes) VL_CHECKED;

#endif
