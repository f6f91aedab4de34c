/* See layout.h. */
#include "hf/layout.h"

#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "base/text.h"

/* The matrices of an expert that one tensor of the model holds, and their names in files of the two
 * kinds. */
static const struct expert_names {
    const char *end; /* of the model's name */
    uint32_t count;
    const char *qwen[2], *mixtral[2];
} experts[] = {
    {".experts.gate_up_proj", 2, {"gate_proj", "up_proj"}, {"w1", "w3"}},
    {".experts.down_proj", 1, {"down_proj"}, {"w2"}},
};

/* Returns NULL if the tensor does not hold experts. */
static const struct expert_names *find_experts(const char *name)
{
    for (size_t i = 0; i < sizeof experts / sizeof experts[0]; i++)
        if (text_ends_with(name, experts[i].end))
            return &experts[i];
    return NULL;
}

static void set_shape(hf_layout *self, uint64_t rows, uint64_t columns)
{
    self->dim_count = 2;
    self->shape[0] = rows;
    self->shape[1] = columns;
}

/* gpt-oss's experts. A vector of gate and up by turns is a transposed matrix of two rows. */
static void set_gpt_oss(hf_layout *self, const model *net, const model_tensor *tensor)
{
    uint64_t width = net->spec.expert_ffn_size, hidden = net->spec.hidden_size;
    bool is_bias = tensor->init == TENSOR_INIT_ZERO;
    bool is_up = strstr(tensor->name, "gate_up") != NULL;
    self->order = is_bias && !is_up ? HF_ORDER_SAME : HF_ORDER_TRANSPOSED;
    self->is_paired = is_up && !is_bias;
    self->rows = !is_up ? hidden : is_bias ? 2 : 2 * width;
    self->columns = self->is_paired ? hidden : width;
    self->tensor_count = 1;
    self->dim_count = is_bias ? 2 : 3;
    self->shape[0] = net->spec.expert_count;
    self->shape[1] = !is_bias ? self->columns : is_up ? 2 * width : hidden;
    self->shape[2] = is_bias ? 0 : self->rows;
}

/* Sets the shape and the number of the stored tensors. */
static void set_tensors(hf_layout *self, const model *net, const model_tensor *tensor)
{
    const struct expert_names *of = find_experts(tensor->name);
    bool is_vector = !tensor->is_adapter &&
                     (tensor->init == TENSOR_INIT_ZERO || tensor->init == TENSOR_INIT_ONE);
    self->tensor_count = 1;
    if (of) {
        uint64_t count = net->spec.expert_count;
        set_shape(self, tensor->whole_rows / (count * of->count), tensor->columns);
        self->tensor_count = count * of->count;
    } else if (net->spec.family == MODEL_COHERE && strstr(tensor->name, "_norm.weight")) {
        set_shape(self, tensor->columns / net->spec.head_dim, net->spec.head_dim);
    } else if (is_vector) {
        self->dim_count = 1;
        self->shape[0] = tensor->columns == 1 ? tensor->whole_rows : tensor->columns;
    } else if (self->order == HF_ORDER_TRANSPOSED) {
        set_shape(self, tensor->columns, tensor->whole_rows);
    } else {
        set_shape(self, tensor->whole_rows, tensor->columns);
    }
    if (of && self->is_fused) {
        self->dim_count = 3;
        self->shape[0] = net->spec.expert_count;
        self->shape[1] = tensor->whole_rows / self->shape[0];
        self->shape[2] = tensor->columns;
        self->tensor_count = 1;
    }
}

