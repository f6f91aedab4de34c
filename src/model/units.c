/* The units of a model and their tensors. The families list whole units; if a unit is cut, its
 * tensors go to the parts by rows. model_create calls this, and it allocates the lists. Then the
 * initial weights. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/size.h"
#include "base/tile.h"
#include "model/model_internal.h"

model_tensor *modeli_append(modeli_lister *list, uint64_t rows, uint64_t columns,
                            bool with_previous)
{
    model_unit *unit = list->unit;
    assert(unit->tensor_count < MODELI_TENSORS_MAX);
    model_tensor *tensor = &unit->tensors[unit->tensor_count++];
    tensor->rows = tensor->whole_rows = rows;
    tensor->columns = columns;
    tensor->offset_elems =
        with_previous ? list->end_elems : size_round_up(list->end_elems, MODEL_TENSOR_ALIGN_ELEMS);
    list->end_elems = tensor->offset_elems + rows * columns;
    unit->param_count += rows * columns;
    unit->elems = size_round_up(list->end_elems, SHARD_ELEMS_STEP);
    return tensor;
}

int modeli_open_unit(model *self, uint32_t unit_idx, uint32_t whole_unit, modeli_lister *list)
{
    model_unit *unit = &self->units[unit_idx];
    self->products->origins[unit_idx].unit = whole_unit;
    unit->tensors = mem_alloc(MODELI_TENSORS_MAX, sizeof *unit->tensors, "model.tensors");
    *list = (modeli_lister){.unit = unit};
    return unit->tensors == NULL ? -ENOMEM : 0;
}

static int list_whole_unit(model *self, uint32_t unit_idx, uint32_t whole_unit,
                           const model_unit *source, const char *name)
{
    modeli_lister list;
    TRY(modeli_open_unit(self, unit_idx, whole_unit, &list));
    model_tensor *tensors = list.unit->tensors;
    memcpy(tensors, source->tensors, source->tensor_count * sizeof *tensors);
    *list.unit = *source;
    list.unit->tensors = tensors;
    snprintf(list.unit->name, sizeof list.unit->name, "%s", name);
    for (uint32_t i = 0; i < source->tensor_count; i++)
        self->products->origins[unit_idx].tensors[i] = i;
    return 0;
}

/* Adds rows [begin, end) of tensor `idx` of a whole unit. A vector's elements count as rows.
 * Returns the offset in the part's unit, or MODELI_ABSENT if the range is empty. */
static uint64_t add_slice(model *self, modeli_lister *list, const model_unit *source, uint32_t idx,
                          uint64_t begin, uint64_t end, bool is_vector, bool with_previous)
{
    const model_tensor *whole = &source->tensors[idx];
    if (begin >= end)
        return MODELI_ABSENT;
    uint64_t whole_rows = is_vector ? whole->columns : whole->rows;
    uint64_t columns = is_vector ? 1 : whole->columns;
    uint32_t unit_idx = (uint32_t)(list->unit - self->units);
    self->products->origins[unit_idx].tensors[list->unit->tensor_count] = idx;
    model_tensor *tensor = modeli_append(list, end - begin, columns, with_previous);
    memcpy(tensor->name, whole->name, sizeof tensor->name);
    tensor->init = whole->init;
    tensor->row_begin = begin;
    tensor->whole_rows = whole_rows;
    if (is_vector && end - begin == whole_rows) { /* a whole vector keeps its shape */
        tensor->rows = tensor->whole_rows = 1;
        tensor->columns = whole_rows;
    }
    return tensor->offset_elems;
}

/* Adds elements [begin, end) of the vector at an offset of a whole unit. */
static uint64_t add_vector(model *self, modeli_lister *list, const model_unit *source,
                           uint64_t offset_elems, uint64_t begin, uint64_t end)
{
    if (offset_elems == MODELI_ABSENT)
        return MODELI_ABSENT;
    uint32_t idx = 0;
    while (source->tensors[idx].offset_elems != offset_elems) {
        idx++;
        assert(idx < source->tensor_count);
    }
    return add_slice(self, list, source, idx, begin, end, true, false);
}

/* Adds the part's elements of all vectors that make up the layer's bias. */
static uint64_t add_bias(model *self, modeli_lister *list, const model_unit *source,
                         uint64_t offset_elems, const modeli_part *part)
{
    uint64_t bias = MODELI_ABSENT;
    if (offset_elems == MODELI_ABSENT)
        return MODELI_ABSENT;
    uint64_t vector_end = offset_elems + modeli_layer_rows(self, part->layer);
    for (uint32_t i = 0; i < source->tensor_count; i++) {
        const model_tensor *tensor = &source->tensors[i];
        if (tensor->offset_elems < offset_elems || tensor->offset_elems >= vector_end)
            continue;
        uint64_t first = tensor->offset_elems - offset_elems;
        uint64_t low = size_max(first, part->row_begin);
        uint64_t high = size_min(first + tensor->columns, part->row_begin + part->rows);
        if (low >= high)
            continue;
        uint64_t at = add_slice(self, list, source, i, low - first, high - first, true,
                                bias != MODELI_ABSENT);
        if (bias == MODELI_ABSENT)
            bias = at;
    }
    return bias;
}

