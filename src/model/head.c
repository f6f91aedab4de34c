/* Both ends of the model: embedding, and head (final norm, output matrix, cross-entropy). The head
 * goes through the rows in chunks, so logits for all tokens never exist at once. Its backward makes
 * losses and gradients in one pass. Allocates nothing. */
#include "base/size.h"
#include "model/model_internal.h"

embedding_args modeli_embedding(const model *self, const model_call *call)
{
    return (embedding_args){
        .type = self->type,
        .batch = self->micro_batch,
        .tokens = modeli_call_tokens(self, call),
        .channels = self->spec.hidden_size,
        .vocab = self->spec.vocab_size,
        .token_ids = call->tokens,
        .output = call->output,
    };
}

embedding_grad_args modeli_embedding_grad(const model *self, const model_call *call)
{
    return (embedding_grad_args){
        .type = self->type,
        .batch = self->micro_batch,
        .tokens = self->tokens,
        .channels = self->spec.hidden_size,
        .vocab = self->spec.vocab_size,
        .token_ids = call->tokens,
        .output_grad = call->output_grad,
        .scratch = call->temp,
    };
}

/* Offset of the first row that a call needs from the position table at `table`. For MODELI_ABSENT
 * it returns MODELI_ABSENT. */
static uint64_t position_row(const model *self, const model_call *call, uint64_t table)
{
    bool moves = self->cache_positions > 0 && table != MODELI_ABSENT;
    return moves ? table + call->position * self->spec.hidden_size : table;
}

static int embed_backward(model *self, void *stream, const model_call *call)
{
    const modeli_shape *shape = &self->products->shape;
    embedding_grad_args args = modeli_embedding_grad(self, call);
    args.token_table_grad = modeli_grad(call->grads[0], shape->token_table);
    args.position_table_grad = modeli_grad(call->grads[0], shape->position_table);
    return self->ops->embedding_backward(self->context, stream, &args);
}

int modeli_embed(model *self, void *stream, const model_call *call, bool backward)
{
    const modeli_shape *shape = &self->products->shape;
    if (backward)
        return embed_backward(self, stream, call);
    embedding_args args = modeli_embedding(self, call);
    args.token_table = modeli_param(self, call->params[0], shape->token_table);
    args.position_table =
        modeli_param(self, call->params[0], position_row(self, call, shape->position_table));
    return self->ops->embedding_forward(self->context, stream, &args);
}

int modeli_final_norm(model *self, void *stream, const model_call *call, uint64_t rows,
                      const void *input, void *output, float *mean, float *rstd)
{
    const modeli_shape *shape = &self->products->shape;
    const void *params = call->params[shape->norm_final_unit];
    norm_args args = {
        .kind = shape->norm,
        .type = self->type,
        .rows = rows,
        .channels = self->spec.hidden_size,
        .epsilon = (float)self->spec.norm_epsilon,
        .input = input,
        .weight = modeli_param(self, params, shape->norm_final.weight),
        .bias = modeli_param(self, params, shape->norm_final.bias),
        .output = output,
        .mean = shape->norm == NORM_LAYER ? mean : NULL,
        .rstd = rstd,
    };
    return self->ops->norm_forward(self->context, stream, &args);
}

int modeli_final_norm_grad(model *self, void *stream, const model_call *call, void *grad,
                           const float *mean, const float *rstd, void *scratch)
{
    const modeli_shape *shape = &self->products->shape;
    float *grads = call->grads[shape->norm_final_unit];
    norm_grad_args args = {
        .kind = shape->norm,
        .type = self->type,
        .rows = shape->rows,
        .channels = self->spec.hidden_size,
        .input = call->input,
        .weight =
            modeli_param(self, call->params[shape->norm_final_unit], shape->norm_final.weight),
        .mean = shape->norm == NORM_LAYER ? mean : NULL,
        .rstd = rstd,
        .output_grad = grad,
        .input_grad = grad,
        .weight_grad = modeli_grad(grads, shape->norm_final.weight),
        .bias_grad = modeli_grad(grads, shape->norm_final.bias),
        .scratch = scratch,
    };
    return self->ops->norm_backward(self->context, stream, &args);
}

static const void *output_matrix(const model *self, const model_call *call)
{
    const modeli_shape *shape = &self->products->shape;
    return modeli_param(self, call->params[shape->output_unit], shape->output_matrix);
}

/* One chunk of rows [row, row + rows): logits and losses. In the backward also the gradients of the
 * output matrix and of the normed rows (into `grad`), each only if it is wanted. */
