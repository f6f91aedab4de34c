/* The CUDA backend's embedding and its gradient, on the simulated GPU or a real one.
 *
 * The forward must give the reference's bits, and so must the gradients of positions and of tokens
 * that occur seldom, which are added row by row; tokens that occur often are summed in strands,
 * held against a sum in double. Parts of the table must give the bits of the whole, and the grid
 * must not matter. */
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/ops.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/unit.h"

enum {
    PARTS_MAX = 6,
    IN_ORDER_ROWS = 16, /* SHORT of rows_embedding.cu: rows of a token that are added in order */
    ROWS_OF_RUN = 4096, /* sorted by one block; more are merged */
};

enum id_pattern {
    IDS_UNIFORM,
    IDS_SKEWED, /* half of the rows are of one token, a quarter of another, ... */
    IDS_SAME
};

struct shape {
    enum dtype type;
    uint64_t batch, tokens, channels, vocab;
    enum id_pattern pattern;
};

/* Host values; the 16-bit types' as rounded fp32. */
struct problem {
    struct shape shape;
    uint64_t rows;
    int32_t *ids;                          /* [rows] */
    int32_t *begins;                       /* [rows]; NULL if the number of tokens is even */
    float *table, *positions, *grads;      /* [vocab, C], [tokens, C], [rows, C] */
    float *table_before, *position_before; /* what the accumulators hold */
    /* on the GPU */
    int32_t *gpu_ids, *gpu_begins;
    void *gpu_table, *gpu_positions, *gpu_grads, *scratch;
};

static void *block(uint64_t bytes)
{
    void *memory = mem_alloc(bytes + 1, 1, "test");
    assert_non_null(memory);
    return memory;
}

static float *draw(const gpu_fixture *gpu, enum dtype type, uint64_t count, uint64_t stream)
{
    float *values = block(count * sizeof *values);
    gpu_random_fill(values, count, gpu->seed + stream, -2.0f, 2.0f);
    gpu_round(values, type, count);
    return values;
}

static int32_t draw_id(const gpu_fixture *gpu, const struct shape *shape, uint64_t row)
{
    if (shape->pattern == IDS_SAME)
        return (int32_t)(shape->vocab - 1);
    if (shape->pattern == IDS_SKEWED) {
        uint64_t rank = (uint64_t)__builtin_ctzll(rng_u64(gpu->seed, 7, row) | 1ull << 30);
        return (int32_t)((rank * 5 + 3) % shape->vocab);
    }
    return (int32_t)rng_below(gpu->seed, 8, row, shape->vocab);
}

static struct problem problem_init(gpu_fixture *gpu, struct shape shape)
{
    uint64_t rows = shape.batch * shape.tokens, channels = shape.channels;
    struct problem p = {.shape = shape, .rows = rows};
    p.ids = block(rows * sizeof *p.ids);
    for (uint64_t row = 0; row < rows; row++)
        p.ids[row] = draw_id(gpu, &shape, row);
    p.begins = shape.tokens % 2 ? block(rows * sizeof *p.begins) : NULL;
    for (uint64_t row = 0; p.begins && row < rows; row++) /* documents of 11 tokens */
        p.begins[row] = (int32_t)(row % shape.tokens / 11 * 11);
    p.table = draw(gpu, shape.type, shape.vocab * channels, 1);
    p.positions = draw(gpu, shape.type, shape.tokens * channels, 2);
    p.grads = draw(gpu, shape.type, rows * channels, 3);
    p.table_before = draw(gpu, DTYPE_FP32, shape.vocab * channels, 4);
    p.position_before = draw(gpu, DTYPE_FP32, shape.tokens * channels, 5);
    /* A sum beyond the largest fp16, and one that is not a number. */
    p.positions[0] = p.table[0] = 60000.0f;
    p.table[shape.vocab * channels - 1] = INFINITY;
    p.positions[channels - 1] = -INFINITY;
    gpu_round(p.table, shape.type, 1);
    gpu_round(p.positions, shape.type, 1);

