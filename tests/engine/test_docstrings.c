/* A check of the training loop, not a workload: a BERT of two layers reads the docstrings of Python's
 * standard library, and predicts masked tokens of modules it has not seen better than who knows only how
 * frequent each token is, by a nat. Skipped where the text cannot be made.
 *
 * usage: test_engine_docstrings PYTHON */
#include "tests/engine/learn.h"
#include <hdf5.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { VOCABULARY = 1000 };

/* Of the training tokens, in nats; NaN when they cannot be read. */
static double unigram_entropy(const char *path) {
  hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), tokens = H5Dopen2(file, "tokens", H5P_DEFAULT);
  hid_t space = H5Dget_space(tokens);
  int64_t count = H5Sget_simple_extent_npoints(space), counts[VOCABULARY] = {0};
  double entropy = count > 0 ? 0.0 : (double)NAN;
  int32_t *values = vl_allocate((size_t)(count > 0 ? count : 1) * sizeof *values);
  if (H5Dread(tokens, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) < 0) entropy = (double)NAN;
  for (int64_t i = 0; i < count && !isnan(entropy); i++)
    counts[values[i]]++;
  for (int64_t t = 0; t < VOCABULARY; t++) {
    double share = (double)counts[t] / (double)count;
    if (counts[t] > 0) entropy -= share * log(share);
  }
  free(values);
  H5Sclose(space);
  H5Dclose(tokens);
  H5Fclose(file);
  return entropy;
}

static int train(const char *path) {
  static const char *const settings[] = {"layers=2",        "hidden=128",  "heads=4",
                                         "vocabulary=1000", "sequence=32", "dropout=0"};
  CellSpec spec;
  CellResult result;
  vl_cell_spec_init(&spec);
  snprintf(spec.case_name, sizeof spec.case_name, "bert-base");
  for (; spec.setting_count < 6; spec.setting_count++)
    snprintf(spec.settings[spec.setting_count], VL_NAME_BYTES, "%s", settings[spec.setting_count]);
  snprintf(spec.recipe, sizeof spec.recipe, "stack=vramlab");
  snprintf(spec.data, sizeof spec.data, "%s", path);
  spec.micro_batch = 32;
  spec.warmup = 1;
  spec.steps = 1499;
  spec.learning_rate = 1e-3;
  int code = learn_run(&spec, &result);
  if (code == 0) {
    double needed = unigram_entropy(path) - 1.0;
    printf("held-out masked-token loss %.4f (needs %.4f), %.4f of them right\n", result.held_out_loss, needed,
           result.accuracy);
    code = result.held_out_loss <= needed ? 0 : 1;
  }
  vl_cell_result_clear(&result);
  return code;
}

int main(int argc, char **argv) {
  char directory[] = "/tmp/vramlab-docstrings-XXXXXX", text[64], data[64], vocabulary[64];
  if (!mkdtemp(directory)) return 1;
  snprintf(text, sizeof text, "%s/text.txt", directory);
  snprintf(data, sizeof data, "%s/text.h5", directory);
  snprintf(vocabulary, sizeof vocabulary, "%s/text.vocab.txt", directory);
  const char *python = argc > 1 ? argv[1] : "python3";
  bool made =
      learn_script(python, "docstrings.py", (const char *[]){text, NULL}) &&
      learn_script(python, "text.py", (const char *[]){data, text, "--vocabulary-size", "1000", NULL});
  int code = made ? train(data) : LEARN_SKIPPED;
  unlink(text);
  unlink(data);
  unlink(vocabulary);
  rmdir(directory);
  return code;
}
