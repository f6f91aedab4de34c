/* An export whose packed matrices stay packed: the tensors of such a matrix in files, and what
 * config.json says of them. The layouts are those of bitsandbytes, as transformers writes them, of
 * fp8 in blocks, and of gpt-oss's experts in mxfp4; weights_packed.c reads them. See
 * hf_internal.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/text.h"
#include "hf/hf_internal.h"
#include "model/pack.h"

enum {
    STATE_BYTES = 256, /* of a quant_state, with spaces at its end */
};

static const char *const torch_names[DTYPE_COUNT] = {
    [DTYPE_FP32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_FP16] = "float16"};

static bool is_4bit(enum stored_format format)
{
    return format >= STORED_NF4 && format <= STORED_FP4_DOUBLE;
}

static bool is_nf4(enum stored_format format)
{
    return format == STORED_NF4 || format == STORED_NF4_DOUBLE;
}

/* ---- what can be exported ---- */

/* The format of the packed matrices; STORED_WORKING: there are none. */
static enum stored_format format_of(const model *net, const model_tensor **first)
{
    *first = NULL;
    for (uint32_t u = 0; u < net->unit_count; u++)
        for (uint32_t i = 0; i < net->units[u].tensor_count; i++)
            if (net->units[u].tensors[i].stored != STORED_WORKING) {
                *first = &net->units[u].tensors[i];
                return (*first)->stored;
            }
    return STORED_WORKING;
}

bool hfi_stays_packed(const model *net, const model_tensor *tensor)
{
    hf_layout layout;
    return tensor->stored != STORED_WORKING &&
           (tensor->stored != STORED_MXFP4 || hf_layout_of_blocks(net, tensor, &layout));
}

static int check_tensor(const model *net, uint32_t unit, const model_tensor *tensor,
                        const model_tensor *first)
{
    hf_layout layout = hf_layout_of(net, tensor, false);
    if (tensor->stored != first->stored)
        return err_set(ERR_CONFIG,
                       "a checkpoint has matrices of one packed format, and the run keeps %s as %s "
                       "and %s as %s: export without --quantized",
                       first->name, stored_format_name(first->stored), tensor->name,
                       stored_format_name(tensor->stored));
    if (tensor->stored == STORED_MXFP4)
        return 0; /* its layout is known, or it is expanded */
    if (strncmp(net->units[unit].name, "embed", strlen("embed")) == 0)
        return err_set(ERR_CONFIG,
                       "a checkpoint has no packed embedding, and the run keeps %s as %s: export "
                       "without --quantized",
                       tensor->name, stored_format_name(tensor->stored));
    if (layout.order != HF_ORDER_SAME || layout.elems != tensor->stored_rows * tensor->columns)
        return err_set(ERR_CONFIG,
                       "the run keeps %s in other pieces than a checkpoint has it: export without "
                       "--quantized",
                       tensor->name);
    if (layout.tensor_count > 1 && tensor->stored != STORED_FP8_BLOCKS)
        return err_set(ERR_CONFIG,
                       "transformers reads no experts in bitsandbytes' formats, and the run keeps "
                       "%s as %s: export without --quantized",
                       tensor->name, stored_format_name(tensor->stored));
    return 0;
}

int hfi_check_packed(const model *net)
{
    const model_tensor *first;
    enum stored_format format = format_of(net, &first);
    uint32_t packed_count = 0;
    if (format == STORED_WORKING)
        return err_set(ERR_CONFIG, "the run keeps no matrix in a packed format (state.params): "
                                   "export without --quantized");
    if (format == STORED_INT8 || format == STORED_FP8_ROWS)
        return err_set(ERR_CONFIG,
                       "no checkpoint that transformers reads can hold matrices in the format %s: "
                       "export without --quantized, or begin a run with state.params %s",
                       stored_format_name(format),
                       stored_format_name(format == STORED_INT8 ? STORED_INT8_ROWS
                                                                : STORED_FP8_BLOCKS));
    for (uint32_t u = 0; u < net->unit_count; u++)
        for (uint32_t i = 0; i < net->units[u].tensor_count; i++) {
            const model_tensor *tensor = &net->units[u].tensors[i];
            packed_count += hfi_stays_packed(net, tensor);
            if (tensor->stored != STORED_WORKING)
                TRY(check_tensor(net, u, tensor, first));
        }
    if (packed_count == 0)
        return err_set(ERR_CONFIG,
                       "checkpoints hold mxfp4 for experts of gpt_oss alone, and the run keeps %s "
                       "as mxfp4: export without --quantized",
                       first->name);
    return 0;
}

