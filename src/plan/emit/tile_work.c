/* Transfers and per-tile work as ops.
 *
 * One tile of an update, with optimizer and gradient homed on nvme, params on nvme and wanted on
 * the device:
 *
 *   read   nvme state -> T (host)      read  nvme grads -> G (host)
 *   update T, G -> T, P (host)
 *   write  T -> nvme state             write P -> nvme params        h2d  P -> device params
 *
 * The update runs where the optimizer's home is (device, or host for host and nvme homes). Its
 * inputs are brought there from elsewhere tile by tile, and its results are taken home tile by
 * tile. On a GPU the work of device homes is on its compute lane, but initial values are made on
 * the host.
 *
 * A tile with a copy on the host is updated there, and written home from there. So is a tile that
 * the step before has read and closed ahead (carry.c).
 *
 * With several ranks, each works on the tiles of its part of the optimizer state. Where that is a
 * shard and the params are whole, the new shard is made on the device and gathered there:
 *
 *   update T, G -> P (host)    h2d  P -> device shard    all-gather  device shard -> device params
 *   then, where the params' home is elsewhere, from the device params home, tile by tile
 *
 * With a split master (base/tile.h) the update also reads the working copy, which is the master's
 * high half: the tile's share of it is brought to where the work runs, updated there and taken
 * back. */
#include <assert.h>
#include <math.h>

#include "base/tile.h"
#include "plan/emit/emit_internal.h"

static enum tier arena_of(const plani_builder *b, plani_range range)
{
    return b->error < 0 ? TIER_HOST : (enum tier)b->buffers[range.buffer_idx].base.arena;
}

/* One hop between neighbouring arenas. */
static uint32_t hop(plani_builder *b, plani_range source, plani_range target)
{
    enum tier from = arena_of(b, source), to = arena_of(b, target);
    enum op_kind kind = from == TIER_NVME     ? OP_READ
                        : to == TIER_NVME     ? OP_WRITE
                        : from == TIER_DEVICE ? OP_D2H
                                              : OP_H2D;
    enum lane_kind lane = kind == OP_READ    ? LANE_READ
                          : kind == OP_WRITE ? LANE_WRITE
                          : kind == OP_D2H   ? LANE_D2H
                                             : LANE_H2D;
    assert(b->error < 0 || source.size_bytes == target.size_bytes);
    uint32_t idx = plani_op(b, kind, lane);
    plani_use(b, idx, source, ROLE_SOURCE, ACCESS_READ);
    plani_use(b, idx, target, ROLE_TARGET, ACCESS_WRITE);
    if (b->hit.size_bytes > 0)
        plani_use(b, idx, b->hit, ROLE_HITS, ACCESS_READ);
    if (b->error < 0)
        return idx;
    op_demand *demand = &b->ops[idx].demand;
    demand->share = b->hit.size_bytes > 0 ? b->hit_share : 0;
    uint64_t bytes = target.size_bytes;
    demand->dram_bytes = bytes;
    if (kind == OP_READ || kind == OP_WRITE) {
        const plan_machine *machine = &b->job->machine;
        double sum_seconds =
            kind == OP_READ ? machine->read_sum_core_seconds : machine->write_sum_core_seconds;
        demand->core_seconds = (double)bytes * (machine->io_core_seconds + sum_seconds);
        demand->dram_bytes += sum_seconds > 0 ? bytes : 0; /* the drive moves them, a core reads */
    }
    if (kind == OP_READ)
        demand->drive_read_bytes = bytes;
    else if (kind == OP_WRITE)
        demand->drive_write_bytes = bytes;
    else if (kind == OP_H2D)
        demand->h2d_bytes = bytes;
    else
        demand->d2h_bytes = bytes;
    if ((kind == OP_H2D || kind == OP_D2H) && b->job->machine.device_is_cpu) {
        const plan_machine *machine = &b->job->machine;
        demand->dram_bytes = 3 * bytes; /* read, read for ownership, write */
        double rate =
            kind == OP_H2D ? machine->h2d_bytes_per_second : machine->d2h_bytes_per_second;
        demand->core_seconds = /* a thread copies */
            (double)bytes *
            (machine->copy_core_seconds > 0 ? machine->copy_core_seconds : 1 / rate);
    }
    return idx;
}

