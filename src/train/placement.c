/* Where each state rests: the job's words, and what is left automatic tried from the dearest tiers to the
 * cheapest. Nothing is allocated but plans; every attempt is a whole compilation. */
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "train/train_internal.h"

static const enum job_kind job_kind_of[STATE_KIND_COUNT] = {
    [STATE_PARAMS] = JOB_PARAMS,
    [STATE_GRADS] = JOB_GRADS,
    [STATE_OPTIMIZER] = JOB_OPTIMIZER,
    [STATE_ACTIVATIONS] = JOB_ACTIVATIONS,
    [STATE_INNER_ACTIVATIONS] = JOB_INNER_ACTIVATIONS,
};

static uint8_t arena_of_tier(enum job_tier tier, uint8_t automatic)
{
    switch (tier) {
    case JOB_TIER_DEVICE:
        return ARENA_DEVICE;
    case JOB_TIER_HOST:
        return ARENA_HOST;
    case JOB_TIER_NVME:
        return ARENA_NVME;
    case JOB_TIER_RECOMPUTE:
        return ARENA_COUNT;
    case JOB_TIER_AUTO:
        break;
    }
    return automatic;
}

static enum plan_update choose_update(const traini_setup *self)
{
    switch (self->job->schedule.update) {
    case JOB_UPDATE_AFTER_BACKWARD:
        return PLAN_UPDATE_AFTER_BACKWARD;
    case JOB_UPDATE_IN_NEXT_FORWARD:
        return PLAN_UPDATE_IN_NEXT_FORWARD;
    case JOB_UPDATE_IN_BACKWARD:
        return PLAN_UPDATE_IN_BACKWARD;
    case JOB_UPDATE_DELAYED_ONE_STEP:
        return PLAN_UPDATE_DELAYED_ONE_STEP;
    case JOB_UPDATE_AUTO:
        break;
    }
    for (uint32_t u = 0; u < self->net->unit_count; u++)
        if (self->homes[STATE_OPTIMIZER][u] != ARENA_DEVICE)
            return PLAN_UPDATE_IN_NEXT_FORWARD;
    return PLAN_UPDATE_AFTER_BACKWARD;
}

/* Homes from the job's words, with `automatic` for the kinds left to us. */
static int place(traini_setup *self, const uint8_t automatic[STATE_KIND_COUNT])
{
    const struct job *asked = self->job;
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        enum job_kind named = job_kind_of[kind];
        uint8_t home = arena_of_tier(asked->tiers.place[named], automatic[kind]);
        memset(self->homes[kind], home, self->net->unit_count);
        for (uint32_t r = 0; r < asked->tiers.rule_count; r++) {
            const struct job_rule *rule = &asked->tiers.rules[r];
            if (rule->kind != named)
                continue;
            if (rule->unit_last != UINT32_MAX && rule->unit_last >= self->net->unit_count)
                return err_set(ERR_CONFIG,
                               "tiers.place.rules: a rule names units %u to %u, but the model has "
                               "units 0 to %u",
                               rule->unit_first, rule->unit_last, self->net->unit_count - 1);
            for (uint32_t u = rule->unit_first; u <= rule->unit_last && u < self->net->unit_count;
                 u++)
                self->homes[kind][u] = arena_of_tier(rule->tier, automatic[kind]);
        }
    }
    self->plan.update = choose_update(self);
    return 0;
}

/* Placements for what is left automatic, dearest tiers first; the first that fits is taken. Inner
 * activations are recomputed at first. */
