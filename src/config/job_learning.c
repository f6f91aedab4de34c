/* The train block: which params learn. See config_internal.h. Called by job_read; pure. The model
 * checks whether it has the names that are given here. */
#include <stdlib.h>
#include <string.h>

#include "config/config_internal.h"

/* Returns item `idx` of a text or an array of texts (CONFIGI_STRINGS); NULL after the last. */
static const char *item_of(const json_t *value, size_t idx)
{
    if (json_is_string(value))
        return idx == 0 ? json_string_value(value) : NULL;
    return json_string_value(json_array_get(value, idx));
}

/* Reads "12" and sets `end`. */
static bool read_number(const char *text, const char **end, uint64_t *number)
{
    char *after;
    if (*text < '0' || *text > '9' || strspn(text, "0123456789") > 9)
        return false;
    *number = strtoull(text, &after, 10);
    *end = after;
    return true;
}

/* Reads "blocks.20-31" or "blocks.5". */
static bool read_blocks(const char *text, model_range *range)
{
    static const char prefix[] = "blocks.";
    const char *end;
    if (strncmp(text, prefix, sizeof prefix - 1) != 0 ||
        !read_number(text + sizeof prefix - 1, &end, &range->first))
        return false;
    range->last = range->first;
    return *end == '\0' ||
           (*end == '-' && read_number(end + 1, &end, &range->last) && *end == '\0');
}

static int read_only(const configi_reader *reader, const char *text, model_learn *learn)
{
    static const char path[] = "train.only";
    model_range range;
    if (strcmp(text, "all") == 0)
        learn->all = true;
    else if (strcmp(text, "embed") == 0)
        learn->embed = true;
    else if (strcmp(text, "head") == 0)
        learn->head = true;
    else if (strcmp(text, "norms") == 0)
        learn->norms = true;
    else if (!read_blocks(text, &range))
        return configi_error(reader, path,
                             "\"%.60s\" is none of blocks.FIRST-LAST, blocks.NUMBER, embed, head, "
                             "norms, all",
                             text);
    else if (range.last < range.first)
        return configi_error(reader, path, "\"%.60s\" ends before it begins", text);
    else if (learn->range_count == MODEL_RANGES_MAX)
        return configi_error(reader, path, "there are more than %d ranges of blocks",
                             (int)MODEL_RANGES_MAX);
    else
        learn->blocks[learn->range_count++] = range;
    return 0;
}

static int fill_lora(const configi_reader *reader, job *target)
{
    static const char path[] = "train.lora.targets";
    struct job_lora *lora = &target->lora;
    TRY(configi_check_fp32(reader, "train.lora.alpha", target->model.lora.alpha));
    const json_t *targets = configi_get(reader, path);
    const char *text;
    for (size_t i = 0; targets && (text = item_of(targets, i)) != NULL; i++) {
        if (strlen(text) >= JOB_NAME_BYTES || i >= JOB_TARGETS_MAX)
            return configi_error(reader, path,
                                 "\"%.60s\" is not a layer, or there are more than %d", text,
                                 (int)JOB_TARGETS_MAX);
        strcpy(lora->targets[lora->target_count++], text);
    }
    if (targets && lora->target_count == 0)
        return configi_error(reader, path,
                             "the list is empty; name layers, such as q_proj, or leave it out");
    return 0;
}

int configi_fill_train(const configi_reader *reader, job *target)
{
    static const char path[] = "train.only";
    const json_t *only = configi_get(reader, path);
    const char *text;
    target->model.learn.is_given = only != NULL;
    for (size_t i = 0; only && (text = item_of(only, i)) != NULL; i++)
        TRY(read_only(reader, text, &target->model.learn));
    if (only && item_of(only, 0) == NULL)
        return configi_error(reader, path,
                             "the list is empty; name what learns (blocks.FIRST-LAST, embed, head, "
                             "norms, all), or leave it out");
    if (configi_get(reader, "train.lora"))
        return fill_lora(reader, target);
    target->model.lora = (model_lora){0}; /* no adapters */
    target->lora.from[0] = '\0';
    return 0;
}
