/* Editing a graph: nodes move, go and are replaced, names stay unique, inference is repeated after a change
 * of type, and what is broken is found. */
#include "cases/cases.h"
#include "optimizations/optimizations.h"
#include "tests/graph/networks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* x -> scale -> relu -> gelu, over 4 elements. */
typedef struct Chain {
  Graph *graph;
  Tensor *x;
  Node *scale, *relu, *gelu;
} Chain;

static Chain make_chain(void) {
  Chain chain = {.graph = vl_graph_create("chain")};
  int64_t size = 4;
  OpParams two = {.alpha = 2.0};
  chain.x = vl_graph_tensor(chain.graph, "x", ROLE_INPUT, DTYPE_F32, 1, &size);
  vl_graph_set_scope(chain.graph, "layer");
  require_ok(vl_graph_add(chain.graph, "scale", &two, &chain.x, 1, &chain.scale));
  require_ok(vl_graph_add(chain.graph, "relu", NULL, &chain.scale->outputs[0], 1, &chain.relu));
  require_ok(vl_graph_add(chain.graph, "gelu", NULL, &chain.relu->outputs[0], 1, &chain.gelu));
  require_ok(vl_graph_check(chain.graph));
  return chain;
}

static void assert_order(const Graph *graph, Node *const *nodes, int32_t count) {
  assert_int_equal(graph->node_count, count);
  for (int32_t i = 0; i < count; i++) {
    assert_ptr_equal(graph->nodes[i], nodes[i]);
    assert_int_equal(nodes[i]->position, i);
  }
}

static void nodes_move_both_ways(void **state) {
  (void)state;
  Chain c = make_chain();
  vl_graph_move_before(c.graph, c.gelu, c.scale);
  assert_order(c.graph, (Node *[]){c.gelu, c.scale, c.relu}, 3);
  vl_graph_move_before(c.graph, c.gelu, c.relu);
  assert_order(c.graph, (Node *[]){c.scale, c.gelu, c.relu}, 3);
  vl_graph_move_before(c.graph, c.scale, c.relu);
  assert_order(c.graph, (Node *[]){c.gelu, c.scale, c.relu}, 3);
  vl_graph_move_before(c.graph, c.scale, c.scale);
  assert_order(c.graph, (Node *[]){c.gelu, c.scale, c.relu}, 3);
  vl_graph_move_before(c.graph, c.scale, c.relu); /* it stands there already */
  assert_order(c.graph, (Node *[]){c.gelu, c.scale, c.relu}, 3);
  vl_graph_destroy(&c.graph);
}

static void removed_nodes_leave_no_gap(void **state) {
  (void)state;
  Chain c = make_chain();
  vl_graph_replace_reads(c.graph, c.relu->outputs[0], c.scale->outputs[0]);
  assert_ptr_equal(c.gelu->inputs[0], c.scale->outputs[0]);
  vl_graph_remove(c.graph, c.relu);
  assert_order(c.graph, (Node *[]){c.scale, c.gelu}, 2);
  require_ok(vl_graph_check(c.graph));
  vl_graph_destroy(&c.graph);
}

/* Kernels and marks are kept by node id, so a removed node's is not given again. */
static void ids_stay_unique_after_a_removal(void **state) {
  (void)state;
  Chain c = make_chain();
  vl_graph_replace_reads(c.graph, c.relu->outputs[0], c.scale->outputs[0]);
  vl_graph_remove(c.graph, c.relu);
  Node *added = NULL;
  require_ok(vl_graph_add(c.graph, "relu", NULL, &c.gelu->outputs[0], 1, &added));
  assert_int_not_equal(added->id, c.gelu->id);
  assert_int_not_equal(added->id, c.scale->id);
  vl_graph_destroy(&c.graph);
}

/* The node that makes the replacement keeps reading the original. */
static void replacing_spares_the_replacement(void **state) {
  (void)state;
  Chain c = make_chain();
  Tensor *scaled = c.scale->outputs[0];
  assert_int_equal(vl_graph_reads(c.graph, scaled, NULL), 1);
  vl_graph_replace_reads(c.graph, scaled, c.relu->outputs[0]);
  assert_ptr_equal(c.relu->inputs[0], scaled);
  Node *reader = NULL;
  assert_int_equal(vl_graph_reads(c.graph, c.relu->outputs[0], &reader), 1);
  assert_ptr_equal(reader, c.gelu);
  assert_int_equal(vl_graph_reads(c.graph, c.gelu->outputs[0], &reader), 0);
  vl_graph_destroy(&c.graph);
}

