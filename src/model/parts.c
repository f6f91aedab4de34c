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

const char *modeli_layer_name(enum modeli_layer layer)
{
    static const char *const names[] = {
        [MODELI_LAYER_QKV] = "qkv",     [MODELI_LAYER_PROJ] = "proj",
        [MODELI_LAYER_UP] = "up",       [MODELI_LAYER_DOWN] = "down",
        [MODELI_LAYER_TABLE] = "table", [MODELI_LAYER_POSITIONS] = "positions",
        [MODELI_LAYER_NORM] = "norm",   [MODELI_LAYER_OUTPUT] = "output",
    };
    return names[layer];
}

modeli_pair modeli_layer_whole(const modeli_shape *shape, enum modeli_layer layer)
{
    modeli_pair plain = {MODELI_ABSENT, MODELI_ABSENT};
    switch (layer) {
    case MODELI_LAYER_QKV:
        return shape->qkv;
    case MODELI_LAYER_PROJ:
        return shape->proj;
    case MODELI_LAYER_UP:
        return shape->up;
    case MODELI_LAYER_DOWN:
        return shape->down;
    case MODELI_LAYER_TABLE:
        plain.weight = shape->token_table;
        break;
    case MODELI_LAYER_POSITIONS:
        plain.weight = shape->position_table;
        break;
    case MODELI_LAYER_OUTPUT:
        plain.weight = shape->output_matrix;
        break;
    case MODELI_LAYER_NORM:
        break;
    }
    return plain;
}

uint64_t modeli_layer_rows(const model *self, enum modeli_layer layer)
{
    switch (layer) {
    case MODELI_LAYER_QKV:
        return self->products->shape.qkv_columns;
    case MODELI_LAYER_UP:
        return self->products->shape.ffn_columns;
    case MODELI_LAYER_PROJ:
    case MODELI_LAYER_DOWN:
        return self->spec.hidden_size;
    case MODELI_LAYER_TABLE:
    case MODELI_LAYER_OUTPUT:
        return self->spec.vocab_size;
    case MODELI_LAYER_POSITIONS:
        return self->spec.position_count;
    case MODELI_LAYER_NORM:
        break;
    }
    return 0;
}

uint64_t modeli_layer_columns(const model *self, enum modeli_layer layer)
{
    if (layer == MODELI_LAYER_PROJ)
        return self->products->shape.attention_columns;
    return layer == MODELI_LAYER_DOWN ? self->spec.ffn_size : self->spec.hidden_size;
}

static bool has_norm(enum modeli_layer layer, bool is_first)
{
    return layer == MODELI_LAYER_NORM ||
           (is_first && (layer == MODELI_LAYER_QKV || layer == MODELI_LAYER_UP));
}

/* Elements of the unit of a part with `rows` rows, as units.c lists it. */
static uint64_t part_elems(const model *self, enum modeli_layer layer, bool is_first, uint64_t rows)
{
    const modeli_shape *shape = &self->products->shape;
    uint64_t end = 0;
    if (has_norm(layer, is_first)) {
        uint64_t norms = shape->norm == NORM_LAYER ? 2 : 1;
        end = norms * size_round_up(self->spec.hidden_size, MODEL_TENSOR_ALIGN_ELEMS);
    }
    end += rows * modeli_layer_columns(self, layer);
    if (rows > 0 && modeli_layer_whole(shape, layer).bias != MODELI_ABSENT)
        end = size_round_up(end, MODEL_TENSOR_ALIGN_ELEMS) + rows;
    if (layer == MODELI_LAYER_QKV &&
        modeli_has_head_norms(self)) /* only the last part has them, but any part may be the last */
        end = size_round_up(end, MODEL_TENSOR_ALIGN_ELEMS) +
              2 * size_round_up(shape->head_dim, MODEL_TENSOR_ALIGN_ELEMS);
    return size_round_up(end, SHARD_ELEMS_STEP);
}

static bool fits(const model *self, enum modeli_layer layer, bool is_first, uint64_t rows)
{
    uint64_t elems = part_elems(self, layer, is_first, rows);
    return elems * dtype_bytes(self->type) <= self->spec.max_part_bytes;
}

