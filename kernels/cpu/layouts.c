/* Memory formats as numbers. A format is one of oneDNN's tags (an order of dimensions and inner blocks), so
 * that it can be written down again for any shape; what no tag expresses is refused. */
#include "kernels/cpu/cpu.h"
#include "oneapi/dnnl/dnnl_debug.h"
#include <stdlib.h>
#include <string.h>

enum { LAYOUT_CAPACITY = 128, GROUPED_DIMS = VL_MAX_DIMS + 1 };

typedef enum LayoutKind { KIND_OTHER = 0, KIND_CHANNELS_LAST, KIND_BLOCKED } LayoutKind;

typedef struct Layout {
  dnnl_format_tag_t tag;
  int32_t rank;   /* of the descriptor: the tensor's, one more with groups */
  int64_t groups; /* 1: none */
  LayoutKind kind;
  int64_t block; /* of KIND_BLOCKED */
  char name[32];
} Layout;

struct LayoutTable {
  Layout layouts[LAYOUT_CAPACITY]; /* entry 0 stands for plain */
  int32_t count;
};

/* The activation formats every op knows, with the names people use for them. */
static const struct {
  dnnl_format_tag_t tag;
  int32_t rank;
  LayoutKind kind;
  int64_t block;
  const char *name;
} activation_layouts[] = {
    {dnnl_acb, 3, KIND_CHANNELS_LAST, 0, "nwc"},     {dnnl_acdb, 4, KIND_CHANNELS_LAST, 0, "nhwc"},
    {dnnl_acdeb, 5, KIND_CHANNELS_LAST, 0, "ndhwc"}, {dnnl_aBc16b, 3, KIND_BLOCKED, 16, "nCw16c"},
    {dnnl_aBcd16b, 4, KIND_BLOCKED, 16, "nChw16c"},  {dnnl_aBcde16b, 5, KIND_BLOCKED, 16, "nCdhw16c"},
    {dnnl_aBc8b, 3, KIND_BLOCKED, 8, "nCw8c"},       {dnnl_aBcd8b, 4, KIND_BLOCKED, 8, "nChw8c"},
    {dnnl_aBcde8b, 5, KIND_BLOCKED, 8, "nCdhw8c"},
};

static const dnnl_format_tag_t plain_tags[GROUPED_DIMS + 1] = {dnnl_a,    dnnl_a,     dnnl_ab,    dnnl_abc,
                                                               dnnl_abcd, dnnl_abcde, dnnl_abcdef};

LayoutTable *cpu_layouts_create(void) {
  LayoutTable *table = vl_allocate(sizeof *table);
  snprintf(table->layouts[LAYOUT_PLAIN].name, sizeof table->layouts[LAYOUT_PLAIN].name, "plain");
  table->count = 1;
  for (size_t i = 0; i < sizeof activation_layouts / sizeof *activation_layouts; ++i) {
    Layout *layout = &table->layouts[table->count++];
    layout->tag = activation_layouts[i].tag;
    layout->rank = activation_layouts[i].rank;
    layout->groups = 1;
    layout->kind = activation_layouts[i].kind;
    layout->block = activation_layouts[i].block;
    snprintf(layout->name, sizeof layout->name, "%s", activation_layouts[i].name);
  }
  return table;
}

void cpu_layouts_destroy(LayoutTable **layouts) {
  free(*layouts);
  *layouts = NULL;
}

static const Layout *find(const CpuDevice *device, LayoutId id) {
  return id > 0 && id < device->layouts->count ? &device->layouts->layouts[id] : NULL;
}

static LayoutId find_kind(CpuDevice *device, int32_t rank, LayoutKind kind, int64_t block) {
  for (LayoutId id = 1; id < device->layouts->count; ++id) {
    const Layout *layout = &device->layouts->layouts[id];
    if (layout->rank == rank && layout->groups == 1 && layout->kind == kind && layout->block == block)
      return id;
  }
  return LAYOUT_PLAIN;
}

LayoutId cpu_layout_channels_last(CpuDevice *device, int32_t rank) {
  return find_kind(device, rank, KIND_CHANNELS_LAST, 0);
}

