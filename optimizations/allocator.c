/* allocator=caching, expandable, planned or async, with what PyTorch lets one set of the first two: which
 * policy of memory/memory.h cuts blocks from the device's memory. The graph stays as it is, and so does every
 * result.
 */
#include "optimizations/internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* As PyTorch does: max_split_size_mb is at least that of a large segment. */
static const int64_t least_max_split_bytes = INT64_C(20) << 20;
enum { MOST_DIVISIONS = 64 };

typedef struct Choice {
  const char *policy;
  int64_t max_split_bytes;
  double gc_threshold;
  int64_t round_divisions;
  bool remap;
} Choice;

static Status refuse(const char *value, const char *reason) {
  return vl_error(VL_INVALID, "allocator=%s: %s; accepted values are %s", value, reason,
                  optimization_allocator.values);
}

static Status parse_max_split(const char *value, const char *text, Choice *choice) {
  Status status = vl_parse_bytes(text, &choice->max_split_bytes);
  if (status.code != VL_OK) return status;
  if (choice->max_split_bytes >= least_max_split_bytes) return vl_ok();
  return refuse(value, "max-split is 20MiB or more, as PyTorch's max_split_size_mb");
}

static Status parse_gc(const char *value, const char *text, Choice *choice) {
  VL_TRY(optimization_positive(&optimization_allocator, text, &choice->gc_threshold));
  return choice->gc_threshold < 1.0 ? vl_ok() : refuse(value, "gc is a share of the capacity, below 1");
}

static Status parse_round(const char *value, const char *text, Choice *choice) {
  VL_TRY(vl_parse_integer("allocator: round", text, 2, MOST_DIVISIONS, &choice->round_divisions));
  bool power_of_two = (choice->round_divisions & (choice->round_divisions - 1)) == 0;
  return power_of_two ? vl_ok() : refuse(value, "round is a power of two");
}

/* One "key=text" of what follows the colon. */
static Status parse_option(const char *value, char *option, Choice *choice) {
  char *text = strchr(option, '=');
  if (!text) return refuse(value, "an option is written as key=value");
  *text++ = '\0';
  bool caching = strcmp(choice->policy, "caching") == 0;
  if (strcmp(option, "round") == 0)
    return choice->round_divisions ? refuse(value, "round is given twice") : parse_round(value, text, choice);
  if (strcmp(option, "remap") == 0) {
    if (caching) return refuse(value, "caching takes no remap: its segments have no granules");
    choice->remap = strcmp(text, "always") == 0;
    return choice->remap ? vl_ok() : refuse(value, "remap is always, or not given");
  }
  if (!caching && strcmp(option, "max-split") == 0)
    return refuse(value,
                  "expandable takes no max-split: blocks that merge beyond it would never be used again");
  if (!caching && strcmp(option, "gc") == 0)
    return refuse(value, "expandable takes no gc: it has no segments that are free as a whole");
  if (strcmp(option, "max-split") == 0)
    return choice->max_split_bytes ? refuse(value, "max-split is given twice")
                                   : parse_max_split(value, text, choice);
  if (strcmp(option, "gc") == 0)
    return choice->gc_threshold > 0.0 ? refuse(value, "gc is given twice") : parse_gc(value, text, choice);
  return refuse(value, "the options are max-split, gc, round and remap");
}

static Status parse(const char *value, Choice *choice) {
  static const char *const policies[] = {"caching", "expandable", "planned", "async"};
  char copy[VL_RECIPE_VALUE_BYTES], *rest = NULL;
  *choice = (Choice){0};
  snprintf(copy, sizeof copy, "%s", value);
  char *options = strchr(copy, ':');
  if (options) *options++ = '\0';
  for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
    if (strcmp(copy, policies[i]) == 0) choice->policy = policies[i];
  if (!choice->policy) return refuse(value, "there is no such policy");
  if (!options) return vl_ok();
  if (strcmp(choice->policy, "planned") == 0) return refuse(value, "planned has no options");
  if (strcmp(choice->policy, "async") == 0) return refuse(value, "async has no options");
  if (!*options || *options == ',' || strstr(options, ",,") || options[strlen(options) - 1] == ',')
    return refuse(value, "an option is missing");
  for (char *option = strtok_r(options, ",", &rest); option; option = strtok_r(NULL, ",", &rest))
    VL_TRY(parse_option(value, option, choice));
  return vl_ok();
}

static Status check(const Program *program, const char *value, const Recipe *recipe) {
  (void)program;
  (void)recipe;
  Choice choice;
  return parse(value, &choice);
}

static Status apply(Program *program, const char *value, const Target *target) {
  Choice choice;
  VL_TRY(parse(value, &choice));
  if (choice.gc_threshold > 0.0 && target->capacity_bytes == 0 && !target->unlimited)
    return vl_error(VL_INVALID, "allocator=%s: gc is a share of the capacity: give one (--capacity 16GiB)",
                    value);
  program->allocation_policy = choice.policy;
  program->max_split_bytes = choice.max_split_bytes;
  program->gc_threshold = choice.gc_threshold;
  program->round_divisions = (int32_t)choice.round_divisions;
  program->remap = choice.remap;
  return vl_ok();
}

const Optimization optimization_allocator = {
    .name = "allocator",
    .also_called =
        "PYTORCH_CUDA_ALLOC_CONF, PYTORCH_ALLOC_CONF, expandable_segments, max_split_size_mb, "
        "garbage_collection_threshold, roundup_power2_divisions, caching allocator, memory planning, "
        "static memory allocation, fragmentation, backend:cudaMallocAsync, cudaMallocAsync, "
        "stream-ordered allocator, memory pool",
    .turn_on = "import os; os.environ[\"PYTORCH_CUDA_ALLOC_CONF\"] = \"expandable_segments:True\""
               "  # before import torch; max-split, gc, round: \"max_split_size_mb:20,"
               "garbage_collection_threshold:0.8,roundup_power2_divisions:4\"; async: "
               "\"backend:cudaMallocAsync\"; planned: no equivalent",
    .values =
        "caching[:max-split=20MiB,gc=0.8,round=4] (PyTorch's, with its options), "
        "expandable[:round=4,remap=always] (its expandable segments; remap is ours), planned (places from "
        "the schedule), async (cuda only: the driver's pools, PyTorch's backend:cudaMallocAsync)",
    .help = "how blocks are cut from the device's memory: cached, in segments that grow, planned ahead, or "
            "by the "
            "driver",
    .phase = PHASE_POLICY,
    .preserves = PRESERVES_BITWISE,
    .check = check,
    .apply = apply,
};
