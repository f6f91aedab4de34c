/* The files of an exported checkpoint: which tensor lies in which file. See hf_internal.h. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/size.h"
#include "hf/hf_internal.h"
#include "state/run_dir.h"

static const char whole_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

/* ---- tensors ---- */

/* Finds a tensor by name; returns count if there is none. */
static uint32_t find_name(const export_list *self, const char *name)
{
    for (uint32_t i = self->count; i-- > 0;)
        if (strcmp(self->tensors[i].name, name) == 0)
            return i;
    return self->count;
}

static void name_tensor(const model *net, const model_tensor *from, const hf_layout *layout,
                        uint64_t idx, char out[2 * HF_NAME_BYTES])
{
    char name[HF_NAME_BYTES];
    bool is_head = strncmp(from->name, "lm_head.", 8) == 0; /* of gpt2 */
    hf_layout_name(net, from, layout, idx, name);
    snprintf(out, 2 * HF_NAME_BYTES, "%s%s",
             net->spec.family == MODEL_GPT2 && !is_head ? "transformer." : "", name);
}

/* Adds all stored tensors of a tensor when its first part comes, so that their order does not
 * depend on how units cut it. */
static void add_tensors(export_list *self, const model *net, const model_tensor *from,
                        bool is_quantized, uint32_t *idx)
{
    struct export_rows packed;
    char name[2 * HF_NAME_BYTES];
    *idx = UINT32_MAX;
    if (from->is_adapter)
        return; /* export_peft.c writes it */
    bool stays_packed = is_quantized && hfi_stays_packed(net, from);
    hf_layout layout = hf_layout_of(net, from, self->is_fused);
    if (stays_packed && from->stored == STORED_MXFP4)
        (void)hf_layout_of_blocks(net, from, &layout);
    if (from->row_begin > 0) {
        name_tensor(net, from, &layout, hf_layout_range(&layout, from).first, name);
        *idx = find_name(self, name);
        return;
    }
    *idx = self->count;
    for (uint64_t i = 0; i < layout.tensor_count; i++) {
        export_tensor *tensor = &self->tensors[self->count++];
        name_tensor(net, from, &layout, i, tensor->name);
        tensor->layout = layout;
        tensor->type = from->is_exact ? DTYPE_FP32 : self->type;
        tensor->size_bytes = layout.elems * dtype_bytes(tensor->type);
        if (stays_packed) {
            tensor->format = from->stored;
            hfi_packed_rows(tensor, &packed);
            tensor->size_bytes = packed.bytes;
        }
        self->total_bytes += tensor->size_bytes;
        self->elem_count += layout.elems;
    }
}

static int list_tensors(export_list *self, const model *net, bool is_quantized)
{
    uint64_t count = 0, stored_count = 0;
    for (uint32_t u = 0; u < net->unit_count; u++)
        for (uint32_t i = 0; i < net->units[u].tensor_count; i++, count++) {
            const hf_layout layout = hf_layout_of(net, &net->units[u].tensors[i], self->is_fused);
            stored_count += hf_layout_range(&layout, &net->units[u].tensors[i]).count;
        }
    self->tensors = mem_alloc(stored_count, sizeof *self->tensors, "tensors to export");
    self->of_unit = mem_alloc(net->unit_count, sizeof *self->of_unit, "tensors to export");
    uint32_t *idx = mem_alloc(count, sizeof *idx, "tensors to export");
    if (self->of_unit)
        self->of_unit[0] = idx; /* one block for all units */
    if (!self->tensors || !self->of_unit || !idx) {
        if (!self->of_unit)
            mem_free(idx);
        return -ENOMEM;
    }
    for (uint32_t u = 0; u < net->unit_count; u++) {
        self->of_unit[u] = idx;
        for (uint32_t i = 0; i < net->units[u].tensor_count; i++)
            add_tensors(self, net, &net->units[u].tensors[i], is_quantized, idx++);
    }
    return 0;
}

/* ---- files ---- */

