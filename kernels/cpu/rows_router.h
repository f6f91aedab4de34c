/* The router of a mixture of experts: scores, the choice of K experts for each row, and the
 * gradient of the logits. Part of rows_variant.c, after rows_loss.h.
 *
 * Scores are fp32. The sums over the E logits of a row have the lanes of row_sum; those over its K
 * choices are fp64, in order. A row is short (E is at most ROUTER_EXPERTS_MAX), so it stays in the
 * first-level cache, and each thread takes whole rows. */

/* The softmax p[0..n) of logits[0..n), and their logsumexp. */
static double router_softmax(const float *logits, uint64_t n, float *p)
{
    float largest;
    double sum;
    softmax_first_pass(0.0f, logits, n, &largest, &sum);
    float divisor = (float)sum;
#pragma omp simd
    for (size_t e = 0; e < n; e++)
        p[e] = exp_below(logits[e] - largest) / divisor;
    return log(sum) + (double)largest;
}

static void router_scores(const router_args *args, const float *logits, float *scores)
{
    if (args->score == ROUTER_SOFTMAX)
        (void)router_softmax(logits, args->experts, scores);
    else
#pragma omp simd
        for (size_t e = 0; e < args->experts; e++)
            scores[e] = sigmoid_times(1.0f, logits[e]);
}

/* The `most` largest values so far, the largest first; of equal ones, the first that came. With NaN
 * the order is open, but no index comes twice. */
struct router_best {
    uint64_t count, most;
    float values[ROUTER_EXPERTS_MAX];
    int32_t idx[ROUTER_EXPERTS_MAX];
};

static void router_best_add(struct router_best *best, float value, uint64_t idx)
{
    uint64_t at = best->count;
    if (at == best->most && !(value > best->values[at - 1]))
        return;
    if (at == best->most)
        at--;
    else
        best->count++;
    for (; at > 0 && value > best->values[at - 1]; at--) {
        best->values[at] = best->values[at - 1];
        best->idx[at] = best->idx[at - 1];
    }
    best->values[at] = value;
    best->idx[at] = (int32_t)idx;
}

/* Puts the indices in ascending order. */
static void router_best_sort(struct router_best *best)
{
    for (uint64_t i = 1; i < best->count; i++) {
        int32_t moved = best->idx[i];
        uint64_t at = i;
        for (; at > 0 && best->idx[at - 1] > moved; at--)
            best->idx[at] = best->idx[at - 1];
        best->idx[at] = moved;
    }
}

/* The value of a group: its largest value, or the sum of its two largest. */
static float router_group_value(const float *values, uint64_t n, uint32_t group_best)
{
    float first = values[0], second = -INFINITY;
    for (uint64_t e = 1; e < n; e++) {
        if (values[e] > first) {
            second = first;
            first = values[e];
        } else if (values[e] > second) {
            second = values[e];
        }
    }
    return group_best == 2 ? first + second : first;
}

/* The best experts by values[E], in ascending order. */
static void router_choose(const router_args *args, const float *values, struct router_best *best)
{
    best->count = 0;
    if (args->groups) {
        struct router_best groups = {.most = args->groups_chosen};
        uint64_t size = args->experts / args->groups;
        for (uint64_t g = 0; g < args->groups; g++)
            router_best_add(&groups, router_group_value(values + g * size, size, args->group_best),
                            g);
        router_best_sort(&groups); /* so that equal values come in the order of experts */
        for (uint64_t i = 0; i < groups.count; i++)
            for (uint64_t e = 0, begin = (uint64_t)groups.idx[i] * size; e < size; e++)
                router_best_add(best, values[begin + e], begin + e);
    } else {
        for (uint64_t e = 0; e < args->experts; e++)
            router_best_add(best, values[e], e);
    }
    router_best_sort(best);
}

static void router_forward_row(const router_args *args, uint64_t row)
{
    float scores[ROUTER_EXPERTS_MAX], values[ROUTER_EXPERTS_MAX];
    struct router_best best;
    const float *logits = args->logits + row * args->experts, *value = logits;
    int32_t *chosen = args->chosen + row * args->choices;
    float *weights = args->weights + row * args->choices;
    double sum = 1e-20, scale = (double)args->scale;
    router_scores(args, logits, scores);
    if (args->bias) {
#pragma omp simd
        for (size_t e = 0; e < args->experts; e++)
            values[e] = scores[e] + args->bias[e];
        value = values;
    } else if (args->groups) {
        value = scores;
    }
    best.most = args->choices;
    router_choose(args, value, &best);
    for (uint64_t k = 0; k < args->choices; k++) {
        chosen[k] = best.idx[k];
        sum += (double)scores[chosen[k]];
    }
    for (uint64_t k = 0; k < args->choices; k++) {
        double weight = scale * (double)scores[chosen[k]];
        weights[k] = (float)(args->normalizes ? weight / sum : weight);
    }
}

static void router_forward(int threads, const router_args *args)
{
#pragma omp parallel for schedule(static) num_threads(team(threads, args->rows * args->experts))
    for (uint64_t row = 0; row < args->rows; row++)
        router_forward_row(args, row);
}

