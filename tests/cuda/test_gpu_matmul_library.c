/* Matrix products if cuBLASLt is absent or the GPU is full or failing, and the rules that a call of
 * a product must keep. Only the simulated GPU can show these cases. */
#include "tests/cuda/gpu_matmul_check.h"
#include "tests/simulated_gpu/simulated_gpu.h"
#include "tests/unit.h"

static void expect_text(const char *text)
{
    if (strstr(err_text(), text) == NULL)
        fail_msg("'%s' does not say '%s'", err_text(), text);
}

/* Without cuBLASLt the error says what was tried and what to do, and nothing stays allocated. */
static void absent(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    setenv("SLUICE_SIMULATED_NO_LIBRARIES", "1", 1);
    int rc = cudai_cublas_create(&gpu->context);
    unsetenv("SLUICE_SIMULATED_NO_LIBRARIES");
    assert_int_equal(rc, ERR_BACKEND);
    assert_null(gpu->context.cublas);
    print_message("%s\n", err_text());
    expect_text("libcublasLt.so.13");
    expect_text("libcublasLt.so.12");
    expect_text("LD_LIBRARY_PATH");
    cudai_cublas_destroy(&gpu->context);

    assert_ok(cudai_cublas_create(&gpu->context));
    assert_string_equal(cudai_cublas_version(&gpu->context), "cuBLASLt 13.0.0");
    cudai_cublas_destroy(&gpu->context);
    gpu_end(gpu);
}

/* Memory for the first run is not to be had: the product is made all the same, and right. */
static void no_memory_to_try(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    assert_ok(cudai_cublas_create(&gpu->context));
    matmul_desc desc = product_desc(64, 64, 64, PRODUCT_BIAS, 0, DTYPE_BF16, DTYPE_BF16);
    kernel_matmul *product;
    simulated_gpu_set_total_bytes(4096);
    int rc = cudai_matmul_create(&gpu->context, &desc, &product);
    simulated_gpu_set_total_bytes(gpu->total_bytes);
    assert_int_equal(rc, 0);
    product_case operands = product_create(gpu, &desc, (product_offsets){0, 0, 0, 0});
    product_run(&operands, product);
    void *result = product_result(&operands);
    product_expect(&operands, "a product that was not tried", result);
    mem_free(result);
    product_destroy(&operands);
    cudai_matmul_destroy(product);
    cudai_cublas_destroy(&gpu->context);
    gpu_end(gpu);
}

/* A call enqueues one piece of work (cuBLASLt's, or our kernel) and does nothing else; creation
 * gives back the memory that it took. */
static void calls_only_enqueue(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    assert_ok(cudai_cublas_create(&gpu->context));
    for (int is_odd = 0; is_odd < 2; is_odd++) {
        matmul_desc desc =
            product_desc(64, 64, 128, PRODUCT_BIAS, (uint64_t)is_odd, DTYPE_BF16, DTYPE_BF16);
        kernel_matmul *product;
        assert_int_equal(cudai_matmul_create(&gpu->context, &desc, &product), 0);
        product_case of = product_create(gpu, &desc, (product_offsets){0, 0, 0, 0});
        void *scratch = gpu_alloc(gpu, cudai_matmul_scratch_bytes(product));
        assert_int_equal(cudai_matmul_scratch_bytes(product) > 0, !is_odd); /* odd rows: plain */
        simulated_gpu_counters before, after;
        mem_stats host_before, host_after;
        simulated_gpu_get_counters(&before);
        mem_get_stats(&host_before);
        assert_int_equal(cudai_matmul(product, gpu->stream, of.a.first, of.b.first, of.bias.first,
                                      of.c.first, scratch),
                         0);
        mem_get_stats(&host_after);
        simulated_gpu_get_counters(&after);
        assert_int_equal(after.kernels, before.kernels + 1);
        assert_int_equal(after.allocations, before.allocations);
        assert_int_equal(after.synchronizations, before.synchronizations);
        assert_int_equal(after.copies + after.fills, before.copies + before.fills);
        assert_int_equal(host_after.call_count, host_before.call_count);
        gpu_sync(gpu);
        gpu_free(gpu, scratch);
        product_destroy(&of);
        cudai_matmul_destroy(product);
    }
    cudai_cublas_destroy(&gpu->context);
    gpu_end(gpu);
}

/* Whether cuBLASLt, not the plain kernel, runs a product with its C (or A) `offset` elements into a
 * wider matrix: it alone refuses to run without its scratch. */
static bool runs_cublas(gpu_fixture *gpu, bool is_c, uint64_t offset)
{
    matmul_desc desc = product_desc(64, 64, 128, PRODUCT_B_T, 0, DTYPE_BF16, DTYPE_BF16);
    *(is_c ? &desc.c_stride : &desc.a_stride) = 512;
    kernel_matmul *product;
    assert_int_equal(cudai_matmul_create(&gpu->context, &desc, &product), 0);
    assert_true(cudai_matmul_scratch_bytes(product) > 0);
    product_offsets offsets = {.a = is_c ? 0 : offset, .c = is_c ? offset : 0};
    product_case of = product_create(gpu, &desc, offsets);
    int rc = cudai_matmul(product, gpu->stream, of.a.first, of.b.first, NULL, of.c.first, NULL);
    gpu_sync(gpu);
    product_destroy(&of);
    cudai_matmul_destroy(product);
    return rc == ERR_BACKEND;
}

/* Column blocks that begin on multiples of 16 elements are no reason to leave cuBLASLt. */
static void column_blocks(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    assert_ok(cudai_cublas_create(&gpu->context));
    for (int is_c = 0; is_c < 2; is_c++) {
        assert_true(runs_cublas(gpu, is_c, 0));
        assert_true(runs_cublas(gpu, is_c, 16));
        assert_true(runs_cublas(gpu, is_c, 48));
        assert_true(runs_cublas(gpu, is_c, 128));
        assert_false(runs_cublas(gpu, is_c, 3));
        assert_false(runs_cublas(gpu, is_c, 4));
    }
    cudai_cublas_destroy(&gpu->context);
    gpu_end(gpu);
}

/* The GPU fails in the first run. Creation returns that error. */
static void failing(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    assert_ok(cudai_cublas_create(&gpu->context));
    matmul_desc desc = product_desc(64, 64, 64, 0, 0, DTYPE_BF16, DTYPE_BF16);
    kernel_matmul *product = (kernel_matmul *)gpu;
    simulated_gpu_inject_fault(SIMULATED_FAULT_KERNEL, 0);
    assert_int_equal(cudai_matmul_create(&gpu->context, &desc, &product), ERR_BACKEND);
    expect_text("the first matrix product: CUDA says cudaErrorIllegalAddress");
    assert_null(product);
    simulated_gpu_clear_fault();
    cudai_cublas_destroy(&gpu->context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent),
        cmocka_unit_test(no_memory_to_try),
        cmocka_unit_test(calls_only_enqueue),
        cmocka_unit_test(column_blocks),
        cmocka_unit_test(failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
