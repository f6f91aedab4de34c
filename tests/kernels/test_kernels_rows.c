/* The CPU's row ops of one instruction set (the program's argument: baseline, avx2 or avx512).
 *
 * Each case draws inputs from a seed, runs an op and emits its outputs widened to fp32. The case
 * runs on the reference (compared within a tolerance: one unit of rounding of the output's type,
 * since the fp32 arithmetic before it may tip a tie, plus a stated absolute part for what cancels),
 * then on the instruction set with 1, 2 and 3 threads and on the baseline: those must agree to the
 * bit. */
#include <assert.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/cpu/rows_internal.h"
#include "tests/kernels/kernels_isa.h"

enum { SEED = 20261, BLOCKS_MAX = 64 };

static enum cpu_isa tested_isa;
static const enum dtype all_types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};

/* The row part of the CPU's table; the other ops are tested elsewhere. */
static const kernel_ops cpu_rows = {
    .name = "cpu rows",
    .norm_forward = cpui_norm_forward,
    .norm_grad_scratch_bytes = cpui_norm_grad_scratch_bytes,
    .norm_backward = cpui_norm_backward,
    .embedding_forward = cpui_embedding_forward,
    .embedding_grad_scratch_bytes = cpui_embedding_grad_scratch_bytes,
    .embedding_backward = cpui_embedding_backward,
    .head_norm_forward = cpui_head_norm_forward,
    .head_norm_grad_scratch_bytes = cpui_head_norm_grad_scratch_bytes,
    .head_norm_backward = cpui_head_norm_backward,
    .rope_table = cpui_rope_table,
    .rope = cpui_rope,
    .activation_forward = cpui_activation_forward,
    .activation_backward = cpui_activation_backward,
    .add = cpui_add,
    .scale_rows = cpui_scale_rows,
    .bias_backward = cpui_bias_backward,
    .bias_backward_scratch_bytes = cpui_bias_backward_scratch_bytes,
    .cross_entropy = cpui_cross_entropy,
    .zero = cpui_zero,
    .convert = cpui_convert,
};

struct shape {
    enum dtype type;
    uint64_t rows, channels;
    int variant; /* bits, as each case says */
};

/* One run of a case: its memory, freed at the end, and what it emitted. */
struct run {
    const kernel_ops *ops;
    kernel_context *context; /* NULL for the reference */
    void *blocks[BLOCKS_MAX];
    int block_count;
    float *values, *slack; /* [count]; slack: the tolerance of each value, from its size */
    uint64_t count;
};

static void *block(struct run *run, uint64_t bytes)
{
    assert_true(run->block_count < BLOCKS_MAX);
    void *memory = mem_alloc(bytes, 1, "test");
    assert_non_null(memory);
    run->blocks[run->block_count++] = memory;
    return memory;
}

/* count normal numbers times `scale`, rounded to type. */
static void *draw(struct run *run, enum dtype type, uint64_t count, uint64_t stream, float scale)
{
    float *x = block(run, count * sizeof *x);
    for (uint64_t i = 0; i < count; i++)
        x[i] = scale * rng_normal(SEED, stream, i);
    if (type == DTYPE_FP32)
        return x;
    void *rounded = block(run, count * dtype_bytes(type));
    dtype_convert(x, DTYPE_FP32, rounded, type, count);
    return rounded;
}

static void emit(struct run *run, enum dtype type, const void *data, uint64_t count, float absolute)
{
    static const float unit[] = {
        [DTYPE_FP32] = 4e-6f, [DTYPE_BF16] = 0x1p-7f, [DTYPE_FP16] = 0x1p-10f};
    run->values = mem_resize(run->values, run->count + count, sizeof(float), "test");
    run->slack = mem_resize(run->slack, run->count + count, sizeof(float), "test");
    assert_true(run->values && run->slack);
    dtype_convert(data, type, run->values + run->count, DTYPE_FP32, count);
    for (uint64_t i = run->count; i < run->count + count; i++)
        run->slack[i] = absolute + unit[type] * fabsf(run->values[i]);
    run->count += count;
}

