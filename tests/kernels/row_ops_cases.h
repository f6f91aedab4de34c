/* Cases of row ops, for the rigs of the CPU and of the GPU (rows_cases.h, gpu_rows_cases.h), one of
 * which is included before this file. */
#ifndef SLUICE_TESTS_KERNELS_ROW_OPS_CASES_H
#define SLUICE_TESTS_KERNELS_ROW_OPS_CASES_H

#include "tests/unit.h"

/* ---- norms, and sums of columns ---- */

/* The parameters of a norm, by two bits: a weight (and a bias); one that adds 1; no bias; none that
 * is no weight of an RMSNorm either. */
struct norm_form {
    bool has_weight, adds_one, has_bias;
};

static inline struct norm_form form_of(bool layer, int bits)
{
    return (struct norm_form){.has_weight = layer ? bits != 3 : bits < 2,
                              .adds_one = bits == 1 || bits == 2,
                              .has_bias = layer && bits < 2};
}

/* variant bit 0: RMSNorm; bit 1: with residual; bits 2-3: the form of the parameters. */
static inline void norm_forward_case(struct run *run, const struct shape *shape)
{
    enum dtype type = shape->type;
    uint64_t count = shape->rows * shape->channels;
    bool layer = !(shape->variant & 1), residual = shape->variant & 2;
    struct norm_form form = form_of(layer, shape->variant >> 2);
    norm_args args = {.kind = layer ? NORM_LAYER : NORM_RMS,
                      .type = type,
                      .rows = shape->rows,
                      .channels = shape->channels,
                      .adds_one = form.adds_one,
                      .epsilon = 1e-5f};
    args.input = draw(run, type, count, 1, 2.0f);
    args.residual = residual ? draw(run, type, count, 2, 1.0f) : NULL;
    args.sum = residual ? block(run, type, count) : NULL;
    args.weight = form.has_weight ? draw(run, type, shape->channels, 3, 1.0f) : NULL;
    args.bias = form.has_bias ? draw(run, type, shape->channels, 4, 1.0f) : NULL;
    args.output = block(run, type, count);
    args.mean = layer ? block(run, DTYPE_FP32, shape->rows) : NULL;
    args.rstd = block(run, DTYPE_FP32, shape->rows);
    assert_int_equal(run->ops->norm_forward(run->context, run->stream, &args), 0);
    emit(run, type, args.output, count, 4e-6f);
    emit(run, DTYPE_FP32, args.rstd, shape->rows, 0.0f);
    if (layer)
        emit(run, DTYPE_FP32, args.mean, shape->rows, 1e-6f);
    if (residual)
        emit(run, type, args.sum, count, -1.0f);
}

/* variant bit 0: RMSNorm; bits 1-2: no residual gradient, one, input_grad over output_grad,
 * input_grad over residual_grad; bits 3-4: the form of the parameters.
 * The absolute tolerance covers rstd up to 316 (one channel) times
 * 2^-24. */
static inline void norm_backward_case(struct run *run, const struct shape *shape)
{
    enum dtype type = shape->type;
    uint64_t count = shape->rows * shape->channels;
    bool layer = !(shape->variant & 1);
    int place_of_grad = shape->variant >> 1 & 3;
    struct norm_form form = form_of(layer, shape->variant >> 3);
    norm_grad_args args = {.kind = layer ? NORM_LAYER : NORM_RMS,
                           .type = type,
                           .rows = shape->rows,
                           .channels = shape->channels,
                           .adds_one = form.adds_one};
    void *dy = draw(run, type, count, 4, 1.0f);
    void *skip = draw(run, type, count, 5, 1.0f);
    args.input = draw(run, type, count, 1, 2.0f);
    args.weight = form.has_weight ? draw(run, type, shape->channels, 2, 1.0f) : NULL;
    args.mean = layer ? draw(run, DTYPE_FP32, shape->rows, 3, 0.5f) : NULL;
    args.rstd = draw_at_least(run, DTYPE_FP32, shape->rows, 6, 0.5f, 0.1f);
    args.output_grad = dy;
    args.residual_grad = place_of_grad == 0 ? NULL : skip;
    args.input_grad = place_of_grad == 2 ? dy : place_of_grad == 3 ? skip : block(run, type, count);
    args.weight_grad = form.has_weight ? draw(run, DTYPE_FP32, shape->channels, 7, 1.0f) : NULL;
    args.bias_grad = form.has_bias ? draw(run, DTYPE_FP32, shape->channels, 8, 1.0f) : NULL;
    args.scratch =
        scratch(run, run->ops->norm_grad_scratch_bytes(run->context, shape->rows, shape->channels));
    assert_int_equal(run->ops->norm_backward(run->context, run->stream, &args), 0);
    emit(run, type, args.input_grad, count, 1e-4f);
    if (form.has_weight)
        emit(run, DTYPE_FP32, args.weight_grad, shape->channels, 3e-5f);
    if (form.has_bias)
        emit(run, DTYPE_FP32, args.bias_grad, shape->channels, 1e-5f);
}

