/* Token sources and the sampler.
 *
 * A corpus is one or more files seen as one sequence of tokens; it is opened once and read with pread
 * per window, so its size does not count against any budget. The sampler is a function of (seed,
 * window number) alone: resuming needs only the number. Windows of T + 1 tokens are laid end to end
 * (stride T) and visited in a seeded permutation per epoch, with a seeded shift per epoch, so every
 * token is seen once before any is seen twice. One thread. */
#ifndef SLUICE_DATA_CORPUS_H
#define SLUICE_DATA_CORPUS_H

#include <stdint.h>

#include "base/error.h"

typedef struct corpus corpus;

/* Opens the files (text, byte tokenizer: token = byte value, vocabulary 256). ERR_INPUT with the path
 * for a missing, unreadable, empty or too short file; a directory is refused. */
int corpus_open(const char *const *paths, uint32_t path_count, corpus **out) MUST_CHECK;
void corpus_close(corpus *self);
uint64_t corpus_token_count(const corpus *self);
uint64_t corpus_vocab(const corpus *self); /* 256 for bytes */

/* Tokens [begin, begin + count) of the whole sequence as int32. */
int corpus_read(corpus *self, uint64_t begin, uint64_t count, int32_t *tokens) MUST_CHECK;

struct sampler {
    corpus *source;
    uint64_t seed;
    uint64_t tokens_per_window; /* T */
    uint64_t windows_per_epoch; /* so that each has its T + 1 tokens */
};
typedef struct sampler sampler;

/* ERR_INPUT when the corpus has fewer than T + 2 tokens. */
int sampler_init(sampler *self, corpus *source, uint64_t seed, uint64_t tokens_per_window) MUST_CHECK;

/* Window number `idx` (0, 1, 2, ... over all epochs): inputs [T] and targets [T] (the next tokens). */
int sampler_window(sampler *self, uint64_t idx, int32_t *inputs, int32_t *targets) MUST_CHECK;

/* For evaluation: window `idx` of the corpus in order, no shuffling; wraps around. */
int sampler_window_in_order(sampler *self, uint64_t idx, int32_t *inputs, int32_t *targets) MUST_CHECK;

#endif
