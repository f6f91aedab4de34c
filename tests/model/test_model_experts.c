/* Mixtures of experts beyond what the tests of all families show: how experts are cut into units,
 * and that the cut changes no bit; experts that no token or every token chose; the losses of the
 * routers; what is refused. */
#include <math.h>

#include "tests/model/mixture_harness.h"
#include "tests/unit.h"

/* ---- units ---- */

static void units_by_hand(void **state)
{
    static const char *const names[] = {
        "embed",
        "block.0",
        "block.0.router.0",
        "block.0.experts.0",
        "block.0.experts.1",
        "block.0.experts.2",
        "block.1",
        "block.1.router.0",
        "block.1.experts.0",
        "block.1.experts.1",
        "block.1.experts.2",
        "head",
    };
    model_spec spec = mixture("mixtral", 2);
    model *self;
    assert_ok(model_create(&spec, DTYPE_BF16, 1, &self));
    assert_int_equal(self->stage_count, 6);
    assert_int_equal(self->unit_count, 12);
    for (uint32_t u = 0; u < 12; u++)
        assert_string_equal(self->units[u].name, names[u]);
    for (uint32_t s = 1; s < 5; s++) {
        assert_int_equal(model_block_of(self, s), (s - 1) / 2);
        assert_int_equal(self->stages[s].is_cut, s % 2 == 0);
        assert_int_equal(self->stages[s].pass_count[PHASE_FORWARD], s % 2 == 0 ? 4 : 1);
        assert_int_equal(self->stages[s].pass_count[PHASE_RECOMPUTE], s % 2 == 0 ? 1 : 0);
    }
    /* The last part has one expert: rows 4 * 2 * 8 to 5 * 2 * 8 of gate and up. */
    const model_tensor *up = &self->units[5].tensors[0], *down = &self->units[5].tensors[1];
    assert_int_equal(self->units[5].tensor_count, 2);
    assert_string_equal(up->name, "model.layers.0.mlp.experts.gate_up_proj");
    assert_string_equal(down->name, "model.layers.0.mlp.experts.down_proj");
    assert_int_equal(up->row_begin, 64);
    assert_int_equal(up->rows, 16);
    assert_int_equal(up->whole_rows, 80);
    assert_int_equal(up->columns, 24);
    assert_int_equal(down->row_begin, 4 * 24);
    assert_int_equal(down->rows, 24);
    assert_int_equal(down->columns, 8);
    assert_int_equal(self->units[5].param_count, 3 * 24 * 8);
    /* A token chooses a pair: 3 of 10 pairs have none of 2 experts, 6 of 10 not a given one. */
    const struct pass *passes = self->stages[2].passes[PHASE_FORWARD];
    assert_int_equal(passes[0].told_begin, passes[1].units[0]);
    assert_int_equal(passes[0].told_count, 3);
    assert_int_equal(passes[1].told_count, 0);
    /* The host must know what the router chose. A router is computed again without that. */
    assert_false(passes[0].reads_back || self->stages[2].passes[PHASE_RECOMPUTE][0].reads_back);
    for (int p = 0; p < 3; p++) {
        assert_int_equal(passes[1 + p].reads_back, p == 0);
        assert_int_equal(self->stages[2].passes[PHASE_BACKWARD][p].reads_back, p == 0);
    }
    assert_true(!(passes[0].miss > 0));
    assert_true(fabs(passes[1].miss - 0.3) < 1e-15 && fabs(passes[3].miss - 0.6) < 1e-15);
    assert_true(fabs(self->stages[2].passes[PHASE_BACKWARD][0].miss - 0.6) < 1e-15);
    /* Without a number, all that make a useful transfer. */
    model_destroy(self);
    spec.experts_per_unit = 0;
    assert_ok(model_create(&spec, DTYPE_BF16, 1, &self));
    assert_int_equal(self->unit_count, 8);
    model_destroy(self);
    /* Each of 8 of Mixtral's experts is a unit, and so are 2 of Qwen3's 128. */
    spec = mixture("mixtral", 0);
    spec.hidden_size = 4096;
    spec.num_heads = 32;
    spec.expert_ffn_size = 14336;
    spec.expert_count = 8;
    assert_ok(model_create(&spec, DTYPE_BF16, 1, &self));
    assert_int_equal(self->stages[2].pass_count[PHASE_FORWARD], 9);
    model_destroy(self);
    spec = mixture("qwen3_moe", 0);
    spec.hidden_size = 2048;
    spec.num_heads = 32;
    spec.expert_ffn_size = 768;
    spec.expert_count = 128;
    assert_ok(model_create(&spec, DTYPE_BF16, 1, &self));
    assert_int_equal(self->stages[2].pass_count[PHASE_FORWARD], 1 + 64);
    model_destroy(self);
}

