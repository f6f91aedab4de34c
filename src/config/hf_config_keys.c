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
    const json_t *value = json_object_get(self->doc, key);
    return json_is_null(value) ? NULL : value;
}

int hfi_uint(const hfi_config *self, const char *key, const char *other, uint64_t fallback,
             uint64_t *value)
{
    enum { WHOLE_BITS = 53 };
    char shown[CONFIGI_VALUE_BYTES];
    const json_t *found = hfi_get(self, key);
    if (!found && other)
        found = hfi_get(self, other);
    *value = fallback;
    if (!found && fallback == HFI_REQUIRED)
        return hfi_error(self, key, "missing");
    if (!found)
        return 0;
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
    configi_join(path, inside, key);
    *value = fallback;
    if (!found || json_is_null(found))
        return fallback > 0 ? 0 : hfi_error(self, path, "missing");
    double number = json_number_value(found);
    if (!(number > 0 && isfinite(number)))
        return hfi_error(self, path, "%s is no number above 0", configi_show(found, shown));
    *value = number;
    return 0;
}

int hfi_put_activation(hfi_config *self, const char *from, const char *fallback, const char *ours,
                       bool has_gate)
{
    static const struct {
        const char *theirs, *ours;
    } known[] = {
        {"silu", "silu"},           {"swish", "silu"}, {"gelu_new", "gelu_tanh"},
        {"gelu_fast", "gelu_tanh"}, {"gelu", "gelu"},  {"gelu_pytorch_tanh", "gelu_tanh"},
        {"relu", "relu"},
    };
    char shown[CONFIGI_VALUE_BYTES];
    const char *other = has_gate ? "relu" : "silu"; /* the one that is not built */
    const json_t *found = hfi_get(self, from);
    const char *text = found ? json_string_value(found) : fallback;
    for (size_t i = 0; text && i < sizeof known / sizeof known[0]; i++)
        if (strcmp(text, known[i].theirs) == 0 && strcmp(known[i].ours, other) != 0)
            return strcmp(known[i].ours, ours) == 0
                       ? 0
                       : hfi_put(self, "activation", json_string(known[i].ours));
    return hfi_error(self, from, "%s is not built; gelu, gelu_pytorch_tanh and %s are",
                     found ? configi_show(found, shown) : "what is absent",
                     has_gate ? "silu" : "relu");
}

int hfi_refuse(const hfi_config *self, const char *key, bool wanted, const char *why)
{
    bool value;
    TRY(hfi_bool(self, key, wanted, &value));
    if (value == wanted)
        return 0;
    return hfi_error(self, key, "%s is not built: %s", value ? "true" : "false", why);
}

int hfi_put(hfi_config *self, const char *key, json_t *value)
{
    return configi_put(self->file, self->block, key, value);
}

int hfi_put_dropout(hfi_config *self, const char *key, const char *from, double fallback)
{
    char shown[CONFIGI_VALUE_BYTES];
    const json_t *found = hfi_get(self, from);
    double value = found ? json_number_value(found) : fallback;
    if (found && !(json_is_number(found) && value >= 0 && value < 1))
        return hfi_error(self, from, "%s is no number from 0 to below 1",
                         configi_show(found, shown));
    return value == 0 ? 0 : hfi_put(self, key, json_real(value));
}

int hfi_take_uint(hfi_config *self, const char *key, const char *from, const char *other,
                  uint64_t fallback, uint64_t *value)
{
    TRY(hfi_uint(self, from, other, fallback, value));
    return hfi_put(self, key, json_integer((json_int_t)*value));
}

int hfi_put_real(hfi_config *self, const char *key, const char *from, double fallback)
{
    double value;
    TRY(hfi_real(self, self->doc, "", from, fallback, &value));
    return hfi_put(self, key, json_real(value));
}

int hfi_put_bool(hfi_config *self, const char *key, const char *from, bool fallback)
{
    bool value;
    TRY(hfi_bool(self, from, fallback, &value));
    return hfi_put(self, key, json_boolean(value));
}
