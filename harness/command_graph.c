/* vramlab graph: what a case computes, before or after a recipe. */
#include "harness/options.h"

#include <string.h>

enum { KEY_FORMAT = 0x200, KEY_FORWARD };

typedef struct GraphCommand {
  CellOptions cell;
  const char *format;
  bool forward;
} GraphCommand;

static const struct argp_option options_table[] = {
    {"format", KEY_FORMAT, "FORMAT", 0, "text, dot, json or schedule", 3},
    {"forward", KEY_FORWARD, NULL, 0, "as the case builds it: before differentiation and recipe", 3},
    {0}};

static error_t parse_option(int key, char *text, struct argp_state *state) {
  static const char *const formats[] = {"text", "dot", "json", "schedule"};
  GraphCommand *command = state->input;
  switch (key) {
  case ARGP_KEY_INIT: state->child_inputs[0] = &command->cell; return 0;
  case KEY_FORWARD: command->forward = true; return 0;
  case KEY_FORMAT:
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
      if (strcmp(text, formats[i]) == 0) command->format = formats[i];
    if (!command->format) argp_error(state, "--format %s; accepted: text, dot, json, schedule", text);
    return 0;
  case ARGP_KEY_ARG:
    if (command->cell.given & GIVEN_CASE) argp_error(state, "unexpected argument: %s", text);
    snprintf(command->cell.spec.case_name, sizeof command->cell.spec.case_name, "%s", text);
    command->cell.given |= GIVEN_CASE;
    return 0;
  case ARGP_KEY_END:
    if (!(command->cell.given & GIVEN_CASE)) argp_error(state, "give a case (vramlab list cases)");
    return 0;
  default: return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp_child children[] = {{&vl_cell_argp, 0, NULL, 0}, {0}};
static const struct argp graph_argp = {
    .options = options_table,
    .parser = parse_option,
    .args_doc = "CASE",
    .doc = "Prints the graph of a case after a recipe: one node a line with its "
           "shapes, or for Graphviz, or in the JSON graph format; or the schedule.",
    .children = children};

static Status print_schedule(const Program *program) {
  Schedule *schedule;
  VL_TRY(vl_schedule_build(program, &schedule));
  vl_schedule_print(schedule, stdout);
  vl_schedule_destroy(&schedule);
  return vl_ok();
}

static Status print_program(const GraphCommand *command, Program *program) {
  const char *format = command->format ? command->format : "text";
  if (!command->forward) {
    Recipe recipe;
    Target target = {.capacity_bytes = command->cell.spec.capacity_bytes, .ranks = 1};
    VL_TRY(vl_recipe_parse(command->cell.spec.recipe, &recipe));
    VL_TRY(vl_recipe_check_mode(&recipe, program->training));
    VL_TRY(vl_recipe_apply(&recipe, program, &target));
  }
  if (strcmp(format, "json") == 0) return vl_graph_write_json(program->graph, stdout);
  if (strcmp(format, "schedule") == 0) return print_schedule(program);
  if (strcmp(format, "dot") == 0)
    vl_graph_print_dot(program->graph, stdout);
  else
    vl_graph_print(program->graph, stdout);
  return vl_ok();
}

static Status print_graph(GraphCommand *command) {
  const CellSpec *spec = &command->cell.spec;
  const char *settings[VL_MAX_SETTINGS];
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  Program program;
  VL_TRY(vl_cell_options_resolve(&command->cell));
  const Case *of = vl_case_find(spec->case_name);
  for (int32_t i = 0; i < spec->setting_count; i++)
    settings[i] = spec->settings[i];
  Recipe recipe;
  VL_TRY(vl_case_arguments(of, spec->micro_batch, settings, spec->setting_count, values));
  VL_TRY(vl_recipe_parse(spec->recipe, &recipe));
  VL_TRY(vl_recipe_arguments(&recipe, of, values));
  VL_TRY(of->build(values, !spec->inference, &program));
  Status status = print_program(command, &program);
  vl_program_destroy(&program);
  return status;
}

int vl_command_graph(int argc, char **argv) {
  GraphCommand command = {0};
  vl_cell_options_init(&command.cell);
  vl_command_parse(&graph_argp, argc, argv, &command);
  Status status = print_graph(&command);
  return status.code == VL_OK ? 0 : vl_command_fail(status);
}
