/* Homes: one buffer for each state that rests somewhere, laid end to end from the start of each arena.
 *
 *   device  [workspace][constants][tokens][losses][norm sums][params u0][grads u0][optimizer u0] ...
 *   host    [tokens][losses][params ..][grads ..][optimizer ..][activations ..]
 *   nvme    [state u0][state u1] ... [params u0] ... [grads u0] ... [activations ..]
 *
 * The state of a unit on nvme is its optimizer home or, for one homed in memory, the place it is saved
 * to. It comes first, so that it does not move when params, gradients, activations or the optimizer
 * itself get another home: a run goes on with the slab it has.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "plan/plan_internal.h"

static uint32_t add_home(plani_layout *layout, enum arena_kind arena, uint64_t size_bytes,
                         uint64_t residue, enum state_kind kind, uint32_t unit)
{
    assert(layout->count < layout->capacity);
    uint64_t offset =
        plani_align_offset(layout->end_bytes[arena], arena == ARENA_NVME ? PLANI_ANY : residue);
    buffer *fresh = &layout->buffers[layout->count];
    memset(fresh, 0, sizeof *fresh);
    fresh->arena = (uint8_t)arena;
    fresh->is_home = 1;
    fresh->state_kind = (uint8_t)kind;
    fresh->unit = unit;
    fresh->offset_bytes = offset;
    fresh->size_bytes = size_round_up(size_max(size_bytes, 1), TILE_BLOCK_BYTES);
    fresh->producer = fresh->last_reader = PROGRAM_NONE;
    layout->residues[layout->count] = residue;
    layout->end_bytes[arena] = offset + fresh->size_bytes;
    return (uint32_t)layout->count++;
}

static uint32_t add_scratch(plani_layout *layout, enum arena_kind arena, uint64_t size_bytes)
{
    return size_bytes == 0
               ? PROGRAM_NONE
               : add_home(layout, arena, size_bytes, PLANI_ANY, STATE_KIND_COUNT, PROGRAM_NONE);
}

static uint32_t add_state(plani_layout *layout, plan_set *set, enum arena_kind arena,
                          uint64_t size_bytes, uint64_t residue, enum state_kind kind,
                          uint32_t unit)
{
    set->home_bytes[kind][arena] += size_bytes;
    return add_home(layout, arena, size_bytes, residue, kind, unit);
}

static bool rests_on(const plan_job *job, enum state_kind kind, uint32_t unit, bool nvme)
{
    return (job->homes[kind][unit] == ARENA_NVME) == nvme;
}

static void add_optimizer(const plan_job *job, plan_set *set, plani_layout *layout, uint32_t unit)
{
    uint64_t bytes = tile_unit_bytes(job->unit_elems[unit], set->tile_elems, job->state_streams);
    set->homes.optimizer[unit] = add_state(layout, set, job->homes[STATE_OPTIMIZER][unit], bytes,
                                           TILE_RESIDUE_STATE, STATE_OPTIMIZER, unit);
}

static void add_save(const plan_job *job, plan_set *set, plani_layout *layout, uint32_t unit)
{
    uint64_t bytes = tile_unit_bytes(job->unit_elems[unit], set->tile_elems, job->state_streams);
    uint32_t save = add_home(layout, ARENA_NVME, bytes, TILE_RESIDUE_STATE, STATE_OPTIMIZER, unit);
    set->homes.saves[unit] = save;
    if (job->only_eval && job->save_offsets)
        layout->buffers[save].offset_bytes = job->save_offsets[unit];
}

static void add_params(const plan_job *job, plan_set *set, plani_layout *layout, uint32_t unit)
{
    set->homes.params[unit] = add_state(layout, set, job->homes[STATE_PARAMS][unit],
                                        job->unit_elems[unit] * job->param_bytes,
                                        TILE_RESIDUE_PARAMS, STATE_PARAMS, unit);
}

static void add_grads(const plan_job *job, plan_set *set, plani_layout *layout, uint32_t unit)
{
    set->homes.grads[unit] =
        add_state(layout, set, job->homes[STATE_GRADS][unit],
                  job->unit_elems[unit] * job->grad_bytes, TILE_RESIDUE_GRADS, STATE_GRADS, unit);
}

/* On nvme kind by kind, in memory unit by unit. */
static void add_units(const plan_job *job, plan_set *set, plani_layout *layout)
{
    bool trains = !job->only_eval;
    for (uint32_t u = 0; u < job->unit_count; u++) {
        plan_homes *homes = &set->homes;
        homes->optimizer[u] = homes->grads[u] = homes->saves[u] = PROGRAM_NONE;
        if (trains && rests_on(job, STATE_OPTIMIZER, u, true))
            add_optimizer(job, set, layout, u);
        else if (!trains || job->needs_save_places)
            add_save(job, set, layout, u);
    }
    for (uint32_t u = 0; u < job->unit_count; u++)
        if (rests_on(job, STATE_PARAMS, u, true))
            add_params(job, set, layout, u);
    for (uint32_t u = 0; u < job->unit_count; u++)
        if (trains && rests_on(job, STATE_GRADS, u, true))
            add_grads(job, set, layout, u);
    for (uint32_t u = 0; u < job->unit_count; u++) {
        if (trains && rests_on(job, STATE_OPTIMIZER, u, false))
            add_optimizer(job, set, layout, u);
        if (trains && rests_on(job, STATE_GRADS, u, false))
            add_grads(job, set, layout, u);
        if (rests_on(job, STATE_PARAMS, u, false))
            add_params(job, set, layout, u);
    }
}

