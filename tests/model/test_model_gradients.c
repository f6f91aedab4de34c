/* Gradients of tiny models of both families: against finite differences, between backends, between
 * chunk sizes, and the same bits on every call whatever the scratch held. Argument: the family or
 * variant. */
#include <math.h>

#include "tests/model/model_harness.h"
#include "tests/unit.h"

enum { SEED = 3, PROBES_PER_TENSOR = 5 };

static const char *instance = "gpt2";
static enum model_family family;

static model_spec tiny(bool tied)
{
    bool is_llama = family == MODEL_LLAMA;
    model_spec spec = {
        .hidden_size = 24,
        .ffn_size = is_llama ? 10 : 40, /* Llama: small, so that attention's gradients are larger */
        .vocab_size = 37,
        .seq_length = 9,
        .tie_embeddings = tied,
        .init_std = 0.3, /* large, so that every gradient stands above the noise */
    };
    harness_complete(instance, &spec);
    return spec;
}

static void start(harness *h, const kernel_ops *ops, const model_spec *spec, enum dtype type,
                  uint64_t chunk_rows, bool with_ignored)
{
    harness_start(h, ops, spec, type, chunk_rows, SEED, with_ignored);
}

static void check_finite_differences(bool tied)
{
    harness h;
    model_spec spec = tiny(tied);
    harness_take_all_experts(&spec);
    start(&h, &kernels_reference, &spec, DTYPE_FP32, 5, true); /* 18 rows: 5, 5, 5, 3 */
    harness_step(&h, 1.0f, KEPT_NONE);
    double worst = 0;
    for (uint32_t u = 0; u < h.self->unit_count; u++) {
        const model_unit *unit = &h.self->units[u];
        for (uint32_t i = 0; i < unit->tensor_count; i++) {
            const model_tensor *tensor = &unit->tensors[i];
            uint64_t count = tensor->rows * tensor->columns;
            for (uint64_t k = 0; k < PROBES_PER_TENSOR; k++) {
                uint64_t elem = rng_below(SEED, 100 + i, (uint64_t)u << 32 | k, count);
                /* Rows of the token table: one that occurs. */
                if (u == 0 && i == 0)
                    elem = (uint64_t)h.tokens[k] * tensor->columns + elem % tensor->columns;
                elem += tensor->offset_elems;
                double expected = harness_finite_difference(&h, u, elem), got = h.grads[u][elem];
                double error = fabs(got - expected) / (1 + fabs(expected));
                worst = fmax(worst, error);
                if (!(error < 1e-3))
                    fail_msg("%s element %llu: gradient %g, finite difference %g", tensor->name,
                             (unsigned long long)(elem - tensor->offset_elems), got, expected);
            }
        }
    }
    printf("seed %d, tied %d: worst error %.2g\n", SEED, tied, worst);
    harness_destroy(&h);
}

static void finite_differences(void **state)
{
    check_finite_differences(true);
    check_finite_differences(false);
}

/* |a - b| over |a|, both as vectors over all units. */
static double relative_distance(const harness *a, const harness *b)
{
    double distance = 0, length = 0;
    for (uint32_t u = 0; u < a->self->unit_count; u++)
        for (uint64_t i = 0; i < a->self->units[u].elems; i++) {
            double x = a->grads[u][i], y = b->grads[u][i];
            distance += (x - y) * (x - y);
            length += x * x;
        }
    return sqrt(distance / length);
}

/* Gradients of one micro-batch under another backend, type or chunk against fp32 reference. */
static double distance_to_reference(const kernel_ops *ops, enum dtype type, uint64_t chunk_rows,
                                    bool keep_saved, double *loss_error)
{
    harness a, b;
    model_spec spec = tiny(family == MODEL_LLAMA);
    start(&a, &kernels_reference, &spec, DTYPE_FP32, 0, true);
    start(&b, ops, &spec, type, chunk_rows, true);
    harness *both[] = {&a, &b};
    for (int i = 0; i < 2; i++) {
        harness_step(both[i], 0.25f, i == 1 && keep_saved ? KEPT_ALL : KEPT_NONE);
    }
    double distance = relative_distance(&a, &b);
    *loss_error = fabs(harness_loss_sum(&b) / harness_loss_sum(&a) - 1);
    harness_destroy(&a);
    harness_destroy(&b);
    return distance;
}

