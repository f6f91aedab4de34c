/* The passes of every stage: which parameters each needs, what it reads and writes, and what it
 * costs. modeli_create_passes makes the lists (model_create). modeli_size_stages fills them each
 * time the scratch of the library changes. See model.h for the order of passes. */
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "model/costs.h"
#include "model/model_internal.h"

/* ---- stages of one pass in each direction ---- */

/* The pass adds to the gradients of all its units that learn. */
static void add_grads(const model *self, struct pass *pass)
{
    for (uint32_t i = 0; i < pass->unit_count; i++)
        pass->adds_grads[i] = !self->units[pass->units[i]].is_frozen;
}

static void fill_embed(const struct stage *stage)
{
    struct pass *forward = stage->passes[PHASE_FORWARD], *backward = stage->passes[PHASE_BACKWARD];
    forward->reads_params[0] = true;
    forward->output = ACCESS_WRITE;
    if (stage->pass_count[PHASE_BACKWARD] > 0)
        backward->output_grad = ACCESS_READ;
}

static void fill_block(const struct stage *stage, bool wants_input_grad)
{
    struct pass *forward = stage->passes[PHASE_FORWARD], *backward = stage->passes[PHASE_BACKWARD];
    forward->reads_params[0] = true;
    forward->reads_params[1] = stage->unit_count > 1;
    forward->input = ACCESS_READ;
    forward->output = ACCESS_WRITE;
    if (stage->pass_count[PHASE_BACKWARD] == 0)
        return;
    memcpy(backward->reads_params, forward->reads_params, sizeof backward->reads_params);
    backward->input = backward->output_grad = ACCESS_READ;
    backward->input_grad = wants_input_grad ? ACCESS_WRITE : ACCESS_NONE;
}

static void fill_head(const struct stage *stage, bool wants_input_grad)
{
    struct pass *forward = stage->passes[PHASE_FORWARD], *backward = stage->passes[PHASE_BACKWARD];
    for (uint32_t i = 0; i < stage->unit_count; i++)
        forward->reads_params[i] = backward->reads_params[i] = true;
    forward->input = backward->input = ACCESS_READ;
    forward->losses = backward->losses = ACCESS_WRITE;
    backward->input_grad = wants_input_grad ? ACCESS_WRITE : ACCESS_NONE;
}

static void fill_uncut(const model *self, uint32_t stage_idx)
{
    struct stage *stage = &self->stages[stage_idx];
    struct pass *forward = stage->passes[PHASE_FORWARD], *backward = stage->passes[PHASE_BACKWARD];
    modeli_work work = modeli_work_of(self, stage_idx);
    modeli_sizes sizes = modeli_uncut_sizes(self, stage, &work);
    struct pass common = {.unit_count = stage->unit_count};
    memcpy(common.units, stage->units, sizeof common.units);
    *forward = common;
    forward->dram_bytes = sizes.forward_dram_bytes;
    forward->temp_bytes = sizes.forward_temp_bytes;
    if (stage->pass_count[PHASE_BACKWARD] > 0) {
        *backward = common;
        add_grads(self, backward);
        backward->dram_bytes = sizes.backward_dram_bytes;
        backward->temp_bytes = sizes.backward_temp_bytes;
    }
    if (stage->kind == STAGE_EMBED)
        fill_embed(stage);
    else if (stage->kind == STAGE_BLOCK)
        fill_block(stage, work.input);
    else
        fill_head(stage, work.input);
    if (stage->kind != STAGE_BLOCK)
        return;
    model_costs kept;
    model_kept_costs(self, stage_idx, &kept);
    stage->recompute_flops = model_costs_flops(&kept);
    stage->recompute_dram_bytes = forward->dram_bytes;
}

/* ---- stages in parts ---- */

