/* Models whose units are cut in parts: losses and gradients against the same model in whole units
 * and against finite differences, in all working types, for parts from giant to tiny; kept
 * activations give the bits of recomputation; fp16 under a loss scale. The harness gives each pass
 * exactly what the pass says that it uses. Argument: the family or variant. */
#include <math.h>

#include "tests/model/model_harness.h"
#include "tests/unit.h"

enum { SEED = 5, PROBES_PER_TENSOR = 2 };

static const char *instance = "gpt2";
static enum model_family family;

/* Units of more than 4096 elements, so that there is something to cut. With 80 positions their
 * table is cut as well. */
static model_spec small(bool tied, uint64_t seq_length, uint64_t max_part_bytes)
{
    bool is_llama = family == MODEL_LLAMA;
    model_spec spec = {
        .hidden_size = 64,
        .ffn_size = is_llama ? 88 : 160,
        .vocab_size = 157,
        .seq_length = seq_length,
        .tie_embeddings = tied,
        .init_std = 0.15,
        .max_part_bytes = max_part_bytes,
    };
    harness_complete(instance, &spec);
    if (max_part_bytes == 0)
        spec.experts_per_unit = spec.expert_count;
    return spec;
}

static void cut_into(model_spec *spec, uint64_t max_part_bytes)
{
    spec->max_part_bytes = max_part_bytes;
    spec->experts_per_unit = 2;
}

static void start(harness *h, const kernel_ops *ops, const model_spec *spec, enum dtype type,
                  uint64_t chunk_rows)
{
    harness_start(h, ops, spec, type, chunk_rows, SEED, true);
}

/* The unit and tensor of a whole model that a part's tensor belongs to. */
static const model_tensor *whole_tensor(const model *whole, const char *name, uint32_t *unit)
{
    for (*unit = 0; *unit < whole->unit_count; (*unit)++)
        for (uint32_t i = 0; i < whole->units[*unit].tensor_count; i++)
            if (strcmp(whole->units[*unit].tensors[i].name, name) == 0)
                return &whole->units[*unit].tensors[i];
    fail_msg("the whole model has no tensor %s", name);
    return NULL;
}

/* |a - b| over |a| as vectors over all parameters; `cut` may be cut, `whole` is not. */
static double relative_distance(const harness *whole, const harness *cut)
{
    double distance = 0, length = 0;
    for (uint32_t u = 0; u < cut->self->unit_count; u++) {
        const model_unit *unit = &cut->self->units[u];
        for (uint32_t i = 0; i < unit->tensor_count; i++) {
            const model_tensor *tensor = &unit->tensors[i];
            uint32_t from;
            const model_tensor *same = whole_tensor(whole->self, tensor->name, &from);
            const float *a =
                whole->grads[from] + same->offset_elems + tensor->row_begin * tensor->columns;
            const float *b = cut->grads[u] + tensor->offset_elems;
            for (uint64_t k = 0; k < tensor->rows * tensor->columns; k++) {
                distance += ((double)a[k] - b[k]) * ((double)a[k] - b[k]);
                length += (double)a[k] * a[k];
            }
        }
    }
    return sqrt(distance / length);
}

static double loss_distance(const harness *a, const harness *b)
{
    double worst = 0;
    for (uint64_t i = 0; i < a->self->micro_batch * a->self->tokens; i++)
        worst = fmax(worst, fabs((double)a->losses[i] - b->losses[i]));
    return worst;
}

/* The padding of a unit gets no gradient. */
static void expect_padding_untouched(const harness *h)
{
    for (uint32_t u = 0; u < h->self->unit_count; u++) {
        const model_unit *unit = &h->self->units[u];
        uint64_t end = 0;
        for (uint32_t i = 0; i < unit->tensor_count; i++) {
            for (; end < unit->tensors[i].offset_elems; end++)
                assert_true(h->grads[u][end] == 0);
            end += unit->tensors[i].rows * unit->tensors[i].columns;
        }
        for (; end < unit->elems; end++)
            assert_true(h->grads[u][end] == 0);
    }
}

