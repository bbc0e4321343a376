/* The history as a screen and as a page: a line a metric, the changes marked. */
#include "harness/export.h"
#include "harness/history.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MARKS = 60, VALUE_BYTES = 64, CHANGE_BYTES = 320 };

static void value_text(const HistoryLine *line, double value, char text[VALUE_BYTES]) {
  const Column *column = vl_column_find(line->metric->column);
  if (strcmp(column->name, "status") == 0)
    snprintf(text, VALUE_BYTES, "%s", value > 0 ? "ok" : "not ok");
  else if (strcmp(column->unit, "bytes") == 0)
    vl_format_bytes((int64_t)value, text, VALUE_BYTES);
  else if (strcmp(column->unit, "s") == 0)
    vl_format_seconds(value, text, VALUE_BYTES);
  else
    snprintf(text, VALUE_BYTES, "%.6g", value);
}

/* "regressed since 2026-11-28 23:00: 31.0 ms -> 33.2 ms, +7.1 % (p 0.001)". */
static void change_text(const History *history, const HistoryLine *line, const HistoryChange *change,
                        char text[CHANGE_BYTES]) {
  char before[VALUE_BYTES], after[VALUE_BYTES], how_much[VALUE_BYTES + 8] = "", sure[32] = "";
  const char *unit = vl_column_find(line->metric->column)->unit;
  value_text(line, change->before, before);
  value_text(line, change->after, after);
  if (strcmp(unit, "bytes") == 0) {
    double by = change->after - change->before;
    snprintf(how_much, sizeof how_much, ", %s", by < 0 ? "-" : "+");
    vl_format_bytes((int64_t)fabs(by), how_much + 3, sizeof how_much - 3);
  } else if (change->before > 0 && strcmp(line->metric->column, "status") != 0) {
    snprintf(how_much, sizeof how_much, ", %+.1f %%", 100 * (change->after / change->before - 1));
  }
  if (!isnan(change->p)) snprintf(sure, sizeof sure, " (p %.2g)", change->p);
  snprintf(text, CHANGE_BYTES, "%s since %s: %s -> %s%s%s", vl_judgement_name(change->judgement),
           history->nights[line->points[change->point].night].when, before, after, how_much, sure);
}

/* The ends of a line's scale. Times never fill it with less than 10 %: noise is to look small. */
static void scale_of(const HistoryLine *line, double *low, double *high) {
  *low = *high = line->points[0].value;
  for (int32_t i = 1; i < line->count; i++) {
    *low = fmin(*low, line->points[i].value);
    *high = fmax(*high, line->points[i].value);
  }
  double least =
      line->metric->by == COMPARE_EXACT || line->metric->by == COMPARE_TEXT ? 0 : 0.1 * fabs(*high);
  if (*high - *low < least) {
    double middle = (*high + *low) / 2;
    *low = middle - least / 2;
    *high = middle + least / 2;
  }
}

static bool injected(const History *history) {
  for (int32_t i = 0; i < history->night_count; i++)
    if (history->nights[i].injected) return true;
  return false;
}

/* ---- The screen -------------------------------------------------------------------------------------------------- */

static void put_marks(const HistoryLine *line, FILE *out) {
  static const char *const marks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  double low, high;
  scale_of(line, &low, &high);
  int32_t first = line->count > MOST_MARKS ? line->count - MOST_MARKS : 0;
  for (int32_t i = first; i < line->count; i++) {
    int at = high > low ? (int)((line->points[i].value - low) / (high - low) * 7 + 0.5) : 0;
    fputs(marks[at], out);
  }
}

static void put_line(const History *history, const HistoryLine *line, const char *name, FILE *out) {
  char text[CHANGE_BYTES];
  value_text(line, line->points[line->count - 1].value, text);
  fprintf(out, "  %-26s ", name);
  put_marks(line, out);
  fprintf(out, "  %s\n", line == &history->machine ? "" : text);
  for (int32_t i = 0; i < line->change_count; i++) {
    change_text(history, line, &line->changes[i], text);
    fprintf(out, "    %s\n", text);
  }
}

