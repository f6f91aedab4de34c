/* Imports a checkpoint of Hugging Face as a run at step 0. See hf.h.
 *
 *   headers, model ─► manifest BEGUN ─► slab ─► [ tile: read, convert, sum, write the masters ]
 *                                                             ─► sync ─► manifest COMMITTED
 *
 * The slab has one place for each tile, in the layout of base/tile.h. Moments are zeros that are
 * never written: the file is sparse, so an import takes 4 bytes per parameter on the drive. When
 * the run is trained, it first moves the state to slabs of its own (recut.c), which have the space
 * that training needs.
 *
 * import_stream.c streams the tiles, and owns the memory and the threads for it. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "config/config.h"
#include "format/hf_checkpoint.h"
#include "hf/hf_internal.h"
#include "setup/loss_scale.h"
#include "state/state.h"

enum {
    TILE_ELEMS = 1 << 20, /* 4 MiB of masters: requests that a drive serves at full speed */
};

struct importer {
    const struct hf_import_options *asked;
    struct hf_import_summary *out;
    job *job;
    model *net;
    hf_weights *from;
    struct state_run_dir dir;
    bool is_begun; /* the manifest names slabs that may exist */
    manifest *record;
    slab *disk;
    bool disk_is_open;
    uint64_t total_bytes; /* masters */
};
typedef struct importer importer;

/* ---- job and model ---- */

/* Finds the dtype that most elements of the checkpoint have, for a job that is made here. */
static int find_type(const char *hf_dir, const char **type)
{
    hf_checkpoint *files;
    uint64_t elems[DTYPE_COUNT] = {0};
    TRY(hf_open(hf_dir, &files));
    for (uint64_t i = 0; i < hf_count(files); i++) {
        char codes[HF_STORED_NAME_BYTES]; /* that the tensor belongs to, if it does */
        hf_tensor at = hf_at(files, i);
        if (at.tensor->type != SAFETENSORS_OTHER && !hfi_is_beside(at.tensor->name, codes) &&
            !hfi_is_4bit(files, at.tensor->name))
            elems[at.tensor->type] += at.tensor->elem_count;
    }
    hf_close(files);
    enum dtype most = DTYPE_FP32;
    for (int t = 0; t < DTYPE_COUNT; t++)
        if (elems[t] > elems[most])
            most = (enum dtype)t;
    *type = dtype_name(most);
    return 0;
}

/* Writes "key=value" with the value as a JSON string, so that no path is read as another type. */
static int set_path(const char *key, const char *path, char *out, size_t out_bytes)
{
    size_t used = (size_t)snprintf(out, out_bytes, "%s=\"", key);
    for (; *path && used + 4 < out_bytes; path++) {
        if (*path == '"' || *path == '\\')
            out[used++] = '\\';
        out[used++] = *path;
    }
    if (*path)
        return err_set(ERR_INPUT, "the path for %s is longer than %d bytes", key,
                       FILE_PATH_BYTES - 1);
    out[used++] = '"';
    out[used] = '\0';
    return 0;
}

/* Reads the job with these overrides; NULL in job_path: makes one for params of `type`. */
static int read_with(importer *self, const char **set, uint32_t count, const char *type)
{
    static const char made_name[] = "the job that sluice import makes";
    const char *path = self->asked->job_path;
    bool is_fp32 = strcmp(type, "fp32") == 0;
    char text[128];
    if (path)
        return job_read(path, NULL, set, count, 1, &self->job);
    snprintf(text, sizeof text, "{\"train_micro_batch_size_per_gpu\": 1%s%s%s}",
             is_fp32 ? "" : ", \"", is_fp32 ? "" : type, is_fp32 ? "" : "\": {\"enabled\": true}");
    return job_read(made_name, text, set, count, 1, &self->job);
}

/* Reads the job, with this checkpoint and this run directory in place of its own. Where the
 * checkpoint comes quantized and the job says nothing of that, the run's job has the params in the
 * working dtype. */
