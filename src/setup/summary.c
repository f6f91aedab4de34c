/* Fills the figures of a setup from its compiled programs. Rates are those that the plan was made
 * with. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/shard.h"
#include "base/size.h"
#include "base/tile.h"
#include "config/machine.h"
#include "plan/plan.h"
#include "plan/zero.h"
#include "setup/setup_internal.h"

/* The program that reaches highest in the arena. */
static const program *highest_program(const struct setup *self, enum tier which)
{
    const program *highest = &self->set.programs[0];
    for (int k = 1; k < PROGRAM_KIND_COUNT; k++) {
        const program *prog = &self->set.programs[k];
        bool is_usual =
            k == PROGRAM_STEADY && prog->peak_bytes[which] == highest->peak_bytes[which];
        if (prog->peak_bytes[which] > highest->peak_bytes[which] || is_usual)
            highest = prog;
    }
    return highest;
}

uint64_t setup_reached_bytes(const struct setup *self, enum tier which)
{
    return highest_program(self, which)->peak_bytes[which];
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* "block.3"; "the step" for a buffer that belongs to no unit. */
static const char *unit_name(const struct setup *self, uint32_t unit)
{
    return unit < self->net->unit_count ? self->net->units[unit].name : "the step";
}

static const char *buffer_kind_name(const buffer *item)
{
    return item->state_kind < STATE_KIND_COUNT ? state_kind_name((enum state_kind)item->state_kind)
                                               : "scratch";
}

/* The buffer that ends at the peak, who makes it, in which program. */
static void describe_peak(const struct setup *self, enum tier which, char *text, size_t capacity)
{
    const program *prog = highest_program(self, which);
    uint32_t idx = prog->peak_buffer[which];
    char bytes[SIZE_TEXT_BYTES];
    text[0] = '\0';
    if (idx == PROGRAM_NONE)
        return;
    const buffer *item = &prog->buffers[idx];
    size_format(item->size_bytes, bytes);
    if (item->carried & CARRIED_IN) {
        snprintf(text, capacity, "%s of %.40s, %s, carried from the step before",
                 buffer_kind_name(item), unit_name(self, item->unit), bytes);
        return;
    }
    if (item->is_home || item->producer == PROGRAM_NONE) {
        snprintf(text, capacity, "homes alone; the last is %s of %.40s, %s", buffer_kind_name(item),
                 unit_name(self, item->unit), bytes);
        return;
    }
    const op *maker = &prog->ops[item->producer];
    char other[64] = "";
    if (maker->unit != item->unit && maker->unit != PROGRAM_NONE)
        snprintf(other, sizeof other, " of %.40s", unit_name(self, maker->unit));
    snprintf(text, capacity, "%s of %.40s, %s, made by %s%s in program %s", buffer_kind_name(item),
             unit_name(self, item->unit), bytes, op_kind_name((enum op_kind)maker->kind), other,
             program_kind_name(prog->kind));
}

static uint64_t bytes_of(const program *prog, uint32_t buffer_idx)
{
    return buffer_idx == PROGRAM_NONE ? 0 : prog->buffers[buffer_idx].size_bytes;
}

/* Splits the peak of each arena into its parts. */
static void summarize_memory(const struct setup *self, struct setup_summary *out)
{
    const program *steady = &self->set.programs[PROGRAM_STEADY];
    const plan_homes *homes = &self->set.homes;
    uint64_t end[TIER_COUNT] = {0}, known[TIER_COUNT] = {0};
    memcpy(out->home_bytes, self->set.home_bytes, sizeof out->home_bytes);
    out->second_bytes = self->set.second_bytes;
    out->copy_bytes = self->set.copy_bytes;
    out->carried_bytes = self->set.carried_end - self->set.carried_begin;
    for (uint32_t u = 0; u < self->plan.unit_count; u++) {
        uint32_t state = homes->saves[u] != PROGRAM_NONE ? homes->saves[u] : homes->optimizer[u];
        out->save_bytes +=
            bytes_of(steady, homes->saves[u]) + bytes_of(steady, homes->high_saves[u]);
        if (plan_learns(&self->plan, u))
            out->kept_bytes +=
                bytes_of(steady, state) + bytes_of(steady, plan_high_place(homes, u));
    }
    for (uint64_t i = 0; i < steady->home_count; i++) {
        const buffer *item = &steady->buffers[i];
        end[item->arena] = size_max(end[item->arena], item->offset_bytes + item->size_bytes);
        if (item->state_kind == STATE_KIND_COUNT)
            out->scratch_bytes[item->arena] += item->size_bytes;
    }
    known[TIER_NVME] = out->save_bytes + out->second_bytes;
    known[TIER_HOST] = out->copy_bytes;
    for (int a = 0; a < TIER_COUNT; a++) {
        known[a] += out->scratch_bytes[a];
        for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
            known[a] += out->home_bytes[kind][a];
        out->budget_bytes[a] = self->plan.budget_bytes[a];
        out->peak_bytes[a] = setup_reached_bytes(self, (enum tier)a);
        out->padding_bytes[a] = end[a] - known[a];
        out->moving_bytes[a] = out->peak_bytes[a] - end[a];
        describe_peak(self, (enum tier)a, out->peak_what[a], sizeof out->peak_what[a]);
    }
}

/* ---- time ------------------------------------------------------------------------------------ */

/* The share of steps that commit. */
static double commit_share(const plan_job *plan)
{
    return plan->commits && plan->commit_every > 1 ? 1 / (double)plan->commit_every : 1;
}

/* The mean over steps with and without a commit. */
static double mean_ns(const plan_job *plan, double with_ns, double without_ns)
{
    return plan->commits ? without_ns + (with_ns - without_ns) * commit_share(plan) : with_ns;
}

/* True if each commit is a program of its own, between two steps. */
static bool commits_apart(const plan_job *plan, const plan_set *set)
{
    return plan->commits && set->commit == PLAN_COMMIT_APART;
}

/* Nanoseconds of a step that commits, with the program that commits. */
static double committed_ns(const plan_job *plan, const plan_set *set)
{
    double ns = (double)set->programs[PROGRAM_STEADY].predicted_ns;
    return commits_apart(plan, set) ? ns + (double)set->programs[PROGRAM_SAVE].predicted_ns : ns;
}

/* Sums of what the ops of the mean step need. */
struct step_sums {
    double lane_bytes[LANE_COUNT], spared_bytes[LANE_COUNT];
    double bytes[RESOURCE_COUNT], seconds[RESOURCE_COUNT], growing_seconds[RESOURCE_COUNT];
    /* of forward, recomputation and backward alone */
    double passes_seconds[RESOURCE_COUNT], passes_bytes[RESOURCE_COUNT];
    double flops;
    double read[STATE_KIND_COUNT], written[STATE_KIND_COUNT];
    double committed; /* bytes that only commits write */
};

static bool is_pass(const op *item)
{
    return item->kind == OP_FORWARD || item->kind == OP_RECOMPUTE || item->kind == OP_BACKWARD;
}

/* True if the op grows with the number of tokens: passes, activations, and copies of tokens and
 * losses (those of no state kind). */
static bool grows_with_tokens(const op *item)
{
    bool is_copy = item->kind == OP_H2D || item->kind == OP_D2H;
    return is_pass(item) || item->state_kind == STATE_ACTIVATIONS ||
           item->state_kind == STATE_INNER_ACTIVATIONS ||
           (is_copy && item->state_kind >= STATE_KIND_COUNT);
}

static void add_op(const plan_machine *rates, const op *item, double part, bool is_commit,
                   struct step_sums *sums)
{
    const op_demand *demand = &item->demand;
    double seconds[RESOURCE_COUNT], moved = part * plan_share(demand);
    const double bytes[RESOURCE_COUNT] = {
        [RESOURCE_DRIVE] = (double)demand->drive_read_bytes + (double)demand->drive_write_bytes,
        [RESOURCE_H2D] =
            (double)demand->h2d_bytes +
            (rates->device_is_cpu ? (double)demand->d2h_bytes : 0), /* one thread copies both */
        [RESOURCE_D2H] = (double)demand->d2h_bytes,
        [RESOURCE_DRAM] = (double)demand->dram_bytes,
        [RESOURCE_DEVICE] = (double)demand->device_bytes,
        [RESOURCE_COMM] = (double)demand->comm_bytes,
    };
    plan_demand_seconds(rates, demand, seconds);
    for (int r = 0; r < RESOURCE_COUNT; r++) {
        sums->bytes[r] += moved * bytes[r];
        sums->seconds[r] += part * seconds[r];
        sums->growing_seconds[r] += grows_with_tokens(item) ? part * seconds[r] : 0;
        sums->passes_seconds[r] += is_pass(item) ? part * seconds[r] : 0;
        sums->passes_bytes[r] += is_pass(item) ? moved * bytes[r] : 0;
    }
    sums->lane_bytes[item->lane] += moved * (double)op_moved_bytes(item);
    sums->spared_bytes[item->lane] += (part - moved) * (double)op_moved_bytes(item);
    sums->flops += part * demand->device_flops;
    if (is_commit)
        sums->committed += moved * (double)demand->drive_write_bytes;
    else if (item->state_kind < STATE_KIND_COUNT) {
        sums->read[item->state_kind] += moved * (double)demand->drive_read_bytes;
        sums->written[item->state_kind] += moved * (double)demand->drive_write_bytes;
    }
}

/* Adds the program's ops to the mean step. Ops of a commit count with `share`, the share of steps
 * that commit; `commits`: all ops of the program are such. */
static void add_program(const plan_machine *rates, const program *prog, double share, bool commits,
                        struct step_sums *sums)
{
    for (uint64_t i = 0; i < prog->op_count; i++) {
        bool is_commit = commits || prog->ops[i].if_commits;
        add_op(rates, &prog->ops[i], is_commit ? share : 1, is_commit, sums);
    }
}

static void sum_step(const struct setup *self, struct step_sums *sums)
{
    const plan_machine *rates = &self->plan.machine;
    double share = commit_share(&self->plan);
    memset(sums, 0, sizeof *sums);
    add_program(rates, &self->set.programs[PROGRAM_STEADY], share, false, sums);
    if (commits_apart(&self->plan, &self->set))
        add_program(rates, &self->set.programs[PROGRAM_SAVE], share, true, sums);
}

static uint64_t whole(double value)
{
    return (uint64_t)(value + 0.5);
}

enum lane_kind setup_busiest_lane(const double seconds[LANE_COUNT])
{
    int busiest = LANE_COMPUTE;
    for (int i = 0; i < LANE_COUNT; i++)
        if (seconds[i] > seconds[busiest])
            busiest = i;
    return (enum lane_kind)busiest;
}

/* Fills the lanes of the mean step: bytes, busy seconds, and the lane that is busy longest. */
static void summarize_lanes(const struct setup *self, const struct step_sums *sums,
                            struct setup_summary *out)
{
    const plan_set *set = &self->set;
    for (int i = 0; i < LANE_COUNT; i++) {
        uint64_t with_ns = set->programs[PROGRAM_STEADY].lane_busy_ns[i];
        if (commits_apart(&self->plan, set))
            with_ns += set->programs[PROGRAM_SAVE].lane_busy_ns[i];
        out->lane_bytes[i] = whole(sums->lane_bytes[i]);
        out->lane_spared_bytes[i] = whole(sums->spared_bytes[i]);
        out->lane_seconds[i] =
            mean_ns(&self->plan, (double)with_ns, (double)set->uncommitted_lane_ns[i]) * 1e-9;
    }
    out->bottleneck = lane_kind_name(setup_busiest_lane(out->lane_seconds));
}

static struct setup_ceilings ceilings_of(const plan_machine *rates)
{
    double copy = rates->dram_bytes_per_second / 2;
    return (struct setup_ceilings){
        .read = rates->drive_read_bytes_per_second,
        .write = rates->drive_write_bytes_per_second,
        .both_ways = plan_drive_both_ways(rates),
        .drive_kept = plan_drive_kept(rates),
        .h2d = rates->device_is_cpu ? copy : rates->h2d_bytes_per_second,
        .d2h = rates->device_is_cpu ? copy : rates->d2h_bytes_per_second,
        .comm = rates->comm_bytes_per_second,
        .dram = rates->dram_bytes_per_second,
        .flops = rates->device_flops_per_second,
    };
}

static void summarize_links(const struct setup *self, const struct step_sums *sums,
                            struct setup_summary *out)
{
    static_assert((int)RESOURCE_COUNT <= (int)SETUP_LINKS_MAX, "all resources have a row");
    enum plan_resource computes =
        self->plan.machine.device_is_cpu ? RESOURCE_CORES : RESOURCE_DEVICE;
    double tokens = (double)(self->job->accumulation * self->net->micro_batch * self->net->tokens);
    out->ceilings = ceilings_of(&self->plan.machine);
    out->computing_seconds = sums->passes_seconds[computes];
    out->busiest = plan_resource_name(computes);
    out->busiest_seconds = sums->seconds[computes];
    out->link_count = RESOURCE_COUNT;
    for (int r = 0; r < RESOURCE_COUNT; r++) {
        double seconds = sums->seconds[r], growing = sums->growing_seconds[r];
        bool is_computing = r == (int)computes;
        out->links[r] = (struct setup_link){
            .name = plan_resource_name((enum plan_resource)r),
            .bytes = sums->bytes[r],
            .bytes_per_second = is_computing || seconds <= 0 ? 0 : sums->bytes[r] / seconds,
            .seconds = seconds,
            .other_bytes = is_computing ? sums->bytes[r] - sums->passes_bytes[r] : 0,
            .growing_seconds = growing,
            .is_computing = is_computing,
            .hidden_tokens = is_computing ? NAN
                                          : zero_hidden_tokens(fmax(seconds - growing, 0), growing,
                                                               out->computing_seconds, tokens),
        };
        if (seconds > out->busiest_seconds) {
            out->busiest = plan_resource_name((enum plan_resource)r);
            out->busiest_seconds = seconds;
        }
    }
}

/* Fills the cost of commits and the wear of the drives. */
static void summarize_writes(const struct setup *self, const struct step_sums *sums,
                             struct setup_summary *out)
{
    const plan_job *plan = &self->plan;
    const plan_set *set = &self->set;
    bool is_apart = !plan->commits || set->commit == PLAN_COMMIT_APART;
    const program *from = &set->programs[is_apart ? PROGRAM_SAVE : PROGRAM_STEADY];
    for (uint64_t i = 0; i < from->op_count; i++)
        if (is_apart || from->ops[i].if_commits)
            out->commit_bytes += from->ops[i].demand.drive_write_bytes;
    out->commit_every = plan->commits ? size_max(plan->commit_every, 1) : 0;
    double longer_ns = plan->commits ? committed_ns(plan, set) - (double)set->uncommitted_ns
                                     : (double)from->predicted_ns;
    out->commit_seconds = fmax(longer_ns, 0) * 1e-9;
    double written = sums->committed;
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        out->read_bytes[kind] = whole(sums->read[kind]);
        out->written_bytes[kind] = whole(sums->written[kind]);
        written += sums->written[kind];
    }
    out->commit_share_bytes = whole(sums->committed);
    out->drive_written_bytes = whole(written);
}