static void expect_close(const char *what, const kernel_ops *ops, enum dtype type,
                         uint64_t chunk_rows, bool keep_saved, double tolerance)
{
    double loss_error;
    double distance = distance_to_reference(ops, type, chunk_rows, keep_saved, &loss_error);
    printf("%s: gradients differ by %.2g, loss by %.2g\n", what, distance, loss_error);
    assert_true(distance < tolerance);
    assert_true(loss_error < tolerance);
}

/* The tolerance of bf16. Dropout leaves sums of fewer and larger terms, latents are narrow, and
 * some tokens choose other experts than in fp32. */
static double rounding(void)
{
    bool is_rough = strstr(instance, "-dropout") != NULL || family == MODEL_DEEPSEEK;
    return modeli_family_of(family)->experts != NULL ? 0.15 : is_rough ? 0.1 : 0.05;
}

static void chunks_agree(void **state)
{
    /* Sums over rows in another order: fp32 rounding only. */
    expect_close("chunks of 5", &kernels_reference, DTYPE_FP32, 5, false, 1e-6);
    expect_close("chunks of 1", &kernels_reference, DTYPE_FP32, 1, true, 1e-6);
    expect_close("bf16", &kernels_reference, DTYPE_BF16, 7, false, rounding());
}

static void cpu_agrees(void **state)
{
#ifdef HAVE_KERNELS_CPU
    expect_close("cpu fp32", &kernels_cpu, DTYPE_FP32, 7, false, 2e-6);
    expect_close("cpu fp32, saved kept", &kernels_cpu, DTYPE_FP32, 0, true, 2e-6);
    expect_close("cpu bf16", &kernels_cpu, DTYPE_BF16, 7, false, rounding());
#else
    skip();
#endif
}

/* Scratch contents, earlier calls and who keeps `saved` change no bit. */
static void same_bits(const kernel_ops *ops, enum dtype type)
{
    harness a, b;
    model_spec spec = tiny(true);
    start(&a, ops, &spec, type, 4, false);
    start(&b, ops, &spec, type, 4, false);
    b.poison = 0x3d; /* a small ordinary number */
    harness_random_tokens(&b, SEED + 9, false);
    harness_forward(&b, false);
    harness_backward(&b, 2.0f, KEPT_NONE);
    harness_random_tokens(&b, SEED, false);
    harness *both[] = {&a, &b};
    for (int i = 0; i < 2; i++) {
        harness_step(both[i], 1.0f, i == 1);
    }
    uint64_t rows = a.self->micro_batch * a.self->tokens;
    harness_expect_same_bits(&a, &b);
    for (uint64_t i = 0; i < rows; i++)
        assert_true(isfinite(a.losses[i]));

    /* The evaluation's losses are those of the training step. */
    harness_forward(&b, true);
    assert_memory_equal(a.losses, b.losses, rows * 4);

    /* Padding gets no gradient. */
    const model_unit *unit = &a.self->units[1];
    const model_tensor *last = &unit->tensors[unit->tensor_count - 1];
    for (uint64_t i = last->offset_elems + last->rows * last->columns; i < unit->elems; i++)
        assert_true(a.grads[1][i] == 0);
    harness_destroy(&a);
    harness_destroy(&b);
}

static void scratch_changes_nothing(void **state)
{
    same_bits(&kernels_reference, DTYPE_FP32);
    same_bits(&kernels_reference, DTYPE_BF16);
#ifdef HAVE_KERNELS_CPU
    same_bits(&kernels_cpu, DTYPE_FP32);
    same_bits(&kernels_cpu, DTYPE_BF16);
#endif
}