    p.gpu_ids = gpu_alloc_copy(gpu, p.ids, rows * sizeof *p.ids);
    if (p.begins)
        p.gpu_begins = gpu_alloc_copy(gpu, p.begins, rows * sizeof *p.begins);
    p.gpu_table = gpu_alloc_values(gpu, p.table, shape.type, shape.vocab * channels);
    p.gpu_positions = gpu_alloc_values(gpu, p.positions, shape.type, shape.tokens * channels);
    p.gpu_grads = gpu_alloc_values(gpu, p.grads, shape.type, rows * channels);
    p.scratch =
        gpu_alloc(gpu, cudai_embedding_grad_scratch_bytes(&gpu->context, rows, shape.vocab));
    return p;
}

static void problem_fini(gpu_fixture *gpu, struct problem *p)
{
    void *on_gpu[] = {p->gpu_ids,       p->gpu_begins, p->gpu_table,
                      p->gpu_positions, p->gpu_grads,  p->scratch};
    void *on_host[] = {p->ids,   p->begins,       p->table,          p->positions,
                       p->grads, p->table_before, p->position_before};
    for (size_t i = 0; i < sizeof on_gpu / sizeof *on_gpu; i++)
        gpu_free(gpu, on_gpu[i]);
    for (size_t i = 0; i < sizeof on_host / sizeof *on_host; i++)
        mem_free(on_host[i]);
}

static embedding_args forward_args(const struct problem *p)
{
    const struct shape *shape = &p->shape;
    return (embedding_args){.type = shape->type,
                            .batch = shape->batch,
                            .tokens = shape->tokens,
                            .channels = shape->channels,
                            .vocab = shape->vocab,
                            .begins = p->gpu_begins,
                            .token_ids = p->gpu_ids};
}

static embedding_grad_args backward_args(const struct problem *p)
{
    const struct shape *shape = &p->shape;
    return (embedding_grad_args){.type = shape->type,
                                 .batch = shape->batch,
                                 .tokens = shape->tokens,
                                 .channels = shape->channels,
                                 .vocab = shape->vocab,
                                 .begins = p->gpu_begins,
                                 .token_ids = p->gpu_ids,
                                 .output_grad = p->gpu_grads,
                                 .scratch = p->scratch};
}

/* Where parts of the table end: part i is rows [ends[i - 1], ends[i]). */
struct cut {
    int parts;
    uint64_t ends[PARTS_MAX];
};

/* [rows, C] elements of the type, on the host; the caller frees. cut NULL: one call. */
static void *forward(gpu_fixture *gpu, const struct problem *p, bool has_positions,
                     const struct cut *cut)
{
    uint64_t row_bytes = p->shape.channels * dtype_bytes(p->shape.type);
    void *output = gpu_alloc(gpu, p->rows * row_bytes), *host = block(p->rows * row_bytes);
    embedding_args args = forward_args(p);
    args.output = output;
    gpu_fill(gpu, output, 0, p->rows * row_bytes);
    for (int part = 0; cut && part < cut->parts; part++) {
        args.row_begin = part ? cut->ends[part - 1] : 0;
        args.row_count = cut->ends[part] - args.row_begin;
        args.token_table = (const char *)p->gpu_table + args.row_begin * row_bytes;
        assert_int_equal(cudai_embedding_forward(&gpu->context, gpu->stream, &args), 0);
    }
    args.row_begin = args.row_count = 0;
    args.token_table = cut ? NULL : p->gpu_table;
    args.position_table = has_positions ? p->gpu_positions : NULL;
    assert_int_equal(cudai_embedding_forward(&gpu->context, gpu->stream, &args), 0);
    gpu_download(gpu, host, output, p->rows * row_bytes);
    gpu_free(gpu, output);
    return host;
}

struct gradients {
    float *table, *positions; /* host */
};

static void gradients_fini(struct gradients *gradients)
{
    mem_free(gradients->table);
    mem_free(gradients->positions);
}

