/* results.h5: everything the journal and the timelines hold, as tables for other tools. The column table
 * decides what is in /cells; record_json beside it keeps each record whole, so that the file can be read on
 * its own. */
#include "harness/columns.h"
#include "harness/h5.h"
#include "harness/store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- /cells ------------------------------------------------------------------------------------------------ */

static void write_column(H5Writer *writer, H5Table *table, const Store *store, const Column *column) {
  int64_t rows = vl_store_count(store);
  H5ColumnText text = {column->name, column->unit, column->help};
  const char **texts = vl_allocate((size_t)(rows + 1) * sizeof *texts);
  int64_t *integers = vl_allocate((size_t)(rows + 1) * sizeof *integers);
  double *reals = vl_allocate((size_t)(rows + 1) * sizeof *reals);
  int8_t *flags = vl_allocate((size_t)(rows + 1) * sizeof *flags);
  for (int64_t i = 0; i < rows; i++) {
    const json_t *record = vl_store_record(store, i);
    texts[i] = vl_record_text(record, column->path);
    integers[i] = vl_record_integer(record, column->path);
    reals[i] = vl_record_real(record, column->path);
    flags[i] = vl_record_flag(record, column->path);
  }
  switch (column->type) {
  case COLUMN_TEXT: vl_h5_texts(writer, table, text, texts); break;
  case COLUMN_INTEGER: vl_h5_integers(writer, table, text, integers); break;
  case COLUMN_REAL: vl_h5_reals(writer, table, text, reals); break;
  case COLUMN_FLAG: vl_h5_flags(writer, table, text, flags); break;
  }
  free(texts);
  free(integers);
  free(reals);
  free(flags);
}

static void write_cells(H5Writer *writer, const Store *store) {
  H5Table table;
  int64_t rows = vl_store_count(store);
  int32_t columns;
  const Column *column = vl_column_all(&columns);
  vl_h5_table_open(writer, writer->file, "cells", "cell", rows, &table);
  for (int32_t i = 0; i < columns; i++)
    write_column(writer, &table, store, &column[i]);
  char **lines = vl_allocate((size_t)(rows + 1) * sizeof *lines);
  for (int64_t i = 0; i < rows; i++)
    lines[i] = vl_record_format(vl_store_record(store, i));
  vl_h5_texts(writer, &table, (H5ColumnText){"record_json", "", "the whole record"},
              (const char *const *)lines);
  for (int64_t i = 0; i < rows; i++)
    free(lines[i]);
  free(lines);
  vl_h5_table_close(&table);
}

/* ---- Lists: one row an element, naming its cell ---------------------------------------------------------------- */

typedef struct ListRows {
  int64_t count;
  int64_t *cell, *position;
  const char **key;
} ListRows;

/* Which cells have how many elements of a list. */
static ListRows list_rows(const Store *store, const char *path) {
  ListRows rows = {0};
  for (int64_t i = 0; i < vl_store_count(store); i++)
    rows.count += (int64_t)json_array_size(json_object_get(vl_store_record(store, i), path));
  rows.cell = vl_allocate((size_t)(rows.count + 1) * sizeof *rows.cell);
  rows.position = vl_allocate((size_t)(rows.count + 1) * sizeof *rows.position);
  rows.key = vl_allocate((size_t)(rows.count + 1) * sizeof *rows.key);
  int64_t row = 0;
  for (int64_t i = 0; i < vl_store_count(store); i++) {
    const json_t *record = vl_store_record(store, i);
    int64_t size = (int64_t)json_array_size(json_object_get(record, path));
    for (int64_t j = 0; j < size; j++, row++) {
      rows.cell[row] = i;
      rows.position[row] = j;
      rows.key[row] = vl_record_text(record, "cell_key");
    }
  }
  return rows;
}

