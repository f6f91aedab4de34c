/* The automatic plan is the best one that the simulator knows, up to 1 %:
 *
 *   words     no plan of the same job with one word fixed is shorter: an update, an order, a tile
 *             size, a kind of state on one tier
 *   monotony  more of a budget, a faster drive, another drive or a faster link make no plan longer
 *
 * Jobs are drawn: gpt2- and llama-like models, 128 to 64K tokens a step, 1 to 8 ranks, budgets from
 * the least that fits to all in memory, on three machines with the balance of measured ones and on
 * all that configs/clusters.json describes.
 *
 * test_plan_best [JOBS [FIRST [VERBOSE]]]: how many jobs, and the first seed. Without them a small
 * job is compared under each update, another one with more of each budget and rate, three with more
 * of one budget, and one with faster links. */
#include <limits.h>
#include <malloc.h>

#include "config/machine.h"
#include "tests/plan/plan_family.h"
#include "tests/unit.h"

static uint64_t job_count, first_seed = 1; /* no count: a short part, for every change */
static const uint64_t short_seeds[] = {8, 10};
/* Jobs whose plan once got longer with more memory: by 3.5 % where it was reserved too far ahead,
 * by 15 % where fine tiles were tried only if no coarser ones fitted, and by 1.5 % where the best
 * move needs another one beside it. */
static const struct {
    uint64_t seed;
    int arena;
} short_budgets[] = {{57, TIER_DEVICE}, {62, TIER_HOST}, {20, TIER_HOST}};
/* With links of twice the speed, its step once got longer by 7 %: the first point of a way had room
 * only in the step itself, and no work was left to go back to its start. */
static const uint64_t short_links = 64;
enum {
    SHORT_JOBS = sizeof short_seeds / sizeof short_seeds[0],
    SHORT_BUDGETS = sizeof short_budgets / sizeof short_budgets[0],
};
static bool is_verbose;

static const double tolerance = 1.01;

/* ---- machines ------------------------------------------------------------------------------- */

/* Two cores and a fast drive; two cores with fast bf16 products and a slow drive; a GPU. */
static const plan_machine measured[] = {
    {.drive_read_bytes_per_second = 6.2e9,
     .drive_write_bytes_per_second = 5.0e9,
     .h2d_bytes_per_second = 9.5e9,
     .d2h_bytes_per_second = 9.5e9,
     .dram_bytes_per_second = 19.8e9,
     .device_flops_per_second = 200e9,
     .core_count = 2,
     .device_is_cpu = true,
     .comm_bytes_per_second = 2.1e9,
     .comm_seconds = 7e-6,
     .comm_is_copies = true,
     .update_core_seconds = 4.3e-10,
     .io_core_seconds = 3.0e-11,
     .copy_core_seconds = 1.8e-10,
     .op_seconds = 39e-6,
     .sync_seconds = 2e-3,
     .is_measured = true},
    {.drive_read_bytes_per_second = 2.6e9,
     .drive_write_bytes_per_second = 1.9e9,
     .h2d_bytes_per_second = 7.5e9,
     .d2h_bytes_per_second = 7.5e9,
     .dram_bytes_per_second = 15e9,
     .device_flops_per_second = 1.4e12,
     .core_count = 2,
     .device_is_cpu = true,
     .comm_bytes_per_second = 2.0e9,
     .comm_seconds = 10e-6,
     .comm_is_copies = true,
     .update_core_seconds = 6e-10,
     .io_core_seconds = 8e-11,
     .copy_core_seconds = 2.2e-10,
     .op_seconds = 45e-6,
     .sync_seconds = 8e-3,
     .is_measured = true},
    {.drive_read_bytes_per_second = 3.3e9,
     .drive_write_bytes_per_second = 2.8e9,
     .h2d_bytes_per_second = 24e9,
     .d2h_bytes_per_second = 22e9,
     .dram_bytes_per_second = 60e9,
     .device_flops_per_second = 90e12,
     .device_bytes_per_second = 800e9,
     .core_count = 12,
     .comm_bytes_per_second = 10e9,
     .comm_seconds = 25e-6,
     .update_core_seconds = 4e-10,
     .io_core_seconds = 2e-11,
     .op_seconds = 8e-6,
     .sync_seconds = 3e-3,
     .is_measured = true},
};
static const char *const described[] = {"dgx2-16xv100", "dgx2-16xv100-32", "dgx2-16xv100-64",
                                        "8xh100",       "8xh200",          "1xh200-128g",
                                        "desktop-24g"};
