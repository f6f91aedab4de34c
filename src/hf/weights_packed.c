/* Tensors of a checkpoint that come quantized: finds and checks what lies beside their codes,
 * copies codes and scales as they are, or expands them. See weights.h and base/stored.h.
 *
 *   codes             beside NAME                                       format
 *   NAME  U8 or other NAME.absmax, .quant_map, .quant_state.bitsandbytes__nf4 or __fp4 (JSON);
 *                     with double quantization also .nested_absmax, .nested_quant_map   nf4, ...
 *   NAME  I8          STEM.SCB, STEM.weight_format (0: rows), where NAME is STEM.weight int8_rows
 *   NAME  F8_E4M3     NAME_scale_inv                                                    fp8_blocks
 *   NAME_blocks  U8   NAME_scales                                                       mxfp4
 *
 * bitsandbytes may give the bytes of 4-bit codes any dtype (bnb_4bit_quant_storage), such as BF16
 * for FSDP, which cuts floating-point tensors only. The quant_state beside them tells such a tensor
 * from a plain one. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/text.h"
#include "format/format_json.h"
#include "hf/hf_internal.h"

enum {
    NAME_BYTES = HF_STORED_NAME_BYTES,
    STATE_BYTES_MAX = 4096,    /* of a quant_state */
    STEP_ELEMS = 1 << 20,      /* that are expanded at a time, or a row of blocks */
    CONVERTED_ELEMS = 1 << 10, /* scales that are widened at a time */
    SCALE_MOST = 252,          /* of 8 bits: the largest value of E2M1, 6, times 2^126 overflows */
};

static const struct format_json_limits state_limits = {
    .bytes_max = STATE_BYTES_MAX, .values_max = 64, .depth_max = 3};

/* ---- what lies beside the codes ---- */

static const char *path_of(const hf_weights *self, const hf_tensor *at)
{
    return hf_path(self->files, at->file_idx);
}

/* Finds the tensor whose name is that of `at` less `dropped` bytes, and then `end`. */
static bool find_beside(const hf_weights *self, const hf_tensor *at, size_t dropped,
                        const char *end, hf_tensor *out)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%.*s%s", (int)(strlen(at->tensor->name) - dropped),
             at->tensor->name, end);
    return hf_find(self->files, name, out);
}

static int must_find(const hf_weights *self, const hf_tensor *at, size_t dropped, const char *end,
                     hf_tensor *out)
{
    if (find_beside(self, at, dropped, end, out))
        return 0;
    return err_set(ERR_INPUT,
                   "%s: tensor %s has dtype %s, and %.*s%s, which says what its codes mean, is "
                   "missing",
                   path_of(self, at), at->tensor->name, at->tensor->type_name,
                   (int)(strlen(at->tensor->name) - dropped), at->tensor->name, end);
}

static const char *const state_ends[] = {".quant_state.bitsandbytes__nf4",
                                         ".quant_state.bitsandbytes__fp4"};

bool hfi_is_4bit(const hf_checkpoint *files, const char *name)
{
    char beside[NAME_BYTES];
    hf_tensor found;
    for (size_t i = 0; i < sizeof state_ends / sizeof state_ends[0]; i++) {
        snprintf(beside, sizeof beside, "%s%s", name, state_ends[i]);
        if (hf_find(files, beside, &found))
            return true;
    }
    return false;
}

/* Finds a tensor that must have `count` elements of a dtype. */
static int take_beside(const hf_weights *self, const hf_tensor *at, size_t dropped, const char *end,
                       uint64_t count, const char *type, hf_tensor *out)
{
    TRY(must_find(self, at, dropped, end, out));
    const safetensors_tensor *found = out->tensor;
    if (found->elem_count == count && strcmp(found->type_name, type) == 0)
        return 0;
    return err_set(ERR_INPUT,
                   "%s: tensor %s has %" PRIu64 " elements of %s, and the codes of %s need %" PRIu64
                   " of %s",
                   path_of(self, out), found->name, found->elem_count, found->type_name,
                   at->tensor->name, count, type);
}

