/* The embedding: rows of the token table, and of the table of positions where there is one. Its
 * parts are rows of the token table, then of the positions. Allocates nothing. */
#include "model/model_internal.h"

enum { TABLE, POSITIONS }; /* layers of the list */

static embedding_args args_of(const model *self, const model_call *call)
{
    return (embedding_args){
        .type = self->type,
        .batch = self->micro_batch,
        .tokens = modeli_call_tokens(self, call),
        .channels = self->spec.hidden_size,
        .vocab = self->spec.vocab_size,
        .token_ids = call->tokens,
        .position_first = self->cache_positions ? call->position : 0,
        .position_count = self->spec.position_count,
        .begins = call->begins,
        .output = call->output,
    };
}

static embedding_grad_args grad_args_of(const model *self, const model_call *call)
{
    return (embedding_grad_args){
        .type = self->type,
        .batch = self->micro_batch,
        .tokens = self->tokens,
        .channels = self->spec.hidden_size,
        .vocab = self->spec.vocab_size,
        .token_ids = call->tokens,
        .output_grad = call->output_grad,
        .position_count = self->spec.position_count,
        .begins = call->begins,
        .scratch = call->temp,
    };
}

static int whole_backward(model *self, void *stream, const model_call *call)
{
    const modeli_layer *layers = self->products->embed.layers;
    embedding_grad_args args = grad_args_of(self, call);
    args.token_table_grad = modeli_grad(call->grads[0], layers[TABLE].at.weight);
    if (self->products->embed.layer_count > POSITIONS)
        args.position_table_grad = modeli_grad(call->grads[0], layers[POSITIONS].at.weight);
    return self->ops->embedding_backward(self->context, stream, &args);
}

static int whole(model *self, void *stream, const model_call *call, bool backward)
{
    const modeli_layer *layers = self->products->embed.layers;
    if (backward)
        return whole_backward(self, stream, call);
    embedding_args args = args_of(self, call);
    args.token_table = modeli_param(self, call->params[0], layers[TABLE].at.weight);
    if (self->products->embed.layer_count > POSITIONS)
        args.position_table = modeli_param(self, call->params[0], layers[POSITIONS].at.weight);
    return self->ops->embedding_forward(self->context, stream, &args);
}

/* ---- parts ---- */

static int table(model *self, void *stream, const model_call *call, const modeli_part *part,
                 bool backward)
{
    uint64_t at = part->at[0].weight;
    if (backward) {
        embedding_grad_args args = grad_args_of(self, call);
        args.row_begin = part->row_begin;
        args.row_count = part->rows;
        args.token_table_grad = modeli_grad(call->grads[0], at);
        return self->ops->embedding_backward(self->context, stream, &args);
    }
    embedding_args args = args_of(self, call);
    args.row_begin = part->row_begin;
    args.row_count = part->rows;
    args.token_table = modeli_param(self, call->params[0], at);
    return self->ops->embedding_forward(self->context, stream, &args);
}

/* Adds those positions whose rows lie in the part's table. */
static int positions(model *self, void *stream, const model_call *call, const modeli_part *part,
                     bool backward)
{
    uint64_t at = part->at[0].weight;
    if (backward) {
        embedding_grad_args args = grad_args_of(self, call);
        args.position_begin = part->row_begin;
        args.position_count = part->rows;
        args.position_table_grad = modeli_grad(call->grads[0], at);
        return self->ops->embedding_backward(self->context, stream, &args);
    }
    embedding_args args = args_of(self, call);
    args.position_begin = part->row_begin;
    args.position_count = part->rows;
    args.position_table = modeli_param(self, call->params[0], at);
    return self->ops->embedding_forward(self->context, stream, &args);
}

/* ---- the factor of the rows (spec.embedding_multiplier), and their dropout ---- */