static struct gradients backward(gpu_fixture *gpu, const struct problem *p, const struct cut *cut)
{
    uint64_t channels = p->shape.channels;
    uint64_t table_bytes = p->shape.vocab * channels * sizeof(float);
    uint64_t position_bytes = p->shape.tokens * channels * sizeof(float);
    float *table = gpu_alloc_copy(gpu, p->table_before, table_bytes);
    float *positions = gpu_alloc_copy(gpu, p->position_before, position_bytes);
    struct gradients result = {block(table_bytes), block(position_bytes)};
    embedding_grad_args args = backward_args(p);
    for (int part = 0; cut && part < cut->parts; part++) {
        args.row_begin = part ? cut->ends[part - 1] : 0;
        args.row_count = cut->ends[part] - args.row_begin;
        args.token_table_grad = table + args.row_begin * channels;
        assert_int_equal(cudai_embedding_backward(&gpu->context, gpu->stream, &args), 0);
    }
    args.row_begin = args.row_count = 0;
    args.token_table_grad = cut ? NULL : table;
    args.position_table_grad = positions;
    assert_int_equal(cudai_embedding_backward(&gpu->context, gpu->stream, &args), 0);
    gpu_download(gpu, result.table, table, table_bytes);
    gpu_download(gpu, result.positions, positions, position_bytes);
    gpu_free(gpu, table);
    gpu_free(gpu, positions);
    return result;
}

static void check_forward(gpu_fixture *gpu, struct shape shape)
{
    struct problem p = problem_init(gpu, shape);
    uint64_t count = p.rows * shape.channels;
    size_t elem_bytes = dtype_bytes(shape.type);
    for (int has_positions = 0; has_positions < 2; has_positions++) {
        void *table = block(shape.vocab * shape.channels * elem_bytes);
        void *positions = block(shape.tokens * shape.channels * elem_bytes);
        float *got = block(count * sizeof *got), *want = block(count * sizeof *want);
        void *output = forward(gpu, &p, has_positions, NULL);
        void *expected = block(count * elem_bytes);
        embedding_args args = forward_args(&p);
        gpu_narrow(p.table, table, shape.type, shape.vocab * shape.channels);
        gpu_narrow(p.positions, positions, shape.type, shape.tokens * shape.channels);
        args.token_ids = p.ids;
        args.begins = p.begins;
        args.token_table = table;
        args.position_table = has_positions ? positions : NULL;
        args.output = expected;
        assert_int_equal(kernels_reference.embedding_forward(NULL, NULL, &args), 0);
        gpu_widen(output, shape.type, got, count);
        gpu_widen(expected, shape.type, want, count);
        gpu_expect_close("embedding", got, want, count, 0, 0);
        void *blocks[] = {table, positions, got, want, output, expected};
        for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
            mem_free(blocks[i]);
    }
    problem_fini(gpu, &p);
}

static void forward_gives_the_bits_of_the_reference(void **state)
{
    static const uint64_t channels[] = {1, 5, 8, 64, 600, 1604};
    gpu_fixture *gpu = gpu_begin();
    for (int type = 0; type < DTYPE_COUNT; type++)
        for (size_t c = 0; c < sizeof channels / sizeof *channels; c++)
            check_forward(gpu,
                          (struct shape){(enum dtype)type, 3, 29, channels[c], 37, IDS_UNIFORM});
    /* There are more rows than blocks in the grid. */
    check_forward(gpu, (struct shape){DTYPE_BF16, 2, 601, 257, 5, IDS_UNIFORM});
    gpu_end(gpu);
}

static const struct cut cuts[] = {
    {1, {37}}, {2, {1, 37}}, {3, {12, 24, 37}}, {5, {7, 8, 20, 36, 37}}};

