/* The search: which tile size, how many held stages, how much lookahead; and the refusal.
 *
 * The steady step decides. For each candidate tile size, largest first, and each number of held stages,
 * fewest first, its program is simulated; the shortest step wins, and a longer lookahead is tried before
 * a shorter one. A gain under plan_gain does not justify a smaller tile or more held stages, nor another
 * way to commit than the usual one of the update.
 *
 * A tile size fits if and only if the budgets cover what the serial order of its programs needs. Needs
 * are found step by step (homes first, which cost nothing to lay out, then program by program) and only
 * as far as the question asks: the search stops where a budget is exceeded; the refusal, which names the
 * candidate that comes nearest to the budgets, where a nearer one is known. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "plan/plan_internal.h"

static const double plan_gain = 0.005;

enum {
    TILE_ELEMS_LARGEST = 4 << 20, /* 48 MiB of state: far above the 1 MiB at which reads saturate */
    TILES_OF_UNIT_LEAST = 256,    /* units of more than as many largest tiles get larger ones */
    TILES_MOST = 1 << 16,         /* of the whole model, where the tile size is chosen here */
    /* Smaller tiles, or more of them, only where larger ones do not fit. */
    TILE_ELEMS_SEARCHED = 256 << 10,
    TILES_SEARCHED = 1 << 14,
    LOOKAHEAD_TRIES = 6,
    CANDIDATES_MAX = 64,  /* each is about half of the one before */
    SLOTS_MOST = 4000000, /* stages times micro-batches */
};

static const uint64_t lookaheads[LOOKAHEAD_TRIES] = {0, 4096, 512, 64, 8, 1};

/* Programs at the ends of a run move all state through memory once. As far ahead as memory allows they
 * would fill a host budget that steps leave free, and that would have to be touched and pinned for them
 * alone. */
static bool is_at_an_end(enum program_kind kind)
{
    return kind == PROGRAM_INIT || kind == PROGRAM_SAVE || kind == PROGRAM_LOAD;
}

/* The shorter of two lookaheads, of which 0 is no limit. */
static uint64_t shorter_lookahead(uint64_t a, uint64_t b)
{
    return a == 0 ? b : b == 0 ? a : size_min(a, b);
}

/* How a program is compiled. */
struct order {
    enum program_kind kind;
    uint32_t held;
    bool serial; /* no lookahead; else the job's own, then shorter ones until it fits */
    bool whole;  /* all of the program, not just its figures */
};

static int compile_one(const plan_job *job, const plan_set *set, const plani_layout *layout,
                       const struct order *asked, const uint64_t *budgets, program *out)
{
    plani_builder b;
    memset(out, 0, sizeof *out);
    int rc = plani_builder_init(&b, job, set, layout, asked->held);
    if (rc == 0) {
        plani_emit_program(&b, asked->kind);
        rc = b.error;
    }
    int first = asked->serial ? LOOKAHEAD_TRIES - 1 : 0;
    for (int i = first; rc == 0 && i < LOOKAHEAD_TRIES; i++) {
        uint64_t lookahead = shorter_lookahead(lookaheads[i], job->lookahead_ops);
        if (is_at_an_end(asked->kind))
            lookahead = shorter_lookahead(lookahead, PLANI_LOOKAHEAD_OF_SAVES);
        int tried = plani_schedule(&b, asked->kind, budgets, lookahead, asked->whole, out);
        if (tried == 0)
            break;
        if (tried != ERR_NO_FIT || i + 1 == LOOKAHEAD_TRIES)
            rc = tried;
        else if (i == first && asked->held > 0) /* too many held stages fit in no order */
            rc = plani_schedule(&b, asked->kind, budgets, 1, false, out);
    }
    plani_builder_fini(&b);
    return rc;
}

static void programs_fini(plan_set *set)
{
    for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
        program_fini(&set->programs[k]);
}

void plan_set_fini(plan_set *set)
{
    programs_fini(set);
    mem_free(set->homes.params); /* the table of all homes */
    mem_free(set->norm_block_begin);
    memset(set, 0, sizeof *set);
}

