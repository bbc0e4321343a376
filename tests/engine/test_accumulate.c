/* Accumulation: n micro-batches give the loss, the gradients and the weights of the batch they divide, with
 * dropout on and however many labels count in each. The reference device computes in double, so only the
 * order of sums differs there.
 *
 * usage: test_engine_accumulate [DEVICE] */
#include "tests/engine/job.h"
#include "tests/graph/networks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SEED = 5, BATCH = 8 };
static const char *device_name = "reference";

/* ---- BERT in small, dropout on ------------------------------------------------------------------------------- */

typedef struct Values {
  const char *name;
  double *at;
  int64_t count;
} Values;

typedef struct Sums {
  Job job; /* owns the names */
  int64_t micro_batch, predictions;
  bool ragged; /* samples differ in how many labels count */
  bool doubles;
  Values *items;
  int32_t count;
  double loss;
} Sums;

static Values *entry(Sums *sums, const char *name, int64_t count) {
  for (int32_t i = 0; i < sums->count; i++) {
    if (strcmp(sums->items[i].name, name) == 0) return &sums->items[i];
  }
  sums->items = vl_reallocate(sums->items, (size_t)(sums->count + 1) * sizeof *sums->items);
  Values *added = &sums->items[sums->count++];
  *added = (Values){name, vl_allocate((size_t)count * sizeof(double)), count};
  return added;
}

/* What a gradient or the loss was written last, repetitions aside: with accumulation the sum. */
static void take(void *context, const Run *run, const Instance *instance, const uintptr_t *outputs) {
  Sums *sums = context;
  const Storage *loss = vl_executable_program(run->executable)->loss->storage;
  if (instance->pass > 0) return;
  for (int32_t i = 0; i < instance->node->output_count; i++) {
    const Tensor *output = instance->node->outputs[i];
    if (!output || (output->storage->role != ROLE_GRADIENT && output->storage != loss)) continue;
    const char *name = output->storage == loss ? "loss" : output->storage->name;
    Values *values = entry(sums, name, output->storage->elements);
    if (sums->doubles) {
      memcpy(values->at, (const void *)outputs[i], (size_t)values->count * sizeof(double));
      continue;
    }
    float *host = vl_allocate((size_t)values->count * sizeof *host);
    require_ok(run->device->interface->download(run->device, output->storage, outputs[i], host));
    for (int64_t e = 0; e < values->count; e++)
      values->at[e] = (double)host[e];
    free(host);
  }
}

static void build_bert(int64_t samples, Program *program) {
  const Case *bert = vl_case_find("bert-base");
  const char *settings[] = {"sequence=16", "layers=2", "hidden=32", "heads=4", "vocabulary=61"};
  int64_t values[VL_MAX_CASE_ARGUMENTS];
  require_ok(vl_case_arguments(bert, samples, settings, 5, values));
  require_ok(bert->build(values, true, program));
}

/* Labels of a sample that count: 1, 2, ..., all of them, 1, ... */
static int64_t counted_in(int64_t sample, int64_t predictions) { return 1 + sample % predictions; }

static Status fill_bert(void *context, Inputs *inputs, int64_t first_sample) {
  const Sums *sums = context;
  enum { MOST = 16 };
  int32_t labels[BATCH * MOST];
  bool tail = inputs == sums->job.run.tail_inputs;
  int64_t samples = tail ? BATCH % sums->micro_batch : sums->micro_batch, predictions = sums->predictions;
  VL_TRY(vl_inputs_synthesize(inputs, SEED, 0, first_sample));
  if (!sums->ragged) return vl_ok();
  assert_in_range(predictions, 2, MOST);
  for (int64_t i = 0; i < samples * predictions; i++) {
    int64_t sample = first_sample + i / predictions, at = i % predictions;
    labels[i] =
        at < counted_in(sample, predictions) ? (int32_t)((7 * sample + 3 * at) % 61) : VL_IGNORED_LABEL;
  }
  return vl_inputs_write(inputs, "labels", labels, samples * predictions * (int64_t)sizeof *labels);
}

/* The program for the last micro-batch, on the job's State and heap. */
static void open_tail(Job *job, int64_t samples, const char *recipe_text) {
  Program program;
  Recipe recipe;
  Target target = {.ranks = 1};
  build_bert(samples, &program);
  require_ok(vl_recipe_parse(recipe_text, &recipe));
  require_ok(vl_recipe_apply(&recipe, &program, &target));
  require_ok(vl_executable_create(&program, job->device, job->state, &job->run.tail));
  require_ok(vl_executable_build(job->run.tail));
  require_ok(vl_inputs_create(job->run.tail, job->device, job->heap, &job->run.tail_inputs));
  job->run.samples = BATCH;
}

