/* The CUDA backend's softmax cross-entropy, over the whole vocabulary and in parts of it, on the
 * simulated GPU or a real one: against the reference's sums in double within fp32's rounding,
 * against itself (other grids, other rows, one part) to the bit. */
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/ops.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/unit.h"

enum { PARTS_MAX = 6 };

/* Where parts end: part i is columns [ends[i - 1], ends[i]). */
struct cut {
    int parts;
    uint64_t ends[PARTS_MAX];
};

struct problem {
    enum dtype type;
    uint64_t rows, vocab;
    float grad_scale;
    bool in_place; /* gradients over the logits: fp32 */
    float *logits; /* [rows, vocab] host */
    int32_t *targets;
    float soft_cap;
};

struct result {
    float *losses; /* [rows] */
    void *grads;   /* [rows, vocab] type */
};

static void *block(uint64_t bytes)
{
    void *memory = mem_alloc(bytes + 1, 1, "test");
    assert_non_null(memory);
    return memory;
}

static struct problem problem_init(const gpu_fixture *gpu, enum dtype type, uint64_t rows,
                                   uint64_t vocab, float scale, bool in_place)
{
    struct problem p = {type, rows, vocab, 0.125f, in_place, NULL, NULL, 0.0f};
    p.logits = block(rows * vocab * sizeof(float));
    p.targets = block(rows * sizeof(int32_t));
    rng_normals(gpu->seed, 1, 0, rows * vocab, p.logits);
    for (uint64_t i = 0; i < rows * vocab; i++)
        p.logits[i] *= scale;
    for (uint64_t row = 0; row < rows; row++)
        p.targets[row] = row % 4 == 2 ? -1 : (int32_t)rng_below(gpu->seed, 2, row, vocab);
    p.targets[0] = (int32_t)vocab - 1;
    return p;
}

static void problem_fini(struct problem *p)
{
    mem_free(p->logits);
    mem_free(p->targets);
}

static struct result result_init(const struct problem *p)
{
    return (struct result){block(p->rows * sizeof(float)),
                           block(p->rows * p->vocab * dtype_bytes(p->type))};
}

static void result_fini(struct result *result)
{
    mem_free(result->losses);
    mem_free(result->grads);
}

static struct result reference(const struct problem *p)
{
    struct result result = result_init(p);
    cross_entropy_args args = {.type = p->type,
                               .rows = p->rows,
                               .vocab = p->vocab,
                               .logits = p->logits,
                               .targets = p->targets,
                               .losses = result.losses,
                               .logits_grad = result.grads,
                               .grad_scale = p->grad_scale,
                               .soft_cap = p->soft_cap};
    assert_int_equal(kernels_reference.cross_entropy(NULL, NULL, &args), 0);
    return result;
}

/* The op on the whole vocabulary; with or without gradients. */
static struct result uncut(gpu_fixture *gpu, const struct problem *p, bool has_grads)
{
    uint64_t count = p->rows * p->vocab, grad_bytes = count * dtype_bytes(p->type);
    struct result result = result_init(p);
    float *logits = gpu_alloc_copy(gpu, p->logits, count * sizeof(float));
    int32_t *targets = gpu_alloc_copy(gpu, p->targets, p->rows * sizeof(int32_t));
    float *losses = gpu_alloc(gpu, p->rows * sizeof(float));
    void *grads = p->in_place ? logits : gpu_alloc(gpu, grad_bytes);
    cross_entropy_args args = {.type = p->type,
                               .rows = p->rows,
                               .vocab = p->vocab,
                               .logits = logits,
                               .targets = targets,
                               .losses = losses,
                               .logits_grad = has_grads ? grads : NULL,
                               .grad_scale = p->grad_scale,
                               .soft_cap = p->soft_cap};
    assert_int_equal(cudai_cross_entropy(&gpu->context, gpu->stream, &args), 0);
    gpu_download(gpu, result.losses, losses, p->rows * sizeof(float));
    gpu_download(gpu, result.grads, grads, grad_bytes);
    gpu_free(gpu, logits);
    gpu_free(gpu, targets);
    gpu_free(gpu, losses);
    if (!p->in_place)
        gpu_free(gpu, grads);
    return result;
}

