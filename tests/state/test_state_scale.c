/* The records of a trillion parameters, all of them: GPT's shape of 128 blocks of 25600, as rank 0
 * of 16 or as one rank, with every tile, every place and every extent of the manifest. The drives
 * have the stated speed but keep no bytes (tiers/sim.h, tests/swap/lane_pace.h); computing and
 * copies are left out. So the start, the first commit, resuming and listing do all that they do on
 * such a machine, except for the bytes themselves. Each phase is a process of its own; the program
 * prints its time and its memory beside the arenas.
 *
 *   test_state_scale 16 | 1       needs 10 GiB of memory; the slabs' files are sparse
 *
 * SLUICE_TEST_TIMES asks that a manifest is written and read in under a second each. */
#include <math.h>
#include <signal.h>
#include <sys/stat.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/size.h"
#include "setup/setup.h"
#include "state/verify.h"
#include "tests/comm/comm_fixture.h"
#include "tests/swap/lane_pace.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"
#include "tiers/arena.h"
#include "train/train.h"

enum { DRIVES = 4, WRITES = 3, TILE_ELEMS = 4 << 20, POINTS_MAX = 32, LIMIT_SECONDS = 1800 };

static uint32_t world;

static const double drive_bytes_per_second = 1e13; /* of all drives: their time is a second or so */

/* The figures that a phase tells the test's process. */
struct told {
    uint64_t arena_bytes, resident_bytes, op_count, param_count, slab_bytes, file_bytes;
    double planned_seconds, seconds; /* until the plan was there, and all */
    double point_seconds[POINTS_MAX];
    char points[POINTS_MAX][32];
    uint32_t point_count;
    bool was_resumed;
};
typedef struct told told;

struct watcher {
    told *out;
    uint64_t begin_ns;
};
typedef struct watcher watcher;

/* Two places of 12 bytes of state, params and gradients of 2 bytes each, and activations. */
static job *make_job(void)
{
    char text[8192], path[FIXTURE_PATH_BYTES + 32];
    int used = snprintf(text, sizeof text,
                        "{\"model\": {\"preset\": \"gpt-1t\", \"max_part_bytes\": \"256MiB\"},"
                        "\"data\": {\"train\": [\"%s/train.txt\"], \"tokenizer\": \"bytes\"},"
                        "\"run\": {\"dir\": \"%s/run\", \"steps\": 10, \"commit_every\": 1},"
                        "\"tiers\": {\"device\": {\"budget\": \"4GiB\"}, \"host\": {\"budget\": "
                        "\"3GiB\"}, \"nvme\": [",
                        fixture_dir, fixture_dir);
    for (int d = 0; d < DRIVES; d++)
        used += snprintf(text + used, sizeof text - (size_t)used,
                         "%s{\"path\": \"%s/drive-%d\", \"budget\": \"15TiB\"}", d ? "," : "",
                         fixture_dir, d);
    used += snprintf(text + used, sizeof text - (size_t)used,
                     "], \"place\": {\"params\": \"nvme\", \"grads\": \"nvme\", \"optimizer\": "
                     "\"nvme\", \"activations\": \"nvme\"}},"
                     "\"device\": {\"backend\": \"cpu\", \"threads\": 1},"
                     "\"schedule\": {\"tile_elems\": %d}, \"aio\": {\"block_size\": 8388608},"
                     "\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 1,"
                     "\"gradient_clipping\": 1.0, \"bf16\": {\"enabled\": true},"
                     "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}},"
                     "\"zero_optimization\": {\"stage\": 3}}",
                     TILE_ELEMS);
    assert_true(used > 0 && (size_t)used < sizeof text);
    snprintf(path, sizeof path, "%s/job.json", fixture_dir);
    job *asked;
    assert_ok(job_read(path, text, NULL, 0, world, &asked));
    return asked;
}

/* ---- lanes that move nothing ---- */

static int begin_pace(void *user, const program *const *programs, uint32_t program_count)
{
    const lane_pace_config config = {.rates = {.drive_read_bytes = drive_bytes_per_second,
                                               .drive_write_bytes = drive_bytes_per_second},
                                     .programs = programs,
                                     .program_count = program_count};
    return lane_pace_create(&config, user);
}

