/* oom_text: a log without what terminals and log collectors put into it, and the numbers of messages. */
#ifndef VRAMLAB_HARNESS_OOM_TEXT_H
#define VRAMLAB_HARNESS_OOM_TEXT_H

#include "harness/oom_message.h"

typedef struct Squeezed {
  char *text;   /* lower case, no white space, no control sequences; ends with '\0' */
  uint32_t *at; /* by character: where it stands in the original */
  size_t length;
  const char *original;
  size_t original_size;
} Squeezed;

/* free() text and at. */
void vl_squeeze(const char *text, size_t size, Squeezed *squeezed);
/* The length of a terminal's control sequence at `at` (ECMA-48: CSI ... final byte, OSC ... BEL); 0 for none.
 */
size_t vl_control_sequence(const char *text, size_t size, size_t at);

/* Of a squeezed text: whether it begins with a word; a word among the next `limit` characters (so that a long
 * log is not searched again for every message), or NULL. */
bool vl_starts(const char *text, const char *word);
const char *vl_find_near(const char *text, const char *word, int limit);
/* Digits with a decimal point or comma; returns what follows, NULL when there is no number. Where both occur
 * the last is the decimal one; a single comma before exactly three digits divides thousands, since PyTorch
 * prints two decimals. */
const char *vl_read_number(const char *text, double *value, int *decimals);
/* A number and its unit; NULL when either is missing or it is 2^60 bytes or more. */
const char *vl_read_figure(const char *text, OomFigure *figure);

#endif
