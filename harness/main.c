/* vramlab: what GPU memory optimizations buy and cost. Chooses the command. */
#include "devices/device.h"
#include "harness/harness.h"

#include <string.h>

typedef struct Command {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *help; /* NULL: not for people */
} Command;

static int run_cell(int argc, char **argv) {
  (void)argc, (void)argv;
  return vl_worker_serve(stdin, 3, vl_cell_run);
}

static int run_help(int argc, char **argv);

static int run_version(int argc, char **argv) {
  (void)argc, (void)argv;
  puts("vramlab " VRAMLAB_VERSION);
  return 0;
}

static const Command commands[] = {
    {"list", vl_command_list, "cases, optimizations, suites, figures, profiles; by name or synonym"},
    {"run", vl_command_run, "one cell or a suite, measured"},
    {"plan", vl_command_run, "the same, predicted without running"},
    {"max-batch", vl_command_max_batch, "the largest batch per recipe under a capacity"},
    {"fit", vl_command_fit, "the least intrusive recipe under which a job fits, and how to turn it on"},
    {"explain", vl_command_explain, "an out-of-memory message: shortage or fragmentation, and what to do"},
    {"replay", vl_command_replay, "an allocation trace under every policy, and what to set"},
    {"diagnose", vl_command_diagnose, "one step held against what it should hold; the anomalous allocation"},
    {"graph", vl_command_graph, "what a case computes, after a recipe"},
    {"report", vl_command_report, "a store as a report: html, md, term"},
    {"compare", vl_command_compare, "whether a store regressed against another or a baseline"},
    {"baseline", vl_command_baseline, "what stores are compared with: update it, show it"},
    {"claims", vl_command_claims, "the verdict on each claim"},
    {"plot", vl_command_plot, "figures from a store"},
    {"export", vl_command_export,
     "a store for other tools: csv, junit, Perfetto, TensorBoard, memory_viz, ..."},
    {"convert", vl_command_convert, "NIfTI volumes with labels to a data file"},
    {"import", vl_command_import, "add a record, or a PyTorch peer's line, to a store"},
    {"status", vl_command_status, "how far a running suite is, from another terminal"},
    {"doctor", vl_command_doctor, "what this machine offers, what is missing, how to install it"},
    {"help", run_help, "this list"},
    {"version", run_version, "the version"},
    {"cell", run_cell, NULL},
};

static void print_help(FILE *out) {
  fputs("Usage: vramlab COMMAND [OPTION...]\n"
        "What GPU memory optimizations buy, what they cost, and whether results stay the same.\n\n",
        out);
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
    if (commands[i].help) fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
  fputs("\n`vramlab COMMAND --help` tells a command's options. Begin with: vramlab run quick\n", out);
}

static int run_help(int argc, char **argv) {
  (void)argc, (void)argv;
  print_help(stdout);
  return 0;
}

static const Command *find_command(const char *name) {
  if (strcmp(name, "--help") == 0 || strcmp(name, "-?") == 0) name = "help";
  if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) name = "version";
  for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
    if (strcmp(commands[i].name, name) == 0) return &commands[i];
  return NULL;
}

int main(int argc, char **argv) {
  vl_standard_streams();
  if (argc < 2) {
    print_help(stderr);
    return 2;
  }
  const Command *command = find_command(argv[1]);
  if (!command) {
    fprintf(stderr, "vramlab: no command is named \"%s\"; vramlab help lists them\n", argv[1]);
    return 2;
  }
  Status status = vl_visible_from_ctest();
  if (status.code != VL_OK) return vl_command_fail(status);
  char name[32];
  snprintf(name, sizeof name, "vramlab %s", command->name);
  argv[1] = name;
  return command->run(argc - 1, argv + 1);
}
