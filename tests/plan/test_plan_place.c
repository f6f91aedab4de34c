/* Automatic placement: never slower than hand placements, equal for equal jobs, rules win, reasons
 * are true, a model of 1000 billion parameters is placed with bounded work, refusals name what
 * fits.
 *
 * test_plan_place [JOBS [DRAWS]]: how many jobs, and random placements of each (2 and 12). */
#include <time.h>

#include "base/rng.h"
#include "base/size.h"
#include "base/tile.h"
#include "plan/plan.h"
#include "tests/plan/plan_fixture.h"
#include "tests/plan/plan_large.h"
#include "tests/unit.h"

enum { UNITS_MAX = LARGE_UNITS_MAX, WORK_MOST = 16250000 };

static uint64_t job_count = 2, draw_count = 12;

struct placed {
    plan_job job;
    uint64_t elems[UNITS_MAX];
    struct stage stages[UNITS_MAX];
    struct pass passes[UNITS_MAX][2];
    uint8_t wanted[STATE_KIND_COUNT][UNITS_MAX], homes[STATE_KIND_COUNT][UNITS_MAX];
    struct plan_place_asked asked;
    struct plan_place_found found;
};

/* A gpt2-like model on a GPU, everything to be placed. */
static void make_job(struct placed *l, uint32_t layers, uint64_t hidden)
{
    memset(l, 0, sizeof *l);
    plan_job *job = &l->job;
    large_job_make(job, l->elems, l->stages, l->passes, layers, hidden);
    memset(l->wanted, TIER_AUTO, sizeof l->wanted);
    for (int k = 0; k < STATE_KIND_COUNT; k++) {
        l->asked.wanted[k] = l->wanted[k];
        l->found.homes[k] = l->homes[k];
    }
    l->asked.job = job;
    l->asked.chooses_update = l->asked.has_drives = true;
    job->commits = true;
    job->commit_every = 50;
    job->budget_bytes[TIER_DEVICE] = job->budget_bytes[TIER_HOST] = 16 * GIB;
    job->budget_bytes[TIER_NVME] = 40000 * GIB;
    plan_machine_default_gpu(&job->machine, 8, 8, 0);
}

/* Jobs of different shape: in memory, tight on one tier or both, bound by computing or by drives,
 * on the CPU, of several ranks. */
static void draw_job(struct placed *l, uint64_t seed)
{
    static const uint64_t hiddens[] = {512, 1024, 2048};
    uint64_t n = 0;
    uint32_t layers = 3 + (uint32_t)rng_below(seed, 80, n++, 12);
    make_job(l, layers, hiddens[rng_below(seed, 80, n++, 3)]);
    plan_job *job = &l->job;
    uint64_t params = 0;
    for (uint32_t u = 0; u < job->unit_count; u++)
        params += l->elems[u];
    job->micro_batch_count = 1 + (uint32_t)rng_below(seed, 80, n++, 8);
    job->budget_bytes[TIER_DEVICE] =
        job->workspace_bytes + params * (1 + rng_below(seed, 80, n++, 24)) + 512 * MIB;
    job->budget_bytes[TIER_HOST] = params * (1 + rng_below(seed, 80, n++, 24)) + 512 * MIB;
    if (rng_below(seed, 80, n++, 3) == 0)
        plan_machine_default_cpu(&job->machine, 8, true);
    job->machine.device_flops_per_second /= (double)(1 << (2 * rng_below(seed, 80, n++, 3)));
    job->machine.drive_read_bytes_per_second *= (double)(1 + rng_below(seed, 80, n++, 6));
    job->order = rng_below(seed, 80, n++, 4) ? ORDER_LAYER_MAJOR : ORDER_BATCH_MAJOR;
    l->asked.allows_in_backward = rng_below(seed, 80, n++, 2);
    if (rng_below(seed, 80, n++, 3) == 0) {
        job->world = 4;
        job->zero_stage = 3;
    }
}