enum {
    MEASURED = sizeof measured / sizeof measured[0],
    DESCRIBED = sizeof described / sizeof described[0],
};

/* A rank's figures of a described machine whose host is shared by so many ranks; in short what
 * setup_machine_figures takes from it. */
static void describe(const char *name, uint32_t ranks, plan_machine *out)
{
    static struct machine on;
    assert_ok(machine_read(name, &on));
    plan_machine_default_gpu(out, (uint32_t)size_max(on.host.core_count / ranks, 1), 8, 0);
    double read = 0, write = 0, link = on.link_all_ranks > 0 ? on.link_all_ranks / ranks : INFINITY;
    for (uint32_t d = 0; d < on.drive_count; d++) {
        read += fmax(on.drives[d].count, 1) * on.drives[d].read;
        write += fmax(on.drives[d].count, 1) * on.drives[d].write;
    }
    out->drive_read_bytes_per_second = read / ranks;
    out->drive_write_bytes_per_second = write / ranks;
    out->h2d_bytes_per_second = fmin(on.h2d.pinned, link);
    out->d2h_bytes_per_second = fmin(on.d2h.pinned, link);
    out->dram_bytes_per_second = on.host.dram_copy / ranks;
    out->device_flops_per_second = on.device.flops_16bit;
    out->device_bytes_per_second = on.device.memory_rate;
    if (on.device.flops_16bit <= 0)
        out->device_flops_per_second = on.device.peak_flops * 2 / 3;
    if (on.device.op_seconds > 0)
        out->op_seconds = on.device.op_seconds;
    if (on.comm.inside > 0)
        out->comm_bytes_per_second = on.comm.inside;
}

/* ---- jobs ----------------------------------------------------------------------------------- */

struct question {
    family_job family;
    uint8_t wanted[STATE_KIND_COUNT][JOB_UNITS_MAX];
    struct plan_place_asked asked;
};

/* Between `least` and `most` evenly by logarithm, or one of them. */
static uint64_t draw_budget(family_job *f, uint64_t least, uint64_t most)
{
    uint64_t way = job_draw(f, 6);
    double drawn = job_draw_log(f, (double)least, fmax((double)most, (double)least));
    uint64_t bytes = way == 0 ? least : way == 1 ? size_max(most, least) : (uint64_t)drawn;
    return size_round_up(bytes, TILE_BLOCK_BYTES);
}

static int place(const struct question *q, double *ns)
{
    static uint8_t homes[STATE_KIND_COUNT][JOB_UNITS_MAX];
    struct plan_place_found *found = calloc(1, sizeof *found);
    struct plan_place_asked asked = q->asked;
    assert_non_null(found);
    asked.job = &q->family.job;
    for (int k = 0; k < STATE_KIND_COUNT; k++) {
        asked.wanted[k] = q->wanted[k];
        found->homes[k] = homes[k];
    }
    int rc = plan_place(&asked, found);
    if (rc != 0 && rc != ERR_NO_FIT)
        fail_msg("%s", err_text());
    if (rc == 0) {
        *ns = plan_mean_step_ns(asked.job, &found->set);
        if (is_verbose)
            print_message("    %.6f s: order %d, update %d, tiles of %llu, %u held, copies %llu "
                          "MiB, commit %d; %u trials, %llu thousand ops\n",
                          *ns * 1e-9, found->order, found->update,
                          (unsigned long long)found->set.tile_elems,
                          found->set.held_stages + found->set.held_passes,
                          (unsigned long long)(found->set.copy_bytes / MIB), found->set.commit,
                          found->trial_count, (unsigned long long)(found->work_ops / 1000));
    }
    for (int k = 0; rc == 0 && is_verbose && k < STATE_KIND_COUNT; k++) {
        uint32_t on[TIER_WORD_COUNT] = {0};
        for (uint32_t u = 0; u < asked.job->unit_count; u++)
            on[homes[k][u]]++;
        print_message("%s%u %u %u %u", k ? ", " : "      ", on[0], on[1], on[2], on[3]);
        if (k == STATE_INNER_ACTIVATIONS)
            print_message(", selective %u %u %u\n", on[TIER_SELECTIVE], on[TIER_SELECTIVE_HOST],
                          on[TIER_SELECTIVE_NVME]);
    }
    plan_set_fini(&found->set);
    free(found);
    return rc;
}

