/* A step held against the account of its program: six planted mistakes are each found alone, with op, scope
 * and exact bytes, planned and measured; runs that make none report nothing. */
#include "engine/engine.h"
#include "tests/graph/networks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static CellSpec spec_of(const char *device, const char *recipe) {
  CellSpec spec;
  vl_cell_spec_init(&spec);
  snprintf(spec.device, sizeof spec.device, "%s", device);
  snprintf(spec.case_name, sizeof spec.case_name, "resnet50");
  snprintf(spec.settings[0], sizeof spec.settings[0], "size=32");
  snprintf(spec.settings[1], sizeof spec.settings[1], "classes=10");
  spec.setting_count = 2;
  spec.micro_batch = 4;
  spec.threads = 2;
  spec.steps = 2;
  spec.diagnose = true;
  /* Blocks have no rests: what the heap counts is what tensors take. */
  snprintf(spec.recipe, sizeof spec.recipe, "allocator=expandable %s", recipe);
  return spec;
}

static CellResult *run(const CellSpec *spec) {
  CellResult *result = vl_allocate(sizeof *result);
  require_ok(vl_cell_run(spec, NULL, result));
  if (strcmp(result->status, "ok") != 0) fail_msg("%s: %s %s", spec->recipe, result->status, result->error);
  return result;
}

static void done(CellResult *result) {
  vl_cell_result_clear(result);
  free(result);
}

/* The one anomaly of a run. */
static Anomaly only(const CellResult *result, AnomalyKind kind) {
  if (result->diagnosis.anomaly_count != 1 || result->diagnosis.anomalies[0].kind != kind)
    fail_msg("%s: %d anomalies, the first %s", result->recipe, (int)result->diagnosis.anomaly_count,
             result->diagnosis.anomaly_count ? vl_anomaly_name(result->diagnosis.anomalies[0].kind) : "none");
  return result->diagnosis.anomalies[0];
}

static int64_t rounded(int64_t bytes) {
  return (bytes + VL_BLOCK_BYTES - 1) / VL_BLOCK_BYTES * VL_BLOCK_BYTES;
}

static const char *const devices[] = {"plan", "cpu"};
enum { DEVICES = 2 };

static void a_retained_graph_is_found(void **state) {
  (void)state;
  for (int d = 0; d < DEVICES; d++) {
    CellSpec spec = spec_of(devices[d], "retain-graph=every-step");
    CellResult *result = run(&spec);
    Anomaly found = only(result, ANOMALY_RETAINED_GRAPH);
    /* What the heap saw grow: the last two steps' difference. */
    int32_t n = result->peak_count;
    assert_int_equal(found.bytes, result->live_bytes[n - 1] - result->live_bytes[n - 2]);
    assert_string_equal(found.op, "batch_norm_apply");
    assert_string_equal(found.scope, "bn1");
    done(result);
  }
}

static void a_loss_kept_with_its_graph_is_found(void **state) {
  (void)state;
  for (int d = 0; d < DEVICES; d++) {
    CellSpec kept = spec_of(devices[d], "keep-loss=until-update");
    CellSpec leaks = spec_of(devices[d], "retain-graph=every-step");
    CellResult *result = run(&kept), *other = run(&leaks);
    Anomaly found = only(result, ANOMALY_KEPT_LOSS);
    /* The same tensors, which stay for ever there. */
    assert_int_equal(found.bytes, only(other, ANOMALY_RETAINED_GRAPH).bytes);
    assert_string_equal(found.op, "batch_norm_apply");
    assert_string_equal(found.scope, "bn1");
    assert_int_equal(result->diagnosis.end_bytes, result->diagnosis.start_bytes);
    done(result);
    done(other);
  }
}

static void a_second_copy_of_the_weights_is_found(void **state) {
  (void)state;
  for (int d = 0; d < DEVICES; d++) {
    CellSpec clean = spec_of(devices[d], ""), copies = spec_of(devices[d], "copy-weights=fp32");
    CellResult *before = run(&clean), *result = run(&copies);
    Anomaly found = only(result, ANOMALY_WEIGHT_COPY);
    assert_int_equal(found.bytes, result->diagnosis.start_bytes - before->diagnosis.start_bytes);
    assert_true(found.bytes >= 4 * result->parameters &&
                found.bytes < 4 * result->parameters + 512 * found.tensors);
    assert_string_equal(found.op, "conv");
    assert_string_equal(found.scope, "layer4.0.conv2");
    assert_int_equal(found.largest_bytes, 4 * 512 * 512 * 9);
    done(before);
    done(result);
  }
}

