/* The rule about planted anomalies: inside the claims files only. */
#ifndef VRAMLAB_HARNESS_CLAIMS_DIAGNOSE_H
#define VRAMLAB_HARNESS_CLAIMS_DIAGNOSE_H

#include "harness/claims.h"

/* Supported when as many kinds of planted anomalies as the region says are found, each alone, with op, scope
 * and bytes, none is missed, and no more clean runs than it says report anything. */
void vl_decide_planted_anomalies(const Claim *claim, const RecordSet *cells, Finding *finding);

#endif
