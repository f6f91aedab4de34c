/* Ops that map elements to elements: activations, rotary positions, addition, conversion, and the
 * embedding. Part of rows_variant.c. */

/* u = sqrt(2/pi) (x + 0.044715 x^3); GELU(x) = x (1 + tanh u) / 2 = x sigmoid(2u). */
#define GELU_TWICE_ROOT  1.5957691216057308f   /* 2 sqrt(2/pi) */
#define GELU_TWICE_CUBIC 0.071354816272600252f /* 2 sqrt(2/pi) 0.044715 */

static void gelu_forward_block(const float *x, float *y, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float twice_u = x[i] * fused(x[i] * x[i], GELU_TWICE_CUBIC, GELU_TWICE_ROOT);
        y[i] = sigmoid_times(x[i], twice_u);
    }
}

/* dx = dy (s + x s (1 - s) d(2u)/dx) with s = sigmoid(2u) and 1 - s = s e^-2u. Above |x| = 10 the
 * factor is 0 or 1 in the precision of fp32; the clamp keeps e^-2u finite there. */
static void gelu_backward_block(const float *x, const float *dy, float *dx, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float v = x[i] > 10.0f ? 10.0f : x[i];
        v = v < -10.0f ? -10.0f : v;
        float square = v * v;
        float e = exp_below(v * fused(square, -GELU_TWICE_CUBIC, -GELU_TWICE_ROOT));
        float s = 1.0f / (1.0f + e);
        float slope = fused(square, 3.0f * GELU_TWICE_CUBIC, GELU_TWICE_ROOT);
        dx[i] = dy[i] * fused(v * s * (s * e), slope, s);
    }
}

static void swiglu_forward_block(const float *gate, const float *up, float *y, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        y[i] = sigmoid_times(gate[i], gate[i]) * up[i];
}

/* silu(g) = g s, silu'(g) = s + g s (1 - s). The clamp at -87 keeps e^-g finite; s is 0 there. */
static void swiglu_backward_block(const float *gate, const float *up, const float *dy, float *dgate,
                                  float *dup, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float g = gate[i] < -87.0f ? -87.0f : gate[i];
        float e = exp_below(-g);
        float s = 1.0f / (1.0f + e);
        float silu = g * s;
        float grad = dy[i], factor = up[i];
        dgate[i] = grad * factor * fused(silu, s * e, s);
        dup[i] = grad * silu;
    }
}

/* bf16 has only 65536 values, so GELU and SwiGLU of bf16 look up their results, where the context
 * has the tables (`lookup` is not NULL). rows_lookup.c fills the tables with the computing ops, so
 * the bits are the same. The values of a layer use some 10 to 20 KiB of a table, which stay in the
 * first-level cache. */

/* out[i] = table[index[i]] for i < n, n <= ROWS_BLOCK. */
static inline void look_up(const float *table, const uint16_t *index, float *out, size_t n)
{
    size_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(out + i, _mm512_i32gather_ps(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
                                                          (const __m256i *)(index + i))),
                                                      table, 4));
#elif defined(__AVX2__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(
            out + i,
            _mm256_i32gather_ps(
                table, _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(index + i))), 4));
#endif
    for (; i < n; i++)
        out[i] = table[index[i]];
}

/* half[i] = the upper half of x[i], whose value is already a bf16. */
static inline void keep_upper(const float *x, uint16_t *half, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        half[i] = (uint16_t)(fp32_bits(x[i]) >> 16);
}

static inline void multiply_block(const float *a, const float *b, float *out, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] * b[i];
}

