/* What speed costs in memory: everything that ran, and what no other of its label beats in both. */
#include "harness/side_by_side.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Point {
  double gib, rate;
  const SideCell *cell;
  bool best; /* no other of its label and provenance needs less and is as fast */
} Point;

typedef struct Cloud {
  Point *points;
  int32_t count;
  double most_gib, most_rate;
} Cloud;

static int by_label_and_memory(const void *a, const void *b) {
  const Point *one = a, *other = b;
  if (one->cell->label != other->cell->label) return one->cell->label < other->cell->label ? -1 : 1;
  if (one->cell->provenance != other->cell->provenance)
    return one->cell->provenance < other->cell->provenance ? -1 : 1;
  if (one->gib < other->gib || one->gib > other->gib) return one->gib < other->gib ? -1 : 1;
  return (one->rate < other->rate) - (one->rate > other->rate);
}

static bool same_series(const Point *a, const Point *b) {
  return a->cell->label == b->cell->label && a->cell->provenance == b->cell->provenance;
}

/* One point a cell, the median of its repetitions; in order of label, provenance and memory. */
static Cloud points_of(const Side *side) {
  const SideMetric *needed = vl_side_metric("needed"), *speed = vl_side_metric("throughput-best");
  Cloud cloud = {.points = vl_allocate((size_t)(side->cell_count + 1) * sizeof *cloud.points)};
  for (int32_t i = 0; i < side->cell_count; i++) {
    const SideCell *cell = &side->cells[i];
    bool repeated = false;
    for (int32_t j = 0; j < cloud.count && !repeated; j++)
      repeated = vl_side_same_cell(cloud.points[j].cell, cell);
    double low, high;
    Point point = {.cell = cell};
    if (repeated) continue;
    point.gib = vl_side_median(side, cell, needed, &low, &high);
    point.rate = vl_side_median(side, cell, speed, &low, &high);
    if (!isfinite(point.gib) || !isfinite(point.rate)) continue;
    cloud.most_gib = fmax(cloud.most_gib, point.gib);
    cloud.most_rate = fmax(cloud.most_rate, point.rate);
    cloud.points[cloud.count++] = point;
  }
  qsort(cloud.points, (size_t)cloud.count, sizeof *cloud.points, by_label_and_memory);
  double best = 0;
  for (int32_t i = 0; i < cloud.count; i++) {
    if (i > 0 && !same_series(&cloud.points[i - 1], &cloud.points[i])) best = 0;
    cloud.points[i].best = cloud.points[i].rate > best;
    best = fmax(best, cloud.points[i].rate);
  }
  return cloud;
}

/* ---- Names beside points --------------------------------------------------------------------------------------------- */

/* Lengths in 1/800 of the figure's width, as plots/tradeoff.gp draws it: the plot, a character, a line of
 * text, the room of a point. */
enum { PLOT_WIDTH = 696, PLOT_HEIGHT = 395, CHARACTER_WIDTH = 8, LINE_HEIGHT = 18, POINT_SIZE = 12 };
enum { MOST_NAMES = 24, NAME_COLUMNS = 30 };

typedef struct Box {
  double left, right, bottom, top;
} Box;

static bool overlap(Box a, Box b) {
  return a.left < b.right && b.left < a.right && a.bottom < b.top && b.bottom < a.top;
}

static Box box_of_point(const Point *point, double xmax, double ymax) {
  double x = point->gib / xmax * PLOT_WIDTH, y = point->rate / ymax * PLOT_HEIGHT;
  return (Box){x - POINT_SIZE / 2.0, x + POINT_SIZE / 2.0, y - POINT_SIZE / 2.0, y + POINT_SIZE / 2.0};
}

