/* Lion and Adagrad of the CPU backend, in the instruction set of the process: to the bit against
 * the reference variant, over random and special values, tails, alignments and thread counts; the
 * arithmetic itself against textbook double precision over 50 steps and against the reference
 * backend; and by hand. A canary shows that the comparison sees a single bit. */
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/cpu/cpu_internal.h"
#include "tests/kernels/kernels_isa.h"
#include "tests/unit.h"

enum { SEED = 20261122, MAX_ELEMS = 70001, STREAM_COUNT = 4, SLACK_BYTES = 160 };

static enum cpu_isa tested_isa;

enum optimizer { LION, ADAGRAD, OPTIMIZER_COUNT };
static const char *const optimizer_names[OPTIMIZER_COUNT] = {"lion", "adagrad"};

/* The four streams of one tile, each in its own block of `bytes`, some elements off alignment. */
struct tile {
    enum optimizer optimizer;
    uint64_t count, bytes;
    enum dtype grad_type, param_type;
    char *blocks[STREAM_COUNT];
    float *master, *state; /* m or v */
    char *grads, *params;
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
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x80400000, 0x00800000, 0x33000001,
    0x38800000, 0xb87fffff, 0x477fe000, 0x477ff000, 0x7f7fffff, 0xff7fffff, 0x7f7f8000, 0x7f800000,
    0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xff812345, 0x7fffffff, 0x3f808000, 0xbf818000,
    0x3f807fff, 0x3f800000, 0xbf800000, 0x3f803000, 0x5f000000, 0x1f000000, 0x9f000000, 0x00008000,
};
enum { SPECIAL_COUNT = sizeof special_bits / sizeof special_bits[0] };

static void tile_init(struct tile *self, enum optimizer optimizer, uint64_t count,
                      enum dtype grad_type, enum dtype param_type, size_t shift)
{
    *self = (struct tile){.optimizer = optimizer,
                          .count = count,
                          .bytes = 4 * count + SLACK_BYTES,
                          .grad_type = grad_type,
                          .param_type = param_type};
    for (int i = 0; i < STREAM_COUNT; i++) {
        self->blocks[i] = mem_alloc(self->bytes, 1, "test stream");
        assert_non_null(self->blocks[i]);
        memset(self->blocks[i], 0x5a, self->bytes);
    }
    self->master = (float *)self->blocks[0] + shift;
    self->state = (float *)self->blocks[1] + 2 * shift;
    self->grads = self->blocks[2] + shift * dtype_bytes(grad_type);
    self->params = self->blocks[3] + 3 * shift * dtype_bytes(param_type);
}

static void tile_fini(struct tile *self)
{
    for (int i = 0; i < STREAM_COUNT; i++)
        mem_free(self->blocks[i]);
}

/* Two settings of each optimizer. */
static const update_scalars settings[OPTIMIZER_COUNT][2] = {
    {{.learning_rate = 1e-3f,
      .beta1 = 0.9f,
      .beta2 = 0.99f,
      .weight_decay = 0.1f,
      .grad_scale = 0.37f},
     {.learning_rate = 3e-4f, .beta1 = 0.95f, .beta2 = 0.98f, .grad_scale = 1.0f}},
    {{.learning_rate = 1e-2f, .epsilon = 1e-10f, .weight_decay = 0.1f, .grad_scale = 0.37f},
     {.learning_rate = 1e-1f, .epsilon = 1e-8f, .grad_scale = 1.0f}},
};

static void tile_update(const struct tile *self, const kernel_ops *ops, kernel_context *context,
                        int setting)
{
    bool is_lion = self->optimizer == LION;
    const update_args args = {.rule = is_lion ? UPDATE_LION : UPDATE_ADAGRAD,
                              .count = self->count,
                              .master = self->master,
                              .m = is_lion ? self->state : NULL,
                              .v = is_lion ? NULL : self->state,
                              .grads = self->grads,
                              .grad_type = self->grad_type,
                              .params = self->params,
                              .param_type = self->param_type,
                              .scalars = &settings[self->optimizer][setting]};
    assert_int_equal(ops->update(context, NULL, &args), 0);
}

static const kernel_ops cpu_ops = {.update = cpui_update};

