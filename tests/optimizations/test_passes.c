/* What each optimization does to a program: on ResNet-50, where the counts are known, and on small graphs
 * where a pass must hold back. */
#include "cases/cases.h"
#include "optimizations/optimizations.h"
#include "tests/graph/networks.h"
#include "tests/graph/simulate.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ResNet-50 has 53 convolutions, each with a norm; 49 ReLUs; 16 blocks, each with an addition, four of them
 * with a projection. */
enum { CONVOLUTIONS = 53, RELUS = 49, BLOCKS = 16, PROJECTIONS = 4 };

static Status apply_recipe(const char *text, Program *program) {
  Recipe recipe;
  Target target = {.ranks = 1};
  require_ok(vl_recipe_parse(text, &recipe));
  return vl_recipe_apply(&recipe, program, &target);
}

static void build_resnet50(const char *recipe, Program *program) {
  const Case *resnet = vl_case_find("resnet50");
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  require_ok(vl_case_arguments(resnet, 2, NULL, 0, values));
  require_ok(resnet->build(values, true, program));
  require_ok(apply_recipe(recipe, program));
}

static bool is_op(const Node *node, const char *op) { return node && strcmp(node->op->name, op) == 0; }

static int32_t count_ops(const Program *program, Segment segment, const char *op) {
  int32_t count = 0;
  for (int32_t i = 0; i < program->graph->node_count; i++) {
    const Node *node = program->graph->nodes[i];
    count += node->segment == segment && is_op(node, op);
  }
  return count;
}

static int64_t peak_bytes_of(const Program *program) {
  Schedule *schedule = NULL;
  Simulation simulation;
  require_ok(vl_schedule_build(program, &schedule));
  simulate_schedule(program, schedule, &simulation);
  int64_t peak_bytes = simulation.peak_bytes;
  simulation_free(&simulation);
  vl_schedule_destroy(&schedule);
  return peak_bytes;
}

/* ---- fuse ------------------------------------------------------------------------------------------------------------ */

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

/* ---- pool-index, amp, weights ------------------------------------------------------------------------------------------ */

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

/* ---- attention ------------------------------------------------------------------------------------------------------- */

static void build_attention(const char *recipe, double rate, Program *program) {
  Graph *graph = vl_graph_create("attention");
  vl_program_init(program, graph);
  program->training = true;
  Tensor *qkv = vl_graph_parameter(graph, "qkv", ROLE_PARAMETER, DTYPE_F32, 5, (int64_t[]){2, 9, 3, 2, 4},
                                   (Init){INIT_UNIFORM, 1.0});
  Tensor *mask = vl_graph_tensor(graph, "mask", ROLE_INPUT, DTYPE_F32, 2, (int64_t[]){2, 9});
  OpParams params = {.rate = rate, .random_scope = "layer.dropout"};
  OpParams all = {.axes = {0, 1, 2, 3}, .axis_count = 4, .dtype = DTYPE_F32};
  Node *node;
  vl_graph_set_scope(graph, "layer");
  require_ok(vl_graph_add(graph, "attention", &params, (Tensor *[]){qkv, mask}, 2, &node));
  require_ok(vl_apply(graph, "sum", &all, node->outputs, 1, &program->loss));
  require_ok(apply_recipe(recipe, program));
}

