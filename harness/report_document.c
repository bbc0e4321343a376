#include "harness/report_document.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

Document *vl_document_create(void) {
  Document *document = vl_allocate(sizeof(*document));
  document->arena = vl_arena_create();
  document->title = document->subtitle = "";
  return document;
}

void vl_document_destroy(Document **document) {
  if (*document == NULL) return;
  vl_arena_destroy(&(*document)->arena);
  free((*document)->passages);
  free(*document);
  *document = NULL;
}

/* ---- Anchors ---------------------------------------------------------------------------------------------------- */

static bool is_taken(const Document *document, const char *anchor) {
  for (int32_t i = 0; i < document->count; i++)
    if (document->passages[i].kind == PASSAGE_HEADING && strcmp(document->passages[i].name, anchor) == 0)
      return true;
  return false;
}

static const char *anchor_of(Document *document, const char *heading) {
  char anchor[256], numbered[280];
  size_t used = 0;
  for (; *heading != '\0' && used < sizeof(anchor) - 1; heading++) {
    unsigned char c = (unsigned char)*heading;
    if (isalnum(c) || c >= 0x80 || c == '_' || c == '-')
      anchor[used++] = (char)tolower(c);
    else if (c == ' ')
      anchor[used++] = '-';
  }
  anchor[used] = '\0';
  snprintf(numbered, sizeof(numbered), "%s", anchor);
  for (int i = 1; is_taken(document, numbered); i++)
    snprintf(numbered, sizeof(numbered), "%s-%d", anchor, i);
  return vl_arena_copy_text(document->arena, numbered);
}

/* ---- Passages --------------------------------------------------------------------------------------------------- */

Passage *vl_document_add(Document *document, PassageKind kind, bool first_screen, const char *text) {
  if (document->count == document->capacity) {
    document->capacity = document->capacity > 0 ? 2 * document->capacity : 32;
    document->passages =
        vl_reallocate(document->passages, sizeof(*document->passages) * (size_t)document->capacity);
  }
  const char *anchor = kind == PASSAGE_HEADING ? anchor_of(document, text) : NULL;
  Passage *passage = &document->passages[document->count++];
  memset(passage, 0, sizeof(*passage));
  passage->name = anchor;
  passage->kind = kind;
  passage->first_screen = first_screen;
  passage->text = vl_arena_copy_text(document->arena, text);
  return passage;
}

int32_t vl_document_headings(const Document *document) {
  int32_t count = 0;
  for (int32_t i = 0; i < document->count; i++)
    count += document->passages[i].kind == PASSAGE_HEADING;
  return count;
}

void vl_document_table(Document *document, Passage *passage, const TableColumn *columns, int32_t column_count,
                       int32_t rows) {
  passage->columns = vl_arena_allocate(document->arena, sizeof(*columns) * (size_t)(column_count + 1));
  memcpy(passage->columns, columns, sizeof(*columns) * (size_t)column_count);
  passage->column_count = column_count;
  passage->row_count = rows;
  passage->collapsed = rows > VL_MANY_ROWS;
  passage->rows = vl_arena_allocate(document->arena, sizeof(*passage->rows) * (size_t)(rows + 1));
  passage->shares = vl_arena_allocate(document->arena, sizeof(double) * (size_t)(rows + 1));
  for (int32_t r = 0; r < rows; r++) {
    passage->rows[r] = vl_arena_allocate(document->arena, sizeof(char *) * (size_t)(column_count + 1));
    for (int32_t c = 0; c < column_count; c++)
      passage->rows[r][c] = "n/a";
  }
}

const char *vl_document_format(Document *document, const char *format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return vl_arena_copy_text(document->arena, text);
}

const char *vl_document_number(Document *document, const char *format, double value) {
  char text[64];
  if (!isfinite(value)) return "n/a";
  snprintf(text, sizeof(text), format, value);
  return vl_arena_copy_text(document->arena, text);
}

const char *vl_document_gib(Document *document, int64_t bytes) {
  return bytes >= 0 ? vl_document_format(document, "%.2f", vl_bytes_to_gib(bytes)) : "n/a";
}