static int64_t predictions_of(const Job *job) {
  const Graph *graph = vl_executable_program(job->executable)->graph;
  for (int32_t i = 0; i < graph->storage_count; i++)
    if (strcmp(graph->storages[i]->name, "labels") == 0) return graph->storages[i]->root->shape[1];
  return -1;
}

static void run_bert(const char *device, int64_t micro_batch, const char *recipe, bool ragged, Sums *sums) {
  Program program;
  StepResult result;
  Job *job = &sums->job;
  *sums = (Sums){.doubles = strcmp(device, "reference") == 0, .micro_batch = micro_batch, .ragged = ragged};
  build_bert(micro_batch, &program);
  job_open(job, device, &program, recipe, SEED, 0);
  if (BATCH % micro_batch != 0) open_tail(job, BATCH % micro_batch, recipe);
  sums->predictions = predictions_of(job);
  job->run.observe = take;
  job->run.observe_context = sums;
  job->run.fill = fill_bert;
  job->run.fill_context = sums;
  int64_t counted = 0;
  for (int64_t n = 0; n < BATCH; n++)
    counted += counted_in(n, sums->predictions);
  require_ok(fill_bert(sums, job->inputs, 0));
  if (ragged) require_ok(vl_inputs_set_counted(job->inputs, "labels", counted));
  require_ok(vl_run_step(&job->run, job->inputs, &result, NULL));
  sums->loss = result.loss;
}

static void sums_clear(Sums *sums) {
  for (int32_t i = 0; i < sums->count; i++)
    free(sums->items[i].at);
  free(sums->items);
  vl_inputs_destroy(&sums->job.run.tail_inputs);
  vl_executable_destroy(&sums->job.run.tail);
  job_close(&sums->job);
}

static double distance(const Values *a, const Values *b) {
  double square = 0.0;
  for (int64_t e = 0; e < a->count; e++) {
    double difference = a->at[e] - (b ? b->at[e] : 0.0);
    square += difference * difference;
  }
  return sqrt(square);
}

static const Values *same_in(Sums *sums, const Values *values) {
  for (int32_t i = 0; i < sums->count; i++) {
    if (strcmp(sums->items[i].name, values->name) == 0) return &sums->items[i];
  }
  fail_msg("%s is missing", values->name);
  return NULL;
}

static const struct {
  int64_t micro_batch;
  const char *recipe;
} divisions[] = {{4, "accumulate=2"},
                 {2, "accumulate=4"},
                 {1, "accumulate=8"},
                 {2, "accumulate=4 checkpoint=1 inplace=all"},
                 {BATCH, "loss-chunks=3"},
                 {BATCH, "loss-chunks=8 checkpoint=1 inplace=all update=in-backward"},
                 {4, "accumulate=2 loss-chunks=5"},
                 {3, "accumulate=3"}, /* 3, 3, 2 */
                 {7, "accumulate=2"}, /* 7, 1 */
                 {3, "accumulate=3 checkpoint=1 inplace=all loss-chunks=5"},
                 {3, "accumulate=3 offload=activations+optimizer"}};

/* Micro-batches, and parts of the rows of a loss. In double: 1e-12 of a tensor's norm. In f32 both are away
 * from the truth by roundings of the same kernels, whose sums run in another order: the errors of the parts
 * are of the whole's size, within a factor of 4, and each of the n - 1 additions rounds once more, by at most
 * 2^-24 of what is added up. */
static void compare_divisions(bool ragged) {
  Sums truth, whole;
  run_bert("reference", BATCH, "baseline", ragged, &truth);
  run_bert(device_name, BATCH, "baseline", ragged, &whole);
  double worst = 0.0;
  for (size_t d = 0; d < sizeof divisions / sizeof *divisions; d++) {
    Sums parts;
    run_bert(device_name, divisions[d].micro_batch, divisions[d].recipe, ragged, &parts);
    assert_int_equal(parts.count, truth.count);
    for (int32_t i = 0; i < truth.count; i++) {
      const Values *right = &truth.items[i], *sum = same_in(&parts, right);
      double norm = distance(right, NULL), error = distance(sum, right);
      double bound = whole.doubles ? 1e-12 * norm
                                   : 4.0 * distance(same_in(&whole, right), right) + BATCH * 0x1p-24 * norm;
      if (error > bound)
        fail_msg("%s: %s is off by %g of %g, at most %g", divisions[d].recipe, right->name, error, norm,
                 bound);
      if (error > worst * bound) worst = error / bound;
    }
    assert_true(fabs(parts.loss - whole.loss) <= 4 * 0x1p-24 * whole.loss);
    sums_clear(&parts);
  }
  print_message("the worst error is %.2g of its bound\n", worst);
  sums_clear(&truth);
  sums_clear(&whole);
}

