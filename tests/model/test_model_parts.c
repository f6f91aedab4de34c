/* Which parts models are cut into: every row of every tensor once, no unit above the limit, names
 * and numbers, the passes and what they use, flops and parameters of the whole, the same initial
 * weights; and which limits are refused. */
#include "base/mem.h"
#include "base/tile.h"
#include "model/model.h"
#include "model/model_internal.h"
#include "tests/unit.h"

enum { SEED = 23 };

static model_spec spec_of(enum model_family family, bool tied, uint64_t max_part_bytes)
{
    bool is_llama = family == MODEL_LLAMA;
    model_spec spec = {
        .family = family,
        .num_layers = 3,
        .hidden_size = 96,
        .num_heads = 6,
        .num_kv_heads = is_llama ? 2 : 6,
        .ffn_size = is_llama ? 250 : 384,
        .vocab_size = 1003,
        .seq_length = 130,
        .tie_embeddings = tied,
        .rope_theta = 10000,
        .norm_epsilon = 1e-5,
        .init_std = 0.02,
        .max_part_bytes = max_part_bytes,
    };
    if (family == MODEL_DEEPSEEK) {
        spec.q_latent_size = 40;
        spec.kv_latent_size = 24;
        spec.rope_head_dim = 6;
        spec.value_head_dim = 12;
    }
    return spec;
}

/* Mixtures are cut in other ways: test_model_experts.c. */
static bool is_mixture(uint32_t family)
{
    return modeli_family_of((enum model_family)family)->experts != NULL;
}

static model *create(const model_spec *spec, enum dtype type)
{
    model *self;
    assert_ok(model_create(spec, type, 2, &self));
    return self;
}

static const model_tensor *find_tensor(const model *self, const char *name, uint32_t *unit)
{
    for (*unit = 0; *unit < self->unit_count; (*unit)++)
        for (uint32_t i = 0; i < self->units[*unit].tensor_count; i++)
            if (strcmp(self->units[*unit].tensors[i].name, name) == 0)
                return &self->units[*unit].tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static uint64_t tensor_elems(const model_tensor *tensor)
{
    return tensor->rows * tensor->columns;
}

/* Offsets of a unit's tensors: in order, the first aligned, no overlap, within the padded unit. */
static void check_unit(const model *self, const model_unit *unit)
{
    uint64_t end = 0, params = 0;
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        const model_tensor *tensor = &unit->tensors[i];
        assert_true(tensor->offset_elems >= end);
        assert_true(tensor->offset_elems - end < MODEL_TENSOR_ALIGN_ELEMS);
        assert_true(tensor->offset_elems == end ||
                    tensor->offset_elems % MODEL_TENSOR_ALIGN_ELEMS == 0);
        assert_true(tensor->row_begin + tensor->rows <= tensor->whole_rows);
        end = tensor->offset_elems + tensor_elems(tensor);
        params += tensor_elems(tensor);
    }
    assert_true(end <= unit->elems && unit->elems - end < SHARD_ELEMS_STEP);
    assert_int_equal(unit->elems % SHARD_ELEMS_STEP, 0);
    assert_int_equal(unit->param_count, params);
    uint64_t most = self->spec.max_part_bytes;
    assert_true(most == 0 || unit->elems * dtype_bytes(self->type) <= most);
}

/* Each tensor of the whole model comes in the cut one once, rows in order of units, with the same
 * initial weights. */
