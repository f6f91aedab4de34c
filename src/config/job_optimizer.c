/* The optimizer, as in DeepSpeed, and how its state is stored: the block `state`, and DeepSpeed's
 * keys that mean the same. See config_internal.h. Called by job_read; pure, except for the log.
 *
 * Defaults are those of the classes that DeepSpeed uses if optimizer state is offloaded:
 * DeepSpeedCPUAdam, DeepSpeedCPUAdagrad and DeepSpeedCPULion. */
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "config/config_internal.h"

enum { TYPE_ADAM, TYPE_ADAMW, TYPE_ADAGRAD, TYPE_LION, TYPE_MUON, TYPE_COUNT };

static const struct {
    enum job_optimizer type;
    bool decoupled; /* Adam: unless adam_w_mode says otherwise */
    double lr, epsilon;
    const char *params;
} optimizers[] = {
    {JOB_ADAM, true, 1e-3, 1e-8,
     "lr|betas|eps|weight_decay|bias_correction|torch_adam|adam_w_mode|fp32_optimizer_states|"
     "amsgrad|foreach|set_grad_none"},
    {JOB_ADAM, true, 1e-3, 1e-8,
     "lr|betas|eps|weight_decay|bias_correction|torch_adam|adam_w_mode|fp32_optimizer_states|"
     "amsgrad|foreach|set_grad_none"},
    {JOB_ADAGRAD, false, 1e-2, 1e-10, "lr|eps|weight_decay|fp32_optimizer_states|amsgrad"},
    {JOB_LION, true, 1e-3, 0.0, "lr|betas|weight_decay|fp32_optimizer_states"},
    {JOB_MUON, true, 1e-3, 1e-8,
     "lr|muon_lr|adam_lr|momentum|nesterov|ns_steps|ns_method|adjust_lr_fn|per_head_muon|betas|eps|"
     "weight_decay|bias_correction|fp32_optimizer_states"},
};

static const char as_torch[] = "AdamW, as in torch";
static const char without_pages[] =
    "AdamW in fp32. Its state rests where tiers.place.optimizer says, not in a driver's pages";
static const char adamw_8bit[] =
    "AdamW with state.moments 8bit. Both moments are codes with a scale for each 256 elements, as "
    "in bitsandbytes, but of all tensors, and rounded stochastically; master weights are exact";
static const char lion_fp32[] = "Lion with its momentum in fp32, exact, 4 bytes a parameter";

/* Names that transformers' `optim` has for the same optimizers: the choices of optimizer.type after
 * the first TYPE_COUNT, in their order. The log says what they are here. */
static const struct {
    int type;
    bool is_8bit; /* moments, unless the job has state.moments */
    const char *what;
} other_names[] = {
    {TYPE_ADAMW, false, as_torch},      {TYPE_ADAMW, false, as_torch},
    {TYPE_ADAMW, false, without_pages}, {TYPE_ADAMW, true, adamw_8bit},
    {TYPE_ADAMW, true, adamw_8bit},     {TYPE_ADAMW, true, adamw_8bit},
    {TYPE_ADAMW, true, adamw_8bit},     {TYPE_LION, false, lion_fp32},
    {TYPE_LION, false, lion_fp32},      {TYPE_LION, false, lion_fp32},
    {TYPE_LION, false, lion_fp32},
};

static const char type_path[] = "optimizer.type", moments_path[] = "state.moments";

int configi_check_params(const configi_reader *reader, const char *block, const char *params)
{
    char params_path[CONFIGI_PATH_BYTES], block_type[CONFIGI_PATH_BYTES];
    configi_join(params_path, block, "params");
    configi_join(block_type, block, "type");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)configi_get(reader, params_path), key, value)
    {
        char path[CONFIGI_PATH_BYTES];
        configi_join(path, params_path, key);
        if (configi_list_find(params, key) < 0)
            return configi_error(reader, path, "no parameter of %s, which has %s",
                                 configi_text(reader, block_type), params);
    }
    return 0;
}

static int fill_betas(const configi_reader *reader, job *target)
{
    enum { BETA_COUNT = 2 };
    static const char path[] = "optimizer.params.betas";
    target->optimizer.beta1 = 0.9;
    target->optimizer.beta2 = 0.999;
    const json_t *betas = configi_get(reader, path);
    if (!betas)
        return 0;
    if (json_array_size(betas) != BETA_COUNT) {
        char shown[CONFIGI_VALUE_BYTES];
        return configi_error(reader, path, "%s: two numbers are needed, as in [0.9, 0.999]",
                             configi_show(betas, shown));
    }
    target->optimizer.beta1 = json_number_value(json_array_get(betas, 0));
    target->optimizer.beta2 = json_number_value(json_array_get(betas, 1));
    if ((float)target->optimizer.beta1 >= 1 || (float)target->optimizer.beta2 >= 1)
        return configi_error(reader, path,
                             "[%.17g, %.17g]: updates run in fp32, in which one of them is 1, so "
                             "the moment would never decay; give at most 0.9999999",
                             target->optimizer.beta1, target->optimizer.beta2);
    return 0;
}

int configi_check_fp32(const configi_reader *reader, const char *path, double value)
{
    if (isfinite((float)value))
        return 0;
    return configi_error(reader, path, "%g is infinite in fp32, in which it is used", value);
}

