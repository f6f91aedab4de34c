/* Packed units: a base that does not learn in each stored format. Losses and gradients of a step
 * have the bits of the model whose matrices hold the expanded values, whatever is kept, in whole
 * units and in parts, by the reference and by the CPU's kernels. What cannot be packed is refused.
 * Argument: the family. */
#include "base/shard.h"
#include "model/pack.h"
#include "tests/model/model_harness.h"
#include "tests/unit.h"

enum { SEED = 29, RANK = 3 };

static const char *instance;

/* Which matrices do not learn. */
enum variant {
    ADAPTERS,     /* all of the base */
    PARTS,        /* all blocks, which are cut; the embedding learns, so the backward passes them */
    SECOND_BLOCK, /* those of block 1 */
    ENDS,         /* all of the base; rules name the embedding and the output matrix too */
    VARIANT_COUNT
};

/* Adds a rule for the matrices of a unit. */
static void add_rules(model_spec *spec, const model_unit *unit, enum stored_format format)
{
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        model_stored_rule *rule = &spec->stored.rules[spec->stored.rule_count];
        if (!model_is_matrix(&unit->tensors[i]) || unit->tensors[i].rows == 1)
            continue;
        assert_true(strlen(unit->tensors[i].name) < sizeof rule->name);
        strcpy(rule->name, unit->tensors[i].name);
        rule->format = format;
        spec->stored.rule_count++;
    }
}

static model_spec small(enum variant variant, enum stored_format format)
{
    model_spec spec = {
        .hidden_size = 64,
        .ffn_size = 160,
        .vocab_size = 101,
        .seq_length = 12,
        .init_std = 0.15,
        .stored.format = format,
    };
    harness_complete(instance, &spec);
    if (spec.expert_count > 0)
        spec.expert_ffn_size = 32;
    if (spec.shared_ffn_size > 0)
        spec.shared_ffn_size = 32;
    if (variant == ADAPTERS || variant == ENDS)
        spec.lora = (model_lora){
            .rank = RANK, .alpha = 4, .targets = harness_targets(harness_family(instance))};
    if (variant == ENDS && format != STORED_WORKING) {
        model *self;
        assert_ok(model_create(&spec, DTYPE_FP32, 1, &self));
        add_rules(&spec, &self->units[0], format);
        add_rules(&spec, &self->units[self->unit_count - 1], format);
        assert_true(spec.stored.rule_count > 0);
        model_destroy(self);
    }
    if (variant == PARTS) {
        spec.learn = (model_learn){.is_given = true, .embed = true};
        spec.max_part_bytes = 40000;
    }
    if (variant == SECOND_BLOCK)
        spec.learn = (model_learn){.is_given = true, .range_count = 1, .blocks = {{0, 0}}};
    return spec;
}

/* A model_source of the masters. */
static int master_source(void *user, uint32_t unit, uint64_t begin, uint64_t count, float *values)
{
    const harness *h = user;
    memcpy(values, h->masters[unit] + begin, count * sizeof *values);
    return 0;
}

/* Packs the units of `packed`, and fills those of `plain` with what they expand to. Returns their
 * number. */
static uint32_t fill(harness *packed, harness *plain)
{
    const model *self = packed->self;
    uint32_t count = 0;
    model_packer *packer;
    assert_ok(model_packer_create(self, &packer));
    for (uint32_t u = 0; u < self->unit_count; u++) {
        const model_unit *unit = &self->units[u];
        const void *bytes;
        if (!unit->is_packed) {
            assert_int_equal(unit->rest_elems, unit->elems);
            continue;
        }
        count++;
        const model_source source = {.values = master_source, .user = packed};
        assert_true(unit->is_frozen && unit->rest_elems <= unit->elems);
        assert_int_equal(unit->rest_elems % SHARD_ELEMS_STEP, 0);
        assert_ok(model_pack(packer, packed->ops, packed->context, u, &source, &bytes));
        memcpy(packed->params[u], bytes, unit->rest_elems * dtype_bytes(self->type));
        for (uint32_t i = 0; i < unit->tensor_count; i++) {
            const model_tensor *tensor = &unit->tensors[i];
            float *values = plain->masters[u] + tensor->offset_elems;
            if (strstr(tensor->name, ".gate.weight")) /* a router */
                assert_int_equal(tensor->stored, STORED_WORKING);
            assert_ok(model_unpack(self, packed->ops, packed->context, u, i, bytes, values));
            dtype_convert(values, DTYPE_FP32,
                          (char *)plain->params[u] + tensor->offset_elems * dtype_bytes(self->type),
                          self->type, tensor->rows * tensor->columns);
        }
    }
    model_packer_destroy(packer);
    return count;
}

