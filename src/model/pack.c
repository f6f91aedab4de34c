/* Packed units: where their tensors are kept, how a pass expands them, and how they are made. See
 * model.h and pack.h. Only model_packer_create allocates. */
#include "model/pack.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/shard.h"
#include "base/size.h"
#include "model/model_internal.h"

/* Rows of a matrix that are quantized at a time: so many rows have whole groups in every format. */
enum { PIECE_ROWS = 256, NO_UNIT = UINT32_MAX };

/* ---- places ---- */

static uint64_t codes_bytes(const stored_layout *layout)
{
    return size_round_up(layout->code_bytes, MODEL_REST_ALIGN_BYTES);
}

static uint64_t tensor_bytes(const model *self, const model_tensor *tensor)
{
    if (tensor->stored == STORED_WORKING)
        return tensor->rows * tensor->columns * dtype_bytes(self->type);
    stored_layout layout = stored_layout_of(tensor->stored, tensor->rows, tensor->columns);
    return codes_bytes(&layout) + layout.scale_bytes;
}

/* True for the matrices of a block's linear layers and experts; false for a router's. */
static bool is_packable(const model *self, uint32_t unit, uint32_t idx)
{
    const modeli_origin *origin = &self->products->origins[unit];
    const model_tensor *tensor = &self->units[unit].tensors[idx];
    if (!model_is_matrix(tensor) || tensor->is_adapter || tensor->rows == 1)
        return false;
    const modeli_list *list = modeli_list_of(self, origin->unit);
    uint32_t layer = list->layer_count - 1; /* the last one that begins there or before */
    while (layer > 0 && list->layers[layer].first_tensor > origin->tensors[idx])
        layer--;
    return list->layers[layer].kind != &modeli_router;
}

static int place_unit(model *self, uint32_t unit_idx)
{
    model_unit *unit = &self->units[unit_idx];
    uint64_t end = 0;
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
        model_tensor *tensor = &unit->tensors[i];
        if (is_packable(self, unit_idx, i)) {
            if (!stored_fits(self->spec.stored, tensor->columns))
                return err_set(ERR_CONFIG,
                               "state.params: %s needs rows of a multiple of 32 elements, and %s "
                               "has %llu columns",
                               stored_format_name(self->spec.stored), tensor->name,
                               (unsigned long long)tensor->columns);
            tensor->stored = self->spec.stored;
            unit->is_packed = true;
        }
        tensor->rest_bytes = size_round_up(end, MODEL_REST_ALIGN_BYTES);
        end = tensor->rest_bytes + tensor_bytes(self, tensor);
    }
    if (unit->is_packed)
        unit->rest_elems =
            size_round_up(size_div_up(end, dtype_bytes(self->type)), SHARD_ELEMS_STEP);
    return 0;
}

int modeli_find_packed(model *self)
{
    bool is_found = false;
    for (uint32_t u = 0; u < self->unit_count; u++)
        self->units[u].rest_elems = self->units[u].elems;
    if (self->spec.stored == STORED_WORKING)
        return 0;
    for (uint32_t u = 0; u < self->unit_count; u++) {
        uint32_t stage = self->products->origins[u].unit;
        bool is_of_block = stage > 0 && model_block_of(self, stage) < self->spec.num_layers;
        if (is_of_block && self->units[u].is_frozen)
            TRY(place_unit(self, u));
        is_found = is_found || self->units[u].is_packed;
    }
    if (is_found)
        return 0;
    return err_set(ERR_CONFIG,
                   "state.params: %s is for matrices of blocks that do not learn, and all of them "
                   "learn; train adapters (train.lora) or a part of the model (train.only), or "
                   "leave state.params out",
                   stored_format_name(self->spec.stored));
}

/* ---- expanding ---- */

static uint64_t expanded_bytes(const model *self, const struct pass *pass, uint32_t i)
{
    const model_unit *unit = &self->units[pass->units[i]];
    if (!unit->is_packed || !pass->reads_params[i])
        return 0;
    return size_round_up(unit->elems * dtype_bytes(self->type), MODEL_REST_ALIGN_BYTES);
}

void modeli_size_expansion(const model *self, struct pass *pass)
{
    for (uint32_t i = 0; i < pass->unit_count; i++) {
        uint64_t bytes = expanded_bytes(self, pass, i);
        if (bytes == 0)
            continue;
        pass->temp_bytes = size_round_up(pass->temp_bytes, MODEL_REST_ALIGN_BYTES) + bytes;
        pass->dram_bytes +=
            bytes + self->units[pass->units[i]].rest_elems * dtype_bytes(self->type);
    }
}

