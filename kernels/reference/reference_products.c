/* Matrix products and attention of the reference backend. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/attention_range.h"
#include "kernels/matmul_desc.h"
#include "kernels/reference/reference_internal.h"

struct kernel_matmul {
    matmul_desc desc;
};

struct kernel_attention {
    attention_desc desc;
    const int32_t *begins;   /* [B,T] or NULL; see attention_set_documents */
    attention_dropout masks; /* counter NULL: nothing is dropped */
};

int refi_matmul_create(kernel_context *context, const matmul_desc *desc, kernel_matmul **product)
{
    *product = NULL;
    TRY(matmul_check(desc));
    *product = mem_alloc(1, sizeof **product, "reference matmul");
    if (!*product)
        return -ENOMEM;
    (*product)->desc = *desc;
    return 0;
}

void refi_matmul_destroy(kernel_matmul *product)
{
    mem_free(product);
}

size_t refi_matmul_scratch_bytes(const kernel_matmul *product)
{
    return 0;
}

int refi_matmul(kernel_matmul *product, void *stream, const void *a, const void *b,
                const void *bias, void *c, void *scratch)
{
    const matmul_desc *desc = &product->desc;
    for (uint64_t i = 0; i < desc->m; i++)
        for (uint64_t j = 0; j < desc->n; j++) {
            double sum = desc->has_bias ? refi_load(desc->ab_type, bias, j) : 0.0;
            for (uint64_t l = 0; l < desc->k; l++) {
                uint64_t a_at =
                    desc->a_transposed ? l * desc->a_stride + i : i * desc->a_stride + l;
                uint64_t b_at =
                    desc->b_transposed ? j * desc->b_stride + l : l * desc->b_stride + j;
                sum += refi_load(desc->ab_type, a, a_at) * refi_load(desc->ab_type, b, b_at);
            }
            uint64_t c_at = i * desc->c_stride + j;
            if (desc->accumulate)
                sum += refi_load(desc->c_type, c, c_at);
            refi_store(desc->c_type, c, c_at, sum);
        }
    return 0;
}

int refi_attention_create(kernel_context *context, const attention_desc *desc,
                          kernel_attention **attention)
{
    *attention = NULL;
    TRY(attention_desc_check(desc, UINT32_MAX));
    *attention = mem_alloc(1, sizeof **attention, "reference attention");
    if (!*attention)
        return -ENOMEM;
    (*attention)->desc = *desc;
    (*attention)->desc.value_dim = attention_value_dim(desc);
    return 0;
}

void refi_attention_destroy(kernel_attention *attention)
{
    mem_free(attention);
}

void refi_attention_set_documents(kernel_attention *attention, const int32_t *begins)
{
    attention->begins = begins;
}

void refi_attention_set_dropout(kernel_attention *attention, const attention_dropout *masks)
{
    attention->masks = masks != NULL ? *masks : (attention_dropout){0};
}

/* One row of probabilities: that of a query of one head. */
struct row_place {
    uint64_t batch, head, query;
};

/* The factor of the probability of key s: 0 if it is dropped. */
static double kept(const kernel_attention *attention, struct row_place row, uint64_t s)
{
    const attention_desc *desc = &attention->desc;
    const attention_dropout *masks = &attention->masks;
    uint32_t words[4];
    if (desc->dropout == 0.0f || masks->counter == NULL)
        return 1.0;
    dropout_words((dropout_place){masks->seed, masks->counter[0],
                                  masks->counter[1] + (uint32_t)row.batch, masks->site},
                  dropout_row_quad(desc->tokens, row.head, row.query) + s / 4, words);
    return words[s % 4] < dropout_threshold(desc->dropout) ? 0.0
                                                           : (double)dropout_scale(desc->dropout);
}

/* Scratch: one row of probabilities, [T] double. */
size_t refi_attention_forward_scratch_bytes(const kernel_attention *attention)
{
    return attention->desc.tokens * sizeof(double);
}

