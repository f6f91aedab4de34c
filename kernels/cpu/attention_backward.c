/* The backward pass of block-wise attention (Dao et al., FlashAttention, 2022, section 3.1).
 *
 * One task is one key/value head of one sequence. It loops over the query heads of its group in
 * order, over their key blocks, and over the query blocks that see each. P is recomputed from the
 * saved lse, then
 *   dP = dO V^T,  dS = P * (dP - rowsum(dO * O)) * scale,
 *   dV += P^T dO,  dK += dS^T Q,  dQ += dS K.
 * The sums are fp32, in the scratch of the thread, and are rounded once. Key blocks are larger than
 * query blocks, and have two sums. So they are outside: their operands are prepared once, and their
 * sums stay in cache while the smaller dQ of each query block comes and goes. A task runs on one
 * thread in a fixed order, so the number of threads does not change a bit. */
#include <string.h>

#include "base/size.h"
#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_internal.h"

/* One query block and one key block of one head, and their elements in the tensors. */
struct block_pair {
    attention_range rows, keys;
    uint64_t key_offset; /* of the first key in the key block that was prepared */
    uint64_t q_elem, out_elem;
    const float *lse; /* [rows] */
};

/* Rounds the fp32 sums of all tokens into a head of `dim` elements of a gradient, which is laid out
 * like q, k and v. */
static void store_rows(const kernel_attention *attention, const float *sums, uint64_t dim,
                       void *target, uint64_t first_elem)
{
    const attention_desc *desc = &attention->desc;
    for (uint64_t row = 0; row < desc->tokens; row++)
        attention->rows->store(
            sums + row * attention->head_stride, 1.0f,
            (void *)attention_at(attention, target, first_elem + row * desc->qkv_stride),
            desc->type, dim);
}

/* A pair of blocks by the products of the library. */
static void backward_products(const kernel_attention *attention, const attention_pass *args,
                              attention_worker *worker, const struct block_pair *pair,
                              const score_block *block)
{
    const attention_desc *desc = &attention->desc;
    const block_shape *shape = cpui_attention_shape(attention, block->rows, block->cols);
    const void *q = worker->dense_q, *output_grad = worker->dense_output_grad;
    cpui_attention_operand(attention, args->q, pair->q_elem, desc->qkv_stride, block->rows,
                           desc->head_dim, worker->dense_q);
    cpui_attention_operand(attention, args->output_grad, pair->out_elem,
                           desc->heads * desc->value_dim, block->rows, desc->value_dim,
                           worker->dense_output_grad);
    const void *k =
        attention_dense_row(attention, worker->dense_k, pair->key_offset, desc->head_dim);
    const void *v =
        attention_dense_row(attention, worker->dense_v, pair->key_offset, desc->value_dim);
    cpui_attention_product(worker, shape, PRODUCT_SCORES, q, k, worker->scores);
    cpui_attention_product(worker, shape, PRODUCT_PROB_GRAD, output_grad, v, worker->prob_grads);
    attention->rows->softmax_grad(block, worker->prob_grads, pair->lse,
                                  worker->delta + pair->rows.begin);
    cpui_attention_product(worker, shape, PRODUCT_VALUE_GRAD, worker->scores, output_grad,
                           worker->value_grads + pair->keys.begin * attention->head_stride);
    cpui_attention_product(worker, shape, PRODUCT_KEY_GRAD, worker->prob_grads, q,
                           worker->key_grads + pair->keys.begin * attention->head_stride);
    cpui_attention_product(worker, shape, PRODUCT_QUERY_GRAD, worker->prob_grads, k,
                           worker->query_grads + pair->rows.begin * attention->head_stride);
}

/* The same by attention_dots.h, which has the key block already. */
static void backward_dots(const kernel_attention *attention, const attention_pass *args,
                          attention_worker *worker, const struct block_pair *pair,
                          const score_block *block)
{
    const attention_desc *desc = &attention->desc;
    uint64_t stride = attention->head_stride;
    dots_rows q = attention_dots_rows(args->q, pair->q_elem, desc->qkv_stride, block->rows);
    dots_rows grad = attention_dots_rows(args->output_grad, pair->out_elem,
                                         desc->heads * desc->value_dim, block->rows);
    dots_sums sums = {worker->query_grads + pair->rows.begin * stride,
                      worker->key_grads + pair->keys.begin * stride,
                      worker->value_grads + pair->keys.begin * stride, stride};
    cpui_attention_dots_queries(&worker->dots, &q, &grad);
    cpui_attention_dots_backward(&worker->dots, block, pair->key_offset, worker->prob_grads,
                                 pair->lse, worker->delta + pair->rows.begin, &sums);
}

/* One head of one sequence: the elements and lse of its first query row and its first key. */
struct head_place {
    const attention_mask *mask;
    const attention_drop *drop; /* or NULL */
    uint64_t q_elem, out_elem, k_elem, v_elem;
    const float *lse;
};

