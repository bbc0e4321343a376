/* A graph or schedule for people: a table of text, or Graphviz. */
#include "graph/graph.h"

#include <stdlib.h>

/* "12.3 G", "456 M": operations in decimal units. */
static void format_count(int64_t count, char *text, size_t size) {
  static const char *const units[] = {"", " k", " M", " G", " T", " P", " E"};
  double value = (double)count;
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < sizeof units / sizeof *units) {
    value /= 1000;
    unit++;
  }
  if (unit == 0)
    snprintf(text, size, "%lld", (long long)count);
  else
    snprintf(text, size, "%.3g%s", value, units[unit]);
}

static void print_tensor(const Tensor *tensor, FILE *out) {
  if (tensor == NULL) {
    fprintf(out, "-");
    return;
  }
  char text[96];
  vl_tensor_describe(tensor, text, sizeof text);
  fprintf(out, "%s %s", tensor->name, text);
}

static void print_tensors(Tensor *const *tensors, int32_t count, FILE *out) {
  for (int32_t i = 0; i < count; i++) {
    fprintf(out, i > 0 ? ", " : "");
    print_tensor(tensors[i], out);
  }
}

static void print_field(const OpField *field, const OpParams *params, FILE *out) {
  const char *at = (const char *)params + field->offset;
  fprintf(out, " %s=", field->name);
  for (int32_t i = 0; i < field->count; i++) {
    fprintf(out, i > 0 ? "," : "");
    switch (field->type) {
    case FIELD_INTEGER: fprintf(out, "%lld", (long long)((const int64_t *)(const void *)at)[i]); break;
    case FIELD_REAL: fprintf(out, "%g", ((const double *)(const void *)at)[i]); break;
    case FIELD_DTYPE: fprintf(out, "%s", vl_dtype_name((DType)((const int64_t *)(const void *)at)[i])); break;
    case FIELD_TEXT: {
      const char *value = ((const char *const *)(const void *)at)[i];
      fprintf(out, "%s", value != NULL ? value : "-");
      break;
    }
    }
  }
}

static void print_marks(const Node *node, FILE *out) {
  if (node->block > 0) fprintf(out, " block=%d", node->block);
  if (node->inplace_hint) fprintf(out, " inplace-hint");
  if (node->checkpoint_segment > 0) fprintf(out, " checkpoint=%d", node->checkpoint_segment);
  if (node->recompute_on_use) fprintf(out, " recompute-on-use");
  if (node->accumulates) fprintf(out, " accumulates");
}

static void print_node(const Node *node, FILE *out) {
  char flops[32], bytes[32];
  format_count(vl_node_flops(node), flops, sizeof flops);
  vl_format_bytes(vl_node_bytes(node), bytes, sizeof bytes);
  fprintf(out, "%5d %-8s ", node->position, vl_segment_name(node->segment));
  print_tensors(node->outputs, node->output_count, out);
  fprintf(out, " = %s(", node->op->name);
  print_tensors(node->inputs, node->input_count, out);
  fprintf(out, ")");
  for (int32_t i = 0; i < node->op->field_count; i++)
    print_field(&node->op->fields[i], &node->params, out);
  print_marks(node, out);
  fprintf(out, "  [%s FLOP, %s]\n", flops, bytes);
}

void vl_graph_print(const Graph *graph, FILE *out) {
  char parameters[32];
  format_count(vl_graph_parameter_count(graph), parameters, sizeof parameters);
  fprintf(out, "%s: %d nodes, %d tensors, %d storages, %s parameters\n", graph->name, graph->node_count,
          graph->tensor_count, graph->storage_count, parameters);
  for (int32_t i = 0; i < graph->node_count; i++)
    print_node(graph->nodes[i], out);
}

/* A quoted Graphviz string. */
static void print_quoted(const char *text, FILE *out) {
  fputc('"', out);
  for (; *text != '\0'; text++) {
    if (*text == '"' || *text == '\\') fputc('\\', out);
    fputc(*text == '\n' ? ' ' : *text, out);
  }
  fputc('"', out);
}

