/* The tiers block. DeepSpeed's offload blocks are other ways to say the same. See
 * config_internal.h. Called by job_read; pure. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "config/config_internal.h"

static const char *const place_paths[STATE_KIND_COUNT] = {
    [STATE_PARAMS] = "tiers.place.params",
    [STATE_GRADS] = "tiers.place.grads",
    [STATE_OPTIMIZER] = "tiers.place.optimizer",
    [STATE_ACTIVATIONS] = "tiers.place.activations",
    [STATE_INNER_ACTIVATIONS] = "tiers.place.inner_activations",
};

/* Removes empty and "." segments from a path. The result fits, because it only becomes shorter. */
static void plain_path(const char *path, char plain[FILE_PATH_BYTES + 2])
{
    size_t used = 0;
    if (path[0] == '/')
        plain[used++] = '/';
    while (*path) {
        size_t length = strcspn(path, "/");
        if (length > 0 && !(length == 1 && path[0] == '.')) {
            memcpy(plain + used, path, length);
            used += length;
            plain[used++] = '/';
        }
        path += length + (path[length] == '/');
    }
    plain[used] = '\0';
}

/* Adds a drive unless its directory is already there. */
static int add_drive(const configi_reader *reader, job *target, const char *path,
                     uint64_t budget_bytes)
{
    char text[FILE_PATH_BYTES], asked[FILE_PATH_BYTES + 2], known[FILE_PATH_BYTES + 2];
    TRY(configi_copy_text(reader, path, text, sizeof text));
    TRY(configi_check_placeholders(reader, path, text));
    plain_path(text, asked);
    for (uint32_t i = 0; i < target->tiers.nvme_count; i++) {
        plain_path(target->tiers.nvme[i].path, known);
        if (strcmp(asked, known) == 0)
            return 0;
    }
    if (target->tiers.nvme_count == DRIVES_MAX)
        return configi_error(reader, path, "more than %d drives", DRIVES_MAX);
    struct job_drive *drive = &target->tiers.nvme[target->tiers.nvme_count];
    memcpy(drive->path, text, strlen(text) + 1); /* the rest stays zero: jobs are compared */
    drive->budget_bytes = budget_bytes;
    target->tiers.nvme_count++;
    return 0;
}

static int fill_drives(const configi_reader *reader, job *target)
{
    size_t count = json_array_size(configi_get(reader, "tiers.nvme"));
    for (size_t i = 0; i < count; i++) {
        char path[CONFIGI_PATH_BYTES], budget[CONFIGI_PATH_BYTES];
        snprintf(path, sizeof path, "tiers.nvme.%zu.path", i);
        snprintf(budget, sizeof budget, "tiers.nvme.%zu.budget", i);
        if (!configi_get(reader, path))
            return configi_error(reader, path, "missing; name a directory on the drive");
        TRY(add_drive(reader, target, path, configi_uint(reader, budget)));
        if (target->tiers.nvme_count != i + 1)
            return configi_error(reader, path, "\"%s\" is given twice", configi_text(reader, path));
    }
    return 0;
}

/* Applies what `key` (whose value is shown as `shown`) says about a kind. Returns ERR_CONFIG if
 * tiers.place says something else. */
static int state_place(const configi_reader *reader, job *target, enum state_kind kind,
                       enum tier tier, const char *key, const char *shown)
{
    enum tier *place = &target->tiers.place[kind];
    if (*place != TIER_AUTO && *place != tier)
        return configi_error(reader, place_paths[kind],
                             "\"%s\" disagrees with %s, which is %s and means \"%s\"; give one of "
                             "them",
                             tier_name(*place), key, shown, tier_name(tier));
    *place = tier;
    return 0;
}

/* Applies offload_optimizer or offload_param, and the older switch that means the same as device
 * "cpu". */
