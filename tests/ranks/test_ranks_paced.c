/* The plan's prediction for a step of several ranks holds: 4 ranks train on paced lanes
 * (lane_pace.h), where drives, links and collectives take as long as on a stated machine, and
 * computing only takes time. Their real collectives make them wait for each other as usual. Each
 * case shows:
 *
 *   the mean steady step is within 15% of plan_summary.step_seconds
 *   if the plan hides collectives behind computing, a step is much shorter than both end to end
 *
 * This is a test of time, which other tests leave alone. So a step lasts more than a second and its
 * ops many milliseconds, figures are ratios, and a case that other work of the machine has
 * disturbed is run again, up to three times. Only SLUICE_TEST_TIMES, which the suite's slow line
 * sets, also asks that a step is not slower. Argument "all": also the cases that the suite has no
 * time for; or the name of a case. */
#include "plan/plan.h"
#include "setup/setup.h"
#include "setup/summary.h"
#include "tests/comm/comm_fixture.h"
#include "tests/swap/lane_pace.h"
#include "tests/train/train_fixture.h"
#include "tests/unit.h"
#include "train/train.h"

enum { RANKS = 4, TRIES = 3, STEPS = 3, SETS_MAX = 8 };

static const double closest = 0.15; /* to the predicted step, from either side */

struct paced_case {
    const char *name, *sets[SETS_MAX]; /* of the job */
    double comm_bytes_per_second;
    double hidden; /* most that a step takes, of computing and collectives end to end; 0: any */
    bool is_tight; /* the device has the least memory that the job fits in */
    /* Faster than predicted by any share: schedule.lookahead keeps the plan from reserving memory
     * ahead, but the run waits for memory alone, and where there is enough it need not. */
    bool may_be_fast;
    bool is_slow; /* of "all" alone */
};

/* Figures of rank 0. */
struct paced_result {
    double predicted, measured; /* seconds of a steady step */
    double planned[LANE_COUNT], busy[LANE_COUNT];
    uint64_t least_bytes;
};

static const fixture_model shape = {.family = "gpt2", .bf16 = true, .layers = 6, .hidden = 128};

/* Blocks of some 200 000 parameters: a gather of one takes 30 ms at 10 MB/s, its forward 50 ms. */
static plan_machine machine_of(const struct paced_case *asked)
{
    plan_machine machine;
    plan_machine_default_cpu(&machine, 2, true);
    machine.drive_read_bytes_per_second = 4e7;
    machine.drive_write_bytes_per_second = 4e7;
    machine.h2d_bytes_per_second = machine.d2h_bytes_per_second = 2e8;
    machine.dram_bytes_per_second = 1e10;
    machine.device_flops_per_second = 1e9;
    machine.comm_bytes_per_second = asked->comm_bytes_per_second;
    machine.comm_seconds = 1e-3;
    machine.comm_is_copies = false;
    machine.op_seconds = 5e-4;
    return machine;
}

struct paced_run {
    const struct paced_case *asked;
    struct paced_result *result; /* shared */
    uint64_t device_bytes;       /* budget; 0: the job's own */
};

static void keep_plan(void *user, const struct setup_summary *plan)
{
    struct paced_result *result = ((struct paced_run *)user)->result;
    result->predicted = plan->step_seconds;
    memcpy(result->planned, plan->lane_seconds, sizeof result->planned);
}

/* The first step has no update pending from one before. */
static void keep_step(void *user, const struct train_progress *progress)
{
    struct paced_run *run = user;
    if (progress->step == 1)
        return;
    run->result->measured += progress->seconds / (STEPS - 1);
    for (int i = 0; i < LANE_COUNT; i++)
        run->result->busy[i] += progress->lanes[i].busy_seconds / (STEPS - 1);
}

static int read_job(const struct paced_case *asked, uint64_t device_bytes, job **out)
{
    const char *sets[SETS_MAX + 3];
    char steps[32], budget[64];
    uint32_t count = 0;
    snprintf(steps, sizeof steps, "run.steps=%d", STEPS);
    snprintf(budget, sizeof budget, "tiers.device.budget=%llu", (unsigned long long)device_bytes);
    sets[count++] = steps;
    sets[count++] = "device.threads=1";
    if (device_bytes > 0)
        sets[count++] = budget;
    for (int i = 0; i < SETS_MAX && asked->sets[i]; i++)
        sets[count++] = asked->sets[i];
    return job_read(fixture_path(asked->name, ".json"), NULL, sets, count, RANKS, out);
}