/* 6 for each parameter that multiplies a token: of 5 experts those of 2. */
static void flops_by_hand(void **state)
{
    model_spec spec = mixture("mixtral", 2);
    model *self;
    assert_ok(model_create(&spec, DTYPE_BF16, 1, &self));
    uint64_t attention = 24 * (24 + 2 * 12) + 24 * 24, router = EXPERTS * 24;
    uint64_t experts = 2 * 3 * 24 * 8, output = 37 * 24;
    double expected = 6.0 * (double)(2 * (attention + router + experts) + output) * 70;
    expected += 2 * 12.0 * 24 * 70 * 70 / 2;
    assert_true(fabs(model_step_flops(self, 70) / expected - 1) < 1e-12);
    model_destroy(self);
}

/* ---- bits ---- */

static float *grad_at(const harness *h, const char *name, uint64_t at)
{
    return value_at(h, h->grads, name, at);
}

static void expect_same_grads(const harness *a, const harness *b)
{
    for (uint32_t u = 0; u < a->self->unit_count; u++)
        for (uint32_t i = 0; i < a->self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &a->self->units[u].tensors[i];
            uint64_t begin = tensor->row_begin * tensor->columns;
            const float *own = a->grads[u] + tensor->offset_elems;
            for (uint64_t k = 0; k < tensor->rows * tensor->columns; k++)
                assert_memory_equal(&own[k], grad_at(b, tensor->name, begin + k), sizeof *own);
        }
}

/* Adapters of everything that may have some. */
static void add_lora(model_spec *spec, uint64_t rank)
{
    uint32_t count = 0;
    while (model_lora_target(spec->family, count) != NULL)
        count++;
    if (rank > 0)
        spec->lora = (model_lora){.rank = rank, .alpha = 4.5, .targets = (1u << count) - 1};
}

/* How experts are cut into units changes neither losses nor gradients; and neither does whether the
 * passes of a layer tell each other the offsets of its slots. */
static void compare_cuts(const kernel_ops *ops, const char *instance, enum dtype type,
                         uint64_t rank)
{
    harness first, other;
    int32_t offsets[MODEL_OFFSETS_MAX];
    model_spec spec = mixture(instance, EXPERTS);
    add_lora(&spec, rank);
    harness_start(&first, ops, &spec, type, 0, SEED, true);
    harness_step(&first, 0.5f, KEPT_NONE);
    for (uint64_t per_unit = 1; per_unit < EXPERTS; per_unit++) {
        spec = mixture(instance, per_unit);
        add_lora(&spec, rank);
        harness_start(&other, ops, &spec, type, 0, SEED, true);
        other.offsets = per_unit % 2 ? offsets : NULL;
        harness_step(&other, 0.5f, KEPT_ALL);
        assert_memory_equal(first.losses, other.losses,
                            first.self->micro_batch * first.self->tokens * sizeof(float));
        expect_same_grads(&first, &other);
        harness_destroy(&other);
    }
    harness_destroy(&first);
}

static int read_backs;

static int count_read_back(kernel_context *context, void *stream, const read_back_args *args)
{
    read_backs++;
    return kernels_reference.read_back(context, stream, args);
}

/* In each direction, of the passes of a layer of experts the first one alone waits for the device,
 * if it has a place where it can leave the offsets. */
static void a_layer_reads_back_once(void **state)
{
    static const char *const instances[] = {"mixtral", "qwen2_moe"};
    kernel_ops counting = kernels_reference;
    counting.read_back = count_read_back;
    for (int i = 0; i < 2; i++) {
        harness h;
        int32_t offsets[MODEL_OFFSETS_MAX];
        model_spec spec = mixture(instances[i], 2);
        int planned = 0, layers = i == 0 ? 2 : 4; /* qwen2_moe: shared experts too */
        harness_start(&h, &counting, &spec, DTYPE_FP32, 0, SEED, true);
        for (uint32_t s = 0; s < h.self->stage_count; s++)
            for (int phase = 0; phase < PHASE_COUNT; phase++)
                for (uint32_t p = 0; p < h.self->stages[s].pass_count[phase]; p++)
                    planned += h.self->stages[s].passes[phase][p].reads_back;
        assert_int_equal(planned, 2 * layers);
        h.offsets = offsets;
        read_backs = 0;
        harness_step(&h, 0.5f, KEPT_NONE);
        assert_int_equal(read_backs, planned);
        h.offsets = NULL;
        harness_step(&h, 0.5f, KEPT_NONE);
        assert_true(read_backs > 2 * planned);
        harness_destroy(&h);
    }
}

