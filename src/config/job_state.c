/* How the optimizer's state is stored: the block `state`, and DeepSpeed's keys that mean the same. See
 * config_internal.h. Called by job_read; pure but for the log. */
#include <string.h>

#include "base/log.h"
#include "config/config_internal.h"

static const char master_path[] = "state.master", moments_path[] = "state.moments";

/* DeepSpeed's two ways to ask for moments in the dtype of the parameters. */
static const struct {
    const char *path;
    bool asks; /* the value that asks for them */
} deepspeed_keys[] = {
    {"bf16.bf16_optimizer_states", true},
    {"optimizer.params.fp32_optimizer_states", false},
};

/* Moments of a job that asks for smaller ones in DeepSpeed's words. */
static int take_deepspeed_key(const configi_reader *reader, const char *path, job *target)
{
    const char *shown = configi_bool(reader, path) ? "true" : "false";
    if (target->type != DTYPE_BF16)
        return configi_error(reader, path,
                             "%s asks for moments in the dtype of the parameters, and this job's "
                             "are %s: moments are fp32 or, with bf16.enabled, bf16; leave it out, "
                             "or set %s",
                             shown, dtype_name(target->type), moments_path);
    if (configi_get(reader, moments_path) && target->state.moments != TILE_BF16)
        return configi_error(reader, path, "%s means %s bf16, which is \"%s\"; give one of them",
                             shown, moments_path, configi_choice(reader, moments_path));
    target->state.moments = TILE_BF16;
    log_info("%s: %s %s: moments are stored in bf16, rounded stochastically, and master weights "
             "exactly (%s %s)",
             reader->file, path, shown, master_path, configi_choice(reader, master_path));
    return 0;
}

/* Formats but fp32 are of Adam alone. `value`: what the key has. */
static int check_is_adam(const configi_reader *reader, const job *target, const char *path,
                         const char *value)
{
    if (target->optimizer.type == JOB_ADAM)
        return 0;
    return configi_error(reader, path,
                         "%s needs Adam or AdamW, and optimizer.type is %s, whose state is fp32; "
                         "leave it out, or change optimizer.type",
                         value, configi_choice(reader, "optimizer.type"));
}

/* Whichever of them the job has. */
static int take_deepspeed_keys(const configi_reader *reader, job *target)
{
    for (size_t i = 0; i < sizeof deepspeed_keys / sizeof deepspeed_keys[0]; i++) {
        const char *path = deepspeed_keys[i].path;
        if (configi_bool(reader, path) != deepspeed_keys[i].asks)
            continue;
        TRY(check_is_adam(reader, target, path, deepspeed_keys[i].asks ? "true" : "false"));
        TRY(take_deepspeed_key(reader, path, target));
    }
    return 0;
}

int configi_fill_state(const configi_reader *reader, job *target)
{
    target->state.master =
        strcmp(configi_choice(reader, master_path), "split") == 0 ? TILE_LOW16 : TILE_FP32;
    const char *moments = configi_choice(reader, moments_path);
    target->state.moments = strcmp(moments, "8bit") == 0   ? TILE_INT8
                            : strcmp(moments, "bf16") == 0 ? TILE_BF16
                                                           : TILE_FP32;
    TRY(take_deepspeed_keys(reader, target));
    if (target->state.master == TILE_LOW16) {
        TRY(check_is_adam(reader, target, master_path, "\"split\""));
        if (target->type != DTYPE_BF16)
            return configi_error(reader, master_path,
                                 "\"split\" needs bf16.enabled: the high half of a master weight "
                                 "is the bf16 working copy, and this job's is %s",
                                 dtype_name(target->type));
    }
    if (target->state.moments == TILE_FP32)
        return 0;
    bool is_bf16 = target->state.moments == TILE_BF16;
    TRY(check_is_adam(reader, target, moments_path, is_bf16 ? "\"bf16\"" : "\"8bit\""));
    log_warn("%s: %s: moments in %s are approximate: rounded stochastically after each step, to "
             "the same bits in every placement, but not to those of fp32",
             reader->file, moments_path,
             target->state.moments == TILE_BF16 ? "bf16" : "8 bits with a scale for each 256");
    return 0;
}
