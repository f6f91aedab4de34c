/* From a job file to a checked struct job, by the functions of config_internal.h. See config.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "config/config_internal.h"

/* Writes the value of a row, or its default, to the row's member. An ENUM without either keeps what
 * the member holds. */
static int fill_member(const configi_reader *reader, const configi_key *row, job *target)
{
    void *member = (char *)target + row->offset;
    switch (row->type) {
    case CONFIGI_BOOL:
        *(bool *)member = configi_bool(reader, row->path);
        return 0;
    case CONFIGI_INT:
    case CONFIGI_SIZE:
        if (row->is_real)
            *(double *)member = configi_whole(reader, row->path);
        else if (row->member_bytes == sizeof(uint32_t))
            *(uint32_t *)member = (uint32_t)configi_uint(reader, row->path);
        else
            *(uint64_t *)member = configi_uint(reader, row->path);
        return 0;
    case CONFIGI_FLOAT:
        *(double *)member = configi_double(reader, row->path);
        return 0;
    case CONFIGI_ENUM:
        if (!row->fallback && !configi_get(reader, row->path))
            return 0;
        if (row->member_bytes == sizeof(bool))
            *(bool *)member = configi_choice_idx(reader, row->path) == 1;
        else if (row->member_bytes == sizeof(int))
            *(int *)member = configi_enumerator(reader, row->path);
        else
            snprintf(member, row->member_bytes, "%s", configi_choice(reader, row->path));
        return 0;
    case CONFIGI_STRING:
    case CONFIGI_CORES:
        return configi_copy_text(reader, row->path, member, row->member_bytes);
    default: /* a function of its own reads each list */
        return 0;
    }
}

int configi_fill_members(const configi_reader *reader, job *target)
{
    const configi_key *row;
    for (uint32_t idx = 0; (row = configi_key_at(idx)); idx++)
        if (row->member_bytes > 0)
            TRY(fill_member(reader, row, target));
    return 0;
}

static int compare_steps(const void *a, const void *b)
{
    const uint64_t *left = a, *right = b;
    return (*left > *right) - (*left < *right);
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Checks that a step of run.keep, or the first multiple of it, is one that is committed. */
static int check_kept_step(const configi_reader *reader, const job *self, uint64_t step)
{
    uint64_t every = self->run.commit_every;
    if (every == 0)
        return configi_error(reader, "run.keep",
                             "with run.commit_every 0 there is no commit before the end to keep; "
                             "set run.commit_every to %" PRIu64 " or a divisor of it",
                             step);
    if (step % every == 0 || step == self->run.steps)
        return 0;
    return configi_error(reader, "run.keep",
                         "step %" PRIu64 " is never committed: it is no multiple of "
                         "run.commit_every, %" PRIu64 ", and not the last step, %" PRIu64
                         "; set run.commit_every to a divisor of it, such as %" PRIu64,
                         step, every, self->run.steps, common_divisor(step, every));
}

/* Fills run.keep. Call it after run.steps and run.commit_every are filled. */
static int fill_keep(const configi_reader *reader, job *target)
{
    const json_t *value = configi_get(reader, "run.keep");
    if (!json_is_array(value)) {
        target->run.keep_every = configi_uint(reader, "run.keep");
        return target->run.keep_every > 0 ? check_kept_step(reader, target, target->run.keep_every)
                                          : 0;
    }
    size_t count = json_array_size(value);
    if (count == 0)
        return 0;
    target->run.keep = mem_alloc(count, sizeof *target->run.keep, "kept steps");
    if (!target->run.keep)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++) {
        char path[CONFIGI_PATH_BYTES];
        snprintf(path, sizeof path, "run.keep.%zu", i);
        target->run.keep[i] = configi_uint(reader, path);
        TRY(check_kept_step(reader, target, target->run.keep[i]));
    }
    qsort(target->run.keep, count, sizeof *target->run.keep, compare_steps);
    uint32_t kept = 1;
    for (size_t i = 1; i < count; i++) {
        if (target->run.keep[i] != target->run.keep[kept - 1])
            target->run.keep[kept++] = target->run.keep[i];
    }
    target->run.keep_count = kept;
    return 0;
}

/* The directory of event files, by run.tensorboard or else by DeepSpeed's block. */
static int fill_tensorboard(const configi_reader *reader, job *target)
{
    static const char key[] = "run.tensorboard";
    const size_t bytes = sizeof target->run.tensorboard;
    char *path = target->run.tensorboard;
    const json_t *value = configi_get(reader, key);
    if (json_is_string(value))
        return configi_copy_text(reader, key, path, bytes);
    int length = 0;
    if (value ? json_is_true(value) : configi_bool(reader, "tensorboard.enabled")) {
        const char *parent =
            value ? target->run.dir : configi_text(reader, "tensorboard.output_path");
        const char *name = value ? "tensorboard" : configi_text(reader, "tensorboard.job_name");
        length = snprintf(path, bytes, "%s%s%s", parent, parent[0] ? "/" : "", name);
    }
    if (length < 0 || (size_t)length >= bytes)
        return configi_error(reader, value ? key : "tensorboard.output_path",
                             "%d bytes long with the name of the directory; at most %zu", length,
                             bytes - 1);
    return 0;
}

