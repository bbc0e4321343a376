#include "harness/history.h"
#include "harness/report.h"
#include "harness/report_select.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DEEPEST = 3, MACHINE_CELLS = 5 };
/* One in a hundred: a report of a hundred cells that did not change names one at most, and it has to change
 * by the least that counts as well. Three of ten nights reach it, two do not. */
static const double LEVEL = 0.01;

/* ---- Changes of a line ------------------------------------------------------------------------------------------ */

static double level_of(const HistoryLine *line, int64_t from, int64_t to) {
  double *values = vl_allocate((size_t)(to - from + 1) * sizeof *values);
  for (int64_t i = from; i < to; i++)
    values[i - from] = line->points[i].value;
  double median = vl_statistics_median(values, to - from);
  free(values);
  return median;
}

static bool differs(const HistoryLine *line, bool exact, double before, double after) {
  double share = exact                              ? 0
                 : line->metric->by == COMPARE_TIME ? vl_compare_usual().min_change
                                                    : VL_MARGIN_PERCENT / 100.0;
  return fabs(after - before) > share * fabs(before);
}

static Judgement judgement_of(const Metric *metric, double before, double after) {
  bool status = strcmp(metric->column, "status") == 0;
  if (metric->better == BETTER_NEITHER && !status) return JUDGED_CHANGED;
  return (after > before) == (metric->better == BETTER_LOWER) ? JUDGED_WORSE : JUDGED_BETTER;
}

static int64_t exact_changes(const HistoryLine *line, ChangePoint *points) {
  int64_t count = 0;
  for (int32_t i = 1; i < line->count; i++)
    if (line->points[i].value < line->points[i - 1].value ||
        line->points[i].value > line->points[i - 1].value)
      points[count++] = (ChangePoint){.at = i, .p = NAN};
  return count;
}

/* Times are compared by their logarithms: 5 % are 5 % at any length. */
static int64_t likely_changes(const HistoryLine *line, ChangePoint *points) {
  double *values = vl_allocate((size_t)(line->count + 1) * sizeof *values);
  bool positive = true;
  for (int32_t i = 0; i < line->count; i++)
    positive = positive && line->points[i].value > 0;
  for (int32_t i = 0; i < line->count; i++)
    values[i] = positive ? log(line->points[i].value) : line->points[i].value;
  int64_t count = vl_statistics_change_points(values, line->count, LEVEL, points);
  free(values);
  return count;
}

static void add_change(HistoryLine *line, const HistoryChange *change) {
  if (line->change_count == VL_MOST_CHANGES) {
    memmove(line->changes, line->changes + 1, (VL_MOST_CHANGES - 1) * sizeof *line->changes);
    line->change_count--;
  }
  line->changes[line->change_count++] = *change;
}

void vl_history_judge(HistoryLine *line, bool exact) {
  ChangePoint *points = vl_allocate((size_t)(line->count + 1) * sizeof *points);
  int64_t count = exact ? exact_changes(line, points) : likely_changes(line, points), from = 0;
  line->change_count = 0;
  for (int64_t i = 0; i < count; i++) {
    int64_t end = i + 1 < count ? points[i + 1].at : line->count;
    double before = level_of(line, from, points[i].at), after = level_of(line, points[i].at, end);
    if (!differs(line, exact, before, after)) continue; /* one level with what came before */
    HistoryChange change = {(int32_t)points[i].at, judgement_of(line->metric, before, after), before, after,
                            points[i].p};
    add_change(line, &change);
    from = points[i].at;
  }
  free(points);
}

const HistoryChange *vl_history_regression(const HistoryLine *line) {
  if (line->change_count == 0) return NULL;
  double last = line->changes[line->change_count - 1].after;
  for (int32_t i = line->change_count - 1; i >= 0; i--) {
    const HistoryChange *change = &line->changes[i];
    if (change->judgement != JUDGED_WORSE) continue;
    bool still = judgement_of(line->metric, change->before, last) == JUDGED_WORSE &&
                 fabs(last - change->before) > 0.5 * fabs(change->after - change->before);
    if (still) return change;
  }
  return NULL;
}

int32_t vl_history_regressions(const History *history) {
  int32_t metric_count, count = 0;
  (void)vl_metric_all(&metric_count);
  for (int32_t c = 0; c < history->cell_count; c++)
    for (int32_t m = 0; m < metric_count; m++)
      count += vl_history_regression(&history->cells[c].lines[m]) != NULL;
  return count;
}