/* Columns [begin, begin + columns) of the problem's logits, on the GPU. */
static float *part_logits(gpu_fixture *gpu, const struct problem *p, uint64_t begin,
                          uint64_t columns)
{
    float *host = block(p->rows * columns * sizeof *host);
    for (uint64_t row = 0; row < p->rows; row++)
        memcpy(host + row * columns, p->logits + row * p->vocab + begin, columns * sizeof *host);
    float *logits = gpu_alloc_copy(gpu, host, p->rows * columns * sizeof *host);
    mem_free(host);
    return logits;
}

/* The gradient of one part, and back into its columns of the whole. */
static void part_gradient(gpu_fixture *gpu, const struct problem *p, softmax_part_args *args,
                          void *grads)
{
    size_t elem_bytes = dtype_bytes(p->type);
    uint64_t bytes = p->rows * args->columns * elem_bytes;
    char *host = block(bytes);
    args->logits_grad = p->in_place ? (void *)args->logits : gpu_alloc(gpu, bytes);
    assert_int_equal(cudai_cross_entropy_part(&gpu->context, gpu->stream, args), 0);
    gpu_download(gpu, host, args->logits_grad, bytes);
    for (uint64_t row = 0; row < p->rows; row++)
        memcpy((char *)grads + (row * p->vocab + args->column_begin) * elem_bytes,
               host + row * args->columns * elem_bytes, args->columns * elem_bytes);
    if (!p->in_place)
        gpu_free(gpu, args->logits_grad);
    mem_free(host);
}

static struct result in_parts(gpu_fixture *gpu, const struct problem *p, const struct cut *cut)
{
    struct result result = result_init(p);
    float *part[PARTS_MAX], *stats[4]; /* filled with NaN: the first part must begin them */
    for (int i = 0; i < 4; i++)
        stats[i] = gpu_alloc(gpu, p->rows * sizeof(float));
    softmax_part_args args = {.type = p->type,
                              .rows = p->rows,
                              .targets = gpu_alloc_copy(gpu, p->targets, p->rows * sizeof(int32_t)),
                              .largest = stats[0],
                              .sum = stats[1],
                              .target_logit = stats[2],
                              .losses = stats[3],
                              .grad_scale = p->grad_scale,
                              .soft_cap = p->soft_cap};
    for (int i = 0; i < cut->parts; i++) {
        args.is_first = i == 0;
        args.column_begin = i ? cut->ends[i - 1] : 0;
        args.columns = cut->ends[i] - args.column_begin;
        args.logits = part[i] = part_logits(gpu, p, args.column_begin, args.columns);
        assert_int_equal(cudai_softmax_part(&gpu->context, gpu->stream, &args), 0);
    }
    assert_int_equal(cudai_softmax_losses(&gpu->context, gpu->stream, &args), 0);
    for (int i = cut->parts - 1; i >= 0; i--) { /* any order */
        args.column_begin = i ? cut->ends[i - 1] : 0;
        args.columns = cut->ends[i] - args.column_begin;
        args.logits = part[i];
        part_gradient(gpu, p, &args, result.grads);
        gpu_free(gpu, part[i]);
    }
    gpu_download(gpu, result.losses, stats[3], p->rows * sizeof(float));
    for (int i = 0; i < 4; i++)
        gpu_free(gpu, stats[i]);
    gpu_free(gpu, (void *)args.targets);
    return result;
}

/* Losses within fp32's rounding of the sum and of the logits' differences; gradients within one
 * rounding of their type and what the sum's rounding makes of numbers up to grad_scale. */
