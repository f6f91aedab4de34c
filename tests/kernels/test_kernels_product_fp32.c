/* The fp32 product of our own: each element is a chain of fused multiply-adds over slices of k, to
 * the bit, whatever the transpositions, rests, threads and pieces; and matmul takes it from m, n =
 * 160 and k = 128 on. Exit 77 where the CPU lacks AVX-512. */
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "kernels/cpu/product_own.h"
#include "tests/kernels/kernels_isa.h"
#include "tests/unit.h"

enum {
    SEED = 5,
    GAP = 3,
    A_TRANSPOSED = 1,
    B_TRANSPOSED = 2,
    BIAS = 4,
    ACCUMULATE = 8,
    FLAGS = 16,
    IN_PIECES = 16,
    EXIT_SKIP = 77
};

static float *new_random(uint64_t count, uint64_t stream)
{
    float *data = mem_alloc(count, sizeof *data, "test operand");
    assert_non_null(data);
    rng_normals(SEED, stream, 0, count, data);
    return data;
}

static matmul_desc make_desc(uint64_t m, uint64_t n, uint64_t k, unsigned flags)
{
    matmul_desc desc = {.m = m,
                        .n = n,
                        .k = k,
                        .a_transposed = flags & A_TRANSPOSED,
                        .b_transposed = flags & B_TRANSPOSED,
                        .has_bias = flags & BIAS,
                        .accumulate = flags & ACCUMULATE,
                        .ab_type = DTYPE_FP32,
                        .c_type = DTYPE_FP32,
                        .c_stride = n + GAP};
    desc.a_stride = (desc.a_transposed ? m : k) + GAP;
    desc.b_stride = (desc.b_transposed ? k : n) + GAP;
    return desc;
}

struct operands {
    float *a, *b, *bias, *c;
};

static struct operands make_operands(const matmul_desc *desc)
{
    return (struct operands){
        new_random((desc->a_transposed ? desc->k : desc->m) * desc->a_stride, 1),
        new_random((desc->b_transposed ? desc->n : desc->k) * desc->b_stride, 2),
        new_random(desc->n, 3), new_random(desc->m * desc->c_stride, 4)};
}

static void free_operands(struct operands *operands)
{
    mem_free(operands->a);
    mem_free(operands->b);
    mem_free(operands->bias);
    mem_free(operands->c);
}

/* Element (i, j) as product_own.h says it is summed. */
static float expected(const matmul_desc *desc, const struct operands *operands, uint64_t slice,
                      uint64_t i, uint64_t j)
{
    float c = operands->c[i * desc->c_stride + j];
    for (uint64_t begin = 0; begin < desc->k; begin += slice) {
        float sum = 0;
        for (uint64_t l = begin; l < size_min(begin + slice, desc->k); l++)
            sum = fmaf(
                operands->a[desc->a_transposed ? l * desc->a_stride + i : i * desc->a_stride + l],
                operands->b[desc->b_transposed ? j * desc->b_stride + l : l * desc->b_stride + j],
                sum);
        c = begin > 0 || desc->accumulate ? c + sum : sum;
    }
    return desc->has_bias ? c + operands->bias[j] : c;
}

static void run(const cpui_fp32_product *product, const struct operands *operands, float *c)
{
    /* The 64 bytes after the scratch must stay unchanged. */
    unsigned char *scratch = mem_alloc(product->scratch_bytes + 64, 1, "test scratch");
    assert_non_null(scratch);
    memset(scratch, 0xff, product->scratch_bytes + 64); /* NaN where nothing is packed */
    cpui_fp32_product_run(product, operands->a, operands->b,
                          product->desc.has_bias ? operands->bias : NULL, c, scratch);
    for (int i = 0; i < 64; i++)
        assert_int_equal(scratch[product->scratch_bytes + i], 0xff);
    mem_free(scratch);
}

/* Elements of `samples` rows, or of all. */
static void check(uint64_t m, uint64_t n, uint64_t k, unsigned flags, int threads, uint64_t samples)
{
    matmul_desc desc = make_desc(m, n, k, flags);
    struct operands operands = make_operands(&desc), result = make_operands(&desc);
    cpui_fp32_product product;
    cpui_fp32_product_plan(&desc, threads, &product);
    if (flags & IN_PIECES) /* as the largest shapes are cut */
        product.shared_elems = product.cut_elems = 32;
    run(&product, &operands, result.c);
    for (uint64_t sample = 0; sample < size_min(samples, m); sample++) {
        uint64_t i = samples < m ? sample * 7919 % m : sample;
        const float *row = result.c + i * desc.c_stride;
        for (uint64_t j = 0; j < n; j++) {
            float want = expected(&desc, &operands, product.slice_elems, i, j);
            if (memcmp(&row[j], &want, sizeof want) != 0)
                fail_msg("m=%d n=%d k=%d flags %u threads %d at (%d,%d): %a, expected %a", (int)m,
                         (int)n, (int)k, flags, threads, (int)i, (int)j, (double)row[j],
                         (double)want);
        }
        assert_memory_equal(row + n, operands.c + i * desc.c_stride + n, GAP * sizeof *row);
    }
    free_operands(&operands);
    free_operands(&result);
}