static void gelu_forward(int threads, const activation_args *args, const rows_lookup *lookup)
{
    uint64_t count = args->rows * args->features;
#pragma omp parallel for schedule(static) num_threads(team(threads, count))
    for (uint64_t at = 0; at < count; at += ROWS_BLOCK) {
        float x_buffer[ROWS_BLOCK], y_buffer[ROWS_BLOCK];
        size_t n = block_elems(count, at);
        if (lookup) {
            look_up(lookup->gelu, (const uint16_t *)args->input + at, y_buffer, n);
            keep_upper(y_buffer, (uint16_t *)args->output + at, n);
            continue;
        }
        const float *x = load_block(args->type, args->input, at, n, x_buffer);
        float *y = store_place(args->type, args->output, at, y_buffer);
        gelu_forward_block(x, y, n);
        store_block(args->type, args->output, at, n, y);
    }
}

static void gelu_backward(int threads, const activation_args *args, const rows_lookup *lookup)
{
    uint64_t count = args->rows * args->features;
#pragma omp parallel for schedule(static) num_threads(team(threads, count))
    for (uint64_t at = 0; at < count; at += ROWS_BLOCK) {
        float x_buffer[ROWS_BLOCK], dy_buffer[ROWS_BLOCK], dx_buffer[ROWS_BLOCK];
        size_t n = block_elems(count, at);
        const float *dy = load_block(args->type, args->output_grad, at, n, dy_buffer);
        float *dx = store_place(args->type, args->input_grad, at, dx_buffer);
        if (lookup) {
            look_up(lookup->gelu_slope, (const uint16_t *)args->input + at, x_buffer, n);
            multiply_block(dy, x_buffer, dx, n);
        } else {
            const float *x = load_block(args->type, args->input, at, n, x_buffer);
            gelu_backward_block(x, dy, dx, n);
        }
        store_block(args->type, args->input_grad, at, n, dx);
    }
}

static void swiglu_forward(int threads, const activation_args *args, const rows_lookup *lookup)
{
    uint64_t features = args->features;
#pragma omp parallel for schedule(static) num_threads(team(threads, args->rows *features))
    for (uint64_t row = 0; row < args->rows; row++)
        for (uint64_t f = 0; f < features; f += ROWS_BLOCK) {
            float gate_buffer[ROWS_BLOCK], up_buffer[ROWS_BLOCK], y_buffer[ROWS_BLOCK];
            size_t n = block_elems(features, f);
            uint64_t gate_at = row * 2 * features + f, up_at = gate_at + features;
            uint64_t out_at = row * features + f;
            const float *up = load_block(args->type, args->input, up_at, n, up_buffer);
            float *y = store_place(args->type, args->output, out_at, y_buffer);
            if (lookup) {
                look_up(lookup->silu, (const uint16_t *)args->input + gate_at, gate_buffer, n);
                multiply_block(gate_buffer, up, y, n);
            } else {
                const float *gate = load_block(args->type, args->input, gate_at, n, gate_buffer);
                swiglu_forward_block(gate, up, y, n);
            }
            store_block(args->type, args->output, out_at, n, y);
        }
}

static void swiglu_backward(int threads, const activation_args *args, const rows_lookup *lookup)
{
    uint64_t features = args->features;
#pragma omp parallel for schedule(static) num_threads(team(threads, args->rows *features))
    for (uint64_t row = 0; row < args->rows; row++)
        for (uint64_t f = 0; f < features; f += ROWS_BLOCK) {
            float gate_buffer[ROWS_BLOCK], up_buffer[ROWS_BLOCK], dy_buffer[ROWS_BLOCK];
            float dgate_buffer[ROWS_BLOCK], dup_buffer[ROWS_BLOCK];
            size_t n = block_elems(features, f);
            uint64_t gate_at = row * 2 * features + f, up_at = gate_at + features;
            const float *up = load_block(args->type, args->input, up_at, n, up_buffer);
            const float *dy =
                load_block(args->type, args->output_grad, row * features + f, n, dy_buffer);
            float *dgate = store_place(args->type, args->input_grad, gate_at, dgate_buffer);
            float *dup = store_place(args->type, args->input_grad, up_at, dup_buffer);
            if (lookup) {
                const uint16_t *gate = (const uint16_t *)args->input + gate_at;
                float silu[ROWS_BLOCK];
                look_up(lookup->silu_backward, gate, silu, n);
                look_up(lookup->silu_slope, gate, gate_buffer, n);
#pragma omp simd
                for (size_t i = 0; i < n; i++) {
                    dgate[i] = dy[i] * up[i] * gate_buffer[i];
                    dup[i] = dy[i] * silu[i];
                }
            } else {
                const float *gate = load_block(args->type, args->input, gate_at, n, gate_buffer);
                swiglu_backward_block(gate, up, dy, dgate, dup, n);
            }
            store_block(args->type, args->input_grad, gate_at, n, dgate);
            store_block(args->type, args->input_grad, up_at, n, dup);
        }
}