typedef void (*case_fn)(struct run *run, const struct shape *shape);

static struct run run_case(case_fn body, const struct shape *shape, const kernel_ops *ops,
                           kernel_context *context)
{
    struct run run = {.ops = ops, .context = context};
    body(&run, shape);
    for (int i = 0; i < run.block_count; i++)
        mem_free(run.blocks[i]);
    return run;
}

static void check_case(const char *name, case_fn body, const struct shape *shape)
{
    struct run expected = run_case(body, shape, &kernels_reference, NULL);
    struct run first = {0};
    for (int attempt = 0; attempt < 4; attempt++) {
        int threads = attempt < 3 ? attempt + 1 : 2;
        kernel_context context = rows_context_of(attempt < 3 ? tested_isa : CPU_BASELINE, threads);
        struct run run = run_case(body, shape, &cpu_rows, &context);
        assert_int_equal(run.count, expected.count);
        for (uint64_t i = 0; attempt == 0 && i < run.count; i++)
            if (!(fabsf(run.values[i] - expected.values[i]) <= expected.slack[i]) &&
                run.values[i] != expected.values[i])
                fail_msg("%s %s rows %llu channels %llu variant %d: value %llu is %.9g, not %.9g",
                         name, dtype_name(shape->type), (unsigned long long)shape->rows,
                         (unsigned long long)shape->channels, shape->variant, (unsigned long long)i,
                         (double)run.values[i], (double)expected.values[i]);
        if (attempt == 0) {
            first = run;
            continue;
        }
        if (memcmp(run.values, first.values, run.count * sizeof(float)) != 0)
            fail_msg("%s %s rows %llu channels %llu variant %d: other bits on %s with %d threads",
                     name, dtype_name(shape->type), (unsigned long long)shape->rows,
                     (unsigned long long)shape->channels, shape->variant, context.rows->name,
                     threads);
        mem_free(run.values);
        mem_free(run.slack);
    }
    mem_free(first.values);
    mem_free(first.slack);
    mem_free(expected.values);
    mem_free(expected.slack);
}

/* The body with every dtype, odd shapes and variants [0, variants). The last shape is large enough
 * for threads in every op and spans several blocks of summed rows. */
static void check_shapes(const char *name, case_fn body, int variants)
{
    static const uint64_t shapes[][2] = {{1, 1},  {1, 1600}, {3, 7},    {3, 100},
                                         {65, 1}, {65, 64},  {65, 100}, {65, 1600}};
    for (size_t t = 0; t < sizeof all_types / sizeof *all_types; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int variant = 0; variant < variants; variant++) {
                struct shape shape = {all_types[t], shapes[s][0], shapes[s][1], variant};
                check_case(name, body, &shape);
            }
}

/* variant bit 0: RMSNorm; bit 1: with residual. */
static void norm_forward_case(struct run *run, const struct shape *shape)
{
    enum dtype type = shape->type;
    uint64_t count = shape->rows * shape->channels;
    bool layer = !(shape->variant & 1), residual = shape->variant & 2;
    norm_args args = {.kind = layer ? NORM_LAYER : NORM_RMS,
                      .type = type,
                      .rows = shape->rows,
                      .channels = shape->channels,
                      .epsilon = 1e-5f};
    args.input = draw(run, type, count, 1, 2.0f);
    args.residual = residual ? draw(run, type, count, 2, 1.0f) : NULL;
    args.sum = residual ? block(run, count * dtype_bytes(type)) : NULL;
    args.weight = draw(run, type, shape->channels, 3, 1.0f);
    args.bias = layer ? draw(run, type, shape->channels, 4, 1.0f) : NULL;
    args.output = block(run, count * dtype_bytes(type));
    args.mean = layer ? block(run, shape->rows * sizeof(float)) : NULL;
    args.rstd = block(run, shape->rows * sizeof(float));
    assert_int_equal(run->ops->norm_forward(run->context, NULL, &args), 0);
    emit(run, type, args.output, count, 4e-6f);
    emit(run, DTYPE_FP32, args.rstd, shape->rows, 0.0f);
    if (layer)
        emit(run, DTYPE_FP32, args.mean, shape->rows, 1e-6f);
    if (residual)
        emit(run, type, args.sum, count, 0.0f);
}