bool vl_history_shows(const HistoryLine *line) {
  const char *column = line->metric->column;
  bool headline = strcmp(column, "step_s") == 0 || strcmp(column, "needed_bytes") == 0;
  return line->count > 0 && (headline || line->change_count > 0);
}

/* ---- Finding stores ----------------------------------------------------------------------------------------------- */

static void add_night(History *history, const char *path) {
  history->nights =
      vl_reallocate(history->nights, (size_t)(history->night_count + 1) * sizeof *history->nights);
  HistoryNight *night = &history->nights[history->night_count++];
  *night = (HistoryNight){.injected = false};
  snprintf(night->path, sizeof night->path, "%s", path);
}

static Status find_stores(const char *directory, int depth, History *history) {
  if (vl_store_exists(directory)) {
    add_night(history, directory);
    return vl_ok();
  }
  DIR *listing = opendir(directory);
  if (!listing)
    return vl_error(depth == 0 ? VL_INVALID : VL_ENVIRONMENT, "%s: %s", directory, strerror(errno));
  Status status = vl_ok();
  for (struct dirent *entry; status.code == VL_OK && (entry = readdir(listing));) {
    char path[1024];
    struct stat facts;
    if (entry->d_name[0] == '.' || depth == DEEPEST) continue;
    if (snprintf(path, sizeof path, "%s/%s", directory, entry->d_name) >= (int)sizeof path) continue;
    if (lstat(path, &facts) == 0 && S_ISDIR(facts.st_mode)) status = find_stores(path, depth + 1, history);
  }
  closedir(listing);
  return status;
}

static int by_time(const void *a, const void *b) {
  const HistoryNight *one = a, *other = b;
  int order = strcmp(one->when, other->when);
  return order != 0 ? order : strcmp(one->path, other->path);
}

/* Opens each store once for its date, so that nights are in order whatever they are called. */
static Status date_nights(History *history) {
  for (int32_t i = 0; i < history->night_count; i++) {
    Store *store;
    VL_TRY(vl_store_open(history->nights[i].path, &store));
    const char *created = vl_record_text(vl_store_head(store), "created_utc");
    HistoryNight *night = &history->nights[i];
    snprintf(night->when, sizeof night->when, "%.16s", created ? created : "unknown");
    if (night->when[10] == 'T') night->when[10] = ' ';
    vl_store_close(&store);
  }
  qsort(history->nights, (size_t)history->night_count, sizeof *history->nights, by_time);
  return vl_ok();
}

/* ---- Reading -------------------------------------------------------------------------------------------------------- */

/* A cell on a machine: times of two machines are two lines. */
static HistoryCell *cell_of(History *history, json_t *index, const json_t *record) {
  static const char *const machine[] = {"hardware", "hostname"};
  char *identity = vl_compare_identity(record), key[4096];
  const char *on[2];
  for (int i = 0; i < 2; i++)
    on[i] = vl_record_text(record, machine[i]);
  bool predicted = vl_record_is_predicted(record);
  snprintf(key, sizeof key, "%s|%s|%s|%lld", predicted || !on[0] ? "" : on[0],
           predicted || !on[1] ? "" : on[1], identity, (long long)vl_record_integer(record, "threads"));
  free(identity);
  json_t *at = json_object_get(index, key);
  int32_t metric_count;
  const Metric *metrics = vl_metric_all(&metric_count);
  if (!at) {
    history->cells =
        vl_reallocate(history->cells, (size_t)(history->cell_count + 1) * sizeof *history->cells);
    HistoryCell *cell = &history->cells[history->cell_count];
    *cell = (HistoryCell){.predicted = predicted,
                          .lines = vl_allocate((size_t)metric_count * sizeof *cell->lines)};
    for (int32_t m = 0; m < metric_count; m++)
      cell->lines[m] = (HistoryLine){.metric = &metrics[m]};
    at = json_integer(history->cell_count++);
    json_object_set_new(index, key, at);
  }
  HistoryCell *cell = &history->cells[json_integer_value(at)];
  vl_compare_cell_text(record, cell->text, sizeof cell->text);
  return cell;
}

static double value_of(const Metric *metric, const json_t *record) {
  if (strcmp(metric->column, "status") == 0) return vl_record_has_status(record, "ok") ? 1 : 0;
  return metric->by == COMPARE_TEXT ? NAN : vl_record_real(record, metric->column);
}

