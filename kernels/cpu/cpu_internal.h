/* Shared by the files of the CPU backend: its context, and the functions that fill its ops table.
 * Only these files, their tests and benchmarks use names that begin with cpui_.
 *
 * There are four groups of ops:
 *   products   matrix products and attention: by oneDNN, or by our own loops, which are faster for
 *              large shapes, on AMX, and for the blocks of attention in bf16
 *   rows       norms, embedding, activations, loss, routers and rows of experts, conversions; one
 *              loop body, compiled once per instruction set, with results that are equal to the bit
 *   optimizer  Adam, Lion, Adagrad, working copies, gradient closing; compiled in the same way
 *   Muon       its products are our own too (muon.c) */
#ifndef SLUICE_CPU_INTERNAL_H
#define SLUICE_CPU_INTERNAL_H

#include "base/cpu.h"
#include "base/size.h"
#include "kernels/ops.h"

struct adam_variant; /* adam.c */
struct rows_table;   /* rows.c */
struct rows_lookup;  /* rows_lookup.c */

struct kernel_context {
    int thread_count;
    enum cpu_isa isa; /* the isa of the process; tests and benchmarks set others */
    const struct rows_table *rows;
    struct rows_lookup *lookup;      /* NULL: bf16 activations are computed, not looked up */
    const struct adam_variant *adam; /* the best variant that the isa allows */
    void *engine, *stream;           /* dnnl_engine_t, dnnl_stream_t */
    /* [thread_count] dnnl_stream_t, one for each thread of a parallel region */
    void **worker_streams;
    bool has_bf16_products; /* oneDNN has a usable bf16 matrix product on this CPU */
    bool has_amx;           /* the isa is AMX and the build has code for it */
    char description[256];
};

/* The threads for so many blocks of about 2 us each: for fewer than 8, starting workers costs more
 * than it saves. */
static inline int cpui_threads_for(const kernel_context *context, uint64_t block_count)
{
    return block_count < 8 ? 1 : context->thread_count;
}

/* The threads for a product or an attention of so many floating-point operations (of its forward),
 * which reads and writes so many bytes: one, if a core at 100 GFLOP/s is done in some 40 us and the
 * operands fit into its cache. On two cores that other programs used too, waking the second thread
 * and waiting for it took as long. */
static inline int cpui_threads_for_flops(const kernel_context *context, double flops, double bytes)
{
    return flops < 4e6 && bytes < 256 * 1024 ? 1 : context->thread_count;
}

/* The next bytes of scratch, aligned to 64; `base` NULL: only counts them. */
static inline void *cpui_take(char *base, size_t *offset, uint64_t bytes)
{
    char *part = base ? base + *offset : NULL;
    *offset += size_round_up(bytes, 64);
    return part;
}

/* product.c. Creates the oneDNN engine and the streams of a context; reads thread_count and sets
 * has_bf16_products. If SLUICE_ISA names an instruction set, the first call in a process limits
 * oneDNN to it. ERR_BACKEND if that fails. */
int cpui_engine_create(kernel_context *context) MUST_CHECK;
void cpui_engine_destroy(kernel_context *context);
const char *cpui_engine_version(void); /* "oneDNN 2.6.3"; static storage */

/* One oneDNN product. desc is as for matmul, but fp16 is refused and bf16 needs has_bf16_products.
 *   threads   number of threads that one execution uses: 1, or the context's count
 *   slots     number of executions that may run at the same time, each with its own slot number and
 *             scratch
 * The bits of a product depend on desc and `threads`. ERR_BACKEND if oneDNN refuses the product or
 * offers only its reference loop, which is too slow to use. */
typedef struct cpui_product cpui_product;
int cpui_product_create(kernel_context *context, const matmul_desc *desc, int threads, int slots,
                        cpui_product **product) MUST_CHECK;
void cpui_product_destroy(cpui_product *product); /* NULL is allowed */
size_t cpui_product_scratch_bytes(const cpui_product *product);
/* Returns a dnnl_status_t, 0 on success. It sets no error, so a worker thread may call it. The
 * OpenMP thread count of the calling thread must be `threads`. scratch is aligned to 64 bytes. */
int cpui_product_run(const cpui_product *product, int slot, const void *a, const void *b,
                     const void *bias, void *c, void *scratch);
/* Turns such a status into ERR_BACKEND; the message has the shape of the product. */
int cpui_product_failed(const cpui_product *product, int status);

/* matmul.c */
KERNEL_OP(matmul_create) cpui_matmul_create MUST_CHECK;
KERNEL_OP(matmul_destroy) cpui_matmul_destroy;
KERNEL_OP(matmul_scratch_bytes) cpui_matmul_scratch_bytes;
KERNEL_OP(matmul) cpui_matmul MUST_CHECK;

/* attention.c */
KERNEL_OP(attention_create) cpui_attention_create MUST_CHECK;
KERNEL_OP(attention_destroy) cpui_attention_destroy;
KERNEL_OP(attention_set_documents) cpui_attention_set_documents;
KERNEL_OP(attention_set_dropout) cpui_attention_set_dropout;
KERNEL_OP(attention_forward_scratch_bytes) cpui_attention_forward_scratch_bytes;
KERNEL_OP(attention_backward_scratch_bytes) cpui_attention_backward_scratch_bytes;
KERNEL_OP(attention_forward) cpui_attention_forward MUST_CHECK;
KERNEL_OP(attention_backward) cpui_attention_backward MUST_CHECK;

