/* The ops table: everything a backend computes, as pure arithmetic on memory that the caller gives.
 *
 * One table per backend (kernels_cpu, kernels_cuda, kernels_reference). src/model calls the forward
 * and backward ops, src/train the optimizer and norm ops; nothing here knows of units, tiers, files
 * or schedules.
 *
 * Rules for every op, unless its comment says otherwise
 *  - All pointers are memory of the backend's device, aligned to 64 bytes (256 on a GPU), row-major,
 *    not overlapping unless named as in place. They are borrowed until the op is complete.
 *  - `type` is the working dtype: fp32 or bf16 (fp16 where the backend says so). Sums accumulate in
 *    fp32 or better; gradients of parameters are ADDED to fp32 accumulators.
 *  - Results depend on shapes, dtypes and the thread count of the context alone: not on addresses,
 *    timing or earlier calls.
 *  - An op is enqueued on `stream` (NULL on the CPU, where it is complete on return); it never
 *    allocates and never synchronizes. Scratch comes from the caller, its size from the *_bytes query.
 *  - Returns 0, or a negative code with the error set (ERR_BACKEND when a library refused).
 *  - A context is used by one thread at a time; it may use worker threads of its own (OpenMP).
 *
 * Dimensions: B batch, T tokens of a sequence, C channels, H query heads, G key/value heads, D head
 * dimension, V vocabulary, N = B*T rows. Element counts are 64-bit everywhere. */
#ifndef SLUICE_KERNELS_OPS_H
#define SLUICE_KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/words.h"

typedef struct kernel_context kernel_context;     /* a backend instance; each backend has its own */
typedef struct kernel_matmul kernel_matmul;       /* a prepared matrix product */
typedef struct kernel_attention kernel_attention; /* a prepared attention */

struct kernel_context_config {
    int thread_count;    /* CPU: OpenMP threads of computing, > 0 */
    uint32_t device_idx; /* CUDA: which GPU of those visible */
};
typedef struct kernel_context_config kernel_context_config;

/* C[m,n] = op(A)[m,k] * op(B)[k,n], optionally + bias[n], optionally added to C.
 * Strides are row strides in elements of the matrices as stored. */
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

/* Causal attention over packed projections. Row r = b*T + t of q, k and v starts at
 * base + r*qkv_stride elements; head h of q at h*D within the row, head g of k and v at g*D. Query
 * head h reads key/value head h / (H/G). Output rows are H*D elements, contiguous. */
struct attention_desc {
    uint64_t batch, tokens, heads, kv_heads, head_dim; /* H % G == 0, D <= 256 */
    uint64_t qkv_stride;                               /* elements */
    enum dtype type;
    float scale; /* of the scores, 1/sqrt(D) in the published models */
};
typedef struct attention_desc attention_desc;

/* Attention of new positions of one sequence over those before them, whose keys and values are
 * kept:
 *
 *   keys, values [G, capacity, D]   positions [0, begin) are there; k and v of the new ones are put behind them
 *   row r of q, at position begin + r, attends to positions [0, begin + r]
 *
 * Layouts of q, k, v and output as in attention_desc, of one sequence. Scores, probabilities and
 * sums are fp32 or better whatever the type, so that results differ from attention_forward's by the
 * rounding of probabilities. Those of a row depend on its own q and on the positions it attends to,
 * not on how many rows a call has. */
struct attention_cached_args {
    enum dtype type;
    uint64_t rows, begin, capacity; /* begin + rows <= capacity */
    uint64_t heads, kv_heads, head_dim, qkv_stride;
    float scale;
    const void *q, *k, *v; /* rows of qkv_stride elements */
    void *keys, *values; /* aligned as all else, or to the elements where G * capacity * D is not */
    void *output;        /* [rows, H*D] type */
};
typedef struct attention_cached_args attention_cached_args;

enum norm_kind {
    NORM_LAYER, /* (x - mean) * rstd * weight + bias */
    NORM_RMS    /* x * rstd * weight */
};

/* y = norm(x). With `residual` not NULL first sum = x + residual (rounded to `type`), y =
 * norm(sum). */