/* Each rest of a strip's rows and columns and of k, and few of each. */
static void sums_are_chains(void **state)
{
    static const uint64_t shapes[][3] = {{1, 1, 1},    {2, 33, 5},   {29, 31, 16}, {14, 32, 17},
                                         {15, 64, 40}, {41, 47, 31}, {97, 16, 48}, {5, 130, 65}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (unsigned flags = 0; flags < FLAGS; flags++)
            check(shapes[i][0], shapes[i][1], shapes[i][2], flags, 1 + (int)(flags % 3), 1000);
    for (uint64_t rows = 1; rows <= 28; rows++) {
        check(rows, 35, 20, 0, 1, 1000);
        check(rows, 35, 20, A_TRANSPOSED | BIAS, 2, 1000);
    }
}

/* Several slices of k, blocks of each thread, and pieces of the shared operand. */
static void sums_go_on(void **state)
{
    for (unsigned flags = 0; flags < FLAGS; flags += 5) {
        check(70, 140, 801, flags, 2, 20);
        check(301, 90, 1000, flags, 3, 20);
        check(100, 110, 420, flags | IN_PIECES, 2, 20);
        check(110, 100, 420, flags | IN_PIECES, 2, 20);
    }
    cpui_fp32_product product;
    matmul_desc desc = make_desc(60000, 61000, 500, B_TRANSPOSED);
    cpui_fp32_product_plan(&desc, 2, &product);
    assert_true(product.shared_elems < desc.m);
    assert_true(product.scratch_bytes < (size_t)16 << 20);
}

/* The scratch of matmul's product is the own product's, and no other. */
static void matmul_takes_large_ones(void **state)
{
    static const struct {
        uint64_t m, n, k;
        bool is_own;
    } cases[] = {{160, 160, 128, true},
                 {159, 160, 128, false},
                 {160, 159, 128, false},
                 {160, 160, 127, false}};
    kernel_context_config config = {.thread_count = 2};
    kernel_context *context;
    assert_int_equal(kernels_cpu.context_create(&config, &context), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        matmul_desc desc = make_desc(cases[i].m, cases[i].n, cases[i].k, 0);
        kernel_matmul *matmul;
        assert_int_equal(kernels_cpu.matmul_create(context, &desc, &matmul), 0);
        cpui_fp32_product product;
        cpui_fp32_product_plan(&desc, 2, &product);
        assert_true((kernels_cpu.matmul_scratch_bytes(matmul) == product.scratch_bytes) ==
                    cases[i].is_own);
        kernels_cpu.matmul_destroy(matmul);
    }
    kernels_cpu.context_destroy(context);
}

/* matmul hands everything on: a row of its result is the chains, with 1 thread and with 3. */
static void matmul_gives_its_bits(void **state)
{
    for (int threads = 1; threads <= 3; threads += 2) {
        kernel_context_config config = {.thread_count = threads};
        kernel_context *context;
        assert_int_equal(kernels_cpu.context_create(&config, &context), 0);
        matmul_desc desc = make_desc(200, 300, 900, B_TRANSPOSED | BIAS);
        struct operands operands = make_operands(&desc), result = make_operands(&desc);
        kernel_matmul *matmul;
        assert_int_equal(kernels_cpu.matmul_create(context, &desc, &matmul), 0);
        cpui_fp32_product product;
        cpui_fp32_product_plan(&desc, threads, &product);
        assert_int_equal(kernels_cpu.matmul_scratch_bytes(matmul), product.scratch_bytes);
        void *scratch = mem_alloc(product.scratch_bytes, 1, "test scratch");
        assert_int_equal(kernels_cpu.matmul(matmul, NULL, operands.a, operands.b, operands.bias,
                                            result.c, scratch),
                         0);
        for (uint64_t j = 0; j < desc.n; j++) {
            float want = expected(&desc, &operands, product.slice_elems, 123, j);
            assert_memory_equal(&result.c[123 * desc.c_stride + j], &want, sizeof want);
        }
        mem_free(scratch);
        kernels_cpu.matmul_destroy(matmul);
        free_operands(&operands);
        free_operands(&result);
        kernels_cpu.context_destroy(context);
    }
}

int main(void)
{
    enum cpu_isa isa;
    int rc = isa_of_test(&isa);
    if (rc != 0)
        return rc;
    print_message("seed %d\n", SEED);
    if (isa < CPU_AVX512) {
        print_message("skipped: these products need AVX-512\n");
        return EXIT_SKIP;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_chains),
        cmocka_unit_test(sums_go_on),
        cmocka_unit_test(matmul_takes_large_ones),
        cmocka_unit_test(matmul_gives_its_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
