/* The ops table's matrix products: one oneDNN product on all threads of the context.
 *
 * Where oneDNN has no product for the operands' type (fp16 on any CPU, bf16 on CPUs without it), the
 * fp32 product runs over operands widened in the caller's scratch, and a 16-bit C is rounded once from
 * fp32 (fp16 beyond 65504 becomes infinity). The choice is made at create and depends on the
 * description and the CPU.
 *
 * A widened product is cut along the longer of m and n into blocks whose size depends on the shape
 * alone, so that its bits do too. The operand that all blocks share (B where m is cut, else A) is
 * widened once, the other block by block: scratch stays far below the widened operands of a product
 * with a vocabulary or a whole unit's weight on one side, and a block is still in the cache when the
 * product reads it. k is never cut: every element of C is one fp32 sum.
 *
 * Scratch of a widened product (each part rounded up to 64 bytes; a part that is not needed is empty):
 *   | oneDNN's scratchpad | shared operand fp32 | block of the other fp32 | bias fp32 [n] | C block |
 * Operands lie as stored but dense; the block of C is [extent, n] or [m, extent] fp32.
 *
 * The caller's thread runs the product with its own OpenMP team; nothing here allocates at run. */
#include <errno.h>
#include <omp.h>

#include "base/mem.h"
#include "base/size.h"
#include "kernels/cpu/rows_internal.h"

enum {
    /* A widened block: half of a second-level cache of 1 MiB per core and more, so that it is read
     * from there or the third level; large enough to keep the product near its speed. */
    WIDE_BLOCK_BYTES = 4 * 1024 * 1024,
    WIDE_BLOCK_ELEMS_MIN = 256, /* of m or n */
    WIDE_BLOCK_ELEMS_STEP = 64,
};

/* What the widened product needs at run; offsets from the start of scratch, in bytes. */
struct widening {
    bool cuts_m;           /* else n */
    bool rounds_c;         /* the product goes to scratch and is rounded into C */
    uint64_t block_elems;  /* of m or n */
    uint64_t block_count;  /* the last may be shorter */
    cpui_product *shorter; /* the last block's product where it is shorter, else NULL */
    size_t shared_offset, block_offset, bias_offset, c_offset;
};

