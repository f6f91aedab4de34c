/* What the ranks of a run tell each other between programs: inputs of the plan, so that all compile the same
 * one; the state that rank 0 found; losses and stops after each step. Every function here is called by all
 * ranks alike, on the loop's thread; with one rank each is its own answer. See train_internal.h. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY /* a state that can be handed on */
#include <xxhash.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/shard.h"
#include "base/size.h"
#include "base/tile.h"
#include "tiers/io.h"
#include "train/train_internal.h"

/* Open MPI binds ranks to one core each where there are no more than two, and nobody has asked for it. */
static void warn_of_one_core(const struct traini_ranks *self, const cpu_set_t *own)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (self->rank == 0 && CPU_COUNT(own) == 1 && online > (long)self->local_world &&
        getenv("OMPI_COMM_WORLD_SIZE"))
        log_warn(
            "each rank may run on one core alone, as mpirun binds it, and this machine has %ld: "
            "mpirun --bind-to none lets the ranks share them, configs/cluster shows more",
            online);
}

/* Whether another rank of this host may run on cores that this one may run on. */
static int find_shared_cores(struct traini_ranks *self)
{
    cpu_set_t *masks = mem_alloc(self->world, sizeof *masks, "affinity masks"), own, both;
    if (!masks)
        return -ENOMEM;
    CPU_ZERO(&own);
    int rc = sched_getaffinity(0, sizeof own, &own) == 0 ? 0 : err_errno(errno, "affinity mask");
    warn_of_one_core(self, &own);
    rc = comm_agree(self->comm, "affinity masks", rc);
    if (rc == 0)
        rc = comm_exchange(self->comm, "affinity masks", &own, sizeof own, masks);
    const comm_rank *list = comm_get_ranks(self->comm);
    for (uint32_t r = 0; rc == 0 && r < self->world; r++) {
        if (r == self->rank || list[r].host_idx != list[self->rank].host_idx)
            continue;
        CPU_AND(&both, &own, &masks[r]);
        self->shares_cores = self->shares_cores || CPU_COUNT(&both) > 0;
    }
    mem_free(masks);
    return rc;
}

void traini_name_host(struct traini_ranks *self)
{
    if (gethostname(self->host, sizeof self->host) != 0)
        snprintf(self->host, sizeof self->host, "localhost");
    self->host[sizeof self->host - 1] = '\0';
}

int traini_ranks_init(struct traini_ranks *self, comm *members)
{
    *self = (struct traini_ranks){.comm = members, .world = 1, .local_world = 1};
    traini_name_host(self);
    if (!members || comm_get_world(members) == 1)
        return 0;
    const comm_rank *own = &comm_get_ranks(members)[comm_get_rank(members)];
    self->rank = comm_get_rank(members);
    self->world = comm_get_world(members);
    self->local_rank = own->local_rank;
    self->local_world = own->local_world;
    snprintf(self->host, sizeof self->host, "%s", own->host);
    return find_shared_cores(self);
}

int traini_agree(const struct traini_ranks *self, const char *what, int code)
{
    return self->world > 1 ? comm_agree(self->comm, what, code) : code;
}

void traini_fail_all(const struct traini_ranks *self, int code)
{
    if (self->world > 1)
        comm_fail(self->comm, code, err_text());
}

int traini_barrier(const struct traini_ranks *self, const char *what)
{
    return self->world > 1 ? comm_barrier(self->comm, what) : 0;
}

int traini_from_rank0(const struct traini_ranks *self, const char *what, void *data, uint64_t bytes)
{
    return self->world > 1 ? comm_broadcast(self->comm, what, data, bytes) : 0;
}

int traini_all_true(const struct traini_ranks *self, const char *what, bool *value)
{
    uint8_t mine = *value, all[COMM_RANKS_MAX];
    if (self->world == 1)
        return 0;
    TRY(comm_exchange(self->comm, what, &mine, sizeof mine, all));
    for (uint32_t r = 0; r < self->world; r++)
        *value = *value && all[r];
    return 0;
}

/* ---- equal data ---- */

/* What tells data from other data: the length, and a sum over pieces of all of it. */
struct data_word {
    uint64_t token_count, sum;
};