static void cuts_change_no_bit(void **state)
{
    static const char *const instances[] = {"mixtral", "qwen2_moe", "olmoe", "gpt_oss"};
    for (int i = 0; i < 4; i++) {
        compare_cuts(&kernels_reference, instances[i], DTYPE_BF16, 0);
#ifdef HAVE_KERNELS_CPU
        compare_cuts(&kernels_cpu, instances[i], DTYPE_FP32, 0);
        compare_cuts(&kernels_cpu, instances[i], DTYPE_BF16, 3);
#endif
    }
}

/* ---- experts with all tokens, and with none ---- */

/* Makes the router of block 0 prefer expert 3 for all tokens, and avoid expert 1: the norm before
 * it gets a bias by a large common input, so that the logits follow these rows. */
static void prefer(harness *h)
{
    model *self = h->self;
    uint64_t columns = self->spec.hidden_size;
    for (uint32_t u = 0; u < self->unit_count; u++) {
        const model_tensor *tensors = self->units[u].tensors;
        for (uint32_t i = 0; i < self->units[u].tensor_count; i++) {
            float *data = h->masters[u] + tensors[i].offset_elems;
            if (strcmp(tensors[i].name, "model.embed_tokens.weight") == 0)
                for (uint64_t row = 0; row < self->spec.vocab_size; row++)
                    data[row * columns] = 100;
            if (strcmp(tensors[i].name, "model.layers.0.mlp.gate.weight") == 0)
                for (uint64_t e = 0; e < EXPERTS; e++)
                    data[e * columns] = e == 3 ? 4 : e == 1 ? -4 : 0;
        }
    }
    harness_copy_params(h);
}

static double size_of_rows(const harness *h, const char *name, uint64_t columns, uint64_t begin,
                           uint64_t end)
{
    double sum = 0;
    for (uint64_t at = begin * columns; at < end * columns; at++) {
        double value = *grad_at(h, name, at);
        sum += value * value;
    }
    return sum;
}

static void all_and_none(void **state)
{
    static const char up[] = "model.layers.0.mlp.experts.gate_up_proj";
    static const char down[] = "model.layers.0.mlp.experts.down_proj";
    harness h;
    model_spec spec = mixture("mixtral", 2);
    harness_start(&h, &kernels_reference, &spec, DTYPE_FP32, 0, SEED, false);
    prefer(&h);
    harness_step(&h, 1.0f, KEPT_NONE); /* gradients begin as NaN */
    for (uint64_t e = 0; e < EXPERTS; e++) {
        double all = size_of_rows(&h, up, 24, e * 16, (e + 1) * 16) +
                     size_of_rows(&h, down, 8, e * 24, (e + 1) * 24);
        printf("expert %llu: %g\n", (unsigned long long)e, all);
        assert_true(e == 1 ? all == 0 : all >= 0);
        assert_true(e != 3 || all > 0);
    }
    /* A second micro-batch adds to them. */
    harness_forward(&h, false);
    harness_backward(&h, 1.0f, KEPT_NONE);
    assert_true(size_of_rows(&h, up, 24, 16, 32) == 0);
    harness_destroy(&h);
}

/* ---- the losses of the routers ---- */

/* All losses of a step: those of tokens with the factor 1. */
static double whole_loss(harness *h)
{
    const model_spec *spec = &h->self->spec;
    double balance, z;
    harness_forward(h, true);
    model_router_losses(h->self, h->totals, &balance, &z);
    return harness_loss_sum(h) +
           (double)h->router_scale * (spec->balance_coef * balance + spec->router_z_coef * z);
}

/* The slope of the whole loss by one parameter; NAN where a step changes a choice. */
static double slope_of(harness *h, uint32_t unit, uint64_t elem)
{
    float *param = (float *)h->params[unit] + elem, value = *param;
    double slope[2], counts[2 * EXPERTS];
    uint64_t counts_bytes = h->self->spec.expert_count * sizeof *counts;
    float step = 1.0f / 128;
    bool is_same = true;
    (void)whole_loss(h);
    assert_true(counts_bytes <= sizeof counts);
    memcpy(counts, h->totals, counts_bytes);
    for (int i = 0; i < 2; i++, step /= 2) {
        double sum[2];
        for (int k = 0; k < 2; k++) {
            *param = k ? value + step : value - step;
            sum[k] = whole_loss(h);
            is_same = is_same && memcmp(counts, h->totals, counts_bytes) == 0;
        }
        slope[i] = (sum[1] - sum[0]) / (2 * (double)step);
    }
    *param = value;
    return is_same ? (4 * slope[1] - slope[0]) / 3 : NAN;
}

