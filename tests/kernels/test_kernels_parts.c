/* The vocabulary in parts: embedding by rows of its table, softmax cross-entropy by columns of its
 * logits, on one instruction set (the program's argument: baseline, avx2 or avx512).
 *
 * The embedding's parts must give the bits of the call with the whole tables, whatever the cut. The
 * parts of the softmax are held against the uncut cross-entropy and against the reference's parts
 * within fp32's rounding, and against the baseline and other thread counts to the bit. */
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/cpu/rows_internal.h"
#include "tests/kernels/kernels_isa.h"
#include "tests/unit.h"

enum { SEED = 30211, PARTS_MAX = 6 };

static enum cpu_isa tested_isa;

static void *block(uint64_t bytes)
{
    void *memory = mem_alloc(bytes + 1, 1, "test");
    assert_non_null(memory);
    return memory;
}

/* count normal numbers times `scale`, rounded to type. */
static void *draw(enum dtype type, uint64_t count, uint64_t stream, float scale)
{
    float *x = block(count * sizeof *x);
    rng_normals(SEED, stream, 0, count, x);
    for (uint64_t i = 0; i < count; i++)
        x[i] *= scale;
    if (type == DTYPE_FP32)
        return x;
    void *rounded = block(count * dtype_bytes(type));
    dtype_convert(x, DTYPE_FP32, rounded, type, count);
    mem_free(x);
    return rounded;
}

/* Where parts end: part i is [ends[i - 1], ends[i]). */
struct cut {
    int parts;
    uint64_t ends[PARTS_MAX];
};

/* ---- embedding ---- */

enum { VOCAB = 37, BATCH = 3, TOKENS = 29, ROWS = BATCH * TOKENS };

static const struct cut vocab_cuts[] = {
    {1, {VOCAB}}, {2, {1, VOCAB}}, {3, {12, 24, VOCAB}}, {5, {7, 8, 20, 36, VOCAB}}};

struct embedding {
    enum dtype type;
    uint64_t channels;
    bool has_positions;
    int32_t ids[ROWS];
    void *token_table, *position_table, *output_grad;
};

static void embedding_init(struct embedding *data, enum dtype type, uint64_t channels,
                           bool has_positions)
{
    *data = (struct embedding){.type = type, .channels = channels, .has_positions = has_positions};
    for (uint64_t row = 0; row < ROWS; row++)
        data->ids[row] = (int32_t)rng_below(SEED, 1, row, VOCAB);
    data->token_table = draw(type, VOCAB * channels, 2, 1.0f);
    data->position_table = draw(type, TOKENS * channels, 3, 1.0f);
    data->output_grad = draw(type, ROWS * channels, 4, 1.0f);
    /* A sum beyond the largest fp16 and one that is not a number. */
    dtype_convert((float[]){65504.0f, 65504.0f}, DTYPE_FP32, data->position_table, type,
                  channels > 1 ? 2 : 1);
    dtype_convert((float[]){60000.0f, INFINITY}, DTYPE_FP32, data->token_table, type,
                  channels > 1 ? 2 : 1);
}

static void embedding_fini(struct embedding *data)
{
    mem_free(data->token_table);
    mem_free(data->position_table);
    mem_free(data->output_grad);
}

