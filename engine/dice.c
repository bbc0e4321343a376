/* Dice of predicted classes. */
#include "engine/volumes.h"
#include <math.h>

void engine_dice_add(DiceSums *sums, int32_t classes, const int32_t *predicted, const int32_t *labels,
                     int64_t voxels) {
  int64_t both[VL_MAX_CLASSES] = {0}, either[VL_MAX_CLASSES] = {0};
  for (int64_t i = 0; i < voxels; i++) {
    if (labels[i] == VL_IGNORED_LABEL) continue;
    either[labels[i]]++;
    either[predicted[i]]++;
    both[labels[i]] += labels[i] == predicted[i];
  }
  for (int32_t c = 0; c < classes; c++) {
    if (either[c] == 0) continue;
    sums->sum[c] += 2.0 * (double)both[c] / (double)either[c];
    sums->volumes[c]++;
  }
}

double engine_dice_of_class(const DiceSums *sums, int32_t class_number) {
  int64_t volumes = sums->volumes[class_number];
  return volumes > 0 ? sums->sum[class_number] / (double)volumes : NAN;
}

double engine_dice_mean(const DiceSums *sums, int32_t classes) {
  double sum = 0.0;
  int32_t counted = 0;
  for (int32_t c = 1; c < classes; c++) {
    if (sums->volumes[c] == 0) continue;
    sum += engine_dice_of_class(sums, c);
    counted++;
  }
  return counted > 0 ? sum / counted : NAN;
}
