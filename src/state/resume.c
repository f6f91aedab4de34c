/* Gives a run its engine: with new slabs, or with the state of an earlier process, on the slabs
 * where it lies or moved to new ones.
 *
 * - New: the manifest names the slabs before they are made.
 * - As it lies: the job's drives are those of the manifest, tile size and places are what the job
 *   wants, and the programs fit on the slabs. The slabs are opened and nothing is written.
 * - Moved ("re-cut"): in all other cases. New slabs are made as the job asks, all extents are
 *   streamed over (recut.c), and then the old slabs are removed.
 *
 * A move can be killed at any instant. The manifest names the leftover slabs that the next start
 * removes (its field `leftover`). OLD and NEW are the slabs before and after the move:
 *
 *   1  slot: state OLD, leftover NEW
 *   2  make NEW, copy, sync
 *   3  both slots: state NEW, leftover OLD     both, so that no manifest names slabs that are gone
 *   4  remove OLD
 *
 * With several ranks, each rank has its own slabs, and copies to them what it needs from the slabs
 * of all. Rank 0 writes the manifests when the copies of all ranks are durable. All ranks take the
 * same way: the state is used as it lies only if all of them can.
 *
 * A new run that begins with the state of another (state_run_options.from) copies it in the same
 * way. But the slabs that it reads stay, and until the copy is complete its own manifest has state
 * BEGUN. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/tile.h"
#include "state/rank_slabs.h"
#include "state/state_internal.h"

/* ---- the manifest and the engine, of a new or a resumed run ---- */

int state_share_manifest(const struct ranks *self, manifest *found, bool *exists)
{
    if (self->world == 1)
        return 0;
    uint8_t there = *exists;
    TRY(comm_broadcast(self->comm, "whether there is a run", &there, sizeof there));
    *exists = there;
    if (!there)
        return 0;
    manifest_extent *own = self->rank == 0 ? found->extents : NULL;
    int rc = comm_broadcast(self->comm, "manifest", found, sizeof *found);
    /* The broadcast brought rank 0's pointer, also if it was cut short. */
    found->extents = own;
    TRY(rc);
    if (!own)
        found->extents = mem_alloc(found->extent_count, sizeof *own, "manifest extents");
    TRY(ranks_agree(self, "manifest", found->extents ? 0 : -ENOMEM));
    return comm_broadcast(self->comm, "manifest extents", found->extents,
                          found->extent_count * sizeof *found->extents);
}

int state_draw_uuid(const struct ranks *ranks, uint8_t uuid[SLAB_UUID_BYTES])
{
    int rc = 0;
    if (getrandom(uuid, SLAB_UUID_BYTES, 0) != SLAB_UUID_BYTES)
        rc = err_errno(errno, "cannot draw an id for the slabs");
    TRY(ranks_agree(ranks, "id of the slabs", rc));
    return ranks_from_rank0(ranks, "id of the slabs", uuid, SLAB_UUID_BYTES);
}

int state_name_new_slabs(struct state_run *self, const uint8_t uuid[SLAB_UUID_BYTES])
{
    manifest *record = &self->record;
    state_name_slabs(self->setup, uuid, &record->slabs);
    state_name_run(self->setup, record);
    self->has_named_slabs = true;
    record->state = MANIFEST_BEGUN;
    record->generation++;
    int rc = self->ranks.rank == 0 ? manifest_write(self->dir.state, record) : 0;
    TRY(ranks_agree(&self->ranks, "the run's first manifest", rc));
    return failpoint("slab.create");
}

int state_start_engine(struct state_run *self, const manifest *found,
                       const uint8_t uuid[SLAB_UUID_BYTES])
{
    const struct state_run_options *asked = &self->options;
    const struct setup_watch *watch = asked->watch;
    if (asked->on_setup)
        asked->on_setup(asked->user, self->setup);
    if (watch && watch->on_setup)
        TRY(watch->on_setup(watch->user, self->setup));
    state_commit *commit = &self->commit;
    struct engine_options options = {
        .watch = watch,
        .test = asked->test,
        .first_elems = asked->first_elems,
        .first_codes = asked->first_codes,
        .first_user = asked->first_user,
        .run_commit = state_run_commit,
        .commit_user = commit,
        .open_existing = found != NULL,
        .slab_bytes = found ? found->total_bytes : 0,
        .stripe_bytes = found ? found->stripe_bytes : 0,
        .found = found,
    };
    memcpy(options.uuid, uuid, sizeof options.uuid);
    TRY(engine_create(self->setup, &options, &self->engine));
    commit->engine = self->engine;
    commit->state_dir = self->dir.state;
    commit->job = self->job;
    commit->metrics_fd = -1;
    if (asked->is_trial) /* a killed trial leaves no file on the drives */
        return self->engine->disk_is_open ? slab_unname(self->engine->disk) : 0;
    TRY(state_record_init(commit));
    if (self->job->run.keep_every > 0 || self->job->run.keep_count > 0)
        TRY(state_keeper_create(self->ranks.rank == 0 ? self->dir.path : NULL, self->job,
                                commit->record.extent_count, &commit->keeper));
    return self->ranks.rank == 0 ? state_claim_slabs(self->dir.state, &commit->record.slabs) : 0;
}

