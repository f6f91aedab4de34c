/* The selection of units that learn: from the job to the model's spec, and as lines of the run's
 * identity. Allocates nothing. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "setup/setup_internal.h"

static enum model_family family_of(const struct job *asked)
{
    return strcmp(asked->model.family, "llama") == 0 ? MODEL_LLAMA : MODEL_GPT2;
}

/* As PEFT's target_modules: `asked` matches a module's whole name or its last part. So "c_proj"
 * matches both modules of that name in gpt2. */
static bool matches(const char *target, const char *asked)
{
    size_t target_bytes = strlen(target), asked_bytes = strlen(asked);
    if (asked_bytes > target_bytes || strcmp(target + target_bytes - asked_bytes, asked) != 0)
        return false;
    return asked_bytes == target_bytes || target[target_bytes - asked_bytes - 1] == '.';
}

static int find_target(enum model_family family, const char *asked, uint32_t *targets)
{
    char known[256] = "";
    bool found = false;
    const char *name;
    for (uint32_t i = 0; (name = model_lora_target(family, i)) != NULL; i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", name);
        if (!matches(name, asked))
            continue;
        *targets |= 1u << i;
        found = true;
    }
    if (found)
        return 0;
    return err_set(
        ERR_CONFIG,
        "train.lora.targets: \"%s\" is not a linear layer of this model family, which has %s",
        asked, known);
}

/* PEFT's own choice if no list is given. */
static void default_targets(struct job_train *train, enum model_family family)
{
    static const char *const names[MODEL_FAMILY_COUNT][2] = {
        [MODEL_GPT2] = {"c_attn", NULL},
        [MODEL_LLAMA] = {"q_proj", "v_proj"},
    };
    for (int i = 0; i < 2 && names[family][i]; i++)
        strcpy(train->lora_targets[train->lora_target_count++], names[family][i]);
}

int setup_fill_learning(const struct job *asked, model_spec *spec)
{
    struct job_train train = asked->train;
    model_learn *learn = &spec->learn;
    *learn = (model_learn){.is_given = train.is_given,
                           .embed = train.embed || train.all,
                           .head = train.head || train.all,
                           .norms = train.norms || train.all};
    static_assert((int)JOB_BLOCKS_MAX < (int)MODEL_RANGES_MAX, "and one for all");
    for (uint32_t i = 0; i < train.range_count; i++)
        learn->blocks[learn->range_count++] =
            (model_range){train.blocks[i].first, train.blocks[i].last};
    if (train.all)
        learn->blocks[learn->range_count++] = (model_range){0, spec->num_layers - 1};
    spec->lora = (model_lora){.rank = train.lora_rank, .alpha = train.lora_alpha};
    if (train.lora_rank > 0 && train.lora_target_count == 0)
        default_targets(&train, family_of(asked));
    for (uint32_t i = 0; i < train.lora_target_count; i++)
        TRY(find_target(family_of(asked), train.lora_targets[i], &spec->lora.targets));
    return 0;
}

/* Appends text. Text without room is cut; *used is then capacity - 1. */
static void append(char *text, size_t capacity, size_t *used, const char *item)
{
    int more = snprintf(text + *used, capacity - *used, "%s", item);
    *used = more < 0 || (size_t)more >= capacity - *used ? capacity - 1 : *used + (size_t)more;
}

static void append_only(const model_learn *learn, char *text, size_t capacity, size_t *used)
{
    static const char *const names[] = {"embed", "head", "norms"};
    const bool named[] = {learn->embed, learn->head, learn->norms};
    const char *between = "";
    append(text, capacity, used, "train.only=");
    for (int i = 0; i < 3; i++)
        if (named[i]) {
            append(text, capacity, used, between);
            append(text, capacity, used, names[i]);
            between = ",";
        }
    for (uint32_t i = 0; i < learn->range_count; i++) {
        char item[64];
        snprintf(item, sizeof item, "%sblocks.%" PRIu64 "-%" PRIu64, between,
                 learn->blocks[i].first, learn->blocks[i].last);
        append(text, capacity, used, item);
        between = ",";
    }
    append(text, capacity, used, "\n");
}

size_t setupi_name_learning(const model *net, char *text, size_t capacity)
{
    const model_lora *lora = &net->spec.lora;
    const char *name, *between = "";
    size_t used = 0;
    text[0] = '\0';
    if (net->spec.learn.is_given)
        append_only(&net->spec.learn, text, capacity, &used);
    if (lora->rank == 0)
        return used;
    char item[128];
    snprintf(item, sizeof item, "train.lora.rank=%" PRIu64 "\ntrain.lora.alpha=%.17g\n", lora->rank,
             lora->alpha);
    append(text, capacity, &used, item);
    append(text, capacity, &used, "train.lora.targets=");
    for (uint32_t i = 0; (name = model_lora_target(net->spec.family, i)) != NULL; i++)
        if (lora->targets >> i & 1) {
            append(text, capacity, &used, between);
            append(text, capacity, &used, name);
            between = ",";
        }
    append(text, capacity, &used, "\n");
    return used;
}
