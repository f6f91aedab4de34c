/* The ops table: everything that a backend computes, as pure arithmetic on memory that the caller
 * provides.
 *
 * Each backend fills in one table: kernels_cpu, kernels_cuda, kernels_reference. src/model calls
 * the forward and backward ops, src/engine calls the optimizer and norm ops. Nothing here knows of
 * units, tiers, files or schedules.
 *
 * Rules for every op, unless its comment says otherwise
 *   - All pointers refer to memory of the backend's device. Arrays are row-major and aligned to 64
 *     bytes (256 on a GPU). They do not overlap, unless the comment says that they may or that the
 *     op works in place. The op borrows them until it is complete.
 *   - `type` is the working dtype: fp32 or bf16 (or fp16, if the backend supports it). Sums
 *     accumulate in fp32 or better. Gradients of parameters are ADDED to fp32 accumulators.
 *   - Apart from its inputs, a result depends only on shapes, dtypes and the thread count of the
 *     context. It does not depend on addresses, timing or earlier calls.
 *   - An op is enqueued on `stream`. On the CPU, stream is NULL and the op is complete on return.
 *     An op never allocates and never synchronizes. The caller provides the scratch; the matching
 *     *_bytes query gives its size.
 *   - An op returns 0, or a negative code with the error set (ERR_BACKEND if a library refused).
 *   - One thread at a time uses a context. The context may have worker threads of its own (OpenMP).
 *
 * Dimensions: B batch, T tokens of a sequence, C channels, H query heads, G key/value heads, D head
 * dimension (E: of v), V vocabulary, N = B*T rows. Element counts are 64-bit everywhere. */
#ifndef SLUICE_KERNELS_OPS_H
#define SLUICE_KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/words.h"
#include "kernels/ops_attention.h"
#include "kernels/ops_experts.h"
#include "kernels/ops_heads.h"
#include "kernels/ops_loss.h"
#include "kernels/ops_stored.h"
#include "kernels/ops_update.h"

typedef struct kernel_context kernel_context;     /* an instance of a backend, which defines it */
typedef struct kernel_matmul kernel_matmul;       /* a prepared matrix product */
typedef struct kernel_attention kernel_attention; /* a prepared attention */

enum { KERNEL_CHOICES_BYTES = 768 }; /* of product_choices */

struct kernel_context_config {
    int thread_count;    /* CPU: number of OpenMP threads that compute, > 0 */
    uint32_t device_idx; /* CUDA: index among the visible GPUs */
    /* CUDA: read_back calls it now and then while it waits. It returns 0, or a negative code that
     * ends the wait and is returned, for work on the stream that may never end. NULL: none. */
    int (*watch)(void *user);
    void *watch_user;
};
typedef struct kernel_context_config kernel_context_config;

/* C[m,n] = op(A)[m,k] * op(B)[k,n], optionally + bias[n], optionally added to C. A stride is the
 * distance between rows of the matrix as stored, in elements. */
struct matmul_desc {
    uint64_t m, n, k;
    bool a_transposed; /* A is stored [k,m] */
    bool b_transposed; /* B is stored [n,k] (a Linear's weight [out,in]) */
    uint64_t a_stride, b_stride, c_stride;
    enum dtype ab_type, c_type; /* c_type is ab_type or fp32 */
    bool has_bias;              /* bias has ab_type */
    bool accumulate;            /* C += ...; c_type fp32 */
};
typedef struct matmul_desc matmul_desc;

enum norm_kind {
    NORM_LAYER, /* (x - mean) * rstd * weight + bias */
    NORM_RMS    /* x * rstd * weight */
};

/* y = norm(x). If `residual` is not NULL, first sum = x + residual (rounded to `type`), then y =
 * norm(sum).
 *
 * All arithmetic is fp32, and y is rounded to `type` once, after weight and bias. Hugging Face's
 * Llama and its relatives round x * rstd first; Gemma, OLMo 2 and Cohere round as here. */