void plani_transfer(plani_builder *b, plani_range source, plani_range target, enum state_kind kind,
                    uint32_t unit, uint32_t tile, uint32_t micro_batch)
{
    enum tier from = arena_of(b, source), to = arena_of(b, target);
    uint64_t first_op = b->op_count;
    if ((from == TIER_NVME && to == TIER_DEVICE) || (from == TIER_DEVICE && to == TIER_NVME)) {
        uint32_t middle = plani_transient(b, TIER_HOST, source.size_bytes, PLANI_ANY, kind, unit);
        plani_range stop = {middle, 0, source.size_bytes};
        hop(b, source, stop);
        hop(b, stop, target);
    } else {
        hop(b, source, target);
    }
    for (uint64_t i = first_op; b->error >= 0 && i < b->op_count; i++) {
        b->ops[i].unit = unit;
        b->ops[i].tile = tile;
        b->ops[i].micro_batch = micro_batch;
        b->ops[i].state_kind = kind;
    }
    if (b->error >= 0 && plani_is_durable_write(b, &b->ops[b->op_count - 1]))
        plani_depend(b, (uint32_t)(b->op_count - 1), b->commit_op);
}

struct plani_tile plani_tile_at(const plani_builder *b, uint32_t unit, uint64_t elems,
                                uint64_t tile)
{
    uint64_t tile_elems = b->set->tile_elems;
    enum tier home = b->job->homes[STATE_OPTIMIZER][unit];
    return (struct plani_tile){
        .unit = unit,
        .tile = (uint32_t)tile,
        .begin = tile * tile_elems,
        .count = tile_elems_at(elems, tile_elems, tile),
        .where = home == TIER_DEVICE && !b->job->only_eval ? TIER_DEVICE : TIER_HOST,
        .params_home = b->set->homes.params[unit],
        .device_params = PROGRAM_NONE,
        .high = b->set->homes.highs[unit],
        .after = PROGRAM_NONE,
    };
}

uint64_t plani_tiles_of(const plani_builder *b, uint64_t elems)
{
    return b->error < 0 ? 0 : tile_count(elems, b->set->tile_elems);
}

plani_range plani_tile_params(const plani_builder *b, const struct plani_tile *t,
                              uint32_t buffer_idx)
{
    return plani_elems_of(buffer_idx, t->begin, t->count, b->job->param_bytes);
}

plani_range plani_tile_state(const plani_builder *b, const struct plani_tile *t,
                             uint32_t buffer_idx)
{
    uint32_t streams = plan_streams(b->job, t->unit);
    return (plani_range){buffer_idx, t->tile * tile_pitch(b->set->tile_elems, streams),
                         tile_bytes(t->count, streams)};
}

void plani_tile_transfer(plani_builder *b, const struct plani_tile *t, plani_range source,
                         plani_range target, enum state_kind kind)
{
    uint64_t first_op = b->op_count;
    plani_transfer(b, source, target, kind, t->unit, t->tile, PROGRAM_NONE);
    for (uint64_t i = first_op; b->error >= 0 && i < b->op_count; i++) {
        b->ops[i].elem_begin = t->begin;
        b->ops[i].elem_count = t->count;
    }
}

uint32_t plani_tile_op(plani_builder *b, enum op_kind kind, enum lane_kind lane,
                       const struct plani_tile *t)
{
    uint32_t idx = plani_op(b, kind, lane);
    if (b->error < 0)
        return idx;
    op *item = &b->ops[idx];
    item->unit = t->unit;
    item->tile = t->tile;
    item->elem_begin = t->begin;
    item->elem_count = t->count;
    return idx;
}

plani_range plani_tile_transient(plani_builder *b, const struct plani_tile *t, enum tier arena,
                                 uint64_t size_bytes, enum state_kind kind)
{
    static const uint64_t residues[] = {[STATE_PARAMS] = TILE_RESIDUE_PARAMS,
                                        [STATE_GRADS] = TILE_RESIDUE_GRADS,
                                        [STATE_OPTIMIZER] = TILE_RESIDUE_STATE};
    return (plani_range){plani_transient(b, arena, size_bytes, residues[kind], kind, t->unit), 0,
                         size_bytes};
}

