/* Text as BERT's inputs: rows as they are laid out, choices as often as they should be, the same whatever the
 * micro-batch; files that are not what they should be are refused with the place.
 *
 * Tokens of the files written here are numbered in order, so that a token tells where it stands. */
#include "engine/internal.h"
#include "tests/graph/networks.h"
#include <hdf5.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PAD = 0, UNKNOWN, CLS, SEP, MASK, FIRST, VOCABULARY = 2000, MAX_SENTENCES = 400 };
enum { SEQUENCE = 32, PREDICTIONS = SEQUENCE * 15 / 100 + 1, SEED = 11 };
static char directory[] = "/tmp/vramlab-text-XXXXXX";
static char path[64];

/* ---- Files ------------------------------------------------------------------------------------------------------ */

typedef struct Numbers {
  int64_t at[VOCABULARY];
  int64_t count;
  hid_t type;
} Numbers;

/* What a file holds; a set of count 0 is left out, as is an attribute below -1. */
typedef struct Layout {
  Numbers sets[2][3]; /* tokens, sentences, documents; held out: [1] */
  int64_t attributes[5];
  const char *digest;   /* vocabulary_sha256; NULL: left out */
  bool digest_is_fixed; /* of as many bytes as it has, not of any length */
} Layout;
static const char *const set_names[2][3] = {{"tokens", "sentences", "documents"},
                                            {"held_out_tokens", "held_out_sentences", "held_out_documents"}};
static const char *const attribute_names[5] = {"vocabulary_size", "pad_id", "cls_id", "sep_id", "mask_id"};

/* Sentences of 1 to longest tokens, in turns, documents of 1 to 7 sentences; token number i is FIRST + i. */
static void divide(Numbers *sets, int64_t documents, int64_t longest) {
  int64_t tokens = 0, sentences = 0;
  sets[1].at[sets[1].count++] = sets[2].at[sets[2].count++] = 0;
  for (int64_t d = 0; d < documents; d++) {
    for (int64_t s = 0; s < 1 + (d * 3) % 7; s++) {
      tokens += 1 + (sentences++ * 5) % longest;
      sets[1].at[sets[1].count++] = tokens;
    }
    sets[2].at[sets[2].count++] = sentences;
  }
  assert_true(tokens <= VOCABULARY - FIRST);
  for (int64_t i = 0; i < tokens; i++)
    sets[0].at[i] = FIRST + i;
  sets[0].count = tokens;
}

static Layout *usual(int64_t longest) {
  Layout *layout = vl_allocate(sizeof *layout);
  *layout = (Layout){.attributes = {VOCABULARY, PAD, CLS, SEP, MASK}};
  divide(layout->sets[0], 20, longest);
  divide(layout->sets[1], 6, longest);
  return layout;
}

static void write_numbers(hid_t file, const char *name, const Numbers *numbers) {
  if (numbers->count == 0) return;
  hsize_t count = (hsize_t)numbers->count;
  hid_t space = H5Screate_simple(1, &count, NULL);
  hid_t set = H5Dcreate2(file, name, numbers->type ? numbers->type : H5T_STD_I32LE, space, H5P_DEFAULT,
                         H5P_DEFAULT, H5P_DEFAULT);
  assert_true(set >= 0 && H5Dwrite(set, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers->at) >= 0);
  H5Dclose(set);
  H5Sclose(space);
}

static void write_digest(hid_t file, hid_t space, const Layout *layout) {
  hid_t type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, layout->digest_is_fixed ? strlen(layout->digest) : H5T_VARIABLE);
  hid_t attribute = H5Acreate2(file, "vocabulary_sha256", type, space, H5P_DEFAULT, H5P_DEFAULT);
  const void *value = layout->digest_is_fixed ? (const void *)layout->digest : (const void *)&layout->digest;
  assert_true(H5Awrite(attribute, type, value) >= 0);
  H5Aclose(attribute);
  H5Tclose(type);
}

