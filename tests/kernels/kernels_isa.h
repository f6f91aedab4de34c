/* The instruction set that a test of the CPU's kernels runs in: that of its process
 * (base/cpu.h). The suite has a line for the usual one and, by with_isa, for the CPU's others. */
#ifndef SLUICE_TESTS_KERNELS_ISA_H
#define SLUICE_TESTS_KERNELS_ISA_H

#include <stdio.h>

#include "kernels/cpu/rows_internal.h"

/* Prints the set. Returns 0, or 1 where SLUICE_ISA cannot be followed. */
static inline int isa_of_test(enum cpu_isa *isa)
{
    if (cpu_isa_check() < 0) {
        fprintf(stderr, "%s\n", err_text());
        return 1;
    }
    *isa = cpu_isa();
    printf("instruction set %s\n", cpu_isa_name(*isa));
    return 0;
}

/* A context of so many threads that has only the row kernels of that set. */
static inline kernel_context rows_context_of(enum cpu_isa isa, int threads)
{
    kernel_context context = {.thread_count = threads, .isa = isa};
    cpui_rows_select(&context);
    return context;
}

/* The same with only the optimizer's kernels. */
static inline kernel_context adam_context_of(enum cpu_isa isa, int threads)
{
    kernel_context context = {.thread_count = threads, .isa = isa};
    cpui_adam_select(&context);
    return context;
}

#endif
