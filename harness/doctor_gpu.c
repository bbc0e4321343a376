/* Driver, cards and the libraries of CUDA; cards as CTest's resources. */
#include "harness/doctor.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static json_t *bytes_or_null(int64_t bytes) { return bytes < 0 ? json_null() : json_integer(bytes); }
static json_t *flag_or_null(int32_t flag) { return flag < 0 ? json_null() : json_boolean(flag); }

/* ---- The driver ----------------------------------------------------------------------------------------------------- */

static void look_at_driver(json_t *findings, const GpuFacts *gpu) {
  char text[320], memory[32] = "unknown";
  if (!gpu->driver_library) {
    vl_finding_add(findings, "GPU", FINDING_MISSING, "no libcuda.so.1: no NVIDIA driver on this machine",
                   "where there is a card: apt-get install nvidia-open, from NVIDIA's repository; device "
                   "plan predicts for cards "
                   "that are not here (vramlab list profiles)",
                   NULL);
    return;
  }
  int major = gpu->cuda_version / 1000, minor = gpu->cuda_version % 1000 / 10;
  json_t *facts = json_pack("{si si si ss ss so}", "count", gpu->count, "result", gpu->result, "cuda_version",
                            gpu->cuda_version, "driver_version", gpu->driver_version, "name", gpu->name,
                            "memory_bytes", bytes_or_null(gpu->memory_bytes));
  if (gpu->count == 0) {
    snprintf(text, sizeof text, "the driver (CUDA %d.%d) offers no device (code %d%s)", major, minor,
             gpu->result, gpu->result == 100 ? ", no device" : "");
    vl_finding_add(findings, "GPU", FINDING_MISSING, text, "look at nvidia-smi and CUDA_VISIBLE_DEVICES",
                   facts);
    return;
  }
  if (gpu->memory_bytes >= 0) vl_format_bytes(gpu->memory_bytes, memory, sizeof memory);
  snprintf(text, sizeof text, "%d x %s, %s, driver %s, CUDA %d.%d", gpu->count, gpu->name, memory,
           *gpu->driver_version ? gpu->driver_version : "unknown", major, minor);
  vl_finding_add(findings, "GPU", FINDING_OK, text, NULL, facts);
}

/* What the card's management library reads off it now, whoever works on it. */
static void look_at_card(json_t *findings, Device *device) {
  DeviceReadings readings = vl_no_readings();
  char used[32], total[32], clock[32] = "", heat[32] = "", text[256];
  if (device->interface->read) device->interface->read(device, &readings);
  if (readings.card_total_bytes < 0 || readings.card_used_bytes < 0) {
    vl_finding_add(
        findings, "card", FINDING_MISSING,
        "libnvidia-ml.so.1 does not answer: memory of other processes, clocks and heat are not known",
        "in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility", NULL);
    return;
  }
  vl_format_bytes(readings.card_used_bytes, used, sizeof used);
  vl_format_bytes(readings.card_total_bytes, total, sizeof total);
  if (readings.clock_mhz >= 0) snprintf(clock, sizeof clock, ", %d MHz", readings.clock_mhz);
  if (readings.temperature_c >= 0) snprintf(heat, sizeof heat, ", %d degrees", readings.temperature_c);
  snprintf(text, sizeof text, "%s of %s in use%s%s%s%s", used, total, clock, heat,
           readings.throttled == 1 ? ", slowed down by power or heat" : "",
           readings.mig == 1 ? ", cut into instances (MIG)" : "");
  vl_finding_add(findings, "card", readings.throttled == 1 ? FINDING_ATTENTION : FINDING_OK, text, NULL,
                 json_pack("{so so}", "used_bytes", bytes_or_null(readings.card_used_bytes), "total_bytes",
                           bytes_or_null(readings.card_total_bytes)));
}

static void look_at_cuda_device(json_t *findings, const GpuFacts *gpu) {
  Device *device;
  DeviceOptions options = {0};
  DeviceDescription description;
  Status status = vl_device_open("cuda", &options, &device);
  if (status.code != VL_OK) {
    vl_finding_add(findings, "device cuda", FINDING_MISSING, status.message,
                   gpu->count > 0
                       ? "scripts/build cuda, with CUDA 13 and cuDNN 9"
                       : "a machine with an NVIDIA card, and scripts/build cuda there (docs/gpu.md)",
                   NULL);
    return;
  }
  device->interface->describe(device, &description);
  vl_finding_add(findings, "device cuda", FINDING_OK, description.library, NULL,
                 json_pack("{ss}", "library", description.library));
  look_at_card(findings, device);
  vl_device_close(&device);
}

/* ---- Each card ------------------------------------------------------------------------------------------------------- */

/* ", persistence on" where the card tells. */
static void add_mode(const char *name, int32_t mode, char *text, size_t size) {
  size_t used = strlen(text);
  if (mode >= 0) snprintf(text + used, size - used, ", %s %s", name, mode ? "on" : "off");
}

static void describe_card(json_t *findings, const Cards *cards, int32_t i, const char *name) {
  const Card *card = &cards->cards[i];
  char text[512], memory[32] = "memory unknown";
  if (card->memory_bytes >= 0) vl_format_bytes(card->memory_bytes, memory, sizeof memory);
  snprintf(text, sizeof text, "%s, %s, %s", *card->name ? card->name : "no name", memory, card->uuid);
  add_mode("MIG", card->mig, text, sizeof text);
  add_mode("ECC", card->ecc, text, sizeof text);
  add_mode("persistence", card->persistence, text, sizeof text);
  size_t used = strlen(text);
  if (card->power_limit_mw >= 0)
    snprintf(text + used, sizeof text - used, ", at most %lld W", (long long)(card->power_limit_mw / 1000));
  bool slow_start = card->persistence == 0;
  vl_finding_add(
      findings, name, slow_start ? FINDING_ATTENTION : FINDING_OK, text,
      slow_start ? "every first use waits for the driver to start the card; as root: nvidia-smi -pm 1" : NULL,
      json_pack("{ss ss so so so so so}", "uuid", card->uuid, "name", card->name, "memory_bytes",
                bytes_or_null(card->memory_bytes), "mig", flag_or_null(card->mig), "ecc",
                flag_or_null(card->ecc), "persistence", flag_or_null(card->persistence), "power_limit_mw",
                bytes_or_null(card->power_limit_mw)));
}