struct kernel_matmul {
    kernel_context *context;
    matmul_desc desc; /* the caller's */
    bool widens;
    struct widening widening;
    cpui_product *product; /* of the whole, or of a full block */
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

static uint64_t a_cols(const matmul_desc *desc)
{
    return desc->a_transposed ? desc->m : desc->k;
}

static uint64_t b_cols(const matmul_desc *desc)
{
    return desc->b_transposed ? desc->k : desc->n;
}

/* Elements of m or n in a block: whole steps, blocks as equal as steps allow. */
static uint64_t block_elems_of(uint64_t elems, uint64_t k)
{
    uint64_t most = WIDE_BLOCK_BYTES / 4 / k / WIDE_BLOCK_ELEMS_STEP * WIDE_BLOCK_ELEMS_STEP;
    most = size_max(most, WIDE_BLOCK_ELEMS_MIN);
    uint64_t even = size_div_up(elems, size_div_up(elems, most));
    return size_min(size_round_up(even, WIDE_BLOCK_ELEMS_STEP), elems);
}

/* The fp32 product of a block of `extent` elements of m or n over dense operands. */
static matmul_desc block_desc(const kernel_matmul *matmul, uint64_t extent)
{
    matmul_desc wide = matmul->desc;
    if (matmul->widening.cuts_m)
        wide.m = extent;
    else
        wide.n = extent;
    wide.ab_type = wide.c_type = DTYPE_FP32;
    wide.a_stride = a_cols(&wide);
    wide.b_stride = b_cols(&wide);
    if (matmul->widening.rounds_c)
        wide.c_stride = wide.n;
    return wide;
}

/* Makes the fp32 products over widened operands and lays out their scratch. */
static int widened_create(kernel_matmul *matmul)
{
    const matmul_desc *desc = &matmul->desc;
    kernel_context *context = matmul->context;
    struct widening *widening = &matmul->widening;
    widening->rounds_c = desc->c_type != DTYPE_FP32;
    widening->cuts_m = desc->m > desc->n;
    uint64_t cut = widening->cuts_m ? desc->m : desc->n;
    widening->block_elems = block_elems_of(cut, desc->k);
    widening->block_count = size_div_up(cut, widening->block_elems);
    matmul_desc wide = block_desc(matmul, widening->block_elems);
    TRY(cpui_product_create(context, &wide, context->thread_count, 1, &matmul->product));
    size_t end = cpui_product_scratch_bytes(matmul->product);
    uint64_t last = cut - (widening->block_count - 1) * widening->block_elems;
    if (last != widening->block_elems) {
        matmul_desc shorter = block_desc(matmul, last);
        int rc =
            cpui_product_create(context, &shorter, context->thread_count, 1, &widening->shorter);
        if (rc < 0) {
            cpui_product_destroy(matmul->product);
            return rc;
        }
        end = size_max(end, cpui_product_scratch_bytes(widening->shorter));
    }
    matmul->widens = true;
    widening->shared_offset = end;
    end += size_round_up(4 * (widening->cuts_m ? desc->n : desc->m) * desc->k, 64);
    widening->block_offset = end;
    end += size_round_up(4 * widening->block_elems * desc->k, 64);
    widening->bias_offset = end;
    end += desc->has_bias ? size_round_up(4 * desc->n, 64) : 0;
    widening->c_offset = end;
    end += widening->rounds_c ? size_round_up(4 * wide.m * wide.n, 64) : 0;
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
    cpui_product_destroy(matmul->widening.shorter);
    mem_free(matmul);
}

size_t cpui_matmul_scratch_bytes(const kernel_matmul *matmul)
{
    return matmul->scratch_bytes;
}

/* Widens rows [row, row + rows) and columns [col, col + cols) of a stored matrix into dense fp32. */
static void widen_part(const kernel_matmul *matmul, const void *source, uint64_t stride,
                       uint64_t row, uint64_t col, uint64_t rows, uint64_t cols, float *target)
{
    enum dtype type = matmul->desc.ab_type;
    struct rows_conversion conversion = {.source = (const char *)source +
                                                   (row * stride + col) * dtype_bytes(type),
                                         .source_type = type,
                                         .source_stride = stride,
                                         .target = target,
                                         .target_type = DTYPE_FP32,
                                         .target_stride = cols,
                                         .rows = rows,
                                         .cols = cols};
    matmul->context->rows->convert_rows(matmul->context->thread_count, &conversion);
}

/* Elements [begin, begin + extent) of m of A, all of k. */
static void widen_a(const kernel_matmul *matmul, const void *a, uint64_t begin, uint64_t extent,
                    float *target)
{
    const matmul_desc *desc = &matmul->desc;
    if (desc->a_transposed)
        widen_part(matmul, a, desc->a_stride, 0, begin, desc->k, extent, target);
    else
        widen_part(matmul, a, desc->a_stride, begin, 0, extent, desc->k, target);
}

/* Elements [begin, begin + extent) of n of B, all of k. */
static void widen_b(const kernel_matmul *matmul, const void *b, uint64_t begin, uint64_t extent,
                    float *target)
{
    const matmul_desc *desc = &matmul->desc;
    if (desc->b_transposed)
        widen_part(matmul, b, desc->b_stride, begin, 0, extent, desc->k, target);
    else
        widen_part(matmul, b, desc->b_stride, 0, begin, desc->k, extent, target);
}

/* Rounds a block of C, dense fp32 in scratch, into its place at `target`. */
static void round_block(const kernel_matmul *matmul, const float *block, uint64_t rows,
                        uint64_t cols, void *target)
{
    struct rows_conversion conversion = {.source = block,
                                         .source_type = DTYPE_FP32,
                                         .source_stride = cols,
                                         .target = target,
                                         .target_type = matmul->desc.c_type,
                                         .target_stride = matmul->desc.c_stride,
                                         .rows = rows,
                                         .cols = cols};
    matmul->context->rows->convert_rows(matmul->context->thread_count, &conversion);
}

/* Elements [begin, begin + extent) of m or n of C; the shared operand and the bias are widened. */
static int run_block(const kernel_matmul *matmul, const void *a, const void *b, void *c,
                     char *scratch, uint64_t begin, uint64_t extent)
{
    const matmul_desc *desc = &matmul->desc;
    const struct widening *widening = &matmul->widening;
    float *shared = (float *)(scratch + widening->shared_offset);
    float *block = (float *)(scratch + widening->block_offset);
    const float *bias = (const float *)(scratch + widening->bias_offset);
    const cpui_product *product =
        extent == widening->block_elems ? matmul->product : widening->shorter;
    uint64_t c_at = widening->cuts_m ? begin * desc->c_stride : begin;
    void *c_part = (char *)c + c_at * dtype_bytes(desc->c_type);
    void *product_c = widening->rounds_c ? scratch + widening->c_offset : c_part;
    int status;
    if (widening->cuts_m) {
        widen_a(matmul, a, begin, extent, block);
        status = cpui_product_run(product, 0, block, shared, bias, product_c, scratch);
    } else {
        widen_b(matmul, b, begin, extent, block);
        status = cpui_product_run(product, 0, shared, block, bias + (desc->has_bias ? begin : 0),
                                  product_c, scratch);
    }
    if (status == 0 && widening->rounds_c)
        round_block(matmul, product_c, widening->cuts_m ? extent : desc->m,
                    widening->cuts_m ? desc->n : extent, c_part);
    return status;
}

static int run_widened(const kernel_matmul *matmul, const void *a, const void *b, const void *bias,
                       void *c, char *scratch)
{
    const matmul_desc *desc = &matmul->desc;
    const struct widening *widening = &matmul->widening;
    float *shared = (float *)(scratch + widening->shared_offset);
    uint64_t cut = widening->cuts_m ? desc->m : desc->n;
    if (widening->cuts_m)
        widen_b(matmul, b, 0, desc->n, shared);
    else
        widen_a(matmul, a, 0, desc->m, shared);
    if (desc->has_bias)
        matmul->context->rows->convert(1, bias, desc->ab_type, scratch + widening->bias_offset,
                                       DTYPE_FP32, desc->n);
    int status = 0;
    for (uint64_t begin = 0; begin < cut && status == 0; begin += widening->block_elems)
        status = run_block(matmul, a, b, c, scratch, begin,
                           size_min(widening->block_elems, cut - begin));
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
