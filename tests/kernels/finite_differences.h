/* Finite differences of an op of the reference backend.
 *
 * The loss is sum(weight[i] * output[i]) in double. Derivatives are taken by the five-point stencil
 * with h = 1/32: its error is h^4 f'''''/30 (below 1e-6 for these functions) and the rounding of
 * outputs to fp32 costs about 2^-24 / h per output, 2e-6 each; the tolerance 2e-4 (1 + |gradient|)
 * leaves room for sums of some hundred outputs. */
#ifndef SLUICE_TESTS_KERNELS_FINITE_DIFFERENCES_H
#define SLUICE_TESTS_KERNELS_FINITE_DIFFERENCES_H

#include "base/mem.h"
#include "base/rng.h"
#include "kernels/ops.h"
#include "tests/unit.h"

static const kernel_ops *const ops = &kernels_reference;
enum { SEED = 20260 };

static inline float *draw(uint64_t count, uint64_t stream)
{
    float *x = mem_alloc(count, sizeof *x, "test");
    assert_non_null(x);
    rng_normals(SEED, stream, 0, count, x);
    return x;
}

static inline float *zeros(uint64_t count)
{
    float *x = mem_alloc(count, sizeof *x, "test");
    assert_non_null(x);
    return x;
}

/* A forward op as a function of whatever `self` points to: writes `output`. */
struct probe {
    int (*forward)(struct probe *self);
    const void *args;
    void *object, *scratch;
    const float *output, *weight;
    uint64_t output_count;
};

static inline double loss(struct probe *probe)
{
    double sum = 0.0;
    assert_int_equal(probe->forward(probe), 0);
    for (uint64_t i = 0; i < probe->output_count; i++)
        sum += (double)probe->weight[i] * (double)probe->output[i];
    return sum;
}

/* Compares grad[count] with the derivative of the loss by each x[i]. */
static inline void check_gradient(const char *name, struct probe *probe, float *x,
                                  const float *grad, uint64_t count)
{
    static const double factor[4] = {1.0, -8.0, 8.0, -1.0};
    static const float offset[4] = {-2.0f, -1.0f, 1.0f, 2.0f};
    const float h = 1.0f / 32.0f;
    for (uint64_t i = 0; i < count; i++) {
        float kept = x[i];
        double slope = 0.0, steps = 0.0;
        for (int k = 0; k < 4; k++) {
            x[i] = kept + offset[k] * h; /* rounded: `steps` is the distance really gone */
            steps += factor[k] * (double)(x[i] - kept);
            slope += factor[k] * loss(probe);
        }
        x[i] = kept;
        slope /= steps; /* exactly 12 h when no step was rounded */
        double error = fabs(slope - (double)grad[i]);
        if (!(error <= 2e-4 * (1.0 + fabs(slope))))
            fail_msg("%s: element %llu: gradient %.8g, finite difference %.8g", name,
                     (unsigned long long)i, (double)grad[i], slope);
    }
    assert_int_equal(probe->forward(probe), 0); /* outputs as they were */
}

#endif
