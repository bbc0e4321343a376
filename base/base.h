/* base: what every folder may use. Status, arena, element types, Philox, units, clocks.
 * Knows nothing of networks. */
#ifndef VRAMLAB_BASE_H
#define VRAMLAB_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Status ------------------------------------------------------------------------------- */

/* How a call ended. Out of memory and unsupported are results to be stored, not failures of the
 * program. */
typedef enum StatusCode {
  VL_OK = 0,
  VL_INVALID,       /* bad input or usage: exit code 2 */
  VL_OUT_OF_MEMORY, /* the heap's capacity or the machine's memory does not suffice */
  VL_UNSUPPORTED,   /* understood, but this device or case cannot do it as asked */
  VL_ENVIRONMENT,   /* a library, driver, file or permission is missing: exit code 3 */
  VL_DIVERGED,      /* the loss is not finite */
  VL_INTERRUPTED,   /* stopped on request; can be resumed: exit code 4 */
  VL_INTERNAL       /* our own bug, reported instead of crashing */
} StatusCode;

enum { VL_STATUS_MESSAGE_BYTES = 512 };

/* A result with the numbers that decide it. The message is empty when code is VL_OK. */
typedef struct Status {
  StatusCode code;
  char message[VL_STATUS_MESSAGE_BYTES];
} Status;

/* Marks a function whose result must be looked at. */
#define VL_CHECKED __attribute__((warn_unused_result))

/* Success. */
Status vl_ok(void) VL_CHECKED;
/* A Status with a printf-style message, truncated to fit. */
Status vl_error(StatusCode code, const char *format, ...) __attribute__((format(printf, 2, 3))) VL_CHECKED;
/* The code's name in lower case: "ok", "invalid", "out-of-memory", ... */
const char *vl_status_name(StatusCode code);
/* The program's exit code for a status: 0, 1 (a result failed), 2, 3 or 4. */
int vl_status_exit_code(StatusCode code);

/* Returns from the calling function when the expression is not VL_OK. The only control-flow macro. */
#define VL_TRY(expression)                                                                                   \
  do {                                                                                                       \
    Status vl_try_status = (expression);                                                                     \
    if (vl_try_status.code != VL_OK) return vl_try_status;                                                   \
  } while (0)

/* ---- Host memory for metadata -------------------------------------------------------------- */

/* Zeroed host memory; ends the process with a message when the host has none left (metadata is
 * small; what a workload needs comes from the heap, where running out is a result). Free with free(). */
void *vl_allocate(size_t bytes);
/* Like realloc under the same rule; the grown part is not zeroed. */
void *vl_reallocate(void *memory, size_t bytes);
/* A copy of text from vl_allocate. */
char *vl_copy_text(const char *text);