struct norm_args {
    enum norm_kind kind;
    enum dtype type;
    uint64_t rows, channels;
    /* Elements from row to row of input and output; 0: C. All other arrays are contiguous. */
    uint64_t stride;
    float epsilon;
    const void *input;    /* [rows, C] type */
    const void *residual; /* [rows, C] type or NULL; NULL if there is a stride */
    /* [rows, C] type, written if residual is given; without one it may still be given, for a copy
     * of the input, and then output may be input */
    void *sum;
    const void *weight; /* [C] type; NULL: 1 */
    bool adds_one;      /* the weight is 1 + the stored one */
    const void *bias;   /* [C] type; NULL: none; NULL for NORM_RMS */
    void *output;       /* [rows, C] type */
    float *mean;        /* [rows] fp32, written for NORM_LAYER; NULL for NORM_RMS */
    float *rstd;        /* [rows] fp32 */
};
typedef struct norm_args norm_args;

struct norm_grad_args {
    enum norm_kind kind;
    enum dtype type;
    uint64_t rows, channels;
    uint64_t stride; /* elements from row to row of output_grad and input_grad; 0: C */
    /* [rows, C] type, the values that were normalized (`sum` if a residual was given) */
    const void *input;
    const void *weight;      /* [C] type; NULL: 1 */
    bool adds_one;           /* as in norm_args */
    const float *mean;       /* [rows] or NULL */
    const float *rstd;       /* [rows] */
    const void *output_grad; /* [rows, C] type */
    /* [rows, C] type or NULL: added to input_grad (the skip connection); NULL if there is a
     * stride */
    const void *residual_grad;
    void *input_grad;   /* [rows, C] type, overwritten; may be output_grad or residual_grad */
    float *weight_grad; /* [C] fp32, +=; NULL: neither parameter gradient is wanted */
    float *bias_grad;   /* [C] fp32, +=; NULL: there is no bias, or weight_grad is NULL */
    void *scratch;      /* norm_grad_scratch_bytes */
};
typedef struct norm_grad_args norm_grad_args;

/* The token table may be given in parts. token_table then holds rows [row_begin, row_begin +
 * row_count) of the vocabulary, and rows of the output whose token lies outside the part do not
 * change. A call with token_table NULL adds the position rows to the output.
 *
 * Row b*T + t has the position position_first + t, or, where documents begin, position_first + t -
 * begins[b*T + t]. position_table holds positions [position_begin, position_begin +
 * position_count); rows with a position outside do not change.
 *
 * One call with both tables gives the same bits as one call for each part, first of the tokens,
 * then of the positions. */
struct embedding_args {
    enum dtype type;
    uint64_t batch, tokens, channels, vocab;
    uint64_t row_begin, row_count; /* row_count 0: the whole vocabulary (row_begin is 0 then) */
    const int32_t *token_ids;      /* [B,T], each in [0, V) */
    const void *token_table;       /* [row_count or V, C] type; NULL: add the positions only */
    /* [position_count or T, C] type or NULL. With a token table both must be whole. */
    const void *position_table;
    uint64_t position_first, position_begin, position_count; /* count 0: T */
    const int32_t *begins; /* as in rope_args: positions restart there; NULL: they do not */
    void *output;          /* [B,T,C] type */
};
typedef struct embedding_args embedding_args;

/* Parts work as above. token_table_grad holds the rows of the part; if it is NULL, only the
 * position gradient is computed. */
struct embedding_grad_args {
    enum dtype type;
    uint64_t batch, tokens, channels, vocab;
    uint64_t row_begin, row_count; /* row_count 0: the whole vocabulary */
    const int32_t *token_ids;
    const void *output_grad; /* [B,T,C] type */
    /* [row_count or V, C] fp32, += in the order of rows (no atomics); or NULL */
    float *token_table_grad;
    /* [position_count or T, C] fp32, += in the order of rows; or NULL */
    float *position_table_grad;
    uint64_t position_first, position_begin, position_count;
    void *scratch;         /* embedding_grad_scratch_bytes */
    const int32_t *begins; /* as in embedding_args */
};
typedef struct embedding_grad_args embedding_grad_args;

