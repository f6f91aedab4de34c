/* How units that are too large are cut (memory-centric tiling): which parts there are, each with
 * rows of one layer. Depends only on the spec, the type and max_part_bytes. Allocates the lists of
 * parts. */
#include <assert.h>
#include <errno.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "model/model_internal.h"

enum {
    ROWS_STEP_MAX = 128, /* columns of activations then begin on multiples of 256 bytes */
    ROWS_STEP_MIN = 16,
    PARTS_MAX = 1 << 20, /* of the whole model, so that counts stay far below 2^32 */
};

static uint64_t add_aligned(uint64_t end, uint64_t elems)
{
    return size_round_up(end, MODEL_TENSOR_ALIGN_ELEMS) + elems;
}

/* Elements of the unit of a part with `rows` rows of an owner's matrix, as units.c lists it. Any
 * part may be the last. */
static uint64_t part_elems(const model *self, const modeli_list *list, const modeli_layer *owner,
                           bool is_first, uint64_t rows)
{
    uint64_t end = 0;
    uint32_t idx = (uint32_t)(owner - list->layers);
    for (uint32_t i = is_first ? owner->forward_begin : idx; i < owner->forward_end; i++) {
        const modeli_layer *layer = &list->layers[i];
        if (layer->kind->has_experts) {
            uint64_t groups = modeli_expert_groups(layer), count = size_div_up(rows, groups);
            uint64_t matrix = count * modeli_expert_elems(layer) / 3;
            uint64_t wide = count * 2 * modeli_expert_width(layer), narrow = count * layer->in;
            bool has_bias = layer->at.bias != MODELI_ABSENT;
            end = add_aligned(end, 2 * matrix);
            end = add_aligned(end, matrix);
            end = has_bias ? add_aligned(add_aligned(end, wide), narrow) : end;
            end = groups > 1 ? groups * size_round_up(end, SHARD_ELEMS_STEP) : end;
            continue;
        }
        const uint64_t params[] = {layer->at.weight, layer->at.second, layer->at.bias};
        uint64_t vector = modeli_width_of(self, layer->row->weights[0].width);
        for (uint32_t k = 0; k < sizeof params / sizeof params[0]; k++) {
            if (params[k] == MODELI_ABSENT || (i == idx && rows == 0 && owner->matrix_rows > 0))
                continue;
            bool is_vector = layer->matrix_rows == 0 || layer->kind->is_constant;
            end = add_aligned(end, is_vector ? vector : k == 0 ? rows * layer->in : rows);
        }
    }
    return size_round_up(end, SHARD_ELEMS_STEP);
}

static bool fits(const model *self, const modeli_list *list, const modeli_layer *owner,
                 bool is_first, uint64_t rows)
{
    uint64_t elems = part_elems(self, list, owner, is_first, rows);
    return self->spec.max_part_bytes == 0 ||
           elems * dtype_bytes(self->type) <= self->spec.max_part_bytes;
}

/* Rows of a part if `left` rows are left: as many as fit. They are rounded down to a multiple of
 * ROWS_STEP_MAX if that costs at most a quarter of them, else to a smaller step, at least
 * ROWS_STEP_MIN. */
static uint64_t rows_of_part(const model *self, const modeli_list *list, const modeli_layer *owner,
                             bool is_first, uint64_t left)
{
    if (owner->kind->has_experts)
        left = size_min(left, self->spec.experts_per_unit);
    if (fits(self, list, owner, is_first, left))
        return left;
    if (owner->kind->is_one_part)
        return 0;
    uint64_t low = 0, high = left; /* low fits (or is 0); high does not fit */
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (fits(self, list, owner, is_first, middle))
            low = middle;
        else
            high = middle;
    }
    if (owner->kind->has_experts)
        return low - low % modeli_expert_groups(owner);
    uint64_t step = ROWS_STEP_MAX;
    while (step > ROWS_STEP_MIN && low < 4 * step)
        step /= 2;
    return low < step ? low : low - low % step;
}

/* The smallest max_part_bytes at which every layer can be cut. */
static uint64_t least_part_bytes(const model *self)
{
    const model_products *products = self->products;
    const modeli_list *lists[] = {&products->embed,   &products->block, &products->dense,
                                  &products->experts, &products->last,  &products->head};
    uint64_t elems = 0;
    for (uint32_t k = 0; k < sizeof lists / sizeof lists[0]; k++)
        for (uint32_t i = 0; i < lists[k]->layer_count; i++) {
            const modeli_layer *layer = &lists[k]->layers[i];
            uint64_t least =
                layer->kind->is_one_part ? layer->matrix_rows : modeli_expert_groups(layer);
            if (layer->forward_end > i)
                elems = size_max(elems, part_elems(self, lists[k], layer, true, least));
        }
    return elems * dtype_bytes(self->type);
}

