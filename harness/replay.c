/* Which policies a trace is replayed under, and what is told of it. */
#include "harness/replay.h"
#include "harness/columns.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* PyTorch's options at values its users choose. A threshold of garbage collection is a share of the capacity,
 * so without one it does nothing. Policy async is left out: where its blocks go is the driver's to decide, by
 * rules that are not published, and on memory that is only numbers there is no driver to ask. */
static const ReplayPolicy policies[] = {
    {"caching", {.policy = "caching"}, false, ""},
    {"caching, max split 32 MiB",
     {.policy = "caching", .max_split_bytes = 32 << 20},
     false,
     "max_split_size_mb:32"},
    {"caching, max split 64 MiB",
     {.policy = "caching", .max_split_bytes = 64 << 20},
     false,
     "max_split_size_mb:64"},
    {"caching, max split 128 MiB",
     {.policy = "caching", .max_split_bytes = 128 << 20},
     false,
     "max_split_size_mb:128"},
    {"caching, max split 256 MiB",
     {.policy = "caching", .max_split_bytes = 256 << 20},
     false,
     "max_split_size_mb:256"},
    {"caching, max split 512 MiB",
     {.policy = "caching", .max_split_bytes = 512 << 20},
     false,
     "max_split_size_mb:512"},
    {"caching, gc from 0.6",
     {.policy = "caching", .gc_threshold = 0.6},
     false,
     "garbage_collection_threshold:0.6"},
    {"caching, gc from 0.8",
     {.policy = "caching", .gc_threshold = 0.8},
     false,
     "garbage_collection_threshold:0.8"},
    {"caching, 4 roundings",
     {.policy = "caching", .round_divisions = 4},
     false,
     "roundup_power2_divisions:4"},
    {"caching, 16 roundings",
     {.policy = "caching", .round_divisions = 16},
     false,
     "roundup_power2_divisions:16"},
    {"caching, compacted", {.policy = "caching"}, true, NULL},
    {"expandable", {.policy = "expandable"}, false, "expandable_segments:True"},
    {"expandable, compacted", {.policy = "expandable"}, true, NULL},
    {"expandable, remap", {.policy = "expandable", .remap = true}, false, NULL},
    {"expandable, remap, compacted", {.policy = "expandable", .remap = true}, true, NULL},
    {"planned", {.policy = "planned"}, false, NULL},
};
enum {
  POLICY_COUNT = sizeof policies / sizeof *policies,
  MIB = 1 << 20,
  MOST_PLANNED = 50000,
  QUICK_EVENTS = 20000
};

const ReplayPolicy *vl_replay_policies(int32_t *count) {
  *count = POLICY_COUNT;
  return policies;
}

static bool is_planned(const ReplayPolicy *policy) { return strcmp(policy->options.policy, "planned") == 0; }

/* ---- Running ---------------------------------------------------------------------------------------------------- */

static Status refuse_policy(const char *policy) {
  if (strcmp(policy, "async") == 0)
    return vl_error(VL_UNSUPPORTED, "--policy async: the driver's pools follow rules that are not published, "
                                    "so there is nothing to replay");
  char names[128] = "";
  for (int32_t i = 0; i < POLICY_COUNT; i++) {
    const char *name = policies[i].options.policy;
    if (i > 0 && strcmp(policies[i - 1].options.policy, name) == 0)
      continue; /* a policy's rows are together */
    snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i > 0 ? ", " : "", name);
  }
  return vl_error(VL_INVALID, "--policy %.60s is unknown; accepted: %s", policy, names);
}

static Status run_under(const ReplaySet *set, const ReplayPolicy *policy, int64_t capacity_bytes,
                        ReplayResult *result) {
  ReplayOptions options = {.heap = policy->options, .defragment = policy->defragment};
  options.heap.capacity_bytes = capacity_bytes;
  if (capacity_bytes == 0) options.heap.gc_threshold = 0;
  if (is_planned(policy)) options.plan = &set->plan;
  return vl_trace_replay(&set->file->trace, &options, result);
}

/* The least capacity under which all requests are served, to a granule: between the lower bound and what is
 * reserved without a limit. Taken as if what runs in less runs in more, which holds but for freaks of a
 * policy; the answer itself was run. */
