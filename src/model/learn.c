/* Which units learn. Checks the selection and brings it to one form. Splits a unit in two if only
 * some of its tensors learn, if there are adapters, or if its vectors are to be apart. See model.h.
 * Allocates the tensors of split units. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_internal.h"

enum { RANK_MAX = 4096 };

/* ---- the selection ---- */

static bool ends_with(const char *name, const char *end)
{
    size_t bytes = strlen(name), end_bytes = strlen(end);
    return bytes > end_bytes && name[bytes - end_bytes - 1] == '.' &&
           strcmp(name + bytes - end_bytes, end) == 0;
}

/* Tensors of a block whose names have this end. */
static uint32_t count_ends(const modeli_row *rows, const char *end)
{
    uint32_t count = 0;
    for (; rows->kind != NULL; rows++)
        for (uint32_t i = 0; i < MODELI_ROW_TENSORS_MAX && rows->weights[i].name != NULL; i++)
            count += ends_with(rows->weights[i].name, end);
    return count;
}

/* Names as PEFT's target_modules: the end of the module's name that no other layer of the block
 * has, "q_proj" or "attn.c_proj". All after the block's index, if that is not enough: BERT's
 * "output.dense" is also the end of "attention.output.dense". */
static const char *target_of(const modeli_row *rows, const char *name)
{
    const char *first = strstr(name, "%llu.") + 5, *end = strrchr(name, '.') + 1;
    while (end > first && count_ends(rows, end) > 1)
        for (end--; end > first && end[-1] != '.';)
            end--;
    return end;
}

/* Targets are the weights of the linear layers of the first stage, and of the routed experts. */
static uint32_t target_count(const modeli_row *row, bool is_experts)
{
    uint32_t count = 0;
    if (row->kind != (is_experts ? &modeli_experts : &modeli_linear) || row->is_shared)
        return 0;
    while (count < MODELI_ROW_TENSORS_MAX && row->weights[count].name != NULL)
        count++;
    return count;
}

/* The number of a row's first target. It also counts the rows that this model lacks. `of` NULL: the
 * number of targets of the first stage. */
static uint32_t first_target(const modeli_family *family, const modeli_row *of)
{
    uint32_t count = 0;
    const modeli_row *row = family->block;
    for (; row->kind != NULL && row != of; row++)
        count += target_count(row, false);
    if (row == of || of == NULL)
        return count;
    for (row = family->experts; row != of; row++)
        count += target_count(row, true);
    return count;
}

const char *model_lora_target(enum model_family family, uint32_t idx)
{
    const modeli_family *of = modeli_family_of(family);
    for (const modeli_row *row = of->block; row->kind != NULL; row++) {
        if (idx < target_count(row, false))
            return target_of(of->block, row->weights[idx].name);
        idx -= target_count(row, false);
    }
    for (const modeli_row *row = of->experts; row != NULL && row->kind != NULL; row++) {
        if (idx < target_count(row, true)) /* "mlp.experts.down_proj" */
            return strstr(row->weights[idx].name, "%llu.") + 5;
        idx -= target_count(row, true);
    }
    return NULL;
}

bool model_lora_is_expert(enum model_family family, uint32_t idx)
{
    return idx >= first_target(modeli_family_of(family), NULL);
}

bool modeli_has_expert_adapter(const modeli_layer *layer, enum modeli_expert_matrix which)
{
    const model_lora *lora = &layer->net->spec.lora;
    const modeli_family *family = layer->net->products->family;
    return lora->rank > 0 && target_count(layer->row, true) > 0 &&
           (lora->targets >> (first_target(family, layer->row) + (uint32_t)which) & 1) != 0;
}

/* The bits of the targets of the first stage. */
static uint32_t block_targets(const model_spec *spec)
{
    return (1u << first_target(modeli_family_of(spec->family), NULL)) - 1;
}

/* Without a selection everything learns; with adapters only these. */
static bool learns_by_default(const model_spec *spec)
{
    return !spec->learn.is_given && spec->lora.rank == 0;
}

/* True if a member of spec.learn is selected, such as spec->learn.head. */
static bool is_chosen(const model_spec *spec, bool is_selected)
{
    return spec->learn.is_given ? is_selected : learns_by_default(spec);
}

