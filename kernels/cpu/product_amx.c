/* Products of bf16 operands on AMX tiles; see product_own.h. Compiled with AMX and AVX-512.
 *
 *   tile     1 KiB: 16 rows of 32 bf16 along k (A); 16 pairs of k by 16 columns (B);
 *            or 16 x 16 fp32 (C)
 *   step     two tiles: 32 rows of A, or 32 columns of B, and 32 elements of k
 *   strip    the steps of a slice of k, one after the other
 *   square   32 x 32 elements of C in four tiles, which stay in registers while k runs over a strip
 *            or over a part of it
 *
 * One operand, the cut one, is divided into blocks. A thread takes a block, packs it for itself and
 * keeps it in its second level of cache. The strips of the other operand, the shared one, are
 * packed by all threads together, SHARED_BYTES at a time; each thread goes through them and
 * prefetches the next one. k is cut into slices of at most SLICE_ELEMS. The sums continue from
 * slice to slice in fp32 memory: in C, or in scratch if C has 16 bits. */
#include "kernels/cpu/product_own.h"

#if defined(__AMX_BF16__)

#include <assert.h>
#include <omp.h>

#include "kernels/cpu/product_amx_pack.h"

/* Measured on 2 cores, L2 of 2 MiB each, in GFLOP/s for m x n x k, with random operands:
 *   SLICE_ELEMS, CUT_BYTES      4096x3072x768  4096x768x3072  768x3072x4096 (A transposed)
 *   4096, 512 KiB                    -             1815            1289
 *   1536, 768 KiB                  2335            2263            1816
 *   1024, 512 KiB                  2207            2127            1661
 *   1024, 768 KiB                  2528            2250            1924
 * If n is cut, C is written in rows as wide as a block (4096x3072x768: 2528). If m is cut, it is
 * written in single lines far apart (1464). But a narrow C is better cut along m: 4096x768x768 2386
 * against 1860. If the shared operand stays in cache beside a small block, C is written in whole
 * rows: 50257x768x192, accumulating, rose from 532 to 1158, and to 1290 with rows prefetched before
 * they are needed.
 *
 * If both tiles of a product come from the second level of cache, a step (4 KiB) takes two cores 35
 * ns, and 48 ns with the stores of the square. If one of them comes from the first level, it takes
 * 27 and 30 ns. Therefore strips are cut into parts, although the sums then go through memory.
 * Speed relative to whole strips with four blocks a thread, measured alternately, operands not in
 * cache, noise 0.1: 3072x768x1024 transposed 1.5; 1024x2304x768, 1024x768x3072 and 384x50257x768
 * about 1.1; 50257x768x384, accumulating, 0.95; a step of GPT-2 at 1024 rows 1.02. Strips of 9 to
 * 12 steps were slower in parts; strips of 13 to 16 steps have not been measured. */
enum {
    SLICE_ELEMS = 1024,
    CUT_BYTES = 768 * 1024,
    SHARED_BYTES = 8 * 1024 * 1024,
    ROWS_BYTES = 640 * 1024, /* bytes of the shared operand */
    ROWS_ELEMS = 128,
    NARROW = 4, /* m is cut if it is at least so many times n */
    LINE_BYTES = 64,
    SQUARE_BYTES = 4 * TILE_BYTES,
    /* squares of one strip of the fixed operand, at most: their sums stay in cache too */
    SQUARES_MAX = 24,
    /* steps of a part of a fixed strip: 16 KiB, which stay in the first level of cache */
    PART_STEPS = 8,
    WHOLE_STEPS = 16, /* a strip of at most so many steps is not cut into parts */
    ROWS_AHEAD = 2,   /* rows of C that are prefetched before they are written, along its rows */
    LINES_AHEAD = 12, /* the same down its columns */
};

/* ---- a square ---- */

/* The destination of the squares of a slice. */
struct outlet {
    const float *addend; /* NULL: nothing is added */
    uint64_t addend_stride;
    const uint16_t *bias; /* NULL: none */
    void *target;
    uint64_t target_stride;
    bool is_fp32;
};

/* Squares that are being written to C: one, or all of a fixed strip. */
struct leaving {
    const struct outlet *out;
    const char *squares;    /* one after the other, 4 KiB each: tiles 0 to 3 */
    uint64_t m, n;          /* position of the first square in C */
    uint64_t rows, columns; /* extent of all of them in C */
    bool lie_along_n;       /* the squares lie side by side along n; else one below the other */
    uint64_t row, square;   /* the next row to write, and its square */
    uint64_t left;          /* rows of squares that are not yet written */
    /* the row of C so far ahead is prefetched; 0: the rows are prefetched already */
    uint64_t ahead;
};

