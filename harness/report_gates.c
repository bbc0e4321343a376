/* Equality gates: every recipe held against the losses of the baseline beside it. */
#include "harness/report_document.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A recipe at a batch on a device, with the worst of its repetitions. */
typedef struct Gate {
  const json_t *record;
  Equality equality;
  int32_t runs;
} Gate;

static bool is_baseline(const json_t *record) {
  const char *recipe = vl_record_text(record, "recipe");
  return recipe != NULL && strcmp(recipe, "baseline") == 0;
}

static bool has_losses(const json_t *record) {
  return json_array_size(json_object_get(record, "losses")) > 0;
}

static bool is_gated(const json_t *record) {
  return vl_record_has_status(record, "ok") && !vl_record_is_predicted(record) && !is_baseline(record);
}

/* Among cells of one workload, with losses; of the same seed, so that both saw the same samples. */
static const json_t *baseline_of(const RecordSet *cells, const json_t *record) {
  for (int32_t i = 0; i < cells->count; i++) {
    const json_t *other = cells->records[i];
    if (is_baseline(other) && vl_record_has_status(other, "ok") && has_losses(other) &&
        vl_record_batch(other) == vl_record_batch(record) &&
        vl_record_integer(other, "seed") == vl_record_integer(record, "seed") &&
        vl_record_same_text(other, record, "data") && vl_same_device(other, record))
      return other;
  }
  return NULL;
}

static bool is_worse(const Equality *equality, const Equality *than) {
  if ((equality->outcome == OUTCOME_BROKEN) != (than->outcome == OUTCOME_BROKEN))
    return equality->outcome == OUTCOME_BROKEN;
  if (equality->checked != than->checked) return equality->checked;
  return equality->loss_difference > than->loss_difference;
}

static int32_t add_gate(Gate *gates, int32_t count, const json_t *record, Equality equality) {
  for (int32_t i = 0; i < count; i++) {
    if (!vl_same_cell(gates[i].record, record) ||
        vl_record_integer(gates[i].record, "seed") != vl_record_integer(record, "seed"))
      continue;
    gates[i].runs++;
    if (is_worse(&equality, &gates[i].equality)) {
      gates[i].equality = equality;
      gates[i].record = record;
    }
    return count;
  }
  gates[count] = (Gate){.record = record, .equality = equality, .runs = 1};
  return count + 1;
}

/* Gates of all workloads; free() them. */
static Gate *gates_of(const RecordSet *records, int32_t *count) {
  Workload workloads[VL_MAX_WORKLOADS];
  Gate *gates = vl_allocate(sizeof(*gates) * (size_t)(records->count + 1));
  int32_t workload_count = vl_select_workloads(records, workloads);
  *count = 0;
  for (int32_t w = 0; w < workload_count; w++) {
    RecordSet cells = vl_select_workload(records, &workloads[w], ENGINES_OURS);
    int32_t of_workload = 0;
    for (int32_t i = 0; i < cells.count; i++) {
      const json_t *record = cells.records[i];
      if (!is_gated(record)) continue;
      Equality equality = vl_record_equality(record, baseline_of(&cells, record));
      of_workload = add_gate(gates + *count, of_workload, record, equality);
    }
    *count += of_workload;
    free(cells.records);
  }
  return gates;
}

GateCount vl_report_count_gates(const RecordSet *records) {
  GateCount made = {0};
  int32_t count;
  Gate *gates = gates_of(records, &count);
  for (int32_t i = 0; i < count; i++) {
    made.checked += gates[i].equality.checked;
    made.broken += gates[i].equality.outcome == OUTCOME_BROKEN;
    made.promised += !gates[i].equality.checked && gates[i].equality.outcome != OUTCOME_DIFFERENT_MODEL;
  }
  free(gates);
  return made;
}

static const char *found(const Equality *equality) {
  bool told = equality->checked || equality->outcome == OUTCOME_DIFFERENT_MODEL;
  return told ? vl_outcome_name(equality->outcome) : "not checked";
}

static void fill_row(Document *document, const Gate *gate, const char **row) {
  char name[256], device[256];
  Workload workload = vl_record_workload(gate->record);
  vl_workload_text(&workload, name, sizeof(name));
  vl_device_text(gate->record, device, sizeof(device));
  const char *recipe = vl_record_text(gate->record, "recipe"),
             *promise = vl_record_text(gate->record, "preserves");
  row[0] = vl_document_format(document, "%s", name);
  row[1] = vl_document_format(document, "%s", recipe != NULL ? recipe : "unnamed");
  row[2] = vl_document_format(document, "%lld", (long long)vl_record_batch(gate->record));
  row[3] = vl_document_format(document, "%s", device);
  row[4] = vl_document_format(document, "%s", promise != NULL ? promise : "n/a");
  row[5] = found(&gate->equality);
  row[6] = vl_document_number(document, "%.2g", 100 * gate->equality.loss_difference);
  row[7] = vl_document_format(document, "%d", gate->runs);
}

void vl_report_gates(Document *document, const RecordSet *records) {
  static const TableColumn columns[] = {{"workload", "", false},         {"recipe", "", false},
                                        {"batch", "samples", true},      {"measured on", "", false},
                                        {"promised", "", false},         {"found", "", false},
                                        {"losses differ by", "%", true}, {"runs", "cells", true}};
  int32_t count;
  Gate *gates = gates_of(records, &count);
  if (count > 0) {
    vl_document_add(document, PASSAGE_HEADING, false, "Equality gates");
    Passage *table = vl_document_add(document, PASSAGE_TABLE, false,
                                     "Losses of every measured recipe held against the baseline's");
    vl_document_table(document, table, columns, sizeof(columns) / sizeof(columns[0]), count);
    for (int32_t i = 0; i < count; i++)
      fill_row(document, &gates[i], table->rows[i]);
    vl_document_add(
        document, PASSAGE_NOTE, false,
        "The baseline is that of the same workload, device, batch and seed. Bitwise: every loss is the same. "
        "Within tolerance: the first loss, before an update can amplify a difference, is within 0.01 % of "
        "it, "
        "1.6 % where activations are rounded to 16 bits; the largest difference over the steps is shown. Not "
        "checked: there is no such baseline, or no losses.");
  }
  free(gates);
}