/* PyTorch's fused kernel for CPUs knows no dropout. */
static void attention_is_written_out_where_asked_or_as_pytorch_does(void **state) {
  (void)state;
  static const struct {
    const char *recipe;
    double rate;
    int32_t fused, dropouts;
  } cases[] = {{"baseline", 0.1, 0, 1},
               {"baseline", 0.0, 1, 0},
               {"attention=fused", 0.1, 1, 0},
               {"stack=vramlab", 0.1, 1, 0},
               {"attention=materialised", 0.0, 0, 0},
               {"stack=vramlab attention=materialised", 0.1, 0, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Program program;
    build_attention(cases[i].recipe, cases[i].rate, &program);
    int32_t written_out = 1 - cases[i].fused;
    assert_int_equal(count_ops(&program, SEGMENT_FORWARD, "attention"), cases[i].fused);
    assert_int_equal(count_ops(&program, SEGMENT_BACKWARD, "attention_backward"), cases[i].fused);
    assert_int_equal(count_ops(&program, SEGMENT_FORWARD, "matmul"), 2 * written_out);
    assert_int_equal(count_ops(&program, SEGMENT_FORWARD, "softmax"), written_out);
    assert_int_equal(count_ops(&program, SEGMENT_FORWARD, "dropout"), cases[i].dropouts);
    peak_bytes_of(&program);
    vl_program_destroy(&program);
  }
}

/* Autocast lowers queries, keys and values; what is written out computes in fp32 all the same. */
static void attention_in_mixed_precision(void **state) {
  (void)state;
  Program fused, chain;
  build_attention("attention=fused amp=bf16", 0.1, &fused);
  build_attention("attention=materialised amp=bf16", 0.1, &chain);
  for (int32_t i = 0; i < fused.graph->node_count; i++) {
    const Node *node = fused.graph->nodes[i];
    if (!is_op(node, "attention")) continue;
    assert_int_equal(node->inputs[0]->dtype, DTYPE_BF16);
    assert_int_equal(node->inputs[1]->dtype, DTYPE_F32); /* the mask */
    assert_int_equal(node->outputs[0]->dtype, DTYPE_BF16);
    assert_int_equal(node->outputs[1]->dtype, DTYPE_F32);
  }
  for (int32_t i = 0; i < chain.graph->node_count; i++) {
    const Node *node = chain.graph->nodes[i];
    bool computes = is_op(node, "matmul") || is_op(node, "softmax") || is_op(node, "dropout");
    if (computes) assert_int_equal(node->outputs[0]->dtype, DTYPE_F32);
    if (is_op(node, "sum")) assert_int_equal(node->inputs[0]->dtype, DTYPE_BF16);
  }
  /* Probabilities, and those that dropout kept, of 2 samples and 2 heads. */
  assert_true(vl_program_saved_bytes(&chain) > vl_program_saved_bytes(&fused) + 2 * 4 * 2 * 2 * 9 * 9);
  vl_program_destroy(&fused);
  vl_program_destroy(&chain);
}

/* ---- ties and weights ------------------------------------------------------------------------------------------------- */

/* Rows of a table times all of it, as a language model ties its embedding to its output. */
static void build_tied(const char *recipe, Program *program) {
  Graph *graph = vl_graph_create("tied");
  vl_program_init(program, graph);
  program->training = true;
  Init init = {.kind = INIT_UNIFORM, .value = 0.1};
  Tensor *table = vl_graph_parameter(graph, "w", ROLE_PARAMETER, DTYPE_F32, 2, (int64_t[]){50, 8}, init);
  Tensor *ids = vl_graph_tensor(graph, "ids", ROLE_INPUT, DTYPE_I32, 1, (int64_t[]){6});
  Tensor *labels = vl_graph_tensor(graph, "labels", ROLE_INPUT, DTYPE_I32, 1, (int64_t[]){6}), *x;
  Node *loss;
  require_ok(vl_apply(graph, "embedding", NULL, (Tensor *[]){table, ids}, 2, &x));
  require_ok(vl_apply(graph, "gelu", NULL, &x, 1, &x));
  require_ok(vl_apply(graph, "linear", NULL, (Tensor *[]){x, table}, 2, &program->logits));
  require_ok(
      vl_graph_add(graph, "softmax_cross_entropy", NULL, (Tensor *[]){program->logits, labels}, 2, &loss));
  program->loss = loss->outputs[0];
  require_ok(apply_recipe(recipe, program));
  require_ok(vl_graph_check(graph));
}

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

/* ---- activation-gradients ------------------------------------------------------------------------------------------------ */

static void build_bert_with(const char *recipe, Program *program) {
  const Case *bert = vl_case_find("bert-base");
  static const char *const small[] = {"layers=2", "hidden=32", "heads=2", "vocabulary=60", "sequence=16"};
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  require_ok(vl_case_arguments(bert, 2, small, 5, values));
  require_ok(bert->build(values, true, program));
  require_ok(apply_recipe(recipe, program));
}

static bool is_low(const Tensor *tensor) {
  return tensor && (tensor->dtype == DTYPE_BF16 || tensor->dtype == DTYPE_F16);
}

static int32_t count_low_outputs(const Program *program, Segment segment) {
  int32_t count = 0;
  for (int32_t i = 0; i < program->graph->node_count; i++) {
    const Node *node = program->graph->nodes[i];
    for (int32_t k = 0; node->segment == segment && k < node->output_count; k++)
      count += is_low(node->outputs[k]);
  }
  return count;
}

static void check_fp32_gradients(void (*build)(const char *recipe, Program *program), const char *recipe) {
  Program plain, wide;
  char text[160];
  build(recipe, &plain);
  snprintf(text, sizeof text, "%s activation-gradients=fp32", recipe);
  build(text, &wide);
  assert_true(count_low_outputs(&plain, SEGMENT_BACKWARD) > 0);
  assert_int_equal(count_low_outputs(&wide, SEGMENT_BACKWARD), 0);
  assert_int_equal(count_low_outputs(&wide, SEGMENT_FORWARD), count_low_outputs(&plain, SEGMENT_FORWARD));
  for (int32_t i = 0; i < wide.graph->node_count; i++) {
    const Node *node = wide.graph->nodes[i];
    if (node->segment != SEGMENT_BACKWARD || !is_op(node, "cast")) continue;
    assert_true(is_low(node->inputs[0])); /* nothing is cast to its own type */
    for (int32_t k = 0; k < i; k++)       /* nor twice */
      assert_false(wide.graph->nodes[k]->segment == SEGMENT_BACKWARD && is_op(wide.graph->nodes[k], "cast") &&
                   wide.graph->nodes[k]->inputs[0] == node->inputs[0]);
  }
  assert_int_equal(wide.gradient_count, plain.gradient_count);
  for (int32_t i = 0; i < wide.gradient_count; i++) {
    const Tensor *gradient = wide.gradients[i].gradient;
    assert_string_equal(gradient->storage->name, plain.gradients[i].gradient->storage->name);
    assert_int_equal(gradient->storage->role, ROLE_GRADIENT);
    assert_int_equal(gradient->dtype, DTYPE_F32);
    bool is_made = false;
    for (int32_t k = 0; k < gradient->producer->output_count; k++)
      is_made = is_made || gradient->producer->outputs[k] == gradient;
    assert_true(is_made);
  }
  peak_bytes_of(&wide); /* a schedule exists */
  vl_program_destroy(&plain);
  vl_program_destroy(&wide);
}

static void backward_computes_in_fp32_where_that_is_asked_for(void **state) {
  (void)state;
  static const char *const resnet[] = {"amp=bf16",
                                       "amp=fp16",
                                       "fuse=norm amp=bf16",
                                       "inplace-abn=0.01 amp=bf16",
                                       "amp=bf16 inplace=all recompute=norm",
                                       "stack=vramlab amp=bf16 weights=cached"};
  static const char *const bert[] = {"amp=bf16",
                                     "amp=fp16 clip=1",
                                     "amp=bf16 attention=fused dropout=redrawn",
                                     "amp=bf16 layer-norm=composed dropout=mask",
                                     "loss-chunks=2 amp=bf16",
                                     "amp=bf16 checkpoint=1 update=in-backward",
                                     "amp=bf16 accumulate=2",
                                     "stack=vramlab amp=fp16 weights=cached"};
  for (size_t i = 0; i < sizeof resnet / sizeof *resnet; i++)
    check_fp32_gradients(build_resnet50, resnet[i]);
  for (size_t i = 0; i < sizeof bert / sizeof *bert; i++)
    check_fp32_gradients(build_bert_with, bert[i]);
  for (int32_t i = 0; i < 2; i++)
    check_fp32_gradients(build_tied, i == 0 ? "amp=bf16" : "stack=vramlab amp=bf16 weights=cached");
}

/* Low weights are made again where backward uses them, and go through fp32 from there. */
static void fp32_gradients_meet_weights_made_on_use(void **state) {
  (void)state;
  Program program;
  build_bert_with("stack=vramlab amp=bf16 activation-gradients=fp32", &program);
  for (int32_t i = 0; i < program.graph->node_count; i++) {
    const Node *node = program.graph->nodes[i];
    if (node->segment != SEGMENT_BACKWARD || !is_low(node->outputs[0])) continue;
    assert_true(is_op(node, "cast"));
    assert_int_equal(node->inputs[0]->storage->role, ROLE_PARAMETER);
  }
  peak_bytes_of(&program);
  vl_program_destroy(&program);
}

static void fp32_gradients_need_amp(void **state) {
  (void)state;
  Program program;
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16}, &program);
  Status status = apply_recipe("activation-gradients=fp32", &program);
  assert_int_equal(status.code, VL_UNSUPPORTED);
  assert_non_null(strstr(status.message, "without amp"));
  vl_program_destroy(&program);
}

