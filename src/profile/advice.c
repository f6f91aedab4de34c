/* Finds out what a change of one setting would gain: the changed job is planned and simulated with
 * the measured speeds.
 *
 *   place      before the run: a copy of the job that states the run's homes, tile, order, update
 *              and budgets
 *   calibrate  after the run: the machine's rates are adjusted until the lanes of the placed job
 *              are busy as long as measured
 *   try        each change is compiled and simulated on that machine; the best of each kind of
 *              change is kept
 *
 * Heap scratch; no memory of the tiers is allocated. It takes at most ADVICE_SECONDS and ends at a
 * stop. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "profile/profile_internal.h"

enum { CALIBRATIONS = 4, ADVICE_SECONDS = 30, BISECTIONS = 6 };

/* A smaller gain than this is within the error of a simulation. */
static const double least_gain = 0.02;
/* Lanes that are busy for a smaller part of the step say little about their rate. */
static const double telling_share = 0.03;

/* ---- the job as it is run ---- */

/* States one kind's homes: the tier that most units have, and rules for runs of the other units.
 * Returns false if there are too many rules. */
static bool place_kind(job *placed, enum state_kind kind, const uint8_t *homes, uint32_t count)
{
    uint32_t units[TIER_WORD_COUNT] = {0};
    int most = 0;
    for (uint32_t u = 0; u < count; u++)
        units[homes[u]]++;
    for (int a = 1; a < TIER_WORD_COUNT; a++)
        most = units[a] > units[most] ? a : most;
    placed->tiers.place[kind] = (enum tier)most;
    for (uint32_t first = 0, last; first < count; first = last + 1) {
        last = first;
        while (last + 1 < count && homes[last + 1] == homes[first])
            last++;
        if (homes[first] == most)
            continue;
        if (placed->tiers.rule_count == JOB_RULES_MAX)
            return false;
        placed->tiers.rules[placed->tiers.rule_count++] =
            (struct job_rule){"", first, last, kind, (enum tier)homes[first]};
    }
    return true;
}

int profilei_place(profile *self, const struct setup *setup)
{
    uint32_t count = setup->net->unit_count;
    job *placed = self->placed;
    if (!self->is_gpu_budget_open) { /* other plans get the same budgets, whatever is free then */
        self->own->tiers.device_budget = setup->plan.budget_bytes[TIER_DEVICE];
        self->own->tiers.host_budget = setup->plan.budget_bytes[TIER_HOST];
    }
    *placed = *self->own;
    placed->tiers.rule_count = 0;
    placed->schedule.update = setup->plan.update;
    placed->schedule.order = setup->plan.order;
    placed->schedule.tile_elems = setup->set.tile_elems;
    self->is_placed = true;
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        self->homes[kind] = mem_alloc(count, 1, "profile");
        if (!self->homes[kind])
            return -ENOMEM;
        memcpy(self->homes[kind], setup->homes[kind], count);
        self->is_placed =
            self->is_placed && place_kind(placed, (enum state_kind)kind, setup->homes[kind], count);
    }
    return 0;
}

/* ---- simulation ---- */

struct advisor {
    profile *self;
    job *trial; /* the changed job that is being tried */
    plan_machine machine;
    double base_seconds; /* simulated step of the placed job */
    uint64_t end_ns;
    struct profile_advice best; /* the best change of the current kind; gain 0: none */
    int failed;                 /* an error other than the refusal of a job */
};
typedef struct advisor advisor;

/* The prediction of a plan for a steady step. */
struct simulated {
    double seconds;
    double lanes[LANE_COUNT];
};

static bool is_over(const advisor *self)
{
    const volatile sig_atomic_t *stop = self->self->options->stop;
    return self->failed < 0 || clock_ns() > self->end_ns || (stop && *stop);
}

static int simulate(const advisor *self, const job *asked, const plan_machine *on,
                    struct simulated *out)
{
    const profile *own = self->self;
    double resources[PROFILE_RESOURCE_COUNT];
    struct setup_watch watch = {.only_transfers = own->options->only_transfers};
    struct setup_options options = {
        .local_world = 1, .figures = on, .is_trial = true, .watch = &watch};
    if (watch.only_transfers) /* products take the time that the machine states */
        options.machine = own->options->machine;
    struct setup *setup;
    TRY(setup_create(asked, &options, &setup));
    const program *steady = &setup->set.programs[PROGRAM_STEADY];
    struct profilei_span *spans = mem_alloc(steady->op_count, sizeof *spans, "profile");
    int rc = spans ? 0 : -ENOMEM;
    if (rc == 0)
        profilei_predict(steady, own->is_cpu, spans, out->lanes, resources);
    out->seconds = (double)steady->predicted_ns * 1e-9;
    mem_free(spans);
    setup_destroy(setup);
    return rc;
}

