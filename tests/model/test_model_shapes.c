/* Models as lists: published parameter counts, where tensors lie, what is refused, initial
 * weights. */
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/tile.h"
#include "model/model.h"
#include "tests/unit.h"

static const model_spec gpt2_small = {
    .family = MODEL_GPT2,
    .num_layers = 12,
    .hidden_size = 768,
    .num_heads = 12,
    .vocab_size = 50257,
    .seq_length = 1024,
    .tie_embeddings = true,
    .norm_epsilon = 1e-5,
    .init_std = 0.02,
};

static model_spec llama(uint64_t layers, uint64_t hidden, uint64_t heads, uint64_t kv_heads,
                        uint64_t ffn, uint64_t vocab, bool tied)
{
    model_spec spec = {
        .family = MODEL_LLAMA,
        .num_layers = layers,
        .hidden_size = hidden,
        .num_heads = heads,
        .num_kv_heads = kv_heads,
        .ffn_size = ffn,
        .vocab_size = vocab,
        .seq_length = 2048,
        .tie_embeddings = tied,
        .rope_theta = 500000,
        .norm_epsilon = 1e-5,
        .init_std = 0.02,
    };
    return spec;
}

/* Tensors in order, aligned (groups: at their head), without overlap, within the padded unit. */
static void check_units(const model *self)
{
    uint64_t params = 0;
    for (uint32_t u = 0; u < self->unit_count; u++) {
        const model_unit *unit = &self->units[u];
        uint64_t end = 0, unit_params = 0;
        for (uint32_t i = 0; i < unit->tensor_count; i++) {
            const model_tensor *tensor = &unit->tensors[i];
            bool grouped = strstr(tensor->name, "k_proj") || strstr(tensor->name, "v_proj") ||
                           strstr(tensor->name, "up_proj");
            if (grouped)
                assert_int_equal(tensor->offset_elems, end);
            else
                assert_int_equal(tensor->offset_elems % MODEL_TENSOR_ALIGN_ELEMS, 0);
            assert_true(tensor->offset_elems >= end);
            assert_true(tensor->offset_elems - end < MODEL_TENSOR_ALIGN_ELEMS);
            end = tensor->offset_elems + tensor->rows * tensor->columns;
            unit_params += tensor->rows * tensor->columns;
        }
        assert_true(end <= unit->elems);
        assert_int_equal(unit->elems % SHARD_ELEMS_STEP, 0);
        assert_true(unit->elems - end < SHARD_ELEMS_STEP);
        assert_int_equal(unit->param_count, unit_params);
        params += unit_params;
    }
    assert_int_equal(self->param_count, params);
}

static void expect_params(const model_spec *spec, uint64_t expected)
{
    model *self;
    assert_ok(model_create(spec, DTYPE_BF16, 2, &self));
    assert_int_equal(self->param_count, expected);
    assert_int_equal(self->unit_count, spec->num_layers + 2);
    assert_int_equal(self->stage_count, spec->num_layers + 2);
    assert_int_equal(self->stages[self->stage_count - 1].unit_count, spec->tie_embeddings ? 2 : 1);
    assert_int_equal(self->boundary_bytes, 2 * spec->seq_length * spec->hidden_size * 2);
    check_units(self);
    model_destroy(self);
}

static void published_parameter_counts(void **state)
{
    expect_params(&gpt2_small, 124439808);
    model_spec xl = gpt2_small;
    xl.num_layers = 48;
    xl.hidden_size = 1600;
    xl.num_heads = 25;
    expect_params(&xl, 1557611200);
    model_spec spec = llama(32, 4096, 32, 8, 14336, 128256, false);
    expect_params(&spec, 8030261248);
    spec = llama(16, 2048, 32, 8, 8192, 128256, true);
    expect_params(&spec, 1235814400);
    spec = llama(32, 4096, 32, 8, 14336, 32000, false); /* Mistral 7B */
    expect_params(&spec, 7241732096);
    spec = llama(24, 896, 14, 2, 4864, 151936, true); /* Qwen2.5 0.5B */
    spec.qkv_bias = true;
    expect_params(&spec, 494032768);
    spec = llama(36, 2560, 32, 8, 9728, 151936, true); /* Qwen3 4B */
    spec.qk_norm = true;
    spec.head_dim = 128;
    expect_params(&spec, 4022468096);
}

