/* The blocks of attention_dots.h. Compiled with AVX-512 and its bf16 instructions.
 *
 *   panel   up to 32 columns of the packed operand, two registers a word
 *   patch   8 rows by a panel of the result; it stays in 16 registers while the sum runs
 *
 * The instruction that rounds to bf16 turns subnormals into zero, which the products do anyway.
 * Therefore the probabilities and their gradients may be rounded by it. */
#include "kernels/cpu/attention_dots.h"

#include "base/size.h"

#if defined(__AVX512BF16__)

#include <math.h>

#include "kernels/cpu/attention_vectors.h"
#include "kernels/cpu/transpose.h"

enum {
    PANEL = 32,     /* columns */
    PATCH_ROWS = 8, /* 16 sums hide the latency of the instruction */
    HALVES = 32,    /* bf16 elements of a register */
    /* A sum over more keys is made of two chains, each over half of them, as oneDNN 2.6 makes it.
     * A block has at most 512 keys. */
    CHAIN_KEYS = 384,
};

static uint64_t words_of(uint64_t elems)
{
    return size_div_up(elems, 2);
}

static __mmask32 halves_mask(uint64_t count)
{
    return count >= HALVES ? 0xffffffffu : (1u << count) - 1u;
}

bool cpui_attention_dots_takes(const attention_desc *desc)
{
    return desc->type == DTYPE_BF16 && desc->scale > 0 && desc->head_dim % 2 == 0 &&
           attention_value_dim(desc) % 2 == 0;
}

size_t cpui_attention_dots_layout(uint64_t head_dim, uint64_t value_dim, uint64_t rows,
                                  uint64_t keys, uint64_t score_stride, bool backward, char *base,
                                  attention_dots *dots)
{
    uint64_t words = words_of(head_dim), dim = size_round_up(head_dim, VEC_ELEMS);
    uint64_t value_words = words_of(value_dim), value = size_round_up(value_dim, VEC_ELEMS);
    uint64_t key_columns = size_round_up(keys, VEC_ELEMS);
    uint64_t key_pairs = words_of(keys), row_pairs = words_of(rows);
    size_t offset = 0;
    *dots = (attention_dots){.head_dim = head_dim, .value_dim = value_dim};
    dots->query_rows = cpui_take(base, &offset, 4 * words * rows);
    dots->key_columns = cpui_take(base, &offset, 4 * words * key_columns);
    if (backward) {
        dots->grad_rows = cpui_take(base, &offset, 4 * value_words * rows);
        dots->query_pairs = cpui_take(base, &offset, 4 * row_pairs * dim);
        dots->grad_pairs = cpui_take(base, &offset, 4 * row_pairs * value);
        dots->key_pairs = cpui_take(base, &offset, 4 * key_pairs * dim);
        dots->value_columns = cpui_take(base, &offset, 4 * value_words * key_columns);
        dots->score_grads = cpui_take(base, &offset, 2 * rows * score_stride);
    } else {
        dots->value_pairs = cpui_take(base, &offset, 4 * key_pairs * value);
    }
    return offset;
}

/* ---- packing ---- */

/* Copies rows, so that they lie side by side. */
static void copy_rows(const dots_rows *source, uint64_t dim, uint32_t *target)
{
    uint64_t words = words_of(dim);
    for (uint64_t row = 0; row < source->count; row++)
        for (uint64_t i = 0; i < dim; i += HALVES) {
            __m512i elems = _mm512_maskz_loadu_epi16(halves_mask(dim - i),
                                                     source->first + row * source->stride + i);
            __mmask16 mask =
                words - i / 2 >= VEC_ELEMS ? 0xffff : (__mmask16)((1u << (words - i / 2)) - 1u);
            _mm512_mask_storeu_epi32(target + row * words + i / 2, mask, elems);
        }
}

/* Packs panels whose columns are the rows of the source and whose words lie along them. */
static void pack_columns(const dots_rows *source, uint64_t dim, uint32_t *target)
{
    uint64_t words = words_of(dim);
    for (uint64_t row = 0; row < source->count; row += VEC_ELEMS) {
        uint64_t panel = row / PANEL * PANEL;
        uint64_t width = source->count - panel > VEC_ELEMS ? PANEL : VEC_ELEMS;
        uint32_t *column = target + panel * words + row % PANEL;
        for (uint64_t word = 0; word < words; word += VEC_ELEMS) {
            __m512i r[16];
            const uint16_t *first = source->first + row * source->stride + 2 * word;
            __mmask32 mask = halves_mask(dim - 2 * word);
#pragma GCC unroll 16
            for (uint64_t i = 0; i < VEC_ELEMS; i++)
                r[i] = row + i < source->count
                           ? _mm512_maskz_loadu_epi16(mask, first + i * source->stride)
                           : _mm512_setzero_si512();
            transpose(r);
            uint64_t count = size_min(words - word, VEC_ELEMS);
#pragma GCC unroll 16
            for (uint64_t i = 0; i < VEC_ELEMS; i++)
                if (i < count)
                    _mm512_storeu_si512(column + (word + i) * width, r[i]);
        }
    }
}

