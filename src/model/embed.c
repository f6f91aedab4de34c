/* The embedding: rows of the token table, and of the tables of token types and of positions where
 * there are any. All tokens have type 0. Its parts are rows of the tables, in the same order.
 * Allocates nothing. */
#include "model/model_internal.h"

/* Some rows of a table, which lie at `at` in their unit. */
struct rows_of_table {
    enum modeli_width table;
    uint64_t begin, count, at;
};

/* The position of a call's first token in the table of positions. */
static uint64_t first_position(const model *self, const model_call *call, struct rows_of_table of)
{
    return (self->cache_positions ? call->position : 0) +
           (of.table == MODELI_POSITIONS_OF_OPT ? MODELI_OPT_SKIPS : 0);
}

/* The first table writes the rows of its tokens; the others add theirs. */
static int forward(model *self, void *stream, const model_call *call, struct rows_of_table of)
{
    const void *rows = modeli_param(self, call->params[0], of.at);
    embedding_args args = {
        .type = self->type,
        .batch = self->micro_batch,
        .tokens = modeli_call_tokens(self, call),
        .channels = self->spec.hidden_size,
        .vocab = self->spec.vocab_size,
        .token_ids = call->tokens,
        .position_first = first_position(self, call, of),
        .begins = call->begins,
        .output = call->output,
    };
    if (of.table == MODELI_VOCAB) {
        args.row_begin = of.begin;
        args.row_count = of.count;
        args.token_table = rows;
    } else {
        args.position_begin = of.begin;
        args.position_count = of.count;
        args.position_table = rows;
    }
    if (of.table == MODELI_TYPES) { /* sequences of one token, whose position is 0, as its type */
        args.batch *= args.tokens;
        args.tokens = 1;
        args.begins = NULL;
    }
    return self->ops->embedding_forward(self->context, stream, &args);
}

static int backward(model *self, void *stream, const model_call *call, struct rows_of_table of)
{
    float *rows = modeli_grad(call->grads[0], of.at);
    embedding_grad_args args = {
        .type = self->type,
        .batch = self->micro_batch,
        .tokens = self->tokens,
        .channels = self->spec.hidden_size,
        .vocab = self->spec.vocab_size,
        .token_ids = call->tokens,
        .position_first = first_position(self, call, of),
        .output_grad = call->output_grad,
        .begins = call->begins,
        .scratch = call->temp,
    };
    if (of.table == MODELI_TYPES)
        return self->ops->bias_backward(self->context, stream, self->type, modeli_rows(self),
                                        args.channels, args.channels, call->output_grad, rows,
                                        call->temp);
    if (of.table == MODELI_VOCAB) {
        args.row_begin = of.begin;
        args.row_count = of.count;
        args.token_table_grad = rows;
    } else {
        args.position_begin = of.begin;
        args.position_count = of.count;
        args.position_table_grad = rows;
    }
    return self->ops->embedding_backward(self->context, stream, &args);
}

/* The rows of a part; or those of all tables, one after the other. */
static int run(model *self, void *stream, const model_call *call, const modeli_part *part,
               bool is_backward)
{
    const modeli_list *embed = &self->products->embed;
    uint32_t begin = part ? part->owner : 0, end = part ? begin + 1 : embed->layer_count;
    for (uint32_t i = begin; i < end; i++) {
        const modeli_layer *layer = &embed->layers[i];
        struct rows_of_table of = {layer->row->weights[0].width, 0, layer->matrix_rows,
                                   layer->at.weight};
        if (part != NULL)
            of = (struct rows_of_table){of.table, part->row_begin, part->rows, part->at[0].weight};
        if (of.table == MODELI_TYPES && of.begin > 0)
            continue; /* all tokens have type 0 */
        TRY((is_backward ? backward : forward)(self, stream, call, of));
    }
    return 0;
}

/* ---- the factor of the rows (spec.embedding_multiplier), and their dropout ---- */

static int multiply(const model *self, void *stream, const void *source, void *target)
{
    return modeli_scale_rows(self, stream, modeli_rows(self),
                             scale_of_type(self->type, self->spec.embedding_multiplier), source,
                             target);
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
                 bool is_backward)
{
    const modeli_list *embed = &self->products->embed;
    bool has_factor = self->spec.embedding_multiplier != 0, drops = modeli_drops_rows(self);
    model_call inner = *call;
    if (is_backward && (has_factor || drops)) { /* in temp, after the scratch */
        uint64_t scratch = (part ? part->scratch_bytes : embed->scratch_bytes)[1];
        void *grad = modeli_at(call->temp, size_round_up(scratch, MODELI_ALIGN_BYTES));
        inner.output_grad = grad;
        if (drops)
            TRY(drop(self, stream, call, call->output_grad, grad));
        if (has_factor)
            TRY(multiply(self, stream, drops ? grad : call->output_grad, grad));
    }
    TRY(run(self, stream, &inner, part, is_backward));
    if (is_backward || !is_last(embed, part))
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
    if (layer->row->weights[0].width == MODELI_TYPES)
        bytes[1] =
            self->ops->bias_backward_scratch_bytes(self->context, modeli_rows(self), layer->in);
    else
        bytes[1] = self->ops->embedding_grad_scratch_bytes(self->context, modeli_rows(self),
                                                           self->spec.vocab_size);
}

/* A part has its share of a table's rows; but all tokens have the first type. */
static void table_costs(const modeli_layer *layer, const modeli_costing *of)
{
    const modeli_list *embed = &layer->net->products->embed;
    const modeli_layer *last = &embed->layers[embed->layer_count - 1];
    double elem_bytes = (double)dtype_bytes(layer->net->type);
    double elems = (double)modeli_rows(layer->net) * (double)layer->in;
    double share = of->part ? (double)of->part->rows / (double)layer->matrix_rows : 1;
    bool is_backward = of->turn == MODELI_TURN_BACKWARD;
    bool has_types = layer->row->weights[0].width == MODELI_TYPES;
    if (of->turn == MODELI_TURN_RECOMPUTE || (has_types && of->part && of->part->row_begin > 0))
        return;
    bool changes_rows = of->part ? is_backward || is_last(embed, of->part) : layer == last;
    if (layer->net->spec.embedding_multiplier != 0 && changes_rows)
        modeli_cost_columns(layer->net, MODEL_ROWS_PLAIN, 2 * layer->in, of->costs);
    if (modeli_drops_rows(layer->net) && changes_rows)
        modeli_cost_columns(layer->net, MODEL_ROWS_DROPOUT, 2 * layer->in, of->costs);
    if (has_types && is_backward) {
        modeli_cost_columns(layer->net, MODEL_ROWS_PLAIN, layer->in, of->costs);
        return;
    }
    if (has_types)
        share = 1;
    if (is_backward)
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
