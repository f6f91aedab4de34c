/* Products of fp32 operands with AVX-512; see product_own.h. Compiled with AVX-512.
 *
 *   strip   up to 14 rows of A, [k][rows], or 32 columns of B, [k][32], over a slice of k; the
 *           strips lie one after the other; missing columns are zero
 *   patch   the part of C from one strip of rows and one strip of columns: it stays in 28 of the 32
 *           registers while k runs over the slice
 *
 * One operand, the cut one, is divided into blocks. A thread takes a block, packs it for itself and
 * keeps it in its second level of cache. The other operand, the shared one, is packed by all
 * threads together, and each thread goes through its strips and prefetches the next one. The rows
 * of a block are divided evenly among its strips, so that no strip is short: a strip with few rows
 * would wait for its own sums. */
#include "kernels/cpu/product_own.h"

#if defined(__AVX512F__)

#include <omp.h>

#include "kernels/cpu/transpose.h"

/* Measured on 2 cores of a Xeon, L2 of 2 MiB each, in GFLOP/s for m x n x k. The patches alone
 * reach 345 to 350; the rest is packing.
 *   SLICE_ELEMS, CUT_BYTES,
 *   BLOCKS_A_THREAD          768x3072x1024  1024x3072x768  1024x768x3072  3072x768x1024
 *   384, 768 KiB, 2               319            321            310            315
 *   384, 768 KiB, 1               310            317            298            308
 *   384, 576 KiB, 3               309            315            276            314
 *   256, 768 KiB, 1               316            315            303            307
 *   512, 1024 KiB, 1              314            279            302            307
 * The third and fourth rows had 16 PACK_STRIPS, and the third is from another run. The longer
 * operand is cut, so that the shared one, which is written to memory, is small. With n cut instead,
 * the last shape reached 290 against 305 (measured before the prefetches were spread over the steps
 * of k). */
enum {
    SLICE_ELEMS = 384,
    CUT_BYTES = 768 * 1024,
    SHARED_BYTES = 8 * 1024 * 1024,
    BLOCKS_A_THREAD = 2, /* so that all threads end at about the same time */
    PACK_STRIPS = 8,     /* packed side by side */
    PACK_STEPS = 16,     /* of k, at a time */
    LANES = 16,
    LINE_BYTES = 64,
    STRIP_ROWS = 14,
    STRIP_COLUMNS = 32, /* pieces and blocks are cut at multiples of these */
};

/* ---- strips ---- */

/* Rows or columns [begin, begin + count) of an operand, packed at `strips`. */
struct piece {
    float *strips;
    uint64_t begin, count;
    bool is_a;
};

static uint64_t strip_count(const struct piece *piece)
{
    return size_div_up(piece->count, piece->is_a ? STRIP_ROWS : STRIP_COLUMNS);
}

/* The first row or column of strip i, counted from the beginning of the piece. */
static uint64_t strip_begin(const struct piece *piece, uint64_t i)
{
    if (!piece->is_a)
        return i * STRIP_COLUMNS;
    uint64_t strips = strip_count(piece);
    return i * (piece->count / strips) + size_min(i, piece->count % strips);
}

/* The number of rows or columns of strip i. */
static uint64_t strip_extent(const struct piece *piece, uint64_t i)
{
    return size_min(strip_begin(piece, i + 1), piece->count) - strip_begin(piece, i);
}

static float *strip_at(const struct piece *piece, uint64_t i, uint64_t k_count)
{
    return piece->strips + strip_begin(piece, i) * k_count;
}

/* ---- packing ---- */

/* One operand as the caller stores it. */
struct packed_view {
    const float *data;
    uint64_t stride; /* elements */
    bool along_k;    /* rows run along k */
};

static inline __mmask16 mask_of(uint64_t count)
{
    return count >= LANES ? 0xffffu : (__mmask16)((1u << count) - 1u);
}

/* Packs up to 16 elements of k from `rows` rows that run along k, transposed. In the target the
 * elements of one k lie `step` floats after those of the k before, and `width` of them are
 * written. */
static inline __attribute__((always_inline)) void pack_along_k(const float *source, uint64_t stride,
                                                               uint64_t rows, uint64_t k_count,
                                                               uint64_t step, uint64_t width,
                                                               float *target)
{
    __mmask16 k_mask = mask_of(k_count), width_mask = mask_of(width);
    __m512i r[LANES];
#pragma GCC unroll 16
    for (uint64_t i = 0; i < LANES; i++)
        r[i] = i < rows ? _mm512_maskz_loadu_epi32(k_mask, source + i * stride)
                        : _mm512_setzero_si512();
    transpose(r);
#pragma GCC unroll 16
    for (uint64_t i = 0; i < LANES; i++)
        if (i < k_count)
            _mm512_mask_storeu_epi32(target + i * step, width_mask, r[i]);
}