static Status find_least(const ReplaySet *set, Replay *row) {
  row->least = row->result;
  if (set->capacity_bytes > 0) VL_TRY(run_under(set, row->policy, 0, &row->least));
  if (row->least.failed_event >= 0) return vl_ok();
  int64_t low = set->peak.bytes - 1, high = row->least.statistics.reserved.peak_bytes;
  int64_t granule = high / 256 > 2 * MIB ? high / 256 : 2 * MIB;
  while (high - low > granule) {
    ReplayResult result;
    int64_t middle = low + (high - low) / 2;
    VL_TRY(run_under(set, row->policy, middle, &result));
    if (result.failed_event < 0) {
      high = middle;
      row->least = result;
    } else {
      low = middle;
    }
  }
  row->least_bytes = high;
  return vl_ok();
}

static Status run_row(ReplaySet *set, const ReplayPolicy *policy) {
  Replay *row = &set->rows[set->count++];
  *row = (Replay){.policy = policy, .least_bytes = -1};
  if (is_planned(policy)) set->plan = vl_trace_plan(&set->file->trace);
  /* Time is told of the quickest run, where runs are short: another process may hold one up. */
  int32_t runs = set->file->trace.event_count < QUICK_EVENTS ? 5 : 1;
  int64_t best_ns = INT64_MAX;
  for (int32_t i = 0; i < runs; i++) {
    VL_TRY(run_under(set, policy, set->capacity_bytes, &row->result));
    if (row->result.time_ns < best_ns) best_ns = row->result.time_ns;
  }
  row->result.time_ns = best_ns;
  return set->searched ? find_least(set, row) : vl_ok();
}

void vl_replay_free(ReplaySet *set) {
  free(set->rows);
  free(set->plan.offsets);
  set->rows = NULL;
  set->plan = (TracePlan){0};
}

Status vl_replay_run(const TraceFile *file, const char *policy, int64_t capacity_bytes, bool search,
                     ReplaySet *set) {
  *set = (ReplaySet){.file = file,
                     .capacity_bytes = capacity_bytes,
                     .searched = search,
                     .peak = vl_trace_peak(&file->trace)};
  set->rows = vl_allocate(POLICY_COUNT * sizeof *set->rows);
  Status status = vl_ok();
  for (int32_t i = 0; i < POLICY_COUNT && status.code == VL_OK; i++) {
    bool wanted = policy == NULL || strcmp(policy, policies[i].options.policy) == 0;
    bool too_many = policy == NULL && is_planned(&policies[i]) && file->trace.block_count > MOST_PLANNED;
    set->planned_left_out = set->planned_left_out || too_many;
    /* Nothing is done between steps that are not marked. */
    if (policies[i].defragment && file->trace.step_count == 0) continue;
    if (wanted && !too_many) status = run_row(set, &policies[i]);
  }
  if (status.code == VL_OK && set->count == 0) status = refuse_policy(policy);
  if (status.code != VL_OK) vl_replay_free(set);
  return status;
}

/* ---- Telling ----------------------------------------------------------------------------------------------------- */

static int64_t step_of(const Trace *trace, int64_t event) {
  int64_t step = 1;
  for (int64_t i = 0; i < event; i++)
    step += trace->events[i].action == TRACE_STEP;
  return step;
}

static void print_trace(const ReplaySet *set, FILE *out) {
  const Trace *trace = &set->file->trace;
  char highest[32], bytes[32];
  vl_format_bytes(set->peak.bytes, highest, sizeof highest);
  if (set->file->source[0] != '\0') fprintf(out, "%s\n", set->file->source);
  fprintf(out, "%" PRId64 " events, %" PRId64 " blocks", trace->event_count, trace->block_count);
  if (trace->step_count > 0) fprintf(out, ", %" PRId64 " ends of steps", trace->step_count);
  fprintf(out, "\nat most %s in use at once, after event %" PRId64 ": no policy reserves less\n", highest,
          set->peak.event + 1);
  vl_format_bytes(set->file->reserved_peak_bytes, bytes, sizeof bytes);
  if (set->file->reserved_peak_bytes >= 0) fprintf(out, "reserved when it was recorded: %s\n", bytes);
  vl_format_bytes(set->capacity_bytes, bytes, sizeof bytes);
  if (set->capacity_bytes > 0) fprintf(out, "capacity: %s\n", bytes);
  bool failed = false;
  for (int64_t i = 0; i < trace->event_count; i++)
    failed = failed || trace->events[i].action == TRACE_FAILED;
  if (failed)
    fputs("it ran out of memory when it was recorded: what would have come after that is not known\n", out);
}

