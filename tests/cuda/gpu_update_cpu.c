/* The CPU's optimizer variants for test_gpu_update. See gpu_update_cpu.h. */
#include "tests/cuda/gpu_update_cpu.h"
#include "base/mem.h"
#include "kernels/cpu/cpu_internal.h"
#include "tests/unit.h"

const kernel_ops cpu_update_ops = {
    .name = "cpu",
    .grad_close = cpui_grad_close,
    .norm_reduce = cpui_norm_reduce,
    .update = cpui_update,
    .working_copy = cpui_working_copy,
};

void cpu_variants_open(cpu_variants *variants)
{
    static const enum cpu_isa sets[CPU_VARIANTS_MAX] = {CPU_BASELINE, CPU_AVX2, CPU_AVX512};
    *variants = (cpu_variants){0};
    for (int i = 0; i < CPU_VARIANTS_MAX; i++) {
        if (sets[i] > cpu_isa() || !cpu_has(sets[i]))
            continue;
        kernel_context *context = mem_alloc(1, sizeof *context, "cpu variant");
        assert_non_null(context);
        context->thread_count = 2;
        context->isa = sets[i];
        cpui_adam_select(context);
        variants->names[variants->count] = cpui_adam_name(context);
        variants->contexts[variants->count++] = context;
    }
    assert_true(variants->count > 0);
}

void cpu_variants_close(cpu_variants *variants)
{
    for (int i = 0; i < variants->count; i++)
        mem_free(variants->contexts[i]);
    variants->count = 0;
}