/* ---- inplace ------------------------------------------------------------------------------------------------------------- */

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

/* ---- update -------------------------------------------------------------------------------------------------------------- */

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

/* ---- checkpoint, recompute ------------------------------------------------------------------------------------------------- */

static void checkpoint_refuses_more_segments_than_blocks_d5(void **state) {
  (void)state;
  Program program;
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16}, &program);
  Status status = apply_recipe("checkpoint=segments:4", &program);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "segments:4"));
  assert_non_null(strstr(status.message, "only 3 blocks"));
  vl_program_destroy(&program);
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16}, &program);
  require_ok(apply_recipe("checkpoint=segments:3", &program));
  vl_program_destroy(&program);
}

static void assert_unsupported(Program *program, const char *recipe, const char *reason) {
  Status status = apply_recipe(recipe, program);
  assert_int_equal(status.code, VL_UNSUPPORTED);
  if (!strstr(status.message, reason)) fail_msg("'%s' does not say '%s'", status.message, reason);
  vl_program_destroy(program);
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
  assert_unsupported(&program, "accumulate=2", "is made by relu; only sums of softmax_cross_entropy");
}

static void build_small_bert(bool training, Program *program) {
  const Case *bert = vl_case_find("bert-base");
  const char *settings[] = {"sequence=16", "layers=2", "hidden=64", "heads=4", "vocabulary=61"};
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  require_ok(vl_case_arguments(bert, 4, settings, sizeof settings / sizeof *settings, values));
  require_ok(bert->build(values, training, program));
}

static void losses_in_parts_say_why_not(void **state) {
  (void)state;
  Program program;
  network_layers(2, 16, &program);
  assert_unsupported(&program, "loss-chunks=2", "no loss of layers is a softmax_cross_entropy of a linear");
  build_small_bert(true, &program);
  assert_unsupported(&program, "loss-chunks=13", "mlm_loss has only 12 rows");
  build_small_bert(true, &program);
  require_ok(vl_apply(program.graph, "gelu", NULL, &program.logits, 1, &(Tensor *){NULL}));
  assert_unsupported(&program, "loss-chunks=2", "reads the scores of mlm as a whole");
}

/* No tensor of a training program has a number for every row and word, in forward or backward; evaluation
 * keeps its scores. */
