/* Cross-entropy on the CPU for rows that are hard to sum (logits that rise, are huge, or are not
 * numbers), and how near its elementary functions come to fp32. The program's argument names the
 * instruction set: baseline, avx2 or avx512. */
#include <float.h>
#include <math.h>

#include "base/mem.h"
#include "kernels/cpu/rows_internal.h"
#include "tests/kernels/kernels_isa.h"
#include "tests/unit.h"

static enum cpu_isa tested_isa;

/* The loss of one row of `vocab` fp32 logits, and its gradient. */
static float one_row(kernel_context *context, uint64_t vocab, const float *logits, int32_t target,
                     float *grad)
{
    float loss = 0.0f;
    cross_entropy_args args = {.rows = 1,
                               .vocab = vocab,
                               .logits = logits,
                               .targets = &target,
                               .losses = &loss,
                               .logits_grad = grad,
                               .grad_scale = 1.0f};
    assert_int_equal(cpui_cross_entropy(context, NULL, &args), 0);
    return loss;
}

static void cross_entropy_of_bad_logits(void **state)
{
    kernel_context context = rows_context_of(tested_isa, 1);
    const float bad[] = {NAN, INFINITY};
    for (int i = 0; i < 2; i++) {
        float logits[40] = {0}, grad[40];
        logits[37] = bad[i];
        assert_true(isnan(one_row(&context, 40, logits, 3, grad)) && isnan(grad[37]));
    }
    float logits[3] = {0.0f, -INFINITY, 0.0f}, grad[3]; /* a masked logit is no error */
    float loss = one_row(&context, 3, logits, 0, grad);
    assert_true(fabsf(loss - logf(2.0f)) < 1e-6f && grad[1] == 0.0f && grad[0] == -0.5f);
}

/* |got - exact| in units of the last place of fp32 at `exact`. */
static double ulps(float got, double exact)
{
    int exponent = exact == 0.0 ? -126 : ilogb(exact);
    return fabs((double)got - exact) / ldexp(1.0, (exponent < -126 ? -126 : exponent) - 23);
}

/* All of fp32 by every 1009th pattern, and [-110, 95] densely. */
static void elementary_functions(void **state)
{
    enum { BATCH = 4096 };
    const rows_table *table = rowsi_table(tested_isa);
    float x[BATCH], y[BATCH], s[BATCH], t[BATCH];
    double exp_worst = 0.0, sigmoid_worst = 0.0, tanh_worst = 0.0;
    for (uint64_t first = 0; first < 6300000; first += BATCH) {
        for (uint64_t i = 0; i < BATCH; i++)
            x[i] = first < 4300000 ? fp32_from_bits((uint32_t)((first + i) * 1009))
                                   : -110.0f + (float)(first + i - 4300000) * 1e-4f;
        table->exp(x, y, BATCH);
        table->sigmoid(x, s, BATCH);
        table->tanh(x, t, BATCH);
        for (int i = 0; i < BATCH; i++) {
            if (isnan(x[i])) {
                assert_true(isnan(y[i]) && isnan(s[i]) && isnan(t[i]));
                continue;
            }
            if (fabsf(x[i]) >= 0x1p-100f) /* smaller ones are rounded like 2^-126 and below */
                tanh_worst = fmax(tanh_worst, ulps(t[i], tanh((double)x[i])));
            double power = exp((double)x[i]);
            if (power >= 0x1.6p127) /* 2^127.5, give or take the rounding of x log2(e) */
                assert_true(isinf(y[i]) || (power < 0x1.7p127 && ulps(y[i], power) <= 2.0));
            else if (power < 0x1p-126)
                assert_true(y[i] == 0.0f);
            else
                exp_worst = fmax(exp_worst, ulps(y[i], power));
            if (x[i] < -87.0f) /* below, e^-x overflows: 0 where the exact value is under 2^-125 */
                assert_true(s[i] >= 0.0f && s[i] <= 0x1p-125f);
            else
                sigmoid_worst = fmax(sigmoid_worst, ulps(s[i], 1.0 / (1.0 + exp(-(double)x[i]))));
        }
    }
    printf("worst error in ulp: exp %.3f, sigmoid %.3f, tanh %.3f\n", exp_worst, sigmoid_worst,
           tanh_worst);
    assert_true(exp_worst <= 1.0 && sigmoid_worst <= 2.5 && tanh_worst <= 3.0);
    const float edge[] = {0.0f, -0.0f, INFINITY, -INFINITY, 88.8f, -104.0f, NAN, -NAN};
    table->exp(edge, y, 8);
    table->sigmoid(edge, s, 8);
    assert_true(y[0] == 1.0f && y[1] == 1.0f && isinf(y[2]) && y[3] == 0.0f && isinf(y[4]));
    assert_true(y[5] == 0.0f && isnan(y[6]) && isnan(y[7]) && s[0] == 0.5f);
    assert_true(s[2] == 1.0f && s[3] == 0.0f && isnan(s[6]) && isnan(s[7]));
}

