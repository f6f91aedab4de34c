/* Compares real steps with predicted ones. See profile.h. The watch's callbacks run on the loop's
 * thread between steps; the memory that they need was allocated when the plan was made. */
#include "profile/profile.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "profile/profile_internal.h"

static_assert(IO_READ == 0 && IO_WRITE == 1, "directions index the times");

enum {
    STEPS_LEAST = 3,
    STEPS_MOST = 20,
    /* most steps that are not measured: their gradients overflowed, or they were not steady */
    STEPS_LOST_MAX = 100,
    SECONDS_WANTED = 30,
};

const char *profile_resource_name(enum profile_resource resource)
{
    static const char *const names[PROFILE_RESOURCE_COUNT] = {
        [PROFILE_DRIVES] = "drives", [PROFILE_H2D] = "h2d",     [PROFILE_D2H] = "d2h",
        [PROFILE_COMM] = "comm",     [PROFILE_CORES] = "cores", [PROFILE_DEVICE] = "device",
        [PROFILE_SYNC] = "sync"};
    return names[resource];
}

/* ---- busy time ---- */

static enum profile_resource busiest_resource(const double seconds[PROFILE_RESOURCE_COUNT])
{
    int busiest = 0;
    for (int i = 0; i < PROFILE_RESOURCE_COUNT; i++)
        if (seconds[i] > seconds[busiest])
            busiest = i;
    return (enum profile_resource)busiest;
}

static enum profile_resource resource_of(uint8_t kind, bool device_is_cpu)
{
    switch ((enum lane_kind)kind) {
    case LANE_READ:
    case LANE_WRITE:
        return PROFILE_DRIVES;
    case LANE_H2D:
        return PROFILE_H2D;
    case LANE_D2H:
        return PROFILE_D2H;
    case LANE_COMM:
        return PROFILE_COMM;
    case LANE_COMPUTE:
        return device_is_cpu ? PROFILE_CORES : PROFILE_DEVICE;
    case LANE_UPDATE:
        return PROFILE_CORES;
    default:
        return PROFILE_SYNC;
    }
}

static int by_start(const void *left, const void *right)
{
    const struct profilei_span *a = left, *b = right;
    return a->start_ns < b->start_ns ? -1 : a->start_ns > b->start_ns;
}

/* The length of the union of the spans. Sorts the spans. */
static double union_seconds(struct profilei_span *spans, uint64_t count)
{
    uint64_t busy_ns = 0, covered_ns = 0;
    qsort(spans, count, sizeof *spans, by_start);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t from_ns = size_max(spans[i].start_ns, covered_ns);
        busy_ns += spans[i].end_ns > from_ns ? spans[i].end_ns - from_ns : 0;
        covered_ns = size_max(covered_ns, spans[i].end_ns);
    }
    return (double)busy_ns * 1e-9;
}

void profilei_predict(const program *prog, bool device_is_cpu, struct profilei_span *spans,
                      double lanes[LANE_COUNT], double resources[PROFILE_RESOURCE_COUNT])
{
    for (int pass = 0; pass < LANE_COUNT + PROFILE_RESOURCE_COUNT; pass++) {
        uint64_t count = 0;
        for (uint64_t i = 0; i < prog->op_count; i++) {
            const op *item = &prog->ops[i];
            bool belongs = pass < LANE_COUNT ? item->lane == pass
                                             : resource_of(item->lane, device_is_cpu) ==
                                                   (enum profile_resource)(pass - LANE_COUNT);
            if (belongs)
                spans[count++] =
                    (struct profilei_span){item->predicted_start_ns, item->predicted_end_ns};
        }
        double seconds = union_seconds(spans, count);
        if (pass < LANE_COUNT)
            lanes[pass] = seconds;
        else
            resources[pass - LANE_COUNT] = seconds;
    }
}

/* ---- callbacks of the watch ---- */

