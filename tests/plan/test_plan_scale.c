/* The compiler on models of 10 and 1000 billion parameters, and at its limits: the plan and the
 * refusal come in bounded memory, chosen tiles keep to their floor and cap, what 32 bits cannot
 * count is an error, and optimizer state does not move on the slab when other states move between
 * the tiers. */
#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "base/tile.h"
#include "plan/plan.h"
#include "plan/search/search_internal.h"
#include "tests/plan/plan_large.h"
#include "tests/unit.h"

enum { UNITS_MAX = LARGE_UNITS_MAX };

struct large_job {
    plan_job job;
    uint64_t elems[UNITS_MAX];
    struct stage stages[UNITS_MAX];
    struct pass passes[UNITS_MAX][2];
    uint8_t homes[STATE_KIND_COUNT][UNITS_MAX];
};

/* A gpt2-like model with a tied head; all states on nvme but activations, which rest on the
 * host. */
static void make_job(struct large_job *l, uint32_t layers, uint64_t hidden)
{
    static const uint8_t rests[STATE_KIND_COUNT] = {[STATE_PARAMS] = TIER_NVME,
                                                    [STATE_GRADS] = TIER_NVME,
                                                    [STATE_OPTIMIZER] = TIER_NVME,
                                                    [STATE_ACTIVATIONS] = TIER_HOST,
                                                    [STATE_INNER_ACTIVATIONS] = TIER_COUNT};
    memset(l, 0, sizeof *l);
    plan_job *job = &l->job;
    large_job_make(job, l->elems, l->stages, l->passes, layers, hidden);
    for (int k = 0; k < STATE_KIND_COUNT; k++) {
        memset(l->homes[k], rests[k], job->unit_count);
        job->homes[k] = l->homes[k];
    }
    job->update = UPDATE_IN_NEXT_FORWARD;
    job->budget_bytes[TIER_DEVICE] = job->budget_bytes[TIER_HOST] = 16 * GIB;
    job->budget_bytes[TIER_NVME] = 200 * GIB;
    plan_machine_default_gpu(&job->machine, 2, 8, 0);
    job->machine.device_flops_per_second = 1e14;
}

/* Most bytes of heap that the process ever had, tests before included. */
static uint64_t heap_most(void)
{
    mem_stats stats;
    mem_get_stats(&stats);
    return stats.live_bytes_max;
}