/* A tier per kind, and for half of them another one for a range of units. */
static void draw_placement(struct placed *l, uint64_t seed, uint64_t round)
{
    uint64_t n = 20 * round;
    for (int k = 0; k < STATE_KIND_COUNT; k++) {
        bool is_inner = k == STATE_INNER_ACTIVATIONS;
        uint64_t home = rng_below(seed, 81, n++, is_inner ? 7 : 3);
        uint64_t first = rng_below(seed, 81, n++, l->job.unit_count);
        uint64_t other = rng_below(seed, 81, n++, is_inner ? 7 : 3);
        memset(l->wanted[k], is_inner ? fixture_inner_home(home) : (int)home, UNITS_MAX);
        if (rng_below(seed, 81, n++, 2))
            memset(l->wanted[k] + first, is_inner ? fixture_inner_home(other) : (int)other,
                   UNITS_MAX - first);
    }
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Returns 0, or ERR_NO_FIT without a time. */
static int placed_ns(struct placed *l, double *ns, double *work)
{
    int rc = plan_place(&l->asked, &l->found);
    assert_true(rc == 0 || rc == ERR_NO_FIT);
    *work = (double)l->found.work_ops;
    if (rc < 0)
        return rc;
    plan_job job = l->job;
    job.update = l->found.update;
    *ns = plan_mean_step_ns(&job, &l->found.set);
    plan_set_fini(&l->found.set);
    return 0;
}

/* Equal inputs give equal answers, to the letter. */
static void assert_same_answer(uint64_t seed, const struct placed *one, int one_rc)
{
    static struct placed other;
    double ns, work;
    draw_job(&other, seed);
    assert_int_equal(placed_ns(&other, &ns, &work), one_rc);
    assert_int_equal(one->found.work_ops, other.found.work_ops);
    if (one_rc < 0)
        return;
    assert_memory_equal(one->homes, other.homes, sizeof one->homes);
    assert_int_equal(one->found.reason_count, other.found.reason_count);
    for (uint32_t i = 0; i < one->found.reason_count; i++)
        assert_string_equal(one->found.reasons[i], other.found.reasons[i]);
}

static void hand_placements_are_not_faster(void **state)
{
    static struct placed automatic, hand;
    uint64_t fitting = 0, worse = 0;
    for (uint64_t seed = 1; seed <= job_count; seed++) {
        double work, begin = seconds_now(), nearest = 1e9, best;
        draw_job(&automatic, seed);
        int rc = placed_ns(&automatic, &best, &work);
        assert_same_answer(seed, &automatic, rc);
        if (rc == ERR_NO_FIT)
            continue;
        assert_true(work < WORK_MOST);
        uint64_t fits = 0;
        for (uint64_t round = 0; round < draw_count; round++) {
            draw_job(&hand, seed);
            draw_placement(&hand, seed, round);
            hand.job.no_advice = true;
            double ns, unused;
            if (placed_ns(&hand, &ns, &unused) == ERR_NO_FIT)
                continue;
            nearest = ns / best < nearest ? ns / best : nearest;
            fits++;
            if (best > 1.001 * ns) {
                print_message("seed %llu, placement %llu: %.6f s by hand, %.6f s automatic\n",
                              (unsigned long long)seed, (unsigned long long)round, ns * 1e-9,
                              best * 1e-9);
                worse++;
            }
        }
        fitting += fits;
        print_message("seed %llu: %.6f s, %.0f thousand ops; the best of %llu by hand %.2f%% more; "
                      "%.2f s\n",
                      (unsigned long long)seed, best * 1e-9, work / 1e3, (unsigned long long)fits,
                      fits ? 100 * (nearest - 1) : 0, seconds_now() - begin);
    }
    assert_int_equal(worse, 0);
    assert_true(fitting > 10);
}

static void rules_win(void **state)
{
    static struct placed l;
    draw_job(&l, 2);
    for (uint32_t u = 0; u < l.job.unit_count; u++) {
        l.wanted[STATE_OPTIMIZER][u] = u % 2 ? TIER_NVME : TIER_AUTO;
        l.wanted[STATE_PARAMS][u] = TIER_HOST;
        l.wanted[STATE_INNER_ACTIVATIONS][u] = u == 2 ? TIER_HOST : TIER_AUTO;
    }
    assert_int_equal(plan_place(&l.asked, &l.found), 0);
    for (int k = 0; k < STATE_KIND_COUNT; k++)
        for (uint32_t u = 0; u < l.job.unit_count; u++)
            if (l.wanted[k][u] != TIER_AUTO)
                assert_int_equal(l.homes[k][u], l.wanted[k][u]);
    bool names_rule = false;
    for (uint32_t i = 0; i < l.found.reason_count; i++)
        names_rule = names_rule || (strncmp(l.found.reasons[i], "params of units 0-", 18) == 0 &&
                                    strstr(l.found.reasons[i], "by tiers.place"));
    assert_true(names_rule);
    plan_set_fini(&l.found.set);
}

static void without_drives_nothing_goes_there(void **state)
{
    static struct placed l;
    make_job(&l, 4, 512);
    l.asked.has_drives = false;
    l.job.budget_bytes[TIER_DEVICE] = GIB / 4;
    assert_int_equal(plan_place(&l.asked, &l.found), 0);
    for (int k = 0; k < STATE_KIND_COUNT; k++)
        assert_int_equal(l.found.set.home_bytes[k][TIER_NVME], 0);
    plan_set_fini(&l.found.set);
}

/* Where the order is open, the answer is that of layer-major, or of batch-major where that gains or
 * fits alone. */
static void the_order_is_chosen(void **state)
{
    static struct placed open, given[2];
    double ns[2];
    static const struct {
        uint64_t device_mib, host_mib; /* of the device beside the workspace */
        uint32_t micro_batches;
        bool drives;
    } cases[] = {{24, 16384, 4, true},
                 {240, 16384, 4, true},
                 {700, 1000, 64, false},
                 {700, 800, 256, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int order = 0; order < 2; order++) {
            make_job(&given[order], 4, 512);
            plan_job *job = &given[order].job;
            job->micro_batch_count = cases[i].micro_batches;
            job->budget_bytes[TIER_DEVICE] = job->workspace_bytes + cases[i].device_mib * MIB;
            job->budget_bytes[TIER_HOST] = cases[i].host_mib * MIB;
            job->order = (enum order)order;
            given[order].asked.has_drives = cases[i].drives;
            int rc = plan_place(&given[order].asked, &given[order].found);
            assert_true(rc == 0 || rc == ERR_NO_FIT);
            assert_int_equal(given[order].found.order, order);
            ns[order] = 1e30;
            if (rc == 0)
                ns[order] = plan_mean_step_ns(job, &given[order].found.set);
            plan_set_fini(&given[order].found.set);
        }
        open = given[ORDER_LAYER_MAJOR];
        open.asked.job = &open.job;
        open.asked.chooses_order = true;
        for (int k = 0; k < STATE_KIND_COUNT; k++) {
            open.asked.wanted[k] = open.wanted[k];
            open.found.homes[k] = open.homes[k];
        }
        int rc = plan_place(&open.asked, &open.found);
        int best = ns[ORDER_BATCH_MAJOR] < 0.99 * ns[ORDER_LAYER_MAJOR]; /* none is in between */
        print_message("case %zu: %g s and %g s\n", i, ns[0] * 1e-9, ns[1] * 1e-9);
        assert_int_equal(rc, ns[best] < 1e30 ? 0 : ERR_NO_FIT);
        if (rc < 0)
            continue;
        assert_int_equal(open.found.order, best);
        assert_true(plan_mean_step_ns(&open.job, &open.found.set) <= 1.001 * ns[best]);
        plan_set_fini(&open.found.set);
    }
}

static void a_thousand_billion_parameters_are_placed(void **state)
{
    static struct placed l;
    static const uint32_t worlds[] = {1, 16, 512};
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
        make_job(&l, 128, 25600);
        l.job.world = worlds[i];
        l.job.zero_stage = 3;
        l.job.budget_bytes[TIER_DEVICE] = 76 * GIB;
        l.job.budget_bytes[TIER_HOST] = 90 * GIB;
        double begin = seconds_now();
        assert_int_equal(plan_place(&l.asked, &l.found), 0);
        print_message("%u ranks: step %.2f s, bound %.2f s, %u trials, %u compilations, %llu "
                      "thousand ops; %.2f s\n",
                      worlds[i], (double)l.found.set.uncommitted_ns * 1e-9,
                      (double)l.found.set.uncommitted_bound_ns * 1e-9, l.found.trial_count,
                      l.found.compile_count, (unsigned long long)(l.found.work_ops / 1000),
                      seconds_now() - begin);
        for (uint32_t r = 0; r < l.found.reason_count; r++)
            print_message("  %s\n", l.found.reasons[r]);
        assert_true(l.found.work_ops < WORK_MOST);
        plan_set_fini(&l.found.set);
    }
}

