/* Recipes: one canonical text for equal recipes, plain messages for what is not accepted, and the same
 * program however a recipe is written. */
#include "optimizations/optimizations.h"
#include "tests/graph/networks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void assert_canonical(const char *text, const char *expected) {
  Recipe recipe, again;
  char formatted[256], twice[256];
  require_ok(vl_recipe_parse(text, &recipe));
  vl_recipe_format(&recipe, formatted, sizeof formatted);
  assert_string_equal(formatted, expected);
  require_ok(vl_recipe_parse(formatted, &again));
  vl_recipe_format(&again, twice, sizeof twice);
  assert_string_equal(twice, expected);
  assert_int_equal(again.count, recipe.count);
  assert_int_equal(again.stack_vramlab, recipe.stack_vramlab);
}

static void equal_recipes_have_equal_text(void **state) {
  (void)state;
  assert_canonical("", "baseline");
  assert_canonical("baseline", "baseline");
  assert_canonical("  ", "baseline");
  assert_canonical("stack=pytorch", "baseline");
  assert_canonical("amp=bf16 checkpoint=4", "amp=bf16 checkpoint=4");
  assert_canonical(" checkpoint=4\tamp=bf16\n", "amp=bf16 checkpoint=4");
  assert_canonical("checkpoint=4 stack=pytorch amp=bf16", "amp=bf16 checkpoint=4");
  assert_canonical("amp=bf16 stack=vramlab", "stack=vramlab amp=bf16");
  assert_canonical("activation-gradients=fp32 amp=fp16", "amp=fp16 activation-gradients=fp32");
  assert_canonical("recompute=norm update=in-backward checkpoint=2 amp=bf16 stack=vramlab",
                   "stack=vramlab amp=bf16 update=in-backward checkpoint=2 recompute=norm");
}

static void keys_beside_our_stack_override_its_parts(void **state) {
  (void)state;
  Recipe recipe;
  require_ok(vl_recipe_parse("stack=vramlab", &recipe));
  assert_string_equal(vl_recipe_value(&recipe, "fuse"), "norm+bias-gelu");
  assert_string_equal(vl_recipe_value(&recipe, "inplace"), "all");
  assert_string_equal(vl_recipe_value(&recipe, "attention"), "fused");
  assert_canonical("stack=vramlab fuse=norm+bias-gelu inplace=all", "stack=vramlab");
  assert_canonical("inplace=source stack=vramlab", "stack=vramlab inplace=source");
  require_ok(vl_recipe_parse("inplace=source stack=vramlab", &recipe));
  assert_string_equal(vl_recipe_value(&recipe, "inplace"), "source");
  assert_null(vl_recipe_value(&recipe, "checkpoint"));
}

static void assert_refused(const char *text, const char *first, const char *second) {
  Recipe recipe;
  Status status = vl_recipe_parse(text, &recipe);
  assert_int_equal(status.code, VL_INVALID);
  if (!strstr(status.message, first) || !strstr(status.message, second)) {
    fail_msg("'%s': '%s' names neither '%s' nor '%s'", text, status.message, first, second);
  }
}