static void look_at_cards(json_t *findings) {
  Cards *cards = vl_allocate(sizeof *cards);
  int32_t card = -1, instance = 0;
  Status status = vl_cards_list(cards);
  if (status.code != VL_OK) vl_finding_add(findings, "cards", FINDING_MISSING, status.message, NULL, NULL);
  if (cards->library)
    vl_finding_add(
        findings, "NVML", FINDING_OK, *cards->library_version ? cards->library_version : "version unknown",
        NULL,
        json_pack("{ss ss}", "version", cards->library_version, "driver_version", cards->driver_version));
  for (int32_t i = 0; i < cards->count; i++) {
    char name[32];
    bool is_card = cards->cards[i].parent < 0;
    card += is_card;
    instance = is_card ? 0 : instance + 1;
    if (is_card)
      snprintf(name, sizeof name, "card %d", card);
    else
      snprintf(name, sizeof name, "card %d/%d", card, instance - 1);
    if (cards->cards[i].visible) describe_card(findings, cards, i, name);
  }
  free(cards);
}

/* ---- Libraries ---------------------------------------------------------------------------------------------------------- */

/* Each tells its version without a card. */
typedef struct CudaLibrary {
  const char *name, *file, *symbol;
  FindingState without;
  const char *serves, *remedy;
} CudaLibrary;

/* As each library counts: cuDNN and cuBLAS major * 10000 + minor * 100 + patch, NCCL too (its own before 2.9
 * are not read). */
static void look_at_library(json_t *findings, const CudaLibrary *library) {
  char text[64];
  long version = 0;
  void *handle = dlopen(library->file, RTLD_LAZY | RTLD_LOCAL);
  void *symbol = handle ? dlsym(handle, library->symbol) : NULL;
  if (!symbol) {
    snprintf(text, sizeof text, "no %s: %s", library->file, library->serves);
    vl_finding_add(findings, library->name, library->without, text, library->remedy, NULL);
    if (handle) dlclose(handle);
    return;
  }
  if (strcmp(library->symbol, "ncclGetVersion") == 0) {
    int (*ask)(int *), told = 0;
    memcpy(&ask, &symbol, sizeof ask);
    if (ask(&told) == 0) version = told;
  } else {
    size_t (*ask)(void);
    memcpy(&ask, &symbol, sizeof ask);
    version = (long)ask();
  }
  snprintf(text, sizeof text, "%ld.%ld.%ld", version / 10000, version / 100 % 100, version % 100);
  vl_finding_add(findings, library->name, FINDING_OK, text, NULL, json_pack("{ss}", "version", text));
  dlclose(handle);
}

void vl_doctor_gpu(json_t *findings) {
  GpuFacts gpu;
  vl_machine_gpu(&gpu);
  FindingState without = gpu.count > 0 ? FINDING_MISSING : FINDING_ABSENT;
  const CudaLibrary libraries[] = {
      {"cuDNN", "libcudnn.so.9", "cudnnGetVersion", without, "device cuda needs it",
       "apt-get install cudnn9-cuda-13"},
      {"cuBLAS", "libcublasLt.so.13", "cublasLtGetVersion", without, "device cuda needs it",
       "apt-get install libcublas-13-0"},
      {"NCCL", "libnccl.so.2", "ncclGetVersion", FINDING_ABSENT, "nothing here uses it yet",
       "apt-get install libnccl2"},
  };
  look_at_driver(findings, &gpu);
  look_at_cards(findings);
  for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++)
    look_at_library(findings, &libraries[i]);
  look_at_cuda_device(findings, &gpu);
}

/* ---- Resources ----------------------------------------------------------------------------------------------------------- */

/* CTest's ids have lower-case letters, digits and "_" only; devices/visible.c reads them back. */
static void add_resource(json_t *list, const char *uuid) {
  char id[96];
  size_t i = 0;
  for (; uuid[i] && i + 1 < sizeof id; i++)
    id[i] = (char)(isalnum((unsigned char)uuid[i]) ? tolower((unsigned char)uuid[i]) : '_');
  id[i] = '\0';
  json_array_append_new(list, json_pack("{ss si}", "id", id, "slots", 1));
}

json_t *vl_doctor_resources(void) {
  json_t *list = json_array();
  Cards *cards = vl_allocate(sizeof *cards);
  Status status = vl_cards_list(cards);
  if (status.code != VL_OK) fprintf(stderr, "vramlab: %s\n", status.message);
  for (int32_t i = 0; i < cards->count; i++)
    if (cards->cards[i].visible && vl_card_computes(cards, i)) add_resource(list, cards->cards[i].uuid);
  if (status.code == VL_OK && !cards->library) { /* the driver's numbers are what is left */
    GpuFacts gpu;
    vl_machine_gpu(&gpu);
    for (int32_t i = 0; i < gpu.count; i++) {
      char id[16];
      snprintf(id, sizeof id, "%d", i);
      add_resource(list, id);
    }
  }
  free(cards);
  return json_pack("{s{si si} s[{so}]}", "version", "major", 1, "minor", 0, "local", "gpus", list);
}
