/* loss-chunks=n: the projection onto the classes and its cross entropy are computed for a part of the rows at
 * a time, forward and again in backward, so that neither the scores nor their gradient ever exist as a whole
 * (the idea of Liger-Kernel's fused linear cross entropy and of Cut Your Losses, arXiv:2411.09009). A part's
 * loss divides by the labels that count in all of them (LaunchContext.counted_rows): losses and gradients
 * add up. Costs the projection a second time.
 *
 * The parts of the weight gradient are added up where the first was made, under mixed precision in fp32: as
 * many roundings to the low type as there are parts would be too many. */
#include "optimizations/internal.h"
#include <string.h>

static bool is_op(const Node *node, const char *name) { return node && strcmp(node->op->name, name) == 0; }

/* A loss over the scores of a linear layer. */
typedef struct Head {
  Node *linear, *loss;
} Head;

/* What made a tensor, views aside. */
static Node *maker_of(const Tensor *tensor) {
  while (tensor->producer && vl_node_is_view(tensor->producer))
    tensor = tensor->producer->inputs[0];
  return tensor->producer;
}

/* The head with the most scores; linear NULL: there is none. */
static Head find_head(const Graph *graph) {
  Head found = {NULL, NULL};
  int64_t most = 0;
  for (int32_t i = 0; i < graph->node_count; i++) {
    Node *loss = graph->nodes[i];
    if (!is_op(loss, "softmax_cross_entropy")) continue;
    Node *linear = maker_of(loss->inputs[0]);
    int64_t scores = vl_tensor_elements(loss->inputs[0]);
    if (!is_op(linear, "linear") || scores <= most) continue;
    most = scores;
    found = (Head){linear, loss};
  }
  return found;
}

/* A reader of scores or log-probabilities other than the loss itself; they will not be there. */
static const Node *other_reader(const Graph *graph, const Head *head) {
  Node *reader = NULL;
  const Tensor *scores = head->linear->outputs[0];
  for (const Tensor *at = head->loss->inputs[0]; at != scores; at = at->producer->inputs[0])
    if (vl_graph_reads(graph, at, &reader) != 1) return reader;
  if (vl_graph_reads(graph, scores, &reader) != 1) return reader;
  const Tensor *log_p = head->loss->outputs[1];
  return log_p && vl_graph_reads(graph, log_p, &reader) > 0 ? reader : NULL;
}

static Status parse(const char *value, int64_t *chunks) {
  VL_TRY(vl_parse_integer("loss-chunks", value, 1, 65536, chunks));
  if (*value == '0')
    return vl_error(VL_INVALID, "loss-chunks=%s: a number without leading zeros is needed", value);
  return vl_ok();
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)recipe;
  int64_t chunks = 1;
  VL_TRY(parse(value, &chunks));
  if (!program || !program->training || chunks == 1) return vl_ok();
  const Graph *graph = program->graph;
  Head head = find_head(graph);
  if (!head.linear)
    return vl_error(VL_UNSUPPORTED, "loss-chunks: no loss of %s is a softmax_cross_entropy of a linear layer",
                    graph->name);
  if (!vl_labels_of(head.loss))
    return vl_error(VL_UNSUPPORTED, "loss-chunks: the labels of %s are not an input's, in its order",
                    head.loss->scope);
  if (head.loss->inputs[0]->shape[0] < chunks)
    return vl_error(VL_UNSUPPORTED, "loss-chunks=%lld: %s has only %lld rows", (long long)chunks,
                    head.loss->scope, (long long)head.loss->inputs[0]->shape[0]);
  const Node *other = other_reader(graph, &head);
  if (other)
    return vl_error(VL_UNSUPPORTED, "loss-chunks: %s in %s reads the scores of %s as a whole",
                    other->op->name, other->scope, head.linear->scope);
  return vl_ok();
}

/* ---- Forward ------------------------------------------------------------------------------------------------ */

static Status add_before(Graph *graph, const Node *place, const Node *like, const char *op,
                         const OpParams *params, Tensor *const *inputs, int32_t input_count, Tensor **out) {
  Node *node;
  graph->scope = like->scope;
  graph->block = like->block;
  VL_TRY(vl_graph_add(graph, op, params, inputs, input_count, &node));
  vl_graph_move_before(graph, node, place);
  *out = node->outputs[0];
  return vl_ok();
}

