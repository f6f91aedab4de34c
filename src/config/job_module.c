/* The key model.module: the description of a module (base/module.h), in the job or in a file of its
 * own. See config_internal.h. Called by job_read. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "config/config_internal.h"

static const char module_path[] = "model.module";

/* A value of the description, and its path in messages. */
struct part {
    const configi_reader *reader;
    const json_t *value;
    char path[CONFIGI_PATH_BYTES];
};

static struct part part_of(const struct part *parent, const char *key)
{
    struct part part = {.reader = parent->reader, .value = json_object_get(parent->value, key)};
    configi_join(part.path, parent->path, key);
    return part;
}

static struct part entry_of(const struct part *list, size_t idx)
{
    char key[24];
    struct part part = {.reader = list->reader, .value = json_array_get(list->value, idx)};
    snprintf(key, sizeof key, "%zu", idx);
    configi_join(part.path, list->path, key);
    return part;
}

static bool is_absent(const struct part *part)
{
    return !part->value || json_is_null(part->value);
}

static int refuse(const struct part *part, const char *expected)
{
    char shown[CONFIGI_VALUE_BYTES];
    if (is_absent(part))
        return configi_error(part->reader, part->path, "missing; it must be %s", expected);
    return configi_error(part->reader, part->path, "%s is not %s", configi_show(part->value, shown),
                         expected);
}

/* ERR_CONFIG for a key that is not in `known`, "a|b|c". */
static int check_keys(const struct part *part, const char *known)
{
    const char *key;
    json_t *value;
    if (!json_is_object(part->value))
        return refuse(part, "an object");
    json_object_foreach((json_t *)(uintptr_t)part->value, key, value)
    {
        const struct part own = part_of(part, key);
        if (configi_list_find(known, key) < 0)
            return configi_error(part->reader, own.path, "unknown key; it may be one of %s", known);
    }
    return 0;
}

static int read_name(const struct part *parent, char target[MODULE_NAME_BYTES])
{
    const struct part part = part_of(parent, "name");
    if (!json_is_string(part.value) || json_string_length(part.value) == 0)
        return refuse(&part, "a name");
    if (json_string_length(part.value) >= MODULE_NAME_BYTES)
        return configi_error(part.reader, part.path, "a name of %zu bytes; at most %d are possible",
                             json_string_length(part.value), MODULE_NAME_BYTES - 1);
    for (const char *at = json_string_value(part.value); *at; at++)
        if ((unsigned char)*at < ' ')
            return refuse(&part, "a name without control characters");
    strcpy(target, json_string_value(part.value));
    return 0;
}

static int read_whole(const struct part *part, uint64_t least, uint64_t most, uint64_t *out)
{
    char expected[96];
    if (json_is_integer(part->value) && json_integer_value(part->value) >= 0) {
        *out = (uint64_t)json_integer_value(part->value);
        if (*out >= least && *out <= most)
            return 0;
    }
    snprintf(expected, sizeof expected, "a whole number from %" PRIu64 " to %" PRIu64, least, most);
    return refuse(part, expected);
}

static int read_flag(const struct part *part, bool fallback, bool *out)
{
    *out = is_absent(part) ? fallback : json_is_true(part->value);
    return is_absent(part) || json_is_boolean(part->value) ? 0 : refuse(part, "true or false");
}

static int read_list(const struct part *part, size_t least, size_t most, const char *what)
{
    char expected[96];
    size_t count = json_array_size(part->value);
    if (json_is_array(part->value) && count >= least && count <= most)
        return 0;
    snprintf(expected, sizeof expected, "a list of %zu to %zu %s", least, most, what);
    if (json_is_array(part->value))
        return configi_error(part->reader, part->path, "%zu entries; it must be %s", count,
                             expected);
    return refuse(part, expected);
}

/* ---- units ---- */

