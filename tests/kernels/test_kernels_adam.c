/* Adam, working copies and gradient close of the CPU backend in the process's instruction set: to
 * the bit against the reference variant, and the arithmetic itself against textbook double
 * precision. */
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/tile.h"
#include "kernels/cpu/cpu_internal.h"
#include "tests/kernels/kernels_isa.h"
#include "tests/unit.h"

enum { SEED = 20261121, MAX_ELEMS = 100001, STREAM_COUNT = 5, SLACK_BYTES = 160 };

static enum cpu_isa tested_isa;

/* The five streams of one tile, `shift` elements off alignment, each in a block of `bytes`. */
struct tile {
    char *blocks[STREAM_COUNT];
    size_t bytes;
    float *master, *m, *v;
    update_args args;
};

static float random_value(uint64_t stream, uint64_t i, float scale)
{
    return scale * rng_normal(SEED, stream, i);
}

/* The same for the first `count` elements. */
static void random_values(uint64_t stream, uint64_t count, float scale, float *values)
{
    rng_normals(SEED, stream, 0, count, values);
    for (uint64_t i = 0; i < count; i++)
        values[i] *= scale;
}

/* Values that each path of the rounding and of IEEE arithmetic meets. */
static const uint32_t special_bits[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x33000000, 0x33000001,
    0x38800000, 0x387fffff, 0x477fe000, 0x477ff000, 0x7f7fffff, 0xff7fffff, 0x7f7f8000, 0x7f800000,
    0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xff812345, 0x7fffffff, 0x3f808000, 0x3f818000,
    0x3f807fff, 0xbf808000, 0x3f801000, 0x3f803000, 0x5f000000, 0x1f000000, 0x00400000, 0x00008000,
};
enum { SPECIAL_COUNT = sizeof special_bits / sizeof special_bits[0] };

static void tile_init(struct tile *self, uint64_t count, enum dtype grad_type,
                      enum dtype param_type, const update_scalars *scalars, size_t shift)
{
    self->bytes = 4 * count + SLACK_BYTES;
    for (int i = 0; i < STREAM_COUNT; i++) {
        self->blocks[i] = mem_alloc(self->bytes, 1, "test stream");
        assert_non_null(self->blocks[i]);
        memset(self->blocks[i], 0x5a, self->bytes);
    }
    self->master = (float *)self->blocks[0] + shift;
    self->m = (float *)self->blocks[1] + 2 * shift;
    self->v = (float *)self->blocks[2] + 3 * shift;
    self->args = (update_args){
        .count = count,
        .master = self->master,
        .m = self->m,
        .v = self->v,
        .grads = self->blocks[3] + shift * dtype_bytes(grad_type),
        .grad_type = grad_type,
        .params = self->blocks[4] + 3 * shift * dtype_bytes(param_type),
        .param_type = param_type,
        .scalars = scalars,
    };
}

static void tile_fini(struct tile *self)
{
    for (int i = 0; i < STREAM_COUNT; i++)
        mem_free(self->blocks[i]);
}

static void fill_random(struct tile *self, uint64_t step)
{
    static float grads[MAX_ELEMS];
    uint64_t count = self->args.count;
    random_values(10 + step, count, 0.01f, grads);
    dtype_convert(grads, DTYPE_FP32, (void *)(uintptr_t)self->args.grads, self->args.grad_type,
                  count);
    if (step > 0)
        return;
    random_values(1, count, 0.1f, self->master);
    random_values(2, count, 0.01f, self->m);
    random_values(3, count, 1e-4f, self->v);
    for (uint64_t i = 0; i < count; i++)
        self->v[i] = fabsf(self->v[i]);
}

/* Pairs of special values, so that each meets each in three of the streams. */
static void fill_special(struct tile *self)
{
    for (uint64_t i = 0; i < self->args.count; i++) {
        uint32_t a = special_bits[i % SPECIAL_COUNT];
        uint32_t b = special_bits[i / SPECIAL_COUNT % SPECIAL_COUNT];
        uint32_t c = special_bits[i / SPECIAL_COUNT / SPECIAL_COUNT % SPECIAL_COUNT];
        uint64_t turn = i / (SPECIAL_COUNT * SPECIAL_COUNT * SPECIAL_COUNT);
        float grad = fp32_from_bits(a);
        /* 16-bit gradients: special patterns of their own, NaNs included. */
        uint16_t half = (uint16_t)(self->args.grad_type == DTYPE_BF16 ? a >> 16 : a >> 13);
        if (self->args.grad_type == DTYPE_FP32)
            memcpy((char *)self->args.grads + 4 * i, &grad, 4);
        else
            memcpy((char *)self->args.grads + 2 * i, &half, 2);
        self->m[i] = fp32_from_bits(b);
        self->v[i] = fp32_from_bits(turn % 2 ? special_bits[(i * 7) % SPECIAL_COUNT] : c);
        self->master[i] = fp32_from_bits(turn % 2 ? c : special_bits[(i * 5) % SPECIAL_COUNT]);
    }
}

