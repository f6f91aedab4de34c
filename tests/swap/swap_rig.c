/* See swap_rig.h; and the values of swap_fixture.h: arenas with random content and ops that mix all
 * they read. */
#include <errno.h>

#include "base/mem.h"
#include "base/rng.h"
#include "swap/lane.h"
#include "tests/swap/swap_fixture.h"
#include "tests/swap/swap_rig.h"
#include "tests/unit.h"

enum { OWNER_CORES = 1, OWNER_FIRST = 2 };

bool rig_is_paranoid;

/* The callback of the lane `kind`: the ops themselves, or paranoid mode before them. */
static void set_callback(rig *self, const program *prog, int kind, bool shared_worker,
                         fake_lane_config *out)
{
    out->run = fixture_execute;
    out->user = &self->arenas;
    if (!rig_is_paranoid || kind < LANE_H2D)
        return;
    paranoid_config config = {
        .programs = &prog, .program_count = 1, .run = fixture_execute, .user = &self->arenas};
    config.serves[kind] = true;
    config.serves[LANE_UPDATE] |= shared_worker && kind == LANE_COMPUTE;
    config.arena_base[TIER_DEVICE] = self->arenas.base[TIER_DEVICE];
    config.arena_base[TIER_HOST] = self->arenas.base[TIER_HOST];
    assert_int_equal(paranoid_create(&config, &self->checked[kind]), 0);
    out->run = paranoid_run;
    out->user = self->checked[kind];
}

void rig_set_programs(rig *self, const program *const *programs, uint32_t count)
{
    executor_config config = {
        .programs = programs,
        .program_count = count,
        .ring = &self->ring,
        .is_skipped = &self->arenas.is_skipped,
        .is_committing = &self->arenas.is_committing,
        .paranoid = rig_is_paranoid,
    };
    memcpy(config.lanes, self->lanes, sizeof config.lanes);
    memcpy(config.arena_base, self->arenas.base, sizeof config.arena_base);
    executor_destroy(self->exec);
    assert_int_equal(executor_create(&config, &self->exec), 0);
}

static void set_skipped(rig *self, const program *prog, const rig_config *config)
{
    self->skipped = mem_alloc(prog->op_count, sizeof *self->skipped, "test rig");
    assert_non_null(self->skipped);
    for (uint32_t i = 0; i < prog->op_count; i++)
        self->skipped[i] = !fixture_runs(prog, i, config->skip, !config->no_commit);
    self->watch.skipped = self->skipped;
}

void rig_init(rig *self, const program *prog, const rig_config *config)
{
    memset(self, 0, sizeof *self);
    fixture_arenas_init(&self->arenas, prog, config->seed);
    fake_watch_init(&self->watch, prog);
    self->arenas.is_committing = !config->no_commit;
    if (config->skip || config->no_commit)
        set_skipped(self, prog, config);
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        bool is_cores = kind == LANE_COMPUTE || kind == LANE_UPDATE;
        fake_lane_config one = {
            .seed = config->seed * 100 + (uint64_t)kind,
            .depth = 1 + (uint32_t)rng_below(config->seed, 31, (uint64_t)kind, 5),
            .in_order = kind >= LANE_H2D,
            .keeps_behind = kind <= LANE_WRITE && config->seed % 3 != 0,
            .owner = is_cores && config->shared_worker ? OWNER_CORES : OWNER_FIRST + (uint32_t)kind,
            .threaded = config->threaded,
            .busy_one_in = config->busy_one_in,
            .busy_for_others = config->seed % 2 == 0,
            .fail_op_idx = config->fail_op_idx,
            .fail_code = -EIO,
            .fail_submit = config->fail_submit,
            .fail_poll = config->fail_poll,
            .watch = &self->watch,
        };
        bool shares = kind == LANE_UPDATE && config->shared_worker;
        if (!shares)
            set_callback(self, prog, kind, config->shared_worker, &one);
        self->lanes[kind] = shares ? self->lanes[LANE_COMPUTE] : fake_lane_create(&one);
        self->depths[kind] = self->lanes[kind]->depth;
        self->watch.lanes[kind] = self->lanes[kind];
    }
    assert_int_equal(trace_init(&self->ring, 1024), 0);
    rig_set_programs(self, &prog, 1);
}

void rig_fini(rig *self)
{
    executor_destroy(self->exec);
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        if (kind == LANE_COMPUTE || self->lanes[kind] != self->lanes[LANE_COMPUTE])
            self->lanes[kind]->ops->destroy(self->lanes[kind]);
        paranoid_destroy(self->checked[kind]);
    }
    trace_fini(&self->ring);
    fake_watch_fini(&self->watch);
    mem_free(self->skipped);
    fixture_arenas_fini(&self->arenas);
}

void rig_forget_run(rig *self)
{
    memset(self->watch.states, 0, self->watch.prog->op_count);
    memset(self->watch.next_min, 0, sizeof self->watch.next_min);
}

uint32_t rig_in_flight(const rig *self)
{
    uint32_t total = 0;
    for (int kind = 0; kind < LANE_COUNT; kind++)
        total += self->watch.in_flight[kind];
    return total;
}

bool rig_matches(const rig *self, const fixture_arenas *serial)
{
    return rig_is_paranoid ? fixture_homes_equal(self->watch.prog, &self->arenas, serial)
                           : fixture_arenas_equal(&self->arenas, serial);
}

