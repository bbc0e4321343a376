/* A child process in a group of its own, and ending all of it. */
#ifndef VRAMLAB_HARNESS_CHILD_H
#define VRAMLAB_HARNESS_CHILD_H

#include "base/base.h"
#include <jansson.h>
#include <sys/types.h>

/* Where a worker writes its messages. */
enum { VL_WORKER_OUTPUT = 3 };

/* free() pids. */
typedef struct ProcessList {
  pid_t *pids;
  int32_t count;
} ProcessList;
/* Our children now, adopted orphans included; none where the kernel does not list them. */
ProcessList vl_own_children(void);
bool vl_process_is_among(const ProcessList *list, pid_t pid);

typedef struct Child {
  pid_t pid;   /* also its process group; 0: none */
  int input;   /* our end of its standard input */
  int output;  /* our end of VL_WORKER_OUTPUT */
  bool closed; /* the child's end of output is */
  char *text;  /* read and not yet taken */
  size_t length, room;
  ProcessList others; /* our children before it started: none of its own */
} Child;

/* Starts program with the argument "cell" and signals as usual; its standard output goes to standard error.
 */
Status vl_child_start(const char *program, Child *child) VL_CHECKED;
/* Writes a line. VL_ENVIRONMENT: the child does not read any more. */
Status vl_child_send(Child *child, const char *line) VL_CHECKED;
/* Reads what is there without waiting. */
Status vl_child_receive(Child *child) VL_CHECKED;
/* The next whole message; NULL when there is none yet. A line that is not JSON is VL_INTERNAL. */
Status vl_child_take(Child *child, json_t **message) VL_CHECKED;
/* Whether the leader has ended; it is not reaped. */
bool vl_child_has_ended(const Child *child);
/* Ends every process of the group, and what it started that left the group and came to us, and reaps them.
 * gentle_ns: time the leader has to end by itself after SIGTERM (or, with `asked` false, without a signal).
 * status: the leader's, as from waitpid. Returns when none is left; VL_ENVIRONMENT when the system does not
 * let go of one within 10 s. */
Status vl_child_end(Child *child, bool asked, int64_t gentle_ns, int *status) VL_CHECKED;

#endif
