/* fp16 on the CPU backend, one instruction set per run (argv[1]: baseline, avx2 or avx512): the
 * hardware's conversions against base/dtype.h bit for bit, products cut into blocks against a loop
 * in double, and results beyond 65504, which must become infinity in every op and on every set. */
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "kernels/cpu/rows_internal.h"
#include "tests/kernels/kernels_isa.h"
#include "tests/unit.h"

enum { SEED = 1606 };

static enum cpu_isa tested_isa;

static kernel_context *new_context(int threads)
{
    kernel_context_config config = {.thread_count = threads};
    kernel_context *context;
    assert_int_equal(kernels_cpu.context_create(&config, &context), 0);
    return context;
}

static void *block(uint64_t bytes)
{
    void *memory = mem_alloc(bytes + 1, 1, "test");
    assert_non_null(memory);
    return memory;
}

static uint16_t *draw(uint64_t count, uint64_t stream, float scale)
{
    uint16_t *halves = block(2 * count);
    for (uint64_t i = 0; i < count; i++)
        halves[i] = fp16_from_fp32(scale * rng_normal(SEED, stream, i));
    return halves;
}

static uint16_t *repeat(float value, uint64_t count)
{
    uint16_t *halves = block(2 * count);
    for (uint64_t i = 0; i < count; i++)
        halves[i] = fp16_from_fp32(value);
    return halves;
}

/* ---- conversions ---- */

/* Every pair of types over every 16-bit pattern, or over patterns of all kinds of fp32. The result
 * has the bits of dtype_convert, except that fp16 to fp32 quiets NaN (IEEE 754). The odd count
 * leaves a remainder in every vector width. */
static void conversions(void **state)
{
    enum { COUNT = 65536 + 77 };
    uint32_t *source = block(4 * COUNT), *expected = block(4 * COUNT);
    void *got = block(4 * COUNT);
    kernel_context *context = new_context(2);
    for (int from = 0; from < DTYPE_COUNT; from++)
        for (int to = 0; to < DTYPE_COUNT; to++) {
            for (uint32_t i = 0; i < COUNT; i++)
                if (from == DTYPE_FP32) /* all upper halves; lower halves at and around the ties */
                    source[i] =
                        (i << 16) | (uint32_t)(0x8000u * (i % 3) + rng_below(SEED, 3, i, 3) +
                                               (i % 3 ? ~0u : 0));
                else
                    ((uint16_t *)source)[i] = (uint16_t)i;
            dtype_convert(source, (enum dtype)from, expected, (enum dtype)to, COUNT);
            for (int i = 0; from == DTYPE_FP16 && to == DTYPE_FP32 && i < COUNT; i++)
                expected[i] |= (expected[i] & 0x7fffffffu) > 0x7f800000u ? 0x400000u : 0;
            assert_int_equal(
                cpui_convert(context, NULL, source, (enum dtype)from, got, (enum dtype)to, COUNT),
                0);
            if (memcmp(got, expected, COUNT * dtype_bytes((enum dtype)to)) != 0)
                fail_msg("%s to %s differs from dtype_convert", dtype_name((enum dtype)from),
                         dtype_name((enum dtype)to));
        }
    assert_int_equal(cpui_convert(context, NULL, got, DTYPE_FP32, got, DTYPE_FP32, COUNT), 0);
    kernels_cpu.context_destroy(context);
    mem_free(source);
    mem_free(got);
    mem_free(expected);
}

/* fp32 to fp16 for every sign, exponent and 10 leading bits, with the 13 bits that are rounded
 * away at and around zero, the tie and their end: subnormals, overflow, infinities and NaN among
 * them. */
static void rounding_of_every_leading_pattern(void **state)
{
    enum { BATCH = 1 << 16 };
    static const uint32_t tails[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff};
    uint32_t *source = block(4 * BATCH);
    uint16_t *got = block(2 * BATCH), *expected = block(2 * BATCH);
    kernel_context *context = new_context(1);
    for (int tail = 0; tail < 6; tail++)
        for (uint32_t first = 0; first < 1u << 19; first += BATCH) {
            for (uint32_t i = 0; i < BATCH; i++)
                source[i] = (first + i) << 13 | tails[tail];
            for (uint32_t i = 0; i < BATCH; i++)
                expected[i] = fp16_from_fp32(fp32_from_bits(source[i]));
            assert_int_equal(
                cpui_convert(context, NULL, source, DTYPE_FP32, got, DTYPE_FP16, BATCH), 0);
            assert_memory_equal(got, expected, 2 * BATCH);
        }
    kernels_cpu.context_destroy(context);
    mem_free(source);
    mem_free(got);
    mem_free(expected);
}

