/* The executor's part of paranoid mode: which bytes become 0xff, and when. See executor.h.
 *
 * It runs on the executor's thread. It overwrites a buffer only while no op is in flight that may
 * use the buffer or what reuses its space: before the first op of a run, before the submit of a
 * read whose dependencies are complete, and after the last user is complete but before anything
 * that waited for that op is issued. Only creation allocates. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "swap/executor_internal.h"

enum { POISON = 0xff };

int swapi_paranoid_create(executor *self, const executor_config *config)
{
    uint64_t buffer_count_max = 0;
    for (uint32_t i = 0; i < config->program_count; i++) {
        const program *prog = config->programs[i];
        buffer_count_max = size_max(buffer_count_max, prog->buffer_count);
        for (int a = 0; a < TIER_COUNT; a++)
            self->peak_bytes[a] = size_max(self->peak_bytes[a], prog->peak_bytes[a]);
    }
    self->arena_base[TIER_DEVICE] = config->arena_base[TIER_DEVICE];
    self->arena_base[TIER_HOST] = config->arena_base[TIER_HOST]; /* nvme is no memory */
    self->users_left = mem_alloc(buffer_count_max, sizeof *self->users_left, "executor");
    return self->users_left ? 0 : -ENOMEM;
}

static void poison(const executor *self, uint32_t arena, uint64_t begin, uint64_t end)
{
    if (self->arena_base[arena] && begin < end)
        memset(self->arena_base[arena] + begin, POISON, end - begin);
}

/* Overwrites the arena up to the highest peak except for its homes, which are sorted and do not
 * overlap. */
static void poison_around_homes(const executor *self, uint32_t arena)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < self->now->home_count; i++) {
        const swapi_home *home = &self->now->homes[i];
        if (home->arena != arena)
            continue;
        poison(self, arena, at, home->begin);
        at = size_max(at, home->end);
    }
    poison(self, arena, at, self->peak_bytes[arena]);
}

void swapi_paranoid_begin(executor *self)
{
    if (!self->paranoid)
        return;
    const program *prog = self->now->prog;
    poison_around_homes(self, TIER_DEVICE);
    poison_around_homes(self, TIER_HOST);
    memset(self->users_left, 0, prog->buffer_count * sizeof *self->users_left);
    for (uint64_t i = 0; i < prog->op_count; i++)
        for (uint32_t k = 0; k < prog->ops[i].operand_count; k++)
            self->users_left[prog->ops[i].operands[k].buffer_idx]++;
}

void swapi_paranoid_issue(executor *self, const op *item)
{
    if (!self->paranoid || item->kind != OP_READ)
        return;
    const operand *target = op_operand(item, ROLE_TARGET);
    if (!target)
        return; /* the lane refuses it */
    const buffer *held = &self->now->prog->buffers[target->buffer_idx];
    uint64_t begin = held->offset_bytes + target->offset_bytes;
    poison(self, held->arena, begin, begin + target->size_bytes);
}

void swapi_paranoid_done(executor *self, const op *item)
{
    if (!self->paranoid)
        return;
    const program *prog = self->now->prog;
    for (uint32_t k = 0; k < item->operand_count; k++) {
        uint32_t buffer_idx = item->operands[k].buffer_idx;
        const buffer *held = &prog->buffers[buffer_idx];
        assert(self->users_left[buffer_idx] > 0);
        if (--self->users_left[buffer_idx] == 0 && !held->is_home)
            poison(self, held->arena, held->offset_bytes, held->offset_bytes + held->size_bytes);
    }
}
