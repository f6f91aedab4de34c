/* Ops that map elements to elements: rotary positions, addition, scaled rows, conversion, and the
 * embedding. Part of rows_variant.c. */

/* How n neighbouring pairs of each head of a row turn. The sign of the sine gives the direction. */
struct rope_turn {
    size_t n;
    float cosine[ROWS_BLOCK / 2], sine[ROWS_BLOCK / 2];
};

static void rope_halves(const rope_args *args, uint64_t low_at, uint64_t half,
                        const struct rope_turn *turn)
{
    float low_buffer[ROWS_BLOCK / 2], high_buffer[ROWS_BLOCK / 2];
    float new_low_buffer[ROWS_BLOCK / 2], new_high_buffer[ROWS_BLOCK / 2];
    size_t n = turn->n;
    uint64_t high_at = low_at + half;
    const float *cosine = turn->cosine, *sine = turn->sine;
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

static void rope_interleaved(const rope_args *args, uint64_t at, const struct rope_turn *turn)
{
    float buffer[ROWS_BLOCK], new_buffer[ROWS_BLOCK];
    const float *old = load_block(args->type, args->data, at, 2 * turn->n, buffer);
    float *new = store_place(args->type, args->data, at, new_buffer);
    const float *cosine = turn->cosine, *sine = turn->sine;
#pragma omp simd
    for (size_t i = 0; i < turn->n; i++) {
        float x = old[2 * i], y = old[2 * i + 1];
        new[2 * i] = x *cosine[i] - y *sine[i];
        new[2 * i + 1] = x *sine[i] + y *cosine[i];
    }
    store_block(args->type, args->data, at, 2 * turn->n, new);
}

static void rope(int threads, const rope_args *args)
{
    enum { PAIRS = ROWS_BLOCK / 2 };
    uint64_t rows = args->batch * args->tokens;
    uint64_t pairs = (args->rotated ? args->rotated : args->head_dim) / 2;
#pragma omp parallel for schedule(static) num_threads(team(threads, rows * args->heads * 2 * pairs))
    for (uint64_t row = 0; row < rows; row++) {
        const float *table =
            args->table + row_position(row, args->tokens, args->begins) * pairs * 2;
        for (uint64_t first = 0; first < pairs; first += PAIRS) {
            struct rope_turn turn = {.n = (size_t)(pairs - first < PAIRS ? pairs - first : PAIRS)};
            float sign = args->inverse ? -1.0f : 1.0f;
            for (size_t i = 0; i < turn.n; i++) {
                turn.cosine[i] = table[2 * (first + i)];
                turn.sine[i] = sign * table[2 * (first + i) + 1];
            }
            for (uint64_t head = 0; head < args->heads; head++) {
                uint64_t begin = row * args->stride + head * args->head_dim;
                if (args->interleaved)
                    rope_interleaved(args, begin + 2 * first, &turn);
                else
                    rope_halves(args, begin + first, pairs, &turn);
            }
        }
    }
}

static void scale_block(const scale_rows_args *args, uint64_t row, uint64_t column)
{
    float source_buffer[ROWS_BLOCK], added_buffer[ROWS_BLOCK], out_buffer[ROWS_BLOCK];
    size_t n = block_elems(args->columns, column);
    uint64_t at = row * args->target_stride + column;
    const float *source =
        load_block(args->type, args->source, row * args->source_stride + column, n, source_buffer);
    float *out = store_place(args->type, args->target, at, out_buffer), scale = args->scale;
    if (args->accumulates) {
        const float *added = load_block(args->type, args->target, at, n, added_buffer);
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            out[i] = added[i] + scale * source[i];
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

/* n elements of a row, n <= ROWS_BLOCK, from column `column` on. */
static void dropout_block(const dropout_args *args, uint64_t row, uint64_t column, size_t n)
{
    uint32_t words[ROWS_BLOCK + 8 + DROPOUT_WORDS_BEYOND];
    float x_buffer[ROWS_BLOCK], y_buffer[ROWS_BLOCK];
    uint64_t token = args->row_begin + row, at = row * args->columns + column;
    uint64_t elem = token % args->tokens * args->columns + column;
    const dropout_place place = {.seed = args->seed,
                                 .step = args->counter[0],
                                 .sequence = args->counter[1] + (uint32_t)(token / args->tokens),
                                 .site = args->site};
    const uint32_t threshold = dropout_threshold(args->probability);
    const float scale = dropout_scale(args->probability);
    size_t skipped = (size_t)(elem % 4), quads = (skipped + n + 3) / 4;
    dropout_fill(place, elem / 4, 1, quads, words);
    const uint32_t *word = words + skipped;
    const float *x = load_block(args->type, args->source, at, n, x_buffer);
    float *y = store_place(args->type, args->target, at, y_buffer);
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        y[i] = word[i] < threshold ? 0.0f : scale * x[i];
    store_block(args->type, args->target, at, n, y);
}

static void dropout(int threads, const dropout_args *args)
{
    uint64_t blocks = (args->columns + ROWS_BLOCK - 1) / ROWS_BLOCK;
#pragma omp parallel for schedule(static) num_threads(team(threads, args->rows * args->columns))
    for (uint64_t block = 0; block < args->rows * blocks; block++) {
        uint64_t column = block % blocks * ROWS_BLOCK;
        dropout_block(args, block / blocks, column, block_elems(args->columns, column));
    }
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
    uint64_t position_count = args->position_count ? args->position_count : args->tokens;
    size_t elem_bytes = dtype_bytes(args->type);
#pragma omp parallel for schedule(static) num_threads(team(threads, rows *channels))
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t position = row_position_in(row, args->tokens, args->begins, args->position_first,
                                            args->position_begin);
        uint64_t position_at = position * channels, out_at = row * channels;
        bool has_position = args->position_table && position < position_count;
        if (!args->token_table) {
            if (has_position)
                embedding_add_row(args, out_at, args->output, out_at, position_at);
            continue;
        }
        /* wraps around if before this part */
        uint64_t part_row = (uint64_t)args->token_ids[row] - args->row_begin;
        if (part_row >= part_rows)
            continue;
        if (has_position)
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
    uint64_t position_count = args->position_count ? args->position_count : args->tokens;
    float buffer[ROWS_BLOCK];
    for (uint64_t row = 0; row < rows; row++) {
        /* both wrap around if before this part */
        uint64_t part_row = (uint64_t)args->token_ids[row] - args->row_begin;
        uint64_t place = row_position_in(row, args->tokens, args->begins, args->position_first,
                                         args->position_begin);
        bool in_part = args->token_table_grad && part_row < part_rows;
        bool has_position = args->position_table_grad && place < position_count;
        if (!in_part && !has_position)
            continue;
        const float *dy = load_block(args->type, args->output_grad, row * channels + c, n, buffer);
        if (in_part) {
            float *token = args->token_table_grad + part_row * channels + c;
#pragma omp simd
            for (size_t i = 0; i < n; i++)
                token[i] += dy[i];
        }
        if (has_position) {
            float *position = args->position_table_grad + place * channels + c;
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

static void tanh_all(const float *x, float *out, size_t count)
{
#pragma omp simd
    for (size_t i = 0; i < count; i++)
        out[i] = tanh_one(x[i]);
}
