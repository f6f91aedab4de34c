/* Weights packed by one micro-batch for another: the bits of losses and gradients are those of calls without, of whole
 * and of cut models, kept and recomputed, tied and not, with adapters, and with a last chunk of rows that is shorter. With the reference
 * backend, which packs every weight, the second micro-batch gets params whose matrices are NaN: it reads what is
 * packed and nothing else. Argument: the family or variant. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "model_harness.h"

enum { SEED = 11, SEQ_LENGTH = 48, CHUNK_ROWS = 36, PART_ELEMS = 4500 };

static const char *instance = "gpt2";

struct shape {
    bool is_tied, is_cut, keeps_saved, has_adapters;
    uint64_t chunk_rows; /* of 96 */
};

/* On the CPU backend large enough for its own products. */
static model_spec spec_of(const struct shape *shape, enum dtype type)
{
    bool is_llama = harness_family(instance) == MODEL_LLAMA;
    model_spec spec = {
        .family = harness_family(instance),
        .num_layers = 2,
        .hidden_size = 64,
        .num_heads = 4,
        .num_kv_heads = is_llama ? 2 : 4,
        .ffn_size = is_llama ? 88 : 160,
        .vocab_size = 157,
        .seq_length = SEQ_LENGTH,
        .tie_embeddings = shape->is_tied,
        .rope_theta = 10000,
        .norm_epsilon = 1e-5,
        .init_std = 0.15,
        .max_part_bytes = shape->is_cut ? PART_ELEMS * dtype_bytes(type) : 0,
    };
    if (shape->has_adapters)
        spec.lora = (model_lora){.rank = 4, .alpha = 8, .targets = 1};
    harness_vary(instance, &spec);
    return spec;
}

static void run_step(harness *h, uint64_t seed, const struct shape *shape,
                     enum harness_packing packing)
{
    harness_random_tokens(h, seed, true);
    harness_forget_grads(h);
    h->packing = packing;
    harness_forward(h, true);
    harness_backward(h, 1.0f / 64, shape->keeps_saved);
}

/* Losses and gradients of two micro-batches, one after the other. */
struct bits {
    float *losses;
    float **grads;
};

static struct bits take(const harness *h)
{
    uint64_t rows = h->self->micro_batch * h->self->tokens;
    struct bits bits = {harness_alloc(rows * 4),
                        harness_alloc(h->self->unit_count * sizeof(float *))};
    memcpy(bits.losses, h->losses, rows * 4);
    for (uint32_t u = 0; u < h->self->unit_count; u++) {
        bits.grads[u] = harness_alloc(h->self->units[u].elems * 4);
        memcpy(bits.grads[u], h->grads[u], h->self->units[u].elems * 4);
    }
    return bits;
}

static void expect_and_free(const harness *h, struct bits *bits)
{
    assert_memory_equal(bits->losses, h->losses, h->self->micro_batch * h->self->tokens * 4);
    for (uint32_t u = 0; u < h->self->unit_count; u++) {
        assert_memory_equal(bits->grads[u], h->grads[u], h->self->units[u].elems * 4);
        mem_free(bits->grads[u]);
    }
    mem_free(bits->grads);
    mem_free(bits->losses);
}

/* Params with NaN for every matrix but the adapters', which are not packed, and the positions. */
static void spoil(harness *h)
{
    uint64_t elem_bytes = dtype_bytes(h->self->type);
    h->spoiled = harness_alloc(h->self->unit_count * sizeof(void *));
    for (uint32_t u = 0; u < h->self->unit_count; u++) {
        const model_unit *unit = &h->self->units[u];
        h->spoiled[u] = harness_alloc(unit->elems * elem_bytes);
        memcpy(h->spoiled[u], h->params[u], unit->elems * elem_bytes);
        for (uint32_t i = 0; i < unit->tensor_count; i++) {
            const model_tensor *tensor = &unit->tensors[i];
            if (tensor->rows > 1 && tensor->columns > 1 && !tensor->is_adapter)
                memset((char *)h->spoiled[u] + tensor->offset_elems * elem_bytes, 0xff,
                       tensor->rows * tensor->columns * elem_bytes);
        }
    }
}

static void free_spoiled(harness *h)
{
    for (uint32_t u = 0; u < h->self->unit_count && h->spoiled; u++)
        mem_free(h->spoiled[u]);
    mem_free(h->spoiled);
    h->spoiled = NULL;
}