const modeli_part *modeli_pass_part(const model *self, enum phase phase, uint32_t stage,
                                    uint32_t pass, bool *backward)
{
    const modeli_parts *parts = modeli_parts_of(self, stage);
    uint32_t idx = pass, last = parts->count - 1;
    *backward = phase == PHASE_BACKWARD;
    if (phase == PHASE_BACKWARD && self->stages[stage].kind == STAGE_BLOCK)
        idx = last - pass;
    if (phase == PHASE_BACKWARD && self->stages[stage].kind == STAGE_HEAD) {
        *backward = pass > last;
        idx = pass > last ? last - (pass - last - 1) : pass;
    }
    return &parts->items[idx];
}

static void count_passes(const model *self, uint32_t stage_idx)
{
    struct stage *stage = &self->stages[stage_idx];
    const modeli_parts *parts = modeli_parts_of(self, stage_idx);
    uint32_t count = parts == NULL ? 1 : parts->count;
    stage->pass_count[PHASE_FORWARD] = stage->pass_count[PHASE_BACKWARD] = count;
    stage->pass_count[PHASE_RECOMPUTE] = 0;
    if (stage_idx < self->first_learning)
        stage->pass_count[PHASE_BACKWARD] = 0;
    if (parts == NULL || stage_idx < self->first_learning)
        return;
    if (stage->kind == STAGE_HEAD)
        stage->pass_count[PHASE_BACKWARD] = 2 * count;
    if (stage->kind == STAGE_BLOCK)
        while (parts->items[stage->pass_count[PHASE_RECOMPUTE]].layer != MODELI_LAYER_DOWN)
            stage->pass_count[PHASE_RECOMPUTE]++;
}

static void embed_access(uint32_t pass_idx, bool backward, struct pass *pass)
{
    if (backward)
        pass->output_grad = ACCESS_READ;
    else
        pass->output = pass_idx == 0 ? ACCESS_WRITE : ACCESS_UPDATE;
}

/* The layers of block_parts.c and the buffers that each touches. */
static void block_access(const modeli_part *part, uint32_t pass_idx, bool backward,
                         struct pass *pass)
{
    bool is_first = part->is_first;
    pass->saved = pass_idx == 0 && !backward ? ACCESS_WRITE : ACCESS_UPDATE;
    switch (part->layer) {
    case MODELI_LAYER_QKV:
        pass->input = is_first ? ACCESS_READ : ACCESS_NONE;
        pass->input_grad = is_first && backward ? ACCESS_UPDATE : ACCESS_NONE;
        break;
    case MODELI_LAYER_PROJ:
        pass->input_grad = backward ? ACCESS_READ : ACCESS_NONE;
        break;
    case MODELI_LAYER_UP:
        pass->input = is_first && !backward ? ACCESS_READ : ACCESS_NONE;
        pass->output_grad = is_first && backward ? ACCESS_READ : ACCESS_NONE;
        pass->input_grad = is_first && backward ? ACCESS_WRITE : ACCESS_NONE;
        break;
    default: /* down */
        if (backward) {
            pass->output_grad = ACCESS_READ;
        } else {
            pass->saved = ACCESS_READ;
            pass->output = is_first ? ACCESS_WRITE : ACCESS_UPDATE;
        }
        break;
    }
}

static void head_access(const modeli_part *part, uint32_t pass_idx, bool backward,
                        struct pass *pass)
{
    pass->saved = pass_idx == 0 ? ACCESS_WRITE : ACCESS_UPDATE;
    if (part->layer != MODELI_LAYER_NORM) {
        pass->losses = part->is_last && !backward ? ACCESS_WRITE : ACCESS_NONE;
        return;
    }
    pass->input = ACCESS_READ;
    if (backward) {
        pass->saved = ACCESS_READ;
        pass->input_grad = ACCESS_WRITE;
    }
}

/* DRAM bytes by the rules of shapes.c, and scratch. */
static void embed_costs(const model *self, const modeli_part *part, bool backward,
                        struct pass *pass)
{
    uint64_t elems = self->boundary_bytes / dtype_bytes(self->type);
    double share = part->layer == MODELI_LAYER_TABLE
                       ? (double)part->rows / (double)self->spec.vocab_size
                       : (double)part->rows / (double)self->spec.position_count;
    uint64_t bytes =
        backward ? self->boundary_bytes + 2 * sizeof(float) * elems : 3 * self->boundary_bytes;
    pass->dram_bytes = (uint64_t)(share * (double)bytes);
    pass->temp_bytes = backward ? part->backward_scratch_bytes : 0;
}

