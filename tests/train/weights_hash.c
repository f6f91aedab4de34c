/* The hash over all master weights of a run: see fixture_hash_weights in train_fixture.h. */
#include <errno.h>
#include <string.h>

#define XXH_STATIC_LINKING_ONLY /* to send the hash state from one rank to the next */
#include <xxhash.h>

#include "base/mem.h"
#include "base/shard.h"
#include "base/size.h"
#include "base/tile.h"
#include "state/state_internal.h"
#include "tests/train/train_fixture.h"

static int read_scratch(struct engine *self, uint64_t offset, unsigned char *scratch,
                        uint64_t bytes)
{
    return io_transfer(self->transport, IO_READ, offset, scratch,
                       size_round_up(bytes, TILE_BLOCK_BYTES));
}

/* Finds the entry of the params (high halves) of tile `idx`, whose master is split. The params of a
 * unit follow all its state. NULL if there is none. */
static const place_entry *high_of(const struct engine *self, uint64_t idx)
{
    const struct setup *setup = self->setup;
    const place_entry *tile = place_table_at(self->places, idx);
    uint64_t at = idx + tile_count(plan_rest_elems(&setup->plan, STATE_OPTIMIZER, tile->unit),
                                   setup->set.tile_elems);
    const place_entry *high =
        at < place_table_count(self->places) ? place_table_at(self->places, at) : NULL;
    bool is_it = high && high->unit == tile->unit && high->tile == tile->tile && !high->streams;
    return is_it ? high : NULL;
}

/* Hashes the first `left` bytes of the newest version of an entry. */
static int hash_bytes(struct engine *self, XXH3_state_t *state, const place_entry *entry,
                      uint64_t left, unsigned char *scratch, uint64_t scratch_bytes)
{
    for (uint64_t offset = entry->offset[entry->newest]; left > 0;) {
        uint64_t part = size_min(left, scratch_bytes);
        TRY(read_scratch(self, offset, scratch, part));
        XXH3_64bits_update(state, scratch, part);
        offset += part;
        left -= part;
    }
    return 0;
}

/* Hashes the first `left` masters of tile `idx`, joined from their halves. */
static int hash_split(struct engine *self, XXH3_state_t *state, uint64_t idx, uint64_t left,
                      unsigned char *scratch, uint64_t scratch_bytes)
{
    const place_entry *tile = place_table_at(self->places, idx), *high = high_of(self, idx);
    uint64_t most = scratch_bytes / 8 / TILE_BLOCK_BYTES * TILE_BLOCK_BYTES, done = 0;
    uint16_t *low_half = (uint16_t *)(void *)scratch, *high_half = low_half + most;
    float *joined = (float *)(void *)(high_half + most);
    if (!high)
        return err_set(ERR_INTERNAL, "tile %u of unit %u has no params beside it", tile->tile,
                       tile->unit);
    if (tile_stream_format(tile->streams, 0) == TILE_PARAMS)
        return hash_bytes(self, state, high, left * sizeof(float), scratch, scratch_bytes);
    while (left > 0) {
        uint64_t part = size_min(left, most), bytes = part * sizeof *low_half;
        uint64_t at = done * sizeof *low_half;
        TRY(read_scratch(self, tile->offset[tile->newest] + at, scratch, bytes));
        TRY(read_scratch(self, high->offset[high->newest] + at, (unsigned char *)high_half, bytes));
        for (uint64_t i = 0; i < part; i++)
            joined[i] = master_join(high_half[i], low_half[i]);
        XXH3_64bits_update(state, joined, part * sizeof *joined);
        done += part;
        left -= part;
    }
    return 0;
}

/* Hashes the rank's own part of the unit's master weights or frozen params, without padding. */
static int hash_unit(struct engine *self, XXH3_state_t *state, uint32_t unit,
                     unsigned char *scratch, uint64_t scratch_bytes)
{
    const struct setup *setup = self->setup;
    uint64_t first = setup_state_begin(setup, unit);
    for (uint64_t i = 0; i < place_table_count(self->places); i++) {
        const place_entry *tile = place_table_at(self->places, i);
        bool learns = plan_learns(&setup->plan, unit);
        if (tile->unit != unit || (learns && tile->streams == 0))
            continue;
        uint64_t elems =
            shard_real_elems(setup->unit_elems[unit], first + tile->elem_begin, tile->elem_count);
        if (learns && tile_master_is_split(setup->plan.state_streams)) {
            TRY(hash_split(self, state, i, elems, scratch, scratch_bytes));
            continue;
        }
        uint64_t width = learns ? sizeof(float) : setup->plan.param_bytes;
        TRY(hash_bytes(self, state, tile, width * elems, scratch, scratch_bytes));
    }
    return 0;
}

/* Hashes units in order, and within a unit the ranks in order. Each rank passes the hash state to
 * the next. */
static int hash_all(struct engine *self, XXH3_state_t *state, XXH3_state_t *all,
                    unsigned char *scratch, uint64_t scratch_bytes)
{
    const struct setup *setup = self->setup;
    const struct ranks *ranks = &setup->ranks;
    bool is_cut = plan_is_sharded(&setup->plan, STATE_OPTIMIZER, 0);
    for (uint32_t u = 0; u < setup->net->unit_count; u++)
        for (uint32_t r = 0; r < (is_cut ? ranks->world : 1); r++) {
            int rc = r == ranks->rank ? hash_unit(self, state, u, scratch, scratch_bytes) : 0;
            if (ranks->world == 1) {
                TRY(rc);
                continue;
            }
            TRY(comm_agree(ranks->comm, "sum of the weights", rc));
            /* its address differs between processes */
            const unsigned char *secret = state->extSecret;
            TRY(comm_gather(ranks->comm, "sum of the weights", state, sizeof *state,
                            ranks->rank == 0 ? all : NULL));
            if (ranks->rank == 0)
                *state = all[r];
            TRY(comm_broadcast(ranks->comm, "sum of the weights", state, sizeof *state));
            state->extSecret = secret;
        }
    return 0;
}

int fixture_hash_weights(void *user, struct engine *self)
{
    enum { SCRATCH_BYTES = 1 << 20 };
    uint64_t *hash = user;
    *hash = 0;
    uint32_t world = self->setup->ranks.world;
    unsigned char *block = mem_alloc(SCRATCH_BYTES + TILE_BLOCK_BYTES, 1, "hash scratch");
    XXH3_state_t *states = mem_alloc(world + 1, sizeof *states, "hash states");
    int rc = block && states ? 0 : -ENOMEM;
    if (rc == 0) {
        unsigned char *scratch = block + (TILE_BLOCK_BYTES - (uintptr_t)block % TILE_BLOCK_BYTES);
        XXH3_64bits_reset(states);
        rc = hash_all(self, states, states + 1, scratch, SCRATCH_BYTES);
        if (rc == 0)
            *hash = XXH3_64bits_digest(states);
    }
    mem_free(block);
    mem_free(states);
    return rc;
}
