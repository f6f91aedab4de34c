/* LayerNorm and RMSNorm, and column sums over rows. Part of rows_body.h.
 *
 * Statistics are two passes (mean, then squared distances from it) with fp32 lanes folded in
 * double. RMSNorm is the same arithmetic with the mean taken as 0. */

/* sum = round(x + residual); one row at element `at` of each. */
static void residual_row(const norm_args *args, uint64_t at)
{
    float x_buffer[ROWS_BLOCK], residual_buffer[ROWS_BLOCK], sum_buffer[ROWS_BLOCK];
    for (uint64_t c = 0; c < args->channels; c += ROWS_BLOCK) {
        size_t n = block_elems(args->channels, c);
        const float *x = load_block(args->type, args->input, at + c, n, x_buffer);
        const float *residual = load_block(args->type, args->residual, at + c, n, residual_buffer);
        float *sum = store_place(args->type, args->sum, at + c, sum_buffer);
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            sum[i] = x[i] + residual[i];
        store_block(args->type, args->sum, at + c, n, sum);
    }
}

static float row_mean(enum dtype type, const void *x_row, uint64_t at, uint64_t channels)
{
    struct row_sum sum = {{0}};
    float buffer[ROWS_BLOCK];
    for (uint64_t c = 0; c < channels; c += ROWS_BLOCK) {
        size_t n = block_elems(channels, c);
        row_sum_add(&sum, load_block(type, x_row, at + c, n, buffer), n);
    }
    return (float)(row_sum_fold(&sum) / (double)channels);
}

/* Mean of (x - mean)^2. */
static double row_mean_square(enum dtype type, const void *x_row, uint64_t at, uint64_t channels,
                              float mean)
{
    struct row_sum sum = {{0}};
    float buffer[ROWS_BLOCK], squares[ROWS_BLOCK];
    for (uint64_t c = 0; c < channels; c += ROWS_BLOCK) {
        size_t n = block_elems(channels, c);
        const float *x = load_block(type, x_row, at + c, n, buffer);
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            squares[i] = (x[i] - mean) * (x[i] - mean);
        row_sum_add(&sum, squares, n);
    }
    return row_sum_fold(&sum) / (double)channels;
}

static void norm_row(const norm_args *args, uint64_t row)
{
    uint64_t channels = args->channels, at = row * channels;
    float x_buffer[ROWS_BLOCK], w_buffer[ROWS_BLOCK], b_buffer[ROWS_BLOCK], y_buffer[ROWS_BLOCK];
    const void *source = args->input;
    if (args->residual) {
        residual_row(args, at);
        source = args->sum;
    }
    float mean = args->kind == NORM_LAYER ? row_mean(args->type, source, at, channels) : 0.0f;
    double variance = row_mean_square(args->type, source, at, channels, mean);
    float rstd = (float)(1.0 / sqrt(variance + (double)args->epsilon));
    if (args->kind == NORM_LAYER)
        args->mean[row] = mean;
    args->rstd[row] = rstd;
    for (uint64_t c = 0; c < channels; c += ROWS_BLOCK) {
        size_t n = block_elems(channels, c);
        const float *x = load_block(args->type, source, at + c, n, x_buffer);
        const float *w = load_block(args->type, args->weight, c, n, w_buffer);
        float *y = store_place(args->type, args->output, at + c, y_buffer);
        if (args->kind == NORM_LAYER) {
            const float *b = load_block(args->type, args->bias, c, n, b_buffer);
#pragma omp simd
            for (size_t i = 0; i < n; i++)
                y[i] = (x[i] - mean) * rstd * w[i] + b[i];
        } else {
#pragma omp simd
            for (size_t i = 0; i < n; i++)
                y[i] = x[i] * rstd * w[i];
        }
        store_block(args->type, args->output, at + c, n, y);
    }
}

static void norm_forward(int threads, const norm_args *args)
{
#pragma omp parallel for schedule(static) num_threads(team(threads, args->rows * args->channels))
    for (uint64_t row = 0; row < args->rows; row++)
        norm_row(args, row);
}

/* Adds one row to the parameter gradients' partial sums (bias_sum NULL for RMSNorm) and returns the
 * means of g = dy * w and of g * xhat, xhat = (x - mean) * rstd. */
static void norm_grad_row_sums(const norm_grad_args *args, uint64_t at, float mean, float rstd,
                               float *weight_sum, float *bias_sum, float *g_mean, float *gx_mean)
{
    float x_buffer[ROWS_BLOCK], dy_buffer[ROWS_BLOCK], w_buffer[ROWS_BLOCK];
    float g[ROWS_BLOCK], gx[ROWS_BLOCK];
    struct row_sum g_sum = {{0}}, gx_sum = {{0}};
    for (uint64_t c = 0; c < args->channels; c += ROWS_BLOCK) {
        size_t n = block_elems(args->channels, c);
        const float *x = load_block(args->type, args->input, at + c, n, x_buffer);
        const float *dy = load_block(args->type, args->output_grad, at + c, n, dy_buffer);
        const float *w = load_block(args->type, args->weight, c, n, w_buffer);
        float *dw = weight_sum + c;
#pragma omp simd
        for (size_t i = 0; i < n; i++) {
            float xhat = (x[i] - mean) * rstd;
            dw[i] += dy[i] * xhat;
            g[i] = dy[i] * w[i];
            gx[i] = g[i] * xhat;
        }
        row_sum_add(&gx_sum, gx, n);
        if (!bias_sum)
            continue;
        row_sum_add(&g_sum, g, n);
        float *db = bias_sum + c;
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            db[i] += dy[i];
    }
    *g_mean = (float)(row_sum_fold(&g_sum) / (double)args->channels);
    *gx_mean = (float)(row_sum_fold(&gx_sum) / (double)args->channels);
}