static void fill_random(struct tile *self, uint64_t step)
{
    static float grads[MAX_ELEMS];
    random_values(10 + step, self->count, 0.01f, grads);
    dtype_convert(grads, DTYPE_FP32, self->grads, self->grad_type, self->count);
    if (step > 0)
        return;
    random_values(1, self->count, 0.1f, self->master);
    random_values(2, self->count, 0.01f, self->state);
    for (uint64_t i = 0; self->optimizer == ADAGRAD && i < self->count; i++)
        self->state[i] *= self->state[i];
}

/* Each special value meets each in all three streams. 16-bit gradients have patterns of their own,
 * NaNs included. */
static void fill_special(struct tile *self)
{
    for (uint64_t i = 0; i < self->count; i++) {
        uint32_t grad = special_bits[i % SPECIAL_COUNT];
        uint32_t state = special_bits[i / SPECIAL_COUNT % SPECIAL_COUNT];
        uint32_t master = special_bits[i / SPECIAL_COUNT / SPECIAL_COUNT % SPECIAL_COUNT];
        uint16_t half = (uint16_t)(self->grad_type == DTYPE_BF16 ? grad >> 16 : grad >> 13);
        if (self->grad_type == DTYPE_FP32)
            memcpy(self->grads + 4 * i, &grad, 4);
        else
            memcpy(self->grads + 2 * i, &half, 2);
        memcpy(&self->state[i], &state, 4);
        memcpy(&self->master[i], &master, 4);
    }
}

/* The first stream that differs, and where; or -1. */
static int first_difference(const struct tile *a, const struct tile *b, int *byte)
{
    for (int stream = 0; stream < STREAM_COUNT; stream++) {
        if (memcmp(a->blocks[stream], b->blocks[stream], a->bytes) == 0)
            continue;
        for (*byte = 0; a->blocks[stream][*byte] == b->blocks[stream][*byte];)
            ++*byte;
        return stream;
    }
    return -1;
}

/* Two contexts run the same three steps on equal tiles; all streams must stay equal, what lies
 * around them included. */
static void compare_runs(kernel_context *a, kernel_context *b, enum optimizer optimizer,
                         uint64_t count, enum dtype grad_type, enum dtype param_type, int setting,
                         bool is_special)
{
    struct tile left, right;
    size_t shift = (size_t)(count + (uint64_t)grad_type) % 3; /* 0: aligned; else unaligned */
    tile_init(&left, optimizer, count, grad_type, param_type, shift);
    tile_init(&right, optimizer, count, grad_type, param_type, shift);
    for (int step = 0; step < 3; step++) {
        if (!is_special)
            fill_random(&left, (uint64_t)step);
        else if (step == 0)
            fill_special(&left);
        memcpy(right.blocks[2], left.blocks[2], left.bytes);
        for (int i = 0; step == 0 && i < STREAM_COUNT; i++)
            memcpy(right.blocks[i], left.blocks[i], left.bytes);
        tile_update(&left, &cpu_ops, a, setting);
        tile_update(&right, &cpu_ops, b, setting);
        int byte, stream = first_difference(&left, &right, &byte);
        if (stream >= 0)
            fail_msg(
                "%s, %s values, step %d, count %llu, gradients %s, params %s: stream %d differs "
                "at byte %d",
                optimizer_names[optimizer], is_special ? "special" : "random", step,
                (unsigned long long)count, dtype_name(grad_type), dtype_name(param_type), stream,
                byte);
    }
    tile_fini(&left);
    tile_fini(&right);
}

static void updates_equal_reference(void **state)
{
    static const uint64_t counts[] = {0, 1, 7, 15, 31, 4096, 9999};
    kernel_context reference = adam_context_of(CPU_BASELINE, 1);
    kernel_context tested = adam_context_of(tested_isa, 1);
    for (int optimizer = 0; optimizer < OPTIMIZER_COUNT; optimizer++)
        for (int types = 0; types < DTYPE_COUNT * DTYPE_COUNT; types++)
            for (int setting = 0; setting < 2; setting++) {
                enum dtype grad = (enum dtype)(types / DTYPE_COUNT);
                enum dtype param = (enum dtype)(types % DTYPE_COUNT);
                for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
                    compare_runs(&reference, &tested, (enum optimizer)optimizer, counts[i], grad,
                                 param, setting, false);
                compare_runs(&reference, &tested, (enum optimizer)optimizer,
                             SPECIAL_COUNT * SPECIAL_COUNT * SPECIAL_COUNT, grad, param, setting,
                             true);
            }
}