/* Packs panels whose columns are those of the source and whose words are pairs of its rows. */
static void pack_pairs(const dots_rows *source, uint64_t dim, uint32_t *target)
{
    uint64_t pairs = words_of(source->count);
    for (uint64_t panel = 0; panel < dim; panel += PANEL) {
        bool is_whole = dim - panel > VEC_ELEMS;
        __mmask32 mask = halves_mask(dim - panel);
        uint32_t *words = target + panel * pairs;
        const uint16_t *row = source->first + panel;
        for (uint64_t i = 0; i < pairs; i++, row += 2 * source->stride) {
            __m512i even = _mm512_maskz_loadu_epi16(mask, row), odd = _mm512_setzero_si512();
            __m512i low, high;
            if (2 * i + 1 < source->count)
                odd = _mm512_maskz_loadu_epi16(mask, row + source->stride);
            interleave(even, odd, &low, &high);
            _mm512_storeu_si512(words, low);
            if (is_whole)
                _mm512_storeu_si512(words + VEC_ELEMS, high);
            words += is_whole ? PANEL : VEC_ELEMS;
        }
    }
}

void cpui_attention_dots_queries(const attention_dots *dots, const dots_rows *query,
                                 const dots_rows *output_grad)
{
    copy_rows(query, dots->head_dim, dots->query_rows);
    if (!output_grad)
        return;
    copy_rows(output_grad, dots->value_dim, dots->grad_rows);
    pack_pairs(query, dots->head_dim, dots->query_pairs);
    pack_pairs(output_grad, dots->value_dim, dots->grad_pairs);
}

void cpui_attention_dots_keys(attention_dots *dots, const dots_rows *keys, const dots_rows *values)
{
    dots->keys = keys->count;
    pack_columns(keys, dots->head_dim, dots->key_columns);
    if (dots->value_pairs) {
        pack_pairs(values, dots->value_dim, dots->value_pairs);
        return;
    }
    pack_columns(values, dots->value_dim, dots->value_columns);
    pack_pairs(keys, dots->head_dim, dots->key_pairs);
}

/* ---- a patch ---- */

/* The operand whose words are broadcast: word k of row i is at first + i * row_words + k *
 * step_words. */
struct broadcast {
    const uint32_t *first;
    uint64_t row_words, step_words;
};

/* c[rows, 16 * vectors] = the product over `steps` words, added to what is there if `adds`. rows
 * and vectors are constants in each inlined copy, so that the sums stay in registers. */
static inline __attribute__((always_inline)) void
multiply_patch(uint64_t rows, uint64_t vectors, uint64_t steps, const struct broadcast *a,
               const uint32_t *b, float *c, uint64_t stride, bool adds)
{
    __m512 sums[PATCH_ROWS][2];
    const uint32_t *word = a->first;
    uint64_t row_words = a->row_words;
#pragma GCC unroll 8
    for (uint64_t i = 0; i < rows; i++)
        sums[i][0] = sums[i][1] = _mm512_setzero_ps();
    for (uint64_t k = 0; k < steps; k++, word += a->step_words, b += VEC_ELEMS * vectors) {
        __m512bh low = (__m512bh)_mm512_loadu_si512(b), high = low;
        if (vectors == 2)
            high = (__m512bh)_mm512_loadu_si512(b + VEC_ELEMS);
#pragma GCC unroll 8
        for (uint64_t i = 0; i < rows; i++) {
            __m512bh all = (__m512bh)_mm512_set1_epi32((int)word[i * row_words]);
            sums[i][0] = _mm512_dpbf16_ps(sums[i][0], all, low);
            if (vectors == 2)
                sums[i][1] = _mm512_dpbf16_ps(sums[i][1], all, high);
        }
    }
#pragma GCC unroll 8
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < vectors; j++) {
            float *at = c + i * stride + j * VEC_ELEMS;
            _mm512_storeu_ps(at,
                             adds ? _mm512_add_ps(_mm512_loadu_ps(at), sums[i][j]) : sums[i][j]);
        }
}

