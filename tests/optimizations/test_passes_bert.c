/* What the optimizations of language models do to a program: attention, layer norms, additions and biases
 * fused with what follows, dropout, losses in parts, frozen layers and moments in 8 bits. */
#include "tests/graph/networks.h"
#include "tests/optimizations/programs.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void build_small_bert(bool training, Program *program) {
  static const char *const small[] = {"sequence=16", "layers=2", "hidden=64", "heads=4", "vocabulary=61"};
  build_case("bert-base", 4, small, 5, training, program);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

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

/* ---- fuse=residual-norm, fuse=bias-gelu -------------------------------------------------------------------------- */

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

/* ---- layer-norm, dropout ----------------------------------------------------------------------------------------- */

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

/* ---- loss-chunks ------------------------------------------------------------------------------------------------- */

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

/* ---- freeze, optimizer-state ------------------------------------------------------------------------------------- */

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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(attention_is_written_out_where_asked_or_as_pytorch_does),
      cmocka_unit_test(attention_in_mixed_precision),
      cmocka_unit_test(residuals_join_their_norms),
      cmocka_unit_test(joined_residuals_say_why_not),
      cmocka_unit_test(bias_gradients_are_summed_with_gelus),
      cmocka_unit_test(composed_layer_norms_keep_twice_as_much),
      cmocka_unit_test(eager_dropout_keeps_its_noise),
      cmocka_unit_test(losses_in_parts_say_why_not),
      cmocka_unit_test(losses_in_parts_never_have_all_scores),
      cmocka_unit_test(freezing_says_why_not),
      cmocka_unit_test(moments_in_8_bits_say_why_not),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