static void expect_agreement(const struct problem *p, const struct result *got,
                             const struct result *want, float scale)
{
    static const double unit[] = {
        [DTYPE_FP32] = 6e-6, [DTYPE_BF16] = 0x1p-7, [DTYPE_FP16] = 0x1p-10};
    uint64_t count = p->rows * p->vocab;
    float *x = block(count * sizeof *x), *y = block(count * sizeof *y);
    gpu_expect_close("losses", got->losses, want->losses, p->rows, 2e-6 + 4e-7 * (double)scale,
                     2e-6);
    gpu_widen(got->grads, p->type, x, count);
    gpu_widen(want->grads, p->type, y, count);
    gpu_expect_close("gradients", x, y, count, scale > 100 ? 1e-5 : 2e-7, unit[p->type]);
    mem_free(x);
    mem_free(y);
}

static void expect_same(const struct problem *p, const struct result *got,
                        const struct result *want, bool has_grads)
{
    gpu_expect_same("losses", got->losses, want->losses, p->rows, sizeof(float));
    if (has_grads)
        gpu_expect_same("gradients", got->grads, want->grads, p->rows * p->vocab,
                        dtype_bytes(p->type));
}

/* The whole against the reference, itself on another grid, without gradients, and as one part. */
static void check_uncut(gpu_fixture *gpu, enum dtype type, uint64_t rows, uint64_t vocab,
                        float scale, bool in_place)
{
    struct problem p = problem_init(gpu, type, rows, vocab, scale, in_place);
    struct result want = reference(&p), got = uncut(gpu, &p, true);
    expect_agreement(&p, &got, &want, scale);
    int sm_count = gpu->context.sm_count;
    gpu->context.sm_count = sm_count > 1 ? 1 : 2;
    struct result others[] = {uncut(gpu, &p, true), uncut(gpu, &p, false),
                              in_parts(gpu, &p, &(struct cut){1, {vocab}})};
    gpu->context.sm_count = sm_count;
    for (int i = 0; i < 3; i++) {
        expect_same(&p, &others[i], &got, i != 1);
        result_fini(&others[i]);
    }
    result_fini(&want);
    result_fini(&got);
    problem_fini(&p);
}

static void losses_and_gradients(void **state)
{
    static const uint64_t vocabs[] = {1, 2, 3, 4, 31, 256, 257, 1600, 1603, 4100, 5003};
    gpu_fixture *gpu = gpu_begin();
    for (int type = 0; type < DTYPE_COUNT; type++)
        for (size_t i = 0; i < sizeof vocabs / sizeof *vocabs; i++)
            for (int variant = 0; variant < 2; variant++)
                check_uncut(gpu, (enum dtype)type, 9, vocabs[i], variant ? 1000.0f : 3.0f,
                            variant == (int)(i % 2) && type == DTYPE_FP32);
    check_uncut(gpu, DTYPE_BF16, 2, 50257, 3.0f, false);
    check_uncut(gpu, DTYPE_BF16, 300, 5, 3.0f, false); /* more rows than blocks of the small grid */
    check_uncut(gpu, DTYPE_FP32, 301, 8, 3.0f, true);
    if (!gpu->is_simulated) {
        check_uncut(gpu, DTYPE_BF16, 259, 50257, 3.0f, false);
        check_uncut(gpu, DTYPE_FP32, 131, 128256, 3.0f, true);
        check_uncut(gpu, DTYPE_FP16, 35, 262144, 3.0f, false);
    }
    gpu_end(gpu);
}

