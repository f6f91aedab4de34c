/* How Adam on packed state rounds (kernels/cpu/optimizer/adam_state.c), in the instruction set of
 * the process: means equal the values, slow averages do not stall, codes that need no change stay,
 * zeros, blocks with values that are not finite, and the reference backend's search for codes. */
#include <math.h>

#include "base/rng.h"
#include "base/tile.h"
#include "kernels/cpu/cpu_internal.h"
#include "tests/kernels/kernels_isa.h"
#include "tests/unit.h"

enum { SEED = 20261123, COUNT = 2 * 4096 };

static enum cpu_isa tested_isa;

static kernel_context tested;

/* Moments are kept as they are by beta 1 and gradient 0, so that a call does nothing but round
 * them. */
static const update_scalars keep = {.learning_rate = 0.25f,
                                    .beta1 = 1,
                                    .beta2 = 1,
                                    .epsilon = 1e-8f,
                                    .decoupled = true,
                                    .bias_correction1 = 1,
                                    .bias_correction2_sqrt = 1,
                                    .grad_scale = 1};

/* The streams of one tile, of the widest format. */
static struct {
    float master[COUNT], grads[COUNT], params[COUNT];
    union {
        float wide[COUNT];
        uint16_t halves[COUNT];
        uint8_t bytes[2 * TILE_CODE_BLOCK_BYTES];
    } m, v;
} tile;

static void update(const kernel_ops *ops, enum tile_format m, enum tile_format v,
                   const update_scalars *scalars, uint64_t key)
{
    update_args args = {.count = COUNT,
                        .streams = tile_streams_code(3, TILE_FP32, m, v),
                        .master = tile.master,
                        .m = &tile.m,
                        .v = &tile.v,
                        .grads = tile.grads,
                        .grad_type = DTYPE_FP32,
                        .params = tile.params,
                        .param_type = DTYPE_FP32,
                        .scalars = scalars,
                        .rounding_key = key};
    assert_ok(ops ? ops->update(NULL, NULL, &args) : cpui_update(&tested, NULL, &args));
}

static uint8_t *code_at(void *stream, uint64_t i)
{
    return (uint8_t *)stream + i / 4096 * TILE_CODE_BLOCK_BYTES + i % 4096;
}

static float *scale_at(void *stream, uint64_t i)
{
    return (float *)((char *)stream + i / 4096 * TILE_CODE_BLOCK_BYTES + 4096 + i % 4096 / 256 * 4);
}

/* By the formula, in double. */
static double code_value(bool is_signed, uint32_t code)
{
    uint32_t bits = is_signed ? code & 127 : code;
    double value = (1 + (bits & 7) / 8.0) * pow(2, bits >> 3) - 1;
    return value * (is_signed ? 0x1p-16 : 0x1p-32) * (is_signed && code & 128 ? -1 : 1);
}

static double stored_moment(bool is_m, enum tile_format format, uint64_t i)
{
    void *data = is_m ? (void *)&tile.m : (void *)&tile.v;
    if (format == TILE_BF16)
        return (double)fp32_from_bf16(((uint16_t *)data)[i]);
    return code_value(is_m, *code_at(data, i)) * (double)*scale_at(data, i);
}

/* Both moments by beta 0 are the gradient and its square: elements of a block have values over many
 * octaves below a largest one. After many keys the mean of what is stored must be the value. */