static void assert_tiles_equal(const struct tile *a, const struct tile *b, const char *what)
{
    static const char *const names[STREAM_COUNT] = {"master", "m", "v", "grads", "params"};
    for (int stream = 0; stream < STREAM_COUNT; stream++) {
        size_t i = 0;
        if (memcmp(a->blocks[stream], b->blocks[stream], a->bytes) == 0)
            continue;
        while (a->blocks[stream][i] == b->blocks[stream][i])
            i++;
        fail_msg("%s: count %llu, grads %s, params %s: %s differ at byte %zu", what,
                 (unsigned long long)a->args.count, dtype_name(a->args.grad_type),
                 dtype_name(a->args.param_type), names[stream], i);
    }
}

static update_scalars scalars_at(bool decoupled, float weight_decay, bool is_corrected, int step)
{
    update_scalars s = {.learning_rate = 3e-3f,
                        .beta1 = 0.9f,
                        .beta2 = 0.95f,
                        .epsilon = 1e-8f,
                        .weight_decay = weight_decay,
                        .decoupled = decoupled,
                        .grad_scale = 0.37f};
    s.bias_correction1 = is_corrected ? (float)(1.0 - pow((double)s.beta1, step)) : 1.0f;
    s.bias_correction2_sqrt = is_corrected ? (float)sqrt(1.0 - pow((double)s.beta2, step)) : 1.0f;
    return s;
}

/* Two contexts run the same steps on equal tiles; all five streams must stay equal, what lies
 * around them included. */
static void compare_runs(kernel_context *a, kernel_context *b, uint64_t count, enum dtype grad_type,
                         enum dtype param_type, int mode, bool is_special)
{
    static const struct {
        bool decoupled;
        float weight_decay;
        bool is_corrected;
    } modes[] = {{true, 0.1f, true}, {false, 0.1f, true}, {true, 0.0f, false}, {false, 0.0f, true}};
    struct tile left, right;
    size_t shift = (size_t)(count + (uint64_t)mode) % 3; /* 0: aligned; else unaligned */
    tile_init(&left, count, grad_type, param_type, NULL, shift);
    tile_init(&right, count, grad_type, param_type, NULL, shift);
    for (int step = 0; step < 3; step++) {
        update_scalars scalars = scalars_at(modes[mode].decoupled, modes[mode].weight_decay,
                                            modes[mode].is_corrected, step + 1);
        left.args.scalars = right.args.scalars = &scalars;
        if (!is_special)
            fill_random(&left, (uint64_t)step);
        else if (step == 0)
            fill_special(&left);
        memcpy(right.blocks[3], left.blocks[3], left.bytes);
        if (step == 0)
            for (int stream = 0; stream < STREAM_COUNT; stream++)
                memcpy(right.blocks[stream], left.blocks[stream], left.bytes);
        assert_int_equal(cpui_update(a, NULL, &left.args), 0);
        assert_int_equal(cpui_update(b, NULL, &right.args), 0);
        assert_tiles_equal(&left, &right, is_special ? "special values" : "random values");
    }
    tile_fini(&left);
    tile_fini(&right);
}

static void adam_equals_reference(void **state)
{
    static const uint64_t counts[] = {0, 1, 7, 31, 4096, 9999};
    kernel_context reference = adam_context_of(CPU_BASELINE, 1);
    kernel_context tested = adam_context_of(tested_isa, 1);
    for (int grad = 0; grad < DTYPE_COUNT; grad++)
        for (int param = 0; param < DTYPE_COUNT; param++)
            for (int mode = 0; mode < 4; mode++) {
                for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
                    compare_runs(&reference, &tested, counts[i], (enum dtype)grad,
                                 (enum dtype)param, mode, false);
                compare_runs(&reference, &tested, 2 * SPECIAL_COUNT * SPECIAL_COUNT * SPECIAL_COUNT,
                             (enum dtype)grad, (enum dtype)param, mode, true);
            }
}

