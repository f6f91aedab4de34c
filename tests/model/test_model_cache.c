/* Logits from keys and values that are kept, against those of the whole text at once: prompts in
 * chunks of any length, then single tokens; every family, whole and in parts, on the reference
 * backend and the CPU's. Argument: a family or a variant (model_harness.h). */
#include <math.h>

#include "tests/model/model_harness.h"
#include "tests/unit.h"

/* KEPT: positions of the cache. The model has more, and angles may depend on their number. */
enum { TOKENS = 23, KEPT = 22, CHUNK = 6, VOCAB = 61, SEED = 5 };

static const char *instance = "gpt2";

static model_spec small_spec(uint64_t max_part_bytes)
{
    model_spec spec = {
        .hidden_size = 64,
        .ffn_size = 96,
        .vocab_size = VOCAB,
        .seq_length = TOKENS,
        .tie_embeddings = strncmp(instance, "gpt2", 4) == 0,
        .init_std = 0.1, /* so that attention is not all alike */
        .max_part_bytes = max_part_bytes,
    };
    harness_complete(instance, &spec);
    return spec;
}

/* One forward pass of every stage of `self` on the harness's params; logits of `row`. */
struct cached_run {
    harness *h;
    model *self;
    void *boundary[2], *saved, *temp, *constants, *cache;
    float logits[VOCAB];
};
typedef struct cached_run cached_run;

static void cached_init(cached_run *run, harness *h, uint64_t tokens, void *cache, void *constants)
{
    const model_window window = {.tokens = tokens, .cache_positions = KEPT};
    uint64_t saved = 0, temp = 0;
    run->h = h;
    assert_ok(model_create_window(&h->self->spec, h->self->type, 1, &window, &run->self));
    assert_ok(model_prepare(run->self, h->ops, h->context));
    assert_int_equal(run->self->unit_count, h->self->unit_count);
    for (uint32_t s = 0; s < run->self->stage_count; s++) {
        saved = size_max(saved, run->self->stages[s].saved_bytes);
        for (uint32_t p = 0; p < run->self->stages[s].pass_count[PHASE_FORWARD]; p++)
            temp = size_max(temp, run->self->stages[s].passes[PHASE_FORWARD][p].temp_bytes);
    }
    for (int i = 0; i < 2; i++)
        run->boundary[i] = harness_alloc(run->self->boundary_bytes);
    run->saved = harness_alloc(saved);
    run->temp = harness_alloc(temp);
    run->cache = cache ? cache : harness_alloc(run->self->cache_bytes);
    run->constants = constants ? constants : harness_alloc(run->self->constants_bytes);
    if (!cache) /* what no call wrote is never read */
        memset(run->cache, 0xff, run->self->cache_bytes);
    assert_ok(model_fill_constants(run->self, NULL, run->constants));
    memset(run->boundary[0], 0xff, run->self->boundary_bytes);
    memset(run->boundary[1], 0xff, run->self->boundary_bytes);
    memset(run->saved, 0xff, saved);
}

static void cached_fini(cached_run *run, bool owns)
{
    mem_free(run->boundary[0]);
    mem_free(run->boundary[1]);
    mem_free(run->saved);
    mem_free(run->temp);
    if (owns)
        mem_free(run->cache);
    if (owns)
        mem_free(run->constants);
    model_destroy(run->self);
}

static void cached_call(cached_run *run, uint64_t position, uint64_t count)
{
    model *self = run->self;
    for (uint32_t s = 0; s < self->stage_count; s++)
        for (uint32_t p = 0; p < self->stages[s].pass_count[PHASE_FORWARD]; p++) {
            const struct pass *pass = &self->stages[s].passes[PHASE_FORWARD][p];
            model_call call = {
                .tokens = run->h->tokens + position,
                .targets = run->h->targets,
                .input = run->boundary[(s + 1) % 2],
                .output = run->boundary[s % 2],
                .saved = run->saved,
                .temp = run->temp,
                .constants = run->constants,
                .cache = run->cache,
                .position = position,
                .count = count,
                .layer = s > 0 ? model_block_of(self, s) : 0,
            };
            for (uint32_t i = 0; i < pass->unit_count; i++)
                call.params[i] = run->h->params[pass->units[i]];
            if (self->stages[s].kind == STAGE_HEAD)
                assert_ok(model_logits_pass(self, p, NULL, &call, count - 1, run->logits));
            else
                assert_ok(model_run(self, PHASE_FORWARD, s, p, NULL, &call, KEPT_NONE));
        }
    model_cap_logits(self, run->logits);
}

