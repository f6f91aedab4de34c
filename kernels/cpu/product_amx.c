/* Products of bf16 operands on AMX tiles; see product_amx.h. Compiled with AMX and AVX-512.
 *
 *   tile     1 KiB: 16 rows of 32 bf16 along k (A), 16 pairs of k by 16 columns (B), 16 x 16 fp32 (C)
 *   step     two tiles: 32 rows of A, or 32 columns of B, and 32 elements of k
 *   strip    the steps of a slice of k, one behind the other
 *   square   32 x 32 elements of C: four tiles, in registers while k runs over the slice
 *
 * One operand, the cut one, is taken in blocks by the threads, each of which packs its block for itself
 * and keeps it in its second level of cache. The strips of the other, the shared one, are packed by all
 * threads together, SHARED_BYTES of them at a time, and pass by; the next one is fetched ahead. k is cut
 * in slices of at most SLICE_ELEMS; the sums go on from slice to slice through fp32 memory: C, or scratch
 * where C has 16 bits. */
#include "kernels/cpu/product_amx.h"

#if defined(__AMX_BF16__)

#include <assert.h>
#include <omp.h>

#include "kernels/cpu/attention_amx_tiles.h"

/* 2 cores, L2 of 2 MiB each, GFLOP/s of m x n x k, random operands:
 *   SLICE_ELEMS, CUT_BYTES      4096x3072x768  4096x768x3072  768x3072x4096 (A transposed)
 *   4096, 512 KiB                    -             1815            1289
 *   1536, 768 KiB                  2335            2263            1816
 *   1024, 512 KiB                  2207            2127            1661
 *   1024, 768 KiB                  2528            2250            1924
 * C is written in rows of up to a block's columns where n is cut (4096x3072x768: 2528; with m cut, in
 * single lines far apart, 1464), but a narrow C is better cut along m: 4096x768x768 2386, else 1860. Where
 * the shared operand stays in cache beside a small block, C goes by in whole rows: 50257x768x192, which is
 * added to, 532 before and 1158 so, 1290 with fetch_addend. */
enum {
    SLICE_ELEMS = 1024,
    CUT_BYTES = 768 * 1024,
    SHARED_BYTES = 8 * 1024 * 1024,
    ROWS_BYTES = 640 * 1024, /* of the shared operand */
    ROWS_ELEMS = 128,
    BLOCKS_A_THREAD = 4, /* so that threads end together */
    NARROW = 4,          /* times n that m is where m is cut */
    PACK_STRIPS = 4,     /* packed side by side where rows are of k: 256 bytes of a row */
    SQUARE = 32,         /* rows and columns */
    TILE_BYTES = 1024,
    TILE_ROW_BYTES = 64,
    STEP_BYTES = 2 * TILE_BYTES,
    LINE_BYTES = 64,
};

/* ---- packing ---- */

static __mmask32 mask32_of(uint64_t count)
{
    return count >= 32 ? 0xffffffffu : (1u << count) - 1u;
}

static __mmask16 mask16_of(uint64_t count)
{
    return count >= 16 ? 0xffffu : (__mmask16)((1u << count) - 1u);
}

/* A tile from 16 rows along k: as they lie (A), or turned into pairs (B). */
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

/* The rows 2i and 2i + 1 of k, 32 columns of them, side by side as pairs. */
static inline __attribute__((always_inline)) void pair_k(const uint16_t *source, uint64_t stride,
                                                         uint64_t k_count, __mmask32 columns,
                                                         __m512i low[16], __m512i high[16])
{
    const __m512i pick_low =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                         37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i pick_high = _mm512_add_epi16(pick_low, _mm512_set1_epi16(16));
#pragma GCC unroll 16
    for (uint64_t i = 0; i < 16; i++) {
        __m512i even = _mm512_setzero_si512(), odd = even;
        if (2 * i < k_count)
            even = _mm512_maskz_loadu_epi16(columns, source + 2 * i * stride);
        if (2 * i + 1 < k_count)
            odd = _mm512_maskz_loadu_epi16(columns, source + (2 * i + 1) * stride);
        low[i] = _mm512_permutex2var_epi16(even, pick_low, odd);
        high[i] = _mm512_permutex2var_epi16(even, pick_high, odd);
    }
}