/* variant bit 0: RMSNorm; bits 1-2: no residual gradient, one, input_grad over output_grad,
 * input_grad over residual_grad. The absolute tolerance covers rstd up to 316 (one channel) times
 * 2^-24. */
static void norm_backward_case(struct run *run, const struct shape *shape)
{
    enum dtype type = shape->type;
    uint64_t count = shape->rows * shape->channels;
    bool layer = !(shape->variant & 1);
    int form = shape->variant >> 1;
    norm_grad_args args = {.kind = layer ? NORM_LAYER : NORM_RMS,
                           .type = type,
                           .rows = shape->rows,
                           .channels = shape->channels};
    void *dy = draw(run, type, count, 4, 1.0f);
    void *skip = draw(run, type, count, 5, 1.0f);
    float *rstd = draw(run, DTYPE_FP32, shape->rows, 6, 0.5f);
    for (uint64_t row = 0; row < shape->rows; row++)
        rstd[row] = 0.1f + fabsf(rstd[row]);
    args.input = draw(run, type, count, 1, 2.0f);
    args.weight = draw(run, type, shape->channels, 2, 1.0f);
    args.mean = layer ? draw(run, DTYPE_FP32, shape->rows, 3, 0.5f) : NULL;
    args.rstd = rstd;
    args.output_grad = dy;
    args.residual_grad = form == 0 ? NULL : skip;
    args.input_grad = form == 2 ? dy : form == 3 ? skip : block(run, count * dtype_bytes(type));
    args.weight_grad = draw(run, DTYPE_FP32, shape->channels, 7, 1.0f);
    args.bias_grad = layer ? draw(run, DTYPE_FP32, shape->channels, 8, 1.0f) : NULL;
    args.scratch =
        block(run, run->ops->norm_grad_scratch_bytes(run->context, shape->rows, shape->channels));
    assert_int_equal(run->ops->norm_backward(run->context, NULL, &args), 0);
    emit(run, type, args.input_grad, count, 1e-4f);
    emit(run, DTYPE_FP32, args.weight_grad, shape->channels, 3e-5f);
    if (layer)
        emit(run, DTYPE_FP32, args.bias_grad, shape->channels, 1e-5f);
}

/* variant bit 0: with positions. 13 token ids: most rows share one. */
static void embedding_case(struct run *run, const struct shape *shape)
{
    enum { VOCAB = 13 };
    enum dtype type = shape->type;
    uint64_t batch = shape->rows % 5 == 0 ? 5 : 1, tokens = shape->rows / batch;
    uint64_t channels = shape->channels, count = shape->rows * channels;
    int32_t *ids = block(run, shape->rows * sizeof *ids);
    for (uint64_t row = 0; row < shape->rows; row++)
        ids[row] = (int32_t)rng_below(SEED, 1, row, VOCAB);
    embedding_args args = {.type = type,
                           .batch = batch,
                           .tokens = tokens,
                           .channels = channels,
                           .vocab = VOCAB,
                           .token_ids = ids};
    args.token_table = draw(run, type, VOCAB * channels, 2, 1.0f);
    args.position_table = shape->variant & 1 ? draw(run, type, tokens * channels, 3, 1.0f) : NULL;
    args.output = block(run, count * dtype_bytes(type));
    assert_int_equal(run->ops->embedding_forward(run->context, NULL, &args), 0);
    emit(run, type, args.output, count, 0.0f);

    embedding_grad_args back = {.type = type,
                                .batch = batch,
                                .tokens = tokens,
                                .channels = channels,
                                .vocab = VOCAB,
                                .token_ids = ids};
    back.output_grad = draw(run, type, count, 4, 1.0f);
    back.token_table_grad = draw(run, DTYPE_FP32, VOCAB * channels, 5, 1.0f);
    back.position_table_grad =
        shape->variant & 1 ? draw(run, DTYPE_FP32, tokens * channels, 6, 1.0f) : NULL;
    back.scratch =
        block(run, run->ops->embedding_grad_scratch_bytes(run->context, shape->rows, VOCAB));
    assert_int_equal(run->ops->embedding_backward(run->context, NULL, &back), 0);
    emit(run, DTYPE_FP32, back.token_table_grad, VOCAB * channels, 1e-6f);
    if (back.position_table_grad)
        emit(run, DTYPE_FP32, back.position_table_grad, tokens * channels, 1e-6f);
}

