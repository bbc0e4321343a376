/* harness: command line, suites, the runner of child processes, statistics and the store of results.
 * Reports, claims and figures read the store only. */
#ifndef VRAMLAB_HARNESS_H
#define VRAMLAB_HARNESS_H

#include "base/base.h"
#include "engine/engine.h"
#include <jansson.h>
#include <stdio.h>

/* ---- Statistics: small, own, with golden tests ---------------------------------------------------------- */

/* Median of n values; NaN when n is 0. */
double vl_statistics_median(const double *values, int64_t n);
/* Median absolute deviation from the median, unscaled; NaN when n is 0. */
double vl_statistics_spread(const double *values, int64_t n);
/* Quantile p in [0, 1] with linear interpolation (R's type 7, numpy's default); NaN when n is 0. */
double vl_statistics_quantile(const double *values, int64_t n, double p);

/* A median with its distribution-free interval: order statistics k and n + 1 - k, where k is the largest for
 * which the coverage 1 - 2 P(Binomial(n, 1/2) < k) is at least 0.95. Fewer than 6 samples have none: low,
 * high and coverage are NaN. */
typedef struct Estimate {
  double median, spread;
  double low, high, coverage;
  int64_t samples;
} Estimate;
Estimate vl_statistics_estimate(const double *values, int64_t n);
/* The farther end of that interval from the median, as a share of it; infinite where there is no interval. */
double vl_statistics_noise(const double *values, int64_t n);
/* Drops the first `warmup` samples; VL_INVALID when none would be left. */
Status vl_statistics_drop_warmup(const double *values, int64_t n, int64_t warmup, const double **kept,
                                 int64_t *kept_count) VL_CHECKED;
/* Tukey's fences (1.5 interquartile ranges): sets flags[i] for the samples outside, returns how many. */
int64_t vl_statistics_outliers(const double *values, int64_t n, bool *flags);
/* Estimate of the ratios a[i] / b[i] of paired samples. */
Estimate vl_statistics_paired_ratio(const double *a, const double *b, int64_t n);
/* A number with the ends of its 95 % interval; they are NaN when nothing tells them. */
typedef struct Contrast {
  double value, low, high;
} Contrast;
/* The two-sided 95 % quantile of Student's t: half an interval in standard errors. NaN below one degree. */
double vl_statistics_student(int64_t degrees);
/* sum of weights[c] * mean of cell c, of an experiment that runs each of n cells once a round:
 * values[round * n + c]. Rounds are blocks, so that a drift of the machine is no error of a cell: what the
 * means of cells and of rounds leave over is, with (n - 1) (rounds - 1) degrees of freedom, and the standard
 * error of the sum is sqrt(its mean square * sum of weights^2 / rounds). (Montgomery, Design and Analysis of
 * Experiments, 8th edition, 4.1 and 7.2.) One round has no interval. */
Contrast vl_statistics_contrast(const double *values, int32_t n, int32_t rounds, const double *weights);
/* Weights of an effect in a factorial of two levels: cell c has factor i at its upper level where bit i of c
 * is set, and `which` has the bits of the factors whose effect it is, one for a main effect, several for
 * their interaction. 1 / 2^(factors - 1), negative where the product of the levels, up as 1 and down as -1,
 * is: the mean of one half of the cells less that of the other. (The same, 6.2 and 6.4.) */
void vl_statistics_effect_weights(int32_t factors, uint32_t which, double *weights);
/* Two-sided probability that samples of one distribution differ as much in their ranks: exact for up to 40 of
 * each without ties, else by the normal approximation with corrections for ties and continuity. NaN without
 * samples. (Mann & Whitney, Annals of Mathematical Statistics 18, 1947.) */
double vl_statistics_mann_whitney(const double *a, int64_t n, const double *b, int64_t m);
/* Two-sided probability of Student's t, degrees of freedom need not be whole. */
double vl_statistics_student_p(double t, double degrees);
/* mean(b) - mean(a) with its 95 % interval, and the two-sided probability of as large a difference where
 * there is none, variances being what they may (Welch, Biometrika 34, 1947). NaN below two samples of each.
 * `shared`: variance that all samples of a side have in common, as a share of that between them, so that no
 * number of them averages it out; 0 in Welch's test. */
