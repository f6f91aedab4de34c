/* The layers of a model, made of its family's rows: their widths, the offsets of their tensors, and
 * which of them run together when a block is cut into parts. Pure.
 *
 * OWNERS. In a block in parts each layer with a matrix runs as several parts, and the layers
 * without one run beside them:
 * - Forward: norms, and what stands between a norm and the next matrix, run in the first part of
 *   that next matrix; all others in the last part of the matrix before them. Their tensors lie in
 *   the units of these parts.
 * - Backward: a layer with tensors runs in the part that has them. The others run as early as their
 *   gradient is known, in the first part of the next matrix (parts run from last to first), unless
 *   a layer with tensors must run before them.
 *
 *   Llama, forward   norm1 qkv.0 | qkv.1 heads rope attend | proj.0 | add1 norm2 up.0 | ..
 *          backward  .. up.0' norm2' | proj.0' attend' rope' | heads' qkv.1' | qkv.0' norm1'
 *
 * In embedding and head each layer is alone. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "model/model_internal.h"

uint64_t modeli_width_of(const model *self, enum modeli_width width)
{
    const model_spec *spec = &self->spec;
    const uint64_t widths[] = {
        [MODELI_HIDDEN] = spec->hidden_size,
        [MODELI_QUERIES] = spec->num_heads * spec->head_dim,
        [MODELI_KEYS] = spec->num_kv_heads * spec->head_dim,
        [MODELI_QKV] = (spec->num_heads + 2 * spec->num_kv_heads) * spec->head_dim,
        [MODELI_OUTPUTS] = spec->num_heads * spec->value_head_dim,
        [MODELI_HEADS] = spec->num_heads,
        [MODELI_Q_LATENT] = spec->q_latent_size,
        [MODELI_KV_LATENT] = spec->kv_latent_size,
        [MODELI_KV_LATENT_ROPE] = spec->kv_latent_size + spec->rope_head_dim,
        [MODELI_KEYS_VALUES] =
            spec->num_heads * (spec->head_dim - spec->rope_head_dim + spec->value_head_dim),
        [MODELI_HEAD] = spec->head_dim,
        [MODELI_FFN] = spec->ffn_size,
        [MODELI_GATE_UP] = 2 * spec->ffn_size,
        [MODELI_VOCAB] = spec->vocab_size,
        [MODELI_POSITIONS] = spec->position_count,
        [MODELI_TYPES] = spec->type_count,
        [MODELI_POSITIONS_OF_OPT] = spec->position_count + MODELI_OPT_SKIPS,
        [MODELI_EXPERTS] = spec->expert_count,
        [MODELI_EXPERTS_UP] = spec->expert_count * 2 * spec->expert_ffn_size,
        [MODELI_EXPERTS_DOWN] = spec->expert_count * spec->hidden_size,
        [MODELI_ONE] = 1,
        [MODELI_SHARED] = spec->shared_ffn_size,
    };
    return widths[width];
}

bool modeli_is_there(const model_spec *spec, enum modeli_when when)
{
    const bool truths[] = {
        [MODELI_ALWAYS] = true,
        [MODELI_IF_QKV_BIAS] = spec->qkv_bias,
        [MODELI_IF_OUT_BIAS] = spec->out_bias,
        [MODELI_IF_MLP_BIAS] = spec->mlp_bias,
        [MODELI_IF_QK_NORM] = spec->qk_norm,
        [MODELI_IF_SINKS] = spec->attention_sinks,
        [MODELI_UNLESS_SINKS] = !spec->attention_sinks,
        [MODELI_IF_Q_LATENT] = spec->q_latent_size != 0,
        [MODELI_UNLESS_Q_LATENT] = spec->q_latent_size == 0,
        [MODELI_IF_SCALED] = spec->residual_multiplier != 0,
        [MODELI_IF_DROPOUT] = spec->hidden_dropout > 0,
        [MODELI_IF_TIED] = spec->tie_embeddings,
        [MODELI_IF_UNTIED] = !spec->tie_embeddings,
        [MODELI_IF_PARALLEL] = spec->parallel_residual,
        [MODELI_UNLESS_PARALLEL] = !spec->parallel_residual,
        [MODELI_IF_SIGMOID] = spec->sigmoid_scores,
        [MODELI_UNLESS_SIGMOID] = !spec->sigmoid_scores,
    };
    return truths[when];
}

static bool has_kind(enum model_family family, const modeli_kind *kind)
{
    const modeli_row *row = modeli_family_of(family)->block;
    while (row->kind != NULL && row->kind != kind)
        row++;
    return row->kind != NULL;
}

bool modeli_has_rope(enum model_family family)
{
    return has_kind(family, &modeli_rope);
}

bool modeli_has_latents(enum model_family family)
{
    return has_kind(family, &modeli_join);
}

bool modeli_has_option(enum model_family family, enum modeli_when option)
{
    const modeli_family *of = modeli_family_of(family);
    const modeli_row *tables[] = {of->block, of->dense, of->experts};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
        for (const modeli_row *row = tables[i]; row != NULL && row->kind != NULL; row++)
            if (row->has_bias == option || row->is_there == option ||
                (option == MODELI_IF_PARALLEL && row->if_parallel != NULL))
                return true;
    return false;
}

bool modeli_has_shared(enum model_family family)
{
    const modeli_row *row = modeli_family_of(family)->experts;
    while (row != NULL && row->kind != NULL && row->weights[0].width != MODELI_SHARED)
        row++;
    return row != NULL && row->kind != NULL;
}

bool modeli_has_table(enum model_family family, enum modeli_width rows)
{
    const modeli_row *row = modeli_family_of(family)->embed;
    while (row->kind != NULL && row->weights[0].width != rows &&
           !(rows == MODELI_POSITIONS && row->weights[0].width == MODELI_POSITIONS_OF_OPT))
        row++;
    return row->kind != NULL;
}

/* The value of a name; a name that is new is a new value. */
static uint32_t find_value(const model *self, modeli_list *list, const char *name,
                           size_t name_bytes)
{
    uint32_t idx = MODELI_X;
    if (name_bytes == 0)
        return MODELI_NO_VALUE;
    for (; idx < list->value_count; idx++)
        if (list->values[idx].name_bytes == name_bytes &&
            memcmp(list->values[idx].name, name, name_bytes) == 0)
            return idx;
    assert(idx < MODELI_VALUES_MAX);
    list->values[idx] = (modeli_value){name, name_bytes, self->spec.hidden_size, {0}};
    list->value_count = idx + 1;
    return idx;
}

