/* The start of a run: data, what the run directory holds, setup, memory, and the state of step 0 or of
 * the step where the run stopped. Everything that can be refused is refused before anything is made. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/log.h"
#include "base/mem.h"
#include "train/train_internal.h"

static int open_corpus(const struct job *asked, const struct job_files *files, corpus **out)
{
    static_assert((int)JOB_DATA_AUTO == (int)CORPUS_AUTO &&
                      (int)JOB_DATA_MEGATRON == (int)CORPUS_MEGATRON,
                  "job_data_format and corpus_format are one");
    const char *paths[JOB_FILES_MAX];
    for (uint32_t i = 0; i < files->count; i++)
        paths[i] = files->path[i];
    return corpus_open_as(paths, files->count, (enum corpus_format)asked->data.format,
                          asked->model.vocab_size, out);
}

int traini_open_data(traini_loop *self)
{
    const struct job *asked = self->job;
    TRY(job_check_for_training(asked));
    TRY(open_corpus(asked, &asked->data.train, &self->train_source));
    TRY(sampler_init(&self->train_sampler, self->train_source, asked->data.seed,
                     asked->model.seq_length));
    if (asked->data.valid.count == 0)
        return 0;
    TRY(open_corpus(asked, &asked->data.valid, &self->valid_source));
    if (corpus_is_text(self->train_source) != corpus_is_text(self->valid_source))
        return err_set(
            ERR_INPUT,
            "data.train holds %s and data.valid holds %s: losses on the one say nothing of "
            "the other; give both in one form",
            corpus_is_text(self->train_source) ? "text" : "token ids",
            corpus_is_text(self->valid_source) ? "text" : "token ids");
    return sampler_init(&self->valid_sampler, self->valid_source, asked->data.seed,
                        asked->model.seq_length);
}

/* Whether the job fits once the former run's slab is gone. */
static int check_fit(const traini_loop *self, const manifest *former)
{
    traini_setup *setup;
    const struct job *asked = self->job;
    struct traini_setup_options options = {.former = former, .is_trial = self->options->is_trial};
    TRY(traini_setup_create(asked, &options, &setup));
    traini_setup_destroy(setup);
    return 0;
}

int traini_find_run(traini_loop *self, manifest *found, bool *exists)
{
    int has_manifest = 0;
    *exists = false;
    int rc = manifest_read(self->dir.state, found, &has_manifest);
    if (rc < 0 && !self->options->fresh)
        return rc;
    if (self->options->fresh) {
        const manifest *former = rc >= 0 && has_manifest ? found : NULL;
        if (former) /* which stays where the new job does not fit */
            TRY(check_fit(self, former));
        TRY(traini_run_dir_clear(&self->dir, former));
        return 0;
    }
    *exists = has_manifest;
    if (has_manifest && found->state != MANIFEST_COMMITTED)
        return err_set(ERR_INPUT,
                       "the run in %s was not stopped cleanly at step %" PRIu64
                       " or later, and its state was changed in place: it cannot be resumed; begin "
                       "anew with --fresh or in another run.dir",
                       self->dir.path, found->step);
    return 0;
}

/* The record of this run but for what the open slab says. */
static int new_record(traini_loop *self, const uint8_t uuid[SLAB_UUID_BYTES])
{
    manifest *record = &self->record;
    memcpy(record->slabs.uuid, uuid, sizeof record->slabs.uuid);
    record->fingerprint = self->setup->fingerprint;
    record->seed = self->job->run.seed;
    loss_scaler_init(&self->scaler, self->job);
    loss_scaler_save(&self->scaler, record);
    record->tile_elems = self->setup->set.tile_elems;
    record->slabs.drive_count = self->setup->drive_count;
    for (uint32_t d = 0; d < record->slabs.drive_count; d++)
        snprintf(record->slabs.drives[d], sizeof record->slabs.drives[d], "%s",
                 self->setup->drives[d].path);
    return self->options->is_trial ? 0 : traini_extents_fill(self->setup, record);
}

