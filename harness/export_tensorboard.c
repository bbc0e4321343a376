/* TensorBoard's event files, one directory a cell: records of length, checksum, a protobuf of Event and its
 * checksum (TFRecord). Values are f32 there, which holds whole bytes up to 16 MiB only: memory goes in MiB
 * and says so. */
#include "harness/export.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* ---- Records --------------------------------------------------------------------------------------------------------- */

/* CRC-32C, reflected (RFC 3720, B.4). */
static uint32_t crc32c(const unsigned char *bytes, size_t count) {
  uint32_t crc = 0xffffffffU;
  for (size_t i = 0; i < count; i++) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; bit++)
      crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78U : 0);
  }
  return ~crc;
}

static uint32_t masked(uint32_t crc) { return (crc >> 15 | crc << 17) + 0xa282ead8U; }

static void put_little(FILE *out, uint64_t value, int count) {
  for (int i = 0; i < count; i++)
    fputc((int)(value >> (8 * i) & 0xff), out);
}

static void put_record(FILE *out, const unsigned char *data, size_t count) {
  unsigned char length[8];
  for (int i = 0; i < 8; i++)
    length[i] = (unsigned char)((uint64_t)count >> (8 * i) & 0xff);
  fwrite(length, 1, sizeof length, out);
  put_little(out, masked(crc32c(length, sizeof length)), 4);
  fwrite(data, 1, count, out);
  put_little(out, masked(crc32c(data, count)), 4);
}

/* ---- Protobuf --------------------------------------------------------------------------------------------------------- */

enum { MESSAGE_BYTES = 512 };
typedef struct Message {
  unsigned char bytes[MESSAGE_BYTES];
  size_t count;
} Message;

static void put_byte(Message *message, unsigned char byte) {
  if (message->count < MESSAGE_BYTES) message->bytes[message->count++] = byte;
}

static void put_varint(Message *message, uint64_t value) {
  for (; value > 0x7f; value >>= 7)
    put_byte(message, (unsigned char)(value | 0x80));
  put_byte(message, (unsigned char)value);
}

static void put_raw(Message *message, const void *bytes, size_t count) {
  for (size_t i = 0; i < count; i++)
    put_byte(message, ((const unsigned char *)bytes)[i]);
}

/* A field of bytes: text or a message. */
static void put_bytes(Message *message, unsigned char field, const void *bytes, size_t count) {
  put_byte(message, (unsigned char)(field << 3 | 2));
  put_varint(message, count);
  put_raw(message, bytes, count);
}

static void put_wall_time(Message *message, double seconds) {
  put_byte(message, 1 << 3 | 1);
  put_raw(message, &seconds, sizeof seconds);
}

static void put_version(FILE *out, double wall_time_s) {
  static const char version[] = "brain.Event:2";
  Message event = {.count = 0};
  put_wall_time(&event, wall_time_s);
  put_bytes(&event, 3, version, strlen(version));
  put_record(out, event.bytes, event.count);
}

static void put_scalar(FILE *out, double wall_time_s, int64_t step, const char *tag, double value) {
  Message event = {.count = 0}, summary = {.count = 0}, item = {.count = 0};
  float single = (float)value;
  if (!isfinite(value)) return;
  put_bytes(&item, 1, tag, strlen(tag));
  put_byte(&item, 2 << 3 | 5);
  put_raw(&item, &single, sizeof single);
  put_bytes(&summary, 1, item.bytes, item.count);
  put_wall_time(&event, wall_time_s);
  put_byte(&event, 2 << 3);
  put_varint(&event, (uint64_t)step);
  put_bytes(&event, 5, summary.bytes, summary.count);
  put_record(out, event.bytes, event.count);
}

/* ---- Cells ------------------------------------------------------------------------------------------------------------ */

static void put_series(FILE *out, const json_t *record, double wall_time_s, const char *list, const char *tag,
                       double scale, int64_t first) {
  int64_t count;
  double *values = vl_record_list(record, list, &count);
  for (int64_t i = 0; i < count; i++)
    put_scalar(out, wall_time_s, first + i, tag, values[i] * scale);
  free(values);
}

