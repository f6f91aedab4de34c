/* Reads the adapters of a run into memory, and writes them in the format of PEFT or adds them to
 * the weights that an export writes. See hf_internal.h.
 *
 * Memory: the adapters in fp32. One thread calls; for a merge it is the sweep's. It uses the
 * caller's OpenMP team. */
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "hf/hf_internal.h"

static const char config_name[] = "adapter_config.json",
                  weights_name[] = "adapter_model.safetensors";

enum { MERGED_BLOCK = 512 };

/* ---- reading ---- */

static bool has_adapters(const model_unit *unit)
{
    for (uint32_t i = 0; i < unit->tensor_count; i++)
        if (unit->tensors[i].is_adapter)
            return true;
    return false;
}

int hfi_adapters_reserve(const model *net, export_adapters *self)
{
    memset(self, 0, sizeof *self);
    self->net = net;
    self->values = mem_alloc(net->unit_count, sizeof *self->values, "adapters");
    if (!self->values)
        return -ENOMEM;
    for (uint32_t u = 0; u < net->unit_count; u++) {
        if (!has_adapters(&net->units[u]))
            continue;
        self->values[u] = mem_alloc(net->units[u].elems, sizeof(float), "adapters");
        if (!self->values[u])
            return -ENOMEM;
    }
    return 0;
}

int hfi_adapters_open(const model *net, const manifest *record, export_adapters *out)
{
    TRY(hfi_adapters_reserve(net, out));
    out->record = *record; /* the slabs and ranks stay the record's own */
    out->record.extents = mem_alloc(record->extent_count, sizeof *out->record.extents, "adapters");
    out->record.extent_count = 0;
    if (!out->record.extents)
        return -ENOMEM;
    for (uint64_t i = 0; i < record->extent_count; i++) {
        const manifest_extent *extent = &record->extents[i];
        if (!has_adapters(&net->units[extent->unit]))
            continue;
        out->record.extents[out->record.extent_count++] = *extent;
        out->extent_bytes += extent->size_bytes;
    }
    return 0;
}

int hfi_adapters_take(export_adapters *self, uint64_t extent_idx, uint64_t begin_bytes,
                      const void *data, uint64_t size_bytes)
{
    const manifest_extent *extent = &self->record.extents[extent_idx];
    uint64_t begin = extent->elem_begin + begin_bytes / sizeof(float);
    if (begin + size_bytes / sizeof(float) > self->net->units[extent->unit].elems)
        return err_set(ERR_INTERNAL, "unit %u of the adapters has too many elements", extent->unit);
    memcpy(self->values[extent->unit] + begin, data, size_bytes);
    return 0;
}

void hfi_adapters_close(export_adapters *self)
{
    for (uint32_t u = 0; self->values && u < self->net->unit_count; u++)
        mem_free(self->values[u]);
    mem_free(self->values);
    mem_free(self->record.extents);
    memset(self, 0, sizeof *self);
}

/* ---- merging ---- */

/* A or B of the tensor's adapter. */
static const float *matrix_of(const export_adapters *self, uint32_t unit,
                              const model_tensor *tensor, bool is_b)
{
    return self->values[unit + 1] + model_adapter_of(self->net, unit, tensor, is_b)->offset_elems;
}

bool hfi_has_adapter(const export_adapters *self, uint32_t unit, const model_tensor *tensor)
{
    return self->values && unit + 1 < self->net->unit_count && self->values[unit + 1] &&
           model_adapter_of(self->net, unit, tensor, false);
}

/* The two matrices of one adapter, and its scale, for a merge. An adapter of experts has matrices
 * for all experts of the tensor; each serves `rows` rows of the weight. */
struct merged {
    const float *a, *b;
    uint64_t rank, rows, columns;
    double scale;
};

