/* Terminals, log collectors and mail break lines where they like, so a text is matched without its white
 * space and in lower case. A message is read clause by clause and ends at the first thing that is no clause
 * of it: what follows a message that was cut off is never taken for a part of it. */
#include "harness/oom_message.h"
#include "harness/oom_text.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *vl_oom_wording_name(OomWording wording) {
  static const char *const names[OOM_WORDING_COUNT] = {"PyTorch 1.0 to 1.3",
                                                       "PyTorch 1.4 to 2.0",
                                                       "PyTorch 2.1 or later",
                                                       "PyTorch",
                                                       "PyTorch on cudaMallocAsync",
                                                       "PyTorch on MPS",
                                                       "PyTorch's CPU allocator",
                                                       "an error code of the driver",
                                                       "a status of cuDNN, cuBLAS or their like",
                                                       "JAX",
                                                       "XLA on a TPU",
                                                       "TensorFlow"};
  return names[wording];
}

const char *vl_oom_looked_for(void) {
  return "\"CUDA out of memory\" (HIP, XPU), \"MPS backend out of memory\", \"DefaultCPUAllocator: can't "
         "allocate memory\", \"CUDA error: out of memory\", \"Allocation on device 0 would exceed allowed "
         "memory\", \"Cuda failure 'out of memory'\", CUDA_ERROR_OUT_OF_MEMORY, CUDNN_STATUS_ALLOC_FAILED "
         "and "
         "its like, \"RESOURCE_EXHAUSTED: Out of memory\", \"OOM when allocating tensor\"";
}

static const OomFigure absent = {.bytes = -1};

/* ---- Clauses ------------------------------------------------------------------------------------------------------- */

typedef struct Clause {
  const char *before, *after; /* around the figure */
  size_t field;
  OomWording wording; /* that has it; OOM_PYTORCH_CUT: several have */
  const char *name;
} Clause;

#define FIELD(member) offsetof(OomMessage, member)
static const Clause clauses[] = {
    {"triedtoallocate", "", FIELD(tried), OOM_PYTORCH_CUT, "what was tried"},
    {"", "totalcapacity", FIELD(total), OOM_PYTORCH_CUT, "total capacity"},
    {"", "alreadyallocated", FIELD(allocated), OOM_PYTORCH_CUT, "already allocated"},
    {"", "free", FIELD(free), OOM_PYTORCH_CUT, "free"},
    {"", "allowed", FIELD(allowed), OOM_PYTORCH_CUT, "allowed"},
    {"", "cached", FIELD(unallocated), OOM_PYTORCH_CACHED, "cached"},
    {"", "reservedintotalbypytorch", FIELD(reserved), OOM_PYTORCH_RESERVED, "reserved"},
    {"hasatotalcapacityof", "", FIELD(total), OOM_PYTORCH_SENTENCES, "total capacity"},
    {"hasatotalcapactyof", "", FIELD(total), OOM_PYTORCH_SENTENCES, "total capacity"}, /* sic, 2.1 and 2.2 */
    {"ofwhich", "isfree", FIELD(free), OOM_PYTORCH_SENTENCES, "free"},
    {"includingnon-pytorchmemory,thisprocesshas", "memoryinuse", FIELD(this_process), OOM_PYTORCH_SENTENCES,
     "this process"},
    {"oftheallocatedmemory", "isallocatedbypytorch", FIELD(allocated), OOM_PYTORCH_SENTENCES,
     "allocated by PyTorch"},
    {"with", "allocatedinprivatepools", FIELD(private_pools), OOM_PYTORCH_SENTENCES, "private pools"},
    {"and", "isreservedbypytorchbutunallocated", FIELD(unallocated), OOM_PYTORCH_SENTENCES,
     "reserved but unallocated"},
    {"currentlyallocated:", "", FIELD(allocated), OOM_PYTORCH_ASYNC, "currently allocated"},
    {"requested:", "", FIELD(tried), OOM_PYTORCH_ASYNC, "requested"},
    {"devicelimit:", "", FIELD(total), OOM_PYTORCH_ASYNC, "device limit"},
    {"free(accordingtocuda):", "", FIELD(free), OOM_PYTORCH_ASYNC, "free"},
    {"pytorchlimit(setbyuser-suppliedmemoryfraction):", "", FIELD(allowed), OOM_PYTORCH_ASYNC, "limit"},
    {"mpsallocated:", "", FIELD(allocated), OOM_MPS, "MPS allocated"},
    {"otherallocations:", "", FIELD(other_allocations), OOM_MPS, "other allocations"},
    {"maxallowed:", "", FIELD(allowed), OOM_MPS, "max allowed"},
};

