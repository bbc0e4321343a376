/* The double of cuBLASLt by itself: column-major products worked out by hand, and what it must refuse. */
#include "runtime.h"

#include <cublasLt.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include <csetjmp>
#include <cstdarg>
#include <cstddef>
extern "C" {
#include "base/base.h"
#include <cmocka.h>
}

/* A stream that runs at once. */
cudaError_t runtime_queue(cudaStream_t, std::function<void()> work) {
  work();
  return cudaSuccess;
}

namespace {

void *const somewhere = reinterpret_cast<void *>(uintptr_t{256});

/* One product: what is set differs from test to test, what is not is plain. */
struct Product {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDescOpaque_t operation = {};
  cublasLtMatrixLayoutOpaque_t a = {}, b = {}, c = {}, d = {};
  cublasLtMatmulPreferenceOpaque_t preference = {};
  cublasLtMatmulHeuristicResult_t chosen = {};

  explicit Product(cublasComputeType_t compute = CUBLAS_COMPUTE_32F) {
    assert_int_equal(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(cublasLtMatmulDescInit(&operation, compute, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(cublasLtMatmulPreferenceInit(&preference), CUBLAS_STATUS_SUCCESS);
  }
  ~Product() { (void)cublasLtDestroy(handle); }
  Product(const Product &) = delete;
  Product &operator=(const Product &) = delete;

  template <typename T> void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    assert_int_equal(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof value),
                     CUBLAS_STATUS_SUCCESS);
  }
  template <typename T> void prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    assert_int_equal(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value),
                     CUBLAS_STATUS_SUCCESS);
  }
  cublasStatus_t choose() {
    int count = 0;
    return cublasLtMatmulAlgoGetHeuristic(handle, &operation, &a, &b, &c, &d, &preference, 1, &chosen,
                                          &count);
  }
  cublasStatus_t run(float alpha, const void *at_a, const void *at_b, float beta, const void *at_c,
                     void *at_d, void *workspace = nullptr, size_t workspace_bytes = 0) {
    return cublasLtMatmul(handle, &operation, &alpha, at_a, &a, at_b, &b, &beta, at_c, &c, at_d, &d,
                          &chosen.algo, workspace, workspace_bytes, nullptr);
  }
};

void lay(cublasLtMatrixLayoutOpaque_t *layout, cudaDataType type, uint64_t rows, uint64_t columns,
         int64_t leading, int32_t batches = 1, int64_t stride = 0) {
  assert_int_equal(cublasLtMatrixLayoutInit(layout, type, rows, columns, leading), CUBLAS_STATUS_SUCCESS);
  assert_int_equal(
      cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches, sizeof batches),
      CUBLAS_STATUS_SUCCESS);
  assert_int_equal(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                    &stride, sizeof stride),
                   CUBLAS_STATUS_SUCCESS);
}

/* [1 3 5; 2 4 6] [1 -1; 0 2; 1 1] = [6 10; 8 12], with a row of padding below each column of A and D. */
void multiplies_by_columns(void **) {
  Product product;
  lay(&product.a, CUDA_R_32F, 2, 3, 3);
  lay(&product.b, CUDA_R_32F, 3, 2, 3);
  lay(&product.c, CUDA_R_32F, 2, 2, 3);
  lay(&product.d, CUDA_R_32F, 2, 2, 3);
  alignas(256) float a[] = {1, 2, 99, 3, 4, 99, 5, 6, 99};
  alignas(256) float b[] = {1, 0, 1, -1, 2, 1};
  alignas(256) float d[] = {1, 1, 77, 1, 1, 77};
  assert_int_equal(product.choose(), CUBLAS_STATUS_SUCCESS);
  assert_int_equal(product.run(1, a, b, 0, d, d), CUBLAS_STATUS_SUCCESS);
  const float plain[] = {6, 8, 77, 10, 12, 77};
  assert_memory_equal(d, plain, sizeof plain);
  assert_int_equal(product.run(2, a, b, -1, d, d), CUBLAS_STATUS_SUCCESS);
  assert_memory_equal(d, plain, sizeof plain); /* 2 y - y */
}

