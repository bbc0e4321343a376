/* A comparison as text, JSON and JUnit's XML. */
#include "harness/columns.h"
#include "harness/compare_ops.h"
#include "harness/export.h"
#include "harness/report_select.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void vl_compare_cell_text(const json_t *record, char *text, size_t size) {
  char workload[256], name[512], device[256], capacity[64] = "";
  Workload of = vl_record_workload(record);
  int64_t capacity_bytes = vl_record_integer(record, "capacity_bytes");
  const char *kind = vl_record_text(record, "kind");
  bool searched = kind && strcmp(kind, "max-batch") == 0;
  vl_workload_text(&of, workload, sizeof workload);
  vl_record_name(record, name, sizeof name);
  vl_device_text(record, device, sizeof device);
  if (capacity_bytes > 0) {
    snprintf(capacity, sizeof capacity, " in ");
    vl_format_bytes(capacity_bytes, capacity + 4, sizeof capacity - 4);
  }
  if (searched)
    snprintf(text, size, "largest batch of %s%s on %s: %s", workload, capacity, device, name);
  else
    snprintf(text, size, "%s batch %" PRId64 "%s on %s: %s", workload, vl_record_batch(record), capacity,
             device, name);
}

/* ---- Text ------------------------------------------------------------------------------------------------------ */

static void number_text(const Column *column, double value, char *text, size_t size) {
  if (isnan(value))
    snprintf(text, size, "n/a");
  else if (strcmp(column->unit, "bytes") == 0)
    snprintf(text, size, "%.0f", value);
  else if (strcmp(column->unit, "s") == 0)
    vl_format_seconds(value, text, size);
  else
    snprintf(text, size, "%.9g", value);
}

/* "+1.000 MiB", "+5.1 % [+4.6, +5.7]". */
static void change_text(const Column *column, const Difference *difference, char *text, size_t size) {
  text[0] = '\0';
  bool known = !isnan(difference->base) && !isnan(difference->now);
  if (difference->metric->by == COMPARE_TEXT) return;
  if (known && strcmp(column->unit, "bytes") == 0) {
    double change = difference->now - difference->base;
    snprintf(text, size, "%s", change < 0 ? "-" : "+");
    vl_format_bytes((int64_t)fabs(change), text + 1, size - 1);
  } else if (!isnan(difference->ratio.low) && difference->ratio.value > 0) {
    snprintf(text, size, "%+.1f %% [%+.1f, %+.1f]", 100 * (difference->ratio.value - 1),
             100 * (difference->ratio.low - 1), 100 * (difference->ratio.high - 1));
  } else if (known && fabs(difference->base) > 0) {
    snprintf(text, size, "%+.2g %%", 100 * (difference->now / difference->base - 1));
  }
}

static void print_difference(const Difference *difference, FILE *out) {
  const Column *column = vl_column_find(difference->metric->column);
  char base[64], now[64], change[96];
  number_text(column, difference->base, base, sizeof base);
  number_text(column, difference->now, now, sizeof now);
  if (difference->metric->by == COMPARE_TEXT) {
    snprintf(base, sizeof base, "%.60s", difference->base_text);
    snprintf(now, sizeof now, "%.60s", difference->now_text);
  }
  change_text(column, difference, change, sizeof change);
  fprintf(out, "    %-9s  %-26s ", vl_judgement_name(difference->judgement), column->name);
  if (difference->ratio.value > 0 &&
      isnan(difference->base)) /* of all cells: they have no time of their own */
    fputs(change, out);
  else
    fprintf(out, "%s -> %s%s%s", base, now, *change ? "  " : "", change);
  if (*difference->evidence) fprintf(out, "  (%s", difference->evidence);
  if (*difference->evidence && !isnan(difference->p)) fprintf(out, ", p %.2g", difference->p);
  fprintf(out, "%s\n", *difference->evidence ? ")" : "");
}