/* Adds the part's rows of all tensors that make up the layer's matrix. */
static uint64_t add_rows(model *self, modeli_lister *list, const model_unit *source,
                         uint64_t offset_elems, const modeli_part *part)
{
    uint64_t columns = modeli_layer_columns(self, part->layer);
    uint64_t matrix_end = offset_elems + modeli_layer_rows(self, part->layer) * columns;
    uint64_t weight = MODELI_ABSENT;
    for (uint32_t i = 0; i < source->tensor_count; i++) {
        const model_tensor *tensor = &source->tensors[i];
        if (tensor->offset_elems < offset_elems || tensor->offset_elems >= matrix_end)
            continue;
        uint64_t first = (tensor->offset_elems - offset_elems) / columns; /* row in the layer */
        uint64_t low = size_max(first, part->row_begin);
        uint64_t high = size_min(first + tensor->rows, part->row_begin + part->rows);
        if (low >= high)
            continue;
        uint64_t at = add_slice(self, list, source, i, low - first, high - first, false,
                                weight != MODELI_ABSENT);
        if (weight == MODELI_ABSENT)
            weight = at;
    }
    return weight;
}

/* Lists the unit of a part. Notes the offsets in the part; they are the same in every block. */
static int list_part(model *self, uint32_t unit_idx, uint32_t whole_unit, const model_unit *source,
                     modeli_part *part)
{
    const modeli_shape *shape = &self->products->shape;
    modeli_pair whole = modeli_layer_whole(shape, part->layer);
    modeli_pair norm = {MODELI_ABSENT, MODELI_ABSENT};
    modeli_lister list;
    TRY(modeli_open_unit(self, unit_idx, whole_unit, &list));
    if (part->layer == MODELI_LAYER_NORM)
        norm = shape->norm_final;
    else if (part->is_first && part->layer == MODELI_LAYER_QKV)
        norm = shape->norm1;
    else if (part->is_first && part->layer == MODELI_LAYER_UP)
        norm = shape->norm2;
    uint64_t channels = self->spec.hidden_size;
    part->norm.weight = add_vector(self, &list, source, norm.weight, 0, channels);
    part->norm.bias = add_vector(self, &list, source, norm.bias, 0, channels);
    part->weights.weight = add_rows(self, &list, source, whole.weight, part);
    part->weights.bias = add_bias(self, &list, source, whole.bias, part);
    part->q_norm = part->k_norm = MODELI_ABSENT;
    if (part->is_last && part->layer == MODELI_LAYER_QKV) {
        part->q_norm = add_vector(self, &list, source, shape->q_norm, 0, shape->head_dim);
        part->k_norm = add_vector(self, &list, source, shape->k_norm, 0, shape->head_dim);
    }
    assert(part->layer != MODELI_LAYER_NORM || part->norm.weight == shape->norm_final.weight);
    return 0;
}

/* Lists the units of one stage in parts. `name`: "embed", "block.3", "head". */
static int list_parts(model *self, uint32_t first_unit, uint32_t whole_unit,
                      const model_unit *source, modeli_parts *parts, const char *name)
{
    uint32_t number = 0;
    for (uint32_t i = 0; i < parts->count; i++) {
        modeli_part *part = &parts->items[i];
        uint32_t unit_idx = first_unit + part->unit;
        bool is_main = part->layer == MODELI_LAYER_TABLE || part->layer == MODELI_LAYER_OUTPUT;
        if (part->layer == MODELI_LAYER_OUTPUT && self->spec.tie_embeddings)
            continue; /* already listed as a part of the embedding */
        TRY(list_part(self, unit_idx, whole_unit, source, part));
        model_unit *unit = &self->units[unit_idx];
        number = part->is_first ? 0 : number + 1;
        const char *layer = modeli_layer_name(part->layer);
        if (is_main)
            snprintf(unit->name, sizeof unit->name, "%s.%u", name, number);
        else if (part->layer == MODELI_LAYER_NORM)
            snprintf(unit->name, sizeof unit->name, "%s.%s", name, layer);
        else
            snprintf(unit->name, sizeof unit->name, "%s.%s.%u", name, layer, number);
    }
    return 0;
}

