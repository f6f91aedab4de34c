/* Activations, plain and gated: one pass for each direction, and the functions that they apply.
 * Part of rows_variant.c.
 *
 * A plain activation is y = f(x), dx = dy f'(x). A gated one is y = f(gate) up, dgate = dy up
 * f'(gate), dup = dy f(gate). In gpt-oss's, `up` is limited first, and increased by 1.
 *
 * bf16 has only 65536 values, so the functions of bf16 are looked up, where the context has the
 * tables (`lookup` is not NULL). rows_lookup.c fills the tables with the computing ops, so the bits
 * are the same. The values of a layer use some 10 to 20 KiB of a table, which stay in the
 * first-level cache. */

/* u = sqrt(2/pi) (x + 0.044715 x^3); GELU(x) = x (1 + tanh u) / 2 = x sigmoid(2u). */
#define GELU_TWICE_ROOT  1.5957691216057308f   /* 2 sqrt(2/pi) */
#define GELU_TWICE_CUBIC 0.071354816272600252f /* 2 sqrt(2/pi) 0.044715 */

static void gelu_values(const float *x, float *y, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float twice_u = x[i] * fused(x[i] * x[i], GELU_TWICE_CUBIC, GELU_TWICE_ROOT);
        y[i] = sigmoid_times(x[i], twice_u);
    }
}

/* The slope is s + x s (1 - s) d(2u)/dx with s = sigmoid(2u) and 1 - s = s e^-2u. Above |x| = 10 it
 * is 0 or 1 in the precision of fp32; the clamp keeps e^-2u finite there. */
static void gelu_slopes(const float *x, float *value, float *slope, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float v = x[i] > 10.0f ? 10.0f : x[i];
        v = v < -10.0f ? -10.0f : v;
        float square = v * v;
        float e = exp_below(v * fused(square, -GELU_TWICE_CUBIC, -GELU_TWICE_ROOT));
        float s = 1.0f / (1.0f + e);
        float bend = fused(square, 3.0f * GELU_TWICE_CUBIC, GELU_TWICE_ROOT);
        value[i] = x[i] * s;
        slope[i] = fused(v * s * (s * e), bend, s);
    }
}

static void silu_values(const float *x, float *y, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        y[i] = sigmoid_times(x[i], x[i]);
}

/* silu(x) = x s, silu'(x) = s + x s (1 - s). The clamp at -87 keeps e^-x finite; s is 0 there. */
static void silu_slopes(const float *x, float *value, float *slope, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float v = x[i] < -87.0f ? -87.0f : x[i];
        float e = exp_below(-v);
        float s = 1.0f / (1.0f + e);
        float silu = v * s;
        value[i] = silu;
        slope[i] = fused(silu, s * e, s);
    }
}

/* Phi(x), the distribution function of the normal distribution, and e^(-x^2/2) in *power. The tail
 * Phi(-|x|) is e^(-x^2/2) t Q(t) with t = 1 / (1 + 0.26 |x|). Q is the polynomial of degree 8 that
 * comes nearest to it on [0, 14] (relative error 1.6e-8), so tails keep their relative precision.
 * The rounding error of x^2 goes into the power. Beyond |x| = 16, Phi is 0 or 1. */
static inline float normal_below(float x, float *power)
{
    float v = x > 16.0f ? 16.0f : x;
    v = v < -16.0f ? -16.0f : v;
    float size = v < 0.0f ? -v : v, square = v * v, rest = fused(v, v, -square);
    float e = exp_below(-0.5f * square), t = 1.0f / fused(0.26f, size, 1.0f);
    e = fused(e, -0.5f * rest, e);
    float q = 0.0321890587012f;
    q = fused(q, t, -0.160858160315f);
    q = fused(q, t, 0.267731231854f);
    q = fused(q, t, -0.169100441049f);
    q = fused(q, t, 0.173176696023f);
    q = fused(q, t, 0.045955999474f);
    q = fused(q, t, 0.104291784814f);
    q = fused(q, t, 0.102844978828f);
    q = fused(q, t, 0.103768853929f);
    float tail = e * (t * q);
    *power = e;
    return v < 0.0f ? tail : 1.0f - tail;
}

/* The exact GELU(x) = x Phi(x). */
static void gelu_erf_values(const float *x, float *y, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float power;
        y[i] = x[i] * normal_below(x[i], &power);
    }
}

