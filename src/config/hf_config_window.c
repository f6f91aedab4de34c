/* Windows of attention in a checkpoint's config.json: their width, and the blocks that have them.
 *
 *   blocks                        families                   keys
 *   all                           mistral, mixtral, phi3, starcoder2
 *   from one on                   qwen2, qwen3               use_sliding_window, max_window_layers
 *   without rotary positions      smollm3                    use_sliding_window
 *   all but every second          gemma2, gpt_oss
 *   all but every p-th            gemma3_text, olmo3,        sliding_window_pattern
 *                                 exaone4
 *
 * sliding_window is the width. layer_types, which names the kind of each block, goes before the
 * last column. In Gemma 3 and OLMo 3 the blocks with a window have rotary positions of their own.
 * In EXAONE 4 the others have none, if there is a window at all. See hf_config_internal.h. */
#include <inttypes.h>
#include <string.h>

#include "config/hf_config_internal.h"

enum {
    LAYERS_MAX = 65536, /* of model.num_layers */
    EVERY_SECOND = 2    /* Gemma 2's interval, which no key changes */
};

/* Says which blocks have the window. */
struct blocks {
    const json_t *types; /* layer_types; NULL: there is none */
    enum hfi_windowed kind;
    uint64_t count;
    uint64_t number; /* the first block, or the interval */
};

static bool has_window(const struct blocks *of, uint64_t block)
{
    if (of->types)
        return strcmp(json_string_value(json_array_get(of->types, block)), "sliding_attention") ==
               0;
    switch (of->kind) {
    case HFI_NO_WINDOWS:
        return false;
    case HFI_WINDOWS_EVERYWHERE:
        return true;
    case HFI_WINDOWS_FROM_ONE_ON:
        return block >= of->number;
    case HFI_WINDOWS_WITHOUT_ROPE:
        return of->number != 0 && (block + 1) % of->number == 0;
    case HFI_WINDOWS_BUT_EVERY:
    case HFI_WINDOWS_WITH_ROPE:
        return (block + 1) % of->number != 0;
    }
    return false;
}

static uint64_t count_windows(const struct blocks *of)
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < of->count; i++)
        count += has_window(of, i);
    return count;
}

static int check_types(const hfi_config *self, const struct blocks *of)
{
    static const char key[] = "layer_types";
    if (!json_is_array(of->types))
        return hfi_error(self, key, "it is no list");
    size_t idx;
    json_t *item;
    json_array_foreach(of->types, idx, item)
    {
        const char *type = json_string_value(item);
        if (!type ||
            (strcmp(type, "sliding_attention") != 0 && strcmp(type, "full_attention") != 0))
            return hfi_error(self, key,
                             "entry %zu is neither \"full_attention\" nor \"sliding_attention\"",
                             idx);
    }
    if (json_array_size(of->types) != of->count)
        return hfi_error(self, key, "%zu entries for num_hidden_layers %" PRIu64,
                         json_array_size(of->types), of->count);
    return 0;
}

static bool is_but_every(const struct hfi_windows *of)
{
    return of->blocks == HFI_WINDOWS_BUT_EVERY || of->blocks == HFI_WINDOWS_WITH_ROPE;
}

static int find_blocks(const hfi_config *self, const struct hfi_windows *of, uint64_t layers,
                       struct blocks *blocks)
{
    static const char first_key[] = "max_window_layers";
    *blocks = (struct blocks){.types = hfi_get(self, "layer_types"),
                              .kind = of->blocks,
                              .count = layers,
                              .number = of->number};
    const json_t *first = hfi_get(self, first_key);
    bool is_zero = json_is_integer(first) && json_integer_value(first) == 0;
    if (blocks->types)
        return check_types(self, blocks);
    if (of->blocks == HFI_WINDOWS_FROM_ONE_ON && is_zero)
        blocks->number = 0;
    else if (of->blocks == HFI_WINDOWS_FROM_ONE_ON)
        return hfi_uint(self, first_key, of->number, &blocks->number);
    if (is_but_every(of) && of->number != EVERY_SECOND)
        return hfi_uint(self, "sliding_window_pattern", of->number, &blocks->number);
    if (of->blocks == HFI_WINDOWS_WITHOUT_ROPE)
        blocks->number =
            (uint64_t)json_integer_value(json_object_get(self->block, "nope_interval"));
    return 0;
}

/* *width is 0 if there are no windows. */
static int find_width(const hfi_config *self, const struct hfi_windows *of, uint64_t *width)
{
    static const char key[] = "sliding_window";
    bool is_switched =
        of->blocks == HFI_WINDOWS_FROM_ONE_ON || of->blocks == HFI_WINDOWS_WITHOUT_ROPE;
    bool uses = true;
    if (is_switched)
        TRY(hfi_bool(self, "use_sliding_window", false, &uses));
    const json_t *found = json_object_get(self->doc, key);
    *width = found || !uses ? 0 : of->width;
    if (!uses || !found || json_is_null(found))
        return 0;
    return hfi_uint(self, key, of->width, width);
}

static bool repeats(const struct blocks *of, uint64_t period)
{
    for (uint64_t i = period; i < of->count; i++)
        if (has_window(of, i) != has_window(of, i - period))
            return false;
    return true;
}