enum { PARKED_BLOCKS = 3, PARKED_PARTS = 2, PARKED_BATCHES = 16, PARKED_BYTES = 4 * MIB };

/* Blocks cut into parts, 16 micro-batches, of which each leaves 4 MiB between the parts of a block;
 * checkpoints are given to nvme, the device has `device_bytes`. */
static void make_parked(random_job *r, struct placed *l, uint64_t device_bytes)
{
    memset(r, 0, sizeof *r);
    memset(l, 0, sizeof *l);
    plan_job *job = &r->job;
    job->stage_count = PARKED_BLOCKS + 2;
    fixture_embed(r, &r->stages[0], 1);
    for (uint32_t s = 1; s <= PARKED_BLOCKS; s++)
        fixture_block(r, &r->stages[s], PARKED_PARTS);
    fixture_head(r, &r->stages[PARKED_BLOCKS + 1], 1, true);
    for (uint32_t s = 1; s <= PARKED_BLOCKS; s++)
        r->stages[s].saved_bytes = r->stages[s].selective_bytes = PARKED_BYTES;
    job->unit_elems = r->elems;
    job->stages = r->stages;
    job->micro_batch_count = PARKED_BATCHES;
    job->boundary_bytes = 64 * KIB;
    job->tokens_bytes = job->losses_bytes = 4096 * PARKED_BATCHES;
    job->workspace_bytes = 64 * KIB;
    job->param_bytes = job->grad_bytes = 2;
    job->state_streams = 3;
    job->budget_bytes[TIER_DEVICE] = device_bytes;
    job->budget_bytes[TIER_HOST] = job->budget_bytes[TIER_NVME] = GIB;
    plan_machine_default_gpu(&job->machine, 8, 8, 0);
    memset(l->wanted, TIER_AUTO, sizeof l->wanted);
    memset(l->wanted[STATE_ACTIVATIONS], TIER_NVME, UNITS_MAX);
    memset(l->wanted[STATE_INNER_ACTIVATIONS], TIER_COUNT, UNITS_MAX);
    for (int k = 0; k < STATE_KIND_COUNT; k++) {
        l->asked.wanted[k] = l->wanted[k];
        l->found.homes[k] = l->homes[k];
    }
    l->asked.job = job;
    l->asked.chooses_update = l->asked.has_drives = true;
}

