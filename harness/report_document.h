/* report: a document made once from a store, and written as a terminal screen, Markdown or HTML. Every number
 * is formatted when the document is made, so that the three say the same. */
#ifndef VRAMLAB_HARNESS_REPORT_DOCUMENT_H
#define VRAMLAB_HARNESS_REPORT_DOCUMENT_H

#include "harness/claims.h"
#include "harness/plot.h"

typedef enum PassageKind {
  PASSAGE_HEADING = 0,
  PASSAGE_TEXT,
  PASSAGE_POINT, /* of a list */
  PASSAGE_NOTE,  /* small print */
  PASSAGE_TABLE,
  PASSAGE_BARS,    /* a table of shares: name, GiB, % */
  PASSAGE_FIGURE,  /* a file of the figures folder */
  PASSAGE_VERDICT, /* a claim in one line: of a terminal alone, elsewhere they are a table */
  PASSAGE_CLAIM,   /* a claim with all that decided it */
  PASSAGE_COMMAND,
  PASSAGE_PLACE /* where the report is: of a terminal alone */
} PassageKind;

typedef struct TableColumn {
  const char *name, *unit; /* exactly one unit; "" for text */
  bool number;             /* aligned to the right */
} TableColumn;

/* A claim with everything its row shows. */
typedef struct ClaimPassage {
  const char *id, *verdict, *section, *sentence, *translation, *scope, *numbers, *command, *region, *fixed,
      *trap, *provenance;
  const char **findings; /* further evidence, one line each */
  int32_t finding_count;
} ClaimPassage;

typedef struct Passage {
  PassageKind kind;
  bool first_screen; /* on the terminal and at the top of the others */
  const char *text;  /* heading, paragraph, caption, command or figure title */
  const char *name;  /* heading: anchor, its own in the document; figure: file without ending; claim: id */
  TableColumn *columns;
  int32_t column_count;
  const char ***rows; /* [row_count][column_count] */
  int32_t row_count;
  const char **anchors; /* TABLE: what a row's first cell links to; NULL: nothing, also of a row */
  bool collapsed;       /* TABLE: shown when asked for */
  double *shares;       /* BARS: 0 to 1 a row */
  ClaimPassage *claim;
} Passage;

typedef struct Document {
  Arena *arena;
  const char *title, *subtitle;
  Passage *passages;
  int32_t count, capacity;
} Document;

Document *vl_document_create(void);
void vl_document_destroy(Document **document);
/* Adds a passage; valid until the next is added. text is copied. A heading gets its anchor as Markdown's
 * readers make them: lower case, spaces as hyphens, other punctuation left out, numbered where it is taken.
 */
Passage *vl_document_add(Document *document, PassageKind kind, bool first_screen, const char *text);
/* How many headings it has; from VL_CONTENTS_FROM on there is a list of contents. */
int32_t vl_document_headings(const Document *document);
enum { VL_CONTENTS_FROM = 4 };
/* Room for `rows` rows in a table of these columns; the columns are borrowed. More than VL_MANY_ROWS collapse
 * it. */
void vl_document_table(Document *document, Passage *passage, const TableColumn *columns, int32_t column_count,
                       int32_t rows);
