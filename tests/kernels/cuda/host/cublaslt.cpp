/* tests/kernels/cuda/host: a double of cuBLASLt. It knows what the manual says of the calls that kernels/cuda
 * makes and refuses the rest: every attribute is kept as it was set, a product is checked as a whole (sizes,
 * leading dimensions, strides, types, pointers, alignment, the algorithm's problem and workspace) and
 * computed from the descriptors alone, so that a wrong mapping gives a wrong number or a refusal, which is
 * printed. An algorithm may split a sum, whose parts are then really in the workspace. */
#include "runtime.h"

#include <cublasLt.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

extern "C" {
#include "base/base.h"
}

struct cublasLtContext {
  uint32_t magic;
};

namespace {

enum : uint32_t { HANDLE = 0x4c74436e, OPERATION = 0x4c744f70, LAYOUT = 0x4c744c61, PREFERENCE = 0x4c745072 };

__attribute__((format(printf, 2, 3))) cublasStatus_t refuse(cublasStatus_t status, const char *format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  fprintf(stderr, "cuBLASLt double: %s\n", text);
  return status;
}

/* ---- Descriptors: what lies in the caller's opaque structs ---------------------------------------------------- */

struct Operation {
  uint32_t magic;
  int32_t compute, scale, pointer_mode, transpose_a, transpose_b, transpose_c, fill;
  uint32_t epilogue;
  int32_t bias_type;
  const void *bias;
  int64_t bias_stride;
};
struct Layout {
  uint32_t magic, type;
  uint64_t rows, columns;
  int64_t leading, stride;
  int32_t order, batches;
};
struct Preference {
  uint32_t magic, reductions, alignment_a, alignment_b, alignment_c, alignment_d;
  uint64_t workspace;
};
static_assert(sizeof(Operation) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));

template <typename T, typename Opaque> T *opened(Opaque *opaque, uint32_t magic) {
  T *inside = reinterpret_cast<T *>(opaque);
  return inside && inside->magic == magic ? inside : nullptr;
}

/* Where an attribute is kept; NULL: the double does not model it. */
struct Field {
  void *at;
  size_t bytes;
};
template <typename T> Field field(T *at) { return {at, sizeof *at}; }

Field field_of(Operation *operation, cublasLtMatmulDescAttributes_t attribute) {
  switch (attribute) {
  case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: return field(&operation->compute);
  case CUBLASLT_MATMUL_DESC_SCALE_TYPE: return field(&operation->scale);
  case CUBLASLT_MATMUL_DESC_POINTER_MODE: return field(&operation->pointer_mode);
  case CUBLASLT_MATMUL_DESC_TRANSA: return field(&operation->transpose_a);
  case CUBLASLT_MATMUL_DESC_TRANSB: return field(&operation->transpose_b);
  case CUBLASLT_MATMUL_DESC_TRANSC: return field(&operation->transpose_c);
  case CUBLASLT_MATMUL_DESC_FILL_MODE: return field(&operation->fill);
  case CUBLASLT_MATMUL_DESC_EPILOGUE: return field(&operation->epilogue);
  case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return field(&operation->bias);
  case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE: return field(&operation->bias_stride);
  case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return field(&operation->bias_type);
  default: return {nullptr, 0};
  }
}

Field field_of(Layout *layout, cublasLtMatrixLayoutAttribute_t attribute) {
  switch (attribute) {
  case CUBLASLT_MATRIX_LAYOUT_TYPE: return field(&layout->type);
  case CUBLASLT_MATRIX_LAYOUT_ORDER: return field(&layout->order);
  case CUBLASLT_MATRIX_LAYOUT_ROWS: return field(&layout->rows);
  case CUBLASLT_MATRIX_LAYOUT_COLS: return field(&layout->columns);
  case CUBLASLT_MATRIX_LAYOUT_LD: return field(&layout->leading);
  case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return field(&layout->batches);
  case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return field(&layout->stride);
  default: return {nullptr, 0};
  }
}

Field field_of(Preference *preference, cublasLtMatmulPreferenceAttributes_t attribute) {
  switch (attribute) {
  case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return field(&preference->workspace);
  case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return field(&preference->reductions);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return field(&preference->alignment_a);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return field(&preference->alignment_b);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return field(&preference->alignment_c);
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return field(&preference->alignment_d);
  default: return {nullptr, 0};
  }
}