/* The tile's copy that stays on the host; of size 0 where there is none. */
static plani_range tile_copy(const plani_builder *b, const struct plani_tile *t)
{
    uint32_t copies = b->error < 0 ? PROGRAM_NONE : b->set->homes.copies[t->unit];
    if (copies == PROGRAM_NONE)
        return (plani_range){0};
    plani_range found = plani_tile_state(b, t, copies);
    uint64_t end = found.offset_bytes + found.size_bytes;
    return end <= b->buffers[copies].base.size_bytes ? found : (plani_range){0};
}

void plani_fill_copies(plani_builder *b)
{
    for (uint32_t u = 0; u < b->job->unit_count && b->error >= 0; u++) {
        uint64_t elems = plan_rest_elems(b->job, STATE_OPTIMIZER, u);
        if (b->set->homes.copies[u] == PROGRAM_NONE)
            continue;
        for (uint64_t k = 0; k < plani_tiles_of(b, elems) && b->error >= 0; k++) {
            struct plani_tile t = plani_tile_at(b, u, elems, k);
            plani_range copy = tile_copy(b, &t);
            if (copy.size_bytes > 0)
                plani_tile_transfer(b, &t, plani_tile_state(b, &t, b->set->homes.optimizer[u]),
                                    copy, STATE_OPTIMIZER);
        }
    }
}

/* The tile's state in the arena of the work: its home there, its copy, or a transient. */
static plani_range tile_state(plani_builder *b, const struct plani_tile *t)
{
    plani_range copy = tile_copy(b, t);
    if (copy.size_bytes > 0 && t->work == PLANI_WORK_UPDATE)
        return copy;
    uint64_t bytes = tile_bytes(t->count, plan_streams(b->job, t->unit));
    plani_range carried = plani_carried(b, b->carried_in, t, STATE_OPTIMIZER, bytes);
    if (carried.size_bytes > 0 && t->work == PLANI_WORK_UPDATE)
        return carried;
    uint32_t home = b->set->homes.optimizer[t->unit];
    uint32_t save = b->set->homes.saves[t->unit];
    /* Evaluation only: the state is read from where it was saved, never kept. */
    plani_range at_home = plani_tile_state(b, t, home == PROGRAM_NONE ? save : home);
    if (home != PROGRAM_NONE && b->buffers[home].base.arena == t->where) {
        if (t->work == PLANI_WORK_LOAD)
            plani_tile_transfer(b, t, plani_tile_state(b, t, save), at_home, STATE_OPTIMIZER);
        return at_home;
    }
    plani_range staged = plani_tile_transient(b, t, t->where, at_home.size_bytes, STATE_OPTIMIZER);
    if (t->work != PLANI_WORK_INIT)
        plani_tile_transfer(b, t, at_home, staged, STATE_OPTIMIZER);
    return staged;
}

static plani_range tile_grads(plani_builder *b, const struct plani_tile *t)
{
    plani_range found = t->closed;
    if (found.size_bytes == 0)
        found = plani_carried(b, b->carried_in, t, STATE_GRADS, t->count * b->job->grad_bytes);
    if (found.size_bytes == 0)
        found =
            plani_elems_of(b->set->homes.grads[t->unit], t->begin, t->count, b->job->grad_bytes);
    if (arena_of(b, found) == t->where)
        return found;
    plani_range staged = plani_tile_transient(b, t, t->where, found.size_bytes, STATE_GRADS);
    plani_tile_transfer(b, t, found, staged, STATE_GRADS);
    return staged;
}

/* The working copy that is the high half of the master, where the work has it: its home, or brought
 * from there to the wanted device buffer or a transient. */
static plani_range tile_high(plani_builder *b, const struct plani_tile *t)
{
    plani_range at_home = plani_tile_params(b, t, t->high), staged;
    if (arena_of(b, at_home) == t->where)
        return at_home;
    if (t->where == TIER_DEVICE && t->device_params != PROGRAM_NONE)
        staged = plani_tile_params(b, t, t->device_params);
    else
        staged = plani_tile_transient(b, t, t->where, at_home.size_bytes, STATE_PARAMS);
    if (t->work == PLANI_WORK_UPDATE)
        plani_tile_transfer(b, t, at_home, staged, STATE_PARAMS);
    return staged;
}

