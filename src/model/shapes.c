/* Bytes of uncut stages, and the layouts of `saved` and `temp`. Pure functions of the model and of
 * the library's scratch sizes, which are 0 before model_prepare.
 *
 * DRAM bytes. The rules: every activation is written once and read by each of its readers; weights
 * are read once per product; fp32 gradients are read and written once. This is an upper estimate,
 * since small activations stay in the cache. Those of a backward include its recomputation. */
#include "base/size.h"
#include "model/model_internal.h"

static uint64_t place(uint64_t *end_bytes, uint64_t bytes)
{
    uint64_t offset = *end_bytes;
    *end_bytes = size_round_up(offset + bytes, MODELI_ALIGN_BYTES);
    return offset;
}

void modeli_block_layout_of(const model *self, modeli_block_layout *layout)
{
    const modeli_shape *shape = &self->products->shape;
    uint64_t rows = shape->rows, heads = self->spec.num_heads;
    uint64_t row_bytes = rows * dtype_bytes(self->type); /* of one column */
    uint64_t channels = self->spec.hidden_size;
    uint64_t mean_bytes = shape->norm == NORM_LAYER ? rows * sizeof(float) : 0;
    uint64_t end = 0;
    layout->mean1 = place(&end, mean_bytes);
    layout->rstd1 = place(&end, rows * sizeof(float));
    layout->mean2 = place(&end, mean_bytes);
    layout->rstd2 = place(&end, rows * sizeof(float));
    layout->lse = place(&end, rows * heads * sizeof(float));
    layout->normed1 = place(&end, row_bytes * channels);
    layout->qkv = place(&end, row_bytes * shape->qkv_columns);
    uint64_t normed_heads = shape->q_norm == MODELI_ABSENT ? 0 : heads + self->spec.num_kv_heads;
    layout->qk_rstd = place(&end, rows * normed_heads * sizeof(float));
    layout->qk_before = place(&end, row_bytes * normed_heads * shape->head_dim);
    layout->attention = place(&end, row_bytes * shape->attention_columns);
    layout->middle = place(&end, row_bytes * channels);
    layout->normed2 = place(&end, row_bytes * channels);
    for (uint32_t i = 0; i < self->products->adapter_count; i++)
        layout->adapters[i] = place(&end, modeli_lora_saved_bytes(self));

    uint64_t ffn_end = end, attention_end = end;
    layout->ffn_input = place(&ffn_end, row_bytes * shape->ffn_columns);
    layout->ffn_output = place(&ffn_end, row_bytes * self->spec.ffn_size);
    layout->qkv_grad = place(&attention_end, row_bytes * shape->qkv_columns);
    layout->attention_grad = place(&attention_end, row_bytes * shape->attention_columns);
    layout->total_bytes = size_max(ffn_end, attention_end);
    layout->projected = layout->input_sum = layout->bias_sums = 0;
    if (self->products->block.count == 0)
        return;
    uint64_t projected_end = end;
    layout->projected = place(&projected_end, row_bytes * channels);
    end = size_max(layout->total_bytes, projected_end);
    uint64_t widest_in =
        size_max(size_max(self->spec.ffn_size, channels), shape->attention_columns);
    layout->input_sum = place(&end, rows * widest_in * sizeof(float));
    uint64_t widest_out = size_max(size_max(shape->qkv_columns, shape->ffn_columns), channels);
    layout->bias_sums =
        place(&end, shape->qkv.bias == MODELI_ABSENT ? 0 : widest_out * sizeof(float));
    layout->total_bytes = end;
}

void modeli_head_layout_of(const model *self, modeli_head_layout *layout)
{
    const modeli_shape *shape = &self->products->shape;
    uint64_t elem_bytes = dtype_bytes(self->type);
    uint64_t channels_bytes = self->spec.hidden_size * elem_bytes;
    uint64_t end = 0;
    layout->mean = place(&end, shape->norm == NORM_LAYER ? shape->rows * sizeof(float) : 0);
    layout->rstd = place(&end, shape->rows * sizeof(float));
    layout->normed = place(&end, shape->rows * channels_bytes);
    layout->largest = layout->sum = layout->target_logit = layout->normed_grad = 0;
    if (self->products->head.count > 0) {
        layout->largest = place(&end, shape->rows * sizeof(float));
        layout->sum = place(&end, shape->rows * sizeof(float));
        layout->target_logit = place(&end, shape->rows * sizeof(float));
        layout->normed_grad = place(&end, shape->rows * self->spec.hidden_size * sizeof(float));
    }
    layout->saved_total_bytes = end;
}

void modeli_chunk_layout_of(const model *self, uint64_t columns, modeli_chunk_layout *layout)
{
    uint64_t elem_bytes = dtype_bytes(self->type);
    uint64_t logits_elems = self->chunk_rows * modeli_logits_stride(columns);
    uint64_t row_end = 0;
    layout->row_mean = place(&row_end, sizeof(float));
    layout->row_rstd = place(&row_end, sizeof(float));
    layout->row_normed = place(&row_end, self->spec.hidden_size * elem_bytes);

    uint64_t end = 0;
    layout->logits = place(&end, logits_elems * sizeof(float));
    layout->forward_scratch = size_max(end, row_end);
    layout->logits_grad =
        self->type == DTYPE_FP32 ? layout->logits : place(&end, logits_elems * elem_bytes);
    layout->backward_scratch = end;
}