static void compare(const kernel_ops *ops, enum dtype type, bool tied, uint64_t max_part_bytes,
                    const kernel_ops *reference_ops, enum dtype reference_type, double tolerance)
{
    harness whole, cut;
    model_spec spec = small(tied, 80, 0);
    if (type != reference_type) /* rounding would choose other experts */
        harness_take_all_experts(&spec);
    start(&whole, reference_ops, &spec, reference_type, 0);
    cut_into(&spec, max_part_bytes);
    start(&cut, ops, &spec, type, 48); /* 160 rows: the last chunk is shorter */
    harness_step(&whole, 0.5f, KEPT_NONE);
    harness_step(&cut, 0.5f, KEPT_NONE);
    double distance = relative_distance(&whole, &cut), losses = loss_distance(&whole, &cut);
    printf("%s %s tied %d, parts of %llu, %u units: gradients differ by %.2g, a loss by %.2g\n",
           ops->name, dtype_name(type), tied, (unsigned long long)max_part_bytes,
           cut.self->unit_count, distance, losses);
    assert_true(distance < tolerance);
    assert_true(losses < tolerance * 10);
    expect_padding_untouched(&cut);
    /* The evaluation's losses are those of the training step. */
    uint64_t bytes = cut.self->micro_batch * cut.self->tokens * sizeof(float);
    float *before = harness_alloc(bytes);
    memcpy(before, cut.losses, bytes);
    harness_forward(&cut, true);
    assert_memory_equal(before, cut.losses, bytes);
    mem_free(before);
    harness_destroy(&whole);
    harness_destroy(&cut);
}

static const uint64_t part_bytes[] = {1 << 30, 60000, 40000, 16384};

/* Against the reference backend, which sums in double, the cut changes fp32 rounding alone. */
static void parts_agree_with_the_whole(void **state)
{
    for (int tied = 0; tied < 2; tied++)
        for (uint32_t i = 0; i < sizeof part_bytes / sizeof part_bytes[0]; i++)
            compare(&kernels_reference, DTYPE_FP32, tied, part_bytes[i], &kernels_reference,
                    DTYPE_FP32, 1e-6);
}

static void backends_agree(void **state)
{
#ifdef HAVE_KERNELS_CPU
    for (int tied = 0; tied < 2; tied++)
        for (uint32_t i = 2; i < sizeof part_bytes / sizeof part_bytes[0]; i++)
            compare(&kernels_cpu, DTYPE_FP32, tied, part_bytes[i], &kernels_reference, DTYPE_FP32,
                    2e-6);
#else
    skip();
#endif
}

/* 16-bit types round at every step: against fp32, within their precision. */
static void halves_agree(void **state)
{
    for (int tied = 0; tied < 2; tied++) {
        compare(&kernels_reference, DTYPE_BF16, tied, 8192, &kernels_reference, DTYPE_FP32, 0.04);
        compare(&kernels_reference, DTYPE_FP16, tied, 8192, &kernels_reference, DTYPE_FP32, 0.006);
#ifdef HAVE_KERNELS_CPU
        enum dtype type = tied ? DTYPE_BF16 : DTYPE_FP16;
        compare(&kernels_cpu, type, tied, 30000, &kernels_reference, DTYPE_FP32,
                tied ? 0.04 : 0.006);
#endif
    }
}

/* ---- finite differences ---- */

static void finite_differences(void **state)
{
    harness h;
    model_spec spec = small(true, 7, 40000);
    spec.num_layers = 1;
    harness_take_all_experts(&spec);
    start(&h, &kernels_reference, &spec, DTYPE_FP32, 5);
    harness_step(&h, 1.0f, KEPT_NONE);
    double worst = 0;
    for (uint32_t u = 0; u < h.self->unit_count; u++)
        for (uint32_t i = 0; i < h.self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &h.self->units[u].tensors[i];
            uint64_t count = tensor->rows * tensor->columns;
            for (uint64_t k = 0; k < PROBES_PER_TENSOR; k++) {
                uint64_t elem =
                    tensor->offset_elems + rng_below(SEED, 100 + i, (uint64_t)u << 32 | k, count);
                double expected = harness_finite_difference(&h, u, elem), got = h.grads[u][elem];
                double error = fabs(got - expected) / (1 + fabs(expected));
                worst = fmax(worst, error);
                if (!(error < 1e-3))
                    fail_msg("%s of %s, element %llu: gradient %g, finite difference %g",
                             tensor->name, h.self->units[u].name,
                             (unsigned long long)(elem - tensor->offset_elems), got, expected);
            }
        }
    printf("seed %d, %u units: worst error %.2g\n", SEED, h.self->unit_count, worst);
    harness_destroy(&h);
}

/* ---- bits ---- */

/* How much of `saved` was kept from the forward, what scratch held and earlier calls change no bit.
 * Only parts keep all or nothing. */
static void same_bits(const kernel_ops *ops, enum dtype type, uint64_t max_part_bytes,
                      enum kept kept)
{
    harness a, b;
    model_spec spec = small(true, 12, max_part_bytes);
    start(&a, ops, &spec, type, 10);
    start(&b, ops, &spec, type, 10);
    b.poison = 0x3d; /* a small ordinary number */
    harness_random_tokens(&b, SEED + 9, false);
    harness_step(&b, 2.0f, KEPT_NONE);
    harness_random_tokens(&b, SEED, true);
    harness_step(&a, 1.0f, KEPT_NONE);
    harness_step(&b, 1.0f, kept);
    harness_expect_same_bits(&a, &b);
    const struct stage *block = &a.self->stages[1];
    assert_true(block->is_cut ? block->selective_bytes == block->saved_bytes
                              : block->selective_bytes < block->saved_bytes);
    for (uint64_t i = 0; i < a.self->micro_batch * a.self->tokens; i++)
        assert_true(isfinite(a.losses[i]));
    harness_destroy(&a);
    harness_destroy(&b);
}

