/* The part of a job about its ranks: batch sizes, data types of communication, limits of stage 3,
 * drives of each rank. See config_internal.h. Called by job_read; pure. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "config/config_internal.h"

/* True if a block about parallelism asks for a degree above 1. Numbers are looked for at any depth,
 * under the names that DeepSpeed's blocks have for a degree. */
static bool asks_several(const json_t *value)
{
    static const char names[] = "size|autotp_size|tp_size|stages|degree|ep_size|num_experts";
    const char *key;
    json_t *child;
    if (json_is_number(value))
        return json_number_value(value) > 1;
    json_object_foreach((json_t *)value, key, child)
    {
        bool counts = json_is_number(child) && configi_list_find(names, key) >= 0;
        if ((counts || json_is_object(child)) && asks_several(child))
            return true;
    }
    return false;
}

/* Refuses parallelism that is not built. It changes how many sequences a step has, so with several
 * ranks it must not be taken for data parallelism. */
static int check_parallelism(const configi_reader *reader)
{
    static const struct {
        const char *path, *text;
    } rows[] = {
        {"sequence_parallel_size", "no sequence is split over ranks; leave it out, and lower "
                                   "model.seq_length where one does not fit a rank"},
        {"tensor_parallel", "no matrix is split over ranks; leave it out: zero_optimization.stage "
                            "3 splits all states"},
        {"pipeline", "blocks are not dealt out to ranks; leave it out: zero_optimization.stage 3 "
                     "splits all states"},
        {"expert_parallel", "set model.expert_parallel_size to the number of ranks in place of it"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (asks_several(configi_get(reader, rows[i].path)))
            return configi_error(reader, rows[i].path, "not built for %" PRIu32 " ranks: %s",
                                 reader->world, rows[i].text);
    if (strcmp(configi_choice(reader, "gradient_allreduce_op"), "sum") == 0)
        return configi_error(reader, "gradient_allreduce_op",
                             "\"sum\" is not built for %" PRIu32
                             " ranks; leave it out, and gradients "
                             "are the mean over all sequences of a step",
                             reader->world);
    return 0;
}

/* In struct job, 0 means "not given". If the file gives 0, the limit becomes 1, the smallest
 * possible. */
static void fill_limit(const configi_reader *reader, const char *path, uint64_t *limit)
{
    if (*limit == 0 && configi_get(reader, path))
        *limit = 1;
}

int configi_fill_ranks(const configi_reader *reader, job *target)
{
    enum { STAGING_BYTES_MIN = 65536 };
    static const char staging_path[] = "debug.comm.staging_bytes";
    char least[SIZE_TEXT_BYTES], given[SIZE_TEXT_BYTES];
    if (reader->world > 1)
        TRY(check_parallelism(reader));
    if (target->comm.staging_bytes < STAGING_BYTES_MIN)
        return configi_error(reader, staging_path, "%s is out of range: must be at least %s",
                             size_format(target->comm.staging_bytes, given),
                             size_format(STAGING_BYTES_MIN, least));
    if (!configi_get(reader, "communication_data_type"))
        target->comm.wire = target->type;
    fill_limit(reader, "zero_optimization.stage3_max_live_parameters",
               &target->max_live_parameters);
    fill_limit(reader, "zero_optimization.stage3_prefetch_bucket_size",
               &target->prefetch_bucket_size);
    target->limits_reuse =
        configi_get(reader, "zero_optimization.stage3_max_reuse_distance") != NULL;
    return 0;
}

int configi_check_placeholders(const configi_reader *reader, const char *path, const char *text)
{
    static const char *const known[] = {"{rank}", "{local_rank}", "{host}"};
    for (const char *at = strchr(text, '{'); at; at = strchr(at + 1, '{')) {
        bool is_known = false;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            is_known = is_known || strncmp(at, known[i], strlen(known[i])) == 0;
        if (!is_known)
            return configi_error(
                reader, path,
                "\"%.64s\" is none of the placeholders that a path may hold: {rank}, "
                "{local_rank}, {host}",
                at);
    }
    return 0;
}

/* The error for a step of `train` sequences that is too small: all ranks together need `least`,
 * with micro-batches of `micro` sequences and `accumulation` of them in a step. */
static int too_few_sequences(const configi_reader *reader, uint64_t world, uint64_t train,
                             uint64_t micro, uint64_t accumulation, uint64_t least)
{
    char times[64] = "", fewer[64];
    uint64_t ranks = train / (least / world);
    if (accumulation > 1)
        snprintf(times, sizeof times, ", %" PRIu64 " of them in a step", accumulation);
    snprintf(fewer, sizeof fewer, "start %" PRIu64 " rank%s", ranks, ranks == 1 ? "" : "s");
    return configi_error(reader, "train_batch_size",
                         "%" PRIu64 " is smaller than what %" PRIu64 " ranks with micro-batches of "
                         "%" PRIu64 "%s need: each rank takes at least one sequence a step; raise "
                         "train_batch_size to %" PRIu64 " or %s",
                         train, world, micro, times, least,
                         ranks > 0 ? fewer : "make the micro-batch smaller");
}

int configi_resolve_batch(const configi_reader *reader, uint64_t world, uint64_t *train,
                          uint64_t *micro, uint64_t *accumulation)
{
    static const char micro_path[] = "train_micro_batch_size_per_gpu";
    if (*train == 0 && *micro == 0 &&
        (configi_is_auto(reader, micro_path) || configi_is_auto(reader, "train_batch_size")))
        return configi_ask_auto(reader, micro_path, "8");
    if (*train == 0 && *micro == 0)
        return configi_error(reader, micro_path, "missing; give it or train_batch_size");
    uint64_t product;
    const uint64_t given[] = {*micro, *accumulation};
    if (*train > 0 && *micro > 0 && *accumulation == 0) {
        *accumulation = *train / *micro / world;
    } else if (*train > 0 && *micro == 0) {
        if (*accumulation == 0)
            *accumulation = 1;
        *micro = *train / world / *accumulation;
    } else if (*train == 0) {
        if (*accumulation == 0)
            *accumulation = 1;
        if (size_mul(*micro, *accumulation, train) < 0 || size_mul(*train, world, train) < 0)
            return configi_error(reader, "train_batch_size",
                                 "%" PRIu64 " micro-batch times %" PRIu64 " accumulation times "
                                 "%" PRIu64 " ranks is more than 64 bits hold",
                                 *micro, *accumulation, world);
    }
    bool fits =
        size_mul(*micro, *accumulation, &product) == 0 && size_mul(product, world, &product) == 0;
    if (fits && product == *train && product > 0)
        return 0;
    uint64_t least = 0; /* the sequences of a step that all ranks together need */
    uint64_t each = *micro > 0 ? *micro : 1, times = *accumulation > 0 ? *accumulation : 1;
    if (world > 1 && size_mul(each, times, &least) == 0 && size_mul(least, world, &least) == 0 &&
        *train < least)
        return too_few_sequences(reader, world, *train, each, times, least);
    const char *plural = world == 1 ? "" : "s";
    if (given[0] == 0 && given[1] == 0)
        return configi_error(reader, "train_batch_size",
                             "%" PRIu64 " is not a multiple of %" PRIu64 " rank%s", *train, world,
                             plural);
    if (given[0] == 0 || given[1] == 0)
        return configi_error(reader, "train_batch_size",
                             "%" PRIu64 " is not a multiple of %s %" PRIu64 " times %" PRIu64
                             " rank%s",
                             *train, given[0] ? micro_path : "gradient_accumulation_steps",
                             given[0] ? *micro : *accumulation, world, plural);
    return configi_error(reader, "train_batch_size",
                         "%" PRIu64 " is not train_micro_batch_size_per_gpu %" PRIu64
                         " times gradient_accumulation_steps %" PRIu64 " times %" PRIu64 " rank%s",
                         *train, *micro, *accumulation, world, plural);
}