/* Gradients add up: two passes give twice the gradient, exactly where sums start from
 * themselves. */
static void gradients_are_added(void **state)
{
    harness h;
    model_spec spec = tiny(false);
    start(&h, &kernels_reference, &spec, DTYPE_FP32, 0, false);
    float **once = harness_alloc(h.self->unit_count * sizeof *once);
    harness_forget_grads(&h);
    for (int pass = 0; pass < 2; pass++) {
        harness_forward(&h, false);
        harness_backward(&h, 1.0f, KEPT_NONE);
        for (uint32_t u = 0; pass == 0 && u < h.self->unit_count; u++) {
            once[u] = harness_alloc(h.self->units[u].elems * 4);
            memcpy(once[u], h.grads[u], h.self->units[u].elems * 4);
        }
    }
    for (uint32_t u = 0; u < h.self->unit_count; u++) {
        for (uint64_t i = 0; i < h.self->units[u].elems; i++)
            assert_true(fabsf(h.grads[u][i] - 2 * once[u][i]) <= 1e-5f * (1 + fabsf(once[u][i])));
        mem_free(once[u]);
    }
    mem_free(once);
    harness_destroy(&h);
}

/* A token whose target is ignored has loss 0 and no influence on gradients. If all targets are
 * ignored, no token has any. */
static void ignored_targets(void **state)
{
    harness h;
    model_spec spec = tiny(true);
    start(&h, &kernels_reference, &spec, DTYPE_FP32, 5, false);
    uint64_t rows = h.self->micro_batch * h.self->tokens;
    for (uint64_t i = 0; i < rows; i++)
        h.targets[i] = -1;
    harness_step(&h, 1.0f, KEPT_NONE);
    for (uint64_t i = 0; i < rows; i++)
        assert_true(h.losses[i] == 0);
    for (uint32_t u = 0; u < h.self->unit_count; u++)
        for (uint64_t i = 0; i < h.self->units[u].elems; i++)
            assert_true(h.grads[u][i] == 0);
    harness_destroy(&h);
}

/* The logits of a row give that row's loss. */
static void logits_of_a_row(void **state)
{
    harness h;
    model_spec spec = tiny(false);
    start(&h, &kernels_reference, &spec, DTYPE_FP32, 1, false);
    harness_forward(&h, true);
    for (uint64_t row = 0; row < 18; row += 5)
        harness_check_row_logits(&h, row);
    harness_destroy(&h);
}

static void failed_prepare_can_be_repeated(void **state)
{
    model_spec spec = tiny(true);
    assert_true(harness_failed_prepares(&spec) >= 20);
}

/* Attention and positions look back only: a later token changes no earlier loss. In bert, whose
 * attention sees both sides, it changes all of its sequence. */
static void tokens_change_what_sees_them(void **state)
{
    harness h;
    model_spec spec = tiny(false);
    start(&h, &kernels_reference, &spec, DTYPE_FP32, 0, false);
    harness_forward(&h, true);
    float before[18];
    memcpy(before, h.losses, sizeof before);
    h.tokens[4] = (h.tokens[4] + 1) % 37;
    harness_forward(&h, true);
    for (uint64_t i = 0; i < 18; i++)
        assert_int_equal(before[i] == h.losses[i],
                         (i < 4 && !model_is_bidirectional(family)) || i >= 9);
    harness_destroy(&h);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        instance = argv[1];
    family = harness_family(instance);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finite_differences),
        cmocka_unit_test(chunks_agree),
        cmocka_unit_test(cpu_agrees),
        cmocka_unit_test(scratch_changes_nothing),
        cmocka_unit_test(gradients_are_added),
        cmocka_unit_test(ignored_targets),
        cmocka_unit_test(logits_of_a_row),
        cmocka_unit_test(tokens_change_what_sees_them),
        cmocka_unit_test(failed_prepare_can_be_repeated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
