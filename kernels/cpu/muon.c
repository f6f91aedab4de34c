/* Muon on the CPU (muon_args, orthogonalize_args). The elementwise lines are these, each operation
 * rounded to fp32 once; every instruction set gives the same bits of them:
 *
 *   a = (1 - momentum) * g;   m = momentum * m + a;   direction = nesterov ? momentum * m + a : m
 *   decay = fma(-learning_rate, weight_decay, 1);     master = master * decay - rate * direction
 *
 * orthogonalize divides by the norm, whose squares are summed in double in PARTS parts. Its
 * products are the fp32 ones of product_own.h with AVX-512, else those of plain_product.h. Neither
 * the threads nor the addresses change a bit.
 *
 * Scratch of orthogonalize, where m is the smaller of rows and columns, each piece rounded up to 64
 * bytes:
 *   | product [rows, columns] | A [m, m], then b A + c A A | scratch of the products |
 *
 * The caller's thread runs everything with its own OpenMP team. Nothing here allocates. */
#include <math.h>
#include <omp.h>

#include "base/size.h"
#include "kernels/cpu/plain_product.h"
#include "kernels/cpu/product_own.h"

enum {
    BLOCK_ELEMS = 4096,
    PARTS = 256, /* of the sum of squares; their order never changes */
    ALIGN_BYTES = 64,
};

/* ---- elementwise ---- */

static void widen(const muon_args *args, uint64_t begin, uint64_t count, float *g)
{
    float scale = args->scalars->grad_scale;
    const uint16_t *halves = (const uint16_t *)args->grads + begin;
    for (uint64_t i = 0; i < count; i++)
        g[i] = scale * (args->grad_type == DTYPE_FP32   ? ((const float *)args->grads)[begin + i]
                        : args->grad_type == DTYPE_BF16 ? fp32_from_bf16(halves[i])
                                                        : fp32_from_fp16(halves[i]));
}

/* One block of either op. */
static void run_block(const muon_args *args, uint64_t begin, uint64_t count, bool makes_direction)
{
    const muon_scalars *s = args->scalars;
    float g[BLOCK_ELEMS], mu = s->momentum, rest = 1.0f - s->momentum;
    float decay = fmaf(-s->learning_rate, s->weight_decay, 1.0f);
    float *master = args->master + begin, *m = args->m + begin, *d = args->direction + begin;
    widen(args, begin, count, g);
    for (uint64_t i = 0; i < count; i++) {
        float added = rest * g[i], next = mu * m[i] + added;
        if (makes_direction) {
            d[i] = s->nesterov ? mu * next + added : next;
        } else {
            m[i] = next;
            master[i] = master[i] * decay - args->rate * d[i];
        }
    }
}

static int run_blocks(const kernel_context *context, const muon_args *args, bool makes_direction)
{
    uint64_t block_count = size_div_up(args->count, BLOCK_ELEMS);
#pragma omp parallel for schedule(static) num_threads(cpui_threads_for(context, block_count))
    for (uint64_t b = 0; b < block_count; b++)
        run_block(args, b * BLOCK_ELEMS, size_min(BLOCK_ELEMS, args->count - b * BLOCK_ELEMS),
                  makes_direction);
    return 0;
}

int cpui_muon_direction(kernel_context *context, void *stream, const muon_args *args)
{
    return run_blocks(context, args, true);
}

int cpui_muon(kernel_context *context, void *stream, const muon_args *args)
{
    return run_blocks(context, args, false);
}

/* ---- orthogonalize ---- */

/* The products of one step. With more columns than rows, X X^T, A A and (b A + c A A) X; else X^T
 * X, A A and X (b A + c A A). */
enum { GRAM, SQUARE, APPLY, PRODUCTS };

static matmul_desc product_desc(uint64_t rows, uint64_t columns, int which)
{
    bool is_tall = rows > columns;
    uint64_t m = size_min(rows, columns);
    matmul_desc desc = {.m = m, .n = m, .k = m, .ab_type = DTYPE_FP32, .c_type = DTYPE_FP32};
    if (which == GRAM) {
        desc.k = size_max(rows, columns);
        desc.a_transposed = is_tall;
        desc.b_transposed = !is_tall;
    } else if (which == APPLY) {
        desc.m = rows;
        desc.n = columns;
    }
    desc.a_stride = desc.a_transposed ? desc.m : desc.k;
    desc.b_stride = desc.b_transposed ? desc.k : desc.n;
    desc.c_stride = desc.n;
    return desc;
}

static bool has_own(const kernel_context *context)
{
    return context->isa >= CPU_AVX512;
}

static size_t product_bytes(const kernel_context *context, const matmul_desc *desc)
{
    if (!has_own(context))
        return (size_t)context->thread_count * desc->k * PLAIN_PANEL_COLUMNS * sizeof(float);
    cpui_fp32_product own;
    cpui_fp32_product_plan(desc, context->thread_count, &own);
    return own.scratch_bytes;
}

