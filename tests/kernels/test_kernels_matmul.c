/* Matrix products of the CPU backend: every combination of transposition, dtype, bias and
 * accumulation over odd shapes against a loop in double, and the promise that only shapes, dtypes
 * and the thread count touch the bits. */
#include <math.h>
#include <omp.h>
#include <pthread.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/ops.h"
#include "tests/unit.h"

enum { THREADS = 2, SEED = 20, GAP = 3 };

struct operands {
    void *a, *b, *bias, *c; /* c holds `elem shift` + m * stride elements */
    size_t c_bytes;
};

static kernel_context *new_context(int threads)
{
    kernel_context_config config = {.thread_count = threads};
    kernel_context *context;
    assert_int_equal(kernels_cpu.context_create(&config, &context), 0);
    return context;
}

static double value_at(const void *data, enum dtype type, uint64_t i)
{
    float value;
    dtype_convert((const char *)data + i * dtype_bytes(type), type, &value, DTYPE_FP32, 1);
    return (double)value;
}

/* `count` normal numbers of a type, from element `shift` of a fresh block on. */
static void *new_random(enum dtype type, uint64_t count, uint64_t stream, uint64_t shift)
{
    char *data = mem_alloc(count + shift, dtype_bytes(type), "test operand");
    float *values = mem_alloc(count, sizeof *values, "test operand");
    assert_true(data && values);
    rng_normals(SEED, stream, 0, count, values);
    dtype_convert(values, DTYPE_FP32, data + shift * dtype_bytes(type), type, count);
    mem_free(values);
    return data;
}

static uint64_t a_count(const matmul_desc *desc)
{
    return (desc->a_transposed ? desc->k : desc->m) * desc->a_stride;
}

static uint64_t b_count(const matmul_desc *desc)
{
    return (desc->b_transposed ? desc->n : desc->k) * desc->b_stride;
}

static float *new_widened(const void *data, enum dtype type, uint64_t count)
{
    float *values = mem_alloc(count, sizeof *values, "test operand");
    assert_non_null(values);
    dtype_convert(data, type, values, DTYPE_FP32, count);
    return values;
}

static void operands_init(struct operands *operands, const matmul_desc *desc, uint64_t shift)
{
    operands->a = new_random(desc->ab_type, a_count(desc), 1, shift);
    operands->b = new_random(desc->ab_type, b_count(desc), 2, shift);
    operands->bias = new_random(desc->ab_type, desc->n, 3, shift);
    operands->c = new_random(desc->c_type, desc->m * desc->c_stride, 4, shift);
    operands->c_bytes = desc->m * desc->c_stride * dtype_bytes(desc->c_type);
}

static void operands_fini(struct operands *operands)
{
    mem_free(operands->a);
    mem_free(operands->b);
    mem_free(operands->bias);
    mem_free(operands->c);
}

static int execute(kernel_matmul *product, const matmul_desc *desc, const struct operands *operands,
                   uint64_t shift)
{
    void *scratch = mem_alloc(kernels_cpu.matmul_scratch_bytes(product), 1, "test scratch");
    assert_non_null(scratch);
    size_t ab = shift * dtype_bytes(desc->ab_type), c = shift * dtype_bytes(desc->c_type);
    int rc = kernels_cpu.matmul(product, NULL, (char *)operands->a + ab, (char *)operands->b + ab,
                                desc->has_bias ? (char *)operands->bias + ab : NULL,
                                (char *)operands->c + c, scratch);
    mem_free(scratch);
    return rc;
}

/* Unit roundoff: half a unit in the last place of 24, 8 and 11 significant bits, relative. */
static double roundoff(enum dtype type)
{
    return type == DTYPE_FP32 ? 0x1p-24 : type == DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
}

/* An fp32 sum of k products in any order errs by at most about k 2^-24 times the sum of magnitudes
 * (Higham, Accuracy and Stability, section 3.1); a 16-bit C is rounded once more. */