/* Output and both gradients. With a cut: the parts' calls, then the positions'. */
static void embedding_run(const struct embedding *data, const kernel_ops *ops,
                          kernel_context *context, const struct cut *cut, void *output,
                          float *token_grad, float *position_grad)
{
    size_t elem_bytes = dtype_bytes(data->type);
    embedding_args args = {.type = data->type,
                           .batch = BATCH,
                           .tokens = TOKENS,
                           .channels = data->channels,
                           .vocab = VOCAB,
                           .token_ids = data->ids,
                           .token_table = data->token_table,
                           .position_table = data->has_positions ? data->position_table : NULL,
                           .output = output};
    embedding_grad_args back = {.type = data->type,
                                .batch = BATCH,
                                .tokens = TOKENS,
                                .channels = data->channels,
                                .vocab = VOCAB,
                                .token_ids = data->ids,
                                .output_grad = data->output_grad,
                                .token_table_grad = token_grad,
                                .position_table_grad = data->has_positions ? position_grad : NULL};
    if (!cut) {
        assert_int_equal(ops->embedding_forward(context, NULL, &args), 0);
        assert_int_equal(ops->embedding_backward(context, NULL, &back), 0);
        return;
    }
    args.position_table = NULL;
    back.position_table_grad = NULL;
    for (int part = 0; part < cut->parts; part++) {
        args.row_begin = back.row_begin = part ? cut->ends[part - 1] : 0;
        args.row_count = back.row_count = cut->ends[part] - args.row_begin;
        args.token_table =
            (const char *)data->token_table + args.row_begin * data->channels * elem_bytes;
        back.token_table_grad = token_grad + back.row_begin * data->channels;
        assert_int_equal(ops->embedding_forward(context, NULL, &args), 0);
        assert_int_equal(ops->embedding_backward(context, NULL, &back), 0);
    }
    args.row_begin = args.row_count = back.row_begin = back.row_count = 0;
    args.token_table = NULL;
    back.token_table_grad = NULL;
    args.position_table = data->has_positions ? data->position_table : NULL;
    back.position_table_grad = data->has_positions ? position_grad : NULL;
    assert_int_equal(ops->embedding_forward(context, NULL, &args), 0);
    assert_int_equal(ops->embedding_backward(context, NULL, &back), 0);
}

/* Every cut on `ops` against its own whole call; the output starts as bytes of all ones, which the
 * parts must cover. */
static void embedding_compare(const struct embedding *data, const kernel_ops *ops,
                              kernel_context *context)
{
    uint64_t out_bytes = ROWS * data->channels * dtype_bytes(data->type);
    uint64_t token_bytes = VOCAB * data->channels * 4, position_bytes = TOKENS * data->channels * 4;
    void *whole = block(out_bytes), *output = block(out_bytes);
    float *token_whole = draw(DTYPE_FP32, VOCAB * data->channels, 5, 1.0f);
    float *position_whole = draw(DTYPE_FP32, TOKENS * data->channels, 6, 1.0f);
    embedding_run(data, ops, context, NULL, whole, token_whole, position_whole);
    for (size_t i = 0; i < sizeof vocab_cuts / sizeof *vocab_cuts; i++) {
        float *token = draw(DTYPE_FP32, VOCAB * data->channels, 5, 1.0f);
        float *position = draw(DTYPE_FP32, TOKENS * data->channels, 6, 1.0f);
        memset(output, 0xff, out_bytes);
        embedding_run(data, ops, context, &vocab_cuts[i], output, token, position);
        assert_memory_equal(output, whole, out_bytes);
        assert_memory_equal(token, token_whole, token_bytes);
        assert_memory_equal(position, position_whole, position_bytes);
        mem_free(token);
        mem_free(position);
    }
    mem_free(whole);
    mem_free(output);
    mem_free(token_whole);
    mem_free(position_whole);
}

static const kernel_ops cpu_embedding = {.embedding_forward = cpui_embedding_forward,
                                         .embedding_backward = cpui_embedding_backward};

static void embedding_parts_give_the_bits_of_the_whole(void **state)
{
    static const uint64_t channels[] = {1, 5, 64, 600};
    for (int type = 0; type < DTYPE_COUNT; type++)
        for (size_t c = 0; c < 4; c++)
            for (int positions = 0; positions < 2; positions++) {
                struct embedding data;
                embedding_init(&data, (enum dtype)type, channels[c], positions);
                for (int threads = 1; threads <= 3; threads++) {
                    kernel_context context = rows_context_of(tested_isa, threads);
                    embedding_compare(&data, &cpu_embedding, &context);
                }
                embedding_compare(&data, &kernels_reference, NULL);
                embedding_fini(&data);
            }
}

