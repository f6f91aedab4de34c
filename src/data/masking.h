/* Masked tokens, for a model that learns to fill them in (BERT; Devlin et al. 2019, section 3.1).
 *
 * Each token of a window is chosen with a given probability. A chosen token becomes a target at its
 * own place. In the inputs it is replaced by the mask token with probability 0.8, by a random token
 * of the vocabulary with probability 0.1, and it stays otherwise. Special tokens are never chosen.
 *
 * A token's fate depends only on (seed, number of the window, place in the window), so neither
 * resuming nor the number of ranks or micro-batches changes it. Pure, apart from
 * masking_init. */
#ifndef SLUICE_DATA_MASKING_H
#define SLUICE_DATA_MASKING_H

#include <stdint.h>

#include "base/error.h"
#include "text/tokenizer.h"

enum { MASKING_SPECIALS_MAX = 1024 };

/* The seed of evaluations: they mask the same tokens in every run. */
#define MASKING_FIXED_SEED 0

/* A plain struct, which one rank may send to others. */
struct masking {
    double share; /* probability that a token is chosen; 0: nothing is masked */
    uint64_t vocab;
    int32_t mask_token;
    uint32_t special_count;
    int32_t specials[MASKING_SPECIALS_MAX]; /* never chosen; ascending */
};
typedef struct masking masking;

/* Finds the mask token and the special tokens. `mask_token`: data.mask_token; -1: the tokenizer's.
 * `words` may be NULL; then only the mask token is special. ERR_CONFIG if no mask token is known,
 * or if it is outside the vocabulary. */
int masking_init(masking *self, double share, uint64_t vocab, int64_t mask_token,
                 const tokenizer *words) MUST_CHECK;

/* Masks a window: changes inputs [count], and writes targets [count], -1 where nothing was
 * chosen. */
void masking_apply(const masking *self, uint64_t seed, uint64_t window, uint64_t count,
                   int32_t *inputs, int32_t *targets);

#endif
