/* Launches between begin and end, queued together. The second time the same launches come with the same
 * addresses they are captured as a CUDA graph, and from then on the graph is launched: one call of the host's
 * for a whole step. What differs from step to step lies in slots of the graph's own, which are written
 * before. */
#include "kernels/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>

enum {
  MOST_CONTEXTS = 256, /* of one sequence: micro-batches, and ops that count rows */
  MOST_TOGETHER = 64   /* launches an op is shown at once */
};

typedef struct Launch {
  Kernel *kernel;
  uintptr_t inputs[VL_MAX_INPUTS], outputs[VL_MAX_OUTPUTS], workspace;
  int32_t context; /* among those of the sequence */
} Launch;

typedef struct Sequence {
  const void *key;
  Launch *launches, *last; /* of now, and of the time before */
  int32_t count, capacity, last_count, last_capacity;
  LaunchContext contexts[MOST_CONTEXTS];
  int32_t context_count;
  cudaGraphExec_t graph; /* of `last`; NULL: none */
  StepSlots slots;
  cudaEvent_t launched; /* the slots' host side may be written when this has passed */
  bool refused;         /* it cannot be captured: not tried again */
} Sequence;

struct CudaSequences {
  Sequence *all;
  int32_t count;
  int32_t open;  /* index of the one that has begun; -1: none */
  bool flushed;  /* something else came between: it is no whole */
  Status failed; /* of a flush */
  DeviceGraphs told;
};

static CudaDevice *own(Device *device) { return (CudaDevice *)(void *)device; }

static void drop_graph(Sequence *sequence) {
  if (sequence->graph) (void)cudaGraphExecDestroy(sequence->graph);
  sequence->graph = NULL;
  sequence->last_count = 0;
}

static void sequence_close(Sequence *sequence) {
  drop_graph(sequence);
  if (sequence->launched) (void)cudaEventDestroy(sequence->launched);
  cuda_slots_close(&sequence->slots);
  free(sequence->launches);
  free(sequence->last);
}

void cuda_sequences_drop(CudaDevice *device) {
  if (!device->sequences) return;
  for (int32_t i = 0; i < device->sequences->count; i++)
    drop_graph(&device->sequences->all[i]);
}

void cuda_sequences_close(CudaDevice *device) {
  CudaSequences *sequences = device->sequences;
  if (!sequences) return;
  for (int32_t i = 0; i < sequences->count; i++)
    sequence_close(&sequences->all[i]);
  free(sequences->all);
  free(sequences);
  device->sequences = NULL;
}

int64_t cuda_sequences_bytes(const CudaDevice *device) {
  int64_t bytes = 0;
  for (int32_t i = 0; device->sequences && i < device->sequences->count; i++)
    bytes += cuda_slots_bytes(&device->sequences->all[i].slots);
  return bytes;
}

void cuda_sequence_begin(Device *device, const void *key) {
  CudaDevice *cuda = own(device);
  if (cuda_ranges_are_watched()) return;
  if (!cuda->sequences) {
    cuda->sequences = vl_allocate(sizeof *cuda->sequences);
    cuda->sequences->open = -1;
  }
  CudaSequences *sequences = cuda->sequences;
  int32_t at = 0;
  while (at < sequences->count && sequences->all[at].key != key)
    at++;
  if (at == sequences->count) {
    sequences->all = vl_reallocate(sequences->all, (size_t)(at + 1) * sizeof *sequences->all);
    memset(&sequences->all[at], 0, sizeof *sequences->all);
    sequences->all[at].key = key;
    sequences->count++;
  }
  sequences->open = at;
  sequences->flushed = false;
  sequences->failed = vl_ok();
  sequences->all[at].count = sequences->all[at].context_count = 0;
}

static Sequence *open_sequence(const CudaDevice *device) {
  CudaSequences *sequences = device->sequences;
  return sequences && sequences->open >= 0 ? &sequences->all[sequences->open] : NULL;
}

static bool is_same_context(const LaunchContext *a, const LaunchContext *b) {
  CudaStep one, other;
  cuda_step_set(&one, a);
  cuda_step_set(&other, b);
  return memcmp(&one, &other, sizeof one) == 0;
}

