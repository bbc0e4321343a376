/* Rules about accumulation and kept graphs: inside the claims files only. */
#ifndef VRAMLAB_HARNESS_CLAIMS_ACCUMULATE_H
#define VRAMLAB_HARNESS_CLAIMS_ACCUMULATE_H

#include "harness/claims.h"

/* Supported when every job fragments (reserved over allocated, less 1) by more than the region's number where
 * it is accumulated wrongly, and not where it is accumulated rightly. */
void vl_decide_accumulation_fragmentation(const Claim *claim, const RecordSet *cells, Finding *finding);
/* Supported when every run that keeps its graphs leaks, at just the rate of the tensors named, and the same
 * job without does not. */
void vl_decide_retained_graph(const Claim *claim, const RecordSet *cells, Finding *finding);

#endif