void rig_check_discipline(const rig *self, uint64_t seed)
{
    const fake_watch *watch = &self->watch;
    if (watch->fifo_violations || watch->dep_violations || watch->behind_violations ||
        watch->skipped_submits)
        fail_msg(
            "seed %llu: %llu ops out of the lane's order, %llu before a dependency, %llu before "
            "what they go behind, %llu that were to be skipped",
            (unsigned long long)seed, (unsigned long long)watch->fifo_violations,
            (unsigned long long)watch->dep_violations, (unsigned long long)watch->behind_violations,
            (unsigned long long)watch->skipped_submits);
    for (int kind = 0; kind < LANE_COUNT; kind++)
        if (watch->in_flight_max[kind] > self->depths[kind])
            fail_msg("seed %llu: lane %s had %u in flight, its depth is %u",
                     (unsigned long long)seed, lane_kind_name((enum lane_kind)kind),
                     watch->in_flight_max[kind], self->depths[kind]);
    assert_int_equal(rig_in_flight(self), 0);
}

bool rig_mode_from(int argc, char **argv)
{
    rig_is_paranoid = argc > 1 && strcmp(argv[1], "paranoid") == 0;
    printf("mode: %s\n", rig_is_paranoid ? "paranoid" : "plain");
    return rig_is_paranoid;
}

/* --- values --- */

void fixture_arenas_init(fixture_arenas *self, const program *prog, uint64_t seed)
{
    self->is_skipped = self->norm_skips = false;
    self->is_committing = true;
    for (int a = 0; a < TIER_COUNT; a++) {
        self->size_bytes[a] = prog->budget_bytes[a];
        self->base[a] = mem_alloc(self->size_bytes[a], 1, "test arena");
        must(self->base[a] != NULL, "self->base[a] != NULL");
        for (uint64_t i = 0; i + 8 <= self->size_bytes[a]; i += 8) {
            uint64_t value = rng_u64(seed, (uint64_t)a, i);
            memcpy(self->base[a] + i, &value, 8);
        }
    }
}

void fixture_arenas_fini(fixture_arenas *self)
{
    for (int a = 0; a < TIER_COUNT; a++)
        mem_free(self->base[a]);
}

static unsigned char *operand_memory(fixture_arenas *self, const program *prog, const operand *part)
{
    return lane_operand_address(self->base[prog->buffers[part->buffer_idx].arena], prog, part);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ (hash >> 29);
}

int fixture_execute(void *user, const program *prog, const op *item)
{
    fixture_arenas *self = user;
    if (item->lane < LANE_COMM) {
        const operand *source = op_operand(item, ROLE_SOURCE);
        memcpy(operand_memory(self, prog, op_operand(item, ROLE_TARGET)),
               operand_memory(self, prog, source), source->size_bytes);
        return 0;
    }
    uint64_t hash = (uint64_t)(item - prog->ops) + 1, word;
    const operand *hits = op_operand(item, ROLE_HITS);
    bool is_hit = !hits || hits->access != ACCESS_READ || *operand_memory(self, prog, hits) != 0;
    for (uint32_t k = 0; k < item->operand_count; k++) {
        const operand *part = &item->operands[k];
        const unsigned char *from = operand_memory(self, prog, part);
        if (part->role == ROLE_HITS || (part->role == ROLE_PARAMS0 && !is_hit))
            continue;
        for (uint64_t i = 0; i < part->size_bytes && (part->access & ACCESS_READ); i += 8) {
            memcpy(&word, from + i, 8);
            hash = mix(hash, word);
        }
    }
    for (uint32_t k = 0; k < item->operand_count; k++) {
        const operand *part = &item->operands[k];
        unsigned char *to = operand_memory(self, prog, part);
        if (part->role == ROLE_HITS) {
            for (uint64_t i = 0; i < part->size_bytes && (part->access & ACCESS_WRITE); i++)
                to[i] = mix(hash, i) >> 63;
            continue;
        }
        for (uint64_t i = 0; i < part->size_bytes && (part->access & ACCESS_WRITE); i += 8) {
            word = mix(hash, i);
            memcpy(to + i, &word, 8);
        }
    }
    if (item->kind == OP_NORM)
        self->is_skipped = self->norm_skips;
    return 0;
}

void fixture_execute_all(fixture_arenas *arenas, const program *prog)
{
    fixture_execute_unless(arenas, prog, false);
}

void fixture_execute_unless(fixture_arenas *arenas, const program *prog, bool skipped)
{
    fixture_execute_where(arenas, prog, skipped, true);
}

void fixture_execute_where(fixture_arenas *arenas, const program *prog, bool skipped, bool commits)
{
    for (uint32_t i = 0; i < prog->op_count; i++)
        if (fixture_runs(prog, i, skipped, commits))
            (void)fixture_execute(arenas, prog, &prog->ops[i]);
}

bool fixture_arenas_equal(const fixture_arenas *a, const fixture_arenas *b)
{
    for (int k = 0; k < TIER_COUNT; k++)
        if (a->size_bytes[k] != b->size_bytes[k] ||
            memcmp(a->base[k], b->base[k], a->size_bytes[k]) != 0)
            return false;
    return true;
}

bool fixture_homes_equal(const program *prog, const fixture_arenas *a, const fixture_arenas *b)
{
    for (uint64_t i = 0; i < prog->home_count; i++) {
        const buffer *home = &prog->buffers[i];
        if (memcmp(a->base[home->arena] + home->offset_bytes,
                   b->base[home->arena] + home->offset_bytes, home->size_bytes) != 0)
            return false;
    }
    return true;
}
