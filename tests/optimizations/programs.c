#include "tests/optimizations/programs.h"

#include "cases/cases.h"
#include "tests/graph/networks.h"
#include "tests/graph/simulate.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

Status apply_recipe_on(const char *text, const Target *target, Program *program) {
  Recipe recipe;
  require_ok(vl_recipe_parse(text, &recipe));
  return vl_recipe_apply(&recipe, program, target);
}

Status apply_recipe(const char *text, Program *program) {
  Target target = {.ranks = 1};
  return apply_recipe_on(text, &target, program);
}

void assert_unsupported(Program *program, const char *recipe, const char *reason) {
  Status status = apply_recipe(recipe, program);
  assert_int_equal(status.code, VL_UNSUPPORTED);
  if (!strstr(status.message, reason)) fail_msg("'%s' does not say '%s'", status.message, reason);
  vl_program_destroy(program);
}

void build_case(const char *name, int64_t batch, const char *const *settings, int32_t count, bool training,
                Program *program) {
  const Case *of = vl_case_find(name);
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  require_ok(vl_case_arguments(of, batch, settings, count, values));
  require_ok(of->build(values, training, program));
}

void build_resnet50(const char *recipe, Program *program) {
  build_case("resnet50", 2, NULL, 0, true, program);
  require_ok(apply_recipe(recipe, program));
}

void build_small_resnet50(Program *program) {
  build_case("resnet50", 2, (const char *[]){"size=32", "classes=10"}, 2, true, program);
}

void build_bert(const char *recipe, Program *program) {
  static const char *const small[] = {"sequence=16", "layers=3", "hidden=32", "heads=4", "vocabulary=61"};
  build_case("bert-base", BERT_BATCH, small, 5, true, program);
  require_ok(apply_recipe(recipe, program));
}

void build_deep_bert(Program *program) {
  static const char *const small[] = {"layers=4", "hidden=32", "heads=2", "vocabulary=100", "sequence=64"};
  build_case("bert-base", 2, small, 5, true, program);
}

void build_tied(const char *recipe, Program *program) {
  Graph *graph = vl_graph_create("tied");
  vl_program_init(program, graph);
  program->training = true;
  Init init = {.kind = INIT_UNIFORM, .value = 0.1};
  Tensor *table = vl_graph_parameter(graph, "w", ROLE_PARAMETER, DTYPE_F32, 2, (int64_t[]){50, 8}, init);
  Tensor *ids = vl_graph_tensor(graph, "ids", ROLE_INPUT, DTYPE_I32, 1, (int64_t[]){6});
  Tensor *labels = vl_graph_tensor(graph, "labels", ROLE_INPUT, DTYPE_I32, 1, (int64_t[]){6}), *x;
  Node *loss;
  require_ok(vl_apply(graph, "embedding", NULL, (Tensor *[]){table, ids}, 2, &x));
  require_ok(vl_apply(graph, "gelu", NULL, &x, 1, &x));
  require_ok(vl_apply(graph, "linear", NULL, (Tensor *[]){x, table}, 2, &program->logits));
  require_ok(
      vl_graph_add(graph, "softmax_cross_entropy", NULL, (Tensor *[]){program->logits, labels}, 2, &loss));
  program->loss = loss->outputs[0];
  require_ok(apply_recipe(recipe, program));
  require_ok(vl_graph_check(graph));
}

bool is_op(const Node *node, const char *op) { return node && strcmp(node->op->name, op) == 0; }

int32_t count_ops(const Program *program, Segment segment, const char *op) {
  int32_t count = 0;
  for (int32_t i = 0; i < program->graph->node_count; i++) {
    const Node *node = program->graph->nodes[i];
    count += node->segment == segment && is_op(node, op);
  }
  return count;
}

void build_schedule(const Program *program, Schedule **schedule) {
  Simulation simulation;
  *schedule = NULL;
  require_ok(vl_schedule_build(program, schedule));
  simulate_schedule(program, *schedule, &simulation);
  simulation_free(&simulation);
}

int64_t peak_bytes_of(const Program *program) {
  Schedule *schedule = NULL;
  Simulation simulation;
  require_ok(vl_schedule_build(program, &schedule));
  simulate_schedule(program, schedule, &simulation);
  int64_t peak_bytes = simulation.peak_bytes;
  simulation_free(&simulation);
  vl_schedule_destroy(&schedule);
  return peak_bytes;
}

int64_t sweep_peak(const Program *program, const Schedule *schedule) {
  int64_t peak_bytes = 0, *live = vl_allocate((size_t)schedule->instance_count * sizeof *live);
  vl_schedule_live_bytes(program, schedule, live);
  for (int32_t i = 0; i < schedule->instance_count; i++)
    if (live[i] > peak_bytes) peak_bytes = live[i];
  free(live);
  return peak_bytes;
}

int64_t kept_bytes(const Program *program) {
  Schedule *schedule = NULL;
  require_ok(vl_schedule_build(program, &schedule));
  int32_t boundary = 0;
  while (schedule->instances[boundary].node->segment == SEGMENT_FORWARD)
    boundary++;
  int64_t bytes = 0;
  for (int32_t i = 0; i < schedule->buffer_count; i++) {
    const Buffer *buffer = &schedule->buffers[i];
    if (buffer->first >= 0 && buffer->first < boundary && buffer->last >= boundary)
      bytes += vl_dtype_bytes(buffer->storage->dtype, buffer->storage->elements);
  }
  vl_schedule_destroy(&schedule);
  return bytes;
}