static const uint8_t placements[][STATE_KIND_COUNT] = {
    /* params, grads, optimizer, activations, inner activations */
    {ARENA_DEVICE, ARENA_DEVICE, ARENA_DEVICE, ARENA_DEVICE, ARENA_COUNT},
    {ARENA_DEVICE, ARENA_DEVICE, ARENA_HOST, ARENA_DEVICE, ARENA_COUNT},
    {ARENA_DEVICE, ARENA_HOST, ARENA_HOST, ARENA_DEVICE, ARENA_COUNT},
    {ARENA_HOST, ARENA_HOST, ARENA_HOST, ARENA_DEVICE, ARENA_COUNT},
    {ARENA_HOST, ARENA_HOST, ARENA_HOST, ARENA_HOST, ARENA_COUNT},
    {ARENA_DEVICE, ARENA_HOST, ARENA_NVME, ARENA_DEVICE, ARENA_COUNT},
    {ARENA_HOST, ARENA_HOST, ARENA_NVME, ARENA_DEVICE, ARENA_COUNT},
    {ARENA_HOST, ARENA_HOST, ARENA_NVME, ARENA_HOST, ARENA_COUNT},
    {ARENA_NVME, ARENA_HOST, ARENA_NVME, ARENA_HOST, ARENA_COUNT},
    {ARENA_NVME, ARENA_NVME, ARENA_NVME, ARENA_HOST, ARENA_COUNT},
    {ARENA_NVME, ARENA_NVME, ARENA_NVME, ARENA_NVME, ARENA_COUNT},
};

/* The placement taken, by index, or ERR_NO_FIT: with advice, as plan_compile gives it, or without. */
static int compile_placed(traini_setup *self, bool advises, size_t *taken)
{
    uint8_t tried[STATE_KIND_COUNT];
    memset(tried, UINT8_MAX, sizeof tried);
    bool has_drives = self->job->tiers.nvme_count > 0;
    int rc = ERR_NO_FIT;
    self->plan.no_advice = true; /* until it is known which placement is the last */
    for (size_t i = 0; i < sizeof placements / sizeof placements[0] && rc == ERR_NO_FIT; i++) {
        uint8_t wanted[STATE_KIND_COUNT];
        bool differs = false, uses_drives = false;
        for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
            enum job_tier named = self->job->tiers.place[job_kind_of[kind]];
            wanted[kind] = arena_of_tier(named, placements[i][kind]);
            uses_drives = uses_drives || (named == JOB_TIER_AUTO && wanted[kind] == ARENA_NVME);
            differs = differs || wanted[kind] != tried[kind];
        }
        if (!differs || (uses_drives && !has_drives))
            continue;
        memcpy(tried, wanted, sizeof tried);
        TRY(place(self, placements[i]));
        rc = plan_compile(&self->plan, &self->set);
        *taken = i;
    }
    self->plan.no_advice = false;
    if (self->job->micro_batch == 1)
        self->plan.device_advice =
            "a lower model.seq_length needs less: a micro-batch is one sequence "
            "already, and none is split over ranks";
    return rc == ERR_NO_FIT && advises ? plan_compile(&self->plan, &self->set) : rc;
}

/* Keeps the inner activations of the last `count` stages before the head on the tier, where the job
 * leaves them automatic. */
static void keep_last(traini_setup *self, uint32_t count, uint8_t tier)
{
    const model *net = self->net;
    for (uint32_t back = 0; back < count && back + 2 < net->stage_count; back++) {
        uint32_t unit = net->stages[net->stage_count - 2 - back].units[0];
        if (self->homes[STATE_INNER_ACTIVATIONS][unit] == ARENA_COUNT)
            self->homes[STATE_INNER_ACTIVATIONS][unit] = tier;
    }
}

/* Which stages might keep their inner activations: the device holds those nearest the turn, whose time
 * there is shortest; the host holds all or none. */
static const struct {
    double share;
    uint8_t arena;
} keepings[] = {
    {1.0, ARENA_DEVICE},
    {0.5, ARENA_DEVICE},
    {0.25, ARENA_DEVICE},
    {1.0, ARENA_HOST},
};

/* A shorter predicted step by less than this does not justify the memory. */
static const double keep_gain = 0.02;

/* Whether homes of the last `count` stages' inner activations can lie in the arena beside those that are
 * there; what else is needed only a compilation tells. */
static bool may_keep(const traini_setup *self, uint32_t count, uint8_t tier)
{
    const plan_job *plan = &self->plan;
    uint64_t homes = 0, live = plan->order == PLAN_BATCH_MAJOR ? 1 : plan->micro_batch_count;
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++)
        homes += self->set.home_bytes[kind][tier];
    for (uint32_t back = 0; back < count && back + 2 < plan->stage_count; back++)
        homes += live * plan->stages[plan->stage_count - 2 - back].saved_bytes;
    return homes <= plan->budget_bytes[tier];
}

/* Tries to keep inner activations in place of recomputing them; the shortest predicted step wins. The
 * tiles stay as they were chosen. */
