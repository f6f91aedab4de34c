/* For product_amx.c: packs the operands of AMX products into tiles, and converts elements to and
 * from bf16. product_amx.c defines the words tile, step and strip. Compiled with AMX and
 * AVX-512. */
#ifndef SLUICE_KERNELS_CPU_PRODUCT_AMX_PACK_H
#define SLUICE_KERNELS_CPU_PRODUCT_AMX_PACK_H

#include "kernels/cpu/attention_amx_tiles.h"

enum {
    PACK_STRIPS = 4, /* packed side by side if rows run across k: 256 bytes of a row */
    SQUARE = 32,     /* rows and columns */
    TILE_BYTES = 1024,
    TILE_ROW_BYTES = 64,
    STEP_BYTES = 2 * TILE_BYTES,
};

static inline __mmask32 mask32_of(uint64_t count)
{
    return count >= 32 ? 0xffffffffu : (1u << count) - 1u;
}

static inline __mmask16 mask16_of(uint64_t count)
{
    return count >= 16 ? 0xffffu : (__mmask16)((1u << count) - 1u);
}

static inline __m512 widen(__m256i bits)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

/* Rounds to nearest even with integer operations, which keep subnormals; NaN stays a quiet NaN. */
static inline __m256i narrow(__m512 value)
{
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

/* Packs a tile from 16 rows along k: as stored (A), or transposed into pairs (B). */
static inline __attribute__((always_inline)) void pack_along_k(const uint16_t *source,
                                                               uint64_t stride, uint64_t rows,
                                                               __mmask32 k, bool turns,
                                                               char *target)
{
    __m512i r[16];
#pragma GCC unroll 16
    for (uint64_t i = 0; i < 16; i++)
        r[i] = i < rows ? _mm512_maskz_loadu_epi16(k, source + i * stride) : _mm512_setzero_si512();
    if (turns)
        transpose(r);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        _mm512_store_si512(target + i * TILE_ROW_BYTES, r[i]);
}

/* Puts rows 2i and 2i + 1 of k, 32 columns of each, side by side as pairs. */
static inline __attribute__((always_inline)) void pair_k(const uint16_t *source, uint64_t stride,
                                                         uint64_t k_count, __mmask32 columns,
                                                         __m512i low[16], __m512i high[16])
{
#pragma GCC unroll 16
    for (uint64_t i = 0; i < 16; i++) {
        __m512i even = _mm512_setzero_si512(), odd = even;
        if (2 * i < k_count)
            even = _mm512_maskz_loadu_epi16(columns, source + 2 * i * stride);
        if (2 * i + 1 < k_count)
            odd = _mm512_maskz_loadu_epi16(columns, source + (2 * i + 1) * stride);
        interleave(even, odd, &low[i], &high[i]);
    }
}

/* Packs a step from 32 rows of k with 32 columns each: as pairs (B), or transposed (A). */
static inline __attribute__((always_inline)) void pack_across_k(const uint16_t *source,
                                                                uint64_t stride, uint64_t k_count,
                                                                __mmask32 columns, bool turns,
                                                                char *target)
{
    __m512i low[16], high[16];
    pair_k(source, stride, k_count, columns, low, high);
    if (turns) {
        transpose(low);
        transpose(high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        _mm512_store_si512(target + i * TILE_ROW_BYTES, low[i]);
        _mm512_store_si512(target + TILE_BYTES + i * TILE_ROW_BYTES, high[i]);
    }
}

/* One operand as the caller stores it. */
struct packed_view {
    const uint16_t *data;
    uint64_t stride; /* elements */
    bool along_k;    /* rows run along k */
    bool turns;      /* the stored elements are transposed into tiles */
};

/* Packs one step: 32 rows (A) or columns (B) from `at` on, of which `count` exist, and `left`
 * elements of k. */
static inline void pack_step(const struct packed_view *view, uint64_t at, uint64_t count,
                             uint64_t k, uint64_t left, char *target)
{
    if (!view->along_k) {
        const uint16_t *source = view->data + k * view->stride + at;
        if (left < TILE_DEPTH)
            pack_across_k(source, view->stride, left, mask32_of(count), view->turns, target);
        else if (view->turns)
            pack_across_k(source, view->stride, TILE_DEPTH, mask32_of(count), true, target);
        else
            pack_across_k(source, view->stride, TILE_DEPTH, mask32_of(count), false, target);
        return;
    }
    for (uint64_t half = 0; half < 32; half += 16, target += TILE_BYTES) {
        uint64_t rows = count > half ? count - half : 0;
        const uint16_t *source = view->data + (at + (rows ? half : 0)) * view->stride + k;
        if (rows < 16 || left < TILE_DEPTH)
            pack_along_k(source, view->stride, rows, mask32_of(left), view->turns, target);
        else if (view->turns)
            pack_along_k(source, view->stride, 16, ~0u, true, target);
        else
            pack_along_k(source, view->stride, 16, ~0u, false, target);
    }
}

/* Packs `count` rows (A) or columns (B) from `begin` on into strips, over a slice of k. If rows run
 * across k, the strips of a group are packed side by side, so that a row is read in pieces of
 * several lines. */
static inline void pack_strips(const struct packed_view *view, uint64_t begin, uint64_t count,
                               uint64_t k_begin, uint64_t k_count, char *target)
{
    uint64_t strip_bytes = size_div_up(k_count, TILE_DEPTH) * STEP_BYTES;
    uint64_t group = view->along_k ? SQUARE : PACK_STRIPS * SQUARE;
    for (uint64_t first = 0; first < count; first += group)
        for (uint64_t k = 0; k < k_count; k += TILE_DEPTH)
            for (uint64_t i = first; i < size_min(first + group, count); i += SQUARE)
                pack_step(view, begin + i, size_min(count - i, SQUARE), k_begin + k, k_count - k,
                          target + i / SQUARE * strip_bytes + k / TILE_DEPTH * STEP_BYTES);
}

#endif