/* ---- tensors in files ---- */

static void add_row(struct export_rows *self, const char *stem, const char *end,
                    const char *byte_type, uint32_t dim_count, uint64_t rows, uint64_t columns)
{
    safetensors_row *row = &self->rows[self->count];
    char *name = self->names[self->count++];
    uint64_t elems = dim_count == 0 ? 1 : dim_count == 1 ? rows : rows * columns;
    snprintf(name, HF_STORED_NAME_BYTES, "%s%s", stem, end);
    *row = (safetensors_row){.name = name,
                             .type = DTYPE_FP32,
                             .byte_type = byte_type,
                             .dim_count = dim_count,
                             .shape = {rows, columns}};
    self->bytes += elems * (byte_type ? 1 : sizeof(float));
}

/* mxfp4 has "NAME_blocks", [experts, rows, groups, bytes of a group], and "NAME_scales" without the
 * last. */
static void block_rows(const export_tensor *from, struct export_rows *out)
{
    uint64_t elems = 1;
    int stem = (int)(strlen(from->name) - strlen("_blocks"));
    for (out->count = 0; out->count < 2; out->count++) {
        safetensors_row *row = &out->rows[out->count];
        char *name = out->names[out->count];
        snprintf(name, HF_STORED_NAME_BYTES, "%.*s%s", stem, from->name,
                 out->count == 0 ? "_blocks" : "_scales");
        *row = (safetensors_row){.name = name,
                                 .type = DTYPE_FP32,
                                 .byte_type = "U8",
                                 .dim_count = from->layout.dim_count - out->count};
        memcpy(row->shape, from->layout.shape, sizeof from->layout.shape);
    }
    for (uint32_t d = 0; d + 1 < from->layout.dim_count; d++)
        elems *= from->layout.shape[d];
    out->bytes = elems * (from->layout.shape[from->layout.dim_count - 1] + 1);
}

void hfi_packed_rows(const export_tensor *from, struct export_rows *out)
{
    enum stored_format format = from->format;
    if (format == STORED_MXFP4) {
        block_rows(from, out);
        return;
    }
    uint64_t rows = from->layout.shape[0], columns = from->layout.shape[1];
    stored_layout layout = stored_layout_of(format, rows, columns);
    char stem[sizeof from->name];
    out->count = 0;
    out->bytes = 0;
    if (is_4bit(format)) {
        add_row(out, from->name, "", "U8", 2, layout.code_bytes, 1);
        add_row(out, from->name, ".absmax", stored_is_double(format) ? "U8" : NULL, 1,
                layout.scale_count, 0);
        add_row(out, from->name, ".quant_map", NULL, 1, HFI_CODES_4BIT, 0);
        add_row(out, from->name,
                is_nf4(format) ? ".quant_state.bitsandbytes__nf4"
                               : ".quant_state.bitsandbytes__fp4",
                "U8", 1, STATE_BYTES, 0);
        if (!stored_is_double(format))
            return;
        add_row(out, from->name, ".nested_absmax", NULL, 1,
                size_div_up(layout.scale_count, STORED_DOUBLE_GROUP), 0);
        add_row(out, from->name, ".nested_quant_map", NULL, 1, HFI_CODES_8BIT, 0);
    } else if (format == STORED_INT8_ROWS) {
        snprintf(stem, sizeof stem, "%.*s", (int)(strlen(from->name) - strlen("weight")),
                 from->name);
        add_row(out, from->name, "", "I8", 2, rows, columns);
        add_row(out, stem, "SCB", NULL, 1, rows, 0);
        add_row(out, stem, "weight_format", "U8", 0, 0, 0);
    } else {
        add_row(out, from->name, "", "F8_E4M3", 2, rows, columns);
        add_row(out, from->name, "_scale_inv", NULL, 2, layout.scale_count / layout.line_runs,
                layout.line_runs);
    }
}

