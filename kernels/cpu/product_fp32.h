/* Our own products of fp32 operands with AVX-512, for matmul.c. oneDNN 2.6 falls to half of the
 * peak if rows of B are a multiple of 4 KiB apart, and to three quarters if one side is far longer
 * than the other. oneDNN stays the portable way and computes the small products.
 *
 * The operands of C[m,n] = op(A) op(B) are packed into scratch, in blocks that stay in cache. Each
 * element of C is a chain of fused multiply-adds along a slice of k, begun at zero. The sums of the
 * slices are added to C in order, and the bias is added to the last one. So the order depends on k
 * alone: neither the threads nor the cuts of m and n change a bit. */
#ifndef SLUICE_KERNELS_CPU_PRODUCT_FP32_H
#define SLUICE_KERNELS_CPU_PRODUCT_FP32_H

#include "kernels/cpu/cpu_internal.h"

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