static void micro_batches_give_the_batch_f4(void **state) {
  (void)state;
  compare_divisions(false);
}

/* Every micro-batch has another number of labels that count. */
static void uneven_micro_batches_give_the_batch_b1(void **state) {
  (void)state;
  compare_divisions(true);
}

/* Micro-batches of 3, and a program for 2 left over. */
static void steps_that_do_not_divide_are_refused_f4(void **state) {
  (void)state;
  static const struct {
    int64_t samples;
    const char *why;
  } wrong[] = {{2, "1 to 3 micro-batches of 3"}, {12, "1 to 3 micro-batches of 3"}, {7, "adds the last 1"}};
  Sums sums;
  StepResult result;
  run_bert(device_name, 3, "accumulate=3", false, &sums);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    sums.job.run.samples = wrong[i].samples;
    Status status = vl_run_step(&sums.job.run, sums.job.inputs, &result, NULL);
    assert_int_equal(status.code, VL_INVALID);
    assert_non_null(strstr(status.message, wrong[i].why));
  }
  sums_clear(&sums);
}

/* ---- Volumes: a label a place ---------------------------------------------------------------------------------- */

enum { VOLUMES = 6, PART = 2 };

static double volume_step(int64_t batch, double dice, const char *recipe, int64_t first_sample,
                          Recording *gradients, Job *job) {
  Program program;
  StepResult result;
  network_volumes(batch, dice, &program);
  job_open(job, device_name, &program, recipe, SEED, 0);
  if (gradients) job_record_gradients(job, gradients);
  require_ok(vl_inputs_synthesize(job->inputs, SEED, 0, first_sample));
  require_ok(vl_run_step(&job->run, job->inputs, &result, NULL));
  return result.loss;
}

static void assert_floats_near(const Item *a, const Item *b) {
  double square = 0.0, difference = 0.0;
  assert_int_equal(a->bytes, b->bytes);
  for (int64_t i = 0; i < a->bytes / 4; i++) {
    double x = (double)((const float *)a->data)[i], y = (double)((const float *)b->data)[i];
    square += x * x;
    difference += (x - y) * (x - y);
  }
  if (difference > 1e-10 * square) fail_msg("%s is off by %g", a->name, sqrt(difference / square));
}

/* An instance's statistics are its own, so that cross entropy gives the batch's loss and gradients, to the
 * roundings of other orders of sums in f32. */
static void micro_batches_of_volumes_give_the_batch(void **state) {
  (void)state;
  Job whole, parts;
  Recording expected = {0}, actual = {0};
  double loss = volume_step(VOLUMES, 0.0, "baseline", 0, &expected, &whole);
  double sum = volume_step(PART, 0.0, "accumulate=3", 0, &actual, &parts);
  assert_true(fabs(sum - loss) <= 1e-6 * loss);
  assert_int_equal(actual.count, expected.count);
  for (int32_t i = 0; i < expected.count; i++)
    assert_floats_near(&expected.items[i], recording_find(&actual, expected.items[i].name));
  recording_clear(&expected);
  recording_clear(&actual);
  job_close(&whole);
  job_close(&parts);
}

/* With Dice the loss is the mean of the micro-batches' losses, each weighing its places. */
static void micro_batches_have_dice_losses_of_their_own(void **state) {
  (void)state;
  Job job;
  double mean = 0.0, sum = volume_step(PART, 1.0, "accumulate=3", 0, NULL, &job);
  job_close(&job);
  for (int64_t first = 0; first < VOLUMES; first += PART) {
    mean += volume_step(PART, 1.0, "baseline", first, NULL, &job) * PART / VOLUMES;
    job_close(&job);
  }
  assert_true(fabs(sum - mean) <= 1e-6 * mean);
}

/* ---- Labels that do not count --------------------------------------------------------------------------------- */

enum { TOKENS = 3 };

