/* claims: an article's sentences as data, and what the cells of a store say about them. */
#ifndef VRAMLAB_HARNESS_CLAIMS_H
#define VRAMLAB_HARNESS_CLAIMS_H

#include "harness/harness.h"

enum { VL_CLAIM_HASH_BYTES = 65 };

struct ClaimRule;

/* One entry of a claims file; the text belongs to the file's arena. */
typedef struct Claim {
  const char *id, *section, *sentence, *translation, *setting, *metric, *denominator, *trap;
  const char *command;    /* that reproduces it; "none" while there is none */
  const char *missing;    /* of a rule that looks at no cells: why there is no verdict; else NULL */
  const YamlNode *suites; /* names of the suites whose cells decide it */
  const YamlNode *cells;  /* record path -> accepted value, or list of them */
  const YamlNode *region; /* the rule's numbers */
  const struct ClaimRule *rule;
  char hash[VL_CLAIM_HASH_BYTES]; /* SHA-256 of the canonical entry */
  int32_t first_line, last_line;  /* where it stands in its file */
  char commit[16];                /* that last changed it; "" when git cannot say */
  int64_t commit_time_s;          /* when that was made, since 1970 */
  bool uncommitted;               /* some of its lines are in no commit yet */
} Claim;

typedef struct ClaimFile {
  Arena *arena;
  const char *path, *article;
  Claim *claims;
  int32_t count;
} ClaimFile;

/* Reads and checks a claims file; path NULL: the one that comes with the program. VL_INVALID names
 * file:line:column and what is accepted. */
Status vl_claims_load(const char *path, ClaimFile **file) VL_CHECKED;
void vl_claims_destroy(ClaimFile **file);
/* Sets the claims' commit, commit_time_s and uncommitted, as git tells; part of vl_claims_load. */
void vl_claims_find_commits(ClaimFile *file);
const Claim *vl_claims_find(const ClaimFile *file, const char *id); /* NULL when unknown */
/* Hashes of the claims a suite decides, as an object {id: hash}, for the records of its cells. path NULL: the
 * file that comes with the program. The caller owns the object. */
Status vl_claims_hashes(const char *path, const char *suite, json_t **hashes) VL_CHECKED;
/* The hash of one entry. */
Status vl_claims_hash(const char *path, const char *id, char hash[VL_CLAIM_HASH_BYTES]) VL_CHECKED;

/* ---- Verdicts ---------------------------------------------------------------------------------------------- */

typedef enum Verdict {
  VERDICT_SUPPORTED = 0,
  VERDICT_REFUTED,
  VERDICT_AMBIGUOUS,  /* the article leaves out what decides it */
  VERDICT_UNDECIDED,  /* what would decide it is missing here */
  VERDICT_UNTESTABLE, /* in principle */
  VERDICT_COUNT
} Verdict;
const char *vl_verdict_name(Verdict verdict);

/* Borrowed records, in the order of their stores. */
typedef struct RecordSet {
  const json_t **records;
  int32_t count;
} RecordSet;

enum { VL_NUMBERS_BYTES = 1280, VL_SCOPE_BYTES = 192 };

/* What one device (and, where a rule looks at recipes apart, one recipe) says. */
typedef struct Finding {
  Verdict verdict;
  bool in_setting;     /* the hardware the article names, or it names none */
  bool predicted;      /* by the planner, not measured */
  bool emulated;       /* some cell stands in for hardware that is not there */
  bool region_changed; /* some cell was run under another text of this entry */
  bool build_changed;  /* some cell was run by a build of sources that no commit has */
  bool region_unknown; /* some cell does not say under which */
  char scope[VL_SCOPE_BYTES];
  char numbers[VL_NUMBERS_BYTES]; /* those that decided it, or what is missing */
} Finding;

enum { VL_MAX_FINDINGS = 24 };