/* True if the matrices of a block learn. `block` is num_layers for modeli_family.last. */
static bool block_learns(const model_spec *spec, uint64_t block)
{
    const model_learn *learn = &spec->learn;
    if (block == spec->num_layers)
        return is_chosen(spec, learn->head);
    if (!learn->is_given)
        return learns_by_default(spec);
    for (uint32_t i = 0; i < learn->range_count; i++)
        if (block >= learn->blocks[i].first && block <= learn->blocks[i].last)
            return true;
    return false;
}

static int by_first(const void *a, const void *b)
{
    const model_range *left = a, *right = b;
    return left->first < right->first ? -1 : left->first > right->first;
}

/* Sorts the ranges and joins those that touch or overlap. */
static void join_ranges(model_learn *learn)
{
    uint32_t count = 0;
    qsort(learn->blocks, learn->range_count, sizeof learn->blocks[0], by_first);
    for (uint32_t i = 0; i < learn->range_count; i++) {
        model_range range = learn->blocks[i];
        if (count > 0 && range.first <= learn->blocks[count - 1].last + 1)
            learn->blocks[count - 1].last = size_max(learn->blocks[count - 1].last, range.last);
        else
            learn->blocks[count++] = range;
    }
    memset(&learn->blocks[count], 0, (MODEL_RANGES_MAX - count) * sizeof learn->blocks[0]);
    learn->range_count = count;
}

static bool all_blocks_learn(const model_spec *spec)
{
    const model_learn *learn = &spec->learn; /* the ranges are joined already */
    if (!learn->is_given)
        return learns_by_default(spec);
    return learn->range_count == 1 && learn->blocks[0].first == 0 &&
           learn->blocks[0].last == spec->num_layers - 1;
}

static int check_ranges(const model_spec *spec)
{
    unsigned long long layers = spec->num_layers;
    for (uint32_t i = 0; i < spec->learn.range_count; i++) {
        unsigned long long first = spec->learn.blocks[i].first, last = spec->learn.blocks[i].last;
        char name[64];
        if (first == last)
            snprintf(name, sizeof name, "blocks.%llu", first);
        else
            snprintf(name, sizeof name, "blocks.%llu-%llu", first, last);
        if (first > last)
            return err_set(ERR_CONFIG, "train.only: %s ends before it begins", name);
        if (last >= layers)
            return err_set(ERR_CONFIG,
                           "train.only: %s is outside the model, whose blocks are 0 to %llu "
                           "(model.num_layers %llu)",
                           name, layers - 1, layers);
    }
    return 0;
}

static int check_lora(const model_spec *spec)
{
    const model_lora *lora = &spec->lora;
    uint32_t known = 0;
    if (lora->rank == 0)
        return 0;
    if (lora->rank > RANK_MAX)
        return err_set(ERR_CONFIG, "train.lora.rank is %llu, but must lie between 1 and %d",
                       (unsigned long long)lora->rank, RANK_MAX);
    if (!(lora->alpha > 0 && isfinite(lora->alpha)))
        return err_set(ERR_CONFIG, "train.lora.alpha is %g, but must be a number above 0",
                       lora->alpha);
    if (!(lora->dropout >= 0 && (float)lora->dropout < 1))
        return err_set(ERR_CONFIG, "train.lora.dropout is %g, but must be at least 0 and below 1",
                       lora->dropout);
    for (uint32_t i = 0; model_lora_target(spec->family, i) != NULL; i++)
        known |= 1u << i;
    if (lora->targets == 0 || (lora->targets & ~known) != 0)
        return err_set(ERR_CONFIG, "train.lora.targets names no layer, or one that is not there");
    bool names_experts = (lora->targets & ~block_targets(spec)) != 0;
    if (names_experts && (spec->expert_count == 0 || spec->dense_blocks >= spec->num_layers))
        return err_set(ERR_CONFIG, "train.lora.targets names experts, which this model does not "
                                   "have");
    if (lora->dropout > 0 && names_experts)
        return err_set(
            ERR_CONFIG,
            "train.lora.dropout is %g, but adapters of experts have none: set it to 0, or "
            "take experts out of train.lora.targets",
            lora->dropout);
    const modeli_row *rows = modeli_family_of(spec->family)->block;
    for (const modeli_row *row = rows; row->kind != NULL; row++)
        if (row->kind == &modeli_linear && row->is_there != MODELI_UNSET &&
            !modeli_is_there(spec, row->is_there) &&
            (lora->targets >> first_target(modeli_family_of(spec->family), row) & 1) != 0)
            return err_set(ERR_CONFIG,
                           "train.lora.targets names %s, which this model does not have",
                           target_of(rows, row->weights[0].name));
    return 0;
}

