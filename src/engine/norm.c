/* The global norm, and the scalars of an update, which are made from it.
 *
 * The norm is the sum of all blocks' sums of squares, added as a fixed binary tree over the
 * blocks of the model (kernels/ops.h, norm_reduce), in one go or in parts.
 *
 *   tree(n)   The left subtree has the largest power of two below n. So each aligned range of 2^k
 *             blocks within n is a node of the tree, for every n.
 *   a part    Its blocks [begin, end) are covered by the largest such ranges. The ops write one sum
 *             for each: at most NODES_MAX of a part. Parts may be computed in any order.
 *   total     Nodes are taken from the first block on. Two neighbours of equal size become one of
 *             twice the size. The partial sums left at the end are added from the last (smallest)
 *             one on.
 *
 * So the bits are those of the whole tree, wherever the parts begin. The ops run on the worker that
 * computes, or are enqueued on a GPU's stream and write to pinned memory. enginei_take_norm is
 * called when the norm is complete. Scalars are made once a step: when the norm is known or, if the
 * update does not wait for it, before the step. */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/size.h"
#include "config/config.h"
#include "engine/engine_internal.h"

enum { NODES_MAX = 128 }; /* at most two of each size of 64 bits */

/* Blocks of a unit's gradient as a single rank would have them, without padding. A frozen unit has
 * none, so the norm is that of the units that learn. */
static uint64_t unit_blocks(const struct setup *setup, uint32_t unit)
{
    return plan_learns(&setup->plan, unit) ? setup->unit_elems[unit] / SHARD_ELEMS_STEP : 0;
}

/* Blocks of all units before this one. */
static uint64_t first_block(const struct setup *setup, uint32_t unit)
{
    uint64_t blocks = 0;
    for (uint32_t u = 0; u < unit; u++)
        blocks += unit_blocks(setup, u);
    return blocks;
}

/* Blocks of the largest node that begins at `begin` and ends at `end` or before. */
static uint64_t node_blocks(uint64_t begin, uint64_t end)
{
    uint64_t most = UINT64_C(1) << (63 - __builtin_clzll(end - begin));
    uint64_t aligned = begin & -begin; /* 0: aligned to any size */
    return aligned ? size_min(most, aligned) : most;
}

int enginei_make_norm(struct engine *self)
{
    uint64_t parts = self->setup->set.norm_part_count;
    void *nodes;
    TRY(engine_result_memory(self, parts * NODES_MAX * sizeof *self->norm_nodes, &nodes));
    self->norm_nodes = nodes;
    return 0;
}

/* Copies a unit's sums of all ranks, one rank after the other, on the device. */
static int gather_sums(const struct setup *setup, void *stream, double *target,
                       const double *source, uint64_t count, uint64_t pitch)
{
    const uint32_t world = setup->ranks.world;
    if (setup->gpu)
        return device_gather_rows(setup->gpu, stream, target, source, pitch * sizeof *source,
                                  count * sizeof *source, world);
    for (uint32_t r = 0; r < world; r++)
        memcpy(target + r * count, source + r * pitch, count * sizeof *source);
    return 0;
}

/* Reorders all ranks' sums of the part's units: from one rank after the other to the order of
 * blocks in the model. After a unit's end there is padding, which the next unit's sums
 * overwrite. */
static int order_sums(const struct setup *setup, void *stream, uint32_t part,
                      const double *gathered, double *ordered)
{
    const uint64_t *begin = setup->set.norm_block_begin;
    uint32_t first = setup->set.norm_part_begin[part], end = setup->set.norm_part_begin[part + 1];
    uint64_t own = begin[end] - begin[first], blocks = 0;
    for (uint32_t u = first; u < end; u++) {
        if (unit_blocks(setup, u) == 0)
            continue;
        TRY(gather_sums(setup, stream, ordered + blocks, gathered + (begin[u] - begin[first]),
                        begin[u + 1] - begin[u], own));
        blocks += unit_blocks(setup, u);
    }
    return 0;
}

