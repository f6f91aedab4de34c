/* The matrix products of the ops table. There are three kinds, chosen at create by shape, dtype and
 * CPU:
 *   bf16 on AMX tiles    our own (product_own.h), if no side is too short
 *   fp32 with AVX-512    our own (product_own.h), if no side is too short
 *   oneDNN               all other cases
 *
 * A product uses all threads of the context, or one where others would hardly have woken up.
 *
 * oneDNN adds to C where it writes it, and waits for memory with each patch. So a product that
 * accumulates is made in blocks of rows: each is computed in scratch, which stays in the cache, and
 * then added to C.
 *
 * If oneDNN has no product for the operands' type (fp16 on any CPU, bf16 on CPUs without it), the
 * product is widened: oneDNN's fp32 product, never our own, runs over operands that are widened in
 * the caller's scratch. So are fp32 operands that oneDNN is slow with where they lie; "widened"
 * then means copied. A 16-bit C is rounded once from fp32 (fp16 above 65504 becomes infinity).
 *
 * A widened product is cut into blocks along the longer of m and n. The size of a block depends on
 * the shape alone, so its bits do too. The operand that all blocks share (B if m is cut, else A) is
 * widened once; the other operand is widened block by block. So the scratch stays far below the
 * size of both widened operands when one side is a vocabulary or the weight of a whole unit, and a
 * block is still in the cache when the product reads it. A k above WIDE_K_ELEMS_MAX is cut too: the
 * results of its parts are added in fp32, in order.
 *
 * Scratch of a widened product (each part is rounded up to 64 bytes; a part that is not needed is
 * empty):
 *   | oneDNN scratchpad | shared operand fp32 | block of the other fp32 | bias fp32 [n] | C block |
 * Operands are laid out as stored, with the rows of wide_stride(). The block of C is [extent, n] or
 * [m, extent] fp32.
 *
 * The caller's thread runs a product with its own OpenMP team. Nothing here allocates during a
 * run. */
#include <errno.h>
#include <omp.h>

#include "base/mem.h"
#include "base/size.h"
#include "kernels/cpu/product_own.h"
#include "kernels/cpu/rows_internal.h"
#include "kernels/matmul_desc.h"

enum {
    /* A widened block. It is small enough to be read again from the second or third level of cache,
     * and large enough to keep the product near its full speed. One Zen 5 core, m x n x k, relative
     * to the fp32 product of the same shape: 512x3072x768 1.06, 64x768x768 1.11, 64x50257x768 1.06,
     * 3072x768x512 transposed 1.03. */
    WIDE_BLOCK_BYTES = 4 * 1024 * 1024,
    WIDE_BLOCK_ELEMS_MIN = 256, /* of m or n */
    WIDE_K_ELEMS_MAX = 8192,
    WIDE_ELEMS_STEP = 64, /* of m, n and k */
    LINE_ELEMS = 16,      /* floats in a cache line */
    /* A block that is added to C. With fewer rows than the least, B is read too often. bf16, two
     * cores of Zen 5, GFLOP/s as one product and in blocks: 3072x1024x256 598 and 805,
     * 4096x1024x512 753 and 889, 4096x1024x1024 843 and 912. Blocks of 1 MiB give 771, 835 and
     * 888. */
    ADDED_BLOCK_BYTES = 4 * 1024 * 1024,
    ADDED_ROWS_MIN = 256,
    ADDED_ROWS_STEP = 32,
    /* fp32 operands are copied if B's stride is a multiple of this, and the shorter of m and n is
     * within these bounds. Longer ones are packed by oneDNN, most of them; for a shorter one the
     * copy costs as much as it gains. */
    COPIED_STRIDE_STEP = 512,
    COPIED_ELEMS_MIN = 64,
    COPIED_ELEMS_MAX = 256,
    TILES_ELEMS_MIN = 32, /* of m, n and k */
    /* Below these sizes oneDNN makes the fp32 products. GFLOP/s of ours and of oneDNN 2.6, m x n x
     * k, 2 cores: 128x768x768 285 and 322, 192x768x50257 260 and 245, 1024x3072x768 322 and 158. */
    FP32_ELEMS_MIN = 160, /* of m and n */
    FP32_K_ELEMS_MIN = 128,
};

/* The parts of k. The first one begins C as the caller wants it (it may accumulate and add the
 * bias); the others accumulate. The last part may be shorter. */
enum k_part { K_FIRST, K_MIDDLE, K_LAST, K_PART_COUNT };

