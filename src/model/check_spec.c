/* Checks the spec of a model: sizes, and what a family has and has not. model_create calls it.
 * Pure; allocates nothing. */
#include <assert.h>
#include <math.h>

#include "base/size.h"
#include "kernels/dropout_mask.h"
#include "model/model_internal.h"

enum { LAYERS_MAX = 1 << 16 };

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
                       head_dim, model_family_name(spec->family), channels, heads);
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
                       kv_heads, model_family_name(spec->family), heads);
    if (is_given && (head_dim > MODELI_HEAD_DIM_MAX || head_dim % 2 != 0))
        return err_set(ERR_CONFIG,
                       "model.head_dim is %llu, but heads must be even, for rotary positions turn "
                       "pairs, and at most %d",
                       head_dim, MODELI_HEAD_DIM_MAX);
    if (head_dim > MODELI_HEAD_DIM_MAX)
        return err_set(ERR_CONFIG,
                       "model.hidden_size %llu / model.num_heads %llu gives heads of %llu, but the "
                       "largest supported is %d: use at least %llu heads",
                       channels, heads, head_dim, MODELI_HEAD_DIM_MAX,
                       (unsigned long long)size_div_up(channels, MODELI_HEAD_DIM_MAX));
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

/* Checks windows, the base of their rotary positions, and soft caps. The job reader leaves these to
 * it. */
static int check_attention(const model_spec *spec)
{
    double theta = spec->window_rope_theta;
    double caps[2] = {spec->attention_soft_cap, spec->logits_soft_cap};
    const char *pattern = spec->window_pattern, *family = model_family_name(spec->family);
    if (memchr(pattern, 0, MODEL_PATTERN_BYTES) == NULL || strspn(pattern, "wf") != strlen(pattern))
        return err_set(ERR_CONFIG,
                       "model.window_pattern is \"%.64s\", but its letters must be w "
                       "(a block with the window) or f (a block without it)",
                       pattern);
    if (spec->window != 0 && model_is_bidirectional(spec->family))
        return err_set(ERR_CONFIG,
                       "model.window is given, but the %s family attends to both sides: leave it "
                       "out",
                       family);
    if (theta != 0 && !modeli_has_rope(spec->family))
        return err_set(ERR_CONFIG,
                       "model.window_rope_theta is given, but the %s family has no rotary "
                       "positions: leave it out",
                       family);
    if (theta != 0 && !(theta > 1 && isfinite(theta)))
        return err_set(ERR_CONFIG, "model.window_rope_theta is %g, but must be a number above 1",
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

int modeli_check_rope(const model_spec *spec)
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
    double latents =
        (double)spec->q_latent_size + (double)spec->kv_latent_size + MODELI_HEAD_DIM_MAX;
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
    return check_elems("a chunk of logits", fmin(rows, channels + MODELI_CHUNK_ROWS_MIN) * vocab);
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
        spec->shared_ffn_size == 0 && spec->expert_groups == 0 && spec->groups_per_token == 0)
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

int modeli_check_spec(const model_spec *spec, enum dtype type, uint64_t micro_batch)
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