/* Rows [first, first + count) of a matrix or vector. */
static Status add_rows(Graph *graph, const Head *head, Tensor *x, int64_t first, int64_t count,
                       Tensor **rows) {
  OpParams slice = {.start = {first}, .shape = {count, x->shape[1]}, .rank = x->rank};
  return add_before(graph, head->loss, head->linear, "slice", &slice, &x, 1, rows);
}

/* The loss of those rows. */
static Status add_chunk(Graph *graph, const Head *head, Tensor *x, int64_t first, int64_t count,
                        Tensor **loss) {
  Tensor *inputs[3], *scores, *labels;
  memcpy(inputs, head->linear->inputs, sizeof inputs);
  VL_TRY(add_rows(graph, head, x, first, count, &inputs[0]));
  VL_TRY(add_rows(graph, head, head->loss->inputs[1], first, count, &labels));
  VL_TRY(add_before(graph, head->loss, head->linear, "linear", &head->linear->params, inputs,
                    head->linear->input_count, &scores));
  return add_before(graph, head->loss, head->loss, "softmax_cross_entropy", &head->loss->params,
                    (Tensor *[]){scores, labels}, 2, loss);
}

static void remove_whole(Program *program, const Head *head, Tensor *total) {
  Graph *graph = program->graph;
  vl_graph_replace_reads(graph, head->loss->outputs[0], total);
  if (program->loss == head->loss->outputs[0]) program->loss = total;
  Tensor *scores = head->loss->inputs[0];
  if (program->logits && maker_of(program->logits) == head->linear) program->logits = NULL;
  vl_graph_remove(graph, head->loss);
  for (; scores != head->linear->outputs[0]; scores = scores->producer->inputs[0])
    vl_graph_remove(graph, scores->producer);
  vl_graph_remove(graph, head->linear);
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)target;
  int64_t chunks = 1, first = 0;
  VL_TRY(parse(value, &chunks));
  if (!program->training || chunks == 1) return vl_ok();
  Graph *graph = program->graph;
  Head head = find_head(graph);
  const Tensor *scores = head.loss->inputs[0];
  Tensor *x = head.linear->inputs[0], *total = NULL;
  int64_t rows = scores->shape[0];
  OpParams matrix = {.shape = {rows, x->shape[x->rank - 1]}, .rank = 2};
  if (x->rank > 2) VL_TRY(add_before(graph, head.loss, head.linear, "reshape", &matrix, &x, 1, &x));
  for (int64_t i = 0; i < chunks; i++) {
    int64_t count = rows / chunks + (i < rows % chunks);
    Tensor *loss;
    VL_TRY(add_chunk(graph, &head, x, first, count, &loss));
    first += count;
    if (!total)
      total = loss;
    else
      VL_TRY(add_before(graph, head.loss, head.loss, "add", NULL, (Tensor *[]){total, loss}, 2, &total));
  }
  graph->block = 0;
  remove_whole(program, &head, total);
  return vl_ok();
}

/* ---- Backward ----------------------------------------------------------------------------------------------- */

/* A loss over a part of an input's labels. */
static bool is_chunk(const Node *node) {
  if (node->segment != SEGMENT_FORWARD || !is_op(node, "softmax_cross_entropy")) return false;
  const Storage *labels = vl_labels_of(node);
  return labels && vl_tensor_elements(node->inputs[1]) < labels->elements;
}

/* What leads from the rows of x to their loss is repeated in backward, the weights' cast aside. Returns the
 * weights as the products read them. */
static const Tensor *repeat_in_backward(Node *loss) {
  const Tensor *weights = NULL;
  Node *node = loss;
  for (; !is_op(node, "slice"); node = node->inputs[0]->producer) {
    node->recompute_on_use = true;
    if (is_op(node, "linear")) weights = node->inputs[1];
  }
  node->recompute_on_use = true;
  return weights;
}

/* A product of backward, or a sum of such, that nothing reads but the sum it is in. */
static bool is_sum_of_products(const Graph *graph, const Tensor *tensor) {
  const Node *node = tensor->producer;
  if (!node || node->segment != SEGMENT_BACKWARD || vl_graph_reads(graph, tensor, NULL) != 1) return false;
  if (is_op(node, "matmul")) return true;
  return is_op(node, "add") && is_sum_of_products(graph, node->inputs[0]) &&
         is_sum_of_products(graph, node->inputs[1]);
}

