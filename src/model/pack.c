/* Packed units: where their tensors are kept, how a pass expands them, and how they are made. See
 * model.h and pack.h. Only model_packer_create allocates. */
#include "model/pack.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "model/model_internal.h"

/* Rows of a matrix that are quantized at a time: so many rows have whole groups in every format. */
enum { PIECE_ROWS = 256, NO_UNIT = UINT32_MAX };

/* ---- places ---- */

static uint64_t codes_bytes(const stored_layout *layout)
{
    return size_round_up(layout->code_bytes, MODEL_REST_ALIGN_BYTES);
}

/* Bytes of each matrix of a tensor that is packed by itself. */
static uint64_t matrix_bytes(const model_tensor *tensor)
{
    stored_layout layout = stored_layout_of(tensor->stored, tensor->stored_rows, tensor->columns);
    return codes_bytes(&layout) + size_round_up(layout.scale_bytes, MODEL_REST_ALIGN_BYTES);
}

/* The type of what is not in a stored format. */
static enum dtype kept_type(const model *self, const model_tensor *tensor)
{
    return tensor->is_exact ? DTYPE_FP32 : self->type;
}

static uint64_t tensor_bytes(const model *self, const model_tensor *tensor)
{
    if (tensor->stored == STORED_WORKING)
        return tensor->rows * tensor->columns * dtype_bytes(kept_type(self, tensor));
    return tensor->rows / tensor->stored_rows * matrix_bytes(tensor);
}

uint64_t model_matrix_at(const model_tensor *tensor, uint64_t idx)
{
    return tensor->rest_bytes + idx * matrix_bytes(tensor);
}

/* The layer that a tensor of a unit belongs to. */
static const modeli_layer *layer_of(const model *self, uint32_t unit, uint32_t idx)
{
    const modeli_origin *origin = &self->products->origins[unit];
    const modeli_list *list = modeli_list_of(self, origin->unit);
    uint32_t layer = list->layer_count - 1; /* the last one that begins there or before */
    while (layer > 0 && list->layers[layer].first_tensor > origin->tensors[idx])
        layer--;
    return &list->layers[layer];
}

/* True if the words of the rule are in the name: "mlp.up_proj" in "h.3.mlp.up_proj.weight". */
static bool has_words(const char *name, const char *words)
{
    size_t length = strlen(words);
    for (const char *at = name; (at = strstr(at, words)) != NULL; at++)
        if ((at == name || at[-1] == '.') && (at[length] == '.' || at[length] == '\0'))
            return true;
    return false;
}

/* The format that the spec has for a tensor, whether or not it learns. */
static enum stored_format format_of(const model *self, uint32_t unit, uint32_t idx)
{
    const model_tensor *tensor = &self->units[unit].tensors[idx];
    uint32_t stage = self->products->origins[unit].unit;
    if (!model_is_matrix(tensor) || tensor->is_adapter || tensor->rows == 1)
        return STORED_WORKING;
    bool is_of_block = stage > 0 && model_block_of(self, stage) < self->spec.num_layers &&
                       layer_of(self, unit, idx)->kind != &modeli_router;
    enum stored_format format = is_of_block ? self->spec.stored.format : STORED_WORKING;
    for (uint32_t i = 0; i < self->spec.stored.rule_count; i++)
        if (has_words(tensor->name, self->spec.stored.rules[i].name))
            format = self->spec.stored.rules[i].format;
    return format;
}

/* Matrices of routed experts are packed one by one, as files have them. */
static uint64_t stored_rows_of(const model *self, uint32_t unit, uint32_t idx)
{
    const model_tensor *tensor = &self->units[unit].tensors[idx];
    const modeli_layer *layer = layer_of(self, unit, idx);
    if (layer->kind != &modeli_experts || layer->row->is_shared)
        return tensor->rows;
    bool is_first = self->products->origins[unit].tensors[idx] == layer->first_tensor;
    return tensor->whole_rows / self->spec.expert_count / (is_first ? 2 : 1); /* gate and up */
}

/* Elements of the working dtype that so many bytes take in a packed vector or group. */
static uint64_t whole_elems(const model *self, uint64_t bytes)
{
    return size_round_up(size_div_up(bytes, dtype_bytes(self->type)), SHARD_ELEMS_STEP);
}

/* Groups of the unit, which are shards of ranks; and the tensors of one. */
static uint32_t groups_of(const model_unit *unit)
{
    return unit->rank_groups > 1 ? unit->rank_groups : 1;
}

static uint32_t tensors_of_group(const model_unit *unit)
{
    return unit->tensor_count / groups_of(unit);
}