/* Counts elements that collectives of the steady step bring together, by the elements of all
 * shards. */
static void summarize_volume(const struct setup *self, struct setup_summary *out)
{
    const plan_job *plan = &self->plan;
    const program *prog = &self->set.programs[PROGRAM_STEADY];
    double gathered = 0, reduced = 0, all = 0;
    for (uint32_t u = 0; u < plan->unit_count; u++)
        all += (double)shard_whole_elems(plan->unit_elems[u], self->ranks.world);
    for (uint64_t i = 0; i < prog->op_count; i++) {
        const op *item = &prog->ops[i];
        bool is_rows = item->kind == OP_DISPATCH || item->kind == OP_RETURN;
        if (item->lane != LANE_COMM || item->unit == PROGRAM_NONE || is_rows)
            continue;
        double elems = plan_share(&item->demand) *
                       (double)shard_whole_elems(plan->unit_elems[item->unit], self->ranks.world);
        *(item->kind == OP_REDUCE_SCATTER ? &reduced : &gathered) += elems;
    }
    out->gathered_times = gathered / all;
    out->reduced_times = reduced / all;
    out->sent_times = out->gathered_times + out->reduced_times;
}

static void summarize_time(const struct setup *self, struct setup_summary *out)
{
    const plan_job *plan = &self->plan;
    struct step_sums sums;
    sum_step(self, &sums);
    summarize_lanes(self, &sums, out);
    summarize_links(self, &sums, out);
    summarize_writes(self, &sums, out);
    out->step_seconds = plan_mean_step_ns(plan, &self->set) * 1e-9;
    const plan_set *set = &self->set;
    out->bound_seconds =
        mean_ns(plan, (double)set->bound_ns, (double)set->uncommitted_bound_ns) * 1e-9;
    out->schedule_bound_seconds =
        mean_ns(plan, (double)set->schedule_bound_ns, (double)set->uncommitted_schedule_bound_ns) *
        1e-9;
    out->hardware_flops = sums.flops;
    out->model_flops = model_step_flops(self->net, out->tokens_per_step);
    out->sent_bytes = whole(sums.bytes[RESOURCE_COMM]);
    summarize_volume(self, out);
    out->machine_is_measured = plan->machine.is_measured;
}

