#include "harness/cell_json.h"
#include "harness/columns.h"

#include <stdlib.h>
#include <string.h>

typedef enum MemberType { MEMBER_TEXT = 0, MEMBER_I32, MEMBER_I64, MEMBER_FLAG, MEMBER_REAL } MemberType;
typedef struct Member {
  const char *name;
  MemberType type;
  size_t offset, size;
} Member;

#define MEMBER(type, member)                                                                                 \
  { #member, type, offsetof(SuiteCell, spec.member), sizeof(((SuiteCell *)0)->spec.member) }
static const Member members[] = {
    MEMBER(MEMBER_TEXT, case_name),
    MEMBER(MEMBER_TEXT, recipe),
    MEMBER(MEMBER_TEXT, device),
    MEMBER(MEMBER_TEXT, profile),
    MEMBER(MEMBER_I64, micro_batch),
    MEMBER(MEMBER_I64, global_batch),
    MEMBER(MEMBER_I64, capacity_bytes),
    MEMBER(MEMBER_I64, offload_capacity_bytes),
    MEMBER(MEMBER_TEXT, offload_directory),
    MEMBER(MEMBER_I32, threads),
    MEMBER(MEMBER_I32, warmup),
    MEMBER(MEMBER_I32, steps),
    MEMBER(MEMBER_I64, seed),
    MEMBER(MEMBER_TEXT, queue),
    MEMBER(MEMBER_TEXT, queue_batches),
    MEMBER(MEMBER_FLAG, inference),
    MEMBER(MEMBER_FLAG, unlimited),
    MEMBER(MEMBER_FLAG, timeline),
    MEMBER(MEMBER_FLAG, monitor),
    MEMBER(MEMBER_FLAG, cross_check),
    MEMBER(MEMBER_FLAG, diagnose),
    MEMBER(MEMBER_TEXT, data),
    MEMBER(MEMBER_TEXT, save_state),
    MEMBER(MEMBER_TEXT, load_state),
    MEMBER(MEMBER_REAL, learning_rate),
    MEMBER(MEMBER_REAL, max_noise),
    MEMBER(MEMBER_REAL, max_time_s),
    MEMBER(MEMBER_TEXT, inject),
    {"repeat", MEMBER_I32, offsetof(SuiteCell, repeat), sizeof(int32_t)},
    {"timeout_s", MEMBER_REAL, offsetof(SuiteCell, timeout_s), sizeof(double)},
    {"max_batch", MEMBER_FLAG, offsetof(SuiteCell, max_batch), sizeof(bool)},
    {"shuffled", MEMBER_FLAG, offsetof(SuiteCell, shuffled), sizeof(bool)},
    {"order_seed", MEMBER_I64, offsetof(SuiteCell, order_seed), sizeof(int64_t)},
};
enum { MEMBER_COUNT = sizeof members / sizeof members[0] };

static json_t *get_member(const SuiteCell *cell, const Member *member) {
  const void *at = (const char *)cell + member->offset;
  switch (member->type) {
  case MEMBER_TEXT: return vl_json_text(at);
  case MEMBER_I32: return json_integer(*(const int32_t *)at);
  case MEMBER_I64: return json_integer(*(const int64_t *)at);
  case MEMBER_FLAG: return json_boolean(*(const bool *)at);
  case MEMBER_REAL: return json_real(*(const double *)at);
  }
  return NULL;
}

static bool set_member(SuiteCell *cell, const Member *member, const json_t *value) {
  void *at = (char *)cell + member->offset;
  switch (member->type) {
  case MEMBER_TEXT:
    if (!json_is_string(value) || json_string_length(value) >= member->size) return false;
    snprintf(at, member->size, "%s", json_string_value(value));
    return true;
  case MEMBER_I32: *(int32_t *)at = (int32_t)json_integer_value(value); return json_is_integer(value);
  case MEMBER_I64: *(int64_t *)at = json_integer_value(value); return json_is_integer(value);
  case MEMBER_FLAG: *(bool *)at = json_is_true(value); return json_is_boolean(value);
  case MEMBER_REAL: *(double *)at = json_number_value(value); return json_is_number(value);
  }
  return false;
}

json_t *vl_cell_to_json(const SuiteCell *cell) {
  json_t *json = json_object(), *settings = json_array();
  for (int i = 0; i < MEMBER_COUNT; i++)
    json_object_set_new(json, members[i].name, get_member(cell, &members[i]));
  for (int32_t i = 0; i < cell->spec.setting_count; i++)
    json_array_append_new(settings, vl_json_text(cell->spec.settings[i]));
  json_object_set_new(json, "settings", settings);
  return json;
}

Status vl_cell_from_json(const json_t *json, SuiteCell *cell) {
  memset(cell, 0, sizeof *cell);
  for (int i = 0; i < MEMBER_COUNT; i++)
    if (!set_member(cell, &members[i], json_object_get(json, members[i].name)))
      return vl_error(VL_INTERNAL, "the cell sent has no proper \"%s\"", members[i].name);
  const json_t *settings = json_object_get(json, "settings");
  size_t count = json_array_size(settings);
  if (count > VL_MAX_SETTINGS) return vl_error(VL_INTERNAL, "the cell sent has %zu settings", count);
  for (size_t i = 0; i < count; i++) {
    const char *text = json_string_value(json_array_get(settings, i));
    snprintf(cell->spec.settings[i], VL_NAME_BYTES, "%s", text ? text : "");
  }
  cell->spec.setting_count = (int32_t)count;
  return vl_ok();
}

/* An event is a list: its numbers, then its texts. */
json_t *vl_timeline_to_json(const TimelineEvent *events, int64_t count) {
  json_t *list = json_array();
  for (int64_t i = 0; i < count; i++) {
    const TimelineEvent *e = &events[i];
    json_array_append_new(list, json_pack("[IiiIIIIIiiiioo]", (json_int_t)e->time_ns, e->action, e->category,
                                          (json_int_t)e->bytes, (json_int_t)e->requested_bytes,
                                          (json_int_t)e->allocated_bytes, (json_int_t)e->reserved_bytes,
                                          (json_int_t)e->offset, e->heap_segment, e->segment, e->stream,
                                          e->op, vl_json_text(e->name), vl_json_text(e->scope)));
  }
  return list;
}

Status vl_timeline_from_json(const json_t *json, TimelineEvent **events, int64_t *count) {
  *count = (int64_t)json_array_size(json);
  *events = vl_allocate((size_t)(*count + 1) * sizeof **events);
  for (int64_t i = 0; i < *count; i++) {
    TimelineEvent *e = &(*events)[i];
    json_int_t time, bytes, requested, allocated, reserved, offset;
    const char *name, *scope;
    if (json_unpack(json_array_get(json, (size_t)i), "[IiiIIIIIiiiiss!]", &time, &e->action, &e->category,
                    &bytes, &requested, &allocated, &reserved, &offset, &e->heap_segment, &e->segment,
                    &e->stream, &e->op, &name, &scope) != 0) {
      free(*events);
      *events = NULL;
      *count = 0;
      return vl_error(VL_INTERNAL, "event %lld of the timeline sent is malformed", (long long)i);
    }
    e->time_ns = time;
    e->bytes = bytes;
    e->requested_bytes = requested;
    e->allocated_bytes = allocated;
    e->reserved_bytes = reserved;
    e->offset = offset;
    snprintf(e->name, sizeof e->name, "%s", name);
    snprintf(e->scope, sizeof e->scope, "%s", scope);
  }
  return vl_ok();
}

json_t *vl_ops_to_json(const OpRecord *ops, int64_t count) {
  json_t *list = json_array();
  for (int64_t i = 0; i < count; i++) {
    const OpRecord *op = &ops[i];
    json_array_append_new(list, json_pack("[iiiiIIIIooo]", op->segment, op->stream, op->micro_batch, op->pass,
                                          (json_int_t)op->start_ns, (json_int_t)op->duration_ns,
                                          (json_int_t)op->flops, (json_int_t)op->bytes, vl_json_text(op->op),
                                          vl_json_text(op->scope), vl_json_text(op->implementation)));
  }
  return list;
}

Status vl_ops_from_json(const json_t *json, OpRecord **ops, int64_t *count) {
  *count = (int64_t)json_array_size(json);
  *ops = vl_allocate((size_t)(*count + 1) * sizeof **ops);
  for (int64_t i = 0; i < *count; i++) {
    OpRecord *op = &(*ops)[i];
    json_int_t start, duration, flops, bytes;
    const char *name, *scope, *implementation;
    if (json_unpack(json_array_get(json, (size_t)i), "[iiiiIIIIsss!]", &op->segment, &op->stream,
                    &op->micro_batch, &op->pass, &start, &duration, &flops, &bytes, &name, &scope,
                    &implementation) != 0) {
      free(*ops);
      *ops = NULL;
      *count = 0;
      return vl_error(VL_INTERNAL, "op %lld of the step sent is malformed", (long long)i);
    }
    op->start_ns = start;
    op->duration_ns = duration;
    op->flops = flops;
    op->bytes = bytes;
    snprintf(op->op, sizeof op->op, "%s", name);
    snprintf(op->scope, sizeof op->scope, "%s", scope);
    snprintf(op->implementation, sizeof op->implementation, "%s", implementation);
  }
  return vl_ok();
}

void vl_cell_normalize(CellSpec *spec) {
  const Case *of = vl_case_find(spec->case_name);
  if (of) snprintf(spec->case_name, sizeof spec->case_name, "%s", of->name);
}

void vl_settings_text(const CellSpec *spec, char text[VL_SETTINGS_BYTES]) {
  size_t used = 0;
  text[0] = '\0';
  for (int32_t i = 0; i < spec->setting_count; i++)
    used += (size_t)snprintf(text + used, VL_SETTINGS_BYTES - used, "%s%s", i ? " " : "", spec->settings[i]);
}
