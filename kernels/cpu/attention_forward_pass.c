/* The forward pass of block-wise attention: the online softmax (Milakov and Gimelshein 2018; Dao et
 * al., FlashAttention, 2022).
 *
 * For each block of query rows, and for each of its key blocks: S = Q K^T, P = exp(S - running
 * maximum), O = O * correction + P V. One task is a few adjacent query blocks of one head. Key
 * blocks are the outer loop, so that each is prepared once for all of them: rows of long sequences
 * lie far apart, in memory rather than in cache. OpenMP threads take tasks in any order, and each
 * task runs its products on its own thread only. A query block is computed as if it were alone. So
 * neither the number of threads, nor their timing, nor the length of tasks changes a bit. */
#include <math.h>
#include <string.h>

#include "base/size.h"
#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_internal.h"

/* Adjacent query blocks of a head whose keys begin at the same place. */
struct team {
    const attention_mask *mask;
    const attention_drop *drop; /* or NULL */
    attention_range rows;
    uint64_t first_key;
    /* elements of the tensors where the head begins: in the first row, and of k and v in key 0 */
    uint64_t q_elem, k_elem, v_elem, out_elem;
    float *lse; /* of the first row */
};

static attention_range block_keys(const kernel_attention *attention, const attention_mask *mask,
                                  uint64_t block)
{
    return cpui_attention_keys(attention, mask, block * attention->query_rows,
                               attention_block_rows(attention, block));
}

/* Prepares the queries of a team, and clears what their key blocks add to. */
static void begin_rows(const kernel_attention *attention, const attention_pass *args,
                       attention_worker *worker, struct team *team)
{
    const attention_desc *desc = &attention->desc;
    uint64_t rows = team->rows.end - team->rows.begin;
    if (attention->by_dots) {
        dots_rows query = attention_dots_rows(args->q, team->q_elem, desc->qkv_stride, rows);
        cpui_attention_dots_queries(&worker->dots, &query, NULL);
    } else {
        cpui_attention_operand(attention, args->q, team->q_elem, desc->qkv_stride, rows,
                               desc->head_dim, worker->dense_q);
    }
    for (uint64_t row = 0; row < rows; row++) {
        worker->row_max[row] = -INFINITY;
        worker->row_sum[row] = 0.0f;
    }
    memset(worker->output, 0, rows * attention->head_stride * sizeof *worker->output);
}

/* Rounds the finished rows of a team into the caller's output and lse. */
static void finish_rows(const kernel_attention *attention, const attention_pass *args,
                        const attention_worker *worker, const struct team *team)
{
    const attention_desc *desc = &attention->desc;
    for (uint64_t row = 0; row < team->rows.end - team->rows.begin; row++) {
        uint64_t elem = team->out_elem + row * desc->heads * desc->value_dim;
        float sum = worker->row_sum[row];
        attention->rows->store(worker->output + row * attention->head_stride, 1.0f / sum,
                               (void *)attention_at(attention, args->output, elem), desc->type,
                               desc->value_dim);
        team->lse[row] = worker->row_max[row] + logf(sum);
    }
}

/* One query block of a team, and the keys [key, key_end) of the prepared key block, which begins
 * with them. */
static void forward_block(const kernel_attention *attention, attention_worker *worker,
                          const struct team *team, attention_range rows, uint64_t key,
                          uint64_t key_end)
{
    const attention_desc *desc = &attention->desc;
    uint64_t first = rows.begin - team->rows.begin;
    score_block block = cpui_attention_scores(attention, team->mask, team->drop, worker, rows,
                                              (attention_range){key, key_end});
    softmax_state state = {worker->row_max + first, worker->row_sum + first,
                           worker->output + first * attention->head_stride, attention->head_stride};
    if (attention->by_dots) {
        cpui_attention_dots_forward(&worker->dots, &block, first, &state);
        return;
    }
    const block_shape *shape = cpui_attention_shape(attention, block.rows, block.cols);
    cpui_attention_product(worker, shape, PRODUCT_SCORES,
                           attention_dense_row(attention, worker->dense_q, first, desc->head_dim),
                           worker->dense_k, worker->scores);
    attention->rows->softmax(&block, &state);
    cpui_attention_product(worker, shape, PRODUCT_OUTPUT, worker->scores, worker->dense_v,
                           state.output);
}