/* Bytes beyond the budgets, all arenas together. */
static double excess(const plan_job *job, const uint64_t need[ARENA_COUNT])
{
    double bytes = 0;
    for (int a = 0; a < ARENA_COUNT; a++)
        if (need[a] > job->budget_bytes[a])
            bytes += (double)(need[a] - job->budget_bytes[a]);
    return bytes;
}

/* How a steady step commits, as far as the update says it: state that was updated at the end of a step
 * is committed by the next one before all else; pending updates leave the whole backward to hide it. */
static enum plan_commit usual_commit(const plan_job *job)
{
    if (!plani_commits(job) || job->update == PLAN_UPDATE_DELAYED_ONE_STEP)
        return PLAN_COMMIT_APART;
    return job->update == PLAN_UPDATE_IN_NEXT_FORWARD ? PLAN_COMMIT_BEHIND : PLAN_COMMIT_FIRST;
}

static bool has_state_in_memory(const plan_job *job)
{
    for (uint32_t u = 0; u < job->unit_count; u++)
        if (job->homes[STATE_OPTIMIZER][u] != ARENA_NVME)
            return true;
    return false;
}

/* A layout of homes at a tile size, in a set without programs. */
static int set_begin(const plan_job *job, uint64_t tile_elems, plan_set *set, plani_layout *layout)
{
    memset(set, 0, sizeof *set);
    set->tile_elems = tile_elems;
    set->commit = usual_commit(job);
    int rc = plani_layout_make(job, set, layout);
    if (rc < 0) {
        plani_layout_fini(layout);
        plan_set_fini(set);
    }
    return rc;
}

/* A tile size, and what is known of its needs: the homes and the first `kinds_done` programs. */
struct candidate {
    uint64_t tile_elems;
    bool has_homes;
    int kinds_done;
    uint64_t need[ARENA_COUNT]; /* so far: at least this */
    uint64_t second_bytes;      /* of nvme: without commits that much less */
};

/* The steady step needs the most in nearly every job. */
static const enum program_kind need_order[PROGRAM_KIND_COUNT] = {
    PROGRAM_STEADY, PROGRAM_FIRST, PROGRAM_EVAL, PROGRAM_INIT,
    PROGRAM_LOAD,   PROGRAM_FLUSH, PROGRAM_SAVE,
};

static bool is_known(const struct candidate *c)
{
    return c->has_homes && c->kinds_done == PROGRAM_KIND_COUNT;
}

/* Finds what the serial order needs, per arena, until all is known or the excess reaches `most`. First
 * fit does not look at the end of an arena, so budgets of exactly these bytes give the same places: the
 * job fits at this tile size if and only if its budgets cover them. */
static int learn_needs(const plan_job *job, struct candidate *c, double most)
{
    static const uint64_t unlimited[ARENA_COUNT] = {UINT64_MAX / 2, UINT64_MAX / 2, UINT64_MAX / 2};
    if (c->has_homes && (is_known(c) || excess(job, c->need) >= most))
        return 0;
    plan_set set;
    plani_layout layout;
    TRY(set_begin(job, c->tile_elems, &set, &layout));
    uint64_t extra[ARENA_COUNT] = {[ARENA_NVME] = job->nvme_overhead_bytes};
    for (int a = 0; a < ARENA_COUNT && !c->has_homes; a++)
        c->need[a] = layout.end_bytes[a] + extra[a];
    c->has_homes = true;
    c->second_bytes = set.second_bytes;
    int rc = 0;
    while (rc == 0 && !is_known(c) && excess(job, c->need) < most) {
        struct order asked = {.kind = need_order[c->kinds_done++], .serial = true};
        program serial;
        rc = compile_one(job, &set, &layout, &asked, unlimited, &serial);
        for (int a = 0; a < ARENA_COUNT && rc == 0; a++)
            c->need[a] = size_max(c->need[a], serial.peak_bytes[a] + extra[a]);
        program_fini(&serial);
    }
    plani_layout_fini(&layout);
    plan_set_fini(&set);
    return rc;
}

struct choice {
    uint64_t tile_elems;
    uint32_t held;
    uint64_t predicted_ns; /* of the step that decides; 0: none yet */
    enum plan_commit commit;
    uint64_t uncommitted_ns;
};

