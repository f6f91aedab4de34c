/* Adapters. Losses and all gradients are compared
 *
 * - with the dense model whose weights are W + s B A, where s = alpha / rank and whose gradient dW
 *   gives dB = s dW A^T and dA = s B^T dW;
 * - with finite differences.
 *
 * Kept activations give the bits of recomputation. A fresh adapter has its stated values. Wrong
 * settings are refused. Argument: the family or variant. */
#include <math.h>

#include "base/error.h"
#include "tests/model/model_harness.h"
#include "tests/unit.h"

enum { SEED = 23, RANK = 3, PROBES = 2 };

static const double alpha = 4.5, drops[] = {0, 0.3};
static enum model_family family;
static const char *instance;

static model_spec small(bool tied)
{
    bool is_llama = family == MODEL_LLAMA;
    model_spec spec = {
        .hidden_size = 48,
        .ffn_size = is_llama ? 88 : 160,
        .vocab_size = 101,
        .seq_length = 12,
        .tie_embeddings = tied,
        .init_std = 0.15,
        .lora = {.rank = RANK, .alpha = alpha, .targets = harness_targets(family)},
    };
    harness_complete(instance, &spec);
    return spec;
}

static const model_learn all_learns = {.is_given = true,
                                       .embed = true,
                                       .head = true,
                                       .norms = true,
                                       .range_count = 1,
                                       .blocks = {{0, 1}}};

static float *tensor_of(const model *self, float **vectors, const char *name,
                        const model_tensor **found)
{
    for (uint32_t u = 0; u < self->unit_count; u++)
        for (uint32_t i = 0; i < self->units[u].tensor_count; i++)
            if (strcmp(self->units[u].tensors[i].name, name) == 0) {
                *found = &self->units[u].tensors[i];
                return vectors[u] + (*found)->offset_elems;
            }
    return NULL;
}

/* "x.q_proj.lora_A.weight" of "x.q_proj.weight". */
static float *matrix_of(const model *self, float **vectors, const char *weight, const char *matrix)
{
    char name[2 * MODEL_NAME_BYTES];
    const model_tensor *found;
    snprintf(name, sizeof name, "%.*s.%s.weight", (int)(strlen(weight) - strlen(".weight")), weight,
             matrix);
    return tensor_of(self, vectors, name, &found);
}

/* Adapters that do something. */
static void roughen(harness *h)
{
    for (uint32_t u = 0; u < h->self->unit_count; u++)
        for (uint32_t i = 0; i < h->self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &h->self->units[u].tensors[i];
            for (uint64_t k = 0; tensor->is_adapter && k < tensor->rows * tensor->columns; k++)
                h->masters[u][tensor->offset_elems + k] +=
                    0.1f * rng_normal(SEED + 1, u * 64 + i, k);
        }
}

static void start(harness *h, const kernel_ops *ops, const model_spec *spec, enum dtype type)
{
    harness_create(h, ops, spec, type, 2, 0);
    harness_init_weights(h, SEED);
    roughen(h);
    harness_copy_params(h);
    harness_random_tokens(h, SEED, true);
    harness_forget_grads(h);
}

/* ---- against the dense model ---- */

/* The weights of the model without adapters: W + s B A in double. */
static void merge(const harness *from, harness *dense)
{
    for (uint32_t u = 0; u < dense->self->unit_count; u++)
        for (uint32_t i = 0; i < dense->self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &dense->self->units[u].tensors[i], *same;
            float *target = dense->masters[u] + tensor->offset_elems;
            const float *base = tensor_of(from->self, from->masters, tensor->name, &same);
            const float *a = matrix_of(from->self, from->masters, tensor->name, "lora_A");
            const float *b = matrix_of(from->self, from->masters, tensor->name, "lora_B");
            assert_non_null(base);
            for (uint64_t row = 0; row < tensor->rows; row++)
                for (uint64_t column = 0; column < tensor->columns; column++) {
                    double value = base[row * tensor->columns + column];
                    for (int r = 0; a && r < RANK; r++)
                        value += alpha / RANK * b[row * RANK + (uint64_t)r] *
                                 a[(uint64_t)r * tensor->columns + column];
                    target[row * tensor->columns + column] = (float)value;
                }
        }
}

struct distance {
    double squares, length;
};

static void compare(struct distance *of, double expected, double found)
{
    of->squares += (expected - found) * (expected - found);
    of->length += expected * expected;
}