static void write_file(const Layout *layout) {
  hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), space = H5Screate(H5S_SCALAR);
  assert_true(file >= 0);
  for (int32_t i = 0; i < 5; i++) {
    if (layout->attributes[i] < -1) continue;
    hid_t attribute = H5Acreate2(file, attribute_names[i], H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(H5Awrite(attribute, H5T_NATIVE_INT64, &layout->attributes[i]) >= 0);
    H5Aclose(attribute);
  }
  if (layout->digest) write_digest(file, space, layout);
  for (int32_t part = 0; part < 2; part++)
    for (int32_t i = 0; i < 3; i++)
      write_numbers(file, set_names[part][i], &layout->sets[part][i]);
  H5Sclose(space);
  H5Fclose(file);
}

static Status open_text(int64_t sequence, TextSet **text) {
  return engine_text_open(path, (TextShape){VOCABULARY, sequence, sequence * 15 / 100 + 1}, text);
}

/* A file and its open reader. */
typedef struct Text {
  Layout *layout;
  TextSet *set;
  int64_t sequence, predictions;
} Text;

static Text text_of(int64_t longest, int64_t sequence) {
  Text text = {.layout = usual(longest), .sequence = sequence, .predictions = sequence * 15 / 100 + 1};
  write_file(text.layout);
  require_ok(open_text(sequence, &text.set));
  return text;
}

static void close_text(Text *text) {
  engine_text_close(&text->set);
  assert_null(text->set);
  free(text->layout);
}

/* ---- Rows ---------------------------------------------------------------------------------------------------------- */

static TextBatch batch_of(const Text *text, int64_t count) {
  size_t tokens = (size_t)(count * text->sequence), labels = (size_t)(count * text->predictions);
  return (TextBatch){.count = count,
                     .tokens = vl_allocate(tokens * sizeof(int32_t)),
                     .segments = vl_allocate(tokens * sizeof(int32_t)),
                     .mask = vl_allocate(tokens * sizeof(float)),
                     .positions = vl_allocate(labels * sizeof(int32_t)),
                     .labels = vl_allocate(labels * sizeof(int32_t)),
                     .follows = vl_allocate((size_t)count * sizeof(int32_t))};
}

static void free_batch(TextBatch *batch) {
  free(batch->tokens);
  free(batch->segments);
  free(batch->mask);
  free(batch->positions);
  free(batch->labels);
  free(batch->follows);
}

/* Row `n`, with what the labels say put back. */
typedef struct Row {
  int64_t a, b;               /* where the sentences begin, in tokens */
  int64_t a_length, b_length; /* in tokens */
  int64_t predictions;
} Row;

static int64_t document_of(const Numbers *sets, int64_t token) {
  for (int64_t d = 0;; d++)
    if (token < sets[1].at[sets[2].at[d + 1]]) return d;
}

static bool begins_sentence(const Numbers *sets, int64_t token) {
  for (int64_t s = 0; s < sets[1].count; s++)
    if (sets[1].at[s] == token) return true;
  return false;
}

static void put_back(const Text *text, const TextBatch *batch, int64_t n, int32_t *tokens, Row *row) {
  const int32_t *positions = batch->positions + n * text->predictions;
  memcpy(tokens, batch->tokens + n * text->sequence, (size_t)text->sequence * sizeof *tokens);
  for (int64_t p = 0; p < text->predictions; p++) {
    int32_t label = batch->labels[n * text->predictions + p];
    if (label == VL_IGNORED_LABEL) continue;
    assert_int_equal(p, row->predictions); /* those that count come first */
    assert_in_range(positions[p], 1, text->sequence - 2);
    assert_true(p == 0 || positions[p] > positions[p - 1]);
    assert_in_range(label, FIRST, VOCABULARY - 1);
    tokens[positions[p]] = label;
    row->predictions++;
  }
}

static int64_t run_length(const int32_t *tokens) {
  int64_t length = 1;
  while (tokens[length] == tokens[length - 1] + 1)
    length++;
  return length;
}