/* Tries the steady step at one tile size with 0, 1, 2, 4, ... held stages. */
static int try_tile(const plan_job *job, struct candidate *c, struct choice *best)
{
    TRY(learn_needs(job, c, 1));
    if (excess(job, c->need) > 0)
        return 0;
    plan_set set;
    plani_layout layout;
    TRY(set_begin(job, c->tile_elems, &set, &layout));
    int rc = 0;
    enum plan_commit usual = set.commit;
    if (job->commit_every > 1 && has_state_in_memory(job))
        set.commit = PLAN_COMMIT_APART;
    enum program_kind decisive = job->only_eval ? PROGRAM_EVAL : PROGRAM_STEADY;
    uint32_t most = plani_held_most(job);
    bool open = true;
    for (uint32_t held = 0; open; held = held == 0 ? 1 : size_min(2 * (uint64_t)held, most)) {
        program trial;
        struct order asked = {.kind = decisive, .held = held};
        rc = compile_one(job, &set, &layout, &asked, job->budget_bytes, &trial);
        if (rc == ERR_NO_FIT && set.commit != usual) { /* what the needs were found for */
            set.commit = usual;
            rc = compile_one(job, &set, &layout, &asked, job->budget_bytes, &trial);
        }
        if (rc == ERR_NO_FIT) {
            rc = 0;
            break; /* more held stages need more memory */
        }
        if (rc < 0)
            break;
        double gain = best->predicted_ns == 0
                          ? 1.0
                          : 1.0 - (double)trial.predicted_ns / (double)best->predicted_ns;
        if (gain > plan_gain)
            *best = (struct choice){c->tile_elems, held, trial.predicted_ns, set.commit, 0};
        program_fini(&trial);
        open = held < most;
    }
    plani_layout_fini(&layout);
    plan_set_fini(&set);
    return rc;
}

static uint64_t total_elems(const plan_job *job)
{
    uint64_t total = 0;
    for (uint32_t u = 0; u < job->unit_count; u++)
        total += plani_whole_elems(job, u);
    return total;
}

static uint64_t half_tile(uint64_t tile_elems)
{
    return size_round_up(tile_elems / 2, TILE_ELEMS_STEP);
}

/* The tile sizes in question, largest first; returns how many. The job's own alone, or halves of the
 * largest that is worth its memory, down to the one that cuts the model into TILES_MOST: a drive is as
 * fast at any of them, and smaller ones only make the plan long. */
static uint32_t list_candidates(const plan_job *job, struct candidate list[CANDIDATES_MAX])
{
    memset(list, 0, CANDIDATES_MAX * sizeof *list);
    list[0].tile_elems = job->tile_elems;
    if (job->tile_elems)
        return 1;
    uint64_t largest_unit = 0;
    for (uint32_t u = 0; u < job->unit_count; u++)
        largest_unit = size_max(largest_unit, plan_rest_elems(job, STATE_OPTIMIZER, u));
    uint64_t floor = size_round_up(size_div_up(total_elems(job), TILES_MOST), TILE_ELEMS_STEP);
    uint64_t tile = size_round_up(size_div_up(largest_unit, TILES_OF_UNIT_LEAST), TILE_ELEMS_STEP);
    tile = size_max(size_max(tile, TILE_ELEMS_LARGEST), floor);
    if (job->tile_elems_max) {
        uint64_t cap = size_round_up(job->tile_elems_max, TILE_ELEMS_STEP);
        tile = size_min(tile, cap);
        floor = size_min(floor, cap);
    }
    uint64_t enough = size_max(size_round_up(largest_unit, TILE_ELEMS_STEP), floor);
    while (half_tile(tile) >= enough && half_tile(tile) < tile)
        tile = half_tile(tile);
    uint32_t count = 0;
    list[count++].tile_elems = tile;
    while (tile > floor && count < CANDIDATES_MAX) {
        tile = size_max(half_tile(tile), floor);
        list[count++].tile_elems = tile;
    }
    return count;
}