/* Where a text of that width goes beside a point: right, left, above, below. */
static Box box_of_name(Box point, double width, int side) {
  double x = (point.left + point.right) / 2, y = (point.bottom + point.top) / 2;
  enum { GAP = 3 };
  Box box = {point.right + GAP, point.right + GAP + width, y - LINE_HEIGHT / 2.0, y + LINE_HEIGHT / 2.0};
  if (side == 1) box.left = point.left - GAP - width, box.right = point.left - GAP;
  if (side >= 2) box.left = x - width / 2, box.right = x + width / 2;
  if (side == 2) box.bottom = point.top, box.top = point.top + LINE_HEIGHT;
  if (side == 3) box.top = point.bottom, box.bottom = point.bottom - LINE_HEIGHT;
  return box;
}

/* What no name may cover: points, and the steps that join the best. */
typedef struct Obstacles {
  Box *boxes;
  int32_t count;
} Obstacles;

static Box around(Box a, Box b) {
  return (Box){fmin(a.left, b.left), fmax(a.right, b.right), fmin(a.bottom, b.bottom), fmax(a.top, b.top)};
}

static Box thin(double x, double y) { return (Box){x - 1, x + 1, y - 1, y + 1}; }

static Obstacles obstacles_of(const Cloud *cloud, double xmax, double ymax) {
  Obstacles obstacles = {.boxes = vl_allocate((size_t)(3 * cloud->count + 1 + MOST_NAMES) * sizeof(Box))};
  const Point *before = NULL;
  for (int32_t i = 0; i < cloud->count; i++) {
    const Point *point = &cloud->points[i];
    obstacles.boxes[obstacles.count++] = box_of_point(point, xmax, ymax);
    if (!point->best) continue;
    if (before != NULL && same_series(before, point)) {
      double x0 = before->gib / xmax * PLOT_WIDTH, y0 = before->rate / ymax * PLOT_HEIGHT,
             x1 = point->gib / xmax * PLOT_WIDTH, y1 = point->rate / ymax * PLOT_HEIGHT;
      obstacles.boxes[obstacles.count++] = around(thin(x0, y0), thin(x1, y0));
      obstacles.boxes[obstacles.count++] = around(thin(x1, y0), thin(x1, y1));
    }
    before = point;
  }
  return obstacles;
}

/* "amp=bf16, 32"; a recipe that is too long is cut. */
static void name_point(const Point *point, char *name, size_t size) {
  const char *recipe = point->cell->recipe;
  size_t bytes = vl_display_prefix(recipe, SIZE_MAX, NAME_COLUMNS);
  snprintf(name, size, "%.*s%s, %lld", (int)bytes, recipe, recipe[bytes] != '\0' ? "..." : "",
           (long long)point->cell->batch);
}

/* The names of the best points, each where it covers nothing, no other name either; one for which there is no
 * such place has none. */
static int32_t write_names(const Cloud *cloud, double xmax, double ymax, FigureData *out) {
  Obstacles obstacles = obstacles_of(cloud, xmax, ymax);
  int32_t count = 0;
  fputs("\n\n", out->data);
  for (int32_t i = cloud->count - 1; i >= 0 && count < MOST_NAMES; i--) {
    const Point *point = &cloud->points[i];
    if (!point->best) continue;
    char name[VL_RECIPE_BYTES + 32];
    name_point(point, name, sizeof name);
    double width = (double)(vl_display_columns(name, SIZE_MAX) * CHARACTER_WIDTH);
    for (int side = 0; side < 4; side++) {
      Box box = box_of_name(box_of_point(point, xmax, ymax), width, side);
      bool covers = box.left < 0 || box.right > PLOT_WIDTH || box.bottom < 0 || box.top > PLOT_HEIGHT;
      for (int32_t j = 0; j < obstacles.count && !covers; j++)
        covers = overlap(box, obstacles.boxes[j]);
      if (covers) continue;
      obstacles.boxes[obstacles.count++] = box;
      count++;
      fprintf(out->data, "%.9g %.9g ", (box.left + box.right) / 2 / PLOT_WIDTH * xmax,
              (box.bottom + box.top) / 2 / PLOT_HEIGHT * ymax);
      vl_gnuplot_word(out->data, name);
      fprintf(out->data, " %d\n", point->cell->label + 1);
      break;
    }
  }
  free(obstacles.boxes);
  return count;
}