static int read_tensor(const struct part *part, module_tensor *out, uint64_t *unit_elems)
{
    uint64_t elems = 1;
    TRY(check_keys(part, "name|shape"));
    TRY(read_name(part, out->name));
    const struct part shape = part_of(part, "shape");
    TRY(read_list(&shape, 0, MODULE_DIMENSIONS_MAX, "sizes"));
    out->dimension_count = (uint32_t)json_array_size(shape.value);
    for (uint32_t i = 0; i < out->dimension_count; i++) {
        const struct part size = entry_of(&shape, i);
        TRY(read_whole(&size, 1, UINT64_C(1) << 48, &out->shape[i]));
        if (size_mul(elems, out->shape[i], &elems) < 0)
            elems = UINT64_MAX;
    }
    enum { UNIT_BITS = 48 };
    *unit_elems = elems > UINT64_MAX - *unit_elems ? UINT64_MAX : *unit_elems + elems;
    if (*unit_elems >> UNIT_BITS != 0)
        return configi_error(part->reader, part->path,
                             "with this tensor, %s, the unit has more than 2^%d elements",
                             out->name, (int)UNIT_BITS);
    return 0;
}

static int read_unit(const struct part *part, module_unit *out)
{
    uint64_t group = 0, elems = 0;
    TRY(check_keys(part, "name|group|frozen|matrices|tensors"));
    TRY(read_name(part, out->name));
    const struct part number = part_of(part, "group"), tensors = part_of(part, "tensors");
    const struct part frozen = part_of(part, "frozen"), matrices = part_of(part, "matrices");
    if (!is_absent(&number))
        TRY(read_whole(&number, 0, MODULE_GROUPS_MAX - 1, &group));
    out->group = (uint32_t)group;
    TRY(read_flag(&frozen, false, &out->is_frozen));
    TRY(read_flag(&matrices, false, &out->has_matrices));
    TRY(read_list(&tensors, 1, UINT32_MAX / 2, "tensors"));
    size_t count = json_array_size(tensors.value);
    out->tensors = mem_alloc(count, sizeof *out->tensors, "module tensors");
    if (!out->tensors)
        return -ENOMEM;
    out->tensor_count = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        const struct part tensor = entry_of(&tensors, i);
        TRY(read_tensor(&tensor, &out->tensors[i], &elems));
    }
    return 0;
}

static int read_units(const struct part *part, module_spec *out)
{
    TRY(read_list(part, 1, MODULE_UNITS_MAX, "units"));
    size_t count = json_array_size(part->value);
    out->units = mem_alloc(count, sizeof *out->units, "module units");
    if (!out->units)
        return -ENOMEM;
    out->unit_count = (uint32_t)count;
    out->group_count = 1;
    for (size_t u = 0; u < count; u++) {
        const struct part unit = entry_of(part, u);
        TRY(read_unit(&unit, &out->units[u]));
        out->group_count = (uint32_t)size_max(out->group_count, out->units[u].group + 1);
        for (size_t before = 0; before < u; before++)
            if (strcmp(out->units[before].name, out->units[u].name) == 0)
                return configi_error(part->reader, unit.path,
                                     "its name, %s, is that of unit %zu too", out->units[u].name,
                                     before);
    }
    return 0;
}

/* ---- stages ---- */

static int read_uses(const struct part *part, const char *key, uint32_t count,
                     const bool fallback[2], bool out[2])
{
    const struct part list = part_of(part, key);
    for (uint32_t i = 0; i < count; i++)
        out[i] = fallback[i];
    if (is_absent(&list))
        return 0;
    if (json_array_size(list.value) != count)
        return refuse(&list, "a list of true or false for each unit of the stage");
    for (uint32_t i = 0; i < count; i++) {
        const struct part entry = entry_of(&list, i);
        TRY(read_flag(&entry, true, &out[i]));
    }
    return 0;
}

static int read_seconds(const struct part *pass, const char *key, double *out)
{
    const struct part part = part_of(pass, key);
    if (!is_absent(&part) && !(json_is_number(part.value) && json_number_value(part.value) >= 0 &&
                               json_number_value(part.value) < 1e9))
        return refuse(&part, "a number of seconds, at least 0 and below 1e9");
    *out = json_number_value(part.value);
    return 0;
}