/* Adds a step that counts to the measurements: a steady step whose update is applied. */
static void note_step(profile *self, const struct engine *engine,
                      const struct setup_watched_step *step)
{
    const trace *ring = &engine->ring;
    struct profilei_step *to = &self->steps[self->measured_count++];
    to->seconds = step->seconds;
    for (int i = 0; i < LANE_COUNT; i++) {
        to->lane_seconds[i] = (double)step->totals->lanes[i].busy_ns * 1e-9;
        to->stall_seconds[i] = (double)step->totals->lanes[i].stall_ns * 1e-9;
        to->lane_bytes[i] = step->totals->lanes[i].bytes;
        to->spared_bytes[i] = step->totals->lanes[i].spared_bytes;
    }
    self->out->expert_passes += (double)(engine->expert_passes - self->passes_seen);
    self->out->expert_passes_hit += (double)(engine->expert_passes_hit - self->passes_hit_seen);
    for (int r = 0; r < PROFILE_RESOURCE_COUNT; r++) {
        uint64_t count = 0;
        for (uint64_t i = step->events_begin; i < ring->written; i++) {
            const trace_event *event = &ring->events[i & (ring->capacity - 1)];
            if (resource_of(event->lane, self->is_cpu) == (enum profile_resource)r &&
                count < self->span_capacity)
                self->spans[count++] = (struct profilei_span){event->start_ns, event->end_ns};
        }
        to->resource_seconds[r] = union_seconds(self->spans, count);
    }
    for (uint64_t i = step->events_begin; i < ring->written; i++) {
        const trace_event *event = &ring->events[i & (ring->capacity - 1)];
        if (event->unit < self->unit_count && event->stall_lane < LANE_COUNT)
            self->units[event->unit].stall_seconds[event->stall_lane] +=
                (double)event->stall_ns * 1e-9;
    }
}

/* Adds the transfers of each drive since the last call if the step counts, else drops them. */
static void note_drives(profile *self, const struct engine *engine, bool counts)
{
    if (!engine->transport)
        return;
    struct profile_summary *out = self->out;
    out->drive_count = counts ? engine->disk->drive_count : out->drive_count;
    for (uint32_t d = 0; counts && d < out->drive_count; d++) {
        snprintf(out->drives[d].path, sizeof out->drives[d].path, "%s",
                 engine->setup->drives[d].path);
        for (int way = 0; way < 2; way++)
            io_latency_merge(&self->latencies[d][way],
                             io_get_latency(engine->transport, d, (enum io_direction)way));
    }
    io_clear_latencies(engine->transport);
}

/* Decides how many steps to measure when the first one is known, and sets the job's last step,
 * which the loop and the live line use. */
static void decide_end(profile *self)
{
    if (self->wanted == 0) {
        double steps = ceil(SECONDS_WANTED / fmax(self->steps[0].seconds, 1e-6));
        self->wanted = (uint64_t)fmin(fmax(steps, STEPS_LEAST), STEPS_MOST);
    }
    self->own->run.steps = self->seen_count + self->wanted - self->measured_count;
}

static int on_step(void *user, const struct engine *engine, const struct setup_watched_step *step)
{
    profile *self = user;
    self->seen_count++;
    bool is_steady = step->prog->kind == PROGRAM_STEADY;
    /* The first steady step does not count, because it touches memory and files for the first
     * time. */
    bool counts = is_steady && !step->skipped && self->taken_count++ > 0;
    note_drives(self, engine, counts);
    if (counts) {
        note_step(self, engine, step);
        decide_end(self);
    }
    self->passes_seen = engine->expert_passes;
    self->passes_hit_seen = engine->expert_passes_hit;
    if (counts)
        return 0;
    if (self->seen_count - self->measured_count > STEPS_LOST_MAX)
        return err_set(
            ERR_DIVERGED,
            "no step could be measured: the gradients overflowed in nearly all of %" PRIu64
            " steps; lower the learning rate",
            self->seen_count);
    self->own->run.steps++; /* this step was not measured: one more */
    return 0;
}

/* A rate that the machine file states; 0 if it is the plan's default. */
static double known_rate(double planned, double by_default)
{
    return planned != by_default ? planned : 0;
}

