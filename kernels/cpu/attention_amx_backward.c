/* The backward pass of attention_amx.h (Dao et al., FlashAttention, 2022, section 3.1), transposed.
 * It loops over the query heads of a group in order, over their blocks of BLOCK_ROWS queries, and
 * over strips of 32 keys:
 *   S' = K Q',  P' = exp2(S' c - lse log2(e)),  c = scale * log2(e),
 *   dP' = V dO',  dS' = P' * (dP' - rowsum(dO * O)),
 *   dV += P' dO,  dK += dS' Q * scale,  dQ' += K' dS' * scale.
 * scale is applied once, when dK and dQ are rounded. With dropout, elements of dP' are zero, and in
 * the product for dV those of P'; what is kept is scaled in dP' and at the end in dV. One task is
 * one key/value head of one sequence. */
#include <assert.h>
#include <omp.h>

#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_amx_tiles.h"

enum {
    BLOCK_ROWS = 128, /* queries of a block: the depth of the sums of dK and dV */
    CHUNK_STRIPS = 4, /* strips of 32 keys: the depth of the sums of dQ */
    BLOCK_COLUMNS = BLOCK_ROWS / TILE_DEPTH,
    BLOCK_TILES = BLOCK_ROWS / TILE,
    STRIP_SUMS = 4 * TILE_SUMS,
};

/* The scratch of one thread. */
struct backward_worker {
    uint16_t *keys, *values;      /* left tiles [T/16][D/32] of K, [T/16][E/32] of V */
    uint16_t *key_columns;        /* left tiles [D/16][T/32] of K' */
    float *key_sums, *value_sums; /* sum tiles [T/16][D/16] of dK, [T/16][E/16] of dV */
    uint16_t *query, *grad; /* right tiles [BLOCK_TILES][D/32] of Q', [BLOCK_TILES][E/32] of dO' */
    /* right tiles [D/16][BLOCK_COLUMNS] of Q, [E/16][BLOCK_COLUMNS] of dO */
    uint16_t *query_depth, *grad_depth;
    uint16_t *probs, *score_grads; /* left tiles [2][BLOCK_COLUMNS] of a strip's P' and dS' */
    /* right tiles [BLOCK_TILES][CHUNK_STRIPS] of dS'; see grad_strip */
    uint16_t *score_grads_depth;
    /* sum tiles [D/16][BLOCK_TILES] of dQ', columns in the order of grad_strip */
    float *query_sums;
    float *scores, *prob_grads; /* two times the sum tiles [2][2] of S' and dP' */
    float *lse, *delta; /* [BLOCK_ROWS]; lse is multiplied by log2(e); 0 after the last row */
};

/* One block of queries of one head. */
struct backward_block {
    const attention_mask *mask;
    const attention_drop *drop;                     /* or NULL */
    uint64_t batch, head, first_row, rows, columns; /* columns: groups of 32 queries */
    bool opens_group; /* this is the first head of the group, so the sums start from zero */
};

/* The strips of keys that the queries of the block from `row` to `end` see. */
static attention_range strips_seen(const struct backward_block *block, uint64_t row, uint64_t end)
{
    attention_range keys = attention_keys_of_block(block->mask, block->first_row + row,
                                                   block->first_row + size_min(end, block->rows));
    return (attention_range){keys.begin / TILE_DEPTH, size_div_up(keys.end, TILE_DEPTH)};
}

static size_t worker_layout(const attention_desc *desc, char *base, struct backward_worker *worker)
{
    uint64_t strips = size_div_up(desc->tokens, TILE_DEPTH);
    uint64_t chunks = size_div_up(desc->head_dim, TILE_DEPTH);
    uint64_t value_chunks = size_div_up(desc->value_dim, TILE_DEPTH);
    size_t offset = 0, head_bytes = 2048 * strips * chunks;
    size_t value_bytes = 2048 * strips * value_chunks;
    size_t block_bytes = 2048 * chunks * BLOCK_COLUMNS;
    size_t grad_bytes = 2048 * value_chunks * BLOCK_COLUMNS;
    worker->keys = cpui_take(base, &offset, head_bytes);
    worker->values = cpui_take(base, &offset, value_bytes);
    worker->key_columns = cpui_take(base, &offset, head_bytes);
    worker->key_sums = cpui_take(base, &offset, 2 * head_bytes);
    worker->value_sums = cpui_take(base, &offset, 2 * value_bytes);
    worker->query = cpui_take(base, &offset, block_bytes);
    worker->grad = cpui_take(base, &offset, grad_bytes);
    worker->query_depth = cpui_take(base, &offset, block_bytes);
    worker->grad_depth = cpui_take(base, &offset, grad_bytes);
    worker->probs = cpui_take(base, &offset, 2048 * BLOCK_COLUMNS);
    worker->score_grads = cpui_take(base, &offset, 2048 * BLOCK_COLUMNS);
    worker->score_grads_depth = cpui_take(base, &offset, 1024 * BLOCK_TILES * CHUNK_STRIPS);
    worker->query_sums = cpui_take(base, &offset, 2 * block_bytes);
    worker->scores = cpui_take(base, &offset, 2 * 4 * STRIP_SUMS);
    worker->prob_grads = cpui_take(base, &offset, 2 * 4 * STRIP_SUMS);
    worker->lse = cpui_take(base, &offset, 4 * BLOCK_ROWS);
    worker->delta = cpui_take(base, &offset, 4 * BLOCK_ROWS);
    return offset;
}

