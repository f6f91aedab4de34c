/* Reads and checks single keys of a checkpoint's config.json. See hf_config_internal.h. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "config/hf_config_internal.h"

int hfi_error(const hfi_config *self, const char *key, const char *format, ...)
{
    char text[ERR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return err_set(ERR_CONFIG, "%s: %s: %s", self->file, key, text);
}

const json_t *hfi_get(const hfi_config *self, const char *key)
{
    static const char *const others[][2] = {
        /* gpt2 has both names */
        {"n_layer", "num_hidden_layers"},
        {"n_embd", "hidden_size"},
        {"n_head", "num_attention_heads"},
        {"n_positions", "max_position_embeddings"},
        /* mixtures; transformers 5 writes the other name of some */
        {"num_experts", "num_local_experts"},
        {"num_local_experts", "num_experts"},
    };
    const json_t *value = json_object_get(self->doc, key);
    for (size_t i = 0;
         key && (!value || json_is_null(value)) && i < sizeof others / sizeof others[0]; i++)
        if (strcmp(key, others[i][0]) == 0)
            value = json_object_get(self->doc, others[i][1]);
    return json_is_null(value) ? NULL : value;
}

int hfi_uint(const hfi_config *self, const char *key, uint64_t fallback, uint64_t *value)
{
    enum { WHOLE_BITS = 53 };
    char shown[CONFIGI_VALUE_BYTES];
    const json_t *found = hfi_get(self, key);
    *value = fallback;
    if (!found)
        return fallback > 0 ? 0 : hfi_error(self, key, "missing");
    double number = json_number_value(found); /* 0 if it is not a number */
    if (!(number >= 1 && number <= ldexp(1, WHOLE_BITS) && number == floor(number)))
        return hfi_error(self, key, "%s is no whole number from 1 on", configi_show(found, shown));
    *value = (uint64_t)number;
    return 0;
}

int hfi_bool(const hfi_config *self, const char *key, bool fallback, bool *value)
{
    char shown[CONFIGI_VALUE_BYTES];
    const json_t *found = hfi_get(self, key);
    *value = fallback;
    if (!found)
        return 0;
    if (!json_is_boolean(found))
        return hfi_error(self, key, "%s is not true or false", configi_show(found, shown));
    *value = json_is_true(found);
    return 0;
}

int hfi_real(const hfi_config *self, const json_t *block, const char *inside, const char *key,
             double fallback, double *value)
{
    char shown[CONFIGI_VALUE_BYTES], path[CONFIGI_PATH_BYTES];
    const json_t *found = json_object_get(block, key);
    bool is_there = found && !json_is_null(found);
    *value = fallback;
    if (!is_there && fallback > 0)
        return 0;
    configi_join(path, inside, key);
    if (!is_there)
        return hfi_error(self, path, "missing");
    double number = json_number_value(found);
    if (!(number > 0 && isfinite(number)))
        return hfi_error(self, path, "%s is no number above 0", configi_show(found, shown));
    *value = number;
    return 0;
}

int hfi_put(hfi_config *self, const char *key, json_t *value)
{
    return configi_put(self->file, self->block, key, value);
}

/* ---- rows ---- */

/* Names of activations. If one has several names, the first is written. */
static const struct {
    const char *theirs, *ours;
} activations[] = {
    {"silu", "silu"},           {"swish", "silu"}, {"gelu_pytorch_tanh", "gelu_tanh"},
    {"gelu_fast", "gelu_tanh"}, {"gelu", "gelu"},  {"gelu_new", "gelu_tanh"},
    {"relu", "relu"},
};

/* NULL: it is not built. */
static const char *our_activation(const char *theirs)
{
    for (size_t i = 0; i < sizeof activations / sizeof activations[0]; i++)
        if (strcmp(theirs, activations[i].theirs) == 0)
            return activations[i].ours;
    return NULL;
}

static int put_activation(hfi_config *self, const hfi_key *row)
{
    static const char other_key[] = "hidden_activation"; /* of older files of Gemma */
    char shown[CONFIGI_VALUE_BYTES];
    bool has_gate = row->kind != HFI_PLAIN, is_gemma = row->kind == HFI_GATED_GEMMA;
    const char *key = is_gemma && hfi_get(self, other_key) ? other_key : row->from;
    const json_t *found = hfi_get(self, key);
    const char *text = json_string_value(found);
    if (!found || (is_gemma && key == row->from && text && strcmp(text, "gelu") == 0))
        return 0;
    const char *ours = text ? our_activation(text) : NULL;
    if (!ours || strcmp(ours, has_gate ? "relu" : "silu") == 0)
        return hfi_error(self, key, "%s is not built; gelu, gelu_pytorch_tanh and %s are",
                         configi_show(found, shown), has_gate ? "silu" : "relu");
    return strcmp(ours, our_activation(row->to)) == 0
               ? 0
               : hfi_put(self, "activation", json_string(ours));
}