LayoutId cpu_layout_blocked(CpuDevice *device, int32_t rank, int64_t block) {
  return find_kind(device, rank, KIND_BLOCKED, block);
}

bool cpu_layout_is_activation(CpuDevice *device, LayoutId layout) {
  const Layout *entry = find(device, layout);
  return entry && entry->kind != KIND_OTHER;
}

int64_t cpu_layout_groups(CpuDevice *device, LayoutId layout) {
  const Layout *entry = find(device, layout);
  return entry ? entry->groups : 1;
}

const char *cpu_layout_name(CpuDevice *device, LayoutId layout) {
  if (layout == LAYOUT_PLAIN) return "plain";
  if (layout == LAYOUT_ANY) return "any";
  const Layout *entry = find(device, layout);
  return entry ? entry->name : "unknown";
}

/* ---- Descriptors ------------------------------------------------------------------------------------------ */

/* What order and blocks of a descriptor are, without the strides of dimensions that have one element. */
typedef struct Geometry {
  dnnl_dim_t *dims, *padded, *strides, *blocks, *indices; /* borrowed from the descriptor */
  int rank, block_count;
} Geometry;

static bool read_geometry(const_dnnl_memory_desc_t md, Geometry *g) {
  dnnl_format_kind_t kind;
  if (dnnl_memory_desc_query(md, dnnl_query_format_kind, &kind) != dnnl_success || kind != dnnl_blocked)
    return false;
  return dnnl_memory_desc_query(md, dnnl_query_ndims_s32, &g->rank) == dnnl_success &&
         dnnl_memory_desc_query(md, dnnl_query_dims, &g->dims) == dnnl_success &&
         dnnl_memory_desc_query(md, dnnl_query_padded_dims, &g->padded) == dnnl_success &&
         dnnl_memory_desc_query(md, dnnl_query_strides, &g->strides) == dnnl_success &&
         dnnl_memory_desc_query(md, dnnl_query_inner_nblks_s32, &g->block_count) == dnnl_success &&
         dnnl_memory_desc_query(md, dnnl_query_inner_blks, &g->blocks) == dnnl_success &&
         dnnl_memory_desc_query(md, dnnl_query_inner_idxs, &g->indices) == dnnl_success;
}

/* Whether two descriptors of the same shape put every element at the same place. */
static bool same_memory(const Geometry *a, const Geometry *b) {
  if (a->rank != b->rank || a->block_count != b->block_count) return false;
  dnnl_dim_t blocks[GROUPED_DIMS] = {1, 1, 1, 1, 1, 1};
  for (int i = 0; i < a->block_count; ++i) {
    if (a->blocks[i] != b->blocks[i] || a->indices[i] != b->indices[i]) return false;
    blocks[a->indices[i]] *= a->blocks[i];
  }
  for (int i = 0; i < a->rank; ++i) {
    if (a->padded[i] != b->padded[i]) return false;
    if (a->padded[i] / blocks[i] > 1 && a->strides[i] != b->strides[i]) return false;
  }
  return true;
}

static bool tag_describes(dnnl_format_tag_t tag, const_dnnl_memory_desc_t md, const Geometry *geometry) {
  dnnl_data_type_t type;
  dnnl_memory_desc_t guess = NULL;
  if (dnnl_memory_desc_query(md, dnnl_query_data_type, &type) != dnnl_success) return false;
  if (dnnl_memory_desc_create_with_tag(&guess, geometry->rank, geometry->dims, type, tag) != dnnl_success)
    return false;
  Geometry other;
  bool same = read_geometry(guess, &other) && same_memory(geometry, &other) &&
              dnnl_memory_desc_get_size(guess) == dnnl_memory_desc_get_size(md);
  dnnl_memory_desc_destroy(guess);
  return same;
}

