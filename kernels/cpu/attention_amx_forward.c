/* The forward pass of attention_amx.h: online softmax (Milakov and Gimelshein 2018; Dao et al.,
 * FlashAttention, 2022) over blocks of 32 query rows and chunks of CHUNK_KEYS keys:
 *   S' = K Q',  P' = exp2(S' c - max),  O' = O' * correction + V' P',   c = scale * log2(e).
 * With dropout, elements of P' are zero in the product; what is kept is scaled in O' at the end.
 * Blocks of 32 by 32 scores that no query sees are never computed; blocks at the ends of what the
 * queries see are masked.
 *
 * A task is one key/value head of one sequence. If there are few heads, each is divided into
 * several tasks, which take its query blocks in turn. BUNCH blocks go through the keys together, so
 * that a chunk which comes from memory serves all of them. */
#include <assert.h>
#include <math.h>
#include <omp.h>

#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_amx_tiles.h"

enum {
    CHUNK_KEYS = 256, /* 32 KiB of scores stay in the first-level cache */
    CHUNK_STRIPS = CHUNK_KEYS / TILE_DEPTH,
    BUNCH = 8,          /* query blocks that use a chunk in turn; see forward_bunch */
    TASKS_A_THREAD = 4, /* heads are divided if they give a thread fewer tasks */
    STRIP_SUMS = 4 * TILE_SUMS,
};

/* The scratch of one thread. */
struct forward_worker {
    uint16_t *keys;   /* left tiles [T/16][D/32] of K */
    uint16_t *values; /* left tiles [E/16][T/32] of V' */
    uint16_t *probs;  /* right tiles [2][CHUNK_STRIPS] of P' */
    float *scores;    /* sum tiles [CHUNK_STRIPS][2][2] of S' */
    uint16_t *query;  /* [BUNCH] times right tiles [2][D/32] of Q' */
    float *output;    /* [BUNCH] times sum tiles [E/16][2] of O' */
};

/* The state of 32 queries, one in each lane. */
struct forward_state {
    uint16_t *query;            /* their tiles in the scratch */
    float *output;              /* the same */
    const attention_drop *drop; /* or NULL */
    uint64_t first_row;
    attention_range strips;    /* of keys that they see */
    bool is_fresh;             /* no chunk has come yet: output holds nothing */
    __m512 largest[2], sum[2]; /* largest: of the scores times c; sum: of their exponentials */
};

static size_t worker_layout(const attention_desc *desc, char *base, struct forward_worker *worker)
{
    uint64_t strips = size_div_up(desc->tokens, TILE_DEPTH);
    uint64_t chunks = size_div_up(desc->head_dim, TILE_DEPTH);
    uint64_t value_chunks = size_div_up(desc->value_dim, TILE_DEPTH);
    size_t offset = 0;
    worker->keys = cpui_take(base, &offset, 2048 * strips * chunks);
    worker->values = cpui_take(base, &offset, 2048 * strips * value_chunks);
    worker->probs = cpui_take(base, &offset, 2048 * CHUNK_STRIPS);
    worker->scores = cpui_take(base, &offset, 4096 * CHUNK_STRIPS);
    worker->query = cpui_take(base, &offset, BUNCH * 2048 * chunks);
    worker->output = cpui_take(base, &offset, BUNCH * 4096 * value_chunks);
    return offset;
}

size_t cpui_attention_amx_forward_bytes(const attention_desc *desc)
{
    struct forward_worker worker;
    return worker_layout(desc, NULL, &worker);
}

/* Raises `largest` by the scores of a strip. NaN is ignored here, since the exponentials show
 * it. */
static inline void strip_largest(const float *scores, const uint32_t *lanes, __m512 largest[2])
{
    __m512 best[4] = {largest[0], largest[1], largest[0], largest[1]};
    for (uint64_t key = 0; key < TILE_DEPTH; key += 2) {
        const float *row = scores + key / TILE * 2 * TILE_SUMS + key % TILE * TILE;
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            __m512 score = _mm512_loadu_ps(row + (i & 1) * TILE_SUMS + (i >> 1) * TILE);
            best[i] = _mm512_mask_max_ps(best[i], seen(lanes, key + (uint64_t)(i >> 1), i & 1),
                                         score, best[i]);
        }
    }
    largest[0] = _mm512_max_ps(best[0], best[2]);
    largest[1] = _mm512_max_ps(best[1], best[3]);
}

/* Computes one strip of P' from its scores and adds its exponentials to sum[4]. `kept` may be
 * NULL. */