/* Rows with strides on both sides, short and long; nothing between the rows is touched. */
static void strided_conversions(void **state)
{
    static const uint64_t shapes[][2] = {{1, 1}, {3, 7}, {65, 33}, {2, 9001}, {300, 64}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int threads = 1; threads <= 3; threads++) {
            uint64_t rows = shapes[s][0], cols = shapes[s][1];
            uint64_t source_stride = cols + 5, target_stride = cols + 2;
            uint16_t *source = draw(rows * source_stride, s, 100.0f);
            float *target = block(4 * rows * target_stride);
            memset(target, 0x5a, 4 * rows * target_stride);
            struct rows_conversion conversion = {source,     DTYPE_FP16,    source_stride, target,
                                                 DTYPE_FP32, target_stride, rows,          cols};
            rowsi_table(tested_isa)->convert_rows(threads, &conversion);
            for (uint64_t row = 0; row < rows; row++)
                for (uint64_t col = 0; col < target_stride; col++) {
                    uint32_t bits = fp32_bits(target[row * target_stride + col]);
                    float value = fp32_from_fp16(source[row * source_stride + col]);
                    assert_int_equal(bits, col < cols ? fp32_bits(value) : 0x5a5a5a5a);
                }
            mem_free(source);
            mem_free(target);
        }
}

/* ---- products ---- */

static matmul_desc make_desc(uint64_t m, uint64_t n, uint64_t k, unsigned flags, enum dtype c_type)
{
    matmul_desc desc = {.m = m,
                        .n = n,
                        .k = k,
                        .a_transposed = flags & 1,
                        .b_transposed = flags & 2,
                        .has_bias = flags & 4,
                        .accumulate = flags & 8,
                        .ab_type = DTYPE_FP16,
                        .c_type = c_type};
    desc.a_stride = (desc.a_transposed ? m : k) + 3;
    desc.b_stride = (desc.b_transposed ? k : n) + 3;
    desc.c_stride = n + 3;
    return desc;
}

static void run_product(kernel_context *context, const matmul_desc *desc, const void *a,
                        const void *b, const void *bias, void *c)
{
    kernel_matmul *product;
    assert_int_equal(kernels_cpu.matmul_create(context, desc, &product), 0);
    void *scratch = mem_alloc(kernels_cpu.matmul_scratch_bytes(product), 1, "scratch");
    assert_non_null(scratch);
    assert_int_equal(kernels_cpu.matmul(product, NULL, a, b, bias, c, scratch), 0);
    mem_free(scratch);
    kernels_cpu.matmul_destroy(product);
}

/* Samples of a product that is cut, at the blocks' borders and anywhere, against a sum in double;
 * the gaps between rows; and the baseline's bits: the instruction set of the row ops must not
 * matter. */