/* A row's bits depend on neither its place nor its neighbours. */
static void rows_do_not_depend_on_their_place(void **state)
{
    static const uint64_t vocabs[] = {1003, 1004};
    gpu_fixture *gpu = gpu_begin();
    for (int i = 0; i < 2; i++) {
        struct problem p = problem_init(gpu, DTYPE_FP32, 7, vocabs[i], 3.0f, false);
        for (uint64_t row = 1; row < p.rows; row++) {
            memcpy(p.logits + row * p.vocab, p.logits, p.vocab * sizeof(float));
            p.targets[row] = p.targets[0];
        }
        struct result got = uncut(gpu, &p, true);
        for (uint64_t row = 1; row < p.rows; row++) {
            gpu_expect_same("loss", got.losses + row, got.losses, 1, sizeof(float));
            gpu_expect_same("gradients", (float *)got.grads + row * p.vocab, got.grads, p.vocab,
                            sizeof(float));
        }
        result_fini(&got);
        problem_fini(&p);
    }
    gpu_end(gpu);
}

static void parts_agree_with_the_whole(void **state)
{
    static const struct cut cuts[] = {{2, {1, 1600}},
                                      {3, {512, 1024, 1600}},
                                      {3, {3, 4, 7}},
                                      {6, {40, 77, 600, 1111, 1599, 1600}}};
    gpu_fixture *gpu = gpu_begin();
    for (int type = 0; type < DTYPE_COUNT; type++)
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
            for (int variant = 0; variant < 2; variant++) {
                float scale = variant ? 1000.0f : 3.0f;
                bool in_place = type == DTYPE_FP32 && variant == (int)(i % 2);
                struct problem p = problem_init(gpu, (enum dtype)type, 9,
                                                cuts[i].ends[cuts[i].parts - 1], scale, in_place);
                for (int part = 0; part + 1 < cuts[i].parts; part++) { /* beside the cuts */
                    p.targets[part + 3] = (int32_t)cuts[i].ends[part];
                    p.targets[part + 4] = (int32_t)cuts[i].ends[part] - 1;
                }
                struct result want = reference(&p), got = in_parts(gpu, &p, &cuts[i]);
                expect_agreement(&p, &got, &want, scale);
                int sm_count = gpu->context.sm_count;
                gpu->context.sm_count = sm_count > 1 ? 1 : 2;
                struct result again = in_parts(gpu, &p, &cuts[i]);
                gpu->context.sm_count = sm_count;
                expect_same(&p, &again, &got, true);
                result_fini(&want);
                result_fini(&got);
                result_fini(&again);
                problem_fini(&p);
            }
    for (int i = 0; i < 4; i++) { /* capped logits; the whole and parts */
        struct problem p =
            problem_init(gpu, i % 2 ? DTYPE_FP32 : DTYPE_BF16, 9, 1600, 20.0f, i % 2 == 1);
        p.soft_cap = i / 2 ? 30.0f : 10.0f;
        struct result want = reference(&p), got = in_parts(gpu, &p, &cuts[3]);
        struct result whole = uncut(gpu, &p, true);
        expect_agreement(&p, &got, &want, 120.0f);
        expect_agreement(&p, &whole, &want, 120.0f);
        result_fini(&want);
        result_fini(&got);
        result_fini(&whole);
        problem_fini(&p);
    }
    struct problem large = problem_init(gpu, DTYPE_BF16, 3, 50257, 3.0f, false);
    struct result want = reference(&large);
    struct result got = in_parts(gpu, &large, &(struct cut){4, {12565, 25130, 37695, 50257}});
    expect_agreement(&large, &got, &want, 3.0f);
    result_fini(&want);
    result_fini(&got);
    problem_fini(&large);
    gpu_end(gpu);
}