/* Adds a row's layer. A norm directly after the sum that it reads takes that sum over, since its
 * kernel does both. */
static void add_layer(const model *self, modeli_list *list, const modeli_row *row)
{
    modeli_layer *before = list->layer_count > 0 ? &list->layers[list->layer_count - 1] : NULL;
    modeli_layer made = {.net = self, .row = row, .kind = row->kind};
    bool is_parallel = self->spec.parallel_residual && row->if_parallel != NULL;
    const char *reads = is_parallel ? row->if_parallel : row->reads;
    for (uint32_t k = 0; k < MODELI_READS_MAX; k++) {
        size_t bytes = strcspn(reads, " ");
        made.reads[k] = find_value(self, list, reads, bytes);
        reads += bytes + (reads[bytes] != 0);
    }
    if (row->kind == &modeli_norm && before != NULL && before->kind == &modeli_add &&
        before->writes == made.reads[0]) {
        made.sum = before->writes;
        memcpy(made.reads, before->reads, sizeof made.reads);
        list->layer_count--;
    }
    made.at = modeli_no_params;
    made.in = made.reads[0] ? list->values[made.reads[0]].columns : self->spec.hidden_size;
    for (uint32_t i = 0; i < MODELI_ROW_TENSORS_MAX && row->weights[i].name != NULL; i++)
        if (row->kind->has_matrix)
            made.matrix_rows += modeli_width_of(self, row->weights[i].width);
    if (row->kind->has_experts)
        made.matrix_rows = row->is_shared ? 1 : self->spec.expert_count;
    if (row->kind->is_constant)
        made.matrix_rows = 1;
    made.site = MODELI_ROW_SITE;
    for (uint32_t i = 0; i < list->layer_count; i++)
        made.site += list->layers[i].kind == &modeli_dropout;
    made.out = row->kind->out ? row->kind->out(&made) : made.in;
    made.writes = find_value(self, list, row->writes, strlen(row->writes));
    list->values[made.writes].columns = made.out;
    assert(list->layer_count < MODELI_LAYERS_MAX);
    list->layers[list->layer_count++] = made;
}