/* The place where the work writes the new working copy: its home or the wanted device buffer when
 * they lie in the arena of the work, else a transient. */
static plani_range tile_params(plani_builder *b, const struct plani_tile *t)
{
    plani_range at_home = plani_tile_params(b, t, t->params_home);
    if (t->high != PROGRAM_NONE)
        return tile_high(b, t);
    if (arena_of(b, at_home) == t->where)
        return at_home;
    if (t->where == TIER_DEVICE && t->device_params != PROGRAM_NONE)
        return plani_tile_params(b, t, t->device_params);
    return plani_tile_transient(b, t, t->where, at_home.size_bytes, STATE_PARAMS);
}

static bool runs_on_gpu(const plani_builder *b, const struct plani_tile *t)
{
    return t->where == TIER_DEVICE && !b->job->machine.device_is_cpu;
}

double plani_arithmetic(const plani_builder *b, double updates)
{
    double known = b->job->machine.update_core_seconds;
    return updates * (known > 0 ? known : 0.6e-9);
}

/* Arithmetic of an element's update, as a multiple of an update with fp32 streams.
 * update_core_seconds is the time of the latter. A split master is joined for next to nothing; a
 * moment of 16 or 8 bits is rounded stochastically. Measured on one core of a server CPU of 2023
 * with AVX-512, with a tile in the cache: fp32 takes 0.42 ns; as multiples of it split takes
 * 1.00, both moments bf16 1.26, 8-bit 2.04, and with a split master 1.34 and 2.12. */
static double update_weight(uint32_t streams)
{
    static const double weights[TILE_FORMAT_COUNT] = {[TILE_BF16] = 0.13, [TILE_INT8] = 0.52};
    double weight = 1;
    for (uint32_t i = 0; i < tile_stream_count(streams); i++)
        weight += weights[tile_stream_format(streams, i)];
    return weight;
}

void plani_work_demand(plani_builder *b, uint32_t idx, const struct plani_tile *t)
{
    if (b->error < 0)
        return;
    op_demand *demand = &b->ops[idx].demand;
    uint64_t state_bytes = 4 * t->count, params_bytes = t->count * b->job->param_bytes;
    if (plan_learns(b->job, t->unit) && t->work != PLANI_WORK_LOAD)
        state_bytes = tile_state_bytes(plan_streams(b->job, t->unit), t->count);
    uint64_t bytes = state_bytes + params_bytes;
    if (t->work == PLANI_WORK_UPDATE) {
        bytes += state_bytes;
        bytes += t->count * (t->lent.size_bytes > 0 ? b->job->param_bytes : b->job->grad_bytes);
        bytes += t->high != PROGRAM_NONE ? params_bytes : 0;
    }
    if (runs_on_gpu(b, t)) {
        demand->device_bytes = bytes;
        return;
    }
    demand->dram_bytes = bytes;
    /* The initial normals take a logarithm and a cosine. */
    double seconds = t->work == PLANI_WORK_INIT ? 40e-9 : plani_arithmetic(b, 1);
    if (t->work == PLANI_WORK_UPDATE)
        seconds *= update_weight(plan_streams(b->job, t->unit));
    demand->core_seconds = (double)t->count * seconds;
}

void plani_keep_cores(plani_builder *b, uint32_t idx)
{
    const plan_machine *machine = &b->job->machine;
    if (b->error < 0 || !machine->device_is_cpu || machine->updates_beside)
        return;
    op_demand *demand = &b->ops[idx].demand;
    double seconds = (double)demand->dram_bytes / machine->dram_bytes_per_second;
    demand->core_seconds = fmax(demand->core_seconds, seconds * machine->core_count);
}

