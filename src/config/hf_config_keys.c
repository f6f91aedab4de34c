/* Reads and checks single keys of a checkpoint's config.json. See hf_config_internal.h. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
        /* mixtral, and what transformers 5 writes of qwen3_moe */
        {"num_experts", "num_local_experts"},
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

static int put_activation(hfi_config *self, const hfi_key *row)
{
    static const struct {
        const char *theirs, *ours;
    } known[] = {
        {"silu", "silu"},           {"swish", "silu"}, {"gelu_new", "gelu_tanh"},
        {"gelu_fast", "gelu_tanh"}, {"gelu", "gelu"},  {"gelu_pytorch_tanh", "gelu_tanh"},
        {"relu", "relu"},
    };
    char shown[CONFIGI_VALUE_BYTES];
    bool has_gate = row->kind == HFI_GATED;
    const char *other = has_gate ? "relu" : "silu"; /* the one that is not built */
    const json_t *found = hfi_get(self, row->from);
    const char *text = json_string_value(found);
    if (!found)
        return 0;
    for (size_t i = 0; text && i < sizeof known / sizeof known[0]; i++)
        if (strcmp(text, known[i].theirs) == 0 && strcmp(known[i].ours, other) != 0)
            return strcmp(known[i].ours, row->to) == 0
                       ? 0
                       : hfi_put(self, "activation", json_string(known[i].ours));
    return hfi_error(self, row->from, "%s is not built; gelu, gelu_pytorch_tanh and %s are",
                     configi_show(found, shown), has_gate ? "silu" : "relu");
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
    uint64_t count;
    TRY(hfi_uint(self, row->from, (uint64_t)row->fallback, &count));
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
    if (row->kind == HFI_ONLY)
        return value == (row->fallback != 0) ? 0
                                             : hfi_error(self, row->from, "%s is not built: %s",
                                                         value ? "true" : "false", row->to);
    return value || row->kind == HFI_SWITCH ? hfi_put(self, row->to, json_boolean(value)) : 0;
}

static int check_word(hfi_config *self, const hfi_key *row)
{
    const json_t *found = hfi_get(self, row->from);
    const char *word = json_string_value(found);
    if (!found || (row->kind == HFI_WORD && word && strcmp(word, row->to) == 0))
        return 0;
    return hfi_error(self, row->from, row->kind == HFI_WORD ? "only \"%s\" is built" : "%s",
                     row->to);
}

static int check_fixed(hfi_config *self, const hfi_key *row)
{
    char shown[CONFIGI_VALUE_BYTES];
    const json_t *found = hfi_get(self, row->from);
    bool is_empty = json_is_array(found) && json_array_size(found) == 0;
    bool is_same = json_is_number(found) && json_number_value(found) == row->fallback;
    if (!found || is_empty || is_same)
        return 0;
    return hfi_error(self, row->from, "%s is not built: %s", configi_show(found, shown), row->to);
}

int hfi_read_key(hfi_config *self, const hfi_key *row)
{
    static int (*const readers[])(hfi_config *, const hfi_key *) = {
        [HFI_COUNT] = put_count,      [HFI_NUMBER] = put_number,       [HFI_FACTOR] = put_number,
        [HFI_INVERSE] = put_number,   [HFI_INVERSE_ROOT] = put_number, [HFI_CAP] = put_number,
        [HFI_DROPOUT] = put_dropout,  [HFI_SWITCH] = put_switch,       [HFI_OPTION] = put_switch,
        [HFI_ONLY] = put_switch,      [HFI_WORD] = check_word,         [HFI_ABSENT] = check_word,
        [HFI_GATED] = put_activation, [HFI_PLAIN] = put_activation,    [HFI_FIXED] = check_fixed,
        [HFI_BALANCE] = put_balance,
    };
    return readers[row->kind](self, row);
}
