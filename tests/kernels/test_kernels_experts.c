/* The CPU's ops of mixtures of experts in one instruction set: routers, sorted choices, and rows of
 * slots. */
#include "tests/kernels/rows_cases.h"

#include "tests/kernels/experts_draw.h"

static void emit_ints(struct run *run, const int32_t *values, uint64_t count)
{
    float *floats = scratch(run, count * sizeof *floats); /* exact: all are below 2^24 */
    for (uint64_t i = 0; i < count; i++)
        floats[i] = (float)values[i];
    emit(run, DTYPE_FP32, floats, count, 0.0f);
}

static int32_t *draw_chosen(struct run *run, uint64_t rows, uint64_t experts, uint64_t choices,
                            bool is_skewed)
{
    int32_t *chosen = scratch(run, rows * choices * sizeof *chosen);
    fill_chosen(chosen, SEED, rows, experts, choices, is_skewed);
    return chosen;
}

/* channels: E; variant: see router_of. Without bias and groups, many logits are equal. */
static void router_case(struct run *run, const struct shape *shape)
{
    uint64_t rows = shape->rows, experts = shape->channels, count = rows * experts;
    router_args args = router_of(shape->type, rows, experts, shape->variant);
    uint64_t choices = args.choices;
    float *logits = draw(run, DTYPE_FP32, count, 1, 2.0f);
    args.bias = shape->variant & 4 ? draw(run, DTYPE_FP32, experts, 2, 0.3f) : NULL;
    for (uint64_t i = 0; !args.bias && !args.groups && i < count; i++)
        logits[i] = roundf(2.0f * logits[i]) / 2.0f;
    args.logits = logits;
    args.chosen = scratch(run, rows * choices * sizeof *args.chosen);
    args.weights = scratch(run, rows * choices * sizeof *args.weights);
    assert_int_equal(run->ops->router_forward(run->context, NULL, &args), 0);
    emit_ints(run, args.chosen, rows * choices);
    emit(run, DTYPE_FP32, args.weights, rows * choices, 1e-7f);

    double *totals = scratch(run, (2 * experts + 1) * sizeof *totals);
    for (uint64_t e = 0; e < experts; e++)
        totals[e] = (double)rng_below(SEED, 3, e, 100);
    args.totals = args.balance_scale != 0.0f ? totals : NULL;
    args.weights_grad = draw(run, DTYPE_FP32, rows * choices, 4, 1.0f);
    args.logits_grad = scratch(run, count * dtype_bytes(shape->type));
    assert_int_equal(run->ops->router_backward(run->context, NULL, &args), 0);
    emit(run, shape->type, args.logits_grad, count, 1e-5f);
}

/* channels: E; variant: choices, as choices_of. */
static void sums_case(struct run *run, const struct shape *shape)
{
    uint64_t rows = shape->rows, experts = shape->channels, width = 2 * experts + 1;
    uint64_t choices = choices_of(experts, shape->variant);
    router_sums_args args = {.rows = rows, .experts = experts, .choices = choices};
    float *begin = draw(run, DTYPE_FP32, width, 1, 10.0f), *low = scratch(run, width * sizeof *low);
    args.totals = scratch(run, width * sizeof *args.totals);
    for (uint64_t i = 0; i < width; i++)
        args.totals[i] = (double)begin[i];
    args.logits = draw(run, DTYPE_FP32, rows * experts, 2, 3.0f);
    args.chosen = draw_chosen(run, rows, experts, choices, false);
    args.scratch =
        scratch(run, run->ops->router_sums_scratch_bytes(run->context, rows, experts) + 1);
    assert_int_equal(run->ops->router_sums(run->context, NULL, &args), 0);
    for (uint64_t i = 0; i < width; i++) {
        begin[i] = (float)args.totals[i];
        low[i] = (float)(args.totals[i] - (double)begin[i]);
    }
    emit(run, DTYPE_FP32, begin, width, 1e-5f);
    emit(run, DTYPE_FP32, low, width, 1.0f); /* for the comparison of bits */
}

