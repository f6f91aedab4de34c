/* Adam, Lion, Adagrad, working copies, gradient close and norm of the CUDA backend, one of them per
 * run (argv[1]): every byte against every variant of the CPU backend that this machine runs, over
 * random and special values, random bits, all types, tails and alignments, and in place. Copies,
 * closing and norm are in gpu_update_sums.c, Adam on packed state in gpu_update_state.c. */
#include <cuda_runtime_api.h>
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tests/cuda/gpu_update.h"
#include "tests/unit.h"

enum { RULE_COUNT = 3 };
static const char *const rule_names[RULE_COUNT] = {"adam", "lion", "adagrad"};
static enum update_rule tested; /* by argv[1] */

enum { STREAM_COUNT = 5, SLACK_BYTES = 64, STEPS = 2 };
enum stream { MASTER, M, V, GRADS, PARAMS };
static const char *const stream_names[STREAM_COUNT] = {"master", "m", "v", "grads", "params"};

enum fill { FILL_RANDOM, FILL_SPECIAL, FILL_BITS, FILL_HALVES };
static const char *const fill_names[] = {"random", "special", "random bits", "every half"};

/* One tile: five streams, each in its own block, `shift` elements and more off alignment. */
struct tile_shape {
    uint64_t count;
    enum dtype grad_type, param_type;
    uint64_t shift;
    bool is_shared; /* params lie on grads */
};

/* AdamW; Adam with L2; no decay in either; then scalars at the ends of what fp32 holds. */
enum { SETTING_COUNT = 7 };
static update_scalars scalars_at(int idx)
{
    update_scalars s = {.learning_rate = 3e-3f,
                        .beta1 = 0.9f,
                        .beta2 = 0.95f,
                        .epsilon = 1e-8f,
                        .weight_decay = idx < 2 ? 0.1f : 0.0f,
                        .decoupled = idx % 2 == 0,
                        .bias_correction1 = idx == 2 ? 1.0f : 0.19f,
                        .bias_correction2_sqrt = idx == 2 ? 1.0f : 0.312249899f,
                        .grad_scale = 0.37f};
    if (idx == 4) { /* subnormal rates */
        s.learning_rate = 0x1p-140f;
        s.epsilon = 0x1p-149f;
        s.weight_decay = 0x1p120f;
        s.grad_scale = 0x1.8p-130f;
        s.beta2 = 0x1p-126f;
    } else if (idx == 5) { /* infinite ones */
        s.weight_decay = -INFINITY;
        s.bias_correction1 = 0.0f;
        s.bias_correction2_sqrt = -0.0f;
        s.grad_scale = 0x1p100f;
        s.beta1 = 1.0f;
    } else if (idx == 6) { /* no numbers */
        s.epsilon = -0.0f;
        s.weight_decay = NAN;
        s.grad_scale = -1.0f;
        s.beta1 = 0.0f;
    }
    if (idx == 5 && tested == UPDATE_ADAGRAD)
        s.learning_rate = INFINITY;
    return s;
}

static uint64_t block_bytes(const struct tile_shape *shape)
{
    return 4 * shape->count + SLACK_BYTES;
}

/* Where a stream starts in its block; distinct, and below the slack for shifts of up to 3. */
static uint64_t stream_offset(const struct tile_shape *shape, enum stream stream)
{
    static const uint64_t shifts[STREAM_COUNT] = {1, 2, 3, 1, 3};
    enum dtype type = stream == GRADS    ? shape->grad_type
                      : stream == PARAMS ? shape->param_type
                                         : DTYPE_FP32;
    return shifts[stream] * shape->shift * dtype_bytes(type);
}

