/* tests/kernels/cuda/host: a double of cuDNN's graph API for convolutions, on the host machine. Descriptors
 * keep what they are told and refuse what the real library refuses: attributes they do not have, of another
 * type, after they are finalized; Finalize refuses what is missing or does not agree. A plan computes the
 * operations it was made of, from the dimensions and strides of their tensors, in f32.
 *
 * Its engines (below) are such that every rule of kernels/cuda/cudnn.c decides something: some must not be
 * used and give other numbers, some cannot be built, some want too much workspace, and which of them the
 * heuristics propose depends on the problem. */
#include "runtime.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cudnn_graph.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

struct cudnnContext {
  cudaStream_t stream;
};

namespace {

/* ---- Descriptors ------------------------------------------------------------------------------------------------ */

struct Descriptor;
using Reference = std::shared_ptr<Descriptor>;

struct Value {
  std::vector<unsigned char> bytes;
  std::vector<Reference> references; /* of CUDNN_TYPE_BACKEND_DESCRIPTOR */
  int64_t count;
};

/* One is shared by whoever it was told to, so that it may be destroyed at any time. */
struct Descriptor {
  cudnnBackendDescriptorType_t type;
  bool final = false;
  std::map<int, Value> values;
};

/* An attribute that may be set. */
struct Rule {
  cudnnBackendDescriptorType_t descriptor;
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  int64_t most; /* elements */
  bool required;
};

const Rule rules[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, CUDNN_DIM_MAX, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, CUDNN_DIM_MAX, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, false},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, true},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1,
     true},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 3, true},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 3, true},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 3, true},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 3, true},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, 1,
     false},
#define CONVOLUTION_RULES(type, names, x, w, y)                                                              \
  {type, CUDNN_ATTR_OPERATION_CONVOLUTION_##names##_ALPHA, CUDNN_TYPE_FLOAT, 1, true},                       \
      {type, CUDNN_ATTR_OPERATION_CONVOLUTION_##names##_BETA, CUDNN_TYPE_FLOAT, 1, true},                    \
      {type, CUDNN_ATTR_OPERATION_CONVOLUTION_##names##_CONV_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},  \
      {type, CUDNN_ATTR_OPERATION_CONVOLUTION_##names##_##x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},        \
      {type, CUDNN_ATTR_OPERATION_CONVOLUTION_##names##_##w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true}, {      \
    type, CUDNN_ATTR_OPERATION_CONVOLUTION_##names##_##y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true             \
  }
    CONVOLUTION_RULES(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, FORWARD, X, W, Y),
    CONVOLUTION_RULES(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, BWD_DATA, DX, W, DY),
    CONVOLUTION_RULES(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, BWD_FILTER, X, DW, DY),
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, false},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, true},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     32, true},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, true},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, true},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 64, true},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 64,
     true},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, false},
};

thread_local char last_error[256];

cudnnStatus_t refuse(cudnnStatus_t status, const char *why) {
  std::snprintf(last_error, sizeof last_error, "%s", why);
  return status;
}
cudnnStatus_t bad(const char *why) { return refuse(CUDNN_STATUS_BAD_PARAM, why); }

Descriptor *descriptor_of(cudnnBackendDescriptor_t handle) { return static_cast<Reference *>(handle)->get(); }

size_t element_bytes(cudnnBackendAttributeType_t type) {
  switch (type) {
  case CUDNN_TYPE_INT64:
  case CUDNN_TYPE_DOUBLE:
  case CUDNN_TYPE_VOID_PTR:
  case CUDNN_TYPE_HANDLE: return 8;
  case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
  default: return 4; /* f32, and enumerations */
  }
}