static void updates_ignore_thread_count(void **state)
{
    kernel_context reference = adam_context_of(CPU_BASELINE, 1);
    for (int thread_count = 1; thread_count <= 3; thread_count++) {
        kernel_context tested = adam_context_of(tested_isa, thread_count);
        for (int optimizer = 0; optimizer < OPTIMIZER_COUNT; optimizer++)
            for (int pair = 0; pair < 3; pair++)
                compare_runs(&reference, &tested, (enum optimizer)optimizer, MAX_ELEMS,
                             (enum dtype)pair, (enum dtype)((pair + 1) % 3), pair % 2, false);
    }
}

/* One bit in the last element's working copy is seen. */
static void canary(void **state)
{
    struct tile left, right;
    tile_init(&left, LION, 33, DTYPE_BF16, DTYPE_BF16, 1);
    tile_init(&right, LION, 33, DTYPE_BF16, DTYPE_BF16, 1);
    fill_random(&left, 0);
    fill_random(&right, 0);
    kernel_context tested = adam_context_of(tested_isa, 1);
    tile_update(&left, &cpu_ops, &tested, 0);
    tile_update(&right, &cpu_ops, &tested, 0);
    int byte;
    assert_int_equal(first_difference(&left, &right, &byte), -1);
    right.params[2 * 32] = (char)(right.params[2 * 32] ^ 1);
    assert_int_equal(first_difference(&left, &right, &byte), 3);
    tile_fini(&left);
    tile_fini(&right);
}

enum { TEXTBOOK_ELEMS = 1000, TEXTBOOK_STEPS = 50 };

/* 50 steps beside the textbook in double. The state is fp32, so each step adds a relative error of
 * a few 2^-24. Where Lion's direction is within that error of 0, its sign may differ: the weight's
 * tolerance grows by two steps there. */
static void lion_follows_textbook(void **state)
{
    static double weight[TEXTBOOK_ELEMS], m[TEXTBOOK_ELEMS], slack[TEXTBOOK_ELEMS];
    for (int s = 0; s < 2; s++) {
        const update_scalars *scalars = &settings[LION][s];
        double lr = (double)scalars->learning_rate, decay = (double)scalars->weight_decay;
        double beta1 = (double)scalars->beta1, beta2 = (double)scalars->beta2;
        kernel_context tested = adam_context_of(tested_isa, 2);
        struct tile tile;
        tile_init(&tile, LION, TEXTBOOK_ELEMS, DTYPE_FP32, DTYPE_FP32, 0);
        for (int i = 0; i < TEXTBOOK_ELEMS; i++) {
            tile.master[i] = random_value(1, (uint64_t)i, 0.1f);
            tile.state[i] = 0;
            weight[i] = (double)tile.master[i];
            m[i] = slack[i] = 0;
        }
        for (int step = 1; step <= TEXTBOOK_STEPS; step++) {
            for (int i = 0; i < TEXTBOOK_ELEMS; i++) {
                /* Every tenth element gets no gradient: only the decay moves it. */
                float raw = i % 10 ? random_value(100 + (uint64_t)step, (uint64_t)i, 0.01f) : 0.0f;
                ((float *)tile.grads)[i] = raw;
                double grad = (double)raw * (double)scalars->grad_scale;
                double direction = beta1 * m[i] + (1 - beta1) * grad;
                m[i] = beta2 * m[i] + (1 - beta2) * grad;
                weight[i] *= 1 - lr * decay;
                weight[i] -= lr * ((direction > 0) - (direction < 0));
                if (direction != 0 && fabs(direction) < 1e-9)
                    slack[i] += 2 * lr;
            }
            tile_update(&tile, &cpu_ops, &tested, s);
        }
        for (int i = 0; i < TEXTBOOK_ELEMS; i++) {
            double error = fabs((double)tile.master[i] - weight[i]);
            if (error > 5e-7 + slack[i])
                fail_msg("setting %d, element %d: %.9g, textbook %.9g", s, i,
                         (double)tile.master[i], weight[i]);
            assert_true(fabs((double)tile.state[i] - m[i]) <= 1e-5 * fabs(m[i]) + 1e-9);
            assert_true(((float *)tile.params)[i] == tile.master[i]);
        }
        tile_fini(&tile);
    }
}