/* Everything that must hold of a row. */
static Row check_row(const Text *text, const Numbers *sets, const TextBatch *batch, int64_t n) {
  Row row = {0};
  int32_t *tokens = vl_allocate((size_t)text->sequence * sizeof *tokens);
  put_back(text, batch, n, tokens, &row);
  row.a_length = run_length(tokens + 1);
  row.b_length = run_length(tokens + row.a_length + 2);
  row.a = tokens[1] - FIRST;
  row.b = tokens[row.a_length + 2] - FIRST;
  int64_t used = row.a_length + row.b_length + 3, hidden = (15 * (used - 3) + 50) / 100;
  assert_true(used <= text->sequence);
  assert_int_equal(tokens[0], CLS);
  assert_int_equal(tokens[row.a_length + 1], SEP);
  assert_int_equal(tokens[used - 1], SEP);
  for (int64_t i = 0; i < text->sequence; i++) {
    if (i >= used) assert_int_equal(tokens[i], PAD);
    assert_int_equal(batch->segments[n * text->sequence + i], i > row.a_length + 1 && i < used);
    assert_true(batch->mask[n * text->sequence + i] == (i < used ? 0.0F : -INFINITY));
  }
  hidden = hidden < 1 ? 1 : hidden < text->predictions ? hidden : text->predictions;
  assert_int_equal(row.predictions, hidden);
  int64_t a_document = document_of(sets, row.a), b_document = document_of(sets, row.b);
  assert_int_equal(document_of(sets, row.a + row.a_length - 1), a_document);
  assert_int_equal(document_of(sets, row.b + row.b_length - 1), b_document);
  assert_true(begins_sentence(sets, row.b));
  if (batch->follows[n]) assert_int_equal(row.b, row.a + row.a_length);
  assert_int_equal(a_document == b_document, batch->follows[n]);
  free(tokens);
  return row;
}

static void rows_are_two_sentences_and_padding(void **state) {
  (void)state;
  static const struct { int64_t longest, sequence; } cases[] = {{9, 32}, {9, 128}, {20, 8}, {20, 9}, {1, 16}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    Text text = text_of(cases[c].longest, cases[c].sequence);
    TextBatch batch = batch_of(&text, 8);
    int64_t full = 0;
    for (uint64_t step = 0; step < 50; step++) {
      require_ok(engine_text_batch(text.set, (StepPlace){SEED, step, 8, (int64_t)step * 8}, 0, &batch));
      for (int64_t n = 0; n < 8; n++) {
        Row row = check_row(&text, text.layout->sets[0], &batch, n);
        full += row.a_length + row.b_length + 3 == text.sequence;
      }
    }
    assert_true(cases[c].longest != 20 || full > 200); /* most do not fit in whole */
    free_batch(&batch);
    close_text(&text);
  }
}

/* Held-out samples come from the held-out part, are the same for every run, and wrap at the end. */
static void held_out_rows_are_always_the_same(void **state) {
  (void)state;
  Text text = text_of(9, SEQUENCE);
  int64_t count = engine_text_count(text.set, true);
  TextBatch once = batch_of(&text, count), again = batch_of(&text, 2);
  require_ok(engine_text_held_out(text.set, 0, &once));
  for (int64_t n = 0; n < count; n++)
    (void)check_row(&text, text.layout->sets[1], &once, n);
  require_ok(engine_text_batch(text.set, (StepPlace){SEED, 3, 2, 6}, 0, &again)); /* changes nothing */
  require_ok(engine_text_held_out(text.set, count - 1, &again));
  size_t row = SEQUENCE * sizeof(int32_t);
  assert_memory_equal(again.tokens, once.tokens + (count - 1) * SEQUENCE, row);
  assert_memory_equal(again.tokens + SEQUENCE, once.tokens, row);
  free_batch(&once);
  free_batch(&again);
  close_text(&text);
}

/* A document gives its sentences in samples of whole ones: as many as fit, no fewer than two. */
static void every_epoch_draws_each_sample_once(void **state) {
  (void)state;
  Text text = text_of(9, 128); /* nothing is cut: A begins where the sample does */
  int64_t count = engine_text_count(text.set, false);
  TextBatch batch = batch_of(&text, count);
  int64_t seen[VOCABULARY] = {0}, first[MAX_SENTENCES], order[MAX_SENTENCES]; /* epochs seen in */
  assert_true(count > 10 && count < MAX_SENTENCES);
  for (int64_t epoch = 0; epoch < 3; epoch++) {
    require_ok(
        engine_text_batch(text.set, (StepPlace){SEED, (uint64_t)epoch, count, epoch * count}, 0, &batch));
    for (int64_t n = 0; n < count; n++) {
      order[n] = check_row(&text, text.layout->sets[0], &batch, n).a;
      assert_int_equal(seen[order[n]]++, epoch);
    }
    if (epoch > 0) assert_memory_not_equal(order, first, (size_t)count * sizeof *order);
    if (epoch == 0) memcpy(first, order, sizeof first);
  }
  free_batch(&batch);
  close_text(&text);
}

