/* Memory of each rank, tier by tier, to the byte: what was mapped, made and committed is what
 * `plan` says, and where states rest is what ZeRO's formulas give with the padding of
 * base/shard.h.
 *
 * test_ranks_memory RANKS FAMILY-DTYPE */
#include <fcntl.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/size.h"
#include "setup/summary.h"
#include "state/verify.h"
#include "tests/ranks/mpi_fixture.h"
#include "tests/unit.h"
#include "train/train.h"

enum {
    STAGES = 4,
    STREAMS = 3, /* of Adam */
    BLOCK_BYTES = 4096,
    PERIOD_BYTES = 65536,
    SKEW_BYTES = 16384,
    HEADER_BYTES = 4096,
    STRIPE_BYTES = 8 << 20,
};

static fixture_model shape = {.family = "gpt2", .layers = 2, .hidden = 96};

static uint64_t round_up(uint64_t value, uint64_t step)
{
    return (value + step - 1) / step * step;
}

/* ---- what a rank sees of itself ---- */

struct seen {
    uint64_t huge_bytes;          /* of the mappings that ask for huge pages, as arenas do */
    uint64_t huge_resident_bytes; /* of them, in memory */
    uint64_t sealed_alloc_count, sealed_mapped_bytes;
    uint64_t looks;
};

static struct seen own;

/* In the first commit of a run: then all its memory has been taken. Takes none itself: standard
 * I/O would give this thread a heap. */
static int look_at_maps(void *user, const char *point)
{
    static char text[2 << 20];
    if (strcmp(point, "commit.begin") != 0 || own.looks++ > 0)
        return 0;
    int fd = open("/proc/self/smaps", O_RDONLY | O_CLOEXEC);
    size_t bytes = 0;
    for (ssize_t got = 1; fd >= 0 && got > 0; bytes += (size_t)got)
        got = read(fd, text + bytes, sizeof text - 1 - bytes);
    close(fd);
    assert_true(bytes > 0 && bytes < sizeof text - 1);
    unsigned long long kib = 0, resident_kib = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        *end = '\0';
        sscanf(line, "Size: %llu kB", &kib);
        sscanf(line, "Rss: %llu kB", &resident_kib);
        if (strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " hg")) {
            own.huge_bytes += kib * KIB;
            own.huge_resident_bytes += resident_kib * KIB;
        }
    }
    return 0;
}

/* ---- what it must be ---- */

struct formulas {
    uint64_t home_bytes[STATE_KIND_COUNT]; /* params, grads, optimizer of a rank */
    uint64_t extents_bytes, extent_count;  /* of the optimizer state, of all ranks */
    uint64_t elems;                        /* of all units, shards of a rank */
};

/* A tile of n elements: three streams, each at a multiple of 64 KiB and 16 KiB more behind the
 * one before. */
static uint64_t bytes_of_tile(uint64_t elems)
{
    return (STREAMS - 1) * (round_up(4 * elems, PERIOD_BYTES) + SKEW_BYTES) +
           round_up(4 * elems, BLOCK_BYTES);
}

static void add_unit(struct formulas *sum, uint64_t elems, unsigned stage, uint64_t tile_elems)
{
    uint64_t world = mpi_world, shard = round_up((elems + world - 1) / world, 4096);
    uint64_t whole = world * shard, state = stage >= 1 ? shard : whole;
    sum->elems += shard;
    sum->home_bytes[STATE_PARAMS] += (stage == 3 ? shard : whole) * (shape.bf16 ? 2 : 4);
    sum->home_bytes[STATE_GRADS] += (stage >= 2 ? shard : whole) * (shape.bf16 ? 2 : 4);
    uint64_t holders = stage >= 1 ? world : 1; /* whom the manifest lists */
    for (uint64_t begin = 0; begin < state; begin += tile_elems) {
        uint64_t count = state - begin < tile_elems ? state - begin : tile_elems;
        bool is_last = begin + count == state;
        sum->home_bytes[STATE_OPTIMIZER] +=
            is_last ? bytes_of_tile(count) : round_up(bytes_of_tile(count), PERIOD_BYTES);
        sum->extents_bytes += holders * bytes_of_tile(count);
        sum->extent_count += holders;
    }
}

/* ---- comparing ---- */

static void expect(const char *what, const char *which, uint64_t is, uint64_t must_be)
{
    if (is != must_be)
        fail_msg("%s: %s is %llu, not %llu", what, which, (unsigned long long)is,
                 (unsigned long long)must_be);
}

