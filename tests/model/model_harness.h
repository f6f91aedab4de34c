/* A whole small model in memory, for the tests of src/model: parameters, gradients, all boundary
 * activations; forward and backward through every pass of every stage in order. Each pass gets what
 * it says that it uses and nothing else: `temp` of exactly its bytes at a fresh place, and all that
 * it only writes, gradients before their first pass among it, are filled with NaN, what it only
 * reads must be the same after it. So nothing can depend on what was there, and the address
 * sanitizer sees what is written beyond. */
#ifndef SLUICE_TESTS_MODEL_HARNESS_H
#define SLUICE_TESTS_MODEL_HARNESS_H

#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "model/model.h"
#include "model/model_internal.h"
#include "tests/model/model_instances.h"
#include "tests/unit.h"

struct harness {
    const kernel_ops *ops;
    kernel_context *context;
    model *self;
    float **masters; /* [unit_count] fp32 */
    void **params;   /* [unit_count] working copies */
    float **grads;   /* [unit_count] fp32 */
    bool *begun;     /* [unit_count]: grads are more than what lay there */
    void **boundary; /* [stage_count - 1]: output of stage i */
    void *grad[2];   /* gradients of a boundary, used in turn */
    int32_t *tokens, *targets;
    const int32_t *begins; /* of documents, as in model_call; the test's own */
    int32_t *offsets;      /* of model_parcels; the test's own */
    float *losses;
    double *totals;     /* of the routers, where they have losses */
    float router_scale; /* of these losses */
    void *saved, *saved_rest, *temp, *expanded, *constants;
    uint64_t seed;       /* of dropout, where the model has one */
    uint32_t counter[2]; /* the same */
    bool is_evaluated;   /* nothing is dropped */
    int poison;          /* byte that fills scratch: 0xff is NaN in every type */
};
typedef struct harness harness;

static inline void *harness_alloc(uint64_t bytes)
{
    void *block = mem_alloc(bytes, 1, "test");
    assert_non_null(block);
    return block;
}

static inline void harness_init_weights(harness *h, uint64_t seed)
{
    for (uint32_t u = 0; u < h->self->unit_count; u++) {
        uint64_t elems = h->self->units[u].elems;
        model_init_elems(h->self, u, seed, 0, elems, h->masters[u]);
    }
}

/* One thread of computing: these models are too small for more. chunk_rows 0: the model's own. */
static inline void harness_create(harness *h, const kernel_ops *ops, const model_spec *spec,
                                  enum dtype type, uint64_t micro_batch, uint64_t chunk_rows)
{
    memset(h, 0, sizeof *h);
    h->ops = ops;
    h->poison = 0xff;
    h->seed = 17;
    kernel_context_config config = {.thread_count = 1};
    assert_int_equal(ops->context_create(&config, &h->context), 0);
    assert_ok(model_create(spec, type, micro_batch, &h->self));
    if (chunk_rows != 0) {
        h->self->chunk_rows = size_min(chunk_rows, micro_batch * h->self->tokens);
        modeli_size_stages(h->self);
    }
    assert_ok(model_prepare(h->self, ops, h->context));
    const model *self = h->self;
    h->masters = harness_alloc(self->unit_count * sizeof(void *));
    h->params = harness_alloc(self->unit_count * sizeof(void *));
    h->grads = harness_alloc(self->unit_count * sizeof(void *));
    h->begun = harness_alloc(self->unit_count * sizeof(bool));
    h->boundary = harness_alloc(self->stage_count * sizeof(void *));
    for (uint32_t u = 0; u < self->unit_count; u++) {
        h->masters[u] = harness_alloc(self->units[u].elems * 4);
        h->params[u] = harness_alloc(size_max(self->units[u].elems, self->units[u].rest_elems) *
                                     dtype_bytes(type));
        h->grads[u] = harness_alloc(self->units[u].elems * 4);
    }
    for (uint32_t i = 0; i < self->stage_count; i++) {
        h->boundary[i] = harness_alloc(self->boundary_bytes);
    }
    uint64_t rows = self->micro_batch * self->tokens;
    h->grad[0] = harness_alloc(self->boundary_bytes);
    h->grad[1] = harness_alloc(self->boundary_bytes);
    h->tokens = harness_alloc(rows * sizeof(int32_t));
    h->targets = harness_alloc(rows * sizeof(int32_t));
    h->losses = harness_alloc(rows * sizeof(float));
    h->totals = harness_alloc(model_totals_bytes(self));
    h->router_scale = 0.25f;
    h->constants = harness_alloc(self->constants_bytes);
    assert_ok(model_fill_constants(h->self, NULL, h->constants));
}