static void add_point(HistoryLine *line, int32_t night, double value) {
  line->points = vl_reallocate(line->points, (size_t)(line->count + 1) * sizeof *line->points);
  line->points[line->count++] = (HistoryPoint){night, value};
}

/* Every repetition is a point, until the night is over: then its times are their median, and others the
 * largest (of a status the worst). */
static void close_night(HistoryLine *line, int32_t night) {
  int32_t first = line->count;
  while (first > 0 && line->points[first - 1].night == night)
    first--;
  if (line->count - first < 2) return;
  double value = level_of(line, first, line->count);
  bool status = strcmp(line->metric->column, "status") == 0;
  for (int32_t i = first; line->metric->by != COMPARE_TIME && i < line->count; i++) {
    double each = line->points[i].value;
    if (i == first || (status ? each < value : each > value)) value = each;
  }
  line->points[first].value = value;
  line->count = first + 1;
}

static Status read_night(History *history, json_t *index, int32_t night) {
  Store *store;
  int32_t metric_count;
  const Metric *metrics = vl_metric_all(&metric_count);
  VL_TRY(vl_store_open(history->nights[night].path, &store));
  for (int64_t i = 0; i < vl_store_count(store); i++) {
    const json_t *record = vl_store_record(store, i);
    HistoryCell *cell = cell_of(history, index, record);
    if (vl_record_text(record, "injected")) history->nights[night].injected = true;
    for (int32_t m = 0; m < metric_count; m++) {
      double value = value_of(&metrics[m], record);
      if (!isnan(value)) add_point(&cell->lines[m], night, value);
    }
  }
  for (int32_t c = 0; c < history->cell_count; c++)
    for (int32_t m = 0; m < metric_count; m++)
      close_night(&history->cells[c].lines[m], night);
  vl_store_close(&store);
  return vl_ok();
}

static int32_t time_metric(void) {
  int32_t count, at = 0;
  const Metric *metrics = vl_metric_all(&count);
  while (at < count && strcmp(metrics[at].column, "step_s") != 0)
    at++;
  return at;
}

/* What all cells of a night have in common is the machine, or code that all use. */
static void judge_machine(History *history) {
  int32_t at = time_metric(), metric_count;
  double *ratios = vl_allocate((size_t)(history->cell_count + 1) * sizeof *ratios);
  history->machine = (HistoryLine){.metric = &vl_metric_all(&metric_count)[at]};
  for (int32_t night = 0; night < history->night_count; night++) {
    int64_t count = 0;
    for (int32_t c = 0; c < history->cell_count; c++) {
      const HistoryLine *line = &history->cells[c].lines[at];
      for (int32_t i = 0; !history->cells[c].predicted && i < line->count; i++)
        if (line->points[i].night == night)
          ratios[count++] = line->points[i].value / level_of(line, 0, line->count);
    }
    if (count >= MACHINE_CELLS) add_point(&history->machine, night, vl_statistics_median(ratios, count));
  }
  vl_history_judge(&history->machine, false);
  free(ratios);
}

Status vl_history_load(const char *directory, History *history) {
  *history = (History){0};
  VL_TRY(find_stores(directory, 0, history));
  if (history->night_count == 0)
    return vl_error(VL_INVALID,
                    "%s: no store in it, nor %d folders below; one is made by vramlab run SUITE -o",
                    directory, DEEPEST);
  VL_TRY(date_nights(history));
  json_t *index = json_object();
  Status status = vl_ok();
  for (int32_t i = 0; i < history->night_count && status.code == VL_OK; i++)
    status = read_night(history, index, i);
  json_decref(index);
  VL_TRY(status);
  int32_t metric_count;
  (void)vl_metric_all(&metric_count);
  for (int32_t c = 0; c < history->cell_count; c++)
    for (int32_t m = 0; m < metric_count; m++) {
      HistoryLine *line = &history->cells[c].lines[m];
      bool varies = line->metric->by == COMPARE_TIME || line->metric->by == COMPARE_MARGIN;
      vl_history_judge(line, history->cells[c].predicted || !varies);
    }
  judge_machine(history);
  return vl_ok();
}

void vl_history_free(History *history) {
  int32_t metric_count;
  (void)vl_metric_all(&metric_count);
  for (int32_t c = 0; c < history->cell_count; c++) {
    for (int32_t m = 0; m < metric_count; m++)
      free(history->cells[c].lines[m].points);
    free(history->cells[c].lines);
  }
  free(history->cells);
  free(history->machine.points);
  free(history->nights);
  *history = (History){0};
}
