/* See hf_fixture.h. */
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "format/hf_checkpoint.h"
#include "hf/layout.h"
#include "tests/hf/hf_fixture.h"
#include "tests/unit.h"

char hf_dir[256];

enum { ROWS_MAX = 512, PATHS = 8 };

int hf_fixture_setup(void **state)
{
    snprintf(hf_dir, sizeof hf_dir, "/tmp/sluice-hf-XXXXXX");
    return mkdtemp(hf_dir) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *at)
{
    return remove(path);
}

int hf_fixture_teardown(void **state)
{
    return nftw(hf_dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *hf_fixture_path(const char *name)
{
    static char paths[PATHS][1024];
    static uint32_t next;
    char *out = paths[next++ % PATHS];
    snprintf(out, sizeof paths[0], "%s/%s", hf_dir, name);
    return out;
}

float hf_fixture_value(const char *stored_name, uint64_t idx)
{
    uint64_t draw = XXH3_64bits_withSeed(stored_name, strlen(stored_name), idx);
    int steps = (int)(draw % 255) - 127; /* 7 bits and a sign */
    return (float)steps / 1024.0f;
}

hf_fixture_shape hf_fixture_shape_of(const job *asked)
{
    const model_spec *from = &asked->model;
    return (hf_fixture_shape){.family = from->family,
                              .layers = from->num_layers,
                              .hidden = from->hidden_size,
                              .heads = from->num_heads,
                              .kv_heads = from->num_kv_heads,
                              .ffn = from->ffn_size,
                              .vocab = from->vocab_size,
                              .positions = from->seq_length,
                              .tied = from->tie_embeddings,
                              .max_part_bytes = from->max_part_bytes,
                              .type = asked->type};
}

model *hf_fixture_model(const hf_fixture_shape *shape)
{
    const model_spec spec = {
        .family = shape->family,
        .num_layers = shape->layers,
        .hidden_size = shape->hidden,
        .num_heads = shape->heads,
        .num_kv_heads = shape->kv_heads,
        .ffn_size = shape->ffn,
        .vocab_size = shape->vocab,
        .seq_length = shape->positions,
        .tie_embeddings = shape->tied,
        .rope_theta = 10000,
        .norm_epsilon = 1e-5,
        .init_std = 0.02,
        .max_part_bytes = shape->max_part_bytes,
        .expert_count = shape->experts,
        .experts_per_token = shape->experts ? 2 : 0,
        .shared_ffn_size = shape->family == MODEL_QWEN2_MOE ? shape->ffn + 6 : 0,
        .experts_per_unit = shape->experts_per_unit,
    };
    model *net = NULL;
    assert_ok(model_create(&spec, shape->type, 1, &net));
    return net;
}

void hf_fixture_name(const hf_fixture_shape *shape, const hf_fixture_form *form, const char *name,
                     char out[256])
{
    bool is_head = strncmp(name, "lm_head.", 8) == 0 || strncmp(name, "embed_out.", 10) == 0;
    bool adds = shape->family == MODEL_GPT2 && !form->is_bare && !is_head;
    bool drops =
        shape->family != MODEL_GPT2 && shape->family != MODEL_BERT && form->is_bare && !is_head;
    snprintf(out, 256, "%s%s", adds ? "transformer." : "",
             name + (drops ? strcspn(name, ".") + 1 : 0));
    char *norm = strstr(out, "LayerNorm.");
    if (shape->family == MODEL_BERT && form->is_bare && norm)
        strcpy(norm, strstr(norm, "bias") ? "LayerNorm.beta" : "LayerNorm.gamma");
    char *router = strstr(out, "mlp.gate.");
    if (shape->family == MODEL_MIXTRAL && !form->is_fused && router)
        strcpy(router, "block_sparse_moe.gate.weight");
}

static bool has_experts(const char *name)
{
    return strstr(name, ".mlp.experts.") != NULL;
}

/* The stored matrix that row `row` of a tensor of experts lies in. Returns the row there. */
static uint64_t expert_row(const hf_fixture_shape *shape, const hf_fixture_form *form,
                           const char *name, uint64_t row, char out[256])
{
    hf_fixture_name(shape, form, name, out);
    if (form->is_fused)
        return row;
    bool is_mixtral = shape->family == MODEL_MIXTRAL, is_down = strstr(name, "down_proj") != NULL;
    uint64_t each = is_down ? shape->hidden : 2 * shape->ffn, expert = row / each;
    bool is_up = !is_down && row % each >= shape->ffn;
    const char *qwen = is_down ? "down_proj" : is_up ? "up_proj" : "gate_proj";
    const char *mixtral = is_down ? "w2" : is_up ? "w3" : "w1";
    sprintf(strstr(out, "mlp."), "%s.experts.%llu.%s.weight",
            is_mixtral ? "block_sparse_moe" : "mlp", (unsigned long long)expert,
            is_mixtral ? mixtral : qwen);
    return row % each - (is_up ? shape->ffn : 0);
}

static void fill(void *target, enum dtype type, const char *name, uint64_t count)
{
    float *values = malloc(count * sizeof *values);
    for (uint64_t i = 0; i < count; i++)
        values[i] = hf_fixture_value(name, i);
    if (type == DTYPE_FP32)
        memcpy(target, values, count * sizeof *values);
    else
        dtype_convert(values, DTYPE_FP32, target, type, count);
    free(values);
}

struct listed {
    safetensors_row rows[ROWS_MAX];
    char names[ROWS_MAX][256];
    uint32_t count;
};

static void add(struct listed *list, enum dtype type, const char *name, uint32_t dims, uint64_t a,
                uint64_t b)
{
    assert_true(list->count < ROWS_MAX);
    safetensors_row *row = &list->rows[list->count];
    snprintf(list->names[list->count], sizeof list->names[0], "%s", name);
    *row = (safetensors_row){
        .name = list->names[list->count], .type = type, .dim_count = dims, .shape = {a, b}};
    list->count++;
}

/* Adds the matrices of all experts of a block. */
static void add_experts(struct listed *list, const hf_fixture_shape *shape,
                        const hf_fixture_form *form, const model_tensor *tensor)
{
    bool is_down = strstr(tensor->name, "down_proj") != NULL;
    uint64_t rows = is_down ? shape->hidden : shape->ffn;
    char name[256];
    if (form->is_fused) {
        expert_row(shape, form, tensor->name, 0, name);
        add(list, form->type, name, 3, shape->experts, is_down ? rows : 2 * rows);
        list->rows[list->count - 1].shape[2] = tensor->columns;
        return;
    }
    for (uint64_t row = 0; row < tensor->whole_rows; row += rows) {
        expert_row(shape, form, tensor->name, row, name);
        if (!form->left || strcmp(form->left, name) != 0)
            add(list, form->type, name, 2, rows, tensor->columns);
    }
}

static void write_file(const char *path, const struct listed *list, uint32_t begin, uint32_t end)
{
    safetensors_writer *writer;
    assert_ok(safetensors_create(path, list->rows + begin, end - begin, &writer));
    for (uint32_t i = begin; i < end; i++) {
        const safetensors_row *row = &list->rows[i];
        uint64_t count = 1;
        for (uint32_t d = 0; d < row->dim_count; d++)
            count *= row->shape[d];
        void *data = malloc(count * dtype_bytes(row->type));
        fill(data, row->type, row->name, count);
        assert_ok(safetensors_write(writer, i - begin, 0, count, data));
        free(data);
    }
    assert_ok(safetensors_finish(writer));
}

static void list_rows(const hf_fixture_shape *shape, const hf_fixture_form *form,
                      struct listed *list)
{
    hf_fixture_shape uncut = *shape;
    uncut.max_part_bytes = 0;
    uncut.experts_per_unit = shape->experts;
    model *net = hf_fixture_model(&uncut);
    char name[256];
    for (uint32_t u = 0; u < net->unit_count; u++)
        for (uint32_t i = 0; i < net->units[u].tensor_count; i++) {
            const model_tensor *tensor = &net->units[u].tensors[i];
            if (has_experts(tensor->name)) {
                add_experts(list, shape, form, tensor);
                continue;
            }
            const hf_layout layout = hf_layout_of(net, tensor, form->is_fused);
            hf_fixture_name(shape, form, tensor->name, name);
            if (!form->left || strcmp(form->left, name) != 0)
                add(list, form->type, name, layout.dim_count, layout.shape[0], layout.shape[1]);
        }
    model_destroy(net);
    if (form->added)
        add(list, form->type, form->added, 2, 2, 3);
    bool is_bert = shape->family == MODEL_BERT;
    if (form->has_extras && shape->tied)
        add(list, form->type, is_bert ? "cls.predictions.decoder.weight" : "lm_head.weight", 2,
            shape->vocab, shape->hidden);
    if (form->has_extras && is_bert) {
        add(list, form->type, "cls.predictions.decoder.bias", 1, shape->vocab, 1);
        add(list, form->type, "bert.pooler.dense.weight", 2, shape->hidden, shape->hidden);
        add(list, form->type, "bert.pooler.dense.bias", 1, shape->hidden, 1);
        add(list, form->type, "cls.seq_relationship.weight", 2, 2, shape->hidden);
        add(list, DTYPE_FP32, "bert.embeddings.position_ids", 2, 1, shape->positions);
    }
    for (uint64_t l = 0; form->has_extras && !is_bert && l < shape->layers; l++) {
        char text[128];
        snprintf(text, sizeof text,
                 shape->family == MODEL_GPT2       ? "h.%llu.attn.bias"
                 : shape->family == MODEL_GPT_NEOX ? "gpt_neox.layers.%llu.attention.masked_bias"
                                                   : "model.layers.%llu.self_attn.rotary_emb."
                                                     "inv_freq",
                 (unsigned long long)l);
        hf_fixture_name(shape, form, text, name);
        add(list, DTYPE_FP32, name, 1, 4, 1);
    }
}

void hf_fixture_write(const char *dir, const hf_fixture_shape *shape, const hf_fixture_form *form)
{
    static struct listed list;
    char path[1200], name[64], *index = malloc(ROWS_MAX * 400);
    list.count = 0;
    list_rows(shape, form, &list);
    assert_true(mkdir(dir, 0777) == 0 || access(dir, W_OK) == 0);
    uint32_t shards = form->shards ? form->shards : 1;
    int used = sprintf(index, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (uint32_t s = 0; s < shards; s++) {
        uint32_t begin = list.count * s / shards, end = list.count * (s + 1) / shards;
        snprintf(name, sizeof name, "model-%05u-of-%05u.safetensors", s + 1, shards);
        snprintf(path, sizeof path, "%s/%s", dir, form->shards ? name : "model.safetensors");
        write_file(path, &list, begin, end);
        for (uint32_t i = begin; i < end; i++)
            used +=
                sprintf(index + used, "%s\"%s\": \"%s\"", i ? ", " : "", list.rows[i].name, name);
    }
    sprintf(index + used, "}}");
    if (form->shards)
        hf_fixture_text(dir, "model.safetensors.index.json", index);
    free(index);
}

void hf_fixture_text(const char *dir, const char *name, const char *text)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

float hf_fixture_expected(const model *net, const hf_fixture_shape *shape,
                          const hf_fixture_form *form, uint32_t unit, uint64_t idx)
{
    const model_unit *of = &net->units[unit];
    for (uint32_t i = 0; i < of->tensor_count; i++) {
        const model_tensor *tensor = &of->tensors[i];
        if (idx < tensor->offset_elems ||
            idx >= tensor->offset_elems + tensor->rows * tensor->columns)
            continue;
        static char known[256], name[256]; /* of the element before, mostly */
        static bool turned, was_bare;
        uint64_t at = tensor->row_begin * tensor->columns + (idx - tensor->offset_elems);
        uint64_t row = at / tensor->columns, column = at % tensor->columns;
        if (has_experts(tensor->name)) {
            char matrix[256];
            row = expert_row(shape, form, tensor->name, row, matrix);
            return hf_fixture_value(matrix, row * tensor->columns + column);
        }
        if (strcmp(known, tensor->name) != 0 || was_bare != form->is_bare) {
            snprintf(known, sizeof known, "%s", tensor->name);
            was_bare = form->is_bare;
            hf_fixture_name(shape, form, tensor->name, name);
            /* Conv1D, said here once more and in other words. */
            turned = strstr(name, ".c_") && strstr(name, ".weight");
        }
        if (strstr(name, "query_key_value")) { /* [heads, 3, width of a head, columns] */
            uint64_t width = shape->hidden / shape->heads;
            if (tensor->whole_rows == 1 || tensor->columns == 1) /* a bias */
                row = at, column = 0;
            uint64_t columns = strstr(name, ".bias") ? 1 : tensor->columns;
            uint64_t head = row % shape->hidden / width, third = row / shape->hidden;
            return hf_fixture_value(name,
                                    ((head * 3 + third) * width + row % width) * columns + column);
        }
        return hf_fixture_value(name, turned ? column * tensor->whole_rows + row : at);
    }
    return 0;
}

void hf_fixture_config(const char *dir, const hf_fixture_shape *shape)
{
    char text[1024];
    unsigned long long layers = shape->layers, hidden = shape->hidden, heads = shape->heads;
    unsigned long long kv_heads = shape->kv_heads, ffn = shape->ffn, vocab = shape->vocab;
    unsigned long long positions = shape->positions;
    const char *tied = shape->tied ? "true" : "false";
    if (shape->family == MODEL_GPT2)
        snprintf(
            text, sizeof text,
            "{\"model_type\": \"gpt2\", \"n_layer\": %llu, \"n_embd\": %llu, \"n_head\": %llu, "
            "\"n_inner\": %llu, \"n_positions\": %llu, \"vocab_size\": %llu, "
            "\"tie_word_embeddings\": %s, \"torch_dtype\": \"float64\"}\n",
            layers, hidden, heads, ffn, positions, vocab, tied);
    else if (shape->family == MODEL_BERT)
        snprintf(text, sizeof text,
                 "{\"model_type\": \"bert\", \"num_hidden_layers\": %llu, \"hidden_size\": %llu, "
                 "\"num_attention_heads\": %llu, \"intermediate_size\": %llu, "
                 "\"max_position_embeddings\": %llu, \"vocab_size\": %llu, "
                 "\"hidden_dropout_prob\": 0.0, \"attention_probs_dropout_prob\": 0.0}\n",
                 layers, hidden, heads, ffn, positions, vocab);
    else if (shape->family == MODEL_OPT)
        snprintf(text, sizeof text,
                 "{\"model_type\": \"opt\", \"num_hidden_layers\": %llu, \"hidden_size\": %llu, "
                 "\"num_attention_heads\": %llu, \"ffn_dim\": %llu, \"max_position_embeddings\": "
                 "%llu, \"vocab_size\": %llu, \"tie_word_embeddings\": %s}\n",
                 layers, hidden, heads, ffn, positions, vocab, tied);
    else if (shape->family == MODEL_GPT_NEOX)
        snprintf(text, sizeof text,
                 "{\"model_type\": \"gpt_neox\", \"num_hidden_layers\": %llu, \"hidden_size\": "
                 "%llu, \"num_attention_heads\": %llu, \"intermediate_size\": %llu, "
                 "\"max_position_embeddings\": %llu, \"vocab_size\": %llu, "
                 "\"tie_word_embeddings\": %s}\n",
                 layers, hidden, heads, ffn, positions, vocab, tied);
    else if (shape->experts > 0)
        snprintf(text, sizeof text,
                 "{\"model_type\": \"%s\", \"num_hidden_layers\": %llu, \"hidden_size\": %llu, "
                 "\"num_attention_heads\": %llu, \"num_key_value_heads\": %llu, "
                 "\"intermediate_size\": %llu, \"moe_intermediate_size\": %llu, "
                 "\"shared_expert_intermediate_size\": %llu, \"num_experts\": %llu, "
                 "\"num_experts_per_tok\": 2, \"qkv_bias\": false, "
                 "\"max_position_embeddings\": %llu, \"vocab_size\": %llu, "
                 "\"tie_word_embeddings\": %s}\n",
                 model_family_name(shape->family), layers, hidden, heads, kv_heads, ffn, ffn,
                 ffn + 6, (unsigned long long)shape->experts, positions, vocab, tied);
    else
        snprintf(text, sizeof text,
                 "{\"model_type\": \"llama\", \"num_hidden_layers\": %llu, \"hidden_size\": %llu, "
                 "\"num_attention_heads\": %llu, \"num_key_value_heads\": %llu, "
                 "\"intermediate_size\": %llu, \"max_position_embeddings\": %llu, "
                 "\"vocab_size\": %llu, \"tie_word_embeddings\": %s}\n",
                 layers, hidden, heads, kv_heads, ffn, positions, vocab, tied);
    hf_fixture_text(dir, "config.json", text);
}

static void compare_tensor(hf_checkpoint *files, const safetensors_row *row)
{
    hf_tensor at;
    uint64_t count = 1;
    if (!hf_find(files, row->name, &at))
        fail_msg("no tensor %s", row->name);
    assert_int_equal(at.tensor->type, row->type);
    assert_int_equal(at.tensor->dim_count, row->dim_count);
    for (uint32_t d = 0; d < row->dim_count; d++) {
        assert_int_equal(at.tensor->shape[d], row->shape[d]);
        count *= row->shape[d];
    }
    void *wanted = malloc(at.tensor->size_bytes), *got = malloc(at.tensor->size_bytes);
    fill(wanted, row->type, row->name, count);
    assert_ok(hf_read(files, &at, 0, at.tensor->size_bytes, got));
    if (memcmp(wanted, got, at.tensor->size_bytes) != 0)
        fail_msg("tensor %s differs", row->name);
    free(wanted);
    free(got);
}

void hf_fixture_compare(const char *dir, const hf_fixture_shape *shape, const hf_fixture_form *form)
{
    static struct listed list;
    hf_checkpoint *files;
    list.count = 0;
    list_rows(shape, form, &list);
    assert_ok(hf_open(dir, &files));
    assert_int_equal(hf_count(files), list.count);
    for (uint32_t i = 0; i < list.count; i++)
        compare_tensor(files, &list.rows[i]);
    hf_close(files);
}
