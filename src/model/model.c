/* Models as lists of units and stages: checks, create, destroy, FLOPs of a step, and which file
 * runs a stage. See model.h. Only model_create allocates. One thread. */
#include "model/model.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "kernels/dropout_mask.h"
#include "model/model_internal.h"

enum {
    HEAD_DIM_MAX = 256,
    LAYERS_MAX = 1 << 16,
    CHUNK_ROWS_MIN = 64,
    CHUNK_ROWS_SMALL = 1024, /* up to here a chunk may have C rows */
    CHUNK_ROWS_STEP = 16,
};

static_assert(MODELI_BLOCK_SITES * (LAYERS_MAX + 1) <= 1 << DROPOUT_SITE_BITS,
              "every dropout has a site");

/* Far below 2^63: sums of a few such terms, and their bytes, cannot overflow. */
#define ELEMS_MAX 0x1p56

/* Checks that "model.<key>" lies in [low, high]. */
static int check_range(const char *key, uint64_t value, uint64_t low, uint64_t high)
{
    if (value >= low && value <= high)
        return 0;
    return err_set(ERR_CONFIG, "model.%s is %llu, but must lie between %llu and %llu", key,
                   (unsigned long long)value, (unsigned long long)low, (unsigned long long)high);
}

static int check_heads(const model_spec *spec)
{
    unsigned long long channels = spec->hidden_size, heads = spec->num_heads;
    unsigned long long kv_heads = spec->num_kv_heads, head_dim = spec->head_dim;
    bool is_given = head_dim != 0 && head_dim * heads != channels;
    if (!is_given && channels % heads != 0)
        return err_set(ERR_CONFIG,
                       "model.num_heads is %llu, which does not divide model.hidden_size %llu",
                       heads, channels);
    const modeli_family *family = modeli_family_of(spec->family);
    bool has_rope = modeli_has_rope(spec->family);
    if (is_given && family->has_plain_heads)
        return err_set(ERR_CONFIG,
                       "model.head_dim is %llu, but heads of the %s family are model.hidden_size "
                       "%llu / model.num_heads %llu wide: leave it out",
                       head_dim, family->name, channels, heads);
    if (!is_given)
        head_dim = channels / heads;
    if (heads % kv_heads != 0)
        return err_set(ERR_CONFIG,
                       "model.num_kv_heads is %llu, which does not divide model.num_heads %llu",
                       kv_heads, heads);
    if (family->has_plain_heads && kv_heads != heads)
        return err_set(ERR_CONFIG,
                       "model.num_kv_heads is %llu, but the %s family has no grouped heads: leave "
                       "it out or set it to model.num_heads %llu",
                       kv_heads, family->name, heads);
    if (is_given && (head_dim > HEAD_DIM_MAX || head_dim % 2 != 0))
        return err_set(ERR_CONFIG,
                       "model.head_dim is %llu, but heads must be even, for rotary positions turn "
                       "pairs, and at most %d",
                       head_dim, HEAD_DIM_MAX);
    if (head_dim > HEAD_DIM_MAX)
        return err_set(ERR_CONFIG,
                       "model.hidden_size %llu / model.num_heads %llu gives heads of %llu, but the "
                       "largest supported is %d: use at least %llu heads",
                       channels, heads, head_dim, HEAD_DIM_MAX,
                       (unsigned long long)size_div_up(channels, HEAD_DIM_MAX));
    if (has_rope && head_dim % 2 != 0)
        return err_set(ERR_CONFIG,
                       "model.hidden_size %llu / model.num_heads %llu gives heads of %llu, but "
                       "rotary positions turn pairs: it must be even",
                       channels, heads, head_dim);
    return 0;
}

static int check_dropout(const char *name, double probability)
{
    if (probability >= 0 && (float)probability < 1)
        return 0;
    return err_set(ERR_CONFIG, "model.%s_dropout is %g, but must be at least 0 and below 1", name,
                   probability);
}