static void activation_forward(int threads, const activation_args *args, const rows_lookup *lookup)
{
    if (args->kind == ACTIVATION_GELU)
        gelu_forward(threads, args, lookup);
    else
        swiglu_forward(threads, args, lookup);
}

static void activation_backward(int threads, const activation_args *args, const rows_lookup *lookup)
{
    if (args->kind == ACTIVATION_GELU)
        gelu_backward(threads, args, lookup);
    else
        swiglu_backward(threads, args, lookup);
}

/* Rotates the pairs [first, first + n) of all heads of one row. cosine and sine: [n], for the
 * position of this row; the sign of the sine gives the direction. */
static void rope_pairs(const rope_args *args, uint64_t row, uint64_t first, size_t n,
                       const float *cosine, const float *sine)
{
    float low_buffer[ROWS_BLOCK], high_buffer[ROWS_BLOCK];
    float new_low_buffer[ROWS_BLOCK], new_high_buffer[ROWS_BLOCK];
    for (uint64_t head = 0; head < args->heads; head++) {
        uint64_t low_at = row * args->stride + head * args->head_dim + first;
        uint64_t high_at = low_at + args->head_dim / 2;
        const float *low = load_block(args->type, args->data, low_at, n, low_buffer);
        const float *high = load_block(args->type, args->data, high_at, n, high_buffer);
        float *new_low = store_place(args->type, args->data, low_at, new_low_buffer);
        float *new_high = store_place(args->type, args->data, high_at, new_high_buffer);
#pragma omp simd
        for (size_t i = 0; i < n; i++) {
            float x = low[i], y = high[i];
            new_low[i] = x * cosine[i] - y * sine[i];
            new_high[i] = x * sine[i] + y * cosine[i];
        }
        store_block(args->type, args->data, low_at, n, new_low);
        store_block(args->type, args->data, high_at, n, new_high);
    }
}

static void rope(int threads, const rope_args *args)
{
    uint64_t rows = args->batch * args->tokens, pairs = args->head_dim / 2;
    uint64_t count = rows * args->heads * args->head_dim;
#pragma omp parallel for schedule(static) num_threads(team(threads, count))
    for (uint64_t row = 0; row < rows; row++) {
        const float *table = args->table + (row % args->tokens) * pairs * 2;
        for (uint64_t first = 0; first < pairs; first += ROWS_BLOCK) {
            float cosine[ROWS_BLOCK], sine[ROWS_BLOCK];
            size_t n = block_elems(pairs, first);
            float sign = args->inverse ? -1.0f : 1.0f;
            for (size_t i = 0; i < n; i++) {
                cosine[i] = table[2 * (first + i)];
                sine[i] = sign * table[2 * (first + i) + 1];
            }
            rope_pairs(args, row, first, n, cosine, sine);
        }
    }
}

static void scale_block(const scale_rows_args *args, uint64_t row, uint64_t column)
{
    float source_buffer[ROWS_BLOCK], target_buffer[ROWS_BLOCK], out_buffer[ROWS_BLOCK];
    size_t n = block_elems(args->columns, column);
    uint64_t at = row * args->target_stride + column;
    const float *source =
        load_block(args->type, args->source, row * args->source_stride + column, n, source_buffer);
    float *out = store_place(args->type, args->target, at, out_buffer), scale = args->scale;
    if (args->accumulates) {
        const float *target = load_block(args->type, args->target, at, n, target_buffer);
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            out[i] = target[i] + scale * source[i];
    } else {
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            out[i] = scale * source[i];
    }
    store_block(args->type, args->target, at, n, out);
}