/* dA and dB from dW. */
static void compare_adapter(const harness *with, const model_tensor *tensor, const float *dw,
                            struct distance *of)
{
    const float *a = matrix_of(with->self, with->masters, tensor->name, "lora_A");
    const float *b = matrix_of(with->self, with->masters, tensor->name, "lora_B");
    const float *da = matrix_of(with->self, with->grads, tensor->name, "lora_A");
    const float *db = matrix_of(with->self, with->grads, tensor->name, "lora_B");
    uint64_t columns = tensor->columns;
    for (uint64_t r = 0; a && r < RANK; r++) {
        for (uint64_t column = 0; column < columns; column++) {
            double sum = 0;
            for (uint64_t row = 0; row < tensor->rows; row++)
                sum += (double)b[row * RANK + r] * dw[row * columns + column];
            compare(of, alpha / RANK * sum, da[r * columns + column]);
        }
        for (uint64_t row = 0; row < tensor->rows; row++) {
            double sum = 0;
            for (uint64_t column = 0; column < columns; column++)
                sum += (double)a[r * columns + column] * dw[row * columns + column];
            compare(of, alpha / RANK * sum, db[row * RANK + r]);
        }
    }
}

/* `tolerance`: of the gradients of all adapters, and of all of the base, as one vector each. */
static void check_dense(const kernel_ops *ops, bool tied, enum dtype type, const model_learn *learn,
                        double tolerance)
{
    harness with, dense;
    struct distance adapters = {0}, base = {0};
    model_spec spec = small(tied);
    spec.learn = *learn;
    start(&with, ops, &spec, type);
    spec.learn = (model_learn){0};
    spec.lora = (model_lora){0};
    start(&dense, ops, &spec, type);
    merge(&with, &dense);
    harness_copy_params(&dense);
    harness_step(&with, 0.05f, KEPT_NONE);
    harness_step(&dense, 0.05f, KEPT_NONE);
    assert_true(fabs(harness_loss_sum(&with) - harness_loss_sum(&dense)) <=
                tolerance * harness_loss_sum(&dense));
    for (uint32_t u = 0; u < dense.self->unit_count; u++)
        for (uint32_t i = 0; i < dense.self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &dense.self->units[u].tensors[i], *same;
            const float *dw = dense.grads[u] + tensor->offset_elems;
            const float *found = tensor_of(with.self, with.grads, tensor->name, &same);
            compare_adapter(&with, tensor, dw, &adapters);
            for (uint64_t k = 0; learn->is_given && k < tensor->rows * tensor->columns; k++)
                compare(&base, dw[k], found[k]);
        }
    assert_true(adapters.length > 0);
    if (sqrt(adapters.squares) > tolerance * sqrt(adapters.length) ||
        sqrt(base.squares) > tolerance * sqrt(base.length))
        fail_msg("adapters differ by %g, the base by %g, tolerance %g",
                 sqrt(adapters.squares / adapters.length), sqrt(base.squares / base.length),
                 tolerance);
    harness_destroy(&with);
    harness_destroy(&dense);
}

static void test_dense(void **state)
{
    const model_learn nothing = {0};
    check_dense(&kernels_reference, true, DTYPE_FP32, &nothing, 2e-6);
    check_dense(&kernels_reference, false, DTYPE_FP32, &all_learns, 2e-6);
#ifdef HAVE_KERNELS_CPU
    check_dense(&kernels_cpu, false, DTYPE_FP32, &nothing, 5e-6);
    check_dense(&kernels_cpu, true, DTYPE_FP32, &all_learns, 5e-6);
    check_dense(&kernels_cpu, true, DTYPE_BF16, &all_learns, 0.05);
#endif
}

/* ---- against finite differences ---- */

static void check_slopes(double dropout)
{
    harness h;
    model_spec spec = small(true);
    spec.lora.dropout = dropout;
    start(&h, &kernels_reference, &spec, DTYPE_FP32);
    harness_forward(&h, false);
    harness_backward(&h, 1, KEPT_NONE);
    for (uint32_t u = 0; u < h.self->unit_count; u++)
        for (uint32_t i = 0; i < h.self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &h.self->units[u].tensors[i];
            for (uint64_t p = 0; tensor->is_adapter && p < PROBES; p++) {
                uint64_t elem = tensor->offset_elems +
                                rng_below(SEED, u * 64 + i, p, tensor->rows * tensor->columns);
                double slope = harness_finite_difference(&h, u, elem);
                assert_true(fabs(slope - h.grads[u][elem]) <= 2e-3 * fabs(slope) + 2e-4);
            }
        }
    harness_destroy(&h);
}