static int read_job(importer *self)
{
    const struct hf_import_options *asked = self->asked;
    char hf[2 * FILE_PATH_BYTES], dir[2 * FILE_PATH_BYTES], hf_dir[FILE_PATH_BYTES];
    const char *type = "";
    uint32_t count = 0;
    int length = snprintf(hf_dir, sizeof hf_dir, "%s", asked->hf_dir);
    if (length < 0 || (size_t)length >= sizeof hf_dir)
        return err_set(ERR_INPUT, "the path of the checkpoint is longer than %d bytes",
                       FILE_PATH_BYTES - 1);
    TRY(setup_make_absolute(hf_dir)); /* job.json lies elsewhere */
    TRY(set_path("model.hf", hf_dir, hf, sizeof hf));
    TRY(set_path("run.dir", asked->run_dir, dir, sizeof dir));
    const char **set = mem_alloc(asked->set_count + 3, sizeof *set, "overrides");
    if (!set)
        return -ENOMEM;
    set[count++] = hf;
    set[count++] = dir;
    set[count++] = "debug.expands_checkpoint=true";
    for (uint32_t i = 0; i < asked->set_count; i++)
        set[count++] = asked->set[i];
    int rc = find_type(hf_dir, &type);
    if (rc == 0)
        rc = read_with(self, set, count, type);
    mem_free(set);
    return rc;
}

/* Checks that the job neither splits units nor packs them. An import has the units of the
 * checkpoint's model, in fp32, so a run with other units could not read it. */
static int check_learning(const importer *self)
{
    model_spec spec;
    model *net;
    TRY(setup_model_spec(self->job, &spec));
    if (model_asks_packed(&spec))
        return err_set(ERR_CONFIG,
                       "this job asks for packed formats (%s), and an import holds fp32 weights "
                       "alone: train without an import, with a job that names the checkpoint in "
                       "model.hf, or set state.params to \"working\"",
                       spec.stored.format == STORED_WORKING
                           ? "state.rules"
                           : stored_format_name(spec.stored.format));
    TRY(model_create(&spec, self->job->type, 1, &net));
    uint64_t unit_count = net->unit_count;
    bool is_same = unit_count == self->net->unit_count;
    for (uint32_t u = 0; is_same && u < unit_count; u++)
        is_same = strcmp(net->units[u].name, self->net->units[u].name) == 0 &&
                  net->units[u].elems == self->net->units[u].elems;
    model_destroy(net);
    if (is_same)
        return 0;
    return err_set(
        ERR_CONFIG,
        "train.%s of this job splits the units of the checkpoint (%u) into others (%" PRIu64
        "). An import cannot hold them; train without an import, with a job that names "
        "the checkpoint in model.hf",
        self->job->model.lora.rank > 0 ? "lora" : "only", self->net->unit_count, unit_count);
}

static int open_model(importer *self)
{
    model_spec spec = self->job->model;
    spec.learn = (model_learn){0};
    spec.lora = (model_lora){0};
    spec.stored = (model_stored){0};
    spec.splits_vectors = self->job->optimizer.type == JOB_MUON;
    TRY(model_create(&spec, self->job->type, 1, &self->net));
    TRY(check_learning(self));
    TRY(hf_weights_open(self->job->hf, self->net, &self->from));
    TRY(hf_check_side_files(self->job->hf)); /* copied when all weights are */
    struct hf_import_summary *out = self->out;
    out->param_count = self->net->param_count;
    out->unit_count = self->net->unit_count;
    out->read_bytes = hf_weights_bytes(self->from);
    out->type = dtype_name(hf_weights_type(self->from));
    for (uint32_t u = 0; u < self->net->unit_count; u++)
        self->total_bytes += sizeof(float) * self->net->units[u].elems;
    return 0;
}

/* ---- the run directory ---- */

/* Takes the run directory, which must hold no run. Files that a killed import left are removed. */
static int take_directory(importer *self)
{
    const char *path = self->asked->run_dir;
    manifest *found = mem_alloc(1, sizeof *found, "manifest");
    if (!found)
        return -ENOMEM;
    int rc = state_check_apart(path, self->job->hf);
    if (rc == 0)
        rc = state_run_dir_open(&self->dir, path, self->job->run.mode);
    if (rc == 0)
        rc = manifest_read(self->dir.state, found);
    if (rc == 0)
        rc = state_check_no_kept(path);
    if (rc > 0 && found->state != MANIFEST_BEGUN)
        rc = err_set(ERR_INPUT,
                     "%s holds a run with a commit of step %" PRIu64
                     ": name another directory, or remove that run (sluice remove %s)",
                     path, found->point.step, path);
    else if (rc > 0)
        rc = state_run_dir_clear(&self->dir, found);
    manifest_fini(found);
    mem_free(found);
    return rc < 0 ? rc : 0;
}

