/* Matrix products of the CUDA backend: cuBLASLt's (as matmul.c asks for them) and our own plain
 * kernel, every combination of transposition, type, bias and accumulation at odd and even shapes,
 * with gaps and offsets; the promise of equal bits; refusals; on a real GPU, matrices of over 2^31
 * elements. */
#include "base/log.h"
#include "tests/cuda/gpu_matmul_check.h"
#include "tests/unit.h"

#ifdef SLUICE_SIMULATED_GPU
#include "tests/simulated_gpu/simulated_gpu.h"
#endif

static gpu_fixture *begin(void)
{
    gpu_fixture *gpu = gpu_begin();
    assert_ok(cudai_cublas_create(&gpu->context));
    return gpu;
}

static void end(gpu_fixture *gpu)
{
    cudai_cublas_destroy(&gpu->context);
    gpu_end(gpu);
}

static kernel_matmul *new_product(gpu_fixture *gpu, const matmul_desc *desc)
{
    kernel_matmul *product;
    assert_int_equal(cudai_matmul_create(&gpu->context, desc, &product), 0);
    assert_non_null(product);
    return product;
}

static void check_one(gpu_fixture *gpu, const matmul_desc *desc, product_offsets offsets)
{
    kernel_matmul *product = new_product(gpu, desc);
    product_case operands = product_create(gpu, desc, offsets);
    product_run(&operands, product);
    void *result = product_result(&operands);
    product_expect(&operands, "the product", result);
    mem_free(result);
    product_reset(&operands);
    product_run_plain(&operands);
    result = product_result(&operands);
    product_expect(&operands, "the plain product", result);
    mem_free(result);
    product_destroy(&operands);
    cudai_matmul_destroy(product);
}

/* Every combination that kernels/ops.h allows, also a bias on an fp32 C of 16-bit operands, for
 * which cuBLASLt has no epilogue. Gap 0 and 8 keep rows of even shapes aligned, 3 does not. */
static void check_all(enum dtype type)
{
    static const uint64_t shapes[][3] = {{1, 1, 1},     {7, 5, 3},   {64, 64, 64}, {33, 65, 17},
                                         {80, 16, 112}, {5, 70, 1},  {1, 96, 72},  {16, 1, 100},
                                         {66, 130, 32}, {8, 24, 49}, {9, 40, 128}, {24, 8, 200}};
    static const uint64_t gaps[] = {0, 3, 8};
    gpu_fixture *gpu = begin();
    uint64_t turn = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (unsigned flags = 0; flags < 16; flags++)
            for (int same = 0; same < 2; same++) {
                enum dtype c_type = same ? type : DTYPE_FP32;
                if ((same && type == DTYPE_FP32) || (c_type != DTYPE_FP32 && flags & PRODUCT_ADD))
                    continue;
                matmul_desc desc = product_desc(shapes[i][0], shapes[i][1], shapes[i][2], flags,
                                                gaps[turn++ % 3], type, c_type);
                check_one(gpu, &desc, (product_offsets){0, 0, 0, 0});
            }
    end(gpu);
}

static void products_fp32(void **state)
{
    check_all(DTYPE_FP32);
}

static void products_bf16(void **state)
{
    check_all(DTYPE_BF16);
}

static void products_fp16(void **state)
{
    check_all(DTYPE_FP16);
}

/* Column blocks of a wider matrix, as units in parts have them: the forward writes columns [begin,
 * begin + n) of C, the backward reads them as A, transposed or not. Blocks begin on multiples of 16
 * elements, or, for units of few rows, anywhere: then the plain kernel must step in. */
static void column_blocks(void **state)
{
    static const uint64_t begins[] = {0, 16, 48, 128, 3, 7, 8};
    enum { WIDE = 256, ROWS = 40, IN = 64, OUT = 32 };
    gpu_fixture *gpu = begin();
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        for (int type = 0; type < DTYPE_COUNT; type++) {
            enum dtype ab = (enum dtype)type;
            product_offsets in_c = {.c = begins[i]}, in_a = {.a = begins[i]};
            matmul_desc forward =
                product_desc(ROWS, OUT, IN, PRODUCT_B_T | PRODUCT_BIAS, 0, ab, ab);
            matmul_desc input = product_desc(ROWS, IN, OUT, PRODUCT_ADD, 0, ab, DTYPE_FP32);
            matmul_desc weight =
                product_desc(OUT, IN, ROWS, PRODUCT_A_T | PRODUCT_ADD, 0, ab, DTYPE_FP32);
            forward.c_stride = input.a_stride = weight.a_stride = WIDE;
            check_one(gpu, &forward, in_c);
            check_one(gpu, &input, in_a);
            check_one(gpu, &weight, in_a);
        }
    end(gpu);
}

