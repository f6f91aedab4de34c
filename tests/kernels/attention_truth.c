/* The definition of attention and its gradients, one row at a time, in double.
 *
 * Beside each true value go two sums of magnitudes that bound the error of a kernel that follows
 * the contract: `rounded`, of terms with a factor that is rounded to the working type before a
 * product (P, dS), and `summed`, of everything that fp32 arithmetic touches. An element is right
 * when its error is below half a unit of the working type on the former and on the result, plus
 * fp32's noise on the latter: sums over D and T, and the error of a score, which exp() turns into a
 * relative one. */
#include <math.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "kernels/dropout_mask.h"
#include "tests/kernels/attention_truth.h"
#include "tests/unit.h"

enum { HEAD_DIM_MAX = 256 };

struct row {
    double value[HEAD_DIM_MAX], rounded[HEAD_DIM_MAX], summed[HEAD_DIM_MAX];
};

static void add_terms(struct row *row, double factor, double factor_magnitude,
                      const float *operands, uint64_t count)
{
#pragma omp simd
    for (uint64_t i = 0; i < count; i++) {
        double operand = (double)operands[i];
        row->value[i] += factor * operand;
        row->rounded[i] += fabs(factor * operand);
        row->summed[i] += factor_magnitude * fabs(operand);
    }
}

static double noise(const attention_desc *desc, double score_magnitude)
{
    return 0x1p-24 * (64 + 2 * (double)desc->head_dim + 0.5 * (double)desc->tokens +
                      8 * score_magnitude + 32 * (double)desc->soft_cap);
}

int32_t *truth_documents(uint64_t batch, uint64_t tokens, uint64_t longest, uint64_t seed)
{
    int32_t *begins = mem_alloc(batch * tokens, sizeof *begins, "documents");
    assert_non_null(begins);
    for (uint64_t b = 0; b < batch; b++)
        for (uint64_t t = 0, begin = 0, end = 0; t < tokens; t++) {
            if (t == end) {
                begin = t;
                end += 1 + rng_below(seed, 3, b * tokens + t, longest);
            }
            begins[b * tokens + t] = (int32_t)begin;
        }
    return begins;
}

static bool is_seen(const attention_case *self, uint64_t batch, uint64_t query, uint64_t key)
{
    const attention_desc *d = &self->desc;
    const int32_t *begins = self->begins ? self->begins + batch * d->tokens : NULL;
    return (key <= query || d->is_bidirectional) && (!d->window || query < key + d->window) &&
           (!begins || begins[query] == begins[key]);
}

/* The factor of a probability: by its own count of the masks, 0 if it is dropped. */
static double kept(const attention_case *self, uint64_t batch, uint64_t head, uint64_t query,
                   uint64_t key)
{
    const attention_desc *d = &self->desc;
    uint64_t row_elems = size_round_up(d->tokens, 4); /* of the mask */
    uint64_t elem = (head * d->tokens + query) * row_elems + key;
    uint32_t words[4];
    if (!self->masks.counter || d->dropout == 0)
        return 1;
    dropout_words((dropout_place){self->masks.seed, self->masks.counter[0],
                                  self->masks.counter[1] + (uint32_t)batch, self->masks.site},
                  elem / 4, words);
    return words[elem % 4] < (double)d->dropout * 0x1p32 ? 0 : 1 / (1 - (double)d->dropout);
}

static void expect_row(const attention_case *self, const char *what, const float *got,
                       const struct row *row, uint64_t count, double row_noise,
                       const uint64_t place[3])
{
    const attention_desc *d = &self->desc;
    double half_unit = d->type == DTYPE_FP32 ? 0x1p-24 : d->type == DTYPE_BF16 ? 0x1p-8 : 0x1p-11;
    double floor = d->type == DTYPE_FP16 ? 1e-5 : 1e-30; /* fp16's subnormals */
    for (uint64_t i = 0; i < count; i++) {
        double limit = 1.02 * half_unit * (row->rounded[i] + fabs(row->value[i])) +
                       row_noise * row->summed[i] + floor;
        if (fabs((double)got[i] - row->value[i]) <= limit)
            continue;
        print_error(
            "%s B=%d T=%d H=%d G=%d D=%d E=%d stride=%d: %s of batch %d head %d row %d element "
            "%d is %g, expected %g within %g\n",
            dtype_name(d->type), (int)d->batch, (int)d->tokens, (int)d->heads, (int)d->kv_heads,
            (int)d->head_dim, (int)d->value_dim, (int)d->qkv_stride, what, (int)place[0],
            (int)place[1], (int)place[2], (int)i, (double)got[i], row->value[i], limit);
        fail();
    }
}

static double dot(const float *a, const float *b, uint64_t count, double *magnitude)
{
    double sum = 0, absolute = 0;
#pragma omp simd reduction(+ : sum, absolute)
    for (uint64_t i = 0; i < count; i++) {
        double term = (double)a[i] * (double)b[i];
        sum += term;
        absolute += fabs(term);
    }
    *magnitude = absolute;
    return sum;
}

/* The score of a query and a key, the magnitude of what it is summed from, and its derivative by
 * the product of the two. */
static double score_of(const attention_desc *desc, const float *q, const float *k,
                       double *magnitude, double *slope)
{
    double scale = (double)desc->scale, cap = (double)desc->soft_cap;
    double score = dot(q, k, desc->head_dim, magnitude) * scale;
    *magnitude *= scale;
    *slope = scale;
    if (cap == 0)
        return score;
    double t = tanh(score / cap);
    *slope *= 1 - t * t;
    return cap * t;
}

