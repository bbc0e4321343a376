/* Every byte explained. First, what a graph saves for backward against formulas written down from the nets'
 * shapes alone, to the byte. Then, what a planned step asks for at its peak, counted by the heap's tracker
 * along the schedule, against the account, which knows neither: every category within 2 %; with `cpu` as
 * argument what a run of it does. (What blocks add
 * is the policy's, and tests/memory's.)
 *
 * The formulas. A transformer layer after Korthikanti et al. (arXiv:2205.05198) saves 34 sbh + 5 as^2b bytes
 * in 16 bits: 16 sbh + 2 as^2b elements of two bytes, and a byte for each of 2 sbh + as^2b elements dropped
 * out:
 *
 *   input of the packed projection 1, q k v 3, softmax and its dropout 2 as/h, context 1, sum 1, norm 1,
 * GELU's input 4 and output 4, sum 1
 *
 * plus two statistics a row for each of two norms. What dropout leaves has its input's type here, as on a
 * CPU, or is that byte, as on a GPU, or is drawn again and nothing. In fp32 an element has four bytes. Under
 * autocast what products read or make has two: input 1, context 1, norm 1, GELU 8, dropout of what a
 * projection made 2; four have the sums, which norms read, and where attention is written out q k v and the
 * probabilities, which it computes in fp32. */
#include "engine/engine.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void require_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

/* ---- Formulas -------------------------------------------------------------------------------------------------- */

static int64_t saved_bytes(const char *case_name, const char *const *settings, int32_t count, int64_t batch,
                           const char *recipe_text, int64_t *parameters) {
  const Case *workload = vl_case_find(case_name);
  Program program;
  Recipe recipe;
  Target target = {.ranks = 1};
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  require_ok(vl_case_arguments(workload, batch, settings, count, values));
  require_ok(workload->build(values, true, &program));
  require_ok(vl_recipe_parse(recipe_text, &recipe));
  require_ok(vl_recipe_apply(&recipe, &program, &target));
  int64_t bytes = vl_program_saved_bytes(&program);
  *parameters = vl_graph_parameter_count(program.graph);
  vl_program_destroy(&program);
  return bytes;
}

typedef struct Bert {
  int64_t batch, sequence, layers, hidden, heads, vocabulary;
} Bert;

/* wide, low: bytes of an fp32 element and of one that autocast lowers. */
typedef struct Saving {
  const char *recipe;
  int64_t wide, low;
  bool fused;      /* attention */
  int64_t dropped; /* bytes dropout leaves for an element; -1: as many as its input's have */
} Saving;

static int64_t noise(const Saving *as, int64_t input) { return as->dropped < 0 ? input : as->dropped; }

static int64_t layer_bytes(const Bert *net, const Saving *as) {
  int64_t wide = as->wide, low = as->low;
  int64_t b = net->batch, s = net->sequence, h = net->hidden, a = net->heads;
  int64_t attention = as->fused ? low * 4 * b * s * h + 4 * a * b * s /* packed q k v, context, lse */
                                : wide * (3 * b * s * h + 2 * a * s * s * b) + low * b * s * h;
  int64_t products = low * (1 + 1 + 4 + 4) * b * s * h, sums = wide * 2 * b * s * h;
  int64_t masks = noise(as, low) * 2 * b * s * h + (as->fused ? 0 : noise(as, wide) * a * s * s * b);
  return attention + products + sums + masks + 2 * (2 * 4 * b * s);
}

/* The net: embedding's sum, mask and statistics; the head's input, GELU's input and output and the norm's, at
 * the masked positions; scores once, as log-probabilities; the pooled token, before and after tanh; ids. */
static int64_t bert_bytes(const Bert *net, const Saving *as) {
  int64_t wide = as->wide, low = as->low;
  int64_t b = net->batch, s = net->sequence, h = net->hidden, m = s * 15 / 100 + 1;
  int64_t embedding = (wide + noise(as, wide)) * b * s * h + 2 * 4 * b * s;
  int64_t head = b * m * h * (low + low + wide + low) + 2 * 4 * b * m + 4 * b * m * net->vocabulary;
  int64_t pooled = b * h * (low + low) + 4 * 2 * b;
  int64_t ids = 4 * (2 * b * s + 2 * b * m + b);
  return net->layers * layer_bytes(net, as) + embedding + head + pooled + ids;
}