/* A sample of three tokens, scores (0, x) + p for two words; the loss of word 0 is log(1 + exp(x)). */
static void build_tokens(Program *program) {
  Graph *graph = vl_graph_create("tokens");
  vl_program_init(program, graph);
  program->training = true;
  vl_graph_set_scope(graph, "tokens");
  Tensor *x = vl_graph_input(graph, "x", DTYPE_F32, 3, (int64_t[]){1, TOKENS, 2}, 0);
  Tensor *labels = vl_graph_input(graph, "labels", DTYPE_I32, 2, (int64_t[]){1, TOKENS}, 2);
  Tensor *p = vl_graph_parameter(graph, "p", ROLE_PARAMETER, DTYPE_F32, 2, (int64_t[]){TOKENS, 2},
                                 (Init){INIT_ZERO, 0});
  OpParams rows = {.shape = {TOKENS, 2}, .rank = 2}, flat = {.shape = {TOKENS}, .rank = 1};
  Node *loss;
  require_ok(vl_apply(graph, "reshape", &rows, &x, 1, &x));
  require_ok(vl_apply(graph, "reshape", &flat, &labels, 1, &labels));
  require_ok(vl_apply(graph, "add", NULL, (Tensor *[]){x, p}, 2, &x));
  require_ok(vl_graph_add(graph, "softmax_cross_entropy", NULL, (Tensor *[]){x, labels}, 2, &loss));
  program->loss = loss->outputs[0];
}

typedef struct Tokens {
  double losses[TOKENS]; /* 0: a token that does not count */
} Tokens;

static Status write_tokens(Inputs *inputs, const Tokens *tokens) {
  float x[TOKENS][2] = {{0}};
  int32_t labels[TOKENS];
  for (int32_t t = 0; t < TOKENS; t++) {
    bool counts = tokens->losses[t] > 0.0;
    labels[t] = counts ? 0 : VL_IGNORED_LABEL;
    if (counts) x[t][1] = (float)log(expm1(tokens->losses[t]));
  }
  VL_TRY(vl_inputs_write(inputs, "x", x, sizeof x));
  return vl_inputs_write(inputs, "labels", labels, sizeof labels);
}

static Status fill_tokens(void *context, Inputs *inputs, int64_t first_sample) {
  const Tokens *tokens = context;
  return write_tokens(inputs, tokens + first_sample);
}

/* A step over the micro-batches; counted < 0: not said. */
static Status run_tokens(Job *job, Tokens *tokens, int64_t counted, StepResult *result) {
  job->run.fill = fill_tokens;
  job->run.fill_context = tokens;
  require_ok(write_tokens(job->inputs, tokens));
  if (counted >= 0) require_ok(vl_inputs_set_counted(job->inputs, "labels", counted));
  return vl_run_step(&job->run, job->inputs, result, NULL);
}

static void gradient_of_tokens(const char *recipe, Tokens *tokens, int64_t counted, double loss,
                               float *gradient) {
  Program program;
  Job job;
  Recording gradients = {0};
  StepResult result;
  build_tokens(&program);
  job_open(&job, device_name, &program, recipe, SEED, 0);
  job_record_gradients(&job, &gradients);
  require_ok(run_tokens(&job, tokens, counted, &result));
  assert_true(fabs(result.loss - loss) < 1e-6);
  assert_int_equal(recording_find(&gradients, "p.grad")->bytes, TOKENS * 2 * (int64_t)sizeof(float));
  memcpy(gradient, recording_find(&gradients, "p.grad")->data, TOKENS * 2 * sizeof(float));
  recording_clear(&gradients);
  job_close(&job);
}

/* One token of loss 4, then three of loss 1: 7 / 4. The gradient of a token's score for its word is
 * exp(-loss) - 1, over 4. */
static void losses_are_weighted_by_tokens_b1(void **state) {
  (void)state;
  Tokens tokens[] = {{{4, 0, 0}}, {{1, 1, 1}}};
  float gradient[2 * TOKENS];
  gradient_of_tokens("accumulate=2", tokens, 4, 1.75, gradient);
  for (int32_t t = 0; t < TOKENS; t++) {
    double expected = (expm1(-1.0) + (t == 0 ? expm1(-4.0) : 0.0)) / 4.0;
    assert_true(fabs((double)gradient[2 * t] - expected) < 1e-6);
    assert_true(fabs((double)gradient[2 * t + 1] + expected) < 1e-6);
  }
}