static void check_tensors(const model *whole, const model *cut, bool with_weights)
{
    uint64_t covered = 0;
    float *expected[64] = {NULL};
    assert_true(whole->unit_count <= 64);
    for (uint32_t u = 0; u < whole->unit_count; u++) {
        expected[u] = mem_alloc(whole->units[u].elems, sizeof(float), "test");
        if (with_weights)
            model_init_elems(whole, u, SEED, 0, whole->units[u].elems, expected[u]);
    }
    for (uint32_t u = 0; u < cut->unit_count; u++) {
        const model_unit *unit = &cut->units[u];
        float *got = mem_alloc(unit->elems, sizeof *got, "test");
        /* in two pieces, so that begin is not always 0 */
        if (with_weights) {
            model_init_elems(cut, u, SEED, 0, 1001, got);
            model_init_elems(cut, u, SEED, 1001, unit->elems - 1001, got + 1001);
        }
        check_unit(cut, unit);
        for (uint32_t i = 0; i < unit->tensor_count; i++) {
            const model_tensor *tensor = &unit->tensors[i];
            uint32_t from;
            const model_tensor *same = find_tensor(whole, tensor->name, &from);
            uint64_t begin = tensor->row_begin * tensor->columns;
            assert_int_equal(tensor->whole_rows * tensor->columns, tensor_elems(same));
            assert_true(begin + tensor_elems(tensor) <= tensor_elems(same));
            assert_int_equal(tensor->init, same->init);
            if (same->rows > 1)
                assert_int_equal(tensor->columns, same->columns);
            assert_memory_equal(got + tensor->offset_elems,
                                expected[from] + same->offset_elems + begin,
                                tensor_elems(tensor) * sizeof *got);
            covered += tensor_elems(tensor);
            if (begin > 0) { /* the rows before are in the unit before */
                const model_unit *before = &cut->units[u - 1];
                const model_tensor *last = NULL;
                for (uint32_t k = 0; k < before->tensor_count; k++)
                    if (strcmp(before->tensors[k].name, tensor->name) == 0)
                        last = &before->tensors[k];
                assert_non_null(last);
                assert_int_equal(last->row_begin + last->rows, tensor->row_begin);
            }
        }
        mem_free(got);
    }
    for (uint32_t u = 0; u < whole->unit_count; u++)
        mem_free(expected[u]);
    assert_int_equal(covered, whole->param_count);
    assert_int_equal(cut->param_count, whole->param_count);
}

static void expect_near(double got, double expected)
{
    assert_true(got >= expected * (1 - 1e-12) && got <= expected * (1 + 1e-12));
}

static double flops_of(const struct stage *stage, enum phase phase)
{
    double flops = 0;
    for (uint32_t i = 0; i < stage->pass_count[phase]; i++)
        flops += stage->passes[phase][i].flops;
    return flops;
}

/* Flops do not depend on the cut, but that a cut head makes its logits twice in the backward. */
static void check_flops(const model *whole, const model *cut)
{
    assert_int_equal(whole->stage_count, cut->stage_count);
    for (uint32_t i = 0; i < cut->stage_count; i++) {
        const struct stage *a = &whole->stages[i], *b = &cut->stages[i];
        bool is_cut_head = b->kind == STAGE_HEAD && b->is_cut;
        assert_int_equal(a->kind, b->kind);
        double forward = flops_of(b, PHASE_FORWARD), again = flops_of(b, PHASE_RECOMPUTE);
        expect_near(forward, flops_of(a, PHASE_FORWARD));
        expect_near(again, b->is_cut ? a->recompute_flops : 0);
        expect_near(again + flops_of(b, PHASE_BACKWARD),
                    flops_of(a, PHASE_BACKWARD) + (is_cut_head ? forward : 0));
    }
    expect_near(model_step_flops(cut, 100), model_step_flops(whole, 100));
}

/* Reads of a buffer come after a pass that wrote it, in every phase; `saved` of a backward is
 * filled. Only input_grad may be written anew: a pass may use it for a gradient of its own. */
static void check_order(const struct stage *stage, const size_t offset, bool is_result,
                        bool is_given)
{
    for (uint32_t phase = 0; phase < PHASE_COUNT; phase++) {
        bool is_saved = offset == offsetof(struct pass, saved);
        bool written =
            is_given || (is_saved && phase == PHASE_BACKWARD && stage->kind == STAGE_BLOCK);
        for (uint32_t i = 0; i < stage->pass_count[phase]; i++) {
            uint8_t access = ((const uint8_t *)&stage->passes[phase][i])[offset];
            if (access == ACCESS_WRITE)
                assert_true(!written || offset == offsetof(struct pass, input_grad));
            else if (access != ACCESS_NONE)
                assert_true(written);
            written = written || access == ACCESS_WRITE;
            if (!is_result && !is_saved)
                assert_true(access == ACCESS_NONE || access == ACCESS_READ);
        }
    }
}

/* Each unit of the model is read by forward and backward, its gradient is added to in the
 * backward. */