/* Checks windows and soft caps. */
static int check_attention(const model_spec *spec)
{
    double theta = spec->window_rope_theta;
    double caps[2] = {spec->attention_soft_cap, spec->logits_soft_cap};
    const char *pattern = spec->window_pattern;
    if (memchr(pattern, 0, MODEL_PATTERN_BYTES) == NULL || strspn(pattern, "wf") != strlen(pattern))
        return err_set(ERR_CONFIG, "model.window_pattern has other letters than w and f");
    if (spec->window != 0 && model_is_bidirectional(spec->family))
        return err_set(ERR_CONFIG, "model.window is given, but the %s family attends to both sides",
                       model_family_name(spec->family));
    if (theta != 0 && !(modeli_has_rope(spec->family) && theta > 1 && isfinite(theta)))
        return err_set(ERR_CONFIG,
                       "model.window_rope_theta is %g, but must be a number above 1, of a family "
                       "with rotary positions",
                       theta);
    for (int i = 0; i < 2; i++)
        if (!(caps[i] >= 0 && caps[i] < 1e30))
            return err_set(ERR_CONFIG, "model.%s is %g, but must lie between 0 and 1e30",
                           i == 0 ? "attention_soft_cap" : "logits_soft_cap", caps[i]);
    return 0;
}

/* Checks the settings that only some families allow. */
static int check_variant(const model_spec *spec)
{
    TRY(check_dropout("hidden", spec->hidden_dropout));
    TRY(check_dropout("embedding", spec->embedding_dropout));
    TRY(check_dropout("attention", spec->attention_dropout));
    const struct {
        const char *key;
        bool is_given;
        enum modeli_when option;
    } options[] = {
        {"qk_norm", spec->qk_norm, MODELI_IF_QK_NORM},
        {"attention_sinks", spec->attention_sinks, MODELI_IF_SINKS},
        {"q_latent_size", spec->q_latent_size != 0, MODELI_IF_Q_LATENT},
        {"out_bias", spec->out_bias, MODELI_IF_OUT_BIAS},
        {"mlp_bias", spec->mlp_bias, MODELI_IF_MLP_BIAS},
        {"residual_multiplier", spec->residual_multiplier != 0, MODELI_IF_SCALED},
        {"parallel_residual", spec->parallel_residual, MODELI_IF_PARALLEL},
        {"scoring_func", spec->sigmoid_scores, MODELI_IF_SIGMOID},
        {"n_group", spec->expert_groups != 0, MODELI_IF_SIGMOID},
        {"first_k_dense_replace", spec->dense_blocks != 0, MODELI_IF_SIGMOID},
    };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (options[i].is_given && !modeli_has_option(spec->family, options[i].option))
            return err_set(ERR_CONFIG,
                           "model.%s is given, but the %s family has none: leave it out",
                           options[i].key, model_family_name(spec->family));
    bool is_gated = activation_is_gated(modeli_family_of(spec->family)->activation);
    if ((unsigned)spec->activation >= ACTIVATION_NAME_COUNT ||
        spec->activation == (is_gated ? ACTIVATION_NAMED_RELU : ACTIVATION_NAMED_SILU))
        return err_set(ERR_CONFIG, "model.activation is %s, which the %s family does not have",
                       activation_name(spec->activation), model_family_name(spec->family));
    if (!modeli_has_rope(spec->family) &&
        (spec->rope.scaling != ROPE_PLAIN || spec->nope_interval != 0))
        return err_set(ERR_CONFIG, "model.%s is given, but the %s family has none: leave it out",
                       spec->nope_interval != 0 ? "nope_interval" : "rope_scaling",
                       model_family_name(spec->family));
    if (modeli_has_table(spec->family, MODELI_POSITIONS) && spec->position_count < spec->seq_length)
        return err_set(
            ERR_CONFIG, "model.position_count is %llu, which is below model.seq_length %llu",
            (unsigned long long)spec->position_count, (unsigned long long)spec->seq_length);
    return 0;
}