/* ---- on the slabs as they lie ---- */

/* True if the job's drive is the directory where this rank's slab lies. */
static bool is_same_drive(const struct ranks *ranks, const char *path, const manifest *found,
                          uint32_t drive_idx)
{
    char asked[FILE_PATH_BYTES], has[FILE_PATH_BYTES];
    const manifest_rank *was = &found->slabs.ranks[ranks->rank];
    return manifest_expand_path(path, ranks->rank, ranks->local_rank, ranks->host, asked,
                                sizeof asked) &&
           manifest_expand_path(found->slabs.drives[drive_idx], ranks->rank, was->local_rank,
                                was->host, has, sizeof has) &&
           state_is_same_directory(asked, has);
}

/* Sets *same if the job asks for the drives of `found`, in the same order. */
static int has_drives_of(const struct ranks *ranks, const struct job *asked, const manifest *found,
                         bool *same)
{
    slab_drive *drives = mem_alloc(DRIVES_MAX, sizeof *drives, "slab drives");
    if (!drives)
        return -ENOMEM;
    uint32_t count = 0;
    int rc = setup_job_drives(asked, drives, &count);
    *same = rc == 0 && count == found->slabs.drive_count;
    for (uint32_t d = 0; *same && d < count; d++)
        *same = is_same_drive(ranks, drives[d].path, found, d);
    mem_free(drives);
    return rc;
}

/* True if the rank's slabs are within its part of the budgets that the job states. */
static bool is_within_budgets(const struct ranks *ranks, const struct job *asked,
                              const manifest *found)
{
    uint64_t stated = 0;
    for (uint32_t d = 0; d < asked->tiers.nvme_count; d++) {
        if (asked->tiers.nvme[d].budget_bytes == 0)
            return true;
        stated += asked->tiers.nvme[d].budget_bytes /
                  setup_drive_sharers(ranks, asked->tiers.nvme[d].path);
    }
    return asked->tiers.nvme_count == 0 || found->total_bytes <= stated;
}

/* Makes the setup on the slabs of `found`. Returns 1, or 0 without a setup if they are not what the
 * job wants. */
static int setup_as_it_lies(struct state_run *self, const manifest *found)
{
    const struct job *asked = self->job;
    bool same;
    if (size_max(found->world_size, 1) != self->ranks.world)
        return 0;
    TRY(ranks_agree(&self->ranks, "drives", has_drives_of(&self->ranks, asked, found, &same)));
    same = same && is_within_budgets(&self->ranks, asked, found);
    TRY(ranks_all_true(&self->ranks, "drives", &same));
    uint64_t tile_elems = size_round_up(asked->schedule.tile_elems, TILE_ELEMS_STEP);
    if (!same || (tile_elems && tile_elems != found->tile_elems))
        return 0;
    if (setup_is_imported(found)) /* its slab has no space for later writes */
        return 0;
    int rc = self->ranks.world > 1 ? rank_slabs_look(found, self->ranks.rank) : 0;
    TRY(ranks_agree(&self->ranks, "slabs of the commit", rc)); /* ranks may have changed hosts */
    struct setup_options options = {.ranks = &self->ranks,
                                    .test = self->options.test,
                                    .machine = self->options.machine,
                                    .found = found,
                                    .as_it_lies = true};
    rc = setup_create(asked, &options, &self->setup);
    if (rc == ERR_NO_FIT)
        return 0;
    TRY(rc);
    place_table *table;
    int placed = engine_places_create(self->setup, found, &table);
    place_table_destroy(table);
    same = placed == 1;
    TRY(ranks_agree(&self->ranks, "layout", placed < 0 ? placed : 0));
    TRY(ranks_all_true(&self->ranks, "layout", &same));
    if (same)
        return 1;
    setup_destroy(self->setup);
    self->setup = NULL;
    return 0;
}