static int note_ceilings(profile *self, const struct setup *setup)
{
    const plan_machine *now = &setup->plan.machine;
    plan_machine bare;
    struct setup *without = mem_alloc(1, sizeof *without, "profile");
    if (!without)
        return -ENOMEM;
    *without = *setup; /* borrows everything */
    without->stated = NULL;
    setup_machine_figures(without, &bare);
    mem_free(without);
    struct profile_lane *lanes = self->out->lanes;
    lanes[LANE_READ].ceiling =
        known_rate(now->drive_read_bytes_per_second, bare.drive_read_bytes_per_second);
    lanes[LANE_WRITE].ceiling =
        known_rate(now->drive_write_bytes_per_second, bare.drive_write_bytes_per_second);
    lanes[LANE_H2D].ceiling = known_rate(now->h2d_bytes_per_second, bare.h2d_bytes_per_second);
    lanes[LANE_D2H].ceiling = known_rate(now->d2h_bytes_per_second, bare.d2h_bytes_per_second);
    lanes[LANE_COMM].ceiling = known_rate(now->comm_bytes_per_second, bare.comm_bytes_per_second);
    return 0;
}

static int on_setup(void *user, const struct setup *setup)
{
    profile *self = user;
    const program *steady = &setup->set.programs[PROGRAM_STEADY];
    struct profile_summary *out = self->out;
    double lanes[LANE_COUNT];
    self->machine = setup->plan.machine;
    self->is_cpu = setup->gpu == NULL;
    self->is_gpu_budget_open = setup->gpu && self->own->tiers.device_budget == 0;
    self->unit_count = setup->net->unit_count;
    self->span_capacity = steady->op_count;
    self->units = mem_alloc(self->unit_count, sizeof *self->units, "profile");
    self->unit_names = mem_alloc(self->unit_count, sizeof *self->unit_names, "profile");
    self->spans = mem_alloc(self->span_capacity, sizeof *self->spans, "profile");
    self->latencies = mem_alloc(DRIVES_MAX, sizeof *self->latencies, "profile");
    if (!self->units || !self->unit_names || !self->spans || !self->latencies)
        return -ENOMEM;
    for (uint32_t u = 0; u < self->unit_count; u++)
        snprintf(self->unit_names[u], sizeof self->unit_names[u], "%.63s",
                 setup->net->units[u].name);
    setup_summarize(setup, &out->plan);
    out->predicted_seconds = (double)steady->predicted_ns * 1e-9;
    profilei_predict(steady, self->is_cpu, self->spans, lanes, out->predicted_resource_seconds);
    for (int i = 0; i < LANE_COUNT; i++) {
        out->lanes[i].predicted_seconds = lanes[i];
        out->lanes[i].predicted_bytes = steady->lane_bytes[i];
        out->lanes[i].predicted_spared_bytes = out->plan.lane_spared_bytes[i];
    }
    out->predicted_binding = setup_busiest_lane(lanes);
    out->predicted_resource = busiest_resource(out->predicted_resource_seconds);
    if (self->options->of_ranks > 0)
        out->comm_bytes_per_second = self->machine.comm_bytes_per_second;
    out->is_compute_timed =
        self->options->only_transfers && self->machine.device_flops_per_second < WATCH_NO_TIME;
    if (self->options->machine)
        TRY(note_ceilings(self, setup));
    return self->options->no_advice ? 0 : profilei_place(self, setup);
}

/* ---- the run ---- */

/* Changes the job to what the rank runs, and checks the options for ranks that are not there. */
static int scale_job(profile *self)
{
    const struct profile_options *options = self->options;
    model_spec *own = &self->own->model;
    uint64_t divisor = options->scale_down ? options->scale_down : 1;
    self->out->block_count = self->out->block_count_asked = own->num_layers;
    if (options->of_ranks == 0) {
        if (divisor > 1 || options->only_transfers || options->comm_bytes_per_second > 0)
            return err_set(ERR_USAGE, "a scale-down, transfers alone and a speed of collectives "
                                      "are for one rank of several (--as-rank R --of N)");
        return 0;
    }
    if (options->as_rank >= options->of_ranks)
        return err_set(ERR_USAGE, "there is no rank %u of %u: they count from 0", options->as_rank,
                       options->of_ranks);
    if (self->own->world != options->of_ranks)
        return err_set(ERR_INTERNAL, "the job was read for %u ranks, not for %u", self->own->world,
                       options->of_ranks);
    if (divisor > own->num_layers || own->num_layers % divisor != 0)
        return err_set(ERR_USAGE,
                       "a scale-down of %" PRIu64 " does not divide the model's %" PRIu64 " blocks",
                       divisor, own->num_layers);
    own->num_layers /= divisor;
    self->out->block_count = own->num_layers;
    self->out->as_rank = options->as_rank;
    self->out->of_ranks = options->of_ranks;
    self->out->scale_down = (uint32_t)divisor;
    self->out->only_transfers = options->only_transfers;
    return 0;
}

