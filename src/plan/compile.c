/* The search: which tile size, how many held stages, how much lookahead; and the refusal.
 *
 * The steady step decides. For each tile size, largest first, and each number of held stages, fewest
 * first, its program is scheduled; the shortest simulated step wins, and a longer lookahead is tried
 * before a shorter one. A gain under PLAN_GAIN does not justify a smaller tile or more held stages.
 * When nothing fits, the serial order of the smallest tile says what is needed. */
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
    TILE_ELEMS_SEARCHED = 256 << 10, /* smaller tiles only where larger ones do not fit */
    LOOKAHEAD_TRIES = 6,
};

static const uint64_t lookaheads[LOOKAHEAD_TRIES] = {0, 4096, 512, 64, 8, 1};

/* One program at given tile size and held stages. lookahead 0: the job's own, then shorter ones. */
static int compile_one(const plan_job *job, const plan_set *set, const plani_layout *layout,
                       enum program_kind kind, uint32_t held, const uint64_t *budgets, bool serial,
                       program *out)
{
    plani_builder b;
    memset(out, 0, sizeof *out);
    int rc = plani_builder_init(&b, job, set, layout, held);
    if (rc == 0) {
        plani_emit_program(&b, kind);
        rc = b.error;
    }
    for (int i = serial ? LOOKAHEAD_TRIES - 1 : 0; rc == 0 && i < LOOKAHEAD_TRIES; i++) {
        uint64_t lookahead = lookaheads[i];
        if (job->lookahead_ops && (lookahead == 0 || lookahead > job->lookahead_ops))
            lookahead = job->lookahead_ops;
        int tried = plani_schedule(&b, kind, budgets, lookahead, out);
        if (tried == 0)
            break;
        if (tried != ERR_NO_FIT || i + 1 == LOOKAHEAD_TRIES)
            rc = tried;
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

static bool covers(const uint64_t budgets[ARENA_COUNT], const uint64_t need[ARENA_COUNT])
{
    for (int a = 0; a < ARENA_COUNT; a++)
        if (need[a] > budgets[a])
            return false;
    return true;
}

/* A layout of homes at a tile size, in a set without programs. */
static int set_begin(const plan_job *job, uint64_t tile_elems, plan_set *set, plani_layout *layout)
{
    memset(set, 0, sizeof *set);
    set->tile_elems = tile_elems;
    int rc = plani_layout_make(job, set, layout);
    if (rc < 0) {
        plani_layout_fini(layout);
        plan_set_fini(set);
    }
    return rc;
}

/* What the serial order needs, per arena, over all programs. First fit does not look at the end of an
 * arena, so budgets of exactly these bytes give the same places: the job fits at this tile size if and
 * only if its budgets cover them. */
static int serial_needs(const plan_job *job, uint64_t tile_elems, uint64_t need[ARENA_COUNT])
{
    static const uint64_t unlimited[ARENA_COUNT] = {UINT64_MAX / 2, UINT64_MAX / 2, UINT64_MAX / 2};
    plan_set set;
    plani_layout layout;
    TRY(set_begin(job, tile_elems, &set, &layout));
    int rc = 0;
    for (int a = 0; a < ARENA_COUNT; a++)
        need[a] = layout.end_bytes[a];
    for (int k = 0; k < PROGRAM_KIND_COUNT && rc == 0; k++) {
        program serial;
        rc = compile_one(job, &set, &layout, (enum program_kind)k, 0, unlimited, true, &serial);
        for (int a = 0; a < ARENA_COUNT && rc == 0; a++)
            need[a] = size_max(need[a], serial.peak_bytes[a]);
        program_fini(&serial);
    }
    need[ARENA_NVME] += job->nvme_overhead_bytes;
    plani_layout_fini(&layout);
    plan_set_fini(&set);
    return rc;
}

struct choice {
    uint64_t tile_elems;
    uint32_t held;
    uint64_t predicted_ns; /* 0: none yet */
};

/* Tries the steady step at one tile size with 0, 1, 2, 4, ... held stages. */
static int try_tile(const plan_job *job, uint64_t tile_elems, struct choice *best)
{
    uint64_t need[ARENA_COUNT];
    TRY(serial_needs(job, tile_elems, need));
    if (!covers(job->budget_bytes, need))
        return 0;
    plan_set set;
    plani_layout layout;
    TRY(set_begin(job, tile_elems, &set, &layout));
    int rc = 0;
    enum program_kind decisive = job->only_eval ? PROGRAM_EVAL : PROGRAM_STEADY;
    uint32_t most = job->only_eval ? 0 : job->stage_count - 1;
    bool open = true;
    for (uint32_t held = 0; open; held = held == 0 ? 1 : size_min(2 * (uint64_t)held, most)) {
        program trial;
        rc = compile_one(job, &set, &layout, decisive, held, job->budget_bytes, false, &trial);
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
            *best = (struct choice){tile_elems, held, trial.predicted_ns};
        program_fini(&trial);
        open = held < most;
    }
    plani_layout_fini(&layout);
    plan_set_fini(&set);
    return rc;
}

static uint64_t largest_unit(const plan_job *job)
{
    uint64_t largest = 0;
    for (uint32_t u = 0; u < job->unit_count; u++)
        largest = size_max(largest, job->unit_elems[u]);
    return size_round_up(largest, TILE_ELEMS_STEP);
}

static int search(const plan_job *job, struct choice *best)
{
    memset(best, 0, sizeof *best);
    if (job->tile_elems)
        return try_tile(job, job->tile_elems, best);
    uint64_t tile = TILE_ELEMS_LARGEST;
    while (tile / 2 >= largest_unit(job) && tile > TILE_ELEMS_STEP)
        tile /= 2;
    for (; tile >= TILE_ELEMS_STEP; tile /= 2) {
        uint64_t before = best->predicted_ns;
        TRY(try_tile(job, tile, best));
        if (best->predicted_ns && (best->predicted_ns == before || tile <= TILE_ELEMS_SEARCHED))
            break;
    }
    return 0;
}

static const char *const budget_keys[ARENA_COUNT] = {"tiers.device.budget", "tiers.host.budget",
                                                     "tiers.nvme[].budget"};

static double excess(const plan_job *job, const uint64_t need[ARENA_COUNT])
{
    double bytes = 0;
    for (int a = 0; a < ARENA_COUNT; a++)
        if (need[a] > job->budget_bytes[a])
            bytes += (double)(need[a] - job->budget_bytes[a]);
    return bytes;
}

/* The needs of the tile size that comes nearest to the budgets. */
static int least_needs(const plan_job *job, uint64_t need[ARENA_COUNT])
{
    uint64_t tile = job->tile_elems ? job->tile_elems : TILE_ELEMS_STEP;
    TRY(serial_needs(job, tile, need));
    while (!job->tile_elems && tile < TILE_ELEMS_LARGEST && tile < largest_unit(job)) {
        uint64_t other[ARENA_COUNT];
        tile *= 2;
        TRY(serial_needs(job, tile, other));
        if (excess(job, other) < excess(job, need))
            memcpy(need, other, sizeof other);
    }
    return 0;
}

/* ERR_NO_FIT with, for every tier that is too small, what is needed and what is allowed. */
static int refuse(const plan_job *job)
{
    uint64_t need[ARENA_COUNT];
    TRY(least_needs(job, need));
    char text[640] = "", fits[256] = "";
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
        fits_used += (size_t)snprintf(fits + fits_used, sizeof fits - fits_used, "%s%s=%" PRIu64,
                                      fits_used ? " " : "", budget_keys[a], need[a]);
    }
    if (used == 0)
        return err_set(ERR_INTERNAL, "the plan found no schedule although the serial order fits");
    return err_set(ERR_NO_FIT, "does not fit: %s; fits with %s", text, fits);
}

/* Busiest resource's seconds, per phase: the norm is the barrier within a step. */
static uint64_t steady_bound(const plan_job *job, const program *prog)
{
    double total[RESOURCE_COUNT] = {0}, bound = 0;
    for (uint64_t i = 0; i <= prog->op_count; i++) {
        bool barrier = i == prog->op_count || prog->ops[i].kind == OP_NORM;
        if (i < prog->op_count) {
            struct plani_share share;
            plani_demand(&job->machine, &prog->ops[i].demand, &share);
            for (int r = 0; r < RESOURCE_COUNT; r++)
                total[r] += share.demand[r];
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
    return (uint64_t)llround(bound * 1e9);
}

static int compile_all(const plan_job *job, const struct choice *best, plan_set *out)
{
    plani_layout layout;
    TRY(set_begin(job, best->tile_elems, out, &layout));
    out->held_stages = best->held;
    int rc = 0;
    for (int k = 0; k < PROGRAM_KIND_COUNT && rc == 0; k++) {
        rc = compile_one(job, out, &layout, (enum program_kind)k, best->held, job->budget_bytes,
                         false, &out->programs[k]);
        if (rc == ERR_NO_FIT && best->held > 0)
            rc = compile_one(job, out, &layout, (enum program_kind)k, 0, job->budget_bytes, false,
                             &out->programs[k]);
        if (rc == 0)
            rc = program_check(&out->programs[k]);
    }
    plani_layout_fini(&layout);
    if (rc == 0)
        out->bound_ns = steady_bound(job, &out->programs[PROGRAM_STEADY]);
    else
        plan_set_fini(out);
    return rc;
}

int plan_compile(const plan_job *job, plan_set *out)
{
    memset(out, 0, sizeof *out);
    assert(job->stage_count >= 2 && job->micro_batch_count > 0);
    struct choice best;
    TRY(search(job, &best));
    if (best.predicted_ns == 0)
        return refuse(job);
    int rc = compile_all(job, &best, out);
    if (rc == ERR_NO_FIT)
        return refuse(job);
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
}