static void multiply_plain(const kernel_context *context, const matmul_desc *desc, const float *a,
                           const float *b, float *c, float *scratch)
{
    const struct plain_product_table *table = &cpui_plain_product_base;
#ifdef __x86_64__
    if (context->isa >= CPU_AVX2)
        table = &cpui_plain_product_avx2;
#endif
    const struct plain_product product = {
        .m = desc->m,
        .n = desc->n,
        .k = desc->k,
        .a = a,
        .b = b,
        .a_row_step = desc->a_transposed ? 1 : desc->a_stride,
        .a_k_step = desc->a_transposed ? desc->a_stride : 1,
        .b_k_step = desc->b_transposed ? 1 : desc->b_stride,
        .b_column_step = desc->b_transposed ? desc->b_stride : 1,
        .c = c,
    };
    uint64_t panels = size_div_up(desc->n, PLAIN_PANEL_COLUMNS);
#pragma omp parallel for schedule(static) num_threads(context->thread_count)
    for (uint64_t p = 0; p < panels; p++)
        table->panel(&product, p * PLAIN_PANEL_COLUMNS,
                     scratch + (uint64_t)omp_get_thread_num() * desc->k * PLAIN_PANEL_COLUMNS);
}

static void multiply(const kernel_context *context, const matmul_desc *desc, const float *a,
                     const float *b, float *c, void *scratch)
{
    if (!has_own(context)) {
        multiply_plain(context, desc, a, b, c, scratch);
        return;
    }
    cpui_fp32_product own;
    cpui_fp32_product_plan(desc, context->thread_count, &own);
    cpui_fp32_product_run(&own, a, b, NULL, c, scratch);
}

/* Offsets of the pieces of scratch, in bytes. */
struct pieces {
    size_t gram, products, end;
};

static struct pieces lay_out(const kernel_context *context, uint64_t rows, uint64_t columns)
{
    uint64_t m = size_min(rows, columns);
    struct pieces at = {.gram = size_round_up(rows * columns * sizeof(float), ALIGN_BYTES)};
    at.products = at.end = at.gram + size_round_up(m * m * sizeof(float), ALIGN_BYTES);
    for (int i = 0; i < PRODUCTS; i++) {
        matmul_desc desc = product_desc(rows, columns, i);
        at.end = size_max(at.end, at.products + product_bytes(context, &desc));
    }
    return at;
}

size_t cpui_orthogonalize_scratch_bytes(const kernel_context *context, uint64_t rows,
                                        uint64_t columns)
{
    return lay_out(context, rows, columns).end;
}

static float norm_of(const kernel_context *context, const float *values, uint64_t count)
{
    double sums[PARTS] = {0}, sum = 0;
#pragma omp parallel for schedule(static)                                                          \
    num_threads(cpui_threads_for(context, count / BLOCK_ELEMS))
    for (uint64_t p = 0; p < PARTS; p++) {
        uint64_t each = size_div_up(count, PARTS), begin = size_min(p * each, count);
        for (uint64_t i = begin; i < size_min(begin + each, count); i++)
            sums[p] += (double)values[i] * (double)values[i];
    }
    for (int p = 0; p < PARTS; p++)
        sum += sums[p];
    return (float)sqrt(sum);
}

/* target = x * target + y * other, on all elements. */
static void combine(const kernel_context *context, float x, float *target, float y,
                    const float *other, uint64_t count)
{
#pragma omp parallel for schedule(static)                                                          \
    num_threads(cpui_threads_for(context, count / BLOCK_ELEMS))
    for (uint64_t i = 0; i < count; i++)
        target[i] = x * target[i] + y * other[i];
}

int cpui_orthogonalize(kernel_context *context, void *stream, const orthogonalize_args *args)
{
    uint64_t rows = args->rows, columns = args->columns, count = rows * columns;
    uint64_t m = size_min(rows, columns);
    struct pieces at = lay_out(context, rows, columns);
    char *scratch = args->scratch;
    float *product = args->scratch, *x = args->matrix;
    float *gram = (float *)(void *)(scratch + at.gram);
    matmul_desc descs[PRODUCTS];
    for (int i = 0; i < PRODUCTS; i++)
        descs[i] = product_desc(rows, columns, i);
    float norm = norm_of(context, x, count), least = (float)ORTHOGONALIZE_EPSILON;
    norm = norm < least ? least : norm;
#pragma omp parallel for schedule(static)                                                          \
    num_threads(cpui_threads_for(context, count / BLOCK_ELEMS))
    for (uint64_t i = 0; i < count; i++)
        x[i] /= norm;
    for (uint32_t step = 0; step < args->steps; step++) {
        multiply(context, &descs[GRAM], x, x, gram, scratch + at.products);
        multiply(context, &descs[SQUARE], gram, gram, product, scratch + at.products);
        combine(context, (float)ORTHOGONALIZE_B, gram, (float)ORTHOGONALIZE_C, product, m * m);
        multiply(context, &descs[APPLY], rows > columns ? x : gram, rows > columns ? gram : x,
                 product, scratch + at.products);
        combine(context, (float)ORTHOGONALIZE_A, x, 1.0f, product, count);
    }
    return 0;
}