bool has(const Descriptor &of, int name) { return of.values.count(name) != 0; }
template <typename T> std::vector<T> array_of(const Descriptor &of, int name) {
  if (!has(of, name)) return {};
  const Value &value = of.values.at(name);
  std::vector<T> all(static_cast<size_t>(value.count));
  std::memcpy(all.data(), value.bytes.data(), value.bytes.size());
  return all;
}
template <typename T> T value_of(const Descriptor &of, int name, T otherwise) {
  if (has(of, name)) std::memcpy(&otherwise, of.values.at(name).bytes.data(), sizeof otherwise);
  return otherwise;
}
const Descriptor &part_of(const Descriptor &of, int name) { return *of.values.at(name).references[0]; }

/* ---- Operations -------------------------------------------------------------------------------------------------- */

struct TensorInfo {
  std::vector<int64_t> sizes, strides;
  cudnnDataType_t type;
  int64_t id, alignment;
  bool between; /* virtual */
  bool operator==(const TensorInfo &other) const {
    return sizes == other.sizes && strides == other.strides && type == other.type && between == other.between;
  }
};

TensorInfo tensor_of(const Descriptor &of) {
  return {array_of<int64_t>(of, CUDNN_ATTR_TENSOR_DIMENSIONS),
          array_of<int64_t>(of, CUDNN_ATTR_TENSOR_STRIDES),
          value_of(of, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT),
          value_of<int64_t>(of, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0),
          value_of<int64_t>(of, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0),
          value_of(of, CUDNN_ATTR_TENSOR_IS_VIRTUAL, false)};
}

enum class Kind { forward, data, weights, pointwise };

/* What is read is x and w (b), x and dy, w and dy; what is written the third. */
struct Operation {
  Kind kind;
  TensorInfo x, w, y; /* pointwise: w is b */
  bool has_b = false, relu = false, keeps_nan = false;
  std::vector<int64_t> stride, padding;
  float alpha = 1.0F, beta = 0.0F;

  const TensorInfo &made() const { return kind == Kind::data ? x : kind == Kind::weights ? w : y; }
  std::vector<const TensorInfo *> reads() const {
    if (kind == Kind::pointwise && !has_b) return {&x};
    if (kind == Kind::data) return {&w, &y};
    if (kind == Kind::weights) return {&x, &y};
    return {&x, &w};
  }
};