/* Heads of `channels` elements, 3 of them (1 if it is wide) in a row of some more, which must not
 * change: 5, or 16 (variant bit 0) so that packs are possible. variant bit 1: LayerNorm; bit 2: the
 * weight adds 1; bit 3: each head has its own. */
static inline void head_norm_case(struct run *run, const struct shape *shape)
{
    enum dtype type = shape->type;
    uint64_t dim = shape->channels, heads = dim > 256 ? 1 : 3;
    uint64_t stride = heads * dim + (shape->variant & 1 ? 16 : 5);
    uint64_t count = shape->rows * stride, all = shape->rows * heads;
    bool layer = shape->variant & 2, per_head = shape->variant & 8;
    uint64_t weights = per_head ? heads * dim : dim;
    head_norm_args args = {.type = type,
                           .rows = shape->rows,
                           .heads = heads,
                           .head_dim = dim,
                           .stride = stride,
                           .is_layer = layer,
                           .adds_one = shape->variant & 4,
                           .weight_per_head = per_head,
                           .epsilon = 1e-5f};
    args.weight = draw(run, type, weights, 1, 1.0f);
    args.data = draw(run, type, count, 2, 2.0f);
    args.before = block(run, type, all * dim);
    args.mean = layer ? block(run, DTYPE_FP32, all) : NULL;
    args.rstd = block(run, DTYPE_FP32, all);
    assert_int_equal(run->ops->head_norm_forward(run->context, run->stream, &args), 0);
    emit(run, type, args.data, count, 4e-6f);
    emit(run, type, args.before, all * dim, -1.0f);
    emit(run, DTYPE_FP32, args.rstd, all, 1e-6f);
    if (layer)
        emit(run, DTYPE_FP32, args.mean, all, 1e-6f);
    args.data = draw(run, type, count, 3, 1.0f);
    args.weight_grad = draw(run, DTYPE_FP32, weights, 4, 1.0f);
    args.scratch = scratch(run, run->ops->head_norm_grad_scratch_bytes(
                                    run->context, shape->rows, per_head ? 1 : heads, weights));
    assert_int_equal(run->ops->head_norm_backward(run->context, run->stream, &args), 0);
    emit(run, type, args.data, count, 1e-4f);
    emit(run, DTYPE_FP32, args.weight_grad, weights, 3e-5f + SUM_SLACK * (float)all);
}

static inline void bias_case(struct run *run, const struct shape *shape)
{
    uint64_t stride = shape->channels + shape->channels % 5;
    void *dy = draw(run, shape->type, shape->rows * stride, 1, 1.0f);
    float *grad = draw(run, DTYPE_FP32, shape->channels, 2, 1.0f);
    void *room = scratch(
        run, run->ops->bias_backward_scratch_bytes(run->context, shape->rows, shape->channels));
    assert_int_equal(run->ops->bias_backward(run->context, run->stream, shape->type, shape->rows,
                                             shape->channels, stride, dy, grad, room),
                     0);
    emit(run, DTYPE_FP32, grad, shape->channels, 1e-6f * sqrtf((float)shape->rows));
}

/* ---- element to element ---- */

/* variant / 4: the kind; bit 0: input_grad over input; bit 1: inputs up to the hundreds, where the
 * sigmoids are 0 or 1. The absolute tolerance is for the reference's form with tanh. */