struct norm_args {
    enum norm_kind kind;
    enum dtype type;
    uint64_t rows, channels;
    float epsilon;
    const void *input;    /* [rows, C] type */
    const void *residual; /* [rows, C] type or NULL */
    void *sum;            /* [rows, C] type, written iff residual is given */
    const void *weight;   /* [C] type */
    const void *bias;     /* [C] type; NULL for NORM_RMS */
    void *output;         /* [rows, C] type */
    float *mean;          /* [rows] fp32, written for NORM_LAYER; else NULL */
    float *rstd;          /* [rows] fp32 */
};
typedef struct norm_args norm_args;

struct norm_grad_args {
    enum norm_kind kind;
    enum dtype type;
    uint64_t rows, channels;
    const void *input;       /* [rows, C] type: what was normalized (the sum) */
    const void *weight;      /* [C] type */
    const float *mean;       /* [rows] or NULL */
    const float *rstd;       /* [rows] */
    const void *output_grad; /* [rows, C] type */
    const void
        *residual_grad; /* [rows, C] type or NULL: added to input_grad (the skip connection) */
    void *input_grad;   /* [rows, C] type, overwritten; may be output_grad or residual_grad */
    float *weight_grad; /* [C] fp32, += ; NULL: neither is wanted */
    float *bias_grad;   /* [C] fp32, += ; NULL for NORM_RMS and without weight_grad */
    void *scratch;      /* norm_grad_scratch_bytes */
};
typedef struct norm_grad_args norm_grad_args;

/* A table may be given in parts: token_table then holds rows [row_begin, row_begin + row_count) of
 * the vocabulary, and rows of the output whose token lies elsewhere are left as they are. A call
 * with token_table NULL adds the position rows to what the output holds. One call with both tables
 * and the calls of all parts followed by that of the positions give the same bits. */
struct embedding_args {
    enum dtype type;
    uint64_t batch, tokens, channels, vocab;
    uint64_t row_begin, row_count; /* row_count 0: the whole vocabulary (row_begin is 0 then) */
    const int32_t *token_ids;      /* [B,T], each in [0, V) */
    const void *token_table;       /* [row_count or V, C] type, or NULL: positions alone */
    const void
        *position_table; /* [>= T, C] type or NULL; only with the whole table or without one */
    void *output;        /* [B,T,C] type */
};
typedef struct embedding_args embedding_args;

/* Parts as above: token_table_grad of the rows named, or NULL: positions alone. */
struct embedding_grad_args {
    enum dtype type;
    uint64_t batch, tokens, channels, vocab;
    uint64_t row_begin, row_count; /* row_count 0: the whole vocabulary */
    const int32_t *token_ids;
    const void *output_grad; /* [B,T,C] type */
    float
        *token_table_grad; /* [row_count or V, C] fp32, += in order of rows: no atomics; or NULL */
    float *position_table_grad; /* [>= T, C] fp32, += ; or NULL */
    void *scratch;              /* embedding_grad_scratch_bytes */
};
typedef struct embedding_grad_args embedding_grad_args;

struct rope_table_args {
    float *table; /* [T, D/2, 2] fp32 (cos, sin) */
    uint64_t tokens, head_dim;
    double theta;
    enum rope_scaling scaling;
    double factor, low_freq_factor, high_freq_factor,
        original_positions; /* as scaling needs them */
};
typedef struct rope_table_args rope_table_args;

/* RMSNorm of each of `heads` heads of rows of `stride` elements (first head at data), one weight
 * for all: y = x * rstd * weight over the D elements of a head, in place. `before` keeps what was
 * there and rstd the statistics for the gradient, which turns the gradient of y in `data` into that
 * of x. */
struct head_norm_args {
    enum dtype type;
    uint64_t rows, heads, head_dim;
    uint64_t stride;    /* elements between rows of data */
    float epsilon;      /* forward */
    const void *weight; /* [D] type */
    void *data;         /* first head of row 0: forward x to y; backward dy to dx */
    void *before;       /* [rows, H, D] type, contiguous: x; written by the forward */
    float *rstd;        /* [rows, H]; written by the forward */
    float *weight_grad; /* [D] fp32, +=; backward; NULL: not wanted */
    void *scratch;      /* head_norm_grad_scratch_bytes; backward */
};
typedef struct head_norm_args head_norm_args;

/* Rotary positions in place on `heads` heads of rows of `stride` elements (first head at base):
 * pairs (i, i + D/2) of position t are turned by the angle t * theta^(-2i/D). */
