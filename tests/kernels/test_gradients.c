/* The gradients that vl_program_differentiate builds, against finite differences in double precision on the
 * reference device. The loss is L = sum(y * random), so that every path of the op's gradient is exercised.
 *
 * Along a direction d of unit size, (L(p + h d) - L(p - h d)) / 2h differs from <gradient, d> by the
 * truncation h^2/6 |L'''|, below 1e-8 at h = 2^-17 for third derivatives up to 1000, and by the rounding of
 * L. Each term of L is a sum itself, so that L is good to a few 2^-53 of the sum of its terms' magnitudes: 4
 * of them are allowed, over h. */
#include "tests/kernels/rows.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const double step = 0x1p-17;
static const double tolerance = 1e-8;
static const double loss_roundings = 4.0;
enum { DIRECTIONS = 4, SEED = 11 };

static double loss_of(RowProgram *made) {
  Status status = evaluation_run(made->evaluation);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  return *evaluation_of(made->evaluation, made->program.loss);
}

/* The sum of the magnitudes of the loss's terms. */
static double loss_size(const RowProgram *made) {
  const Node *producer = made->program.loss->producer;
  bool summed = strcmp(producer->op->name, "sum") == 0 && producer->inputs[0]->producer;
  const Tensor *terms = summed ? producer->inputs[0] : made->program.loss;
  double size = 0.0;
  for (int64_t i = 0; i < vl_tensor_elements(terms); i++)
    size += fabs(evaluation_of(made->evaluation, terms)[i]);
  return size;
}

/* Loss at p + shift * direction; the parameter is put back. */
static double loss_at(RowProgram *made, double *values, const double *direction, int64_t count,
                      double shift) {
  double *saved = vl_allocate((size_t)count * sizeof *saved);
  memcpy(saved, values, (size_t)count * sizeof *saved);
  for (int64_t i = 0; i < count; i++)
    values[i] += shift * direction[i];
  double loss = loss_of(made);
  memcpy(values, saved, (size_t)count * sizeof *saved);
  free(saved);
  return loss;
}

/* Direction 0 is one element alone, the others are dense. */
static void draw_direction(double *direction, int64_t count, int which) {
  uint64_t key = vl_random_key(SEED, (uint64_t)which, "direction");
  double norm = 0.0;
  for (int64_t i = 0; i < count; i++) {
    double unit = (double)vl_random_unit(vl_random_word(key, 0, (uint64_t)i));
    direction[i] = which == 0 ? (i == count / 2 ? 1.0 : 0.0) : 2.0 * unit - 1.0;
    norm += direction[i] * direction[i];
  }
  for (int64_t i = 0; i < count; i++)
    direction[i] /= sqrt(norm);
}

static void check_parameter(RowProgram *made, const OpRow *row, const ParameterGradient *pair) {
  int64_t count = vl_tensor_elements(pair->parameter);
  double *values = evaluation_of(made->evaluation, pair->parameter);
  double *gradient = vl_allocate((size_t)count * sizeof *gradient);
  double *direction = vl_allocate((size_t)count * sizeof *direction);
  loss_of(made);
  memcpy(gradient, evaluation_of(made->evaluation, pair->gradient), (size_t)count * sizeof *gradient);
  double rounding = loss_roundings * 0x1p-53 * loss_size(made) / step;
  for (int which = 0; which < DIRECTIONS; which++) {
    draw_direction(direction, count, which);
    double exact = 0.0;
    for (int64_t i = 0; i < count; i++)
      exact += gradient[i] * direction[i];
    double found =
        (loss_at(made, values, direction, count, step) - loss_at(made, values, direction, count, -step)) /
        (2.0 * step);
    if (!(fabs(found - exact) <= tolerance * (1.0 + fabs(exact)) + rounding)) {
      fail_msg("%s (%s), %s, direction %d: gradient gives %.12g, differences %.12g", row->op, row->what,
               pair->parameter->name, which, exact, found);
    }
  }
  free(gradient);
  free(direction);
}

static int32_t check_row(const OpRow *row, bool weight_first) {
  RowProgram made;
  Status status = row_program_create(row, DTYPE_F32, weight_first, SEED, &made);
  if (status.code != VL_OK) fail_msg("%s (%s): %s", row->op, row->what, status.message);
  int32_t count = made.program.gradient_count;
  for (int32_t g = 0; g < count; g++)
    check_parameter(&made, row, &made.program.gradients[g]);
  row_program_destroy(&made);
  return count;
}

static void gradient_matches_differences(void **state) {
  const char *op = *state;
  int32_t checked = 0;
  const OpRow *row;
  for (int32_t i = 0; (row = op_row(i)); i++) {
    if (strcmp(row->op, op) != 0 || row->no_gradient) continue;
    checked += check_row(row, false) + check_row(row, true);
  }
  assert_true(checked > 0);
}

enum { MAX_TESTS = 64 };

int main(void) {
  static struct CMUnitTest units[MAX_TESTS];
  static char names[MAX_TESTS][64];
  size_t count = 0;
  const OpRow *row;
  for (int32_t i = 0; (row = op_row(i)) && count < MAX_TESTS; i++) {
    if (row->no_gradient || (count > 0 && strcmp(row->op, units[count - 1].initial_state) == 0)) continue;
    snprintf(names[count], sizeof names[count], "%s_gradient_matches_differences", row->op);
    units[count] = (struct CMUnitTest){names[count], gradient_matches_differences, NULL, NULL,
                                       (void *)(uintptr_t)row->op};
    count++;
  }
  return _cmocka_run_group_tests("gradients", units, count, NULL, NULL);
}
