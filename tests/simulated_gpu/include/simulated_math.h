// CUDA's arithmetic intrinsics. Compiled with -ffp-contract=off, so that a*b+c is two roundings, as
// the _rn intrinsics promise. Functions that CUDA computes with an error of some units in the last
// place (rsqrtf, __fdividef, ...) are computed by libm here: the last bits differ from a GPU's.
#ifndef SIMULATED_MATH_H
#define SIMULATED_MATH_H

// --- bits --------------------------------------------------------------------------------------

template <typename To, typename From> static inline To simulated_bits(From value)
{
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}

#define SIMULATED_UNARY(name, To, From, expression)                                                \
    static inline To name(From a)                                                                  \
    {                                                                                              \
        return expression;                                                                         \
    }
#define SIMULATED_BINARY(name, T, expression)                                                      \
    static inline T name(T a, T b)                                                                 \
    {                                                                                              \
        return expression;                                                                         \
    }

SIMULATED_UNARY(__float_as_uint, unsigned, float, simulated_bits<unsigned>(a))
SIMULATED_UNARY(__float_as_int, int, float, simulated_bits<int>(a))
SIMULATED_UNARY(__uint_as_float, float, unsigned, simulated_bits<float>(a))
SIMULATED_UNARY(__int_as_float, float, int, simulated_bits<float>(a))
SIMULATED_UNARY(__double_as_longlong, long long, double, simulated_bits<long long>(a))
SIMULATED_UNARY(__longlong_as_double, double, long long, simulated_bits<double>(a))
SIMULATED_UNARY(__popc, int, unsigned, __builtin_popcount(a))
SIMULATED_UNARY(__popcll, int, unsigned long long, __builtin_popcountll(a))
SIMULATED_UNARY(__clz, int, int, a == 0 ? 32 : __builtin_clz(static_cast<unsigned>(a)))
SIMULATED_UNARY(__clzll, int, long long,
                a == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(a)))
SIMULATED_UNARY(__ffs, int, int, __builtin_ffs(a))
SIMULATED_UNARY(__ffsll, int, long long, __builtin_ffsll(a))

SIMULATED_BINARY(__umulhi, unsigned, static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32))
SIMULATED_BINARY(__umul64hi, unsigned long long,
                 static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64))

// --- conversions -------------------------------------------------------------------------------

SIMULATED_UNARY(__int2float_rn, float, int, static_cast<float>(a))
SIMULATED_UNARY(__uint2float_rn, float, unsigned, static_cast<float>(a))
SIMULATED_UNARY(__ll2float_rn, float, long long, static_cast<float>(a))
SIMULATED_UNARY(__ull2float_rn, float, unsigned long long, static_cast<float>(a))
SIMULATED_UNARY(__int2double_rn, double, int, static_cast<double>(a))
SIMULATED_UNARY(__uint2double_rn, double, unsigned, static_cast<double>(a))
SIMULATED_UNARY(__ll2double_rn, double, long long, static_cast<double>(a))
SIMULATED_UNARY(__ull2double_rn, double, unsigned long long, static_cast<double>(a))
SIMULATED_UNARY(__double2float_rn, float, double, static_cast<float>(a))
// Within the target's range alone; CUDA saturates beyond it.
SIMULATED_UNARY(__float2int_rn, int, float, static_cast<int>(rintf(a)))
SIMULATED_UNARY(__float2int_rz, int, float, static_cast<int>(a))
SIMULATED_UNARY(__float2uint_rn, unsigned, float, static_cast<unsigned>(rintf(a)))
SIMULATED_UNARY(__float2uint_rz, unsigned, float, static_cast<unsigned>(a))
SIMULATED_UNARY(__double2int_rn, int, double, static_cast<int>(rint(a)))

// --- arithmetic, each operation rounded once to nearest even -------------------------------------

SIMULATED_BINARY(__fadd_rn, float, a + b)
SIMULATED_BINARY(__fsub_rn, float, a - b)
SIMULATED_BINARY(__fmul_rn, float, a *b)
SIMULATED_BINARY(__fdiv_rn, float, a / b)
SIMULATED_BINARY(__dadd_rn, double, a + b)
SIMULATED_BINARY(__dsub_rn, double, a - b)
SIMULATED_BINARY(__dmul_rn, double, a *b)
SIMULATED_BINARY(__ddiv_rn, double, a / b)
SIMULATED_UNARY(__fsqrt_rn, float, float, sqrtf(a))
SIMULATED_UNARY(__dsqrt_rn, double, double, sqrt(a))
SIMULATED_UNARY(__frcp_rn, float, float, 1.0f / a)
SIMULATED_UNARY(__drcp_rn, double, double, 1.0 / a)

static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

static inline double __fma_rn(double a, double b, double c)
{
    return fma(a, b, c);
}

// --- approximations ----------------------------------------------------------------------------

SIMULATED_UNARY(rsqrtf, float, float, 1.0f / sqrtf(a))
SIMULATED_UNARY(rsqrt, double, double, 1.0 / sqrt(a))
SIMULATED_UNARY(__frsqrt_rn, float, float, static_cast<float>(1.0 / sqrt(static_cast<double>(a))))
SIMULATED_BINARY(__fdividef, float, a / b)

// min and max of any two integers or any two floating numbers, in their common type.
template <typename A, typename B>
using simulated_common =
    typename std::enable_if<(std::is_integral<A>::value && std::is_integral<B>::value) ||
                                (std::is_floating_point<A>::value &&
                                 std::is_floating_point<B>::value),
                            typename std::common_type<A, B>::type>::type;

template <typename A, typename B> static inline simulated_common<A, B> min(A a, B b)
{
    typedef simulated_common<A, B> T;
    T left = static_cast<T>(a), right = static_cast<T>(b);
    if (left != left) // NaN loses
        return right;
    return right < left ? right : left;
}

template <typename A, typename B> static inline simulated_common<A, B> max(A a, B b)
{
    typedef simulated_common<A, B> T;
    T left = static_cast<T>(a), right = static_cast<T>(b);
    if (left != left)
        return right;
    return right > left ? right : left;
}

// --- memory ------------------------------------------------------------------------------------

// An integer atomic alone: sums of floats in no fixed order have no place in Sluice. It returns the
// old value.
#define SIMULATED_ATOMICS(T)                                                                       \
    static inline T atomicAdd(T *target, T value)                                                  \
    {                                                                                              \
        return __atomic_fetch_add(target, value, __ATOMIC_RELAXED);                                \
    }

SIMULATED_ATOMICS(int)
SIMULATED_ATOMICS(unsigned)
SIMULATED_ATOMICS(unsigned long long)

#endif