/* A region that is freed as a whole. */
typedef struct Arena Arena;
Arena *vl_arena_create(void);
/* Destroys the arena and sets the pointer to NULL; NULL is allowed. */
void vl_arena_destroy(Arena **arena);
/* Zeroed, 16-byte aligned memory that lives as long as the arena. */
void *vl_arena_allocate(Arena *arena, size_t bytes);
char *vl_arena_copy_text(Arena *arena, const char *text);
char *vl_arena_format(Arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- Element types --------------------------------------------------------------------------- */

typedef enum DType {
  DTYPE_F32 = 0,
  DTYPE_BF16,
  DTYPE_F16,
  DTYPE_F64,
  DTYPE_I32,
  DTYPE_I64,
  DTYPE_U8,
  DTYPE_COUNT
} DType;

/* Size of one element in bits. */
int vl_dtype_bits(DType dtype);
/* Bytes of count elements, rounded up to whole bytes. */
int64_t vl_dtype_bytes(DType dtype, int64_t count);
/* "f32", "bf16", ... */
const char *vl_dtype_name(DType dtype);
/* Parses a name; VL_INVALID names the accepted ones. */
Status vl_dtype_parse(const char *name, DType *dtype) VL_CHECKED;
bool vl_dtype_is_float(DType dtype);

/* Conversions, round to nearest even; NaN stays NaN, overflow becomes infinity. */
uint16_t vl_bf16_from_f32(float value);
float vl_f32_from_bf16(uint16_t bits);
uint16_t vl_f16_from_f32(float value);
float vl_f32_from_f16(uint16_t bits);
/* Reads or writes element i of an array of any type as a double. Writing rounds once, to nearest even;
 * whole-number types saturate and take NaN as 0. */
double vl_element_get(const void *data, DType dtype, int64_t i);
void vl_element_set(void *data, DType dtype, int64_t i, double value);

/* ---- Counter-based randomness ------------------------------------------------------------------
 * Philox 4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
 * A value depends on (seed, step, scope, sample, element) only, never on layout, micro-batch or rank. */

/* One block: four 32-bit words for a counter and a key. */
void vl_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
/* The 64-bit key of (seed, step, scope name); word 0 is the low half.
 * key = mix(mix(mix(seed) ^ step) ^ fnv(scope)), where fnv is FNV-1a-64 of the name's bytes without the
 * terminator and mix(z) is SplitMix64's output for z: z += 0x9e3779b97f4a7c15;
 * z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9; z = (z ^ (z >> 27)) * 0x94d049bb133111eb; z ^ (z >> 31).
 * The golden script mirrors this formula. */
uint64_t vl_random_key(uint64_t seed, uint64_t step, const char *scope);
/* Word for element `element` of sample `sample`: lane element % 4 of block
 * counter = (low 32 of element/4, high 32 of element/4, low 32 of sample, high 32 of sample). */
uint32_t vl_random_word(uint64_t key, uint64_t sample, uint64_t element);
/* (word >> 8) * 2^-24, in [0, 1), exact in float. */
float vl_random_unit(uint32_t word);

/* ---- Hash, units, clocks ------------------------------------------------------------------------- */

/* FNV-1a, 64 bits. Start from vl_hash_start. */
extern const uint64_t vl_hash_start;
uint64_t vl_hash_bytes(uint64_t hash, const void *data, size_t bytes);
uint64_t vl_hash_text(uint64_t hash, const char *text);

/* Parses "16GiB", "16GB", "512MiB", "4096" (bytes), "24G" and "24M" (binary, as in nccl-tests),
 * fractions allowed (the result is rounded down to whole bytes). VL_INVALID names the text and the accepted
 * forms. */
Status vl_parse_bytes(const char *text, int64_t *bytes) VL_CHECKED;
/* Whole positive decimal number within [low, high]; VL_INVALID names what, the text and the range. */
Status vl_parse_integer(const char *what, const char *text, int64_t low, int64_t high,
                        int64_t *value) VL_CHECKED;
/* "1.234 GiB", "12.50 MiB", "512 B": binary units, label matching the divisor. */
void vl_format_bytes(int64_t bytes, char *text, size_t size);

/* ---- Text on a screen ---- */

/* Columns that the first `bytes` bytes of UTF-8 text take on a terminal (all of it: SIZE_MAX): two a wide
 * East Asian character, none a combining mark, one a byte that is not UTF-8. */
size_t vl_display_columns(const char *text, size_t bytes);
/* Bytes of the longest beginning of whole characters that takes at most `columns`; at most `bytes`. */
size_t vl_display_prefix(const char *text, size_t bytes, size_t columns);
/* value / divisor with that many decimals, rounded half up, "." under every locale; value >= 0. */
void vl_format_quotient(int64_t value, int64_t divisor, int decimals, char *text, size_t size);
double vl_bytes_to_gib(int64_t bytes);
double vl_bytes_to_gb(int64_t bytes);
double vl_bytes_to_mb(int64_t bytes);
/* "12.3 s", "4 min 10 s", "250 ms". */
void vl_format_seconds(double seconds, char *text, size_t size);

/* Monotonic clock in nanoseconds: the only source of durations. */
int64_t vl_monotonic_ns(void);
/* Wall-clock time as ISO 8601 in UTC, "2026-01-31T12:00:00Z": the only source of timestamps. */
void vl_utc_text(char *text, size_t size);

#endif