/* One query block and the keys that it sees of the prepared key block `keys`. */
static void backward_pair(const kernel_attention *attention, const attention_pass *args,
                          attention_worker *worker, const struct head_place *head,
                          attention_range rows, attention_range keys)
{
    const attention_desc *desc = &attention->desc;
    attention_range seen =
        cpui_attention_keys(attention, head->mask, rows.begin, rows.end - rows.begin);
    seen.begin = size_max(seen.begin, keys.begin);
    seen.end = size_min(seen.end, keys.end);
    if (seen.begin >= seen.end)
        return;
    struct block_pair pair = {.rows = rows,
                              .keys = seen,
                              .key_offset = seen.begin - keys.begin,
                              .q_elem = head->q_elem + rows.begin * desc->qkv_stride,
                              .out_elem =
                                  head->out_elem + rows.begin * desc->heads * desc->value_dim,
                              .lse = head->lse + rows.begin};
    score_block block =
        cpui_attention_scores(attention, head->mask, head->drop, worker, rows, seen);
    if (attention->by_dots)
        backward_dots(attention, args, worker, &pair, &block);
    else
        backward_products(attention, args, worker, &pair, &block);
}

/* One key block, from key `key` on, and all query blocks of a head that see it. */
static void backward_keys(const kernel_attention *attention, const attention_pass *args,
                          attention_worker *worker, const struct head_place *head, uint64_t key)
{
    const attention_desc *desc = &attention->desc;
    uint64_t stride = desc->qkv_stride, unit = attention->query_rows;
    uint64_t count = size_min(attention->key_rows, desc->tokens - key);
    uint64_t k_elem = head->k_elem + key * stride, v_elem = head->v_elem + key * stride;
    cpui_attention_prepare_keys(attention, worker, args->k, args->v, k_elem, v_elem, count);
    attention_range keys = {key, key + count};
    attention_range queries = attention_queries_of_block(head->mask, keys.begin, keys.end);
    for (uint64_t row = queries.begin / unit * unit; row < queries.end; row += unit) {
        attention_range rows = {row, size_min(row + unit, desc->tokens)};
        backward_pair(attention, args, worker, head, rows, keys);
    }
}

/* One query head: adds to dK and dV, and writes dQ. */
static void backward_head(const kernel_attention *attention, const attention_pass *args,
                          attention_worker *worker, uint64_t batch, uint64_t head, uint64_t kv_head)
{
    const attention_desc *desc = &attention->desc;
    uint64_t dim = desc->head_dim, value_dim = desc->value_dim, tokens = desc->tokens;
    uint64_t out_stride = desc->heads * value_dim;
    uint64_t first = batch * tokens * desc->qkv_stride;
    attention_mask mask = attention_mask_of(desc, attention->begins, batch);
    attention_drop drop;
    struct head_place whole = {.mask = &mask,
                               .drop =
                                   attention_drop_of(desc, &attention->masks, batch, head, &drop),
                               .q_elem = first + head * dim,
                               .out_elem = batch * tokens * out_stride + head * value_dim,
                               .k_elem = first + kv_head * dim,
                               .v_elem = first + kv_head * value_dim,
                               .lse = args->lse + (batch * desc->heads + head) * tokens};
    for (uint64_t row = 0; row < tokens; row++) {
        uint64_t elem = whole.out_elem + row * out_stride;
        worker->delta[row] = attention->rows->dot(attention_at(attention, args->output_grad, elem),
                                                  attention_at(attention, args->output, elem),
                                                  desc->type, value_dim);
    }
    memset(worker->query_grads, 0, tokens * attention->head_stride * sizeof *worker->query_grads);
    for (uint64_t key = 0; key < tokens; key += attention->key_rows)
        backward_keys(attention, args, worker, &whole, key);
    store_rows(attention, worker->query_grads, dim, args->q_grad, whole.q_elem);
}

static void backward_task(const kernel_attention *attention, const attention_pass *args,
                          attention_worker *worker, uint64_t batch, uint64_t kv_head)
{
    const attention_desc *desc = &attention->desc;
    size_t sums_bytes = desc->tokens * attention->head_stride * sizeof *worker->key_grads;
    memset(worker->key_grads, 0, sums_bytes);
    memset(worker->value_grads, 0, sums_bytes);
    uint64_t group = desc->heads / desc->kv_heads;
    for (uint64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        backward_head(attention, args, worker, batch, head, kv_head);
    uint64_t first = batch * desc->tokens * desc->qkv_stride;
    store_rows(attention, worker->key_grads, desc->head_dim, args->k_grad,
               first + kv_head * desc->head_dim);
    store_rows(attention, worker->value_grads, desc->value_dim, args->v_grad,
               first + kv_head * desc->value_dim);
}

static void run_task(const kernel_attention *attention, const void *args, attention_worker *worker,
                     uint64_t task)
{
    uint64_t kv_heads = attention->desc.kv_heads;
    backward_task(attention, args, worker, task / kv_heads, task % kv_heads);
}

int cpui_attention_backward(kernel_attention *attention, void *stream, const void *q, const void *k,
                            const void *v, const void *output, const float *lse,
                            const void *output_grad, void *q_grad, void *k_grad, void *v_grad,
                            void *scratch)
{
    const attention_desc *desc = &attention->desc;
    const attention_pass pass = {.desc = desc,
                                 .begins = attention->begins,
                                 .masks = attention->masks,
                                 .rows = attention->rows,
                                 .thread_count = attention->threads,
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
    if (attention->by_tiles) {
        cpui_attention_amx_backward(&pass);
        return 0;
    }
    return cpui_attention_run(attention, true, scratch, desc->batch * desc->kv_heads, run_task,
                              &pass);
}
