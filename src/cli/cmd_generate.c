/* sluice generate RUN|HF_DIR: continues a text with a trained model. See cli.h. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "cli/cli.h"
#include "cli/cli_report.h"
#include "infer/infer.h"

enum { PROMPT_BYTES_MAX = 64 << 20 };

static struct {
    cli_texts set;
    const char *prompt_file;
    struct infer_generate_options options;
    bool json, quiet, is_raw;
    char *file_text; /* the content of --prompt-file */
} asked = {.options = {.token_count = 256, .seed = 1, .temperature = 0.8}};

static struct {
    struct infer_generate_result result;
    utf8_stream stream; /* checks the UTF-8 of what is printed */
    char *text;         /* with --json: all of it, UTF-8 */
    size_t text_bytes, text_capacity;
    json_t *ids, *prompt_ids;
} made;

static const cli_option options[] = {
    {"prompt", CLI_TEXT, "TEXT", "what to continue (default: a line's beginning)",
     .target = &asked.options.prompt},
    {"prompt-file", CLI_TEXT, "FILE", "the same from a file; -: standard input",
     .target = &asked.prompt_file},
    {"tokens", CLI_COUNT, "N", "how many tokens to generate at most, 1 to 1000000 (default: 256)",
     .target = &asked.options.token_count, .min = 1, .max = 1e6},
    {"temperature", CLI_REAL, "X", "0 to 100; 0 takes the likeliest token (default: 0.8)",
     .target = &asked.options.temperature, .min = 0, .max = 100},
    {"top-k", CLI_COUNT, "K", "draws from the K likeliest tokens; 0: from all (default: 0)",
     .target = &asked.options.top_k, .min = 0, .max = 0x1p32},
    {"top-p", CLI_REAL, "P",
     "draws from the likeliest tokens that have P of the probability\n"
     "together, after --top-k; above 0, to 1: all (default: 1)",
     .target = &asked.options.top_p, .min = 1e-9, .max = 1},
    {"seed", CLI_COUNT, "N", "of the draws, 0 to 2^53 (default: 1)", .target = &asked.options.seed,
     .min = 0, .max = 0x1p53},
    {"stop", CLI_TEXT, "TEXT", "stops before TEXT (at most 256 bytes), which is not printed",
     .target = &asked.options.stop_text},
    {"ignore-end", CLI_FLAG, NULL,
     "goes on after the token that ends a text (default: stops there)",
     .target = &asked.options.ignores_end},
    {"chat", CLI_FLAG, NULL,
     "takes the prompt as a user's message in a conversation, in the model's form\n"
     "(data.chat_template), and prints only the answer",
     .target = &asked.options.is_chat},
    {"system", CLI_TEXT, "TEXT", "with --chat: the system message",
     .target = &asked.options.system},
    {"context", CLI_COUNT, "N",
     "the most positions that the model sees (default: as many as the text takes,\n"
     "at most model.seq_length)",
     .target = &asked.options.context, .min = 1, .max = 0x1p31},
    {"set", CLI_TEXTS, "KEY.PATH=VALUE",
     "a key of the job, such as tiers.device.budget or bf16.enabled; JSON or a\n"
     "bare word; repeatable",
     .target = &asked.set},
    {"json", CLI_FLAG, NULL, "one JSON object at the end: ids, text, seconds (default: the text)",
     .target = &asked.json},
    {"raw", CLI_FLAG, NULL,
     "control characters of the text reach a terminal (default: it shows them as\n"
     "\\u001b; a pipe or a file gets the text as it is, with and without --raw)",
     .target = &asked.is_raw},
    {"quiet", CLI_FLAG, NULL, "the text alone, without log lines and speed (default: with them)",
     .target = &asked.quiet},
};

/* ---- output ---- */