/* The slope is Phi(x) + x e^(-x^2/2) / sqrt(2 pi). */
static void gelu_erf_slopes(const float *x, float *value, float *slope, size_t n)
{
    const float density = 0.39894228040143268f; /* 1 / sqrt(2 pi) */
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float power, below = normal_below(x[i], &power);
        float v = x[i] > 16.0f ? 16.0f : x[i];
        v = v < -16.0f ? -16.0f : v;
        value[i] = x[i] * below;
        slope[i] = fused(v * density, power, below);
    }
}

static void relu_values(const float *x, float *y, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] < 0.0f ? 0.0f : x[i];
}

static void relu_slopes(const float *x, float *value, float *slope, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        value[i] = x[i] < 0.0f ? 0.0f : x[i];
        slope[i] = x[i] > 0.0f ? 1.0f : 0.0f;
    }
}

/* v sigmoid(alpha v) with v = min(x, limit). */
static void silu_clamped_values(const activation_args *args, const float *x, float *y, size_t n)
{
    const float alpha = args->alpha, limit = args->limit;
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float v = x[i] > limit ? limit : x[i];
        y[i] = sigmoid_times(v, alpha * v);
    }
}

/* As in silu_slopes, alpha v stops at -87, so that e^(-alpha v) is finite. */
static void silu_clamped_slopes(const activation_args *args, const float *x, float *value,
                                float *slope, size_t n)
{
    const float alpha = args->alpha, limit = args->limit, least = -87.0f / alpha;
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float v = x[i] > limit ? limit : x[i];
        v = v < least ? least : v;
        float twist = alpha * v;
        float e = exp_below(-twist);
        float s = 1.0f / (1.0f + e);
        value[i] = v * s;
        slope[i] = x[i] > limit ? 0.0f : fused(twist * s, s * e, s);
    }
}

/* out = up, limited and increased by 1; out may be up. Sets value[i] to 0 where up[i] is beyond the
 * limit, unless value is NULL. */
static const float *up_clamped(float limit, const float *up, float *out, float *value, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < (value ? n : 0); i++)
        value[i] = up[i] > limit || up[i] < -limit ? 0.0f : value[i];
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float v = up[i] > limit ? limit : up[i];
        out[i] = (v < -limit ? -limit : v) + 1.0f;
    }
    return out;
}

static const struct {
    void (*values)(const float *x, float *y, size_t n);                   /* y = f(x) */
    void (*slopes)(const float *x, float *value, float *slope, size_t n); /* f(x) and f'(x) */
} activation_functions[ROWS_FUNCTION_COUNT] = {
    [ROWS_FUNCTION_GELU] = {gelu_values, gelu_slopes},
    [ROWS_FUNCTION_SILU] = {silu_values, silu_slopes},
    [ROWS_FUNCTION_GELU_ERF] = {gelu_erf_values, gelu_erf_slopes},
    [ROWS_FUNCTION_RELU] = {relu_values, relu_slopes},
    /* SILU_CLAMPED takes parameters: silu_clamped_values, silu_clamped_slopes */
};

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
    /* A gather takes twice as long on a Zen 3 core. */
    for (; i + 8 <= n; i += 8) {
        uint64_t x[2];
        memcpy(x, index + i, sizeof x);
        _mm256_storeu_ps(out + i, _mm256_setr_ps(table[x[0] & 65535], table[x[0] >> 16 & 65535],
                                                 table[x[0] >> 32 & 65535], table[x[0] >> 48],
                                                 table[x[1] & 65535], table[x[1] >> 16 & 65535],
                                                 table[x[1] >> 32 & 65535], table[x[1] >> 48]));
    }
#endif
    for (; i < n; i++)
        out[i] = table[index[i]];
}

/* The shape of a pass. The rows of a plain activation are one long row. */
struct activation_pass {
    uint64_t rows, features, width; /* width: elements of a row of the input */
    uint64_t blocks;                /* of ROWS_BLOCK features, in a row */
    enum rows_function function;
    bool is_gated;
};

static struct activation_pass activation_pass_of(const activation_args *args)
{
    struct activation_pass pass = {.function = rowsi_function(args->kind),
                                   .is_gated = activation_is_gated(args->kind)};
    pass.rows = pass.is_gated ? args->rows : 1;
    pass.features = pass.is_gated ? args->features : args->rows * args->features;
    pass.width = pass.is_gated ? 2 * pass.features : pass.features;
    pass.blocks = (pass.features + ROWS_BLOCK - 1) / ROWS_BLOCK;
    return pass;
}