struct rope_table_args {
    float *table; /* [T, D/2, 2] fp32 (cos, sin), times the attention factor */
    /* head_dim: the elements of a head that are rotated, all D or the first ones */
    uint64_t tokens, head_dim;
    double theta;
    enum rope_scaling scaling;
    /* Each is read only if `scaling` needs it. */
    double factor, low_freq_factor, high_freq_factor, original_positions;
    uint64_t length; /* DYNAMIC, LONGROPE: tokens of a sequence; 0: those of the table */
    /* YARN: turns within the original positions; 0: 32 and 1. keeps_fraction: the bounds are not
     * rounded to whole pairs ("truncate": false). */
    double beta_fast, beta_slow;
    bool keeps_fraction;
    double attention_factor;       /* YARN, LONGROPE; 0: follows from the others */
    double mscale, mscale_all_dim; /* YARN, for the attention factor; 0: not given */
    /* LONGROPE: [D/2] in host memory, for sequences up to original_positions and for longer ones */
    const double *short_factors, *long_factors;
};
typedef struct rope_table_args rope_table_args;

/* The norm of single heads, in place. Each row has `heads` heads of D elements side by side, and
 * rows lie `stride` elements apart. All heads share one weight, or each has its own. Kinds, weights
 * and rounding are as in norm_args; there is no bias. With one head, D may be any width, so that
 * one norm takes all of q or k; D <= 256 with several.
 *
 * The forward op saves x in `before` and the statistics in `mean` and `rstd`. The backward op reads
 * them and replaces the gradient of y in `data` by the gradient of x. */
struct head_norm_args {
    enum dtype type;
    uint64_t rows, heads, head_dim;
    uint64_t stride;      /* elements between rows of data */
    float epsilon;        /* forward */
    bool is_layer;        /* NORM_LAYER; false: NORM_RMS */
    bool adds_one;        /* the weight is 1 + the stored one */
    bool weight_per_head; /* weight and weight_grad are [H, D] */
    const void *weight;   /* [D] type */
    void *data;           /* first head of row 0; forward: x becomes y; backward: dy becomes dx */
    void *before;         /* [rows, H, D] type, contiguous: x; the forward op writes it */
    float *mean;          /* [rows, H] fp32, as rstd; NULL unless is_layer */
    float *rstd;          /* [rows, H] fp32; the forward op writes it */
    float *weight_grad;   /* backward: [D] fp32, +=; NULL: not wanted */
    /* backward: head_norm_grad_scratch_bytes; with weight_per_head those of one head of H * D */
    void *scratch;
};
typedef struct head_norm_args head_norm_args;

/* Rotary positions, in place. Each row has `heads` heads of D elements side by side, and rows lie
 * `stride` elements apart. The first R elements of each head are rotated. The pair (i, i + R/2), or
 * (2i, 2i + 1) if interleaved, of position p is rotated by the angle p * theta^(-2i/R), whose
 * frequency rope_table_args may scale. Token t of a sequence has position t, or t less the token at
 * which its document begins. */
struct rope_args {
    enum dtype type;
    uint64_t batch, tokens, heads, head_dim;
    uint64_t stride;       /* elements between rows */
    uint64_t rotated;      /* R, even; 0: D */
    bool interleaved;      /* as in Cohere's models and GLM 4 */
    const int32_t *begins; /* [B,T]: where each token's document begins, in [0, t]; NULL: 0 */
    void *data;            /* first head of row 0 */
    const float *table;    /* [T, R/2, 2] fp32 (cos, sin) from rope_table */
    bool inverse;          /* rotate back: the backward pass */
};
typedef struct rope_args rope_args;

/* A plain activation maps input [rows, F] to output [rows, F]. A gated one has the input [rows, 2F]
 * = gate | up, and the output [rows, F] is f(gate) * up. */
