/* Records as tables and lists: CSV, JSON lines, JUnit's XML, Prometheus' text. */
#include "harness/columns.h"
#include "harness/compare.h"
#include "harness/export.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void vl_number_put(double value, const char *otherwise, FILE *out) {
  if (!isfinite(value)) {
    fputs(otherwise, out);
    return;
  }
  json_t *number = json_real(value);
  char *text = json_dumps(number, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
  fputs(text, out);
  free(text);
  json_decref(number);
}

/* ---- CSV: RFC 4180, a row a record, empty where nothing is known ------------------------------------------------- */

static void put_field(const char *text, FILE *out) {
  if (!text) return;
  if (!strpbrk(text, ",\"\r\n")) {
    fputs(text, out);
    return;
  }
  fputc('"', out);
  for (; *text; text++) {
    if (*text == '"') fputc('"', out);
    fputc(*text, out);
  }
  fputc('"', out);
}

static void put_value(const json_t *record, const Column *column, FILE *out) {
  int64_t integer = vl_record_integer(record, column->name);
  switch (column->type) {
  case COLUMN_TEXT: put_field(vl_record_text(record, column->name), out); break;
  case COLUMN_INTEGER:
    if (!isnan(vl_record_real(record, column->name))) fprintf(out, "%" PRId64, integer);
    break;
  case COLUMN_REAL: vl_number_put(vl_record_real(record, column->name), "", out); break;
  case COLUMN_FLAG: fputs(vl_record_flag(record, column->name) ? "true" : "false", out); break;
  }
}

Status vl_export_csv(const ExportInput *input, FILE *out) {
  int32_t count;
  const Column *columns = vl_column_all(&count);
  for (int32_t c = 0; c < count; c++)
    fprintf(out, "%s%s", c ? "," : "", columns[c].name);
  fputs("\r\n", out);
  for (int32_t i = 0; i < input->records.count; i++) {
    for (int32_t c = 0; c < count; c++) {
      if (c) fputc(',', out);
      put_value(input->records.records[i], &columns[c], out);
    }
    fputs("\r\n", out);
  }
  return vl_ok();
}

/* ---- JSON lines -------------------------------------------------------------------------------------------------- */

Status vl_export_jsonl(const ExportInput *input, FILE *out) {
  for (int32_t i = 0; i < input->records.count; i++) {
    char *line = vl_record_format(input->records.records[i]);
    fprintf(out, "%s\n", line);
    free(line);
  }
  return vl_ok();
}

/* ---- JUnit: a test a cell; running out of memory is a result --------------------------------------------------------- */

void vl_xml_put(const char *text, FILE *out) {
  json_t *valid = vl_json_text(text); /* a text that was cut may end within a character */
  for (const char *at = json_string_value(valid); *at; at++)
    switch (*at) {
    case '&': fputs("&amp;", out); break;
    case '<': fputs("&lt;", out); break;
    case '>': fputs("&gt;", out); break;
    case '"': fputs("&quot;", out); break;
    default: fputc((unsigned char)*at < ' ' && *at != '\n' && *at != '\t' ? ' ' : *at, out);
    }
  json_decref(valid);
}

static bool has_status(const json_t *record, const char *const *statuses) {
  for (; *statuses; statuses++)
    if (vl_record_has_status(record, *statuses)) return true;
  return false;
}