int hfi_code_values(kernel_context *context, enum stored_format format, uint64_t count,
                    float *values)
{
    unsigned char codes[HFI_CODES_8BIT];
    const float one = 1;
    for (uint64_t i = 0; i < count; i++)
        codes[i] = (unsigned char)(count == HFI_CODES_8BIT ? i : (2 * i) << 4 | (2 * i + 1));
    const stored_expand_args args = {.format = format,
                                     .rows = 1,
                                     .columns = count,
                                     .codes = codes,
                                     .scales = &one,
                                     .type = DTYPE_FP32,
                                     .target = values};
    return kernels_cpu.stored_expand(context, NULL, &args);
}

/* Compares a table of the checkpoint with the one that the format has here. */
static int check_table(const hf_weights *self, const hf_tensor *at, const char *end,
                       enum stored_format format, uint64_t count)
{
    float found[HFI_CODES_8BIT], known[HFI_CODES_8BIT];
    hf_tensor table;
    TRY(take_beside(self, at, 0, end, count, "F32", &table));
    TRY(hf_read(self->files, &table, 0, count * sizeof *found, found));
    TRY(hfi_code_values(self->context, format, count, known));
    if (memcmp(found, known, count * sizeof *found) == 0)
        return 0;
    return err_set(ERR_INPUT, "%s: tensor %s holds other values than those of %s",
                   path_of(self, &table), table.tensor->name, stored_format_name(format));
}

/* ---- bitsandbytes, 4 bits ---- */

/* False for a scale with which values overflow fp32: 448 is the largest value of all codes that
 * have scales of fp32. In fp16 a smaller one may make values infinite. */
static bool is_scale_in_range(float scale)
{
    return isfinite(448 * scale);
}

static int state_error(const hf_weights *self, const hf_tensor *state, const char *key,
                       const char *rule)
{
    return err_set(ERR_INPUT, "%s: tensor %s: %s %s", path_of(self, state), state->tensor->name,
                   key, rule);
}

/* Reads the JSON in a quant_state. */
static int read_state(const hf_weights *self, const hf_tensor *state, json_t **doc)
{
    char text[STATE_BYTES_MAX + 1], name[FILE_PATH_BYTES + NAME_BYTES];
    uint64_t size_bytes = state->tensor->size_bytes;
    *doc = NULL;
    if (size_bytes > STATE_BYTES_MAX)
        return state_error(self, state, "it", "is longer than 4096 bytes");
    TRY(hf_read(self->files, state, 0, size_bytes, text));
    text[size_bytes] = '\0';
    snprintf(name, sizeof name, "%s: tensor %s", path_of(self, state), state->tensor->name);
    return format_json_parse(name, text, size_bytes, &state_limits, doc);
}

static bool has_state_shape(const json_t *doc, const struct weights_packed *wanted)
{
    const json_t *shape = json_object_get(doc, "shape");
    return json_array_size(shape) == 2 &&
           (uint64_t)json_integer_value(json_array_get(shape, 0)) == wanted->rows &&
           (uint64_t)json_integer_value(json_array_get(shape, 1)) == wanted->columns;
}

static int take_state(const hf_weights *self, const hf_tensor *at, const hf_tensor *state,
                      const json_t *doc, struct weights_packed *out)
{
    const json_t *nested = json_object_get(doc, "nested_blocksize");
    const json_t *mean = json_object_get(doc, "nested_offset");
    const char *kind = json_string_value(json_object_get(doc, "quant_type"));
    bool is_double = nested && !json_is_null(nested);
    if (!kind || strcmp(kind, stored_format_name(out->format)) != 0)
        return state_error(self, state, "quant_type", "is not the one in the tensor's name");
    if (json_integer_value(json_object_get(doc, "blocksize")) != 64)
        return state_error(self, state, "blocksize", "is not 64, the only size that is read");
    if (is_double && json_integer_value(nested) != STORED_DOUBLE_GROUP)
        return state_error(self, state, "nested_blocksize",
                           "is not 256, the only size that is read");
    if (is_double && !(json_is_number(mean) && is_scale_in_range((float)json_number_value(mean))))
        return state_error(self, state, "nested_offset", "is no number, or too large");
    if (!has_state_shape(doc, out))
        return err_set(ERR_INPUT,
                       "%s: tensor %s has another shape in its quant_state than the model that "
                       "config.json and the job describe, [%" PRIu64 ", %" PRIu64 "]",
                       path_of(self, at), at->tensor->name, out->rows, out->columns);
    enum stored_format single = out->format;
    if (is_double)
        out->format = single == STORED_NF4 ? STORED_NF4_DOUBLE : STORED_FP4_DOUBLE;
    out->mean = is_double ? (float)json_number_value(mean) : 0;
    stored_layout layout = stored_layout_of(out->format, out->rows, out->columns);
    if (at->tensor->size_bytes != layout.code_bytes)
        return err_set(ERR_INPUT, "%s: tensor %s has %" PRIu64 " bytes of codes, not %" PRIu64,
                       path_of(self, at), at->tensor->name, at->tensor->size_bytes,
                       layout.code_bytes);
    const char *type = is_double ? "U8" : "F32";
    TRY(take_beside(self, at, 0, ".absmax", layout.scale_count, type, &out->scales));
    TRY(check_table(self, at, ".quant_map", single, HFI_CODES_4BIT));
    if (!is_double)
        return 0;
    TRY(check_table(self, at, ".nested_quant_map", STORED_INT8, HFI_CODES_8BIT));
    return take_beside(self, at, 0, ".nested_absmax",
                       size_div_up(layout.scale_count, STORED_DOUBLE_GROUP), "F32", &out->groups);
}

