/* How wide text is on a screen: East Asian characters are two columns wide, combining marks none. */
#include "base/base.h"

#include <locale.h>
#include <string.h>
#include <wchar.h>

static bool is_ascii(const char *text, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    if ((unsigned char)text[i] >= 0x80) return false;
  return true;
}

/* Walks over whole characters while they fit; what is not UTF-8 is a column a byte. The C library knows the
 * widths in a locale of that encoding, whatever the user's is. */
static size_t walk(const char *text, size_t bytes, size_t most, size_t *columns) {
  locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0);
  locale_t before = utf8 != (locale_t)0 ? uselocale(utf8) : (locale_t)0;
  mbstate_t state = {0};
  size_t at = 0;
  *columns = 0;
  while (at < bytes) {
    wchar_t character;
    size_t length = mbrtowc(&character, text + at, bytes - at, &state);
    int width = 1;
    if (length == 0 || length > bytes - at) {
      length = 1;
      memset(&state, 0, sizeof state);
    } else {
      width = wcwidth(character);
    }
    size_t its = width > 0 ? (size_t)width : 0;
    if (*columns + its > most) break;
    *columns += its;
    at += length;
  }
  if (utf8 != (locale_t)0) {
    uselocale(before);
    freelocale(utf8);
  }
  return at;
}

size_t vl_display_columns(const char *text, size_t bytes) {
  size_t length = strnlen(text, bytes), columns;
  if (is_ascii(text, length)) return length;
  (void)walk(text, length, SIZE_MAX, &columns);
  return columns;
}

size_t vl_display_prefix(const char *text, size_t bytes, size_t columns) {
  size_t length = strnlen(text, bytes), taken;
  if (is_ascii(text, length)) return length < columns ? length : columns;
  return walk(text, length, columns, &taken);
}
