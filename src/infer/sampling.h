/* The next token from a model's logits. Pure; deterministic by (seed, index) alone, on any machine
 * with the same logits.
 *
 *   logits ─ / temperature ─ the top_k largest ─ of these the least that have top_p of the probability ─ draw
 *
 * Tokens of equal logits rank by id, the lower first. Probabilities are in double. */
#ifndef SLUICE_INFER_SAMPLING_H
#define SLUICE_INFER_SAMPLING_H

#include <stdint.h>

#include "base/error.h"

struct sampling {
    double temperature; /* 0: the likeliest token, whatever the others say */
    uint64_t top_k;     /* 0: all */
    double top_p;       /* in (0, 1]; 1: all */
    uint64_t seed;
};
typedef struct sampling sampling;

/* Token number `idx` of a text, from logits [vocab]; `order` [vocab] is scratch. ERR_DIVERGED where
 * a logit is NaN or +infinity, or all are -infinity. */
int sampling_draw(const sampling *self, const float *logits, uint64_t vocab, uint64_t idx,
                  uint32_t *order, uint64_t *token) MUST_CHECK;

#endif