static void print_dot_edge(const Graph *graph, const Node *node, int32_t input, FILE *out) {
  const Tensor *tensor = node->inputs[input];
  if (tensor == NULL) return;
  char text[96];
  vl_tensor_describe(tensor, text, sizeof text);
  const Node *producer = tensor->producer;
  bool in_graph = producer != NULL && producer->position < graph->node_count &&
                  graph->nodes[producer->position] == producer;
  if (in_graph)
    fprintf(out, "  n%d -> n%d [label=", producer->position, node->position);
  else
    fprintf(out, "  t%d -> n%d [label=", tensor->id, node->position);
  print_quoted(text, out);
  fprintf(out, "];\n");
}

/* A box for each tensor no node makes, once. */
static void print_dot_sources(const Graph *graph, FILE *out) {
  bool *read = vl_allocate((size_t)graph->tensor_count * sizeof *read);
  for (int32_t i = 0; i < graph->node_count; i++) {
    for (int32_t k = 0; k < graph->nodes[i]->input_count; k++) {
      if (graph->nodes[i]->inputs[k] != NULL) read[graph->nodes[i]->inputs[k]->id] = true;
    }
  }
  for (int32_t i = 0; i < graph->tensor_count; i++) {
    const Tensor *tensor = graph->tensors[i];
    if (!read[i] || tensor->producer != NULL) continue;
    fprintf(out, "  t%d [shape=box, label=", tensor->id);
    print_quoted(tensor->name, out);
    fprintf(out, "];\n");
  }
  free(read);
}

void vl_graph_print_dot(const Graph *graph, FILE *out) {
  static const char *const colors[] = {"white", "lightgrey", "lightblue"};
  fprintf(out, "digraph ");
  print_quoted(graph->name, out);
  fprintf(out, " {\n  node [shape=ellipse, style=filled, fillcolor=white];\n");
  print_dot_sources(graph, out);
  for (int32_t i = 0; i < graph->node_count; i++) {
    const Node *node = graph->nodes[i];
    fprintf(out, "  n%d [fillcolor=%s, tooltip=", i, colors[node->segment]);
    print_quoted(node->scope, out);
    fprintf(out, ", label=");
    print_quoted(node->op->name, out);
    fprintf(out, "];\n");
    for (int32_t k = 0; k < node->input_count; k++)
      print_dot_edge(graph, node, k, out);
  }
  fprintf(out, "}\n");
}

static void print_buffers(const char *label, const Schedule *schedule, const int32_t *ids, int32_t count,
                          FILE *out) {
  if (count > 0) fprintf(out, "  %s", label);
  for (int32_t i = 0; i < count; i++) {
    const Buffer *buffer = &schedule->buffers[ids[i]];
    fprintf(out, " %s#%d.%d%s", buffer->storage->name, buffer->micro_batch, buffer->pass,
            buffer->tier == TIER_OFFLOAD ? "@offload" : "");
  }
}

const char *vl_instance_kind_name(InstanceKind kind) {
  static const char *const names[] = {"launch", "evict", "fetch", "wait"};
  return names[kind];
}

/* What an instance does, and to what. */
static void print_action(const Schedule *schedule, const Instance *instance, FILE *out) {
  if (instance->kind == INSTANCE_LAUNCH) {
    fprintf(out, "%s %s", instance->node->op->name, instance->node->scope);
    return;
  }
  print_buffers(vl_instance_kind_name(instance->kind), schedule, instance->inputs, 1, out);
  if (instance->transfer >= 0) fprintf(out, " of %d", instance->transfer);
}

/* Buffers are written name#micro-batch.pass, with @offload where they are in that tier; + begins, - ends. */
void vl_schedule_print(const Schedule *schedule, FILE *out) {
  char flops[32];
  format_count(schedule->recompute_flops, flops, sizeof flops);
  fprintf(out, "%d launches, %d buffers, %d launches repeated (%s FLOP), %d transfers\n",
          schedule->instance_count - 2 * schedule->transfers, schedule->buffer_count,
          schedule->recompute_instances, flops, schedule->transfers);
  for (int32_t i = 0; i < schedule->instance_count; i++) {
    const Instance *instance = &schedule->instances[i];
    fprintf(out, "%5d stream %d  micro-batch %d pass %d  ", i, instance->stream, instance->micro_batch,
            instance->pass);
    print_action(schedule, instance, out);
    print_buffers("+", schedule, instance->obtain, instance->obtain_count, out);
    print_buffers("-", schedule, instance->release, instance->release_count, out);
    fprintf(out, "\n");
  }
}