/* Cuts the list into files, in order, with as many tensors in each as shard_bytes allows. */
static int cut_into_files(export_list *self, uint64_t shard_bytes)
{
    self->files = mem_alloc(self->count, sizeof *self->files, "files to export");
    if (!self->files)
        return -ENOMEM;
    uint64_t held = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        export_tensor *tensor = &self->tensors[i];
        if (i == 0 || tensor->size_bytes > shard_bytes || held > shard_bytes - tensor->size_bytes) {
            self->files[self->file_count++].first = i;
            held = 0;
        }
        export_file *file = &self->files[self->file_count - 1];
        tensor->file_idx = self->file_count - 1;
        struct export_rows packed = {.count = 1};
        if (tensor->format != STORED_WORKING)
            hfi_packed_rows(tensor, &packed);
        tensor->row_idx = file->row_count;
        file->row_count += packed.count;
        file->count++;
        held += tensor->size_bytes;
    }
    for (uint32_t f = 0; f < self->file_count; f++)
        if (self->file_count == 1)
            snprintf(self->files[f].name, sizeof self->files[f].name, "%s", whole_name);
        else
            snprintf(self->files[f].name, sizeof self->files[f].name,
                     "model-%05u-of-%05u.safetensors", f + 1, self->file_count);
    return 0;
}

int hfi_list(const model *net, enum dtype type, bool is_fused, bool is_quantized,
             uint64_t shard_bytes, export_list *out)
{
    memset(out, 0, sizeof *out);
    out->type = type;
    out->is_fused = is_fused;
    TRY(list_tensors(out, net, is_quantized));
    return cut_into_files(out, shard_bytes);
}

void hfi_list_fini(export_list *self)
{
    for (uint32_t f = 0; f < self->file_count; f++)
        safetensors_abandon(self->files[f].writer);
    if (self->of_unit)
        mem_free(self->of_unit[0]);
    mem_free(self->of_unit);
    mem_free(self->files);
    mem_free(self->tensors);
    memset(self, 0, sizeof *self);
}

static void fill_row(const export_tensor *from, safetensors_row *row)
{
    *row = (safetensors_row){
        .name = from->name, .type = from->type, .dim_count = from->layout.dim_count};
    memcpy(row->shape, from->layout.shape, sizeof from->layout.shape);
}

/* Makes the rows of a file. packed: [count], memory for those of packed matrices. */
static void fill_rows(const export_list *self, const export_file *file, safetensors_row *rows,
                      struct export_rows *packed)
{
    for (uint32_t i = 0; i < file->count; i++) {
        const export_tensor *tensor = &self->tensors[file->first + i];
        safetensors_row *row = &rows[tensor->row_idx];
        if (tensor->format == STORED_WORKING) {
            fill_row(tensor, row);
            continue;
        }
        hfi_packed_rows(tensor, &packed[i]);
        memcpy(row, packed[i].rows, packed[i].count * sizeof *row);
    }
}

int hfi_create(export_list *self, const char *dir)
{
    char path[PATH_MAX];
    for (uint32_t f = 0; f < self->file_count; f++) {
        export_file *file = &self->files[f];
        bool has_packed = file->row_count > file->count;
        safetensors_row *rows = mem_alloc(file->row_count, sizeof *rows, "tensors to export");
        struct export_rows *packed =
            mem_alloc(has_packed ? file->count : 1, sizeof *packed, "tensors to export");
        int rc = rows && packed ? 0 : -ENOMEM;
        if (rc == 0)
            fill_rows(self, file, rows, packed);
        if (rc == 0)
            rc = file_join(path, sizeof path, dir, file->name);
        if (rc == 0)
            rc = safetensors_create(path, rows, file->row_count, &file->writer);
        mem_free(rows);
        mem_free(packed);
        TRY(rc);
    }
    return 0;
}

int hfi_write(const hf_layout *layout, safetensors_writer *writer, uint32_t row, uint64_t at,
              uint64_t count, const void *data, uint64_t width)
{
    uint64_t held;
    for (uint64_t done = 0; done < count; done += held) {
        struct hf_place place = hf_layout_place(layout, at + done);
        held = size_min(place.together, count - done);
        TRY(safetensors_write(writer, row, place.elem, held, (const char *)data + done * width));
    }
    return 0;
}

/* ---- names ---- */

static bool is_own(const export_list *self, const char *name)
{
    for (uint32_t f = 0; f < self->file_count; f++)
        if (strcmp(self->files[f].name, name) == 0)
            return true;
    return false;
}

/* True for a name such as "model-00001-of-00003.safetensors". */
static bool is_shard_name(const char *name)
{
    unsigned first, count;
    int end = 0;
    return sscanf(name, "model-%5u-of-%5u.safetensors%n", &first, &count, &end) == 2 && end > 0 &&
           name[end] == '\0';
}