static void write_list_rows(H5Writer *writer, H5Table *table, ListRows *rows, const char *position) {
  vl_h5_integers(writer, table, (H5ColumnText){"cell_row", "1", "row of /cells"}, rows->cell);
  vl_h5_texts(writer, table, (H5ColumnText){"cell_key", "", "key of the cell"}, rows->key);
  vl_h5_integers(writer, table, (H5ColumnText){position, "1", "from 0"}, rows->position);
}

static void free_list_rows(ListRows *rows) {
  free(rows->cell);
  free(rows->position);
  free(rows->key);
}

/* A list of a record as a column. */
typedef struct ListColumn {
  const char *path;
  H5ColumnText text;
} ListColumn;

/* A table with an element of each list a row; the first tells how many there are. */
static void write_lists(H5Writer *writer, const Store *store, const char *group, const char *position,
                        const ListColumn *columns, size_t count) {
  H5Table table;
  ListRows rows = list_rows(store, columns[0].path);
  double *values = vl_allocate((size_t)(rows.count + 1) * sizeof *values);
  vl_h5_table_open(writer, writer->file, group, "row", rows.count, &table);
  write_list_rows(writer, &table, &rows, position);
  for (size_t c = 0; c < count; c++) {
    for (int64_t i = 0; i < rows.count; i++) {
      const json_t *list = json_object_get(vl_store_record(store, rows.cell[i]), columns[c].path);
      const json_t *value = json_array_get(list, (size_t)rows.position[i]);
      values[i] = json_is_number(value) ? json_number_value(value) : NAN;
    }
    vl_h5_reals(writer, &table, columns[c].text, values);
  }
  vl_h5_table_close(&table);
  free(values);
  free_list_rows(&rows);
}

static void write_numbers(H5Writer *writer, const Store *store, const char *group, const char *path,
                          const char *position, H5ColumnText text) {
  write_lists(writer, store, group, position, &(ListColumn){path, text}, 1);
}

/* One row a monitored step. */
static void write_monitors(H5Writer *writer, const Store *store) {
  ListColumn columns[VL_MONITOR_COUNT];
  for (int32_t q = 0; q < VL_MONITOR_COUNT; q++) {
    const MonitorColumn *monitor = &vl_monitors[q];
    columns[q] = (ListColumn){monitor->list, {monitor->column, monitor->unit, monitor->help}};
  }
  write_lists(writer, store, "monitors", "step", columns, VL_MONITOR_COUNT);
}

static void write_scopes(H5Writer *writer, const Store *store) {
  H5Table table;
  ListRows rows = list_rows(store, "scopes");
  const char **names = vl_allocate((size_t)(rows.count + 1) * sizeof *names);
  int64_t *bytes = vl_allocate((size_t)(rows.count + 1) * sizeof *bytes);
  for (int64_t i = 0; i < rows.count; i++) {
    const json_t *list = json_object_get(vl_store_record(store, rows.cell[i]), "scopes");
    const json_t *entry = json_array_get(list, (size_t)rows.position[i]);
    names[i] = vl_record_text(entry, "scope");
    bytes[i] = vl_record_integer(entry, "bytes");
  }
  vl_h5_table_open(writer, writer->file, "scopes", "row", rows.count, &table);
  write_list_rows(writer, &table, &rows, "rank_by_size");
  vl_h5_texts(writer, &table, (H5ColumnText){"scope", "", "layer"}, names);
  vl_h5_integers(writer, &table, (H5ColumnText){"bytes", "bytes", "live at the allocated peak"}, bytes);
  vl_h5_table_close(&table);
  free(names);
  free(bytes);
  free_list_rows(&rows);
}

static const json_t *term_at(const Store *store, const ListRows *rows, int64_t i) {
  const json_t *list = json_object_get(vl_store_record(store, rows->cell[i]), "analytic_terms");
  return json_array_get(list, (size_t)rows->position[i]);
}