/* Budgets from the least that fits, which the refusal of no memory names, to all in memory. */
static void draw_budgets(struct question *q)
{
    family_job *f = &q->family;
    plan_job *job = &f->job;
    double ns;
    uint64_t all = 0, inner = 0;
    for (uint32_t u = 0; u < job->unit_count; u++)
        all += f->elems[u] * 16 / (job->zero_stage == 3 ? job->world : 1);
    for (uint32_t s = 0; s < job->stage_count; s++)
        inner += (f->stages[s].saved_bytes + job->boundary_bytes) * job->micro_batch_count;
    job->budget_bytes[TIER_DEVICE] = job->budget_bytes[TIER_HOST] = 4096;
    job->budget_bytes[TIER_NVME] = 10 * (all + inner) + GIB;
    assert_int_equal(place(q, &ns), ERR_NO_FIT);
    if (is_verbose)
        print_message("%s\n", err_text());
    uint64_t device = family_need(TIER_DEVICE), host = family_need(TIER_HOST);
    assert_true(device > 0 && host > 0);
    job->budget_bytes[TIER_DEVICE] = draw_budget(f, device, device + all + inner);
    job->budget_bytes[TIER_HOST] = draw_budget(f, host, host + 2 * all);
}

/* 16-bit training with Adam, whose homes and update are all open. */
static void set_formats(struct question *q)
{
    plan_job *asked = &q->family.job;
    asked->wire_bytes = 2;
    asked->param_bytes = asked->grad_bytes = 2;
    asked->state_streams = 3;
    asked->needs_save_places = true;
    memset(q->wanted, TIER_AUTO, sizeof q->wanted);
    for (int k = 0; k < STATE_KIND_COUNT; k++)
        asked->homes[k] = q->family.homes[k];
    q->asked.chooses_update = q->asked.has_drives = true;
}

static void draw_question(struct question *q, uint64_t seed)
{
    memset(q, 0, sizeof *q);
    family_job *f = &q->family;
    plan_job *job = &f->job;
    f->seed = seed;
    uint32_t at = (uint32_t)job_draw(f, MEASURED + DESCRIBED);
    bool is_llama = job_draw(f, 2);
    uint64_t tokens = UINT64_C(128) << job_draw(f, 10);
    job->micro_batch_count = UINT32_C(1) << job_draw(f, 4);
    while (tokens / job->micro_batch_count < 128)
        job->micro_batch_count /= 2;
    f->tokens = tokens / job->micro_batch_count;
    f->tied = !is_llama || job_draw(f, 4) == 0;
    f->hidden = UINT64_C(256) << job_draw(f, 4);
    f->vocabulary = job_draw(f, 2) ? 32000 : 50304;
    family_stages(f, 4 + (uint32_t)job_draw(f, 21), is_llama);
    family_sizes(f);
    job->world = job_draw(f, 2) ? 1 : UINT32_C(1) << job_draw(f, 4);
    job->zero_stage = job_draw(f, 3) ? 3 : (uint32_t)job_draw(f, 3);
    set_formats(q);
    job->commits = job_draw(f, 4) > 0;
    job->commit_every = job_draw(f, 3) ? 50 : 1;
    if (at < MEASURED)
        job->machine = measured[at];
    else
        describe(described[at - MEASURED], job->world, &job->machine);
    if (job_draw(f, 3) == 0) /* all states on drives, as in the largest jobs */
        for (int k = STATE_PARAMS; k <= STATE_OPTIMIZER; k++)
            memset(q->wanted[k], TIER_NVME, JOB_UNITS_MAX);
    q->asked.chooses_order = job_draw(f, 2);
    q->asked.allows_in_backward = job_draw(f, 2);
    draw_budgets(q);
    print_message("seed %llu: %s, %s, hidden %llu, %u stages, %llu tokens in %u, %u ranks, stage "
                  "%u, device %.0f MiB, host %.0f MiB\n",
                  (unsigned long long)seed, at < MEASURED ? "measured" : described[at - MEASURED],
                  is_llama ? "llama" : "gpt2", (unsigned long long)f->hidden, job->stage_count,
                  (unsigned long long)tokens, job->micro_batch_count, job->world, job->zero_stage,
                  (double)job->budget_bytes[TIER_DEVICE] / MIB,
                  (double)job->budget_bytes[TIER_HOST] / MIB);
}