static int64_t bert_parameters(const Bert *net) {
  int64_t h = net->hidden, v = net->vocabulary;
  return (v + 512 + 2) * h + 2 * h + net->layers * (12 * h * h + 13 * h) + (h * h + 3 * h) + v + (h * h + h) +
         2 * h + 2;
}

static void bert_saves_what_its_formula_says(void **state) {
  (void)state;
  static const struct {
    const char *case_name;
    Bert net;
  } nets[] = {{"bert-base", {8, 128, 12, 768, 12, 30522}},
              {"bert-base", {2, 512, 12, 768, 12, 30522}},
              {"bert-large", {1, 128, 24, 1024, 16, 30522}}};
  static const Saving savings[] = {{"baseline", 4, 4, false, -1},
                                   {"dropout=mask", 4, 4, false, 1},
                                   {"dropout=redrawn", 4, 4, false, 0},
                                   {"attention=fused", 4, 4, true, -1},
                                   {"amp=bf16", 4, 2, false, -1},
                                   {"amp=fp16 dropout=mask", 4, 2, false, 1},
                                   {"amp=bf16 attention=fused dropout=redrawn", 4, 2, true, 0}};
  for (size_t i = 0; i < sizeof nets / sizeof *nets; i++) {
    const Bert *net = &nets[i].net;
    char sequence[32];
    snprintf(sequence, sizeof sequence, "sequence=%lld", (long long)net->sequence);
    for (size_t k = 0; k < sizeof savings / sizeof *savings; k++) {
      const Saving *as = &savings[k];
      const char *settings[] = {sequence};
      int64_t parameters = 0, expected = bert_bytes(net, as);
      int64_t bytes = saved_bytes(nets[i].case_name, settings, 1, net->batch, as->recipe, &parameters);
      print_message("  %s %s batch %lld %s: %lld bytes, formula %lld\n", nets[i].case_name, sequence,
                    (long long)net->batch, as->recipe, (long long)bytes, (long long)expected);
      assert_int_equal(parameters, bert_parameters(net));
      assert_int_equal(bytes, expected);
    }
  }
}

/* ResNet-50 v1.5: the output of every convolution (what its norm reads) and of every activation (what the
 * next convolution reads), which is the norm's and the sum's own, in place; the pooled stem with PyTorch's
 * 64-bit indices; two statistics a channel. Of elements, statistics and indices. */
typedef struct Saved {
  int64_t elements, channels;
} Saved;

static void save(Saved *saved, int64_t channels, int64_t side, int64_t tensors) {
  saved->elements += tensors * channels * side * side;
}

static Saved resnet50_saved(int64_t side) {
  static const int64_t widths[] = {64, 128, 256, 512}, blocks[] = {3, 4, 6, 3};
  Saved saved = {0};
  side /= 2;
  save(&saved, 64, side, 2);
  saved.channels += 64;
  side /= 2;
  save(&saved, 64, side, 1);
  for (int32_t stage = 0; stage < 4; stage++) {
    for (int64_t block = 0; block < blocks[stage]; block++) {
      int64_t width = widths[stage], after = block == 0 && stage > 0 ? side / 2 : side;
      save(&saved, width, side, 2);      /* 1 x 1 */
      save(&saved, width, after, 2);     /* 3 x 3, with the stride */
      save(&saved, 4 * width, after, 2); /* 1 x 1, and the sum */
      saved.channels += 6 * width;
      if (block == 0) {
        save(&saved, 4 * width, after, 1); /* the way beside */
        saved.channels += 4 * width;
      }
      side = after;
    }
  }
  return saved;
}

static void resnet50_saves_what_its_formula_says(void **state) {
  (void)state;
  static const int64_t sides[] = {224, 96};
  for (size_t i = 0; i < 2; i++) {
    int64_t side = sides[i], batch = 4, stem = 64 * (side / 4) * (side / 4);
    Saved saved = resnet50_saved(side);
    for (int64_t low = 4; low >= 2; low -= 2) {
      char size[32];
      snprintf(size, sizeof size, "size=%lld", (long long)side);
      const char *settings[] = {size};
      int64_t parameters = 0;
      int64_t head = low * 2048 + 4 * 1000 + 4; /* pooled, log-probabilities, label */
      int64_t input = (low == 4 ? 4 : 2) * 3 * side * side;
      int64_t expected = batch * (low * saved.elements + 8 * stem + head + input) + 2 * 4 * saved.channels;
      int64_t bytes =
          saved_bytes("resnet50", settings, 1, batch, low == 4 ? "baseline" : "amp=bf16", &parameters);
      print_message("  resnet50 %s: %lld bytes, formula %lld\n", size, (long long)bytes, (long long)expected);
      assert_int_equal(parameters, 25557032);
      assert_int_equal(bytes, expected);
    }
  }
}