size_t cpui_attention_amx_backward_bytes(const attention_desc *desc)
{
    struct backward_worker worker;
    return worker_layout(desc, NULL, &worker);
}

/* The targets of a strip of 32 keys by 32 queries. */
struct strip_targets {
    /* left tiles of rows [0,16); those of rows [16,32) are BLOCK_COLUMNS tiles later */
    uint16_t *probs, *score_grads;
    uint16_t *depth; /* the first right tile; the second is CHUNK_STRIPS tiles later */
};

/* Computes P' and dS' of 32 keys by 32 queries; `kept` may be NULL. The right tiles are interleaved
 * within 128 bits, which takes only one step, but puts query 8*i + 4*tile + j (i, j < 4) into
 * column 4*i + j. query_finish puts the sums back in order. */
static inline __attribute__((always_inline)) void
grad_strip(const float *scores, const float *prob_grads, const uint32_t *lanes,
           const uint32_t *kept, __m512 factor, const float *lse, const float *delta,
           const struct strip_targets *targets)
{
    __m512 lse_of[2] = {_mm512_loadu_ps(lse), _mm512_loadu_ps(lse + TILE)};
    __m512 delta_of[2] = {_mm512_loadu_ps(delta), _mm512_loadu_ps(delta + TILE)};
    for (uint64_t key = 0; key < TILE_DEPTH; key += 2) {
        size_t at = key / TILE * 2 * TILE_SUMS + key % TILE * TILE;
        size_t row = key / TILE * BLOCK_COLUMNS * TILE_HALVES + key % TILE * TILE_DEPTH;
        __m512i grads[2];
#pragma GCC unroll 2
        for (uint64_t odd = 0; odd < 2; odd++, at += TILE, row += TILE_DEPTH) {
            __m512 p[2], ds[2];
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                size_t from = at + (size_t)half * TILE_SUMS;
                p[half] = exp2_lanes(
                    _mm512_fmsub_ps(_mm512_loadu_ps(scores + from), factor, lse_of[half]));
                if (lanes)
                    p[half] = _mm512_maskz_mov_ps(seen(lanes, key + odd, half), p[half]);
                ds[half] = _mm512_mul_ps(
                    p[half], _mm512_sub_ps(_mm512_loadu_ps(prob_grads + from), delta_of[half]));
                if (lanes)
                    ds[half] = _mm512_maskz_mov_ps(seen(lanes, key + odd, half), ds[half]);
                if (kept)
                    p[half] = _mm512_maskz_mov_ps(seen(kept, key + odd, half), p[half]);
            }
            grads[odd] = to_halves(ds[0], ds[1]);
            _mm512_storeu_si512(targets->probs + row, to_halves(p[0], p[1]));
            _mm512_storeu_si512(targets->score_grads + row, grads[odd]);
        }
        uint16_t *depth = targets->depth + key * TILE;
        _mm512_storeu_si512(depth, _mm512_unpacklo_epi16(grads[0], grads[1]));
        _mm512_storeu_si512(depth + CHUNK_STRIPS * TILE_HALVES,
                            _mm512_unpackhi_epi16(grads[0], grads[1]));
    }
}