hf_layout hf_layout_of(const model *net, const model_tensor *tensor, bool is_fused)
{
    enum model_family family = net->spec.family;
    hf_layout self = {.is_fused = is_fused};
    if (model_is_transposed(family, tensor->name))
        self.order = HF_ORDER_TRANSPOSED;
    if (family == MODEL_GPT_NEOX && strstr(tensor->name, ".query_key_value.") &&
        !text_ends_with(tensor->name, ".lora_A.weight")) {
        self.order = HF_ORDER_BY_HEADS;
        self.heads = net->spec.num_heads;
        self.head_elems = net->spec.head_dim * (tensor->whole_rows == 1 ? 1 : tensor->columns);
    }
    self.rows = tensor->whole_rows;
    self.columns = tensor->columns;
    if (family == MODEL_GPT_OSS && strstr(tensor->name, ".experts.") && !tensor->is_adapter)
        set_gpt_oss(&self, net, tensor);
    else
        set_tensors(&self, net, tensor);
    self.elems = tensor->whole_rows * tensor->columns / self.tensor_count;
    return self;
}

bool hf_layout_of_blocks(const model *net, const model_tensor *tensor, hf_layout *out)
{
    enum { GROUP = 32, GROUP_BYTES = GROUP / 2 };
    hf_layout self = hf_layout_of(net, tensor, false);
    *out = self;
    if (net->spec.family != MODEL_GPT_OSS || tensor->is_adapter || self.dim_count != 3 ||
        self.columns % GROUP != 0)
        return false;
    out->order = self.is_paired ? HF_ORDER_PAIRED : HF_ORDER_SAME;
    out->is_blocks = true;
    out->dim_count = 4;
    out->shape[1] = self.rows;
    out->shape[2] = self.columns / GROUP;
    out->shape[3] = GROUP_BYTES;
    return true;
}

void hf_layout_name(const model *net, const model_tensor *tensor, const hf_layout *layout,
                    uint64_t idx, char out[HF_NAME_BYTES])
{
    bool is_joint = layout->is_fused || net->spec.family == MODEL_GPT_OSS;
    const struct expert_names *of = is_joint ? NULL : find_experts(tensor->name);
    bool is_mixtral = net->spec.family == MODEL_MIXTRAL && !layout->is_fused;
    const char *mixture = is_mixtral ? strstr(tensor->name, ".mlp.") : NULL;
    char name[HF_NAME_BYTES];
    snprintf(name, sizeof name, "%s", tensor->name);
    if (mixture)
        snprintf(name, sizeof name, "%.*s.block_sparse_moe.%s", (int)(mixture - tensor->name),
                 tensor->name, mixture + strlen(".mlp."));
    if (!of) {
        snprintf(out, HF_NAME_BYTES, "%.*s%s", HF_NAME_BYTES - 8, name,
                 layout->is_blocks ? "_blocks" : "");
        return;
    }
    const char *const *matrices = is_mixtral ? of->mixtral : of->qwen;
    snprintf(out, HF_NAME_BYTES, "%.*s.experts.%llu.%s.weight",
             (int)(strlen(name) - strlen(of->end)), name, (unsigned long long)(idx / of->count),
             matrices[idx % of->count]);
}

struct hf_place hf_layout_place(const hf_layout *self, uint64_t at)
{
    struct hf_place place = {.tensor = at / self->elems, .elem = at % self->elems};
    place.together = self->elems - place.elem;
    if (self->order == HF_ORDER_BY_HEADS) {
        uint64_t matrix = at / (self->heads * self->head_elems);
        uint64_t head = at / self->head_elems % self->heads, inside = at % self->head_elems;
        place.elem = (3 * head + matrix) * self->head_elems + inside;
        place.together = self->head_elems - inside;
    }
    if (self->order == HF_ORDER_PAIRED) {
        uint64_t row = at / self->columns, inside = at % self->columns, first = row % self->rows;
        place.elem = (row - first + hf_layout_turned(self, first)) * self->columns + inside;
        place.together = self->columns - inside;
    }
    return place;
}

struct hf_stored_range hf_layout_range(const hf_layout *self, const model_tensor *tensor)
{
    uint64_t begin = tensor->row_begin * tensor->columns;
    uint64_t end = begin + tensor->rows * tensor->columns;
    uint64_t first = begin / self->elems;
    return (struct hf_stored_range){first, size_div_up(end, self->elems) - first};
}

bool hf_layout_begins(const hf_layout *self, const model_tensor *tensor, uint64_t idx)
{
    return idx * self->elems >= tensor->row_begin * tensor->columns;
}
