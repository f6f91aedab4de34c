/* Opens the weights of a Hugging Face checkpoint: every tensor of the model must be in it with its
 * shape. See weights.h; weights_read.c reads them. */
#include <errno.h>
#include <inttypes.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/text.h"
#include "hf/hf_internal.h"

enum { THREADS_MAX = 16 };

/* ---- names ---- */

static bool begins_with(const char *text, const char *begin)
{
    return strncmp(text, begin, strlen(begin)) == 0;
}

/* The output matrix, if it is not tied. */
static bool is_output(const char *name)
{
    return begins_with(name, "lm_head.") || begins_with(name, "embed_out.");
}

static bool is_adapter(const char *name)
{
    return strstr(name, ".lora_") != NULL;
}

/* Adds to a name, or takes from it, the prefix in which the checkpoint differs. */
static void stored_name(const hf_weights *self, const char *name, char out[HF_NAME_BYTES])
{
    if (self->dropped_bytes > 0 &&
        strncmp(name, self->net->units[0].tensors[0].name, self->dropped_bytes) == 0)
        name += self->dropped_bytes;
    snprintf(out, HF_NAME_BYTES, "%s%s", is_output(name) ? "" : self->added, name);
}

/* Finds how names differ from the model's. Checkpoints of the whole model and of the model without
 * its head use different names. */
static int find_prefix(hf_weights *self)
{
    bool is_gpt2 = self->net->spec.family == MODEL_GPT2;
    const char *table = self->net->units[0].tensors[0].name;
    char name[HF_NAME_BYTES], other[HF_NAME_BYTES] = "";
    hf_tensor found;
    for (int i = 0; i < 2; i++) {
        self->added = is_gpt2 && i == 0 ? "transformer." : "";
        self->dropped_bytes = is_gpt2 || i == 0 ? 0 : strcspn(table, ".") + 1;
        stored_name(self, table, name);
        if (hf_find(self->files, name, &found))
            return 0;
        if (i == 0)
            snprintf(other, sizeof other, "%s", name);
    }
    return err_set(
        ERR_INPUT,
        "%s has neither a tensor %s nor %s: it is no checkpoint of this family of models",
        self->dir, other, name);
}

/* ---- opening ---- */

static bool has_shape(const safetensors_tensor *tensor, const uint64_t *shape, uint32_t count)
{
    bool same = tensor->dim_count == count;
    for (uint32_t d = 0; same && d < count; d++)
        same = tensor->shape[d] == shape[d];
    return same;
}

/* Finds how the tensor is quantized, or else checks its shape. */
static int check_tensor(hf_weights *self, const hf_tensor *at, const hf_layout *layout)
{
    const safetensors_tensor *tensor = at->tensor;
    const char *path = hf_path(self->files, at->file_idx);
    char is[SAFETENSORS_SHAPE_BYTES], text[SAFETENSORS_SHAPE_BYTES];
    safetensors_tensor should = {.dim_count = layout->dim_count};
    memcpy(should.shape, layout->shape, sizeof layout->shape);
    struct weights_packed *packed = &self->packed[at - self->stored];
    TRY(hfi_find_packed(self, at, layout, packed));
    self->has_packed = self->has_packed || packed->format != STORED_WORKING;
    if (packed->format != STORED_WORKING)
        return 0;
    self->has_type[tensor->type] = true;
    if (!has_shape(tensor, should.shape, should.dim_count))
        return err_set(ERR_INPUT,
                       "%s: tensor %s has shape %s, and the model that config.json and the job "
                       "describe has %s",
                       path, tensor->name, safetensors_shape(tensor, is),
                       safetensors_shape(&should, text));
    return 0;
}

/* The formats of units may be those of the checkpoint's config.json. A tensor packed in another
 * format than the one that config.json gives it would be quantized twice. */