/* Packs up to 16 elements of k from `columns` columns of rows that run across k. */
static inline __attribute__((always_inline)) void pack_across_k(const float *source,
                                                                uint64_t stride, uint64_t columns,
                                                                uint64_t k_count, uint64_t step,
                                                                uint64_t width, float *target)
{
    __mmask16 mask = mask_of(columns), width_mask = mask_of(width);
    for (uint64_t i = 0; i < k_count; i++)
        _mm512_mask_storeu_ps(target + i * step, width_mask,
                              _mm512_maskz_loadu_ps(mask, source + i * stride));
}

/* Packs elements [k, k + k_count) of `count` rows or columns from `at` on, and writes `width` of
 * them for each k. */
static inline __attribute__((always_inline)) void pack_part(const struct packed_view *view,
                                                            uint64_t at, uint64_t count, uint64_t k,
                                                            uint64_t k_count, uint64_t step,
                                                            uint64_t width, float *target)
{
    if (view->along_k)
        pack_along_k(view->data + at * view->stride + k, view->stride, count, k_count, step, width,
                     target);
    else
        pack_across_k(view->data + k * view->stride + at, view->stride, count, k_count, step, width,
                      target);
}

/* Packs elements [k, k + k_count) of a strip of rows of A. */
static void pack_rows(const struct packed_view *view, uint64_t at, uint64_t rows, uint64_t k,
                      uint64_t k_count, float *target)
{
    if (rows == STRIP_ROWS && k_count == PACK_STEPS)
        pack_part(view, at, STRIP_ROWS, k, PACK_STEPS, STRIP_ROWS, STRIP_ROWS, target);
    else
        pack_part(view, at, rows, k, k_count, rows, rows, target);
}

/* The same for a strip of columns of B; missing columns become zero. */
static void pack_columns(const struct packed_view *view, uint64_t at, uint64_t columns, uint64_t k,
                         uint64_t k_count, float *target)
{
    for (uint64_t half = 0; half < STRIP_COLUMNS; half += LANES, target += LANES) {
        uint64_t count = columns > half ? size_min(columns - half, LANES) : 0;
        if (count == LANES && k_count == PACK_STEPS)
            pack_part(view, at + half, LANES, k, PACK_STEPS, STRIP_COLUMNS, LANES, target);
        else
            pack_part(view, count ? at + half : at, count, k, k_count, STRIP_COLUMNS, LANES,
                      target);
    }
}

/* Packs strips [first, last) of a piece, over a slice of k. If rows run across k, several strips
 * are packed side by side, so that a row is read in runs of many lines. */
static void pack_strips(const struct packed_view *view, const struct piece *piece, uint64_t first,
                        uint64_t last, uint64_t k, uint64_t k_count)
{
    uint64_t group = view->along_k ? 1 : PACK_STRIPS;
    for (; first < last; first += group)
        for (uint64_t i = 0; i < k_count; i += PACK_STEPS)
            for (uint64_t s = first; s < size_min(first + group, last); s++) {
                uint64_t at = piece->begin + strip_begin(piece, s), extent = strip_extent(piece, s);
                uint64_t count = size_min(k_count - i, PACK_STEPS);
                float *strip = strip_at(piece, s, k_count);
                if (piece->is_a)
                    pack_rows(view, at, extent, k + i, count, strip + i * extent);
                else
                    pack_columns(view, at, extent, k + i, count, strip + i * STRIP_COLUMNS);
            }
}

/* ---- a patch ---- */

/* The destination of the patches of a slice. */
struct outlet {
    bool adds;         /* adds to the values that are in C */
    const float *bias; /* [n]; NULL: none */
    float *c;
    uint64_t stride;
};

/* Rows [m, m + rows) and columns [n, n + columns) of C. */
struct patch {
    uint64_t m, n, rows, columns;
    const float *a, *b; /* strips */
};

/* Memory to prefetch while patches are computed, `step` bytes for each k. Prefetches in a burst
 * would delay the loads after them. */
struct ahead {
    const char *at;
    uint64_t step;
};

static inline __attribute__((always_inline)) void put(const struct outlet *out, uint64_t row,
                                                      uint64_t column, __mmask16 mask, __m512 sum)
{
    float *c = out->c + row * out->stride + column;
    if (out->adds)
        sum = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, c), sum);
    if (out->bias)
        sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, out->bias + column));
    _mm512_mask_storeu_ps(c, mask, sum);
}

/* Multiplies and adds over `steps` steps of k. `rows` is a constant in each inlined copy, so that
 * the sums stay in registers. */
