/* Whether this process may use AMX, and the passes' stand-ins where the build has none; see
 * attention_amx.h. Compiled for the base instruction set. */
#include "kernels/cpu/attention_amx.h"

#if defined(SLUICE_WITH_AMX)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

bool cpui_amx_usable(void)
{
    enum {
        REQUEST_PERMISSION = 0x1023,       /* ARCH_REQ_XCOMP_PERM, Linux 5.16 */
        TILE_DATA = 18,                    /* the state component of the tiles */
        LEAF7_EDX_AMX = 1 << 22 | 1 << 24, /* AMX-BF16, AMX-TILE */
        LEAF7_1_EAX_BF16 = 1 << 5,         /* AVX512_BF16 */
    };
    unsigned eax, ebx, ecx, edx;
    if (cpui_best_isa() != CPUI_ISA_AVX512)
        return false;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & LEAF7_EDX_AMX) != LEAF7_EDX_AMX)
        return false;
    if (!__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) || !(eax & LEAF7_1_EAX_BF16))
        return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

bool cpui_attention_amx_takes(const attention_desc *desc)
{
    return desc->type == DTYPE_BF16 && desc->scale > 0;
}

#else

bool cpui_amx_usable(void)
{
    return false;
}

bool cpui_attention_amx_takes(const attention_desc *desc)
{
    (void)desc;
    return false;
}

size_t cpui_attention_amx_forward_bytes(const attention_desc *desc)
{
    (void)desc;
    return 0;
}

size_t cpui_attention_amx_backward_bytes(const attention_desc *desc)
{
    (void)desc;
    return 0;
}

void cpui_attention_amx_forward(const attention_amx_pass *pass)
{
    (void)pass;
}

void cpui_attention_amx_backward(const attention_amx_pass *pass)
{
    (void)pass;
}

#endif