static void parts_give_the_bits_of_the_whole(void **state)
{
    static const uint64_t channels[] = {1, 5, 64, 132};
    gpu_fixture *gpu = gpu_begin();
    for (int type = 0; type < DTYPE_COUNT; type++)
        for (size_t c = 0; c < sizeof channels / sizeof *channels; c++) {
            enum id_pattern pattern = c % 2 ? IDS_SKEWED : IDS_UNIFORM;
            struct shape shape = {(enum dtype)type, 3, 97, channels[c], 37, pattern};
            struct problem p = problem_init(gpu, shape);
            struct gradients whole = backward(gpu, &p, NULL);
            for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
                struct gradients parts = backward(gpu, &p, &cuts[i]);
                gpu_expect_same("table's gradient", parts.table, whole.table,
                                shape.vocab * shape.channels, sizeof(float));
                gpu_expect_same("positions' gradient", parts.positions, whole.positions,
                                shape.tokens * shape.channels, sizeof(float));
                gradients_fini(&parts);
                void *output = forward(gpu, &p, true, &cuts[i]);
                void *expected = forward(gpu, &p, true, NULL);
                gpu_expect_same("embedding", output, expected, p.rows * shape.channels,
                                dtype_bytes(shape.type));
                mem_free(output);
                mem_free(expected);
            }
            gradients_fini(&whole);
            problem_fini(gpu, &p);
        }
    gpu_end(gpu);
}

/* Rows whose token lies elsewhere keep what they hold, on both sides. */
static void parts_leave_other_rows(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    const float table[] = {1, 2, 3, 4}, before[8] = {9, 9, 9, 9, 9, 9, 9, 9};
    const float expected[8] = {9, 9, 1, 2, 3, 4, 9, 9}, zeros[4] = {0};
    const int32_t ids[4] = {4, 5, 6, 7};
    float got[8], grads[4];
    float *output = gpu_alloc_copy(gpu, before, sizeof before);
    float *table_grad = gpu_alloc_copy(gpu, zeros, sizeof zeros);
    embedding_args args = {.batch = 1,
                           .tokens = 4,
                           .channels = 2,
                           .vocab = 8,
                           .row_begin = 5,
                           .row_count = 2,
                           .token_ids = gpu_alloc_copy(gpu, ids, sizeof ids),
                           .token_table = gpu_alloc_copy(gpu, table, sizeof table),
                           .output = output};
    assert_int_equal(cudai_embedding_forward(&gpu->context, gpu->stream, &args), 0);
    embedding_grad_args back = {
        .batch = 1,
        .tokens = 4,
        .channels = 2,
        .vocab = 8,
        .row_begin = 5,
        .row_count = 2,
        .token_ids = args.token_ids,
        .output_grad = output,
        .token_table_grad = table_grad,
        .scratch = gpu_alloc(gpu, cudai_embedding_grad_scratch_bytes(&gpu->context, 4, 8))};
    assert_int_equal(cudai_embedding_backward(&gpu->context, gpu->stream, &back), 0);
    gpu_download(gpu, got, output, sizeof got);
    gpu_download(gpu, grads, table_grad, sizeof grads);
    assert_memory_equal(got, expected, sizeof expected);
    assert_memory_equal(grads, table, sizeof table);
    gpu_end(gpu);
}

/* Elements of tokens with at most IN_ORDER_ROWS rows by their bits, the others against a sum in
 * double within the rounding of fp32 sums. Returns how many tokens were of either kind. */
