/* The optimizer and norm ops of the CUDA backend: checks and launches. The results have the same
 * bits as the CPU's variants, which are defined at the head of kernels/cpu/optimizer/adam.c and
 * adam_state.c.
 *
 * Each op is one launch. An update of packed state needs one more if a tile crosses a multiple of
 * 2^32 elements of its unit. Nothing is allocated and nothing waits. Arguments that only a bug of
 * ours can make wrong are asserted. Pointers must be aligned to their elements. If all pointers of
 * an op are aligned to packs, as arena buffers and tile streams are, threads move packs. */
#include <assert.h>
#include <math.h>

#include "kernels/cuda/cuda_internal.h"
#include "kernels/cuda/update/update_launch.h"

/* True if `data` is a multiple of `elems` elements of `elem_bytes`. Asserts that it is aligned to
 * one. */
static bool lies_on(const void *data, uint64_t elem_bytes, uint64_t elems)
{
    uintptr_t address = (uintptr_t)data;
    assert(address % elem_bytes == 0);
    return address % (elem_bytes * elems) == 0;
}

static bool is_wide_fp32(const void *data)
{
    return lies_on(data, sizeof(float), CUDAI_UPDATE_PACK);
}

static bool is_wide_as(const void *data, enum dtype type)
{
    assert(type < DTYPE_COUNT);
    return lies_on(data, dtype_bytes(type), CUDAI_UPDATE_PACK);
}

/* Makes one launch. All elements' numbers have the same upper half. */
static int update_packed_part(kernel_context *context, void *stream, const update_args *args,
                              const adami_scalars *scalars)
{
    static const uint64_t format_bytes[TILE_FORMAT_COUNT] = {4, 2, 2, 1};
    cudai_packed_tile tile = {
        .count = args->count,
        .streams = {args->master, args->m, args->v},
        .grads = args->grads,
        .params = args->params,
        .grad_type = args->grad_type,
        .param_type = args->param_type,
        .rounding = adami_rounding_at(args->rounding_key, args->first_elem),
    };
    bool grads = is_wide_as(tile.grads, tile.grad_type);
    bool params = is_wide_as(tile.params, tile.param_type);
    tile.is_wide = grads && params;
    for (uint32_t i = 0; i < 3; i++) {
        tile.formats[i] = tile_stream_format(args->streams, i);
        bool is_wide = lies_on(tile.streams[i], format_bytes[tile.formats[i]], CUDAI_UPDATE_PACK);
        assert(tile.formats[i] != TILE_INT8 || is_wide); /* its scales are fp32 */
        tile.is_wide = is_wide && tile.is_wide;
    }
    return cudai_check(cudai_launch_adam_packed(context, stream, &tile, scalars),
                       "the kernel of Adam on packed state");
}

static int update_packed(kernel_context *context, void *stream, const update_args *args)
{
    TRY(adami_packed_check(args));
    adami_scalars scalars = adami_prepare(args);
    update_args left = *args;
    while (left.count > 0) {
        update_args part = left;
        part.count = adami_packed_run(&left);
        TRY(update_packed_part(context, stream, &part, &scalars));
        left = adami_packed_part(&left, part.count, left.count - part.count);
    }
    return 0;
}

int cudai_update(kernel_context *context, void *stream, const update_args *args)
{
    static const char *const names[UPDATE_RULE_COUNT] = {
        [UPDATE_ADAM] = "the Adam kernel",
        [UPDATE_LION] = "the Lion kernel",
        [UPDATE_ADAGRAD] = "the Adagrad kernel",
    };
    if (tile_has_formats(args->streams))
        return update_packed(context, stream, args);
    adami_work work = adami_work_of(args);
    if (work.count == 0)
        return 0;
    /* All are evaluated, since each asserts its own alignment. */
    bool master = is_wide_fp32(work.master), first = is_wide_fp32(work.state[0]);
    bool second = is_wide_fp32(work.state[1]); /* true for NULL */
    bool grads = is_wide_as(work.grads, work.grad_type);
    bool params = is_wide_as(work.params, work.param_type);
    bool is_wide = master && first && second && grads && params;
    return cudai_check(cudai_launch_update(context, stream, args->rule, &work, is_wide),
                       names[args->rule]);
}

int cudai_working_copy(kernel_context *context, void *stream, const float *master, void *params,
                       enum dtype param_type, uint64_t count)
{
    if (count == 0)
        return 0;
    bool is_wide = is_wide_fp32(master);
    is_wide = is_wide_as(params, param_type) && is_wide;
    return cudai_check(
        cudai_launch_working_copy(context, stream, master, params, param_type, count, is_wide),
        "the working copy kernel");
}

int cudai_grad_close(kernel_context *context, void *stream, const grad_close_args *args)
{
    assert(args->count % ADAMI_BLOCK_ELEMS == 0);
    if (args->count == 0)
        return 0;
    bool is_wide = is_wide_fp32(args->accumulator);
    is_wide = is_wide_as(args->grads, args->grad_type) && is_wide;
    assert(args->grads != (const void *)args->accumulator || args->grad_type == DTYPE_FP32);
    return cudai_check(cudai_launch_grad_close(context, stream, args, is_wide),
                       "the kernel that closes gradients");
}

int cudai_norm_reduce(kernel_context *context, void *stream, const double *sums, uint64_t count,
                      double *total)
{
    /* Each block of threads adds an aligned run of a power of two of sums, which is a node of the
     * tree. */
    uint64_t block_leaves = CUDAI_NORM_BLOCK_MIN;
    while (size_div_up(count, block_leaves) > CUDAI_NORM_BLOCKS_MAX)
        block_leaves *= 2;
    if (block_leaves > CUDAI_NORM_BLOCK_MAX)
        return err_set(ERR_INTERNAL, "a norm over %llu sums; the kernel adds at most %llu",
                       (unsigned long long)count,
                       (unsigned long long)CUDAI_NORM_BLOCK_MAX * CUDAI_NORM_BLOCKS_MAX);
    bool is_wide = lies_on(sums, sizeof *sums, 2);
    return cudai_check(cudai_launch_norm_reduce(stream, sums, count, block_leaves, is_wide, total),
                       "the norm kernel");
}
