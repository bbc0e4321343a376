/* factorial: cells whose recipes differ in three factors, grouped convolution, dynamic batch and
 * defragmentation, and in nothing else: for the claim about them, the report's tables and figures. */
#ifndef VRAMLAB_HARNESS_FACTORIAL_H
#define VRAMLAB_HARNESS_FACTORIAL_H

#include "harness/claims.h"

enum {
  FACTOR_GROUPS = 0,    /* groups=g */
  FACTOR_DYNAMIC_BATCH, /* dynamic-batch= */
  FACTOR_DEFRAGMENT,    /* defragment= and allocator= */
  FACTOR_COUNT
};
enum { CORNERS = 1 << FACTOR_COUNT, ALL_FACTORS = CORNERS - 1, MOST_ROUNDS = 64, MOST_SEEDS = 16 };

/* Factors, by bits, in words: "none", "groups", "groups + dynamic batch"; of an interaction, with " x ". */
void vl_factors_text(uint32_t factors, const char *between, char *text, size_t size);
/* The recipe without its factors: what else is the same in all cells of a factorial. False for a recipe that
 * is not ours. */
bool vl_factors_rest(const json_t *record, char rest[VL_RECIPE_BYTES]);

/* A quantity of every cell in every round that has all of them, as natural logarithms: an effect on it is a
 * factor. rounds 0: some cell never told. */
typedef struct RoundTable {
  double values[MOST_ROUNDS * CORNERS];
  int32_t rounds;
} RoundTable;

/* A cell with all three factors, and the cells whose recipes are its own without some of them. */
typedef struct Factorial {
  char rest[VL_RECIPE_BYTES];
  const json_t *corners[CORNERS]; /* by factors; the first that ran, NULL: none did */
  bool complete;                  /* all corners ran */
  RoundTable reserved, time;      /* bytes; seconds of a pass, nothing of emulated cells */
} Factorial;

/* Whether the i-th record, of a queue, has all factors and is the first of its kind. */
bool vl_factorial_begins(const RecordSet *records, int32_t i);
/* Gathers the factorial of such a record. */
void vl_factorial_gather(const RecordSet *records, const json_t *whole, Factorial *factorial);

/* By how much `which` changes a quantity: 0.05 is 5 % more. Of a main effect with the others at either level
 * alike; of an interaction, the square root of the factor by which the one changes the other's effect. */
Contrast vl_factorial_effect(const RoundTable *table, uint32_t which);
/* Quantity of one corner over that of another. */
Contrast vl_factorial_ratio(const RoundTable *table, uint32_t over, uint32_t under);
/* The quantity of a corner, its mean over rounds. */
Contrast vl_factorial_level(const RoundTable *table, uint32_t corner);

/* Dice of models trained with data on the same device, by seed: how well the recipe's numbers tell volumes
 * apart. It depends on groups and on the rest of the recipe. */
typedef struct SeedTable {
  int64_t seeds[MOST_SEEDS];
  double dice[MOST_SEEDS];
  int32_t count;
} SeedTable;
SeedTable vl_factorial_dice(const RecordSet *records, const Factorial *factorial, uint32_t factors);
/* Mean over the seeds, lowest and highest; NaN without any. */
Contrast vl_seeds_spread(const SeedTable *table);
/* What `after` lost against `before`, over the seeds both have; `count` of them. */
Contrast vl_seeds_loss(const SeedTable *before, const SeedTable *after, int32_t *count);

/* ---- Inside the claims files only ------------------------------------------------------------------------------ */

/* "inference, amp=bf16" of a cell of a queue; "" of others, which every finding sees. */
void vl_factorial_aspect(const json_t *record, char *text, size_t size);
void vl_decide_factorial(const Claim *claim, const RecordSet *cells, Finding *finding);

#endif
