/* An explanation on a terminal and as JSON. */
#include "harness/explain.h"
#include "harness/report.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct Named {
  const char *key, *name;
  int64_t bytes;
} Named;

enum { MAX_ROWS = 12 + VL_OOM_MAX_PROCESSES };

static int32_t figures_of(const OomMessage *message, const OomExplanation *it, Named rows[MAX_ROWS]) {
  bool mps = message->wording == OOM_MPS;
  int32_t n = 0;
  rows[n++] = (Named){"tried_bytes", "tried to allocate", message->tried.bytes};
  rows[n++] = (Named){"total_bytes", "capacity of the card", message->total.bytes};
  rows[n++] = (Named){"free_bytes", "free on the card", message->free.bytes};
  rows[n++] = (Named){"this_process_bytes", "in use by this process", message->this_process.bytes};
  rows[n++] = (Named){"allocated_bytes", "allocated by PyTorch", message->allocated.bytes};
  rows[n++] = (Named){"unallocated_bytes", "reserved, unallocated", it->unallocated_bytes};
  if (message->private_pools.bytes >= 0)
    rows[n++] =
        (Named){"private_pools_bytes", "of the allocated, in pools of graphs", message->private_pools.bytes};
  if (message->allowed.bytes >= 0 || mps)
    rows[n++] = (Named){"allowed_bytes", "limit on this process", message->allowed.bytes};
  if (mps)
    rows[n++] = (Named){"other_allocations_bytes", "other allocations of this process",
                        message->other_allocations.bytes};
  return n;
}

/* ---- On a terminal --------------------------------------------------------------------------------------------- */

static const char *size_text(Document *document, int64_t bytes) {
  char text[32];
  if (bytes < 0) return "not in the message";
  vl_format_bytes(bytes, text, sizeof text);
  return vl_document_format(document, "%s", text);
}

static void add_figures(Document *document, const OomMessage *message, const OomExplanation *it) {
  static const TableColumn columns[] = {{"what", "", false}, {"size", "", true}, {"bytes", "", true}};
  Named rows[MAX_ROWS];
  int32_t count = figures_of(message, it, rows);
  for (int32_t i = 0; i < message->process_count; i++)
    rows[count++] =
        (Named){"",
                vl_document_format(document, "process %lld%s", (long long)message->processes[i].pid,
                                   message->processes[i].pid == it->maybe_self_pid ? " (this one?)" : ""),
                message->processes[i].in_use.bytes};
  char backend[8] = "";
  for (size_t i = 0; i + 1 < sizeof backend; i++)
    backend[i] = (char)toupper((unsigned char)message->backend[i]);
  const char *device =
      message->device >= 0 ? vl_document_format(document, ", GPU %d", (int)message->device) : "";
  const char *times =
      message->times > 1 ? vl_document_format(document, ", %lld times", (long long)message->times) : "";
  Passage *table = vl_document_add(
      document, PASSAGE_TABLE, true,
      vl_document_format(document, "%s%s%s%s, line %lld%s", vl_oom_wording_name(message->wording),
                         *backend ? ", " : "", backend, device, (long long)message->line, times));
  vl_document_table(document, table, columns, 3, count);
  for (int32_t i = 0; i < count; i++) {
    table->rows[i][0] = rows[i].name;
    table->rows[i][1] = size_text(document, rows[i].bytes);
    table->rows[i][2] =
        rows[i].bytes < 0 ? "" : vl_document_format(document, "%lld", (long long)rows[i].bytes);
  }
}

static void note(Document *document, const char *text) {
  vl_document_add(document, PASSAGE_NOTE, true, text);
}

static void add_verdict(Document *document, const OomMessage *message, const OomExplanation *it) {
  vl_document_add(document, PASSAGE_TEXT, true,
                  vl_document_format(document, "Verdict: %s", vl_oom_verdict_name(it->verdict)));
  note(document, vl_document_format(document, "Rule: %s.", it->rule));
  if (it->missing_bytes > 0)
    note(document,
         vl_document_format(document,
                            "Missing: %s%s for this one request; what follows it in the step "
                            "comes on top.",
                            size_text(document, it->missing_bytes),
                            it->missing_rounding_bytes > 0
                                ? vl_document_format(document, " (to within %s, as the message rounds)",
                                                     size_text(document, it->missing_rounding_bytes))
                                : ""));
  if (it->from_model_bytes > 0)
    note(document, vl_document_format(document,
                                      "From the model (smaller batch, a recipe) or from others on the "
                                      "card: at least %s (to within %s).",
                                      size_text(document, it->from_model_bytes),
                                      size_text(document, it->rounding_bytes)));
  if (*message->cut_after)
    note(document, vl_document_format(document, "The message is cut off after %s.", message->cut_after));
}

static void add_setting(Document *document, const OomExplanation *it) {
  note(document, vl_document_format(document, "Allocator setting: %s%s%s.", it->setting,
                                    *it->setting && *it->setting_note ? " " : "",
                                    *it->setting && *it->setting_note
                                        ? vl_document_format(document, "(%s)", it->setting_note)
                                        : it->setting_note));
}