/* A row whose largest logit comes last in some lanes, first in others, and parts of it that are all
 * -infinity: the running sums are those of the whole. */
static void cross_entropy_of_rising_logits(void **state)
{
    enum { VOCAB = 3 * 512 + 37 };
    kernel_context context = rows_context_of(tested_isa, 1);
    static float logits[VOCAB], grad[VOCAB];
    for (int rising = 0; rising < 3; rising++) {
        double largest = -INFINITY, sum = 0.0;
        for (int i = 0; i < VOCAB; i++) {
            logits[i] = (rising == 1 ? -0.05f : 0.05f) * (float)i;
            if (rising == 2 && i < 600) /* whole blocks of nothing */
                logits[i] = -INFINITY;
            largest = fmax(largest, (double)logits[i]);
        }
        for (int i = 0; i < VOCAB; i++)
            sum += exp((double)logits[i] - largest);
        int32_t target = VOCAB - 5;
        float loss = one_row(&context, VOCAB, logits, target, grad);
        double expected = log(sum) + largest - (double)logits[target];
        assert_true(fabs((double)loss - expected) <= 1e-6 * fmax(1.0, fabs(expected)));
        for (int i = 0; i < VOCAB; i++) {
            double power = exp((double)logits[i] - largest) / sum - (i == target);
            assert_true(fabs((double)grad[i] - power) <= 4e-6 * fabs(power) + 1e-12);
        }
    }
}

/* A long row whose largest logit rises a little in each block: errors of the running sum must not
 * add up. */
static void cross_entropy_of_slowly_rising_logits(void **state)
{
    enum { VOCAB = 1 << 18 };
    kernel_context context = rows_context_of(tested_isa, 1);
    float *logits = mem_alloc(VOCAB, sizeof *logits, "test");
    float *grad = mem_alloc(VOCAB, sizeof *grad, "test");
    static const float slopes[] = {0x1p-21f, 0x1p-17f, 0x1p-14f};
    for (int s = 0; s < 3; s++) {
        double sum = 0.0;
        for (int i = 0; i < VOCAB; i++) {
            logits[i] = slopes[s] * (float)i;
            sum += exp((double)logits[i]);
        }
        float loss = one_row(&context, VOCAB, logits, 0, grad);
        assert_true(fabs((double)loss - log(sum)) <= 2e-6);
        double grads = 0.0; /* their errors do not average out if the sum is wrong */
        for (int i = 1; i < VOCAB; i++)
            grads += (double)grad[i];
        double expected = 1.0 - 1.0 / sum;
        if (fabs(grads - expected) > 3e-7)
            fail_msg("slope %a: gradients add up to %.9f, expected %.9f", (double)slopes[s], grads,
                     expected);
    }
    mem_free(logits);
    mem_free(grad);
}

/* Equal logits of every magnitude up to the largest that is finite. */
static void cross_entropy_of_large_logits(void **state)
{
    enum { VOCAB = 64 };
    kernel_context context = rows_context_of(tested_isa, 1);
    for (int exponent = -20; exponent <= 256; exponent++) {
        float logits[VOCAB], grad[VOCAB];
        float below = nextafterf(ldexpf(1.0f, exponent / 2), 0.0f);
        if (exponent == 256)
            below = FLT_MAX;
        for (int i = 0; i < VOCAB; i++)
            logits[i] = exponent % 2 ? -below : below;
        float loss = one_row(&context, VOCAB, logits, 1, grad);
        assert_true(fabsf(loss - logf(VOCAB)) < 1e-6f);
        assert_true(fabsf(grad[0] - 1.0f / VOCAB) < 1e-8f && fabsf(grad[1] - grad[0] + 1) < 1e-6f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cross_entropy_of_bad_logits),
        cmocka_unit_test(elementary_functions),
        cmocka_unit_test(cross_entropy_of_rising_logits),
        cmocka_unit_test(cross_entropy_of_slowly_rising_logits),
        cmocka_unit_test(cross_entropy_of_large_logits),
    };
    int status = isa_of_test(&tested_isa);
    if (status != 0)
        return status;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