double vl_statistics_welch(const double *a, int64_t n, const double *b, int64_t m, double shared,
                           Contrast *difference);
/* The mean of differences of pairs with its 95 % interval, and the two-sided probability of as large a mean
 * where there is none (Student, Biometrika 6, 1908). NaN below two. */
double vl_statistics_paired(const double *differences, int64_t n, Contrast *mean);
/* Two-sided probability of as many and as large differences of one sign where both signs are as likely: exact
 * up to 40 without ties and zeros, else by the normal approximation corrected for ties; zeros are left out.
 * (Wilcoxon, Biometrics Bulletin 1, 1945.) */
double vl_statistics_signed_rank(const double *differences, int64_t n);
/* Probabilities of `count` tests made at once, so that all that are below 0.05 are false together in at most
 * one of 20 cases (Holm, Scandinavian Journal of Statistics 6, 1979). NaN stays NaN and counts for nothing.
 */
void vl_statistics_holm(const double *p, int64_t count, double *adjusted);
/* How much values change from the first to the last, as a share of their median (Theil-Sen's slope), and the
 * two-sided probability of as many rises or falls where there is no trend (Mann-Kendall; ties count as
 * neither). NaN below 6 values. (Sen, Journal of the American Statistical Association 63, 1968; Kendall, Rank
 * Correlation Methods.) */
typedef struct Drift {
  double change, p;
} Drift;
Drift vl_statistics_drift(const double *values, int64_t n);
/* Where a series changes its level: `at` is the first value of the new one, p of a permutation test. */
typedef struct ChangePoint {
  int64_t at;
  double p;
} ChangePoint;
/* E-divisive (Matteson & James 2014, Journal of the American Statistical Association 109; for nightly
 * benchmarks Daly et al. 2020, ICPE): the split with the largest energy distance of its sides, each of at
 * least two values, is kept when at most `level` of 999 orders of the same values split as well, and both
 * sides are searched again. Distances are absolute, so that one wild value is no level. points has room for
 * n; returns how many, in order. The orders are drawn from n alone: the same values, the same answer. */
int64_t vl_statistics_change_points(const double *values, int64_t n, double level, ChangePoint *points);
/* count per second; NaN, with the reason, when count or elapsed time is not positive. reason is NULL else. */
double vl_statistics_rate(int64_t count, double elapsed_s, const char **reason);

/* ---- Records: one JSON object a finished cell -------------------------------------------------------------- */

enum { VL_SCHEMA_VERSION = 1 };

typedef enum ColumnType { COLUMN_TEXT = 0, COLUMN_INTEGER, COLUMN_REAL, COLUMN_FLAG } ColumnType;

struct CellView; /* a spec and its result while a record is made */

/* One value of a record. The table of all of them (columns.c) serves JSON, HDF5 and CSV. */
typedef struct Column {
  const char *name; /* in tables: "peak_parameter_bytes" */
  const char *path; /* in the JSON object; dots descend: "peak_by_category.parameter" */
  const char *unit; /* "bytes", "s", "1/s", "1" for counts and ratios, "" for text */
  ColumnType type;
  const char *help;
  /* The value for a record; NULL: not known, with a reason when there is a better one than the usual. */
  json_t *(*value)(const struct CellView *view, const struct Column *column, const char **reason);
  size_t offset, width; /* for values that are a field: where, and its size */
} Column;
const Column *vl_column_all(int32_t *count);
const Column *vl_column_find(const char *name); /* by name or path; NULL when unknown */

/* A cell of a suite: what the engine is told, and what only the harness needs. */
typedef struct SuiteCell {
  CellSpec spec;
  int32_t repeat;   /* 0-based */
  double timeout_s; /* <= 0: none */
  bool max_batch;   /* not one run but the search for the largest batch under spec.capacity_bytes; kind
                       "max-batch" */
  bool shuffled;    /* its place within its round was drawn, by order_seed */
  int64_t order_seed;
} SuiteCell;