/* One unit for every number of bytes. */
static bool in_gib(const ReplaySet *set) { return set->peak.bytes >= INT64_C(10) << 30; }

/* Bytes, and how many times what was in use at most. */
static void print_bytes(const ReplaySet *set, int64_t bytes, FILE *out) {
  char text[32];
  vl_format_quotient(bytes, in_gib(set) ? INT64_C(1) << 30 : MIB, in_gib(set) ? 3 : 2, text, sizeof text);
  fprintf(out, " %10s %7.3f", text, (double)bytes / (double)set->peak.bytes);
}

static double ns_per_event(const ReplaySet *set, const ReplayResult *result) {
  int64_t all = set->file->trace.event_count;
  return (double)result->time_ns / (double)(result->failed_event >= 0 ? result->failed_event + 1 : all);
}

static void print_outcome(const ReplaySet *set, const ReplayResult *result, FILE *out) {
  const Trace *trace = &set->file->trace;
  char bytes[32];
  if (result->failed_event < 0) {
    fputs(set->capacity_bytes > 0 ? "  served\n" : "\n", out);
    return;
  }
  vl_format_bytes(trace->events[result->failed_event].bytes, bytes, sizeof bytes);
  fprintf(out, "  out of memory (%s) at event %" PRId64, result->fragmented ? "fragmented" : "shortage",
          result->failed_event + 1);
  if (trace->step_count > 0) fprintf(out, ", step %" PRId64, step_of(trace, result->failed_event));
  fprintf(out, ", for %s\n", bytes);
}

static void print_row(const ReplaySet *set, const Replay *row, FILE *out) {
  const ReplayResult *result = &row->result;
  fprintf(out, "%-30s", row->policy->name);
  print_bytes(set, result->statistics.reserved.peak_bytes, out);
  fprintf(out, " %8" PRId64 " %7.0f", result->statistics.segment_reserves, ns_per_event(set, result));
  if (row->least_bytes >= 0) {
    print_bytes(set, row->least_bytes, out);
    fprintf(out, " %7" PRId64, row->least.statistics.retries);
  } else if (set->searched) {
    fprintf(out, " %10s %7s %7s", "-", "-", "-");
  }
  print_outcome(set, result, out);
}

static void print_table(const ReplaySet *set, FILE *out) {
  const char *unit = in_gib(set) ? "GiB" : "MiB";
  fprintf(out, "\n%-30s %10s %7s %8s %7s", "policy", "reserved", "/ in", "segments", "ns per");
  if (set->searched) fprintf(out, " %10s %7s %7s", "fits in", "/ in", "retries");
  fprintf(out, "\n%-30s %10s %7s %8s %7s", "", unit, "use", "taken", "event");
  if (set->searched) fprintf(out, " %10s %7s %7s", unit, "use", "there");
  fputc('\n', out);
  for (int32_t i = 0; i < set->count; i++)
    print_row(set, &set->rows[i], out);
  if (set->planned_left_out)
    fprintf(out, "planned is left out: more than %d blocks (--policy planned plans them all the same)\n",
            MOST_PLANNED);
  if (set->searched)
    fputs("fits in: the least capacity in which every request is served, memory that is cached being given "
          "back "
          "first\n",
          out);
}

/* ---- What to set ------------------------------------------------------------------------------------------------ */

/* PyTorch's own default, which settings are compared with. */
static const Replay *row_of_default(const ReplaySet *set) {
  for (int32_t i = 0; i < set->count; i++)
    if (set->rows[i].policy->setting != NULL && set->rows[i].policy->setting[0] == '\0') return &set->rows[i];
  return NULL;
}

/* What a row needs: the least capacity where it is known, else what it reserved. */
static int64_t need_of(const Replay *row) {
  return row->least_bytes >= 0 ? row->least_bytes : row->result.statistics.reserved.peak_bytes;
}

/* The search is exact to 1/256. */
static bool changes_nothing(const Replay *row, const Replay *usual) {
  double ratio = (double)need_of(row) / (double)need_of(usual);
  bool same_end = (row->result.failed_event < 0) == (usual->result.failed_event < 0);
  return same_end && ratio > 0.995 && ratio < 1.005;
}

