/* Opens a trained model, from a run or a checkpoint; see infer_internal.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/foreign_json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/text.h"
#include "config/config.h"
#include "infer/infer_internal.h"
#include "model/pack.h"
#include "state/rank_slabs.h"
#include "state/run_view.h"

enum {
    SETS_MAX = 160,           /* the caller's keys and ours */
    FILL_ELEMS = 1024 * 1024, /* elements of a checkpoint read at once: 4 MiB of masters */
    CONFIG_BYTES_MAX = 1 << 22,
};

/* ---- begin ---- */

static bool has_file(const char *directory, const char *name)
{
    char path[FILE_PATH_BYTES + 64];
    return file_join(path, sizeof path, directory, name) == 0 && access(path, R_OK) == 0;
}

/* Joins two lists of keys. Ours come first: later entries win, so the caller's win. */
static int join_sets(const char *const *own, uint32_t own_count, const char *const *set,
                     uint32_t set_count, const char *all[SETS_MAX])
{
    if (own_count + set_count > SETS_MAX)
        return err_set(ERR_USAGE, "more than %u keys are set", SETS_MAX - own_count);
    for (uint32_t i = 0; i < own_count; i++)
        all[i] = own[i];
    for (uint32_t i = 0; i < set_count; i++)
        all[own_count + i] = set[i];
    return 0;
}

static const char *const run_sets[] = {"tiers={}", "zero_optimization={}", "data.format=auto"};
enum { RUN_SETS = sizeof run_sets / sizeof run_sets[0] };

/* Refuses another stored format than that of the run: its params are codes of that format. */
static int check_stored(const infer_model *self, const char *job_path)
{
    job *own;
    TRY(job_read(job_path, NULL, run_sets, RUN_SETS, rank_slabs_world(&self->record), &own));
    const model_stored *is = &own->model.stored, *asked = &self->asked->model.stored;
    enum stored_format format = is->format;
    bool is_same = format == asked->format && is->rule_count == asked->rule_count &&
                   memcmp(is->rules, asked->rules, sizeof is->rules) == 0;
    job_destroy(own);
    if (is_same)
        return 0;
    return err_set(
        ERR_CONFIG,
        "state.params is set to %s, or state.rules to others, but the run %s keeps its params as "
        "%s: leave both keys out",
        stored_format_name(asked->format), self->path, stored_format_name(format));
}

static int begin_run(infer_model *self, const char *const *set, uint32_t set_count)
{
    const char *all[SETS_MAX];
    char job_path[FILE_PATH_BYTES + 16];
    snprintf(job_path, sizeof job_path, "%s/job.json", self->path);
    TRY(state_run_dir_open(&self->dir, self->path, FILE_PRIVATE));
    int found = manifest_read(self->dir.state, &self->record);
    TRY(found);
    TRY(join_sets(run_sets, RUN_SETS, set, set_count, all));
    TRY(job_read(job_path, NULL, all, RUN_SETS + set_count, rank_slabs_world(&self->record),
                 &self->asked));
    if (!found)
        return err_set(ERR_INPUT, "%s has no committed state: train it first", self->path);
    TRY(check_stored(self, job_path));
    TRY(state_check_committed(&self->record, self->path));
    return state_find_moved(&self->record, self->dir.state);
}

/* True if the caller sets a key of this block. */
static bool is_set(const char *block, const char *const *set, uint32_t set_count)
{
    size_t length = strlen(block);
    for (uint32_t i = 0; i < set_count; i++)
        if (strncmp(set[i], block, length) == 0 && (set[i][length] == '.' || set[i][length] == '='))
            return true;
    return false;
}

/* The model that config.json of a checkpoint describes. */
struct stated {
    /* The key that sets the dtype in which it was saved, which is then used to compute; "" if that
     * is fp32 or not known. */
    const char *type_set;
    uint64_t positions; /* of the model; 0: not known */
};