/* The two learning rates of Muon, once optimizer.lr has the value of its key or the default. */
static int fill_muon(const configi_reader *reader, job *target)
{
    static const char muon_path[] = "optimizer.params.muon_lr",
                      adam_path[] = "optimizer.params.adam_lr",
                      momentum_path[] = "optimizer.params.momentum";
    target->optimizer.adam_lr = target->optimizer.lr;
    if (configi_get(reader, muon_path))
        target->optimizer.lr = configi_double(reader, muon_path);
    if (configi_get(reader, adam_path))
        target->optimizer.adam_lr = configi_double(reader, adam_path);
    TRY(configi_check_fp32(reader, muon_path, target->optimizer.lr));
    TRY(configi_check_fp32(reader, adam_path, target->optimizer.adam_lr));
    if ((float)target->optimizer.lr == 0)
        return configi_error(reader,
                             configi_get(reader, muon_path) ? muon_path : "optimizer.params.lr",
                             "%g is no learning rate for Muon, since that of AdamW's tensors keeps "
                             "its ratio to it; train.only freezes tensors",
                             target->optimizer.lr);
    if ((float)target->optimizer.momentum >= 1)
        return configi_error(reader, momentum_path,
                             "%.17g is 1 in fp32, in which updates run; give at most 0.9999999",
                             target->optimizer.momentum);
    return 0;
}

int configi_fill_optimizer(const configi_reader *reader, job *target)
{
    static const char lr_path[] = "optimizer.params.lr", eps_path[] = "optimizer.params.eps";
    static const double torch_weight_decay = 0.01; /* the default of torch.optim.AdamW */
    int idx = configi_choice_idx(reader, type_path);
    if (idx >= TYPE_COUNT) {
        log_info("%s: %s %s: %s", reader->file, type_path, configi_choice(reader, type_path),
                 other_names[idx - TYPE_COUNT].what);
        if (other_names[idx - TYPE_COUNT].is_8bit && !configi_get(reader, moments_path))
            target->state.moments = TILE_INT8;
        idx = other_names[idx - TYPE_COUNT].type;
    }
    TRY(configi_check_params(reader, "optimizer", optimizers[idx].params));
    target->optimizer.type = optimizers[idx].type;
    if (configi_is_auto(reader, lr_path))
        return configi_ask_auto(reader, lr_path, "5e-5");
    if (!configi_get(reader, lr_path))
        target->optimizer.lr = optimizers[idx].lr;
    if (!configi_get(reader, eps_path))
        target->optimizer.epsilon = optimizers[idx].epsilon;
    bool has_adam = target->optimizer.type == JOB_ADAM || target->optimizer.type == JOB_MUON;
    if (!has_adam) {
        target->optimizer.decoupled = optimizers[idx].decoupled;
        target->optimizer.bias_correction = false;
    } else if (idx == TYPE_ADAMW || target->optimizer.type == JOB_MUON) {
        target->optimizer.decoupled = true;
    }
    TRY(configi_check_fp32(reader, lr_path, target->optimizer.lr));
    TRY(configi_check_fp32(reader, "optimizer.params.weight_decay",
                           target->optimizer.weight_decay));
    if (target->optimizer.type != JOB_LION && (float)target->optimizer.epsilon == 0)
        return configi_error(
            reader, eps_path,
            "%g is 0 in fp32, in which updates run: a weight without gradient would "
            "be moved by 0 / 0; give at least 1e-38",
            target->optimizer.epsilon);
    if (target->optimizer.type == JOB_ADAGRAD)
        return 0; /* it has no betas, and no bias to correct */
    TRY(fill_betas(reader, target));
    if (target->optimizer.type == JOB_MUON && target->model.expert_count > 0)
        return configi_error(reader, "optimizer.type",
                             "Muon is not built for mixtures of experts (model.family %s): take "
                             "AdamW, Lion or Adagrad",
                             model_family_name(target->model.family));
    if (target->optimizer.type == JOB_MUON)
        return fill_muon(reader, target);
    if (target->optimizer.type == JOB_ADAM && target->optimizer.decoupled &&
        configi_bool(reader, "optimizer.params.torch_adam") &&
        !configi_get(reader, "optimizer.params.weight_decay"))
        target->optimizer.weight_decay = torch_weight_decay;
    return 0;
}

/* ---- how its state is stored ---- */

static const char master_path[] = "state.master";

/* DeepSpeed has two keys that ask for moments in the dtype of the parameters. */
static const struct {
    const char *path;
    bool asks; /* the value that asks for them */
} deepspeed_keys[] = {
    {"bf16.bf16_optimizer_states", true},
    {"optimizer.params.fp32_optimizer_states", false},
};

/* Stores moments in bf16 if the job asks for it by DeepSpeed's key. */
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

/* Checks that the optimizer is Adam, because only Adam has formats other than fp32. `value`: the
 * key's value, for the message. */
static int check_is_adam(const configi_reader *reader, const job *target, const char *path,
                         const char *value)
{
    if (target->optimizer.type == JOB_ADAM)
        return 0;
    return configi_error(reader, path,
                         "%s needs Adam or AdamW, and optimizer.type is %s, whose state is fp32; "
                         "leave it out, or change optimizer.type",
                         value, configi_choice(reader, type_path));
}

/* Applies the keys of the two that are given in the job. */
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
    TRY(take_deepspeed_keys(reader, target));
    if (target->state.master == TILE_LOW16) {
        bool is_fp32 = target->type == DTYPE_FP32;
        if (!is_fp32 || target->optimizer.type == JOB_MUON)
            TRY(check_is_adam(reader, target, master_path, "\"split\""));
        if (!is_fp32 && target->type != DTYPE_BF16)
            return configi_error(reader, master_path,
                                 "\"split\" needs parameters in bf16, the high half of a master "
                                 "weight, or in fp32, all of it; this job's are %s",
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
