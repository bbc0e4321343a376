/* Which GPUs a process may see: what CUDA_VISIBLE_DEVICES says, read as the CUDA runtime reads it, so that a
 * slip becomes a message instead of fewer GPUs. CUDA C++ Programming Guide, "CUDA Environment Variables". */
#include "devices/device.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* One entry without the blanks around it. */
typedef struct Entry {
  const char *text;
  int length;
} Entry;

static Entry next_entry(const char **at) {
  const char *begin = *at, *end = begin + strcspn(begin, ",");
  *at = *end ? end + 1 : NULL;
  while (begin < end && isspace((unsigned char)*begin))
    begin++;
  while (end > begin && isspace((unsigned char)end[-1]))
    end--;
  return (Entry){begin, (int)(end - begin)};
}

static bool begins_with(Entry entry, const char *prefix) {
  size_t length = strlen(prefix);
  return (size_t)entry.length > length && strncmp(entry.text, prefix, length) == 0;
}

/* Hexadecimal digits in groups with dashes between, from `from` on; at least one digit. */
static bool is_uuid_part(Entry entry, size_t from) {
  for (size_t i = from; i < (size_t)entry.length; i++)
    if (!isxdigit((unsigned char)entry.text[i]) && entry.text[i] != '-') return false;
  return (size_t)entry.length > from && isxdigit((unsigned char)entry.text[from]);
}

/* "MIG-GPU-<uuid>/<gpu instance>/<compute instance>", of drivers before 470. */
static bool is_old_mig(Entry entry) {
  const char *slash = memchr(entry.text, '/', (size_t)entry.length);
  if (!slash) return false;
  Entry uuid = {entry.text, (int)(slash - entry.text)};
  int slashes = 0;
  for (const char *c = slash; c < entry.text + entry.length; c++) {
    slashes += *c == '/';
    if (*c != '/' && !isdigit((unsigned char)*c)) return false;
  }
  return slashes == 2 && is_uuid_part(uuid, strlen("MIG-GPU-"));
}

static bool is_index(Entry entry) {
  for (int i = 0; i < entry.length; i++)
    if (!isdigit((unsigned char)entry.text[i])) return false;
  return entry.length > 0 && entry.length < 6;
}

static bool is_known_form(Entry entry) {
  if (begins_with(entry, "MIG-GPU-")) return is_old_mig(entry);
  if (begins_with(entry, "MIG-")) return is_uuid_part(entry, strlen("MIG-"));
  if (begins_with(entry, "GPU-")) return is_uuid_part(entry, strlen("GPU-"));
  return is_index(entry);
}

static bool is_same(Entry entry, const char *text) {
  return strlen(text) == (size_t)entry.length && strncmp(entry.text, text, (size_t)entry.length) == 0;
}

Status vl_visible_devices(const char *text, VisibleDevices *visible) {
  memset(visible, 0, sizeof *visible);
  if (!text) {
    visible->all = true;
    return vl_ok();
  }
  const char *at = text;
  while (at) {
    Entry entry = next_entry(&at);
    if (entry.length == 0 && !at && visible->count == 0) return vl_ok(); /* empty: none */
    if (is_same(entry, "-1")) return vl_ok();                            /* and nothing after it */
    if (!is_known_form(entry))
      return vl_error(
          VL_INVALID,
          "CUDA_VISIBLE_DEVICES=%.200s: \"%.*s\" is no device; accepted: numbers from 0, GPU-<uuid> or "
          "its beginning, MIG-<uuid>, MIG-GPU-<uuid>/<gi>/<ci>; -1 ends the list",
          text, entry.length < 60 ? entry.length : 60, entry.text);
    for (int32_t i = 0; i < visible->count; i++)
      if (is_same(entry, visible->names[i]))
        return vl_error(VL_INVALID, "CUDA_VISIBLE_DEVICES=%.200s names %s twice: CUDA then shows no device",
                        text, visible->names[i]);
    if (visible->count == VL_MAX_VISIBLE || (size_t)entry.length >= sizeof visible->names[0])
      return vl_error(VL_INVALID,
                      "CUDA_VISIBLE_DEVICES=%.200s: more than %d devices, or a name longer than %zu", text,
                      VL_MAX_VISIBLE, sizeof visible->names[0] - 1);
    memcpy(visible->names[visible->count++], entry.text, (size_t)entry.length);
  }
  return vl_ok();
}

