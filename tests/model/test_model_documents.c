/* Documents that share a window: losses and gradients are those of a batch that has a sequence for
 * each document; every family, whole and in parts, on the reference backend and the CPU's, with
 * activations kept and recomputed. Argument: the family or variant. */
#include "tests/model/model_harness.h"
#include "tests/unit.h"

enum { WINDOWS = 2, TOKENS = 47, LONGEST = 30, DOCUMENTS = 7, VOCAB = 61, SEED = 5 };

static const char *instance = "gpt2";

/* Lengths, window by window. */
static const uint64_t lengths[DOCUMENTS] = {9, 1, 20, 3, 14, LONGEST, TOKENS - LONGEST};

static model_spec small_spec(uint64_t tokens, uint64_t max_part_bytes)
{
    model_spec spec = {
        .hidden_size = 64,
        .ffn_size = 96,
        .vocab_size = VOCAB,
        .seq_length = tokens,
        .tie_embeddings = true,
        .init_std = 0.2, /* so that attention is not all alike */
        .max_part_bytes = max_part_bytes,
    };
    harness_complete(instance, &spec);
    if (!modeli_has_rope(spec.family)) /* equal tables of positions */
        spec.position_count = strcmp(instance, "gpt2-long") == 0 ? 117 : TOKENS;
    return spec;
}

static void start(harness *h, const kernel_ops *ops, uint64_t tokens, uint64_t batch,
                  uint64_t max_part_bytes)
{
    model_spec spec = small_spec(tokens, max_part_bytes);
    harness_create(h, ops, &spec, DTYPE_FP32, batch, 0);
    harness_init_weights(h, SEED);
    harness_roughen(h, SEED);
    harness_copy_params(h);
}

/* Packs the documents of `apart`, a sequence each, into the windows of `packed`. The rest of
 * a sequence is a document of its own, which matters only if attention sees both sides. */
static void pack(harness *apart, harness *packed, int32_t begins[WINDOWS * TOKENS])
{
    static int32_t rests[DOCUMENTS * LONGEST];
    apart->begins = model_is_bidirectional(apart->self->spec.family) ? rests : NULL;
    for (uint64_t i = 0; i < DOCUMENTS * LONGEST; i++) {
        uint64_t length = lengths[i / LONGEST];
        rests[i] = i % LONGEST < length ? 0 : (int32_t)length;
        apart->tokens[i] = (int32_t)rng_below(SEED, 3, i, VOCAB);
        bool counts = i % LONGEST + 1 < length;
        apart->targets[i] = counts ? (int32_t)rng_below(SEED, 4, i, VOCAB) : -1;
    }
    uint64_t row = 0;
    for (uint64_t d = 0; d < DOCUMENTS; d++) {
        uint64_t begin = row;
        for (uint64_t t = 0; t < lengths[d]; t++, row++) {
            packed->tokens[row] = apart->tokens[d * LONGEST + t];
            packed->targets[row] = apart->targets[d * LONGEST + t];
            begins[row] = (int32_t)(begin % TOKENS);
        }
    }
    assert_int_equal(row, WINDOWS * TOKENS);
    packed->begins = begins;
}

static void expect_close(const char *what, const float *a, const float *b, uint64_t count)
{
    double off = 0, norm = 0;
    for (uint64_t i = 0; i < count; i++) {
        off += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    if (!(sqrt(off) <= 1e-5 * sqrt(norm)))
        fail_msg("%s: off by %g of %g", what, sqrt(off), sqrt(norm));
}

static void compare(const kernel_ops *ops, uint64_t max_part_bytes, enum kept kept)
{
    harness apart, packed, joined;
    int32_t begins[WINDOWS * TOKENS];
    start(&apart, ops, LONGEST, DOCUMENTS, 0);
    start(&packed, ops, TOKENS, WINDOWS, max_part_bytes);
    start(&joined, ops, TOKENS, WINDOWS, max_part_bytes);
    pack(&apart, &packed, begins);
    memcpy(joined.tokens, packed.tokens, sizeof begins);
    memcpy(joined.targets, packed.targets, sizeof begins);
    harness_step(&apart, 0.01f, KEPT_NONE);
    harness_step(&packed, 0.01f, kept);
    harness_step(&joined, 0.01f, kept);
    uint64_t row = 0;
    for (uint64_t d = 0; d < DOCUMENTS; row += lengths[d++])
        expect_close("losses of a document", packed.losses + row, apart.losses + d * LONGEST,
                     lengths[d]);
    for (uint32_t u = 0; u < packed.self->unit_count; u++) {
        const model_unit *unit = &packed.self->units[u];
        if (max_part_bytes == 0)
            expect_close(unit->name, packed.grads[u], apart.grads[u], unit->elems);
    }
    assert_memory_not_equal(packed.losses, joined.losses, sizeof begins);
    harness_destroy(&apart);
    harness_destroy(&packed);
    harness_destroy(&joined);
}

static void documents_are_as_if_alone(void **state)
{
    const kernel_ops *backends[] = {&kernels_reference,
#ifdef HAVE_KERNELS_CPU
                                    &kernels_cpu
#endif
    };
    for (size_t b = 0; b < sizeof backends / sizeof backends[0]; b++) {
        for (int kept = 0; kept < KEPT_COUNT; kept++)
            compare(backends[b], 0, (enum kept)kept);
        compare(backends[b], 16384, KEPT_NONE);
    }
}

/* One document that begins with the window is the same as none, to rounding. */
static void one_document_is_the_window(void **state)
{
    harness plain, one;
    const int32_t begins[2 * TOKENS] = {0};
    const model_spec spec = small_spec(TOKENS, 0);
    harness_start(&plain, &kernels_reference, &spec, DTYPE_FP32, 0, SEED, true);
    harness_start(&one, &kernels_reference, &spec, DTYPE_FP32, 0, SEED, true);
    one.begins = begins;
    harness_step(&plain, 0.01f, KEPT_NONE);
    harness_step(&one, 0.01f, KEPT_NONE);
    expect_close("losses", one.losses, plain.losses, (uint64_t)2 * TOKENS);
    for (uint32_t u = 0; u < one.self->unit_count; u++)
        expect_close(one.self->units[u].name, one.grads[u], plain.grads[u],
                     one.self->units[u].elems);
    harness_destroy(&plain);
    harness_destroy(&one);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        instance = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_are_as_if_alone),
        cmocka_unit_test(one_document_is_the_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