/* The needs of a widened product at run. Offsets are in bytes from the start of scratch. */
struct widening {
    bool cuts_m;          /* true: m is cut, false: n */
    bool rounds_c;        /* the product is written to scratch and rounded into C */
    uint64_t block_elems; /* of m or n; the last block may be shorter */
    uint64_t k_elems;     /* of k */
    /* [full block, shorter block]; NULL if there is none */
    cpui_product *products[2][K_PART_COUNT];
    size_t shared_offset, block_offset, bias_offset, c_offset;
};

struct kernel_matmul {
    kernel_context *context;
    matmul_desc desc; /* the caller's */
    int threads;      /* that compute it */
    bool on_tiles;
    cpui_amx_product tiles; /* if on_tiles */
    bool is_fp32;           /* our own AVX-512 product */
    cpui_fp32_product fp32; /* if is_fp32 */
    bool widens;
    struct widening widening;
    /* oneDNN's, if the product is neither our own nor widened: of a block of rows (all of them if
     * nothing is added), and of the last one if it is shorter (else NULL) */
    cpui_product *blocks[2];
    uint64_t block_rows;
    size_t added_offset;
    bool adds; /* blocks are computed at added_offset of the scratch and added to C */
    size_t scratch_bytes;
};

/* The stride of rows of `cols` floats in scratch: an odd number of cache lines. With a power of two
 * the elements of a column share few sets of the cache, and oneDNN 2.6 with AVX2, which reads short
 * operands where they lie, takes twice as long. */
static uint64_t wide_stride(uint64_t cols)
{
    return LINE_ELEMS * (size_div_up(cols, LINE_ELEMS) | 1);
}

/* True if the stored rows of A (else of B) run across k. */
static bool rows_cross_k(const matmul_desc *desc, bool is_a)
{
    return is_a ? desc->a_transposed : !desc->b_transposed;
}

/* The stride in scratch of A, else of B. */
static uint64_t wide_operand_stride(const matmul_desc *desc, bool is_a)
{
    return wide_stride(!rows_cross_k(desc, is_a) ? desc->k : is_a ? desc->m : desc->n);
}

/* The scratch of `elems` elements of m (A) or n (B), by `k` of k: a multiple of 64 bytes. */
static uint64_t wide_bytes(const matmul_desc *desc, bool is_a, uint64_t elems, uint64_t k)
{
    return 4 * (rows_cross_k(desc, is_a) ? k * wide_stride(elems) : elems * wide_stride(k));
}

/* The fp32 product of a block of `extent` elements of m or n and of a part of `k` elements of k.
 * The shared operand lies whole in scratch, of the other one the block. */
static matmul_desc block_desc(const kernel_matmul *matmul, uint64_t extent, uint64_t k,
                              enum k_part part)
{
    const matmul_desc *desc = &matmul->desc;
    bool cuts_m = matmul->widening.cuts_m;
    matmul_desc wide = *desc;
    if (cuts_m)
        wide.m = extent;
    else
        wide.n = extent;
    wide.k = k;
    wide.ab_type = wide.c_type = DTYPE_FP32;
    wide.a_stride = wide_operand_stride(cuts_m ? &wide : desc, true);
    wide.b_stride = wide_operand_stride(cuts_m ? desc : &wide, false);
    if (matmul->widening.rounds_c)
        wide.c_stride = wide.n;
    if (part != K_FIRST) {
        wide.has_bias = false;
        wide.accumulate = true;
    }
    return wide;
}

/* Creates the products of blocks of `extent` elements. Raises *scratch_bytes to what the largest
 * needs. */
static int block_products_create(kernel_matmul *matmul, uint64_t extent, cpui_product **products,
                                 size_t *scratch_bytes)
{
    uint64_t k = matmul->desc.k, k_elems = matmul->widening.k_elems;
    uint64_t k_count = size_div_up(k, k_elems), k_last = k - (k_count - 1) * k_elems;
    kernel_context *context = matmul->context;
    bool is_needed[K_PART_COUNT] = {true, k_count > 2 || (k_count == 2 && k_last == k_elems),
                                    k_count > 1 && k_last != k_elems};
    for (int part = 0; part < K_PART_COUNT; part++) {
        if (!is_needed[part])
            continue;
        matmul_desc wide =
            block_desc(matmul, extent, part == K_LAST ? k_last : k_elems, (enum k_part)part);
        TRY(cpui_product_create(context, &wide, matmul->threads, 1, &products[part]));
        *scratch_bytes = size_max(*scratch_bytes, cpui_product_scratch_bytes(products[part]));
    }
    return 0;
}