/* Writes the shortest pattern that gives these blocks when it is repeated. */
static int put_pattern(hfi_config *self, const struct blocks *of)
{
    char pattern[MODEL_PATTERN_BYTES];
    uint64_t period = 1;
    while (period < sizeof pattern && !repeats(of, period))
        period++;
    if (period >= sizeof pattern)
        return hfi_error(self, of->types ? "layer_types" : "max_window_layers",
                         "patterns of more than %zu blocks are not built", sizeof pattern - 1);
    for (uint64_t i = 0; i < period; i++)
        pattern[i] = has_window(of, i) ? 'w' : 'f';
    pattern[period] = '\0';
    return strcmp(pattern, "w") == 0 ? 0 : hfi_put(self, "window_pattern", json_string(pattern));
}

/* Writes that the blocks without the window have no rotary positions. */
static int put_others(hfi_config *self)
{
    const char *pattern = json_string_value(json_object_get(self->block, "window_pattern"));
    if (!pattern)
        return 0; /* all have a window */
    size_t period = strlen(pattern);
    if (strchr(pattern, 'f') != pattern + period - 1)
        return hfi_error(self, "layer_types",
                         "only blocks at equal intervals without rotary positions are built");
    return hfi_put(self, "nope_interval", json_integer((json_int_t)period));
}

int hfi_put_window(hfi_config *self, const struct hfi_windows *of, uint64_t layers)
{
    struct blocks blocks;
    uint64_t width;
    if (of->blocks == HFI_NO_WINDOWS || layers > LAYERS_MAX)
        return 0; /* too many layers: the check of the block reports it */
    TRY(find_blocks(self, of, layers, &blocks));
    TRY(find_width(self, of, &width));
    uint64_t count = count_windows(&blocks);
    if (width == 0 && count > 0 && (blocks.types || is_but_every(of)))
        return hfi_error(self, "sliding_window",
                         "no width is given, or use_sliding_window is not true, but there are "
                         "layers with a window");
    if (width == 0)
        return 0;
    if (of->blocks == HFI_WINDOWS_EVERYWHERE && count < layers)
        return hfi_error(self, "layer_types", "in this family all blocks have the same window");
    if (count == 0 && of->blocks == HFI_WINDOWS_WITH_ROPE)
        return hfi_error(self, "layer_types", "no block has rotary positions");
    if (count == 0)
        return 0;
    TRY(hfi_put(self, "window", json_integer((json_int_t)width)));
    TRY(put_pattern(self, &blocks));
    return of->blocks == HFI_WINDOWS_WITH_ROPE ? put_others(self) : 0;
}

int hfi_put_window_rope(hfi_config *self, const hfi_family *of)
{
    static const char parameters[] = "rope_parameters", inside[] = "sliding_attention";
    const char *name = "rope_parameters.sliding_attention.rope_theta";
    const json_t *all = hfi_get(self, parameters), *block = json_object_get(all, inside);
    const json_t *type = json_object_get(block, "rope_type");
    const char *key;
    json_t *value;
    double theta = of->window_theta;
    if (all && hfi_get(self, "rope_scaling"))
        return hfi_error(self, "rope_scaling", "it stands beside rope_parameters");
    json_object_foreach((json_t *)block, key, value)
    {
        if (strcmp(key, "rope_type") != 0 && strcmp(key, "rope_theta") != 0)
            return hfi_error(self, parameters, "\"%.64s\" in \"%s\" is no key that is built", key,
                             inside);
    }
    if (type && !(json_is_string(type) && strcmp(json_string_value(type), "default") == 0))
        return hfi_error(self, parameters, "stretched positions of \"%s\" are not built", inside);
    if (json_object_get(block, "rope_theta"))
        TRY(hfi_real(self, block, inside, "rope_theta", theta, &theta));
    else if ((name = of->window_theta_key))
        TRY(hfi_real(self, self->doc, "", name, theta, &theta));
    if (!json_object_get(self->block, "window"))
        return 0;
    if (!(theta > 1))
        return hfi_error(self, name, "%g is not above 1", theta);
    return hfi_put(self, "window_rope_theta", json_real(theta));
}

/* ---- the way back ---- */

bool hfi_has_window(const model_spec *from, uint64_t block)
{
    const char *pattern = from->window_pattern[0] ? from->window_pattern : "w";
    bool is_any = from->window != 0 || from->window_rope_theta != 0;
    return is_any && pattern[block % strlen(pattern)] == 'w';
}

static json_t *layer_types(const model_spec *from)
{
    json_t *list = json_array();
    for (uint64_t i = 0; list && i < from->num_layers; i++) {
        const char *type = hfi_has_window(from, i) ? "sliding_attention" : "full_attention";
        if (json_array_append_new(list, json_string(type)) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

int hfi_write_window(json_t *config, const model_spec *from, const struct hfi_windows *of)
{
    bool is_switched =
        of->blocks == HFI_WINDOWS_FROM_ONE_ON || of->blocks == HFI_WINDOWS_WITHOUT_ROPE;
    uint64_t width = from->window, first = 0;
    if (of->blocks == HFI_WINDOWS_BUT_EVERY && width == 0)
        width = from->seq_length; /* these types need a width even without windows */
    if (of->blocks == HFI_NO_WINDOWS)
        return 0;
    if (is_switched)
        TRY(hfi_add(config, "use_sliding_window", json_boolean(width != 0)));
    if (is_switched && width == 0)
        return 0;
    TRY(hfi_add(config, "sliding_window", width ? json_integer((json_int_t)width) : json_null()));
    while (first < from->num_layers && !hfi_has_window(from, first))
        first++;
    if (is_switched)
        TRY(hfi_add(config, "max_window_layers", json_integer((json_int_t)first)));
    return of->blocks == HFI_WINDOWS_EVERYWHERE ? 0
                                                : hfi_add(config, "layer_types", layer_types(from));
}