/* ---- The figure -------------------------------------------------------------------------------------------------------- */

/* Of each label and provenance all points as a block of data, then the best of them. Returns the series. */
static int32_t write_series(const PlotInput *input, const Cloud *cloud, FigureData *out, size_t *longest) {
  /* gnuplot's point shapes, one a label: filled, and hollow; what is modelled is a cross in all. */
  static const int filled[] = {7, 5, 9, 13, 11, 15, 7, 5}, hollow[] = {6, 4, 8, 12, 10, 14, 6, 4};
  int32_t series = 0;
  for (int32_t i = 0; i < cloud->count; i++) {
    const SideCell *cell = cloud->points[i].cell;
    if (i > 0 && same_series(&cloud->points[i - 1], &cloud->points[i])) continue;
    series++;
    for (int best = 0; best < 2; best++) {
      if (series > 1 || best > 0) fputs("\n\n", out->data);
      for (int32_t j = i; j < cloud->count && same_series(&cloud->points[i], &cloud->points[j]); j++)
        if (!best || cloud->points[j].best)
          fprintf(out->data, "%.9g %.9g\n", cloud->points[j].gib, cloud->points[j].rate);
    }
    char name[200];
    snprintf(name, sizeof name, "%.150s (%s)", input->labels[cell->label],
             vl_side_provenance_name(cell->provenance));
    size_t width = vl_display_columns(name, SIZE_MAX);
    *longest = width > *longest ? width : *longest;
    fprintf(out->variables, "colours[%d] = %d\nshapes[%d] = %d\ndashes[%d] = %d\nnames[%d] = ", series,
            cell->label + 1, series,
            cell->provenance == SIDE_MEASURED    ? filled[cell->label % 8]
            : cell->provenance == SIDE_PREDICTED ? hollow[cell->label % 8]
                                                 : 2,
            series, (int)cell->provenance + 1, series);
    vl_gnuplot_text(out->variables, name);
    fputc('\n', out->variables);
  }
  return series;
}

Status vl_select_tradeoff(const PlotInput *input, const Workload *workload, const char *options,
                          FigureData *out) {
  (void)options;
  Side side;
  vl_side_collect(input, workload, "cell", &side);
  Cloud cloud = points_of(&side);
  size_t longest = 0;
  enum { MOST_SERIES = SIDE_PROVENANCE_COUNT * VL_MAX_LABELS };
  fprintf(out->variables, "array colours[%d]\narray names[%d]\narray shapes[%d]\narray dashes[%d]\n",
          MOST_SERIES, MOST_SERIES, MOST_SERIES, MOST_SERIES);
  int32_t series = write_series(input, &cloud, out, &longest);
  double xmax = cloud.most_gib > 0 ? 1.08 * cloud.most_gib : 1,
         ymax = cloud.most_rate > 0 ? 1.12 * cloud.most_rate : 1;
  int32_t names = cloud.count > 0 ? write_names(&cloud, xmax, ymax, out) : 0;
  fprintf(out->variables,
          "series = %d\ntexts = %d\nxmax = %.9g\nymax = %.9g\nkeys = %d\nkey_columns = %d\nbody = 460\n",
          series, names, xmax, ymax, series, vl_figure_key_columns(longest));
  snprintf(out->subtitle, sizeof out->subtitle,
           "every recipe and batch that ran; large and joined: none of its label is faster with less memory");
  out->points = cloud.count;
  if (out->points == 0) snprintf(out->note, sizeof out->note, "no label has both memory and speed.");
  free(cloud.points);
  vl_side_clear(&side);
  return vl_ok();
}