static inline void activation_case(struct run *run, const struct shape *shape)
{
    enum dtype type = shape->type;
    enum activation_kind kind = (enum activation_kind)(shape->variant / 4);
    bool in_place = shape->variant & 1;
    uint64_t count = shape->rows * shape->channels;
    uint64_t in_count = activation_is_gated(kind) ? 2 * count : count;
    float scale = shape->variant & 2 ? 60.0f : 2.0f;
    void *input = draw(run, type, in_count, 1, scale);
    activation_args args = {.kind = kind,
                            .type = type,
                            .rows = shape->rows,
                            .features = shape->channels,
                            .alpha = 1.702f,
                            .limit = 1.5f,
                            .input = input};
    args.output = block(run, type, count);
    args.output_grad = draw(run, type, count, 2, 1.0f);
    args.input_grad = in_place ? input : block(run, type, in_count);
    assert_int_equal(run->ops->activation_forward(run->context, run->stream, &args), 0);
    emit(run, type, args.output, count, 4e-6f);
    assert_int_equal(run->ops->activation_backward(run->context, run->stream, &args), 0);
    emit(run, type, args.input_grad, in_count, 4e-6f * scale);
}

/* `channels` pairs are rotated in each of 3 heads, with some elements between the last head and the
 * next row, which must not change: 5, or 16 (variant bit 4) so that packs are possible. variant bit
 * 0: inverse; bit 1: interleaved; bit 2: 8 more elements in each head; bit 3: documents of 7
 * tokens. */
static inline void rope_case(struct run *run, const struct shape *shape)
{
    uint64_t rotated = 2 * shape->channels, dim = rotated + (shape->variant & 4 ? 8 : 0);
    uint64_t stride = 3 * dim + (shape->variant & 16 ? 16 : 5), count = shape->rows * stride;
    uint64_t batch = shape->rows % 5 == 0 ? 5 : 1, tokens = shape->rows / batch;
    double factors[2 * 600];
    assert_true(shape->rows <= 128 && shape->channels <= 600);
    for (uint64_t i = 0; i < 2 * shape->channels; i++)
        factors[i] = 1.0 + 0.25 * (double)i;
    int32_t begins[128];
    for (uint64_t row = 0; row < shape->rows; row++)
        begins[row] = (int32_t)(row % tokens / 7 * 7);
    rope_args args = {.type = shape->type,
                      .batch = batch,
                      .tokens = tokens,
                      .heads = 3,
                      .head_dim = dim,
                      .stride = stride,
                      .rotated = dim == rotated ? 0 : rotated,
                      .interleaved = shape->variant & 2,
                      .begins = shape->variant & 8 ? place(run, begins, shape->rows * 4, 0) : NULL,
                      .inverse = shape->variant & 1};
    float *table = block(run, DTYPE_FP32, tokens * rotated);
    args.data = draw(run, shape->type, count, 1, 1.0f);
    args.table = table;
    /* By the number of rows, each way to stretch frequencies; of LLAMA3 waves of all three
     * kinds. */
    rope_table_args made = {.table = table,
                            .tokens = tokens,
                            .head_dim = rotated,
                            .theta = 10000.0,
                            .scaling = (enum rope_scaling)(shape->rows % ROPE_SCALING_COUNT),
                            .factor = 8,
                            .low_freq_factor = 1,
                            .high_freq_factor = 4,
                            .original_positions = 40,
                            .short_factors = factors,
                            .long_factors = factors + shape->channels};
    assert_int_equal(run->ops->rope_table(run->context, run->stream, &made), 0);
    assert_int_equal(run->ops->rope(run->context, run->stream, &args), 0);
    emit(run, DTYPE_FP32, table, tokens * rotated, 0.0f);
    emit(run, shape->type, args.data, count, 1e-6f);
}

/* variant: sum over a fresh array, over a, over b. */
static inline void add_case(struct run *run, const struct shape *shape)
{
    uint64_t count = shape->rows * shape->channels;
    void *a = draw(run, shape->type, count, 1, 1.0f), *b = draw(run, shape->type, count, 2, 1.0f);
    void *fresh = block(run, shape->type, count);
    void *out = shape->variant == 0 ? fresh : shape->variant == 1 ? a : b;
    assert_int_equal(run->ops->add(run->context, run->stream, shape->type, count, a, b, out), 0);
    emit(run, shape->type, out, count, -1.0f);
}

/* Rows that lie apart, by different strides. variant bit 0: they are added; bit 1: in place. */
static inline void scale_case(struct run *run, const struct shape *shape)
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
    assert_int_equal(run->ops->scale_rows(run->context, run->stream, &args), 0);
    emit(run, shape->type, target, shape->rows * wide, -1.0f);
}

