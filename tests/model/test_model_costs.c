/* Compares the costs that model_pass_costs states with the real work of a pass. Every
 * product with its shape, and every attention, is counted on its way to the reference kernels;
 * bytes of row-wise kernels are counted by the arguments that the kernels get. A gradient that a
 * step begins gets zeros only where the pass says so, and then ends with the values of one that
 * began as zeros. Argument: the family or variant. */
#include <math.h>

#include "model/costs.h"
#include "tests/model/model_harness.h"
#include "tests/unit.h"

enum { SEED = 7, MADE_MAX = 256 };

static const char *instance = "gpt2";
static enum model_family family;

/* ---- kernels that count ---- */

static struct {
    kernel_matmul *product;
    matmul_desc desc;
    uint64_t runs;
} made[MADE_MAX];
static uint32_t made_count;
/* The attention of the only block, and how often it ran forward and backward. */
static attention_desc attention_made;
static uint64_t attention_runs[2];
static double row_bytes[MODEL_ROW_KIND_COUNT];
static uint64_t zeroed_bytes; /* of accumulators of `watched` */
static const harness *watched;
static kernel_ops spy;

static int spy_matmul_create(kernel_context *context, const matmul_desc *desc,
                             kernel_matmul **product)
{
    TRY(kernels_reference.matmul_create(context, desc, product));
    assert_true(made_count < MADE_MAX);
    made[made_count].product = *product;
    made[made_count].desc = *desc;
    made[made_count++].runs = 0;
    return 0;
}

static int spy_matmul(kernel_matmul *product, void *stream, const void *a, const void *b,
                      const void *bias, void *c, void *scratch)
{
    for (uint32_t i = 0; i < made_count; i++)
        if (made[i].product == product)
            made[i].runs++;
    return kernels_reference.matmul(product, stream, a, b, bias, c, scratch);
}

static int spy_attention_forward(kernel_attention *attention, void *stream, const void *q,
                                 const void *k, const void *v, void *output, float *lse,
                                 void *scratch)
{
    attention_runs[0]++;
    return kernels_reference.attention_forward(attention, stream, q, k, v, output, lse, scratch);
}

static int spy_attention_backward(kernel_attention *attention, void *stream, const void *q,
                                  const void *k, const void *v, const void *output,
                                  const float *lse, const void *output_grad, void *q_grad,
                                  void *k_grad, void *v_grad, void *scratch)
{
    attention_runs[1]++;
    return kernels_reference.attention_backward(attention, stream, q, k, v, output, lse,
                                                output_grad, q_grad, k_grad, v_grad, scratch);
}

static int spy_attention_create(kernel_context *context, const attention_desc *desc,
                                kernel_attention **attention)
{
    attention_made = *desc;
    return kernels_reference.attention_create(context, desc, attention);
}

static void note(enum model_row_kind kind, uint64_t elems, uint64_t bytes)
{
    row_bytes[kind] += (double)elems * (double)bytes;
}

static int spy_norm_forward(kernel_context *context, void *stream, const norm_args *args)
{
    note(MODEL_ROWS_NORM, args->rows * args->channels,
         (args->residual ? 4 : 2) * dtype_bytes(args->type));
    return kernels_reference.norm_forward(context, stream, args);
}

static int spy_norm_backward(kernel_context *context, void *stream, const norm_grad_args *args)
{
    note(MODEL_ROWS_NORM_GRAD, args->rows * args->channels,
         (args->residual_grad ? 4 : 3) * dtype_bytes(args->type));
    return kernels_reference.norm_backward(context, stream, args);
}

/* Plain activations count as GELU, gated ones as SwiGLU. */
static bool is_gelu(const activation_args *args)
{
    return !activation_is_gated(args->kind);
}

static uint64_t ffn_inputs(const activation_args *args)
{
    return activation_is_gated(args->kind) ? 2 : 1;
}

static int spy_activation_forward(kernel_context *context, void *stream,
                                  const activation_args *args)
{
    note(is_gelu(args) ? MODEL_ROWS_GELU : MODEL_ROWS_SWIGLU, args->rows * args->features,
         (ffn_inputs(args) + 1) * dtype_bytes(args->type));
    return kernels_reference.activation_forward(context, stream, args);
}

static int spy_activation_backward(kernel_context *context, void *stream,
                                   const activation_args *args)
{
    note(is_gelu(args) ? MODEL_ROWS_GELU_GRAD : MODEL_ROWS_SWIGLU_GRAD, args->rows * args->features,
         (2 * ffn_inputs(args) + 1) * dtype_bytes(args->type));
    return kernels_reference.activation_backward(context, stream, args);
}

