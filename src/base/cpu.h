/* The instruction set that this process computes with: one choice for all code that has a
 * variant per set.
 *
 * The sets are ordered: a CPU that has one of them also has those of its architecture that stand
 * before it. The environment variable SLUICE_ISA may name a set: a CPU with more instructions then
 * behaves as one that ends with it, products of oneDNN included. Without the variable a process
 * uses the last set that its CPU has, except avx512_bf16 on Intel cores that were built for AMX:
 * there avx512 is faster (cpu.c). Nearly all variants give the same bits in every set; matrix
 * products and attention do not.
 *
 * The choice is made once, at the first call of cpu_isa_check or cpu_isa, and never changes. Any
 * thread may call; nothing is allocated. */
#ifndef SLUICE_BASE_CPU_H
#define SLUICE_BASE_CPU_H

#include <stdbool.h>

#include "base/error.h"

enum cpu_isa {
    CPU_BASELINE,    /* what every CPU of the architecture has, as far as the compiler uses it */
    CPU_NEON,        /* aarch64 */
    CPU_AVX2,        /* x86-64, as all sets below: AVX2, FMA and F16C */
    CPU_AVX512,      /* AVX-512 F, BW, DQ and VL */
    CPU_AVX512_BF16, /* and AVX512_BF16 */
    CPU_AMX,         /* and AMX-TILE and AMX-BF16, and the permission to use them */
    CPU_ISA_COUNT
};

/* "baseline", "neon", "avx2", "avx512", "avx512_bf16" or "amx": the words of SLUICE_ISA. Static
 * storage. */
const char *cpu_isa_name(enum cpu_isa isa);

/* True if this CPU has the set, whatever SLUICE_ISA says. For CPU_AMX it asks the operating
 * system for this process's permission to use the tiles. */
bool cpu_has(enum cpu_isa isa);

/* Makes the choice. Returns 0, or ERR_USAGE if SLUICE_ISA is an unknown word or names a set that
 * this CPU lacks. Everything that starts work (main, sluice_open, the CPU backend) calls it before
 * the first cpu_isa. */
int cpu_isa_check(void) MUST_CHECK;

/* The chosen set. Call cpu_isa_check before; it must have returned 0. */
enum cpu_isa cpu_isa(void);

/* True if SLUICE_ISA made the choice. Libraries that choose an instruction set themselves must then
 * be limited to it. */
bool cpu_isa_is_forced(void);

#endif
