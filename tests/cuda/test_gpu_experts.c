/* The ops of mixtures of experts of the CUDA backend against the reference backend, one group of
 * ops per instance (the program's argument). */
#include "tests/cuda/gpu_rows_cases.h"
#include "tests/kernels/experts_draw.h"

/* The values of an array of the run's backend, on the host; the caller frees them. */
static void *fetch(struct run *run, const void *data, uint64_t bytes)
{
    void *host = mem_alloc(bytes, 1, "test");
    assert_non_null(host);
    if (run->gpu)
        gpu_download(run->gpu, host, data, bytes);
    else
        memcpy(host, data, bytes);
    return host;
}

/* Emits numbers that fp32 holds exactly. */
static void emit_ints(struct run *run, const int32_t *data, uint64_t count)
{
    int32_t *ints = fetch(run, data, count * sizeof *ints);
    float *floats = mem_alloc(count, sizeof *floats, "test");
    assert_non_null(floats);
    for (uint64_t i = 0; i < count; i++)
        floats[i] = (float)ints[i];
    float *placed = place(run, floats, count * sizeof *floats, 0);
    emit(run, DTYPE_FP32, placed, count, -1.0f);
    mem_free(ints);
    mem_free(floats);
}

/* Memory of `count` elements of 4 or 8 bytes that are not of a dtype. */
static void *block_of(struct run *run, uint64_t count, uint64_t elem_bytes)
{
    return place(run, NULL, count * elem_bytes, run->shift * elem_bytes);
}

static int32_t *draw_chosen(struct run *run, uint64_t rows, uint64_t experts, uint64_t choices,
                            bool is_skewed)
{
    int32_t *chosen = mem_alloc(rows * choices, sizeof *chosen, "test");
    assert_non_null(chosen);
    fill_chosen(chosen, run->seed, rows, experts, choices, is_skewed);
    int32_t *placed = place(run, chosen, rows * choices * sizeof *chosen, run->shift * 4);
    mem_free(chosen);
    return placed;
}

/* channels: E; variant: see router_of. */
static void router_case(struct run *run, const struct shape *shape)
{
    uint64_t rows = shape->rows, experts = shape->channels, count = rows * experts;
    router_args args = router_of(shape->type, rows, experts, shape->variant);
    uint64_t choices = args.choices;
    args.logits = draw(run, DTYPE_FP32, count, 1, 2.0f);
    args.bias = shape->variant & 4 ? draw(run, DTYPE_FP32, experts, 2, 0.3f) : NULL;
    args.chosen = block_of(run, rows * choices, sizeof *args.chosen);
    args.weights = block(run, DTYPE_FP32, rows * choices);
    assert_int_equal(run->ops->router_forward(run->context, run->stream, &args), 0);
    emit_ints(run, args.chosen, rows * choices);
    emit(run, DTYPE_FP32, args.weights, rows * choices, 1e-6f);

    double *totals = mem_alloc(2 * experts + 1, sizeof *totals, "test");
    assert_non_null(totals);
    for (uint64_t e = 0; e < experts; e++)
        totals[e] = (double)rng_below(run->seed, 3, e, 100);
    args.totals = place(run, totals, (2 * experts + 1) * sizeof *totals, run->shift * 8);
    mem_free(totals);
    args.weights_grad = draw(run, DTYPE_FP32, rows * choices, 4, 1.0f);
    args.logits_grad = block(run, shape->type, count);
    assert_int_equal(run->ops->router_backward(run->context, run->stream, &args), 0);
    emit(run, shape->type, args.logits_grad, count, 1e-5f);
}

static void router(void **state)
{
    static const uint64_t sizes[][2] = {{5, 1}, {3, 2}, {9, 7}, {20, 8}, {9, 64}, {2, 600}};
    gpu_fixture *gpu = gpu_begin();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int variant = 0; variant < 96; variant++)
            if ((variant >> 3 & 3) < 3)
                check_case(gpu, "router", router_case,
                           &(struct shape){all_types[(variant + variant / 8 + (int)s) % 3],
                                           sizes[s][0], sizes[s][1], variant});
    gpu_end(gpu);
}

