/* Softmax cross-entropy of one chunk of rows, over the whole vocabulary or over parts of its
 * columns. Part of rows_variant.c.
 *
 * There are two passes over a row. The first finds its largest logit and the sum of the
 * exponentials, the second computes the gradient. A row of 256K logits is 1 MiB, so the second pass
 * reads it from the second-level cache. The exponentials are computed twice and not stored, because
 * a 16-bit gradient has no room for them. A row that contains NaN or +infinity gets a NaN loss,
 * which the check of the training step finds.
 *
 * The first pass follows Milakov and Gimelshein, "Online normalizer calculation for softmax"
 * (2018), separately in each of ROWS_LANES lanes, which are combined at the end of the row. Let o
 * be lane k's largest logit of the blocks before, and m the largest with this block included, both
 * rounded to integers. Each block then computes
 *   sum[k] = sum[k] * exp(o - m) + sum over the block's lane of exp(x - m)
 * so no lanes are combined, compared or branched on between blocks. The exponentials and their sum
 * over a block are fp32; sum[k] is fp64. In most blocks o = m, and the factor is exactly 1. Without
 * the rounding to integers, a row that rises slowly would collect the rounding error of one
 * exponential in each block. While every logit so far is -infinity, m is taken as 0: nothing is
 * added, and a later logit may still be finite.
 *
 * Between calls, the parts keep three fp32 numbers for each row: the largest logit, the sum with
 * its shift (rounded once after a part, by the same rule), and the logit of the target. A sum that
 * is NaN stays NaN, with the bits 0x7fc00000. */

/* z of x[0..n), n <= ROWS_BLOCK: in place without a cap, else in `buffer`. */
static const float *cap_logits(float cap, const float *x, size_t n, float *buffer)
{
    if (cap == 0.0f)
        return x;
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        buffer[i] = cap * tanh_one(x[i] / cap);
    return buffer;
}

/* dz/dlogit, from z. */
static inline float logit_slope(float cap, float z)
{
    float t = cap == 0.0f ? 0.0f : z / cap;
    return fused(-t, t, 1.0f);
}

/* The lanes of the first pass; element i of the row belongs to lane i % ROWS_LANES. */
struct softmax_lanes {
    float largest[ROWS_LANES]; /* -infinity before the first block; NaN elements are ignored */
    double sum[ROWS_LANES];    /* of exp(x - softmax_shift(near_integer(largest))) */
};

/* The shift that is subtracted from the logits of a row before exp. */
static inline float softmax_shift(float largest)
{
    return largest == -INFINITY ? 0.0f : largest;
}

/* The nearest integer if |x| < 2^22, else x itself. */
static inline float near_integer(float x)
{
    float rounded = x + ROUNDING_SHIFT - ROUNDING_SHIFT;
    return x > -0x1p22f && x < 0x1p22f ? rounded : x;
}

/* largest[k] = the largest of itself and of x[k], x[k + ROWS_LANES], ... up to x[n - 1]. */
static inline void lanes_max(float largest[ROWS_LANES], const float *x, size_t n)
{
    float lane[ROWS_LANES];
    memcpy(lane, largest, sizeof lane);
    for (size_t i = 0; i < n; i += ROWS_LANES) {
        fetch_ahead(x + i, ROWS_LANES * sizeof *x);
#pragma omp simd
        for (size_t k = 0; k < ROWS_LANES; k++)
            lane[k] = x[i + k] > lane[k] ? x[i + k] : lane[k];
    }
    memcpy(largest, lane, sizeof lane);
}

/* Adds x[0..n); n is a multiple of ROWS_LANES, at most ROWS_BLOCK. */
static void softmax_add(struct softmax_lanes *lanes, const float *x, size_t n)
{
    float shift[ROWS_LANES], kept[ROWS_LANES], powers[ROWS_BLOCK];
    struct row_sum sums = {{0}};
    memcpy(kept, lanes->largest, sizeof kept);
    lanes_max(lanes->largest, x, n);
#pragma omp simd
    for (size_t k = 0; k < ROWS_LANES; k++) {
        shift[k] = softmax_shift(near_integer(lanes->largest[k]));
        kept[k] = exp_below(near_integer(kept[k]) - shift[k]);
    }
    for (size_t i = 0; i < n; i += ROWS_LANES)
#pragma omp simd
        for (size_t k = 0; k < ROWS_LANES; k++)
            powers[i + k] = exp_below(x[i + k] - shift[k]);
    row_sum_add(&sums, powers, n);
#pragma omp simd
    for (size_t k = 0; k < ROWS_LANES; k++)
        lanes->sum[k] = lanes->sum[k] * (double)kept[k] + sums.lane[k];
}