void vl_history_term(const History *history, const char *directory, FILE *out) {
  int32_t metric_count, count = vl_history_regressions(history);
  (void)vl_metric_all(&metric_count);
  fprintf(out, "%s: %" PRId32 " stores, %s to %s\n", directory, history->night_count, history->nights[0].when,
          history->nights[history->night_count - 1].when);
  if (injected(history)) fputs("Some cells have faults that were put in on purpose.\n", out);
  if (history->machine.count > 0) {
    fputs("\nAll times together (median over cells; what moves them all is the machine, or code that all "
          "use)\n",
          out);
    put_line(history, &history->machine, "time over its median", out);
  }
  for (int32_t c = 0; c < history->cell_count; c++) {
    const HistoryCell *cell = &history->cells[c];
    fprintf(out, "\n%s\n", cell->text);
    for (int32_t m = 0; m < metric_count; m++)
      if (vl_history_shows(&cell->lines[m]))
        put_line(history, &cell->lines[m], cell->lines[m].metric->column, out);
  }
  fprintf(out, "\n%" PRId32 " lines regressed and did not come back\n", count);
}

/* ---- The page ---------------------------------------------------------------------------------------------------- */

enum { WIDTH = 240, HEIGHT = 34, EDGE = 5 };

static void put_svg(const History *history, const HistoryLine *line, FILE *out) {
  double low, high;
  scale_of(line, &low, &high);
  double across = line->count > 1 ? (double)(WIDTH - 2 * EDGE) / (line->count - 1) : 0;
  double down = high > low ? (HEIGHT - 2 * EDGE) / (high - low) : 0;
  fprintf(out,
          "<svg width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\"><polyline class=\"level\" "
          "points=\"",
          WIDTH, HEIGHT, WIDTH, HEIGHT);
  for (int32_t i = 0; i < line->count; i++)
    fprintf(out, "%s%.1f,%.1f", i ? " " : "", EDGE + across * i,
            HEIGHT - EDGE - down * (line->points[i].value - low));
  fputs("\"/>", out);
  for (int32_t i = 0; i < line->change_count; i++) {
    char text[CHANGE_BYTES];
    const HistoryChange *change = &line->changes[i];
    double x = EDGE + across * change->point,
           y = HEIGHT - EDGE - down * (line->points[change->point].value - low);
    const char *class = vl_judgement_name(change->judgement);
    change_text(history, line, change, text);
    fprintf(out,
            "<line class=\"%s\" x1=\"%.1f\" x2=\"%.1f\" y1=\"0\" y2=\"%d\"/><circle class=\"%s\" cx=\"%.1f\" "
            "cy=\"%.1f\" r=\"3.5\"><title>",
            class, x, x, HEIGHT, class, x, y);
    vl_xml_put(text, out);
    fputs("</title></circle>", out);
  }
  if (line->change_count == 0 && line->count > 0)
    fprintf(out, "<circle class=\"last\" cx=\"%.1f\" cy=\"%.1f\" r=\"2\"/>",
            EDGE + across * (line->count - 1),
            HEIGHT - EDGE - down * (line->points[line->count - 1].value - low));
  fputs("</svg>", out);
}

static void put_row(const History *history, const HistoryLine *line, const char *name, FILE *out) {
  char text[CHANGE_BYTES];
  fprintf(out, "<tr><td>%s</td><td>", name);
  put_svg(history, line, out);
  value_text(line, line->points[line->count - 1].value, text);
  fputs("</td><td class=\"number\">", out);
  vl_xml_put(line == &history->machine ? "" : text, out);
  fprintf(out, "</td><td class=\"number\">%" PRId32 "</td><td>", line->count);
  for (int32_t i = 0; i < line->change_count; i++) {
    change_text(history, line, &line->changes[i], text);
    fprintf(out, "<div class=\"%s\">", vl_judgement_name(line->changes[i].judgement));
    vl_xml_put(text, out);
    fputs("</div>", out);
  }
  fputs("</td></tr>\n", out);
}

static void open_table(const char *title, FILE *out) {
  fputs("<h2>", out);
  vl_xml_put(title, out);
  fputs("</h2>\n<div class=\"table\"><table><thead><tr><th>quantity</th><th>night after night</th><th "
        "class=\"number\">now</th><th class=\"number\">nights</th><th>changes</th></tr></thead><tbody>\n",
        out);
}

