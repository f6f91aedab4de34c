/* The backward pass of block-wise causal attention (Dao et al., FlashAttention, 2022, section 3.1).
 *
 * One task is one key/value head of one sequence. It loops over the query heads of its group in
 * order, over their query blocks, and over the key blocks of each. P is recomputed from the saved
 * lse, then
 *   dP = dO V^T,  dS = P * (dP - rowsum(dO * O)) * scale,
 *   dV += P^T dO,  dK += dS^T Q,  dQ += dS K.
 * dK and dV of the task are summed in fp32 in the scratch of the thread and rounded once. A task
 * runs on one thread in a fixed order, so the number of threads does not change a bit. */
#include <omp.h>
#include <string.h>

#include "base/size.h"
#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_internal.h"

struct backward_args {
    const void *q, *k, *v, *output;
    const float *lse;
    const void *output_grad;
    void *q_grad, *k_grad, *v_grad;
};

/* One query block of one head. */
struct query_block {
    uint64_t batch, head, kv_head, first_row, rows;
};

/* Rounds `rows` rows of fp32 sums into a head of a gradient, which is laid out like q, k and v. */
static void store_rows(const kernel_attention *attention, const float *sums, void *target,
                       uint64_t first_elem, uint64_t rows)
{
    const attention_desc *desc = &attention->desc;
    for (uint64_t row = 0; row < rows; row++)
        attention->rows->store(
            sums + row * attention->head_stride, 1.0f,
            (void *)attention_at(attention, target, first_elem + row * desc->qkv_stride),
            desc->type, desc->head_dim);
}

/* The operands of a query block that the products of the library read. */
struct query_operands {
    const void *q, *output_grad;
};

/* One key block, from key `key` on, by the products of the library. `kv_elem` is its first element
 * in k and v. */
static void backward_keys(const kernel_attention *attention, const struct backward_args *args,
                          attention_worker *worker, const struct query_operands *query,
                          const score_block *block, uint64_t key, uint64_t kv_elem,
                          const float *lse)
{
    uint64_t stride = attention->desc.qkv_stride, cols = block->cols;
    const block_shape *shape = cpui_attention_shape(attention, block->rows, cols);
    const void *k =
        cpui_attention_operand(attention, args->k, kv_elem, stride, cols, worker->wide_k);
    const void *v =
        cpui_attention_operand(attention, args->v, kv_elem, stride, cols, worker->wide_v);
    cpui_attention_product(worker, shape, PRODUCT_SCORES, query->q, k, worker->scores);
    cpui_attention_product(worker, shape, PRODUCT_PROB_GRAD, query->output_grad, v,
                           worker->prob_grads);
    attention->rows->softmax_grad(block, worker->prob_grads, lse, worker->row_max);
    cpui_attention_product(worker, shape, PRODUCT_VALUE_GRAD, worker->scores, query->output_grad,
                           worker->value_grads + key * attention->head_stride);
    cpui_attention_product(worker, shape, PRODUCT_KEY_GRAD, worker->prob_grads, query->q,
                           worker->key_grads + key * attention->head_stride);
    cpui_attention_product(worker, shape, PRODUCT_QUERY_GRAD, worker->prob_grads, k,
                           worker->output);
}