/* Computes S' and dP' of a strip of keys by 32 queries, alternately into one of two buffers. */
static inline void scores_strip(const struct backward_worker *worker, uint64_t chunks,
                                uint64_t value_chunks, uint64_t strip, uint64_t column)
{
    size_t step = chunks * TILE_HALVES, value_step = value_chunks * TILE_HALVES;
    size_t at = column % 2 * STRIP_SUMS;
    tiles_product(worker->keys + 2 * strip * step, step, worker->query + 2 * column * step, step,
                  chunks, worker->scores + at, 2 * TILE_SUMS, true);
    tiles_product(worker->values + 2 * strip * value_step, value_step,
                  worker->grad + 2 * column * value_step, value_step, value_chunks,
                  worker->prob_grads + at, 2 * TILE_SUMS, true);
}

/* Adds the products of a strip's P' or dS' with dO or Q, over the columns [first, end), to the
 * strip's dV or dK. */
static inline void add_sums(const uint16_t *left, const uint16_t *right, uint64_t first,
                            uint64_t end, uint64_t chunks, uint64_t strip, float *sums, bool fresh)
{
    size_t left_step = BLOCK_COLUMNS * TILE_HALVES, sums_step = 2 * chunks * TILE_SUMS;
    for (uint64_t tile = 0; tile < 2 * chunks; tile += 2)
        tiles_product(left + first * TILE_HALVES, left_step,
                      right + (tile * BLOCK_COLUMNS + first) * TILE_HALVES, left_step, end - first,
                      sums + 2 * strip * sums_step + tile * TILE_SUMS, sums_step, fresh);
}

/* One strip of 32 keys and the queries of the block that see it. Adds to dK and dV of the strip. */
static void backward_strip(const attention_desc *desc, const struct backward_worker *worker,
                           const struct backward_block *block, uint64_t strip)
{
    uint64_t key = strip * TILE_DEPTH, block_end = block->first_row + block->rows;
    attention_range queries =
        attention_queries_of_block(block->mask, key, size_min(key + TILE_DEPTH, desc->tokens));
    uint64_t first = size_max(queries.begin, block->first_row) - block->first_row;
    uint64_t end = size_min(queries.end, block_end) - block->first_row;
    first /= TILE_DEPTH;
    end = size_div_up(end, TILE_DEPTH);
    uint64_t chunks = size_div_up(desc->head_dim, TILE_DEPTH);
    uint64_t value_chunks = size_div_up(desc->value_dim, TILE_DEPTH);
    __m512 factor = _mm512_set1_ps(desc->scale * LOG2E);
    scores_strip(worker, chunks, value_chunks, strip, first);
    for (uint64_t column = first; column < end; column++) {
        if (column + 1 < end) /* one column ahead: tiles and vectors overlap in time */
            scores_strip(worker, chunks, value_chunks, strip, column + 1);
        tiles_fence();
        size_t at = column % 2 * STRIP_SUMS;
        struct strip_targets targets = {
            worker->probs + column * TILE_HALVES, worker->score_grads + column * TILE_HALVES,
            worker->score_grads_depth +
                (2 * column * CHUNK_STRIPS + strip % CHUNK_STRIPS) * TILE_HALVES};
        const float *lse = worker->lse + column * TILE_DEPTH;
        const float *delta = worker->delta + column * TILE_DEPTH;
        uint32_t lanes_of[TILE_DEPTH], kept[TILE_DEPTH];
        uint64_t row = block->first_row + column * TILE_DEPTH;
        const uint32_t *lanes = strip_lanes(block->mask, row, key, lanes_of);
        if (block->drop) {
            strip_kept(block->drop, row, key, kept);
            strip_drop(worker->prob_grads + at, kept, block->drop->scale);
        }
        if (desc->soft_cap > 0.0f)
            strip_cap(desc, worker->scores + at, worker->prob_grads + at, delta);
        if (block->drop)
            grad_strip(worker->scores + at, worker->prob_grads + at, lanes, kept, factor, lse,
                       delta, &targets);
        else if (lanes)
            grad_strip(worker->scores + at, worker->prob_grads + at, lanes, NULL, factor, lse,
                       delta, &targets);
        else
            grad_strip(worker->scores + at, worker->prob_grads + at, NULL, NULL, factor, lse, delta,
                       &targets);
        tiles_fence();
    }
    /* this block has the first query of all that see the strip */
    bool fresh = block->opens_group && queries.begin >= block->first_row;
    add_sums(worker->probs, worker->grad_depth, first, end, value_chunks, strip, worker->value_sums,
             fresh);
    add_sums(worker->score_grads, worker->query_depth, first, end, chunks, strip, worker->key_sums,
             fresh);
    tiles_fence();
}

