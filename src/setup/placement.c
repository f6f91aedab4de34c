/* Decides where each state rests: as the job says, and as src/plan chooses what the job leaves
 * open. */
#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "plan/plan.h"
#include "setup/setup_internal.h"

/* True if the program computes a forward: an optimizer alone is a module that has none. */
static bool is_computed(const module_spec *module)
{
    for (uint32_t s = 0; s < module->stage_count; s++)
        if (module->stages[s].forward.is_computed)
            return true;
    return false;
}

/* The update that the job gives; if it leaves the choice, the one to begin the search with. */
static enum update asked_update(const struct setup *self)
{
    enum update given = self->job->schedule.update;
    return given == UPDATE_AUTO ? UPDATE_AFTER_BACKWARD : given;
}

/* True if the rule's words stand in a row in the unit's name, as "3.experts" does in
 * "block.3.experts.0". */
static bool has_words(const char *name, const char *words)
{
    size_t bytes = strlen(words);
    for (const char *at = name; at != NULL; at = strchr(at, '.'), at = at ? at + 1 : NULL)
        if (strncmp(at, words, bytes) == 0 && (at[bytes] == '.' || at[bytes] == '\0'))
            return true;
    return false;
}

/* True if a rule names a unit of its range. */
static bool names_unit(const struct setup *self, const struct job_rule *rule, uint32_t unit)
{
    return rule->name[0] == '\0' || has_words(self->net->units[unit].name, rule->name);
}

/* Reads the homes that the job asks for, [unit_count] per kind. */
static int read_wishes(const struct setup *self, uint8_t *wanted[STATE_KIND_COUNT])
{
    const struct job *asked = self->job;
    uint32_t units = self->net->unit_count;
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        memset(wanted[kind], asked->tiers.place[kind], units);
        for (uint32_t r = 0; r < asked->tiers.rule_count; r++) {
            const struct job_rule *rule = &asked->tiers.rules[r];
            if ((int)rule->kind != kind)
                continue;
            if (rule->unit_last != UINT32_MAX && rule->unit_last >= units)
                return err_set(ERR_CONFIG,
                               "tiers.place.rules: a rule names units %u to %u, but the model has "
                               "units 0 to %u",
                               rule->unit_first, rule->unit_last, units - 1);
            bool found = false;
            for (uint32_t u = rule->unit_first; u <= rule->unit_last && u < units; u++)
                if (names_unit(self, rule, u)) {
                    wanted[kind][u] = (uint8_t)rule->tier;
                    found = true;
                }
            if (!found)
                return err_set(ERR_CONFIG,
                               "tiers.place.rules: a rule names units \"%s\", but no unit of the "
                               "model has these words in its name; another one is %s",
                               rule->name, self->net->units[units / 2].name);
        }
    }
    return 0;
}

/* A stage in parts keeps all of its inner activations or none: a selective value means all of them,
 * on the same tier. */
static void keep_parts_whole(const struct setup *self, uint8_t *wanted)
{
    bool means_all = false;
    for (uint32_t s = 0; s < self->plan.stage_count; s++) {
        const struct stage *stage = &self->plan.stages[s];
        for (uint32_t p = 0; stage->is_cut && p < stage->pass_count[PHASE_FORWARD]; p++) {
            uint8_t *tier = &wanted[stage->passes[PHASE_FORWARD][p].units[0]];
            means_all = means_all || kept_at_home(*tier) == KEPT_SELECTIVE;
            *tier = (uint8_t)tier_of_home(*tier);
        }
    }
    if (means_all)
        log_info("tiers.place: units in parts keep all of their inner activations, not some");
}

/* The update of units with matrices has no kernels on a GPU: their state rests elsewhere. */
static int keep_matrices_off(const struct setup *self, uint8_t *wanted)
{
    if (!self->gpu && !self->described_gpu)
        return 0;
    for (uint32_t u = 0; u < self->net->unit_count; u++) {
        if (!plan_has_matrices(&self->plan, u))
            continue;
        if (wanted[u] == TIER_DEVICE)
            return err_set(ERR_CONFIG,
                           "tiers.place places the optimizer state of %s on the device, but Muon "
                           "updates on the CPU alone: place it on host or nvme, or leave it open",
                           self->net->units[u].name);
        if (wanted[u] == TIER_AUTO)
            wanted[u] = TIER_HOST;
    }
    return 0;
}

/* True if a unit has activations of this kind. They belong to the first unit of a stage. */
static bool has_activations(const struct setup *self, uint32_t unit, enum state_kind kind)
{
    for (uint32_t s = 0; s < self->plan.stage_count; s++) {
        const struct stage *stage = &self->plan.stages[s];
        if (stage->passes[PHASE_FORWARD][0].units[0] == unit)
            return kind == STATE_ACTIVATIONS ? s > 0 && s + 1 < self->plan.stage_count
                                             : stage->saved_bytes > 0;
    }
    return false;
}

