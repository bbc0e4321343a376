/* activation-gradients=fp32: forward stays in low precision, all that backward makes is in fp32. */
#include "tests/graph/networks.h"
#include "tests/optimizations/programs.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void build_bert_with(const char *recipe, Program *program) {
  static const char *const small[] = {"layers=2", "hidden=32", "heads=2", "vocabulary=60", "sequence=16"};
  build_case("bert-base", 2, small, 5, true, program);
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(backward_computes_in_fp32_where_that_is_asked_for),
      cmocka_unit_test(fp32_gradients_meet_weights_made_on_use),
      cmocka_unit_test(fp32_gradients_need_amp),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
