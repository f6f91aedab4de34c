/* The tables of loops of sum.h, one for each instruction set of the build. */
#ifndef SLUICE_COMM_SUM_INTERNAL_H
#define SLUICE_COMM_SUM_INTERNAL_H

#include <string.h>

#include "comm/sum.h"

extern const sum_loops sumi_base;
extern const sum_loops sumi_avx2;   /* x86-64 */
extern const sum_loops sumi_avx512; /* x86-64 */

#endif
