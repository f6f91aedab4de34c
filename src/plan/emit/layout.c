/* Homes: one buffer for each state that rests somewhere, laid end to end from the start of each
 * arena.
 *
 *   device  [workspace][constants][tokens][losses][norm ..][params u0][grads u0][optimizer u0] ...
 *   host    [tokens][losses][optimizer ..][grads ..][accumulators ..][params ..][activations ..]
 *   nvme    [state u0][state u1] ... [twin u0] ... [params u0] ... [grads u0] ... [activations ..]
 *
 * Accumulators rest beside the gradients where a step leaves one and takes it up again: between the
 * micro-batches of a batch-major step, and between head and embedding where these are tied and cut.
 * With several ranks they are sums over ranks of the own shard, in all stages.
 *
 * The state of a unit on nvme is
 *
 *   usually               its optimizer home or, if that is in memory, the place it is saved to
 *   with a split master   the same, and the high halves
 *   of a frozen unit      its params, whether or not their home is there
 *
 * State comes first, so that it does not move when params, gradients, activations or the
 * optimizer itself get another home: a run keeps its slab. The twins follow: the second places
 * that commits need (swap/place_table.h), each as large as the first. Frozen units have none. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/shard.h"
#include "base/size.h"
#include "base/tile.h"
#include "plan/emit/emit_internal.h"

enum {
    /* Sums of 8.6e9 elements: few parts even of the largest models, little memory beside any
     * unit. */
    NORM_PART_BYTES = 16 << 20,
};

bool plan_is_sharded(const plan_job *job, enum state_kind kind, uint32_t unit)
{
    static const uint32_t from_stage[STATE_KIND_COUNT] = {
        [STATE_OPTIMIZER] = 1, [STATE_GRADS] = 2, [STATE_PARAMS] = 3};
    uint32_t least = from_stage[kind];
    if (plan_is_owned(job, unit))
        return least > 0;
    if (job->world < 2 || least == 0 || job->zero_stage < least)
        return false;
    return kind != STATE_PARAMS || !job->stays_gathered || !job->stays_gathered[unit];
}

uint64_t plan_rest_elems(const plan_job *job, enum state_kind kind, uint32_t unit)
{
    return plan_is_sharded(job, kind, unit) ? plani_shard_elems(job, unit)
                                            : plani_whole_elems(job, unit);
}