static void losses_in_parts_never_have_all_scores(void **state) {
  (void)state;
  enum { ROWS = 12, WORDS = 61, PARTS = 5 };
  Program program;
  build_small_bert(true, &program);
  require_ok(apply_recipe("loss-chunks=5", &program));
  assert_null(program.logits);
  int32_t losses = 0, most = 0, added = 0;
  for (int32_t i = 0; i < program.graph->node_count; i++) {
    const Node *node = program.graph->nodes[i];
    losses += node->segment == SEGMENT_FORWARD && is_op(node, "softmax_cross_entropy");
    added += is_op(node, "matmul") && node->input_count == 3; /* to the weight gradient, in place */
    for (int32_t k = 0; k < node->output_count; k++) {
      const Tensor *output = node->outputs[k];
      if (!output || output->rank != 2 || output->shape[1] != WORDS) continue;
      most = output->shape[0] > most ? (int32_t)output->shape[0] : most;
    }
  }
  assert_int_equal(losses, PARTS + 1);
  assert_int_equal(added, PARTS - 1);
  assert_int_equal(most, (ROWS + PARTS - 1) / PARTS);
  peak_bytes_of(&program);
  vl_program_destroy(&program);
  for (int32_t training = 0; training < 2; training++) {
    build_small_bert(training == 1, &program);
    require_ok(apply_recipe(training ? "loss-chunks=1" : "loss-chunks=5", &program));
    assert_non_null(program.logits);
    vl_program_destroy(&program);
  }
}

static void freezing_says_why_not(void **state) {
  (void)state;
  Program program;
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16}, &program);
  assert_unsupported(&program, "freeze=embeddings", "has none before its first block");
  network_dropout(&program);
  program.graph->block_count = 0;
  assert_unsupported(&program, "freeze=1", "has no blocks to count");
  build_small_bert(true, &program);
  Status status = apply_recipe("freeze=3", &program);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "has only 2 blocks"));
  vl_program_destroy(&program);
}

static void moments_in_8_bits_say_why_not(void **state) {
  (void)state;
  Program program;
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16}, &program);
  assert_unsupported(&program, "optimizer-state=8bit", "is trained by SGD");
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16, .adamw = true}, &program);
  assert_unsupported(&program, "optimizer-state=8bit", "no matrix of at least 4096 elements");
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

static void checkpoint_needs_blocks(void **state) {
  (void)state;
  Program program;
  network_dropout(&program);
  for (int32_t i = 0; i < program.graph->node_count; i++)
    program.graph->nodes[i]->block = 0;
  program.graph->block_count = 0;
  Status status = apply_recipe("checkpoint=1", &program);
  assert_int_equal(status.code, VL_UNSUPPORTED);
  assert_non_null(strstr(status.message, "dropout has no blocks"));
  vl_program_destroy(&program);
}

/* One segment, or an interval of all blocks, is the last segment: nothing is repeated. */
static void one_segment_repeats_nothing(void **state) {
  (void)state;
  static const char *const recipes[] = {"checkpoint=segments:1", "checkpoint=16", "checkpoint=1000"};
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
    Program program;
    Schedule *schedule = NULL;
    build_resnet50(recipes[i], &program);
    require_ok(vl_schedule_build(&program, &schedule));
    assert_int_equal(schedule->recompute_instances, 0);
    vl_schedule_destroy(&schedule);
    vl_program_destroy(&program);
  }
}

/* A block that ends in a view: the storage behind the view is the boundary, and is kept. */
static void boundaries_are_kept_behind_views(void **state) {
  (void)state;
  Program program;
  Graph *graph = vl_graph_create("views");
  vl_program_init(&program, graph);
  program.training = true;
  int64_t size = 8;
  Tensor *x = vl_graph_parameter(graph, "p", ROLE_PARAMETER, DTYPE_F32, 1, &size, (Init){INIT_UNIFORM, 1.0});
  OpParams sum = {.axis_count = 1, .dtype = DTYPE_F32};
  for (int32_t block = 1; block <= 3; block++) {
    graph->block = ++graph->block_count;
    vl_graph_set_scope(graph, "block%d", block);
    require_ok(vl_apply(graph, "gelu", NULL, &x, 1, &x));
    require_ok(vl_apply(graph, "gelu", NULL, &x, 1, &x));
    OpParams shape = {.rank = x->rank == 1 ? 2 : 1, .shape = {x->rank == 1 ? 2 : 8, 4}};
    require_ok(vl_apply(graph, "reshape", &shape, &x, 1, &x));
  }
  graph->block = 0;
  OpParams flat = {.rank = 1, .shape = {8}};
  require_ok(vl_apply(graph, "reshape", &flat, &x, 1, &x));
  require_ok(vl_apply(graph, "sum", &sum, &x, 1, &program.loss));
  require_ok(apply_recipe("checkpoint=1", &program));
  Schedule *schedule = NULL;
  require_ok(vl_schedule_build(&program, &schedule));
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    if (node->segment != SEGMENT_FORWARD || !is_op(node, "gelu")) continue;
    bool ends_block = is_op(graph->nodes[i + 1], "reshape");
    assert_int_equal(launches_of(schedule, node), ends_block || node->block == 3 ? 1 : 2);
  }
  vl_schedule_destroy(&schedule);
  peak_bytes_of(&program);
  vl_program_destroy(&program);
}