static void add_rows(const model *self, modeli_list *list, const modeli_row *rows)
{
    list->value_count = MODELI_X;
    find_value(self, list, "x", 1);
    for (; rows->kind != NULL; rows++)
        if (rows->is_there == MODELI_UNSET || modeli_is_there(&self->spec, rows->is_there))
            add_layer(self, list, rows);
}

/* ---- owners ---- */

static void find_owners(modeli_list *list)
{
    modeli_layer *layers = list->layers, *owner = NULL;
    uint32_t end = 0, back_end = 0; /* of the layers that the owners so far run */
    for (uint32_t i = 0; i < list->layer_count; i++) {
        if (layers[i].matrix_rows == 0)
            continue;
        uint32_t begin = end;
        while (owner != NULL && begin < i && layers[begin].kind != &modeli_norm)
            begin++;
        if (owner != NULL) {
            owner->forward_end = begin;
            for (uint32_t k = end; k < begin; k++)
                if (layers[k].row->weights[0].name != NULL)
                    back_end = k + 1;
            owner->backward_end = back_end;
        }
        owner = &layers[i];
        /* nothing that learns, such as a norm, may lie in a constant's unit */
        assert(!owner->kind->is_constant || begin == i);
        owner->forward_begin = begin;
        owner->backward_begin = back_end;
        end = back_end = i + 1;
    }
    assert(owner != NULL);
    owner->forward_end = owner->backward_end = list->layer_count;
}

/* Embedding and head. */
static void be_alone(modeli_list *list)
{
    for (uint32_t i = 0; i < list->layer_count; i++) {
        modeli_layer *layer = &list->layers[i];
        layer->forward_begin = layer->backward_begin = i;
        layer->forward_end = layer->backward_end = i + 1;
    }
}

modeli_range modeli_layers_of(const modeli_list *list, const modeli_part *part, bool backward)
{
    if (part == NULL)
        return (modeli_range){0, list->layer_count};
    const modeli_layer *owner = &list->layers[part->owner];
    uint32_t begin = backward ? owner->backward_begin : owner->forward_begin;
    uint32_t end = backward ? owner->backward_end : owner->forward_end;
    return (modeli_range){part->is_first ? begin : part->owner,
                          part->is_last ? end : part->owner + 1};
}

void modeli_list_layers(model *self)
{
    model_products *products = self->products;
    const modeli_family *family = products->family = modeli_family_of(self->spec.family);
    add_rows(self, &products->embed, family->embed);
    add_rows(self, &products->block, family->block);
    add_rows(self, &products->head, family->head);
    find_owners(&products->block);
    if (family->experts != NULL && self->spec.dense_blocks < self->spec.num_layers) {
        add_rows(self, &products->experts, family->experts);
        find_owners(&products->experts);
    }
    if (self->spec.dense_blocks > 0) {
        add_rows(self, &products->dense, family->dense);
        find_owners(&products->dense);
    }
    if (family->last != NULL) {
        add_rows(self, &products->last, family->last);
        find_owners(&products->last);
    }
    be_alone(&products->embed);
    be_alone(&products->head);
    products->head.layers[MODELI_FINAL_NORM].is_recomputed[KEPT_NONE] = true;
    /* A tied output matrix is unit 0's token table, which begins at 0. */
    if (self->spec.tie_embeddings) {
        products->head.layers[MODELI_OUTPUT_MATRIX].at.weight = 0;
        products->head.layers[MODELI_OUTPUT_MATRIX].unit = 1;
    }
}