static void put_regressed(const History *history, FILE *out) {
  int32_t metric_count;
  (void)vl_metric_all(&metric_count);
  fputs("<h2>Regressed and did not come back</h2>\n<ul>\n", out);
  for (int32_t c = 0; c < history->cell_count; c++)
    for (int32_t m = 0; m < metric_count; m++) {
      const HistoryLine *line = &history->cells[c].lines[m];
      const HistoryChange *change = vl_history_regression(line);
      char text[CHANGE_BYTES];
      if (!change) continue;
      change_text(history, line, change, text);
      fputs("<li>", out);
      vl_xml_put(history->cells[c].text, out);
      fprintf(out, ": <b>%s</b> ", line->metric->column);
      vl_xml_put(text, out);
      fputs("</li>\n", out);
    }
  fputs("</ul>\n", out);
}

/* The look of other reports, copied in. */
static Status put_style(FILE *out) {
  char path[4096], part[4096];
  VL_TRY(vl_shared_path("plots/report.css", path, sizeof path));
  FILE *file = fopen(path, "r");
  if (!file) return vl_error(VL_ENVIRONMENT, "%s: %s", path, strerror(errno));
  for (size_t bytes; (bytes = fread(part, 1, sizeof part, file)) > 0;)
    fwrite(part, 1, bytes, out);
  fclose(file);
  fputs("svg polyline { fill: none; stroke: var(--accent); stroke-width: 1.5; }\n"
        "svg line { stroke-width: 1; stroke-dasharray: 3 2; } svg .last { fill: var(--accent); }\n"
        "svg line.regressed { stroke: var(--bad); } svg circle.regressed { fill: var(--bad); }\n"
        "svg line.improved { stroke: var(--good); } svg circle.improved { fill: var(--good); }\n"
        "svg line.changed { stroke: var(--quiet); } svg circle.changed { fill: var(--quiet); }\n"
        "div.regressed { color: var(--bad); } div.improved { color: var(--good); }\n"
        "tbody td { vertical-align: middle; }\n",
        out);
  return vl_ok();
}

Status vl_history_html(const History *history, const char *directory, FILE *out) {
  int32_t metric_count;
  (void)vl_metric_all(&metric_count);
  fputs("<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta "
        "charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
        "<title>History</title>\n<style>\n",
        out);
  VL_TRY(put_style(out));
  fputs("</style>\n</head>\n<body>\n<main>\n<header><h1>History</h1><p class=\"note\">", out);
  vl_xml_put(directory, out);
  fprintf(out, ": %" PRId32 " stores, %s to %s.%s</p></header>\n", history->night_count,
          history->nights[0].when, history->nights[history->night_count - 1].when,
          injected(history) ? " Some cells have faults that were put in on purpose." : "");
  fputs("<p class=\"note\">A dot marks the first night of a new level. Counts and bytes: any difference. "
        "Times, "
        "and what the operating system adds to memory: E-divisive change points (Matteson &amp; James 2014) "
        "with "
        "at most one order in a hundred as good, and a change of 3 % (memory 2 %); that takes about three of "
        "ten "
        "nights.</p>\n",
        out);
  if (vl_history_regressions(history) > 0)
    put_regressed(history, out);
  else
    fputs("<p>Nothing regressed that did not come back.</p>\n", out);
  if (history->machine.count > 0) {
    open_table("All times together", out);
    put_row(history, &history->machine, "time over its median", out);
    fputs(
        "</tbody></table></div>\n<p class=\"note\">Median over cells: what moves them all is the machine, or "
        "code that all use.</p>\n",
        out);
  }
  for (int32_t c = 0; c < history->cell_count; c++) {
    open_table(history->cells[c].text, out);
    for (int32_t m = 0; m < metric_count; m++)
      if (vl_history_shows(&history->cells[c].lines[m]))
        put_row(history, &history->cells[c].lines[m], history->cells[c].lines[m].metric->column, out);
    fputs("</tbody></table></div>\n", out);
  }
  fputs("</main>\n</body>\n</html>\n", out);
  return vl_ok();
}
