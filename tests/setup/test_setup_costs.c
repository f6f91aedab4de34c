/* From measured kernels to seconds: measured points come back, what lies between them is between
 * them, more work takes longer, nothing is negative, and a machine that was not measured gives
 * nothing. */
#include <math.h>

#include "base/rng.h"
#include "setup/pass_costs.h"
#include "tests/unit.h"

static double flops_of(uint64_t m, uint64_t n, uint64_t k)
{
    return 2 * (double)m * (double)n * (double)k;
}

static void put(machine *to, enum dtype type, bool accumulates, uint64_t m, uint64_t n, uint64_t k,
                double seconds)
{
    to->device.products[to->device.product_count++] =
        (machine_product){.type = type,
                          .accumulates = accumulates,
                          .m = m,
                          .n = n,
                          .k = k,
                          .flops_per_second = flops_of(m, n, k) / seconds};
}

static model_cost_product product_of(enum dtype type, bool accumulates, uint64_t m, uint64_t n,
                                     uint64_t k)
{
    return (model_cost_product){.type = type,
                                .result = accumulates ? DTYPE_FP32 : type,
                                .accumulates = accumulates,
                                .m = m,
                                .n = n,
                                .k = k,
                                .count = 1};
}

/* A machine of 2 TFLOP/s in bf16, whose products take up to 30% more or less than that by
 * chance. */
static void make_machine(machine *out, double scatter)
{
    static const uint64_t shapes[][2] = {{512, 768}, {1024, 768}, {1024, 1024}, {2048, 768}};
    memset(out, 0, sizeof *out);
    uint64_t draw = 0;
    for (uint32_t i = 0; i < 4; i++)
        for (uint64_t wide = 1; wide <= 4; wide++)
            for (int kind = 0; kind < COST_KIND_COUNT; kind++) {
                uint64_t rows = shapes[i][0], in = shapes[i][1], out_columns = wide * in;
                double chance = 1 + scatter * (2 * (double)rng_uniform(1, 1, draw++) - 1);
                double flops = flops_of(rows, in, out_columns);
                if (kind == COST_WEIGHT)
                    put(out, DTYPE_BF16, true, out_columns, in, rows, flops / 1.2e12 * chance);
                else
                    put(out, DTYPE_BF16, false, rows, out_columns, in,
                        flops / (kind == COST_FORWARD ? 2e12 : 1.6e12) * chance);
                out->device.products[out->device.product_count - 1].b_transposed =
                    kind == COST_FORWARD;
            }
    out->device.attention_forward = 3e11;
    out->device.attention_backward = 4e11;
    out->device.row_rate = 15e9;
}

static void test_points_come_back(void **state)
{
    machine from;
    costs known;
    make_machine(&from, 0.3);
    costs_learn(&from, DTYPE_BF16, &known);
    assert_true(known.is_known);
    for (uint32_t i = 0; i < from.device.product_count; i++) {
        const machine_product *point = &from.device.products[i];
        model_cost_product item =
            product_of(point->type, point->accumulates, point->m, point->n, point->k);
        item.b_transposed = point->b_transposed;
        double expected = flops_of(point->m, point->n, point->k) / point->flops_per_second;
        assert_true(fabs(costs_of_product(&known, &item) - expected) <= 1e-9 * expected);
    }
}

/* Where the points lie on a line of the three terms, so does everything. */
static void test_fit_is_exact(void **state)
{
    static const uint64_t sizes[] = {96, 300, 777, 2048};
    machine from = {0};
    costs known;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            uint64_t m = sizes[i], n = sizes[j], k = sizes[(i + 2 * j) % 4];
            double bytes = 2.0 * (double)(m * k + k * n + m * n);
            put(&from, DTYPE_BF16, false, m, n, k,
                flops_of(m, n, k) / 1.5e12 + bytes / 3e10 + 7e-6);
        }
    costs_learn(&from, DTYPE_BF16, &known);
    model_cost_product item = product_of(DTYPE_BF16, false, 50000, 64, 512);
    double bytes = 2.0 * (50000.0 * 512 + 512 * 64 + 50000.0 * 64);
    double expected = flops_of(50000, 64, 512) / 1.5e12 + bytes / 3e10 + 7e-6;
    assert_true(fabs(costs_of_product(&known, &item) - expected) <= 1e-6 * expected);
}

