/* How far dice_cross_entropy and its gradient may be from the reference; README.md derives it. */
#include "tests/kernels/bound.h"
#include <math.h>
#include <stdlib.h>

static const double u = 0x1p-24;
static const double function_roundings = 8.0; /* exp or log, and the factors around it */

/* The logits, and one place's probabilities and what they are off by, relatively. */
typedef struct Place {
  int64_t classes, places; /* of one sample */
  const double *logits, *labels;
  double *p, *errors;
  int64_t sample, label, first; /* of this place; first: its first class */
  double magnitude;             /* what -log p is made of */
} Place;

static Place place_create(const Tensor *logits, const double *values, const double *labels) {
  int64_t classes = logits->shape[1];
  return (Place){.classes = classes,
                 .places = vl_tensor_elements(logits) / logits->shape[0] / classes,
                 .logits = values,
                 .labels = labels,
                 .p = vl_allocate((size_t)classes * sizeof(double)),
                 .errors = vl_allocate((size_t)classes * sizeof(double))};
}

static void place_destroy(Place *place) {
  free(place->p);
  free(place->errors);
}

/* An exponential is off by what its argument is, a difference of rounding u; so is, on average, the sum of
 * all, beside its own roundings. False: the place does not count. */
static bool place_set(Place *place, int64_t i) {
  place->sample = i / place->places;
  place->first = place->sample * place->classes * place->places + i % place->places;
  place->label = (int64_t)place->labels[i];
  double top = -(double)INFINITY, sum = 0.0, mean = 0.0, largest = 0.0;
  for (int64_t c = 0; c < place->classes; c++) {
    top = fmax(top, place->logits[place->first + c * place->places]);
    largest = fmax(largest, fabs(place->logits[place->first + c * place->places]));
  }
  for (int64_t c = 0; c < place->classes; c++) {
    double difference = top - place->logits[place->first + c * place->places];
    sum += place->p[c] = exp(-difference);
    place->errors[c] = difference + function_roundings;
  }
  for (int64_t c = 0; c < place->classes; c++)
    mean += (place->p[c] /= sum) * place->errors[c];
  for (int64_t c = 0; c < place->classes; c++)
    place->errors[c] = u * (place->errors[c] + mean + sum_roundings(place->classes) + 2.0);
  place->magnitude = 1.0 + 2.0 * largest + log((double)place->classes);
  return place->label != VL_IGNORED_LABEL;
}

static double counted_places(const double *labels, int64_t count) {
  double counted = 0.0;
  for (int64_t i = 0; i < count; i++)
    counted += labels[i] != (double)VL_IGNORED_LABEL;
  return counted;
}

/* A class's Dice, from sums [n][class][3]. */
typedef struct Dice {
  double above, below, error; /* error: of above / below, from what the sums are off by */
} Dice;

static Dice dice_of(const Node *node, const Tensor *logits, int64_t c, const double *sums,
                    const double *errors) {
  Dice dice = {.above = node->params.epsilon, .below = node->params.epsilon};
  double of_above = 0.0, of_below = 0.0;
  for (int64_t n = 0; n < logits->shape[0]; n++) {
    int64_t at = (n * logits->shape[1] + c) * 3;
    dice.above += 2.0 * sums[at];
    dice.below += sums[at + 1] + sums[at + 2];
    of_above += errors ? 2.0 * errors[at] : 0.0;
    of_below += errors ? errors[at + 1] + errors[at + 2] : 0.0;
  }
  if (dice.below == 0.0) return (Dice){1.0, 1.0, 0.0};
  dice.error = (of_above + dice.above / dice.below * of_below) / dice.below;
  return dice;
}

void dice_cross_entropy_bounds(const Node *node, double *const *inputs, double *const *outputs,
                               double *const *bounds) {
  const Tensor *logits = node->inputs[0];
  Place place = place_create(logits, inputs[0], inputs[1]);
  int64_t all = logits->shape[0] * place.places, sums = logits->shape[0] * place.classes * 3;
  double counted = counted_places(inputs[1], all), entropy = 0.0, dice = 0.0;
  double of_sum = sum_roundings(place.places) * u;
  double *errors = vl_allocate((size_t)sums * sizeof *errors);
  for (int64_t i = 0; i < all; i++) {
    if (!place_set(&place, i)) continue;
    entropy += (sum_roundings(place.classes) + function_roundings + sum_roundings(all)) * u *
               place.magnitude / counted;
    for (int64_t c = 0; c < place.classes; c++) {
      double *error = errors + (place.sample * place.classes + c) * 3;
      double of_p = (place.errors[c] + of_sum) * place.p[c];
      error[0] += c == place.label ? of_p : 0.0;
      error[1] += of_p; /* labels are counted exactly */
    }
  }
  for (int64_t c = 0; c < place.classes; c++)
    dice += dice_of(node, logits, c, outputs[1], errors).error / (double)place.classes;
  for (int64_t i = 0; i < sums; i++)
    bounds[1][i] = rounded_bound(errors[i], outputs[1][i], node->outputs[1]->dtype);
  bounds[0][0] = rounded_bound(entropy + node->params.alpha * dice, outputs[0][0], node->outputs[0]->dtype);
  if (counted == 0.0) bounds[0][0] = 0.0; /* exactly 0 */
  free(errors);
  place_destroy(&place);
}

/* dlogits = dloss (p / places + p (g - m) - [y / places]) with m the mean of g by p. A result is off by what
 * p is, by what m is, which is a sum over classes of p g, and by its own few roundings. */
void dice_cross_entropy_backward_bounds(const Node *node, double *const *inputs, double *const *outputs,
                                        double *const *bounds) {
  const double roundings = 8.0;
  const Tensor *logits = node->inputs[1];
  Place place = place_create(logits, inputs[1], inputs[2]);
  int64_t all = logits->shape[0] * place.places;
  double counted = counted_places(inputs[2], all);
  for (int64_t i = 0; i < all; i++) {
    bool counts = place_set(&place, i);
    double mean = 0.0, off = 0.0;
    for (int64_t pass = 0; pass < 2; pass++) {
      for (int64_t c = 0; c < place.classes; c++) {
        int64_t at = place.first + c * place.places;
        bool own = c == place.label;
        Dice dice = dice_of(node, logits, c, inputs[3], NULL);
        double weight = node->params.alpha / (double)place.classes;
        double g = weight * (dice.above / dice.below + (own ? 2.0 : 0.0)) / dice.below;
        if (pass == 0) {
          mean += place.p[c] * g;
          off += place.p[c] * g * (place.errors[c] + (sum_roundings(place.classes) + roundings) * u);
          continue;
        }
        double terms = place.p[c] * (1.0 / counted + g + mean) + (own ? 1.0 / counted : 0.0);
        double error =
            fabs(inputs[0][0]) *
            (roundings * u * terms + place.p[c] * (place.errors[c] * (1.0 / counted + g + mean) + off));
        bounds[0][at] = counts ? rounded_bound(error, outputs[0][at], node->outputs[0]->dtype) : 0.0;
      }
    }
  }
  place_destroy(&place);
}