/* Rows whose token lies elsewhere keep what they hold. */
static void embedding_parts_leave_other_rows(void **state)
{
    kernel_context context = rows_context_of(tested_isa, 1);
    const float table[] = {1, 2, 3, 4};
    int32_t ids[4] = {4, 5, 6, 7};
    float output[8] = {9, 9, 9, 9, 9, 9, 9, 9}, grad[4] = {0};
    const float expected[8] = {9, 9, 1, 2, 3, 4, 9, 9};
    embedding_args args = {.batch = 1,
                           .tokens = 4,
                           .channels = 2,
                           .vocab = 8,
                           .row_begin = 5,
                           .row_count = 2,
                           .token_ids = ids,
                           .token_table = table,
                           .output = output};
    assert_int_equal(cpui_embedding_forward(&context, NULL, &args), 0);
    assert_memory_equal(output, expected, sizeof expected);
    embedding_grad_args back = {.batch = 1,
                                .tokens = 4,
                                .channels = 2,
                                .vocab = 8,
                                .row_begin = 5,
                                .row_count = 2,
                                .token_ids = ids,
                                .output_grad = output,
                                .token_table_grad = grad};
    assert_int_equal(cpui_embedding_backward(&context, NULL, &back), 0);
    assert_memory_equal(grad, table, sizeof table);
    ids[0] = 8; /* outside the vocabulary: refused by a part too */
    assert_int_equal(cpui_embedding_forward(&context, NULL, &args), ERR_INPUT);
    assert_int_equal(cpui_embedding_backward(&context, NULL, &back), ERR_INPUT);
}

/* ---- softmax ---- */

struct softmax {
    enum dtype type;
    uint64_t rows, vocab;
    float scale;   /* of the logits */
    bool in_place; /* gradients over logits: fp32 */
    float *logits; /* [rows, vocab] */
    int32_t *targets;
    float soft_cap;
};

static void softmax_init(struct softmax *data, enum dtype type, uint64_t rows, uint64_t vocab,
                         float scale, bool in_place)
{
    *data = (struct softmax){type, rows, vocab, scale, in_place, NULL, NULL, 0.0f};
    data->logits = draw(DTYPE_FP32, rows * vocab, 11, scale);
    data->targets = block(rows * sizeof *data->targets);
    for (uint64_t row = 0; row < rows; row++)
        data->targets[row] = row % 4 == 2 ? -1 : (int32_t)rng_below(SEED, 12, row, vocab);
    data->targets[0] = (int32_t)vocab - 1;
}

static void softmax_fini(struct softmax *data)
{
    mem_free(data->logits);
    mem_free(data->targets);
}

/* losses [rows] and grads [rows, vocab] of `type`, through parts that are copied out of the whole
 * and back. */
static void softmax_run(const struct softmax *data, const kernel_ops *ops, kernel_context *context,
                        const struct cut *cut, float *losses, void *grads)
{
    size_t elem_bytes = dtype_bytes(data->type);
    float *stats = block(3 * data->rows * sizeof *stats);
    float *part_logits[PARTS_MAX];
    softmax_part_args args = {.type = data->type,
                              .rows = data->rows,
                              .targets = data->targets,
                              .largest = stats,
                              .sum = stats + data->rows,
                              .target_logit = stats + 2 * data->rows,
                              .losses = losses,
                              .grad_scale = 0.125f,
                              .soft_cap = data->soft_cap};
    memset(stats, 0xff, 3 * data->rows * sizeof *stats); /* the first part begins them */
    for (int part = 0; part < cut->parts; part++) {
        args.is_first = part == 0;
        args.column_begin = part ? cut->ends[part - 1] : 0;
        args.columns = cut->ends[part] - args.column_begin;
        part_logits[part] = block(data->rows * args.columns * sizeof(float));
        for (uint64_t row = 0; row < data->rows; row++)
            memcpy(part_logits[part] + row * args.columns,
                   data->logits + row * data->vocab + args.column_begin, args.columns * 4);
        args.logits = part_logits[part];
        assert_int_equal(ops->softmax_part(context, NULL, &args), 0);
    }
    assert_int_equal(ops->softmax_losses(context, NULL, &args), 0);
    for (int part = 0; part < cut->parts; part++) {
        args.column_begin = part ? cut->ends[part - 1] : 0;
        args.columns = cut->ends[part] - args.column_begin;
        void *part_grads = data->in_place ? (void *)part_logits[part]
                                          : block(data->rows * args.columns * elem_bytes);
        args.logits = part_logits[part];
        args.logits_grad = part_grads;
        assert_int_equal(ops->cross_entropy_part(context, NULL, &args), 0);
        for (uint64_t row = 0; row < data->rows; row++)
            memcpy((char *)grads + (row * data->vocab + args.column_begin) * elem_bytes,
                   (char *)part_grads + row * args.columns * elem_bytes, args.columns * elem_bytes);
        mem_free(part_logits[part]);
        if (!data->in_place)
            mem_free(part_grads);
    }
    mem_free(stats);
}