/* Heads of `channels` elements, 3 of them in a row of 5 more, which must not change. */
static void head_norm_case(struct run *run, const struct shape *shape)
{
    enum { HEADS = 3 };
    enum dtype type = shape->type;
    uint64_t dim = shape->channels, stride = HEADS * dim + 5, count = shape->rows * stride;
    uint64_t heads = shape->rows * HEADS;
    head_norm_args args = {.type = type,
                           .rows = shape->rows,
                           .heads = HEADS,
                           .head_dim = dim,
                           .stride = stride,
                           .epsilon = 1e-5f};
    args.weight = draw(run, type, dim, 1, 1.0f);
    args.data = draw(run, type, count, 2, 2.0f);
    args.before = block(run, heads * dim * dtype_bytes(type));
    args.rstd = block(run, heads * sizeof(float));
    assert_int_equal(run->ops->head_norm_forward(run->context, NULL, &args), 0);
    emit(run, type, args.data, count, 1e-6f);
    emit(run, type, args.before, heads * dim, 0.0f);
    emit(run, DTYPE_FP32, args.rstd, heads, 1e-6f);
    args.data = draw(run, type, count, 3, 1.0f);
    args.weight_grad = draw(run, DTYPE_FP32, dim, 4, 1.0f);
    args.scratch =
        block(run, run->ops->head_norm_grad_scratch_bytes(run->context, shape->rows, HEADS, dim));
    assert_int_equal(run->ops->head_norm_backward(run->context, NULL, &args), 0);
    emit(run, type, args.data, count, 2e-5f);
    emit(run, DTYPE_FP32, args.weight_grad, dim, 3e-5f);
}

/* `channels` pairs a head, 3 heads, 5 elements between the last head and the next row, which must
 * not change. variant bit 0: inverse. */
static void rope_case(struct run *run, const struct shape *shape)
{
    uint64_t dim = 2 * shape->channels, stride = 3 * dim + 5, count = shape->rows * stride;
    uint64_t batch = shape->rows % 5 == 0 ? 5 : 1, tokens = shape->rows / batch;
    rope_args args = {.type = shape->type,
                      .batch = batch,
                      .tokens = tokens,
                      .heads = 3,
                      .head_dim = dim,
                      .stride = stride,
                      .inverse = shape->variant & 1};
    float *table = block(run, tokens * dim * sizeof *table);
    args.data = draw(run, shape->type, count, 1, 1.0f);
    args.table = table;
    /* By the number of rows, each way to stretch frequencies; of LLAMA3 waves of all three
     * kinds. */
    rope_table_args made = {.table = table,
                            .tokens = tokens,
                            .head_dim = dim,
                            .theta = 10000.0,
                            .scaling = (enum rope_scaling)(shape->rows % 3),
                            .factor = 8,
                            .low_freq_factor = 1,
                            .high_freq_factor = 4,
                            .original_positions = 100};
    assert_int_equal(run->ops->rope_table(run->context, NULL, &made), 0);
    assert_int_equal(run->ops->rope(run->context, NULL, &args), 0);
    emit(run, DTYPE_FP32, table, tokens * dim, 0.0f);
    emit(run, shape->type, args.data, count, 1e-6f);
}