static void check(const kernel_ops *ops, enum dtype type, const struct shape *shape, bool spoils)
{
    harness h;
    model_spec spec = spec_of(shape, type);
    harness_create(&h, ops, &spec, type, 2, shape->chunk_rows);
    harness_init_weights(&h, SEED);
    harness_copy_params(&h);
    run_step(&h, SEED + 1, shape, HARNESS_PACKS_NOTHING);
    struct bits first = take(&h);
    run_step(&h, SEED + 2, shape, HARNESS_PACKS_NOTHING);
    struct bits second = take(&h);

    run_step(&h, SEED + 1, shape, HARNESS_PACKS);
    assert_true(h.packed_count > 0);
    expect_and_free(&h, &first);
    if (spoils)
        spoil(&h);
    run_step(&h, SEED + 2, shape, HARNESS_PACKED);
    expect_and_free(&h, &second);
    free_spoiled(&h);
    harness_destroy(&h);
}

static const struct shape shapes[] = {
    {.chunk_rows = CHUNK_ROWS},
    {.chunk_rows = CHUNK_ROWS, .keeps_saved = true},
    {.is_tied = true, .chunk_rows = 32},
    {.is_tied = true, .is_cut = true, .chunk_rows = CHUNK_ROWS},
    {.is_cut = true, .keeps_saved = true},
    {.has_adapters = true, .keeps_saved = true},
};

static void test_second_micro_batch_needs_no_matrix(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check(&kernels_reference, i % 2 == 0 ? DTYPE_BF16 : DTYPE_FP32, &shapes[i], true);
}

#if defined(HAVE_KERNELS_CPU)
static void test_bits_of_the_cpu_are_the_same(void **state)
{
    static const enum dtype types[] = {DTYPE_BF16, DTYPE_FP16, DTYPE_FP32};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (size_t t = 0; t < 2; t++) /* its fp32 products are larger than these */
            check(&kernels_cpu, types[t], &shapes[i], false);
}
#endif

/* The sizes that a plan goes by: prefixes, what one call uses several times, nothing for the embedding. */
static void test_sizes(void **state)
{
    (void)state;
    harness h;
    struct shape shape = {.chunk_rows = CHUNK_ROWS};
    model_spec spec = spec_of(&shape, DTYPE_BF16);
    harness_create(&h, &kernels_reference, &spec, DTYPE_BF16, 2, CHUNK_ROWS);
    const model *self = h.self;
    const model_stage *block = &self->stages[1], *head = &self->stages[self->stage_count - 1];
    const model_pass *forward = &block->passes[PHASE_FORWARD][0];
    const model_pass *backward = &block->passes[PHASE_BACKWARD][0];
    uint64_t matrices = 0;
    for (uint32_t i = 0; i < self->units[1].tensor_count; i++) {
        const model_tensor *tensor = &self->units[1].tensors[i];
        if (tensor->rows > 1 && tensor->columns > 1)
            matrices += tensor->rows * tensor->columns * 2;
    }
    assert_in_range(forward->packed_bytes, matrices, matrices + 4 * MODELI_ALIGN_BYTES);
    assert_int_equal(forward->packed_bytes, forward->kept_packed_bytes);
    assert_in_range(backward->kept_packed_bytes, matrices, matrices + 4 * MODELI_ALIGN_BYTES);
    assert_true(backward->packed_bytes > backward->kept_packed_bytes);
    assert_true(backward->packed_bytes < 2 * matrices);
    assert_int_equal(forward->packed_uses, 1);
    assert_int_equal(backward->packed_uses, 1);
    assert_int_equal(head->passes[PHASE_FORWARD][0].packed_uses, 3); /* 36, 36, 24 rows */
    assert_in_range(head->passes[PHASE_BACKWARD][0].packed_bytes, 2 * 157 * 64 * 2,
                    2 * (157 * 64 * 2 + MODELI_ALIGN_BYTES));
    assert_int_equal(self->stages[0].passes[PHASE_FORWARD][0].packed_bytes, 0);
    assert_int_equal(self->stages[0].passes[PHASE_BACKWARD][0].packed_bytes, 0);
    harness_destroy(&h);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        instance = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_second_micro_batch_needs_no_matrix),
#if defined(HAVE_KERNELS_CPU)
        cmocka_unit_test(test_bits_of_the_cpu_are_the_same),
#endif
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
