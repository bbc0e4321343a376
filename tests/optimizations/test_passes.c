/* What each optimization does to a program: on ResNet-50, where the counts are known, and on small graphs
 * where a pass must hold back. Passes for language models are in test_passes_bert.c, recomputation of single
 * ops in test_passes_recompute.c, activation-gradients and checkpoint in files of their own. */
#include "tests/graph/networks.h"
#include "tests/optimizations/programs.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- fuse -------------------------------------------------------------------------------------------------------- */

static void fusion_leaves_no_relu_or_addition(void **state) {
  (void)state;
  Program program;
  build_resnet50("fuse=norm", &program);
  assert_int_equal(count_ops(&program, SEGMENT_FORWARD, "batch_norm_apply"), CONVOLUTIONS);
  assert_int_equal(count_ops(&program, SEGMENT_FORWARD, "relu"), 0);
  assert_int_equal(count_ops(&program, SEGMENT_FORWARD, "add"), 0);
  int32_t with_relu = 0, with_residual = 0;
  for (int32_t i = 0; i < program.graph->node_count; i++) {
    const Node *node = program.graph->nodes[i];
    if (!is_op(node, "batch_norm_apply")) continue;
    with_relu += node->params.relu == 1;
    with_residual += node->input_count > 5 && node->inputs[5];
  }
  assert_int_equal(with_relu, RELUS);
  assert_int_equal(with_residual, BLOCKS);
  vl_program_destroy(&program);
}

/* Norm and ReLU at the end of an evaluation program, whose output is asked for. */
static void build_norm_end(bool norm_is_read, Program *program) {
  Graph *graph = vl_graph_create("end");
  vl_program_init(program, graph);
  Tensor *x = vl_graph_tensor(graph, "x", ROLE_INPUT, DTYPE_F32, 4, (int64_t[]){2, 3, 4, 4}), *y = NULL,
         *z = NULL;
  vl_graph_set_scope(graph, "norm");
  require_ok(vl_batch_norm(graph, x, false, 1e-5, 0.1, &y));
  require_ok(vl_apply(graph, "relu", NULL, &y, 1, &z));
  program->logits = norm_is_read ? y : z;
}

/* The tensor the caller reads is still made by the program. */
static void fusion_spares_what_the_caller_reads(void **state) {
  (void)state;
  for (int32_t norm_is_read = 0; norm_is_read < 2; norm_is_read++) {
    Program program;
    build_norm_end(norm_is_read == 1, &program);
    require_ok(apply_recipe("stack=vramlab", &program));
    bool made = false, relu = false;
    for (int32_t i = 0; i < program.graph->node_count; i++) {
      const Node *node = program.graph->nodes[i];
      made = made || node->outputs[0] == program.logits;
      relu = relu || is_op(node, "relu") || node->params.relu == 1;
    }
    assert_true(made && relu);
    /* Its storage must end with its own value, not with that of the ReLU behind it. */
    Schedule *schedule = NULL;
    require_ok(vl_schedule_build(&program, &schedule));
    const Tensor *last = NULL;
    for (int32_t i = 0; i < schedule->instance_count; i++) {
      const Tensor *output = schedule->instances[i].node->outputs[0];
      if (output && output->storage == program.logits->storage) last = output;
    }
    assert_ptr_equal(last, program.logits);
    vl_schedule_destroy(&schedule);
    vl_program_destroy(&program);
  }
}

static bool takes_two_gradients(const Node *node) {
  return is_op(node, "batch_norm_backward") && node->input_count == 8 && node->inputs[7];
}

static bool is_over(const Node *node, int32_t output, int32_t input) {
  return node->outputs[output]->storage == node->inputs[input]->storage;
}

/* Two gradients meet at the input of each block; in front of the first lies the pool, of the others a norm,
 * whose outputs then lie over them: what the addition saved by being in place stays saved. */
