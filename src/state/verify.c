/* Compares every byte that a run's newest commit names with its checksum. See verify.h; sweep.h
 * reads.
 *
 *   lock -> both manifest slots -> headers of all ranks' slabs -> all extents
 *
 * With several ranks, slabs of ranks that ran on other hosts may not be visible here: those ranks
 * are counted, and all else is compared. If each rank had the whole state, each copy is compared
 * with the same sums.
 *
 * Nothing is changed, except that state/lock is made if it is missing. Damage is reported and
 * counted, and everything that can still be read is compared all the same. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/tile.h"
#include "state/rank_slabs.h"
#include "state/run_view.h"
#include "state/state_internal.h"
#include "state/sweep.h"
#include "state/verify.h"

enum { STUCK_SECONDS = 30, STOP_SECONDS = 600 }; /* used if there is no job.json */

struct verifier {
    const struct state_verify_options *asked;
    struct state_verify_summary *out;
    struct state_run_dir dir;
    state_view view;
    uint32_t world;
    bool *is_absent;            /* [world] ranks whose slabs cannot be read or are not visible */
    uint32_t open_count;        /* ranks whose slabs can be read */
    uint32_t unseen_rank;       /* the first that is not visible */
    const model *net;           /* NULL: not known, or not needed: one rank has no padding */
    uint32_t copy_rank;         /* the rank whose copy of the state is being read */
    uint64_t sound_bytes;       /* of the extents that are read, in each copy */
    uint64_t done_bytes;        /* of the copies read before */
    double done_seconds;        /* of the copies read before */
    uint64_t slot_damage_count; /* how many of damage_count are slots */
    bool seems_old;             /* a slab seems to be an old copy, of an unknown step */
    struct state_damage damage; /* the one being reported */
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
    static const char *const slot_names[2] = {"state/manifest-0", "state/manifest-1"};
    for (uint32_t i = 0; i < 2; i++) {
        const manifest_slot *slot = &self->view.slots[i];
        struct stat status;
        if (slot->outcome != MANIFEST_SLOT_DAMAGED)
            continue;
        self->damage = (struct state_damage){.unit = PROGRAM_NONE, .tile = PROGRAM_NONE};
        if (file_join(self->damage.path, sizeof self->damage.path, self->asked->run_dir,
                      slot_names[i]) == 0 &&
            stat(self->damage.path, &status) == 0)
            self->damage.size_bytes = (uint64_t)status.st_size;
        snprintf(self->damage.reason, sizeof self->damage.reason,
                 "damaged manifest, or one whose writing was cut short: %s", slot->reason);
        self->slot_damage_count++;
        tell(self);
    }
}

/* Checks that there is a commit to compare with. */
static int check_record(const verifier *self)
{
    const manifest *record = &self->view.record;
    if (!self->view.has_record)
        return err_set(ERR_CORRUPT,
                       "%s: no manifest is valid: nothing says which bytes were committed",
                       self->asked->run_dir);
    if (record->state != MANIFEST_COMMITTED && self->slot_damage_count > 0)
        return err_set(ERR_CORRUPT,
                       "%s: the manifest of its commit is damaged, and the other one has no commit",
                       self->asked->run_dir);
    return state_check_committed(record, self->asked->run_dir);
}

/* ---- slabs ---- */

/* Sets the reason. If it contains the path that is reported beside it, only the last component of
 * the path stays. */
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

static void tell_of_slab(verifier *self, uint32_t rank, const char *path, uint64_t size_bytes,
                         const char *reason)
{
    self->damage = (struct state_damage){
        .unit = PROGRAM_NONE, .tile = PROGRAM_NONE, .rank = rank, .size_bytes = size_bytes};
    snprintf(self->damage.path, sizeof self->damage.path, "%s", path);
    give_reason(self, reason);
    tell(self);
}