/* The statistics that softmax_part keeps between parts agree with the reference's. */
static void stats_between_parts(void **state)
{
    enum { ROWS = 12, VOCAB = 900 };
    static const struct cut cut = {3, {333, 600, VOCAB}};
    gpu_fixture *gpu = gpu_begin();
    struct problem p = problem_init(gpu, DTYPE_BF16, ROWS, VOCAB, 3.0f, false);
    float want[3][ROWS], got[ROWS], *stats[3], *part_on_host = block(ROWS * VOCAB * 4);
    for (int i = 0; i < 3; i++)
        stats[i] = gpu_alloc(gpu, sizeof got);
    softmax_part_args args = {.type = p.type, .rows = ROWS}, reference_args = args;
    args.targets = gpu_alloc_copy(gpu, p.targets, ROWS * sizeof(int32_t));
    args.largest = stats[0], args.sum = stats[1], args.target_logit = stats[2];
    reference_args.targets = p.targets;
    reference_args.largest = want[0], reference_args.sum = want[1];
    reference_args.target_logit = want[2];
    for (int part = 0; part < cut.parts; part++) {
        uint64_t begin = part ? cut.ends[part - 1] : 0, columns = cut.ends[part] - begin;
        float *logits = part_logits(gpu, &p, begin, columns);
        gpu_download(gpu, part_on_host, logits, ROWS * columns * sizeof(float));
        args.is_first = reference_args.is_first = part == 0;
        args.column_begin = reference_args.column_begin = begin;
        args.columns = reference_args.columns = columns;
        args.logits = logits;
        reference_args.logits = part_on_host;
        assert_int_equal(cudai_softmax_part(&gpu->context, gpu->stream, &args), 0);
        assert_int_equal(kernels_reference.softmax_part(NULL, NULL, &reference_args), 0);
        for (int i = 0; i < 3; i++) {
            gpu_download(gpu, got, stats[i], sizeof got);
            for (uint64_t row = 0; row < ROWS; row++)
                if (p.targets[row] < 0)
                    got[row] = want[i][row]; /* means nothing */
            gpu_expect_close("stats", got, want[i], ROWS, 0, i == 1 ? 2e-6 : 0);
        }
        gpu_free(gpu, logits);
    }
    mem_free(part_on_host);
    problem_fini(&p);
    gpu_end(gpu);
}

/* One row of 6 logits, as one call and in parts of 2: the loss, and the gradient of each column. */
struct row_result {
    float loss, grads[6];
};

static struct row_result loss_of_row(gpu_fixture *gpu, const float logits[6], int32_t target,
                                     float grad_scale, enum dtype type, bool is_cut)
{
    struct problem p = {type, 1, 6, grad_scale, false, (float *)logits, &target, 0};
    struct result result =
        is_cut ? in_parts(gpu, &p, &(struct cut){3, {2, 4, 6}}) : uncut(gpu, &p, true);
    struct row_result row = {.loss = result.losses[0]};
    gpu_widen(result.grads, type, row.grads, 6);
    result_fini(&result);
    return row;
}

static void bad_logits(void **state)
{
    const float inf = INFINITY;
    const float bad[][6] = {{NAN, 0, 0, 0, 0, 0},
                            {0, 0, 0, 0, 0, NAN},
                            {0, inf, 0, 0, 0, 0},
                            {0, 0, 0, 0, inf, 0},
                            {inf, 0, 0, 0, 0, inf},
                            {-inf, -inf, NAN, NAN, 0, 0},
                            {-inf, -inf, -inf, -inf, -inf, NAN},
                            {NAN, NAN, NAN, NAN, NAN, NAN},
                            {-inf, -inf, -inf, -inf, -inf, -inf}};
    gpu_fixture *gpu = gpu_begin();
    for (int is_cut = 0; is_cut < 2; is_cut++) {
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            struct row_result row = loss_of_row(gpu, bad[i], 3, 1.0f, DTYPE_FP32, is_cut);
            assert_int_equal(fp32_bits(row.loss), 0x7fc00000);
            for (int column = 0; column < 6; column++)
                assert_true(isnan(row.grads[column]));
            row = loss_of_row(gpu, bad[i], -1, 1.0f, DTYPE_BF16, is_cut); /* ignored: no harm */
            assert_int_equal(fp32_bits(row.loss), 0);
            for (int column = 0; column < 6; column++)
                assert_int_equal(fp32_bits(row.grads[column]), 0);
        }
        /* Masked logits are no error, not even where the first parts are nothing else. */
        const float masked[6] = {-inf, -inf, -inf, 0, 0, -inf};
        struct row_result row = loss_of_row(gpu, masked, 3, 1.0f, DTYPE_FP32, is_cut);
        assert_true(fabsf(row.loss - logf(2.0f)) < 1e-6f);
        assert_true(row.grads[3] == -0.5f && row.grads[4] == 0.5f);
        assert_true(row.grads[0] == 0.0f && row.grads[2] == 0.0f && row.grads[5] == 0.0f);
        /* A masked target: infinitely unlikely, with a finite gradient. */
        row = loss_of_row(gpu, masked, 0, 1.0f, DTYPE_FP32, is_cut);
        assert_true(row.loss == inf && row.grads[0] == -1.0f && row.grads[3] == 0.5f);
    }
    gpu_end(gpu);
}