/* Lists one stage's units, whole or in parts. */
static int list_stage(model *self, uint32_t stage, modeli_whole *whole)
{
    model_products *products = self->products;
    uint32_t last = self->stage_count - 1, unit = modeli_stage_unit(self, stage);
    model_unit *source = stage == 0 ? &whole->embed : stage == last ? &whole->head : &whole->block;
    modeli_parts *parts = stage == 0      ? &products->embed
                          : stage == last ? &products->head
                                          : &products->block;
    char name[MODEL_NAME_BYTES / 2];
    if (stage == 0 || stage == last)
        snprintf(name, sizeof name, "%s", stage == 0 ? "embed" : "head");
    else
        snprintf(name, sizeof name, "block.%u", stage - 1);
    if (stage > 0 && (stage == last ? products->splits_head : products->splits_block))
        return modeli_list_split(self, stage, source, name);
    if (parts->count == 0)
        return list_whole_unit(self, unit, stage, source, name);
    /* The parts of embedding and head already have their units' numbers; those of a tied head are
     * in two lists. */
    bool is_end = stage == 0 || stage == last;
    return list_parts(self, is_end ? 0 : unit, stage, source, parts, name);
}

int modeli_list_units(model *self)
{
    model_products *products = self->products;
    uint32_t count = self->unit_count;
    self->unit_count = 0; /* model_destroy looks at this many units */
    self->units = mem_alloc(count, sizeof *self->units, "model.units");
    products->origins = mem_alloc(count, sizeof *products->origins, "model.origins");
    if (self->units == NULL || products->origins == NULL)
        return -ENOMEM;
    self->unit_count = count;
    modeli_whole whole;
    for (uint32_t i = 0; i < self->stage_count; i++) {
        modeli_list_whole(self, i == 0 ? 0 : i - 1, &whole);
        TRY(list_stage(self, i, &whole));
    }
    modeli_note_split(self, &whole);
    modeli_note_learning(self);
    return 0;
}

/* ---- initial weights ----
 *
 * They depend only on (seed, unit, element), so any rank can make any range. Unit and element are
 * those of the model that is not cut, so parts get the weights of the whole. Parallel over elements
 * on the caller's OpenMP team. */

/* Fills elements [begin, end) of one tensor, counted from the tensor's start. */
static void fill_normal(uint64_t seed, uint64_t stream, float std, uint64_t begin, uint64_t end,
                        float *target)
{
#pragma omp parallel for schedule(static)
    for (uint64_t i = begin; i < end; i++)
        target[i - begin] = rng_normal(seed, stream, i) * std;
}

static void fill_uniform(uint64_t seed, uint64_t stream, double bound, uint64_t begin, uint64_t end,
                         float *target)
{
#pragma omp parallel for schedule(static)
    for (uint64_t i = begin; i < end; i++)
        target[i - begin] = (float)((2 * rng_uniform(seed, stream, i) - 1) * bound);
}

static void fill_value(float value, uint64_t count, float *target)
{
    for (uint64_t i = 0; i < count; i++)
        target[i] = value;
}

void model_init_elems(const model *self, uint32_t unit, uint64_t seed, uint64_t begin,
                      uint64_t count, float *master)
{
    const model_unit *source = &self->units[unit];
    const modeli_origin *origin = &self->products->origins[unit];
    float std = (float)self->spec.init_std;
    float std_residual = (float)(self->spec.init_std / sqrt(2.0 * (double)self->spec.num_layers));
    fill_value(0.0f, count, master); /* padding, and tensors whose initial value is zero */
    for (uint32_t i = 0; i < source->tensor_count; i++) {
        const model_tensor *tensor = &source->tensors[i];
        uint64_t first = tensor->offset_elems;
        uint64_t low = size_max(begin, first);
        uint64_t high = size_min(begin + count, first + tensor->rows * tensor->columns);
        uint64_t stream = (uint64_t)origin->unit << 32 | origin->tensors[i];
        /* elements in the parts before this one */
        uint64_t skipped = tensor->row_begin * tensor->columns;
        if (low >= high)
            continue;
        float *target = master + (low - begin);
        if (tensor->init == TENSOR_INIT_NORMAL)
            fill_normal(seed, stream, std, skipped + low - first, skipped + high - first, target);
        else if (tensor->init == TENSOR_INIT_NORMAL_RESIDUAL)
            fill_normal(seed, stream, std_residual, skipped + low - first, skipped + high - first,
                        target);
        else if (tensor->init == TENSOR_INIT_UNIFORM)
            fill_uniform(seed, stream, 1 / sqrt((double)tensor->columns), low - first, high - first,
                         target);
        else if (tensor->init == TENSOR_INIT_ONE)
            fill_value(1.0f, high - low, target);
    }
}
