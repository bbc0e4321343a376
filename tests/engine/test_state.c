/* State: what is saved comes back bit for bit, training goes on as if it had not stopped, evaluation shares
 * the weights, and a file that is not ours or not whole is refused and changes nothing.
 *
 * usage: test_engine_state [DEVICE] */
#include "tests/engine/job.h"
#include "tests/graph/networks.h"
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { SEED = 3 };
static const char *device_name = "reference";
static char directory[] = "/tmp/vramlab-state-XXXXXX";
static char path[64];

static void open_with(Job *job, bool adamw, const char *recipe) {
  Program program;
  network_bottlenecks(&(NetOptions){.batch = 4, .size = 16, .dropout = 0.1, .adamw = adamw}, &program);
  job_open(job, device_name, &program, recipe, SEED, 0);
}

static void open_net(Job *job, const char *recipe) { open_with(job, false, recipe); }

/* ---- Going on ------------------------------------------------------------------------------------------------------ */

static void assert_goes_on(bool adamw, const char *recipe, const char *recipe_after) {
  Job whole, first, second;
  double losses[4];
  Recording expected = {0}, actual = {0};
  open_with(&whole, adamw, recipe);
  for (uint64_t step = 0; step < 4; step++)
    losses[step] = job_step(&whole, step);
  job_read_state(&whole, &expected);

  open_with(&first, adamw, recipe);
  for (uint64_t step = 0; step < 2; step++)
    job_step(&first, step);
  require_ok(vl_state_save(first.state, path, 2, SEED));
  job_close(&first);

  open_with(&second, adamw, recipe_after);
  int64_t step = -1;
  uint64_t seed = 0;
  require_ok(vl_state_load(second.state, path, &step, &seed));
  assert_int_equal(step, 2);
  assert_int_equal(seed, SEED);
  for (; step < 4; step++) {
    double loss = job_step(&second, (uint64_t)step);
    assert_memory_equal(&loss, &losses[step], sizeof loss);
  }
  job_read_state(&second, &actual);
  assert_recordings_equal(&expected, &actual, recipe_after);
  recording_clear(&expected);
  recording_clear(&actual);
  job_close(&second);
  job_close(&whole);
}

/* The reference device computes in double while State is f32, so saving rounds there. */
static void two_steps_and_two_more_are_four(void **state) {
  (void)state;
  if (strcmp(device_name, "reference") == 0) skip();
  for (int adamw = 0; adamw < 2; adamw++) {
    assert_goes_on(adamw, "baseline", "baseline");
    assert_goes_on(adamw, "amp=bf16", "amp=bf16");
    assert_goes_on(adamw, "amp=fp16", "amp=fp16 checkpoint=1");
    assert_goes_on(adamw, "stack=vramlab amp=bf16", "stack=vramlab amp=bf16");
    assert_goes_on(adamw, "baseline",
                   "checkpoint=1 recompute=norm update=in-backward"); /* a file has no recipe */
  }
}

static void what_is_saved_comes_back(void **state) {
  (void)state;
  Job job, other;
  Recording expected = {0}, actual = {0};
  open_net(&job, "baseline");
  job_step(&job, 0);
  job_read_state(&job, &expected);
  require_ok(vl_state_save(job.state, path, 41, UINT64_MAX));
  open_net(&other, "stack=vramlab");
  int64_t step;
  uint64_t seed;
  require_ok(vl_state_load(other.state, path, &step, &seed));
  assert_int_equal(step, 41);
  assert_true(seed == UINT64_MAX);
  job_read_state(&other, &actual);
  assert_recordings_equal(&expected, &actual, "loaded State");
  recording_clear(&expected);
  recording_clear(&actual);
  job_close(&job);
  job_close(&other);
}

/* The state of one optimizer is not taken for that of another. */
static void another_optimizers_state_is_refused(void **state) {
  (void)state;
  Job sgd, adamw;
  open_with(&sgd, false, "baseline");
  open_with(&adamw, true, "baseline");
  int64_t step;
  uint64_t seed;
  for (int i = 0; i < 2; i++) {
    require_ok(vl_state_save(i == 0 ? sgd.state : adamw.state, path, 0, SEED));
    Status status = vl_state_load(i == 0 ? adamw.state : sgd.state, path, &step, &seed);
    assert_int_equal(status.code, VL_INVALID);
    assert_non_null(strstr(status.message, i == 0 ? "weight.exp_avg'" : "weight.momentum'"));
  }
  job_close(&sgd);
  job_close(&adamw);
}

/* ---- Evaluation ----------------------------------------------------------------------------------------------------- */

typedef struct Evaluation {
  Executable *executable;
  Inputs *inputs;
  Run run;
} Evaluation;