static void fusion_sums_gradients_in_the_norm(void **state) {
  (void)state;
  static const char *const recipes[] = {"fuse=norm", "stack=vramlab", "stack=vramlab amp=bf16 checkpoint=1"};
  Program plain;
  build_resnet50("baseline", &plain);
  assert_int_equal(count_ops(&plain, SEGMENT_BACKWARD, "add"), BLOCKS);
  for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
    Program program;
    build_resnet50(recipes[r], &program);
    assert_int_equal(count_ops(&program, SEGMENT_BACKWARD, "add"), 1);
    int32_t norms = 0;
    for (int32_t i = 0; i < program.graph->node_count; i++) {
      const Node *node = program.graph->nodes[i];
      if (!takes_two_gradients(node)) continue;
      norms++;
      assert_true(is_over(node, 0, 0) && is_over(node, 3, 7));
    }
    assert_int_equal(norms, BLOCKS - 1);
    vl_program_destroy(&program);
  }
  vl_program_destroy(&plain);
}

/* A norm whose output is read by `readers` GELUs, which are added up. */
static void build_norm_with_readers(int32_t readers, bool residual, Program *program) {
  Graph *graph = vl_graph_create("readers");
  vl_program_init(program, graph);
  program->training = true;
  int64_t shape[] = {2, 3, 4, 4};
  Init init = {INIT_UNIFORM, 1.0};
  Tensor *x = vl_graph_parameter(graph, "x", ROLE_PARAMETER, DTYPE_F32, 4, shape, init), *y, *sum = NULL;
  Tensor *r = vl_graph_parameter(graph, "r", ROLE_PARAMETER, DTYPE_F32, 4, shape, init);
  vl_graph_set_scope(graph, "norm");
  require_ok(vl_batch_norm(graph, x, true, 1e-5, 0.1, &y));
  Node *norm = y->producer;
  if (residual) norm->inputs[norm->input_count++] = r;
  if (!residual) require_ok(vl_apply(graph, "mul", NULL, (Tensor *[]){y, r}, 2, &sum));
  for (int32_t i = residual ? 0 : 1; i < readers; i++) {
    Tensor *z;
    require_ok(vl_apply(graph, "gelu", NULL, &y, 1, &z));
    if (sum) require_ok(vl_apply(graph, "add", NULL, (Tensor *[]){sum, z}, 2, &z));
    sum = z;
  }
  OpParams all = {.axes = {0, 1, 2, 3}, .axis_count = 4, .dtype = DTYPE_F32};
  require_ok(vl_apply(graph, "sum", &all, &sum, 1, &program->loss));
}

/* One gradient: nothing to take. Of three, the sum of two stays. A sum that is also the residual's gradient
 * is asked for. */
static void fusion_leaves_other_gradient_sums(void **state) {
  (void)state;
  static const struct {
    int32_t readers, norms, additions;
    bool residual;
  } cases[] = {{1, 0, 0, false}, {2, 1, 0, false}, {3, 1, 1, false}, {2, 0, 1, true}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Program program;
    build_norm_with_readers(cases[i].readers, cases[i].residual, &program);
    require_ok(apply_recipe("stack=vramlab", &program));
    int32_t norms = 0;
    for (int32_t k = 0; k < program.graph->node_count; k++)
      norms += takes_two_gradients(program.graph->nodes[k]);
    assert_int_equal(norms, cases[i].norms);
    assert_int_equal(count_ops(&program, SEGMENT_BACKWARD, "add"), cases[i].additions);
    peak_bytes_of(&program);
    vl_program_destroy(&program);
  }
}

/* ---- pool-index, amp --------------------------------------------------------------------------------------------- */

static void pool_indices_take_a_byte(void **state) {
  (void)state;
  Program program;
  build_resnet50("pool-index=u8", &program);
  int32_t pools = 0;
  for (int32_t i = 0; i < program.graph->node_count; i++) {
    const Node *node = program.graph->nodes[i];
    if (!is_op(node, "max_pool")) continue;
    pools++;
    assert_int_equal(node->outputs[1]->dtype, DTYPE_U8);
    assert_int_equal(node->outputs[1]->storage->dtype, DTYPE_U8);
  }
  assert_int_equal(pools, 1);
  vl_program_destroy(&program);
}