/* The same for any number of rows up to PATCH_ROWS. */
static void multiply(uint64_t rows, uint64_t vectors, uint64_t steps, const struct broadcast *a,
                     const uint32_t *b, float *c, uint64_t stride, bool adds)
{
    if (rows == PATCH_ROWS && vectors == 2) {
        multiply_patch(PATCH_ROWS, 2, steps, a, b, c, stride, adds);
        return;
    }
    if (rows == PATCH_ROWS) {
        multiply_patch(PATCH_ROWS, 1, steps, a, b, c, stride, adds);
        return;
    }
    struct broadcast one = *a;
    for (; rows > 0; rows--, one.first += a->row_words, c += stride) {
        if (vectors == 2)
            multiply_patch(1, 2, steps, &one, b, c, stride, adds);
        else
            multiply_patch(1, 1, steps, &one, b, c, stride, adds);
    }
}

/* ---- products of a block ---- */

static uint64_t vectors_of(uint64_t columns)
{
    return columns > VEC_ELEMS ? 2 : 1;
}

/* The columns that at least one row of a patch sees. */
static attention_range patch_columns(const score_block *block, uint64_t row, uint64_t count)
{
    return (attention_range){block_columns(block, row).begin,
                             block_columns(block, row + count - 1).end};
}

/* Packed keys: those of the block begin `offset` keys after the first, and `count` are packed from
 * there on, at least block->cols. */
struct packed_keys {
    uint64_t offset, count;
};

/* scores[rows, cols] = rows times columns over `dim`. Panels that no row of a patch sees are left
 * out. */
static void multiply_seen(uint64_t dim, const score_block *block, struct packed_keys packed,
                          const uint32_t *rows, const uint32_t *columns, float *scores)
{
    uint64_t words = words_of(dim);
    columns += packed.offset * words;
    for (uint64_t panel = 0; panel < block->cols; panel += PANEL)
        for (uint64_t row = 0; row < block->rows; row += PATCH_ROWS) {
            uint64_t count = size_min(block->rows - row, PATCH_ROWS);
            attention_range seen = patch_columns(block, row, count);
            if (panel >= seen.end || panel + PANEL <= seen.begin)
                continue;
            struct broadcast a = {rows + row * words, words, 1};
            multiply(count, vectors_of(packed.count - panel), words, &a, columns + panel * words,
                     scores + row * block->stride + panel, block->stride, false);
        }
}

/* sums[rows, dim] += P times pairs of keys, those that a patch sees. A row of P begins every
 * `row_words` words. */
static void multiply_keys(uint64_t dim, const score_block *block, struct packed_keys packed,
                          const void *probs, uint64_t row_words, const uint32_t *pairs, float *sums,
                          uint64_t stride)
{
    uint64_t words = words_of(block->cols), panel_words = words_of(packed.offset + packed.count);
    uint64_t chain = block->cols > CHAIN_KEYS ? words_of(size_div_up(block->cols, 2)) : words;
    for (uint64_t panel = 0; panel < dim; panel += PANEL) {
        uint64_t vectors = vectors_of(dim - panel);
        const uint32_t *first =
            pairs + panel * panel_words + packed.offset / 2 * vectors * VEC_ELEMS;
        for (uint64_t row = 0; row < block->rows; row += PATCH_ROWS) {
            uint64_t count = size_min(block->rows - row, PATCH_ROWS);
            attention_range seen = patch_columns(block, row, count);
            for (uint64_t link = 0; link < words; link += chain) {
                uint64_t word = size_max(link, seen.begin / 2);
                uint64_t end = size_min(size_min(link + chain, words), words_of(seen.end));
                if (word >= end)
                    continue;
                struct broadcast a = {(const uint32_t *)probs + row * row_words + word, row_words,
                                      1};
                multiply(count, vectors, end - word, &a, first + word * vectors * VEC_ELEMS,
                         sums + row * stride + panel, stride, true);
            }
        }
    }
}

/* sums[cols, dim] += P' times pairs of queries, those that see a patch. P is stored as pairs of
 * rows; a pair begins every 2 * block->stride words. */
static void multiply_queries(uint64_t dim, const score_block *block, const void *probs,
                             const uint32_t *pairs, float *sums, uint64_t stride)
{
    uint64_t words = words_of(block->rows), step = 2 * block->stride;
    for (uint64_t panel = 0; panel < dim; panel += PANEL) {
        uint64_t vectors = vectors_of(dim - panel);
        for (uint64_t key = 0; key < block->cols; key += PATCH_ROWS) {
            uint64_t count = size_min(block->cols - key, PATCH_ROWS);
            uint64_t position = block->first_key + key;
            attention_range seen =
                attention_queries_of_block(block->mask, position, position + count);
            uint64_t first =
                seen.begin > block->first_row ? (seen.begin - block->first_row) / 2 : 0;
            uint64_t end = seen.end > block->first_row ? words_of(seen.end - block->first_row) : 0;
            end = size_min(end, words);
            if (first >= end)
                continue;
            struct broadcast a = {(const uint32_t *)probs + first * step + key, 1, step};
            multiply(count, vectors, end - first, &a,
                     pairs + panel * words + first * vectors * VEC_ELEMS,
                     sums + key * stride + panel, stride, true);
        }
    }
}