static void check_result(const matmul_desc *desc, const struct operands *before, const void *c)
{
    float *wide_a = new_widened(before->a, desc->ab_type, a_count(desc));
    float *wide_b = new_widened(before->b, desc->ab_type, b_count(desc));
    for (uint64_t i = 0; i < desc->m; i++) {
        for (uint64_t j = 0; j < desc->n; j++) {
            double sum = 0, magnitude = 0;
            for (uint64_t l = 0; l < desc->k; l++) {
                uint64_t a = desc->a_transposed ? l * desc->a_stride + i : i * desc->a_stride + l;
                uint64_t b = desc->b_transposed ? j * desc->b_stride + l : l * desc->b_stride + j;
                double term = (double)wide_a[a] * (double)wide_b[b];
                sum += term;
                magnitude += fabs(term);
            }
            uint64_t at = i * desc->c_stride + j;
            double bias = desc->has_bias ? value_at(before->bias, desc->ab_type, j) : 0;
            double old = desc->accumulate ? value_at(before->c, DTYPE_FP32, at) : 0;
            sum += bias + old;
            magnitude += fabs(bias) + fabs(old);
            double limit = (double)(desc->k + 3) * 0x1p-24 * magnitude;
            if (desc->c_type != DTYPE_FP32)
                limit += roundoff(desc->c_type) * (fabs(sum) + limit) + 0x1p-25;
            double got = value_at(c, desc->c_type, at);
            if (!(fabs(got - sum) <= limit)) {
                print_error("m=%d n=%d k=%d ta=%d tb=%d bias=%d acc=%d %s -> %s at (%d,%d): %g, "
                            "expected %g within %g\n",
                            (int)desc->m, (int)desc->n, (int)desc->k, desc->a_transposed,
                            desc->b_transposed, desc->has_bias, desc->accumulate,
                            dtype_name(desc->ab_type), dtype_name(desc->c_type), (int)i, (int)j,
                            got, sum, limit);
                fail();
            }
        }
        size_t elem = dtype_bytes(desc->c_type), gap = (i * desc->c_stride + desc->n) * elem;
        assert_memory_equal((const char *)c + gap, (char *)before->c + gap,
                            (desc->c_stride - desc->n) * elem);
    }
    mem_free(wide_a);
    mem_free(wide_b);
}

static void check_one(kernel_context *context, const matmul_desc *desc)
{
    struct operands operands, before;
    operands_init(&operands, desc, 0);
    operands_init(&before, desc, 0);
    kernel_matmul *product;
    assert_int_equal(kernels_cpu.matmul_create(context, desc, &product), 0);
    mem_stats stats_before, stats_after;
    mem_get_stats(&stats_before);
    assert_int_equal(execute(product, desc, &operands, 0), 0);
    mem_get_stats(&stats_after);
    /* The scratch of this test is the only allocation. */
    assert_int_equal(stats_after.call_count, stats_before.call_count + 1);
    check_result(desc, &before, operands.c);
    kernels_cpu.matmul_destroy(product);
    operands_fini(&operands);
    operands_fini(&before);
}

static matmul_desc make_desc(uint64_t m, uint64_t n, uint64_t k, unsigned flags, enum dtype ab_type,
                             enum dtype c_type)
{
    matmul_desc desc = {.m = m, .n = n, .k = k, .ab_type = ab_type, .c_type = c_type};
    desc.a_transposed = flags & 1;
    desc.b_transposed = flags & 2;
    desc.has_bias = flags & 4;
    desc.accumulate = flags & 8;
    desc.a_stride = (desc.a_transposed ? m : k) + GAP;
    desc.b_stride = (desc.b_transposed ? k : n) + GAP;
    desc.c_stride = n + GAP;
    return desc;
}

static void check_all(enum dtype ab_type, bool native)
{
    static const uint64_t shapes[][3] = {{1, 1, 1},    {7, 5, 3},      {64, 64, 64},
                                         {33, 65, 17}, {130, 47, 101}, {5, 200, 1},
                                         {1, 96, 256}, {16, 1, 300},   {130, 147, 111}};
    kernel_context *context = new_context(THREADS);
    if (!native)
        context->has_bf16_products = false;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (unsigned flags = 0; flags < 16; flags++)
            for (int same = 0; same < 2; same++) {
                enum dtype c_type = same ? ab_type : DTYPE_FP32;
                if ((same && ab_type == DTYPE_FP32) || (c_type != DTYPE_FP32 && flags & 8))
                    continue;
                matmul_desc desc =
                    make_desc(shapes[i][0], shapes[i][1], shapes[i][2], flags, ab_type, c_type);
                check_one(context, &desc);
            }
    kernels_cpu.context_destroy(context);
}

static void products_fp32(void **state)
{
    check_all(DTYPE_FP32, true);
}

/* With AVX2 these are copied first because of B's stride, unless B is transposed. The second is cut
 * along m, the others along n. */