static struct stated read_config(const char *path)
{
    char name[FILE_PATH_BYTES + 16];
    snprintf(name, sizeof name, "%s/config.json", path);
    char *text = NULL;
    uint64_t text_bytes;
    json_error_t error;
    json_t *config = NULL; /* job_read reports what is wrong with the file */
    if (file_read(name, CONFIG_BYTES_MAX, &text, &text_bytes) == 0)
        config = foreign_json_parse(text, text_bytes, 0, &error);
    mem_free(text);
    const char *type = json_string_value(json_object_get(config, "dtype"));
    if (!type)
        type = json_string_value(json_object_get(config, "torch_dtype"));
    json_int_t most = json_integer_value(json_object_get(config, "max_position_embeddings"));
    if (most <= 0)
        most = json_integer_value(json_object_get(config, "n_positions"));
    struct stated found = {.type_set = "", .positions = most > 0 ? (uint64_t)most : 0};
    if (type && strcmp(type, "bfloat16") == 0)
        found.type_set = "bf16.enabled=true";
    if (type && strcmp(type, "float16") == 0)
        found.type_set = "fp16.enabled=true";
    json_decref(config);
    return found;
}

/* Makes the job for a checkpoint. seq_length 0: the job's default. */
static int begin_checkpoint(infer_model *self, const char *const *set, uint32_t set_count,
                            uint64_t seq_length)
{
    const char *all[SETS_MAX];
    char model_set[FILE_PATH_BYTES + 16];
    bool has_type = is_set("bf16", set, set_count) || is_set("fp16", set, set_count);
    const char *type = has_type ? "" : read_config(self->path).type_set;
    char *path = realpath(self->path, NULL);
    if (!path)
        return err_errno(errno, "cannot read %s", self->path);
    int length = snprintf(model_set, sizeof model_set, "model.hf=%s", path);
    free(path);
    if (length < 0 || (size_t)length >= sizeof model_set)
        return err_set(ERR_INPUT, "the path of the checkpoint is too long: %.200s...", self->path);
    /* A job must have a run.dir; no file is made there. */
    const char *own[5] = {model_set, "run.dir=/nonexistent", "train_micro_batch_size_per_gpu=1"};
    char length_set[48];
    uint32_t own_count = 3;
    snprintf(length_set, sizeof length_set, "model.seq_length=%" PRIu64, seq_length);
    if (type[0])
        own[own_count++] = type;
    if (seq_length > 0)
        own[own_count++] = length_set;
    static const char text[] = "{\"model\": {}}";
    TRY(join_sets(own, own_count, set, set_count, all));
    return job_read(self->path, text, all, own_count + set_count, 1, &self->asked);
}

/* Sets what does not depend on training: one process, no accumulation, and nothing is kept for a
 * backward pass. */
static void settle_job(job *asked)
{
    asked->accumulation = asked->world = 1;
    asked->tiers.place[STATE_INNER_ACTIVATIONS] = TIER_RECOMPUTE;
}

int infer_model_begin(infer_model *self, const char *path, const char *const *set,
                      uint32_t set_count)
{
    memset(self, 0, sizeof *self);
    self->path = path;
    self->dir.lock_fd = -1;
    if (strlen(path) >= FILE_PATH_BYTES)
        return err_set(ERR_INPUT, "the path is too long: %.200s...", path);
    self->is_run = has_file(path, "job.json");
    bool is_found = self->is_run || has_file(path, "config.json");
    if (!is_found && errno == EACCES)
        return file_cannot_look_into(path);
    if (!is_found && access(path, F_OK) != 0)
        return err_set(ERR_INPUT,
                       "%s is no run directory and no checkpoint: there is no such directory",
                       path);
    if (!is_found)
        return err_set(ERR_INPUT,
                       "%s is no run directory: it has no job.json; and no checkpoint of Hugging "
                       "Face: it has no config.json",
                       path);
    if (self->is_run && is_set("train", set, set_count))
        return err_set(ERR_CONFIG,
                       "keys of train cannot be set anew for the run in %s: its state is laid out "
                       "by those that it was trained with",
                       path);
    TRY(self->is_run ? begin_run(self, set, set_count) : begin_checkpoint(self, set, set_count, 0));
    TRY(setup_refuse_module(self->asked, "evaluation and generation"));
    settle_job(self->asked);
    return 0;
}

int infer_model_lengthen(infer_model *self, const char *const *set, uint32_t set_count,
                         uint64_t positions)
{
    uint64_t most = self->is_run ? 0 : size_min(positions, read_config(self->path).positions);
    if (most <= self->asked->model.seq_length || is_set("model.seq_length", set, set_count))
        return 0;
    job *before = self->asked;
    int rc = begin_checkpoint(self, set, set_count, most);
    if (rc < 0) {
        self->asked = before;
        return rc;
    }
    job_destroy(before);
    settle_job(self->asked);
    return 0;
}