/* Scratch in double: probabilities and their gradients [2, T], then the sums of k_grad [T, D] and
 * of v_grad [T, E]. */
size_t refi_attention_backward_scratch_bytes(const kernel_attention *attention)
{
    const attention_desc *desc = &attention->desc;
    return desc->tokens * (2 + desc->head_dim + desc->value_dim) * sizeof(double);
}

/* One (batch, head): the index of its first element in q, k, v, and in the output. */
struct head_place {
    uint64_t q, k, v, output;
};

static struct head_place head_at(const attention_desc *desc, uint64_t batch, uint64_t head)
{
    uint64_t row = batch * desc->tokens, group = head / (desc->heads / desc->kv_heads);
    return (struct head_place){
        .q = row * desc->qkv_stride + head * desc->head_dim,
        .k = row * desc->qkv_stride + group * desc->head_dim,
        .v = row * desc->qkv_stride + group * desc->value_dim,
        .output = (row * desc->heads + head) * desc->value_dim,
    };
}

/* Dot product of `count` elements. */
static double dot(const attention_desc *desc, const void *x, uint64_t x_at, const void *y,
                  uint64_t y_at, uint64_t count)
{
    double sum = 0.0;
    for (uint64_t d = 0; d < count; d++)
        sum += refi_load(desc->type, x, x_at + d) * refi_load(desc->type, y, y_at + d);
    return sum;
}

/* The score of a query and a key at these elements, scaled and capped. *slope is its derivative by
 * the scaled score. */
static double score_of(const attention_desc *desc, const void *q, uint64_t q_at, const void *k,
                       uint64_t k_at, double *slope)
{
    double score = (double)desc->scale * dot(desc, q, q_at, k, k_at, desc->head_dim);
    *slope = 1.0;
    if (desc->soft_cap == 0.0f)
        return score;
    double t = tanh(score / (double)desc->soft_cap);
    *slope = 1.0 - t * t;
    return (double)desc->soft_cap * t;
}

/* probability[s] = softmax of the scores of query row t, for the keys s that it sees. Returns the
 * logarithm of the softmax denominator. */
static double softmax_row(const attention_desc *desc, struct head_place place, const void *q,
                          const void *k, uint64_t t, attention_range keys, double *probability)
{
    double max = -INFINITY, sum = 0.0, slope;
    for (uint64_t s = keys.begin; s < keys.end; s++) {
        probability[s] = score_of(desc, q, place.q + t * desc->qkv_stride, k,
                                  place.k + s * desc->qkv_stride, &slope);
        max = fmax(max, probability[s]);
    }
    for (uint64_t s = keys.begin; s < keys.end; s++)
        sum += exp(probability[s] - max);
    for (uint64_t s = keys.begin; s < keys.end; s++)
        probability[s] = exp(probability[s] - max) / sum;
    return max + log(sum);
}

int refi_attention_forward(kernel_attention *attention, void *stream, const void *q, const void *k,
                           const void *v, void *output, float *lse, void *scratch)
{
    const attention_desc *desc = &attention->desc;
    uint64_t output_stride = desc->heads * desc->value_dim;
    double *probability = scratch;
    for (uint64_t batch = 0; batch < desc->batch; batch++) {
        attention_mask mask = attention_mask_of(desc, attention->begins, batch);
        for (uint64_t head = 0; head < desc->heads; head++) {
            struct head_place place = head_at(desc, batch, head);
            for (uint64_t t = 0; t < desc->tokens; t++) {
                attention_range keys = attention_keys_of(&mask, t);
                lse[(batch * desc->heads + head) * desc->tokens + t] =
                    (float)softmax_row(desc, place, q, k, t, keys, probability);
                for (uint64_t s = keys.begin; s < keys.end; s++)
                    probability[s] *= kept(attention, (struct row_place){batch, head, t}, s);
                for (uint64_t d = 0; d < desc->value_dim; d++) {
                    double sum = 0.0;
                    for (uint64_t s = keys.begin; s < keys.end; s++)
                        sum += probability[s] *
                               refi_load(desc->type, v, place.v + s * desc->qkv_stride + d);
                    refi_store(desc->type, output, place.output + t * output_stride + d, sum);
                }
            }
        }
    }
    return 0;
}