static void products_fp32_copied(void **state)
{
    static const uint64_t shapes[][3] = {{70, 500, 65}, {600, 90, 41}, {66, 500, 4100}};
    kernel_context *context = new_context(THREADS);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (unsigned flags = 0; flags < (i < 2 ? 16 : 1); flags++) {
            matmul_desc desc =
                make_desc(shapes[i][0], shapes[i][1], shapes[i][2], flags, DTYPE_FP32, DTYPE_FP32);
            if (!desc.b_transposed)
                desc.b_stride = 512;
            check_one(context, &desc);
        }
    kernels_cpu.context_destroy(context);
}

static void products_bf16(void **state)
{
    check_all(DTYPE_BF16, true);
}

/* Where oneDNN has no such product, products_bf16 was widened. */
static void products_bf16_widened(void **state)
{
    kernel_context *context = new_context(1);
    bool has_products = context->has_bf16_products;
    kernels_cpu.context_destroy(context);
    if (!has_products)
        skip();
    check_all(DTYPE_BF16, false);
}

/* C is dense and longer than a block of those that oneDNN's products are added in, with a rest. */
static void products_added_in_blocks(void **state)
{
    static const enum dtype types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};
    kernel_context *context = new_context(THREADS);
    for (int type = 0; type < 3; type++)
        for (unsigned flags = 8; flags < 16; flags++) {
            matmul_desc desc = make_desc(2110, 520, 9, flags, types[type], DTYPE_FP32);
            desc.c_stride = desc.n;
            check_one(context, &desc);
        }
    kernels_cpu.context_destroy(context);
}

/* With several slices of k, blocks and pieces of the product on AMX tiles, each with a rest. The
 * wide shapes are cut along n, the tall ones along m. */
static void products_bf16_long(void **state)
{
    static const uint64_t shapes[][3] = {
        {33, 40, 2100}, {50, 47, 1025}, {290, 133, 60}, {40, 300, 197}};
    kernel_context *context = new_context(THREADS);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (unsigned flags = 0; flags < 16; flags++)
            for (int same = 0; same < (flags & 8 ? 1 : 2); same++) {
                matmul_desc desc = make_desc(shapes[i][0], shapes[i][1], shapes[i][2], flags,
                                             DTYPE_BF16, same ? DTYPE_BF16 : DTYPE_FP32);
                check_one(context, &desc);
            }
    kernels_cpu.context_destroy(context);
}

/* 300 elements all over C, the last rows and columns among them. */
static void check_samples(kernel_context *context, const matmul_desc *desc)
{
    struct operands operands, before;
    kernel_matmul *product;
    operands_init(&operands, desc, 0);
    operands_init(&before, desc, 0);
    assert_int_equal(kernels_cpu.matmul_create(context, desc, &product), 0);
    assert_int_equal(execute(product, desc, &operands, 0), 0);
    for (uint64_t sample = 0; sample < 300; sample++) {
        uint64_t i = desc->m - 1 - sample * 14 % desc->m, j = desc->n - 1 - sample * 7919 % desc->n;
        uint64_t at = i * desc->c_stride + j;
        double sum = desc->has_bias ? value_at(operands.bias, DTYPE_BF16, j) : 0;
        if (desc->accumulate)
            sum += value_at(before.c, desc->c_type, at);
        for (uint64_t l = 0; l < desc->k; l++) {
            uint64_t a = desc->a_transposed ? l * desc->a_stride + i : i * desc->a_stride + l;
            uint64_t b = desc->b_transposed ? j * desc->b_stride + l : l * desc->b_stride + j;
            sum += value_at(operands.a, DTYPE_BF16, a) * value_at(operands.b, DTYPE_BF16, b);
        }
        double got = value_at(operands.c, desc->c_type, at);
        assert_true(fabs(got - sum) <= 0x1p-8 * fabs(sum) + 0.02);
    }
    kernels_cpu.matmul_destroy(product);
    operands_fini(&operands);
    operands_fini(&before);
}

/* The product on AMX tiles with a shared operand in two pieces (8 MiB of rows with 1024 of k), with
 * blocks of rows whose squares lie below each other in C, and with strips cut in parts, their
 * squares side by side. */