static void mixed_precision_lowers_products_alone(void **state) {
  (void)state;
  Program plain, program;
  build_resnet50("baseline", &plain);
  build_resnet50("amp=bf16", &program);
  int32_t weight_casts = 0;
  for (int32_t i = 0; i < program.graph->node_count; i++) {
    const Node *node = program.graph->nodes[i];
    bool product = is_op(node, "conv") || is_op(node, "linear");
    for (int32_t k = 0; product && k < 2; k++)
      assert_int_equal(node->inputs[k]->dtype, DTYPE_BF16);
    if (product) assert_int_equal(node->outputs[0]->dtype, DTYPE_BF16);
    if (is_op(node, "batch_norm_stats")) assert_int_equal(node->outputs[0]->dtype, DTYPE_F32);
    if (is_op(node, "batch_norm_apply")) {
      assert_int_equal(node->outputs[0]->dtype, DTYPE_BF16);
      assert_int_equal(node->inputs[3]->dtype, DTYPE_F32); /* gamma */
    }
    if (is_op(node, "softmax_cross_entropy")) assert_int_equal(node->inputs[0]->dtype, DTYPE_F32);
    weight_casts += node->segment == SEGMENT_FORWARD && is_op(node, "cast") &&
                    node->inputs[0]->storage->role == ROLE_PARAMETER;
  }
  assert_int_equal(weight_casts, CONVOLUTIONS + 1);
  assert_int_equal(program.loss->dtype, DTYPE_F32);
  for (int32_t i = 0; i < program.gradient_count; i++) {
    assert_int_equal(program.gradients[i].parameter->dtype, DTYPE_F32);
    assert_int_equal(program.gradients[i].gradient->dtype, DTYPE_F32);
  }
  /* Half of every activation; what stays are pool indices, statistics and the input beside its cast. */
  int64_t saved = vl_program_saved_bytes(&program), full = vl_program_saved_bytes(&plain);
  assert_true(saved > full / 2 && saved < full * 6 / 10);
  vl_program_destroy(&plain);
  vl_program_destroy(&program);
}

/* ---- Ties and weights -------------------------------------------------------------------------------------------- */

/* The table is looked up in fp32 whatever the precision. Its gradient's storage is made by the projection (in
 * fp32 itself with weights=on-use); autograd then adds the embedding's in place, here the embedding does. */
static void a_tied_table_has_one_gradient(void **state) {
  (void)state;
  static const struct {
    const char *recipe, *maker, *sum;
  } cases[] = {{"baseline", "matmul", "add"},
               {"amp=bf16", "cast", "add"},
               {"amp=bf16 weights=on-use", "matmul", "add"},
               {"stack=vramlab", "matmul", "embedding_backward"},
               {"stack=vramlab amp=bf16", "matmul", "embedding_backward"},
               {"stack=vramlab amp=bf16 update=in-backward", "matmul", "embedding_backward"}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    Program program;
    build_tied(cases[c].recipe, &program);
    for (int32_t i = 0; i < program.graph->node_count; i++) {
      const Node *node = program.graph->nodes[i];
      if (is_op(node, "embedding")) {
        assert_ptr_equal(node->inputs[0], program.gradients[0].parameter);
        assert_int_equal(node->outputs[0]->dtype, DTYPE_F32);
      }
    }
    assert_int_equal(program.gradient_count, 1);
    const Tensor *gradient = program.gradients[0].gradient;
    assert_string_equal(gradient->storage->name, "w.grad");
    assert_int_equal(gradient->storage->role, ROLE_GRADIENT);
    assert_true(is_op(gradient->producer, cases[c].sum));
    const Tensor *onto = gradient->producer->inputs[is_op(gradient->producer, "add") ? 0 : 2];
    assert_true(is_op(onto->producer, cases[c].maker));
    assert_ptr_equal(onto->storage, gradient->storage);
    assert_int_equal(onto->dtype, DTYPE_F32);
    peak_bytes_of(&program); /* a schedule exists: nothing reads what was added to */
    vl_program_destroy(&program);
  }
}

