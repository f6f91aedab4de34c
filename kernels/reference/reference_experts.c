/* Mixtures of experts in the reference backend. The choices are found by looking for the largest
 * value K times, the slots by going through all choices for every expert. As kernels/ops.h says,
 * experts_combine adds in fp32; every other sum is taken in double and rounded once. */
#include <math.h>
#include <string.h>

#include "kernels/reference/reference_internal.h"

/* Softmax of logits[n] in p; returns their logsumexp. */
static double softmax(const float *logits, uint64_t n, double *p)
{
    double largest = (double)logits[0], sum = 0.0;
    for (uint64_t e = 1; e < n; e++)
        largest = fmax(largest, (double)logits[e]);
    for (uint64_t e = 0; e < n; e++)
        sum += p[e] = exp((double)logits[e] - largest);
    for (uint64_t e = 0; e < n; e++)
        p[e] /= sum;
    return largest + log(sum);
}

static void router_scores(const router_args *args, uint64_t row, double *scores)
{
    const float *logits = args->logits + row * args->experts;
    if (args->score == ROUTER_SOFTMAX)
        (void)softmax(logits, args->experts, scores);
    for (uint64_t e = 0; args->score == ROUTER_SIGMOID && e < args->experts; e++)
        scores[e] = 1.0 / (1.0 + exp(-(double)logits[e]));
}

/* The index of the largest of the values in [begin, end) that are not taken, the first of equal
 * ones; `end` if all are taken. */
static uint64_t largest_free(const double *values, const bool *is_taken, uint64_t begin,
                             uint64_t end)
{
    uint64_t best = end;
    for (uint64_t e = begin; e < end; e++)
        if (!is_taken[e] && (best == end || values[e] > values[best]))
            best = e;
    return best;
}

/* Marks the experts of all groups but the best ones as taken. */
static void close_groups(const router_args *args, const double *values, bool *is_taken)
{
    double group_values[ROUTER_EXPERTS_MAX];
    bool is_best[ROUTER_EXPERTS_MAX] = {false};
    uint64_t size = args->experts / args->groups;
    for (uint64_t g = 0; g < args->groups; g++) {
        uint64_t begin = g * size, first = largest_free(values, is_taken, begin, begin + size);
        group_values[g] = values[first];
        if (args->group_best == 2) {
            is_taken[first] = true;
            group_values[g] += values[largest_free(values, is_taken, begin, begin + size)];
            is_taken[first] = false;
        }
    }
    for (uint64_t i = 0; i < args->groups_chosen; i++)
        is_best[largest_free(group_values, is_best, 0, args->groups)] = true;
    for (uint64_t e = 0; e < args->experts; e++)
        is_taken[e] = !is_best[e / size];
}

int refi_router_forward(kernel_context *context, void *stream, const router_args *args)
{
    uint64_t experts = args->experts, choices = args->choices;
    for (uint64_t row = 0; row < args->rows; row++) {
        double scores[ROUTER_EXPERTS_MAX], values[ROUTER_EXPERTS_MAX], sum = 1e-20;
        bool is_taken[ROUTER_EXPERTS_MAX] = {false}, is_chosen[ROUTER_EXPERTS_MAX] = {false};
        int32_t *chosen = args->chosen + row * choices;
        router_scores(args, row, scores);
        for (uint64_t e = 0; e < experts; e++)
            values[e] = args->bias     ? scores[e] + (double)args->bias[e]
                        : args->groups ? scores[e]
                                       : (double)args->logits[row * experts + e];
        if (args->groups)
            close_groups(args, values, is_taken);
        for (uint64_t k = 0; k < choices; k++) {
            uint64_t best = largest_free(values, is_taken, 0, experts);
            is_taken[best] = is_chosen[best] = true;
            sum += scores[best];
        }
        for (uint64_t e = 0, k = 0; e < experts; e++)
            if (is_chosen[e]) {
                chosen[k] = (int32_t)e;
                args->weights[row * choices + k++] =
                    (float)((double)args->scale * scores[e] / (args->normalizes ? sum : 1.0));
            }
    }
    return 0;
}

/* The gradients of the scores of the chosen experts, 0 for the others. */
static void scores_backward(const router_args *args, uint64_t row, const double *scores,
                            double *grads)
{
    const int32_t *chosen = args->chosen + row * args->choices;
    const float *weights_grad = args->weights_grad + row * args->choices;
    double sum = 1e-20, inner = 0.0, scale = (double)args->scale;
    memset(grads, 0, args->experts * sizeof *grads);
    for (uint64_t k = 0; k < args->choices; k++) {
        sum += scores[chosen[k]];
        inner += (double)weights_grad[k] * scores[chosen[k]];
    }
    for (uint64_t k = 0; k < args->choices; k++)
        grads[chosen[k]] = args->normalizes ? scale * ((double)weights_grad[k] - inner / sum) / sum
                                            : scale * (double)weights_grad[k];
}

