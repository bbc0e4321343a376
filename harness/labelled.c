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
  if (label_count > 0 && label_count != stores)
    argp_error(state, "%d label%s for %d store%s: give one --label a store, or none", label_count,
               label_count == 1 ? "" : "s", stores, stores == 1 ? "" : "s");
  for (int32_t i = 0; i < label_count; i++) {
    if (labels[i][0] == '\0') argp_error(state, "--label is empty");
    if (label_at(labels, i, labels[i]) >= 0) argp_error(state, "label '%s' is given twice", labels[i]);
  }
  if (reference != NULL && label_count > 0 && label_at(labels, label_count, reference) < 0)
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

/* ---- Labels nobody gave ---------------------------------------------------------------------------------------------- */

/* What the first cell that knows is of: the card on paper, else the hardware, else the kind of device. */
static const char *device_of(const Store *store) {
  static const char *const columns[] = {"profile", "hardware", "device_name", "device"};
  for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
    for (int64_t i = 0; i < vl_store_count(store); i++) {
      const char *name = vl_record_text(vl_store_record(store, i), columns[c]);
      if (name != NULL && name[0] != '\0') return name;
    }
  return "empty";
}

/* The last part of where a store is. */
static void store_name(const Store *store, const char *path, char *name, size_t size) {
  char *whole = realpath(vl_store_path(store), NULL);
  const char *from = whole != NULL ? whole : path, *slash = strrchr(from, '/');
  snprintf(name, size, "%s", slash != NULL && slash[1] != '\0' ? slash + 1 : from);
  free(whole);
}

static int32_t count_of(char *const *names, int32_t count, const char *name) {
  int32_t same = 0;
  for (int32_t i = 0; i < count; i++)
    same += strcmp(names[i], name) == 0;
  return same;
}

static char *join_name(const char *device, const char *store) {
  size_t size = strlen(device) + strlen(store) + 4;
  char *name = vl_allocate(size);
  snprintf(name, size, store[0] != '\0' ? "%s (%s)" : "%s%s", device, store);
  return name;
}

/* Devices; where those are not enough with the store's name; where that is not, with its path as it was
 * given. */
static void name_stores(LabelledStores *labelled, const char *const *paths, int32_t count) {
  for (int step = 0; step < 3; step++) {
    bool again[VL_MAX_LABELS] = {false};
    for (int32_t i = 0; i < count; i++)
      again[i] = step == 0 || count_of(labelled->names, count, labelled->names[i]) > 1;
    for (int32_t i = 0; i < count; i++) {
      char store[256] = "";
      if (!again[i]) continue;
      if (step == 1) store_name(labelled->stores[i], paths[i], store, sizeof store);
      if (step == 2) snprintf(store, sizeof store, "%s", paths[i]);
      free(labelled->names[i]);
      labelled->names[i] = join_name(device_of(labelled->stores[i]), store);
    }
  }
}

/* ---- Opening ----------------------------------------------------------------------------------------------------------- */

static Status find_reference(LabelledStores *labelled, int32_t count, const char *reference) {
  const char *const *names = (const char *const *)labelled->names;
  char accepted[400] = "";
  labelled->input.reference = reference != NULL ? label_at(names, count, reference) : 0;
  if (labelled->input.reference >= 0) return vl_ok();
  for (int32_t i = 0; i < count; i++)
    snprintf(accepted + strlen(accepted), sizeof accepted - strlen(accepted), "%s%s", i > 0 ? ", " : "",
             names[i]);
  return vl_error(VL_INVALID, "--reference '%s' is none of the labels: %s", reference, accepted);
}

static void take_records(LabelledStores *labelled, int32_t store) {
  RecordSet *records = &labelled->input.records;
  for (int64_t i = 0; i < vl_store_count(labelled->stores[store]); i++) {
    json_t *record = json_copy((json_t *)vl_store_record(labelled->stores[store], i));
    json_object_set_new(record, "label", json_string(labelled->names[store]));
    json_array_append_new(labelled->owned, record);
    records->records[records->count++] = record;
  }
}

Status vl_labelled_open(const char *const *paths, int32_t count, const char *const *labels,
                        int32_t label_count, const char *reference, LabelledStores *labelled) {
  int64_t records = 0;
  *labelled = (LabelledStores){.owned = json_array()};
  for (int32_t i = 0; i < count; i++) {
    VL_TRY(vl_store_open(paths[i], &labelled->stores[i]));
    VL_TRY(refuse_twice(labelled, paths, i));
    records += vl_store_count(labelled->stores[i]);
  }
  for (int32_t i = 0; i < label_count; i++)
    labelled->names[i] = join_name(labels[i], "");
  if (label_count == 0) name_stores(labelled, paths, count);
  PlotInput *input = &labelled->input;
  input->source = "several stores";
  input->labels = (const char *const *)labelled->names;
  input->label_count = count;
  VL_TRY(find_reference(labelled, count, reference));
  input->records.records = vl_allocate((size_t)(records + 1) * sizeof *input->records.records);
  for (int32_t i = 0; i < count; i++)
    take_records(labelled, i);
  return vl_ok();
}

void vl_labelled_close(LabelledStores *labelled) {
  free(labelled->input.records.records);
  json_decref(labelled->owned);
  for (int32_t i = 0; i < VL_MAX_LABELS; i++)
    vl_store_close(&labelled->stores[i]);
  for (int32_t i = 0; i < VL_MAX_LABELS; i++)
    free(labelled->names[i]);
}