static void check_product(const matmul_desc *desc, const uint16_t *a, const uint16_t *b)
{
    uint64_t c_elems = desc->m * desc->c_stride;
    size_t elem_bytes = dtype_bytes(desc->c_type), c_bytes = c_elems * elem_bytes;
    uint16_t *bias = draw(desc->n, 23, 1.0f);
    void *before = block(c_bytes), *c = block(c_bytes), *other = block(c_bytes);
    for (uint64_t i = 0; i < c_elems; i++) {
        float value = (float)(i % 7) - 3.0f;
        dtype_convert(&value, DTYPE_FP32, (char *)before + i * elem_bytes, desc->c_type, 1);
    }
    memcpy(c, before, c_bytes);
    memcpy(other, before, c_bytes);
    kernel_context *context = new_context(2);
    run_product(context, desc, a, b, bias, c);
    context->isa = CPU_BASELINE;
    cpui_rows_select(context);
    run_product(context, desc, a, b, bias, other);
    assert_memory_equal(c, other, c_bytes);
    kernels_cpu.context_destroy(context);
    for (uint64_t sample = 0; sample < 1000000 / desc->k; sample++) {
        uint64_t i = sample % 5 ? rng_below(SEED, 25, sample, desc->m) : desc->m - 1;
        uint64_t j = sample % 7 ? rng_below(SEED, 26, sample, desc->n) : desc->n - 1;
        uint64_t at = i * desc->c_stride + j;
        double sum = desc->has_bias ? (double)fp32_from_fp16(bias[j]) : 0.0;
        sum += desc->accumulate ? (double)((float *)before)[at] : 0.0;
        double magnitude = fabs(sum);
        for (uint64_t l = 0; l < desc->k; l++) {
            uint64_t left = desc->a_transposed ? l * desc->a_stride + i : i * desc->a_stride + l;
            uint64_t right = desc->b_transposed ? j * desc->b_stride + l : l * desc->b_stride + j;
            double term = (double)fp32_from_fp16(a[left]) * (double)fp32_from_fp16(b[right]);
            sum += term;
            magnitude += fabs(term);
        }
        float got;
        dtype_convert((char *)c + at * elem_bytes, desc->c_type, &got, DTYPE_FP32, 1);
        double limit = (double)(desc->k + 3) * 0x1p-24 * magnitude;
        limit += desc->c_type == DTYPE_FP16 ? 0x1p-11 * (fabs(sum) + limit) + 0x1p-25 : 0.0;
        if (!(fabs((double)got - sum) <= limit))
            fail_msg("m=%d n=%d k=%d C %s at (%d,%d): %g, expected %g within %g", (int)desc->m,
                     (int)desc->n, (int)desc->k, dtype_name(desc->c_type), (int)i, (int)j,
                     (double)got, sum, limit);
    }
    for (uint64_t i = 0; i < desc->m; i++) {
        size_t gap = (i * desc->c_stride + desc->n) * elem_bytes;
        assert_memory_equal((char *)c + gap, (char *)before + gap, 3 * elem_bytes);
    }
    mem_free(bias);
    mem_free(before);
    mem_free(c);
    mem_free(other);
}

/* Several blocks along n and along m, with and without a shorter one at the end; k in two parts, in
 * two unequal ones and in three. */
static void products_in_blocks(void **state)
{
    static const uint64_t shapes[][3] = {{9, 600, 4000},  {600, 9, 4000}, {5, 768, 4096},
                                         {1111, 3, 2000}, {40, 50, 60},   {7, 300, 16384},
                                         {300, 7, 9000},  {2, 5, 16640}};
    static const unsigned flag_sets[] = {0, 2, 3, 6, 9, 13};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        uint64_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2];
        /* Enough for either transposition with its gaps. */
        uint16_t *a = draw((m + 3) * (k + 3), 21, 1.0f), *b = draw((n + 3) * (k + 3), 22, 1.0f);
        for (size_t f = 0; f < 2 * sizeof flag_sets / sizeof *flag_sets; f++) {
            unsigned flags = flag_sets[f / 2];
            if (f % 2 && (flags & 8))
                continue; /* C of 16 bits does not accumulate */
            matmul_desc desc = make_desc(m, n, k, flags, f % 2 ? DTYPE_FP16 : DTYPE_FP32);
            check_product(&desc, a, b);
        }
        mem_free(a);
        mem_free(b);
    }
}

/* A product with a vocabulary on one side must not widen all of it at once. */
static void scratch_of_a_large_product_is_a_block(void **state)
{
    static const uint64_t shapes[][3] = {{64, 50257, 768}, {50257, 768, 64}, {64, 768, 50257}};
    kernel_context *context = new_context(2);
    for (int i = 0; i < 3; i++) {
        kernel_matmul *product;
        matmul_desc desc = make_desc(shapes[i][0], shapes[i][1], shapes[i][2], 2, DTYPE_FP32);
        assert_int_equal(kernels_cpu.matmul_create(context, &desc, &product), 0);
        assert_true(kernels_cpu.matmul_scratch_bytes(product) < 32 * MIB);
        kernels_cpu.matmul_destroy(product);
    }
    kernels_cpu.context_destroy(context);
}

