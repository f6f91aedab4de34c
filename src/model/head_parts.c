/* Embedding and head in parts. The embedding's parts are rows of the token table, then of the
 * positions. The head's are the final norm alone, then output parts, each with its columns of the
 * logits. These run twice in the backward:
 *
 *   norm | logits .. softmax statistics; losses | [again, from last to first: gradients] | norm'
 *
 * The gradient of the normed rows is summed in fp32 over the parts and rounded once. Chunks of rows
 * are those of head.c. Allocates nothing. */
#include "base/size.h"
#include "model/model_internal.h"

/* ---- embedding ---- */

static int table_forward(model *self, void *stream, const model_call *call, const modeli_part *part)
{
    embedding_args args = modeli_embedding(self, call);
    args.row_begin = part->row_begin;
    args.row_count = part->rows;
    args.token_table = modeli_param(self, call->params[0], part->weights.weight);
    return self->ops->embedding_forward(self->context, stream, &args);
}

static int table_backward(model *self, void *stream, const model_call *call,
                          const modeli_part *part)
{
    embedding_grad_args args = modeli_embedding_grad(self, call);
    args.row_begin = part->row_begin;
    args.row_count = part->rows;
    args.token_table_grad = modeli_grad(call->grads[0], part->weights.weight);
    return self->ops->embedding_backward(self->context, stream, &args);
}

/* Adds positions: all sequences in one call if the part has all their positions, else sequence by
 * sequence. The table may have more rows than a sequence has tokens; a part that has only such rows
 * does nothing. */
static int positions(model *self, void *stream, const model_call *call, const modeli_part *part,
                     bool backward)
{
    uint64_t first = self->cache_positions ? call->position : 0, end = part->row_begin + part->rows;
    uint64_t tokens = modeli_call_tokens(self, call), begin = size_max(part->row_begin, first);
    if (begin >= size_min(end, first + tokens))
        return 0;
    uint64_t rows = size_min(end, first + tokens) - begin;
    uint64_t table = part->weights.weight + (begin - part->row_begin) * self->spec.hidden_size;
    bool is_all = rows == tokens;
    uint64_t call_count = is_all ? 1 : self->micro_batch;
    for (uint64_t b = 0; b < call_count; b++) {
        uint64_t row = b * self->tokens + (begin - first);
        uint64_t offset_bytes = row * self->spec.hidden_size * dtype_bytes(self->type);
        uint64_t batch = is_all ? self->micro_batch : 1;
        if (backward) {
            embedding_grad_args args = modeli_embedding_grad(self, call);
            args.batch = batch;
            args.tokens = rows;
            args.token_ids += row;
            args.output_grad = (const char *)call->output_grad + offset_bytes;
            args.position_table_grad = modeli_grad(call->grads[0], table);
            TRY(self->ops->embedding_backward(self->context, stream, &args));
        } else {
            embedding_args args = modeli_embedding(self, call);
            args.batch = batch;
            args.tokens = rows;
            args.token_ids += row;
            args.position_table = modeli_param(self, call->params[0], table);
            args.output = modeli_at(call->output, offset_bytes);
            TRY(self->ops->embedding_forward(self->context, stream, &args));
        }
    }
    return 0;
}

int modeli_embed_part(model *self, void *stream, const model_call *call, const modeli_part *part,
                      bool backward)
{
    if (part->layer == MODELI_LAYER_POSITIONS)
        return positions(self, stream, call, part, backward);
    return backward ? table_backward(self, stream, call, part)
                    : table_forward(self, stream, call, part);
}

/* ---- head ---- */

