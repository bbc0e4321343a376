/* Layouts: where a node wants another one than its input has, a copy stands in front of it, made once for
 * readers that run together; results stay the same, and recomputation keeps its savings. */
#include "tests/engine/job.h"
#include "tests/graph/networks.h"
#include "tests/graph/simulate.h"
#include "tests/reference/reference.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { OTHER_LAYOUT = 1, SIZE = 64 };

/* The reference device, for which every layout is the same, except that GELU insists on its own. */
static Status choose_layouts(Device *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  (void)device;
  for (int32_t i = 0; i < node->input_count; i++) {
    if (inputs[i] == LAYOUT_ANY) inputs[i] = LAYOUT_PLAIN;
  }
  for (int32_t i = 0; i < node->output_count; i++) {
    if (outputs[i] == LAYOUT_ANY) outputs[i] = LAYOUT_PLAIN;
  }
  if (strcmp(node->op->name, "gelu") == 0) inputs[0] = OTHER_LAYOUT;
  return vl_ok();
}

/* Four blocks of one GELU and a scale; the first block's output is read by the second and, past it, by the
 * third. */
static void build_skip(Program *program) {
  Graph *graph = vl_graph_create("skip");
  vl_program_init(program, graph);
  program->training = true;
  int64_t size = SIZE;
  OpParams half = {.alpha = 0.5}, sum = {.axis_count = 1, .dtype = DTYPE_F32};
  Tensor *x = vl_graph_parameter(graph, "p", ROLE_PARAMETER, DTYPE_F32, 1, &size, (Init){INIT_UNIFORM, 1.0});
  Tensor *skipped = NULL, *y = NULL;
  for (int32_t block = 1; block <= 4; block++) {
    graph->block = ++graph->block_count;
    vl_graph_set_scope(graph, "block%d", block);
    require_ok(vl_apply(graph, "scale", &half, &x, 1, &x));
    require_ok(vl_apply(graph, "gelu", NULL, &x, 1, &x));
    if (block == 2 || block == 3) {
      require_ok(vl_apply(graph, "gelu", NULL, &skipped, 1, &y));
      require_ok(vl_apply(graph, "mul", NULL, (Tensor *[]){x, y}, 2, &x));
    }
    require_ok(vl_apply(graph, "scale", &half, &x, 1, &x));
    if (block == 1) skipped = x;
  }
  graph->block = 0;
  require_ok(vl_apply(graph, "sum", &sum, &x, 1, &program->loss));
}

static Device *open_device(bool picky, DeviceInterface *interface) {
  Device *device = NULL;
  require_ok(vl_reference_device_create(&device));
  *interface = *device->interface;
  if (picky) interface->choose_layouts = choose_layouts;
  device->interface = interface;
  return device;
}

static Executable *compile(Device *device, const char *recipe_text) {
  Program program;
  Recipe recipe;
  Target target = {.ranks = 1};
  Executable *executable = NULL;
  build_skip(&program);
  require_ok(vl_recipe_parse(recipe_text, &recipe));
  require_ok(vl_recipe_apply(&recipe, &program, &target));
  require_ok(vl_executable_create(&program, device, NULL, &executable));
  return executable;
}

static int32_t count_copies(const Executable *executable) {
  const Graph *graph = vl_executable_program(executable)->graph;
  int32_t count = 0;
  for (int32_t i = 0; i < graph->node_count; i++)
    count += strcmp(graph->nodes[i]->op->name, "copy") == 0;
  return count;
}

/* Every GELU reads a copy in its layout; the schedule stays sound. */
static void copies_stand_before_who_needs_them(void **state) {
  (void)state;
  static const char *const recipes[] = {"baseline", "inplace=all", "checkpoint=1",
                                        "inplace=all checkpoint=2"};
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
    DeviceInterface interface;
    Device *device = open_device(true, &interface);
    Executable *executable = compile(device, recipes[i]);
    const Graph *graph = vl_executable_program(executable)->graph;
    require_ok(vl_graph_check(graph));
    for (int32_t n = 0; n < graph->node_count; n++) {
      const Node *node = graph->nodes[n];
      if (strcmp(node->op->name, "gelu") == 0)
        assert_int_equal(node->inputs[0]->storage->layout, OTHER_LAYOUT);
    }
    Simulation simulation;
    simulate_schedule(vl_executable_program(executable), vl_executable_schedule(executable), &simulation);
    simulation_free(&simulation);
    vl_executable_destroy(&executable);
    vl_device_close(&device);
  }
}