/* ---- The account against the heap -------------------------------------------------------------------------------- */

enum { MEBIBYTE = 1 << 20 };

static void print_terms(const CellResult *result) {
  for (int32_t i = 0; i < result->account.term_count; i++) {
    const MemoryTerm *term = &result->account.terms[i];
    print_message("      %-14s %-36s %5lld %12lld + %lld\n", vl_memory_category_name(term->category),
                  term->name, (long long)term->count, (long long)term->bytes,
                  (long long)term->rounding_bytes);
  }
}

static void check_cell(CellSpec *spec) {
  CellResult *result = malloc(sizeof *result);
  require_ok(vl_cell_run(spec, NULL, result));
  if (strcmp(result->status, "ok") != 0)
    fail_msg("%s %s: %s: %s", spec->case_name, spec->recipe, result->status, result->error);
  bool fails = false;
  print_message("  %s %s batch %lld %s: peak at %s in %s\n", spec->case_name,
                spec->setting_count > 0 ? spec->settings[0] : "", (long long)spec->micro_batch, spec->recipe,
                result->account.op, result->account.scope);
  for (int32_t c = 0; c < MEMORY_CATEGORY_COUNT; c++) {
    double counted = (double)result->requested_by_category[c],
           reckoned = (double)result->account.by_category[c];
    if (counted == 0 && reckoned == 0) continue;
    double difference = counted / reckoned - 1.0;
    fails = fails || !(difference >= -0.02 && difference <= 0.02);
    print_message("    %-14s %9.2f MiB, parts %9.2f, %+.2f %%\n", vl_memory_category_name((MemoryCategory)c),
                  counted / MEBIBYTE, reckoned / MEBIBYTE, 100 * difference);
  }
  double peak = (double)result->peak_allocated_bytes / (double)result->account.highest_bytes - 1.0;
  bool is_large = spec->profile[0]; /* what rests of blocks add is little only then */
  fails = fails || (is_large && !(peak >= -0.02 && peak <= 0.02));
  print_message("    %-14s %9.2f MiB, reckoned by itself %+.2f %%\n", "peak",
                (double)result->peak_allocated_bytes / MEBIBYTE, 100 * peak);
  if (fails) print_terms(result);
  vl_cell_result_clear(result);
  free(result);
  if (fails) fail_msg("%s %s is not explained", spec->case_name, spec->recipe);
}

static void check_cells(const char *case_name, const char *setting, const int64_t *batches,
                        const char *const *recipes) {
  for (; *recipes; recipes++) {
    for (const int64_t *batch = batches; *batch; batch++) {
      CellSpec spec;
      vl_cell_spec_init(&spec);
      snprintf(spec.case_name, sizeof spec.case_name, "%s", case_name);
      snprintf(spec.recipe, sizeof spec.recipe, "%s", *recipes);
      snprintf(spec.settings[0], sizeof spec.settings[0], "%s", setting);
      snprintf(spec.device, sizeof spec.device, "plan");
      snprintf(spec.profile, sizeof spec.profile, "A100-80GB");
      spec.setting_count = 1;
      spec.micro_batch = *batch;
      spec.unlimited = true;
      check_cell(&spec);
    }
  }
}

/* The same where kernels run, in small, with what they want besides. */
static void measured_cells_hold_their_parts(void **state) {
  (void)state;
  static const char *const settings[] = {"layers=3", "hidden=64", "heads=4", "vocabulary=300", "sequence=32"};
  static const char *const recipes[] = {"baseline",
                                        "offload=activations",
                                        "offload=activations:1+optimizer",
                                        "checkpoint=1 offload=activations+optimizer",
                                        "accumulate=2 offload=activations+optimizer",
                                        "stack=vramlab amp=bf16 offload=activations+optimizer",
                                        NULL};
  for (int32_t net = 0; net < 2; net++) {
    for (const char *const *recipe = recipes; *recipe; recipe++) {
      CellSpec spec;
      vl_cell_spec_init(&spec);
      snprintf(spec.case_name, sizeof spec.case_name, "%s", net ? "resnet50" : "bert-base");
      snprintf(spec.recipe, sizeof spec.recipe, "%s", *recipe);
      for (int32_t i = 0; i < (net ? 1 : 5); i++)
        snprintf(spec.settings[spec.setting_count++], sizeof spec.settings[0], "%s",
                 net ? "size=32" : settings[i]);
      spec.micro_batch = 4;
      spec.steps = 1;
      check_cell(&spec);
    }
  }
}

