/* NVML by its versioned names, as its API Reference Manual has them. */
#include "harness/cards.h"
#include "devices/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct nvmlDevice_st *NvmlDevice;
typedef int NvmlReturn; /* 0: success */

typedef struct NvmlMemory {
  unsigned long long total, free, used;
} NvmlMemory;

typedef struct Nvml {
  void *library;
  NvmlReturn (*init)(void);
  NvmlReturn (*shut_down)(void);
  NvmlReturn (*driver_version)(char *, unsigned);
  NvmlReturn (*library_version)(char *, unsigned);
  NvmlReturn (*count)(unsigned *);
  NvmlReturn (*handle)(unsigned, NvmlDevice *);
  NvmlReturn (*uuid)(NvmlDevice, char *, unsigned);
  NvmlReturn (*name)(NvmlDevice, char *, unsigned);
  NvmlReturn (*memory)(NvmlDevice, NvmlMemory *);
  NvmlReturn (*persistence)(NvmlDevice, unsigned *);
  NvmlReturn (*ecc)(NvmlDevice, unsigned *, unsigned *);
  NvmlReturn (*power_limit)(NvmlDevice, unsigned *);
  NvmlReturn (*mig_mode)(NvmlDevice, unsigned *, unsigned *);
  NvmlReturn (*mig_most)(NvmlDevice, unsigned *);
  NvmlReturn (*mig_handle)(NvmlDevice, unsigned, NvmlDevice *);
} Nvml;

static bool load(Nvml *nvml) {
  memset(nvml, 0, sizeof *nvml);
  nvml->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!nvml->library) return false;
  const struct {
    const char *name;
    void *function;
  } symbols[] = {
      {"nvmlInit_v2", &nvml->init},
      {"nvmlShutdown", &nvml->shut_down},
      {"nvmlSystemGetDriverVersion", &nvml->driver_version},
      {"nvmlSystemGetNVMLVersion", &nvml->library_version},
      {"nvmlDeviceGetCount_v2", &nvml->count},
      {"nvmlDeviceGetHandleByIndex_v2", &nvml->handle},
      {"nvmlDeviceGetUUID", &nvml->uuid},
      {"nvmlDeviceGetName", &nvml->name},
      {"nvmlDeviceGetMemoryInfo", &nvml->memory},
      {"nvmlDeviceGetPersistenceMode", &nvml->persistence},
      {"nvmlDeviceGetEccMode", &nvml->ecc},
      {"nvmlDeviceGetPowerManagementLimit", &nvml->power_limit},
      {"nvmlDeviceGetMigMode", &nvml->mig_mode},
      {"nvmlDeviceGetMaxMigDeviceCount", &nvml->mig_most},
      {"nvmlDeviceGetMigDeviceHandleByIndex", &nvml->mig_handle},
  };
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    void *symbol = dlsym(nvml->library, symbols[i].name);
    memcpy(symbols[i].function, &symbol, sizeof symbol); /* ISO C knows no cast from object to function */
  }
  bool ready = nvml->init && nvml->shut_down && nvml->count && nvml->handle && nvml->uuid;
  if (ready && nvml->init() == 0) return true;
  dlclose(nvml->library);
  return false;
}

/* One card or instance; -1 where the library has no answer. NULL when the list is full. */
static Card *add(const Nvml *nvml, NvmlDevice device, int32_t parent, Cards *cards) {
  if (cards->count == VL_MAX_CARDS) return NULL;
  Card *card = &cards->cards[cards->count];
  NvmlMemory memory;
  unsigned value, pending;
  *card = (Card){
      .memory_bytes = -1, .parent = parent, .mig = -1, .persistence = -1, .ecc = -1, .power_limit_mw = -1};
  if (nvml->uuid(device, card->uuid, (unsigned)sizeof card->uuid) != 0) return NULL;
  if (nvml->name && nvml->name(device, card->name, (unsigned)sizeof card->name) != 0) card->name[0] = '\0';
  if (nvml->memory && nvml->memory(device, &memory) == 0) card->memory_bytes = (int64_t)memory.total;
  cards->count++;
  if (parent >= 0) return card;
  if (nvml->persistence && nvml->persistence(device, &value) == 0) card->persistence = value != 0;
  if (nvml->ecc && nvml->ecc(device, &value, &pending) == 0) card->ecc = value != 0;
  if (nvml->power_limit && nvml->power_limit(device, &value) == 0) card->power_limit_mw = (int64_t)value;
  if (nvml->mig_mode && nvml->mig_mode(device, &value, &pending) == 0) card->mig = value != 0;
  return card;
}

