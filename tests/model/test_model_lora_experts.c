/* Adapters in mixtures of experts: those of routed and of shared experts and of blocks without
 * experts, against the model whose weights hold the adapters' products; and their dropout. */
#include <math.h>

#include "tests/model/mixture_harness.h"
#include "tests/unit.h"

/* 1 for layers that are not those of routed experts. */
static uint64_t experts_of(const harness *h, const model_tensor *whole)
{
    return strstr(whole->name, ".experts.") ? h->self->spec.expert_count : 1;
}

/* The expert that a row of a matrix of all experts is of. */
static uint64_t expert_of(const harness *h, const model_tensor *whole, uint64_t row)
{
    return row / (whole->whole_rows / experts_of(h, whole));
}

/* "NAME.lora_A.weight" of the tensor NAME or NAME.weight. */
static void name_adapter(const model_tensor *of, const char *matrix, char out[2 * MODEL_NAME_BYTES])
{
    const char *end = strstr(of->name, ".weight");
    int stem = (int)(end ? (size_t)(end - of->name) : strlen(of->name));
    snprintf(out, 2 * MODEL_NAME_BYTES, "%.*s.%s.weight", stem, of->name, matrix);
}

static bool has_adapter(const harness *h, const model_tensor *of)
{
    char name[2 * MODEL_NAME_BYTES];
    name_adapter(of, "lora_A", name);
    for (uint32_t u = 0; u < h->self->unit_count; u++)
        for (uint32_t i = 0; i < h->self->units[u].tensor_count; i++)
            if (strcmp(h->self->units[u].tensors[i].name, name) == 0)
                return true;
    return false;
}

/* Element (row, column) of s B A, from the matrices of the adapter beside the tensor. */
static double product_of(const harness *h, const model_tensor *tensor, uint64_t row,
                         uint64_t column)
{
    uint64_t rank = h->self->spec.lora.rank;
    char a[2 * MODEL_NAME_BYTES], b[2 * MODEL_NAME_BYTES];
    name_adapter(tensor, "lora_A", a);
    name_adapter(tensor, "lora_B", b);
    double sum = 0;
    for (uint64_t r = 0; r < rank; r++)
        sum += (double)*value_at(h, h->masters, b, row * rank + r) *
               (double)*value_at(h, h->masters, a,
                                 (expert_of(h, tensor, row) * rank + r) * tensor->columns + column);
    return h->self->spec.lora.alpha / (double)rank * sum;
}

/* dB = s dW A^T, with dW from the model whose weights are W + s B A. */
static void compare_b(const harness *with, const harness *dense, const model_tensor *tensor,
                      double *squares, double *length)
{
    uint64_t rank = with->self->spec.lora.rank;
    char a[2 * MODEL_NAME_BYTES], b[2 * MODEL_NAME_BYTES];
    name_adapter(tensor, "lora_A", a);
    name_adapter(tensor, "lora_B", b);
    for (uint64_t row = 0; row < tensor->whole_rows; row++)
        for (uint64_t r = 0; r < rank; r++) {
            double sum = 0, found = *value_at(with, with->grads, b, row * rank + r);
            uint64_t first = (expert_of(with, tensor, row) * rank + r) * tensor->columns;
            for (uint64_t c = 0; c < tensor->columns; c++)
                sum += (double)*value_at(dense, dense->grads, tensor->name,
                                         row * tensor->columns + c) *
                       (double)*value_at(with, with->masters, a, first + c);
            sum *= with->self->spec.lora.alpha / (double)rank;
            *squares += (sum - found) * (sum - found);
            *length += sum * sum;
        }
}

/* dA = s B^T dW. */
static void compare_a(const harness *with, const harness *dense, const model_tensor *tensor,
                      double *squares, double *length)
{
    uint64_t rank = with->self->spec.lora.rank, experts = experts_of(with, tensor);
    uint64_t each = tensor->whole_rows / experts;
    char a[2 * MODEL_NAME_BYTES], b[2 * MODEL_NAME_BYTES];
    name_adapter(tensor, "lora_A", a);
    name_adapter(tensor, "lora_B", b);
    for (uint64_t at = 0; at < experts * rank * tensor->columns; at++) {
        uint64_t expert = at / tensor->columns / rank, r = at / tensor->columns % rank;
        double sum = 0, found = *value_at(with, with->grads, a, at);
        for (uint64_t row = expert * each; row < (expert + 1) * each; row++)
            sum += (double)*value_at(with, with->masters, b, row * rank + r) *
                   (double)*value_at(dense, dense->grads, tensor->name,
                                     row * tensor->columns + at % tensor->columns);
        sum *= with->self->spec.lora.alpha / (double)rank;
        *squares += (sum - found) * (sum - found);
        *length += sum * sum;
    }
}

/* The targets that have the word in their names. */
static uint32_t targets_with(const model_spec *spec, const char *word)
{
    uint32_t targets = 0;
    const char *name;
    for (uint32_t i = 0; (name = model_lora_target(spec->family, i)) != NULL; i++)
        if (strstr(name, word) && model_lora_is_there(spec, i))
            targets |= 1u << i;
    return targets;
}

static void draw_adapters(harness *h)
{
    for (uint32_t u = 0; u < h->self->unit_count; u++)
        for (uint32_t i = 0; i < h->self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &h->self->units[u].tensors[i];
            for (uint64_t k = 0; tensor->is_adapter && k < tensor->rows * tensor->columns; k++)
                h->masters[u][tensor->offset_elems + k] = 0.2f * rng_normal(SEED, u * 64 + i, k);
        }
}