static uint64_t needed(const char *key)
{
    const char *at = strstr(err_text(), key);
    return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

/* Refused, and with exactly what the refusal names it fits. */
static void assert_refused(struct large_job *l, enum tier arena, const char *key)
{
    plan_set set;
    assert_int_equal(plan_compile(&l->job, &set), ERR_NO_FIT);
    print_message("%s\n", err_text());
    uint64_t need = needed(key);
    assert_true(need > l->job.budget_bytes[arena]);
    l->job.budget_bytes[arena] = need - TILE_BLOCK_BYTES;
    assert_int_equal(plan_compile(&l->job, &set), ERR_NO_FIT);
    assert_true(heap_most() < GIB);
    l->job.budget_bytes[arena] = need;
    assert_int_equal(plan_compile(&l->job, &set), 0);
    plan_set_fini(&set);
}

static void large_jobs_are_refused(void **state)
{
    struct large_job l;
    make_job(&l, 50, 4096);
    l.job.budget_bytes[TIER_NVME] = 20 * GIB;
    assert_refused(&l, TIER_NVME, "tiers.nvme[].budget=");
    make_job(&l, 50, 4096);
    l.job.budget_bytes[TIER_DEVICE] = 2 * GIB;
    assert_refused(&l, TIER_DEVICE, "tiers.device.budget=");
}

static uint64_t tiles_of(const struct large_job *l, uint64_t tile_elems)
{
    uint64_t tiles = 0;
    for (uint32_t u = 0; u < l->job.unit_count; u++)
        tiles += tile_count(l->elems[u], tile_elems);
    return tiles;
}

static void a_thousand_billion_parameters_are_planned(void **state)
{
    struct large_job l;
    make_job(&l, 128, 25600);
    l.job.budget_bytes[TIER_DEVICE] = l.job.budget_bytes[TIER_HOST] = 96 * GIB;
    l.job.budget_bytes[TIER_NVME] = 32 * 1024 * GIB;
    l.job.commits = true;
    plan_set set;
    assert_int_equal(plan_compile(&l.job, &set), 0);
    uint64_t tiles = tiles_of(&l, set.tile_elems);
    assert_true(tiles <= (1 << 16) + UNITS_MAX);
    const program *steady = &set.programs[PROGRAM_STEADY];
    print_message("%llu tiles of %llu, %llu ops in the steady step\n", (unsigned long long)tiles,
                  (unsigned long long)set.tile_elems, (unsigned long long)steady->op_count);
    /* State and gradient in, update, state and params out, params to the device; params of the
     * backward in two hops; gradients closed and out in two. Units at the turn are fetched once. */
    assert_true(steady->op_count > 9 * tiles && steady->op_count < 12 * tiles);
    assert_int_equal(set.commit, PLAN_COMMIT_BEHIND);
    assert_true(set.second_bytes > UINT64_C(12000000000000));
    plan_set_fini(&set);
    assert_true(heap_most() < 2 * GIB);
}

static uint64_t first_tile(const plan_job *job)
{
    struct plani_candidate list[PLANI_CANDIDATES_MAX];
    return plani_list_candidates(job, list) ? list[0].tile_elems : 0;
}

static uint64_t last_tile(const plan_job *job)
{
    struct plani_candidate list[PLANI_CANDIDATES_MAX];
    return list[plani_list_candidates(job, list) - 1].tile_elems;
}

/* Batch-major, accumulators go to the drives and come back with each micro-batch: tiles are the
 * larger the more that is, so that the step does not outgrow what can be looked at. */
static void what_moves_with_each_micro_batch_is_bounded(void **state)
{
    struct large_job l;
    uint64_t elems = 0;
    make_job(&l, 50, 4096);
    for (uint32_t u = 0; u < l.job.unit_count; u++)
        elems += l.elems[u];
    uint64_t usual = first_tile(&l.job);
    l.job.micro_batch_count = 64;
    assert_int_equal(first_tile(&l.job), usual);
    l.job.order = ORDER_BATCH_MAJOR;
    uint64_t largest = first_tile(&l.job), least = last_tile(&l.job);
    assert_true(elems * 64 / usual > 1 << 17 && elems * 64 / largest <= 1 << 16);
    assert_true(least < usual &&
                elems * 64 / least <= 1 << 19); /* where larger ones have no room */
    l.job.micro_batch_count = 1024;
    assert_true(elems * 1024 / last_tile(&l.job) <= 1 << 19);
    memset(l.homes[STATE_GRADS], TIER_DEVICE, UNITS_MAX); /* they stay */
    assert_int_equal(first_tile(&l.job), usual);
}

/* ---- the search does not repeat itself ------------------------------------------------------- */

static void count_notes(void *user, const plan_watch *watch)
{
    uint32_t *notes = user;
    assert_non_null(watch);
    ++*notes;
}

/* Homes that are open, of a model whose state needs all three tiers. */
static void no_step_is_simulated_twice(void **state)
{
    struct large_job l;
    uint8_t homes[STATE_KIND_COUNT][UNITS_MAX], open[UNITS_MAX];
    uint32_t notes = 0;
    plan_watch watch = {.on_progress = count_notes, .user = &notes};
    struct plan_place_found *found = calloc(1, sizeof *found);
    assert_non_null(found);
    make_job(&l, 12, 1024);
    memset(open, TIER_AUTO, sizeof open);
    l.job.budget_bytes[TIER_DEVICE] = l.job.budget_bytes[TIER_HOST] = GIB;
    l.job.watch = &watch;
    struct plan_place_asked asked = {.job = &l.job, .chooses_update = true, .has_drives = true};
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        asked.wanted[kind] = open;
        found->homes[kind] = homes[kind];
    }
    assert_int_equal(plan_place(&asked, found), 0);
    print_message("%u trials, %u compiles, %u known; %llu ops, %llu of them built or simulated\n",
                  found->trial_count, found->compile_count, found->repeat_count,
                  (unsigned long long)found->work_ops, (unsigned long long)watch.op_count);
    /* Moves and reasons ask again for what the search has tried, and that costs nothing. */
    assert_true(found->repeat_count > 0 && found->compile_count == 1);
    assert_true(watch.op_count > 0 && watch.op_count <= found->work_ops);
    assert_true(notes > watch.step_count);
    assert_string_equal(watch.what, "looking for reasons");
    plan_set_fini(&found->set);
    free(found);
}

