/* Live bytes per scope and category, now and at the last peak. During a forward pass nearly every event is
 * a new peak, so marking one must not copy anything: it increments an epoch, and an entry saves its value
 * when it first changes in a new epoch. An entry that did not change since has its peak value still. */
#include "memory/internal.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_SLOT_COUNT = 256 };

typedef struct ScopeEntry {
  const char *scope; /* compared as a pointer here; equal texts are added up on reading */
  MemoryCategory category;
  bool used;
  int64_t live_bytes;
  int64_t saved_bytes; /* at the peak, when saved_epoch is the table's epoch; else live_bytes is */
  uint64_t saved_epoch;
} ScopeEntry;

struct ScopeTable {
  ScopeEntry *slots; /* open addressing, a power of two */
  size_t slot_count;
  size_t used_count;
  uint64_t epoch;
};

ScopeTable *vl_scope_table_create(void) {
  ScopeTable *table = vl_allocate(sizeof *table);
  table->slot_count = FIRST_SLOT_COUNT;
  table->slots = vl_allocate(FIRST_SLOT_COUNT * sizeof(ScopeEntry));
  table->epoch = 1;
  return table;
}

void vl_scope_table_destroy(ScopeTable **table) {
  if (*table == NULL) return;
  free((*table)->slots);
  free(*table);
  *table = NULL;
}

/* The slot of a scope and category, or the free one where it belongs. */
static ScopeEntry *find_slot(ScopeEntry *slots, size_t slot_count, const char *scope,
                             MemoryCategory category) {
  uint64_t hash = ((uint64_t)(uintptr_t)scope ^ (uint64_t)category << 60) * UINT64_C(0x9e3779b97f4a7c15);
  size_t at = (size_t)(hash >> 32) & (slot_count - 1);
  while (slots[at].used && (slots[at].scope != scope || slots[at].category != category)) {
    at = (at + 1) & (slot_count - 1);
  }
  return &slots[at];
}

static void grow(ScopeTable *table) {
  size_t slot_count = 2 * table->slot_count;
  ScopeEntry *slots = vl_allocate(slot_count * sizeof(ScopeEntry));
  for (size_t i = 0; i < table->slot_count; i++) {
    const ScopeEntry *entry = &table->slots[i];
    if (entry->used) *find_slot(slots, slot_count, entry->scope, entry->category) = *entry;
  }
  free(table->slots);
  table->slots = slots;
  table->slot_count = slot_count;
}

void vl_scope_table_change(ScopeTable *table, const char *scope, MemoryCategory category, int64_t bytes) {
  ScopeEntry *entry = find_slot(table->slots, table->slot_count, scope, category);
  if (!entry->used) {
    if (2 * (table->used_count + 1) > table->slot_count) {
      grow(table);
      entry = find_slot(table->slots, table->slot_count, scope, category);
    }
    *entry = (ScopeEntry){.scope = scope, .category = category, .used = true};
    table->used_count++;
  }
  if (entry->saved_epoch != table->epoch) {
    entry->saved_bytes = entry->live_bytes;
    entry->saved_epoch = table->epoch;
  }
  entry->live_bytes += bytes;
}

void vl_scope_table_mark_peak(ScopeTable *table) { table->epoch++; }

/* ---- Reading ------------------------------------------------------------------------------------------ */

static int compare_names(const void *a, const void *b) {
  return strcmp(((const ScopeBytes *)a)->scope, ((const ScopeBytes *)b)->scope);
}

/* Largest first; equal ones by name, so that the order does not depend on addresses. */
static int compare_sizes(const void *a, const void *b) {
  const ScopeBytes *left = a, *right = b;
  if (left->bytes != right->bytes) return left->bytes > right->bytes ? -1 : 1;
  return strcmp(left->scope, right->scope);
}

static int64_t bytes_at_peak(const ScopeTable *table, const ScopeEntry *entry) {
  return entry->saved_epoch == table->epoch ? entry->saved_bytes : entry->live_bytes;
}

/* One row per entry that held something at the peak. */
static size_t collect_rows(const ScopeTable *table, ScopeBytes *rows) {
  size_t count = 0;
  for (size_t i = 0; i < table->slot_count; i++) {
    const ScopeEntry *entry = &table->slots[i];
    int64_t bytes = entry->used ? bytes_at_peak(table, entry) : 0;
    if (bytes == 0) continue;
    rows[count] = (ScopeBytes){.scope = entry->scope != NULL ? entry->scope : "", .bytes = bytes};
    rows[count].bytes_by_category[entry->category] = bytes;
    count++;
  }
  return count;
}

/* Adds up neighbouring rows of equal name. */
static size_t add_up_equal_names(ScopeBytes *rows, size_t count) {
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    if (kept > 0 && strcmp(rows[kept - 1].scope, rows[i].scope) == 0) {
      rows[kept - 1].bytes += rows[i].bytes;
      for (int c = 0; c < MEMORY_CATEGORY_COUNT; c++) {
        rows[kept - 1].bytes_by_category[c] += rows[i].bytes_by_category[c];
      }
    } else {
      rows[kept++] = rows[i];
    }
  }
  return kept;
}

int64_t vl_scope_table_at_peak(const ScopeTable *table, ScopeBytes *scopes, int64_t capacity) {
  ScopeBytes *rows = vl_allocate(table->used_count * sizeof *rows);
  size_t count = collect_rows(table, rows);
  qsort(rows, count, sizeof *rows, compare_names);
  count = add_up_equal_names(rows, count);
  qsort(rows, count, sizeof *rows, compare_sizes);
  for (size_t i = 0; i < count && (int64_t)i < capacity; i++)
    scopes[i] = rows[i];
  free(rows);
  return (int64_t)count;
}