static uint32_t add_home(plani_layout *layout, enum tier arena, uint64_t size_bytes,
                         uint64_t residue, enum state_kind kind, uint32_t unit)
{
    assert(layout->count < layout->capacity && arena < TIER_COUNT);
    uint64_t offset =
        plani_align_offset(layout->end_bytes[arena], arena == TIER_NVME ? PLANI_ANY : residue);
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

static uint32_t add_scratch(plani_layout *layout, enum tier arena, uint64_t size_bytes)
{
    return size_bytes == 0
               ? PROGRAM_NONE
               : add_home(layout, arena, size_bytes, PLANI_ANY, STATE_KIND_COUNT, PROGRAM_NONE);
}

static uint32_t add_state(plani_layout *layout, plan_set *set, enum tier arena, uint64_t size_bytes,
                          uint64_t residue, enum state_kind kind, uint32_t unit)
{
    set->home_bytes[kind][arena] += size_bytes;
    return add_home(layout, arena, size_bytes, residue, kind, unit);
}

static bool rests_on(const plan_job *job, enum state_kind kind, uint32_t unit, bool nvme)
{
    return (job->homes[kind][unit] == TIER_NVME) == nvme;
}

/* Bytes of the unit's optimizer state that rest on this rank, in tiles. */
static uint64_t state_bytes(const plan_job *job, const plan_set *set, uint32_t unit)
{
    return tile_unit_bytes(plan_rest_elems(job, STATE_OPTIMIZER, unit), set->tile_elems,
                           plan_streams(job, unit));
}

static void add_optimizer(const plan_job *job, plan_set *set, plani_layout *layout, uint32_t unit)
{
    uint64_t bytes = state_bytes(job, set, unit);
    set->homes.optimizer[unit] = add_state(layout, set, job->homes[STATE_OPTIMIZER][unit], bytes,
                                           TILE_RESIDUE_STATE, STATE_OPTIMIZER, unit);
}

static void add_save(const plan_job *job, plan_set *set, plani_layout *layout, uint32_t unit)
{
    uint64_t bytes = state_bytes(job, set, unit);
    set->homes.saves[unit] =
        add_home(layout, TIER_NVME, bytes, TILE_RESIDUE_STATE, STATE_OPTIMIZER, unit);
}

/* Marks the high halves of a split master: params that are part of the state. */
static uint32_t mark_committed(plani_layout *layout, uint32_t idx)
{
    layout->buffers[idx].is_committed = layout->buffers[idx].arena == TIER_NVME;
    return idx;
}

/* High halves get a home of their own where the resting params are not cut as the state is cut. */
static void add_high(const plan_job *job, plan_set *set, plani_layout *layout, uint32_t unit)
{
    enum tier arena = plani_high_arena(job, unit);
    uint64_t bytes = plani_high_bytes(job, unit);
    set->home_bytes[STATE_OPTIMIZER][arena] += bytes;
    set->homes.highs[unit] = mark_committed(
        layout, add_home(layout, arena, bytes, TILE_RESIDUE_PARAMS, STATE_PARAMS, unit));
}

static void add_high_save(const plan_job *job, plan_set *set, plani_layout *layout, uint32_t unit)
{
    set->homes.high_saves[unit] =
        mark_committed(layout, add_home(layout, TIER_NVME, plani_high_bytes(job, unit),
                                        TILE_RESIDUE_PARAMS, STATE_PARAMS, unit));
}

/* Bytes of a frozen unit's params that outlive the process: cut over the ranks, in tiles without
 * gaps. */
static uint64_t frozen_bytes(const plan_job *job, uint32_t unit)
{
    return plan_rest_elems(job, STATE_OPTIMIZER, unit) * job->param_bytes;
}

static void add_frozen_place(const plan_job *job, plan_set *set, plani_layout *layout,
                             uint32_t unit)
{
    set->homes.saves[unit] = add_home(layout, TIER_NVME, frozen_bytes(job, unit),
                                      TILE_RESIDUE_PARAMS, STATE_PARAMS, unit);
}

uint32_t plan_frozen_place(const plan_job *job, const plan_homes *homes, uint32_t unit)
{
    return plani_rests_for_good(job, unit) ? homes->params[unit] : homes->saves[unit];
}

static void add_twin(plan_set *set, plani_layout *layout, uint32_t unit)
{
    const plan_homes *homes = &set->homes;
    uint32_t first =
        homes->saves[unit] != PROGRAM_NONE ? homes->saves[unit] : homes->optimizer[unit];
    uint64_t bytes = layout->buffers[first].size_bytes;
    homes->twins[unit] =
        add_home(layout, TIER_NVME, bytes, TILE_RESIDUE_STATE, STATE_OPTIMIZER, unit);
    set->second_bytes += bytes;
}

static void add_high_twin(plan_set *set, plani_layout *layout, uint32_t unit)
{
    uint64_t bytes = layout->buffers[plan_high_place(&set->homes, unit)].size_bytes;
    set->homes.high_twins[unit] = mark_committed(
        layout, add_home(layout, TIER_NVME, bytes, TILE_RESIDUE_PARAMS, STATE_PARAMS, unit));
    set->second_bytes += bytes;
}

static void add_params(const plan_job *job, plan_set *set, plani_layout *layout, uint32_t unit)
{
    set->homes.params[unit] = add_state(layout, set, job->homes[STATE_PARAMS][unit],
                                        plan_rest_elems(job, STATE_PARAMS, unit) * job->param_bytes,
                                        TILE_RESIDUE_PARAMS, STATE_PARAMS, unit);
}

static void add_grads(const plan_job *job, plan_set *set, plani_layout *layout, uint32_t unit)
{
    enum tier home = job->homes[STATE_GRADS][unit];
    if (job->update != UPDATE_IN_BACKWARD)
        set->homes.grads[unit] =
            add_state(layout, set, home, plan_rest_elems(job, STATE_GRADS, unit) * job->grad_bytes,
                      TILE_RESIDUE_GRADS, STATE_GRADS, unit);
    if ((job->order == ORDER_BATCH_MAJOR && job->micro_batch_count > 1) ||
        (layout->is_cut && layout->grad_uses[unit] > 1))
        set->homes.accumulators[unit] =
            add_state(layout, set, home, plani_shard_elems(job, unit) * sizeof(float), PLANI_ANY,
                      STATE_GRADS, unit);
}

/* Adds the place of a split master's high halves on the slab: their home, or where they are
 * saved. */
static void add_high_on_slab(const plan_job *job, plan_set *set, plani_layout *layout,
                             uint32_t unit)
{
    bool is_nvme = plani_high_arena(job, unit) == TIER_NVME;
    if (is_nvme && plani_params_are_high(job, unit)) {
        add_params(job, set, layout, unit);
        set->homes.highs[unit] = mark_committed(layout, set->homes.params[unit]);
    } else if (is_nvme && !job->only_eval) {
        add_high(job, set, layout, unit);
    } else if (job->needs_save_places) {
        add_high_save(job, set, layout, unit);
    }
}

/* Homes of the state that outlives the process, and its second places. */
static void add_states_on_slab(const plan_job *job, plan_set *set, plani_layout *layout)
{
    for (uint32_t u = 0; u < job->unit_count; u++) {
        bool learns = plan_learns(job, u), saves = job->needs_save_places;
        if (plani_rests_for_good(job, u))
            add_params(job, set, layout, u);
        else if (!learns && saves)
            add_frozen_place(job, set, layout, u);
        else if (learns && !job->only_eval && rests_on(job, STATE_OPTIMIZER, u, true))
            add_optimizer(job, set, layout, u);
        else if (learns && saves)
            add_save(job, set, layout, u);
        if (plani_is_split(job, u))
            add_high_on_slab(job, set, layout, u);
    }
    for (uint32_t u = 0; u < job->unit_count && plani_commits(job); u++) {
        if (plan_learns(job, u))
            add_twin(set, layout, u);
        if (plani_is_split(job, u))
            add_high_twin(set, layout, u);
    }
}

/* On nvme kind by kind, in memory unit by unit. */
static void add_units(const plan_job *job, plan_set *set, plani_layout *layout)
{
    bool trains = !job->only_eval;
    plan_homes *homes = &set->homes;
    add_states_on_slab(job, set, layout);
    for (uint32_t u = 0; u < job->unit_count; u++)
        if (rests_on(job, STATE_PARAMS, u, true) && homes->params[u] == PROGRAM_NONE)
            add_params(job, set, layout, u);
    for (uint32_t u = 0; u < job->unit_count; u++)
        if (trains && plan_learns(job, u) && rests_on(job, STATE_GRADS, u, true))
            add_grads(job, set, layout, u);
    for (uint32_t u = 0; u < job->unit_count; u++) {
        bool learns = trains && plan_learns(job, u);
        if (learns && rests_on(job, STATE_OPTIMIZER, u, false))
            add_optimizer(job, set, layout, u);
        if (learns && rests_on(job, STATE_GRADS, u, false))
            add_grads(job, set, layout, u);
        if (rests_on(job, STATE_PARAMS, u, false))
            add_params(job, set, layout, u);
        if (plani_params_are_high(job, u))
            homes->highs[u] = homes->params[u];
        else if (trains && plani_is_split(job, u) && homes->highs[u] == PROGRAM_NONE)
            add_high(job, set, layout, u);
    }
}

/* Homes on the host for the copies: of as many first tiles as set->copy_bytes allow, unit by unit
 * in the order in which a step begins with them. Leaves in set->copy_bytes what they take. */
static void add_copies(const plan_job *job, plan_set *set, plani_layout *layout)
{
    uint64_t left = set->copy_bytes;
    set->copy_bytes = 0;
    for (uint32_t u = 0; u < job->unit_count; u++) {
        if (!plan_learns(job, u) || !rests_on(job, STATE_OPTIMIZER, u, true))
            continue;
        uint64_t whole = state_bytes(job, set, u);
        uint64_t pitch = tile_pitch(set->tile_elems, plan_streams(job, u));
        uint64_t bytes = whole <= left ? whole : left / pitch * pitch;
        if (bytes == 0)
            return;
        set->homes.copies[u] =
            add_home(layout, TIER_HOST, bytes, TILE_RESIDUE_STATE, STATE_OPTIMIZER, u);
        set->copy_bytes += layout->buffers[set->homes.copies[u]].size_bytes;
        left -= bytes;
        if (bytes < whole)
            return;
    }
}

/* One home per stage and micro-batch; in a batch-major step, which has one micro-batch under way,
 * one per stage. */
static void add_slots(const plan_job *job, plan_set *set, plani_layout *layout, uint32_t stage,
                      enum state_kind kind, uint64_t size_bytes, uint32_t *slots)
{
    enum tier home = tier_of_home(job->homes[kind][plani_stage_unit(job, stage)]);
    bool shares = job->order == ORDER_BATCH_MAJOR;
    for (uint32_t mb = 0; mb < job->micro_batch_count && size_bytes > 0; mb++) {
        uint32_t *slot = &slots[(uint64_t)stage * job->micro_batch_count + mb];
        *slot = shares && mb > 0 ? slot[-1]
                                 : add_state(layout, set, home, size_bytes, PLANI_ANY, kind,
                                             plani_stage_unit(job, stage));
    }
}

uint64_t plani_parked_bytes(const plan_job *job)
{
    uint64_t bytes = 0;
    if (job->order == ORDER_BATCH_MAJOR || job->micro_batch_count < 2 || job->only_eval)
        return 0;
    for (uint32_t s = 0; s < job->stage_count; s++)
        if (job->stages[s].is_cut && !plani_keeps_saved(job, s))
            bytes = size_max(bytes, job->stages[s].saved_bytes);
    return bytes;
}

enum tier plani_parked_home(const plan_job *job)
{
    enum tier home = job->homes[STATE_ACTIVATIONS][plani_stage_unit(job, 1)];
    return home == TIER_NVME && job->parked_on_host ? TIER_HOST : home;
}

/* Homes for `saved` of cut stages that do not keep it, where it waits between passes of all
 * micro-batches: one per micro-batch for all stages, beside the checkpoints or nearer, unless that
 * is the device. Micro-batches that wait on the device have transients from their first pass to
 * their last one. */
static void add_parked(const plan_job *job, plan_set *set, plani_layout *layout)
{
    uint32_t unit = plani_stage_unit(job, 1);
    enum tier home = plani_parked_home(job);
    uint64_t bytes = plani_parked_bytes(job);
    if (bytes == 0 || home == TIER_DEVICE)
        return;
    for (uint32_t mb = job->parked_near; mb < job->micro_batch_count; mb++) {
        uint32_t parked =
            add_state(layout, set, home, bytes, PLANI_ANY, STATE_INNER_ACTIVATIONS, unit);
        for (uint32_t s = 0; s < job->stage_count; s++)
            if (job->stages[s].is_cut && job->stages[s].saved_bytes > 0 &&
                !plani_keeps_saved(job, s))
                set->homes.saved[(uint64_t)s * job->micro_batch_count + mb] = parked;
    }
}

/* Homes of the checkpoints, which are the inputs of each stage that has a backward, but the last:
 * the head's input is used at the turn and never rests. Homes of inner activations that a stage
 * keeps. */
static void add_activations(const plan_job *job, plan_set *set, plani_layout *layout)
{
    bool trains = !job->only_eval;
    for (uint32_t s = 0; s < job->stage_count; s++) {
        const struct stage *stage = &job->stages[s];
        bool rests = trains && s > 0 && s + 1 < job->stage_count && plani_goes_back(job, s);
        add_slots(job, set, layout, s, STATE_ACTIVATIONS, rests ? job->boundary_bytes : 0,
                  set->homes.activations);
        uint64_t kept = plani_keeps_saved(job, s) ? plani_kept_bytes(stage, plani_kept(job, s)) : 0;
        add_slots(job, set, layout, s, STATE_INNER_ACTIVATIONS, kept, set->homes.saved);
    }
    add_parked(job, set, layout);
    uint32_t first = plani_stage_unit(job, 1);
    for (uint32_t mb = 0; mb < job->micro_batch_count && trains && layout->defers_first; mb++)
        set->homes.deferred[mb] =
            add_state(layout, set, job->homes[STATE_ACTIVATIONS][first], job->boundary_bytes,
                      PLANI_ANY, STATE_ACTIVATIONS, first);
}

bool plani_count_grad_uses(const plan_job *job, uint32_t rounds, uint32_t first_rounds,
                           uint32_t *uses)
{
    bool shares = false;
    memset(uses, 0, job->unit_count * sizeof *uses);
    for (uint32_t s = job->stage_count; s-- > 0;)
        for (uint32_t p = 0; p < job->stages[s].pass_count[PHASE_BACKWARD]; p++) {
            const struct pass *pass = &job->stages[s].passes[PHASE_BACKWARD][p];
            for (uint32_t i = 0; i < pass->unit_count; i++) {
                if (!pass->adds_grads[i])
                    continue;
                shares = shares || (s == 0 && uses[pass->units[i]] > 0);
                uses[pass->units[i]] += s == 0 ? first_rounds : rounds;
            }
        }
    return shares;
}

bool plani_has_cut_stage(const plan_job *job)
{
    for (uint32_t s = 0; s < job->stage_count; s++)
        if (job->stages[s].is_cut)
            return true;
    return false;
}

static int make_tables(const plan_job *job, plan_set *set, plani_layout *layout)
{
    uint64_t slots = (uint64_t)job->stage_count * job->micro_batch_count;
    uint64_t units = job->unit_count;
    plan_homes *homes = &set->homes;
    uint32_t **by_unit[] = {
        &homes->params, &homes->grads, &homes->optimizer,  &homes->saves,      &homes->accumulators,
        &homes->twins,  &homes->highs, &homes->high_saves, &homes->high_twins, &homes->copies};
    uint64_t kinds = sizeof by_unit / sizeof by_unit[0];
    uint64_t count = kinds * units + 2 * slots + job->micro_batch_count;
    layout->capacity = 16 + count + job->micro_batch_count;
    layout->buffers = mem_alloc(layout->capacity, sizeof *layout->buffers, "plan layout");
    layout->residues = mem_alloc(layout->capacity, sizeof *layout->residues, "plan layout");
    layout->grad_uses = mem_alloc(units, sizeof *layout->grad_uses, "plan layout");
    uint32_t *tables = mem_alloc(count, sizeof *tables, "plan homes");
    set->norm_block_begin = mem_alloc(units + 1, sizeof *set->norm_block_begin, "plan norm blocks");
    set->norm_part_begin = mem_alloc(units + 1, sizeof *set->norm_part_begin, "plan norm parts");
    homes->params = tables; /* one allocation, owned through params */
    if (!layout->buffers || !layout->residues || !layout->grad_uses || !tables ||
        !set->norm_block_begin || !set->norm_part_begin)
        return -ENOMEM;
    for (uint64_t i = 0; i < count; i++)
        tables[i] = PROGRAM_NONE;
    for (uint64_t i = 0; i < kinds; i++)
        *by_unit[i] = tables + i * units;
    homes->activations = tables + kinds * units;
    homes->saved = homes->activations + slots;
    homes->deferred = homes->saved + slots;
    return 0;
}

/* All ranks' sums of units [begin, end). */
static uint64_t gathered_bytes(const plan_job *job, const plan_set *set, uint32_t begin,
                               uint32_t end)
{
    return plani_world(job) * (set->norm_block_begin[end] - set->norm_block_begin[begin]) *
           sizeof(double);
}

/* A part has as many units as its limit allows, and at least one that learns: frozen units have no
 * sums. */
static void choose_norm_parts(const plan_job *job, plan_set *set)
{
    uint64_t most = job->norm_part_bytes ? job->norm_part_bytes : NORM_PART_BYTES;
    uint32_t begin = 0;
    set->norm_part_count = 0;
    for (uint32_t u = 1; u <= job->unit_count; u++) {
        uint64_t has = gathered_bytes(job, set, begin, u);
        uint64_t would_have =
            gathered_bytes(job, set, begin, (uint32_t)size_min(u + 1, job->unit_count));
        bool goes_on = u < job->unit_count && (plani_world(job) == 1 || would_have <= most ||
                                               has == 0 || would_have == has);
        if (goes_on)
            continue;
        set->norm_part_begin[set->norm_part_count++] = begin;
        begin = u;
    }
    set->norm_part_begin[set->norm_part_count] = job->unit_count;
}

uint64_t plani_norm_part_bytes(const plan_job *job, const plan_set *set)
{
    uint64_t most = 0;
    for (uint32_t p = 0; p < set->norm_part_count; p++)
        most = size_max(
            most, gathered_bytes(job, set, set->norm_part_begin[p], set->norm_part_begin[p + 1]));
    return size_round_up(most, TILE_BLOCK_BYTES);
}

/* The sums of this rank's blocks. With several ranks also all ranks' sums of the norm's largest
 * part: by rank, twice where a second part is gathered meanwhile; and by block. */
static void add_norm(const plan_job *job, plan_set *set, plani_layout *layout, uint64_t blocks)
{
    plan_homes *homes = &set->homes;
    choose_norm_parts(job, set);
    bool gathers = plani_world(job) > 1 && !job->only_eval;
    uint64_t part = gathers ? plani_norm_part_bytes(job, set) : 0;
    homes->norm_sums =
        add_scratch(layout, TIER_DEVICE, job->only_eval ? 0 : blocks * sizeof(double));
    homes->norm_gathered =
        add_scratch(layout, TIER_DEVICE, set->norm_part_count > 1 ? 2 * part : part);
    homes->norm_ordered = add_scratch(layout, TIER_DEVICE, part);
}

/* The losses of a step, and the totals of its micro-batches. */
static uint64_t all_losses_bytes(const plan_job *job)
{
    return job->totals_bytes == 0 ? job->losses_bytes
                                  : plan_totals_begin(job, job->micro_batch_count);
}

int plani_layout_make(const plan_job *job, plan_set *set, plani_layout *layout)
{
    memset(layout, 0, sizeof *layout);
    TRY(make_tables(job, set, layout));
    plan_homes *homes = &set->homes;
    memset(set->home_bytes, 0, sizeof set->home_bytes);
    set->second_bytes = 0;
    bool shares = plani_count_grad_uses(job, 1, 1, layout->grad_uses);
    layout->defers_first =
        shares && !job->in_order && job->order == ORDER_BATCH_MAJOR && job->micro_batch_count > 1;
    layout->is_cut = plani_has_cut_stage(job);

    uint64_t blocks = 0;
    for (uint32_t u = 0; u < job->unit_count; u++) {
        assert(job->unit_elems[u] > 0 && job->unit_elems[u] % SHARD_ELEMS_STEP == 0);
        set->norm_block_begin[u] = blocks; /* of its shard */
        if (plan_learns(job, u))
            blocks += shard_elems(job->unit_elems[u], plani_world(job)) / SHARD_ELEMS_STEP;
    }
    set->norm_block_begin[job->unit_count] = blocks;

    homes->workspace = add_scratch(layout, TIER_DEVICE, job->workspace_bytes);
    homes->constants = add_scratch(layout, TIER_DEVICE, job->constants_bytes);
    homes->cache = add_scratch(layout, TIER_DEVICE, job->cache_bytes);
    homes->tokens_device = add_scratch(layout, TIER_DEVICE, job->tokens_bytes);
    homes->losses_device = add_scratch(layout, TIER_DEVICE, all_losses_bytes(job));
    add_norm(job, set, layout, blocks);
    homes->lent = add_scratch(layout, TIER_DEVICE, 2 * plani_lent_bytes(job));
    homes->tokens_host = add_scratch(layout, TIER_HOST, job->tokens_bytes);
    homes->losses_host = add_scratch(layout, TIER_HOST, all_losses_bytes(job));
    homes->hits = add_scratch(layout, TIER_HOST, plani_may_miss(job) ? job->unit_count : 0);
    add_units(job, set, layout);
    add_activations(job, set, layout);
    add_copies(job, set, layout);
    return 0;
}

void plani_layout_fini(plani_layout *layout)
{
    mem_free(layout->buffers);
    mem_free(layout->residues);
    mem_free(layout->grad_uses);
    memset(layout, 0, sizeof *layout);
}