/* Logits that are not numbers: K different experts in every case, and NaN comes out. */
static void router_nan(void **state)
{
    enum { E = 40, K = 3 };
    gpu_fixture *gpu = gpu_begin();
    for (int variant = 0; variant < 8; variant++) {
        float logits[E], weights[K], bias[E] = {0};
        int32_t chosen[K];
        for (int e = 0; e < E; e++)
            logits[e] = variant & 1 || e == 7 ? NAN : 0.5f;
        router_args args = {.score = variant & 1 ? ROUTER_SIGMOID : ROUTER_SOFTMAX,
                            .rows = 1,
                            .experts = E,
                            .choices = K,
                            .groups = variant & 4 ? 2 : 0,
                            .groups_chosen = 1,
                            .group_best = 2,
                            .scale = 1.0f,
                            .logits = gpu_alloc_copy(gpu, logits, sizeof logits),
                            .bias = variant & 2 ? gpu_alloc_copy(gpu, bias, sizeof bias) : NULL,
                            .chosen = gpu_alloc(gpu, sizeof chosen),
                            .weights = gpu_alloc(gpu, sizeof weights)};
        assert_int_equal(cudai_router_forward(&gpu->context, gpu->stream, &args), 0);
        gpu_download(gpu, chosen, args.chosen, sizeof chosen);
        gpu_download(gpu, weights, args.weights, sizeof weights);
        assert_true(chosen[0] >= 0 && chosen[0] < chosen[1] && chosen[1] < chosen[2]);
        assert_true(chosen[2] < E && isnan(weights[0]));
        if (variant == 0) /* of equal logits, those with the lower index */
            assert_true(chosen[0] == 0 && chosen[2] == 2);
    }
    gpu_end(gpu);
}

/* channels: E; variant: choices, as choices_of. */
static void sums_case(struct run *run, const struct shape *shape)
{
    uint64_t rows = shape->rows, experts = shape->channels, width = 2 * experts + 1;
    uint64_t choices = choices_of(experts, shape->variant);
    router_sums_args args = {.rows = rows, .experts = experts, .choices = choices};
    double *totals = mem_alloc(width, sizeof *totals, "test");
    float *floats = mem_alloc(width, sizeof *floats, "test");
    assert_true(totals && floats);
    for (uint64_t i = 0; i < width; i++)
        totals[i] = (double)rng_below(run->seed, 3, i, 100);
    args.totals = place(run, totals, width * sizeof *totals, run->shift * 8);
    args.logits = draw(run, DTYPE_FP32, rows * experts, 2, 3.0f);
    args.chosen = draw_chosen(run, rows, experts, choices, false);
    args.scratch = scratch(run, run->ops->router_sums_scratch_bytes(run->context, rows, experts));
    assert_int_equal(run->ops->router_sums(run->context, run->stream, &args), 0);
    double *got = fetch(run, args.totals, width * sizeof *got);
    for (uint64_t i = 0; i < width; i++)
        floats[i] = (float)got[i];
    emit(run, DTYPE_FP32, place(run, floats, width * sizeof *floats, 0), width, 1e-5f);
    mem_free(totals);
    mem_free(floats);
    mem_free(got);
}

static void sums(void **state)
{
    static const uint64_t sizes[][2] = {{1, 1}, {65, 1}, {65, 7}, {100, 64}, {3, 1024}};
    gpu_fixture *gpu = gpu_begin();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int variant = 0; variant < 3; variant++)
            check_case(gpu, "router sums", sums_case,
                       &(struct shape){DTYPE_FP32, sizes[s][0], sizes[s][1], variant});
    gpu_end(gpu);
}

/* Sorts choices; *slot_count is the end of the slots. */
static experts_sort_args sort_choices(struct run *run, uint64_t rows, uint64_t experts, int which,
                                      bool is_skewed, uint64_t multiple, uint64_t *slot_count)
{
    experts_sort_args args = {.rows = rows,
                              .experts = experts,
                              .choices = choices_of(experts, which),
                              .multiple = multiple};
    args.chosen = draw_chosen(run, rows, experts, args.choices, is_skewed);
    args.offsets = block_of(run, experts + 1, sizeof *args.offsets);
    args.order =
        block_of(run, experts_slots_max(rows, experts, args.choices, multiple), sizeof *args.order);
    args.slots = block_of(run, rows * args.choices, sizeof *args.slots);
    assert_int_equal(run->ops->experts_sort(run->context, run->stream, &args), 0);
    int32_t *offsets = fetch(run, args.offsets, (experts + 1) * sizeof *offsets);
    *slot_count = (uint64_t)offsets[experts];
    mem_free(offsets);
    return args;
}

/* channels: E; variant bits 0-1: choices; bit 2: skewed; bits 3-4: multiple of 1, 3 or 16. */
static void sort_case(struct run *run, const struct shape *shape)
{
    static const uint64_t multiples[] = {1, 3, 16};
    uint64_t rows = shape->rows, experts = shape->channels, end;
    experts_sort_args args = sort_choices(run, rows, experts, shape->variant & 3,
                                          shape->variant & 4, multiples[shape->variant >> 3], &end);
    emit_ints(run, args.offsets, experts + 1);
    emit_ints(run, args.order, experts_slots_max(rows, experts, args.choices, args.multiple));
    emit_ints(run, args.slots, rows * args.choices);
}