/* 16 hexadecimal digits: hash of the resolved spec, the repeat and the schema version. */
void vl_cell_key(const SuiteCell *cell, char key[17]);
/* The record of a result. Unknown numbers are null, with why in "null_reasons". The caller owns it. */
json_t *vl_record_create(const SuiteCell *cell, const CellResult *result);
/* The record of a cell that gave no result: status timeout, crashed, skipped, unsupported. */
json_t *vl_record_create_failure(const SuiteCell *cell, const char *status, const char *error);
/* Columns that an older vramlab's record does not have become null, with that as the reason. */
void vl_record_complete(json_t *record);
/* By column name or path, dots descend. NULL, -1 and NaN when absent, null or of another type. */
const char *vl_record_text(const json_t *record, const char *path);
int64_t vl_record_integer(const json_t *record, const char *path);
double vl_record_real(const json_t *record, const char *path);
bool vl_record_flag(const json_t *record, const char *path);
/* Whether a record has that status. */
bool vl_record_has_status(const json_t *record, const char *status);
/* Whether two records have the same text, or both none. */
bool vl_record_same_text(const json_t *a, const json_t *b, const char *path);
/* An array of numbers ("step_times_s", "losses"), null elements as NaN; free() it. Count 0 when absent. */
double *vl_record_list(const json_t *record, const char *path, int64_t *count);
/* One line of JSON: keys in order, 17 digits, "." whatever the locale. free() it. */
char *vl_record_format(const json_t *record);

/* ---- Store: a directory that survives a kill at any moment ---------------------------------------------------- */

typedef struct Store Store;

/* A new store in a directory that does not exist or is empty; suite and command line go to its head. */
Status vl_store_create(const char *directory, const char *suite, const char *command_line,
                       Store **store) VL_CHECKED;
/* Opens for reading a directory, its results.h5 (also alone, without the directory), or "latest" (NULL means
 * that too). A torn last line is left out with a note on stderr. results.h5 is rebuilt when it is not up to
 * date. VL_INVALID: truncated or foreign; nothing is touched. */
Status vl_store_open(const char *path, Store **store) VL_CHECKED;
/* Whether a directory holds a store (has a journal). */
bool vl_store_exists(const char *directory);
/* Opens a directory for adding to it: as above, and a torn last line is cut off. */
Status vl_store_open_append(const char *directory, Store **store) VL_CHECKED;
/* The one to add to, made where there is none yet; of many processes that begin it at once one makes it. */
Status vl_store_begin(const char *directory, const char *suite, const char *command_line,
                      Store **store) VL_CHECKED;
/* Journals a record (borrowed) and, when there are events, its timeline first; on return both are on disk.
 * VL_ENVIRONMENT: no space; what was there is intact. */
Status vl_store_append(Store *store, const json_t *record, const TimelineEvent *timeline,
                       int64_t timeline_count) VL_CHECKED;
/* The same with the ops of the timeline's step. */
Status vl_store_append_step(Store *store, const json_t *record, const TimelineEvent *timeline,
                            int64_t timeline_count, const OpRecord *ops, int64_t op_count) VL_CHECKED;
/* One record a key: the latest. In order of first appearance. */
int64_t vl_store_count(const Store *store);
const json_t *vl_store_record(const Store *store, int64_t i);
const json_t *vl_store_find(const Store *store, const char *key); /* NULL when absent */
/* Provenance of the store itself: suite, created_utc, hostname, versions, command_line, ... */
const json_t *vl_store_head(const Store *store);
/* The timeline of a cell; count 0 when it has none. free() the events. */
Status vl_store_timeline(const Store *store, const char *key, TimelineEvent **events,
                         int64_t *count) VL_CHECKED;
/* The ops of that step; count 0 when it has none. free() them. */
Status vl_store_ops(const Store *store, const char *key, OpRecord **ops, int64_t *count) VL_CHECKED;
/* What messages call a cell: "resnet50, batch 8, amp=bf16, cpu". */
void vl_store_cell_text(const json_t *record, char *text, size_t size);
/* The only cell with a timeline whose key begins with `prefix` (NULL: the only one at all). VL_INVALID lists
 * those there are. free() the events; the record is borrowed. */