static int find_4bit(const hf_weights *self, const hf_tensor *at, struct weights_packed *out)
{
    hf_tensor state;
    json_t *doc;
    bool is_fp4 = find_beside(self, at, 0, state_ends[1], &state);
    out->format = is_fp4 ? STORED_FP4 : STORED_NF4;
    TRY(must_find(self, at, 0, state_ends[is_fp4], &state));
    TRY(read_state(self, &state, &doc));
    int rc = take_state(self, at, &state, doc, out);
    json_decref(doc);
    return rc;
}

/* ---- 8 bits ---- */

static int check_shape(const hf_weights *self, const hf_tensor *at, uint64_t rows, uint64_t columns,
                       const char *why)
{
    const safetensors_tensor *tensor = at->tensor;
    char is[SAFETENSORS_SHAPE_BYTES];
    if (tensor->dim_count == 2 && tensor->shape[0] == rows && tensor->shape[1] == columns)
        return 0;
    return err_set(ERR_INPUT, "%s: tensor %s has shape %s, and %s is [%" PRIu64 ", %" PRIu64 "]",
                   path_of(self, at), tensor->name, safetensors_shape(tensor, is), why, rows,
                   columns);
}

static int find_int8(const hf_weights *self, const hf_tensor *at, struct weights_packed *out)
{
    static const char end[] = "weight";
    size_t dropped = text_ends_with(at->tensor->name, end) ? strlen(end) : 0;
    hf_tensor order;
    unsigned char kind = 0;
    out->format = STORED_INT8_ROWS;
    if (find_beside(self, at, dropped, "weight_format", &order) && order.tensor->size_bytes == 1)
        TRY(hf_read(self->files, &order, 0, 1, &kind));
    if (kind != 0) /* tiles for a kind of GPU, of older versions */
        return err_set(
            ERR_INPUT,
            "%s: tensor %s is %d, and only 0 is read, rows one after the other: load and "
            "save the checkpoint with a later bitsandbytes",
            path_of(self, &order), order.tensor->name, kind);
    TRY(check_shape(self, at, out->rows, out->columns, "that of the model"));
    return take_beside(self, at, dropped, "SCB", out->rows, "F32", &out->scales);
}

static int find_fp8(const hf_weights *self, const hf_tensor *at, struct weights_packed *out)
{
    out->format = STORED_FP8_BLOCKS;
    TRY(check_shape(self, at, out->rows, out->columns, "that of the model"));
    TRY(must_find(self, at, 0, "_scale_inv", &out->scales));
    stored_layout layout = stored_layout_of(out->format, out->rows, out->columns);
    if (out->scales.tensor->type == SAFETENSORS_OTHER)
        return err_set(
            ERR_INPUT, "%s: tensor %s has dtype %s, and scales are read from F32, BF16 and F16",
            path_of(self, &out->scales), out->scales.tensor->name, out->scales.tensor->type_name);
    return check_shape(self, &out->scales, layout.scale_count / layout.line_runs, layout.line_runs,
                       "the number of blocks of 128 x 128");
}