enum { VL_MANY_ROWS = 40 };
/* Formatted cell text in the document's arena. */
const char *vl_document_format(Document *document, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A number by a printf format for one double; "n/a" unless finite. */
const char *vl_document_number(Document *document, const char *format, double value)
    __attribute__((format(printf, 2, 0)));
/* Bytes as a number of GiB; "n/a" below zero. */
const char *vl_document_gib(Document *document, int64_t bytes);

/* What a report is made of. claims and figures may be NULL. */
typedef struct ReportInput {
  RecordSet records;
  const json_t *head;    /* of the store; may be NULL */
  const char *directory; /* the store's, "" when it is a file alone */
  const char *page;      /* the store's report.html; NULL where there is none */
  const ClaimFile *claims;
  const FigureSet *figures;
} ReportInput;
/* Claims of a store's suites, decided once. */
typedef struct ReportClaims {
  ClaimPassage **claims;
  int32_t count;
} ReportClaims;
/* The texts are the document's. */
ReportClaims vl_report_decide(Document *document, const ReportInput *input);
/* For the reader in a hurry: what was run, how it ended, what claims, gates, plans and noise say, and the
 * largest savings with what they cost. */
void vl_report_summary(Document *document, const ReportInput *input, const ReportClaims *claims);
/* A table of claims that leads to each. */
void vl_report_claims(Document *document, const ReportClaims *claims);
/* On the terminal a line each. */
void vl_report_claims_lines(Document *document, const ReportClaims *claims);
/* Each with all that decided it. */
void vl_report_claims_whole(Document *document, const ReportClaims *claims);

/* What was held against the baseline's losses: recipes at a batch on a device, repetitions counting once. */
typedef struct GateCount {
  int32_t checked, broken;
  int32_t promised; /* without a baseline or losses to check */
} GateCount;
GateCount vl_report_count_gates(const RecordSet *records);
/* Every recipe held against the losses of the baseline of its workload, device and batch. */
void vl_report_gates(Document *document, const RecordSet *records);
/* What the times are worth: interval, outliers, trend, and what disturbed them. */
void vl_report_noise(Document *document, const RecordSet *records);
/* How many measured cells have their plan, and the largest error of the planned allocated peak, in percent.
 */
int32_t vl_report_count_planned(const RecordSet *records, double *worst);
/* A figure and its note. */
void vl_report_figure(Document *document, const Figure *figure, bool first_screen);
/* Whether a figure is of the section on monitors, not of the figures. */
bool vl_report_is_of_monitors(const Figure *figure);
/* The table of other engines beside ours, when the workload's cells have any. */
void vl_report_peers(Document *document, const RecordSet *cells, const Workload *workload);
/* What was measured beside what was planned for the same work on the same hardware, where there is any. */
void vl_report_planned(Document *document, const RecordSet *records);
/* What each cell's memory should be beside what was counted; of one comparison the terms too. */
void vl_report_account(Document *document, const RecordSet *records, const Comparison *comparison);
/* Of queues that ran with and without three measures: every cell, and what each does alone and together. */
void vl_report_factorials(Document *document, const RecordSet *records);
/* Tables of single cells, each left out when no cell has a row in it: one row a cell; what was offloaded;
 * how well volumes are told apart; what monitors saw; what ran out of memory; what leaks; why others have no
 * numbers. */
void vl_report_cells(Document *document, const RecordSet *records);
void vl_report_offloads(Document *document, const RecordSet *records);
void vl_report_volumes(Document *document, const RecordSet *records);
void vl_report_queues(Document *document, const RecordSet *records);
void vl_report_monitors(Document *document, const ReportInput *input);
void vl_report_failures(Document *document, const RecordSet *records);
void vl_report_leaks(Document *document, const RecordSet *records);
void vl_report_errors(Document *document, const RecordSet *records);
/* Of several stores under labels: tables of what stands side by side, with ratios to the reference, and the
 * figures (may be NULL). Borrows the labels. */
Document *vl_report_compare(const PlotInput *input, const FigureSet *figures);
Status vl_report_make(const ReportInput *input, Document **document) VL_CHECKED;

/* color: ANSI emphasis; width: columns of the terminal. Only the first screen. */
void vl_report_term(const Document *document, FILE *out, int width, bool color);
/* The claim's id, verdict, translation and scope, wrapped; for the terminal. */
void vl_report_term_claim(const ClaimPassage *claim, FILE *out, int width, bool color);
/* The beginning of a claim's line: the verdict, in its colour, and the claim. */
void vl_report_term_verdict(const char *verdict, const char *id, FILE *out, bool color);
/* Text wrapped at words to `width`, each further line indented; `column` characters are already there. */
void vl_report_term_wrapped(FILE *out, const char *text, int indent, int column, int width);
/* Figures are links relative to the document. */
void vl_report_markdown(const Document *document, FILE *out);
/* One file: style and figures (SVG, from the figures' directory) are in it. */
Status vl_report_html(const Document *document, const char *figure_directory, FILE *out) VL_CHECKED;

#endif