static void assert_unbiased(enum tile_format format)
{
    enum { KEYS = 400, ELEMS = 512 };
    static double sum[2][ELEMS], least[2][ELEMS], most[2][ELEMS];
    update_scalars take = keep;
    take.beta1 = take.beta2 = 0;
    memset(sum, 0, sizeof sum);
    for (uint64_t i = 0; i < COUNT; i++) {
        float part = exp2f(-14.0f * (float)rng_uniform(SEED, 1, i));
        tile.grads[i] = i % 256 == 0 ? 3.0f : i % 2 ? part : -part;
    }
    for (uint64_t key = 0; key < KEYS; key++) {
        update(NULL, format, format, &take, SEED + key);
        for (uint64_t i = 0; i < ELEMS; i++)
            for (int s = 0; s < 2; s++) {
                double value = stored_moment(s == 0, format, i);
                sum[s][i] += value;
                least[s][i] = key == 0 ? value : fmin(least[s][i], value);
                most[s][i] = key == 0 ? value : fmax(most[s][i], value);
            }
    }
    double total[2] = {0};
    for (uint64_t i = 0; i < ELEMS; i++)
        for (int s = 0; s < 2; s++) {
            double grad = (double)tile.grads[i], want = s == 0 ? grad : grad * grad;
            double mean = sum[s][i] / KEYS, distance = most[s][i] - least[s][i];
            /* The deviation of a mean of two neighbours. The term 9 / KEYS leaves room where one of
             * the two is rare or never came. */
            double part = distance > 0 ? (mean - least[s][i]) / distance : 0;
            if (distance == 0)
                distance = fabs(want) / 7;
            double deviation = distance * sqrt((part * (1 - part) + 9.0 / KEYS) / KEYS);
            double z = (mean - want) / deviation;
            total[s] += z;
            if (fabs(z) > 6)
                fail_msg("format %d, %s, element %d: mean %.9g of %.9g, z = %.1f", (int)format,
                         s ? "v" : "m", (int)i, mean, want, z);
        }
    for (int s = 0; s < 2; s++)
        if (fabs(total[s]) > 5 * sqrt(ELEMS))
            fail_msg("format %d, %s: the means are biased, z = %.1f", (int)format, s ? "v" : "m",
                     total[s] / sqrt(ELEMS));
}

static void means_are_the_values(void **state)
{
    assert_unbiased(TILE_BF16);
    assert_unbiased(TILE_INT8);
}

/* Averages with betas near 1 over constant gradients: each step changes a moment by far less than
 * the distance between two numbers of its format, so rounding to nearest would never change it. */
static void slow_averages_do_not_stall(void **state)
{
    static const enum tile_format formats[] = {TILE_BF16, TILE_INT8};
    enum { STEPS = 1500 };
    update_scalars slow = keep;
    slow.beta1 = 0.998f;
    slow.beta2 = 0.999f;
    for (int f = 0; f < 2; f++) {
        memset(&tile.m, 0, sizeof tile.m);
        memset(&tile.v, 0, sizeof tile.v);
        for (uint64_t i = 0; i < COUNT; i++)
            tile.grads[i] = i % 256 == 0 ? 1.0f : 0.125f;
        for (uint64_t step = 0; step < STEPS; step++)
            update(NULL, formats[f], formats[f], &slow, SEED + step);
        double mean_m = 0, mean_v = 0;
        for (uint64_t i = 0; i < COUNT; i++) {
            mean_m += i % 256 ? stored_moment(true, formats[f], i) : 0;
            mean_v += i % 256 ? stored_moment(false, formats[f], i) : 0;
        }
        double want_m = 0.125 * (1 - pow((double)slow.beta1, STEPS)) * (COUNT - COUNT / 256);
        double want_v = 0.015625 * (1 - pow((double)slow.beta2, STEPS)) * (COUNT - COUNT / 256);
        if (fabs(mean_m / want_m - 1) > 0.01 || fabs(mean_v / want_v - 1) > 0.01)
            fail_msg("format %d: averages are %.4f and %.4f of what they should be",
                     (int)formats[f], mean_m / want_m, mean_v / want_v);
    }
}

/* Every code of both kinds, in blocks of scales of many sizes, beside the top code. */
static void codes_stay(void **state)
{
    enum { STEPS = 60 };
    static uint8_t m_codes[COUNT], v_codes[COUNT];
    memset(tile.grads, 0, sizeof tile.grads);
    for (uint64_t i = 0; i < COUNT; i++) {
        *code_at(&tile.m, i) = (uint8_t)i;
        *code_at(&tile.v, i) = (uint8_t)(255 - i);
        int block = (int)(i / 256);
        *scale_at(&tile.m, i) = ldexpf(1.0f + (float)block / 37.0f, 7 * block - 100);
        *scale_at(&tile.v, i) = ldexpf(1.9f - (float)block / 37.0f, 100 - 6 * block);
    }
    for (uint64_t i = 0; i < COUNT; i++) {
        m_codes[i] = i % 256 == 128 ? 0 : *code_at(&tile.m, i); /* -0 + 0 * 0 is 0 */
        v_codes[i] = *code_at(&tile.v, i);
    }
    for (uint64_t step = 0; step < STEPS; step++)
        update(NULL, TILE_INT8, TILE_INT8, &keep, SEED + step);
    for (uint64_t i = 0; i < COUNT; i++)
        if (*code_at(&tile.m, i) != m_codes[i] || *code_at(&tile.v, i) != v_codes[i])
            fail_msg("element %d: codes %02x, %02x became %02x, %02x", (int)i, m_codes[i],
                     v_codes[i], *code_at(&tile.m, i), *code_at(&tile.v, i));
}

