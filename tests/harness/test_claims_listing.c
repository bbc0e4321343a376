/* The listing of claims: every one is there, says what decided it or what is missing, and nothing is
 * supported that was not measured; regions name the commit that fixed them, and tell when they changed after
 * a run. */
#include "harness/claims.h"
#include "report_records.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static ClaimFile *shipped(void) {
  ClaimFile *file = NULL;
  Status status = vl_claims_load(VRAMLAB_SOURCE_DIR "/cases/claims.yaml", &file);
  if (status.code != VL_OK) fail_msg("%s", status.message);
  return file;
}

static void decide(const ClaimFile *file, const char *id, const SyntheticSet *set, ClaimVerdict *verdict) {
  RecordSet records = {.records = (const json_t **)set->owned, .count = set->count};
  const Claim *claim = vl_claims_find(file, id);
  if (claim == NULL) fail_msg("no claim %s", id);
  vl_claim_decide(claim, &records, verdict);
}

/* Every id of claims.md, those whose suite is still to come included; none of these is decided. */
static void every_claim_of_the_article_is_there(void **state) {
  (void)state;
  static const char *const ids[] = {"memory-parts",
                                    "oom-parameters",
                                    "oom-batch",
                                    "oom-accumulation",
                                    "oom-retained-graph",
                                    "resnet-shape",
                                    "resnet-level",
                                    "resnet-cause",
                                    "amp-memory",
                                    "amp-speed",
                                    "amp-grad-fp32",
                                    "amp-stability",
                                    "ckpt-cost",
                                    "ckpt-snippet",
                                    "ckpt-interval",
                                    "ckpt-transformer",
                                    "parallel-dp",
                                    "parallel-pp",
                                    "parallel-tp",
                                    "parallel-3d",
                                    "dp-1b",
                                    "parallel-table",
                                    "monitor",
                                    "parallel-overheads",
                                    "empty-cache",
                                    "diagnose",
                                    "mig",
                                    "pooling",
                                    "elastic",
                                    "bert-case",
                                    "unet-case",
                                    "future-rl",
                                    "future-zero",
                                    "future-hardware",
                                    "future-5-8x",
                                    "method"};
  ClaimFile *file = shipped();
  assert_int_equal(file->count, sizeof(ids) / sizeof(ids[0]));
  SyntheticSet none = {.count = 0};
  for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
    ClaimVerdict verdict;
    decide(file, ids[i], &none, &verdict);
    bool untestable = strcmp(ids[i], "future-hardware") == 0;
    assert_int_equal(verdict.verdict, untestable ? VERDICT_UNTESTABLE : VERDICT_UNDECIDED);
    assert_true(strlen(verdict.numbers) > 0);
    assert_string_equal(vl_claim_provenance(&verdict), untestable ? "modelled" : "none");
    json_t *json = vl_claim_verdict_json(&verdict);
    assert_true(json_is_null(json_object_get(json, "numbers")));
    assert_string_equal(json_string_value(json_object_get(json, "missing")), verdict.numbers);
    json_decref(json);
  }
  vl_claims_destroy(&file);
}

/* Whatever the rule: no cells, cells of a suite that all failed, and cells without numbers support nothing.
 */
static void nothing_is_supported_without_numbers(void **state) {
  (void)state;
  static const char *const endings[] = {"oom", "crashed", "skipped", "timeout", "ok"};
  ClaimFile *file = shipped();
  for (int32_t c = 0; c < file->count; c++) {
    const Claim *claim = &file->claims[c];
    SyntheticSet set = {.count = 0};
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
      Synthetic cell = {.suite = claim->suites->items[0]->text,
                        .recipe = i % 2 == 0 ? "baseline" : "amp=fp16",
                        .preserves = "bitwise",
                        .batch = 64,
                        .activation_bytes = 1e6,
                        .status = endings[i]};
      synthetic_add(&set, synthetic_record(&cell));
      json_t *record = set.owned[set.count - 1], *value;
      const char *key;
      json_object_foreach(record, key, value) {
        bool kept = json_is_string(value) || strcmp(key, "micro_batch") == 0;
        if (!kept) json_object_set_new(record, key, json_null());
      }
    }
    ClaimVerdict verdict;
    decide(file, claim->id, &set, &verdict);
    if (verdict.verdict == VERDICT_SUPPORTED) fail_msg("%s: %s", claim->id, verdict.numbers);
    synthetic_clear(&set);
  }
  vl_claims_destroy(&file);
}