/* The lanes of one run. */
struct paced_lanes {
    const plan_machine *machine;
    lane_pace *pace;
};

static int begin_pace(void *user, const program *const *programs, uint32_t program_count)
{
    struct paced_lanes *self = user;
    const lane_pace_config config = {.rates = pace_rates_of(self->machine),
                                     .programs = programs,
                                     .program_count = program_count};
    return lane_pace_create(&config, &self->pace);
}

/* Computing only takes its time. */
static int wrap_lane(void *user, enum lane_kind kind, lane **item)
{
    const struct paced_lanes *self = user;
    if (kind == LANE_COMPUTE) {
        (*item)->ops->destroy(*item);
        *item = NULL;
    }
    return lane_pace_wrap(self->pace, *item, item);
}

static void end_pace(void *user)
{
    lane_pace_destroy(((struct paced_lanes *)user)->pace);
}

/* Runs in a rank's process. */
static int train_paced(comm *ranks, void *user)
{
    struct paced_run run = *(struct paced_run *)user;
    job *asked;
    TRY(read_job(run.asked, run.device_bytes, &asked));
    plan_machine machine = machine_of(run.asked);
    struct paced_lanes paced = {.machine = &machine};
    const struct setup_lanes lanes = {
        .begin = begin_pace, .wrap = wrap_lane, .end = end_pace, .user = &paced};
    const struct setup_test test = {.pace = &machine, .lanes = &lanes};
    const struct train_options options = {.job = asked,
                                          .comm = ranks,
                                          .test = &test,
                                          .is_trial = true, /* no commits */
                                          .on_plan = keep_plan,
                                          .on_step = keep_step,
                                          .user = &run};
    struct train_summary summary;
    int rc = train_run(&options, &summary);
    job_destroy(asked);
    return rc;
}

/* The device budget that a refusal names. In a rank's process too: what computes has threads. */
static int find_least(comm *ranks, void *user)
{
    struct paced_run *run = user;
    job *asked;
    struct setup_summary plan;
    TRY(read_job(run->asked, 65536, &asked));
    int rc = setup_plan_on(asked, &(struct setup_plan_options){.local_world = RANKS}, &plan);
    job_destroy(asked);
    if (comm_get_rank(ranks) == 0)
        run->result->least_bytes = fixture_budget_named(err_text(), "tiers.device.budget");
    return rc == ERR_NO_FIT ? 0 : err_set(ERR_INTERNAL, "64 KiB of device memory are enough");
}

static void measure(const struct paced_case *asked, struct paced_result *out)
{
    struct paced_run run = {.asked = asked, .result = comm_fixture_shared(sizeof *out)};
    comm_fixture ranks = {.world = RANKS, .limit_seconds = 60};
    if (asked->is_tight) {
        comm_fixture_run(&ranks, find_least, &run);
        comm_fixture_expect_ok(&ranks);
        run.device_bytes = run.result->least_bytes;
        assert_true(run.device_bytes > 0);
    }
    comm_fixture_run(&ranks, train_paced, &run);
    comm_fixture_expect_ok(&ranks);
    *out = *run.result;
}

/* Whether the step is as it must be; prints it. */
static bool is_as_planned(const struct paced_case *asked, const struct paced_result *result)
{
    double ratio = result->measured / result->predicted;
    double end_to_end = result->planned[LANE_COMPUTE] + result->planned[LANE_COMM];
    printf("%s: a step of %.3f s, %.3f of the predicted; computing %.3f s, collectives %.3f s\n",
           asked->name, result->measured, ratio, result->planned[LANE_COMPUTE],
           result->planned[LANE_COMM]);
    for (int i = 0; i < LANE_COUNT; i++)
        printf("    %s %.3f of %.3f", lane_kind_name(i), result->busy[i], result->planned[i]);
    printf("\n");
    if (asked->hidden > 0 && result->predicted > asked->hidden * end_to_end)
        fail_msg("%s: the plan hides too little: %.3f of both end to end", asked->name,
                 result->predicted / end_to_end);
    bool is_fast = ratio <= 1 - closest && !asked->may_be_fast;
    if (!getenv("SLUICE_TEST_TIMES")) /* beside other work of the machine it may be slow */
        return !is_fast;
    return ratio < 1 + closest && !is_fast &&
           (asked->hidden == 0 || result->measured <= asked->hidden * end_to_end);
}