static void check_passes(const model *self)
{
    uint8_t *seen = mem_alloc(self->unit_count, 1, "test"); /* bits: forward, backward, grads */
    for (uint32_t s = 0; s < self->stage_count; s++) {
        const struct stage *stage = &self->stages[s];
        uint32_t forward = stage->pass_count[PHASE_FORWARD];
        assert_int_equal(stage->is_cut, forward > 1);
        for (uint32_t phase = 0; phase < PHASE_COUNT; phase++)
            for (uint32_t i = 0; i < stage->pass_count[phase]; i++) {
                const struct pass *pass = &stage->passes[phase][i];
                assert_true(pass->dram_bytes > 0);
                for (uint32_t k = 0; k < pass->unit_count; k++) {
                    assert_true(pass->units[k] < self->unit_count);
                    bool backward = phase == PHASE_BACKWARD;
                    if (pass->reads_params[k])
                        seen[pass->units[k]] |= backward ? 2 : 1;
                    if (pass->adds_grads[k])
                        seen[pass->units[k]] |= 4;
                    assert_true(backward || !pass->adds_grads[k]);
                }
            }
        check_order(stage, offsetof(struct pass, input), false, true);
        check_order(stage, offsetof(struct pass, output_grad), false, true);
        check_order(stage, offsetof(struct pass, output), true, false);
        check_order(stage, offsetof(struct pass, input_grad), true, false);
        check_order(stage, offsetof(struct pass, losses), true, false);
        check_order(stage, offsetof(struct pass, saved), true, false);
        assert_int_equal(stage->units[0], stage->passes[PHASE_FORWARD][0].units[0]);
    }
    for (uint32_t u = 0; u < self->unit_count; u++) {
        bool is_embed = strncmp(self->units[u].name, "embed", 5) == 0;
        assert_true((seen[u] & 5) == 5);
        assert_true(is_embed || (seen[u] & 2));
    }
    mem_free(seen);
}

static void every_row_once(void **state)
{
    printf("seed %d\n", SEED);
    const uint64_t bytes[] = {0, 1 << 30, 300000, 200000, 100000, 50000, 20001, 16384};
    for (uint32_t family = 0; family < MODEL_FAMILY_COUNT; family++)
        for (uint32_t tied = 0; tied < 2 && !is_mixture(family); tied++)
            for (uint32_t type = 0; type < DTYPE_COUNT; type++) {
                model_spec spec = spec_of((enum model_family)family, tied, 0);
                model *whole = create(&spec, (enum dtype)type);
                for (uint32_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
                    spec.max_part_bytes = bytes[i];
                    model *cut = create(&spec, (enum dtype)type);
                    check_tensors(whole, cut,
                                  type == DTYPE_BF16 && tied == family % 2 && (i % 3) == 1);
                    check_flops(whole, cut);
                    check_passes(cut);
                    model_destroy(cut);
                }
                model_destroy(whole);
            }
}

/* Matrices of one row are cut as matrices: the columns stay whole. */
static void one_row_is_no_vector(void **state)
{
    for (uint32_t family = 0; family < MODEL_FAMILY_COUNT; family++) {
        model_spec spec = spec_of((enum model_family)family, false, 0);
        if (is_mixture(family))
            continue;
        spec.ffn_size = spec.seq_length = 1;
        model *whole = create(&spec, DTYPE_FP32);
        spec.max_part_bytes = 16384;
        model *cut = create(&spec, DTYPE_FP32);
        check_tensors(whole, cut, true);
        assert_int_equal(cut->param_count, whole->param_count);
        model_destroy(whole);
        model_destroy(cut);
    }
}

static uint32_t unit_named(const model *self, const char *name)
{
    for (uint32_t u = 0; u < self->unit_count; u++)
        if (strcmp(self->units[u].name, name) == 0)
            return u;
    fail_msg("no unit %s", name);
    return 0;
}

