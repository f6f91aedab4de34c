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
#include "hf/hf_internal.h"

enum { THREADS_MAX = 16 };

/* ---- names and shapes ---- */

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static bool begins_with(const char *text, const char *begin)
{
    return strncmp(text, begin, strlen(begin)) == 0;
}

/* The output matrix, if it is not tied. */
static bool is_output(const char *name)
{
    return begins_with(name, "lm_head.") || begins_with(name, "embed_out.");
}

bool hf_weights_is_by_heads(enum model_family family, const char *name)
{
    return family == MODEL_GPT_NEOX && strstr(name, ".query_key_value.") &&
           !ends_with(name, ".lora_A.weight");
}

uint64_t hf_weights_place(const model *net, uint64_t columns, uint64_t at, uint64_t *together)
{
    uint64_t heads = net->spec.num_heads, head_elems = net->spec.head_dim * columns;
    uint64_t matrix = at / (heads * head_elems), head = at / head_elems % heads;
    uint64_t inside = at % head_elems;
    *together = head_elems - inside;
    return (3 * head + matrix) * head_elems + inside;
}

/* True for a vector: one row, or one column if it is cut. Tables may have one row too. */
static bool is_vector(const model_tensor *tensor)
{
    return !ends_with(tensor->name, "wte.weight") && !ends_with(tensor->name, "wpe.weight") &&
           !ends_with(tensor->name, "_embeddings.weight") &&
           (tensor->columns == 1 || (tensor->rows == 1 && tensor->whole_rows == 1));
}

uint32_t hf_weights_shape(const model *net, const model_tensor *tensor, uint64_t shape[2])
{
    enum model_family family = net->spec.family;
    if (family == MODEL_COHERE && strstr(tensor->name, "_norm.weight")) { /* q_norm, k_norm */
        shape[1] = net->spec.head_dim;
        shape[0] = tensor->columns / shape[1];
        return 2;
    }
    if (is_vector(tensor)) {
        shape[0] = tensor->columns == 1 ? tensor->whole_rows : tensor->columns;
        shape[1] = 1;
        return 1;
    }
    bool is_transposed = model_is_transposed(family, tensor->name);
    shape[is_transposed ? 1 : 0] = tensor->whole_rows;
    shape[is_transposed ? 0 : 1] = tensor->columns;
    return 2;
}

static bool is_adapter(const char *name)
{
    return strstr(name, ".lora_") != NULL;
}

/* Builds the checkpoint's name of a tensor of the model. */
static void stored_name(const hf_weights *self, const char *name, char out[2 * MODEL_NAME_BYTES])
{
    if (self->dropped_bytes > 0 &&
        strncmp(name, self->net->units[0].tensors[0].name, self->dropped_bytes) == 0)
        name += self->dropped_bytes;
    snprintf(out, 2 * MODEL_NAME_BYTES, "%s%s", is_output(name) ? "" : self->added, name);
}

/* Finds how names differ from the model's. Checkpoints of the whole model and of the model without
 * its head use different names. */