/* Bad values anywhere in rows that all threads of a block share; good rows beside them. */
static void bad_logits_of_long_rows(void **state)
{
    static const uint64_t vocabs[] = {1203, 1204};
    gpu_fixture *gpu = gpu_begin();
    for (int i = 0; i < 2; i++) {
        uint64_t vocab = vocabs[i];
        struct problem p = problem_init(gpu, DTYPE_BF16, 8, vocab, 3.0f, false);
        for (uint64_t row = 0; row < p.rows; row++)
            p.targets[row] = (int32_t)rng_below(gpu->seed, 3, row, vocab / 4);
        for (uint64_t c = 0; c < vocab; c++) {
            p.logits[2 * vocab + c] = c % 64 == 5 ? 1.0f : -INFINITY; /* fine: masked */
            p.logits[5 * vocab + c] = -INFINITY;
        }
        p.targets[2] = 69;
        p.logits[1 * vocab + vocab / 2] = NAN;
        p.logits[4 * vocab + vocab - 1] = INFINITY;
        p.logits[6 * vocab + vocab - 2] = -INFINITY; /* fine */
        for (int is_cut = 0; is_cut < 2; is_cut++) {
            struct result got = is_cut ? in_parts(gpu, &p, &(struct cut){3, {301, 700, vocab}})
                                       : uncut(gpu, &p, true);
            float *grads = block(p.rows * vocab * sizeof *grads);
            gpu_widen(got.grads, p.type, grads, p.rows * vocab);
            for (uint64_t row = 0; row < p.rows; row++) {
                bool is_bad = row == 1 || row == 4 || row == 5;
                assert_int_equal(isfinite(got.losses[row]), !is_bad);
                for (uint64_t c = 0; c < vocab; c++)
                    assert_int_equal(isnan(grads[row * vocab + c]), is_bad);
            }
            mem_free(grads);
            result_fini(&got);
        }
        problem_fini(&p);
    }
    gpu_end(gpu);
}