/* Prefetches the memory that a row of a square will be added to, or that it will overwrite: the
 * hardware does not predict pieces of 64 or 128 bytes. The address may be beyond C, which does no
 * harm. */
static inline __attribute__((always_inline)) void fetch_row(const struct outlet *out, uint64_t m,
                                                            uint64_t n)
{
    if (out->addend) {
        const float *addend = out->addend + m * out->addend_stride + n;
        _mm_prefetch((const char *)addend, _MM_HINT_T0);
        _mm_prefetch((const char *)(addend + 16), _MM_HINT_T0);
    } else {
        uint64_t at = (m * out->target_stride + n) * (out->is_fp32 ? 4 : 2);
        _mm_prefetch((const char *)out->target + at, _MM_HINT_T0);
        if (out->is_fp32)
            _mm_prefetch((const char *)out->target + at + LINE_BYTES, _MM_HINT_T0);
    }
}

/* Writes row i of a square to row m of C, columns [n, n + columns). */
static inline __attribute__((always_inline)) void put_row(const struct outlet *out,
                                                          const char *square, uint64_t i,
                                                          uint64_t m, uint64_t n, uint64_t columns)
{
    const char *row = square + (i / 16) * STEP_BYTES + (i % 16) * TILE_ROW_BYTES;
    uint64_t at = m * out->target_stride + n;
    for (uint64_t h = 0; h < 2; h++) {
        __mmask16 mask = mask16_of(columns > 16 * h ? columns - 16 * h : 0);
        __m512 value = _mm512_load_ps(row + h * TILE_BYTES);
        if (out->bias)
            value =
                _mm512_add_ps(value, widen(_mm256_maskz_loadu_epi16(mask, out->bias + n + 16 * h)));
        if (out->addend) {
            const float *addend = out->addend + m * out->addend_stride + n + 16 * h;
            value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, addend), value);
        }
        if (out->is_fp32)
            _mm512_mask_storeu_ps((float *)out->target + at + 16 * h, mask, value);
        else
            _mm256_mask_storeu_epi16((uint16_t *)out->target + at + 16 * h, mask, narrow(value));
    }
}

/* Writes the next `count` rows of squares, along the rows of C if lie_along_n is set. */
static inline __attribute__((always_inline)) void put_rows(struct leaving *self, uint64_t count)
{
    const struct outlet *out = self->out;
    count = size_min(count, self->left);
    self->left -= count;
    for (; count > 0; count--) {
        const char *square = self->squares + self->square * SQUARE_BYTES;
        uint64_t along = self->square * SQUARE, columns = self->columns;
        uint64_t m = self->m + self->row, n = self->n, i = self->row;
        if (self->lie_along_n) {
            n += along;
            columns -= along;
            self->square++;
            if (along + SQUARE >= self->columns) {
                self->square = 0;
                self->row++;
            }
        } else {
            m += along;
            if (++self->row == SQUARE) {
                self->row = 0;
                self->square++;
            }
        }
        if (self->ahead > 0)
            fetch_row(out, m + self->ahead, n);
        put_row(out, square, i, m, n, columns);
    }
}

/* The state of a thread that goes on from square to square. */
struct flow {
    struct leaving leaving;
    uint64_t rows_a_step; /* rows of squares that are written with each step */
    char *pending;        /* the square where the contents of tiles 0 to 3 belong */
    const char *ahead;    /* the address of the next prefetch */
    uint64_t lines;       /* lines of 64 bytes that are prefetched with each step */
};

#define BEGIN_TILE(tile, left, right)                                                              \
    do {                                                                                           \
        _tile_stored(tile, pending + (tile)*TILE_BYTES, TILE_ROW_BYTES);                           \
        if (is_first)                                                                              \
            _tile_zero(tile);                                                                      \
        else                                                                                       \
            _tile_loadd(tile, square + (tile)*TILE_BYTES, TILE_ROW_BYTES);                         \
        _tile_dpbf16ps(tile, left, right);                                                         \
    } while (0)

