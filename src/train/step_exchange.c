/* Exchanges between the ranks of a run in the loop: whether they read the same data, the losses
 * of a step, requests to stop, and at the end what each rank used. Collective, on the loop's
 * thread. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "base/mem.h"
#include "base/size.h"
#include "train/loop_internal.h"

/* ---- equal data ---- */

/* Identifies data: its length, and a hash of pieces from all of it. */
struct data_word {
    uint64_t token_count, sum;
};

static int sum_corpus(corpus *source, struct data_word *out)
{
    enum { PIECES = 64, PIECE_TOKENS = 1024 };
    int32_t tokens[PIECE_TOKENS];
    uint64_t token_count = corpus_token_count(source), count = size_min(PIECE_TOKENS, token_count);
    const uint64_t counts[] = {token_count, corpus_counted(source), corpus_document_count(source)};
    out->sum = XXH3_64bits_withSeed(counts, sizeof counts, out->sum);
    for (uint64_t i = 0; i < PIECES; i++) {
        uint64_t begin = (token_count - count) / (PIECES - 1) * i;
        TRY(corpus_read(source, begin, count, tokens));
        out->sum = XXH3_64bits_withSeed(tokens, count * sizeof *tokens, out->sum);
    }
    return 0;
}

static int sum_data(const mixture *sources, struct data_word *out)
{
    out->token_count = mixture_token_count(sources);
    for (uint32_t s = 0; s < mixture_source_count(sources); s++)
        TRY(sum_corpus(mixture_source(sources, s), out));
    return 0;
}

int loop_compare_data(struct loop *self)
{
    static const char *const names[2] = {"data.train", "data.valid"};
    const struct ranks *ranks = &self->run.ranks;
    const mixture *const sources[2] = {self->train_data, self->valid_data};
    struct data_word own[2], first[2];
    int rc = 0;
    if (ranks->world == 1)
        return 0;
    memset(own, 0, sizeof own);
    for (int i = 0; rc == 0 && i < 2; i++)
        if (sources[i])
            rc = sum_data(sources[i], &own[i]);
    TRY(comm_agree(ranks->comm, "data", rc));
    memcpy(first, own, sizeof first);
    TRY(comm_broadcast(ranks->comm, "data", first, sizeof first));
    for (int i = 0; rc == 0 && i < 2; i++)
        if (memcmp(&own[i], &first[i], sizeof *own) != 0)
            rc = err_set(ERR_INPUT,
                         "%s has %llu tokens here and %llu%s on rank 0: all ranks must read the "
                         "same files; copy them to each host, or name a shared file system",
                         names[i], (unsigned long long)own[i].token_count,
                         (unsigned long long)first[i].token_count,
                         own[i].token_count == first[i].token_count ? " others" : "");
    return comm_agree(ranks->comm, "data", rc);
}

/* ---- after each step ---- */

struct step_word {
    struct loop_losses sums;
    uint64_t target_count;
    uint8_t asks_stop;
};

int loop_share_step(struct loop *self, const struct loop_losses *own_sums,
                    struct loop_losses *total)
{
    const struct ranks *ranks = &self->run.ranks;
    const volatile sig_atomic_t *stop = self->options->stop;
    if (ranks->world == 1) {
        *total = *own_sums;
        self->is_asked_to_stop = stop && *stop;
        return 0;
    }
    struct step_word own;
    memset(&own, 0, sizeof own);
    own.sums = *own_sums;
    own.asks_stop = stop && *stop;
    TRY(comm_exchange(ranks->comm, "losses", &own, sizeof own, self->step_words));
    const struct step_word *all = self->step_words;
    *total = (struct loop_losses){0};
    for (uint32_t r = 0; r < ranks->world; r++) { /* in rank order: the same sum everywhere */
        total->tokens += all[r].sums.tokens;
        total->balance += all[r].sums.balance;
        total->z += all[r].sums.z;
        self->is_asked_to_stop = self->is_asked_to_stop || all[r].asks_stop;
    }
    return 0;
}

int loop_share_count(struct loop *self, uint64_t own_count, uint64_t *total)
{
    const struct ranks *ranks = &self->run.ranks;
    *total = own_count;
    if (ranks->world == 1)
        return 0;
    struct step_word own;
    memset(&own, 0, sizeof own);
    own.target_count = own_count;
    TRY(comm_exchange(ranks->comm, "targets", &own, sizeof own, self->step_words));
    *total = 0;
    for (uint32_t r = 0; r < ranks->world; r++)
        *total += self->step_words[r].target_count;
    return 0;
}

int loop_make_step_words(struct loop *self)
{
    self->step_words = mem_alloc(self->run.ranks.world, sizeof(struct step_word), "step words");
    return self->step_words ? 0 : -ENOMEM;
}

/* ---- the end ---- */

int loop_collect_ranks(struct loop *self)
{
    struct train_summary *summary = self->summary;
    const struct engine *engine = self->run.engine;
    const struct ranks *ranks = &self->run.ranks;
    struct train_rank own = {.sent_bytes = self->sent_bytes};
    snprintf(own.host, sizeof own.host, "%s", ranks->host);
    for (int a = TIER_DEVICE; a <= TIER_HOST; a++)
        own.arena_bytes[a] = engine->arenas[a].size_bytes;
    own.arena_bytes[TIER_NVME] = setup_reached_bytes(self->run.setup, TIER_NVME);
    for (uint32_t d = 0; d < engine->disk->drive_count; d++)
        own.slab_file_bytes += engine->disk->files[d].file_bytes;
    TRY(arena_process_memory(NULL, &own.resident_bytes_max, NULL));
    summary->world_size = ranks->world;
    if (ranks->world == 1 || comm_is_pretended(ranks->comm)) {
        summary->ranks[0] = own;
        return 0;
    }
    struct train_rank *all = mem_alloc(ranks->world, sizeof *all, "rank summaries");
    int rc = comm_agree(ranks->comm, "rank summaries", all ? 0 : -ENOMEM);
    if (rc == 0)
        rc = comm_gather(ranks->comm, "rank summaries", &own, sizeof own,
                         ranks->rank == 0 ? all : NULL);
    for (uint32_t r = 0; rc == 0 && ranks->rank == 0 && r < size_min(ranks->world, TRAIN_RANKS_MAX);
         r++)
        summary->ranks[r] = all[r];
    mem_free(all);
    return rc;
}
