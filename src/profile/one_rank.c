/* The job of one rank among ranks that do not exist. See profile.h. */
#include <inttypes.h>

#include "profile/profile_internal.h"

int profilei_scale(profile *self)
{
    const struct profile_options *options = self->options;
    struct job_model *own = &self->own->model;
    uint64_t divisor = options->scale_down ? options->scale_down : 1;
    self->out->block_count = self->out->block_count_asked = own->num_layers;
    if (options->of_ranks == 0) {
        if (divisor > 1 || options->only_transfers || options->comm_bytes_per_second > 0)
            return err_set(ERR_USAGE, "a scale-down, transfers alone and a speed of collectives "
                                      "are for one rank of several (--as-rank R --of N)");
        return 0;
    }
    if (options->as_rank >= options->of_ranks)
        return err_set(ERR_USAGE, "there is no rank %u of %u: they count from 0", options->as_rank,
                       options->of_ranks);
    if (self->own->world != options->of_ranks)
        return err_set(ERR_INTERNAL, "the job was read for %u ranks, not for %u", self->own->world,
                       options->of_ranks);
    if (divisor > own->num_layers || own->num_layers % divisor != 0)
        return err_set(ERR_USAGE,
                       "a scale-down of %" PRIu64 " does not divide the model's %" PRIu64 " blocks",
                       divisor, own->num_layers);
    own->num_layers /= divisor;
    self->out->block_count = own->num_layers;
    self->out->as_rank = options->as_rank;
    self->out->of_ranks = options->of_ranks;
    self->out->scale_down = (uint32_t)divisor;
    self->out->only_transfers = options->only_transfers;
    return 0;
}