/* Tiles 0 to 3, which belong to `square`, become or are increased by the product a b over `steps`
 * steps. The tiles of the previous square are stored one by one, each just before its register is
 * used again; storing all of them at once would wait 250 ns for the last products. The previous
 * strip writes a few rows of C with each step, when the vector units are idle. */
static inline __attribute__((always_inline)) void multiply(struct flow *self, const char *a,
                                                           const char *b, uint64_t steps,
                                                           bool is_first, char *square)
{
    char *pending = self->pending;
    _tile_loadd(4, a, TILE_ROW_BYTES);
    _tile_loadd(6, b, TILE_ROW_BYTES);
    _tile_loadd(7, b + TILE_BYTES, TILE_ROW_BYTES);
    _tile_loadd(5, a + TILE_BYTES, TILE_ROW_BYTES);
    BEGIN_TILE(0, 4, 6);
    BEGIN_TILE(1, 4, 7);
    BEGIN_TILE(2, 5, 6);
    BEGIN_TILE(3, 5, 7);
    self->pending = square;
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
        put_rows(&self->leaving, self->rows_a_step);
        for (uint64_t line = 0; line < self->lines; line++, self->ahead += LINE_BYTES)
            _mm_prefetch(self->ahead, _MM_HINT_T1);
    }
    tiles_fence();
}

static __attribute__((noinline)) void multiply_first(struct flow *self, const char *a,
                                                     const char *b, uint64_t steps, char *square)
{
    multiply(self, a, b, steps, true, square);
}

static __attribute__((noinline)) void multiply_on(struct flow *self, const char *a, const char *b,
                                                  uint64_t steps, char *square)
{
    multiply(self, a, b, steps, false, square);
}

/* Stores the last square of a block. */
static void store_pending(const struct flow *self)
{
    _tile_stored(0, self->pending, TILE_ROW_BYTES);
    _tile_stored(1, self->pending + TILE_BYTES, TILE_ROW_BYTES);
    _tile_stored(2, self->pending + 2 * TILE_BYTES, TILE_ROW_BYTES);
    _tile_stored(3, self->pending + 3 * TILE_BYTES, TILE_ROW_BYTES);
    tiles_fence();
}

/* ---- the product ---- */

/* The number of rows or columns, a whole number of strips, that fit into `most` bytes. */
static uint64_t fitting(uint64_t most, uint64_t strip_bytes)
{
    return size_max(most / strip_bytes, 1) * SQUARE;
}

