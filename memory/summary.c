/* The summary table, in the spirit of torch.cuda.memory_summary(). One unit for every column of bytes,
 * named in its heading and chosen from the largest number in the table. */
#include "memory/internal.h"

#include <inttypes.h>

typedef struct ColumnUnit {
  const char *label;
  int64_t bytes;
  int decimals;
} ColumnUnit;

static ColumnUnit unit_for(int64_t largest_bytes) {
  static const ColumnUnit units[] = {
      {"GiB", INT64_C(1) << 30, 3}, {"MiB", INT64_C(1) << 20, 2}, {"KiB", INT64_C(1) << 10, 2}};
  for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
    if (largest_bytes >= 10 * units[i].bytes) return units[i];
  }
  return (ColumnUnit){"B", 1, 0};
}

static void print_cell(FILE *out, const ColumnUnit *unit, int64_t bytes) {
  char text[32];
  vl_format_quotient(bytes, unit->bytes, unit->decimals, text, sizeof text);
  fprintf(out, " %16s", text);
}

static void print_counter(FILE *out, const ColumnUnit *unit, const char *name, const MemoryCounter *counter) {
  fprintf(out, "%-14s", name);
  print_cell(out, unit, counter->current_bytes);
  print_cell(out, unit, counter->peak_bytes);
}

static void print_categories(FILE *out, const ColumnUnit *unit, const MemoryStatistics *statistics) {
  for (int i = 0; i < MEMORY_CATEGORY_COUNT; i++) {
    print_counter(out, unit, vl_memory_category_name((MemoryCategory)i), &statistics->by_category[i]);
    print_cell(out, unit, statistics->category_at_peak_bytes[i]);
    fputc('\n', out);
  }
}

static void print_counts(FILE *out, const MemoryStatistics *statistics) {
  const struct {
    const char *name;
    int64_t count;
  } rows[] = {
      {"obtains", statistics->obtains},
      {"releases", statistics->releases},
      {"segments reserved", statistics->segment_reserves},
      {"segments given back", statistics->segment_releases},
      {"retries", statistics->retries},
      {"out of memory", statistics->ooms},
  };
  fprintf(out, "\n%-22s %12s\n", "events", "count");
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    fprintf(out, "%-22s %12" PRId64 "\n", rows[i].name, rows[i].count);
  }
}

void vl_memory_summary(const Heap *heap, FILE *out) {
  MemoryStatistics statistics;
  vl_tracker_statistics(vl_heap_tracker(heap), &statistics);
  HeapFreeSpace space;
  vl_heap_free_space(heap, &space);
  ColumnUnit unit = unit_for(statistics.reserved.peak_bytes);
  char headings[3][32];
  snprintf(headings[0], sizeof headings[0], "current [%s]", unit.label);
  snprintf(headings[1], sizeof headings[1], "peak [%s]", unit.label);
  snprintf(headings[2], sizeof headings[2], "at peak [%s]", unit.label);
  fprintf(out, "%-14s %16s %16s %16s\n", "memory", headings[0], headings[1], headings[2]);
  print_counter(out, &unit, "allocated", &statistics.allocated);
  print_cell(out, &unit, statistics.allocated.peak_bytes);
  fputc('\n', out);
  print_categories(out, &unit, &statistics);
  print_counter(out, &unit, "requested", &statistics.requested);
  fputc('\n', out);
  print_counter(out, &unit, "reserved", &statistics.reserved);
  fputc('\n', out);
  fprintf(out, "%-14s", "cached-free");
  print_cell(out, &unit, statistics.reserved.current_bytes - statistics.allocated.current_bytes);
  print_cell(out, &unit, statistics.cached_free_at_peak_bytes);
  fputc('\n', out);
  fprintf(out, "%-14s", "largest free");
  if (space.largest_free_bytes >= 0)
    print_cell(out, &unit, space.largest_free_bytes);
  else
    fprintf(out, " %16s", "unknown");
  fputc('\n', out);
  print_counts(out, &statistics);
}
