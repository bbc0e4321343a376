/* Which cells of a store kept a timeline. */
#include "harness/harness.h"

#include <stdlib.h>
#include <string.h>

void vl_store_cell_text(const json_t *record, char *text, size_t size) {
  const char *case_name = vl_record_text(record, "case"), *recipe = vl_record_text(record, "recipe");
  const char *device = vl_record_text(record, "device_name");
  snprintf(text, size, "%s, batch %lld, %s, %s", case_name ? case_name : "?",
           (long long)vl_record_integer(record, "global_batch"), recipe ? recipe : "baseline",
           device ? device : "?");
}

Status vl_store_find_timeline(const Store *store, const char *prefix, TimelineEvent **events, int64_t *count,
                              const json_t **record) {
  char list[400] = "";
  int32_t found = 0;
  *events = NULL;
  *count = 0;
  for (int64_t i = 0; i < vl_store_count(store); i++) {
    const json_t *candidate = vl_store_record(store, i);
    const char *key = vl_record_text(candidate, "cell_key");
    TimelineEvent *its;
    int64_t its_count;
    VL_TRY(vl_store_timeline(store, key, &its, &its_count));
    bool wanted = its_count > 0 && strncmp(key, prefix ? prefix : "", prefix ? strlen(prefix) : 0) == 0;
    char text[160];
    vl_store_cell_text(candidate, text, sizeof text);
    if (its_count > 0 && strlen(list) + strlen(text) + 24 < sizeof list)
      snprintf(list + strlen(list), sizeof list - strlen(list), "\n  %s %s", key, text);
    if (wanted && found++ == 0) {
      *events = its;
      *count = its_count;
      *record = candidate;
    } else {
      free(its);
    }
  }
  if (found == 1) return vl_ok();
  free(*events);
  *events = NULL;
  if (!*list) return vl_error(VL_INVALID, "no cell of the store kept its timeline (run --timeline -o STORE)");
  return vl_error(VL_INVALID, "%s; choose with --cell:%s",
                  found > 1 ? "several cells kept their timelines" : "no such cell kept its timeline", list);
}
