/* Makes a row of the table a program with values. */
#include "tests/kernels/rows.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool has_gradient(OperandKind kind) {
  return kind == OPERAND_ACTIVATION || kind == OPERAND_WEIGHT || kind == OPERAND_F32;
}

static DType dtype_of(OperandKind kind, DType run) {
  switch (kind) {
  case OPERAND_F32:
  case OPERAND_STATE: return DTYPE_F32;
  case OPERAND_COUNTER: return DTYPE_I64;
  case OPERAND_LABELS: return DTYPE_I32;
  case OPERAND_CODES: return DTYPE_U8;
  default: return run;
  }
}

static Role role_of(const OpRow *row, OperandKind kind) {
  if (kind == OPERAND_STATE || kind == OPERAND_COUNTER || kind == OPERAND_CODES) return ROLE_STATISTIC;
  return !row->no_gradient && has_gradient(kind) ? ROLE_PARAMETER : ROLE_INPUT;
}

static int32_t add_operands(const OpRow *row, DType dtype, Graph *graph, Tensor **tensors) {
  int32_t count = 0;
  for (; count < ROW_OPERANDS && row->operands[count].kind != OPERAND_END; count++) {
    const Operand *operand = &row->operands[count];
    int32_t rank = 0;
    while (rank < VL_MAX_DIMS && operand->shape[rank] > 0)
      rank++;
    char name[24];
    snprintf(name, sizeof name, "operand%d", count);
    tensors[count] = vl_graph_tensor(graph, name, role_of(row, operand->kind), dtype_of(operand->kind, dtype),
                                     rank, operand->shape);
  }
  return count;
}

/* The loss: y times a random tensor, summed, so that every element of y has a gradient of its own. */
static Status add_loss(Graph *graph, Tensor *y, Tensor **loss) {
  *loss = y;
  if (y->rank == 0) return vl_ok();
  Tensor *weights = vl_graph_tensor(graph, "weights", ROLE_INPUT, y->dtype, y->rank, y->shape),
         *product = NULL;
  VL_TRY(vl_apply(graph, "mul", NULL, (Tensor *[]){y, weights}, 2, &product));
  OpParams all = {.axis_count = y->rank, .dtype = DTYPE_F32};
  for (int32_t i = 0; i < y->rank; i++)
    all.axes[i] = i;
  return vl_apply(graph, "sum", &all, &product, 1, loss);
}

static Status build_row(const OpRow *row, DType dtype, Program *program) {
  Graph *graph = program->graph;
  Tensor *operands[ROW_OPERANDS + 1] = {NULL}, *y = NULL;
  vl_graph_set_scope(graph, "%s (%s)", row->op, row->what);
  int32_t count = add_operands(row, dtype, graph, operands);
  OpRow changed = *row;
  if (row->dtype_of_run) changed.params.dtype = dtype;
  if (row->build) {
    VL_TRY(row->build(graph, &changed, operands, &y));
  } else {
    VL_TRY(vl_apply(graph, row->op, &changed.params, operands, count, &y));
  }
  if (row->no_gradient) return vl_ok();
  VL_TRY(add_loss(graph, y, &program->loss));
  program->training = true;
  return vl_program_differentiate(program);
}

static void draw_labels(const Operand *operand, Evaluation *evaluation, const Storage *storage,
                        uint64_t seed) {
  evaluation_draw_whole(evaluation, storage, seed, operand->count);
  for (int64_t i = 0; i < storage->elements; i++) {
    bool ignored = operand->values == VALUES_IGNORED || (operand->values == VALUES_IGNORABLE && i % 3 == 1);
    if (ignored) evaluation->values[storage->id][i] = VL_IGNORED_LABEL;
  }
}

static void draw_padded(Evaluation *evaluation, const Storage *storage) {
  int64_t size = storage->root->shape[storage->root->rank - 1];
  for (int64_t i = 0; i < storage->elements; i++)
    evaluation->values[storage->id][i] = i % size < size * 3 / 4 ? -(double)INFINITY : 0.0;
}

static void draw_mask(Evaluation *evaluation, const Storage *storage, uint64_t seed) {
  evaluation_draw(evaluation, storage, seed, 0.0, 1.75);
  for (int64_t i = 0; i < storage->elements; i++) {
    double *value = &evaluation->values[storage->id][i];
    if (*value < -1.0) *value = -(double)INFINITY;
  }
}

static void draw_operands(const OpRow *row, Evaluation *evaluation, uint64_t seed) {
  const double bound = sqrt(3.0);
  for (int32_t i = 0; i < evaluation->graph->storage_count; i++) {
    const Storage *storage = evaluation->graph->storages[i];
    int32_t operand = -1;
    sscanf(storage->name, "operand%d", &operand);
    bool drawn = strncmp(storage->name, "operand", 7) == 0 && storage->role != ROLE_GRADIENT;
    if (drawn && row->operands[operand].kind == OPERAND_COUNTER) {
      for (int64_t e = 0; e < storage->elements; e++)
        evaluation->values[storage->id][e] = 41.0 + (double)e;
    } else if (drawn && row->operands[operand].kind == OPERAND_CODES) {
      evaluation_draw_whole(evaluation, storage, seed, 256);
    } else if (drawn && row->operands[operand].kind == OPERAND_LABELS) {
      draw_labels(&row->operands[operand], evaluation, storage, seed);
    } else if (drawn && row->operands[operand].values == VALUES_PADDED) {
      draw_padded(evaluation, storage);
    } else if (drawn && row->operands[operand].values == VALUES_ZERO) {
      memset(evaluation->values[storage->id], 0, (size_t)storage->elements * sizeof(double));
    } else if (drawn && row->operands[operand].values == VALUES_POSITIVE) {
      evaluation_draw(evaluation, storage, seed, 1.0, 0.75);
    } else if (drawn && row->operands[operand].values == VALUES_MASK) {
      draw_mask(evaluation, storage, seed);
    } else if (drawn && row->operands[operand].values == VALUES_FAR) {
      evaluation_draw(evaluation, storage, seed, 1000.0, bound);
    } else if (drawn || strcmp(storage->name, "weights") == 0) {
      evaluation_draw(evaluation, storage, seed, 0.0, bound);
    }
  }
}

Status row_program_create(const OpRow *row, DType dtype, bool weight_gradient_first, uint64_t seed,
                          RowProgram *made) {
  *made = (RowProgram){0};
  vl_program_init(&made->program, vl_graph_create(row->op));
  made->program.weight_gradient_first = weight_gradient_first;
  made->program.gradients_onto = true;
  Status status = build_row(row, dtype, &made->program);
  if (status.code != VL_OK) {
    row_program_destroy(made);
    return status;
  }
  made->evaluation = evaluation_create(made->program.graph);
  made->evaluation->context =
      (LaunchContext){.seed = seed, .step = 2, .first_sample = 5, .counted_rows = row->counted_rows};
  draw_operands(row, made->evaluation, seed);
  return vl_ok();
}

void row_program_destroy(RowProgram *made) {
  evaluation_destroy(&made->evaluation);
  vl_program_destroy(&made->program);
}