static void test_slopes(void **state)
{
    for (int i = 0; i < 2; i++)
        check_slopes(drops[i]);
}

/* ---- other ---- */

static void check_kept(double dropout)
{
    harness by[KEPT_COUNT];
    model_spec spec = small(true);
    spec.lora.dropout = dropout;
    for (int kept = 0; kept < KEPT_COUNT; kept++) {
        start(&by[kept], &kernels_reference, &spec, DTYPE_BF16);
        harness_step(&by[kept], 0.05f, (enum kept)kept);
    }
    const model *self = by[KEPT_NONE].self;
    for (int kept = 1; kept < KEPT_COUNT; kept++)
        for (uint32_t u = 0; u < self->unit_count; u++)
            assert_memory_equal(by[kept].grads[u], by[KEPT_NONE].grads[u],
                                self->units[u].elems * 4);
    for (int kept = 0; kept < KEPT_COUNT; kept++)
        harness_destroy(&by[kept]);
}

static void test_kept(void **state)
{
    for (int i = 0; i < 2; i++)
        check_kept(drops[i]);
}

/* B is zero, A within +-1 / sqrt(in) and spread over it; the loss is the base's. */
static void test_fresh(void **state)
{
    harness with, base;
    model_spec spec = small(true);
    harness_create(&with, &kernels_reference, &spec, DTYPE_FP32, 2, 0);
    spec.lora = (model_lora){0};
    harness_create(&base, &kernels_reference, &spec, DTYPE_FP32, 2, 0);
    harness *both[] = {&with, &base};
    for (int i = 0; i < 2; i++) {
        harness_init_weights(both[i], SEED);
        harness_copy_params(both[i]);
        harness_random_tokens(both[i], SEED, true);
        harness_forward(both[i], true);
    }
    assert_memory_equal(with.losses, base.losses, 2 * 12 * 4);
    uint32_t seen = 0;
    for (uint32_t u = 0; u < with.self->unit_count; u++) {
        const model_unit *unit = &with.self->units[u];
        assert_int_equal(unit->is_frozen, strstr(unit->name, ".lora") == NULL);
        for (uint32_t i = 0; i < unit->tensor_count; i++) {
            const model_tensor *tensor = &unit->tensors[i];
            const float *values = with.masters[u] + tensor->offset_elems;
            bool is_a = strstr(tensor->name, ".lora_A.weight") != NULL;
            double bound = 1 / sqrt((double)tensor->columns), largest = 0;
            if (!tensor->is_adapter)
                continue;
            seen++;
            assert_int_equal(is_a ? tensor->rows : tensor->columns, RANK);
            for (uint64_t k = 0; k < tensor->rows * tensor->columns; k++)
                largest = fmax(largest, fabs((double)values[k]));
            assert_true(is_a ? largest <= bound * (1 + 1e-6) && largest > 0.9 * bound
                             : largest == 0);
        }
    }
    assert_int_equal(seen, 2 * 2 * __builtin_popcount(harness_targets(family)));
    harness_destroy(&with);
    harness_destroy(&base);
}

static void refuse(const model_spec *spec, const char *text)
{
    model *self;
    assert_int_equal(model_create(spec, DTYPE_FP32, 1, &self), ERR_CONFIG);
    if (strstr(err_text(), text) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err_text(), text);
}

static void test_refusals(void **state)
{
    model_spec spec = small(true);
    spec.max_part_bytes = 20000;
    refuse(&spec, "take no adapters");
    spec = small(true);
    spec.lora.targets = 0;
    refuse(&spec, "train.lora.targets");
    spec.lora.targets = harness_targets(family) + 1;
    refuse(&spec, "train.lora.targets");
    spec = small(true);
    spec.lora.rank = 5000;
    refuse(&spec, "train.lora.rank is 5000");
    spec = small(true);
    spec.lora.alpha = 0;
    refuse(&spec, "train.lora.alpha");
    spec = small(true);
    spec.lora.dropout = 1;
    refuse(&spec, "train.lora.dropout is 1");
}

int main(int argc, char **argv)
{
    instance = argc > 1 ? argv[1] : "gpt2";
    family = harness_family(instance);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense), cmocka_unit_test(test_slopes),   cmocka_unit_test(test_kept),
        cmocka_unit_test(test_fresh), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
