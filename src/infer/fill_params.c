/* Brings parameters from fp32 master weights to their homes in the engine of a process that only
 * computes forward:
 *
 *   masters ─ working copy ─┬─► home in memory
 *                           ├─► a copy ─► home in the memory of a GPU
 *                           └─► a part of PART_ELEMS ─ its sum ─► home on the drives
 *
 * The parameters have the same bits as a run's own working copies. The read lane compares what it
 * reads from the drives with the sums of the parts. Runs on the engine's thread, between programs.
 * Allocates only in init. */
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "infer/infer_internal.h"

/* Elements written at once, in several transfers; their bytes are a multiple of blocks. */
enum { PART_ELEMS = 2 * 1024 * 1024 };

static const buffer *home_of(const struct setup *setup, uint32_t unit)
{
    return &setup->set.programs[PROGRAM_EVAL].buffers[setup->set.homes.params[unit]];
}

/* Counts the parts of all units on drives, and lists them in `list` unless it is NULL. */
static uint64_t list_parts(const struct setup *setup, checksum_extent *list)
{
    uint64_t count = 0, width = setup->plan.param_bytes;
    for (uint32_t u = 0; u < setup->net->unit_count; u++) {
        const buffer *home = home_of(setup, u);
        if (home->arena != TIER_NVME)
            continue;
        for (uint64_t at = 0; at < setup->unit_elems[u]; at += PART_ELEMS, count++)
            if (list)
                list[count] = (checksum_extent){
                    .offset = home->offset_bytes + at * width,
                    .size_bytes = width * size_min(PART_ELEMS, setup->unit_elems[u] - at)};
    }
    return count;
}

/* Adds the parts to the engine's table of sums. */
static int add_parts(struct engine *engine, uint64_t count)
{
    checksum_extent *list = mem_alloc(count, sizeof *list, "parts of parameters");
    if (!list)
        return -ENOMEM;
    list_parts(engine->setup, list);
    int rc = checksum_add(engine->sums, list, count);
    mem_free(list);
    return rc;
}

int inferi_filler_init(inferi_filler *self, struct engine *engine, uint64_t copy_elems)
{
    const struct setup *setup = engine->setup;
    *self = (inferi_filler){.engine = engine, .copy_elems = copy_elems};
    uint64_t parts = list_parts(setup, NULL);
    uint64_t elems = parts ? size_max(copy_elems, PART_ELEMS) : copy_elems;
    self->block =
        mem_alloc(elems * setup->plan.param_bytes + TILE_BLOCK_BYTES, 1, "parameters on their way");
    if (!self->block)
        return -ENOMEM;
    self->copy = (unsigned char *)self->block +
                 (TILE_BLOCK_BYTES - (uintptr_t)self->block % TILE_BLOCK_BYTES);
    if (parts)
        TRY(add_parts(engine, parts));
    const kernel_context_config config = {.thread_count = setup->thread_count};
    return kernels_cpu.context_create(&config, &self->context);
}

void inferi_filler_fini(inferi_filler *self)
{
    if (self->context)
        kernels_cpu.context_destroy(self->context);
    mem_free(self->block);
    *self = (inferi_filler){.engine = NULL};
}

/* Writes the complete part to its place on the slab. */
static int write_part(inferi_filler *self)
{
    struct engine *engine = self->engine;
    const struct setup *setup = engine->setup;
    uint64_t width = setup->plan.param_bytes;
    checksum_extent part = {.offset =
                                home_of(setup, self->unit)->offset_bytes + self->part_begin * width,
                            .size_bytes = self->part_elems * width};
    part.sum = checksum_sum(self->copy, part.size_bytes, 0, 0);
    int rc = io_transfer(engine->transport, IO_WRITE, part.offset, self->copy, part.size_bytes);
    if (rc < 0)
        return err_prefix(rc, "parameters of %s, which do not fit in memory",
                          setup->net->units[self->unit].name);
    self->part_elems = 0;
    return checksum_put(engine->sums, &part);
}

/* Where the params come from: fp32 masters, or params as they rest. */
struct filling {
    const float *master; /* NULL: params */
    const unsigned char *params;
};

/* target[count] = the params from element `skipped` of the source on. */
static int make_params(inferi_filler *self, struct filling from, uint64_t skipped, uint64_t count,
                       unsigned char *target)
{
    const struct setup *setup = self->engine->setup;
    uint64_t width = setup->plan.param_bytes;
    if (from.master)
        return kernels_cpu.working_copy(self->context, NULL, from.master + skipped, target,
                                        setup->net->type, count);
    memcpy(target, from.params + skipped * width, count * width);
    return 0;
}

static int fill_drives(inferi_filler *self, uint32_t unit, uint64_t begin, uint64_t count,
                       struct filling from)
{
    const struct setup *setup = self->engine->setup;
    uint64_t width = setup->plan.param_bytes, end = begin + count;
    for (uint64_t at = begin; at < end;) {
        if (self->part_elems == 0) {
            self->unit = unit;
            self->part_begin = at;
        }
        if (self->unit != unit || self->part_begin % PART_ELEMS ||
            at != self->part_begin + self->part_elems)
            return err_set(ERR_INTERNAL, "element %llu of unit %u is not the next one to be filled",
                           (unsigned long long)at, unit);
        uint64_t next = size_min(end - at, PART_ELEMS - self->part_elems);
        TRY(make_params(self, from, at - begin, next, self->copy + self->part_elems * width));
        self->part_elems += next;
        at += next;
        if (self->part_elems == PART_ELEMS || at == setup->unit_elems[unit])
            TRY(write_part(self));
    }
    return 0;
}

static int fill(inferi_filler *self, uint32_t unit, uint64_t begin, uint64_t count,
                struct filling from)
{
    struct engine *engine = self->engine;
    const struct setup *setup = engine->setup;
    const buffer *home = home_of(setup, unit);
    uint64_t width = setup->plan.param_bytes;
    uint64_t elems = setup->unit_elems[unit];
    if (count > self->copy_elems || begin > elems || count > elems - begin)
        return err_set(ERR_INTERNAL,
                       "%llu elements from %llu of unit %u are more than it has, or than are "
                       "taken at once",
                       (unsigned long long)count, (unsigned long long)begin, unit);
    if (home->arena == TIER_NVME)
        return fill_drives(self, unit, begin, count, from);
    unsigned char *target = engine_home(engine, setup->set.homes.params[unit]) + begin * width;
    bool is_on_gpu = setup->gpu && home->arena == TIER_DEVICE;
    TRY(make_params(self, from, 0, count, is_on_gpu ? self->copy : target));
    if (!is_on_gpu)
        return 0;
    TRY(device_copy(setup->gpu, NULL, target, self->copy, count * width, DEVICE_FROM_HOST));
    return device_synchronize(setup->gpu, NULL); /* the next call uses the memory of the copy */
}

int inferi_fill(inferi_filler *self, uint32_t unit, uint64_t begin, uint64_t count,
                const float *master)
{
    return fill(self, unit, begin, count, (struct filling){.master = master, .params = NULL});
}

int inferi_fill_params(inferi_filler *self, uint32_t unit, uint64_t begin, uint64_t count,
                       const void *params)
{
    return fill(self, unit, begin, count, (struct filling){.master = NULL, .params = params});
}