static Status add_layout(CpuDevice *device, const Geometry *geometry, const_dnnl_memory_desc_t md,
                         int64_t groups, LayoutId *layout) {
  LayoutTable *table = device->layouts;
  for (int tag = dnnl_a; tag < dnnl_format_tag_last; ++tag) {
    if (!tag_describes((dnnl_format_tag_t)tag, md, geometry)) continue;
    if (table->count == LAYOUT_CAPACITY)
      return vl_error(VL_INTERNAL, "cpu: more than %d memory formats", LAYOUT_CAPACITY);
    Layout *entry = &table->layouts[table->count];
    entry->tag = (dnnl_format_tag_t)tag;
    entry->rank = geometry->rank;
    entry->groups = groups;
    const char *name = dnnl_fmt_tag2str(entry->tag);
    if (groups > 1)
      snprintf(entry->name, sizeof entry->name, "%s/g%lld", name, (long long)groups);
    else
      snprintf(entry->name, sizeof entry->name, "%s", name);
    *layout = table->count++;
    return vl_ok();
  }
  return vl_error(VL_UNSUPPORTED, "cpu: the library chose a memory format that no order and blocks express");
}

Status cpu_layout_of(CpuDevice *device, const_dnnl_memory_desc_t descriptor, int64_t groups,
                     LayoutId *layout) {
  Geometry geometry;
  *layout = LAYOUT_PLAIN;
  if (!read_geometry(descriptor, &geometry) || geometry.rank > GROUPED_DIMS)
    return vl_error(VL_UNSUPPORTED, "cpu: the library chose an opaque memory format");
  if (tag_describes(plain_tags[geometry.rank], descriptor, &geometry)) return vl_ok();
  for (LayoutId id = 1; id < device->layouts->count; ++id) {
    const Layout *entry = &device->layouts->layouts[id];
    if (entry->rank != geometry.rank || entry->groups != groups) continue;
    if (!tag_describes(entry->tag, descriptor, &geometry)) continue;
    *layout = id;
    return vl_ok();
  }
  return add_layout(device, &geometry, descriptor, groups, layout);
}

Status cpu_layout_descriptor(CpuDevice *device, LayoutId layout, DType dtype, int32_t rank,
                             const int64_t *shape, int64_t groups, dnnl_memory_desc_t *descriptor) {
  dnnl_dims_t dims = {1};
  int count = 0;
  if (groups > 1) {
    dims[count++] = groups;
    dims[count++] = shape[0] / groups;
  } else if (rank > 0) {
    dims[count++] = shape[0];
  }
  for (int32_t i = 1; i < rank; ++i)
    dims[count++] = shape[i];
  if (count == 0) count = 1; /* a scalar is one element */
  const Layout *entry = find(device, layout);
  if (entry && (entry->rank != count || entry->groups != groups))
    return vl_error(VL_UNSUPPORTED, "cpu: layout %s is of rank %d with %lld groups, asked for %d with %lld",
                    entry->name, entry->rank, (long long)entry->groups, count, (long long)groups);
  if (!entry && layout != LAYOUT_PLAIN && layout != LAYOUT_ANY)
    return vl_error(VL_INTERNAL, "cpu: there is no layout %d", layout);
  dnnl_format_tag_t tag = entry                    ? entry->tag
                          : layout == LAYOUT_PLAIN ? plain_tags[count]
                                                   : dnnl_format_tag_any;
  dnnl_data_type_t type = cpu_dnnl_type(dtype);
  if (type == dnnl_data_type_undef)
    return vl_error(VL_UNSUPPORTED, "cpu: oneDNN has no %s", vl_dtype_name(dtype));
  return cpu_dnnl_status(dnnl_memory_desc_create_with_tag(descriptor, count, dims, type, tag),
                         "memory descriptor", NULL);
}

/* ---- Sizes and views ---------------------------------------------------------------------------------------- */

int64_t cpu_padded_elements(CpuDevice *device, LayoutId layout, const Tensor *tensor) {
  const Layout *entry = find(device, layout);
  if (!entry || entry->kind == KIND_CHANNELS_LAST) return vl_tensor_elements(tensor);
  dnnl_memory_desc_t md = NULL;
  /* The size does not depend on what an element is: count with one of one byte. */
  Status status =
      cpu_layout_descriptor(device, layout, DTYPE_U8, tensor->rank, tensor->shape, entry->groups, &md);
  if (status.code != VL_OK) return vl_tensor_elements(tensor);
  int64_t elements = (int64_t)dnnl_memory_desc_get_size(md);
  dnnl_memory_desc_destroy(md);
  return elements;
}