/* gpt-oss's experts. */
static int find_mxfp4(const hf_weights *self, const hf_tensor *at, const hf_layout *layout,
                      struct weights_packed *out)
{
    const safetensors_tensor *tensor = at->tensor;
    char is[SAFETENSORS_SHAPE_BYTES], text[SAFETENSORS_SHAPE_BYTES];
    safetensors_tensor should = {.dim_count = layout->dim_count};
    memcpy(should.shape, layout->shape, sizeof layout->shape);
    out->format = STORED_MXFP4;
    if (tensor->dim_count != layout->dim_count ||
        memcmp(tensor->shape, layout->shape, sizeof layout->shape) != 0 ||
        strcmp(tensor->type_name, "U8") != 0)
        return err_set(
            ERR_INPUT,
            "%s: tensor %s has dtype %s and shape %s, and the model that config.json and "
            "the job describe has U8 and %s",
            path_of(self, at), tensor->name, tensor->type_name, safetensors_shape(tensor, is),
            safetensors_shape(&should, text));
    stored_layout of = stored_layout_of(out->format, out->rows, out->columns);
    return take_beside(self, at, strlen("_blocks"), "_scales", of.scale_count, "U8", &out->scales);
}

/* ---- all kinds ---- */

int hfi_find_packed(hf_weights *self, const hf_tensor *at, const hf_layout *layout,
                    struct weights_packed *out)
{
    const kernel_context_config config = {.thread_count = self->thread_count};
    const char *type = at->tensor->type_name;
    bool is_4bit = !layout->is_blocks && hfi_is_4bit(self->files, at->tensor->name);
    uint64_t columns = layout->is_blocks ? layout->columns : layout->shape[layout->dim_count - 1];
    *out = (struct weights_packed){.rows = layout->elems / columns, .columns = columns};
    if (at->tensor->type != SAFETENSORS_OTHER && !is_4bit && !layout->is_blocks)
        return 0;
    if (!self->context)
        TRY(kernels_cpu.context_create(&config, &self->context));
    if (layout->is_blocks)
        return find_mxfp4(self, at, layout, out);
    if (layout->dim_count != 2 || layout->order == HF_ORDER_TRANSPOSED)
        return err_set(ERR_INPUT,
                       "%s: tensor %s has dtype %s%s, and this tensor is read from F32, BF16 and "
                       "F16",
                       path_of(self, at), at->tensor->name, type,
                       is_4bit ? " with codes of 4 bits" : "");
    if (is_4bit || strcmp(type, "U8") == 0)
        return find_4bit(self, at, out);
    if (strcmp(type, "I8") == 0)
        return find_int8(self, at, out);
    if (strcmp(type, "F8_E4M3") == 0)
        return find_fp8(self, at, out);
    return err_set(ERR_INPUT,
                   "%s: tensor %s has dtype %s, and weights are read from F32, BF16, F16 and from "
                   "the codes of bitsandbytes and of fp8 in blocks",
                   path_of(self, at), at->tensor->name, type);
}

bool hfi_is_beside(const char *name, char codes[HF_STORED_NAME_BYTES])
{
    static const struct {
        const char *end, *becomes;
    } ends[] = {
        {".absmax", ""},
        {".quant_map", ""},
        {".nested_absmax", ""},
        {".nested_quant_map", ""},
        {".quant_state.bitsandbytes__nf4", ""},
        {".quant_state.bitsandbytes__fp4", ""},
        {".SCB", ".weight"},
        {".weight_format", ".weight"},
        {"_scale_inv", ""},
        {"_scales", "_blocks"},
    };
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (text_ends_with(name, ends[i].end)) {
            int stem = (int)(strlen(name) - strlen(ends[i].end));
            snprintf(codes, HF_STORED_NAME_BYTES, "%.*s%s", stem, name, ends[i].becomes);
            return true;
        }
    return false;
}

/* ---- reading ---- */

/* A matrix can be read from every `elems`-th element on, which has `scales` scales before it for
 * each time. */
struct step {
    uint64_t elems, scales;
};

static struct step step_of(const struct weights_packed *from)
{
    stored_layout layout = stored_layout_of(from->format, from->rows, from->columns);
    if (layout.scale == STORED_SCALE_DOUBLE)
        return (struct step){layout.run_elems * STORED_DOUBLE_GROUP, STORED_DOUBLE_GROUP};
    if (layout.lines == 1)
        return (struct step){layout.run_elems, 1};
    return (struct step){layout.line_elems * layout.lines_per_scale, layout.line_runs};
}

