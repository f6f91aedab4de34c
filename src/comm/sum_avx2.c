/* The exchange's loops, compiled for AVX2. See sum.h. */
#define SUM_LOOPS sumi_avx2
#define SUM_NAME  "avx2"
#include "comm/sum_body.h"
