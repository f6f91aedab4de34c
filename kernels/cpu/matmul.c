/* The ops table's matrix products: one oneDNN product on all threads of the context.
 *
 * Where oneDNN has no product for the operands' type (fp16 on any CPU, bf16 on CPUs without it), A, B
 * and bias are widened to fp32 in the caller's scratch, the fp32 product runs, and a 16-bit C is
 * rounded once at the end. The choice is made at create and depends on the description and the CPU.
 *
 * Scratch of a widened product (each part rounded up to 64 bytes; a part that is not needed is empty):
 *   | oneDNN's scratchpad | A fp32 [as stored, dense] | B fp32 | bias fp32 [n] | C fp32 [m,n] |
 *
 * The caller's thread runs the product with its own OpenMP team; nothing here allocates at run. */
#include <errno.h>
#include <omp.h>

#include "base/mem.h"
#include "base/size.h"
#include "kernels/cpu/cpu_internal.h"

/* What the widened product needs at run; offsets from the start of scratch, in bytes. */
struct widening {
    size_t a_offset, b_offset, bias_offset, c_offset;
    bool rounds_c; /* the product goes to scratch and is rounded into C */
};

struct kernel_matmul {
    kernel_context *context;
    matmul_desc desc; /* the caller's */
    bool widens;
    struct widening widening;
    cpui_product *product;
    size_t scratch_bytes;
};

int cpui_matmul_check(const matmul_desc *desc)
{
    if (desc->m == 0 || desc->n == 0 || desc->k == 0)
        return err_set(ERR_BACKEND, "matrix product m=%llu n=%llu k=%llu is empty",
                       (unsigned long long)desc->m, (unsigned long long)desc->n,
                       (unsigned long long)desc->k);
    uint64_t a_cols = desc->a_transposed ? desc->m : desc->k;
    uint64_t b_cols = desc->b_transposed ? desc->k : desc->n;
    if (desc->a_stride < a_cols || desc->b_stride < b_cols || desc->c_stride < desc->n)
        return err_set(ERR_BACKEND,
                       "matrix product m=%llu n=%llu k=%llu: strides %llu, %llu, %llu of A, B, C "
                       "are shorter than their rows of %llu, %llu, %llu",
                       (unsigned long long)desc->m, (unsigned long long)desc->n,
                       (unsigned long long)desc->k, (unsigned long long)desc->a_stride,
                       (unsigned long long)desc->b_stride, (unsigned long long)desc->c_stride,
                       (unsigned long long)a_cols, (unsigned long long)b_cols,
                       (unsigned long long)desc->n);
    if (desc->c_type != DTYPE_FP32 && (desc->c_type != desc->ab_type || desc->accumulate))
        return err_set(ERR_BACKEND, "matrix product of %s operands cannot %s %s",
                       dtype_name(desc->ab_type), desc->accumulate ? "accumulate in" : "give",
                       dtype_name(desc->c_type));
    uint64_t rows_max = size_max(desc->m, size_max(desc->n, desc->k)), elems, bytes;
    uint64_t stride_max = size_max(desc->a_stride, size_max(desc->b_stride, desc->c_stride));
    TRY(size_mul(rows_max, stride_max, &elems));
    TRY(size_mul(elems, 8, &bytes)); /* all offsets fit oneDNN's signed 64 bits */
    return 0;
}

static uint64_t a_rows(const matmul_desc *desc)
{
    return desc->a_transposed ? desc->k : desc->m;
}

static uint64_t a_cols(const matmul_desc *desc)
{
    return desc->a_transposed ? desc->m : desc->k;
}

static uint64_t b_rows(const matmul_desc *desc)
{
    return desc->b_transposed ? desc->n : desc->k;
}

static uint64_t b_cols(const matmul_desc *desc)
{
    return desc->b_transposed ? desc->k : desc->n;
}

/* Makes the fp32 product over dense widened operands and lays out its scratch. */
static int widened_create(kernel_matmul *matmul)
{
    const matmul_desc *desc = &matmul->desc;
    struct widening *widening = &matmul->widening;
    widening->rounds_c = desc->c_type != DTYPE_FP32;
    matmul_desc wide = *desc;
    wide.ab_type = wide.c_type = DTYPE_FP32;
    wide.a_stride = a_cols(desc);
    wide.b_stride = b_cols(desc);
    if (widening->rounds_c)
        wide.c_stride = desc->n;
    kernel_context *context = matmul->context;
    TRY(cpui_product_create(context, &wide, context->thread_count, 1, &matmul->product));
    matmul->widens = true;
    size_t end = cpui_product_scratch_bytes(matmul->product);
    widening->a_offset = end;
    end += size_round_up(4 * desc->m * desc->k, 64);
    widening->b_offset = end;
    end += size_round_up(4 * desc->n * desc->k, 64);
    widening->bias_offset = end;
    end += desc->has_bias ? size_round_up(4 * desc->n, 64) : 0;
    widening->c_offset = end;
    end += widening->rounds_c ? size_round_up(4 * desc->m * desc->n, 64) : 0;
    matmul->scratch_bytes = end;
    return 0;
}

