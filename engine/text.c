/* Tokens from HDF5, as BERT reads them: [CLS] A [SEP] B [SEP] and padding, some tokens masked.
 *
 * A file holds `tokens` (T), `sentences` (N + 1), where each begins in tokens, and `documents` (D + 1), where
 * each begins in sentences, both ending with what they divide; the same three with held_out_ in front; and
 * the attributes vocabulary_size, pad_id, cls_id, sep_id and mask_id, and where it is known
 * vocabulary_sha256, a text that tells vocabularies apart (scripts/data/text.py writes them).
 *
 * A sample is as many whole sentences of a document as fit, at least two. Every time it is drawn it is cut at
 * a sentence into A and B, and half of the time as many sentences from elsewhere take B's place. What is too
 * long loses the beginning of A and the end of B. Every choice is Philox's, keyed by (seed, step), its
 * counter the sample's place in the step: the same for any micro-batch. */
#include "engine/internal.h"
#include <hdf5.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Sample {
  int64_t first, count; /* sentences */
  int64_t document;
} Sample;

typedef struct Split {
  const char *prefix; /* of the datasets' names */
  hid_t tokens;
  int64_t *sentences; /* [sentence_count + 1] */
  int64_t *documents; /* [document_count + 1] */
  int64_t sentence_count, document_count;
  Sample *samples;
  int64_t count;
} Split;

struct TextSet {
  const char *path; /* borrowed, while opening */
  hid_t file;
  TextShape shape;
  char *vocabulary; /* its digest; NULL: not known */
  int64_t pad, cls, sep, mask;
  Split training, held_out;
  EpochOrder order;
};

/* Tokens [begin, begin + length) of a split. */
typedef struct Span {
  int64_t begin, length;
} Span;

typedef struct Pair {
  Span a, b;
  bool follows;
  int64_t predictions;
} Pair;

static void close_split(Split *split) {
  if (split->tokens > 0) H5Dclose(split->tokens);
  free(split->sentences);
  free(split->documents);
  free(split->samples);
}

void engine_text_close(TextSet **text) {
  TextSet *it = *text;
  if (!it) return;
  close_split(&it->training);
  close_split(&it->held_out);
  if (it->file > 0) H5Fclose(it->file);
  engine_order_clear(&it->order);
  free(it->vocabulary);
  free(it);
  *text = NULL;
}

/* ---- Opening ------------------------------------------------------------------------------------------------- */

static Status read_attribute(const TextSet *text, const char *name, int64_t below, int64_t *value) {
  hid_t attribute = H5Aexists(text->file, name) > 0 ? H5Aopen(text->file, name, H5P_DEFAULT) : -1;
  hid_t type = attribute < 0 ? -1 : H5Aget_type(attribute),
        space = attribute < 0 ? -1 : H5Aget_space(attribute);
  bool read = attribute >= 0 && H5Tget_class(type) == H5T_INTEGER &&
              H5Sget_simple_extent_npoints(space) == 1 && H5Aread(attribute, H5T_NATIVE_INT64, value) >= 0;
  if (space >= 0) H5Sclose(space);
  if (type >= 0) H5Tclose(type);
  if (attribute >= 0) H5Aclose(attribute);
  if (!read) return vl_error(VL_INVALID, "%s lacks the attribute '%s', a whole number", text->path, name);
  if (*value >= 0 && *value < below) return vl_ok();
  return vl_error(VL_INVALID, "%s: '%s' is %lld, not in [0, %lld)", text->path, name, (long long)*value,
                  (long long)below);
}

/* A text of any length, or of as many bytes. */
static char *read_text(hid_t attribute, hid_t type) {
  char *text = NULL;
  if (H5Tis_variable_str(type) > 0) {
    char *lent = NULL;
    hid_t space = H5Aget_space(attribute), memory = H5Tcopy(H5T_C_S1);
    H5Tset_size(memory, H5T_VARIABLE);
    H5Tset_cset(memory, H5Tget_cset(type));
    if (H5Sget_simple_extent_npoints(space) == 1 && H5Aread(attribute, memory, &lent) >= 0 && lent) {
      text = vl_allocate(strlen(lent) + 1);
      strcpy(text, lent);
      H5Dvlen_reclaim(memory, space, H5P_DEFAULT, &lent);
    }
    H5Tclose(memory);
    H5Sclose(space);
    return text;
  }
  text = vl_allocate(H5Aget_storage_size(attribute) + 1);
  if (H5Aread(attribute, type, text) >= 0) return text;
  free(text);
  return NULL;
}

