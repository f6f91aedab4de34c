/* The files of an evaluation as one sequence of tokens, and the bytes that tokens stand for. One
 * thread. */
#ifndef SLUICE_INFER_EVAL_TEXT_H
#define SLUICE_INFER_EVAL_TEXT_H

#include "data/corpus.h"
#include "infer/opened_model.h"
#include "text/tokenizer.h"

struct eval_tokens {
    uint64_t count;
    corpus *files;     /* token files, and text of a model of bytes; NULL: they are in memory */
    uint32_t *list;    /* [capacity] with MADE_UNCOUNTED, of text and JSON lines */
    uint64_t capacity; /* count are used */
    uint64_t vocab;    /* the model's */
    const tokenizer *words; /* the model's; NULL: it has none, and the files are tokens */
    bool is_text;           /* bytes, each a token */
    bool has_bytes;         /* eval_tokens_bytes counts them */
};
typedef struct eval_tokens eval_tokens;

/* Text and JSON lines are cut by the model's tokenizer as for training (data/prepare.h), files of
 * tokens are as they are. What is cut is kept in memory, 4 bytes a token. ERR_INPUT for files that
 * cannot be read, and for tokens that the model does not have. To be closed in either case. */
int eval_tokens_open(eval_tokens *self, infer_model *from,
                     const struct infer_evaluate_options *asked) MUST_CHECK;
void eval_tokens_close(eval_tokens *self);

/* Tokens [begin, begin + count). */
int eval_tokens_read(eval_tokens *self, uint64_t begin, uint64_t count, int32_t *tokens) MUST_CHECK;
/* The same as targets: -1 for what does not count, such as the words of who asks in a
 * conversation. */
int eval_tokens_targets(eval_tokens *self, uint64_t begin, uint64_t count,
                        int32_t *targets) MUST_CHECK;

/* Bytes that these targets stand for in the text; special ones, such as a document's end, for
 * none. */
uint64_t eval_tokens_bytes(const eval_tokens *self, const int32_t *targets, uint64_t count);

#endif