static int32_t repeated_norms(const Program *program) {
  Schedule *schedule = NULL;
  require_ok(vl_schedule_build(program, &schedule));
  int32_t count = 0;
  for (int32_t i = 0; i < schedule->instance_count; i++) {
    const Instance *instance = &schedule->instances[i];
    count += is_op(instance->node, "batch_norm_apply") && instance->pass > 0;
  }
  vl_schedule_destroy(&schedule);
  return count;
}

static int32_t normalising_gradients(const Program *program) {
  int32_t count = 0;
  for (int32_t i = 0; i < program->graph->node_count; i++) {
    const Node *node = program->graph->nodes[i];
    if (!is_op(node, "conv_backward_weights") || node->input_count < 6) continue;
    const Node *norm = node->inputs[0]->producer;
    assert_true(is_op(norm, "conv")); /* what the norm reads */
    assert_int_equal(node->params.relu, 1);
    count++;
  }
  return count;
}

/* In a bottleneck the second and third convolution read a norm without residual: its input is read instead.
 * What is still repeated has a residual or, on the downsampling branches, is one. Without fusion the ReLUs'
 * gradients read what the ReLUs made. */
static void weight_gradients_normalise_what_they_read(void **state) {
  (void)state;
  enum { DOWNSAMPLES = 4 };
  static const struct {
    const char *recipe;
    int32_t normalising, repeated; /* -1: not counted */
  } cases[] = {
      {"recompute=norm", 0, -1},
      {"fuse=norm recompute=norm", 2 * BLOCKS, BLOCKS + DOWNSAMPLES},
      {"stack=vramlab recompute=norm", 2 * BLOCKS, BLOCKS + DOWNSAMPLES},
      {"stack=vramlab amp=bf16 recompute=norm update=in-backward", 2 * BLOCKS, BLOCKS + DOWNSAMPLES},
      {"stack=vramlab amp=bf16 recompute=norm checkpoint=1", 2 * BLOCKS, -1},
      {"stack=vramlab recompute=inner-norm", 2 * BLOCKS, 0},
      {"stack=vramlab amp=bf16 recompute=inner-norm update=in-backward", 2 * BLOCKS, 0},
      {"stack=vramlab recompute=gelu", 0, 0},
      {"stack=vramlab amp=bf16", 0, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Program program;
    build_resnet50(cases[i].recipe, &program);
    assert_int_equal(normalising_gradients(&program), cases[i].normalising);
    if (cases[i].repeated >= 0) assert_int_equal(repeated_norms(&program), cases[i].repeated);
    peak_bytes_of(&program);
    vl_program_destroy(&program);
  }
}

/* Bytes of what forward passes leave for backward: what is alive when the first backward node begins. */
static int64_t kept_bytes(const Program *program) {
  Schedule *schedule = NULL;
  require_ok(vl_schedule_build(program, &schedule));
  int32_t boundary = 0;
  while (schedule->instances[boundary].node->segment == SEGMENT_FORWARD)
    boundary++;
  int64_t bytes = 0;
  for (int32_t i = 0; i < schedule->buffer_count; i++) {
    const Buffer *buffer = &schedule->buffers[i];
    if (buffer->first >= 0 && buffer->first < boundary && buffer->last >= boundary)
      bytes += vl_dtype_bytes(buffer->storage->dtype, buffer->storage->elements);
  }
  vl_schedule_destroy(&schedule);
  return bytes;
}

/* The stem's and the first two norms of each block, whose inputs go; their gammas' magnitudes are kept. Of
 * the stem's, stack=vramlab keeps nothing but the input otherwise, since the pool behind it reads indices. */
static void inverted_norms_keep_their_output_alone(void **state) {
  (void)state;
  static const char *const stacks[] = {"", "stack=vramlab ", "stack=vramlab amp=bf16 "};
  for (size_t s = 0; s < sizeof stacks / sizeof *stacks; s++) {
    Program plain, inverted;
    char text[64];
    snprintf(text, sizeof text, "%sinplace-abn=0.01", stacks[s]);
    build_resnet50(stacks[s], &plain);
    build_resnet50(text, &inverted);
    assert_int_equal(count_ops(&inverted, SEGMENT_BACKWARD, "batch_norm_invert"), 2 * BLOCKS + 1);
    int64_t inputs_bytes = 0, gammas_bytes = 0;
    for (int32_t i = 0; i < inverted.graph->node_count; i++) {
      const Node *node = inverted.graph->nodes[i];
      if (!is_op(node, "batch_norm_invert")) continue;
      bool stem = strcmp(node->scope, "bn1") == 0;
      if (!stem || s == 0) inputs_bytes += vl_tensor_bytes(node->outputs[0]);
      gammas_bytes += vl_tensor_bytes(node->inputs[3]);
    }
    assert_int_equal(kept_bytes(&plain) - kept_bytes(&inverted), inputs_bytes - gammas_bytes);
    print_message("%s: %.1f MiB kept at batch 2, %.1f without\n", text,
                  (double)kept_bytes(&inverted) / 1048576.0, (double)kept_bytes(&plain) / 1048576.0);
    assert_true(peak_bytes_of(&inverted) < peak_bytes_of(&plain));
    vl_program_destroy(&plain);
    vl_program_destroy(&inverted);
  }
}

static void inversion_says_why_not(void **state) {
  (void)state;
  Program program;
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16}, &program);
  assert_unsupported(&program, "inplace-abn=0.01 recompute=norm", "leave one of them out");
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16}, &program);
  require_ok(apply_recipe("inplace-abn=0.01 recompute=gelu", &program));
  vl_program_destroy(&program);
}