static int generate_keep(const char *bytes, size_t count)
{
    if (made.text_bytes + count > made.text_capacity) {
        size_t capacity = 2 * (made.text_bytes + count);
        char *text = mem_resize(made.text, capacity, 1, "text");
        if (!text)
            return -ENOMEM;
        made.text = text;
        made.text_capacity = capacity;
    }
    memcpy(made.text + made.text_bytes, bytes, count);
    made.text_bytes += count;
    return 0;
}

static int generate_put(const char *bytes, size_t count)
{
    if (asked.json)
        return generate_keep(bytes, count);
    /* If the reader of the output is gone, the text ends, because nobody would see the rest. */
    if (fwrite(bytes, 1, count, stdout) == count && fflush(stdout) == 0)
        return 0;
    if (errno == EPIPE)
        return err_set(ERR_STOPPED, "nobody reads the text any more");
    return err_errno(errno, "cannot write to standard output");
}

static int generate_show(void *user, const char *bytes, uint64_t count)
{
    (void)user;
    char out[1024];
    const size_t piece = sizeof out / 3 - 4; /* utf8_stream_room */
    for (uint64_t at = 0; at < count;) {
        size_t taken = count - at < piece ? count - at : piece;
        TRY(generate_put(out, utf8_stream_add(&made.stream, bytes + at, taken, out)));
        at += taken;
    }
    return 0;
}

static void generate_note_id(void *user, int32_t id, bool is_prompt)
{
    (void)user;
    json_array_append_new(is_prompt ? made.prompt_ids : made.ids, json_integer(id));
}

/* ---- the prompt ---- */

static int read_prompt(void)
{
    uint64_t bytes;
    int rc = file_read_any(asked.prompt_file, PROMPT_BYTES_MAX, &asked.file_text, &bytes);
    asked.options.prompt = asked.file_text;
    asked.options.prompt_bytes = bytes;
    return rc < 0 ? err_prefix(rc, "the prompt") : 0;
}

static int take_prompt(void)
{
    if (asked.options.stop_text && !asked.options.stop_text[0])
        return err_set(ERR_USAGE, "generate: --stop is empty: give the text to stop at");
    if (asked.options.prompt && asked.prompt_file)
        return err_set(ERR_USAGE, "generate: --prompt and --prompt-file are both given");
    if (asked.prompt_file)
        return read_prompt();
    if (asked.options.system && !asked.options.is_chat)
        return err_set(ERR_USAGE, "generate: --system needs a conversation: give --chat too");
    if (!asked.options.prompt && asked.options.is_chat)
        return err_set(ERR_USAGE, "generate: --chat needs what the user says: --prompt TEXT");
    if (!asked.options.prompt)
        asked.options.prompt = "\n";
    asked.options.prompt_bytes = strlen(asked.options.prompt);
    return 0;
}

/* ---- results ---- */

static double rate(uint64_t tokens, double seconds)
{
    return seconds > 0 ? (double)tokens / seconds : 0;
}

static uint64_t decoded(const struct infer_generate_result *result)
{
    return result->tokens > 0 ? result->tokens - 1 : 0;
}

static void print_speed(const struct infer_generate_result *result)
{
    uint64_t read =
        result->prompt_tokens < result->context ? result->prompt_tokens : result->context;
    fprintf(stderr,
            "prefill %" PRIu64 " tokens, %.1f tokens/s; decode %" PRIu64
            " tokens, %.1f tokens/s; context %" PRIu64,
            read, rate(read, result->prefill_seconds), decoded(result),
            rate(decoded(result), result->decode_seconds), result->context);
    /* logged here, because a line in the middle of the text would cut it in two */
    if (result->slides > 0)
        fprintf(stderr, ", full %" PRIu64 "x: its older half was dropped", result->slides);
    fputc('\n', stderr);
}