/* Makes the trial's job: it only makes steps. */
static int prepare_job(profile *self)
{
    self->own = mem_alloc(1, sizeof *self->own, "profile");
    self->placed = mem_alloc(1, sizeof *self->placed, "profile");
    if (!self->own || !self->placed)
        return -ENOMEM;
    job *own = self->own;
    *own = *self->options->job;
    TRY(scale_job(self));
    own->run.eval_every = own->run.commit_every = own->run.keep_every = 0;
    own->run.keep_count = 0;
    own->data.valid.count = 0;
    if (own->type == DTYPE_FP16 && own->fp16.loss_scale == 0)
        own->fp16.loss_scale = 1; /* a dynamic scale begins with steps that overflow */
    self->out->is_random_data = own->data.train.count == 0;
    self->wanted = self->options->steps;
    self->capacity = self->wanted ? self->wanted : STEPS_MOST;
    /* For now. Each step that is not measured adds one. */
    own->run.steps = self->wanted ? self->wanted : STEPS_LEAST;
    self->steps = mem_alloc(self->capacity, sizeof *self->steps, "profile");
    return self->steps ? 0 : -ENOMEM;
}

static int run_trial(profile *self)
{
    const struct profile_options *options = self->options;
    struct train_summary *summary = mem_alloc(1, sizeof *summary, "profile");
    if (!summary)
        return -ENOMEM;
    self->watch = (struct setup_watch){
        .comm_bytes_per_second = options->comm_bytes_per_second,
        .only_transfers = options->only_transfers,
        .on_setup = on_setup,
        .on_step = on_step,
        .user = self,
    };
    struct train_options run = {
        .job = self->own,
        .machine = options->machine,
        .watch = &self->watch,
        .is_trial = true,
        .stop = options->stop,
        .on_plan = options->on_plan,
        .on_step = options->on_step,
        .user = options->user,
    };
    int rc = 0;
    if (options->of_ranks > 0)
        rc = comm_pretend(options->as_rank, options->of_ranks, &run.comm);
    if (rc == 0)
        rc = train_run(&run, summary);
    memcpy(self->out->peak_bytes, summary->ranks[0].arena_bytes, sizeof self->out->peak_bytes);
    self->out->resident_bytes_max = summary->resident_bytes_max;
    self->out->gpu_used_bytes = summary->gpu_used_bytes;
    err_record first;
    err_save(&first, rc);
    comm_leave(run.comm, 0);
    mem_free(summary);
    return rc < 0 ? err_restore(&first) : rc;
}

/* ---- sums of the measurements ---- */

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

/* The median of one member over all measured steps; `first` is that member of the first step.
 * `scratch` holds as many doubles as steps. */
static double median_of(const profile *self, const double *first, double *scratch)
{
    const unsigned char *at = (const unsigned char *)first;
    uint64_t count = self->measured_count;
    for (uint64_t i = 0; i < count; i++, at += sizeof *self->steps)
        memcpy(&scratch[i], at, sizeof *scratch);
    qsort(scratch, count, sizeof *scratch, by_value);
    return (scratch[(count - 1) / 2] + scratch[count / 2]) / 2;
}

static void sum_units(profile *self)
{
    struct profile_summary *out = self->out;
    for (uint32_t u = 0; u < self->unit_count; u++) {
        struct profile_unit unit = {.lane = LANE_COUNT};
        double most = 0;
        for (int i = 0; i < LANE_COUNT; i++) {
            double seconds = self->units[u].stall_seconds[i] / (double)self->measured_count;
            unit.stall_seconds += seconds;
            if (seconds > most) {
                most = seconds;
                unit.lane = (uint8_t)i;
            }
        }
        if (unit.lane == LANE_COUNT)
            continue;
        memcpy(unit.name, self->unit_names[u], sizeof unit.name);
        uint32_t at = out->unit_count;
        while (at > 0 && out->units[at - 1].stall_seconds < unit.stall_seconds)
            at--;
        if (at == PROFILE_UNITS_SHOWN)
            continue;
        out->unit_count = (uint32_t)size_min(out->unit_count + 1, PROFILE_UNITS_SHOWN);
        memmove(&out->units[at + 1], &out->units[at],
                (out->unit_count - at - 1) * sizeof *out->units);
        out->units[at] = unit;
    }
}