void cpui_amx_product_plan(const matmul_desc *desc, int threads, cpui_amx_product *out)
{
    cpui_amx_product self = {.desc = *desc, .threads = threads};
    self.cuts_m = desc->m / NARROW >= desc->n;
    uint64_t cut = self.cuts_m ? desc->m : desc->n, shared = self.cuts_m ? desc->n : desc->m;
    self.slice_elems = cpui_even_part(desc->k, SLICE_ELEMS, SQUARE);
    uint64_t strip_bytes = self.slice_elems / TILE_DEPTH * STEP_BYTES;
    uint64_t most = size_min(fitting(CUT_BYTES, strip_bytes), SQUARES_MAX * SQUARE);
    uint64_t blocks = size_round_up(size_div_up(cut, most), (uint64_t)threads);
    self.cut_elems = size_round_up(size_div_up(cut, blocks), SQUARE);
    self.shared_elems = cpui_even_part(shared, fitting(SHARED_BYTES, strip_bytes), SQUARE);
    self.goes_along_rows = self.cuts_m && size_div_up(shared, SQUARE) * strip_bytes <= ROWS_BYTES &&
                           shared <= SQUARES_MAX * SQUARE;
    if (self.goes_along_rows)
        self.cut_elems = size_min(self.cut_elems, ROWS_ELEMS);
    self.squares_offset = self.cut_elems / SQUARE * strip_bytes;
    uint64_t squares =
        size_div_up(self.goes_along_rows ? self.shared_elems : self.cut_elems, SQUARE);
    self.cut_bytes = self.squares_offset + (1 + 2 * squares) * SQUARE_BYTES;
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

/* The squares [first, first + count) from strip f of `fixed` and the strips of `moving`. */
static struct leaving squares_of(const struct outlet *out, const struct piece *fixed, uint64_t f,
                                 bool fixed_is_m, const struct piece *moving, uint64_t first,
                                 uint64_t count, const char *squares)
{
    uint64_t at = first * SQUARE, f_begin = fixed->begin + f, m_begin = moving->begin + at;
    uint64_t f_count = size_min(fixed->count - f, SQUARE);
    uint64_t m_count = size_min(moving->count - at, count * SQUARE);
    struct leaving all = {.out = out,
                          .squares = squares,
                          .lie_along_n = fixed_is_m,
                          .m = fixed_is_m ? f_begin : m_begin,
                          .n = fixed_is_m ? m_begin : f_begin,
                          .rows = fixed_is_m ? f_count : m_count,
                          .columns = fixed_is_m ? m_count : f_count,
                          .left = fixed_is_m ? f_count * count : m_count};
    return all;
}

/* Prefetches the first `count` rows. */
static void fetch_rows(const struct leaving *self, uint64_t count)
{
    uint64_t columns = self->lie_along_n ? self->columns : 1;
    for (uint64_t i = 0; i < size_min(count, self->rows); i++)
        for (uint64_t n = 0; n < columns; n += SQUARE)
            fetch_row(self->out, self->m + i, self->n + n);
}

/* Computes all squares of two pieces. A part of a strip of `fixed` is short enough to stay in the
 * first level of cache; it meets the strips of `moving`, which stay in the second level. The sums
 * go on from part to part through tiles in `squares`, exactly, and all squares of a strip are
 * written while the products of the next strip run. A short strip is not cut: each of its squares
 * is written while the next one is computed. `squares` has room for 1 + 2 * (number of strips of
 * `moving`) squares. */
static void run_block(const struct outlet *out, const struct piece *fixed, bool fixed_is_m,
                      const struct piece *moving, uint64_t k_count, char *squares)
{
    uint64_t steps = size_div_up(k_count, TILE_DEPTH), strip_bytes = steps * STEP_BYTES;
    bool is_whole = steps <= WHOLE_STEPS;
    uint64_t part = is_whole ? steps : size_div_up(steps, size_div_up(steps, PART_STEPS));
    uint64_t count = size_div_up(moving->count, SQUARE);
    char *both[2] = {squares + SQUARE_BYTES, squares + (1 + count) * SQUARE_BYTES};
    struct flow flow = {.pending = squares,
                        .rows_a_step = size_div_up(SQUARE, steps),
                        .lines = size_div_up(STEP_BYTES / LINE_BYTES, count)};
    tiles_fence();
    for (uint64_t f = 0; f < fixed->count; f += SQUARE) {
        const char *strip = fixed->strips + f / SQUARE * strip_bytes;
        char *sums = both[f / SQUARE % 2];
        flow.ahead = strip + strip_bytes;
        for (uint64_t k = 0; k < steps; k += part) {
            uint64_t part_steps = size_min(part, steps - k);
            const char *a = strip + k * STEP_BYTES;
            for (uint64_t q = 0; q < count; q++) {
                const char *b = moving->strips + q * strip_bytes + k * STEP_BYTES;
                char *square = is_whole ? squares : sums + q * SQUARE_BYTES;
                struct leaving next;
                if (is_whole) {
                    next = squares_of(out, fixed, f, fixed_is_m, moving, q, 1, square);
                    fetch_rows(&next, SQUARE);
                }
                if (k == 0)
                    multiply_first(&flow, fixed_is_m ? a : b, fixed_is_m ? b : a, part_steps,
                                   square);
                else
                    multiply_on(&flow, fixed_is_m ? a : b, fixed_is_m ? b : a, part_steps, square);
                if (is_whole)
                    flow.leaving = next;
            }
        }
        if (!is_whole) {
            flow.leaving = squares_of(out, fixed, f, fixed_is_m, moving, 0, count, sums);
            flow.leaving.ahead = fixed_is_m ? ROWS_AHEAD : LINES_AHEAD;
            fetch_rows(&flow.leaving, flow.leaving.ahead);
        }
    }
    store_pending(&flow);
    put_rows(&flow.leaving, flow.leaving.left);
}

/* The state of a run that all its threads share. */
struct run {
    const cpui_amx_product *self;
    struct packed_view cut, shared;
    const void *bias;
    void *c;
    char *scratch;
};

/* The destination of slice [k, k + k_count). */
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

/* Does one thread's share of a slice. All threads of the team call it. */
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
            if (self->goes_along_rows)
                run_block(&out, &block, true, &shared, k_count, own + self->squares_offset);
            else
                run_block(&out, &shared, !self->cuts_m, &block, k_count,
                          own + self->squares_offset);
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
}

#endif