/* Finds the rank's file that the error text names; its first file if it names none. */
static int file_in_error(const verifier *self, uint32_t rank, const char *text,
                         char path[FILE_PATH_BYTES])
{
    const manifest_slabs *slabs = &self->view.record.slabs;
    for (uint32_t d = 0; d < slabs->drive_count; d++) {
        TRY(state_slab_of_rank(slabs, rank, d, path));
        if (strstr(text, path))
            return 0;
    }
    return state_slab_of_rank(slabs, rank, 0, path);
}

/* Returns 1 if all files of a rank exist, else 0. Missing files are reported as damage; files of a
 * rank on another host are counted as not visible. ERR_INPUT if a drive is not mounted. */
static int find_files(verifier *self, uint32_t rank)
{
    const manifest *record = &self->view.record;
    uint32_t absent_count = 0;
    for (uint32_t d = 0; d < record->slabs.drive_count; d++) {
        char path[FILE_PATH_BYTES];
        struct stat status;
        TRY(state_slab_of_rank(&record->slabs, rank, d, path));
        if (stat(path, &status) == 0)
            continue;
        if (errno != ENOENT && errno != ENOTDIR)
            return err_errno(errno, "cannot look at the slab %s", path);
        if (rank_slabs_is_elsewhere(record, rank)) {
            if (self->out->unseen_count++ == 0)
                self->unseen_rank = rank;
            return 0;
        }
        if (rank_slabs_is_unmounted(record, rank, d)) /* nothing can be said of its state */
            return rank_slabs_look(record, rank);
        tell_of_slab(self, rank, path, 0,
                     "the slab is not there, though its drive has other files");
        absent_count++;
    }
    return absent_count == 0;
}

static void set_limits(const verifier *self, enum io_backend *backend, uint64_t *stuck_ns,
                       uint64_t *stop_ns)
{
    const struct job *asked = self->view.asked;
    *backend = asked ? engine_io_backend(asked) : IO_AUTO;
    *stuck_ns = (uint64_t)((asked ? asked->io.stuck_seconds : STUCK_SECONDS) * 1e9);
    *stop_ns = (uint64_t)((asked ? asked->io.stop_seconds : STOP_SECONDS) * 1e9);
}

/* Reports a slab that is an old copy. Returns 0 if its commit is known: then comparing it with a
 * newer one would report every tile. Else 1. */
static int look_at_age(verifier *self, uint32_t rank)
{
    struct state_slab_age asked = {
        .newest = &self->view.record, .state_dir = self->view.state_path, .rank = rank};
    uint64_t older_step;
    char path[FILE_PATH_BYTES];
    set_limits(self, &asked.backend, &asked.stuck_ns, &asked.stop_ns);
    int rc = state_check_slab_age(&asked, &older_step);
    if (rc != ERR_CORRUPT) /* what cannot be read is reported extent by extent */
        return rc == -ENOMEM ? rc : 1;
    self->seems_old |= older_step == UINT64_MAX;
    if (older_step == UINT64_MAX)
        return 1;
    err_record why;
    err_save(&why, rc);
    TRY(state_slab_of_rank(&self->view.record.slabs, rank, 0, path));
    tell_of_slab(self, rank, path, 0, why.text);
    return 0;
}

/* Looks at a rank's slabs and reports missing or damaged ones. Returns 1 if they can be read, else
 * 0. Negative if the machine failed. */
static int look_at_rank(verifier *self, uint32_t rank, slab *scratch)
{
    int are_there = find_files(self, rank);
    if (are_there <= 0)
        return are_there;
    int rc = rank_slabs_open(&self->view.record, rank, scratch);
    if (rc == ERR_CORRUPT || rc == ERR_INPUT) {
        err_record why;
        char path[FILE_PATH_BYTES];
        err_save(&why, rc);
        TRY(file_in_error(self, rank, why.text, path));
        tell_of_slab(self, rank, path, SLAB_HEADER_BYTES, why.text);
        return 0;
    }
    TRY(rc);
    self->out->slab_bytes += scratch->total_bytes;
    slab_close(scratch);
    return look_at_age(self, rank);
}

