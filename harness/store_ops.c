/* The ops of a step as a table of a store's HDF5 files. */
#include "harness/store.h"

#include <stddef.h>
#include <stdlib.h>

typedef struct OpNumber {
  H5ColumnText text;
  size_t offset;
  bool wide;
} OpNumber;
static const OpNumber fields[] = {
    {{"start_ns", "ns", "since the first was launched; -1: nothing tells time"},
     offsetof(OpRecord, start_ns),
     true},
    {{"duration_ns", "ns", "waited for, launch included; of a prediction the least by a data sheet's rates"},
     offsetof(OpRecord, duration_ns),
     true},
    {{"flops", "1", "counted from shapes"}, offsetof(OpRecord, flops), true},
    {{"bytes", "bytes", "read and written, dense, counted from shapes"}, offsetof(OpRecord, bytes), true},
    {{"segment", "1", "0 forward, 1 backward, 2 update"}, offsetof(OpRecord, segment), false},
    {{"stream", "1", "it is queued on"}, offsetof(OpRecord, stream), false},
    {{"micro_batch", "1", "of the step, from 0"}, offsetof(OpRecord, micro_batch), false},
    {{"pass", "1", "above 0: made again for backward"}, offsetof(OpRecord, pass), false},
};
enum { FIELDS = sizeof fields / sizeof *fields };

typedef struct OpWord {
  H5ColumnText text;
  size_t offset;
} OpWord;
static const OpWord texts[] = {
    {{"op", "", "what is computed"}, offsetof(OpRecord, op)},
    {{"scope", "", "layer"}, offsetof(OpRecord, scope)},
    {{"implementation", "", "what the device chose; \"\": not told"}, offsetof(OpRecord, implementation)},
};
enum { TEXTS = sizeof texts / sizeof *texts };

static int64_t get_field(const OpRecord *op, const OpNumber *field) {
  const char *at = (const char *)op + field->offset;
  return field->wide ? *(const int64_t *)(const void *)at : *(const int32_t *)(const void *)at;
}

static void set_field(OpRecord *op, const OpNumber *field, int64_t value) {
  char *at = (char *)op + field->offset;
  if (field->wide)
    *(int64_t *)(void *)at = value;
  else
    *(int32_t *)(void *)at = (int32_t)value;
}

void vl_ops_write(H5Writer *writer, hid_t parent, const char *group, const OpRecord *ops, int64_t count) {
  H5Table table;
  if (count == 0) return;
  int64_t *values = vl_allocate((size_t)count * sizeof *values);
  const char **columns = vl_allocate((size_t)count * sizeof *columns);
  vl_h5_table_open(writer, parent, group, "position", count, &table);
  for (int f = 0; f < FIELDS; f++) {
    for (int64_t i = 0; i < count; i++)
      values[i] = get_field(&ops[i], &fields[f]);
    vl_h5_integers(writer, &table, fields[f].text, values);
  }
  for (int t = 0; t < TEXTS; t++) {
    for (int64_t i = 0; i < count; i++)
      columns[i] = (const char *)&ops[i] + texts[t].offset;
    vl_h5_texts(writer, &table, texts[t].text, columns);
  }
  vl_h5_table_close(&table);
  free(values);
  free(columns);
}

static Status read_fields(hid_t group, OpRecord **ops, int64_t *count) {
  for (int f = 0; f < FIELDS; f++) {
    int64_t *values, rows;
    VL_TRY(vl_h5_read_integers(group, fields[f].text.name, &values, &rows));
    if (f == 0) {
      *count = rows;
      *ops = vl_allocate((size_t)(rows + 1) * sizeof **ops);
    }
    for (int64_t i = 0; i < rows && i < *count; i++)
      set_field(&(*ops)[i], &fields[f], values[i]);
    free(values);
    if (rows != *count) return vl_error(VL_INVALID, "column \"%s\" has another length", fields[f].text.name);
  }
  return vl_ok();
}

static Status read_texts(hid_t group, OpRecord *ops, int64_t count) {
  for (int t = 0; t < TEXTS; t++) {
    char **values;
    int64_t rows;
    VL_TRY(vl_h5_read_texts(group, texts[t].text.name, &values, &rows));
    for (int64_t i = 0; i < rows && i < count; i++)
      snprintf((char *)&ops[i] + texts[t].offset, VL_NAME_BYTES, "%s", values[i]);
    free(values);
    if (rows != count) return vl_error(VL_INVALID, "column \"%s\" has another length", texts[t].text.name);
  }
  return vl_ok();
}

Status vl_ops_read(const char *path, const char *group_name, OpRecord **ops, int64_t *count) {
  hid_t file;
  char place[128] = "ops";
  *ops = NULL;
  *count = 0;
  VL_TRY(vl_h5_open(path, &file));
  if (group_name) snprintf(place, sizeof place, "ops/%s", group_name);
  /* Of results.h5 each group on the way is asked for. */
  bool there = H5Lexists(file, "ops", H5P_DEFAULT) > 0 && H5Lexists(file, place, H5P_DEFAULT) > 0;
  hid_t group = there ? H5Gopen2(file, place, H5P_DEFAULT) : -1;
  Status status = vl_ok();
  if (group >= 0) {
    status = read_fields(group, ops, count);
    if (status.code == VL_OK) status = read_texts(group, *ops, *count);
    H5Gclose(group);
  }
  H5Fclose(file);
  if (status.code == VL_OK) return status;
  free(*ops);
  *ops = NULL;
  *count = 0;
  return vl_error(status.code, "%s: ops: %s", path, status.message);
}
