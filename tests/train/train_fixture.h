/* Fixtures that the tests of training share: a directory of their own, a text, job files, and runs
 * of them through job_read and train_run, with the metrics lines that the run left.
 *
 * Every fixture function fails the test if it cannot do its part. */
#ifndef SLUICE_TESTS_TRAIN_FIXTURE_H
#define SLUICE_TESTS_TRAIN_FIXTURE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "setup/summary.h"
#include "train/train.h"

struct engine;

enum {
    FIXTURE_STEPS_MAX = 64,
    FIXTURE_SETS_MAX = 80,
    FIXTURE_PATH_BYTES = 512,
    FIXTURE_BUDGET_BYTES = 64 << 20, /* of device and of host, where a test says nothing else */
    FIXTURE_TRAIN_BYTES = 30000,
};

/* Sanitizers shadow memory and keep what is freed: a process's size says nothing there. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { FIXTURE_IS_SANITIZED = 1 };
#else
enum { FIXTURE_IS_SANITIZED = 0 };
#endif

/* Where the runs lie; made by fixture_setup, with all in it removed by fixture_teardown. It holds
 * train.txt and valid.txt, and rows.npy, 600 documents of 23 bytes. */
extern char fixture_dir[FIXTURE_PATH_BYTES];

int fixture_setup(void **state);
int fixture_teardown(void **state);

/* Overrides of a job, "key.path=value" as for --set. */
struct fixture_sets {
    char text[FIXTURE_SETS_MAX][2048];
    uint32_t count;
};
typedef struct fixture_sets fixture_sets;

__attribute__((format(printf, 2, 3))) void fixture_set(fixture_sets *sets, const char *format, ...);

/* The shape of the models here: a word of model.family, 3 blocks, units of several tiles of
 * 65536. */
struct fixture_model {
    const char *family;
    bool bf16;
    uint32_t layers, hidden;
};
typedef struct fixture_model fixture_model;

/* Jobs here run on the CPU, or on the backend that SLUICE_TEST_BACKEND names; where that is cuda
 * and there is no GPU, fixture_setup ends the program with 77. */
/* With SLUICE_TEST_PARANOID in the environment every job has run.paranoid: the whole suite runs in
 * it once. With SLUICE_TEST_SIMULATED every drive is simulated (tiers/sim.h), its completions in an
 * order drawn from a seed; what it holds is gone with the run. */
/* The job "NAME": run.dir is NAME in the fixture's directory, the drive NAME.nvme; 2 rows of 32
 * tokens, 2 micro-batches a step, a commit every 3 steps, clipping, warm-up and cosine over 20
 * steps; every state on the device. Written to NAME.json and read with the overrides. The caller
 * destroys it. */
job *fixture_job(const char *name, const fixture_model *shape, const fixture_sets *sets);
/* The same for so many ranks. */
job *fixture_job_ranks(const char *name, const fixture_model *shape, const fixture_sets *sets,
                       uint32_t world);

/* The same, but a refusal is the caller's to see: the code of job_read. */
int fixture_read_job(const char *name, const fixture_model *shape, const fixture_sets *sets,
                     uint32_t world, job **out);

/* Results of one call of train_run. */
struct fixture_result {
    int rc;
    char error[ERR_TEXT_BYTES];
    struct train_summary summary;
    uint64_t weights_hash; /* fixture_hash_weights */
    struct setup_summary plan;
    bool planned; /* on_plan was called */
    uint64_t step_count;
    uint32_t loss_bits[FIXTURE_STEPS_MAX]; /* of step i + 1, from metrics.jsonl */
    double losses[FIXTURE_STEPS_MAX], rates[FIXTURE_STEPS_MAX];
    bool skipped[FIXTURE_STEPS_MAX];
};
typedef struct fixture_result fixture_result;

struct fixture_call {
    const char *name;
    bool fresh;                     /* the run of this name is removed before */
    uint64_t stop_after;            /* step after which a stop is asked for; 0: none */
    void (*on_step)(uint64_t step); /* or NULL */
    const struct io_faults *faults; /* of the drives, or NULL */
    bool simulates_drives;
    const char *from;         /* as in train_options; or NULL */
    struct sim_store **store; /* as in train_options; or NULL */
    bool hashes_nothing;      /* no weights_hash, which would read past the lanes and their sums */
    struct comm *comm;        /* as in train_options; or NULL */
    uint64_t norm_part_bytes; /* as in train_options */
};
typedef struct fixture_call fixture_call;

/* For setup_test.on_end, with `user` a uint64_t: XXH3-64 over all master weights, in the order of
 * units; units that do not learn count with their params. Equal weights have an equal hash for any
 * number of ranks, and state_verify finds the same one. The number is set on rank 0. It reads the
 * slabs past the lanes and their sums. */
int fixture_hash_weights(void *user, struct engine *engine);

/* Runs the job (and hashes its weights); fills the result, errors included. Without a name no
 * metrics are read and nothing fails the test. */
void fixture_train(const job *asked, const fixture_call *call, fixture_result *result);
/* Reads the figures of each step from the run's metrics. */
void fixture_read_steps(const char *name, fixture_result *result);
/* fixture_job and fixture_train in one; returns result->rc, of which it expects nothing. call NULL:
 * with the name alone. */
int fixture_run(const char *name, const fixture_model *shape, const fixture_sets *sets,
                const fixture_call *call, fixture_result *result);
/* The same, expecting a stop after step `stop_after`. */
void fixture_train_stop(const char *name, const fixture_model *shape, const fixture_sets *sets,
                        uint64_t stop_after, fixture_result *result);
/* The same, expecting success. */
void fixture_train_good(const char *name, const fixture_model *shape, const fixture_sets *sets,
                        fixture_result *result);

/* Same losses in every bit for all steps and same weights. */
void fixture_assert_same(const fixture_result *a, const fixture_result *b);

/* Path of a file of the run NAME; valid until the fourth call after this one. */
const char *fixture_path(const char *name, const char *file);
bool fixture_exists(const char *path);
/* Writes a NumPy array of bytes in whose rows, documents for a job, the text of train.txt goes on
 * from letter `first`. Returns its path, as fixture_path. */
const char *fixture_rows(const char *name, uint64_t first, uint64_t rows, uint64_t columns);
/* Removes a run's directory and its drive's. */
void fixture_remove(const char *name);
/* A JSON file, and all lines of a run's metrics.jsonl as an array. The caller drops the
 * reference. */
json_t *fixture_json(const char *path);
json_t *fixture_metrics(const char *name);
/* Asks for almost nothing of device and host and adds the budgets that the refusal names: the least
 * with which the job fits. */
void fixture_tighten(const char *name, const fixture_model *shape, fixture_sets *sets);
/* The budget that a refusal names for a key such as "tiers.host.budget"; 0 where it names none. */
uint64_t fixture_budget_named(const char *error, const char *key);

/* ---- the reference curves of tests/reference as jobs ---- */

/* Opens a curve of tests/reference/curves.json by its name. Free it with json_decref. */
json_t *curve_open(const char *name);

/* Members that must be there. */
json_t *curve_member(const json_t *object, const char *key);
double curve_number(const json_t *object, const char *key);
uint64_t curve_integer(const json_t *object, const char *key);

/* The text of the fixture's "corpus" (and "spikes") as a file. */
void curve_write_corpus(const json_t *fixture, const char *path);

/* Reads the job NAME of the fixture's keys, with states spread over host memory and the drive, and
 * overrides. The caller destroys it. */
job *curve_job(json_t *fixture, const char *corpus, const char *name, const char *const *sets,
               uint32_t set_count);

#endif