static void test_more_takes_longer(void **state)
{
    machine from;
    costs known;
    make_machine(&from, 0.1);
    costs_learn(&from, DTYPE_BF16, &known);
    for (uint64_t draw = 0; draw < 2000; draw++) {
        bool adds = draw % 2;
        uint64_t size[3];
        for (uint64_t d = 0; d < 3; d++)
            size[d] = 1 + rng_below(2, d, draw, 8192);
        model_cost_product item = product_of(DTYPE_BF16, adds, size[0], size[1], size[2]);
        double before = costs_of_product(&known, &item);
        assert_true(isfinite(before) && before > 0);
        size[draw % 3] *= 2;
        item = product_of(DTYPE_BF16, adds, size[0], size[1], size[2]);
        double after = costs_of_product(&known, &item);
        assert_true(after > before);
        assert_true(after < 4 * before);
    }
}

/* Measured times that no terms fit must still give sensible ones. */
static void test_never_negative(void **state)
{
    for (uint64_t seed = 0; seed < 200; seed++) {
        machine from = {0};
        costs known;
        uint64_t count = 1 + rng_below(seed, 1, 0, 6);
        for (uint64_t i = 0; i < count; i++)
            put(&from, DTYPE_FP32, false, 1 + rng_below(seed, 2, i, 3000),
                1 + rng_below(seed, 3, i, 3000), 1 + rng_below(seed, 4, i, 3000),
                1e-6 + (double)rng_uniform(seed, 5, i));
        costs_learn(&from, DTYPE_FP32, &known);
        for (uint64_t i = 0; i < 20; i++) {
            model_cost_product item =
                product_of(DTYPE_FP32, i % 2, 1 + rng_below(seed, 6, i, 30000),
                           1 + rng_below(seed, 7, i, 30000), 1 + rng_below(seed, 8, i, 30000));
            double seconds = costs_of_product(&known, &item);
            if (!(isfinite(seconds) && seconds > 0))
                fail_msg("seed %d: %g seconds", (int)seed, seconds);
        }
    }
}

static void test_kernels_add_up(void **state)
{
    machine from;
    costs known;
    make_machine(&from, 0);
    costs_learn(&from, DTYPE_BF16, &known);
    model_costs kernels = {.product_count = 1, .attention_forward_flops = 3e9};
    kernels.products[0] = product_of(DTYPE_BF16, false, 1024, 2304, 768);
    kernels.products[0].count = 3;
    kernels.attention_backward_flops = 8e9;
    kernels.row_bytes[MODEL_ROWS_NORM] = 15e6;
    double expected = 3 * flops_of(1024, 2304, 768) / 1.6e12 + 0.01 + 0.02 + 0.001;
    assert_true(fabs(costs_of_kernels(&known, &kernels) - expected) <= 1e-9 * expected);
    kernels.row_bytes[MODEL_ROWS_GELU] = 15e6; /* computes more for each byte */
    assert_true(costs_of_kernels(&known, &kernels) > expected + 0.001);
    from.device.is_gpu = true;
    costs_learn(&from, DTYPE_BF16, &known);
    assert_true(fabs(costs_of_kernels(&known, &kernels) - (expected + 0.001)) <= 1e-9);
}

static void test_not_measured(void **state)
{
    machine from;
    costs known;
    model_costs kernels = {.attention_forward_flops = 1e9};
    make_machine(&from, 0);
    costs_learn(&from, DTYPE_FP16, &known);
    assert_false(known.is_known);
    assert_true(costs_of_kernels(&known, &kernels) == 0);
    for (uint32_t i = 0; i < from.device.product_count; i++)
        from.device.products[i].accumulates = false;
    costs_learn(&from, DTYPE_BF16, &known);
    model_cost_product item = product_of(DTYPE_BF16, true, 768, 768, 1024);
    assert_true(costs_of_product(&known, &item) > 0);
}

/* The same numbers, another layout, another time; a kind that was not measured goes by another. */
static void test_kinds(void **state)
{
    machine from;
    costs known;
    make_machine(&from, 0);
    costs_learn(&from, DTYPE_BF16, &known);
    model_cost_product item = product_of(DTYPE_BF16, false, 1024, 2304, 768);
    double input = costs_of_product(&known, &item);
    item.b_transposed = true;
    double forward = costs_of_product(&known, &item);
    assert_true(fabs(forward - flops_of(1024, 2304, 768) / 2e12) <= 1e-9 * forward);
    assert_true(fabs(input - flops_of(1024, 2304, 768) / 1.6e12) <= 1e-9 * input);
    for (uint32_t i = 0; i < from.device.product_count; i++)
        if (from.device.products[i].b_transposed)
            from.device.products[i].type = DTYPE_FP32;
    costs_learn(&from, DTYPE_BF16, &known);
    assert_true(costs_of_product(&known, &item) == input);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_points_come_back),
        cmocka_unit_test(test_fit_is_exact),
        cmocka_unit_test(test_more_takes_longer),
        cmocka_unit_test(test_never_negative),
        cmocka_unit_test(test_kernels_add_up),
        cmocka_unit_test(test_not_measured),
        cmocka_unit_test(test_kinds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