static int look_at_slabs(verifier *self)
{
    self->is_absent = mem_alloc(self->world, sizeof *self->is_absent, "ranks");
    slab *scratch = mem_alloc(1, sizeof *scratch, "slab");
    int rc = self->is_absent && scratch ? 0 : -ENOMEM;
    for (uint32_t r = 0; rc >= 0 && r < self->world; r++) {
        rc = look_at_rank(self, r, scratch);
        self->is_absent[r] = rc <= 0;
        self->open_count += rc > 0;
    }
    mem_free(scratch);
    return rc < 0 ? rc : 0;
}

/* ---- extents ---- */

/* The part of its elements that the extent holds. One sum covers the low halves and the moments of
 * a tile. */
static const char *part_of(const manifest *record, const manifest_extent *extent)
{
    uint64_t idx = (uint64_t)(extent - record->extents);
    bool are_whole = tile_stream_format(record->state_streams, 0) == TILE_PARAMS;
    if (manifest_is_high(record, idx))
        return are_whole ? "params (fp32, which are the master weights)"
                         : "params (bf16, the upper halves of a split master)";
    if (manifest_is_low(record, idx) && !are_whole)
        return "optimizer state (the lower halves of a split master, and the moments)";
    return extent->param_bytes ? "params" : "optimizer state";
}

static void tell_of_extent(verifier *self, const manifest_extent *extent, uint64_t found,
                           const char *reason)
{
    uint32_t rank = rank_slabs_rank_of(&self->view.record, extent, self->copy_rank);
    self->damage = (struct state_damage){
        .unit = extent->unit,
        .tile = extent->tile,
        .part = part_of(&self->view.record, extent),
        .rank = rank,
        .size_bytes = extent->size_bytes,
        .expected = found ? extent->checksum : 0,
        .found = found,
    };
    state_view_unit_name(&self->view, extent->unit, self->damage.unit_name);
    rank_slabs_locate(&self->view.record, rank, NULL, extent->offset_bytes, self->damage.path,
                      &self->damage.file_offset);
    give_reason(self, reason);
    tell(self);
}

static void compare_extent(void *user, const struct state_swept *swept)
{
    verifier *self = user;
    const manifest_extent *extent = &self->view.record.extents[swept->extent_idx];
    if (swept->error)
        tell_of_extent(self, extent, 0, swept->error);
    else if (extent->checksum != swept->sum)
        tell_of_extent(self, extent, swept->sum, "it does not match its checksum");
}

/* Adds up the bytes of all extents that can be read. */
static void count_extents(verifier *self)
{
    const manifest *record = &self->view.record;
    for (uint64_t i = 0; i < record->extent_count; i++) {
        if (!record->is_replicated && self->is_absent[record->extents[i].rank])
            continue;
        self->sound_bytes += record->extents[i].size_bytes;
    }
}

static void show_progress(void *user, uint64_t done_bytes, double seconds)
{
    verifier *self = user;
    uint64_t copies = self->view.record.is_replicated ? self->open_count : 1;
    self->out->bytes = self->done_bytes + done_bytes;
    self->out->seconds = self->done_seconds + seconds;
    if (self->asked->on_progress)
        self->asked->on_progress(self->asked->user, self->out->bytes, copies * self->sound_bytes,
                                 self->out->seconds);
}

/* The model of the record's units; NULL if it is not known. */
static const model *model_of(const verifier *self)
{
    const manifest *record = &self->view.record;
    const model *net = self->view.net;
    for (uint64_t i = 0; net && i < record->extent_count; i++)
        if (record->extents[i].unit >= net->unit_count)
            return NULL; /* another model's job.json */
    return net;
}

