/* Runs one node on a device, for tests that look at its values themselves. */
#ifndef VRAMLAB_TESTS_RUN_NODE_H
#define VRAMLAB_TESTS_RUN_NODE_H

#include "devices/device.h"

/* Inputs (NULL: zeros) and outputs (NULL: not wanted) are plain data of the host, one per tensor of the node,
 * which it takes in the layouts that the device chooses where everything may be plain. The node's storages
 * get those layouts. */
Status run_node(Device *device, const Node *node, const void *const *inputs, void *const *outputs) VL_CHECKED;

#endif