Status vl_store_find_timeline(const Store *store, const char *prefix, TimelineEvent **events, int64_t *count,
                              const json_t **record) VL_CHECKED;
/* Makes a directory and those above it, where they are missing. VL_ENVIRONMENT: it cannot. */
Status vl_make_directories(const char *directory) VL_CHECKED;
/* The directory ("" for a results.h5 on its own). */
const char *vl_store_path(const Store *store);
/* Writes results.h5 from journal and timelines when it is not up to date. */
Status vl_store_rebuild(Store *store) VL_CHECKED;
/* Closes and sets to NULL; NULL is allowed. Does not rebuild. */
void vl_store_close(Store **store);

/* ---- YAML with line marks: suites, claims ------------------------------------------------------------------------ */

typedef enum YamlKind { YAML_TEXT = 0, YAML_LIST, YAML_MAP } YamlKind;
typedef struct YamlNode {
  YamlKind kind;
  const char *file;
  int32_t line, column;        /* from 1 */
  const char *text;            /* YAML_TEXT */
  int32_t count;               /* items of a list, entries of a map */
  const char **keys;           /* YAML_MAP */
  struct YamlNode **key_nodes; /* where each key stands */
  struct YamlNode **items;
} YamlNode;
/* Reads a file into the arena. VL_INVALID names file:line:column: malformed, a key twice, nested too deep. */
Status vl_yaml_load(const char *path, Arena *arena, const YamlNode **root) VL_CHECKED;
/* The value of a key; NULL when the map has none (or node is NULL). */
const YamlNode *vl_yaml_get(const YamlNode *map, const char *key);
/* VL_INVALID unless node is a map with accepted keys only (NULL-terminated); names the unknown key and the
 * accepted ones. */
Status vl_yaml_check_keys(const YamlNode *node, const char *const *accepted) VL_CHECKED;
/* Text of a scalar, a whole number within [low, high], a real number, a flag. VL_INVALID names the place. */
Status vl_yaml_text(const YamlNode *node, const char **text) VL_CHECKED;
Status vl_yaml_integer(const YamlNode *node, int64_t low, int64_t high, int64_t *value) VL_CHECKED;
Status vl_yaml_real(const YamlNode *node, double *value) VL_CHECKED;
Status vl_yaml_flag(const YamlNode *node, bool *value) VL_CHECKED;
/* A VL_INVALID that begins with "file:line:column: ". */
Status vl_yaml_error(const YamlNode *node, const char *format, ...)
    __attribute__((format(printf, 2, 3))) VL_CHECKED;

/* ---- Suites: format in cases/suites/README.md ---------------------------------------------------------------------- */

typedef struct Suite {
  Arena *arena;
  const char *name, *title, *help, *path;
  char sha256[65];  /* of the file, in hexadecimal; each cell stores it */
  SuiteCell *cells; /* expanded, checked, each key once */
  int64_t cell_count;
} Suite;
/* A path (has a "/" or ends in .yaml) or a name among the suites that come with the program. VL_INVALID names
 * file:line:column and what is accepted. */
Status vl_suite_load(const char *path_or_name, Suite **suite) VL_CHECKED;
void vl_suite_destroy(Suite **suite);
/* Calls visit for each suite that comes with the program, by name. */
Status vl_suite_each(void (*visit)(const char *name, const char *title, const char *help, void *context),
                     void *context) VL_CHECKED;
/* A file that comes with the program ("cases/suites", "cases/claims.yaml", "plots/x.gp"): installed beside
 * the program (../share/vramlab/...), else in the source tree. VL_ENVIRONMENT names both places. */
Status vl_shared_path(const char *relative, char *path, size_t size) VL_CHECKED;

/* ---- Runner: each measured cell in a child of its own ------------------------------------------------------------------ */

