/* Generation and evaluation with the model of a run's last commit, or of a Hugging Face checkpoint.
 * One process, whatever number of ranks trained; blocking. One call at a time per process. */
#ifndef SLUICE_INFER_INFER_H
#define SLUICE_INFER_INFER_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum infer_end {
    GENERATE_TOKENS,  /* as many as were asked for */
    GENERATE_END,     /* the model has ended the text */
    GENERATE_TEXT,    /* the text to stop at has come */
    GENERATE_STOPPED, /* on request, or by a callback */
};

struct infer_generate_result {
    uint64_t prompt_tokens, tokens; /* tokens: generated, the one that ends the text included */
    uint64_t context;               /* positions that keys and values are kept of */
    uint64_t slides;                /* times that the older half of them was dropped */
    double prefill_seconds;         /* of the prompt's tokens, the first token's logits included */
    double decode_seconds; /* of all that follows: tokens - 1 calls, and what slides take */
    enum infer_end ended;
};

struct infer_generate_options {
    const char *run_dir;    /* a run directory, or a checkpoint of Hugging Face */
    const char *const *set; /* [set_count] "key.path=value" of the job: budgets, types, ... */
    uint32_t set_count;
    const char *prompt; /* bytes */
    uint64_t prompt_bytes, token_count, top_k, seed;
    double temperature; /* 0: the likeliest token */
    double top_p;       /* 0 acts as 1: all */
    uint64_t context;   /* most positions; 0: as many as the text takes, at most model.seq_length */
    const char
        *stop_text;     /* where it comes in what is generated, the text ends before it; or NULL */
    bool ignores_end;   /* the token that ends a text is a token like any other */
    bool is_chat;       /* the prompt is what a user says; the answer alone is shown */
    const char *system; /* of a chat: what comes before it; or NULL */
    const volatile sig_atomic_t *stop;
    int (*on_token)(void *user, const char *bytes, uint64_t count); /* negative ends it */
    void (*on_id)(void *user, int32_t id, bool is_prompt);          /* each; or NULL */
    void *user;
    struct infer_generate_result *result; /* filled as far as it came; or NULL */
};

/* Continues the prompt with the model of the run's last commit, or of the checkpoint. The prompt is
 * shown first. Keys and values of the positions so far are kept on the device. Where the text
 * outgrows the context, the older half of it is dropped and the rest read again: the model always
 * sees between half of the context and all of it. ERR_NO_FIT says which context would fit. */
int infer_generate(const struct infer_generate_options *options) MUST_CHECK;

/* Where an evaluation is, and what has come of it so far. */
struct infer_evaluate_progress {
    uint64_t tokens_done, tokens; /* predicted ones */
    double loss;                  /* of those done */
    double seconds;
};

struct infer_evaluate_options {
    const char *path; /* a run directory, or a checkpoint of Hugging Face */
    const char *const *files;
    uint32_t file_count;
    const char *const *set; /* [set_count] "key.path=value" of the job: budgets, data.format, ... */
    uint32_t set_count;
    uint64_t context; /* most tokens that a token is predicted from; 0: model.seq_length */
    /* between windows, at most the context; 0: the context, so that they do not overlap */
    uint64_t stride;
    uint64_t batches; /* at most so many micro-batches; 0: all there is */
    const volatile sig_atomic_t *stop;
    void (*on_progress)(void *user,
                        /* each micro-batch; or NULL */
                        const struct infer_evaluate_progress *progress);
    void *user;
};

struct infer_evaluate_result {
    /* predicted and counted, each once: all but the first of the text; of conversations the answers
     * alone */
    uint64_t tokens;
    uint64_t text_bytes;  /* that these tokens stand for; 0: not known (ids without a tokenizer) */
    double nats;          /* of all of them */
    double loss;          /* nats per token */
    double perplexity;    /* e^loss */
    double bits_per_byte; /* NAN where text_bytes is 0 */
    uint64_t context, stride, windows;
    double seconds; /* of computing */
};

/* The loss of a trained model on files, in order, each token once; see eval_windows.h. The files
 * make one text, as they do in training. ERR_INPUT for files without two tokens; ERR_NO_FIT;
 * ERR_STOPPED. */
int infer_evaluate(const struct infer_evaluate_options *options,
                   struct infer_evaluate_result *result) MUST_CHECK;

#endif
