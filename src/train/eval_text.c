/* See eval_text.h. */
#include "train/eval_text.h"

#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"

enum { PIECE_BYTES = 1 << 20 };

static bool is_bytes_job(const traini_trained *from)
{
    return strcmp(from->asked->data.tokenizer, "bytes") == 0;
}

/* The tokenizer; NULL where the model has none that is known. */
static void find_words(eval_tokens *self, traini_trained *from)
{
    if (traini_trained_words(from, &self->words) == 0)
        return;
    self->words = NULL;
    err_save(&self->why, ERR_INPUT);
}

static int open_corpus(eval_tokens *self, const traini_trained *from,
                       const struct evaluate_options *asked)
{
    enum corpus_format format = (enum corpus_format)from->asked->data.format;
    TRY(corpus_open_as(asked->files, asked->file_count, format, from->asked->model.vocab_size,
                       &self->files));
    self->count = corpus_token_count(self->files);
    return 0;
}

/* The text, whose bytes the corpus has as tokens, cut by the tokenizer. */
static int cut_text(eval_tokens *self, const char *path)
{
    const tokenize_options options = {.adds_special = true};
    int32_t *piece = mem_alloc(PIECE_BYTES, sizeof *piece, "a piece of text");
    char *text = mem_alloc(size_max(self->count, 1), 1, "text");
    int rc = piece && text ? 0 : -ENOMEM;
    for (uint64_t at = 0; rc == 0 && at < self->count; at += PIECE_BYTES) {
        uint64_t bytes = size_min(self->count - at, PIECE_BYTES);
        rc = corpus_read(self->files, at, bytes, piece);
        for (uint64_t i = 0; rc == 0 && i < bytes; i++)
            text[at + i] = (char)piece[i];
    }
    if (rc == 0)
        rc = tokenizer_encode(self->words, text, self->count, &options, &self->list);
    mem_free(piece);
    mem_free(text);
    corpus_close(self->files);
    self->files = NULL;
    self->count = self->list.count;
    for (uint64_t i = 0; rc == 0 && i < self->count; i++)
        if (self->list.ids[i] < 0 || (uint64_t)self->list.ids[i] >= self->vocab)
            rc = err_set(ERR_INPUT,
                         "the tokenizer of %s gives token %d, and the model has %llu: is it the "
                         "model's tokenizer?",
                         path, self->list.ids[i], (unsigned long long)self->vocab);
    return rc;
}

int eval_tokens_open(eval_tokens *self, traini_trained *from, const struct evaluate_options *asked)
{
    memset(self, 0, sizeof *self);
    self->vocab = from->asked->model.vocab_size;
    find_words(self, from);
    TRY(open_corpus(self, from, asked));
    bool is_text = corpus_is_text(self->files);
    bool is_bytes = self->words && is_bytes_job(from) && !from->has_own_words;
    self->has_bytes = is_text || (self->words && !is_bytes);
    if (!is_text || is_bytes)
        return 0;
    if (!self->words)
        return err_set(ERR_INPUT, "text is to be evaluated, but no tokenizer of %s is known: %s",
                       asked->path, self->why.text);
    return cut_text(self, asked->path);
}

void eval_tokens_close(eval_tokens *self)
{
    if (self->files)
        corpus_close(self->files);
    token_list_fini(&self->list);
    memset(self, 0, sizeof *self);
}

int eval_tokens_read(eval_tokens *self, uint64_t begin, uint64_t count, int32_t *tokens)
{
    if (self->files)
        return corpus_read(self->files, begin, count, tokens);
    memcpy(tokens, self->list.ids + begin, count * sizeof *tokens);
    return 0;
}

uint64_t eval_tokens_bytes(const eval_tokens *self, const int32_t *tokens, uint64_t count)
{
    uint64_t total = 0;
    if (!self->has_bytes)
        return 0;
    if (!self->words)
        return count; /* bytes, each a token */
    for (uint64_t i = 0; i < count; i++) {
        size_t bytes;
        (void)tokenizer_token_bytes(self->words, tokens[i], true, &bytes);
        total += bytes;
    }
    return total;
}