/* ---- softmax ---- */

/* The lanes of columns [col, col + 16) that lie in `seen`. */
static __mmask16 seen_mask(attention_range seen, uint64_t col)
{
    uint64_t begin = seen.begin > col ? size_min(seen.begin - col, VEC_ELEMS) : 0;
    uint64_t end = seen.end > col ? size_min(seen.end - col, VEC_ELEMS) : 0;
    return (__mmask16)((1u << end) - (1u << begin));
}

/* The largest of scores[seen]; a NaN is left to the exponential. */
static float largest_score(const float *scores, attention_range seen)
{
    vec largest[2] = {vec_set(-INFINITY), vec_set(-INFINITY)};
    uint64_t col = seen.begin / VEC_ELEMS * VEC_ELEMS;
    for (; col < seen.begin; col += VEC_ELEMS) {
        __mmask16 mask = seen_mask(seen, col);
        largest[0] = _mm512_mask_max_ps(largest[0], mask, _mm512_maskz_loadu_ps(mask, scores + col),
                                        largest[0]);
    }
    for (; col + 2 * VEC_ELEMS <= seen.end; col += 2 * VEC_ELEMS) {
        largest[0] = vec_max(vec_load(scores + col), largest[0]);
        largest[1] = vec_max(vec_load(scores + col + VEC_ELEMS), largest[1]);
    }
    for (; col < seen.end; col += VEC_ELEMS) {
        __mmask16 mask = seen_mask(seen, col);
        largest[0] = _mm512_mask_max_ps(largest[0], mask, _mm512_maskz_loadu_ps(mask, scores + col),
                                        largest[0]);
    }
    return vec_largest(vec_max(largest[0], largest[1]));
}

/* As softmax of attention_rows.h, in the same order; columns up to an even number are written. */
static void softmax_rows(const score_block *block, const softmax_state *state)
{
    vec scale = vec_set(block->scale);
    cap_scores(block, NULL, NULL);
    for (uint64_t row = 0; row < block->rows; row++) {
        float *scores = block->scores + row * block->stride;
        uint16_t *probs = (uint16_t *)scores;
        attention_range seen = block_columns(block, row);
        /* rounding keeps the order, so the largest product with scale > 0 is that of the largest */
        float largest = raise_largest(state, row, largest_score(scores, seen) * block->scale);
        vec offset = vec_set(-largest), sum = vec_set(0.0f);
        for (uint64_t col = 0; col < block->cols; col += VEC_ELEMS) {
            __mmask16 mask = seen_mask(seen, col);
            vec p = vec_set(0.0f);
            if (mask == 0xffff) {
                p = vec_exp(vec_fma(vec_load(scores + col), scale, offset));
                sum = sum + p;
            } else if (mask) {
                vec x = vec_fma(_mm512_maskz_loadu_ps(mask, scores + col), scale, offset);
                p = _mm512_maskz_mov_ps(mask, vec_exp(x));
                sum = sum + p;
            }
            if (mask)
                p = keep_elems(block, row, col, p);
            _mm256_storeu_si256((__m256i *)(probs + col), (__m256i)_mm512_cvtneps_pbh(p));
        }
        state->row_sum[row] += vec_sum(sum);
    }
}

void cpui_attention_dots_forward(const attention_dots *dots, const score_block *block,
                                 uint64_t query_offset, const softmax_state *state)
{
    struct packed_keys packed = {0, dots->keys};
    const uint32_t *queries = dots->query_rows + query_offset * words_of(dots->head_dim);
    multiply_seen(dots->head_dim, block, packed, queries, dots->key_columns, block->scores);
    softmax_rows(block, state);
    multiply_keys(dots->value_dim, block, packed, block->scores, block->stride, dots->value_pairs,
                  state->output, state->output_stride);
}

/* ---- backward ---- */

