/* libFuzzer: any bytes are read as a graph or refused; what is read can be written and read again. */
#include "graph/graph.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  Graph *graph;
  Status status = vl_graph_read_json((const char *)data, size, &graph);
  if (status.code != VL_OK) return 0;
  char *text;
  size_t length;
  FILE *out = open_memstream(&text, &length);
  if (out == NULL) abort();
  status = vl_graph_write_json(graph, out);
  fclose(out);
  vl_graph_destroy(&graph);
  if (status.code == VL_OK) status = vl_graph_read_json(text, length, &graph);
  if (status.code != VL_OK) abort();
  vl_graph_destroy(&graph);
  free(text);
  return 0;
}
