/* Every node of ResNet-50's training step (batch 2, 96 x 96; see nodes.h). In f32 and bf16, as eager PyTorch
 * runs it and with what stack=vramlab fuses. */
#include "tests/model/nodes.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void every_node_matches(const Subject *subject, const char *recipe, bool smooth) {
  StepSpec spec = {.case_name = "resnet50",
                   .recipe = recipe,
                   .settings = {"size=96", smooth ? "smooth=1" : "smooth=0"},
                   .setting_count = 2,
                   .micro_batch = 2};
  nodes_check(subject, &spec, 501);
}

static void f32_nodes_match(void **state) { every_node_matches(*state, "", false); }
static void bf16_nodes_match(void **state) { every_node_matches(*state, "amp=bf16", false); }
static void bf16_vramlab_nodes_match(void **state) {
  every_node_matches(*state, "stack=vramlab amp=bf16", false);
}
static void bf16_smooth_nodes_match(void **state) { every_node_matches(*state, "amp=bf16", true); }

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(f32_nodes_match),
      cmocka_unit_test(bf16_nodes_match),
      cmocka_unit_test(bf16_vramlab_nodes_match),
      cmocka_unit_test(bf16_smooth_nodes_match),
  };
  return nodes_main(argc, argv, "resnet50_kernels", tests, sizeof tests / sizeof *tests);
}