/* Columns of activations that a block's part reads and writes outside its products. */
static uint64_t side_columns(const model *self, const modeli_part *part, bool backward)
{
    const modeli_shape *shape = &self->products->shape;
    uint64_t channels = self->spec.hidden_size, ffn = self->spec.ffn_size, columns = 0;
    uint64_t attention = shape->qkv_columns + shape->attention_columns;
    uint64_t turned = (self->spec.num_heads + self->spec.num_kv_heads) * shape->head_dim;
    if (shape->has_rope)
        attention += 2 * turned;
    if (part->q_norm != MODELI_ABSENT)
        columns += 3 * turned; /* norms of heads, or their gradient */
    if (part->is_first && part->layer == MODELI_LAYER_QKV)
        columns += backward ? 4 * channels : 2 * channels; /* norm1 */
    if (part->is_first && part->layer == MODELI_LAYER_UP)
        columns += 4 * channels; /* norm2 */
    if (part->layer == MODELI_LAYER_QKV && part->is_last && !backward)
        columns += attention;
    if (part->layer == MODELI_LAYER_PROJ && part->is_first && backward)
        columns += 2 * attention;
    if (part->layer == MODELI_LAYER_UP && part->is_last && !backward)
        columns += shape->ffn_columns + ffn; /* activation */
    if (part->layer == MODELI_LAYER_DOWN && part->is_first && backward)
        columns += 2 * shape->ffn_columns + ffn;
    if (part->layer == MODELI_LAYER_DOWN && part->is_last && !backward)
        columns += 3 * channels; /* the residual sum */
    if (backward && part->is_first)
        columns += modeli_layer_columns(self, part->layer); /* the rounded gradient of the input */
    if (backward && part->is_last && part->weights.bias != MODELI_ABSENT)
        columns += modeli_layer_rows(self, part->layer);
    return columns;
}

static void block_costs(const model *self, const modeli_part *part, bool backward,
                        struct pass *pass)
{
    uint64_t rows = self->products->shape.rows, elem_bytes = dtype_bytes(self->type);
    uint64_t in = modeli_layer_columns(self, part->layer), columns = in + part->rows;
    uint64_t unit_elems = self->units[pass->units[0]].elems;
    bool learns = pass->adds_grads[0];
    columns += side_columns(self, part, backward) + (backward ? part->rows : 0);
    pass->dram_bytes = rows * columns * elem_bytes + unit_elems * elem_bytes;
    if (backward) /* all passes but the one that begins the sum of input gradients also read it */
        pass->dram_bytes +=
            sizeof(float) * (rows * in * (part->is_last ? 1 : 2) + (learns ? 2 * unit_elems : 0));
    pass->temp_bytes = backward ? part->backward_scratch_bytes : part->forward_scratch_bytes;
}

static void head_costs(const model *self, const modeli_part *part, bool backward, struct pass *pass)
{
    uint64_t rows = self->products->shape.rows, elem_bytes = dtype_bytes(self->type);
    uint64_t channels = self->spec.hidden_size;
    if (part->layer == MODELI_LAYER_NORM) {
        pass->dram_bytes = (backward ? 6 : 2) * self->boundary_bytes;
        pass->temp_bytes = backward ? part->backward_scratch_bytes : part->forward_scratch_bytes;
        return;
    }
    modeli_chunk_layout chunk;
    modeli_chunk_layout_of(self, part->rows, &chunk);
    uint64_t chunks = size_div_up(rows, self->chunk_rows);
    uint64_t matrix = part->rows * channels, logits = rows * part->rows;
    bool learns = pass->adds_grads[0];
    pass->dram_bytes =
        self->boundary_bytes + chunks * matrix * elem_bytes + 2 * logits * sizeof(float);
    pass->temp_bytes = chunk.forward_scratch + part->forward_scratch_bytes;
    if (!backward)
        return;
    pass->dram_bytes += 2 * sizeof(float) * rows * channels +
                        (learns ? 3 : 2) * logits * elem_bytes +
                        chunks * matrix * (elem_bytes + (learns ? 2 * sizeof(float) : 0));
    pass->temp_bytes = chunk.backward_scratch + part->backward_scratch_bytes;
}

