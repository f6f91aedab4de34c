/* Collectives as ops: what ranks gather and reduce, and what that asks of the machine.
 *
 *   reduce-scatter  accumulator [whole] fp32 of each rank   ->  [own shard] fp32, the sums
 *   all-gather      [own shard] of each rank                ->  [whole], shards by rank
 *   norm            block sums of own shards                ->  all ranks' sums, then their norm,
 *                                                               some units at a time
 *   hits            of each rank                            ->  hit on all ranks if hit on one
 *   dispatch        rows for each rank's experts            ->  rows of each rank (owned experts)
 *   return          results for each rank                   ->  results from each rank
 *
 * All of them are on the comm lane, in device memory (hits: on the host), and the same on every
 * rank: only the run knows the part of the unit that belongs to a rank. */
#include "base/size.h"
#include "plan/emit/emit_internal.h"

enum {
    /* A copy between ranks moves each byte in DRAM so often: read, read for ownership, written. */
    COPY_PASSES = 3,
};

/* Guesses for one core: bytes of a copy through shared memory, elements summed of 16 or 32 bits. */
static const double copied_bytes_per_second = 8e9, summed_elems_per_second = 1e9;

static uint64_t peers(const plani_builder *b)
{
    return plani_world(b->job) - 1;
}

static void collective_demand(plani_builder *b, op_demand *demand, uint64_t sent, uint64_t memory,
                              uint64_t copied, double core_seconds)
{
    const plan_machine *machine = &b->job->machine;
    demand->comm_bytes = sent;
    demand->wait_seconds = machine->comm_seconds;
    if (machine->comm_is_copies) {
        demand->dram_bytes = COPY_PASSES * copied;
        demand->core_seconds = core_seconds;
    } else if (!machine->comm_takes_no_memory) {
        plani_add_device_bytes(b->job, demand, memory);
    }
}

static uint32_t collective(plani_builder *b, enum op_kind kind, uint32_t state_kind, uint32_t unit)
{
    uint32_t idx = plani_op(b, kind, LANE_COMM);
    if (b->error < 0)
        return idx;
    b->ops[idx].unit = unit;
    b->ops[idx].state_kind = state_kind;
    return idx;
}

void plani_all_gather(plani_builder *b, plani_range source, plani_range target, uint32_t state_kind,
                      uint32_t unit)
{
    uint32_t idx = collective(b, OP_ALL_GATHER, state_kind, unit);
    plani_use(b, idx, source, ROLE_SOURCE, ACCESS_READ);
    plani_use(b, idx, target, ROLE_TARGET, ACCESS_WRITE);
    if (b->hit.size_bytes > 0)
        plani_use(b, idx, b->hit, ROLE_HITS, ACCESS_READ);
    if (b->error < 0)
        return;
    b->ops[idx].demand.share = b->hit.size_bytes > 0 ? b->hit_share : 0;
    /* In shared memory: out once, then all shards in. */
    uint64_t copied = source.size_bytes + target.size_bytes;
    collective_demand(b, &b->ops[idx].demand, peers(b) * source.size_bytes, copied, copied,
                      (double)copied / copied_bytes_per_second);
}

void plani_unite_hits(plani_builder *b, plani_range hits, uint32_t stage)
{
    uint64_t bytes = program_united_bytes(hits.size_bytes, plani_world(b->job));
    uint64_t own = program_united_bytes(hits.size_bytes, 0);
    uint32_t workspace =
        plani_transient(b, TIER_DEVICE, bytes, PLANI_ANY, STATE_KIND_COUNT, PROGRAM_NONE);
    uint32_t idx = collective(b, OP_UNITE_HITS, PROGRAM_NONE, PROGRAM_NONE);
    plani_use(b, idx, hits, ROLE_HITS, ACCESS_UPDATE);
    plani_use(b, idx, plani_whole(b, workspace), ROLE_WORKSPACE, ACCESS_WRITE);
    if (b->error < 0)
        return;
    b->ops[idx].stage = stage;
    collective_demand(b, &b->ops[idx].demand, peers(b) * own, bytes, bytes,
                      (double)bytes / copied_bytes_per_second);
}