static int spy_attention_sinks(kernel_context *context, void *stream,
                               const attention_sinks_args *args)
{
    note(MODEL_ROWS_PLAIN, args->batch * args->tokens * args->heads * args->value_dim,
         2 * dtype_bytes(args->type));
    return kernels_reference.attention_sinks(context, stream, args);
}

static int spy_attention_sinks_backward(kernel_context *context, void *stream,
                                        const attention_sinks_args *args)
{
    note(MODEL_ROWS_PLAIN, args->batch * args->tokens * args->heads * args->value_dim,
         2 * dtype_bytes(args->type));
    return kernels_reference.attention_sinks_backward(context, stream, args);
}

/* q, k's other part and v are read and written, and all heads' rotary part is written. */
static void note_join(const heads_join_args *args)
{
    uint64_t heads = args->heads * (4 * args->own + 3 * args->shared + 2 * args->value);
    note(MODEL_ROWS_PLAIN, args->rows * (heads + args->shared), dtype_bytes(args->type));
}

static int spy_heads_join(kernel_context *context, void *stream, const heads_join_args *args)
{
    note_join(args);
    return kernels_reference.heads_join(context, stream, args);
}

static int spy_heads_split(kernel_context *context, void *stream, const heads_join_args *args)
{
    note_join(args);
    return kernels_reference.heads_split(context, stream, args);
}

/* Read, written and copied. */
static int spy_head_norm_forward(kernel_context *context, void *stream, const head_norm_args *args)
{
    note(MODEL_ROWS_NORM, args->rows * args->heads * args->head_dim, 3 * dtype_bytes(args->type));
    return kernels_reference.head_norm_forward(context, stream, args);
}

static int spy_head_norm_backward(kernel_context *context, void *stream, const head_norm_args *args)
{
    note(MODEL_ROWS_NORM_GRAD, args->rows * args->heads * args->head_dim,
         3 * dtype_bytes(args->type));
    return kernels_reference.head_norm_backward(context, stream, args);
}

static int spy_rope(kernel_context *context, void *stream, const rope_args *args)
{
    note(MODEL_ROWS_PLAIN, args->batch * args->tokens * args->heads * args->rotated,
         2 * dtype_bytes(args->type));
    return kernels_reference.rope(context, stream, args);
}

/* Sums of a few elements, such as a bias, are not counted. */
static int spy_add(kernel_context *context, void *stream, enum dtype type, uint64_t count,
                   const void *a, const void *b, void *out)
{
    if (type != DTYPE_FP32)
        note(MODEL_ROWS_PLAIN, count, 3 * dtype_bytes(type));
    return kernels_reference.add(context, stream, type, count, a, b, out);
}

static int spy_scale_rows(kernel_context *context, void *stream, const scale_rows_args *args)
{
    note(MODEL_ROWS_PLAIN, args->rows * args->columns,
         (args->accumulates ? 3 : 2) * dtype_bytes(args->type));
    return kernels_reference.scale_rows(context, stream, args);
}

static int spy_dropout(kernel_context *context, void *stream, const dropout_args *args)
{
    note(MODEL_ROWS_DROPOUT, args->rows * args->columns, 2 * dtype_bytes(args->type));
    return kernels_reference.dropout(context, stream, args);
}

static int spy_bias_backward(kernel_context *context, void *stream, enum dtype type, uint64_t rows,
                             uint64_t n, uint64_t stride, const void *output_grad, float *bias_grad,
                             void *scratch)
{
    note(MODEL_ROWS_PLAIN, rows * n, dtype_bytes(type));
    return kernels_reference.bias_backward(context, stream, type, rows, n, stride, output_grad,
                                           bias_grad, scratch);
}

static int spy_convert(kernel_context *context, void *stream, const void *source,
                       enum dtype source_type, void *target, enum dtype target_type, uint64_t count)
{
    note(MODEL_ROWS_PLAIN, count, dtype_bytes(source_type) + dtype_bytes(target_type));
    return kernels_reference.convert(context, stream, source, source_type, target, target_type,
                                     count);
}

static int spy_cross_entropy(kernel_context *context, void *stream, const cross_entropy_args *args)
{
    note(MODEL_ROWS_LOSS, args->rows * args->vocab,
         sizeof(float) + (args->logits_grad ? dtype_bytes(args->type) : 0));
    return kernels_reference.cross_entropy(context, stream, args);
}