/* BERT with LAYERS layers at batch 2. */
enum { LAYERS = 3, SEQUENCE = 16, HIDDEN = 32, BERT_BATCH = 2 };

static void build_bert(const char *recipe, Program *program) {
  const Case *bert = vl_case_find("bert-base");
  const char *settings[] = {"sequence=16", "layers=3", "hidden=32", "heads=4", "vocabulary=61"};
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  require_ok(vl_case_arguments(bert, BERT_BATCH, settings, 5, values));
  require_ok(bert->build(values, true, program));
  require_ok(apply_recipe(recipe, program));
}

/* Two in each layer, and the embedding's, whose addition has no dropout; of the head's there is none. */
static void residuals_join_their_norms(void **state) {
  (void)state;
  static const char *const recipes[] = {"fuse=residual-norm dropout=redrawn",
                                        "stack=vramlab fuse=norm+bias-gelu+residual-norm",
                                        "stack=vramlab fuse=residual-norm amp=bf16"};
  for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
    Program program;
    build_bert(recipes[r], &program);
    assert_int_equal(count_ops(&program, SEGMENT_FORWARD, "residual_norm"), 2 * LAYERS + 1);
    assert_int_equal(count_ops(&program, SEGMENT_FORWARD, "layer_norm"), 1);
    assert_int_equal(count_ops(&program, SEGMENT_BACKWARD, "residual_norm_backward"), 2 * LAYERS + 1);
    int32_t dropped = 0;
    for (int32_t i = 0; i < program.graph->node_count; i++) {
      const Node *node = program.graph->nodes[i];
      if (!is_op(node, "residual_norm")) continue;
      dropped += node->params.rate > 0.0;
      assert_int_equal(node->outputs[0]->dtype, DTYPE_F32);
      bool low = strstr(recipes[r], "bf16") && node->params.rate > 0.0; /* what a product made */
      assert_int_equal(node->inputs[0]->dtype, low ? DTYPE_BF16 : DTYPE_F32);
    }
    assert_int_equal(dropped, 2 * LAYERS);
    peak_bytes_of(&program);
    vl_program_destroy(&program);
  }
}

static void joined_residuals_say_why_not(void **state) {
  (void)state;
  static const char *const beside[][2] = {{"dropout=stored", "none is left"},
                                          {"layer-norm=composed", "no primitives"},
                                          {"recompute=norm", "cannot be repeated from it"},
                                          {"recompute=inner-norm", "cannot be repeated from it"}};
  for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
    Program program;
    char recipe[96];
    network_tied(&program);
    snprintf(recipe, sizeof recipe, "fuse=residual-norm %s", beside[i][0]);
    assert_unsupported(&program, recipe, beside[i][1]);
  }
}

/* The layers' and the head's: the sums of their other biases' gradients stay. */
static void bias_gradients_are_summed_with_gelus(void **state) {
  (void)state;
  static const char *const recipes[][2] = {{"fuse=norm", "fuse=bias-gelu"},
                                           {"stack=vramlab fuse=norm", "stack=vramlab"},
                                           {"stack=vramlab fuse=norm amp=bf16", "stack=vramlab amp=bf16"}};
  for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
    Program plain, fused;
    build_bert(recipes[r][0], &plain);
    build_bert(recipes[r][1], &fused);
    int32_t sums = count_ops(&plain, SEGMENT_BACKWARD, "sum") - count_ops(&fused, SEGMENT_BACKWARD, "sum");
    assert_int_equal(sums, LAYERS + 1);
    for (int32_t i = 0; i < fused.graph->node_count; i++) {
      const Node *node = fused.graph->nodes[i];
      if (!is_op(node, "gelu_backward")) continue;
      assert_int_equal(node->output_count, 2);
      assert_int_equal(node->outputs[1]->storage->role, ROLE_GRADIENT);
    }
    assert_true(peak_bytes_of(&fused) <= peak_bytes_of(&plain));
    vl_program_destroy(&plain);
    vl_program_destroy(&fused);
  }
}

static int32_t repeated(const Program *program, const char *op) {
  Schedule *schedule = NULL;
  require_ok(vl_schedule_build(program, &schedule));
  int32_t count = 0;
  for (int32_t i = 0; i < schedule->instance_count; i++) {
    const Instance *instance = &schedule->instances[i];
    count += is_op(instance->node, op) && instance->pass > 0;
  }
  vl_schedule_destroy(&schedule);
  return count;
}