static int sum_corpus(corpus *source, struct data_word *out)
{
    enum { PIECES = 64, PIECE_TOKENS = 1024 };
    int32_t tokens[PIECE_TOKENS];
    uint64_t token_count = corpus_token_count(source), count = size_min(PIECE_TOKENS, token_count);
    const uint64_t counts[] = {token_count, corpus_counted(source), corpus_document_count(source)};
    out->sum = XXH3_64bits_withSeed(counts, sizeof counts, out->sum);
    for (uint64_t i = 0; i < PIECES; i++) {
        uint64_t begin = (token_count - count) / (PIECES - 1) * i;
        TRY(corpus_read(source, begin, count, tokens));
        out->sum = XXH3_64bits_withSeed(tokens, count * sizeof *tokens, out->sum);
    }
    return 0;
}

static int sum_data(const mixture *sources, struct data_word *out)
{
    out->token_count = mixture_token_count(sources);
    for (uint32_t s = 0; s < mixture_source_count(sources); s++)
        TRY(sum_corpus(mixture_source(sources, s), out));
    return 0;
}

int traini_compare_data(traini_loop *self)
{
    static const char *const names[2] = {"data.train", "data.valid"};
    const struct traini_ranks *ranks = &self->ranks;
    const mixture *const sources[2] = {self->train_data, self->valid_data};
    struct data_word own[2], first[2];
    int rc = 0;
    if (ranks->world == 1)
        return 0;
    memset(own, 0, sizeof own);
    for (int i = 0; rc == 0 && i < 2; i++)
        if (sources[i])
            rc = sum_data(sources[i], &own[i]);
    TRY(comm_agree(ranks->comm, "data", rc));
    memcpy(first, own, sizeof first);
    TRY(comm_broadcast(ranks->comm, "data", first, sizeof first));
    for (int i = 0; rc == 0 && i < 2; i++)
        if (memcmp(&own[i], &first[i], sizeof *own) != 0)
            rc = err_set(ERR_INPUT,
                         "%s has %llu tokens here and %llu%s on rank 0: all ranks are to read the "
                         "same files; copy them to each host, or name a shared file system",
                         names[i], (unsigned long long)own[i].token_count,
                         (unsigned long long)first[i].token_count,
                         own[i].token_count == first[i].token_count ? " others" : "");
    return comm_agree(ranks->comm, "data", rc);
}

/* ---- equal plans ---- */

struct plan_inputs {
    uint64_t budget_bytes[TIER_COUNT];
    uint64_t
        workspace_bytes; /* which the products of other kernels or threads need more or less of */
    plan_machine machine;
    uint64_t kernels_hash; /* of the backend's description */
    uint64_t packed_hash;  /* of what passes hold packed, which other kernels lay otherwise */
    uint64_t stage_count, pass_count;
};

/* Budgets that hold on every rank, a workspace that is enough for each; the machine as rank 0 knows it. */
static void join_inputs(const struct plan_inputs *all, uint32_t world, plan_job *plan)
{
    for (int a = 0; a < TIER_COUNT; a++)
        for (uint32_t r = 0; r < world; r++)
            plan->budget_bytes[a] = size_min(plan->budget_bytes[a], all[r].budget_bytes[a]);
    for (uint32_t r = 0; r < world; r++)
        plan->workspace_bytes = size_max(plan->workspace_bytes, all[r].workspace_bytes);
    plan->machine = all[0].machine;
}

/* Ranks of another model are told by their programs, which are compared later. */
static bool have_equal_passes(const struct plan_inputs *all, uint32_t world)
{
    for (uint32_t r = 1; r < world; r++)
        if (all[r].stage_count != all[0].stage_count || all[r].pass_count != all[0].pass_count)
            return false;
    return true;
}

static uint64_t hash_packed(const traini_setup *self)
{
    uint64_t hash = 0;
    for (uint64_t p = 0; p < self->pass_count; p++) {
        const plan_pass *pass = &self->passes[p];
        const uint64_t own[] = {hash, pass->packed_bytes, pass->kept_packed_bytes,
                                pass->packs_alone};
        hash = XXH3_64bits(own, sizeof own);
    }
    return hash;
}

/* Ranks whose kernels differ in that hold nothing packed: all have one program. */
static void join_packed(traini_setup *self, const struct plan_inputs *all, uint32_t world)
{
    bool is_equal = true;
    for (uint32_t r = 1; r < world; r++)
        is_equal = is_equal && all[r].packed_hash == all[0].packed_hash;
    for (uint64_t p = 0; p < self->pass_count && !is_equal; p++)
        self->passes[p].packed_bytes = self->passes[p].kept_packed_bytes = 0;
}

