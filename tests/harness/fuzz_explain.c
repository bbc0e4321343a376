/* libFuzzer: any bytes are read as a log; every figure found is sound, and every message can be explained,
 * printed and written as JSON. */
#include "harness/explain.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  OomMessage *messages = vl_allocate(VL_OOM_MAX_MESSAGES * sizeof *messages);
  const OomJob job = {0};
  int32_t count = vl_oom_messages((const char *)data, size, messages);
  if (count < 0 || count > VL_OOM_MAX_MESSAGES) abort();
  for (int32_t i = 0; i < count; i++) {
    OomExplanation it;
    vl_oom_explain(&messages[i], &it);
    if (it.verdict == OOM_FRAGMENTATION && it.from_model_bytes != 0) abort();
    if (messages[i].line < 1 || messages[i].times < 1) abort();
    json_t *json = vl_oom_json(&messages[i], &job);
    char *dump = json_dumps(json, 0);
    if (dump == NULL) abort();
    free(dump);
    json_decref(json);
    char *text;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (out == NULL) abort();
    vl_oom_print(&messages[i], &job, count, out);
    fclose(out);
    free(text);
  }
  free(messages);
  return 0;
}
