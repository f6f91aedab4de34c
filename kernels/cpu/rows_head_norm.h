/* RMSNorm of single heads within rows, forward and backward. Part of rows_variant.c.
 *
 * A head has at most ROWS_BLOCK elements. Statistics and sums are computed as in rows_norm.h. */

#include <assert.h>

/* The element of `data` at which head `head` of a row begins. */
static uint64_t head_begin(const head_norm_args *args, uint64_t row, uint64_t head)
{
    return row * args->stride + head * args->head_dim;
}

static void head_norm_one(const head_norm_args *args, uint64_t row, uint64_t head, const float *w)
{
    float x_buffer[ROWS_BLOCK], y_buffer[ROWS_BLOCK], kept_buffer[ROWS_BLOCK];
    uint64_t at = row * args->heads + head, first = head_begin(args, row, head);
    size_t n = (size_t)args->head_dim;
    const float *x = load_block(args->type, args->data, first, n, x_buffer);
    float *kept = store_place(args->type, args->before, at * n, kept_buffer);
    memcpy(kept, x, n * sizeof *kept);
    store_block(args->type, args->before, at * n, n, kept);
    struct row_operand before = {args->type, args->before, at * n};
    double variance = row_mean_square(&before, n, 0.0f);
    float rstd = (float)(1.0 / sqrt(variance + (double)args->epsilon));
    args->rstd[at] = rstd;
    float *y = store_place(args->type, args->data, first, y_buffer);
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * rstd * w[i];
    store_block(args->type, args->data, first, n, y);
}

static void head_norm_forward(int threads, const head_norm_args *args)
{
    assert(args->head_dim <= ROWS_BLOCK);
    uint64_t count = args->rows * args->heads * args->head_dim;
#pragma omp parallel for schedule(static) num_threads(team(threads, count))
    for (uint64_t row = 0; row < args->rows; row++) {
        float w_buffer[ROWS_BLOCK];
        const float *w = load_block(args->type, args->weight, 0, (size_t)args->head_dim, w_buffer);
        for (uint64_t head = 0; head < args->heads; head++)
            head_norm_one(args, row, head, w);
    }
}

/* dx = rstd * (g - xhat * mean(g xhat)), g = dy * w, xhat = x * rstd; weight_sum += dy * xhat. */
static void head_norm_grad_one(const head_norm_args *args, uint64_t row, uint64_t head,
                               const float *w, float *weight_sum)
{
    float x_buffer[ROWS_BLOCK], dy_buffer[ROWS_BLOCK], dx_buffer[ROWS_BLOCK], gx[ROWS_BLOCK];
    uint64_t at = row * args->heads + head, first = head_begin(args, row, head);
    size_t n = (size_t)args->head_dim;
    float rstd = args->rstd[at];
    struct row_sum gx_sum = {{0}};
    const float *x = load_block(args->type, args->before, at * n, n, x_buffer);
    const float *dy = load_block(args->type, args->data, first, n, dy_buffer);
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float xhat = x[i] * rstd;
        weight_sum[i] += dy[i] * xhat;
        gx[i] = dy[i] * w[i] * xhat;
    }
    row_sum_add(&gx_sum, gx, n);
    float gx_mean = (float)(row_sum_fold(&gx_sum) / (double)n);
    float *dx = store_place(args->type, args->data, first, dx_buffer);
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        dx[i] = rstd * (dy[i] * w[i] - x[i] * rstd * gx_mean);
    store_block(args->type, args->data, first, n, dx);
}

/* scratch: [block_count, D] fp32, the partial sums of the weight gradient. */
static void head_norm_backward(int threads, const head_norm_args *args)
{
    assert(args->head_dim <= ROWS_BLOCK);
    uint64_t rows = args->rows, dim = args->head_dim;
    uint64_t step = rowsi_rows_per_block(rows), block_count = rowsi_block_count(rows);
    float *scratch = args->scratch;
#pragma omp parallel for schedule(static) num_threads(team(threads, rows * args->heads * dim))
    for (uint64_t block = 0; block < block_count; block++) {
        float w_buffer[ROWS_BLOCK];
        const float *w = load_block(args->type, args->weight, 0, (size_t)dim, w_buffer);
        float *weight_sum = scratch + block * dim;
        uint64_t end = (block + 1) * step < rows ? (block + 1) * step : rows;
        memset(weight_sum, 0, dim * sizeof *weight_sum);
        for (uint64_t row = block * step; row < end; row++)
            for (uint64_t head = 0; head < args->heads; head++)
                head_norm_grad_one(args, row, head, w, weight_sum);
    }
    if (args->weight_grad)
        add_partial_sums(threads, scratch, block_count, dim, dim, args->weight_grad);
}