static void adam_ignores_thread_count(void **state)
{
    kernel_context reference = adam_context_of(CPU_BASELINE, 1);
    for (int thread_count = 1; thread_count <= 3; thread_count++) {
        kernel_context tested = adam_context_of(tested_isa, thread_count);
        for (int pair = 0; pair < 3; pair++)
            compare_runs(&reference, &tested, MAX_ELEMS, (enum dtype)pair,
                         (enum dtype)((pair + 1) % 3), pair, false);
    }
}

/* A pointer into the block, `shift` elements past a boundary of 64 bytes. */
static void *boundary_in(char *block, size_t shift, enum dtype type)
{
    return block + (64 - (uintptr_t)block % 64) % 64 + shift * dtype_bytes(type);
}

/* Large calls store working copies on boundaries past the caches, others through them; and a
 * working copy may lie on the gradient or on the master. */
static void adam_stores_past_the_caches(void **state)
{
    enum { COUNT = 16 * SHARD_ELEMS_STEP + 77, APART = 0, ON_GRADS = 2, ON_MASTER = 3, PLACES = 4 };
    kernel_context reference = adam_context_of(CPU_BASELINE, 2);
    update_scalars scalars = scalars_at(true, 0.1f, true, 1);
    for (int grad = 0; grad < DTYPE_COUNT; grad++)
        for (int param = 0; param < DTYPE_COUNT; param++)
            for (size_t place = APART; place < PLACES; place++) {
                enum dtype grad_type = (enum dtype)grad, param_type = (enum dtype)param;
                if ((place == ON_GRADS && dtype_bytes(grad_type) != dtype_bytes(param_type)) ||
                    (place == ON_MASTER && param_type != DTYPE_FP32))
                    continue;
                struct tile apart, tested;
                tile_init(&apart, COUNT, grad_type, param_type, &scalars, 0);
                tile_init(&tested, COUNT, grad_type, param_type, &scalars, 0);
                fill_random(&apart, 0);
                fill_random(&tested, 0);
                tested.args.params = place == ON_GRADS ? tested.blocks[3]
                                     : place == ON_MASTER
                                         ? tested.blocks[0]
                                         : boundary_in(tested.blocks[4], place, param_type);
                kernel_context context = adam_context_of(tested_isa, 1 + (int)(place % 2));
                assert_int_equal(cpui_update(&reference, NULL, &apart.args), 0);
                assert_int_equal(cpui_update(&context, NULL, &tested.args), 0);
                for (int stream = 0; stream < 3; stream++)
                    assert_memory_equal(tested.blocks[stream], apart.blocks[stream], apart.bytes);
                assert_memory_equal(tested.args.params, apart.args.params,
                                    COUNT * dtype_bytes(param_type));
                uint8_t *after = (uint8_t *)tested.args.params + COUNT * dtype_bytes(param_type);
                assert_int_equal(*after, 0x5a);
                tile_fini(&apart);
                tile_fini(&tested);
            }
}

/* 200 steps beside the textbook in double. The state is fp32, so each step adds a relative error of
 * a few 2^-24 to m, v and the weight. */
static void adam_follows_textbook(void **state)
{
    enum { COUNT = 1000, STEPS = 200 };
    static double weight[COUNT], m[COUNT], v[COUNT];
    for (int decoupled = 0; decoupled < 2; decoupled++) {
        kernel_context tested = adam_context_of(tested_isa, 2);
        struct tile tile;
        tile_init(&tile, COUNT, DTYPE_FP32, DTYPE_FP32, NULL, 0);
        for (int i = 0; i < COUNT; i++) {
            tile.master[i] = random_value(1, (uint64_t)i, 0.1f);
            tile.m[i] = tile.v[i] = 0;
            weight[i] = (double)tile.master[i];
            m[i] = v[i] = 0;
        }
        for (int step = 1; step <= STEPS; step++) {
            update_scalars s = scalars_at(decoupled, 0.1f, true, step);
            tile.args.scalars = &s;
            double lr = (double)s.learning_rate, beta1 = (double)s.beta1, beta2 = (double)s.beta2;
            double decay = (double)s.weight_decay;
            for (int i = 0; i < COUNT; i++) {
                float raw = random_value(100 + (uint64_t)step, (uint64_t)i, 0.01f) +
                            (float)(i % 10) * 0.01f;
                ((float *)tile.blocks[3])[i] = raw;
                double grad = (double)raw * (double)s.grad_scale;
                if (decoupled)
                    weight[i] *= 1 - lr * decay;
                else
                    grad += decay * weight[i];
                m[i] = beta1 * m[i] + (1 - beta1) * grad;
                v[i] = beta2 * v[i] + (1 - beta2) * grad * grad;
                double m_hat = m[i] / (1 - pow(beta1, step));
                double v_hat = v[i] / (1 - pow(beta2, step));
                weight[i] -= lr * m_hat / (sqrt(v_hat) + (double)s.epsilon);
            }
            assert_int_equal(cpui_update(&tested, NULL, &tile.args), 0);
        }
        for (int i = 0; i < COUNT; i++) {
            double error = fabs((double)tile.master[i] - weight[i]);
            if (error > 2e-6)
                fail_msg("decoupled %d, element %d: %.9g, textbook %.9g", decoupled, i,
                         (double)tile.master[i], weight[i]);
            assert_true(fabs((double)tile.m[i] - m[i]) <= 1e-6 * fabs(m[i]) + 2e-8);
            assert_true(fabs((double)tile.v[i] - v[i]) <= 1e-5 * v[i] + 1e-12);
            assert_true(((float *)tile.blocks[4])[i] == tile.master[i]);
        }
        tile_fini(&tile);
    }
}