enum { PASS_TIMES = 5 };

/* Of each stage what its kept activations save, then of each pass: into the list, or out of it. */
static void copy_times(traini_setup *self, double *list, bool to_list)
{
    for (uint32_t s = 0; s < self->plan.stage_count; s++) {
        double *own = &self->stages[s].recompute_seconds;
        *(to_list ? list : own) = *(to_list ? own : list);
        list++;
    }
    for (uint64_t p = 0; p < self->pass_count; p++) {
        plan_pass *pass = &self->passes[p];
        double *const own[PASS_TIMES] = {&pass->seconds, &pass->packing_seconds,
                                         &pass->packing_once_seconds, &pass->kept_packing_seconds,
                                         &pass->kept_packing_once_seconds};
        for (int i = 0; i < PASS_TIMES; i++, list++)
            *(to_list ? list : own[i]) = *(to_list ? own[i] : list);
    }
}

/* The times of the passes, as rank 0 has them: another file, other cores or another math library give others. */
static int share_times(traini_setup *self)
{
    uint64_t count = self->plan.stage_count + PASS_TIMES * self->pass_count;
    double *list = mem_alloc(count, sizeof *list, "times of the passes");
    int rc = comm_agree(self->ranks.comm, "times of the passes", list ? 0 : -ENOMEM);
    if (rc == 0) {
        copy_times(self, list, true);
        rc = comm_broadcast(self->ranks.comm, "times of the passes", list, count * sizeof *list);
        copy_times(self, list, false);
    }
    mem_free(list);
    return rc;
}

int traini_share_inputs(traini_setup *self)
{
    const struct traini_ranks *ranks = &self->ranks;
    if (ranks->world == 1 || !ranks->comm) /* a plan that nobody runs has this process's figures */
        return 0;
    const char *kernels = self->ops->describe(self->context);
    struct plan_inputs own, *all = mem_alloc(ranks->world, sizeof *all, "plan inputs");
    if (!all)
        return -ENOMEM;
    memset(&own, 0, sizeof own);
    memcpy(own.budget_bytes, self->plan.budget_bytes, sizeof own.budget_bytes);
    own.workspace_bytes = self->plan.workspace_bytes;
    own.machine = self->plan.machine;
    own.kernels_hash = XXH3_64bits(kernels, strlen(kernels));
    own.stage_count = self->plan.stage_count;
    own.pass_count = self->pass_count;
    own.packed_hash = hash_packed(self);
    int rc = comm_exchange(ranks->comm, "budgets", &own, sizeof own, all);
    if (rc == 0) {
        join_inputs(all, ranks->world, &self->plan);
        join_packed(self, all, ranks->world);
        if (own.kernels_hash != all[0].kernels_hash)
            log_warn(
                "rank %u computes with %s, rank 0 with other kernels: a run whose ranks change "
                "places gives other bits",
                ranks->rank, kernels);
        rc = comm_broadcast(ranks->comm, "identity", self->identity, sizeof self->identity);
        self->fingerprint = XXH3_64bits(self->identity, strlen(self->identity));
    }
    if (rc == 0 && have_equal_passes(all, ranks->world))
        rc = share_times(self);
    mem_free(all);
    return rc;
}

int traini_compare_programs(const traini_setup *self)
{
    const struct traini_ranks *ranks = &self->ranks;
    uint64_t own[PROGRAM_KIND_COUNT], all[PROGRAM_KIND_COUNT];
    if (ranks->world == 1 || !ranks->comm)
        return 0;
    for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
        all[k] = own[k] = program_hash(&self->set.programs[k]);
    TRY(comm_broadcast(ranks->comm, "program hashes", all, sizeof all));
    int rc = 0;
    for (int k = 0; k < PROGRAM_KIND_COUNT && rc == 0; k++)
        if (own[k] != all[k])
            rc = err_set(
                ERR_INTERNAL,
                "the program \"%s\" is another one than rank 0's (%016llx, not %016llx), so "
                "their collectives would not meet: start all ranks with the same sluice and "
                "the same job",
                program_kind_name((enum program_kind)k), (unsigned long long)own[k],
                (unsigned long long)all[k]);
    return comm_agree(ranks->comm, "program hashes", rc);
}

