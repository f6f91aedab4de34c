/* The row ops. cpu.cmake compiles this file once for each instruction set, with VARIANT_TABLE (the
 * name of the table) and VARIANT_NAME (its text) defined. The table is its only external name.
 * Threads are those of OpenMP. No result depends on the number of threads: the threads divide up
 * rows or columns whose results are independent, or fixed blocks of rows that are summed in
 * order. */
#include <assert.h>

#include "kernels/cpu/dropout_lanes.h"
#include "kernels/cpu/rows_internal.h"
#include "kernels/cpu/rows_math.h"
#include "kernels/row_position.h"
#include "kernels/stored_codes.h"

/* These files define the static functions that the table below names. */
#include "kernels/cpu/rows_activation.h"
#include "kernels/cpu/rows_experts.h"
#include "kernels/cpu/rows_heads.h"
#include "kernels/cpu/rows_loss.h"
#include "kernels/cpu/rows_norm.h"
#include "kernels/cpu/rows_point.h"
#include "kernels/cpu/rows_router.h"
#include "kernels/cpu/rows_stored.h"
#include "kernels/cpu/rows_stored_quantize.h"

const rows_table VARIANT_TABLE = {
    .name = VARIANT_NAME,
    .norm_forward = norm_forward,
    .norm_backward = norm_backward,
    .embedding_forward = embedding_forward,
    .embedding_backward = embedding_backward,
    .head_norm_forward = head_norm_forward,
    .head_norm_backward = head_norm_backward,
    .rope = rope,
    .activation_forward = activation_forward,
    .activation_backward = activation_backward,
    .add = add,
    .scale_rows = scale_rows,
    .dropout = dropout,
    .bias_backward = bias_backward,
    .cross_entropy = cross_entropy,
    .softmax_part = softmax_part,
    .cross_entropy_part = cross_entropy_part,
    .attention_sinks = attention_sinks,
    .attention_sinks_backward = attention_sinks_backward,
    .heads_join = heads_join,
    .heads_split = heads_split,
    .router_forward = router_forward,
    .router_backward = router_backward,
    .router_sums = router_sums,
    .experts_gather = experts_gather,
    .experts_combine = experts_combine,
    .experts_weights_backward = experts_weights_backward,
    .stored_expand = stored_expand,
    .stored_quantize = stored_quantize,
    .convert = convert,
    .convert_rows = convert_rows,
    .exp = exp_all,
    .sigmoid = sigmoid_all,
    .tanh = tanh_all,
};