/* The first step from a tile of zero bytes is that from zero moments, and with no gradient it stays
 * zero. */
static void zero_bytes_are_zero_moments(void **state)
{
    static float master[COUNT], m[COUNT], v[COUNT], params[COUNT];
    update_scalars first = keep;
    first.beta1 = 0.9f;
    first.beta2 = 0.99f;
    memset(&tile.m, 0, sizeof tile.m);
    memset(&tile.v, 0, sizeof tile.v);
    for (uint64_t i = 0; i < COUNT; i++) {
        tile.grads[i] = 0;
        tile.master[i] = master[i] = rng_normal(SEED, 2, i);
    }
    update(NULL, TILE_INT8, TILE_INT8, &first, SEED);
    for (size_t i = 0; i < sizeof tile.m.bytes; i++)
        assert_int_equal(tile.m.bytes[i] | tile.v.bytes[i], 0);
    assert_memory_equal(tile.master, master, sizeof master);
    for (uint64_t i = 0; i < COUNT; i++)
        tile.grads[i] = rng_normal(SEED, 3, i);
    update_args args = {.count = COUNT,
                        .master = master,
                        .m = m,
                        .v = v,
                        .grads = tile.grads,
                        .params = params,
                        .scalars = &first};
    assert_int_equal(cpui_update(&tested, NULL, &args), 0);
    update(NULL, TILE_INT8, TILE_INT8, &first, SEED);
    assert_memory_equal(tile.master, master, sizeof master);
    for (uint64_t i = 0; i < COUNT; i++) {
        assert_true(fabs(stored_moment(true, TILE_INT8, i) - (double)m[i]) <=
                    0.126 * fabs((double)m[i]) + 1e-5);
        assert_true(fabs(stored_moment(false, TILE_INT8, i) - (double)v[i]) <=
                    0.126 * (double)v[i] + 1e-8);
        assert_true(v[i] == 0 || *code_at(&tile.v, i) != 0); /* never rounded to 0 */
    }
}

/* Block by block: what is not finite makes its block's moments NaN, sizes at the ends of fp32 stay
 * or go. */
static void ends_of_the_range(void **state)
{
    update_scalars take = keep;
    take.beta1 = take.beta2 = 0;
    static const float largest[] = {INFINITY,  -INFINITY, NAN,        3.3e38f, -3.1e38f,
                                    0x1p-126f, 0x1p-127f, -0x1p-149f, 1.0f,    0x1p-64f};
    enum { CASES = sizeof largest / sizeof largest[0] };
    for (uint64_t i = 0; i < COUNT; i++)
        tile.grads[i] = i / 256 < CASES && i % 256 == 77 ? largest[i / 256] : 0x1p-149f;
    memset(&tile.m, 0x11, sizeof tile.m);
    memset(&tile.v, 0x11, sizeof tile.v);
    for (uint64_t i = 0; i < COUNT; i += 256)
        *scale_at(&tile.m, i) = *scale_at(&tile.v, i) = 1;
    update(NULL, TILE_INT8, TILE_INT8, &take, SEED);
    for (uint64_t i = 0; i < CASES * 256; i++) {
        double size = fabs((double)largest[i / 256]), m = stored_moment(true, TILE_INT8, i);
        double v = stored_moment(false, TILE_INT8, i);
        if (!(size < 3.19e38))
            assert_true(isnan(m) && *code_at(&tile.m, i) == 0);
        else if (size < 0x1p-126)
            assert_true(m == 0 && *code_at(&tile.m, i) == 0 && *scale_at(&tile.m, i) == 0);
        else if (i % 256 == 77)
            assert_true(fabs(m / (double)largest[i / 256] - 1) < 1e-6);
        if (size > 2e19 || isnan(size))
            assert_true(isnan(v)); /* its square */
        else if (size < 0x1p-63 * 0.99)
            assert_true(v == 0);
        else if (i % 256 == 77)
            assert_true(fabs(v / (size * size) - 1) < 1e-6);
    }
    /* bf16: infinities and NaN stay, the largest numbers become the next or infinity. */
    update(NULL, TILE_BF16, TILE_FP32, &take, SEED);
    assert_int_equal(tile.m.halves[77], 0x7f80);
    assert_int_equal(tile.m.halves[256 + 77], 0xff80);
    assert_int_equal(tile.m.halves[512 + 77], 0x7fc0);
    for (uint64_t i = 0; i < COUNT; i++)
        tile.grads[i] = i % 2 ? 0x1.feffp127f : -0x1p-149f;
    memset(&tile.m, 0, sizeof tile.m);
    update(NULL, TILE_BF16, TILE_FP32, &take, SEED);
    int up = 0;
    for (uint64_t i = 1; i < COUNT; i += 2) {
        up += tile.m.halves[i] == 0x7f80;
        assert_true(tile.m.halves[i] == 0x7f80 || tile.m.halves[i] == 0x7f7f);
        assert_true(tile.m.halves[i - 1] == 0x8000 || tile.m.halves[i - 1] == 0x8001);
    }
    assert_in_range(up, COUNT / 4 - 300, COUNT / 4 + 300);
}