static Status read_vocabulary(TextSet *text) {
  if (H5Aexists(text->file, "vocabulary_sha256") <= 0) return vl_ok();
  hid_t attribute = H5Aopen(text->file, "vocabulary_sha256", H5P_DEFAULT), type = H5Aget_type(attribute);
  if (H5Tget_class(type) == H5T_STRING) text->vocabulary = read_text(attribute, type);
  H5Tclose(type);
  H5Aclose(attribute);
  if (text->vocabulary) return vl_ok();
  return vl_error(VL_INVALID, "%s: 'vocabulary_sha256' is no text", text->path);
}

static Status read_attributes(TextSet *text) {
  int64_t vocabulary;
  VL_TRY(read_attribute(text, "vocabulary_size", INT32_MAX, &vocabulary));
  if (vocabulary != text->shape.vocabulary) {
    return vl_error(
        VL_INVALID, "%s was made with a vocabulary of %lld tokens, the case has %lld (--set vocabulary=%lld)",
        text->path, (long long)vocabulary, (long long)text->shape.vocabulary, (long long)vocabulary);
  }
  VL_TRY(read_attribute(text, "pad_id", vocabulary, &text->pad));
  VL_TRY(read_attribute(text, "cls_id", vocabulary, &text->cls));
  VL_TRY(read_attribute(text, "sep_id", vocabulary, &text->sep));
  VL_TRY(read_vocabulary(text));
  return read_attribute(text, "mask_id", vocabulary, &text->mask);
}

/* A one-dimensional dataset of whole numbers. */
static Status open_numbers(const TextSet *text, const char *prefix, const char *part, hid_t *dataset,
                           int64_t *count) {
  char name[40];
  snprintf(name, sizeof name, "%s%s", prefix, part);
  *dataset = H5Lexists(text->file, name, H5P_DEFAULT) > 0 ? H5Dopen2(text->file, name, H5P_DEFAULT) : -1;
  if (*dataset < 0) return vl_error(VL_INVALID, "%s lacks the dataset '%s'", text->path, name);
  hid_t type = H5Dget_type(*dataset), space = H5Dget_space(*dataset);
  bool fits = H5Tget_class(type) == H5T_INTEGER && H5Sget_simple_extent_ndims(space) == 1;
  *count = H5Sget_simple_extent_npoints(space);
  H5Tclose(type);
  H5Sclose(space);
  if (fits) return vl_ok();
  return vl_error(VL_INVALID, "%s: '%s' must be a list of whole numbers", text->path, name);
}

/* Bounds that rise from 0 to `end`: none of what they divide into is empty. */
static Status read_bounds(const TextSet *text, const char *prefix, const char *part, int64_t **bounds,
                          int64_t *count) {
  hid_t dataset;
  Status status = open_numbers(text, prefix, part, &dataset, count);
  if (status.code == VL_OK && *count < 2) {
    status = vl_error(VL_INVALID, "%s: '%s%s' holds %lld bounds; the least are 2, those of one", text->path,
                      prefix, part, (long long)*count);
  }
  if (status.code == VL_OK) {
    *bounds = vl_allocate((size_t)*count * sizeof **bounds);
    if (H5Dread(dataset, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, *bounds) < 0) {
      status =
          vl_error(VL_INVALID, "%s: '%s%s' cannot be read: the file is damaged", text->path, prefix, part);
    }
  }
  if (dataset >= 0) H5Dclose(dataset);
  --*count;
  return status;
}

static Status check_bounds(const TextSet *text, const char *prefix, const char *part, const int64_t *bounds,
                           int64_t count, int64_t end, const char *of) {
  if (bounds[0] != 0 || bounds[count] != end) {
    return vl_error(VL_INVALID, "%s: '%s%s' divides %lld to %lld, there are %lld %s", text->path, prefix,
                    part, (long long)bounds[0], (long long)bounds[count], (long long)end, of);
  }
  for (int64_t i = 0; i < count; i++) {
    if (bounds[i + 1] > bounds[i]) continue;
    return vl_error(VL_INVALID, "%s: number %lld of '%s%s' is empty (from %lld to %lld)", text->path,
                    (long long)i, prefix, part, (long long)bounds[i], (long long)bounds[i + 1]);
  }
  return vl_ok();
}