static int fill_offload(const configi_reader *reader, job *target, enum state_kind kind,
                        const char *block, const char *older)
{
    char device[CONFIGI_PATH_BYTES], nvme_path[CONFIGI_PATH_BYTES];
    configi_join(device, block, "device");
    configi_join(nvme_path, block, "nvme_path");
    if (configi_bool(reader, older)) {
        if (configi_get(reader, block))
            return configi_error(reader, older, "given beside %s; give one of them", block);
        return state_place(reader, target, kind, TIER_HOST, older, "true");
    }
    if (!configi_get(reader, device))
        return 0;
    enum tier tier = (enum tier)configi_enumerator(reader, device);
    char shown[CONFIGI_VALUE_BYTES];
    TRY(state_place(reader, target, kind, tier, device,
                    configi_show(configi_get(reader, device), shown)));
    if (tier == TIER_NVME && configi_get(reader, nvme_path))
        return add_drive(reader, target, nvme_path, 0);
    return 0;
}

/* offload_optimizer.ratio: the first blocks keep their optimizer state on the device. This comes
 * before all rules of the job, so those win. Unit 0 is the embedding. */
static int fill_ratio(const configi_reader *reader, job *target)
{
    enum { STAGE_WEIGHTS = 3 };
    static const char path[] = "zero_optimization.offload_optimizer.ratio";
    double ratio = configi_double(reader, path);
    enum tier home = target->tiers.place[STATE_OPTIMIZER];
    if (ratio >= 1 || (home != TIER_HOST && home != TIER_NVME))
        return 0;
    if (target->zero_stage != STAGE_WEIGHTS)
        return configi_error(reader, path, "%g: below 1 it needs zero_optimization.stage 3", ratio);
    if (target->model.max_part_bytes > 0 || target->model.expert_count > 0)
        return configi_error(reader, path,
                             "%g beside model.%s: such blocks have several units, which are placed "
                             "one by one; write tiers.place.rules instead",
                             ratio,
                             target->model.expert_count > 0 ? "num_experts" : "max_part_bytes");
    double share = (1.0 - ratio) * (double)target->model.num_layers;
    uint32_t blocks = (uint32_t)(share + 1e-9); /* 0.1 of 10 is 1, however it rounds */
    if (blocks == 0)
        return 0;
    if (target->tiers.rule_count == JOB_RULES_MAX)
        return configi_error(reader, path,
                             "%g stands for one more rule than tiers.place.rules holds", ratio);
    memmove(&target->tiers.rules[1], target->tiers.rules,
            target->tiers.rule_count * sizeof target->tiers.rules[0]);
    target->tiers.rules[0] = (struct job_rule){
        .unit_first = 1, .unit_last = blocks, .kind = STATE_OPTIMIZER, .tier = TIER_DEVICE};
    target->tiers.rule_count++;
    log_info("%s: %s %g: the optimizer state of units 1 to %" PRIu32 " rests on the device",
             reader->file, path, ratio, blocks);
    return 0;
}

/* Reads the number of a unit at the start of a text; NULL if there is none. */
static const char *parse_unit(const char *text, uint32_t *unit)
{
    if (text[0] < '0' || text[0] > '9')
        return NULL;
    char *end;
    unsigned long long number = strtoull(text, &end, 10);
    if (number >= UINT32_MAX)
        return NULL;
    *unit = (uint32_t)number;
    return end;
}

/* True for words of a unit's name: not numbers alone. */
static bool is_unit_name(const char *text)
{
    return configi_is_name(text) && strpbrk(text, "abcdefghijklmnopqrstuvwxyz") != NULL;
}

static int parse_units(const configi_reader *reader, const char *path, struct job_rule *rule)
{
    char shown[CONFIGI_VALUE_BYTES], number[CONFIGI_VALUE_BYTES];
    const json_t *value = configi_get(reader, path);
    const char *text = json_string_value(value);
    if (json_is_integer(value)) {
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        text = number;
    }
    if (text && strcmp(text, "all") == 0) {
        rule->unit_first = 0;
        rule->unit_last = UINT32_MAX;
        return 0;
    }
    if (text && is_unit_name(text) && strlen(text) < sizeof rule->name) {
        snprintf(rule->name, sizeof rule->name, "%.*s", JOB_NAME_BYTES - 1, text);
        rule->unit_last = UINT32_MAX;
        return 0;
    }
    const char *at = text ? parse_unit(text, &rule->unit_first) : NULL;
    rule->unit_last = rule->unit_first;
    if (at && *at == '-')
        at = parse_unit(at + 1, &rule->unit_last);
    if (!at || *at != '\0')
        return configi_error(reader, path,
                             "%s names no units: write \"all\", \"3\", \"0-11\", or words of "
                             "their names, as in \"3.experts\"",
                             configi_show(value, shown));
    if (rule->unit_first > rule->unit_last)
        return configi_error(reader, path, "%s begins after its end", configi_show(value, shown));
    return 0;
}

