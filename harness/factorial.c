#include "harness/factorial.h"
#include "harness/report_select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Recipes ---------------------------------------------------------------------------------------------------- */

static const struct {
  const char *key;
  int32_t factor;
} factor_keys[] = {{"groups", FACTOR_GROUPS},
                   {"dynamic-batch", FACTOR_DYNAMIC_BATCH},
                   {"defragment", FACTOR_DEFRAGMENT},
                   {"allocator", FACTOR_DEFRAGMENT}};

/* -1: an item of the rest. */
static int32_t factor_of(const RecipeItem *item) {
  for (size_t i = 0; i < sizeof factor_keys / sizeof factor_keys[0]; i++)
    if (strcmp(item->optimization->name, factor_keys[i].key) == 0) return factor_keys[i].factor;
  return -1;
}

static bool recipe_of(const json_t *record, Recipe *recipe) {
  const char *text = vl_record_text(record, "recipe");
  return text != NULL && !vl_record_is_peer(record) && vl_recipe_parse(text, recipe).code == VL_OK;
}

/* The recipe with those of its factors alone. */
static void keep_factors(const Recipe *recipe, uint32_t factors, char text[VL_RECIPE_BYTES]) {
  Recipe kept = {.stack_vramlab = recipe->stack_vramlab};
  for (int32_t i = 0; i < recipe->count; i++) {
    int32_t factor = factor_of(&recipe->items[i]);
    if (factor < 0 || (factors >> factor & 1U) != 0) kept.items[kept.count++] = recipe->items[i];
  }
  vl_recipe_format(&kept, text, VL_RECIPE_BYTES);
}

void vl_factors_text(uint32_t factors, const char *between, char *text, size_t size) {
  static const char *const names[FACTOR_COUNT] = {"groups", "dynamic batch", "defragmentation"};
  size_t used = 0;
  snprintf(text, size, "none");
  for (int32_t i = 0; i < FACTOR_COUNT && used < size; i++)
    if ((factors >> i & 1U) != 0)
      used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? between : "", names[i]);
}

bool vl_factors_rest(const json_t *record, char rest[VL_RECIPE_BYTES]) {
  Recipe recipe;
  rest[0] = '\0';
  if (!recipe_of(record, &recipe)) return false;
  keep_factors(&recipe, 0, rest);
  return true;
}

/* ---- Cells ------------------------------------------------------------------------------------------------------- */

static bool has_all_factors(const json_t *record) {
  Recipe recipe;
  uint32_t factors = 0;
  if (vl_record_text(record, "queue") == NULL || !recipe_of(record, &recipe)) return false;
  for (int32_t i = 0; i < recipe.count; i++)
    if (factor_of(&recipe.items[i]) >= 0) factors |= 1U << factor_of(&recipe.items[i]);
  return factors == ALL_FACTORS;
}

/* The same queue of the same workload on the same device. */
static bool same_job(const json_t *a, const json_t *b) {
  static const char *const texts[] = {"case", "settings", "queue", "suite"};
  static const char *const numbers[] = {"capacity_bytes", "seed", "threads"};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
    if (!vl_record_same_text(a, b, texts[i])) return false;
  for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
    if (vl_record_integer(a, numbers[i]) != vl_record_integer(b, numbers[i])) return false;
  return vl_same_device(a, b) && vl_record_flag(a, "inference") == vl_record_flag(b, "inference");
}

bool vl_factorial_begins(const RecordSet *records, int32_t i) {
  const json_t *record = records->records[i];
  if (!has_all_factors(record)) return false;
  for (int32_t k = 0; k < i; k++)
    if (vl_record_same_text(records->records[k], record, "recipe") && same_job(records->records[k], record))
      return false;
  return true;
}

/* NaN where the cell does not tell. */
static double logarithm_of(double value) { return value > 0 ? log(value) : NAN; }

static double log_time(const json_t *record) {
  return vl_record_is_emulated(record) ? NAN : logarithm_of(vl_record_real(record, "step_s"));
}

/* Rounds that have a number in every corner move to the front. */
static void close_rounds(RoundTable *table) {
  table->rounds = 0;
  for (int32_t round = 0; round < MOST_ROUNDS; round++) {
    const double *row = table->values + (size_t)round * CORNERS;
    bool whole = true;
    for (int32_t c = 0; c < CORNERS; c++)
      whole = whole && !isnan(row[c]);
    if (whole) memmove(table->values + (size_t)table->rounds++ * CORNERS, row, CORNERS * sizeof *row);
  }
}