enum activation_kind {
    ACTIVATION_GELU,      /* plain, tanh form: "gelu_new", "gelu_pytorch_tanh" */
    ACTIVATION_SWIGLU,    /* gated, f = silu */
    ACTIVATION_GELU_ERF,  /* plain, exact form: "gelu" */
    ACTIVATION_RELU,      /* plain */
    ACTIVATION_GEGLU,     /* gated, f = GELU in the tanh form */
    ACTIVATION_GEGLU_ERF, /* gated, f = GELU in the exact form */
    /* gated, as in gpt-oss: f(x) = v sigmoid(alpha v) with v = min(x, limit). `up` is limited to
     * [-limit, limit] and then increased by 1. Beyond a limit, the gradient is 0. */
    ACTIVATION_SWIGLU_CLAMPED,
    ACTIVATION_KIND_COUNT
};

static inline bool activation_is_gated(enum activation_kind kind)
{
    return kind == ACTIVATION_SWIGLU || kind == ACTIVATION_GEGLU || kind == ACTIVATION_GEGLU_ERF ||
           kind == ACTIVATION_SWIGLU_CLAMPED;
}

struct activation_args {
    enum activation_kind kind;
    enum dtype type;
    uint64_t rows, features; /* F */
    float alpha, limit;      /* ACTIVATION_SWIGLU_CLAMPED; limit > 0 */
    const void *input;
    void *output;            /* forward */
    const void *output_grad; /* backward: [rows, F] */
    void *input_grad;        /* backward: same shape as input, and may be input */
};
typedef struct activation_args activation_args;

/* target = scale * source, or target += scale * source, on rows that may lie apart. Product and sum
 * are rounded to fp32 each, and then the result to `type`. */
struct scale_rows_args {
    enum dtype type;
    uint64_t rows, columns;
    float scale;
    bool accumulates;
    const void *source; /* [rows, columns] type */
    void *target;       /* [rows, columns] type; may be source if the strides are equal */
    uint64_t source_stride, target_stride; /* elements from row to row, at least `columns` */
};
typedef struct scale_rows_args scale_rows_args;

/* A multiplier as a tensor of `type` would hold it. Gemma's sqrt(C) of embeddings is one. */
static inline float scale_of_type(enum dtype type, double scale)
{
    float value = (float)scale;
    if (type == DTYPE_BF16)
        return fp32_from_bf16(bf16_from_fp32(value));
    return type == DTYPE_FP16 ? fp32_from_fp16(fp16_from_fp32(value)) : value;
}

/* Dropout: target = source * 1 / (1 - p), or 0 where the element is dropped. The backward pass is
 * the same op on the gradients: kernels/dropout_mask.h finds the same elements again. The product
 * is rounded to fp32, then to `type`.
 *
 * A call has the rows [row_begin, row_begin + rows) of a micro-batch of sequences of T rows. The
 * mask does not depend on the cut. `counter` is memory of the device, so that a recorded launch may
 * be replayed with another step. */
struct dropout_args {
    enum dtype type;
    uint64_t rows, columns;
    const void *source; /* [rows, columns] type */
    void *target;       /* [rows, columns] type; may be source */
    float probability;  /* p in [0, 1) */
    uint64_t seed;      /* of the run */
    uint32_t site;      /* number of the place in the model, below 2^23 */
    /* [2]: the step, and the number in the global batch of the micro-batch's first sequence */
    const uint32_t *counter;
    uint64_t tokens;    /* T */
    uint64_t row_begin; /* 0 if the call has all */
};
typedef struct dropout_args dropout_args;

enum { KERNEL_READ_BACK_BYTES = 8192 };

/* Copies rows of device memory to the host, where they lie end to end, and blocks until that and
 * all work before it on the stream is done. It is for the few numbers that the host must know to go
 * on. One call for all of them costs one wait. */
struct read_back_args {
    const void *source; /* [rows][row_bytes], stride_bytes apart */
    void *target;       /* [rows][row_bytes], host; at most KERNEL_READ_BACK_BYTES in all */
    uint64_t rows, row_bytes;
    uint64_t stride_bytes; /* at least row_bytes; 0: row_bytes */
};
typedef struct read_back_args read_back_args;