static void scale_rows(int threads, const scale_rows_args *args)
{
#pragma omp parallel for schedule(static) num_threads(team(threads, args->rows * args->columns))
    for (uint64_t row = 0; row < args->rows; row++)
        for (uint64_t column = 0; column < args->columns; column += ROWS_BLOCK)
            scale_block(args, row, column);
}

static void add(int threads, enum dtype type, uint64_t count, const void *a, const void *b,
                void *out)
{
#pragma omp parallel for schedule(static) num_threads(team(threads, count))
    for (uint64_t at = 0; at < count; at += ROWS_BLOCK) {
        float a_buffer[ROWS_BLOCK], b_buffer[ROWS_BLOCK], out_buffer[ROWS_BLOCK];
        size_t n = block_elems(count, at);
        const float *left = load_block(type, a, at, n, a_buffer);
        const float *right = load_block(type, b, at, n, b_buffer);
        float *sum = store_place(type, out, at, out_buffer);
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            sum[i] = left[i] + right[i];
        store_block(type, out, at, n, sum);
    }
}

/* Converts n elements, n <= ROWS_BLOCK; the two types may be equal. */
static void convert_block(const void *source, enum dtype source_type, uint64_t source_at,
                          void *target, enum dtype target_type, uint64_t target_at, size_t n)
{
    float buffer[ROWS_BLOCK];
    if (source_type == target_type) {
        size_t elem_bytes = dtype_bytes(source_type);
        memcpy((char *)target + target_at * elem_bytes,
               (const char *)source + source_at * elem_bytes, n * elem_bytes);
        return;
    }
    if (target_type == DTYPE_FP32) {
        (void)load_block(source_type, source, source_at, n, (float *)target + target_at);
        return;
    }
    const float *x = load_block(source_type, source, source_at, n, buffer);
    store_block(target_type, target, target_at, n, x);
}

static void convert(int threads, const void *source, enum dtype source_type, void *target,
                    enum dtype target_type, uint64_t count)
{
    if (source == target)
        return; /* the types are equal here: no other overlap is allowed */
#pragma omp parallel for schedule(static) num_threads(team(threads, count))
    for (uint64_t at = 0; at < count; at += ROWS_BLOCK)
        convert_block(source, source_type, at, target, target_type, at, block_elems(count, at));
}

/* The threads divide the rows into pieces, so that a few long rows keep all of them busy. */
static void convert_rows(int threads, const struct rows_conversion *args)
{
    enum { PIECE_COLS = 8 * ROWS_BLOCK };
    const struct rows_conversion c = *args;
    uint64_t pieces = (c.cols + PIECE_COLS - 1) / PIECE_COLS;
#pragma omp parallel for schedule(static) num_threads(team(threads, c.rows *c.cols))
    for (uint64_t piece = 0; piece < c.rows * pieces; piece++) {
        uint64_t row = piece / pieces, begin = piece % pieces * PIECE_COLS;
        uint64_t end = begin + PIECE_COLS < c.cols ? begin + PIECE_COLS : c.cols;
        for (uint64_t col = begin; col < end; col += ROWS_BLOCK)
            convert_block(c.source, c.source_type, row * c.source_stride + col, c.target,
                          c.target_type, row * c.target_stride + col, block_elems(end, col));
    }
}

/* output[row] = source[source_at..] + position_table[position_at..]. The source may be the
 * output. */