void truth_check_query(const attention_case *self, uint64_t batch, uint64_t head, uint64_t row)
{
    const attention_desc *d = &self->desc;
    uint64_t dim = d->head_dim, value_dim = d->value_dim;
    uint64_t kv_head = head / (d->heads / d->kv_heads), first = batch * d->tokens;
    const float *q = self->qkv + (first + row) * self->packed_elems + head * dim;
    const float *k = self->qkv + first * self->packed_elems + (d->heads + kv_head) * dim;
    const float *v = self->qkv + first * self->packed_elems + (d->heads + d->kv_heads) * dim +
                     kv_head * value_dim;
    const float *got = self->output + ((first + row) * d->heads + head) * value_dim;
    const float *output_grad = self->output_grad + ((first + row) * d->heads + head) * value_dim;
    struct row output = {0}, q_grad = {0};
    double *p = mem_alloc(2 * d->tokens, sizeof *p, "true probabilities"), *slopes = p + d->tokens;
    assert_non_null(p);
    double largest = -INFINITY, sum = 0, score_magnitude = 0, magnitude, delta_magnitude;
    for (uint64_t s = 0; s < d->tokens; s++) {
        if (!is_seen(self, batch, row, s))
            continue;
        p[s] = score_of(d, q, k + s * self->packed_elems, &magnitude, &slopes[s]);
        largest = fmax(largest, p[s]);
        score_magnitude = fmax(score_magnitude, magnitude);
    }
    for (uint64_t s = 0; s < d->tokens; s++)
        if (is_seen(self, batch, row, s))
            sum += p[s] = exp(p[s] - largest);
    /* The rounded output enters delta, as in the contract. */
    double delta = dot(output_grad, got, value_dim, &delta_magnitude);
    for (uint64_t s = 0; s < d->tokens; s++) {
        if (!is_seen(self, batch, row, s))
            continue;
        const float *key = k + s * self->packed_elems, *value = v + s * self->packed_elems;
        double weight = p[s] / sum, factor = kept(self, batch, head, row, s);
        double grad =
            weight * (factor * dot(output_grad, value, value_dim, &magnitude) - delta) * slopes[s];
        magnitude = weight * (factor * magnitude + delta_magnitude) * (double)d->scale;
        add_terms(&output, weight * factor, weight * factor, value, value_dim);
        add_terms(&q_grad, grad, magnitude, key, dim);
    }
    mem_free(p);
    const uint64_t place[3] = {batch, head, row};
    double lse = largest + log(sum);
    double got_lse = (double)self->lse[(batch * d->heads + head) * d->tokens + row];
    double lse_limit = 1e-6 * (4 + fabs(lse) + score_magnitude);
    if (!(fabs(got_lse - lse) <= lse_limit)) {
        print_error("%s T=%d D=%d: lse of batch %d head %d row %d is %g, expected %g within %g\n",
                    dtype_name(d->type), (int)d->tokens, (int)dim, (int)batch, (int)head, (int)row,
                    got_lse, lse, lse_limit);
        fail();
    }
    expect_row(self, "the output", got, &output, value_dim, noise(d, score_magnitude), place);
    expect_row(self, "dQ", self->grads + (first + row) * self->packed_elems + head * dim, &q_grad,
               dim, noise(d, score_magnitude), place);
}

void truth_check_key(const attention_case *self, uint64_t batch, uint64_t kv_head, uint64_t row)
{
    const attention_desc *d = &self->desc;
    uint64_t dim = d->head_dim, value_dim = d->value_dim;
    uint64_t group = d->heads / d->kv_heads, first = batch * d->tokens;
    uint64_t k_place = (first + row) * self->packed_elems + (d->heads + kv_head) * dim;
    uint64_t v_place =
        (first + row) * self->packed_elems + (d->heads + d->kv_heads) * dim + kv_head * value_dim;
    const float *k = self->qkv + k_place, *v = self->qkv + v_place;
    struct row k_grad = {0}, v_grad = {0};
    double score_magnitude = 0, magnitude, delta_magnitude;
    for (uint64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (uint64_t t = 0; t < d->tokens; t++) {
            if (!is_seen(self, batch, t, row))
                continue;
            const float *q = self->qkv + (first + t) * self->packed_elems + head * dim;
            const float *grad = self->output_grad + ((first + t) * d->heads + head) * value_dim;
            const float *output = self->output + ((first + t) * d->heads + head) * value_dim;
            double lse = (double)self->lse[(batch * d->heads + head) * d->tokens + t];
            double slope, p = exp(score_of(d, q, k, &magnitude, &slope) - lse);
            score_magnitude = fmax(score_magnitude, magnitude + fabs(lse));
            double delta = dot(grad, output, value_dim, &delta_magnitude);
            double factor = kept(self, batch, head, t, row);
            double score_grad = p * (factor * dot(grad, v, value_dim, &magnitude) - delta) * slope;
            magnitude = p * (factor * magnitude + delta_magnitude) * (double)d->scale;
            add_terms(&v_grad, p * factor, p * factor, grad, value_dim);
            add_terms(&k_grad, score_grad, magnitude, q, dim);
        }
    const uint64_t place[3] = {batch, kv_head, row};
    expect_row(self, "dK", self->grads + k_place, &k_grad, dim, noise(d, score_magnitude), place);
    expect_row(self, "dV", self->grads + v_place, &v_grad, value_dim, noise(d, score_magnitude),
               place);
}
