/* How a base that does not learn is kept: state.params, or bitsandbytes' words for it. */
#include <stdio.h>

#include "base/log.h"
#include "config/config_internal.h"

static const char params_path[] = "state.params";
static const char four_path[] = "load_in_4bit", eight_path[] = "load_in_8bit";

/* The format that the words ask for; STORED_WORKING: none. */
static enum stored_format asked_by_words(const configi_reader *reader)
{
    if (configi_bool(reader, eight_path))
        return STORED_INT8_ROWS;
    if (!configi_bool(reader, four_path))
        return STORED_WORKING;
    bool is_nf4 = configi_choice_idx(reader, "bnb_4bit_quant_type") == 1;
    if (configi_bool(reader, "bnb_4bit_use_double_quant"))
        return is_nf4 ? STORED_NF4_DOUBLE : STORED_FP4_DOUBLE;
    return is_nf4 ? STORED_NF4 : STORED_FP4;
}

static int fill_rule(const configi_reader *reader, size_t idx, model_stored_rule *rule)
{
    static const char *const keys[] = {"tensors", "params"};
    char paths[2][CONFIGI_PATH_BYTES];
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "state.rules.%zu.%s", idx, keys[i]);
        if (!configi_get(reader, paths[i]))
            return configi_error(reader, paths[i], "missing; a rule has tensors and params");
    }
    TRY(configi_copy_text(reader, paths[0], rule->name, sizeof rule->name));
    rule->format = (enum stored_format)configi_enumerator(reader, paths[1]);
    return 0;
}

/* The keys below load_in_4bit say nothing without it. */
static int check_words(const configi_reader *reader)
{
    static const char *const keys[] = {"bnb_4bit_quant_type", "bnb_4bit_use_double_quant"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (configi_get(reader, keys[i]) && !configi_bool(reader, four_path))
            return configi_error(reader, keys[i],
                                 "given without %s, which it belongs to; leave it "
                                 "out, or set %s to true",
                                 four_path, four_path);
    return 0;
}

int configi_fill_stored(const configi_reader *reader, job *target)
{
    model_stored *stored = &target->model.stored;
    enum stored_format asked = asked_by_words(reader);
    const char *path = asked == STORED_INT8_ROWS ? eight_path : four_path;
    stored->may_keep_absent = stored->may_keep_absent || stored->is_of_checkpoint;
    stored->rule_count = (uint32_t)json_array_size(configi_get(reader, "state.rules"));
    for (uint32_t i = 0; i < stored->rule_count; i++)
        TRY(fill_rule(reader, i, &stored->rules[i]));
    TRY(check_words(reader));
    if (asked == STORED_WORKING)
        return 0;
    if (asked == STORED_INT8_ROWS && configi_bool(reader, four_path))
        return configi_error(reader, four_path, "true, and so is %s; give one of them", eight_path);
    if (configi_get(reader, params_path) && stored->format != asked)
        return configi_error(reader, path, "true means %s %s, which is \"%s\"; give one of them",
                             params_path, stored_format_name(asked),
                             configi_choice(reader, params_path));
    stored->format = asked;
    log_info("%s: %s: %s %s", reader->file, path, params_path, stored_format_name(asked));
    return 0;
}