/* variant bit 0: SwiGLU; bit 1: input_grad over input; bit 2: inputs up to the hundreds, where the
 * sigmoids are 0 or 1. The absolute tolerance is for the reference's form with tanh. */
static void activation_case(struct run *run, const struct shape *shape)
{
    enum dtype type = shape->type;
    bool swiglu = shape->variant & 1, in_place = shape->variant & 2;
    uint64_t count = shape->rows * shape->channels, in_count = swiglu ? 2 * count : count;
    float scale = shape->variant & 4 ? 60.0f : 2.0f;
    void *input = draw(run, type, in_count, 1, scale);
    activation_args args = {.kind = swiglu ? ACTIVATION_SWIGLU : ACTIVATION_GELU,
                            .type = type,
                            .rows = shape->rows,
                            .features = shape->channels,
                            .input = input};
    args.output = block(run, count * dtype_bytes(type));
    args.output_grad = draw(run, type, count, 2, 1.0f);
    args.input_grad = in_place ? input : block(run, in_count * dtype_bytes(type));
    assert_int_equal(run->ops->activation_forward(run->context, NULL, &args), 0);
    emit(run, type, args.output, count, 4e-6f);
    assert_int_equal(run->ops->activation_backward(run->context, NULL, &args), 0);
    emit(run, type, args.input_grad, in_count, 4e-6f * scale);
}

/* variant: sum over a fresh array, over a, over b. */
static void add_case(struct run *run, const struct shape *shape)
{
    uint64_t count = shape->rows * shape->channels;
    void *a = draw(run, shape->type, count, 1, 1.0f), *b = draw(run, shape->type, count, 2, 1.0f);
    void *fresh = block(run, count * dtype_bytes(shape->type));
    void *out = shape->variant == 0 ? fresh : shape->variant == 1 ? a : b;
    assert_int_equal(run->ops->add(run->context, NULL, shape->type, count, a, b, out), 0);
    emit(run, shape->type, out, count, 0.0f);
}

/* Rows that lie apart, by different strides. variant bit 0: they are added; bit 1: in place. */
static void scale_case(struct run *run, const struct shape *shape)
{
    bool in_place = shape->variant == 2;
    uint64_t apart = shape->channels + 3, wide = shape->channels + 8;
    scale_rows_args args = {.type = shape->type,
                            .rows = shape->rows,
                            .columns = shape->channels,
                            .scale = 1.375f,
                            .accumulates = shape->variant & 1,
                            .source_stride = shape->variant < 2 ? apart : wide,
                            .target_stride = wide};
    void *source = draw(run, shape->type, shape->rows * args.source_stride, 1, 1.0f);
    void *target = draw(run, shape->type, shape->rows * wide, 2, 1.0f);
    args.source = in_place ? target : source;
    args.target = target;
    assert_int_equal(run->ops->scale_rows(run->context, NULL, &args), 0);
    emit(run, shape->type, target, shape->rows * wide, 0.0f);
}

static void bias_case(struct run *run, const struct shape *shape)
{
    uint64_t rows = shape->rows, n = shape->channels;
    void *dy = draw(run, shape->type, rows * n, 1, 1.0f);
    float *grad = draw(run, DTYPE_FP32, n, 2, 1.0f);
    void *scratch = block(run, run->ops->bias_backward_scratch_bytes(run->context, rows, n));
    assert_int_equal(
        run->ops->bias_backward(run->context, NULL, shape->type, rows, n, dy, grad, scratch), 0);
    emit(run, DTYPE_FP32, grad, n, 1e-5f);
}

/* channels is the vocabulary. variant bit 0: gradient over logits (fp32 only); bit 1: logits up to
 * the thousands, so that all but one or two probabilities vanish; bit 2: loss only. Each third
 * target is ignored. A probability's relative error is that of exp of a rounded difference, |x|
 * 2^-24. */
