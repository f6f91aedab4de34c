/* Every byte that a run's newest commit names, compared with its checksum. See train.h; sweep.h reads.
 *
 *   lock -> both manifest slots -> headers of the slabs -> all extents
 *
 * Nothing is changed but that state/lock is made where it is missing. What is damaged is told of and
 * counted, and the rest is looked at all the same, as far as it can be. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/tile.h"
#include "train/run_view.h"
#include "train/sweep.h"
#include "train/train_internal.h"

enum { STUCK_SECONDS = 30, STOP_SECONDS = 600 }; /* where there is no job.json to say */

struct verifier {
    const struct verify_options *asked;
    struct verify_summary *out;
    struct traini_run_dir dir;
    traini_view view;
    slab disk;
    bool disk_is_open;
    uint64_t sound_bytes;        /* of the extents that are read */
    uint64_t slot_damage_count;  /* of damage_count */
    struct verify_damage damage; /* being told of */
};
typedef struct verifier verifier;

static void tell(verifier *self)
{
    self->out->damage_count++;
    if (self->asked->on_damage)
        self->asked->on_damage(self->asked->user, &self->damage);
}

/* ---- manifests ---- */

static void look_at_slots(verifier *self)
{
    for (uint32_t i = 0; i < 2; i++) {
        const manifest_slot *slot = &self->view.slots[i];
        struct stat status;
        if (slot->outcome != MANIFEST_SLOT_DAMAGED)
            continue;
        self->damage = (struct verify_damage){.unit = PROGRAM_NONE, .tile = PROGRAM_NONE};
        traini_view_slot_path(&self->view, i, self->damage.path);
        if (stat(self->damage.path, &status) == 0)
            self->damage.size_bytes = (uint64_t)status.st_size;
        snprintf(self->damage.reason, sizeof self->damage.reason,
                 "damaged manifest, or one whose writing was cut short: %s", slot->reason);
        self->slot_damage_count++;
        tell(self);
    }
}

/* A commit to compare with. */
static int check_record(const verifier *self)
{
    const manifest *record = &self->view.record;
    if (!self->view.has_record)
        return err_set(ERR_CORRUPT,
                       "%s: no manifest is valid: nothing says which bytes were committed",
                       self->asked->run_dir);
    if (record->state != MANIFEST_COMMITTED && self->slot_damage_count > 0)
        return err_set(ERR_CORRUPT,
                       "%s: the manifest of its commit is damaged, and the other one is of none",
                       self->asked->run_dir);
    if (record->state == MANIFEST_BEGUN)
        return err_set(ERR_INPUT, "%s has no commit yet", self->asked->run_dir);
    if (record->state == MANIFEST_RUNNING)
        return err_set(
            ERR_INPUT,
            "%s has no commit: its state was being changed in place (run.commit_every 0) "
            "after step %" PRIu64,
            self->asked->run_dir, record->step);
    return 0;
}

/* ---- slabs ---- */

/* The clause, with the last component alone of the path that is told of beside it. */
static void give_reason(verifier *self, const char *reason)
{
    char *to = self->damage.reason;
    size_t room = sizeof self->damage.reason, path_length = strlen(self->damage.path);
    const char *at = path_length ? strstr(reason, self->damage.path) : NULL;
    const char *slash = strrchr(self->damage.path, '/');
    if (at)
        snprintf(to, room, "%.*s%.64s%.*s", (int)size_min((uint64_t)(at - reason), 64), reason,
                 slash ? slash + 1 : self->damage.path, (int)(room / 2), at + path_length);
    else
        snprintf(to, room, "%.*s", (int)room - 1, reason);
}

static void tell_of_slab(verifier *self, uint32_t drive_idx, uint64_t size_bytes,
                         const char *reason)
{
    self->damage = (struct verify_damage){
        .unit = PROGRAM_NONE, .tile = PROGRAM_NONE, .size_bytes = size_bytes};
    traini_view_slab_path(&self->view, drive_idx, self->damage.path);
    give_reason(self, reason);
    tell(self);
}

/* The drive whose file the present error names; 0 where it names none. */
static uint32_t drive_in_error(const verifier *self)
{
    char path[SLAB_PATH_BYTES];
    for (uint32_t d = 0; d < self->view.record.slabs.drive_count; d++) {
        traini_view_slab_path(&self->view, d, path);
        if (strstr(err_text(), path))
            return d;
    }
    return 0;
}

/* Slabs that are absent or damaged are told of, and none is open then. Negative where the machine failed. */
static int open_slabs(verifier *self)
{
    uint32_t absent_count = 0;
    for (uint32_t d = 0; d < self->view.record.slabs.drive_count; d++) {
        char path[SLAB_PATH_BYTES];
        struct stat status;
        traini_view_slab_path(&self->view, d, path);
        if (stat(path, &status) == 0)
            continue;
        if (errno != ENOENT && errno != ENOTDIR)
            return err_errno(errno, "cannot look at the slab %s", path);
        tell_of_slab(self, d, 0, "the slab is not there; is its drive mounted?");
        absent_count++;
    }
    if (absent_count > 0)
        return 0;
    slab_config config = traini_view_slab_config(&self->view);
    config.only_reads = true;
    int rc = slab_open(&self->disk, &config);
    if (rc == ERR_CORRUPT || rc == ERR_INPUT) {
        err_record why;
        err_save(&why, rc);
        tell_of_slab(self, drive_in_error(self), SLAB_HEADER_BYTES, why.text);
        return 0;
    }
    self->disk_is_open = rc == 0;
    return rc;
}

