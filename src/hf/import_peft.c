/* Reads adapters in the format of PEFT, for a run that begins with them or an evaluation of a
 * checkpoint with them. The names and the order of elements are those of export_peft.c. See
 * hf_internal.h.
 *
 * Memory: the adapters in fp32. One thread calls. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/size.h"
#include "hf/hf_internal.h"

enum { NAME_BYTES = 2 * MODEL_NAME_BYTES };

/* The file, while it is read. */
struct adapter_file {
    export_adapters *to;
    safetensors_table table;
    bool *is_used; /* [table.count] */
    int fd;
};

static bool has_shape(const safetensors_tensor *found, const uint64_t shape[2])
{
    return found->dim_count == 2 && found->shape[0] == shape[0] && found->shape[1] == shape[1];
}

static int check_tensor(const struct adapter_file *self, const model_tensor *tensor,
                        const safetensors_tensor *found, const char *name)
{
    char is[SAFETENSORS_SHAPE_BYTES], text[SAFETENSORS_SHAPE_BYTES];
    safetensors_tensor expected = {.dim_count = 2};
    hfi_adapter_shape(self->to->net, tensor, expected.shape);
    if (!found)
        return err_set(
            ERR_INPUT,
            "%s has no tensor %s: its adapters are those of another model, or of fewer layers; "
            "where adapter_config.json has short names such as down_proj, which several layers "
            "have, write whole ones there, such as experts.down_proj",
            self->table.path, name);
    if (!has_shape(found, expected.shape))
        return err_set(ERR_INPUT,
                       "%s: tensor %s has shape %s, and the model with these adapters has %s",
                       self->table.path, found->name, safetensors_shape(found, is),
                       safetensors_shape(&expected, text));
    if (found->type == SAFETENSORS_OTHER)
        return err_set(ERR_INPUT,
                       "%s: tensor %s has dtype %s, and adapters are read from F32, BF16 and F16",
                       self->table.path, found->name, found->type_name);
    return 0;
}

/* Brings the stored elements to the parts of the tensor; tensor `idx` of the unit is the first. */
static void scatter(const struct adapter_file *self, uint32_t unit, uint32_t idx,
                    const float *stored)
{
    const model *net = self->to->net;
    do {
        const model_tensor *part = &net->units[unit].tensors[idx];
        const hfi_adapter_layout layout = hfi_adapter_layout_of(net, part);
        uint64_t begin = part->row_begin * part->columns;
        for (uint64_t i = 0; i < part->rows * part->columns; i++)
            self->to->values[unit][part->offset_elems + i] =
                stored[hfi_adapter_place(&layout, begin + i)];
    } while (model_next_part(net, &unit, &idx));
}

static int read_tensor(struct adapter_file *self, uint32_t unit, uint32_t idx)
{
    const model_tensor *tensor = &self->to->net->units[unit].tensors[idx];
    uint64_t count = tensor->whole_rows * tensor->columns;
    char name[NAME_BYTES];
    hfi_adapter_name(self->to->net, unit, tensor, name, NAME_BYTES);
    const safetensors_tensor *found = safetensors_find(&self->table, name);
    TRY(check_tensor(self, tensor, found, name));
    self->is_used[found - self->table.tensors] = true;
    void *raw = mem_alloc(count, sizeof(float), "adapters");
    float *stored = mem_alloc(count, sizeof *stored, "adapters");
    int rc = raw && stored ? 0 : -ENOMEM;
    if (rc == 0)
        rc = safetensors_read(&self->table, self->fd, found, 0, found->size_bytes, raw);
    if (rc == 0)
        dtype_convert(raw, (enum dtype)found->type, stored, DTYPE_FP32, count);
    for (uint64_t i = 0; rc == 0 && i < count; i++)
        if (!isfinite(stored[i]))
            rc = err_set(ERR_INPUT,
                         "%s: tensor %s holds a value that is not finite: its element %" PRIu64,
                         self->table.path, found->name, i);
    if (rc == 0)
        scatter(self, unit, idx, stored);
    mem_free(raw);
    mem_free(stored);
    return rc;
}

/* Checks that no tensor of the file is left out. */
static int check_rest(const struct adapter_file *self)
{
    char shape[SAFETENSORS_SHAPE_BYTES];
    const safetensors_tensor *extra = NULL;
    uint64_t count = 0;
    for (uint32_t i = 0; i < self->table.count; i++) {
        if (self->is_used[i])
            continue;
        extra = extra ? extra : &self->table.tensors[i];
        count++;
    }
    if (count == 0)
        return 0;
    return err_set(ERR_INPUT,
                   "%s: the model with adapters of train.lora.targets has no place for %" PRIu64
                   " of the tensors, such as %s of shape %s",
                   self->table.path, count, extra->name, safetensors_shape(extra, shape));
}

static int read_all(struct adapter_file *self)
{
    const model *net = self->to->net;
    for (uint32_t u = 0; u < net->unit_count; u++)
        for (uint32_t i = 0; self->to->values[u] && i < net->units[u].tensor_count; i++) {
            const model_tensor *tensor = &net->units[u].tensors[i];
            if (tensor->is_adapter && tensor->row_begin == 0)
                TRY(read_tensor(self, u, i));
        }
    return check_rest(self);
}

int hfi_adapters_load(const char *dir, const model *net, export_adapters *out)
{
    struct adapter_file self = {.to = out, .fd = -1};
    char path[FILE_PATH_BYTES];
    TRY(hfi_adapters_reserve(net, out));
    TRY(file_join(path, sizeof path, dir, "adapter_model.safetensors"));
    TRY(safetensors_open(path, &self.table));
    self.is_used = mem_alloc(self.table.count, sizeof *self.is_used, "adapters");
    self.fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc = !self.is_used  ? -ENOMEM
             : self.fd >= 0 ? read_all(&self)
                            : err_errno(errno, "cannot read %s", path);
    if (self.fd >= 0)
        close(self.fd);
    mem_free(self.is_used);
    safetensors_close(&self.table);
    return rc;
}

void hfi_adapters_put(const export_adapters *self, uint32_t unit, uint64_t begin, uint64_t count,
                      float *master)
{
    const model_unit *of = &self->net->units[unit];
    for (uint32_t i = 0; self->values[unit] && i < of->tensor_count; i++) {
        const model_tensor *tensor = &of->tensors[i];
        uint64_t first = tensor->offset_elems, low = size_max(begin, first);
        uint64_t high = size_min(begin + count, first + tensor->rows * tensor->columns);
        if (tensor->is_adapter && low < high)
            memcpy(master + (low - begin), self->values[unit] + low, (high - low) * sizeof *master);
    }
}

uint64_t hfi_adapters_identity(const export_adapters *self)
{
    uint64_t sum = 0;
    for (uint32_t u = 0; u < self->net->unit_count; u++)
        if (self->values[u])
            sum = XXH3_64bits_withSeed(self->values[u], self->net->units[u].elems * sizeof(float),
                                       sum);
    return sum;
}
