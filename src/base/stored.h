/* Stored formats: how a matrix of parameters that does not learn is kept in less space than in the
 * working dtype. A matrix of R rows and C columns (row-major) becomes codes, one for each element,
 * and scales, one for each group of elements. kernels/ops_stored.h defines the arithmetic.
 *
 *   format             code    scale                        elements of a scale        as in
 *   int8               8 bits  fp32                         256                        bitsandbytes
 *   int8_rows          8       fp32                         a row                      LLM.int8()
 *   nf4, fp4           4       fp32                         64                         bitsandbytes
 *   nf4_double,        4       8 bits; one fp32 for each    64                         bitsandbytes
 *     fp4_double               256 scales; one fp32 for all
 *   fp8_rows           8       fp32                         a row
 *   fp8_blocks         8       fp32                         128 x 128                  DeepSeek-V3
 *   mxfp4              4       8 bits (a power of two)      32 of a row                gpt-oss
 *
 * Groups of 256 and of 64 go through the rows one after the other, whatever C is; the last one may
 * be shorter, and so may the blocks at the right and lower edges of a matrix. mxfp4 wants rows of
 * whole groups. Two codes of 4 bits share a byte. Element 2 i has the upper half of byte i, and
 * with mxfp4 the lower half.
 *
 * The scales of a matrix lie in the order of its groups (fp8_blocks: row-major). With double
 * quantization, n scales take fp32 [ceil(n / 256)], fp32 [1] and then 8 bits [n].
 *
 * Pure; any thread. */
#ifndef SLUICE_BASE_STORED_H
#define SLUICE_BASE_STORED_H

#include <stdbool.h>
#include <stdint.h>

enum stored_format {
    STORED_WORKING, /* not packed: elements of the working dtype */
    STORED_INT8,
    STORED_INT8_ROWS,
    STORED_NF4,
    STORED_NF4_DOUBLE,
    STORED_FP4,
    STORED_FP4_DOUBLE,
    STORED_FP8_ROWS,
    STORED_FP8_BLOCKS,
    STORED_MXFP4,
    STORED_FORMAT_COUNT
};

/* The scales that share one fp32 with double quantization. */
enum { STORED_DOUBLE_GROUP = 256 };

enum stored_code {
    STORED_CODE_DYNAMIC, /* 8 bits: a place in a table of 256 values */
    STORED_CODE_INT8,    /* 8 bits: -127 ... 127 */
    STORED_CODE_E4M3,    /* 8 bits: 1 sign, 4 exponent, 3 fraction; bias 7; 0x7f is NaN */
    STORED_CODE_NF4,     /* 4 bits: a place in a table of 16 values */
    STORED_CODE_FP4,     /* 4 bits: the same with another table */
    STORED_CODE_E2M1     /* 4 bits: 1 sign, 2 exponent, 1 fraction; bias 1 */
};

enum stored_scale {
    STORED_SCALE_FP32,
    STORED_SCALE_DOUBLE, /* double quantization */
    STORED_SCALE_E8M0    /* 2^(code - 127); 255 is NaN */
};

/* How the elements and scales of a matrix follow each other. The matrix is cut into lines, and each
 * line into runs of neighbours that share a scale; the last run of a line may be shorter. Run r of
 * line l has scale l / lines_per_scale * line_runs + r. */
struct stored_layout {
    enum stored_code code;
    enum stored_scale scale;
    uint64_t lines, line_elems, run_elems, line_runs, lines_per_scale;
    uint64_t scale_count;
    uint64_t code_bytes, scale_bytes; /* of the whole matrix */
};
typedef struct stored_layout stored_layout;

/* "working", "int8", "nf4_double", ... */
const char *stored_format_name(enum stored_format format);

/* False if the format cannot hold a matrix with so many columns: mxfp4 wants a multiple of 32. */
bool stored_fits(enum stored_format format, uint64_t columns);

/* rows and columns are above 0, and stored_fits. Not for STORED_WORKING. */
stored_layout stored_layout_of(enum stored_format format, uint64_t rows, uint64_t columns);

/* True if the format's scales are quantized too. */
static inline bool stored_is_double(enum stored_format format)
{
    return format == STORED_NF4_DOUBLE || format == STORED_FP4_DOUBLE;
}

/* The format without double quantization of its scales. */
static inline enum stored_format stored_single(enum stored_format format)
{
    return format == STORED_NF4_DOUBLE   ? STORED_NF4
           : format == STORED_FP4_DOUBLE ? STORED_FP4
                                         : format;
}

static inline bool stored_code_is_half_byte(enum stored_code code)
{
    return code >= STORED_CODE_NF4;
}

#endif
