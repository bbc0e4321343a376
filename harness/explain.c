/* PyTorch frees every cached segment that is wholly unused and tries once more before it gives up (its
 * caching allocator since 0.4). What a message calls reserved but unallocated therefore lies in segments that
 * live tensors hold: pieces. */
#include "harness/explain.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const int64_t mib = INT64_C(1) << 20;

const char *vl_oom_verdict_name(OomVerdict verdict) {
  static const char *const names[OOM_VERDICT_COUNT] = {"shortage",   "fragmentation", "limit",  "refused",
                                                       "impossible", "too-close",     "unknown"};
  return names[verdict];
}

static bool has(OomFigure figure) { return figure.bytes >= 0; }

__attribute__((format(printf, 2, 3))) static void say(char text[VL_OOM_TEXT_BYTES], const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, VL_OOM_TEXT_BYTES, format, arguments);
  va_end(arguments);
}

typedef struct Text {
  char text[32];
} Text;

static Text size_of(int64_t bytes) {
  Text text = {""};
  text.text[0] = '-';
  vl_format_bytes(bytes < 0 ? -bytes : bytes, text.text + (bytes < 0), sizeof text.text - 1);
  return text;
}

/* ---- Sums ---------------------------------------------------------------------------------------------------------- */

static int64_t half_digit(OomFigure figure) { return has(figure) ? figure.half_digit_bytes : 0; }

static void add_up_pytorch(const OomMessage *message, OomExplanation *it) {
  bool told = has(message->unallocated);
  if (told)
    it->unallocated_bytes = message->unallocated.bytes;
  else if (has(message->reserved) && has(message->allocated))
    it->unallocated_bytes = message->reserved.bytes > message->allocated.bytes
                                ? message->reserved.bytes - message->allocated.bytes
                                : 0;
  if (has(message->reserved))
    it->reserved_bytes = message->reserved.bytes;
  else if (has(message->allocated) && told)
    it->reserved_bytes = message->allocated.bytes + message->unallocated.bytes;
}

static void add_up_room(const OomMessage *message, OomExplanation *it, bool *limited) {
  *limited = false;
  if (message->wording == OOM_MPS) {
    if (!has(message->allowed) || !has(message->allocated) || !has(message->other_allocations)) return;
    it->room_bytes = message->allowed.bytes - message->allocated.bytes - message->other_allocations.bytes;
    it->room_known = *limited = true;
    return;
  }
  it->room_known = has(message->free);
  if (it->room_known) it->room_bytes = message->free.bytes;
  /* CUDA's pool is limited by what is in use, PyTorch's own by what it reserved. */
  bool async = message->wording == OOM_PYTORCH_ASYNC;
  int64_t counted = async ? message->allocated.bytes : it->reserved_bytes;
  if (has(message->allowed) && counted >= 0) {
    int64_t left = message->allowed.bytes - counted;
    *limited = !it->room_known || left < it->room_bytes;
    if (*limited) it->room_bytes = left;
    it->room_known = true;
  }
}

/* Every figure counts with half of its own last digit. */
static void add_up_rounding(const OomMessage *message, OomExplanation *it, bool limited) {
  int64_t of_pieces = has(message->unallocated)
                          ? half_digit(message->unallocated)
                          : half_digit(message->reserved) + half_digit(message->allocated);
  int64_t of_reserved = has(message->reserved)
                            ? half_digit(message->reserved)
                            : half_digit(message->allocated) + half_digit(message->unallocated);
  bool mps = message->wording == OOM_MPS;
  int64_t of_limit = half_digit(message->allowed) + of_reserved + half_digit(message->other_allocations);
  it->missing_rounding_bytes = half_digit(message->tried) + (limited ? of_limit : half_digit(message->free));
  it->rounding_bytes = it->missing_rounding_bytes + (mps ? 0 : of_pieces);
}

/* Inside a container the driver tells pids of outside, so this process may stand among the others. */
static void find_self(const OomMessage *message, OomExplanation *it) {
  if (message->this_process.bytes >= 0 || message->process_count != 1 || it->reserved_bytes < 0) return;
  if (message->processes[0].in_use.bytes < it->reserved_bytes) return;
  it->maybe_self_pid = message->processes[0].pid;
}