/* Each command that a claim names can be typed: its suite is one of those that come with the program. */
static void commands_of_claims_exist(void **state) {
  (void)state;
  ClaimFile *file = shipped();
  int32_t named = 0;
  for (int32_t i = 0; i < file->count; i++) {
    const char *command = file->claims[i].command;
    char suite[64], path[512];
    if (strcmp(command, "none") == 0) {
      assert_non_null(file->claims[i].missing);
      continue;
    }
    named++;
    if (strncmp(command, "vramlab fit --case ", 19) == 0) continue;
    if (sscanf(command, "vramlab run %63s", suite) != 1) fail_msg("%s: %s", file->claims[i].id, command);
    snprintf(path, sizeof(path), VRAMLAB_SOURCE_DIR "/cases/suites/%s.yaml", suite);
    if (access(path, F_OK) != 0) fail_msg("%s: %s", file->claims[i].id, command);
  }
  assert_true(named >= 18);
  vl_claims_destroy(&file);
}

/* ---- Commits ------------------------------------------------------------------------------------------------ */

static const char *const one_entry =
    "article: a test\nclaims:\n- id: shape\n  section: one\n  sentence: s\n  translation: t\n"
    "  setting: unnamed\n  suites: [x]\n  cells: {recipe: baseline}\n  metric: m\n"
    "  denominator: none\n  rule: category-share\n  region: {share: 0.90, parts: [activation], cases: [a]}\n"
    "  trap: none\n  command: vramlab run x\n";

/* That entry, and the same under another id. free() it. */
static char *two_entries(void) {
  const char *entry = strstr(one_entry, "- id");
  size_t first = strlen(one_entry);
  char *text = malloc(first + strlen(entry) + 1);
  memcpy(text, one_entry, first);
  memcpy(text + first, entry, strlen(entry) + 1);
  memcpy(strstr(text + first, "shape"), "shade", 5);
  return text;
}

static void run_git(const char *directory, const char *rest) {
  char command[1024];
  snprintf(command, sizeof(command),
           "git -C %s -c user.name=t -c user.email=t@example.org -c commit.gpgsign=false %s >/dev/null 2>&1",
           directory, rest);
  assert_int_equal(system(command), 0);
}