/* Checks what the tables of rotary positions are made from. The spec is complete. */
static int check_rope(const model_spec *spec)
{
    const rope_form *form = &spec->rope;
    double low = form->low_freq_factor, high = form->high_freq_factor;
    double share = spec->partial_rotary_factor;
    if (!(share >= 0 && share <= 1) || modeli_rotated(spec) < 2 || modeli_rotated(spec) % 2 != 0)
        return err_set(ERR_CONFIG,
                       "model.partial_rotary_factor is %g, but of the %llu elements of a head it "
                       "must leave an even number to turn",
                       share, (unsigned long long)spec->head_dim);
    if ((unsigned)form->scaling >= ROPE_SCALING_COUNT)
        return err_set(ERR_CONFIG, "model.rope_scaling.type is number %d, which is none",
                       (int)form->scaling);
    if (form->scaling == ROPE_PLAIN)
        return 0;
    if (!(form->factor > 0 && isfinite(form->factor)))
        return err_set(ERR_CONFIG, "model.rope_scaling.factor is %g, but must be a number above 0",
                       form->factor);
    if (form->scaling != ROPE_LINEAR && form->original_positions == 0)
        return err_set(ERR_CONFIG, "model.rope_scaling.original_max_position_embeddings is 0, but "
                                   "must be above 0");
    if (form->scaling == ROPE_LONGROPE && form->attention_factor == 0 &&
        form->original_positions < 2)
        return err_set(ERR_CONFIG, "model.rope_scaling.original_max_position_embeddings is 1, but "
                                   "longrope divides by its logarithm: give at least 2, or "
                                   "attention_factor");
    if (form->scaling == ROPE_YARN && !(spec->rope_theta > 1))
        return err_set(ERR_CONFIG,
                       "model.rope_theta is %g, but yarn divides by its logarithm: it must be "
                       "above 1",
                       spec->rope_theta);
    if (form->scaling == ROPE_LLAMA3 && !(low > 0 && high > low && isfinite(high)))
        return err_set(ERR_CONFIG,
                       "model.rope_scaling: low_freq_factor %g must lie above 0, and "
                       "high_freq_factor %g above it",
                       low, high);
    if (form->scaling == ROPE_LONGROPE && form->pair_count != modeli_rotated(spec) / 2)
        return err_set(ERR_CONFIG,
                       "model.rope_scaling: short_factor and long_factor have %u numbers, but "
                       "%llu pairs of a head's elements are turned",
                       form->pair_count, (unsigned long long)modeli_rotated(spec) / 2);
    return 0;
}

/* Refuses a number of elements (a product of sizes, as double) that 64-bit arithmetic cannot
 * hold. */
static int check_elems(const char *what, double elems)
{
    if (elems <= ELEMS_MAX)
        return 0;
    return err_set(ERR_CONFIG,
                   "the model's sizes overflow: %s would have %.3g elements, at most %.3g are "
                   "possible; check the keys of the model block and train_micro_batch_size_per_gpu",
                   what, elems, ELEMS_MAX);
}

static int check_sizes(const model_spec *spec, uint64_t micro_batch)
{
    double channels = (double)spec->hidden_size, ffn = (double)spec->ffn_size;
    double vocab = (double)spec->vocab_size, layers = (double)spec->num_layers;
    double rows = (double)micro_batch * (double)spec->seq_length;
    double wide = fmax(channels, (double)spec->num_heads * (double)spec->head_dim); /* or 0 */
    double experts = (double)spec->expert_count * (3 * (double)spec->expert_ffn_size + 3);
    double shared = 3 * (double)spec->shared_ffn_size;
    double latents = (double)spec->q_latent_size + (double)spec->kv_latent_size + HEAD_DIM_MAX;
    wide = fmax(wide, (double)spec->num_heads * (double)spec->value_head_dim);
    double block = channels * (4 * wide + 3 * ffn + experts + shared + 16) + 4 * wide +
                   (spec->kv_latent_size ? latents * (channels + 2 * wide) : 0);
    double widest = fmax(16 * wide + 4 * ffn + 4 * shared + 16 * (double)spec->expert_count,
                         (double)spec->num_heads);
    double positions =
        fmax((double)spec->seq_length, (double)spec->position_count) + (double)spec->type_count;
    TRY(check_elems("the embedding", (vocab + positions) * channels));
    TRY(check_elems("the sum of all blocks", layers * block));
    TRY(check_elems("the activations of a block", rows * widest));
    return check_elems("a chunk of logits", fmin(rows, channels + CHUNK_ROWS_MIN) * vocab);
}

