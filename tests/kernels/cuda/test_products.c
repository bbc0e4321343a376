/* What kernels/cuda asks of cuBLASLt, written into the descriptors of the real library and read back: for
 * these it needs no GPU. */
#include "kernels/cuda/product.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_RANK = 4 };

/* A node, and what cuBLASLt must be told: its left factor is our second one. */
typedef struct Case {
  const char *what, *op;
  OpParams params;
  DType dtype, y_dtype;
  int32_t a_rank, b_rank;
  int64_t a[MAX_RANK], b[MAX_RANK];
  bool bias, onto, tf32;
  uint64_t left[2], right[2], result[2]; /* rows, columns: column-major, as they lie */
  int32_t transpose_left, transpose_right, batches;
  int64_t strides[3]; /* of left, right, result */
} Case;

static const Case cases[] = {
    {.what = "linear with a bias",
     .op = "linear",
     .dtype = DTYPE_BF16,
     .y_dtype = DTYPE_BF16,
     .a_rank = 3,
     .a = {3, 5, 37},
     .b_rank = 2,
     .b = {19, 37},
     .bias = true,
     .left = {37, 19},
     .right = {37, 15},
     .result = {19, 15},
     .transpose_left = 1,
     .batches = 1,
     .strides = {703, 555, 285}},
    {.what = "a b in TF32",
     .op = "matmul",
     .a_rank = 2,
     .a = {7, 19},
     .b_rank = 2,
     .b = {19, 11},
     .tf32 = true,
     .left = {11, 19},
     .right = {19, 7},
     .result = {11, 7},
     .batches = 1,
     .strides = {209, 133, 77}},
    {.what = "a' b onto f32: a gradient of weights",
     .op = "matmul",
     .params = {.transpose_a = 1},
     .dtype = DTYPE_F16,
     .y_dtype = DTYPE_F32,
     .a_rank = 2,
     .a = {9, 37},
     .b_rank = 2,
     .b = {9, 21},
     .onto = true,
     .left = {21, 9},
     .right = {37, 9},
     .result = {21, 37},
     .transpose_right = 1,
     .batches = 1,
     .strides = {189, 333, 777}},
    {.what = "the scores of attention: one batch over samples and heads",
     .op = "matmul",
     .params = {.transpose_b = 1},
     .dtype = DTYPE_BF16,
     .y_dtype = DTYPE_BF16,
     .a_rank = 4,
     .a = {2, 12, 128, 64},
     .b_rank = 4,
     .b = {2, 12, 128, 64},
     .left = {64, 128},
     .right = {64, 128},
     .result = {128, 128},
     .transpose_left = 1,
     .batches = 24,
     .strides = {8192, 8192, 16384}},
    {.what = "rows of several dims that meet one b",
     .op = "matmul",
     .params = {.transpose_b = 1},
     .a_rank = 4,
     .a = {3, 2, 5, 16},
     .b_rank = 2,
     .b = {9, 16},
     .left = {16, 9},
     .right = {16, 30},
     .result = {9, 30},
     .transpose_left = 1,
     .batches = 1,
     .strides = {144, 480, 270}},
};

static void require_ok(Status status) {
  if (status.code != VL_OK) fail_msg("%s", status.message);
}

static Graph *graph_of(const Case *test, Node **node) {
  Graph *graph = vl_graph_create("products");
  OpParams params = test->params;
  params.dtype = test->y_dtype;
  Tensor *inputs[3] = {
      vl_graph_tensor(graph, "a", ROLE_ACTIVATION, test->dtype, test->a_rank, test->a),
      vl_graph_tensor(graph, "b", ROLE_ACTIVATION, test->dtype, test->b_rank, test->b),
  };
  int32_t count = 2;
  if (test->bias) inputs[count++] = vl_graph_tensor(graph, "bias", ROLE_PARAMETER, DTYPE_F32, 1, &test->b[0]);
  if (test->onto)
    inputs[count++] = vl_graph_tensor(graph, "onto", ROLE_ACTIVATION, test->y_dtype, 2,
                                      (const int64_t[]){test->a[1], test->b[1]});
  require_ok(vl_graph_add(graph, test->op, &params, inputs, count, node));
  return graph;
}

static uint64_t layout_number(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
                              size_t bytes) {
  uint64_t value = 0;
  size_t written = 0;
  assert_int_equal(cublasLtMatrixLayoutGetAttribute(layout, attribute, &value, bytes, &written),
                   CUBLAS_STATUS_SUCCESS);
  assert_int_equal(written, bytes);
  return value;
}