static int expand_tensor(const model *self, const kernel_ops *ops, kernel_context *context,
                         void *stream, const model_tensor *tensor, const void *packed,
                         enum dtype type, void *target)
{
    const char *source = (const char *)packed + tensor->rest_bytes;
    if (tensor->stored == STORED_WORKING)
        return ops->convert(context, stream, source, self->type, target, type,
                            tensor->rows * tensor->columns);
    stored_layout layout = stored_layout_of(tensor->stored, tensor->rows, tensor->columns);
    stored_expand_args args = {.format = tensor->stored,
                               .rows = tensor->rows,
                               .columns = tensor->columns,
                               .codes = source,
                               .scales = source + codes_bytes(&layout),
                               .type = type,
                               .target = target};
    return ops->stored_expand(context, stream, &args);
}

static int expand_unit(const model *self, const model_unit *unit, void *stream, const void *packed,
                       void *expanded)
{
    for (uint32_t i = 0; i < unit->tensor_count; i++) {
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
    uint64_t at = pass->temp_bytes;
    for (uint32_t i = pass->unit_count; i-- > 0;) {
        uint64_t bytes = expanded_bytes(self, pass, i);
        if (bytes == 0)
            continue;
        at -= bytes;
        void *expanded = (char *)call->temp + at;
        TRY(expand_unit(self, &self->units[pass->units[i]], stream, call->params[i], expanded));
        call->params[i] = expanded;
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

static bool is_double(enum stored_format format)
{
    return format == STORED_NF4_DOUBLE || format == STORED_FP4_DOUBLE;
}

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
            if (is_double(tensor->stored))
                scale_count = size_max(
                    scale_count,
                    stored_layout_of(tensor->stored, tensor->rows, tensor->columns).scale_count);
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
    model_source *source;
    void *user;
};

static int pack_matrix(model_packer *self, const struct packing *from, const model_tensor *tensor)
{
    uint64_t columns = tensor->columns;
    char *codes = self->packed + tensor->rest_bytes;
    stored_layout whole = stored_layout_of(tensor->stored, tensor->rows, columns);
    enum stored_format single = tensor->stored == STORED_NF4_DOUBLE   ? STORED_NF4
                                : tensor->stored == STORED_FP4_DOUBLE ? STORED_FP4
                                                                      : tensor->stored;
    void *target = codes + codes_bytes(&whole);
    char *scales = is_double(tensor->stored) ? (char *)self->scales : target;
    for (uint64_t row = 0; row < tensor->rows; row += PIECE_ROWS) {
        uint64_t rows = size_min(tensor->rows - row, PIECE_ROWS);
        stored_layout layout = stored_layout_of(single, rows, columns);
        stored_quantize_args args = {.format = single,
                                     .rows = rows,
                                     .columns = columns,
                                     .type = DTYPE_FP32,
                                     .source = self->piece,
                                     .codes = codes,
                                     .scales = scales};
        TRY(from->source(from->user, self->unit, tensor->offset_elems + row * columns,
                         rows * columns, self->piece));
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

/* Vectors and whatever else stays in the working dtype. */
static int pack_plain(model_packer *self, const struct packing *from, const model_tensor *tensor)
{
    enum dtype type = self->net->type;
    char *target = self->packed + tensor->rest_bytes;
    for (uint64_t row = 0; row < tensor->rows; row += PIECE_ROWS) {
        uint64_t count = size_min(tensor->rows - row, PIECE_ROWS) * tensor->columns;
        uint64_t at = row * tensor->columns;
        TRY(from->source(from->user, self->unit, tensor->offset_elems + at, count, self->piece));
        TRY(from->ops->working_copy(from->context, NULL, self->piece,
                                    target + at * dtype_bytes(type), type, count));
    }
    return 0;
}

int model_pack(model_packer *self, const kernel_ops *ops, kernel_context *context, uint32_t unit,
               model_source *source, void *user, const void **packed)
{
    const model_unit *of = &self->net->units[unit];
    const struct packing from = {.ops = ops, .context = context, .source = source, .user = user};
    assert(of->is_packed);
    *packed = self->packed;
    if (self->unit == unit)
        return 0;
    memset(self->packed, 0, self->room_bytes);
    self->unit = unit;
    for (uint32_t i = 0; i < of->tensor_count; i++) {
        const model_tensor *tensor = &of->tensors[i];
        int rc = tensor->stored == STORED_WORKING ? pack_plain(self, &from, tensor)
                                                  : pack_matrix(self, &from, tensor);
        if (rc < 0) {
            self->unit = NO_UNIT;
            return rc;
        }
    }
    return 0;
}
