#include "optimizations/internal.h"
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* In canonical order: phase first. A new optimization is a file and a line here. */
static const Optimization *const table[] = {
    &optimization_groups,
    &optimization_dynamic_batch,
    &optimization_inplace_abn,
    &optimization_fuse,
    &optimization_fold,
    &optimization_pool_index,
    &optimization_freeze,
    &optimization_loss_chunks,
    &optimization_amp,
    &optimization_precision,
    &optimization_loss_scale,
    &optimization_clip,
    &optimization_attention,
    &optimization_layer_norm,
    &optimization_dropout,
    &optimization_optimizer_state,
    &optimization_activation_gradients,
    &optimization_weights,
    &optimization_inplace,
    &optimization_update,
    &optimization_accumulate,
    &optimization_checkpoint,
    &optimization_recompute,
    &optimization_offload,
    &optimization_accumulate_wrong,
    &optimization_retain_graph,
    &optimization_keep_loss,
    &optimization_keep_recomputed,
    &optimization_copy_weights,
    &optimization_oversize_workspace,
    &optimization_grow,
    &optimization_window_sums,
    &optimization_concat,
    &optimization_algorithms,
    &optimization_allocator,
    &optimization_defragment,
};

const Optimization *const *vl_optimization_all(int32_t *count) {
  *count = (int32_t)(sizeof table / sizeof(Optimization *));
  return table;
}

const Optimization *vl_optimization_find(const char *name) {
  for (size_t i = 0; i < sizeof table / sizeof(Optimization *); i++) {
    if (strcmp(table[i]->name, name) == 0) return table[i];
  }
  return NULL;
}

const char *vl_phase_name(Phase phase) {
  static const char *const names[] = {"case",     "graph",    "shard", "precision",
                                      "backward", "schedule", "policy"};
  return names[phase];
}

const char *vl_preserves_name(Preserves preserves) {
  static const char *const names[] = {"bitwise", "tolerance", "different-model"};
  return names[preserves];
}

Status optimization_one_of(const Optimization *of, const char *value, const char *accepted) {
  size_t length = strlen(value);
  for (const char *at = accepted; *at;) {
    size_t run = strcspn(at, ",");
    if (run == length && strncmp(at, value, length) == 0) return vl_ok();
    at += run;
    at += strspn(at, ", ");
  }
  return vl_error(VL_INVALID, "%s=%s: accepted values are %s", of->name, value, accepted);
}

Status optimization_positive(const Optimization *of, const char *value, double *number) {
  locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0), before = uselocale(c);
  char *end;
  *number = strtod(value, &end);
  uselocale(before);
  freelocale(c);
  bool decimal = value[strspn(value, "0123456789.eE+-")] == '\0';
  if (decimal && end != value && *end == '\0' && *number > 0.0 && isfinite(*number)) return vl_ok();
  return vl_error(VL_INVALID, "%s=%s: accepted values are %s", of->name, value, of->values);
}