/* ---- overflow ---- */

static void assert_all(const char *what, const uint16_t *halves, uint64_t count, uint16_t bits)
{
    for (uint64_t i = 0; i < count; i++)
        if (halves[i] != bits)
            fail_msg("%s: element %d is 0x%04x, not 0x%04x", what, (int)i, halves[i], bits);
}

enum { POSITIVE = 0x7c00, NEGATIVE = 0xfc00, LARGEST = 0x7bff };

static void product_overflows(void **state)
{
    enum { N = 37, K = 16 };
    kernel_context *context = new_context(1);
    matmul_desc desc = {.m = N,
                        .n = N,
                        .k = K,
                        .a_stride = K,
                        .b_stride = N,
                        .c_stride = N,
                        .ab_type = DTYPE_FP16,
                        .c_type = DTYPE_FP16};
    uint16_t *a = repeat(64.0f, N * K), *b = repeat(64.0f, N * K), *c = repeat(0.0f, N * N);
    run_product(context, &desc, a, b, NULL, c); /* 16 * 4096 = 65536 */
    assert_all("product", c, N * N, POSITIVE);
    uint16_t *minus = repeat(-64.0f, N * K);
    run_product(context, &desc, a, minus, NULL, c);
    assert_all("product", c, N * N, NEGATIVE);
    uint16_t *less = repeat(63.96875f, N * K); /* 65504 */
    run_product(context, &desc, a, less, NULL, c);
    assert_all("product", c, N * N, LARGEST);
    mem_free(a);
    mem_free(b);
    mem_free(minus);
    mem_free(less);
    mem_free(c);
    kernels_cpu.context_destroy(context);
}

enum { ROWS = 3, CHANNELS = 40, COUNT = ROWS * CHANNELS };

static void sums_overflow(void **state)
{
    kernel_context *context = new_context(1);
    uint16_t *a = repeat(65504.0f, COUNT), *b = repeat(65504.0f, COUNT);
    uint16_t *ones = repeat(16.0f, COUNT), *out = repeat(0.0f, COUNT);
    assert_int_equal(kernels_cpu.add(context, NULL, DTYPE_FP16, COUNT, a, b, out), 0);
    assert_all("add", out, COUNT, POSITIVE);
    assert_int_equal(kernels_cpu.add(context, NULL, DTYPE_FP16, COUNT, a, ones, out), 0);
    assert_all("add", out, COUNT, POSITIVE); /* 65520 is the tie that goes to infinity */
    int32_t ids[ROWS] = {0, 2, 1};
    embedding_args embedding = {.type = DTYPE_FP16,
                                .batch = 1,
                                .tokens = ROWS,
                                .channels = CHANNELS,
                                .vocab = ROWS,
                                .token_ids = ids,
                                .token_table = a,
                                .position_table = b,
                                .output = out};
    memset(out, 0, 2 * COUNT);
    assert_int_equal(kernels_cpu.embedding_forward(context, NULL, &embedding), 0);
    assert_all("embedding", out, COUNT, POSITIVE);
    /* Parameter gradients are fp32: no overflow at 3 * 65504. */
    float grads[CHANNELS] = {0};
    void *scratch = block(kernels_cpu.bias_backward_scratch_bytes(context, ROWS, CHANNELS));
    assert_int_equal(kernels_cpu.bias_backward(context, NULL, DTYPE_FP16, ROWS, CHANNELS, CHANNELS,
                                               a, grads, scratch),
                     0);
    for (int i = 0; i < CHANNELS; i++)
        assert_true(grads[i] == 3 * 65504.0f);
    mem_free(scratch);
    mem_free(a);
    mem_free(b);
    mem_free(ones);
    mem_free(out);
    kernels_cpu.context_destroy(context);
}