/* channels: E; variant bits 0-1: choices; bit 2: skewed; bits 3-4: multiple of 1, 3 or 16. */
static void sort_case(struct run *run, const struct shape *shape)
{
    static const uint64_t multiples[] = {1, 3, 16};
    uint64_t rows = shape->rows, experts = shape->channels;
    uint64_t choices = choices_of(experts, shape->variant & 3);
    experts_sort_args args = {.rows = rows,
                              .experts = experts,
                              .choices = choices,
                              .multiple = multiples[shape->variant >> 3]};
    uint64_t most = experts_slots_max(rows, experts, choices, args.multiple);
    args.chosen = draw_chosen(run, rows, experts, choices, shape->variant & 4);
    args.offsets = scratch(run, (experts + 1) * sizeof *args.offsets);
    args.order = scratch(run, most * sizeof *args.order);
    args.slots = scratch(run, rows * choices * sizeof *args.slots);
    assert_int_equal(run->ops->experts_sort(run->context, NULL, &args), 0);
    assert_true((uint64_t)args.offsets[experts] <= most);
    emit_ints(run, args.offsets, experts + 1);
    emit_ints(run, args.order, most);
    emit_ints(run, args.slots, rows * choices);
}

/* A case of rows: 5 experts; choices of 1, 2 or 5; chosen by all rows alike or not; slots that
 * begin at multiples of 1 or 4. `args` gets all but the arrays of rows. Returns the number of
 * slots. */
static uint64_t begin_rows(struct run *run, const struct shape *shape, experts_rows_args *args)
{
    enum { EXPERTS = 5 };
    uint64_t rows = shape->rows, choices = choices_of(EXPERTS, shape->variant & 3);
    experts_sort_args sort = {.rows = rows,
                              .experts = EXPERTS,
                              .choices = choices,
                              .multiple = shape->variant & 8 ? 4 : 1};
    uint64_t most = experts_slots_max(rows, EXPERTS, choices, sort.multiple);
    sort.chosen = draw_chosen(run, rows, EXPERTS, choices, shape->variant & 4);
    sort.offsets = scratch(run, (EXPERTS + 1) * sizeof *sort.offsets);
    sort.order = scratch(run, most * sizeof *sort.order);
    sort.slots = scratch(run, rows * choices * sizeof *sort.slots);
    assert_int_equal(run->ops->experts_sort(run->context, NULL, &sort), 0);
    *args = (experts_rows_args){.type = shape->type,
                                .rows = rows,
                                .choices = choices,
                                .channels = shape->channels,
                                .slot_count = (uint64_t)sort.offsets[EXPERTS],
                                .order = sort.order,
                                .slots = sort.slots,
                                .weights = draw(run, DTYPE_FP32, rows * choices, 1, 1.0f)};
    return args->slot_count;
}

/* variant bits 0-3: as begin_rows says; bit 4: no weights, and no output, but with bit 3 a bias.
 * Some cases also have slots that are choices of their own, without an order. */
static void rows_case(struct run *run, const struct shape *shape)
{
    enum dtype type = shape->type;
    experts_rows_args args;
    uint64_t slots = begin_rows(run, shape, &args), channels = shape->channels;
    uint64_t count = shape->rows * channels;
    args.tokens = draw(run, type, count, 2, 1.0f);
    args.slot_rows = scratch(run, slots * channels * dtype_bytes(type));
    assert_int_equal(run->ops->experts_gather(run->context, NULL, &args), 0);
    emit(run, type, args.slot_rows, slots * channels, 0.0f);

    experts_rows_args combine = args;
    combine.weights = shape->variant & 16 ? NULL : args.weights;
    combine.slot_rows = draw(run, type, slots * channels, 3, 1.0f);
    combine.sums = draw(run, DTYPE_FP32, count, 4, 1.0f);
    assert_int_equal(run->ops->experts_combine(run->context, NULL, &combine), 0);
    emit(run, DTYPE_FP32, combine.sums, count, 0.0f);

    args.output = shape->variant & 16 ? NULL : combine.slot_rows;
    args.bias = (shape->variant & 24) == 24 ? draw(run, type, channels, 6, 1.0f) : NULL;
    args.weights_grad = draw(run, DTYPE_FP32, shape->rows * args.choices, 5, 1.0f);
    assert_int_equal(run->ops->experts_weights_backward(run->context, NULL, &args), 0);
    emit(run, type, args.slot_rows, slots * channels, 0.0f);
    emit(run, DTYPE_FP32, args.weights_grad, shape->rows * args.choices, 3e-5f);
    if ((shape->variant & 7) != 5)
        return;
    args.order = NULL;
    args.weights = draw(run, DTYPE_FP32, slots, 7, 1.0f);
    args.weights_grad = draw(run, DTYPE_FP32, slots, 8, 1.0f);
    assert_int_equal(run->ops->experts_weights_backward(run->context, NULL, &args), 0);
    emit(run, type, args.slot_rows, slots * channels, 0.0f);
    emit(run, DTYPE_FP32, args.weights_grad, slots, 3e-5f);
}