/* Where the tiles of a unit begin and end: fp32 masters with room for moments or, of a unit of
 * constants, its vector as runs keep it. */
static void place_tiles(importer *self, uint32_t unit, uint64_t *idx, uint64_t *offset)
{
    manifest *record = self->record;
    const model_unit *of = &self->net->units[unit];
    uint32_t width = of->is_packed ? (uint32_t)dtype_bytes(self->job->type) : 0;
    /* in fp32, whatever the job's formats are */
    uint32_t streams = width ? 0 : tile_stream_count(setup_streams_of(self->job, self->net, unit));
    record->state_streams = (uint32_t)size_max(record->state_streams, streams);
    for (uint64_t t = 0; t < tile_count(of->rest_elems, TILE_ELEMS); t++) {
        uint64_t held = tile_elems_at(of->rest_elems, TILE_ELEMS, t);
        uint64_t size_bytes = width ? held * width : tile_bytes(held, streams);
        record->extents[(*idx)++] = (manifest_extent){
            .unit = unit,
            .tile = (uint32_t)t,
            .offset_bytes = *offset,
            .size_bytes = size_bytes,
            .elem_begin = t * TILE_ELEMS,
            .elem_count = held,
            .param_bytes = width,
        };
        *offset = size_round_up(*offset + size_bytes, TILE_PERIOD_BYTES);
    }
}

/* Fills the record with one place for each tile, unit after unit. */
static int lay_out(importer *self)
{
    manifest *record = self->record;
    const model *net = self->net;
    for (uint32_t u = 0; u < net->unit_count; u++)
        record->extent_count += tile_count(net->units[u].rest_elems, TILE_ELEMS);
    record->extents = mem_alloc(record->extent_count, sizeof *record->extents, "manifest extents");
    if (!record->extents)
        return -ENOMEM;
    uint64_t offset = 0, idx = 0;
    for (uint32_t u = 0; u < net->unit_count; u++)
        place_tiles(self, u, &idx, &offset);
    record->total_bytes = offset;
    record->tile_elems = TILE_ELEMS;
    record->world_size = 1;
    record->zero_stage = self->job->zero_stage;
    record->point.seed = self->job->run.seed;
    loss_scaler scaler;
    loss_scaler_init(&scaler, self->job);
    loss_scaler_save(&scaler, record);
    return setup_name_import(self->job, net, record);
}

/* Checks that the drives have space for the masters, which are all that is written. */
static int check_space(const importer *self, const slab_drive *drives, uint32_t count)
{
    uint64_t free_bytes;
    char needed[SIZE_TEXT_BYTES], there[SIZE_TEXT_BYTES];
    TRY(slab_capacity(drives, count, &free_bytes));
    if (free_bytes >= self->total_bytes + count * SLAB_HEADER_BYTES)
        return 0;
    return err_set(ERR_NO_FIT,
                   "the weights take %s as fp32, and %s%s can hold %s: free some space, or name "
                   "another drive in tiers.nvme (--job, --set)",
                   size_format(self->total_bytes, needed), drives[0].path,
                   count > 1 ? " and the other drives" : "", size_format(free_bytes, there));
}

