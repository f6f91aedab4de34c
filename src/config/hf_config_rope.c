/* Rotary positions of a checkpoint's config.json. Three forms are in use:
 *
 *   "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8, ...}    (older: "type")
 *   "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8, ...}
 *
 * As in transformers, rope_scaling goes before rope_parameters, and a key within the block goes
 * before the file's own key of that name. A key within the block that transformers does not know is
 * refused, because it may change the arithmetic. One that belongs to another type has no effect.
 * See hf_config_internal.h. */
#include <math.h>
#include <string.h>

#include "base/size.h"
#include "config/hf_config_internal.h"

/* Types as bits. */
enum {
    LINEAR = 1 << ROPE_LINEAR,
    LLAMA3 = 1 << ROPE_LLAMA3,
    DYNAMIC = 1 << ROPE_DYNAMIC,
    YARN = 1 << ROPE_YARN,
    LONGROPE = 1 << ROPE_LONGROPE,
};

/* Only some types have these numbers. The keys have the same names in our rope_scaling. */
static const struct {
    const char *key;
    int types;
    bool is_needed;
    size_t member; /* offset in rope_form */
} numbers[] = {
    {"low_freq_factor", LLAMA3, true, offsetof(rope_form, low_freq_factor)},
    {"high_freq_factor", LLAMA3, true, offsetof(rope_form, high_freq_factor)},
    {"attention_factor", YARN | LONGROPE, false, offsetof(rope_form, attention_factor)},
    {"beta_fast", YARN, false, offsetof(rope_form, beta_fast)},
    {"beta_slow", YARN, false, offsetof(rope_form, beta_slow)},
    {"mscale", YARN, false, offsetof(rope_form, mscale)},
    {"mscale_all_dim", YARN, false, offsetof(rope_form, mscale_all_dim)},
};
static const char *const lists[] = {"short_factor", "long_factor"};

struct rope {
    const json_t *block; /* NULL: there is none */
    const char *name;    /* the block's name; "": there is no block */
    const hfi_rope *of;  /* what the family has */
    enum rope_scaling scaling;
};

/* ---- the block ---- */

static bool is_known(const char *key)
{
    /* "finetuned" has no effect in transformers either. */
    static const char *const others[] = {
        "type",         "rope_type", "rope_theta",
        "factor",       "truncate",  "original_max_position_embeddings",
        "short_factor", "finetuned", "partial_rotary_factor",
        "long_factor"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strcmp(key, others[i]) == 0)
            return true;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (strcmp(key, numbers[i].key) == 0)
            return true;
    return false;
}

static int find_block(const hfi_config *self, const hfi_family *of, struct rope *rope)
{
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    for (int i = 0; i < 2 && !rope->block; i++) {
        const json_t *found = hfi_get(self, names[i]);
        if (found && !json_is_object(found))
            return hfi_error(self, names[i], "it is no object");
        if (found && json_object_size(found) > 0) {
            rope->block = found;
            rope->name = names[i];
        }
    }
    if (of->window_theta != 0 && strcmp(rope->name, "rope_parameters") == 0) {
        /* hf_config_window.c reads the block of the other kind of layer. */
        const json_t *full = json_object_get(rope->block, "full_attention");
        if (!full && !json_object_get(rope->block, "sliding_attention"))
            return hfi_error(self, rope->name,
                             "this family has a block \"full_attention\" there, and a block "
                             "\"sliding_attention\"");
        if (full && !json_is_null(full) && !json_is_object(full))
            return hfi_error(self, "rope_parameters.full_attention", "it is no object");
        rope->block = json_is_object(full) ? full : NULL;
        rope->name = "rope_parameters.full_attention";
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)rope->block, key, value)
    {
        if (json_is_object(value))
            return hfi_error(self, rope->name,
                             "\"%.64s\": positions that differ between layers are not built", key);
        if (!is_known(key))
            return hfi_error(self, rope->name, "\"%.64s\" is no key that is built", key);
    }
    return 0;
}

/* The value of a key of the block; NULL if it is absent or null. */
static const json_t *inside(const struct rope *rope, const char *key)
{
    const json_t *value = json_object_get(rope->block, key);
    return json_is_null(value) ? NULL : value;
}

/* Finds the type. Phi-3 calls longrope also "su" and "yarn". */
static int find_type(const hfi_config *self, struct rope *rope)
{
    const json_t *found = inside(rope, "rope_type");
    found = found ? found : inside(rope, "type");
    const char *type = found ? json_string_value(found) : rope_scaling_name(ROPE_PLAIN);
    if (rope->of->original && type && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0))
        type = rope_scaling_name(ROPE_LONGROPE);
    for (int i = 0; type && i < ROPE_SCALING_COUNT; i++) {
        rope->scaling = (enum rope_scaling)i;
        bool is_built = !rope->of->original || i == ROPE_PLAIN || i == ROPE_LONGROPE;
        if (is_built && strcmp(type, rope_scaling_name(rope->scaling)) == 0)
            return 0;
    }
    return hfi_error(self, rope->name, "the type \"%.64s\" is not built; %s are", type ? type : "",
                     rope->of->original ? "default and longrope"
                                        : "default, linear, dynamic, yarn, longrope and llama3");
}