static int write_table(kernel_context *context, safetensors_writer *writer, uint32_t row,
                       enum stored_format format, uint64_t count)
{
    float values[HFI_CODES_8BIT];
    TRY(hfi_code_values(context, format, count, values));
    return safetensors_write(writer, row, 0, count, values);
}

static int write_4bit(const export_tensor *to, enum dtype type, kernel_context *context,
                      safetensors_writer *writer, const stored_layout *layout, const void *scales)
{
    uint32_t row = to->row_idx;
    uint64_t groups = size_div_up(layout->scale_count, STORED_DOUBLE_GROUP);
    const float *floats = scales;
    char state[STATE_BYTES + 1], nested[128] = "";
    enum stored_format single = is_nf4(to->format) ? STORED_NF4 : STORED_FP4;
    if (stored_is_double(to->format))
        snprintf(nested, sizeof nested,
                 ", \"nested_blocksize\": %d, \"nested_dtype\": \"float32\", \"nested_offset\": "
                 "%.17g",
                 (int)STORED_DOUBLE_GROUP, (double)floats[groups]);
    int length = snprintf(state, sizeof state,
                          "{\"quant_type\": \"%s\", \"blocksize\": 64, \"dtype\": \"%s\", "
                          "\"shape\": [%" PRIu64 ", %" PRIu64 "]%s}",
                          stored_format_name(single), torch_names[type], to->layout.shape[0],
                          to->layout.shape[1], nested);
    memset(state + length, ' ', STATE_BYTES - (size_t)length);
    TRY(safetensors_write(writer, row + 1, 0, layout->scale_count,
                          stored_is_double(to->format) ? (const void *)(floats + groups + 1)
                                                       : scales));
    TRY(write_table(context, writer, row + 2, single, HFI_CODES_4BIT));
    TRY(safetensors_write(writer, row + 3, 0, STATE_BYTES, state));
    if (!stored_is_double(to->format))
        return 0;
    TRY(safetensors_write(writer, row + 4, 0, groups, floats));
    return write_table(context, writer, row + 5, STORED_INT8, HFI_CODES_8BIT);
}

static int write_matrix(const export_list *list, uint32_t idx, kernel_context *context,
                        const void *codes, const void *scales)
{
    const export_tensor *to = &list->tensors[idx];
    safetensors_writer *writer = list->files[to->file_idx].writer;
    uint64_t rows = to->layout.shape[0], columns = to->layout.shape[1];
    stored_layout layout = stored_layout_of(to->format, rows, columns);
    TRY(safetensors_write(writer, to->row_idx, 0, layout.code_bytes, codes));
    if (is_4bit(to->format))
        return write_4bit(to, list->type, context, writer, &layout, scales);
    TRY(safetensors_write(writer, to->row_idx + 1, 0, layout.scale_count, scales));
    return to->format == STORED_INT8_ROWS ? safetensors_write(writer, to->row_idx + 2, 0, 1, "")
                                          : 0;
}

/* Takes matrix `idx` of the unit's part of a tensor in mxfp4. An expert in a file is one matrix,
 * which may be two here, gate and up, with their rows by turns. Writes the expert with the last of
 * them. */
