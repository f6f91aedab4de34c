/* Mixtures of experts on the CPU: checks of arguments, calls of the table of row ops, and the sort
 * of choices by expert, which is integers alone. The logsumexp of a row calls libm's log in double,
 * whose last bit may differ between machines. Nothing allocates. */
#include <assert.h>
#include <string.h>

#include "kernels/cpu/rows_internal.h"

static void router_check(const router_args *args)
{
    assert(args->experts <= ROUTER_EXPERTS_MAX);
    assert(args->choices > 0 && args->choices <= args->experts);
}

int cpui_router_forward(kernel_context *context, void *stream, const router_args *args)
{
    router_check(args);
    if (args->groups) {
        uint64_t size = args->experts / args->groups;
        assert(args->experts % args->groups == 0 && args->groups_chosen <= args->groups);
        assert(args->groups_chosen * size >= args->choices);
        assert(args->group_best >= 1 && args->group_best <= 2 && args->group_best <= size);
    }
    context->rows->router_forward(context->thread_count, args);
    return 0;
}

int cpui_router_backward(kernel_context *context, void *stream, const router_args *args)
{
    router_check(args);
    context->rows->router_backward(context->thread_count, args);
    return 0;
}

size_t cpui_router_sums_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t experts)
{
    return (size_t)(rowsi_block_count(rows) * (2 * experts + 1)) * sizeof(double);
}

int cpui_router_sums(kernel_context *context, void *stream, const router_sums_args *args)
{
    assert(args->experts <= ROUTER_EXPERTS_MAX);
    context->rows->router_sums(context->thread_count, args);
    return 0;
}

/* Counts the choices of each expert, then goes through them once more in order. One thread does it:
 * a choice costs two additions. */
int cpui_experts_sort(kernel_context *context, void *stream, const experts_sort_args *args)
{
    int32_t next[ROUTER_EXPERTS_MAX] = {0}; /* first a count, then the next free slot */
    uint64_t pairs = args->rows * args->choices, slot = 0;
    uint64_t slots_max =
        experts_slots_max(args->rows, args->experts, args->choices, args->multiple);
    assert(args->experts <= ROUTER_EXPERTS_MAX && slots_max <= INT32_MAX);
    for (uint64_t pair = 0; pair < pairs; pair++) {
        assert(args->chosen[pair] >= 0 && (uint64_t)args->chosen[pair] < args->experts);
        next[args->chosen[pair]]++;
    }
    for (uint64_t e = 0; e < args->experts; e++) {
        uint64_t count = (uint64_t)next[e];
        args->offsets[e] = next[e] = (int32_t)slot;
        slot += (count + args->multiple - 1) / args->multiple * args->multiple;
    }
    args->offsets[args->experts] = (int32_t)slot;
    memset(args->order, 0xff, slots_max * sizeof *args->order); /* -1 */
    for (uint64_t pair = 0; pair < pairs; pair++) {
        int32_t place = next[args->chosen[pair]]++;
        args->order[place] = (int32_t)pair;
        args->slots[pair] = place;
    }
    return 0;
}

int cpui_experts_gather(kernel_context *context, void *stream, const experts_rows_args *args)
{
    context->rows->experts_gather(context->thread_count, args);
    return 0;
}

int cpui_experts_combine(kernel_context *context, void *stream, const experts_rows_args *args)
{
    context->rows->experts_combine(context->thread_count, args);
    return 0;
}

int cpui_experts_weights_backward(kernel_context *context, void *stream,
                                  const experts_rows_args *args)
{
    context->rows->experts_weights_backward(context->thread_count, args);
    return 0;
}