static void activation_forward_block(const activation_args *args, const rows_lookup *lookup,
                                     const struct activation_pass *pass, uint64_t row, uint64_t f)
{
    float x_buffer[ROWS_BLOCK], y_buffer[ROWS_BLOCK];
    size_t n = block_elems(pass->features, f);
    uint64_t at = row * pass->width + f, out_at = row * pass->features + f;
    bool is_clamped = pass->function == ROWS_FUNCTION_SILU_CLAMPED;
    float *y = store_place(args->type, args->output, out_at, y_buffer);
    if (lookup && pass->function < ROWS_FUNCTION_TABLES)
        look_up(lookup->of[pass->function].value, (const uint16_t *)args->input + at, y, n);
    else if (is_clamped)
        silu_clamped_values(args, load_block(args->type, args->input, at, n, x_buffer), y, n);
    else
        activation_functions[pass->function].values(
            load_block(args->type, args->input, at, n, x_buffer), y, n);
    if (pass->is_gated) {
        const float *up = load_block(args->type, args->input, at + pass->features, n, x_buffer);
        if (is_clamped)
            up = up_clamped(args->limit, up, x_buffer, NULL, n);
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            y[i] = y[i] * up[i];
    }
    store_block(args->type, args->output, out_at, n, y);
}

static void activation_forward(int threads, const activation_args *args, const rows_lookup *lookup)
{
    const struct activation_pass pass = activation_pass_of(args);
#pragma omp parallel for schedule(static) num_threads(team(threads, pass.rows *pass.features))
    for (uint64_t block = 0; block < pass.rows * pass.blocks; block++)
        activation_forward_block(args, lookup, &pass, block / pass.blocks,
                                 block % pass.blocks * ROWS_BLOCK);
}

/* input_grad may be input: everything is read before it is written. */
static void activation_backward_block(const activation_args *args, const rows_lookup *lookup,
                                      const struct activation_pass *pass, uint64_t row, uint64_t f)
{
    float x_buffer[ROWS_BLOCK], dy_buffer[ROWS_BLOCK], up_buffer[ROWS_BLOCK];
    float value[ROWS_BLOCK], slope[ROWS_BLOCK];
    size_t n = block_elems(pass->features, f);
    uint64_t at = row * pass->width + f, up_at = at + pass->features;
    bool is_clamped = pass->function == ROWS_FUNCTION_SILU_CLAMPED;
    if (lookup && pass->function < ROWS_FUNCTION_TABLES) {
        const uint16_t *x = (const uint16_t *)args->input + at;
        look_up(lookup->of[pass->function].slope, x, slope, n);
        if (pass->is_gated)
            look_up(lookup->of[pass->function].value_backward, x, value, n);
    } else if (is_clamped) {
        silu_clamped_slopes(args, load_block(args->type, args->input, at, n, x_buffer), value,
                            slope, n);
    } else {
        activation_functions[pass->function].slopes(
            load_block(args->type, args->input, at, n, x_buffer), value, slope, n);
    }
    const float *dy =
        load_block(args->type, args->output_grad, row * pass->features + f, n, dy_buffer);
    float *dx = store_place(args->type, args->input_grad, at, x_buffer);
    if (pass->is_gated) {
        const float *up = load_block(args->type, args->input, up_at, n, up_buffer);
        float *dup = store_place(args->type, args->input_grad, up_at, value);
        if (is_clamped)
            up = up_clamped(args->limit, up, up_buffer, value, n);
#pragma omp simd
        for (size_t i = 0; i < n; i++) {
            dx[i] = dy[i] * up[i] * slope[i];
            dup[i] = dy[i] * value[i];
        }
        store_block(args->type, args->input_grad, up_at, n, dup);
    } else {
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            dx[i] = dy[i] * slope[i];
    }
    store_block(args->type, args->input_grad, at, n, dx);
}

static void activation_backward(int threads, const activation_args *args, const rows_lookup *lookup)
{
    const struct activation_pass pass = activation_pass_of(args);
#pragma omp parallel for schedule(static) num_threads(team(threads, pass.rows *pass.features))
    for (uint64_t block = 0; block < pass.rows * pass.blocks; block++)
        activation_backward_block(args, lookup, &pass, block / pass.blocks,
                                  block % pass.blocks * ROWS_BLOCK);
}