static bool has(OomFigure figure) { return figure.bytes >= 0; }

/* What may stand between clauses. */
static const char *skip_between(const char *text, OomMessage *message) {
  static const char *const words[] = {"(e.g.,cudagraphs)", "(e.g.,hipgraphs)", "onprivatepool",
                                      "onsharedpool"};
  for (;;) {
    const char *before = text;
    while (*text && strchr(".;,()", *text))
      text++;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
      if (vl_starts(before, words[i])) text = before + strlen(words[i]);
    if (vl_starts(text, "gpu") && isdigit((unsigned char)text[3])) {
      char *end;
      long device = strtol(text + 3, &end, 10);
      /* "GPU 0; 10.76 GiB" and "GPU 0 has"; anything else is no number of a device. */
      if (device <= 9999 && (*end == ';' || vl_starts(end, "has"))) {
        message->device = (int32_t)device;
        text = end;
      }
    }
    if (text == before) return text;
  }
}

/* "Process 1234 has 14.52 GiB memory in use". */
static const char *read_process(const char *text, OomMessage *message) {
  OomFigure in_use = absent;
  char *end;
  if (!vl_starts(text, "process") || !isdigit((unsigned char)text[7])) return NULL;
  long long pid = strtoll(text + 7, &end, 10);
  if (!vl_starts(end, "has")) return NULL;
  const char *rest = vl_read_figure(end + 3, &in_use);
  if (!rest || !vl_starts(rest, "memoryinuse")) return NULL;
  if (message->process_count < VL_OOM_MAX_PROCESSES) {
    OomProcess *process = &message->processes[message->process_count++];
    process->pid = pid;
    process->in_use = in_use;
  }
  return rest + strlen("memoryinuse");
}

static const char *read_clause(const char *text, OomMessage *message) {
  for (size_t i = 0; i < sizeof clauses / sizeof clauses[0]; i++) {
    const Clause *clause = &clauses[i];
    OomFigure figure = absent, *field = (OomFigure *)(void *)((char *)message + clause->field);
    if (has(*field) || !vl_starts(text, clause->before)) continue;
    const char *end = vl_read_figure(text + strlen(clause->before), &figure);
    if (!end || !vl_starts(end, clause->after)) continue;
    *field = figure;
    if (clause->wording != OOM_PYTORCH_CUT) message->wording = clause->wording;
    snprintf(message->cut_after, sizeof message->cut_after, "%s", clause->name);
    return end + strlen(clause->after);
  }
  return NULL;
}

/* Reads clauses as long as there are any; returns where they end. */
static const char *read_clauses(const char *text, OomMessage *message) {
  for (;;) {
    text = skip_between(text, message);
    const char *end = read_clause(text, message);
    if (!end) end = read_process(text, message);
    if (!end) return text;
    text = end;
  }
}

/* ---- The kinds of message ------------------------------------------------------------------------------------------ */

/* The variable that the hint after PyTorch's messages names. */
static void find_setting(const char *text, OomMessage *message) {
  static const char *const variables[] = {"pytorch_cuda_alloc_conf", "pytorch_hip_alloc_conf",
                                          "pytorch_alloc_conf"};
  char hint[300]; /* as long as the longest */
  snprintf(hint, sizeof hint, "%.299s", text);
  char *next = strstr(hint, "outofmemory");
  if (next) *next = '\0';
  for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
    if (!strstr(hint, variables[i])) continue;
    for (size_t k = 0; k <= strlen(variables[i]); k++)
      message->setting[k] = (char)toupper((unsigned char)variables[i][k]);
    return;
  }
}