static int update(const kernel_ops *ops, kernel_context *context, void *stream,
                  const struct tile_shape *shape, char *const blocks[STREAM_COUNT],
                  const update_scalars *scalars)
{
    float *master = (float *)(blocks[MASTER] + stream_offset(shape, MASTER));
    float *m = (float *)(blocks[M] + stream_offset(shape, M));
    float *v = (float *)(blocks[V] + stream_offset(shape, V));
    void *grads = blocks[GRADS] + stream_offset(shape, GRADS);
    void *params = shape->is_shared ? grads : blocks[PARAMS] + stream_offset(shape, PARAMS);
    const update_args args = {.rule = tested,
                              .count = shape->count,
                              .master = master,
                              .m = tested == UPDATE_ADAGRAD ? NULL : m,
                              .v = tested == UPDATE_LION ? NULL : v,
                              .grads = grads,
                              .grad_type = shape->grad_type,
                              .params = params,
                              .param_type = shape->param_type,
                              .scalars = scalars};
    return ops->update(context, stream, &args);
}

const kernel_ops gpu_update_ops = {.update = cudai_update};

/* --- values --- */

const uint32_t special_bits[SPECIAL_COUNT] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x80400000, 0x00800000, 0x80800001,
    0x33000000, 0x33000001, 0x38800000, 0xb87fffff, 0x477fe000, 0x477fefff, 0x477ff000, 0xc77ff000,
    0x7f7fffff, 0xff7fffff, 0x7f7f8000, 0x7f7f7fff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000,
    0x7f800001, 0xff812345, 0x7fffffff, 0xffbfe000, 0x3f808000, 0xbf818000, 0x3f807fff, 0x3f800000,
    0xbf800000, 0x3f801000, 0x3f803000, 0x5f000000, 0x1f000000, 0x9f000001, 0x00400000, 0x00008000,
};

static void put_grad(char *target, enum dtype type, uint64_t i, uint32_t bits)
{
    uint16_t half = (uint16_t)(type == DTYPE_BF16 ? bits >> 16 : bits >> 13);
    if (type == DTYPE_FP32)
        memcpy(target + 4 * i, &bits, 4);
    else
        memcpy(target + 2 * i, &half, 2);
}

static void fill_values(const struct tile_shape *shape, uint64_t seed, char *grads, float *master,
                        float *m, float *v)
{
    for (uint64_t i = 0; i < shape->count; i++) {
        float grad = 0.01f * rng_normal(seed, 1, i);
        dtype_convert(&grad, DTYPE_FP32, grads + i * dtype_bytes(shape->grad_type),
                      shape->grad_type, 1);
        master[i] = 0.1f * rng_normal(seed, 2, i);
        m[i] = 0.01f * rng_normal(seed, 3, i);
        v[i] = fabsf(1e-4f * rng_normal(seed, 4, i));
    }
}

/* Patterns instead of numbers: special ones in all pairs with another stride for each stream,
 * random bits, or the gradient's index among numbers. */
static void fill_patterns(const struct tile_shape *shape, uint64_t seed, enum fill fill,
                          char *grads, float *master, float *m, float *v)
{
    float *const streams[] = {master, m, v};
    for (uint64_t i = 0; i < shape->count; i++) {
        if (fill == FILL_HALVES) {
            uint16_t half = (uint16_t)i;
            memcpy(grads + 2 * i, &half, 2);
            continue;
        }
        uint64_t turn = i / SPECIAL_COUNT;
        bool is_special = fill == FILL_SPECIAL;
        put_grad(grads, shape->grad_type, i,
                 is_special ? special_bits[i % SPECIAL_COUNT] : (uint32_t)rng_u64(seed, 5, i));
        for (uint64_t s = 0; s < 3; s++) {
            uint32_t bits = (uint32_t)rng_u64(seed, 6 + s, i);
            if (is_special) /* master and v are pairs of each other and of the gradient and m */
                bits = special_bits[(s == 1   ? turn
                                     : s == 0 ? turn / SPECIAL_COUNT * 7 + i
                                              : turn / SPECIAL_COUNT * 11 + 3 * turn) %
                                    SPECIAL_COUNT];
            memcpy(&streams[s][i], &bits, 4);
        }
    }
}