static int search(const plan_job *job, struct candidate *list, uint32_t count, struct choice *best)
{
    memset(best, 0, sizeof *best);
    uint64_t enough = size_max(TILE_ELEMS_SEARCHED, total_elems(job) / TILES_SEARCHED);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t before = best->predicted_ns;
        TRY(try_tile(job, &list[i], best));
        if (best->predicted_ns && (best->predicted_ns == before || list[i].tile_elems <= enough))
            break;
    }
    return 0;
}

/* The steady step of the choice's tile and held stages, committing so; UINT64_MAX: does not fit. */
static int steady_ns(const plan_job *job, const struct choice *best, enum plan_commit commit,
                     uint64_t *ns)
{
    plan_set set;
    plani_layout layout;
    *ns = UINT64_MAX;
    TRY(set_begin(job, best->tile_elems, &set, &layout));
    set.commit = commit;
    program trial;
    struct order asked = {.kind = PROGRAM_STEADY, .held = best->held};
    int rc = compile_one(job, &set, &layout, &asked, job->budget_bytes, &trial);
    if (rc == 0)
        *ns = trial.predicted_ns;
    program_fini(&trial);
    plani_layout_fini(&layout);
    plan_set_fini(&set);
    return rc == ERR_NO_FIT ? 0 : rc;
}

/* How the step of the search's choice commits, and its time both ways. State homed in memory may be so
 * much that the drive is at its saves when the step's other work ends, and the sync comes on top. Where
 * the saves come first the step hides that too, at the price of updates that wait for them, and of a
 * commit that is a step older. */
static int choose_commit(const plan_job *job, struct choice *best)
{
    enum plan_commit usual = usual_commit(job);
    uint64_t usual_ns = best->predicted_ns, first_ns;
    best->uncommitted_ns = best->commit == PLAN_COMMIT_APART ? best->predicted_ns : 0;
    if (best->commit != usual)
        TRY(steady_ns(job, best, usual, &usual_ns));
    if (usual_ns == UINT64_MAX) { /* no room for its saves as well */
        best->held = 0;
        best->uncommitted_ns = 0;
        TRY(steady_ns(job, best, usual, &usual_ns));
    }
    if (best->uncommitted_ns == 0)
        TRY(steady_ns(job, best, PLAN_COMMIT_APART, &best->uncommitted_ns));
    best->uncommitted_ns = size_min(best->uncommitted_ns, usual_ns);
    best->commit = usual;
    if (usual != PLAN_COMMIT_BEHIND || !has_state_in_memory(job))
        return 0;
    TRY(steady_ns(job, best, PLAN_COMMIT_FIRST, &first_ns));
    if ((double)first_ns < (1.0 - plan_gain) * (double)usual_ns)
        best->commit = PLAN_COMMIT_FIRST;
    return 0;
}

static const char *const budget_keys[ARENA_COUNT] = {"tiers.device.budget", "tiers.host.budget",
                                                     "tiers.nvme[].budget"};

/* The candidate that comes nearest to the budgets, its needs known. What is known of one so far bounds
 * its excess from below, so the least is looked at first, and none that a finished one undercuts. */
static int nearest(const plan_job *job, struct candidate *list, uint32_t count,
                   struct candidate **found)
{
    *found = NULL;
    double least = INFINITY;
    for (;;) {
        struct candidate *next = NULL;
        for (uint32_t i = 0; i < count; i++) {
            double bound = excess(job, list[i].need);
            if (&list[i] != *found && bound < least && (!next || bound < excess(job, next->need)))
                next = &list[i];
        }
        if (!next)
            return 0;
        TRY(learn_needs(job, next, least));
        if (is_known(next) && excess(job, next->need) < least) {
            least = excess(job, next->need);
            *found = next;
        }
    }
}