static void evaluation_open(Job *job, const char *recipe_text, Evaluation *evaluation) {
  Program program;
  Recipe recipe;
  Target target = {.ranks = 1};
  network_bottlenecks(&(NetOptions){.batch = 4, .size = 16, .evaluation = true}, &program);
  require_ok(vl_recipe_parse(recipe_text, &recipe));
  require_ok(vl_recipe_apply(&recipe, &program, &target));
  require_ok(vl_executable_create(&program, job->device, job->state, &evaluation->executable));
  require_ok(vl_executable_build(evaluation->executable));
  require_ok(vl_inputs_create(evaluation->executable, job->device, job->heap, &evaluation->inputs));
  require_ok(vl_inputs_synthesize(evaluation->inputs, 1, 0, 0));
  evaluation->run = job->run;
  evaluation->run.executable = evaluation->executable;
}

static void evaluation_close(Evaluation *evaluation) {
  vl_inputs_destroy(&evaluation->inputs);
  vl_executable_destroy(&evaluation->executable);
}

/* Evaluation reads the trained weights where they are, changes nothing of State, and says the same under a
 * recipe that promises bitwise results. */
static void evaluation_shares_the_weights(void **state) {
  (void)state;
  Job job;
  Evaluation plain, in_place;
  Recording before = {0}, after = {0};
  float first[40], again[40], trained[40];
  StepResult result;
  open_net(&job, "baseline");
  job_step(&job, 0);
  job_read_state(&job, &before);
  int64_t parameters = vl_graph_parameter_count(vl_executable_program(job.executable)->graph);
  evaluation_open(&job, "baseline", &plain);
  evaluation_open(&job, "inplace=all checkpoint=1 recompute=norm update=in-backward", &in_place);
  assert_int_equal(vl_graph_parameter_count(vl_executable_program(plain.executable)->graph), parameters);
  require_ok(vl_run_step(&plain.run, plain.inputs, &result, first));
  assert_true(isnan(result.loss));
  require_ok(vl_run_step(&in_place.run, in_place.inputs, &result, again));
  assert_memory_equal(first, again, sizeof first);
  for (int32_t i = 0; i < 40; i++)
    assert_true(isfinite(first[i]));
  job_read_state(&job, &after);
  assert_recordings_equal(&before, &after, "State after evaluation");
  job_step(&job, 1);
  require_ok(vl_run_step(&plain.run, plain.inputs, &result, trained));
  assert_memory_not_equal(first, trained, sizeof first);
  recording_clear(&before);
  recording_clear(&after);
  evaluation_close(&plain);
  evaluation_close(&in_place);
  job_close(&job);
}

/* A training step frees its logits with their last reader; asking for them is refused, not answered with what
 * lies there now. */
static void training_has_no_logits_to_give(void **state) {
  (void)state;
  Job job;
  float logits[40];
  StepResult result;
  open_net(&job, "baseline");
  require_ok(vl_inputs_synthesize(job.inputs, 1, 0, 0));
  Status status = vl_run_step(&job.run, job.inputs, &result, logits);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "logits"));
  job_close(&job);
}

static void state_of_another_shape_is_refused(void **state) {
  (void)state;
  Job job;
  Program program;
  Executable *executable = NULL;
  Recipe recipe;
  Target target = {.ranks = 1};
  open_net(&job, "baseline");
  network_bottlenecks(&(NetOptions){.batch = 4, .size = 16}, &program);
  for (int32_t i = 0; i < program.graph->storage_count; i++) {
    Storage *storage = program.graph->storages[i];
    if (strcmp(storage->name, "fc.bias") == 0)
      storage->name = "stem.bn.weight";
    else if (strcmp(storage->name, "stem.bn.weight") == 0)
      storage->name = "fc.bias";
  }
  require_ok(vl_recipe_parse("baseline", &recipe));
  require_ok(vl_recipe_apply(&recipe, &program, &target));
  require_ok(vl_executable_create(&program, job.device, NULL, &executable));
  Status status = vl_state_prepare(job.state, executable, SEED, true);
  assert_int_equal(status.code, VL_INVALID);
  assert_non_null(strstr(status.message, "elements in State"));
  vl_executable_destroy(&executable);
  float value[16];
  assert_int_equal(vl_state_read(job.state, "nobody", value, sizeof value).code, VL_INVALID);
  assert_int_equal(vl_state_read(job.state, "fc.bias", value, 4).code, VL_INVALID);
  assert_int_equal(vl_state_write(job.state, "fc.bias", value, sizeof value).code, VL_INVALID);
  job_close(&job);
}

/* ---- Bad files ------------------------------------------------------------------------------------------------------- */