static void fill_blocks(const struct tile_shape *shape, uint64_t seed, enum fill fill,
                        char *const blocks[STREAM_COUNT])
{
    for (int i = 0; i < STREAM_COUNT; i++)
        memset(blocks[i], 0x5a, block_bytes(shape));
    char *grads = blocks[GRADS] + stream_offset(shape, GRADS);
    float *master = (float *)(blocks[MASTER] + stream_offset(shape, MASTER));
    float *m = (float *)(blocks[M] + stream_offset(shape, M));
    float *v = (float *)(blocks[V] + stream_offset(shape, V));
    if (fill == FILL_RANDOM || fill == FILL_HALVES)
        fill_values(shape, seed, grads, master, m, v);
    if (fill != FILL_RANDOM)
        fill_patterns(shape, seed, fill, grads, master, m, v);
}

/* --- comparing --- */

/* The same steps on the GPU and by each variant of the CPU from the same bytes: all blocks must
 * stay equal, what lies around the streams included. */
static void compare(gpu_fixture *gpu, const cpu_variants *variants, const struct tile_shape *shape,
                    const update_scalars *scalars, enum fill fill)
{
    char *start[STREAM_COUNT], *want[STREAM_COUNT], *got[STREAM_COUNT], *device[STREAM_COUNT];
    uint64_t bytes = block_bytes(shape);
    for (int i = 0; i < STREAM_COUNT; i++) {
        start[i] = mem_alloc(bytes, 1, "test stream");
        want[i] = mem_alloc(bytes, 1, "test stream");
        got[i] = mem_alloc(bytes, 1, "test stream");
        assert_true(start[i] && want[i] && got[i]);
    }
    fill_blocks(shape, gpu->seed + shape->count, fill, start);
    for (int i = 0; i < STREAM_COUNT; i++)
        device[i] = gpu_alloc_copy(gpu, start[i], bytes);
    for (int step = 0; step < STEPS; step++)
        assert_ok(update(&gpu_update_ops, &gpu->context, gpu->stream, shape, device, scalars));
    for (int i = 0; i < STREAM_COUNT; i++)
        gpu_download(gpu, got[i], device[i], bytes);
    for (int variant = 0; variant < variants->count; variant++) {
        for (int i = 0; i < STREAM_COUNT; i++)
            memcpy(want[i], start[i], bytes);
        for (int step = 0; step < STEPS; step++)
            assert_int_equal(
                update(&cpu_update_ops, variants->contexts[variant], NULL, shape, want, scalars),
                0);
        for (int i = 0; i < STREAM_COUNT; i++) {
            char name[160];
            snprintf(name, sizeof name,
                     "%s of %s, %s values, count %llu, grads %s, params %s%s, shift %d, against %s",
                     stream_names[i], rule_names[tested], fill_names[fill],
                     (unsigned long long)shape->count, dtype_name(shape->grad_type),
                     dtype_name(shape->param_type), shape->is_shared ? " in their place" : "",
                     (int)shape->shift, variants->names[variant]);
            gpu_expect_same(name, got[i], want[i], bytes / 4, 4);
        }
    }
    for (int i = 0; i < STREAM_COUNT; i++) {
        gpu_free(gpu, device[i]);
        mem_free(start[i]);
        mem_free(want[i]);
        mem_free(got[i]);
    }
}

static void updates_have_the_cpu_bits(void **state)
{
    static const uint64_t counts[] = {0, 1, 3, 4, 7, 31, 1023, 2048, 4096, 9999};
    cpu_variants variants;
    cpu_variants_open(&variants);
    gpu_fixture *gpu = gpu_begin();
    for (int types = 0; types < DTYPE_COUNT * DTYPE_COUNT; types++)
        for (uint64_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            struct tile_shape shape = {.count = counts[i],
                                       .grad_type = (enum dtype)(types / DTYPE_COUNT),
                                       .param_type = (enum dtype)(types % DTYPE_COUNT)};
            /* Every count both aligned and not, every setting with every pair of types. */
            update_scalars scalars = scalars_at((int)(i + (uint64_t)types) % SETTING_COUNT);
            compare(gpu, &variants, &shape, &scalars, FILL_RANDOM);
            shape.shift = 1 + i % 3;
            scalars = scalars_at((int)(i + (uint64_t)types + 3) % SETTING_COUNT);
            compare(gpu, &variants, &shape, &scalars, FILL_BITS);
        }
    gpu_end(gpu);
    cpu_variants_close(&variants);
}

