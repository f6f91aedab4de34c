/* The CPU's activations, sums, losses and small row ops of one instruction set (the program's
 * argument: baseline, avx2 or avx512). */
#include "kernels/dropout_mask.h"
#include "tests/kernels/rows_cases.h"

#include "tests/kernels/row_ops_cases.h"

/* channels is the vocabulary. variant bit 0: gradient over logits (fp32 only); bit 1: logits up to
 * the thousands, so that all but one or two probabilities vanish; bit 2: loss only; bit 3: the
 * logits are capped. Each third target is ignored. A probability's relative error is that of exp of
 * a rounded difference, |x| 2^-24. */
static void cross_entropy_case(struct run *run, const struct shape *shape)
{
    uint64_t count = shape->rows * shape->channels;
    bool in_place = (shape->variant & 1) && shape->type == DTYPE_FP32;
    float *logits = draw(run, DTYPE_FP32, count, 1, shape->variant & 2 ? 1000.0f : 3.0f);
    int32_t *targets = scratch(run, shape->rows * sizeof *targets);
    for (uint64_t row = 0; row < shape->rows; row++)
        targets[row] = row % 3 == 1 ? -1 : (int32_t)rng_below(SEED, 2, row, shape->channels);
    targets[0] = (int32_t)shape->channels - 1;
    cross_entropy_args args = {.type = shape->type,
                               .rows = shape->rows,
                               .vocab = shape->channels,
                               .logits = logits,
                               .targets = targets,
                               .grad_scale = 0.125f,
                               .soft_cap = shape->variant & 8 ? 30.0f : 0.0f};
    args.losses = scratch(run, shape->rows * sizeof(float));
    if (!(shape->variant & 4))
        args.logits_grad = in_place ? logits : scratch(run, count * dtype_bytes(shape->type));
    assert_int_equal(run->ops->cross_entropy(run->context, NULL, &args), 0);
    emit(run, DTYPE_FP32, args.losses, shape->rows, shape->variant & 8 ? 1e-5f : 1e-6f);
    if (args.logits_grad)
        emit(run, shape->type, args.logits_grad, count, shape->variant & 10 ? 1e-5f : 1e-7f);
}

static void activations(void **state)
{
    check_shapes("activation", activation_case, 4 * ACTIVATION_KIND_COUNT);
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
    for (int variant = 0; variant < 2 * ACTIVATION_KIND_COUNT; variant++) {
        activation_args args = {.kind = (enum activation_kind)(variant / 2),
                                .type = DTYPE_BF16,
                                .rows = sizes[variant % 2].rows,
                                .features = sizes[variant % 2].features,
                                .alpha = 1.702f,
                                .limit = 1.5f,
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
    check_shapes("add", add_case, 3);
    check_shapes("scale rows", scale_case, 4);
    check_shapes("bias backward", bias_case, 1);
    check_case("bias backward", bias_case, &(struct shape){DTYPE_BF16, 5003, 3, 0});
}

/* Random123's vectors of known answers, of which two can be a mask; and the mask is that of the
 * whole however the call is cut. */
static void dropouts(void **state)
{
    enum { ROWS = 12, TOKENS = 4, WIDTH = 37, COUNT = ROWS * WIDTH };
    uint32_t words[4];
    dropout_words((dropout_place){UINT64_MAX, UINT32_MAX, UINT32_MAX, (1u << 23) - 1},
                  (UINT64_C(1) << 40) - 1, words);
    assert_memory_equal(words, ((uint32_t[]){0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}), 16);
    dropout_words((dropout_place){0x299f31d0a4093822, 0x03707344, 0x13198a2e, 0x05a308},
                  0xd3243f6a88, words);
    assert_memory_equal(words, ((uint32_t[]){0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}), 16);

    check_shapes("dropout", dropout_case, 2);
    kernel_context context = rows_context_of(tested_isa, 2);
    float ones[COUNT], whole[COUNT], cut[COUNT];
    uint32_t counter[2] = {11, 40};
    for (int i = 0; i < COUNT; i++)
        ones[i] = 1.0f;
    dropout_args args = {.rows = ROWS,
                         .columns = WIDTH,
                         .source = ones,
                         .target = whole,
                         .probability = 0.25f,
                         .seed = SEED,
                         .counter = counter,
                         .tokens = TOKENS};
    assert_int_equal(cpui_dropout(&context, NULL, &args), 0);
    for (int piece = 0; piece < 2; piece++) { /* the first 5 rows, and the others */
        args.row_begin = piece ? 5 : 0;
        args.rows = piece ? ROWS - 5 : 5;
        args.source = ones + args.row_begin * WIDTH;
        args.target = cut + args.row_begin * WIDTH;
        assert_int_equal(cpui_dropout(&context, NULL, &args), 0);
    }
    assert_memory_equal(cut, whole, sizeof whole);
    /* The last two sequences alone, as a micro-batch that begins with sequence 41. */
    counter[1] = 41;
    args = (dropout_args){.rows = ROWS - TOKENS,
                          .columns = WIDTH,
                          .source = ones,
                          .target = cut,
                          .probability = 0.25f,
                          .seed = SEED,
                          .counter = counter,
                          .tokens = TOKENS};
    assert_int_equal(cpui_dropout(&context, NULL, &args), 0);
    assert_memory_equal(cut, whole + TOKENS * WIDTH, (ROWS - TOKENS) * WIDTH * sizeof *cut);
    int dropped = 0;
    for (int i = 0; i < COUNT; i++) {
        assert_true(whole[i] == 0.0f || whole[i] == 1.0f / 0.75f);
        dropped += whole[i] == 0.0f;
    }
    assert_in_range(dropped, COUNT / 4 - 40, COUNT / 4 + 40); /* 4 standard deviations are 36 */
    /* Another step, site or seed drops others; a probability of 0 nothing. */
    for (int other = 0; other < 4; other++) {
        dropout_args changed = args;
        counter[0] = other == 0 ? 12 : 11;
        changed.site = other == 1;
        changed.seed += other == 2;
        changed.probability = other == 3 ? 0.0f : 0.25f;
        assert_int_equal(cpui_dropout(&context, NULL, &changed), 0);
        assert_memory_not_equal(cut, whole + TOKENS * WIDTH, sizeof *cut * TOKENS * WIDTH);
        if (other == 3)
            assert_memory_equal(cut, ones, sizeof *cut * TOKENS * WIDTH);
    }
}

static void cross_entropies(void **state)
{
    check_shapes("cross-entropy", cross_entropy_case, 16);
    check_case("cross-entropy", cross_entropy_case, &(struct shape){DTYPE_BF16, 4, 50257, 0});
    check_case("cross-entropy", cross_entropy_case, &(struct shape){DTYPE_FP32, 1, 262143, 1});
}

static void bad_indices_are_refused(void **state)
{
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

static void sinks(void **state)
{
    check_shapes("sinks", sinks_case, 2);
}

static void heads(void **state)
{
    check_shapes("heads", heads_case, 5);
}

static void zeroing(void **state)
{
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
        cmocka_unit_test(activations),     cmocka_unit_test(activations_by_table),
        cmocka_unit_test(additions),       cmocka_unit_test(dropouts),
        cmocka_unit_test(cross_entropies), cmocka_unit_test(bad_indices_are_refused),
        cmocka_unit_test(zeroing),         cmocka_unit_test(sinks),
        cmocka_unit_test(heads),
    };
    int status = isa_of_test(&tested_isa);
    if (status != 0)
        return status;
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
