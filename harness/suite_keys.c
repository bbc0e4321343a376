/* The keys of a cell in a suite: one line in the table each. Described in cases/suites/README.md. */
#include "harness/suite_keys.h"

#include <string.h>

enum { MOST_REPEATS = 1000 };

static Status copy_text(const YamlNode *node, char *to, size_t size) {
  const char *text;
  VL_TRY(vl_yaml_text(node, &text));
  if (strlen(text) >= size) return vl_yaml_error(node, "longer than the %zu characters allowed", size - 1);
  snprintf(to, size, "%s", text);
  return vl_ok();
}

static Status set_case(const YamlNode *node, CellDraft *draft) {
  return copy_text(node, draft->cell.spec.case_name, sizeof draft->cell.spec.case_name);
}
static Status set_recipe(const YamlNode *node, CellDraft *draft) {
  Recipe recipe;
  VL_TRY(copy_text(node, draft->cell.spec.recipe, sizeof draft->cell.spec.recipe));
  Status status = vl_recipe_parse(draft->cell.spec.recipe, &recipe);
  return status.code == VL_OK ? status : vl_yaml_error(node, "%s", status.message);
}
static Status set_device(const YamlNode *node, CellDraft *draft) {
  return copy_text(node, draft->cell.spec.device, sizeof draft->cell.spec.device);
}
static Status set_profile(const YamlNode *node, CellDraft *draft) {
  return copy_text(node, draft->cell.spec.profile, sizeof draft->cell.spec.profile);
}
static Status set_data(const YamlNode *node, CellDraft *draft) {
  return copy_text(node, draft->cell.spec.data, sizeof draft->cell.spec.data);
}
static Status set_queue(const YamlNode *node, CellDraft *draft) {
  return copy_text(node, draft->cell.spec.queue, sizeof draft->cell.spec.queue);
}
static Status set_batch(const YamlNode *node, CellDraft *draft) {
  return vl_yaml_integer(node, 1, INT32_MAX, &draft->batch);
}
static Status set_micro_batch(const YamlNode *node, CellDraft *draft) {
  return vl_yaml_integer(node, 1, INT32_MAX, &draft->cell.spec.micro_batch);
}
static Status set_capacity(const YamlNode *node, CellDraft *draft) {
  const char *text;
  VL_TRY(vl_yaml_text(node, &text));
  Status status = vl_parse_bytes(text, &draft->cell.spec.capacity_bytes);
  return status.code == VL_OK ? status : vl_yaml_error(node, "%s", status.message);
}
static Status set_whole(const YamlNode *node, int64_t low, int64_t high, int32_t *to) {
  int64_t value;
  VL_TRY(vl_yaml_integer(node, low, high, &value));
  *to = (int32_t)value;
  return vl_ok();
}
static Status set_steps(const YamlNode *node, CellDraft *draft) {
  return set_whole(node, 1, VL_MAX_STEPS, &draft->cell.spec.steps);
}
static Status set_warmup(const YamlNode *node, CellDraft *draft) {
  return set_whole(node, 1, VL_MAX_STEPS, &draft->cell.spec.warmup);
}
static Status set_threads(const YamlNode *node, CellDraft *draft) {
  return set_whole(node, 0, 4096, &draft->cell.spec.threads);
}
static Status set_seed(const YamlNode *node, CellDraft *draft) {
  int64_t value;
  VL_TRY(vl_yaml_integer(node, 0, INT64_MAX, &value));
  draft->cell.spec.seed = (uint64_t)value;
  return vl_ok();
}
static Status set_inference(const YamlNode *node, CellDraft *draft) {
  return vl_yaml_flag(node, &draft->cell.spec.inference);
}
static Status set_timeline(const YamlNode *node, CellDraft *draft) {
  return vl_yaml_flag(node, &draft->cell.spec.timeline);
}
static Status set_cross_check(const YamlNode *node, CellDraft *draft) {
  return vl_yaml_flag(node, &draft->cell.spec.cross_check);
}
static Status set_diagnose(const YamlNode *node, CellDraft *draft) {
  return vl_yaml_flag(node, &draft->cell.spec.diagnose);
}
static Status set_monitor(const YamlNode *node, CellDraft *draft) {
  return vl_yaml_flag(node, &draft->cell.spec.monitor);
}
static Status set_positive(const YamlNode *node, double *to) {
  VL_TRY(vl_yaml_real(node, to));
  return *to > 0 ? vl_ok() : vl_yaml_error(node, "must be above 0");
}
static Status set_learning_rate(const YamlNode *node, CellDraft *draft) {
  return set_positive(node, &draft->cell.spec.learning_rate);
}
static Status set_timeout(const YamlNode *node, CellDraft *draft) {
  return set_positive(node, &draft->cell.timeout_s);
}
static Status set_repeat(const YamlNode *node, CellDraft *draft) {
  return vl_yaml_integer(node, 1, MOST_REPEATS, &draft->repeats);
}

const SuiteKey vl_suite_keys[] = {
    {"case", set_case},         {"batch", set_batch},       {"micro_batch", set_micro_batch},
    {"recipe", set_recipe},     {"device", set_device},     {"profile", set_profile},
    {"capacity", set_capacity}, {"steps", set_steps},       {"warmup", set_warmup},
    {"threads", set_threads},   {"seed", set_seed},         {"inference", set_inference},
    {"monitor", set_monitor},   {"timeline", set_timeline}, {"cross_check", set_cross_check},
    {"data", set_data},         {"queue", set_queue},       {"learning_rate", set_learning_rate},
    {"timeout_s", set_timeout}, {"repeat", set_repeat},     {"diagnose", set_diagnose},
};
_Static_assert(sizeof vl_suite_keys / sizeof vl_suite_keys[0] == VL_SUITE_KEY_COUNT,
               "the header says how many");