static inline __attribute__((always_inline)) void
multiply_steps(uint64_t rows, uint64_t steps, const float *a, const float *b, const char *fetch,
               uint64_t fetch_step, bool is_c, __m512 low[STRIP_ROWS], __m512 high[STRIP_ROWS])
{
    for (uint64_t k = 0; k < steps; k++, a += rows, b += STRIP_COLUMNS, fetch += fetch_step) {
        __m512 b_low = _mm512_loadu_ps(b), b_high = _mm512_loadu_ps(b + LANES);
        if (is_c) {
            _mm_prefetch(fetch, _MM_HINT_T0);
            _mm_prefetch(fetch + LINE_BYTES, _MM_HINT_T0);
        } else {
            _mm_prefetch(fetch, _MM_HINT_T1);
        }
#pragma GCC unroll 16
        for (uint64_t i = 0; i < rows; i++) {
            __m512 all = _mm512_set1_ps(a[i]);
            low[i] = _mm512_fmadd_ps(all, b_low, low[i]);
            high[i] = _mm512_fmadd_ps(all, b_high, high[i]);
        }
    }
}

/* Computes a patch. The first steps of k prefetch its rows of C, which lie far apart; the others
 * prefetch the next strip. */
static inline __attribute__((always_inline)) void
multiply_rows(uint64_t rows, const struct patch *patch, uint64_t k_count, const struct outlet *out,
              struct ahead *ahead)
{
    const float *a = patch->a, *b = patch->b;
    __m512 low[STRIP_ROWS], high[STRIP_ROWS];
#pragma GCC unroll 16
    for (uint64_t i = 0; i < rows; i++)
        low[i] = high[i] = _mm512_setzero_ps();
    uint64_t first = size_min(rows, k_count), rest = k_count - first;
    multiply_steps(rows, first, a, b, (const char *)(out->c + patch->m * out->stride + patch->n),
                   4 * out->stride, true, low, high);
    multiply_steps(rows, rest, a + first * rows, b + first * STRIP_COLUMNS, ahead->at, ahead->step,
                   false, low, high);
    ahead->at += rest * ahead->step;
    __mmask16 low_mask = mask_of(patch->columns);
    __mmask16 high_mask = mask_of(patch->columns > LANES ? patch->columns - LANES : 0);
#pragma GCC unroll 16
    for (uint64_t i = 0; i < rows; i++) {
        put(out, patch->m + i, patch->n, low_mask, low[i]);
        put(out, patch->m + i, patch->n + LANES, high_mask, high[i]);
    }
}

static void multiply(const struct patch *patch, uint64_t k_count, const struct outlet *out,
                     struct ahead *ahead)
{
    switch (patch->rows) {
    case 14:
        return multiply_rows(14, patch, k_count, out, ahead);
    case 13:
        return multiply_rows(13, patch, k_count, out, ahead);
    case 12:
        return multiply_rows(12, patch, k_count, out, ahead);
    case 11:
        return multiply_rows(11, patch, k_count, out, ahead);
    case 10:
        return multiply_rows(10, patch, k_count, out, ahead);
    case 9:
        return multiply_rows(9, patch, k_count, out, ahead);
    case 8:
        return multiply_rows(8, patch, k_count, out, ahead);
    case 7:
        return multiply_rows(7, patch, k_count, out, ahead);
    case 6:
        return multiply_rows(6, patch, k_count, out, ahead);
    case 5:
        return multiply_rows(5, patch, k_count, out, ahead);
    case 4:
        return multiply_rows(4, patch, k_count, out, ahead);
    case 3:
        return multiply_rows(3, patch, k_count, out, ahead);
    case 2:
        return multiply_rows(2, patch, k_count, out, ahead);
    default:
        return multiply_rows(1, patch, k_count, out, ahead);
    }
}

/* ---- the product ---- */

/* The number of rows or columns, a whole number of strips, that fit into `most` bytes. */
static uint64_t fitting(uint64_t most, uint64_t slice_elems)
{
    return size_max(most / (4 * slice_elems) / STRIP_COLUMNS, 1) * STRIP_COLUMNS;
}

void cpui_fp32_product_plan(const matmul_desc *desc, int threads, cpui_fp32_product *out)
{
    cpui_fp32_product self = {.desc = *desc, .threads = threads};
    self.cuts_m = desc->m > desc->n;
    uint64_t cut = self.cuts_m ? desc->m : desc->n, shared = self.cuts_m ? desc->n : desc->m;
    self.slice_elems = cpui_even_part(desc->k, SLICE_ELEMS, PACK_STEPS);
    /* Every thread gets the same number of blocks. */
    uint64_t most = fitting(CUT_BYTES, self.slice_elems), team = (uint64_t)threads;
    uint64_t rounds = size_max(size_div_up(cut, most * team), BLOCKS_A_THREAD);
    self.cut_elems = size_round_up(size_div_up(cut, rounds * team), STRIP_COLUMNS);
    self.shared_elems =
        cpui_even_part(shared, fitting(SHARED_BYTES, self.slice_elems), STRIP_COLUMNS);
    self.cut_bytes = 4 * self.cut_elems * self.slice_elems;
    self.cut_offset = 4 * self.shared_elems * self.slice_elems;
    self.scratch_bytes = self.cut_offset + team * self.cut_bytes;
    *out = self;
}