bool cuda_sequence_take(CudaDevice *device, Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                        uintptr_t workspace, const LaunchContext *context) {
  Sequence *sequence = open_sequence(device);
  if (!sequence) return false;
  int32_t last = sequence->context_count - 1;
  if (last < 0 || !is_same_context(&sequence->contexts[last], context)) {
    if (sequence->context_count == MOST_CONTEXTS) cuda_sequence_flush(device);
    sequence->contexts[sequence->context_count++] = *context;
  }
  if (sequence->count == sequence->capacity) {
    sequence->capacity = sequence->capacity ? 2 * sequence->capacity : 512;
    sequence->launches = vl_reallocate(sequence->launches, (size_t)sequence->capacity * sizeof(Launch));
  }
  Launch *launch = &sequence->launches[sequence->count++];
  memset(launch, 0, sizeof *launch); /* compared as bytes */
  launch->kernel = kernel;
  for (int32_t i = 0; i < kernel->node->input_count; i++)
    launch->inputs[i] = inputs[i];
  for (int32_t i = 0; i < kernel->node->output_count; i++)
    launch->outputs[i] = outputs[i];
  launch->workspace = workspace;
  launch->context = sequence->context_count - 1;
  return true;
}

/* Launches of one op from the i-th on, where the op takes several; how many it queued. */
static Status queue_together(CudaDevice *device, Sequence *sequence, StepSlots *slots, int32_t i,
                             int32_t *queued) {
  const Kernel *kernels[MOST_TOGETHER];
  CudaLaunch launches[MOST_TOGETHER];
  const Launch *first = &sequence->launches[i];
  const CudaStep *step = NULL;
  int32_t count = 0;
  *queued = 0;
  if (!first->kernel->op->launch_together) return vl_ok();
  VL_TRY(cuda_slots_at(device, slots, &sequence->contexts[first->context], &step));
  while (count < MOST_TOGETHER && i + count < sequence->count) {
    const Launch *launch = &sequence->launches[i + count];
    if (launch->kernel->op != first->kernel->op || launch->context != first->context) break;
    kernels[count] = launch->kernel;
    launches[count++] = (CudaLaunch){.inputs = launch->inputs,
                                     .outputs = launch->outputs,
                                     .workspace = launch->workspace,
                                     .stream = device->stream,
                                     .step = step,
                                     .fault = device->fault_address};
  }
  return first->kernel->op->launch_together(kernels, launches, count, queued);
}

static Status queue_all(CudaDevice *device, Sequence *sequence, StepSlots *slots) {
  for (int32_t i = 0, queued; i < sequence->count; i += queued) {
    Launch *launch = &sequence->launches[i];
    VL_TRY(queue_together(device, sequence, slots, i, &queued));
    if (queued > 0) continue;
    queued = 1;
    VL_TRY(cuda_launch_now(device, slots, launch->kernel, launch->inputs, launch->outputs, launch->workspace,
                           &sequence->contexts[launch->context]));
  }
  return vl_ok();
}

void cuda_sequence_flush(CudaDevice *device) {
  Sequence *sequence = open_sequence(device);
  if (!sequence) return;
  Status status = queue_all(device, sequence, device->slots);
  if (device->sequences->failed.code == VL_OK) device->sequences->failed = status;
  device->sequences->flushed = true;
  sequence->count = sequence->context_count = 0;
}

/* ---- Graphs ----------------------------------------------------------------------------------------------- */

static bool is_as_before(const Sequence *sequence) {
  return sequence->last_count == sequence->count && sequence->count > 0 &&
         memcmp(sequence->last, sequence->launches, (size_t)sequence->count * sizeof(Launch)) == 0;
}

/* The graph reads contexts from its slots in the order in which they came. */
static Status launch_graph(CudaDevice *device, Sequence *sequence) {
  VL_TRY(cuda_status(cudaEventSynchronize(sequence->launched), "cudaEventSynchronize", NULL));
  for (int32_t i = 0; i < sequence->context_count; i++)
    cuda_step_set(&sequence->slots.host[i], &sequence->contexts[i]);
  VL_TRY(cuda_status(cudaGraphLaunch(sequence->graph, device->stream), "cudaGraphLaunch", NULL));
  return cuda_status(cudaEventRecord(sequence->launched, device->stream), "cudaEventRecord", NULL);
}