static void sort(void **state)
{
    static const uint64_t sizes[][2] = {{1, 1}, {65, 1}, {3, 7}, {300, 9}, {40, 40}};
    gpu_fixture *gpu = gpu_begin();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int variant = 0; variant < 24; variant++)
            if ((variant & 3) < 3)
                check_case(gpu, "experts sort", sort_case,
                           &(struct shape){DTYPE_FP32, sizes[s][0], sizes[s][1], variant});
    gpu_end(gpu);
}

/* 5 experts. variant bits 0-1: choices; bit 2: skewed; bit 3: slots begin at multiples of 4; bit 4:
 * no weights, and no output, but with bit 3 a bias. The slots come in two calls. */
static void rows_case(struct run *run, const struct shape *shape)
{
    enum { EXPERTS = 5 };
    enum dtype type = shape->type;
    uint64_t rows = shape->rows, channels = shape->channels, count = rows * channels, slots;
    experts_sort_args sorted = sort_choices(run, rows, EXPERTS, shape->variant & 3,
                                            shape->variant & 4, shape->variant & 8 ? 4 : 1, &slots);
    uint64_t pairs = rows * sorted.choices, cut = slots / 3;
    float *weights = draw(run, DTYPE_FP32, pairs, 1, 1.0f);
    void *tokens = draw(run, type, count, 2, 1.0f);
    char *slot_rows = block(run, type, slots * channels);
    char *output = draw(run, type, slots * channels, 3, 1.0f);
    float *sums = draw(run, DTYPE_FP32, count, 4, 1.0f);
    float *weights_grad = draw(run, DTYPE_FP32, pairs, 5, 1.0f);
    void *bias = draw(run, type, channels, 6, 1.0f);
    bool is_plain = (shape->variant & 7) == 5; /* each slot is a choice of its own */
    float *slot_weights = draw(run, DTYPE_FP32, slots, 7, 1.0f);
    float *slot_grads = draw(run, DTYPE_FP32, slots, 8, 1.0f);
    for (int part = 0; part < 2; part++) {
        uint64_t begin = part ? cut : 0, begin_bytes = begin * channels * dtype_bytes(type);
        experts_rows_args args = {.type = type,
                                  .rows = rows,
                                  .choices = sorted.choices,
                                  .channels = channels,
                                  .slot_begin = begin,
                                  .slot_count = part ? slots - cut : cut,
                                  .order = sorted.order,
                                  .slots = sorted.slots,
                                  .weights = shape->variant & 16 ? NULL : weights,
                                  .tokens = tokens,
                                  .slot_rows = output + begin_bytes,
                                  .sums = sums,
                                  .weights_grad = weights_grad};
        assert_int_equal(run->ops->experts_combine(run->context, run->stream, &args), 0);
        args.weights = weights;
        args.slot_rows = slot_rows + begin_bytes;
        args.output = shape->variant & 16 ? NULL : output + begin_bytes;
        args.bias = (shape->variant & 24) == 24 ? bias : NULL;
        assert_int_equal(run->ops->experts_gather(run->context, run->stream, &args), 0);
        if (is_plain) {
            args.order = NULL;
            args.weights = slot_weights;
            args.weights_grad = slot_grads;
        }
        assert_int_equal(run->ops->experts_weights_backward(run->context, run->stream, &args), 0);
    }
    emit(run, DTYPE_FP32, sums, count, -1.0f);
    emit(run, type, slot_rows, slots * channels, -1.0f);
    emit(run, DTYPE_FP32, weights_grad, pairs, 3e-5f);
    emit(run, DTYPE_FP32, slot_grads, slots, 3e-5f);
}

static void rows(void **state)
{
    static const uint64_t sizes[][2] = {{1, 1}, {3, 7}, {17, 64}, {4, 1000}};
    gpu_fixture *gpu = gpu_begin();
    for (size_t t = 0; t < TYPE_COUNT; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int variant = 0; variant < 32; variant++)
                if ((variant & 3) < 3)
                    check_case(gpu, "experts rows", rows_case,
                               &(struct shape){all_types[t], sizes[s][0], sizes[s][1], variant});
    gpu_end(gpu);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(router), cmocka_unit_test(router_nan), cmocka_unit_test(sums),
        cmocka_unit_test(sort),   cmocka_unit_test(rows),
    };
    if (!rows_filter(argc, argv, "router|sums|sort|rows"))
        return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