static bool read_tokens(const Split *split, Span span, int32_t *tokens) {
  hsize_t start = (hsize_t)span.begin, count = (hsize_t)span.length;
  hid_t file_space = H5Dget_space(split->tokens), memory_space = H5Screate_simple(1, &count, NULL);
  H5Sselect_hyperslab(file_space, H5S_SELECT_SET, &start, NULL, &count, NULL);
  herr_t failed = H5Dread(split->tokens, H5T_NATIVE_INT32, memory_space, file_space, H5P_DEFAULT, tokens);
  H5Sclose(file_space);
  H5Sclose(memory_space);
  return failed >= 0;
}

static Status check_token(const TextSet *text, const Split *split, int64_t at, int64_t token) {
  bool added_later = token == text->pad || token == text->cls || token == text->sep || token == text->mask;
  if (token >= 0 && token < text->shape.vocabulary && !added_later) return vl_ok();
  return vl_error(VL_INVALID, "%s: token %lld of '%stokens', at %lld, %s%lld%s", text->path, (long long)token,
                  split->prefix, (long long)at,
                  added_later ? "is a special one, which text has not (of " : "is not in [0, ",
                  (long long)text->shape.vocabulary, added_later ? " tokens)" : ")");
}

/* All of them now: a bad one must not end an epoch that has begun. */
static Status check_tokens(const TextSet *text, const Split *split, int64_t count) {
  enum { AT_ONCE = 1 << 16 };
  int32_t *tokens = vl_allocate(AT_ONCE * sizeof *tokens);
  Status status = vl_ok();
  for (int64_t at = 0; at < count && status.code == VL_OK; at += AT_ONCE) {
    Span span = {at, count - at < AT_ONCE ? count - at : AT_ONCE};
    if (!read_tokens(split, span, tokens)) {
      status = vl_error(VL_INVALID, "%s: '%stokens' cannot be read at %lld: the file is damaged", text->path,
                        split->prefix, (long long)at);
    }
    for (int64_t i = 0; i < span.length && status.code == VL_OK; i++)
      status = check_token(text, split, at + i, tokens[i]);
  }
  free(tokens);
  return status;
}

static void add_sample(Split *split, int64_t first, int64_t count, int64_t document) {
  split->samples[split->count++] = (Sample){first, count, document};
}

/* As many sentences as fit in `room` tokens, at least two; a document's last one, when alone, with the one
 * before it. */
static void divide_document(Split *split, int64_t document, int64_t room) {
  int64_t first = split->documents[document], end = split->documents[document + 1];
  if (end - first < 2) return;
  while (end - first >= 2) {
    int64_t next = first + 2;
    while (next < end && split->sentences[next + 1] - split->sentences[first] <= room)
      next++;
    add_sample(split, first, next - first, document);
    first = next;
  }
  if (first < end) add_sample(split, end - 2, 2, document);
}

static Status open_split(TextSet *text, const char *prefix, Split *split) {
  int64_t tokens;
  split->prefix = prefix;
  VL_TRY(open_numbers(text, prefix, "tokens", &split->tokens, &tokens));
  VL_TRY(read_bounds(text, prefix, "sentences", &split->sentences, &split->sentence_count));
  VL_TRY(read_bounds(text, prefix, "documents", &split->documents, &split->document_count));
  VL_TRY(check_bounds(text, prefix, "sentences", split->sentences, split->sentence_count, tokens, "tokens"));
  VL_TRY(check_bounds(text, prefix, "documents", split->documents, split->document_count,
                      split->sentence_count, "sentences"));
  VL_TRY(check_tokens(text, split, tokens));
  if (split->document_count < 2) {
    return vl_error(VL_INVALID, "%s: '%sdocuments' is one; a sentence that does not follow needs another",
                    text->path, prefix);
  }
  split->samples = vl_allocate((size_t)split->sentence_count * sizeof *split->samples);
  for (int64_t d = 0; d < split->document_count; d++)
    divide_document(split, d, text->shape.sequence - 3);
  if (split->count > 0) return vl_ok();
  return vl_error(VL_INVALID, "%s: none of '%sdocuments' has two sentences", text->path, prefix);
}