typedef struct RunnerOptions {
  const char *program; /* NULL: this program; started with the one argument "cell" */
  double grace_s;      /* between SIGTERM and SIGKILL; <= 0: 1 s */
  /* One line of what goes on inside a cell; NULL: nobody wants it. */
  void (*step_done)(void *context, int32_t step, int32_t total);
  void *context;
} RunnerOptions;

typedef struct Runner Runner;
/* Blocks SIGINT, SIGTERM and SIGCHLD in this process until destroyed, and adopts orphans of its children. */
Status vl_runner_create(const RunnerOptions *options, Runner **runner) VL_CHECKED;
/* Ends the plan worker and every child. */
void vl_runner_destroy(Runner **runner);
/* Runs a cell to a record, whatever becomes of the child: its own status, or timeout or crashed. Everything
 * the cell started is gone on return. plan cells share one worker. events: NULL, or the timeline; free() it.
 * VL_INVALID: the spec is wrong. VL_INTERRUPTED: asked to stop a second time; there is no record. */
Status vl_runner_cell(Runner *runner, const SuiteCell *cell, json_t **record, TimelineEvent **events,
                      int64_t *event_count) VL_CHECKED;
/* The ops of the step whose timeline vl_runner_cell gave last; the runner's, until its next cell. */
const OpRecord *vl_runner_ops(const Runner *runner, int64_t *count);
/* Whether SIGINT or SIGTERM came. */
bool vl_runner_stop_requested(Runner *runner);
/* Searches the largest micro-batch whose plan fits under the cell's capacity (cell->max_batch, device plan).
 * The record is that of the largest one that fits, of kind "max-batch", with its global batch as "batch"; 0,
 * and the record of batch 1, when none fits. */
Status vl_runner_max_batch(Runner *runner, const SuiteCell *cell, json_t **record) VL_CHECKED;

/* The child's side: reads one spec a line, runs it, writes messages to `out`, until end of input. Returns the
 * exit code. run is vl_cell_run but in tests. */
typedef Status (*CellRunFunction)(const CellSpec *spec, const CellObserver *observer, CellResult *result);
int vl_worker_serve(FILE *in, int out, CellRunFunction run);

/* Largest value in [low, high] for which probe says fits, given that all below a fitting one fit; low - 1
 * when none does. An error of the probe ends the search and is returned. */
Status vl_bisect(int64_t low, int64_t high, Status (*probe)(void *context, int64_t value, bool *fits),
                 void *context, int64_t *largest) VL_CHECKED;

/* ---- Commands: argv[0] is the command's name; the result is the exit code ------------------------------------------------ */

int vl_command_list(int argc, char **argv);
int vl_command_run(int argc, char **argv); /* also `plan` */
int vl_command_max_batch(int argc, char **argv);
int vl_command_fit(int argc, char **argv);
int vl_command_explain(int argc, char **argv);
int vl_command_graph(int argc, char **argv);
int vl_command_replay(int argc, char **argv);
int vl_command_diagnose(int argc, char **argv);
int vl_command_status(int argc, char **argv);
int vl_command_doctor(int argc, char **argv);
int vl_command_import(int argc, char **argv);
int vl_command_convert(int argc, char **argv);
int vl_command_report(int argc, char **argv);
int vl_command_claims(int argc, char **argv);
int vl_command_compare(int argc, char **argv);
int vl_command_export(int argc, char **argv);
int vl_command_baseline(int argc, char **argv);
int vl_command_plot(int argc, char **argv);

/* After a suite has run: writes report.html and figures/ into the store's directory and the first screen to
 * `screen` (NULL: not wanted). */
Status vl_report_write(Store *store, FILE *screen) VL_CHECKED;
/* Names and one-line helps of the figures, for `list`. */
Status vl_plot_each(void (*visit)(const char *name, const char *help, void *context),
                    void *context) VL_CHECKED;

/* At the start of the program: opens what is closed of standard input, output and error, and has the program
 * end with a message and exit code 3 when its output could not be written. A broken pipe ends it silently. */
void vl_standard_streams(void);
/* Prints "vramlab: message" to stderr and returns the exit code of a status. */
int vl_command_fail(Status status);

#endif