static int check_groups(const model_spec *spec)
{
    unsigned long long all = spec->expert_count, groups = spec->expert_groups;
    unsigned long long chosen = spec->groups_per_token, size = groups ? all / groups : all;
    if (groups == 0 && chosen == 0)
        return 0;
    if (groups == 0 || all % groups != 0 || size < (spec->sigmoid_scores ? 2 : 1))
        return err_set(ERR_CONFIG,
                       "model.n_group is %llu, but must divide model.num_experts %llu into groups "
                       "of at least %d",
                       groups, all, spec->sigmoid_scores ? 2 : 1);
    if (chosen < 1 || chosen > groups || chosen * size < spec->experts_per_token)
        return err_set(
            ERR_CONFIG,
            "model.topk_group is %llu, but must lie between 1 and model.n_group %llu, "
            "and so many groups of %llu must have model.num_experts_per_tok %llu experts",
            chosen, groups, size, (unsigned long long)spec->experts_per_token);
    return 0;
}

static int check_experts(const model_spec *spec)
{
    const char *family = model_family_name(spec->family);
    unsigned long long all = spec->expert_count, chosen = spec->experts_per_token;
    bool has_dense = modeli_family_of(spec->family)->dense != NULL;
    if (has_dense && spec->dense_blocks == spec->num_layers && all == 0 && chosen == 0 &&
        spec->shared_ffn_size == 0)
        return 0; /* no block has experts */
    if (modeli_family_of(spec->family)->experts == NULL) {
        if (all == 0 && chosen == 0 && spec->shared_ffn_size == 0)
            return 0;
        return err_set(ERR_CONFIG,
                       "model.num_experts is %llu, but the %s family has none: leave it, and what "
                       "else says something of experts, out",
                       all, family);
    }
    if (all < 1 || all > ROUTER_EXPERTS_MAX)
        return err_set(ERR_CONFIG,
                       "model.num_experts is %llu, but the %s family is a mixture of 1 to %d "
                       "experts",
                       all, family, ROUTER_EXPERTS_MAX);
    if (chosen < 1 || chosen > all)
        return err_set(ERR_CONFIG,
                       "model.num_experts_per_tok is %llu, but must lie between 1 and "
                       "model.num_experts %llu",
                       chosen, all);
    TRY(check_range("expert_ffn_size", spec->expert_ffn_size, 1, INT32_MAX));
    TRY(check_groups(spec));
    double scale = spec->routed_scaling;
    if (scale != 0 && !(scale >= 1e-6 && scale <= 1e6))
        return err_set(ERR_CONFIG,
                       "model.routed_scaling_factor is %g, but must lie between 1e-6 and 1e6",
                       scale);
    if (!(spec->balance_coef >= 0 && spec->balance_coef <= 1e3) ||
        !(spec->router_z_coef >= 0 && spec->router_z_coef <= 1e3))
        return err_set(ERR_CONFIG,
                       "model.router_aux_loss_coef is %g and model.router_z_loss_coef %g, but both "
                       "must lie between 0 and 1000",
                       spec->balance_coef, spec->router_z_coef);
    if (spec->balance_coef != 0 && (spec->sigmoid_scores || spec->expert_groups != 0))
        return err_set(ERR_CONFIG,
                       "model.router_aux_loss_coef is %g, but its loss is defined only for experts "
                       "that softmax alone chooses, without a correction and groups: leave it out",
                       spec->balance_coef);
    bool has_shared = modeli_has_shared(spec->family);
    if (has_shared)
        TRY(check_range("shared_ffn_size", spec->shared_ffn_size, 1, INT32_MAX));
    if (!has_shared && spec->shared_ffn_size != 0)
        return err_set(ERR_CONFIG,
                       "model.shared_ffn_size is %llu, but the %s family has no shared expert: "
                       "leave it out",
                       (unsigned long long)spec->shared_ffn_size, family);
    return 0;
}

