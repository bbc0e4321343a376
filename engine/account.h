/* Shared by the files of the account: account.c reckons what a step holds, account_offload.c what of it is
 * away meanwhile. */
#ifndef VRAMLAB_ENGINE_ACCOUNT_H
#define VRAMLAB_ENGINE_ACCOUNT_H

#include "engine/internal.h"

/* An interval of positions; empty when first > last. */
typedef struct Life {
  int32_t first, last;
} Life;

typedef struct Account {
  const Executable *executable;
  const Graph *graph;
  Life *kept;         /* by storage: what the forward pass or backward itself makes */
  Life *again;        /* by storage: what recomputation makes */
  Life *fetched;      /* by storage: on the device again after the offload tier */
  int32_t *last_use;  /* by storage: the last node of forward that uses what is kept; -1 */
  int32_t *next_use;  /* by storage: the first node after forward that does; -1 */
  int32_t *replay_at; /* by checkpoint segment: the node that first needs some of it, -1: none yet */
  bool *replayed;     /* by node position: part of what is made again then */
  bool *walked;       /* the same, in this turn */
  bool *asked;        /* by tensor: backward has needed what was dropped (of several in a storage each) */
  MemoryAccount *result;
} Account;

/* Ends the lives of what goes to the offload tier, and writes `fetched`. */
void account_offload(Account *account);

#endif