/* Takes the results of the work to where they belong. */
static void tile_results(plani_builder *b, const struct plani_tile *t, plani_range state,
                         plani_range params)
{
    uint32_t state_home = b->set->homes.optimizer[t->unit];
    if (state.buffer_idx != state_home && state_home != PROGRAM_NONE && t->work != PLANI_WORK_LOAD)
        plani_tile_transfer(b, t, state, plani_tile_state(b, t, state_home), STATE_OPTIMIZER);
    plani_range home = plani_tile_params(b, t, t->params_home);
    if (t->high != PROGRAM_NONE && t->high != t->params_home && t->high != params.buffer_idx)
        plani_tile_transfer(b, t, params, plani_tile_params(b, t, t->high), STATE_PARAMS);
    if (params.buffer_idx != home.buffer_idx)
        plani_tile_transfer(b, t, params, home, STATE_PARAMS);
    if (t->device_params != PROGRAM_NONE && t->device_params != params.buffer_idx &&
        t->device_params != home.buffer_idx)
        plani_tile_transfer(b, t, params, plani_tile_params(b, t, t->device_params), STATE_PARAMS);
}

struct plani_tile_inputs plani_tile_inputs(plani_builder *b, const struct plani_tile *t)
{
    struct plani_tile_inputs inputs = {.state = tile_state(b, t)};
    if (t->work == PLANI_WORK_UPDATE && t->lent.size_bytes == 0)
        inputs.grads = tile_grads(b, t);
    return inputs;
}

void plani_tile_finish(plani_builder *b, const struct plani_tile *t,
                       const struct plani_tile_inputs *inputs, plani_range direction)
{
    static const struct {
        enum op_kind kind;
        enum operand_access state;
    } works[] = {
        [PLANI_WORK_UPDATE] = {OP_UPDATE, ACCESS_UPDATE},
        [PLANI_WORK_INIT] = {OP_INIT, ACCESS_WRITE},
        [PLANI_WORK_LOAD] = {OP_WORKING_COPY, ACCESS_READ},
    };
    plani_range params = tile_params(b, t);
    enum lane_kind lane = runs_on_gpu(b, t) ? LANE_COMPUTE : LANE_UPDATE;
    uint32_t idx = plani_tile_op(b, works[t->work].kind, lane, t);
    plani_use(b, idx, inputs->state, ROLE_STATE, works[t->work].state);
    if (t->lent.size_bytes > 0)
        plani_use(b, idx, t->lent, ROLE_LENT, ACCESS_READ);
    else if (t->work == PLANI_WORK_UPDATE)
        plani_use(b, idx, inputs->grads, ROLE_SOURCE, ACCESS_READ);
    if (direction.size_bytes > 0)
        plani_use(b, idx, direction, ROLE_INPUT, ACCESS_READ);
    bool reads_params = t->work == PLANI_WORK_UPDATE && t->high != PROGRAM_NONE;
    plani_use(b, idx, params, ROLE_TARGET, reads_params ? ACCESS_UPDATE : ACCESS_WRITE);
    plani_depend(b, idx, t->after);
    plani_work_demand(b, idx, t);
    if (t->lent.size_bytes > 0)
        plani_use_norm_sums(b, idx, t);
    plani_keep_cores(b, idx);
    if (b->error >= 0)
        tile_results(b, t, inputs->state, params);
}

void plani_tile_work(plani_builder *b, const struct plani_tile *t)
{
    if (t->work == PLANI_WORK_UPDATE && plan_has_matrices(b->job, t->unit)) {
        plani_matrix_work(b, t);
        return;
    }
    struct plani_tile_inputs inputs = plani_tile_inputs(b, t);
    plani_tile_finish(b, t, &inputs, (plani_range){0});
}

void plani_move_elems(plani_builder *b, uint32_t unit, uint64_t elems, uint32_t source,
                      uint32_t target, uint64_t elem_bytes, enum state_kind kind)
{
    for (uint64_t k = 0; k < plani_tiles_of(b, elems) && b->error >= 0; k++) {
        struct plani_tile t = plani_tile_at(b, unit, elems, k);
        plani_tile_transfer(b, &t, plani_elems_of(source, t.begin, t.count, elem_bytes),
                            plani_elems_of(target, t.begin, t.count, elem_bytes), kind);
    }
}

static uint32_t device_params_of(plani_builder *b, uint32_t unit, uint64_t elems)
{
    return plani_transient(b, TIER_DEVICE, elems * b->job->param_bytes, TILE_RESIDUE_PARAMS,
                           STATE_PARAMS, unit);
}