/* A walk over all stages for each unit took minutes at this depth. */
static void very_deep_models_are_looked_at(void **state)
{
    enum { DEEP = 200000 };
    struct large_job one;
    uint64_t *elems = calloc(DEEP, sizeof *elems);
    struct stage *stages = calloc(DEEP, sizeof *stages);
    uint8_t *bytes = calloc(DEEP, 1 + STATE_KIND_COUNT);
    struct pass(*passes)[2] = calloc(DEEP, sizeof *passes);
    struct plan_place_found *found = calloc(1, sizeof *found);
    assert_true(elems && stages && bytes && passes && found);
    make_job(&one, 2, 256);
    plan_job job = one.job;
    job.unit_count = job.stage_count = DEEP;
    job.unit_elems = elems;
    job.stages = stages;
    job.no_advice = true;
    for (uint32_t u = 0; u < DEEP; u++)
        large_stage(&job, u, 256, elems, &stages[u], passes[u]);
    memset(bytes, TIER_AUTO, DEEP);
    struct plan_place_asked asked = {.job = &job, .has_drives = true, .only_fits = true};
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        asked.wanted[kind] = bytes;
        found->homes[kind] = bytes + (uint64_t)(1 + kind) * DEEP;
    }
    job.budget_bytes[TIER_NVME] = GIB;
    assert_int_equal(plan_place(&asked, found), ERR_NO_FIT);
    free(elems);
    free(stages);
    free(bytes);
    free(passes);
    free(found);
}

static void chosen_tiles_keep_to_the_cap(void **state)
{
    struct large_job l;
    make_job(&l, 4, 1024);
    plan_set set;
    assert_int_equal(plan_compile(&l.job, &set), 0);
    uint64_t chosen = set.tile_elems;
    plan_set_fini(&set);
    l.job.tile_elems_max = chosen / 2 - 1; /* rounded up */
    assert_int_equal(plan_compile(&l.job, &set), 0);
    assert_true(set.tile_elems <= chosen / 2 && set.tile_elems % TILE_ELEMS_STEP == 0);
    plan_set_fini(&set);
    l.job.tile_elems_max = 1;
    assert_int_equal(plan_compile(&l.job, &set), 0);
    assert_int_equal(set.tile_elems, TILE_ELEMS_STEP);
    plan_set_fini(&set);
}

static void what_cannot_be_counted_is_an_error(void **state)
{
    struct large_job l;
    make_job(&l, 2, 256);
    plan_set set;
    l.job.micro_batch_count = 0;
    assert_error(plan_compile(&l.job, &set), ERR_CONFIG, "gradient_accumulation_steps");
    l.job.micro_batch_count = 1000001; /* times 4 stages */
    assert_error(plan_compile(&l.job, &set), ERR_CONFIG, "gradient_accumulation_steps");

    plan_set empty = {.tile_elems = TILE_ELEMS_STEP};
    plani_layout layout = {0};
    plani_builder b = {0};
    assert_int_equal(plani_builder_begin(&b, &l.job, &empty, &layout, 0), 0);
    b.op_count = PROGRAM_NONE - 1; /* as if so many had been emitted */
    plani_op(&b, OP_NORM, LANE_COMPUTE);
    assert_error(b.error, ERR_CONFIG, "4294967294 ops");
    b.error = 0;
    b.op_count = 0;
    b.edge_count = PROGRAM_NONE - 1;
    assert_int_equal(plani_add_edge(&b, 0, 1), ERR_CONFIG);
    b.edge_count = 0;
    b.buffer_count = PROGRAM_NONE - 1;
    plani_transient(&b, TIER_HOST, 4096, PLANI_ANY, STATE_GRADS, 0);
    assert_error(b.error, ERR_CONFIG, "schedule.tile_elems");
    b.buffer_count = 0;
    plani_builder_fini(&b);
}

static void slab_offsets(struct large_job *l, uint64_t *offsets)
{
    plan_set set;
    assert_int_equal(plan_compile(&l->job, &set), 0);
    for (uint32_t u = 0; u < l->job.unit_count; u++) {
        uint32_t idx =
            l->homes[STATE_OPTIMIZER][u] == TIER_NVME ? set.homes.optimizer[u] : set.homes.saves[u];
        assert_int_equal(set.programs[PROGRAM_SAVE].buffers[idx].arena, TIER_NVME);
        offsets[u] = set.programs[PROGRAM_SAVE].buffers[idx].offset_bytes;
    }
    plan_set_fini(&set);
}