static int spy_softmax_part(kernel_context *context, void *stream, const softmax_part_args *args)
{
    note(MODEL_ROWS_LOSS, args->rows * args->columns, sizeof(float));
    return kernels_reference.softmax_part(context, stream, args);
}

static int spy_cross_entropy_part(kernel_context *context, void *stream,
                                  const softmax_part_args *args)
{
    note(MODEL_ROWS_LOSS, args->rows * args->columns, sizeof(float) + dtype_bytes(args->type));
    return kernels_reference.cross_entropy_part(context, stream, args);
}

static int spy_zero(kernel_context *context, void *stream, void *data, uint64_t bytes)
{
    for (uint32_t u = 0; watched != NULL && u < watched->self->unit_count; u++) {
        const float *grads = watched->grads[u], *begin = data;
        if (begin >= grads && begin < grads + watched->self->units[u].elems)
            zeroed_bytes += bytes;
    }
    return kernels_reference.zero(context, stream, data, bytes);
}

static void make_spy(void)
{
    spy = kernels_reference;
    spy.matmul_create = spy_matmul_create;
    spy.matmul = spy_matmul;
    spy.attention_create = spy_attention_create;
    spy.attention_forward = spy_attention_forward;
    spy.attention_backward = spy_attention_backward;
    spy.norm_forward = spy_norm_forward;
    spy.norm_backward = spy_norm_backward;
    spy.activation_forward = spy_activation_forward;
    spy.activation_backward = spy_activation_backward;
    spy.head_norm_forward = spy_head_norm_forward;
    spy.head_norm_backward = spy_head_norm_backward;
    spy.rope = spy_rope;
    spy.attention_sinks = spy_attention_sinks;
    spy.attention_sinks_backward = spy_attention_sinks_backward;
    spy.heads_join = spy_heads_join;
    spy.heads_split = spy_heads_split;
    spy.add = spy_add;
    spy.scale_rows = spy_scale_rows;
    spy.dropout = spy_dropout;
    spy.bias_backward = spy_bias_backward;
    spy.convert = spy_convert;
    spy.zero = spy_zero;
    spy.cross_entropy = spy_cross_entropy;
    spy.softmax_part = spy_softmax_part;
    spy.cross_entropy_part = spy_cross_entropy_part;
    made_count = 0;
}

static void forget_runs(void)
{
    for (uint32_t i = 0; i < made_count; i++)
        made[i].runs = 0;
    memset(attention_runs, 0, sizeof attention_runs);
    memset(row_bytes, 0, sizeof row_bytes);
}

/* ---- comparing ---- */

static bool is_product(const model_cost_product *item, const matmul_desc *desc)
{
    return item->type == desc->ab_type && item->result == desc->c_type &&
           item->accumulates == desc->accumulate && item->b_transposed == desc->b_transposed &&
           item->m == desc->m && item->n == desc->n && item->k == desc->k;
}

/* The kernels that ran are exactly those of `costs`. */
static void compare(const model *self, const model_costs *costs)
{
    uint64_t total = 0, counted = 0;
    for (uint32_t i = 0; i < costs->product_count; i++) {
        const model_cost_product *item = &costs->products[i];
        uint64_t runs = 0;
        for (uint32_t k = 0; k < made_count; k++)
            runs += is_product(item, &made[k].desc) ? made[k].runs : 0;
        assert_int_equal(runs, item->count);
        counted += item->count;
    }
    for (uint32_t k = 0; k < made_count; k++)
        total += made[k].runs;
    assert_int_equal(total, counted);
    double tokens = (double)self->tokens, both = model_is_bidirectional(family) ? 2 : 1; /* sides */
    double window = attention_made.window ? (double)attention_made.window : tokens;
    double scores = both * (double)self->micro_batch * window * (tokens - window / 2);
    double keys = 2 * scores * (double)(self->spec.num_heads * self->spec.head_dim);
    double values = 2 * scores * (double)(self->spec.num_heads * self->spec.value_head_dim);
    assert_true(costs->attention_forward_flops == (keys + values) * (double)attention_runs[0]);
    assert_true(costs->attention_backward_flops ==
                (3 * keys + 2 * values) * (double)attention_runs[1]);
    if (self->spec.attention_dropout > 0)
        row_bytes[MODEL_ROWS_DROPOUT] += 2 * scores * (double)self->spec.num_heads *
                                         (double)dtype_bytes(self->type) *
                                         (double)(attention_runs[0] + attention_runs[1]);
    for (int kind = 0; kind < MODEL_ROW_KIND_COUNT; kind++)
        if (kind != MODEL_ROWS_TABLE && kind != MODEL_ROWS_TABLE_GRAD)
            assert_true(costs->row_bytes[kind] == row_bytes[kind]);
}

