/* LayerNorm and RMSNorm, and column sums over rows. Part of rows_variant.c.
 *
 * Statistics take two passes: the mean, then the squared distances from it. They use fp32 lanes
 * that are summed up in double. RMSNorm is the same arithmetic with a mean of 0.
 *
 * Memory is read once. For 16-bit types the passes over a row share one widened copy, which stays
 * in the caches, and a thread widens weight and bias once in a call; without this, widening and
 * rounding were most of the time of a bf16 norm. Rows of more than ROW_KEPT elements are widened
 * again in each pass. */

enum { ROW_KEPT = 4096 }; /* elements: 16 KiB of fp32 */

/* The elements of an array of one type, from element `at` of `data` on, each plus `added`. Without
 * `data` each element is `added`. */
struct row_operand {
    enum dtype type;
    const void *data;
    uint64_t at;
    float added;
};

/* Elements [c, c + n) of an operand, as from load_block. */
static inline const float *load_part(const struct row_operand *from, uint64_t c, size_t n,
                                     float *buffer)
{
    float added = from->added;
    const float *x = NULL;
    if (from->data)
        x = load_block(from->type, from->data, from->at + c, n, buffer);
    if (x && added == 0.0f)
        return x;
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        buffer[i] = x ? x[i] + added : added;
    return buffer;
}

/* The same n elements as fp32: in place if they are fp32, else widened into kept [ROW_KEPT]. If
 * `kept` is too small for them, the operand is returned unchanged. */
static inline struct row_operand keep_row(struct row_operand from, uint64_t n, float *kept)
{
    bool is_plain = from.data && from.added == 0.0f;
    if ((from.type == DTYPE_FP32 && is_plain) || n > ROW_KEPT)
        return from;
    for (uint64_t c = 0; c < n; c += ROWS_BLOCK) {
        size_t part = block_elems(n, c);
        const float *x = load_part(&from, c, part, kept + c);
        assert(x == kept + c);
    }
    return (struct row_operand){DTYPE_FP32, kept, 0, 0.0f};
}

/* The weights of a norm from element `at` on: those stored, 1 + those stored, or 1. */
static inline struct row_operand weights_of(enum dtype type, const void *weight, uint64_t at,
                                            bool adds_one)
{
    return (struct row_operand){type, weight, at, adds_one || !weight ? 1.0f : 0.0f};
}

/* sum = round(x + residual) for one row. Without a residual, sum is a copy of the row of the
 * input. */