static void check_homes(const char *what, const struct setup_summary *plan,
                        const struct formulas *must_be, const enum tier places[3])
{
    static const char *const names[] = {"params", "grads", "optimizer"};
    static const enum state_kind kinds[] = {STATE_PARAMS, STATE_GRADS, STATE_OPTIMIZER};
    for (int k = 0; k < 3; k++)
        for (int a = 0; a < TIER_COUNT; a++)
            expect(what, names[k], plan->home_bytes[kinds[k]][a],
                   (int)places[k] == a ? must_be->home_bytes[kinds[k]] : 0);
}

/* The slab holds what rests there and two places of all optimizer state, for commits; nothing
 * else. */
static void check_slab(const char *what, const struct setup_summary *plan,
                       const struct formulas *must_be)
{
    uint64_t state = must_be->home_bytes[STATE_OPTIMIZER], bytes = 0;
    for (int k = 0; k < STATE_KIND_COUNT; k++)
        bytes += plan->home_bytes[k][TIER_NVME];
    bytes += plan->home_bytes[STATE_OPTIMIZER][TIER_NVME] > 0 ? state : 2 * state;
    expect(what, "the slab", plan->peak_bytes[TIER_NVME], bytes);
}

static void check_rank(const char *what, const struct setup_summary *plan,
                       const struct train_rank *rank, const struct seen *seen)
{
    for (int a = 0; a < TIER_COUNT; a++)
        expect(what, "an arena", rank->arena_bytes[a],
               plan->peak_bytes[a] > BLOCK_BYTES || a == TIER_NVME ? plan->peak_bytes[a]
                                                                   : BLOCK_BYTES);
    expect(what, "the slab's files", rank->slab_file_bytes,
           HEADER_BYTES + round_up(plan->peak_bytes[TIER_NVME], STRIPE_BYTES));
    expect(what, "allocations of a sealed run", seen->sealed_alloc_count, 0);
    expect(what, "commits looked at", seen->looks > 0, 1);
    if (seen->huge_bytes == 0 || FIXTURE_IS_SANITIZED)
        return; /* a kernel without huge pages has no such flag */
    uint64_t arenas = round_up(rank->arena_bytes[TIER_DEVICE], BLOCK_BYTES) +
                      round_up(rank->arena_bytes[TIER_HOST], BLOCK_BYTES);
    expect(what, "what is mapped for arenas", seen->huge_bytes, arenas);
    expect(what, "what of that is in memory", seen->huge_resident_bytes, arenas);
    expect(what, "growth of the mappings of a sealed run", seen->sealed_mapped_bytes, 0);
}

static void check_drive(const char *what, const char *name, const struct setup_summary *plan,
                        const struct formulas *must_be, unsigned stage)
{
    static struct state_inspect_summary found;
    assert_ok(state_inspect(fixture_path(name, NULL), &found));
    expect(what, "extents", found.record.extent_count, must_be->extent_count);
    expect(what, "bytes of extents", found.extents_bytes, must_be->extents_bytes);
    expect(what, "replicated", found.record.is_replicated, stage == 0 && mpi_world > 1);
    expect(what, "tile elements", found.record.tile_elems, plan->tile_elems);
    expect(what, "files", found.file_count, mpi_world);
    uint64_t elems = 0;
    for (uint32_t u = 0; u < found.unit_count; u++)
        elems += found.units[u].elems;
    expect(what, "elements", elems, mpi_world * must_be->elems);
    for (uint32_t f = 0; f < found.file_count; f++) {
        uint64_t bytes = HEADER_BYTES + round_up(plan->peak_bytes[TIER_NVME], STRIPE_BYTES);
        expect(what, "a slab's file", found.files[f].size_bytes, bytes);
    }
    state_inspect_fini(&found);
}

struct placement {
    const char *name, *sets[4];
    enum tier homes[3];
};

static const struct placement placements[] = {
    {"device",
     {"tiers.place.params=device", "tiers.place.grads=device", "tiers.place.optimizer=device",
      "tiers.place.activations=device"},
     {TIER_DEVICE, TIER_DEVICE, TIER_DEVICE}},
    {"mixed",
     {"tiers.place.params=device", "tiers.place.grads=host", "tiers.place.optimizer=host",
      "tiers.place.activations=nvme"},
     {TIER_DEVICE, TIER_HOST, TIER_HOST}},
    {"nvme",
     {"tiers.place.params=nvme", "tiers.place.grads=nvme", "tiers.place.optimizer=nvme",
      "tiers.place.activations=host"},
     {TIER_NVME, TIER_NVME, TIER_NVME}},
};