/* Each reader gets what follows an opener; NULL: no failure after all. */
static const char *read_pytorch(const char *text, OomMessage *message) {
  static const char too_much[] = "morethan1ebmemory", tried[] = "triedtoallocate";
  snprintf(message->cut_after, sizeof message->cut_after, "its beginning");
  const char *end = skip_between(text, message);
  if (!vl_starts(end, tried)) return text;
  message->impossible = vl_starts(end + strlen(tried), too_much);
  end = message->impossible ? end + strlen(tried) + strlen(too_much) : read_clauses(end, message);
  if (has(message->reserved) || has(message->unallocated) || message->impossible)
    message->cut_after[0] = '\0';
  find_setting(end, message);
  return end;
}

/* What follows "Allocation on device". Without a limit the last clause tells one of 2^64 bytes, which is no
 * figure. */
static const char *read_async(const char *text, OomMessage *message) {
  static const char exceeds[] = "wouldexceedallowedmemory.(outofmemory)";
  char *after = NULL;
  long device = isdigit((unsigned char)*text) ? strtol(text, &after, 10) : -1;
  const char *end = after ? after : text;
  snprintf(message->cut_after, sizeof message->cut_after, "its beginning");
  if (device < 0 || device > 9999 || !vl_starts(end, exceeds)) return text;
  message->device = (int32_t)device;
  const char *last = read_clauses(end + strlen(exceeds), message);
  if (has(message->free)) message->cut_after[0] = '\0';
  return last;
}

/* The same words are talk where no exception stands before them. */
static const char *read_async_alone(const char *text, OomMessage *message) {
  const char *end = read_async(text, message);
  return message->device < 0 ? NULL : end;
}

static const char *read_mps(const char *text, OomMessage *message) {
  snprintf(message->cut_after, sizeof message->cut_after, "its beginning");
  const char *end = read_clauses(text, message);
  message->wording = OOM_MPS;
  if (has(message->tried) && has(message->allowed)) message->cut_after[0] = '\0';
  return end;
}

/* "...: can't allocate memory: you tried to allocate 1024 bytes." */
static const char *read_cpu(const char *text, OomMessage *message) {
  const char *found = vl_find_near(text, "triedtoallocate", 80);
  if (!found) return NULL;
  const char *end = vl_read_figure(found + strlen("triedtoallocate"), &message->tried);
  return end ? end : found;
}

static const char *read_nothing(const char *text, OomMessage *message) {
  (void)message;
  return text;
}

/* "THCudaCheck FAIL file=... line=58 error=2 : out of memory" */
static const char *read_check(const char *text, OomMessage *message) {
  static const char code[] = "error=2:outofmemory";
  (void)message;
  const char *found = vl_find_near(text, code, 300);
  return found ? found + strlen(code) : NULL;
}

/* "1024 bytes", or "2.50GiB (2684354560B)" and "17.79G (19104890880 bytes)": the exact number where there is
 * one. */
static const char *read_allocation(const char *text, OomMessage *message) {
  double value;
  int decimals;
  const char *end = vl_read_number(text, &value, &decimals);
  if (!end) return text;
  const char *open = end;
  while (isalpha((unsigned char)*open))
    open++;
  if (*open == '(' && isdigit((unsigned char)open[1])) {
    const char *close = vl_read_number(open + 1, &value, &decimals);
    if (decimals == 0 && *close == 'b' && value < 0x1p60) {
      message->tried.bytes = llrint(value);
      message->tried.half_digit_bytes = 0;
      return close + (vl_starts(close, "bytes)") ? strlen("bytes)") : strlen("b)"));
    }
  }
  end = vl_read_figure(text, &message->tried);
  return end ? end : text;
}

/* NCCL tells on its next line how much it was. */
static const char *read_nccl(const char *text, OomMessage *message) {
  static const char asked[] = "failedtocudacalloc", async[] = "async";
  const char *found = vl_find_near(text, asked, 160);
  if (!found) return text;
  found += strlen(asked);
  return read_allocation(found + (vl_starts(found, async) ? strlen(async) : 0), message);
}

