/* See zero.h. */
#include "plan/zero.h"

#include <math.h>

zero_states zero_mixed_adam(void)
{
    return (zero_states){.params = 2, .grads = 2, .optimizer = 12};
}

/* Bytes of a rank for each parameter of the model. */
static double bytes_of_each(const zero_states *each, uint32_t stage, uint32_t ranks)
{
    double share = 1.0 / ranks;
    return each->optimizer * (stage >= 1 ? share : 1) + each->grads * (stage >= 2 ? share : 1) +
           each->params * (stage >= 3 ? share : 1);
}

double zero_rank_bytes(const zero_states *each, uint32_t stage, double param_count, uint32_t ranks)
{
    return param_count * bytes_of_each(each, stage, ranks);
}

double zero_params_max(const zero_states *each, uint32_t stage, double rank_bytes, uint32_t ranks)
{
    return rank_bytes / bytes_of_each(each, stage, ranks);
}

double zero_sent_elems(uint32_t stage)
{
    return stage >= 3 ? 3 : 2;
}

double zero_hidden_tokens(double fixed_seconds, double growing_seconds, double computing_seconds,
                          double tokens)
{
    double left = (computing_seconds - growing_seconds) / tokens; /* of each token */
    if (fixed_seconds <= 0 && growing_seconds <= computing_seconds)
        return 0;
    return left > 0 ? fixed_seconds / left : INFINITY;
}