/* ---- what it is ------------------------------------------------------------------------------ */

/* The mean of all units that learn. */
static double state_param_bytes(const plan_job *plan)
{
    uint64_t bytes = 0, elems = 0;
    for (uint32_t u = 0; u < plan->unit_count; u++)
        if (plan_learns(plan, u)) {
            bytes += tile_state_bytes(plan_streams(plan, u), plan->unit_elems[u]);
            elems += plan->unit_elems[u];
        }
    return (double)bytes / (double)size_max(elems, 1);
}

static void summarize_job(const struct setup *self, struct setup_summary *out)
{
    const job *asked = self->job;
    out->reason_count = self->reason_count;
    memcpy(out->reasons, self->reasons, sizeof out->reasons);
    snprintf(out->model_name, sizeof out->model_name, "%s",
             asked->preset[0] ? asked->preset
             : asked->module  ? asked->module->name
                              : model_family_name(asked->model.family));
    out->param_count = self->net->param_count;
    out->unit_count = self->net->unit_count;
    out->world_size = self->ranks.world;
    out->ranks_per_host = (uint32_t)size_max(self->ranks.local_world, 1);
    out->zero_stage = self->job->zero_stage;
    out->expert_zero_bytes = self->expert_zero_bytes;
    out->expert_rows_bytes = self->expert_rows_bytes;
    out->expert_parallel_size = self->is_owned ? self->ranks.world : 1;
    out->micro_batch = self->net->micro_batch;
    out->micro_batch_count = self->job->accumulation;
    out->seq_length = self->net->tokens;
    out->tokens_per_step =
        self->ranks.world * self->job->accumulation * self->net->micro_batch * self->net->tokens;
    out->tile_elems = self->set.tile_elems;
    uint32_t streams = self->plan.state_streams;
    setup_formats_text(streams, out->state_formats);
    out->state_has_formats = tile_has_formats(streams);
    out->state_param_bytes = state_param_bytes(&self->plan);
    out->held_stages = self->set.held_stages;
    out->held_passes = self->set.held_passes;
    struct plan_hits expected;
    plan_expect_hits(&self->plan, &expected);
    out->experts =
        expected.passes > 0 ? fetch_name(self->set.fetches_hit ? FETCH_HIT : FETCH_ALL) : "";
    out->expert_passes = expected.passes;
    out->expert_passes_hit = expected.hit;
    out->all_hit_seconds = (double)self->set.all_hit_ns * 1e-9;
    out->op_count = self->set.programs[PROGRAM_STEADY].op_count;
    out->update = update_name(self->plan.update);
    out->order = order_name(self->plan.order);
    snprintf(out->machine_name, sizeof out->machine_name, "defaults");
}