static int place_unit(model *self, uint32_t unit_idx)
{
    model_unit *unit = &self->units[unit_idx];
    uint64_t end = 0, group_elems = 0;
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        model_tensor *tensor = &unit->tensors[i];
        enum stored_format format = format_of(self, unit_idx, i);
        if (i == tensors_of_group(unit))
            group_elems = whole_elems(self, end);
        if (i % tensors_of_group(unit) == 0)
            end = i / tensors_of_group(unit) * group_elems * dtype_bytes(self->type);
        if (format != STORED_WORKING) {
            if (!stored_fits(format, tensor->columns))
                return err_set(ERR_CONFIG,
                               "state.params: %s needs rows of a multiple of 32 elements, and %s "
                               "has %llu columns",
                               stored_format_name(format), tensor->name,
                               (unsigned long long)tensor->columns);
            tensor->stored = format;
            tensor->stored_rows = stored_rows_of(self, unit_idx, i);
            unit->is_packed = true;
        }
        unit->is_packed = unit->is_packed || tensor->is_exact;
        tensor->rest_bytes = size_round_up(end, MODEL_REST_ALIGN_BYTES);
        end = tensor->rest_bytes + tensor_bytes(self, tensor);
    }
    if (unit->is_packed)
        unit->rest_elems = whole_elems(self, end);
    return 0;
}

static bool is_constant(const model_unit *unit)
{
    return unit->tensors[0].is_exact;
}

/* Refuses matrices that learn if the checkpoint has them packed. */
static int check_learning(const model *self, uint32_t unit)
{
    for (uint32_t i = 0; self->spec.stored.is_of_checkpoint && i < self->units[unit].tensor_count;
         i++) {
        enum stored_format format = format_of(self, unit, i);
        if (format != STORED_WORKING)
            return err_set(ERR_CONFIG,
                           "the checkpoint has %s quantized, as %s, and it learns: train adapters "
                           "(train.lora), or give state.params (\"working\" or a format) to "
                           "dequantize what learns",
                           self->units[unit].tensors[i].name, stored_format_name(format));
    }
    return 0;
}

/* Refuses a rule whose name is that of no matrix, or of matrices that all learn. A
 * quantization_config may name modules that are not in the model. */
static int check_rule(const model *self, const model_stored_rule *rule)
{
    bool is_found = false, packs = rule->format != STORED_WORKING;
    if (!packs && self->spec.stored.may_keep_absent)
        return 0;
    for (uint32_t u = 0; u < self->unit_count; u++)
        for (uint32_t i = 0; i < self->units[u].tensor_count; i++) {
            const model_tensor *tensor = &self->units[u].tensors[i];
            if (!model_is_matrix(tensor) || tensor->is_adapter ||
                !has_words(tensor->name, rule->name))
                continue;
            is_found = true;
            if (self->units[u].is_frozen || !packs)
                return 0;
        }
    if (is_found)
        return err_set(ERR_CONFIG,
                       "state.rules: %s is for matrices that do not learn, and all that are named "
                       "\"%s\" learn; leave the rule out",
                       stored_format_name(rule->format), rule->name);
    return err_set(ERR_CONFIG,
                   "state.rules: no matrix of the model has the name \"%s\": write words of a "
                   "tensor's name in a row, as in \"%s\"",
                   rule->name, self->units[0].tensors[0].name);
}

int modeli_find_packed(model *self)
{
    const model_spec *spec = &self->spec;
    bool is_found = false;
    for (uint32_t u = 0; u < self->unit_count; u++) {
        model_unit *unit = &self->units[u];
        unit->rest_elems = unit->elems;
        if (unit->is_frozen && (model_asks_packed(spec) || is_constant(unit)))
            TRY(place_unit(self, u));
        else
            TRY(check_learning(self, u));
        is_found = is_found || (unit->is_packed && !is_constant(unit));
    }
    for (uint32_t i = 0; i < spec->stored.rule_count; i++)
        TRY(check_rule(self, &spec->stored.rules[i]));
    if (is_found || spec->stored.format == STORED_WORKING)
        return 0;
    return err_set(ERR_CONFIG,
                   "state.params: %s is for matrices of blocks that do not learn, and all of them "
                   "learn; train adapters (train.lora) or a part of the model (train.only), or "
                   "leave state.params out",
                   stored_format_name(spec->stored.format));
}

bool model_has_packed(const model *self)
{
    for (uint32_t u = 0; u < self->unit_count; u++)
        if (self->units[u].is_packed)
            return true;
    return false;
}

/* ---- expanding ---- */

/* A pass reads all groups, or the own one where experts belong to ranks. */
static uint32_t groups_here(const model *self, const model_unit *unit)
{
    return self->spec.owns_experts ? 1 : groups_of(unit);
}

