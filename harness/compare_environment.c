/* What differs in what two stores ran on: machine, libraries, limits, program, and how the machine was while
 * it measured. */
#include "harness/compare.h"
#include "harness/report_select.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a cell was run on or with. */
static const struct {
  const char *column;
  bool may_be_none; /* nothing there is an answer; of others it means that nobody kept it */
} facts[] = {
    {"hardware", false},        {"memory_bytes", false},   {"mig_profile", true},
    {"power_limit_w", false},   {"clock_max_mhz", false},  {"governor", false},
    {"hostname", false},        {"kernel", false},         {"memory_limit_bytes", true},
    {"processors_limit", true}, {"driver_version", false}, {"isa", false},
    {"library", false},         {"threads", false},        {"compiler", false},
    {"tool_version", false},    {"git_commit", false},     {"injected", true},
    {"graph_refusal", true},
};

/* What varies from one moment to the next: medians over the cells count, beyond a share and an amount. */
static const struct {
  const char *column;
  double share, amount;
} readings[] = {{"clock_mhz", 0.02, 0}, {"memory_clock_mhz", 0.02, 0}, {"temperature_c", 0, 5}};

enum { FACTS = sizeof facts / sizeof *facts, READINGS = sizeof readings / sizeof *readings };
_Static_assert(FACTS + READINGS + 2 <= (int)VL_MAX_ENVIRONMENT, "a comparison has room for all");

static void fact_text(const json_t *record, const char *column, char *text, size_t size) {
  const char *value = vl_record_text(record, column);
  double number = vl_record_real(record, column);
  text[0] = '\0';
  if (value)
    snprintf(text, size, "%s%s", value,
             strcmp(column, "git_commit") == 0 && vl_record_flag(record, "git_dirty") ? " and changes" : "");
  else if (!isnan(number))
    snprintf(text, size, "%.15g", number);
}

static int compare_texts(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The different values of a column, joined, in an order of their own: cells run in a random one. "" when
 * there are none. free() it. */
static char *values_of(const RecordSet *records, const char *column) {
  json_t *seen = json_object(), *ignored;
  const char **values = vl_allocate((size_t)(records->count + 1) * sizeof *values), *value;
  char each[192], *text = NULL;
  size_t count = 0, size = 0;
  for (int32_t i = 0; i < records->count; i++) {
    fact_text(records->records[i], column, each, sizeof each);
    if (*each) json_object_set_new(seen, each, json_true());
  }
  json_object_foreach(seen, value, ignored) values[count++] = value;
  qsort(values, count, sizeof *values, compare_texts);
  FILE *out = open_memstream(&text, &size);
  for (size_t i = 0; i < count; i++)
    fprintf(out, "%s%s", i > 0 ? "; " : "", values[i]);
  fclose(out);
  free(values);
  json_decref(seen);
  return text;
}

/* "none" for nothing; cut where there is no room for all. */
static void show(const char *values, char *text, size_t size) {
  bool fits = strlen(values) < size;
  snprintf(text, size - (fits ? 0 : 3), "%s", *values ? values : "none");
  if (!fits) strcat(text, "...");
}

static EnvironmentChange *next_of(StoreComparison *comparison, const char *name) {
  EnvironmentChange *change = &comparison->environment[comparison->environment_count];
  change->name = name;
  return change;
}

static void compare_facts(const RecordSet *base, const RecordSet *now, StoreComparison *comparison) {
  for (int f = 0; f < FACTS; f++) {
    char *of_base = values_of(base, facts[f].column), *of_now = values_of(now, facts[f].column);
    if (strcmp(of_base, of_now) != 0 && (facts[f].may_be_none || (*of_base && *of_now))) {
      EnvironmentChange *change = next_of(comparison, facts[f].column);
      show(of_base, change->base, sizeof change->base);
      show(of_now, change->now, sizeof change->now);
      comparison->environment_count++;
    }
    free(of_base);
    free(of_now);
  }
}

static double median_of(const RecordSet *records, const char *column) {
  double *values = vl_allocate((size_t)(records->count + 1) * sizeof *values);
  int64_t count = 0;
  for (int32_t i = 0; i < records->count; i++) {
    double value = vl_record_real(records->records[i], column);
    if (!isnan(value)) values[count++] = value;
  }
  double median = vl_statistics_median(values, count);
  free(values);
  return median;
}

static void compare_readings(const RecordSet *base, const RecordSet *now, StoreComparison *comparison) {
  for (int r = 0; r < READINGS; r++) {
    double a = median_of(base, readings[r].column), b = median_of(now, readings[r].column);
    if (!(fabs(b - a) > readings[r].amount && fabs(b - a) > readings[r].share * fabs(a))) continue;
    EnvironmentChange *change = next_of(comparison, readings[r].column);
    snprintf(change->base, sizeof change->base, "%.0f", a);
    snprintf(change->now, sizeof change->now, "%.0f", b);
    comparison->environment_count++;
  }
}

static bool was_disturbed(const json_t *record) { return vl_record_text(record, "disturbed") != NULL; }
static bool was_throttled(const json_t *record) { return vl_record_integer(record, "throttled_steps") > 0; }

/* Measured cells of which something is so. */
static int32_t count_where(const RecordSet *records, bool (*is)(const json_t *), int32_t *measured) {
  int32_t count = 0;
  *measured = 0;
  for (int32_t i = 0; i < records->count; i++) {
    if (vl_record_is_predicted(records->records[i])) continue;
    (*measured)++;
    count += is(records->records[i]);
  }
  return count;
}

static void compare_counts(const char *name, bool (*is)(const json_t *), const RecordSet *base,
                           const RecordSet *now, StoreComparison *comparison) {
  int32_t of_base, of_now;
  int32_t a = count_where(base, is, &of_base), b = count_where(now, is, &of_now);
  if (a == b) return;
  EnvironmentChange *change = next_of(comparison, name);
  snprintf(change->base, sizeof change->base, "%" PRId32 " of %" PRId32 " cells", a, of_base);
  snprintf(change->now, sizeof change->now, "%" PRId32 " of %" PRId32 " cells", b, of_now);
  comparison->environment_count++;
}

void vl_compare_environments(const RecordSet *base, const RecordSet *now, StoreComparison *comparison) {
  compare_facts(base, now, comparison);
  compare_readings(base, now, comparison);
  compare_counts("throttled", was_throttled, base, now, comparison);
  compare_counts("disturbed", was_disturbed, base, now, comparison);
}
