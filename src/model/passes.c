/* The passes of every stage: which parameters each needs, what it reads and writes, and what it
 * costs. modeli_create_passes makes the lists (model_create). modeli_size_stages fills them each
 * time the scratch of the library changes. See model.h for the order of passes. */
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "model/costs.h"
#include "model/model_internal.h"

const modeli_part *modeli_pass_part(const model *self, enum phase phase, uint32_t stage,
                                    uint32_t pass, bool *backward)
{
    const modeli_list *list = modeli_list_of(self, stage);
    uint32_t idx = pass, last = list->part_count - 1;
    *backward = phase == PHASE_BACKWARD;
    if (list->part_count == 0)
        return NULL;
    if (phase == PHASE_RECOMPUTE)
        idx = list->parts[pass].recomputed;
    if (phase == PHASE_BACKWARD && self->stages[stage].kind == STAGE_BLOCK)
        idx = last - pass;
    if (phase == PHASE_BACKWARD && self->stages[stage].kind == STAGE_HEAD) {
        *backward = pass > last;
        idx = pass > last ? last - (pass - last - 1) : pass;
    }
    return &list->parts[idx];
}

/* True if a part has adapters of a linear layer. */
static bool adapts_linear(const modeli_list *list, const modeli_part *part)
{
    return part->has_adapters && list->layers[part->owner].kind == &modeli_linear;
}

/* Finds a block's parts with a layer that the backward needs again, or with inner activations of
 * adapters. Returns their number. */
static uint32_t find_recomputed(const modeli_list *list)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < list->part_count; i++) {
        modeli_range range = modeli_layers_of(list, &list->parts[i], false);
        while (range.begin < range.end && !list->layers[range.begin].is_recomputed[KEPT_NONE])
            range.begin++;
        if (range.begin < range.end || adapts_linear(list, &list->parts[i]))
            list->parts[count++].recomputed = i;
    }
    return count;
}

static void count_passes(const model *self, uint32_t stage_idx)
{
    struct stage *stage = &self->stages[stage_idx];
    const modeli_list *list = modeli_list_of(self, stage_idx);
    uint32_t count = list->part_count == 0 ? 1 : list->part_count;
    stage->pass_count[PHASE_FORWARD] = stage->pass_count[PHASE_BACKWARD] = count;
    stage->pass_count[PHASE_RECOMPUTE] = 0;
    if (stage_idx < self->first_learning)
        stage->pass_count[PHASE_BACKWARD] = 0;
    if (list->part_count == 0 || stage_idx < self->first_learning)
        return;
    if (stage->kind == STAGE_HEAD)
        stage->pass_count[PHASE_BACKWARD] = 2 * count;
    if (stage->kind == STAGE_BLOCK)
        stage->pass_count[PHASE_RECOMPUTE] = find_recomputed(list);
}

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

/* ---- what a pass reads and writes ---- */

/* Notes that a pass reads or writes what lies in a buffer. It may read its own results. */
static void touch(struct pass *pass, modeli_spot spot, bool writes)
{
    uint8_t *access = spot.buffer == MODELI_SAVED         ? &pass->saved
                      : spot.buffer == MODELI_INPUT       ? &pass->input
                      : spot.buffer == MODELI_OUTPUT      ? &pass->output
                      : spot.buffer == MODELI_OUTPUT_GRAD ? &pass->output_grad
                      : spot.buffer == MODELI_GRAD        ? &pass->input_grad
                                                          : NULL;
    if (access == NULL || *access == ACCESS_WRITE || *access == ACCESS_UPDATE)
        return;
    if (*access == ACCESS_NONE)
        *access = writes ? ACCESS_WRITE : ACCESS_READ;
    else if (writes)
        *access = ACCESS_UPDATE;
}

static void touch_forward(const modeli_list *list, const modeli_layer *layer,
                          const modeli_part *part, struct pass *pass)
{
    const modeli_value *values = list->values;
    for (uint32_t k = 0; k < MODELI_READS_MAX; k++)
        touch(pass, values[layer->reads[k]].at, false);
    if (layer->matrix_rows > 0 && part != NULL &&
        !part->is_first) /* other parts wrote other columns */
        touch(pass, values[layer->writes].at, false);
    touch(pass, values[layer->sum].at, true);
    touch(pass, values[layer->writes].at, true);
}