static void widened_destroy(kernel_matmul *matmul)
{
    for (int i = 0; i < 2; i++)
        for (int part = 0; part < K_PART_COUNT; part++) {
            cpui_product_destroy(matmul->widening.products[i][part]);
            matmul->widening.products[i][part] = NULL;
        }
}

/* Creates the fp32 products over widened operands and lays out their scratch. */
static int widened_create(kernel_matmul *matmul)
{
    const matmul_desc *desc = &matmul->desc;
    struct widening *widening = &matmul->widening;
    widening->rounds_c = desc->c_type != DTYPE_FP32;
    widening->cuts_m = desc->m > desc->n;
    widening->k_elems =
        size_min(cpui_even_part(desc->k, WIDE_K_ELEMS_MAX, WIDE_ELEMS_STEP), desc->k);
    uint64_t cut = widening->cuts_m ? desc->m : desc->n;
    uint64_t fitting = WIDE_BLOCK_BYTES / 4 / widening->k_elems;
    fitting = size_max(fitting / WIDE_ELEMS_STEP * WIDE_ELEMS_STEP, WIDE_BLOCK_ELEMS_MIN);
    widening->block_elems = size_min(cpui_even_part(cut, fitting, WIDE_ELEMS_STEP), cut);
    uint64_t shorter = cut % widening->block_elems;
    size_t end = 0;
    int rc = block_products_create(matmul, widening->block_elems, widening->products[0], &end);
    if (rc == 0 && shorter)
        rc = block_products_create(matmul, shorter, widening->products[1], &end);
    if (rc < 0) {
        widened_destroy(matmul);
        return rc;
    }
    matmul->widens = true;
    widening->shared_offset = end;
    end += wide_bytes(desc, !widening->cuts_m, widening->cuts_m ? desc->n : desc->m, desc->k);
    widening->block_offset = end;
    end += wide_bytes(desc, widening->cuts_m, widening->block_elems, widening->k_elems);
    widening->bias_offset = end;
    end += desc->has_bias ? size_round_up(4 * desc->n, 64) : 0;
    widening->c_offset = end;
    if (widening->rounds_c)
        end +=
            size_round_up(4 * widening->block_elems * (widening->cuts_m ? desc->n : desc->m), 64);
    matmul->scratch_bytes = end;
    return 0;
}

/* If an operand has few rows or columns, packing it costs as much as the product. */
static bool wants_tiles(const kernel_context *context, const matmul_desc *desc)
{
    return context->has_amx && context->has_bf16_products && desc->ab_type == DTYPE_BF16 &&
           size_min(desc->m, size_min(desc->n, desc->k)) >= TILES_ELEMS_MIN;
}

/* The same holds here; also, oneDNN is good at small fp32 products. */
static bool wants_fp32(const kernel_context *context, const matmul_desc *desc)
{
    return context->isa >= CPU_AVX512 && desc->ab_type == DTYPE_FP32 &&
           size_min(desc->m, desc->n) >= FP32_ELEMS_MIN && desc->k >= FP32_K_ELEMS_MIN;
}

/* With AVX2 oneDNN reads short fp32 operands where they lie. If the rows of B are a multiple of
 * 4 KiB apart, it reaches half of its speed, and of 2 KiB two thirds. Two cores of Zen 3,
 * 256 x 1024 x 1024: 91 GFLOP/s in place, 175 with copies. Within these bounds the blocks have the
 * bits of the product in place, since oneDNN computes both by the same kernel. */
static bool wants_copies(const kernel_context *context, const matmul_desc *desc)
{
    uint64_t shorter = size_min(desc->m, desc->n);
    return context->isa == CPU_AVX2 && desc->ab_type == DTYPE_FP32 && !desc->b_transposed &&
           desc->b_stride % COPIED_STRIDE_STEP == 0 && shorter >= COPIED_ELEMS_MIN &&
           shorter <= COPIED_ELEMS_MAX && desc->k <= WIDE_K_ELEMS_MAX;
}

/* Creates oneDNN's products over the operands where they lie. */
static int blocks_create(kernel_matmul *matmul)
{
    matmul_desc block = matmul->desc;
    matmul->adds = block.accumulate && block.c_type == DTYPE_FP32 && block.c_stride == block.n;
    if (matmul->adds) {
        uint64_t most = size_max(ADDED_BLOCK_BYTES / (4 * block.n), ADDED_ROWS_MIN);
        block.m = size_min(cpui_even_part(block.m, most, ADDED_ROWS_STEP), block.m);
        block.accumulate = false;
    }
    matmul->block_rows = block.m;
    uint64_t rows[2] = {block.m, matmul->desc.m % block.m};
    for (int i = 0; i < 2 && rows[i] > 0; i++) {
        kernel_context *context = matmul->context;
        block.m = rows[i];
        TRY(cpui_product_create(context, &block, matmul->threads, 1, &matmul->blocks[i]));
        matmul->added_offset =
            size_max(matmul->added_offset, cpui_product_scratch_bytes(matmul->blocks[i]));
    }
    matmul->scratch_bytes =
        matmul->added_offset +
        (matmul->adds ? size_round_up(4 * matmul->block_rows * block.n, 64) : 0);
    return 0;
}

