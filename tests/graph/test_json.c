/* The JSON graph format: writing and reading are inverse and exact; reading refuses everything else with the
 * place that is wrong, and survives any input. */
#include "every_op.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void expect_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

/* To be freed. */
static char *write_text(const Graph *graph) {
  char *text;
  size_t size;
  FILE *out = open_memstream(&text, &size);
  assert_non_null(out);
  Status status = vl_graph_write_json(graph, out);
  fclose(out);
  expect_ok(status);
  return text;
}

static char *every_op_text(void) {
  Program program;
  expect_ok(build_every_op(&program));
  char *text = write_text(program.graph);
  vl_program_destroy(&program);
  return text;
}

static void expect_refused(const char *text, const char *place) {
  Graph *graph = NULL;
  Status status = vl_graph_read_json(text, strlen(text), &graph);
  if (status.code != VL_INVALID || strstr(status.message, place) == NULL)
    fail_msg("expected a refusal that names '%s', got %s: %s", place, vl_status_name(status.code),
             status.message);
  assert_null(graph);
}

/* Gives a weight gradient the optional inputs that only a pass gives it. */
static void normalise_a_gradients_input(Graph *graph) {
  const Node *norm = NULL;
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *node = graph->nodes[i];
    if (!norm && strcmp(node->op->name, "batch_norm_apply") == 0) norm = node;
    if (strcmp(node->op->name, "conv_backward_weights") != 0) continue;
    if (node->inputs[0]->shape[1] != norm->inputs[0]->shape[1]) continue;
    for (int32_t k = 1; k < 5; k++)
      node->inputs[node->input_count++] = norm->inputs[k];
    node->params.epsilon = 0.1;
    node->params.relu = 1;
    return;
  }
  fail();
}

/* What was read says the same of every node, tensor and storage, and writes the same text. */
static void reading_is_the_inverse_of_writing(void **state) {
  (void)state;
  Program program;
  expect_ok(build_every_op(&program));
  program.graph->nodes[3]->checkpoint_segment = 2;
  normalise_a_gradients_input(program.graph);
  program.graph->nodes[4]->recompute_on_use = program.graph->nodes[5]->accumulates = true;
  char *text = write_text(program.graph);
  Graph *graph;
  expect_ok(vl_graph_read_json(text, strlen(text), &graph));
  assert_int_equal(graph->node_count, program.graph->node_count);
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *a = program.graph->nodes[i], *b = graph->nodes[i];
    assert_ptr_equal(a->op, b->op);
    assert_int_equal(vl_node_flops(a), vl_node_flops(b));
    assert_int_equal(vl_node_bytes(a), vl_node_bytes(b));
    assert_int_equal(a->block, b->block);
    assert_int_equal(a->inplace_hint, b->inplace_hint);
    assert_int_equal(a->checkpoint_segment, b->checkpoint_segment);
    assert_int_equal(a->recompute_on_use, b->recompute_on_use);
    assert_int_equal(a->accumulates, b->accumulates);
    assert_string_equal(a->scope, b->scope);
  }
  assert_int_equal(vl_graph_parameter_count(graph), vl_graph_parameter_count(program.graph));
  char *again = write_text(graph);
  assert_string_equal(text, again);
  free(text);
  free(again);
  vl_graph_destroy(&graph);
  vl_program_destroy(&program);
}

/* Every double comes back bit for bit, and whole numbers beyond 2^53 with their last digit. */
static void numbers_are_exact(void **state) {
  (void)state;
  static const double values[] = {0.1 + 0.2, 1.0 / 3.0,         5e-324, 1.7976931348623157e308,
                                  -0.0,      9007199254740993.0};
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    Graph *graph = vl_graph_create("exact");
    int64_t size = (INT64_C(1) << 56) + 1;
    Tensor *x = vl_graph_tensor(graph, "x", ROLE_INPUT, DTYPE_F32, 1, &size), *y;
    expect_ok(vl_apply(graph, "scale", &(OpParams){.alpha = values[i]}, &x, 1, &y));
    char *text = write_text(graph);
    Graph *read;
    expect_ok(vl_graph_read_json(text, strlen(text), &read));
    assert_memory_equal(&read->nodes[0]->params.alpha, &values[i], sizeof values[i]);
    assert_int_equal(read->tensors[0]->shape[0], size);
    free(text);
    vl_graph_destroy(&read);
    vl_graph_destroy(&graph);
  }
}

