/* The row ops for x86-64 with AVX2; see rows_body.h. The flags are set in cpu_rows.cmake. */
#define ROWS_TABLE rowsi_avx2
#define ROWS_NAME  "avx2"
#include "kernels/cpu/rows_body.h"