static void an_oversized_workspace_is_found(void **state) {
  (void)state;
  for (int d = 0; d < DEVICES; d++) {
    CellSpec spec = spec_of(devices[d], "oversize-workspace=3MiB");
    CellResult *result = run(&spec);
    Anomaly found = only(result, ANOMALY_WORKSPACE);
    assert_int_equal(found.bytes, 3 << 20);
    assert_int_equal(found.tensors, 1);
    assert_string_equal(found.op, "conv");
    assert_true(*found.scope);
    done(result);
  }
}

static void a_growth_of_1_kib_a_step_is_found(void **state) {
  (void)state;
  for (int d = 0; d < DEVICES; d++) {
    CellSpec spec = spec_of(devices[d], "grow=1KiB");
    CellResult *result = run(&spec);
    Anomaly found = only(result, ANOMALY_GROWTH);
    assert_int_equal(found.bytes, 1024);
    assert_int_equal(found.tensors, 1);
    assert_string_equal(found.op, "softmax_cross_entropy");
    assert_string_equal(found.scope, "loss");
    assert_int_equal(result->diagnosis.end_bytes - result->diagnosis.start_bytes, 1024);
    done(result);
  }
}

/* What a step gives back after it has obtained its last block, by its timeline. */
static int64_t released_at_the_end(const char *device, const char *recipe) {
  CellSpec spec = spec_of(device, recipe);
  spec.diagnose = false;
  spec.timeline = true;
  CellResult *result = run(&spec);
  int64_t last = 0, bytes = 0;
  for (int64_t i = 0; i < result->timeline_count; i++)
    if (result->timeline[i].action == MEMORY_OBTAIN) last = i;
  for (int64_t i = last; i < result->timeline_count; i++)
    if (result->timeline[i].action == MEMORY_RELEASE) bytes += rounded(result->timeline[i].requested_bytes);
  done(result);
  return bytes;
}

static void recomputed_activations_that_stay_are_found(void **state) {
  (void)state;
  static const char clean[] = "checkpoint=1", planted[] = "checkpoint=1 keep-recomputed=until-update";
  for (int d = 0; d < DEVICES; d++) {
    CellSpec spec = spec_of(devices[d], planted);
    CellResult *result = run(&spec);
    Anomaly found = only(result, ANOMALY_KEPT_RECOMPUTED);
    assert_int_equal(found.bytes,
                     released_at_the_end(devices[d], planted) - released_at_the_end(devices[d], clean));
    assert_string_equal(found.op, "conv");
    assert_true(strncmp(found.scope, "layer1.", 7) == 0);
    done(result);
  }
}

/* Two at once are told apart, each with its own bytes. */
static void anomalies_are_told_apart(void **state) {
  (void)state;
  CellSpec spec = spec_of("plan", "checkpoint=1 keep-recomputed=until-update");
  CellResult *alone = run(&spec);
  snprintf(spec.inject, sizeof spec.inject, "allocate=1MiB:activation");
  CellResult *result = run(&spec);
  assert_int_equal(result->diagnosis.anomaly_count, 2);
  assert_int_equal(result->diagnosis.anomalies[0].kind, ANOMALY_KEPT_RECOMPUTED);
  assert_int_equal(result->diagnosis.anomalies[0].bytes, alone->diagnosis.anomalies[0].bytes);
  assert_int_equal(result->diagnosis.anomalies[1].kind, ANOMALY_HELD);
  assert_int_equal(result->diagnosis.anomalies[1].bytes, 1 << 20);
  assert_string_equal(result->diagnosis.anomalies[1].tensor, "injected");
  done(alone);
  done(result);
}

static void clean(const CellSpec *spec) {
  CellResult *result = run(spec);
  const Diagnosis *found = &result->diagnosis;
  assert_true(found->made);
  if (found->anomaly_count != 0)
    fail_msg("%s %s on %s: %s of %s", spec->case_name, spec->recipe, spec->device,
             vl_anomaly_name(found->anomalies[0].kind), found->anomalies[0].tensor);
  assert_int_equal(found->start_bytes, found->expected_start_bytes + found->rest_bytes);
  assert_int_equal(found->end_bytes, found->start_bytes);
  done(result);
}