/* Warns about rules that place activations that do not exist. */
static void warn_of_idle_rules(const struct setup *self)
{
    for (uint32_t r = 0; r < self->job->tiers.rule_count; r++) {
        const struct job_rule *rule = &self->job->tiers.rules[r];
        bool works = rule->kind != STATE_ACTIVATIONS && rule->kind != STATE_INNER_ACTIVATIONS;
        for (uint32_t u = rule->unit_first; u <= rule->unit_last && u < self->net->unit_count; u++)
            works = works || (names_unit(self, rule, u) && has_activations(self, u, rule->kind));
        if (!works)
            log_warn("tiers.place.rules: rule %u places %s of units that have none of their own "
                     "(those of a block go by its first unit); it has no effect",
                     r, state_kind_name(rule->kind));
    }
}

/* True if a pass of a training step reads the unit's params. The last stage's forward is only part
 * of evaluations. */
static bool is_read(const struct setup *self, uint32_t unit)
{
    const model *net = self->net;
    for (uint32_t s = 0; s < net->stage_count; s++)
        for (int phase = s + 1 < net->stage_count ? PHASE_FORWARD : PHASE_BACKWARD;
             phase < PHASE_COUNT; phase++)
            for (uint32_t p = 0; p < net->stages[s].pass_count[phase]; p++) {
                const struct pass *pass = &net->stages[s].passes[phase][p];
                for (uint32_t i = 0; i < pass->unit_count; i++)
                    if (pass->units[i] == unit && pass->reads_params[i])
                        return true;
            }
    return false;
}

/* True if a unit that learns is read by no pass of a step. Then no update in the next forward would
 * come to it. */
static bool has_unread(const struct setup *self)
{
    for (uint32_t u = 0; u < self->plan.unit_count; u++)
        if (plan_learns(&self->plan, u) && !is_read(self, u))
            return true;
    return false;
}

/* A module some of whose params are never read has no update in the next forward. */
static int settle_update(const struct setup *self, struct plan_place_asked *question)
{
    enum update given = self->job->schedule.update;
    if (!self->net->module || !has_unread(self))
        return 0;
    if (given == UPDATE_IN_NEXT_FORWARD)
        return err_set(ERR_CONFIG, "schedule.update: a unit of model.module is read by no pass, so "
                                   "that no forward can bring its update: set it to "
                                   "after_backward or in_backward");
    question->chooses_update = false;
    return 0;
}

static int choose(struct setup *self, uint8_t *wanted[STATE_KIND_COUNT],
                  struct plan_place_found *found)
{
    const struct job *asked = self->job;
    struct plan_place_asked question = {
        .job = &self->plan,
        .chooses_order = asked->schedule.order == ORDER_FASTEST,
        .chooses_update = asked->schedule.update == UPDATE_AUTO,
        /* a step can be skipped only if all gradients are known before the first update */
        .allows_in_backward = asked->gradient_clipping == 0 && !asked->check_grad_overflow,
        .has_drives = asked->tiers.nvme_count > 0,
        .only_fits = self->only_fits,
        .only_homes = self->only_homes,
    };
    TRY(read_wishes(self, wanted));
    TRY(keep_matrices_off(self, wanted[STATE_OPTIMIZER]));
    keep_parts_whole(self, wanted[STATE_INNER_ACTIVATIONS]);
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        question.wanted[kind] = wanted[kind];
        found->homes[kind] = self->homes[kind];
    }
    self->plan.update = asked_update(self);
    TRY(settle_update(self, &question));
    if (!question.chooses_update && asked->schedule.update == UPDATE_AUTO &&
        question.allows_in_backward)
        self->plan.update = UPDATE_IN_BACKWARD;
    if (self->net->module)
        self->plan.device_advice =
            is_computed(self->net->module) ? "smaller units of the module need less" : NULL;
    else if (asked->micro_batch == 1 && !self->single)
        self->plan.device_advice =
            "a lower model.seq_length needs less: a micro-batch is one sequence "
            "already, and none is split over ranks";
    return plan_place(&question, found);
}

static void take(struct setup *self, const struct plan_place_found *found)
{
    self->set = found->set;
    self->plan.order = found->order;
    self->plan.update = found->update;
    memcpy(self->need_bytes, found->need_bytes, sizeof self->need_bytes);
    self->plan.parked_near = found->parked_near;
    self->plan.parked_on_host = found->parked_on_host;
    self->reason_count = found->reason_count;
    memcpy(self->reasons, found->reasons, sizeof self->reasons);
}

int setupi_place_and_compile(struct setup *self)
{
    uint32_t units = self->net->unit_count;
    uint8_t *wanted[STATE_KIND_COUNT];
    struct plan_place_found *found = mem_alloc(1, sizeof *found, "placement");
    wanted[0] = mem_alloc((uint64_t)STATE_KIND_COUNT * units, 1, "placement");
    for (int kind = 1; kind < STATE_KIND_COUNT && wanted[0]; kind++)
        wanted[kind] = wanted[0] + (uint64_t)kind * units;
    int rc = found && wanted[0] ? choose(self, wanted, found) : -ENOMEM;
    if (rc == 0) {
        take(self, found);
        warn_of_idle_rules(self);
    }
    mem_free(wanted[0]);
    mem_free(found);
    return rc;
}