/* Gathers `shard`, which is on the device, of all ranks into `whole`. */
static void gather_params(plani_builder *b, uint32_t unit, uint32_t shard, uint32_t whole)
{
    uint64_t bytes = b->job->param_bytes;
    plani_all_gather(b, plani_elems_of(shard, 0, plani_shard_elems(b->job, unit), bytes),
                     plani_elems_of(whole, 0, plani_whole_elems(b->job, unit), bytes), STATE_PARAMS,
                     unit);
}

struct plani_new_params plani_begin_params(plani_builder *b, uint32_t unit, uint32_t wanted)
{
    const plan_job *job = b->job;
    uint32_t home = b->set->homes.params[unit];
    uint32_t high = b->set->homes.highs[unit];
    struct plani_new_params made = {unit, home, wanted, high, PROGRAM_NONE, wanted, home};
    if (plan_is_owned(job, unit))
        return made;
    if (plan_is_sharded(job, STATE_PARAMS, unit)) {
        made.tiles_also_to = PROGRAM_NONE;
        if (wanted == PROGRAM_NONE)
            return made;
        made.shard = home;
        if (!plani_is_on_device(b, home))
            made.shard = made.tiles_also_to =
                device_params_of(b, unit, plani_shard_elems(job, unit));
    } else if (plan_is_sharded(job, STATE_OPTIMIZER, unit)) {
        made.shard = made.tiles_to = high != PROGRAM_NONE && plani_is_on_device(b, high)
                                         ? high
                                         : device_params_of(b, unit, plani_shard_elems(job, unit));
        made.tiles_also_to = PROGRAM_NONE;
        made.whole = wanted != PROGRAM_NONE ? wanted : plani_device_params(b, unit);
    }
    return made;
}

void plani_finish_params(plani_builder *b, const struct plani_new_params *made)
{
    if (made->shard == PROGRAM_NONE || b->error < 0)
        return;
    gather_params(b, made->unit, made->shard, made->whole);
    if (made->shard == made->tiles_to && made->shard != made->home && made->whole != made->home)
        plani_move_elems(b, made->unit, plani_whole_elems(b->job, made->unit), made->whole,
                         made->home, b->job->param_bytes, STATE_PARAMS);
}

void plani_unit_work(plani_builder *b, uint32_t unit, enum plani_tile_work work,
                     uint32_t device_params, uint32_t after)
{
    uint64_t elems = plan_rest_elems(b->job, STATE_OPTIMIZER, unit);
    struct plani_new_params made = plani_begin_params(b, unit, device_params);
    for (uint64_t k = 0; k < plani_tiles_of(b, elems) && b->error >= 0; k++) {
        struct plani_tile t = plani_tile_at(b, unit, elems, k);
        t.params_home = made.tiles_to;
        t.device_params = made.tiles_also_to;
        t.work = work;
        t.after = after;
        if (work == PLANI_WORK_INIT && runs_on_gpu(b, &t))
            t.where = TIER_HOST;
        plani_tile_work(b, &t);
    }
    plani_finish_params(b, &made);
}

uint32_t plani_device_params(plani_builder *b, uint32_t unit)
{
    uint32_t home = b->set->homes.params[unit];
    if (!plani_is_gathered(b->job, unit) && plani_is_on_device(b, home))
        return home;
    return device_params_of(b, unit, plani_used_elems(b->job, unit));
}

uint32_t plani_fetch_params(plani_builder *b, uint32_t unit)
{
    uint32_t home = b->set->homes.params[unit], arrived = home;
    uint64_t elems = plan_rest_elems(b->job, STATE_PARAMS, unit);
    if (!plani_is_on_device(b, home)) {
        arrived = device_params_of(b, unit, elems);
        plani_move_elems(b, unit, elems, home, arrived, b->job->param_bytes, STATE_PARAMS);
    }
    if (!plani_is_gathered(b->job, unit))
        return arrived;
    uint32_t whole = device_params_of(b, unit, plani_whole_elems(b->job, unit));
    if (b->error >= 0)
        gather_params(b, unit, arrived, whole);
    return whole;
}
