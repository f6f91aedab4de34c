/* The row operations of attention for the base instruction set; see attention_rows_body.h. */
#define ATTENTION_ROWS_TABLE cpui_attention_rows_base
#define ATTENTION_ROWS_NAME  "base"
#include "kernels/cpu/attention_rows_body.h"