static int find_prefix(hf_weights *self)
{
    bool is_gpt2 = self->net->spec.family == MODEL_GPT2;
    const char *table = self->net->units[0].tensors[0].name;
    char name[2 * MODEL_NAME_BYTES], other[2 * MODEL_NAME_BYTES] = "";
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

static int check_tensor(const hf_weights *self, const hf_tensor *at, const model_tensor *wanted)
{
    const safetensors_tensor *tensor = at->tensor;
    const char *path = hf_path(self->files, at->file_idx);
    char is[SAFETENSORS_SHAPE_BYTES], text[SAFETENSORS_SHAPE_BYTES];
    safetensors_tensor should = {0};
    should.dim_count = hf_weights_shape(self->net, wanted, should.shape);
    if (tensor->type == SAFETENSORS_OTHER)
        return err_set(ERR_INPUT,
                       "%s: tensor %s has dtype %s, and weights are read from F32, BF16 and F16",
                       path, tensor->name, tensor->type_name);
    if (!has_shape(tensor, should.shape, should.dim_count))
        return err_set(ERR_INPUT,
                       "%s: tensor %s has shape %s, and the model that config.json and the job "
                       "describe has %s",
                       path, tensor->name, safetensors_shape(tensor, is),
                       safetensors_shape(&should, text));
    return 0;
}

/* Finds a norm of BERT by the names that checkpoints of before 2019 have, such as Google's. */
static bool find_old_norm(const hf_weights *self, const char *name, hf_tensor *out)
{
    static const char *const names[2][2] = {{"LayerNorm.weight", "LayerNorm.gamma"},
                                            {"LayerNorm.bias", "LayerNorm.beta"}};
    char old[2 * MODEL_NAME_BYTES];
    for (int i = 0; i < 2; i++)
        if (ends_with(name, names[i][0])) {
            int stem = (int)(strlen(name) - strlen(names[i][0]));
            snprintf(old, sizeof old, "%.*s%s", stem, name, names[i][1]);
            return hf_find(self->files, old, out);
        }
    return false;
}

static int find_tensor(hf_weights *self, const model_tensor *wanted, struct weights_source *out)
{
    char name[2 * MODEL_NAME_BYTES];
    if (is_adapter(wanted->name))
        return 0;
    stored_name(self, wanted->name, name);
    if (!hf_find(self->files, name, &out->at) && !find_old_norm(self, name, &out->at))
        return err_set(ERR_INPUT, "%s has no tensor %s%s", self->dir, name,
                       is_output(name)
                           ? ", and model.tie_embeddings is false, so the embedding cannot take "
                             "its place"
                       : begins_with(name, "cls.")
                           ? ", a part of the head that fills in masked tokens: take a checkpoint "
                             "of BertForMaskedLM or BertForPreTraining"
                           : "");
    TRY(check_tensor(self, &out->at, wanted));
    out->is_transposed = model_is_transposed(self->net->spec.family, wanted->name);
    out->is_by_heads = hf_weights_is_by_heads(self->net->spec.family, wanted->name);
    self->has_type[out->at.tensor->type] = true;
    if (wanted->row_begin == 0) /* a tensor in parts counts once */
        self->total_bytes += out->at.tensor->size_bytes;
    if (out->is_transposed)
        self->strip.capacity_bytes =
            size_max(self->strip.capacity_bytes, out->at.tensor->size_bytes);
    return 0;
}

static int find_tensors(hf_weights *self)
{
    const model *net = self->net;
    uint64_t count = 0;
    for (uint32_t u = 0; u < net->unit_count; u++)
        count += net->units[u].tensor_count;
    self->sources = mem_alloc(count, sizeof *self->sources, "weights");
    self->units = mem_alloc(net->unit_count, sizeof *self->units, "weights");
    if (!self->sources || !self->units)
        return -ENOMEM;
    struct weights_source *next = self->sources;
    for (uint32_t u = 0; u < net->unit_count; u++) {
        self->units[u] = next;
        for (uint32_t i = 0; i < net->units[u].tensor_count; i++)
            TRY(find_tensor(self, &net->units[u].tensors[i], next++));
    }
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
        if (ends_with(name, ends[i]))
            return true;
    return false;
}

/* True for a tied output matrix that is stored once more, or BERT's biases of it. */
static bool is_repeated(const hf_weights *self, const safetensors_tensor *tensor)
{
    const safetensors_tensor *table = self->units[0][0].at.tensor;
    bool is_matrix =
        is_output(tensor->name) || strcmp(tensor->name, "cls.predictions.decoder.weight") == 0;
    bool is_bias = strcmp(tensor->name, "cls.predictions.decoder.bias") == 0;
    return self->net->spec.tie_embeddings &&
           ((is_matrix && has_shape(tensor, table->shape, table->dim_count)) ||
            (is_bias && has_shape(tensor, table->shape, 1)));
}

/* True for what BERT has for the prediction of the next sentence, which is not trained here. */
static bool is_left_out(const hf_weights *self, const char *name)
{
    return self->net->spec.family == MODEL_BERT &&
           (begins_with(name, "bert.pooler.") || begins_with(name, "pooler.") ||
            begins_with(name, "cls.seq_relationship."));
}

/* Checks that no tensor of the checkpoint is left out silently. */
static int check_rest(const hf_weights *self)
{
    uint64_t used = 0, count = 0;
    for (uint32_t u = 0; u < self->net->unit_count; u++)
        count += self->net->units[u].tensor_count;
    const safetensors_tensor **known = mem_alloc(count, sizeof *known, "weights");
    if (!known)
        return -ENOMEM;
    for (uint64_t i = 0; i < count; i++)
        if (self->sources[i].at.tensor)
            known[used++] = self->sources[i].at.tensor;
    qsort(known, used, sizeof *known, compare_addresses);
    uint64_t extra_count = 0;
    char left_out[512] = "";
    hf_tensor extra = {0};
    for (uint64_t i = 0; i < hf_count(self->files); i++) {
        hf_tensor at = hf_at(self->files, i);
        if (bsearch(&at.tensor, known, used, sizeof *known, compare_addresses) ||
            is_no_parameter(at.tensor->name) || is_repeated(self, at.tensor))
            continue;
        if (is_left_out(self, at.tensor->name)) {
            size_t length = strlen(left_out);
            snprintf(left_out + length, sizeof left_out - length, "%s%s", length ? ", " : "",
                     at.tensor->name);
            continue;
        }
        if (extra_count++ == 0)
            extra = at;
    }
    mem_free(known);
    if (left_out[0] != '\0')
        log_info("%s: left out, since filling in masked tokens does not need them: %s", self->dir,
                 left_out);
    if (extra_count == 0)
        return 0;
    char shape[SAFETENSORS_SHAPE_BYTES];
    return err_set(ERR_INPUT,
                   "%s: the model that config.json and the job describe has no place for tensor %s "
                   "of shape %s, nor for %" PRIu64 " more",
                   hf_path(self->files, extra.file_idx), extra.tensor->name,
                   safetensors_shape(extra.tensor, shape), extra_count - 1);
}

static int reserve(hf_weights *self, uint64_t strip_bytes)
{
    self->thread_count = omp_get_num_procs();
    if (self->thread_count > THREADS_MAX)
        self->thread_count = THREADS_MAX;
    self->pieces = mem_alloc((size_t)self->thread_count, self->piece_bytes, "pieces of weights");
    if (!self->pieces)
        return -ENOMEM;
    self->strip.capacity_bytes = size_min(self->strip.capacity_bytes, strip_bytes);
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

void hf_weights_close(hf_weights *self)
{
    if (!self)
        return;
    hf_close(self->files);
    mem_free(self->sources);
    mem_free(self->units);
    mem_free(self->strip.data);
    mem_free(self->pieces);
    mem_free(self);
}

uint64_t hf_weights_identity(const hf_weights *self)
{
    return hf_identity(self->files);
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
        if (!self->units[unit][i].at.tensor)
            return false;
    return true;
}

bool hf_weights_has_strips(const hf_weights *self)
{
    return self->strip.capacity_bytes > 0;
}