static void adagrad_follows_textbook(void **state)
{
    static double weight[TEXTBOOK_ELEMS], v[TEXTBOOK_ELEMS];
    for (int s = 0; s < 2; s++) {
        const update_scalars *scalars = &settings[ADAGRAD][s];
        kernel_context tested = adam_context_of(tested_isa, 2);
        struct tile tile;
        tile_init(&tile, ADAGRAD, TEXTBOOK_ELEMS, DTYPE_FP32, DTYPE_FP32, 0);
        for (int i = 0; i < TEXTBOOK_ELEMS; i++) {
            tile.master[i] = random_value(1, (uint64_t)i, 0.1f);
            tile.state[i] = 0;
            weight[i] = (double)tile.master[i];
            v[i] = 0;
        }
        for (int step = 1; step <= TEXTBOOK_STEPS; step++) {
            for (int i = 0; i < TEXTBOOK_ELEMS; i++) {
                float raw = random_value(100 + (uint64_t)step, (uint64_t)i, 0.01f) +
                            (float)(i % 10) * 0.01f;
                ((float *)tile.grads)[i] = raw;
                double grad = (double)raw * (double)scalars->grad_scale +
                              (double)scalars->weight_decay * weight[i];
                v[i] += grad * grad;
                weight[i] -=
                    (double)scalars->learning_rate * grad / (sqrt(v[i]) + (double)scalars->epsilon);
            }
            tile_update(&tile, &cpu_ops, &tested, s);
        }
        for (int i = 0; i < TEXTBOOK_ELEMS; i++) {
            double error = fabs((double)tile.master[i] - weight[i]);
            if (error > 5e-6)
                fail_msg("setting %d, element %d: %.9g, textbook %.9g", s, i,
                         (double)tile.master[i], weight[i]);
            assert_true(fabs((double)tile.state[i] - v[i]) <= 1e-4 * v[i] + 1e-12);
            assert_true(((float *)tile.params)[i] == tile.master[i]);
        }
        tile_fini(&tile);
    }
}

/* One step beside the reference backend, in all pairs of types. */
static void updates_follow_reference_backend(void **state)
{
    kernel_context tested = adam_context_of(tested_isa, 2);
    for (int run = 0; run < OPTIMIZER_COUNT * DTYPE_COUNT * DTYPE_COUNT; run++) {
        enum optimizer optimizer = (enum optimizer)(run % OPTIMIZER_COUNT);
        enum dtype grad = (enum dtype)(run / OPTIMIZER_COUNT % DTYPE_COUNT);
        enum dtype param = (enum dtype)(run / OPTIMIZER_COUNT / DTYPE_COUNT);
        struct tile left, right;
        tile_init(&left, optimizer, 1003, grad, param, 0);
        tile_init(&right, optimizer, 1003, grad, param, 0);
        fill_random(&left, 0);
        fill_random(&right, 0);
        tile_update(&left, &cpu_ops, &tested, 0);
        tile_update(&right, &kernels_reference, NULL, 0);
        for (uint64_t i = 0; i < left.count; i++) {
            assert_true(fabsf(left.master[i] - right.master[i]) <= 1e-7f);
            assert_true(fabsf(left.state[i] - right.state[i]) <=
                        1e-6f * fabsf(right.state[i]) + 1e-9f);
            float params[2];
            dtype_convert(left.params + i * dtype_bytes(param), param, &params[0], DTYPE_FP32, 1);
            dtype_convert(right.params + i * dtype_bytes(param), param, &params[1], DTYPE_FP32, 1);
            assert_true(fabsf(params[0] - params[1]) <= 0x1p-7f * fabsf(params[1]) + 1e-6f);
        }
        tile_fini(&left);
        tile_fini(&right);
    }
}

/* The signs by hand: c = m / 2 + g / 2, step 1/4, decay 1 - 1/8. Nothing moves where c is 0, of
 * either sign, but the decay. */