/* Slots are numbered in 31 bits. */
static int check_slots(const model_spec *spec, uint64_t micro_batch)
{
    double slots =
        (double)micro_batch * (double)spec->seq_length * (double)spec->experts_per_token +
        64.0 * (double)spec->expert_count;
    if (slots < 0x1p31)
        return 0;
    return err_set(ERR_CONFIG,
                   "a micro-batch of %llu sequences of %llu tokens with %llu experts each has %.3g "
                   "choices, but at most 2^31 are possible: lower train_micro_batch_size_per_gpu",
                   (unsigned long long)micro_batch, (unsigned long long)spec->seq_length,
                   (unsigned long long)spec->experts_per_token, slots);
}

static int check_spec(const model_spec *spec, enum dtype type, uint64_t micro_batch)
{
    if ((unsigned)type >= DTYPE_COUNT)
        return err_set(ERR_CONFIG,
                       "the working type is number %d, which is none of fp32, bf16, fp16",
                       (int)type);
    TRY(check_range("num_layers", spec->num_layers, 1, LAYERS_MAX));
    TRY(check_range("hidden_size", spec->hidden_size, 1, INT32_MAX));
    TRY(check_range("num_heads", spec->num_heads, 1, spec->hidden_size));
    TRY(check_range("num_kv_heads", spec->num_kv_heads, 1, spec->num_heads));
    TRY(check_range("ffn_size", spec->ffn_size, 1, INT32_MAX));
    TRY(check_range("vocab_size", spec->vocab_size, 2, INT32_MAX));
    TRY(check_range("seq_length", spec->seq_length, 1, INT32_MAX));
    TRY(check_range("position_count", spec->position_count, 0, INT32_MAX));
    TRY(check_range("type_count", spec->type_count, 0, INT32_MAX));
    if (micro_batch < 1 || micro_batch > INT32_MAX)
        return err_set(ERR_CONFIG,
                       "train_micro_batch_size_per_gpu is %llu, but must lie between 1 and %d",
                       (unsigned long long)micro_batch, INT32_MAX);
    if (!(spec->norm_epsilon > 0 && spec->norm_epsilon < 1))
        return err_set(ERR_CONFIG, "model.norm_epsilon is %g, but must lie between 0 and 1",
                       spec->norm_epsilon);
    if (!(spec->init_std >= 0 && isfinite(spec->init_std)))
        return err_set(ERR_CONFIG, "model.init_std is %g, but must be a number not below 0",
                       spec->init_std);
    if (modeli_has_rope(spec->family) && !(spec->rope_theta > 1 && isfinite(spec->rope_theta)))
        return err_set(ERR_CONFIG, "model.rope_theta is %g, but must be a number above 1",
                       spec->rope_theta);
    TRY(check_heads(spec));
    TRY(modeli_check_latents(spec));
    TRY(check_variant(spec));
    TRY(check_attention(spec));
    TRY(check_experts(spec));
    TRY(check_slots(spec, micro_batch));
    return check_sizes(spec, micro_batch);
}

/* The logits of a chunk and their gradient take chunk * V * 6 bytes (bf16). The output matrix and
 * its fp32 gradient take C * V * 6. With C / 4 rows a chunk takes a quarter of what the head needs
 * anyway, and the additions to the fp32 gradient (8 V C bytes a chunk) stay small against the
 * chunk's products.
 *
 * Small models take up to C rows, because each chunk packs the matrix twice and adds to all of its
 * gradient. GPT-2 (C = 768, V = 50257, bf16, 2 cores with AMX) trains 1.02 to 1.05 times as fast
 * with 768 rows (221 MiB) as with 384, at 1024 and at 4096 rows in all. */