static inline uint64_t norm_stride(const norm_args *args)
{
    return args->stride ? args->stride : args->channels;
}

static inline uint64_t norm_grad_stride(const norm_grad_args *args)
{
    return args->stride ? args->stride : args->channels;
}

static inline uint64_t read_back_stride(const read_back_args *args)
{
    return args->stride_bytes ? args->stride_bytes : args->row_bytes;
}

/* read_back of backends whose memory the host can read. */
static inline int read_back_host(const read_back_args *args)
{
    for (uint64_t i = 0; i < args->rows; i++)
        memcpy((char *)args->target + i * args->row_bytes,
               (const char *)args->source + i * read_back_stride(args), args->row_bytes);
    return 0;
}

struct kernel_ops {
    const char *name; /* "cpu", "cuda", "reference" */

    /* Creates an instance of the backend. It may allocate. ERR_BACKEND if the machine cannot run
     * it. */
    int (*context_create)(const kernel_context_config *config, kernel_context **context) MUST_CHECK;
    void (*context_destroy)(kernel_context *context);
    /* One line for the log: device or instruction set, libraries and versions. It is valid as long
     * as the context. */
    const char *(*describe)(const kernel_context *context);

    /* For a backend that has several algorithms for a matrix product; NULL in the others.
     * choose_products, called before any product is made, hands over the choices of an earlier
     * context on the same kind of device, as product_choices returned them, or "". Shapes that they
     * do not name take the first algorithm that runs or, if `tries`, the fastest in a trial, which
     * takes tens of milliseconds a shape. Another algorithm gives other bits. product_choices is
     * valid as long as the context. ERR_INPUT for a text that is none. */
    int (*choose_products)(kernel_context *context, const char *choices, bool tries) MUST_CHECK;
    const char *(*product_choices)(const kernel_context *context);

    /* Prepared products and attention: create does all the compiling and allocating that a library
     * needs. A prepared object uses its context, so it is destroyed first. Every destroy function
     * accepts NULL. */
    int (*matmul_create)(kernel_context *context, const matmul_desc *desc,
                         kernel_matmul **product) MUST_CHECK;
    void (*matmul_destroy)(kernel_matmul *product);
    size_t (*matmul_scratch_bytes)(const kernel_matmul *product);
    int (*matmul)(kernel_matmul *product, void *stream, const void *a, const void *b,
                  const void *bias, void *c, void *scratch) MUST_CHECK;

    int (*attention_create)(kernel_context *context, const attention_desc *desc,
                            kernel_attention **attention) MUST_CHECK;
    void (*attention_destroy)(kernel_attention *attention);
    size_t (*attention_forward_scratch_bytes)(const kernel_attention *attention);
    size_t (*attention_backward_scratch_bytes)(const kernel_attention *attention);
    /* Sets the documents of the calls that follow, forward and backward. begins [B,T] int32, in
     * device memory: for each row the position in its sequence at which the row's document begins.
     * A query sees only keys of its own document. NULL, which is the state after create: each
     * sequence is one document. The array is read when a call computes, and must be valid until
     * then. Its first element of a sequence is 0, and no element is below the one before it. */
    void (*attention_set_documents)(kernel_attention *attention, const int32_t *begins);
    /* Sets the masks of the calls that follow, forward and backward. NULL, which is the state after
     * create: nothing is dropped. */
    void (*attention_set_dropout)(kernel_attention *attention, const attention_dropout *masks);
    /* lse: [B,H,T] fp32, the logarithm of the softmax denominator of each row of scaled scores. */
    int (*attention_forward)(kernel_attention *attention, void *stream, const void *q,
                             const void *k, const void *v, void *output, float *lse,
                             void *scratch) MUST_CHECK;
    /* The gradients have the layout of q, k and v (same stride) and are overwritten. */
    int (*attention_backward)(kernel_attention *attention, void *stream, const void *q,
                              const void *k, const void *v, const void *output, const float *lse,
                              const void *output_grad, void *q_grad, void *k_grad, void *v_grad,
                              void *scratch) MUST_CHECK;

