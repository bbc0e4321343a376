/* The cards of this machine as NVIDIA's management library (NVML) lists them, with their instances (MIG). */
#ifndef VRAMLAB_HARNESS_CARDS_H
#define VRAMLAB_HARNESS_CARDS_H

#include "base/base.h"

enum { VL_MAX_CARDS = 128 };

typedef struct Card {
  char uuid[96]; /* "GPU-...", of an instance "MIG-..." */
  char name[96];
  int64_t memory_bytes; /* -1: not told, as the rest */
  int32_t parent;       /* index in the list of the card that an instance is cut from; -1: a card */
  int32_t mig;          /* of a card: whether it is cut into instances */
  int32_t persistence, ecc;
  int64_t power_limit_mw;
  bool visible; /* not hidden by CUDA_VISIBLE_DEVICES; of a card that is cut: one of its instances is not */
} Card;

typedef struct Cards {
  bool library; /* libnvidia-ml.so.1 is there and answers */
  char driver_version[64], library_version[64];
  int32_t count;
  Card cards[VL_MAX_CARDS]; /* a card, then its instances */
} Cards;

/* In the order of the library, which is that of nvidia-smi. VL_INVALID: CUDA_VISIBLE_DEVICES is malformed. */
Status vl_cards_list(Cards *cards) VL_CHECKED;
/* Whether work can be put there: no card that is cut into instances. */
bool vl_card_computes(const Cards *cards, int32_t i);

#endif