/* Before a new run's slab is made, the manifest names it: whenever the start is killed, --fresh finds
 * what it left. */
static int announce(traini_loop *self)
{
    self->announced = true;
    self->record.state = MANIFEST_RUNNING;
    self->record.generation++;
    return manifest_write(self->dir.state, &self->record);
}

int traini_start(traini_loop *self, manifest *found)
{
    struct traini_setup_options asked = {.is_trial = self->options->is_trial};
    struct traini_engine_options engine = {0};
    if (found) {
        asked.tile_elems = found->tile_elems;
        engine.open_existing = true;
        engine.slab_bytes = found->total_bytes;
        engine.stripe_bytes = found->stripe_bytes;
        asked.found = found;
        asked.resumes = true;
        memcpy(engine.uuid, found->slabs.uuid, sizeof engine.uuid);
    } else if (getrandom(engine.uuid, sizeof engine.uuid, 0) != (ssize_t)sizeof engine.uuid) {
        return err_errno(errno, "cannot draw a run id");
    }
    if (!self->setup)
        TRY(traini_setup_create(self->job, &asked, &self->setup));
    if (found)
        TRY(traini_extents_match(self->setup, found));
    struct plan_summary summary;
    traini_setup_summary(self->setup, &summary);
    if (self->options->on_plan)
        self->options->on_plan(self->options->user, &summary);
    for (int a = 0; a < ARENA_COUNT; a++)
        self->summary->peak_bytes[a] = summary.peak_bytes[a];
    log_info("%s backend: %s", self->setup->ops->name,
             self->setup->ops->describe(self->setup->context));
    char text[TOPOLOGY_TEXT_BYTES];
    log_info("%s", topology_describe(&self->setup->machine, text));
    log_info("%s", core_plan_describe(&self->setup->cores, text));
    engine.faults = self->options->faults;
    engine.simulates_drives = self->options->simulates_drives;
    engine.memory = self->options->memory;
    TRY(new_record(self, engine.uuid));
    if (!found)
        TRY(announce(self));
    TRY(traini_engine_create(self->setup, &engine, &self->engine));
    self->engine->step.loss_scale = self->scaler.scale;
    self->record.total_bytes = self->engine->disk->total_bytes;
    self->record.stripe_bytes = self->engine->disk->stripe_bytes;
    if (!found)
        return 0;
    self->resumed = true;
    TRY(traini_expect_sums(self->engine, found));
    self->record.generation = found->generation;
    self->record.step = found->step;
    self->record.window_count = found->window_count;
    self->record.skipped_count = found->skipped_count;
    TRY(loss_scaler_load(&self->scaler, found));
    self->engine->step.step = found->step;
    self->engine->step.applied = found->step - found->skipped_count;
    return 0;
}

static int open_metrics(traini_loop *self)
{
    char path[JOB_PATH_BYTES + 16];
    snprintf(path, sizeof path, "%s/metrics.jsonl", self->dir.path);
    uint64_t lines = 0;
    if (self->resumed)
        TRY(metrics_lines_through(path, self->record.step, &lines));
    return metrics_file_open(&self->metrics, path, lines);
}

int traini_make_state(traini_loop *self)
{
    TRY(traini_run_dir_write(&self->dir, "job.json", self->job->text));
    TRY(traini_write_plan(&self->dir, self->setup));
    TRY(open_metrics(self));
    if (self->resumed) {
        log_info("resuming %s at step %" PRIu64, self->dir.path, self->record.step);
        TRY(traini_engine_run(self->engine, PROGRAM_LOAD, self->record.step, NULL));
    }
    TRY(traini_commit(self->engine, self->dir.state, &self->record, MANIFEST_RUNNING));
    if (!self->resumed)
        TRY(traini_engine_run(self->engine, PROGRAM_INIT, 0, NULL));
    memset(self->engine->totals, 0, sizeof self->engine->totals);
    return 0;
}