static void write_terms(H5Writer *writer, const Store *store) {
  static const H5ColumnText texts[] = {{"category", "", "of memory"}, {"term", "", "what the tensors are"}};
  static const H5ColumnText numbers[] = {
      {"count", "1", "tensors of this kind"},
      {"bytes", "bytes", "of them, dense"},
      {"rounding_bytes", "bytes", "what rounding each up to a block adds"}};
  H5Table table;
  ListRows rows = list_rows(store, "analytic_terms");
  const char **words = vl_allocate((size_t)(rows.count + 1) * sizeof *words);
  int64_t *values = vl_allocate((size_t)(rows.count + 1) * sizeof *values);
  vl_h5_table_open(writer, writer->file, "analytic_terms", "row", rows.count, &table);
  write_list_rows(writer, &table, &rows, "position");
  for (size_t c = 0; c < sizeof texts / sizeof *texts; c++) {
    for (int64_t i = 0; i < rows.count; i++)
      words[i] = vl_record_text(term_at(store, &rows, i), texts[c].name);
    vl_h5_texts(writer, &table, texts[c], words);
  }
  for (size_t c = 0; c < sizeof numbers / sizeof *numbers; c++) {
    for (int64_t i = 0; i < rows.count; i++)
      values[i] = vl_record_integer(term_at(store, &rows, i), numbers[c].name);
    vl_h5_integers(writer, &table, numbers[c], values);
  }
  vl_h5_table_close(&table);
  free(words);
  free(values);
  free_list_rows(&rows);
}

static const json_t *shape_at(const Store *store, const ListRows *rows, int64_t i) {
  const json_t *list = json_object_get(vl_store_record(store, rows->cell[i]), "shapes");
  return json_array_get(list, (size_t)rows->position[i]);
}

static void write_shapes(H5Writer *writer, const Store *store) {
  static const H5ColumnText numbers[] = {{"samples", "1", "of this size in a pass"},
                                         {"batch", "1", "samples of its largest batch"},
                                         {"batches", "1", "of a pass"},
                                         {"peak_allocated_bytes", "bytes", "while its batches ran"},
                                         {"peak_reserved_bytes", "bytes", "while its batches ran"}};
  static const H5ColumnText rates[] = {{"samples_per_s", "1/s", "over the time of its batches"},
                                       {"batch_s", "s", "mean time of a batch"}};
  H5Table table;
  ListRows rows = list_rows(store, "shapes");
  const char **words = vl_allocate((size_t)(rows.count + 1) * sizeof *words);
  int64_t *values = vl_allocate((size_t)(rows.count + 1) * sizeof *values);
  double *reals = vl_allocate((size_t)(rows.count + 1) * sizeof *reals);
  vl_h5_table_open(writer, writer->file, "shapes", "row", rows.count, &table);
  write_list_rows(writer, &table, &rows, "position");
  for (int64_t i = 0; i < rows.count; i++)
    words[i] = vl_record_text(shape_at(store, &rows, i), "shape");
  vl_h5_texts(writer, &table, (H5ColumnText){"shape", "", "size of the samples"}, words);
  for (size_t c = 0; c < sizeof numbers / sizeof *numbers; c++) {
    for (int64_t i = 0; i < rows.count; i++)
      values[i] = vl_record_integer(shape_at(store, &rows, i), numbers[c].name);
    vl_h5_integers(writer, &table, numbers[c], values);
  }
  for (size_t c = 0; c < sizeof rates / sizeof *rates; c++) {
    for (int64_t i = 0; i < rows.count; i++)
      reals[i] = vl_record_real(shape_at(store, &rows, i), rates[c].name);
    vl_h5_reals(writer, &table, rates[c], reals);
  }
  vl_h5_table_close(&table);
  free(words);
  free(values);
  free(reals);
  free_list_rows(&rows);
}

/* ---- Timelines --------------------------------------------------------------------------------------------------- */

