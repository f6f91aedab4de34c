/* Which units learn. Checks the selection and brings it to one form. Splits a unit in two if only
 * some of its tensors learn, or if there are adapters. See model.h. Allocates the tensors of split
 * units. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_internal.h"

enum { RANK_MAX = 4096 };

/* ---- the selection ---- */

const char *model_lora_target(enum model_family family, uint32_t idx)
{
    static const char *const targets[MODEL_FAMILY_COUNT][MODEL_LORA_TARGETS_MAX] = {
        [MODEL_GPT2] = {"c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"},
        [MODEL_LLAMA] = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                         "down_proj"},
    };
    return idx < MODEL_LORA_TARGETS_MAX ? targets[family][idx] : NULL;
}

/* Without a selection everything learns; with adapters only these. */
static bool learns_by_default(const model_spec *spec)
{
    return !spec->learn.is_given && spec->lora.rank == 0;
}

static bool block_learns(const model_spec *spec, uint64_t block)
{
    const model_learn *learn = &spec->learn;
    if (!learn->is_given)
        return learns_by_default(spec);
    for (uint32_t i = 0; i < learn->range_count; i++)
        if (block >= learn->blocks[i].first && block <= learn->blocks[i].last)
            return true;
    return false;
}

static bool embed_learns(const model_spec *spec)
{
    return spec->learn.is_given ? spec->learn.embed : learns_by_default(spec);
}

static bool head_learns(const model_spec *spec)
{
    return spec->learn.is_given ? spec->learn.head : learns_by_default(spec);
}