static const char *const recipes_of_bert[] = {
    "baseline",
    "amp=bf16",
    "attention=fused",
    "checkpoint=1",
    "checkpoint=3",
    "checkpoint=segments:2",
    "amp=bf16 checkpoint=2",
    "accumulate=4",
    "amp=bf16 accumulate=4 checkpoint=1",
    "update=in-backward",
    "checkpoint=model",
    "amp=fp16 checkpoint=selective",
    "checkpoint=ops:20",
    "dropout=redrawn recompute=gelu",
    "layer-norm=composed",
    "amp=fp16 optimizer-state=8bit",
    "amp=fp16 dropout=mask checkpoint=model recompute=inner-norm",
    "checkpoint=2 recompute=gelu",
    "freeze=6",
    "loss-chunks=4",
    "stack=vramlab",
    "stack=vramlab amp=bf16 update=in-backward",
    "stack=vramlab amp=bf16 checkpoint=1",
    "offload=activations",
    "offload=activations:4",
    "offload=optimizer",
    "offload=activations+optimizer",
    "amp=bf16 offload=activations",
    "amp=fp16 checkpoint=2 offload=activations+optimizer",
    "accumulate=4 offload=activations+optimizer",
    "optimizer-state=8bit offload=optimizer",
    "stack=vramlab amp=bf16 offload=activations+optimizer",
    "stack=vramlab update=in-backward offload=activations+optimizer",
    NULL};
static const char *const recipes_of_resnet[] = {"baseline",
                                                "amp=bf16",
                                                "checkpoint=1",
                                                "checkpoint=4",
                                                "amp=bf16 checkpoint=2",
                                                "inplace-abn=0.01",
                                                "stack=vramlab",
                                                "stack=vramlab recompute=norm update=in-backward",
                                                "stack=vramlab amp=bf16 recompute=norm update=in-backward",
                                                "offload=activations",
                                                "offload=activations:8+optimizer",
                                                "amp=bf16 offload=activations",
                                                "checkpoint=4 offload=activations",
                                                "stack=vramlab offload=activations+optimizer",
                                                "stack=vramlab recompute=norm update=in-backward "
                                                "offload=activations+optimizer",
                                                NULL};

static const char *const recipes_of_unet[] = {"baseline",
                                              "amp=bf16",
                                              "checkpoint=1",
                                              "checkpoint=2 offload=activations",
                                              "offload=activations+optimizer",
                                              "stack=vramlab amp=bf16 recompute=norm update=in-backward",
                                              "stack=vramlab recompute=norm offload=activations+optimizer",
                                              NULL};

static void bert_holds_its_parts(void **state) {
  (void)state;
  check_cells("bert-base", "sequence=128", (const int64_t[]){8, 64, 0}, recipes_of_bert);
  check_cells("bert-base", "sequence=512", (const int64_t[]){4, 32, 0}, recipes_of_bert);
}

static void resnet50_holds_its_parts(void **state) {
  (void)state;
  check_cells("resnet50", "size=224", (const int64_t[]){8, 64, 0}, recipes_of_resnet);
}

static void unet3d_holds_its_parts(void **state) {
  (void)state;
  check_cells("unet3d", "size=64", (const int64_t[]){2, 8, 0}, recipes_of_unet);
}

int main(int argc, char **argv) {
  const struct CMUnitTest measured[] = {cmocka_unit_test(measured_cells_hold_their_parts)};
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bert_saves_what_its_formula_says),
      cmocka_unit_test(resnet50_saves_what_its_formula_says),
      cmocka_unit_test(bert_holds_its_parts),
      cmocka_unit_test(resnet50_holds_its_parts),
      cmocka_unit_test(unet3d_holds_its_parts),
  };
  if (argc > 1 && strcmp(argv[1], "cpu") == 0) return cmocka_run_group_tests(measured, NULL, NULL);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
