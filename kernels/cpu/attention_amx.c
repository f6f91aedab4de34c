/* Says if the build has code for AMX, and has stubs of the passes if it does not; see
 * attention_amx.h. Compiled for the base instruction set. */
#include "kernels/cpu/attention_amx.h"

#if defined(SLUICE_WITH_AMX)

bool cpui_amx_is_built(void)
{
    return true;
}

bool cpui_attention_amx_takes(const attention_desc *desc)
{
    return desc->type == DTYPE_BF16 && desc->scale > 0;
}

#else

bool cpui_amx_is_built(void)
{
    return false;
}

bool cpui_attention_amx_takes(const attention_desc *desc)
{
    return false;
}

size_t cpui_attention_amx_forward_bytes(const attention_desc *desc)
{
    return 0;
}

size_t cpui_attention_amx_backward_bytes(const attention_desc *desc)
{
    return 0;
}

void cpui_attention_amx_forward(const attention_pass *pass)
{
}

void cpui_attention_amx_backward(const attention_pass *pass)
{
}

#endif
