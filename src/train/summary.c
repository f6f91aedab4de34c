/* What a setup comes to, in figures: for `plan`, the screen and plan.json. */
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "config/options.h"
#include "train/train_internal.h"

uint64_t traini_reached_bytes(const traini_setup *self, enum arena_kind which)
{
    uint64_t peak = 0;
    for (int k = 0; k < PROGRAM_KIND_COUNT; k++)
        peak = size_max(peak, self->set.programs[k].peak_bytes[which]);
    return peak;
}

/* The part of all steps that commit. */
static double commit_share(const plan_job *plan)
{
    return plan->commits && plan->commit_every > 1 ? 1 / (double)plan->commit_every : 1;
}

/* The mean of steps of which some commit. */
static double mean_ns(const plan_job *plan, double with_ns, double without_ns)
{
    return plan->commits ? without_ns + (with_ns - without_ns) * commit_share(plan) : with_ns;
}

/* Whether each commit is a program of its own, between two steps. */
static bool commits_apart(const plan_job *plan, const plan_set *set)
{
    return plan->commits && set->commit == PLAN_COMMIT_APART;
}

double traini_mean_step_ns(const plan_job *plan, const plan_set *set)
{
    double with_ns = (double)set->programs[PROGRAM_STEADY].predicted_ns;
    if (commits_apart(plan, set))
        with_ns += (double)set->programs[PROGRAM_SAVE].predicted_ns;
    return mean_ns(plan, with_ns, (double)set->uncommitted_ns);
}

struct lane_sums {
    double bytes[LANE_COUNT], ns[LANE_COUNT];
};

/* What the program's lanes do in the mean step: `share` of all steps run what is a commit's, be it some of
 * the ops or the whole program. */
static void add_lanes(const program *prog, double share, bool is_commit, struct lane_sums *sums)
{
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        double part = item->if_commits || is_commit ? share : 1;
        sums->bytes[item->lane] += part * (double)op_moved_bytes(item);
        sums->ns[item->lane] += part * (double)(item->predicted_end_ns - item->predicted_start_ns);
    }
}

/* Of the mean step: its lanes, what they are busy, and the one that is so longest. */
static void summarize_lanes(const traini_setup *self, struct plan_summary *out)
{
    struct lane_sums sums = {0};
    double share = commit_share(&self->plan);
    add_lanes(&self->set.programs[PROGRAM_STEADY], share, false, &sums);
    if (commits_apart(&self->plan, &self->set))
        add_lanes(&self->set.programs[PROGRAM_SAVE], share, true, &sums);
    int busiest = LANE_COMPUTE;
    for (int i = 0; i < LANE_COUNT; i++) {
        out->lane_bytes[i] = (uint64_t)(sums.bytes[i] + 0.5);
        out->lane_seconds[i] = sums.ns[i] * 1e-9;
        if (sums.ns[i] > sums.ns[busiest])
            busiest = i;
    }
    out->bottleneck = lane_kind_name((enum lane_kind)busiest);
}

void traini_setup_summary(const traini_setup *self, struct plan_summary *out)
{
    memset(out, 0, sizeof *out);
    const program *steady = &self->set.programs[PROGRAM_STEADY];
    const struct job_model *m = &self->job->model;
    snprintf(out->model_name, sizeof out->model_name, "%s", m->preset[0] ? m->preset : m->family);
    out->param_count = self->net->param_count;
    out->unit_count = self->net->unit_count;
    memcpy(out->home_bytes, self->set.home_bytes, sizeof out->home_bytes);
    for (int a = 0; a < ARENA_COUNT; a++) {
        out->budget_bytes[a] = self->plan.budget_bytes[a];
        out->peak_bytes[a] = traini_reached_bytes(self, (enum arena_kind)a);
    }
    summarize_lanes(self, out);
    out->step_seconds = traini_mean_step_ns(&self->plan, &self->set) * 1e-9;
    out->bound_seconds =
        mean_ns(&self->plan, (double)self->set.bound_ns, (double)self->set.uncommitted_bound_ns) *
        1e-9;
    out->tokens_per_step =
        self->ranks.world * self->job->accumulation * self->net->micro_batch * self->net->tokens;
    out->world_size = self->ranks.world;
    out->zero_stage = self->job->zero_stage;
    for (uint64_t i = 0; i < steady->op_count; i++)
        out->sent_bytes += steady->ops[i].demand.comm_bytes;
    out->tile_elems = self->set.tile_elems;
    out->held_stages = self->set.held_stages;
    out->second_bytes = self->set.second_bytes;
    out->op_count = steady->op_count;
    static const char *const updates[] = {
        [PLAN_UPDATE_AFTER_BACKWARD] = "after_backward",
        [PLAN_UPDATE_IN_NEXT_FORWARD] = "in_next_forward",
        [PLAN_UPDATE_IN_BACKWARD] = "in_backward",
        [PLAN_UPDATE_DELAYED_ONE_STEP] = "delayed_one_step",
    };
    out->update = updates[self->plan.update];
    out->order = self->plan.order == PLAN_BATCH_MAJOR ? "batch_major" : "layer_major";
    out->machine_is_measured = self->plan.machine.is_measured;
}

void train_list_keys(FILE *out)
{
    options_print(out);
}

int train_plan_on(const struct job *asked, const struct train_plan_options *options,
                  struct plan_summary *out)
{
    return train_plan(asked, options->local_world, out);
}

int train_plan(const struct job *asked, uint32_t local_world, struct plan_summary *out)
{
    traini_setup *setup;
    struct traini_setup_options options = {.local_world = local_world};
    TRY(traini_setup_create(asked, &options, &setup));
    traini_setup_summary(setup, out);
    traini_setup_destroy(setup);
    return 0;
}