/* One element by hand: g = 1, from zero moments; the first AdamW step is lr * sign(g). */
static void adam_first_step(void **state)
{
    kernel_context tested = adam_context_of(tested_isa, 1);
    float master[40], m[40] = {0}, v[40] = {0}, params[40], grads[40];
    for (int i = 0; i < 40; i++) {
        master[i] = 1.0f;
        grads[i] = i % 2 ? 4.0f : -0.25f;
    }
    update_scalars s = {.learning_rate = 0.5f,
                        .beta1 = 0.5f,
                        .beta2 = 0.75f,
                        .epsilon = 0,
                        .weight_decay = 0.5f,
                        .decoupled = true,
                        .bias_correction1 = 0.5f,
                        .bias_correction2_sqrt = 0.5f,
                        .grad_scale = 1.0f};
    update_args args = {.count = 40,
                        .master = master,
                        .m = m,
                        .v = v,
                        .grads = grads,
                        .grad_type = DTYPE_FP32,
                        .params = params,
                        .param_type = DTYPE_FP32,
                        .scalars = &s};
    assert_int_equal(cpui_update(&tested, NULL, &args), 0);
    for (int i = 0; i < 40; i++) {
        assert_true(master[i] == (i % 2 ? 0.25f : 1.25f)); /* 1 * (1 - 0.25) -+ 0.5 */
        assert_true(m[i] == 0.5f * grads[i]);
        assert_true(v[i] == 0.25f * grads[i] * grads[i]);
    }
}

static void working_copies(void **state)
{
    static const uint64_t counts[] = {0, 1, 7, 31, 4096, 9999, 70000, MAX_ELEMS};
    float *master = mem_alloc(MAX_ELEMS + 1, sizeof *master, "master");
    char *copy_block = mem_alloc(MAX_ELEMS + 2 + 16, 4, "copy");
    char *expected = mem_alloc(MAX_ELEMS + 2, 4, "copy");
    assert_true(master && copy_block && expected);
    char *tested_copy = boundary_in(copy_block, 0, DTYPE_FP32);
    for (uint64_t i = 0; i <= MAX_ELEMS; i++)
        master[i] =
            fp32_from_bits(i < SPECIAL_COUNT ? special_bits[i] : (uint32_t)rng_u64(SEED, 5, i));
    for (int type = 0; type < DTYPE_COUNT; type++)
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
            for (int thread_count = 1; thread_count <= 3; thread_count++) {
                kernel_context tested = adam_context_of(tested_isa, thread_count);
                uint64_t count = counts[c], width = dtype_bytes((enum dtype)type);
                size_t shift = c % 2;
                memset(tested_copy, 0x33, 4 * (MAX_ELEMS + 2));
                memset(expected, 0x33, 4 * (MAX_ELEMS + 2));
                for (uint64_t i = 0; i < count; i++) {
                    float value = master[shift + i];
                    uint16_t half =
                        type == DTYPE_BF16 ? bf16_working_copy(value) : fp16_from_fp32(value);
                    memcpy(expected + (shift + i) * width,
                           type == DTYPE_FP32 ? (void *)&value : (void *)&half, width);
                }
                assert_int_equal(cpui_working_copy(&tested, NULL, master + shift,
                                                   tested_copy + shift * width, (enum dtype)type,
                                                   count),
                                 0);
                assert_memory_equal(tested_copy, expected, 4 * (MAX_ELEMS + 2));
            }
    mem_free(master);
    mem_free(copy_block);
    mem_free(expected);
}

