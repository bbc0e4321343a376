/* oneDNN primitives: one descriptor per distinct spec, one set of memory objects per kernel. Making a
 * descriptor takes the library up to a millisecond, and the layers of a network repeat. */
#include "kernels/cpu/cpu.h"
#include <stdlib.h>
#include <string.h>

typedef struct CacheEntry {
  PrimitiveSpec spec;
  uint64_t hash;
  Primitive *primitive;
  bool owner; /* two specs may lead to one primitive: as asked, and with the choices filled in */
} CacheEntry;

struct PrimitiveCache {
  CacheEntry **slots; /* open addressing */
  int64_t capacity, count;
};

PrimitiveCache *cpu_primitives_create(void) {
  PrimitiveCache *cache = vl_allocate(sizeof *cache);
  cache->capacity = 256;
  cache->slots = vl_allocate((size_t)cache->capacity * sizeof(CacheEntry *));
  return cache;
}

static void destroy_primitive(Primitive *primitive) {
  if (primitive->primitive) dnnl_primitive_destroy(primitive->primitive);
  if (primitive->descriptor) dnnl_primitive_desc_destroy(primitive->descriptor);
  free(primitive);
}

void cpu_primitives_destroy(PrimitiveCache **cache) {
  if (!*cache) return;
  for (int64_t i = 0; i < (*cache)->capacity; ++i) {
    CacheEntry *entry = (*cache)->slots[i];
    if (!entry) continue;
    if (entry->owner) destroy_primitive(entry->primitive);
    free(entry);
  }
  free((*cache)->slots);
  free(*cache);
  *cache = NULL;
}

/* The slot that holds the spec, or the free one where it belongs. */
static CacheEntry **find_slot(const PrimitiveCache *cache, const PrimitiveSpec *spec, uint64_t hash) {
  for (int64_t i = (int64_t)(hash % (uint64_t)cache->capacity);; i = (i + 1) % cache->capacity) {
    CacheEntry *entry = cache->slots[i];
    if (!entry || (entry->hash == hash && memcmp(&entry->spec, spec, sizeof *spec) == 0))
      return &cache->slots[i];
  }
}

static void grow(PrimitiveCache *cache) {
  PrimitiveCache larger = {.capacity = cache->capacity * 2, .count = cache->count};
  larger.slots = vl_allocate((size_t)larger.capacity * sizeof(CacheEntry *));
  for (int64_t i = 0; i < cache->capacity; ++i) {
    CacheEntry *entry = cache->slots[i];
    if (entry) *find_slot(&larger, &entry->spec, entry->hash) = entry;
  }
  free(cache->slots);
  *cache = larger;
}

static uint64_t hash_spec(const PrimitiveSpec *spec) {
  /* Word by word: prepare is timed in thousands of kernels. */
  uint64_t words[sizeof *spec / sizeof(uint64_t)];
  uint64_t hash = vl_hash_start;
  memcpy(words, spec, sizeof words);
  for (size_t i = 0; i < sizeof words / sizeof *words; ++i)
    hash = (hash ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15), hash ^= hash >> 29;
  return hash;
}

static void insert(PrimitiveCache *cache, const PrimitiveSpec *spec, Primitive *primitive, bool owner) {
  uint64_t hash = hash_spec(spec);
  if (cache->count * 2 >= cache->capacity) grow(cache);
  CacheEntry **slot = find_slot(cache, spec, hash);
  if (*slot) return;
  CacheEntry *entry = vl_allocate(sizeof *entry);
  *entry = (CacheEntry){.spec = *spec, .hash = hash, .primitive = primitive, .owner = owner};
  *slot = entry;
  ++cache->count;
}

/* ---- Making one --------------------------------------------------------------------------------------------- */

dnnl_data_type_t cpu_dnnl_type(DType dtype) {
  switch (dtype) {
  case DTYPE_F32: return dnnl_f32;
  case DTYPE_BF16: return dnnl_bf16;
  case DTYPE_F16: return dnnl_f16;
  case DTYPE_F64: return dnnl_f64;
  case DTYPE_I32: return dnnl_s32;
  case DTYPE_U8: return dnnl_u8;
  default: return dnnl_data_type_undef;
  }
}

static const char *status_text(dnnl_status_t status) {
  switch (status) {
  case dnnl_out_of_memory: return "out of memory";
  case dnnl_invalid_arguments: return "invalid arguments";
  case dnnl_unimplemented: return "not implemented on this machine";
  case dnnl_runtime_error: return "run-time error";
  case dnnl_not_required: return "not required";
  default: return "failed";
  }
}

Status cpu_dnnl_status(dnnl_status_t status, const char *what, const Node *node) {
  if (status == dnnl_success) return vl_ok();
  StatusCode code = status == dnnl_unimplemented   ? VL_UNSUPPORTED
                    : status == dnnl_out_of_memory ? VL_OUT_OF_MEMORY
                                                   : VL_INTERNAL;
  if (!node) return vl_error(code, "cpu: oneDNN %s: %s", what, status_text(status));
  char x[96] = "no input";
  if (node->inputs[0]) vl_tensor_describe(node->inputs[0], x, sizeof x);
  return vl_error(code, "cpu: %s of %s on %s: oneDNN %s: %s", node->op->name, node->scope ? node->scope : "?",
                  x, what, status_text(status));
}