static void backward_block(const kernel_attention *attention, const struct backward_args *args,
                           attention_worker *worker, const struct query_block *query)
{
    const attention_desc *desc = &attention->desc;
    uint64_t dim = desc->head_dim, stride = desc->qkv_stride, out_stride = desc->heads * dim;
    uint64_t batch_first = query->batch * desc->tokens * stride;
    uint64_t q_elem = batch_first + query->first_row * stride + query->head * dim;
    uint64_t out_elem =
        (query->batch * desc->tokens + query->first_row) * out_stride + query->head * dim;
    const float *lse =
        args->lse + (query->batch * desc->heads + query->head) * desc->tokens + query->first_row;
    struct query_operands operands = {
        cpui_attention_operand(attention, args->q, q_elem, stride, query->rows, worker->wide_q),
        cpui_attention_operand(attention, args->output_grad, out_elem, out_stride, query->rows,
                               worker->wide_output_grad)};
    if (attention->by_dots) {
        dots_rows q = attention_dots_rows(args->q, q_elem, stride, query->rows);
        dots_rows grad = attention_dots_rows(args->output_grad, out_elem, out_stride, query->rows);
        cpui_attention_dots_queries(&worker->dots, &q, &grad);
    }
    float *delta = worker->row_max;
    for (uint64_t row = 0; row < query->rows; row++) {
        uint64_t elem = out_elem + row * out_stride;
        delta[row] =
            attention->rows->dot(attention_at(attention, args->output_grad, elem),
                                 attention_at(attention, args->output, elem), desc->type, dim);
    }
    memset(worker->output, 0, query->rows * attention->head_stride * sizeof *worker->output);
    uint64_t keys = query->first_row + query->rows;
    for (uint64_t key = 0; key < keys; key += attention->key_rows) {
        uint64_t cols = size_min(attention->key_rows, keys - key);
        uint64_t kv_elem = batch_first + key * stride + query->kv_head * dim;
        score_block block = {
            query->rows, cols,           attention->score_stride, query->first_row - key + 1,
            desc->scale, worker->scores, attention->product_type, desc->type};
        if (!attention->by_dots) {
            backward_keys(attention, args, worker, &operands, &block, key, kv_elem, lse);
            continue;
        }
        uint64_t at = key * attention->head_stride;
        dots_rows keys_of = attention_dots_rows(args->k, kv_elem, stride, cols);
        dots_rows values = attention_dots_rows(args->v, kv_elem, stride, cols);
        dots_sums sums = {worker->output, worker->key_grads + at, worker->value_grads + at,
                          attention->head_stride};
        cpui_attention_dots_backward(&worker->dots, &block, worker->prob_grads, &keys_of, &values,
                                     lse, delta, &sums);
    }
    store_rows(attention, worker->output, args->q_grad, q_elem, query->rows);
}

static void backward_task(const kernel_attention *attention, const struct backward_args *args,
                          attention_worker *worker, uint64_t batch, uint64_t kv_head)
{
    const attention_desc *desc = &attention->desc;
    size_t sums_bytes = desc->tokens * attention->head_stride * sizeof *worker->key_grads;
    memset(worker->key_grads, 0, sums_bytes);
    memset(worker->value_grads, 0, sums_bytes);
    uint64_t group = desc->heads / desc->kv_heads;
    for (uint64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (uint64_t block = 0; block < attention->query_block_count; block++) {
            struct query_block query = {batch, head, kv_head, block * attention->query_rows,
                                        attention_block_rows(attention, block)};
            backward_block(attention, args, worker, &query);
        }
    uint64_t first = batch * desc->tokens * desc->qkv_stride + kv_head * desc->head_dim;
    store_rows(attention, worker->key_grads, args->k_grad, first, desc->tokens);
    store_rows(attention, worker->value_grads, args->v_grad, first, desc->tokens);
}

int cpui_attention_backward(kernel_attention *attention, void *stream, const void *q, const void *k,
                            const void *v, const void *output, const float *lse,
                            const void *output_grad, void *q_grad, void *k_grad, void *v_grad,
                            void *scratch)
{
    (void)stream;
    const attention_desc *desc = &attention->desc;
    if (attention->by_tiles) {
        attention_amx_pass pass = {.desc = desc,
                                   .rows = attention->rows,
                                   .thread_count = attention->context->thread_count,
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .output = (void *)output,
                                   .lse = (float *)lse,
                                   .output_grad = output_grad,
                                   .q_grad = q_grad,
                                   .k_grad = k_grad,
                                   .v_grad = v_grad,
                                   .scratch = scratch};
        cpui_attention_amx_backward(&pass);
        return 0;
    }
    struct backward_args args = {q, k, v, output, lse, output_grad, q_grad, k_grad, v_grad};
    uint64_t task_count = desc->batch * desc->kv_heads;
    int thread_count = attention->context->thread_count;
    attention_fault fault = {0};
    omp_set_num_threads(thread_count);
#pragma omp parallel num_threads(thread_count)
    {
        attention_worker worker;
        int slot = omp_get_thread_num();
        cpui_attention_worker_layout(
            attention, true, (char *)scratch + (size_t)slot * attention->backward_bytes, &worker);
        worker.slot = slot;
        /* the products of this thread use one thread, until the region ends */
        omp_set_num_threads(1);
#pragma omp for schedule(dynamic, 1)
        for (uint64_t task = 0; task < task_count; task++)
            backward_task(attention, &args, &worker, task / desc->kv_heads, task % desc->kv_heads);
        if (worker.status != 0)
#pragma omp critical(attention_fault)
            fault = (attention_fault){worker.status, worker.culprit};
    }
    omp_set_num_threads(thread_count);
    return fault.status == 0 ? 0 : cpui_product_failed(fault.culprit, fault.status);
}
