/* The vectors of loops that are compiled once for each instruction set, which the flags of the
 * compiler name: AVX-512 (F, BW, DQ, VL, with FMA and F16C), AVX2 (with FMA and F16C), or another
 * with four elements.
 *
 * A vec holds VEC_ELEMS fp32, a vecu as many numbers of 32 bits. C's operators work on them element
 * by element; + - * / are correctly rounded, and nothing is contracted. A cast between vec and vecu
 * keeps the bits. Loads and stores need no alignment and may alias any type.
 *
 *   vec_fma(a, b, c)                    a * b + c, rounded once
 *   vec_where_nan(v, a, b)              a where v is NaN, else b
 *   vec_fp16_even, vec_widen_fp16       narrow to fp16, to nearest even; widen
 *
 * For a set other than AVX-512 and AVX2 the including file defines these four. */
#ifndef SLUICE_KERNELS_CPU_VECTORS_H
#define SLUICE_KERNELS_CPU_VECTORS_H

#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

#if defined(__AVX512F__)
enum { VEC_ELEMS = 16 };
#elif defined(__AVX2__)
enum { VEC_ELEMS = 8 };
#else
enum { VEC_ELEMS = 4 };
#endif

typedef float vec __attribute__((vector_size(4 * VEC_ELEMS)));
typedef uint32_t vecu __attribute__((vector_size(4 * VEC_ELEMS)));
typedef uint16_t vec_halves __attribute__((vector_size(2 * VEC_ELEMS)));

#if defined(__AVX512F__)
#include <immintrin.h>

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vec vec_where_nan(vec value, vec where_nan, vec otherwise)
{
    __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_mov_ps(otherwise, is_nan, where_nan);
}

static inline vec_halves vec_fp16_even(vec value)
{
    return (vec_halves)_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vec vec_widen_fp16(vec_halves halves)
{
    return _mm512_cvtph_ps((__m256i)halves);
}

#elif defined(__AVX2__)
#include <immintrin.h>

static inline vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vec vec_where_nan(vec value, vec where_nan, vec otherwise)
{
    return _mm256_blendv_ps(otherwise, where_nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q));
}

static inline vec_halves vec_fp16_even(vec value)
{
    return (vec_halves)_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
}

static inline vec vec_widen_fp16(vec_halves halves)
{
    return _mm256_cvtph_ps((__m128i)halves);
}

#else

static inline vec vec_fma(vec a, vec b, vec c);
static inline vec vec_where_nan(vec value, vec where_nan, vec otherwise);
static inline vec_halves vec_fp16_even(vec value);
static inline vec vec_widen_fp16(vec_halves halves);

#endif

/* ---- the same for all sets ---- */

static inline vecu vecu_set(uint32_t value)
{
    return value + (vecu){0};
}

static inline vec vec_set(float value)
{
    return (vec)vecu_set(fp32_bits(value));
}

static inline vec vec_load(const void *source)
{
    vec value;
    memcpy(&value, source, sizeof value);
    return value;
}

static inline void vec_store(void *target, vec value)
{
    memcpy(target, &value, sizeof value);
}

static inline vecu vecu_load(const void *source)
{
    vecu value;
    memcpy(&value, source, sizeof value);
    return value;
}

static inline void vecu_store(void *target, vecu value)
{
    memcpy(target, &value, sizeof value);
}

static inline vec_halves load_halves(const void *source)
{
    vec_halves halves;
    memcpy(&halves, source, sizeof halves);
    return halves;
}

static inline vec vec_load_bf16(const void *source)
{
    return (vec)(__builtin_convertvector(load_halves(source), vecu) << 16);
}

static inline vec vec_load_fp16(const void *source)
{
    return vec_widen_fp16(load_halves(source));
}

/* The upper halves of `rounded`, or of `value` made quiet if that is NaN; the lower halves are
 * 0. */
static inline vec upper_bf16(vec value, vecu rounded)
{
    vec quieted = (vec)((vecu)value | 0x00400000u);
    return (vec)((vecu)vec_where_nan(value, quieted, (vec)rounded) & 0xffff0000u);
}

/* Rounded to bf16, to nearest even, still as fp32. */
static inline vec vec_bf16_even(vec value)
{
    vecu bits = (vecu)value;
    return upper_bf16(value, bits + 0x7fffu + (bits >> 16 & 1u));
}

#endif