/* grads[K]: the gradients of the scores of the chosen experts. */
static void router_scores_backward(const router_args *args, uint64_t row, const float *scores,
                                   float *grads)
{
    const int32_t *chosen = args->chosen + row * args->choices;
    const float *weights_grad = args->weights_grad + row * args->choices;
    double sum = 1e-20, inner = 0.0, scale = (double)args->scale;
    for (uint64_t k = 0; k < args->choices; k++) {
        sum += (double)scores[chosen[k]];
        inner += (double)weights_grad[k] * (double)scores[chosen[k]];
    }
    for (uint64_t k = 0; k < args->choices; k++) {
        double grad = (double)weights_grad[k];
        grads[k] = (float)(args->normalizes ? scale * (grad - inner / sum) / sum : scale * grad);
    }
}

/* out[E] = the gradient through the softmax p[E]: p (p_grad - sum of p p_grad + shift). */
static void router_softmax_backward(const float *p, const float *p_grad, uint64_t n, float shift,
                                    float *out)
{
    float products[ROWS_BLOCK];
    struct row_sum sums = {{0}};
    for (uint64_t at = 0; at < n; at += ROWS_BLOCK) {
        size_t count = block_elems(n, at);
#pragma omp simd
        for (size_t i = 0; i < count; i++)
            products[i] = p[at + i] * p_grad[at + i];
        row_sum_add(&sums, products, count);
    }
    float less = (float)row_sum_fold(&sums);
#pragma omp simd
    for (size_t e = 0; e < n; e++)
        out[e] = p[e] * (p_grad[e] - less + shift);
}

static void router_backward_row(const router_args *args, uint64_t row)
{
    float p[ROUTER_EXPERTS_MAX], p_grad[ROUTER_EXPERTS_MAX] = {0}, out[ROUTER_EXPERTS_MAX] = {0};
    float scores[ROUTER_EXPERTS_MAX], grads[ROUTER_EXPERTS_MAX];
    const float *logits = args->logits + row * args->experts;
    const int32_t *chosen = args->chosen + row * args->choices;
    bool is_softmax = args->score == ROUTER_SOFTMAX, is_balanced = args->balance_scale != 0.0f;
    if (is_softmax || is_balanced || args->z_scale != 0.0f) {
        float shift = args->z_scale * (float)router_softmax(logits, args->experts, p);
        if (is_softmax) {
            router_scores_backward(args, row, p, grads);
            for (uint64_t k = 0; k < args->choices; k++)
                p_grad[chosen[k]] = grads[k];
        }
        for (uint64_t e = 0; is_balanced && e < args->experts; e++)
            p_grad[e] += args->balance_scale * (float)args->totals[e];
        router_softmax_backward(p, p_grad, args->experts, shift, out);
    }
    if (!is_softmax) {
        router_scores(args, logits, scores);
        router_scores_backward(args, row, scores, grads);
        for (uint64_t k = 0; k < args->choices; k++) {
            float score = scores[chosen[k]];
            /* 1 - score without cancellation */
            out[chosen[k]] += grads[k] * (score * sigmoid_times(1.0f, -logits[chosen[k]]));
        }
    }
    if (args->type == DTYPE_FP32)
        memcpy((float *)args->logits_grad + row * args->experts, out, args->experts * sizeof *out);
    else
        store_block(args->type, args->logits_grad, row * args->experts, args->experts, out);
}

static void router_backward(int threads, const router_args *args)
{
#pragma omp parallel for schedule(static) num_threads(team(threads, args->rows * args->experts))
    for (uint64_t row = 0; row < args->rows; row++)
        router_backward_row(args, row);
}

/* Adds rows [begin, end) to totals[2 * E + 1]. */
static void router_sums_block(const router_sums_args *args, uint64_t begin, uint64_t end,
                              double *totals)
{
    float p[ROUTER_EXPERTS_MAX];
    double *p_sums = totals + args->experts;
    for (uint64_t row = begin; row < end; row++) {
        double lse = router_softmax(args->logits + row * args->experts, args->experts, p);
        for (uint64_t k = 0; k < args->choices; k++)
            totals[args->chosen[row * args->choices + k]] += 1.0;
#pragma omp simd
        for (size_t e = 0; e < args->experts; e++)
            p_sums[e] += (double)p[e];
        p_sums[args->experts] += lse * lse;
    }
}

/* scratch: [blocks of rows, 2 * E + 1] fp64 */
static void router_sums(int threads, const router_sums_args *args)
{
    uint64_t step = rowsi_rows_per_block(args->rows), blocks = rowsi_block_count(args->rows);
    uint64_t width = 2 * args->experts + 1;
    double *sums = args->scratch;
#pragma omp parallel for schedule(static) num_threads(team(threads, args->rows * args->experts))
    for (uint64_t b = 0; b < blocks; b++) {
        uint64_t begin = b * step, end = begin + step < args->rows ? begin + step : args->rows;
        memset(sums + b * width, 0, width * sizeof *sums);
        router_sums_block(args, begin, end, sums + b * width);
    }
    for (uint64_t b = 0; b < blocks; b++)
        for (uint64_t i = 0; i < width; i++)
            args->totals[i] += sums[b * width + i];
}