struct rope_args {
    enum dtype type;
    uint64_t batch, tokens, heads, head_dim; /* D even */
    uint64_t stride;                         /* elements between rows */
    void *data;                              /* first head of row 0 */
    const float *table;                      /* [T, D/2, 2] fp32 (cos, sin) from rope_table */
    bool inverse;                            /* turn back: the backward pass */
};
typedef struct rope_args rope_args;

enum activation_kind {
    ACTIVATION_GELU,  /* tanh form: input [rows, F], output [rows, F] */
    ACTIVATION_SWIGLU /* input [rows, 2F] = gate | up, output [rows, F] = silu(gate) * up */
};

struct activation_args {
    enum activation_kind kind;
    enum dtype type;
    uint64_t rows, features; /* F */
    const void *input;
    void *output;            /* forward */
    const void *output_grad; /* backward: [rows, F] */
    void *input_grad;        /* backward: shape of input; may be input for GELU and SWIGLU */
};
typedef struct activation_args activation_args;

/* target = scale * source, or target += scale * source, by rows that may lie apart: the product is
 * rounded in fp32, so is the sum, and the result to `type`. */
struct scale_rows_args {
    enum dtype type;
    uint64_t rows, columns;
    float scale;
    bool accumulates;
    const void *source;                    /* [rows, columns] type */
    void *target;                          /* the same; may be source where the strides are equal */
    uint64_t source_stride, target_stride; /* elements from row to row, at least `columns` */
};
typedef struct scale_rows_args scale_rows_args;

/* One chunk of rows of softmax cross-entropy. */
struct cross_entropy_args {
    enum dtype type;
    uint64_t rows, vocab;
    /* elements from row to row of logits and of logits_grad; 0: V. What lies between rows may be
     * read, with the last row too; never written */
    uint64_t stride;
    const float *logits;    /* [rows, V] fp32 */
    const int32_t *targets; /* [rows]; -1 is ignored: loss 0 and gradient 0 */
    float *losses;          /* [rows] fp32 nats */
    /* [rows, V] type, (softmax - onehot) * grad_scale; NULL: loss only. It may lie at the address
     * of logits where type is fp32. */
    void *logits_grad;
    float grad_scale;
};
typedef struct cross_entropy_args cross_entropy_args;

/* Softmax cross-entropy over a vocabulary that comes in parts of columns, for an output matrix cut
 * by rows. First softmax_part for every part in order, then softmax_losses once, then
 * cross_entropy_part for every part. The stats of a row are its largest logit so far, the sum of
 * exp(logit - largest) so far and the logit of its target (0 until its part came); those of an
 * ignored row mean nothing. Parts together agree with cross_entropy within fp32's rounding; which
 * columns make a part is part of the numerics. Infinities and NaN go through: a row with +infinity
 * or NaN, or with nothing but -infinity, has a NaN loss. Targets lie below the vocabulary, which a
 * part cannot check. */
struct softmax_part_args {
    enum dtype type;        /* of logits_grad */
    uint64_t rows, columns; /* of this part */
    uint64_t column_begin;  /* of the vocabulary */
    uint64_t stride;        /* elements from row to row of logits and of logits_grad; 0: columns */
    bool is_first;          /* the first part begins the stats */
    const float *logits;    /* [rows, columns] fp32 */
    const int32_t *targets; /* [rows]; -1 is ignored: loss 0 and gradient 0 */
    /* [rows] fp32 each: read and written by softmax_part, read by the two others */
    float *largest, *sum, *target_logit;
    float *losses;     /* [rows] fp32 nats: softmax_losses */
    void *logits_grad; /* [rows, columns] type: cross_entropy_part; may lie at logits for fp32 */
    float grad_scale;  /* cross_entropy_part */
};
typedef struct softmax_part_args softmax_part_args;

/* Closes a gradient: fp32 accumulator to the gradient dtype, with the norm taken on the way. */
struct grad_close_args {
    uint64_t count;           /* elements, a multiple of SHARD_ELEMS_STEP (4096) */
    const float *accumulator; /* [count] */
    void *grads; /* [count] grad_type, rounded to nearest even; may be accumulator if fp32 */
    enum dtype grad_type;
    /* [count / 4096]: sum of squares of the rounded values, in a fixed order. Not finite where an
     * element is not finite. */
    double *block_sums;
};
typedef struct grad_close_args grad_close_args;