/* The factor by which the lane was slower than predicted; 1 if the measurement says little. */
static double slower(const advisor *self, const struct simulated *now, enum lane_kind kind)
{
    const struct profile_summary *out = self->self->out;
    double measured = out->lanes[kind].measured_seconds;
    if (measured < telling_share * out->measured_seconds || now->lanes[kind] <= 0)
        return 1;
    return fmin(fmax(measured / now->lanes[kind], 0.2), 5);
}

/* Sets the rates so that the lanes of the placed job are busy as long as measured. Lanes slow each
 * other down, so this takes a few rounds. Collectives of pretended ranks keep their stated
 * speed. */
static int calibrate(advisor *self)
{
    struct simulated now;
    plan_machine *to = &self->machine;
    for (int round = 0; round < CALIBRATIONS; round++) {
        TRY(simulate(self, self->self->placed, to, &now));
        to->drive_read_bytes_per_second /= slower(self, &now, LANE_READ);
        to->drive_write_bytes_per_second /= slower(self, &now, LANE_WRITE);
        to->h2d_bytes_per_second /= slower(self, &now, LANE_H2D);
        to->d2h_bytes_per_second /= slower(self, &now, LANE_D2H);
        to->device_flops_per_second /= slower(self, &now, LANE_COMPUTE);
        to->update_core_seconds *= slower(self, &now, LANE_UPDATE);
        to->dram_bytes_per_second /= slower(self, &now, LANE_UPDATE);
        if (self->self->options->of_ranks == 0)
            to->comm_bytes_per_second /= slower(self, &now, LANE_COMM);
    }
    TRY(simulate(self, self->self->placed, to, &now));
    self->base_seconds = self->self->out->calibrated_seconds = now.seconds;
    return 0;
}

/* ---- changes ---- */

/* Simulates self->trial on `on` (NULL: the calibrated machine) and keeps it if it is the best of
 * its kind. Returns true if it fits. `part`: the part of its step that processes as many tokens as
 * before. */
__attribute__((format(printf, 4, 5))) static bool try_trial(advisor *self, const plan_machine *on,
                                                            double part, const char *format, ...)
{
    struct simulated now;
    if (is_over(self))
        return false;
    int rc = simulate(self, self->trial, on ? on : &self->machine, &now);
    self->self->out->tried_count++;
    if (rc < 0) {
        bool is_refusal = rc == ERR_NO_FIT || rc == ERR_CONFIG || rc == ERR_INPUT;
        self->failed = is_refusal ? 0 : rc;
        return false;
    }
    double seconds = now.seconds * part, gain = 1 - seconds / self->base_seconds;
    if (gain <= self->best.gain)
        return true;
    self->best.gain = gain;
    self->best.step_seconds = seconds;
    va_list args;
    va_start(args, format);
    vsnprintf(self->best.text, sizeof self->best.text, format, args);
    va_end(args);
    return true;
}

/* Adds the best change of this kind to the advice, in order of gain. */
static void end_kind(advisor *self)
{
    struct profile_summary *out = self->self->out;
    struct profile_advice best = self->best;
    memset(&self->best, 0, sizeof self->best);
    if (best.gain < least_gain)
        return;
    uint32_t at = out->advice_count;
    while (at > 0 && out->advice[at - 1].gain < best.gain)
        at--;
    if (at == PROFILE_ADVICE_MAX)
        return;
    out->advice_count = (uint32_t)size_min(out->advice_count + 1, PROFILE_ADVICE_MAX);
    memmove(&out->advice[at + 1], &out->advice[at],
            (out->advice_count - at - 1) * sizeof *out->advice);
    out->advice[at] = best;
}

static void try_tiles(advisor *self)
{
    uint64_t now = self->self->placed->schedule.tile_elems;
    const uint64_t wanted[] = {now / 4, now / 2, now * 2, now * 4};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        uint64_t elems = size_round_up(size_max(wanted[i], 1), TILE_ELEMS_STEP);
        if (elems == now)
            continue;
        *self->trial = *self->self->placed;
        self->trial->schedule.tile_elems = elems;
        try_trial(self, NULL, 1, "schedule.tile_elems=%" PRIu64 " in place of %" PRIu64, elems,
                  now);
    }
    end_kind(self);
}