static int check_format(const hf_weights *self, const hf_tensor *at, const model_tensor *wanted)
{
    enum stored_format found = self->packed[at - self->stored].format;
    if (!self->net->spec.stored.is_of_checkpoint || found == STORED_WORKING ||
        found == wanted->stored || wanted->stored == STORED_WORKING)
        return 0;
    return err_set(ERR_INPUT,
                   "%s: tensor %s comes as %s, and quantization_config in config.json says %s: "
                   "mend config.json, or give state.params, \"%s\" for what the tensor has",
                   hf_path(self->files, at->file_idx), at->tensor->name, stored_format_name(found),
                   stored_format_name(wanted->stored), stored_format_name(found));
}

/* Warns about matrices that quantization_config says are packed, and that are not. They are packed
 * here as it says. */
static void warn_of_plain(const hf_weights *self)
{
    const model *net = self->net;
    uint64_t count = 0;
    const char *name = NULL, *format = NULL;
    for (uint32_t u = 0; u < net->unit_count && net->spec.stored.is_of_checkpoint; u++)
        for (uint32_t i = 0; i < net->units[u].tensor_count; i++) {
            const struct weights_source *source = &self->units[u][i];
            enum stored_format wanted = net->units[u].tensors[i].stored;
            for (uint64_t s = 0; s < source->stored_count && wanted != STORED_WORKING; s++) {
                const hf_tensor *at = &source->stored[s];
                if (self->packed[at - self->stored].format != STORED_WORKING)
                    continue;
                name = name ? name : at->tensor->name;
                format = stored_format_name(wanted);
                count++;
            }
        }
    char more[48] = "";
    if (count > 1)
        snprintf(more, sizeof more, ", and %" PRIu64 " more,", count - 1);
    if (count > 0)
        log_warn("%s: %s%s is not quantized there, and quantization_config in config.json does not "
                 "leave it out: it is packed as %s; a module named in llm_int8_skip_modules or "
                 "modules_to_not_convert keeps its values",
                 self->dir, name, more, format);
}

/* Finds a norm of BERT by the names that checkpoints of before 2019 have, such as Google's. */
static bool find_old_norm(const hf_weights *self, const char *name, hf_tensor *out)
{
    static const char *const names[2][2] = {{"LayerNorm.weight", "LayerNorm.gamma"},
                                            {"LayerNorm.bias", "LayerNorm.beta"}};
    char old[HF_NAME_BYTES];
    for (int i = 0; i < 2; i++)
        if (text_ends_with(name, names[i][0])) {
            int stem = (int)(strlen(name) - strlen(names[i][0]));
            snprintf(old, sizeof old, "%.*s%s", stem, name, names[i][1]);
            return hf_find(self->files, old, out);
        }
    return false;
}

static int refuse_missing(const hf_weights *self, const char *name, const char *fused)
{
    if (fused)
        return err_set(ERR_INPUT, "%s has neither a tensor %s nor %s", self->dir, name, fused);
    return err_set(ERR_INPUT, "%s has no tensor %s%s", self->dir, name,
                   is_output(name)
                       ? ", and model.tie_embeddings is false, so the embedding cannot take its "
                         "place"
                   : begins_with(name, "cls.")
                       ? ", a part of the head that fills in masked tokens: take a checkpoint of "
                         "BertForMaskedLM or BertForPreTraining"
                       : "");
}