/* ---- pairs ---------------------------------------------------------------------------------- */

struct tally {
    const char *name;
    uint64_t pairs, longer, worst_seed;
    double worst;
};

/* Counts a pair: the plan of `long_ns` should be no longer than that of `short_ns`. */
static void count_pair(struct tally *t, uint64_t seed, double ns, double other_ns, const char *what)
{
    double ratio = ns / other_ns;
    t->pairs++;
    t->longer += ratio > tolerance;
    if (ratio > tolerance)
        print_message("  seed %llu, %s %s: %.6f s is %.3f of %.6f s\n", (unsigned long long)seed,
                      t->name, what, ns * 1e-9, ratio, other_ns * 1e-9);
    if (ratio > t->worst) {
        t->worst = ratio;
        t->worst_seed = seed;
    }
}

enum { UPDATES, ORDERS, TILES, KINDS, BUDGETS, RATES, TALLIES };
static struct tally tallies[TALLIES] = {
    [UPDATES] = {.name = "update"}, [ORDERS] = {.name = "order"},   [TILES] = {.name = "tiles"},
    [KINDS] = {.name = "kind"},     [BUDGETS] = {.name = "budget"}, [RATES] = {.name = "rate"}};

static void try_word(int which, struct question *q, uint64_t seed, double auto_ns, const char *what)
{
    double ns;
    q->family.job.no_advice = true;
    if (is_verbose)
        print_message("  %s %s\n", tallies[which].name, what);
    if (place(q, &ns) == 0)
        count_pair(&tallies[which], seed, auto_ns, ns, what);
}

static void try_words(const struct question *open, uint64_t seed, double auto_ns)
{
    static struct question q;
    char what[64];
    int updates = open->asked.allows_in_backward ? 3 : 2;
    static const enum update all[] = {UPDATE_AFTER_BACKWARD, UPDATE_IN_NEXT_FORWARD,
                                      UPDATE_IN_BACKWARD};
    for (int i = 0; i < updates; i++) {
        q = *open;
        q.asked.chooses_update = false;
        q.family.job.update = all[i];
        try_word(UPDATES, &q, seed, auto_ns, update_name(all[i]));
    }
    for (int order = 0; order < 2 && open->asked.chooses_order && job_count > 0; order++) {
        q = *open;
        q.asked.chooses_order = false;
        q.family.job.order = (enum order)order;
        try_word(ORDERS, &q, seed, auto_ns, order_name((enum order)order));
    }
    for (uint64_t tile = 256 << 10; tile <= 16 << 20 && job_count > 0; tile *= 2) {
        q = *open;
        q.family.job.tile_elems = tile;
        snprintf(what, sizeof what, "%llu Ki", (unsigned long long)tile >> 10);
        try_word(TILES, &q, seed, auto_ns, what);
    }
    for (int k = 0; k < STATE_KIND_COUNT && job_count > 0; k++)
        for (int tier = 0;
             tier < (k == STATE_INNER_ACTIVATIONS ? (int)TIER_WORD_COUNT : (int)TIER_COUNT);
             tier++) {
            q = *open;
            if (open->wanted[k][0] != TIER_AUTO || tier == TIER_AUTO)
                continue;
            memset(q.wanted[k], tier, JOB_UNITS_MAX);
            snprintf(what, sizeof what, "%s on %s", state_kind_name((enum state_kind)k),
                     tier_name((enum tier)tier));
            try_word(KINDS, &q, seed, auto_ns, what);
        }
}