/* P of a vector of scores, and dS in *grad. Columns outside of the mask are zero. */
static inline vec prob_of(const float *scores, const float *grads, __mmask16 mask, vec scale,
                          float lse, float delta, vec *grad)
{
    vec x = vec_fma(_mm512_maskz_loadu_ps(mask, scores), scale, vec_set(-lse));
    vec p = _mm512_maskz_mov_ps(mask, vec_exp(x));
    vec distance = _mm512_maskz_loadu_ps(mask, grads) - vec_set(delta);
    *grad = _mm512_maskz_mov_ps(mask, p * distance * scale);
    return p;
}

/* scores become P and prob_grads become dS, both as pairs of rows, in the place of the even row. dS
 * is also written row by row. */
static void softmax_pairs(const attention_dots *dots, const score_block *block, float *prob_grads,
                          const float *lse, const float *delta)
{
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    vec scale = vec_set(block->scale);
    uint64_t stride = block->stride;
    drop_grads(block, prob_grads);
    cap_scores(block, prob_grads, delta);
    for (uint64_t row = 0; row < block->rows; row += 2) {
        bool has_odd = row + 1 < block->rows;
        uint64_t odd = has_odd ? row + 1 : row, at = row * stride, odd_at = odd * stride;
        attention_range seen = block_columns(block, row), odd_seen = {0, 0};
        if (has_odd)
            odd_seen = block_columns(block, odd);
        for (uint64_t col = 0; col < block->cols;
             col += VEC_ELEMS, at += VEC_ELEMS, odd_at += VEC_ELEMS) {
            __mmask16 mask = seen_mask(seen, col), odd_mask = seen_mask(odd_seen, col);
            __m512i probs = _mm512_setzero_si512(), grads = probs;
            if (mask | odd_mask) {
                vec grad, odd_grad;
                vec p = prob_of(block->scores + at, prob_grads + at, mask, scale, lse[row],
                                delta[row], &grad);
                vec odd_p = prob_of(block->scores + odd_at, prob_grads + odd_at, odd_mask, scale,
                                    lse[odd], delta[odd], &odd_grad);
                if (mask)
                    p = keep_elems(block, row, col, p);
                if (odd_mask)
                    odd_p = keep_elems(block, odd, col, odd_p);
                probs = (__m512i)_mm512_cvtne2ps_pbh(odd_p, p);
                grads = (__m512i)_mm512_cvtne2ps_pbh(odd_grad, grad);
            }
            _mm512_storeu_si512(block->scores + at, _mm512_permutexvar_epi16(order, probs));
            _mm512_storeu_si512(prob_grads + at, _mm512_permutexvar_epi16(order, grads));
            _mm256_storeu_si256((__m256i *)(dots->score_grads + at), _mm512_castsi512_si256(grads));
            if (has_odd)
                _mm256_storeu_si256((__m256i *)(dots->score_grads + odd_at),
                                    _mm512_extracti64x4_epi64(grads, 1));
        }
    }
}

void cpui_attention_dots_backward(const attention_dots *dots, const score_block *block,
                                  uint64_t key_offset, float *prob_grads, const float *lse,
                                  const float *delta, const dots_sums *sums)
{
    struct packed_keys packed = {key_offset, dots->keys - key_offset};
    uint64_t dim = dots->head_dim, value_dim = dots->value_dim;
    multiply_seen(dim, block, packed, dots->query_rows, dots->key_columns, block->scores);
    multiply_seen(value_dim, block, packed, dots->grad_rows, dots->value_columns, prob_grads);
    softmax_pairs(dots, block, prob_grads, lse, delta);
    multiply_queries(value_dim, block, block->scores, dots->grad_pairs, sums->values, sums->stride);
    multiply_queries(dim, block, prob_grads, dots->query_pairs, sums->keys, sums->stride);
    multiply_keys(dim, block, packed, dots->score_grads, block->stride / 2, dots->key_pairs,
                  sums->query, sums->stride);
}

#else

bool cpui_attention_dots_takes(const attention_desc *desc)
{
    return false;
}

size_t cpui_attention_dots_layout(uint64_t head_dim, uint64_t value_dim, uint64_t rows,
                                  uint64_t keys, uint64_t score_stride, bool backward, char *base,
                                  attention_dots *dots)
{
    return 0;
}

void cpui_attention_dots_queries(const attention_dots *dots, const dots_rows *query,
                                 const dots_rows *output_grad)
{
}

void cpui_attention_dots_forward(const attention_dots *dots, const score_block *block,
                                 uint64_t query_offset, const softmax_state *state)
{
}

void cpui_attention_dots_keys(attention_dots *dots, const dots_rows *keys, const dots_rows *values)
{
}

void cpui_attention_dots_backward(const attention_dots *dots, const score_block *block,
                                  uint64_t key_offset, float *prob_grads, const float *lse,
                                  const float *delta, const dots_sums *sums)
{
}

#endif
