/* The kernels of adam_limit.h: the same body, adam_limit_body.h, for each width of vectors. */
#include "perf/adam/adam_limit.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

/* The compiler must assume that the data at `value` is used. */
static inline void limit_keep(const void *value)
{
    __asm__ volatile("" : : "r"(value) : "memory");
}

static inline void limit_fence(void)
{
#ifdef __x86_64__
    _mm_sfence();
#endif
}

static bool always(void)
{
    return true;
}

#ifdef __x86_64__
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f");
}

#define LIMIT_NAME(what)      wide64_##what
#define LIMIT_BYTES           64
#define LIMIT_TARGET          __attribute__((target("avx512f")))
#define LIMIT_PAST(at, value) _mm512_stream_ps((float *)(at), (__m512)(value))
#include "perf/adam/adam_limit_body.h"
#undef LIMIT_NAME
#undef LIMIT_BYTES
#undef LIMIT_TARGET
#undef LIMIT_PAST

#define LIMIT_NAME(what)      wide32_##what
#define LIMIT_BYTES           32
#define LIMIT_TARGET          __attribute__((target("avx2")))
#define LIMIT_PAST(at, value) _mm256_stream_ps((float *)(at), (__m256)(value))
#include "perf/adam/adam_limit_body.h"
#undef LIMIT_NAME
#undef LIMIT_BYTES
#undef LIMIT_TARGET
#undef LIMIT_PAST

#define LIMIT_PAST(at, value) _mm_stream_ps((float *)(at), (__m128)(value))
#else
#define LIMIT_PAST(at, value) (*(vector *)(at) = (value))
#endif

#define LIMIT_NAME(what) wide16_##what
#define LIMIT_BYTES      16
#define LIMIT_TARGET
#include "perf/adam/adam_limit_body.h"

const struct limit_way limit_ways[LIMIT_WAYS] = {
    {"plain", false, 0}, {"fetched", false, 512},      {"fetched far", false, 2048},
    {"past", true, 0},   {"past, fetched", true, 512}, {"past, fetched far", true, 2048},
};

const struct limit_width limit_widths[] = {
#ifdef __x86_64__
    {64, has_avx512, wide64_run},
    {32, has_avx2, wide32_run},
#endif
    {16, always, wide16_run},
};
