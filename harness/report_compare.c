/* The report of several stores side by side: a table a metric, what could not be compared and why, the
 * figures. */
#include "harness/report_document.h"
#include "harness/side_by_side.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
  const char *metric, *caption;
  bool ratio;
} tables[] = {
    {"throughput-equal-batch", "Samples a second, same recipe and global batch", true},
    {"throughput-best", "Samples a second at each one's best batch", true},
    {"needed", "Needed memory, same recipe and global batch", true},
    {"max-batch", "Largest batch", true},
    {"samples-per-gib", "Samples a second for each GiB needed", true},
    {"samples-per-joule", "Samples for each joule", true},
    {"prediction-error", "Predicted needed memory, off what was measured", false},
};

static const char *interval_of(Document *document, const SideValue *value) {
  if (!value->record || strcmp(value->word, "n/a") == 0) return "";
  if (value->provenance != SIDE_MEASURED) return vl_side_provenance_name(value->provenance);
  if (!isfinite(value->low) || !isfinite(value->high)) return "";
  return vl_document_format(document, "%.4g to %.4g", value->low, value->high);
}

static bool has_intervals(const Side *side, int32_t label) {
  for (int32_t g = 0; g < side->count; g++) {
    const SideValue *value = &side->groups[g].values[label];
    bool interval = isfinite(value->low) && isfinite(value->high);
    if (interval || (value->record && value->provenance != SIDE_MEASURED)) return true;
  }
  return false;
}

/* Of each label the value, and where one is known its interval or where it is from; of all but the reference
 * the ratio to that. */
static int32_t columns_of(Document *document, const Side *side, const SideMetric *metric, bool ratio,
                          TableColumn *columns) {
  const PlotInput *input = side->input;
  int32_t count = 0;
  columns[count++] = (TableColumn){"recipe", "", false};
  for (int32_t l = 0; l < input->label_count; l++) {
    columns[count++] = (TableColumn){input->labels[l], metric->unit, true};
    if (has_intervals(side, l)) columns[count++] = (TableColumn){"interval", "", false};
  }
  for (int32_t l = 0; ratio && l < input->label_count; l++)
    if (l != input->reference)
      columns[count++] = (TableColumn){
          vl_document_format(document, "%s over %s", input->labels[l], input->labels[input->reference]), "x",
          true};
  return count;
}

/* The quotient, with the least and the most that both intervals allow. */
static const char *ratio_of(Document *document, const SideValue *value, const SideValue *reference) {
  double ratio = value->value / reference->value;
  if (!(reference->value > 0) || !isfinite(ratio)) return "n/a";
  double low = value->low / reference->high, high = value->high / reference->low;
  bool measured = value->provenance == SIDE_MEASURED && reference->provenance == SIDE_MEASURED;
  if (!measured || !isfinite(low) || !isfinite(high)) return vl_document_format(document, "%.2f", ratio);
  return vl_document_format(document, "%.2f (%.2f to %.2f)", ratio, low, high);
}

static void add_table(Document *document, const Side *side, const SideMetric *metric, const char *caption,
                      bool ratio) {
  const PlotInput *input = side->input;
  TableColumn columns[1 + 3 * VL_MAX_LABELS];
  int32_t count = columns_of(document, side, metric, ratio, columns);
  Passage *table = vl_document_add(document, PASSAGE_TABLE, true, caption);
  vl_document_table(document, table, columns, count, side->count);
  for (int32_t g = 0; g < side->count; g++) {
    const SideGroup *group = &side->groups[g];
    int32_t c = 0;
    table->rows[g][c++] = vl_document_format(document, "%s", group->name);
    for (int32_t l = 0; l < input->label_count; l++) {
      const SideValue *value = &group->values[l];
      table->rows[g][c++] = vl_document_format(document, "%s", value->record ? value->word : "n/a");
      if (has_intervals(side, l)) table->rows[g][c++] = interval_of(document, value);
    }
    for (int32_t l = 0; ratio && l < input->label_count; l++)
      if (l != input->reference)
        table->rows[g][c++] = ratio_of(document, &group->values[l], &group->values[input->reference]);
  }
}

/* One list for all metrics, since most say the same. */
typedef struct LeftOutList {
  SideLeftOut *entries;
  int32_t count;
} LeftOutList;

