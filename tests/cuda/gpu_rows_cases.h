/* The rig of the tests of the CUDA backend's dense row ops.
 *
 * Each case draws inputs from a seed, runs an op and emits its outputs widened to fp32. It runs on
 * the reference; on the GPU; and on the GPU with every array one element behind an aligned address,
 * which takes the paths of single elements and must give the first run's bits. Results are compared
 * with the reference within a tolerance: one unit of rounding of the output's type, since the fp32
 * arithmetic before it may tip a tie, plus a stated absolute part for what cancels. Where the
 * arithmetic is exact the tolerance is 0. */
#ifndef SLUICE_TESTS_CUDA_GPU_ROWS_CASES_H
#define SLUICE_TESTS_CUDA_GPU_ROWS_CASES_H

#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/unit.h"

enum { BLOCKS_MAX = 32 };

/* Added to a tolerance of row_ops_cases.h for each row that is summed: a GPU adds up in fp32. */
#define SUM_SLACK 4e-6f

static const enum dtype all_types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};
enum { TYPE_COUNT = sizeof all_types / sizeof *all_types };

static const kernel_ops gpu_rows = {
    .name = "cuda rows",
    .norm_forward = cudai_norm_forward,
    .norm_grad_scratch_bytes = cudai_norm_grad_scratch_bytes,
    .norm_backward = cudai_norm_backward,
    .head_norm_forward = cudai_head_norm_forward,
    .head_norm_grad_scratch_bytes = cudai_head_norm_grad_scratch_bytes,
    .head_norm_backward = cudai_head_norm_backward,
    .rope_table = cudai_rope_table,
    .rope = cudai_rope,
    .activation_forward = cudai_activation_forward,
    .activation_backward = cudai_activation_backward,
    .add = cudai_add,
    .scale_rows = cudai_scale_rows,
    .dropout = cudai_dropout,
    .bias_backward = cudai_bias_backward,
    .bias_backward_scratch_bytes = cudai_bias_backward_scratch_bytes,
    .router_forward = cudai_router_forward,
    .router_backward = cudai_router_backward,
    .router_sums = cudai_router_sums,
    .router_sums_scratch_bytes = cudai_router_sums_scratch_bytes,
    .attention_sinks = cudai_attention_sinks,
    .attention_sinks_backward = cudai_attention_sinks_backward,
    .heads_join = cudai_heads_join,
    .heads_split = cudai_heads_split,
    .experts_sort = cudai_experts_sort,
    .experts_gather = cudai_experts_gather,
    .experts_combine = cudai_experts_combine,
    .experts_weights_backward = cudai_experts_weights_backward,
    .zero = cudai_zero,
    .convert = cudai_convert,
};

struct shape {
    enum dtype type;
    uint64_t rows, channels;
    int variant; /* bits, as each case says */
};

/* One run of a case: its memory, freed at the end, and what it emitted. */
struct run {
    const kernel_ops *ops;
    gpu_fixture *gpu; /* NULL: the reference, on the host */
    kernel_context *context;
    void *stream;
    uint64_t seed;
    uint64_t shift; /* distance of each array's beginning from an aligned address, in elements */
    void *blocks[BLOCKS_MAX];
    int block_count;
    float *values, *slack; /* [count]; slack: the tolerance of each value */
    uint64_t count;
};

/* Memory of the run's backend with `bytes` bytes from `shift_bytes` on; `host` NULL: not filled. */
static void *place(struct run *run, const void *host, uint64_t bytes, uint64_t shift_bytes)
{
    assert_true(run->block_count < BLOCKS_MAX);
    void *memory = run->gpu ? gpu_alloc(run->gpu, bytes + shift_bytes)
                            : mem_alloc(bytes + shift_bytes, 1, "test");
    assert_non_null(memory);
    run->blocks[run->block_count++] = memory;
    char *data = (char *)memory + shift_bytes;
    if (host && run->gpu)
        gpu_upload(run->gpu, data, host, bytes);
    else if (host)
        memcpy(data, host, bytes);
    return data;
}

static void *block(struct run *run, enum dtype type, uint64_t count)
{
    return place(run, NULL, count * dtype_bytes(type), run->shift * dtype_bytes(type));
}

static inline void *scratch(struct run *run, uint64_t bytes)
{
    return place(run, NULL, bytes, 0);
}

static inline void *draw_at_least(struct run *run, enum dtype type, uint64_t count, uint64_t stream,
                                  float scale, float least)
{
    float *x = mem_alloc(count, sizeof *x, "test");
    assert_non_null(x);
    rng_normals(run->seed, stream, 0, count, x);
    for (uint64_t i = 0; i < count; i++) {
        x[i] *= scale;
        x[i] = least > 0.0f ? least + fabsf(x[i]) : x[i];
    }
    void *data = x;
    if (type != DTYPE_FP32) {
        data = mem_alloc(count, dtype_bytes(type), "test");
        assert_non_null(data);
        gpu_narrow(x, data, type, count);
    }
    void *placed = place(run, data, count * dtype_bytes(type), run->shift * dtype_bytes(type));
    if (data != x)
        mem_free(data);
    mem_free(x);
    return placed;
}