/* Called before anything is removed. Checks that the state's own slabs exist, and writes a second
 * slot, so that both name them. A kill may have left the other slot with state and leftover slabs
 * exchanged, and that slot would count if the newer one were damaged. */
static int secure_state(const struct state_run *self, manifest *found)
{
    slab *own = mem_alloc(1, sizeof *own, "slab");
    /* With several ranks, each looks at the slabs with its own number. */
    uint32_t rank = self->ranks.rank;
    bool has_own = rank < size_max(found->slabs.rank_count, 1);
    int rc = !own ? -ENOMEM : has_own ? rank_slabs_open(found, rank, own) : 0;
    if (rc == 0 && has_own)
        slab_close(own);
    mem_free(own);
    TRY(ranks_agree(&self->ranks, "slabs of the commit", rc));
    found->generation++;
    if (rank == 0)
        rc = manifest_write(self->dir.state, found);
    rc = ranks_agree(&self->ranks, "manifest", rc);
    if (rc < 0)
        found->generation--; /* that slot does not count */
    return rc;
}

/* Removes leftover slabs. If they cannot be removed, the run continues, and the next start tries
 * again. */
static void remove_leftovers(struct state_run *self, manifest *found)
{
    if (found->leftover.drive_count == 0)
        return;
    int rc = secure_state(self, found);
    if (rc == 0)
        rc = ranks_agree(&self->ranks, "removal of slabs", state_remove_slabs(&found->leftover));
    if (rc == 0)
        return;
    log_warn("slabs that are of no use any more could not be removed: %s", err_text());
    memcpy(&self->record.leftover, &found->leftover, sizeof found->leftover);
}

/* Writes a slot with the slabs and extents of `state`; its leftover slabs are those of the last
 * argument. */
static int write_slot(const struct state_run *self, manifest *record, const manifest *state,
                      const manifest_slabs *leftover)
{
    uint64_t generation = record->generation + 1;
    *record = *state;
    record->generation = generation;
    memcpy(&record->leftover, leftover, sizeof record->leftover);
    int rc = self->ranks.rank == 0 ? manifest_write(self->dir.state, record) : 0;
    return ranks_agree(&self->ranks, "manifest", rc);
}

/* Draws an id for the new slabs, and names them as leftovers of the old state before they are
 * made. */
static int name_new_slabs(struct state_run *self, const manifest *found, manifest *scratch,
                          uint8_t uuid[SLAB_UUID_BYTES])
{
    manifest_slabs *fresh = mem_alloc(1, sizeof *fresh, "slab names");
    if (!fresh)
        return -ENOMEM;
    int rc = state_draw_uuid(&self->ranks, uuid);
    state_name_slabs(self->setup, uuid, fresh);
    if (rc == 0)
        rc = write_slot(self, scratch, found, fresh);
    mem_free(fresh);
    return rc < 0 ? rc : failpoint("recut.begin");
}

/* The copies of a move to this rank, without the drives. */
static struct state_recut moved_part(const struct state_run *self, const manifest *found)
{
    return (struct state_recut){
        .found = found,
        .unit_elems = self->setup->unit_elems,
        .unit_count = self->setup->net->unit_count,
        .rank = self->ranks.rank,
        .world = self->ranks.world,
        .is_sharded = plan_is_sharded(&self->setup->plan, STATE_OPTIMIZER, 0),
    };
}

/* Copies all extents into the places of the engine. Then the engine's record describes them. */
static int copy_extents(struct state_run *self, const manifest *found, slab *old,
                        sim_store *old_store)
{
    const struct engine *engine = self->engine;
    const struct setup_test *test = self->options.test;
    struct state_recut work = moved_part(self, found);
    work.to = engine->disk;
    work.places = engine->places;
    work.state_streams = self->setup->plan.state_streams;
    work.is_frozen = self->setup->is_frozen;
    work.param_type = self->setup->net->type;
    work.backend = engine->io_kind;
    work.from = old ? &old : NULL;
    work.from_store = old ? &old_store : NULL;
    work.to_store = test && test->store ? *test->store : NULL;
    work.stop = self->options.stop;
    work.faults = test ? test->faults : NULL;
    work.stuck_ns = (uint64_t)(self->job->io.stuck_seconds * 1e9);
    work.stop_ns = (uint64_t)(self->job->io.stop_seconds * 1e9);
    TRY(ranks_agree(&self->ranks, "move of the commit", state_recut_copy(&work)));
    place_table_commit(engine->places);
    manifest *record = &self->commit.record;
    record->point = found->point;
    record->state = MANIFEST_COMMITTED;
    return state_fill_extents(&self->commit);
}