static void check_table_gradient(const struct problem *p, const float *got, uint64_t *seldom,
                                 uint64_t *often)
{
    uint64_t channels = p->shape.channels, vocab = p->shape.vocab;
    uint64_t *occurs = block(vocab * sizeof *occurs);
    float *in_order = block(vocab * channels * sizeof *in_order);
    double *exact = block(vocab * channels * sizeof *exact);
    double *magnitude = block(vocab * channels * sizeof *magnitude);
    memset(occurs, 0, vocab * sizeof *occurs);
    for (uint64_t i = 0; i < vocab * channels; i++) {
        in_order[i] = p->table_before[i];
        exact[i] = (double)p->table_before[i];
        magnitude[i] = fabs(exact[i]);
    }
    for (uint64_t row = 0; row < p->rows; row++) {
        uint64_t token = (uint64_t)p->ids[row];
        occurs[token]++;
        for (uint64_t c = 0; c < channels; c++) {
            float x = p->grads[row * channels + c];
            in_order[token * channels + c] += x;
            exact[token * channels + c] += (double)x;
            magnitude[token * channels + c] += fabs((double)x);
        }
    }
    for (uint64_t token = 0; token < vocab; token++) {
        bool is_seldom = occurs[token] <= IN_ORDER_ROWS;
        *(is_seldom ? seldom : often) += 1;
        for (uint64_t i = token * channels; i < (token + 1) * channels; i++) {
            double slack = 0x1p-24 * magnitude[i] * (2.0 + sqrt((double)occurs[token]));
            if (is_seldom ? fp32_bits(got[i]) != fp32_bits(in_order[i])
                          : !(fabs((double)got[i] - exact[i]) <= slack))
                fail_msg("token %llu of %llu rows, channel %llu: %.9g, not %.9g",
                         (unsigned long long)token, (unsigned long long)occurs[token],
                         (unsigned long long)(i % channels), (double)got[i],
                         is_seldom ? (double)in_order[i] : exact[i]);
        }
    }
    mem_free(occurs);
    mem_free(in_order);
    mem_free(exact);
    mem_free(magnitude);
}

static void check_position_gradient(const struct problem *p, const float *got)
{
    uint64_t channels = p->shape.channels, count = p->shape.tokens * channels;
    float *want = block(count * sizeof *want);
    memcpy(want, p->position_before, count * sizeof *want);
    for (uint64_t i = 0; i < p->rows * channels; i++) {
        uint64_t row = i / channels, begin = p->begins ? (uint64_t)p->begins[row] : 0;
        want[(row % p->shape.tokens - begin) * channels + i % channels] += p->grads[i];
    }
    gpu_expect_same("positions' gradient", got, want, count, sizeof *want);
    mem_free(want);
}

/* Against the host; twice, with grids of another size: the bits must stay. */
static void check_backward(gpu_fixture *gpu, struct shape shape, uint64_t seldom_min,
                           uint64_t often_min)
{
    struct problem p = problem_init(gpu, shape);
    struct gradients first = backward(gpu, &p, NULL);
    uint64_t seldom = 0, often = 0;
    check_table_gradient(&p, first.table, &seldom, &often);
    check_position_gradient(&p, first.positions);
    assert_true(seldom >= seldom_min && often >= often_min); /* the case is what it should be */
    int sm_count = gpu->context.sm_count;
    gpu->context.sm_count = sm_count > 1 ? 1 : 2;
    struct gradients second = backward(gpu, &p, NULL);
    gpu->context.sm_count = sm_count;
    gpu_expect_same("table's gradient", second.table, first.table, shape.vocab * shape.channels,
                    sizeof(float));
    gpu_expect_same("positions' gradient", second.positions, first.positions,
                    shape.tokens * shape.channels, sizeof(float));
    gradients_fini(&first);
    gradients_fini(&second);
    problem_fini(gpu, &p);
}