static void norm_overflows(void **state)
{
    kernel_context *context = new_context(1);
    uint16_t *x = draw(COUNT, 31, 1.0f), *weight = repeat(65504.0f, COUNT);
    uint16_t *out = repeat(0.0f, COUNT);
    float rstd[ROWS];
    for (int row = 0; row < ROWS; row++) /* one large element a row: its xhat is about sqrt(40) */
        x[row * CHANNELS + 33] = fp16_from_fp32(row % 2 ? -500.0f : 500.0f);
    norm_args args = {.kind = NORM_RMS,
                      .type = DTYPE_FP16,
                      .rows = ROWS,
                      .channels = CHANNELS,
                      .epsilon = 1e-5f,
                      .input = x,
                      .weight = weight,
                      .output = out,
                      .rstd = rstd};
    assert_int_equal(kernels_cpu.norm_forward(context, NULL, &args), 0);
    for (int row = 0; row < ROWS; row++) {
        assert_int_equal(out[row * CHANNELS + 33], row % 2 ? NEGATIVE : POSITIVE);
        assert_true(isfinite(fp32_from_fp16(out[row * CHANNELS])));
    }
    /* Backward: weights and gradients at the limit. */
    float weight_grad[CHANNELS] = {0};
    uint16_t *dy = repeat(65504.0f, COUNT);
    dy[5] = 0;
    norm_grad_args back = {.kind = NORM_RMS,
                           .type = DTYPE_FP16,
                           .rows = ROWS,
                           .channels = CHANNELS,
                           .input = x,
                           .weight = weight,
                           .rstd = rstd,
                           .output_grad = dy,
                           .input_grad = out,
                           .weight_grad = weight_grad};
    back.scratch = block(kernels_cpu.norm_grad_scratch_bytes(context, ROWS, CHANNELS));
    assert_int_equal(kernels_cpu.norm_backward(context, NULL, &back), 0);
    for (int i = 0; i < COUNT; i++) {
        bool is_infinite = (out[i] & 0x7fff) == POSITIVE;
        assert_true(is_infinite || i % CHANNELS == 33 || i == 5);
    }
    for (int i = 0; i < CHANNELS; i++)
        assert_true(isfinite(weight_grad[i]));
    mem_free(back.scratch);
    mem_free(x);
    mem_free(weight);
    mem_free(out);
    mem_free(dy);
    kernels_cpu.context_destroy(context);
}

static void activation_overflows(void **state)
{
    kernel_context *context = new_context(1);
    uint16_t *input = repeat(300.0f, 2 * COUNT), *out = repeat(0.0f, 2 * COUNT);
    uint16_t *dy = repeat(-65504.0f, COUNT);
    activation_args args = {.kind = ACTIVATION_SWIGLU,
                            .type = DTYPE_FP16,
                            .rows = ROWS,
                            .features = CHANNELS,
                            .input = input,
                            .output = out,
                            .output_grad = dy,
                            .input_grad = out};
    assert_int_equal(kernels_cpu.activation_forward(context, NULL, &args), 0);
    assert_all("swiglu", out, COUNT, POSITIVE); /* 300 * 300 */
    assert_int_equal(kernels_cpu.activation_backward(context, NULL, &args), 0);
    assert_all("swiglu backward", out, 2 * COUNT, NEGATIVE);
    /* GELU's slope is above 1 between 0.8 and 4: a gradient at the limit overflows there. */
    uint16_t *x = repeat(1.5f, COUNT);
    args.kind = ACTIVATION_GELU;
    args.input = x;
    assert_int_equal(kernels_cpu.activation_backward(context, NULL, &args), 0);
    assert_all("gelu backward", out, COUNT, NEGATIVE);
    mem_free(input);
    mem_free(out);
    mem_free(dy);
    mem_free(x);
    kernels_cpu.context_destroy(context);
}

enum { TOKENS = 40, DIM = 8, WIDTH = 3 * DIM, MARK = 20 };