/* With the new slabs made: copies the state, writes the manifests, and removes the old slabs. */
static int move_state(struct state_run *self, const manifest *found, manifest *scratch, slab *old)
{
    sim_store *old_store = self->moved_store;
    TRY(copy_extents(self, found, old, old_store));
    static const manifest_slabs none;
    for (int slot = 0; slot < 2; slot++)
        TRY(write_slot(self, scratch, &self->commit.record,
                       self->is_borrowed ? &none : &found->slabs));
    self->commit.record.generation = scratch->generation;
    self->is_moved = true;
    TRY(failpoint("recut.switched"));
    if (old)
        slab_close(old);
    sim_store_destroy(old_store);
    self->moved_store = NULL;
    if (self->is_borrowed)
        return 0;
    if (ranks_agree(&self->ranks, "removal of slabs", state_remove_slabs(&found->slabs)) < 0) {
        log_warn("the slabs that the run has left could not be removed: %s", err_text());
        memcpy(&self->commit.record.leftover, &found->slabs, sizeof found->slabs);
    }
    return failpoint("recut.removed");
}

/* For simulated drives: sets the memory of the old slabs aside, so that the engine makes a new
 * one. */
static void set_store_aside(struct state_run *self)
{
    const struct setup_test *test = self->options.test;
    sim_store **store = test ? test->store : NULL;
    if (store && test->simulates_drives) {
        self->moved_store = *store;
        *store = NULL;
    }
}

/* True if a run's selection of what learns (train.only) splits off the norms of its blocks. The
 * identity has the selected ranges sorted and joined. */
static bool splits_norms(const char *identity, uint64_t layers)
{
    static const char key[] = "\ntrain.only=", norms[] = "norms";
    char blocks[64];
    const char *list = strstr(identity, key);
    if (!list)
        return false;
    list += sizeof key - 1;
    size_t length = strcspn(list, "\n");
    size_t all = (size_t)snprintf(blocks, sizeof blocks, "blocks.0-%" PRIu64, layers - 1);
    bool has_all = length >= all && memcmp(list + length - all, blocks, all) == 0;
    return !has_all && memmem(list, length, norms, sizeof norms - 1) != NULL;
}

/* Checks that the commit has the units of this run. Another selection of what learns, or adapters,
 * may split units in another way. With adapters the number of units is the same with and without
 * norms, so the norms are compared too. */
static int check_units(const struct state_run *self, const manifest *found)
{
    const model *net = self->setup->net;
    uint32_t count = found->extents[found->extent_count - 1].unit + 1; /* of a commit: sorted */
    bool has_adapters = setup_is_imported(found) && net->spec.lora.rank > 0;
    if (!has_adapters && count == net->unit_count &&
        splits_norms(found->identity, net->spec.num_layers) ==
            splits_norms(self->setup->identity, net->spec.num_layers))
        return 0;
    if (setup_is_imported(found))
        return err_set(ERR_INPUT,
                       "the import in %s has other units (%" PRIu32 ") than this run (%" PRIu32
                       "), since train.only or train.lora splits some of them: use a new run.dir, "
                       "and name the checkpoint in model.hf",
                       self->is_borrowed ? self->from.path : self->dir.path, count,
                       net->unit_count);
    return err_set(ERR_INPUT,
                   "the run to begin from, %s, has %" PRIu32 " units, and this one has %" PRIu32
                   ": train.only selects norms apart from matrices in only one of the two. Select "
                   "\"norms\" in both or in neither, or begin from an export of that run "
                   "(model.hf)",
                   self->from.path, count, net->unit_count);
}

/* Moves or borrows the state. `old`: memory for the slab of a run of one rank; NULL: the copy opens
 * the slabs that it reads. */
