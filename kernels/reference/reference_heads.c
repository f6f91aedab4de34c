/* Attention sinks and the heads of latent attention in the reference backend, in double. */
#include <math.h>

#include "kernels/reference/reference_internal.h"

int refi_attention_sinks(kernel_context *context, void *stream, const attention_sinks_args *args)
{
    for (uint64_t row = 0; row < args->batch * args->tokens; row++)
        for (uint64_t h = 0; h < args->heads; h++) {
            float *lse = &args->lse[(row / args->tokens * args->heads + h) * args->tokens +
                                    row % args->tokens];
            uint64_t first = (row * args->heads + h) * args->value_dim;
            double sink = refi_load(args->type, args->sinks, h), distance = sink - (double)*lse;
            double share = 1.0 / (1.0 + exp(distance)); /* exp(lse - L) */
            for (uint64_t i = first; i < first + args->value_dim; i++)
                refi_store(args->type, args->output, i,
                           refi_load(args->type, args->output, i) * share);
            *lse = (float)((distance > 0.0 ? sink : (double)*lse) + log1p(exp(-fabs(distance))));
        }
    return 0;
}

int refi_attention_sinks_backward(kernel_context *context, void *stream,
                                  const attention_sinks_args *args)
{
    for (uint64_t h = 0; h < args->heads; h++) {
        double sink = refi_load(args->type, args->sinks, h), sum = 0.0;
        for (uint64_t row = 0; row < args->batch * args->tokens; row++) {
            float lse = args->lse[(row / args->tokens * args->heads + h) * args->tokens +
                                  row % args->tokens];
            uint64_t first = (row * args->heads + h) * args->value_dim;
            double delta = 0.0;
            for (uint64_t i = first; i < first + args->value_dim; i++)
                delta += refi_load(args->type, args->output, i) *
                         refi_load(args->type, args->output_grad, i);
            sum += exp(sink - (double)lse) * delta;
        }
        args->sinks_grad[h] = (float)((double)args->sinks_grad[h] - sum);
    }
    return 0;
}

/* Where the element `i` of a head of k in `packed` comes from, and that element. */
struct key_place {
    void *source;
    uint64_t at, packed_at;
};

static struct key_place key_place(const heads_join_args *args, uint64_t row, uint64_t h, uint64_t i)
{
    uint64_t dim = args->own + args->shared, width = args->heads * (2 * dim + args->value);
    struct key_place place = {.packed_at = row * width + (args->heads + h) * dim + i};
    bool is_own = i < args->own;
    place.source = is_own ? args->kv : args->common;
    place.at = is_own ? (row * args->heads + h) * (args->own + args->value) + i
                      : row * args->common_stride + i - args->own;
    return place;
}

/* Copies q and v, whose elements correspond one to one, to `packed` or back. */
static void copy_others(const heads_join_args *args, bool is_back)
{
    uint64_t dim = args->own + args->shared, width = args->heads * (2 * dim + args->value);
    for (uint64_t row = 0; row < args->rows; row++)
        for (uint64_t i = 0; i < args->heads * (dim + args->value); i++) {
            bool is_q = i < args->heads * dim;
            uint64_t v = i - args->heads * dim, packed = row * width + i;
            uint64_t at = row * args->heads * dim + i;
            if (!is_q) {
                packed += args->heads * dim;
                at = (row * args->heads + v / args->value) * (args->own + args->value) + args->own +
                     v % args->value;
            }
            void *side = is_q ? args->q : args->kv;
            if (is_back)
                refi_store(args->type, side, at, refi_load(args->type, args->packed, packed));
            else
                refi_store(args->type, args->packed, packed, refi_load(args->type, side, at));
        }
}

int refi_heads_join(kernel_context *context, void *stream, const heads_join_args *args)
{
    copy_others(args, false);
    for (uint64_t row = 0; row < args->rows; row++)
        for (uint64_t h = 0; h < args->heads; h++)
            for (uint64_t i = 0; i < args->own + args->shared; i++) {
                struct key_place place = key_place(args, row, h, i);
                refi_store(args->type, args->packed, place.packed_at,
                           refi_load(args->type, place.source, place.at));
            }
    return 0;
}

int refi_heads_split(kernel_context *context, void *stream, const heads_join_args *args)
{
    copy_others(args, true);
    for (uint64_t row = 0; row < args->rows; row++)
        for (uint64_t i = 0; i < args->own + args->shared; i++) {
            double sum = 0.0;
            for (uint64_t h = 0; h < args->heads; h++) {
                struct key_place place = key_place(args, row, h, i);
                double grad = refi_load(args->type, args->packed, place.packed_at);
                sum += grad;
                if (i < args->own || h + 1 == args->heads)
                    refi_store(args->type, place.source, place.at, i < args->own ? grad : sum);
            }
        }
    return 0;
}