static int fill_run(const configi_reader *reader, job *target)
{
    if (!configi_get(reader, "run.dir"))
        return configi_error(reader, "run.dir",
                             "missing; name the run directory, as in \"run\": {\"dir\": "
                             "\"runs/first\"}");
    if (!configi_get(reader, "run.log_every") && configi_get(reader, "steps_per_print"))
        target->run.log_every = configi_uint(reader, "steps_per_print");
    TRY(fill_tensorboard(reader, target));
    return fill_keep(reader, target);
}

static int fill_tile(const configi_reader *reader, job *target)
{
    static const char group_path[] = "zero_optimization.sub_group_size";
    if (target->sub_group_size == 0) {
        target->sub_group_size = strtoull(configi_key_find(group_path)->fallback, NULL, 10);
        log_info("%s: %s 0 is no size of a tile, so that the default holds, %" PRIu64, reader->file,
                 group_path, target->sub_group_size);
    }
    if (target->schedule.tile_elems <= target->sub_group_size)
        return 0;
    return configi_error(reader, "schedule.tile_elems",
                         "%" PRIu64 " is above zero_optimization.sub_group_size, %" PRIu64
                         ", the largest tile",
                         target->schedule.tile_elems, target->sub_group_size);
}

/* Checks the number and size of a step's micro-batches, because they may follow from
 * train_batch_size, and the length of the step's program. */
static int check_step(const configi_reader *reader, const job *target)
{
    static const char micro_path[] = "train_micro_batch_size_per_gpu";
    static const char times_path[] = "gradient_accumulation_steps";
    /* A pass takes some 20 KB while a step is compiled: 2.6 GB for so many, by one thread. */
    enum { BLOCK_PASSES_MOST = 1 << 17 };
    const configi_key *micro = configi_key_find(micro_path), *times = configi_key_find(times_path);
    if (!configi_in_range(micro, (double)target->micro_batch))
        return configi_error(reader, micro_path, "%" PRIu64 " must be in %s. %s",
                             target->micro_batch, micro->allowed, micro->why);
    if (!configi_in_range(times, (double)target->accumulation))
        return configi_error(reader, times_path, "%" PRIu64 " must be in %s. %s",
                             target->accumulation, times->allowed, times->why);
    if (target->micro_batch * target->model.seq_length > INT32_MAX)
        return configi_error(reader, micro_path,
                             "%" PRIu64 " sequences of model.seq_length %" PRIu64
                             " are more than %d tokens, the most that the products of a "
                             "micro-batch take: lower it, and raise %s",
                             target->micro_batch, target->model.seq_length, (int)INT32_MAX,
                             times_path);
    if (target->accumulation * target->model.num_layers <= BLOCK_PASSES_MOST)
        return 0;
    return configi_error(reader, times_path,
                         "%" PRIu64 " micro-batches times model.num_layers %" PRIu64
                         " are more than %d passes of a block in a step, each of which has ops in "
                         "the step's program: lower it, and raise %s",
                         target->accumulation, target->model.num_layers, (int)BLOCK_PASSES_MOST,
                         micro_path);
}

/* Checks the drives' time limits, block size and queue depth. */
static int fill_io(const configi_reader *reader, job *target)
{
    enum { BLOCK_STEP = 4096 }; /* direct I/O moves whole blocks */
    target->io.depth_is_given = configi_get(reader, "aio.queue_depth") != NULL;
    target->io.block_is_given = configi_get(reader, "aio.block_size") != NULL;
    if (target->io.stop_seconds > 0 && target->io.stop_seconds <= target->io.stuck_seconds)
        return configi_error(reader, "debug.io.stop_seconds",
                             "%g is not above io.stuck_seconds, %g: a request is reported before "
                             "the run stops for it; set it above, or to 0 to wait for ever",
                             target->io.stop_seconds, target->io.stuck_seconds);
    if (target->io.block_bytes % BLOCK_STEP != 0)
        return configi_error(reader, "aio.block_size", "%" PRIu64 " is no multiple of %d bytes",
                             target->io.block_bytes, (int)BLOCK_STEP);
    return 0;
}

