/* explain: what an out-of-memory message means: shortage, fragmentation, a limit or something else, by a
 * named rule, and what could help. Reckoned from the message's own figures; where one is absent nothing is
 * said. */
#ifndef VRAMLAB_HARNESS_EXPLAIN_H
#define VRAMLAB_HARNESS_EXPLAIN_H

#include "harness/oom_message.h"
#include <jansson.h>
#include <stdio.h>

typedef enum OomVerdict {
  OOM_SHORTAGE = 0,  /* with every byte in one piece it would still not fit */
  OOM_FRAGMENTATION, /* the bytes are there, in pieces too small */
  OOM_LIMIT,         /* a shortage under a limit that the process was given, not of the card */
  OOM_REFUSED,       /* the card has room and the driver gave none */
  OOM_IMPOSSIBLE,    /* no card has what was asked for */
  OOM_TOO_CLOSE,     /* the figures are rounded, and the difference is smaller than that */
  OOM_UNKNOWN,       /* the message lacks a figure that decides it */
  OOM_VERDICT_COUNT
} OomVerdict;
/* "shortage", "fragmentation", ... */
const char *vl_oom_verdict_name(OomVerdict verdict);

enum { VL_OOM_TEXT_BYTES = 400 };

/* Bytes are -1 where they cannot be told. A message rounds its figures: what is reckoned from them is off by
 * as much as is said beside it, at most. */
typedef struct OomExplanation {
  OomVerdict verdict;
  char rule[VL_OOM_TEXT_BYTES]; /* which decided, with its figures */
  int64_t unallocated_bytes;    /* told, or reserved less allocated: what a setting returns at most */
  int64_t reserved_bytes;       /* told, or allocated and unallocated */
  bool room_known;
  int64_t room_bytes;    /* free, or what is left of the limit: below zero when it is passed already */
  int64_t missing_bytes; /* tried less room; 0 when it would fit */
  int64_t missing_rounding_bytes; /* of that, at most */
  int64_t rounding_bytes;         /* of from_model_bytes */
  int64_t from_model_bytes; /* missing beyond what a setting returns: at least so much, this one request */
  int64_t others_bytes;     /* of other processes that the message names */
  int64_t unnamed_bytes;    /* in use on the card by nobody that the message names */
  int64_t usable_bytes;     /* what PyTorch can have on this card now: reserved and room; else total */
  int64_t maybe_self_pid;   /* a process that is perhaps this one, seen from outside a container; -1 */
  bool oversubscribed;      /* more is reserved than the card has: host memory, lent by Windows' driver */
  char setting[VL_OOM_TEXT_BYTES];      /* to put into the environment; "" when there is none */
  char setting_note[VL_OOM_TEXT_BYTES]; /* what to expect of it, or why there is none */
} OomExplanation;

void vl_oom_explain(const OomMessage *message, OomExplanation *explanation);

/* The job to name in the next command; NULL and 0: an example's. */
typedef struct OomJob {
  const char *case_name;
  int64_t batch;
} OomJob;
/* The command to type next; "" when none helps. */
void vl_oom_next(const OomMessage *message, const OomExplanation *explanation, const OomJob *job,
                 char text[VL_OOM_TEXT_BYTES]);

/* For a terminal; the object is the caller's. `found` messages were in the text. */
void vl_oom_print(const OomMessage *message, const OomJob *job, int32_t found, FILE *out);
json_t *vl_oom_json(const OomMessage *message, const OomJob *job);

#endif
