/* The CPU's norms, embeddings and rotary positions of one instruction set (the program's argument:
 * baseline, avx2 or avx512). */
#include "tests/kernels/rows_cases.h"

/* The parameters of a norm, by two bits: a weight (and a bias); one that adds 1; no bias; none that
 * is no weight of an RMSNorm either. */
struct norm_form {
    bool has_weight, adds_one, has_bias;
};

static struct norm_form form_of(bool layer, int bits)
{
    return (struct norm_form){.has_weight = layer ? bits != 3 : bits < 2,
                              .adds_one = bits == 1 || bits == 2,
                              .has_bias = layer && bits < 2};
}

/* variant bit 0: RMSNorm; bit 1: with residual; bits 2-3: the form of the parameters. */
static void norm_forward_case(struct run *run, const struct shape *shape)
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
    args.sum = residual ? block(run, count * dtype_bytes(type)) : NULL;
    args.weight = form.has_weight ? draw(run, type, shape->channels, 3, 1.0f) : NULL;
    args.bias = form.has_bias ? draw(run, type, shape->channels, 4, 1.0f) : NULL;
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
 * input_grad over residual_grad; bits 3-4: the form of the parameters.
 * The absolute tolerance covers rstd up to 316 (one channel) times
 * 2^-24. */
static void norm_backward_case(struct run *run, const struct shape *shape)
{
    enum dtype type = shape->type;
    uint64_t count = shape->rows * shape->channels;
    bool layer = !(shape->variant & 1);
    int place = shape->variant >> 1 & 3;
    struct norm_form form = form_of(layer, shape->variant >> 3);
    norm_grad_args args = {.kind = layer ? NORM_LAYER : NORM_RMS,
                           .type = type,
                           .rows = shape->rows,
                           .channels = shape->channels,
                           .adds_one = form.adds_one};
    void *dy = draw(run, type, count, 4, 1.0f);
    void *skip = draw(run, type, count, 5, 1.0f);
    float *rstd = draw(run, DTYPE_FP32, shape->rows, 6, 0.5f);
    for (uint64_t row = 0; row < shape->rows; row++)
        rstd[row] = 0.1f + fabsf(rstd[row]);
    args.input = draw(run, type, count, 1, 2.0f);
    args.weight = form.has_weight ? draw(run, type, shape->channels, 2, 1.0f) : NULL;
    args.mean = layer ? draw(run, DTYPE_FP32, shape->rows, 3, 0.5f) : NULL;
    args.rstd = rstd;
    args.output_grad = dy;
    args.residual_grad = place == 0 ? NULL : skip;
    args.input_grad = place == 2 ? dy : place == 3 ? skip : block(run, count * dtype_bytes(type));
    args.weight_grad = form.has_weight ? draw(run, DTYPE_FP32, shape->channels, 7, 1.0f) : NULL;
    args.bias_grad = form.has_bias ? draw(run, DTYPE_FP32, shape->channels, 8, 1.0f) : NULL;
    args.scratch =
        block(run, run->ops->norm_grad_scratch_bytes(run->context, shape->rows, shape->channels));
    assert_int_equal(run->ops->norm_backward(run->context, NULL, &args), 0);
    emit(run, type, args.input_grad, count, 1e-4f);
    if (form.has_weight)
        emit(run, DTYPE_FP32, args.weight_grad, shape->channels, 3e-5f);
    if (form.has_bias)
        emit(run, DTYPE_FP32, args.bias_grad, shape->channels, 1e-5f);
}

/* variant bit 0: with positions; bit 1: documents of 7 tokens. 13 token ids: most rows share one.
 * */
