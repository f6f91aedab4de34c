/* The row operations of attention for x86-64 with AVX2, FMA and F16C; see attention_rows_body.h.
 * The flags are set in cpu_products.cmake. */
#define ATTENTION_ROWS_TABLE cpui_attention_rows_avx2
#define ATTENTION_ROWS_NAME  "avx2"
#include "kernels/cpu/attention_rows_body.h"