/* Takes figures of the machine file that no plan is made from. Figures of the drives are taken only
 * if all drives have them, since a sum over some of them would be too small. */
static void add_machine(const struct machine *from, struct setup_summary *out)
{
    snprintf(out->machine_name, sizeof out->machine_name, "%s", from->name);
    out->machine_is_disturbed = from->disturbed;
    snprintf(out->machine_disturbed_by, sizeof out->machine_disturbed_by, "%s", from->disturbed_by);
    out->peak_tflops_per_rank = from->device.peak_flops / 1e12;
    bool knows_capacity = true, knows_endurance = true;
    for (uint32_t d = 0; d < from->drive_count; d++) {
        const struct machine_drive *drive = &from->drives[d];
        uint64_t count = size_max(drive->count, 1);
        out->drive_endurance_bytes += (double)count * drive->endurance_bytes;
        knows_capacity = knows_capacity && drive->capacity_bytes > 0;
        knows_endurance = knows_endurance && drive->endurance_bytes > 0;
    }
    out->drive_capacity_bytes = knows_capacity ? setupi_drives_capacity(from) : 0;
    out->drive_endurance_bytes = knows_endurance ? out->drive_endurance_bytes : 0;
}

/* ---- what follows from other figures --------------------------------------------------------- */

static void derive_memory(struct setup_summary *out)
{
    uint64_t planned = out->peak_bytes[TIER_NVME];
    double params = (double)size_max(out->param_count, 1);
    for (int a = 0; a < TIER_COUNT; a++) {
        out->host_peak_bytes[a] = out->peak_bytes[a] * out->ranks_per_host;
        out->all_peak_bytes[a] = out->peak_bytes[a] * out->world_size;
    }
    /* Without second places the first ones are there already. */
    out->nvme_with_commits_bytes = planned + (out->second_bytes > 0 ? 0 : out->kept_bytes);
    out->nvme_without_commits_bytes = planned - out->second_bytes;
    out->nvme_with_commits_per_parameter = (double)out->nvme_with_commits_bytes / params;
    out->nvme_without_commits_per_parameter = (double)out->nvme_without_commits_bytes / params;
    out->drive_written_per_parameter = (double)out->drive_written_bytes * out->world_size / params;
}