/* Adds the part of the chunk of strips from `begin` on to dQ'. */
static void query_chunk(const attention_desc *desc, const struct backward_worker *worker,
                        const struct backward_block *block, uint64_t begin)
{
    uint64_t chunks = size_div_up(desc->head_dim, TILE_DEPTH);
    size_t left_step = size_div_up(desc->tokens, TILE_DEPTH) * TILE_HALVES;
    size_t right_step = CHUNK_STRIPS * TILE_HALVES;
    for (uint64_t column = 0; column < block->columns; column++) {
        attention_range seen = strips_seen(block, column * TILE_DEPTH, (column + 1) * TILE_DEPTH);
        uint64_t first = size_max(seen.begin, begin);
        uint64_t end = size_min(seen.end, begin + CHUNK_STRIPS);
        if (first >= end)
            continue;
        for (uint64_t tile = 0; tile < 2 * chunks; tile += 2)
            tiles_product(worker->key_columns + tile * left_step + first * TILE_HALVES, left_step,
                          worker->score_grads_depth + 2 * column * right_step +
                              first % CHUNK_STRIPS * TILE_HALVES,
                          right_step, end - first,
                          worker->query_sums + (tile * BLOCK_TILES + 2 * column) * TILE_SUMS,
                          BLOCK_TILES * TILE_SUMS, first == seen.begin);
    }
    tiles_fence();
}

/* Rounds dQ * scale into the gradient of the caller. */
static void query_finish(const attention_pass *pass, const struct backward_worker *worker,
                         const struct backward_block *block)
{
    const attention_desc *desc = pass->desc;
    uint64_t dim = desc->head_dim;
    __m512 scale = _mm512_set1_ps(desc->scale);
    uint16_t *target = (uint16_t *)pass->q_grad +
                       (block->batch * desc->tokens + block->first_row) * desc->qkv_stride +
                       block->head * dim;
    for (uint64_t tile = 0; tile * TILE < dim; tile++)
        for (uint64_t column = 0; column < 2 * block->columns; column++) {
            const float *sums = worker->query_sums + (tile * BLOCK_TILES + column) * TILE_SUMS;
            __m512i r[TILE];
#pragma GCC unroll 16
            for (int i = 0; i < TILE; i++)
                r[i] = (__m512i)_mm512_mul_ps(_mm512_loadu_ps(sums + i * TILE), scale);
            transpose(r);
#pragma GCC unroll 16
            for (uint64_t i = 0; i < TILE; i++) {
                uint64_t row = column / 2 * TILE_DEPTH + i / 4 * 8 + column % 2 * 4 + i % 4;
                if (row < block->rows)
                    store_halves(target + row * desc->qkv_stride + tile * TILE, (__m512)r[i],
                                 dim - tile * TILE);
            }
        }
}

/* Rounds dK or dV of a head of `dim` elements, times `scale`, into the gradient of the caller. */
static void key_finish(const attention_desc *desc, uint64_t dim, const float *sums, float scale,
                       uint16_t *target)
{
    uint64_t tiles = 2 * size_div_up(dim, TILE_DEPTH);
    __m512 factor = _mm512_set1_ps(scale);
    for (uint64_t row = 0; row < desc->tokens; row++)
        for (uint64_t tile = 0; tile * TILE < dim; tile++)
            store_halves(target + row * desc->qkv_stride + tile * TILE,
                         _mm512_mul_ps(factor, _mm512_loadu_ps(
                                                   sums + (row / TILE * tiles + tile) * TILE_SUMS +
                                                   row % TILE * TILE)),
                         dim - tile * TILE);
}