/* The logits of one row, written into the row of a whole vocabulary by parts; chunks of rows of
 * dense matrices; a bias that is not aligned. */
static void offsets_of_rows(void **state)
{
    static const uint64_t begins[] = {0, 144, 16, 5, 1};
    gpu_fixture *gpu = begin();
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        matmul_desc row = product_desc(1, 96, 64, PRODUCT_B_T, 0, DTYPE_BF16, DTYPE_FP32);
        check_one(gpu, &row, (product_offsets){.c = begins[i]});
        matmul_desc chunk = product_desc(24, 40, 72, PRODUCT_B_T, 0, DTYPE_BF16, DTYPE_BF16);
        check_one(gpu, &chunk, (product_offsets){.a = begins[i] * 72, .c = begins[i] * 40});
        chunk.has_bias = true;
        check_one(gpu, &chunk, (product_offsets){.bias = begins[i]});
    }
    end(gpu);
}

/* The same operands give the same bits: at every call, at other addresses, from another product of
 * the same shape, whatever the scratch held, and whatever ran between. */
static void same_bits(void **state)
{
    static const uint64_t shapes[][3] = {{64, 64, 256}, {40, 24, 136}, {1, 96, 64}, {33, 65, 17}};
    gpu_fixture *gpu = begin();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int type = 0; type < DTYPE_COUNT; type++) {
            matmul_desc desc = product_desc(shapes[i][0], shapes[i][1], shapes[i][2], PRODUCT_ADD,
                                            0, (enum dtype)type, DTYPE_FP32);
            kernel_matmul *product = new_product(gpu, &desc), *other = new_product(gpu, &desc);
            product_case operands = product_create(gpu, &desc, (product_offsets){0, 0, 0, 0});
            product_run(&operands, product);
            void *first = product_result(&operands);
            for (int run = 0; run < 4; run++) {
                product_case again = product_create(gpu, &desc, (product_offsets){0, 0, 0, 0});
                product_run(&again, run % 2 ? product : other);
                void *result = product_result(&again);
                gpu_expect_same("the product", result, first, operands.c.count, sizeof(float));
                mem_free(result);
                product_destroy(&again);
            }
            mem_free(first);
            product_destroy(&operands);
            cudai_matmul_destroy(other);
            cudai_matmul_destroy(product);
        }
    end(gpu);
}

/* The bytes of scratch of the product, and the context's choices after it was made. */
static size_t choose(gpu_fixture *gpu, const matmul_desc *desc, const char *choices, bool tries,
                     char made[KERNEL_CHOICES_BYTES])
{
    assert_int_equal(cudai_choose_products(&gpu->context, choices, tries), 0);
    kernel_matmul *product = new_product(gpu, desc);
    size_t scratch_bytes = cudai_matmul_scratch_bytes(product);
    product_case operands = product_create(gpu, desc, (product_offsets){0, 0, 0, 0});
    product_run(&operands, product);
    void *result = product_result(&operands);
    product_expect(&operands, "the product", result);
    mem_free(result);
    product_destroy(&operands);
    cudai_matmul_destroy(product);
    snprintf(made, KERNEL_CHOICES_BYTES, "%s", cudai_product_choices(&gpu->context));
    return scratch_bytes;
}

/* A trial takes the fastest candidate, its choice is a text, and the text brings the same algorithm
 * again, whatever is faster by then. */
static void the_fastest_is_kept(void **state)
{
    char text[KERNEL_CHOICES_BYTES], again[KERNEL_CHOICES_BYTES];
    gpu_fixture *gpu = begin();
    matmul_desc desc = product_desc(24, 16, 256, PRODUCT_ADD, 0, DTYPE_BF16, DTYPE_FP32);
    size_t first_bytes = choose(gpu, &desc, "", false, text);
    assert_string_equal(text, "");
#ifdef SLUICE_SIMULATED_GPU
    simulated_gpu_slow_products(2000, 0);
#endif
    size_t fast_bytes = choose(gpu, &desc, "", true, text);
#ifdef SLUICE_SIMULATED_GPU
    simulated_gpu_slow_products(0, 2000);
    assert_int_equal(strlen(text), 7);
    assert_int_equal(fast_bytes, 0);
    assert_true(first_bytes > 0);
#endif
    assert_int_equal(choose(gpu, &desc, text, true, again), text[0] ? fast_bytes : first_bytes);
    assert_string_equal(again, text);
#ifdef SLUICE_SIMULATED_GPU
    simulated_gpu_slow_products(0, 0);
#endif
    assert_int_equal(cudai_choose_products(&gpu->context, "no choices", false), ERR_INPUT);
    end(gpu);
}