static int recut(struct state_run *self, const manifest *found, manifest *scratch, slab *old)
{
    uint8_t uuid[SLAB_UUID_BYTES];
    struct setup_options options = {.ranks = &self->ranks,
                                    .test = self->options.test,
                                    .machine = self->options.machine,
                                    .found = found,
                                    .found_in = self->is_borrowed ? self->from.path : NULL};
    setup_destroy(self->setup); /* a new run's first setup was made without what it begins with */
    self->setup = NULL;
    int rc = setup_create(self->job, &options, &self->setup);
    if (rc == ERR_NO_FIT && !self->is_borrowed)
        return err_prefix(rc,
                          "the run in %s is to move to other places, beside the slabs that it has",
                          self->dir.path);
    TRY(rc);
    if (self->is_borrowed || setup_is_imported(found))
        TRY(check_units(self, found));
    struct state_recut part = moved_part(self, found);
    if (old)
        TRY(rank_slabs_open(found, 0, old));
    else
        TRY(ranks_agree(&self->ranks, "slabs of the commit", state_recut_check(&part)));
    if (self->is_borrowed) {
        if (self->ranks.rank == 0)
            log_info("the commit of step %" PRIu64 " in %s is copied", found->point.step,
                     self->from.path);
        rc = state_draw_uuid(&self->ranks, uuid);
        if (rc == 0)
            rc = state_name_new_slabs(self, uuid);
        scratch->generation = self->record.generation;
    } else {
        if (self->ranks.rank == 0)
            log_info("the commit of step %" PRIu64
                     " is moved: other drives, tile size, layout or ranks than before",
                     found->point.step);
        scratch->generation = found->generation;
        rc = name_new_slabs(self, found, scratch, uuid);
        set_store_aside(self);
    }
    if (rc == 0)
        rc = state_start_engine(self, NULL, uuid);
    if (rc == 0) {
        self->commit.record.generation = scratch->generation;
        rc = move_state(self, found, scratch, old);
    }
    if (rc < 0 && !self->is_moved && old)
        slab_close(old);
    return rc;
}

/* Checks that this rank's slab is not an old copy, before anything is changed. Slabs that are not
 * visible here are missed later, by all that need them. */
static int check_age(const struct state_run *self, const manifest *found)
{
    const struct setup_test *test = self->options.test;
    uint32_t rank = self->ranks.rank;
    uint64_t older_step;
    int rc = 0;
    const struct state_slab_age asked = {
        .newest = found,
        .state_dir = self->is_borrowed ? self->from.state : self->dir.state,
        .rank = rank,
        .backend = engine_io_backend(self->job),
        .stuck_ns = (uint64_t)(self->job->io.stuck_seconds * 1e9),
        .stop_ns = (uint64_t)(self->job->io.stop_seconds * 1e9),
    };
    bool is_here = rank < rank_slabs_world(found) && rank_slabs_look(found, rank) == 0;
    if (is_here && !(test && test->simulates_drives))
        rc = state_check_slab_age(&asked, &older_step);
    return ranks_agree(&self->ranks, "age of the slabs", rc);
}

int state_resume(struct state_run *self, manifest *found)
{
    int lies = 0;
    /* An unmounted drive has another size, so look before the setup is made. With several ranks,
     * they look when all know of the manifest. */
    if (self->ranks.world == 1 && size_max(found->world_size, 1) == 1)
        TRY(rank_slabs_look(found, 0));
    TRY(check_age(self, found));
    if (!self->is_borrowed) {
        remove_leftovers(self, found);
        lies = setup_as_it_lies(self, found);
        TRY(lies);
    }
    if (lies) {
        TRY(state_start_engine(self, found, found->slabs.uuid));
        self->commit.record.generation = found->generation;
        memcpy(&self->commit.record.leftover, &self->record.leftover, sizeof self->record.leftover);
        return 0;
    }
    manifest *scratch = mem_alloc(1, sizeof *scratch, "manifest");
    bool is_single = self->ranks.world == 1 && size_max(found->world_size, 1) == 1;
    slab *old = mem_alloc(1, sizeof *old, "slab");
    int rc = scratch && old ? recut(self, found, scratch, is_single ? old : NULL) : -ENOMEM;
    mem_free(scratch); /* its extents belong to another record */
    mem_free(old);
    return rc;
}

int state_borrow(struct state_run *self, manifest *found)
{
    const char *path = self->options.from;
    char state[FILE_PATH_BYTES + 16];
    snprintf(state, sizeof state, "%s/state", path);
    if (access(state, F_OK) != 0)
        return err_set(ERR_INPUT, "the run to begin from: %s is no run directory", path);
    int rc = state_run_dir_open(&self->from, path, FILE_PRIVATE);
    if (rc < 0)
        return err_prefix(rc, "the run to begin from");
    rc = manifest_read(self->from.state, found);
    TRY(rc);
    if (rc == 0 || found->state != MANIFEST_COMMITTED)
        return err_set(ERR_INPUT, "the run to begin from, %s, has no commit", path);
    TRY(state_find_moved(found, self->from.state));
    self->is_borrowed = true;
    return 0;
}