static bool norms_learn(const model_spec *spec)
{
    return spec->learn.is_given ? spec->learn.norms : learns_by_default(spec);
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
    for (uint32_t i = 0; model_lora_target(spec->family, i) != NULL; i++)
        known |= 1u << i;
    if (lora->targets == 0 || (lora->targets & ~known) != 0)
        return err_set(ERR_CONFIG, "train.lora.targets names no layer, or one that is not there");
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
    if (learn->is_given && !has_any)
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

void modeli_choose_split(model *self)
{
    const model_spec *spec = &self->spec;
    modeli_shape *shape = &self->products->shape;
    bool is_given = spec->learn.is_given;
    self->products->splits_block = norms_are_apart(spec) || spec->lora.rank > 0;
    self->products->splits_head =
        is_given && spec->learn.norms && !spec->learn.head && !spec->tie_embeddings;
    shape->norm_unit = norms_are_apart(spec) ? 1 : 0;
    /* modeli_note_split sets it, when it is known whether the head is cut */
    shape->norm_final_unit = 0;
}

int modeli_check_split(const model *self)
{
    if (self->products->block.count == 0 || !self->products->splits_block)
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

static bool is_pair(const modeli_pair *pair, uint64_t offset_elems)
{
    return pair->weight == offset_elems || pair->bias == offset_elems;
}

/* True if this tensor of a whole unit goes to the second unit. */
static bool goes_apart(const model *self, bool is_head, uint64_t offset_elems)
{
    const modeli_shape *shape = &self->products->shape;
    if (is_head)
        return is_pair(&shape->norm_final, offset_elems);
    return norms_are_apart(&self->spec) &&
           (is_pair(&shape->norm1, offset_elems) || is_pair(&shape->norm2, offset_elems) ||
            offset_elems == shape->q_norm || offset_elems == shape->k_norm);
}

/* Copies the tensors of one of the two units. A tensor that directly followed the one before does
 * so here too. */
static void list_half(model *self, const model_unit *source, bool is_head, bool apart,
                      modeli_lister *list)
{
    modeli_origin *origin = &self->products->origins[list->unit - self->units];
    uint64_t previous_end = MODELI_ABSENT;
    for (uint32_t i = 0; i < source->tensor_count; i++) {
        const model_tensor *from = &source->tensors[i];
        if (goes_apart(self, is_head, from->offset_elems) != apart)
            continue;
        origin->tensors[list->unit->tensor_count] = i;
        model_tensor *tensor =
            modeli_append(list, from->rows, from->columns, from->offset_elems == previous_end);
        uint64_t offset = tensor->offset_elems;
        *tensor = *from;
        tensor->offset_elems = offset;
        previous_end = from->offset_elems + from->rows * from->columns;
    }
}

/* True if the tensor is that of a target: "model.layers.3.self_attn.q_proj.weight" for "q_proj". */
static bool is_target(const char *tensor, const char *target)
{
    static const char end[] = ".weight";
    size_t target_bytes = strlen(target), tensor_bytes = strlen(tensor);
    size_t tail_bytes = 1 + target_bytes + sizeof end - 1;
    if (tensor_bytes <= tail_bytes)
        return false;
    const char *tail = tensor + tensor_bytes - tail_bytes;
    return tail[0] == '.' && strncmp(tail + 1, target, target_bytes) == 0 &&
           strcmp(tail + 1 + target_bytes, end) == 0;
}

static const model_tensor *find_target(const model_unit *source, const char *target)
{
    for (uint32_t i = 0; i < source->tensor_count; i++)
        if (is_target(source->tensors[i].name, target))
            return &source->tensors[i];
    assert(!"every target has a tensor");
    return NULL;
}

/* The linear layer whose matrix holds this element of the whole block; *row is the element's row
 * there. */
static enum modeli_layer layer_at(const model *self, uint64_t offset_elems, uint64_t *row)
{
    for (uint32_t i = MODELI_LAYER_QKV; i <= MODELI_LAYER_DOWN; i++) {
        enum modeli_layer layer = (enum modeli_layer)i;
        uint64_t begin = modeli_layer_whole(&self->products->shape, layer).weight;
        uint64_t columns = modeli_layer_columns(self, layer);
        if (offset_elems < begin ||
            offset_elems - begin >= modeli_layer_rows(self, layer) * columns)
            continue;
        *row = (offset_elems - begin) / columns;
        return layer;
    }
    assert(!"a target's tensor is a linear layer's");
    return MODELI_LAYER_QKV;
}

/* Adds a matrix of an adapter. Its name is that of the target's weight with `matrix` before the
 * end. */
static uint64_t add_matrix(model *self, modeli_lister *list, const model_tensor *target,
                           const char *matrix, uint64_t rows, uint64_t columns,
                           enum tensor_init init, uint32_t number)
{
    modeli_origin *origin = &self->products->origins[list->unit - self->units];
    origin->tensors[list->unit->tensor_count] = MODELI_ADAPTER_ORIGIN + number;
    model_tensor *tensor = modeli_append(list, rows, columns, false);
    int stem = (int)(strrchr(target->name, '.') - target->name);
    snprintf(tensor->name, sizeof tensor->name, "%.*s.%s.weight", stem, target->name, matrix);
    tensor->init = init;
    tensor->is_adapter = true;
    return tensor->offset_elems;
}

/* Adds A and B of every target after the unit's own tensors. The offsets are the same in
 * every block. */
static void list_adapters(model *self, const model_unit *source, modeli_lister *list)
{
    const model_lora *lora = &self->spec.lora;
    const char *name;
    uint32_t count = 0;
    for (uint32_t i = 0; (name = model_lora_target(self->spec.family, i)) != NULL; i++) {
        if (!(lora->targets >> i & 1))
            continue;
        const model_tensor *target = find_target(source, name);
        modeli_adapter *adapter = &self->products->adapters[count++];
        adapter->layer = layer_at(self, target->offset_elems, &adapter->column);
        adapter->in = target->columns;
        adapter->out = target->rows;
        adapter->a = add_matrix(self, list, target, "lora_A", lora->rank, adapter->in,
                                TENSOR_INIT_UNIFORM, 2 * i);
        adapter->b = add_matrix(self, list, target, "lora_B", adapter->out, lora->rank,
                                TENSOR_INIT_ZERO, 2 * i + 1);
    }
    self->products->adapter_count = count;
}

int modeli_list_split(model *self, uint32_t stage, const model_unit *source, const char *name)
{
    bool is_head = stage + 1 == self->stage_count;
    uint32_t first = modeli_stage_unit(self, stage);
    modeli_lister list;
    TRY(modeli_open_unit(self, first, stage, &list));
    list_half(self, source, is_head, false, &list);
    snprintf(list.unit->name, sizeof list.unit->name, "%s", name);
    TRY(modeli_open_unit(self, first + 1, stage, &list));
    list_half(self, source, is_head, true, &list);
    const char *kind = is_head ? "norm" : self->spec.lora.rank > 0 ? "lora" : "norms";
    snprintf(list.unit->name, sizeof list.unit->name, "%s.%s", name, kind);
    if (!is_head && self->spec.lora.rank > 0)
        list_adapters(self, source, &list);
    return 0;
}

/* The offset in the split unit of a tensor of the whole unit. */
static uint64_t moved(const model *self, uint32_t stage, const model_unit *source,
                      uint64_t offset_elems)
{
    uint32_t idx = 0, first = modeli_stage_unit(self, stage);
    if (offset_elems == MODELI_ABSENT)
        return MODELI_ABSENT;
    while (source->tensors[idx].offset_elems != offset_elems) {
        idx++;
        assert(idx < source->tensor_count);
    }
    for (uint32_t u = first; u < first + 2; u++)
        for (uint32_t i = 0; i < self->units[u].tensor_count; i++)
            if (self->products->origins[u].tensors[i] == idx)
                return self->units[u].tensors[i].offset_elems;
    assert(!"a tensor of the whole unit is in neither half");
    return MODELI_ABSENT;
}

static void move_pair(const model *self, uint32_t stage, const model_unit *source,
                      modeli_pair *pair)
{
    pair->weight = moved(self, stage, source, pair->weight);
    pair->bias = moved(self, stage, source, pair->bias);
}

void modeli_note_split(model *self, const modeli_whole *whole)
{
    modeli_shape *shape = &self->products->shape;
    if (self->products->splits_block) {
        modeli_pair *pairs[] = {&shape->norm1, &shape->qkv, &shape->proj,
                                &shape->norm2, &shape->up,  &shape->down};
        for (uint32_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
            move_pair(self, 1, &whole->block, pairs[i]);
        shape->q_norm = moved(self, 1, &whole->block, shape->q_norm);
        shape->k_norm = moved(self, 1, &whole->block, shape->k_norm);
    }
    if (self->products->splits_head) {
        uint32_t head = self->stage_count - 1;
        move_pair(self, head, &whole->head, &shape->norm_final);
        shape->output_matrix = moved(self, head, &whole->head, shape->output_matrix);
        shape->norm_final_unit = 1;
    }
}

/* ---- which units learn ---- */

static bool is_norm_part(const model *self, uint32_t unit)
{
    const modeli_parts *head = &self->products->head;
    return head->count > 0 && unit == head->items[0].unit;
}

static bool head_unit_learns(const model *self, uint32_t unit)
{
    const model_spec *spec = &self->spec;
    bool is_norm = self->products->splits_head ? unit + 1 == self->unit_count
                                               : spec->tie_embeddings || is_norm_part(self, unit);
    return head_learns(spec) || (is_norm && norms_learn(spec));
}

void modeli_note_learning(model *self)
{
    const model_spec *spec = &self->spec;
    uint32_t head = self->stage_count - 1, head_unit = modeli_stage_unit(self, head), unit = 0;
    self->first_learning = embed_learns(spec) ? 0 : head;
    for (; unit < modeli_stage_unit(self, 1); unit++)
        self->units[unit].is_frozen = !embed_learns(spec);
    for (uint32_t stage = 1; stage < head; stage++) {
        uint32_t end = modeli_stage_unit(self, stage + 1);
        bool splits = self->products->splits_block, learns = block_learns(spec, stage - 1);
        if (learns || splits)
            self->first_learning = (uint32_t)size_min(self->first_learning, stage);
        for (; unit < end; unit++) /* a second unit exists only if it learns */
            self->units[unit].is_frozen = !learns && !(splits && unit + 1 == end);
    }
    assert(unit == head_unit);
    for (; unit < self->unit_count; unit++)
        self->units[unit].is_frozen = !head_unit_learns(self, unit);
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
        work.weights = embed_learns(spec);
        break;
    case STAGE_BLOCK:
        work.weights = block_learns(spec, stage - 1);
        work.norms = work.weights || norms_learn(spec);
        break;
    case STAGE_HEAD:
        work.weights = spec->tie_embeddings ? embed_learns(spec) : head_learns(spec);
        work.norms = head_learns(spec) || norms_learn(spec);
        break;
    }
    work.inner = work.input || work.norms;
    return work;
}