static int make_slab(importer *self)
{
    manifest *record = self->record;
    slab_drive *drives = mem_alloc(DRIVES_MAX, sizeof *drives, "slab drives");
    if (!drives)
        return -ENOMEM;
    uint32_t count = 0;
    int rc = setup_job_drives(self->job, drives, &count);
    for (uint32_t d = 0; rc == 0 && d < count; d++) {
        char *path = record->slabs.drives[d];
        if (!manifest_expand_path(drives[d].path, 0, 0, "", path, MANIFEST_TEXT_BYTES))
            rc = err_set(ERR_CONFIG, "the path of a drive, %.100s..., is longer than %d bytes",
                         drives[d].path, FILE_PATH_BYTES - 1);
        memcpy(drives[d].path, path, sizeof drives[d].path);
    }
    record->slabs.drive_count = count;
    record->slabs.rank_count = 1;
    if (rc == 0)
        rc = check_space(self, drives, count);
    if (rc == 0 && getrandom(record->slabs.uuid, SLAB_UUID_BYTES, 0) != SLAB_UUID_BYTES)
        rc = err_errno(errno, "cannot draw an id for the slabs");
    slab_config config = {.drives = drives,
                          .drive_count = count,
                          .total_bytes = record->total_bytes,
                          .mode = self->job->run.mode,
                          .is_sparse = true};
    memcpy(config.uuid, record->slabs.uuid, sizeof config.uuid);
    /* From here on the next import finds what a killed one left. */
    uint64_t wanted = record->total_bytes, extent_count = record->extent_count;
    record->total_bytes = 0;
    record->extent_count = 0;
    record->state = MANIFEST_BEGUN;
    record->generation = 1;
    self->is_begun = rc == 0;
    if (rc == 0)
        rc = manifest_write(self->dir.state, record);
    record->extent_count = extent_count;
    config.total_bytes = wanted;
    if (rc == 0)
        rc = slab_open(self->disk, &config);
    self->disk_is_open = rc == 0;
    if (rc == 0) {
        record->total_bytes = self->disk->total_bytes;
        record->stripe_bytes = self->disk->stripe_bytes;
        snprintf(self->out->slab_dir, sizeof self->out->slab_dir, "%s", record->slabs.drives[0]);
    }
    mem_free(drives);
    return rc;
}

/* ---- all of it ---- */

static int write_all(importer *self)
{
    const import_stream stream = {.from = self->from,
                                  .net = self->net,
                                  .disk = self->disk,
                                  .record = self->record,
                                  .stop = self->asked->stop,
                                  .on_progress = self->asked->on_progress,
                                  .user = self->asked->user};
    return import_stream_run(&stream, &self->out->written_bytes, &self->out->seconds);
}

static int import_all(importer *self)
{
    TRY(read_job(self));
    TRY(open_model(self));
    TRY(take_directory(self));
    TRY(lay_out(self));
    TRY(make_slab(self));
    TRY(state_claim_slabs(self->dir.state, &self->record->slabs));
    TRY(write_all(self));
    TRY(state_run_dir_write(&self->dir, "job.json", self->job->text));
    int count = hf_carry_side_files(&self->dir, self->job->hf, NULL);
    TRY(count);
    self->out->side_files = (uint64_t)count;
    TRY(state_run_dir_sync(&self->dir));
    self->record->state = MANIFEST_COMMITTED;
    self->record->generation = 2;
    return manifest_write(self->dir.state, self->record);
}

int hf_import(const struct hf_import_options *options, struct hf_import_summary *summary)
{
    memset(summary, 0, sizeof *summary);
    summary->type = "";
    importer self = {.asked = options, .out = summary, .dir.lock_fd = -1};
    self.record = mem_alloc(1, sizeof *self.record, "manifest");
    self.disk = mem_alloc(1, sizeof *self.disk, "slab");
    int rc = self.record && self.disk ? import_all(&self) : -ENOMEM;
    err_record first;
    err_save(&first, rc);
    if (self.disk_is_open)
        slab_close(self.disk);
    if (rc < 0 && self.is_begun && state_run_dir_clear(&self.dir, self.record) < 0)
        log_warn("after the failed import: %s", err_text());
    if (arena_process_memory(NULL, &summary->resident_bytes_max, NULL) < 0)
        summary->resident_bytes_max = 0; /* not known */
    state_run_dir_close(&self.dir);
    hf_weights_close(self.from);
    if (self.net)
        model_destroy(self.net);
    job_destroy(self.job);
    manifest_fini(self.record);
    mem_free(self.record);
    mem_free(self.disk);
    return rc < 0 ? err_restore(&first) : 0;
}
