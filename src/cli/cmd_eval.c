/* sluice eval RUN|HF_DIR FILE...: the loss of a trained model on files. See cli.h. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/cli_report.h"
#include "infer/infer.h"

static void eval_show_progress(void *user, const struct infer_evaluate_progress *now)
{
    cli_progress *progress = user;
    char left[CLI_DURATION_BYTES];
    if (!cli_progress_is_due(progress, now->seconds))
        return;
    double speed = (double)now->tokens_done / now->seconds;
    cli_progress_draw(
        progress, now->seconds,
        "evaluated %" PRIu64 " of %" PRIu64 " tokens (%.0f%%)  loss %.4f  %.0f tokens/s  left %s",
        now->tokens_done, now->tokens, 100 * (double)now->tokens_done / (double)now->tokens,
        now->loss, speed, cli_duration((double)(now->tokens - now->tokens_done) / speed, left));
}

static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static int eval_print_json(const struct infer_evaluate_result *result)
{
    json_t *object = json_object();
    json_object_set_new(object, "loss", json_real(result->loss));
    json_object_set_new(object, "perplexity", real_or_null(result->perplexity));
    json_object_set_new(object, "bits_per_byte", real_or_null(result->bits_per_byte));
    json_object_set_new(object, "tokens", json_integer((json_int_t)result->tokens));
    json_object_set_new(object, "text_bytes",
                        result->text_bytes ? json_integer((json_int_t)result->text_bytes)
                                           : json_null());
    json_object_set_new(object, "context", json_integer((json_int_t)result->context));
    json_object_set_new(object, "stride", json_integer((json_int_t)result->stride));
    json_object_set_new(object, "windows", json_integer((json_int_t)result->windows));
    json_object_set_new(object, "seconds", json_real(result->seconds));
    return cli_print_json(stdout, object);
}

static void eval_print(const struct infer_evaluate_result *result)
{
    char taken[CLI_DURATION_BYTES];
    printf("loss           %.5f nats per token\n", result->loss);
    printf("perplexity     %.4f\n", result->perplexity);
    if (result->text_bytes)
        printf("bits per byte  %.5f\n", result->bits_per_byte);
    printf("tokens         %" PRIu64, result->tokens);
    if (result->text_bytes)
        printf(" (%" PRIu64 " bytes)", result->text_bytes);
    printf(" in %" PRIu64 " windows of %" PRIu64 ", %" PRIu64 " apart\ntime           %s\n",
           result->windows, result->context, result->stride, cli_duration(result->seconds, taken));
}

static struct {
    cli_texts set;
    const char *format;
    struct infer_evaluate_options options;
    bool json, quiet;
} asked;

static const cli_option options[] = {
    {"set", CLI_TEXTS, "KEY.PATH=VALUE",
     "a key of the job, such as tiers.device.budget or bf16.enabled; JSON or a\n"
     "bare word; repeatable",
     .target = &asked.set},
    {"data-format", CLI_TEXT, "FORMAT",
     "format of the files, as data.format of a job (default: auto)", .target = &asked.format},
    {"context", CLI_COUNT, "N",
     "tokens of a window, from which its last token is predicted\n(default: "
     "model.seq_length, which is the most)",
     .target = &asked.options.context, .min = 1, .max = 0x1p31},
    {"stride", CLI_COUNT, "N",
     "tokens between windows; fewer than the context: windows overlap, and each\n"
     "token has context - N before it, or more (default: the context)",
     .target = &asked.options.stride, .min = 1, .max = 0x1p31},
    {"batches", CLI_COUNT, "N",
     "the largest number of micro-batches, from the beginning (default: all)",
     .target = &asked.options.batches, .min = 1, .max = 0x1p53},
    {"json", CLI_FLAG, NULL, "one JSON object: nats, bytes, seconds (default: a table)",
     .target = &asked.json},
    {"quiet", CLI_FLAG, NULL, "no log lines and no progress (default: with them)",
     .target = &asked.quiet},
};

static int eval_run(const cli_texts *operands)
{
    static char format_set[64];
    struct infer_evaluate_result result;
    cli_progress progress;
    if (asked.quiet)
        log_set_level(LOG_WARN);
    if (asked.format) {
        int length = snprintf(format_set, sizeof format_set, "data.format=%s", asked.format);
        if (length >= (int)sizeof format_set || asked.set.count == CLI_TEXTS_MAX)
            return err_set(ERR_USAGE, "eval: --data-format is \"%.40s...\", which is not a format",
                           asked.format);
        asked.set.items[asked.set.count++] = format_set;
    }
    asked.options.path = operands->items[0];
    asked.options.files = operands->items + 1;
    asked.options.file_count = operands->count - 1;
    asked.options.set = asked.set.items;
    asked.options.set_count = asked.set.count;
    asked.options.stop = cli_stop_install("stopping");
    asked.options.on_progress = eval_show_progress;
    asked.options.user = &progress;
    cli_progress_begin(&progress, "evaluated", !asked.quiet);
    int rc = infer_evaluate(&asked.options, &result);
    cli_progress_end(&progress);
    TRY(rc);
    if (asked.json)
        return eval_print_json(&result);
    eval_print(&result);
    return 0;
}

const cli_command cli_eval_command = {
    .name = "eval",
    .operand = "RUN|HF_DIR FILE...",
    .operands_min = 2,
    .operands_max = CLI_TEXTS_MAX,
    .computes = true,
    .summary = "prints the loss of a trained model on files",
    .details =
        "RUN is a run directory with a commit, or that of a kept commit (RUN/keep/step-...).\n"
        "HF_DIR is a checkpoint of Hugging Face. The files are read in order; each token but a\n"
        "document's first is predicted once, from those of its document (with --set\n"
        "data.documents=joined from all before it). The model's tokenizer cuts the text, and\n"
        "after each document comes its end token, as in training, which is predicted too. Prints\n"
        "the mean loss in nats per token, the perplexity (e^loss) and, if the tokens' bytes are "
        "known,\n"
        "bits per byte.\n"
        "The places of a run's states in training do not matter here. By default parameters lie\n"
        "in memory; --set tiers.device.budget=... and tiers.host.budget=... limit it.\n"
        "Parameters that do not fit are read from drives in each pass, as for `sluice\n"
        "generate`. Exit status 3 if it does not fit.",
    CLI_OPTIONS(options),
    .run = eval_run,
};