typedef struct ClaimVerdict {
  const Claim *claim;
  Verdict verdict;                /* in the article's setting; evidence from elsewhere never changes it */
  int32_t headline;               /* index of the finding that gives it; -1: none */
  char numbers[VL_NUMBERS_BYTES]; /* of the headline, or why there is none */
  Finding findings[VL_MAX_FINDINGS];
  int32_t finding_count, findings_left_out;
} ClaimVerdict;
/* A finding's verdict in words. What holds on paper alone is not supported: "predicted to hold". */
const char *vl_finding_verdict_name(const Finding *finding);
/* "measured", "predicted" or, without a finding that decides, "none"; of rules that never give one,
 * "modelled". */
const char *vl_claim_provenance(const ClaimVerdict *verdict);

/* Whether a cell stands in for hardware that is not there (capped capacity on a measured device, fp16
 * computed in fp32): its speed counts in no figure and no claim. */
bool vl_record_is_emulated(const json_t *record);
/* Decides one claim from records (of any suites; its own are picked). */
void vl_claim_decide(const Claim *claim, const RecordSet *records, ClaimVerdict *verdict);
/* "setting unnamed; predicted, plan:cpu ..." of the headline. */
void vl_claim_scope(const ClaimVerdict *verdict, char *text, size_t size);
/* {"id", "verdict", "findings", ...}; the caller owns it. */
json_t *vl_claim_verdict_json(const ClaimVerdict *verdict);

/* ---- Listings --------------------------------------------------------------------------------------------------- */

/* "region" of a claim in one line: its rule and that rule's numbers. Cut where it does not fit. */
void vl_claim_region_text(const Claim *claim, char *text, size_t size);
/* "fixed by commit ...", or why none is named, and whether cells were run under another region. */
void vl_claim_fixed_text(const ClaimVerdict *verdict, char *text, size_t size);
/* One claim with all there is to it: statement, test, region, verdict, evidence, what reproduces it. */
void vl_claim_print_text(const ClaimVerdict *verdict, FILE *out, int width, bool color);
void vl_claim_print_markdown(const ClaimVerdict *verdict, FILE *out);

/* ---- Rules: inside the claims files only --------------------------------------------------------------------- */

/* A named function from the cells of one finding to its verdict. */
typedef struct ClaimRule {
  const char *name;
  const char *const *numbers; /* region keys with one number, NULL-terminated */
  const char *const *lists;   /* region keys with a list, NULL-terminated */
  int32_t list_length;        /* entries each list must have; 0: any */
  bool open_region;           /* other keys are kept for the suite to come */
  bool any_workload;          /* settings, training and inference are looked at together */
  bool per_recipe;            /* recipes are findings of their own */
  /* What findings of a workload are told apart by besides, as their scope says it; "" for a cell that all
   * findings of its device see and none is made of. NULL: nothing. */
  void (*aspect)(const json_t *record, char *text, size_t size);
  /* NULL: cells do not decide it; it has `verdict`, for what the claim says is missing. Writes verdict and
   * numbers. */
  void (*decide)(const Claim *claim, const RecordSet *cells, Finding *finding);
  Verdict verdict;
} ClaimRule;
/* Rules that have files of their own (claims_pairs.c). */
void vl_decide_level_pairs(const Claim *claim, const RecordSet *cells, Finding *finding);
/* claims_amp.c */
void vl_decide_amp_saving(const Claim *claim, const RecordSet *cells, Finding *finding);
void vl_decide_amp_speed(const Claim *claim, const RecordSet *cells, Finding *finding);
void vl_decide_amp_gradients(const Claim *claim, const RecordSet *cells, Finding *finding);
void vl_decide_amp_overflow(const Claim *claim, const RecordSet *cells, Finding *finding);
/* NULL when unknown. */
const ClaimRule *vl_claim_rule_find(const char *name);
/* Names of all rules, comma-separated, for messages. */
const char *vl_claim_rule_names(void);
/* Appends to a finding's numbers, printf style; what does not fit is cut. */
void vl_finding_say(Finding *finding, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A number of the region; checked to be there when the file is read. */
double vl_claim_number(const Claim *claim, const char *key);

#endif