static void put_cell(FILE *out, const json_t *record, double wall_time_s) {
  static const char *const peaks[] = {"needed_bytes",          "peak_allocated_bytes", "peak_reserved_bytes",
                                      "peak_parameter_bytes",  "peak_gradient_bytes",  "peak_optimizer_bytes",
                                      "peak_activation_bytes", "peak_workspace_bytes"};
  const double mib = 0x1p-20;
  int64_t warmup = vl_record_integer(record, "warmup");
  put_version(out, wall_time_s);
  put_series(out, record, wall_time_s, "losses", "loss", 1, 0);
  put_series(out, record, wall_time_s, "step_times_s", "step_s", 1, warmup > 0 ? warmup : 0);
  put_series(out, record, wall_time_s, "step_peaks_bytes", "mem/step_peak_allocated_mib", mib, 0);
  put_series(out, record, wall_time_s, "step_reserved_bytes", "mem/step_peak_reserved_mib", mib, 0);
  put_series(out, record, wall_time_s, "live_bytes", "mem/live_mib", mib, 0);
  put_scalar(out, wall_time_s, 0, "samples_per_s", vl_record_real(record, "samples_per_s"));
  for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++) {
    char tag[64];
    snprintf(tag, sizeof tag, "mem/%.*s_mib", (int)(strlen(peaks[i]) - strlen("_bytes")), peaks[i]);
    put_scalar(out, wall_time_s, 0, tag, vl_record_real(record, peaks[i]) * mib);
  }
}

static double wall_time_of(const json_t *record) {
  struct tm utc = {0};
  const char *text = vl_record_text(record, "created_utc");
  if (!text || !strptime(text, "%Y-%m-%dT%H:%M:%S", &utc)) return 0;
  return (double)timegm(&utc);
}

/* A name of letters, digits and a few signs, from what tells the cell apart. */
static void run_name(const json_t *record, char *name, size_t size) {
  const char *case_name = vl_record_text(record, "case"), *recipe = vl_record_text(record, "recipe");
  const char *key = vl_record_text(record, "cell_key");
  snprintf(name, size, "%s-b%lld-%.100s-%.8s", case_name ? case_name : "cell",
           (long long)vl_record_integer(record, "global_batch"), recipe ? recipe : "baseline",
           key ? key : "0");
  for (char *at = name; *at; at++)
    if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.=+-_", *at)) *at = '_';
}

static Status write_run(const char *directory, const json_t *record) {
  char name[256], path[4600];
  double wall_time_s = wall_time_of(record);
  run_name(record, name, sizeof name);
  snprintf(path, sizeof path, "%s/%s", directory, name);
  if (mkdir(path, 0777) != 0 && errno != EEXIST)
    return vl_error(VL_ENVIRONMENT, "cannot make %s: %s", path, strerror(errno));
  size_t used = strlen(path);
  snprintf(path + used, sizeof path - used, "/events.out.tfevents.%lld.vramlab.0.0", (long long)wall_time_s);
  FILE *out = fopen(path, "wb");
  if (!out) return vl_error(VL_ENVIRONMENT, "%s: %s", path, strerror(errno));
  put_cell(out, record, wall_time_s);
  bool failed = ferror(out) != 0;
  return fclose(out) == 0 && !failed ? vl_ok() : vl_error(VL_ENVIRONMENT, "%s: %s", path, strerror(errno));
}

Status vl_export_tensorboard(const ExportInput *input, FILE *out) {
  (void)out;
  if (mkdir(input->output, 0777) != 0 && errno != EEXIST)
    return vl_error(VL_ENVIRONMENT, "cannot make %s: %s", input->output, strerror(errno));
  for (int32_t i = 0; i < input->records.count; i++)
    VL_TRY(write_run(input->output, input->records.records[i]));
  return vl_ok();
}