/* Elements of a matrix from a step on, as a matrix of their own. */
static void piece_of(const struct weights_packed *from, uint64_t count, uint64_t *rows,
                     uint64_t *columns)
{
    bool is_line = stored_layout_of(from->format, from->rows, from->columns).lines == 1;
    *rows = is_line ? 1 : count / from->columns;
    *columns = is_line ? count : from->columns;
}

static int refuse_value(const hf_weights *self, const hf_tensor *at)
{
    return err_set(ERR_INPUT, "%s: tensor %s holds a value that is not finite", path_of(self, at),
                   at->tensor->name);
}

static int refuse_scale(const hf_weights *self, const hf_tensor *at)
{
    return err_set(ERR_INPUT,
                   "%s: tensor %s holds a scale that is not finite, or so large that values "
                   "overflow",
                   path_of(self, at), at->tensor->name);
}

/* Reads scales of a dtype as fp32. */
static int read_scales(const hf_weights *self, const hf_tensor *at, uint64_t first, uint64_t count,
                       void *target)
{
    enum dtype type = (enum dtype)at->tensor->type;
    uint64_t width = dtype_bytes(type);
    float values[CONVERTED_ELEMS], raw[CONVERTED_ELEMS];
    for (uint64_t done = 0; done < count; done += CONVERTED_ELEMS) {
        uint64_t held = size_min(count - done, CONVERTED_ELEMS);
        TRY(hf_read(self->files, at, (first + done) * width, held * width, raw));
        dtype_convert(raw, type, values, DTYPE_FP32, held);
        for (uint64_t i = 0; i < held; i++)
            if (!is_scale_in_range(values[i]))
                return refuse_scale(self, at);
        memcpy((float *)target + done, values, held * sizeof *values);
    }
    return 0;
}

/* Reads codes and scales of elements [begin, begin + count), which begin at a step and end at one
 * or at the end of the matrix, as those of a matrix of their own. */
static int read_codes(const hf_weights *self, const hf_tensor *at,
                      const struct weights_packed *from, uint64_t begin, uint64_t count,
                      void *codes, void *scales)
{
    struct step step = step_of(from);
    uint64_t rows, columns, first = begin / step.elems * step.scales;
    piece_of(from, count, &rows, &columns);
    stored_layout layout = stored_layout_of(from->format, rows, columns);
    bool is_half = stored_code_is_half_byte(layout.code);
    TRY(hf_read(self->files, at, is_half ? begin / 2 : begin, layout.code_bytes, codes));
    for (uint64_t i = 0; layout.code == STORED_CODE_E4M3 && i < layout.code_bytes; i++)
        if ((((const unsigned char *)codes)[i] & 0x7f) == 0x7f)
            return refuse_value(self, at);
    if (layout.scale == STORED_SCALE_E8M0) {
        TRY(hf_read(self->files, &from->scales, first, layout.scale_count, scales));
        for (uint64_t i = 0; i < layout.scale_count; i++)
            if (((const unsigned char *)scales)[i] > SCALE_MOST)
                return refuse_scale(self, &from->scales);
        return 0;
    }
    if (layout.scale == STORED_SCALE_FP32)
        return read_scales(self, &from->scales, first, layout.scale_count, scales);
    uint64_t groups = size_div_up(layout.scale_count, STORED_DOUBLE_GROUP);
    float *next = scales;
    TRY(read_scales(self, &from->groups, first / STORED_DOUBLE_GROUP, groups, next));
    memcpy(next + groups, &from->mean, sizeof from->mean);
    return hf_read(self->files, &from->scales, first, layout.scale_count, next + groups + 1);
}

int hfi_reserve_packed(hf_weights *self)
{
    uint64_t elems = 0, bytes = 0;
    for (uint64_t i = 0; i < self->stored_count; i++) {
        const struct weights_packed *from = &self->packed[i];
        if (from->format == STORED_WORKING)
            continue;
        uint64_t rows, columns, held = size_round_up(STEP_ELEMS, step_of(from).elems);
        piece_of(from, held, &rows, &columns);
        stored_layout layout = stored_layout_of(from->format, rows, columns);
        elems = size_max(elems, held);
        bytes = size_max(bytes, layout.code_bytes + layout.scale_bytes);
    }
    if (elems == 0)
        return 0;
    self->codes = mem_alloc(bytes + sizeof(float), 1, "codes of weights");
    self->values = mem_alloc(elems, sizeof *self->values, "expanded weights");
    return self->codes && self->values ? 0 : -ENOMEM;
}