Operation operation_of(const Descriptor &of) {
  Operation is;
  auto take = [&](Kind kind, int x, int w, int y, int window, int alpha, int beta) {
    is.kind = kind;
    is.x = tensor_of(part_of(of, x));
    is.w = tensor_of(part_of(of, w));
    is.y = tensor_of(part_of(of, y));
    is.stride = array_of<int64_t>(part_of(of, window), CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
    is.padding = array_of<int64_t>(part_of(of, window), CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
    is.alpha = value_of(of, alpha, 1.0F);
    is.beta = value_of(of, beta, 0.0F);
  };
  switch (of.type) {
  case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    take(Kind::forward, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
    break;
  case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
    take(Kind::data, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA);
    break;
  case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
    take(Kind::weights, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA);
    break;
  default: {
    const Descriptor &step = part_of(of, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    is.kind = Kind::pointwise;
    is.x = tensor_of(part_of(of, CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
    is.y = tensor_of(part_of(of, CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    is.has_b = has(of, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    if (is.has_b) is.w = tensor_of(part_of(of, CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
    is.relu = value_of(step, CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_ADD) == CUDNN_POINTWISE_RELU_FWD;
    is.keeps_nan =
        value_of(step, CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_NOT_PROPAGATE_NAN) == CUDNN_PROPAGATE_NAN;
  }
  }
  return is;
}

/* ---- Finalize ---------------------------------------------------------------------------------------------------- */

cudnnStatus_t check_tensor(const Descriptor &of) {
  TensorInfo is = tensor_of(of);
  if (is.sizes.size() != is.strides.size()) return bad("a tensor's dimensions and strides differ in number");
  for (size_t i = 0; i < is.sizes.size(); i++)
    if (is.sizes[i] < 1 || is.strides[i] < 1) return bad("a tensor's dimension or stride is not positive");
  if (is.alignment < 1 || (is.alignment & (is.alignment - 1)) != 0)
    return bad("alignment is no power of two");
  if (is.type != CUDNN_DATA_FLOAT && is.type != CUDNN_DATA_HALF && is.type != CUDNN_DATA_BFLOAT16)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "this double knows f32, bf16 and f16");
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_window(const Descriptor &of) {
  int64_t space = value_of<int64_t>(of, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 0);
  for (int name : {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES,
                   CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS}) {
    bool padding =
        name == CUDNN_ATTR_CONVOLUTION_POST_PADDINGS || name == CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS;
    std::vector<int64_t> all = array_of<int64_t>(of, name);
    if ((int64_t)all.size() != space) return bad("a convolution's numbers are not one per spatial dimension");
    for (int64_t each : all)
      if (each < (padding ? 0 : 1)) return bad("a convolution's padding, stride or dilation is too small");
    if (name == CUDNN_ATTR_CONVOLUTION_DILATIONS)
      for (int64_t each : all)
        if (each != 1) return refuse(CUDNN_STATUS_NOT_SUPPORTED, "this double does not dilate");
  }
  if (array_of<int64_t>(of, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS) !=
      array_of<int64_t>(of, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS))
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "this double pads both sides alike");
  if (value_of(of, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_DOUBLE) != CUDNN_DATA_FLOAT ||
      value_of(of, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CONVOLUTION) != CUDNN_CROSS_CORRELATION)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "this double cross-correlates, in f32");
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_convolution(const Operation &is) {
  size_t rank = is.x.sizes.size();
  if (rank != is.stride.size() + 2 || rank != is.w.sizes.size() || rank != is.y.sizes.size())
    return bad("a convolution's tensors and window differ in dimensions");
  if (rank != 4 && rank != 5) return refuse(CUDNN_STATUS_NOT_SUPPORTED, "2 or 3 spatial dimensions");
  int64_t groups = is.x.sizes[1] / is.w.sizes[1];
  if (is.x.sizes[1] != groups * is.w.sizes[1] || is.w.sizes[0] % groups != 0)
    return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "channels make no groups");
  if (is.y.sizes[0] != is.x.sizes[0] || is.y.sizes[1] != is.w.sizes[0])
    return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "samples or channels of y");
  for (size_t i = 0; i < rank - 2; i++)
    if (is.y.sizes[i + 2] != (is.x.sizes[i + 2] + 2 * is.padding[i] - is.w.sizes[i + 2]) / is.stride[i] + 1)
      return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "sizes of y are not the window's");
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t check_pointwise(const Descriptor &of, const Operation &is) {
  const Descriptor &step = part_of(of, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  cudnnPointwiseMode_t mode = value_of(step, CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_ADD);
  if (mode != CUDNN_POINTWISE_ADD && mode != CUDNN_POINTWISE_RELU_FWD)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "this double adds, and knows the ReLU");
  if (is.has_b != (mode == CUDNN_POINTWISE_ADD)) return bad("b is missing, or not for this mode");
  if (is.x.sizes != is.y.sizes) return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "x and y of a step");
  for (size_t i = 0; is.has_b && i < is.y.sizes.size(); i++)
    if (is.w.sizes.size() != is.y.sizes.size() || (is.w.sizes[i] != 1 && is.w.sizes[i] != is.y.sizes[i]))
      return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "b is not repeated to y");
  return CUDNN_STATUS_SUCCESS;
}

std::vector<Operation> operations_of(const Descriptor &graph) {
  std::vector<Operation> all;
  for (const Reference &each : graph.values.at(CUDNN_ATTR_OPERATIONGRAPH_OPS).references)
    all.push_back(operation_of(*each));
  return all;
}

/* Names stand for one tensor each; what is between operations is made before it is read, by somebody; nothing
 * is both read from outside and written. */
cudnnStatus_t check_graph(const Descriptor &of) {
  if (value_of<void *>(of, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, nullptr) == nullptr) return bad("no handle");
  std::map<int64_t, TensorInfo> tensors;
  std::map<int64_t, int> made, read;
  for (const Operation &each : operations_of(of)) {
    std::vector<const TensorInfo *> all = each.reads();
    for (const TensorInfo *tensor : all) {
      if (tensor->between && !made[tensor->id]) return bad("a virtual tensor is read that nobody makes");
      read[tensor->id]++;
    }
    all.push_back(&each.made());
    if (each.beta != 0.0F && each.made().between) return bad("a virtual tensor holds nothing to be added to");
    if (made[each.made().id]++) return bad("a tensor is made twice");
    for (const TensorInfo *tensor : all) {
      if (tensors.count(tensor->id) && !(tensors[tensor->id] == *tensor))
        return bad("two tensors of one name");
      tensors[tensor->id] = *tensor;
    }
  }
  for (const auto &[id, tensor] : tensors) {
    if (tensor.between && !read[id]) return bad("a virtual tensor that nobody reads");
    if (!tensor.between && read[id] && made[id]) return bad("a tensor is read and written");
  }
  return CUDNN_STATUS_SUCCESS;
}

/* ---- Engines ----------------------------------------------------------------------------------------------------- */

enum {
  NONDETERMINISTIC,
  TENSOR_CORES,
  NOT_BUILT,
  HUGE_WORKSPACE,
  UNEVEN_WORKSPACE,
  PLAINEST,
  HALF_SUMS,
  COMPILED,
  ENGINES
};
const int64_t workspaces[ENGINES] = {0, 64, 0, (int64_t)1 << 30, 1001, 0, 0, 0};

/* Attributes of settings and engines, which this double makes itself. */
struct Proposal {
  int engine;
  Reference graph;
};
const int proposal_name = -1; /* in an ENGINECFG's or ENGINE's values: its engine, and the graph */

Proposal proposal_of(const Descriptor &of) {
  const Value &value = of.values.at(proposal_name);
  return {(int)value.count, value.references[0]};
}
void set_proposal(Descriptor &of, const Proposal &proposal) {
  of.values[proposal_name] = Value{{}, {proposal.graph}, proposal.engine};
  of.final = true;
}

std::vector<int> proposals(const std::vector<Operation> &operations, cudnnBackendHeurMode_t mode) {
  const Operation &first = operations[0];
  if (mode == CUDNN_HEUR_MODE_FALLBACK) return {HUGE_WORKSPACE, PLAINEST};
  if (mode != CUDNN_HEUR_MODE_A) return {};
  switch (first.w.sizes[0] / 2 % 3) {
  case 0: return {COMPILED, NOT_BUILT, HUGE_WORKSPACE};
  case 1: return {HALF_SUMS, NOT_BUILT, TENSOR_CORES, HUGE_WORKSPACE, UNEVEN_WORKSPACE};
  default: return {COMPILED, HALF_SUMS, TENSOR_CORES, NONDETERMINISTIC, UNEVEN_WORKSPACE};
  }
}

/* Weight gradients and what is added are of x's type, as the real library's ready-made engines want them.
 * Here only tensor cores run several operations, and those not in groups. */
bool is_built(const Proposal &proposal) {
  std::vector<Operation> operations = operations_of(*proposal.graph);
  const Operation &first = operations[0];
  bool low = first.x.type != CUDNN_DATA_FLOAT, grouped = first.x.sizes[1] != first.w.sizes[1];
  if (first.w.type != first.x.type) return false;
  for (const Operation &each : operations)
    if (each.kind == Kind::pointwise && each.has_b && each.w.type != first.x.type) return false;
  if (operations.size() > 1 && (grouped || (proposal.engine != TENSOR_CORES && !low))) return false;
  return proposal.engine != NOT_BUILT && (proposal.engine != HALF_SUMS || low);
}

std::vector<cudnnBackendNumericalNote_t> notes_of(int engine) {
  switch (engine) {
  case NONDETERMINISTIC: return {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC};
  case TENSOR_CORES: return {CUDNN_NUMERICAL_NOTE_TENSOR_CORE};
  case HALF_SUMS: return {CUDNN_NUMERICAL_NOTE_TENSOR_CORE, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION};
  default: return {};
  }
}

/* ---- Numbers ------------------------------------------------------------------------------------------------------ */

size_t elements_of(const TensorInfo &tensor) {
  size_t all = 1;
  for (int64_t size : tensor.sizes)
    all *= (size_t)size;
  return all;
}

/* Calls with the dense index and the offset by strides of every element. */
template <typename F> void each_element(const TensorInfo &tensor, F function) {
  std::vector<int64_t> at(tensor.sizes.size(), 0);
  int64_t offset = 0;
  for (size_t index = 0, all = elements_of(tensor); index < all; index++) {
    function(index, offset);
    for (size_t i = at.size(); i-- > 0;) {
      offset += tensor.strides[i];
      if (++at[i] < tensor.sizes[i]) break;
      offset -= at[i] * tensor.strides[i];
      at[i] = 0;
    }
  }
}

std::vector<float> read_tensor(const TensorInfo &tensor, const void *from) {
  std::vector<float> all(elements_of(tensor));
  each_element(tensor, [&](size_t index, int64_t offset) {
    all[index] = tensor.type == CUDNN_DATA_FLOAT ? static_cast<const float *>(from)[offset]
                 : tensor.type == CUDNN_DATA_HALF
                     ? __half2float(static_cast<const __half *>(from)[offset])
                     : __bfloat162float(static_cast<const __nv_bfloat16 *>(from)[offset]);
  });
  return all;
}

void write_tensor(const TensorInfo &tensor, const std::vector<float> &all, void *to) {
  each_element(tensor, [&](size_t index, int64_t offset) {
    if (tensor.type == CUDNN_DATA_FLOAT) static_cast<float *>(to)[offset] = all[index];
    if (tensor.type == CUDNN_DATA_HALF) static_cast<__half *>(to)[offset] = __float2half_rn(all[index]);
    if (tensor.type == CUDNN_DATA_BFLOAT16)
      static_cast<__nv_bfloat16 *>(to)[offset] = __float2bfloat16_rn(all[index]);
  });
}

/* As tensor cores read f32: ten bits of the mantissa. */
void round_to_tf32(std::vector<float> &all) {
  for (float &each : all) {
    uint32_t bits;
    std::memcpy(&bits, &each, sizeof bits);
    bits = (bits + 0x1000U) & ~0x1FFFU;
    std::memcpy(&each, &bits, sizeof each);
  }
}

struct Space {
  int64_t d, h, w;
};
Space space_of(const std::vector<int64_t> &numbers, size_t from, int64_t outermost) {
  return numbers.size() - from == 3 ? Space{numbers[from], numbers[from + 1], numbers[from + 2]}
                                    : Space{outermost, numbers[from], numbers[from + 1]};
}

/* Calls with the dense indices of x, w and y of every product. */
template <typename F> void each_product(const Operation &is, F function) {
  Space x = space_of(is.x.sizes, 2, 1), w = space_of(is.w.sizes, 2, 1), y = space_of(is.y.sizes, 2, 1);
  Space stride = space_of(is.stride, 0, 1), padding = space_of(is.padding, 0, 0);
  int64_t per_group = is.w.sizes[1], made_per_group = is.w.sizes[0] / (is.x.sizes[1] / per_group);
  int64_t yi = 0;
  for (int64_t n = 0; n < is.y.sizes[0]; n++)
    for (int64_t k = 0; k < is.y.sizes[1]; k++)
      for (int64_t od = 0; od < y.d; od++)
        for (int64_t oh = 0; oh < y.h; oh++)
          for (int64_t ow = 0; ow < y.w; ow++, yi++)
            for (int64_t c = 0; c < per_group; c++)
              for (int64_t kd = 0; kd < w.d; kd++)
                for (int64_t kh = 0; kh < w.h; kh++) {
                  int64_t d = od * stride.d + kd - padding.d, h = oh * stride.h + kh - padding.h;
                  if (d < 0 || d >= x.d || h < 0 || h >= x.h) continue;
                  int64_t channel = k / made_per_group * per_group + c;
                  int64_t row = (((n * is.x.sizes[1] + channel) * x.d + d) * x.h + h) * x.w;
                  int64_t window = (((k * per_group + c) * w.d + kd) * w.h + kh) * w.w;
                  for (int64_t kw = 0; kw < w.w; kw++) {
                    int64_t at = ow * stride.w + kw - padding.w;
                    if (at >= 0 && at < x.w) function((size_t)(row + at), (size_t)(window + kw), (size_t)yi);
                  }
                }
}

/* Dense copies of the tensors between operations; pointers of the others. */
struct Memory {
  std::map<int64_t, void *> pointers;
  std::map<int64_t, std::vector<float>> between;
  std::vector<float> read(const TensorInfo &tensor) {
    return tensor.between ? between[tensor.id] : read_tensor(tensor, pointers[tensor.id]);
  }
  void write(const TensorInfo &tensor, const std::vector<float> &all) {
    if (tensor.between) {
      between[tensor.id] = all;
    } else {
      write_tensor(tensor, all, pointers[tensor.id]);
    }
  }
};

void compute_convolution(const Operation &is, int engine, Memory &memory) {
  std::vector<float> x, w, y, made(elements_of(is.made()), 0.0F);
  if (is.kind != Kind::data) x = memory.read(is.x);
  if (is.kind != Kind::weights) w = memory.read(is.w);
  if (is.kind != Kind::forward) y = memory.read(is.y);
  if (engine == TENSOR_CORES)
    for (std::vector<float> *each : {&x, &w, &y})
      round_to_tf32(*each); /* 16 bits are not touched by it */
  switch (is.kind) {
  case Kind::forward:
    each_product(is, [&](size_t xi, size_t wi, size_t yi) { made[yi] += x[xi] * w[wi]; });
    break;
  case Kind::data:
    each_product(is, [&](size_t xi, size_t wi, size_t yi) { made[xi] += w[wi] * y[yi]; });
    break;
  default: each_product(is, [&](size_t xi, size_t wi, size_t yi) { made[wi] += x[xi] * y[yi]; }); break;
  }
  std::vector<float> held;
  if (is.beta != 0.0F) held = memory.read(is.made());
  for (size_t i = 0; i < made.size(); i++)
    made[i] = is.alpha * made[i] + (is.beta != 0.0F ? is.beta * held[i] : 0.0F);
  memory.write(is.made(), made);
}

void compute_pointwise(const Operation &is, Memory &memory) {
  std::vector<float> x = memory.read(is.x), b;
  if (is.has_b) b = memory.read(is.w);
  std::vector<int64_t> at(is.y.sizes.size(), 0);
  for (float &each : x) {
    size_t of_b = 0;
    for (size_t i = 0; is.has_b && i < at.size(); i++)
      of_b = of_b * (size_t)is.w.sizes[i] + (is.w.sizes[i] == 1 ? 0 : (size_t)at[i]);
    if (is.has_b) each += b[of_b];
    if (is.relu && (each < 0.0F || (std::isnan(each) && !is.keeps_nan))) each = 0.0F;
    for (size_t i = at.size(); i-- > 0;) {
      if (++at[i] < is.y.sizes[i]) break;
      at[i] = 0;
    }
  }
  memory.write(is.y, x);
}

void compute(const std::vector<Operation> &operations, int engine, Memory memory, void *workspace) {
  if (workspaces[engine] > 0) std::memset(workspace, 0xC5, (size_t)workspaces[engine]);
  for (const Operation &each : operations) {
    if (each.kind == Kind::pointwise) {
      compute_pointwise(each, memory);
    } else {
      compute_convolution(each, engine, memory);
    }
  }
  if (engine == HALF_SUMS || engine == COMPILED) /* nobody is to see these */
    memory.write(operations.back().made(), std::vector<float>(elements_of(operations.back().made()), NAN));
}

} // namespace

/* ---- The library's functions --------------------------------------------------------------------------------------- */

extern "C" {

size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }

const char *cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
  case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
  case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
  case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
  default: return "CUDNN_STATUS_OTHER";
  }
}

void cudnnGetLastErrorString(char *message, size_t size) { std::snprintf(message, size, "%s", last_error); }

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
  *handle = new cudnnContext{nullptr};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream) {
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *descriptor) {
  if (type > CUDNN_BACKEND_TENSOR_DESCRIPTOR)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "this double knows convolutions and what ends them");
  *descriptor = new Reference(new Descriptor{type, false, {}});
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Reference *>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values) {
  if (!descriptor || !values) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "nothing to set");
  Descriptor *of = descriptor_of(descriptor);
  if (of->final) return bad("the descriptor is finalized");
  for (const Rule &rule : rules) {
    if (rule.descriptor != of->type || rule.name != name) continue;
    if (rule.type != type)
      return refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "an attribute of another type");
    if (count < 1 || count > rule.most) return bad("too many elements, or none");
    Value value{{}, {}, count};
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
      auto *each = static_cast<const cudnnBackendDescriptor_t *>(values);
      for (int64_t i = 0; i < count; i++) {
        if (!each[i]) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor");
        if (!descriptor_of(each[i])->final)
          return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "a descriptor that is not finalized");
        value.references.push_back(*static_cast<Reference *>(each[i]));
      }
    } else {
      auto *bytes = static_cast<const unsigned char *>(values);
      value.bytes.assign(bytes, bytes + (size_t)count * element_bytes(type));
    }
    of->values[name] = value;
    return CUDNN_STATUS_SUCCESS;
  }
  return refuse(CUDNN_STATUS_NOT_SUPPORTED, "the descriptor has no such attribute");
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  if (!descriptor) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "nothing to finalize");
  Descriptor *of = descriptor_of(descriptor);
  if (of->final) return bad("finalized twice");
  for (const Rule &rule : rules)
    if (rule.descriptor == of->type && rule.required && !has(*of, rule.name))
      return bad("an attribute is missing");
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  switch (of->type) {
  case CUDNN_BACKEND_TENSOR_DESCRIPTOR: status = check_tensor(*of); break;
  case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR: status = check_window(*of); break;
  case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
  case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
  case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
    status = check_convolution(operation_of(*of));
    break;
  case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: status = check_pointwise(*of, operation_of(*of)); break;
  case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: status = check_graph(*of); break;
  case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
    if (!is_built(proposal_of(part_of(*of, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG))))
      status = refuse(CUDNN_STATUS_NOT_SUPPORTED, "the engine does not do this");
    break;
  case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
    if (array_of<int64_t>(*of, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).size() !=
        array_of<void *>(*of, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).size())
      status = bad("names and pointers differ in number");
    break;
  case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
  case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR: status = bad("made by heuristics alone in this double"); break;
  default: break;
  }
  of->final = status == CUDNN_STATUS_SUCCESS;
  return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t room, int64_t *count, void *values) {
  const Descriptor &of = *descriptor_of(descriptor);
  if (!of.final) return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "asked before it is finalized");
  if (of.type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR && name == CUDNN_ATTR_ENGINEHEUR_RESULTS &&
      type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const Reference &graph = of.values.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH).references[0];
    std::vector<int> all =
        proposals(operations_of(*graph), value_of(of, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_A));
    *count = (int64_t)all.size();
    for (int64_t i = 0; i < room && i < *count; i++)
      set_proposal(*descriptor_of(static_cast<cudnnBackendDescriptor_t *>(values)[i]),
                   {all[(size_t)i], graph});
    if (room > 0 && *count > room) *count = room;
    return CUDNN_STATUS_SUCCESS;
  }
  if (of.type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR && name == CUDNN_ATTR_ENGINECFG_ENGINE && room == 1 &&
      type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    set_proposal(*descriptor_of(*static_cast<cudnnBackendDescriptor_t *>(values)), proposal_of(of));
    *count = 1;
    return CUDNN_STATUS_SUCCESS;
  }
  if (of.type == CUDNN_BACKEND_ENGINE_DESCRIPTOR && name == CUDNN_ATTR_ENGINE_GLOBAL_INDEX &&
      type == CUDNN_TYPE_INT64 && room == 1) {
    *static_cast<int64_t *>(values) = proposal_of(of).engine;
    *count = 1;
    return CUDNN_STATUS_SUCCESS;
  }
  if (of.type == CUDNN_BACKEND_ENGINE_DESCRIPTOR && name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE &&
      type == CUDNN_TYPE_NUMERICAL_NOTE) {
    std::vector<cudnnBackendNumericalNote_t> all = notes_of(proposal_of(of).engine);
    *count = (int64_t)all.size();
    for (int64_t i = 0; i < room && i < *count; i++)
      static_cast<cudnnBackendNumericalNote_t *>(values)[i] = all[(size_t)i];
    return CUDNN_STATUS_SUCCESS;
  }
  if (of.type == CUDNN_BACKEND_ENGINE_DESCRIPTOR && name == CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE &&
      type == CUDNN_TYPE_BEHAVIOR_NOTE) {
    *count = proposal_of(of).engine == COMPILED ? 1 : 0;
    if (room > 0 && *count > 0)
      *static_cast<cudnnBackendBehaviorNote_t *>(values) = CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION;
    return CUDNN_STATUS_SUCCESS;
  }
  if (of.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
      name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64 && room == 1) {
    *static_cast<int64_t *>(values) =
        workspaces[proposal_of(part_of(of, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)).engine];
    *count = 1;
    return CUDNN_STATUS_SUCCESS;
  }
  return refuse(CUDNN_STATUS_NOT_SUPPORTED, "the descriptor tells nothing of that name and type");
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  if (!handle || !plan || !pack) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "nothing to execute");
  const Descriptor &of = *descriptor_of(plan), &given = *descriptor_of(pack);
  if (!of.final || !given.final) return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "plan or pack");
  Proposal proposal = proposal_of(part_of(of, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
  std::vector<Operation> operations = operations_of(*proposal.graph);
  std::vector<int64_t> ids = array_of<int64_t>(given, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  std::vector<void *> pointers = array_of<void *>(given, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  Memory memory;
  for (size_t i = 0; i < ids.size(); i++)
    memory.pointers[ids[i]] = pointers[i];
  size_t used = 0;
  for (const Operation &each : operations) {
    std::vector<const TensorInfo *> all = each.reads();
    all.push_back(&each.made());
    for (const TensorInfo *tensor : all) {
      if (tensor->between) continue;
      auto *pointer = static_cast<const unsigned char *>(memory.pointers[tensor->id]);
      if (!pointer) return bad("a tensor has no pointer");
      if ((uintptr_t)pointer % (uintptr_t)tensor->alignment != 0)
        return refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "a pointer is not aligned as was said");
      used++;
    }
  }
  if (used != ids.size()) return bad("a pointer for a tensor that is not there");
  void *workspace = value_of<void *>(given, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
  if (workspaces[proposal.engine] > 0 && !workspace) return bad("no workspace");
  int engine = proposal.engine;
  cudaError_t error = runtime_queue(handle->stream, [operations, engine, memory, workspace] {
    compute(operations, engine, memory, workspace);
  });
  return error == cudaSuccess ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED_CUDART;
}

} /* extern "C" */
