/* oom_message: the out-of-memory messages of PyTorch, CUDA's libraries, JAX and TensorFlow, found in any text
 * and read number by number. What a message does not say stays absent; nothing is reckoned here. */
#ifndef VRAMLAB_HARNESS_OOM_MESSAGE_H
#define VRAMLAB_HARNESS_OOM_MESSAGE_H

#include "base/base.h"

enum { VL_OOM_MAX_PROCESSES = 32, VL_OOM_MAX_MESSAGES = 64, VL_OOM_QUOTE_BYTES = 240 };

/* A figure of a message. PyTorch prints two decimals of a binary unit (also where MPS calls it GB), so the
 * number that was printed lies within half a last digit: `half_digit_bytes`, 0 for whole bytes. */
typedef struct OomFigure {
  int64_t bytes; /* -1: not in the message */
  int64_t half_digit_bytes;
} OomFigure;

typedef enum OomWording {
  OOM_PYTORCH_CACHED = 0, /* "...; 26.39 MiB cached)": PyTorch 1.0 to 1.3 */
  OOM_PYTORCH_RESERVED,   /* "...; 9.70 GiB reserved in total by PyTorch)": 1.4 to 2.0 */
  OOM_PYTORCH_SENTENCES,  /* "GPU 0 has a total capacity of ...": 2.1 and later */
  OOM_PYTORCH_CUT,        /* PyTorch's, cut off before anything tells the version */
  OOM_PYTORCH_ASYNC,      /* PyTorch with CUDA's own pool: "Allocation on device 0 would exceed ..." */
  OOM_MPS,                /* PyTorch on Apple's GPUs */
  OOM_CPU,                /* PyTorch's CPU allocator */
  OOM_CUDA_ERROR, /* an error code of CUDA or HIP: PyTorch up to 0.4, and whoever calls them directly */
  OOM_LIBRARY,    /* cuDNN, cuBLAS and their like: a status that says an allocation failed */
  OOM_JAX,
  OOM_TPU, /* XLA's compiler, which places a whole program before it runs */
  OOM_TENSORFLOW,
  OOM_WORDING_COUNT
} OomWording;
/* What a wording is called: "PyTorch 1.4 to 2.0", "a status of cuDNN, cuBLAS or their like", ... */
const char *vl_oom_wording_name(OomWording wording);

typedef struct OomProcess {
  int64_t pid;
  OomFigure in_use;
} OomProcess;

typedef struct OomMessage {
  OomWording wording;
  char backend[8];                /* "cuda", "hip", "xpu", "mps", "cpu"; "" where the message does not tell */
  int32_t device;                 /* the GPU's number; -1 */
  int64_t line;                   /* of the text, from 1, where the message begins */
  int64_t times;                  /* how often the text says the same */
  char quote[VL_OOM_QUOTE_BYTES]; /* its beginning, white space made one blank */
  char
      cut_after[32]; /* the last figure that was read of a message that ends too early; "" when it is whole */
  char setting[24];  /* the environment variable that the message names, "" for none */
  bool impossible;   /* more than 2^60 bytes were asked for */
  OomFigure tried, total, free, this_process;
  OomFigure allocated, unallocated, reserved; /* by PyTorch; the message has one of the latter two */
  OomFigure private_pools;                    /* part of allocated */
  OomFigure allowed;                          /* a limit the process was given */
  OomFigure other_allocations;                /* MPS: of the process, outside of PyTorch's allocator */
  int32_t process_count;                      /* others, by pid */
  OomProcess processes[VL_OOM_MAX_PROCESSES];
} OomMessage;

/* All messages of a text, each once, in order; at most VL_OOM_MAX_MESSAGES are written, the rest left out.
 * Line breaks anywhere within a message, ANSI colours and decimal commas are understood. Of a longer text
 * the first 4 GiB are read. Returns how many. */
int32_t vl_oom_messages(const char *text, size_t size, OomMessage *messages);
/* What vl_oom_messages looks for, for a message about a text that has none. */
const char *vl_oom_looked_for(void);

#endif