/* ---- What CTest gave this test ---------------------------------------------------------------------------------- */

/* A resource's id as a name for CUDA. Ids have lower-case letters, digits and "_" only, so "gpu_<uuid>" and
 * "mig_<uuid>" stand for UUIDs; a number counts the cards that are visible. */
static Status name_of_resource(const char *id, size_t length, const VisibleDevices *visible, char *name,
                               size_t size) {
  if (length == 0 || length >= size) return vl_error(VL_INVALID, "\"%.*s\" is no card", (int)length, id);
  memcpy(name, id, length);
  name[length] = '\0';
  bool gpu = strncmp(name, "gpu_", 4) == 0, mig = strncmp(name, "mig_", 4) == 0;
  if (gpu || mig) {
    memcpy(name, gpu ? "GPU" : "MIG", 3);
    for (char *c = name; *c; c++)
      if (*c == '_') *c = '-';
    return vl_ok();
  }
  if (!is_index((Entry){name, (int)length}))
    return vl_error(VL_INVALID, "\"%s\" is no card; accepted: gpu_<uuid>, mig_<uuid>, a number", name);
  int32_t number = atoi(name);
  if (visible->all) return vl_ok();
  if (number >= visible->count)
    return vl_error(VL_INVALID, "card %d is not visible: CUDA_VISIBLE_DEVICES names %d", number,
                    visible->count);
  snprintf(name, size, "%s", visible->names[number]);
  return vl_ok();
}

/* Adds the cards of "id:<id>,slots:<n>;..." to a list. */
static Status add_resources(const char *variable, const char *text, const VisibleDevices *visible, char *list,
                            size_t size) {
  for (const char *at = text; at;) {
    size_t length = strcspn(at, ";");
    size_t used = strlen(list);
    char name[sizeof visible->names[0]];
    if (strncmp(at, "id:", 3) != 0)
      return vl_error(VL_INVALID, "%s=%.200s is not what CTest writes (id:<id>,slots:<n>;...)", variable,
                      text);
    Status status = name_of_resource(at + 3, strcspn(at + 3, ",;"), visible, name, sizeof name);
    if (status.code != VL_OK) return vl_error(VL_INVALID, "%s: %s", variable, status.message);
    if (used + strlen(name) + 2 > size) return vl_error(VL_INVALID, "%s: too many cards", variable);
    snprintf(list + used, size - used, "%s%s", used > 0 ? "," : "", name);
    at = at[length] == ';' ? at + length + 1 : NULL;
  }
  return vl_ok();
}

Status vl_visible_from_ctest(void) {
  static const char *const count_name = "CTEST_RESOURCE_GROUP_COUNT";
  const char *count = getenv(count_name);
  VisibleDevices visible;
  char list[VL_MAX_VISIBLE * sizeof visible.names[0]] = "";
  if (!count) return vl_ok();
  VL_TRY(vl_visible_devices(getenv("CUDA_VISIBLE_DEVICES"), &visible));
  for (int group = 0; group < atoi(count); group++) {
    char variable[64];
    snprintf(variable, sizeof variable, "CTEST_RESOURCE_GROUP_%d_GPUS", group);
    const char *text = getenv(variable);
    if (text) VL_TRY(add_resources(variable, text, &visible, list, sizeof list));
  }
  if (*list && (setenv("CUDA_VISIBLE_DEVICES", list, 1) != 0 || unsetenv(count_name) != 0))
    return vl_error(VL_ENVIRONMENT, "cannot set CUDA_VISIBLE_DEVICES");
  return vl_ok();
}