/* ---- what rank 0 found ---- */

int traini_share_manifest(const struct traini_ranks *self, manifest *found, bool *exists)
{
    if (self->world == 1)
        return 0;
    uint8_t there = *exists;
    TRY(comm_broadcast(self->comm, "whether there is a run", &there, sizeof there));
    *exists = there;
    if (!there)
        return 0;
    manifest_extent *own = self->rank == 0 ? found->extents : NULL;
    int rc = comm_broadcast(self->comm, "manifest", found, sizeof *found);
    found->extents = own; /* what has come is rank 0's address, also of a broadcast cut short */
    TRY(rc);
    if (!own)
        found->extents = mem_alloc(found->extent_count, sizeof *own, "manifest extents");
    TRY(traini_agree(self, "manifest", found->extents ? 0 : -ENOMEM));
    return comm_broadcast(self->comm, "manifest extents", found->extents,
                          found->extent_count * sizeof *found->extents);
}

/* ---- after each step ---- */

struct step_word {
    double loss_sum;
    uint64_t target_count;
    uint8_t asks_stop;
};

int traini_share_step(traini_loop *self, double own_sum, double *total)
{
    const struct traini_ranks *ranks = &self->ranks;
    const volatile sig_atomic_t *stop = self->options->stop;
    if (ranks->world == 1) {
        *total = own_sum;
        self->is_asked_to_stop = stop && *stop;
        return 0;
    }
    struct step_word own;
    memset(&own, 0, sizeof own);
    own.loss_sum = own_sum;
    own.asks_stop = stop && *stop;
    TRY(comm_exchange(ranks->comm, "losses", &own, sizeof own, self->step_words));
    const struct step_word *all = self->step_words;
    *total = 0;
    for (uint32_t r = 0; r < ranks->world; r++) { /* in rank order: the same sum everywhere */
        *total += all[r].loss_sum;
        self->is_asked_to_stop = self->is_asked_to_stop || all[r].asks_stop;
    }
    return 0;
}

int traini_share_count(traini_loop *self, uint64_t own_count, uint64_t *total)
{
    const struct traini_ranks *ranks = &self->ranks;
    *total = own_count;
    if (ranks->world == 1)
        return 0;
    struct step_word own;
    memset(&own, 0, sizeof own);
    own.target_count = own_count;
    TRY(comm_exchange(ranks->comm, "targets", &own, sizeof own, self->step_words));
    *total = 0;
    for (uint32_t r = 0; r < ranks->world; r++)
        *total += self->step_words[r].target_count;
    return 0;
}

int traini_make_step_words(traini_loop *self)
{
    self->step_words = mem_alloc(self->ranks.world, sizeof(struct step_word), "step words");
    return self->step_words ? 0 : -ENOMEM;
}

/* ---- sums over all weights ---- */

static int read_scratch(traini_engine *self, uint64_t offset, unsigned char *scratch,
                        uint64_t bytes)
{
    return io_transfer(self->transport, IO_READ, offset, scratch,
                       size_round_up(bytes, TILE_BLOCK_BYTES));
}

/* The entry of the params of the tile `idx`, whose master is split: those of a unit follow all its state. */
static const place_entry *high_of(const traini_engine *self, uint64_t idx)
{
    const traini_setup *setup = self->setup;
    const place_entry *tile = place_table_at(self->places, idx);
    uint64_t at = idx + tile_count(plan_rest_elems(&setup->plan, STATE_OPTIMIZER, tile->unit),
                                   setup->set.tile_elems);
    const place_entry *high =
        at < place_table_count(self->places) ? place_table_at(self->places, at) : NULL;
    bool is_it = high && high->unit == tile->unit && high->tile == tile->tile && !high->streams;
    return is_it ? high : NULL;
}