/* Adapters of the targets that have the word in their names, and of as many tensors, against the
 * model whose weights are W + s B A. */
static void compare_adapters(const char *instance, const char *word, uint32_t tensors,
                             enum kept kept)
{
    harness with, dense;
    model_spec spec = mixture(instance, EXPERTS), plain = spec;
    double squares = 0, length = 0, apart = 0;
    spec.lora = (model_lora){.rank = 3, .alpha = 4.5, .targets = targets_with(&spec, word)};
    harness_start(&with, &kernels_reference, &spec, DTYPE_FP32, 0, SEED, true);
    harness_start(&dense, &kernels_reference, &plain, DTYPE_FP32, 0, SEED, true);
    draw_adapters(&with);
    for (uint32_t u = 0; u < dense.self->unit_count; u++)
        for (uint32_t i = 0; i < dense.self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &dense.self->units[u].tensors[i];
            bool is_adapted = has_adapter(&with, tensor);
            for (uint64_t k = 0; is_adapted && k < tensor->rows * tensor->columns; k++)
                dense.masters[u][tensor->offset_elems + k] += (float)product_of(
                    &with, tensor, tensor->row_begin + k / tensor->columns, k % tensor->columns);
        }
    harness_copy_params(&with);
    harness_copy_params(&dense);
    harness_step(&with, 0.5f, kept);
    harness_step(&dense, 0.5f, kept);
    for (uint64_t i = 0; i < with.self->micro_batch * with.self->tokens; i++)
        apart = fmax(apart, fabs((double)with.losses[i] - (double)dense.losses[i]));
    for (uint32_t u = 0; u < dense.self->unit_count; u++)
        for (uint32_t i = 0; i < dense.self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &dense.self->units[u].tensors[i];
            if (!has_adapter(&with, tensor) || tensor->row_begin > 0)
                continue;
            tensors--;
            compare_b(&with, &dense, tensor, &squares, &length);
            compare_a(&with, &dense, tensor, &squares, &length);
        }
    assert_int_equal(tensors, 0);
    printf("%s: losses differ by %.1e, gradients by %.1e\n", instance, apart,
           sqrt(squares / length));
    assert_true(apart < 1e-5);
    assert_true(length > 0 && sqrt(squares / length) < 1e-5);
    harness_destroy(&with);
    harness_destroy(&dense);
}

static void adapters(void **state)
{
    compare_adapters("qwen2_moe", "mlp.experts", 4, KEPT_NONE);
    compare_adapters("gpt_oss", "mlp.experts", 4, KEPT_NONE);
}

/* Adapters of shared experts, behind a gate and without one, and of blocks without experts. */
static void shared_adapters(void **state)
{
    compare_adapters("qwen2_moe", "shared_expert", 6, KEPT_NONE);
    compare_adapters("qwen2_moe", "shared_expert.up_proj", 2, KEPT_NONE);
    for (int kept = 0; kept < KEPT_COUNT; kept++) {
        compare_adapters("deepseek-moe", "shared_experts", 3, (enum kept)kept);
        compare_adapters("deepseek-moe", "mlp.", 3 + 3 + 2, (enum kept)kept);
    }
    compare_adapters("glm4_moe", "down_proj", 2 + 2, KEPT_ALL);
}

/* The dropout of a shared expert behind a gate: gradients against finite differences. */
static void shared_adapters_drop(void **state)
{
    harness h;
    model_spec spec = mixture("qwen2_moe", EXPERTS);
    spec.balance_coef = spec.router_z_coef = 0;
    spec.experts_per_token = spec.expert_count; /* so that a step changes no choice */
    spec.lora = (model_lora){
        .rank = 3, .alpha = 4.5, .dropout = 0.3, .targets = targets_with(&spec, "shared_expert")};
    harness_start(&h, &kernels_reference, &spec, DTYPE_FP32, 0, SEED, true);
    draw_adapters(&h);
    harness_copy_params(&h);
    harness_forward(&h, false);
    harness_backward(&h, 1, KEPT_NONE);
    for (uint32_t u = 0; u < h.self->unit_count; u++)
        for (uint32_t i = 0; i < h.self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &h.self->units[u].tensors[i];
            for (uint64_t p = 0; tensor->is_adapter && p < 3; p++) {
                uint64_t elem = tensor->offset_elems +
                                rng_below(SEED, u * 64 + i, p, tensor->rows * tensor->columns);
                double slope = harness_finite_difference(&h, u, elem);
                if (!(fabs(slope - h.grads[u][elem]) <= 5e-3 * fabs(slope) + 1e-3))
                    fail_msg("%s: slope %g, gradient %g", tensor->name, slope,
                             (double)h.grads[u][elem]);
            }
        }
    harness_forward(&h, true);
    float dropped = h.losses[0];
    h.is_evaluated = true;
    harness_forward(&h, true);
    assert_true(h.losses[0] != dropped);
    harness_destroy(&h);
    spec.lora.targets |= targets_with(&spec, "experts.down_proj");
    expect_refused(&spec, "adapters of routed experts have none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters),
        cmocka_unit_test(shared_adapters),
        cmocka_unit_test(shared_adapters_drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