/* "9.08G", XLA's own way to write binary units. */
static const char *read_letter(const char *text, OomFigure *figure) {
  static const char letters[] = "bkmgt";
  double value;
  int decimals;
  const char *end = vl_read_number(text, &value, &decimals);
  const char *letter = end && *end ? strchr(letters, *end) : NULL;
  double unit = letter ? ldexp(1, 10 * (int)(letter - letters)) : 0;
  if (!letter || !(value * unit < 0x1p60)) return NULL;
  figure->bytes = llrint(value * unit);
  figure->half_digit_bytes = unit > 1 ? (int64_t)ceil(unit * pow(10, -decimals) / 2) : 0;
  return end + 1;
}

/* "Used 9.08G of 7.48G hbm": a program against memory that is all its own, placed without gaps. */
static const char *read_tpu(const char *text, OomMessage *message) {
  OomFigure used = absent, memory = absent;
  const char *of = read_letter(text, &used);
  const char *end = of && vl_starts(of, "of") ? read_letter(of + strlen("of"), &memory) : NULL;
  if (!end || !vl_starts(end, "hbm")) return text;
  message->tried = used;
  message->total = message->free = memory;
  message->unallocated.bytes = 0;
  return end + strlen("hbm");
}

/* TensorFlow tells with the same words what it could do without. */
static const char *read_bfc(const char *text, OomMessage *message) {
  const char *end = read_allocation(text, message);
  return vl_find_near(end, "notafailure", 100) ? NULL : end;
}

static const char *read_failed(const char *text, OomMessage *message) {
  const char *end = read_allocation(text, message);
  bool of_device = vl_starts(end, "fromdevice:") || vl_starts(end, "ondeviceordinal");
  static const char ordinal[] = "ondeviceordinal", code[] = "fromdevice:cuda_error_out_of_memory";
  if (vl_starts(end, ordinal) && isdigit((unsigned char)end[strlen(ordinal)]))
    message->device = (int32_t)(strtol(end + strlen(ordinal), NULL, 10) % 10000);
  if (vl_starts(end, code)) end += strlen(code);
  return of_device ? end : NULL;
}

/* "[128,3,8] and type float": elements times their size, where both are told. */
static const char *read_shape(const char *text, OomMessage *message) {
  static const struct {
    const char *name;
    int bytes;
  } types[] = {{"float", 4}, {"half", 2}, {"bfloat16", 2}, {"double", 8}, {"int32", 4},    {"int64", 8},
               {"int16", 2}, {"int8", 1}, {"uint8", 1},    {"bool", 1},   {"complex64", 8}};
  double elements = 1;
  const char *end = text;
  if (*end++ != '[') return text;
  while (isdigit((unsigned char)*end)) {
    char *after;
    elements *= strtod(end, &after);
    end = *after == ',' ? after + 1 : after;
  }
  static const char type[] = "]andtype";
  if (!vl_starts(end, type)) return end;
  end += strlen(type);
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
    const char *after = end + strlen(types[i].name);
    if (!vl_starts(end, types[i].name) || !vl_starts(after, "on/") || !(elements * types[i].bytes < 0x1p53))
      continue;
    message->tried.bytes = llrint(elements * types[i].bytes);
    message->tried.half_digit_bytes = 0;
    end = after;
    const char *device = vl_find_near(end, "device:gpu:", 80);
    if (device) message->device = (int32_t)(strtol(device + strlen("device:gpu:"), NULL, 10) % 10000);
    return end;
  }
  return end;
}

typedef struct Opener {
  const char *text;
  OomWording wording;
  const char *backend;
  const char *(*read)(const char *text, OomMessage *message);
} Opener;

