/* See eval_windows.h. */
#include "infer/eval_windows.h"

#include <math.h>

#include "base/size.h"

static const double ln2 = 0.693147180559945309;

uint64_t eval_window_count(const eval_text *text)
{
    uint64_t predicted = text->token_count - 1;
    if (predicted <= text->window)
        return 1;
    return 1 + size_div_up(predicted - text->window, text->stride);
}

eval_window eval_window_at(const eval_text *text, uint64_t idx)
{
    uint64_t begin = idx * text->stride, predicted = text->token_count - 1;
    return (eval_window){
        .begin = begin,
        .input_count = size_min(text->window, predicted - begin),
        .first_counted = idx == 0 ? 0 : text->window - text->stride,
    };
}

double eval_perplexity(double loss)
{
    return exp(loss);
}

double eval_bits_per_byte(double nats, uint64_t bytes)
{
    return nats / ln2 / (double)bytes;
}