static uint64_t expanded_bytes(const model *self, const struct pass *pass, uint32_t i)
{
    const model_unit *unit = &self->units[pass->units[i]];
    if (!unit->is_packed || !pass->reads_params[i] || is_constant(unit))
        return 0;
    uint64_t elems = unit->elems / groups_of(unit) * groups_here(self, unit);
    return size_round_up(elems * dtype_bytes(self->type), MODEL_REST_ALIGN_BYTES);
}

void modeli_size_expansion(const model *self, struct pass *pass)
{
    for (uint32_t i = 0; i < pass->unit_count; i++) {
        const model_unit *unit = &self->units[pass->units[i]];
        uint64_t bytes = expanded_bytes(self, pass, i);
        if (bytes == 0)
            continue;
        uint64_t packed_elems = unit->rest_elems / groups_of(unit) * groups_here(self, unit);
        pass->expanded_bytes += bytes;
        pass->expand_dram_bytes += bytes + packed_elems * dtype_bytes(self->type);
    }
}

static int expand_tensor(const model *self, const kernel_ops *ops, kernel_context *context,
                         void *stream, const model_tensor *tensor, const void *packed,
                         enum dtype type, void *target)
{
    if (tensor->stored == STORED_WORKING)
        return ops->convert(context, stream, (const char *)packed + tensor->rest_bytes,
                            kept_type(self, tensor), target, type, tensor->rows * tensor->columns);
    uint64_t rows = tensor->stored_rows;
    stored_layout layout = stored_layout_of(tensor->stored, rows, tensor->columns);
    for (uint64_t i = 0; i < tensor->rows / rows; i++) {
        const char *codes = (const char *)packed + model_matrix_at(tensor, i);
        stored_expand_args args = {.format = tensor->stored,
                                   .rows = rows,
                                   .columns = tensor->columns,
                                   .codes = codes,
                                   .scales = codes + codes_bytes(&layout),
                                   .type = type,
                                   .target = (char *)target +
                                             i * rows * tensor->columns * dtype_bytes(type)};
        TRY(ops->stored_expand(context, stream, &args));
    }
    return 0;
}

/* The own group's params are where those of the first group would be. */
static int expand_unit(const model *self, const model_unit *unit, void *stream, const void *packed,
                       void *expanded)
{
    uint32_t count = tensors_of_group(unit) * groups_here(self, unit);
    for (uint32_t i = 0; i < count; i++) {
        const model_tensor *tensor = &unit->tensors[i];
        void *target = (char *)expanded + tensor->offset_elems * dtype_bytes(self->type);
        TRY(expand_tensor(self, self->ops, self->context, stream, tensor, packed, self->type,
                          target));
    }
    return 0;
}

int model_unpack(const model *net, const kernel_ops *ops, kernel_context *context, uint32_t unit,
                 uint32_t tensor, const void *packed, float *values)
{
    return expand_tensor(net, ops, context, NULL, &net->units[unit].tensors[tensor], packed,
                         DTYPE_FP32, values);
}

int modeli_expand(const model *self, const struct pass *pass, void *stream, model_call *call)
{
    char *expanded = call->expanded;
    for (uint32_t i = 0; i < pass->unit_count; i++) {
        uint64_t bytes = expanded_bytes(self, pass, i);
        if (bytes == 0 || call->params[i] == NULL) /* not packed, or not hit */
            continue;
        assert(expanded != NULL);
        if (call->expands)
            TRY(expand_unit(self, &self->units[pass->units[i]], stream, call->params[i], expanded));
        call->params[i] = expanded;
        expanded += bytes;
    }
    return 0;
}

/* ---- packing ---- */

struct model_packer {
    const model *net;
    uint32_t unit;       /* the unit in `packed`; NO_UNIT: none */
    uint64_t room_bytes; /* of `packed` */
    char *packed;
    float *piece;  /* PIECE_ROWS of the widest matrix, or a whole vector */
    float *scales; /* of a matrix, before double quantization */
};

int model_packer_create(const model *net, model_packer **out)
{
    uint64_t piece_elems = 0, scale_count = 0;
    *out = NULL;
    model_packer *self = mem_alloc(1, sizeof *self, "packer");
    if (self == NULL)
        return -ENOMEM;
    self->net = net;
    self->unit = NO_UNIT;
    for (uint32_t u = 0; u < net->unit_count; u++) {
        const model_unit *unit = &net->units[u];
        if (!unit->is_packed)
            continue;
        self->room_bytes = size_max(self->room_bytes, unit->rest_elems * dtype_bytes(net->type));
        for (uint32_t i = 0; i < unit->tensor_count; i++) {
            const model_tensor *tensor = &unit->tensors[i];
            piece_elems =
                size_max(piece_elems, size_min(tensor->rows, PIECE_ROWS) * tensor->columns);
            if (stored_is_double(tensor->stored))
                scale_count =
                    size_max(scale_count,
                             stored_layout_of(tensor->stored, tensor->stored_rows, tensor->columns)
                                 .scale_count);
        }
    }
    self->packed = mem_alloc(self->room_bytes, 1, "a packed unit");
    self->piece = mem_alloc(piece_elems, sizeof *self->piece, "a piece of weights");
    self->scales = mem_alloc(scale_count, sizeof *self->scales, "scales of a matrix");
    if (self->packed == NULL || self->piece == NULL || self->scales == NULL) {
        model_packer_destroy(self);
        return -ENOMEM;
    }
    *out = self;
    return 0;
}

