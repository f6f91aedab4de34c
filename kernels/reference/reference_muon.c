/* Muon of the reference backend, in double: the textbook form with which backends are compared
 * within a tolerance. See muon_args and orthogonalize_args. */
#include <math.h>

#include "kernels/reference/reference_internal.h"

/* The momentum after this step's gradient, and the gradient. */
static double next_momentum(const muon_args *args, uint64_t i, double *g)
{
    double momentum = (double)args->scalars->momentum;
    *g = refi_load(args->grad_type, args->grads, i) * (double)args->scalars->grad_scale;
    return momentum * (double)args->m[i] + (1 - momentum) * *g;
}

int refi_muon_direction(kernel_context *context, void *stream, const muon_args *args)
{
    double momentum = (double)args->scalars->momentum, g;
    for (uint64_t i = 0; i < args->count; i++) {
        double m = next_momentum(args, i, &g);
        args->direction[i] =
            (float)(args->scalars->nesterov ? momentum * m + (1 - momentum) * g : m);
    }
    return 0;
}

int refi_muon(kernel_context *context, void *stream, const muon_args *args)
{
    const muon_scalars *s = args->scalars;
    double decay = 1 - (double)s->learning_rate * (double)s->weight_decay, g;
    for (uint64_t i = 0; i < args->count; i++) {
        args->m[i] = (float)next_momentum(args, i, &g);
        args->master[i] = (float)((double)args->master[i] * decay -
                                  (double)args->rate * (double)args->direction[i]);
    }
    return 0;
}

/* ---- orthogonalize ---- */

/* X [m, n] with m <= n: the matrix, or its transpose. All in scratch, in double:
 *   | X [m, n] | A [m, m] | b A + c A A [m, m] | its product with X [m, n] | */
size_t refi_orthogonalize_scratch_bytes(const kernel_context *context, uint64_t rows,
                                        uint64_t columns)
{
    uint64_t m = rows < columns ? rows : columns;
    return (size_t)(2 * rows * columns + 2 * m * m) * sizeof(double);
}

/* c [m, n] = a [m, k] b [k, n], or with b stored [n, k]. */
static void multiply(uint64_t m, uint64_t n, uint64_t k, const double *a, const double *b,
                     bool b_is_transposed, double *c)
{
    for (uint64_t i = 0; i < m; i++)
        for (uint64_t j = 0; j < n; j++) {
            double sum = 0;
            for (uint64_t l = 0; l < k; l++)
                sum += a[i * k + l] * (b_is_transposed ? b[j * k + l] : b[l * n + j]);
            c[i * n + j] = sum;
        }
}

int refi_orthogonalize(kernel_context *context, void *stream, const orthogonalize_args *args)
{
    uint64_t count = args->rows * args->columns;
    bool is_tall = args->rows > args->columns;
    uint64_t m = is_tall ? args->columns : args->rows, n = count / m;
    double *x = args->scratch, *gram = x + count, *factor = gram + m * m, *product = factor + m * m;
    double squares = 0;
    for (uint64_t i = 0; i < count; i++)
        squares += (double)args->matrix[i] * (double)args->matrix[i];
    double norm = sqrt(squares);
    norm = norm < ORTHOGONALIZE_EPSILON ? ORTHOGONALIZE_EPSILON : norm;
    for (uint64_t i = 0; i < count; i++)
        x[is_tall ? i % m * n + i / m : i] = (double)args->matrix[i] / norm;
    for (uint32_t step = 0; step < args->steps; step++) {
        multiply(m, m, n, x, x, true, gram);
        multiply(m, m, m, gram, gram, false, factor);
        for (uint64_t i = 0; i < m * m; i++)
            factor[i] = ORTHOGONALIZE_B * gram[i] + ORTHOGONALIZE_C * factor[i];
        multiply(m, n, m, factor, x, false, product);
        for (uint64_t i = 0; i < count; i++)
            x[i] = ORTHOGONALIZE_A * x[i] + product[i];
    }
    for (uint64_t i = 0; i < count; i++)
        args->matrix[i] = (float)x[is_tall ? i % m * n + i / m : i];
    return 0;
}