static Status open_file(TextSet *text) {
  text->file = H5Fopen(text->path, H5F_ACC_RDONLY, H5P_DEFAULT);
  if (text->file < 0) {
    return vl_error(VL_INVALID, "cannot read %s as HDF5 (missing, truncated or not an HDF5 file)",
                    text->path);
  }
  VL_TRY(read_attributes(text));
  VL_TRY(open_split(text, "", &text->training));
  return open_split(text, "held_out_", &text->held_out);
}

Status engine_text_open(const char *path, TextShape shape, TextSet **out) {
  H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* messages are ours */
  TextSet *text = vl_allocate(sizeof *text);
  *text = (TextSet){.path = path, .shape = shape};
  Status status = open_file(text);
  text->path = NULL;
  if (status.code != VL_OK) {
    engine_text_close(&text);
    return status;
  }
  *out = text;
  return vl_ok();
}

const char *engine_text_vocabulary(const TextSet *text) { return text->vocabulary ? text->vocabulary : ""; }

int64_t engine_text_count(const TextSet *text, bool held_out) {
  return held_out ? text->held_out.count : text->training.count;
}

/* ---- Drawing ------------------------------------------------------------------------------------------------- */

static int64_t below(uint32_t word, int64_t count) { return (int64_t)((word * (uint64_t)count) >> 32); }

/* 15 % of the text's tokens, as far as the case has room. */
static int64_t prediction_count(const TextShape *shape, int64_t tokens) {
  int64_t count = (15 * tokens + 50) / 100;
  if (count < 1) count = 1;
  return count < shape->predictions ? count : shape->predictions;
}

/* Both keep half of the room, or more where the other leaves it. */
static void fit(Pair *pair, int64_t room) {
  int64_t half = room / 2, a = pair->a.length, b = pair->b.length;
  if (a > half) a = b < room - half ? room - b : half;
  if (a > pair->a.length) a = pair->a.length;
  if (b > room - a) b = room - a;
  pair->a.begin += pair->a.length - a;
  pair->a.length = a;
  pair->b.length = b;
}

static Span sentences(const Split *split, int64_t first, int64_t end) {
  return (Span){split->sentences[first], split->sentences[end] - split->sentences[first]};
}

/* `count` sentences, or what there is, from anywhere in a document other than `from`. */
static Span draw_elsewhere(const Split *split, int64_t from, int64_t count, uint32_t word, uint32_t start) {
  int64_t document = below(word, split->document_count - 1);
  if (document >= from) document++;
  int64_t end = split->documents[document + 1];
  int64_t first = split->documents[document] + below(start, end - split->documents[document]);
  return sentences(split, first, end - first < count ? end : first + count);
}

static Pair draw_pair(const TextShape *shape, const Split *split, uint64_t key, uint64_t place,
                      Sample sample) {
  Pair pair = {.follows = below(vl_random_word(key, place, 0), 2) == 0};
  int64_t end = sample.first + sample.count;
  int64_t cut = sample.first + 1 + below(vl_random_word(key, place, 1), sample.count - 1);
  pair.a = sentences(split, sample.first, cut);
  pair.b = pair.follows ? sentences(split, cut, end)
                        : draw_elsewhere(split, sample.document, end - cut, vl_random_word(key, place, 2),
                                         vl_random_word(key, place, 3));
  fit(&pair, shape->sequence - 3);
  pair.predictions = prediction_count(shape, pair.a.length + pair.b.length);
  return pair;
}

/* One row of a batch. */
typedef struct Row {
  int32_t *tokens, *segments, *positions, *labels;
  float *mask;
} Row;

static Status lay_out(const TextSet *text, const Split *split, const Pair *pair, Row row) {
  int64_t a = pair->a.length, b = pair->b.length, used = a + b + 3;
  row.tokens[0] = (int32_t)text->cls;
  row.tokens[a + 1] = row.tokens[used - 1] = (int32_t)text->sep;
  if (!read_tokens(split, pair->a, row.tokens + 1) || !read_tokens(split, pair->b, row.tokens + a + 2)) {
    return vl_error(VL_ENVIRONMENT, "cannot read '%stokens' at %lld and %lld: the file is damaged",
                    split->prefix, (long long)pair->a.begin, (long long)pair->b.begin);
  }
  for (int64_t i = 0; i < text->shape.sequence; i++) {
    row.segments[i] = i >= a + 2 && i < used;
    row.mask[i] = i < used ? 0.0F : -INFINITY;
    if (i >= used) row.tokens[i] = (int32_t)text->pad;
  }
  return vl_ok();
}