/* In temp, after all else that the backward puts there. */
uint64_t modeli_unwanted_grad(const model *self, enum stage_kind kind)
{
    modeli_chunk_layout chunk;
    uint64_t end = modeli_lora_temp_bytes(self, self->products->block_backward_scratch_bytes);
    if (kind == STAGE_HEAD) {
        modeli_chunk_layout_of(self, self->spec.vocab_size, &chunk);
        end = chunk.backward_scratch + self->products->head_backward_scratch_bytes;
    }
    return size_round_up(end, MODELI_ALIGN_BYTES);
}

/* True if the backward of an uncut block or head needs that place. */
static bool has_unwanted_grad(const modeli_work *work, enum stage_kind kind)
{
    return !work->input && (kind == STAGE_BLOCK || work->norms);
}

static modeli_sizes embed_sizes(const model *self)
{
    uint64_t boundary = self->boundary_bytes;
    uint64_t boundary_elems = boundary / dtype_bytes(self->type);
    return (modeli_sizes){
        .backward_temp_bytes = self->products->embed_backward_scratch_bytes,
        .forward_dram_bytes = 3 * boundary,
        .backward_dram_bytes = 2 * boundary + 2 * 2 * sizeof(float) * boundary_elems,
    };
}

/* Pairs of columns that the unneeded products would read or write: those of weight gradients, and
 * that of a block's first input gradient. */
static uint64_t unneeded_columns(const model *self, const modeli_work *work)
{
    const modeli_shape *shape = &self->products->shape;
    uint64_t channels = self->spec.hidden_size, columns = 0;
    if (!work->weights)
        columns += shape->qkv_columns + shape->ffn_columns + self->spec.ffn_size + 4 * channels +
                   shape->attention_columns;
    if (!work->inner)
        columns += shape->qkv_columns + 5 * channels; /* with the norm's gradient */
    return columns;
}

static modeli_sizes block_sizes(const model *self, const struct stage *stage,
                                const modeli_work *work)
{
    const modeli_shape *shape = &self->products->shape;
    const model_spec *spec = &self->spec;
    modeli_sizes made = {
        .forward_temp_bytes =
            modeli_lora_temp_bytes(self, self->products->block_forward_scratch_bytes),
        .backward_temp_bytes =
            modeli_lora_temp_bytes(self, self->products->block_backward_scratch_bytes),
    };
    uint64_t elem_bytes = dtype_bytes(self->type), unit_elems = self->units[stage->units[0]].elems;
    if (stage->unit_count > 1)
        unit_elems += self->units[stage->units[1]].elems;
    uint64_t columns = 12 * spec->hidden_size + 2 * shape->attention_columns +
                       2 * shape->qkv_columns + 2 * shape->ffn_columns + 2 * spec->ffn_size;
    uint64_t turned = (spec->num_heads + spec->num_kv_heads) * shape->head_dim;
    if (shape->has_rope)
        columns += 2 * turned;
    if (modeli_has_head_norms(self))
        columns += 3 * turned;
    uint64_t activations = shape->rows * columns * elem_bytes;
    made.forward_dram_bytes = activations + unit_elems * elem_bytes;
    made.backward_dram_bytes = 3 * activations + 2 * unit_elems * elem_bytes -
                               shape->rows * unneeded_columns(self, work) * elem_bytes;
    for (uint32_t i = 0; i < stage->unit_count; i++)
        if (!self->units[stage->units[i]].is_frozen)
            made.backward_dram_bytes += 2 * sizeof(float) * self->units[stage->units[i]].elems;
    made.forward_dram_bytes += modeli_lora_dram_bytes(self);
    made.backward_dram_bytes += 3 * modeli_lora_dram_bytes(self);
    if (has_unwanted_grad(work, STAGE_BLOCK))
        made.backward_temp_bytes = modeli_unwanted_grad(self, STAGE_BLOCK) + self->boundary_bytes;
    return made;
}

static modeli_sizes head_sizes(const model *self, const modeli_work *work)
{
    const modeli_shape *shape = &self->products->shape;
    uint64_t channels = self->spec.hidden_size, vocab = self->spec.vocab_size;
    uint64_t elem_bytes = dtype_bytes(self->type);
    modeli_chunk_layout chunk;
    modeli_chunk_layout_of(self, vocab, &chunk);
    modeli_sizes made = {
        .forward_temp_bytes = chunk.forward_scratch + self->products->head_forward_scratch_bytes,
        .backward_temp_bytes = chunk.backward_scratch + self->products->head_backward_scratch_bytes,
    };
    uint64_t chunks = size_div_up(shape->rows, self->chunk_rows);
    uint64_t matrix = vocab * channels, logits = shape->rows * vocab;
    made.forward_dram_bytes =
        3 * self->boundary_bytes + chunks * matrix * elem_bytes + 3 * logits * sizeof(float);
    made.backward_dram_bytes = made.forward_dram_bytes + logits * elem_bytes;
    if (work->inner) /* the input's gradient, and the norm's */
        made.backward_dram_bytes +=
            4 * self->boundary_bytes + chunks * matrix * elem_bytes + logits * elem_bytes;
    if (work->weights)
        made.backward_dram_bytes +=
            self->boundary_bytes + chunks * matrix * 2 * sizeof(float) + logits * elem_bytes;
    if (has_unwanted_grad(work, STAGE_HEAD))
        made.backward_temp_bytes = modeli_unwanted_grad(self, STAGE_HEAD) + self->boundary_bytes;
    return made;
}

modeli_sizes modeli_uncut_sizes(const model *self, const struct stage *stage,
                                const modeli_work *work)
{
    return stage->kind == STAGE_EMBED   ? embed_sizes(self)
           : stage->kind == STAGE_BLOCK ? block_sizes(self, stage, work)
                                        : head_sizes(self, work);
}
