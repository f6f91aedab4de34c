/* Tiles of bf16 for attention_amx_*.c: packing, the product of two by two tiles, the exponential.
 * Must be compiled with AMX, AVX-512 and its bf16 conversions.
 *
 * All tiles are 1 KiB, contiguous:
 *   left    [16 rows][32 depth] bf16          of the left operand of a product
 *   right   [16 depth pairs][16 columns][2]   of the right operand: a pair is two steps of depth
 *   sum     [16 rows][16 columns] fp32        of the result
 * An operand is an array [rows or columns / 16][depth / 32] of tiles, padded with zeros. */
#ifndef SLUICE_KERNELS_CPU_ATTENTION_AMX_TILES_H
#define SLUICE_KERNELS_CPU_ATTENTION_AMX_TILES_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/size.h"
#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/dropout_lanes.h"
#include "kernels/cpu/transpose.h"

enum {
    TILE = 16,         /* rows or columns of a tile */
    TILE_DEPTH = 32,   /* depth of an operand tile: the step of the loops */
    TILE_HALVES = 512, /* bf16 elements of an operand tile */
    TILE_SUMS = 256,   /* fp32 elements of a sum tile */
};

#define LOG2E 0x1.715476p+0f

/* The compiler does not see the memory that tile instructions access. This fence orders them with
 * loads and stores of vectors. */
static inline void tiles_fence(void)
{
    __asm__ volatile("" ::: "memory");
}

/* Configures all eight tiles of this thread as 16 rows of 64 bytes, until tiles_end. */
static inline void tiles_begin(void)
{
    struct {
        uint8_t palette, start_row, zero[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    static_assert(sizeof config == 64, "the layout of LDTILECFG");
    for (int tile = 0; tile < 8; tile++) {
        config.row_bytes[tile] = 64;
        config.rows[tile] = TILE;
    }
    tiles_fence();
    _tile_loadconfig(&config);
}

static inline void tiles_end(void)
{
    _tile_release();
}

/* c[2][2] = or += a[2][depth] b[2][depth], in tiles. a_step, b_step and c_step are the distances
 * from one row of tiles to the next, in elements; the two columns of c lie side by side. */
static inline void tiles_product(const uint16_t *a, size_t a_step, const uint16_t *b, size_t b_step,
                                 uint64_t depth, float *c, size_t c_step, bool fresh)
{
    if (fresh) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_loadd(0, c, 64);
        _tile_loadd(1, c + TILE_SUMS, 64);
        _tile_loadd(2, c + c_step, 64);
        _tile_loadd(3, c + c_step + TILE_SUMS, 64);
    }
    for (uint64_t i = 0; i < depth; i++, a += TILE_HALVES, b += TILE_HALVES) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + b_step, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + a_step, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, 64);
    _tile_stored(1, c + TILE_SUMS, 64);
    _tile_stored(2, c + c_step, 64);
    _tile_stored(3, c + c_step + TILE_SUMS, 64);
}

/* Rows of a head as they are in memory. */
struct head_rows {
    const uint16_t *first;
    uint64_t stride;       /* elements */
    uint64_t count, width; /* existing rows and columns; beyond them everything counts as zero */
};

/* Prefetches a chunk of a row some rows ahead. Rows of a head lie a whole token apart, and the
 * hardware does not predict that. */
static inline void head_ask(const struct head_rows *source, uint64_t row, uint64_t chunk)
{
    enum { AHEAD = 24 };
    if (row + AHEAD < source->count)
        _mm_prefetch(source->first + (row + AHEAD) * source->stride + chunk * TILE_DEPTH,
                     _MM_HINT_T0);
}

/* Loads columns [32*chunk, +32) of a row. */
static inline __m512i head_load(const struct head_rows *source, uint64_t row, uint64_t chunk)
{
    if (row >= source->count)
        return _mm512_setzero_si512();
    head_ask(source, row, chunk);
    uint64_t left = source->width - chunk * TILE_DEPTH;
    __mmask32 mask = left < TILE_DEPTH ? (1u << left) - 1u : 0xffffffffu;
    return _mm512_maskz_loadu_epi16(mask,
                                    source->first + row * source->stride + chunk * TILE_DEPTH);
}