int modeli_check_learn(model_spec *spec)
{
    model_learn *learn = &spec->learn;
    assert(learn->range_count <= MODEL_RANGES_MAX);
    if (!learn->is_given)
        *learn = (model_learn){0};
    TRY(check_lora(spec));
    TRY(check_ranges(spec));
    join_ranges(learn);
    bool has_any = learn->embed || learn->head || learn->norms || learn->range_count > 0;
    if (learn->is_given && !has_any && !learn->nothing)
        return err_set(ERR_CONFIG, "train.only selects nothing: name blocks.FIRST-LAST, embed, "
                                   "head, norms or all, or leave it out");
    if (spec->lora.rank == 0 && learn->embed && learn->head && all_blocks_learn(spec))
        *learn = (model_learn){0}; /* everything, as without a list */
    return 0;
}

/* ---- split units ---- */

/* True if the norms of blocks learn but not their matrices. */
static bool norms_are_apart(const model_spec *spec)
{
    return spec->learn.is_given && spec->learn.norms && !all_blocks_learn(spec);
}

bool modeli_vectors_are_apart(const model *self, const modeli_list *list)
{
    const model_spec *spec = &self->spec;
    return list == &self->products->block && spec->splits_vectors && !norms_are_apart(spec) &&
           spec->lora.rank == 0 && spec->hidden_size > 1; /* with 1 there are vectors alone */
}

void modeli_choose_split(model *self)
{
    const model_spec *spec = &self->spec;
    modeli_list *block = &self->products->block;
    bool has_lora = spec->lora.rank > 0 && (spec->lora.targets & block_targets(spec)) != 0;
    block->is_split = norms_are_apart(spec) || has_lora ||
                      (modeli_vectors_are_apart(self, block) && block->part_count == 0);
    bool only_norms = spec->learn.is_given && spec->learn.norms && !spec->learn.head;
    self->products->head.is_split = only_norms && !spec->tie_embeddings;
    self->products->last.is_split = only_norms && self->products->last.layer_count > 0;
}

int modeli_check_split(const model *self)
{
    const modeli_list *block = &self->products->block, *last = &self->products->last;
    bool has_both =
        (block->part_count > 0 && block->is_split) || (last->part_count > 0 && last->is_split);
    if (modeli_block_stages(self) > 1 && norms_are_apart(&self->spec))
        return err_set(ERR_CONFIG,
                       "train.only selects norms apart from the blocks' matrices, but a norm of a "
                       "mixture lies beside its router and learns with it: leave norms out");
    if (!has_both)
        return 0;
    if (self->spec.lora.rank > 0)
        return err_set(
            ERR_CONFIG,
            "train.lora: model.max_part_bytes %llu cuts blocks into parts, which take no "
            "adapters: raise it until blocks fit, or set it to 0",
            (unsigned long long)self->spec.max_part_bytes);
    return err_set(ERR_CONFIG,
                   "train.only selects norms apart from the blocks' matrices, but "
                   "model.max_part_bytes %llu cuts blocks into parts, which can only learn as a "
                   "whole: leave norms out, or raise model.max_part_bytes until blocks fit",
                   (unsigned long long)self->spec.max_part_bytes);
}

bool modeli_goes_apart(const model *self, const modeli_list *list, const modeli_layer *layer,
                       const model_tensor *tensor)
{
    if (modeli_vectors_are_apart(self, list))
        return list->is_split && !model_is_matrix(tensor);
    return list->is_split && layer->kind->is_norm &&
           (list != &self->products->block || norms_are_apart(&self->spec));
}