/* Checkpoints of the boundaries before each stage but the last: the head's input is used at the turn
 * and never rests. */
static void add_activations(const plan_job *job, plan_set *set, plani_layout *layout)
{
    for (uint32_t s = 0; s < job->stage_count; s++)
        for (uint32_t mb = 0; mb < job->micro_batch_count; mb++) {
            uint32_t *slot = &set->homes.activations[(uint64_t)s * job->micro_batch_count + mb];
            *slot = PROGRAM_NONE;
            uint32_t unit = job->stages[s].units[0];
            if (job->stages[s].has_input && s + 1 < job->stage_count && !job->only_eval)
                *slot = add_state(layout, set, job->homes[STATE_ACTIVATIONS][unit],
                                  job->boundary_bytes, PLANI_ANY, STATE_ACTIVATIONS, unit);
        }
}

int plani_layout_make(const plan_job *job, plan_set *set, plani_layout *layout)
{
    memset(layout, 0, sizeof *layout);
    uint64_t slots = (uint64_t)job->stage_count * job->micro_batch_count;
    layout->capacity = 16 + 4 * (uint64_t)job->unit_count + slots;
    layout->buffers = mem_alloc(layout->capacity, sizeof *layout->buffers, "plan layout");
    layout->residues = mem_alloc(layout->capacity, sizeof *layout->residues, "plan layout");
    plan_homes *homes = &set->homes;
    uint32_t *tables =
        mem_alloc(4 * (uint64_t)job->unit_count + slots, sizeof *tables, "plan homes");
    set->norm_block_begin =
        mem_alloc((uint64_t)job->unit_count + 1, sizeof *set->norm_block_begin, "plan norm blocks");
    homes->params = tables; /* one allocation, owned through params */
    if (!layout->buffers || !layout->residues || !tables || !set->norm_block_begin)
        return -ENOMEM;
    homes->grads = tables + job->unit_count;
    homes->optimizer = tables + 2 * (uint64_t)job->unit_count;
    homes->saves = tables + 3 * (uint64_t)job->unit_count;
    homes->activations = tables + 4 * (uint64_t)job->unit_count;
    memset(set->home_bytes, 0, sizeof set->home_bytes);

    uint64_t blocks = 0;
    for (uint32_t u = 0; u < job->unit_count; u++) {
        assert(job->unit_elems[u] > 0 && job->unit_elems[u] % SHARD_ELEMS_STEP == 0);
        set->norm_block_begin[u] = blocks;
        blocks += job->unit_elems[u] / SHARD_ELEMS_STEP;
    }
    set->norm_block_begin[job->unit_count] = blocks;

    homes->workspace = add_scratch(layout, ARENA_DEVICE, job->workspace_bytes);
    homes->constants = add_scratch(layout, ARENA_DEVICE, job->constants_bytes);
    homes->tokens_device = add_scratch(layout, ARENA_DEVICE, job->tokens_bytes);
    homes->losses_device = add_scratch(layout, ARENA_DEVICE, job->losses_bytes);
    homes->norm_sums =
        add_scratch(layout, ARENA_DEVICE, job->only_eval ? 0 : blocks * sizeof(double));
    homes->tokens_host = add_scratch(layout, ARENA_HOST, job->tokens_bytes);
    homes->losses_host = add_scratch(layout, ARENA_HOST, job->losses_bytes);
    add_units(job, set, layout);
    add_activations(job, set, layout);
    return 0;
}

void plani_layout_fini(plani_layout *layout)
{
    mem_free(layout->buffers);
    mem_free(layout->residues);
    memset(layout, 0, sizeof *layout);
}