#define STAGE(n)      "zero_optimization.stage=" #n
#define PUT(what, on) "tiers.place." #what "=" #on
#define AFTER         "schedule.update=after_backward"
#define IN_NEXT       "schedule.update=in_next_forward"
#define IN_BACKWARD   "schedule.update=in_backward"
#define STREAMED      PUT(params, host), PUT(grads, host), PUT(optimizer, nvme), IN_NEXT
#define UNCLIPPED     "gradient_clipping=0", "bf16.check_grad_overflow=false"

static const struct paced_case cases[] = {
    {"hidden", {STAGE(3), STREAMED}, 1e7, .hidden = 0.8},
    {"narrow", {STAGE(3), STREAMED}, 3e6, .hidden = 0.8}, /* collectives bind */
    {"nvme", {STAGE(3), PUT(params, nvme), PUT(optimizer, nvme), AFTER}, 1e7, .hidden = 0.9},
    {"whole", {STAGE(2), PUT(grads, host), PUT(optimizer, host), AFTER}, 1e7, .hidden = 0},
    {"whole_in_next", {STAGE(2), STREAMED}, 1e7, .hidden = 0.9, .is_slow = true},
    {"whole_nvme",
     {STAGE(2), PUT(params, nvme), PUT(grads, nvme), PUT(optimizer, nvme), AFTER},
     1e7,
     .is_slow = true},
    {"tight", {STAGE(3), STREAMED}, 1e7, .is_tight = true, .is_slow = true},
    {"tight_after",
     {STAGE(3), PUT(params, host), PUT(grads, host), PUT(optimizer, host), AFTER},
     1e7,
     .is_tight = true,
     .is_slow = true},
    {"in_backward", {STAGE(2), PUT(optimizer, host), IN_BACKWARD, UNCLIPPED}, 1e7, .is_slow = true},
    {"batch_major", {STAGE(3), STREAMED, "schedule.order=batch_major"}, 1e7, .is_slow = true},
    {"no_reuse",
     {STAGE(3), STREAMED, "zero_optimization.stage3_max_reuse_distance=0"},
     1e7,
     .is_slow = true},
    {"prefetch",
     {STAGE(3), STREAMED, "zero_optimization.stage3_prefetch_bucket_size=250000"},
     1e7,
     .is_slow = true},
    {"live",
     {STAGE(3), STREAMED, "zero_optimization.stage3_max_live_parameters=500000"},
     1e7,
     .is_slow = true},
    {"lookahead_8", {STAGE(3), STREAMED, "debug.schedule.lookahead=8"}, 1e7, .is_slow = true},
    {"lookahead_1",
     {STAGE(3), STREAMED, "debug.schedule.lookahead=1"},
     1e7,
     .may_be_fast = true,
     .is_slow = true},
};

static bool wants_all;
static const char *wanted; /* the case of this name alone; or NULL */

static void steps_take_what_was_predicted(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (wanted ? strcmp(wanted, cases[i].name) != 0 : cases[i].is_slow && !wants_all)
            continue;
        struct paced_result result;
        bool is_good = false;
        job_destroy(fixture_job(cases[i].name, &shape, NULL)); /* writes the job's file */
        for (int t = 0; t < TRIES && !is_good; t++) {
            measure(&cases[i], &result);
            is_good = is_as_planned(&cases[i], &result);
        }
        if (!is_good)
            fail_msg("%s: a step of %.3f s is predicted, %.3f s is measured", cases[i].name,
                     result.predicted, result.measured);
    }
}

int main(int count, char **args)
{
    wants_all = count > 1 && strcmp(args[1], "all") == 0;
    wanted = count > 1 && !wants_all ? args[1] : NULL;
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps_take_what_was_predicted)};
    return cmocka_run_group_tests(tests, fixture_setup, fixture_teardown);
}