/* stack=pytorch keeps the factors of the embedding's, both of each layer's and the attentions' dropouts. */
static void eager_dropout_keeps_its_noise(void **state) {
  (void)state;
  enum { HEADS = 4 };
  static const struct {
    const char *keeps, *draws;
    int64_t hidden_bytes,
        wide_bytes; /* of an element of the layers' noise; of the embedding's, attention's */
  } cases[] = {
      {"baseline", "dropout=redrawn", 4, 4},
      {"amp=bf16", "amp=bf16 dropout=redrawn", 2, 4},
      {"amp=bf16 dropout=mask", "amp=bf16 dropout=redrawn", 1, 1},
      {"stack=vramlab dropout=stored attention=materialised", "stack=vramlab attention=materialised", 4, 4}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Program keeps, draws;
    build_bert(cases[i].keeps, &keeps);
    build_bert(cases[i].draws, &draws);
    int64_t hidden = (int64_t)BERT_BATCH * SEQUENCE * HIDDEN;
    int64_t bytes = hidden * cases[i].wide_bytes + 2 * LAYERS * hidden * cases[i].hidden_bytes;
    bytes += (int64_t)LAYERS * BERT_BATCH * HEADS * SEQUENCE * SEQUENCE * cases[i].wide_bytes;
    assert_int_equal(kept_bytes(&keeps) - kept_bytes(&draws), bytes);
    assert_int_equal(vl_program_saved_bytes(&keeps) - vl_program_saved_bytes(&draws), bytes);
    vl_program_destroy(&keeps);
    vl_program_destroy(&draws);
  }
}

/* A norm of primitives keeps the differences and the normal values, and one number a row, where the op keeps
 * its input and two. */
static void composed_layer_norms_keep_twice_as_much(void **state) {
  (void)state;
  static const char *const precisions[] = {"", "amp=bf16 "}; /* norms are in f32 in both */
  for (size_t i = 0; i < 2; i++) {
    Program fused, composed;
    char text[2][64];
    snprintf(text[0], sizeof text[0], "%slayer-norm=fused", precisions[i]);
    snprintf(text[1], sizeof text[1], "%slayer-norm=composed", precisions[i]);
    build_bert(text[0], &fused);
    build_bert(text[1], &composed);
    assert_int_equal(count_ops(&composed, SEGMENT_FORWARD, "layer_norm"), 0);
    assert_int_equal(count_ops(&composed, SEGMENT_FORWARD, "rsqrt"), 2 * LAYERS + 2);
    int64_t rows = (2 * LAYERS + 1) * BERT_BATCH * SEQUENCE + BERT_BATCH * 3;
    int64_t of_fused = rows * HIDDEN * 4 + rows * 8, of_composed = 2 * rows * HIDDEN * 4 + rows * 4;
    print_message("%ssaved by the norms of a small BERT: fused %lld bytes, composed %lld\n", precisions[i],
                  (long long)of_fused, (long long)of_composed);
    int64_t more = vl_program_saved_bytes(&composed) - vl_program_saved_bytes(&fused);
    assert_int_equal(more, of_composed - of_fused);
    assert_int_equal(kept_bytes(&composed) - kept_bytes(&fused), of_composed - of_fused);
    assert_true(peak_bytes_of(&composed) > peak_bytes_of(&fused));
    vl_program_destroy(&fused);
    vl_program_destroy(&composed);
  }
}

/* Units of one activation (batch, sequence, hidden) in f32: a GELU's output is four of them; a norm's output
 * is one, beside it its two numbers a row; with bf16 what is saved is half, of a norm's output a cast. The
 * embedding's and the layers' norms are repeated but the last, of which backward reads nothing, and the
 * head's, which is; the layers' GELUs are, the head's is what a norm reads. */
static void recomputation_keeps_inputs_of_norms_and_gelus(void **state) {
  (void)state;
  static const struct {
    const char *base, *recipe;
    int32_t norms, gelus, casts;
  } cases[] = {{"stack=vramlab", "recompute=norm", 2 * LAYERS + 1, LAYERS, 0},
               {"stack=vramlab", "recompute=inner-norm", 2 * LAYERS + 1, LAYERS, 0},
               {"stack=vramlab", "recompute=gelu", 0, LAYERS, 0},
               {"stack=vramlab amp=bf16", "recompute=norm", 2 * LAYERS + 1, LAYERS, 2 * LAYERS + 1},
               {"stack=vramlab amp=bf16", "recompute=gelu", 0, LAYERS, 0}};
  const int64_t unit = (int64_t)BERT_BATCH * SEQUENCE * HIDDEN * 4, rows = (int64_t)BERT_BATCH * SEQUENCE * 8;
  const int64_t head_rows = BERT_BATCH * 3; /* masked positions */
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Program plain, program;
    char recipe[128];
    snprintf(recipe, sizeof recipe, "%s %s", cases[i].base, cases[i].recipe);
    build_bert(cases[i].base, &plain);
    build_bert(recipe, &program);
    assert_int_equal(repeated(&program, "layer_norm"), cases[i].norms);
    assert_int_equal(repeated(&program, "gelu"), cases[i].gelus);
    assert_int_equal(repeated(&program, "cast"), cases[i].casts);
    int64_t bytes = 4 * LAYERS * unit, saved = kept_bytes(&plain) - kept_bytes(&program);
    if (cases[i].norms > 0) bytes += 2 * LAYERS * unit + head_rows * HIDDEN * 4;
    if (strstr(recipe, "bf16")) bytes /= 2;
    if (cases[i].norms > 0) bytes += 2 * LAYERS * rows + head_rows * 8;
    assert_int_equal(saved, bytes);
    peak_bytes_of(&program);
    vl_program_destroy(&plain);
    vl_program_destroy(&program);
  }
}