/* Reads a key of the block, or else the file's own, which may have another name. */
static int pick(const hfi_config *self, const struct rope *rope, const char *key, const char *own,
                double fallback, double *value)
{
    bool is_inside = inside(rope, key) != NULL;
    return hfi_real(self, is_inside ? rope->block : self->doc, is_inside ? rope->name : "",
                    is_inside || !own ? key : own, fallback, value);
}

static int put_share(hfi_config *self, const struct rope *rope)
{
    static const char key[] = "partial_rotary_factor";
    double share, always = rope->of->share;
    TRY(pick(self, rope, key, rope->of->share_key, always ? always : 1, &share));
    if (share > 1 || (always == 0 && share != 1))
        return hfi_error(self, key,
                         "%g is not built: rotary positions of this family always apply to the "
                         "whole of each head",
                         share);
    return hfi_put(self, key, json_real(share));
}

/* ---- the scaling ---- */

/* Finds the number of positions that the model was first trained with: the file's own key, else the
 * block's, else the longest sequence. Families that always have the file's own key have a default
 * for it. The type dynamic counts from the longest sequence. */
static int find_original(const hfi_config *self, const struct rope *rope, double *value)
{
    static const char key[] = "original_max_position_embeddings";
    bool is_own = hfi_get(self, key) != NULL || rope->of->original > 0;
    *value = (double)self->positions;
    if (rope->scaling == ROPE_DYNAMIC)
        return 0;
    return hfi_real(self, is_own ? self->doc : rope->block, is_own ? "" : rope->name, key,
                    rope->of->original ? (double)rope->of->original : *value, value);
}

static int put_real(const hfi_config *self, json_t *scaling, const char *key, double value)
{
    return configi_put(self->file, scaling, key, json_real(value));
}

static int fill_numbers(const hfi_config *self, const struct rope *rope, json_t *scaling)
{
    double value;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        bool is_of_type = numbers[i].types >> rope->scaling & 1;
        if (!is_of_type || (!numbers[i].is_needed && !inside(rope, numbers[i].key)))
            continue;
        TRY(hfi_real(self, rope->block, rope->name, numbers[i].key, 0, &value));
        TRY(put_real(self, scaling, numbers[i].key, value));
    }
    json_t *truncate = json_object_get(rope->block, "truncate");
    if (rope->scaling == ROPE_YARN && truncate) /* its type is checked as that of a job's key */
        TRY(configi_put(self->file, scaling, "truncate", json_incref(truncate)));
    for (int i = 0; rope->scaling == ROPE_LONGROPE && i < 2; i++) {
        json_t *list = json_object_get(rope->block, lists[i]);
        if (!json_is_array(list))
            return hfi_error(self, rope->name, "%s: it is no list of numbers", lists[i]);
        TRY(configi_put(self->file, scaling, lists[i], json_incref(list)));
    }
    return 0;
}

/* Writes into `scaling` our rope_scaling for this block. */
static int fill_scaling(hfi_config *self, const struct rope *rope, json_t *scaling)
{
    static const double most = 0x1p40; /* positions, far more than any model has */
    const char *name = rope_scaling_name(rope->scaling);
    double original, factor;
    TRY(find_original(self, rope, &original));
    bool is_ratio = (YARN | LONGROPE) >> rope->scaling & 1;
    TRY(hfi_real(self, rope->block, rope->name, "factor",
                 is_ratio ? (double)self->positions / original : 0, &factor));
    TRY(configi_put(self->file, scaling, "type", json_string(name)));
    TRY(put_real(self, scaling, "factor", factor));
    TRY(fill_numbers(self, rope, scaling));
    if (rope->scaling == ROPE_LINEAR)
        return 0;
    /* These two stretch a model whose max_position_embeddings may be that of its first training. */
    if ((YARN | DYNAMIC) >> rope->scaling & 1)
        self->positions = size_max(self->positions, (uint64_t)fmin(factor * original, most));
    return put_real(self, scaling, "original_max_position_embeddings", original);
}

static json_int_t number_of(const hfi_config *self, const char *key)
{
    return json_integer_value(json_object_get(self->block, key));
}

int hfi_put_rope(hfi_config *self, const hfi_family *family)
{
    const hfi_rope *of = &family->rope;
    struct rope rope = {.name = "", .of = of};
    double theta, usual = of->theta != 0 ? of->theta : 10000;
    TRY(find_block(self, family, &rope));
    if (of->is_needed && !rope.block)
        return hfi_error(self, "rope_scaling", "missing; this family has no usual positions");
    TRY(pick(self, &rope, "rope_theta", of->theta_key, usual, &theta));
    TRY(hfi_put(self, "rope_theta", json_real(theta)));
    TRY(put_share(self, &rope));
    TRY(find_type(self, &rope));
    if (rope.scaling == ROPE_PLAIN)
        return 0;
    if (of->original && number_of(self, "head_dim") !=
                            number_of(self, "hidden_size") / number_of(self, "num_heads"))
        return hfi_error(self, "head_dim",
                         "transformers stretches positions of this family only where heads are "
                         "hidden_size / num_attention_heads wide");
    json_t *scaling = json_object();
    int rc = fill_scaling(self, &rope, scaling);
    if (rc < 0) {
        json_decref(scaling);
        return rc;
    }
    return hfi_put(self, "rope_scaling", scaling);
}