static double over(double seconds, double bound_seconds)
{
    return bound_seconds > 0 ? seconds / bound_seconds - 1 : NAN;
}

static void derive_speed(struct setup_summary *out)
{
    double step = out->step_seconds;
    out->over_bound = over(step, out->bound_seconds);
    out->over_schedule_bound = over(step, out->schedule_bound_seconds);
    if (step <= 0)
        return;
    out->steps_per_hour = 3600 / step;
    out->tokens_per_second = (double)out->tokens_per_step / step;
    out->tflops_per_rank = out->model_flops / out->world_size / step / 1e12;
    out->hardware_tflops_per_rank = out->hardware_flops / step / 1e12;
    if (out->peak_tflops_per_rank > 0)
        out->mfu = out->tflops_per_rank / out->peak_tflops_per_rank;
    out->host_written_bytes_per_day =
        86400 / step * (double)out->drive_written_bytes * out->ranks_per_host;
    if (out->host_written_bytes_per_day > 0)
        out->drive_life_days = out->drive_endurance_bytes / out->host_written_bytes_per_day;
}

void setup_summarize(const struct setup *self, struct setup_summary *out)
{
    memset(out, 0, sizeof *out);
    summarize_job(self, out);
    summarize_memory(self, out);
    summarize_time(self, out);
    if (self->stated)
        add_machine(self->stated, out);
    derive_memory(out);
    derive_speed(out);
    setupi_summarize_waits(self, out);
    setupi_why_not_run(self, out->machine_cannot_run);
}

int setup_plan_on(const struct job *asked, const struct setup_plan_options *options,
                  struct setup_summary *out)
{
    struct setup *setup;
    struct setup_options inputs = {.local_world = options->local_world,
                                   .machine = options->machine,
                                   .is_described = options->is_described,
                                   .plan_watch = options->watch};
    TRY(setup_create(asked, &inputs, &setup));
    setup_summarize(setup, out);
    setup_destroy(setup);
    return 0;
}