static const Opener openers[] = {
    {"cudaoutofmemory", OOM_PYTORCH_CUT, "cuda", read_pytorch},
    {"hipoutofmemory", OOM_PYTORCH_CUT, "hip", read_pytorch},
    {"xpuoutofmemory", OOM_PYTORCH_CUT, "xpu", read_pytorch},
    {"outofmemoryerror:allocationondevice", OOM_PYTORCH_ASYNC, "cuda", read_async},
    {"allocationondevice", OOM_PYTORCH_ASYNC, "cuda", read_async_alone},
    {"mpsbackendoutofmemory", OOM_MPS, "mps", read_mps},
    {"defaultcpuallocator", OOM_CPU, "cpu", read_cpu},
    {"cudaerror:outofmemory", OOM_CUDA_ERROR, "cuda", read_nothing},
    {"hiperror:outofmemory", OOM_CUDA_ERROR, "hip", read_nothing},
    {"cudadrivererror:outofmemory", OOM_CUDA_ERROR, "cuda", read_nothing},
    {"hipdrivererror:outofmemory", OOM_CUDA_ERROR, "hip", read_nothing},
    {"failedwitherror2outofmemory", OOM_CUDA_ERROR, "cuda", read_nothing},
    {"thcudacheckfail", OOM_CUDA_ERROR, "cuda", read_check},
    {"cudaruntimeerror(2):outofmemory", OOM_CUDA_ERROR, "cuda", read_nothing},
    {"cudamallocfailed:outofmemory", OOM_CUDA_ERROR, "cuda", read_nothing},
    {"cuda_error_out_of_memory", OOM_CUDA_ERROR, "cuda", read_nothing},
    {"cudaerrormemoryallocation", OOM_CUDA_ERROR, "cuda", read_nothing},
    {"hiperroroutofmemory", OOM_CUDA_ERROR, "hip", read_nothing},
    {"failedtoallocaterequestfor", OOM_JAX, "", read_failed},
    {"failedtoallocate", OOM_CUDA_ERROR, "cuda", read_failed},
    {"cudnn_status_alloc_failed", OOM_LIBRARY, "cuda", read_nothing},
    {"cudnn_status_internal_error_device_allocation_failed", OOM_LIBRARY, "cuda", read_nothing},
    {"cublas_status_alloc_failed", OOM_LIBRARY, "cuda", read_nothing},
    {"cusolver_status_alloc_failed", OOM_LIBRARY, "cuda", read_nothing},
    {"cusparse_status_alloc_failed", OOM_LIBRARY, "cuda", read_nothing},
    {"cufft_alloc_failed", OOM_LIBRARY, "cuda", read_nothing},
    {"miopenstatusallocfailed", OOM_LIBRARY, "hip", read_nothing},
    {"hipblas_status_alloc_failed", OOM_LIBRARY, "hip", read_nothing},
    {"cudafailure'outofmemory'", OOM_LIBRARY, "cuda", read_nccl},
    {"cudafailure2'outofmemory'", OOM_LIBRARY, "cuda", read_nccl},
    {"failedtocudacallocasync", OOM_LIBRARY, "cuda", read_allocation},
    {"failedtocudacalloc", OOM_LIBRARY, "cuda", read_allocation},
    {"ranoutofmemoryinmemoryspacehbm.used", OOM_TPU, "tpu", read_tpu},
    {"resource_exhausted:failedtoallocatememory", OOM_TENSORFLOW, "", read_nothing},
    {"resourceexhausted:failedtoallocatememory", OOM_TENSORFLOW, "", read_nothing},
    {"resource_exhausted:outofmemorywhiletryingtoallocate", OOM_JAX, "", read_allocation},
    {"resourceexhausted:outofmemorywhiletryingtoallocate", OOM_JAX, "", read_allocation},
    {"resource_exhausted:outofmemoryallocating", OOM_JAX, "", read_allocation},
    {"resourceexhausted:outofmemoryallocating", OOM_JAX, "", read_allocation},
    {"oomwhenallocatingtensorwithshape", OOM_TENSORFLOW, "", read_shape},
    {"ranoutofmemorytryingtoallocate", OOM_TENSORFLOW, "", read_bfc},
};

/* ---- All messages of a text ---------------------------------------------------------------------------------------- */

static void quote(const Squeezed *squeezed, size_t first, size_t last, OomMessage *message) {
  const char *text = squeezed->original;
  size_t to = 0, end = squeezed->at[last];
  for (size_t i = squeezed->at[first]; i < end && to + 2 < sizeof message->quote;) {
    unsigned char c = (unsigned char)text[i];
    size_t skip = vl_control_sequence(text, squeezed->original_size, i);
    i += skip > 0 ? skip : 1;
    if (skip > 0 || c >= 0x7f) continue;
    if (c > ' ')
      message->quote[to++] = (char)c;
    else if (to > 0 && message->quote[to - 1] != ' ')
      message->quote[to++] = ' ';
  }
  while (to > 0 && message->quote[to - 1] == ' ')
    to--;
  message->quote[to] = '\0';
}

