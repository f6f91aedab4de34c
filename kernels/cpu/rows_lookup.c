/* Fills the tables of struct rows_lookup, once for each context. It runs the computing ops
 * themselves on all 65536 values of bf16; a factor is the result of an op for a gradient of 1. It
 * allocates, and takes a few milliseconds in the calling thread. That thread need not be the one
 * that computes later: one thread does all the work, so no team of threads is left behind. */
#include <errno.h>

#include "base/mem.h"
#include "kernels/cpu/rows_internal.h"

enum { VALUES = 65536 };

/* The fp32 operands of the ops that fill the tables. */
struct filling {
    float *value, *grad; /* [VALUES]: each value, and a gradient of 1 */
    float *pairs;        /* [VALUES, 2]: gate, and up = 1 */
    float *pair_grads;   /* [VALUES, 2] */
};

static void fill(const rows_table *rows, const struct filling *filling, rows_lookup *lookup)
{
    const int threads = 1;
    for (uint32_t i = 0; i < VALUES; i++) {
        filling->value[i] = filling->pairs[2 * i] = fp32_from_bf16((uint16_t)i);
        filling->grad[i] = filling->pairs[2 * i + 1] = 1.0f;
    }
    activation_args gelu = {.kind = ACTIVATION_GELU,
                            .type = DTYPE_FP32,
                            .rows = 1,
                            .features = VALUES,
                            .input = filling->value,
                            .output = lookup->gelu,
                            .output_grad = filling->grad,
                            .input_grad = lookup->gelu_slope};
    rows->activation_forward(threads, &gelu, NULL);
    rows->activation_backward(threads, &gelu, NULL);
    for (uint32_t i = 0; i < VALUES; i++) /* rounded here: the pass only keeps the upper half */
        lookup->gelu[i] = fp32_from_bf16(bf16_from_fp32(lookup->gelu[i]));
    activation_args swiglu = {.kind = ACTIVATION_SWIGLU,
                              .type = DTYPE_FP32,
                              .rows = VALUES,
                              .features = 1,
                              .input = filling->pairs,
                              .output = lookup->silu,
                              .output_grad = filling->grad,
                              .input_grad = filling->pair_grads};
    rows->activation_forward(threads, &swiglu, NULL);
    rows->activation_backward(threads, &swiglu, NULL);
    for (uint32_t i = 0; i < VALUES; i++) {
        lookup->silu_slope[i] = filling->pair_grads[2 * i];
        lookup->silu_backward[i] = filling->pair_grads[2 * i + 1];
    }
}

int cpui_rows_lookup_create(kernel_context *context)
{
    rows_lookup *lookup = mem_alloc(1, sizeof *lookup, "activations of bf16");
    float *block = mem_alloc((size_t)6 * VALUES, sizeof *block, "activation operands");
    if (!lookup || !block) {
        mem_free(lookup);
        mem_free(block);
        return -ENOMEM;
    }
    struct filling filling = {block, block + VALUES, block + 2 * VALUES, block + 4 * VALUES};
    fill(context->rows, &filling, lookup);
    mem_free(block);
    context->lookup = lookup;
    return 0;
}

void cpui_rows_lookup_destroy(kernel_context *context)
{
    mem_free(context->lookup);
    context->lookup = NULL;
}
