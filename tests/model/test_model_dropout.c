/* Dropout is off in evaluation. It is the same for a sequence in whatever micro-batch it is
 * computed, and another for another seed, step or sequence. The tests of gradients, of parts and of
 * adapters check, with the same instances, that it changes the gradients as it should. Argument:
 * the family, and "-dropout". */
#include "tests/model/model_harness.h"
#include "tests/unit.h"

enum { SEED = 29, SEQUENCES = 3, TOKENS = 12, ROWS = SEQUENCES * TOKENS };

static const char *instance = "gpt2-dropout";

struct drawn {
    uint64_t seed;
    uint32_t step, first; /* first: number in the global batch of the first of the sequences */
    bool is_evaluated;
};

static model_spec small(double adapter_dropout)
{
    model_spec spec = {.hidden_size = 48,
                       .ffn_size = 88,
                       .vocab_size = 101,
                       .seq_length = TOKENS,
                       .tie_embeddings = true,
                       .init_std = 0.15};
    harness_complete(instance, &spec);
    spec.lora = (model_lora){4, 8, harness_targets(spec.family), adapter_dropout};
    return spec;
}

/* The losses of `count` sequences from the first one on. */
static void forward_losses(const model_spec *spec, struct drawn how, uint64_t begin, uint64_t count,
                           float losses[ROWS])
{
    harness h;
    harness_create(&h, &kernels_reference, spec, DTYPE_FP32, count, 0);
    harness_init_weights(&h, SEED);
    for (uint32_t u = 0; u < h.self->unit_count; u++) /* B of adapters is zero */
        for (uint64_t i = 0; i < h.self->units[u].elems; i++)
            h.masters[u][i] += 0.1f * rng_normal(SEED, u, i);
    harness_copy_params(&h);
    for (uint64_t i = 0; i < count * TOKENS; i++) {
        h.tokens[i] = (int32_t)rng_below(SEED, 1, begin * TOKENS + i, spec->vocab_size);
        h.targets[i] = (int32_t)rng_below(SEED, 2, begin * TOKENS + i, spec->vocab_size);
    }
    h.seed = how.seed;
    h.counter[0] = how.step;
    h.counter[1] = how.first + (uint32_t)begin;
    h.is_evaluated = how.is_evaluated;
    harness_forward(&h, true);
    memcpy(losses + begin * TOKENS, h.losses, count * TOKENS * sizeof losses[0]);
    harness_destroy(&h);
}

static void evaluation_drops_nothing(void **state)
{
    float with[ROWS], without[ROWS];
    model_spec spec = small(0.3), plain = small(0);
    plain.hidden_dropout = plain.embedding_dropout = plain.attention_dropout = 0;
    assert_true(model_has_dropout(&spec) && !model_has_dropout(&plain));
    forward_losses(&plain, (struct drawn){1, 5, 40, false}, 0, SEQUENCES, without);
    forward_losses(&spec, (struct drawn){1, 5, 40, true}, 0, SEQUENCES, with);
    assert_memory_equal(with, without, sizeof with);
    forward_losses(&spec, (struct drawn){1, 5, 40, false}, 0, SEQUENCES, with);
    assert_memory_not_equal(with, without, sizeof with);
}

/* With the dropout of adapters, and without. */
static void check_counter(double adapter_dropout)
{
    float all[ROWS], other[ROWS];
    model_spec spec = small(adapter_dropout);
    const struct drawn plain = {1, 5, 40, false};
    const struct drawn others[] = {{2, 5, 40, false}, {1, 6, 40, false}, {1, 5, 41, false}};
    forward_losses(&spec, plain, 0, SEQUENCES, all);
    for (uint64_t i = 0; i < SEQUENCES; i++)
        forward_losses(&spec, plain, i, 1, other);
    assert_memory_equal(all, other, sizeof all);
    for (int i = 0; i < 3; i++) {
        forward_losses(&spec, others[i], 0, SEQUENCES, other);
        for (uint64_t s = 0; s < SEQUENCES; s++)
            assert_memory_not_equal(all + s * TOKENS, other + s * TOKENS, TOKENS * sizeof all[0]);
    }
}

static void masks_belong_to_seed_step_and_sequence(void **state)
{
    check_counter(0.3);
    check_counter(0);
}

static void wrong_shares_are_refused(void **state)
{
    model *self;
    for (int i = 0; i < 3; i++) {
        model_spec spec = small(0);
        double *shares[] = {&spec.hidden_dropout, &spec.embedding_dropout, &spec.attention_dropout};
        *shares[i] = 1;
        assert_error(model_create(&spec, DTYPE_FP32, 1, &self), ERR_CONFIG, "_dropout is 1");
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        instance = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(evaluation_drops_nothing),
        cmocka_unit_test(masks_belong_to_seed_step_and_sequence),
        cmocka_unit_test(wrong_shares_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