/* Merges elements [begin, begin + count) of the matrix; count <= MERGED_BLOCK. */
static void merge_block(const struct merged *of, uint64_t begin, uint64_t count, float *weights)
{
    double sums[MERGED_BLOCK];
    for (uint64_t done = 0; done < count;) {
        uint64_t row = (begin + done) / of->columns, column = (begin + done) % of->columns;
        uint64_t held = size_min(of->columns - column, count - done);
        memset(sums, 0, held * sizeof *sums);
        for (uint64_t r = 0; r < of->rank; r++) {
            double factor = of->scale * (double)of->b[row * of->rank + r];
            const float *from = of->a + (row / of->rows * of->rank + r) * of->columns + column;
            for (uint64_t i = 0; i < held; i++)
                sums[i] += factor * (double)from[i];
        }
        for (uint64_t i = 0; i < held; i++) { /* -0 stays -0 where nothing is added */
            float sum = (float)((double)weights[done + i] + sums[i]);
            weights[done + i] = sums[i] == 0 ? weights[done + i] : sum;
        }
        done += held;
    }
}

/* The rows of an expert, in a matrix of all experts or its adapter; else all rows. */
static uint64_t rows_of_one(const model *net, const model_tensor *tensor)
{
    bool is_of_experts = strstr(tensor->name, ".experts.") != NULL;
    return tensor->whole_rows / (is_of_experts ? net->spec.expert_count : 1);
}

void hfi_merge(const export_adapters *self, uint32_t unit, const model_tensor *tensor,
               uint64_t begin, uint64_t count, float *weights)
{
    const model_lora *lora = &self->net->spec.lora;
    const struct merged of = {.a = matrix_of(self, unit, tensor, false),
                              .b = matrix_of(self, unit, tensor, true),
                              .rank = lora->rank,
                              .rows = rows_of_one(self->net, tensor),
                              .columns = tensor->columns,
                              .scale = lora->alpha / (double)lora->rank};
#pragma omp parallel for schedule(static)
    for (uint64_t at = 0; at < count; at += MERGED_BLOCK)
        merge_block(&of, begin + at, size_min(count - at, MERGED_BLOCK), weights + at);
}

/* ---- writing ---- */

int hfi_check_adapters(const model *net)
{
    if (net->spec.lora.rank == 0)
        return err_set(ERR_CONFIG, "the run has no adapters (train.lora): export it without "
                                   "--adapters");
    for (uint32_t u = 0; u < net->unit_count; u++) {
        bool is_base = false;
        for (uint32_t i = 0; i < net->units[u].tensor_count; i++)
            is_base |= !net->units[u].tensors[i].is_adapter;
        if (is_base && !net->units[u].is_frozen)
            return err_set(
                ERR_CONFIG,
                "the run also trained weights outside the adapters (unit %s, train.only), "
                "which adapters do not hold: export the merged model, without --adapters",
                net->units[u].name);
    }
    return 0;
}

/* True if PEFT would mistake the module for one of routed experts, whose projections have the same
 * last names in older checkpoints of these types. It does not if such modules are named as
 * parameters. */
static bool is_mistaken(const model_spec *spec, const char *target)
{
    return (spec->family == MODEL_DEEPSEEK || spec->family == MODEL_GLM4_MOE) &&
           strncmp(target, "mlp.", strlen("mlp.")) == 0;
}

static int write_config(const export_adapters *self, const char *base, const char *dir)
{
    const model_spec *spec = &self->net->spec;
    const char *name;
    json_t *targets = json_array(), *parameters = json_array();
    double dropout = spec->lora.dropout;
    /* PEFT has no task of filling in masked tokens. */
    const char *task = model_is_bidirectional(spec->family) ? NULL : "CAUSAL_LM";
    for (uint32_t i = 0; (name = model_lora_target(spec->family, i)) != NULL; i++) {
        bool is_expert = model_lora_is_expert(spec->family, i);
        if ((spec->lora.targets >> i & 1) == 0)
            continue;
        if (!is_expert && is_mistaken(spec, name)) {
            json_array_append_new(parameters, json_sprintf("%s.weight", name));
            dropout = 0; /* PEFT has none for parameters, and refuses others */
            continue;
        }
        json_array_append_new(is_expert ? parameters : targets, json_string(name));
    }
    if (dropout < spec->lora.dropout)
        log_info("%s/%s has lora_dropout 0 and not %g, since PEFT has none for %s", dir,
                 config_name, spec->lora.dropout, json_string_value(json_array_get(parameters, 0)));
    double alpha = spec->lora.alpha;
    bool is_whole = alpha < 1e15 && alpha == (double)(json_int_t)alpha;
    json_t *doc =
        json_pack("{s:s, s:s?, s:s?, s:I, s:o, s:o, s:f, s:s, s:b, s:b, s:n, s:b, s:b, s:b}",
                  "peft_type", "LORA", "task_type", task, "base_model_name_or_path", base, "r",
                  (json_int_t)spec->lora.rank, "lora_alpha",
                  is_whole ? json_integer((json_int_t)alpha) : json_real(alpha), "target_modules",
                  targets, "lora_dropout", dropout, "bias", "none", "fan_in_fan_out",
                  spec->family == MODEL_GPT2, "inference_mode", 1, "modules_to_save",
                  "init_lora_weights", 1, "use_rslora", 0, "use_dora", 0);
    if (doc && json_array_size(parameters) > 0)
        json_object_set(doc, "target_parameters", parameters);
    json_decref(parameters);
    return hfi_write_json(dir, config_name, doc, JSON_INDENT(2));
}