static void print_setting(const Replay *row, const Replay *usual, FILE *out) {
  char line[96], now[32], before[32];
  int64_t bytes = need_of(row), usual_bytes = need_of(usual);
  bool served = row->result.failed_event < 0, usual_served = usual->result.failed_event < 0;
  vl_format_bytes(bytes, now, sizeof now);
  vl_format_bytes(usual_bytes, before, sizeof before);
  snprintf(line, sizeof line, "export PYTORCH_CUDA_ALLOC_CONF=%s", row->policy->setting);
  fprintf(out, "  %-66s ", line);
  if (served != usual_served)
    fputs(served ? "would have been served; " : "would have run out of memory; ", out);
  fprintf(out, "needs %s instead of %s (%+.1f %%)\n", now, before,
          100.0 * ((double)bytes / (double)usual_bytes - 1.0));
}

/* What each setting would have given; those that give nothing together at the end. */
static void print_settings(const ReplaySet *set, FILE *out) {
  const Replay *usual = row_of_default(set);
  if (usual == NULL) return;
  const char *separator = "  no difference:";
  fputs("\nSettings of PyTorch, before the job starts (newer versions: PYTORCH_ALLOC_CONF)\n", out);
  for (int32_t same = 0; same < 2; same++)
    for (int32_t i = 0; i < set->count; i++) {
      const Replay *row = &set->rows[i];
      const char *setting = row->policy->setting;
      if (setting == NULL || *setting == '\0' || changes_nothing(row, usual) != (same == 1)) continue;
      if (same == 0) {
        print_setting(row, usual, out);
        continue;
      }
      fprintf(out, "%s %s", separator, setting);
      separator = ",";
    }
  if (separator[0] == ',') fputc('\n', out);
  fputs("garbage_collection_threshold takes effect after torch.cuda.set_per_process_memory_fraction\n", out);
}

void vl_replay_print(const ReplaySet *set, FILE *out) {
  print_trace(set, out);
  print_table(set, out);
  print_settings(set, out);
}

/* ---- As JSON ---------------------------------------------------------------------------------------------------- */

static json_t *known(int64_t bytes, int64_t least) {
  return bytes >= least ? json_integer(bytes) : json_null();
}

static json_t *row_json(const ReplaySet *set, const Replay *row) {
  const ReplayResult *result = &row->result;
  const MemoryStatistics *statistics = &result->statistics;
  json_t *json = json_pack(
      "{s:s, s:s, s:s?, s:I, s:I, s:I, s:I, s:I, s:f, s:o, s:o, s:s}", "name", row->policy->name, "policy",
      row->policy->options.policy, "setting", row->policy->setting, "peak_reserved_bytes",
      (json_int_t)statistics->reserved.peak_bytes, "peak_allocated_bytes",
      (json_int_t)statistics->allocated.peak_bytes, "segments", (json_int_t)statistics->segment_reserves,
      "segments_given_back", (json_int_t)statistics->segment_releases, "retries",
      (json_int_t)statistics->retries, "ns_per_event", ns_per_event(set, result), "least_capacity_bytes",
      known(row->least_bytes, 0), "least_capacity_retries",
      row->least_bytes >= 0 ? json_integer(row->least.statistics.retries) : json_null(), "status",
      result->failed_event < 0 ? "ok" : "oom");
  if (result->failed_event < 0) return json;
  json_object_set_new(json, "oom_event", json_integer(result->failed_event));
  json_object_set_new(json, "oom_reason", json_string(result->fragmented ? "fragmented" : "shortage"));
  json_object_set_new(json, "oom_request_bytes",
                      json_integer(set->file->trace.events[result->failed_event].bytes));
  json_object_set_new(json, "error", vl_json_text(result->failure.message));
  return json;
}

json_t *vl_replay_json(const ReplaySet *set) {
  const TraceFile *file = set->file;
  json_t *rows = json_array();
  for (int32_t i = 0; i < set->count; i++)
    json_array_append_new(rows, row_json(set, &set->rows[i]));
  return json_pack(
      "{s:o, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "source", vl_json_text(file->source), "events",
      (json_int_t)file->trace.event_count, "blocks", (json_int_t)file->trace.block_count, "steps",
      (json_int_t)file->trace.step_count, "lower_bound_bytes", (json_int_t)set->peak.bytes,
      "lower_bound_event", (json_int_t)set->peak.event, "recorded_reserved_peak_bytes",
      known(file->reserved_peak_bytes, 0), "capacity_bytes", known(set->capacity_bytes, 1), "policies", rows);
}