/* Another reader in backward, and the norm is repeated for all of them. */
static void a_norm_read_otherwise_is_repeated(void **state) {
  (void)state;
  for (int32_t other = 0; other < 3; other++) {
    Program program;
    Graph *graph = vl_graph_create("readers");
    vl_program_init(&program, graph);
    program.training = true;
    Init init = {INIT_UNIFORM, 1.0};
    Tensor *x = vl_graph_parameter(graph, "x", ROLE_PARAMETER, DTYPE_F32, 4, (int64_t[]){2, 3, 4, 4}, init);
    Tensor *w = vl_graph_parameter(graph, "w", ROLE_PARAMETER, DTYPE_F32, 4, (int64_t[]){3, 3, 3, 3}, init);
    Tensor *y, *z, *unused;
    vl_graph_set_scope(graph, "norm");
    require_ok(vl_batch_norm(graph, x, true, 1e-5, 0.1, &y));
    vl_graph_set_scope(graph, "conv");
    require_ok(vl_conv(graph, y, w, 1, 1, 1, &z));
    require_ok(vl_apply(graph, "gelu", NULL, other == 1 ? &y : &z, 1, &unused)); /* saves what it reads */
    require_ok(vl_apply(graph, "add", NULL, (Tensor *[]){z, unused}, 2, &z));
    if (other == 2) require_ok(vl_apply(graph, "add", NULL, (Tensor *[]){z, y}, 2, &z)); /* may be repeated */
    OpParams all = {.axes = {0, 1, 2, 3}, .axis_count = 4, .dtype = DTYPE_F32};
    require_ok(vl_apply(graph, "sum", &all, &z, 1, &program.loss));
    require_ok(apply_recipe("recompute=norm", &program));
    int32_t normalising = 0;
    for (int32_t i = 0; i < graph->node_count; i++)
      normalising += is_op(graph->nodes[i], "conv_backward_weights") && graph->nodes[i]->input_count == 6;
    assert_int_equal(normalising, other == 0 ? 1 : 0);
    peak_bytes_of(&program);
    vl_program_destroy(&program);
  }
}

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
      cmocka_unit_test(attention_is_written_out_where_asked_or_as_pytorch_does),
      cmocka_unit_test(attention_in_mixed_precision),
      cmocka_unit_test(a_tied_table_has_one_gradient),
      cmocka_unit_test(low_weights_live_only_while_used),
      cmocka_unit_test(backward_computes_in_fp32_where_that_is_asked_for),
      cmocka_unit_test(fp32_gradients_meet_weights_made_on_use),
      cmocka_unit_test(fp32_gradients_need_amp),
      cmocka_unit_test(the_baseline_writes_over_what_the_source_does),
      cmocka_unit_test(in_place_holds_back_where_a_value_is_read_again),
      cmocka_unit_test(in_place_takes_views_along),
      cmocka_unit_test(updates_move_to_where_the_gradient_is_complete),
      cmocka_unit_test(updates_in_backward_say_why_not),
      cmocka_unit_test(checkpoint_refuses_more_segments_than_blocks_d5),
      cmocka_unit_test(accumulation_says_why_not),
      cmocka_unit_test(accumulation_leaves_alone_what_has_no_parts),
      cmocka_unit_test(losses_in_parts_say_why_not),
      cmocka_unit_test(losses_in_parts_never_have_all_scores),
      cmocka_unit_test(freezing_says_why_not),
      cmocka_unit_test(moments_in_8_bits_say_why_not),
      cmocka_unit_test(checkpoint_needs_blocks),
      cmocka_unit_test(one_segment_repeats_nothing),
      cmocka_unit_test(boundaries_are_kept_behind_views),
      cmocka_unit_test(weight_gradients_normalise_what_they_read),
      cmocka_unit_test(inverted_norms_keep_their_output_alone),
      cmocka_unit_test(inversion_says_why_not),
      cmocka_unit_test(residuals_join_their_norms),
      cmocka_unit_test(joined_residuals_say_why_not),
      cmocka_unit_test(bias_gradients_are_summed_with_gelus),
      cmocka_unit_test(composed_layer_norms_keep_twice_as_much),
      cmocka_unit_test(eager_dropout_keeps_its_noise),
      cmocka_unit_test(recomputation_keeps_inputs_of_norms_and_gelus),
      cmocka_unit_test(a_norm_read_otherwise_is_repeated),
      cmocka_unit_test(every_rung_needs_less),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
