/* Stored formats on the CPU: checks of arguments, and the double quantization of scales. Nothing
 * allocates; quantizing as int8 takes 64 KiB of the stack. */
#include <assert.h>

#include "kernels/cpu/rows_internal.h"
#include "kernels/stored_codes.h"

int cpui_stored_expand(kernel_context *context, void *stream, const stored_expand_args *args)
{
    context->rows->stored_expand(context->thread_count, args);
    return 0;
}

int cpui_stored_quantize(kernel_context *context, void *stream, const stored_quantize_args *args)
{
    assert(!stored_is_double(args->format));
    if (context->rows->stored_quantize(context->thread_count, args))
        return 0;
    return err_set(ERR_INPUT, "a value to quantize as %s is NaN or infinite",
                   stored_format_name(args->format));
}

int cpui_stored_double(kernel_context *context, void *stream, const float *scales, uint64_t count,
                       void *target)
{
    enum { GROUPS = 64 }; /* of one call of the op below */
    struct stored_double parts = stored_double_of(target, count);
    double sum = 0.0;
    for (uint64_t i = 0; i < count; i++)
        sum += (double)scales[i];
    *parts.offset = (float)(sum / (double)count);
    for (uint64_t begin = 0; begin < count; begin += GROUPS * STORED_DOUBLE_GROUP) {
        float rest[GROUPS * STORED_DOUBLE_GROUP];
        uint64_t most = sizeof rest / sizeof *rest, n = count - begin < most ? count - begin : most;
        for (uint64_t i = 0; i < n; i++)
            rest[i] = scales[begin + i] - *parts.offset;
        TRY(cpui_stored_quantize(
            context, stream,
            &(stored_quantize_args){.format = STORED_INT8,
                                    .rows = 1,
                                    .columns = n,
                                    .type = DTYPE_FP32,
                                    .source = rest,
                                    .codes = parts.codes + begin,
                                    .scales = parts.absmax + begin / STORED_DOUBLE_GROUP}));
    }
    return 0;
}