/* The same, from transposes as they lie, twice at strides, with a bias along the rows, into bf16. */
void transposes_batches_and_bias(void **) {
  Product product;
  product.set(CUBLASLT_MATMUL_DESC_TRANSA, (int32_t)CUBLAS_OP_T);
  product.set(CUBLASLT_MATMUL_DESC_TRANSB, (int32_t)CUBLAS_OP_T);
  product.set(CUBLASLT_MATMUL_DESC_EPILOGUE, (uint32_t)CUBLASLT_EPILOGUE_BIAS);
  lay(&product.a, CUDA_R_16BF, 3, 2, 3, 2, 8);
  lay(&product.b, CUDA_R_16BF, 2, 3, 2, 2, 0); /* one for both */
  lay(&product.c, CUDA_R_16BF, 2, 2, 2, 2, 4);
  lay(&product.d, CUDA_R_16BF, 2, 2, 2, 2, 4);
  alignas(256) uint16_t a[16], b[6], bias[2], d[8];
  const float a_values[] = {1, 3, 5, 2, 4, 6, 0, 0, 2, 6, 10, 4, 8, 12, 0, 0};
  const float b_values[] = {1, -1, 0, 2, 1, 1}, bias_values[] = {100, -100};
  for (int i = 0; i < 16; i++)
    a[i] = vl_bf16_from_f32(a_values[i]);
  for (int i = 0; i < 6; i++)
    b[i] = vl_bf16_from_f32(b_values[i]);
  for (int i = 0; i < 2; i++)
    bias[i] = vl_bf16_from_f32(bias_values[i]);
  product.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void *>(bias));
  assert_int_equal(product.choose(), CUBLAS_STATUS_SUCCESS);
  assert_int_equal(product.run(1, a, b, 0, d, d), CUBLAS_STATUS_SUCCESS);
  const float expected[] = {106, -92, 110, -88, 112, -84, 120, -76};
  for (int i = 0; i < 8; i++)
    assert_true(vl_f32_from_bf16(d[i]) == expected[i]);
}

/* 1 + 2^-12 is a number of f32, not of TF32. */
void tf32_has_ten_bits(void **) {
  const float value = 1.0F + 0x1p-12F, kept = 1.0F + 0x1p-10F;
  for (bool fast : {false, true}) {
    Product product(fast ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F);
    lay(&product.a, CUDA_R_32F, 1, 2, 1);
    lay(&product.b, CUDA_R_32F, 2, 1, 2);
    lay(&product.c, CUDA_R_32F, 1, 1, 1);
    lay(&product.d, CUDA_R_32F, 1, 1, 1);
    alignas(256) float a[] = {value, kept}, b[] = {1, 1}, d[1];
    assert_int_equal(product.choose(), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(product.run(1, a, b, 0, d, d), CUBLAS_STATUS_SUCCESS);
    assert_true(d[0] == (fast ? 1.0F + kept : value + kept));
  }
}

/* A long sum is split, and its parts are where the caller gave room. */
void long_sums_need_their_workspace(void **) {
  Product product;
  lay(&product.a, CUDA_R_32F, 3, 64, 3);
  lay(&product.b, CUDA_R_32F, 64, 1, 64);
  lay(&product.c, CUDA_R_32F, 3, 1, 3);
  lay(&product.d, CUDA_R_32F, 3, 1, 3);
  struct alignas(256) Memory {
    float a[192], b[64];
  };
  std::vector<Memory> memory(1);
  for (float &value : memory[0].a)
    value = 1;
  for (float &value : memory[0].b)
    value = 2;
  alignas(256) float d[3], parts[6] = {};
  assert_int_equal(product.choose(), CUBLAS_STATUS_SUCCESS);
  assert_int_equal(product.chosen.workspaceSize, 0); /* none was allowed */
  product.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{1} << 20);
  assert_int_equal(product.choose(), CUBLAS_STATUS_SUCCESS);
  assert_int_equal(product.chosen.workspaceSize, sizeof parts);
  assert_int_equal(product.run(1, memory[0].a, memory[0].b, 0, d, d, parts, sizeof parts - 1),
                   CUBLAS_STATUS_INVALID_VALUE);
  assert_int_equal(product.run(1, memory[0].a, memory[0].b, 0, d, d, parts, sizeof parts),
                   CUBLAS_STATUS_SUCCESS);
  for (int i = 0; i < 3; i++)
    assert_true(d[i] == 128 && parts[i] == 64 && parts[3 + i] == 64);
  product.prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_INPLACE});
  assert_int_equal(product.choose(), CUBLAS_STATUS_SUCCESS);
  assert_int_equal(product.chosen.workspaceSize, 0);
}