static void kept_activations_give_the_bits_of_recomputation(void **state)
{
    const enum dtype types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};
    const uint64_t bytes[] = {0, 16384, 60000};
    for (uint32_t i = 0; i < 3 * 3 * KEPT_COUNT; i++) {
        enum dtype type = types[i % 3];
        enum kept kept = (enum kept)(i / 9);
        same_bits(&kernels_reference, type, bytes[i / 3 % 3], kept);
#ifdef HAVE_KERNELS_CPU
        same_bits(&kernels_cpu, type, bytes[i / 3 % 3], kept);
#endif
    }
}

/* Passes go over all micro-batches before the next one runs, each with its own `saved`: the bits of
 * one micro-batch after the other. */
static void micro_batches_pass_by_pass(void **state)
{
    harness h[2], together[2];
    model_spec spec = small(true, 10, 16384);
    for (int i = 0; i < 2; i++) {
        start(&h[i], &kernels_reference, &spec, DTYPE_BF16, 8);
        start(&together[i], &kernels_reference, &spec, DTYPE_BF16, 8);
        harness_random_tokens(&h[i], SEED + (uint64_t)i, true);
        harness_random_tokens(&together[i], SEED + (uint64_t)i, true);
        harness_forget_grads(&h[i]);
        harness_forget_grads(&together[i]);
    }
    /* One set of gradients each. */
    float **own_grads[] = {h[1].grads, together[1].grads};
    bool *own_begun[] = {h[1].begun, together[1].begun};
    h[1].grads = h[0].grads;
    h[1].begun = h[0].begun;
    together[1].grads = together[0].grads;
    together[1].begun = together[0].begun;
    uint32_t last = h[0].self->stage_count - 1;
    for (uint32_t s = 0; s <= 2 * last; s++) {
        bool forward = s < last;
        uint32_t stage = forward ? s : 2 * last - s;
        for (int i = 0; i < 2; i++)
            harness_fresh(&together[i], &together[i].saved, h[0].self->stages[stage].saved_bytes);
        for (uint32_t phase = 0; phase < PHASE_COUNT; phase++)
            for (uint32_t p = 0; p < h[0].self->stages[stage].pass_count[phase]; p++)
                for (int i = 0; i < 2 && forward == (phase == PHASE_FORWARD); i++)
                    harness_pass(&together[i], (enum phase)phase, stage, p, 1.0f, KEPT_NONE);
    }
    /* Stage by stage too, as a tied embedding's gradient gets the head's share first. */
    for (int i = 0; i < 2; i++)
        harness_forward(&h[i], false);
    for (uint32_t stage = last + 1; stage-- > 0;)
        for (int i = 0; i < 2; i++) {
            harness_fresh(&h[i], &h[i].saved, h[i].self->stages[stage].saved_bytes);
            harness_phase(&h[i], PHASE_RECOMPUTE, stage, 1.0f, KEPT_NONE);
            harness_phase(&h[i], PHASE_BACKWARD, stage, 1.0f, KEPT_NONE);
        }
    for (int i = 0; i < 2; i++)
        harness_expect_same_bits(&h[i], &together[i]);
    h[1].grads = own_grads[0];
    together[1].grads = own_grads[1];
    h[1].begun = own_begun[0];
    together[1].begun = own_begun[1];
    for (int i = 0; i < 2; i++) {
        harness_destroy(&h[i]);
        harness_destroy(&together[i]);
    }
}

static void failed_prepare_can_be_repeated(void **state)
{
    model_spec spec = small(false, 10, 16384);
    int made = harness_failed_prepares(&spec);
    printf("%d products\n", made);
    assert_true(made > 20 && made < 80);
}

/* ---- logits ---- */

static void logits_come_part_by_part(void **state)
{
    for (int tied = 0; tied < 2; tied++) {
        harness h;
        model_spec spec = small(tied, 9, 16384);
        start(&h, &kernels_reference, &spec, DTYPE_FP32, 4);
        harness_forward(&h, true);
        assert_true(h.self->stages[h.self->stage_count - 1].is_cut);
        for (uint64_t row = 0; row < 18; row += 4)
            if (h.targets[row] >= 0)
                harness_check_row_logits(&h, row);
        harness_destroy(&h);
    }
}

/* ---- fp16 ---- */

/* A loss scale goes through to the accumulators; one that is too large shows there as inf or
 * NaN. */