int hfi_read_packed(hf_weights *self, const hf_tensor *at, uint64_t begin, uint64_t count,
                    float *master)
{
    const struct weights_packed *from = &self->packed[at - self->stored];
    uint64_t step = size_round_up(STEP_ELEMS, step_of(from).elems);
    uint64_t all = from->rows * from->columns, held;
    for (uint64_t done = 0; done < count; done += held) {
        uint64_t first = (begin + done) / step * step;
        stored_expand_args args = {.format = from->format,
                                   .codes = self->codes,
                                   .type = DTYPE_FP32,
                                   .target = self->values};
        uint64_t taken = size_min(step, all - first);
        piece_of(from, taken, &args.rows, &args.columns);
        stored_layout layout = stored_layout_of(from->format, args.rows, args.columns);
        void *scales = self->codes + size_round_up(layout.code_bytes, sizeof(float));
        args.scales = scales;
        if (self->expanded != at->tensor || self->expanded_begin != first) {
            self->expanded = NULL;
            TRY(read_codes(self, at, from, first, taken, self->codes, scales));
            TRY(kernels_cpu.stored_expand(self->context, NULL, &args));
            self->expanded = at->tensor;
            self->expanded_begin = first;
        }
        uint64_t skipped = begin + done - first;
        held = size_min(taken - skipped, count - done);
        memcpy(master + done, self->values + skipped, held * sizeof *master);
    }
    return 0;
}

/* ---- as it is ---- */

static int refuse_cut(const hf_weights *self, const hf_tensor *at)
{
    return err_set(ERR_INPUT,
                   "%s: the groups of tensor %s cannot be cut as the model's units cut it: set "
                   "model.max_part_bytes to 0, or give another format in state.params",
                   path_of(self, at), at->tensor->name);
}

/* True if elements [begin, begin + count) of a matrix have scales of their own. */
static bool is_whole(const struct weights_packed *of, uint64_t all, uint64_t begin, uint64_t count)
{
    struct step step = step_of(of);
    if (stored_layout_of(of->format, of->rows, of->columns).scale == STORED_SCALE_DOUBLE)
        return begin == 0 && count == all;
    return begin % step.elems == 0 && ((begin + count) % step.elems == 0 || begin + count == all);
}

int hf_weights_codes(void *user, uint32_t unit, uint32_t tensor_idx, uint64_t matrix, void *codes,
                     void *scales)
{
    hf_weights *self = user;
    const model_tensor *tensor = &self->net->units[unit].tensors[tensor_idx];
    const struct weights_source *source = &self->units[unit][tensor_idx];
    uint64_t elems = tensor->stored_rows * tensor->columns, held;
    uint64_t first = tensor->row_begin * tensor->columns + matrix * elems;
    if (source->layout.order == HF_ORDER_TRANSPOSED)
        return 0;
    for (uint64_t done = 0; done < elems; done += held) {
        struct hf_place place = hf_layout_place(&source->layout, first + done);
        const hf_tensor *at = &source->stored[place.tensor - source->first];
        const struct weights_packed *from = &self->packed[at - self->stored];
        held = size_min(place.together, elems - done);
        if (from->format != tensor->stored)
            return 0;
        if (!is_whole(from, from->rows * from->columns, place.elem, held) ||
            !is_whole(from, elems, done, held))
            return source->layout.order == HF_ORDER_BY_HEADS ? 0 : refuse_cut(self, at);
        struct step step = step_of(from);
        uint64_t width = tensor->stored == STORED_MXFP4 ? 1 : sizeof(float); /* of a scale */
        bool is_half = stored_code_is_half_byte(
            stored_layout_of(from->format, from->rows, from->columns).code);
        TRY(read_codes(self, at, from, place.elem, held,
                       (char *)codes + (is_half ? done / 2 : done),
                       (char *)scales + done / step.elems * step.scales * width));
    }
    return 1;
}
