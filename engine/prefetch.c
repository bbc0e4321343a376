#include "engine/internal.h"
#include <pthread.h>
#include <stdlib.h>

struct Prefetch {
  PrefetchFill fill;
  void *context;
  const Inputs *of; /* whose next micro-batch it is */
  Inputs *staged;
  pthread_t thread;
  bool running, filled;
  uint64_t step;
  int64_t first_sample;
  Status status;
};

Status engine_prefetch_open(const Inputs *inputs, PrefetchFill fill, void *context, Prefetch **out) {
  *out = NULL;
  Inputs *staged;
  VL_TRY(engine_inputs_stage(inputs, &staged));
  if (!staged) return vl_ok();
  Prefetch *prefetch = vl_allocate(sizeof *prefetch);
  *prefetch = (Prefetch){.fill = fill, .context = context, .of = inputs, .staged = staged};
  *out = prefetch;
  return vl_ok();
}

static void *fill_staged(void *argument) {
  Prefetch *prefetch = argument;
  prefetch->status =
      prefetch->fill(prefetch->context, prefetch->staged, prefetch->step, prefetch->first_sample);
  return NULL;
}

static void wait_for_thread(Prefetch *prefetch) {
  if (!prefetch->running) return;
  (void)pthread_join(prefetch->thread, NULL);
  prefetch->running = false;
  prefetch->filled = true;
}

void engine_prefetch_begin(Prefetch *prefetch, uint64_t step, int64_t first_sample) {
  wait_for_thread(prefetch);
  prefetch->step = step;
  prefetch->first_sample = first_sample;
  prefetch->filled = false;
  /* Without a thread the micro-batch is filled when it is taken. */
  prefetch->running = pthread_create(&prefetch->thread, NULL, fill_staged, prefetch) == 0;
}

Status engine_prefetch_take(Prefetch *prefetch, Inputs *inputs, uint64_t step, int64_t first_sample) {
  wait_for_thread(prefetch); /* what fills inputs serves one at a time */
  bool is_it = prefetch->filled && inputs == prefetch->of && step == prefetch->step &&
               first_sample == prefetch->first_sample;
  if (!is_it) return prefetch->fill(prefetch->context, inputs, step, first_sample);
  prefetch->filled = false;
  VL_TRY(prefetch->status);
  return engine_inputs_deliver(prefetch->staged, inputs);
}

void engine_prefetch_close(Prefetch **prefetch) {
  Prefetch *it = *prefetch;
  if (!it) return;
  wait_for_thread(it);
  vl_inputs_destroy(&it->staged);
  free(it);
  *prefetch = NULL;
}
