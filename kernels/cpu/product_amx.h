/* Matrix products of bf16 operands on AMX tiles of our own, for matmul.c. oneDNN 2.6 reaches a
 * third of what the tiles can do, and half of that where rows have odd lengths such as GPT-2's
 * vocabulary or where A is transposed; it stays the portable way and has the small products.
 *
 * The operands of C[m,n] = op(A) op(B) are packed into tiles in scratch on the way, in blocks that
 * stay in cache. Each element of C is a sum in an order that k alone decides: neither threads nor
 * how m and n are cut touch a bit. Sums are fp32; a 16-bit C is rounded once, to nearest even.
 * Subnormal operands count as zero, as on all AMX. */
#ifndef SLUICE_KERNELS_PRODUCT_AMX_H
#define SLUICE_KERNELS_PRODUCT_AMX_H

#include "kernels/cpu/cpu_internal.h"

struct cpui_amx_product {
    matmul_desc desc;
    int threads;
    bool cuts_m;           /* blocks are rows of A, else columns of B */
    bool goes_along_rows;  /* of C, over all of the shared operand; else down a block's strips */
    bool has_sums;         /* fp32 sums [m,n] in scratch between the slices of k */
    uint64_t slice_elems;  /* of k; the last slice may be shorter. All three are multiples of 32 */
    uint64_t cut_elems;    /* rows or columns of a block */
    uint64_t shared_elems; /* columns or rows of the other operand that are packed at a time */
    uint64_t cut_bytes;    /* of a thread: its block, then squares */
    uint64_t squares_offset;          /* of the squares' sums in it, bytes */
    uint64_t cut_offset, sums_offset; /* in scratch, bytes; the shared operand lies at 0 */
    size_t scratch_bytes;
};
typedef struct cpui_amx_product cpui_amx_product;

/* Fills *out for a checked desc with bf16 operands, run by `threads` threads. Both functions only
 * where the context has has_amx. */
void cpui_amx_product_plan(const matmul_desc *desc, int threads, cpui_amx_product *out);
/* As matmul of the ops table; scratch holds scratch_bytes, aligned to 64 bytes. Starts a team. */
void cpui_amx_product_run(const cpui_amx_product *self, const void *a, const void *b,
                          const void *bias, void *c, void *scratch);

#endif