    int (*attention_cached)(kernel_context *context, void *stream,
                            const attention_cached_args *args) MUST_CHECK;
    /* Before and after attention, as ops_heads.h describes them. */
    int (*attention_sinks)(kernel_context *context, void *stream,
                           const attention_sinks_args *args) MUST_CHECK;
    int (*attention_sinks_backward)(kernel_context *context, void *stream,
                                    const attention_sinks_args *args) MUST_CHECK;
    int (*heads_join)(kernel_context *context, void *stream,
                      const heads_join_args *args) MUST_CHECK;
    int (*heads_split)(kernel_context *context, void *stream,
                       const heads_join_args *args) MUST_CHECK;

    int (*norm_forward)(kernel_context *context, void *stream, const norm_args *args) MUST_CHECK;
    size_t (*norm_grad_scratch_bytes)(kernel_context *context, uint64_t rows, uint64_t channels);
    int (*norm_backward)(kernel_context *context, void *stream,
                         const norm_grad_args *args) MUST_CHECK;

    int (*embedding_forward)(kernel_context *context, void *stream,
                             const embedding_args *args) MUST_CHECK;
    size_t (*embedding_grad_scratch_bytes)(kernel_context *context, uint64_t rows, uint64_t vocab);
    int (*embedding_backward)(kernel_context *context, void *stream,
                              const embedding_grad_args *args) MUST_CHECK;

    int (*head_norm_forward)(kernel_context *context, void *stream,
                             const head_norm_args *args) MUST_CHECK;
    size_t (*head_norm_grad_scratch_bytes)(kernel_context *context, uint64_t rows, uint64_t heads,
                                           uint64_t head_dim);
    int (*head_norm_backward)(kernel_context *context, void *stream,
                              const head_norm_args *args) MUST_CHECK;

    /* Fills the table. Angles are computed in double and each result is rounded once. */
    int (*rope_table)(kernel_context *context, void *stream,
                      const rope_table_args *args) MUST_CHECK;
    int (*rope)(kernel_context *context, void *stream, const rope_args *args) MUST_CHECK;

    int (*activation_forward)(kernel_context *context, void *stream,
                              const activation_args *args) MUST_CHECK;
    int (*activation_backward)(kernel_context *context, void *stream,
                               const activation_args *args) MUST_CHECK;

    /* out[count] = a + b, rounded to type; out may be a or b. */
    int (*add)(kernel_context *context, void *stream, enum dtype type, uint64_t count,
               const void *a, const void *b, void *out) MUST_CHECK;
    int (*scale_rows)(kernel_context *context, void *stream,
                      const scale_rows_args *args) MUST_CHECK;
    int (*dropout)(kernel_context *context, void *stream, const dropout_args *args) MUST_CHECK;
    /* bias_grad[n] += column sums of output_grad [rows, n] type, in a fixed order. Its rows lie
     * `stride` elements apart; the op does not read the gap after a row. */
    int (*bias_backward)(kernel_context *context, void *stream, enum dtype type, uint64_t rows,
                         uint64_t n, uint64_t stride, const void *output_grad, float *bias_grad,
                         void *scratch) MUST_CHECK;
    size_t (*bias_backward_scratch_bytes)(kernel_context *context, uint64_t rows, uint64_t n);

    int (*cross_entropy)(kernel_context *context, void *stream,
                         const cross_entropy_args *args) MUST_CHECK;
    /* The same over parts of the vocabulary, as softmax_part_args describes. */
    int (*softmax_part)(kernel_context *context, void *stream,
                        const softmax_part_args *args) MUST_CHECK;
    int (*softmax_losses)(kernel_context *context, void *stream,
                          const softmax_part_args *args) MUST_CHECK;
    int (*cross_entropy_part)(kernel_context *context, void *stream,
                              const softmax_part_args *args) MUST_CHECK;