void cpu_operand_set(PrimitiveOperand *operand, const Tensor *tensor, LayoutId layout, int64_t groups) {
  operand->groups = groups;
  operand->rank = tensor->rank;
  operand->dtype = (int32_t)tensor->dtype;
  operand->layout = layout;
  for (int32_t i = 0; i < tensor->rank; ++i)
    operand->shape[i] = tensor->shape[i];
}

/* A plain operand whose last two dimensions are swapped in memory. */
static Status transposed_descriptor(const PrimitiveOperand *operand, dnnl_memory_desc_t *md) {
  dnnl_dims_t dims = {0}, strides = {0};
  int rank = operand->rank;
  dnnl_dim_t stride = 1;
  for (int i = rank - 1; i >= 0; --i) {
    dims[i] = operand->shape[i];
    strides[i] = stride;
    stride *= dims[i];
  }
  strides[rank - 2] = 1;
  strides[rank - 1] = dims[rank - 2];
  return cpu_dnnl_status(
      dnnl_memory_desc_create_with_strides(md, rank, dims, cpu_dnnl_type((DType)operand->dtype), strides),
      "memory descriptor", NULL);
}

static Status operand_descriptor(CpuDevice *device, const PrimitiveOperand *operand, dnnl_memory_desc_t *md) {
  if (operand->transposed) return transposed_descriptor(operand, md);
  return cpu_layout_descriptor(device, operand->layout, (DType)operand->dtype, operand->rank, operand->shape,
                               operand->groups, md);
}

/* Reads what the descriptor decided. VL_UNSUPPORTED when a format has no number. */
static Status read_choices(CpuDevice *device, const PrimitiveSpec *spec, Primitive *primitive) {
  for (int64_t i = 0; i < spec->operand_count; ++i) {
    const PrimitiveOperand *operand = &spec->operands[i];
    primitive->layouts[i] = operand->layout;
    if (operand->layout != LAYOUT_ANY) continue;
    const_dnnl_memory_desc_t md =
        dnnl_primitive_desc_query_md(primitive->descriptor, spec->kind->queries[i], spec->kind->indices[i]);
    VL_TRY(cpu_layout_of(device, md, operand->groups, &primitive->layouts[i]));
  }
  const_dnnl_memory_desc_t scratchpad =
      dnnl_primitive_desc_query_md(primitive->descriptor, dnnl_query_scratchpad_md, 0);
  primitive->scratchpad_bytes = scratchpad ? (int64_t)dnnl_memory_desc_get_size(scratchpad) : 0;
  VL_TRY(cpu_dnnl_status(dnnl_primitive_desc_query(primitive->descriptor, dnnl_query_impl_info_str, 0,
                                                   &primitive->implementation),
                         "implementation query", NULL));
  const char *name = primitive->implementation;
  primitive->is_reference = strncmp(name, "ref", 3) == 0 || strstr(name, ":ref") != NULL;
  return vl_ok();
}

static Status make(CpuDevice *device, const PrimitiveSpec *spec, const Node *node, Primitive *primitive) {
  dnnl_memory_desc_t mds[PRIMITIVE_OPERANDS] = {NULL};
  Status status = vl_ok();
  for (int64_t i = 0; i < spec->operand_count && status.code == VL_OK; ++i)
    status = operand_descriptor(device, &spec->operands[i], &mds[i]);
  if (status.code == VL_OK)
    status = cpu_dnnl_status(spec->kind->create(device, spec, mds, &primitive->descriptor), spec->kind->name,
                             node);
  for (int64_t i = 0; i < spec->operand_count; ++i)
    if (mds[i]) dnnl_memory_desc_destroy(mds[i]);
  VL_TRY(status);
  for (;;) {
    status = read_choices(device, spec, primitive);
    if (status.code != VL_UNSUPPORTED) return status;
    /* A format without a number: the library's next implementation. */
    if (dnnl_primitive_desc_next_impl(primitive->descriptor) != dnnl_success) return status;
  }
}

/* The primitive of a spec, made unless it is there already. */
static Status find_or_make(CpuDevice *device, const PrimitiveSpec *spec, const Node *node,
                           Primitive **primitive) {
  PrimitiveCache *cache = device->primitives;
  CacheEntry *entry = *find_slot(cache, spec, hash_spec(spec));
  if (entry) {
    *primitive = entry->primitive;
    return vl_ok();
  }
  Primitive *made = vl_allocate(sizeof *made);
  Status status = make(device, spec, node, made);
  if (status.code != VL_OK) {
    destroy_primitive(made);
    return status;
  }
  insert(cache, spec, made, true);
  PrimitiveSpec decided = *spec;
  for (int64_t i = 0; i < spec->operand_count; ++i)
    decided.operands[i].layout = made->layouts[i];
  insert(cache, &decided, made, false);
  *primitive = made;
  return vl_ok();
}