/* An infinite parameter has no JSON form: the writer says so instead of writing what no reader takes. */
static void infinity_is_refused(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("infinite");
  Tensor *x = vl_graph_tensor(graph, "x", ROLE_INPUT, DTYPE_F32, 1, (int64_t[]){4}), *y;
  expect_ok(vl_apply(graph, "scale", &(OpParams){.alpha = 1e308 * 10}, &x, 1, &y));
  FILE *out = fopen("/dev/null", "w");
  assert_non_null(out);
  Status status = vl_graph_write_json(graph, out);
  fclose(out);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "nodes[0]"));
  vl_graph_destroy(&graph);
}

/* Tensors that only a removed node knew are not written; the text is complete without them. */
static void leftovers_are_not_written(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("leftovers");
  Tensor *x = vl_graph_tensor(graph, "x", ROLE_INPUT, DTYPE_F32, 1, (int64_t[]){4}), *unused, *y;
  expect_ok(vl_apply(graph, "gelu", NULL, &x, 1, &unused));
  expect_ok(vl_apply(graph, "relu", NULL, &x, 1, &y));
  vl_graph_remove(graph, unused->producer);
  char *text = write_text(graph);
  assert_null(strstr(text, "gelu"));
  Graph *read;
  expect_ok(vl_graph_read_json(text, strlen(text), &read));
  assert_int_equal(read->tensor_count, 2);
  assert_int_equal(read->storage_count, 2);
  free(text);
  vl_graph_destroy(&read);
  vl_graph_destroy(&graph);
}

/* An update that runs in place keeps its storage; an in-place ReLU may; anything else may not. */
static void storages_follow_the_op(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("inplace");
  Tensor *x = vl_graph_tensor(graph, "x", ROLE_INPUT, DTYPE_F32, 1, (int64_t[]){4}), *a, *y;
  expect_ok(vl_apply(graph, "gelu", NULL, &x, 1, &a));
  expect_ok(vl_apply(graph, "relu", NULL, &a, 1, &y));
  y->storage = a->storage;
  char *text = write_text(graph);
  Graph *read;
  expect_ok(vl_graph_read_json(text, strlen(text), &read));
  assert_ptr_equal(read->nodes[1]->outputs[0]->storage, read->nodes[0]->outputs[0]->storage);
  vl_graph_destroy(&read);
  free(text);
  graph->nodes[1]->op = vl_op_find("gelu");
  text = write_text(graph);
  expect_refused(text, "nodes[1]: gelu in the model: output 0");
  free(text);
  vl_graph_destroy(&graph);
}

/* Both outputs of a norm's gradient may lie over its gradients, but not over the same one. */
static void outputs_do_not_share_a_storage(void **state) {
  (void)state;
  Graph *graph = vl_graph_create("gradients");
  Tensor *x = vl_graph_tensor(graph, "x", ROLE_INPUT, DTYPE_F32, 2, (int64_t[]){4, 3}), *a, *b;
  Tensor *gamma = vl_graph_tensor(graph, "gamma", ROLE_INPUT, DTYPE_F32, 1, (int64_t[]){3});
  OpParams params = {.epsilon = 1e-5, .alpha = 1};
  Node *node;
  expect_ok(vl_apply(graph, "gelu", NULL, &x, 1, &a));
  expect_ok(vl_apply(graph, "gelu", NULL, &x, 1, &b));
  Tensor *inputs[] = {a, x, gamma, gamma, gamma, NULL, NULL, b};
  expect_ok(vl_graph_add(graph, "batch_norm_backward", &params, inputs, 8, &node));
  node->outputs[0]->storage = a->storage;
  node->outputs[3]->storage = b->storage;
  char *text = write_text(graph);
  Graph *read;
  expect_ok(vl_graph_read_json(text, strlen(text), &read));
  assert_ptr_equal(read->nodes[2]->outputs[3]->storage, read->nodes[1]->outputs[0]->storage);
  assert_int_equal(vl_node_flops(read->nodes[2]), 10 * 4 * 3);
  assert_int_equal(vl_node_bytes(read->nodes[2]), 4 * (5 * 4 * 3 + 5 * 3));
  vl_graph_destroy(&read);
  free(text);
  node->outputs[3]->storage = a->storage;
  text = write_text(graph);
  expect_refused(text, "nodes[2]: batch_norm_backward in the model: outputs 0 and 3");
  free(text);
  vl_graph_destroy(&graph);
}