template <typename Descriptor, typename Attribute>
cublasStatus_t set(const char *what, Descriptor *descriptor, Attribute attribute, const void *value,
                   size_t bytes) {
  if (!descriptor) return refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of an unmade %s", what);
  Field to = field_of(descriptor, attribute);
  if (!to.at)
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "attribute %d of the %s is not modelled", (int)attribute,
                  what);
  if (!value || bytes != to.bytes)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "attribute %d of the %s has %zu bytes, was given %zu",
                  (int)attribute, what, to.bytes, bytes);
  memcpy(to.at, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

/* ---- Products --------------------------------------------------------------------------------------------------- */

/* The descriptors of a call, opened. */
struct Problem {
  const Operation *operation;
  const Layout *a, *b, *c, *d;
};

/* What an algorithm was chosen for, and what it needs; in cublasLtMatmulAlgo_t. */
struct Algorithm {
  uint64_t problem; /* hash of all descriptors */
  uint32_t alignment_a, alignment_b, alignment_c, alignment_d, alignment_bias;
  int32_t splits;
  uint64_t workspace;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

int64_t type_bytes(uint32_t type) { return type == CUDA_R_32F ? 4 : 2; }

/* Every descriptor but for the bias pointer, which a launch may change. */
uint64_t hash_problem(const Problem &problem) {
  Operation plain = *problem.operation;
  plain.bias = nullptr;
  uint64_t hash = vl_hash_bytes(vl_hash_start, &plain, sizeof plain);
  for (const Layout *layout : {problem.a, problem.b, problem.c, problem.d})
    hash = vl_hash_bytes(hash, layout, sizeof *layout);
  return hash;
}

/* Elements from the first to behind the last of a matrix, by its order. */
int64_t extent(const Layout *layout) {
  bool by_rows = layout->order == CUBLASLT_ORDER_ROW;
  int64_t rows = (int64_t)layout->rows, columns = (int64_t)layout->columns;
  return ((by_rows ? rows : columns) - 1) * layout->leading + (by_rows ? columns : rows);
}
int64_t index_of(const Layout *layout, int64_t row, int64_t column) {
  return layout->order == CUBLASLT_ORDER_ROW ? row * layout->leading + column
                                             : row + column * layout->leading;
}

cublasStatus_t check_layout(const char *name, const Layout *layout) {
  if (!layout) return refuse(CUBLAS_STATUS_INVALID_VALUE, "the layout of %s was not made", name);
  if (layout->order != CUBLASLT_ORDER_COL && layout->order != CUBLASLT_ORDER_ROW)
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "order %d of %s", layout->order, name);
  if (layout->type != CUDA_R_32F && layout->type != CUDA_R_16BF && layout->type != CUDA_R_16F)
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "type %u of %s", layout->type, name);
  if (layout->rows == 0 || layout->columns == 0 || layout->rows > INT32_MAX || layout->columns > INT32_MAX)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "%s is %llu x %llu", name, (unsigned long long)layout->rows,
                  (unsigned long long)layout->columns);
  uint64_t length = layout->order == CUBLASLT_ORDER_ROW ? layout->columns : layout->rows;
  if (layout->leading < (int64_t)length)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "%s has leading dimension %lld below %llu", name,
                  (long long)layout->leading, (unsigned long long)length);
  if (layout->batches < 1 || layout->stride < 0)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "%s has %d matrices at stride %lld", name, layout->batches,
                  (long long)layout->stride);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_sizes(const Problem &problem) {
  const Layout *a = problem.a, *b = problem.b, *c = problem.c, *d = problem.d;
  bool ta = problem.operation->transpose_a != CUBLAS_OP_N, tb = problem.operation->transpose_b != CUBLAS_OP_N;
  unsigned long long m = ta ? a->columns : a->rows, k = ta ? a->rows : a->columns;
  unsigned long long inner = tb ? b->columns : b->rows, n = tb ? b->rows : b->columns;
  if (k != inner || d->rows != m || d->columns != n || c->rows != m || c->columns != n)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "(%llu x %llu) (%llu x %llu) into %llu x %llu, C %llu x %llu",
                  m, k, inner, n, (unsigned long long)d->rows, (unsigned long long)d->columns,
                  (unsigned long long)c->rows, (unsigned long long)c->columns);
  if (a->batches != d->batches || b->batches != d->batches || c->batches != d->batches)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "batches of %d, %d and %d into %d", a->batches, b->batches,
                  c->batches, d->batches);
  if (d->batches > 1 && d->stride < extent(d))
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "results of %lld elements at stride %lld",
                  (long long)extent(d), (long long)d->stride);
  return CUBLAS_STATUS_SUCCESS;
}