static uint64_t chunk_rows_of(uint64_t channels, uint64_t rows)
{
    uint64_t least = size_min(channels, CHUNK_ROWS_SMALL);
    uint64_t chunk = size_round_up(size_max(channels / 4, least), CHUNK_ROWS_STEP);
    return size_min(size_max(chunk, CHUNK_ROWS_MIN), rows);
}

static void list_stages(model *self)
{
    uint32_t last = self->stage_count - 1;
    for (uint32_t i = 0; i <= last; i++) {
        struct stage *stage = &self->stages[i];
        stage->kind = i == 0 ? STAGE_EMBED : i == last ? STAGE_HEAD : STAGE_BLOCK;
        stage->units[0] = modeli_stage_unit(self, i);
        stage->unit_count = 1;
        stage->is_cut = modeli_list_of(self, i)->part_count > 0;
    }
    if (self->spec.tie_embeddings && !self->stages[last].is_cut) {
        self->stages[last].units[1] = 0;
        self->stages[last].unit_count = 2;
    }
    for (uint32_t i = 1; i <= last; i++) {
        struct stage *stage = &self->stages[i];
        if (modeli_list_of(self, i)->is_split) {
            stage->units[1] = stage->units[0] + 1;
            stage->unit_count = 2;
        }
    }
}

static int check_window(const model_spec *spec, uint64_t micro_batch, const model_window *window)
{
    if (window->tokens > spec->seq_length || window->cache_positions > spec->seq_length)
        return err_set(ERR_CONFIG,
                       "a window of %llu tokens with %llu positions before was asked of a model of "
                       "%llu positions (model.seq_length)",
                       (unsigned long long)window->tokens,
                       (unsigned long long)window->cache_positions,
                       (unsigned long long)spec->seq_length);
    if (window->cache_positions > 0 && micro_batch != 1)
        return err_set(ERR_INTERNAL, "a model with a cache has a micro-batch of %llu, not 1",
                       (unsigned long long)micro_batch);
    return 0;
}

int model_create(const model_spec *spec, enum dtype type, uint64_t micro_batch, model **out)
{
    const model_window whole = {0};
    return model_create_window(spec, type, micro_batch, &whole, out);
}

/* Computes the sizes of activations, of the cache and of the tables. */
static void size_window(model *self, const model_window *window)
{
    uint64_t elem_bytes = dtype_bytes(self->type), rows = modeli_rows(self);
    self->boundary_bytes = rows * self->spec.hidden_size * elem_bytes;
    self->chunk_rows = chunk_rows_of(self->spec.hidden_size, rows);
    self->cache_positions = window->cache_positions;
    self->cache_bytes =
        self->spec.num_layers * (modeli_cache_bytes(self, false) + modeli_cache_bytes(self, true));
    if (modeli_has_rope(self->spec.family))
        self->constants_bytes = modeli_positions(self) * modeli_rotated(&self->spec) *
                                sizeof(float) * (self->spec.window_rope_theta != 0 ? 2 : 1);
}

/* True if the first `count` letters of the pattern say the same of all blocks. */
static bool is_enough(const model_spec *spec, size_t count)
{
    const char *pattern = spec->window_pattern;
    for (uint64_t block = count; block < spec->num_layers; block++)
        if (pattern[block % strlen(pattern)] != pattern[block % count])
            return false;
    return true;
}

/* Writes the shortest pattern that means the same, so that equal models have equal specs. */
static void shorten_pattern(model_spec *spec)
{
    size_t count = 1;
    if (spec->window_pattern[0] == '\0')
        strcpy(spec->window_pattern, "w");
    while (count < strlen(spec->window_pattern) && !is_enough(spec, count))
        count++;
    spec->window_pattern[count] = '\0';
}

