/* The CPU's norms, embeddings and rotary positions of one instruction set (the program's argument:
 * baseline, avx2 or avx512). */
#include "tests/kernels/rows_cases.h"

#include "tests/kernels/row_ops_cases.h"

/* variant bit 0: with positions; bit 1: documents of 7 tokens. 13 token ids: most rows share one.
 * */
static void embedding_case(struct run *run, const struct shape *shape)
{
    enum { VOCAB = 13 };
    enum dtype type = shape->type;
    uint64_t batch = shape->rows % 5 == 0 ? 5 : 1, tokens = shape->rows / batch;
    uint64_t channels = shape->channels, count = shape->rows * channels;
    int32_t *ids = scratch(run, shape->rows * sizeof *ids);
    for (uint64_t row = 0; row < shape->rows; row++)
        ids[row] = (int32_t)rng_below(SEED, 1, row, VOCAB);
    int32_t *begins = shape->variant & 2 ? scratch(run, shape->rows * sizeof *begins) : NULL;
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
    args.output = scratch(run, count * dtype_bytes(type));
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
        scratch(run, run->ops->embedding_grad_scratch_bytes(run->context, shape->rows, VOCAB));
    assert_int_equal(run->ops->embedding_backward(run->context, NULL, &back), 0);
    emit(run, DTYPE_FP32, back.token_table_grad, VOCAB * channels, 1e-6f);
    if (back.position_table_grad)
        emit(run, DTYPE_FP32, back.position_table_grad, tokens * channels, 1e-6f);
}

static void norms(void **state)
{
    check_shapes("norm forward", norm_forward_case, 16);
    check_shapes("norm backward", norm_backward_case, 32);
}

static void embeddings(void **state)
{
    check_shapes("embedding", embedding_case, 4);
}

static void head_norms(void **state)
{
    static const uint64_t dims[] = {2, 6, 33, 64, 128, 256, 600, 4100};
    for (size_t t = 0; t < sizeof all_types / sizeof *all_types; t++)
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
            for (int variant = 0; variant < 16; variant++)
                check_case("norms of heads", head_norm_case,
                           &(struct shape){all_types[t], 65, dims[d], variant});
}

static void ropes(void **state)
{
    static const uint64_t pairs[] = {1, 3, 32, 64, 300};
    enum { TYPES = sizeof all_types / sizeof *all_types, PAIRS = sizeof pairs / sizeof *pairs };
    for (uint64_t t = 0; t < TYPES; t++)
        for (uint64_t p = 0; p < PAIRS; p++)
            for (uint64_t variant = 0; variant < 32; variant++) {
                /* Every scaling, and both numbers of sequences, in turn. */
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