/* Packs left tiles [rows/16][chunks]: rows by columns of the head. `rows` is a multiple of 16. */
static inline void pack_left(const struct head_rows *source, uint64_t rows, uint64_t chunks,
                             uint16_t *target)
{
    for (uint64_t row = 0; row < rows; row++)
        for (uint64_t chunk = 0; chunk < chunks; chunk++)
            _mm512_storeu_si512(target + ((row / TILE) * chunks + chunk) * TILE_HALVES +
                                    row % TILE * TILE_DEPTH,
                                head_load(source, row, chunk));
}

/* Packs right tiles [rows/16][chunks]: columns of the head become depth, rows become columns. */
static inline void pack_right(const struct head_rows *source, uint64_t rows, uint64_t chunks,
                              uint16_t *target)
{
    for (uint64_t row = 0; row < rows; row += TILE)
        for (uint64_t chunk = 0; chunk < chunks; chunk++, target += TILE_HALVES) {
            __m512i r[TILE];
#pragma GCC unroll 16
            for (uint64_t i = 0; i < TILE; i++)
                r[i] = head_load(source, row + i, chunk);
            transpose(r);
#pragma GCC unroll 16
            for (uint64_t i = 0; i < TILE; i++)
                _mm512_storeu_si512(target + i * TILE_DEPTH, r[i]);
        }
}

/* Puts rows 2i and 2i+1 of 32 rows side by side as pairs, for columns [0,16) and [16,32) of a
 * chunk. */
static inline __attribute__((always_inline)) void pair_rows(const struct head_rows *source,
                                                            uint64_t row, uint64_t chunk,
                                                            __m512i low[TILE], __m512i high[TILE])
{
#pragma GCC unroll 16
    for (uint64_t i = 0; i < TILE; i++) {
        __m512i even = head_load(source, row + 2 * i, chunk);
        __m512i odd = head_load(source, row + 2 * i + 1, chunk);
        interleave(even, odd, &low[i], &high[i]);
    }
}

/* Packs tiles [2*chunks][row_chunks] from `rows` rows (a multiple of 32): rows of the head become
 * depth. Columns of the head become columns of right tiles, or rows of left tiles. */
static inline void pack_depth(const struct head_rows *source, uint64_t rows, uint64_t chunks,
                              uint64_t row_chunks, bool left, uint16_t *target)
{
    for (uint64_t row = 0; row < rows; row += TILE_DEPTH)
        for (uint64_t chunk = 0; chunk < chunks; chunk++) {
            __m512i low[TILE], high[TILE];
            pair_rows(source, row, chunk, low, high);
            if (left) {
                transpose(low);
                transpose(high);
            }
            uint16_t *first = target + (2 * chunk * row_chunks + row / TILE_DEPTH) * TILE_HALVES;
            uint16_t *second = first + row_chunks * TILE_HALVES;
#pragma GCC unroll 16
            for (uint64_t i = 0; i < TILE; i++) {
                _mm512_storeu_si512(first + i * TILE_DEPTH, low[i]);
                _mm512_storeu_si512(second + i * TILE_DEPTH, high[i]);
            }
        }
}

/* 2^y within a relative error of 3e-6 (bf16 rounds by up to 3.9e-3): a polynomial of degree 4 with
 * constant term 1 for 2^f on [0,1), times 2^floor(y). -inf gives 0, NaN stays NaN. */
static inline __m512 exp2_lanes(__m512 y)
{
    __m512 f = _mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(0x1.b7f73p-7f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.abf868p-5f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ee245p-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62d6c6p-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, y);
}

/* ---- 32 queries and a strip of 32 keys ---- */

/* Sets lanes[key] to the lanes of the queries from `row` on that see a key from `key` on. Returns
 * NULL if all existing queries see all keys, else `lanes`. */
static inline const uint32_t *strip_lanes(const attention_mask *mask, uint64_t row, uint64_t key,
                                          uint32_t lanes[TILE_DEPTH])
{
    uint64_t row_end = size_min(row + TILE_DEPTH, mask->tokens);
    if (attention_sees_all(mask, row, row_end, key, key + TILE_DEPTH))
        return NULL;
    for (uint64_t i = 0; i < TILE_DEPTH; i++) {
        attention_range seen = {0, 0};
        if (key + i < mask->tokens)
            seen = attention_queries_of(mask, key + i);
        uint64_t begin = seen.begin > row ? size_min(seen.begin - row, TILE_DEPTH) : 0;
        uint64_t end = seen.end > row ? size_min(seen.end - row, TILE_DEPTH) : 0;
        lanes[i] = (uint32_t)(((uint64_t)1 << end) - ((uint64_t)1 << begin));
    }
    return lanes;
}

