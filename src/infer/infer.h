/* Generation and evaluation with the model of a run's last commit, or of a Hugging Face checkpoint.
 * One process, whatever number of ranks trained. The calls block; one call at a time per
 * process. */
#ifndef SLUICE_INFER_INFER_H
#define SLUICE_INFER_INFER_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum infer_end {
    GENERATE_TOKENS,  /* as many tokens as were asked for */
    GENERATE_END,     /* the model ended the text */
    GENERATE_TEXT,    /* stop_text appeared */
    GENERATE_STOPPED, /* on request, or by a callback */
};

struct infer_generate_result {
    /* tokens: generated ones, including the one that ends the text */
    uint64_t prompt_tokens, tokens;
    uint64_t context; /* positions whose keys and values are kept */
    uint64_t slides;  /* how often the older half of them was dropped */
    /* the prompt's tokens, up to the logits of the first new token */
    double prefill_seconds;
    double decode_seconds; /* all that follows: tokens - 1 calls, and the slides */
    /* In the same time: bytes that were read from the drives and copied to the device; and of
     * experts that no token chose, bytes that were neither. */
    uint64_t read_bytes, copied_bytes, spared_bytes;
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
    /* Most positions; 0: as many as the text takes, but at most model.seq_length. */
    uint64_t context;
    const char *stop_text; /* the generated text ends before this text; or NULL */
    bool ignores_end;      /* treat the token that ends a text like any other */
    bool is_chat;          /* the prompt is a user's message; only the answer is shown */
    const char *system;    /* with is_chat: the system message; or NULL */
    const volatile sig_atomic_t *stop;
    int (*on_token)(void *user, const char *bytes, uint64_t count); /* negative ends it */
    /* called for each token; or NULL */
    void (*on_id)(void *user, int32_t id, bool is_prompt);
    void *user;
    struct infer_generate_result *result; /* filled as far as generation came; or NULL */
};

/* Continues the prompt with the model of the run's last commit, or of the checkpoint. The prompt is
 * shown first. Keys and values of the positions so far are kept on the device. When the text
 * outgrows the context, the older half is dropped and the rest is read again, so the model always
 * sees between half of the context and all of it. ERR_NO_FIT says which context would fit. */
int infer_generate(const struct infer_generate_options *options) MUST_CHECK;

/* How far an evaluation has come, and its result so far. */
struct infer_evaluate_progress {
    uint64_t tokens_done, tokens; /* predicted tokens */
    double loss;                  /* mean over tokens_done */
    double seconds;
};

struct infer_evaluate_options {
    const char *path; /* a run directory, or a checkpoint of Hugging Face */
    const char *const *files;
    uint32_t file_count;
    const char *const *set; /* [set_count] "key.path=value" of the job: budgets, data.format, ... */
    uint32_t set_count;
    uint64_t context; /* most tokens from which a token is predicted; 0: model.seq_length */
    /* Tokens between the begins of two windows, at most the context; 0: the context, so that
     * windows do not overlap. */
    uint64_t stride;
    uint64_t batches; /* at most so many micro-batches; 0: all */
    const volatile sig_atomic_t *stop;
    /* after each micro-batch; or NULL */
    void (*on_progress)(void *user, const struct infer_evaluate_progress *progress);
    void *user;
};

struct infer_evaluate_result {
    /* Predicted and counted tokens, each once: all but the first of each document; only the answers
     * of conversations; of a model that fills in masked tokens, only the masked ones. */
    uint64_t tokens;
    /* bytes that these tokens stand for; 0: not known (ids without a tokenizer) */
    uint64_t text_bytes;
    double nats;          /* sum over all of them */
    double loss;          /* nats per token */
    double perplexity;    /* e^loss */
    double bits_per_byte; /* NAN if text_bytes is 0 */
    uint64_t context, stride, windows;
    double seconds; /* time of computing */
};

/* Computes the loss of a trained model on files, whose documents are separate or joined as in
 * training (data.documents). Each token but a document's first is predicted once, in order: windows
 * that overlap (stride < context) count only the targets that no earlier window has counted.
 * ERR_INPUT for files with fewer than two tokens; ERR_NO_FIT; ERR_STOPPED. */
int infer_evaluate(const struct infer_evaluate_options *options,
                   struct infer_evaluate_result *result) MUST_CHECK;

#endif