/* Bytes of inner activations that rest in an arena in the steady step. */
static uint64_t parked_in(const struct placed *l, enum tier arena)
{
    const program *steady = &l->found.set.programs[PROGRAM_STEADY];
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < steady->buffer_count; i++) {
        const buffer *b = &steady->buffers[i];
        bool rests = i < steady->home_count;
        if (b->state_kind == STATE_INNER_ACTIVATIONS && (enum tier)b->arena == arena && rests)
            bytes += b->size_bytes;
    }
    return bytes;
}

/* Buffers that wait between the parts of a block stay on the device for all micro-batches if these
 * fit there. If they do not fit, as many stay as leave room for the passes, and the others wait on
 * the host, not on nvme with the checkpoints. */
static void what_waits_between_parts_is_near(void **state)
{
    static random_job r;
    static struct placed l;
    uint32_t before = 0;
    for (uint64_t room = 4; room <= 32;
         room += 4) { /* MiB in units of what one micro-batch leaves */
        make_parked(&r, &l, room * PARKED_BYTES);
        assert_int_equal(plan_place(&l.asked, &l.found), 0);
        uint32_t near = l.found.parked_near;
        print_message("room for %llu: %u stay, step %.1f ms, bound %.1f ms\n",
                      (unsigned long long)room, near,
                      (double)l.found.set.programs[PROGRAM_STEADY].predicted_ns * 1e-6,
                      (double)l.found.set.bound_ns * 1e-6);
        assert_true(near >= before && near < room && near + 4 >= size_min(room, PARKED_BATCHES));
        assert_int_equal(parked_in(&l, TIER_NVME), 0);
        assert_int_equal(parked_in(&l, TIER_HOST), (PARKED_BATCHES - near) * PARKED_BYTES);
        plan_set_fini(&l.found.set);
        before = near;
    }
    assert_int_equal(before, PARKED_BATCHES);
}

