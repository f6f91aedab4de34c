/* Bytes of passes, and the layouts of the head's `saved` and `temp`. Pure functions of the model
 * and of the library's scratch sizes, which are 0 before model_prepare.
 *
 * DRAM bytes. The rules: every activation is written once and read by each of its readers; weights
 * are read once per product; fp32 gradients are read and written once. This is an upper estimate,
 * since small activations stay in the cache. Those of a backward include its recomputation. */
#include "base/size.h"
#include "model/model_internal.h"

void modeli_head_layout_of(const model *self, modeli_head_layout *layout)
{
    const modeli_layer *norm = modeli_final_norm_of(self);
    uint64_t row_bytes = modeli_rows(self) * sizeof(float); /* of one column in fp32 */
    uint64_t end = 0;
    layout->mean = modeli_reserve(&end, norm->kind->kept_bytes(norm, 0));
    layout->rstd = modeli_reserve(&end, norm->kind->kept_bytes(norm, 1));
    layout->normed = modeli_reserve(&end, self->boundary_bytes);
    layout->largest = layout->sum = layout->target_logit = layout->normed_grad = 0;
    if (self->products->head.part_count > 0) {
        layout->largest = modeli_reserve(&end, row_bytes);
        layout->sum = modeli_reserve(&end, row_bytes);
        layout->target_logit = modeli_reserve(&end, row_bytes);
        layout->normed_grad = modeli_reserve(&end, row_bytes * self->spec.hidden_size);
    }
    layout->saved_total_bytes = end;
}

void modeli_chunk_layout_of(const model *self, uint64_t columns, modeli_chunk_layout *layout)
{
    uint64_t elem_bytes = dtype_bytes(self->type);
    uint64_t logits_elems = self->chunk_rows * modeli_logits_stride(columns);
    uint64_t row_end = 0;
    layout->row_mean = modeli_reserve(&row_end, sizeof(float));
    layout->row_rstd = modeli_reserve(&row_end, sizeof(float));
    layout->row_normed = modeli_reserve(&row_end, self->spec.hidden_size * elem_bytes);

    uint64_t end = 0;
    layout->logits = modeli_reserve(&end, logits_elems * sizeof(float));
    layout->forward_scratch = size_max(end, row_end);
    layout->logits_grad =
        self->type == DTYPE_FP32 ? layout->logits : modeli_reserve(&end, logits_elems * elem_bytes);
    layout->backward_scratch = end;
}

/* In temp, after all else that the backward puts there. */
uint64_t modeli_unwanted_grad(const model *self, const modeli_list *list)
{
    modeli_chunk_layout chunk;
    uint64_t end = modeli_lora_temp_bytes(self, list, NULL, true);
    if (list == &self->products->head) {
        modeli_chunk_layout_of(self, self->spec.vocab_size, &chunk);
        end += chunk.backward_scratch;
    }
    return size_round_up(end, MODELI_ALIGN_BYTES);
}

/* A part counts its share of the table's rows. */
static void size_embed(const model *self, const modeli_part *part, bool backward, struct pass *pass)
{
    const modeli_list *embed = &self->products->embed;
    uint64_t boundary = self->boundary_bytes;
    uint64_t sums = 2 * sizeof(float) * (boundary / dtype_bytes(self->type));
    pass->temp_bytes = (part ? part->scratch_bytes : embed->scratch_bytes)[backward];
    pass->dram_bytes = backward ? 2 * boundary + 2 * sums : 3 * boundary;
    if (part != NULL) {
        double share = (double)part->rows / (double)embed->layers[part->owner].matrix_rows;
        pass->dram_bytes = (uint64_t)(share * (double)(backward ? boundary + sums : 3 * boundary));
    }
    uint32_t changes = (self->spec.embedding_multiplier != 0) + modeli_drops_rows(self);
    pass->dram_bytes += 2 * boundary * changes;
    if (backward && changes > 0) /* the gradient before factor and dropout */
        pass->temp_bytes = size_round_up(pass->temp_bytes, MODELI_ALIGN_BYTES) + boundary;
}

/* Sums over a block's layers. A backward counts three times the columns of its forward, one of
 * these for the recomputation, less those of products and norms whose gradients nobody wants. */
static void size_block(const model *self, const modeli_list *list, const modeli_work *work,
                       bool backward, struct pass *pass)
{
    uint64_t first = (uint64_t)(modeli_first_owner(list) - list->layers),
             elem_bytes = dtype_bytes(self->type);
    uint64_t columns = 0, unneeded = 0, times = backward ? 3 : 1;
    for (uint32_t i = 0; i < list->layer_count; i++) {
        const modeli_layer *layer = &list->layers[i];
        columns += modeli_columns(layer, false);
        if (layer->matrix_rows > 0 && !work->weights)
            unneeded += modeli_columns(layer, true);
        if (i <= first && !work->inner)
            unneeded += modeli_columns(layer, true);
    }
    if (list->layers[list->layer_count - 1].kind == &modeli_add)
        columns -= self->spec.hidden_size; /* it finds one of its operands in the cache */
    columns = times * columns - (backward ? unneeded : 0);
    pass->dram_bytes =
        columns * modeli_rows(self) * elem_bytes +
        times * modeli_lora_dram_bytes(self, list, (modeli_range){0, list->layer_count});
    for (uint32_t i = 0; i < pass->unit_count; i++) {
        uint64_t elems = self->units[pass->units[i]].elems;
        pass->dram_bytes += (backward ? 2 : 1) * elems * elem_bytes +
                            (pass->adds_grads[i] ? 2 * sizeof(float) * elems : 0);
    }
    pass->temp_bytes = modeli_lora_temp_bytes(self, list, NULL, backward);
    if (backward && !work->input)
        pass->temp_bytes = modeli_unwanted_grad(self, list) + self->boundary_bytes;
}