static void check(const kernel_ops *ops, enum variant variant, enum stored_format format,
                  enum dtype type)
{
    harness packed, plain;
    model_spec spec = small(variant, format), plain_spec = small(variant, STORED_WORKING);
    harness_start(&packed, ops, &spec, type, 0, SEED, true);
    harness_start(&plain, ops, &plain_spec, type, 0, SEED, true);
    assert_true(fill(&packed, &plain) > 0);
    for (int kept = KEPT_NONE; kept < KEPT_COUNT; kept++) {
        harness_step(&packed, 0.7f, (enum kept)kept);
        harness_step(&plain, 0.7f, (enum kept)kept);
        harness_expect_same_bits(&packed, &plain);
    }
    /* the comparison is not of two models that ignore their params */
    memset(plain.params[1], 0, plain.self->units[1].elems * dtype_bytes(type));
    harness_forward(&packed, true);
    harness_forward(&plain, true);
    assert_memory_not_equal(packed.losses, plain.losses, packed.self->tokens * sizeof(float));
    harness_destroy(&packed);
    harness_destroy(&plain);
}

static void same_bits_as_expanded(void **state)
{
    for (int format = STORED_INT8; format < STORED_FORMAT_COUNT; format++)
        for (int variant = 0; variant < VARIANT_COUNT; variant++) {
            if (variant == ENDS && format != STORED_NF4_DOUBLE)
                continue;
            enum dtype type = (format + variant) % 2 ? DTYPE_BF16 : DTYPE_FP32;
            check(&kernels_reference, (enum variant)variant, (enum stored_format)format, type);
#ifdef HAVE_KERNELS_CPU
            check(&kernels_cpu, (enum variant)variant, (enum stored_format)format, DTYPE_BF16);
            check(&kernels_cpu, (enum variant)variant, (enum stored_format)format, DTYPE_FP32);
#endif
        }
}

static void refuse(const model_spec *spec, const char *text)
{
    model *self;
    assert_error(model_create(spec, DTYPE_BF16, 1, &self), ERR_CONFIG, text);
}

static void refusals(void **state)
{
    model_spec spec = small(ADAPTERS, STORED_NF4);
    spec.lora.rank = 0;
    refuse(&spec, "all of them learn");
    spec.stored.is_of_checkpoint = true;
    refuse(&spec, "quantized, as nf4, and it learns");
    spec = small(ENDS, STORED_NF4);
    spec.learn = (model_learn){.is_given = true, .embed = true, .head = true};
    refuse(&spec, "learn; leave the rule out");
    strcpy(spec.stored.rules[0].name, "no_such_layer");
    refuse(&spec, "no matrix of the model has the name \"no_such_layer\"");
    spec.stored.rules[0].format = STORED_WORKING; /* what it should keep would be packed */
    refuse(&spec, "no matrix of the model has the name \"no_such_layer\"");
    spec.stored.may_keep_absent = true; /* not for formats, which would be without effect */
    spec.stored.rules[0].format = STORED_NF4;
    refuse(&spec, "no matrix of the model has the name \"no_such_layer\"");
    spec = small(ADAPTERS, STORED_NF4);
    strcpy(spec.stored.rules[0].name, "no_such_layer");
    spec.stored.rules[0].format = STORED_WORKING;
    spec.stored.rule_count = 1;
    spec.stored.may_keep_absent = true;
    model *self;
    assert_ok(model_create(&spec, DTYPE_BF16, 1, &self));
    model_destroy(self);
    spec = small(ADAPTERS, STORED_MXFP4);
    spec.hidden_size = 40;
    refuse(&spec, "needs rows of a multiple of 32 elements");
}

/* A weight that is not finite is an error with the matrix's name; the next call tries again. */
static void not_finite(void **state)
{
    harness h;
    model_spec spec = small(ADAPTERS, STORED_NF4_DOUBLE);
    const model_source source = {.values = master_source, .user = &h};
    model_packer *packer;
    const void *packed;
    harness_start(&h, &kernels_reference, &spec, DTYPE_BF16, 0, SEED, true);
    for (uint32_t u = 0; u < h.self->unit_count; u++)
        for (uint32_t i = 0; i < h.self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &h.self->units[u].tensors[i];
            float *value = &h.masters[u][tensor->offset_elems], before = *value;
            if (tensor->stored == STORED_WORKING)
                continue;
            assert_ok(model_packer_create(h.self, &packer));
            *value = NAN;
            int rc = model_pack(packer, h.ops, h.context, u, &source, &packed);
            assert_error(rc, ERR_INPUT, tensor->name);
            *value = before;
            rc = model_pack(packer, h.ops, h.context, u, &source, &packed);
            assert_int_equal(rc, 0);
            model_packer_destroy(packer);
        }
    harness_destroy(&h);
}

int main(int argc, char **argv)
{
    instance = argc > 1 ? argv[1] : "llama";
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_as_expanded),
        cmocka_unit_test(refusals),
        cmocka_unit_test(not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