static void add_instances(const Nvml *nvml, NvmlDevice device, int32_t parent, Cards *cards) {
  unsigned most = 0;
  NvmlDevice instance;
  if (!nvml->mig_most || !nvml->mig_handle || nvml->mig_most(device, &most) != 0) return;
  for (unsigned i = 0; i < most; i++) /* places may be empty */
    if (nvml->mig_handle(device, i, &instance) == 0) (void)add(nvml, instance, parent, cards);
}

/* ---- What CUDA_VISIBLE_DEVICES leaves -------------------------------------------------------------------------- */

/* The card behind each number that it names, as the driver counts them: the driver lists the named ones, in
 * their order. False: it does not say. */
static bool driver_uuid(int32_t position, char uuid[33]) {
  int (*init)(unsigned), (*get)(int *, int), (*ask)(unsigned char[16], int);
  unsigned char bytes[16];
  int device;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return false;
  *(void **)&init = dlsym(library, "cuInit");
  *(void **)&get = dlsym(library, "cuDeviceGet");
  *(void **)&ask = dlsym(library, "cuDeviceGetUuid_v2");
  bool told = init && get && ask && init(0) == 0 && get(&device, position) == 0 && ask(bytes, device) == 0;
  for (int i = 0; told && i < 16; i++)
    snprintf(uuid + (size_t)i * 2, 3, "%02x", bytes[i]);
  dlclose(library);
  return told;
}

/* Whether a UUID, "GPU-" and dashes aside, has these 32 digits. */
static bool has_digits(const char *uuid, const char *digits) {
  const char *at = strchr(uuid, '-');
  for (; at && *at; at++) {
    if (*at == '-') continue;
    if (strncasecmp(at, digits++, 1) != 0) return false;
  }
  return at && *digits == '\0';
}

static bool is_named(const Cards *cards, int32_t i, const VisibleDevices *visible) {
  const Card *card = &cards->cards[i];
  for (int32_t v = 0; v < visible->count; v++) {
    const char *name = visible->names[v];
    char digits[33], *end;
    if (strncmp(name, "GPU-", 4) == 0 || strncmp(name, "MIG-", 4) == 0) {
      if (strncasecmp(card->uuid, name, strlen(name)) == 0) return true;
      continue;
    }
    long number = strtol(name, &end, 10);
    if (driver_uuid(v, digits)) {
      if (has_digits(card->uuid, digits)) return true;
      continue;
    }
    int32_t at = 0; /* without a driver that tells: in the library's order */
    for (int32_t before = 0; before < i; before++)
      at += cards->cards[before].parent < 0;
    if (card->parent < 0 && at == number) return true;
  }
  return false;
}

/* A card shows its instances; an instance that is named shows itself and its card. */
static void mark_visible(Cards *cards, const VisibleDevices *visible) {
  for (int32_t i = 0; i < cards->count; i++) {
    Card *card = &cards->cards[i];
    Card *parent = card->parent >= 0 ? &cards->cards[card->parent] : NULL;
    bool all_of_parent = parent && (visible->all || is_named(cards, card->parent, visible));
    card->visible = visible->all || all_of_parent || is_named(cards, i, visible);
    if (parent && card->visible) parent->visible = true;
  }
}

Status vl_cards_list(Cards *cards) {
  Nvml nvml;
  VisibleDevices visible;
  unsigned count = 0;
  memset(cards, 0, sizeof *cards);
  VL_TRY(vl_visible_devices(getenv("CUDA_VISIBLE_DEVICES"), &visible));
  if (!load(&nvml)) return vl_ok();
  cards->library = true;
  if (nvml.driver_version)
    (void)nvml.driver_version(cards->driver_version, (unsigned)sizeof cards->driver_version);
  if (nvml.library_version)
    (void)nvml.library_version(cards->library_version, (unsigned)sizeof cards->library_version);
  if (nvml.count(&count) != 0) count = 0;
  for (unsigned i = 0; i < count; i++) {
    NvmlDevice device;
    if (nvml.handle(i, &device) != 0) continue; /* not ours to see */
    const Card *card = add(&nvml, device, -1, cards);
    if (card && card->mig == 1) add_instances(&nvml, device, cards->count - 1, cards);
  }
  (void)nvml.shut_down();
  dlclose(nvml.library);
  mark_visible(cards, &visible);
  return vl_ok();
}

bool vl_card_computes(const Cards *cards, int32_t i) {
  return cards->cards[i].parent >= 0 || cards->cards[i].mig != 1;
}
