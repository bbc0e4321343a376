/* Shared by the files of the account: account.c reckons what a step holds, account_offload.c what of it is
 * away meanwhile; diagnose.c holds a step that ran against it. */
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
  Life *parts;        /* by storage: the part of a sum that one micro-batch makes */
  int32_t *last_use;  /* by storage: the last node of forward that uses what is kept; -1 */
  int32_t *next_use;  /* by storage: the first node after forward that does; -1 */
  int32_t *replay_at; /* by checkpoint segment: the node that first needs some of it, -1: none yet */
  bool *replayed;     /* by node position: part of what is made again then */
  bool *walked;       /* the same, in this turn */
  bool *asked;        /* by tensor: backward has needed what was dropped (of several in a storage each) */
  MemoryAccount *result;
} Account;

/* Reckons the lives of a program's storages, as if it retained nothing it need not. */
void account_open(const Executable *executable, MemoryAccount *result, Account *account);
void account_close(Account *account);
/* Whether a storage is on the device throughout. */
bool account_is_given(const Storage *storage);
/* The position at which most lives; how much goes to result->highest_bytes. */
int32_t account_find_peak(const Account *account);
/* What a node's kernel takes besides, on this heap. */
int64_t account_workspace(const Executable *executable, const Node *node);

/* Ends the lives of what goes to the offload tier, and writes `fetched`. */
void account_offload(Account *account);

#endif
