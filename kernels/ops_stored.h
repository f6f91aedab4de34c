/* The arguments of the ops of stored formats (base/stored.h): expanding codes and scales to the
 * working dtype, and quantizing. Part of kernels/ops.h, whose rules hold here too; include that
 * file.
 *
 * Both are defined to the bit. + - * / below are fp32 operations, each rounded to nearest even, in
 * the order written; subnormal numbers are kept.
 *
 * Expanding. An element is its code's value times its scale; int8_rows: (code * scale) * (1/127).
 * The product is then rounded to the type, to nearest even. With double quantization the scale is
 * (value of the scale's code * fp32 of its group) + the one fp32 of the matrix. A code or scale
 * that is NaN gives NaN, whose bits are unspecified.
 *
 * Quantizing. The source is widened to fp32. a is the largest magnitude among the elements of a
 * scale.
 *
 *   nf4, fp4    The scale is a. s = x * (1 / max(a, 1e-38)), but in a last group that is shorter
 *               than 64, the scale is max(a, 1e-38) and s = x / scale. s is limited to [-1, 1].
 *               The code is that of the nearest value; the borders between neighbours u < v are
 *               (u + v) / 2, and s on a border takes u. fp4 has two codes for 0: 8 for an s above
 *               0, and 0. A half byte after the last element is the code of s = 0.
 *   ..._double  The one fp32 is the mean of all scales, summed in double in their order. The
 *               scales less it are quantized as int8.
 *   int8        The scale is a. s = x * (1 / a), limited to [-1, 1], with NaN (0 * infinity) -1.
 *               i = the integer part of ((s + 1) * 0.5) * 65535 + 0.5, and the code is that of the
 *               value nearest to i / 65535 * 2 - 1, with borders as above. This is what
 *               bitsandbytes does on a CPU; on a GPU it rounds s itself.
 *   int8_rows   The scale is a. The code is x * ((1 / a) * 127), rounded to nearest even; all codes
 *               are 0 if that factor is infinite.
 *   fp8_...     The scale is a / 448. The code is x / scale, limited to [-448, 448] and rounded to
 *               nearest even; all codes are 0 if the scale is 0.
 *   mxfp4       The scale is the largest power of two that is not above a, times 2^-2, but not
 *               below 2^-127. The code is x / scale, limited to [-6, 6] and rounded to nearest
 *               even.
 *
 * nf4, fp4, int8 and int8_rows are those of bitsandbytes 0.50 on a CPU, bit by bit, except for
 * the mean of scales, whose order of summing PyTorch does not define. */
#ifndef SLUICE_KERNELS_OPS_STORED_H
#define SLUICE_KERNELS_OPS_STORED_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/stored.h"

struct stored_expand_args {
    enum stored_format format;
    uint64_t rows, columns;
    const void *codes;  /* code_bytes of stored_layout_of */
    const void *scales; /* scale_bytes */
    enum dtype type;
    void *target; /* [rows, columns] type */
};
typedef struct stored_expand_args stored_expand_args;

/* A matrix may be quantized in several calls, each with some of its groups as a matrix of its own:
 * a row of whole groups, or whole rows (fp8_blocks: a multiple of 128 of them). So double
 * quantization has two steps: quantize the matrix as nf4 or fp4, and then all of its scales by
 * stored_double. */
struct stored_quantize_args {
    enum stored_format format; /* without double quantization */
    uint64_t rows, columns;
    enum dtype type;
    const void *source; /* [rows, columns] type */
    void *codes, *scales;
};
typedef struct stored_quantize_args stored_quantize_args;

#endif