/* One chunk of rows [row, row + rows) over the columns of one part. */
static int chunk_part(model *self, void *stream, const model_call *call, const modeli_part *part,
                      uint64_t row, uint64_t rows, bool backward)
{
    const kernel_ops *ops = self->ops;
    modeli_head_layout at;
    modeli_chunk_layout chunk;
    modeli_head_layout_of(self, &at);
    modeli_chunk_layout_of(self, part->rows, &chunk);
    kernel_matmul *const *products = part->products[rows == self->chunk_rows ? 0 : 1].matmul;
    uint64_t channels = self->spec.hidden_size;
    const void *matrix = modeli_param(self, call->params[0], part->weights.weight);
    const void *normed =
        modeli_at(call->saved, at.normed + row * channels * dtype_bytes(self->type));
    void *logits = modeli_at(call->temp, chunk.logits);
    void *scratch =
        modeli_at(call->temp, backward ? chunk.backward_scratch : chunk.forward_scratch);

    TRY(ops->matmul(products[MODELI_FORWARD], stream, normed, matrix, NULL, logits, scratch));
    softmax_part_args args = {
        .type = self->type,
        .rows = rows,
        .columns = part->rows,
        .column_begin = part->row_begin,
        .stride = modeli_logits_stride(part->rows),
        .is_first = part->is_first,
        .logits = logits,
        .targets = call->targets + row,
        .largest = (float *)modeli_at(call->saved, at.largest) + row,
        .sum = (float *)modeli_at(call->saved, at.sum) + row,
        .target_logit = (float *)modeli_at(call->saved, at.target_logit) + row,
        .logits_grad = modeli_at(call->temp, chunk.logits_grad),
        .grad_scale = call->grad_scale,
    };
    if (!backward)
        return ops->softmax_part(self->context, stream, &args);
    float *normed_grad = (float *)modeli_at(call->saved, at.normed_grad) + row * channels;
    TRY(ops->cross_entropy_part(self->context, stream, &args));
    TRY(ops->matmul(products[MODELI_INPUT], stream, args.logits_grad, matrix, NULL, normed_grad,
                    scratch));
    if (call->grads[0] == NULL)
        return 0;
    bool begins = call->fresh[0] && row == 0;
    return ops->matmul(products[begins ? MODELI_FIRST : MODELI_WEIGHT], stream, args.logits_grad,
                       normed, NULL, modeli_grad(call->grads[0], part->weights.weight), scratch);
}

static int losses(model *self, void *stream, const model_call *call)
{
    modeli_head_layout at;
    modeli_head_layout_of(self, &at);
    softmax_part_args args = {
        .type = self->type,
        .rows = self->products->shape.rows,
        .targets = call->targets,
        .largest = modeli_at(call->saved, at.largest),
        .sum = modeli_at(call->saved, at.sum),
        .target_logit = modeli_at(call->saved, at.target_logit),
        .losses = call->losses,
    };
    return self->ops->softmax_losses(self->context, stream, &args);
}

static int norm_part(model *self, void *stream, const model_call *call, bool backward)
{
    modeli_head_layout at;
    modeli_head_layout_of(self, &at);
    uint64_t rows = self->products->shape.rows;
    float *mean = modeli_at(call->saved, at.mean), *rstd = modeli_at(call->saved, at.rstd);
    if (!backward)
        return modeli_final_norm(self, stream, call, rows, call->input,
                                 modeli_at(call->saved, at.normed), mean, rstd);
    TRY(self->ops->convert(self->context, stream, modeli_at(call->saved, at.normed_grad),
                           DTYPE_FP32, call->input_grad, self->type,
                           rows * self->spec.hidden_size));
    return modeli_final_norm_grad(self, stream, call, call->input_grad, mean, rstd, call->temp);
}

int modeli_head_part(model *self, void *stream, const model_call *call, const modeli_part *part,
                     bool backward)
{
    if (part->layer == MODELI_LAYER_NORM)
        return norm_part(self, stream, call, backward);
    uint64_t rows = self->products->shape.rows;
    for (uint64_t row = 0; row < rows; row += self->chunk_rows) {
        uint64_t chunk = size_min(self->chunk_rows, rows - row);
        TRY(chunk_part(self, stream, call, part, row, chunk, backward));
    }
    return part->is_last && !backward ? losses(self, stream, call) : 0;
}

int modeli_row_logits_part(model *self, void *stream, const model_call *call,
                           const modeli_part *part, uint64_t row, float *logits)
{
    modeli_head_layout at;
    modeli_chunk_layout chunk;
    modeli_head_layout_of(self, &at);
    uint64_t row_bytes = self->spec.hidden_size * dtype_bytes(self->type);
    void *normed = modeli_at(call->saved, at.normed);
    if (part->layer == MODELI_LAYER_NORM)
        return modeli_final_norm(self, stream, call, 1, (const char *)call->input + row * row_bytes,
                                 normed, modeli_at(call->saved, at.mean),
                                 modeli_at(call->saved, at.rstd));
    modeli_chunk_layout_of(self, part->rows, &chunk);
    return self->ops->matmul(part->row_logits.matmul[MODELI_FORWARD], stream, normed,
                             modeli_param(self, call->params[0], part->weights.weight), NULL,
                             logits + part->row_begin,
                             modeli_at(call->temp, chunk.forward_scratch));
}
