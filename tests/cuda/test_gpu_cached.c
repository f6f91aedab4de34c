/* Attention over kept keys and values on a GPU against the reference backend: all types, grouped
 * heads, fewer and more positions than a block has warps, windows and soft caps; sinks with odd
 * windows. */
#include <math.h>

#include "base/mem.h"
#include "tests/cuda/gpu_fixture.h"
#include "tests/unit.h"

struct shape {
    uint64_t begin, rows, heads, kv_heads, head_dim, window;
    float soft_cap;
    uint64_t value_dim;
};

static float *random_values(enum dtype type, uint64_t count, uint64_t seed)
{
    float *values = mem_alloc(count, sizeof *values, "test");
    assert_non_null(values);
    gpu_random_fill(values, count, seed, -2, 2);
    gpu_round(values, type, count);
    return values;
}

static uint64_t value_dim_of(const struct shape *s)
{
    return s->value_dim ? s->value_dim : s->head_dim;
}

/* Shape and scale; the operands are the caller's. */
static attention_cached_args args_of(const struct shape *s, enum dtype type)
{
    return (attention_cached_args){
        .type = type,
        .rows = s->rows,
        .begin = s->begin,
        .capacity = s->begin + s->rows + 1,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .value_dim = s->value_dim,
        .qkv_stride = (s->heads + s->kv_heads) * s->head_dim + s->kv_heads * value_dim_of(s),
        .scale = 1.0f / sqrtf((float)s->head_dim),
        .soft_cap = s->soft_cap,
        .window = s->window,
    };
}

static void check_shape(gpu_fixture *gpu, const struct shape *s, enum dtype type)
{
    attention_cached_args args = args_of(s, type), truth = args_of(s, DTYPE_FP32);
    uint64_t kept = s->kv_heads * args.capacity * s->head_dim, rows = s->rows * args.qkv_stride;
    uint64_t values_kept = s->kv_heads * args.capacity * value_dim_of(s);
    uint64_t outputs = s->rows * s->heads * value_dim_of(s), elem = dtype_bytes(type);
    float *sinks = random_values(type, s->heads, 8);
    float *qkv = random_values(type, rows, gpu->seed), *keys = random_values(type, kept, 2);
    float *values = random_values(type, values_kept, 3), *want = random_values(type, outputs, 4);
    float *got = random_values(type, outputs, 5), *got_keys = random_values(type, kept, 6);
    char *on_gpu = gpu_alloc_values(gpu, qkv, type, rows);
    args.q = on_gpu;
    args.k = on_gpu + s->heads * s->head_dim * elem;
    args.v = on_gpu + (s->heads + s->kv_heads) * s->head_dim * elem;
    args.keys = gpu_alloc_values(gpu, keys, type, kept);
    args.values = gpu_alloc_values(gpu, values, type, values_kept);
    args.output = gpu_alloc(gpu, outputs * elem);
    args.sinks = s->window % 2 ? gpu_alloc_values(gpu, sinks, type, s->heads) : NULL;
    truth.sinks = args.sinks ? sinks : NULL;
    truth.q = qkv;
    truth.k = qkv + s->heads * s->head_dim;
    truth.v = qkv + (s->heads + s->kv_heads) * s->head_dim;
    truth.keys = keys;
    truth.values = values;
    truth.output = want;
    assert_int_equal(cudai_attention_cached(&gpu->context, gpu->stream, &args), 0);
    assert_int_equal(kernels_reference.attention_cached(NULL, NULL, &truth), 0);
    gpu_download_values(gpu, got, args.output, type, outputs);
    gpu_download_values(gpu, got_keys, args.keys, type, kept);
    double bound = type == DTYPE_FP32 ? 1e-5 : type == DTYPE_BF16 ? 0.01 : 0.002;
    gpu_expect_close("output", got, want, outputs, bound, bound);
    gpu_expect_close("keys", got_keys, keys, kept, 0, 0);
    float *got_values = random_values(type, values_kept, 7);
    gpu_download_values(gpu, got_values, args.values, type, values_kept);
    gpu_expect_close("values", got_values, values, values_kept, 0, 0);
    float *all[] = {qkv, keys, values, want, got, got_keys, got_values, sinks};
    for (int i = 0; i < 8; i++)
        mem_free(all[i]);
}

static void matches_reference(void **state)
{
    static const struct shape shapes[] = {
        {0, 1, 1, 1, 2, 0, 0, 0},    {0, 5, 4, 2, 8, 0, 0, 0},        {33, 2, 2, 1, 64, 0, 0, 0},
        {7, 1, 2, 2, 80, 0, 0, 0},   {40, 3, 2, 1, 256, 0, 0, 0},     {33, 2, 2, 1, 64, 1, 0, 0},
        {33, 3, 2, 1, 64, 35, 0, 0}, {40, 2, 2, 2, 48, 500, 0.5f, 0}, {40, 3, 2, 1, 64, 10, 2, 0},
        {40, 3, 4, 2, 48, 0, 0, 33}, {7, 2, 2, 2, 24, 5, 0, 70},
    };
    gpu_fixture *gpu = gpu_begin();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (enum dtype type = 0; type < DTYPE_COUNT; type++)
            check_shape(gpu, &shapes[i], type);
    gpu_end(gpu);
}

static void wide_heads_are_refused(void **state)
{
    gpu_fixture *gpu = gpu_begin();
    const struct shape s = {0, 1, 1, 1, 257, 0, 0, 0};
    attention_cached_args args = args_of(&s, DTYPE_FP32);
    assert_int_equal(cudai_attention_cached(&gpu->context, gpu->stream, &args), ERR_BACKEND);
    gpu_end(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_reference),
        cmocka_unit_test(wide_heads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
