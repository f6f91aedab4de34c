/* The rig of the tests of the CPU's row ops. Each case draws inputs from a seed, runs an op and
 * emits its outputs widened to fp32. The case runs on the reference (compared within a tolerance:
 * one unit of rounding of the output's type, since the fp32 arithmetic before it may tip a tie,
 * plus a stated absolute part for what cancels), then on the instruction set with 1, 2 and 3
 * threads and on the baseline: those must agree to the bit. */
#ifndef SLUICE_TESTS_KERNELS_ROWS_CASES_H
#define SLUICE_TESTS_KERNELS_ROWS_CASES_H

#include <assert.h>
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/cpu/rows_internal.h"
#include "tests/kernels/kernels_isa.h"
#include "tests/unit.h"

enum { SEED = 20261, BLOCKS_MAX = 64 };

/* Added to a tolerance of row_ops_cases.h for each row that is summed. */
#define SUM_SLACK 0.0f

static enum cpu_isa tested_isa;
static const enum dtype all_types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};

struct shape {
    enum dtype type;
    uint64_t rows, channels;
    int variant; /* bits, as each case says */
};

/* One run of a case: its memory, freed at the end, and what it emitted. */
struct run {
    const kernel_ops *ops;
    kernel_context *context; /* NULL for the reference */
    void *stream;            /* NULL */
    uint64_t seed;
    void *blocks[BLOCKS_MAX];
    int block_count;
    float *values, *slack; /* [count]; slack: the tolerance of each value, from its size */
    uint64_t count;
};

static void *scratch(struct run *run, uint64_t bytes)
{
    assert_true(run->block_count < BLOCKS_MAX);
    void *memory = mem_alloc(bytes, 1, "test");
    assert_non_null(memory);
    run->blocks[run->block_count++] = memory;
    return memory;
}

static inline void *block(struct run *run, enum dtype type, uint64_t count)
{
    return scratch(run, count * dtype_bytes(type));
}

/* A copy of `bytes` bytes, aligned. (For a GPU the last argument shifts it.) */
static inline void *place(struct run *run, const void *host, uint64_t bytes, uint64_t shift_bytes)
{
    assert_int_equal(shift_bytes, 0);
    return memcpy(scratch(run, bytes), host, bytes);
}

/* count normal numbers times `scale`, rounded to type. They come from a pool, since drawing would
 * be most of a case's time; each stream begins at another place of it. */
static inline void *draw(struct run *run, enum dtype type, uint64_t count, uint64_t stream,
                         float scale)
{
    enum { POOL = 65537 };
    static float pool[POOL];
    for (uint64_t i = 0; pool[0] == 0.0f && i < POOL; i++)
        pool[POOL - 1 - i] = rng_normal(SEED, 1, i);
    float *x = scratch(run, count * sizeof *x);
    for (uint64_t i = 0; i < count; i++)
        x[i] = scale * pool[(stream * 8191 + i) % POOL];
    if (type == DTYPE_FP32)
        return x;
    void *rounded = block(run, type, count);
    dtype_convert(x, DTYPE_FP32, rounded, type, count);
    return rounded;
}

/* The sizes of normal numbers, and `least` more; fp32. */
static inline void *draw_at_least(struct run *run, enum dtype type, uint64_t count, uint64_t stream,
                                  float scale, float least)
{
    assert_int_equal(type, DTYPE_FP32);
    float *x = draw(run, type, count, stream, scale);
    for (uint64_t i = 0; i < count; i++)
        x[i] = least + fabsf(x[i]);
    return x;
}

/* `absolute` below 0: exact. */
static void emit(struct run *run, enum dtype type, const void *data, uint64_t count, float absolute)
{
    static const float unit[] = {
        [DTYPE_FP32] = 4e-6f, [DTYPE_BF16] = 0x1p-7f, [DTYPE_FP16] = 0x1p-10f};
    run->values = mem_resize(run->values, run->count + count, sizeof(float), "test");
    run->slack = mem_resize(run->slack, run->count + count, sizeof(float), "test");
    assert_true(run->values && run->slack);
    dtype_convert(data, type, run->values + run->count, DTYPE_FP32, count);
    for (uint64_t i = run->count; i < run->count + count; i++)
        run->slack[i] = absolute < 0.0f ? 0.0f : absolute + unit[type] * fabsf(run->values[i]);
    run->count += count;
}

typedef void (*case_fn)(struct run *run, const struct shape *shape);

static struct run run_case(case_fn body, const struct shape *shape, const kernel_ops *ops,
                           kernel_context *context)
{
    struct run run = {.ops = ops, .context = context, .seed = SEED};
    body(&run, shape);
    for (int i = 0; i < run.block_count; i++)
        mem_free(run.blocks[i]);
    return run;
}

static inline void check_case(const char *name, case_fn body, const struct shape *shape)
{
    struct run expected = run_case(body, shape, &kernels_reference, NULL);
    struct run first = {0};
    for (int attempt = 0; attempt < 4; attempt++) {
        int threads = attempt < 3 ? attempt + 1 : 2;
        kernel_context context = rows_context_of(attempt < 3 ? tested_isa : CPU_BASELINE, threads);
        struct run run = run_case(body, shape, &kernels_cpu, &context);
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
static inline void check_shapes(const char *name, case_fn body, int variants)
{
    static const uint64_t shapes[][2] = {{1, 1},  {1, 1600}, {3, 7},    {3, 100},
                                         {65, 1}, {65, 64},  {65, 100}, {65, 600}};
    for (size_t t = 0; t < sizeof all_types / sizeof *all_types; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int variant = 0; variant < variants; variant++) {
                struct shape shape = {all_types[t], shapes[s][0], shapes[s][1], variant};
                check_case(name, body, &shape);
            }
}

#endif
