/* The kernels of adam_limit.h: the same body, adam_limit_body.h, for each width of vectors. */
#include "perf/adam/adam_limit.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

enum { FETCH_ELEMS = 512 };

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

/* clang-format off */
const struct limit_kernel limit_kernels[] = {
#ifdef __x86_64__
    {"64-byte plain", false, has_avx512, wide64_plain},
    {"64-byte fetched", false, has_avx512, wide64_fetched},
    {"64-byte past", true, has_avx512, wide64_past},
    {"64-byte past, fetched", true, has_avx512, wide64_past_fetched},
    {"32-byte plain", false, has_avx2, wide32_plain},
    {"32-byte fetched", false, has_avx2, wide32_fetched},
    {"32-byte past", true, has_avx2, wide32_past},
    {"32-byte past, fetched", true, has_avx2, wide32_past_fetched},
#endif
    {"16-byte plain", false, always, wide16_plain},
    {"16-byte fetched", false, always, wide16_fetched},
    {"16-byte past", true, always, wide16_past},
    {"16-byte past, fetched", true, always, wide16_past_fetched},
};
/* clang-format on */

const int limit_kernel_count = sizeof limit_kernels / sizeof limit_kernels[0];
