/* Shared by the files of the CPU backend: its context, and the functions that fill its ops table.
 * Only these files, their tests and benchmarks use names that begin with cpui_.
 *
 * There are three groups of ops:
 *   products   matrix products and attention: by oneDNN, or by our own loops, which are faster for
 *              large shapes and on AMX
 *   rows       norms, embedding, activations, loss, conversions; one loop body, compiled once per
 *              instruction set, with results that are equal to the bit
 *   optimizer  Adam, Lion, Adagrad, working copies, gradient closing; compiled in the same way */
#ifndef SLUICE_CPU_INTERNAL_H
#define SLUICE_CPU_INTERNAL_H

#include "base/cpu.h"
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
int cpui_matmul_check(const matmul_desc *desc) MUST_CHECK; /* ERR_BACKEND for impossible shapes */
int cpui_matmul_create(kernel_context *context, const matmul_desc *desc,
                       kernel_matmul **product) MUST_CHECK;
void cpui_matmul_destroy(kernel_matmul *product);
size_t cpui_matmul_scratch_bytes(const kernel_matmul *product);
int cpui_matmul(kernel_matmul *product, void *stream, const void *a, const void *b,
                const void *bias, void *c, void *scratch) MUST_CHECK;

/* attention.c */
int cpui_attention_create(kernel_context *context, const attention_desc *desc,
                          kernel_attention **attention) MUST_CHECK;
void cpui_attention_destroy(kernel_attention *attention);
size_t cpui_attention_forward_scratch_bytes(const kernel_attention *attention);
size_t cpui_attention_backward_scratch_bytes(const kernel_attention *attention);
int cpui_attention_forward(kernel_attention *attention, void *stream, const void *q, const void *k,
                           const void *v, void *output, float *lse, void *scratch) MUST_CHECK;
int cpui_attention_backward(kernel_attention *attention, void *stream, const void *q, const void *k,
                            const void *v, const void *output, const float *lse,
                            const void *output_grad, void *q_grad, void *k_grad, void *v_grad,
                            void *scratch) MUST_CHECK;

/* attention_cached.c */
int cpui_attention_cached(kernel_context *context, void *stream,
                          const attention_cached_args *args) MUST_CHECK;

/* rows.c. Chooses the table for the context's isa; the row ops call through it. */
void cpui_rows_select(kernel_context *context);
/* rows_lookup.c. Creates the tables for bf16 activations, 1.25 MiB. Call it after
 * cpui_rows_select. */
int cpui_rows_lookup_create(kernel_context *context) MUST_CHECK;
void cpui_rows_lookup_destroy(kernel_context *context);
int cpui_norm_forward(kernel_context *context, void *stream, const norm_args *args) MUST_CHECK;
size_t cpui_norm_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t channels);
int cpui_norm_backward(kernel_context *context, void *stream,
                       const norm_grad_args *args) MUST_CHECK;
int cpui_embedding_forward(kernel_context *context, void *stream,
                           const embedding_args *args) MUST_CHECK;
size_t cpui_embedding_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t vocab);
int cpui_embedding_backward(kernel_context *context, void *stream,
                            const embedding_grad_args *args) MUST_CHECK;
int cpui_head_norm_forward(kernel_context *context, void *stream,
                           const head_norm_args *args) MUST_CHECK;
size_t cpui_head_norm_grad_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t heads,
                                         uint64_t head_dim);
int cpui_head_norm_backward(kernel_context *context, void *stream,
                            const head_norm_args *args) MUST_CHECK;
int cpui_rope_table(kernel_context *context, void *stream, const rope_table_args *args) MUST_CHECK;
int cpui_rope(kernel_context *context, void *stream, const rope_args *args) MUST_CHECK;
int cpui_activation_forward(kernel_context *context, void *stream,
                            const activation_args *args) MUST_CHECK;
int cpui_activation_backward(kernel_context *context, void *stream,
                             const activation_args *args) MUST_CHECK;
int cpui_scale_rows(kernel_context *context, void *stream, const scale_rows_args *args) MUST_CHECK;
int cpui_add(kernel_context *context, void *stream, enum dtype type, uint64_t count, const void *a,
             const void *b, void *out) MUST_CHECK;
int cpui_bias_backward(kernel_context *context, void *stream, enum dtype type, uint64_t rows,
                       uint64_t n, const void *output_grad, float *bias_grad,
                       void *scratch) MUST_CHECK;
size_t cpui_bias_backward_scratch_bytes(kernel_context *context, uint64_t rows, uint64_t n);
int cpui_cross_entropy(kernel_context *context, void *stream,
                       const cross_entropy_args *args) MUST_CHECK;
int cpui_softmax_part(kernel_context *context, void *stream,
                      const softmax_part_args *args) MUST_CHECK;
int cpui_softmax_losses(kernel_context *context, void *stream,
                        const softmax_part_args *args) MUST_CHECK;
int cpui_cross_entropy_part(kernel_context *context, void *stream,
                            const softmax_part_args *args) MUST_CHECK;
int cpui_zero(kernel_context *context, void *stream, void *data, uint64_t bytes) MUST_CHECK;
int cpui_convert(kernel_context *context, void *stream, const void *source, enum dtype source_type,
                 void *target, enum dtype target_type, uint64_t count) MUST_CHECK;

/* adam.c. Chooses the variant for the context's isa. */
void cpui_adam_select(kernel_context *context);
const char *cpui_adam_name(const kernel_context *context);
int cpui_adam(kernel_context *context, void *stream, const adam_args *args) MUST_CHECK;
int cpui_adam_packed(kernel_context *context, void *stream,
                     const adam_packed_args *args) MUST_CHECK; /* adam_state.c */
int cpui_lion(kernel_context *context, void *stream, const lion_args *args) MUST_CHECK;
int cpui_adagrad(kernel_context *context, void *stream, const adagrad_args *args) MUST_CHECK;
int cpui_working_copy(kernel_context *context, void *stream, const float *master, void *params,
                      enum dtype param_type, uint64_t count) MUST_CHECK;
int cpui_grad_close(kernel_context *context, void *stream, const grad_close_args *args) MUST_CHECK;
int cpui_norm_reduce(kernel_context *context, void *stream, const double *sums, uint64_t count,
                     double *total) MUST_CHECK;

#endif
