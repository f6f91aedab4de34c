/* The instruction set that a test of the row kernels is run for: one CTest line per name. */
#ifndef SLUICE_TESTS_KERNELS_ISA_H
#define SLUICE_TESTS_KERNELS_ISA_H

#include <stdio.h>
#include <string.h>

#include "kernels/cpu/rows_internal.h"

static const char *const isa_names[CPUI_ISA_COUNT] = {"baseline", "avx2", "avx512"};

/* From the first argument, "baseline" without one. 0, or main's exit status: 1 for a name that there is
 * not, 77 where this CPU or build has no such variant. */
static inline int isa_of_test(int argc, char **argv, enum cpui_isa *isa)
{
    const char *wanted = argc > 1 ? argv[1] : "baseline";
    int found = 0;
    while (found < CPUI_ISA_COUNT && strcmp(wanted, isa_names[found]) != 0)
        found++;
    if (found == CPUI_ISA_COUNT) {
        fprintf(stderr, "no instruction set is named %s\n", wanted);
        return 1;
    }
    *isa = (enum cpui_isa)found;
    if (rowsi_table(*isa))
        return 0;
    printf("this CPU or build has no %s\n", wanted);
    return 77;
}

/* A context of so many threads whose row kernels are of that instruction set. */
static inline kernel_context context_of(enum cpui_isa isa, int threads)
{
    kernel_context context = {.thread_count = threads, .isa = isa};
    cpui_rows_select(&context);
    return context;
}

#endif
