/* The variant of the optimizer's kernels that a test is run for: one CTest line per name. */
#ifndef SLUICE_TESTS_KERNELS_ADAM_VARIANT_H
#define SLUICE_TESTS_KERNELS_ADAM_VARIANT_H

#include <stdio.h>
#include <string.h>

#include "kernels/cpu/cpu_internal.h"

static const char *variant_name;

static inline kernel_context context_of(const char *name, int thread_count)
{
    kernel_context context = {.thread_count = thread_count};
    assert_int_equal(cpui_adam_select(&context, name), 0);
    return context;
}

/* variant_name from the first argument, "reference" without one. 0, or main's exit status: 1 for a name that
 * there is not, 77 where this CPU has no such instructions. */
static inline int variant_of_test(int argc, char **argv, int seed)
{
    variant_name = argc > 1 ? argv[1] : "reference";
    printf("seed %d, variant %s\n", seed, variant_name);
    kernel_context context = {.thread_count = 1};
    if (cpui_adam_select(&context, variant_name) == 0)
        return 0;
    printf("%s\n", err_text());
    return strstr(err_text(), "needs instructions") ? 77 : 1;
}

#endif