static void write_text(const char *path, const char *text) {
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

/* Each entry names the commit that last changed it, whatever was changed in others since; a change that is
 * not committed is told. */
static void each_region_names_the_commit_that_fixed_it(void **state) {
  (void)state;
  if (system("git --version >/dev/null 2>&1") != 0) skip();
  char directory[] = "/tmp/vramlab-claims-XXXXXX", path[64], command[128];
  assert_non_null(mkdtemp(directory));
  snprintf(path, sizeof(path), "%s/claims.yaml", directory);
  run_git(directory, "init -q");
  write_text(path, one_entry);
  run_git(directory, "add claims.yaml");
  run_git(directory, "commit -q -m one");
  char *both = two_entries();
  write_text(path, both);
  run_git(directory, "commit -q -a -m two");
  ClaimFile *file = NULL;
  assert_int_equal(vl_claims_load(path, &file).code, VL_OK);
  assert_int_equal(strlen(file->claims[0].commit), 10);
  assert_string_not_equal(file->claims[0].commit, file->claims[1].commit);
  assert_false(file->claims[0].uncommitted || file->claims[1].uncommitted);
  vl_claims_destroy(&file);
  memcpy(strstr(both, "0.90"), "0.91", 4);
  write_text(path, both);
  assert_int_equal(vl_claims_load(path, &file).code, VL_OK);
  assert_true(file->claims[0].uncommitted);
  assert_false(file->claims[1].uncommitted);
  char text[256];
  ClaimVerdict verdict = {.claim = &file->claims[0], .headline = -1};
  vl_claim_fixed_text(&verdict, text, sizeof(text));
  assert_non_null(strstr(text, "changed since and not committed"));
  vl_claims_destroy(&file);
  snprintf(command, sizeof(command), "rm -rf %s", directory);
  assert_int_equal(system(command), 0);
  free(both);
}

/* Planned cells of resnet-growth whose need is a line. */
static void growth_cells(SyntheticSet *set) {
  static const int64_t batches[] = {1, 8, 16, 32, 64, 96, 128, 192, 256};
  for (size_t i = 0; i < sizeof(batches) / sizeof(batches[0]); i++) {
    Synthetic cell = {.suite = "resnet-growth",
                      .recipe = "baseline",
                      .preserves = "bitwise",
                      .predicted = true,
                      .batch = batches[i],
                      .activation_bytes = 105e6};
    synthetic_add(set, synthetic_record(&cell));
  }
}

static void set_all(SyntheticSet *set, const char *key, json_t *value) {
  for (int32_t i = 0; i < set->count; i++)
    json_object_set(set->owned[i], key, value);
  json_decref(value);
}

/* A build that nobody can make again is said; what a fault was put into is no evidence. */
static void what_a_cell_is_worth_is_said(void **state) {
  (void)state;
  ClaimFile *file = shipped();
  SyntheticSet set = {.count = 0};
  ClaimVerdict verdict;
  char text[256];
  growth_cells(&set);
  set_all(&set, "git_dirty", json_false());
  decide(file, "resnet-shape", &set, &verdict);
  vl_claim_fixed_text(&verdict, text, sizeof(text));
  assert_null(strstr(text, "no commit has"));
  set_all(&set, "git_dirty", json_true());
  decide(file, "resnet-shape", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_REFUTED);
  vl_claim_fixed_text(&verdict, text, sizeof(text));
  assert_non_null(strstr(text, "; run by a build that no commit has"));
  set_all(&set, "injected", json_string("slowdown=0.05"));
  decide(file, "resnet-shape", &set, &verdict);
  assert_int_equal(verdict.verdict, VERDICT_UNDECIDED);
  assert_int_equal(verdict.finding_count, 0);
  synthetic_clear(&set);
  vl_claims_destroy(&file);
}

static void changed_region_is_said(void **state) {
  (void)state;
  ClaimFile *file = shipped();
  json_t *hashes = NULL;
  assert_int_equal(vl_claims_hashes(VRAMLAB_SOURCE_DIR "/cases/claims.yaml", "resnet-growth", &hashes).code,
                   VL_OK);
  assert_int_equal(json_object_size(hashes), 4);
  char hash[VL_CLAIM_HASH_BYTES];
  assert_int_equal(vl_claims_hash(file->path, "resnet-shape", hash).code, VL_OK);
  assert_string_equal(hash, json_string_value(json_object_get(hashes, "resnet-shape")));
  assert_int_equal(vl_claims_hash(file->path, "resnet-shade", hash).code, VL_INVALID);
  SyntheticSet set = {.count = 0};
  growth_cells(&set);
  ClaimVerdict verdict;
  decide(file, "resnet-shape", &set, &verdict);
  assert_true(verdict.findings[0].region_unknown);
  for (int32_t i = 0; i < set.count; i++)
    json_object_set(set.owned[i], "claims", hashes);
  decide(file, "resnet-shape", &set, &verdict);
  assert_false(verdict.findings[0].region_unknown || verdict.findings[0].region_changed);
  json_object_set_new(hashes, "resnet-shape", json_string("0000"));
  decide(file, "resnet-shape", &set, &verdict);
  assert_true(verdict.findings[0].region_changed);
  char text[256];
  vl_claim_fixed_text(&verdict, text, sizeof(text));
  assert_non_null(strstr(text, "region changed after this run"));
  json_decref(hashes);
  synthetic_clear(&set);
  vl_claims_destroy(&file);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_claim_of_the_article_is_there),
      cmocka_unit_test(nothing_is_supported_without_numbers),
      cmocka_unit_test(commands_of_claims_exist),
      cmocka_unit_test(each_region_names_the_commit_that_fixed_it),
      cmocka_unit_test(changed_region_is_said),
      cmocka_unit_test(what_a_cell_is_worth_is_said),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