static void add_up_card(const OomMessage *message, OomExplanation *it) {
  int64_t named = 0, rounding = message->total.half_digit_bytes + message->free.half_digit_bytes;
  for (int32_t i = 0; i < message->process_count; i++) {
    named += message->processes[i].in_use.bytes;
    rounding += message->processes[i].in_use.half_digit_bytes;
  }
  bool own = has(message->this_process);
  find_self(message, it);
  if ((message->process_count > 0 || own) && it->maybe_self_pid < 0) it->others_bytes = named;
  if (!has(message->total) || !has(message->free)) return;
  it->oversubscribed = it->reserved_bytes > message->total.bytes;
  if (it->oversubscribed || (!own && it->reserved_bytes < 0)) return;
  if (own)
    named += message->this_process.bytes;
  else if (it->maybe_self_pid < 0)
    named += it->reserved_bytes;
  int64_t rest = message->total.bytes - message->free.bytes - named;
  it->unnamed_bytes = rest > rounding + message->this_process.half_digit_bytes ? rest : 0;
}

/* ---- The verdict --------------------------------------------------------------------------------------------------- */

static bool close_to(int64_t a, int64_t b, int64_t within) {
  return a > b ? a - b <= within : b - a <= within;
}

static void judge_unknown(const OomMessage *message, OomExplanation *it) {
  const char *what = !has(message->tried) ? "how much was asked for"
                     : !it->room_known    ? "how much was free"
                                          : "what PyTorch held without using it";
  it->verdict = OOM_UNKNOWN;
  say(it->rule, "the message does not say %s; without that nothing tells shortage from fragmentation", what);
}

static void judge(const OomMessage *message, OomExplanation *it, bool limited) {
  int64_t tried = message->tried.bytes, room = it->room_bytes, pieces = it->unallocated_bytes;
  bool mps = message->wording == OOM_MPS;
  if (mps || (limited && message->wording == OOM_PYTORCH_ASYNC)) pieces = 0;
  if (message->impossible) {
    it->verdict = OOM_IMPOSSIBLE;
    say(it->rule, "more than 2^60 bytes were asked for: a shape or an index is wrong, not the memory");
    return;
  }
  if (tried >= 0 && it->room_known) it->missing_bytes = tried > room ? tried - room : 0;
  if (tried < 0 || !it->room_known || pieces < 0) {
    judge_unknown(message, it);
    return;
  }
  Text t = size_of(tried), r = size_of(room), p = size_of(pieces < 0 ? 0 : pieces),
       sum = size_of(room + pieces);
  const char *where = limited ? "left of the limit" : "free on the card";
  int64_t rounding = it->rounding_bytes, of_room = it->missing_rounding_bytes;
  if (close_to(tried, room, of_room) || close_to(tried, room + pieces, rounding)) {
    it->verdict = OOM_TOO_CLOSE;
    say(it->rule,
        "tried %s, %s %s, %s in pieces: the message rounds its figures, together by up to %s, and the "
        "difference is no larger",
        t.text, r.text, where, p.text, size_of(rounding).text);
  } else if (tried <= room) {
    it->verdict = OOM_REFUSED;
    say(it->rule,
        "tried %s <= %s %s: there was room, and the driver gave none (a limit of the system, no host memory "
        "to back it, or another process that took or gave back memory meanwhile)",
        t.text, r.text, where);
  } else if (tried <= room + pieces) {
    it->verdict = OOM_FRAGMENTATION;
    it->from_model_bytes = 0;
    say(it->rule,
        "tried %s > %s %s, but <= %s together with the %s that PyTorch holds unallocated: enough bytes, in "
        "pieces",
        t.text, r.text, where, sum.text, p.text);
  } else {
    it->verdict = limited ? OOM_LIMIT : OOM_SHORTAGE;
    it->from_model_bytes = tried - room - pieces;
    if (pieces == 0)
      say(it->rule, "tried %s > %s %s: too few bytes, however they lie", t.text, r.text,
          limited ? "left of the limit on this process" : where);
    else
      say(it->rule,
          "tried %s > %s = %s %s + %s that PyTorch holds unallocated: too few bytes even in one piece",
          t.text, sum.text, r.text, where, p.text);
  }
}

/* ---- Settings ------------------------------------------------------------------------------------------------------ */

/* "" where none is known. */
static const char *variable(const OomMessage *message) {
  if (*message->setting || strcmp(message->backend, "xpu") == 0) return message->setting;
  return strcmp(message->backend, "hip") == 0 ? "PYTORCH_HIP_ALLOC_CONF" : "PYTORCH_CUDA_ALLOC_CONF";
}

/* Blocks above max_split_size_mb are kept whole for requests of their size. */
static long long split_size_mib(const OomMessage *message) {
  long long size = 32;
  while (size < 512 && size * 2 * mib <= message->tried.bytes)
    size *= 2;
  return size;
}