/* Casts of weights that backward reads as forward left them. */
static int32_t kept_weight_casts(const Program *program) {
  int32_t count = 0;
  for (int32_t i = 0; i < program->graph->node_count; i++) {
    const Node *node = program->graph->nodes[i];
    for (int32_t k = 0; node->segment == SEGMENT_BACKWARD && k < node->input_count; k++) {
      const Node *producer = node->inputs[k] ? node->inputs[k]->producer : NULL;
      count += is_op(producer, "cast") && producer->segment == SEGMENT_FORWARD &&
               producer->inputs[0]->storage->role == ROLE_PARAMETER;
    }
  }
  return count;
}

static void check_low_weights(const char *recipe, int32_t kept) {
  Program program;
  build_resnet50(recipe, &program);
  assert_int_equal(kept_weight_casts(&program), kept);
  for (int32_t i = 0; i < program.gradient_count; i++) {
    const Tensor *gradient = program.gradients[i].gradient;
    char name[160];
    snprintf(name, sizeof name, "%s.grad", program.gradients[i].parameter->name);
    assert_string_equal(gradient->name, name);
    assert_string_equal(gradient->storage->name, name);
    assert_int_equal(gradient->dtype, DTYPE_F32);
    if (program.gradients[i].parameter->rank == 4)
      assert_true(is_op(gradient->producer, "conv_backward_weights"));
  }
  vl_program_destroy(&program);
}

/* Cached, all that data gradients read: the first convolution has none, the classifier has one. */
static void low_weights_live_only_while_used(void **state) {
  (void)state;
  check_low_weights("amp=bf16 weights=on-use", 0);
  check_low_weights("amp=bf16 weights=cached", CONVOLUTIONS);
}

/* ---- inplace ----------------------------------------------------------------------------------------------------- */

static int32_t count_in_place(const Program *program, const char *op) {
  int32_t count = 0;
  for (int32_t i = 0; i < program->graph->node_count; i++) {
    const Node *node = program->graph->nodes[i];
    if (!is_op(node, op)) continue;
    bool shared = false;
    for (int32_t k = 0; k < node->input_count; k++) {
      shared = shared || (node->inputs[k] && node->inputs[k]->storage == node->outputs[0]->storage);
    }
    count += shared;
  }
  return count;
}

/* As torchvision writes it: every ReLU is in place, and so is the addition to the branch's output. */
static void the_baseline_writes_over_what_the_source_does(void **state) {
  (void)state;
  Program program, all;
  build_resnet50("baseline", &program);
  assert_int_equal(count_in_place(&program, "relu"), RELUS);
  assert_int_equal(count_in_place(&program, "add") >= BLOCKS, 1);
  assert_int_equal(count_in_place(&program, "relu_backward"), 0);
  assert_int_equal(count_in_place(&program, "batch_norm_apply"), 0);
  build_resnet50("inplace=all", &all);
  assert_int_equal(count_in_place(&all, "relu"), RELUS);
  assert_true(count_in_place(&all, "relu_backward") > 0);
  assert_true(peak_bytes_of(&all) <= peak_bytes_of(&program));
  vl_program_destroy(&program);
  vl_program_destroy(&all);
}

