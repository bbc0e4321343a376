/* What the parts of the store share: store.c keeps the journal, results.c the HDF5 files. */
#ifndef VRAMLAB_HARNESS_STORE_H
#define VRAMLAB_HARNESS_STORE_H

#include "harness/h5.h"
#include "harness/harness.h"
#include <limits.h>

struct Store {
  char directory[PATH_MAX]; /* "" when only a results.h5 is there */
  char results[PATH_MAX];   /* the results.h5 */
  json_t *head;
  json_t *records;       /* array: the latest of each key, in order of first appearance */
  json_t *index;         /* key -> position in records */
  int journal;           /* open for appending, or -1 */
  bool locked;           /* we are its writer */
  int64_t journal_bytes; /* whole lines */
};

/* Makes us the only writer of the open journal, removes what killed writers left unfinished, and leaves a
 * note of who we are. VL_ENVIRONMENT: somebody else is, and who. */
Status vl_store_lock(Store *store) VL_CHECKED;
/* Takes the note away; the lock ends with the journal's descriptor. */
void vl_store_unlock(Store *store);

/* Takes a store's head (borrowed) after a look at its schema version; path for messages. */
Status vl_store_take_head(Store *store, json_t *head, const char *path) VL_CHECKED;
/* Adds a record, or puts it in the place of the earlier one of its key; columns that
 * it does not have, because an older vramlab wrote it, are null from then on. VL_INVALID: it has no key. */
Status vl_store_remember(Store *store, const json_t *record) VL_CHECKED;

/* results.h5 from everything the store holds. */
Status vl_results_write(const Store *store) VL_CHECKED;
/* Whether results.h5 was made from a journal of this length. */
bool vl_results_current(const Store *store);
/* Head and records of a results.h5 on its own. */
Status vl_results_read(Store *store) VL_CHECKED;
Status vl_timeline_write(const char *path, const TimelineEvent *events, int64_t count, const OpRecord *ops,
                         int64_t op_count) VL_CHECKED;
/* From a file of its own, or from the group of a results.h5; count 0 when there is none. */
Status vl_timeline_read(const char *path, const char *group, TimelineEvent **events,
                        int64_t *count) VL_CHECKED;
/* The ops of a step as a group of a file being written; nothing without ops. */
void vl_ops_write(H5Writer *writer, hid_t parent, const char *group, const OpRecord *ops, int64_t count);
/* As vl_timeline_read; files of older versions have none. */
Status vl_ops_read(const char *path, const char *group, OpRecord **ops, int64_t *count) VL_CHECKED;

#endif