static void check_loss_scale(const kernel_ops *ops, uint64_t max_part_bytes)
{
    harness whole, half;
    model_spec spec = small(true, 12, 0);
    harness_take_all_experts(&spec);
    start(&whole, &kernels_reference, &spec, DTYPE_FP32, 0);
    cut_into(&spec, max_part_bytes);
    start(&half, ops, &spec, DTYPE_FP16, 10);
    float scale = 1.0f / 24, loss_scale = 1024;
    harness_step(&whole, scale, KEPT_NONE);
    harness_step(&half, scale * loss_scale, KEPT_NONE);
    uint64_t rows = half.self->micro_batch * half.self->tokens;
    for (uint32_t u = 0; u < half.self->unit_count; u++)
        for (uint64_t i = 0; i < half.self->units[u].elems; i++)
            half.grads[u][i] /= loss_scale;
    double distance = relative_distance(&whole, &half);
    printf("%s fp16, parts of %llu, loss scale %g: gradients differ by %.2g\n", ops->name,
           (unsigned long long)max_part_bytes, loss_scale, distance);
    assert_true(distance < 0.006);

    harness_step(&half, scale * 0x1p24f, KEPT_NONE);
    bool overflow = false;
    for (uint32_t u = 0; u < half.self->unit_count; u++)
        for (uint64_t i = 0; i < half.self->units[u].elems; i++)
            overflow = overflow || !isfinite(half.grads[u][i]);
    assert_true(overflow);
    for (uint64_t i = 0; i < rows; i++) /* the loss is never scaled */
        assert_true(isfinite(half.losses[i]));
    harness_destroy(&whole);
    harness_destroy(&half);
}

static void fp16_under_a_loss_scale(void **state)
{
    const uint64_t bytes[] = {0, 8192, 30000};
    for (uint32_t i = 0; i < 3; i++) {
        check_loss_scale(&kernels_reference, bytes[i]);
#ifdef HAVE_KERNELS_CPU
        check_loss_scale(&kernels_cpu, bytes[i]);
#endif
    }
}

/* Large values inside the model that fit into fp16 must not overflow on the way: sums of norms, of
 * softmax and of products are fp32. */
static void fp16_sums_do_not_overflow(void **state)
{
    if (family == MODEL_OLMO2)
        skip(); /* its matrices read the residual stream itself, whose products would overflow */
    const kernel_ops *backends[] = {
        &kernels_reference,
#ifdef HAVE_KERNELS_CPU
        &kernels_cpu,
#endif
    };
    for (uint32_t b = 0; b < sizeof backends / sizeof backends[0]; b++)
        for (uint64_t bytes = 0; bytes <= 8192; bytes += 8192) {
            harness h;
            model_spec spec = small(true, 12, bytes);
            spec.init_std = 4; /* residuals in the thousands, squares far above 65504 */
            start(&h, backends[b], &spec, DTYPE_FP16, 10);
            for (uint32_t u = 0; u < h.self->unit_count; u++)
                for (uint32_t i = 0; i < h.self->units[u].tensor_count; i++) {
                    const model_tensor *tensor = &h.self->units[u].tensors[i];
                    bool is_table = strstr(tensor->name, "wte") || strstr(tensor->name, "embed_") ||
                                    strstr(tensor->name, "_embeddings");
                    float factor = is_table ? 64 : strstr(tensor->name, "down") ? 0.01f : 1;
                    for (uint64_t k = 0; k < tensor->rows * tensor->columns; k++)
                        h.masters[u][tensor->offset_elems + k] *= factor;
                }
            harness_copy_params(&h);
            harness_step(&h, 0x1p-14f, KEPT_NONE);
            double largest = 0;
            const uint16_t *first = h.boundary[0];
            for (uint64_t i = 0; i < h.self->boundary_bytes / 2; i++)
                largest = fmax(largest, fabs((double)fp32_from_fp16(first[i])));
            assert_true(largest > 600); /* its square is beyond fp16 */
            for (uint64_t i = 0; i < h.self->micro_batch * h.self->tokens; i++)
                assert_true(isfinite(h.losses[i]));
            for (uint32_t u = 0; u < h.self->unit_count; u++)
                for (uint64_t i = 0; i < h.self->units[u].elems; i++)
                    assert_true(isfinite(h.grads[u][i]));
            harness_destroy(&h);
        }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        instance = argv[1];
    family = harness_family(instance);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_agree_with_the_whole),
        cmocka_unit_test(backends_agree),
        cmocka_unit_test(halves_agree),
        cmocka_unit_test(finite_differences),
        cmocka_unit_test(kept_activations_give_the_bits_of_recomputation),
        cmocka_unit_test(micro_batches_pass_by_pass),
        cmocka_unit_test(failed_prepare_can_be_repeated),
        cmocka_unit_test(logits_come_part_by_part),
        cmocka_unit_test(fp16_under_a_loss_scale),
        cmocka_unit_test(fp16_sums_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
