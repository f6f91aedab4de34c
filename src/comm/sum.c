/* Chooses the loops, and contains those for every CPU. See sum.h. */
#define SUM_LOOPS sumi_base
#define SUM_NAME  "base"
#include "comm/sum_body.h"

const sum_loops *sum_loops_of(enum cpu_isa isa)
{
#ifdef __x86_64__
    if (isa >= CPU_AVX512)
        return &sumi_avx512;
    if (isa >= CPU_AVX2)
        return &sumi_avx2;
#endif
    (void)isa;
    return &sumi_base;
}