/* The step's scalars of Adam/AdamW; the same struct for all tiles of a step. */
struct adam_scalars {
    float learning_rate, beta1, beta2, epsilon, weight_decay;
    bool decoupled;              /* AdamW; false: L2 term added to the gradient */
    float bias_correction1;      /* 1 - beta1^t, or 1 where bias correction is off */
    float bias_correction2_sqrt; /* sqrt(1 - beta2^t), or 1 */
    float grad_scale;            /* clip factor / loss scale: multiplied onto each gradient first */
};
typedef struct adam_scalars adam_scalars;

/* One tile, in place. The streams should be skewed as base/tile.h says. */
struct adam_args {
    uint64_t count;
    float *master, *m, *v; /* [count] fp32, read and written */
    const void *grads;     /* [count] grad_type */
    enum dtype grad_type;
    /* [count] param_type, written: bf16 by bf16_working_copy, fp16 nearest even. May lie on grads
     * of the same width, and on the master where it is fp32 */
    void *params;
    enum dtype param_type;
    const adam_scalars *scalars;
};
typedef struct adam_args adam_args;

/* Adam on a tile whose streams are not all fp32: the arithmetic of adam on the widened values, and
 * then, for each stream by its format (base/tile.h):
 *   TILE_LOW16  master = master_join(params[i], low[i]) is read, and split again: the bits are those of an
 *               fp32 master. params is then read and written and param_type must be bf16.
 *   TILE_BF16   the moment is rounded to bf16 stochastically
 *   TILE_INT8   the moment is rounded stochastically to 8-bit codes in blocks of TILE_SCALE_ELEMS
 * The random bits of an element are a function of rounding_key and of its number first_elem + i
 * alone: no tile size, thread count or backend changes a bit. One moment's format may differ from
 * the other's. A tile of zero bytes has zero moments. kernels/cpu/optimizer/adam_state.c has the exact
 * definitions. ERR_INTERNAL for formats that no stream has above, or a first_elem that is none. */
struct adam_packed_args {
    uint64_t count;
    uint32_t streams;     /* code of 3 streams */
    void *master, *m, *v; /* as their formats say, read and written */
    const void *grads;    /* [count] grad_type */
    enum dtype grad_type;
    void *params; /* [count] param_type, as adam_args; read too where the master is split */
    enum dtype param_type;
    const adam_scalars *scalars;
    uint64_t rounding_key; /* of seed, step and unit */
    /* the tile's first element in its unit's whole vector; a multiple of 4096 */
    uint64_t first_elem;
};
typedef struct adam_packed_args adam_packed_args;

/* Lion (Chen et al. 2023, algorithm 2, as DeepSpeed's CPU Lion has it), one tile, in place:
 *   c = beta1 m + (1 - beta1) g;  master = master (1 - lr wd) - lr sign(c);  m = beta2 m + (1 - beta2) g
 * with g = gradient * grad_scale. sign(0) is 0, as in the paper and PyTorch; DeepSpeed's CPU loop
 * copies the sign bit there, so an element whose m and g are 0 moves by lr. */
struct lion_scalars {
    float learning_rate, beta1, beta2, weight_decay;
    float grad_scale;
};
typedef struct lion_scalars lion_scalars;

struct lion_args {
    uint64_t count;
    float *master, *m; /* [count] fp32, read and written */
    const void *grads; /* [count] grad_type */
    enum dtype grad_type;
    void *params; /* [count] param_type, written: as Adam's */
    enum dtype param_type;
    const lion_scalars *scalars;
};
typedef struct lion_args lion_args;

/* Adagrad (Duchi et al. 2011, as PyTorch has it), one tile, in place:
 *   g = gradient * grad_scale + wd master;  v = v + g^2;  master = master - lr g / (sqrt(v) + eps)
 * DeepSpeed's CPU Adagrad is the same where wd is 0; else it adds the decay to what is squared into
 * v, but not to the g of the step. */
struct adagrad_scalars {
    float learning_rate, epsilon, weight_decay;
    float grad_scale;
};
typedef struct adagrad_scalars adagrad_scalars;

struct adagrad_args {
    uint64_t count;
    float *master, *v; /* [count] fp32, read and written; v: sum of squares */
    const void *grads; /* [count] grad_type */
    enum dtype grad_type;
    void *params; /* [count] param_type, written: as Adam's */
    enum dtype param_type;
    const adagrad_scalars *scalars;
};
typedef struct adagrad_args adagrad_args;