static int wrap_lane(void *user, enum lane_kind kind, lane **item)
{
    if (kind == LANE_COMPUTE || kind == LANE_H2D) {
        (*item)->ops->destroy(*item);
        *item = NULL;
    }
    return lane_pace_wrap(*(lane_pace **)user, *item, item);
}

static void end_pace(void *user)
{
    lane_pace_destroy(*(lane_pace **)user);
}

/* ---- a start that stops at once ---- */

static double seconds_since(uint64_t begin_ns)
{
    return (double)(clock_ns() - begin_ns) * 1e-9;
}

static void note_plan(void *user, const struct setup_summary *plan)
{
    watcher *self = user;
    self->out->planned_seconds = seconds_since(self->begin_ns);
    self->out->op_count = plan->op_count;
    self->out->param_count = plan->param_count;
    self->out->slab_bytes = plan->peak_bytes[TIER_NVME];
}

static int note_point(void *user, const char *point)
{
    watcher *self = user;
    told *out = self->out;
    if (out->point_count < POINTS_MAX) {
        snprintf(out->points[out->point_count], sizeof out->points[0], "%s", point);
        out->point_seconds[out->point_count++] = seconds_since(self->begin_ns);
    }
    return 0;
}

/* Begins or resumes the run, commits if there is no commit yet, and stops before a step. */
static int run_start(comm *self, void *user)
{
    watcher *own = user;
    static const volatile sig_atomic_t stop = 1;
    comm *alone = NULL;
    lane_pace *pace = NULL;
    job *asked = make_job();
    log_set_level(LOG_WARN);
    if (world > 1)
        TRY(comm_pretend(0, world, &alone));
    const struct setup_lanes lanes = {
        .begin = begin_pace, .wrap = wrap_lane, .end = end_pace, .user = &pace};
    const struct setup_test test = {
        .lanes = &lanes, .simulates_drives = true, .keeps_no_bytes = true};
    const struct train_options options = {.job = asked,
                                          .comm = alone,
                                          .test = &test,
                                          .stop = &stop,
                                          .on_plan = note_plan,
                                          .user = own};
    static struct train_summary summary;
    own->begin_ns = clock_ns();
    failpoint_hook(note_point, own);
    int rc = train_run(&options, &summary);
    failpoint_hook(NULL, NULL);
    own->out->seconds = seconds_since(own->begin_ns);
    own->out->was_resumed = summary.was_resumed;
    own->out->file_bytes = summary.ranks[0].slab_file_bytes;
    own->out->resident_bytes = summary.resident_bytes_max;
    own->out->arena_bytes =
        summary.ranks[0].arena_bytes[TIER_DEVICE] + summary.ranks[0].arena_bytes[TIER_HOST];
    err_record first;
    err_save(&first, rc == ERR_STOPPED ? 0 : rc);
    comm_leave(alone, 0);
    job_destroy(asked);
    return first.code < 0 ? err_restore(&first) : 0;
}

static double gib(uint64_t bytes)
{
    return (double)bytes / GIB;
}

static void show_start(const char *name, const told *out)
{
    printf(
        "%-8s %7.2f s: the plan after %.2f s, %llu ops a step; %.2f GiB of memory beside %.2f of "
        "arenas\n",
        name, out->seconds, out->planned_seconds, (unsigned long long)out->op_count,
        gib(out->resident_bytes - out->arena_bytes), gib(out->arena_bytes));
    for (uint32_t i = 0; i < out->point_count; i++)
        printf("         %7.2f s: %s\n", out->point_seconds[i], out->points[i]);
}

/* ---- what was committed ---- */

/* Extents and elements of the run's manifest, by the shapes that it names: each unit's shard of a
 * rank in tiles of tile_elems. */
static void check_record(const struct state_inspect_summary *found, uint64_t param_count)
{
    const manifest *record = &found->record;
    uint64_t extents = 0, elems = 0;
    for (uint32_t u = 0; u < found->unit_count; u++) {
        uint64_t shard = found->units[u].elems / world;
        assert_int_equal(found->units[u].elems % world, 0);
        extents += world * size_div_up(shard, record->tile_elems);
        elems += found->units[u].elems;
    }
    assert_int_equal(record->extent_count, extents);
    assert_int_equal(record->state, MANIFEST_COMMITTED);
    assert_int_equal(record->point.step, 0);
    assert_int_equal(record->world_size, world);
    assert_true(elems >= param_count); /* and the padding of shards: 4096 elements at the most */
    assert_true(elems - param_count < (uint64_t)found->unit_count * (world + 1) * 4096);
    assert_true(param_count > 1000000000000);
}

