/* The files of an evaluation as one sequence of tokens, and the bytes that tokens stand for. One thread. */
#ifndef SLUICE_TRAIN_EVAL_TEXT_H
#define SLUICE_TRAIN_EVAL_TEXT_H

#include "data/corpus.h"
#include "data/tokenizer.h"
#include "train/trained.h"

struct eval_tokens {
    uint64_t count;
    corpus *files;          /* token files, and text of a model of bytes; else NULL */
    token_list list;        /* text cut by the tokenizer */
    const tokenizer *words; /* the model's; NULL: it has none, and the files are tokens */
    bool has_bytes;         /* eval_tokens_bytes counts them */
    uint64_t vocab;         /* the model's */
    err_record why;         /* words is NULL */
};
typedef struct eval_tokens eval_tokens;

/* Text is cut by the model's tokenizer, files of tokens are as they are. ERR_INPUT for files that cannot be read, and
 * for tokens that the model does not have. To be closed in either case. */
int eval_tokens_open(eval_tokens *self, traini_trained *from,
                     const struct evaluate_options *asked) MUST_CHECK;
void eval_tokens_close(eval_tokens *self);

/* Tokens [begin, begin + count). */
int eval_tokens_read(eval_tokens *self, uint64_t begin, uint64_t count, int32_t *tokens) MUST_CHECK;

/* Bytes that these tokens stand for in the text; special ones, such as a document's end, for none. */
uint64_t eval_tokens_bytes(const eval_tokens *self, const int32_t *tokens, uint64_t count);

#endif