/* More elements than the grid has threads, so that each thread goes round more than once. */
static void a_thread_goes_round(void **state)
{
    cpu_variants variants;
    cpu_variants_open(&variants);
    gpu_fixture *gpu = gpu_begin();
    gpu->context.sm_count = 1; /* at most 32 blocks of 256 threads of two packs of four */
    struct tile_shape shape = {.count = 32 * 256 * 2 * 4 * 2 + 4 * 777 + 3,
                               .grad_type = DTYPE_BF16,
                               .param_type = DTYPE_BF16};
    update_scalars scalars = scalars_at(0);
    compare(gpu, &variants, &shape, &scalars, FILL_RANDOM);
    shape.shift = 1;
    shape.count = 32 * 256 * 2 * 2 + 7;
    compare(gpu, &variants, &shape, &scalars, FILL_RANDOM);
    gpu_end(gpu);
    cpu_variants_close(&variants);
}

static void special_values_have_the_cpu_bits(void **state)
{
    cpu_variants variants;
    cpu_variants_open(&variants);
    gpu_fixture *gpu = gpu_begin();
    for (int types = 0; types < DTYPE_COUNT * DTYPE_COUNT; types++)
        for (int idx = 0; idx < SETTING_COUNT; idx++) {
            /* All pairs, and on a GPU all triples. */
            uint64_t pairs = SPECIAL_COUNT * SPECIAL_COUNT;
            struct tile_shape shape = {.count =
                                           gpu->is_simulated ? 4 * pairs : SPECIAL_COUNT * pairs,
                                       .grad_type = (enum dtype)(types / DTYPE_COUNT),
                                       .param_type = (enum dtype)(types % DTYPE_COUNT)};
            update_scalars scalars = scalars_at(idx);
            compare(gpu, &variants, &shape, &scalars, FILL_SPECIAL);
        }
    gpu_end(gpu);
    cpu_variants_close(&variants);
}

/* Each 16-bit pattern as a gradient: the widening of every number, infinity and NaN. */
static void every_half_as_a_gradient(void **state)
{
    cpu_variants variants;
    cpu_variants_open(&variants);
    gpu_fixture *gpu = gpu_begin();
    for (int is_fp16 = 0; is_fp16 < 2; is_fp16++) {
        struct tile_shape shape = {.count = 65536,
                                   .grad_type = is_fp16 ? DTYPE_FP16 : DTYPE_BF16,
                                   .param_type = is_fp16 ? DTYPE_BF16 : DTYPE_FP16};
        update_scalars scalars = scalars_at(is_fp16);
        compare(gpu, &variants, &shape, &scalars, FILL_HALVES);
    }
    gpu_end(gpu);
    cpu_variants_close(&variants);
}

/* The working copy takes the gradient's place where the elements have one width. */
static void params_may_lie_on_grads(void **state)
{
    cpu_variants variants;
    cpu_variants_open(&variants);
    gpu_fixture *gpu = gpu_begin();
    for (int types = 0; types < DTYPE_COUNT * DTYPE_COUNT; types++) {
        struct tile_shape shape = {.count = 5003,
                                   .grad_type = (enum dtype)(types / DTYPE_COUNT),
                                   .param_type = (enum dtype)(types % DTYPE_COUNT),
                                   .is_shared = true};
        if (dtype_bytes(shape.grad_type) != dtype_bytes(shape.param_type))
            continue;
        update_scalars scalars = scalars_at(types % 2);
        for (shape.shift = 0; shape.shift < 2; shape.shift++)
            compare(gpu, &variants, &shape, &scalars, FILL_RANDOM);
    }
    gpu_end(gpu);
    cpu_variants_close(&variants);
}

/* More than 2^31 elements, on a GPU that holds them. The values repeat with a period that no power
 * of two is a multiple of, so an index that wraps finds other values or none. */
