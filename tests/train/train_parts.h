/* Fixtures that test_train_frozen and test_train_split share: a small model of three blocks in bf16
 * whose run "parts" is stopped, killed and damaged, and undisturbed runs to compare it with. */
#ifndef SLUICE_TESTS_TRAIN_PARTS_H
#define SLUICE_TESTS_TRAIN_PARTS_H

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "format/manifest.h"
#include "state/verify.h"
#include "tests/train/train_fixture.h"
#include "tiers/slab.h"

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

static inline int run(const char *name, const fixture_sets *sets, const fixture_call *call,
                      fixture_result *result)
{
    job *asked = fixture_job(name, &shape, sets);
    fixture_train(asked, call, result);
    job_destroy(asked);
    return result->rc;
}

static inline void assert_good(const fixture_result *result)
{
    if (result->rc < 0)
        fail_msg("%s", result->error);
}

static inline void read_commit(const char *name, manifest *found)
{
    int exists;
    if (manifest_read(fixture_path(name, "state"), found, &exists) < 0 || !exists)
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
    run("parts", sets, &call, &result);
    return 1;
}

/* Has this program killed as "victim DIR TIER", lets "parts" go on, and holds it against
 * `whole`. */
static inline void parts_killed_go_on(const char *tier, const fixture_sets *sets,
                                      const fixture_result *whole)
{
    static fixture_result result;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "test_train", "victim", fixture_dir, tier, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    fixture_call call = {.name = "parts"};
    run("parts", sets, &call, &result);
    assert_good(&result);
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

#endif