Status vl_export_junit(const ExportInput *input, FILE *out) {
  static const char *const failures[] = {"crashed", "timeout", "diverged", NULL};
  static const char *const skips[] = {"skipped", "unsupported", NULL};
  static const char *const properties[] = {"needed_bytes", "peak_allocated_bytes", "peak_reserved_bytes",
                                           "samples_per_s", "step_s"};
  int32_t failed = 0, skipped = 0;
  for (int32_t i = 0; i < input->records.count; i++) {
    failed += has_status(input->records.records[i], failures);
    skipped += has_status(input->records.records[i], skips);
  }
  const char *suite = vl_record_text(vl_store_head(input->store), "suite");
  fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"", out);
  vl_xml_put(suite ? suite : "vramlab", out);
  fprintf(out, "\" tests=\"%" PRId32 "\" failures=\"%" PRId32 "\" errors=\"0\" skipped=\"%" PRId32 "\">\n",
          input->records.count, failed, skipped);
  for (int32_t i = 0; i < input->records.count; i++) {
    const json_t *record = input->records.records[i];
    const char *error = vl_record_text(record, "error"), *status = vl_record_text(record, "status");
    const char *case_name = vl_record_text(record, "case"), *reason = vl_record_text(record, "skip_reason");
    char text[1024];
    vl_compare_cell_text(record, text, sizeof text);
    fputs("  <testcase classname=\"", out);
    vl_xml_put(case_name ? case_name : "cell", out);
    fputs("\" name=\"", out);
    vl_xml_put(text, out);
    fprintf(out, ", repeat %" PRId64 "\" time=\"", vl_record_integer(record, "repeat"));
    vl_number_put(vl_record_real(record, "step_s"), "0", out);
    fputs("\">\n    <properties>\n", out);
    for (size_t p = 0; p < sizeof properties / sizeof *properties; p++) {
      if (isnan(vl_record_real(record, properties[p]))) continue;
      fprintf(out, "      <property name=\"%s\" value=\"", properties[p]);
      put_value(record, vl_column_find(properties[p]), out);
      fputs("\"/>\n", out);
    }
    fprintf(out, "      <property name=\"status\" value=\"%s\"/>\n    </properties>\n",
            status ? status : "unknown");
    bool fails = has_status(record, failures), skips_it = has_status(record, skips);
    if (fails || skips_it) {
      fprintf(out, "    <%s message=\"", fails ? "failure" : "skipped");
      vl_xml_put(error ? error : reason ? reason : status ? status : "", out);
      fputs("\"/>\n", out);
    }
    fputs("  </testcase>\n", out);
  }
  fputs("</testsuite>\n", out);
  return vl_ok();
}

/* ---- Prometheus: gauges for node_exporter's textfile collector, no timestamps ------------------------------------------ */

static void put_label(const char *name, const char *value, const char *before, FILE *out) {
  fprintf(out, "%s%s=\"", before, name);
  for (; value && *value; value++) {
    if (*value == '\\' || *value == '"') fputc('\\', out);
    if (*value == '\n')
      fputs("\\n", out);
    else
      fputc(*value, out);
  }
  fputc('"', out);
}

Status vl_export_prometheus(const ExportInput *input, FILE *out) {
  static const char *const gauges[] = {
      "needed_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "peak_driver_bytes",
      "step_s",       "samples_per_s"};
  static const char *const labels[] = {"case",     "settings", "recipe", "device",
                                       "hardware", "suite",    "status", "cell_key"};
  for (size_t g = 0; g < sizeof gauges / sizeof *gauges; g++) {
    const Column *column = vl_column_find(gauges[g]);
    /* Prometheus wants base units at the end of a name. */
    const char *name = strcmp(column->unit, "s") == 0     ? "step_seconds"
                       : strcmp(column->unit, "1/s") == 0 ? "samples_per_second"
                                                          : column->name;
    fprintf(out, "# HELP vramlab_%s %s\n# TYPE vramlab_%s gauge\n", name, column->help, name);
    for (int32_t i = 0; i < input->records.count; i++) {
      const json_t *record = input->records.records[i];
      if (isnan(vl_record_real(record, column->name))) continue;
      fprintf(out, "vramlab_%s", name);
      for (size_t l = 0; l < sizeof labels / sizeof *labels; l++)
        put_label(labels[l], vl_record_text(record, labels[l]), l ? "," : "{", out);
      fprintf(out, ",batch=\"%" PRId64 "\"} ", vl_record_integer(record, "global_batch"));
      put_value(record, column, out);
      fputc('\n', out);
    }
  }
  return vl_ok();
}
