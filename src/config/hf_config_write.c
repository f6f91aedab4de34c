/* Writes the config.json of a model: the way back of hf_config.c. Each model_type of the model's
 * family is tried in turn: the rows of its keys are written, and the document is read again. The
 * first type whose document means this model is taken. So no code says what a type cannot say; the
 * tables do (hf_config_families.c). Pure. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/text.h"
#include "config/hf_config_internal.h"

/* ---- the document ---- */

/* Fills in what a job may leave to defaults. A factor that a job lacks is 1. */
static void fill_defaults(model_spec *m)
{
    double *const factors[] = {&m->embedding_multiplier, &m->residual_multiplier,
                               &m->logits_scaling, &m->routed_scaling};
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++)
        *factors[i] = *factors[i] != 0 ? *factors[i] : 1;
    m->head_dim = m->head_dim ? m->head_dim : m->hidden_size / m->num_heads;
    m->value_head_dim = m->value_head_dim ? m->value_head_dim : m->head_dim;
    if (m->attention_multiplier == 0)
        m->attention_multiplier = 1 / sqrt((double)m->head_dim);
    m->position_count = m->position_count ? m->position_count : m->seq_length;
    m->type_count = m->type_count ? m->type_count : 2;
    m->expert_ffn_size = m->expert_ffn_size ? m->expert_ffn_size : m->ffn_size;
    m->swiglu_limit = m->swiglu_limit != 0 ? m->swiglu_limit : 7;
    if (m->expert_groups <= 1)
        m->expert_groups = m->groups_per_token = 1;
}

static json_t *whole(uint64_t number)
{
    return json_integer((json_int_t)number);
}

/* Keys of all types. The last three are null, because the defaults are ids in other
 * vocabularies. */
static int write_common(json_t *config, const model_spec *m, const hfi_family *of)
{
    TRY(hfi_add(config, "architectures", json_pack("[s]", of->class_name)));
    TRY(hfi_add(config, "model_type", json_string(of->name)));
    TRY(hfi_add(config, "vocab_size", whole(m->vocab_size)));
    TRY(hfi_add(config, "initializer_range", json_real(m->init_std)));
    TRY(hfi_add(config, "use_cache", json_true()));
    TRY(hfi_add(config, "bos_token_id", json_null()));
    TRY(hfi_add(config, "eos_token_id", json_null()));
    return hfi_add(config, "pad_token_id", json_null());
}

static int write_heads(json_t *config, const model_spec *m, const hfi_family *of)
{
    TRY(hfi_add(config, "num_key_value_heads", whole(m->num_kv_heads)));
    if (!of->has_latents)
        return of->has_plain_heads ? 0 : hfi_add(config, "head_dim", whole(m->head_dim));
    TRY(hfi_add(config, "q_lora_rank", m->q_latent_size ? whole(m->q_latent_size) : json_null()));
    TRY(hfi_add(config, "qk_nope_head_dim", whole(m->head_dim - m->rope_head_dim)));
    TRY(hfi_add(config, "head_dim", whole(m->rope_head_dim))); /* they call the rotary part so */
    return hfi_add(config, "rope_interleave", json_boolean(!m->rope_halves));
}

/* Experts of a family whose first blocks may have none. */
static int write_late_experts(json_t *config, const job *from, const hfi_family *of)
{
    const model_spec *m = &from->model;
    uint64_t dense = m->expert_count ? m->dense_blocks : m->num_layers;
    TRY(hfi_add(config, "first_k_dense_replace", whole(dense)));
    if (m->expert_count == 0)
        return 0;
    for (const hfi_key *row = NULL; (row = hfi_next_late_key(of, row));)
        TRY(hfi_write_key(config, from, row));
    TRY(hfi_add(config, "n_shared_experts", whole(m->shared_ffn_size / m->expert_ffn_size)));
    if (of->has_softmax)
        TRY(hfi_add(config, "topk_method",
                    json_string(m->expert_groups > 1 ? "group_limited_greedy" : "greedy")));
    TRY(hfi_add(config, "n_group", whole(m->expert_groups)));
    return hfi_add(config, "topk_group", whole(m->groups_per_token));
}

