/* AdamW with its moments as 8-bit codes (graph/ops/README.md): the map's bins are written down one by one and
 * searched. */
#include "tests/reference/ops.h"
#include "tests/reference/reference.h"
#include <math.h>
#include <stdlib.h>

enum { DECADES = 7, CODES = 256 };

typedef struct Map {
  double low[CODES + 1], value[CODES]; /* by code: where its numbers begin, what it stands for */
  int32_t top;                         /* the code of 1 */
} Map;

static void make_map(bool is_signed, Map *map) {
  int32_t code = 1;
  map->low[0] = -1.0;
  map->value[0] = 0.0;
  for (int32_t decade = 0; decade < DECADES; decade++) {
    double unit = pow(10.0, decade - DECADES + 1);
    int32_t bins = (is_signed ? 1 : 2) << decade;
    for (int32_t k = 0; k < bins; k++, code++) {
      map->low[code] = unit * (0.1 + 0.9 * k / bins);
      map->value[code] = unit * (0.1 + 0.9 * (k + 0.5) / bins);
    }
  }
  map->top = code;
  map->value[code] = 1.0;
  map->low[code] = 0.5 * (map->value[code - 1] + 1.0);
  map->low[code + 1] = (double)INFINITY;
}

static int32_t code_of(const Map *map, double x) {
  int32_t code = map->top;
  while (x < map->low[code])
    code--;
  return code;
}

int32_t vl_reference_code(double x, bool is_signed, double *low, double *high) {
  Map map;
  make_map(is_signed, &map);
  int32_t code = code_of(&map, x);
  *low = map.low[code];
  *high = map.low[code + 1];
  return code;
}

double vl_reference_code_value(int32_t code, bool is_signed) {
  Map map;
  make_map(is_signed, &map);
  return is_signed && code > map.top ? -map.value[CODES - code] : map.value[code];
}

static double signed_code(const Map *map, double x) {
  int32_t code = code_of(map, fabs(x));
  if (x >= 0.0 || code == 0) return code;
  return CODES - (code == map->top ? code - 1 : code); /* -1 has none */
}

static double largest(const double *values, int64_t begin, int64_t end) {
  double most = 0.0;
  for (int64_t i = begin; i < end; i++)
    most = fmax(most, fabs(values[i]));
  return most;
}

static void adamw_8bit(const Node *node, const Arrays *arrays) {
  const OpParams *params = &node->params;
  UpdateFactor update = reference_update_factor(node, 5, arrays);
  for (int32_t k = 0; update.skip && k < 4; k++)
    reference_keep(node, arrays, k, k == 0 ? 0 : k + 1);
  if (update.skip) return;
  Map of_mean, of_square;
  make_map(true, &of_mean);
  make_map(false, &of_square);
  int64_t elements = vl_tensor_elements(node->inputs[0]), blocks = node->inputs[4]->shape[1];
  double given = arrays->context->learning_rate, steps = update.steps;
  double rate = given > 0.0 ? given : params->learning_rate;
  double step = rate / (1.0 - pow(params->beta1, steps)), root = sqrt(1.0 - pow(params->beta2, steps));
  double *mean = vl_allocate((size_t)elements * sizeof *mean);
  double *square = vl_allocate((size_t)elements * sizeof *square);
  for (int64_t i = 0; i < elements; i++) {
    const double *scales = arrays->inputs[4] + i / VL_STATE_BLOCK;
    int32_t code = (int32_t)arrays->inputs[2][i];
    double g = update.factor * arrays->inputs[1][i];
    double m = (code > of_mean.top ? -of_mean.value[CODES - code] : of_mean.value[code]) * scales[0];
    double v = of_square.value[(int32_t)arrays->inputs[3][i]] * scales[blocks];
    mean[i] = m + (1.0 - params->beta1) * (g - m);
    square[i] = params->beta2 * v + (1.0 - params->beta2) * g * g;
    double decayed = arrays->inputs[0][i] * (1.0 - rate * params->weight_decay);
    arrays->outputs[0][i] = decayed - step * mean[i] / (sqrt(square[i]) / root + params->epsilon);
  }
  for (int64_t b = 0; b < blocks; b++) {
    int64_t begin = b * VL_STATE_BLOCK,
            end = begin + VL_STATE_BLOCK < elements ? begin + VL_STATE_BLOCK : elements;
    double m = largest(mean, begin, end), v = largest(square, begin, end);
    arrays->outputs[3][b] = m;
    arrays->outputs[3][blocks + b] = v;
    for (int64_t i = begin; i < end; i++) {
      arrays->outputs[1][i] = m > 0.0 ? signed_code(&of_mean, mean[i] / m) : 0.0;
      arrays->outputs[2][i] = v > 0.0 ? fmax(code_of(&of_square, square[i] / v), square[i] > 0.0) : 0.0;
    }
  }
  free(mean);
  free(square);
}

const ReferenceOp reference_adamw_8bit_ops[] = {{"adamw_8bit", adamw_8bit}, {NULL, NULL}};