/* The whole numbers of an event, as columns. */
typedef struct EventField {
  const char *name, *unit, *help;
  size_t offset;
  bool wide;
  bool late; /* not in the first stores: unknown there */
} EventField;
static const EventField event_fields[] = {
    {"time_ns", "ns", "since the step began", offsetof(TimelineEvent, time_ns), true, false},
    {"action", "1",
     "0 obtain, 1 release, 2 segment reserved, 3 segment released, 4 out of memory, 5 held before, 6 segment "
     "held before, 7 moved from here, 8 to here, 9 a batch ended",
     offsetof(TimelineEvent, action), false, false},
    {"category", "1", "position among the categories", offsetof(TimelineEvent, category), false, false},
    {"bytes", "bytes", "of the block or segment, as rounded", offsetof(TimelineEvent, bytes), true, false},
    {"requested_bytes", "bytes", "as asked for", offsetof(TimelineEvent, requested_bytes), true, true},
    {"allocated_bytes", "bytes", "after the event", offsetof(TimelineEvent, allocated_bytes), true, false},
    {"reserved_bytes", "bytes", "after the event", offsetof(TimelineEvent, reserved_bytes), true, false},
    {"heap_segment", "1", "segment of the heap it lies in, in order of reservation",
     offsetof(TimelineEvent, heap_segment), false, true},
    {"offset", "bytes", "from the beginning of that", offsetof(TimelineEvent, offset), true, true},
    {"stream", "1", "the block belongs to", offsetof(TimelineEvent, stream), false, true},
    {"segment", "1", "0 forward, 1 backward, 2 update", offsetof(TimelineEvent, segment), false, false},
    {"op", "1", "row of the op it belongs to, -1: none", offsetof(TimelineEvent, op), false, true},
};
enum { EVENT_FIELDS = sizeof event_fields / sizeof event_fields[0] };

static int64_t get_field(const TimelineEvent *event, const EventField *field) {
  const char *at = (const char *)event + field->offset;
  return field->wide ? *(const int64_t *)(const void *)at : *(const int32_t *)(const void *)at;
}

static void set_field(TimelineEvent *event, const EventField *field, int64_t value) {
  char *at = (char *)event + field->offset;
  if (field->wide)
    *(int64_t *)(void *)at = value;
  else
    *(int32_t *)(void *)at = (int32_t)value;
}

static void write_timeline(H5Writer *writer, hid_t parent, const char *group, const TimelineEvent *events,
                           int64_t count) {
  H5Table table;
  int64_t *values = vl_allocate((size_t)(count + 1) * sizeof *values);
  const char **texts = vl_allocate((size_t)(count + 1) * sizeof *texts);
  vl_h5_table_open(writer, parent, group, "event", count, &table);
  for (int f = 0; f < EVENT_FIELDS; f++) {
    const EventField *field = &event_fields[f];
    for (int64_t i = 0; i < count; i++)
      values[i] = get_field(&events[i], field);
    vl_h5_integers(writer, &table, (H5ColumnText){field->name, field->unit, field->help}, values);
  }
  for (int64_t i = 0; i < count; i++)
    texts[i] = events[i].category >= 0 && events[i].category < MEMORY_CATEGORY_COUNT
                   ? vl_memory_category_name((MemoryCategory)events[i].category)
                   : NULL;
  vl_h5_texts(writer, &table, (H5ColumnText){"category_name", "", "what the block is for"}, texts);
  for (int64_t i = 0; i < count; i++)
    texts[i] = events[i].name;
  vl_h5_texts(writer, &table, (H5ColumnText){"name", "", "tensor"}, texts);
  for (int64_t i = 0; i < count; i++)
    texts[i] = events[i].scope;
  vl_h5_texts(writer, &table, (H5ColumnText){"scope", "", "layer"}, texts);
  vl_h5_table_close(&table);
  free(values);
  free(texts);
}

Status vl_timeline_write(const char *path, const TimelineEvent *events, int64_t count, const OpRecord *ops,
                         int64_t op_count) {
  H5Writer writer;
  vl_h5_start(&writer);
  write_timeline(&writer, writer.file, "timeline", events, count);
  vl_ops_write(&writer, writer.file, "ops", ops, op_count);
  return vl_h5_finish(&writer, path);
}