static void try_updates(advisor *self)
{
    const job *placed = self->self->placed;
    bool may_stop = placed->gradient_clipping > 0 || placed->check_grad_overflow ||
                    placed->type == DTYPE_FP16; /* in_backward cannot wait for these */
    for (int update = UPDATE_AFTER_BACKWARD; update <= UPDATE_DELAYED_ONE_STEP; update++) {
        if (update == (int)placed->schedule.update || (update == UPDATE_IN_BACKWARD && may_stop))
            continue;
        *self->trial = *placed;
        self->trial->schedule.update = (enum update)update;
        try_trial(self, NULL, 1, "schedule.update=%s%s", update_name((enum update)update),
                  update == UPDATE_DELAYED_ONE_STEP ? " (approximate: gradients are a step late)"
                                                    : "");
    }
    end_kind(self);
}

static void try_order(advisor *self)
{
    const job *placed = self->self->placed;
    bool is_batch = placed->schedule.order == ORDER_BATCH_MAJOR;
    if (placed->accumulation < 2)
        return;
    *self->trial = *placed;
    self->trial->schedule.order = is_batch ? ORDER_LAYER_MAJOR : ORDER_BATCH_MAJOR;
    try_trial(self, NULL, 1, "schedule.order=%s", order_name(self->trial->schedule.order));
    end_kind(self);
}

/* Removes all rules of the kind. */
static void drop_rules(job *changed, enum state_kind kind)
{
    uint32_t kept = 0;
    for (uint32_t r = 0; r < changed->tiers.rule_count; r++)
        if (changed->tiers.rules[r].kind != kind)
            changed->tiers.rules[kept++] = changed->tiers.rules[r];
    changed->tiers.rule_count = kept;
}

static void try_kept(advisor *self)
{
    for (int tier = TIER_DEVICE; tier < TIER_WORD_COUNT; tier++) {
        if (tier == TIER_AUTO)
            continue;
        *self->trial = *self->self->placed;
        drop_rules(self->trial, STATE_INNER_ACTIVATIONS);
        self->trial->tiers.place[STATE_INNER_ACTIVATIONS] = (enum tier)tier;
        try_trial(self, NULL, 1, "tiers.place.inner_activations=%s", tier_name((enum tier)tier));
    }
    end_kind(self);
}

/* Tries to move the state of this kind one tier up for the first `count` units that have it in
 * `from`. False if that does not fit. */
static bool try_first(advisor *self, enum state_kind kind, enum tier from, uint32_t count,
                      uint32_t all)
{
    const profile *own = self->self;
    const enum tier to = from == TIER_NVME ? TIER_HOST : TIER_DEVICE;
    uint8_t *homes = self->self->scratch_homes;
    uint32_t left = count, last = 0;
    memcpy(homes, own->homes[kind], own->unit_count);
    for (uint32_t u = 0; u < own->unit_count && left > 0; u++)
        if (homes[u] == from) {
            homes[u] = (uint8_t)to;
            left--;
            last = u;
        }
    *self->trial = *own->placed;
    drop_rules(self->trial, kind);
    if (!place_kind(self->trial, kind, homes, own->unit_count))
        return false;
    if (count == all)
        return try_trial(self, NULL, 1, "tiers.place.%s=%s in place of %s", state_kind_key(kind),
                         tier_name((enum tier)to), tier_name((enum tier)from));
    return try_trial(
        self, NULL, 1,
        "tiers.place.rules: {\"units\": \"0-%u\", \"kind\": \"%s\", \"tier\": \"%s\"}, "
        "as many as fit",
        last, state_kind_key(kind), tier_name((enum tier)to));
}

/* Tries to move as many units of a kind one tier up as fit. */
static void try_raise(advisor *self, enum state_kind kind, enum tier from)
{
    const profile *own = self->self;
    uint32_t all = 0;
    for (uint32_t u = 0; u < own->unit_count; u++)
        all += own->homes[kind][u] == from;
    if (all == 0 || try_first(self, kind, from, all, all)) {
        end_kind(self);
        return;
    }
    uint32_t fits = 0, fails = all;
    for (int i = 0; i < BISECTIONS && fits + 1 < fails; i++) {
        uint32_t middle = fits + (fails - fits) / 2;
        if (try_first(self, kind, from, middle, all))
            fits = middle;
        else
            fails = middle;
    }
    end_kind(self);
}

/* Tries larger budgets; the plan chooses the homes. */
static void try_budgets(advisor *self)
{
    static const double factors[] = {1.25, 1.5, 2};
    static const char *const keys[2] = {"tiers.device.budget", "tiers.host.budget"};
    const job *own = self->self->own;
    for (int a = 0; a < 2; a++) {
        uint64_t now = a ? own->tiers.host_budget : own->tiers.device_budget;
        for (size_t i = 0; i < sizeof factors / sizeof factors[0] && now > 0; i++) {
            uint64_t more = (uint64_t)((double)now * factors[i]) / MIB * MIB;
            *self->trial = *own;
            *(a ? &self->trial->tiers.host_budget : &self->trial->tiers.device_budget) = more;
            double before = self->best.gain;
            try_trial(self, NULL, 1, "%s=%" PRIu64 "MiB, %.0f%% more", keys[a], more / MIB,
                      100 * (factors[i] - 1));
            if (before > 0 && self->best.gain < before + least_gain)
                break; /* more memory gains little */
        }
        end_kind(self);
    }
}

