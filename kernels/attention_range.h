/* Which keys a query of attention sees. This one rule serves all backends, on hosts and on GPUs. A
 * query sees a key if
 *   - the key does not come after the query, or attention is bidirectional;
 *   - the key is among the `window` positions that end with the query, or there is no window;
 *   - both belong to the same document.
 *
 * Each query sees itself. The keys that it sees form a range, whose two ends never fall from one
 * query to the next. The same holds for the queries that see a key. So the range of a block follows
 * from the first and the last position of the block, and it has no gaps. All functions are pure. */
#ifndef SLUICE_KERNELS_ATTENTION_RANGE_H
#define SLUICE_KERNELS_ATTENTION_RANGE_H

#include "base/size.h"
#include "kernels/dropout_mask.h"
#include "kernels/ops.h"

#ifdef __CUDACC__
#define ATTENTION_RANGE_ON static __host__ __device__ inline
#else
#define ATTENTION_RANGE_ON static inline
#endif

/* The facts on which the rule depends, for one sequence. */
struct attention_mask {
    uint64_t tokens, window;
    bool is_bidirectional;
    const int32_t *begins; /* [T] the position at which a row's document begins, or NULL */
};
typedef struct attention_mask attention_mask;

/* Positions [begin, end). */
struct attention_range {
    uint64_t begin, end;
};
typedef struct attention_range attention_range;

/* The elements of a head of v and of the output. */
static inline uint64_t attention_value_dim(const attention_desc *desc)
{
    return desc->value_dim ? desc->value_dim : desc->head_dim;
}

/* Refuses what the rule does not cover, with ERR_BACKEND. */
static inline int attention_mask_check(const attention_desc *desc)
{
    if (desc->window && desc->is_bidirectional)
        return err_set(ERR_BACKEND, "attention: a window of %llu tokens cannot be bidirectional",
                       (unsigned long long)desc->window);
    if (!(desc->soft_cap >= 0.0f && desc->soft_cap < 1e30f))
        return err_set(ERR_BACKEND,
                       "attention: the soft cap of the scores is %g; it must be "
                       "positive, or 0 for none",
                       (double)desc->soft_cap);
    if (!(desc->dropout >= 0.0f && desc->dropout < 1.0f))
        return err_set(ERR_BACKEND, "attention: a dropout of %g; it must be at least 0 and below 1",
                       (double)desc->dropout);
    if (desc->dropout > 0.0f &&
        dropout_row_quad(desc->tokens, desc->heads, 0) >> DROPOUT_QUAD_BITS != 0)
        return err_set(
            ERR_BACKEND,
            "attention: dropout of %llu heads over %llu tokens: a sequence may have 2^%d "
            "probabilities; use shorter sequences, or no dropout",
            (unsigned long long)desc->heads, (unsigned long long)desc->tokens,
            DROPOUT_QUAD_BITS + 2);
    return 0;
}

/* Refuses dimensions that no backend computes, and what attention_mask_check refuses. ERR_BACKEND,
 * or the error of a size that overflows. */
static inline MUST_CHECK int attention_desc_check(const attention_desc *desc, uint64_t dim_max)
{
    uint64_t bytes;
    if (desc->batch == 0 || desc->tokens == 0 || desc->heads == 0 || desc->kv_heads == 0 ||
        desc->head_dim == 0 || desc->head_dim > dim_max || desc->value_dim > dim_max ||
        desc->heads % desc->kv_heads != 0 || desc->qkv_stride / desc->head_dim < desc->heads ||
        desc->qkv_stride / attention_value_dim(desc) < desc->kv_heads)
        return err_set(
            ERR_BACKEND,
            "attention B=%llu T=%llu H=%llu G=%llu D=%llu E=%llu stride=%llu: every dimension must "
            "be positive, D and E at most %llu, H a multiple of G, stride at least H*D and G*E",
            (unsigned long long)desc->batch, (unsigned long long)desc->tokens,
            (unsigned long long)desc->heads, (unsigned long long)desc->kv_heads,
            (unsigned long long)desc->head_dim, (unsigned long long)attention_value_dim(desc),
            (unsigned long long)desc->qkv_stride, (unsigned long long)dim_max);
    TRY(size_mul(desc->batch, desc->tokens, &bytes));
    TRY(size_mul(bytes, desc->qkv_stride, &bytes));
    TRY(size_mul(bytes, 8, &bytes));
    return attention_mask_check(desc);
}

