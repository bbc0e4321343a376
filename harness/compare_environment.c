/* What differs in what two stores ran on. */
#include "harness/compare.h"

#include <string.h>

/* The different values of a column, joined. */
static void values_of(const RecordSet *records, const char *column, char *text, size_t size) {
  json_t *seen = json_object();
  text[0] = '\0';
  for (int32_t i = 0; i < records->count; i++) {
    char number[32];
    const char *value = vl_record_text(records->records[i], column);
    int64_t integer = vl_record_integer(records->records[i], column);
    snprintf(number, sizeof number, "%lld", (long long)integer);
    if (!value) value = integer >= 0 ? number : NULL;
    if (!value || json_object_get(seen, value)) continue;
    json_object_set_new(seen, value, json_true());
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", used ? "; " : "", value);
  }
  json_decref(seen);
  if (!text[0]) snprintf(text, size, "not known");
}

void vl_compare_environments(const RecordSet *base, const RecordSet *now, StoreComparison *comparison) {
  static const char *const columns[] = {"hardware", "memory_bytes", "hostname",     "isa",
                                        "library",  "threads",      "tool_version", "git_commit",
                                        "injected", "graph_refusal"};
  for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
    EnvironmentChange *change = &comparison->environment[comparison->environment_count];
    change->name = columns[i];
    values_of(base, columns[i], change->base, sizeof change->base);
    values_of(now, columns[i], change->now, sizeof change->now);
    if (strcmp(change->base, change->now) != 0) comparison->environment_count++;
  }
}