/* Where a dimension is 1 several formats are the same memory, and asked for under another's name the library
 * may only have its reference code. Left to itself it says which it knows: NULL when that is other memory. */
static Primitive *find_same_memory(CpuDevice *device, const PrimitiveSpec *spec, const Node *node) {
  for (int64_t i = 0; i < spec->operand_count; ++i) {
    PrimitiveSpec free = *spec;
    Primitive *other = NULL;
    if (spec->operands[i].layout == LAYOUT_ANY || spec->operands[i].transposed) continue;
    free.operands[i].layout = LAYOUT_ANY;
    Status status = find_or_make(device, &free, node, &other);
    if (status.code == VL_OK && !other->is_reference && other->layouts[i] == spec->operands[i].layout)
      return other;
  }
  return NULL;
}

Status cpu_primitive_find(CpuDevice *device, const PrimitiveSpec *spec, const Node *node,
                          Primitive **primitive) {
  VL_TRY(find_or_make(device, spec, node, primitive));
  if (!(*primitive)->is_reference) return vl_ok();
  Primitive *other = find_same_memory(device, spec, node);
  if (other) *primitive = other;
  return vl_ok();
}

Status cpu_primitive_compile(Primitive *primitive, const Node *node) {
  if (primitive->primitive) return vl_ok();
  return cpu_dnnl_status(dnnl_primitive_create(&primitive->primitive, primitive->descriptor), "primitive",
                         node);
}

/* ---- Kernels that are one primitive ---------------------------------------------------------------------------- */

typedef struct PrimitiveKernel {
  Primitive *primitive;
  const PrimitiveKind *kind;
  int32_t count; /* operands, and the scratchpad where there is one */
  int32_t operand_count;
  int32_t sources[PRIMITIVE_OPERANDS];
  dnnl_exec_arg_t arguments[PRIMITIVE_OPERANDS + 1];
} PrimitiveKernel;

Status cpu_primitive_prepare(CpuDevice *device, Kernel *kernel, const PrimitiveSpec *spec,
                             const int32_t *sources) {
  PrimitiveKernel *own = vl_allocate(sizeof *own);
  kernel->data = own;
  VL_TRY(cpu_primitive_find(device, spec, kernel->node, &own->primitive));
  own->kind = spec->kind;
  own->operand_count = (int32_t)spec->operand_count;
  for (int32_t i = 0; i < own->operand_count; ++i)
    own->sources[i] = sources[i];
  kernel->workspace_bytes = own->primitive->scratchpad_bytes;
  snprintf(kernel->implementation, sizeof kernel->implementation, "%s", own->primitive->implementation);
  return vl_ok();
}

static Status add_argument(CpuDevice *device, Kernel *kernel, PrimitiveKernel *own,
                           const_dnnl_memory_desc_t md, int argument) {
  dnnl_exec_arg_t *entry = &own->arguments[own->count];
  entry->arg = argument;
  VL_TRY(cpu_dnnl_status(dnnl_memory_create(&entry->memory, md, device->engine, DNNL_MEMORY_NONE), "memory",
                         kernel->node));
  ++own->count;
  return vl_ok();
}

Status cpu_primitive_build(CpuDevice *device, Kernel *kernel) {
  PrimitiveKernel *own = kernel->data;
  if (own->count > 0) return vl_ok();
  VL_TRY(cpu_primitive_compile(own->primitive, kernel->node));
  dnnl_primitive_desc_t descriptor = own->primitive->descriptor;
  for (int32_t i = 0; i < own->operand_count; ++i)
    VL_TRY(
        add_argument(device, kernel, own,
                     dnnl_primitive_desc_query_md(descriptor, own->kind->queries[i], own->kind->indices[i]),
                     own->kind->arguments[i]));
  if (kernel->workspace_bytes == 0) return vl_ok();
  return add_argument(device, kernel, own,
                      dnnl_primitive_desc_query_md(descriptor, dnnl_query_scratchpad_md, 0),
                      DNNL_ARG_SCRATCHPAD);
}

Status cpu_primitive_launch(const Kernel *kernel, const uintptr_t *inputs, const uintptr_t *outputs,
                            uintptr_t workspace, const LaunchContext *context) {
  (void)context;
  const PrimitiveKernel *own = kernel->data;
  for (int32_t i = 0; i < own->count; ++i) {
    uintptr_t address = workspace;
    if (i < own->operand_count)
      address = own->sources[i] < OPERAND_OUTPUT ? inputs[own->sources[i]]
                                                 : outputs[own->sources[i] - OPERAND_OUTPUT];
    VL_TRY(cpu_dnnl_status(dnnl_memory_set_data_handle(own->arguments[i].memory, (void *)address), "handle",
                           kernel->node));
  }
  return cpu_dnnl_status(
      dnnl_primitive_execute(own->primitive->primitive, kernel->stream, own->count, own->arguments),
      "execution", kernel->node);
}

void cpu_primitive_destroy(CpuDevice *device, Kernel *kernel) {
  (void)device;
  PrimitiveKernel *own = kernel->data;
  for (int32_t i = 0; own && i < own->count; ++i)
    dnnl_memory_destroy(own->arguments[i].memory);
}
