/* The tensors A and B of adapters: their units, offsets, and parts of the tensors that files have.
 * Computing, initial weights, import, export and merging find them by the tensors that are listed
 * here (model.h, LEARNING and EXPERTS OF RANKS).
 *
 * A and B of all experts of a block are one tensor each in files. Here each unit of experts, and
 * each of its groups, has a part of them: rows [row_begin, row_begin + rows). Allocates nothing. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "model/model_internal.h"

/* ---- listing ---- */

/* The name of A or B: that of the target's weight with the matrix before the end, or after the name
 * of a matrix of all experts, which has no such end. */
static void name_adapter(const model_tensor *target, bool is_b, char name[MODEL_NAME_BYTES])
{
    const char *end = strstr(target->name, ".weight");
    int stem = (int)(end != NULL ? (size_t)(end - target->name) : strlen(target->name));
    snprintf(name, MODEL_NAME_BYTES, "%.*s.%s.weight", stem, target->name,
             is_b ? "lora_B" : "lora_A");
}

/* Adds A or B of the adapter of target number `target_idx`. */
static model_tensor *add_tensor(model *self, modeli_lister *list, const model_tensor *target,
                                uint32_t target_idx, bool is_b, uint64_t rows, uint64_t columns)
{
    modeli_origin *origin = &self->products->origins[list->unit - self->units];
    origin->tensors[list->unit->tensor_count] = MODELI_ADAPTER_ORIGIN + 2 * target_idx + is_b;
    model_tensor *tensor = modeli_append(list, rows, columns, false);
    name_adapter(target, is_b, tensor->name);
    tensor->init = is_b ? TENSOR_INIT_ZERO : TENSOR_INIT_UNIFORM;
    tensor->is_adapter = true;
    return tensor;
}

/* Lists the adapters of `count` experts from `first` on, and notes their places in the unit. */
static void list_group(model *self, const modeli_whole *whole, const modeli_layer *layer,
                       uint64_t first, uint64_t count, modeli_part *part, modeli_lister *lister)
{
    uint64_t rank = self->spec.lora.rank, experts = layer->matrix_rows;
    uint32_t target_idx = modeli_first_target(self->products->family, layer->row);
    for (uint32_t which = 0; which <= modeli_expert_down(layer); which++) {
        const model_tensor *target = &whole->tensors[layer->first_tensor + which];
        if (!modeli_has_expert_adapter(layer, which))
            continue;
        for (uint32_t is_b = 0; is_b < 2; is_b++) {
            uint64_t each = is_b ? target->rows / experts : rank; /* rows of one expert */
            model_tensor *tensor = add_tensor(self, lister, target, target_idx + which, is_b,
                                              count * each, is_b ? rank : target->columns);
            tensor->row_begin = first * each;
            tensor->whole_rows = experts * each;
            if (first == part->row_begin)
                *(is_b ? &part->adapters[which].b : &part->adapters[which].a) =
                    tensor->offset_elems;
        }
    }
}

void modeli_list_expert_adapters(model *self, const modeli_whole *whole, const modeli_layer *layer,
                                 modeli_part *part, modeli_lister *lister)
{
    uint64_t groups = modeli_expert_groups(layer), count = part->rows / groups;
    for (uint64_t g = 0; g < groups; g++) {
        modeli_begin_group(lister, g, &part->adapter_group_elems);
        list_group(self, whole, layer, part->row_begin + g * count, count, part, lister);
    }
}

/* Finds the adapter of a target, or adds it to the list. */
static modeli_adapter *adapter_of(modeli_list *list, uint32_t target)
{
    uint32_t i = 0;
    while (i < list->adapter_count && list->adapters[i].target != target)
        i++;
    assert(i < MODELI_LIST_ADAPTERS_MAX);
    list->adapter_count = (uint32_t)size_max(list->adapter_count, i + 1);
    return &list->adapters[i];
}

/* Adds A and B of every target after the unit's own tensors. The offsets are the same in
 * every block. */
void modeli_list_adapters(model *self, modeli_list *list, modeli_range range,
                          const modeli_whole *whole, modeli_lister *lister)
{
    const model_lora *lora = &self->spec.lora;
    for (uint32_t i = range.begin; i < range.end; i++) {
        const modeli_layer *layer = &list->layers[i];
        uint32_t target_idx = modeli_first_target(self->products->family, layer->row);
        uint64_t column = 0;
        for (uint32_t k = 0; layer->kind == &modeli_linear && column < layer->out; k++) {
            const model_tensor *target = &whole->tensors[layer->first_tensor + k];
            if (lora->targets >> target_idx & 1) {
                modeli_adapter *adapter = adapter_of(list, target_idx);
                adapter->layer = i;
                adapter->in = target->columns;
                adapter->out = target->rows;
                adapter->column = column;
                adapter->target = target_idx;
                adapter->a =
                    add_tensor(self, lister, target, target_idx, false, lora->rank, adapter->in)
                        ->offset_elems;
                adapter->b =
                    add_tensor(self, lister, target, target_idx, true, adapter->out, lora->rank)
                        ->offset_elems;
            }
            column += target->rows;
            target_idx++;
        }
    }
}

/* ---- finding ---- */

bool model_next_part(const model *self, uint32_t *unit, uint32_t *idx)
{
    const model_tensor *from = &self->units[*unit].tensors[*idx];
    uint64_t row = from->row_begin + from->rows;
    for (uint32_t u = *unit; u < self->unit_count && row < from->whole_rows; u++)
        for (uint32_t i = u == *unit ? *idx + 1 : 0; i < self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &self->units[u].tensors[i];
            if (tensor->row_begin != row || strcmp(tensor->name, from->name) != 0)
                continue;
            *unit = u;
            *idx = i;
            return true;
        }
    assert(row == from->whole_rows);
    return false;
}

const model_tensor *model_adapter_of(const model *self, uint32_t unit, const model_tensor *weight,
                                     bool is_b)
{
    char name[MODEL_NAME_BYTES];
    const model_unit *side = &self->units[unit + 1];
    name_adapter(weight, is_b, name);
    for (uint32_t i = 0; unit + 1 < self->unit_count && i < side->tensor_count; i++) {
        const model_tensor *tensor = &side->tensors[i];
        /* the same share of all rows: that of the same experts */
        if (tensor->row_begin * weight->whole_rows == weight->row_begin * tensor->whole_rows &&
            strcmp(tensor->name, name) == 0)
            return tensor;
    }
    return NULL;
}