static void try_more(int which, const struct question *q, uint64_t seed, double auto_ns,
                     const char *what)
{
    double ns;
    if (is_verbose)
        print_message("  more %s\n", what);
    if (place(q, &ns) < 0)
        fail_msg("seed %llu: more %s does not fit: %s", (unsigned long long)seed, what, err_text());
    count_pair(&tallies[which], seed, ns, auto_ns, what);
}

static const double factors[] = {1.2, 2};

static void try_more_memory(const struct question *open, uint64_t seed, double auto_ns, int arena,
                            double factor)
{
    static struct question q;
    q = *open;
    uint64_t *budget = &q.family.job.budget_bytes[arena];
    *budget = size_round_up((uint64_t)(factor * (double)*budget), TILE_BLOCK_BYTES);
    try_more(BUDGETS, &q, seed, auto_ns, arena == TIER_DEVICE ? "device memory" : "host memory");
}

static void try_faster_links(const struct question *open, uint64_t seed, double auto_ns,
                             double factor)
{
    static struct question q;
    q = *open;
    plan_machine *m = &q.family.job.machine;
    m->h2d_bytes_per_second *= factor;
    m->d2h_bytes_per_second *= factor;
    m->comm_bytes_per_second *= factor;
    try_more(RATES, &q, seed, auto_ns, "speed of the links");
}

static void try_monotony(const struct question *open, uint64_t seed, double auto_ns)
{
    static struct question q;
    for (int f = 0; f < 2; f++) {
        for (int a = TIER_DEVICE; a <= TIER_HOST; a++)
            try_more_memory(open, seed, auto_ns, a, factors[f]);
        q = *open;
        plan_machine *m = &q.family.job.machine;
        m->drive_read_bytes_per_second *= factors[f];
        m->drive_write_bytes_per_second *= factors[f];
        if (f == 1)
            q.family.job.budget_bytes[TIER_NVME] *= 2;
        try_more(RATES, &q, seed, auto_ns, f == 1 ? "drives" : "speed of the drive");
        try_faster_links(open, seed, auto_ns, factors[f]);
    }
}

static void automatic_plans_are_the_best_known(void **state)
{
    static struct question q;
    uint64_t longer = 0, pairs = 0, count = job_count ? job_count : SHORT_JOBS;
    for (uint64_t i = 0; i < count; i++) {
        double ns;
        uint64_t seed = job_count ? first_seed + i : short_seeds[i];
        draw_question(&q, seed);
        if (place(&q, &ns) < 0)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err_text());
        if (job_count || i == 0)
            try_words(&q, seed, ns);
        if (job_count || i > 0)
            try_monotony(&q, seed, ns);
    }
    for (int i = 0; i < (job_count ? 0 : SHORT_BUDGETS); i++) {
        double ns;
        draw_question(&q, short_budgets[i].seed);
        assert_int_equal(place(&q, &ns), 0);
        try_more_memory(&q, short_budgets[i].seed, ns, short_budgets[i].arena, factors[0]);
    }
    if (!job_count) {
        double ns;
        draw_question(&q, short_links);
        assert_int_equal(place(&q, &ns), 0);
        try_faster_links(&q, short_links, ns, factors[1]);
    }
    print_message("%llu jobs\n", (unsigned long long)count + (job_count ? 0 : SHORT_BUDGETS + 1));
    for (int t = 0; t < TALLIES; t++) {
        print_message(
            "  %-7s %5llu pairs, %3llu longer by more than 1 %%; worst %.4f (seed %llu)\n",
            tallies[t].name, (unsigned long long)tallies[t].pairs,
            (unsigned long long)tallies[t].longer, tallies[t].worst,
            (unsigned long long)tallies[t].worst_seed);
        longer += tallies[t].longer;
        pairs += tallies[t].pairs;
    }
    /* The aim is that no pair is longer. The search is no proof: more than one pair in 100 of
     * many jobs, and it got worse. */
    assert_true(longer <= (job_count ? pairs / 100 : 0));
}

int main(int argc, char **argv)
{
    job_count = argc > 1 ? strtoull(argv[1], NULL, 10) : job_count;
    first_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : first_seed;
    is_verbose = argc > 3;
    mallopt(M_MMAP_MAX, 0); /* sluice plan does the same; new pages took half of the time */
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    const struct CMUnitTest tests[] = {cmocka_unit_test(automatic_plans_are_the_best_known)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
