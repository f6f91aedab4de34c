/* Ops as calls: what the core worker and the copy worker do with one op. Runs on their threads; reads
 * the step's scalars, which change between programs only; allocates nothing. */
#include <math.h>
#include <string.h>

#include "base/size.h"
#include "base/tile.h"
#include "train/train_internal.h"

/* Address of an operand; NULL operand gives NULL. */
static void *address(const traini_engine *self, const program *prog, const operand *item)
{
    if (!item)
        return NULL;
    const buffer *held = &prog->buffers[item->buffer_idx];
    return self->arenas[held->arena].base + held->offset_bytes + item->offset_bytes;
}

static void *role_address(const traini_engine *self, const program *prog, const op *item,
                          enum operand_role role)
{
    return address(self, prog, op_operand(item, role));
}

static void fill_call(const traini_engine *self, const program *prog, const op *item,
                      model_call *call)
{
    const traini_setup *setup = self->setup;
    uint64_t rows = setup->net->micro_batch * setup->net->tokens;
    uint64_t step_tokens = setup->job->accumulation * rows;
    const int32_t *tokens = role_address(self, prog, item, ROLE_TOKENS);
    unsigned char *workspace = role_address(self, prog, item, ROLE_WORKSPACE);
    *call = (model_call){
        .params = {role_address(self, prog, item, ROLE_PARAMS0),
                   role_address(self, prog, item, ROLE_PARAMS1)},
        .grads = {role_address(self, prog, item, ROLE_GRADS0),
                  role_address(self, prog, item, ROLE_GRADS1)},
        .tokens = tokens + item->micro_batch * rows,
        .targets = tokens + step_tokens + item->micro_batch * rows,
        .input = role_address(self, prog, item, ROLE_INPUT),
        .output = role_address(self, prog, item, ROLE_OUTPUT),
        .input_grad = role_address(self, prog, item, ROLE_INPUT_GRAD),
        .output_grad = role_address(self, prog, item, ROLE_OUTPUT_GRAD),
        .losses = role_address(self, prog, item, ROLE_LOSSES),
        .grad_scale = (float)(1.0 / (double)step_tokens),
        .saved = workspace,
        .temp = workspace + setup->workspace_temp_offset,
        .constants = role_address(self, prog, item, ROLE_CONSTANTS),
    };
}

static int run_forward(traini_engine *self, const program *prog, const op *item)
{
    model *net = self->setup->net;
    model_call call;
    fill_call(self, prog, item, &call);
    if (net->stages[item->stage].kind == STAGE_HEAD && self->logits_row >= 0)
        return model_logits(net, NULL, &call, (uint64_t)self->logits_row, self->logits);
    return model_forward(net, item->stage, NULL, &call);
}

static int run_backward(traini_engine *self, const program *prog, const op *item)
{
    const traini_setup *setup = self->setup;
    model_call call;
    fill_call(self, prog, item, &call);
    static const enum operand_role roles[2] = {ROLE_GRADS0, ROLE_GRADS1};
    for (int i = 0; i < 2; i++) {
        const operand *grads = op_operand(item, roles[i]);
        if (item->first_micro_batch & (1 << i))
            TRY(setup->ops->zero(setup->context, NULL, address(self, prog, grads),
                                 grads->size_bytes));
    }
    return model_backward(setup->net, item->stage, NULL, &call, false);
}

static int run_grad_close(traini_engine *self, const program *prog, const op *item)
{
    grad_close_args args = {
        .count = item->elem_count,
        .accumulator = role_address(self, prog, item, ROLE_GRADS0),
        .grads = role_address(self, prog, item, ROLE_TARGET),
        .grad_type = self->setup->job->grad_dtype,
        .block_sums = role_address(self, prog, item, ROLE_NORM_SUMS),
    };
    return self->setup->ops->grad_close(self->setup->context, NULL, &args);
}

