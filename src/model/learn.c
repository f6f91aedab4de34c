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

/* Targets are numbered group by group, in the order of the rows. */
enum target_group {
    TARGETS_BLOCK,  /* linear layers of the first stage */
    TARGETS_ROUTED, /* matrices of all routed experts */
    TARGETS_DENSE,  /* linear layers in place of experts, in the first blocks of a mixture */
    TARGETS_SHARED, /* the layers of a shared expert */
    TARGET_GROUPS
};

static const modeli_row *rows_of(const modeli_family *family, enum target_group group)
{
    return group == TARGETS_BLOCK   ? family->block
           : group == TARGETS_DENSE ? family->dense
                                    : family->experts;
}

/* Counts the row's targets of a group. */
static uint32_t target_count(const modeli_row *row, enum target_group group)
{
    uint32_t count = 0;
    bool is_of_group = group == TARGETS_ROUTED ? row->kind == &modeli_experts && !row->is_shared
                                               : row->kind == &modeli_linear;
    if (group == TARGETS_SHARED && row->kind == &modeli_experts)
        is_of_group = row->is_shared;
    while (is_of_group && count < MODELI_ROW_TENSORS_MAX && row->weights[count].name != NULL)
        count++;
    return count;
}

/* A target of a family. */
struct target {
    enum target_group group;
    const modeli_row *row; /* NULL: there is no such target */
    uint32_t idx;          /* which of the row's matrices */
};

static struct target find_target(const modeli_family *family, uint32_t idx)
{
    for (int g = 0; g < TARGET_GROUPS; g++) {
        struct target of = {.group = (enum target_group)g};
        of.row = rows_of(family, of.group);
        for (; of.row != NULL && of.row->kind != NULL; of.row++) {
            uint32_t count = target_count(of.row, of.group);
            of.idx = idx;
            if (idx < count)
                return of;
            idx -= count;
        }
    }
    return (struct target){0};
}

uint32_t modeli_first_target(const modeli_family *family, const modeli_row *row)
{
    for (uint32_t i = 0; i < MODEL_LORA_TARGETS_MAX; i++)
        if (find_target(family, i).row == row)
            return i;
    return MODEL_LORA_TARGETS_MAX;
}

const char *model_lora_target(enum model_family family, uint32_t idx)
{
    const modeli_family *of = modeli_family_of(family);
    struct target target = find_target(of, idx);
    if (target.row == NULL)
        return NULL;
    if (target.group == TARGETS_BLOCK)
        return target_of(of->block, target.row->weights[target.idx].name);
    /* "mlp.experts.down_proj" */
    return strstr(target.row->weights[target.idx].name, "%llu.") + 5;
}

bool model_lora_is_expert(enum model_family family, uint32_t idx)
{
    return find_target(modeli_family_of(family), idx).group == TARGETS_ROUTED;
}

bool model_lora_is_there(const model_spec *spec, uint32_t idx)
{
    struct target target = find_target(modeli_family_of(spec->family), idx);
    bool has_experts = spec->expert_count > 0 && spec->dense_blocks < spec->num_layers;
    if (target.row == NULL || (target.group == TARGETS_DENSE && spec->dense_blocks == 0) ||
        ((target.group == TARGETS_ROUTED || target.group == TARGETS_SHARED) && !has_experts))
        return false;
    return target.row->is_there == MODELI_UNSET || modeli_is_there(spec, target.row->is_there);
}

/* The spec's targets that are of a group, as bits. */
static uint32_t targets_of(const model_spec *spec, enum target_group group)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < MODEL_LORA_TARGETS_MAX && spec->lora.rank > 0; i++)
        if (find_target(modeli_family_of(spec->family), i).group == group)
            bits |= spec->lora.targets & 1u << i;
    return bits;
}