static inline __attribute__((always_inline)) void
strip_probs(const float *scores, const uint32_t *lanes, const uint32_t *kept, __m512 factor,
            const __m512 offset[2], __m512 sum[4], uint16_t *probs)
{
    const __m512i pairs =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (uint64_t key = 0; key < TILE_DEPTH; key += 2) {
        const float *row = scores + key / TILE * 2 * TILE_SUMS + key % TILE * TILE;
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const float *score = row + half * TILE_SUMS;
            __m512 a = exp2_lanes(_mm512_fmadd_ps(_mm512_loadu_ps(score), factor, offset[half]));
            __m512 b =
                exp2_lanes(_mm512_fmadd_ps(_mm512_loadu_ps(score + TILE), factor, offset[half]));
            if (lanes) {
                a = _mm512_maskz_mov_ps(seen(lanes, key, half), a);
                b = _mm512_maskz_mov_ps(seen(lanes, key + 1, half), b);
            }
            sum[half] = _mm512_add_ps(sum[half], a);
            sum[2 + half] = _mm512_add_ps(sum[2 + half], b);
            if (kept) {
                a = _mm512_maskz_mov_ps(seen(kept, key, half), a);
                b = _mm512_maskz_mov_ps(seen(kept, key + 1, half), b);
            }
            _mm512_storeu_si512(probs + half * CHUNK_STRIPS * TILE_HALVES + key * TILE,
                                _mm512_permutexvar_epi16(pairs, to_halves(a, b)));
        }
    }
}

/* Raises the state to the new largest scores; where they grew, the sums and the output are scaled
 * down. Lanes that have seen no key yet stay at -infinity. */
static void state_raise(struct forward_state *state, const __m512 largest[2], uint64_t chunks)
{
    for (int half = 0; half < 2; half++) {
        __mmask16 grown = _mm512_cmp_ps_mask(largest[half], state->largest[half], _CMP_NEQ_UQ);
        __m512 factor =
            _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), grown,
                               exp2_lanes(_mm512_sub_ps(state->largest[half], largest[half])));
        state->largest[half] = largest[half];
        if (state->is_fresh || grown == 0)
            continue;
        state->sum[half] = _mm512_mul_ps(state->sum[half], factor);
        for (uint64_t tile = 0; tile < 2 * chunks; tile++)
            for (int row = 0; row < TILE; row++) {
                float *at = state->output + (2 * tile + (uint64_t)half) * TILE_SUMS + row * TILE;
                _mm512_storeu_ps(at, _mm512_mul_ps(_mm512_loadu_ps(at), factor));
            }
    }
}

/* One chunk of `strips` strips of keys from strip `begin` on. */
static void forward_chunk(const attention_desc *desc, const attention_mask *mask,
                          const struct forward_worker *worker, struct forward_state *state,
                          uint64_t begin, uint64_t strips)
{
    uint64_t chunks = size_div_up(desc->head_dim, TILE_DEPTH);
    uint64_t value_chunks = size_div_up(desc->value_dim, TILE_DEPTH);
    uint64_t key_strips = size_div_up(desc->tokens, TILE_DEPTH);
    uint32_t lanes_of[CHUNK_STRIPS][TILE_DEPTH];
    const uint32_t *lanes[CHUNK_STRIPS];
    for (uint64_t strip = 0; strip < strips; strip++)
        lanes[strip] =
            strip_lanes(mask, state->first_row, (begin + strip) * TILE_DEPTH, lanes_of[strip]);
    __m512 factor = _mm512_set1_ps(desc->scale * LOG2E);
    __m512 largest[2] = {_mm512_set1_ps(-INFINITY), _mm512_set1_ps(-INFINITY)};
    size_t key_step = chunks * TILE_HALVES, value_step = key_strips * TILE_HALVES;
    for (uint64_t strip = 0; strip <= strips; strip++) {
        if (strip < strips)
            tiles_product(worker->keys + (begin + strip) * 2 * key_step, key_step, state->query,
                          key_step, chunks, worker->scores + strip * STRIP_SUMS, 2 * TILE_SUMS,
                          true);
        tiles_fence();
        if (strip > 0) { /* one strip later: tiles and vectors overlap in time */
            float *scores = worker->scores + (strip - 1) * STRIP_SUMS;
            if (desc->soft_cap > 0.0f)
                strip_cap(desc, scores, NULL, NULL);
            strip_largest(scores, lanes[strip - 1], largest);
        }
    }
    __m512 offset[2], sum[4];
    for (int half = 0; half < 2; half++)
        largest[half] = _mm512_max_ps(_mm512_mul_ps(largest[half], factor), state->largest[half]);
    state_raise(state, largest, value_chunks);
    for (int half = 0; half < 2; half++) {
        offset[half] = _mm512_sub_ps(_mm512_setzero_ps(), largest[half]);
        sum[half] = state->sum[half];
        sum[2 + half] = _mm512_setzero_ps();
    }
    for (uint64_t strip = 0; strip < strips; strip++) {
        const float *scores = worker->scores + strip * STRIP_SUMS;
        uint16_t *probs = worker->probs + strip * TILE_HALVES;
        uint32_t kept[TILE_DEPTH];
        if (state->drop)
            strip_kept(state->drop, state->first_row, (begin + strip) * TILE_DEPTH, kept);
        if (state->drop)
            strip_probs(scores, lanes[strip], kept, factor, offset, sum, probs);
        else if (lanes[strip])
            strip_probs(scores, lanes[strip], NULL, factor, offset, sum, probs);
        else
            strip_probs(scores, NULL, NULL, factor, offset, sum, probs);
    }
    for (int half = 0; half < 2; half++)
        state->sum[half] = _mm512_add_ps(sum[half], sum[2 + half]);
    tiles_fence();
    for (uint64_t tile = 0; tile < 2 * value_chunks; tile += 2)
        tiles_product(worker->values + tile * value_step + begin * TILE_HALVES, value_step,
                      worker->probs, CHUNK_STRIPS * TILE_HALVES, strips,
                      state->output + tile * 2 * TILE_SUMS, 2 * TILE_SUMS, state->is_fresh);
    tiles_fence();
    state->is_fresh = false;
}