/* The mask of sequence `batch`, from that of sequence 0. */
ATTENTION_RANGE_ON attention_mask attention_mask_at(attention_mask mask, uint64_t batch)
{
    if (mask.begins)
        mask.begins += batch * mask.tokens;
    return mask;
}

/* The mask of sequence `batch`; begins [B,T], or NULL. */
ATTENTION_RANGE_ON attention_mask attention_mask_of(const attention_desc *desc,
                                                    const int32_t *begins, uint64_t batch)
{
    attention_mask mask = {desc->tokens, desc->window, desc->is_bidirectional, begins};
    return attention_mask_at(mask, batch);
}

/* The position after the last one of the document of `position`. Most documents are short, so the
 * search goes forward in growing steps first. */
ATTENTION_RANGE_ON uint64_t attention_document_end(const attention_mask *mask, uint64_t position)
{
    uint64_t low = position + 1, high = low;
    if (!mask->begins)
        return mask->tokens;
    for (uint64_t step = 1; high < mask->tokens && (uint64_t)mask->begins[high] <= position;
         step *= 2) {
        low = high + 1;
        high += step;
    }
    if (high > mask->tokens)
        high = mask->tokens;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if ((uint64_t)mask->begins[middle] <= position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The keys that a query sees. */
ATTENTION_RANGE_ON attention_range attention_keys_of(const attention_mask *mask, uint64_t query)
{
    attention_range keys = {0, query + 1};
    if (mask->begins)
        keys.begin = (uint64_t)mask->begins[query];
    if (mask->window && query + 1 > keys.begin + mask->window)
        keys.begin = query + 1 - mask->window;
    if (mask->is_bidirectional)
        keys.end = attention_document_end(mask, query);
    return keys;
}

/* The queries that see a key. */
ATTENTION_RANGE_ON attention_range attention_queries_of(const attention_mask *mask, uint64_t key)
{
    attention_range queries = {key, attention_document_end(mask, key)};
    if (mask->is_bidirectional)
        queries.begin = mask->begins ? (uint64_t)mask->begins[key] : 0;
    if (mask->window && queries.end > key + mask->window)
        queries.end = key + mask->window;
    return queries;
}

/* The keys that at least one of the queries [first, end) sees. */
ATTENTION_RANGE_ON attention_range attention_keys_of_block(const attention_mask *mask,
                                                           uint64_t first, uint64_t end)
{
    attention_range keys = {attention_keys_of(mask, first).begin,
                            attention_keys_of(mask, end - 1).end};
    return keys;
}

/* The queries that see at least one of the keys [first, end). */
ATTENTION_RANGE_ON attention_range attention_queries_of_block(const attention_mask *mask,
                                                              uint64_t first, uint64_t end)
{
    attention_range queries = {attention_queries_of(mask, first).begin,
                               attention_queries_of(mask, end - 1).end};
    return queries;
}

/* The keys that all of the queries [first, end) see. `begin` may be after `end`. */
ATTENTION_RANGE_ON attention_range attention_keys_of_all(const attention_mask *mask, uint64_t first,
                                                         uint64_t end)
{
    attention_range keys = {attention_keys_of(mask, end - 1).begin,
                            attention_keys_of(mask, first).end};
    return keys;
}

/* True if each of the queries [query, query_end) sees all keys [key, key_end). */
ATTENTION_RANGE_ON bool attention_sees_all(const attention_mask *mask, uint64_t query,
                                           uint64_t query_end, uint64_t key, uint64_t key_end)
{
    attention_range keys = attention_keys_of_all(mask, query, query_end);
    return keys.begin <= key && keys.end >= key_end;
}

#endif
