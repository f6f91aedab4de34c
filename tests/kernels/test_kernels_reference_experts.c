/* The reference's ops of mixtures of experts: their gradients against finite differences of the
 * forward ops, in fp32. Logits lie so far apart that no difference changes a choice. */
#include <math.h>

#include "tests/kernels/finite_differences.h"
#include "tests/unit.h"

enum { ROWS = 5, E = 8, K = 3, N = ROWS * E };

/* Steps of 0.3 in another order for each row, and a tenth of a normal number that is at most 1. */
static float *draw_logits(uint64_t stream)
{
    float *x = draw(N, stream);
    for (int i = 0; i < N; i++)
        x[i] =
            0.3f * (float)((i % E * 5 + i / E * 3) % E) - 1.0f + 0.1f * fmaxf(-1, fminf(1, x[i]));
    return x;
}

static int forward_router(struct probe *self)
{
    return ops->router_forward(NULL, NULL, self->args);
}

/* By the bits of `form`: sigmoid; normalized; a bias, and groups by one or by two values. The bias
 * alone decides. */
static void router_gradients(void **state)
{
    static const float bias[E] = {3, 0, 5, 1, 7, -6, 4, 6};
    for (int form = 0; form < 16; form++) {
        float *x = draw_logits(1), *dw = draw(ROWS * K, 2), *dx = zeros(N), *w = zeros(ROWS * K);
        int32_t chosen[ROWS * K];
        router_args args = {.score = form & 1 ? ROUTER_SIGMOID : ROUTER_SOFTMAX,
                            .rows = ROWS,
                            .experts = E,
                            .choices = K,
                            .normalizes = form & 2,
                            .scale = 2.5f,
                            .logits = x,
                            .bias = form & 4 ? bias : NULL,
                            .groups = form & 4 ? 4 : 0,
                            .groups_chosen = 2,
                            .group_best = form & 8 ? 2 : 1,
                            .chosen = chosen,
                            .weights = w,
                            .weights_grad = dw,
                            .logits_grad = dx};
        struct probe probe = {.forward = forward_router,
                              .args = &args,
                              .output = w,
                              .weight = dw,
                              .output_count = ROWS * K};
        assert_int_equal(probe.forward(&probe), 0);
        assert_int_equal(ops->router_backward(NULL, NULL, &args), 0);
        check_gradient("router", &probe, x, dx, N);
        /* The largest values of the groups are 3, 5, 7 and 6, their sums 3, 6, 1 and 10. */
        if (form & 4)
            assert_true(chosen[0] == (form & 8 ? 2 : 4) && chosen[1] == 6 && chosen[2] == 7);
        float sum = w[0] + w[1] + w[2];
        assert_true(!(form & 2) || fabsf(sum - 2.5f) < 1e-5f);
        mem_free(x);
        mem_free(dw);
        mem_free(dx);
        mem_free(w);
    }
}

/* sums of p, and of the squared logsumexp: output[E + 1] */
static int forward_sums(struct probe *self)
{
    const router_sums_args *args = self->args;
    float *output = self->object;
    memset(args->totals, 0, (2 * E + 1) * sizeof *args->totals);
    TRY(ops->router_sums(NULL, NULL, args));
    for (int i = 0; i <= E; i++)
        output[i] = (float)args->totals[E + i];
    return 0;
}

/* The load-balancing loss is linear in the sums of p, with factors that the choices give. */
static void loss_gradients(void **state)
{
    const float balance = 0.125f, z = 0.25f;
    for (int sigmoid = 0; sigmoid < 2; sigmoid++) {
        float *x = draw_logits(1), *dx = zeros(N), weights[ROWS * K], dw[ROWS * K] = {0};
        float output[E + 1], factors[E + 1];
        double totals[2 * E + 1];
        int32_t chosen[ROWS * K];
        router_args args = {.score = sigmoid ? ROUTER_SIGMOID : ROUTER_SOFTMAX,
                            .rows = ROWS,
                            .experts = E,
                            .choices = K,
                            .scale = 1.0f,
                            .logits = x,
                            .chosen = chosen,
                            .weights = weights,
                            .weights_grad = dw,
                            .totals = totals,
                            .balance_scale = balance,
                            .z_scale = 2 * z,
                            .logits_grad = dx};
        router_sums_args sums = {.rows = ROWS,
                                 .experts = E,
                                 .choices = K,
                                 .logits = x,
                                 .chosen = chosen,
                                 .totals = totals};
        struct probe probe = {.forward = forward_sums,
                              .args = &sums,
                              .object = output,
                              .output = output,
                              .weight = factors,
                              .output_count = E + 1};
        assert_int_equal(ops->router_forward(NULL, NULL, &args), 0);
        assert_int_equal(probe.forward(&probe), 0);
        double chosen_in_all = 0, p_in_all = 0;
        for (int e = 0; e < E; e++) {
            factors[e] = balance * (float)totals[e];
            chosen_in_all += totals[e];
            p_in_all += totals[E + e];
        }
        factors[E] = z;
        assert_true(chosen_in_all == ROWS * K && fabs(p_in_all - ROWS) < 1e-12);
        assert_int_equal(ops->router_backward(NULL, NULL, &args), 0);
        check_gradient("router losses", &probe, x, dx, N);
        mem_free(x);
        mem_free(dx);
    }
}

