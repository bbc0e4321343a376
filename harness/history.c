#include "harness/history.h"
#include "harness/report.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NIGHTS = 120 };
static const double LEVEL = 0.05; /* of the test for a change */

/* What is followed, whose lower value is the better one. */
static const char *const followed[] = {"step_s", "needed_bytes", "peak_allocated_bytes"};
enum { FOLLOWED = sizeof followed / sizeof *followed };

typedef struct Night {
  char name[128];
  Store *stores[16];
  int32_t store_count;
} Night;

typedef struct Line {
  const json_t *record; /* of the last night that has it */
  double *values;       /* [FOLLOWED][nights]; NaN: none */
} Line;

typedef struct History {
  Night nights[MOST_NIGHTS];
  int32_t night_count;
  Line *lines;
  int32_t count, capacity;
  json_t *index; /* what was asked -> line */
} History;

/* ---- Reading --------------------------------------------------------------------------------------------------- */

static int is_no_dot(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static void open_store(Night *night, const char *path) {
  if (!vl_store_exists(path) || night->store_count == 16) return;
  Store *store = NULL;
  Status status = vl_store_open(path, &store);
  if (status.code == VL_OK)
    night->stores[night->store_count++] = store;
  else
    fprintf(stderr, "vramlab: %s is left out: %s\n", path, status.message);
}

/* A store, or a night's directory of stores. */
static void open_night(History *history, const char *directory, const char *name) {
  char path[4300];
  Night *night = &history->nights[history->night_count];
  snprintf(night->name, sizeof night->name, "%.120s", name);
  snprintf(path, sizeof path, "%s/%s", directory, name);
  open_store(night, path);
  struct dirent **entries;
  int count = night->store_count > 0 ? 0 : scandir(path, &entries, is_no_dot, alphasort);
  for (int i = 0; i < count; i++) {
    char inner[4700];
    snprintf(inner, sizeof inner, "%s/%s", path, entries[i]->d_name);
    open_store(night, inner);
    free(entries[i]);
  }
  if (count > 0) free(entries);
  if (night->store_count > 0) history->night_count++;
}

/* The last nights, where there are more than are shown. */
static Status open_nights(History *history, const char *directory) {
  struct dirent **entries;
  int count = scandir(directory, &entries, is_no_dot, alphasort);
  if (count < 0) return vl_error(VL_INVALID, "%s: %s", directory, strerror(errno));
  for (int i = 0; i < count; i++) {
    if (i >= count - MOST_NIGHTS) open_night(history, directory, entries[i]->d_name);
    free(entries[i]);
  }
  free(entries);
  if (history->night_count >= 2) return vl_ok();
  return vl_error(VL_INVALID, "%s holds %" PRId32 " nights with a store; a history needs two", directory,
                  history->night_count);
}

static Line *line_of(History *history, const json_t *record) {
  char *identity = vl_compare_identity(record);
  json_t *at = json_object_get(history->index, identity);
  if (!at) {
    at = json_integer(history->count);
    json_object_set_new(history->index, identity, at);
    if (history->count == history->capacity) {
      history->capacity = history->capacity ? 2 * history->capacity : 64;
      history->lines = vl_reallocate(history->lines, (size_t)history->capacity * sizeof *history->lines);
    }
    Line *line = &history->lines[history->count++];
    line->values = vl_allocate((size_t)(FOLLOWED * history->night_count) * sizeof *line->values);
    for (int32_t i = 0; i < FOLLOWED * history->night_count; i++)
      line->values[i] = NAN;
  }
  free(identity);
  Line *line = &history->lines[json_integer_value(at)];
  line->record = record;
  return line;
}

/* Of repetitions the median. */
static void fill_night(History *history, int32_t night) {
  for (int32_t s = 0; s < history->nights[night].store_count; s++) {
    RecordSet records = vl_store_records(history->nights[night].stores[s]);
    double *values = vl_allocate((size_t)(records.count + 1) * sizeof *values);
    for (int32_t i = 0; i < records.count; i++) {
      if (!vl_record_has_status(records.records[i], "ok")) continue;
      char *identity = vl_compare_identity(records.records[i]);
      Line *line = line_of(history, records.records[i]);
      for (int32_t f = 0; f < FOLLOWED; f++) {
        double *value = &line->values[f * history->night_count + night];
        int64_t count = 0;
        if (!isnan(*value)) continue; /* an earlier repetition brought all of them */
        for (int32_t j = i; j < records.count; j++) {
          double each = vl_record_real(records.records[j], followed[f]);
          if (!vl_record_has_status(records.records[j], "ok") || isnan(each)) continue;
          char *other = vl_compare_identity(records.records[j]);
          if (strcmp(identity, other) == 0) values[count++] = each;
          free(other);
        }
        *value = vl_statistics_median(values, count);
      }
      free(identity);
    }
    free(values);
    free(records.records);
  }
}

/* ---- Telling --------------------------------------------------------------------------------------------------------- */

/* Eight heights from the lowest to the highest value; a point where a night has none. */
static const char *sparkline(Document *document, const double *values, int32_t count) {
  static const char *const heights[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  double low = INFINITY, high = -INFINITY;
  char text[4 * MOST_NIGHTS + 1] = "";
  for (int32_t i = 0; i < count; i++)
    if (!isnan(values[i])) low = fmin(low, values[i]), high = fmax(high, values[i]);
  /* Less than 1 % is shown flat: a picture of noise helps nobody. */
  double range = fmax(high - low, 0.01 * high);
  for (int32_t i = 0; i < count; i++) {
    int height = isnan(values[i]) ? -1 : range > 0 ? (int)fmin(7, 8 * (values[i] - low) / range) : 0;
    strcat(text, height < 0 ? "·" : heights[height]);
  }
  return vl_document_format(document, "%s", text);
}

static const char *value_text(Document *document, const Column *column, double value) {
  char text[32];
  if (isnan(value)) return "n/a";
  if (strcmp(column->unit, "bytes") == 0)
    vl_format_bytes((int64_t)value, text, sizeof text);
  else
    vl_format_seconds(value, text, sizeof text);
  return vl_document_format(document, "%s", text);
}

typedef struct Change {
  int32_t night; /* the first of the new level; -1: none */
  double share;  /* of the old level */
} Change;

/* The last change of level: for bytes any, for times one that the nights show to be no chance and that is at
 * least what compare calls one. */
static Change last_change(const double *values, int32_t nights, bool exact) {
  double *known = vl_allocate((size_t)(nights + 1) * sizeof *known);
  int32_t *at = vl_allocate((size_t)(nights + 1) * sizeof *at), count = 0;
  Change change = {-1, NAN};
  for (int32_t i = 0; i < nights; i++)
    if (!isnan(values[i])) {
      at[count] = i;
      known[count++] = values[i];
    }
  if (exact) {
    for (int32_t i = 1; i < count; i++)
      if (fabs(known[i] - known[i - 1]) > 0) change = (Change){at[i], known[i] / known[i - 1] - 1};
  } else {
    ChangePoint *points = vl_allocate((size_t)(count + 1) * sizeof *points);
    int64_t found = vl_statistics_change_points(known, count, LEVEL, points);
    for (int64_t p = 0; p < found; p++) {
      int64_t from = p > 0 ? points[p - 1].at : 0, to = p + 1 < found ? points[p + 1].at : count,
              here = points[p].at;
      double share =
          vl_statistics_median(known + here, to - here) / vl_statistics_median(known + from, here - from) - 1;
      if (fabs(share) >= vl_compare_usual().min_change) change = (Change){at[here], share};
    }
    free(points);
  }
  free(known);
  free(at);
  return change;
}

enum { COLUMNS = 6 };

static bool tell_line(const History *history, const Line *line, int32_t f, Document *document,
                      const char **row) {
  const double *values = line->values + f * history->night_count;
  const Column *column = vl_column_find(followed[f]);
  bool exact = strcmp(column->unit, "bytes") == 0 && strcmp(followed[f], "needed_bytes") != 0;
  double first = NAN, last = NAN;
  for (int32_t i = 0; i < history->night_count; i++)
    if (!isnan(values[i])) {
      if (isnan(first)) first = values[i];
      last = values[i];
    }
  Change change = last_change(values, history->night_count, exact);
  char cell[1024];
  vl_compare_cell_text(line->record, cell, sizeof cell);
  row[0] = vl_document_format(document, "%s", cell);
  row[1] = column->name;
  row[2] = sparkline(document, values, history->night_count);
  row[3] = value_text(document, column, first);
  row[4] = value_text(document, column, last);
  bool bad = change.night >= 0 && change.share > 0;
  row[5] = change.night < 0 ? "none"
                            : vl_document_format(document, "%s %+.1f %%, %s %s", bad ? "WORSE" : "better",
                                                 100 * change.share, bad ? "first bad night" : "since",
                                                 history->nights[change.night].name);
  return bad;
}

static Document *tell(const History *history, const char *directory, int32_t *bad) {
  static const TableColumn columns[COLUMNS] = {{"cell", "", false},   {"metric", "", false},
                                               {"nights", "", false}, {"first", "", false},
                                               {"last", "", false},   {"last change", "", false}};
  Document *document = vl_document_create();
  int32_t rows = 0;
  *bad = 0;
  document->title = vl_document_format(document, "vramlab: history of %s", directory);
  document->subtitle =
      vl_document_format(document, "%" PRId32 " nights, %s to %s", history->night_count,
                         history->nights[0].name, history->nights[history->night_count - 1].name);
  const char *told[COLUMNS];
  for (int32_t i = 0; i < history->count; i++)
    for (int32_t f = 0; f < FOLLOWED; f++)
      for (int32_t n = 0; n < history->night_count; n++)
        if (!isnan(history->lines[i].values[f * history->night_count + n])) {
          rows++;
          break;
        }
  Passage *table = vl_document_add(document, PASSAGE_TABLE, true, "Each cell, night after night");
  vl_document_table(document, table, columns, COLUMNS, rows);
  int32_t at = 0;
  for (int pass = 0; pass < 2; pass++) /* what got worse first */
    for (int32_t i = 0; i < history->count; i++)
      for (int32_t f = 0; f < FOLLOWED; f++) {
        bool worse = tell_line(history, &history->lines[i], f, document, told);
        if (strcmp(told[4], "n/a") == 0 || worse != (pass == 0)) continue;
        *bad += worse;
        for (int32_t c = 0; c < COLUMNS; c++)
          table->rows[at][c] = told[c];
        at++;
      }
  vl_document_add(
      document, PASSAGE_NOTE, true,
      "Lines go from the lowest to the highest value; less than 1 % is drawn flat, a point is a night "
      "without "
      "one. Bytes change when they differ; times where E-divisive finds a change of level of at least 3 %.");
  return document;
}

Status vl_history(const char *directory, Document **document, int32_t *bad) {
  History *history = vl_allocate(sizeof *history);
  history->index = json_object();
  Status status = open_nights(history, directory);
  for (int32_t n = 0; n < history->night_count && status.code == VL_OK; n++)
    fill_night(history, n);
  if (status.code == VL_OK) *document = tell(history, directory, bad);
  for (int32_t i = 0; i < history->count; i++)
    free(history->lines[i].values);
  free(history->lines);
  json_decref(history->index);
  for (int32_t n = 0; n < MOST_NIGHTS; n++)
    for (int32_t s = 0; s < history->nights[n].store_count; s++)
      vl_store_close(&history->nights[n].stores[s]);
  free(history);
  return status;
}
