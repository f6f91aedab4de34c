/* Parameters from fp32 master weights, to where they rest in the engine of a process that computes forward
 * alone:
 *
 *   masters ─ working copy ─┬─► home in memory
 *                           └─► a copy ─► home in the memory of a GPU
 *
 * The same bits as a run's own working copies. On the engine's thread, between programs; allocates in init. */
#include <errno.h>

#include "base/mem.h"
#include "base/size.h"
#include "train/train_internal.h"

int traini_filler_init(traini_filler *self, traini_engine *engine, uint64_t copy_elems)
{
    const traini_setup *setup = engine->setup;
    *self = (traini_filler){.engine = engine, .copy_elems = copy_elems};
    self->copy = mem_alloc(copy_elems, setup->plan.param_bytes, "parameters on their way");
    if (!self->copy)
        return -ENOMEM;
    const kernel_context_config config = {.thread_count = setup->thread_count,
                                          .adam_variant = "auto"};
    return kernels_cpu.context_create(&config, &self->context);
}

void traini_filler_fini(traini_filler *self)
{
    if (self->context)
        kernels_cpu.context_destroy(self->context);
    mem_free(self->copy);
    *self = (traini_filler){.engine = NULL};
}

int traini_fill(traini_filler *self, uint32_t unit, uint64_t begin, uint64_t count,
                const float *master)
{
    traini_engine *engine = self->engine;
    const traini_setup *setup = engine->setup;
    uint32_t home_idx = setup->set.homes.params[unit];
    const buffer *home = &setup->set.programs[PROGRAM_EVAL].buffers[home_idx];
    uint64_t width = setup->plan.param_bytes;
    uint64_t elems = setup->unit_elems[unit];
    if (count > self->copy_elems || begin > elems || count > elems - begin)
        return err_set(ERR_INTERNAL,
                       "%llu elements from %llu of unit %u are more than it has, or than are "
                       "taken at once",
                       (unsigned long long)count, (unsigned long long)begin, unit);
    if (home->arena == ARENA_NVME)
        return err_set(ERR_NO_FIT,
                       "the parameters of %s do not fit in memory, as they must to evaluate and to "
                       "generate: free host memory, or raise tiers.host.budget",
                       setup->net->units[unit].name);
    unsigned char *target = traini_home(engine, home_idx) + begin * width;
    bool is_on_gpu = setup->gpu && home->arena == ARENA_DEVICE;
    TRY(kernels_cpu.working_copy(self->context, NULL, master, is_on_gpu ? self->copy : target,
                                 setup->net->type, count));
    if (!is_on_gpu)
        return 0;
    TRY(device_copy(setup->gpu, NULL, target, self->copy, count * width, DEVICE_FROM_HOST));
    return device_synchronize(setup->gpu, NULL); /* the copy's memory is the next one's */
}
