/* Fixtures that test_train_frozen and test_train_split share: a small model of three blocks in bf16
 * whose run "parts" is stopped, killed and damaged, and undisturbed runs to compare it with. */
#ifndef SLUICE_TESTS_TRAIN_PARTS_H
#define SLUICE_TESTS_TRAIN_PARTS_H

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "format/manifest.h"
#include "setup/setup.h"
#include "state/verify.h"
#include "tests/comm/comm_fixture.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"
#include "tiers/slab.h"
#include "train/train.h"

enum { STEPS = 8, KILL_STEP = 5, RANKS = 2 };
enum { PARTS_SLAB_PATH_BYTES = FIXTURE_PATH_BYTES * 2 + 80 };

static bool few; /* SLUICE_TEST_FEW: what is simulated takes long */
static fixture_model shape = {.family = "llama", .bf16 = true, .layers = 3, .hidden = 128};
static const char *const kinds[] = {"params", "grads", "optimizer", "activations"};

/* All states on the tier. */
static inline fixture_sets parts_sets(const char *tier, const char *update)
{
    fixture_sets sets = {.count = 0};
    for (int k = 0; k < 4; k++)
        fixture_set(&sets, "tiers.place.%s=%s", kinds[k], tier);
    fixture_set(&sets, "schedule.update=%s", update);
    fixture_set(&sets, "run.steps=%d", STEPS);
    return sets;
}

/* The uninterrupted run of a program's settings, which is trained once, with the first that ask:
 * placements and updates change no bit. */
static inline const fixture_result *parts_whole(const fixture_sets *sets)
{
    static fixture_result whole;
    if (whole.step_count == 0) {
        fixture_train_good("whole", &shape, sets, &whole);
        fixture_remove("whole");
    }
    return &whole;
}

static inline void read_commit(const char *name, manifest *found)
{
    if (manifest_read(fixture_path(name, "state"), found) <= 0)
        fail_msg("no manifest of %s: %s", name, err_text());
    assert_int_equal(found->state, MANIFEST_COMMITTED);
}

/* ---- killed ---- */

static inline void die(uint64_t step)
{
    if (step == KILL_STEP)
        raise(SIGKILL);
}

/* The run "parts", which kills itself: of a process of its own, since a fork of one that has run
 * OpenMP cannot compute. Returns main's exit status if it does not. */
static inline int parts_be_victim(const char *dir, const fixture_sets *sets)
{
    log_set_level(LOG_WARN);
    snprintf(fixture_dir, sizeof fixture_dir, "%s", dir);
    static fixture_result result;
    fixture_call call = {.name = "parts", .on_step = die};
    fixture_run("parts", &shape, sets, &call, &result);
    return 1;
}

/* Has this program killed as "victim DIR TIER WIDTH", with the bytes of one of the params, lets
 * "parts" go on, and holds it against `whole`. */
