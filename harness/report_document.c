#include "harness/report_document.h"

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

Passage *vl_document_add(Document *document, PassageKind kind, bool first_screen, const char *text) {
  if (document->count == document->capacity) {
    document->capacity = document->capacity > 0 ? 2 * document->capacity : 32;
    document->passages =
        vl_reallocate(document->passages, sizeof(*document->passages) * (size_t)document->capacity);
  }
  Passage *passage = &document->passages[document->count++];
  memset(passage, 0, sizeof(*passage));
  passage->kind = kind;
  passage->first_screen = first_screen;
  passage->text = vl_arena_copy_text(document->arena, text);
  return passage;
}

void vl_document_table(Document *document, Passage *passage, const TableColumn *columns, int32_t column_count,
                       int32_t rows) {
  passage->columns = vl_arena_allocate(document->arena, sizeof(*columns) * (size_t)(column_count + 1));
  memcpy(passage->columns, columns, sizeof(*columns) * (size_t)column_count);
  passage->column_count = column_count;
  passage->row_count = rows;
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

const char *vl_document_gib(Document *document, int64_t bytes) {
  return bytes >= 0 ? vl_document_format(document, "%.2f", vl_bytes_to_gib(bytes)) : "n/a";
}