static int list_run(comm *self, void *user)
{
    watcher *own = user;
    static struct state_inspect_summary found;
    own->begin_ns = clock_ns();
    TRY(state_inspect(fixture_path("run", NULL), &found));
    own->out->seconds = seconds_since(own->begin_ns);
    TRY(arena_process_memory(NULL, &own->out->resident_bytes, NULL));
    printf("list     %7.2f s: %u units, %llu extents, %.1f TB of state on %u files; %.2f GiB of "
           "memory\n",
           own->out->seconds, found.unit_count, (unsigned long long)found.record.extent_count,
           (double)found.extents_bytes * 1e-12, found.file_count, gib(own->out->resident_bytes));
    check_record(&found, own->out->param_count);
    assert_int_equal(found.file_count, DRIVES * world);
    for (uint32_t f = 0; f < DRIVES; f++) /* of rank 0: there, and empty but for their headers */
        assert_true(found.files[f].size_bytes > found.files[f].allocated_bytes &&
                    found.files[f].allocated_bytes <= MIB);
    state_inspect_fini(&found);
    fflush(stdout);
    return 0;
}

/* Reads the manifest, and writes it to another directory and reads it back. */
static int move_manifest(comm *self, void *user)
{
    static manifest first, again;
    char state[FIXTURE_PATH_BYTES + 16], copy[FIXTURE_PATH_BYTES + 16];
    struct stat file;
    double written = 1e9, read = 1e9;
    snprintf(state, sizeof state, "%s/run/state", fixture_dir);
    snprintf(copy, sizeof copy, "%s/copy", fixture_dir);
    assert_int_equal(mkdir(copy, 0700), 0);
    TRY(manifest_read(state, &first));
    for (int i = 0; i < WRITES; i++) { /* the last ones find the blocks of their slot */
        first.generation++;
        uint64_t begin_ns = clock_ns();
        TRY(manifest_write(copy, &first));
        written = fmin(written, seconds_since(begin_ns));
        begin_ns = clock_ns();
        TRY(manifest_read(copy, &again));
        read = fmin(read, seconds_since(begin_ns));
        assert_int_equal(again.extent_count, first.extent_count);
        assert_memory_equal(again.extents, first.extents,
                            first.extent_count * sizeof *first.extents);
        manifest_fini(&again);
    }
    snprintf(copy, sizeof copy, "%s/copy/manifest-%d", fixture_dir, (int)(first.generation % 2));
    assert_int_equal(stat(copy, &file), 0);
    printf("manifest of %llu extents, %.1f MB: written in %.3f s, read in %.3f s\n",
           (unsigned long long)first.extent_count, (double)file.st_size * 1e-6, written, read);
    fflush(stdout);
    if (getenv("SLUICE_TEST_TIMES"))
        assert_true(written < 1 && read < 1);
    manifest_fini(&first);
    return 0;
}

static void run_phase(comm_fixture_body *body, told *out)
{
    watcher own = {.out = out};
    comm_fixture alone = {.world = 1, .limit_seconds = LIMIT_SECONDS};
    fflush(stdout);
    comm_fixture_run(&alone, body, &own);
    comm_fixture_expect_ok(&alone);
}

static void all_records_of_a_trillion_parameters(void **state)
{
    told *began = comm_fixture_shared(sizeof *began),
         *resumed = comm_fixture_shared(sizeof *resumed);
    run_phase(run_start, began);
    printf("rank 0 of %u: %.3f TB of slab, of %llu parameters\n", world,
           (double)began->slab_bytes * 1e-12, (unsigned long long)began->param_count);
    show_start("start", began);
    assert_false(began->was_resumed);
    assert_true(began->file_bytes >= began->slab_bytes);
    run_phase(list_run, began);
    run_phase(run_start, resumed);
    show_start("resume", resumed);
    assert_true(resumed->was_resumed);
    run_phase(move_manifest, NULL);
}

int main(int count, char **args)
{
    world = count > 1 ? (uint32_t)strtoul(args[1], NULL, 10) : 16;
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_records_of_a_trillion_parameters)};
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