/* Six GELUs; the two that read the skipped tensor run in one pass without checkpointing and share its copy.
 */
static void readers_in_one_pass_share_a_copy(void **state) {
  (void)state;
  DeviceInterface interface;
  Device *device = open_device(true, &interface);
  Executable *executable = compile(device, "baseline");
  assert_int_equal(count_copies(executable), 5);
  vl_executable_destroy(&executable);
  vl_device_close(&device);
}

/* A copy that two checkpoint segments shared would have the later one's backward repeat the earlier one too
 * soon. */
static void segments_do_not_share_copies(void **state) {
  (void)state;
  DeviceInterface interface;
  Device *device = open_device(true, &interface);
  Executable *executable = compile(device, "checkpoint=1");
  const Schedule *schedule = vl_executable_schedule(executable);
  int32_t backward_of_3 = -1, repeat_of_2 = schedule->instance_count;
  for (int32_t i = 0; i < schedule->instance_count; i++) {
    const Instance *instance = &schedule->instances[i];
    const Node *node = instance->node;
    if (node->segment == SEGMENT_BACKWARD && strcmp(node->scope, "block3") == 0) backward_of_3 = i;
    bool repeats_2 =
        node->segment == SEGMENT_FORWARD && instance->pass > 0 && strcmp(node->scope, "block2") == 0;
    if (repeats_2 && i < repeat_of_2) repeat_of_2 = i;
  }
  assert_true(backward_of_3 > 0 && repeat_of_2 < schedule->instance_count);
  assert_true(repeat_of_2 > backward_of_3);
  vl_executable_destroy(&executable);
  vl_device_close(&device);
}

static void run_once(Device *device, const char *recipe, double *loss, float *weights) {
  Executable *executable = compile(device, recipe);
  HeapOptions options = {.policy = "caching"};
  Tracker *tracker = vl_tracker_create(false);
  Heap *heap = NULL;
  Inputs *inputs = NULL;
  StepResult result;
  require_ok(vl_heap_create(device->interface->backing(device), &options, tracker, &heap));
  State *state = vl_state_create(device, heap);
  require_ok(vl_state_prepare(state, executable, 1, true));
  require_ok(vl_inputs_create(executable, device, heap, &inputs));
  require_ok(vl_executable_build(executable));
  Run run = {.executable = executable, .state = state, .heap = heap, .tracker = tracker, .device = device};
  require_ok(vl_run_step(&run, inputs, &result, NULL));
  *loss = result.loss;
  require_ok(vl_state_read(state, "p", weights, SIZE * sizeof *weights));
  vl_inputs_destroy(&inputs);
  vl_state_destroy(&state);
  vl_executable_destroy(&executable);
  vl_heap_destroy(&heap);
  vl_tracker_destroy(&tracker);
}

static void copies_change_no_result(void **state) {
  (void)state;
  static const char *const recipes[] = {"baseline", "inplace=all", "checkpoint=1",
                                        "checkpoint=2 update=in-backward"};
  DeviceInterface interface, picky_interface;
  Device *plain = open_device(false, &interface), *picky = open_device(true, &picky_interface);
  double expected, loss;
  float expected_weights[SIZE], weights[SIZE];
  run_once(plain, "baseline", &expected, expected_weights);
  for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
    run_once(picky, recipes[i], &loss, weights);
    assert_memory_equal(&loss, &expected, sizeof loss);
    assert_memory_equal(weights, expected_weights, sizeof weights);
  }
  vl_device_close(&plain);
  vl_device_close(&picky);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(copies_stand_before_who_needs_them),
      cmocka_unit_test(readers_in_one_pass_share_a_copy),
      cmocka_unit_test(segments_do_not_share_copies),
      cmocka_unit_test(copies_change_no_result),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