static void choose_setting(const OomMessage *message, OomExplanation *it) {
  Text most = size_of(it->unallocated_bytes < 0 ? 0 : it->unallocated_bytes);
  switch (message->wording) {
  case OOM_PYTORCH_SENTENCES:
    if (*variable(message))
      say(it->setting, "%s=expandable_segments:True", variable(message));
    else
      say(it->setting_note, "the message names none; torch.xpu.empty_cache() returns only what is whole");
    break;
  case OOM_PYTORCH_RESERVED:
    if (*message->setting)
      say(it->setting, "%s=max_split_size_mb:%lld", variable(message), split_size_mib(message));
    else
      say(it->setting_note,
          "this message names no setting: it is of PyTorch before 1.10, which has none; 2.1 "
          "and later have expandable_segments:True");
    break;
  case OOM_PYTORCH_CACHED:
    say(it->setting_note, "PyTorch before 1.10 has none; 2.1 and later have expandable_segments:True");
    break;
  case OOM_MPS:
    say(it->setting_note,
        "the limit is PYTORCH_MPS_HIGH_WATERMARK_RATIO times what macOS recommends; 0.0 takes "
        "it away, and the system may then fail");
    return;
  case OOM_PYTORCH_ASYNC:
    say(it->setting_note,
        "backend:cudaMallocAsync is in force, and the pool is CUDA's, which the message does not tell the "
        "size of; expandable_segments:True is one of the other backend, backend:native");
    return;
  case OOM_TPU: say(it->setting_note, "none: the compiler places the whole program"); return;
  case OOM_PYTORCH_CUT: say(it->setting_note, "the message is cut off before it tells the version"); return;
  default: say(it->setting_note, "the message tells nothing about an allocator that has settings"); return;
  }
  if (it->unallocated_bytes < 0) {
    it->setting[0] = '\0';
    say(it->setting_note, "the message does not tell what PyTorch held without using it");
  } else if (it->verdict == OOM_SHORTAGE || it->verdict == OOM_LIMIT) {
    if (*it->setting) say(it->setting_note, "returns %s at most: not enough here", most.text);
  } else if (it->verdict == OOM_REFUSED || it->verdict == OOM_IMPOSSIBLE) {
    it->setting[0] = '\0';
    say(it->setting_note, "none: the allocator is not what failed");
  } else if (*it->setting) {
    say(it->setting_note, "returns %s at most; `vramlab replay` of a recorded run tells how much it would be",
        most.text);
  }
}

void vl_oom_explain(const OomMessage *message, OomExplanation *it) {
  bool limited;
  *it = (OomExplanation){.unallocated_bytes = -1,
                         .reserved_bytes = -1,

                         .missing_bytes = -1,
                         .from_model_bytes = -1,
                         .others_bytes = -1,
                         .unnamed_bytes = -1,
                         .usable_bytes = -1,
                         .maybe_self_pid = -1};
  add_up_pytorch(message, it);
  add_up_room(message, it, &limited);
  add_up_card(message, it);
  add_up_rounding(message, it, limited);
  judge(message, it, limited);
  choose_setting(message, it);
  if (it->reserved_bytes >= 0 && it->room_known && !it->oversubscribed)
    it->usable_bytes = it->reserved_bytes + it->room_bytes;
  else if (message->wording == OOM_MPS)
    it->usable_bytes = has(message->allowed) && has(message->other_allocations) &&
                               message->allowed.bytes > message->other_allocations.bytes
                           ? message->allowed.bytes - message->other_allocations.bytes
                           : message->allowed.bytes;
  else
    it->usable_bytes = message->total.bytes;
}

/* ---- What to type next --------------------------------------------------------------------------------------------- */

void vl_oom_next(const OomMessage *message, const OomExplanation *it, const OomJob *job,
                 char text[VL_OOM_TEXT_BYTES]) {
  char capacity[48] = "CAPACITY";
  const char *name = job->case_name ? job->case_name : "bert-base";
  long long batch = job->batch > 0 ? job->batch : 32;
  if (it->usable_bytes >= mib)
    snprintf(capacity, sizeof capacity, "%lldMiB", (long long)(it->usable_bytes / mib));
  text[0] = '\0';
  switch (it->verdict) {
  case OOM_IMPOSSIBLE: return;
  case OOM_REFUSED: say(text, "vramlab doctor"); return;
  case OOM_FRAGMENTATION: say(text, "vramlab replay trace.jsonl --capacity %s", capacity); return;
  default:
    if (message->wording == OOM_CPU)
      say(text, "vramlab fit --case %s --global-batch %lld", name, batch);
    else
      say(text, "vramlab fit --case %s --global-batch %lld --capacity %s", name, batch, capacity);
  }
}