static void gradients_of_odd_shapes(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    static const struct shape shapes[] = {
        {DTYPE_FP32, 1, 1, 1, 1, IDS_SAME},         {DTYPE_BF16, 2, 16, 3, 50, IDS_UNIFORM},
        {DTYPE_FP16, 3, 33, 133, 7, IDS_UNIFORM},   {DTYPE_BF16, 5, 51, 132, 40, IDS_UNIFORM},
        {DTYPE_FP32, 2, 130, 260, 60, IDS_SKEWED},  {DTYPE_BF16, 7, 75, 97, 300, IDS_SKEWED},
        {DTYPE_FP16, 1, 1025, 36, 600, IDS_SKEWED}, {DTYPE_FP32, 2, 600, 257, 9, IDS_UNIFORM},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_backward(gpu, shapes[i], 0, 0);
    gpu_end(gpu);
}

/* Segments around every boundary of the sum's order: token k has k rows, in a shuffled order. */
static void gradients_of_every_length(void **state)
{
    enum { LENGTHS = 68, ROWS = LENGTHS * (LENGTHS + 1) / 2 };
    gpu_fixture *gpu = gpu_begin();
    struct shape shape = {DTYPE_BF16, 1, ROWS, 8, LENGTHS + 1, IDS_UNIFORM};
    struct problem p = problem_init(gpu, shape);
    uint64_t row = 0, seldom = 0, often = 0;
    for (int32_t token = 1; token <= LENGTHS; token++)
        for (int32_t i = 0; i < token; i++)
            p.ids[row++] = token;
    for (row = ROWS - 1; row > 0; row--) {
        uint64_t other = rng_below(gpu->seed, 11, row, row + 1);
        int32_t held = p.ids[row];
        p.ids[row] = p.ids[other];
        p.ids[other] = held;
    }
    gpu_upload(gpu, p.gpu_ids, p.ids, ROWS * sizeof *p.ids);
    struct gradients got = backward(gpu, &p, NULL);
    check_table_gradient(&p, got.table, &seldom, &often);
    assert_int_equal(seldom, IN_ORDER_ROWS + 1); /* with token 0, which has none */
    assert_int_equal(often, LENGTHS - IN_ORDER_ROWS);
    gradients_fini(&got);
    problem_fini(gpu, &p);
    gpu_end(gpu);
}

static void gradient_of_one_token_everywhere(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    check_backward(gpu, (struct shape){DTYPE_BF16, 3, 701, 12, 5, IDS_SAME}, 4, 1);
    if (!gpu->is_simulated)
        check_backward(gpu, (struct shape){DTYPE_BF16, 8, 8192, 768, 50257, IDS_SAME}, 50256, 1);
    gpu_end(gpu);
}

/* More rows than one block sorts: one merge, two merges, a run that stands alone. */
static void gradients_of_merged_runs(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    check_backward(gpu, (struct shape){DTYPE_FP32, 1, ROWS_OF_RUN + 1, 2, 700, IDS_UNIFORM}, 1, 0);
    check_backward(gpu, (struct shape){DTYPE_BF16, 3, 3001, 3, 2000, IDS_UNIFORM}, 1000, 0);
    check_backward(gpu, (struct shape){DTYPE_BF16, 1, 4 * ROWS_OF_RUN + 77, 1, 1500, IDS_UNIFORM},
                   1000, 1);
    if (!gpu->is_simulated) {
        check_backward(gpu, (struct shape){DTYPE_BF16, 16, 4096, 400, 50257, IDS_UNIFORM}, 10000,
                       0);
        check_backward(gpu, (struct shape){DTYPE_FP16, 3, 100003, 65, 3000, IDS_SKEWED}, 1, 12);
    }
    gpu_end(gpu);
}

/* Gradients that are not finite reach their own token and position, no other. */
static void gradients_that_are_not_finite(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    struct shape shape = {DTYPE_BF16, 2, 60, 4, 3, IDS_UNIFORM};
    struct problem p = problem_init(gpu, shape);
    for (uint64_t row = 0; row < p.rows; row++)
        p.ids[row] = row % 7 == 3 ? 2 : 0;
    p.grads[3 * 4] = NAN;
    p.grads[10 * 4 + 1] = INFINITY;
    p.grads[0 * 4 + 2] = -INFINITY;
    void *grads = block(p.rows * 4 * 2);
    gpu_narrow(p.grads, grads, shape.type, p.rows * 4);
    gpu_upload(gpu, p.gpu_grads, grads, p.rows * 4 * 2);
    gpu_upload(gpu, p.gpu_ids, p.ids, p.rows * sizeof *p.ids);
    struct gradients got = backward(gpu, &p, NULL);
    for (uint64_t i = 0; i < 12; i++)
        assert_int_equal(isfinite(got.table[i]), i != 2 && i != 8 && i != 9);
    assert_true(isnan(got.table[8]) && got.table[9] == INFINITY && got.table[2] == -INFINITY);
    assert_int_equal(fp32_bits(got.table[7]), fp32_bits(p.table_before[7])); /* no such token */
    assert_true(isnan(got.positions[3 * 4]) && isfinite(got.positions[3 * 4 + 1]));
    mem_free(grads);
    gradients_fini(&got);
    problem_fini(gpu, &p);
    gpu_end(gpu);
}

/* The host cannot see ids on the GPU: rows of such that are outside the vocabulary become NaN, all
 * parts and the positions included, and add to no token. */
static void bad_ids_are_seen_and_do_no_harm(void **state)
{
    static const int32_t bad[] = {-1, INT32_MIN, 37, INT32_MAX};
    gpu_fixture *gpu = gpu_begin();
    struct shape shape = {DTYPE_BF16, 2, 20, 8, 37, IDS_UNIFORM};
    struct problem p = problem_init(gpu, shape), clean;
    for (uint64_t row = 0; row < p.rows; row++)
        p.ids[row] = row % 5 == 1 ? bad[row / 5 % 4] : (int32_t)(row % 30);
    gpu_upload(gpu, p.gpu_ids, p.ids, p.rows * sizeof *p.ids);
    for (size_t i = 0; i < 5; i++) {
        float *values = block(p.rows * 8 * sizeof *values);
        void *output = forward(gpu, &p, i > 0, i < 4 ? &cuts[i] : NULL);
        gpu_widen(output, shape.type, values, p.rows * 8);
        for (uint64_t row = 0; row < p.rows; row++)
            for (uint64_t c = 0; c < 8; c++)
                assert_int_equal(isnan(values[row * 8 + c]), row % 5 == 1);
        mem_free(values);
        mem_free(output);
    }
    /* The tokens' gradient is that of the other rows alone. */
    struct gradients got = backward(gpu, &p, NULL);
    clean = p;
    clean.grads = block(p.rows * 8 * sizeof(float));
    clean.ids = block(p.rows * sizeof *clean.ids);
    for (uint64_t row = 0; row < p.rows; row++) {
        clean.ids[row] = row % 5 == 1 ? 36 : p.ids[row]; /* a token that has no row otherwise */
        for (uint64_t c = 0; c < 8; c++)
            clean.grads[row * 8 + c] = row % 5 == 1 ? 0.0f : p.grads[row * 8 + c];
    }
    uint64_t seldom = 0, often = 0;
    check_table_gradient(&clean, got.table, &seldom, &often);
    check_position_gradient(&p, got.positions);
    mem_free(clean.grads);
    mem_free(clean.ids);
    gradients_fini(&got);
    problem_fini(gpu, &p);
    gpu_end(gpu);
}

/* Empty calls, and tables that are not asked for. */
static void nothing_to_do(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    struct problem p = problem_init(gpu, (struct shape){DTYPE_FP32, 1, 2, 3, 4, IDS_UNIFORM});
    embedding_args args = forward_args(&p);
    embedding_grad_args back = backward_args(&p);
    assert_int_equal(cudai_embedding_forward(&gpu->context, gpu->stream, &args), 0);
    assert_int_equal(cudai_embedding_backward(&gpu->context, gpu->stream, &back), 0);
    args.batch = back.batch = 0;
    args.token_table = p.gpu_table;
    back.token_table_grad = p.gpu_table;
    assert_int_equal(cudai_embedding_forward(&gpu->context, gpu->stream, &args), 0);
    assert_int_equal(cudai_embedding_backward(&gpu->context, gpu->stream, &back), 0);
    assert_int_equal(cudai_embedding_grad_scratch_bytes(&gpu->context, 0, 4), 0);
    problem_fini(gpu, &p);
    gpu_end(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_gives_the_bits_of_the_reference),
        cmocka_unit_test(parts_give_the_bits_of_the_whole),
        cmocka_unit_test(parts_leave_other_rows),
        cmocka_unit_test(gradients_of_odd_shapes),
        cmocka_unit_test(gradients_of_every_length),
        cmocka_unit_test(gradient_of_one_token_everywhere),
        cmocka_unit_test(gradients_of_merged_runs),
        cmocka_unit_test(gradients_that_are_not_finite),
        cmocka_unit_test(bad_ids_are_seen_and_do_no_harm),
        cmocka_unit_test(nothing_to_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