/* Sweeps once over the extents of all ranks, or once over each rank's copy. */
static int sweep_copies(verifier *self, struct state_sweep_options *sweep)
{
    uint32_t copies = self->view.record.is_replicated ? self->world : 1;
    bool has_hash = false;
    for (uint32_t r = 0; r < copies; r++) {
        uint64_t hash, damage_count = self->out->damage_count;
        if (copies > 1 && self->is_absent[r])
            continue;
        self->copy_rank = sweep->copy_rank = r;
        TRY(state_sweep(sweep, &hash));
        self->done_bytes = self->out->bytes;
        self->done_seconds = self->out->seconds;
        if (!has_hash && damage_count == self->out->damage_count) {
            self->out->weights_hash = hash;
            has_hash = true;
        }
    }
    return 0;
}

static int read_extents(verifier *self)
{
    struct state_sweep_options sweep = {
        .record = &self->view.record,
        .is_absent = self->is_absent,
        .stop = self->asked->stop,
        .faults = self->asked->faults,
        .on_extent = compare_extent,
        .on_progress = show_progress,
        .user = self,
    };
    if (self->view.asked)
        sweep.pool_threads = (uint32_t)self->view.asked->io.threads;
    set_limits(self, &sweep.backend, &sweep.stuck_ns, &sweep.stop_ns);
    sweep.net = self->net;
    count_extents(self);
    return sweep_copies(self, &sweep);
}

/* ---- the whole ---- */

static int verdict(const verifier *self)
{
    const struct state_verify_summary *out = self->out;
    const char *host = self->view.record.slabs.ranks[self->unseen_rank].host;
    if (out->damage_count == 0 && out->unseen_count == 0)
        return 0;
    if (out->damage_count == 0)
        return err_set(ERR_INPUT,
                       "%s: the slabs of %u of %u ranks, of which rank %u ran on host %s, are not "
                       "visible from here and were not compared; all else is as it was committed: "
                       "run sluice verify on a host that sees them, too",
                       self->asked->run_dir, out->unseen_count, self->world, self->unseen_rank,
                       host);
    if (out->damage_count == self->slot_damage_count)
        return err_set(ERR_CORRUPT,
                       "%s: a manifest is damaged; the commit of step %" PRIu64
                       " is whole, and the run goes on from it",
                       self->asked->run_dir, out->step);
    return err_set(ERR_CORRUPT,
                   "%s: %" PRIu64 " %s from what was committed at step %" PRIu64
                   "%s; go on from a kept commit or a copy that `sluice verify` finds whole",
                   self->asked->run_dir, out->damage_count,
                   out->damage_count == 1 ? "difference" : "differences", out->step,
                   self->seems_old ? ": so many that a slab seems to be an old copy, or overwritten"
                                   : "");
}

static int verify_all(verifier *self)
{
    const manifest *record = &self->view.record;
    TRY(state_view_exists(self->asked->run_dir));
    TRY(state_run_dir_open(&self->dir, self->asked->run_dir, FILE_PRIVATE));
    TRY(state_view_open(&self->view, self->asked->run_dir, true));
    look_at_slots(self);
    TRY(check_record(self));
    self->out->step = record->point.step;
    self->out->extent_count = record->extent_count;
    self->out->world_size = self->world = rank_slabs_world(record);
    self->net = self->world > 1 ? model_of(self) : NULL;
    TRY(look_at_slabs(self));
    if (self->open_count > 0)
        TRY(read_extents(self));
    if (self->out->damage_count > self->slot_damage_count || self->out->unseen_count > 0 ||
        (self->world > 1 && !self->net))
        self->out->weights_hash = 0;
    return verdict(self);
}

int state_verify(const struct state_verify_options *options, struct state_verify_summary *summary)
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
    mem_free(self->is_absent);
    state_view_close(&self->view);
    state_run_dir_close(&self->dir);
    mem_free(self);
    return rc < 0 ? err_restore(&first) : 0;
}
