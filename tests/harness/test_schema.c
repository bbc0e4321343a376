/* results/SCHEMA.md is written from the column table: `test_harness_schema --write` writes it, the test
 * compares. */
#include "tests/harness/temporary_directory.h"

#include "harness/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char head[] =
    "# What a store holds\n"
    "\n"
    "A run leaves a directory. Schema version %d.\n"
    "\n"
    "| file | content |\n"
    "|---|---|\n"
    "| `journal.jsonl` | first line: where the store comes from; then one record, a "
    "JSON object, a finished cell. A later "
    "line of the same `cell_key` replaces an earlier one. A last line without its end "
    "is what a kill left: it is not "
    "read |\n"
    "| `cells/KEY.h5` | the allocations of the last step, where asked for |\n"
    "| `results.h5` | all of it as tables, rebuilt whenever the journal is ahead |\n"
    "| `report.html`, `figures/` | made from it |\n"
    "| `status.json` | how far the suite is, or how it ended, for `vramlab status`; replaced as a whole |\n"
    "| `writer.json` | while somebody writes: `pid`, `hostname`, `since_utc`, for whoever "
    "comes second; what a kill leaves of it means nothing |\n"
    "\n"
    "## Records\n"
    "\n"
    "Numbers that are not known are `null`, and `null_reasons` says why, by column "
    "name. Nothing is NaN or infinite. "
    "All byte counts are whole bytes.\n"
    "\n"
    "| JSON | column in `/cells` | type | unit | meaning |\n"
    "|---|---|---|---|---|\n";