/* Adds a matrix of an adapter. Its name is that of the target's weight with `matrix` before the
 * end, or after the name of a matrix of all experts. */
static model_tensor *add_tensor(model *self, modeli_lister *list, const model_tensor *target,
                                const char *matrix, uint64_t rows, uint64_t columns,
                                enum tensor_init init, uint32_t number)
{
    modeli_origin *origin = &self->products->origins[list->unit - self->units];
    origin->tensors[list->unit->tensor_count] = MODELI_ADAPTER_ORIGIN + number;
    model_tensor *tensor = modeli_append(list, rows, columns, false);
    const char *end = strstr(target->name, ".weight");
    int stem = (int)(end != NULL ? (size_t)(end - target->name) : strlen(target->name));
    snprintf(tensor->name, sizeof tensor->name, "%.*s.%s.weight", stem, target->name, matrix);
    tensor->init = init;
    tensor->is_adapter = true;
    return tensor;
}

void modeli_list_expert_adapters(model *self, const modeli_whole *whole, const modeli_layer *layer,
                                 modeli_part *part, modeli_lister *lister)
{
    uint64_t rank = self->spec.lora.rank, experts = layer->matrix_rows;
    uint32_t first = first_target(self->products->family, layer->row);
    for (uint32_t which = 0; which < 2; which++) {
        const model_tensor *target = &whole->tensors[layer->first_tensor + which];
        uint32_t number = 2 * (first + which);
        if (!modeli_has_expert_adapter(layer, (enum modeli_expert_matrix)which))
            continue;
        for (uint32_t is_b = 0; is_b < 2; is_b++) {
            uint64_t each = is_b ? target->rows / experts : rank; /* rows of one expert */
            model_tensor *tensor =
                add_tensor(self, lister, target, is_b ? "lora_B" : "lora_A", part->rows * each,
                           is_b ? rank : target->columns,
                           is_b ? TENSOR_INIT_ZERO : TENSOR_INIT_UNIFORM, number + is_b);
            tensor->row_begin = part->row_begin * each;
            tensor->whole_rows = experts * each;
            *(is_b ? &part->adapters[which].b : &part->adapters[which].a) = tensor->offset_elems;
        }
    }
}

/* Adds A and B of every target after the unit's own tensors. The offsets are the same in
 * every block. */
void modeli_list_adapters(model *self, const modeli_whole *whole, modeli_lister *lister)
{
    const modeli_list *list = &self->products->block;
    const model_lora *lora = &self->spec.lora;
    uint32_t count = 0;
    for (uint32_t i = 0; i < list->layer_count; i++) {
        const modeli_layer *layer = &list->layers[i];
        uint32_t target_idx = first_target(self->products->family, layer->row);
        uint64_t column = 0;
        for (uint32_t k = 0; layer->kind == &modeli_linear && column < layer->out; k++) {
            const model_tensor *target = &whole->tensors[layer->first_tensor + k];
            if (lora->targets >> target_idx & 1) {
                modeli_adapter *adapter = &self->products->adapters[count++];
                adapter->layer = i;
                adapter->in = target->columns;
                adapter->out = target->rows;
                adapter->column = column;
                adapter->target = target_idx;
                adapter->a = add_tensor(self, lister, target, "lora_A", lora->rank, adapter->in,
                                        TENSOR_INIT_UNIFORM, 2 * target_idx)
                                 ->offset_elems;
                adapter->b = add_tensor(self, lister, target, "lora_B", adapter->out, lora->rank,
                                        TENSOR_INIT_ZERO, 2 * target_idx + 1)
                                 ->offset_elems;
            }
            column += target->rows;
            target_idx++;
        }
    }
    self->products->adapter_count = count;
}

/* The offset in its half of the split unit of tensor `idx` of the whole unit. */
static uint64_t offset_of(const model *self, uint32_t unit, uint32_t idx)
{
    uint32_t i = 0;
    while (self->products->origins[unit].tensors[i] != idx) {
        i++;
        assert(i < self->units[unit].tensor_count);
    }
    return self->units[unit].tensors[i].offset_elems;
}