/* True if matrix `idx` of the layer has an adapter. */
static bool is_target(const modeli_layer *layer, uint32_t idx)
{
    const model_lora *lora = &layer->net->spec.lora;
    uint32_t first = modeli_first_target(layer->net->products->family, layer->row);
    return lora->rank > 0 && first < MODEL_LORA_TARGETS_MAX &&
           (lora->targets >> (first + idx) & 1) != 0;
}

bool modeli_has_expert_adapter(const modeli_layer *layer, uint32_t matrix)
{
    return layer->kind == &modeli_experts && is_target(layer, matrix);
}

bool modeli_has_adapter(const modeli_layer *layer)
{
    bool has = false;
    for (uint32_t i = 0; i < MODELI_ROW_TENSORS_MAX && layer->kind == &modeli_linear; i++)
        has = has || (layer->row->weights[i].name != NULL && is_target(layer, i));
    return has;
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

bool modeli_names_experts(const model_spec *spec)
{
    return spec->lora.rank > 0 && targets_of(spec, TARGETS_ROUTED) != 0;
}

static int check_lora(const model_spec *spec)
{
    const model_lora *lora = &spec->lora;
    uint32_t known = 0;
    const char *name;
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
    bool has_experts = spec->expert_count > 0 && spec->dense_blocks < spec->num_layers;
    uint32_t routed = targets_of(spec, TARGETS_ROUTED);
    if ((routed | targets_of(spec, TARGETS_SHARED)) != 0 && !has_experts)
        return err_set(ERR_CONFIG, "train.lora.targets names experts, which this model does not "
                                   "have");
    for (uint32_t i = 0; (name = model_lora_target(spec->family, i)) != NULL; i++)
        if ((lora->targets >> i & 1) != 0 && !model_lora_is_there(spec, i))
            return err_set(ERR_CONFIG,
                           "train.lora.targets names %s, which this model does not have", name);
    if (lora->dropout > 0 && routed != 0)
        return err_set(
            ERR_CONFIG,
            "train.lora.dropout is %g, but adapters of routed experts have none: set it to 0, or "
            "take experts out of train.lora.targets",
            lora->dropout);
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
    if (learn->all) {
        learn->embed = learn->head = learn->norms = true;
        learn->blocks[0] = (model_range){0, spec->num_layers - 1};
        learn->range_count = 1;
    }
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
    self->products->dense.is_split = targets_of(spec, TARGETS_DENSE) != 0;
    block->is_split = norms_are_apart(spec) || targets_of(spec, TARGETS_BLOCK) != 0 ||
                      (modeli_vectors_are_apart(self, block) && block->part_count == 0);
    bool only_norms = spec->learn.is_given && spec->learn.norms && !spec->learn.head;
    self->products->head.is_split = only_norms && !spec->tie_embeddings;
    self->products->last.is_split = only_norms && self->products->last.layer_count > 0;
}

int modeli_check_split(const model *self)
{
    const modeli_list *block = &self->products->block, *last = &self->products->last;
    const modeli_list *dense = &self->products->dense, *experts = &self->products->experts;
    bool has_both = (block->part_count > 0 && block->is_split) ||
                    (dense->part_count > 0 && dense->is_split) ||
                    (last->part_count > 0 && last->is_split);
    for (uint32_t i = 0; i < experts->part_count; i++) {
        const modeli_part *part = &experts->parts[i];
        bool is_whole = part->is_first && part->is_last;
        has_both |=
            part->has_adapters && !is_whole && modeli_has_adapter(&experts->layers[part->owner]);
    }
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
    bool is_of_block = list == &self->products->block || list == &self->products->dense;
    return list->is_split && layer->kind->is_norm && (!is_of_block || norms_are_apart(&self->spec));
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
        bool adapts = false;
        for (uint32_t i = 0; i < list->part_count; i++)
            adapts = adapts || list->parts[i].has_adapters;
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
    for (unit = 0; unit < self->unit_count; unit++)
        self->param_count += self->units[unit].param_count;
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
