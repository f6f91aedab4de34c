/* The tokens and the windows of an evaluation; see infer_internal.h. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "data/prepare.h"
#include "infer/infer_internal.h"

enum { PIECE_TOKENS = 1 << 16 };

static int reserve(eval_tokens *self, uint64_t more)
{
    if (self->count + more <= self->capacity)
        return 0;
    uint64_t capacity = size_max(2 * self->capacity, self->count + more);
    uint32_t *list = mem_resize(self->list, capacity, sizeof *list, "tokens of a text");
    if (!list)
        return -ENOMEM;
    self->list = list;
    self->capacity = capacity;
    return 0;
}

static int add_tokens(void *user, const uint32_t *tokens, uint64_t count)
{
    eval_tokens *self = user;
    TRY(reserve(self, count));
    memcpy(self->list + self->count, tokens, count * sizeof *tokens);
    self->count += count;
    return 0;
}

/* Ends a document of the list where it ends now. */
static int end_document(void *user)
{
    eval_tokens *self = user;
    if (self->end_count == self->end_capacity) {
        uint64_t capacity = size_max(2 * self->end_capacity, 1024);
        uint64_t *ends = mem_resize(self->ends, capacity, sizeof *ends, "ends of documents");
        if (!ends)
            return -ENOMEM;
        self->ends = ends;
        self->end_capacity = capacity;
    }
    self->ends[self->end_count++] = self->count;
    return 0;
}

/* Ends the documents of a file whose tokens are the last of the list. */
static int add_ends(eval_tokens *self, corpus *file)
{
    uint64_t all = self->count, begin, count;
    for (uint64_t i = 0; i < corpus_document_count(file); i++) {
        TRY(corpus_document(file, i, &begin, &count));
        self->count = all - corpus_token_count(file) + begin + count;
        TRY(end_document(self));
    }
    self->count = all;
    return 0;
}

/* Adds a file of tokens, beside files that were tokenized here. */
static int add_file(eval_tokens *self, const char *path, enum data_format format)
{
    corpus *file;
    TRY(corpus_open_as(&path, 1, format, self->vocab, &file));
    uint64_t all = corpus_token_count(file);
    int32_t *piece = mem_alloc(2 * PIECE_TOKENS, sizeof *piece, "a piece of tokens");
    int rc = piece ? 0 : -ENOMEM;
    for (uint64_t at = 0; rc == 0 && at < all; at += PIECE_TOKENS) {
        uint64_t count = size_min(all - at, PIECE_TOKENS);
        int32_t *marks = piece + PIECE_TOKENS;
        rc = corpus_read(file, at, count, piece);
        if (rc == 0)
            rc = corpus_read_targets(file, at, count, marks);
        if (rc == 0)
            rc = reserve(self, count);
        for (uint64_t i = 0; rc == 0 && i < count; i++)
            self->list[self->count++] = (uint32_t)piece[i] | (marks[i] < 0 ? TOKEN_UNCOUNTED : 0);
    }
    if (rc == 0)
        rc = add_ends(self, file);
    mem_free(piece);
    corpus_close(file);
    return rc;
}

/* Reads all files, some of which are tokenized here. */
static int cut_files(eval_tokens *self, const struct infer_evaluate_options *asked,
                     const prepare_work *work, const prepare_options *options,
                     enum data_format format)
{
    const prepare_sink sink = {.user = self, .add = add_tokens, .end_document = end_document};
    for (uint32_t i = 0; i < asked->file_count; i++)
        TRY(work[i].is_needed ? prepare_run(&work[i], options, &sink)
                              : add_file(self, asked->files[i], format));
    return 0;
}

static int look_at(eval_tokens *self, const infer_model *from,
                   const struct infer_evaluate_options *asked, prepare_work *work)
{
    const struct job *job_of = from->asked;
    enum data_format format = job_of->data.format;
    const prepare_options options = {.words = self->words,
                                     .tokenizer_name = from->words_name,
                                     .chat_template = job_of->data.chat_template,
                                     .vocab_size = self->vocab,
                                     .memory_bytes = job_of->tiers.host_budget,
                                     .stop = asked->stop};
    bool is_any = false;
    for (uint32_t i = 0; self->words && i < asked->file_count; i++) {
        TRY(prepare_look(asked->files[i], format, &options, &work[i]));
        is_any = is_any || work[i].is_needed;
    }
    bool separates = job_of->data.documents == DOCUMENTS_SEPARATE;
    if (is_any) {
        TRY(cut_files(self, asked, work, &options, format));
        self->is_separate = separates && self->end_count > 1;
        return 0;
    }
    TRY(corpus_open_as(asked->files, asked->file_count, format, self->vocab, &self->files));
    self->count = corpus_token_count(self->files);
    self->is_text = corpus_is_text(self->files);
    TRY(corpus_set_end_token(self->files,
                             self->words ? tokenizer_document_end_id(self->words) : -1));
    self->is_separate = separates && corpus_has_documents(self->files);
    return 0;
}

