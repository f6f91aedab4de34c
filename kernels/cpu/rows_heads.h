/* Attention sinks and the heads of latent attention (kernels/ops_heads.h). Part of rows_variant.c.
 * Exponentials and logarithms of sinks are libm's, in double: one of each for a row of a head. */

/* One row of one head: its lse and its first element of the output. */
struct sink_place {
    float *lse;
    uint64_t first;
};

static struct sink_place sink_place(const attention_sinks_args *args, uint64_t row, uint64_t head)
{
    uint64_t batch = row / args->tokens;
    return (struct sink_place){args->lse + (batch * args->heads + head) * args->tokens +
                                   row % args->tokens,
                               (row * args->heads + head) * args->value_dim};
}

static double sink_of(const attention_sinks_args *args, uint64_t head)
{
    float buffer[1];
    return (double)*load_block(args->type, args->sinks, head, 1, buffer);
}

static void attention_sinks(int threads, const attention_sinks_args *args)
{
    uint64_t items = args->batch * args->tokens * args->heads;
#pragma omp parallel for schedule(static) num_threads(team(threads, items * args->value_dim))
    for (uint64_t item = 0; item < items; item++) {
        struct sink_place at = sink_place(args, item / args->heads, item % args->heads);
        double sink = sink_of(args, item % args->heads), distance = sink - (double)*at.lse;
        float factor = (float)(1.0 / (1.0 + exp(distance))); /* exp(lse - L) */
        for (uint64_t c = 0; c < args->value_dim; c += ROWS_BLOCK) {
            float buffer[ROWS_BLOCK], out_buffer[ROWS_BLOCK];
            size_t n = block_elems(args->value_dim, c);
            const float *x = load_block(args->type, args->output, at.first + c, n, buffer);
            float *y = store_place(args->type, args->output, at.first + c, out_buffer);
#pragma omp simd
            for (size_t i = 0; i < n; i++)
                y[i] = x[i] * factor;
            store_block(args->type, args->output, at.first + c, n, y);
        }
        *at.lse = (float)((distance > 0.0 ? sink : (double)*at.lse) + log1p(exp(-fabs(distance))));
    }
}

/* The sum of output * output_grad over one row of one head. */
static double sink_delta(const attention_sinks_args *args, uint64_t first)
{
    struct row_sum sum = {{0}};
    for (uint64_t c = 0; c < args->value_dim; c += ROWS_BLOCK) {
        float buffer[ROWS_BLOCK], grad_buffer[ROWS_BLOCK], products[ROWS_BLOCK];
        size_t n = block_elems(args->value_dim, c);
        const float *x = load_block(args->type, args->output, first + c, n, buffer);
        const float *dy = load_block(args->type, args->output_grad, first + c, n, grad_buffer);
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            products[i] = x[i] * dy[i];
        row_sum_add(&sum, products, n);
    }
    return row_sum_fold(&sum);
}

/* A thread has whole heads, whose rows it sums in order. */
static void attention_sinks_backward(int threads, const attention_sinks_args *args)
{
    uint64_t rows = args->batch * args->tokens;
#pragma omp parallel for schedule(static)                                                          \
    num_threads(team(threads, rows * args->heads * args->value_dim))
    for (uint64_t head = 0; head < args->heads; head++) {
        double sink = sink_of(args, head), sum = 0.0;
        for (uint64_t row = 0; row < rows; row++) {
            struct sink_place at = sink_place(args, row, head);
            sum += exp(sink - (double)*at.lse) * sink_delta(args, at.first);
        }
        args->sinks_grad[head] -= (float)sum;
    }
}

/* ---- the heads of latent attention ---- */

/* One row of the four arrays, and the bytes of the pieces of a head. */
struct joined_row {
    char *q, *kv, *common, *k, *v;
    size_t q_bytes, own, shared, value; /* q_bytes: of all heads */
};

static struct joined_row joined_row(const heads_join_args *args, uint64_t row)
{
    size_t elem = dtype_bytes(args->type);
    size_t own = args->own * elem, shared = args->shared * elem, value = args->value * elem;
    size_t q_bytes = args->heads * (own + shared);
    char *packed = (char *)args->packed + row * (2 * q_bytes + args->heads * value);
    return (struct joined_row){.q = (char *)args->q + row * q_bytes,
                               .kv = (char *)args->kv + row * args->heads * (own + value),
                               .common = (char *)args->common + row * args->common_stride * elem,
                               .k = packed + q_bytes,
                               .v = packed + 2 * q_bytes,
                               .q_bytes = q_bytes,
                               .own = own,
                               .shared = shared,
                               .value = value};
}

static void heads_join(int threads, const heads_join_args *args)
{
    uint64_t elems = args->rows * args->heads * (2 * (args->own + args->shared) + args->value);
#pragma omp parallel for schedule(static) num_threads(team(threads, elems))
    for (uint64_t row = 0; row < args->rows; row++) {
        struct joined_row at = joined_row(args, row);
        memcpy(at.k - at.q_bytes, at.q, at.q_bytes);
        for (uint64_t h = 0; h < args->heads; h++) {
            char *k = at.k + h * (at.own + at.shared), *kv = at.kv + h * (at.own + at.value);
            memcpy(k, kv, at.own);
            memcpy(k + at.own, at.common, at.shared);
            memcpy(at.v + h * at.value, kv + at.own, at.value);
        }
    }
}

static void heads_split(int threads, const heads_join_args *args)
{
    uint64_t elems = args->rows * args->heads * (2 * (args->own + args->shared) + args->value);
#pragma omp parallel for schedule(static) num_threads(team(threads, elems))
    for (uint64_t row = 0; row < args->rows; row++) {
        struct joined_row at = joined_row(args, row);
        float sums[ROWS_BLOCK] = {0}, buffer[ROWS_BLOCK];
        memcpy(at.q, at.k - at.q_bytes, at.q_bytes);
        for (uint64_t h = 0; h < args->heads; h++) {
            char *k = at.k + h * (at.own + at.shared), *kv = at.kv + h * (at.own + at.value);
            memcpy(kv, k, at.own);
            memcpy(kv + at.own, at.v + h * at.value, at.value);
            const float *x = load_block(args->type, k + at.own, 0, args->shared, buffer);
#pragma omp simd
            for (size_t i = 0; i < args->shared; i++)
                sums[i] += x[i];
        }
        if (args->type == DTYPE_FP32)
            memcpy(at.common, sums, at.shared);
        store_block(args->type, at.common, 0, args->shared, sums);
    }
}