/* The manual's table for sums in f32: factors of one type into that type or f32, C as D. */
cublasStatus_t check_types(const Problem &problem) {
  const Operation *operation = problem.operation;
  uint32_t a = problem.a->type, b = problem.b->type, c = problem.c->type, d = problem.d->type;
  bool fast = operation->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  if ((operation->compute != CUBLAS_COMPUTE_32F && !fast) || operation->scale != CUDA_R_32F)
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "compute type %d with scale type %d", operation->compute,
                  operation->scale);
  if (a != b || c != d || (d != a && d != CUDA_R_32F) || (fast && a != CUDA_R_32F))
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "types %u and %u, C %u, into %u", a, b, c, d);
  if (operation->pointer_mode != CUBLASLT_POINTER_MODE_HOST || operation->fill != CUBLAS_FILL_MODE_FULL ||
      operation->transpose_c != CUBLAS_OP_N)
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "pointer mode %d, fill mode %d, transposed C %d",
                  operation->pointer_mode, operation->fill, operation->transpose_c);
  if (operation->epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
  if (operation->epilogue != CUBLASLT_EPILOGUE_BIAS)
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "epilogue %u is not modelled", operation->epilogue);
  if (operation->bias_type != -1 && operation->bias_type != (int32_t)d)
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "a bias of type %d into %u", operation->bias_type, d);
  if (!operation->bias)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "an epilogue with a bias, and no pointer to one");
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check_problem(const Problem &problem) {
  if (!problem.operation) return refuse(CUBLAS_STATUS_INVALID_VALUE, "the operation was not made");
  const Layout *layouts[] = {problem.a, problem.b, problem.c, problem.d};
  const char *names[] = {"A", "B", "C", "D"};
  for (int i = 0; i < 4; i++) {
    cublasStatus_t status = check_layout(names[i], layouts[i]);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  }
  cublasStatus_t status = check_sizes(problem);
  return status == CUBLAS_STATUS_SUCCESS ? check_types(problem) : status;
}

/* The largest power of two up to 256 that divides an address. */
uint32_t alignment_of(const void *pointer) {
  uint32_t alignment = 256;
  while (reinterpret_cast<uintptr_t>(pointer) % alignment != 0)
    alignment /= 2;
  return alignment;
}

cublasStatus_t check_pointer(const char *name, const void *pointer, uint32_t alignment) {
  if (!pointer) return refuse(CUBLAS_STATUS_INVALID_VALUE, "no pointer to %s", name);
  if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "%s at %p is not aligned to %u bytes as was said", name,
                  pointer, alignment);
  return CUBLAS_STATUS_SUCCESS;
}

bool overlap(const void *x, const Layout *layout_x, const void *y, const Layout *layout_y) {
  auto bytes = [](const Layout *layout) {
    return (uintptr_t)(((layout->batches - 1) * layout->stride + extent(layout)) * type_bytes(layout->type));
  };
  uintptr_t begin_x = reinterpret_cast<uintptr_t>(x), begin_y = reinterpret_cast<uintptr_t>(y);
  return begin_x < begin_y + bytes(layout_y) && begin_y < begin_x + bytes(layout_x);
}

/* ---- Arithmetic ------------------------------------------------------------------------------------------------- */