static void many_elements(void **state)
{
    enum { PERIOD = 3 << 20 };
    gpu_fixture *gpu = gpu_begin();
    struct tile_shape shape = {.count = ((uint64_t)1 << 31) + PERIOD + 5,
                               .grad_type = DTYPE_BF16,
                               .param_type = DTYPE_BF16};
    if (!has_room_for_large(gpu, 16 * shape.count)) {
        gpu_end(gpu);
        return;
    }
    cpu_variants variants;
    cpu_variants_open(&variants);
    struct tile_shape chunk = shape;
    chunk.count = PERIOD;
    update_scalars scalars = scalars_at(0);
    char *host[STREAM_COUNT], *device[STREAM_COUNT];
    uint64_t widths[STREAM_COUNT] = {4, 4, 4, 2, 2};
    for (int i = 0; i < STREAM_COUNT; i++) {
        host[i] = mem_alloc(block_bytes(&chunk), 1, "test stream");
        assert_non_null(host[i]);
        device[i] = gpu_alloc(gpu, widths[i] * shape.count);
    }
    fill_blocks(&chunk, gpu->seed, FILL_RANDOM, host);
    for (int i = 0; i < STREAM_COUNT; i++)
        fill_repeated(gpu, device[i], widths[i] * shape.count, host[i], widths[i] * PERIOD);
    assert_int_equal(update(&gpu_update_ops, &gpu->context, gpu->stream, &shape, device, &scalars),
                     0);
    int best = variants.count - 1;
    assert_int_equal(update(&cpu_update_ops, variants.contexts[best], NULL, &chunk, host, &scalars),
                     0);
    for (int i = 0; i < STREAM_COUNT; i++) {
        expect_repeated(gpu, stream_names[i], device[i], widths[i] * shape.count, host[i],
                        widths[i] * PERIOD);
        mem_free(host[i]);
    }
    gpu_end(gpu);
    cpu_variants_close(&variants);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "adam";
    static const struct CMUnitTest updates[] = {
        cmocka_unit_test(updates_have_the_cpu_bits),
        cmocka_unit_test(a_thread_goes_round),
        cmocka_unit_test(special_values_have_the_cpu_bits),
        cmocka_unit_test(every_half_as_a_gradient),
        cmocka_unit_test(params_may_lie_on_grads),
        cmocka_unit_test(many_elements),
    };
    static const struct CMUnitTest copies[] = {
        cmocka_unit_test(copies_have_the_cpu_bits),
        cmocka_unit_test(copies_of_every_half),
        cmocka_unit_test(copy_of_many_elements),
    };
    static const struct CMUnitTest closing[] = {
        cmocka_unit_test(closing_has_the_cpu_bits),
        cmocka_unit_test(closing_of_every_half),
        cmocka_unit_test(closing_many_elements),
    };
    static const struct CMUnitTest norms[] = {
        cmocka_unit_test(norm_is_the_cpu_tree),
        cmocka_unit_test(norm_of_odd_values),
        cmocka_unit_test(norm_calls_follow_one_another),
        cmocka_unit_test(norm_of_many_sums),
    };
    static const struct CMUnitTest packed[] = {
        cmocka_unit_test(packed_updates_have_the_cpu_bits),
        cmocka_unit_test(packed_special_values_have_the_cpu_bits),
        cmocka_unit_test(packed_warps_go_round),
    };
    if (strcmp(name, "packed") == 0)
        return cmocka_run_group_tests(packed, NULL, NULL);
    if (strcmp(name, "copy") == 0)
        return cmocka_run_group_tests(copies, NULL, NULL);
    if (strcmp(name, "close") == 0)
        return cmocka_run_group_tests(closing, NULL, NULL);
    if (strcmp(name, "norm") == 0)
        return cmocka_run_group_tests(norms, NULL, NULL);
    for (int i = 0; i < RULE_COUNT; i++)
        if (strcmp(name, rule_names[i]) == 0) {
            tested = (enum update_rule)i;
            return cmocka_run_group_tests(updates, NULL, NULL);
        }
    fprintf(stderr, "no test is named %s\n", name);
    return 1;
}