static int fill_rule(const configi_reader *reader, size_t idx, struct job_rule *rule)
{
    static const char *const keys[] = {"units", "kind", "tier"};
    char paths[3][CONFIGI_PATH_BYTES];
    for (int i = 0; i < 3; i++) {
        snprintf(paths[i], sizeof paths[i], "tiers.place.rules.%zu.%s", idx, keys[i]);
        if (!configi_get(reader, paths[i]))
            return configi_error(reader, paths[i], "missing; a rule has units, kind and tier");
    }
    TRY(parse_units(reader, paths[0], rule));
    rule->kind = (enum state_kind)configi_enumerator(reader, paths[1]);
    rule->tier = (enum tier)configi_enumerator(reader, paths[2]);
    if (rule->tier >= TIER_COUNT && rule->kind != STATE_INNER_ACTIVATIONS)
        return configi_error(reader, paths[2],
                             "\"%s\" is for the kind inner_activations; %s must rest on "
                             "device, host or nvme",
                             tier_name(rule->tier), configi_text(reader, paths[1]));
    return 0;
}

/* A state whose home is NVMe needs a drive. */
static int check_drives(const configi_reader *reader, const job *target)
{
    static const char advice[] = "needs a drive: give tiers.nvme, as in "
                                 "\"nvme\": [{\"path\": \"/mnt/nvme0/sluice\"}], or nvme_path";
    if (target->tiers.nvme_count > 0)
        return 0;
    for (int kind = 0; kind < STATE_KIND_COUNT; kind++) {
        if (tier_of_home(target->tiers.place[kind]) != TIER_NVME)
            continue;
        const char *path = place_paths[kind];
        if (kind == STATE_OPTIMIZER && !configi_get(reader, path))
            path = "zero_optimization.offload_optimizer.device";
        if (kind == STATE_PARAMS && !configi_get(reader, path))
            path = "zero_optimization.offload_param.device";
        return configi_error(reader, path, "\"%s\" %s", tier_name(target->tiers.place[kind]),
                             advice);
    }
    for (uint32_t i = 0; i < target->tiers.rule_count; i++) {
        char path[CONFIGI_PATH_BYTES];
        snprintf(path, sizeof path, "tiers.place.rules.%" PRIu32 ".tier", i);
        if (tier_of_home(target->tiers.rules[i].tier) == TIER_NVME)
            return configi_error(reader, path, "\"%s\" %s", tier_name(target->tiers.rules[i].tier),
                                 advice);
    }
    return 0;
}

int configi_fill_tiers(const configi_reader *reader, job *target)
{
    TRY(fill_drives(reader, target));
    TRY(fill_offload(reader, target, STATE_OPTIMIZER, "zero_optimization.offload_optimizer",
                     "zero_optimization.cpu_offload"));
    TRY(fill_offload(reader, target, STATE_PARAMS, "zero_optimization.offload_param",
                     "zero_optimization.cpu_offload_param"));
    static const char checkpointing[] = "activation_checkpointing.cpu_checkpointing";
    if (configi_bool(reader, checkpointing))
        TRY(state_place(reader, target, STATE_ACTIVATIONS, TIER_HOST, checkpointing, "true"));
    for (int i = 0; i < JOB_RULES_MAX; i++)
        target->tiers.rules[i].tier = TIER_AUTO; /* rules that are not given place nothing */
    size_t rule_count = json_array_size(configi_get(reader, "tiers.place.rules"));
    for (size_t i = 0; i < rule_count; i++)
        TRY(fill_rule(reader, i, &target->tiers.rules[i]));
    target->tiers.rule_count = (uint32_t)rule_count;
    TRY(check_drives(reader, target));
    return fill_ratio(reader, target);
}
