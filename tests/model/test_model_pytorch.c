/* Fifty optimizer steps of tiny models against the loss curves that plain PyTorch modules gave
 * (reference/README.md), in a small training loop over model_* and the ops table: clipping, AdamW,
 * gradient accumulation, warm-up and cosine. Argument: the fixture's name. */
#include <jansson.h>
#include <math.h>

#include "base/tile.h"
#include "tests/model/model_harness.h"
#include "tests/unit.h"

#define STREAM_CORPUS 0x636f7270757300u

static const char *fixture_name = "gpt2-tied";

struct trainer {
    harness h;
    json_t *fixture;
    float **m, **v; /* [unit_count] moments */
    double *block_sums;
    uint64_t block_count; /* of all units */
    int32_t *corpus;
    uint64_t next_window, micro_batch, accumulation;
};
typedef struct trainer trainer;

/* ---- the fixture ---- */

static json_t *member(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    if (value == NULL)
        fail_msg("the fixture has no key %s", key);
    return value;
}

static double number(const json_t *object, const char *key)
{
    return json_number_value(member(object, key));
}

static uint64_t integer(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(member(object, key));
}

static double item(const json_t *object, const char *key, uint64_t idx)
{
    return json_number_value(json_array_get(member(object, key), idx));
}

static json_t *load_fixture(void)
{
    static const char path[] = FIXTURE_DIR "/curves.json";
    json_error_t error;
    json_t *curves = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (curves == NULL)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    json_t *fixture = json_incref(member(curves, fixture_name));
    json_decref(curves);
    assert_int_equal(integer(fixture, "format"), 1);
    return fixture;
}

static model_spec spec_of(const json_t *fixture)
{
    const json_t *source = member(fixture, "model");
    const char *family = json_string_value(member(source, "family"));
    model_spec spec = {
        .family = strcmp(family, "llama") == 0 ? MODEL_LLAMA : MODEL_GPT2,
        .num_layers = integer(source, "num_layers"),
        .hidden_size = integer(source, "hidden_size"),
        .num_heads = integer(source, "num_heads"),
        .num_kv_heads = integer(source, "num_kv_heads"),
        .ffn_size = integer(source, "ffn_size"),
        .vocab_size = integer(source, "vocab_size"),
        .seq_length = integer(source, "seq_length"),
        .tie_embeddings = json_is_true(member(source, "tie_embeddings")),
        .rope_theta = number(source, "rope_theta"),
        .norm_epsilon = number(source, "norm_epsilon"),
        .init_std = number(source, "init_std"),
    };
    return spec;
}

static int32_t *make_corpus(const json_t *fixture)
{
    const json_t *source = member(fixture, "corpus");
    uint64_t count = integer(source, "tokens"), alphabet = integer(source, "alphabet");
    uint64_t seed = integer(fixture, "seed");
    int32_t *tokens = harness_alloc(count * sizeof *tokens);
    for (uint64_t i = 0; i + 1 < count; i++) {
        uint64_t noise = rng_below(seed, STREAM_CORPUS, i, 3);
        tokens[i + 1] = (int32_t)((5 * (uint64_t)tokens[i] + 17 + noise) % alphabet);
    }
    return tokens;
}

/* ---- the loop ---- */

static void trainer_create(trainer *t, const kernel_ops *ops, enum dtype type)
{
    memset(t, 0, sizeof *t);
    t->fixture = load_fixture();
    t->micro_batch = integer(t->fixture, "micro_batch");
    t->accumulation = integer(t->fixture, "accumulation");
    model_spec spec = spec_of(t->fixture);
    harness_create(&t->h, ops, &spec, type, t->micro_batch, 0);
    harness_init_weights(&t->h, integer(t->fixture, "seed"));
    harness_copy_params(&t->h);
    t->corpus = make_corpus(t->fixture);
    const model *self = t->h.self;
    t->m = harness_alloc(self->unit_count * sizeof(float *));
    t->v = harness_alloc(self->unit_count * sizeof(float *));
    for (uint32_t u = 0; u < self->unit_count; u++) {
        t->m[u] = harness_alloc(self->units[u].elems * sizeof(float));
        t->v[u] = harness_alloc(self->units[u].elems * sizeof(float));
        t->block_count += self->units[u].elems / SHARD_ELEMS_STEP;
    }
    t->block_sums = harness_alloc(t->block_count * sizeof(double));
}