/* gelu's backward reads its input, so scale's output stays; add(x, x) has no operand to spare. */
static void in_place_holds_back_where_a_value_is_read_again(void **state) {
  (void)state;
  Program program;
  Graph *graph = vl_graph_create("hold");
  vl_program_init(&program, graph);
  program.training = true;
  int64_t size = 8;
  Tensor *p = vl_graph_parameter(graph, "p", ROLE_PARAMETER, DTYPE_F32, 1, &size, (Init){INIT_UNIFORM, 1.0});
  Tensor *a, *b, *c, *d, *e;
  OpParams two = {.alpha = 2.0}, sum = {.axis_count = 1, .dtype = DTYPE_F32};
  require_ok(vl_apply(graph, "scale", &two, &p, 1, &a));
  require_ok(vl_apply(graph, "gelu", NULL, &a, 1, &b));
  require_ok(vl_apply(graph, "scale", &two, &b, 1, &c));
  require_ok(vl_apply(graph, "add", NULL, (Tensor *[]){c, c}, 2, &d));
  require_ok(vl_apply(graph, "mul", NULL, (Tensor *[]){d, a}, 2, &e));
  require_ok(vl_apply(graph, "sum", &sum, &e, 1, &program.loss));
  require_ok(apply_recipe("inplace=all", &program));
  assert_ptr_not_equal(a->storage, p->storage); /* parameters are never written over */
  assert_ptr_equal(c->storage, b->storage);
  assert_ptr_not_equal(b->storage, a->storage);
  assert_ptr_not_equal(d->storage, c->storage);
  assert_ptr_not_equal(e->storage, a->storage);
  assert_ptr_not_equal(e->storage, d->storage); /* a's gradient reads d */
  peak_bytes_of(&program);
  vl_program_destroy(&program);
}

/* A view of an output that was put over an input goes there with it. */
static void in_place_takes_views_along(void **state) {
  (void)state;
  Program program;
  Graph *graph = vl_graph_create("views");
  vl_program_init(&program, graph);
  Tensor *x = vl_graph_tensor(graph, "x", ROLE_INPUT, DTYPE_F32, 1, (int64_t[]){12}), *a, *b, *rows, *y;
  OpParams shape = {.shape = {3, 4}, .rank = 2};
  require_ok(vl_apply(graph, "scale", &(OpParams){.alpha = 2.0}, &x, 1, &a));
  require_ok(vl_apply(graph, "relu", NULL, &a, 1, &b));
  require_ok(vl_apply(graph, "reshape", &shape, &b, 1, &rows));
  require_ok(vl_apply(graph, "gelu", NULL, &rows, 1, &y));
  program.logits = y;
  require_ok(apply_recipe("inplace=all", &program));
  assert_ptr_equal(b->storage, a->storage);
  assert_ptr_equal(rows->storage, a->storage);
  require_ok(vl_graph_check(graph));
  vl_program_destroy(&program);
}

/* ---- update, accumulate ------------------------------------------------------------------------------------------ */

static void updates_move_to_where_the_gradient_is_complete(void **state) {
  (void)state;
  Program program;
  build_resnet50("update=in-backward", &program);
  assert_true(program.update_in_backward && program.release_gradients);
  const Graph *graph = program.graph;
  int32_t held = 0, most = 0, last_backward = 0, updates_before_end = 0;
  for (int32_t i = 0; i < graph->node_count; i++) {
    if (graph->nodes[i]->segment == SEGMENT_BACKWARD) last_backward = i;
  }
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    for (int32_t k = 0; k < node->output_count; k++) {
      held += node->outputs[k] && node->outputs[k]->storage->role == ROLE_GRADIENT;
    }
    most = held > most ? held : most;
    if (!is_op(node, "sgd")) continue;
    held--;
    updates_before_end += i < last_backward;
    for (int32_t later = i + 1; later < graph->node_count;
         later++) { /* nobody reads the old weight any more */
      for (int32_t k = 0; k < graph->nodes[later]->input_count; k++) {
        assert_ptr_not_equal(graph->nodes[later]->inputs[k], node->inputs[0]);
      }
    }
  }
  assert_int_equal(held, 0);
  assert_true(most <= 3); /* a norm's two beside a convolution's one */
  assert_true(updates_before_end >= program.gradient_count - 3);
  vl_program_destroy(&program);
}