static uint64_t operation_number(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                 size_t bytes) {
  uint64_t value = 0;
  size_t written = 0;
  assert_int_equal(cublasLtMatmulDescGetAttribute(operation, attribute, &value, bytes, &written),
                   CUBLAS_STATUS_SUCCESS);
  assert_int_equal(written, bytes);
  return value;
}

static uint64_t type_of(DType dtype) {
  return dtype == DTYPE_BF16 ? CUDA_R_16BF : dtype == DTYPE_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static void check_layout(cublasLtMatrixLayout_t layout, DType dtype, const uint64_t *sizes, int32_t batches,
                         int64_t stride) {
  assert_int_equal(layout_number(layout, CUBLASLT_MATRIX_LAYOUT_TYPE, 4), type_of(dtype));
  assert_int_equal(layout_number(layout, CUBLASLT_MATRIX_LAYOUT_ORDER, 4), CUBLASLT_ORDER_COL);
  assert_int_equal(layout_number(layout, CUBLASLT_MATRIX_LAYOUT_ROWS, 8), sizes[0]);
  assert_int_equal(layout_number(layout, CUBLASLT_MATRIX_LAYOUT_COLS, 8), sizes[1]);
  assert_int_equal(layout_number(layout, CUBLASLT_MATRIX_LAYOUT_LD, 8), sizes[0]);
  assert_int_equal(layout_number(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 4), batches);
  assert_int_equal(layout_number(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 8), stride);
}

static void the_library_takes_what_it_is_told(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const Case *test = &cases[i];
    Node *node = NULL;
    CudaProduct product;
    CudaProductDescriptors made;
    print_message("  %s\n", test->what);
    Graph *graph = graph_of(test, &node);
    cuda_product_of(node, test->tf32, &product);
    assert_int_equal(cuda_product_describe(&product, &made), CUBLAS_STATUS_SUCCESS);
    check_layout(&made.b, test->dtype, test->left, test->batches, test->strides[0]);
    check_layout(&made.a, test->dtype, test->right, test->batches, test->strides[1]);
    check_layout(&made.y, test->y_dtype, test->result, test->batches, test->strides[2]);
    assert_int_equal(operation_number(&made.operation, CUBLASLT_MATMUL_DESC_TRANSA, 4),
                     test->transpose_left ? CUBLAS_OP_T : CUBLAS_OP_N);
    assert_int_equal(operation_number(&made.operation, CUBLASLT_MATMUL_DESC_TRANSB, 4),
                     test->transpose_right ? CUBLAS_OP_T : CUBLAS_OP_N);
    assert_int_equal(operation_number(&made.operation, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, 4),
                     test->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F);
    assert_int_equal(operation_number(&made.operation, CUBLASLT_MATMUL_DESC_SCALE_TYPE, 4), CUDA_R_32F);
    assert_int_equal(operation_number(&made.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, 4),
                     test->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
    assert_int_equal(product.adds, test->onto);
    vl_graph_destroy(&graph);
  }
}

/* A tensor that begins within its storage promises less. */
static void views_are_aligned_as_they_begin(void **state) {
  (void)state;
  static const struct {
    int64_t offset;
    int32_t bytes;
  } places[] = {{0, 16}, {8, 16}, {4, 8}, {2, 4}, {1, 2}, {3, 2}, {32, 16}};
  Node *node = NULL;
  CudaProduct product;
  Graph *graph = graph_of(&cases[2], &node);
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    node->inputs[0]->offset = places[i].offset; /* of f16 */
    cuda_product_of(node, false, &product);
    assert_int_equal(product.a_alignment, places[i].bytes);
    assert_int_equal(product.b_alignment, 16);
  }
  node->inputs[0]->offset = 0;
  vl_graph_destroy(&graph);
}

/* Products are keys, compared as bytes: no two bytes of one may be left to chance. */
static void equal_problems_are_equal_bytes(void **state) {
  (void)state;
  CudaProduct one, other;
  Node *node = NULL;
  Graph *graph = graph_of(&cases[3], &node);
  memset(&one, 0x55, sizeof one);
  memset(&other, 0xAA, sizeof other);
  cuda_product_of(node, false, &one);
  cuda_product_of(node, false, &other);
  assert_memory_equal(&one, &other, sizeof one);
  cuda_product_of(node, true, &other); /* TF32 is of f32 alone */
  assert_memory_equal(&one, &other, sizeof one);
  vl_graph_destroy(&graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_library_takes_what_it_is_told),
      cmocka_unit_test(views_are_aligned_as_they_begin),
      cmocka_unit_test(equal_problems_are_equal_bytes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