/* Rows of a part if `left` rows are left: as many as fit. They are rounded down to a multiple of
 * ROWS_STEP_MAX if that costs at most a quarter of them, else to a smaller step, at least
 * ROWS_STEP_MIN. */
static uint64_t rows_of_part(const model *self, enum modeli_layer layer, bool is_first,
                             uint64_t left)
{
    if (fits(self, layer, is_first, left))
        return left;
    uint64_t low = 0, high = left; /* low fits (or is 0); high does not fit */
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (fits(self, layer, is_first, middle))
            low = middle;
        else
            high = middle;
    }
    uint64_t step = ROWS_STEP_MAX;
    while (step > ROWS_STEP_MIN && low < 4 * step)
        step /= 2;
    return low < step ? low : low - low % step;
}

/* The smallest max_part_bytes at which every layer can be cut. */
static uint64_t least_part_bytes(const model *self)
{
    const modeli_shape *shape = &self->products->shape;
    uint64_t elems = part_elems(self, MODELI_LAYER_NORM, true, 0);
    for (uint32_t i = MODELI_LAYER_QKV; i <= MODELI_LAYER_OUTPUT; i++) {
        enum modeli_layer layer = (enum modeli_layer)i;
        if (layer == MODELI_LAYER_POSITIONS && shape->position_table == MODELI_ABSENT)
            continue;
        if (modeli_layer_rows(self, layer) > 0)
            elems = size_max(elems, part_elems(self, layer, true, 1));
    }
    return elems * dtype_bytes(self->type);
}

static int refuse_row(const model *self, enum modeli_layer layer, bool is_first)
{
    uint64_t rows = layer == MODELI_LAYER_NORM ? 0 : 1;
    uint64_t need = part_elems(self, layer, is_first, rows) * dtype_bytes(self->type);
    const char *what = rows == 0                   ? "the final norm"
                       : has_norm(layer, is_first) ? "a norm and one row of the layer"
                                                   : "one row of the layer";
    return err_set(
        ERR_CONFIG,
        "model.max_part_bytes is %llu, but %s%s%s needs %llu bytes in %s: set it to %llu "
        "or more, or to 0 for units that are never cut",
        (unsigned long long)self->spec.max_part_bytes, what, rows == 0 ? "" : " ",
        rows == 0 ? "" : modeli_layer_name(layer), (unsigned long long)need, dtype_name(self->type),
        (unsigned long long)least_part_bytes(self));
}

/* Appends the parts of one layer. Their units are numbered from *unit on. */
static int cut_layer(const model *self, enum modeli_layer layer, modeli_parts *parts,
                     uint32_t *unit)
{
    uint64_t whole = modeli_layer_rows(self, layer);
    uint64_t first = rows_of_part(self, layer, true, whole);
    uint64_t next = whole > first ? rows_of_part(self, layer, false, whole) : 1;
    if (whole > 0 && (first == 0 || next == 0))
        return refuse_row(self, layer, first == 0);
    if (whole == 0 && !fits(self, layer, true, 0))
        return refuse_row(self, layer, true);
    uint64_t count = 1 + size_div_up(whole - first, next);
    if (count > PARTS_MAX)
        return err_set(
            ERR_CONFIG,
            "model.max_part_bytes is %llu, which cuts the layer %s into %llu parts; at most %d are "
            "possible: raise it",
            (unsigned long long)self->spec.max_part_bytes, modeli_layer_name(layer),
            (unsigned long long)count, PARTS_MAX);
    modeli_part *items =
        mem_resize(parts->items, parts->count + count, sizeof *items, "model.parts");
    if (items == NULL)
        return -ENOMEM;
    parts->items = items;
    uint64_t row = 0;
    for (uint64_t i = 0; i < count; i++) {
        modeli_part *part = &items[parts->count++];
        part->layer = layer;
        part->is_first = i == 0;
        part->is_last = i + 1 == count;
        part->row_begin = row;
        part->rows = part->is_first ? first : size_min(next, whole - row);
        part->unit = (*unit)++;
        row += part->rows;
    }
    assert(row == whole);
    return 0;
}