/* The stored name, such as "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight". PEFT
 * wraps the module of the experts once for each of its matrices, and names the adapters after the
 * wrappers: "..mlp.experts.lora_A.weight", and of a matrix within another wrapper
 * "..mlp.experts.base_layer.lora_A.weight". The inner one is gate_up_proj, the module's first. */
void hfi_adapter_name(const model *net, uint32_t unit, const model_tensor *tensor, char *name,
                      size_t name_bytes)
{
    static const char up[] = ".experts.gate_up_proj.", down[] = ".experts.down_proj.";
    const char *is_up = strstr(tensor->name, up), *is_down = strstr(tensor->name, down);
    const char *wrapped = is_up ? is_up : is_down;
    if (!wrapped) {
        snprintf(name, name_bytes, "base_model.model.%s%s",
                 net->spec.family == MODEL_GPT2 ? "transformer." : "", tensor->name);
        return;
    }
    bool has_up = false, has_down = false;
    for (uint32_t i = 0; i < net->units[unit].tensor_count; i++) {
        has_up = has_up || strstr(net->units[unit].tensors[i].name, up);
        has_down = has_down || strstr(net->units[unit].tensors[i].name, down);
    }
    bool is_inner = has_up && has_down && is_up;
    snprintf(name, name_bytes, "base_model.model.%.*s.experts%s.%s", (int)(wrapped - tensor->name),
             tensor->name, is_inner ? ".base_layer" : "", wrapped + strlen(is_up ? up : down));
}

/* The place in PEFT's matrix of element `at` of the whole A or B of experts. A has the rows of
 * expert 0, then of expert 1. B is [out, rank * experts], with a column of every expert for each
 * rank. */
hfi_adapter_layout hfi_adapter_layout_of(const model *net, const model_tensor *tensor)
{
    uint64_t each = rows_of_one(net, tensor);
    return (hfi_adapter_layout){.plain = hf_layout_of(net, tensor, false),
                                .each = each,
                                .columns = tensor->columns,
                                .experts = net->spec.expert_count,
                                .stride = net->spec.lora.rank * net->spec.expert_count,
                                .is_plain = each == tensor->whole_rows,
                                .is_a = strstr(tensor->name, ".lora_A.") != NULL,
                                .is_paired = net->spec.family == MODEL_GPT_OSS &&
                                             strstr(tensor->name, ".gate_up_proj.") != NULL};
}

uint64_t hfi_adapter_place(const hfi_adapter_layout *self, uint64_t at)
{
    uint64_t row = at / self->columns, out = row % self->each, half = self->each / 2;
    if (self->is_plain)
        return hf_layout_place(&self->plain, at).elem;
    if (self->is_a)
        return at;
    if (self->is_paired)
        out = out % half * 2 + out / half; /* as in layout.h */
    return out * self->stride + at % self->columns * self->experts + row / self->each;
}

/* Gathers a matrix of all experts from its parts; tensor `idx` of the unit is the first. */
static void gather(const export_adapters *self, uint32_t unit, uint32_t idx, float *target)
{
    do {
        const model_tensor *part = &self->net->units[unit].tensors[idx];
        const hfi_adapter_layout layout = hfi_adapter_layout_of(self->net, part);
        uint64_t begin = part->row_begin * part->columns;
        for (uint64_t i = 0; i < part->rows * part->columns; i++)
            target[hfi_adapter_place(&layout, begin + i)] =
                self->values[unit][part->offset_elems + i];
    } while (model_next_part(self->net, &unit, &idx));
}