int refi_router_backward(kernel_context *context, void *stream, const router_args *args)
{
    uint64_t experts = args->experts;
    bool is_softmax = args->score == ROUTER_SOFTMAX;
    for (uint64_t row = 0; row < args->rows; row++) {
        double scores[ROUTER_EXPERTS_MAX], p[ROUTER_EXPERTS_MAX], grads[ROUTER_EXPERTS_MAX];
        double p_grads[ROUTER_EXPERTS_MAX] = {0}, inner = 0.0;
        double lse = softmax(args->logits + row * experts, experts, p);
        router_scores(args, row, scores);
        scores_backward(args, row, scores, grads);
        for (uint64_t e = 0; e < experts; e++) {
            p_grads[e] = is_softmax ? grads[e] : 0.0;
            if (args->balance_scale != 0.0f)
                p_grads[e] += (double)args->balance_scale * args->totals[e];
            inner += p[e] * p_grads[e];
        }
        for (uint64_t e = 0; e < experts; e++) {
            double grad = p[e] * (p_grads[e] - inner + (double)args->z_scale * lse);
            if (!is_softmax)
                grad += grads[e] * scores[e] * (1.0 - scores[e]);
            refi_store(args->type, args->logits_grad, row * experts + e, grad);
        }
    }
    return 0;
}

size_t refi_router_sums_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t experts)
{
    return 0;
}

int refi_router_sums(kernel_context *context, void *stream, const router_sums_args *args)
{
    for (uint64_t row = 0; row < args->rows; row++) {
        double p[ROUTER_EXPERTS_MAX];
        double lse = softmax(args->logits + row * args->experts, args->experts, p);
        for (uint64_t k = 0; k < args->choices; k++)
            args->totals[args->chosen[row * args->choices + k]] += 1.0;
        for (uint64_t e = 0; e < args->experts; e++)
            args->totals[args->experts + e] += p[e];
        args->totals[2 * args->experts] += lse * lse;
    }
    return 0;
}

int refi_experts_sort(kernel_context *context, void *stream, const experts_sort_args *args)
{
    uint64_t pairs = args->rows * args->choices, slot = 0;
    uint64_t slots_max =
        experts_slots_max(args->rows, args->experts, args->choices, args->multiple);
    for (uint64_t s = 0; s < slots_max; s++)
        args->order[s] = -1;
    for (uint64_t e = 0; e < args->experts; e++) {
        args->offsets[e] = (int32_t)slot;
        for (uint64_t pair = 0; pair < pairs; pair++)
            if (args->chosen[pair] == (int32_t)e) {
                args->order[slot] = (int32_t)pair;
                args->slots[pair] = (int32_t)slot++;
            }
        slot = (slot + args->multiple - 1) / args->multiple * args->multiple;
    }
    args->offsets[args->experts] = (int32_t)slot;
    return 0;
}

int refi_experts_gather(kernel_context *context, void *stream, const experts_rows_args *args)
{
    uint64_t row_bytes = args->channels * dtype_bytes(args->type);
    for (uint64_t i = 0; i < args->slot_count; i++) {
        int32_t pair = args->order[args->slot_begin + i];
        char *target = (char *)args->slot_rows + i * row_bytes;
        if (pair < 0)
            memset(target, 0, row_bytes);
        else
            memcpy(target, (const char *)args->tokens + (uint64_t)pair / args->choices * row_bytes,
                   row_bytes);
    }
    return 0;
}

int refi_experts_combine(kernel_context *context, void *stream, const experts_rows_args *args)
{
    for (uint64_t pair = 0; pair < args->rows * args->choices; pair++) {
        uint64_t slot = (uint64_t)args->slots[pair], row = pair / args->choices;
        if (slot < args->slot_begin || slot - args->slot_begin >= args->slot_count)
            continue;
        for (uint64_t c = 0; c < args->channels; c++) {
            uint64_t at = (slot - args->slot_begin) * args->channels + c;
            float x = (float)refi_load(args->type, args->slot_rows, at);
            float product = args->weights ? args->weights[pair] * x : x;
            args->sums[row * args->channels + c] += product;
        }
    }
    return 0;
}

int refi_experts_weights_backward(kernel_context *context, void *stream,
                                  const experts_rows_args *args)
{
    for (uint64_t i = 0; i < args->slot_count; i++) {
        uint64_t slot = args->slot_begin + i;
        int32_t pair = args->order ? args->order[slot] : (int32_t)slot;
        double sum = 0.0;
        for (uint64_t c = 0; pair >= 0 && c < args->channels; c++) {
            uint64_t at = i * args->channels + c;
            double grad = refi_load(args->type, args->slot_rows, at);
            if (args->output)
                sum += refi_load(args->type, args->output, at) * grad;
            if (args->bias)
                sum += refi_load(args->type, args->bias, c) * grad;
            refi_store(args->type, args->slot_rows, at, (double)args->weights[pair] * grad);
        }
        if (pair >= 0 && args->output)
            args->weights_grad[pair] = (float)sum;
        if (pair >= 0 && args->bias)
            args->weights_grad[pair] += (float)sum;
    }
    return 0;
}
