#include "tests/model/golden.h"
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Below this a norm is what rounding leaves of zero: gradients here are of order 0.01 to 100. */
static const double zero_norm = 1e-10;

static double real(const json_t *object, const char *key) {
  return json_number_value(json_object_get(object, key));
}
static int64_t whole(const json_t *object, const char *key) {
  return json_integer_value(json_object_get(object, key));
}

static void read_reals(const json_t *array, double *values, size_t count) {
  for (size_t i = 0; i < count; i++)
    values[i] = json_number_value(json_array_get(array, i));
}

static Status read_tensor(const json_t *object, GoldenTensor *tensor) {
  const char *name = json_string_value(json_object_get(object, "name"));
  const char *kind = json_string_value(json_object_get(object, "kind"));
  if (!name || !kind || json_array_size(json_object_get(object, "values")) != GOLDEN_SAMPLES) {
    return vl_error(VL_INVALID, "tensor %s: a name, a kind and %d values are needed", name ? name : "?",
                    GOLDEN_SAMPLES);
  }
  snprintf(tensor->name, sizeof tensor->name, "%s", name);
  tensor->is_gradient = strcmp(kind, "gradient") == 0;
  tensor->elements = whole(object, "elements");
  tensor->norm = real(object, "norm");
  tensor->pytorch_f32_error = real(object, "pytorch_f32_error");
  tensor->pytorch_bf16_error = real(object, "pytorch_bf16_error");
  read_reals(json_object_get(object, "sums"), tensor->sums, GOLDEN_SIGNS);
  read_reals(json_object_get(object, "values"), tensor->values, GOLDEN_SAMPLES);
  for (size_t i = 0; i < GOLDEN_SAMPLES; i++) {
    tensor->places[i] = json_integer_value(json_array_get(json_object_get(object, "places"), i));
    if (tensor->places[i] < 0 || tensor->places[i] >= tensor->elements) {
      return vl_error(VL_INVALID, "tensor %s: place %lld of %lld elements", name,
                      (long long)tensor->places[i], (long long)tensor->elements);
    }
  }
  return vl_ok();
}

static Status read_golden(const json_t *root, Golden *golden) {
  const json_t *tensors = json_object_get(root, "tensors");
  golden->seed = (uint64_t)whole(root, "seed");
  golden->golden_seed = (uint64_t)whole(root, "golden_seed");
  golden->batch = whole(root, "batch");
  golden->size = whole(root, "size");
  golden->parameters = whole(root, "parameters");
  golden->loss = real(root, "loss");
  golden->pytorch_f32_loss_error = real(root, "pytorch_f32_loss_error");
  golden->pytorch_bf16_loss_error = real(root, "pytorch_bf16_loss_error");
  read_reals(json_object_get(root, "losses"), golden->losses, GOLDEN_STEPS);
  golden->tensor_count = (int32_t)json_array_size(tensors);
  golden->tensors = vl_allocate(((size_t)golden->tensor_count + 1) * sizeof *golden->tensors);
  for (int32_t i = 0; i < golden->tensor_count; i++) {
    VL_TRY(read_tensor(json_array_get(tensors, (size_t)i), &golden->tensors[i]));
  }
  return vl_ok();
}

Status golden_load(const char *path, Golden *golden) {
  json_error_t error;
  *golden = (Golden){0};
  json_t *root = json_load_file(path, 0, &error);
  if (!root) return vl_error(VL_INVALID, "%s:%d: %s", path, error.line, error.text);
  Status status = read_golden(root, golden);
  json_decref(root);
  if (status.code != VL_OK) golden_clear(golden);
  return status;
}

void golden_clear(Golden *golden) {
  free(golden->tensors);
  *golden = (Golden){0};
}

const GoldenTensor *golden_find(const Golden *golden, const char *name) {
  for (int32_t i = 0; i < golden->tensor_count; i++) {
    if (strcmp(golden->tensors[i].name, name) == 0) return &golden->tensors[i];
  }
  return NULL;
}

/* Bit k of an element's word is its sign in sum k. */
static void signed_sums(uint64_t key, const double *values, int64_t count, double *sums) {
  const uint32_t key_words[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
  for (int64_t block = 0; block * 4 < count; block++) {
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)((uint64_t)block >> 32), 0, 0};
    uint32_t words[4];
    vl_philox(counter, key_words, words);
    for (int64_t i = block * 4; i < block * 4 + 4 && i < count; i++) {
      for (int k = 0; k < GOLDEN_SIGNS; k++)
        sums[k] += words[i % 4] >> k & 1U ? values[i] : -values[i];
    }
  }
}

double golden_distance(const Golden *golden, const GoldenTensor *tensor, const double *values) {
  char scope[128];
  snprintf(scope, sizeof scope, "%s:signs", tensor->name);
  double sums[GOLDEN_SIGNS] = {0.0}, squares = 0.0;
  signed_sums(vl_random_key(golden->golden_seed, 0, scope), values, tensor->elements, sums);
  for (int64_t i = 0; i < tensor->elements; i++)
    squares += values[i] * values[i];
  double worst = fabs(sqrt(squares) - tensor->norm);
  for (int k = 0; k < GOLDEN_SIGNS; k++)
    worst = fmax(worst, fabs(sums[k] - tensor->sums[k]));
  for (int i = 0; i < GOLDEN_SAMPLES; i++) {
    worst = fmax(worst, fabs(values[tensor->places[i]] - tensor->values[i]));
  }
  if (isnan(squares)) return (double)INFINITY; /* fmax passes NaN over */
  return tensor->norm > zero_norm ? worst / tensor->norm : worst;
}
