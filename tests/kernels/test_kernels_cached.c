/* Attention over kept keys and values against the definition, in double: all types, grouped heads,
 * head dimensions that fill no vector, many blocks of keys, windows and soft caps; and that neither
 * threads nor the number of rows in a call touch a bit. Argument: the backend, "cpu" or
 * "reference". */
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/ops.h"
#include "tests/kernels/kernels_isa.h"
#include "tests/unit.h"

enum { SEED = 31, PAD = 3, SPARE = 2 }; /* elements behind a row, positions behind the last */

static const kernel_ops *ops = &kernels_cpu;

struct shape {
    uint64_t begin, rows, heads, kv_heads, head_dim;
    struct {
        uint64_t window;
        float soft_cap;
        uint64_t value_dim; /* 0: head_dim */
        bool has_sinks;
    } kind;
};

struct tensors {
    attention_cached_args args;
    char *qkv, *keys, *values, *output, *sinks; /* in the type */
    uint64_t key_elems, value_elems, output_elems, value_dim;
};

static void *fill(enum dtype type, uint64_t count, uint64_t stream, float factor)
{
    char *data = mem_alloc(count, dtype_bytes(type), "test");
    float *values = mem_alloc(count, sizeof *values, "test");
    assert_true(data && values);
    rng_normals(SEED, stream, 0, count, values);
    for (uint64_t i = 0; i < count; i++)
        values[i] *= factor;
    dtype_convert(values, DTYPE_FP32, data, type, count);
    mem_free(values);
    return data;
}

static void tensors_init(struct tensors *t, const struct shape *s, enum dtype type, float factor)
{
    uint64_t value_dim = t->value_dim = s->kind.value_dim ? s->kind.value_dim : s->head_dim;
    uint64_t stride = (s->heads + s->kv_heads) * s->head_dim + s->kv_heads * value_dim + PAD;
    uint64_t capacity = s->begin + s->rows + SPARE, elem = dtype_bytes(type);
    t->key_elems = s->kv_heads * capacity * s->head_dim;
    t->value_elems = s->kv_heads * capacity * value_dim;
    t->output_elems = s->rows * s->heads * value_dim;
    t->qkv = fill(type, s->rows * stride, 1, factor);
    t->keys = fill(type, t->key_elems, 2, factor);
    t->values = fill(type, t->value_elems, 3, 1);
    t->output = fill(type, t->output_elems, 4, 1);
    t->sinks = fill(type, s->heads, 5, factor);
    t->args = (attention_cached_args){
        .type = type,
        .rows = s->rows,
        .begin = s->begin,
        .capacity = capacity,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .value_dim = s->kind.value_dim,
        .qkv_stride = stride,
        .scale = 1.0f / sqrtf((float)s->head_dim),
        .soft_cap = s->kind.soft_cap,
        .window = s->kind.window,
        .sinks = s->kind.has_sinks ? t->sinks : NULL,
        .q = t->qkv,
        .k = t->qkv + s->heads * s->head_dim * elem,
        .v = t->qkv + (s->heads + s->kv_heads) * s->head_dim * elem,
        .keys = t->keys,
        .values = t->values,
        .output = t->output,
    };
}

static void tensors_fini(struct tensors *t)
{
    mem_free(t->qkv);
    mem_free(t->keys);
    mem_free(t->values);
    mem_free(t->output);
    mem_free(t->sinks);
}

static double load(const struct tensors *t, const void *data, uint64_t at)
{
    float value;
    dtype_convert((const char *)data + at * dtype_bytes(t->args.type), t->args.type, &value,
                  DTYPE_FP32, 1);
    return (double)value;
}

static kernel_context *new_context(int threads)
{
    const kernel_context_config config = {.thread_count = threads};
    kernel_context *context;
    assert_int_equal(ops->context_create(&config, &context), 0);
    return context;
}

static void run(struct tensors *t, int threads)
{
    kernel_context *context = new_context(threads);
    assert_int_equal(ops->attention_cached(context, NULL, &t->args), 0);
    ops->context_destroy(context);
}

/* After a run k and v lie where they belong, and everything else is unchanged. */
static void check_kept(const struct tensors *t, const char *before, const char *kept,
                       const void *fresh, uint64_t dim)
{
    const attention_cached_args *a = &t->args;
    for (uint64_t i = 0; i < a->kv_heads * a->capacity * dim; i++) {
        uint64_t d = i % dim, position = i / dim % a->capacity;
        uint64_t group = i / dim / a->capacity;
        bool is_new = position >= a->begin && position < a->begin + a->rows;
        double expected =
            is_new ? load(t, fresh, (position - a->begin) * a->qkv_stride + group * dim + d)
                   : load(t, before, i);
        assert_true(load(t, kept, i) == expected);
    }
}

/* A row's output of one head: value_dim numbers. */
static void expected_output(const struct tensors *t, uint64_t row, uint64_t head, double *output)
{
    const attention_cached_args *a = &t->args;
    uint64_t kept = head / (a->heads / a->kv_heads) * a->capacity;
    uint64_t count = a->begin + row + 1;
    double sink = a->sinks ? load(t, a->sinks, head) : -INFINITY;
    double score[512], largest = sink, sum = 0;
    assert_true(count <= 512);
    uint64_t first = a->window && a->window < count ? count - a->window : 0;
    for (uint64_t s = first; s < count; s++) {
        score[s] = 0;
        for (uint64_t i = 0; i < a->head_dim; i++)
            score[s] += load(t, a->q, row * a->qkv_stride + head * a->head_dim + i) *
                        load(t, t->keys, (kept + s) * a->head_dim + i);
        score[s] *= (double)a->scale;
        if (a->soft_cap > 0)
            score[s] = (double)a->soft_cap * tanh(score[s] / (double)a->soft_cap);
        largest = fmax(largest, score[s]);
    }
    sum = exp(sink - largest);
    for (uint64_t s = first; s < count; s++)
        sum += exp(score[s] - largest);
    for (uint64_t d = 0; d < t->value_dim; d++) {
        output[d] = 0;
        for (uint64_t s = first; s < count; s++)
            output[d] +=
                exp(score[s] - largest) / sum * load(t, t->values, (kept + s) * t->value_dim + d);
    }
}