static void try_drives(advisor *self)
{
    const struct profile_summary *out = self->self->out;
    uint32_t count = self->self->own->tiers.nvme_count;
    if (count == 0 ||
        out->lanes[LANE_READ].measured_bytes + out->lanes[LANE_WRITE].measured_bytes == 0)
        return;
    plan_machine faster = self->machine;
    double factor = (count + 1.0) / count;
    faster.drive_read_bytes_per_second *= factor;
    faster.drive_write_bytes_per_second *= factor;
    *self->trial = *self->self->placed;
    try_trial(self, &faster, 1, "tiers.nvme with one more drive like %s",
              count == 1 ? "the one there is" : "those there are");
    end_kind(self);
}

/* The number of tokens of a step from which the binding resource is hidden by computing; 0: not
 * known. */
static double hidden_tokens(const profile *self)
{
    static const char *const names[PROFILE_RESOURCE_COUNT] = {[PROFILE_DRIVES] = "drive",
                                                              [PROFILE_H2D] = "h2d",
                                                              [PROFILE_D2H] = "d2h",
                                                              [PROFILE_COMM] = "comm"};
    const char *wanted = names[self->out->measured_resource];
    const struct setup_summary *plan = &self->out->plan;
    for (uint32_t i = 0; wanted && i < plan->link_count; i++)
        if (strcmp(plan->links[i].name, wanted) == 0 && isfinite(plan->links[i].hidden_tokens))
            return plan->links[i].hidden_tokens;
    return 0;
}

/* Tries more tokens per step, which share the same transfers of states. It changes the batch, and
 * so the training. */
static void try_batch(advisor *self)
{
    const job *placed = self->self->placed;
    char hidden[96] = "";
    double tokens = hidden_tokens(self->self);
    if (tokens > 0)
        snprintf(hidden, sizeof hidden, "; hidden from %.0f tokens of a rank on (T*)", tokens);
    *self->trial = *placed;
    self->trial->accumulation *= 2;
    self->trial->train_batch_size *= 2;
    try_trial(self, NULL, 0.5,
              "gradient_accumulation_steps=%" PRIu64
              ", which changes the batch, for the same tokens%s",
              self->trial->accumulation, hidden);
    end_kind(self);
}

/* Tries what the plan itself chooses when it knows the speeds. */
static void try_figures(advisor *self)
{
    *self->trial = *self->self->own;
    try_trial(self, NULL, 1,
              self->self->options->machine
                  ? "the plan's own choice at the measured speeds: run sluice probe again"
                  : "sluice probe, whose machine.json lets the plan choose for this machine");
    end_kind(self);
}

static void try_all(advisor *self)
{
    try_tiles(self);
    try_updates(self);
    try_order(self);
    try_kept(self);
    try_drives(self);
    try_batch(self);
    try_figures(self);
    for (int kind = 0; kind < STATE_INNER_ACTIVATIONS; kind++)
        for (int from = TIER_HOST; from <= TIER_NVME; from++)
            try_raise(self, (enum state_kind)kind, (enum tier)from);
    try_budgets(self);
}

void profilei_advise(profile *self)
{
    if (!self->is_placed) {
        log_warn("no settings are simulated: the job's homes take more than %d rules to state",
                 JOB_RULES_MAX);
        return;
    }
    advisor work = {.self = self,
                    .machine = self->machine,
                    .end_ns = clock_ns() + ADVICE_SECONDS * (uint64_t)1000000000};
    work.trial = mem_alloc(1, sizeof *work.trial, "profile");
    self->scratch_homes = mem_alloc(self->unit_count, 1, "profile");
    enum log_level level = log_get_level();
    log_set_level(LOG_QUIET); /* these plans are not run */
    int rc = work.trial && self->scratch_homes ? calibrate(&work) : -ENOMEM;
    if (rc == 0)
        try_all(&work);
    log_set_level(level);
    rc = rc < 0 ? rc : work.failed;
    if (rc < 0)
        log_warn("other settings could not be simulated: %s", err_text());
    mem_free(work.trial);
    mem_free(self->scratch_homes);
    self->scratch_homes = NULL;
}
