/* Softmax cross-entropy of one chunk of rows, over the whole vocabulary or parts of its columns. Part
 * of rows_body.h.
 *
 * Three passes over a row (maximum, sum of exponentials, gradient): a row of 256K logits is 1 MiB,
 * so the later passes come from the second-level cache. The exponentials are computed twice rather
 * than stored, because a 16-bit gradient has no room for them. A row that holds NaN or +infinity
 * gives a NaN loss, which the step's check sees.
 *
 * Parts keep three fp32 numbers a row between calls (Milakov and Gimelshein, "Online normalizer
 * calculation for softmax", 2018). For a part with largest logit p and new largest m = max(old, p):
 *   sum = round_fp32(sum * exp(old - m) + sum over the part of exp(x - m))     in fp64, rounded once
 * While every logit seen is -infinity, m is taken as 0 here: nothing is added, and a later part may
 * still be finite. A sum that is NaN stays NaN, with the bits 0x7fc00000. */

/* The sum of exp(x - shift) over x[0..count). */
static double exp_sum(const float *logits, uint64_t count, float shift)
{
    float powers[ROWS_BLOCK];
    struct row_sum sums = {{0}};
    for (uint64_t c = 0; c < count; c += ROWS_BLOCK) {
        size_t n = block_elems(count, c);
        const float *x = logits + c;
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            powers[i] = exp_one(x[i] - shift);
        row_sum_add(&sums, powers, n);
    }
    return row_sum_fold(&sums);
}

static float row_max(const float *logits, uint64_t count)
{
    float max = -INFINITY;
    for (uint64_t c = 0; c < count; c += ROWS_BLOCK)
        max = block_max(max, logits + c, block_elems(count, c));
    return max;
}

/* grad[at + i] = round(exp(logits[i] - max) * scale); grad may lie at logits. */
static void softmax_grad_row(enum dtype type, const float *logits, uint64_t count, float max,
                             float scale, void *grads, uint64_t at)
{
    float buffer[ROWS_BLOCK];
    for (uint64_t c = 0; c < count; c += ROWS_BLOCK) {
        size_t n = block_elems(count, c);
        const float *x = logits + c;
        float *grad = store_place(type, grads, at + c, buffer);
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            grad[i] = exp_one(x[i] - max) * scale;
        store_block(type, grads, at + c, n, grad);
    }
}

static void cross_entropy_grad(const cross_entropy_args *args, uint64_t row, float max, double sum)
{
    uint64_t at = row * cross_entropy_stride(args);
    uint64_t target = (uint64_t)args->targets[row];
    const float *logits = args->logits + at;
    double target_softmax =
        exp((double)(logits[target] - max)) / sum; /* before it is overwritten */
    softmax_grad_row(args->type, logits, args->vocab, max, (float)((double)args->grad_scale / sum),
                     args->logits_grad, at);
    store_one(args->type, args->logits_grad, at + target,
              (float)((target_softmax - 1.0) * (double)args->grad_scale));
}

static void cross_entropy_row(const cross_entropy_args *args, uint64_t row)
{
    uint64_t vocab = args->vocab, at = row * cross_entropy_stride(args);
    if (args->targets[row] < 0) {
        size_t elem_bytes = dtype_bytes(args->type);
        args->losses[row] = 0.0f;
        if (args->logits_grad)
            memset((char *)args->logits_grad + at * elem_bytes, 0, vocab * elem_bytes);
        return;
    }
    const float *logits = args->logits + at;
    float max = row_max(logits, vocab);
    double sum = exp_sum(logits, vocab, max);
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

static void softmax_part_row(const softmax_part_args *args, uint64_t row)
{
    if (args->is_first) {
        args->largest[row] = -INFINITY;
        args->sum[row] = args->target_logit[row] = 0.0f;
    }
    if (args->targets[row] < 0)
        return;
    const float *logits = args->logits + row * softmax_part_stride(args);
    uint64_t target = (uint64_t)args->targets[row] - args->column_begin; /* wraps if before */
    if (target < args->columns)
        args->target_logit[row] = logits[target];
    float before = args->largest[row], max = row_max(logits, args->columns);
    max = before > max ? before : max;
    float shift = max == -INFINITY ? 0.0f : max;
    double kept = (double)args->sum[row] * (double)exp_one(before - shift);
    float sum = (float)(kept + exp_sum(logits, args->columns, shift));
    args->largest[row] = max;
    args->sum[row] = sum == sum ? sum : fp32_from_bits(0x7fc00000u);
}

static void softmax_part(int threads, const softmax_part_args *args)
{
#pragma omp parallel for schedule(static) num_threads(team(threads, args->rows * args->columns))
    for (uint64_t row = 0; row < args->rows; row++)
        softmax_part_row(args, row);
}

static void cross_entropy_part_row(const softmax_part_args *args, uint64_t row)
{
    uint64_t at = row * softmax_part_stride(args);
    if (args->targets[row] < 0) {
        size_t elem_bytes = dtype_bytes(args->type);
        memset((char *)args->logits_grad + at * elem_bytes, 0, args->columns * elem_bytes);
        return;
    }
    float max = args->largest[row];
    double sum = (double)args->sum[row];
    softmax_grad_row(args->type, args->logits + at, args->columns, max,
                     (float)((double)args->grad_scale / sum), args->logits_grad, at);
    uint64_t target = (uint64_t)args->targets[row] - args->column_begin; /* wraps if before */
    if (target >= args->columns)
        return;
    double target_softmax = exp((double)(args->target_logit[row] - max)) / sum;
    store_one(args->type, args->logits_grad, at + target,
              (float)((target_softmax - 1.0) * (double)args->grad_scale));
}

static void cross_entropy_part(int threads, const softmax_part_args *args)
{
#pragma omp parallel for schedule(static) num_threads(team(threads, args->rows * args->columns))
    for (uint64_t row = 0; row < args->rows; row++)
        cross_entropy_part_row(args, row);
}
