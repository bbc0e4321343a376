/* The findings of vramlab doctor: a name, a state, a line for people and facts for programs. */
#ifndef VRAMLAB_HARNESS_DOCTOR_H
#define VRAMLAB_HARNESS_DOCTOR_H

#include "harness/cards.h"
#include "harness/harness.h"
#include "harness/machine.h"

/* "ok"; "attention": it works, but not as well as it could; "missing": something vramlab needs, or needs for
 * part of what it does; "absent": nothing minds. */
typedef enum FindingState { FINDING_OK = 0, FINDING_ATTENTION, FINDING_MISSING, FINDING_ABSENT } FindingState;

/* Adds a finding. remedy: what to do about it, NULL for none. facts: an object, taken over, NULL for none. */
void vl_finding_add(json_t *findings, const char *name, FindingState state, const char *detail,
                    const char *remedy, json_t *facts);

/* Each adds what it finds, in doctor_machine.c, doctor_software.c, doctor_gpu.c. */
void vl_doctor_machine(json_t *findings);
void vl_doctor_software(json_t *findings);
void vl_doctor_gpu(json_t *findings);

/* The cards that are visible as CTest's resource specification (a new object): {"version": ..., "local":
 * [{"gpus": [{"id": "gpu_<uuid>", "slots": 1}, ...]}]}. An instance counts by its own; ids are UUIDs as CTest
 * can spell them. */
json_t *vl_doctor_resources(void);

#endif