/* |a - b| within one rounding of `type` and `absolute`. */
static void assert_close(const char *what, enum dtype type, const void *a, const void *b,
                         uint64_t count, float absolute)
{
    static const float unit[] = {
        [DTYPE_FP32] = 4e-6f, [DTYPE_BF16] = 0x1p-7f, [DTYPE_FP16] = 0x1p-10f};
    float *x = block(count * sizeof *x), *y = block(count * sizeof *y);
    dtype_convert(a, type, x, DTYPE_FP32, count);
    dtype_convert(b, type, y, DTYPE_FP32, count);
    for (uint64_t i = 0; i < count; i++)
        if (!(fabsf(x[i] - y[i]) <= absolute + unit[type] * fabsf(y[i])))
            fail_msg("%s %s: value %llu is %.9g, not %.9g", what, dtype_name(type),
                     (unsigned long long)i, (double)x[i], (double)y[i]);
    mem_free(x);
    mem_free(y);
}

static void softmax_compare(const struct softmax *data, const struct cut *cut)
{
    uint64_t count = data->rows * data->vocab, grad_bytes = count * dtype_bytes(data->type);
    uint64_t loss_bytes = data->rows * sizeof(float);
    float *losses = block(loss_bytes), *other_losses = block(loss_bytes);
    void *grads = block(grad_bytes), *other = block(grad_bytes);
    float loss_slack = 1e-6f + 4e-7f * data->scale;
    float grad_slack = data->scale > 100 || data->soft_cap > 0 ? 1e-5f : 1e-7f;
    kernel_context context = rows_context_of(tested_isa, 1);
    const kernel_ops *ops = &(kernel_ops){.softmax_part = cpui_softmax_part,
                                          .softmax_losses = cpui_softmax_losses,
                                          .cross_entropy_part = cpui_cross_entropy_part};
    softmax_run(data, ops, &context, cut, losses, grads);

    cross_entropy_args uncut = {.type = data->type,
                                .rows = data->rows,
                                .vocab = data->vocab,
                                .logits = data->logits,
                                .targets = data->targets,
                                .losses = other_losses,
                                .logits_grad = other,
                                .grad_scale = 0.125f,
                                .soft_cap = data->soft_cap};
    assert_int_equal(cpui_cross_entropy(&context, NULL, &uncut), 0);
    assert_close("losses of the uncut", DTYPE_FP32, losses, other_losses, data->rows, loss_slack);
    assert_close("gradients of the uncut", data->type, grads, other, count, grad_slack);

    softmax_run(data, &kernels_reference, NULL, cut, other_losses, other);
    assert_close("losses of the reference", DTYPE_FP32, losses, other_losses, data->rows,
                 loss_slack);
    assert_close("gradients of the reference", data->type, grads, other, count, grad_slack);

    for (int attempt = 0; attempt < 3; attempt++) {
        context = rows_context_of(attempt < 2 ? tested_isa : CPU_BASELINE, attempt + 2);
        memset(other, 0, grad_bytes);
        softmax_run(data, ops, &context, cut, other_losses, other);
        assert_memory_equal(other_losses, losses, loss_bytes);
        assert_memory_equal(other, grads, grad_bytes);
    }
    mem_free(losses);
    mem_free(other_losses);
    mem_free(grads);
    mem_free(other);
}

static void softmax_parts_agree(void **state)
{
    static const struct cut cuts[] = {{1, {1}},       {1, {1600}},
                                      {2, {1, 1600}}, {3, {512, 1024, 1600}},
                                      {3, {3, 4, 7}}, {6, {40, 77, 600, 1111, 1599, 1600}}};
    for (int type = 0; type < DTYPE_COUNT; type++)
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
            for (int variant = 0; variant < 8; variant++) {
                struct softmax data;
                bool in_place = (variant & 1) && type == DTYPE_FP32;
                softmax_init(&data, (enum dtype)type, 17, cuts[i].ends[cuts[i].parts - 1],
                             variant & 2 ? 1000.0f : 3.0f, in_place);
                data.soft_cap = variant & 4 ? 30.0f : 0.0f;
                softmax_compare(&data, &cuts[i]);
                softmax_fini(&data);
            }
    struct softmax large;
    softmax_init(&large, DTYPE_BF16, 4, 50257, 3.0f, false);
    softmax_compare(&large, &(struct cut){4, {12565, 25130, 37695, 50257}});
    softmax_fini(&large);
}