/* Where a later gradient still has to come, the reason is said. */
static void updates_in_backward_say_why_not(void **state) {
  (void)state;
  const Optimization *update = vl_optimization_find("update");
  Program program;
  Recipe recipe;
  build_resnet50("baseline", &program);
  require_ok(vl_recipe_parse("update=in-backward", &recipe));
  require_ok(update->check(&program, "in-backward", &recipe));
  program.accumulate = 2;
  Status status = update->check(&program, "in-backward", &recipe);
  assert_int_equal(status.code, VL_UNSUPPORTED);
  assert_non_null(strstr(status.message, "complete only after the last micro-batch"));
  program.accumulate = 1;
  program.scaling = vl_loss_scaling_dynamic();
  status = update->check(&program, "in-backward", &recipe);
  assert_int_equal(status.code, VL_UNSUPPORTED);
  assert_non_null(strstr(status.message, "loss scaling"));
  vl_program_destroy(&program);
}

static void accumulation_says_why_not(void **state) {
  (void)state;
  Program program;
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16}, &program);
  assert_unsupported(&program, "accumulate=2 update=in-backward", "complete only after the last micro-batch");
  network_tied(&program); /* a label a token: samples are not the leading dimension */
  assert_unsupported(&program, "accumulate=2", "do not agree on a number of samples");
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16}, &program);
  require_ok(vl_apply(program.graph, "relu", NULL, &program.loss, 1, &program.loss));
  assert_unsupported(&program, "accumulate=2", "is made by relu; only sums of cross entropies");
}

/* Evaluation has nothing to add up, and one micro-batch is the batch. */
static void accumulation_leaves_alone_what_has_no_parts(void **state) {
  (void)state;
  static const char *const recipes[] = {"accumulate=4", "accumulate=1"};
  for (int32_t training = 0; training < 2; training++) {
    Program program;
    network_bottlenecks(&(NetOptions){.batch = 2, .size = 16, .evaluation = training == 0}, &program);
    require_ok(apply_recipe(recipes[training], &program));
    assert_int_equal(program.accumulate, 1);
    for (int32_t i = 0; i < program.graph->node_count; i++)
      assert_false(program.graph->nodes[i]->accumulates);
    vl_program_destroy(&program);
  }
}

/* ---- All together ------------------------------------------------------------------------------------------------ */

/* Each rung of the ladder needs less than the one before. */
static void every_rung_needs_less(void **state) {
  (void)state;
  static const char *const ladder[] = {
      "baseline",
      "stack=vramlab",
      "stack=vramlab recompute=inner-norm",
      "stack=vramlab recompute=norm",
      "stack=vramlab amp=bf16 recompute=norm",
      "stack=vramlab amp=bf16 checkpoint=1 recompute=norm",
  };
  int64_t before_bytes = INT64_MAX;
  for (size_t i = 0; i < sizeof ladder / sizeof *ladder; i++) {
    Program program;
    build_resnet50(ladder[i], &program);
    int64_t peak_bytes = peak_bytes_of(&program);
    print_message("%-52s %7.1f MiB of activations at batch 2\n", ladder[i], (double)peak_bytes / 1048576.0);
    assert_true(peak_bytes < before_bytes);
    before_bytes = peak_bytes;
    vl_program_destroy(&program);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(fusion_leaves_no_relu_or_addition),
      cmocka_unit_test(fusion_spares_what_the_caller_reads),
      cmocka_unit_test(fusion_sums_gradients_in_the_norm),
      cmocka_unit_test(fusion_leaves_other_gradient_sums),
      cmocka_unit_test(pool_indices_take_a_byte),
      cmocka_unit_test(mixed_precision_lowers_products_alone),
      cmocka_unit_test(a_tied_table_has_one_gradient),
      cmocka_unit_test(low_weights_live_only_while_used),
      cmocka_unit_test(the_baseline_writes_over_what_the_source_does),
      cmocka_unit_test(in_place_holds_back_where_a_value_is_read_again),
      cmocka_unit_test(in_place_takes_views_along),
      cmocka_unit_test(updates_move_to_where_the_gradient_is_complete),
      cmocka_unit_test(updates_in_backward_say_why_not),
      cmocka_unit_test(accumulation_says_why_not),
      cmocka_unit_test(accumulation_leaves_alone_what_has_no_parts),
      cmocka_unit_test(every_rung_needs_less),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
