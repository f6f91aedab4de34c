/* Chooses the loops, and contains those for every CPU. See sum.h. */
#define SUM_LOOPS sumi_base
#define SUM_NAME  "base"
#include "comm/sum_body.h"

const sum_loops *sum_find(const char *name)
{
#ifdef __x86_64__
    if (strcmp(name, "avx512") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
                   ? &sumi_avx512
                   : NULL;
    if (strcmp(name, "avx2") == 0)
        return __builtin_cpu_supports("avx2") ? &sumi_avx2 : NULL;
#endif
    return strcmp(name, "base") == 0 ? &sumi_base : NULL;
}

const sum_loops *sum_choose(void)
{
    const sum_loops *best = sum_find("avx512");
    if (best == NULL)
        best = sum_find("avx2");
    return best != NULL ? best : &sumi_base;
}