void vl_factorial_gather(const RecordSet *records, const json_t *whole, Factorial *factorial) {
  Recipe recipe;
  char corners[CORNERS][VL_RECIPE_BYTES];
  memset(factorial, 0, sizeof *factorial);
  if (!recipe_of(whole, &recipe)) return;
  for (uint32_t c = 0; c < CORNERS; c++)
    keep_factors(&recipe, c, corners[c]);
  snprintf(factorial->rest, sizeof factorial->rest, "%s", corners[0]);
  for (int32_t i = 0; i < MOST_ROUNDS * CORNERS; i++)
    factorial->time.values[i] = factorial->reserved.values[i] = NAN;
  for (int32_t i = 0; i < records->count; i++) {
    const json_t *record = records->records[i];
    const char *text = vl_record_text(record, "recipe");
    int64_t round = vl_record_integer(record, "repeat");
    if (text == NULL || !vl_record_has_status(record, "ok") || !same_job(record, whole)) continue;
    for (int32_t c = 0; c < CORNERS; c++) {
      if (strcmp(text, corners[c]) != 0) continue;
      if (factorial->corners[c] == NULL) factorial->corners[c] = record;
      if (round < 0 || round >= MOST_ROUNDS) continue;
      factorial->time.values[round * CORNERS + c] = log_time(record);
      factorial->reserved.values[round * CORNERS + c] =
          logarithm_of((double)vl_record_integer(record, "peak_reserved_bytes"));
    }
  }
  close_rounds(&factorial->time);
  close_rounds(&factorial->reserved);
  factorial->complete = true;
  for (int32_t c = 0; c < CORNERS; c++)
    factorial->complete = factorial->complete && factorial->corners[c] != NULL;
}

/* ---- Contrasts --------------------------------------------------------------------------------------------------- */

/* Back from logarithms. */
static Contrast power(Contrast logarithm) {
  return (Contrast){exp(logarithm.value), exp(logarithm.low), exp(logarithm.high)};
}

Contrast vl_factorial_effect(const RoundTable *table, uint32_t which) {
  double weights[CORNERS];
  vl_statistics_effect_weights(FACTOR_COUNT, which, weights);
  Contrast ratio = power(vl_statistics_contrast(table->values, CORNERS, table->rounds, weights));
  return (Contrast){ratio.value - 1, ratio.low - 1, ratio.high - 1};
}

Contrast vl_factorial_ratio(const RoundTable *table, uint32_t over, uint32_t under) {
  double weights[CORNERS] = {0};
  weights[over] += 1;
  weights[under] -= 1;
  return power(vl_statistics_contrast(table->values, CORNERS, table->rounds, weights));
}

Contrast vl_factorial_level(const RoundTable *table, uint32_t corner) {
  double weights[CORNERS] = {0};
  weights[corner] = 1;
  return power(vl_statistics_contrast(table->values, CORNERS, table->rounds, weights));
}

/* ---- Dice -------------------------------------------------------------------------------------------------------- */

SeedTable vl_factorial_dice(const RecordSet *records, const Factorial *factorial, uint32_t factors) {
  SeedTable table = {.count = 0};
  const json_t *whole = factorial->corners[ALL_FACTORS], *first = NULL;
  Recipe recipe;
  char wanted[VL_RECIPE_BYTES];
  if (whole == NULL || !recipe_of(whole, &recipe)) return table;
  keep_factors(&recipe, factors & 1U << FACTOR_GROUPS, wanted);
  for (int32_t i = 0; i < records->count && table.count < MOST_SEEDS; i++) {
    const json_t *record = records->records[i];
    const char *text = vl_record_text(record, "recipe");
    double dice = vl_record_real(record, "dice_mean");
    if (text == NULL || strcmp(text, wanted) != 0 || isnan(dice) || vl_record_flag(record, "inference") ||
        !vl_record_has_status(record, "ok") || !vl_same_device(record, whole) ||
        !vl_record_same_text(record, whole, "case"))
      continue;
    if (first == NULL) first = record;
    int64_t seed = vl_record_integer(record, "seed");
    bool known = !vl_record_same_text(record, first, "settings");
    for (int32_t k = 0; k < table.count; k++)
      known = known || table.seeds[k] == seed;
    if (known) continue;
    table.seeds[table.count] = seed;
    table.dice[table.count++] = dice;
  }
  return table;
}

static Contrast spread_of(const double *values, int32_t count) {
  Contrast spread = {.value = NAN, .low = NAN, .high = NAN};
  double sum = 0;
  for (int32_t i = 0; i < count; i++) {
    sum += values[i];
    spread.low = fmin(spread.low, values[i]);
    spread.high = fmax(spread.high, values[i]);
  }
  if (count > 0) spread.value = sum / count;
  return spread;
}

Contrast vl_seeds_spread(const SeedTable *table) { return spread_of(table->dice, table->count); }

Contrast vl_seeds_loss(const SeedTable *before, const SeedTable *after, int32_t *count) {
  double losses[MOST_SEEDS];
  *count = 0;
  for (int32_t i = 0; i < before->count; i++)
    for (int32_t k = 0; k < after->count; k++)
      if (before->seeds[i] == after->seeds[k]) losses[(*count)++] = before->dice[i] - after->dice[k];
  return spread_of(losses, *count);
}