/* What the case calls wrong is what the mistake computes: (4 + 1) / 2, and gradients of as many weights. */
static void the_mistake_is_a_mean_of_means_b1(void **state) {
  (void)state;
  Tokens tokens[] = {{{4, 0, 0}}, {{1, 1, 1}}};
  float gradient[2 * TOKENS];
  gradient_of_tokens("accumulate-wrong=2", tokens, 4, 2.5, gradient);
  for (int32_t t = 0; t < TOKENS; t++) {
    double expected = (expm1(-1.0) / 3.0 + (t == 0 ? expm1(-4.0) : 0.0)) / 2.0;
    assert_true(fabs((double)gradient[2 * t] - expected) < 1e-6);
  }
}

static int64_t peak_of(const char *recipe, int64_t micro_batch) {
  Sums sums;
  MemoryStatistics statistics;
  run_bert(device_name, micro_batch, recipe, false, &sums);
  vl_tracker_statistics(sums.job.tracker, &statistics);
  sums_clear(&sums);
  return statistics.allocated.peak_bytes;
}

/* Where all labels count its loss is right, and its memory that of the whole batch and more: every graph is
 * kept. */
static void the_mistake_keeps_every_graph(void **state) {
  (void)state;
  Sums right, wrong;
  run_bert(device_name, 2, "accumulate=4", false, &right);
  run_bert(device_name, 2, "accumulate-wrong=4", false, &wrong);
  assert_true(fabs(right.loss - wrong.loss) <= 1e-6 * right.loss);
  for (int32_t i = 0; i < right.count; i++) {
    const Values *sum = same_in(&wrong, &right.items[i]);
    assert_true(distance(&right.items[i], sum) <= 1e-5 * distance(sum, NULL));
  }
  sums_clear(&right);
  sums_clear(&wrong);
  int64_t whole_bytes = peak_of("baseline", BATCH), right_bytes = peak_of("accumulate=4", 2);
  assert_true(peak_of("accumulate-wrong=4", 2) > whole_bytes);
  assert_true(right_bytes < whole_bytes);
}

/* Windows of 4 over 7 micro-batches whose gradient is 1 each, the loss being far above what its rounding
 * could show: 4 and 3 of them, divided by their own number. */
static void a_short_window_is_divided_by_its_own_count_b3(void **state) {
  (void)state;
  Tokens tokens[] = {{{80, 0, 0}}, {{80, 0, 0}}, {{80, 0, 0}}, {{80, 0, 0}}};
  Program program;
  Job job;
  Recording gradients = {0};
  StepResult result;
  build_tokens(&program);
  job_open(&job, device_name, &program, "accumulate=4", SEED, 0);
  job_record_gradients(&job, &gradients);
  for (int64_t step = 0; step < 4; step++) {
    int64_t samples = step % 2 == 0 ? 4 : 3;
    job.run.samples = samples;
    require_ok(run_tokens(&job, tokens, samples, &result));
    const float *gradient = recording_find(&gradients, "p.grad")->data;
    assert_true(gradient[0] == -1.0F && gradient[1] == 1.0F);
    assert_true(fabs(result.loss - 80.0) < 1.0); /* it learns */
  }
  recording_clear(&gradients);
  job_close(&job);
}

/* As many labels count as there are, whatever the window. */
static void a_short_window_is_a_batch_of_its_size_b3(void **state) {
  (void)state;
  Tokens tokens[] = {{{2, 1, 3}}, {{2, 1, 3}}, {{2, 1, 3}}, {{0, 0, 0}}};
  float one[2 * TOKENS], window[2 * TOKENS];
  gradient_of_tokens("baseline", tokens, -1, 2.0, one);
  gradient_of_tokens("accumulate=4", tokens, 9, 2.0, window);
  for (int32_t i = 0; i < 2 * TOKENS; i++)
    assert_true(fabs((double)(window[i] - one[i])) < 1e-6);
}

/* Nothing is updated by a mean over a number of labels that was not theirs. */
static void a_wrong_count_is_refused_before_the_update(void **state) {
  (void)state;
  Tokens tokens[] = {{{4, 0, 0}}, {{1, 1, 1}}};
  Program program;
  Job job;
  StepResult result;
  float p[2 * TOKENS], zero[2 * TOKENS] = {0};
  build_tokens(&program);
  job_open(&job, device_name, &program, "accumulate=2", SEED, 0);
  for (int64_t counted = -1; counted < 6; counted++) {
    Status status = run_tokens(&job, tokens, counted, &result);
    require_ok(vl_state_read(job.state, "p", p, sizeof p));
    if (counted == 4) {
      assert_int_equal(status.code, VL_OK);
      assert_memory_not_equal(p, zero, sizeof p);
      require_ok(vl_state_write(job.state, "p", zero, sizeof zero));
      continue;
    }
    assert_int_equal(status.code, VL_INVALID);
    assert_non_null(strstr(status.message, "labels: 4 labels count in the step's 2 micro-batches, not"));
    assert_memory_equal(p, zero, sizeof p);
  }
  job.run.fill = NULL;
  Status status = vl_run_step(&job.run, job.inputs, &result, NULL);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "accumulate=2"));
  job_close(&job);
}