/* ---- extents ---- */

static void tell_of_extent(verifier *self, const manifest_extent *extent, uint64_t found,
                           const char *reason)
{
    slab_piece place = {0};
    self->damage = (struct verify_damage){
        .unit = extent->unit,
        .tile = extent->tile,
        .size_bytes = extent->size_bytes,
        .expected = found ? extent->checksum : 0,
        .found = found,
    };
    traini_view_unit_name(&self->view, extent->unit, self->damage.unit_name);
    if (extent->offset_bytes < self->disk.total_bytes) {
        slab_map(&self->disk, extent->offset_bytes, TILE_BLOCK_BYTES, &place);
        snprintf(self->damage.path, sizeof self->damage.path, "%s",
                 self->disk.files[place.drive_idx].path);
        self->damage.file_offset = place.file_offset;
    }
    give_reason(self, reason);
    tell(self);
}

static void compare_extent(void *user, const struct traini_swept *swept)
{
    verifier *self = user;
    const manifest_extent *extent = &self->view.record.extents[swept->extent_idx];
    if (swept->error)
        tell_of_extent(self, extent, 0, swept->error);
    else if (extent->checksum != 0 &&
             extent->checksum != swept->sum) /* 0: an old run's, not taken */
        tell_of_extent(self, extent, swept->sum, "it does not match its checksum");
}

/* Those that no sweep can read; the bytes of the others. */
static void look_at_extents(verifier *self)
{
    const manifest *record = &self->view.record;
    for (uint64_t i = 0; i < record->extent_count; i++) {
        if (traini_extent_is_tile(&record->extents[i]))
            self->sound_bytes += record->extents[i].size_bytes;
        else
            tell_of_extent(self, &record->extents[i], 0,
                           "the manifest's figures for it are of no tile");
    }
}

static void show_progress(void *user, uint64_t done_bytes, double seconds)
{
    verifier *self = user;
    self->out->bytes = done_bytes;
    self->out->seconds = seconds;
    if (self->asked->on_progress)
        self->asked->on_progress(self->asked->user, done_bytes, self->sound_bytes, seconds);
}

static int read_extents(verifier *self)
{
    static const char *const backends[] = {"auto", "uring", "pool"};
    const struct job *asked = self->view.asked;
    struct traini_sweep_options sweep = {
        .disk = &self->disk,
        .record = &self->view.record,
        .backend = IO_AUTO,
        .stuck_ns = (uint64_t)STUCK_SECONDS * 1000000000,
        .stop_ns = (uint64_t)STOP_SECONDS * 1000000000,
        .stop = self->asked->stop,
        .faults = self->asked->faults,
        .on_extent = compare_extent,
        .on_progress = show_progress,
        .user = self,
    };
    if (asked) {
        for (int i = IO_AUTO; i <= IO_POOL; i++)
            if (strcmp(asked->io.backend, backends[i]) == 0)
                sweep.backend = (enum io_backend)i;
        sweep.pool_threads = (uint32_t)asked->io.threads;
        sweep.stuck_ns = (uint64_t)(asked->io.stuck_seconds * 1e9);
        sweep.stop_ns = (uint64_t)(asked->io.stop_seconds * 1e9);
    }
    look_at_extents(self);
    return traini_sweep(&sweep, &self->out->weights_hash);
}

/* ---- the whole ---- */

static int verdict(const verifier *self)
{
    const struct verify_summary *out = self->out;
    if (out->damage_count == 0)
        return 0;
    if (out->damage_count == self->slot_damage_count)
        return err_set(ERR_CORRUPT,
                       "%s: a manifest is damaged; the commit of step %" PRIu64
                       " is whole, and the run goes on from it",
                       self->asked->run_dir, out->step);
    return err_set(ERR_CORRUPT,
                   "%s: %" PRIu64 " %s from what was committed at step %" PRIu64
                   "; go on from a kept commit or a copy that `sluice verify` finds whole",
                   self->asked->run_dir, out->damage_count,
                   out->damage_count == 1 ? "difference" : "differences", out->step);
}

static int verify_all(verifier *self)
{
    const manifest *record = &self->view.record;
    TRY(traini_view_exists(self->asked->run_dir));
    TRY(traini_run_dir_open(&self->dir, self->asked->run_dir));
    TRY(traini_view_open(&self->view, self->asked->run_dir, true));
    look_at_slots(self);
    TRY(check_record(self));
    self->out->step = record->step;
    self->out->extent_count = record->extent_count;
    TRY(open_slabs(self));
    if (self->disk_is_open) {
        self->out->slab_bytes = self->disk.total_bytes;
        TRY(read_extents(self));
    }
    if (self->out->damage_count > self->slot_damage_count)
        self->out->weights_hash = 0;
    return verdict(self);
}

int verify_run(const struct verify_options *options, struct verify_summary *summary)
{
    memset(summary, 0, sizeof *summary);
    verifier *self = mem_alloc(1, sizeof *self, "verifier");
    if (!self)
        return -ENOMEM;
    self->asked = options;
    self->out = summary;
    self->dir.lock_fd = -1;
    int rc = verify_all(self);
    err_record first;
    err_save(&first, rc);
    if (self->disk_is_open)
        slab_close(&self->disk);
    traini_view_close(&self->view);
    traini_run_dir_close(&self->dir);
    mem_free(self);
    return rc < 0 ? err_restore(&first) : 0;
}
