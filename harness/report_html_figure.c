/* Figures inside the HTML report. */
#include "harness/report_html.h"

#include <stdlib.h>
#include <string.h>

/* A heap map of thousands of blocks is an SVG of megabytes and a PNG of a tenth of that. */
enum { LARGE_SVG_BYTES = 200 * 1024 };

static const char *starts_with_one_of(const char *at, const char *const *words) {
  for (; *words != NULL; words++)
    if (strncmp(at, *words, strlen(*words)) == 0) return *words;
  return NULL;
}

/* A gnuplot SVG without its prolog and title, which say nothing of the figure. Several in one page must not
 * share identifiers, so each gets the figure's name in front, where it is defined and where it is referred
 * to. */
static void write_svg(FILE *out, const char *at, const Passage *passage) {
  static const char *const references[] = {" id=\"", " id='", "href=\"#", "href='#", "url(#", NULL};
  static const char own_title[] = "<title>Gnuplot</title>";
  fputs("<svg role=\"img\" aria-label=\"", out);
  vl_html_text(out, passage->text);
  fputc('"', out);
  at += strlen("<svg");
  while (*at != '\0') {
    const char *found = starts_with_one_of(at, references);
    if (found != NULL) {
      fprintf(out, "%s%s-", found, passage->name);
      at += strlen(found);
    } else if (strncmp(at, own_title, strlen(own_title)) == 0) {
      at += strlen(own_title);
    } else {
      fputc(*at++, out);
    }
  }
}

/* RFC 4648, section 4. */
static void write_base64(FILE *out, const unsigned char *bytes, size_t size) {
  static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < size; i += 3) {
    size_t left = size - i;
    uint32_t three = (uint32_t)bytes[i] << 16 | (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                     (left > 2 ? (uint32_t)bytes[i + 2] : 0);
    fputc(digits[three >> 18], out);
    fputc(digits[three >> 12 & 63], out);
    fputc(left > 1 ? digits[three >> 6 & 63] : '=', out);
    fputc(left > 2 ? digits[three & 63] : '=', out);
  }
}

static void write_png(FILE *out, const char *bytes, size_t size, const Passage *passage) {
  fputs("<img alt=\"", out);
  vl_html_text(out, passage->text);
  fputs("\" src=\"data:image/png;base64,", out);
  write_base64(out, (const unsigned char *)bytes, size);
  fputs("\"/>", out);
}

Status vl_html_figure(FILE *out, const char *directory, const Passage *passage) {
  char path[4300], *svg = NULL, *png = NULL;
  size_t svg_size = 0, png_size = 0;
  snprintf(path, sizeof(path), "%s/%s.svg", directory, passage->name);
  Status status = vl_html_read(path, &svg, &svg_size);
  const char *start = status.code == VL_OK ? strstr(svg, "<svg") : NULL;
  if (status.code == VL_OK && start == NULL) status = vl_error(VL_ENVIRONMENT, "%s: not an SVG file", path);
  if (status.code == VL_OK && start != NULL) {
    fputs("<figure><div class=\"scroll\">", out);
    snprintf(path, sizeof(path), "%s/%s.png", directory, passage->name);
    if (svg_size > LARGE_SVG_BYTES && vl_html_read(path, &png, &png_size).code == VL_OK)
      write_png(out, png, png_size, passage);
    else
      write_svg(out, start, passage);
    fputs("</div><figcaption>", out);
    vl_html_text(out, passage->text);
    fputs("</figcaption></figure>\n", out);
  }
  free(svg);
  free(png);
  return status;
}
