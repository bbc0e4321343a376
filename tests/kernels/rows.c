/* The families of rows, joined. */
#include "tests/kernels/rows_operands.h"

static const OpRow *const families[] = {conv_rows,    norm_rows,  pointwise_rows,
                                        product_rows, shape_rows, training_rows};

const OpRow *op_row(int32_t index) {
  for (size_t i = 0; i < sizeof families / sizeof *families; i++)
    for (const OpRow *row = families[i]; row->op; row++)
      if (index-- == 0) return row;
  return NULL;
}

Status row_first_output(Graph *graph, const OpRow *row, Tensor *const *operands, Tensor **y) {
  int32_t count = 0;
  while (operands[count])
    count++;
  Node *node = NULL;
  VL_TRY(vl_graph_add(graph, row->op, &row->params, operands, count, &node));
  *y = node->outputs[0];
  return vl_ok();
}