/* Rows of 3 sequences. variant bit 0: in place. */
static inline void dropout_case(struct run *run, const struct shape *shape)
{
    static const uint32_t counter[2] = {7, 0xfffffffe};
    uint64_t count = shape->rows * shape->channels;
    dropout_args args = {.type = shape->type,
                         .rows = shape->rows,
                         .columns = shape->channels,
                         .probability = 0.3f,
                         .seed = run->seed,
                         .site = 3 << 16 | 5,
                         .counter = place(run, counter, sizeof counter, 0),
                         .tokens = shape->rows / 2 + 1,
                         .row_begin = shape->rows / 3};
    void *source = draw(run, shape->type, count, 1, 1.0f);
    void *target = draw(run, shape->type, count, 2, 1.0f);
    args.source = source;
    args.target = shape->variant ? source : target;
    assert_int_equal(run->ops->dropout(run->context, run->stream, &args), 0);
    emit(run, shape->type, args.target, count, -1.0f);
}

/* ---- heads: kernels/ops_heads.h ---- */

/* rows: T; channels: E; variant: 0 sinks of about 1, 1 sinks in the hundreds, of either sign. */
static inline void sinks_case(struct run *run, const struct shape *shape)
{
    enum { BATCH = 2, HEADS = 3 };
    enum dtype type = shape->type;
    uint64_t lse_count = BATCH * HEADS * shape->rows, count = lse_count * shape->channels;
    /* a tie that tips in the output changes the sum by one rounding of an element */
    float slack = type == DTYPE_FP32 ? 1e-5f : 1e-2f;
    attention_sinks_args args = {.type = type,
                                 .batch = BATCH,
                                 .tokens = shape->rows,
                                 .heads = HEADS,
                                 .value_dim = shape->channels};
    args.sinks = draw(run, type, HEADS, 1, shape->variant ? 300.0f : 1.0f);
    args.output = draw(run, type, count, 2, 1.0f);
    args.lse = draw(run, DTYPE_FP32, lse_count, 3, 2.0f);
    args.output_grad = draw(run, type, count, 4, 1.0f);
    args.sinks_grad = draw(run, DTYPE_FP32, HEADS, 5, 1.0f);
    assert_int_equal(run->ops->attention_sinks(run->context, run->stream, &args), 0);
    emit(run, type, args.output, count, 2e-6f);
    emit(run, DTYPE_FP32, args.lse, lse_count, 2e-6f);
    assert_int_equal(run->ops->attention_sinks_backward(run->context, run->stream, &args), 0);
    emit(run, DTYPE_FP32, args.sinks_grad, HEADS, slack * sqrtf((float)(count / HEADS)));
}

/* rows: N; channels: the elements of v's heads. Copies are exact, and a sum is one rounding off. */
static inline void heads_case(struct run *run, const struct shape *shape)
{
    static const uint64_t sizes[][3] = {{3, 5, 2}, {1, 0, 4}, {4, 16, 8}, {2, 7, 0}, {5, 128, 64}};
    enum dtype type = shape->type;
    uint64_t heads = sizes[shape->variant][0], own = sizes[shape->variant][1];
    uint64_t shared = sizes[shape->variant][2], value = shape->channels, rows = shape->rows;
    uint64_t q = rows * heads * (own + shared), kv = rows * heads * (own + value);
    uint64_t stride = shared + 3, packed = 2 * q + rows * heads * value;
    heads_join_args args = {.type = type,
                            .rows = rows,
                            .heads = heads,
                            .own = own,
                            .shared = shared,
                            .value = value,
                            .common_stride = stride};
    args.q = draw(run, type, q, 1, 1.0f);
    args.kv = draw(run, type, kv, 2, 1.0f);
    args.common = draw(run, type, rows * stride, 3, 1.0f);
    args.packed = draw(run, type, packed, 4, 1.0f);
    assert_int_equal(run->ops->heads_join(run->context, run->stream, &args), 0);
    emit(run, type, args.packed, packed, 0.0f);
    args.packed = draw(run, type, packed, 5, 1.0f);
    assert_int_equal(run->ops->heads_split(run->context, run->stream, &args), 0);
    emit(run, type, args.q, q, 0.0f);
    emit(run, type, args.kv, kv, 0.0f);
    emit(run, type, args.common, rows * stride, 2e-6f);
}

#endif
