/* Which tokens of a text each window of an evaluation reads and which it counts; what comes of the
 * sums. Pure.
 *
 * Of N tokens all but the first are predicted, each once. Windows of T inputs begin `stride` apart:
 *
 *   window 0   |<------- T inputs ------->|           counts the T tokens behind its inputs
 *   window 1        |<------- T inputs ------->|      counts the last `stride` of these, which no window
 *   window 2             |<------- T in            before it has: each with T - stride tokens before it, or more
 *                                                     ... the last window is cut where the text ends */
#ifndef SLUICE_INFER_EVAL_WINDOWS_H
#define SLUICE_INFER_EVAL_WINDOWS_H

#include <stdint.h>

struct eval_text {
    uint64_t token_count;    /* N, at least 2 */
    uint64_t window, stride; /* T; 1 to T */
};
typedef struct eval_text eval_text;

struct eval_window {
    uint64_t begin;         /* of its inputs, in the text */
    uint64_t input_count;   /* at most T: targets are one token further each */
    uint64_t first_counted; /* inputs from this one on have targets that count */
};
typedef struct eval_window eval_window;

uint64_t eval_window_count(const eval_text *text);
eval_window eval_window_at(const eval_text *text, uint64_t idx);

/* exp(loss), infinite where that overflows. */
double eval_perplexity(double loss);
/* Of `nats` over text of so many bytes; bytes > 0. */
double eval_bits_per_byte(double nats, uint64_t bytes);

#endif