float read(const void *data, uint32_t type, int64_t i) {
  switch (type) {
  case CUDA_R_16BF: return vl_f32_from_bf16(static_cast<const uint16_t *>(data)[i]);
  case CUDA_R_16F: return vl_f32_from_f16(static_cast<const uint16_t *>(data)[i]);
  default: return static_cast<const float *>(data)[i];
  }
}
void write(void *data, uint32_t type, int64_t i, float value) {
  switch (type) {
  case CUDA_R_16BF: static_cast<uint16_t *>(data)[i] = vl_bf16_from_f32(value); break;
  case CUDA_R_16F: static_cast<uint16_t *>(data)[i] = vl_f16_from_f32(value); break;
  default: static_cast<float *>(data)[i] = value;
  }
}

/* TF32 keeps ten bits of the mantissa. */
float to_tf32(float value) {
  uint32_t bits;
  if (!std::isfinite(value)) return value;
  memcpy(&bits, &value, sizeof bits);
  bits = (bits + 0xFFFU + (bits >> 13 & 1U)) & ~0x1FFFU;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/* A call as it was when it was made: the caller may change the descriptors before it runs. */
struct Call {
  Operation operation;
  Layout a, b, c, d;
  const void *at_a, *at_b, *at_c;
  void *at_d;
  float alpha, beta;
  int32_t splits;
  float *workspace;
};

/* A factor as the product reads it, in f32, column after column. */
std::vector<float> unpack(const void *data, const Layout &layout, bool transposed, int64_t batch, bool tf32) {
  int64_t rows = (int64_t)(transposed ? layout.columns : layout.rows);
  int64_t columns = (int64_t)(transposed ? layout.rows : layout.columns);
  std::vector<float> matrix((size_t)(rows * columns));
  for (int64_t j = 0; j < columns; j++)
    for (int64_t i = 0; i < rows; i++) {
      int64_t at = transposed ? index_of(&layout, j, i) : index_of(&layout, i, j);
      float value = read(data, layout.type, batch * layout.stride + at);
      matrix[(size_t)(i + j * rows)] = tf32 ? to_tf32(value) : value;
    }
  return matrix;
}

/* Adds terms first .. last-1 to the m sums of a column of the result. */
void add_terms(const float *a, const float *column, int64_t m, int64_t first, int64_t last, float *sums) {
  for (int64_t k = first; k < last; k++)
    for (int64_t i = 0; i < m; i++)
      sums[i] += a[i + k * m] * column[k];
}

/* In parts, which stay in the workspace, where the algorithm splits the sum. */
void sum_column(const Call &call, const float *a, const float *column, int64_t inner, float *parts,
                float *sums) {
  int64_t m = (int64_t)call.d.rows;
  std::fill(sums, sums + m, 0.0F);
  if (call.splits == 1) return add_terms(a, column, m, 0, inner, sums);
  for (int64_t split = 0; split < call.splits; split++, parts += m) {
    std::fill(parts, parts + m, 0.0F);
    add_terms(a, column, m, inner * split / call.splits, inner * (split + 1) / call.splits, parts);
    for (int64_t i = 0; i < m; i++)
      sums[i] += parts[i];
  }
}

void finish_column(const Call &call, int64_t batch, int64_t j, const float *sums) {
  for (int64_t i = 0; i < (int64_t)call.d.rows; i++) {
    float value = call.alpha * sums[i];
    if (call.beta != 0.0F) /* else C is not read */
      value += call.beta * read(call.at_c, call.c.type, batch * call.c.stride + index_of(&call.c, i, j));
    if (call.operation.epilogue == CUBLASLT_EPILOGUE_BIAS)
      value += read(call.operation.bias, call.d.type, batch * call.operation.bias_stride + i);
    write(call.at_d, call.d.type, batch * call.d.stride + index_of(&call.d, i, j), value);
  }
}

void compute(const Call &call) {
  bool tf32 = call.operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  int64_t m = (int64_t)call.d.rows, n = (int64_t)call.d.columns;
  std::vector<float> sums((size_t)m);
  for (int64_t batch = 0; batch < call.d.batches; batch++) {
    std::vector<float> a = unpack(call.at_a, call.a, call.operation.transpose_a != CUBLAS_OP_N, batch, tf32);
    std::vector<float> b = unpack(call.at_b, call.b, call.operation.transpose_b != CUBLAS_OP_N, batch, tf32);
    int64_t inner = (int64_t)a.size() / m;
    for (int64_t j = 0; j < n; j++) {
      float *parts = call.splits > 1 ? call.workspace + (batch * n + j) * call.splits * m : nullptr;
      sum_column(call, a.data(), b.data() + j * inner, inner, parts, sums.data());
      finish_column(call, batch, j, sums.data());
    }
  }
}

} // namespace