/* ---- Batch norm ------------------------------------------------------------------------------------------------- */

static void build_norm(int64_t batch, Program *program) {
  Graph *graph = vl_graph_create("norm");
  vl_program_init(program, graph);
  program->training = true;
  vl_graph_set_scope(graph, "bn");
  Tensor *x = vl_graph_input(graph, "x", DTYPE_F32, 4, (int64_t[]){batch, 1, 1, 1}, 0);
  Tensor *labels = vl_graph_input(graph, "labels", DTYPE_I32, 1, &batch, 1);
  OpParams rows = {.shape = {batch, 1}, .rank = 2};
  Node *loss;
  require_ok(vl_batch_norm(graph, x, true, 1e-5, 0.1, &x));
  require_ok(vl_apply(graph, "reshape", &rows, &x, 1, &x));
  require_ok(vl_graph_add(graph, "softmax_cross_entropy", NULL, (Tensor *[]){x, labels}, 2, &loss));
  program->loss = loss->outputs[0];
}

static Status fill_norm(void *context, Inputs *inputs, int64_t first_sample) {
  const float *values = context;
  return vl_inputs_write(inputs, "x", values + first_sample, 2 * (int64_t)sizeof *values);
}

static void running_mean_of(int64_t batch, const char *recipe, Preserves promised, double expected) {
  static float values[] = {0, 2, 4, 6};
  Program program;
  Recipe parsed;
  Job job;
  StepResult result;
  float mean = 0.0F;
  build_norm(batch, &program);
  job_open(&job, device_name, &program, recipe, SEED, 0);
  require_ok(vl_recipe_parse(recipe, &parsed));
  assert_int_equal(vl_recipe_preserves(&parsed, vl_executable_program(job.executable)), promised);
  require_ok(vl_inputs_synthesize(job.inputs, SEED, 0, 0));
  require_ok(vl_inputs_write(job.inputs, "x", values, batch * (int64_t)sizeof *values));
  job.run.fill = fill_norm;
  job.run.fill_context = values;
  require_ok(vl_run_step(&job.run, job.inputs, &result, NULL));
  require_ok(vl_state_read(job.state, "bn.running_mean", &mean, sizeof mean));
  assert_true(fabs((double)mean - expected) < 1e-6);
  job_close(&job);
}

/* Statistics of each micro-batch: 0.9 x 0.1 + 0.1 x 5, where the batch of four has 0.1 x 3. Said so. */
static void batch_norm_is_another_model_b6(void **state) {
  (void)state;
  running_mean_of(4, "baseline", PRESERVES_BITWISE, 0.3);
  running_mean_of(4, "accumulate=1", PRESERVES_BITWISE, 0.3);
  running_mean_of(2, "accumulate=2", PRESERVES_DIFFERENT_MODEL, 0.59);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(micro_batches_give_the_batch_f4),
      cmocka_unit_test(uneven_micro_batches_give_the_batch_b1),
      cmocka_unit_test(micro_batches_of_volumes_give_the_batch),
      cmocka_unit_test(micro_batches_have_dice_losses_of_their_own),
      cmocka_unit_test(steps_that_do_not_divide_are_refused_f4),
      cmocka_unit_test(losses_are_weighted_by_tokens_b1),
      cmocka_unit_test(the_mistake_is_a_mean_of_means_b1),
      cmocka_unit_test(the_mistake_keeps_every_graph),
      cmocka_unit_test(a_short_window_is_divided_by_its_own_count_b3),
      cmocka_unit_test(a_short_window_is_a_batch_of_its_size_b3),
      cmocka_unit_test(a_wrong_count_is_refused_before_the_update),
      cmocka_unit_test(batch_norm_is_another_model_b6),
  };
  if (argc > 1) device_name = argv[1];
  return cmocka_run_group_tests(tests, NULL, NULL);
}