/* Sets root.list[index].key (or root.key when list is NULL) and expects a refusal that names `place`. */
static void expect_change_refused(const char *text, const char *list, size_t index, const char *key,
                                  const char *value, const char *place) {
  json_t *root = json_loads(text, 0, NULL);
  json_t *object = list != NULL ? json_array_get(json_object_get(root, list), index) : root;
  if (value != NULL)
    json_object_set_new(object, key, json_loads(value, JSON_DECODE_ANY, NULL));
  else
    json_object_del(object, key);
  char *changed = json_dumps(root, JSON_REAL_PRECISION(17));
  expect_refused(changed, place);
  free(changed);
  json_decref(root);
}

static void every_fault_names_its_place(void **state) {
  (void)state;
  char *text = every_op_text();
  static const struct {
    const char *list;
    size_t index;
    const char *key, *value, *place;
  } faults[] = {
      {NULL, 0, "format", "\"other\"", "graph.format"},
      {NULL, 0, "version", "2", "graph.version"},
      {NULL, 0, "name", NULL, "'name' is missing"},
      {NULL, 0, "extra", "1", "'extra' is unknown"},
      {NULL, 0, "nodes", "{}", "graph.nodes: expected a list"},
      {NULL, 0, "block_count", "-1", "graph.block_count"},
      {NULL, 0, "block_count", "2147483648", "graph.block_count"},
      {"storages", 1, "id", "0", "storages[1].id"},
      {"storages", 1, "role", "\"gradients\"", "storages[1].role: expected one of activation"},
      {"storages", 1, "dtype", "\"f31\"", "storages[1].dtype"},
      {"storages", 1, "elements", "9223372036854775807", "storages[1].elements"},
      {"storages", 1, "elements", "109", "storages[1].root"},
      {"storages", 1, "root", "0", "storages[1].root"},
      {"storages", 1, "root", "100000", "storages[1].root"},
      {"storages", 1, "name", "\"images\"", "also the name of storage"},
      {"storages", 1, "init", "{\"kind\":\"uniform\"}", "storages[1].init: key 'value' is missing"},
      {"storages", 1, "init", "{\"kind\":\"normal\",\"value\":1}", "storages[1].init.kind"},
      {"tensors", 1, "shape", "[4, 3, 3, 3, 1, 1]", "tensors[1].shape"},
      {"tensors", 1, "shape", "[4, 3, 3, 0]", "tensors[1].shape"},
      {"tensors", 1, "shape", "[4294967296, 4294967296]", "tensors[1].shape"},
      {"tensors", 1, "offset", "1", "tensors[1].offset"},
      {"tensors", 1, "offset", "-1", "tensors[1].offset"},
      {"tensors", 1, "storage", "1.0", "tensors[1].storage"},
      {"tensors", 1, "dtype", "\"f64\"", "tensors[1].dtype"},
      {"nodes", 0, "op", "\"convolution\"", "nodes[0].op: 'convolution' is unknown"},
      {"nodes", 0, "params", "{}", "nodes[0].params: key 'stride' is missing"},
      {"nodes", 0, "params", "{\"stride\":[1,1],\"padding\":[1,1,0],\"groups\":1}", "nodes[0].params.stride"},
      {"nodes", 0, "params", "{\"stride\":[1,1,0],\"padding\":[1,1,0],\"groups\":0}", "groups = 0"},
      {"nodes", 0, "params", "{\"stride\":[1,1,0],\"padding\":[2,2,0],\"groups\":1}",
       "nodes[0]: conv in stem.conv"},
      {"nodes", 0, "params", "{\"stride\":[1,1,0],\"padding\":[1,9223372036854775807,0],\"groups\":1}",
       "nodes[0]: conv"},
      {"nodes", 0, "inputs", "[0]", "nodes[0].inputs: 1; this op has 2 to 3"},
      {"nodes", 0, "inputs", "[0, null]", "nodes[0]: conv in stem.conv: input weights is missing"},
      {"nodes", 0, "inputs", "[0, 2]", "nodes[0]: conv"},
      {"nodes", 0, "inputs", "[0, 99999]", "nodes[0].inputs"},
      {"nodes", 0, "outputs", "[0]", "nodes[0]: conv"},
      {"nodes", 0, "outputs", "[null]", "nodes[0]: conv in stem.conv: output 0 is missing"},
      {"nodes", 0, "outputs", "[]", "nodes[0].outputs"},
      {"nodes", 0, "segment", "\"sideways\"", "nodes[0].segment: expected one of forward"},
      {"nodes", 0, "block", "2", "nodes[0].block"},
      {"nodes", 0, "inplace_hint", "0", "nodes[0].inplace_hint"},
      {"nodes", 0, "checkpoint_segment", "-1", "nodes[0].checkpoint_segment"},
  };
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
    expect_change_refused(text, faults[i].list, faults[i].index, faults[i].key, faults[i].value,
                          faults[i].place);
  free(text);
}

