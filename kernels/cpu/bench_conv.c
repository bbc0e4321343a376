/* Times the convolutions of ResNet-50 for every layout family and every implementation oneDNN offers in it:
 * the measurement behind the choice in conv.c. Prints GFLOP/s per shape, the time of a whole step, and
 * CTestMeasurement lines.
 *
 *   bench-conv [batch] [f32|bf16] [repetitions]
 */
#include "base/base.h"
#include "oneapi/dnnl/dnnl.h"
#include "oneapi/dnnl/dnnl_debug.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Shape {
  int64_t in, out, kernel, stride, size; /* channels, window, stride, input height and width */
  int32_t count;                         /* how many layers of ResNet-50 have it */
} Shape;

static const Shape shapes[] = {
    {3, 64, 7, 2, 224, 1},    {64, 64, 1, 1, 56, 1},    {256, 64, 1, 1, 56, 2},    {64, 64, 3, 1, 56, 3},
    {64, 256, 1, 1, 56, 4},   {256, 128, 1, 1, 56, 1},  {512, 128, 1, 1, 28, 3},   {128, 128, 3, 2, 56, 1},
    {128, 128, 3, 1, 28, 3},  {128, 512, 1, 1, 28, 4},  {256, 512, 1, 2, 56, 1},   {512, 256, 1, 1, 28, 1},
    {1024, 256, 1, 1, 14, 5}, {256, 256, 3, 2, 28, 1},  {256, 256, 3, 1, 14, 5},   {256, 1024, 1, 1, 14, 6},
    {512, 1024, 1, 2, 28, 1}, {1024, 512, 1, 1, 14, 1}, {2048, 512, 1, 1, 7, 2},   {512, 512, 3, 2, 14, 1},
    {512, 512, 3, 1, 7, 2},   {512, 2048, 1, 1, 7, 3},  {1024, 2048, 1, 2, 14, 1},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

typedef enum Pass { FORWARD = 0, BACKWARD_DATA, BACKWARD_WEIGHTS, BACKWARD_WEIGHTS_PRESET, PASSES } Pass;
static const char *const pass_names[PASSES] = {"forward", "backward-data", "backward-weights",
                                               "backward-weights-preset"};
typedef enum Family { BLOCKED = 0, CHANNELS_LAST, ANY, FAMILIES } Family;
static const char *const family_names[FAMILIES] = {"nChw16c", "nhwc", "any"};

/* One way to run one pass of one shape. */
typedef struct Candidate {
  int32_t shape;
  Pass pass;
  Family family;
  int32_t variant; /* place in the library's list */
  char implementation[64];
  dnnl_primitive_t primitive;
  dnnl_memory_t memory[4]; /* in execution order; the last is the scratchpad */
  dnnl_exec_arg_t arguments[4];
  int64_t best_ns;
} Candidate;

typedef struct Bench {
  dnnl_engine_t engine;
  dnnl_stream_t stream;
  dnnl_primitive_attr_t attributes;
  dnnl_data_type_t type;
  int64_t batch;
  void *buffers[4];
  size_t sizes[4];
  Candidate *candidates;
  int32_t count;
} Bench;

static void check(dnnl_status_t status, const char *what) {
  if (status == dnnl_success) return;
  fprintf(stderr, "bench-conv: %s: %s\n", what, dnnl_status2str(status));
  abort();
}

static int64_t output_size(const Shape *s) {
  return (s->size + 2 * (s->kernel / 2) - s->kernel) / s->stride + 1;
}

static double flops(const Bench *bench, const Shape *s) {
  double out = (double)output_size(s);
  return 2.0 * (double)bench->batch * (double)(s->in * s->out * s->kernel * s->kernel) * out * out;
}

static dnnl_memory_desc_t descriptor(dnnl_data_type_t type, dnnl_dim_t a, dnnl_dim_t b, dnnl_dim_t c,
                                     dnnl_format_tag_t tag) {
  dnnl_memory_desc_t md;
  dnnl_dims_t dims = {a, b, c, c};
  check(dnnl_memory_desc_create_with_tag(&md, 4, dims, type, tag), "memory descriptor");
  return md;
}

/* The pass's primitive descriptor, NULL when the library has none. `weights` is taken over; NULL: any. */
static dnnl_primitive_desc_t describe(const Bench *bench, const Shape *s, Pass pass, Family family,
                                      dnnl_memory_desc_t weights) {
  dnnl_format_tag_t tag = family == BLOCKED         ? dnnl_aBcd16b
                          : family == CHANNELS_LAST ? dnnl_acdb
                                                    : dnnl_format_tag_any;
  /* Three channels are the image: plain in a blocked network. */
  dnnl_format_tag_t source_tag = s->in == 3 && family == BLOCKED ? dnnl_abcd : tag;
  dnnl_data_type_t weight_type = pass >= BACKWARD_WEIGHTS ? dnnl_f32 : bench->type;
  dnnl_memory_desc_t x = descriptor(bench->type, bench->batch, s->in, s->size, source_tag);
  dnnl_memory_desc_t y = descriptor(bench->type, bench->batch, s->out, output_size(s), tag);
  dnnl_memory_desc_t w =
      weights ? weights : descriptor(weight_type, s->out, s->in, s->kernel, dnnl_format_tag_any);
  dnnl_memory_desc_t forward_w = descriptor(bench->type, s->out, s->in, s->kernel, dnnl_format_tag_any);
  dnnl_dims_t stride = {s->stride, s->stride}, dilation = {0, 0}, padding = {s->kernel / 2, s->kernel / 2};
  dnnl_primitive_desc_t pd = NULL, hint = NULL;
  dnnl_status_t status = dnnl_convolution_forward_primitive_desc_create(
      &hint, bench->engine, dnnl_forward_training, dnnl_convolution_direct, x, forward_w, NULL, y, stride,
      dilation, padding, padding, bench->attributes);
  if (status == dnnl_success && pass == FORWARD) pd = hint;
  if (status == dnnl_success && pass == BACKWARD_DATA)
    status = dnnl_convolution_backward_data_primitive_desc_create(&pd, bench->engine, dnnl_convolution_direct,
                                                                  x, w, y, stride, dilation, padding, padding,
                                                                  hint, bench->attributes);
  if (status == dnnl_success && pass >= BACKWARD_WEIGHTS)
    status = dnnl_convolution_backward_weights_primitive_desc_create(
        &pd, bench->engine, dnnl_convolution_direct, x, w, NULL, y, stride, dilation, padding, padding, hint,
        bench->attributes);
  if (hint && hint != pd) dnnl_primitive_desc_destroy(hint);
  dnnl_memory_desc_destroy(x);
  dnnl_memory_desc_destroy(y);
  dnnl_memory_desc_destroy(w);
  dnnl_memory_desc_destroy(forward_w);
  return status == dnnl_success ? pd : NULL;
}

static void operands(Pass pass, dnnl_query_t queries[4], int arguments[4]) {
  static const dnnl_query_t query_table[3][3] = {
      {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_dst_md},
      {dnnl_query_diff_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
      {dnnl_query_src_md, dnnl_query_diff_weights_md, dnnl_query_diff_dst_md}};
  static const int argument_table[3][3] = {{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
                                           {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
                                           {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST}};
  int32_t row = pass > BACKWARD_WEIGHTS ? BACKWARD_WEIGHTS : (int32_t)pass;
  for (int32_t i = 0; i < 3; ++i) {
    queries[i] = query_table[row][i];
    arguments[i] = argument_table[row][i];
  }
  queries[3] = dnnl_query_scratchpad_md;
  arguments[3] = DNNL_ARG_SCRATCHPAD;
}

static void add(Bench *bench, int32_t shape, Pass pass, Family family, int32_t variant,
                const_dnnl_primitive_desc_t pd) {
  bench->candidates = vl_reallocate(bench->candidates, (size_t)(bench->count + 1) * sizeof(Candidate));
  Candidate *candidate = &bench->candidates[bench->count++];
  memset(candidate, 0, sizeof *candidate);
  candidate->shape = shape;
  candidate->pass = pass;
  candidate->family = family;
  candidate->variant = variant;
  candidate->best_ns = INT64_MAX;
  const char *implementation = "?";
  check(dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &implementation), "implementation");
  snprintf(candidate->implementation, sizeof candidate->implementation, "%s", implementation);
  check(dnnl_primitive_create(&candidate->primitive, pd), "primitive");
  dnnl_query_t queries[4];
  int arguments[4];
  operands(pass, queries, arguments);
  for (int32_t i = 0; i < 4; ++i) {
    const_dnnl_memory_desc_t md = dnnl_primitive_desc_query_md(pd, queries[i], 0);
    size_t bytes = dnnl_memory_desc_get_size(md);
    if (bytes > bench->sizes[i]) bench->sizes[i] = bytes;
    check(dnnl_memory_create(&candidate->memory[i], md, bench->engine, DNNL_MEMORY_NONE), "memory");
    candidate->arguments[i] = (dnnl_exec_arg_t){arguments[i], candidate->memory[i]};
  }
}

/* Reference implementations take minutes and are never a choice. */
static bool is_worth_timing(const_dnnl_primitive_desc_t pd) {
  const char *implementation = "";
  check(dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &implementation), "implementation");
  return strncmp(implementation, "ref", 3) != 0 && strncmp(implementation, "gemm:ref", 8) != 0;
}

static dnnl_memory_desc_t forward_weights(const Bench *bench, const Shape *s, Family family) {
  dnnl_primitive_desc_t pd = describe(bench, s, FORWARD, family, NULL);
  dnnl_memory_desc_t md = NULL;
  if (!pd) return NULL;
  /* The gradient is f32 and laid out as the weights are; only the name of the layout carries over. */
  for (int tag = dnnl_a; tag < dnnl_format_tag_last && !md; ++tag) {
    dnnl_dims_t dims = {s->out, s->in, s->kernel, s->kernel};
    dnnl_memory_desc_t guess = NULL;
    if (dnnl_memory_desc_create_with_tag(&guess, 4, dims, bench->type, (dnnl_format_tag_t)tag) !=
        dnnl_success)
      continue;
    if (dnnl_memory_desc_equal(guess, dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0)))
      check(dnnl_memory_desc_create_with_tag(&md, 4, dims, dnnl_f32, (dnnl_format_tag_t)tag), "weights");
    dnnl_memory_desc_destroy(guess);
  }
  dnnl_primitive_desc_destroy(pd);
  return md;
}

static void add_all(Bench *bench, int32_t shape, Pass pass, Family family, bool variants) {
  const Shape *s = &shapes[shape];
  if (pass == BACKWARD_DATA && s->in == 3) return; /* images need no gradient */
  dnnl_memory_desc_t weights = NULL;
  if (pass == BACKWARD_WEIGHTS_PRESET) {
    if (bench->type != dnnl_f32) return; /* the weights of low precision are not the parameter */
    weights = forward_weights(bench, s, family);
    if (!weights) return;
  }
  dnnl_primitive_desc_t pd = describe(bench, s, pass, family, weights);
  if (!pd) {
    printf("none: %s %s of %" PRId64 " -> %" PRId64 " %" PRId64 "x%" PRId64 "\n", pass_names[pass],
           family_names[family], s->in, s->out, s->kernel, s->kernel);
    return;
  }
  int32_t variant = 0;
  do {
    if (is_worth_timing(pd)) add(bench, shape, pass, family, variant, pd);
    ++variant;
  } while (variants && dnnl_primitive_desc_next_impl(pd) == dnnl_success);
  dnnl_primitive_desc_destroy(pd);
}

static void fill_buffers(Bench *bench) {
  for (int32_t i = 0; i < 4; ++i) {
    size_t bytes = (bench->sizes[i] + 4095) / 4096 * 4096;
    if (bytes == 0) bytes = 4096;
    bench->buffers[i] = aligned_alloc(4096, bytes);
    if (!bench->buffers[i]) check(dnnl_out_of_memory, "buffers");
    /* 0x3c3c is 0.0115 in bf16 and 0x3c3c3c3c 0.0115 in f32: ordinary numbers. */
    memset(bench->buffers[i], 0x3c, bytes);
  }
}

static void time_candidate(Bench *bench, Candidate *candidate) {
  for (int32_t i = 0; i < 4; ++i)
    check(dnnl_memory_set_data_handle(candidate->memory[i], bench->buffers[i]), "handle");
  int64_t start = vl_monotonic_ns();
  check(dnnl_primitive_execute(candidate->primitive, bench->stream, 4, candidate->arguments), "execute");
  check(dnnl_stream_wait(bench->stream), "wait");
  int64_t elapsed = vl_monotonic_ns() - start;
  if (elapsed < candidate->best_ns) candidate->best_ns = elapsed;
}

static const Candidate *best(const Bench *bench, int32_t shape, Pass pass, Family family, bool first_only) {
  const Candidate *found = NULL;
  for (int32_t i = 0; i < bench->count; ++i) {
    const Candidate *c = &bench->candidates[i];
    if (c->shape != shape || c->pass != pass || c->family != family) continue;
    if (first_only && c->variant != 0) continue;
    if (!found || c->best_ns < found->best_ns) found = c;
  }
  return found;
}

static void print_table(const Bench *bench) {
  for (Pass pass = FORWARD; pass < PASSES; ++pass) {
    printf("\n%s, GFLOP/s of the library's first choice (of its fastest, where another is 3 %% faster)\n",
           pass_names[pass]);
    for (int32_t i = 0; i < SHAPES; ++i) {
      const Shape *s = &shapes[i];
      printf("%4" PRId64 " ->%4" PRId64 " %" PRId64 "x%" PRId64 "/%" PRId64 " at %3" PRId64 " x%d", s->in,
             s->out, s->kernel, s->kernel, s->stride, s->size, s->count);
      for (Family family = BLOCKED; family < FAMILIES; ++family) {
        const Candidate *first = best(bench, i, pass, family, true);
        const Candidate *fastest = best(bench, i, pass, family, false);
        if (!fastest) continue;
        if (!first) first = fastest;
        printf("  %s %.0f %s", family_names[family], flops(bench, s) / (double)first->best_ns,
               first->implementation);
        if ((double)fastest->best_ns < 0.97 * (double)first->best_ns)
          printf(" (%.0f %s)", flops(bench, s) / (double)fastest->best_ns, fastest->implementation);
      }
      printf("\n");
    }
  }
}

/* Milliseconds of a pass over all layers. */
static double pass_ms(const Bench *bench, Pass pass, Family family, bool first_only) {
  double ms = 0.0;
  for (int32_t i = 0; i < SHAPES; ++i) {
    const Candidate *found = best(bench, i, pass, family, first_only);
    if (!found) found = best(bench, i, pass, family, false);
    if (found) ms += (double)found->best_ns * 1e-6 * shapes[i].count;
  }
  return ms;
}

static void print_totals(const Bench *bench) {
  printf("\nall convolutions of a step, ms: the library's first choice / its fastest\n");
  for (Family family = BLOCKED; family < FAMILIES; ++family) {
    printf("%-8s", family_names[family]);
    double first_ms = 0.0, fastest_ms = 0.0;
    for (Pass pass = FORWARD; pass < PASSES; ++pass) {
      double first = pass_ms(bench, pass, family, true), fastest = pass_ms(bench, pass, family, false);
      printf("  %s %.1f / %.1f", pass_names[pass], first, fastest);
      if (pass == BACKWARD_WEIGHTS_PRESET) continue; /* the same work again */
      first_ms += first;
      fastest_ms += fastest;
    }
    printf("  step %.1f / %.1f\n", first_ms, fastest_ms);
    printf("<CTestMeasurement type=\"numeric/double\" name=\"conv_step_%s_ms\">%.3f</CTestMeasurement>\n",
           family_names[family], first_ms);
  }
}

int main(int argc, char **argv) {
  Bench bench = {.batch = argc > 1 ? atol(argv[1]) : 16, .type = dnnl_f32};
  bool bf16 = argc > 2 && strcmp(argv[2], "bf16") == 0, f32 = argc < 3 || strcmp(argv[2], "f32") == 0;
  long repetitions = argc > 3 ? atol(argv[3]) : 3;
  if (argc > 4 || bench.batch < 1 || repetitions < 1 || !(bf16 || f32)) {
    fprintf(stderr, "usage: bench-conv [batch, at least 1] [f32|bf16] [repetitions, at least 1]\n");
    return 2;
  }
  if (bf16) bench.type = dnnl_bf16;
  check(dnnl_engine_create(&bench.engine, dnnl_cpu, 0), "engine");
  check(dnnl_stream_create(&bench.stream, bench.engine, dnnl_stream_default_flags), "stream");
  check(dnnl_primitive_attr_create(&bench.attributes), "attributes");
  check(dnnl_primitive_attr_set_scratchpad_mode(bench.attributes, dnnl_scratchpad_mode_user), "scratchpad");
  for (int32_t shape = 0; shape < SHAPES; ++shape)
    for (Pass pass = FORWARD; pass < PASSES; ++pass)
      for (Family family = BLOCKED; family < FAMILIES; ++family)
        add_all(&bench, shape, pass, family, family != ANY);
  fill_buffers(&bench);
  for (long repetition = 0; repetition < repetitions; ++repetition)
    for (int32_t i = 0; i < bench.count; ++i)
      time_candidate(&bench, &bench.candidates[i]);
  print_table(&bench);
  print_totals(&bench);
  return 0;
}