int infer_model_tokenizer(infer_model *self, const tokenizer **out)
{
    char path[FILE_PATH_BYTES];
    *out = self->words;
    if (self->words)
        return 0;
    snprintf(path, sizeof path, "%s", self->path);
    if (self->is_run)
        TRY(state_hf_dir(self->path, path));
    bool is_kept = has_file(path, "tokenizer.json") || has_file(path, "tokenizer.model");
    if (is_kept && self->is_run && hf_names_tokenizer(self->asked))
        is_kept = false;
    if (!is_kept && !self->is_run)
        return err_set(ERR_INPUT, "%s has no tokenizer: neither tokenizer.json nor tokenizer.model",
                       self->path);
    snprintf(self->words_name, sizeof self->words_name, "%s",
             is_kept ? path : self->asked->data.tokenizer);
    TRY(tokenizer_open(self->words_name, &self->words));
    self->has_own_words = is_kept;
    *out = self->words;
    return 0;
}

/* ---- start ---- */

/* A model_source. Adapters that the job adds are zeros, which add nothing. */
static int read_weights(void *user, uint32_t unit, uint64_t begin, uint64_t count, float *values)
{
    hf_weights *from = user;
    if (!hf_weights_has_all(from, unit))
        memset(values, 0, count * sizeof *values);
    return hf_weights_read(from, unit, begin, count, values);
}

static int fill_from_checkpoint(infer_model *self, hf_weights *from,
                                const volatile sig_atomic_t *stop)
{
    const struct setup *setup = self->setup;
    const model *net = setup->net;
    inferi_filler to = {.engine = NULL};
    const model_source source = {.values = read_weights, .codes = hf_weights_codes, .user = from};
    model_packer *packer = NULL;
    float *masters = mem_alloc(FILL_ELEMS, sizeof *masters, "weights of a checkpoint");
    int rc = masters ? inferi_filler_init(&to, self->engine, FILL_ELEMS) : -ENOMEM;
    if (rc == 0 && model_has_packed(net))
        rc = model_packer_create(net, &packer);
    for (uint32_t u = 0; rc == 0 && u < net->unit_count; u++)
        for (uint64_t at = 0; rc == 0 && at < setup->unit_elems[u]; at += FILL_ELEMS) {
            uint64_t count = size_min(setup->unit_elems[u] - at, FILL_ELEMS);
            const void *packed;
            if (net->units[u].is_packed) {
                rc = model_pack(packer, &kernels_cpu, to.context, u, &source, &packed);
                if (rc == 0)
                    rc = inferi_fill_params(&to, u, at, count,
                                            (const char *)packed + at * setup->plan.param_bytes);
            } else {
                rc = read_weights(from, u, at, count, masters);
                if (rc == 0)
                    rc = inferi_fill(&to, u, at, count, masters);
            }
            if (rc == 0 && stop && *stop)
                rc = err_set(ERR_STOPPED, "stopped on request");
        }
    model_packer_destroy(packer);
    inferi_filler_fini(&to);
    mem_free(masters);
    return rc;
}

/* Makes the engine. If parameters rest on drives, their slab has no name, so it is gone with the
 * process. */
static int make_engine(infer_model *self)
{
    struct engine_options options = {.open_existing = false};
    TRY(state_draw_uuid(&self->setup->ranks, options.uuid));
    TRY(engine_create(self->setup, &options, &self->engine));
    return self->engine->disk_is_open ? slab_unname(self->engine->disk) : 0;
}

/* Writes the formats in which matrices are packed, as in "nf4, int8 and ". No packed matrix: "". */
static void name_formats(const model *net, char *text, size_t text_bytes)
{
    const char *names[STORED_FORMAT_COUNT];
    bool is_used[STORED_FORMAT_COUNT] = {false};
    int count = 0;
    for (uint32_t u = 0; u < net->unit_count; u++)
        for (uint32_t i = 0; i < net->units[u].tensor_count; i++)
            is_used[net->units[u].tensors[i].stored] = true;
    for (int format = 0; format < STORED_FORMAT_COUNT; format++)
        if (format != STORED_WORKING && is_used[format])
            names[count++] = stored_format_name((enum stored_format)format);
    text[0] = '\0';
    for (int i = 0; i < count; i++)
        text_add(text, text_bytes, "%s%s", names[i], i + 1 < count ? ", " : " and ");
}