static void cross_entropy_case(struct run *run, const struct shape *shape)
{
    uint64_t count = shape->rows * shape->channels;
    bool in_place = (shape->variant & 1) && shape->type == DTYPE_FP32;
    float *logits = draw(run, DTYPE_FP32, count, 1, shape->variant & 2 ? 1000.0f : 3.0f);
    int32_t *targets = block(run, shape->rows * sizeof *targets);
    for (uint64_t row = 0; row < shape->rows; row++)
        targets[row] = row % 3 == 1 ? -1 : (int32_t)rng_below(SEED, 2, row, shape->channels);
    targets[0] = (int32_t)shape->channels - 1;
    cross_entropy_args args = {.type = shape->type,
                               .rows = shape->rows,
                               .vocab = shape->channels,
                               .logits = logits,
                               .targets = targets,
                               .grad_scale = 0.125f};
    args.losses = block(run, shape->rows * sizeof(float));
    if (!(shape->variant & 4))
        args.logits_grad = in_place ? logits : block(run, count * dtype_bytes(shape->type));
    assert_int_equal(run->ops->cross_entropy(run->context, NULL, &args), 0);
    emit(run, DTYPE_FP32, args.losses, shape->rows, 1e-6f);
    if (args.logits_grad)
        emit(run, shape->type, args.logits_grad, count, shape->variant & 2 ? 1e-5f : 1e-7f);
}

static void norms(void **state)
{
    (void)state;
    check_shapes("norm forward", norm_forward_case, 4);
    check_shapes("norm backward", norm_backward_case, 8);
}

static void embeddings(void **state)
{
    (void)state;
    check_shapes("embedding", embedding_case, 2);
}

static void head_norms(void **state)
{
    (void)state;
    static const uint64_t dims[] = {2, 6, 33, 64, 128, 256};
    for (size_t t = 0; t < sizeof all_types / sizeof *all_types; t++)
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
            check_case("norms of heads", head_norm_case,
                       &(struct shape){all_types[t], 65, dims[d], 0});
}

static void ropes(void **state)
{
    (void)state;
    static const uint64_t pairs[] = {1, 3, 32, 64, 600};
    for (size_t t = 0; t < sizeof all_types / sizeof *all_types; t++)
        for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++)
            for (int variant = 0; variant < 2; variant++)
                for (uint64_t rows = 65; rows < 68; rows++)
                    check_case("rope", rope_case,
                               &(struct shape){all_types[t], rows, pairs[p], variant});
}

static void activations(void **state)
{
    (void)state;
    check_shapes("activation", activation_case, 8);
}

/* When both operands are NaN, the compiler chooses whose payload survives. So all NaNs count as the
 * same one. */
static void one_nan(uint16_t *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if ((values[i] & 0x7fffu) > 0x7f80u)
            values[i] = 0x7fc0;
}

/* Every value of bf16 through the tables and through the computing ops: the same bits, also in
 * place. */
static void activations_by_table(void **state)
{
    (void)state;
    enum { VALUES = 65536 };
    static const struct {
        uint64_t rows, features;
    } sizes[] = {{1, VALUES}, {101, 641}}; /* all; and no multiple of a block or a vector */
    static uint16_t input[2 * VALUES], grad[VALUES], out[2][VALUES], input_grad[2][2 * VALUES];
    kernel_context context = rows_context_of(tested_isa, 2);
    for (uint32_t i = 0; i < VALUES; i++) {
        input[i] = (uint16_t)i;
        input[VALUES + i] = bf16_from_fp32(rng_normal(SEED, 7, i));
        grad[i] = bf16_from_fp32(rng_normal(SEED, 8, i));
    }
    for (int variant = 0; variant < 4; variant++) {
        activation_args args = {.kind = variant % 2 ? ACTIVATION_SWIGLU : ACTIVATION_GELU,
                                .type = DTYPE_BF16,
                                .rows = sizes[variant / 2].rows,
                                .features = sizes[variant / 2].features,
                                .output_grad = grad};
        for (int by_table = 0; by_table < 2; by_table++) {
            if (by_table)
                assert_int_equal(cpui_rows_lookup_create(&context), 0);
            memcpy(input_grad[by_table], input, sizeof input);
            args.input = input_grad[by_table]; /* the gradient takes its place */
            args.output = out[by_table];
            args.input_grad = input_grad[by_table];
            assert_int_equal(cpui_activation_forward(&context, NULL, &args), 0);
            assert_int_equal(cpui_activation_backward(&context, NULL, &args), 0);
            one_nan(out[by_table], VALUES);
            one_nan(input_grad[by_table], (size_t)2 * VALUES);
        }
        cpui_rows_lookup_destroy(&context);
        assert_memory_equal(out[0], out[1], sizeof out[0]);
        assert_memory_equal(input_grad[0], input_grad[1], sizeof input_grad[0]);
    }
}

