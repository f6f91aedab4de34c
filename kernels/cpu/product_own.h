/* Our own matrix products, for matmul.c: of bf16 operands on AMX tiles, and of fp32 operands with
 * AVX-512. oneDNN stays the portable way and computes the small products.
 *
 *   bf16   oneDNN 2.6 reaches a third of the speed of the tiles, and half of that if rows have odd
 *          lengths (such as GPT-2's vocabulary) or if A is transposed. Sums are fp32; a 16-bit C is
 *          rounded once, to nearest even. Subnormal operands count as zero, as always on AMX.
 *   fp32   oneDNN 2.6 falls to half of the peak if rows of B are a multiple of 4 KiB apart, and to
 *          three quarters if one side is far longer than the other. Each element of C is a chain of
 *          fused multiply-adds along a slice of k, begun at zero. The sums of the slices are added
 *          to C in order, and the bias is added to the last one.
 *
 * The operands of C[m,n] = op(A) op(B) are packed into scratch, in blocks that stay in cache. Each
 * element of C is a sum in an order that depends on k alone: neither the threads nor the cuts of m
 * and n change a bit. */
#ifndef SLUICE_KERNELS_CPU_PRODUCT_OWN_H
#define SLUICE_KERNELS_CPU_PRODUCT_OWN_H

#include "base/size.h"
#include "kernels/cpu/cpu_internal.h"

/* Divides `elems` into parts of at most `most` elements, all whole steps and as equal as
 * possible. */
static inline uint64_t cpui_even_part(uint64_t elems, uint64_t most, uint64_t step)
{
    return size_round_up(size_div_up(elems, size_div_up(elems, most)), step);
}

struct cpui_amx_product {
    matmul_desc desc;
    int threads;
    bool cuts_m; /* blocks are rows of A; false: columns of B */
    /* along rows of C, over the whole shared operand; else down the strips of a block */
    bool goes_along_rows;
    bool has_sums; /* fp32 sums [m,n] are kept in scratch between the slices of k */
    /* of k; the last slice may be shorter. All three *_elems are multiples of 32 */
    uint64_t slice_elems;
    uint64_t cut_elems;      /* rows or columns of a block */
    uint64_t shared_elems;   /* columns or rows of the other operand that are packed at a time */
    uint64_t cut_bytes;      /* of one thread: its block, then squares */
    uint64_t squares_offset; /* where the sums of the squares begin in those bytes */
    uint64_t cut_offset, sums_offset; /* in bytes, in scratch; the shared operand is at offset 0 */
    size_t scratch_bytes;
};
typedef struct cpui_amx_product cpui_amx_product;

/* Fills *out for a checked desc with bf16 operands, which `threads` threads will run. Call both
 * functions only if the context has has_amx. */
void cpui_amx_product_plan(const matmul_desc *desc, int threads, cpui_amx_product *out);
/* Runs the product like matmul of the ops table; it starts a team of threads. scratch has
 * scratch_bytes, aligned to 64 bytes. */
void cpui_amx_product_run(const cpui_amx_product *self, const void *a, const void *b,
                          const void *bias, void *c, void *scratch);

struct cpui_fp32_product {
    matmul_desc desc;
    int threads;
    bool cuts_m;          /* blocks are rows of A; false: columns of B */
    uint64_t slice_elems; /* of k; the last slice may be shorter */
    uint64_t cut_elems;   /* rows or columns of a block, a multiple of 32 */
    /* columns or rows of the other operand that are packed at a time, a multiple of 32 */
    uint64_t shared_elems;
    uint64_t cut_bytes;  /* bytes of one thread's block */
    uint64_t cut_offset; /* in bytes, of the blocks in scratch; the shared operand is at offset 0 */
    size_t scratch_bytes;
};
typedef struct cpui_fp32_product cpui_fp32_product;

/* Fills *out for a checked desc with fp32 operands, which `threads` threads will run. Call both
 * functions only if the isa of the context has AVX-512. */
void cpui_fp32_product_plan(const matmul_desc *desc, int threads, cpui_fp32_product *out);
/* Runs the product like matmul of the ops table; it starts a team of threads. scratch has
 * scratch_bytes, aligned to 64 bytes. */
void cpui_fp32_product_run(const cpui_fp32_product *self, const float *a, const float *b,
                           const float *bias, float *c, void *scratch);

#endif
