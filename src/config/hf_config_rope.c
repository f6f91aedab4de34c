/* Rotary positions of a checkpoint's config.json. Three forms are in use:
 *
 *   "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8, ...}    (older: "type")
 *   "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8, ...}
 *
 * As in transformers, rope_scaling goes before rope_parameters, and a key within the block goes
 * before the file's own key of that name. See hf_config_internal.h. */
#include <string.h>

#include "config/hf_config_internal.h"

struct rope {
    const json_t *block; /* NULL: there is none */
    const char *name;    /* the block's name; "": there is no block */
};

static int find_block(const hfi_config *self, struct rope *rope)
{
    static const char *const names[] = {"rope_scaling", "rope_parameters"};
    *rope = (struct rope){.name = ""};
    for (int i = 0; i < 2 && !rope->block; i++) {
        const json_t *found = hfi_get(self, names[i]);
        if (found && !json_is_object(found))
            return hfi_error(self, names[i], "it is no object");
        if (found && json_object_size(found) > 0)
            *rope = (struct rope){found, names[i]};
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)rope->block, key, value)
    {
        if (json_is_object(value))
            return hfi_error(self, rope->name,
                             "\"%.64s\": positions that differ between layers are not built", key);
    }
    return 0;
}

/* Returns the type; NULL if its value is not text. */
static const char *type_of(const struct rope *rope)
{
    const json_t *type = json_object_get(rope->block, "rope_type");
    if (!type || json_is_null(type))
        type = json_object_get(rope->block, "type");
    return !type || json_is_null(type) ? "default" : json_string_value(type);
}

/* Reads a key of the block, or else the file's own. */
static int pick(const hfi_config *self, const struct rope *rope, const char *key, double fallback,
                double *value)
{
    const json_t *found = json_object_get(rope->block, key);
    bool is_inside = found && !json_is_null(found);
    return hfi_real(self, is_inside ? rope->block : self->doc, is_inside ? rope->name : "", key,
                    fallback, value);
}

static int refuse_partial(const hfi_config *self, const struct rope *rope)
{
    static const char key[] = "partial_rotary_factor";
    double factor;
    TRY(pick(self, rope, key, 1.0, &factor));
    return factor == 1.0
               ? 0
               : hfi_error(
                     self, key,
                     "%g is not built: rotary positions always apply to the whole of each head",
                     factor);
}

/* Finds the number of positions that the model was first trained with: the file's own key, else the
 * block's, else the longest sequence. */
static int find_original(const hfi_config *self, const struct rope *rope, double *value)
{
    static const char key[] = "original_max_position_embeddings";
    bool is_own = hfi_get(self, key) != NULL;
    return hfi_real(self, is_own ? self->doc : rope->block, is_own ? "" : rope->name, key,
                    (double)self->positions, value);
}

/* Writes into `scaling` our rope_scaling for this block. */
static int fill_scaling(const hfi_config *self, const struct rope *rope, const char *type,
                        json_t *scaling)
{
    static const char *const keys[] = {"factor", "low_freq_factor", "high_freq_factor"};
    bool is_linear = strcmp(type, "linear") == 0;
    double value;
    TRY(configi_put(self->file, scaling, "type", json_string(type)));
    for (int i = 0; i < (is_linear ? 1 : 3); i++) {
        TRY(hfi_real(self, rope->block, rope->name, keys[i], 0, &value));
        TRY(configi_put(self->file, scaling, keys[i], json_real(value)));
    }
    if (is_linear)
        return 0;
    TRY(find_original(self, rope, &value));
    return configi_put(self->file, scaling, "original_max_position_embeddings", json_real(value));
}

int hfi_put_rope(hfi_config *self, double theta)
{
    struct rope rope;
    TRY(find_block(self, &rope));
    TRY(pick(self, &rope, "rope_theta", theta, &theta));
    TRY(hfi_put(self, "rope_theta", json_real(theta)));
    TRY(refuse_partial(self, &rope));
    const char *type = type_of(&rope);
    if (!type || (strcmp(type, "default") != 0 && strcmp(type, "linear") != 0 &&
                  strcmp(type, "llama3") != 0))
        return hfi_error(self, rope.name,
                         "the type \"%.64s\" is not built; default, linear and "
                         "llama3 are",
                         type ? type : "");
    if (strcmp(type, "default") == 0)
        return 0;
    json_t *scaling = json_object();
    int rc = fill_scaling(self, &rope, type, scaling);
    if (rc < 0) {
        json_decref(scaling);
        return rc;
    }
    return hfi_put(self, "rope_scaling", scaling);
}