static int write_blocks(const export_list *list, uint32_t idx, struct export_room *room,
                        const model_tensor *tensor, uint64_t matrix, const unsigned char *codes,
                        const unsigned char *scales)
{
    const export_tensor *to = &list->tensors[idx];
    const hf_layout *of = &to->layout;
    safetensors_writer *writer = list->files[to->file_idx].writer;
    uint64_t each = of->rows / tensor->stored_rows; /* matrices of an expert */
    uint64_t groups = of->shape[2], row_bytes = of->columns / 2;
    uint64_t first = tensor->row_begin / of->rows + matrix / each; /* the expert */
    unsigned char *all_scales = room->blocks + of->rows * row_bytes;
    for (uint64_t r = 0; r < tensor->stored_rows; r++) {
        uint64_t row = matrix % each * tensor->stored_rows + r;
        row = of->order == HF_ORDER_PAIRED ? hf_layout_turned(of, row) : row;
        memcpy(room->blocks + row * row_bytes, codes + r * row_bytes, row_bytes);
        memcpy(all_scales + row * groups, scales + r * groups, groups);
    }
    if (matrix % each + 1 < each)
        return 0;
    TRY(safetensors_write(writer, to->row_idx, first * of->rows * row_bytes, of->rows * row_bytes,
                          room->blocks));
    return safetensors_write(writer, to->row_idx + 1, first * of->rows * groups, of->rows * groups,
                             all_scales);
}

/* room: [scales of the matrix]. */
static int quantize(const model_tensor *tensor, kernel_context *context, const float *values,
                    float *room, void *codes, void *scales)
{
    enum stored_format format = tensor->stored;
    const stored_quantize_args args = {.format = stored_single(format),
                                       .rows = tensor->stored_rows,
                                       .columns = tensor->columns,
                                       .type = DTYPE_FP32,
                                       .source = values,
                                       .codes = codes,
                                       .scales = stored_is_double(format) ? room : scales};
    int rc = kernels_cpu.stored_quantize(context, NULL, &args);
    if (rc < 0)
        return err_prefix(rc, "%s", tensor->name);
    if (!stored_is_double(format))
        return 0;
    stored_layout layout = stored_layout_of(format, tensor->stored_rows, tensor->columns);
    return kernels_cpu.stored_double(context, NULL, room, layout.scale_count, scales);
}

/* ---- packed units on their way ---- */

/* The place of scales behind codes. */
static uint64_t scales_at(const stored_layout *layout)
{
    return size_round_up(layout->code_bytes, MODEL_REST_ALIGN_BYTES);
}

int hfi_room_reserve(const model *net, struct export_room *self)
{
    uint64_t bytes = 0, elems = 0, codes = 0, scales = 0, blocks = 0;
    for (uint32_t u = 0; u < net->unit_count; u++) {
        const model_unit *unit = &net->units[u];
        if (!unit->is_packed)
            continue;
        bytes = size_max(bytes, unit->rest_elems * dtype_bytes(net->type));
        for (uint32_t i = 0; i < unit->tensor_count; i++) {
            const model_tensor *tensor = &unit->tensors[i];
            elems = size_max(elems, tensor->rows * tensor->columns);
            if (tensor->stored == STORED_WORKING)
                continue;
            stored_layout layout =
                stored_layout_of(tensor->stored, tensor->stored_rows, tensor->columns);
            codes = size_max(codes, scales_at(&layout) + layout.scale_bytes);
            scales = size_max(scales, layout.scale_count);
            if (tensor->stored == STORED_MXFP4) /* gate and up */
                blocks = size_max(blocks, 2 * (layout.code_bytes + layout.scale_bytes));
        }
    }
    if (bytes == 0)
        return 0;
    self->packed = mem_alloc(bytes, 1, "a packed unit");
    self->unpacked = mem_alloc(elems, sizeof *self->unpacked, "a matrix of a packed unit");
    self->codes = mem_alloc(codes, 1, "codes of a matrix");
    self->scales = mem_alloc(scales, sizeof *self->scales, "scales of a matrix");
    self->blocks = mem_alloc(blocks, 1, "codes of an expert");
    return self->packed && self->unpacked && self->codes && self->scales && self->blocks ? 0
                                                                                         : -ENOMEM;
}

