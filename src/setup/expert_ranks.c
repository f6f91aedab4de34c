/* Expert parallelism: whether ranks own whole experts (model.expert_parallel_size), and how much
 * either way moves. Bytes are those that a rank sends to others in a step:
 *
 *   ZeRO            for each parameter of routed experts that a rank has not: the gathers of its
 *                   working copy, and its gradient. Stage 3 gathers for the forward and for the
 *                   backward, stages 1 and 2 after the update, if there is one
 *   experts owned   rows to the experts of other ranks and results back, forward and backward, if
 *                   all choices are equally likely
 *
 * The choice "auto" is the one with fewer bytes. A run keeps the choice that it began with; its
 * record has it. */
#include <errno.h>
#include <stdlib.h>

#include "base/mem.h"
#include "setup/setup_internal.h"

static const char key[] = "model.expert_parallel_size";

/* The reason why ranks cannot own experts in this job; NULL: there is none. */
static const char *why_not(const struct setup *self, const struct setup_options *options)
{
    const struct job *asked = self->job;
    bool trains = !options->only_eval;
    if (self->gpu || self->described_gpu)
        return "rows of tokens are exchanged in host memory only, and a GPU computes: set "
               "device.backend to \"cpu\"";
    if (options->window.cache_positions > 0)
        return "generating is for one rank";
    if (asked->zero_stage == 0)
        return "zero_optimization.stage is 0, where each rank has all of the optimizer's state: "
               "set "
               "it to 1 or more";
    if (trains && asked->schedule.order == ORDER_BATCH_MAJOR && asked->accumulation > 1)
        return "schedule.order is batch_major, which reduces each micro-batch's gradient: set it "
               "to "
               "layer_major";
    return NULL;
}

/* Bytes of rows that a step sends with owned experts. */
static uint64_t rows_bytes(const struct setup *self, const model *net)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < net->pass_count; i++)
        bytes += net->passes[i].dispatched_bytes + net->passes[i].returned_bytes;
    return bytes * self->job->accumulation;
}

/* Bytes that ZeRO sends for the same units. */
static uint64_t zero_bytes(const struct setup *self, const model *net)
{
    const struct job *asked = self->job;
    uint64_t bytes = 0,
             rounds = asked->schedule.order == ORDER_BATCH_MAJOR ? asked->accumulation : 1;
    for (uint32_t u = 0; u < net->unit_count; u++) {
        if (!model_is_owned(net, u))
            continue;
        bool learns = !net->units[u].is_frozen;
        uint64_t gathers = asked->zero_stage >= 3 ? 2 * rounds : learns;
        uint64_t each = gathers * dtype_bytes(net->type) +
                        (learns ? rounds * dtype_bytes(asked->comm.wire) : 0);
        bytes += (self->ranks.world - 1) * (net->units[u].elems / self->ranks.world) * each;
    }
    return bytes;
}

/* Computes the bytes of both ways. They stay 0 if the model cannot be divided over the ranks. */
static void compare(struct setup *self, const model_spec *spec)
{
    model_spec owned = *spec;
    model *net;
    owned.expert_ranks = self->ranks.world;
    owned.owns_experts = true;
    if (model_create(&owned, self->job->type, self->job->micro_batch, &net) < 0)
        return;
    self->expert_rows_bytes = rows_bytes(self, net);
    self->expert_zero_bytes = zero_bytes(self, net);
    model_destroy(net);
}

uint64_t setup_recorded_expert_ranks(const manifest *found)
{
    char value[32];
    setupi_identity_value(found->identity, "model.expert_parallel_size=", value, sizeof value);
    return value[0] ? strtoull(value, NULL, 10) : 1;
}

int setupi_choose_expert_ranks(struct setup *self, const struct setup_options *options,
                               model_spec *spec)
{
    uint64_t asked = self->job->model.expert_parallel_size, world = self->ranks.world;
    const char *reason = why_not(self, options);
    if (spec->expert_count == 0)
        return 0;
    if (world > 1)
        compare(self, spec);
    if (asked == 0 && options->found)
        asked = setup_recorded_expert_ranks(options->found);
    else if (asked == 0)
        asked = !reason && self->expert_rows_bytes < self->expert_zero_bytes ? world : 1;
    if (asked > 1 && world > 1 && asked != world)
        return err_set(ERR_CONFIG,
                       "%s is %llu, but %llu ranks run: it must be 1 or the number of ranks; start "
                       "%llu ranks, or one, which has all experts",
                       key, (unsigned long long)asked, (unsigned long long)world,
                       (unsigned long long)asked);
    if (asked > 1 && world > 1 && reason)
        return err_set(ERR_CONFIG, "%s is %llu, but %s, or %s to 1", key, (unsigned long long)asked,
                       reason, key);
    spec->expert_ranks = asked;
    spec->owns_experts = asked > 1 && world > 1;
    return 0;
}

int setupi_find_owned(struct setup *self)
{
    const model *net = self->net;
    if (!net->spec.owns_experts)
        return 0;
    self->is_owned = mem_alloc(net->unit_count, 1, "plan units");
    if (!self->is_owned)
        return -ENOMEM;
    for (uint32_t u = 0; u < net->unit_count; u++)
        self->is_owned[u] = model_is_owned(net, u);
    self->plan.is_owned = self->is_owned;
    return 0;
}