static void refusals_name_what_is_accepted(void **state) {
  (void)state;
  assert_refused("ampp=bf16", "'ampp'", "known: stack, ");
  assert_refused("amp=fp8", "amp=fp8", "accepted values are bf16");
  assert_refused("amp=bf1", "amp=bf1", "accepted values are bf16");
  assert_refused("amp", "amp needs a value", "bf16");
  assert_refused("amp=", "amp needs a value", "bf16");
  assert_refused("=bf16", "''", "known");
  assert_refused("amp=bf16 amp=bf16", "amp is given twice", "");
  assert_refused("stack=vramlab stack=pytorch", "stack is given twice", "");
  assert_refused("stack=tensorflow", "stack=tensorflow", "pytorch, vramlab");
  assert_refused("stack", "stack=", "pytorch, vramlab");
  assert_refused("checkpoint=0", "checkpoint", "0");
  assert_refused("checkpoint=04", "checkpoint=04", "leading zeros"); /* one text for one recipe */
  assert_refused("checkpoint=segments:003", "segments:003", "leading zeros");
  assert_refused("accumulate=0", "accumulate", "0");
  assert_refused("accumulate=02", "accumulate=02", "leading zeros");
  assert_refused("accumulate=65537", "accumulate", "65536");
  assert_refused("accumulate=half", "accumulate", "half");
  assert_refused("checkpoint=-1", "checkpoint", "-1");
  assert_refused("checkpoint=2x", "checkpoint", "2x");
  assert_refused("checkpoint=segments:0", "checkpoint", "0");
  assert_refused("checkpoint=segments:", "checkpoint", "whole number");
  assert_refused("checkpoint=segment:2", "checkpoint=segment:2", "segments:n");
  assert_refused("inplace-abn=0", "inplace-abn=0", "slopes above 0");
  assert_refused("inplace-abn=0.1x", "inplace-abn=0.1x", "slopes above 0");
  assert_refused("layer-norm=unfused", "layer-norm=unfused", "composed, fused");
  assert_refused("dropout=kept", "dropout=kept", "stored, mask, redrawn");
  assert_refused("fuse=norm+", "fuse=norm+", "joined by +");
  assert_refused("fuse=bias-gelu+norm", "fuse=bias-gelu+norm", "in this order");
  assert_refused("fuse=norms", "fuse=norms", "residual-norm");
  assert_refused("inplace=some", "inplace=some", "source, all");
  assert_refused("inplace=source,all", "inplace=source,all", "accepted values are source, all");
  assert_refused("update=now", "update=now", "in-backward");
  assert_refused("recompute=all", "recompute=all", "norm");
  assert_refused("activation-gradients=low", "activation-gradients=low", "accepted values are fp32");
  assert_refused("optimizer-state=4bit", "optimizer-state=4bit", "accepted values are 8bit");
  assert_refused("freeze=all", "freeze=all", "embeddings, or k");
  assert_refused("freeze=-1", "freeze=-1", "embeddings, or k");
  assert_refused("freeze=0", "freeze", "0");
  assert_refused("freeze=01", "freeze=01", "leading zeros");
  assert_refused("freeze=2x", "freeze", "2x");
  assert_refused("loss-chunks=0", "loss-chunks", "0");
  assert_refused("loss-chunks=08", "loss-chunks=08", "leading zeros");
  assert_refused("loss-chunks=some", "loss-chunks", "some");
  assert_refused("allocator=best-fit", "allocator=best-fit", "no such policy");
  assert_refused("allocator=caching:", "an option is missing", "expandable");
  assert_refused("allocator=caching:gc=0.5,", "an option is missing", "");
  assert_refused("allocator=caching:gc", "key=value", "");
  assert_refused("allocator=caching:size=4", "the options are max-split, gc, round and remap", "");
  assert_refused("allocator=caching:max-split=19MiB", "20MiB or more", "max_split_size_mb");
  assert_refused("allocator=caching:max-split=big", "big", "");
  assert_refused("allocator=caching:gc=1", "below 1", "share of the capacity");
  assert_refused("allocator=caching:gc=0", "allocator", "gc=0.8");
  assert_refused("allocator=caching:round=6", "power of two", "");
  assert_refused("allocator=caching:round=128", "round", "64");
  assert_refused("allocator=caching:gc=0.5,gc=0.6", "gc is given twice", "");
  assert_refused("allocator=caching:remap=always", "caching takes no remap", "");
  assert_refused("allocator=expandable:remap=sometimes", "remap is always", "");
  assert_refused("allocator=expandable:gc=0.5", "expandable takes no gc", "");
  assert_refused("allocator=expandable:max-split=20MiB", "expandable takes no max-split",
                 "never be used again");
  assert_refused("allocator=planned:round=4", "planned has no options", "");
  assert_refused("allocator=async:round=4", "async has no options", "cudaMallocAsync");
  assert_refused("allocator=async defragment=every-step", "there is nothing to move", "pool");
  assert_refused("defragment=always", "defragment=always", "every-step");
  assert_refused("allocator=planned defragment=every-step", "there is nothing to move", "");
  char text[600];
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  assert_refused(text, "longer than", "bytes");
  memset(text, '1', 4 + VL_RECIPE_VALUE_BYTES);
  memcpy(text, "amp=", 4);
  text[4 + VL_RECIPE_VALUE_BYTES] = '\0';
  assert_refused(text, "amp needs a value of at most 127 characters", "bf16");
}

static void the_table_is_complete_and_in_phase_order(void **state) {
  (void)state;
  int32_t count;
  const Optimization *const *all = vl_optimization_all(&count);
  assert_true(count >= 8);
  for (int32_t i = 0; i < count; i++) {
    const Optimization *optimization = all[i];
    assert_ptr_equal(vl_optimization_find(optimization->name), optimization);
    assert_true(optimization->also_called[0] && optimization->turn_on[0] && optimization->help[0]);
    assert_true(optimization->values[0]);
    assert_true(i == 0 || all[i - 1]->phase <= optimization->phase); /* canonical order is phase order */
    assert_true(vl_phase_name(optimization->phase)[0] && vl_preserves_name(optimization->preserves)[0]);
  }
  assert_null(vl_optimization_find("gradient checkpointing")); /* synonyms are for `list` */
}

