/* Activations of bf16 by lookup. bf16 has only 65536 values, so the results of GELU and SwiGLU are
 * looked up instead of computed. rows_lookup.c fills the tables with the computing ops, so the bits
 * are the same. The values of a layer use some 10 to 20 KiB of a table, which stay in the
 * first-level cache. Part of rows_variant.c. */

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

static void gelu_forward_lookup(int threads, const activation_args *args, const rows_lookup *lookup)
{
    const uint16_t *input = args->input;
    uint16_t *output = args->output;
    uint64_t count = args->rows * args->features;
#pragma omp parallel for schedule(static) num_threads(team(threads, count))
    for (uint64_t at = 0; at < count; at += ROWS_BLOCK) {
        float y[ROWS_BLOCK];
        size_t n = block_elems(count, at);
        look_up(lookup->gelu, input + at, y, n);
        keep_upper(y, output + at, n);
    }
}

static void gelu_backward_lookup(int threads, const activation_args *args,
                                 const rows_lookup *lookup)
{
    const uint16_t *input = args->input;
    uint64_t count = args->rows * args->features;
#pragma omp parallel for schedule(static) num_threads(team(threads, count))
    for (uint64_t at = 0; at < count; at += ROWS_BLOCK) {
        float slope[ROWS_BLOCK], dy_buffer[ROWS_BLOCK], dx[ROWS_BLOCK];
        size_t n = block_elems(count, at);
        look_up(lookup->gelu_slope, input + at, slope, n);
        const float *dy = load_block(DTYPE_BF16, args->output_grad, at, n, dy_buffer);
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            dx[i] = dy[i] * slope[i];
        store_block(DTYPE_BF16, args->input_grad, at, n, dx);
    }
}

static void swiglu_forward_lookup(int threads, const activation_args *args,
                                  const rows_lookup *lookup)
{
    const uint16_t *input = args->input;
    uint64_t features = args->features;
#pragma omp parallel for schedule(static) num_threads(team(threads, args->rows *features))
    for (uint64_t row = 0; row < args->rows; row++)
        for (uint64_t f = 0; f < features; f += ROWS_BLOCK) {
            float silu[ROWS_BLOCK], up_buffer[ROWS_BLOCK], y[ROWS_BLOCK];
            size_t n = block_elems(features, f);
            uint64_t gate_at = row * 2 * features + f;
            look_up(lookup->silu, input + gate_at, silu, n);
            const float *up = load_block(DTYPE_BF16, input, gate_at + features, n, up_buffer);
#pragma omp simd
            for (size_t i = 0; i < n; i++)
                y[i] = silu[i] * up[i];
            store_block(DTYPE_BF16, args->output, row * features + f, n, y);
        }
}

static void swiglu_backward_lookup(int threads, const activation_args *args,
                                   const rows_lookup *lookup)
{
    const uint16_t *input = args->input;
    uint64_t features = args->features;
#pragma omp parallel for schedule(static) num_threads(team(threads, args->rows *features))
    for (uint64_t row = 0; row < args->rows; row++)
        for (uint64_t f = 0; f < features; f += ROWS_BLOCK) {
            float silu[ROWS_BLOCK], slope[ROWS_BLOCK], up_buffer[ROWS_BLOCK];
            float dy_buffer[ROWS_BLOCK], dgate[ROWS_BLOCK], dup[ROWS_BLOCK];
            size_t n = block_elems(features, f);
            uint64_t gate_at = row * 2 * features + f, up_at = gate_at + features;
            look_up(lookup->silu_backward, input + gate_at, silu, n);
            look_up(lookup->silu_slope, input + gate_at, slope, n);
            const float *up = load_block(DTYPE_BF16, input, up_at, n, up_buffer);
            const float *dy =
                load_block(DTYPE_BF16, args->output_grad, row * features + f, n, dy_buffer);
#pragma omp simd
            for (size_t i = 0; i < n; i++) {
                dgate[i] = dy[i] * up[i] * slope[i];
                dup[i] = dy[i] * silu[i];
            }
            store_block(DTYPE_BF16, args->input_grad, gate_at, n, dgate);
            store_block(DTYPE_BF16, args->input_grad, up_at, n, dup);
        }
}

/* Like activation_forward and activation_backward; args->type is bf16. */
static void activation_forward_lookup(int threads, const activation_args *args,
                                      const rows_lookup *lookup)
{
    if (args->kind == ACTIVATION_GELU)
        gelu_forward_lookup(threads, args, lookup);
    else
        swiglu_forward_lookup(threads, args, lookup);
}

static void activation_backward_lookup(int threads, const activation_args *args,
                                       const rows_lookup *lookup)
{
    if (args->kind == ACTIVATION_GELU)
        gelu_backward_lookup(threads, args, lookup);
    else
        swiglu_backward_lookup(threads, args, lookup);
}