/* A loss scale can carry a gradient beyond 65504: infinity, never the largest number. */
static void fp16_gradients_overflow_to_infinity(void **state)
{
    const float logits[6] = {0, 0, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
    gpu_fixture *gpu = gpu_begin();
    for (int is_cut = 0; is_cut < 2; is_cut++) {
        struct row_result row = loss_of_row(gpu, logits, 1, 0x1p18f, DTYPE_FP16, is_cut);
        assert_true(row.grads[0] == INFINITY && row.grads[1] == -INFINITY && row.grads[2] == 0.0f);
        row = loss_of_row(gpu, logits, 1, 131008.0f, DTYPE_FP16, is_cut);
        assert_true(row.grads[0] == 65504.0f && row.grads[1] == -65504.0f);
        row = loss_of_row(gpu, logits, 1, 0x1p-23f, DTYPE_FP16, is_cut); /* subnormal */
        assert_true(row.grads[0] == 0x1p-24f && row.grads[1] == -0x1p-24f);
    }
    gpu_end(gpu);
}

/* The host cannot see targets on the GPU: a bad one makes its row's loss and gradients NaN. In
 * parts a target beyond the vocabulary looks like one of another part. */
static void bad_targets_are_seen_and_do_no_harm(void **state)
{
    static const int32_t bad[] = {-2, INT32_MIN, 6, INT32_MAX};
    const float logits[6] = {0, 1, 2, 3, 4, 5};
    gpu_fixture *gpu = gpu_begin();
    for (int i = 0; i < 4; i++)
        for (int is_cut = 0; is_cut < 2; is_cut++) {
            struct row_result row = loss_of_row(gpu, logits, bad[i], 1.0f, DTYPE_FP16, is_cut);
            if (is_cut && bad[i] > 0)
                continue;
            assert_int_equal(fp32_bits(row.loss), 0x7fc00000);
            for (int column = 0; column < 6; column++)
                assert_true(isnan(row.grads[column]));
        }
    gpu_end(gpu);
}

/* Over 2^31 logits on a GPU with the memory, few elsewhere: all zero but for the last row. */
static void large_shapes(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    bool is_small = gpu->is_simulated || gpu->total_bytes < 32ull << 30;
    if (is_small)
        printf("small numbers: it takes a GPU with 32 GiB\n");
    uint64_t rows = is_small ? 21 : 16421;
    for (int i = 0; i < 2; i++) {
        uint64_t vocab = (is_small ? 1080u : 131080u) + (unsigned)i, last_at = (rows - 1) * vocab;
        struct problem last = problem_init(gpu, DTYPE_BF16, 1, vocab, 3.0f, false);
        struct result want = reference(&last), got = result_init(&last);
        int32_t *targets = block(rows * sizeof *targets);
        float *losses = block(rows * sizeof *losses);
        for (uint64_t row = 0; row < rows; row++)
            targets[row] = row == rows - 1 ? last.targets[0] : (int32_t)(row * 7 % vocab);
        float *logits = gpu_alloc(gpu, rows * vocab * sizeof(float));
        gpu_fill(gpu, logits, 0, rows * vocab * sizeof(float));
        gpu_upload(gpu, logits + last_at, last.logits, vocab * sizeof(float));
        cross_entropy_args args = {.type = DTYPE_BF16,
                                   .rows = rows,
                                   .vocab = vocab,
                                   .logits = logits,
                                   .targets = gpu_alloc_copy(gpu, targets, rows * sizeof *targets),
                                   .losses = gpu_alloc(gpu, rows * sizeof(float)),
                                   .logits_grad = gpu_alloc(gpu, rows * vocab * 2),
                                   .grad_scale = last.grad_scale};
        assert_int_equal(cudai_cross_entropy(&gpu->context, gpu->stream, &args), 0);
        gpu_download(gpu, losses, args.losses, rows * sizeof(float));
        for (uint64_t row = 0; row + 1 < rows; row++)
            assert_true(fabs((double)losses[row] - log((double)vocab)) < 1e-5);
        got.losses[0] = losses[rows - 1];
        gpu_download(gpu, got.grads, (uint16_t *)args.logits_grad + last_at, vocab * 2);
        expect_agreement(&last, &got, &want, 3.0f);
        result_fini(&want);
        result_fini(&got);
        problem_fini(&last);
        mem_free(targets);
        mem_free(losses);
        gpu_free(gpu, logits);
        gpu_free(gpu, (void *)args.targets);
        gpu_free(gpu, args.losses);
        gpu_free(gpu, args.logits_grad);
    }
    gpu_end(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_and_gradients),
        cmocka_unit_test(rows_do_not_depend_on_their_place),
        cmocka_unit_test(parts_agree_with_the_whole),
        cmocka_unit_test(stats_between_parts),
        cmocka_unit_test(bad_logits),
        cmocka_unit_test(bad_logits_of_long_rows),
        cmocka_unit_test(fp16_gradients_overflow_to_infinity),
        cmocka_unit_test(bad_targets_are_seen_and_do_no_harm),
        cmocka_unit_test(large_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