/* The bf16 working copy and the low 16 bits of the master restore the master. */
static void low_bits_restore_master(void **state)
{
    enum { COUNT = 4099 };
    static float master[COUNT];
    static uint16_t params[COUNT];
    kernel_context tested = adam_context_of(tested_isa, 1);
    for (uint32_t round = 0; round < 64; round++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            uint32_t bits = (uint32_t)rng_u64(SEED, 6 + round, i);
            master[i] =
                fp32_from_bits((bits & 0x7fffffffu) > 0x7f800000u ? bits & 0xff7fffffu : bits);
        }
        assert_int_equal(cpui_working_copy(&tested, NULL, master, params, DTYPE_BF16, COUNT), 0);
        for (uint32_t i = 0; i < COUNT; i++) {
            int16_t low = (int16_t)(fp32_bits(master[i]) & 0xffffu);
            uint32_t restored = ((uint32_t)params[i] << 16) + (uint32_t)(int32_t)low;
            assert_int_equal(restored, fp32_bits(master[i]));
        }
    }
}

enum { CLOSE_BLOCKS = 21, CLOSE_ELEMS = CLOSE_BLOCKS * SHARD_ELEMS_STEP };

static void grad_close_equals_reference(void **state)
{
    float *accumulator = mem_alloc(CLOSE_ELEMS + 1, 4, "accumulator");
    char *expected = mem_alloc(CLOSE_ELEMS + 1, 4, "grads");
    char *grads = mem_alloc(CLOSE_ELEMS + 1 + 32, 4, "grads");
    assert_true(accumulator && expected && grads);
    double expected_sums[CLOSE_BLOCKS], sums[CLOSE_BLOCKS];
    accumulator += 1; /* not aligned */
    for (uint64_t i = 0; i < CLOSE_ELEMS; i++)
        accumulator[i] = random_value(7, i, i % 1000 ? 1e-3f : 30.0f);
    /* Blocks 3 and 4: not finite, in one element each; block 5: all the finite special values. */
    accumulator[3 * SHARD_ELEMS_STEP + 77] = -INFINITY;
    accumulator[4 * SHARD_ELEMS_STEP + 4095] = fp32_from_bits(0xffc12345);
    for (int i = 0; i < SPECIAL_COUNT; i++)
        if (isfinite(fp32_from_bits(special_bits[i])))
            accumulator[5 * SHARD_ELEMS_STEP + i] = fp32_from_bits(special_bits[i]);
    for (int type = 0; type < DTYPE_COUNT; type++) {
        grad_close_args args = {.count = CLOSE_ELEMS,
                                .accumulator = accumulator,
                                .grads = expected + 4,
                                .grad_type = (enum dtype)type,
                                .block_sums = expected_sums};
        kernel_context reference = adam_context_of(CPU_BASELINE, 1);
        assert_int_equal(cpui_grad_close(&reference, NULL, &args), 0);
        for (int block = 0; block < CLOSE_BLOCKS; block++) {
            double naive = 0;
            for (int i = 0; i < SHARD_ELEMS_STEP; i++) {
                float rounded = accumulator[block * SHARD_ELEMS_STEP + i];
                uint16_t half;
                dtype_convert(&rounded, DTYPE_FP32, &half, DTYPE_BF16, type == DTYPE_BF16);
                dtype_convert(&rounded, DTYPE_FP32, &half, DTYPE_FP16, type == DTYPE_FP16);
                dtype_convert(&half, (enum dtype)type, &rounded, DTYPE_FP32, type != DTYPE_FP32);
                naive += (double)rounded * (double)rounded;
            }
            assert_int_equal(isfinite(naive), isfinite(expected_sums[block]));
            if (isfinite(naive))
                assert_true(fabs(naive - expected_sums[block]) <= 1e-13 * naive);
        }
        assert_false(isfinite(expected_sums[3]) || isfinite(expected_sums[4]));
        for (int thread_count = 1; thread_count <= 3; thread_count++) {
            kernel_context tested = adam_context_of(tested_isa, thread_count);
            /* With two threads past the caches. */
            char *target = boundary_in(grads, 0, DTYPE_FP32) + (thread_count == 2 ? 0 : 4);
            args.grads = target;
            args.block_sums = sums;
            memset(sums, 0, sizeof sums);
            memset(grads, 0, 4 * (CLOSE_ELEMS + 1));
            assert_int_equal(cpui_grad_close(&tested, NULL, &args), 0);
            assert_memory_equal(sums, expected_sums, sizeof sums);
            assert_memory_equal(target, expected + 4, CLOSE_ELEMS * dtype_bytes((enum dtype)type));
        }
    }
    /* In place, and no elements at all. */
    kernel_context tested = adam_context_of(tested_isa, 2);
    grad_close_args args = {.count = CLOSE_ELEMS,
                            .accumulator = accumulator,
                            .grads = accumulator,
                            .grad_type = DTYPE_FP32,
                            .block_sums = sums};
    memcpy(expected, accumulator, 4 * CLOSE_ELEMS);
    kernel_context reference = adam_context_of(CPU_BASELINE, 1);
    grad_close_args apart = args;
    apart.grads = grads;
    apart.block_sums = expected_sums;
    assert_int_equal(cpui_grad_close(&reference, NULL, &apart), 0);
    assert_int_equal(cpui_grad_close(&tested, NULL, &args), 0);
    assert_memory_equal(expected, accumulator, 4 * CLOSE_ELEMS);
    assert_memory_equal(sums, expected_sums, sizeof sums);
    args.count = 0;
    assert_int_equal(cpui_grad_close(&tested, NULL, &args), 0);
    mem_free(accumulator - 1);
    mem_free(expected);
    mem_free(grads);
}