static void products_bf16_large(void **state)
{
    kernel_context *context = new_context(THREADS);
    matmul_desc pieces = make_desc(4200, 1060, 1000, 6, DTYPE_BF16, DTYPE_BF16);
    matmul_desc below = make_desc(3200, 780, 600, 5, DTYPE_BF16, DTYPE_BF16);
    check_samples(context, &pieces);
    check_samples(context, &below);
    for (unsigned flags = 0; flags < 16; flags++) {
        matmul_desc beside = make_desc(70, 250, 700, flags, DTYPE_BF16, DTYPE_FP32);
        check_samples(context, &beside);
        beside.m = 500; /* blocks of rows, over all columns */
        beside.n = 70;
        beside.a_stride = beside.b_stride = 700;
        check_samples(context, &beside);
    }
    kernels_cpu.context_destroy(context);
}

/* On tiles neither threads nor the cutting of m and n touch a bit. Elsewhere, as where oneDNN is
 * told to leave bf16 out, its threads may cut sums. */
static void tiles_keep_bits(void **state)
{
    kernel_context *one = new_context(1), *three = new_context(3);
    if (!one->has_amx || !one->has_bf16_products) {
        kernels_cpu.context_destroy(one);
        kernels_cpu.context_destroy(three);
        skip();
    }
    for (unsigned flags = 0; flags < 4; flags++) {
        matmul_desc desc = make_desc(300, 170, 1500, flags, DTYPE_BF16, DTYPE_FP32);
        matmul_desc part = desc;
        part.m = 40;
        part.n = 90;
        const matmul_desc *descs[3] = {&desc, &desc, &part};
        struct operands results[3];
        for (int i = 0; i < 3; i++) {
            kernel_matmul *product;
            operands_init(&results[i], &desc, 0);
            assert_int_equal(kernels_cpu.matmul_create(i == 1 ? three : one, descs[i], &product),
                             0);
            assert_int_equal(execute(product, descs[i], &results[i], 0), 0);
            kernels_cpu.matmul_destroy(product);
        }
        assert_memory_equal(results[0].c, results[1].c, results[0].c_bytes);
        for (uint64_t i = 0; i < part.m; i++)
            assert_memory_equal((float *)results[0].c + i * desc.c_stride,
                                (float *)results[2].c + i * desc.c_stride, part.n * sizeof(float));
        for (int i = 0; i < 3; i++)
            operands_fini(&results[i]);
    }
    kernels_cpu.context_destroy(one);
    kernels_cpu.context_destroy(three);
}

static void products_fp16(void **state)
{
    check_all(DTYPE_FP16, true);
}

/* Shapes whose work oneDNN cuts among the threads in different ways. The third has a long k; the
 * last one is so small that one thread computes it. */
static const uint64_t bit_shapes[][3] = {
    {96, 160, 160}, {257, 129, 100}, {16, 16, 8192}, {1, 4099, 512}, {8, 8, 512}};
enum { BIT_SHAPES = sizeof bit_shapes / sizeof *bit_shapes };

static void alignment_keeps_bits(void **state)
{
    static const unsigned flag_sets[] = {0, 1, 2, 3, 14}; /* each transposition; all the rest */
    kernel_context *context = new_context(THREADS);
    for (size_t i = 0; i < BIT_SHAPES; i++)
        for (int type = 0; type < DTYPE_COUNT; type++)
            for (size_t f = 0; f < sizeof flag_sets / sizeof *flag_sets; f++) {
                matmul_desc desc = make_desc(bit_shapes[i][0], bit_shapes[i][1], bit_shapes[i][2],
                                             flag_sets[f], (enum dtype)type, DTYPE_FP32);
                kernel_matmul *product;
                assert_int_equal(kernels_cpu.matmul_create(context, &desc, &product), 0);
                struct operands aligned;
                operands_init(&aligned, &desc, 0);
                assert_int_equal(execute(product, &desc, &aligned, 0), 0);
                for (uint64_t shift = 1; shift < 4; shift += 2) {
                    struct operands shifted;
                    operands_init(&shifted, &desc, shift);
                    assert_int_equal(execute(product, &desc, &shifted, shift), 0);
                    assert_memory_equal(aligned.c, (float *)shifted.c + shift, aligned.c_bytes);
                    operands_fini(&shifted);
                }
                operands_fini(&aligned);
                kernels_cpu.matmul_destroy(product);
            }
    kernels_cpu.context_destroy(context);
}

struct other_thread {
    kernel_matmul *product;
    const matmul_desc *desc;
    struct operands *operands;
    int openmp_threads, rc;
};

static void *run_other_thread(void *user)
{
    struct other_thread *job = user;
    omp_set_num_threads(job->openmp_threads);
    job->rc = execute(job->product, job->desc, job->operands, 0);
    return NULL;
}

