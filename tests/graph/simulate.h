/* An independent reading of a schedule: follows every buffer as a heap and a machine would, and fails the
 * test where a launch reads memory that is not held or a value that is not the one its graph says. */
#ifndef VRAMLAB_TESTS_SIMULATE_H
#define VRAMLAB_TESTS_SIMULATE_H

#include "graph/graph.h"

typedef struct Simulation {
  int64_t peak_bytes;  /* activations held at once, dense */
  int64_t *held_bytes; /* activations held after each instance's releases; [instance_count] */
} Simulation;

/* Checks, for every instance: inputs are held and hold the value of the tensor the node reads; outputs are
 * held; each buffer is obtained once, where it is first written, and released once, where it is last touched
 * or, when the caller needs it after the step, at the end; nothing is held after the last. A repeated launch
 * has a reader. A transfer is as good as not made until it is waited for, once; until then nobody reads or
 * frees what it writes, or writes or frees what it reads. */
void simulate_schedule(const Program *program, const Schedule *schedule, Simulation *simulation);
void simulation_free(Simulation *simulation);

/* How often the graph's forward node is launched. */
int32_t launches_of(const Schedule *schedule, const Node *node);

#endif