static void routers(void **state)
{
    static const uint64_t sizes[][2] = {{65, 1}, {3, 2}, {33, 7}, {400, 8}, {260, 64}, {2, 600}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int variant = 0; variant < 96; variant++)
            if ((variant >> 3 & 3) < 3)
                check_case("router", router_case,
                           &(struct shape){all_types[(variant + variant / 8 + (int)s) % 3],
                                           sizes[s][0], sizes[s][1], variant});
}

static void sums(void **state)
{
    static const uint64_t sizes[][2] = {{1, 1}, {65, 1}, {65, 7}, {1003, 64}, {3, 1024}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int variant = 0; variant < 3; variant++)
            check_case("router sums", sums_case,
                       &(struct shape){DTYPE_FP32, sizes[s][0], sizes[s][1], variant});
}

static void sorts(void **state)
{
    static const uint64_t sizes[][2] = {{1, 1}, {65, 1}, {1, 5}, {3, 7}, {33, 64}, {400, 9}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int variant = 0; variant < 24; variant++)
            if ((variant & 3) < 3)
                check_case("experts sort", sort_case,
                           &(struct shape){DTYPE_FP32, sizes[s][0], sizes[s][1], variant});
}

static void rows(void **state)
{
    static const uint64_t sizes[][2] = {{1, 1}, {3, 7}, {33, 100}, {65, 600}};
    for (size_t t = 0; t < sizeof all_types / sizeof *all_types; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int variant = 0; variant < 32; variant++)
                if ((variant & 3) < 3)
                    check_case("experts rows", rows_case,
                               &(struct shape){all_types[t], sizes[s][0], sizes[s][1], variant});
}

/* However the slots are cut into calls, sums and gradients are those of a single call. */
static void cuts_of_slots_change_no_bit(void **state)
{
    enum { CHANNELS = 40 };
    kernel_context context = rows_context_of(tested_isa, 2);
    struct run run = {.ops = &kernels_cpu, .context = &context};
    struct shape shape = {DTYPE_BF16, 65, CHANNELS, 1};
    experts_rows_args whole, part;
    uint64_t slots = begin_rows(&run, &shape, &whole), count = shape.rows * CHANNELS, end = 0;
    uint64_t pairs = shape.rows * whole.choices;
    whole.tokens = draw(&run, DTYPE_BF16, count, 2, 1.0f);
    whole.output = draw(&run, DTYPE_BF16, slots * CHANNELS, 3, 1.0f);
    whole.slot_rows = scratch(&run, slots * CHANNELS * sizeof(uint16_t));
    whole.sums = scratch(&run, count * sizeof(float));
    whole.weights_grad = scratch(&run, pairs * sizeof(float));
    part = whole;
    part.slot_rows = scratch(&run, slots * CHANNELS * sizeof(uint16_t));
    part.sums = scratch(&run, count * sizeof(float));
    part.weights_grad = scratch(&run, pairs * sizeof(float));
    float *sums_whole = whole.sums, *sums_part = part.sums;
    assert_int_equal(cpui_experts_gather(&context, NULL, &whole), 0);
    assert_int_equal(cpui_experts_combine(&context, NULL, &whole), 0);
    assert_int_equal(cpui_experts_weights_backward(&context, NULL, &whole), 0);
    uint16_t *rows_part = part.slot_rows;
    const uint16_t *output = whole.output;
    for (uint64_t i = 0; end < slots; i++) {
        part.slot_begin = end;
        end = end + 1 + i * 5 < slots ? end + 1 + i * 5 : slots;
        part.slot_count = end - part.slot_begin;
        part.slot_rows = rows_part + part.slot_begin * CHANNELS;
        part.output = output + part.slot_begin * CHANNELS;
        assert_int_equal(cpui_experts_gather(&context, NULL, &part), 0);
        assert_int_equal(cpui_experts_combine(&context, NULL, &part), 0);
        assert_int_equal(cpui_experts_weights_backward(&context, NULL, &part), 0);
    }
    assert_memory_equal(rows_part, whole.slot_rows, slots * CHANNELS * sizeof(uint16_t));
    assert_memory_equal(sums_part, sums_whole, count * sizeof(float));
    assert_memory_equal(part.weights_grad, whole.weights_grad, pairs * sizeof(float));
    for (int i = 0; i < run.block_count; i++)
        mem_free(run.blocks[i]);
}

