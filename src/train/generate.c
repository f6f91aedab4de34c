/* Sampling from a trained run: its parameters are made from the slab's master weights, of however many ranks
 * trained it (load_ranks.c), then one forward pass per token over a window of seq_length. Causal attention makes what follows the last
 * token irrelevant, so the window is padded with zeros. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "base/tile.h"
#include "train/rank_slabs.h"
#include "train/train_internal.h"

/* Of an address space that is laid out and never used. */
#define NVME_LIMIT_BYTES ((uint64_t)1 << 60)

enum { GENERATE_STREAM = 0x67656e }; /* of the counter-based generator */

struct generator {
    const struct generate_options *asked;
    struct job *job;
    manifest record;
    traini_setup *setup;
    traini_engine *engine;
    struct traini_run_dir dir;
    uint8_t *text; /* prompt and what was generated */
    uint64_t text_count;
    float *sorted; /* [V] */
};

static int open_run(struct generator *self)
{
    const char *path = self->asked->run_dir;
    char job_path[JOB_PATH_BYTES + 16];
    snprintf(job_path, sizeof job_path, "%s/job.json", path);
    if (access(job_path, R_OK) != 0)
        return err_set(ERR_INPUT, "%s is no run directory: it has no job.json", path);
    TRY(traini_run_dir_open(&self->dir, path));
    int found = 0;
    TRY(manifest_read(self->dir.state, &self->record, &found));
    TRY(job_read_ranks(job_path, NULL, 0, rank_slabs_world(&self->record), &self->job));
    if (!found)
        return err_set(ERR_INPUT, "%s has no committed state: train it first", path);
    if (self->record.state == MANIFEST_BEGUN)
        return err_set(ERR_INPUT, "the run in %s has no commit yet: train it first", path);
    if (self->record.state == MANIFEST_RUNNING)
        return err_set(ERR_INPUT,
                       "the run in %s has one place per extent (run.commit_every 0) and was not "
                       "stopped cleanly: its state was changed in place after step %" PRIu64,
                       path, self->record.step);
    if (self->job->model.vocab_size > 256)
        return err_set(ERR_INPUT,
                       "generation knows the byte tokenizer alone, but the model has %llu "
                       "tokens",
                       (unsigned long long)self->job->model.vocab_size);
    TRY(traini_find_moved(&self->record, self->dir.state));
    /* One sequence at a time, nothing but parameters; those on nvme are brought to host memory. */
    self->job->micro_batch = self->job->accumulation = self->job->world = 1;
    if (self->job->tiers.place[JOB_PARAMS] == JOB_TIER_NVME)
        self->job->tiers.place[JOB_PARAMS] = JOB_TIER_AUTO;
    self->job->tiers.place[JOB_INNER_ACTIVATIONS] = JOB_TIER_RECOMPUTE;
    self->job->tiers.rule_count = 0;
    self->job->tiers.device_budget = self->job->tiers.host_budget = 0;
    self->job->tiers.nvme_count = 0;
    return 0;
}

/* Of ranks that each have the whole state the first whose slab is seen; else 0. */
static int choose_rank(const manifest *record, uint32_t *out)
{
    *out = 0;
    int rc = rank_slabs_look(record, 0);
    if (!record->is_replicated)
        return rc;
    for (uint32_t r = 1; rc == ERR_INPUT && r < rank_slabs_world(record); r++) {
        err_record first;
        err_save(&first, rc);
        rc = rank_slabs_look(record, r);
        *out = r;
        if (rc < 0)
            rc = err_restore(&first);
    }
    return rc;
}

/* Of several ranks. The programs think of one slab with the state of all, which is on none: only EVAL is run. */
static int start_of_ranks(struct generator *self)
{
    uint32_t rank;
    manifest *whole = mem_alloc(1, sizeof *whole, "manifest");
    int rc = whole ? choose_rank(&self->record, &rank) : -ENOMEM;
    if (rc == 0) {
        manifest_copy_header(whole, &self->record);
        whole->total_bytes = NVME_LIMIT_BYTES;
        whole->world_size = 1;
        for (uint32_t d = 0; rc == 0 && d < whole->slabs.drive_count; d++)
            rc = traini_drive_of_rank(&self->record.slabs, rank, d, whole->slabs.drives[d]);
    }
    struct traini_setup_options asked = {.only_eval = true, .found = whole, .as_it_lies = true};
    if (rc == 0)
        rc = traini_setup_create(self->job, &asked, &self->setup);
    mem_free(whole);
    TRY(rc);
    self->setup->ranks.rank = rank; /* whose slab the engine opens */
    struct traini_engine_options engine = {.open_existing = true,
                                           .slab_bytes = self->record.total_bytes,
                                           .stripe_bytes = self->record.stripe_bytes};
    memcpy(engine.uuid, self->record.slabs.uuid, sizeof engine.uuid);
    TRY(traini_engine_create(self->setup, &engine, &self->engine));
    return traini_load_ranks(self->engine, &self->record, rank, self->asked->stop);
}