static int print_json(void)
{
    static const char *const ends[] = {
        [GENERATE_TOKENS] = "tokens",
        [GENERATE_END] = "end",
        [GENERATE_TEXT] = "stop_text",
        [GENERATE_STOPPED] = "stopped",
    };
    const struct infer_generate_result *result = &made.result;
    json_t *object = json_object();
    json_object_set(object, "prompt_ids", made.prompt_ids);
    json_object_set(object, "ids", made.ids);
    json_object_set_new(object, "text", json_stringn(made.text ? made.text : "", made.text_bytes));
    json_object_set_new(object, "ended_by", json_string(ends[result->ended]));
    json_object_set_new(object, "context", json_integer((json_int_t)result->context));
    json_object_set_new(object, "prefill_seconds", json_real(result->prefill_seconds));
    json_object_set_new(object, "decode_seconds", json_real(result->decode_seconds));
    json_object_set_new(object, "decode_tokens_per_second",
                        json_real(rate(decoded(result), result->decode_seconds)));
    json_object_set_new(object, "decode_read_bytes", json_integer((json_int_t)result->read_bytes));
    json_object_set_new(object, "decode_copied_bytes",
                        json_integer((json_int_t)result->copied_bytes));
    json_object_set_new(object, "decode_spared_bytes",
                        json_integer((json_int_t)result->spared_bytes));
    return cli_print_json(stdout, object);
}

static int finish(int rc)
{
    char rest[16];
    err_record first;
    err_save(&first, rc);
    bool has_text = rc == 0 || rc == ERR_STOPPED;
    if (has_text) {
        int put = generate_put(rest, utf8_stream_end(&made.stream, rest));
        if (rc == 0 && put < 0) {
            rc = put;
            err_save(&first, rc);
        }
    }
    if (has_text && asked.json && print_json() < 0 && rc == 0)
        return -ENOMEM;
    if (has_text && !asked.json)
        putchar('\n');
    fflush(stdout);
    if (has_text && !asked.quiet && made.result.tokens > 0)
        print_speed(&made.result);
    return rc < 0 ? err_restore(&first) : 0;
}

static int generate_run(const cli_texts *operands)
{
    if (asked.quiet)
        log_set_level(LOG_WARN);
    if (asked.is_raw)
        cli_terminal_raw();
    int rc = take_prompt();
    if (rc == 0) {
        made.ids = json_array();
        made.prompt_ids = json_array();
        asked.options.run_dir = operands->items[0];
        asked.options.set = asked.set.items;
        asked.options.set_count = asked.set.count;
        asked.options.stop = cli_stop_install("stopping");
        asked.options.on_token = generate_show;
        asked.options.on_id = asked.json ? generate_note_id : NULL;
        asked.options.result = &made.result;
        rc = finish(infer_generate(&asked.options));
    }
    json_decref(made.ids);
    json_decref(made.prompt_ids);
    mem_free(made.text);
    mem_free(asked.file_text);
    return rc;
}

const cli_command cli_generate_command = {
    .name = "generate",
    .operand = "RUN|HF_DIR",
    .operands_min = 1,
    .operands_max = 1,
    .computes = true,
    .summary = "continues a text with a trained model",
    .details =
        "RUN is a run directory with a commit, or that of a kept commit (RUN/keep/step-...).\n"
        "HF_DIR is a checkpoint of Hugging Face. Prints the prompt and then the text as it is\n"
        "generated, until the model ends it. The output is valid UTF-8: other bytes become\n"
        "U+FFFD. The same seed gives the same text on the same machine.\n"
        "Keys and values of the positions so far are kept on the device. Parameters lie there\n"
        "too, or are streamed to it if they do not fit: --set tiers.device.budget=... and\n"
        "tiers.host.budget=... limit both. Parameters that do not fit in host memory either are\n"
        "read from drives in each pass: the drives of tiers.nvme, else those of the run's\n"
        "state; for a checkpoint, $TMPDIR or /var/tmp. No file stays there.\n"
        "If the text becomes longer than the context, the older half of what the model sees is\n"
        "dropped. The last line, on standard error, gives the speed of the prompt (prefill) and\n"
        "of the generated text (decode).\n"
        "Exit status 3 if it does not fit (with the longest context that does), 75 when\n"
        "stopped.",
    CLI_OPTIONS(options),
    .run = generate_run,
};