void hfi_room_free(struct export_room *self)
{
    mem_free(self->packed);
    mem_free(self->unpacked);
    mem_free(self->codes);
    mem_free(self->scales);
    mem_free(self->blocks);
}

int hfi_put_matrices(const model *net, const export_list *list, struct export_room *room,
                     const export_adapters *adapters, kernel_context *context, uint32_t unit,
                     uint32_t tensor_idx)
{
    const model_tensor *tensor = &net->units[unit].tensors[tensor_idx];
    uint64_t elems = tensor->stored_rows * tensor->columns;
    stored_layout layout = stored_layout_of(tensor->stored, tensor->stored_rows, tensor->columns);
    uint32_t idx = list->of_unit[unit][tensor_idx];
    bool is_merged = hfi_has_adapter(adapters, unit, tensor);
    for (uint64_t i = 0; i < tensor->rows / tensor->stored_rows; i++) {
        const unsigned char *codes = room->packed + model_matrix_at(tensor, i);
        if (is_merged) {
            float *values = room->unpacked + i * elems;
            hfi_merge(adapters, unit, tensor, i * elems, elems, values);
            TRY(quantize(tensor, context, values, room->scales, room->codes,
                         room->codes + scales_at(&layout)));
            codes = room->codes;
        }
        const unsigned char *scales = codes + scales_at(&layout);
        TRY(tensor->stored == STORED_MXFP4
                ? write_blocks(list, idx, room, tensor, i, codes, scales)
                : write_matrix(list, idx + (uint32_t)i, context, codes, scales));
    }
    return 0;
}

/* ---- config.json ---- */

/* The modules whose matrices are not packed. A tied output matrix has no tensor in files. */
static json_t *list_plain(const model *net, const export_list *list)
{
    static const char end[] = ".weight";
    json_t *names = json_array();
    for (uint32_t i = 0; i < list->count; i++) {
        const export_tensor *tensor = &list->tensors[i];
        size_t length = strlen(tensor->name);
        if (tensor->format == STORED_WORKING && tensor->layout.dim_count == 2 &&
            text_ends_with(tensor->name, end))
            json_array_append_new(names, json_stringn(tensor->name, length - strlen(end)));
    }
    if (net->spec.tie_embeddings)
        json_array_append_new(
            names, json_string(net->spec.family == MODEL_GPT_NEOX ? "embed_out" : "lm_head"));
    return names;
}

json_t *hfi_packed_config(const model *net, const export_list *list)
{
    const model_tensor *first;
    enum stored_format format = format_of(net, &first);
    if (format == STORED_MXFP4) /* all but the experts, as published */
        return json_pack("{s:s, s:[s, s, s, s]}", "quant_method", "mxfp4",
                         "modules_to_not_convert", "model.layers.*.self_attn",
                         "model.layers.*.mlp.router", "model.embed_tokens", "lm_head");
    if (format == STORED_FP8_BLOCKS)
        return json_pack("{s:s, s:s, s:s, s:[i, i], s:o}", "quant_method", "fp8", "fmt", "e4m3",
                         "activation_scheme", "dynamic", "weight_block_size", 128, 128,
                         "modules_to_not_convert", list_plain(net, list));
    return json_pack(
        "{s:s, s:b, s:b, s:s, s:b, s:s, s:s, s:f, s:o}", "quant_method", "bitsandbytes",
        "load_in_4bit", is_4bit(format), "load_in_8bit", !is_4bit(format), "bnb_4bit_quant_type",
        is_nf4(format) ? "nf4" : "fp4", "bnb_4bit_use_double_quant", stored_is_double(format),
        "bnb_4bit_compute_dtype", torch_names[list->type], "bnb_4bit_quant_storage", "uint8",
        "llm_int8_threshold", 6.0, "llm_int8_skip_modules", list_plain(net, list));
}