static void backward_block(const attention_pass *pass, const struct backward_worker *worker,
                           const struct backward_block *block)
{
    const attention_desc *desc = pass->desc;
    uint64_t dim = desc->head_dim, chunks = size_div_up(dim, TILE_DEPTH);
    uint64_t value_dim = desc->value_dim, value_chunks = size_div_up(value_dim, TILE_DEPTH);
    uint64_t row = block->batch * desc->tokens + block->first_row;
    uint64_t out_stride = desc->heads * value_dim;
    uint64_t out = row * out_stride + block->head * value_dim;
    struct head_rows query = {(const uint16_t *)pass->q + row * desc->qkv_stride +
                                  block->head * dim,
                              desc->qkv_stride, block->rows, dim};
    struct head_rows grad = {(const uint16_t *)pass->output_grad + out, out_stride, block->rows,
                             value_dim};
    uint64_t rows = block->columns * TILE_DEPTH;
    pack_right(&query, rows, chunks, worker->query);
    pack_right(&grad, rows, value_chunks, worker->grad);
    pack_depth(&query, rows, chunks, BLOCK_COLUMNS, false, worker->query_depth);
    pack_depth(&grad, rows, value_chunks, BLOCK_COLUMNS, false, worker->grad_depth);
    const float *lse =
        pass->lse + (block->batch * desc->heads + block->head) * desc->tokens + block->first_row;
    memset(worker->lse, 0, sizeof *lse * BLOCK_ROWS);
    memset(worker->delta, 0, sizeof *lse * BLOCK_ROWS);
    for (uint64_t i = 0; i < block->rows; i++) {
        worker->lse[i] = lse[i] * LOG2E;
        worker->delta[i] = pass->rows->dot(grad.first + i * out_stride,
                                           (const uint16_t *)pass->output + out + i * out_stride,
                                           DTYPE_BF16, value_dim);
    }
    tiles_fence();
    attention_range seen = strips_seen(block, 0, block->rows);
    for (uint64_t begin = seen.begin / CHUNK_STRIPS * CHUNK_STRIPS; begin < seen.end;
         begin += CHUNK_STRIPS) {
        uint64_t end = size_min(begin + CHUNK_STRIPS, seen.end);
        for (uint64_t strip = size_max(begin, seen.begin); strip < end; strip++)
            backward_strip(desc, worker, block, strip);
        query_chunk(desc, worker, block, begin);
    }
    query_finish(pass, worker, block);
}

static void backward_task(const attention_pass *pass, const struct backward_worker *worker,
                          uint64_t batch, uint64_t kv_head)
{
    const attention_desc *desc = pass->desc;
    uint64_t tokens = desc->tokens, dim = desc->head_dim, value_dim = desc->value_dim;
    uint64_t group = desc->heads / desc->kv_heads;
    uint64_t strips = size_div_up(tokens, TILE_DEPTH), chunks = size_div_up(dim, TILE_DEPTH);
    uint64_t first = batch * tokens * desc->qkv_stride;
    uint64_t key = first + kv_head * dim, value = first + kv_head * value_dim;
    attention_mask mask = attention_mask_of(desc, pass->begins, batch);
    struct head_rows keys = {(const uint16_t *)pass->k + key, desc->qkv_stride, tokens, dim};
    struct head_rows values = {(const uint16_t *)pass->v + value, desc->qkv_stride, tokens,
                               value_dim};
    pack_left(&keys, strips * TILE_DEPTH, chunks, worker->keys);
    pack_left(&values, strips * TILE_DEPTH, size_div_up(value_dim, TILE_DEPTH), worker->values);
    pack_depth(&keys, strips * TILE_DEPTH, chunks, strips, true, worker->key_columns);
    attention_drop drop_of;
    const attention_drop *drop = NULL;
    for (uint64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (uint64_t row = 0; row < tokens; row += BLOCK_ROWS) {
            uint64_t rows = size_min(BLOCK_ROWS, tokens - row);
            drop = attention_drop_of(pass->desc, &pass->masks, batch, head, &drop_of);
            struct backward_block block = {&mask,
                                           drop,
                                           batch,
                                           head,
                                           row,
                                           rows,
                                           size_div_up(rows, TILE_DEPTH),
                                           head == kv_head * group};
            backward_block(pass, worker, &block);
        }
    key_finish(desc, dim, worker->key_sums, desc->scale, (uint16_t *)pass->k_grad + key);
    key_finish(desc, value_dim, worker->value_sums, drop ? drop->scale : 1.0f,
               (uint16_t *)pass->v_grad + value);
}

void cpui_attention_amx_backward(const attention_pass *pass)
{
    const attention_desc *desc = pass->desc;
    size_t worker_bytes = cpui_attention_amx_backward_bytes(desc);
#pragma omp parallel num_threads(pass->thread_count)
    {
        struct backward_worker worker;
        worker_layout(desc, (char *)pass->scratch + (size_t)omp_get_thread_num() * worker_bytes,
                      &worker);
        tiles_begin();
#pragma omp for schedule(dynamic, 1)
        for (uint64_t task = 0; task < desc->batch * desc->kv_heads; task++)
            backward_task(pass, &worker, task / desc->kv_heads, task % desc->kv_heads);
        tiles_end();
    }
}