/* Where checkpoints rest on the host, a refusal names the bytes of the host beside as much as the
 * device has room for: with these the job fits, with a block less it does not. */
static void a_refusal_parks_on_the_device_first(void **state)
{
    static random_job r;
    static struct placed l;
    for (uint64_t room = 4; room <= 32; room += 7) {
        make_parked(&r, &l, room * PARKED_BYTES);
        for (int kind = 0; kind < STATE_ACTIVATIONS; kind++)
            memset(l.wanted[kind], TIER_NVME, UNITS_MAX);
        memset(l.wanted[STATE_ACTIVATIONS], TIER_HOST, UNITS_MAX);
        uint64_t *host = &r.job.budget_bytes[TIER_HOST];
        *host = 64 * KIB;
        assert_int_equal(plan_place(&l.asked, &l.found), ERR_NO_FIT);
        const char *named = strstr(err_text(), "tiers.host.budget=");
        assert_non_null(named);
        assert_null(strstr(err_text(), "tiers.device.budget"));
        *host = strtoull(named + strlen("tiers.host.budget="), NULL, 10);
        assert_int_equal(plan_place(&l.asked, &l.found), 0);
        uint64_t near = l.found.parked_near;
        print_message("room for %llu: needs %llu bytes of host, %llu stay\n",
                      (unsigned long long)room, (unsigned long long)*host,
                      (unsigned long long)near);
        assert_true(near < room && near + 3 >= size_min(room, PARKED_BATCHES));
        assert_true(*host < (PARKED_BATCHES - near + 2) * PARKED_BYTES);
        plan_set_fini(&l.found.set);
        *host -= TILE_BLOCK_BYTES;
        assert_int_equal(plan_place(&l.asked, &l.found), ERR_NO_FIT);
    }
}

/* The budget of the device that the refusal names with which the job fits. */
static uint64_t device_need(struct placed *l)
{
    l->job.budget_bytes[TIER_DEVICE] = 8 * MIB;
    assert_int_equal(plan_place(&l->asked, &l->found), ERR_NO_FIT);
    const char *named = strstr(err_text(), "tiers.device.budget=");
    assert_non_null(named);
    assert_null(strstr(err_text(), "tiers.host.budget"));
    return strtoull(named + strlen("tiers.device.budget="), NULL, 10);
}

/* Where the device has room for a part of every block's inner activations and not for all of them,
 * that part is kept. The step is shorter than those of the two other ways. */
static void activations_are_kept_selectively(void **state)
{
    enum { LAYERS = 6, HIDDEN = 1024, CASES = 3 };
    static struct placed l;
    double ns[CASES], work;
    make_job(&l, LAYERS, HIDDEN);
    for (int k = 0; k < STATE_INNER_ACTIVATIONS; k++)
        memset(l.wanted[k], TIER_DEVICE, UNITS_MAX);
    memset(l.wanted[STATE_INNER_ACTIVATIONS], TIER_RECOMPUTE, UNITS_MAX);
    const struct stage *block = &l.stages[1];
    uint64_t slots = l.job.micro_batch_count * LAYERS;
    uint64_t least = device_need(&l), room = slots * block->selective_bytes + 64 * MIB;
    assert_true(room < slots * block->saved_bytes);
    l.job.budget_bytes[TIER_DEVICE] = least + room;
    for (int i = 0; i < CASES; i++) {
        uint64_t whole = room / (l.job.micro_batch_count * block->saved_bytes);
        memset(l.wanted[STATE_INNER_ACTIVATIONS], i == 0 ? TIER_AUTO : TIER_RECOMPUTE, UNITS_MAX);
        for (uint64_t s = 1; i == 2 && s <= whole; s++)
            l.wanted[STATE_INNER_ACTIVATIONS][s] = TIER_DEVICE;
        assert_int_equal(placed_ns(&l, &ns[i], &work), 0);
        for (uint32_t s = 1; s <= LAYERS && i == 0; s++)
            assert_int_equal(l.homes[STATE_INNER_ACTIVATIONS][s], TIER_SELECTIVE);
    }
    print_message("selective %.6f s, recomputed %.6f s, some whole %.6f s\n", ns[0] * 1e-9,
                  ns[1] * 1e-9, ns[2] * 1e-9);
    assert_true(ns[0] < 0.99 * ns[1] && ns[0] < 0.99 * ns[2]);
}

