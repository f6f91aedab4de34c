/* The losses of the reference backend. */
#include <math.h>

#include "kernels/reference/reference_internal.h"

/* z of a logit, and dz/dlogit in *slope. */
static double capped_logit(float logit, float soft_cap, double *slope)
{
    double cap = (double)soft_cap;
    *slope = 1.0;
    if (soft_cap == 0.0f)
        return (double)logit;
    double t = tanh((double)logit / cap);
    *slope = 1.0 - t * t;
    return cap * t;
}

int refi_cross_entropy(kernel_context *context, void *stream, const cross_entropy_args *args)
{
    float cap = args->soft_cap;
    for (uint64_t row = 0; row < args->rows; row++) {
        uint64_t at = row * cross_entropy_stride(args);
        const float *logits = args->logits + at;
        int32_t target = args->targets[row];
        double max = -INFINITY, sum = 0.0, slope;
        TRY(refi_index_check(target, -1, args->vocab));
        for (uint64_t i = 0; i < args->vocab; i++)
            max = fmax(max, capped_logit(logits[i], cap, &slope));
        for (uint64_t i = 0; i < args->vocab; i++)
            sum += exp(capped_logit(logits[i], cap, &slope) - max);
        args->losses[row] = 0.0f;
        if (target >= 0)
            args->losses[row] = (float)(log(sum) + max - capped_logit(logits[target], cap, &slope));
        for (uint64_t i = 0; args->logits_grad && i < args->vocab; i++) {
            double softmax = exp(capped_logit(logits[i], cap, &slope) - max) / sum;
            double grad = (softmax - ((uint64_t)target == i ? 1.0 : 0.0)) * slope;
            refi_store(args->type, args->logits_grad, at + i,
                       target < 0 ? 0.0 : grad * (double)args->grad_scale);
        }
    }
    return 0;
}

int refi_softmax_part(kernel_context *context, void *stream, const softmax_part_args *args)
{
    for (uint64_t row = 0; row < args->rows; row++) {
        const float *logits = args->logits + row * softmax_part_stride(args);
        int32_t target = args->targets[row];
        double before = args->is_first ? -INFINITY : (double)args->largest[row], max = before;
        double sum = args->is_first ? 0.0 : (double)args->sum[row], slope;
        TRY(refi_index_check(target, -1, INT32_MAX));
        if (args->is_first)
            args->target_logit[row] = 0.0f;
        for (uint64_t i = 0; i < args->columns; i++) {
            double z = capped_logit(logits[i], args->soft_cap, &slope);
            max = fmax(max, z);
            if (target >= 0 && (uint64_t)target == args->column_begin + i)
                args->target_logit[row] = (float)z;
        }
        double shift = max == -INFINITY ? 0.0 : max;
        sum *= exp(before - shift);
        for (uint64_t i = 0; i < args->columns; i++)
            sum += exp(capped_logit(logits[i], args->soft_cap, &slope) - shift);
        args->largest[row] = (float)max;
        args->sum[row] = (float)sum;
    }
    return 0;
}

int refi_softmax_losses(kernel_context *context, void *stream, const softmax_part_args *args)
{
    for (uint64_t row = 0; row < args->rows; row++) {
        double distance = (double)args->largest[row] - (double)args->target_logit[row];
        args->losses[row] =
            args->targets[row] < 0 ? 0.0f : (float)(log((double)args->sum[row]) + distance);
    }
    return 0;
}

int refi_cross_entropy_part(kernel_context *context, void *stream, const softmax_part_args *args)
{
    for (uint64_t row = 0; row < args->rows; row++) {
        int32_t target = args->targets[row];
        for (uint64_t i = 0; i < args->columns; i++) {
            uint64_t at = row * softmax_part_stride(args) + i;
            double slope;
            double z = capped_logit(args->logits[at], args->soft_cap, &slope);
            double softmax = exp(z - (double)args->largest[row]) / (double)args->sum[row];
            bool is_target = target >= 0 && (uint64_t)target == args->column_begin + i;
            double grad = (softmax - (is_target ? 1.0 : 0.0)) * slope * (double)args->grad_scale;
            refi_store(args->type, args->logits_grad, at, target < 0 ? 0.0 : grad);
        }
    }
    return 0;
}
