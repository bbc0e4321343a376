/* The table of allocation policies: one line each. */
#include "memory/internal.h"

#include <stdio.h>
#include <string.h>

static const AllocationPolicy *const policies[] = {
    &vl_policy_caching,
    &vl_policy_expandable,
    &vl_policy_planned,
    &vl_policy_async,
};
enum { POLICY_COUNT = sizeof policies / sizeof policies[0] };

const AllocationPolicy *vl_policy_find(const char *name) {
  for (int i = 0; i < POLICY_COUNT; i++) {
    if (strcmp(name, policies[i]->name) == 0) return policies[i];
  }
  return NULL;
}

void vl_policy_names(char *text, size_t size) {
  size_t used = 0;
  if (size > 0) text[0] = '\0';
  for (int i = 0; i < POLICY_COUNT && used < size; i++) {
    int written = snprintf(text + used, size - used, "%s%s", i > 0 ? ", " : "", policies[i]->name);
    if (written > 0) used += (size_t)written;
  }
}