int model_create_window(const model_spec *spec, enum dtype type, uint64_t micro_batch,
                        const model_window *window, model **out)
{
    *out = NULL;
    model_spec full = *spec;
    if ((unsigned)full.family >= MODEL_FAMILY_COUNT)
        return err_set(ERR_CONFIG, "model.family is number %d, which is none", (int)full.family);
    bool has_positions = modeli_has_table(full.family, MODELI_POSITIONS);
    if (full.num_kv_heads == 0)
        full.num_kv_heads = full.num_heads;
    if (full.ffn_size == 0 && has_positions && full.hidden_size <= INT32_MAX)
        full.ffn_size = 4 * full.hidden_size;
    if (!has_positions)
        full.position_count = 0;
    else if (full.position_count == 0)
        full.position_count = full.seq_length;
    if (!modeli_has_table(full.family, MODELI_TYPES))
        full.type_count = 0;
    else if (full.type_count == 0)
        full.type_count = 2;
    full.dense_blocks = size_min(full.dense_blocks, full.num_layers);
    if (full.expert_ffn_size == 0)
        full.expert_ffn_size = modeli_family_of(full.family)->experts ? full.ffn_size : 0;
    if (full.head_dim > HEAD_DIM_MAX || full.value_head_dim > HEAD_DIM_MAX)
        return err_set(ERR_CONFIG, "model.%s is %llu, but at most %d are possible",
                       full.head_dim > HEAD_DIM_MAX ? "head_dim" : "value_head_dim",
                       (unsigned long long)size_max(full.head_dim, full.value_head_dim),
                       HEAD_DIM_MAX);
    TRY(check_spec(&full, type, micro_batch));
    TRY(modeli_check_gate(&full));
    if (full.expert_count > 0 && full.experts_per_unit == 0)
        full.experts_per_unit = modeli_experts_per_unit(&full);
    shorten_pattern(&full);
    if (full.head_dim == 0)
        full.head_dim = full.hidden_size / full.num_heads;
    if (full.value_head_dim == 0)
        full.value_head_dim = full.head_dim;
    if (modeli_has_rope(full.family))
        TRY(check_rope(&full));
    TRY(modeli_check_learn(&full));
    TRY(check_window(&full, micro_batch, window));

    model *self = mem_alloc(1, sizeof *self, "model");
    if (self == NULL)
        return -ENOMEM;
    int rc = -ENOMEM;
    self->spec = full;
    self->type = type;
    self->micro_batch = micro_batch;
    self->tokens = window->tokens ? window->tokens : full.seq_length;
    const modeli_family *family = modeli_family_of(full.family);
    self->stage_count =
        (uint32_t)full.num_layers * (family->experts ? 2 : 1) + (family->last ? 3 : 2);
    self->products = mem_alloc(1, sizeof *self->products, "model.products");
    self->stages = mem_alloc(self->stage_count, sizeof *self->stages, "model.stages");
    if (self->products == NULL || self->stages == NULL)
        goto fail;
    modeli_list_layers(self);
    TRY_GOTO(rc, modeli_cut(self), fail);
    TRY_GOTO(rc, modeli_list_units(self), fail);
    modeli_find_places(self);
    size_window(self, window);
    list_stages(self);
    TRY_GOTO(rc, modeli_create_passes(self), fail);
    modeli_size_stages(self);
    *out = self;
    return 0;

fail:
    model_destroy(self);
    return rc;
}

void model_destroy(model *self)
{
    if (self == NULL)
        return;
    if (self->products != NULL) {
        modeli_release_products(self);
        mem_free(self->products->embed.parts);
        mem_free(self->products->block.parts);
        mem_free(self->products->dense.parts);
        mem_free(self->products->experts.parts);
        mem_free(self->products->last.parts);
        mem_free(self->products->head.parts);
        mem_free(self->products->origins);
    }
    for (uint32_t i = 0; i < self->unit_count; i++)
        mem_free(self->units[i].tensors);
    mem_free(self->units);
    mem_free(self->passes);
    mem_free(self->stages);
    mem_free(self->products);
    mem_free(self);
}

/* FLOPs for each element of a matrix and token: forward, gradient of the input, gradient of the
 * matrix. */
static double products_of(bool goes_back, bool learns)
{
    return 2 + (goes_back ? 2 : 0) + (learns ? 2 : 0);
}