/* Where in the model: of a time only where it changed, since that of one step always differs a little. */
static void print_places(const CellComparison *cell, bool all, FILE *out) {
  bool times = all, memory = all;
  for (int32_t i = 0; i < cell->count; i++) {
    const Difference *difference = &cell->differences[i];
    bool changed = difference->judgement >= JUDGED_CHANGED;
    const char *unit = vl_column_find(difference->metric->column)->unit;
    times = times || (changed && difference->metric->by == COMPARE_TIME);
    memory = memory || (changed && strcmp(unit, "bytes") == 0);
  }
  vl_compare_print_ops(cell, times, memory, out);
}

static void print_cell(const CellComparison *cell, bool all, FILE *out) {
  char text[1024];
  vl_compare_cell_text(cell->now, text, sizeof text);
  fprintf(out, "  %s\n", text);
  for (int32_t i = 0; i < cell->count; i++)
    if (all || cell->differences[i].judgement != JUDGED_SAME) print_difference(&cell->differences[i], out);
  print_places(cell, all, out);
}

static void print_names(const char *title, const json_t *const *records, int32_t count, FILE *out) {
  char text[1024];
  if (count == 0) return;
  fprintf(out, "\n%s\n", title);
  for (int32_t i = 0; i < count; i++) {
    vl_compare_cell_text(records[i], text, sizeof text);
    fprintf(out, "  %s\n", text);
  }
}

