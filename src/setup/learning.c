/* The part of a job's model that learns, and the formats in which its optimizer state is stored
 * (base/tile.h). Pure. */
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "base/shard.h"
#include "base/text.h"
#include "base/tile.h"
#include "setup/setup_internal.h"

int setup_refuse_module(const struct job *asked, const char *task)
{
    if (!asked->module)
        return 0;
    return err_set(ERR_USAGE,
                   "%s: the passes of model.module, %s, are computed by a program: use the Python "
                   "package (sluice.torch), or sluice_module_* of the C library",
                   task, asked->module->name);
}

/* ---- what learns ---- */

/* As PEFT's target_modules: `asked` matches a module's whole name or its last part. So "c_proj"
 * matches both modules of that name in gpt2. As the name of a parameter, "down_proj.weight" matches
 * linear layers but no matrix of all experts. */
static bool matches(const char *target, const char *asked)
{
    size_t target_bytes = strlen(target), asked_bytes = strlen(asked);
    if (asked_bytes > target_bytes || strcmp(target + target_bytes - asked_bytes, asked) != 0)
        return false;
    return asked_bytes == target_bytes || target[target_bytes - asked_bytes - 1] == '.';
}

static int find_target(const model_spec *spec, const char *asked, uint32_t *targets)
{
    char known[512] = "", parameter[MODEL_NAME_BYTES];
    uint32_t found = 0, there = 0;
    const char *name;
    for (uint32_t i = 0; (name = model_lora_target(spec->family, i)) != NULL; i++) {
        text_add(known, sizeof known, "%s%s", i ? ", " : "", name);
        snprintf(parameter, sizeof parameter, "%s%s", name,
                 model_lora_is_expert(spec->family, i) ? "" : ".weight");
        if (!matches(name, asked) && !matches(parameter, asked))
            continue;
        found |= 1u << i;
        there |= model_lora_is_there(spec, i) ? 1u << i : 0;
    }
    *targets |= there ? there : found; /* the model refuses what it does not have */
    if (found)
        return 0;
    return err_set(
        ERR_CONFIG,
        "train.lora.targets: \"%s\" is not a linear layer of this model family, which has %s",
        asked, known);
}

/* PEFT's own choice if no list is given: q_proj and v_proj, or what takes their place. */
static const char *const *default_targets(enum model_family family)
{
    static const char *const others[MODEL_FAMILY_COUNT][3] = {
        [MODEL_GPT2] = {"c_attn"},
        [MODEL_PHI3] = {"qkv_proj"},
        [MODEL_BERT] = {"query", "value"},
        [MODEL_GPT_NEOX] = {"query_key_value"},
        [MODEL_DEEPSEEK] = {"kv_a_proj_with_mqa", "kv_b_proj"}, /* PEFT has no choice of its own */
    };
    static const char *const usual[] = {"q_proj", "v_proj", NULL};
    return others[family][0] ? others[family] : usual;
}

int setup_model_spec(const struct job *asked, model_spec *spec)
{
    const struct job_lora *lora = &asked->lora;
    *spec = asked->model;
    spec->splits_vectors = asked->optimizer.type == JOB_MUON;
    const char *const *names = default_targets(spec->family);
    for (; lora->target_count == 0 && spec->lora.rank > 0 && *names; names++)
        TRY(find_target(spec, *names, &spec->lora.targets));
    for (uint32_t i = 0; i < lora->target_count; i++)
        TRY(find_target(spec, lora->targets[i], &spec->lora.targets));
    return 0;
}

/* ---- optimizer state ---- */

/* Upper half of the random key; the lower half is the unit. It differs from the streams of initial
 * weights. */
enum { ROUNDING_STREAM = 0x526f756e };

uint32_t setupi_state_streams(const struct job *asked, bool params_alone)
{
    enum tile_format master = asked->state.master, moments = asked->state.moments;
    if (params_alone)
        master = moments = TILE_FP32;
    else if (master == TILE_LOW16 && asked->type == DTYPE_FP32)
        master = TILE_PARAMS;
    if (asked->optimizer.type != JOB_ADAM && asked->optimizer.type != JOB_MUON)
        return tile_streams_code(2, master, TILE_FP32, TILE_FP32);
    /* Muon: of units with tensors that Adam updates */
    return tile_streams_code(3, master, moments, moments);
}

uint32_t setup_streams_of(const struct job *asked, const model *net, uint32_t unit)
{
    if (asked->optimizer.type == JOB_MUON && model_has_only_matrices(net, unit))
        return TILE_MATRIX_STREAMS;
    return setupi_state_streams(asked, false);
}

const char *setup_formats_text(uint32_t streams, char text[SETUP_FORMATS_BYTES])
{
    text[0] = '\0';
    for (uint32_t i = 0; i < tile_stream_count(streams); i++)
        text_add(text, SETUP_FORMATS_BYTES, "%s%s", i ? ", " : "",
                 tile_format_name(tile_stream_format(streams, i)));
    return text;
}

uint64_t setup_rounding_key(uint64_t seed, uint64_t update, uint32_t unit)
{
    return rng_u64(seed, (uint64_t)ROUNDING_STREAM << 32 | unit, update);
}

uint64_t setup_state_begin(const struct setup *self, uint32_t unit)
{
    return plan_is_sharded(&self->plan, STATE_OPTIMIZER, unit)
               ? shard_begin(self->unit_elems[unit], self->ranks.world, self->ranks.rank)
               : 0;
}