struct attention_grads {
    const void *q, *k, *v, *output_grad;
    const float *lse;
    void *q_grad;
    double *probability, *score_grad; /* [T] */
    double *k_sum, *v_sum;            /* [T, D], [T, E], for one key/value head */
};

/* One query row of one head: writes its q_grad and adds to k_sum and v_sum. */
static void attention_grad_row(const kernel_attention *attention,
                               const struct attention_grads *grads, struct row_place row,
                               attention_range keys)
{
    const attention_desc *desc = &attention->desc;
    struct head_place place = head_at(desc, row.batch, row.head);
    uint64_t stride = desc->qkv_stride, t = row.query;
    uint64_t dim = desc->head_dim, value_dim = desc->value_dim;
    uint64_t q_at = place.q + t * stride, output_at = place.output + t * desc->heads * value_dim;
    double mean = 0.0; /* average of the gradients of the probabilities, weighted by them */
    double lse = (double)grads->lse[(row.batch * desc->heads + row.head) * desc->tokens + t], slope;
    for (uint64_t s = keys.begin; s < keys.end; s++)
        grads->probability[s] =
            exp(score_of(desc, grads->q, q_at, grads->k, place.k + s * stride, &slope) - lse);
    for (uint64_t s = keys.begin; s < keys.end; s++) {
        grads->score_grad[s] =
            dot(desc, grads->output_grad, output_at, grads->v, place.v + s * stride, value_dim) *
            kept(attention, row, s);
        mean += grads->probability[s] * grads->score_grad[s];
    }
    for (uint64_t s = keys.begin; s < keys.end; s++) {
        (void)score_of(desc, grads->q, q_at, grads->k, place.k + s * stride, &slope);
        grads->score_grad[s] =
            (double)desc->scale * slope * grads->probability[s] * (grads->score_grad[s] - mean);
        grads->probability[s] *= kept(attention, row, s);
    }
    for (uint64_t d = 0; d < dim; d++) {
        double q_sum = 0.0, q = refi_load(desc->type, grads->q, q_at + d);
        for (uint64_t s = keys.begin; s < keys.end; s++) {
            q_sum +=
                grads->score_grad[s] * refi_load(desc->type, grads->k, place.k + s * stride + d);
            grads->k_sum[s * dim + d] += grads->score_grad[s] * q;
        }
        refi_store(desc->type, grads->q_grad, q_at + d, q_sum);
    }
    for (uint64_t d = 0; d < value_dim; d++) {
        double output_grad = refi_load(desc->type, grads->output_grad, output_at + d);
        for (uint64_t s = keys.begin; s < keys.end; s++)
            grads->v_sum[s * value_dim + d] += grads->probability[s] * output_grad;
    }
}

/* Rounds the sums of one key/value head, [T, dim], into its gradient from element `first` on. */
static void store_sums(const attention_desc *desc, const double *sums, uint64_t dim, void *grad,
                       uint64_t first)
{
    for (uint64_t t = 0; t < desc->tokens; t++)
        for (uint64_t d = 0; d < dim; d++)
            refi_store(desc->type, grad, first + t * desc->qkv_stride + d, sums[t * dim + d]);
}