static void embedding_add_row(const embedding_args *args, uint64_t out_at, const void *source,
                              uint64_t source_at, uint64_t position_at)
{
    for (uint64_t c = 0; c < args->channels; c += ROWS_BLOCK) {
        float token_buffer[ROWS_BLOCK], position_buffer[ROWS_BLOCK], out_buffer[ROWS_BLOCK];
        size_t n = block_elems(args->channels, c);
        const float *token = load_block(args->type, source, source_at + c, n, token_buffer);
        const float *position =
            load_block(args->type, args->position_table, position_at + c, n, position_buffer);
        float *out = store_place(args->type, args->output, out_at + c, out_buffer);
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            out[i] = token[i] + position[i];
        store_block(args->type, args->output, out_at + c, n, out);
    }
}

/* A part copies the rows of its tokens without rounding. If the positions are added to the output
 * later, the same sum is rounded as if they were added at once. */
static void embedding_forward(int threads, const embedding_args *args)
{
    uint64_t rows = args->batch * args->tokens, channels = args->channels;
    uint64_t part_rows = args->row_count ? args->row_count : args->vocab;
    size_t elem_bytes = dtype_bytes(args->type);
#pragma omp parallel for schedule(static) num_threads(team(threads, rows *channels))
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t position_at = (row % args->tokens) * channels, out_at = row * channels;
        if (!args->token_table) {
            if (args->position_table)
                embedding_add_row(args, out_at, args->output, out_at, position_at);
            continue;
        }
        /* wraps around if before this part */
        uint64_t part_row = (uint64_t)args->token_ids[row] - args->row_begin;
        if (part_row >= part_rows)
            continue;
        if (args->position_table)
            embedding_add_row(args, out_at, args->token_table, part_row * channels, position_at);
        else
            memcpy((char *)args->output + out_at * elem_bytes,
                   (const char *)args->token_table + part_row * channels * elem_bytes,
                   channels * elem_bytes);
    }
}

/* Adds columns [c, c + n) of every row to the tables, in the order of rows. */
static void embedding_grad_columns(const embedding_grad_args *args, uint64_t c, size_t n)
{
    uint64_t rows = args->batch * args->tokens, channels = args->channels;
    uint64_t part_rows = args->row_count ? args->row_count : args->vocab;
    float buffer[ROWS_BLOCK];
    for (uint64_t row = 0; row < rows; row++) {
        /* wraps around if before this part */
        uint64_t part_row = (uint64_t)args->token_ids[row] - args->row_begin;
        bool in_part = args->token_table_grad && part_row < part_rows;
        if (!in_part && !args->position_table_grad)
            continue;
        const float *dy = load_block(args->type, args->output_grad, row * channels + c, n, buffer);
        if (in_part) {
            float *token = args->token_table_grad + part_row * channels + c;
#pragma omp simd
            for (size_t i = 0; i < n; i++)
                token[i] += dy[i];
        }
        if (args->position_table_grad) {
            float *position = args->position_table_grad + (row % args->tokens) * channels + c;
#pragma omp simd
            for (size_t i = 0; i < n; i++)
                position[i] += dy[i];
        }
    }
}

/* Each thread owns columns, so equal tokens need neither atomics nor sorting. The width of a piece
 * is a whole number of cache lines. It does not influence the result, because columns are
 * independent of each other. */
static void embedding_backward(int threads, const embedding_grad_args *args)
{
    uint64_t channels = args->channels;
    int width_threads = team(threads, args->batch * args->tokens * channels);
    uint64_t width = (channels + (uint64_t)width_threads - 1) / (uint64_t)width_threads;
    width = (width + 15) / 16 * 16;
    width = width < ROWS_BLOCK ? width : (uint64_t)ROWS_BLOCK;
#pragma omp parallel for schedule(static) num_threads(width_threads)
    for (uint64_t c = 0; c < channels; c += width) {
        uint64_t left = channels - c;
        embedding_grad_columns(args, c, (size_t)(left < width ? left : width));
    }
}

static void exp_all(const float *x, float *out, size_t count)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        out[i] = exp_one(x[i]);
}

static void sigmoid_all(const float *x, float *out, size_t count)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        out[i] = sigmoid_times(1.0f, x[i]);
}
