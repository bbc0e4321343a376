/* What a column's value is made of (column_values.c), for the table of columns. */
#ifndef VRAMLAB_HARNESS_COLUMN_VALUES_H
#define VRAMLAB_HARNESS_COLUMN_VALUES_H

#include "harness/columns.h"

/* The value of a column for a record, new; NULL: not known, with the reason when there is a better one than
 * the usual. Those called from_ and _field read the field that the column names, the last only where it
 * applies. */
typedef json_t *ColumnValue(const CellView *view, const Column *column, const char **reason);

ColumnValue vl_column_from_cell, vl_column_from_result, vl_column_cell_key, vl_column_suite_unknown,
    vl_column_engine_name, vl_column_kind, vl_column_no_batch, vl_column_error_text, vl_column_skip_reason,
    vl_column_settings_text, vl_column_profile_name, vl_column_data_path, vl_column_queue_text,
    vl_column_capacity, vl_column_learning_rate, vl_column_order_seed, vl_column_timeout_limit,
    vl_column_injected_text, vl_column_chosen, vl_column_step_median, vl_column_step_spread,
    vl_column_step_low, vl_column_step_high, vl_column_step_coverage, vl_column_step_outliers,
    vl_column_stopped_by, vl_column_step_drift, vl_column_step_drift_p, vl_column_interference,
    vl_column_processor_share, vl_column_disturbed, vl_column_samples_rate, vl_column_samples_rate_per_rank,
    vl_column_tokens_rate, vl_column_flops_rate, vl_column_last_loss, vl_column_moved_field,
    vl_column_unplanned_field, vl_column_offload_field, vl_column_offload_capacity, vl_column_input_time,
    vl_column_graph_share, vl_column_graph_refusal, vl_column_cross_check_field, vl_column_volume_time,
    vl_column_cross_check_difference, vl_column_analytic_peak, vl_column_oom_field, vl_column_first_nonfinite,
    vl_column_scaler_field, vl_column_diagnosis_field, vl_column_leak_field, vl_column_power_limit,
    vl_column_driver_field, vl_column_memory_limit, vl_column_processors_limit, vl_column_kernel,
    vl_column_compiler, vl_column_host, vl_column_commit, vl_column_dirty, vl_column_version,
    vl_column_schema, vl_column_created;

#endif