static void embedding_case(struct run *run, const struct shape *shape)
{
    enum { VOCAB = 13 };
    enum dtype type = shape->type;
    uint64_t batch = shape->rows % 5 == 0 ? 5 : 1, tokens = shape->rows / batch;
    uint64_t channels = shape->channels, count = shape->rows * channels;
    int32_t *ids = block(run, shape->rows * sizeof *ids);
    for (uint64_t row = 0; row < shape->rows; row++)
        ids[row] = (int32_t)rng_below(SEED, 1, row, VOCAB);
    int32_t *begins = shape->variant & 2 ? block(run, shape->rows * sizeof *begins) : NULL;
    for (uint64_t row = 0; begins && row < shape->rows; row++)
        begins[row] = (int32_t)(row % tokens / 7 * 7);
    embedding_args args = {.type = type,
                           .begins = begins,
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
                                .begins = begins,
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

/* Heads of `channels` elements, 3 of them (1 if it is wide) in a row of 5 more, which must not
 * change. variant bit 0: LayerNorm; bit 1: the weight adds 1; bit 2: each head has its own. */
static void head_norm_case(struct run *run, const struct shape *shape)
{
    enum dtype type = shape->type;
    uint64_t dim = shape->channels, heads = dim > 256 ? 1 : 3, stride = heads * dim + 5;
    uint64_t count = shape->rows * stride, all = shape->rows * heads;
    bool layer = shape->variant & 1, per_head = shape->variant & 4;
    uint64_t weights = per_head ? heads * dim : dim;
    head_norm_args args = {.type = type,
                           .rows = shape->rows,
                           .heads = heads,
                           .head_dim = dim,
                           .stride = stride,
                           .is_layer = layer,
                           .adds_one = shape->variant & 2,
                           .weight_per_head = per_head,
                           .epsilon = 1e-5f};
    args.weight = draw(run, type, weights, 1, 1.0f);
    args.data = draw(run, type, count, 2, 2.0f);
    args.before = block(run, all * dim * dtype_bytes(type));
    args.mean = layer ? block(run, all * sizeof(float)) : NULL;
    args.rstd = block(run, all * sizeof(float));
    assert_int_equal(run->ops->head_norm_forward(run->context, NULL, &args), 0);
    emit(run, type, args.data, count, 4e-6f);
    emit(run, type, args.before, all * dim, 0.0f);
    emit(run, DTYPE_FP32, args.rstd, all, 1e-6f);
    if (layer)
        emit(run, DTYPE_FP32, args.mean, all, 1e-6f);
    args.data = draw(run, type, count, 3, 1.0f);
    args.weight_grad = draw(run, DTYPE_FP32, weights, 4, 1.0f);
    args.scratch = block(run, run->ops->head_norm_grad_scratch_bytes(
                                  run->context, shape->rows, per_head ? 1 : heads, weights));
    assert_int_equal(run->ops->head_norm_backward(run->context, NULL, &args), 0);
    emit(run, type, args.data, count, 1e-4f);
    emit(run, DTYPE_FP32, args.weight_grad, weights, 3e-5f);
}

/* `channels` pairs are rotated in each of 3 heads, with 5 elements between the last head and the
 * next row, which must not change. variant bit 0: inverse; bit 1: interleaved; bit 2: 6 more
 * elements in each head; bit 3: documents of 7 tokens. */
static void rope_case(struct run *run, const struct shape *shape)
{
    uint64_t rotated = 2 * shape->channels, dim = rotated + (shape->variant & 4 ? 6 : 0);
    uint64_t stride = 3 * dim + 5, count = shape->rows * stride;
    uint64_t batch = shape->rows % 5 == 0 ? 5 : 1, tokens = shape->rows / batch;
    double *factors = block(run, 2 * shape->channels * sizeof *factors);
    for (uint64_t i = 0; i < 2 * shape->channels; i++)
        factors[i] = 1.0 + 0.25 * (double)i;
    int32_t *begins = shape->variant & 8 ? block(run, shape->rows * sizeof *begins) : NULL;
    for (uint64_t row = 0; begins && row < shape->rows; row++)
        begins[row] = (int32_t)(row % tokens / 7 * 7);
    rope_args args = {.type = shape->type,
                      .batch = batch,
                      .tokens = tokens,
                      .heads = 3,
                      .head_dim = dim,
                      .stride = stride,
                      .rotated = dim == rotated ? 0 : rotated,
                      .interleaved = shape->variant & 2,
                      .begins = begins,
                      .inverse = shape->variant & 1};
    float *table = block(run, tokens * rotated * sizeof *table);
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
    assert_int_equal(run->ops->rope_table(run->context, NULL, &made), 0);
    assert_int_equal(run->ops->rope(run->context, NULL, &args), 0);
    emit(run, DTYPE_FP32, table, tokens * rotated, 0.0f);
    emit(run, shape->type, args.data, count, 1e-6f);
}

static void norms(void **state)
{
    (void)state;
    check_shapes("norm forward", norm_forward_case, 16);
    check_shapes("norm backward", norm_backward_case, 32);
}

static void embeddings(void **state)
{
    (void)state;
    check_shapes("embedding", embedding_case, 4);
}

static void head_norms(void **state)
{
    (void)state;
    static const uint64_t dims[] = {2, 6, 33, 64, 128, 256, 600, 4100};
    for (size_t t = 0; t < sizeof all_types / sizeof *all_types; t++)
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
            for (int variant = 0; variant < 8; variant++)
                check_case("norms of heads", head_norm_case,
                           &(struct shape){all_types[t], 65, dims[d], variant});
}

static void ropes(void **state)
{
    (void)state;
    static const uint64_t pairs[] = {1, 3, 32, 64, 300};
    enum { TYPES = sizeof all_types / sizeof *all_types, PAIRS = sizeof pairs / sizeof *pairs };
    for (uint64_t t = 0; t < TYPES; t++)
        for (uint64_t p = 0; p < PAIRS; p++)
            for (uint64_t variant = 0; variant < 16; variant++) {
                /* Every scaling and both numbers of sequences, in turn. */
                uint64_t rows = 65 + (variant / 2 + 5 * t + p) % ROPE_SCALING_COUNT;
                check_case("rope", rope_case,
                           &(struct shape){all_types[t], rows, pairs[p], (int)variant});
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),
        cmocka_unit_test(embeddings),
        cmocka_unit_test(head_norms),
        cmocka_unit_test(ropes),
    };
    int status = isa_of_test(&tested_isa);
    if (status != 0)
        return status;
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
