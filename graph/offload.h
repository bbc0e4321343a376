/* Inside graph: the transfers of a schedule. */
#ifndef VRAMLAB_GRAPH_OFFLOAD_H
#define VRAMLAB_GRAPH_OFFLOAD_H

#include "graph/graph.h"

/* Puts evicts, fetches and waits between the launches of a schedule whose lifetimes are not known yet, as
 * program->offload_blocks and the tiers of its storages ask. */
void graph_offload(const Program *program, Schedule *schedule);

#endif