/* ---- the way back ---- */

static json_t *list_of(const double *factors, uint32_t count)
{
    json_t *list = json_array();
    for (uint32_t i = 0; list && i < count; i++)
        if (json_array_append_new(list, json_real(factors[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* Writes how positions are stretched, without the numbers that some families have outside. */
static int write_block(json_t *block, const rope_form *rope)
{
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        double value = *(const double *)((const char *)rope + numbers[i].member);
        if (value != 0)
            TRY(hfi_add(block, numbers[i].key, json_real(value)));
    }
    if (rope->scaling == ROPE_YARN && !rope->truncates)
        TRY(hfi_add(block, "truncate", json_false()));
    if (rope->scaling != ROPE_LONGROPE)
        return 0;
    TRY(hfi_add(block, lists[0], list_of(rope->short_factors, rope->pair_count)));
    return hfi_add(block, lists[1], list_of(rope->long_factors, rope->pair_count));
}

/* Puts a new object into the other one, which owns it. NULL: there is no memory. */
static json_t *object_in(json_t *parent, const char *key)
{
    json_t *made = json_object();
    return json_object_set_new(parent, key, made) == 0 ? made : NULL;
}

/* Adds the block rope_scaling, or the blocks of each kind of layer, or null. */
static int write_scaling(json_t *config, const model_spec *from, const hfi_family *of,
                         bool has_factor)
{
    const rope_form *rope = &from->rope;
    bool is_plain = rope->scaling == ROPE_PLAIN, is_outside = of->rope.original != 0;
    bool by_kind = of->window_theta != 0 && !of->window_theta_key;
    if (is_plain && !by_kind && !of->rope.is_needed)
        return hfi_add(config, "rope_scaling", json_null());
    json_t *both = by_kind ? object_in(config, "rope_parameters") : NULL;
    json_t *block = by_kind ? object_in(both, "full_attention") : object_in(config, "rope_scaling");
    json_t *other = by_kind ? object_in(both, "sliding_attention") : NULL;
    TRY(hfi_add(block, is_outside ? "type" : "rope_type",
                json_string(rope_scaling_name(rope->scaling))));
    if (has_factor)
        TRY(hfi_add(block, "factor", json_real(rope->factor)));
    TRY(write_block(block, rope));
    if (rope->original_positions != 0 && rope->scaling != ROPE_DYNAMIC)
        TRY(hfi_add(is_outside ? config : block, "original_max_position_embeddings",
                    json_integer((json_int_t)rope->original_positions)));
    if (!by_kind)
        return 0;
    double own = from->window_rope_theta != 0 ? from->window_rope_theta : from->rope_theta;
    TRY(hfi_add(block, "rope_theta", json_real(from->rope_theta)));
    TRY(hfi_add(other, "rope_type", json_string(rope_scaling_name(ROPE_PLAIN))));
    return hfi_add(other, "rope_theta", json_real(own));
}

int hfi_write_rope(json_t *config, const model_spec *from, const hfi_family *of)
{
    static const char theta[] = "rope_theta", share[] = "partial_rotary_factor";
    const rope_form *rope = &from->rope;
    bool is_stretched = rope->scaling != ROPE_PLAIN;
    uint64_t positions =
        rope->scaling == ROPE_DYNAMIC ? rope->original_positions : from->seq_length;
    /* Where the first length stands outside the block, the factor is the longest length divided by
     * the first one. Some versions of transformers read no other factor there. */
    double longest = rope->factor * (double)rope->original_positions;
    bool is_ratio = of->rope.original != 0 && longest > 0;
    if (is_ratio)
        positions = (uint64_t)fmin(round(longest), 0x1p53);
    if (of->window_theta == 0 || of->window_theta_key)
        TRY(hfi_add(config, of->rope.theta_key ? of->rope.theta_key : theta,
                    json_real(from->rope_theta)));
    TRY(write_scaling(config, from, of, is_stretched && !is_ratio));
    TRY(hfi_add(config, "max_position_embeddings", json_integer((json_int_t)positions)));
    if (of->window_theta_key) {
        double own = from->window_rope_theta != 0 ? from->window_rope_theta : from->rope_theta;
        TRY(hfi_add(config, of->window_theta_key, json_real(own)));
    }
    if (of->rope.share == 0)
        return 0;
    return hfi_add(config, of->rope.share_key ? of->rope.share_key : share,
                   json_real(from->partial_rotary_factor));
}