static Status open_slots(Sequence *sequence) {
  if (sequence->launched) return vl_ok();
  VL_TRY(cuda_slots_open(&sequence->slots, MOST_CONTEXTS));
  return cuda_status(cudaEventCreateWithFlags(&sequence->launched, cudaEventDisableTiming),
                     "cudaEventCreateWithFlags", NULL);
}

static void tell_refusal(CudaDevice *device, const Sequence *sequence, Status status, cudaError_t error) {
  DeviceGraphs *told = &device->sequences->told;
  if (told->refusal[0]) return;
  if (status.code != VL_OK)
    snprintf(told->refusal, sizeof told->refusal, "%.*s", (int)sizeof told->refusal - 1, status.message);
  else if (error != cudaSuccess)
    snprintf(told->refusal, sizeof told->refusal, "%s", cudaGetErrorString(error));
  else
    snprintf(told->refusal, sizeof told->refusal, "%d values of steps for %d readers",
             sequence->context_count, sequence->slots.used);
}

/* Leaves `graph` NULL where something cannot be captured. */
static Status capture(CudaDevice *device, Sequence *sequence) {
  cudaGraph_t captured = NULL;
  VL_TRY(open_slots(sequence));
  VL_TRY(cuda_status(cudaEventSynchronize(sequence->launched), "cudaEventSynchronize", NULL));
  sequence->slots.used = 0;
  VL_TRY(cuda_status(cudaStreamBeginCapture(device->stream, cudaStreamCaptureModeThreadLocal),
                     "cudaStreamBeginCapture", NULL));
  Status status = queue_all(device, sequence, &sequence->slots);
  cudaError_t error = cudaStreamEndCapture(device->stream, &captured);
  bool usable =
      status.code == VL_OK && error == cudaSuccess && sequence->slots.used == sequence->context_count;
  if (usable) error = cudaGraphInstantiate(&sequence->graph, captured, 0);
  if (error != cudaSuccess) sequence->graph = NULL;
  if (captured) (void)cudaGraphDestroy(captured);
  (void)cudaGetLastError(); /* handled: the launches go one by one */
  sequence->refused = sequence->graph == NULL;
  if (sequence->refused) tell_refusal(device, sequence, status, error);
  return vl_ok();
}

static void remember(Sequence *sequence) {
  Launch *launches = sequence->last;
  int32_t capacity = sequence->last_capacity;
  sequence->last = sequence->launches;
  sequence->last_count = sequence->count;
  sequence->last_capacity = sequence->capacity;
  sequence->launches = launches;
  sequence->capacity = capacity;
  sequence->count = 0;
}

Status cuda_sequence_end(Device *device) {
  CudaDevice *cuda = own(device);
  Sequence *sequence = open_sequence(cuda);
  if (!sequence) return vl_ok();
  CudaSequences *sequences = cuda->sequences;
  bool whole = !sequences->flushed, again = whole && is_as_before(sequence);
  Status status = sequences->failed;
  sequences->open = -1;
  if (status.code == VL_OK && again && !sequence->graph && !sequence->refused)
    status = capture(cuda, sequence);
  bool as_graph = again && sequence->graph;
  if (status.code == VL_OK)
    status = as_graph ? launch_graph(cuda, sequence) : queue_all(cuda, sequence, cuda->slots);
  sequences->told.sequences++;
  if (as_graph) sequences->told.as_graphs++;
  if (!again) drop_graph(sequence);
  if (whole && !again && status.code == VL_OK) remember(sequence);
  return status;
}

void cuda_sequence_graphs(const Device *device, DeviceGraphs *graphs) {
  const CudaSequences *sequences = ((const CudaDevice *)(const void *)device)->sequences;
  *graphs = sequences ? sequences->told : (DeviceGraphs){0};
}