static int choose_kept(traini_setup *self, size_t taken)
{
    bool is_automatic = self->job->tiers.place[JOB_INNER_ACTIVATIONS] == JOB_TIER_AUTO;
    if (!is_automatic || self->plan.only_eval)
        return 0;
    for (uint32_t r = 0; r < self->job->tiers.rule_count; r++)
        if (self->job->tiers.rules[r].kind == JOB_INNER_ACTIVATIONS)
            return 0; /* the user decides unit by unit */
    uint32_t blocks = self->net->stage_count - 2;
    uint64_t tile_elems = self->plan.tile_elems;
    self->plan.tile_elems = self->set.tile_elems;
    self->plan.no_advice = true;
    double best = traini_mean_step_ns(&self->plan, &self->set) * (1 - keep_gain);
    for (size_t i = 0; i < sizeof keepings / sizeof keepings[0]; i++) {
        plan_set trial;
        uint32_t count = (uint32_t)ceil(keepings[i].share * blocks);
        if (!may_keep(self, count, keepings[i].arena))
            continue;
        TRY(place(self, placements[taken]));
        keep_last(self, count, keepings[i].arena);
        int rc = plan_compile(&self->plan, &trial);
        if (rc == ERR_NO_FIT)
            continue;
        TRY(rc);
        double predicted = traini_mean_step_ns(&self->plan, &trial);
        if (predicted < best) {
            plan_set_fini(&self->set);
            self->set = trial;
            self->kept_arena = keepings[i].arena;
            self->kept_stages = count;
            break; /* further ones keep less, or farther away */
        }
        plan_set_fini(&trial);
    }
    self->plan.tile_elems = tile_elems;
    self->plan.no_advice = false;
    TRY(place(self, placements[taken]));
    keep_last(self, self->kept_stages, self->kept_arena);
    return 0;
}

/* Whether a unit has such activations at all: they go by the first unit of a stage. */
static bool has_activations(const traini_setup *self, uint32_t unit, enum job_kind kind)
{
    for (uint32_t s = 0; s < self->plan.stage_count; s++) {
        const plan_stage *stage = &self->plan.stages[s];
        if (stage->passes[PLAN_FORWARD][0].units[0] == unit)
            return kind == JOB_ACTIVATIONS ? stage->has_input && stage->has_output
                                           : stage->saved_bytes > 0;
    }
    return false;
}

/* Rules that place what is not there are named. */
static void warn_of_idle_rules(const traini_setup *self)
{
    for (uint32_t r = 0; r < self->job->tiers.rule_count; r++) {
        const struct job_rule *rule = &self->job->tiers.rules[r];
        bool works = rule->kind != JOB_ACTIVATIONS && rule->kind != JOB_INNER_ACTIVATIONS;
        for (uint32_t u = rule->unit_first; u <= rule->unit_last && u < self->net->unit_count; u++)
            works = works || has_activations(self, u, rule->kind);
        if (!works)
            log_warn("tiers.place.rules: a rule places %s of units %u to %u, which have none of "
                     "their own (those of a block go by its first unit); it has no effect",
                     rule->kind == JOB_ACTIVATIONS ? "activations" : "inner activations",
                     rule->unit_first, rule->unit_last);
    }
}

/* A refusal, with the word that the job would fit in the other order where that is so. */
static int advise_order(traini_setup *self, int refused)
{
    err_record first;
    err_save(&first, refused);
    size_t taken = 0;
    if (self->plan.order == PLAN_BATCH_MAJOR || self->plan.micro_batch_count == 1)
        return refused;
    self->plan.order = PLAN_BATCH_MAJOR;
    int rc = compile_placed(self, false, &taken);
    self->plan.order = PLAN_LAYER_MAJOR;
    if (rc < 0)
        return err_restore(&first);
    plan_set_fini(&self->set);
    return err_set(refused, "%s; or as it is with schedule.order=batch_major", first.text);
}

int traini_place_and_compile(traini_setup *self)
{
    size_t taken = 0;
    int rc = compile_placed(self, true, &taken);
    if (rc == ERR_NO_FIT)
        return advise_order(self, rc);
    TRY(rc);
    warn_of_idle_rules(self);
    return choose_kept(self, taken);
}
