/* The files of an evaluation as one sequence of tokens, and the number of text bytes that tokens
 * stand for. One thread. */
#ifndef SLUICE_INFER_EVAL_TEXT_H
#define SLUICE_INFER_EVAL_TEXT_H

#include "data/corpus.h"
#include "infer/opened_model.h"
#include "text/tokenizer.h"

struct eval_tokens {
    uint64_t count;
    /* token files, or text for a model of bytes; NULL: the tokens are in `list` */
    corpus *files;
    uint32_t *list;    /* [capacity] tokens of text and JSON lines, with TOKEN_UNCOUNTED */
    uint64_t capacity; /* elements of list, of which `count` are used */
    uint64_t vocab;    /* the model's vocabulary size */
    /* the model's tokenizer; NULL: it has none, and the files hold tokens */
    const tokenizer *words;
    bool is_text;   /* each byte is a token */
    bool has_bytes; /* eval_tokens_bytes can count bytes */
};
typedef struct eval_tokens eval_tokens;

/* Opens the files. Text and JSON lines are cut by the model's tokenizer, as for training
 * (data/prepare.h); the resulting tokens are kept in memory, 4 bytes each. Files of tokens need no
 * tokenizer. ERR_INPUT for files that cannot be read and for tokens that the model does not know.
 * Call eval_tokens_close even after a failure. */
int eval_tokens_open(eval_tokens *self, infer_model *from,
                     const struct infer_evaluate_options *asked) MUST_CHECK;
void eval_tokens_close(eval_tokens *self);

/* Reads tokens [begin, begin + count). */
int eval_tokens_read(eval_tokens *self, uint64_t begin, uint64_t count, int32_t *tokens) MUST_CHECK;
/* The same as targets: -1 for tokens that do not count, such as the user's words in a
 * conversation. */
int eval_tokens_targets(eval_tokens *self, uint64_t begin, uint64_t count,
                        int32_t *targets) MUST_CHECK;

/* How many bytes of text these targets stand for. Special tokens, such as a document's end, count
 * 0. */
uint64_t eval_tokens_bytes(const eval_tokens *self, const int32_t *targets, uint64_t count);

#endif