/* The same product again on other threads has the same bits, whatever number of threads OpenMP
 * would use there. */
static void thread_keeps_bits(void **state)
{
    for (int threads = 1; threads <= THREADS; threads++) {
        kernel_context *context = new_context(threads);
        for (size_t i = 0; i < BIT_SHAPES; i++)
            for (int type = 0; type < DTYPE_COUNT; type++) {
                matmul_desc desc = make_desc(bit_shapes[i][0], bit_shapes[i][1], bit_shapes[i][2],
                                             2, (enum dtype)type, DTYPE_FP32);
                kernel_matmul *product;
                struct operands first;
                omp_set_num_threads(5);
                assert_int_equal(kernels_cpu.matmul_create(context, &desc, &product), 0);
                operands_init(&first, &desc, 0);
                assert_int_equal(execute(product, &desc, &first, 0), 0);
                for (int run = 0; run < 4; run++) {
                    struct operands again;
                    operands_init(&again, &desc, 0);
                    struct other_thread job = {product, &desc, &again, run + 1, -1};
                    pthread_t thread;
                    assert_int_equal(pthread_create(&thread, NULL, run_other_thread, &job), 0);
                    assert_int_equal(pthread_join(thread, NULL), 0);
                    assert_int_equal(job.rc, 0);
                    assert_memory_equal(first.c, again.c, first.c_bytes);
                    operands_fini(&again);
                }
                operands_fini(&first);
                kernels_cpu.matmul_destroy(product);
            }
        kernels_cpu.context_destroy(context);
    }
}

static void refusals(void **state)
{
    kernel_context *context = new_context(1);
    kernel_matmul *product = (kernel_matmul *)context;
    matmul_desc desc = make_desc(0, 4, 4, 0, DTYPE_FP32, DTYPE_FP32);
    assert_int_equal(kernels_cpu.matmul_create(context, &desc, &product), ERR_BACKEND);
    assert_null(product);
    assert_non_null(strstr(err_text(), "m=0 n=4 k=4"));
    desc = make_desc(4, 4, 4, 0, DTYPE_FP32, DTYPE_FP32);
    desc.b_stride = 3;
    assert_int_equal(kernels_cpu.matmul_create(context, &desc, &product), ERR_BACKEND);
    desc = make_desc(4, 4, 4, 0, DTYPE_FP32, DTYPE_BF16);
    assert_int_equal(kernels_cpu.matmul_create(context, &desc, &product), ERR_BACKEND);
    desc = make_desc(4, 4, 4, 8, DTYPE_BF16, DTYPE_BF16);
    assert_int_equal(kernels_cpu.matmul_create(context, &desc, &product), ERR_BACKEND);
    desc = make_desc(UINT64_MAX / 8, 4, UINT64_MAX / 8, 0, DTYPE_BF16, DTYPE_FP32);
    assert_true(kernels_cpu.matmul_create(context, &desc, &product) < 0);
    kernels_cpu.context_destroy(context);

    kernel_context_config config = {.thread_count = 0};
    assert_int_equal(kernels_cpu.context_create(&config, &context), ERR_CONFIG);
    assert_null(context);
}

static void context_describes_itself(void **state)
{
    kernel_context *context = new_context(THREADS);
    const char *text = kernels_cpu.describe(context);
    print_message("%s\n", text);
    assert_non_null(strstr(text, "2 threads"));
    assert_non_null(strstr(text, "oneDNN"));
    assert_non_null(strstr(text, cpu_isa_name(cpu_isa())));
    if (cpu_isa() < CPU_AVX512_BF16) /* oneDNN has none worth using there, though the CPU may */
        assert_non_null(strstr(text, "bf16 products: no"));
    assert_true(cpu_isa() >= CPU_AMX || !context->has_amx);
    assert_null(strchr(text, '\n'));
    kernels_cpu.context_destroy(context);
}

int main(void)
{
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(context_describes_itself),
        cmocka_unit_test(products_fp32),
        cmocka_unit_test(products_fp32_copied),
        cmocka_unit_test(products_bf16),
        cmocka_unit_test(products_bf16_widened),
        cmocka_unit_test(products_added_in_blocks),
        cmocka_unit_test(products_bf16_long),
        cmocka_unit_test(products_bf16_large),
        cmocka_unit_test(tiles_keep_bits),
        cmocka_unit_test(products_fp16),
        cmocka_unit_test(alignment_keeps_bits),
        cmocka_unit_test(thread_keeps_bits),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