/* Products that wait for each other by the stream alone share one scratch, and nothing is
 * allocated. */
static void chained(void **state)
{
    enum { SIDE = 64, TIMES = 6 };
    gpu_fixture *gpu = begin();
    matmul_desc desc = product_desc(SIDE, SIDE, SIDE, PRODUCT_B_T, 0, DTYPE_FP32, DTYPE_FP32);
    kernel_matmul *product = new_product(gpu, &desc);
    void *scratch = gpu_alloc(gpu, cudai_matmul_scratch_bytes(product));
    float *values = mem_alloc(SIDE * SIDE, sizeof *values, "test values");
    float *turned = mem_alloc(SIDE * SIDE, sizeof *turned, "test turned");
    float *got = mem_alloc(SIDE * SIDE, sizeof *got, "test got");
    gpu_random_fill(values, SIDE * SIDE, gpu->seed, -1.0f, 1.0f);
    for (uint64_t i = 0; i < SIDE; i++) /* values * turned^T moves each column one to the right */
        turned[i * SIDE + (i + SIDE - 1) % SIDE] = 1.0f;
    void *b = gpu_alloc_copy(gpu, turned, SIDE * SIDE * sizeof *turned);
    void *from = gpu_alloc_copy(gpu, values, SIDE * SIDE * sizeof *values);
    void *to = gpu_alloc(gpu, SIDE * SIDE * sizeof *values);
    mem_stats before, after;
    mem_get_stats(&before);
    for (int i = 0; i < TIMES; i++) {
        assert_int_equal(cudai_matmul(product, gpu->stream, i % 2 ? to : from, b, NULL,
                                      i % 2 ? from : to, scratch),
                         0);
    }
    mem_get_stats(&after);
    assert_int_equal(after.call_count, before.call_count);
    gpu_download(gpu, got, TIMES % 2 ? to : from, SIDE * SIDE * sizeof *got);
    for (uint64_t i = 0; i < SIDE; i++)
        for (uint64_t j = 0; j < SIDE; j++)
            assert_true(got[i * SIDE + (j + TIMES) % SIDE] == values[i * SIDE + j]);
    mem_free(values);
    mem_free(turned);
    mem_free(got);
    cudai_matmul_destroy(product);
    end(gpu);
}

static void expect_refused(gpu_fixture *gpu, const matmul_desc *desc, const char *text)
{
    kernel_matmul *product = (kernel_matmul *)gpu;
    assert_true(cudai_matmul_create(&gpu->context, desc, &product) < 0);
    assert_null(product);
    if (strstr(err_text(), text) == NULL)
        fail_msg("'%s' does not say '%s'", err_text(), text);
}

static void expect_call_refused(int rc, const char *text)
{
    assert_int_equal(rc, ERR_BACKEND);
    if (strstr(err_text(), text) == NULL)
        fail_msg("'%s' does not say '%s'", err_text(), text);
}

static void refusals(void **state)
{
    gpu_fixture *gpu = begin();
    matmul_desc desc = product_desc(0, 4, 4, 0, 0, DTYPE_FP32, DTYPE_FP32);
    expect_refused(gpu, &desc, "m=0 n=4 k=4");
    desc = product_desc(4, 4, 4, 0, 0, DTYPE_FP32, DTYPE_FP32);
    desc.b_stride = 3;
    expect_refused(gpu, &desc, "shorter than their rows");
    desc = product_desc(4, 4, 4, 0, 0, DTYPE_FP32, DTYPE_BF16);
    expect_refused(gpu, &desc, "of fp32 into bf16");
    desc = product_desc(4, 4, 4, PRODUCT_ADD, 0, DTYPE_BF16, DTYPE_BF16);
    expect_refused(gpu, &desc, "accumulated");
    desc = product_desc(UINT64_MAX / 8, 4, UINT64_MAX / 8, 0, 0, DTYPE_BF16, DTYPE_FP32);
    expect_refused(gpu, &desc, "");

    desc = product_desc(8, 8, 128, PRODUCT_BIAS, 0, DTYPE_BF16, DTYPE_BF16);
    kernel_matmul *product = new_product(gpu, &desc);
    product_case of = product_create(gpu, &desc, (product_offsets){0, 0, 0, 0});
    void *scratch = gpu_alloc(gpu, cudai_matmul_scratch_bytes(product) + 512);
    void *odd = (char *)of.a.first + 1, *bias = of.bias.first, *c = of.c.first;
    const void *a = of.a.first, *b = of.b.first;
    expect_call_refused(cudai_matmul(product, gpu->stream, NULL, b, bias, c, scratch), "A is NULL");
    expect_call_refused(cudai_matmul(product, gpu->stream, a, odd, bias, c, scratch), "B lies at");
    expect_call_refused(cudai_matmul(product, gpu->stream, a, b, bias, odd, scratch), "C lies at");
    expect_call_refused(cudai_matmul(product, gpu->stream, a, b, NULL, c, scratch),
                        "the bias is NULL");
    if (cudai_matmul_scratch_bytes(product) > 0) {
        expect_call_refused(cudai_matmul(product, gpu->stream, a, b, bias, c, NULL), "scratch");
        expect_call_refused(
            cudai_matmul(product, gpu->stream, a, b, bias, c, (char *)scratch + 128), "scratch");
    }
    product_destroy(&of);
    cudai_matmul_destroy(product);
    end(gpu);
}