void model_packer_destroy(model_packer *self)
{
    if (self == NULL)
        return;
    mem_free(self->packed);
    mem_free(self->piece);
    mem_free(self->scales);
    mem_free(self);
}

/* Where the weights come from, and who computes. */
struct packing {
    const kernel_ops *ops;
    kernel_context *context;
    const model_source *source;
};

/* Matrix `idx` of a tensor. */
static int quantize_matrix(model_packer *self, const struct packing *from,
                           const model_tensor *tensor, uint64_t idx, char *codes, void *target)
{
    uint64_t columns = tensor->columns, all = tensor->stored_rows;
    stored_layout whole = stored_layout_of(tensor->stored, all, columns);
    enum stored_format single = stored_single(tensor->stored);
    char *scales = stored_is_double(tensor->stored) ? (char *)self->scales : target;
    for (uint64_t row = 0; row < all; row += PIECE_ROWS) {
        uint64_t rows = size_min(all - row, PIECE_ROWS);
        stored_layout layout = stored_layout_of(single, rows, columns);
        stored_quantize_args args = {.format = single,
                                     .rows = rows,
                                     .columns = columns,
                                     .type = DTYPE_FP32,
                                     .source = self->piece,
                                     .codes = codes,
                                     .scales = scales};
        TRY(from->source->values(from->source->user, self->unit,
                                 tensor->offset_elems + (idx * all + row) * columns, rows * columns,
                                 self->piece));
        int rc = from->ops->stored_quantize(from->context, NULL, &args);
        if (rc < 0)
            return err_prefix(rc, "%s", tensor->name);
        codes += layout.code_bytes;
        scales += layout.scale_bytes;
    }
    if (single == tensor->stored)
        return 0;
    return from->ops->stored_double(from->context, NULL, self->scales, whole.scale_count, target);
}

/* Takes codes and scales of each matrix as the source has them, or quantizes its values. */
static int pack_matrices(model_packer *self, const struct packing *from, uint32_t idx)
{
    const model_tensor *tensor = &self->net->units[self->unit].tensors[idx];
    const model_source *source = from->source;
    stored_layout layout = stored_layout_of(tensor->stored, tensor->stored_rows, tensor->columns);
    for (uint64_t i = 0; i < tensor->rows / tensor->stored_rows; i++) {
        char *codes = self->packed + model_matrix_at(tensor, i);
        void *scales = codes + codes_bytes(&layout);
        int is_copied =
            source->codes ? source->codes(source->user, self->unit, idx, i, codes, scales) : 0;
        TRY(is_copied);
        if (!is_copied)
            TRY(quantize_matrix(self, from, tensor, i, codes, scales));
    }
    return 0;
}

/* Vectors and whatever else stays in the working dtype. */
static int pack_plain(model_packer *self, const struct packing *from, const model_tensor *tensor)
{
    enum dtype type = kept_type(self->net, tensor);
    char *target = self->packed + tensor->rest_bytes;
    for (uint64_t row = 0; row < tensor->rows; row += PIECE_ROWS) {
        uint64_t count = size_min(tensor->rows - row, PIECE_ROWS) * tensor->columns;
        uint64_t at = row * tensor->columns;
        TRY(from->source->values(from->source->user, self->unit, tensor->offset_elems + at, count,
                                 self->piece));
        TRY(from->ops->working_copy(from->context, NULL, self->piece,
                                    target + at * dtype_bytes(type), type, count));
    }
    return 0;
}

int model_pack(model_packer *self, const kernel_ops *ops, kernel_context *context, uint32_t unit,
               const model_source *source, const void **packed)
{
    const model_unit *of = &self->net->units[unit];
    const struct packing from = {.ops = ops, .context = context, .source = source};
    assert(of->is_packed);
    *packed = self->packed;
    if (self->unit == unit)
        return 0;
    memset(self->packed, 0, self->room_bytes);
    self->unit = unit;
    for (uint32_t i = 0; i < of->tensor_count; i++) {
        const model_tensor *tensor = &of->tensors[i];
        int rc = tensor->stored == STORED_WORKING ? pack_plain(self, &from, tensor)
                                                  : pack_matrices(self, &from, i);
        if (rc < 0) {
            self->unit = NO_UNIT;
            return rc;
        }
    }
    return 0;
}