static void trainer_destroy(trainer *t)
{
    for (uint32_t u = 0; u < t->h.self->unit_count; u++) {
        mem_free(t->m[u]);
        mem_free(t->v[u]);
    }
    mem_free(t->m);
    mem_free(t->v);
    mem_free(t->block_sums);
    mem_free(t->corpus);
    json_decref(t->fixture);
    harness_destroy(&t->h);
}

static void next_batch(trainer *t)
{
    uint64_t tokens = t->h.self->tokens;
    for (uint64_t b = 0; b < t->micro_batch; b++) {
        uint64_t begin = (uint64_t)item(t->fixture, "window_begins", t->next_window++);
        memcpy(t->h.tokens + b * tokens, t->corpus + begin, tokens * sizeof(int32_t));
        memcpy(t->h.targets + b * tokens, t->corpus + begin + 1, tokens * sizeof(int32_t));
    }
}

/* Forward and backward of all micro-batches: the mean loss; gradients lie in h.grads. */
static double gradients(trainer *t)
{
    uint64_t step_tokens = t->accumulation * t->micro_batch * t->h.self->tokens;
    double sum = 0;
    harness_forget_grads(&t->h);
    for (uint64_t i = 0; i < t->accumulation; i++) {
        next_batch(t);
        harness_forward(&t->h, false);
        harness_backward(&t->h, (float)(1.0 / (double)step_tokens), i % 2 == 1);
        sum += harness_loss_sum(&t->h);
    }
    return sum / (double)step_tokens;
}

/* Closes the gradients in place: their norm. */
static double close_gradients(trainer *t)
{
    double *sums = t->block_sums, total;
    for (uint32_t u = 0; u < t->h.self->unit_count; u++) {
        uint64_t elems = t->h.self->units[u].elems;
        grad_close_args args = {
            .count = elems,
            .accumulator = t->h.grads[u],
            .grads = t->h.grads[u],
            .grad_type = DTYPE_FP32,
            .block_sums = sums,
        };
        assert_int_equal(t->h.ops->grad_close(t->h.context, NULL, &args), 0);
        sums += elems / SHARD_ELEMS_STEP;
    }
    assert_int_equal(
        t->h.ops->norm_reduce(t->h.context, NULL, t->block_sums, t->block_count, &total), 0);
    return sqrt(total);
}

static void update(trainer *t, uint64_t step, double norm)
{
    const json_t *training = member(t->fixture, "training");
    double beta1 = item(training, "betas", 0), beta2 = item(training, "betas", 1);
    double clip = number(training, "gradient_clipping") / (norm + 1e-6);
    update_scalars scalars = {
        .learning_rate = (float)item(t->fixture, "learning_rates", step - 1),
        .beta1 = (float)beta1,
        .beta2 = (float)beta2,
        .epsilon = (float)number(training, "epsilon"),
        .weight_decay = (float)number(training, "weight_decay"),
        .decoupled = true,
        .bias_correction1 = (float)(1 - pow(beta1, (double)step)),
        .bias_correction2_sqrt = (float)sqrt(1 - pow(beta2, (double)step)),
        .grad_scale = (float)(clip < 1 ? clip : 1),
    };
    for (uint32_t u = 0; u < t->h.self->unit_count; u++) {
        update_args args = {
            .count = t->h.self->units[u].elems,
            .master = t->h.masters[u],
            .m = t->m[u],
            .v = t->v[u],
            .grads = t->h.grads[u],
            .grad_type = DTYPE_FP32,
            .params = t->h.params[u],
            .param_type = t->h.self->type,
            .scalars = &scalars,
        };
        assert_int_equal(t->h.ops->update(t->h.context, NULL, &args), 0);
    }
}

