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
#include "base/text.h"
#include "base/tile.h"
#include "model/model_internal.h"

model_tensor *modeli_append(modeli_lister *list, uint64_t rows, uint64_t columns,
                            bool with_previous)
{
    model_unit *unit = list->unit;
    assert(unit->tensor_count < list->capacity);
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

void modeli_begin_group(modeli_lister *list, uint64_t idx, uint64_t *group_elems)
{
    if (idx == 1)
        *group_elems = size_round_up(list->end_elems, SHARD_ELEMS_STEP);
    if (idx > 0)
        list->end_elems = idx * *group_elems;
    list->unit->rank_groups = (uint32_t)idx + 1;
}

/* Begins a unit without tensors. */
static int open_unit(model *self, uint32_t unit_idx, uint32_t whole_unit, modeli_lister *list)
{
    model_unit *unit = &self->units[unit_idx];
    self->products->origins[unit_idx].unit = whole_unit;
    *list = (modeli_lister){.unit = unit, .capacity = MODELI_TENSORS_MAX};
    if (self->spec.expert_ranks > 1)
        list->capacity = MODELI_GROUPED_MAX;
    unit->tensors = mem_alloc(list->capacity, sizeof *unit->tensors, "model.tensors");
    return unit->tensors == NULL ? -ENOMEM : 0;
}

/* Lists a whole unit; or the first or second unit of a stage that is split. A tensor that directly
 * followed the one before does so here too. */
static int list_unit(model *self, uint32_t stage, const modeli_whole *whole, bool is_second,
                     const char *name)
{
    modeli_list *of = modeli_list_of(self, stage);
    uint32_t unit_idx = modeli_stage_unit(self, stage) + (is_second ? 1 : 0);
    modeli_origin *origin = &self->products->origins[unit_idx];
    modeli_lister list;
    uint64_t previous_end = MODELI_ABSENT;
    TRY(open_unit(self, unit_idx, stage, &list));
    for (uint32_t i = 0; i < whole->unit.tensor_count; i++) {
        const model_tensor *from = &whole->tensors[i];
        if (modeli_goes_apart(self, of, &of->layers[whole->layers[i]], from) != is_second)
            continue;
        origin->tensors[list.unit->tensor_count] = i;
        model_tensor *tensor =
            modeli_append(&list, from->rows, from->columns, from->offset_elems == previous_end);
        uint64_t offset = tensor->offset_elems;
        *tensor = *from;
        tensor->offset_elems = offset;
        previous_end = from->offset_elems + from->rows * from->columns;
    }
    bool has_lora =
        self->spec.lora.rank > 0 && (of == &self->products->block || of == &self->products->dense);
    const char *end = of == &self->products->head          ? ".norm"
                      : has_lora                           ? ".lora"
                      : modeli_vectors_are_apart(self, of) ? ".vectors"
                                                           : ".norms";
    snprintf(list.unit->name, sizeof list.unit->name, "%s%s", name, is_second ? end : "");
    if (is_second && has_lora)
        modeli_list_adapters(self, of, (modeli_range){0, of->layer_count}, whole, &list);
    return 0;
}

/* Adds rows [begin, end) of tensor `idx` of a whole unit. A vector's elements count as rows.
 * Returns the offset in the part's unit, or MODELI_ABSENT if the range is empty. */
static uint64_t add_slice(model *self, modeli_lister *list, const model_tensor *whole, uint32_t idx,
                          uint64_t begin, uint64_t end, bool is_vector, bool with_previous)
{
    if (begin >= end)
        return MODELI_ABSENT;
    uint64_t whole_rows = is_vector ? whole->columns : whole->rows;
    uint64_t columns = is_vector ? 1 : whole->columns;
    uint32_t unit_idx = (uint32_t)(list->unit - self->units);
    self->products->origins[unit_idx].tensors[list->unit->tensor_count] = idx;
    model_tensor *tensor = modeli_append(list, end - begin, columns, with_previous);
    memcpy(tensor->name, whole->name, sizeof tensor->name);
    tensor->init = whole->init;
    tensor->is_exact = whole->is_exact;
    tensor->row_begin = begin;
    tensor->whole_rows = whole_rows;
    if (is_vector && end - begin == whole_rows) { /* a whole vector keeps its shape */
        tensor->rows = tensor->whole_rows = 1;
        tensor->columns = whole_rows;
    }
    return tensor->offset_elems;
}

/* Adds the part's rows of all tensors that make up the owner's matrix, or of all vectors that make
 * up its bias. */
static uint64_t add_rows(model *self, modeli_lister *list, const modeli_whole *whole,
                         uint32_t layer, const modeli_part *part, bool is_bias)
{
    uint64_t first = 0, offset = MODELI_ABSENT;
    for (uint32_t i = 0; i < whole->unit.tensor_count; i++) {
        const model_tensor *tensor = &whole->tensors[i];
        bool is_vector = tensor->init == TENSOR_INIT_ZERO;
        if (whole->layers[i] != layer || is_vector != is_bias)
            continue;
        uint64_t rows = is_vector ? tensor->columns : tensor->rows;
        uint64_t low = size_max(first, part->row_begin);
        uint64_t high = size_min(first + rows, part->row_begin + part->rows);
        if (low < high) {
            uint64_t at = add_slice(self, list, tensor, i, low - first, high - first, is_vector,
                                    offset != MODELI_ABSENT);
            offset = offset == MODELI_ABSENT ? at : offset;
        }
        first += rows;
    }
    return offset;
}

/* Adds the matrices and biases of `count` experts from `first` on. */
static void add_group(model *self, modeli_lister *list, const modeli_whole *whole, uint32_t layer,
                      const modeli_params *of, uint64_t experts, uint64_t first, uint64_t count,
                      modeli_params *at)
{
    for (uint32_t i = 0; i < whole->unit.tensor_count; i++) {
        const model_tensor *tensor = &whole->tensors[i];
        if (whole->layers[i] != layer)
            continue;
        bool is_vector = tensor->init == TENSOR_INIT_ZERO;
        uint64_t *target = tensor->offset_elems == of->weight        ? &at->weight
                           : tensor->offset_elems == of->second      ? &at->second
                           : tensor->offset_elems == of->bias        ? &at->bias
                           : tensor->offset_elems == of->second_bias ? &at->second_bias
                                                                     : NULL;
        uint64_t rows = (is_vector ? tensor->columns : tensor->rows) / experts;
        uint64_t begin = first * rows;
        uint64_t offset = add_slice(self, list, tensor, i, begin, begin + count * rows, is_vector,
                                    target == NULL);
        if (target != NULL)
            *target = offset;
    }
}

/* Adds the part's experts, group by group. Notes the offsets of the first group. */
static void add_experts(model *self, modeli_lister *list, const modeli_whole *whole, uint32_t layer,
                        const modeli_layer *owner, modeli_part *part, modeli_params *at)
{
    uint64_t groups = modeli_expert_groups(owner), count = part->rows / groups;
    modeli_params others;
    for (uint64_t g = 0; g < groups; g++) {
        modeli_begin_group(list, g, &part->group_elems);
        add_group(self, list, whole, layer, &owner->at, owner->matrix_rows,
                  part->row_begin + g * count, count, g == 0 ? at : &others);
    }
    assert(groups == 1 || list->unit->elems == groups * part->group_elems);
}

/* Adds all vectors of a layer without a matrix. */
static void add_vectors(model *self, modeli_lister *list, const modeli_whole *whole, uint32_t layer,
                        const modeli_params *of, modeli_params *at)
{
    for (uint32_t i = 0; i < whole->unit.tensor_count; i++) {
        const model_tensor *tensor = &whole->tensors[i];
        if (whole->layers[i] != layer)
            continue;
        uint64_t offset = add_slice(self, list, tensor, i, 0, tensor->columns, true, false);
        *(tensor->offset_elems == of->weight   ? &at->weight
          : tensor->offset_elems == of->second ? &at->second
                                               : &at->bias) = offset;
    }
}

/* Lists the unit of a part. Notes the offsets in the part; they are the same in every block. */
static int list_part(model *self, uint32_t unit_idx, uint32_t whole_unit, const modeli_whole *whole,
                     const modeli_list *layers, modeli_part *part)
{
    modeli_range range = modeli_layers_of(layers, part, false);
    uint32_t begin = layers->layers[part->owner].forward_begin;
    modeli_lister list;
    TRY(open_unit(self, unit_idx, whole_unit, &list));
    for (uint32_t i = 0; i < MODELI_GROUP_MAX; i++)
        part->at[i] = modeli_no_params;
    for (uint32_t i = range.begin; i < range.end; i++) {
        const modeli_layer *layer = &layers->layers[i];
        assert(i - begin < MODELI_GROUP_MAX);
        modeli_params *at = &part->at[i - begin];
        if (layer->matrix_rows == 0 || layer->kind->is_constant) {
            add_vectors(self, &list, whole, i, &layer->at, at);
            continue;
        }
        if (layer->kind->has_experts) {
            add_experts(self, &list, whole, i, layer, part, at);
            continue;
        }
        at->weight = add_rows(self, &list, whole, i, part, false);
        at->bias = add_rows(self, &list, whole, i, part, true);
    }
    return 0;
}

/* Lists the units of one stage in parts. `name`: "embed", "block.3", "head". */
static int list_parts(model *self, uint32_t first_unit, uint32_t whole_unit,
                      const modeli_whole *whole, modeli_list *list, const char *name)
{
    uint32_t number = 0;
    for (uint32_t i = 0; i < list->part_count; i++) {
        modeli_part *part = &list->parts[i];
        const modeli_layer *owner = &list->layers[part->owner];
        uint32_t unit_idx = first_unit + part->unit;
        if (owner->kind == &modeli_output && self->spec.tie_embeddings) {
            part->at[0] = self->products->embed.parts[i - 1].at[0];
            continue; /* already listed as a part of the embedding */
        }
        TRY(list_part(self, unit_idx, whole_unit, whole, list, part));
        model_unit *unit = &self->units[unit_idx];
        number = part->is_first ? 0 : number + 1;
        if (part->has_adapters) {
            modeli_lister lister;
            TRY(open_unit(self, unit_idx + 1, whole_unit, &lister));
            modeli_range layer = {part->owner, part->owner + 1};
            if (owner->kind->has_experts)
                modeli_list_expert_adapters(self, whole, owner, part, &lister);
            else
                modeli_list_adapters(self, list, layer, whole, &lister);
            snprintf(lister.unit->name, sizeof lister.unit->name, "%s.%s.%u.lora", name,
                     owner->row->name, number);
        }
        bool is_main = owner->kind == &modeli_output || (whole_unit == 0 && part->owner == 0);
        if (is_main)
            snprintf(unit->name, sizeof unit->name, "%s.%u", name, number);
        else if (owner->matrix_rows == 0)
            snprintf(unit->name, sizeof unit->name, "%s.%s", name, owner->row->name);
        else
            snprintf(unit->name, sizeof unit->name, "%s.%s.%u", name, owner->row->name, number);
    }
    return 0;
}

/* Lists one stage's units, whole or in parts. */
static int list_stage(model *self, uint32_t stage, modeli_whole *whole)
{
    uint32_t last = self->stage_count - 1, unit = modeli_stage_unit(self, stage);
    bool is_end = stage == 0 || stage == last;
    modeli_list *list = modeli_list_of(self, stage);
    char name[MODEL_NAME_BYTES / 2];
    if (is_end)
        snprintf(name, sizeof name, "%s", stage == 0 ? "embed" : "head");
    else if (list == &self->products->last)
        snprintf(name, sizeof name, "last");
    else
        snprintf(name, sizeof name, "block.%llu%s", (unsigned long long)model_block_of(self, stage),
                 list == &self->products->dense ? ".ffn" : "");
    modeli_list_whole(self, list, is_end ? 0 : model_block_of(self, stage), whole);
    if (list->part_count == 0) {
        TRY(list_unit(self, stage, whole, false, name));
        return list->is_split ? list_unit(self, stage, whole, true, name) : 0;
    }
    /* The parts of embedding and head already have their units' numbers; those of a tied head are
     * in two lists. */
    return list_parts(self, is_end ? 0 : unit, stage, whole, list, name);
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
    for (uint32_t i = 0; i < self->stage_count; i++)
        TRY(list_stage(self, i, &whole));
    modeli_note_split(self, &products->block, 1);
    if (products->dense.layer_count > 0)
        modeli_note_split(self, &products->dense, 2);
    if (products->last.layer_count > 0)
        modeli_note_split(self, &products->last, self->stage_count - 2);
    modeli_note_split(self, &products->head, self->stage_count - 1);
    modeli_note_learning(self);
    return modeli_find_packed(self);
}

bool model_is_owned(const model *self, uint32_t unit)
{
    return self->spec.owns_experts && self->units[unit].rank_groups > 1;
}

bool model_has_only_matrices(const model *self, uint32_t unit)
{
    const model_unit *of = &self->units[unit];
    for (uint32_t i = 0; i < of->tensor_count; i++)
        if (!model_is_matrix(&of->tensors[i]))
            return false;
    if (self->module)
        return self->module->units[unit].has_matrices;
    uint32_t stage = self->products->origins[unit].unit;
    return stage > 0 && model_block_of(self, stage) < self->spec.num_layers;
}

bool model_is_transposed(enum model_family family, const char *name)
{
    return family == MODEL_GPT2 &&
           (text_ends_with(name, ".attn.c_attn.weight") ||
            text_ends_with(name, ".attn.c_proj.weight") ||
            text_ends_with(name, ".mlp.c_fc.weight") || text_ends_with(name, ".mlp.c_proj.weight"));
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
    const uint64_t piece = 4096;
#pragma omp parallel for schedule(static)
    for (uint64_t at = begin; at < end; at += piece) {
        uint64_t count = size_min(end - at, piece);
        float *values = target + (at - begin);
        rng_normals(seed, stream, at, count, values);
        for (uint64_t i = 0; i < count; i++)
            values[i] *= std;
    }
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
    if (self->module) { /* its program has the weights */
        fill_value(0.0f, count, master);
        return;
    }
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
            fill_uniform(seed, stream, 1 / sqrt((double)tensor->columns), skipped + low - first,
                         skipped + high - first, target);
        else if (tensor->init == TENSOR_INIT_ONE)
            fill_value(1.0f, high - low, target);
    }
}
