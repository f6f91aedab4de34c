/* sluice data tokenize FILE...: text and JSON records into a token file. See cli.h. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/size.h"
#include "cli/cli.h"
#include "cli/cli_report.h"
#include "train/tokenize.h"

static struct {
    tokenize_request work;
    bool json, quiet;
} asked;

static const cli_option options[] = {
    {"tokenizer", CLI_TEXT, "NAME",
     "a directory with tokenizer.json, such a file, or a SentencePiece .model",
     .target = &asked.work.tokenizer},
    {"out", CLI_TEXT, "NAME", "the file to make; with megatron NAME.bin and NAME.idx",
     .target = &asked.work.out},
    {"format", CLI_TEXT, "FORMAT", "megatron (keeps documents), llmc, u16, u32 (default: megatron)",
     .target = &asked.work.format},
    {"field", CLI_TEXT, "NAME", "the member of a JSON record that holds the text (default: text)",
     .target = &asked.work.field},
    {"no-document-end", CLI_FLAG, NULL, "no end token behind documents (default: the tokenizer's)",
     .target = &asked.work.has_no_end},
    {"json", CLI_FLAG, NULL,
     "one JSON object: bytes, tokens, documents, seconds (default: a table)",
     .target = &asked.json},
    {"quiet", CLI_FLAG, NULL, "no log lines and no progress (default: with them)",
     .target = &asked.quiet},
};

static int data_print_json(const tokenize_result *result)
{
    json_t *object = json_object();
    json_object_set_new(object, "bytes", json_integer((json_int_t)result->bytes));
    json_object_set_new(object, "tokens", json_integer((json_int_t)result->tokens));
    json_object_set_new(object, "documents", json_integer((json_int_t)result->documents));
    json_object_set_new(object, "vocab_size", json_integer((json_int_t)result->vocab));
    json_object_set_new(object, "seconds", json_real(result->seconds));
    return cli_print_json(stdout, object);
}

static int data_run(const cli_texts *operands)
{
    tokenize_result result;
    char read[SIZE_TEXT_BYTES];
    if (strcmp(operands->items[0], "tokenize") != 0)
        return err_set(ERR_USAGE, "data: \"%s\" is not known; tokenize is", operands->items[0]);
    if (!asked.work.tokenizer || !asked.work.out)
        return err_set(ERR_USAGE, "data tokenize: --%s is missing",
                       asked.work.tokenizer ? "out NAME" : "tokenizer NAME");
    if (asked.quiet)
        log_set_level(LOG_WARN);
    asked.work.paths = operands->items + 1;
    asked.work.path_count = operands->count - 1;
    asked.work.stop = cli_stop_install("stopping");
    TRY(tokenize_files(&asked.work, &result));
    if (asked.json)
        return data_print_json(&result);
    printf("tokens     %" PRIu64 " of %" PRIu64 " in the vocabulary\n", result.tokens,
           result.vocab);
    printf("documents  %" PRIu64 "\n", result.documents);
    printf("read       %s, %.2f bytes a token, %.1f MB/s\n", size_format(result.bytes, read),
           (double)result.bytes / (double)result.tokens,
           (double)result.bytes / 1e6 / result.seconds);
    return 0;
}

const cli_command cli_data_command = {
    .name = "data",
    .operand = "tokenize FILE...",
    .operands_min = 2,
    .operands_max = CLI_TEXTS_MAX,
    .computes = true,
    .summary = "makes token files of text and JSON records, on all cores",
    .details =
        "Each text file, in UTF-8, is one document, and so is each JSON record (one a line, or\n"
        "in one array) that holds its text in one member. The tokenizer's end token follows each\n"
        "document, and the tokens that its own library puts before a text come before each\n"
        "document. The ids are those of that library, for any number of cores. Files of any size\n"
        "need some tens of MiB of memory if the tokenizer is one of the usual ones. Packing is\n"
        "left to training: its windows cross the ends of documents.\n"
        "The output gets its name when it is complete. data.train of a job takes it: NAME.bin\n"
        "with NAME.idx beside it (--format megatron), or the other formats with data.format. A\n"
        "progress line comes every 5 s.",
    CLI_OPTIONS(options),
    .run = data_run,
};