static int write_tensor(const export_adapters *self, kernel_context *context,
                        safetensors_writer *writer, uint32_t row, enum dtype type, uint32_t unit,
                        uint32_t idx)
{
    const model_tensor *tensor = &self->net->units[unit].tensors[idx];
    const float *values = self->values[unit] + tensor->offset_elems;
    uint64_t count = tensor->whole_rows * tensor->columns;
    const hf_layout layout = hf_layout_of(self->net, tensor, false);
    void *rounded = mem_alloc(count, sizeof(float), "rounded adapters");
    float *gathered = mem_alloc(count, sizeof *gathered, "gathered adapters");
    int rc = rounded && gathered ? 0 : -ENOMEM;
    if (rc == 0 && rows_of_one(self->net, tensor) != tensor->whole_rows) {
        gather(self, unit, idx, gathered);
        values = gathered;
    }
    const void *written = values;
    if (rc == 0 && type != DTYPE_FP32) {
        rc = kernels_cpu.working_copy(context, NULL, values, rounded, type, count);
        written = rounded;
    }
    if (rc == 0)
        rc = hfi_write(&layout, writer, row, 0, count, written, dtype_bytes(type));
    mem_free(rounded);
    mem_free(gathered);
    return rc;
}

void hfi_adapter_shape(const model *net, const model_tensor *tensor, uint64_t shape[2])
{
    uint64_t each = rows_of_one(net, tensor);
    bool is_b = strstr(tensor->name, ".lora_B.") != NULL && each != tensor->whole_rows;
    shape[0] = is_b ? each : tensor->whole_rows;
    shape[1] = is_b ? tensor->columns * net->spec.expert_count : tensor->columns;
}

/* True for a part of a matrix of experts that another unit begins. */
static bool is_later_part(const export_adapters *self, uint32_t unit, uint32_t idx)
{
    return self->net->units[unit].tensors[idx].row_begin > 0;
}

int hfi_adapters_write(const export_adapters *self, kernel_context *context, const char *base,
                       const char *dir, enum dtype type, uint32_t *tensor_count,
                       uint64_t *written_bytes)
{
    enum { NAME_BYTES = 2 * MODEL_NAME_BYTES };
    const model *net = self->net;
    char path[PATH_MAX];
    uint32_t count = 0, row = 0;
    *written_bytes = 0;
    for (uint32_t u = 0; u < net->unit_count; u++)
        count += self->values[u] ? net->units[u].tensor_count : 0;
    safetensors_row *rows = mem_alloc(count, sizeof *rows, "adapters");
    char *names = mem_alloc(count, NAME_BYTES, "adapters");
    safetensors_writer *writer = NULL;
    int rc = rows && names ? file_join(path, sizeof path, dir, weights_name) : -ENOMEM;
    for (uint32_t u = 0; rc == 0 && u < net->unit_count; u++)
        for (uint32_t i = 0; self->values[u] && i < net->units[u].tensor_count; i++) {
            const model_tensor *tensor = &net->units[u].tensors[i];
            char *name = names + (size_t)row * NAME_BYTES;
            if (is_later_part(self, u, i))
                continue;
            hfi_adapter_name(net, u, tensor, name, NAME_BYTES);
            rows[row] = (safetensors_row){.name = name, .type = type, .dim_count = 2};
            hfi_adapter_shape(net, tensor, rows[row++].shape);
            *written_bytes += tensor->whole_rows * tensor->columns * dtype_bytes(type);
        }
    count = row;
    if (rc == 0)
        rc = safetensors_create(path, rows, count, &writer);
    row = 0;
    for (uint32_t u = 0; rc == 0 && u < net->unit_count; u++)
        for (uint32_t i = 0; rc == 0 && self->values[u] && i < net->units[u].tensor_count; i++)
            if (!is_later_part(self, u, i))
                rc = write_tensor(self, context, writer, row++, type, u, i);
    if (rc == 0)
        rc = safetensors_finish(writer);
    else
        safetensors_abandon(writer);
    mem_free(rows);
    mem_free(names);
    *tensor_count = count;
    return rc < 0 ? rc : write_config(self, base, dir);
}