static int run_norm(traini_engine *self, const program *prog, const op *item)
{
    const traini_setup *setup = self->setup;
    const double *sums = role_address(self, prog, item, ROLE_NORM_SUMS);
    uint64_t blocks = setup->set.norm_block_begin[setup->net->unit_count];
    double total;
    TRY(setup->ops->norm_reduce(setup->context, NULL, sums, blocks, &total));
    self->step.grad_norm = sqrt(total);
    if (setup->plan.update == PLAN_UPDATE_AFTER_BACKWARD)
        traini_make_scalars(self); /* the updates that follow in this program use them */
    return 0;
}

/* The streams of a tile as base/tile.h lays them. */
static void tile_streams(unsigned char *state, uint64_t elems, float **master, float **m, float **v)
{
    uint64_t stride = tile_stream_stride(elems);
    *master = (float *)(void *)state;
    *m = (float *)(void *)(state + stride);
    *v = (float *)(void *)(state + 2 * stride);
}

static int run_update(traini_engine *self, const program *prog, const op *item)
{
    const traini_setup *setup = self->setup;
    adam_args args = {
        .count = item->elem_count,
        .grads = role_address(self, prog, item, ROLE_SOURCE),
        .grad_type = setup->job->grad_dtype,
        .params = role_address(self, prog, item, ROLE_TARGET),
        .param_type = setup->net->type,
        .scalars = &self->step.scalars,
    };
    tile_streams(role_address(self, prog, item, ROLE_STATE), item->elem_count, &args.master,
                 &args.m, &args.v);
    if (self->step.skip) /* an overflow: the state stays, its working copy is made again */
        return setup->ops->working_copy(setup->context, NULL, args.master, args.params,
                                        args.param_type, args.count);
    return setup->ops->adam(setup->context, NULL, &args);
}

static int run_init(traini_engine *self, const program *prog, const op *item)
{
    const traini_setup *setup = self->setup;
    float *master, *m, *v;
    unsigned char *state = role_address(self, prog, item, ROLE_STATE);
    memset(state, 0, op_operand(item, ROLE_STATE)->size_bytes); /* padding too goes to disk */
    tile_streams(state, item->elem_count, &master, &m, &v);
    model_init_elems(setup->net, item->unit, setup->job->run.seed, item->elem_begin,
                     item->elem_count, master);
    return setup->ops->working_copy(setup->context, NULL, master,
                                    role_address(self, prog, item, ROLE_TARGET), setup->net->type,
                                    item->elem_count);
}

static int run_working_copy(traini_engine *self, const program *prog, const op *item)
{
    const float *master = role_address(self, prog, item, ROLE_STATE);
    return self->setup->ops->working_copy(self->setup->context, NULL, master,
                                          role_address(self, prog, item, ROLE_TARGET),
                                          self->setup->net->type, item->elem_count);
}

int traini_run_op(void *user, const program *prog, const op *item)
{
    traini_engine *self = user;
    switch ((enum op_kind)item->kind) {
    case OP_FORWARD:
        return run_forward(self, prog, item);
    case OP_BACKWARD:
        return run_backward(self, prog, item);
    case OP_GRAD_CLOSE:
        return run_grad_close(self, prog, item);
    case OP_NORM:
        return run_norm(self, prog, item);
    case OP_UPDATE:
        return run_update(self, prog, item);
    case OP_INIT:
        return run_init(self, prog, item);
    case OP_WORKING_COPY:
        return run_working_copy(self, prog, item);
    default:
        return err_set(ERR_INTERNAL, "the core worker was given an op of kind %s",
                       op_kind_name((enum op_kind)item->kind));
    }
}

int traini_run_copy(void *user, const program *prog, const op *item)
{
    traini_engine *self = user;
    const operand *target = op_operand(item, ROLE_TARGET);
    memcpy(address(self, prog, target), role_address(self, prog, item, ROLE_SOURCE),
           target->size_bytes);
    return 0;
}