static double seconds_of(uint64_t ns)
{
    return (double)ns * 1e-9;
}

static struct profile_times times_of(const io_latency *latency)
{
    return (struct profile_times){.count = latency->count,
                                  .p50 = seconds_of(io_latency_quantile_ns(latency, 0.50)),
                                  .p95 = seconds_of(io_latency_quantile_ns(latency, 0.95)),
                                  .p99 = seconds_of(io_latency_quantile_ns(latency, 0.99)),
                                  .max = seconds_of(latency->max_ns)};
}

static void sum_drives(profile *self)
{
    struct profile_summary *out = self->out;
    for (uint32_t d = 0; d < out->drive_count; d++)
        for (int way = 0; way < 2; way++)
            out->drives[d].times[way] = times_of(&self->latencies[d][way]);
}

static int sum_up(profile *self)
{
    struct profile_summary *out = self->out;
    double *scratch = mem_alloc(self->measured_count, sizeof *scratch, "profile");
    double lanes[LANE_COUNT];
    if (!scratch)
        return -ENOMEM;
    const struct profilei_step *first = self->steps;
    out->steps = self->measured_count;
    out->warmup_steps = self->seen_count - self->measured_count;
    out->measured_seconds = median_of(self, &first->seconds, scratch);
    out->measured_fastest = scratch[0];
    out->measured_slowest = scratch[self->measured_count - 1];
    for (int i = 0; i < LANE_COUNT; i++) {
        out->lanes[i].measured_bytes = self->steps[self->measured_count - 1].lane_bytes[i];
        out->lanes[i].measured_seconds = lanes[i] =
            median_of(self, &first->lane_seconds[i], scratch);
        out->lanes[i].stall_seconds = median_of(self, &first->stall_seconds[i], scratch);
        for (uint64_t s = 0; s < self->measured_count; s++)
            out->lanes[i].measured_spared_bytes +=
                (double)self->steps[s].spared_bytes[i] / (double)self->measured_count;
    }
    out->expert_passes /= (double)self->measured_count;
    out->expert_passes_hit /= (double)self->measured_count;
    for (int r = 0; r < PROFILE_RESOURCE_COUNT; r++)
        out->measured_resource_seconds[r] = median_of(self, &first->resource_seconds[r], scratch);
    out->measured_binding = setup_busiest_lane(lanes);
    out->measured_resource = busiest_resource(out->measured_resource_seconds);
    sum_units(self);
    sum_drives(self);
    mem_free(scratch);
    return 0;
}

int profile_run(const struct profile_options *options, struct profile_summary *out)
{
    memset(out, 0, sizeof *out);
    if (options->steps > PROFILE_STEPS_MAX)
        return err_set(ERR_USAGE, "at most %d steps are measured, not %" PRIu64, PROFILE_STEPS_MAX,
                       options->steps);
    profile *self = mem_alloc(1, sizeof *self, "profile");
    if (!self)
        return -ENOMEM;
    self->options = options;
    self->out = out;
    int rc = prepare_job(self);
    if (rc == 0)
        rc = profilei_make_places(self);
    if (rc == 0)
        rc = run_trial(self);
    err_record first;
    err_save(&first, rc);
    profilei_remove_places(self);
    if (rc == 0)
        rc = sum_up(self);
    if (rc == 0 && !options->no_advice)
        profilei_advise(self);
    mem_free(self->own);
    mem_free(self->placed);
    mem_free(self->steps);
    mem_free(self->spans);
    mem_free(self->latencies);
    mem_free(self->units);
    mem_free(self->unit_names);
    mem_free(self->drive_bases);
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        mem_free(self->homes[kind]);
    mem_free(self);
    return first.code < 0 ? err_restore(&first) : rc;
}