/* The gradients of all losses against finite differences, in every tensor. */
static void check_router_losses(const char *instance)
{
    harness h;
    model_spec spec = mixture(instance, 2);
    spec.seq_length = 9;
    harness_start(&h, &kernels_reference, &spec, DTYPE_FP32, 0, SEED, true);
    h.router_scale = 3;
    harness_step(&h, 1.0f, KEPT_NONE);
    int probes = 0, skipped = 0;
    for (uint32_t u = 0; u < h.self->unit_count; u++)
        for (uint32_t i = 0; i < h.self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &h.self->units[u].tensors[i];
            for (uint64_t k = 0; k < 4; k++, probes++) {
                uint64_t elem = tensor->offset_elems +
                                rng_below(SEED, 100 + i, u * 8 + k, tensor->rows * tensor->columns);
                double expected = slope_of(&h, u, elem), got = h.grads[u][elem];
                if (isnan(expected))
                    skipped++;
                else if (!(fabs(got - expected) < 1e-3 * (1 + fabs(expected))))
                    fail_msg("%s: gradient %g, finite difference %g", tensor->name, got, expected);
            }
        }
    printf("%s: %d probes, %d of them skipped\n", instance, probes, skipped);
    assert_true(skipped < probes / 4);
    harness_destroy(&h);
}

static void router_losses_have_gradients(void **state)
{
    check_router_losses("qwen2_moe");
    check_router_losses(
        "deepseek-moe"); /* the first block has no router, and there is no balance */
}

/* By hand, if all logits of all routers are 0: z is log(E)^2, and each token has the first two
 * experts, so the balance is E * 2 * (1 / E). No gradient is left of the balance. */
static void router_losses_by_hand(void **state)
{
    harness h;
    double balance, z;
    model_spec spec = mixture("mixtral", 2);
    harness_start(&h, &kernels_reference, &spec, DTYPE_FP32, 0, SEED, true);
    for (uint32_t u = 0; u < h.self->unit_count; u++)
        for (uint32_t i = 0; i < h.self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &h.self->units[u].tensors[i];
            if (strstr(tensor->name, "mlp.gate.weight"))
                memset((float *)h.params[u] + tensor->offset_elems, 0,
                       tensor->rows * tensor->columns * sizeof(float));
        }
    harness_forward(&h, true);
    model_router_losses(h.self, h.totals, &balance, &z);
    assert_true(fabs(balance - 2) < 1e-12);
    assert_true(fabs(z - log(EXPERTS) * log(EXPERTS)) < 1e-12);
    assert_true(h.totals[0] == 2 * 2 * 70 && h.totals[2] == 0); /* blocks, sequences, tokens */
    harness_destroy(&h);
    /* A model of such a family without experts has none. */
    model *self;
    spec = mixture("deepseek", 0);
    spec.router_z_coef = 1;
    assert_ok(model_create(&spec, DTYPE_FP32, 1, &self));
    assert_int_equal(model_totals_bytes(self), 0);
    model_destroy(self);
}

/* ---- refusals ---- */

static void refusals(void **state)
{
    model_spec spec = mixture("mixtral", 2);
    spec.expert_count = 0;
    expect_refused(&spec, "model.num_experts is 0");
    spec.expert_count = 1025;
    expect_refused(&spec, "1 to 1024");
    spec.expert_count = 2;
    spec.experts_per_token = 3;
    expect_refused(&spec, "model.num_experts_per_tok is 3");
    spec = mixture("mixtral", 2);
    spec.shared_ffn_size = 8;
    expect_refused(&spec, "no shared expert");
    spec = mixture("llama", 0);
    spec.expert_count = 2;
    expect_refused(&spec, "the llama family has none");
    spec = mixture("mixtral", 2);
    spec.max_part_bytes = 8192;
    spec.expert_ffn_size = 4096;
    expect_refused(&spec, "one expert of the layer experts");
    spec = mixture("mixtral", 2);
    spec.learn.is_given = spec.learn.norms = true;
    expect_refused(&spec, "leave norms out");
    spec = mixture("mixtral", 2);
    spec.balance_coef = -1;
    expect_refused(&spec, "model.router_aux_loss_coef is -1");
    spec = mixture("deepseek-moe", 2);
    spec.balance_coef = 1;
    expect_refused(&spec, "softmax alone chooses");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_by_hand),         cmocka_unit_test(flops_by_hand),
        cmocka_unit_test(cuts_change_no_bit),    cmocka_unit_test(a_layer_reads_back_once),
        cmocka_unit_test(all_and_none),          cmocka_unit_test(router_losses_have_gradients),
        cmocka_unit_test(router_losses_by_hand), cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