void modeli_note_split(model *self, modeli_list *list, uint32_t stage)
{
    modeli_whole whole;
    modeli_list_whole(self, list, 0, &whole);
    /* Offsets only get smaller, so a new one is not taken for that of a later tensor. */
    for (uint32_t i = 0; i < whole.unit.tensor_count && list->is_split; i++) {
        modeli_layer *layer = &list->layers[whole.layers[i]];
        uint64_t *offsets[] = {&layer->at.weight, &layer->at.second, &layer->at.bias};
        uint32_t unit = modeli_goes_apart(self, list, layer, &whole.tensors[i]) ? 1 : 0;
        for (uint32_t k = 0; k < 3; k++)
            if (*offsets[k] == whole.tensors[i].offset_elems) {
                *offsets[k] = offset_of(self, modeli_stage_unit(self, stage) + unit, i);
                *(k < 2 ? &layer->unit : &layer->bias_unit) = unit;
                break;
            }
    }
}

/* ---- which units learn ---- */

static bool head_unit_learns(const model_spec *spec, const model_unit *unit)
{
    bool has_matrix = false;
    for (uint32_t i = 0; i < unit->tensor_count; i++)
        has_matrix = has_matrix || unit->tensors[i].init == TENSOR_INIT_NORMAL;
    return is_chosen(spec, spec->learn.head) || (!has_matrix && is_chosen(spec, spec->learn.norms));
}

void modeli_note_learning(model *self)
{
    const model_spec *spec = &self->spec;
    uint32_t head = self->stage_count - 1, head_unit = modeli_stage_unit(self, head), unit = 0;
    self->first_learning = is_chosen(spec, spec->learn.embed) ? 0 : head;
    for (; unit < modeli_stage_unit(self, 1); unit++)
        self->units[unit].is_frozen = !is_chosen(spec, spec->learn.embed);
    for (uint32_t stage = 1; stage < head; stage++) {
        uint32_t end = modeli_stage_unit(self, stage + 1);
        bool learns = block_learns(spec, model_block_of(self, stage));
        const modeli_list *list = modeli_list_of(self, stage);
        bool splits = list->is_split && !modeli_vectors_are_apart(self, list);
        bool adapts = list->part_count > 0 && list->parts[list->part_count - 1].has_adapters;
        if (learns || splits || adapts)
            self->first_learning = (uint32_t)size_min(self->first_learning, stage);
        for (; unit < end; unit++) /* other second units exist only if they learn */
            self->units[unit].is_frozen =
                self->units[unit].tensors[0].is_exact || (!learns && !(splits && unit + 1 == end) &&
                                                          !self->units[unit].tensors[0].is_adapter);
    }
    assert(unit == head_unit);
    for (; unit < self->unit_count; unit++)
        self->units[unit].is_frozen = !head_unit_learns(spec, &self->units[unit]);
    for (unit = 0; unit < self->unit_count; unit++) {
        self->param_count += self->units[unit].param_count;
        if (!self->units[unit].is_frozen)
            self->learning_count += self->units[unit].param_count;
    }
}

modeli_work modeli_work_of(const model *self, uint32_t stage)
{
    const struct stage *source = &self->stages[stage];
    const model_spec *spec = &self->spec;
    modeli_work work = {.input = stage > self->first_learning};
    switch (source->kind) {
    case STAGE_EMBED:
        work.weights = is_chosen(spec, spec->learn.embed);
        break;
    case STAGE_BLOCK:
        work.weights = block_learns(spec, model_block_of(self, stage));
        work.norms = work.weights || is_chosen(spec, spec->learn.norms);
        break;
    case STAGE_HEAD:
        work.weights = spec->tie_embeddings ? is_chosen(spec, spec->learn.embed)
                                            : is_chosen(spec, spec->learn.head);
        work.norms = is_chosen(spec, spec->learn.head) || is_chosen(spec, spec->learn.norms);
        break;
    }
    bool begins_with_norm = modeli_list_of(self, stage)->layers[0].kind->is_norm;
    work.inner = work.input || (work.norms && begins_with_norm);
    return work;
}
