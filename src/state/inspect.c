/* Describes a run's manifests, slabs and kept commits, without reading the state itself. See
 * verify.h. No lock is taken: a run that is in use continues, and commits that it makes meanwhile
 * may or may not be seen. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/tile.h"
#include "state/rank_slabs.h"
#include "state/run_view.h"
#include "state/state_internal.h"
#include "state/verify.h"

static const char *state_name(const state_view *view)
{
    if (!view->has_record)
        return "damaged";
    switch (view->record.state) {
    case MANIFEST_COMMITTED:
        return "committed";
    case MANIFEST_RUNNING:
        return "running";
    case MANIFEST_BEGUN:
        break;
    }
    return "begun";
}

static int list_files(const state_view *view, struct state_inspect_summary *out)
{
    const manifest_slabs *slabs = &view->record.slabs;
    uint32_t count = rank_slabs_world(&view->record) * slabs->drive_count;
    out->files = mem_alloc(count, sizeof *out->files, "slab files");
    if (!out->files)
        return -ENOMEM;
    out->file_count = count;
    for (uint32_t i = 0; i < count; i++) {
        struct state_inspect_file *to = &out->files[i];
        struct stat status;
        to->rank = i / slabs->drive_count;
        TRY(state_slab_of_rank(slabs, to->rank, i % slabs->drive_count, to->path));
        if (stat(to->path, &status) != 0) { /* absent: both sizes stay 0 */
            to->is_unmounted =
                !rank_slabs_is_elsewhere(&view->record, to->rank) &&
                rank_slabs_is_unmounted(&view->record, to->rank, i % slabs->drive_count);
            continue;
        }
        to->size_bytes = (uint64_t)status.st_size;
        to->allocated_bytes = (uint64_t)status.st_blocks * 512; /* stat's unit */
    }
    return 0;
}

/* Adds up the extents of each unit. The extents of a unit follow each other in a manifest. */
static int list_units(const state_view *view, struct state_inspect_summary *out)
{
    const manifest *record = &view->record;
    uint64_t count = 0;
    for (uint64_t i = 0; i < record->extent_count; i++)
        count += i == 0 || record->extents[i].unit != record->extents[i - 1].unit;
    out->units = mem_alloc(count, sizeof *out->units, "units of a run");
    if (!out->units)
        return -ENOMEM;
    struct state_inspect_unit *unit = NULL;
    for (uint64_t i = 0; i < record->extent_count; i++) {
        const manifest_extent *extent = &record->extents[i];
        if (i == 0 || extent->unit != record->extents[i - 1].unit) {
            unit = &out->units[out->unit_count++];
            state_view_unit_name(view, extent->unit, unit->name);
            unit->offset_bytes = extent->offset_bytes;
        }
        unit->size_bytes += extent->size_bytes;
        unit->is_frozen = extent->param_bytes != 0; /* for a split master the state comes last */
        if (manifest_is_low(record, i))
            continue;
        const model_unit *of = view->net && extent->unit < view->net->unit_count
                                   ? &view->net->units[extent->unit]
                                   : NULL;
        unit->is_packed = of && of->is_packed && !of->tensors[0].is_exact; /* not constants */
        unit->elems = of && of->is_packed ? of->elems : unit->elems + extent->elem_count;
        unit->tile_count++;
    }
    return 0;
}

/* ---- kept commits ---- */

static int compare_kept(const void *a, const void *b)
{
    const struct state_inspect_kept *left = a, *right = b;
    return (left->step > right->step) - (left->step < right->step);
}

/* True if the directory is a complete copy; then *step is its step. */
static bool is_kept(const char *path, state_view *scratch, uint64_t *step)
{
    int rc = state_view_open(scratch, path, false);
    bool is_whole = rc == 0 && scratch->has_record && scratch->record.state == MANIFEST_COMMITTED;
    *step = scratch->record.point.step;
    state_view_close(scratch);
    return is_whole;
}

static int add_kept(struct state_inspect_summary *out, const char *path, uint64_t step)
{
    struct state_inspect_kept *grown =
        mem_resize(out->kept, out->kept_count + 1, sizeof *out->kept, "kept commits");
    if (!grown)
        return -ENOMEM;
    out->kept = grown;
    grown[out->kept_count].step = step;
    snprintf(grown[out->kept_count].path, sizeof grown[0].path, "%s", path);
    out->kept_count++;
    return 0;
}

static int list_kept(const char *run_dir, state_view *scratch, struct state_inspect_summary *out)
{
    char keep_path[FILE_PATH_BYTES], path[FILE_PATH_BYTES];
    int length = snprintf(keep_path, sizeof keep_path, "%s/keep", run_dir);
    DIR *entries = length < (int)sizeof keep_path ? opendir(keep_path) : NULL;
    if (!entries)
        return 0; /* most runs keep none */
    int rc = 0;
    const struct dirent *entry;
    while (rc == 0 && (entry = readdir(entries)) != NULL) {
        uint64_t step;
        if (strncmp(entry->d_name, "step-", 5) != 0)
            continue;
        length = snprintf(path, sizeof path, "%.*s/%s", (int)sizeof path - 300, keep_path,
                          entry->d_name);
        if (length < (int)sizeof path && is_kept(path, scratch, &step))
            rc = add_kept(out, path, step);
    }
    closedir(entries);
    if (out->kept_count > 0)
        qsort(out->kept, out->kept_count, sizeof *out->kept, compare_kept);
    return rc;
}

static int inspect_all(const char *run_dir, state_view *view, struct state_inspect_summary *out)
{
    int rc = state_view_open(view, run_dir, true);
    if (rc == 0) {
        memcpy(out->slots, view->slots, sizeof out->slots);
        out->state = state_name(view);
    }
    if (rc == 0 && view->has_record) {
        const manifest *record = &view->record;
        manifest_uuid_text(&record->slabs, out->uuid);
        out->state_streams = tile_stream_count(record->state_streams);
        setup_formats_text(record->state_streams, out->state_formats);
        for (uint64_t i = 0; i < record->extent_count; i++) {
            const manifest_extent *extent = &record->extents[i];
            out->extents_bytes += extent->size_bytes;
            out->matrix_tiles += !extent->param_bytes &&
                                 manifest_streams_of(record, extent) != record->state_streams;
        }
        rc = list_files(view, out);
        if (rc == 0)
            rc = list_units(view, out);
        out->record = *record;
        view->record.extents = NULL; /* they are the summary's now */
    }
    err_record first;
    err_save(&first, rc);
    state_view_close(view);
    return rc < 0 ? err_restore(&first) : list_kept(run_dir, view, out);
}

int state_inspect(const char *run_dir, struct state_inspect_summary *out)
{
    memset(out, 0, sizeof *out);
    state_view *view = mem_alloc(1, sizeof *view, "view of a run");
    if (!view)
        return -ENOMEM;
    int rc = inspect_all(run_dir, view, out);
    mem_free(view);
    if (rc < 0)
        state_inspect_fini(out);
    return rc;
}

void state_inspect_fini(struct state_inspect_summary *self)
{
    manifest_fini(&self->record);
    mem_free(self->files);
    mem_free(self->units);
    mem_free(self->kept);
    memset(self, 0, sizeof *self);
}