static int refuse_row(const model *self, const modeli_list *list, const modeli_layer *owner,
                      bool is_first)
{
    bool has_rows = owner->matrix_rows > 0;
    bool has_before = is_first && &list->layers[owner->forward_begin] != owner;
    uint64_t least = owner->kind->is_one_part ? owner->matrix_rows : modeli_expert_groups(owner);
    uint64_t need = part_elems(self, list, owner, is_first, least) * dtype_bytes(self->type);
    const char *what = !has_rows ? "the final norm"
                       : least > 1 && owner->kind->has_experts
                           ? "one expert of each rank of the layer"
                       : owner->kind->has_experts ? "one expert of the layer"
                       : owner->kind->is_one_part ? "a norm and the layer"
                       : has_before               ? "a norm and one row of the layer"
                                                  : "one row of the layer";
    return err_set(
        ERR_CONFIG,
        "model.max_part_bytes is %llu, but %s%s%s needs %llu bytes in %s: set it to %llu "
        "or more, or to 0 for units that are never cut",
        (unsigned long long)self->spec.max_part_bytes, what, has_rows ? " " : "",
        has_rows ? owner->row->name : "", (unsigned long long)need, dtype_name(self->type),
        (unsigned long long)least_part_bytes(self));
}

/* Appends the parts of one layer. Their units are numbered from *unit on. */
static int cut_layer(const model *self, modeli_list *list, uint32_t idx, uint32_t *unit)
{
    const modeli_layer *owner = &list->layers[idx];
    uint64_t whole = owner->matrix_rows;
    uint64_t first = rows_of_part(self, list, owner, true, whole);
    uint64_t next = whole > first ? rows_of_part(self, list, owner, false, whole) : 1;
    if (whole > 0 && (first == 0 || next == 0))
        return refuse_row(self, list, owner, first == 0);
    if (whole == 0 && !fits(self, list, owner, true, 0))
        return refuse_row(self, list, owner, true);
    uint64_t count = 1 + size_div_up(whole - first, next);
    if (count > PARTS_MAX)
        return err_set(
            ERR_CONFIG,
            "model.max_part_bytes is %llu, which cuts the layer %s into %llu parts; at most %d are "
            "possible: raise it",
            (unsigned long long)self->spec.max_part_bytes, owner->row->name,
            (unsigned long long)count, PARTS_MAX);
    modeli_part *parts =
        mem_resize(list->parts, list->part_count + count, sizeof *parts, "model.parts");
    if (parts == NULL)
        return -ENOMEM;
    list->parts = parts;
    uint64_t row = 0;
    bool has_adapters = list == &self->products->experts && modeli_has_adapter(owner);
    for (uint32_t i = 0; owner->kind->has_experts && i <= modeli_expert_down(owner); i++)
        has_adapters = has_adapters || modeli_has_expert_adapter(owner, i);
    for (uint64_t i = 0; i < count; i++) {
        modeli_part *part = &parts[list->part_count++];
        part->owner = idx;
        part->is_first = i == 0;
        part->is_last = i + 1 == count;
        part->row_begin = row;
        part->rows = part->is_first ? first : size_min(next, whole - row);
        part->unit = (*unit)++;
        part->has_adapters = has_adapters;
        *unit += part->has_adapters;
        row += part->rows;
    }
    assert(row == whole);
    return 0;
}

static int cut_list(const model *self, modeli_list *list, uint32_t *unit)
{
    for (uint32_t i = 0; i < list->layer_count; i++)
        if (list->layers[i].forward_end > i)
            TRY(cut_layer(self, list, i, unit));
    return 0;
}

/* The parts of a tied head whose embedding is cut: the norm, then the embedding's table parts
 * again. */
static int share_table(const model *self, uint32_t *unit)
{
    const modeli_list *embed = &self->products->embed;
    modeli_list *head = &self->products->head;
    uint32_t count = 0;
    while (count < embed->part_count && embed->parts[count].owner == MODELI_TABLE)
        count++;
    TRY(cut_layer(self, head, MODELI_FINAL_NORM, unit));
    modeli_part *parts = mem_resize(head->parts, 1 + count, sizeof *parts, "model.parts");
    if (parts == NULL)
        return -ENOMEM;
    head->parts = parts;
    for (uint32_t i = 0; i < count; i++) {
        parts[1 + i] = embed->parts[i];
        parts[1 + i].owner = MODELI_OUTPUT_MATRIX;
    }
    head->part_count = 1 + count;
    return 0;
}