/* Rows that lie apart give the same bits as rows side by side, and the memory between them stays
 * unchanged. */
static void rows_may_lie_apart(void **state)
{
    enum { APART = 9, NARROW = 77, WIDE = 83 };
    kernel_context context = rows_context_of(tested_isa, 2);
    for (int type = 0; type < DTYPE_COUNT; type++) {
        struct softmax data;
        uint64_t elem_bytes = dtype_bytes((enum dtype)type);
        softmax_init(&data, (enum dtype)type, APART, NARROW, 3.0f, false);
        float losses[2][APART], largest[APART], sum[APART], target_logit[APART];
        float *apart = block(APART * WIDE * sizeof *apart);
        unsigned char *grads = block(APART * NARROW * elem_bytes);
        unsigned char *grads_apart = block(APART * WIDE * elem_bytes);
        for (uint64_t row = 0; row < APART; row++)
            memcpy(apart + row * WIDE, data.logits + row * NARROW, NARROW * sizeof *apart);
        cross_entropy_args args = {.type = (enum dtype)type,
                                   .rows = APART,
                                   .vocab = NARROW,
                                   .targets = data.targets,
                                   .grad_scale = 0.5f};
        softmax_part_args part = {.type = (enum dtype)type,
                                  .rows = APART,
                                  .columns = NARROW,
                                  .is_first = true,
                                  .targets = data.targets,
                                  .largest = largest,
                                  .sum = sum,
                                  .target_logit = target_logit,
                                  .grad_scale = 0.5f};
        for (int is_cut = 0; is_cut < 2; is_cut++) {
            memset(grads_apart, 0xa5, APART * WIDE * elem_bytes);
            args.stride = part.stride = 0;
            args.logits = part.logits = data.logits;
            args.losses = part.losses = losses[0];
            args.logits_grad = part.logits_grad = grads;
            for (int i = 0; i < 2; i++) {
                if (is_cut) {
                    assert_int_equal(cpui_softmax_part(&context, NULL, &part), 0);
                    assert_int_equal(cpui_softmax_losses(&context, NULL, &part), 0);
                    assert_int_equal(cpui_cross_entropy_part(&context, NULL, &part), 0);
                } else {
                    assert_int_equal(cpui_cross_entropy(&context, NULL, &args), 0);
                }
                args.stride = part.stride = WIDE;
                args.logits = part.logits = apart;
                args.losses = part.losses = losses[1];
                args.logits_grad = part.logits_grad = grads_apart;
            }
            assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
            for (uint64_t row = 0; row < APART; row++) {
                const unsigned char *found = grads_apart + row * WIDE * elem_bytes;
                assert_memory_equal(found, grads + row * NARROW * elem_bytes, NARROW * elem_bytes);
                for (uint64_t i = NARROW * elem_bytes; i < WIDE * elem_bytes; i++)
                    assert_int_equal(found[i], 0xa5);
            }
        }
        softmax_fini(&data);
        mem_free(apart);
        mem_free(grads);
        mem_free(grads_apart);
    }
}

/* One row of 6 logits in parts of 2: the loss, and the gradient of each column. */
static float loss_of_row(const float logits[6], int32_t target, float grad_scale, enum dtype type,
                         float grads[6])
{
    kernel_context context = rows_context_of(tested_isa, 1);
    float largest, sum, target_logit, loss;
    uint16_t halves[2];
    softmax_part_args args = {.type = type,
                              .rows = 1,
                              .columns = 2,
                              .targets = &target,
                              .largest = &largest,
                              .sum = &sum,
                              .target_logit = &target_logit,
                              .losses = &loss,
                              .grad_scale = grad_scale};
    for (args.column_begin = 0; args.column_begin < 6; args.column_begin += 2) {
        args.is_first = args.column_begin == 0;
        args.logits = logits + args.column_begin;
        assert_int_equal(cpui_softmax_part(&context, NULL, &args), 0);
    }
    assert_int_equal(cpui_softmax_losses(&context, NULL, &args), 0);
    for (args.column_begin = 0; args.column_begin < 6; args.column_begin += 2) {
        args.logits = logits + args.column_begin;
        args.logits_grad = type == DTYPE_FP32 ? (void *)(grads + args.column_begin) : halves;
        assert_int_equal(cpui_cross_entropy_part(&context, NULL, &args), 0);
        if (type != DTYPE_FP32)
            dtype_convert(halves, type, grads + args.column_begin, DTYPE_FP32, 2);
    }
    return loss;
}