void lay_square(Product &product, cudaDataType type = CUDA_R_32F) {
  for (auto *layout : {&product.a, &product.b, &product.c, &product.d})
    lay(layout, type, 2, 2, 2);
}

void refuses_what_does_not_fit(void **) {
  Product product;
  lay_square(product);
  lay(&product.a, CUDA_R_32F, 2, 2, 1); /* leading dimension */
  assert_int_equal(product.choose(), CUBLAS_STATUS_INVALID_VALUE);
  lay(&product.a, CUDA_R_32F, 2, 3, 2); /* inner sizes */
  assert_int_equal(product.choose(), CUBLAS_STATUS_INVALID_VALUE);
  lay(&product.a, CUDA_R_32F, 2, 2, 2, 3, 4); /* batches */
  assert_int_equal(product.choose(), CUBLAS_STATUS_INVALID_VALUE);
  lay_square(product);
  lay(&product.d, CUDA_R_16BF, 2, 2, 2); /* types */
  assert_int_equal(product.choose(), CUBLAS_STATUS_NOT_SUPPORTED);
  lay_square(product);
  product.set(CUBLASLT_MATMUL_DESC_EPILOGUE, (uint32_t)CUBLASLT_EPILOGUE_BIAS); /* no pointer */
  assert_int_equal(product.choose(), CUBLAS_STATUS_INVALID_VALUE);
  product.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void *>(somewhere));
  assert_int_equal(product.choose(), CUBLAS_STATUS_SUCCESS);
  product.set(CUBLASLT_MATMUL_DESC_EPILOGUE, (uint32_t)CUBLASLT_EPILOGUE_GELU_BIAS);
  assert_int_equal(product.choose(), CUBLAS_STATUS_NOT_SUPPORTED);
  int32_t narrow = 0;
  assert_int_equal(cublasLtMatmulDescSetAttribute(&product.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                  &narrow, sizeof narrow),
                   CUBLAS_STATUS_INVALID_VALUE);
  assert_int_equal(
      cublasLtMatmulDescSetAttribute(&product.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &narrow, 1),
      CUBLAS_STATUS_NOT_SUPPORTED);
}

void refuses_calls_that_were_not_chosen_so(void **) {
  Product product;
  alignas(256) float a[8] = {}, b[8] = {}, d[8] = {};
  lay_square(product);
  assert_int_equal(product.choose(), CUBLAS_STATUS_SUCCESS);
  assert_int_equal(product.run(1, a + 1, b, 0, d, d), CUBLAS_STATUS_INVALID_VALUE); /* 256 bytes were said */
  product.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t{4});
  assert_int_equal(product.choose(), CUBLAS_STATUS_SUCCESS);
  assert_int_equal(product.run(1, a + 1, b, 0, d, d), CUBLAS_STATUS_SUCCESS);
  assert_int_equal(product.run(1, a, nullptr, 0, d, d), CUBLAS_STATUS_INVALID_VALUE);
  assert_int_equal(product.run(1, d + 3, b, 0, d, d), CUBLAS_STATUS_INVALID_VALUE); /* over a factor */
  product.set(CUBLASLT_MATMUL_DESC_TRANSA, (int32_t)CUBLAS_OP_T);
  assert_int_equal(product.run(1, a, b, 0, d, d), CUBLAS_STATUS_NOT_SUPPORTED); /* another problem */
}

} // namespace

int main() {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(multiplies_by_columns),     cmocka_unit_test(transposes_batches_and_bias),
      cmocka_unit_test(tf32_has_ten_bits),         cmocka_unit_test(long_sums_need_their_workspace),
      cmocka_unit_test(refuses_what_does_not_fit), cmocka_unit_test(refuses_calls_that_were_not_chosen_so),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
