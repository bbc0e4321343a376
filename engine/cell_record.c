/* What a cell is asked and what it answers, as plain records: their empty forms. Apart from running one, so
 * that a test can put another runner in its place. */
#include "engine/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void vl_cell_spec_init(CellSpec *spec) {
  *spec = (CellSpec){.device = "cpu", .micro_batch = 1, .warmup = 1, .steps = 5};
}

void vl_cell_result_clear(CellResult *result) {
  free(result->step_s);
  free(result->losses);
  free(result->monitors);
  free(result->step_peak_bytes);
  free(result->live_bytes);
  free(result->step_reserved_bytes);
  free(result->step_fragmentation);
  free(result->timeline);
  free(result->ops);
  memset(result, 0, sizeof *result);
}

void vl_cell_result_init(CellResult *result) {
  memset(result, 0, sizeof *result);
  int64_t *unknown[] = {&result->tokens_per_sample,
                        &result->leak_bytes_per_step,
                        &result->leaks_bytes_per_step,
                        &result->needed_bytes,
                        &result->needed_low_bytes,
                        &result->peak_requested_bytes,
                        &result->peak_allocated_bytes,
                        &result->peak_reserved_bytes,
                        &result->peak_driver_bytes,
                        &result->warmup_peak_allocated_bytes,
                        &result->warmup_peak_reserved_bytes,
                        &result->steady_peak_allocated_bytes,
                        &result->steady_peak_reserved_bytes,
                        &result->moved_bytes,
                        &result->unplanned_bytes,
                        &result->peak_process_bytes,
                        &result->card_used_bytes,
                        &result->clock_mhz,
                        &result->memory_clock_mhz,
                        &result->temperature_c,
                        &result->clock_max_mhz,
                        &result->power_limit_mw,
                        &result->throttled_steps,
                        &result->energy_mj,
                        &result->peak_step_bytes,
                        &result->base_bytes,
                        &result->untracked_bytes,
                        &result->emulation_bytes,
                        &result->cached_free_bytes,
                        &result->oom_request_bytes,
                        &result->oom_largest_free_bytes,
                        &result->evicted_bytes,
                        &result->fetched_bytes,
                        &result->peak_offload_bytes,
                        &result->saved_activation_bytes,
                        &result->account.highest_bytes,
                        &result->skipped_steps,
                        &result->events_per_step};
  for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
    *unknown[i] = -1;
  for (int32_t i = 0; i < MEMORY_CATEGORY_COUNT; i++)
    result->peak_by_category[i] = result->requested_by_category[i] = result->account.by_category[i] = -1;
  result->build_s = result->tracker_share = result->held_out_loss = result->loss_scale = result->accuracy =
      NAN;
  result->checkpoint_blocks_optimum = result->checkpoint_ops_optimum = NAN;
  result->steal_share = result->other_cpu_share = result->load_average = NAN;
  result->involuntary_switches = -1;
  result->input_s = result->graph_share = result->offload_stall_s = result->dice_mean = result->volume_s =
      NAN;
  result->reserved_over_allocated = result->fragmentation = NAN;
  result->kernels_per_step = result->kernel_s_per_step = NAN;
  for (int32_t s = 0; s < VL_SKETCH_SUMS; s++)
    result->output_sketch[s] = NAN;
  result->accumulate = result->ranks = 1;
  for (int32_t i = 0; i < VL_MAX_SHAPES; i++)
    result->shapes[i] = (ShapeResult){
        .samples_per_s = NAN, .batch_s = NAN, .peak_allocated_bytes = -1, .peak_reserved_bytes = -1};
  result->shape_failed = -1;
  result->first_nonfinite.step = -1;
}