static void fill_cut(const model *self, uint32_t stage_idx, enum phase phase, uint32_t pass_idx)
{
    const struct stage *stage = &self->stages[stage_idx];
    struct pass *pass = &stage->passes[phase][pass_idx];
    bool backward;
    const modeli_part *part = modeli_pass_part(self, phase, stage_idx, pass_idx, &backward);
    *pass = (struct pass){.unit_count = 1};
    pass->units[0] = part->unit + (stage->kind == STAGE_BLOCK ? stage->units[0] : 0);
    pass->reads_params[0] = stage->kind != STAGE_EMBED || !backward;
    pass->adds_grads[0] = backward && !self->units[pass->units[0]].is_frozen;
    if (stage->kind == STAGE_EMBED) {
        embed_access(pass_idx, backward, pass);
        embed_costs(self, part, backward, pass);
    } else if (stage->kind == STAGE_BLOCK) {
        block_access(part, pass_idx, backward, pass);
        block_costs(self, part, backward, pass);
    } else {
        head_access(part, pass_idx, backward, pass);
        head_costs(self, part, backward, pass);
    }
}

/* ---- all stages ---- */

int modeli_create_passes(model *self)
{
    for (uint32_t i = 0; i < self->stage_count; i++) {
        count_passes(self, i);
        for (uint32_t phase = 0; phase < PHASE_COUNT; phase++)
            self->pass_count += self->stages[i].pass_count[phase];
    }
    self->passes = mem_alloc(self->pass_count, sizeof *self->passes, "model.passes");
    if (self->passes == NULL)
        return -ENOMEM;
    struct pass *next = self->passes;
    for (uint32_t i = 0; i < self->stage_count; i++)
        for (uint32_t phase = 0; phase < PHASE_COUNT; phase++) {
            self->stages[i].passes[phase] = next;
            next += self->stages[i].pass_count[phase];
        }
    return 0;
}

/* Fills the members of a pass that follow from all others. */
static void finish_pass(const model *self, enum phase phase, uint32_t stage_idx, uint32_t pass_idx)
{
    struct pass *pass = &self->stages[stage_idx].passes[phase][pass_idx];
    model_costs costs;
    model_pass_costs(self, phase, stage_idx, pass_idx, &costs);
    pass->flops = model_costs_flops(&costs);
    for (uint32_t i = 0; i < pass->unit_count; i++)
        if (pass->adds_grads[i])
            pass->zeroed_bytes[i] = modeli_zeroed_bytes(self, stage_idx, pass_idx, i);
}

void modeli_size_stages(model *self)
{
    modeli_block_layout block;
    modeli_head_layout head;
    modeli_block_layout_of(self, &block);
    modeli_head_layout_of(self, &head);
    for (uint32_t i = 0; i < self->stage_count; i++) {
        struct stage *stage = &self->stages[i];
        stage->saved_bytes = stage->kind == STAGE_BLOCK  ? block.total_bytes
                             : stage->kind == STAGE_HEAD ? head.saved_total_bytes
                                                         : 0;
        if (!stage->is_cut)
            fill_uncut(self, i);
        for (uint32_t phase = 0; phase < PHASE_COUNT; phase++)
            for (uint32_t pass = 0; pass < stage->pass_count[phase]; pass++) {
                if (stage->is_cut)
                    fill_cut(self, i, (enum phase)phase, pass);
                finish_pass(self, (enum phase)phase, i, pass);
            }
    }
}