extern "C" {

/* ---- The library -------------------------------------------------------------------------------------------------- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  *handle = new cublasLtContext{HANDLE};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
const char *cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
  case CUBLAS_STATUS_SUCCESS: return "success";
  case CUBLAS_STATUS_INVALID_VALUE: return "a parameter is in conflict with another or out of range";
  case CUBLAS_STATUS_NOT_SUPPORTED: return "the requested functionality is not supported";
  default: return "a status that the double does not explain";
  }
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t descriptor, size_t bytes,
                                               cublasComputeType_t compute_type, cudaDataType_t scale_type) {
  if (bytes != sizeof *descriptor)
    return refuse(CUBLAS_STATUS_ALLOC_FAILED, "an operation of %zu bytes", bytes);
  Operation operation = {};
  operation.magic = OPERATION;
  operation.compute = compute_type;
  operation.scale = scale_type;
  operation.fill = CUBLAS_FILL_MODE_FULL;
  operation.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  operation.bias_type = -1;
  memset(descriptor, 0, sizeof *descriptor);
  memcpy(descriptor, &operation, sizeof operation);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t descriptor,
                                              cublasLtMatmulDescAttributes_t attribute, const void *value,
                                              size_t bytes) {
  return set("operation", opened<Operation>(descriptor, OPERATION), attribute, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t descriptor, size_t bytes,
                                                 cudaDataType type, uint64_t rows, uint64_t columns,
                                                 int64_t leading) {
  if (bytes != sizeof *descriptor) return refuse(CUBLAS_STATUS_ALLOC_FAILED, "a layout of %zu bytes", bytes);
  Layout layout = {LAYOUT, (uint32_t)type, rows, columns, leading, 0, CUBLASLT_ORDER_COL, 1};
  memset(descriptor, 0, sizeof *descriptor);
  memcpy(descriptor, &layout, sizeof layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t descriptor,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                size_t bytes) {
  return set("layout", opened<Layout>(descriptor, LAYOUT), attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t descriptor, size_t bytes) {
  if (bytes != sizeof *descriptor)
    return refuse(CUBLAS_STATUS_ALLOC_FAILED, "a preference of %zu bytes", bytes);
  Preference preference = {PREFERENCE, CUBLASLT_REDUCTION_SCHEME_MASK, 256, 256, 256, 256, 0};
  memset(descriptor, 0, sizeof *descriptor);
  memcpy(descriptor, &preference, sizeof preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t descriptor,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes) {
  return set("preference", opened<Preference>(descriptor, PREFERENCE), attribute, value, bytes);
}

/* One algorithm: in two parts where the sum is long, such a reduction is allowed, and its workspace fits. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference_descriptor, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int *returned) {
  Problem problem = {opened<Operation>(operation, OPERATION), opened<Layout>(a, LAYOUT),
                     opened<Layout>(b, LAYOUT), opened<Layout>(c, LAYOUT), opened<Layout>(d, LAYOUT)};
  const Preference *preference = opened<Preference>(preference_descriptor, PREFERENCE);
  if (!handle || handle->magic != HANDLE) return refuse(CUBLAS_STATUS_NOT_INITIALIZED, "no handle");
  if (!preference || requested < 1)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "%d algorithms asked for", requested);
  cublasStatus_t status = check_problem(problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  uint64_t inner = problem.operation->transpose_a != CUBLAS_OP_N ? problem.a->rows : problem.a->columns;
  uint64_t parts = 2 * problem.d->rows * problem.d->columns * (uint64_t)problem.d->batches * sizeof(float);
  bool split = inner >= 64 && (preference->reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) &&
               parts <= preference->workspace;
  Algorithm algorithm = {.problem = hash_problem(problem),
                         .alignment_a = preference->alignment_a,
                         .alignment_b = preference->alignment_b,
                         .alignment_c = preference->alignment_c,
                         .alignment_d = preference->alignment_d,
                         .alignment_bias = alignment_of(problem.operation->bias),
                         .splits = split ? 2 : 1,
                         .workspace = split ? parts : 0};
  memset(results, 0, sizeof *results);
  memcpy(&results->algo, &algorithm, sizeof algorithm);
  results->workspaceSize = algorithm.workspace;
  results->state = CUBLAS_STATUS_SUCCESS;
  results->wavesCount = 1.0F;
  *returned = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void *value, size_t bytes, size_t *written) {
  Algorithm algorithm;
  memcpy(&algorithm, algo, sizeof algorithm);
  int32_t answer = 0;
  switch (attribute) {
  case CUBLASLT_ALGO_CONFIG_ID:
  case CUBLASLT_ALGO_CONFIG_TILE_ID:
  case CUBLASLT_ALGO_CONFIG_STAGES_ID: break;
  case CUBLASLT_ALGO_CONFIG_SPLITK_NUM: answer = algorithm.splits; break;
  default:
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "attribute %d of an algorithm is not modelled",
                  (int)attribute);
  }
  if (bytes != sizeof answer)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "%zu bytes of an algorithm's attribute", bytes);
  memcpy(value, &answer, sizeof answer);
  if (written) *written = sizeof answer;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha,
                              const void *at_a, cublasLtMatrixLayout_t a, const void *at_b,
                              cublasLtMatrixLayout_t b, const void *beta, const void *at_c,
                              cublasLtMatrixLayout_t c, void *at_d, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  Problem problem = {opened<Operation>(operation, OPERATION), opened<Layout>(a, LAYOUT),
                     opened<Layout>(b, LAYOUT), opened<Layout>(c, LAYOUT), opened<Layout>(d, LAYOUT)};
  if (!handle || handle->magic != HANDLE) return refuse(CUBLAS_STATUS_NOT_INITIALIZED, "no handle");
  cublasStatus_t status = check_problem(problem);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (!alpha || !beta || !algo) return refuse(CUBLAS_STATUS_INVALID_VALUE, "no alpha, beta or algorithm");
  Algorithm algorithm;
  memcpy(&algorithm, algo, sizeof algorithm);
  if (algorithm.problem != hash_problem(problem))
    return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the algorithm was chosen for another problem");
  bool has_bias = problem.operation->epilogue == CUBLASLT_EPILOGUE_BIAS;
  const struct {
    const char *name;
    bool used;
    const void *at;
    uint32_t alignment;
  } pointers[] = {{"A", true, at_a, algorithm.alignment_a},
                  {"B", true, at_b, algorithm.alignment_b},
                  {"C", true, at_c, algorithm.alignment_c},
                  {"D", true, at_d, algorithm.alignment_d},
                  {"the bias", has_bias, problem.operation->bias, algorithm.alignment_bias},
                  {"the workspace", algorithm.workspace > 0, workspace, 16}};
  for (const auto &pointer : pointers) {
    if (pointer.used) status = check_pointer(pointer.name, pointer.at, pointer.alignment);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  }
  if (workspace_bytes < algorithm.workspace)
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "a workspace of %zu bytes; the algorithm needs %llu",
                  workspace_bytes, (unsigned long long)algorithm.workspace);
  if (overlap(at_a, problem.a, at_d, problem.d) || overlap(at_b, problem.b, at_d, problem.d))
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "the result lies over a factor");
  if (overlap(at_c, problem.c, at_d, problem.d) &&
      (at_c != at_d || memcmp(problem.c, problem.d, sizeof *problem.c) != 0))
    return refuse(CUBLAS_STATUS_INVALID_VALUE, "the result lies over C, and not as C does");
  Call call = {.operation = *problem.operation,
               .a = *problem.a,
               .b = *problem.b,
               .c = *problem.c,
               .d = *problem.d,
               .at_a = at_a,
               .at_b = at_b,
               .at_c = at_c,
               .at_d = at_d,
               .alpha = *static_cast<const float *>(alpha),
               .beta = *static_cast<const float *>(beta),
               .splits = algorithm.splits,
               .workspace = static_cast<float *>(workspace)};
  cudaError_t error = runtime_queue(stream, [call] { compute(call); });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
}