/* ---- tensors of a whole unit ---- */

/* Adds a layer's weights, or its biases. Matrices of one layer lie one after the other without
 * alignment, and so do biases; vectors that are used alone are aligned. */
static void add_tensors(const model *self, modeli_layer *layer, uint32_t idx, bool is_bias,
                        modeli_lister *list, modeli_whole *whole)
{
    const modeli_row *row = layer->row;
    bool is_matrix = layer->kind->has_matrix && !is_bias, has_experts = layer->kind->has_experts;
    for (uint32_t i = 0; i < MODELI_ROW_TENSORS_MAX && row->weights[i].name != NULL; i++) {
        bool is_last = i + 1 == MODELI_ROW_TENSORS_MAX || row->weights[i + 1].name == NULL;
        bool is_down = has_experts && is_last;
        uint64_t columns = is_down ? modeli_expert_width(layer) : layer->in;
        char pattern[MODEL_NAME_BYTES];
        bool is_before = row->first_name != NULL;
        const char *weight =
            is_before && whole->block == 0 ? row->first_name : row->weights[i].name;
        uint64_t width = modeli_width_of(self, row->weights[i].width);
        model_tensor *tensor =
            modeli_append(list, is_matrix ? width : 1, is_matrix ? columns : width,
                          i > 0 && layer->kind->has_matrix && !is_down);
        bool is_joint = has_experts && !row->is_shared;
        bool is_bare = layer->kind == &modeli_attention || layer->kind->is_constant;
        const char *end = is_joint && is_bias   ? "_bias"
                          : is_joint || is_bare ? ""
                          : is_bias             ? ".bias"
                                                : ".weight";
        snprintf(pattern, sizeof pattern, "%s%s", weight, end);
        snprintf(tensor->name, sizeof tensor->name,
                 is_bias && row->bias_name ? row->bias_name : pattern, whole->block - is_before);
        bool is_zero =
            is_bias || is_bare || (layer->kind->is_norm && self->products->family->adds_one);
        tensor->init = is_zero                       ? TENSOR_INIT_ZERO
                       : layer->kind->is_norm        ? TENSOR_INIT_ONE
                       : row->is_residual && is_last ? TENSOR_INIT_NORMAL_RESIDUAL
                                                     : TENSOR_INIT_NORMAL;
        tensor->is_exact = layer->kind->is_constant;
        whole->layers[whole->unit.tensor_count - 1] = idx;
        if (i == 0)
            *(is_bias ? &layer->at.bias : &layer->at.weight) = tensor->offset_elems;
        else if (!layer->kind->has_matrix || is_down)
            *(is_bias ? &layer->at.second_bias : &layer->at.second) = tensor->offset_elems;
    }
}

bool modeli_has_expert_biases(enum model_family family)
{
    const modeli_row *row = modeli_family_of(family)->experts;
    while (row != NULL && row->kind != NULL && !(row->kind->has_experts && !row->is_shared))
        row++;
    return row != NULL && row->has_bias != MODELI_UNSET;
}

void modeli_list_whole(const model *self, modeli_list *list, uint64_t block, modeli_whole *whole)
{
    memset(whole, 0, sizeof *whole);
    whole->unit.tensors = whole->tensors;
    whole->block = block;
    modeli_lister lister = {.unit = &whole->unit, .capacity = MODELI_TENSORS_MAX};
    for (uint32_t i = 0; i < list->layer_count; i++) {
        modeli_layer *layer = &list->layers[i];
        if (layer->kind == &modeli_output && self->spec.tie_embeddings) {
            layer->at.bias = self->products->embed.layers[MODELI_TABLE].at.bias;
            continue;
        }
        layer->first_tensor = whole->unit.tensor_count;
        add_tensors(self, layer, i, false, &lister, whole);
        if (modeli_is_there(&self->spec, layer->row->has_bias))
            add_tensors(self, layer, i, true, &lister, whole);
    }
}