static void the_weakest_promise_counts(void **state) {
  (void)state;
  static const struct {
    const char *recipe;
    Preserves preserves;
  } cases[] = {
      {"baseline", PRESERVES_BITWISE},
      {"checkpoint=2 recompute=norm update=in-backward inplace=all pool-index=u8", PRESERVES_BITWISE},
      {"fuse=norm checkpoint=2", PRESERVES_TOLERANCE},
      {"stack=vramlab", PRESERVES_TOLERANCE},
      {"checkpoint=1 amp=bf16", PRESERVES_TOLERANCE}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Recipe recipe;
    require_ok(vl_recipe_parse(cases[i].recipe, &recipe));
    assert_int_equal(vl_recipe_preserves(&recipe, NULL), cases[i].preserves);
  }
}

/* ---- Every key ---------------------------------------------------------------------------------------------------------- */

/* A value of each key that is no part of stack=vramlab. A new optimization has a line here. */
static const char *const samples[][2] = {
    {"inplace-abn", "0.01"},
    {"fuse", "residual-norm"},
    {"fold", "norm"},
    {"dynamic-batch", "bucketed"},
    {"pool-index", "u8"},
    {"freeze", "embeddings"},
    {"groups", "4"},
    {"loss-chunks", "4"},
    {"amp", "fp16"},
    {"loss-scale", "off"},
    {"clip", "1"},
    {"attention", "materialised"},
    {"layer-norm", "composed"},
    {"dropout", "stored"},
    {"optimizer-state", "8bit"},
    {"activation-gradients", "fp32"},
    {"weights", "cached"},
    {"inplace", "source"},
    {"update", "in-backward"},
    {"accumulate", "2"},
    {"checkpoint", "2"},
    {"recompute", "norm"},
    {"offload", "optimizer"},
    {"accumulate-wrong", "2"},
    {"retain-graph", "every-step"},
    {"keep-loss", "until-update"},
    {"keep-recomputed", "until-update"},
    {"copy-weights", "fp32"},
    {"oversize-workspace", "64MiB"},
    {"grow", "1KiB"},
    {"concat", "copy"},
    {"precision", "tf32"},
    {"window-sums", "host"},
    {"algorithms", "timed"},
    {"allocator", "expandable"},
    {"defragment", "every-step"},
};
enum { SAMPLES = sizeof samples / sizeof *samples };

static const char *sample_of(const Optimization *optimization) {
  for (int32_t i = 0; i < SAMPLES; i++)
    if (strcmp(samples[i][0], optimization->name) == 0) return samples[i][1];
  fail_msg("no sample value of %s", optimization->name);
  return NULL;
}

/* "a=1 b=2", with the stack's name in front when there is one. */
static void join(char text[256], const char *stack, const Optimization *a, const Optimization *b) {
  int used = snprintf(text, 256, "%s%s%s=%s", stack, *stack ? " " : "", a->name, sample_of(a));
  if (b) snprintf(text + used, 256 - (size_t)used, " %s=%s", b->name, sample_of(b));
}

/* One text for both orders, the table's; what two keys refuse together, they refuse in both. */
static void every_pair_of_keys_has_one_text(void **state) {
  (void)state;
  int32_t count;
  const Optimization *const *all = vl_optimization_all(&count);
  for (int32_t i = 0; i < count; i++) {
    for (int32_t k = i + 1; k < count; k++) {
      char forth[256], back[256], formatted[256];
      Recipe recipe;
      join(forth, "", all[i], all[k]);
      join(back, "", all[k], all[i]);
      Status status = vl_recipe_parse(forth, &recipe), other = vl_recipe_parse(back, &recipe);
      assert_int_equal(status.code, other.code);
      if (status.code != VL_OK) {
        assert_string_equal(status.message, other.message);
        continue;
      }
      vl_recipe_format(&recipe, formatted, sizeof formatted);
      assert_string_equal(formatted, forth);
    }
  }
}

/* Whatever the second value. */
static void every_key_given_twice_is_refused(void **state) {
  (void)state;
  int32_t count;
  const Optimization *const *all = vl_optimization_all(&count);
  for (int32_t i = 0; i < count; i++) {
    char text[256], named[96];
    join(text, "", all[i], all[i]);
    snprintf(named, sizeof named, "%s is given twice", all[i]->name);
    assert_refused(text, named, "");
    snprintf(text, sizeof text, "%s=%s amp=bf16 %s=1", all[i]->name, sample_of(all[i]), all[i]->name);
    if (strcmp(all[i]->name, "amp") != 0) assert_refused(text, named, "");
  }
}

