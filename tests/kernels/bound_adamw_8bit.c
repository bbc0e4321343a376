/* How far adamw_8bit may be from the reference: adamw's bounds with what reading a code adds, and codes that
 * are the reference's but where a number is within its error of the edge of a bin. */
#include "tests/kernels/bound.h"
#include "tests/reference/reference.h"
#include <math.h>
#include <stdlib.h>

enum { W, DW, M, V, SCALES, FACTOR, COUNTERS };
static const double u = 0x1p-24;

/* Reading a code: the line's two coefficients, product and sum are three roundings of each of its terms,
 * which are together at most 17 times their sum, since a decade's line starts at most 0.8 of its unit below
 * zero and its numbers are at least 0.1 of it; and the product with the scale. */
static const double reading = 3.0 * 17.0 + 1.0;

typedef struct Moment {
  double value, error; /* of the new one, before it becomes a code */
} Moment;

static double read_moment(const Node *node, double *const *inputs, int32_t which, int64_t i) {
  int64_t blocks = node->inputs[SCALES]->shape[1], block = i / VL_STATE_BLOCK;
  double scale = inputs[SCALES][which == M ? block : blocks + block];
  return vl_reference_code_value((int32_t)inputs[which][i], which == M) * scale;
}

/* The gradient times the factor, and the roundings of that (`own` of adamw_bounds). */
static double gradient_of(const Node *node, double *const *inputs, int64_t i, double *own) {
  bool scaled = node->input_count > FACTOR;
  *own = scaled ? 1.0 : 0.0;
  return scaled ? inputs[DW][i] * inputs[FACTOR][0] : inputs[DW][i];
}

/* As adamw_bounds counts, and the old moment's own error. */
static Moment new_moment(const Node *node, double *const *inputs, int32_t which, int64_t i) {
  const OpParams *params = &node->params;
  double own, old = read_moment(node, inputs, which, i), g = gradient_of(node, inputs, i, &own);
  if (which == M) {
    double value = old + (1.0 - params->beta1) * (g - old);
    double terms = fabs(old) + (1.0 - params->beta1) * (fabs(g) + fabs(old));
    return (Moment){value, u * ((4.0 + own) * terms + reading * fabs(old))};
  }
  double value = params->beta2 * old + (1.0 - params->beta2) * g * g;
  return (Moment){value, u * (4.0 + 2.0 * own + reading) * value};
}

static void weight_bound(const Node *node, double *const *inputs, double *const *outputs,
                         double *const *bounds, int64_t i, const LaunchContext *context) {
  const OpParams *params = &node->params;
  Moment m = new_moment(node, inputs, M, i), v = new_moment(node, inputs, V, i);
  double rate = context->learning_rate > 0.0 ? context->learning_rate : params->learning_rate;
  double steps = node->input_count > COUNTERS ? inputs[COUNTERS][SCALER_STEPS] : (double)context->step + 1.0;
  double step = rate / (1.0 - pow(params->beta1, steps)), own = node->input_count > FACTOR ? 1.0 : 0.0;
  double root = sqrt(v.value) / sqrt(1.0 - pow(params->beta2, steps)) + params->epsilon;
  /* Half of v's relative error is the root's; factors, quotients and sums as in adamw. */
  double error = u * 3.0 * fabs(inputs[W][i] * (1.0 - rate * params->weight_decay)) +
                 step / root * (m.error + u * (11.0 + own + 0.5 * reading) * fabs(m.value));
  bounds[0][i] = error + roundoff_of(node->inputs[W]->dtype) * (fabs(outputs[0][i]) + error);
}

/* 0, or what a number within its error of an edge may have as its code instead. */
static double code_bound(Moment moment, double scale, double scale_error, bool is_signed) {
  if (scale == 0.0) return 0.0;
  double low, high, x = fabs(moment.value) / scale;
  int32_t code = vl_reference_code(x, is_signed, &low, &high);
  double error = moment.error / scale + x * scale_error / scale + 2.0 * u * x;
  /* The line that gives the code: three roundings of terms that are at most the code's own size and one. */
  if (high < 2.0) error += 3.0 * u * (2.0 * code + 2.0) * (high - fmax(low, 0.0));
  bool inside = (code == 0 || x - error >= low) && x + error < high;
  bool least = !is_signed && code <= 1 && x + error < high; /* v above 0 has at least code 1 */
  if (inside || least) return 0.0;
  return is_signed && moment.value < 0.0 && code <= 1 ? 255.0 : 1.0; /* 0 and 255 are neighbours */
}

static void block_bounds(const Node *node, double *const *inputs, double *const *outputs,
                         double *const *bounds, int32_t which, int64_t block) {
  int64_t elements = vl_tensor_elements(node->inputs[W]), blocks = node->inputs[SCALES]->shape[1];
  int64_t begin = block * VL_STATE_BLOCK, end = begin + VL_STATE_BLOCK;
  int64_t place = which == M ? block : blocks + block;
  double error = 0.0;
  if (end > elements) end = elements;
  for (int64_t i = begin; i < end; i++)
    error = fmax(error, new_moment(node, inputs, which, i).error);
  bounds[3][place] = error;
  for (int64_t i = begin; i < end; i++)
    bounds[which - 1][i] =
        code_bound(new_moment(node, inputs, which, i), outputs[3][place], error, which == M);
}

void adamw_8bit_bounds(const Node *node, double *const *inputs, double *const *outputs, double *const *bounds,
                       const LaunchContext *context) {
  for (int64_t i = 0; i < vl_tensor_elements(node->inputs[W]); i++)
    weight_bound(node, inputs, outputs, bounds, i, context);
  for (int64_t block = 0; block < node->inputs[SCALES]->shape[1]; block++) {
    block_bounds(node, inputs, outputs, bounds, M, block);
    block_bounds(node, inputs, outputs, bounds, V, block);
  }
}