/* GPT-2 by hand: 16384 elements a part (bf16). */
static void names_and_sizes(void **state)
{
    model_spec spec = spec_of(MODEL_GPT2, true, 32768);
    model *self = create(&spec, DTYPE_BF16);
    /* 170 rows of 96 fit; with less than 4 * 64 of them they go in steps of 32 */
    uint32_t first = unit_named(self, "embed.0");
    assert_int_equal(first, 0);
    assert_int_equal(self->units[0].tensor_count, 1);
    assert_int_equal(self->units[0].tensors[0].rows, 160);
    assert_int_equal(self->units[1].tensors[0].row_begin, 160);
    assert_int_equal(self->units[1].tensors[0].whole_rows, 1003);
    uint32_t positions = unit_named(self, "embed.positions.0");
    assert_int_equal(positions, 7); /* 6 * 160 + 43 rows */
    assert_int_equal(self->units[6].tensors[0].rows, 43);
    assert_int_equal(self->units[positions].tensors[0].rows, 130);

    /* qkv: 288 rows; the first part holds two norm vectors of 128 elements with their padding */
    assert_int_equal(unit_named(self, "block.0.qkv.0"), 8);
    assert_int_equal(unit_named(self, "block.0.qkv.1"), 9);
    const model_unit *qkv = &self->units[8];
    assert_string_equal(qkv->tensors[0].name, "h.0.ln_1.weight");
    assert_string_equal(qkv->tensors[2].name, "h.0.attn.c_attn.weight");
    assert_int_equal(qkv->tensors[2].offset_elems, 256);
    assert_int_equal(qkv->tensors[2].rows, 160);
    const model_tensor *bias = &self->units[9].tensors[1];
    assert_string_equal(bias->name, "h.0.attn.c_attn.bias");
    assert_int_equal(bias->row_begin, 160);
    assert_int_equal(bias->rows, 128);
    assert_int_equal(bias->columns, 1);
    assert_int_equal(bias->whole_rows, 288);
    assert_int_equal(unit_named(self, "block.0.proj.0"), 10);
    assert_int_equal(self->units[10].tensors[1].rows, 1); /* this bias stays whole */
    assert_int_equal(self->units[10].tensors[1].columns, 96);
    uint32_t block_units = unit_named(self, "block.1.qkv.0") - 8;
    assert_int_equal(unit_named(self, "block.2.qkv.0"), 8 + 2 * block_units);
    assert_int_equal(unit_named(self, "head.norm"), 8 + 3 * block_units);
    assert_int_equal(self->unit_count, 9 + 3 * block_units);

    /* The tied head: norm, the 7 table parts, and back. */
    const struct stage *head = &self->stages[self->stage_count - 1];
    assert_int_equal(head->pass_count[PHASE_FORWARD], 8);
    assert_int_equal(head->pass_count[PHASE_BACKWARD], 16);
    assert_int_equal(head->passes[PHASE_BACKWARD][7].units[0], 6);
    assert_int_equal(head->passes[PHASE_BACKWARD][8].units[0], 6);
    assert_int_equal(head->passes[PHASE_BACKWARD][14].units[0], 0);
    assert_int_equal(head->passes[PHASE_BACKWARD][15].input_grad, ACCESS_WRITE);
    assert_int_equal(head->passes[PHASE_FORWARD][7].losses, ACCESS_WRITE);
    assert_int_equal(head->passes[PHASE_FORWARD][6].losses, ACCESS_NONE);

    /* A block: its recomputation leaves `down` out, its backward goes from the last part to the
     * first. */
    const struct stage *block = &self->stages[1];
    const struct pass *back = block->passes[PHASE_BACKWARD];
    assert_int_equal(block->pass_count[PHASE_FORWARD], block_units);
    assert_int_equal(block->pass_count[PHASE_RECOMPUTE], unit_named(self, "block.0.down.0") - 8);
    assert_int_equal(block->pass_count[PHASE_BACKWARD], block_units);
    assert_int_equal(back[0].units[0], 8 + block_units - 1);
    assert_int_equal(back[0].output_grad, ACCESS_READ);
    assert_int_equal(back[0].input_grad, ACCESS_NONE);
    assert_int_equal(back[block_units - 1].units[0], 8);
    assert_int_equal(back[block_units - 1].input, ACCESS_READ);
    assert_int_equal(back[block_units - 1].input_grad, ACCESS_UPDATE);
    model_destroy(self);
}

/* An untied head has parts of its own; q, k and v are cut as one matrix. */
static void llama_by_hand(void **state)
{
    model_spec spec = spec_of(MODEL_LLAMA, false, 25000);
    model *self = create(&spec, DTYPE_FP16);
    uint32_t norm = unit_named(self, "head.norm");
    assert_int_equal(unit_named(self, "head.0"), norm + 1);
    assert_string_equal(self->units[norm + 1].tensors[0].name, "lm_head.weight");
    const model_unit *second = &self->units[unit_named(self, "block.0.qkv.1")];
    assert_string_equal(second->tensors[0].name, "model.layers.0.self_attn.k_proj.weight");
    assert_string_equal(second->tensors[1].name, "model.layers.0.self_attn.v_proj.weight");
    assert_int_equal(second->tensors[0].row_begin, 16); /* 112 rows: 96 of q and 16 of k */
    assert_int_equal(second->tensors[0].whole_rows, 32);
    assert_int_equal(second->tensors[1].offset_elems,
                     second->tensors[0].rows * second->tensors[0].columns);
    model_destroy(self);
}

