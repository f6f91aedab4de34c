/* The exchange's loops, compiled for AVX-512. See sum.h. */
#define SUM_LOOPS sumi_avx512
#define SUM_NAME  "avx512"
#include "comm/sum_body.h"
