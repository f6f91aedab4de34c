/* The row ops for x86-64 with AVX-512 F, BW, DQ and VL; see rows_body.h. The flags are set in
 * cpu_rows.cmake. */
#define ROWS_TABLE rowsi_avx512
#define ROWS_NAME  "avx512"
#include "kernels/cpu/rows_body.h"
