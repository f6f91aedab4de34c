/* Adam and AdamW on packed state: bf16 or 8-bit moments, a split master; and the definitions.
 *
 * The definitions, beside those of adam.c, whose operations are used on the widened values. All
 * variants (reference, AVX2, AVX-512, CUDA) give these bits, whatever the thread count or tile
 * size.
 *
 *   an element    master, m, v = the stored values, widened
 *                 g, m, v, d, master as in adam.c; a NaN becomes 0x7fc00000
 *                 params[i] = working copy of master; each stream as its format says
 *   The step of this update is taken with m and v as they are before they are rounded.
 *
 * Random bits of the element of number e = first_elem + i in its unit, all in 32-bit unsigned
 * numbers:
 *   w = rng_block(rounding_key, stream "admrnd!", e >> 32)     once for 2^32 elements
 *   x = low32(e) + w[0]
 *   x = (x ^ x >> 16) * 0x7feb352d
 *   x = (x ^ x >> 15 ^ w[1]) * 0x846ca68b
 *   x = x ^ x >> 16;                     r = x & 0xffff for m, x >> 16 for v
 * For fixed w this is a bijection of the 2^32 numbers, so that over them each r comes up equally
 * often.
 *
 * Split master (TILE_LOW16): master = master_join(params[i], low[i]); afterwards params[i] =
 * bf16_working_copy(master), low[i] = master_low16(master). The bits are those of an fp32 master in
 * every step: a number's are restored exactly, infinities too, and a NaN is stored as 0x7fc0, 0.
 *
 * bf16 moments (TILE_BF16): (bits + r) >> 16. The magnitude is rounded up with the probability that
 * the bits cut off say, to 2^-16 exactly: the mean is the value. Subnormals are rounded like all
 * others, zeros keep their sign, infinity and NaN stay. Above the largest finite bf16, (2 - 2^-7)
 * 2^127, the next number up is infinity.
 *
 * 8-bit moments (TILE_INT8), after Dettmers et al. ("8-bit optimizers via block-wise quantization",
 * 2022) with a code that is arithmetic instead of a table. A block is 256 elements, by i (tiles
 * begin at multiples of 4096); a tile's last may have fewer. Of m and v apart:
 *   base    = 2^-16 for m, 2^-32 for v
 *   top     = 127 for m, 255 for v;    factor = 1 / (value of top) = 0x3f88891a, 0x3f888889 as fp32
 *   code    of m: sign (0x80) and 7 bits, of v: 8 bits. Three bits are a mantissa, those above an exponent:
 *   value(code) = fp32 with bits (code << 20) + bits(base), less base         exact but for v above 2^-8
 *               = base * ((1 + (code & 7) / 8) 2^(code >> 3) - 1)
 *   stored value = value(code) * scale, with m's sign
 * Rounding of the block's new values:
 *   largest = the largest of their bits without sign;  scale = largest * factor
 *   scale 0 and all codes 0 where largest < 2^-126; scale NaN and all codes 0 where scale is not finite
 *   otherwise inverse = 1 / scale and for each element
 *   y    = fma(magnitude, inverse, base)
 *   code = ((bits(y) + (r << 4 | 8)) >> 20) - (bits(base) >> 20), at most top;
 *          for v at least 1 where v is not 0
 *   m's sign bit is put in, that of v (which only a broken state can have) is lost
 * Codes are equidistant within an octave, so that this rounds up with the probability that the
 * distances say, to 2^-16: the mean is the value, but for v below its smallest code. A value that a
 * code stands for, within 7 units in the last place and not subnormal, keeps its code whatever r
 * is; the largest keeps the top code. Relative to the block's largest value the smallest code but 0
 * is 2^-19 (m) and 2^-35 (v); neighbours are apart by a fifteenth to an eighth of the value, more
 * only below the seventh code. Zero is exact; a tile of zero bytes is zero moments. v is not
 * rounded to 0 since the next step divides by its square root: m's smallest code over that of v's
 * is no larger than the step of the block's largest elements. One value that is not a number, or a
 * largest one of 3.19e38 or more, makes the block's 256 values NaN.
 *
 * Threads: as in adam.c. Nothing is allocated. All loads of an element come before its stores,
 * codes of a block after all loads of the block. */
#include "kernels/cpu/optimizer/adam_state_internal.h"
#include "kernels/cpu/cpu_internal.h"

int cpui_adam_packed(kernel_context *context, void *stream, const adam_packed_args *args)
{
    (void)stream;
    TRY(adami_packed_check(args));
    adami_loop *loop =
        context->adam->update_packed ? context->adam->update_packed : adami_update_packed;
    adam_packed_args left = *args;
    while (left.count > 0) {
        adam_packed_args part = left;
        part.count = adami_packed_run(&left);
        adami_rounding rounding = adami_rounding_at(args->rounding_key, part.first_elem);
        adami_work work = {.count = part.count,
                           .scalars.adam = adami_prepare(args->scalars),
                           .packed = &part,
                           .rounding = &rounding};
        adami_over_ranges(context, part.count, loop, &work);
        left = adami_packed_part(&left, part.count, left.count - part.count);
    }
    return 0;
}