static void tell(const struct setup *setup)
{
    enum { FORMATS_BYTES = 32 * STORED_FORMAT_COUNT };
    char formats[FORMATS_BYTES];
    char on_device[SIZE_TEXT_BYTES], on_host[SIZE_TEXT_BYTES], on_drives[SIZE_TEXT_BYTES];
    const uint64_t *params = setup->set.home_bytes[STATE_PARAMS];
    log_info("%s backend: %s", setup->ops->name, setup->ops->describe(setup->context));
    name_formats(setup->net, formats, sizeof formats);
    log_info("%s: parameters in %s%s, %s on the device and %s in host memory",
             model_family_name(setup->net->spec.family), formats, dtype_name(setup->net->type),
             size_format(params[TIER_DEVICE], on_device), size_format(params[TIER_HOST], on_host));
    if (params[TIER_NVME] > 0)
        log_info("%s of parameters do not fit in memory and are read from %s%s in each pass",
                 size_format(params[TIER_NVME], on_drives), setup->drives[0].path,
                 setup->drive_count > 1 ? " and the other drives" : "");
}

/* Sets the drives for parameters that do not fit in memory, if the caller has named none. For a
 * run: the drives of its state. For a checkpoint, which may be on a disk that cannot be written:
 * the directory for temporary files. */
static void name_drives(infer_model *self)
{
    struct job *asked = self->asked;
    const manifest_slabs *own = &self->record.slabs;
    const char *temporary = getenv("TMPDIR");
    asked->tiers.nvme_count = self->is_run ? own->drive_count : 1;
    for (uint32_t d = 0; d < asked->tiers.nvme_count; d++) {
        asked->tiers.nvme[d].budget_bytes = 0;
        snprintf(asked->tiers.nvme[d].path, sizeof asked->tiers.nvme[d].path, "%s",
                 self->is_run                ? own->drives[d]
                 : temporary && temporary[0] ? temporary
                                             : "/var/tmp");
    }
}

/* Makes the setup in memory if it fits there, else with drives. */
static int make_setup(infer_model *self, const struct setup_options *options)
{
    int rc = setup_create(self->asked, options, &self->setup);
    if (rc != ERR_NO_FIT || self->asked->tiers.nvme_count > 0)
        return rc;
    err_record first;
    err_save(&first, rc);
    name_drives(self);
    rc = setup_create(self->asked, options, &self->setup);
    if (rc == 0 || rc == ERR_NO_FIT || self->asked->tiers.nvme_count == 0)
        return rc;
    self->asked->tiers.nvme_count = 0;
    err_record second;
    err_save(&second, rc);
    return err_set(first.code,
                   "%s; and parameters can rest on no drive: %s (another one can be named by "
                   "tiers.nvme)",
                   first.text, second.text);
}

int infer_model_start(infer_model *self, const model_window *window,
                      const volatile sig_atomic_t *stop)
{
    struct setup_options asked = {.only_eval = true, .params_alone = true, .window = *window};
    uint32_t rank = 0;
    hf_weights *from = NULL;
    if (self->is_run)
        TRY(self->record.is_replicated ? rank_slabs_choose(&self->record, 0, &rank)
                                       : rank_slabs_look(&self->record, 0));
    TRY(make_setup(self, &asked));
    if (!self->is_run) /* its errors should come before memory is reserved */
        TRY(hf_weights_open(self->path, self->setup->net, &from));
    const char *adapters = self->is_run ? "" : self->asked->lora.from;
    int rc = adapters[0] ? hf_weights_take_adapters(from, adapters) : 0;
    if (rc == 0)
        tell(self->setup);
    if (rc == 0)
        rc = make_engine(self);
    if (rc == 0)
        rc = self->is_run ? inferi_load_params(self->engine, &self->record, rank, stop)
                          : fill_from_checkpoint(self, from, stop);
    hf_weights_close(from);
    return rc;
}

void infer_model_end(infer_model *self)
{
    engine_destroy(self->engine);
    setup_destroy(self->setup);
    state_run_dir_close(&self->dir);
    manifest_fini(&self->record);
    job_destroy(self->asked);
    tokenizer_close(self->words);
    memset(self, 0, sizeof *self);
}