/* ---- Shares ---------------------------------------------------------------------------------------------------------- */

typedef struct Tally {
  int64_t rows, follows, labels, masked, kept, replaced;
  double place;       /* sum over labels: how far into the text, 0 to 1 */
  double replacement; /* sum over replaced: token over vocabulary, 0 to 1 */
} Tally;

static void tally_row(const Text *text, const TextBatch *batch, int64_t n, Tally *tally) {
  Row row = check_row(text, text->layout->sets[0], batch, n);
  int64_t words = row.a_length + row.b_length;
  tally->rows++;
  tally->follows += batch->follows[n];
  for (int64_t p = 0; p < row.predictions; p++) {
    int32_t position = batch->positions[n * text->predictions + p];
    int32_t now = batch->tokens[n * text->sequence + position];
    int64_t word = position - (position > row.a_length + 1 ? 2 : 1);
    tally->labels++;
    tally->place += ((double)word + 0.5) / (double)words;
    if (now == MASK) {
      tally->masked++;
    } else if (now == batch->labels[n * text->predictions + p]) {
      tally->kept++;
    } else {
      tally->replaced++;
      tally->replacement += ((double)now + 0.5) / VOCABULARY;
    }
  }
}

/* Within five standard deviations of a binomial: a right one is outside once in 1.7 million draws, and the
 * draw here is always the same. */
static void assert_share(const char *what, int64_t count, int64_t of, double expected) {
  double deviation = sqrt((double)of * expected * (1.0 - expected));
  double off = fabs((double)count - (double)of * expected);
  print_message("%s: %.4f, expected %.4f, %.1f deviations\n", what, (double)count / (double)of, expected,
                off / deviation);
  if (off > 5.0 * deviation) fail_msg("%s: %lld of %lld", what, (long long)count, (long long)of);
}

/* The mean of values in [0, 1] whose standard deviation is at most that of the uniform ones. */
static void assert_mean(const char *what, double sum, int64_t of) {
  double off = fabs(sum / (double)of - 0.5), deviation = sqrt(1.0 / (12.0 * (double)of));
  if (off > 5.0 * deviation) fail_msg("%s: %.4f on average of %lld", what, sum / (double)of, (long long)of);
}

static void choices_are_as_frequent_as_they_should_be(void **state) {
  (void)state;
  Text text = text_of(9, 128);
  TextBatch batch = batch_of(&text, 16);
  Tally tally = {0};
  for (uint64_t step = 0; step < 1000; step++) {
    require_ok(engine_text_batch(text.set, (StepPlace){SEED, step, 16, (int64_t)step * 16}, 0, &batch));
    for (int64_t n = 0; n < 16; n++)
      tally_row(&text, &batch, n, &tally);
  }
  double same = 0.1 / VOCABULARY, mask = 0.1 / VOCABULARY; /* of the tokens drawn at random */
  assert_share("B follows A", tally.follows, tally.rows, 0.5);
  assert_share("[MASK]", tally.masked, tally.labels, 0.8 + mask);
  assert_share("kept", tally.kept, tally.labels, 0.1 + same);
  assert_share("another token", tally.replaced, tally.labels, 0.1 - same - mask);
  assert_mean("place of a label", tally.place, tally.labels);
  assert_mean("replacement", tally.replacement, tally.replaced);
  free_batch(&batch);
  close_text(&text);
}

/* ---- Micro-batches ----------------------------------------------------------------------------------------------------- */