static void sum_row(const norm_args *args, uint64_t row)
{
    uint64_t at = row * args->channels;
    if (!args->residual) {
        size_t elem_bytes = dtype_bytes(args->type);
        memcpy((char *)args->sum + at * elem_bytes,
               (const char *)args->input + row * norm_stride(args) * elem_bytes,
               args->channels * elem_bytes);
        return;
    }
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

static float row_mean(const struct row_operand *row, uint64_t channels)
{
    struct row_sum sum = {{0}};
    float buffer[ROWS_BLOCK];
    for (uint64_t c = 0; c < channels; c += ROWS_BLOCK) {
        size_t n = block_elems(channels, c);
        row_sum_add(&sum, load_part(row, c, n, buffer), n);
    }
    return (float)(row_sum_fold(&sum) / (double)channels);
}

/* Mean of (x - mean)^2. */
static double row_mean_square(const struct row_operand *row, uint64_t channels, float mean)
{
    struct row_sum sum = {{0}};
    float buffer[ROWS_BLOCK], squares[ROWS_BLOCK];
    for (uint64_t c = 0; c < channels; c += ROWS_BLOCK) {
        size_t n = block_elems(channels, c);
        const float *x = load_part(row, c, n, buffer);
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            squares[i] = (x[i] - mean) * (x[i] - mean);
        row_sum_add(&sum, squares, n);
    }
    return row_sum_fold(&sum) / (double)channels;
}

/* Operands that a thread widens once for all of its rows. */
struct norm_operands {
    struct row_operand weight, bias; /* bias: only for LayerNorm; without data, 0 */
};

static void norm_row(const norm_args *args, uint64_t row, const struct norm_operands *shared)
{
    uint64_t channels = args->channels, at = row * norm_stride(args);
    float x_buffer[ROWS_BLOCK], w_buffer[ROWS_BLOCK], b_buffer[ROWS_BLOCK], y_buffer[ROWS_BLOCK];
    float kept[ROW_KEPT];
    struct row_operand source = {args->type, args->input, at, 0.0f};
    if (args->sum) {
        sum_row(args, row);
        source.data = args->sum;
        source.at = row * channels;
    }
    source = keep_row(source, channels, kept);
    float mean = args->kind == NORM_LAYER ? row_mean(&source, channels) : 0.0f;
    double variance = row_mean_square(&source, channels, mean);
    float rstd = (float)(1.0 / sqrt(variance + (double)args->epsilon));
    if (args->kind == NORM_LAYER)
        args->mean[row] = mean;
    args->rstd[row] = rstd;
    for (uint64_t c = 0; c < channels; c += ROWS_BLOCK) {
        size_t n = block_elems(channels, c);
        const float *x = load_part(&source, c, n, x_buffer);
        const float *w = load_part(&shared->weight, c, n, w_buffer);
        float *y = store_place(args->type, args->output, at + c, y_buffer);
        if (args->kind == NORM_LAYER) {
            const float *b = load_part(&shared->bias, c, n, b_buffer);
#pragma omp simd
            for (size_t i = 0; i < n; i++)
                y[i] = fused((x[i] - mean) * rstd, w[i], b[i]);
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
#pragma omp parallel num_threads(team(threads, args->rows * args->channels))
    {
        float weight[ROW_KEPT], bias[ROW_KEPT];
        struct norm_operands shared = {
            .weight = keep_row(weights_of(args->type, args->weight, 0, args->adds_one),
                               args->channels, weight)};
        if (args->kind == NORM_LAYER)
            shared.bias = keep_row((struct row_operand){args->type, args->bias, 0, 0.0f},
                                   args->channels, bias);
#pragma omp for schedule(static)
        for (uint64_t row = 0; row < args->rows; row++)
            norm_row(args, row, &shared);
    }
}

/* One row of the backward pass. */
struct norm_grad_row {
    struct row_operand x, dy, weight;
    float mean, rstd; /* mean 0 for RMSNorm */
    /* means of g = dy * w (0 for RMSNorm) and of g * xhat, with xhat = (x - mean) * rstd */
    float g_mean, gx_mean;
};

/* Adds one row to the partial sums of the parameter gradients (bias_sum is NULL for RMSNorm), and
 * computes the means of g and of g * xhat. */
static void norm_grad_row_sums(struct norm_grad_row *row, uint64_t channels, float *weight_sum,
                               float *bias_sum)
{
    float x_buffer[ROWS_BLOCK], dy_buffer[ROWS_BLOCK], w_buffer[ROWS_BLOCK];
    float g[ROWS_BLOCK], gx[ROWS_BLOCK], mean = row->mean, rstd = row->rstd;
    struct row_sum g_sum = {{0}}, gx_sum = {{0}};
    for (uint64_t c = 0; c < channels; c += ROWS_BLOCK) {
        size_t n = block_elems(channels, c);
        const float *x = load_part(&row->x, c, n, x_buffer);
        const float *dy = load_part(&row->dy, c, n, dy_buffer);
        const float *w = load_part(&row->weight, c, n, w_buffer);
        float *dw = weight_sum + c;
#pragma omp simd
        for (size_t i = 0; i < n; i++) {
            float xhat = (x[i] - mean) * rstd;
            dw[i] = fused(dy[i], xhat, dw[i]);
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
    row->g_mean = (float)(row_sum_fold(&g_sum) / (double)channels);
    row->gx_mean = (float)(row_sum_fold(&gx_sum) / (double)channels);
}

/* dx = rstd * (g - mean(g) - xhat * mean(g xhat)) [+ residual_grad], at element `at`. */
static void norm_grad_row_input(const norm_grad_args *args, uint64_t at,
                                const struct norm_grad_row *row)
{
    float x_buffer[ROWS_BLOCK], dy_buffer[ROWS_BLOCK], w_buffer[ROWS_BLOCK];
    float residual_buffer[ROWS_BLOCK], dx_buffer[ROWS_BLOCK];
    float mean = row->mean, rstd = row->rstd, g_mean = row->g_mean, minus_gx_mean = -row->gx_mean;
    for (uint64_t c = 0; c < args->channels; c += ROWS_BLOCK) {
        size_t n = block_elems(args->channels, c);
        const float *x = load_part(&row->x, c, n, x_buffer);
        const float *dy = load_part(&row->dy, c, n, dy_buffer);
        const float *w = load_part(&row->weight, c, n, w_buffer);
        float *dx = store_place(args->type, args->input_grad, at + c, dx_buffer);
        if (args->residual_grad) {
            const float *residual =
                load_block(args->type, args->residual_grad, at + c, n, residual_buffer);
#pragma omp simd
            for (size_t i = 0; i < n; i++) {
                float xhat = (x[i] - mean) * rstd;
                float centered = fused(dy[i], w[i], -g_mean);
                dx[i] = fused(rstd, fused(xhat, minus_gx_mean, centered), residual[i]);
            }
        } else {
#pragma omp simd
            for (size_t i = 0; i < n; i++) {
                float xhat = (x[i] - mean) * rstd;
                float centered = fused(dy[i], w[i], -g_mean);
                dx[i] = rstd * fused(xhat, minus_gx_mean, centered);
            }
        }
        store_block(args->type, args->input_grad, at + c, n, dx);
    }
}

/* target[n] += sum over the blocks, in order, of partial[block * stride + column]. */
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

/* Rows [begin, end): writes their input gradients and adds to the partial sums of their block. */
static void norm_grad_rows(const norm_grad_args *args, uint64_t begin, uint64_t end,
                           struct row_operand weight, float *weight_sum, float *bias_sum)
{
    float x[ROW_KEPT], dy[ROW_KEPT];
    uint64_t channels = args->channels;
    for (uint64_t i = begin; i < end; i++) {
        uint64_t at = i * norm_grad_stride(args);
        struct row_operand input = {args->type, args->input, i * channels, 0.0f};
        struct row_operand grad = {args->type, args->output_grad, at, 0.0f};
        struct norm_grad_row row = {.x = keep_row(input, channels, x),
                                    .dy = keep_row(grad, channels, dy),
                                    .weight = weight,
                                    .mean = bias_sum ? args->mean[i] : 0.0f,
                                    .rstd = args->rstd[i]};
        norm_grad_row_sums(&row, channels, weight_sum, bias_sum);
        norm_grad_row_input(args, at, &row);
    }
}

/* scratch: [block_count, 2, C] fp32, the partial sums of the gradients of weight and bias. */
static void norm_backward(int threads, const norm_grad_args *args)
{
    uint64_t rows = args->rows, channels = args->channels;
    uint64_t step = rowsi_rows_per_block(rows), block_count = rowsi_block_count(rows);
    float *scratch = args->scratch;
    bool layer = args->kind == NORM_LAYER;
#pragma omp parallel num_threads(team(threads, rows *channels))
    {
        float kept[ROW_KEPT];
        struct row_operand weight =
            keep_row(weights_of(args->type, args->weight, 0, args->adds_one), channels, kept);
#pragma omp for schedule(static)
        for (uint64_t block = 0; block < block_count; block++) {
            float *weight_sum = scratch + block * 2 * channels;
            float *bias_sum = layer ? weight_sum + channels : NULL;
            uint64_t end = (block + 1) * step < rows ? (block + 1) * step : rows;
            memset(weight_sum, 0, (layer ? 2 : 1) * channels * sizeof *weight_sum);
            norm_grad_rows(args, block * step, end, weight, weight_sum, bias_sum);
        }
    }
    if (args->weight_grad)
        add_partial_sums(threads, scratch, block_count, 2 * channels, channels, args->weight_grad);
    if (args->bias_grad)
        add_partial_sums(threads, scratch + channels, block_count, 2 * channels, channels,
                         args->bias_grad);
}

/* sum[0..n) += rows [begin, end) of dy, in order; n <= ROWS_BLOCK. Four rows are added at a time,
 * so that the sums are loaded and stored once for the four. `at` is the index of the columns in row
 * 0, `stride` the number of elements of a row. */
static void add_rows(enum dtype type, const void *dy, uint64_t at, uint64_t stride, uint64_t begin,
                     uint64_t end, size_t n, float *sum)
{
    enum { TOGETHER = 4 };
    float buffers[TOGETHER][ROWS_BLOCK];
    uint64_t row = begin;
    for (; row + TOGETHER <= end; row += TOGETHER) {
        const float *x[TOGETHER];
        for (uint64_t k = 0; k < TOGETHER; k++)
            x[k] = load_block(type, dy, at + (row + k) * stride, n, buffers[k]);
        const float *first = x[0], *second = x[1], *third = x[2], *fourth = x[3];
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            sum[i] = sum[i] + first[i] + second[i] + third[i] + fourth[i];
    }
    for (; row < end; row++) {
        const float *x = load_block(type, dy, at + row * stride, n, buffers[0]);
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            sum[i] += x[i];
    }
}

/* scratch: [block_count, n] fp32. */
static void bias_backward(int threads, enum dtype type, uint64_t rows, uint64_t n, uint64_t stride,
                          const void *output_grad, float *bias_grad, float *scratch)
{
    uint64_t step = rowsi_rows_per_block(rows), block_count = rowsi_block_count(rows);
#pragma omp parallel for schedule(static) num_threads(team(threads, rows *n))
    for (uint64_t block = 0; block < block_count; block++) {
        float *partial = scratch + block * n;
        uint64_t end = (block + 1) * step < rows ? (block + 1) * step : rows;
        memset(partial, 0, n * sizeof *partial);
        for (uint64_t c = 0; c < n; c += ROWS_BLOCK)
            add_rows(type, output_grad, c, stride, block * step, end, block_elems(n, c),
                     partial + c);
    }
    add_partial_sums(threads, scratch, block_count, n, n, bias_grad);
}

/* ---- norms of single heads within rows ---- */

/* The element of `data` at which head `head` of a row begins. */
static uint64_t head_begin(const head_norm_args *args, uint64_t row, uint64_t head)
{
    return row * args->stride + head * args->head_dim;
}

/* The weights of all heads of a row, or the ones that they share. */
static uint64_t head_weight_count(const head_norm_args *args)
{
    return args->weight_per_head ? args->heads * args->head_dim : args->head_dim;
}

static const float *head_weights(const head_norm_args *args, uint64_t head, float *buffer)
{
    uint64_t at = args->weight_per_head ? head * args->head_dim : 0;
    struct row_operand from = weights_of(args->type, args->weight, at, args->adds_one);
    return load_part(&from, 0, (size_t)args->head_dim, buffer);
}

static void head_norm_one(const head_norm_args *args, uint64_t row, uint64_t head, const float *w)
{
    float x_buffer[ROWS_BLOCK], y_buffer[ROWS_BLOCK], kept_buffer[ROWS_BLOCK], mean = 0.0f;
    uint64_t at = row * args->heads + head, first = head_begin(args, row, head);
    size_t n = (size_t)args->head_dim;
    const float *x = load_block(args->type, args->data, first, n, x_buffer);
    float *kept = store_place(args->type, args->before, at * n, kept_buffer);
    memcpy(kept, x, n * sizeof *kept);
    store_block(args->type, args->before, at * n, n, kept);
    struct row_operand before = {args->type, args->before, at * n, 0.0f};
    if (args->is_layer)
        args->mean[at] = mean = row_mean(&before, n);
    double variance = row_mean_square(&before, n, mean);
    float rstd = (float)(1.0 / sqrt(variance + (double)args->epsilon));
    args->rstd[at] = rstd;
    float *y = store_place(args->type, args->data, first, y_buffer);
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) * rstd * w[i];
    store_block(args->type, args->data, first, n, y);
}

static void head_norm_forward(int threads, const head_norm_args *args)
{
    assert(args->head_dim <= ROWS_BLOCK);
    uint64_t count = args->rows * args->heads * args->head_dim;
#pragma omp parallel for schedule(static) num_threads(team(threads, count))
    for (uint64_t row = 0; row < args->rows; row++) {
        float w_buffer[ROWS_BLOCK];
        const float *w = head_weights(args, 0, w_buffer);
        for (uint64_t head = 0; head < args->heads; head++) {
            if (args->weight_per_head)
                w = head_weights(args, head, w_buffer);
            head_norm_one(args, row, head, w);
        }
    }
}

/* dx = rstd * (g - mean(g) - xhat * mean(g xhat)), g = dy * w, xhat = (x - mean) * rstd. RMSNorm
 * has no mean and no mean(g). weight_sum += dy * xhat. */
static void head_norm_grad_one(const head_norm_args *args, uint64_t row, uint64_t head,
                               const float *w, float *weight_sum)
{
    float x_buffer[ROWS_BLOCK], dy_buffer[ROWS_BLOCK], dx_buffer[ROWS_BLOCK];
    float g[ROWS_BLOCK], gx[ROWS_BLOCK];
    uint64_t at = row * args->heads + head, first = head_begin(args, row, head);
    size_t n = (size_t)args->head_dim;
    float rstd = args->rstd[at], mean = args->is_layer ? args->mean[at] : 0.0f, g_mean = 0.0f;
    struct row_sum g_sum = {{0}}, gx_sum = {{0}};
    const float *x = load_block(args->type, args->before, at * n, n, x_buffer);
    const float *dy = load_block(args->type, args->data, first, n, dy_buffer);
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float xhat = (x[i] - mean) * rstd;
        weight_sum[i] += dy[i] * xhat;
        g[i] = dy[i] * w[i];
        gx[i] = g[i] * xhat;
    }
    row_sum_add(&gx_sum, gx, n);
    float gx_mean = (float)(row_sum_fold(&gx_sum) / (double)n);
    if (args->is_layer) {
        row_sum_add(&g_sum, g, n);
        g_mean = (float)(row_sum_fold(&g_sum) / (double)n);
    }
    float *dx = store_place(args->type, args->data, first, dx_buffer);
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        dx[i] = rstd * (g[i] - g_mean - (x[i] - mean) * rstd * gx_mean);
    store_block(args->type, args->data, first, n, dx);
}

/* scratch: [block_count, D or H * D] fp32, the partial sums of the weight gradient. */
static void head_norm_backward(int threads, const head_norm_args *args)
{
    assert(args->head_dim <= ROWS_BLOCK);
    uint64_t rows = args->rows, dim = args->head_dim, width = head_weight_count(args);
    uint64_t step = rowsi_rows_per_block(rows), block_count = rowsi_block_count(rows);
    float *scratch = args->scratch;
#pragma omp parallel for schedule(static) num_threads(team(threads, rows * args->heads * dim))
    for (uint64_t block = 0; block < block_count; block++) {
        float w_buffer[ROWS_BLOCK];
        const float *w = head_weights(args, 0, w_buffer);
        float *weight_sum = scratch + block * width;
        uint64_t end = (block + 1) * step < rows ? (block + 1) * step : rows;
        memset(weight_sum, 0, width * sizeof *weight_sum);
        for (uint64_t row = block * step; row < end; row++)
            for (uint64_t head = 0; head < args->heads; head++) {
                if (args->weight_per_head)
                    w = head_weights(args, head, w_buffer);
                head_norm_grad_one(args, row, head, w,
                                   weight_sum + (args->weight_per_head ? head * dim : 0));
            }
    }
    if (args->weight_grad)
        add_partial_sums(threads, scratch, block_count, width, width, args->weight_grad);
}