/* The first `left` masters of the tile `idx`, joined from their halves. */
static int hash_split(traini_engine *self, XXH3_state_t *state, uint64_t idx, uint64_t left,
                      unsigned char *scratch, uint64_t scratch_bytes)
{
    const place_entry *tile = place_table_at(self->places, idx), *high = high_of(self, idx);
    uint64_t most = scratch_bytes / 8 / TILE_BLOCK_BYTES * TILE_BLOCK_BYTES, done = 0;
    uint16_t *low_half = (uint16_t *)(void *)scratch, *high_half = low_half + most;
    float *joined = (float *)(void *)(high_half + most);
    if (!high)
        return err_set(ERR_INTERNAL, "tile %u of unit %u has no params beside it", tile->tile,
                       tile->unit);
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

/* Adds the rank's own part of the unit's master weights, or of its frozen params, to the state: elements of the
 * unit, not padding. */
static int hash_unit(traini_engine *self, XXH3_state_t *state, uint32_t unit,
                     unsigned char *scratch, uint64_t scratch_bytes)
{
    const traini_setup *setup = self->setup;
    uint64_t first = traini_state_begin(setup, unit);
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
        uint64_t width = learns ? sizeof(float) : setup->plan.param_bytes, left = width * elems;
        for (uint64_t offset = tile->offset[tile->newest]; left > 0;) {
            uint64_t part = size_min(left, scratch_bytes);
            TRY(read_scratch(self, offset, scratch, part));
            XXH3_64bits_update(state, scratch, part);
            offset += part;
            left -= part;
        }
    }
    return 0;
}

/* Units in order; within a unit the ranks in order, each of which hands the state of the sum on. */
static int hash_all(traini_engine *self, XXH3_state_t *state, XXH3_state_t *all,
                    unsigned char *scratch, uint64_t scratch_bytes)
{
    const traini_setup *setup = self->setup;
    const struct traini_ranks *ranks = &setup->ranks;
    bool is_cut = plan_is_sharded(&setup->plan, STATE_OPTIMIZER, 0);
    for (uint32_t u = 0; u < setup->net->unit_count; u++)
        for (uint32_t r = 0; r < (is_cut ? ranks->world : 1); r++) {
            int rc = r == ranks->rank ? hash_unit(self, state, u, scratch, scratch_bytes) : 0;
            if (ranks->world == 1) {
                TRY(rc);
                continue;
            }
            TRY(comm_agree(ranks->comm, "sum of the weights", rc));
            const unsigned char *secret = state->extSecret; /* elsewhere in each process */
            TRY(comm_gather(ranks->comm, "sum of the weights", state, sizeof *state,
                            ranks->rank == 0 ? all : NULL));
            if (ranks->rank == 0)
                *state = all[r];
            TRY(comm_broadcast(ranks->comm, "sum of the weights", state, sizeof *state));
            state->extSecret = secret;
        }
    return 0;
}

int traini_weights_hash(traini_engine *self, uint64_t *hash)
{
    enum { SCRATCH_BYTES = 1 << 20 };
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

/* ---- the end ---- */

int traini_collect_ranks(traini_loop *self)
{
    struct train_summary *summary = self->summary;
    const traini_engine *engine = self->engine;
    const struct traini_ranks *ranks = &self->ranks;
    struct train_rank own = {.sent_bytes = self->sent_bytes};
    snprintf(own.host, sizeof own.host, "%s", ranks->host);
    for (int a = TIER_DEVICE; a <= TIER_HOST; a++)
        own.arena_bytes[a] = engine->arenas[a].size_bytes;
    own.arena_bytes[TIER_NVME] = traini_reached_bytes(self->setup, TIER_NVME);
    for (uint32_t d = 0; d < engine->disk->drive_count; d++)
        own.slab_file_bytes += engine->disk->files[d].file_bytes;
    TRY(arena_process_memory(NULL, &own.resident_bytes_max, NULL));
    summary->world_size = ranks->world;
    if (ranks->world == 1 || comm_is_pretended(ranks->comm)) {
        summary->ranks[0] = own;
        return 0;
    }
    struct train_rank *all = mem_alloc(ranks->world, sizeof *all, "rank summaries");
    int rc = comm_agree(ranks->comm, "rank summaries", all ? 0 : -ENOMEM);
    if (rc == 0)
        rc = comm_gather(ranks->comm, "rank summaries", &own, sizeof own,
                         ranks->rank == 0 ? all : NULL);
    enum { SHOWN = sizeof summary->ranks / sizeof summary->ranks[0] };
    for (uint32_t r = 0; rc == 0 && ranks->rank == 0 && r < size_min(ranks->world, SHOWN); r++)
        summary->ranks[r] = all[r];
    mem_free(all);
    return rc;
}