/* Ones times ones is k, whole up to 2^24 in any order of sums: no term may be left out. Few rows
 * and columns and a long k are what a library splits, and a k that its step does not divide what it
 * may split wrongly. */
static void every_term_counts(void **state)
{
    enum { M = 48, N = 64, K_MAX = 70000, K_SIMULATED_MAX = 2100 };
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_FP16, DTYPE_FP32};
    static const uint16_t one_halves[] = {[DTYPE_BF16] = 0x3f80, [DTYPE_FP16] = 0x3c00};
    gpu_fixture *gpu = begin();
    uint64_t k_max = gpu->is_simulated ? K_SIMULATED_MAX : K_MAX;
    void *ones = mem_alloc(N * k_max, sizeof(float), "test ones");
    void *operand = gpu_alloc(gpu, N * k_max * sizeof(float));
    float result[M * N], *c = gpu_alloc(gpu, sizeof result);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        for (uint64_t i = 0; i < N * k_max; i++)
            if (types[t] == DTYPE_FP32)
                ((float *)ones)[i] = 1.0f;
            else
                ((uint16_t *)ones)[i] = one_halves[types[t]];
        gpu_upload(gpu, operand, ones, N * k_max * dtype_bytes(types[t]));
        for (uint64_t k = 128; k <= k_max; k += k < 2000 ? 184 : 2713) {
            matmul_desc desc = product_desc(M, N, k, PRODUCT_B_T, 0, types[t], DTYPE_FP32);
            kernel_matmul *product = new_product(gpu, &desc);
            void *scratch = gpu_alloc(gpu, cudai_matmul_scratch_bytes(product));
            gpu_fill(gpu, c, 0xff, sizeof result);
            assert_int_equal(cudai_matmul(product, gpu->stream, operand, operand, NULL, c, scratch),
                             0);
            gpu_sync(gpu);
            gpu_download(gpu, result, c, sizeof result);
            for (int i = 0; i < M * N; i++)
                if (result[i] != (float)k)
                    fail_msg("%s: %llu ones add up to %g", dtype_name(types[t]),
                             (unsigned long long)k, (double)result[i]);
            gpu_free(gpu, scratch);
            cudai_matmul_destroy(product);
        }
    }
    gpu_free(gpu, c);
    gpu_free(gpu, operand);
    mem_free(ones);
    end(gpu);
}

/* ---- large ---- */

enum { PERIOD = 1000003 }; /* a prime, so that no row repeats another */

/* bf16 values, the i-th of them pattern[i % PERIOD]. */
static void *new_periodic(gpu_fixture *gpu, const uint16_t *pattern, uint64_t count)
{
    char *memory = gpu_alloc(gpu, count * 2);
    for (uint64_t i = 0; i < count; i += PERIOD) {
        uint64_t elems = count - i < PERIOD ? count - i : PERIOD;
        gpu_upload(gpu, memory + i * 2, pattern, elems * 2);
    }
    return memory;
}