/* Logits of every row of the whole text at once. */
static void whole_logits(harness *h, float logits[TOKENS][VOCAB])
{
    harness_forward(h, false);
    for (uint64_t row = 0; row < TOKENS; row++)
        harness_row_logits(h, row, logits[row]);
}

static void check_row(const float *whole, const float *cached, double bound, uint64_t row)
{
    double largest = 0;
    for (int i = 0; i < VOCAB; i++)
        largest = fmax(largest, fabs((double)whole[i]));
    for (int i = 0; i < VOCAB; i++)
        if (!(fabs((double)whole[i] - (double)cached[i]) <= bound * largest))
            fail_msg("position %llu, token %d: %g of the whole text, %g with kept keys (of %g)",
                     (unsigned long long)row, i, (double)whole[i], (double)cached[i], largest);
}

static void compare(const kernel_ops *ops, enum dtype type, uint64_t max_part_bytes)
{
    static float whole[TOKENS][VOCAB];
    harness h;
    cached_run chunk, single;
    model_spec spec = small_spec(max_part_bytes);
    if (type != DTYPE_FP32)
        harness_take_all_experts(&spec);
    harness_create(&h, ops, &spec, type, 1, 0);
    harness_init_weights(&h, SEED);
    harness_copy_params(&h);
    harness_random_tokens(&h, SEED, false);
    whole_logits(&h, whole);
    cached_init(&chunk, &h, CHUNK, NULL, NULL);
    cached_init(&single, &h, 1, chunk.cache, chunk.constants);
    /* Probabilities are rounded to 16 bits on the way of the whole text, and other sums are rounded
     * otherwise. */
    double bound = type == DTYPE_FP32 ? 1e-5 : 4e-2;
    for (uint64_t first = 1; first <= 2 * CHUNK + 1; first++) {
        uint64_t at = 0;
        while (at < first) { /* the prompt, whose last chunk is padded */
            uint64_t count = size_min(first - at, CHUNK);
            cached_call(&chunk, at, count);
            at += count;
            check_row(whole[at - 1], chunk.logits, bound, at - 1);
        }
        for (; at < KEPT; at++) {
            cached_call(&single, at, 1);
            check_row(whole[at], single.logits, bound, at);
        }
    }
    cached_fini(&single, false);
    cached_fini(&chunk, true);
    harness_destroy(&h);
}

static void reference_agrees(void **state)
{
    compare(&kernels_reference, DTYPE_FP32, 0);
    compare(&kernels_reference, DTYPE_FP32, 16384);
    compare(&kernels_reference, DTYPE_BF16, 0);
}

#ifdef HAVE_KERNELS_CPU
static void cpu_agrees(void **state)
{
    compare(&kernels_cpu, DTYPE_FP32, 0);
    compare(&kernels_cpu, DTYPE_FP32, 16384);
    compare(&kernels_cpu, DTYPE_BF16, 0);
    compare(&kernels_cpu, DTYPE_FP16, 8192);
}
#endif

static void windows_beyond_the_model_are_refused(void **state)
{
    model *self;
    const model_spec spec = small_spec(0);
    const model_window long_call = {.tokens = TOKENS + 1};
    const model_window long_cache = {.tokens = 1, .cache_positions = TOKENS + 1};
    assert_int_equal(model_create_window(&spec, DTYPE_FP32, 1, &long_call, &self), ERR_CONFIG);
    assert_error(model_create_window(&spec, DTYPE_FP32, 1, &long_cache, &self), ERR_CONFIG,
                 "23 positions");
}

int main(int argc, char **argv)
{
    if (argc > 1)
        instance = argv[1];
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_agrees),
#ifdef HAVE_KERNELS_CPU
        cmocka_unit_test(cpu_agrees),
#endif
        cmocka_unit_test(windows_beyond_the_model_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
