/* The HTML report: what its two files share. */
#ifndef VRAMLAB_HARNESS_REPORT_HTML_H
#define VRAMLAB_HARNESS_REPORT_HTML_H

#include "harness/report_document.h"

/* Writes text so that it is neither markup nor the end of an attribute. */
void vl_html_text(FILE *out, const char *text);
/* All of a file and a zero byte; size may be NULL. The caller frees contents, also after an error. */
Status vl_html_read(const char *path, char **contents, size_t *size) VL_CHECKED;
/* A figure of the folder: its SVG, or its PNG where the SVG is very large and a PNG is there. */
Status vl_html_figure(FILE *out, const char *directory, const Passage *passage) VL_CHECKED;

#endif
