#include "harness/labelled.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static int32_t label_at(const char *const *labels, int32_t count, const char *label) {
  for (int32_t i = 0; i < count; i++)
    if (strcmp(labels[i], label) == 0) return i;
  return -1;
}

void vl_labelled_check(struct argp_state *state, int32_t stores, const char *const *labels,
                       int32_t label_count, const char *reference) {
  if (stores > 1 && label_count != stores)
    argp_error(state, "%d stores need as many --label; given: %d", stores, label_count);
  if (label_count > 1 && stores < 2) argp_error(state, "%d labels for %d stores", label_count, stores);
  if (label_count == 1 && stores == 0) argp_error(state, "a label is of a store that is named");
  for (int32_t i = 0; i < label_count; i++)
    if (label_at(labels, i, labels[i]) >= 0) argp_error(state, "label '%s' is given twice", labels[i]);
  if (reference != NULL && label_at(labels, label_count, reference) < 0)
    argp_error(state, "--reference '%s' is none of the labels", reference);
}

/* The same store under two labels would say that two machines are equal. */
static Status refuse_twice(const LabelledStores *labelled, const char *const *paths, int32_t last) {
  char *mine = realpath(vl_store_path(labelled->stores[last]), NULL);
  Status status = vl_ok();
  for (int32_t i = 0; mine != NULL && i < last && status.code == VL_OK; i++) {
    char *other = realpath(vl_store_path(labelled->stores[i]), NULL);
    if (other != NULL && strcmp(mine, other) == 0)
      status = vl_error(VL_INVALID, "%s and %s are the same store", paths[i], paths[last]);
    free(other);
  }
  free(mine);
  return status;
}

Status vl_labelled_open(const char *const *paths, const char *const *labels, int32_t count,
                        const char *reference, LabelledStores *labelled) {
  int64_t records = 0;
  *labelled = (LabelledStores){.owned = json_array()};
  for (int32_t i = 0; i < count; i++) {
    VL_TRY(vl_store_open(paths[i], &labelled->stores[i]));
    VL_TRY(refuse_twice(labelled, paths, i));
    records += vl_store_count(labelled->stores[i]);
  }
  PlotInput *input = &labelled->input;
  input->records.records = vl_allocate((size_t)(records + 1) * sizeof *input->records.records);
  for (int32_t i = 0; i < count; i++)
    for (int64_t j = 0; j < vl_store_count(labelled->stores[i]); j++) {
      json_t *record = json_copy((json_t *)vl_store_record(labelled->stores[i], j));
      json_object_set_new(record, "label", json_string(labels[i]));
      json_array_append_new(labelled->owned, record);
      input->records.records[input->records.count++] = record;
    }
  input->source = "several stores";
  input->labels = labels;
  input->label_count = count;
  input->reference = reference != NULL ? label_at(labels, count, reference) : 0;
  return vl_ok();
}

void vl_labelled_close(LabelledStores *labelled) {
  free(labelled->input.records.records);
  json_decref(labelled->owned);
  for (int32_t i = 0; i < VL_MAX_LABELS; i++)
    vl_store_close(&labelled->stores[i]);
}