/* A model as large as the ones that need it: 405B parameters, in parts of 256 MiB. */
static void large_models(void **state)
{
    model_spec spec = {
        .family = MODEL_LLAMA,
        .num_layers = 126,
        .hidden_size = 16384,
        .num_heads = 128,
        .num_kv_heads = 8,
        .ffn_size = 53248,
        .vocab_size = 128256,
        .seq_length = 4096,
        .rope_theta = 500000,
        .norm_epsilon = 1e-5,
        .init_std = 0.02,
    };
    model *whole = create(&spec, DTYPE_BF16);
    spec.max_part_bytes = 256ull << 20;
    model *cut = create(&spec, DTYPE_BF16);
    assert_int_equal(cut->param_count, whole->param_count);
    assert_int_equal(cut->param_count, 405853388800);
    check_passes(cut);
    check_flops(whole, cut);
    for (uint32_t u = 0; u < cut->unit_count; u++) {
        check_unit(cut, &cut->units[u]);
        for (uint32_t i = 0; i < cut->units[u].tensor_count; i++)
            if (cut->units[u].tensors[i].columns > 1 && cut->units[u].tensors[i].rows > 1)
                assert_int_equal(cut->units[u].tensors[i].row_begin % 16, 0);
    }
    model_destroy(whole);
    model_destroy(cut);
}

static void expect_refused(const model_spec *spec, enum dtype type, const char *first,
                           const char *second)
{
    model *self = (model *)spec;
    assert_int_equal(model_create(spec, type, 1, &self), ERR_CONFIG);
    assert_null(self);
    if (strstr(err_text(), first) == NULL || strstr(err_text(), second) == NULL)
        fail_msg("'%s' does not mention '%s' and '%s'", err_text(), first, second);
}

static void impossible_limits_are_refused(void **state)
{
    for (uint32_t family = 0; family < MODEL_FAMILY_COUNT; family++) {
        model_spec spec = spec_of((enum model_family)family, true, 8191);
        if (is_mixture(family))
            continue;
        expect_refused(&spec, DTYPE_BF16, "model.max_part_bytes is 8191", "needs 8192 bytes");
        spec.max_part_bytes = 16383;
        expect_refused(&spec, DTYPE_FP32, "model.max_part_bytes is 16383", "set it to 16384");
    }
    /* Rows of more than 4096 elements: `down` has the longest. The number that is named works. */
    model_spec spec = spec_of(MODEL_GPT2, false, 8192);
    spec.hidden_size = 960;
    spec.ffn_size = 5000;
    expect_refused(&spec, DTYPE_BF16, "one row of the layer down", "needs 16384 bytes");
    expect_refused(&spec, DTYPE_FP16, "one row of the layer down", "set it to 16384");
    spec.max_part_bytes = 16384;
    model_destroy(create(&spec, DTYPE_BF16));
    spec.hidden_size = 6000;
    spec.num_heads = spec.num_kv_heads = 24;
    expect_refused(&spec, DTYPE_BF16, "model.max_part_bytes is 16384", "set it to 40960");
    spec.max_part_bytes = 40960;
    model_destroy(create(&spec, DTYPE_BF16));
    /* One row a part: too many parts to count. */
    spec = spec_of(MODEL_LLAMA, true, 8192);
    spec.hidden_size = 4096 - 6;
    spec.num_heads = spec.num_kv_heads = 409;
    spec.vocab_size = 2000000;
    expect_refused(&spec, DTYPE_BF16, "model.max_part_bytes", "parts");
}

/* destroy frees all that create allocates, and a create that fails half way frees its part. */
static void nothing_leaks(void **state)
{
    mem_stats before, after;
    mem_get_stats(&before);
    for (uint64_t bytes = 4096; bytes < 100000; bytes *= 2)
        for (uint32_t tied = 0; tied < 2; tied++) {
            model_spec spec = spec_of(MODEL_GPT2, tied, bytes);
            model *self;
            if (model_create(&spec, DTYPE_BF16, 1, &self) == 0)
                model_destroy(self);
        }
    mem_get_stats(&after);
    assert_int_equal(before.live_bytes, after.live_bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_once),  cmocka_unit_test(one_row_is_no_vector),
        cmocka_unit_test(names_and_sizes), cmocka_unit_test(llama_by_hand),
        cmocka_unit_test(large_models),    cmocka_unit_test(impossible_limits_are_refused),
        cmocka_unit_test(nothing_leaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