static void touch_backward(const modeli_list *list, const modeli_layer *layer,
                           const modeli_part *part, struct pass *pass)
{
    if (layer->kind->backward == NULL)
        return;
    if (layer->kind->keeps_input)
        touch(pass, list->values[layer->sum ? layer->sum : layer->reads[0]].at, false);
    touch(pass, layer->output_grad, false);
    if (layer->matrix_rows > 0 && part != NULL && !part->is_first)
        return;
    touch(pass, layer->residual_grad, false);
    touch(pass, layer->input_grad, true);
}

static void block_access(const modeli_list *list, const modeli_part *part, uint32_t pass_idx,
                         enum phase phase, struct pass *pass)
{
    bool backward = phase == PHASE_BACKWARD;
    modeli_range range = modeli_layers_of(list, part, backward);
    for (uint32_t i = range.begin; i < range.end && !backward; i++)
        if (phase == PHASE_FORWARD || list->layers[i].is_recomputed[KEPT_NONE])
            touch_forward(list, &list->layers[i], part, pass);
    for (uint32_t a = 0; a < list->adapter_count && !backward; a++) {
        const modeli_adapter *adapter = &list->adapters[a];
        if (adapter->layer < range.begin || adapter->layer >= range.end)
            continue;
        touch(pass, list->values[list->layers[adapter->layer].reads[0]].at, false);
        touch(pass, adapter->inner_at, true);
    }
    for (uint32_t i = range.end; i-- > range.begin && backward;)
        touch_backward(list, &list->layers[i], part, pass);
    bool sums = part != NULL && list->layers[part->owner].kind->has_experts;
    if (backward || sums || (pass_idx > 0 && pass->saved == ACCESS_WRITE))
        pass->saved = ACCESS_UPDATE; /* the sums of a block in parts; what other passes wrote */
}

/* A router adds to the totals of its micro-batch. Its backward reads them. */
static enum operand_access totals_access(const model *self, uint32_t stage, const modeli_part *part,
                                         enum phase phase)
{
    const modeli_list *list = modeli_list_of(self, stage);
    const modeli_layer *router = modeli_router_of(list);
    if (model_totals_bytes(self) == 0 || router == NULL || phase == PHASE_RECOMPUTE ||
        part == NULL || &list->layers[part->owner] != router)
        return ACCESS_NONE;
    if (phase == PHASE_BACKWARD)
        return ACCESS_READ;
    return stage == modeli_first_router(self) ? ACCESS_WRITE : ACCESS_UPDATE;
}

static void head_access(const modeli_part *part, uint32_t pass_idx, bool backward,
                        struct pass *pass)
{
    bool is_norm = part == NULL || part->owner == MODELI_FINAL_NORM;
    pass->saved = pass_idx == 0 ? ACCESS_WRITE : is_norm ? ACCESS_READ : ACCESS_UPDATE;
    pass->input = is_norm ? ACCESS_READ : ACCESS_NONE;
    pass->input_grad = is_norm && backward ? ACCESS_WRITE : ACCESS_NONE;
    if (part == NULL || (!is_norm && part->is_last && !backward))
        pass->losses = ACCESS_WRITE;
}

/* Sets whether the pass may do without its experts, and whether it finds out the hits. */
static void find_hits(const model *self, uint32_t stage_idx, const modeli_part *part,
                      enum phase phase, struct pass *pass)
{
    const modeli_list *list = modeli_list_of(self, stage_idx);
    if (part == NULL || self->stages[stage_idx].kind != STAGE_BLOCK)
        return;
    const modeli_layer *owner = &list->layers[part->owner];
    if (owner->kind->has_experts)
        pass->miss = modeli_miss(owner, part->rows);
    modeli_range range = modeli_layers_of(list, part, phase == PHASE_BACKWARD);
    for (uint32_t i = range.begin; i < range.end; i++) {
        const modeli_layer *layer = &list->layers[i];
        if (layer != owner && layer->row->weights[0].name != NULL)
            pass->miss = 0; /* the pass needs params for this layer too */
        if (layer->kind == &modeli_router && !layer->row->is_shared && phase == PHASE_FORWARD) {
            modeli_range told = modeli_told_units(list, layer);
            pass->told_begin = self->stages[stage_idx].units[0] + told.begin;
            pass->told_count = told.end - told.begin;
        }
    }
}