/* Finds the stored tensors that a unit's tensor lies in. */
static int find_in_layout(hf_weights *self, const model_tensor *wanted, struct weights_source *out)
{
    char model_name[HF_NAME_BYTES], name[HF_NAME_BYTES];
    const hf_layout *layout = &out->layout;
    struct hf_stored_range range = hf_layout_range(layout, wanted);
    out->first = range.first;
    for (uint64_t i = 0; i < range.count; i++) {
        hf_tensor *at = &out->stored[i];
        hf_layout_name(self->net, wanted, layout, range.first + i, model_name);
        stored_name(self, model_name, name);
        if (!hf_find(self->files, name, at) && !find_old_norm(self, name, at))
            return refuse_missing(self, name, NULL);
        TRY(check_tensor(self, at, layout));
        TRY(check_format(self, at, wanted));
        if (hf_layout_begins(layout, wanted, range.first + i)) /* a tensor in parts counts once */
            self->total_bytes += at->tensor->size_bytes;
        if (layout->order != HF_ORDER_TRANSPOSED)
            continue;
        uint64_t bytes = layout->rows * layout->columns * dtype_bytes((enum dtype)at->tensor->type);
        uint64_t *most = layout->is_paired ? &self->strip.least_bytes : &self->strip.capacity_bytes;
        *most = size_max(*most, bytes);
    }
    out->stored_count = range.count;
    return 0;
}

/* Takes the fused layout for a tensor, if the checkpoint has it and not the published one. */
static int choose_layout(hf_weights *self, const model_tensor *wanted, struct weights_source *out)
{
    char model_name[HF_NAME_BYTES], name[HF_NAME_BYTES], fused[HF_NAME_BYTES];
    hf_layout other;
    hf_tensor at;
    if (hf_layout_of_blocks(self->net, wanted, &other)) {
        hf_layout_name(self->net, wanted, &other, 0, model_name);
        stored_name(self, model_name, name);
        out->layout = hf_find(self->files, name, &at) ? other : out->layout;
        return 0;
    }
    other = hf_layout_of(self->net, wanted, true);
    hf_layout_name(self->net, wanted, &out->layout, hf_layout_range(&out->layout, wanted).first,
                   model_name);
    stored_name(self, model_name, name);
    hf_layout_name(self->net, wanted, &other, 0, model_name);
    stored_name(self, model_name, fused);
    if (strcmp(name, fused) == 0 || hf_find(self->files, name, &at))
        return 0;
    if (!hf_find(self->files, fused, &at))
        return refuse_missing(self, name, fused);
    out->layout = other;
    return 0;
}

static int find_tensors(hf_weights *self)
{
    const model *net = self->net;
    uint64_t count = 0, stored_count = 0;
    for (uint32_t u = 0; u < net->unit_count; u++)
        count += net->units[u].tensor_count;
    self->sources = mem_alloc(count, sizeof *self->sources, "weights");
    self->units = mem_alloc(net->unit_count, sizeof *self->units, "weights");
    if (!self->sources || !self->units)
        return -ENOMEM;
    struct weights_source *next = self->sources;
    for (uint32_t u = 0; u < net->unit_count; u++) {
        self->units[u] = next;
        for (uint32_t i = 0; i < net->units[u].tensor_count; i++, next++) {
            const model_tensor *tensor = &net->units[u].tensors[i];
            if (is_adapter(tensor->name))
                continue;
            next->layout = hf_layout_of(net, tensor, false);
            TRY(choose_layout(self, tensor, next));
            stored_count += hf_layout_range(&next->layout, tensor).count;
        }
    }
    self->stored = mem_alloc(stored_count, sizeof *self->stored, "weights");
    self->packed = mem_alloc(stored_count, sizeof *self->packed, "weights");
    if (!self->stored || !self->packed)
        return -ENOMEM;
    hf_tensor *at = self->stored;
    for (uint32_t u = 0; u < net->unit_count; u++)
        for (uint32_t i = 0; i < net->units[u].tensor_count; i++) {
            struct weights_source *source = &self->units[u][i];
            if (is_adapter(net->units[u].tensors[i].name))
                continue;
            source->stored = at;
            TRY(find_in_layout(self, &net->units[u].tensors[i], source));
            at += source->stored_count;
        }
    self->stored_count = stored_count;
    warn_of_plain(self);
    return 0;
}

static int compare_addresses(const void *left, const void *right)
{
    const safetensors_tensor *a = *(const safetensors_tensor *const *)left;
    const safetensors_tensor *b = *(const safetensors_tensor *const *)right;
    return (a > b) - (a < b);
}

