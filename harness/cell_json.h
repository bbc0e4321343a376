/* A cell as JSON and back: what the runner tells a worker. */
#ifndef VRAMLAB_HARNESS_CELL_JSON_H
#define VRAMLAB_HARNESS_CELL_JSON_H

#include "harness/harness.h"

/* The names the tables use: a case found by a synonym gets its own. */
void vl_cell_normalize(CellSpec *spec);

/* "size=96 classes=10"; "" when none was given. Room: VL_SETTINGS_BYTES. */
enum { VL_SETTINGS_BYTES = VL_MAX_SETTINGS * (VL_NAME_BYTES + 1) + 1 };
void vl_settings_text(const CellSpec *spec, char text[VL_SETTINGS_BYTES]);

json_t *vl_cell_to_json(const SuiteCell *cell);
/* VL_INTERNAL names the field: only our own writer's output is read. */
Status vl_cell_from_json(const json_t *json, SuiteCell *cell) VL_CHECKED;

json_t *vl_timeline_to_json(const TimelineEvent *events, int64_t count);
/* free() the events. */
Status vl_timeline_from_json(const json_t *json, TimelineEvent **events, int64_t *count) VL_CHECKED;
/* The same of a step's ops. */
json_t *vl_ops_to_json(const OpRecord *ops, int64_t count);
Status vl_ops_from_json(const json_t *json, OpRecord **ops, int64_t *count) VL_CHECKED;

#endif
