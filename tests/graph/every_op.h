/* A small training step in which every op of the table appears. */
#ifndef VRAMLAB_TESTS_EVERY_OP_H
#define VRAMLAB_TESTS_EVERY_OP_H

#include "graph/graph.h"

/* Forward, backward and update; destroy with vl_program_destroy. */
Status build_every_op(Program *program) VL_CHECKED;

#endif