/* Divides by the sums and rounds into the output and lse of the caller. */
static void forward_finish(const attention_pass *pass, const struct forward_state *state,
                           uint64_t batch, uint64_t head, uint64_t first_row)
{
    const attention_desc *desc = pass->desc;
    uint64_t dim = desc->value_dim, rows = size_min(TILE_DEPTH, desc->tokens - first_row);
    uint16_t *output =
        (uint16_t *)pass->output + ((batch * desc->tokens + first_row) * desc->heads + head) * dim;
    float *lse = pass->lse + (batch * desc->heads + head) * desc->tokens + first_row;
    for (uint64_t half = 0; half < 2; half++) {
        float largest[TILE], sum[TILE];
        _mm512_storeu_ps(largest, state->largest[half]);
        _mm512_storeu_ps(sum, state->sum[half]);
        uint64_t first = half * TILE, count = rows > first ? size_min(rows - first, TILE) : 0;
        for (uint64_t i = 0; i < count; i++)
            lse[first + i] = (float)((double)largest[i] * 0x1.62e42fefa39efp-1) + logf(sum[i]);
        float scale = state->drop ? state->drop->scale : 1.0f;
        __m512 factor = _mm512_div_ps(_mm512_set1_ps(scale), state->sum[half]);
        for (uint64_t tile = 0; tile * TILE < dim; tile++) {
            const float *sums = state->output + (2 * tile + half) * TILE_SUMS;
            __m512i r[TILE];
#pragma GCC unroll 16
            for (int i = 0; i < TILE; i++)
                r[i] = (__m512i)_mm512_mul_ps(_mm512_loadu_ps(sums + i * TILE), factor);
            transpose(r);
#pragma GCC unroll 16
            for (uint64_t i = 0; i < TILE; i++)
                if (i < count)
                    store_halves(output + (first + i) * desc->heads * dim + tile * TILE,
                                 (__m512)r[i], dim - tile * TILE);
        }
    }
}

/* Packs the queries of a block and sets its state to the beginning. */
static void forward_begin(const attention_pass *pass, const attention_mask *mask,
                          struct forward_state *state, uint64_t batch, uint64_t head,
                          uint64_t block)
{
    const attention_desc *desc = pass->desc;
    uint64_t first_row = block * TILE_DEPTH;
    attention_range keys =
        attention_keys_of_block(mask, first_row, size_min(first_row + TILE_DEPTH, desc->tokens));
    state->first_row = first_row;
    state->strips.begin = keys.begin / TILE_DEPTH;
    state->strips.end = size_div_up(keys.end, TILE_DEPTH);
    state->is_fresh = true;
    struct head_rows query = {
        (const uint16_t *)pass->q + (batch * desc->tokens + first_row) * desc->qkv_stride +
            head * desc->head_dim,
        desc->qkv_stride, size_min(TILE_DEPTH, desc->tokens - first_row), desc->head_dim};
    pack_right(&query, TILE_DEPTH, size_div_up(desc->head_dim, TILE_DEPTH), state->query);
    for (int half = 0; half < 2; half++) {
        state->largest[half] = _mm512_set1_ps(-INFINITY);
        state->sum[half] = _mm512_setzero_ps();
    }
}