KERNEL_OP(attention_cached) cpui_attention_cached MUST_CHECK;

/* rows.c. Chooses the table for the context's isa; the row ops call through it. */
void cpui_rows_select(kernel_context *context);
/* rows_lookup.c. Creates the tables for bf16 activations, 1.25 MiB. Call it after
 * cpui_rows_select. */
int cpui_rows_lookup_create(kernel_context *context) MUST_CHECK;
void cpui_rows_lookup_destroy(kernel_context *context);
KERNEL_OP(norm_forward) cpui_norm_forward MUST_CHECK;
KERNEL_OP(norm_grad_scratch_bytes) cpui_norm_grad_scratch_bytes;
KERNEL_OP(norm_backward) cpui_norm_backward MUST_CHECK;
KERNEL_OP(embedding_forward) cpui_embedding_forward MUST_CHECK;
KERNEL_OP(embedding_grad_scratch_bytes) cpui_embedding_grad_scratch_bytes;
KERNEL_OP(embedding_backward) cpui_embedding_backward MUST_CHECK;
KERNEL_OP(head_norm_forward) cpui_head_norm_forward MUST_CHECK;
KERNEL_OP(head_norm_grad_scratch_bytes) cpui_head_norm_grad_scratch_bytes;
KERNEL_OP(head_norm_backward) cpui_head_norm_backward MUST_CHECK;
KERNEL_OP(rope_table) cpui_rope_table MUST_CHECK;
KERNEL_OP(rope) cpui_rope MUST_CHECK;
KERNEL_OP(activation_forward) cpui_activation_forward MUST_CHECK;
KERNEL_OP(activation_backward) cpui_activation_backward MUST_CHECK;
KERNEL_OP(scale_rows) cpui_scale_rows MUST_CHECK;
KERNEL_OP(dropout) cpui_dropout MUST_CHECK;
KERNEL_OP(add) cpui_add MUST_CHECK;
KERNEL_OP(bias_backward) cpui_bias_backward MUST_CHECK;
KERNEL_OP(bias_backward_scratch_bytes) cpui_bias_backward_scratch_bytes;
KERNEL_OP(attention_sinks) cpui_attention_sinks MUST_CHECK;
KERNEL_OP(attention_sinks_backward) cpui_attention_sinks_backward MUST_CHECK;
KERNEL_OP(heads_join) cpui_heads_join MUST_CHECK;
KERNEL_OP(heads_split) cpui_heads_split MUST_CHECK;
KERNEL_OP(cross_entropy) cpui_cross_entropy MUST_CHECK;
KERNEL_OP(softmax_part) cpui_softmax_part MUST_CHECK;
KERNEL_OP(softmax_losses) cpui_softmax_losses MUST_CHECK;
KERNEL_OP(cross_entropy_part) cpui_cross_entropy_part MUST_CHECK;
KERNEL_OP(zero) cpui_zero MUST_CHECK;
KERNEL_OP(read_back) cpui_read_back MUST_CHECK;
KERNEL_OP(convert) cpui_convert MUST_CHECK;

/* experts.c */
KERNEL_OP(router_forward) cpui_router_forward MUST_CHECK;
KERNEL_OP(router_backward) cpui_router_backward MUST_CHECK;
KERNEL_OP(router_sums) cpui_router_sums MUST_CHECK;
KERNEL_OP(router_sums_scratch_bytes) cpui_router_sums_scratch_bytes;
KERNEL_OP(experts_sort) cpui_experts_sort MUST_CHECK;
KERNEL_OP(experts_gather) cpui_experts_gather MUST_CHECK;
KERNEL_OP(experts_combine) cpui_experts_combine MUST_CHECK;
KERNEL_OP(experts_weights_backward) cpui_experts_weights_backward MUST_CHECK;

/* stored.c */
KERNEL_OP(stored_expand) cpui_stored_expand MUST_CHECK;
KERNEL_OP(stored_quantize) cpui_stored_quantize MUST_CHECK;
KERNEL_OP(stored_double) cpui_stored_double MUST_CHECK;

/* adam.c. Chooses the variant for the context's isa. */
void cpui_adam_select(kernel_context *context);
const char *cpui_adam_name(const kernel_context *context);
KERNEL_OP(update) cpui_update MUST_CHECK;
KERNEL_OP(working_copy) cpui_working_copy MUST_CHECK;
KERNEL_OP(grad_close) cpui_grad_close MUST_CHECK;
KERNEL_OP(norm_reduce) cpui_norm_reduce MUST_CHECK;

/* muon.c */
KERNEL_OP(muon_direction) cpui_muon_direction MUST_CHECK;
KERNEL_OP(muon) cpui_muon MUST_CHECK;
KERNEL_OP(orthogonalize_scratch_bytes) cpui_orthogonalize_scratch_bytes;
KERNEL_OP(orthogonalize) cpui_orthogonalize MUST_CHECK;

#endif