/* Adds all keys of the type. */
static int write_type(json_t *config, const job *from, const hfi_family *of)
{
    const model_spec *m = &from->model;
    TRY(write_common(config, m, of));
    if (!of->has_table)
        TRY(write_heads(config, m, of));
    for (const hfi_key *row = NULL; (row = hfi_next_key(of, row));)
        TRY(hfi_write_key(config, from, row));
    if (of->has_late_experts)
        TRY(write_late_experts(config, from, of));
    if (of->has_table)
        return 0;
    if (of->has_nope && m->nope_interval != 0)
        TRY(hfi_add(config, "no_rope_layer_interval", whole(m->nope_interval)));
    TRY(hfi_write_window(config, m, &of->windows));
    return hfi_write_rope(config, m, of);
}

/* ---- what a document means ---- */

/* Fills the model of `out` from a document, with the sequences of job `from`. ERR_CONFIG if it
 * means no model that is built. */
static int read_again(json_t *config, const job *from, job *out)
{
    hfi_config self = {.file = HFI_NEW_FILE, .doc = config, .block = json_object()};
    configi_reader reader = {.file = HFI_NEW_FILE, .doc = json_object()};
    int rc = self.block && reader.doc ? hfi_fill_block(&self) : -ENOMEM;
    if (rc == 0)
        rc = hfi_put(&self, "seq_length", whole(from->model.seq_length));
    if (rc == 0)
        rc = configi_check(&reader, "model", self.block);
    if (rc == 0)
        rc = configi_put(HFI_NEW_FILE, reader.doc, "model", json_incref(self.block));
    if (rc == 0)
        rc = configi_fill_members(&reader, out);
    if (rc == 0)
        rc = configi_fill_model(&reader, out);
    json_decref(self.block);
    json_decref(reader.doc);
    return rc;
}

/* Brings a model into a form that is equal for models that compute the same. Leaves out what
 * config.json does not say, and what only training uses. */
static void simplify(model_spec *m)
{
    bool is_plain = m->rope.scaling == ROPE_PLAIN, is_windowed = false;
    fill_defaults(m);
    m->init_std = m->balance_coef = m->router_z_coef = 0;
    m->max_part_bytes = m->experts_per_unit = m->expert_ranks = 0;
    if (m->expert_count > 0 && m->dense_blocks == 0)
        m->ffn_size = 0; /* no block has such a part */
    m->dense_blocks = size_min(m->dense_blocks, m->num_layers);
    if (m->expert_count == 0 || m->dense_blocks == m->num_layers) {
        m->expert_count = m->experts_per_token = m->expert_ffn_size = m->shared_ffn_size = 0;
        m->expert_groups = m->groups_per_token = 0;
        m->routed_scaling = 0;
        m->normalizes_experts = false;
        m->sigmoid_scores = false;
    }
    if (m->nope_interval > m->num_layers)
        m->nope_interval = 0;
    for (uint64_t i = 0; i < m->num_layers; i++)
        is_windowed = is_windowed || hfi_has_window(m, i);
    if (!is_windowed)
        m->window = 0;
    if (!is_windowed || (is_plain && m->window_rope_theta == m->rope_theta))
        m->window_rope_theta = 0;
}

static bool is_same_value(const configi_key *row, const job *a, const job *b)
{
    /* Some types say these as a root or an inverse. */
    static const size_t rounded[] = {offsetof(job, model.embedding_multiplier),
                                     offsetof(job, model.attention_multiplier),
                                     offsetof(job, model.logits_scaling)};
    const void *one = (const char *)a + row->offset, *other = (const char *)b + row->offset;
    if (row->type != CONFIGI_FLOAT)
        return memcmp(one, other, row->member_bytes) == 0;
    double x = *(const double *)one, y = *(const double *)other, tolerance = 0;
    for (size_t i = 0; i < sizeof rounded / sizeof rounded[0]; i++)
        tolerance = row->offset == rounded[i] ? 1e-6 : tolerance;
    return fabs(x - y) <= tolerance * fabs(x);
}