int cpui_matmul_create(kernel_context *context, const matmul_desc *desc, kernel_matmul **out)
{
    *out = NULL;
    TRY(matmul_check(desc));
    kernel_matmul *matmul = mem_alloc(1, sizeof *matmul, "matmul");
    if (!matmul)
        return -ENOMEM;
    matmul->context = context;
    matmul->desc = *desc;
    double m = (double)desc->m, n = (double)desc->n, k = (double)desc->k;
    double bytes = k * (m + n) * (double)dtype_bytes(desc->ab_type) +
                   m * n * (double)dtype_bytes(desc->c_type);
    matmul->threads = cpui_threads_for_flops(context, 2 * m * n * k, bytes);
    int rc = ERR_BACKEND;
    if (wants_tiles(context, desc)) {
        matmul->on_tiles = true;
        cpui_amx_product_plan(desc, matmul->threads, &matmul->tiles);
        matmul->scratch_bytes = matmul->tiles.scratch_bytes;
        rc = 0;
    } else if (wants_fp32(context, desc)) {
        matmul->is_fp32 = true;
        cpui_fp32_product_plan(desc, matmul->threads, &matmul->fp32);
        matmul->scratch_bytes = matmul->fp32.scratch_bytes;
        rc = 0;
    } else if (wants_copies(context, desc)) {
        rc = widened_create(matmul);
    } else if (desc->ab_type == DTYPE_FP32 ||
               (desc->ab_type == DTYPE_BF16 && context->has_bf16_products)) {
        rc = blocks_create(matmul);
    }
    if (rc == ERR_BACKEND && desc->ab_type != DTYPE_FP32)
        rc = widened_create(matmul);
    if (rc < 0) {
        cpui_matmul_destroy(matmul);
        return rc;
    }
    *out = matmul;
    return 0;
}

void cpui_matmul_destroy(kernel_matmul *matmul)
{
    if (!matmul)
        return;
    for (int i = 0; i < 2; i++)
        cpui_product_destroy(matmul->blocks[i]);
    widened_destroy(matmul);
    mem_free(matmul);
}

size_t cpui_matmul_scratch_bytes(const kernel_matmul *matmul)
{
    return matmul->scratch_bytes;
}

/* Widens rows [row, row + rows) and columns [col, col + cols) of a stored matrix into fp32 rows. */
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
                                         .target_stride = wide_stride(cols),
                                         .rows = rows,
                                         .cols = cols};
    matmul->context->rows->convert_rows(matmul->threads, &conversion);
}

/* Widens elements [begin, begin + extent) of m (A) or n (B), and [k_begin, k_begin + k) of k. */
static void widen_operand(const kernel_matmul *matmul, bool is_a, const void *source,
                          uint64_t begin, uint64_t extent, uint64_t k_begin, uint64_t k,
                          float *target)
{
    const matmul_desc *desc = &matmul->desc;
    uint64_t stride = is_a ? desc->a_stride : desc->b_stride;
    if (rows_cross_k(desc, is_a))
        widen_part(matmul, source, stride, k_begin, begin, k, extent, target);
    else
        widen_part(matmul, source, stride, begin, k_begin, extent, k, target);
}

/* The part of the shared operand that begins at element k_begin of k. */
static const float *shared_at(const kernel_matmul *matmul, const char *scratch, uint64_t k_begin)
{
    const matmul_desc *desc = &matmul->desc;
    const float *shared = (const float *)(scratch + matmul->widening.shared_offset);
    bool is_a = !matmul->widening.cuts_m;
    return shared + k_begin * (rows_cross_k(desc, is_a) ? wide_operand_stride(desc, is_a) : 1);
}

/* Rounds a block of C, which is dense fp32 in scratch, into its place at `target`. */
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
    matmul->context->rows->convert_rows(matmul->threads, &conversion);
}

/* Computes elements [begin, begin + extent) of m or n of C. The shared operand and the bias are
 * widened already. */