/* The parts of a tied head whose embedding is cut: the norm, then the embedding's table parts
 * again. */
static int share_table(const model *self, uint32_t *unit)
{
    modeli_parts *embed = &self->products->embed, *head = &self->products->head;
    uint32_t count = 0;
    while (count < embed->count && embed->items[count].layer == MODELI_LAYER_TABLE)
        count++;
    TRY(cut_layer(self, MODELI_LAYER_NORM, head, unit));
    modeli_part *items = mem_resize(head->items, 1 + count, sizeof *items, "model.parts");
    if (items == NULL)
        return -ENOMEM;
    head->items = items;
    for (uint32_t i = 0; i < count; i++) {
        items[1 + i] = embed->items[i];
        items[1 + i].layer = MODELI_LAYER_OUTPUT;
        items[1 + i].weights = (modeli_pair){0, MODELI_ABSENT}; /* each is alone in its unit */
    }
    head->count = 1 + count;
    return 0;
}

static bool is_too_large(const model *self, const model_unit *unit)
{
    uint64_t most = self->spec.max_part_bytes;
    return most != 0 && unit->elems * dtype_bytes(self->type) > most;
}

int modeli_cut(model *self, const modeli_whole *whole)
{
    model_products *products = self->products;
    uint32_t embed_units = 0, block_units = 0, unit;
    if (is_too_large(self, &whole->embed)) {
        TRY(cut_layer(self, MODELI_LAYER_TABLE, &products->embed, &embed_units));
        if (products->shape.position_table != MODELI_ABSENT)
            TRY(cut_layer(self, MODELI_LAYER_POSITIONS, &products->embed, &embed_units));
    }
    if (is_too_large(self, &whole->block))
        for (uint32_t layer = MODELI_LAYER_QKV; layer <= MODELI_LAYER_DOWN; layer++)
            TRY(cut_layer(self, (enum modeli_layer)layer, &products->block, &block_units));

    uint64_t per_block = size_max(block_units, 1) + (products->splits_block ? 1 : 0);
    uint64_t before = size_max(embed_units, 1) + self->spec.num_layers * per_block;
    if (before > 2 * PARTS_MAX)
        return err_set(
            ERR_CONFIG,
            "model.max_part_bytes is %llu, which cuts the model into %llu units; at most "
            "%d are possible: raise it",
            (unsigned long long)self->spec.max_part_bytes, (unsigned long long)before,
            2 * PARTS_MAX);
    unit = (uint32_t)before;
    if (self->spec.tie_embeddings)
        TRY(products->embed.count > 0 ? share_table(self, &unit) : 0);
    else if (is_too_large(self, &whole->head)) {
        TRY(cut_layer(self, MODELI_LAYER_NORM, &products->head, &unit));
        TRY(cut_layer(self, MODELI_LAYER_OUTPUT, &products->head, &unit));
    }
    if (products->head.count == 0 && is_too_large(self, &whole->head))
        return refuse_row(self, MODELI_LAYER_NORM, true);
    TRY(modeli_check_split(self));
    if (products->head.count > 0)
        products->splits_head = false; /* its norm is a unit already */
    self->unit_count = unit + (products->head.count == 0 ? 1 : 0) + (products->splits_head ? 1 : 0);
    return 0;
}

uint32_t modeli_stage_unit(const model *self, uint32_t stage)
{
    uint64_t embed = size_max(self->products->embed.count, 1);
    uint64_t block = size_max(self->products->block.count, 1);
    block += self->products->splits_block ? 1 : 0;
    return stage == 0 ? 0 : (uint32_t)(embed + (stage - 1) * block);
}

const modeli_parts *modeli_parts_of(const model *self, uint32_t stage)
{
    const modeli_parts *parts = stage == 0                       ? &self->products->embed
                                : stage == self->stage_count - 1 ? &self->products->head
                                                                 : &self->products->block;
    return parts->count == 0 ? NULL : parts;
}