/* Counts the elements that a token is multiplied by: of the experts only those of its own. */
static double matrix_elems(const modeli_list *list)
{
    double elems = 0;
    for (uint32_t i = 0; i < list->layer_count; i++) {
        const modeli_layer *layer = &list->layers[i];
        elems += layer->kind->has_experts
                     ? (double)modeli_choices_of(layer) * (double)modeli_expert_elems(layer)
                 : layer->kind->has_matrix ? (double)layer->matrix_rows * (double)layer->in
                                           : 0;
    }
    return elems;
}

double model_step_flops(const model *self, uint64_t tokens)
{
    const model_spec *spec = &self->spec;
    double attention = 0.5 * (double)(modeli_width_of(self, MODELI_QUERIES) +
                                      modeli_width_of(self, MODELI_OUTPUTS));
    double rank = (double)spec->lora.rank, adapters = 0; /* elements of A and B */
    for (uint32_t i = 0; i < self->products->adapter_count; i++)
        adapters += (double)spec->num_layers * rank *
                    (double)(self->products->adapters[i].in + self->products->adapters[i].out);
    /* Sums over all blocks: FLOPs of matrices, and of attention's scores (the forward is a
     * third). */
    double products = 0, attends = 0;
    for (uint32_t s = 1; s + 1 < self->stage_count; s++) {
        bool goes_back = s >= self->first_learning;
        double flops = products_of(goes_back, !self->units[self->stages[s].units[0]].is_frozen);
        products += flops * matrix_elems(modeli_list_of(self, s));
        if (modeli_list_of(self, s) == &self->products->block)
            attends += (goes_back ? 12 : 4) * modeli_scores_of(self, model_block_of(self, s));
    }
    double matrices =
        products + products_of(true, modeli_work_of(self, self->stage_count - 1).weights) *
                       (double)spec->vocab_size * (double)spec->hidden_size;
    return (matrices + 6 * adapters) * (double)tokens +
           attends * attention * (double)tokens / (double)self->tokens;
}

uint64_t model_block_of(const model *self, uint32_t stage)
{
    return size_min((stage - 1) / modeli_block_stages(self), self->spec.num_layers);
}

bool model_waits_for_device(const model *self, uint32_t stage)
{
    return modeli_list_of(self, stage) == &self->products->experts;
}

/* ---- running ---- */

int model_run(model *self, enum phase phase, uint32_t stage, uint32_t pass, void *stream,
              const model_call *call, enum kept kept)
{
    bool backward;
    assert(self->ops != NULL);
    assert(stage < self->stage_count);
    assert(pass < self->stages[stage].pass_count[phase]);
    if (phase == PHASE_BACKWARD)
        TRY(modeli_begin_grads(self, stage, pass, stream, call));
    const modeli_part *part = modeli_pass_part(self, phase, stage, pass, &backward);
    model_call expanded = *call;
    TRY(modeli_expand(self, &self->stages[stage].passes[phase][pass], stream, &expanded));
    call = &expanded;
    switch (self->stages[stage].kind) {
    case STAGE_EMBED:
        return modeli_embed(self, stream, call, part, backward);
    case STAGE_BLOCK:
        return modeli_block(self, stream, modeli_list_of(self, stage), call, part, phase, kept);
    case STAGE_HEAD:
        return modeli_head(self, stream, call, part, backward);
    }
    return err_set(ERR_INTERNAL, "stage %u of the model has no kind", stage);
}

int model_logits_pass(model *self, uint32_t pass, void *stream, const model_call *call,
                      uint64_t row, float *logits)
{
    uint32_t head = self->stage_count - 1;
    assert(self->ops != NULL);
    assert(row < modeli_rows(self));
    assert(pass < self->stages[head].pass_count[PHASE_FORWARD]);
    bool is_backward;
    const modeli_part *part = modeli_pass_part(self, PHASE_FORWARD, head, pass, &is_backward);
    model_call expanded = *call;
    TRY(modeli_expand(self, &self->stages[head].passes[PHASE_FORWARD][pass], stream, &expanded));
    return modeli_row_logits(self, stream, &expanded, part, row, logits);
}
