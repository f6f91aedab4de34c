/* Gradient closing, norms, optimizers and working copies of the reference backend. Adam (Loshchilov
 * and Hutter, "Decoupled weight decay regularization", algorithm 2), Lion (Chen et al. 2023) and
 * Adagrad (Duchi et al. 2011) are the textbook forms in double: the backends are compared with them
 * within a tolerance. kernels/cpu/optimizer has the bit-exact definitions. */
#include <math.h>

#include "base/tile.h"
#include "kernels/reference/reference_internal.h"

int refi_grad_close(kernel_context *context, void *stream, const grad_close_args *args)
{
    (void)context;
    (void)stream;
    for (uint64_t block = 0; block < args->count / SHARD_ELEMS_STEP; block++) {
        double sum = 0.0;
        for (uint64_t i = 0; i < SHARD_ELEMS_STEP; i++) {
            uint64_t at = block * SHARD_ELEMS_STEP + i;
            refi_store(args->grad_type, args->grads, at, (double)args->accumulator[at]);
            double rounded = refi_load(args->grad_type, args->grads, at);
            sum += rounded * rounded;
        }
        args->block_sums[block] = sum;
    }
    return 0;
}

/* The sum in a binary tree: the left subtree holds the largest power of two below `count`
 * leaves. */
static double tree_sum(const double *sums, uint64_t count)
{
    if (count <= 1)
        return count ? sums[0] : 0.0;
    uint64_t left = 1;
    while (2 * left < count)
        left *= 2;
    return tree_sum(sums, left) + tree_sum(sums + left, count - left);
}

int refi_norm_reduce(kernel_context *context, void *stream, const double *sums, uint64_t count,
                     double *total)
{
    (void)context;
    (void)stream;
    *total = tree_sum(sums, count);
    return 0;
}

int refi_adam(kernel_context *context, void *stream, const adam_args *args)
{
    const adam_scalars *scalars = args->scalars;
    double lr = (double)scalars->learning_rate, decay = (double)scalars->weight_decay;
    double beta1 = (double)scalars->beta1, beta2 = (double)scalars->beta2;
    for (uint64_t i = 0; i < args->count; i++) {
        double w = (double)args->master[i];
        double g = refi_load(args->grad_type, args->grads, i) * (double)scalars->grad_scale;
        if (!scalars->decoupled)
            g += decay * w;
        double m = beta1 * (double)args->m[i] + (1.0 - beta1) * g;
        double v = beta2 * (double)args->v[i] + (1.0 - beta2) * g * g;
        double m_hat = m / (double)scalars->bias_correction1;
        double v_hat_root = sqrt(v) / (double)scalars->bias_correction2_sqrt;
        double step = m_hat / (v_hat_root + (double)scalars->epsilon);
        if (scalars->decoupled)
            step += decay * w;
        args->m[i] = (float)m;
        args->v[i] = (float)v;
        args->master[i] = (float)(w - lr * step);
    }
    return refi_working_copy(context, stream, args->master, args->params, args->param_type,
                             args->count);
}

int refi_lion(kernel_context *context, void *stream, const lion_args *args)
{
    const lion_scalars *scalars = args->scalars;
    double lr = (double)scalars->learning_rate, decay = (double)scalars->weight_decay;
    double beta1 = (double)scalars->beta1, beta2 = (double)scalars->beta2;
    for (uint64_t i = 0; i < args->count; i++) {
        double w = (double)args->master[i], m = (double)args->m[i];
        double g = refi_load(args->grad_type, args->grads, i) * (double)scalars->grad_scale;
        double c = beta1 * m + (1.0 - beta1) * g;
        double sign = c > 0 ? 1.0 : c < 0 ? -1.0 : c; /* sign(0) is 0; NaN stays NaN */
        args->m[i] = (float)(beta2 * m + (1.0 - beta2) * g);
        args->master[i] = (float)(w * (1.0 - lr * decay) - lr * sign);
    }
    return refi_working_copy(context, stream, args->master, args->params, args->param_type,
                             args->count);
}

int refi_adagrad(kernel_context *context, void *stream, const adagrad_args *args)
{
    const adagrad_scalars *scalars = args->scalars;
    for (uint64_t i = 0; i < args->count; i++) {
        double w = (double)args->master[i];
        double g = refi_load(args->grad_type, args->grads, i) * (double)scalars->grad_scale +
                   (double)scalars->weight_decay * w;
        double v = (double)args->v[i] + g * g;
        args->v[i] = (float)v;
        args->master[i] =
            (float)(w - (double)scalars->learning_rate * g / (sqrt(v) + (double)scalars->epsilon));
    }
    return refi_working_copy(context, stream, args->master, args->params, args->param_type,
                             args->count);
}

int refi_working_copy(kernel_context *context, void *stream, const float *master, void *params,
                      enum dtype param_type, uint64_t count)
{
    (void)context;
    (void)stream;
    for (uint64_t i = 0; i < count; i++)
        if (param_type == DTYPE_BF16)
            ((uint16_t *)params)[i] = bf16_working_copy(master[i]);
        else
            refi_store(param_type, params, i, (double)master[i]);
    return 0;
}