static int head_chunk(model *self, void *stream, const model_call *call,
                      const modeli_head_layout *at, uint64_t row, uint64_t rows, bool backward,
                      void *grad)
{
    const modeli_shape *shape = &self->products->shape;
    const kernel_ops *ops = self->ops;
    modeli_chunk_layout chunk;
    modeli_chunk_layout_of(self, self->spec.vocab_size, &chunk);
    kernel_matmul *const *products =
        self->products->logits[rows == self->chunk_rows ? 0 : 1].matmul;
    uint64_t row_bytes = self->spec.hidden_size * dtype_bytes(self->type);
    const void *matrix = output_matrix(self, call);
    const void *normed = modeli_at(call->saved, at->normed + row * row_bytes);
    void *logits = modeli_at(call->temp, chunk.logits);
    void *scratch =
        modeli_at(call->temp, backward ? chunk.backward_scratch : chunk.forward_scratch);

    TRY(ops->matmul(products[MODELI_FORWARD], stream, normed, matrix, NULL, logits, scratch));
    cross_entropy_args args = {
        .type = self->type,
        .rows = rows,
        .vocab = self->spec.vocab_size,
        .stride = modeli_logits_stride(self->spec.vocab_size),
        .logits = logits,
        .targets = call->targets + row,
        .losses = call->losses + row,
        .logits_grad = backward ? modeli_at(call->temp, chunk.logits_grad) : NULL,
        .grad_scale = call->grad_scale,
    };
    TRY(ops->cross_entropy(self->context, stream, &args));
    if (!backward)
        return 0;
    float *matrix_grad = modeli_grad(call->grads[shape->output_unit], shape->output_matrix);
    if (grad != NULL)
        TRY(ops->matmul(products[MODELI_INPUT], stream, args.logits_grad, matrix, NULL,
                        modeli_at(grad, row * row_bytes), scratch));
    if (matrix_grad == NULL)
        return 0;
    bool begins = call->fresh[shape->output_unit] && row == 0;
    return ops->matmul(products[begins ? MODELI_FIRST : MODELI_WEIGHT], stream, args.logits_grad,
                       normed, NULL, matrix_grad, scratch);
}

/* The buffer for the gradient of the normed rows, and then for that of the input. It is in temp if
 * only the norm needs it, and NULL if nobody needs it. */
static void *normed_grad(const model *self, const model_call *call)
{
    if (call->input_grad != NULL)
        return call->input_grad;
    if (call->grads[self->products->shape.norm_final_unit] == NULL)
        return NULL;
    return modeli_at(call->temp, modeli_unwanted_grad(self, STAGE_HEAD));
}

int modeli_head(model *self, void *stream, const model_call *call, bool backward)
{
    void *grad = backward ? normed_grad(self, call) : NULL;
    modeli_head_layout at;
    modeli_head_layout_of(self, &at);
    modeli_chunk_layout chunk_at;
    modeli_chunk_layout_of(self, self->spec.vocab_size, &chunk_at);
    uint64_t rows = self->products->shape.rows;
    float *mean = modeli_at(call->saved, at.mean), *rstd = modeli_at(call->saved, at.rstd);
    TRY(modeli_final_norm(self, stream, call, rows, call->input, modeli_at(call->saved, at.normed),
                          mean, rstd));
    for (uint64_t row = 0; row < rows; row += self->chunk_rows) {
        uint64_t chunk = size_min(self->chunk_rows, rows - row);
        TRY(head_chunk(self, stream, call, &at, row, chunk, backward, grad));
    }
    if (grad == NULL)
        return 0;
    return modeli_final_norm_grad(self, stream, call, grad, mean, rstd,
                                  modeli_at(call->temp, chunk_at.backward_scratch));
}

int modeli_row_logits(model *self, void *stream, const model_call *call, uint64_t row,
                      float *logits)
{
    modeli_chunk_layout at;
    modeli_chunk_layout_of(self, self->spec.vocab_size, &at);
    uint64_t row_bytes = self->spec.hidden_size * dtype_bytes(self->type);
    const void *input = (const char *)call->input + row * row_bytes;
    void *normed = modeli_at(call->temp, at.row_normed);
    TRY(modeli_final_norm(self, stream, call, 1, input, normed, modeli_at(call->temp, at.row_mean),
                          modeli_at(call->temp, at.row_rstd)));
    return self->ops->matmul(self->products->row_logits.matmul[MODELI_FORWARD], stream, normed,
                             output_matrix(self, call), NULL, logits,
                             modeli_at(call->temp, at.forward_scratch));
}