/* Computes all patches of a block of the cut operand and a piece of the shared one. */
static void run_block(const struct outlet *out, const struct piece *shared,
                      const struct piece *block, uint64_t k_count)
{
    uint64_t shared_strips = strip_count(shared), block_strips = strip_count(block);
    for (uint64_t s = 0; s < shared_strips; s++) {
        uint64_t s_at = shared->begin + strip_begin(shared, s), s_extent = strip_extent(shared, s);
        const float *s_strip = strip_at(shared, s, k_count);
        /* the next shared strip is prefetched, a part of it with each patch */
        struct ahead next = {(const char *)strip_at(shared, s + 1, k_count), 0};
        if (s + 1 < shared_strips)
            next.step = size_div_up(4 * (shared->is_a ? STRIP_ROWS : STRIP_COLUMNS), block_strips);
        for (uint64_t q = 0; q < block_strips; q++) {
            uint64_t q_at = block->begin + strip_begin(block, q), q_extent = strip_extent(block, q);
            const float *q_strip = strip_at(block, q, k_count);
            struct patch patch = {s_at, q_at, s_extent, q_extent, s_strip, q_strip};
            if (block->is_a)
                patch = (struct patch){q_at, s_at, q_extent, s_extent, q_strip, s_strip};
            multiply(&patch, k_count, out, &next);
        }
    }
}

/* The state of a run that all its threads share. */
struct run {
    const cpui_fp32_product *self;
    struct packed_view cut, shared;
    const float *bias;
    float *c;
    char *scratch;
};

/* Does one thread's share of a slice. All threads of the team call it. */
static void run_slice(const struct run *run, uint64_t k, uint64_t k_count)
{
    const cpui_fp32_product *self = run->self;
    const matmul_desc *desc = &self->desc;
    uint64_t cut = self->cuts_m ? desc->m : desc->n, all = self->cuts_m ? desc->n : desc->m;
    struct outlet out = {.adds = k > 0 || desc->accumulate,
                         .bias = k + k_count == desc->k && desc->has_bias ? run->bias : NULL,
                         .c = run->c,
                         .stride = desc->c_stride};
    float *own = (float *)(run->scratch + self->cut_offset +
                           (uint64_t)omp_get_thread_num() * self->cut_bytes);
    for (uint64_t s = 0; s < all; s += self->shared_elems) {
        struct piece shared = {(float *)run->scratch, s, size_min(self->shared_elems, all - s),
                               !self->cuts_m};
        uint64_t strips = strip_count(&shared);
#pragma omp for schedule(dynamic, 1)
        for (uint64_t i = 0; i < strips; i += PACK_STRIPS)
            pack_strips(&run->shared, &shared, i, size_min(i + PACK_STRIPS, strips), k, k_count);
#pragma omp for schedule(dynamic, 1)
        for (uint64_t q = 0; q < cut; q += self->cut_elems) {
            struct piece block = {own, q, size_min(self->cut_elems, cut - q), self->cuts_m};
            pack_strips(&run->cut, &block, 0, strip_count(&block), k, k_count);
            run_block(&out, &shared, &block, k_count);
        }
    }
}

void cpui_fp32_product_run(const cpui_fp32_product *self, const float *a, const float *b,
                           const float *bias, float *c, void *scratch)
{
    const matmul_desc *desc = &self->desc;
    struct packed_view of_a = {a, desc->a_stride, !desc->a_transposed};
    struct packed_view of_b = {b, desc->b_stride, desc->b_transposed};
    struct run run = {.self = self,
                      .cut = self->cuts_m ? of_a : of_b,
                      .shared = self->cuts_m ? of_b : of_a,
                      .bias = bias,
                      .c = c,
                      .scratch = scratch};
#pragma omp parallel num_threads(self->threads)
    for (uint64_t k = 0; k < desc->k; k += self->slice_elems)
        run_slice(&run, k, size_min(self->slice_elems, desc->k - k));
}

#else

void cpui_fp32_product_plan(const matmul_desc *desc, int threads, cpui_fp32_product *out)
{
    *out = (cpui_fp32_product){.desc = *desc, .threads = threads};
}

void cpui_fp32_product_run(const cpui_fp32_product *self, const float *a, const float *b,
                           const float *bias, float *c, void *scratch)
{
}

#endif