/* ERR_NO_FIT with, for every tier that is too small, what is needed and what is allowed. */
static int refuse(const plan_job *job, struct candidate *list, uint32_t count)
{
    if (job->no_advice)
        return err_set(ERR_NO_FIT, "does not fit");
    struct candidate *closest;
    TRY(nearest(job, list, count, &closest));
    const uint64_t *need = closest->need;
    char text[640] = "", fits[256] = "", once[192] = "";
    size_t used = 0, fits_used = 0;
    for (int a = 0; a < ARENA_COUNT; a++) {
        if (need[a] <= job->budget_bytes[a])
            continue;
        char needed[SIZE_TEXT_BYTES], allowed[SIZE_TEXT_BYTES];
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "%sneeds %" PRIu64 " bytes (%s) of %s, has %" PRIu64 " (%s)",
                                 used ? "; " : "", need[a], size_format(need[a], needed),
                                 arena_kind_name((enum arena_kind)a), job->budget_bytes[a],
                                 size_format(job->budget_bytes[a], allowed));
        uint64_t sharers = a == ARENA_NVME ? size_max(job->nvme_sharers, 1) : 1;
        fits_used += (size_t)snprintf(fits + fits_used, sizeof fits - fits_used, "%s%s=%" PRIu64,
                                      fits_used ? " " : "", budget_keys[a], need[a] * sharers);
    }
    if (used == 0)
        return err_set(ERR_INTERNAL, "the plan found no schedule although the serial order fits");
    bool lacks_nvme = need[ARENA_NVME] > job->budget_bytes[ARENA_NVME];
    char less[SIZE_TEXT_BYTES];
    if (lacks_nvme && closest->second_bytes > 0)
        snprintf(once, sizeof once,
                 "; run.commit_every=0 needs %" PRIu64
                 " bytes (%s) of nvme less, but resumes only after a clean stop",
                 closest->second_bytes, size_format(closest->second_bytes, less));
    bool lacks_device = need[ARENA_DEVICE] > job->budget_bytes[ARENA_DEVICE];
    bool adds = job->device_advice && lacks_device;
    const char *more = adds ? job->device_advice : "", *and_so = adds ? "; " : "";
    if (job->nvme_advice && lacks_nvme)
        return err_set(ERR_NO_FIT, "does not fit: %s; %s%s%s%s", text, job->nvme_advice, once,
                       and_so, more);
    return err_set(ERR_NO_FIT, "does not fit: %s; fits with %s%s%s%s", text, fits, once, and_so,
                   more);
}

/* Busiest resource's seconds, per phase: the norm is the barrier within a step. Saves of a commit go on
 * beyond it: they count in the work of the step as a whole, which is a bound as well. */
static uint64_t steady_bound(const plan_job *job, const program *prog, bool commits)
{
    double total[RESOURCE_COUNT] = {0}, whole[RESOURCE_COUNT] = {0}, bound = 0;
    for (uint64_t i = 0; i <= prog->op_count; i++) {
        bool barrier = i == prog->op_count || prog->ops[i].kind == OP_NORM;
        if (i < prog->op_count && (commits || !prog->ops[i].if_commits)) {
            struct plani_share share;
            plani_demand(&job->machine, &prog->ops[i].demand, &share);
            for (int r = 0; r < RESOURCE_COUNT; r++) {
                whole[r] += share.demand[r];
                total[r] += prog->ops[i].if_commits ? 0 : share.demand[r];
            }
        }
        if (!barrier)
            continue;
        double busiest = 0;
        for (int r = 0; r < RESOURCE_COUNT; r++) {
            busiest = fmax(busiest, total[r]);
            total[r] = 0;
        }
        bound += busiest;
    }
    for (int r = 0; r < RESOURCE_COUNT; r++)
        bound = fmax(bound, whole[r]);
    return (uint64_t)llround(bound * 1e9);
}

static int compile_all(const plan_job *job, const struct choice *best, plan_set *out)
{
    plani_layout layout;
    TRY(set_begin(job, best->tile_elems, out, &layout));
    out->held_stages = best->held;
    out->commit = best->commit;
    out->uncommitted_ns = job->only_eval ? 0 : best->uncommitted_ns;
    int rc = 0;
    for (int k = 0; k < PROGRAM_KIND_COUNT && rc == 0; k++) {
        struct order asked = {.kind = (enum program_kind)k, .held = best->held, .whole = true};
        rc = compile_one(job, out, &layout, &asked, job->budget_bytes, &out->programs[k]);
        asked.held = 0;
        if (rc == ERR_NO_FIT && best->held > 0)
            rc = compile_one(job, out, &layout, &asked, job->budget_bytes, &out->programs[k]);
        if (rc == 0)
            rc = program_check(&out->programs[k]);
    }
    plani_layout_fini(&layout);
    if (rc == 0) {
        out->bound_ns = steady_bound(job, &out->programs[PROGRAM_STEADY], true);
        out->uncommitted_bound_ns = steady_bound(job, &out->programs[PROGRAM_STEADY], false);
    } else {
        plan_set_fini(out);
    }
    return rc;
}

