/* attention_rows_body.h for AVX-512. */
#define ATTENTION_ROWS_TABLE cpui_attention_rows_avx512
#define ATTENTION_ROWS_NAME  "avx512"
#include "kernels/cpu/attention_rows_body.h"
