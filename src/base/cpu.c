/* Finds what the CPU has and reads SLUICE_ISA. See cpu.h. */
#include "base/cpu.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/text.h"

static const char *const names[CPU_ISA_COUNT] = {
    [CPU_BASELINE] = "baseline",
    [CPU_NEON] = "neon",
    [CPU_AVX2] = "avx2",
    [CPU_AVX512] = "avx512",
    [CPU_AVX512_BF16] = "avx512_bf16",
    [CPU_AMX] = "amx",
};

/* Written once, by choose. */
static struct {
    enum cpu_isa isa; /* CPU_ISA_COUNT if SLUICE_ISA cannot be followed */
    bool is_forced;
} choice;

const char *cpu_isa_name(enum cpu_isa isa)
{
    assert(isa < CPU_ISA_COUNT);
    return names[isa];
}

/* ---- what the CPU has ---- */

#if defined(__x86_64__)

static bool has_avx2(void)
{
    unsigned eax, ebx, ecx, edx; /* clang 14 has no word for F16C */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool has_avx512_bf16(void)
{
    enum { LEAF7_1_EAX_BF16 = 1 << 5 };
    unsigned eax, ebx, ecx, edx;
    return has_avx512() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) &&
           (eax & LEAF7_1_EAX_BF16);
}

static bool has_amx(void)
{
    enum {
        REQUEST_PERMISSION = 0x1023,       /* ARCH_REQ_XCOMP_PERM, Linux 5.16 */
        TILE_DATA = 18,                    /* the state component of the tiles */
        LEAF7_EDX_AMX = 1 << 22 | 1 << 24, /* AMX-BF16, AMX-TILE */
    };
    unsigned eax, ebx, ecx, edx;
    return has_avx512_bf16() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) &&
           (edx & LEAF7_EDX_AMX) == LEAF7_EDX_AMX &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

/* True if the bf16 instructions of AVX-512 are slower than fp32's on this CPU. Intel's cores since
 * Sapphire Rapids, the first ones with AVX512_FP16, leave bf16 to AMX: a core starts one vdpbf16ps
 * in the time of four vfmadd231ps (84 against 170 GFLOP/s, measured). Many virtual machines hide
 * AMX. Products of bf16 that are widened to fp32 are then faster: 302 against 158 GFLOP/s for 4096
 * x 3072 x 1024 on two cores, and GPT-2 124M trains 1.4 times as fast. */
static bool has_slow_bf16(void)
{
    enum { LEAF7_EDX_AVX512_FP16 = 1 << 23 };
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(0, &eax, &ebx, &ecx, &edx) && ebx == signature_INTEL_ebx &&
           __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & LEAF7_EDX_AVX512_FP16);
}

bool cpu_has(enum cpu_isa isa)
{
    switch (isa) {
    case CPU_BASELINE:
        return true;
    case CPU_AVX2:
        return has_avx2();
    case CPU_AVX512:
        return has_avx512();
    case CPU_AVX512_BF16:
        return has_avx512_bf16();
    case CPU_AMX:
        return has_amx();
    default:
        return false;
    }
}

#else

static bool has_slow_bf16(void)
{
    return false;
}

bool cpu_has(enum cpu_isa isa)
{
#if defined(__aarch64__)
    return isa == CPU_BASELINE || isa == CPU_NEON;
#else
    return isa == CPU_BASELINE;
#endif
}

#endif

/* ---- the choice ---- */

/* The set in which the CPU is fastest. */
static enum cpu_isa find_usual(void)
{
    enum cpu_isa isa = CPU_ISA_COUNT - 1;
    while (!cpu_has(isa))
        isa--;
    return isa == CPU_AVX512_BF16 && has_slow_bf16() ? CPU_AVX512 : isa;
}

/* The set of that name, or CPU_ISA_COUNT. */
static enum cpu_isa find_name(const char *name)
{
    enum cpu_isa isa = CPU_BASELINE;
    while (isa < CPU_ISA_COUNT && strcmp(name, names[isa]) != 0)
        isa++;
    return isa;
}

/* The text of SLUICE_ISA, or NULL if it is unset or empty. */
static const char *asked_name(void)
{
    const char *text = getenv("SLUICE_ISA");
    return text && *text ? text : NULL;
}

static void choose(void)
{
    const char *asked = asked_name();
    choice.is_forced = asked != NULL;
    choice.isa = asked ? find_name(asked) : find_usual();
    if (asked && choice.isa < CPU_ISA_COUNT && !cpu_has(choice.isa))
        choice.isa = CPU_ISA_COUNT;
}

static void choose_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose);
}

/* "baseline, avx2, avx512" */
static void list_sets(char *text, size_t text_bytes)
{
    text[0] = '\0';
    for (enum cpu_isa isa = CPU_BASELINE; isa < CPU_ISA_COUNT; isa++)
        if (cpu_has(isa))
            text_add(text, text_bytes, "%s%s", text[0] ? ", " : "", names[isa]);
}

int cpu_isa_check(void)
{
    choose_once();
    if (choice.isa < CPU_ISA_COUNT)
        return 0;
    char sets[96];
    list_sets(sets, sizeof sets);
    const char *asked = asked_name();
    asked = asked ? asked : ""; /* the environment may have changed since */
    return err_set(ERR_USAGE, "SLUICE_ISA is \"%s\", %s; this CPU has: %s", asked,
                   find_name(asked) < CPU_ISA_COUNT ? "an instruction set that this CPU lacks"
                                                    : "which is not the name of an instruction set",
                   sets);
}

enum cpu_isa cpu_isa(void)
{
    choose_once();
    assert(choice.isa < CPU_ISA_COUNT); /* the caller's program has not called cpu_isa_check */
    return choice.isa;
}

bool cpu_isa_is_forced(void)
{
    choose_once();
    return choice.is_forced;
}