static inline void harness_destroy(harness *h)
{
    for (uint32_t u = 0; u < h->self->unit_count; u++) {
        mem_free(h->masters[u]);
        mem_free(h->params[u]);
        mem_free(h->grads[u]);
    }
    for (uint32_t i = 0; i < h->self->stage_count; i++)
        mem_free(h->boundary[i]);
    void *blocks[] = {h->masters,   h->params,     h->grads,   h->boundary, h->grad[0], h->grad[1],
                      h->begun,     h->tokens,     h->targets, h->losses,   h->saved,   h->temp,
                      h->constants, h->saved_rest, h->totals,  h->expanded};
    for (uint32_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        mem_free(blocks[i]);
    model_destroy(h->self);
    h->ops->context_destroy(h->context);
}

/* Working copies of all masters, as the optimizer writes them; constants stay fp32. */
static inline void harness_copy_params(harness *h)
{
    for (uint32_t u = 0; u < h->self->unit_count; u++)
        if (h->self->units[u].tensors[0].is_exact)
            memcpy(h->params[u], h->masters[u],
                   h->self->units[u].tensors[0].columns * sizeof(float));
        else
            assert_int_equal(h->ops->working_copy(h->context, NULL, h->masters[u], h->params[u],
                                                  h->self->type, h->self->units[u].elems),
                             0);
}

/* The next pass that adds to a unit's gradient begins it anew, from NaN. A gradient that no pass
 * adds to is zero. */
static inline void harness_forget_grads(harness *h)
{
    for (uint32_t u = 0; u < h->self->unit_count; u++) {
        bool learns = !h->self->units[u].is_frozen;
        memset(h->grads[u], learns ? h->poison : 0, h->self->units[u].elems * 4);
        h->begun[u] = false;
    }
}

/* Gradients that are begun already, with zeros: every pass adds. */
static inline void harness_zero_grads(harness *h)
{
    for (uint32_t u = 0; u < h->self->unit_count; u++) {
        memset(h->grads[u], 0, h->self->units[u].elems * 4);
        h->begun[u] = true;
    }
}

/* Random tokens and random targets. With `with_ignored` every seventh target is ignored. */
static inline void harness_random_tokens(harness *h, uint64_t seed, bool with_ignored)
{
    uint64_t rows = h->self->micro_batch * h->self->tokens, vocab = h->self->spec.vocab_size;
    for (uint64_t i = 0; i < rows; i++) {
        h->tokens[i] = (int32_t)rng_below(seed, 1, i, vocab);
        h->targets[i] = (int32_t)rng_below(seed, 2, i, vocab);
        if (with_ignored && i % 7 == 3)
            h->targets[i] = -1;
    }
}

/* A new block instead of the old one, poisoned. */
static inline void *harness_fresh(harness *h, void **block, uint64_t bytes)
{
    void *fresh = harness_alloc(bytes);
    memset(fresh, h->poison, bytes);
    mem_free(*block);
    *block = fresh;
    return fresh;
}

/* A buffer as a pass may use it: NULL if the pass does not use it, poisoned if it only writes it.
 * If it only reads it, a copy is kept for harness_check_read. */
struct harness_use {
    void *block, *copy;
    uint64_t bytes;
};
typedef struct harness_use harness_use;

static inline harness_use harness_use_of(const harness *h, enum operand_access access, void *block,
                                         uint64_t bytes)
{
    harness_use use = {.block = access == ACCESS_NONE ? NULL : block, .bytes = bytes};
    if (access == ACCESS_WRITE)
        memset(block, h->poison, bytes);
    if (access == ACCESS_READ) {
        use.copy = harness_alloc(bytes);
        memcpy(use.copy, block, bytes);
    }
    return use;
}

static inline void harness_check_read(harness_use *use)
{
    if (use->copy != NULL)
        assert_memory_equal(use->copy, use->block, use->bytes);
    mem_free(use->copy);
}

/* Runs one pass on the present contents of h->saved. KEPT_SELECTIVE: on their first part; the rest
 * is elsewhere and poisoned. */
static inline void harness_pass(harness *h, enum phase phase, uint32_t stage, uint32_t pass,
                                float grad_scale, enum kept kept)
{
    const model *self = h->self;
    const struct stage *source = &self->stages[stage];
    const struct pass *of = &source->passes[phase][pass];
    uint64_t bytes = self->boundary_bytes;
    bool scratch = of->saved == ACCESS_NONE; /* an uncut stage's own affair */
    void *before = stage > 0 ? h->boundary[stage - 1] : NULL;
    harness_use saved =
        harness_use_of(h, (enum operand_access)(scratch ? ACCESS_UPDATE : of->saved), h->saved,
                       source->saved_bytes);
    harness_use input = harness_use_of(h, of->input, before, bytes);
    harness_use output = harness_use_of(h, of->output, h->boundary[stage], bytes);
    harness_use output_grad = harness_use_of(h, of->output_grad, h->grad[(stage + 1) % 2], bytes);
    harness_use input_grad = harness_use_of(h, of->input_grad, h->grad[stage % 2], bytes);
    bool is_head = source->kind == STAGE_HEAD;
    harness_use losses =
        is_head ? harness_use_of(h, of->losses, h->losses, self->micro_batch * self->tokens * 4)
                : harness_use_of(h, of->losses, h->totals, model_totals_bytes(self));
    model_call call = {
        .parcels = {.offsets = h->offsets},
        .tokens = h->tokens,
        .targets = h->targets,
        .begins = h->begins,
        .input = input.block,
        .output = output.block,
        .output_grad = output_grad.block,
        .input_grad = input_grad.block,
        .losses = losses.block,
        .grad_scale = grad_scale,
        .totals = losses.block,
        .router_scale = h->router_scale,
        .layer = stage > 0 ? model_block_of(h->self, stage) : 0,
        .saved = saved.block,
        .temp = harness_fresh(h, &h->temp, of->temp_bytes),
        .expanded = harness_fresh(h, &h->expanded, of->expanded_bytes),
        .expands = true,
        .constants = h->constants,
        .dropout_counter = model_has_dropout(&self->spec) && !h->is_evaluated ? h->counter : NULL,
        .dropout_seed = h->seed,
    };
    uint64_t rest_bytes = source->saved_bytes - source->selective_bytes;
    if (kept == KEPT_SELECTIVE && !source->is_cut && rest_bytes > 0) {
        memset((char *)h->saved + source->selective_bytes, h->poison, rest_bytes);
        call.saved_rest = harness_fresh(h, &h->saved_rest, rest_bytes);
    }
    for (uint32_t i = 0; i < of->unit_count; i++) {
        call.params[i] = of->reads_params[i] ? h->params[of->units[i]] : NULL;
        call.grads[i] = of->adds_grads[i] ? h->grads[of->units[i]] : NULL;
        call.fresh[i] = of->adds_grads[i] && !h->begun[of->units[i]];
        h->begun[of->units[i]] |= of->adds_grads[i];
    }
    assert_ok(model_run(h->self, phase, stage, pass, NULL, &call, kept));
    harness_use *uses[] = {&saved, &input, &output, &output_grad, &input_grad, &losses};
    for (uint32_t i = 0; i < sizeof uses / sizeof uses[0]; i++)
        harness_check_read(uses[i]);
}

/* All passes of a phase. */
static inline void harness_phase(harness *h, enum phase phase, uint32_t stage, float grad_scale,
                                 enum kept kept)
{
    for (uint32_t i = 0; i < h->self->stages[stage].pass_count[phase]; i++)
        harness_pass(h, phase, stage, i, grad_scale, kept);
}

/* Forward through all stages but the head, which is left out unless `with_head`. */
static inline void harness_forward(harness *h, bool with_head)
{
    uint32_t stages = h->self->stage_count - (with_head ? 0 : 1);
    for (uint32_t i = 0; i < stages; i++) {
        harness_fresh(h, &h->saved, h->self->stages[i].saved_bytes);
        harness_phase(h, PHASE_FORWARD, i, 0, KEPT_NONE);
    }
}

/* Runs the head and all backwards after harness_forward. If something is kept, each block's saved
 * is first filled by a forward of its own, which does not count for the routers' losses, and the
 * backward is told how much of it is valid. */
static inline void harness_backward(harness *h, float grad_scale, enum kept kept)
{
    uint64_t totals_bytes = model_totals_bytes(h->self);
    double *totals = harness_alloc(totals_bytes);
    memcpy(totals, h->totals, totals_bytes);
    for (uint32_t i = h->self->stage_count; i-- > 0;) {
        const struct stage *stage = &h->self->stages[i];
        bool is_block = stage->kind == STAGE_BLOCK;
        harness_fresh(h, &h->saved, stage->saved_bytes);
        if (is_block && kept != KEPT_NONE)
            harness_phase(h, PHASE_FORWARD, i, 0, KEPT_NONE);
        else
            harness_phase(h, PHASE_RECOMPUTE, i, 0, KEPT_NONE);
        memcpy(h->totals, totals, totals_bytes);
        harness_phase(h, PHASE_BACKWARD, i, grad_scale, is_block ? kept : KEPT_NONE);
    }
    mem_free(totals);
}

/* Sum of losses over tokens that count, in double. */
static inline double harness_loss_sum(const harness *h)
{
    double sum = 0;
    for (uint64_t i = 0; i < h->self->micro_batch * h->self->tokens; i++)
        sum += h->losses[i];
    return sum;
}

/* The summed loss with one parameter changed. */
static inline double harness_loss_with(harness *h, uint32_t unit, uint64_t elem, float value)
{
    float *param = (float *)h->params[unit] + elem;
    float before = *param;
    *param = value;
    harness_forward(h, true);
    *param = before;
    return harness_loss_sum(h);
}

/* Central differences at two distances, extrapolated (Richardson): error O(step^4). */
static inline double harness_finite_difference(harness *h, uint32_t unit, uint64_t elem)
{
    float value = ((float *)h->params[unit])[elem];
    double slope[2];
    float step = 1.0f / 64;
    for (int i = 0; i < 2; i++, step /= 2) {
        float up = value + step, down = value - step;
        slope[i] = (harness_loss_with(h, unit, elem, up) - harness_loss_with(h, unit, elem, down)) /
                   ((double)up - (double)down);
    }
    return (4 * slope[1] - slope[0]) / 3;
}

/* Biases and norm weights that are neither 0 nor 1, or their gradients could hide mistakes: a
 * function of the tensor's name and element, so that cut models get the same. */
static inline void harness_roughen(harness *h, uint64_t seed)
{
    for (uint32_t u = 0; u < h->self->unit_count; u++)
        for (uint32_t i = 0; i < h->self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &h->self->units[u].tensors[i];
            uint64_t hash = 0;
            if (tensor->rows != 1 && tensor->columns != 1)
                continue;
            for (const char *c = tensor->name; *c != 0; c++)
                hash = hash * 31 + (unsigned char)*c;
            for (uint64_t k = 0; k < tensor->rows * tensor->columns; k++)
                h->masters[u][tensor->offset_elems + k] +=
                    0.2f * rng_normal(seed + 1, hash, tensor->row_begin * tensor->columns + k);
        }
}

/* A model that is ready for a step, and without gradients. */
static inline void harness_start(harness *h, const kernel_ops *ops, const model_spec *spec,
                                 enum dtype type, uint64_t chunk_rows, uint64_t seed,
                                 bool with_ignored)
{
    harness_create(h, ops, spec, type, 2, chunk_rows);
    harness_init_weights(h, seed);
    harness_roughen(h, seed);
    harness_copy_params(h);
    harness_random_tokens(h, seed, with_ignored);
    harness_forget_grads(h);
}

/* A step whose gradients begin anew. */
static inline void harness_step(harness *h, float grad_scale, enum kept kept)
{
    harness_forget_grads(h);
    harness_forward(h, false);
    harness_backward(h, grad_scale, kept);
}

static inline void harness_expect_same_bits(const harness *a, const harness *b)
{
    assert_memory_equal(a->losses, b->losses, a->self->micro_batch * a->self->tokens * 4);
    for (uint32_t u = 0; u < a->self->unit_count; u++)
        assert_memory_equal(a->grads[u], b->grads[u], a->self->units[u].elems * 4);
}

/* The logits [vocab_size] of a row, after a forward. */
static inline void harness_row_logits(harness *h, uint64_t row, float *logits)
{
    uint32_t head = h->self->stage_count - 1;
    const struct stage *stage = &h->self->stages[head];
    harness_fresh(h, &h->saved, stage->saved_bytes);
    for (uint32_t i = 0; i < stage->pass_count[PHASE_FORWARD]; i++) {
        const struct pass *pass = &stage->passes[PHASE_FORWARD][i];
        model_call call = {
            .input = pass->input != ACCESS_NONE ? h->boundary[head - 1] : NULL,
            .saved = stage->is_cut ? h->saved : NULL,
            .temp = harness_fresh(h, &h->temp, pass->temp_bytes),
            .expanded = harness_fresh(h, &h->expanded, pass->expanded_bytes),
            .expands = true,
        };
        for (uint32_t u = 0; u < pass->unit_count; u++)
            call.params[u] = h->params[pass->units[u]];
        assert_ok(model_logits_pass(h->self, i, NULL, &call, row, logits));
    }
    model_cap_logits(h->self, logits);
}

/* They give that row's loss, if the forward was with the head. */
static inline void harness_check_row_logits(harness *h, uint64_t row)
{
    uint64_t vocab = h->self->spec.vocab_size;
    float *logits = harness_alloc(vocab * sizeof *logits);
    memset(logits, 0xff, vocab * sizeof *logits);
    harness_row_logits(h, row, logits);
    double sum = 0;
    for (uint64_t v = 0; v < vocab; v++)
        sum += exp((double)logits[v]);
    assert_true(fabs(log(sum) - (double)logits[h->targets[row]] - (double)h->losses[row]) < 1e-5);
    mem_free(logits);
}

/* A backend whose nth product cannot be made. */
static int harness_products_left;

static inline int harness_failing_create(kernel_context *context, const matmul_desc *desc,
                                         kernel_matmul **product)
{
    if (harness_products_left-- == 0)
        return err_set(ERR_BACKEND, "no product for this shape");
    return kernels_reference.matmul_create(context, desc, product);
}

/* A model_prepare that fails leaves the model unchanged: nothing leaks, and another backend works
 * afterwards. Returns the number of products. */
static inline int harness_failed_prepares(const model_spec *spec)
{
    kernel_ops failing = kernels_reference;
    failing.matmul_create = harness_failing_create;
    kernel_context_config config = {.thread_count = 1};
    kernel_context *context;
    mem_stats before, after;
    model *self;
    int made = 0;
    assert_int_equal(failing.context_create(&config, &context), 0);
    mem_get_stats(&before);
    assert_ok(model_create(spec, DTYPE_FP32, 2, &self));
    for (harness_products_left = 0; model_prepare(self, &failing, context) != 0;
         harness_products_left = ++made)
        assert_null(self->ops);
    assert_int_equal(model_prepare(self, &kernels_reference, context), ERR_INTERNAL);
    model_destroy(self);
    mem_get_stats(&after);
    assert_int_equal(before.live_bytes, after.live_bytes);
    failing.context_destroy(context);
    return made;
}

#endif