static void optimizer_state_stays_where_it_is(void **state)
{
    struct large_job l;
    uint64_t before[UNITS_MAX], after[UNITS_MAX];
    make_job(&l, 4, 512);
    l.job.tile_elems = 4 * TILE_ELEMS_STEP;
    slab_offsets(&l, before);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint64_t counter = 0;
        for (int k = 0; k < STATE_KIND_COUNT; k++)
            for (uint32_t u = 0; u < l.job.unit_count; u++)
                l.homes[k][u] = (uint8_t)rng_below(seed, 78, counter++, TIER_COUNT);
        l.job.commits = seed % 2;
        slab_offsets(&l, after);
        for (uint32_t u = 0; u < l.job.unit_count; u++)
            assert_int_equal(after[u], before[u]);
    }
}

/* ---- first fit ------------------------------------------------------------------------------- */

enum { HELD_MAX = 64, SPACE_FLOOR = 3 * TILE_BLOCK_BYTES, SPACE_BUDGET = 4 << 20 };

struct held {
    uint64_t begin, end; /* begin == end: none */
};

/* The lowest aligned address whose bytes are nobody's, tried one by one. */
static uint64_t lowest_place(const struct held *list, uint64_t size_bytes, uint64_t residue,
                             uint64_t from_bytes)
{
    for (uint64_t at = size_max(SPACE_FLOOR, from_bytes); at + size_bytes <= SPACE_BUDGET;
         at += TILE_BLOCK_BYTES) {
        if (residue != PLANI_ANY && at % TILE_PERIOD_BYTES != residue)
            continue;
        bool is_free = true;
        for (int i = 0; i < HELD_MAX && is_free; i++)
            is_free = list[i].end <= at || at + size_bytes <= list[i].begin;
        if (is_free)
            return at;
    }
    return UINT64_MAX;
}

static int no_order(void *context, uint32_t held_idx, uint32_t fresh_idx)
{
    (void)context;
    assert_int_not_equal(held_idx, fresh_idx);
    return 0;
}

static void space_is_first_fit(void **state)
{
    static const uint64_t residues[] = {PLANI_ANY, TILE_RESIDUE_STATE, TILE_RESIDUE_GRADS};
    static const uint64_t from_bytes[] = {0, SPACE_BUDGET / 2};
    int found = 0, full = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct plani_space space;
        struct held list[HELD_MAX] = {0};
        plani_space_order *order = seed % 2 ? no_order : NULL; /* with and without pieces */
        plani_space_init(&space, SPACE_FLOOR, SPACE_BUDGET);
        for (uint64_t n = 0; n < 3000; n += 4) {
            struct held *slot = &list[rng_below(seed, 79, n, HELD_MAX)];
            if (slot->end > slot->begin) {
                plani_space_release(&space, slot->begin, slot->end);
                *slot = (struct held){0};
                continue;
            }
            uint64_t size = TILE_BLOCK_BYTES * (1 + 7 * rng_below(seed, 79, n + 1, 9));
            uint64_t residue = residues[rng_below(seed, 79, n + 2, 3)], place;
            uint64_t from = from_bytes[rng_below(seed, 79, n + 3, 2)];
            assert_int_equal(plani_space_find(&space, size, residue, from, &place), 0);
            assert_int_equal(place, lowest_place(list, size, residue, from));
            found += place != UINT64_MAX;
            full += place == UINT64_MAX;
            if (place == UINT64_MAX)
                continue;
            assert_true(plani_space_is_free(&space, place, place + size));
            assert_int_equal(
                plani_space_take(&space, place, place + size, (uint32_t)n, order, NULL), 0);
            assert_false(plani_space_is_free(&space, place, place + TILE_BLOCK_BYTES));
            *slot = (struct held){place, place + size};
        }
        plani_space_fini(&space);
    }
    print_message("%d places, %d times none\n", found, full);
    assert_true(found > 1000 && full > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(space_is_first_fit),
        cmocka_unit_test(optimizer_state_stays_where_it_is),
        cmocka_unit_test(what_cannot_be_counted_is_an_error),
        cmocka_unit_test(chosen_tiles_keep_to_the_cap),
        cmocka_unit_test(what_moves_with_each_micro_batch_is_bounded),
        cmocka_unit_test(no_step_is_simulated_twice),
        cmocka_unit_test(very_deep_models_are_looked_at),
        cmocka_unit_test(large_jobs_are_refused),
        cmocka_unit_test(a_thousand_billion_parameters_are_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