static double tree_by_definition(const double *sums, uint64_t count)
{
    if (count == 1)
        return sums[0];
    uint64_t left = 1;
    while (left * 2 < count)
        left *= 2;
    return tree_by_definition(sums, left) + tree_by_definition(sums + left, count - left);
}

static void norm_reduce_is_the_tree(void **state)
{
    static const uint64_t counts[] = {1, 2, 3, 5, 7, 64, 100, 4095, 4096, 4097, 40000, 300001};
    double *sums = mem_alloc(300001, sizeof *sums, "sums");
    assert_non_null(sums);
    for (uint64_t i = 0; i < 300001; i++)
        sums[i] = ldexp(rng_uniform(SEED, 8, i), (int)(i % 40));
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        double expected = tree_by_definition(sums, counts[c]), naive = 0, total;
        for (uint64_t i = 0; i < counts[c]; i++)
            naive += sums[i];
        for (int thread_count = 1; thread_count <= 3; thread_count++) {
            kernel_context tested = adam_context_of(tested_isa, thread_count);
            assert_int_equal(cpui_norm_reduce(&tested, NULL, sums, counts[c], &total), 0);
            assert_memory_equal(&total, &expected, sizeof total);
            assert_true(fabs(total - naive) <= 1e-10 * naive);
        }
    }
    kernel_context tested = adam_context_of(tested_isa, 2);
    double total = 5;
    assert_int_equal(cpui_norm_reduce(&tested, NULL, sums, 0, &total), 0);
    assert_true(total == 0);
    sums[1234] = INFINITY;
    assert_int_equal(cpui_norm_reduce(&tested, NULL, sums, 40000, &total), 0);
    assert_true(isinf(total));
    sums[39999] = NAN;
    assert_int_equal(cpui_norm_reduce(&tested, NULL, sums, 40000, &total), 0);
    assert_true(isnan(total));
    mem_free(sums);
}

static void selection(void **state)
{
    static const char *const names[CPU_ISA_COUNT] = {
        [CPU_BASELINE] = "reference", [CPU_NEON] = "neon",          [CPU_AVX2] = "avx2",
        [CPU_AVX512] = "avx512",      [CPU_AVX512_BF16] = "avx512", [CPU_AMX] = "avx512",
    };
    kernel_context context = adam_context_of(tested_isa, 1);
    assert_string_equal(cpui_adam_name(&context), names[tested_isa]);
}

int main(void)
{
    int rc = isa_of_test(&tested_isa);
    if (rc != 0)
        return rc;
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adam_equals_reference),
        cmocka_unit_test(adam_ignores_thread_count),
        cmocka_unit_test(adam_stores_past_the_caches),
        cmocka_unit_test(adam_follows_textbook),
        cmocka_unit_test(adam_first_step),
        cmocka_unit_test(working_copies),
        cmocka_unit_test(low_bits_restore_master),
        cmocka_unit_test(grad_close_equals_reference),
        cmocka_unit_test(norm_reduce_is_the_tree),
        cmocka_unit_test(selection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
