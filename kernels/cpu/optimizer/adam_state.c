/* Adam and AdamW on packed state (bf16 or 8-bit moments, a split master), and its definitions.
 *
 * The definitions extend those of adam.c, whose operations are applied to the widened values. All
 * variants (reference, AVX2, AVX-512, CUDA) give these bits for any thread count and tile size.
 *
 *   an element    master, m, v = the stored values, widened
 *                 g, m, v, d, master as in adam.c; a NaN becomes 0x7fc00000
 *                 params[i] = working copy of master; each stream is stored in its format
 *   This update uses m and v as they are before they are rounded.
 *
 * Random bits. e = first_elem + i is the number of the element in its unit. All numbers are 32-bit
 * unsigned:
 *   w = rng_block(rounding_key, stream "admrnd!", e >> 32)     once for 2^32 elements
 *   x = low32(e) + w[0]
 *   x = (x ^ x >> 16) * 0x7feb352d
 *   x = (x ^ x >> 15 ^ w[1]) * 0x846ca68b
 *   x = x ^ x >> 16;                     r = x & 0xffff for m, x >> 16 for v
 * For fixed w this is a bijection of the 2^32 numbers, so each r occurs equally often over them.
 *
 * Split master (TILE_LOW16): master = master_join(params[i], low[i]); afterwards params[i] =
 * bf16_working_copy(master), low[i] = master_low16(master). The bits are those of an fp32 master in
 * every step: every number is restored exactly, infinities too, and a NaN is stored as 0x7fc0, 0.
 *
 * bf16 moments (TILE_BF16): (bits + r) >> 16. The bits that are cut off give the probability that
 * the magnitude is rounded up, exact to 2^-16, so the mean is the value. Subnormals are rounded
 * like all others, zeros keep their sign, infinity and NaN do not change. Above the largest finite
 * bf16, (2 - 2^-7) 2^127, the next number is infinity.
 *
 * 8-bit moments (TILE_INT8), after Dettmers et al. ("8-bit optimizers via block-wise quantization",
 * 2022), but with an arithmetic code instead of a table. A block has 256 elements, counted by i
 * (tiles begin at multiples of 4096); the last block of a tile may have fewer. m and v are coded
 * separately:
 *   base    = 2^-16 for m, 2^-32 for v
 *   top     = 127 for m, 255 for v;    factor = 1 / (value of top) = 0x3f88891a, 0x3f888889 as fp32
 *   code    for m: a sign (0x80) and 7 bits; for v: 8 bits. The lower three bits are a mantissa,
 *           the bits above them an exponent:
 *   value(code) = fp32 with bits (code << 20) + bits(base), minus base
 *                 (exact, except for v above 2^-8)
 *               = base * ((1 + (code & 7) / 8) 2^(code >> 3) - 1)
 *   stored value = value(code) * scale, with the sign of m
 * Rounding of the new values of a block:
 *   largest = the largest of their bits without sign;  scale = largest * factor
 *   if largest < 2^-126:       scale is 0 and all codes are 0
 *   if scale is not finite:    scale is NaN and all codes are 0
 *   otherwise, inverse = 1 / scale, and for each element
 *   y    = fma(magnitude, inverse, base)
 *   code = ((bits(y) + (r << 4 | 8)) >> 20) - (bits(base) >> 20), at most top;
 *          for v at least 1 if v is not 0
 *   the sign bit of m is inserted; a sign of v (which only a broken state can have) is lost
 * Codes have equal distances within an octave. So the distances to both neighbours give the
 * probability of rounding up, exact to 2^-16, and the mean is the value (except for v below its
 * smallest code). A value that a code represents (within 7 units in the last place, and not
 * subnormal) keeps its code for any r; the largest value keeps the top code.
 *
 * Relative to the largest value of the block, the smallest code except 0 is 2^-19 (m) and 2^-35
 * (v). Neighbours differ by a fifteenth to an eighth of the value; by more only below the seventh
 * code. Zero is exact, and a tile of zero bytes has zero moments. v is never rounded to 0, because
 * the next step divides by its square root: the smallest code of m divided by the root of the
 * smallest code of v is no larger than the step of the block's largest elements. If one value is
 * NaN, or the largest is 3.19e38 or more, the 256 values of the block become NaN.
 *
 * Threads: as in adam.c. Nothing is allocated. All loads of an element come before its stores; the
 * codes of a block are stored after all loads of the block. */
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/optimizer/adam_state_internal.h"

int adami_update_packed(const kernel_context *context, const update_args *args)
{
    TRY(adami_packed_check(args));
    update_args left = *args;
    while (left.count > 0) {
        update_args part = left;
        part.count = adami_packed_run(&left);
        adami_rounding rounding = adami_rounding_at(args->rounding_key, part.first_elem);
        adami_work work = {.count = part.count,
                           .scalars = adami_prepare(args),
                           .packed = &part,
                           .rounding = &rounding};
        adami_over_ranges(context, part.count, context->adam->update_packed, &work);
        left = adami_packed_part(&left, part.count, left.count - part.count);
    }
    return 0;
}
