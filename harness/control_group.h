/* What the control groups of this process leave of the machine. */
#ifndef VRAMLAB_HARNESS_CONTROL_GROUP_H
#define VRAMLAB_HARNESS_CONTROL_GROUP_H

#include "base/base.h"

typedef struct ControlGroup {
  int32_t version;            /* of the interface: 1, 2; 0: there is none */
  int64_t memory_limit_bytes; /* the smallest of the group and those it lies in; -1: no limit */
  int64_t memory_free_bytes;  /* what is left under the tightest of them, files that can be dropped counted as
                                 free; -1: no limit */
  double processors;          /* processors' worth of time; NaN: no limit */
} ControlGroup;

/* Reads <root>/proc/self/cgroup and the files below <root>/sys/fs/cgroup; root is "" but in tests. A group
 * that is not to be found where the process says (a container without a namespace of its own) is taken to be
 * the mounted one. Linux's Documentation/admin-guide: cgroup-v2.rst, cgroup-v1/memory.rst. */
void vl_control_group_read(const char *root, ControlGroup *group);

#endif