static void additions(void **state)
{
    (void)state;
    check_shapes("add", add_case, 3);
    check_shapes("scale rows", scale_case, 4);
    check_shapes("bias backward", bias_case, 1);
    check_case("bias backward", bias_case, &(struct shape){DTYPE_BF16, 5003, 3, 0});
}

static void cross_entropies(void **state)
{
    (void)state;
    check_shapes("cross-entropy", cross_entropy_case, 8);
    check_case("cross-entropy", cross_entropy_case, &(struct shape){DTYPE_BF16, 4, 50257, 0});
    check_case("cross-entropy", cross_entropy_case, &(struct shape){DTYPE_FP32, 1, 262143, 1});
}

static void bad_indices_are_refused(void **state)
{
    (void)state;
    kernel_context context = rows_context_of(tested_isa, 2);
    float table[8] = {0}, out[4] = {7.0f, 7.0f, 7.0f, 7.0f}, loss = 7.0f;
    const int32_t bad[] = {-2, 4, INT32_MAX};
    for (int i = 0; i < 3; i++) {
        int32_t ids[2] = {0, bad[i]};
        embedding_args args = {.batch = 1,
                               .tokens = 2,
                               .channels = 2,
                               .vocab = 4,
                               .token_ids = ids,
                               .token_table = table,
                               .output = out};
        embedding_grad_args back = {.batch = 1,
                                    .tokens = 2,
                                    .channels = 2,
                                    .vocab = 4,
                                    .token_ids = ids,
                                    .output_grad = out,
                                    .token_table_grad = table};
        cross_entropy_args entropy = {
            .rows = 1, .vocab = 4, .logits = table, .targets = &ids[1], .losses = &loss};
        assert_int_equal(cpui_embedding_forward(&context, NULL, &args), ERR_INPUT);
        assert_int_equal(cpui_embedding_backward(&context, NULL, &back), ERR_INPUT);
        assert_int_equal(cpui_cross_entropy(&context, NULL, &entropy), ERR_INPUT);
        assert_true(out[0] == 7.0f && table[0] == 0.0f && loss == 7.0f);
    }
}

static void zeroing(void **state)
{
    (void)state;
    enum { BYTES = 700001 };
    unsigned char *data = mem_alloc(BYTES + 1, 1, "test");
    kernel_context context = rows_context_of(tested_isa, 3);
    memset(data, 0xa5, BYTES + 1);
    assert_int_equal(cpui_zero(&context, NULL, data, BYTES), 0);
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(data[i], 0);
    assert_int_equal(data[BYTES], 0xa5);
    mem_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),
        cmocka_unit_test(embeddings),
        cmocka_unit_test(head_norms),
        cmocka_unit_test(ropes),
        cmocka_unit_test(activations),
        cmocka_unit_test(activations_by_table),
        cmocka_unit_test(additions),
        cmocka_unit_test(cross_entropies),
        cmocka_unit_test(bad_indices_are_refused),
        cmocka_unit_test(zeroing),
    };
    int status = isa_of_test(&tested_isa);
    if (status != 0)
        return status;
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
