/* Cells on volumes: Dice is in the result and does not depend on how windows are batched or where they are
 * added up; what they are added up in is counted, predicted and explained. */
#include "engine/engine.h"
#include "tests/graph/networks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SIDE = 32, CLASSES = 3 };

typedef struct Asked {
  const char *device, *recipe, *data, *setting;
  int64_t batch;
  bool inference;
} Asked;

static CellResult *run(Asked asked) {
  CellSpec spec;
  CellResult *result = vl_allocate(sizeof *result);
  vl_cell_spec_init(&spec);
  snprintf(spec.case_name, sizeof spec.case_name, "unet3d");
  snprintf(spec.device, sizeof spec.device, "%s", asked.device);
  snprintf(spec.recipe, sizeof spec.recipe, "%s", asked.recipe);
  snprintf(spec.data, sizeof spec.data, "%s", asked.data);
  snprintf(spec.settings[0], sizeof spec.settings[0], "size=%d", SIDE);
  snprintf(spec.settings[1], sizeof spec.settings[1], "%s", asked.setting);
  spec.setting_count = *asked.setting ? 2 : 1;
  spec.micro_batch = asked.batch;
  spec.inference = asked.inference;
  spec.steps = 1;
  spec.threads = 1;
  Status status = vl_cell_run(&spec, NULL, result);
  if (status.code == VL_ENVIRONMENT) {
    fprintf(stderr, "skipped: %s\n", status.message);
    exit(77);
  }
  require_ok(status);
  if (strcmp(result->status, "ok") != 0) fail_msg("%s: %s", result->status, result->error);
  return result;
}

static void forget(CellResult *result) {
  vl_cell_result_clear(result);
  free(result);
}

static void training_ends_with_dice(void **state) {
  (void)state;
  CellResult *trained = run((Asked){"cpu", "", "phantoms:2+1", "", 1, false});
  assert_int_equal(trained->dice_count, CLASSES);
  double sum = 0.0;
  int32_t counted = 0;
  for (int32_t c = 0; c < CLASSES; c++) {
    assert_true(isnan(trained->dice[c]) || (trained->dice[c] >= 0.0 && trained->dice[c] <= 1.0));
    if (c == 0 || isnan(trained->dice[c])) continue;
    sum += trained->dice[c];
    counted++;
  }
  assert_int_equal(counted, CLASSES - 1); /* every phantom has all organs */
  assert_true(fabs(trained->dice_mean - sum / counted) < 1e-12);
  assert_true(trained->held_out_loss > 0.0 && trained->accuracy > 0.0 && trained->accuracy <= 1.0);
  assert_true(trained->volume_s > 0.0);
  forget(trained);
}

/* Cross entropy alone is a mean over voxels: micro-batches add up to it, with the last step of an epoch
 * smaller than the others and padding in some patches. */
static void micro_batches_give_the_batch(void **state) {
  (void)state;
  CellResult *whole = run((Asked){"cpu", "", "phantoms:5+1", "dice=0", 4, false}),
             *parts = run((Asked){"cpu", "accumulate=2", "phantoms:5+1", "dice=0", 2, false});
  assert_int_equal(whole->loss_count, 2);
  assert_int_equal(parts->loss_count, 2);
  for (int32_t i = 0; i < 2;
       i++) /* what weights differ by after an update is far less than 1e-4 of the loss */
    assert_true(fabs(whole->losses[i] - parts->losses[i]) <= 1e-4 * whole->losses[i]);
  assert_true(whole->losses[0] != whole->losses[1]);
  forget(whole);
  forget(parts);
}

/* Instance norm is of each sample alone: the batch of windows changes nothing but the order in which kernels
 * work. The sums on the device are in its peak, byte for byte. */
static void the_place_of_the_sums_changes_only_memory(void **state) {
  (void)state;
  CellResult *device = run((Asked){"cpu", "", "phantoms:1+1", "", 1, true}),
             *host = run((Asked){"cpu", "window-sums=host", "phantoms:1+1", "", 1, true});
  assert_memory_equal(device->dice, host->dice, sizeof device->dice);
  assert_true(device->held_out_loss == host->held_out_loss);
  int64_t sums = 0;
  for (int32_t i = 0; i < device->account.term_count; i++)
    if (strcmp(device->account.terms[i].name, "window sums") == 0) sums = device->account.terms[i].bytes;
  assert_true(sums > 0);
  assert_int_equal(device->peak_requested_bytes - host->peak_requested_bytes, sums);
  assert_memory_equal(device->requested_by_category, device->account.by_category,
                      sizeof device->requested_by_category);
  assert_true(device->peak_reserved_bytes >= host->peak_reserved_bytes);
  forget(device);
  forget(host);
}

/* So do recipes that place everything else by a plan. */
static void the_sums_stand_beside_a_plan(void **state) {
  (void)state;
  CellResult *device = run((Asked){"cpu", "stack=vramlab", "phantoms:1+1", "", 2, true}),
             *host = run((Asked){"cpu", "stack=vramlab window-sums=host", "phantoms:1+1", "", 2, true});
  assert_memory_equal(device->dice, host->dice, sizeof device->dice);
  assert_true(device->peak_requested_bytes > host->peak_requested_bytes);
  forget(device);
  forget(host);
}

/* A volume that is only told of is planned as it is measured. */
static void sums_are_predicted(void **state) {
  (void)state;
  enum { VOLUME = 96 };
  const int64_t bytes = (int64_t)(CLASSES + 1) * VOLUME * VOLUME * VOLUME * 4;
  static const char *const devices[] = {"plan", "cpu"};
  int64_t needed[2];
  for (int32_t d = 0; d < 2; d++) {
    CellResult *none = run((Asked){devices[d], "", "", "", 1, true}),
               *told = run((Asked){devices[d], "", "", "volume=96", 1, true}),
               *host = run((Asked){devices[d], "window-sums=host", "", "volume=96", 1, true});
    assert_int_equal(told->peak_requested_bytes - none->peak_requested_bytes, bytes);
    assert_int_equal(host->peak_requested_bytes, none->peak_requested_bytes);
    assert_int_equal(told->account.highest_bytes - none->account.highest_bytes, bytes);
    needed[d] = told->peak_reserved_bytes;
    forget(none);
    forget(told);
    forget(host);
  }
  assert_int_equal(needed[0], needed[1]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(training_ends_with_dice),
      cmocka_unit_test(micro_batches_give_the_batch),
      cmocka_unit_test(the_place_of_the_sums_changes_only_memory),
      cmocka_unit_test(the_sums_stand_beside_a_plan),
      cmocka_unit_test(sums_are_predicted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