/* count normal numbers times `scale`, rounded to type. */
static inline void *draw(struct run *run, enum dtype type, uint64_t count, uint64_t stream,
                         float scale)
{
    return draw_at_least(run, type, count, stream, scale, 0.0f);
}

/* `absolute` below 0: exact. */
static void emit(struct run *run, enum dtype type, const void *data, uint64_t count, float absolute)
{
    static const float unit[] = {
        [DTYPE_FP32] = 4e-6f, [DTYPE_BF16] = 0x1p-7f, [DTYPE_FP16] = 0x1p-10f};
    run->values = mem_resize(run->values, run->count + count, sizeof(float), "test");
    run->slack = mem_resize(run->slack, run->count + count, sizeof(float), "test");
    assert_true(run->values && run->slack);
    float *values = run->values + run->count;
    if (run->gpu)
        gpu_download_values(run->gpu, values, data, type, count);
    else
        gpu_widen(data, type, values, count);
    for (uint64_t i = 0; i < count; i++)
        run->slack[run->count + i] =
            absolute < 0.0f ? 0.0f : absolute + unit[type] * fabsf(values[i]);
    run->count += count;
}

typedef void (*case_fn)(struct run *run, const struct shape *shape);

static struct run run_case(case_fn body, const struct shape *shape, gpu_fixture *gpu, bool on_gpu,
                           uint64_t shift)
{
    struct run run = {.ops = on_gpu ? &gpu_rows : &kernels_reference,
                      .gpu = on_gpu ? gpu : NULL,
                      .context = on_gpu ? &gpu->context : NULL,
                      .stream = on_gpu ? gpu->stream : NULL,
                      .seed = gpu->seed,
                      .shift = shift};
    body(&run, shape);
    for (int i = 0; i < run.block_count; i++)
        if (on_gpu)
            gpu_free(gpu, run.blocks[i]);
        else
            mem_free(run.blocks[i]);
    return run;
}

static void free_values(struct run *run)
{
    mem_free(run->values);
    mem_free(run->slack);
}

static inline void check_case(gpu_fixture *gpu, const char *name, case_fn body,
                              const struct shape *shape)
{
    char text[160];
    snprintf(text, sizeof text, "%s %s rows %llu channels %llu variant %d", name,
             dtype_name(shape->type), (unsigned long long)shape->rows,
             (unsigned long long)shape->channels, shape->variant);
    struct run expected = run_case(body, shape, gpu, false, 0);
    struct run got = run_case(body, shape, gpu, true, 0);
    struct run shifted = run_case(body, shape, gpu, true, 1);
    assert_int_equal(got.count, expected.count);
    for (uint64_t i = 0; i < got.count; i++)
        if (!(fabsf(got.values[i] - expected.values[i]) <= expected.slack[i]) &&
            got.values[i] != expected.values[i])
            fail_msg("%s: value %llu is %.9g, not %.9g", text, (unsigned long long)i,
                     (double)got.values[i], (double)expected.values[i]);
    assert_int_equal(shifted.count, expected.count);
    if (memcmp(shifted.values, got.values, got.count * sizeof(float)) != 0)
        fail_msg("%s: other bits where arrays are not aligned", text);
    free_values(&expected);
    free_values(&got);
    free_values(&shifted);
}

static inline void check_shapes(const char *name, case_fn body, const uint64_t (*shapes)[2],
                                size_t shape_count, int variants)
{
    gpu_fixture *gpu = gpu_begin();
    for (size_t t = 0; t < TYPE_COUNT; t++)
        for (size_t s = 0; s < shape_count; s++)
            for (int variant = 0; variant < variants; variant++) {
                struct shape shape = {all_types[t], shapes[s][0], shapes[s][1], variant};
                check_case(gpu, name, body, &shape);
            }
    gpu_end(gpu);
}

#define CHECK_SHAPES(name, body, shapes, variants)                                                 \
    check_shapes(name, body, shapes, sizeof(shapes) / sizeof *(shapes), variants)

/* Selects the tests whose names begin with the program's argument; false if there is none. */
static inline bool rows_filter(int argc, char **argv, const char *instances)
{
    static char filter[64];
    if (argc != 2) {
        fprintf(stderr, "usage: %s %s\n", argv[0], instances);
        return false;
    }
    snprintf(filter, sizeof filter, "%s*", argv[1]);
    cmocka_set_test_filter(filter);
    return true;
}

#endif