static void assert_same_rows(const Text *text, const TextBatch *whole, int64_t first, const TextBatch *part) {
  size_t tokens = (size_t)(part->count * text->sequence) * 4,
         labels = (size_t)(part->count * text->predictions) * 4;
  assert_memory_equal(whole->tokens + first * text->sequence, part->tokens, tokens);
  assert_memory_equal(whole->segments + first * text->sequence, part->segments, tokens);
  assert_memory_equal(whole->mask + first * text->sequence, part->mask, tokens);
  assert_memory_equal(whole->positions + first * text->predictions, part->positions, labels);
  assert_memory_equal(whole->labels + first * text->predictions, part->labels, labels);
  assert_memory_equal(whole->follows + first, part->follows, (size_t)part->count * 4);
}

static void a_step_is_the_same_in_any_micro_batches(void **state) {
  (void)state;
  enum { BATCH = 12 };
  Text text = text_of(9, SEQUENCE);
  TextBatch whole = batch_of(&text, BATCH);
  for (uint64_t step = 30; step > 0; step -= 3) { /* in any order: nothing is remembered */
    StepPlace at = {SEED, step, BATCH, (int64_t)step * BATCH};
    int64_t counted = 0;
    require_ok(engine_text_batch(text.set, at, 0, &whole));
    for (int64_t i = 0; i < BATCH * PREDICTIONS; i++)
      counted += whole.labels[i] != VL_IGNORED_LABEL;
    assert_int_equal(engine_text_counted(text.set, at), counted);
    for (int64_t micro_batch = 1; micro_batch < BATCH; micro_batch++) {
      if (BATCH % micro_batch != 0) continue;
      TextBatch part = batch_of(&text, micro_batch);
      for (int64_t first = 0; first < BATCH; first += micro_batch) {
        require_ok(engine_text_batch(text.set, at, first, &part));
        assert_same_rows(&text, &whole, first, &part);
      }
      free_batch(&part);
    }
  }
  free_batch(&whole);
  close_text(&text);
}

static void seed_and_step_change_what_is_drawn(void **state) {
  (void)state;
  Text text = text_of(9, SEQUENCE);
  int64_t epoch = engine_text_count(text.set, false);
  TextBatch a = batch_of(&text, epoch), b = batch_of(&text, epoch);
  size_t bytes = (size_t)(epoch * SEQUENCE) * 4;
  require_ok(engine_text_batch(text.set, (StepPlace){SEED, 0, epoch, 0}, 0, &a));
  require_ok(engine_text_batch(text.set, (StepPlace){SEED + 1, 0, epoch, 0}, 0, &b));
  assert_memory_not_equal(a.tokens, b.tokens, bytes);
  require_ok(engine_text_batch(text.set, (StepPlace){SEED, 1, epoch, epoch}, 0, &b));
  assert_memory_not_equal(a.tokens, b.tokens, bytes);
  require_ok(engine_text_batch(text.set, (StepPlace){SEED, 0, epoch, 0}, 0, &b));
  assert_memory_equal(a.tokens, b.tokens, bytes);
  free_batch(&a);
  free_batch(&b);
  close_text(&text);
}

/* ---- Bad files ----------------------------------------------------------------------------------------------------------- */

static void assert_refused(const char *place) {
  TextSet *text = NULL;
  Status status = open_text(SEQUENCE, &text);
  if (status.code != VL_INVALID || !strstr(status.message, place) || !strstr(status.message, path)) {
    fail_msg("expected a refusal that names '%s', got %s: %s", place, vl_status_name(status.code),
             status.message);
  }
  assert_null(text);
}

static void assert_layout_refused(Layout *layout, const char *place) {
  write_file(layout);
  assert_refused(place);
  free(layout);
}

static void what_is_not_hdf5_is_refused(void **state) {
  (void)state;
  unlink(path);
  assert_refused("missing, truncated or not an HDF5 file");
  FILE *file = fopen(path, "wb");
  assert_non_null(file);
  fputs("It was a bright cold day in April.\n", file);
  fclose(file);
  assert_refused("missing, truncated or not an HDF5 file");
  Layout *layout = usual(9);
  write_file(layout);
  free(layout);
  assert_int_equal(truncate(path, 3000), 0);
  assert_refused("truncated");
}