/* What the stack says by itself is left out of the text and another value is kept; a key it does not have is
 * not there until it is given. */
static void the_stack_expands_to_its_parts_and_no_more(void **state) {
  (void)state;
  Recipe stack;
  int32_t count, parts = 0;
  const Optimization *const *all = vl_optimization_all(&count);
  require_ok(vl_recipe_parse("stack=vramlab", &stack));
  assert_true(stack.stack_vramlab);
  for (int32_t i = 0; i < count; i++) {
    const char *implied = vl_recipe_value(&stack, all[i]->name);
    char text[256], given[256], formatted[256];
    Recipe recipe;
    if (implied) {
      parts++;
      snprintf(given, sizeof given, "%s=%s stack=vramlab", all[i]->name, implied);
      require_ok(vl_recipe_parse(given, &recipe));
      assert_int_equal(recipe.count, stack.count);
      vl_recipe_format(&recipe, formatted, sizeof formatted);
      assert_string_equal(formatted, "stack=vramlab");
      if (strcmp(implied, sample_of(all[i])) == 0) continue; /* it has one value only */
    }
    join(text, "stack=vramlab", all[i], NULL);
    Status status = vl_recipe_parse(text, &recipe);
    if (strstr(status.message, " needs ")) continue; /* another key, which the stack does not have */
    require_ok(status);
    assert_int_equal(recipe.count, stack.count + (implied ? 0 : 1));
    assert_string_equal(vl_recipe_value(&recipe, all[i]->name), sample_of(all[i]));
    vl_recipe_format(&recipe, formatted, sizeof formatted);
    assert_string_equal(formatted, text);
  }
  assert_int_equal(parts, stack.count);
}

/* ---- Order ------------------------------------------------------------------------------------------------------------ */

/* The whole program as text: graph and schedule. */
static char *program_text(const char *recipe_text) {
  Program program;
  Recipe recipe;
  Target target = {.ranks = 1};
  Schedule *schedule = NULL;
  char *text = NULL;
  size_t size = 0;
  network_bottlenecks(&(NetOptions){.batch = 2, .size = 16}, &program);
  require_ok(vl_recipe_parse(recipe_text, &recipe));
  require_ok(vl_recipe_apply(&recipe, &program, &target));
  require_ok(vl_schedule_build(&program, &schedule));
  FILE *out = open_memstream(&text, &size);
  assert_non_null(out);
  require_ok(vl_graph_write_json(program.graph, out));
  vl_schedule_print(schedule, out);
  fclose(out);
  vl_schedule_destroy(&schedule);
  vl_program_destroy(&program);
  return text;
}

static void permute(const char **items, int32_t from, int32_t count, const char *expected) {
  if (from == count) {
    char recipe[256] = "";
    for (int32_t i = 0; i < count; i++) {
      size_t used = strlen(recipe);
      snprintf(recipe + used, sizeof recipe - used, "%s%s", i ? " " : "", items[i]);
    }
    char *text = program_text(recipe);
    if (strcmp(text, expected) != 0) fail_msg("'%s' gives another program", recipe);
    free(text);
    return;
  }
  for (int32_t i = from; i < count; i++) {
    const char *first = items[i];
    items[i] = items[from];
    items[from] = first;
    permute(items, from + 1, count, expected);
    items[from] = items[i];
    items[i] = first;
  }
}

static void every_order_gives_the_same_program(void **state) {
  (void)state;
  const char *items[] = {"stack=vramlab", "amp=bf16", "checkpoint=2", "recompute=norm", "update=in-backward"};
  char *expected = program_text("stack=vramlab amp=bf16 update=in-backward checkpoint=2 recompute=norm");
  permute(items, 0, 5, expected);
  char *baseline = program_text("baseline");
  assert_string_not_equal(expected, baseline);
  free(baseline);
  free(expected);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(equal_recipes_have_equal_text),
      cmocka_unit_test(keys_beside_our_stack_override_its_parts),
      cmocka_unit_test(refusals_name_what_is_accepted),
      cmocka_unit_test(the_table_is_complete_and_in_phase_order),
      cmocka_unit_test(the_weakest_promise_counts),
      cmocka_unit_test(every_pair_of_keys_has_one_text),
      cmocka_unit_test(every_key_given_twice_is_refused),
      cmocka_unit_test(the_stack_expands_to_its_parts_and_no_more),
      cmocka_unit_test(every_order_gives_the_same_program),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
