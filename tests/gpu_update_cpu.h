/* The CPU's optimizer variants, for test_gpu_update to compare with. Apart from gpu_update.h
 * because the CPU's kernel_context is another struct than the GPU's of the same name: no file sees
 * both. */
#ifndef SLUICE_TESTS_GPU_UPDATE_CPU_H
#define SLUICE_TESTS_GPU_UPDATE_CPU_H

#include "kernels/ops.h"

/* The optimizer and norm ops of kernels/cpu; the others are NULL. */
extern const kernel_ops cpu_update_ops;

enum { CPU_VARIANTS_MAX = 3 };

/* Those that this CPU runs, the reference first and the best last. */
struct cpu_variants {
    int count;
    const char *names[CPU_VARIANTS_MAX];
    kernel_context *contexts[CPU_VARIANTS_MAX];
};
typedef struct cpu_variants cpu_variants;

void cpu_variants_open(cpu_variants *variants);
void cpu_variants_close(cpu_variants *variants);

#endif
