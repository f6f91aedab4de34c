/* Chooses the next token from a model's logits.
 *
 *   1. Divide the logits by the temperature.
 *   2. Keep the top_k largest.
 *   3. From these, keep the fewest that together have at least top_p of the probability.
 *   4. Draw one of them.
 *
 * Tokens of equal logits rank by id, the lower first. Probabilities are computed in double. Pure:
 * with the same logits, the result depends on (seed, index) only, on any machine. */
#ifndef SLUICE_INFER_SAMPLING_H
#define SLUICE_INFER_SAMPLING_H

#include <stdint.h>

#include "base/error.h"

struct sampling {
    double temperature; /* 0: the likeliest token, whatever the other members are */
    uint64_t top_k;     /* 0: all */
    double top_p;       /* in (0, 1]; 1: all */
    uint64_t seed;
};
typedef struct sampling sampling;

/* Draws token number `idx` of a text from logits [vocab]; `order` [vocab] is scratch. ERR_DIVERGED
 * if a logit is NaN or +infinity, or if all are -infinity. */
int sampling_draw(const sampling *self, const float *logits, uint64_t vocab, uint64_t idx,
                  uint32_t *order, uint64_t *token) MUST_CHECK;

#endif