/* Fills everything from the checked document. */
static int fill_job(const configi_reader *reader, job *target)
{
    TRY(configi_fill_members(reader, target));
    TRY(configi_fill_model(reader, target));
    TRY(configi_fill_train(reader, target));
    TRY(configi_fill_data(reader, target));
    TRY(fill_run(reader, target));
    if (target->module && target->micro_batch == 0 && target->train_batch_size == 0)
        target->micro_batch = 1;
    TRY(configi_resolve_batch(reader, target->world, &target->train_batch_size,
                              &target->micro_batch, &target->accumulation));
    TRY(configi_settle_module(reader, target));
    TRY(check_step(reader, target));
    TRY(fill_io(reader, target));
    TRY(configi_fill_tiers(reader, target));
    TRY(fill_tile(reader, target));
    TRY(configi_fill_precision(reader, target));
    TRY(configi_fill_ranks(reader, target));
    TRY(configi_fill_update(reader, target));
    TRY(configi_fill_optimizer(reader, target));
    TRY(configi_fill_state(reader, target));
    TRY(configi_fill_stored(reader, target));
    TRY(configi_fill_scheduler(reader, target));
    /* run.fresh is a request for this start only. The run's own copy of the job must resume, not
     * begin again. */
    json_t *run = json_object_get(reader->doc, "run");
    if (json_object_get(run, "fresh"))
        json_object_del(run, "fresh");
    return configi_dump(reader->doc, &target->text);
}

/* Applies everything to the document, and checks it. `path` names the job file, beside which a
 * preset may lie. */
static int complete_document(configi_reader *reader, const char *path, const char *const *set,
                             uint32_t set_count)
{
    if (!json_is_object(reader->doc))
        return err_set(ERR_CONFIG, "%s: the job must be an object, { ... }", reader->file);
    TRY(configi_rename_aliases(reader));
    TRY(configi_apply_set(reader, set, set_count));
    TRY(configi_rename_aliases(reader)); /* again, because the values of --set may hold aliases */
    TRY(configi_take_quantization(reader));
    TRY(configi_take_spellings(reader));
    TRY(configi_expand_module(reader));
    TRY(configi_expand_preset(reader, path));
    TRY(configi_recall_hf(reader));
    TRY(configi_take_adapters(reader));
    TRY(configi_expand_hf(reader));
    TRY(configi_fill_auto(reader));
    return configi_check(reader, "", reader->doc);
}

int job_read(const char *path, const char *text, const char *const *set, uint32_t set_count,
             uint32_t world, job **out)
{
    configi_reader reader = {.file = file_name_any(path), .world = world};
    job *self = NULL;
    *out = NULL;
    TRY(text ? configi_parse(reader.file, text, strlen(text), false, &reader.doc)
             : configi_read_json(path, &reader.doc));
    int rc = complete_document(&reader, path, set, set_count);
    if (rc == 0) {
        self = mem_alloc(1, sizeof *self, "job");
        rc = self ? 0 : -ENOMEM;
    }
    if (rc == 0) {
        self->world = world;
        rc = fill_job(&reader, self);
    }
    if (rc == 0) {
        configi_log_no_effect(&reader);
        configi_log_auto(&reader, self);
        *out = self;
    } else {
        job_destroy(self);
    }
    json_decref(reader.doc);
    mem_free(reader.set_paths);
    return rc;
}

job *job_read_of_run(const char *run_dir, uint32_t world)
{
    char path[FILE_PATH_BYTES + 16];
    job *was = NULL;
    snprintf(path, sizeof path, "%s/job.json", run_dir);
    enum log_level level = log_get_level();
    log_set_level(LOG_QUIET);
    int rc = job_read(path, NULL, NULL, 0, world, &was);
    log_set_level(level);
    return rc < 0 ? NULL : was;
}

double job_peek_timeout(const char *path, const char *text, const char *const *set,
                        uint32_t set_count)
{
    static const char key[] = "comm.timeout_seconds";
    configi_reader reader = {.file = file_name_any(path)};
    char *read = NULL;
    uint64_t text_bytes = text ? strlen(text) : 0;
    if (!text && strcmp(path, "-") != 0 &&
        file_read(path, CONFIGI_FILE_BYTES_MAX, &read, &text_bytes) == 0)
        text = read;
    if (!text || configi_parse(reader.file, text, text_bytes, false, &reader.doc) < 0 ||
        !json_is_object(reader.doc)) {
        json_decref(reader.doc);
        reader.doc = json_object();
    }
    mem_free(read);
    int rc = reader.doc ? configi_apply_set(&reader, set, set_count) : -ENOMEM;
    const json_t *value = rc == 0 ? configi_get(&reader, key) : NULL;
    if (value)
        rc = configi_check_value(&reader, configi_key_find(key), key, value);
    if (rc < 0) {
        json_decref(reader.doc);
        reader.doc = NULL;
    }
    double seconds = configi_double(&reader, key);
    json_decref(reader.doc);
    mem_free(reader.set_paths);
    return seconds;
}

void job_destroy(job *self)
{
    if (!self)
        return;
    mem_free(self->run.keep);
    configi_free_module(self->module);
    mem_free(self->text);
    mem_free(self);
}

int job_check_for_training(const job *self)
{
    if (self->data.train.count == 0)
        return err_set(ERR_CONFIG, "data.train: missing; name a file of training text");
    if (self->run.eval_every > 0 && self->data.valid.count == 0)
        return err_set(ERR_CONFIG,
                       "run.eval_every: %" PRIu64
                       " needs held-out text: name a file in data.valid, or set it to 0",
                       self->run.eval_every);
    return 0;
}
