/* Small mixtures of experts for the tests of them. */
#ifndef SLUICE_TESTS_MIXTURE_HARNESS_H
#define SLUICE_TESTS_MIXTURE_HARNESS_H

#include "tests/model/model_harness.h"
#include "tests/unit.h"

enum { SEED = 11, EXPERTS = 5 };

static inline model_spec mixture(const char *instance, uint64_t experts_per_unit)
{
    model_spec spec = {
        .hidden_size = 24,
        .ffn_size = 16,
        .vocab_size = 37,
        .seq_length = 70,
        .init_std = 0.3,
    };
    harness_complete(instance, &spec);
    spec.experts_per_unit = experts_per_unit;
    if (spec.expert_count > 0) {
        spec.balance_coef = spec.sigmoid_scores || spec.expert_groups ? 0 : 2;
        spec.router_z_coef = 0.5;
    }
    return spec;
}

/* Element `at` of the whole tensor in these vectors of units, wherever its rows lie. */
static inline float *value_at(const harness *h, float **vectors, const char *name, uint64_t at)
{
    for (uint32_t u = 0; u < h->self->unit_count; u++)
        for (uint32_t i = 0; i < h->self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &h->self->units[u].tensors[i];
            uint64_t begin = tensor->row_begin * tensor->columns;
            if (strcmp(tensor->name, name) == 0 && at >= begin &&
                at - begin < tensor->rows * tensor->columns)
                return vectors[u] + tensor->offset_elems + (at - begin);
        }
    fail_msg("no element %llu of %s", (unsigned long long)at, name);
    return NULL;
}

static inline void expect_refused(const model_spec *spec, const char *word)
{
    model *self;
    assert_int_equal(model_create(spec, DTYPE_BF16, 1, &self), ERR_CONFIG);
    if (strstr(err_text(), word) == NULL)
        fail_msg("'%s' does not mention '%s'", err_text(), word);
}

#endif