/* The addition that ends the sum of the parts of the gradient of those weights. */
static Node *find_sum(const Graph *graph, const Tensor *weights) {
  for (int32_t i = graph->node_count - 1; i >= 0; i--) {
    Node *node = graph->nodes[i];
    if (node->segment == SEGMENT_BACKWARD && is_op(node, "add") &&
        vl_tensor_same_shape(node->outputs[0], weights) && is_sum_of_products(graph, node->inputs[0]) &&
        is_sum_of_products(graph, node->inputs[1]))
      return node;
  }
  return NULL;
}

/* Makes a chain of additions of products one storage, which each product is added to: *sum is it. */
static Status join(Graph *graph, Node *add, DType dtype, Tensor **sum) {
  Node *first = add->inputs[0]->producer, *next = add->inputs[1]->producer, *onto;
  if (is_op(first, "add")) {
    VL_TRY(join(graph, first, dtype, sum));
  } else {
    first->params.dtype = (int64_t)dtype;
    VL_TRY(vl_graph_infer_again(graph, first));
    *sum = first->outputs[0];
  }
  OpParams params = next->params;
  params.dtype = (int64_t)dtype;
  graph->scope = next->scope;
  graph->segment = SEGMENT_BACKWARD;
  graph->block = next->block;
  VL_TRY(
      vl_graph_add(graph, "matmul", &params, (Tensor *[]){next->inputs[0], next->inputs[1], *sum}, 3, &onto));
  vl_graph_move_before(graph, onto, next);
  vl_graph_remove(graph, next);
  vl_graph_remove(graph, add);
  *sum = onto->outputs[0];
  return vl_ok();
}

/* Takes the place of a gradient, in its storage. */
static void replace_gradient(Program *program, const Tensor *gradient, Tensor *sum) {
  Graph *graph = program->graph;
  Storage *storage = gradient->storage;
  Tensor *first = sum->storage->root;
  vl_graph_move_storage(graph, sum->storage, storage);
  storage->root = first;
  vl_graph_replace_reads(graph, gradient, sum);
  for (int32_t i = 0; i < program->gradient_count; i++)
    if (program->gradients[i].gradient == gradient) program->gradients[i].gradient = sum;
}

/* Whether the sum of the parts is cast to what the weights are. */
static Node *cast_of(const Graph *graph, const Node *add) {
  Node *reader = NULL;
  bool once = vl_graph_reads(graph, add->outputs[0], &reader) == 1;
  bool widens = once && is_op(reader, "cast") && reader->segment == SEGMENT_BACKWARD &&
                reader->outputs[0]->dtype == DTYPE_F32;
  return widens ? reader : NULL;
}

static Status apply_to_gradients(Program *program, const char *value, const Target *target) {
  (void)value;
  (void)target;
  Graph *graph = program->graph;
  const Tensor *weights = NULL;
  for (int32_t i = 0; i < graph->node_count; i++)
    if (is_chunk(graph->nodes[i])) weights = repeat_in_backward(graph->nodes[i]);
  Node *add = weights ? find_sum(graph, weights) : NULL;
  if (!add) return vl_ok(); /* the weights are frozen */
  Node *cast = cast_of(graph, add);
  const Tensor *gradient = cast ? cast->outputs[0] : add->outputs[0];
  Tensor *sum;
  VL_TRY(join(graph, add, gradient->dtype, &sum));
  graph->block = 0;
  if (cast) vl_graph_remove(graph, cast);
  replace_gradient(program, gradient, sum);
  return vl_ok();
}

static Preserves preserves_in(const Program *program, const char *value) {
  (void)program;
  return strcmp(value, "1") == 0 ? PRESERVES_BITWISE : PRESERVES_TOLERANCE;
}

const Optimization optimization_loss_chunks = {
    .name = "loss-chunks",
    .also_called = "chunked cross entropy, fused linear cross entropy, cut cross entropy, Liger-Kernel, "
                   "chunked loss, logits chunking",
    .turn_on =
        "F.linear_cross_entropy(x, weight, labels, linear_bias=bias, options=nn.LinearCrossEntropyOptions())"
        "  # or Liger-Kernel's LigerFusedLinearCrossEntropyLoss",
    .values = "n (parts of the rows, at least 1)",
    .help = "scores and their loss for a part of the rows at a time, again in backward: never all of them",
    .phase = PHASE_GRAPH,
    .preserves = PRESERVES_TOLERANCE,
    .training_only = "there is no loss",
    .check = check,
    .apply = apply,
    .apply_to_gradients = apply_to_gradients,
    .preserves_in = preserves_in,
};