/* The largest z of logits[0..count) and the sum of exp(z - softmax_shift(largest)). */
static void softmax_first_pass(float cap, const float *logits, uint64_t count, float *largest,
                               double *sum)
{
    float buffer[ROWS_BLOCK];
    struct softmax_lanes lanes;
    struct row_sum sums;
    uint64_t whole = count / ROWS_LANES * ROWS_LANES;
    for (int k = 0; k < ROWS_LANES; k++) {
        lanes.largest[k] = -INFINITY;
        lanes.sum[k] = 0.0;
    }
    for (uint64_t c = 0; c < whole; c += ROWS_BLOCK)
        softmax_add(&lanes, cap_logits(cap, logits + c, block_elems(whole, c), buffer),
                    block_elems(whole, c));
    if (whole < count) { /* the rest, padded with values that add nothing */
        float rest[ROWS_LANES];
        const float *last = cap_logits(cap, logits + whole, (size_t)(count - whole), buffer);
        for (uint64_t k = 0; k < ROWS_LANES; k++)
            rest[k] = whole + k < count ? last[k] : -INFINITY;
        softmax_add(&lanes, rest, ROWS_LANES);
    }
    float max = -INFINITY;
    for (int k = 0; k < ROWS_LANES; k++)
        max = lanes.largest[k] > max ? lanes.largest[k] : max;
    float shift = softmax_shift(max);
#pragma omp simd
    for (int k = 0; k < ROWS_LANES; k++)
        sums.lane[k] = lanes.sum[k] * (double)exp_below(near_integer(lanes.largest[k]) - shift);
    *largest = max;
    *sum = row_sum_fold(&sums);
}

/* grad[at + i] = round(exp(z[i] - max) * scale * slope of z[i]); grad may lie at logits. */
static void softmax_grad_row(enum dtype type, float cap, const float *logits, uint64_t count,
                             float max, float scale, void *grads, uint64_t at)
{
    float buffer[ROWS_BLOCK], z_buffer[ROWS_BLOCK];
    for (uint64_t c = 0; c < count; c += ROWS_BLOCK) {
        size_t n = block_elems(count, c);
        const float *z = cap_logits(cap, logits + c, n, z_buffer);
        float *grad = store_place(type, grads, at + c, buffer);
        if (z == logits + c)
#pragma omp simd
            for (size_t i = 0; i < n; i++)
                grad[i] = exp_below(z[i] - max) * scale;
        else
#pragma omp simd
            for (size_t i = 0; i < n; i++)
                grad[i] = exp_below(z[i] - max) * scale * logit_slope(cap, z[i]);
        store_block(type, grads, at + c, n, grad);
    }
}

/* The gradient at the target, whose z is given. */
static float target_grad(float cap, float z, float max, double sum, float grad_scale)
{
    double softmax = exp((double)(z - max)) / sum;
    return (float)((softmax - 1.0) * (double)grad_scale * (double)logit_slope(cap, z));
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
    uint64_t target = (uint64_t)args->targets[row];
    float max, z_buffer, cap = args->soft_cap;
    double sum;
    softmax_first_pass(cap, logits, vocab, &max, &sum);
    float z = *cap_logits(cap, logits + target, 1, &z_buffer); /* before it is overwritten */
    args->losses[row] = (float)(log(sum) + ((double)max - (double)z));
    if (!args->logits_grad)
        return;
    softmax_grad_row(args->type, cap, logits, vocab, max, (float)((double)args->grad_scale / sum),
                     args->logits_grad, at);
    store_one(args->type, args->logits_grad, at + target,
              target_grad(cap, z, max, sum, args->grad_scale));
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
    float z_buffer;
    /* wraps around if before this part */
    uint64_t target = (uint64_t)args->targets[row] - args->column_begin;
    if (target < args->columns)
        args->target_logit[row] = *cap_logits(args->soft_cap, logits + target, 1, &z_buffer);
    float before = args->largest[row], largest;
    double part_sum;
    softmax_first_pass(args->soft_cap, logits, args->columns, &largest, &part_sum);
    float max = before > largest ? before : largest, shift = softmax_shift(max);
    float sum = (float)((double)args->sum[row] * (double)exp_below(before - shift) +
                        part_sum * (double)exp_below(largest - shift));
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
    softmax_grad_row(args->type, args->soft_cap, args->logits + at, args->columns, max,
                     (float)((double)args->grad_scale / sum), args->logits_grad, at);
    /* wraps around if before this part */
    uint64_t target = (uint64_t)args->targets[row] - args->column_begin;
    if (target < args->columns)
        store_one(args->type, args->logits_grad, at + target,
                  target_grad(args->soft_cap, args->target_logit[row], max, sum, args->grad_scale));
}

static void cross_entropy_part(int threads, const softmax_part_args *args)
{
#pragma omp parallel for schedule(static) num_threads(team(threads, args->rows * args->columns))
    for (uint64_t row = 0; row < args->rows; row++)
        cross_entropy_part_row(args, row);
}
