#include "graph/graph.h"
#include <math.h>

Status vl_partition_interval(int32_t layers, int32_t interval, int32_t *sizes, int32_t *count) {
  if (layers < 1 || interval < 1) {
    return vl_error(VL_INVALID, "cannot cut %d layers every %d: both must be at least 1", layers, interval);
  }
  *count = 0;
  for (int32_t left = layers; left > 0; left -= interval)
    sizes[(*count)++] = left < interval ? left : interval;
  return vl_ok();
}

Status vl_partition_segments(int32_t layers, int32_t segments, int32_t *sizes, int32_t *count,
                             bool *clamped) {
  if (layers < 1 || segments < 1) {
    return vl_error(VL_INVALID, "cannot cut %d layers into %d segments: both must be at least 1", layers,
                    segments);
  }
  *clamped = segments > layers;
  *count = *clamped ? layers : segments;
  for (int32_t i = 0; i < *count; i++)
    sizes[i] = layers / *count + (i < layers % *count);
  return vl_ok();
}

double vl_checkpoint_interval(double layers, double boundary_bytes, double inner_bytes) {
  return layers > 0.0 && inner_bytes > 0.0 ? sqrt(layers * boundary_bytes / inner_bytes) : NAN;
}