static inline void parts_killed_go_on(const char *tier, const fixture_sets *sets,
                                      const fixture_result *whole)
{
    static fixture_result result;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "test_train", "victim", fixture_dir, tier, shape.bf16 ? "2" : "4",
              (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    fixture_train_good("parts", &shape, sets, &result);
    assert_true(result.summary.was_resumed);
    fixture_assert_same(whole, &result);
}

/* ---- damaged bits ---- */

/* One bit of a file. */
static inline void flip(const char *path, uint64_t offset)
{
    unsigned char byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    assert_int_equal(close(fd), 0);
}

static inline void note_damage(void *user, const struct state_damage *damage)
{
    *(struct state_damage *)user = *damage;
}

/* The slab of "parts". */
static inline void parts_slab(const manifest *found, char path[PARTS_SLAB_PATH_BYTES])
{
    char uuid[MANIFEST_UUID_TEXT_BYTES];
    snprintf(path, PARTS_SLAB_PATH_BYTES, "%s/sluice-%s/rank-0-drive-0.slab",
             fixture_path("parts", ".nvme"), manifest_uuid_text(&found->slabs, uuid));
}

/* The run is as it was committed, and has these weights. */
static inline void parts_verify(const char *name, uint64_t hash)
{
    struct state_verify_options asked = {.run_dir = fixture_path(name, NULL)};
    struct state_verify_summary sum;
    if (state_verify(&asked, &sum) != 0)
        fail_msg("%s: %s", name, err_text());
    assert_true(sum.weights_hash == hash);
}

/* Damages a byte of an extent of the last commit of "parts". Verify finds it and fills *damage; a
 * resume refuses the commit and names the slab. Then the byte is as before. */
static inline void parts_find_rot(const fixture_sets *sets, const manifest *found,
                                  const manifest_extent *extent, uint64_t byte,
                                  struct state_damage *damage)
{
    static fixture_result result;
    const uint64_t at = SLAB_HEADER_BYTES + extent->offset_bytes;
    char path[PARTS_SLAB_PATH_BYTES], text[32];
    parts_slab(found, path);
    struct state_verify_options asked = {
        .run_dir = fixture_path("parts", NULL), .on_damage = note_damage, .user = damage};
    struct state_verify_summary sum;
    flip(path, at + byte);
    assert_int_equal(state_verify(&asked, &sum), ERR_CORRUPT);
    assert_int_equal(sum.damage_count, 1);
    assert_int_equal(damage->unit, extent->unit);
    assert_int_equal(damage->tile, extent->tile);
    assert_int_equal(damage->file_offset, at);
    assert_int_equal(fixture_run("parts", &shape, sets, NULL, &result), ERR_CORRUPT);
    snprintf(text, sizeof text, "of step %llu", (unsigned long long)found->point.step);
    if (!strstr(result.error, "rank-0-drive-0.slab") || !strstr(result.error, text))
        fail_msg("%s", result.error);
    flip(path, at + byte);
}

/* ---- stopped and moved ---- */

/* Sets of a test for this tier and update. */
typedef fixture_sets parts_make(const char *tier, const char *update);

/* "parts" is stopped and goes on four times: elsewhere, in other tiles, and back; it ends as
 * `whole`. moves_params: once its params rest on another tier than its state. */
static inline void parts_stop_and_move(parts_make *make, bool moves_params,
                                       const fixture_result *whole)
{
    static const char *const tiers[] = {"nvme", "host", "device"};
    static const uint64_t stops[] = {1, 3, 4, 6, 0};
    static fixture_result result;
    for (int t = 0; t < 3; t++) {
        for (int i = 0; i < 5; i++) { /* the same again; elsewhere; in other tiles; back */
            fixture_sets sets =
                make(tiers[i == 2 ? (t + 1) % 3 : t], i % 2 ? "after_backward" : "in_next_forward");
            if (i == 1 && moves_params)
                fixture_set(&sets, "tiers.place.params=%s", tiers[(t + 2) % 3]);
            if (i >= 3)
                fixture_set(&sets, "schedule.tile_elems=32768");
            fixture_call call = {.name = "parts", .stop_after = stops[i]};
            int rc = fixture_run("parts", &shape, &sets, &call, &result);
            if (rc != (stops[i] ? ERR_STOPPED : 0))
                fail_msg("part %d: %s: %s", i, err_name(rc), result.error);
            assert_int_equal(result.summary.was_resumed, i > 0);
        }
        fixture_assert_same(whole, &result);
        fixture_remove("parts");
    }
}

/* ---- ranks ---- */

struct parts_end {
    uint64_t step, weights_hash;
};

struct parts_ranks {
    job *jobs[RANKS];
    struct parts_end *end; /* of rank 0; shared */
};

static inline int parts_train_rank(comm *self, void *user)
{
    struct parts_ranks *all = user;
    static struct train_summary summary;
    uint64_t hash;
    const struct setup_test test = {.on_end = fixture_hash_weights, .user = &hash};
    struct train_options options = {
        .job = all->jobs[comm_get_rank(self)], .comm = self, .test = &test};
    int rc = train_run(&options, &summary);
    if (rc == 0 && comm_get_rank(self) == 0)
        *all->end = (struct parts_end){summary.step, hash};
    return rc;
}

/* One row of a run's life: so many ranks, at this stage, until this step. */
struct parts_row {
    uint32_t world, stage, steps;
    const char *tier;
};

/* A run in row->world processes until row->steps; the hash of its weights. */
static inline uint64_t parts_train_ranks(const char *name, parts_make *make,
                                         const struct parts_row *row)
{
    struct parts_ranks all = {.end = comm_fixture_shared(sizeof *all.end)};
    for (uint32_t r = 0; r < row->world; r++) {
        fixture_sets sets = make(row->tier, "in_next_forward");
        fixture_set(&sets, "zero_optimization.stage=%u", row->stage);
        fixture_set(&sets, "device.threads=1");
        fixture_set(&sets, "run.steps=%u", row->steps);
        all.jobs[r] = fixture_job(name, &shape, &sets);
        all.jobs[r]->world = row->world;
    }
    static comm_fixture ranks;
    memset(&ranks, 0, sizeof ranks);
    ranks.world = row->world;
    comm_fixture_run(&ranks, parts_train_rank, &all);
    for (uint32_t r = 0; r < row->world; r++)
        job_destroy(all.jobs[r]);
    comm_fixture_expect_ok(&ranks);
    assert_int_equal(all.end->step, row->steps);
    return all.end->weights_hash;
}

#endif