static void what_is_missing_is_named(void **state) {
  (void)state;
  for (int32_t part = 0; part < 2; part++) {
    for (int32_t i = 0; i < 3; i++) {
      char place[64];
      Layout *layout = usual(9);
      layout->sets[part][i].count = 0;
      snprintf(place, sizeof place, "lacks the dataset '%s'", set_names[part][i]);
      assert_layout_refused(layout, place);
    }
  }
  for (int32_t i = 0; i < 5; i++) {
    char place[64];
    Layout *layout = usual(9);
    layout->attributes[i] = -2;
    snprintf(place, sizeof place, "lacks the attribute '%s'", attribute_names[i]);
    assert_layout_refused(layout, place);
  }
}

static void another_vocabulary_is_refused(void **state) {
  (void)state;
  Layout *layout = usual(9);
  layout->attributes[0] = 30522;
  assert_layout_refused(layout, "vocabulary of 30522 tokens, the case has 2000 (--set vocabulary=30522)");
  layout = usual(9);
  layout->attributes[4] = VOCABULARY;
  assert_layout_refused(layout, "'mask_id' is 2000, not in [0, 2000)");
  layout = usual(9);
  layout->attributes[2] = -1;
  assert_layout_refused(layout, "'cls_id' is -1");
}

static void tokens_out_of_range_are_refused(void **state) {
  (void)state;
  Layout *layout = usual(9);
  layout->sets[0][0].at[17] = VOCABULARY;
  assert_layout_refused(layout, "token 2000 of 'tokens', at 17, is not in [0, 2000)");
  layout = usual(9);
  layout->sets[1][0].at[3] = -1;
  assert_layout_refused(layout, "token -1 of 'held_out_tokens', at 3,");
  layout = usual(9);
  layout->sets[0][0].at[5] = SEP;
  assert_layout_refused(layout, "token 3 of 'tokens', at 5, is a special one");
}

static void bounds_that_do_not_rise_are_refused(void **state) {
  (void)state;
  Layout *layout = usual(9);
  layout->sets[0][2].at[4] = layout->sets[0][2].at[3];
  assert_layout_refused(layout, "number 3 of 'documents' is empty");
  layout = usual(9);
  layout->sets[1][1].at[6] = layout->sets[1][1].at[7];
  assert_layout_refused(layout, "number 6 of 'held_out_sentences' is empty");
  layout = usual(9);
  layout->sets[0][1].at[4] = layout->sets[0][1].at[2];
  assert_layout_refused(layout, "of 'sentences' is empty");
  layout = usual(9);
  layout->sets[0][0].count--;
  assert_layout_refused(layout, "'sentences' divides");
  layout = usual(9);
  layout->sets[0][1].at[0] = 1;
  assert_layout_refused(layout, "'sentences' divides 1 to");
  layout = usual(9);
  layout->sets[1][2].count = 1;
  assert_layout_refused(layout, "'held_out_documents' holds 1 bounds");
}

static void too_little_text_is_refused(void **state) {
  (void)state;
  Layout *layout = usual(9);
  Numbers *documents = &layout->sets[0][2];
  documents->at[1] = documents->at[documents->count - 1];
  documents->count = 2;
  assert_layout_refused(layout, "'documents' is one");
  layout = usual(9);
  documents = &layout->sets[1][2];
  documents->count = layout->sets[1][1].count;
  for (int64_t d = 0; d < documents->count; d++)
    documents->at[d] = d;
  assert_layout_refused(layout, "none of 'held_out_documents' has two sentences");
}

static void wrong_types_are_refused(void **state) {
  (void)state;
  for (int32_t i = 0; i < 3; i++) {
    Layout *layout = usual(9);
    layout->sets[0][i].type = H5T_IEEE_F32LE;
    assert_layout_refused(layout, "must be a list of whole numbers");
  }
}

/* ---- Cells ------------------------------------------------------------------------------------------------------------------ */

/* BERT in small, dropout on. */
static CellSpec small_spec(void) {
  static const char *const settings[] = {"sequence=32", "layers=1", "hidden=32", "heads=4",
                                         "vocabulary=2000"};
  CellSpec spec;
  vl_cell_spec_init(&spec);
  snprintf(spec.case_name, sizeof spec.case_name, "bert-base");
  for (; spec.setting_count < 5; spec.setting_count++)
    snprintf(spec.settings[spec.setting_count], sizeof spec.settings[0], "%s", settings[spec.setting_count]);
  snprintf(spec.data, sizeof spec.data, "%s", path);
  spec.micro_batch = 4;
  spec.threads = 2;
  spec.steps = 3;
  return spec;
}