static void check_phase(harness *h, enum phase phase, uint32_t stage)
{
    for (uint32_t i = 0; i < h->self->stages[stage].pass_count[phase]; i++) {
        model_costs costs;
        model_pass_costs(h->self, phase, stage, i, &costs);
        forget_runs();
        harness_pass(h, phase, stage, i, 1, KEPT_NONE);
        compare(h->self, &costs);
    }
}

static void subtract(model_costs *costs, const model_costs *part)
{
    for (uint32_t k = 0; k < part->product_count; k++)
        for (uint32_t i = 0; i < costs->product_count; i++) {
            model_cost_product *item = &costs->products[i];
            const model_cost_product *less = &part->products[k];
            if (item->m == less->m && item->n == less->n && item->k == less->k &&
                item->result == less->result && item->accumulates == less->accumulates &&
                item->b_transposed == less->b_transposed)
                item->count -= less->count;
        }
    costs->attention_forward_flops -= part->attention_forward_flops;
    for (int kind = 0; kind < MODEL_ROW_KIND_COUNT; kind++)
        costs->row_bytes[kind] -= part->row_bytes[kind];
}

/* A backward that finds all of `saved`, or a part of it, runs what is left. */
static void check_kept(harness *h, uint32_t stage, enum kept kept)
{
    const struct stage *of = &h->self->stages[stage];
    model_costs costs, again;
    double cheap_bytes = 0;
    model_pass_costs(h->self, PHASE_BACKWARD, stage, 0, &costs);
    model_recompute_costs(h->self, stage, KEPT_NONE, &again);
    assert_true(fabs(model_costs_flops(&again) - of->recompute_flops) <=
                1e-12 * of->recompute_flops);
    subtract(&costs, &again);
    model_recompute_costs(h->self, stage, kept, &again);
    assert_true(model_costs_flops(&again) == 0);
    for (int kind = 0; kind < MODEL_ROW_KIND_COUNT; kind++) {
        costs.row_bytes[kind] += again.row_bytes[kind];
        cheap_bytes += again.row_bytes[kind];
    }
    assert_true(cheap_bytes == (kept == KEPT_SELECTIVE ? (double)of->selective_dram_bytes : 0));
    harness_fresh(h, &h->saved, of->saved_bytes);
    harness_phase(h, PHASE_FORWARD, stage, 0, KEPT_NONE);
    forget_runs();
    harness_pass(h, PHASE_BACKWARD, stage, 0, 1, kept);
    compare(h->self, &costs);
}

/* Backward of one step whose gradients begin as NaN: the bytes of them that the passes must fill
 * with zeros. */
static uint64_t run_fresh(harness *h)
{
    uint64_t expected_bytes = 0;
    harness_forget_grads(h);
    harness_forward(h, false);
    for (uint32_t s = h->self->stage_count; s-- > 0;) {
        const struct stage *stage = &h->self->stages[s];
        harness_fresh(h, &h->saved, stage->saved_bytes);
        harness_phase(h, PHASE_RECOMPUTE, s, 1, KEPT_NONE);
        for (uint32_t p = 0; p < stage->pass_count[PHASE_BACKWARD]; p++) {
            const struct pass *pass = &stage->passes[PHASE_BACKWARD][p];
            for (uint32_t i = 0; i < pass->unit_count; i++)
                if (pass->adds_grads[i] && !h->begun[pass->units[i]])
                    expected_bytes += pass->zeroed_bytes[i];
            harness_pass(h, PHASE_BACKWARD, s, p, 1, KEPT_NONE);
        }
    }
    return expected_bytes;
}

static void check_fresh(harness *h)
{
    float **fresh = harness_alloc(h->self->unit_count * sizeof *fresh);
    watched = h;
    zeroed_bytes = 0;
    uint64_t expected_bytes = run_fresh(h);
    assert_int_equal(zeroed_bytes, expected_bytes);
    watched = NULL;
    for (uint32_t u = 0; u < h->self->unit_count; u++) {
        fresh[u] = harness_alloc(h->self->units[u].elems * sizeof(float));
        memcpy(fresh[u], h->grads[u], h->self->units[u].elems * sizeof(float));
    }
    harness_zero_grads(h);
    harness_forward(h, false);
    harness_backward(h, 1, KEPT_NONE);
    for (uint32_t u = 0; u < h->self->unit_count; u++) {
        for (uint64_t i = 0; i < h->self->units[u].elems; i++)
            assert_true(fresh[u][i] == h->grads[u][i]); /* 0 and -0 are equal, NaN is to nothing */
        mem_free(fresh[u]);
    }
    mem_free(fresh);
}