static int put_dropout(hfi_config *self, const hfi_key *row)
{
    char shown[CONFIGI_VALUE_BYTES];
    const json_t *found = hfi_get(self, row->from);
    double value = found ? json_number_value(found) : row->fallback;
    if (found && !(json_is_number(found) && value >= 0 && value < 1))
        return hfi_error(self, row->from, "%s is no number from 0 to below 1",
                         configi_show(found, shown));
    return value == 0 ? 0 : hfi_put(self, row->to, json_real(value));
}

static int put_balance(hfi_config *self, const hfi_key *row)
{
    char shown[CONFIGI_VALUE_BYTES];
    const json_t *found = hfi_get(self, row->from);
    double value = found ? json_number_value(found) : row->fallback;
    bool is_on;
    TRY(hfi_bool(self, "output_router_logits", false, &is_on));
    if (found && !(json_is_number(found) && value >= 0))
        return hfi_error(self, row->from, "%s is no number from 0 on", configi_show(found, shown));
    return is_on && value > 0 ? hfi_put(self, row->to, json_real(value)) : 0;
}

static int put_count(hfi_config *self, const hfi_key *row)
{
    uint64_t count, fallback = (uint64_t)row->fallback;
    const json_t *width = json_object_get(self->block, "hidden_size");
    if (row->kind == HFI_WIDTH)
        fallback *= size_min((uint64_t)json_integer_value(width), UINT32_MAX);
    TRY(hfi_uint(self, row->from, fallback, &count));
    return hfi_put(self, row->to, json_integer((json_int_t)count));
}

static int put_number(hfi_config *self, const hfi_key *row)
{
    const json_t *found = json_object_get(self->doc, row->from);
    double value;
    if (row->kind == HFI_CAP && (json_is_null(found) || (!found && row->fallback == 0)))
        return 0;
    TRY(hfi_real(self, self->doc, "", row->from, row->fallback, &value));
    if (row->kind == HFI_FACTOR && value == 1)
        return 0;
    if (row->kind == HFI_INVERSE_ROOT)
        value = sqrt(value);
    bool is_inverse = row->kind == HFI_INVERSE || row->kind == HFI_INVERSE_ROOT;
    return hfi_put(self, row->to, json_real(is_inverse ? 1 / value : value));
}

static int put_switch(hfi_config *self, const hfi_key *row)
{
    bool value;
    TRY(hfi_bool(self, row->from, row->fallback != 0, &value));
    return value || row->kind == HFI_SWITCH ? hfi_put(self, row->to, json_boolean(value)) : 0;
}

/* Makes the only value of a key that is built. NULL: there is no memory. transformers checks the
 * types: a count is whole, any other number has a point. */
static json_t *only_value(const hfi_key *row, double hidden_size)
{
    double number = row->kind == HFI_ONLY_WIDTH ? row->fallback * hidden_size : row->fallback;
    switch (row->kind) {
    case HFI_ONLY:
        return json_boolean(number != 0);
    case HFI_ONLY_WORD:
        return json_string(row->to);
    case HFI_ONLY_EMPTY:
        return json_array();
    case HFI_ONLY_NULL:
        return json_null();
    default:
        return number >= 1 && number == floor(number) ? json_integer((json_int_t)number)
                                                      : json_real(number);
    }
}

static int check_only(hfi_config *self, const hfi_key *row)
{
    char shown[CONFIGI_VALUE_BYTES], shown_only[CONFIGI_VALUE_BYTES];
    const json_t *found = hfi_get(self, row->from);
    json_t *only = only_value(row, json_number_value(json_object_get(self->block, "hidden_size")));
    bool has_reason = row->kind != HFI_ONLY_WORD;
    int rc = only ? 0 : err_set(-ENOMEM, "no memory to read %s", self->file);
    if (rc == 0 && found && !configi_is_same(found, only))
        rc = hfi_error(self, row->from, "%s is not built, only %s is%s%s",
                       configi_show(found, shown), configi_show(only, shown_only),
                       has_reason ? ": " : "", has_reason ? row->to : "");
    json_decref(only);
    return rc;
}

