/* Command-line options that several commands share: which cell is meant. */
#ifndef VRAMLAB_HARNESS_OPTIONS_H
#define VRAMLAB_HARNESS_OPTIONS_H

#include "harness/harness.h"
#include <argp.h>

enum { VL_MAX_LISTED = 32 };

/* Which options were given, as bits of CellOptions.given. */
enum {
  GIVEN_CASE = 1 << 0,
  GIVEN_BATCH = 1 << 1,
  GIVEN_MICRO_BATCH = 1 << 2,
  GIVEN_RECIPE = 1 << 3,
  GIVEN_DEVICE = 1 << 4,
  GIVEN_PROFILE = 1 << 5,
  GIVEN_CAPACITY = 1 << 6,
  GIVEN_STEPS = 1 << 7,
  GIVEN_WARMUP = 1 << 8,
  GIVEN_THREADS = 1 << 9,
  GIVEN_SEED = 1 << 10,
  GIVEN_SETTINGS = 1 << 11,
  GIVEN_DATA = 1 << 12,
  GIVEN_INFERENCE = 1 << 13,
  GIVEN_TIMELINE = 1 << 14,
  GIVEN_LEARNING_RATE = 1 << 15,
  GIVEN_SAVE_STATE = 1 << 16,
  GIVEN_LOAD_STATE = 1 << 17,
  GIVEN_TIMEOUT = 1 << 18,
  GIVEN_OFFLOAD_CAPACITY = 1 << 19,
  GIVEN_OFFLOAD_DIRECTORY = 1 << 20,
  GIVEN_MONITOR = 1 << 21,
  GIVEN_QUEUE = 1 << 22,
  GIVEN_CROSS_CHECK = 1 << 23,
  GIVEN_INJECT = 1 << 24,
  GIVEN_MAX_NOISE = 1 << 25,
  GIVEN_MAX_TIME = 1 << 26
};

typedef struct CellOptions {
  CellSpec spec;
  double timeout_s;
  int64_t batch; /* global */
  uint32_t given;
  /* Options that may be repeated, in order; spec has the first of each. */
  const char *recipes[VL_MAX_LISTED];
  int32_t recipe_count;
  int64_t capacities[VL_MAX_LISTED];
  int32_t capacity_count;
} CellOptions;

/* A child parser; its input is a CellOptions that vl_cell_options_init has filled. Bad values end in
 * argp_error. */
extern const struct argp vl_cell_argp;
void vl_cell_options_init(CellOptions *options);
/* Micro-batch and accumulation from --batch, --micro-batch and the recipe; "auto" becomes a device; checks.
 */
Status vl_cell_options_resolve(CellOptions *options) VL_CHECKED;
/* Puts the options that make sense for every cell of a suite over it. VL_INVALID names one that does not. */
Status vl_cell_options_override(const CellOptions *options, SuiteCell *cell) VL_CHECKED;
/* Without --capacity it becomes the profile's memory, or what this machine has available. */
Status vl_cell_options_usual_capacity(CellOptions *options) VL_CHECKED;
/* The accumulation a recipe asks for; 1 when it does not, 0 for auto. */
Status vl_recipe_accumulate(const char *recipe, int64_t *accumulate) VL_CHECKED;

/* Micro-batch and global batch of a step of `batch` samples under the cell's recipe; with accumulate=auto the
 * micro-batch is all of it. VL_INVALID when the recipe divides it into more parts than it has. */
Status vl_cell_divide(CellSpec *spec, int64_t batch) VL_CHECKED;

/* Parses a command's arguments; bad usage ends the program with exit code 2, as GNU programs do. */
void vl_command_parse(const struct argp *argp, int argc, char **argv, void *input);
/* The exit code a cell's status stands for, when the cell was all that was asked. */
int vl_cell_exit_code(const json_t *record);

#endif