static void nothing_is_found_where_nothing_is_wrong(void **state) {
  (void)state;
  static const char *const cases[] = {"resnet50", "bert-base", "unet3d"};
  static const char *const recipes[] = {"",
                                        "amp=bf16",
                                        "amp=fp16",
                                        "stack=vramlab",
                                        "stack=vramlab amp=bf16",
                                        "checkpoint=1",
                                        "checkpoint=4",
                                        "checkpoint=ops:4",
                                        "recompute=norm",
                                        "accumulate=4",
                                        "accumulate=2 checkpoint=1",
                                        "accumulate=4 offload=activations",
                                        "update=in-backward",
                                        "offload=activations",
                                        "offload=activations+optimizer",
                                        "checkpoint=1 offload=activations",
                                        "checkpoint=2 offload=activations+optimizer amp=fp16",
                                        "recompute=norm offload=activations",
                                        "accumulate=2 checkpoint=2 offload=activations",
                                        "stack=vramlab checkpoint=4 offload=activations",
                                        "allocator=planned",
                                        "allocator=caching:max-split=20MiB",
                                        "defragment=every-step",
                                        "loss-chunks=4",
                                        "freeze=embeddings",
                                        "clip=1",
                                        "optimizer-state=8bit",
                                        "stack=vramlab update=in-backward recompute=norm"};
  int32_t ran = 0;
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
      CellSpec spec;
      vl_cell_spec_init(&spec);
      spec.micro_batch = 8;
      spec.threads = 2;
      spec.diagnose = true;
      snprintf(spec.device, sizeof spec.device, "plan");
      snprintf(spec.case_name, sizeof spec.case_name, "%s", cases[c]);
      snprintf(spec.recipe, sizeof spec.recipe, "%s", recipes[r]);
      if (strstr(recipes[r], "accumulate=4")) spec.micro_batch = 2;
      if (strstr(recipes[r], "accumulate=2")) spec.micro_batch = 4;
      CellResult *tried = vl_allocate(sizeof *tried);
      Status status = vl_cell_run(&spec, NULL, tried);
      bool applies = status.code == VL_OK && strcmp(tried->status, "ok") == 0;
      done(tried);
      if (!applies) continue; /* some recipes are not for every case */
      clean(&spec);
      ran++;
    }
  }
  assert_true(ran >= 72);
}

static void nothing_is_found_on_a_real_run(void **state) {
  (void)state;
  static const char *const recipes[] = {"",
                                        "amp=bf16",
                                        "stack=vramlab",
                                        "checkpoint=1",
                                        "accumulate=2",
                                        "offload=activations",
                                        "checkpoint=1 offload=activations",
                                        "recompute=norm"};
  for (size_t r = 0; r < sizeof recipes / sizeof *recipes; r++) {
    CellSpec spec = spec_of("cpu", recipes[r]);
    if (strstr(recipes[r], "stack")) snprintf(spec.recipe, sizeof spec.recipe, "%s", recipes[r]);
    clean(&spec);
  }
}

static void what_cannot_be_diagnosed_is_refused(void **state) {
  (void)state;
  CellSpec spec = spec_of("plan", "");
  spec.timeline = true;
  assert_int_equal(vl_cell_check(&spec).code, VL_INVALID);
  spec = spec_of("plan", "");
  spec.micro_batch = 4;
  spec.global_batch = 6;
  snprintf(spec.recipe, sizeof spec.recipe, "accumulate=2");
  CellResult *result = vl_allocate(sizeof *result);
  require_ok(vl_cell_run(&spec, NULL, result));
  assert_string_equal(result->status, "unsupported");
  assert_non_null(strstr(result->error, "multiple of the micro-batch"));
  done(result);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_retained_graph_is_found),
      cmocka_unit_test(a_loss_kept_with_its_graph_is_found),
      cmocka_unit_test(a_second_copy_of_the_weights_is_found),
      cmocka_unit_test(an_oversized_workspace_is_found),
      cmocka_unit_test(recomputed_activations_that_stay_are_found),
      cmocka_unit_test(a_growth_of_1_kib_a_step_is_found),
      cmocka_unit_test(anomalies_are_told_apart),
      cmocka_unit_test(nothing_is_found_where_nothing_is_wrong),
      cmocka_unit_test(nothing_is_found_on_a_real_run),
      cmocka_unit_test(what_cannot_be_diagnosed_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