int enginei_reduce_norm(const struct engine *self, void *stream, uint32_t part, const double *sums,
                        double *ordered)
{
    const struct setup *setup = self->setup;
    const kernel_ops *ops = setup->ops;
    if (setup->ranks.world > 1) {
        TRY(order_sums(setup, stream, part, sums, ordered));
        sums = ordered;
    }
    uint64_t first = first_block(setup, setup->set.norm_part_begin[part]);
    uint64_t end = first_block(setup, setup->set.norm_part_begin[part + 1]);
    double *nodes = self->norm_nodes + (uint64_t)part * NODES_MAX;
    if (setup->set.norm_part_count == 1)
        return ops->norm_reduce(setup->context, stream, sums, end, nodes);
    for (uint64_t at = first, count; at < end; at += count) {
        count = node_blocks(at, end);
        assert(nodes < self->norm_nodes + ((uint64_t)part + 1) * NODES_MAX);
        TRY(ops->norm_reduce(setup->context, stream, sums + (at - first), count, nodes++));
    }
    return 0;
}

double enginei_norm_total(const struct engine *self)
{
    const plan_set *set = &self->setup->set;
    if (set->norm_part_count == 1)
        return self->norm_nodes[0];
    /* A stack of nodes, from the first block on, each smaller than the one before it. */
    double sums[NODES_MAX];
    uint64_t sizes[NODES_MAX], at = 0;
    uint32_t depth = 0;
    for (uint32_t p = 0; p < set->norm_part_count; p++) {
        const double *nodes = self->norm_nodes + (uint64_t)p * NODES_MAX;
        uint64_t end = first_block(self->setup, set->norm_part_begin[p + 1]);
        for (; at < end; at += node_blocks(at, end)) {
            assert(depth < NODES_MAX);
            sums[depth] = *nodes++;
            sizes[depth++] = node_blocks(at, end);
            for (; depth > 1 && sizes[depth - 2] == sizes[depth - 1]; depth--) {
                sums[depth - 2] += sums[depth - 1];
                sizes[depth - 2] *= 2;
            }
        }
    }
    for (; depth > 1; depth--)
        sums[depth - 2] += sums[depth - 1];
    return isnan(sums[0]) ? (double)NAN : sums[0];
}

/* ---- the scalars of an update ---- */

bool engine_leaves_update(const struct setup *setup)
{
    return setup->plan.update == UPDATE_IN_NEXT_FORWARD ||
           setup->plan.update == UPDATE_DELAYED_ONE_STEP;
}

static float given_or(double given, double fallback)
{
    return (float)(isnan(given) ? fallback : given);
}

/* Fills a group's scalars of update number step->applied. */
static void fill_scalars(const struct job *asked, const struct engine_step *step,
                         const engine_group *group, update_scalars *s)
{
    s->learning_rate = given_or(group->learning_rate, job_learning_rate(asked, step->applied));
    s->beta1 = given_or(group->beta1, job_momentum(asked, step->applied));
    s->beta2 = given_or(group->beta2, asked->optimizer.beta2);
    s->epsilon = given_or(group->epsilon, asked->optimizer.epsilon);
    s->weight_decay = given_or(group->weight_decay, asked->optimizer.weight_decay);
    s->decoupled = asked->optimizer.decoupled;
    s->bias_correction1 = 1.0f;
    s->bias_correction2_sqrt = 1.0f;
    if (asked->optimizer.bias_correction) {
        double t = (double)step->applied;
        s->bias_correction1 = (float)(1.0 - pow((double)s->beta1, t));
        s->bias_correction2_sqrt = (float)sqrt(1.0 - pow((double)s->beta2, t));
    }
}

void engine_make_scalars(struct engine *self)
{
    const struct job *asked = self->setup->job;
    struct engine_step *step = &self->step;
    step->skip = !isfinite(step->grad_norm);
    if (step->skip)
        return;
    step->applied++;
    /* As torch.nn.utils.clip_grad_norm_: a norm below the limit does not change the gradient. */
    double clip = asked->gradient_clipping;
    double factor = clip > 0 ? fmin(1.0, clip / (step->grad_norm + 1e-6)) : 1.0;
    for (uint32_t g = 0; g < self->group_count; g++) {
        fill_scalars(asked, step, &self->groups[g], &step->group_scalars[g]);
        step->group_scalars[g].grad_scale = (float)(factor / step->loss_scale);
    }
    step->scalars = step->group_scalars[0];
}

void enginei_take_norm(struct engine *self)
{
    self->step.grad_norm = sqrt(enginei_norm_total(self)) / self->step.loss_scale;
    if (comm_is_pretended(self->setup->ranks.comm))
        /* the norm means nothing then, so no update is skipped because of it */
        self->step.grad_norm = 1;
    if (self->step.is_given_up)
        self->step.grad_norm = (double)NAN; /* its update is skipped */
    if (self->setup->plan.update == UPDATE_AFTER_BACKWARD)
        engine_make_scalars(self); /* the updates that follow in this program use these scalars */
}
