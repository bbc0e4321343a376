#include "cases/cases.h"
#include <string.h>

extern const Case case_resnet50, case_bert_base, case_bert_large, case_unet3d;

/* Every workload; a new one is a file and a line here. */
static const Case *const cases[] = {&case_resnet50, &case_bert_base, &case_bert_large, &case_unet3d};

const Case *const *vl_case_all(int32_t *count) {
  *count = (int32_t)(sizeof cases / sizeof(Case *));
  return cases;
}

/* Whether a comma-separated list has the name. */
static bool lists(const char *names, const char *name) {
  size_t length = strlen(name);
  for (const char *at = names; at && *at;) {
    size_t run = strcspn(at, ",");
    if (run == length && strncmp(at, name, length) == 0) return true;
    at += run;
    at += strspn(at, ", ");
  }
  return false;
}

const Case *vl_case_find(const char *name) {
  for (size_t i = 0; i < sizeof cases / sizeof(Case *); i++) {
    if (strcmp(cases[i]->name, name) == 0 || lists(cases[i]->also_called, name)) return cases[i];
  }
  return NULL;
}

static Status unknown_argument(const Case *of, const char *setting) {
  char known[256] = "";
  for (int32_t i = 1; i < of->argument_count; i++) {
    size_t used = strlen(known);
    snprintf(known + used, sizeof known - used, "%s%s", i > 1 ? ", " : "", of->arguments[i].name);
  }
  return vl_error(VL_INVALID, "%s takes no setting '%s' (takes NAME=VALUE for: %s)", of->name, setting,
                  known);
}

Status vl_case_arguments(const Case *of, int64_t micro_batch, const char *const *settings,
                         int32_t setting_count, int64_t *values) {
  for (int32_t i = 0; i < of->argument_count; i++)
    values[i] = of->arguments[i].default_value;
  if (micro_batch < of->arguments[0].low || micro_batch > of->arguments[0].high) {
    return vl_error(VL_INVALID, "batch is %lld; %s accepts %lld to %lld", (long long)micro_batch, of->name,
                    (long long)of->arguments[0].low, (long long)of->arguments[0].high);
  }
  values[0] = micro_batch;
  for (int32_t k = 0; k < setting_count; k++) {
    const char *equals = strchr(settings[k], '=');
    int32_t found = -1;
    for (int32_t i = 1; equals && i < of->argument_count; i++) {
      size_t length = strlen(of->arguments[i].name);
      if ((size_t)(equals - settings[k]) == length &&
          strncmp(settings[k], of->arguments[i].name, length) == 0) {
        found = i;
      }
    }
    if (found < 0) return unknown_argument(of, settings[k]);
    VL_TRY(vl_parse_integer(of->arguments[found].name, equals + 1, of->arguments[found].low,
                            of->arguments[found].high, &values[found]));
  }
  return vl_ok();
}