void vl_compare_print(const StoreComparison *comparison, bool all, FILE *out) {
  static const Judgement order[] = {JUDGED_WORSE, JUDGED_BETTER, JUDGED_CHANGED, JUDGED_UNCLEAR, JUDGED_SAME};
  static const char *const titles[] = {"Regressed", "Improved", "Changed", "Unclear", "Same"};
  fputs(comparison->environment_count ? "Environment\n" : "Environment: the same\n", out);
  for (int32_t i = 0; i < comparison->environment_count; i++)
    fprintf(out, "  %-18s %s -> %s\n", comparison->environment[i].name, comparison->environment[i].base,
            comparison->environment[i].now);
  vl_compare_print_implementations(comparison, out);
  for (size_t j = 0; j < sizeof order / sizeof *order; j++) {
    if (comparison->judged[order[j]] == 0 || (order[j] == JUDGED_SAME && !all)) continue;
    fprintf(out, "\n%s\n", titles[j]);
    for (int32_t i = 0; i < comparison->count; i++)
      if (comparison->cells[i].judgement == order[j]) print_cell(&comparison->cells[i], all, out);
  }
  print_names("Vanished: in the base alone", comparison->vanished, comparison->vanished_count, out);
  print_names("New: nothing to compare with", comparison->added, comparison->added_count, out);
  if (*comparison->together.evidence) {
    fputs("\nAll cells together\n", out);
    print_difference(&comparison->together, out);
  } else if (!isnan(comparison->machine_ratio)) {
    fprintf(out,
            "\nAll times together: %+.1f %% (median over cells; what moves them all is the machine, or code "
            "that all use)\n",
            100 * (comparison->machine_ratio - 1));
  }
  fprintf(out, "\n%s: ", vl_compare_regressed(comparison) ? "REGRESSED" : "No regression");
  for (size_t j = 0; j < sizeof order / sizeof *order; j++)
    fprintf(out, "%s%" PRId32 " %s", j ? ", " : "", comparison->judged[order[j]],
            vl_judgement_name(order[j]));
  if (comparison->vanished_count) fprintf(out, ", %" PRId32 " vanished", comparison->vanished_count);
  if (comparison->added_count) fprintf(out, ", %" PRId32 " new", comparison->added_count);
  fputs("\n", out);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

static json_t *real_or_null(double value) {
  json_t *json = vl_json_real(value);
  return json ? json : json_null();
}

static json_t *value_of(const Difference *difference, double number, const char *text) {
  return difference->metric->by == COMPARE_TEXT ? vl_json_text(text) : real_or_null(number);
}

static json_t *difference_json(const Difference *difference) {
  static const char *const better[] = {"neither", "lower", "higher"};
  const Column *column = vl_column_find(difference->metric->column);
  json_t *json =
      json_pack("{ss ss ss ss so so}", "metric", column->name, "unit", column->unit, "better",
                better[difference->metric->better], "judgement", vl_judgement_name(difference->judgement),
                "base", value_of(difference, difference->base, difference->base_text), "new",
                value_of(difference, difference->now, difference->now_text));
  if (!*difference->evidence) return json;
  json_object_set_new(json, "evidence", vl_json_text(difference->evidence));
  json_object_set_new(json, "ratio", real_or_null(difference->ratio.value));
  json_object_set_new(json, "ratio_low", real_or_null(difference->ratio.low));
  json_object_set_new(json, "ratio_high", real_or_null(difference->ratio.high));
  json_object_set_new(json, "p", real_or_null(difference->p));
  return json;
}

static json_t *names_json(const json_t *const *records, int32_t count) {
  json_t *list = json_array();
  char text[1024];
  for (int32_t i = 0; i < count; i++) {
    vl_compare_cell_text(records[i], text, sizeof text);
    json_array_append_new(list, json_pack("{so ss}", "cell", vl_json_text(text), "cell_key",
                                          vl_record_text(records[i], "cell_key")));
  }
  return list;
}

json_t *vl_compare_json(const StoreComparison *comparison) {
  json_t *json = json_object(), *environment = json_object(), *cells = json_array(), *summary = json_object();
  for (int32_t i = 0; i < comparison->environment_count; i++)
    json_object_set_new(environment, comparison->environment[i].name,
                        json_pack("{so so}", "base", vl_json_text(comparison->environment[i].base), "new",
                                  vl_json_text(comparison->environment[i].now)));
  for (int32_t i = 0; i < comparison->count; i++) {
    const CellComparison *cell = &comparison->cells[i];
    char text[1024];
    json_t *differences = json_array();
    vl_compare_cell_text(cell->now, text, sizeof text);
    for (int32_t k = 0; k < cell->count; k++)
      json_array_append_new(differences, difference_json(&cell->differences[k]));
    json_array_append_new(cells, json_pack("{so ss ss so so so}", "cell", vl_json_text(text), "cell_key",
                                           vl_record_text(cell->now, "cell_key"), "judgement",
                                           vl_judgement_name(cell->judgement), "differences", differences,
                                           "held", vl_compare_held_json(cell), "ops",
                                           cell->ops ? vl_compare_ops_json(cell->ops) : json_null()));
  }
  for (int j = JUDGED_SAME; j <= JUDGED_WORSE; j++)
    json_object_set_new(summary, vl_judgement_name((Judgement)j), json_integer(comparison->judged[j]));
  json_object_set_new(summary, "vanished", json_integer(comparison->vanished_count));
  json_object_set_new(summary, "new", json_integer(comparison->added_count));
  json_object_set_new(summary, "machine_ratio", real_or_null(comparison->machine_ratio));
  if (*comparison->together.evidence)
    json_object_set_new(summary, "together", difference_json(&comparison->together));
  json_object_set_new(summary, "regression", json_boolean(vl_compare_regressed(comparison)));
  json_object_set_new(json, "summary", summary);
  json_object_set_new(json, "environment", environment);
  json_object_set_new(json, "cells", cells);
  json_object_set_new(json, "vanished", names_json(comparison->vanished, comparison->vanished_count));
  json_object_set_new(json, "new", names_json(comparison->added, comparison->added_count));
  return json;
}

/* ---- JUnit ------------------------------------------------------------------------------------------------------ */

static void put_differences(const CellComparison *cell, Judgement judgement, FILE *out) {
  char *text = NULL;
  size_t size = 0;
  FILE *memory = open_memstream(&text, &size);
  for (int32_t k = 0; k < cell->count; k++)
    if (cell->differences[k].judgement == judgement) print_difference(&cell->differences[k], memory);
  if (judgement == JUDGED_WORSE) print_places(cell, false, memory);
  fclose(memory);
  vl_xml_put(text, out);
  free(text);
}

static void put_together(const Difference *difference, FILE *out) {
  const char *element = difference->judgement == JUDGED_WORSE     ? "failure"
                        : difference->judgement == JUDGED_UNCLEAR ? "skipped"
                                                                  : NULL;
  fputs("  <testcase classname=\"all\" name=\"all cells together\">", out);
  if (element) {
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    print_difference(difference, memory);
    fclose(memory);
    fprintf(out, "<%s message=\"%s\">", element, vl_judgement_name(difference->judgement));
    vl_xml_put(text, out);
    fprintf(out, "</%s>", element);
    free(text);
  }
  fputs("</testcase>\n", out);
}

/* Of a suite what differs around it: JUnit's properties come before its tests, its output behind them. */
static void put_environment(const StoreComparison *comparison, FILE *out) {
  if (comparison->environment_count == 0) return;
  fputs("  <properties>\n", out);
  for (int32_t i = 0; i < comparison->environment_count; i++) {
    const EnvironmentChange *change = &comparison->environment[i];
    fprintf(out, "    <property name=\"environment.%s\" value=\"", change->name);
    vl_xml_put(change->base, out);
    fputs(" -&gt; ", out);
    vl_xml_put(change->now, out);
    fputs("\"/>\n", out);
  }
  fputs("  </properties>\n", out);
}

static void put_implementations(const StoreComparison *comparison, FILE *out) {
  char *text = NULL;
  size_t size = 0;
  FILE *memory = open_memstream(&text, &size);
  vl_compare_print_implementations(comparison, memory);
  fclose(memory);
  if (size > 0) {
    fputs("  <system-out>", out);
    vl_xml_put(text, out);
    fputs("</system-out>\n", out);
  }
  free(text);
}

void vl_compare_junit(const StoreComparison *comparison, FILE *out) {
  bool together = *comparison->together.evidence != '\0';
  int32_t of_all[JUDGED_WORSE + 1] = {0};
  of_all[comparison->together.judgement] = together;
  fprintf(out,
          "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"vramlab compare\" tests=\"%" PRId32
          "\" failures=\"%" PRId32 "\" errors=\"0\" skipped=\"%" PRId32 "\">\n",
          comparison->count + comparison->vanished_count + together,
          comparison->judged[JUDGED_WORSE] + of_all[JUDGED_WORSE],
          comparison->judged[JUDGED_UNCLEAR] + of_all[JUDGED_UNCLEAR] + comparison->vanished_count);
  put_environment(comparison, out);
  for (int32_t i = 0; i < comparison->count + comparison->vanished_count; i++) {
    bool gone = i >= comparison->count;
    const CellComparison *cell = gone ? NULL : &comparison->cells[i];
    const json_t *record = gone ? comparison->vanished[i - comparison->count] : cell->now;
    char text[1024];
    vl_compare_cell_text(record, text, sizeof text);
    fputs("  <testcase classname=\"", out);
    vl_xml_put(vl_record_text(record, "case") ? vl_record_text(record, "case") : "cell", out);
    fputs("\" name=\"", out);
    vl_xml_put(text, out);
    fputs("\">", out);
    if (gone) {
      fputs("<skipped message=\"vanished: in the base alone\"/>", out);
    } else if (cell->judgement == JUDGED_WORSE) {
      fputs("<failure message=\"regressed\">", out);
      put_differences(cell, JUDGED_WORSE, out);
      fputs("</failure>", out);
    } else if (cell->judgement == JUDGED_UNCLEAR) {
      fputs("<skipped message=\"", out);
      put_differences(cell, JUDGED_UNCLEAR, out);
      fputs("\"/>", out);
    }
    fputs("</testcase>\n", out);
  }
  if (together) put_together(&comparison->together, out);
  put_implementations(comparison, out);
  fputs("</testsuite>\n", out);
}