typedef struct File {
  unsigned char *bytes;
  size_t size;
} File;

static void write_file(const unsigned char *bytes, size_t size) {
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  assert_int_equal(fwrite(bytes, 1, size, file), size);
  assert_int_equal(fclose(file), 0);
}

static File saved_file(Job *job) {
  require_ok(vl_state_save(job->state, path, 2, SEED));
  FILE *file = fopen(path, "rb");
  assert_non_null(file);
  fseek(file, 0, SEEK_END);
  File saved = {.size = (size_t)ftell(file)};
  rewind(file);
  saved.bytes = vl_allocate(saved.size);
  assert_int_equal(fread(saved.bytes, 1, saved.size, file), saved.size);
  fclose(file);
  return saved;
}

/* Loading what lies at the path fails with VL_INVALID, says so with `place`, and leaves State as it was. */
static void assert_refused(Job *job, const Recording *before, const char *place) {
  int64_t step = -1;
  uint64_t seed = 0;
  Status status = vl_state_load(job->state, path, &step, &seed);
  if (status.code != VL_INVALID || !strstr(status.message, place)) {
    fail_msg("expected a refusal that names '%s', got %s: %s", place, vl_status_name(status.code),
             status.message);
  }
  Recording after = {0};
  job_read_state(job, &after);
  assert_recordings_equal(before, &after, place);
  recording_clear(&after);
}

/* A header as text with its length in front, and `data` zeros behind. */
static void write_header(const char *header, size_t data) {
  uint64_t length = strlen(header);
  unsigned char *bytes = vl_allocate(8 + (size_t)length + data);
  memcpy(bytes, &length, 8);
  memcpy(bytes + 8, header, (size_t)length);
  write_file(bytes, 8 + (size_t)length + data);
  free(bytes);
}

static void truncated_files_are_refused(void **state) {
  (void)state;
  Job job;
  Recording before = {0};
  open_net(&job, "baseline");
  job_step(&job, 0);
  job_read_state(&job, &before);
  File saved = saved_file(&job);
  for (size_t part = 0; part < 40; part++) {
    write_file(saved.bytes, saved.size * part / 40);
    assert_refused(&job, &before, path);
  }
  write_file(saved.bytes, saved.size - 1);
  assert_refused(&job, &before, "truncated");
  free(saved.bytes);
  recording_clear(&before);
  job_close(&job);
}

static void foreign_files_are_refused(void **state) {
  (void)state;
  Job job;
  Recording before = {0};
  open_net(&job, "baseline");
  job_read_state(&job, &before);
  unlink(path);
  assert_refused(&job, &before, "cannot open");
  write_file((const unsigned char *)"\x89PNG\r\n\x1a\n and more", 17);
  assert_refused(&job, &before, "not a safetensors file");
  write_header("[1, 2, 3]", 0);
  assert_refused(&job, &before, "malformed");
  write_header("{\"a\": ", 0);
  assert_refused(&job, &before, "malformed");
  /* Another program's safetensors file, and one of ours for another model. */
  write_header("{\"fc.bias\":{\"dtype\":\"F32\",\"shape\":[10],\"data_offsets\":[0,40]}}", 40);
  assert_refused(&job, &before, "not saved by vramlab");
  write_header("{\"__metadata__\":{\"format\":\"vramlab-state\",\"step\":\"1\",\"seed\":\"3\"},"
               "\"fc.bias\":{\"dtype\":\"F32\",\"shape\":[10],\"data_offsets\":[0,40]}}",
               40);
  assert_refused(&job, &before, "which this run needs");
  recording_clear(&before);
  job_close(&job);
}

/* Replaces the first `from` in the saved header by `to` of the same length. */
static void swap_text(const File *saved, const char *from, const char *to) {
  size_t length = strlen(from);
  assert_int_equal(length, strlen(to));
  unsigned char *bytes = vl_allocate(saved->size);
  memcpy(bytes, saved->bytes, saved->size);
  unsigned char *at = memmem(bytes, saved->size, from, length);
  assert_non_null(at);
  memcpy(at, to, length);
  write_file(bytes, saved->size);
  free(bytes);
}

static void wrong_entries_are_refused(void **state) {
  (void)state;
  Job job;
  Recording before = {0};
  open_net(&job, "baseline");
  job_read_state(&job, &before);
  File saved = saved_file(&job);
  swap_text(&saved, "\"fc.bias\"", "\"fc.bios\"");
  assert_refused(&job, &before, "fc.bias");
  swap_text(&saved, "\"dtype\":\"F32\"", "\"dtype\":\"I32\"");
  assert_refused(&job, &before, "is not (");
  swap_text(&saved, "\"shape\":[16,3,3,3]", "\"shape\":[16,3,9,1]");
  assert_refused(&job, &before, "stem.conv.weight");
  swap_text(&saved, "\"data_offsets\":[0,", "\"data_offsets\":[4,");
  assert_refused(&job, &before, "offsets");
  swap_text(&saved, "\"step\":\"2\"", "\"step\":\"x\"");
  assert_refused(&job, &before, "step of the saved state");
  swap_text(&saved, "\"seed\":\"3\"", "\"seed\":\"z\"");
  assert_refused(&job, &before, "seed 'z'");
  free(saved.bytes);
  recording_clear(&before);
  job_close(&job);
}

