/* plot: figures from a store, one gnuplot file each in plots/, drawn by gnuplot. */
#ifndef VRAMLAB_HARNESS_PLOT_H
#define VRAMLAB_HARNESS_PLOT_H

#include "harness/report_select.h"

/* One figure of plots/: its file's header says what it selects. */
typedef struct FigureKind {
  char name[64];
  char title[128];
  char help[256];
  char select[64];   /* a selection of plot_select.c */
  char options[256]; /* "x=micro_batch y=needed_bytes" */
  char path[4096];   /* the .gp file */
  char draws[64];    /* another .gp file that goes after it; "" none */
  bool several;      /* of several stores under labels */
} FigureKind;
/* The figures that plots/figures lists, in that order. free() them. VL_INVALID names the file and the line.
 */
Status vl_plot_kinds(FigureKind **kinds, int32_t *count) VL_CHECKED;

/* A figure of one store. Several workloads give one each, the further ones named "needed-2". */
typedef struct Figure {
  char name[96];
  char title[320];
  bool drawn;
  bool sparse;    /* one batch only: says no more than a table does */
  char note[512]; /* why not, or what to know when reading it */
} Figure;

enum { VL_MAX_FIGURES = 256 }; /* VL_MAX_WORKLOADS of each kind */
typedef struct FigureSet {
  char directory[4096]; /* where they lie */
  Figure figures[VL_MAX_FIGURES];
  int32_t count;
} FigureSet;

/* What figures are made of. store: for timelines, may be NULL. */
typedef struct PlotInput {
  RecordSet records;
  const Store *store;
  const char *source; /* the store's name, for the header of the data */
  /* Of several stores: their labels, in the order of their colours; records say theirs as "label". */
  const char *const *labels;
  int32_t label_count, reference; /* which one the others are divided by */
} PlotInput;
enum { VL_MAX_LABELS = 8 };

/* Writes NAME.gp and NAME.dat into the directory (made when missing) and draws each in the formats ("png
 * svg", any of png, svg, pdf). figure NULL: all. Without data: no files and a note. VL_ENVIRONMENT: gnuplot
 * is missing or failed, with what it said. */
Status vl_plot_draw(const PlotInput *input, const char *directory, const char *figure, const char *formats,
                    FigureSet *set) VL_CHECKED;

/* ---- Selections: inside the plot files only ------------------------------------------------------------------------ */

enum { VL_SUBTITLE_COLUMNS = 100 }; /* what fits into the width of a figure */

/* What a selection writes: rows of data, and variables of the gnuplot file. */
typedef struct FigureData {
  FILE *data, *variables;
  int64_t points;     /* finite values written */
  bool sparse;        /* all of them at one batch */
  char subtitle[640]; /* under the title: what all of the figure has in common */
  char note[512];
} FigureData;

typedef struct Selection {
  const char *name;
  Status (*write)(const PlotInput *input, const Workload *workload, const char *options, FigureData *out);
} Selection;
const Selection *vl_selection_find(const char *name); /* NULL when unknown */
const char *vl_selection_names(void);
/* The value of "key=value" in space-separated options; false when absent. */
bool vl_option_text(const char *options, const char *key, char *text, size_t size);
/* A gnuplot string literal, of the kind in which nothing is special: in the other, text between backquotes is
 * a command. */
void vl_gnuplot_text(FILE *out, const char *text);
/* A quoted word of a data file, which knows no escapes: a double quote becomes a single one, a backslash a
 * slash. */
void vl_gnuplot_word(FILE *out, const char *text);
/* The same over lines of at most `width` characters, broken at spaces; also for scripts. Returns the lines.
 */
int32_t vl_gnuplot_wrapped(FILE *out, const char *text, size_t width);
/* The same, in as few lines as there must be, and no single word left over: broken behind commas, colons and
 * semicolons where that can be, else in lines of about one length. */
int32_t vl_gnuplot_balanced(FILE *out, const char *text, size_t width);
/* A number or NaN, as gnuplot reads it. */
void vl_gnuplot_number(FILE *out, double value);

/* How many names of the key stand in a row. gnuplot makes one of two when it thinks they do not fit, which it
 * does from 40 characters on, and the key then runs into the plot: so two only of names that surely fit. */
int vl_figure_key_columns(size_t longest_name);
/* The subtitle: what is shown, and whether a record's device measured or predicted it. */
void vl_figure_subtitle(FigureData *figure, const char *what, const json_t *record);
/* How far an axis of bars reaches, and what is drawn of an interval at most: to the end of the farthest, but
 * no more than twice the longest bar, lest one disturbed cell make slivers of all. */
double vl_figure_reach(double longest_bar, double farthest_end);

/* The first record of a workload that kept its timeline, with that; NULL: none did. free() the events. */
const json_t *vl_record_with_timeline(const PlotInput *input, const Workload *workload,
                                      TimelineEvent **events, int64_t *count, Status *status);

Status vl_select_series(const PlotInput *input, const Workload *workload, const char *options,
                        FigureData *out) VL_CHECKED;
Status vl_select_categories(const PlotInput *input, const Workload *workload, const char *options,
                            FigureData *out) VL_CHECKED;
Status vl_select_growth(const PlotInput *input, const Workload *workload, const char *options,
                        FigureData *out) VL_CHECKED;
Status vl_select_recipes(const PlotInput *input, const Workload *workload, const char *options,
                         FigureData *out) VL_CHECKED;
Status vl_select_parts(const PlotInput *input, const Workload *workload, const char *options,
                       FigureData *out) VL_CHECKED;
Status vl_select_timeline(const PlotInput *input, const Workload *workload, const char *options,
                          FigureData *out) VL_CHECKED;
Status vl_select_heap_map(const PlotInput *input, const Workload *workload, const char *options,
                          FigureData *out) VL_CHECKED;
Status vl_select_fragmentation(const PlotInput *input, const Workload *workload, const char *options,
                               FigureData *out) VL_CHECKED;
Status vl_select_checkpoint(const PlotInput *input, const Workload *workload, const char *options,
                            FigureData *out) VL_CHECKED;
Status vl_select_monitors(const PlotInput *input, const Workload *workload, const char *options,
                          FigureData *out) VL_CHECKED;
Status vl_select_factorial(const PlotInput *input, const Workload *workload, const char *options,
                           FigureData *out) VL_CHECKED;
Status vl_select_hardware(const PlotInput *input, const Workload *workload, const char *options,
                          FigureData *out) VL_CHECKED;
Status vl_select_tradeoff(const PlotInput *input, const Workload *workload, const char *options,
                          FigureData *out) VL_CHECKED;
Status vl_select_effects(const PlotInput *input, const Workload *workload, const char *options,
                         FigureData *out) VL_CHECKED;

#endif