/* Returns the key of the first value that differs in two models of a family; NULL: none does. */
static const char *find_difference(const job *a, const job *b)
{
    const rope_form *one = &a->model.rope, *other = &b->model.rope;
    const size_t bytes = one->pair_count * sizeof one->short_factors[0];
    const configi_key *row;
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++)
        if (configi_relate(row->path, "model") == CONFIGI_ABOVE && row->member_bytes > 0 &&
            row->type != CONFIGI_STRING && !is_same_value(row, a, b))
            return row->path;
    if (one->pair_count != other->pair_count ||
        memcmp(one->short_factors, other->short_factors, bytes) != 0 ||
        memcmp(one->long_factors, other->long_factors, bytes) != 0)
        return "model.rope_scaling";
    for (uint64_t i = 0; i < a->model.num_layers; i++)
        if (hfi_has_window(&a->model, i) != hfi_has_window(&b->model, i))
            return "model.window_pattern";
    return NULL;
}

/* ---- the choice ---- */

/* Makes the document of a type. If it does not mean the model, *config stays NULL, and `lacks`
 * gets the type and the first key that it cannot express. is, was: room for two jobs. */
static int try_type(const job *from, const hfi_family *of, job *is, job *was, json_t **config,
                    char lacks[ERR_TEXT_BYTES])
{
    const char *difference = NULL;
    json_t *made = json_object();
    memset(was, 0, sizeof *was);
    is->model = from->model;
    fill_defaults(&is->model);
    for (const hfi_key *row = NULL; (row = hfi_next_key(of, row));)
        if (hfi_is_own_activation(row, is->model.activation))
            is->model.activation = ACTIVATION_OF_FAMILY;
    int rc = made ? write_type(made, is, of) : -ENOMEM;
    if (rc == 0)
        rc = read_again(made, from, was);
    if (rc == 0) {
        bool has_width = is->model.window == 0 && was->model.window == from->model.seq_length;
        if (has_width)
            was->model.window = 0; /* the type needs one, and this one changes nothing */
        simplify(&is->model);
        simplify(&was->model);
        if (of->has_table)
            is->model.rope_theta = was->model.rope_theta; /* it is not used */
        difference = find_difference(is, was);
    }
    if (rc == 0 && !difference) {
        *config = made;
        return 0;
    }
    json_decref(made);
    text_add(lacks, ERR_TEXT_BYTES, difference ? "%s%s %s" : "%s%s (%s)", lacks[0] ? ", " : "",
             of->name, difference ? difference : err_text());
    return rc == -ENOMEM ? rc : 0;
}

/* Finds the type that can say the model. */
static int make_config(const job *from, json_t **config)
{
    char lacks[ERR_TEXT_BYTES] = "";
    const hfi_family *of;
    job *room = mem_alloc(2, sizeof *room, "models of config.json");
    int rc = room ? 0 : -ENOMEM;
    *config = NULL;
    for (uint32_t i = 0; rc == 0 && !*config && (of = hfi_family_at(i)); i++)
        if (strcmp(of->family, model_family_name(from->model.family)) == 0)
            rc = try_type(from, of, &room[0], &room[1], config, lacks);
    mem_free(room);
    if (rc == 0 && !*config)
        rc = err_set(ERR_CONFIG,
                     "no config.json of Hugging Face can describe this model, so the run cannot be "
                     "exported; the first key that each model_type cannot express: %s",
                     lacks);
    return rc;
}

int config_write_hf(const job *from, const char *type, const struct json_t *quantization,
                    char **text)
{
    json_t *config;
    *text = NULL;
    int rc = make_config(from, &config);
    if (rc == 0)
        rc = hfi_add(config, "torch_dtype", json_string(type));
    if (rc == 0 && quantization)
        rc = hfi_add(config, "quantization_config", json_deep_copy(quantization));
    if (rc == 0)
        rc = configi_dump(config, text);
    json_decref(config);
    return rc == -ENOMEM ? err_set(rc, "no memory for %s", HFI_NEW_FILE) : rc;
}