/* A convolution as text, its groups set to another number than its weights were made for. */
static Status read_groups(int64_t groups, int64_t built, Graph **graph) {
  Graph *made = vl_graph_create("groups");
  Tensor *x = vl_graph_tensor(made, "x", ROLE_INPUT, DTYPE_F32, 5, (int64_t[]){1, 8, 4, 4, 4}), *y;
  Tensor *w = vl_graph_parameter(made, "w", ROLE_PARAMETER, DTYPE_F32, 5, (int64_t[]){12, 8 / built, 3, 3, 3},
                                 (Init){0});
  expect_ok(vl_conv(made, x, w, 1, 1, built, &y));
  made->nodes[0]->params.groups = groups;
  char *text = write_text(made);
  Status status = vl_graph_read_json(text, strlen(text), graph);
  free(text);
  vl_graph_destroy(&made);
  return status;
}

/* Fault case E1: a graph that is read has its groups checked as one that is built. */
static void groups_that_are_read_divide_both_channel_counts_e1(void **state) {
  (void)state;
  static const int64_t accepted[] = {4, 1}, refused[] = {3, 8, 12, 0, -4};
  Graph *graph;
  for (size_t i = 0; i < sizeof accepted / sizeof *accepted; i++) {
    expect_ok(read_groups(accepted[i], accepted[i], &graph));
    assert_int_equal(vl_graph_parameter_count(graph), 12 * 8 / accepted[i] * 27);
    vl_graph_destroy(&graph);
  }
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    char numbers[64];
    snprintf(numbers, sizeof numbers, "groups = %lld ", (long long)refused[i]);
    Status status = read_groups(refused[i], 4, &graph);
    assert_int_equal(status.code, VL_INVALID);
    assert_non_null(strstr(status.message, numbers));
    assert_non_null(strstr(status.message, "input 8 and output 12"));
    assert_null(graph);
  }
}

/* Fault case E2: what is read divides by the groups once. */
static void groups_that_are_read_are_divided_once_e2(void **state) {
  (void)state;
  Graph *made = vl_graph_create("counts"), *graph;
  Tensor *x = vl_graph_tensor(made, "x", ROLE_INPUT, DTYPE_F32, 5, (int64_t[]){1, 16, 8, 8, 8}), *y;
  Tensor *w =
      vl_graph_parameter(made, "w", ROLE_PARAMETER, DTYPE_F32, 5, (int64_t[]){32, 4, 3, 3, 3}, (Init){0});
  expect_ok(vl_conv(made, x, w, 1, 1, 4, &y));
  char *text = write_text(made);
  expect_ok(vl_graph_read_json(text, strlen(text), &graph));
  assert_int_equal(vl_graph_parameter_count(graph), 3456);
  assert_int_equal(vl_node_flops(graph->nodes[0]), 2 * 1769472);
  free(text);
  vl_graph_destroy(&graph);
  vl_graph_destroy(&made);
}

static void text_that_is_no_json_is_refused(void **state) {
  (void)state;
  expect_refused("", "line 1");
  expect_refused("{\"format\":\"vramlab-graph\",\n\"version\":1e999}", "line 2");
  expect_refused("{\"name\":\"a\",\"name\":\"b\"}", "line 1");
  expect_refused("{\"version\":99999999999999999999}", "line 1");
  expect_refused("[]", "graph: expected an object");
}

/* SplitMix64: the same mutations on every run. */
static uint64_t next_random(uint64_t *seed) {
  uint64_t z = *seed += 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31);
}

/* Whatever is accepted is a graph that can be costed, printed, written and read again. */
static bool read_and_use(const char *text, size_t size) {
  Graph *graph;
  Status status = vl_graph_read_json(text, size, &graph);
  if (status.code != VL_OK) {
    assert_int_equal(status.code, VL_INVALID);
    assert_true(status.message[0] != '\0');
    assert_null(graph);
    return false;
  }
  FILE *out = fopen("/dev/null", "w");
  assert_non_null(out);
  vl_graph_print(graph, out);
  vl_graph_print_dot(graph, out);
  fclose(out);
  char *written = write_text(graph);
  Graph *again;
  expect_ok(vl_graph_read_json(written, strlen(written), &again));
  free(written);
  vl_graph_destroy(&again);
  vl_graph_destroy(&graph);
  return true;
}