static Status read_event_fields(hid_t group, TimelineEvent **events, int64_t *count) {
  for (int f = 0; f < EVENT_FIELDS; f++) {
    int64_t *values, rows;
    if (event_fields[f].late && H5Lexists(group, event_fields[f].name, H5P_DEFAULT) <= 0) {
      for (int64_t i = 0; i < *count; i++)
        set_field(&(*events)[i], &event_fields[f], -1);
      continue;
    }
    VL_TRY(vl_h5_read_integers(group, event_fields[f].name, &values, &rows));
    if (f == 0) {
      *count = rows;
      *events = vl_allocate((size_t)(rows + 1) * sizeof **events);
    }
    for (int64_t i = 0; i < rows && i < *count; i++)
      set_field(&(*events)[i], &event_fields[f], values[i]);
    free(values);
    if (rows != *count) return vl_error(VL_INVALID, "column \"%s\" has another length", event_fields[f].name);
  }
  return vl_ok();
}

static Status read_event_texts(hid_t group, const char *name, size_t offset, TimelineEvent *events,
                               int64_t count) {
  char **texts;
  int64_t rows;
  VL_TRY(vl_h5_read_texts(group, name, &texts, &rows));
  for (int64_t i = 0; i < rows && i < count; i++)
    snprintf((char *)&events[i] + offset, VL_NAME_BYTES, "%s", texts[i]);
  free(texts);
  return rows == count ? vl_ok() : vl_error(VL_INVALID, "column \"%s\" has another length", name);
}

static Status read_timeline(hid_t group, TimelineEvent **events, int64_t *count) {
  VL_TRY(read_event_fields(group, events, count));
  VL_TRY(read_event_texts(group, "name", offsetof(TimelineEvent, name), *events, *count));
  return read_event_texts(group, "scope", offsetof(TimelineEvent, scope), *events, *count);
}

Status vl_timeline_read(const char *path, const char *group_name, TimelineEvent **events, int64_t *count) {
  hid_t file;
  char place[128];
  *events = NULL;
  *count = 0;
  VL_TRY(vl_h5_open(path, &file));
  if (group_name)
    snprintf(place, sizeof place, "timelines/%s", group_name);
  else
    snprintf(place, sizeof place, "timeline");
  hid_t group = H5Gopen2(file, place, H5P_DEFAULT);
  /* In a results.h5 most cells have none. */
  Status status = group_name ? vl_ok() : vl_error(VL_INVALID, "no timeline in it");
  if (group >= 0) {
    status = read_timeline(group, events, count);
    H5Gclose(group);
  }
  H5Fclose(file);
  if (status.code == VL_OK) return status;
  free(*events);
  *events = NULL;
  *count = 0;
  return vl_error(status.code, "%s: %s", path, status.message);
}