/* One head, forward and backward. */
static void run_attention(const uint16_t *qkv, const uint16_t *output_grad, uint16_t *output,
                          uint16_t *grads)
{
    kernel_context *context = new_context(1);
    kernel_attention *attention;
    attention_desc desc = {.batch = 1,
                           .tokens = TOKENS,
                           .heads = 1,
                           .kv_heads = 1,
                           .head_dim = DIM,
                           .qkv_stride = WIDTH,
                           .type = DTYPE_FP16,
                           .scale = 0.25f};
    assert_int_equal(kernels_cpu.attention_create(context, &desc, &attention), 0);
    void *scratch = block(kernels_cpu.attention_backward_scratch_bytes(attention) +
                          kernels_cpu.attention_forward_scratch_bytes(attention) + 64);
    void *aligned = (void *)(((uintptr_t)scratch + 63) / 64 * 64);
    float lse[TOKENS];
    assert_int_equal(kernels_cpu.attention_forward(attention, NULL, qkv, qkv + DIM, qkv + 2 * DIM,
                                                   output, lse, aligned),
                     0);
    assert_int_equal(kernels_cpu.attention_backward(attention, NULL, qkv, qkv + DIM, qkv + 2 * DIM,
                                                    output, lse, output_grad, grads, grads + DIM,
                                                    grads + 2 * DIM, aligned),
                     0);
    mem_free(scratch);
    kernels_cpu.attention_destroy(attention);
    kernels_cpu.context_destroy(context);
}

/* The gradient of the first value sums 65504 / (t + 1) over the rows t: infinity. An infinite key
 * reaches the outputs of the rows that see it, and no other. */
static void attention_overflows(void **state)
{
    uint16_t *qkv = repeat(0.0f, TOKENS * WIDTH), *grads = repeat(0.0f, TOKENS * WIDTH);
    uint16_t *output = repeat(0.0f, TOKENS * DIM), *dy = repeat(65504.0f, TOKENS * DIM);
    run_attention(qkv, dy, output, grads);
    assert_all("value gradient", grads + 2 * DIM, DIM, POSITIVE);
    assert_true(isfinite(fp32_from_fp16(grads[(TOKENS - 1) * WIDTH + 2 * DIM])));
    for (int i = 0; i < TOKENS * WIDTH; i++)
        qkv[i] = fp16_from_fp32(0.5f);
    qkv[MARK * WIDTH + DIM] = POSITIVE;
    for (int i = 0; i < TOKENS * DIM; i++)
        dy[i] = fp16_from_fp32(1.0f);
    run_attention(qkv, dy, output, grads);
    for (int t = 0; t < TOKENS; t++) {
        assert_int_equal(isfinite(fp32_from_fp16(output[t * DIM])), t < MARK);
        if (t >= MARK) /* the block's masked zeros times infinity may reach earlier rows too */
            assert_false(isfinite(fp32_from_fp16(grads[t * WIDTH])));
    }
    assert_false(isfinite(fp32_from_fp16(grads[MARK * WIDTH + DIM])));
    mem_free(qkv);
    mem_free(grads);
    mem_free(output);
    mem_free(dy);
}

/* Gradient closing and working copies: what the loss scaler sees. */
static void optimizer_side_overflows(void **state)
{
    kernel_context *context = new_context(1);
    float *accumulator = block(4 * 4096);
    uint16_t *halves = block(2 * 4096);
    double sum;
    for (int i = 0; i < 4096; i++)
        accumulator[i] = i % 2 ? -65520.0f : 65519.0f;
    grad_close_args args = {.count = 4096,
                            .accumulator = accumulator,
                            .grads = halves,
                            .grad_type = DTYPE_FP16,
                            .block_sums = &sum};
    assert_int_equal(kernels_cpu.grad_close(context, NULL, &args), 0);
    assert_true(isinf(sum) && halves[0] == LARGEST && halves[1] == NEGATIVE);
    assert_int_equal(kernels_cpu.working_copy(context, NULL, accumulator, halves, DTYPE_FP16, 4096),
                     0);
    assert_true(halves[0] == LARGEST && halves[1] == NEGATIVE);
    mem_free(accumulator);
    mem_free(halves);
    kernels_cpu.context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conversions),
        cmocka_unit_test(rounding_of_every_leading_pattern),
        cmocka_unit_test(strided_conversions),
        cmocka_unit_test(products_in_blocks),
        cmocka_unit_test(scratch_of_a_large_product_is_a_block),
        cmocka_unit_test(product_overflows),
        cmocka_unit_test(sums_overflow),
        cmocka_unit_test(norm_overflows),
        cmocka_unit_test(activation_overflows),
        cmocka_unit_test(attention_overflows),
        cmocka_unit_test(optimizer_side_overflows),
    };
    int status = isa_of_test(&tested_isa);
    if (status != 0)
        return status;
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
