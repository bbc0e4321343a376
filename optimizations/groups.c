/* groups=g: every convolution with a window in g groups: 1/g of its weights and products. Another model, and
 * an argument of the case, which builds it so; the pass makes sure that it did. Not grouped are what reads an
 * input, of few channels, and windows of one place, which mix the channels. */
#include "optimizations/internal.h"
#include <string.h>

static Status parse(const char *value, int64_t *groups) {
  VL_TRY(vl_parse_integer("groups", value, 1, 65536, groups));
  if (*value == '0')
    return vl_error(VL_INVALID, "groups=%s: a number without leading zeros is needed", value);
  return vl_ok();
}

static bool is_grouped(const Node *node) {
  if (strcmp(node->op->name, "conv") != 0 || node->inputs[0]->storage->role == ROLE_INPUT) return false;
  const Tensor *weights = node->inputs[1];
  for (int32_t i = 2; i < weights->rank; i++) {
    if (weights->shape[i] > 1) return true;
  }
  return false;
}

static Status check_conv(const Node *node, int64_t groups) {
  int64_t read = node->inputs[0]->shape[1], written = node->inputs[1]->shape[0];
  if (read % groups != 0 || written % groups != 0)
    return vl_error(VL_INVALID,
                    "groups=%lld must divide both channel counts of the convolution in %s, input %lld and "
                    "output %lld",
                    (long long)groups, node->scope, (long long)read, (long long)written);
  if (node->params.groups != groups)
    return vl_error(
        VL_UNSUPPORTED,
        "groups=%lld: the convolution in %s was built with %lld; the case's argument of that name "
        "sets it",
        (long long)groups, node->scope, (long long)node->params.groups);
  return vl_ok();
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)recipe;
  int64_t groups;
  bool found = false;
  VL_TRY(parse(value, &groups));
  for (int32_t i = 0; program && i < program->graph->node_count; i++) {
    const Node *node = program->graph->nodes[i];
    if (!is_grouped(node)) continue;
    found = true;
    VL_TRY(check_conv(node, groups));
  }
  if (!program || found) return vl_ok();
  return vl_error(VL_UNSUPPORTED, "groups=%s: %s has no convolution to divide", value, program->graph->name);
}

static Status apply(Program *program, const char *value, const Target *target) {
  (void)program;
  (void)value;
  (void)target;
  return vl_ok();
}

static Preserves promise(const Program *program, const char *value) {
  (void)program;
  return strcmp(value, "1") == 0 ? PRESERVES_BITWISE : PRESERVES_DIFFERENT_MODEL;
}

const Optimization optimization_groups = {
    .name = "groups",
    .also_called = "grouped convolution, group convolution, cardinality, ResNeXt",
    .turn_on = "nn.Conv2d(inputs, outputs, window, stride, padding, groups=4)  # or nn.Conv3d; another model",
    .values = "g (groups of every convolution with a window, at least 1; must divide its channels)",
    .help = "convolutions in groups of channels: 1/g of the weights and of the products, another model",
    .phase = PHASE_CASE,
    .preserves = PRESERVES_DIFFERENT_MODEL,
    .case_argument = "groups",
    .check = check,
    .apply = apply,
    .preserves_in = promise,
};
