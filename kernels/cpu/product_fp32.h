/* Products of fp32 operands with AVX-512 of our own, for matmul.c. oneDNN 2.6 falls to half of the
 * peak where rows of B lie a multiple of 4 KiB apart, and to three quarters where one side is far
 * longer than the other; it stays the portable way and has the small products.
 *
 * The operands of C[m,n] = op(A) op(B) are packed in scratch on the way, in blocks that stay in
 * cache. Each element of C is a chain of fused multiply-adds along a slice of k, begun at zero; the
 * sums of the slices are added to C in order, and the bias to the last. So k alone decides in which
 * order: neither threads nor how m and n are cut touch a bit. */
#ifndef SLUICE_KERNELS_PRODUCT_FP32_H
#define SLUICE_KERNELS_PRODUCT_FP32_H

#include "kernels/cpu/cpu_internal.h"

struct cpui_fp32_product {
    matmul_desc desc;
    int threads;
    bool cuts_m;          /* blocks are rows of A, else columns of B */
    uint64_t slice_elems; /* of k; the last slice may be shorter */
    uint64_t cut_elems;   /* rows or columns of a block, a multiple of 32 */
    /* columns or rows of the other operand that are packed at a time; likewise */
    uint64_t shared_elems;
    uint64_t cut_bytes;  /* of a thread's block */
    uint64_t cut_offset; /* in scratch, bytes; the shared operand lies at 0 */
    size_t scratch_bytes;
};
typedef struct cpui_fp32_product cpui_fp32_product;

/* Fills *out for a checked desc with fp32 operands, run by `threads` threads. Both functions only
 * where the context's isa is AVX-512. */
void cpui_fp32_product_plan(const matmul_desc *desc, int threads, cpui_fp32_product *out);
/* As matmul of the ops table; scratch holds scratch_bytes, aligned to 64 bytes. Starts a team. */
void cpui_fp32_product_run(const cpui_fp32_product *self, const float *a, const float *b,
                           const float *bias, float *c, void *scratch);

#endif
