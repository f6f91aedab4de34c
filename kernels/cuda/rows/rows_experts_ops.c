/* Mixtures of experts on the GPU: checks of arguments and launches. The choices are in device
 * memory and come from router_forward; no kernel checks them. Nothing here allocates or
 * synchronizes. */
#include <assert.h>

#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda_internal.h"
#include "kernels/cuda/rows/rows_launch.h"

/* Blocks of rows for router_sums, of one warp each. Their sums take some 16 MiB at most. */
enum { ROUTER_BLOCKS_MAX = 1024, ROUTER_ROWS_MIN = 16 };

static void router_check(uint64_t rows, uint64_t experts, uint64_t choices)
{
    assert(rows <= INT32_MAX && experts <= ROUTER_EXPERTS_MAX); /* rows: the width of a grid */
    assert(choices > 0 && choices <= experts);
}

int cudai_router_forward(kernel_context *context, void *stream, const router_args *args)
{
    router_check(args->rows, args->experts, args->choices);
    if (args->groups) {
        uint64_t size = args->experts / args->groups;
        assert(args->experts % args->groups == 0 && args->groups_chosen <= args->groups);
        assert(args->groups_chosen * size >= args->choices);
        assert(args->group_best >= 1 && args->group_best <= 2 && args->group_best <= size);
    }
    if (args->rows == 0)
        return 0;
    return cudai_check(cudai_launch_router_forward(stream, args), "the router kernel");
}

int cudai_router_backward(kernel_context *context, void *stream, const router_args *args)
{
    router_check(args->rows, args->experts, args->choices);
    if (args->rows == 0)
        return 0;
    return cudai_check(cudai_launch_router_backward(stream, args), "the router gradient kernel");
}

static cudai_row_blocks router_blocks(uint64_t rows)
{
    uint64_t even = (rows + ROUTER_BLOCKS_MAX - 1) / ROUTER_BLOCKS_MAX;
    cudai_row_blocks blocks = {.rows_per_block = even > ROUTER_ROWS_MIN ? even : ROUTER_ROWS_MIN};
    blocks.count = (rows + blocks.rows_per_block - 1) / blocks.rows_per_block;
    return blocks;
}

size_t cudai_router_sums_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t experts)
{
    return (size_t)(router_blocks(rows).count * (2 * experts + 1)) * sizeof(double);
}

int cudai_router_sums(kernel_context *context, void *stream, const router_sums_args *args)
{
    router_check(args->rows, args->experts, args->choices);
    if (args->rows == 0)
        return 0;
    return cudai_check(cudai_launch_router_sums(stream, args, router_blocks(args->rows)),
                       "the kernel of a router's sums");
}

int cudai_experts_sort(kernel_context *context, void *stream, const experts_sort_args *args)
{
    uint64_t slots_max =
        experts_slots_max(args->rows, args->experts, args->choices, args->multiple);
    assert(args->experts <= ROUTER_EXPERTS_MAX && slots_max <= INT32_MAX);
    TRY(cudai_check(cudaMemsetAsync(args->order, 0xff, slots_max * sizeof *args->order, stream),
                    "filling the order of choices"));
    return cudai_check(cudai_launch_experts_sort(stream, args), "the kernels that sort choices");
}

int cudai_experts_gather(kernel_context *context, void *stream, const experts_rows_args *args)
{
    if (args->slot_count == 0 || args->channels == 0)
        return 0;
    return cudai_check(cudai_launch_experts_gather(stream, args), "the kernel that gathers rows");
}

int cudai_experts_combine(kernel_context *context, void *stream, const experts_rows_args *args)
{
    if (args->rows == 0 || args->slot_count == 0 || args->channels == 0)
        return 0;
    return cudai_check(cudai_launch_experts_combine(stream, args),
                       "the kernel that sums rows of experts");
}

int cudai_experts_weights_backward(kernel_context *context, void *stream,
                                   const experts_rows_args *args)
{
    if (args->slot_count == 0 || args->channels == 0)
        return 0;
    return cudai_check(cudai_launch_experts_weights_backward(stream, args),
                       "the gradient kernel of experts' weights");
}
