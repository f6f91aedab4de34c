/* Makes one token file from text and JSON records. See tokenize.h. */
#include "train/tokenize.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "data/prepare.h"
#include "data/token_file.h"

static int find_format(const char *name, enum data_format *out)
{
    static const enum data_format formats[] = {DATA_MEGATRON, DATA_LLMC, DATA_U16, DATA_U32};
    *out = DATA_MEGATRON;
    for (size_t i = 0; name && i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(data_format_name(formats[i]), name) == 0) {
            *out = formats[i];
            return 0;
        }
    return name ? err_set(ERR_USAGE, "tokens are written as megatron, llmc, u16 or u32, not as %s",
                          name)
                : 0;
}

/* Refuses an output that is one of the input files, because it would replace that file. */
static int check_name(const tokenize_request *request, const char *end)
{
    char name[4096];
    struct stat out, in;
    int length = snprintf(name, sizeof name, "%s%s", request->out, end);
    if (length >= (int)sizeof name || stat(name, &out) != 0)
        return 0; /* token_file_create reports what is wrong with it */
    for (uint32_t i = 0; i < request->path_count; i++)
        if (stat(request->paths[i], &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino)
            return err_set(ERR_USAGE,
                           "%s is an input and would be written: give --out another name", name);
    return 0;
}

static int check_names(const tokenize_request *request, enum data_format format)
{
    if (format != DATA_MEGATRON)
        return check_name(request, "");
    TRY(check_name(request, ".bin"));
    return check_name(request, ".idx");
}

static int tokenize_file(const char *path, const prepare_options *options, const prepare_sink *sink,
                         tokenize_result *result)
{
    prepare_work work;
    TRY(prepare_look(path, DATA_AUTO, options, &work));
    if (!work.is_needed)
        return err_set(
            ERR_INPUT,
            "%s holds tokens already, or is text that the tokenizer \"bytes\" takes as it "
            "is: there is nothing to tokenize",
            path);
    if (work.has_marks)
        return err_set(ERR_INPUT,
                       "%s holds records of which only the answers count as targets (%s), which a "
                       "token file cannot say: give it to data.train as it is",
                       path, data_format_name(work.kind));
    TRY(prepare_run(&work, options, sink));
    result->bytes += work.bytes;
    return 0;
}

static int tokenize_all(const tokenize_request *request, tokenizer *words, enum data_format format,
                        tokenize_result *result)
{
    token_file *out;
    result->vocab = tokenizer_vocab(words);
    const prepare_options options = {.words = words,
                                     .tokenizer_name = request->tokenizer,
                                     .field = request->field,
                                     .vocab_size = result->vocab,
                                     .has_no_end = request->has_no_end,
                                     .stop = request->stop};
    const token_file_options file = {
        .format = format, .vocab_size = result->vocab, .mode = FILE_SHARED};
    TRY(token_file_create(request->out, &file, &out));
    const prepare_sink sink = prepare_to_file(out);
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < request->path_count; i++) {
        rc = tokenize_file(request->paths[i], &options, &sink, result);
        if (rc == 0)
            rc = token_file_end_document(out);
    }
    if (rc < 0) {
        err_record first;
        err_save(&first, rc);
        token_file_abandon(out);
        return err_restore(&first);
    }
    result->tokens = token_file_tokens(out);
    result->documents = token_file_documents(out);
    return token_file_finish(out);
}

int tokenize_files(const tokenize_request *request, tokenize_result *result)
{
    enum data_format format;
    tokenizer *words;
    uint64_t begin_ns = clock_ns();
    *result = (tokenize_result){0};
    TRY(find_format(request->format, &format));
    TRY(check_names(request, format));
    TRY(tokenizer_open(request->tokenizer, &words));
    if (tokenizer_end_id(words) < 0 && !request->has_no_end)
        log_warn("the tokenizer %s names no end token: nothing is put between documents",
                 request->tokenizer);
    int rc = tokenize_all(request, words, format, result);
    tokenizer_close(words);
    result->seconds = (double)(clock_ns() - begin_ns) * 1e-9;
    return rc;
}