enum { C = 4, MULTIPLE = 2, SLOTS = ROWS * K + E };

/* A mixture of experts that multiply: row i of the slots times factors[i]. */
struct mixture {
    experts_rows_args rows;
    const float *factors; /* [SLOTS, C] */
    float *slot_rows;
};

static int forward_mixture(struct probe *self)
{
    struct mixture *mixture = self->object;
    memset(mixture->rows.sums, 0, sizeof(float) * ROWS * C);
    TRY(ops->experts_gather(NULL, NULL, &mixture->rows));
    for (uint64_t i = 0; i < mixture->rows.slot_count * C; i++)
        mixture->slot_rows[i] *= mixture->factors[i];
    return ops->experts_combine(NULL, NULL, &mixture->rows);
}

static void mixture_gradients(void **state)
{
    float *x = draw(ROWS * C, 1), *w = draw(ROWS * K, 2), *factors = draw(SLOTS * C, 3);
    float *dy = draw(ROWS * C, 4), *sums = zeros(ROWS * C), *logits = draw_logits(5);
    float *slot_rows = zeros(SLOTS * C), *grads = zeros(SLOTS * C), *dx = zeros(ROWS * C);
    float dw[ROWS * K], ignored[ROWS * K];
    int32_t chosen[ROWS * K], offsets[E + 1], order[SLOTS], slots[ROWS * K];
    router_args router = {.rows = ROWS,
                          .experts = E,
                          .choices = K,
                          .logits = logits,
                          .chosen = chosen,
                          .weights = ignored};
    experts_sort_args sort = {.rows = ROWS,
                              .experts = E,
                              .choices = K,
                              .multiple = MULTIPLE,
                              .chosen = chosen,
                              .offsets = offsets,
                              .order = order,
                              .slots = slots};
    assert_int_equal(ops->router_forward(NULL, NULL, &router), 0);
    assert_true(experts_slots_max(ROWS, E, K, MULTIPLE) <= SLOTS);
    assert_int_equal(ops->experts_sort(NULL, NULL, &sort), 0);
    struct mixture mixture = {.rows = {.rows = ROWS,
                                       .choices = K,
                                       .channels = C,
                                       .slot_count = (uint64_t)offsets[E],
                                       .order = order,
                                       .slots = slots,
                                       .weights = w,
                                       .tokens = x,
                                       .slot_rows = slot_rows,
                                       .sums = sums},
                              .factors = factors,
                              .slot_rows = slot_rows};
    struct probe probe = {.forward = forward_mixture,
                          .object = &mixture,
                          .output = sums,
                          .weight = dy,
                          .output_count = ROWS * C};
    assert_int_equal(probe.forward(&probe), 0);
    experts_rows_args back = mixture.rows;
    back.tokens = dy;
    back.slot_rows = grads;
    back.output = slot_rows;
    back.weights_grad = dw;
    assert_int_equal(ops->experts_gather(NULL, NULL, &back), 0);
    assert_int_equal(ops->experts_weights_backward(NULL, NULL, &back), 0);
    for (uint64_t i = 0; i < back.slot_count * C; i++)
        grads[i] *= factors[i];
    back.weights = NULL;
    back.sums = dx;
    assert_int_equal(ops->experts_combine(NULL, NULL, &back), 0);
    check_gradient("weights of experts", &probe, w, dw, ROWS * K);
    check_gradient("input of experts", &probe, x, dx, ROWS * C);
    float *all[] = {x, w, factors, dy, sums, logits, slot_rows, grads, dx};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        mem_free(all[i]);
}

/* Slots by hand: 3 rows, 4 experts, 2 choices; expert 2 gets all, expert 3 none. */
static void slots_by_hand(void **state)
{
    const int32_t chosen[6] = {0, 2, 1, 2, 0, 2};
    const int32_t offsets_want[2][5] = {{0, 2, 3, 6, 6}, {0, 2, 4, 8, 8}};
    const int32_t order_want[2][9] = {{0, 4, 2, 1, 3, 5}, {0, 4, 2, -1, 1, 3, 5, -1, -1}};
    const int32_t slots_want[2][6] = {{0, 3, 2, 4, 1, 5}, {0, 4, 2, 5, 1, 6}};
    for (int i = 0; i < 2; i++) {
        int32_t offsets[5], order[10], slots[6];
        experts_sort_args args = {.rows = 3,
                                  .experts = 4,
                                  .choices = 2,
                                  .multiple = i == 0 ? 1 : 2,
                                  .chosen = chosen,
                                  .offsets = offsets,
                                  .order = order,
                                  .slots = slots};
        assert_int_equal(experts_slots_max(3, 4, 2, args.multiple), i == 0 ? 6 : 10);
        assert_int_equal(ops->experts_sort(NULL, NULL, &args), 0);
        assert_memory_equal(offsets, offsets_want[i], sizeof offsets);
        assert_memory_equal(order, order_want[i], (i == 0 ? 6 : 9) * sizeof *order);
        assert_memory_equal(slots, slots_want[i], sizeof slots);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(router_gradients),
        cmocka_unit_test(loss_gradients),
        cmocka_unit_test(mixture_gradients),
        cmocka_unit_test(slots_by_hand),
    };
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
