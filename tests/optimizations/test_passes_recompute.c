/* What recompute and inplace-abn keep and make again: norms and GELUs from their inputs, norms from their
 * output. */
#include "tests/graph/networks.h"
#include "tests/optimizations/programs.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* How often nodes of an op are repeated. */
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

/* ---- recompute=norm on ResNet-50 --------------------------------------------------------------------------------- */

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
    if (cases[i].repeated >= 0) assert_int_equal(repeated(&program, "batch_norm_apply"), cases[i].repeated);
    peak_bytes_of(&program);
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

/* ---- recompute on BERT ------------------------------------------------------------------------------------------- */

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

/* ---- inplace-abn ------------------------------------------------------------------------------------------------- */

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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(weight_gradients_normalise_what_they_read),
      cmocka_unit_test(a_norm_read_otherwise_is_repeated),
      cmocka_unit_test(recomputation_keeps_inputs_of_norms_and_gelus),
      cmocka_unit_test(inverted_norms_keep_their_output_alone),
      cmocka_unit_test(inversion_says_why_not),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
