/* attention_rows_body.h for AVX2 with FMA. */
#define ATTENTION_ROWS_TABLE cpui_attention_rows_avx2
#define ATTENTION_ROWS_NAME  "avx2"
#include "kernels/cpu/attention_rows_body.h"