static void add_others(Document *document, const OomMessage *message, const OomExplanation *it) {
  if (it->maybe_self_pid >= 0)
    note(document,
         vl_document_format(document,
                            "Others on the card: the message does not say which process is its own. Process "
                            "%lld holds at least what PyTorch reserved here, so it may be this one (in a "
                            "container pids differ).",
                            (long long)it->maybe_self_pid));
  else if (it->others_bytes == 0)
    note(document, "Others on the card: the message names none.");
  else if (it->others_bytes > 0)
    note(document, vl_document_format(document, "Others on the card: %s in %d process%s.",
                                      size_text(document, it->others_bytes), (int)message->process_count,
                                      message->process_count == 1 ? "" : "es"));
  if (it->unnamed_bytes > 0 && message->this_process.bytes < 0)
    note(document,
         vl_document_format(document,
                            "In use beside what the message names: %s, the CUDA context, libraries and "
                            "other processes together.",
                            size_text(document, it->unnamed_bytes)));
  else if (it->unnamed_bytes > 0)
    note(document, vl_document_format(document, "In use by nobody the message names: %s.",
                                      size_text(document, it->unnamed_bytes)));
  if (it->oversubscribed)
    note(document,
         "PyTorch reserved more than the card has: the driver lends host memory (Windows), slowly.");
}

static void add_next(Document *document, const OomMessage *message, const OomExplanation *it,
                     const OomJob *job) {
  char next[VL_OOM_TEXT_BYTES];
  vl_oom_next(message, it, job, next);
  if (!*next) return;
  if (it->verdict == OOM_FRAGMENTATION)
    note(document, "A trace of your job: torch.cuda.memory._record_memory_history() before the first step, "
                   "torch.cuda.memory._dump_snapshot(\"snapshot.pickle\") in the except clause, then "
                   "scripts/data/pytorch_snapshot.py snapshot.pickle trace.jsonl.");
  else if (strstr(next, " fit ") && !job->case_name)
    note(document,
         "The command names an example: --case and --global-batch put in yours (vramlab list cases).");
  if (strstr(next, "CAPACITY"))
    note(document,
         "The message does not tell the card's memory; CAPACITY is what nvidia-smi (rocm-smi) shows.");
  vl_document_add(document, PASSAGE_COMMAND, true, next);
}

void vl_oom_print(const OomMessage *message, const OomJob *job, int32_t found, FILE *out) {
  OomExplanation it;
  vl_oom_explain(message, &it);
  Document *document = vl_document_create();
  add_figures(document, message, &it);
  note(document, vl_document_format(document, "\"%.100s%s\"", message->quote,
                                    strlen(message->quote) > 100 ? "..." : ""));
  add_verdict(document, message, &it);
  add_setting(document, &it);
  add_others(document, message, &it);
  if (found > 1)
    note(document, vl_document_format(document,
                                      "%d different messages are in this text; --message N explains "
                                      "another.",
                                      (int)found));
  add_next(document, message, &it, job);
  vl_report_term(document, out, vl_terminal_width(out), vl_terminal_color(out));
  vl_document_destroy(&document);
}

/* ---- As JSON --------------------------------------------------------------------------------------------------- */

static json_t *known(int64_t value) { return value < 0 ? json_null() : json_integer((json_int_t)value); }
static json_t *text_or_null(const char *text) { return *text ? json_string(text) : json_null(); }

json_t *vl_oom_json(const OomMessage *message, const OomJob *job) {
  OomExplanation it;
  char next[VL_OOM_TEXT_BYTES];
  Named rows[MAX_ROWS];
  vl_oom_explain(message, &it);
  vl_oom_next(message, &it, job, next);
  json_t *json = json_pack("{ss ss so so sI sI ss so}", "verdict", vl_oom_verdict_name(it.verdict), "wording",
                           vl_oom_wording_name(message->wording), "backend", text_or_null(message->backend),
                           "device", known(message->device), "line", (json_int_t)message->line, "times",
                           (json_int_t)message->times, "quote", message->quote, "cut_after",
                           text_or_null(message->cut_after));
  int32_t count = figures_of(message, &it, rows);
  for (int32_t i = 0; i < count; i++)
    json_object_set_new(json, rows[i].key, known(rows[i].bytes));
  json_object_set_new(json, "reserved_bytes", known(it.reserved_bytes));
  json_t *processes = json_array();
  for (int32_t i = 0; i < message->process_count; i++)
    json_array_append_new(processes, json_pack("{sI sI sb}", "pid", (json_int_t)message->processes[i].pid,
                                               "bytes", (json_int_t)message->processes[i].in_use.bytes,
                                               "maybe_self", message->processes[i].pid == it.maybe_self_pid));
  json_object_set_new(json, "processes", processes);
  json_object_set_new(json, "rule", json_string(it.rule));
  json_object_set_new(json, "rounding_bytes", json_integer((json_int_t)it.rounding_bytes));
  json_object_set_new(json, "missing_rounding_bytes", json_integer((json_int_t)it.missing_rounding_bytes));
  json_object_set_new(json, "missing_bytes", known(it.missing_bytes));
  json_object_set_new(json, "setting_returns_at_most_bytes", known(it.unallocated_bytes));
  json_object_set_new(json, "from_model_bytes", known(it.from_model_bytes));
  json_object_set_new(json, "others_bytes", known(it.others_bytes));
  json_object_set_new(json, "unnamed_bytes", known(it.unnamed_bytes));
  json_object_set_new(json, "usable_bytes", known(it.usable_bytes));
  json_object_set_new(json, "oversubscribed", json_boolean(it.oversubscribed));
  json_object_set_new(json, "setting", text_or_null(it.setting));
  json_object_set_new(json, "setting_note", text_or_null(it.setting_note));
  json_object_set_new(json, "command", text_or_null(next));
  return json;
}