static int multiply(const model *self, void *stream, const void *source, void *target)
{
    scale_rows_args args = {
        .type = self->type,
        .rows = modeli_rows(self),
        .columns = self->spec.hidden_size,
        .scale = scale_of_type(self->type, self->spec.embedding_multiplier),
        .source = source,
        .target = target,
        .source_stride = self->spec.hidden_size,
        .target_stride = self->spec.hidden_size,
    };
    return self->ops->scale_rows(self->context, stream, &args);
}

static int drop(const model *self, void *stream, const model_call *call, const void *source,
                void *target)
{
    return modeli_drop(self, stream, call, self->spec.embedding_dropout, 0, self->spec.hidden_size,
                       source, target);
}

/* True if the pass is the last one that writes rows. */
static bool is_last(const modeli_list *embed, const modeli_part *part)
{
    return part == NULL || part == &embed->parts[embed->part_count - 1];
}

int modeli_embed(model *self, void *stream, const model_call *call, const modeli_part *part,
                 bool backward)
{
    const modeli_list *embed = &self->products->embed;
    bool has_factor = self->spec.embedding_multiplier != 0, drops = modeli_drops_rows(self);
    model_call inner = *call;
    if (backward && (has_factor || drops)) { /* in temp, after the scratch */
        uint64_t scratch = (part ? part->scratch_bytes : embed->scratch_bytes)[1];
        void *grad = modeli_at(call->temp, size_round_up(scratch, MODELI_ALIGN_BYTES));
        inner.output_grad = grad;
        if (drops)
            TRY(drop(self, stream, call, call->output_grad, grad));
        if (has_factor)
            TRY(multiply(self, stream, drops ? grad : call->output_grad, grad));
    }
    if (part == NULL)
        TRY(whole(self, stream, &inner, backward));
    else if (part->owner == TABLE)
        TRY(table(self, stream, &inner, part, backward));
    else
        TRY(positions(self, stream, &inner, part, backward));
    if (backward || !is_last(embed, part))
        return 0;
    if (has_factor)
        TRY(multiply(self, stream, call->output, call->output));
    if (!drops || call->dropout_counter == NULL)
        return 0;
    return drop(self, stream, call, call->output, call->output);
}

/* ---- scratch and costs ---- */

static void table_scratch(const modeli_layer *layer, const modeli_part *part, uint64_t bytes[2])
{
    const model *self = layer->net;
    (void)part;
    bytes[1] = self->ops->embedding_grad_scratch_bytes(self->context, modeli_rows(self),
                                                       self->spec.vocab_size);
}

/* A whole embedding has one call for both tables; a part has its share of a table's rows. */
static void table_costs(const modeli_layer *layer, const modeli_costing *of)
{
    const modeli_list *embed = &layer->net->products->embed;
    double elem_bytes = (double)dtype_bytes(layer->net->type);
    double elems = (double)modeli_rows(layer->net) * (double)layer->in;
    double share =
        of->part ? (double)of->part->rows / (double)layer->matrix_rows : (double)embed->layer_count;
    if (of->turn == MODELI_TURN_RECOMPUTE || (of->part == NULL && layer != embed->layers))
        return;
    bool backward = of->turn == MODELI_TURN_BACKWARD;
    if (layer->net->spec.embedding_multiplier != 0 && (backward || is_last(embed, of->part)))
        modeli_cost_columns(layer->net, MODEL_ROWS_PLAIN, 2 * layer->in, of->costs);
    if (modeli_drops_rows(layer->net) && (backward || is_last(embed, of->part)))
        modeli_cost_columns(layer->net, MODEL_ROWS_DROPOUT, 2 * layer->in, of->costs);
    if (backward)
        of->costs->row_bytes[MODEL_ROWS_TABLE_GRAD] +=
            share * elems * (elem_bytes + 2 * sizeof(float));
    else
        of->costs->row_bytes[MODEL_ROWS_TABLE] += share * elems * 2 * elem_bytes;
    of->costs->call_count++;
}

const modeli_kind modeli_table = {
    .has_matrix = true,
    .scratch = table_scratch,
    .costs = table_costs,
};
