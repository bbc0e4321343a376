/* Convolution and batch norm: groups, windows and state, and what they refuse. */
#include "op_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- Convolution ------------------------------------------------------------------------------------------------- */

/* Fault case E1: groups that are no divisor of both channel counts are refused with the three numbers, never
 * with an arithmetic fault. */
static void groups_divide_both_channel_counts_e1(void **state) {
  (void)state;
  static const struct {
    int64_t groups;
    bool accepted;
  } cases[] = {{4, true}, {1, true}, {3, false}, {12, false}, {8, false}, {0, false}, {-4, false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Graph *graph = vl_graph_create("groups");
    int64_t groups = cases[i].groups, per_group = groups >= 1 && groups <= 8 ? 8 / groups : 1;
    Tensor *x = given(graph, DTYPE_F32, 5, (int64_t[]){1, 8, 4, 4, 4}), *y;
    Tensor *w = vl_graph_parameter(graph, "w", ROLE_PARAMETER, DTYPE_F32, 5,
                                   (int64_t[]){12, per_group, 3, 3, 3}, (Init){0});
    Status status = vl_conv(graph, x, w, 1, 1, groups, &y);
    if (cases[i].accepted) {
      expect_ok(status);
      assert_int_equal(vl_graph_parameter_count(graph), 12 * (8 / groups) * 27);
      if (groups == 4) assert_int_equal(vl_graph_parameter_count(graph), 648);
    } else {
      char numbers[64];
      snprintf(numbers, sizeof numbers, "groups = %lld ", (long long)groups);
      expect_invalid(status, numbers);
      expect_invalid(status, "input 8 and output 12");
      assert_int_equal(vl_status_exit_code(status.code), 2);
    }
    vl_graph_destroy(&graph);
  }
}

/* Fault case E2: weights are divided by the groups once, multiply-adds follow the weights; FLOPs are twice
 * the multiply-adds, in forward and both gradients. */
static void groups_are_divided_once_e2(void **state) {
  (void)state;
  static const struct {
    int64_t groups, weights, multiply_adds;
  } cases[] = {{4, 3456, 1769472}, {1, 13824, 7077888}};
  for (size_t i = 0; i < 2; i++) {
    Graph *graph = vl_graph_create("counts");
    int64_t x_shape[] = {1, 16, 8, 8, 8}, w_shape[] = {32, 16 / cases[i].groups, 3, 3, 3};
    Tensor *x = given(graph, DTYPE_F32, 5, x_shape), *y, *unused;
    Tensor *w = vl_graph_parameter(graph, "w", ROLE_PARAMETER, DTYPE_F32, 5, w_shape, (Init){0});
    expect_ok(vl_conv(graph, x, w, 1, 1, cases[i].groups, &y));
    OpParams params = y->producer->params;
    params.rank = 5;
    memcpy(params.shape, x_shape, sizeof x_shape);
    expect_ok(vl_apply(graph, "conv_backward_data", &params, (Tensor *[]){y, w}, 2, &unused));
    memcpy(params.shape, w_shape, sizeof w_shape);
    expect_ok(vl_apply(graph, "conv_backward_weights", &params, (Tensor *[]){x, y}, 2, &unused));
    assert_int_equal(vl_graph_parameter_count(graph), cases[i].weights);
    for (int32_t k = 0; k < 3; k++)
      assert_int_equal(vl_node_flops(graph->nodes[k]), 2 * cases[i].multiply_adds);
    vl_graph_destroy(&graph);
  }
}

/* x is normalised with all of mean, var, gamma and beta, or with none; that costs what batch_norm_apply does.
 */
static void a_weight_gradient_normalises_with_all_or_nothing(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("normalised");
  OpParams params = {.stride = {1, 1}, .groups = 1, .shape = {7, 5, 3, 3}, .rank = 4};
  Tensor *x = given(graph, DTYPE_BF16, 4, (int64_t[]){2, 5, 4, 6}), *dw;
  Tensor *dy = given(graph, DTYPE_BF16, 4, (int64_t[]){2, 7, 2, 4});
  Tensor *statistic = given(graph, DTYPE_F32, 1, (int64_t[]){5}),
         *low = given(graph, DTYPE_BF16, 1, (int64_t[]){5});
  Tensor *other = given(graph, DTYPE_F32, 1, (int64_t[]){6});
  Tensor *inputs[] = {x, dy, statistic, statistic, low, statistic};
  expect_ok(vl_apply(graph, "conv_backward_weights", &params, inputs, 2, &dw));
  int64_t products = vl_node_flops(dw->producer), bytes = vl_node_bytes(dw->producer);
  params.relu = 1;
  expect_invalid(vl_apply(graph, "conv_backward_weights", &params, inputs, 2, &dw), "relu = 1 without mean");
  expect_ok(vl_apply(graph, "conv_backward_weights", &params, inputs, 6, &dw));
  assert_int_equal(vl_node_flops(dw->producer), products + 3 * vl_tensor_elements(x));
  assert_int_equal(vl_node_bytes(dw->producer), bytes + 3 * 5 * 4 + 5 * 2);
  expect_invalid(vl_apply(graph, "conv_backward_weights", &params, inputs, 5, &dw), "beta is missing");
  inputs[2] = low;
  expect_invalid(vl_apply(graph, "conv_backward_weights", &params, inputs, 6, &dw), "mean is bf16");
  inputs[2] = NULL;
  expect_invalid(vl_apply(graph, "conv_backward_weights", &params, inputs, 6, &dw), "mean is missing");
  inputs[2] = statistic;
  inputs[5] = other;
  expect_invalid(vl_apply(graph, "conv_backward_weights", &params, inputs, 6, &dw),
                 "beta is (6) f32; expected (5)");
  inputs[5] = statistic;
  params.epsilon = -1.0;
  expect_invalid(vl_apply(graph, "conv_backward_weights", &params, inputs, 6, &dw), "epsilon = -1");
  params.epsilon = 0.0;
  params.relu = 2;
  expect_invalid(vl_apply(graph, "conv_backward_weights", &params, inputs, 6, &dw), "relu = 2");
  vl_graph_destroy(&graph);
}

static void windows_count_padding_and_stride(void **state) {
  (void)state;
  static const struct {
    int64_t size, kernel, stride, padding, output;
  } cases[] = {{224, 7, 2, 3, 112}, {56, 3, 1, 1, 56}, {56, 1, 2, 0, 28}, {5, 5, 3, 0, 1}, {4, 3, 2, 0, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Graph *graph = vl_graph_create("windows");
    int64_t size = cases[i].size, kernel = cases[i].kernel, output = cases[i].output;
    Tensor *x = given(graph, DTYPE_BF16, 4, (int64_t[]){2, 4, size, size}), *y;
    Tensor *w = given(graph, DTYPE_BF16, 4, (int64_t[]){6, 4, kernel, kernel});
    expect_ok(vl_conv(graph, x, w, cases[i].stride, cases[i].padding, 1, &y));
    expect_tensor(y, DTYPE_BF16, 4, (int64_t[]){2, 6, output, output});
    vl_graph_destroy(&graph);
  }
}

/* ---- Batch norm -------------------------------------------------------------------------------------------------- */

/* PyTorch's names and initial values; training adds the update in place, evaluation reads what it keeps. */
static void batch_norm_has_its_state(void **state) {
  (void)state;
  static const struct {
    const char *name;
    double value;
  } expected[] = {{"bn1.weight", 1},
                  {"bn1.bias", 0},
                  {"bn1.running_mean", 0},
                  {"bn1.running_var", 1},
                  {"bn1.num_batches_tracked", 0}};
  for (int training = 0; training < 2; training++) {
    Graph *graph = vl_graph_create("norm");
    Tensor *x = given(graph, DTYPE_BF16, 4, (int64_t[]){2, 3, 4, 5}), *y;
    vl_graph_set_scope(graph, "bn1");
    expect_ok(vl_batch_norm(graph, x, training == 1, 1e-5, 0.1, &y));
    expect_tensor(y, DTYPE_BF16, 4, x->shape);
    for (int32_t i = 0; i < 5; i++) {
      const Storage *storage = graph->storages[1 + i];
      assert_string_equal(storage->name, expected[i].name);
      assert_true(storage->init.value == expected[i].value);
      assert_int_equal(storage->dtype, i == 4 ? DTYPE_I64 : DTYPE_F32);
      assert_int_equal(storage->role, i < 2 ? ROLE_PARAMETER : ROLE_STATISTIC);
    }
    assert_int_equal(graph->node_count, training ? 3 : 1);
    const Node *last = graph->nodes[graph->node_count - 1];
    if (training) {
      assert_int_equal(last->params.count, 40);
      for (int32_t i = 0; i < 3; i++)
        assert_ptr_equal(last->outputs[i]->storage, graph->storages[3 + i]);
    } else {
      assert_ptr_equal(last->inputs[1]->storage, graph->storages[3]);
    }
    assert_int_equal(vl_graph_parameter_count(graph), 6);
    vl_graph_destroy(&graph);
  }
}

/* Statistics of one element per channel have no unbiased variance: said, not divided by zero. */
static void batch_norm_of_one_element_is_refused(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("norm");
  Tensor *x = given(graph, DTYPE_F32, 4, (int64_t[]){1, 3, 1, 1}), *y;
  expect_invalid(vl_batch_norm(graph, x, true, 1e-5, 0.1, &y), "count = 1");
  vl_graph_destroy(&graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(groups_divide_both_channel_counts_e1),
      cmocka_unit_test(groups_are_divided_once_e2),
      cmocka_unit_test(a_weight_gradient_normalises_with_all_or_nothing),
      cmocka_unit_test(windows_count_padding_and_stride),
      cmocka_unit_test(batch_norm_has_its_state),
      cmocka_unit_test(batch_norm_of_one_element_is_refused),
  };
  return cmocka_run_group_tests_name("ops_conv_norm", tests, NULL, NULL);
}