static int32_t replace(const TextSet *text, int32_t token, uint32_t action, uint32_t other) {
  int64_t tenth = below(action, 10);
  if (tenth < 8) return (int32_t)text->mask;
  return tenth == 8 ? (int32_t)below(other, text->shape.vocabulary) : token;
}

/* Chooses every set of `predictions` of the text's positions with the same probability, in one pass (Knuth,
 * TAOCP 3.4.2, algorithm S). */
static void hide(const TextSet *text, uint64_t key, uint64_t place, const Pair *pair, Row row) {
  int64_t a = pair->a.length, left = a + pair->b.length, chosen = 0;
  for (int64_t i = 1; left > 0; i++) {
    if (i == a + 1) continue; /* [SEP] */
    uint64_t element = 4 * (uint64_t)i;
    bool choose = below(vl_random_word(key, place, element), left) < pair->predictions - chosen;
    left--;
    if (!choose) continue;
    row.positions[chosen] = (int32_t)i;
    row.labels[chosen++] = row.tokens[i];
    row.tokens[i] = replace(text, row.tokens[i], vl_random_word(key, place, element + 1),
                            vl_random_word(key, place, element + 2));
  }
  for (; chosen < text->shape.predictions; chosen++) {
    row.positions[chosen] = 0;
    row.labels[chosen] = VL_IGNORED_LABEL;
  }
}

typedef struct Keys {
  uint64_t pair, mask;
} Keys;

static Keys keys_of(uint64_t seed, uint64_t step) {
  return (Keys){vl_random_key(seed, step, "sentence pair"), vl_random_key(seed, step, "masked tokens")};
}

static Status write_row(const TextSet *text, const Split *split, Keys keys, uint64_t place, int64_t sample,
                        int64_t n, const TextBatch *batch) {
  int64_t tokens = n * text->shape.sequence, labels = n * text->shape.predictions;
  Row row = {batch->tokens + tokens, batch->segments + tokens, batch->positions + labels,
             batch->labels + labels, batch->mask + tokens};
  Pair pair = draw_pair(&text->shape, split, keys.pair, place, split->samples[sample]);
  batch->follows[n] = pair.follows;
  VL_TRY(lay_out(text, split, &pair, row));
  hide(text, keys.mask, place, &pair, row);
  return vl_ok();
}

static int64_t drawn_sample(TextSet *text, const StepPlace *at, int64_t place) {
  return engine_order_at(&text->order, at->seed, text->training.count, at->drawn + place);
}

Status engine_text_batch(TextSet *text, StepPlace at, int64_t first, const TextBatch *batch) {
  Keys keys = keys_of(at.seed, at.step);
  for (int64_t n = 0; n < batch->count; n++) {
    int64_t sample = drawn_sample(text, &at, first + n);
    VL_TRY(write_row(text, &text->training, keys, (uint64_t)(first + n), sample, n, batch));
  }
  return vl_ok();
}

int64_t engine_text_counted(TextSet *text, StepPlace at) {
  uint64_t key = keys_of(at.seed, at.step).pair;
  int64_t counted = 0;
  for (int64_t place = 0; place < at.samples; place++) {
    Sample sample = text->training.samples[drawn_sample(text, &at, place)];
    counted += draw_pair(&text->shape, &text->training, key, (uint64_t)place, sample).predictions;
  }
  return counted;
}

/* The same for every run, so that runs can be compared. */
Status engine_text_held_out(TextSet *text, int64_t first, const TextBatch *batch) {
  Keys keys = keys_of(0, 0);
  for (int64_t n = 0; n < batch->count; n++) {
    int64_t sample = (first + n) % text->held_out.count;
    VL_TRY(write_row(text, &text->held_out, keys, (uint64_t)sample, sample, n, batch));
  }
  return vl_ok();
}