int cpui_matmul_create(kernel_context *context, const matmul_desc *desc, kernel_matmul **out)
{
    *out = NULL;
    TRY(cpui_matmul_check(desc));
    kernel_matmul *matmul = mem_alloc(1, sizeof *matmul, "matmul");
    if (!matmul)
        return -ENOMEM;
    matmul->context = context;
    matmul->desc = *desc;
    int rc = ERR_BACKEND;
    if (desc->ab_type == DTYPE_FP32 ||
        (desc->ab_type == DTYPE_BF16 && context->has_bf16_products)) {
        rc = cpui_product_create(context, desc, context->thread_count, 1, &matmul->product);
        if (rc == 0)
            matmul->scratch_bytes = cpui_product_scratch_bytes(matmul->product);
    }
    if (rc == ERR_BACKEND && desc->ab_type != DTYPE_FP32)
        rc = widened_create(matmul);
    if (rc < 0) {
        mem_free(matmul);
        return rc;
    }
    *out = matmul;
    return 0;
}

void cpui_matmul_destroy(kernel_matmul *matmul)
{
    if (!matmul)
        return;
    cpui_product_destroy(matmul->product);
    mem_free(matmul);
}

size_t cpui_matmul_scratch_bytes(const kernel_matmul *matmul)
{
    return matmul->scratch_bytes;
}

/* target[rows, cols] = source[rows, cols], each with its row stride; rows shared by the team. */
static void convert_rows(const void *source, enum dtype source_type, uint64_t source_stride,
                         void *target, enum dtype target_type, uint64_t target_stride,
                         uint64_t rows, uint64_t cols, int thread_count)
{
    size_t source_bytes = dtype_bytes(source_type), target_bytes = dtype_bytes(target_type);
#pragma omp parallel for schedule(static) num_threads(thread_count)
    for (uint64_t row = 0; row < rows; row++)
        dtype_convert((const char *)source + row * source_stride * source_bytes, source_type,
                      (char *)target + row * target_stride * target_bytes, target_type, cols);
}

static int run_widened(kernel_matmul *matmul, const void *a, const void *b, const void *bias,
                       void *c, char *scratch)
{
    const matmul_desc *desc = &matmul->desc;
    const struct widening *widening = &matmul->widening;
    int threads = matmul->context->thread_count;
    float *wide_a = (float *)(scratch + widening->a_offset);
    float *wide_b = (float *)(scratch + widening->b_offset);
    float *wide_bias = (float *)(scratch + widening->bias_offset);
    void *product_c = widening->rounds_c ? scratch + widening->c_offset : c;
    convert_rows(a, desc->ab_type, desc->a_stride, wide_a, DTYPE_FP32, a_cols(desc), a_rows(desc),
                 a_cols(desc), threads);
    convert_rows(b, desc->ab_type, desc->b_stride, wide_b, DTYPE_FP32, b_cols(desc), b_rows(desc),
                 b_cols(desc), threads);
    if (desc->has_bias)
        dtype_convert(bias, desc->ab_type, wide_bias, DTYPE_FP32, desc->n);
    int status =
        cpui_product_run(matmul->product, 0, wide_a, wide_b, wide_bias, product_c, scratch);
    if (status == 0 && widening->rounds_c)
        convert_rows(product_c, DTYPE_FP32, desc->n, c, desc->c_type, desc->c_stride, desc->m,
                     desc->n, threads);
    return status;
}

int cpui_matmul(kernel_matmul *matmul, void *stream, const void *a, const void *b, const void *bias,
                void *c, void *scratch)
{
    (void)stream;
    /* The calling thread may differ from the creating one, and OpenMP keeps the count per thread. */
    omp_set_num_threads(matmul->context->thread_count);
    int status = matmul->widens ? run_widened(matmul, a, b, bias, c, scratch)
                                : cpui_product_run(matmul->product, 0, a, b, bias, c, scratch);
    return status == 0 ? 0 : cpui_product_failed(matmul->product, status);
}