/* The budget that a refusal names is enough, and a smaller one is not. */
static void refusals_name_what_fits(void **state)
{
    static struct placed l;
    make_job(&l, 4, 512);
    uint64_t need = device_need(&l);
    assert_true(need > 8 * MIB);
    l.job.budget_bytes[TIER_DEVICE] = need - TILE_BLOCK_BYTES;
    assert_int_equal(plan_place(&l.asked, &l.found), ERR_NO_FIT);
    l.job.budget_bytes[TIER_DEVICE] = need;
    assert_int_equal(plan_place(&l.asked, &l.found), 0);
    plan_set_fini(&l.found.set);
}

/* Bytes of the kind on the tier, by the sentences. */
static double told_bytes(const struct placed *l, const char *kind, const char *tier)
{
    double bytes = 0;
    char on[32];
    snprintf(on, sizeof on, "on %s: ", tier);
    for (uint32_t i = 0; i < l->found.reason_count; i++) {
        const char *text = l->found.reasons[i], *at = strstr(text, on);
        if (strncmp(text, kind, strlen(kind)) != 0 || text[strlen(kind)] != ' ' || !at)
            continue;
        char *unit;
        double value = strtod(at + strlen(on), &unit);
        bytes += value * (strncmp(unit, " GiB", 4) == 0   ? (double)GIB
                          : strncmp(unit, " MiB", 4) == 0 ? (double)MIB
                          : strncmp(unit, " KiB", 4) == 0 ? 1024
                                                          : 1);
    }
    return bytes;
}

/* The sentences' bytes are the plan's, and what is said not to fit does not. */
static void reasons_are_true(void **state)
{
    static struct placed l;
    static const char *const kinds[] = {"params", "grads", "optimizer"};
    make_job(&l, 12, 1024);
    l.job.budget_bytes[TIER_DEVICE] = 2 * GIB;
    l.job.budget_bytes[TIER_HOST] = GIB + GIB / 2;
    assert_int_equal(plan_place(&l.asked, &l.found), 0);
    bool tells = false;
    for (uint32_t i = 0; i < l.found.reason_count; i++) {
        print_message("  %s\n", l.found.reasons[i]);
        tells = tells || (strncmp(l.found.reasons[i], "optimizer", 9) == 0 &&
                          strstr(l.found.reasons[i], "do not fit the device budget of 2.00 GiB"));
    }
    assert_true(tells);
    for (int k = 0; k < 3; k++)
        for (int a = 0; a < TIER_COUNT; a++) {
            double told = told_bytes(&l, kinds[k], tier_name((enum tier)a));
            double truth = (double)l.found.set.home_bytes[k][a];
            assert_true(told <= 1.02 * truth && told >= 0.98 * truth - 8192);
        }
    plan_set_fini(&l.found.set);

    for (uint32_t u = 0; u < l.job.unit_count; u++) /* all of it, by hand */
        l.wanted[STATE_OPTIMIZER][u] = TIER_DEVICE;
    l.job.no_advice = true;
    assert_int_equal(plan_place(&l.asked, &l.found), ERR_NO_FIT);
}

int main(int argc, char **argv)
{
    job_count = argc > 1 ? strtoull(argv[1], NULL, 10) : job_count;
    draw_count = argc > 2 ? strtoull(argv[2], NULL, 10) : draw_count;
    const struct CMUnitTest draws[] = {cmocka_unit_test(hand_placements_are_not_faster)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules_win),
        cmocka_unit_test(without_drives_nothing_goes_there),
        cmocka_unit_test(the_order_is_chosen),
        cmocka_unit_test(what_waits_between_parts_is_near),
        cmocka_unit_test(a_refusal_parks_on_the_device_first),
        cmocka_unit_test(activations_are_kept_selectively),
        cmocka_unit_test(refusals_name_what_fits),
        cmocka_unit_test(reasons_are_true),
        cmocka_unit_test(a_thousand_billion_parameters_are_placed),
    };
    int failed = cmocka_run_group_tests(draws, NULL, NULL);
    return argc > 1 ? failed : failed + cmocka_run_group_tests(tests, NULL, NULL);
}