/* Flips, drops or doubles some bytes. */
static void mutated_bytes_do_not_crash(void **state) {
  (void)state;
  char *text = every_op_text();
  size_t size = strlen(text);
  char *changed = malloc(2 * size);
  assert_non_null(changed);
  uint64_t seed = 1;
  for (int round = 0; round < 600; round++) {
    memcpy(changed, text, size);
    size_t length = size;
    size_t at = next_random(&seed) % size, piece = 1 + next_random(&seed) % 40;
    if (piece > size - at) piece = size - at;
    switch (next_random(&seed) % 4) {
    case 0: changed[at] = (char)(changed[at] ^ (char)(1U << next_random(&seed) % 8)); break;
    case 1:
      memmove(changed + at, changed + at + piece, size - at - piece);
      length -= piece;
      break;
    case 2:
      memmove(changed + at + piece, changed + at, size - at);
      length += piece;
      break;
    default: length = at; break;
    }
    read_and_use(changed, length);
  }
  free(changed);
  free(text);
}

/* A random value somewhere below `value`, to be replaced: its container and key or index. */
static void replace_somewhere(json_t *value, uint64_t *seed, json_t *replacement) {
  for (;;) {
    json_t *child = NULL;
    size_t count = json_is_object(value) ? json_object_size(value) : json_array_size(value);
    size_t at = next_random(seed) % count;
    const char *key = NULL;
    if (json_is_object(value)) {
      void *iterator = json_object_iter(value);
      for (size_t i = 0; i < at; i++)
        iterator = json_object_iter_next(value, iterator);
      key = json_object_iter_key(iterator);
      child = json_object_iter_value(iterator);
    } else {
      child = json_array_get(value, at);
    }
    bool container = json_object_size(child) > 0 || json_array_size(child) > 0;
    if (container && next_random(seed) % 16 != 0) {
      value = child;
      continue;
    }
    if (key != NULL)
      json_object_set(value, key, replacement);
    else
      json_array_set(value, at, replacement);
    return;
  }
}

/* Keeps the JSON sound and puts extreme or misplaced values into it, one or two at a time. */
static void mutated_values_do_not_crash(void **state) {
  (void)state;
  static const char *const values[] = {"0",
                                       "1",
                                       "2",
                                       "3",
                                       "7",
                                       "-1",
                                       "9223372036854775807",
                                       "4294967296",
                                       "-9223372036854775808",
                                       "2147483647",
                                       "1e308",
                                       "-0.5",
                                       "null",
                                       "true",
                                       "\"\"",
                                       "[]",
                                       "{}",
                                       "\"f64\"",
                                       "\"u8\"",
                                       "\"relu\"",
                                       "[1,1,1]",
                                       "[9223372036854775807,2,0,0,0]",
                                       "\"parameter\""};
  char *text = every_op_text();
  json_t *sound = json_loads(text, 0, NULL);
  free(text);
  uint64_t seed = 2;
  int accepted = 0;
  for (int round = 0; round < 1000; round++) {
    json_t *copy = json_deep_copy(sound);
    for (uint64_t change = 0; change <= next_random(&seed) % 2; change++) {
      const char *value = values[next_random(&seed) % (sizeof values / sizeof *values)];
      json_t *replacement = json_loads(value, JSON_DECODE_ANY, NULL);
      replace_somewhere(copy, &seed, replacement);
      json_decref(replacement);
    }
    char *changed = json_dumps(copy, JSON_COMPACT);
    accepted += read_and_use(changed, strlen(changed)) ? 1 : 0;
    free(changed);
    json_decref(copy);
  }
  json_decref(sound);
  /* Some changes are legal (a scale factor, a name); most are not. */
  assert_true(accepted > 0 && accepted < 500);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(reading_is_the_inverse_of_writing),
      cmocka_unit_test(numbers_are_exact),
      cmocka_unit_test(infinity_is_refused),
      cmocka_unit_test(leftovers_are_not_written),
      cmocka_unit_test(storages_follow_the_op),
      cmocka_unit_test(outputs_do_not_share_a_storage),
      cmocka_unit_test(every_fault_names_its_place),
      cmocka_unit_test(groups_that_are_read_divide_both_channel_counts_e1),
      cmocka_unit_test(groups_that_are_read_are_divided_once_e2),
      cmocka_unit_test(text_that_is_no_json_is_refused),
      cmocka_unit_test(mutated_bytes_do_not_crash),
      cmocka_unit_test(mutated_values_do_not_crash),
  };
  return cmocka_run_group_tests_name("graph_json", tests, NULL, NULL);
}