static int read_pass(const struct part *stage, const char *key, const module_spec *spec,
                     const module_stage *of, module_pass *out)
{
    bool is_backward = out == &of->backward;
    bool reads[2] = {true, true}, adds[2] = {false, false};
    const struct part part = part_of(stage, key);
    if (is_absent(&part))
        return 0;
    out->is_computed = true;
    TRY(check_keys(&part, is_backward ? "seconds|copy_seconds|reads|adds" : "seconds|reads"));
    TRY(read_seconds(&part, "seconds", &out->seconds));
    TRY(read_seconds(&part, "copy_seconds", &out->copy_seconds));
    TRY(read_uses(&part, "reads", of->unit_count, reads, out->uses));
    for (uint32_t i = 0; i < of->unit_count && is_backward; i++)
        adds[i] = !spec->units[of->units[i]].is_frozen;
    bool learns[2] = {adds[0], adds[1]};
    if (is_backward)
        TRY(read_uses(&part, "adds", of->unit_count, adds, out->adds));
    for (uint32_t i = 0; i < of->unit_count; i++)
        if (out->adds[i] && !learns[i])
            return configi_error(part.reader, part.path,
                                 "it adds to the gradients of %s, which is frozen",
                                 spec->units[of->units[i]].name);
    return 0;
}

static int read_stage(const struct part *part, const module_spec *spec, module_stage *out)
{
    TRY(check_keys(part, "name|units|forward|backward"));
    TRY(read_name(part, out->name));
    const struct part units = part_of(part, "units");
    TRY(read_list(&units, 1, 2, "numbers of units"));
    out->unit_count = (uint32_t)json_array_size(units.value);
    for (uint32_t i = 0; i < out->unit_count; i++) {
        const struct part number = entry_of(&units, i);
        uint64_t unit = 0;
        TRY(read_whole(&number, 0, spec->unit_count - 1, &unit));
        out->units[i] = (uint32_t)unit;
    }
    if (out->unit_count == 2 && out->units[0] == out->units[1])
        return configi_error(part->reader, units.path, "unit %" PRIu32 " is there twice",
                             out->units[0]);
    TRY(read_pass(part, "forward", spec, out, &out->forward));
    return read_pass(part, "backward", spec, out, &out->backward);
}

/* A unit may be updated as soon as its gradients are complete: no backward may read it later. The
 * backward goes from the last stage to the first. */
static int check_late_reads(const struct part *part, const module_spec *spec, uint32_t unit)
{
    const module_stage *late = NULL;
    for (uint32_t s = 0; s < spec->stage_count; s++)
        for (uint32_t i = 0; i < spec->stages[s].unit_count; i++) {
            const module_pass *pass = &spec->stages[s].backward;
            if (spec->stages[s].units[i] != unit)
                continue;
            if (pass->adds[i] && late)
                return configi_error(part->reader, part->path,
                                     "the backward of %s reads %s after its last gradient, which "
                                     "%s adds: its params may be new by then",
                                     late->name, spec->units[unit].name, spec->stages[s].name);
            if (pass->adds[i])
                return 0;
            late = pass->is_computed && pass->uses[i] ? &spec->stages[s] : late;
        }
    return 0;
}

/* Each unit that learns needs a backward that adds to its gradients; each unit needs a stage. The
 * stages without a backward are the first ones. */
static int check_stages(const struct part *part, const module_spec *spec)
{
    bool goes_back = false;
    for (uint32_t s = 0; s < spec->stage_count; s++) {
        const module_stage *stage = &spec->stages[s];
        if (goes_back && !stage->backward.is_computed)
            return configi_error(part->reader, part->path,
                                 "stage %" PRIu32 ", %s, has no backward, but one before it has", s,
                                 stage->name);
        goes_back = goes_back || stage->backward.is_computed;
    }
    if (!goes_back)
        return configi_error(part->reader, part->path, "no stage has a backward: nothing learns");
    for (uint32_t u = 0; u < spec->unit_count; u++) {
        bool is_used = false, learns = false;
        for (uint32_t s = 0; s < spec->stage_count; s++)
            for (uint32_t i = 0; i < spec->stages[s].unit_count; i++) {
                bool is_own = spec->stages[s].units[i] == u;
                is_used = is_used || is_own;
                learns = learns || (is_own && spec->stages[s].backward.adds[i]);
            }
        if (!is_used || (!learns && !spec->units[u].is_frozen))
            return configi_error(
                part->reader, part->path, "unit %" PRIu32 ", %s, %s", u, spec->units[u].name,
                is_used ? "learns, but no backward adds to its gradients" : "is in no stage");
        TRY(check_late_reads(part, spec, u));
    }
    return 0;
}