static inline uint64_t cross_entropy_stride(const cross_entropy_args *args)
{
    return args->stride ? args->stride : args->vocab;
}

static inline uint64_t softmax_part_stride(const softmax_part_args *args)
{
    return args->stride ? args->stride : args->columns;
}

struct kernel_ops {
    const char *name; /* "cpu", "reference" */

    /* Makes a backend instance. May allocate. ERR_BACKEND where the machine cannot run it. */
    int (*context_create)(const kernel_context_config *config, kernel_context **context) MUST_CHECK;
    void (*context_destroy)(kernel_context *context);
    /* One line for the log: instruction set, Adam variant, library and version. Owned by
     * context. */
    const char *(*describe)(const kernel_context *context);

    /* Prepared products: everything a library compiles or allocates happens in create. */
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
    /* lse: [B,H,T] fp32, log of the softmax denominator of each scaled score row. */
    int (*attention_forward)(kernel_attention *attention, void *stream, const void *q,
                             const void *k, const void *v, void *output, float *lse,
                             void *scratch) MUST_CHECK;
    /* Gradients have the layout of q, k, v (same stride) and are overwritten. */
    int (*attention_backward)(kernel_attention *attention, void *stream, const void *q,
                              const void *k, const void *v, const void *output, const float *lse,
                              const void *output_grad, void *q_grad, void *k_grad, void *v_grad,
                              void *scratch) MUST_CHECK;

    int (*attention_cached)(kernel_context *context, void *stream,
                            const attention_cached_args *args) MUST_CHECK;

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

    /* Fills the table; angles in double, rounded once. */
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
    /* bias_grad[n] += column sums of output_grad [rows, n] type, in a fixed order. */
    int (*bias_backward)(kernel_context *context, void *stream, enum dtype type, uint64_t rows,
                         uint64_t n, const void *output_grad, float *bias_grad,
                         void *scratch) MUST_CHECK;
    size_t (*bias_backward_scratch_bytes)(kernel_context *context, uint64_t rows, uint64_t n);

    int (*cross_entropy)(kernel_context *context, void *stream,
                         const cross_entropy_args *args) MUST_CHECK;
    /* The same over parts of the vocabulary; see softmax_part_args. */
    int (*softmax_part)(kernel_context *context, void *stream,
                        const softmax_part_args *args) MUST_CHECK;
    int (*softmax_losses)(kernel_context *context, void *stream,
                          const softmax_part_args *args) MUST_CHECK;
    int (*cross_entropy_part)(kernel_context *context, void *stream,
                              const softmax_part_args *args) MUST_CHECK;
    int (*zero)(kernel_context *context, void *stream, void *data, uint64_t bytes) MUST_CHECK;
    int (*convert)(kernel_context *context, void *stream, const void *source,
                   enum dtype source_type, void *target, enum dtype target_type,
                   uint64_t count) MUST_CHECK;

    int (*grad_close)(kernel_context *context, void *stream,
                      const grad_close_args *args) MUST_CHECK;
    /* *total = sum of sums[0..count) in a fixed binary tree over the index. CUDA: total is pinned
     * host memory or device memory. */
    int (*norm_reduce)(kernel_context *context, void *stream, const double *sums, uint64_t count,
                       double *total) MUST_CHECK;

    int (*adam)(kernel_context *context, void *stream, const adam_args *args) MUST_CHECK;
    int (*adam_packed)(kernel_context *context, void *stream,
                       const adam_packed_args *args) MUST_CHECK;
    int (*lion)(kernel_context *context, void *stream, const lion_args *args) MUST_CHECK;
    int (*adagrad)(kernel_context *context, void *stream, const adagrad_args *args) MUST_CHECK;
    /* params[count] = working copy of master (bf16_working_copy, fp16 nearest even, or fp32). */
    int (*working_copy)(kernel_context *context, void *stream, const float *master, void *params,
                        enum dtype param_type, uint64_t count) MUST_CHECK;
};
typedef struct kernel_ops kernel_ops;

/* The CPU backend: oneDNN products, our own loops compiled per instruction set. */
extern const kernel_ops kernels_cpu;

/* Plain C with double accumulation, one thread, slow: what the others are tested against. Linked
 * into tests only. Its scratch queries are valid and its products ignore the context. */
extern const kernel_ops kernels_reference;

/* The CUDA backend's table, or NULL where it was not built. */
const kernel_ops *kernels_cuda(void);

#endif
