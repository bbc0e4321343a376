/* tests/kernels: runs nodes on the reference device and on another, and compares. README.md derives the
 * bounds. */
#ifndef VRAMLAB_TESTS_KERNELS_COMPARE_H
#define VRAMLAB_TESTS_KERNELS_COMPARE_H

#include "devices/device.h"
#include "graph/graph.h"

/* ---- A graph's values in double ----------------------------------------------------------------------------- */

/* One array per storage, so that views and in-place outputs are what they are. Borrows the graph. */
typedef struct Evaluation {
  const Graph *graph;
  double **values; /* by storage id, dense, in the logical shape of its root */
  LaunchContext context;
} Evaluation;

Evaluation *evaluation_create(const Graph *graph);
void evaluation_destroy(Evaluation **evaluation);
double *evaluation_of(const Evaluation *evaluation, const Tensor *tensor); /* NULL for NULL */
/* Persistent storages as State would initialise them: Philox keyed (seed, 0, name), rounded to the dtype. */
void evaluation_initialise(Evaluation *evaluation, uint64_t seed);
/* Uniform within +-bound around center, from Philox keyed (seed, 0, name), rounded to the dtype. */
void evaluation_draw(Evaluation *evaluation, const Storage *storage, uint64_t seed, double center,
                     double bound);
/* Whole numbers within [0, count), likewise. */
void evaluation_draw_whole(Evaluation *evaluation, const Storage *storage, uint64_t seed, int64_t count);
/* Runs one node, or all of them in order. */
Status evaluation_run_node(Evaluation *evaluation, const Node *node) VL_CHECKED;
Status evaluation_run(Evaluation *evaluation) VL_CHECKED;

/* What the dtype makes of a value. */
double round_to(DType dtype, double value);

/* ---- Bounds -------------------------------------------------------------------------------------------------- */

/* Fills bounds[k][i] for element i of output k: how far a kernel may be from outputs[k][i], the reference's
 * result for these inputs. Absent outputs are NULL in both. */
Status bound_outputs(const Node *node, double *const *inputs, double *const *outputs, double *const *bounds,
                     const LaunchContext *context) VL_CHECKED;

/* ---- Comparison ------------------------------------------------------------------------------------------------- */

enum { COMPARE_MAX_LAYOUTS = 8 };

/* A device under test, with the layouts it likes for activations. */
typedef struct Subject {
  Device *device;
  LayoutId layouts[COMPARE_MAX_LAYOUTS]; /* non-plain ones of rank 4, then of rank 5 */
  int32_t ranks[COMPARE_MAX_LAYOUTS];
  int32_t layout_count;
} Subject;

/* What was compared so far. */
typedef struct CompareTotals {
  int64_t nodes, runs; /* runs: layouts and in-place variants */
  int64_t unsupported; /* nodes the device said it cannot run */
  double worst;        /* largest error over its bound */
  char worst_at[160];
} CompareTotals;

/* Asks the device which layouts it would choose for convolutions. */
Status subject_create(Device *device, Subject *subject) VL_CHECKED;
/* Runs the node on the subject from `inputs` (by input, as doubles) in every combination of layouts it
 * resolves, and in place where the op allows. VL_INTERNAL names node, layouts, element, both values and the
 * bound. */
Status compare_node(const Subject *subject, const Node *node, double *const *inputs,
                    const LaunchContext *context, double *const *results, CompareTotals *totals) VL_CHECKED;
/* Evaluates the graph node by node on the reference, comparing each with the subject; values go from node to
 * node as the reference's results, rounded to their dtypes. */
Status compare_graph(const Subject *subject, Evaluation *evaluation, CompareTotals *totals) VL_CHECKED;

#endif