/* Each row has the bits that it has alone, in both directions. */
static void cuts_of_rows_change_no_bit(void **state)
{
    enum { ROWS = 420, E = 40, K = 3 }; /* several threads work on so many rows */
    kernel_context context = rows_context_of(tested_isa, 2);
    struct run run = {.ops = &kernels_cpu, .context = &context};
    double totals[2 * E + 1] = {[3] = 7, [20] = 11};
    const float *logits = draw(&run, DTYPE_FP32, (uint64_t)ROWS * E, 1, 2.0f);
    const float *weights_grad = draw(&run, DTYPE_FP32, (uint64_t)ROWS * K, 2, 1.0f);
    int32_t chosen[2][ROWS * K];
    float weights[2][ROWS * K], logits_grad[2][ROWS * E];
    for (int cut = 0; cut < 2; cut++)
        for (uint64_t row = 0, rows = cut ? 1 : ROWS; row < ROWS; row += rows) {
            router_args args = {.rows = rows,
                                .experts = E,
                                .choices = K,
                                .normalizes = true,
                                .scale = 1.0f,
                                .logits = logits + row * E,
                                .chosen = chosen[cut] + row * K,
                                .weights = weights[cut] + row * K,
                                .weights_grad = weights_grad + row * K,
                                .totals = totals,
                                .balance_scale = 0.01f,
                                .z_scale = 0.01f,
                                .logits_grad = logits_grad[cut] + row * E};
            assert_int_equal(cpui_router_forward(&context, NULL, &args), 0);
            assert_int_equal(cpui_router_backward(&context, NULL, &args), 0);
        }
    assert_memory_equal(chosen[0], chosen[1], sizeof chosen[0]);
    assert_memory_equal(weights[0], weights[1], sizeof weights[0]);
    assert_memory_equal(logits_grad[0], logits_grad[1], sizeof logits_grad[0]);
    for (int i = 0; i < run.block_count; i++)
        mem_free(run.blocks[i]);
}

/* Ties, and logits that are not numbers: K different experts in every case, and NaN comes out. */
static void ties_and_bad_logits(void **state)
{
    enum { E = 8, K = 3 };
    static const int nan_at[] = {0, 3, 7};
    kernel_context context = rows_context_of(tested_isa, 1);
    float logits[E] = {0}, weights[K], bias[E] = {0};
    int32_t chosen[K];
    router_args args = {.rows = 1,
                        .experts = E,
                        .choices = K,
                        .normalizes = true,
                        .scale = 1.0f,
                        .logits = logits,
                        .chosen = chosen,
                        .weights = weights};
    assert_int_equal(cpui_router_forward(&context, NULL, &args), 0);
    assert_true(chosen[0] == 0 && chosen[1] == 1 && chosen[2] == 2);
    assert_true(weights[0] == weights[1] && fabsf(weights[2] - 1.0f / K) < 1e-7f);
    logits[6] = 1.0f;
    assert_int_equal(cpui_router_forward(&context, NULL, &args), 0);
    assert_true(chosen[0] == 0 && chosen[1] == 1 && chosen[2] == 6);
    /* The group of experts 4 to 7 is better, and 1 to 3, 4, 5 and 7 are equal. */
    args.groups = args.groups_chosen = 2;
    args.group_best = 1;
    logits[0] = 0.5f;
    assert_int_equal(cpui_router_forward(&context, NULL, &args), 0);
    assert_true(chosen[0] == 0 && chosen[1] == 1 && chosen[2] == 6);
    for (int variant = 0; variant < 8; variant++)
        for (size_t i = 0; i < sizeof nan_at / sizeof *nan_at; i++) {
            args.score = variant & 1 ? ROUTER_SIGMOID : ROUTER_SOFTMAX;
            args.bias = variant & 2 ? bias : NULL;
            args.groups = variant & 4 ? 2 : 0;
            args.groups_chosen = 1;
            args.group_best = 2;
            for (int e = 0; e < E; e++)
                logits[e] = args.score == ROUTER_SIGMOID || e == nan_at[i] ? NAN : 0.5f;
            assert_int_equal(cpui_router_forward(&context, NULL, &args), 0);
            assert_true(chosen[0] >= 0 && chosen[0] < chosen[1] && chosen[1] < chosen[2]);
            assert_true(chosen[2] < E && isnan(weights[0]));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routers),
        cmocka_unit_test(sums),
        cmocka_unit_test(sorts),
        cmocka_unit_test(rows),
        cmocka_unit_test(cuts_of_slots_change_no_bit),
        cmocka_unit_test(cuts_of_rows_change_no_bit),
        cmocka_unit_test(ties_and_bad_logits),
    };
    int status = isa_of_test(&tested_isa);
    if (status != 0)
        return status;
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