int eval_tokens_open(eval_tokens *self, infer_model *from,
                     const struct infer_evaluate_options *asked)
{
    memset(self, 0, sizeof *self);
    self->vocab = from->asked->model.vocab_size;
    err_record why = {.code = 0};
    if (infer_model_tokenizer(from, &self->words) < 0) {
        err_save(&why, ERR_INPUT);
        self->words = NULL;
    }
    prepare_work *work = mem_alloc(asked->file_count, sizeof *work, "files to evaluate");
    int rc = work ? look_at(self, from, asked, work) : -ENOMEM;
    mem_free(work);
    TRY(rc);
    if (!self->words && !self->is_separate && from->asked->data.documents == DOCUMENTS_SEPARATE)
        log_info("documents of the files are joined: what ends one is only known by a tokenizer, "
                 "and none of %s is known: %s",
                 asked->path, why.text);
    bool is_bytes = !from->has_own_words && strcmp(from->words_name, "bytes") == 0;
    if (self->is_text && !self->words)
        return err_set(ERR_INPUT, "the files are text, but no tokenizer of %s is known: %s",
                       asked->path, why.text);
    self->has_bytes = self->is_text || (self->words && (!is_bytes || !self->files));
    return 0;
}

void eval_tokens_close(eval_tokens *self)
{
    if (self->files)
        corpus_close(self->files);
    mem_free(self->list);
    mem_free(self->ends);
    memset(self, 0, sizeof *self);
}

int eval_tokens_read(eval_tokens *self, uint64_t begin, uint64_t count, int32_t *tokens)
{
    if (self->files)
        return corpus_read(self->files, begin, count, tokens);
    for (uint64_t i = 0; i < count; i++)
        tokens[i] = (int32_t)(self->list[begin + i] & ~TOKEN_UNCOUNTED);
    return 0;
}

int eval_tokens_targets(eval_tokens *self, uint64_t begin, uint64_t count, int32_t *targets)
{
    if (self->files)
        return corpus_read_targets(self->files, begin, count, targets);
    for (uint64_t i = 0; i < count; i++)
        targets[i] = self->list[begin + i] & TOKEN_UNCOUNTED ? -1 : (int32_t)self->list[begin + i];
    return 0;
}

bool eval_tokens_have_marks(const eval_tokens *self)
{
    if (self->files)
        return corpus_has_marks(self->files);
    for (uint64_t i = 0; i < self->count; i++)
        if (self->list[i] & TOKEN_UNCOUNTED)
            return true;
    return false;
}

int eval_tokens_separate(eval_tokens *self, uint64_t from, uint64_t count, const int32_t *inputs,
                         int32_t *targets, int32_t *begins)
{
    if (self->files)
        return corpus_separate(self->files, from, count, inputs, targets, begins);
    uint64_t low = 0, high = self->end_count; /* the first document that ends after `from` */
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (self->ends[middle] > from)
            high = middle;
        else
            low = middle + 1;
    }
    int32_t begin = 0;
    for (uint64_t t = 0; t < count; t++) {
        begins[t] = begin;
        if (low == self->end_count || self->ends[low] > from + t + 1)
            continue;
        targets[t] = -1;
        begin = (int32_t)t + 1;
        while (low < self->end_count && self->ends[low] <= from + t + 1)
            low++;
    }
    return 0;
}

uint64_t eval_tokens_bytes(const eval_tokens *self, const int32_t *targets, uint64_t count)
{
    uint64_t total = 0;
    for (uint64_t i = 0; self->has_bytes && i < count; i++) {
        size_t bytes = 1;
        if (targets[i] < 0)
            continue;
        if (!self->is_text)
            (void)tokenizer_token_bytes(self->words, targets[i], true, &bytes);
        total += bytes;
    }
    return total;
}

/* ---- windows ---- */

static const double ln2 = 0.693147180559945309;

uint64_t eval_window_count(const eval_text *text)
{
    uint64_t predicted = text->token_count - 1;
    if (predicted <= text->window)
        return 1;
    return 1 + size_div_up(predicted - text->window, text->stride);
}

eval_window eval_window_at(const eval_text *text, uint64_t idx)
{
    uint64_t begin = idx * text->stride, predicted = text->token_count - 1;
    return (eval_window){
        .begin = begin,
        .input_count = size_min(text->window, predicted - begin),
        .first_counted = idx == 0 ? 0 : text->window - text->stride,
    };
}

double eval_perplexity(double loss)
{
    return exp(loss);
}

double eval_bits_per_byte(double nats, uint64_t bytes)
{
    return nats / ln2 / (double)bytes;
}
