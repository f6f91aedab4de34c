/* Sluice's Adam as a shared library for perf/peers/compare_adam.py. The script calls it step by
 * step in the process of its peers, on memory with the same layout for all of them. Pointers are
 * borrowed until return. One thread calls; OpenMP's workers help. The functions return 0, or a
 * negative code with the reason in adam_library_error. */
#include <math.h>
#include <stdint.h>

#include "base/error.h"
#include "base/tile.h"
#include "kernels/cpu/cpu_internal.h"

/* The arguments of one step of AdamW with bias correction. perf/peers/compare_adam.py has the same
 * struct. */
struct adam_library_scalars {
    int32_t threads, step; /* steps count from 1 */
    float learning_rate, beta1, beta2, epsilon, weight_decay;
};

/* Updates `count` elements. Types: 0 is fp32, 1 is bf16. If is_packed, the master is split, so
 * `master` has its low halves, and the moments are bf16. Otherwise all state is fp32. An fp32
 * `params` may be `master`; then there is no working copy. */
int adam_library_step(const struct adam_library_scalars *scalars, uint64_t count, int is_packed,
                      void *master, void *m, void *v, const void *grads, int grad_type,
                      void *params, int param_type);

const char *adam_library_error(void);
/* Returns the variant of this processor, such as "avx512". */
const char *adam_library_variant(void);

const char *adam_library_error(void)
{
    return err_text();
}

const char *adam_library_variant(void)
{
    kernel_context context = {.thread_count = 1};
    if (cpu_isa_check() < 0)
        return "none";
    context.isa = cpu_isa();
    cpui_adam_select(&context);
    return cpui_adam_name(&context);
}

int adam_library_step(const struct adam_library_scalars *in, uint64_t count, int is_packed,
                      void *master, void *m, void *v, const void *grads, int grad_type,
                      void *params, int param_type)
{
    TRY(cpu_isa_check());
    kernel_context context = {.thread_count = in->threads, .isa = cpu_isa()};
    cpui_adam_select(&context);
    const update_scalars scalars = {
        .learning_rate = in->learning_rate,
        .beta1 = in->beta1,
        .beta2 = in->beta2,
        .epsilon = in->epsilon,
        .weight_decay = in->weight_decay,
        .decoupled = true,
        .bias_correction1 = (float)(1 - pow((double)in->beta1, in->step)),
        .bias_correction2_sqrt = (float)sqrt(1 - pow((double)in->beta2, in->step)),
        .grad_scale = 1,
    };
    update_args args = {
        .count = count,
        .streams = is_packed ? tile_streams_code(3, TILE_LOW16, TILE_BF16, TILE_BF16) : 3,
        .master = master,
        .m = m,
        .v = v,
        .grads = grads,
        .grad_type = grad_type ? DTYPE_BF16 : DTYPE_FP32,
        .params = params,
        .param_type = param_type ? DTYPE_BF16 : DTYPE_FP32,
        .scalars = &scalars,
        .rounding_key = (uint64_t)in->step,
    };
    return cpui_update(&context, NULL, &args);
}