static void write_usual(void) {
  Layout *layout = usual(9);
  write_file(layout);
  free(layout);
}

static CellResult run(const CellSpec *spec) {
  CellResult result;
  require_ok(vl_cell_run(spec, NULL, &result));
  assert_string_equal(result.status, "ok");
  return result;
}

static char *read_file(const char *name, size_t *bytes) {
  FILE *file = fopen(name, "rb");
  assert_non_null(file);
  fseek(file, 0, SEEK_END);
  *bytes = (size_t)ftell(file);
  rewind(file);
  char *text = vl_allocate(*bytes);
  assert_int_equal(fread(text, 1, *bytes, file), *bytes);
  fclose(file);
  return text;
}

static void assert_same_files(const char *a, const char *b) {
  size_t a_bytes, b_bytes;
  char *a_text = read_file(a, &a_bytes), *b_text = read_file(b, &b_bytes);
  assert_int_equal(a_bytes, b_bytes);
  assert_memory_equal(a_text, b_text, a_bytes);
  free(a_text);
  free(b_text);
}

/* Four steps, and twice two. */
static void a_resumed_run_keeps_every_bit(void **state) {
  (void)state;
  char whole[80], half[80], resumed[80];
  snprintf(whole, sizeof whole, "%s/whole", directory);
  snprintf(half, sizeof half, "%s/half", directory);
  snprintf(resumed, sizeof resumed, "%s/resumed", directory);
  write_usual();
  CellSpec spec = small_spec();
  snprintf(spec.save_state, sizeof spec.save_state, "%s", whole);
  CellResult all = run(&spec);
  spec.steps = 1;
  snprintf(spec.save_state, sizeof spec.save_state, "%s", half);
  CellResult first = run(&spec);
  snprintf(spec.load_state, sizeof spec.load_state, "%s", half);
  snprintf(spec.save_state, sizeof spec.save_state, "%s", resumed);
  CellResult rest = run(&spec);
  assert_memory_equal(all.losses, first.losses, 2 * sizeof(double));
  assert_memory_equal(all.losses + 2, rest.losses, 2 * sizeof(double));
  assert_true(all.held_out_loss == rest.held_out_loss && all.accuracy == rest.accuracy);
  assert_same_files(whole, resumed);
  vl_cell_result_clear(&all);
  vl_cell_result_clear(&first);
  vl_cell_result_clear(&rest);
  unlink(whole);
  unlink(half);
  unlink(resumed);
}

static void assert_cell_refused(const CellSpec *spec, const char *place) {
  CellResult result;
  Status status = vl_cell_run(spec, NULL, &result);
  if (status.code != VL_INVALID || !strstr(status.message, place))
    fail_msg("expected '%s', got %s: %s", place, vl_status_name(status.code), status.message);
  vl_cell_result_clear(&result);
}

static void write_with_vocabulary(const char *digest, bool is_fixed) {
  Layout *layout = usual(9);
  layout->digest = digest;
  layout->digest_is_fixed = is_fixed;
  write_file(layout);
  free(layout);
}

static const char *const digests[2] = {"a0a1a2a3a4a5a6a7", "b0b1b2b3b4b5b6b7"};

/* A run goes on with text of the same vocabulary, known or not, and stays the vocabulary's when something
 * else comes between; never with another one. */
static void another_vocabulary_is_not_resumed(void **state) {
  (void)state;
  char saved[80];
  snprintf(saved, sizeof saved, "%s/saved", directory);
  CellSpec spec = small_spec();
  snprintf(spec.save_state, sizeof spec.save_state, "%s", saved);
  spec.steps = 1;
  write_with_vocabulary(digests[0], false);
  CellResult first = run(&spec);
  snprintf(spec.load_state, sizeof spec.load_state, "%s", saved);
  for (int32_t i = 0; i < 3; i++) {
    if (i == 1)
      write_usual(); /* knows none */
    else
      write_with_vocabulary(digests[0], true);
    if (i == 2) spec.data[0] = '\0'; /* synthetic */
    CellResult again = run(&spec);
    vl_cell_result_clear(&again);
  }
  spec = small_spec();
  snprintf(spec.load_state, sizeof spec.load_state, "%s", saved);
  for (int32_t is_fixed = 0; is_fixed < 2; is_fixed++) {
    write_with_vocabulary(digests[1], is_fixed);
    assert_cell_refused(&spec, "(sha256 a0a1a2a3a4a5...) than the data's (b0b1b2b3b4b5...)");
  }
  vl_cell_result_clear(&first);
  unlink(saved);
}