/* Up to BUNCH query blocks of a head: `first`, first + step, and so on, below `blocks`. */
static void forward_bunch(const attention_pass *pass, const struct forward_worker *worker,
                          uint64_t batch, uint64_t head, uint64_t first, uint64_t step,
                          uint64_t blocks)
{
    uint64_t chunks = size_div_up(pass->desc->head_dim, TILE_DEPTH);
    uint64_t value_chunks = size_div_up(pass->desc->value_dim, TILE_DEPTH);
    uint64_t count = size_min(BUNCH, size_div_up(blocks - first, step));
    attention_mask mask = attention_mask_of(pass->desc, pass->begins, batch);
    struct forward_state states[BUNCH];
    attention_drop drop_of;
    const attention_drop *drop = attention_drop_of(pass->desc, &pass->masks, batch, head, &drop_of);
    for (uint64_t i = 0; i < count; i++) {
        states[i].drop = drop;
        states[i].query = worker->query + i * chunks * 2 * TILE_HALVES;
        states[i].output = worker->output + i * value_chunks * 4 * TILE_SUMS;
        forward_begin(pass, &mask, &states[i], batch, head, first + i * step);
    }
    uint64_t begin = states[0].strips.begin / CHUNK_STRIPS * CHUNK_STRIPS;
    for (; begin < states[count - 1].strips.end; begin += CHUNK_STRIPS)
        for (uint64_t i = 0; i < count; i++) {
            attention_range strips = states[i].strips;
            strips.begin = size_max(strips.begin, begin);
            strips.end = size_min(strips.end, begin + CHUNK_STRIPS);
            if (strips.begin < strips.end)
                forward_chunk(pass->desc, &mask, worker, &states[i], strips.begin,
                              strips.end - strips.begin);
        }
    for (uint64_t i = 0; i < count; i++)
        forward_finish(pass, &states[i], batch, head, states[i].first_row);
}

/* Part `part` of `parts` of the query blocks of one key/value head. */
static void forward_task(const attention_pass *pass, const struct forward_worker *worker,
                         uint64_t batch, uint64_t kv_head, uint64_t part, uint64_t parts)
{
    const attention_desc *desc = pass->desc;
    uint64_t blocks = size_div_up(desc->tokens, TILE_DEPTH);
    uint64_t dim = desc->head_dim, value_dim = desc->value_dim;
    uint64_t first = batch * desc->tokens * desc->qkv_stride;
    uint64_t last_block = blocks - 1 - (blocks - 1 - part) % parts;
    attention_mask mask = attention_mask_of(desc, pass->begins, batch);
    uint64_t last_row = size_min((last_block + 1) * TILE_DEPTH, desc->tokens) - 1;
    uint64_t rows = size_round_up(attention_keys_of(&mask, last_row).end, TILE_DEPTH);
    uint64_t group = desc->heads / desc->kv_heads;
    struct head_rows keys = {(const uint16_t *)pass->k + first + kv_head * dim, desc->qkv_stride,
                             desc->tokens, dim};
    struct head_rows values = {(const uint16_t *)pass->v + first + kv_head * value_dim,
                               desc->qkv_stride, desc->tokens, value_dim};
    pack_left(&keys, rows, size_div_up(dim, TILE_DEPTH), worker->keys);
    pack_depth(&values, rows, size_div_up(value_dim, TILE_DEPTH), blocks, true, worker->values);
    for (uint64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (uint64_t block = part; block < blocks; block += BUNCH * parts)
            forward_bunch(pass, worker, batch, head, block, parts, blocks);
}

void cpui_attention_amx_forward(const attention_pass *pass)
{
    const attention_desc *desc = pass->desc;
    size_t worker_bytes = cpui_attention_amx_forward_bytes(desc);
    uint64_t heads = desc->batch * desc->kv_heads;
    uint64_t wanted = size_div_up(TASKS_A_THREAD * (uint64_t)pass->thread_count, heads);
    uint64_t parts = size_min(wanted, size_div_up(desc->tokens, TILE_DEPTH));
#pragma omp parallel num_threads(pass->thread_count)
    {
        struct forward_worker worker;
        worker_layout(desc, (char *)pass->scratch + (size_t)omp_get_thread_num() * worker_bytes,
                      &worker);
        tiles_begin();
#pragma omp for schedule(dynamic, 1)
        for (uint64_t task = 0; task < heads * parts; task++) {
            uint64_t head = task / parts;
            forward_task(pass, &worker, head / desc->kv_heads, head % desc->kv_heads,
                         parts - 1 - task % parts, parts);
        }
        tiles_end();
    }
}