/* The reference backend finds codes by searching real numbers: the same ones but for fp32's
 * rounding. */
static void codes_are_those_of_a_search(void **state)
{
    static uint8_t m_bytes[sizeof tile.m.bytes], v_bytes[sizeof tile.v.bytes];
    static float start[COUNT], master[COUNT];
    update_scalars step = keep;
    step.beta1 = 0.9f;
    step.beta2 = 0.99f;
    memset(&tile.m, 0, sizeof tile.m);
    memset(&tile.v, 0, sizeof tile.v);
    for (uint64_t i = 0; i < COUNT; i++)
        start[i] = rng_normal(SEED, 4, i);
    for (uint64_t turn = 0; turn < 3; turn++) {
        for (uint64_t i = 0; i < COUNT; i++)
            tile.grads[i] = expf(3 * rng_normal(SEED, 5 + turn, i)) * (i % 2 ? 1.0f : -1.0f);
        uint8_t m_before[sizeof m_bytes], v_before[sizeof v_bytes];
        memcpy(m_before, &tile.m, sizeof m_before);
        memcpy(v_before, &tile.v, sizeof v_before);
        memcpy(tile.master, start, sizeof start);
        update(&kernels_reference, TILE_INT8, TILE_INT8, &step, turn);
        memcpy(m_bytes, &tile.m, sizeof m_bytes);
        memcpy(v_bytes, &tile.v, sizeof v_bytes);
        memcpy(master, tile.master, sizeof master);
        memcpy(&tile.m, m_before, sizeof m_before);
        memcpy(&tile.v, v_before, sizeof v_before);
        memcpy(tile.master, start, sizeof start);
        update(NULL, TILE_INT8, TILE_INT8, &step, turn);
        int others = 0;
        for (uint64_t i = 0; i < COUNT; i++) {
            int m = *code_at(&tile.m, i) - *code_at(m_bytes, i);
            int v = *code_at(&tile.v, i) - *code_at(v_bytes, i);
            assert_in_range(m + 1, 0, 2);
            assert_in_range(v + 1, 0, 2);
            others += (m != 0) + (v != 0);
            assert_true(fabsf(tile.master[i] - master[i]) < 1e-5f);
        }
        assert_in_range(others, 0, COUNT / 500);
    }
}

int main(void)
{
    int rc = isa_of_test(&tested_isa);
    if (rc != 0)
        return rc;
    printf("seed %d\n", SEED);
    tested = adam_context_of(tested_isa, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_are_the_values), cmocka_unit_test(slow_averages_do_not_stall),
        cmocka_unit_test(codes_stay),           cmocka_unit_test(zero_bytes_are_zero_moments),
        cmocka_unit_test(ends_of_the_range),    cmocka_unit_test(codes_are_those_of_a_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