static const model_learn everything;
static const model_lora none;

static void check_model(bool tied, enum dtype type, uint64_t max_part_bytes, uint64_t chunk_rows,
                        const model_learn *learn, const model_lora *lora)
{
    bool is_llama = family == MODEL_LLAMA;
    model_spec spec = {
        .num_layers = 1,
        .hidden_size = 64,
        .ffn_size = is_llama ? 88 : 160,
        .vocab_size = 157,
        .seq_length = 20,
        .tie_embeddings = tied,
        .init_std = 0.1,
        .max_part_bytes = max_part_bytes,
        .learn = *learn,
        .lora = *lora,
    };
    harness_complete(instance, &spec);
    harness h;
    make_spy();
    harness_create(&h, &spy, &spec, type, 2, chunk_rows);
    harness_init_weights(&h, SEED);
    harness_copy_params(&h);
    harness_random_tokens(&h, SEED, false);
    check_fresh(&h);
    harness_zero_grads(&h);
    for (uint32_t i = 0; i < h.self->stage_count; i++) {
        harness_fresh(&h, &h.saved, h.self->stages[i].saved_bytes);
        check_phase(&h, PHASE_FORWARD, i);
    }
    for (uint32_t i = h.self->stage_count; i-- > 0;) {
        harness_fresh(&h, &h.saved, h.self->stages[i].saved_bytes);
        check_phase(&h, PHASE_RECOMPUTE, i);
        check_phase(&h, PHASE_BACKWARD, i);
        if (h.self->stages[i].kind == STAGE_BLOCK && !h.self->stages[i].is_cut &&
            i >= h.self->first_learning)
            for (int kept = KEPT_ALL; kept < KEPT_COUNT; kept++)
                check_kept(&h, i, (enum kept)kept);
    }
    harness_destroy(&h);
}

static void test_whole(void **state)
{
    check_model(false, DTYPE_BF16, 0, 0, &everything, &none);
    check_model(true, DTYPE_FP16, 0, 16, &everything, &none); /* 40 rows: chunks of 16, 16 and 8 */
    check_model(false, DTYPE_BF16, 0, 20, &everything, &none);
}

static void test_in_parts(void **state)
{
    check_model(false, DTYPE_BF16, 12000, 16, &everything, &none);
    check_model(true, DTYPE_BF16, 12000, 0, &everything, &none);
    check_model(true, DTYPE_FP16, 20000, 0, &everything, &none);
}

/* Frozen tensors cost nothing. */
static void test_frozen(void **state)
{
    const model_learn selections[] = {
        {.is_given = true, .range_count = 1}, /* the only block */
        {.is_given = true, .embed = true},
        {.is_given = true, .head = true},
        {.is_given = true, .norms = true},
    };
    for (int i = 0; i < 4; i++) {
        check_model(i % 2, DTYPE_BF16, 0, 16, &selections[i], &none);
        check_model(i % 2 == 0, DTYPE_BF16, 0, 0, &selections[i], &none);
        if (!selections[i].norms)
            check_model(i % 2, DTYPE_BF16, 12000, 16, &selections[i], &none);
    }
}

static void test_adapters(void **state)
{
    const model_learn norms = {.is_given = true, .norms = true};
    const model_learn block = {.is_given = true, .range_count = 1};
    uint32_t all = harness_targets(family);
    check_model(true, DTYPE_BF16, 0, 0, &everything, &(model_lora){4, 8, all, 0.1});
    check_model(false, DTYPE_BF16, 0, 0, &norms, &(model_lora){3, 3, all, 0});
    check_model(false, DTYPE_BF16, 0, 0, &block, &(model_lora){8, 1, all & 0x5, 0});
    check_model(false, DTYPE_BF16, 0, 0, &everything, &(model_lora){8, 1, all & 0xa, 0.5});
}

int main(int argc, char **argv)
{
    if (argc > 1)
        instance = argv[1];
    family = harness_family(instance);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_in_parts),
        cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_adapters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