static int start_of_one(struct generator *self)
{
    struct traini_setup_options asked = {
        .only_eval = true, .found = &self->record, .as_it_lies = true};
    TRY(traini_setup_create(self->job, &asked, &self->setup));
    struct traini_engine_options engine = {.open_existing = true,
                                           .slab_bytes = self->record.total_bytes,
                                           .stripe_bytes = self->record.stripe_bytes,
                                           .found = &self->record};
    memcpy(engine.uuid, self->record.slabs.uuid, sizeof engine.uuid);
    TRY(traini_engine_create(self->setup, &engine, &self->engine));
    return traini_engine_run(self->engine, PROGRAM_LOAD, self->record.step, NULL);
}

static int start(struct generator *self)
{
    TRY(open_run(self));
    TRY(rank_slabs_world(&self->record) > 1 ? start_of_ranks(self) : start_of_one(self));
    uint64_t vocab = self->setup->net->spec.vocab_size;
    void *logits;
    TRY(traini_result_memory(self->engine, vocab * sizeof(float), &logits));
    self->engine->logits = logits;
    self->sorted = mem_alloc(vocab, sizeof(float), "sorted logits");
    self->text = mem_alloc(self->asked->prompt_bytes + self->asked->token_count, 1, "text");
    if (!self->sorted || !self->text)
        return -ENOMEM;
    memcpy(self->text, self->asked->prompt, self->asked->prompt_bytes);
    self->text_count = self->asked->prompt_bytes;
    return 0;
}

static int compare_descending(const void *left, const void *right)
{
    float a = *(const float *)left, b = *(const float *)right;
    return a > b ? -1 : a < b;
}

/* Draws from softmax(logits / temperature) over the top_k likeliest. */
static uint64_t draw(struct generator *self, uint64_t idx)
{
    const float *logits = self->engine->logits;
    uint64_t vocab = self->setup->net->spec.vocab_size, best = 0;
    for (uint64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    if (self->asked->temperature <= 0)
        return best;
    double least = -INFINITY;
    if (self->asked->top_k > 0 && self->asked->top_k < vocab) {
        memcpy(self->sorted, logits, vocab * sizeof *logits);
        qsort(self->sorted, vocab, sizeof *self->sorted, compare_descending);
        least = (double)self->sorted[self->asked->top_k - 1];
    }
    double total = 0, top = (double)logits[best];
    for (uint64_t i = 0; i < vocab; i++)
        if ((double)logits[i] >= least)
            total += exp(((double)logits[i] - top) / self->asked->temperature);
    double point = rng_uniform(self->asked->seed, GENERATE_STREAM, idx) * total;
    for (uint64_t i = 0; i < vocab; i++) {
        if ((double)logits[i] < least)
            continue;
        point -= exp(((double)logits[i] - top) / self->asked->temperature);
        if (point < 0)
            return i;
    }
    return best;
}

static int next_token(struct generator *self, uint64_t idx)
{
    uint64_t window = self->setup->net->tokens;
    uint64_t used = size_min(self->text_count, window);
    int32_t *tokens =
        (int32_t *)(void *)traini_home(self->engine, self->setup->set.homes.tokens_host);
    memset(tokens, 0, 2 * window * sizeof *tokens);
    for (uint64_t i = 0; i < used; i++)
        tokens[i] = self->text[self->text_count - used + i];
    self->engine->logits_row = (int64_t)used - 1;
    TRY(traini_engine_run(self->engine, PROGRAM_EVAL, self->record.step, NULL));
    self->text[self->text_count++] = (uint8_t)draw(self, idx);
    return 0;
}

static int generate_all(struct generator *self)
{
    const struct generate_options *asked = self->asked;
    if (asked->prompt_bytes == 0)
        return err_set(ERR_USAGE, "the prompt is empty: give at least one byte to continue");
    TRY(start(self));
    TRY(asked->on_token(asked->user, asked->prompt, asked->prompt_bytes));
    for (uint64_t i = 0; i < asked->token_count; i++) {
        TRY(next_token(self, i));
        TRY(asked->on_token(asked->user, (const char *)&self->text[self->text_count - 1], 1));
        if (asked->stop && *asked->stop)
            return err_set(ERR_STOPPED, "stopped on request");
    }
    return 0;
}

int generate_run(const struct generate_options *options)
{
    struct generator *self = mem_alloc(1, sizeof *self, "generator");
    if (!self)
        return -ENOMEM;
    self->asked = options;
    self->dir.lock_fd = -1;
    int rc = generate_all(self);
    err_record first;
    err_save(&first, rc);
    traini_engine_destroy(self->engine);
    traini_setup_destroy(self->setup);
    traini_run_dir_close(&self->dir);
    manifest_fini(&self->record);
    job_destroy(self->job);
    mem_free(self->sorted);
    mem_free(self->text);
    mem_free(self);
    return rc < 0 ? err_restore(&first) : rc;
}
