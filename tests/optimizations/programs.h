/* What the tests of optimizations share: programs with a recipe applied, and questions about them. Small
 * networks that are no cases are in tests/graph/networks.h. */
#ifndef VRAMLAB_TESTS_OPTIMIZATIONS_PROGRAMS_H
#define VRAMLAB_TESTS_OPTIMIZATIONS_PROGRAMS_H

#include "optimizations/optimizations.h"

/* ResNet-50 has 53 convolutions, each with a norm; 49 ReLUs; 16 blocks, each with an addition, four of them
 * with a projection. */
enum { CONVOLUTIONS = 53, RELUS = 49, BLOCKS = 16, PROJECTIONS = 4 };

/* build_bert's BERT, with LAYERS layers at batch 2. */
enum { LAYERS = 3, SEQUENCE = 16, HIDDEN = 32, BERT_BATCH = 2 };

/* ---- Recipes ------------------------------------------------------------------------------------------------------------- */

/* Applies what the text says, which must be a recipe: for one device, or for the target. */
Status apply_recipe(const char *text, Program *program) VL_CHECKED;
Status apply_recipe_on(const char *text, const Target *target, Program *program) VL_CHECKED;

/* Fails the test unless the recipe is refused with VL_UNSUPPORTED and a message that says `reason`. Destroys
 * the program. */
void assert_unsupported(Program *program, const char *recipe, const char *reason);

/* ---- Programs ------------------------------------------------------------------------------------------------------------ */

/* A case with `count` settings "name=value", no recipe applied. */
void build_case(const char *name, int64_t batch, const char *const *settings, int32_t count, bool training,
                Program *program);

/* Training programs at batch 2 with the recipe applied: ResNet-50 as it is, and a small BERT. */
void build_resnet50(const char *recipe, Program *program);
void build_bert(const char *recipe, Program *program);

/* Without one: ResNet-50 of small images, and a BERT of four layers. */
void build_small_resnet50(Program *program);
void build_deep_bert(Program *program);

/* Rows of a table times all of it, as a language model ties its embedding to its output. */
void build_tied(const char *recipe, Program *program);

/* ---- Questions ----------------------------------------------------------------------------------------------------------- */

/* `node` may be NULL. */
bool is_op(const Node *node, const char *op);
int32_t count_ops(const Program *program, Segment segment, const char *op);

/* The program's schedule, after simulate_schedule followed it. */
void build_schedule(const Program *program, Schedule **schedule);

/* Most bytes of activations at once: by simulate_schedule, and by vl_schedule_live_bytes. */
int64_t peak_bytes_of(const Program *program);
int64_t sweep_peak(const Program *program, const Schedule *schedule);

/* Bytes of what forward passes leave for backward: what is alive when the first backward node begins. */
int64_t kept_bytes(const Program *program);

#endif
