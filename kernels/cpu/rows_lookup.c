/* Fills the tables of struct rows_lookup, once for each context. It runs the computing ops
 * themselves on all 65536 values of bf16, with gradients of 1. It
 * allocates, and takes a few milliseconds in the calling thread. That thread need not be the one
 * that computes later: one thread does all the work, so no team of threads is left behind. */
#include <errno.h>

#include "base/mem.h"
#include "kernels/cpu/rows_internal.h"

enum { VALUES = 65536 };

/* input: [2, VALUES], gates and a factor of 1 for each; grad: [VALUES], 1 each. One gated pass
 * gives a whole table: it stores the gradients of gates and factors one after the other. */
static void fill(const rows_table *rows, const float *input, const float *grad, rows_lookup *lookup)
{
    static const enum activation_kind kinds[] = {ACTIVATION_SWIGLU, ACTIVATION_GEGLU,
                                                 ACTIVATION_GEGLU_ERF};
    const int threads = 1;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        enum rows_function function = rowsi_function(kinds[i]);
        activation_args args = {.kind = kinds[i],
                                .type = DTYPE_FP32,
                                .rows = 1,
                                .features = VALUES,
                                .input = input,
                                .output = lookup->of[function].value,
                                .output_grad = grad,
                                /* a gated function also fills value_backward, which follows */
                                .input_grad = lookup->of[function].slope};
        rows->activation_forward(threads, &args, NULL);
        rows->activation_backward(threads, &args, NULL);
    }
}

int cpui_rows_lookup_create(kernel_context *context)
{
    rows_lookup *lookup = mem_alloc(1, sizeof *lookup, "activations of bf16");
    float *input = mem_alloc((size_t)2 * VALUES, sizeof *input, "activation operands");
    if (!lookup || !input) {
        mem_free(lookup);
        mem_free(input);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < VALUES; i++) {
        input[i] = fp32_from_bf16((uint16_t)i);
        input[VALUES + i] = 1.0f;
    }
    fill(context->rows, input, input + VALUES, lookup);
    mem_free(input);
    context->lookup = lookup;
    return 0;
}

void cpui_rows_lookup_destroy(kernel_context *context)
{
    mem_free(context->lookup);
    context->lookup = NULL;
}
