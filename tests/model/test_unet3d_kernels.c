/* Every node of the 3D U-Net's training step (see nodes.h), of volumes whose sides differ: dense and in
 * groups of 4, in f32 and bf16, as eager PyTorch runs it and with what stack=vramlab fuses. */
#include "tests/model/nodes.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void every_node_matches(const Subject *subject, const char *recipe, const char *groups) {
  StepSpec spec = {.case_name = "unet3d",
                   .recipe = recipe,
                   .settings = {"depth=16", "height=32", "width=16", "channels=4", groups},
                   .setting_count = 5,
                   .micro_batch = 2};
  nodes_check(subject, &spec, 180);
}

static void f32_nodes_match(void **state) { every_node_matches(*state, "", "groups=1"); }
static void f32_grouped_nodes_match(void **state) { every_node_matches(*state, "", "groups=4"); }
static void bf16_nodes_match(void **state) { every_node_matches(*state, "amp=bf16", "groups=4"); }
static void bf16_vramlab_nodes_match(void **state) {
  every_node_matches(*state, "stack=vramlab amp=bf16", "groups=1");
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(f32_nodes_match),
      cmocka_unit_test(f32_grouped_nodes_match),
      cmocka_unit_test(bf16_nodes_match),
      cmocka_unit_test(bf16_vramlab_nodes_match),
  };
  return nodes_main(argc, argv, "unet3d_kernels", tests, sizeof tests / sizeof *tests);
}