    /* Mixtures of experts, as ops_experts.h describes them. */
    int (*router_forward)(kernel_context *context, void *stream,
                          const router_args *args) MUST_CHECK;
    int (*router_backward)(kernel_context *context, void *stream,
                           const router_args *args) MUST_CHECK;
    int (*router_sums)(kernel_context *context, void *stream,
                       const router_sums_args *args) MUST_CHECK;
    size_t (*router_sums_scratch_bytes)(kernel_context *context, uint64_t rows, uint64_t experts);
    int (*experts_sort)(kernel_context *context, void *stream,
                        const experts_sort_args *args) MUST_CHECK;
    int (*experts_gather)(kernel_context *context, void *stream,
                          const experts_rows_args *args) MUST_CHECK;
    int (*experts_combine)(kernel_context *context, void *stream,
                           const experts_rows_args *args) MUST_CHECK;
    int (*experts_weights_backward)(kernel_context *context, void *stream,
                                    const experts_rows_args *args) MUST_CHECK;

    /* Stored formats, as ops_stored.h describes them. The CUDA backend cannot quantize (NULL).
     * stored_quantize: ERR_INPUT if a value is NaN or infinite. stored_double writes scales [count]
     * to `target` with double quantization; the scales are >= 0 and finite. */
    int (*stored_expand)(kernel_context *context, void *stream,
                         const stored_expand_args *args) MUST_CHECK;
    int (*stored_quantize)(kernel_context *context, void *stream,
                           const stored_quantize_args *args) MUST_CHECK;
    int (*stored_double)(kernel_context *context, void *stream, const float *scales, uint64_t count,
                         void *target) MUST_CHECK;

    int (*zero)(kernel_context *context, void *stream, void *data, uint64_t bytes) MUST_CHECK;
    int (*read_back)(kernel_context *context, void *stream, const read_back_args *args) MUST_CHECK;
    int (*convert)(kernel_context *context, void *stream, const void *source,
                   enum dtype source_type, void *target, enum dtype target_type,
                   uint64_t count) MUST_CHECK;

    int (*grad_close)(kernel_context *context, void *stream,
                      const grad_close_args *args) MUST_CHECK;
    /* *total = sum of sums[0..count), in a fixed binary tree over the index. CUDA: total is pinned
     * host memory or device memory. */
    int (*norm_reduce)(kernel_context *context, void *stream, const double *sums, uint64_t count,
                       double *total) MUST_CHECK;

    int (*update)(kernel_context *context, void *stream, const update_args *args) MUST_CHECK;
    /* NULL in backends that cannot: the CUDA backend. */
    int (*muon_direction)(kernel_context *context, void *stream, const muon_args *args) MUST_CHECK;
    int (*muon)(kernel_context *context, void *stream, const muon_args *args) MUST_CHECK;
    size_t (*orthogonalize_scratch_bytes)(const kernel_context *context, uint64_t rows,
                                          uint64_t columns);
    int (*orthogonalize)(kernel_context *context, void *stream,
                         const orthogonalize_args *args) MUST_CHECK;
    /* params[count] = working copy of master: bf16 by bf16_working_copy, fp16 to nearest even, or
     * fp32. */
    int (*working_copy)(kernel_context *context, void *stream, const float *master, void *params,
                        enum dtype param_type, uint64_t count) MUST_CHECK;
};
typedef struct kernel_ops kernel_ops;

/* The type of a function of the table: `KERNEL_OP(rope) cpui_rope MUST_CHECK;` declares
 * a backend's rope. */
#define KERNEL_OP(name) __typeof__(*((const kernel_ops *)NULL)->name)

/* The CPU backend: matrix products by oneDNN or our own, and our own loops, compiled once per
 * instruction set. */
extern const kernel_ops kernels_cpu;

/* Plain C in double precision, on one thread, slow. The other backends are tested against it, and a
 * plan for a described machine takes scratch sizes from it. No op reads the context, so any context
 * or NULL is valid. */
extern const kernel_ops kernels_reference;

/* The CUDA backend's table, or NULL if this build has no CUDA. */
const kernel_ops *kernels_cuda(void);

#endif