int plan_compile(const plan_job *job, plan_set *out)
{
    memset(out, 0, sizeof *out);
    assert(job->stage_count >= 2);
    if (job->micro_batch_count == 0)
        return err_set(ERR_CONFIG, "gradient_accumulation_steps is 0: a step has at least one "
                                   "micro-batch");
    if ((uint64_t)job->stage_count * job->micro_batch_count > SLOTS_MOST)
        return err_set(ERR_CONFIG,
                       "gradient_accumulation_steps %" PRIu32 " times %" PRIu32
                       " stages is more than %d passes in a step: at most %" PRIu32 " fit",
                       job->micro_batch_count, job->stage_count, SLOTS_MOST,
                       (uint32_t)SLOTS_MOST / job->stage_count);
    struct candidate list[CANDIDATES_MAX];
    uint32_t count = list_candidates(job, list);
    struct choice best;
    TRY(search(job, list, count, &best));
    if (best.predicted_ns == 0)
        return refuse(job, list, count);
    TRY(choose_commit(job, &best));
    int rc = compile_all(job, &best, out);
    if (rc == ERR_NO_FIT)
        return refuse(job, list, count);
    return rc;
}

void plan_machine_default_cpu(plan_machine *machine, uint32_t core_count, bool bf16_products)
{
    /* A server core of the 2020s with AVX-512: products near 90 GFLOP/s in fp32 and twice that where it
     * has bf16 ones; DRAM 15 GB/s a core and more; one Gen4 drive. */
    double cores = core_count > 0 ? core_count : 1;
    memset(machine, 0, sizeof *machine);
    machine->drive_read_bytes_per_second = 3e9;
    machine->drive_write_bytes_per_second = 3e9;
    machine->dram_bytes_per_second = fmin(15e9 * cores + 20e9, 200e9);
    machine->h2d_bytes_per_second = 12e9;
    machine->d2h_bytes_per_second = 12e9;
    machine->device_flops_per_second = (bf16_products ? 180e9 : 90e9) * cores;
    machine->core_count = cores;
    machine->device_is_cpu = true;
    machine->op_seconds = 20e-6;
    /* Ranks of one host that copy through shared memory: a guess as well. */
    machine->comm_bytes_per_second = 5e9;
    machine->comm_seconds = 20e-6;
    machine->comm_is_copies = true;
    /* A guess that no measurement of ours stands behind: a few flushes of a drive's cache, which take
     * from well under a millisecond (power-loss protection) to some milliseconds (none) each. */
    machine->sync_seconds = 5e-3;
}

void plan_machine_default_gpu(plan_machine *machine, uint32_t core_count, int major,
                              double memory_bytes_per_second)
{
    /* Products at about two thirds of the dense 16-bit peak that the makers state (A100 312, H100 989
     * TFLOP/s, later ones more); links of Gen4 and, from Hopper on, Gen5 x16 at what copies reach. */
    plan_machine_default_cpu(machine, core_count, false);
    machine->device_is_cpu = false;
    machine->device_flops_per_second = major >= 9 ? 600e12 : major == 8 ? 200e12 : 60e12;
    machine->device_bytes_per_second = memory_bytes_per_second > 0 ? 0.85 * memory_bytes_per_second
                                       : major >= 9                ? 2.5e12
                                                                   : 1.2e12;
    machine->h2d_bytes_per_second = machine->d2h_bytes_per_second = major >= 9 ? 50e9 : 24e9;
    machine->op_seconds = 10e-6;
    /* GPUs of one host that reach each other through the same switches: a guess. */
    machine->comm_bytes_per_second = machine->h2d_bytes_per_second / 2;
    machine->comm_is_copies = false;
}