/* dx = rstd * (g - mean(g) - xhat * mean(g xhat)) [+ residual_grad]; mean(g) is 0 for RMSNorm. */
static void norm_grad_row_input(const norm_grad_args *args, uint64_t at, float mean, float rstd,
                                float g_mean, float gx_mean)
{
    float x_buffer[ROWS_BLOCK], dy_buffer[ROWS_BLOCK], w_buffer[ROWS_BLOCK];
    float residual_buffer[ROWS_BLOCK], dx_buffer[ROWS_BLOCK];
    for (uint64_t c = 0; c < args->channels; c += ROWS_BLOCK) {
        size_t n = block_elems(args->channels, c);
        const float *x = load_block(args->type, args->input, at + c, n, x_buffer);
        const float *dy = load_block(args->type, args->output_grad, at + c, n, dy_buffer);
        const float *w = load_block(args->type, args->weight, c, n, w_buffer);
        float *dx = store_place(args->type, args->input_grad, at + c, dx_buffer);
        if (args->residual_grad) {
            const float *residual =
                load_block(args->type, args->residual_grad, at + c, n, residual_buffer);
#pragma omp simd
            for (size_t i = 0; i < n; i++) {
                float xhat = (x[i] - mean) * rstd;
                dx[i] = rstd * (dy[i] * w[i] - g_mean - xhat * gx_mean) + residual[i];
            }
        } else {
#pragma omp simd
            for (size_t i = 0; i < n; i++) {
                float xhat = (x[i] - mean) * rstd;
                dx[i] = rstd * (dy[i] * w[i] - g_mean - xhat * gx_mean);
            }
        }
        store_block(args->type, args->input_grad, at + c, n, dx);
    }
}

/* target[n] += sum over blocks, in order, of partial[block * stride + column]. */
static void add_partial_sums(int threads, const float *partial, uint64_t block_count,
                             uint64_t stride, uint64_t n, float *target)
{
#pragma omp parallel for schedule(static) num_threads(team(threads, block_count *n))
    for (uint64_t first = 0; first < n; first += ROWS_BLOCK) {
        double sum[ROWS_BLOCK] = {0};
        size_t width = block_elems(n, first);
        for (uint64_t block = 0; block < block_count; block++) {
            const float *part = partial + block * stride + first;
#pragma omp simd
            for (size_t i = 0; i < width; i++)
                sum[i] += (double)part[i];
        }
        float *out = target + first;
#pragma omp simd
        for (size_t i = 0; i < width; i++)
            out[i] += (float)sum[i];
    }
}

/* scratch: [block_count, 2, C] fp32, partial sums of the weight's and the bias's gradient. */
static void norm_backward(int threads, const norm_grad_args *args)
{
    uint64_t rows = args->rows, channels = args->channels;
    uint64_t step = rowsi_rows_per_block(rows), block_count = rowsi_block_count(rows);
    float *scratch = args->scratch;
    bool layer = args->kind == NORM_LAYER;
#pragma omp parallel for schedule(static) num_threads(team(threads, rows *channels))
    for (uint64_t block = 0; block < block_count; block++) {
        float *weight_sum = scratch + block * 2 * channels;
        float *bias_sum = layer ? weight_sum + channels : NULL;
        uint64_t end = (block + 1) * step < rows ? (block + 1) * step : rows;
        memset(weight_sum, 0, (layer ? 2 : 1) * channels * sizeof *weight_sum);
        for (uint64_t row = block * step; row < end; row++) {
            float mean = layer ? args->mean[row] : 0.0f, rstd = args->rstd[row];
            float g_mean, gx_mean;
            norm_grad_row_sums(args, row * channels, mean, rstd, weight_sum, bias_sum, &g_mean,
                               &gx_mean);
            norm_grad_row_input(args, row * channels, mean, rstd, g_mean, gx_mean);
        }
    }
    if (!args->weight_grad)
        return;
    add_partial_sums(threads, scratch, block_count, 2 * channels, channels, args->weight_grad);
    if (layer)
        add_partial_sums(threads, scratch + channels, block_count, 2 * channels, channels,
                         args->bias_grad);
}

/* scratch: [block_count, n] fp32. */
static void bias_backward(int threads, enum dtype type, uint64_t rows, uint64_t n,
                          const void *output_grad, float *bias_grad, float *scratch)
{
    uint64_t step = rowsi_rows_per_block(rows), block_count = rowsi_block_count(rows);
#pragma omp parallel for schedule(static) num_threads(team(threads, rows *n))
    for (uint64_t block = 0; block < block_count; block++) {
        float buffer[ROWS_BLOCK];
        float *partial = scratch + block * n;
        uint64_t end = (block + 1) * step < rows ? (block + 1) * step : rows;
        memset(partial, 0, n * sizeof *partial);
        for (uint64_t row = block * step; row < end; row++)
            for (uint64_t c = 0; c < n; c += ROWS_BLOCK) {
                size_t width = block_elems(n, c);
                const float *dy = load_block(type, output_grad, row * n + c, width, buffer);
                float *sum = partial + c;
#pragma omp simd
                for (size_t i = 0; i < width; i++)
                    sum[i] += dy[i];
            }
    }
    add_partial_sums(threads, scratch, block_count, n, n, bias_grad);
}
