/* The row ops, included once per instruction set by a file that defines ROWS_TABLE (the table's
 * name) and ROWS_NAME (its text). All functions here are static to that file; the table is its only
 * external name. Threads are OpenMP's. Every result is independent of the number of threads:
 * threads share out rows or columns whose results do not meet, or fixed blocks of rows that are
 * summed in order. */
#include "kernels/cpu/rows_internal.h"
#include "kernels/cpu/rows_math.h"

/* rows_norm.h: norms, and sums of columns. rows_head_norm.h: norms of heads. rows_point.h: what
 * maps element to element. rows_loss.h: cross-entropy. */
#include "kernels/cpu/rows_loss.h"
#include "kernels/cpu/rows_norm.h"
#include "kernels/cpu/rows_point.h"

#include "kernels/cpu/rows_lookup.h" /* bf16 activations by table */

#include "kernels/cpu/rows_head_norm.h" /* after rows_norm.h, whose sums it takes */

const rows_table ROWS_TABLE = {
    .name = ROWS_NAME,
    .norm_forward = norm_forward,
    .norm_backward = norm_backward,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .head_norm_forward = head_norm_forward,
    .head_norm_backward = head_norm_backward,
    .rope = rope,
    .activation_forward = activation_forward,
    .activation_backward = activation_backward,
    .activation_forward_lookup = activation_forward_lookup,
    .activation_backward_lookup = activation_backward_lookup,
    .add = add,
    .scale_rows = scale_rows,
    .bias_backward = bias_backward,
    .cross_entropy = cross_entropy,
    .softmax_part = softmax_part,
    .cross_entropy_part = cross_entropy_part,
    .convert = convert,
    .convert_rows = convert_rows,
    .exp = exp_all,
    .sigmoid = sigmoid_all,
};
