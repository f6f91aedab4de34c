/* The table of row ops for one instruction set. rows.c chooses a table and checks arguments. The
 * bodies (rows_variant.c) are compiled once per instruction set. All tables compute the same bits:
 * the bodies say which multiply-adds are fused, and the order of a sum does not depend on the
 * vector width. Names that begin with rowsi_ belong to these files. */
#ifndef SLUICE_KERNELS_CPU_ROWS_INTERNAL_H
#define SLUICE_KERNELS_CPU_ROWS_INTERNAL_H

#include "kernels/cpu/cpu_internal.h"

/* Sums over rows are made for each fixed block of rows, and then over the blocks in order, so they
 * do not depend on the number of threads. There are at most ROWS_SUM_BLOCKS_MAX blocks, of at least
 * ROWS_SUM_ROWS_MIN rows each: enough for the cores of a socket, and little scratch. */
enum { ROWS_SUM_BLOCKS_MAX = 128, ROWS_SUM_ROWS_MIN = 32 };

static inline uint64_t rowsi_rows_per_block(uint64_t rows)
{
    uint64_t even = (rows + ROWS_SUM_BLOCKS_MAX - 1) / ROWS_SUM_BLOCKS_MAX;
    return even > ROWS_SUM_ROWS_MIN ? even : ROWS_SUM_ROWS_MIN;
}

static inline uint64_t rowsi_block_count(uint64_t rows)
{
    uint64_t step = rowsi_rows_per_block(rows);
    return (rows + step - 1) / step;
}

/* target[rows, cols] = source[rows, cols], converted. Each has its own row stride in elements; they
 * do not overlap. */
struct rows_conversion {
    const void *source;
    enum dtype source_type;
    uint64_t source_stride;
    void *target;
    enum dtype target_type;
    uint64_t target_stride;
    uint64_t rows, cols;
};

/* The functions of activations, without or with a gate. Those before ROWS_FUNCTION_TABLES have
 * tables for bf16. */
enum rows_function {
    ROWS_FUNCTION_GELU, /* tanh form */
    ROWS_FUNCTION_SILU,
    ROWS_FUNCTION_GELU_ERF,
    ROWS_FUNCTION_TABLES,
    ROWS_FUNCTION_RELU = ROWS_FUNCTION_TABLES,
    ROWS_FUNCTION_SILU_CLAMPED, /* has parameters */
    ROWS_FUNCTION_COUNT
};

enum rows_function rowsi_function(enum activation_kind kind);

/* The functions and their slopes for every value of bf16; the index is its 16 bits. Nothing is
 * rounded to bf16. rows_lookup.c fills the tables. */
struct rows_lookup {
    struct {
        float value[65536];
        float slope[65536];
        float value_backward[65536]; /* as the backward pass computes it; right after the slopes */
    } of[ROWS_FUNCTION_TABLES];
};
typedef struct rows_lookup rows_lookup;

/* `threads` is the largest number of threads that an op may use; a small op uses one. */
struct rows_table {
    const char *name; /* "baseline", "avx2", "avx512" */
    void (*norm_forward)(int threads, const norm_args *args);
    void (*norm_backward)(int threads, const norm_grad_args *args);
    void (*embedding_forward)(int threads, const embedding_args *args);
    void (*embedding_backward)(int threads, const embedding_grad_args *args);
    void (*head_norm_forward)(int threads, const head_norm_args *args);
    void (*head_norm_backward)(int threads, const head_norm_args *args);
    void (*rope)(int threads, const rope_args *args);
    /* lookup: NULL, or for bf16 alone the tables, which give the same bits */
    void (*activation_forward)(int threads, const activation_args *args, const rows_lookup *lookup);
    void (*activation_backward)(int threads, const activation_args *args,
                                const rows_lookup *lookup);
    void (*add)(int threads, enum dtype type, uint64_t count, const void *a, const void *b,
                void *out);
    void (*scale_rows)(int threads, const scale_rows_args *args);
    void (*dropout)(int threads, const dropout_args *args);
    void (*bias_backward)(int threads, enum dtype type, uint64_t rows, uint64_t n, uint64_t stride,
                          const void *output_grad, float *bias_grad, float *scratch);
    void (*cross_entropy)(int threads, const cross_entropy_args *args);
    void (*softmax_part)(int threads, const softmax_part_args *args);
    void (*cross_entropy_part)(int threads, const softmax_part_args *args);
    void (*attention_sinks)(int threads, const attention_sinks_args *args);
    void (*attention_sinks_backward)(int threads, const attention_sinks_args *args);
    void (*heads_join)(int threads, const heads_join_args *args);
    void (*heads_split)(int threads, const heads_join_args *args);
    void (*router_forward)(int threads, const router_args *args);
    void (*router_backward)(int threads, const router_args *args);
    void (*router_sums)(int threads, const router_sums_args *args);
    void (*experts_gather)(int threads, const experts_rows_args *args);
    void (*experts_combine)(int threads, const experts_rows_args *args);
    void (*experts_weights_backward)(int threads, const experts_rows_args *args);
    void (*stored_expand)(int threads, const stored_expand_args *args);
    bool (*stored_quantize)(int threads, const stored_quantize_args *args);
    void (*convert)(int threads, const void *source, enum dtype source_type, void *target,
                    enum dtype target_type, uint64_t count);
    void (*convert_rows)(int threads, const struct rows_conversion *args);
    /* The elementary functions, so that tests can measure their accuracy: out[count] = f(x); out
     * may be x. */
    void (*exp)(const float *x, float *out, size_t count);
    void (*sigmoid)(const float *x, float *out, size_t count);
    void (*tanh)(const float *x, float *out, size_t count);
};
typedef struct rows_table rows_table;

extern const rows_table rowsi_baseline;
extern const rows_table rowsi_avx2;   /* x86-64 only */
extern const rows_table rowsi_avx512; /* x86-64 only */

/* The table for a CPU with `isa`. */
const rows_table *rowsi_table(enum cpu_isa isa);

#endif