static void fill_pass(const model *self, enum phase phase, uint32_t stage_idx, uint32_t pass_idx)
{
    const struct stage *stage = &self->stages[stage_idx];
    struct pass *pass = &stage->passes[phase][pass_idx];
    modeli_work work = modeli_work_of(self, stage_idx);
    bool backward, is_embed = stage->kind == STAGE_EMBED;
    const modeli_part *part = modeli_pass_part(self, phase, stage_idx, pass_idx, &backward);
    *pass = (struct pass){.unit_count = part != NULL ? 1 : stage->unit_count};
    memcpy(pass->units, stage->units, sizeof pass->units);
    if (part != NULL)
        pass->units[0] = part->unit + (stage->kind == STAGE_BLOCK ? stage->units[0] : 0);
    if (part != NULL && part->has_adapters)
        pass->units[pass->unit_count++] = pass->units[0] + 1;
    for (uint32_t i = 0; i < pass->unit_count; i++) {
        pass->reads_params[i] = !is_embed || !backward;
        pass->adds_grads[i] = backward && !self->units[pass->units[i]].is_frozen;
    }
    if (is_embed && backward)
        pass->output_grad = ACCESS_READ;
    else if (is_embed)
        pass->output = pass_idx == 0 ? ACCESS_WRITE : ACCESS_UPDATE;
    else if (stage->kind == STAGE_HEAD)
        head_access(part, pass_idx, backward, pass);
    else {
        block_access(modeli_list_of(self, stage_idx), part, pass_idx, phase, pass);
        pass->losses = totals_access(self, stage_idx, part, phase);
    }
    find_hits(self, stage_idx, part, phase, pass);
    const modeli_layer *owner =
        part != NULL ? &modeli_list_of(self, stage_idx)->layers[part->owner] : NULL;
    pass->reads_back = owner != NULL && owner->kind->has_experts && phase != PHASE_RECOMPUTE &&
                       (backward ? part->is_last : part->is_first);
    if (owner != NULL && phase != PHASE_RECOMPUTE && modeli_are_owned(owner))
        modeli_size_exchange(owner, part, backward, pass);
    if (part == NULL) /* the caller decides whether to keep `saved` */
        pass->saved = ACCESS_NONE;
    if (part == NULL && !work.input)
        pass->input_grad = ACCESS_NONE;
    modeli_size_pass(self, stage_idx, part, backward, &work, pass);

    model_costs costs;
    model_pass_costs(self, phase, stage_idx, pass_idx, &costs);
    pass->flops = model_costs_flops(&costs);
    modeli_size_expansion(self, pass);
    for (uint32_t i = 0; i < pass->unit_count; i++)
        if (pass->adds_grads[i]) {
            uint64_t bytes = sizeof(float) * self->units[pass->units[i]].elems;
            pass->zeroed_bytes[i] = modeli_zeroed_bytes(self, stage_idx, pass->units[i]);
            pass->written_bytes[i] = bytes - pass->zeroed_bytes[i];
        }
}

void modeli_size_stages(model *self)
{
    modeli_head_layout head;
    modeli_head_layout_of(self, &head);
    for (uint32_t i = 0; i < self->stage_count; i++) {
        struct stage *stage = &self->stages[i];
        for (uint32_t phase = 0; phase < PHASE_COUNT; phase++)
            for (uint32_t pass = 0; pass < stage->pass_count[phase]; pass++)
                fill_pass(self, (enum phase)phase, i, pass);
        if (stage->kind == STAGE_HEAD)
            stage->saved_bytes = stage->selective_bytes = head.saved_total_bytes;
        if (stage->kind != STAGE_BLOCK)
            continue;
        stage->saved_bytes = modeli_list_of(self, i)->saved_bytes;
        stage->selective_bytes = modeli_list_of(self, i)->selective_bytes;
        if (stage->is_cut)
            continue;
        model_costs again;
        model_recompute_costs(self, i, KEPT_NONE, &again);
        stage->recompute_flops = model_costs_flops(&again);
        stage->recompute_dram_bytes = stage->passes[PHASE_FORWARD][0].dram_bytes;
        model_recompute_costs(self, i, KEPT_SELECTIVE, &again);
        stage->selective_dram_bytes = 0;
        for (int kind = 0; kind < MODEL_ROW_KIND_COUNT; kind++)
            stage->selective_dram_bytes += (uint64_t)again.row_bytes[kind];
    }
}
