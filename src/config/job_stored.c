/* How a base that does not learn is kept: state.params, or bitsandbytes' words for it. */
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

int configi_fill_stored(const configi_reader *reader, job *target)
{
    enum stored_format asked = asked_by_words(reader);
    const char *path = asked == STORED_INT8_ROWS ? eight_path : four_path;
    if (asked == STORED_WORKING)
        return 0;
    if (asked == STORED_INT8_ROWS && configi_bool(reader, four_path))
        return configi_error(reader, four_path, "true, and so is %s; give one of them", eight_path);
    if (configi_get(reader, params_path) && target->state.params != asked)
        return configi_error(reader, path, "true means %s %s, which is \"%s\"; give one of them",
                             params_path, stored_format_name(asked),
                             configi_choice(reader, params_path));
    target->state.params = asked;
    log_info("%s: %s: %s %s", reader->file, path, params_path, stored_format_name(asked));
    return 0;
}