static void size_block_part(const model *self, const modeli_list *list, const modeli_part *part,
                            bool backward, struct pass *pass)
{
    const modeli_layer *owner = &list->layers[part->owner];
    modeli_range range = modeli_layers_of(list, part, backward);
    uint64_t rows = modeli_rows(self), elem_bytes = dtype_bytes(self->type);
    uint64_t params = 0, grads = 0; /* elements */
    for (uint32_t i = 0; i < pass->unit_count; i++) {
        params += self->units[pass->units[i]].elems;
        grads += pass->adds_grads[i] ? 2 * self->units[pass->units[i]].elems : 0;
    }
    uint64_t columns = owner->in + part->rows * (backward ? 2 : 1);
    if (owner->kind->has_experts)
        columns = modeli_columns(owner, backward) * part->rows / owner->matrix_rows;
    for (uint32_t i = range.begin; i < range.end; i++)
        if (i != part->owner)
            columns += modeli_columns(&list->layers[i], backward);
    if (backward && part->is_first)
        columns += owner->in; /* the rounded gradient of the input */
    if (backward && part->is_last && owner->at.bias != MODELI_ABSENT)
        columns += owner->matrix_rows;
    pass->dram_bytes = rows * columns * elem_bytes + params * elem_bytes;
    pass->dram_bytes += (backward ? 3 : 1) * modeli_lora_dram_bytes(self, list, range);
    if (backward) /* all passes but the one that begins the sum of input gradients also read it */
        pass->dram_bytes += sizeof(float) * (rows * owner->in * (part->is_last ? 1 : 2) + grads);
    pass->temp_bytes = modeli_lora_temp_bytes(self, list, part, backward);
}

static void size_head(const model *self, const modeli_work *work, bool backward, struct pass *pass)
{
    uint64_t channels = self->spec.hidden_size, vocab = self->spec.vocab_size;
    uint64_t elem_bytes = dtype_bytes(self->type), boundary = self->boundary_bytes;
    const uint64_t *scratch = self->products->head.scratch_bytes;
    modeli_chunk_layout chunk;
    modeli_chunk_layout_of(self, vocab, &chunk);
    uint64_t chunks = size_div_up(modeli_rows(self), self->chunk_rows);
    uint64_t matrix = vocab * channels, logits = modeli_rows(self) * vocab;
    pass->dram_bytes = 3 * boundary + chunks * matrix * elem_bytes + 3 * logits * sizeof(float);
    pass->temp_bytes = chunk.forward_scratch + scratch[0];
    if (!backward)
        return;
    pass->temp_bytes = chunk.backward_scratch + scratch[1];
    pass->dram_bytes += logits * elem_bytes;
    if (work->inner) /* the input's gradient, and the norm's */
        pass->dram_bytes += 4 * boundary + chunks * matrix * elem_bytes + logits * elem_bytes;
    if (work->weights)
        pass->dram_bytes += boundary + chunks * matrix * 2 * sizeof(float) + logits * elem_bytes;
    if (!work->input && work->norms)
        pass->temp_bytes = modeli_unwanted_grad(self, &self->products->head) + boundary;
}

static void size_head_part(const model *self, const modeli_part *part, bool backward,
                           struct pass *pass)
{
    uint64_t rows = modeli_rows(self), elem_bytes = dtype_bytes(self->type);
    uint64_t channels = self->spec.hidden_size;
    if (part->owner == MODELI_FINAL_NORM) {
        pass->dram_bytes = (backward ? 6 : 2) * self->boundary_bytes;
        pass->temp_bytes = part->scratch_bytes[backward];
        return;
    }
    modeli_chunk_layout chunk;
    modeli_chunk_layout_of(self, part->rows, &chunk);
    uint64_t chunks = size_div_up(rows, self->chunk_rows);
    uint64_t matrix = part->rows * channels, logits = rows * part->rows;
    bool learns = pass->adds_grads[0];
    pass->dram_bytes =
        self->boundary_bytes + chunks * matrix * elem_bytes + 2 * logits * sizeof(float);
    pass->temp_bytes = chunk.forward_scratch + part->scratch_bytes[0];
    if (!backward)
        return;
    pass->dram_bytes += 2 * sizeof(float) * rows * channels +
                        (learns ? 3 : 2) * logits * elem_bytes +
                        chunks * matrix * (elem_bytes + (learns ? 2 * sizeof(float) : 0));
    pass->temp_bytes = chunk.backward_scratch + part->scratch_bytes[1];
}

void modeli_size_pass(const model *self, uint32_t stage, const modeli_part *part, bool backward,
                      const modeli_work *work, struct pass *pass)
{
    const modeli_list *list = modeli_list_of(self, stage);
    enum stage_kind kind = self->stages[stage].kind;
    if (kind == STAGE_EMBED)
        size_embed(self, part, backward, pass);
    else if (kind == STAGE_BLOCK && part == NULL)
        size_block(self, list, work, backward, pass);
    else if (kind == STAGE_BLOCK)
        size_block_part(self, list, part, backward, pass);
    else if (part == NULL)
        size_head(self, work, backward, pass);
    else
        size_head_part(self, part, backward, pass);
}