/* The first step's loss is the same sum in another order; what is held out is measured where it ends. */
static void micro_batches_give_the_batch(void **state) {
  (void)state;
  write_usual();
  CellSpec spec = small_spec();
  CellResult whole = run(&spec);
  assert_true(fabs(whole.held_out_loss - log(VOCABULARY)) < 1.0); /* hardly trained: any token is as likely */
  assert_true(whole.accuracy >= 0.0 && whole.accuracy < 0.2);
  for (int64_t count = 2; count <= 4; count *= 2) {
    spec.micro_batch = 4 / count;
    snprintf(spec.recipe, sizeof spec.recipe, "accumulate=%lld", (long long)count);
    CellResult parts = run(&spec);
    assert_true(fabs(parts.losses[0] - whole.losses[0]) <= 4 * 0x1p-24 * whole.losses[0]);
    assert_true(fabs(parts.losses[3] - whole.losses[3]) <= 1e-3 * whole.losses[3]);
    vl_cell_result_clear(&parts);
  }
  vl_cell_result_clear(&whole);
}

static void cells_refuse_what_is_not_theirs(void **state) {
  (void)state;
  write_usual();
  CellSpec spec = small_spec();
  snprintf(spec.settings[4], sizeof spec.settings[4], "vocabulary=2001");
  assert_cell_refused(&spec, "--set vocabulary=2000");
  snprintf(spec.settings[4], sizeof spec.settings[4], "vocabulary=2000");
  snprintf(spec.settings[spec.setting_count++], sizeof spec.settings[0], "padding=0");
  assert_cell_refused(&spec, "padding=0 with --data");
  snprintf(spec.settings[spec.setting_count - 1], sizeof spec.settings[0], "padding=1");
  require_ok(vl_cell_check(&spec));
  spec.setting_count = 0;
  snprintf(spec.case_name, sizeof spec.case_name, "resnet50");
  assert_cell_refused(&spec, "lacks the datasets 'images' and 'labels'");
}

static void inference_reads_text_too(void **state) {
  (void)state;
  write_usual();
  CellSpec spec = small_spec();
  spec.inference = true;
  CellResult result = run(&spec);
  assert_true(isfinite(result.held_out_loss));
  vl_cell_result_clear(&result);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_are_two_sentences_and_padding),
      cmocka_unit_test(held_out_rows_are_always_the_same),
      cmocka_unit_test(every_epoch_draws_each_sample_once),
      cmocka_unit_test(choices_are_as_frequent_as_they_should_be),
      cmocka_unit_test(a_step_is_the_same_in_any_micro_batches),
      cmocka_unit_test(seed_and_step_change_what_is_drawn),
      cmocka_unit_test(what_is_not_hdf5_is_refused),
      cmocka_unit_test(what_is_missing_is_named),
      cmocka_unit_test(another_vocabulary_is_refused),
      cmocka_unit_test(tokens_out_of_range_are_refused),
      cmocka_unit_test(bounds_that_do_not_rise_are_refused),
      cmocka_unit_test(too_little_text_is_refused),
      cmocka_unit_test(wrong_types_are_refused),
      cmocka_unit_test(a_resumed_run_keeps_every_bit),
      cmocka_unit_test(another_vocabulary_is_not_resumed),
      cmocka_unit_test(micro_batches_give_the_batch),
      cmocka_unit_test(cells_refuse_what_is_not_theirs),
      cmocka_unit_test(inference_reads_text_too),
  };
  if (!mkdtemp(directory)) return 1;
  snprintf(path, sizeof path, "%s/text.h5", directory);
  int failed = cmocka_run_group_tests(tests, NULL, NULL);
  unlink(path);
  rmdir(directory);
  return failed;
}
