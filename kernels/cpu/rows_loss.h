/* Softmax cross-entropy of one chunk of rows. Part of rows_body.h.
 *
 * Three passes over a row (maximum, sum of exponentials, gradient): a row of 256K logits is 1 MiB,
 * so the later passes come from the second-level cache. The exponentials are computed twice rather
 * than stored, because a 16-bit gradient has no room for them. A row that holds NaN or +infinity
 * gives a NaN loss, which the step's check sees. */

static void cross_entropy_grad(const cross_entropy_args *args, uint64_t row, float max, double sum)
{
    float buffer[ROWS_BLOCK];
    uint64_t at = row * args->vocab;
    uint64_t target = (uint64_t)args->targets[row];
    const float *logits = args->logits + at;
    double target_softmax =
        exp((double)(logits[target] - max)) / sum; /* before it is overwritten */
    float scale = (float)((double)args->grad_scale / sum);
    for (uint64_t c = 0; c < args->vocab; c += ROWS_BLOCK) {
        size_t n = block_elems(args->vocab, c);
        const float *x = logits + c;
        float *grad = store_place(args->type, args->logits_grad, at + c, buffer);
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            grad[i] = exp_one(x[i] - max) * scale;
        store_block(args->type, args->logits_grad, at + c, n, grad);
    }
    store_one(args->type, args->logits_grad, at + target,
              (float)((target_softmax - 1.0) * (double)args->grad_scale));
}

static void cross_entropy_row(const cross_entropy_args *args, uint64_t row)
{
    uint64_t vocab = args->vocab;
    if (args->targets[row] < 0) {
        size_t elem_bytes = dtype_bytes(args->type);
        args->losses[row] = 0.0f;
        if (args->logits_grad)
            memset((char *)args->logits_grad + row * vocab * elem_bytes, 0, vocab * elem_bytes);
        return;
    }
    const float *logits = args->logits + row * vocab;
    float max = -INFINITY, powers[ROWS_BLOCK];
    for (uint64_t c = 0; c < vocab; c += ROWS_BLOCK)
        max = block_max(max, logits + c, block_elems(vocab, c));
    struct row_sum sums = {{0}};
    for (uint64_t c = 0; c < vocab; c += ROWS_BLOCK) {
        size_t n = block_elems(vocab, c);
        const float *x = logits + c;
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            powers[i] = exp_one(x[i] - max);
        row_sum_add(&sums, powers, n);
    }
    double sum = row_sum_fold(&sums);
    double target_logit = (double)logits[args->targets[row]];
    args->losses[row] = (float)(log(sum) + ((double)max - target_logit));
    if (args->logits_grad)
        cross_entropy_grad(args, row, max, sum);
}

static void cross_entropy(int threads, const cross_entropy_args *args)
{
#pragma omp parallel for schedule(static) num_threads(team(threads, args->rows * args->vocab))
    for (uint64_t row = 0; row < args->rows; row++)
        cross_entropy_row(args, row);
}
