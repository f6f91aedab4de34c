/* The optimizer, as DeepSpeed has it. See config_internal.h. Called by job_read; pure.
 *
 * Defaults are those of the classes that DeepSpeed takes where optimizer state is offloaded:
 * DeepSpeedCPUAdam, DeepSpeedCPUAdagrad and DeepSpeedCPULion. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "config/config_internal.h"

/* In the order of the choices of optimizer.type. */
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
};

int configi_check_params(const configi_reader *reader, const char *block, const char *params)
{
    char params_path[CONFIGI_PATH_BYTES], type_path[CONFIGI_PATH_BYTES];
    configi_join(params_path, block, "params");
    configi_join(type_path, block, "type");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)configi_get(reader, params_path), key, value)
    {
        char path[CONFIGI_PATH_BYTES];
        configi_join(path, params_path, key);
        if (configi_list_find(params, key) < 0)
            return configi_error(reader, path, "no parameter of %s, which has %s",
                                 configi_text(reader, type_path), params);
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
                             "[%.17g, %.17g]: one of them is 1 in fp32, in which updates run, and "
                             "nothing would ever be forgotten; give at most 0.9999999",
                             target->optimizer.beta1, target->optimizer.beta2);
    return 0;
}

int configi_check_fp32(const configi_reader *reader, const char *path, double value)
{
    if (isfinite((float)value))
        return 0;
    return configi_error(reader, path, "%g is infinite in fp32, in which it is used", value);
}

int configi_fill_optimizer(const configi_reader *reader, job *target)
{
    static const char lr_path[] = "optimizer.params.lr", eps_path[] = "optimizer.params.eps";
    static const double torch_weight_decay = 0.01; /* the default of torch.optim.AdamW */
    int idx = configi_list_find(option_find("optimizer.type")->choices,
                                configi_text(reader, "optimizer.type"));
    bool is_adamw = strcmp(configi_choice(reader, "optimizer.type"), "AdamW") == 0;
    TRY(configi_check_params(reader, "optimizer", optimizers[idx].params));
    target->optimizer.type = optimizers[idx].type;
    target->optimizer.decoupled = optimizers[idx].decoupled;
    target->optimizer.lr =
        configi_get(reader, lr_path) ? configi_double(reader, lr_path) : optimizers[idx].lr;
    target->optimizer.epsilon =
        configi_get(reader, eps_path) ? configi_double(reader, eps_path) : optimizers[idx].epsilon;
    target->optimizer.weight_decay = configi_double(reader, "optimizer.params.weight_decay");
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
        return 0; /* no betas, and nothing to correct */
    TRY(fill_betas(reader, target));
    if (target->optimizer.type != JOB_ADAM)
        return 0;
    target->optimizer.decoupled = is_adamw || configi_bool(reader, "optimizer.params.adam_w_mode");
    target->optimizer.bias_correction = configi_bool(reader, "optimizer.params.bias_correction");
    if (configi_bool(reader, "optimizer.params.torch_adam") && target->optimizer.decoupled &&
        !configi_get(reader, "optimizer.params.weight_decay"))
        target->optimizer.weight_decay = torch_weight_decay;
    return 0;
}