static void names_and_order(void **state)
{
    model *self;
    assert_ok(model_create(&gpt2_small, DTYPE_BF16, 1, &self));
    assert_string_equal(self->units[0].name, "embed");
    assert_string_equal(self->units[0].tensors[1].name, "wpe.weight");
    assert_string_equal(self->units[12].name, "block.11");
    assert_string_equal(self->units[12].tensors[2].name, "h.11.attn.c_attn.weight");
    assert_int_equal(self->units[12].tensors[2].rows, 3 * 768);
    assert_string_equal(self->units[13].tensors[0].name, "ln_f.weight");
    assert_int_equal(self->units[13].tensor_count, 2);
    assert_int_equal(self->constants_bytes, 0);
    model_destroy(self);

    model_spec spec = llama(2, 64, 4, 2, 100, 300, false);
    assert_ok(model_create(&spec, DTYPE_BF16, 1, &self));
    assert_string_equal(self->units[2].tensors[3].name, "model.layers.1.self_attn.v_proj.weight");
    assert_int_equal(self->units[2].tensors[3].rows, 32);
    assert_string_equal(self->units[3].tensors[1].name, "lm_head.weight");
    assert_int_equal(self->constants_bytes, 2048 * 8 * 2 * 4);
    model_destroy(self);

    spec.qkv_bias = spec.qk_norm = true;
    spec.head_dim = 20;
    assert_ok(model_create(&spec, DTYPE_BF16, 1, &self));
    static const char *const names[] = {"input_layernorm.weight",  "self_attn.q_proj.weight",
                                        "self_attn.k_proj.weight", "self_attn.v_proj.weight",
                                        "self_attn.q_proj.bias",   "self_attn.k_proj.bias",
                                        "self_attn.v_proj.bias",   "self_attn.q_norm.weight",
                                        "self_attn.k_norm.weight", "self_attn.o_proj.weight"};
    for (uint32_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_string_equal(self->units[1].tensors[i].name + strlen("model.layers.0."), names[i]);
    assert_int_equal(self->units[1].tensors[9].rows, 64);
    assert_int_equal(self->units[1].tensors[9].columns, 80);
    check_units(self);
    model_destroy(self);

    /* The model has more positions than a sequence has tokens. */
    model_spec longer = gpt2_small;
    longer.seq_length = 100;
    longer.position_count = 1024;
    assert_ok(model_create(&longer, DTYPE_BF16, 1, &self));
    assert_int_equal(self->units[0].tensors[1].rows, 1024);
    assert_int_equal(self->param_count, 124439808);
    model_destroy(self);

    /* Odd sizes: groups stay without gaps, their heads aligned. */
    spec = llama(2, 30, 3, 1, 7, 5, false);
    assert_ok(model_create(&spec, DTYPE_FP32, 3, &self));
    check_units(self);
    model_destroy(self);
}

/* Counted by hand for GPT-2 124M at B = 2, T = 1024. */
static void flops_and_bytes(void **state)
{
    model *self;
    assert_ok(model_create(&gpt2_small, DTYPE_BF16, 2, &self));
    double rows = 2048, products = 2 * rows * 12 * 768 * 768, down = 2 * rows * 4 * 768 * 768;
    double attention = 2 * 2.0 * 1024 * 1024 * 768;
    const struct stage *block = &self->stages[1];
    const struct pass *forward = block->passes[PHASE_FORWARD];
    const struct pass *backward = block->passes[PHASE_BACKWARD];
    assert_true(forward->flops == products + attention);
    assert_true(block->recompute_flops == products + attention - down);
    assert_true(backward->flops == block->recompute_flops + 2 * products + 2.5 * attention);
    forward = self->stages[13].passes[PHASE_FORWARD];
    backward = self->stages[13].passes[PHASE_BACKWARD];
    assert_true(forward->flops == 2 * rows * 768 * 50257);
    assert_true(backward->flops == 3 * forward->flops);
    assert_true(self->stages[0].passes[PHASE_FORWARD]->flops == 0);
    uint64_t stats = (4 + 12) * 2048 * 4; /* two means, two rstds, lse of 12 heads */
    assert_int_equal(block->saved_bytes, stats + 2048ull * 768 * 2 * (1 + 3 + 1 + 1 + 1 + 4 + 4));
    uint64_t lse = 12 * 2048 * 4;
    assert_int_equal(block->selective_bytes, lse + 2048ull * 768 * 2 * (3 + 1 + 1 + 4));
    assert_int_equal(self->chunk_rows, 768);
    assert_true(forward->temp_bytes >= 768ull * 50257 * 4);
    assert_true(backward->temp_bytes >= 768ull * 50257 * 6);
    double matrices = 12 * 12.0 * 768 * 768 + 768.0 * 50257;
    assert_true(
        fabs(model_step_flops(self, 4096) / (4096 * (6 * matrices + 12 * 12.0 * 768 * 1024 / 2)) -
             1) < 1e-12);
    uint64_t chunk_rows = self->chunk_rows;
    model_destroy(self);

    /* The chunk is the model's alone but never more than there are rows. */
    model_spec spec = gpt2_small;
    spec.seq_length = 16;
    assert_ok(model_create(&spec, DTYPE_FP32, 2, &self));
    assert_int_equal(self->chunk_rows, 32);
    model_destroy(self);
    assert_ok(model_create(&gpt2_small, DTYPE_FP32, 7, &self));
    assert_int_equal(self->chunk_rows, chunk_rows);
    model_destroy(self);
}

static void expect_refused(const model_spec *spec, enum dtype type, uint64_t micro_batch,
                           const char *words)
{
    model *self = (model *)spec;
    assert_error(model_create(spec, type, micro_batch, &self), ERR_CONFIG, words);
    assert_null(self);
}

/* A copy of `base` with some members of it, `spec`, changed is refused. */
#define REFUSED(base, words, ...)                                                                  \
    do {                                                                                           \
        model_spec spec = (base);                                                                  \
        __VA_ARGS__;                                                                               \
        expect_refused(&spec, DTYPE_BF16, 1, words);                                               \
    } while (0)

static void impossible_specs_are_refused(void **state)
{
    const model_spec good = llama(2, 64, 4, 2, 100, 300, false);
    REFUSED(good, "model.num_heads is 5, which does not divide", spec.num_heads = 5);
    REFUSED(good, "model.num_kv_heads is 3", spec.num_kv_heads = 3);
    REFUSED(good, "even", spec.num_heads = spec.num_kv_heads = 64);
    REFUSED(good, "at least 5 heads", spec.hidden_size = 1028);
    REFUSED(good, "model.vocab_size", spec.vocab_size = 1);
    REFUSED(good, "model.seq_length", spec.seq_length = 0);
    REFUSED(good, "model.num_layers", spec.num_layers = 0);
    REFUSED(good, "model.ffn_size", spec.ffn_size = 0);
    REFUSED(good, "model.hidden_dropout", spec.hidden_dropout = 0.99999999); /* 1 in fp32 */
    REFUSED(good, "model.rope_theta", spec.rope_theta = NAN);
    REFUSED(good, "model.norm_epsilon", spec.norm_epsilon = 0);
    REFUSED(good, "model.head_dim is 258", spec.head_dim = 258);
    REFUSED(good, "model.head_dim is 15", spec.head_dim = 15);
    REFUSED(good, "model.partial_rotary_factor is 0.2", spec.partial_rotary_factor = 0.2);
    REFUSED(good, "model.partial_rotary_factor", spec.partial_rotary_factor = NAN);
    REFUSED(good, "model.partial_rotary_factor is 0.1", spec.partial_rotary_factor = 0.1);
    expect_refused(&good, DTYPE_COUNT, 1, "fp16");
    expect_refused(&good, DTYPE_BF16, 0, "train_micro_batch_size_per_gpu");

    rope_form rope = {.scaling = ROPE_YARN, .factor = 2, .original_positions = 8};
    REFUSED(good, "model.rope_theta", spec.rope = rope, spec.rope_theta = 1);
    rope = (rope_form){.scaling = ROPE_LINEAR};
    REFUSED(good, "model.rope_scaling.factor", spec.rope = rope);
    rope = (rope_form){.scaling = ROPE_LLAMA3, .factor = 8};
    REFUSED(good, "original_max_position_embeddings is 0", spec.rope = rope);
    rope.original_positions = 64;
    rope.low_freq_factor = rope.high_freq_factor = 4;
    REFUSED(good, "high_freq_factor", spec.rope = rope);
    rope.scaling = ROPE_LONGROPE;
    rope.pair_count = 7;
    REFUSED(good, "have 7 numbers, but 8 pairs", spec.rope = rope);

    REFUSED(gpt2_small, "grouped", spec.num_kv_heads = 4);
    REFUSED(gpt2_small, "model.head_dim is 32", spec.head_dim = 32);
    REFUSED(gpt2_small, "model.qk_norm", spec.qk_norm = true);
    REFUSED(gpt2_small, "model.position_count is 1023", spec.position_count = 1023);

    model_spec large = good;
    large.hidden_size = large.ffn_size = large.vocab_size = large.seq_length = (1u << 31) - 256;
    large.num_heads = large.num_kv_heads = large.hidden_size / 256;
    expect_refused(&large, DTYPE_BF16, 1u << 30, "overflow");
}

enum { INIT_SEED = 11 };

static void initial_weights(void **state)
{
    printf("seed %d\n", INIT_SEED);
    model_spec spec = llama(2, 30, 3, 1, 70, 50, false);
    model *self;
    assert_ok(model_create(&spec, DTYPE_BF16, 1, &self));
    for (uint32_t u = 0; u < self->unit_count; u++) {
        const model_unit *unit = &self->units[u];
        float *whole = mem_alloc(unit->elems, sizeof *whole, "test");
        float *pieces = mem_alloc(unit->elems, sizeof *pieces, "test");
        memset(whole, 0xff, unit->elems * sizeof *whole);
        memset(pieces, 0xff, unit->elems * sizeof *pieces);
        model_init_elems(self, u, INIT_SEED, 0, unit->elems, whole);
        uint64_t step = 1;
        for (uint64_t begin = 0; begin < unit->elems; begin += step, step = step * 3 + 1) {
            if (step > unit->elems - begin)
                step = unit->elems - begin;
            model_init_elems(self, u, INIT_SEED, begin, step, pieces + begin);
        }
        assert_memory_equal(whole, pieces, unit->elems * sizeof *whole);

        uint64_t end = 0;
        for (uint32_t i = 0; i < unit->tensor_count; i++) {
            const model_tensor *tensor = &unit->tensors[i];
            for (; end < tensor->offset_elems; end++)
                assert_true(whole[end] == 0);
            double squares = 0;
            end += tensor->rows * tensor->columns;
            for (uint64_t k = tensor->offset_elems; k < end; k++)
                squares += (double)whole[k] * whole[k];
            double std = sqrt(squares / (double)(tensor->rows * tensor->columns));
            double expected = strstr(tensor->name, "norm") != NULL        ? 1
                              : strstr(tensor->name, "o_proj") != NULL    ? 0.01
                              : strstr(tensor->name, "down_proj") != NULL ? 0.01
                                                                          : 0.02;
            assert_true(fabs(std / expected - 1) < 0.15);
        }
        for (; end < unit->elems; end++)
            assert_true(whole[end] == 0);
        mem_free(whole);
        mem_free(pieces);
    }
    float first;
    model_init_elems(self, 1, INIT_SEED, self->units[1].tensors[2].offset_elems + 5, 1, &first);
    assert_true(first == rng_normal(INIT_SEED, (uint64_t)1 << 32 | 2, 5) * 0.02f);
    model_destroy(self);
}

/* destroy frees all that create allocates. */
static void nothing_leaks(void **state)
{
    mem_stats before, after;
    mem_get_stats(&before);
    model *self;
    assert_ok(model_create(&gpt2_small, DTYPE_BF16, 2, &self));
    model_destroy(self);
    model_destroy(NULL);
    mem_get_stats(&after);
    assert_int_equal(before.live_bytes, after.live_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_parameter_counts),
        cmocka_unit_test(names_and_order),
        cmocka_unit_test(flops_and_bytes),
        cmocka_unit_test(impossible_specs_are_refused),
        cmocka_unit_test(initial_weights),
        cmocka_unit_test(nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