/* ---- comparisons ---- */

/* The L2 norm of each tensor against a table of the fixture, by name: the largest relative
 * difference. `left_out` NULL, or a part of the names that do not count. */
static double compare_tensors(trainer *t, float *const *vectors, const char *key,
                              const char *left_out)
{
    const json_t *expected = member(t->fixture, key);
    uint64_t seen = 0;
    double worst = 0;
    for (uint32_t u = 0; u < t->h.self->unit_count; u++) {
        const model_unit *unit = &t->h.self->units[u];
        for (uint32_t i = 0; i < unit->tensor_count; i++, seen++) {
            const model_tensor *tensor = &unit->tensors[i];
            const float *data = vectors[u] + tensor->offset_elems;
            double sum = 0, norm = number(expected, tensor->name);
            for (uint64_t k = 0; k < tensor->rows * tensor->columns; k++)
                sum += (double)data[k] * data[k];
            if (left_out != NULL && strstr(tensor->name, left_out) != NULL)
                continue;
            worst = fmax(worst, fabs(sqrt(sum) - norm) / norm);
        }
    }
    assert_int_equal(seen, json_object_size(expected));
    return worst;
}

static void follow(const kernel_ops *ops, enum dtype type, double tolerance)
{
    trainer t;
    trainer_create(&t, ops, type);
    uint64_t steps = integer(t.fixture, "steps");
    double worst_loss = 0, worst_norm = 0, worst_tensor = 0, loss = 0;
    for (uint64_t step = 1; step <= steps; step++) {
        loss = gradients(&t);
        double norm = close_gradients(&t);
        if (step == 1)
            worst_tensor = compare_tensors(&t, t.h.grads, "first_grad_norms", NULL);
        update(&t, step, norm);
        double expected = item(t.fixture, "losses", step - 1);
        double expected_norm = item(t.fixture, "grad_norms", step - 1);
        worst_loss = fmax(worst_loss, fabs(loss / expected - 1));
        worst_norm = fmax(worst_norm, fabs(norm / expected_norm - 1));
        if (!(fabs(loss / expected - 1) < tolerance))
            fail_msg("step %llu: loss %.7f, PyTorch's %.7f", (unsigned long long)step, loss,
                     expected);
    }
    /* A bias of the keys changes no score against the others: its gradient is zero but for
     * rounding, and in bf16 Adam takes full steps along that noise. */
    const char *left_out = type == DTYPE_FP32 ? NULL : "c_attn.bias";
    double worst_weight = compare_tensors(&t, t.h.masters, "final_weight_norms", left_out);
    printf(
        "%s, %s, %s: last loss %.6f; largest relative differences: loss %.2g, gradient norm %.2g, "
        "first gradients %.2g, final weights %.2g\n",
        fixture_name, ops->name, dtype_name(type), loss, worst_loss, worst_norm, worst_tensor,
        worst_weight);
    assert_true(worst_norm < 10 * tolerance);
    assert_true(worst_tensor < 10 * tolerance);
    assert_true(worst_weight < 10 * tolerance);
    trainer_destroy(&t);
}

/* fp32 differs from PyTorch by the order of sums alone; fifty steps of training amplify that. */
static void reference_follows_pytorch(void **state)
{
    follow(&kernels_reference, DTYPE_FP32, 1e-5);
}

static void cpu_follows_pytorch(void **state)
{
#ifdef HAVE_KERNELS_CPU
    follow(&kernels_cpu, DTYPE_FP32, 1e-5);
    follow(&kernels_cpu, DTYPE_BF16, 5e-3); /* 8 bits of mantissa */
#else
    skip();
#endif
}

int main(int argc, char **argv)
{
    if (argc > 1)
        fixture_name = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_follows_pytorch),
        cmocka_unit_test(cpu_follows_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