int hfi_read_key(hfi_config *self, const hfi_key *row)
{
    static int (*const readers[])(hfi_config *, const hfi_key *) = {
        [HFI_COUNT] = put_count,        [HFI_WIDTH] = put_count,
        [HFI_NUMBER] = put_number,      [HFI_FACTOR] = put_number,
        [HFI_INVERSE] = put_number,     [HFI_INVERSE_ROOT] = put_number,
        [HFI_CAP] = put_number,         [HFI_DROPOUT] = put_dropout,
        [HFI_BALANCE] = put_balance,    [HFI_SWITCH] = put_switch,
        [HFI_OPTION] = put_switch,      [HFI_ONLY] = check_only,
        [HFI_ONLY_NUMBER] = check_only, [HFI_ONLY_WIDTH] = check_only,
        [HFI_ONLY_WORD] = check_only,   [HFI_ONLY_EMPTY] = check_only,
        [HFI_ONLY_NULL] = check_only,   [HFI_GATED] = put_activation,
        [HFI_PLAIN] = put_activation,   [HFI_GATED_GEMMA] = put_activation,
    };
    return readers[row->kind](self, row);
}

/* ---- the way back ---- */

int hfi_add(json_t *config, const char *key, json_t *value)
{
    return configi_put(HFI_NEW_FILE, config, key, value);
}

/* The value that a job has for a key of its block model. */
static double value_of(const job *from, const char *key)
{
    char path[CONFIGI_PATH_BYTES];
    configi_join(path, "model", key);
    const configi_key *row = configi_key_find(path);
    const void *member = (const char *)from + row->offset;
    return row->type == CONFIGI_BOOL    ? *(const bool *)member
           : row->type == CONFIGI_FLOAT ? *(const double *)member
                                        : (double)*(const uint64_t *)member;
}

static json_t *activation_of(const job *from, const hfi_key *row)
{
    size_t i = 0;
    const char *ours = activation_name(from->model.activation);
    if (from->model.activation == ACTIVATION_OF_FAMILY)
        return json_string(row->to);
    while (strcmp(activations[i].ours, ours) != 0)
        i++;
    return json_string(activations[i].theirs);
}

bool hfi_is_own_activation(const hfi_key *row, enum activation which)
{
    bool is_function =
        row->kind == HFI_GATED || row->kind == HFI_GATED_GEMMA || row->kind == HFI_PLAIN;
    return is_function && strcmp(our_activation(row->to), activation_name(which)) == 0;
}

int hfi_write_key(json_t *config, const job *from, const hfi_key *row)
{
    json_t *value = NULL;
    double number = 0;
    if (!row->from)
        return 0;
    switch (row->kind) {
    case HFI_COUNT:
    case HFI_WIDTH:
        value = json_integer((json_int_t)value_of(from, row->to));
        break;
    case HFI_NUMBER:
    case HFI_FACTOR:
    case HFI_DROPOUT:
        value = json_real(value_of(from, row->to));
        break;
    case HFI_INVERSE:
        value = json_real(1 / value_of(from, row->to));
        break;
    case HFI_INVERSE_ROOT:
        number = value_of(from, row->to);
        value = json_integer(llround(1 / (number * number)));
        break;
    case HFI_CAP:
        number = value_of(from, row->to);
        value = number != 0 ? json_real(number) : json_null();
        break;
    case HFI_BALANCE:
        number = value_of(from, row->to);
        if (number == 0)
            return 0;
        TRY(hfi_add(config, "output_router_logits", json_true()));
        value = json_real(number);
        break;
    case HFI_SWITCH:
    case HFI_OPTION:
        value = json_boolean(value_of(from, row->to) != 0);
        break;
    case HFI_ONLY:
    case HFI_ONLY_NUMBER:
    case HFI_ONLY_WIDTH:
    case HFI_ONLY_WORD:
    case HFI_ONLY_EMPTY:
    case HFI_ONLY_NULL:
        value = only_value(row, (double)from->model.hidden_size);
        break;
    case HFI_GATED:
    case HFI_GATED_GEMMA:
    case HFI_PLAIN:
        value = activation_of(from, row);
        break;
    }
    return hfi_add(config, row->from, value);
}
