/* Dtypes, loss scaling, and whether the update may run at the time that the job names. See
 * config_internal.h. Called by job_read; pure.
 *
 * The rules are those of deepspeed/runtime/precision_config.py and of DeepSpeed's engine:
 * - fp16 and bf16 exclude each other.
 * - A window of 0 or a floor of 0 is an error only if the loss scale is dynamic.
 * - Gradients rest in the working dtype unless data_types.grad_accum_dtype names another. */
#include <string.h>

#include "base/log.h"
#include "base/text.h"
#include "config/config_internal.h"

static int fill_working_dtype(const configi_reader *reader, job *target)
{
    static const char param_path[] = "data_types.param_dtype";
    bool is_bf16 = configi_bool(reader, "bf16.enabled");
    target->type = is_bf16 ? DTYPE_BF16 : DTYPE_FP32;
    if (configi_bool(reader, "fp16.enabled")) {
        if (is_bf16)
            return configi_error(reader, "fp16.enabled",
                                 "true beside bf16.enabled true; enable one of them");
        target->type = DTYPE_FP16;
    }
    if (configi_get(reader, param_path) &&
        (enum dtype)configi_enumerator(reader, param_path) != target->type)
        return configi_error(reader, param_path,
                             "\"%s\" disagrees with fp16.enabled and bf16.enabled, which mean %s; "
                             "leave it out",
                             configi_choice(reader, param_path), dtype_name(target->type));
    return 0;
}

static int fill_grad_dtype(const configi_reader *reader, job *target)
{
    static const char path[] = "data_types.grad_accum_dtype";
    if (!configi_get(reader, path))
        target->grad_dtype = target->type;
    enum dtype type = target->grad_dtype;
    if (type != DTYPE_FP32 && target->type == DTYPE_FP32)
        return configi_error(reader, path, "\"%s\" needs %s.enabled; without it gradients are fp32",
                             dtype_name(type), dtype_name(type));
    if (type != DTYPE_FP32 && type != target->type)
        return configi_error(reader, path,
                             "\"%s\" beside %s.enabled: the backward makes gradients in %s, and "
                             "a second 16-bit rounding gains nothing; give \"fp32\" or \"%s\"",
                             dtype_name(type), dtype_name(target->type), dtype_name(target->type),
                             dtype_name(target->type));
    return 0;
}

/* Checks a bound that DeepSpeed requires only if the loss scale is dynamic. */
static int check_dynamic(const configi_reader *reader, const char *path, double number)
{
    char shown[CONFIGI_VALUE_BYTES];
    if (number > 0)
        return 0;
    return configi_error(reader, path,
                         "%s is out of range: must be above 0 where fp16.loss_scale is 0 (dynamic)",
                         configi_show(configi_get(reader, path), shown));
}

static int fill_loss_scaling(const configi_reader *reader, job *target)
{
    static const char window_path[] = "fp16.loss_scale_window";
    static const char floor_path[] = "fp16.min_loss_scale";
    if (target->type != DTYPE_FP16) {
        memset(&target->fp16, 0, sizeof target->fp16);
        return 0;
    }
    double steps = configi_whole(reader, window_path);
    TRY(configi_check_fp32(reader, "fp16.loss_scale", target->fp16.loss_scale));
    if (target->fp16.loss_scale > 0)
        TRY(configi_check_fp32(reader, "fp16.loss_scale", 1 / target->fp16.loss_scale));
    if (target->fp16.loss_scale == 0) {
        TRY(check_dynamic(reader, window_path, steps));
        TRY(check_dynamic(reader, floor_path, target->fp16.min_loss_scale));
    }
    if (steps <= 0)
        target->fp16.loss_scale_window = 0;
    return 0;
}

/* On one rank the sum of gradients is their mean. But if DeepSpeed has no sum, a file that asks for
 * it is wrong on any number of ranks. */
static int check_reduction(const configi_reader *reader, const job *target)
{
    enum { STAGE_WEIGHTS = 3 };
    static const char path[] = "gradient_allreduce_op";
    const json_t *deepcompile = json_object_get(configi_get(reader, "compile"), "deepcompile");
    if (strcmp(configi_choice(reader, path), "sum") != 0)
        return 0;
    if (target->zero_stage == STAGE_WEIGHTS)
        return configi_error(reader, path,
                             "\"sum\" is not supported with zero_optimization.stage 3");
    if (json_is_true(deepcompile))
        return configi_error(reader, path, "\"sum\" is not supported with compile.deepcompile");
    return 0;
}

int configi_fill_precision(const configi_reader *reader, job *target)
{
    TRY(fill_working_dtype(reader, target));
    TRY(fill_grad_dtype(reader, target));
    TRY(fill_loss_scaling(reader, target));
    TRY(check_reduction(reader, target));
    if (target->type != DTYPE_BF16)
        target->check_grad_overflow = true;
    return 0;
}

/* in_backward updates a unit before the gradients of the others are known. */
static int check_in_backward(const configi_reader *reader, job *target)
{
    static const char path[] = "schedule.update";
    char wants[ERR_TEXT_BYTES] = "";
    if (target->type == DTYPE_FP16)
        return configi_error(reader, path,
                             "in_backward updates a unit before all gradients are known, and with "
                             "fp16.enabled an overflow in any of them skips the step: set "
                             "fp16.enabled to false, or choose after_backward or in_next_forward");
    if (target->gradient_clipping != 0)
        text_add(wants, sizeof wants, "gradient_clipping to 0 (it is %g%s)",
                 target->gradient_clipping,
                 configi_get(reader, "gradient_clipping") ? "" : " by default");
    if (target->type == DTYPE_BF16 && target->check_grad_overflow)
        text_add(wants, sizeof wants, "%sbf16.check_grad_overflow to false (it is true%s)",
                 wants[0] ? " and " : "",
                 configi_get(reader, "bf16.check_grad_overflow") ? "" : " by default");
    if (wants[0] != '\0')
        return configi_error(reader, path,
                             "in_backward updates a unit before all gradients are known: set %s, "
                             "or choose after_backward or in_next_forward",
                             wants);
    target->check_grad_overflow = false; /* fp32: DeepSpeed has no such check there either */
    return 0;
}

int configi_fill_update(const configi_reader *reader, job *target)
{
    if (target->schedule.update == UPDATE_IN_BACKWARD)
        return check_in_backward(reader, target);
    if (target->schedule.update == UPDATE_DELAYED_ONE_STEP)
        log_warn(
            "%s: schedule.update: delayed_one_step is approximate: each step trains with the "
            "gradients of the step before, unless an evaluation or a stop applies them at once; "
            "in_next_forward hides the same work exactly",
            reader->file);
    else if (target->schedule.delayed_from_step > 0)
        log_warn("%s: schedule.delayed_from_step has no effect: schedule.update is not "
                 "delayed_one_step",
                 reader->file);
    return 0;
}