/* A step from 32 rows of k, of 32 columns each: as pairs (B), or turned (A). */
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

/* One operand as stored. */
struct packed_view {
    const uint16_t *data;
    uint64_t stride; /* elements */
    bool along_k;    /* rows run along k */
    bool turns;      /* a tile is what lies there, turned */
};

/* One step: 32 rows (A) or columns (B) from `at` on, `count` of them real, and `left` elements of k. */
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

/* Strips of `count` rows (A) or columns (B) from `begin` on, of a slice of k. Where rows are of k the
 * strips of a group are packed side by side, so that a row is read in pieces of several lines. */
static void pack_strips(const struct packed_view *view, uint64_t begin, uint64_t count,
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

/* ---- a square ---- */

static inline __m512 widen(__m256i bits)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

/* To nearest even by integers, which keep subnormals; NaN stays a quiet NaN. */
static inline __m256i narrow(__m512 value)
{
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

/* Where the squares of a slice go. */
struct outlet {
    const float *addend; /* NULL: nothing is added */
    uint64_t addend_stride;
    const uint16_t *bias; /* NULL: none */
    void *target;
    uint64_t target_stride;
    bool is_fp32;
};

/* A square on its way from tiles 0 to 3 to C. */
struct leaving {
    const struct outlet *out;
    uint64_t m, n, rows; /* rows: 0 where there is no square */
    __mmask16 masks[2];  /* of its columns, 16 and 16 */
    __m512 bias[2];
    char square[4 * TILE_BYTES] __attribute__((aligned(64)));
};

static inline __attribute__((always_inline)) void put_row(const struct leaving *self, uint64_t i)
{
    const struct outlet *out = self->out;
    const char *row = self->square + (i / 16) * STEP_BYTES + (i % 16) * TILE_ROW_BYTES;
    uint64_t at = (self->m + i) * out->target_stride + self->n;
    for (uint64_t h = 0; h < 2; h++) {
        __m512 value = _mm512_load_ps(row + h * TILE_BYTES);
        if (out->bias)
            value = _mm512_add_ps(value, self->bias[h]);
        if (out->addend) {
            const float *addend =
                out->addend + (self->m + i) * out->addend_stride + self->n + 16 * h;
            value = _mm512_add_ps(_mm512_maskz_loadu_ps(self->masks[h], addend), value);
        }
        if (out->is_fp32)
            _mm512_mask_storeu_ps((float *)out->target + at + 16 * h, self->masks[h], value);
        else
            _mm256_mask_storeu_epi16((uint16_t *)out->target + at + 16 * h, self->masks[h],
                                     narrow(value));
    }
}

static void leave(struct leaving *self, const struct outlet *out, uint64_t m, uint64_t n,
                  uint64_t rows, uint64_t columns)
{
    self->out = out;
    self->m = m;
    self->n = n;
    self->rows = rows;
    self->masks[0] = mask16_of(columns);
    self->masks[1] = mask16_of(columns > 16 ? columns - 16 : 0);
    for (int h = 0; h < 2 && out->bias; h++)
        self->bias[h] = widen(_mm256_maskz_loadu_epi16(self->masks[h], out->bias + n + 16 * h));
}

/* The last square of a block. */
static void flush(struct leaving *self)
{
    _tile_stored(0, self->square, TILE_ROW_BYTES);
    _tile_stored(1, self->square + TILE_BYTES, TILE_ROW_BYTES);
    _tile_stored(2, self->square + 2 * TILE_BYTES, TILE_ROW_BYTES);
    _tile_stored(3, self->square + 3 * TILE_BYTES, TILE_ROW_BYTES);
    tiles_fence();
    for (uint64_t i = 0; i < self->rows; i++)
        put_row(self, i);
    self->rows = 0;
}

/* What a square fetches ahead: `lines` lines of 64 bytes with each step, from `at` on. */
struct ahead {
    const char *at;
    uint64_t lines;
};

/* Tiles 0 to 3 = a b over `steps` steps. The square before leaves meanwhile: its tiles are stored as they
 * are needed again, which in one go waits 250 ns for the last products, and its rows are put a few behind
 * each step, where vectors have nothing else to do. */
static void multiply(struct leaving *self, const char *a, const char *b, uint64_t steps,
                     struct ahead *ahead)
{
    uint64_t row = 0, rows = self->rows, rows_a_step = size_div_up(rows, steps);
    _tile_loadd(4, a, TILE_ROW_BYTES);
    _tile_loadd(6, b, TILE_ROW_BYTES);
    _tile_loadd(7, b + TILE_BYTES, TILE_ROW_BYTES);
    _tile_loadd(5, a + TILE_BYTES, TILE_ROW_BYTES);
    _tile_stored(0, self->square, TILE_ROW_BYTES);
    _tile_zero(0);
    _tile_dpbf16ps(0, 4, 6);
    _tile_stored(1, self->square + TILE_BYTES, TILE_ROW_BYTES);
    _tile_zero(1);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stored(2, self->square + 2 * TILE_BYTES, TILE_ROW_BYTES);
    _tile_zero(2);
    _tile_dpbf16ps(2, 5, 6);
    _tile_stored(3, self->square + 3 * TILE_BYTES, TILE_ROW_BYTES);
    _tile_zero(3);
    _tile_dpbf16ps(3, 5, 7);
    tiles_fence();
    for (uint64_t i = 1; i <= steps; i++) {
        if (i < steps) {
            a += STEP_BYTES;
            b += STEP_BYTES;
            _tile_loadd(4, a, TILE_ROW_BYTES);
            _tile_loadd(6, b, TILE_ROW_BYTES);
            _tile_loadd(7, b + TILE_BYTES, TILE_ROW_BYTES);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_loadd(5, a + TILE_BYTES, TILE_ROW_BYTES);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        for (uint64_t end = size_min(row + rows_a_step, rows); row < end; row++)
            put_row(self, row);
        for (uint64_t line = 0; line < ahead->lines; line++, ahead->at += LINE_BYTES)
            _mm_prefetch(ahead->at, _MM_HINT_T1);
    }
    tiles_fence();
}

/* ---- the product ---- */

/* `elems` in parts of at most `most`, in whole steps, as equal as steps allow. */
static uint64_t even_part(uint64_t elems, uint64_t most)
{
    return size_round_up(size_div_up(elems, size_div_up(elems, most)), SQUARE);
}

/* Of `most` bytes of strips, in elements. */
static uint64_t fitting(uint64_t most, uint64_t strip_bytes)
{
    return size_max(most / strip_bytes, 1) * SQUARE;
}

void cpui_amx_product_plan(const matmul_desc *desc, int threads, cpui_amx_product *out)
{
    cpui_amx_product self = {.desc = *desc, .threads = threads};
    self.cuts_m = desc->m / NARROW >= desc->n;
    uint64_t cut = self.cuts_m ? desc->m : desc->n, shared = self.cuts_m ? desc->n : desc->m;
    self.slice_elems = even_part(desc->k, SLICE_ELEMS);
    uint64_t strip_bytes = self.slice_elems / TILE_DEPTH * STEP_BYTES;
    uint64_t share = size_div_up(cut, BLOCKS_A_THREAD * (uint64_t)threads);
    self.cut_elems =
        even_part(cut, size_min(fitting(CUT_BYTES, strip_bytes), size_round_up(share, SQUARE)));
    self.shared_elems = even_part(shared, fitting(SHARED_BYTES, strip_bytes));
    self.goes_along_rows = self.cuts_m && shared / SQUARE * strip_bytes <= ROWS_BYTES;
    if (self.goes_along_rows)
        self.cut_elems = size_min(self.cut_elems, ROWS_ELEMS);
    self.cut_bytes = self.cut_elems / SQUARE * strip_bytes;
    self.cut_offset = self.shared_elems / SQUARE * strip_bytes;
    self.sums_offset = self.cut_offset + (uint64_t)threads * self.cut_bytes;
    self.has_sums = desc->k > self.slice_elems && desc->c_type != DTYPE_FP32;
    self.scratch_bytes = self.sums_offset + (self.has_sums ? 4 * desc->m * desc->n : 0);
    *out = self;
}

/* Rows or columns [begin, begin + count) of an operand, packed at `strips`. */
struct piece {
    const char *strips;
    uint64_t begin, count;
};

/* What a square will be added to: rows of 128 bytes far apart, which no prefetcher sees coming. */
static void fetch_addend(const struct outlet *out, uint64_t m, uint64_t n, uint64_t rows)
{
    const float *row = out->addend + m * out->addend_stride + n;
    for (uint64_t i = 0; i < rows; i++, row += out->addend_stride) {
        _mm_prefetch((const char *)row, _MM_HINT_T0);
        _mm_prefetch((const char *)(row + 16), _MM_HINT_T0);
    }
}

/* One square. */
static void run_square(const cpui_amx_product *self, const struct outlet *out,
                       const struct piece *shared, const struct piece *block, uint64_t s,
                       uint64_t q, uint64_t steps, struct leaving *leaving, struct ahead *ahead)
{
    uint64_t strip_bytes = steps * STEP_BYTES;
    const char *shared_strip = shared->strips + s / SQUARE * strip_bytes;
    const char *block_strip = block->strips + q / SQUARE * strip_bytes;
    uint64_t s_count = size_min(shared->count - s, SQUARE);
    uint64_t q_count = size_min(block->count - q, SQUARE);
    if (out->addend)
        fetch_addend(out, self->cuts_m ? block->begin + q : shared->begin + s,
                     self->cuts_m ? shared->begin + s : block->begin + q,
                     self->cuts_m ? q_count : s_count);
    if (self->cuts_m) {
        multiply(leaving, block_strip, shared_strip, steps, ahead);
        leave(leaving, out, block->begin + q, shared->begin + s, q_count, s_count);
    } else {
        multiply(leaving, shared_strip, block_strip, steps, ahead);
        leave(leaving, out, shared->begin + s, block->begin + q, s_count, q_count);
    }
}

/* All squares of a block of the cut operand and a piece of the shared one. */
static void run_block(const cpui_amx_product *self, const struct outlet *out,
                      const struct piece *shared, const struct piece *block, uint64_t k_count)
{
    uint64_t steps = size_div_up(k_count, TILE_DEPTH), strip_bytes = steps * STEP_BYTES;
    struct leaving leaving;
    leaving.rows = 0;
    tiles_fence();
    if (self->goes_along_rows) {
        struct ahead none = {0};
        for (uint64_t q = 0; q < block->count; q += SQUARE)
            for (uint64_t s = 0; s < shared->count; s += SQUARE)
                run_square(self, out, shared, block, s, q, steps, &leaving, &none);
    } else {
        uint64_t lines = size_div_up(STEP_BYTES / LINE_BYTES, size_div_up(block->count, SQUARE));
        for (uint64_t s = 0; s < shared->count; s += SQUARE) {
            struct ahead next = {shared->strips + (s / SQUARE + 1) * strip_bytes, lines};
            for (uint64_t q = 0; q < block->count; q += SQUARE)
                run_square(self, out, shared, block, s, q, steps, &leaving, &next);
        }
    }
    flush(&leaving);
}

/* A run: what its threads share. */
struct run {
    const cpui_amx_product *self;
    struct packed_view cut, shared;
    const void *bias;
    void *c;
    char *scratch;
};

/* Where slice [k, k + k_count) goes. */
static struct outlet outlet_of(const struct run *run, uint64_t k, uint64_t k_count)
{
    const matmul_desc *desc = &run->self->desc;
    bool is_last = k + k_count == desc->k, is_fp32 = desc->c_type == DTYPE_FP32;
    float *sums = is_fp32 ? run->c : (void *)(run->scratch + run->self->sums_offset);
    uint64_t sums_stride = is_fp32 ? desc->c_stride : desc->n;
    struct outlet out = {.bias = is_last && desc->has_bias ? run->bias : NULL,
                         .target = is_last ? run->c : sums,
                         .target_stride = is_last ? desc->c_stride : sums_stride,
                         .is_fp32 = is_fp32 || !is_last};
    if (k > 0 || desc->accumulate) {
        out.addend = sums;
        out.addend_stride = sums_stride;
    }
    return out;
}

/* The share of one thread of the team in a slice. All threads of the team call it. */
static void run_slice(const struct run *run, uint64_t k, uint64_t k_count)
{
    const cpui_amx_product *self = run->self;
    const matmul_desc *desc = &self->desc;
    uint64_t cut = self->cuts_m ? desc->m : desc->n, all = self->cuts_m ? desc->n : desc->m;
    uint64_t strip_bytes = size_div_up(k_count, TILE_DEPTH) * STEP_BYTES;
    struct outlet out = outlet_of(run, k, k_count);
    char *own = run->scratch + self->cut_offset + (uint64_t)omp_get_thread_num() * self->cut_bytes;
    for (uint64_t s = 0; s < all; s += self->shared_elems) {
        uint64_t s_count = size_min(self->shared_elems, all - s);
#pragma omp for schedule(dynamic, 1)
        for (uint64_t i = 0; i < s_count; i += PACK_STRIPS * SQUARE)
            pack_strips(&run->shared, s + i, size_min(s_count - i, PACK_STRIPS * SQUARE), k,
                        k_count, run->scratch + i / SQUARE * strip_bytes);
        struct piece shared = {run->scratch, s, s_count};
#pragma omp for schedule(dynamic, 1)
        for (uint64_t q = 0; q < cut; q += self->cut_elems) {
            struct piece block = {own, q, size_min(self->cut_elems, cut - q)};
            pack_strips(&run->cut, q, block.count, k, k_count, own);
            run_block(self, &out, &shared, &block, k_count);
        }
    }
}

void cpui_amx_product_run(const cpui_amx_product *self, const void *a, const void *b,
                          const void *bias, void *c, void *scratch)
{
    const matmul_desc *desc = &self->desc;
    struct packed_view of_a = {a, desc->a_stride, !desc->a_transposed, desc->a_transposed};
    struct packed_view of_b = {b, desc->b_stride, desc->b_transposed, desc->b_transposed};
    struct run run = {.self = self,
                      .cut = self->cuts_m ? of_a : of_b,
                      .shared = self->cuts_m ? of_b : of_a,
                      .bias = bias,
                      .c = c,
                      .scratch = scratch};
#pragma omp parallel num_threads(self->threads)
    {
        tiles_begin();
        for (uint64_t k = 0; k < desc->k; k += self->slice_elems)
            run_slice(&run, k, size_min(self->slice_elems, desc->k - k));
        tiles_end();
    }
}

#else

void cpui_amx_product_plan(const matmul_desc *desc, int threads, cpui_amx_product *out)
{
    *out = (cpui_amx_product){.desc = *desc, .threads = threads};
}

void cpui_amx_product_run(const cpui_amx_product *self, const void *a, const void *b,
                          const void *bias, void *c, void *scratch)
{
    (void)self, (void)a, (void)b, (void)bias, (void)c, (void)scratch;
}

#endif