Status cpu_channel_view(CpuDevice *device, LayoutId layout, const Tensor *tensor, ChannelView *view) {
  *view = (ChannelView){1, 1, 1, 1, 1};
  if (tensor->rank < 2) {
    view->channels = view->channel_blocks = vl_tensor_elements(tensor);
  } else {
    view->n = tensor->shape[0];
    view->channels = view->channel_blocks = tensor->shape[1];
    for (int32_t i = 2; i < tensor->rank; ++i)
      view->spatial *= tensor->shape[i];
  }
  if (layout == LAYOUT_PLAIN) return vl_ok();
  const Layout *entry = find(device, layout);
  if (!entry || entry->kind == KIND_OTHER || entry->rank != tensor->rank)
    return vl_error(VL_UNSUPPORTED,
                    "cpu: %s in layout %s is not an activation; accepted: plain, nhwc, nChw16c, "
                    "nChw8c and their like",
                    tensor->name, cpu_layout_name(device, layout));
  view->block = entry->kind == KIND_CHANNELS_LAST ? view->channels : entry->block;
  view->channel_blocks = (view->channels + view->block - 1) / view->block;
  return vl_ok();
}

bool cpu_is_channel_part(CpuDevice *device, LayoutId layout, const Tensor *whole, const Tensor *part) {
  ChannelView view;
  if (part->rank != whole->rank || whole->rank < 2 || whole->shape[0] != 1) return false;
  for (int32_t i = 2; i < whole->rank; ++i)
    if (part->shape[i] != whole->shape[i]) return false;
  if (cpu_channel_view(device, layout, whole, &view).code != VL_OK) return false;
  return part->shape[1] % view.block == 0 && part->offset % (view.block * view.spatial) == 0;
}

/* ---- Choices ops share ---------------------------------------------------------------------------------------- */

Status cpu_choose_plain(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  (void)device;
  for (int32_t i = 0; i < node->input_count; ++i)
    inputs[i] = LAYOUT_PLAIN;
  for (int32_t i = 0; i < node->output_count; ++i)
    outputs[i] = LAYOUT_PLAIN;
  return vl_ok();
}

Status cpu_choose_follow(CpuDevice *device, const Node *node, LayoutId *inputs, LayoutId *outputs) {
  const Tensor *lead = node->inputs[0];
  LayoutId layout = inputs[0];
  VL_TRY(cpu_choose_plain(device, node, inputs, outputs));
  if (!lead || lead->rank < 3 || layout == LAYOUT_ANY) return vl_ok();
  for (int32_t i = 0; i < node->input_count; ++i)
    if (node->inputs[i] && node->inputs[i]->rank == lead->rank) inputs[i] = layout;
  for (int32_t i = 0; i < node->output_count; ++i)
    if (node->outputs[i] && node->outputs[i]->rank == lead->rank) outputs[i] = layout;
  return vl_ok();
}

static Status check_tensor(const Node *node, const Tensor *tensor) {
  if (!tensor || !vl_dtype_is_float(tensor->dtype) || tensor->dtype == DTYPE_F32 ||
      tensor->dtype == DTYPE_BF16)
    return vl_ok();
  return vl_error(VL_UNSUPPORTED, "cpu: %s of %s: %s is %s; accepted: f32, bf16", node->op->name,
                  node->scope ? node->scope : "?", tensor->name, vl_dtype_name(tensor->dtype));
}

Status cpu_supports_f32_bf16(CpuDevice *device, const Node *node) {
  (void)device;
  for (int32_t i = 0; i < node->input_count; ++i)
    VL_TRY(check_tensor(node, node->inputs[i]));
  for (int32_t i = 0; i < node->output_count; ++i)
    VL_TRY(check_tensor(node, node->outputs[i]));
  return vl_ok();
}