/* The lanes of queries [16*half, +16) that see key `key` of a strip; lanes as above. */
static inline __mmask16 seen(const uint32_t *lanes, uint64_t key, int half)
{
    return lanes ? (__mmask16)(lanes[key] >> (TILE * half)) : (__mmask16)0xffff;
}

/* Sets kept[key] to the lanes of the queries from `row` on that keep a key from `key` on. */
static inline void strip_kept(const attention_drop *drop, uint64_t row, uint64_t key,
                              uint32_t kept[TILE_DEPTH])
{
    const __m512i threshold = _mm512_set1_epi32((int)drop->threshold);
    const __m512i quads = /* the first words of 16 queries */
        _mm512_set_epi32(60, 56, 52, 48, 44, 40, 36, 32, 28, 24, 20, 16, 12, 8, 4, 0);
    const uint64_t step = drop->row_quads;
    for (uint64_t i = 0; i < TILE_DEPTH; i += 4) {
        uint32_t words[4 * TILE_DEPTH];
        uint64_t quad = drop->first_quad + row * step + (key + i) / 4;
        dropout_fill(drop->place, quad, step, TILE_DEPTH, words);
        for (uint64_t k = 0; k < 4; k++) {
            __m512i low = _mm512_i32gather_epi32(quads, words + k, 4);
            __m512i high = _mm512_i32gather_epi32(quads, words + 4 * TILE + k, 4);
            kept[i + k] = (uint32_t)_mm512_cmpge_epu32_mask(low, threshold) |
                          (uint32_t)_mm512_cmpge_epu32_mask(high, threshold) << TILE;
        }
    }
}

/* The gradients of what a strip keeps, times `scale`, in place. */
static inline void strip_drop(float *prob_grads, const uint32_t *kept, float scale)
{
    const __m512 factor = _mm512_set1_ps(scale);
    for (uint64_t key = 0; key < TILE_DEPTH; key++)
        for (int half = 0; half < 2; half++) {
            float *at = prob_grads + key / TILE * 2 * TILE_SUMS + (size_t)half * TILE_SUMS +
                        key % TILE * TILE;
            _mm512_storeu_ps(
                at, _mm512_maskz_mul_ps(seen(kept, key, half), _mm512_loadu_ps(at), factor));
        }
}

/* Caps the scores of a strip; see cap_scores in attention_vectors.h. prob_grads and delta [32] are
 * NULL in the forward pass. */
static inline void strip_cap(const attention_desc *desc, float *scores, float *prob_grads,
                             const float *delta)
{
    __m512 twice = _mm512_set1_ps(2.0f * LOG2E * desc->scale / desc->soft_cap);
    __m512 outer = _mm512_set1_ps(desc->soft_cap / desc->scale);
    __m512 one = _mm512_set1_ps(1.0f), two = _mm512_set1_ps(2.0f);
    for (size_t i = 0; i < 4 * TILE_SUMS; i += TILE) {
        __m512 power = exp2_lanes(_mm512_mul_ps(_mm512_loadu_ps(scores + i), twice));
        __m512 t = _mm512_sub_ps(one, _mm512_div_ps(two, _mm512_add_ps(power, one)));
        _mm512_storeu_ps(scores + i, _mm512_mul_ps(t, outer));
        if (prob_grads) {
            __m512 base = _mm512_loadu_ps(delta + i / TILE_SUMS % 2 * TILE);
            __m512 distance = _mm512_sub_ps(_mm512_loadu_ps(prob_grads + i), base);
            __m512 slope = _mm512_fnmadd_ps(t, t, one);
            _mm512_storeu_ps(prob_grads + i, _mm512_fmadd_ps(distance, slope, base));
        }
    }
}

/* Rounds to bf16; a is the lower half of the result, b the upper half. */
static inline __m512i to_halves(__m512 a, __m512 b)
{
    return (__m512i)_mm512_cvtne2ps_pbh(b, a);
}

/* Rounds 16 sums into `count` elements of a row (all 16 if count > 16). */
static inline void store_halves(uint16_t *target, __m512 sums, uint64_t count)
{
    __mmask16 mask = count < TILE ? (__mmask16)((1u << count) - 1u) : 0xffff;
    _mm256_mask_storeu_epi16(target, mask, (__m256i)_mm512_cvtneps_pbh(sums));
}

#endif