static void softmax_parts_of_bad_logits(void **state)
{
    const float inf = INFINITY;
    float grads[6];
    const float bad[][6] = {{NAN, 0, 0, 0, 0, 0},
                            {0, 0, 0, 0, 0, NAN},
                            {0, inf, 0, 0, 0, 0},
                            {0, 0, 0, 0, inf, 0},
                            {inf, 0, 0, 0, 0, inf},
                            {-inf, -inf, NAN, NAN, 0, 0},
                            {-inf, -inf, -inf, -inf, -inf, -inf}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        float loss = loss_of_row(bad[i], 3, 1.0f, DTYPE_FP32, grads);
        assert_int_equal(fp32_bits(loss), 0x7fc00000);
        for (int column = 0; column < 6; column++)
            assert_true(isnan(grads[column]));
        loss = loss_of_row(bad[i], -1, 1.0f, DTYPE_FP32, grads); /* ignored: no harm */
        assert_true(loss == 0.0f && grads[0] == 0.0f && grads[3] == 0.0f && grads[5] == 0.0f);
    }
    /* Masked logits are no error, not even where the first parts are nothing else. */
    const float masked[6] = {-inf, -inf, -inf, 0, 0, -inf};
    float loss = loss_of_row(masked, 3, 1.0f, DTYPE_FP32, grads);
    assert_true(fabsf(loss - logf(2.0f)) < 1e-6f && grads[3] == -0.5f && grads[4] == 0.5f);
    assert_true(grads[0] == 0.0f && grads[2] == 0.0f && grads[5] == 0.0f);
    /* A masked target: infinitely unlikely, with a finite gradient. */
    loss = loss_of_row(masked, 0, 1.0f, DTYPE_FP32, grads);
    assert_true(loss == inf && grads[0] == -1.0f && grads[3] == 0.5f);
}

/* A loss scale can carry a gradient beyond 65504: infinity, never the largest number. */
static void fp16_gradients_overflow_to_infinity(void **state)
{
    const float logits[6] = {0, 0, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    float grads[6];
    (void)loss_of_row(logits, 1, 0x1p18f, DTYPE_FP16, grads);
    assert_true(grads[0] == INFINITY && grads[1] == -INFINITY && grads[2] == 0.0f);
    (void)loss_of_row(logits, 1, 131008.0f, DTYPE_FP16, grads);
    assert_true(grads[0] == 65504.0f && grads[1] == -65504.0f);
    (void)loss_of_row(logits, 1, 0x1p-23f, DTYPE_FP16, grads); /* subnormal */
    assert_true(grads[0] == 0x1p-24f && grads[1] == -0x1p-24f);
}

static void bad_targets_are_refused(void **state)
{
    kernel_context context = rows_context_of(tested_isa, 1);
    float memory[4] = {7, 7, 7, 7};
    int32_t target = -2;
    softmax_part_args args = {.rows = 1,
                              .columns = 1,
                              .is_first = true,
                              .logits = memory,
                              .targets = &target,
                              .largest = memory + 1,
                              .sum = memory + 2,
                              .target_logit = memory + 3,
                              .losses = memory + 1,
                              .logits_grad = memory};
    assert_int_equal(cpui_softmax_part(&context, NULL, &args), ERR_INPUT);
    assert_int_equal(cpui_softmax_losses(&context, NULL, &args), ERR_INPUT);
    assert_int_equal(cpui_cross_entropy_part(&context, NULL, &args), ERR_INPUT);
    for (int i = 0; i < 4; i++)
        assert_true(memory[i] == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_parts_give_the_bits_of_the_whole),
        cmocka_unit_test(embedding_parts_leave_other_rows),
        cmocka_unit_test(softmax_parts_agree),
        cmocka_unit_test(rows_may_lie_apart),
        cmocka_unit_test(softmax_parts_of_bad_logits),
        cmocka_unit_test(fp16_gradients_overflow_to_infinity),
        cmocka_unit_test(bad_targets_are_refused),
    };
    int status = isa_of_test(&tested_isa);
    if (status != 0)
        return status;
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