/* Compares elements of a large C: the corners, and a thousand drawn from the seed. */
static void check_large(gpu_fixture *gpu, const matmul_desc *desc, const uint16_t *pattern,
                        const char *c, const char *name)
{
    for (uint64_t i = 0; i < 1000; i++) {
        float draw[2];
        gpu_random_fill(draw, 2, gpu->seed + 100 + i, 0.0f, 1.0f);
        uint64_t row = (uint64_t)(draw[0] * (float)(desc->m - 1));
        uint64_t column = (uint64_t)(draw[1] * (float)(desc->n - 1));
        if (i < 4) {
            row = i & 1 ? desc->m - 1 : 0;
            column = i & 2 ? desc->n - 1 : 0;
        }
        double sum = 0, magnitude = 0;
        for (uint64_t l = 0; l < desc->k; l++) {
            uint64_t a = desc->a_transposed ? l * desc->a_stride + row : row * desc->a_stride + l;
            uint64_t b =
                desc->b_transposed ? column * desc->b_stride + l : l * desc->b_stride + column;
            double term = (double)fp32_from_bf16(pattern[a % PERIOD]) *
                          (double)fp32_from_bf16(pattern[b % PERIOD]);
            sum += term;
            magnitude += fabs(term);
        }
        uint64_t at = row * desc->c_stride + column;
        float value;
        if (desc->c_type == DTYPE_FP32) {
            gpu_download(gpu, &value, c + at * 4, 4);
        } else {
            uint16_t half;
            gpu_download(gpu, &half, c + at * 2, 2);
            value = fp32_from_bf16(half);
        }
        double limit = product_limit(desc, sum, magnitude);
        if (!(fabs(value - sum) <= limit))
            fail_msg("%s: at (%llu,%llu): %g, expected %g within %g", name, (unsigned long long)row,
                     (unsigned long long)column, (double)value, sum, limit);
    }
}

/* Matrices of over 2^31 elements, each of the three in turn, odd sizes among them. */
static void large(void **state)
{
    static const struct {
        uint64_t m, n, k;
        unsigned flags;
        enum dtype c_type;
    } shapes[] = {
        {40000, 56000, 64, PRODUCT_B_T, DTYPE_BF16},  /* C: 2.24e9 elements */
        {40001, 56003, 40, PRODUCT_B_T, DTYPE_BF16},  /* the same, odd rows of C */
        {530000, 128, 4096, PRODUCT_A_T, DTYPE_FP32}, /* A: 2.17e9, as in a weight's gradient */
        {530001, 128, 4096, 0, DTYPE_FP32},           /* A: 2.17e9 */
        {128, 530000, 4096, PRODUCT_B_T, DTYPE_FP32}, /* B: 2.17e9 */
    };
    gpu_fixture *gpu = begin();
    if (gpu->is_simulated || gpu->total_bytes < (uint64_t)20 << 30) {
        print_message("left out: needs a real GPU of 20 GiB or more\n");
        end(gpu);
        return;
    }
    float *values = mem_alloc(PERIOD, sizeof *values, "test values");
    uint16_t *pattern = mem_alloc(PERIOD, sizeof *pattern, "test pattern");
    gpu_random_fill(values, PERIOD, gpu->seed, -1.0f, 1.0f);
    gpu_narrow(values, pattern, DTYPE_BF16, PERIOD);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        matmul_desc desc = product_desc(shapes[i].m, shapes[i].n, shapes[i].k, shapes[i].flags, 0,
                                        DTYPE_BF16, shapes[i].c_type);
        kernel_matmul *product = new_product(gpu, &desc);
        void *a = new_periodic(gpu, pattern, desc.m * desc.k);
        void *b = new_periodic(gpu, pattern, desc.n * desc.k);
        void *c = gpu_alloc(gpu, desc.m * desc.n * dtype_bytes(desc.c_type));
        void *scratch = gpu_alloc(gpu, cudai_matmul_scratch_bytes(product));
        assert_int_equal(cudai_matmul(product, gpu->stream, a, b, NULL, c, scratch), 0);
        gpu_sync(gpu);
        check_large(gpu, &desc, pattern, c, "the product");
        gpu_fill(gpu, c, 0xff, desc.m * desc.n * dtype_bytes(desc.c_type));
        int error = cudai_matmul_plain_launch(&desc, gpu->stream, a, b, NULL, c);
        assert_ok(cudai_check(error, "the plain product"));
        gpu_sync(gpu);
        check_large(gpu, &desc, pattern, c, "the plain product");
        cudai_matmul_destroy(product);
        gpu_free(gpu, scratch);
        gpu_free(gpu, c);
        gpu_free(gpu, b);
        gpu_free(gpu, a);
    }
    mem_free(pattern);
    mem_free(values);
    end(gpu);
}

int main(void)
{
    log_set_level(LOG_QUIET); /* a line is logged for each product that cuBLASLt refuses */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_fp32),
        cmocka_unit_test(products_bf16),
        cmocka_unit_test(products_fp16),
        cmocka_unit_test(column_blocks),
        cmocka_unit_test(offsets_of_rows),
        cmocka_unit_test(same_bits),
        cmocka_unit_test(chained),
        cmocka_unit_test(refusals),
        cmocka_unit_test(the_fastest_is_kept),
        cmocka_unit_test(every_term_counts),
        cmocka_unit_test(large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