static void set_run(fixture_sets *sets, const struct placement *place, unsigned stage)
{
    memset(sets, 0, sizeof *sets);
    for (int k = 0; k < 4; k++)
        fixture_set(sets, "%s", place->sets[k]);
    fixture_set(sets, "zero_optimization.stage=%u", stage);
    fixture_set(sets, "zero_optimization.stage3_param_persistence_threshold=0");
    fixture_set(sets, "schedule.tile_elems=32768");
    fixture_set(sets, "model.vocab_size=601");
    fixture_set(sets, "run.steps=7");
}

/* Rank 0 compares. */
static void check_run(const struct placement *place, unsigned stage, const uint64_t *unit_elems,
                      uint32_t unit_count)
{
    static fixture_sets sets;
    static mpi_result result;
    static struct seen all[MPI_RANKS_MAX];
    char what[64];
    snprintf(what, sizeof what, "%u ranks, stage %u, %s", mpi_world, stage, place->name);
    set_run(&sets, place, stage);
    job *asked = mpi_job("memory", &shape, &sets);
    const mpi_call call = {.name = "memory", .keeps = true};
    memset(&own, 0, sizeof own);
    failpoint_hook(look_at_maps, NULL);
    mpi_train(asked, &call, &result);
    failpoint_hook(NULL, NULL);
    if (result.run.rc < 0)
        fail_msg("%s: %s", what, result.run.error);
    own.sealed_alloc_count = result.run.summary.sealed_alloc_count;
    own.sealed_mapped_bytes = result.run.summary.sealed_mapped_bytes;
    assert_ok(comm_exchange(mpi_comm, "what ranks saw", &own, sizeof own, all));
    struct setup_summary plan;
    if (mpi_rank == 0) {
        assert_ok(setup_plan_on(asked, &(struct setup_plan_options){0}, &plan));
        expect(what, "the plan of a run",
               memcmp(plan.peak_bytes, result.run.plan.peak_bytes, sizeof plan.peak_bytes), 0);
        struct formulas must_be = {.elems = 0};
        for (uint32_t u = 0; u < unit_count; u++)
            add_unit(&must_be, unit_elems[u], stage, plan.tile_elems);
        check_homes(what, &plan, &must_be, place->homes);
        check_slab(what, &plan, &must_be);
        for (uint32_t r = 0; r < mpi_world; r++)
            check_rank(what, &plan, &result.run.summary.ranks[r], &all[r]);
        check_drive(what, "memory", &plan, &must_be, stage);
        uint64_t homes = 0;
        for (int k = 0; k < 3; k++)
            homes += must_be.home_bytes[k];
        printf("%s: device %llu, host %llu, nvme %llu bytes, %llu mapped; states %llu bytes, "
               "%.2f a parameter\n",
               what, (unsigned long long)plan.peak_bytes[0], (unsigned long long)plan.peak_bytes[1],
               (unsigned long long)plan.peak_bytes[2], (unsigned long long)all[0].huge_bytes,
               (unsigned long long)homes, (double)homes / (double)plan.param_count);
        fixture_remove("memory");
    }
    job_destroy(asked);
    mpi_barrier();
}

static void memory_is_as_planned(void **state)
{
    static fixture_sets sets;
    uint64_t unit_elems[MPI_UNITS_MAX];
    set_run(&sets, &placements[0], 0);
    uint32_t unit_count = mpi_units(&shape, &sets, unit_elems);
    for (unsigned stage = 0; stage < STAGES; stage++)
        for (size_t i = 0; i < sizeof placements / sizeof placements[0]; i++)
            check_run(&placements[i], stage, unit_elems, unit_count);
}

int main(int argc, char **argv)
{
    mpi_launch(argc, argv);
    if (argc > 2) {
        shape.family = strstr(argv[2], "llama") ? "llama" : "gpt2";
        shape.bf16 = strstr(argv[2], "bf16") != NULL;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(memory_is_as_planned)};
    return mpi_end(cmocka_run_group_tests(tests, mpi_setup, mpi_teardown));
}