void plani_exchange(plani_builder *b, uint32_t stage, uint32_t pass, uint32_t unit,
                    uint32_t micro_batch, enum op_kind kind, uint32_t source, uint32_t target,
                    uint64_t sent)
{
    uint32_t idx = collective(b, kind, STATE_ACTIVATIONS, unit);
    plani_use(b, idx, plani_whole(b, source), ROLE_SOURCE, ACCESS_READ);
    plani_use(b, idx, plani_whole(b, target), ROLE_TARGET,
              kind == OP_DISPATCH ? ACCESS_WRITE : ACCESS_UPDATE);
    if (b->error < 0)
        return;
    op *item = &b->ops[idx];
    item->stage = stage;
    item->pass = pass;
    item->micro_batch = micro_batch;
    /* In shared memory: the rows for others out, those of others in; and the own rows. */
    uint64_t own = sent / size_max(peers(b), 1), copied = 2 * sent + own;
    collective_demand(b, &item->demand, sent, copied, copied,
                      (double)copied / copied_bytes_per_second);
}

uint32_t plani_reduce_scatter(plani_builder *b, uint32_t unit, uint32_t accumulator, uint32_t sums)
{
    const plan_job *job = b->job;
    uint64_t own = plani_shard_elems(job, unit), all = plani_whole_elems(job, unit);
    uint64_t wire_bytes = job->wire_bytes ? job->wire_bytes : sizeof(float);
    uint32_t reduced = sums;
    if (reduced == PROGRAM_NONE)
        reduced =
            plani_transient(b, TIER_DEVICE, own * sizeof(float), PLANI_ANY, STATE_GRADS, unit);
    uint32_t workspace = PROGRAM_NONE;
    uint64_t piece = job->reduce_piece_elems ? size_min(own, job->reduce_piece_elems) : own;
    if (job->reduce_scratch_bytes)
        workspace =
            plani_transient(b, TIER_DEVICE, plani_world(job) * piece * job->reduce_scratch_bytes,
                            PLANI_ANY, STATE_KIND_COUNT, unit);
    uint32_t idx = collective(b, OP_REDUCE_SCATTER, STATE_GRADS, unit);
    plani_use(b, idx, (plani_range){accumulator, 0, all * sizeof(float)}, ROLE_SOURCE, ACCESS_READ);
    plani_use(b, idx, (plani_range){reduced, 0, own * sizeof(float)}, ROLE_TARGET, ACCESS_WRITE);
    if (workspace != PROGRAM_NONE)
        plani_use(b, idx, plani_whole(b, workspace), ROLE_WORKSPACE, ACCESS_WRITE);
    if (b->error < 0)
        return reduced;
    /* In shared memory: all but the own shard out, the others' contributions to it in, then the
     * sums. */
    uint64_t sent = peers(b) * own * wire_bytes;
    uint64_t memory = (all + own) * sizeof(float), copied = 2 * sent + own * sizeof(float);
    collective_demand(b, &b->ops[idx].demand, sent, memory, copied,
                      (double)sent / copied_bytes_per_second +
                          (double)all / summed_elems_per_second);
    return reduced;
}

uint32_t plani_norm(plani_builder *b)
{
    const plan_homes *homes = &b->set->homes;
    uint32_t norm = 0;
    if (homes->norm_gathered == PROGRAM_NONE) {
        norm = plani_op(b, OP_NORM, LANE_COMPUTE);
        plani_use(b, norm, plani_whole(b, homes->norm_sums), ROLE_NORM_SUMS, ACCESS_READ);
        return norm;
    }
    const plan_set *set = b->set;
    uint64_t half = plani_norm_part_bytes(b->job, set);
    for (uint32_t p = 0; p < set->norm_part_count; p++) {
        uint64_t begin = set->norm_block_begin[set->norm_part_begin[p]] * sizeof(double);
        uint64_t end = set->norm_block_begin[set->norm_part_begin[p + 1]] * sizeof(double);
        uint64_t all = plani_world(b->job) * (end - begin);
        plani_range gathered = {homes->norm_gathered, p % 2 * half, all};
        plani_all_gather(b, (plani_range){homes->norm_sums, begin, end - begin}, gathered,
                         PROGRAM_NONE, PROGRAM_NONE);
        bool is_last = p + 1 == set->norm_part_count;
        norm = plani_op(b, is_last ? OP_NORM : OP_NORM_PART, LANE_COMPUTE);
        if (b->error >= 0 && set->norm_part_count > 1)
            b->ops[norm - 1].tile = b->ops[norm].tile = p; /* the gather, and what takes it */
        plani_use(b, norm, gathered, ROLE_NORM_SUMS, ACCESS_READ);
        plani_use(b, norm, (plani_range){homes->norm_ordered, 0, all}, ROLE_TARGET, ACCESS_WRITE);
    }
    return norm;
}