/* Recomputes the probabilities from q, k and lse, and needs no `output`. */
int refi_attention_backward(kernel_attention *attention, void *stream, const void *q, const void *k,
                            const void *v, const void *output, const float *lse,
                            const void *output_grad, void *q_grad, void *k_grad, void *v_grad,
                            void *scratch)
{
    const attention_desc *desc = &attention->desc;
    uint64_t tokens = desc->tokens, dim = desc->head_dim, share = desc->heads / desc->kv_heads;
    struct attention_grads grads = {.q = q, .k = k, .v = v, .output_grad = output_grad, .lse = lse};
    grads.q_grad = q_grad;
    grads.probability = scratch;
    grads.score_grad = grads.probability + tokens;
    grads.k_sum = grads.score_grad + tokens;
    grads.v_sum = grads.k_sum + tokens * dim;
    for (uint64_t batch = 0; batch < desc->batch; batch++) {
        attention_mask mask = attention_mask_of(desc, attention->begins, batch);
        for (uint64_t group = 0; group < desc->kv_heads; group++) {
            memset(grads.k_sum, 0, tokens * (dim + desc->value_dim) * sizeof(double));
            for (uint64_t head = group * share; head < (group + 1) * share; head++)
                for (uint64_t t = 0; t < tokens; t++)
                    attention_grad_row(attention, &grads, (struct row_place){batch, head, t},
                                       attention_keys_of(&mask, t));
            struct head_place place = head_at(desc, batch, group * share);
            store_sums(desc, grads.k_sum, dim, k_grad, place.k);
            store_sums(desc, grads.v_sum, desc->value_dim, v_grad, place.v);
        }
    }
    return 0;
}

/* The elements of a head of v and of the output. */
static uint64_t value_dim_of(const attention_cached_args *args)
{
    return args->value_dim ? args->value_dim : args->head_dim;
}

/* The index of an element of the kept keys or values, whose heads have `dim` elements. */
static uint64_t kept_at(const attention_cached_args *args, uint64_t group, uint64_t position,
                        uint64_t dim)
{
    return (group * args->capacity + position) * dim;
}

static double cached_score(const attention_cached_args *args, uint64_t row, uint64_t head,
                           uint64_t s)
{
    uint64_t dim = args->head_dim, group = head / (args->heads / args->kv_heads);
    uint64_t query = row * args->qkv_stride + head * dim, key = kept_at(args, group, s, dim);
    double score = 0.0, cap = (double)args->soft_cap;
    for (uint64_t i = 0; i < dim; i++)
        score +=
            refi_load(args->type, args->q, query + i) * refi_load(args->type, args->keys, key + i);
    score *= (double)args->scale;
    return cap > 0.0 ? cap * tanh(score / cap) : score;
}

static void attend_cached(const attention_cached_args *args, uint64_t row, uint64_t head)
{
    uint64_t group = head / (args->heads / args->kv_heads), count = args->begin + row + 1;
    uint64_t first = args->window && count > args->window ? count - args->window : 0;
    uint64_t dim = value_dim_of(args);
    double sink = args->sinks ? refi_load(args->type, args->sinks, head) : -INFINITY, max = sink;
    for (uint64_t s = first; s < count; s++)
        max = fmax(max, cached_score(args, row, head, s));
    for (uint64_t d = 0; d < dim; d++) {
        double sum = exp(sink - max), weighted = 0.0;
        for (uint64_t s = first; s < count; s++) {
            double weight = exp(cached_score(args, row, head, s) - max);
            sum += weight;
            weighted +=
                weight * refi_load(args->type, args->values, kept_at(args, group, s, dim) + d);
        }
        refi_store(args->type, args->output, (row * args->heads + head) * dim + d, weighted / sum);
    }
}

/* Appends the heads of k or v, of `dim` elements, to the kept ones. */
static void keep_new(const attention_cached_args *args, const void *rows, uint64_t dim, void *kept)
{
    for (uint64_t row = 0; row < args->rows; row++)
        for (uint64_t group = 0; group < args->kv_heads; group++)
            for (uint64_t d = 0; d < dim; d++)
                refi_store(args->type, kept, kept_at(args, group, args->begin + row, dim) + d,
                           refi_load(args->type, rows, row * args->qkv_stride + group * dim + d));
}

int refi_attention_cached(kernel_context *context, void *stream, const attention_cached_args *args)
{
    keep_new(args, args->k, args->head_dim, args->keys);
    keep_new(args, args->v, value_dim_of(args), args->values);
    for (uint64_t row = 0; row < args->rows; row++)
        for (uint64_t head = 0; head < args->heads; head++)
            attend_cached(args, row, head);
    return 0;
}