/* Removes files of weights that an earlier export left: loaders would take them for ours. */
static int remove_others(const export_list *self, const char *dir)
{
    DIR *directory = opendir(dir);
    if (!directory)
        return err_errno(errno, "cannot look into %s", dir);
    int rc = 0;
    for (const struct dirent *entry; rc == 0 && (entry = readdir(directory));)
        if (is_shard_name(entry->d_name) && !is_own(self, entry->d_name))
            rc = file_remove(dir, entry->d_name);
    closedir(directory);
    return rc;
}

int hfi_write_json(const char *dir, const char *name, json_t *doc, size_t flags)
{
    char path[PATH_MAX];
    char *text = doc ? json_dumps(doc, flags) : NULL;
    int rc = text ? file_join(path, sizeof path, dir, name) : -ENOMEM;
    if (rc == 0)
        rc = file_write(path, FILE_SHARED, text, strlen(text));
    free(text);
    json_decref(doc);
    return rc == -ENOMEM ? err_set(rc, "no memory for %s", name) : rc;
}

/* Adds a tensor's names to the index. Returns false if there is no memory. */
static bool index_tensor(const export_list *self, const export_tensor *tensor, json_t *map)
{
    const char *file = self->files[tensor->file_idx].name;
    struct export_rows packed;
    if (tensor->format == STORED_WORKING)
        return json_object_set_new(map, tensor->name, json_string(file)) == 0;
    hfi_packed_rows(tensor, &packed);
    for (uint32_t i = 0; i < packed.count; i++)
        if (json_object_set_new(map, packed.names[i], json_string(file)) < 0)
            return false;
    return true;
}

static int write_index(const export_list *self, const char *dir)
{
    json_t *map = json_object();
    json_t *doc = json_pack("{s:{s:I, s:I}, s:o}", "metadata", "total_parameters",
                            (json_int_t)self->elem_count, "total_size",
                            (json_int_t)self->total_bytes, "weight_map", map);
    for (uint32_t i = 0; doc && i < self->count; i++)
        if (!index_tensor(self, &self->tensors[i], map)) {
            json_decref(doc);
            doc = NULL;
        }
    return hfi_write_json(dir, index_name, doc, JSON_INDENT(2) | JSON_SORT_KEYS);
}

int hfi_finish(export_list *self, const char *dir)
{
    /* While names change, config.json and the index are missing, so nothing takes the directory for
     * a checkpoint. */
    TRY(file_remove(dir, "config.json"));
    TRY(file_remove(dir, index_name));
    TRY(file_remove(dir, whole_name));
    TRY(file_sync_directory(dir)); /* a loss of power must not bring them back beside new weights */
    for (uint32_t f = 0; f < self->file_count; f++) {
        safetensors_writer *writer = self->files[f].writer;
        self->files[f].writer = NULL;
        TRY(safetensors_finish(writer));
    }
    TRY(remove_others(self, dir));
    return self->file_count > 1 ? write_index(self, dir) : 0;
}

/* ---- files that an export of the other kind left ---- */

int hfi_remove_whole(const char *dir, const char *base)
{
    const export_list none = {.file_count = 0};
    if (base && state_is_same_directory(dir, base))
        return 0; /* the checkpoint that they adapt */
    TRY(file_remove(dir, "config.json"));
    TRY(file_remove(dir, index_name));
    TRY(file_remove(dir, whole_name));
    TRY(remove_others(&none, dir));
    return file_sync_directory(dir);
}

int hfi_remove_adapters(const char *dir)
{
    TRY(file_remove(dir, "adapter_config.json"));
    TRY(file_remove(dir, "adapter_model.safetensors"));
    return file_sync_directory(dir);
}

int hfi_take_directory(const char *dir, bool force)
{
    uint32_t made_count;
    if (!dir[0] || strlen(dir) >= FILE_PATH_BYTES)
        return err_set(ERR_INPUT,
                       "cannot make directory \"%.100s\": its name has %zu bytes; 1 to %d "
                       "are possible",
                       dir, strlen(dir), FILE_PATH_BYTES - 1);
    if (file_make_directories(dir, FILE_SHARED, &made_count) < 0)
        return err_prefix(ERR_INPUT, "the export");
    if (made_count > 0)
        return 0;
    DIR *directory = opendir(dir);
    if (!directory)
        return file_cannot_look_into(dir);
    int rc = 0;
    for (const struct dirent *entry; rc == 0 && !force && (entry = readdir(directory));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rc = err_set(
                ERR_INPUT,
                "%s is not empty (it holds %.100s): name another directory, or replace what "
                "is in it (--force, in Python force=True)",
                dir, entry->d_name);
    closedir(directory);
    return rc;
}