/* A message at `from`; returns how many characters it takes, 0 for none. */
static size_t read_message(const Squeezed *squeezed, size_t from, OomMessage *message) {
  const char *text = squeezed->text + from;
  for (size_t i = 0; i < sizeof openers / sizeof openers[0]; i++) {
    const Opener *opener = &openers[i];
    if (*text != *opener->text || !vl_starts(text, opener->text)) continue;
    memset(message, 0, sizeof *message); /* with what lies between fields: messages are compared as bytes */
    message->wording = opener->wording;
    snprintf(message->backend, sizeof message->backend, "%s", opener->backend);
    message->device = -1;
    message->tried = message->total = message->free = message->this_process = message->allocated =
        message->unallocated = message->reserved = message->private_pools = message->allowed =
            message->other_allocations = absent;
    const char *end = opener->read(text + strlen(opener->text), message);
    if (!end) continue;
    quote(squeezed, from, from + (size_t)(end - text), message);
    return (size_t)(end - text);
  }
  return 0;
}

static bool same_figure(const OomFigure *a, const OomFigure *b) {
  return a->bytes == b->bytes && a->half_digit_bytes == b->half_digit_bytes;
}

/* Whether two say the same, wherever they stand. */
static bool same(const OomMessage *a, const OomMessage *b) {
  const OomFigure *of_a[] = {
      &a->tried,       &a->total,    &a->free,          &a->this_process, &a->allocated,
      &a->unallocated, &a->reserved, &a->private_pools, &a->allowed,      &a->other_allocations};
  const OomFigure *of_b[] = {
      &b->tried,       &b->total,    &b->free,          &b->this_process, &b->allocated,
      &b->unallocated, &b->reserved, &b->private_pools, &b->allowed,      &b->other_allocations};
  bool equal = a->wording == b->wording && strcmp(a->backend, b->backend) == 0 && a->device == b->device &&
               strcmp(a->cut_after, b->cut_after) == 0 && strcmp(a->setting, b->setting) == 0 &&
               a->impossible == b->impossible && a->process_count == b->process_count;
  for (size_t i = 0; i < sizeof of_a / sizeof *of_a; i++)
    equal = equal && same_figure(of_a[i], of_b[i]);
  for (int32_t i = 0; equal && i < a->process_count && i < VL_OOM_MAX_PROCESSES; i++)
    equal = a->processes[i].pid == b->processes[i].pid &&
            same_figure(&a->processes[i].in_use, &b->processes[i].in_use);
  return equal;
}

/* A message of PyTorch's without a figure is often only talk of one. */
static int32_t drop_talk(OomMessage *messages, int32_t count) {
  int32_t kept = 0;
  bool figures = false;
  for (int32_t i = 0; i < count; i++)
    figures = figures || has(messages[i].tried);
  for (int32_t i = 0; i < count; i++) {
    bool talk = messages[i].wording == OOM_PYTORCH_CUT && !has(messages[i].tried) && !messages[i].impossible;
    if (!(figures && talk)) messages[kept++] = messages[i];
  }
  return kept;
}

int32_t vl_oom_messages(const char *text, size_t size, OomMessage *messages) {
  Squeezed squeezed;
  int32_t count = 0;
  int64_t line = 1;
  size_t counted = 0;
  if (size > UINT32_MAX) size = UINT32_MAX;
  vl_squeeze(text, size, &squeezed);
  for (size_t from = 0; from < squeezed.length;) {
    OomMessage message;
    size_t length = read_message(&squeezed, from, &message);
    if (length == 0) {
      from++;
      continue;
    }
    for (; counted < squeezed.at[from]; counted++)
      line += text[counted] == '\n';
    message.line = line;
    message.times = 1;
    int32_t known = 0;
    while (known < count && !same(&messages[known], &message))
      known++;
    if (known < count)
      messages[known].times++;
    else if (count < VL_OOM_MAX_MESSAGES)
      memcpy(&messages[count++], &message, sizeof message);
    from += length;
  }
  free(squeezed.text);
  free(squeezed.at);
  return drop_talk(messages, count);
}