static void check_shape(const struct shape *s, enum dtype type, float factor)
{
    struct tensors t;
    tensors_init(&t, s, type, factor);
    uint64_t key_bytes = t.key_elems * dtype_bytes(type);
    uint64_t value_bytes = t.value_elems * dtype_bytes(type);
    char *keys = mem_alloc(key_bytes, 1, "test"), *values = mem_alloc(value_bytes, 1, "test");
    assert_true(keys && values);
    memcpy(keys, t.keys, key_bytes);
    memcpy(values, t.values, value_bytes);
    run(&t, 2);
    check_kept(&t, keys, t.keys, t.args.k, s->head_dim);
    check_kept(&t, values, t.values, t.args.v, t.value_dim);
    /* The result is rounded once to its type; sums are fp32, of values about 1. */
    double bound = type == DTYPE_FP32 ? 2e-5 : type == DTYPE_BF16 ? 0.02 : 0.003;
    double expected[256];
    assert_true(t.value_dim <= 256);
    for (uint64_t i = 0; i < t.output_elems; i++) {
        uint64_t row = i / t.value_dim / s->heads, d = i % t.value_dim;
        if (d == 0)
            expected_output(&t, row, i / t.value_dim % s->heads, expected);
        double found = load(&t, t.output, i);
        if (!(fabs(found - expected[d]) <= bound))
            fail_msg("D %llu, begin %llu, row %llu: %g, expected %g",
                     (unsigned long long)s->head_dim, (unsigned long long)s->begin,
                     (unsigned long long)row, found, expected[d]);
    }
    mem_free(keys);
    mem_free(values);
    tensors_fini(&t);
}

static const struct shape shapes[] = {
    {0, 1, 1, 1, 2, {0}},
    {0, 5, 4, 2, 8, {0}},
    {63, 1, 3, 1, 20, {0}},
    {64, 2, 4, 4, 64, {0}},
    {130, 3, 6, 2, 80, {0}},
    {190, 1, 2, 1, 256, {0}},
    {1, 70, 2, 2, 16, {0}},
    {130, 3, 2, 1, 20, {.window = 1}},
    {60, 70, 4, 2, 64, {.window = 66}},
    {10, 3, 2, 1, 8, {.window = 500}},
    {130, 3, 2, 1, 20, {.window = 100, .soft_cap = 1.5f}},
    {70, 2, 2, 2, 80, {.soft_cap = 3}},
    {70, 3, 2, 2, 192, {.value_dim = 128}},
    {130, 2, 4, 2, 12, {.window = 90, .value_dim = 33}},
    {70, 3, 4, 2, 24, {.has_sinks = true}},
    {10, 2, 2, 2, 8, {.window = 3, .soft_cap = 2, .has_sinks = true}},
};
enum { SHAPE_COUNT = sizeof shapes / sizeof shapes[0] };

static void matches_definition(void **state)
{
    for (int i = 0; i < SHAPE_COUNT; i++)
        for (enum dtype type = 0; type < DTYPE_COUNT; type++)
            check_shape(&shapes[i], type, 1);
}

/* Scores in the thousands: the largest alone counts, and nothing overflows. */
static void large_scores_stay_finite(void **state)
{
    const struct shape s = {150, 2, 2, 1, 32, {0}}, sinks = {150, 2, 4, 1, 32, {.has_sinks = true}};
    check_shape(&s, DTYPE_FP32, 40);
    check_shape(&s, DTYPE_BF16, 40);
    check_shape(&sinks, DTYPE_FP32, 40);
}

static void threads_and_rows_keep_bits(void **state)
{
    const struct shape s = {70, 9, 4, 2, 48, {.window = 74}};
    for (enum dtype type = 0; type < DTYPE_COUNT; type++) {
        struct tensors all, each;
        tensors_init(&all, &s, type, 1);
        tensors_init(&each, &s, type, 1);
        run(&all, 3);
        uint64_t elem = dtype_bytes(type), stride = all.args.qkv_stride * elem;
        for (uint64_t row = 0; row < s.rows; row++) {
            each.args.rows = 1;
            each.args.begin = s.begin + row;
            run(&each, 1);
            each.args.q = (const char *)each.args.q + stride;
            each.args.k = (const char *)each.args.k + stride;
            each.args.v = (const char *)each.args.v + stride;
            each.args.output = (char *)each.args.output + s.heads * s.head_dim * elem;
        }
        assert_memory_equal(all.output, each.output, all.output_elems * elem);
        assert_memory_equal(all.keys, each.keys, all.key_elems * elem);
        tensors_fini(&all);
        tensors_fini(&each);
    }
}

int main(int argc, char **argv)
{
    enum cpu_isa isa;
    int rc = isa_of_test(&isa);
    if (rc != 0)
        return rc;
    printf("seed %d\n", SEED);
    if (argc > 1 && strcmp(argv[1], "reference") == 0)
        ops = &kernels_reference;
    else if (argc > 1 && strcmp(argv[1], "cpu") != 0)
        return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_definition),
        cmocka_unit_test(large_scores_stay_finite),
        cmocka_unit_test(threads_and_rows_keep_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