static int read_stages(const struct part *part, module_spec *out)
{
    TRY(read_list(part, 2, MODULE_STAGES_MAX, "stages"));
    size_t count = json_array_size(part->value);
    out->stages = mem_alloc(count, sizeof *out->stages, "module stages");
    if (!out->stages)
        return -ENOMEM;
    out->stage_count = (uint32_t)count;
    for (size_t s = 0; s < count; s++) {
        const struct part stage = entry_of(part, s);
        TRY(read_stage(&stage, out, &out->stages[s]));
    }
    return check_stages(part, out);
}

/* ---- the whole ---- */

int configi_expand_module(const configi_reader *reader)
{
    const json_t *given = configi_get(reader, module_path);
    json_t *doc;
    if (!json_is_string(given))
        return 0;
    TRY(configi_read_json(json_string_value(given), &doc));
    return configi_put_path(reader, module_path, doc);
}

/* Refuses keys that say what a module's program decides. */
static int check_others(const configi_reader *reader)
{
    static const char *const none[] = {"data.train", "data.valid",   "train.only",
                                       "train.lora", "state.params", "state.rules"};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)configi_get(reader, "model"), key, value)
    {
        char path[CONFIGI_PATH_BYTES];
        configi_join(path, "model", key);
        if (strcmp(key, "module") != 0 && strcmp(key, "description") != 0 &&
            configi_get(reader, path))
            return configi_error(reader, path,
                                 "model.module describes the whole model: leave this key out");
    }
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        if (configi_get(reader, none[i]))
            return configi_error(reader, none[i],
                                 "the program that computes the passes of model.module has its own "
                                 "data, and its units say what is frozen: leave this key out");
    if (configi_uint(reader, "run.eval_every") > 0)
        return configi_error(reader, "run.eval_every",
                             "the program that computes the passes of model.module evaluates when "
                             "it likes: set it to 0, or leave it out");
    return 0;
}

int configi_fill_module(const configi_reader *reader, job *target)
{
    model_spec *model = &target->model;
    struct part whole = {.reader = reader, .value = configi_get(reader, module_path)};
    TRY(check_others(reader));
    snprintf(whole.path, sizeof whole.path, "%s", module_path);
    TRY(check_keys(&whole, "name|lends_grads|units|stages"));
    module_spec *spec = target->module = mem_alloc(1, sizeof *spec, "module");
    if (!spec)
        return -ENOMEM;
    const struct part units = part_of(&whole, "units"), stages = part_of(&whole, "stages");
    const struct part lends = part_of(&whole, "lends_grads");
    TRY(read_name(&whole, spec->name));
    TRY(read_flag(&lends, false, &spec->lends_grads));
    TRY(read_units(&units, spec));
    TRY(read_stages(&stages, spec));
    /* A micro-batch of a module counts as one token. */
    model->num_layers = spec->stage_count;
    model->seq_length = model->vocab_size = 1;
    return 0;
}

int configi_settle_module(const configi_reader *reader, job *target)
{
    static const char order_path[] = "schedule.order";
    static const uint64_t steps_most = UINT64_C(1000000000000); /* of run.steps */
    if (!target->module)
        return 0;
    target->micro_batch = 1;
    if (!configi_get(reader, "run.steps")) /* the program ends when it likes */
        target->run.steps = steps_most;
    bool is_given = configi_get(reader, order_path) != NULL;
    if (target->accumulation > 1 && is_given && target->schedule.order == ORDER_LAYER_MAJOR)
        return configi_error(reader, order_path,
                             "a program computes a whole micro-batch of model.module at once, and "
                             "gradient_accumulation_steps is %" PRIu64
                             ": set it to batch_major, or leave it out",
                             target->accumulation);
    target->schedule.order = target->accumulation > 1 ? ORDER_BATCH_MAJOR : ORDER_LAYER_MAJOR;
    return 0;
}

void configi_free_module(module_spec *spec)
{
    for (uint32_t u = 0; spec && spec->units && u < spec->unit_count; u++)
        mem_free(spec->units[u].tensors);
    if (spec) {
        mem_free(spec->units);
        mem_free(spec->stages);
    }
    mem_free(spec);
}