static void lion_by_hand(void **state)
{
    enum { COUNT = 35 };
    static const float m_in[5] = {0.0f, -0.0f, 2.0f, -2.0f, 1.0f};
    static const float g_in[5] = {0.0f, -0.0f, -4.0f, 4.0f, -1.0f};
    static const float expected[5] = {0.875f, 0.875f, 1.125f, 0.625f, 0.875f};
    kernel_context tested = adam_context_of(tested_isa, 1);
    float master[COUNT], m[COUNT], grads[COUNT], params[COUNT];
    for (int i = 0; i < COUNT; i++) {
        master[i] = 1.0f;
        m[i] = m_in[i % 5];
        grads[i] = g_in[i % 5];
    }
    update_scalars scalars = {.learning_rate = 0.25f,
                              .beta1 = 0.5f,
                              .beta2 = 0.75f,
                              .weight_decay = 0.5f,
                              .grad_scale = 1.0f};
    update_args args = {.rule = UPDATE_LION,
                        .count = COUNT,
                        .master = master,
                        .m = m,
                        .grads = grads,
                        .params = params,
                        .scalars = &scalars};
    assert_int_equal(cpui_update(&tested, NULL, &args), 0);
    for (int i = 0; i < COUNT; i++) {
        assert_true(master[i] == expected[i % 5] && params[i] == master[i]);
        assert_true(m[i] == 0.75f * m_in[i % 5] + 0.25f * g_in[i % 5]);
    }
}

/* g = -6 / 2 from v = 16; and, with the decay 1/2 of weight 2, g = 6 / 2 + 1 from v = 9: v = 25. */
static void adagrad_by_hand(void **state)
{
    enum { COUNT = 35 };
    kernel_context tested = adam_context_of(tested_isa, 1);
    float master[COUNT], v[COUNT], grads[COUNT], params[COUNT];
    for (int has_l2 = 0; has_l2 < 2; has_l2++) {
        for (int i = 0; i < COUNT; i++) {
            master[i] = 2.0f;
            v[i] = has_l2 ? 9.0f : 16.0f;
            grads[i] = has_l2 ? 6.0f : -6.0f;
        }
        update_scalars scalars = {.learning_rate = 0.5f,
                                  .epsilon = 3.0f,
                                  .weight_decay = has_l2 ? 0.5f : 0.0f,
                                  .grad_scale = 0.5f};
        update_args args = {.rule = UPDATE_ADAGRAD,
                            .count = COUNT,
                            .master = master,
                            .v = v,
                            .grads = grads,
                            .params = params,
                            .scalars = &scalars};
        assert_int_equal(cpui_update(&tested, NULL, &args), 0);
        for (int i = 0; i < COUNT; i++) {
            assert_true(v[i] == 25.0f);
            /* (3 + 1) / (5 + 3) and -3 / (5 + 3) */
            assert_true(master[i] == (has_l2 ? 1.75f : 2.1875f) && params[i] == master[i]);
        }
    }
}

/* A NaN gradient gives the one NaN everywhere; an infinite one, Lion's sign. */
static void bad_gradients(void **state)
{
    enum { COUNT = 17 };
    kernel_context tested = adam_context_of(tested_isa, 1);
    for (int optimizer = 0; optimizer < OPTIMIZER_COUNT; optimizer++) {
        struct tile tile;
        tile_init(&tile, (enum optimizer)optimizer, COUNT, DTYPE_FP16, DTYPE_FP16, 0);
        for (int i = 0; i < COUNT; i++) {
            tile.master[i] = 1.0f;
            tile.state[i] = 0.0f;
            ((uint16_t *)tile.grads)[i] = i % 2 ? 0xfc01 /* signalling */ : 0x7c00;
        }
        tile_update(&tile, &cpu_ops, &tested, 1);
        for (int i = 1; i < COUNT; i += 2) {
            assert_int_equal(fp32_bits(tile.master[i]), 0x7fc00000);
            assert_int_equal(fp32_bits(tile.state[i]), 0x7fc00000);
            assert_int_equal(((uint16_t *)tile.params)[i], 0x7e00);
        }
        assert_true(isinf(tile.state[0]));
        if (optimizer == LION)
            assert_true(tile.master[16] == 1.0f - settings[LION][1].learning_rate);
        else
            assert_true(isnan(tile.master[16])); /* infinity over infinity */
        tile_fini(&tile);
    }
}

int main(void)
{
    int rc = isa_of_test(&tested_isa);
    if (rc != 0)
        return rc;
    printf("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(updates_equal_reference),
        cmocka_unit_test(updates_ignore_thread_count),
        cmocka_unit_test(canary),
        cmocka_unit_test(lion_follows_textbook),
        cmocka_unit_test(adagrad_follows_textbook),
        cmocka_unit_test(lion_by_hand),
        cmocka_unit_test(adagrad_by_hand),
        cmocka_unit_test(bad_gradients),
        cmocka_unit_test(updates_follow_reference_backend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