/* A view of a view of what is replaced lies in the replacement, not where nothing is written any more. */
static void replacing_takes_views_along(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("views");
  Tensor *x = vl_graph_tensor(graph, "x", ROLE_INPUT, DTYPE_F32, 1, (int64_t[]){12}), *a, *b, *flat, *square,
         *y;
  OpParams row = {.shape = {12}, .rank = 1}, rows = {.shape = {3, 4}, .rank = 2};
  require_ok(vl_apply(graph, "relu", NULL, &x, 1, &a));
  require_ok(vl_apply(graph, "reshape", &rows, &a, 1, &square));
  require_ok(vl_apply(graph, "reshape", &row, &square, 1, &flat));
  require_ok(vl_apply(graph, "relu", NULL, &flat, 1, &y));
  require_ok(vl_apply(graph, "gelu", NULL, &x, 1, &b));
  vl_graph_move_before(graph, b->producer, a->producer);
  vl_graph_replace_reads(graph, a, b);
  vl_graph_remove(graph, a->producer);
  assert_ptr_equal(square->storage, b->storage);
  assert_ptr_equal(flat->storage, b->storage);
  require_ok(vl_graph_check(graph));
  vl_graph_destroy(&graph);
}

static void taken_names_get_a_number(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("names");
  int64_t size = 1;
  Tensor *first = vl_graph_tensor(graph, "w", ROLE_PARAMETER, DTYPE_F32, 1, &size);
  Tensor *second = vl_graph_tensor(graph, "w", ROLE_PARAMETER, DTYPE_F32, 1, &size);
  Tensor *third = vl_graph_tensor(graph, "w", ROLE_PARAMETER, DTYPE_F32, 1, &size);
  assert_string_equal(first->name, "w");
  assert_string_equal(second->name, "w.2");
  assert_string_equal(third->name, "w.3");
  require_ok(vl_graph_check(graph));
  third->storage->name = "w";
  Status status = vl_graph_check(graph);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "'w'"));
  vl_graph_destroy(&graph);
}

static void refused(Graph *graph, const char *place) {
  Status status = vl_graph_check(graph);
  if (status.code != VL_INVALID || !strstr(status.message, place)) {
    fail_msg("expected a refusal that names '%s', got %s: %s", place, vl_status_name(status.code),
             status.message);
  }
}

static void check_finds_broken_order(void **state) {
  (void)state;
  Chain c = make_chain();
  vl_graph_move_before(c.graph, c.relu, c.scale);
  refused(c.graph, "relu in layer (node 0) reads layer.scale before it is made");
  vl_graph_destroy(&c.graph);
}

static void check_finds_reads_of_removed_nodes(void **state) {
  (void)state;
  Chain c = make_chain();
  c.relu->inputs[0] = c.x;
  c.gelu->inputs[0] = c.scale->outputs[0];
  vl_graph_remove(c.graph, c.scale);
  refused(c.graph, "gelu in layer (node 1) reads layer.scale");
  vl_graph_destroy(&c.graph);
}

static void check_finds_views_outside_their_storage(void **state) {
  (void)state;
  Chain c = make_chain();
  int64_t size = 4;
  vl_graph_view(c.graph, "outside", c.x, 1, &size, 1);
  refused(c.graph, "tensor outside does not lie in its storage x");
  vl_graph_destroy(&c.graph);
}

static void check_finds_wrong_shapes(void **state) {
  (void)state;
  Chain c = make_chain();
  c.relu->outputs[0]->shape[0] = 3;
  refused(c.graph, "relu in layer");
  vl_graph_destroy(&c.graph);
}