static bool is_too_large(const model *self, modeli_list *list, modeli_whole *whole)
{
    uint64_t most = self->spec.max_part_bytes;
    modeli_list_whole(self, list, 0, whole);
    return most != 0 && whole->unit.elems * dtype_bytes(self->type) > most;
}

/* Units of a block; its parts have been counted. */
static uint64_t units_of(const modeli_list *list)
{
    return size_max(list->part_count, 1) + (list->is_split ? 1 : 0);
}

/* Units of the second stages of the first `count` blocks. */
static uint64_t second_units(const model *self, uint64_t count)
{
    uint64_t dense = size_min(count, self->spec.dense_blocks);
    return dense * units_of(&self->products->dense) +
           (count - dense) * self->products->experts.unit_count;
}

int modeli_cut(model *self)
{
    model_products *products = self->products;
    uint32_t embed_units = 0, block_units = 0, dense_units = 0, experts_units = 0, last_units = 0;
    uint32_t unit;
    modeli_whole whole;
    /* All whole units are listed first: the parts' bytes follow from the layers' tensors. */
    bool cuts_embed = is_too_large(self, &products->embed, &whole);
    bool cuts_block = is_too_large(self, &products->block, &whole);
    bool cuts_dense = is_too_large(self, &products->dense, &whole);
    bool cuts_last = is_too_large(self, &products->last, &whole);
    bool cuts_head = is_too_large(self, &products->head, &whole);
    if (cuts_embed)
        TRY(cut_list(self, &products->embed, &embed_units));
    if (cuts_block)
        TRY(cut_list(self, &products->block, &block_units));
    if (cuts_dense)
        TRY(cut_list(self, &products->dense, &dense_units));
    if (products->experts.layer_count > 0) { /* always in parts */
        modeli_list_whole(self, &products->experts, 0, &whole);
        TRY(cut_list(self, &products->experts, &experts_units));
        products->experts.unit_count = experts_units;
    }
    if (cuts_last)
        TRY(cut_list(self, &products->last, &last_units));
    modeli_choose_split(self);

    uint64_t before = size_max(embed_units, 1) + self->spec.num_layers * units_of(&products->block);
    before += second_units(self, self->spec.num_layers);
    before += products->last.layer_count > 0 ? units_of(&products->last) : 0;
    if (before > 2 * PARTS_MAX && self->spec.max_part_bytes == 0)
        return err_set(ERR_CONFIG,
                       "model.experts_per_unit is %llu, which cuts the model into %llu units; at "
                       "most %d are possible: raise it",
                       (unsigned long long)self->spec.experts_per_unit, (unsigned long long)before,
                       2 * PARTS_MAX);
    if (before > 2 * PARTS_MAX)
        return err_set(
            ERR_CONFIG,
            "model.max_part_bytes is %llu, which cuts the model into %llu units; at most "
            "%d are possible: raise it",
            (unsigned long long)self->spec.max_part_bytes, (unsigned long long)before,
            2 * PARTS_MAX);
    unit = (uint32_t)before;
    if (self->spec.tie_embeddings)
        TRY(cuts_embed ? share_table(self, &unit) : 0);
    else if (cuts_head)
        TRY(cut_list(self, &products->head, &unit));
    if (cuts_head && products->head.part_count == 0)
        return refuse_row(self, &products->head, modeli_final_norm_of(self), true);
    TRY(modeli_check_split(self));
    if (products->head.part_count > 0)
        products->head.is_split = false; /* its norm is a unit already */
    self->unit_count =
        unit + (products->head.part_count == 0 ? 1 : 0) + (products->head.is_split ? 1 : 0);
    return 0;
}

uint32_t modeli_stage_unit(const model *self, uint32_t stage)
{
    if (stage == 0)
        return 0;
    const model_products *products = self->products;
    uint64_t embed = size_max(products->embed.part_count, 1);
    uint64_t layers = self->spec.num_layers, stages = modeli_block_stages(self);
    uint64_t blocks = size_min(size_div_up(stage - 1, stages), layers), last = layers * stages + 1;
    uint64_t second = stages == 2 ? second_units(self, size_min((stage - 1) / 2, layers)) : 0;
    return (uint32_t)(embed + blocks * units_of(&products->block) + second +
                      (stage > last ? stage - last : 0) * units_of(&products->last));
}
