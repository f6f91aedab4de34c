/* The row ops for any CPU of the target architecture; see rows_body.h. The flags are set in
 * cpu_rows.cmake. */
#define ROWS_TABLE rowsi_baseline
#define ROWS_NAME  "baseline"
#include "kernels/cpu/rows_body.h"