/* Of cells that kept their last step, its allocations and its ops. */
static Status write_steps(H5Writer *writer, const Store *store) {
  hid_t timelines = H5Gcreate2(writer->file, "timelines", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  hid_t all_ops = H5Gcreate2(writer->file, "ops", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  Status status = vl_ok();
  for (int64_t i = 0; i < vl_store_count(store) && status.code == VL_OK; i++) {
    const char *key = vl_record_text(vl_store_record(store, i), "cell_key");
    TimelineEvent *events;
    OpRecord *ops = NULL;
    int64_t count, op_count = 0;
    status = vl_store_timeline(store, key, &events, &count);
    if (status.code == VL_OK) status = vl_store_ops(store, key, &ops, &op_count);
    if (status.code == VL_OK && count > 0) write_timeline(writer, timelines, key, events, count);
    if (status.code == VL_OK) vl_ops_write(writer, all_ops, key, ops, op_count);
    free(events);
    free(ops);
  }
  H5Gclose(timelines);
  H5Gclose(all_ops);
  return status;
}

/* ---- The whole file ------------------------------------------------------------------------------------------------ */

static void write_head(H5Writer *writer, const Store *store) {
  const char *key;
  json_t *value;
  json_object_foreach(store->head, key, value) {
    if (json_is_string(value)) vl_h5_text_attribute(writer, writer->file, key, json_string_value(value));
    if (json_is_boolean(value)) vl_h5_integer_attribute(writer, writer->file, key, json_is_true(value));
  }
  char *head = vl_record_format(store->head);
  vl_h5_text_attribute(writer, writer->file, "head_json", head);
  free(head);
  vl_h5_integer_attribute(writer, writer->file, "schema_version", VL_SCHEMA_VERSION);
  vl_h5_integer_attribute(writer, writer->file, "journal_bytes", store->journal_bytes);
}

Status vl_results_write(const Store *store) {
  H5Writer writer;
  vl_h5_start(&writer);
  write_head(&writer, store);
  write_cells(&writer, store);
  write_numbers(&writer, store, "steps", "step_times_s", "step",
                (H5ColumnText){"step_s", "s", "time of a measured step"});
  write_numbers(&writer, store, "losses", "losses", "step",
                (H5ColumnText){"loss", "1", "of every step, warm-up included"});
  write_numbers(
      &writer, store, "dice", "dice", "class",
      (H5ColumnText){"dice", "1", "mean over the held-out volumes in which the class is predicted or true"});
  write_numbers(&writer, store, "step_peaks", "step_peaks_bytes", "step",
                (H5ColumnText){"peak_allocated_bytes", "bytes", "of every step, warm-up included"});
  write_numbers(&writer, store, "live", "live_bytes", "step",
                (H5ColumnText){"allocated_bytes", "bytes", "when a step had ended, warm-up included"});
  write_numbers(&writer, store, "step_reserved", "step_reserved_bytes", "step",
                (H5ColumnText){"peak_reserved_bytes", "bytes", "of every step, warm-up included"});
  write_numbers(&writer, store, "step_fragmentation", "step_fragmentation", "step",
                (H5ColumnText){"fragmentation", "1", "when a step had ended, warm-up included"});
  write_monitors(&writer, store);
  write_numbers(&writer, store, "gradient_sketches", "monitor_gradient_sketch", "position",
                (H5ColumnText){"sum", "1", "of all gradients with signs; 32 a step"});
  write_scopes(&writer, store);
  write_terms(&writer, store);
  write_shapes(&writer, store);
  Status status = write_steps(&writer, store);
  Status finished = vl_h5_finish(&writer, store->results);
  return status.code == VL_OK ? finished : status;
}

bool vl_results_current(const Store *store) {
  hid_t file;
  int64_t bytes = -1;
  if (vl_h5_open(store->results, &file).code != VL_OK) return false;
  bool known = vl_h5_read_integer_attribute(file, "journal_bytes", &bytes).code == VL_OK;
  H5Fclose(file);
  return known && bytes == store->journal_bytes;
}

static Status read_results(Store *store, hid_t file) {
  char *head, **lines;
  int64_t count;
  VL_TRY(vl_h5_read_text_attribute(file, "head_json", &head));
  json_t *json = json_loads(head, JSON_REJECT_DUPLICATES, NULL);
  free(head);
  Status taken = vl_store_take_head(store, json, "attribute \"head_json\"");
  json_decref(json);
  VL_TRY(taken);
  VL_TRY(vl_h5_read_texts(file, "cells/record_json", &lines, &count));
  Status status = vl_ok();
  for (int64_t i = 0; i < count && status.code == VL_OK; i++) {
    json_t *record = json_loads(lines[i], JSON_REJECT_DUPLICATES, NULL);
    status =
        record ? vl_store_remember(store, record) : vl_error(VL_INVALID, "row %lld is damaged", (long long)i);
    json_decref(record);
  }
  free(lines);
  return status;
}

Status vl_results_read(Store *store) {
  hid_t file;
  VL_TRY(vl_h5_open(store->results, &file));
  Status status = read_results(store, file);
  H5Fclose(file);
  if (status.code == VL_OK) return status;
  return vl_error(VL_INVALID, "%s: not a vramlab results file: %s", store->results, status.message);
}