static const char tail[] =
    "| `step_times_s` | table `/steps` | list | s | time of each measured step, raw |\n"
    "| `losses` | table `/losses` | list | 1 | loss of each step, warm-up included |\n"
    "| `dice` | table `/dice` | list | 1 | of volumes: of each class, the mean Dice over the held-out "
    "volumes in "
    "which the class is predicted or true, `null` where there is none |\n"
    "| `step_peaks_bytes` | table `/step_peaks` | list | bytes | allocated peak of each step, warm-up "
    "included |\n"
    "| `live_bytes` | table `/live` | list | bytes | allocated when each step had ended, warm-up included |\n"
    "| `step_reserved_bytes` | table `/step_reserved` | list | bytes | reserved peak of each step, warm-up "
    "included |\n"
    "| `step_fragmentation` | table `/step_fragmentation` | list | 1 | 1 - largest free block / all that is "
    "free "
    "when each step had ended, warm-up included |\n"
    "| `leaks` | | list | bytes | of a leak: `name`, `scope` and `bytes_per_step` of the tensors that grow, "
    "largest first, at most 64 |\n"
    "| `anomalies` | | list | bytes | of a diagnosed step: `kind`, `bytes`, `tensors` (how many) and, of the "
    "largest, `largest_bytes`, `tensor`, `op`, `scope` |\n"
    "| `monitor_loss_scale`, `monitor_skipped`, `monitor_gradient_norm`, `monitor_flushed_share` | table "
    "`/monitors` | list | 1 | of each step, warm-up included, where asked for |\n"
    "| `monitor_gradient_sketch` | table `/gradient_sketches` | list | 1 | 32 numbers a step: sums of all "
    "gradients of "
    "parameters, unscaled, each element in one of them, where and with the sign that its parameter's name "
    "and "
    "its place give. The "
    "distance "
    "of two "
    "cells' sums over the norm of one's estimates the relative error of the other's gradients, to about 1/8 "
    "|\n"
    "| `output_sketch` | | list | 1 | inference: 32 such sums of the outputs for the samples of the first "
    "step |\n"
    "| `shapes` | table `/shapes` | list | | of a queue, a size of sample each: `shape`, `samples` of a "
    "pass, "
    "`batch` (samples of the largest), `batches` of a pass, `samples_per_s`, `batch_s`, "
    "`peak_allocated_bytes` "
    "and `peak_reserved_bytes` while they ran |\n"
    "| `scopes` | table `/scopes` | list | bytes | `scope` and `bytes`: layers by what they hold at the "
    "allocated peak |\n"
    "| `analytic_terms` | table `/analytic_terms` | list | bytes | what the peak is made of: `category`, "
    "`term`, "
    "`count` of tensors, `bytes` and `rounding_bytes` |\n"
    "| `null_reasons` | | map | | why a value is null |\n"
    "\n"
    "A record of before a column was there reads as null in it, with the reason \"not kept by the vramlab "
    "that wrote "
    "this\"; the journal stays as it is. A store of a higher schema version than the program's is refused.\n"
    "\n"
    "## results.h5\n"
    "\n"
    "Every table is a group of columns, one-dimensional datasets along one dimension scale, so that "
    "`xarray.open_dataset(file, group=\"cells\", engine=\"h5netcdf\")` and "
    "`pandas.DataFrame({k: g[k][:] for k in g})` with h5py read it. Attributes `units` and `long_name` are "
    "on each "
    "column. Unknown whole numbers are -1 (also `_FillValue`), unknown real ones NaN, unknown text is empty; "
    "flags are "
    "h5py's boolean. `/cells/record_json` has each record whole.\n"
    "\n"
    "| group | rows | columns beside those above |\n"
    "|---|---|---|\n"
    "| `/cells` | a record | `record_json` |\n"
    "| `/steps` | a measured step | `cell_row`, `cell_key`, `step`, `step_s` |\n"
    "| `/losses` | a step | `cell_row`, `cell_key`, `step`, `loss` |\n"
    "| `/dice` | a class of a cell | `cell_row`, `cell_key`, `class`, `dice` |\n"
    "| `/step_peaks` | a step, warm-up included | `cell_row`, `cell_key`, `step`, `peak_allocated_bytes` |\n"
    "| `/live` | a step, warm-up included | `cell_row`, `cell_key`, `step`, `allocated_bytes` |\n"
    "| `/step_reserved` | a step, warm-up included | `cell_row`, `cell_key`, `step`, `peak_reserved_bytes` "
    "|\n"
    "| `/step_fragmentation` | a step, warm-up included | `cell_row`, `cell_key`, `step`, `fragmentation` |\n"
    "| `/monitors` | a monitored step | `cell_row`, `cell_key`, `step`, `loss_scale`, `skipped`, "
    "`gradient_norm`, `flushed_share` |\n"
    "| `/gradient_sketches` | a sum of a monitored step | `cell_row`, `cell_key`, `position` (32 times the "
    "step, and "
    "the sum), `sum` |\n"
    "| `/scopes` | a layer of a cell | `cell_row`, `cell_key`, `rank_by_size`, `scope`, `bytes` |\n"
    "| `/analytic_terms` | a summand of a cell's peak | `cell_row`, `cell_key`, `position`, `category`, "
    "`term`, "
    "`count`, `bytes`, `rounding_bytes` |\n"
    "| `/shapes` | a size of sample of a queue | `cell_row`, `cell_key`, `position`, `shape`, `samples`, "
    "`batch`, `batches`, `samples_per_s`, `batch_s`, `peak_allocated_bytes`, `peak_reserved_bytes` |\n"
    "| `/timelines/KEY` | what was held before the last step, and its events | `time_ns`, `action`, "
    "`category`, `category_name`, `bytes`, `requested_bytes`, `allocated_bytes`, `reserved_bytes`, "
    "`heap_segment` and `offset` in it, `stream`, `segment`, `op` (row of `/ops/KEY` it belongs to), `name`, "
    "`scope` |\n"
    "| `/ops/KEY` | a launch of one more step like it, which waits for the device behind every launch | "
    "`start_ns`, `duration_ns` (of a profile the least by its data sheet; -1: nothing tells time), `flops`, "
    "`bytes`, `segment`, `stream`, `micro_batch`, `pass`, `op`, `scope`, `implementation` (what the device "
    "chose) |\n"
    "\n"
    "Root attributes: `suite`, `command_line`, `created_utc`, `hostname`, `tool_version`, `git_commit`, "
    "`git_dirty`, "
    "`schema_version`, `journal_bytes` (length of the journal it was made from), `head_json`.\n";

static void write_schema(FILE *out) {
  static const char *const types[] = {"text", "integer", "real", "flag"};
  int32_t count;
  const Column *columns = vl_column_all(&count);
  fprintf(out, head, VL_SCHEMA_VERSION);
  for (int32_t i = 0; i < count; i++)
    fprintf(out, "| `%s` | `%s` | %s | %s | %s |\n", columns[i].path, columns[i].name, types[columns[i].type],
            columns[i].unit, columns[i].help);
  fputs(tail, out);
}

static void schema_document_is_that_of_the_table(void **state) {
  (void)state;
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  write_schema(out);
  fclose(out);
  char *document = read_whole_file(VRAMLAB_SOURCE_DIR "/results/SCHEMA.md");
  if (!document || strcmp(document, text) != 0)
    fail_msg("results/SCHEMA.md is not that of harness/columns.c; run test_harness_schema --write");
  free(document);
  free(text);
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "--write") == 0) {
    FILE *out = fopen(VRAMLAB_SOURCE_DIR "/results/SCHEMA.md", "w");
    if (!out) return 3;
    write_schema(out);
    return fclose(out) == 0 ? 0 : 3;
  }
  const struct CMUnitTest tests[] = {cmocka_unit_test(schema_document_is_that_of_the_table)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
