/* Cross entropy with a soft Dice term, and its gradient. */
#include "tests/reference/ops.h"
#include <math.h>
#include <stdlib.h>

typedef struct Shape {
  int64_t samples, classes, places; /* of one sample */
} Shape;

static Shape shape_of(const Tensor *logits) {
  int64_t outer = logits->shape[0] * logits->shape[1];
  return (Shape){logits->shape[0], logits->shape[1], vl_tensor_elements(logits) / outer};
}

/* Probabilities at one place, and -log of the label's. */
static double softmax_at(const Shape *shape, const double *logits, int64_t label, double *p) {
  double top = logits[0], sum = 0.0;
  for (int64_t c = 1; c < shape->classes; c++)
    top = fmax(top, logits[c * shape->places]);
  for (int64_t c = 0; c < shape->classes; c++)
    sum += p[c] = exp(logits[c * shape->places] - top);
  for (int64_t c = 0; c < shape->classes; c++)
    p[c] /= sum;
  return label == VL_IGNORED_LABEL ? 0.0 : top + log(sum) - logits[label * shape->places];
}

static double counted_places(const Shape *shape, const double *labels) {
  double counted = 0.0;
  for (int64_t i = 0; i < shape->samples * shape->places; i++)
    counted += labels[i] != (double)VL_IGNORED_LABEL;
  return counted;
}

/* What one micro-batch's Dice weighs, and what its cross entropy is divided by. */
typedef struct Weights {
  double dice, places;
} Weights;

static Weights weights_of(const Node *node, const Arrays *arrays, double counted) {
  double all = arrays->context->counted_rows > 0 ? (double)arrays->context->counted_rows : counted;
  return (Weights){.dice = node->params.alpha * counted / all, .places = all};
}

/* Numerator and denominator of a class's Dice over all samples; 1 / 1 for 0 / 0. */
static void dice_of(const Node *node, const Shape *shape, const double *sums, int64_t c, double *above,
                    double *below) {
  *above = *below = node->params.epsilon;
  for (int64_t n = 0; n < shape->samples; n++) {
    const double *of = sums + (n * shape->classes + c) * 3;
    *above += 2.0 * of[0];
    *below += of[1] + of[2];
  }
  if (*below == 0.0) *above = *below = 1.0;
}

static void dice_cross_entropy(const Node *node, const Arrays *arrays) {
  Shape shape = shape_of(node->inputs[0]);
  const double *labels = arrays->inputs[1];
  int64_t outer = shape.samples * shape.classes;
  double *sums = vl_allocate((size_t)outer * 3 * sizeof *sums);
  double *p = vl_allocate((size_t)shape.classes * sizeof *p);
  double entropy = 0.0, dice = 0.0, counted = counted_places(&shape, labels);
  for (int64_t i = 0; i < shape.samples * shape.places; i++) {
    int64_t n = i / shape.places, label = (int64_t)labels[i];
    const double *at = arrays->inputs[0] + n * shape.classes * shape.places + i % shape.places;
    entropy += softmax_at(&shape, at, label, p);
    for (int64_t c = 0; label != VL_IGNORED_LABEL && c < shape.classes; c++) {
      double *of = sums + (n * shape.classes + c) * 3;
      of[0] += c == label ? p[c] : 0.0;
      of[1] += p[c];
      of[2] += c == label ? 1.0 : 0.0;
    }
  }
  for (int64_t c = 0; c < shape.classes; c++) {
    double above, below;
    dice_of(node, &shape, sums, c, &above, &below);
    dice += above / below / (double)shape.classes;
  }
  Weights weights = weights_of(node, arrays, counted);
  arrays->outputs[0][0] = counted > 0.0 ? entropy / weights.places + weights.dice * (1.0 - dice) : 0.0;
  for (int64_t i = 0; arrays->outputs[1] && i < outer * 3; i++)
    arrays->outputs[1][i] = sums[i];
  free(sums);
  free(p);
}

static void dice_cross_entropy_backward(const Node *node, const Arrays *arrays) {
  Shape shape = shape_of(node->inputs[1]);
  const double *labels = arrays->inputs[2];
  double *p = vl_allocate((size_t)shape.classes * sizeof *p);
  double *g = vl_allocate((size_t)shape.classes * sizeof *g);
  Weights weights = weights_of(node, arrays, counted_places(&shape, labels));
  for (int64_t i = 0; i < shape.samples * shape.places; i++) {
    int64_t label = (int64_t)labels[i],
            first = i / shape.places * shape.classes * shape.places + i % shape.places;
    double mean = 0.0;
    softmax_at(&shape, arrays->inputs[1] + first, label, p);
    for (int64_t c = 0; label != VL_IGNORED_LABEL && c < shape.classes; c++) {
      double above, below;
      dice_of(node, &shape, arrays->inputs[3], c, &above, &below);
      double own = c == label ? 2.0 / below : 0.0;
      g[c] = weights.dice / (double)shape.classes * (above / below / below - own);
      mean += p[c] * g[c];
    }
    for (int64_t c = 0; c < shape.classes; c++) {
      double entropy = (p[c] - (c == label ? 1.0 : 0.0)) / weights.places;
      arrays->outputs[0][first + c * shape.places] =
          label == VL_IGNORED_LABEL ? 0.0 : arrays->inputs[0][0] * (entropy + p[c] * (g[c] - mean));
    }
  }
  free(p);
  free(g);
}

const ReferenceOp reference_dice_ops[] = {{"dice_cross_entropy", dice_cross_entropy},
                                          {"dice_cross_entropy_backward", dice_cross_entropy_backward},
                                          {NULL, NULL}};