static void note_left_out(LeftOutList *list, const Side *side) {
  for (int32_t i = 0; i < side->left_out_count; i++) {
    bool known = false;
    for (int32_t j = 0; j < list->count && !known; j++)
      known = memcmp(&list->entries[j], &side->left_out[i], sizeof *list->entries) == 0;
    if (known) continue;
    list->entries = vl_reallocate(list->entries, (size_t)(list->count + 1) * sizeof *list->entries);
    list->entries[list->count++] = side->left_out[i];
  }
}

static void add_left_out(Document *document, LeftOutList *list) {
  static const TableColumn columns[] = {
      {"cells", "", false}, {"differs", "", false}, {"what each has", "", false}};
  if (list->count > 0) {
    Passage *table = vl_document_add(document, PASSAGE_TABLE, false, "Not compared");
    vl_document_table(document, table, columns, 3, list->count);
    for (int32_t i = 0; i < list->count; i++) {
      table->rows[i][0] = vl_document_format(document, "%s", list->entries[i].name);
      table->rows[i][1] = vl_document_format(document, "%s", list->entries[i].differs);
      table->rows[i][2] = vl_document_format(document, "%s", list->entries[i].why);
    }
  }
  free(list->entries);
}

/* Once each: "cpu" is there too where "plan:cpu" is. */
static void note_device(char *devices, size_t size, const char *device) {
  size_t length = strlen(device), used = strlen(devices);
  for (const char *at = strstr(devices, device); at != NULL; at = strstr(at + 1, device))
    if ((at == devices || at[-1] == ' ') && (at[length] == '\0' || at[length] == ',') &&
        (at == devices || at[-2] == ','))
      return;
  snprintf(devices + used, size - used, "%s%s", used > 0 ? ", " : "", device);
}

/* What each label stands for. */
static void add_devices(Document *document, const PlotInput *input) {
  static const TableColumn columns[] = {{"label", "", false}, {"device", "", false}, {"records", "", true}};
  Passage *table = vl_document_add(document, PASSAGE_TABLE, true, "What is compared");
  vl_document_table(document, table, columns, 3, input->label_count);
  for (int32_t l = 0; l < input->label_count; l++) {
    char devices[400] = "", device[256];
    int32_t records = 0;
    for (int32_t i = 0; i < input->records.count; i++) {
      if (vl_side_label(input, input->records.records[i]) != l) continue;
      records++;
      vl_device_text(input->records.records[i], device, sizeof device);
      note_device(devices, sizeof devices, device);
    }
    table->rows[l][0] = input->labels[l];
    table->rows[l][1] = vl_document_format(document, "%s", devices[0] != '\0' ? devices : "n/a");
    table->rows[l][2] = vl_document_format(document, "%d", records);
  }
}

Document *vl_report_compare(const PlotInput *input, const FigureSet *figures) {
  Document *document = vl_document_create();
  document->title = "vramlab: side by side";
  document->subtitle =
      vl_document_format(document, "%d records of %d stores", input->records.count, input->label_count);
  add_devices(document, input);
  Workload workloads[VL_MAX_WORKLOADS];
  int32_t count = vl_select_workloads(&input->records, workloads), made = 0;
  for (int32_t w = 0; w < count; w++) {
    char name[256];
    vl_workload_text(&workloads[w], name, sizeof name);
    vl_document_add(document, PASSAGE_HEADING, false, name);
    LeftOutList list = {NULL, 0};
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++) {
      const SideMetric *metric = vl_side_metric(tables[t].metric);
      Side side;
      vl_side_gather(input, &workloads[w], metric, &side);
      note_left_out(&list, &side);
      if (side.count > 0)
        add_table(document, &side, metric, vl_document_format(document, "%s: %s", name, tables[t].caption),
                  tables[t].ratio);
      made += side.count > 0;
      vl_side_clear(&side);
    }
    add_left_out(document, &list);
  }
  if (made == 0)
    vl_document_add(document, PASSAGE_TEXT, true, "No cell of one store has its counterpart in another.");
  vl_document_add(document, PASSAGE_NOTE, false,
                  "Intervals hold the median with a probability of 95 %; those of a ratio are the least and "
                  "the most that "
                  "both intervals allow. Where one side is predicted, a ratio has none.");
  for (int32_t i = 0; figures != NULL && i < figures->count; i++) {
    const Figure *figure = &figures->figures[i];
    if (i == 0) vl_document_add(document, PASSAGE_HEADING, false, "Figures");
    if (figure->drawn)
      vl_report_figure(document, figure, false);
    else
      vl_document_add(document, PASSAGE_NOTE, false,
                      vl_document_format(document, "Not drawn: %s: %s", figure->title, figure->note));
  }
  return document;
}