static int run_block(const kernel_matmul *matmul, const void *a, const void *b, void *c,
                     char *scratch, uint64_t begin, uint64_t extent)
{
    const matmul_desc *desc = &matmul->desc;
    const struct widening *widening = &matmul->widening;
    bool cuts_m = widening->cuts_m;
    float *block = (float *)(scratch + widening->block_offset);
    const float *bias = (const float *)(scratch + widening->bias_offset);
    uint64_t c_at = cuts_m ? begin * desc->c_stride : begin;
    void *c_part = (char *)c + c_at * dtype_bytes(desc->c_type);
    void *product_c = widening->rounds_c ? scratch + widening->c_offset : c_part;
    for (uint64_t k_begin = 0; k_begin < desc->k; k_begin += widening->k_elems) {
        uint64_t k = size_min(widening->k_elems, desc->k - k_begin);
        enum k_part part = k_begin == 0 ? K_FIRST : k == widening->k_elems ? K_MIDDLE : K_LAST;
        const cpui_product *product = widening->products[extent != widening->block_elems][part];
        const float *shared = shared_at(matmul, scratch, k_begin);
        widen_operand(matmul, cuts_m, cuts_m ? a : b, begin, extent, k_begin, k, block);
        int status =
            cpui_product_run(product, 0, cuts_m ? block : shared, cuts_m ? shared : block,
                             cuts_m || !desc->has_bias ? bias : bias + begin, product_c, scratch);
        if (status != 0)
            return cpui_product_failed(product, status);
    }
    if (widening->rounds_c)
        round_block(matmul, product_c, cuts_m ? extent : desc->m, cuts_m ? desc->n : extent,
                    c_part);
    return 0;
}

static int run_widened(const kernel_matmul *matmul, const void *a, const void *b, const void *bias,
                       void *c, char *scratch)
{
    const matmul_desc *desc = &matmul->desc;
    const struct widening *widening = &matmul->widening;
    bool cuts_m = widening->cuts_m;
    uint64_t cut = cuts_m ? desc->m : desc->n;
    widen_operand(matmul, !cuts_m, cuts_m ? b : a, 0, cuts_m ? desc->n : desc->m, 0, desc->k,
                  (float *)(scratch + widening->shared_offset));
    if (desc->has_bias)
        matmul->context->rows->convert(1, bias, desc->ab_type, scratch + widening->bias_offset,
                                       DTYPE_FP32, desc->n);
    for (uint64_t begin = 0; begin < cut; begin += widening->block_elems)
        TRY(run_block(matmul, a, b, c, scratch, begin,
                      size_min(widening->block_elems, cut - begin)));
    return 0;
}

static int run_blocks(const kernel_matmul *matmul, const char *a, const void *b, const void *bias,
                      char *c, char *scratch)
{
    const matmul_desc *desc = &matmul->desc;
    const kernel_context *context = matmul->context;
    uint64_t a_row = (desc->a_transposed ? 1 : desc->a_stride) * dtype_bytes(desc->ab_type);
    uint64_t c_row = desc->c_stride * dtype_bytes(desc->c_type);
    for (uint64_t row = 0; row < desc->m; row += matmul->block_rows) {
        uint64_t rows = size_min(matmul->block_rows, desc->m - row);
        const cpui_product *product = matmul->blocks[rows != matmul->block_rows];
        char *target = c + row * c_row,
             *made = matmul->adds ? scratch + matmul->added_offset : target;
        int status = cpui_product_run(product, 0, a + row * a_row, b, bias, made, scratch);
        if (status != 0)
            return cpui_product_failed(product, status);
        if (matmul->adds)
            context->rows->add(matmul->threads, DTYPE_FP32, rows * desc->n, target, made, target);
    }
    return 0;
}

static int run(const kernel_matmul *matmul, const void *a, const void *b, const void *bias, void *c,
               void *scratch)
{
    if (matmul->on_tiles) {
        cpui_amx_product_run(&matmul->tiles, a, b, bias, c, scratch);
        return 0;
    }
    if (matmul->is_fp32) {
        cpui_fp32_product_run(&matmul->fp32, a, b, bias, c, scratch);
        return 0;
    }
    if (matmul->widens)
        return run_widened(matmul, a, b, bias, c, scratch);
    return run_blocks(matmul, a, b, bias, c, scratch);
}

int cpui_matmul(kernel_matmul *matmul, void *stream, const void *a, const void *b, const void *bias,
                void *c, void *scratch)
{
    /* The calling thread may not be the one that created the product, and OpenMP keeps the count
     * per thread, also for what the caller does next. */
    omp_set_num_threads(matmul->threads);
    int rc = run(matmul, a, b, bias, c, scratch);
    omp_set_num_threads(matmul->context->thread_count);
    return rc;
}