/* Offsets at the ends of 64 bits do not wrap into something acceptable. */
static void offsets_that_overflow_are_refused(void **state) {
  (void)state;
  Job job;
  Recording before = {0};
  open_net(&job, "baseline");
  job_read_state(&job, &before);
  static const char *const offsets[] = {"0,-9223372036854775808", "1,-9223372036854775808",
                                        "9223372036854775807,-9223372036854775808",
                                        "9223372036854770000,9223372036854771728", "-40,1688"};
  for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
    char header[512];
    snprintf(header, sizeof header,
             "{\"__metadata__\":{\"format\":\"vramlab-state\",\"step\":\"1\",\"seed\":\"3\"},"
             "\"stem.conv.weight\":{\"dtype\":\"F32\",\"shape\":[16,3,3,3],\"data_offsets\":[%s]}}",
             offsets[i]);
    write_header(header, 2000);
    assert_refused(&job, &before, "stem.conv.weight");
  }
  recording_clear(&before);
  job_close(&job);
}

/* Any byte of the header changed: loaded or refused, never something in between. */
static void damaged_headers_never_half_load(void **state) {
  (void)state;
  Job job;
  Recording before = {0};
  open_net(&job, "baseline");
  job_step(&job, 0);
  job_read_state(&job, &before);
  File saved = saved_file(&job);
  uint64_t length;
  memcpy(&length, saved.bytes, 8);
  job_step(&job, 1);
  Recording moved = {0};
  job_read_state(&job, &moved);
  uint64_t key = vl_random_key(1, 0, "damage");
  int32_t refused = 0;
  for (uint64_t round = 0; round < 300; round++) {
    uint32_t word = vl_random_word(key, 0, round);
    size_t at = 8 + word % length;
    unsigned char original = saved.bytes[at];
    saved.bytes[at] ^= (unsigned char)(1U << (word >> 29));
    write_file(saved.bytes, saved.size);
    saved.bytes[at] = original;
    int64_t step;
    uint64_t seed;
    Status status = vl_state_load(job.state, path, &step, &seed);
    assert_true(status.code == VL_OK || status.code == VL_INVALID);
    if (status.code == VL_OK) {
      for (int32_t i = 0; i < moved.count; i++) {
        require_ok(vl_state_write(job.state, moved.items[i].name, moved.items[i].data, moved.items[i].bytes));
      }
      continue;
    }
    refused++;
    Recording after = {0};
    job_read_state(&job, &after);
    assert_recordings_equal(&moved, &after, status.message);
    recording_clear(&after);
  }
  assert_true(refused > 150);
  free(saved.bytes);
  recording_clear(&before);
  recording_clear(&moved);
  job_close(&job);
}

/* A save that cannot finish leaves no file and the old one whole. */
static void saving_where_nothing_can_be_written_fails(void **state) {
  (void)state;
  Job job;
  open_net(&job, "baseline");
  Status status = vl_state_save(job.state, "/nonexistent/state", 0, SEED);
  assert_int_equal(status.code, VL_ENVIRONMENT);
  assert_non_null(strstr(status.message, "/nonexistent/state"));
  job_close(&job);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(two_steps_and_two_more_are_four),
      cmocka_unit_test(what_is_saved_comes_back),
      cmocka_unit_test(another_optimizers_state_is_refused),
      cmocka_unit_test(evaluation_shares_the_weights),
      cmocka_unit_test(training_has_no_logits_to_give),
      cmocka_unit_test(state_of_another_shape_is_refused),
      cmocka_unit_test(truncated_files_are_refused),
      cmocka_unit_test(foreign_files_are_refused),
      cmocka_unit_test(wrong_entries_are_refused),
      cmocka_unit_test(offsets_that_overflow_are_refused),
      cmocka_unit_test(damaged_headers_never_half_load),
      cmocka_unit_test(saving_where_nothing_can_be_written_fails),
  };
  if (argc > 1) device_name = argv[1];
  if (!mkdtemp(directory)) return 1;
  snprintf(path, sizeof path, "%s/state", directory);
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  unlink(path);
  rmdir(directory);
  return failed;
}