/* True for tensors of a checkpoint that are no parameters. */
static bool is_no_parameter(const char *name)
{
    static const char *const ends[] = {".attn.bias",          ".attn.masked_bias",
                                       ".attention.bias",     ".attention.masked_bias",
                                       "rotary_emb.inv_freq", "embeddings.position_ids"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (text_ends_with(name, ends[i]))
            return true;
    return false;
}

/* True for a tied output matrix that is stored once more, or BERT's biases of it. */
static bool is_repeated(const hf_weights *self, const safetensors_tensor *tensor)
{
    const safetensors_tensor *table = self->units[0][0].stored[0].tensor;
    bool is_matrix =
        is_output(tensor->name) || strcmp(tensor->name, "cls.predictions.decoder.weight") == 0;
    bool is_bias = strcmp(tensor->name, "cls.predictions.decoder.bias") == 0;
    return self->net->spec.tie_embeddings &&
           ((is_matrix && has_shape(tensor, table->shape, table->dim_count)) ||
            (is_bias && has_shape(tensor, table->shape, 1)));
}

/* True for what is not trained here: what BERT has for the prediction of the next sentence, and the
 * blocks of DeepSeek-V3 and GLM-4.5 after the last, which predict tokens further ahead. */
static bool is_left_out(const hf_weights *self, const char *name)
{
    enum model_family family = self->net->spec.family;
    unsigned long long block;
    if (family == MODEL_DEEPSEEK || family == MODEL_GLM4_MOE)
        return sscanf(name, "model.layers.%llu.", &block) == 1 &&
               block >= self->net->spec.num_layers;
    return family == MODEL_BERT &&
           (begins_with(name, "bert.pooler.") || begins_with(name, "pooler.") ||
            begins_with(name, "cls.seq_relationship."));
}

/* True for scales and what else lies beside the codes of a quantized tensor of the model. */
static bool is_beside_known(const hf_weights *self, const safetensors_tensor **known,
                            const char *name)
{
    char codes[HF_STORED_NAME_BYTES];
    hf_tensor at;
    return self->has_packed && hfi_is_beside(name, codes) && hf_find(self->files, codes, &at) &&
           (at.tensor->type == SAFETENSORS_OTHER || hfi_is_4bit(self->files, codes)) &&
           bsearch(&at.tensor, known, self->stored_count, sizeof *known, compare_addresses);
}

/* Checks that no tensor of the checkpoint is left out silently. */
static int check_rest(const hf_weights *self)
{
    uint64_t count = self->stored_count;
    const safetensors_tensor **known = mem_alloc(count, sizeof *known, "weights");
    if (!known)
        return -ENOMEM;
    for (uint64_t i = 0; i < count; i++)
        known[i] = self->stored[i].tensor;
    qsort(known, count, sizeof *known, compare_addresses);
    uint64_t extra_count = 0;
    char left_out[512] = "";
    hf_tensor extra = {0};
    for (uint64_t i = 0; i < hf_count(self->files); i++) {
        hf_tensor at = hf_at(self->files, i);
        if (bsearch(&at.tensor, known, count, sizeof *known, compare_addresses) ||
            is_no_parameter(at.tensor->name) || is_repeated(self, at.tensor) ||
            is_beside_known(self, known, at.tensor->name))
            continue;
        if (is_left_out(self, at.tensor->name)) {
            text_add(left_out, sizeof left_out, "%s%s", left_out[0] ? ", " : "", at.tensor->name);
            continue;
        }
        if (extra_count++ == 0)
            extra = at;
    }
    mem_free(known);
    if (left_out[0] != '\0')
        log_info("%s: left out, since training here does not need them: %s", self->dir, left_out);
    if (extra_count == 0)
        return 0;
    char shape[SAFETENSORS_SHAPE_BYTES];
    return err_set(ERR_INPUT,
                   "%s: the model that config.json and the job describe has no place for %" PRIu64
                   " of the tensors, such as %s of shape %s",
                   hf_path(self->files, extra.file_idx), extra_count, extra.tensor->name,
                   safetensors_shape(extra.tensor, shape));
}

static int reserve(hf_weights *self, uint64_t strip_bytes)
{
    self->pieces = mem_alloc((size_t)self->thread_count, self->piece_bytes, "pieces of weights");
    if (!self->pieces)
        return -ENOMEM;
    TRY(hfi_reserve_packed(self));
    self->strip.capacity_bytes =
        size_max(size_min(self->strip.capacity_bytes, strip_bytes), self->strip.least_bytes);
    if (self->strip.capacity_bytes == 0)
        return 0;
    self->strip.data = mem_alloc(self->strip.capacity_bytes, 1, "strip of weights");
    return self->strip.data ? 0 : -ENOMEM;
}

int hf_weights_open_sized(const char *dir, const model *net, uint64_t strip_bytes,
                          uint64_t piece_bytes, hf_weights **out)
{
    *out = NULL;
    hf_weights *self = mem_alloc(1, sizeof *self, "weights");
    if (!self)
        return -ENOMEM;
    self->net = net;
    self->piece_bytes = piece_bytes;
    snprintf(self->dir, sizeof self->dir, "%s", dir);
    self->thread_count = omp_get_num_procs();
    if (self->thread_count > THREADS_MAX)
        self->thread_count = THREADS_MAX;
    int rc = hf_open(dir, &self->files);
    if (rc == 0)
        rc = find_prefix(self);
    if (rc == 0)
        rc = find_tensors(self);
    if (rc == 0)
        rc = check_rest(self);
    if (rc == 0)
        rc = reserve(self, strip_bytes);
    if (rc < 0) {
        hf_weights_close(self);
        return rc;
    }
    *out = self;
    return 0;
}

int hf_weights_open(const char *dir, const model *net, hf_weights **out)
{
    return hf_weights_open_sized(dir, net, WEIGHTS_STRIP_BYTES, WEIGHTS_PIECE_BYTES, out);
}

int hf_weights_take_adapters(hf_weights *self, const char *dir)
{
    return hfi_adapters_load(dir, self->net, &self->adapters);
}

void hf_weights_close(hf_weights *self)
{
    if (!self)
        return;
    hfi_adapters_close(&self->adapters);
    hf_close(self->files);
    if (self->context)
        kernels_cpu.context_destroy(self->context);
    mem_free(self->codes);
    mem_free(self->values);
    mem_free(self->packed);
    mem_free(self->stored);
    mem_free(self->sources);
    mem_free(self->units);
    mem_free(self->strip.data);
    mem_free(self->pieces);
    mem_free(self);
}

uint64_t hf_weights_identity(const hf_weights *self)
{
    return hf_identity(self->files) ^
           (self->adapters.net ? hfi_adapters_identity(&self->adapters) : 0);
}

uint64_t hf_weights_bytes(const hf_weights *self)
{
    return self->total_bytes;
}

enum dtype hf_weights_type(const hf_weights *self)
{
    if (self->has_type[DTYPE_FP32] || (self->has_type[DTYPE_BF16] && self->has_type[DTYPE_FP16]))
        return DTYPE_FP32;
    return self->has_type[DTYPE_FP16] ? DTYPE_FP16 : DTYPE_BF16;
}

bool hf_weights_has_all(const hf_weights *self, uint32_t unit)
{
    for (uint32_t i = 0; i < self->net->units[unit].tensor_count; i++)
        if (self->units[unit][i].stored_count == 0 && !self->adapters.net)
            return false;
    return true;
}

bool hf_weights_has_strips(const hf_weights *self)
{
    return self->strip.capacity_bytes > 0 || self->has_packed;
}