static void forward_team(const kernel_attention *attention, const attention_pass *args,
                         attention_worker *worker, struct team *team)
{
    const attention_desc *desc = &attention->desc;
    uint64_t unit = attention->query_rows;
    uint64_t end = block_keys(attention, team->mask, (team->rows.end - 1) / unit).end;
    begin_rows(attention, args, worker, team);
    for (uint64_t key = team->first_key; key < end; key += attention->key_rows) {
        cpui_attention_prepare_keys(
            attention, worker, args->k, args->v, team->k_elem + key * desc->qkv_stride,
            team->v_elem + key * desc->qkv_stride, size_min(attention->key_rows, end - key));
        for (uint64_t row = team->rows.begin; row < team->rows.end; row += unit) {
            attention_range rows = {row, size_min(row + unit, team->rows.end)};
            uint64_t seen = block_keys(attention, team->mask, row / unit).end;
            if (key < seen)
                forward_block(attention, worker, team, rows, key,
                              size_min(key + attention->key_rows, seen));
        }
    }
    finish_rows(attention, args, worker, team);
}

/* The query blocks [block, block_end) of a head: those whose keys begin at the same place form a
 * team. The ends of their keys never fall. */
static void forward_task(const kernel_attention *attention, const attention_pass *args,
                         attention_worker *worker, uint64_t batch, uint64_t head, uint64_t block,
                         uint64_t block_end)
{
    const attention_desc *desc = &attention->desc;
    uint64_t unit = attention->query_rows, stride = desc->qkv_stride;
    uint64_t kv_head = head / (desc->heads / desc->kv_heads);
    uint64_t batch_first = batch * desc->tokens * stride;
    attention_mask mask = attention_mask_of(desc, attention->begins, batch);
    attention_drop drop_of;
    struct team team = {.mask = &mask,
                        .drop = attention_drop_of(desc, &attention->masks, batch, head, &drop_of),
                        .k_elem = batch_first + kv_head * desc->head_dim,
                        .v_elem = batch_first + kv_head * desc->value_dim};
    while (block < block_end) {
        uint64_t row = block * unit;
        team.first_key = block_keys(attention, &mask, block).begin;
        do
            block++;
        while (block < block_end && block_keys(attention, &mask, block).begin == team.first_key);
        team.rows = (attention_range){row, size_min(block * unit, desc->tokens)};
        team.q_elem = batch_first + row * stride + head * desc->head_dim;
        team.out_elem = ((batch * desc->tokens + row) * desc->heads + head) * desc->value_dim;
        team.lse = args->lse + (batch * desc->heads + head) * desc->tokens + row;
        forward_team(attention, args, worker, &team);
    }
}

/* Tasks of a head. */
static uint64_t head_tasks(const kernel_attention *attention)
{
    return size_div_up(attention->query_block_count, attention->team_blocks);
}

/* The longest blocks of a head come first, so that the last tasks to finish are short. */
static void run_task(const kernel_attention *attention, const void *args, attention_worker *worker,
                     uint64_t task)
{
    uint64_t heads = attention->desc.heads, step = attention->team_blocks;
    uint64_t head = task / head_tasks(attention);
    uint64_t end = attention->query_block_count - task % head_tasks(attention) * step;
    forward_task(attention, args, worker, head / heads, head % heads, end > step ? end - step : 0,
                 end);
}

int cpui_attention_forward(kernel_attention *attention, void *stream, const void *q, const void *k,
                           const void *v, void *output, float *lse, void *scratch)
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
                                 .output = output,
                                 .lse = lse,
                                 .scratch = scratch};
    if (attention->by_tiles) {
        cpui_attention_amx_forward(&pass);
        return 0;
    }
    uint64_t tasks = desc->batch * desc->heads * head_tasks(attention);
    return cpui_attention_run(attention, false, scratch, tasks, run_task, &pass);
}