/* The outputs stay the same tensors, take the new type, and nothing else appears in the graph. */
static void inference_again_follows_a_type(void **state) {
  (void)state;
  Chain c = make_chain();
  OpParams low = {.dtype = DTYPE_BF16};
  Node *cast = NULL;
  require_ok(vl_graph_add(c.graph, "cast", &low, &c.x, 1, &cast));
  vl_graph_move_before(c.graph, cast, c.scale);
  c.scale->inputs[0] = cast->outputs[0];
  int32_t tensors = c.graph->tensor_count, storages = c.graph->storage_count;
  Tensor *outputs[] = {c.scale->outputs[0], c.relu->outputs[0], c.gelu->outputs[0]};
  require_ok(vl_graph_infer_again(c.graph, c.scale));
  require_ok(vl_graph_infer_again(c.graph, c.relu));
  require_ok(vl_graph_infer_again(c.graph, c.gelu));
  Node *nodes[] = {c.scale, c.relu, c.gelu};
  for (int32_t i = 0; i < 3; i++) {
    assert_ptr_equal(nodes[i]->outputs[0], outputs[i]);
    assert_int_equal(outputs[i]->dtype, DTYPE_BF16);
    assert_int_equal(outputs[i]->storage->dtype, DTYPE_BF16);
    assert_ptr_equal(outputs[i]->producer, nodes[i]);
  }
  assert_int_equal(c.graph->tensor_count, tensors);
  assert_int_equal(c.graph->storage_count, storages);
  require_ok(vl_graph_check(c.graph));
  vl_graph_destroy(&c.graph);
}

static void inference_again_keeps_outputs_when_it_fails(void **state) {
  (void)state;
  Chain c = make_chain();
  int64_t size = 4;
  Tensor *labels = vl_graph_tensor(c.graph, "labels", ROLE_INPUT, DTYPE_I32, 1, &size);
  Tensor *output = c.relu->outputs[0];
  c.relu->inputs[0] = labels;
  assert_int_equal(vl_graph_infer_again(c.graph, c.relu).code, VL_INVALID);
  assert_ptr_equal(c.relu->outputs[0], output);
  assert_int_equal(c.relu->output_count, 1);
  vl_graph_destroy(&c.graph);
}

/* ---- The JSON format over real graphs ------------------------------------------------------------------------------ */

static char *write_text(const Graph *graph) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  assert_non_null(out);
  Status status = vl_graph_write_json(graph, out);
  fclose(out);
  require_ok(status);
  return text;
}

static const char *const recipes[] = {"baseline",
                                      "amp=bf16",
                                      "inplace=all",
                                      "checkpoint=2",
                                      "recompute=norm",
                                      "update=in-backward",
                                      "fuse=norm",
                                      "pool-index=u8",
                                      "stack=vramlab",
                                      "stack=vramlab amp=bf16 checkpoint=2 "
                                      "recompute=norm update=in-backward"};

/* Reading infers every node again and compares, so this also shows that passes leave every shape, type and
 * storage what the ops say. */
static void every_case_survives_json_in_every_recipe(void **state) {
  (void)state;
  int32_t count;
  const Case *const *cases = vl_case_all(&count);
  for (int32_t c = 0; c < count; c++) {
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
      int64_t values[VL_MAX_CASE_ARGUMENTS];
      Recipe recipe;
      Target target = {.ranks = 1};
      Program program;
      require_ok(vl_case_arguments(cases[c], 2, NULL, 0, values));
      require_ok(vl_recipe_parse(recipes[i], &recipe));
      require_ok(cases[c]->build(values, true, &program));
      require_ok(vl_recipe_apply(&recipe, &program, &target));
      char *text = write_text(program.graph);
      Graph *read = NULL;
      Status status = vl_graph_read_json(text, strlen(text), &read);
      if (status.code != VL_OK) fail_msg("%s with %s: %s", cases[c]->name, recipes[i], status.message);
      char *again = write_text(read);
      assert_string_equal(text, again);
      free(text);
      free(again);
      vl_graph_destroy(&read);
      vl_program_destroy(&program);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(nodes_move_both_ways),
      cmocka_unit_test(removed_nodes_leave_no_gap),
      cmocka_unit_test(ids_stay_unique_after_a_removal),
      cmocka_unit_test(replacing_spares_the_replacement),
      cmocka_unit_test(replacing_takes_views_along),
      cmocka_unit_test(taken_names_get_a_number),
      cmocka_unit_test(check_finds_broken_order),
      cmocka_unit_test(check_finds_reads_of_removed_nodes),
      cmocka_unit_test(check_finds_views_outside_their_storage),
      cmocka_unit_test(check_finds_wrong_shapes),
      cmocka_unit_test(inference_again_follows_a_type),
      cmocka_unit_test(inference_again_keeps_outputs_when_it_fails),
      cmocka_unit_test(every_case_survives_json_in_every_recipe),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
