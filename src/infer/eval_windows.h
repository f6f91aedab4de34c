/* The windows of an evaluation: which tokens of a text each window reads and which it counts; and
 * the results that follow from the sums. Pure.
 *
 * A text of N tokens has N - 1 predicted tokens (all but the first). Each is counted once. Windows
 * of T inputs begin `stride` apart:
 *
 *   window 0   |<------- T inputs ------->|
 *   window 1        |<------- T inputs ------->|
 *   window 2             |<------- T inputs ------->|
 *
 * Window 0 counts all its T targets. Each later window counts the targets of its inputs from number
 * T - stride on, because an earlier window has counted the others. So at least T - stride tokens
 * precede every target that a later window counts. The last window is cut where the text ends. */
#ifndef SLUICE_INFER_EVAL_WINDOWS_H
#define SLUICE_INFER_EVAL_WINDOWS_H

#include <stdint.h>

struct eval_text {
    uint64_t token_count;    /* N >= 2 */
    uint64_t window, stride; /* window: T; stride: 1 to T */
};
typedef struct eval_text eval_text;

struct eval_window {
    uint64_t begin;         /* index in the text of its first input */
    uint64_t input_count;   /* at most T; each target is one token after its input */
    uint64_t first_counted; /* the targets of the inputs from this one on count */
};
typedef struct eval_window eval_window;

uint64_t eval_window_count(const eval_text *text);
eval_window eval_window_at(const eval_text *text, uint64_t idx);

/* exp(loss); infinite if that overflows. */
double eval_perplexity(double loss);
/* Bits per byte of a text of `bytes` bytes whose loss is `nats` in total. bytes > 0. */
double eval_bits_per_byte(double nats, uint64_t bytes);

#endif
