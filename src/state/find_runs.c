/* Finds runs, and slabs that no run names. See runs.h.
 *
 *   places ─► runs ─► their drives ─┐
 *        └──► slab directories      ├─► slab directories ─► less those that a run names
 *   drives ─────────────────────────┘
 *
 * A slab directory is compared by device and inode, because one drive may have several paths. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/text.h"
#include "state/run_view.h"
#include "state/runs.h"
#include "state/state_internal.h"

enum { STAT_BLOCK_BYTES = 512 };

/* A directory by its identity. */
struct place {
    dev_t device;
    ino_t inode;
};

/* The search so far. */
struct search {
    state_found *out;
    struct place *named; /* [named_count] slab directories that runs name */
    uint64_t named_count;
    state_view *view; /* scratch */
};
typedef struct search search;

/* ---- one run ---- */

static uint64_t tree_bytes, tree_other_bytes;

static int add_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)kind;
    (void)walk;
    bool is_slab = text_ends_with(path, ".slab");
    tree_bytes += is_slab ? (uint64_t)info->st_blocks * STAT_BLOCK_BYTES : 0;
    tree_other_bytes += is_slab ? 0 : (uint64_t)info->st_blocks * STAT_BLOCK_BYTES;
    return 0;
}

/* The bytes that slabs and other files below the directory take. */
static void measure_tree(const char *path, uint64_t *slab_bytes, uint64_t *other_bytes)
{
    tree_bytes = tree_other_bytes = 0;
    (void)nftw(path, add_entry, 8, FTW_PHYS); /* files that vanish meanwhile do not count */
    *slab_bytes = tree_bytes;
    *other_bytes = tree_other_bytes;
}

/* Counts the files of these slabs. */
static int count_slabs(const manifest_slabs *slabs, state_found_run *run)
{
    for (uint32_t r = 0; slabs->drive_count > 0 && r < slabs->rank_count; r++)
        for (uint32_t d = 0; d < slabs->drive_count; d++) {
            char path[FILE_PATH_BYTES];
            struct stat status;
            TRY(state_slab_of_rank(slabs, r, d, path));
            bool is_there = lstat(path, &status) == 0;
            run->slab_count += is_there;
            run->absent_count += !is_there;
            run->slab_bytes += is_there ? (uint64_t)status.st_blocks * STAT_BLOCK_BYTES : 0;
        }
    return 0;
}

int state_each_kept(const char *run_dir, int (*take)(void *user, const char *path), void *user)
{
    char keep[FILE_PATH_BYTES], path[FILE_PATH_BYTES];
    struct stat status;
    TRY(file_join(keep, sizeof keep, run_dir, "keep"));
    DIR *entries = lstat(keep, &status) == 0 && S_ISDIR(status.st_mode) ? opendir(keep) : NULL;
    int rc = 0;
    for (const struct dirent *entry; entries && rc == 0 && (entry = readdir(entries));) {
        if (strncmp(entry->d_name, "step-", 5) != 0)
            continue;
        rc = file_join(path, sizeof path, keep, entry->d_name);
        if (rc == 0 && lstat(path, &status) == 0 && S_ISDIR(status.st_mode))
            rc = take(user, path);
    }
    if (entries)
        closedir(entries);
    return rc;
}

struct look {
    state_view *view;
    state_found_run *run;
    int (*take_slabs)(void *user, const manifest_slabs *slabs);
    void *user;
};

/* Looks at the record of a run or of a kept commit. */
static int look_at_record(struct look *self, const char *path)
{
    int rc = state_view_open(self->view, path, false);
    const manifest *record = &self->view->record;
    bool is_there = rc == 0 && self->view->has_record;
    if (is_there) {
        rc = count_slabs(&record->slabs, self->run);
        if (rc == 0 && self->take_slabs)
            rc = self->take_slabs(self->user, &record->slabs);
        if (rc == 0 && self->take_slabs && record->leftover.drive_count > 0)
            rc = self->take_slabs(self->user, &record->leftover);
    }
    return rc < 0 ? rc : is_there;
}

static int look_at_kept(void *user, const char *path)
{
    struct look *self = user;
    int there = look_at_record(self, path);
    bool is_whole = there > 0 && self->view->record.state == MANIFEST_COMMITTED;
    self->run->kept_count += is_whole;
    state_view_close(self->view);
    return there == -ENOMEM ? there : 0; /* a damaged one is not counted */
}

static const char *name_state(const state_view *view, int there)
{
    if (there == 0)
        return "damaged";
    return view->record.state == MANIFEST_COMMITTED ? "committed"
           : view->record.state == MANIFEST_RUNNING ? "running"
                                                    : "begun";
}

int state_look_at_run(const char *path, state_view *view, state_found_run *out,
                      int (*take_slabs)(void *user, const manifest_slabs *slabs), void *user)
{
    struct look look = {.view = view, .run = out, .take_slabs = take_slabs, .user = user};
    char state[FILE_PATH_BYTES];
    uint64_t ignored;
    *out = (state_found_run){.state = "empty"};
    snprintf(out->path, sizeof out->path, "%s", path);
    TRY(file_join(state, sizeof state, path, "state"));
    int there = look_at_record(&look, path);
    if (there >= 0) {
        out->state = name_state(view, there);
        out->step = view->record.point.step;
    }
    state_view_close(view);
    if (there < 0 && there != ERR_INPUT)
        return there;
    if (state_check_not_removed(state) < 0)
        out->state = "in removal";
    measure_tree(path, &ignored, &out->bytes);
    return state_each_kept(path, look_at_kept, &look);
}

bool state_is_run(const char *path)
{
    static const char *const names[] = {"state/manifest-0", "state/manifest-1", "state/lock",
                                        STATE_REMOVAL_NOTE};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char name[FILE_PATH_BYTES];
        struct stat status;
        if (file_join(name, sizeof name, path, names[i]) == 0 && lstat(name, &status) == 0)
            return true;
    }
    return false;
}

/* ---- slab directories ---- */

/* The directory's identity in *out; false if it does not exist. */
static bool identify(const char *path, struct place *out)
{
    struct stat status;
    if (stat(path, &status) != 0 || !S_ISDIR(status.st_mode))
        return false;
    *out = (struct place){.device = status.st_dev, .inode = status.st_ino};
    return true;
}

/* Notes the directories of slabs that a run names. */
static int note_named(void *user, const manifest_slabs *slabs)
{
    search *self = user;
    for (uint32_t r = 0; r < slabs->rank_count; r++)
        for (uint32_t d = 0; d < slabs->drive_count; d++) {
            char path[FILE_PATH_BYTES];
            struct place at;
            TRY(state_slab_of_rank(slabs, r, d, path));
            *strrchr(path, '/') = '\0';
            if (!identify(path, &at))
                continue;
            struct place *grown =
                mem_resize(self->named, self->named_count + 1, sizeof *grown, "slabs of runs");
            if (!grown)
                return -ENOMEM;
            self->named = grown;
            self->named[self->named_count++] = at;
        }
    return 0;
}

/* True for "sluice-<32 hex digits>" and then `end`. */
static bool is_slab_name(const char *name, const char *end)
{
    enum { PREFIX = 7 };
    if (strncmp(name, "sluice-", PREFIX) != 0)
        return false;
    for (int i = 0; i < 2 * SLAB_UUID_BYTES; i++)
        if (!isxdigit((unsigned char)name[PREFIX + i]))
            return false;
    return strcmp(name + PREFIX + 2 * SLAB_UUID_BYTES, end) == 0;
}

static int add_slabs(search *self, const char *path)
{
    state_found *out = self->out;
    uint64_t ignored;
    struct place at, other;
    /* Slabs of another user: their note cannot be read, so a run may own them. */
    if (!identify(path, &at) || access(path, R_OK | X_OK) != 0)
        return 0;
    for (uint32_t i = 0; i < out->slabs_count; i++)
        if (identify(out->slabs[i].path, &other) && other.device == at.device &&
            other.inode == at.inode)
            return 0;
    state_found_slabs *grown =
        mem_resize(out->slabs, (uint64_t)out->slabs_count + 1, sizeof *grown, "slab directories");
    if (!grown)
        return -ENOMEM;
    out->slabs = grown;
    state_found_slabs *to = &out->slabs[out->slabs_count++];
    memset(to, 0, sizeof *to);
    snprintf(to->path, sizeof to->path, "%s", path);
    measure_tree(path, &to->bytes, &ignored);
    return 0;
}

/* Calls `take` for each directory in `directory` that is no link. ERR_INPUT if `directory` cannot
 * be read. */
static int each_directory(search *self, const char *directory, unsigned depth,
                          int (*take)(search *self, const char *path, const char *name,
                                      unsigned depth))
{
    char path[FILE_PATH_BYTES];
    struct stat status;
    DIR *entries = opendir(directory);
    if (!entries)
        return file_cannot_look_into(directory);
    int rc = 0;
    for (const struct dirent *entry; rc == 0 && (entry = readdir(entries));) {
        const char *name = entry->d_name;
        if (name[0] == '.' || file_join(path, sizeof path, directory, name) < 0)
            continue;
        if (lstat(path, &status) == 0 && (S_ISDIR(status.st_mode) || S_ISLNK(status.st_mode)))
            rc = take(self, path, name, depth);
    }
    closedir(entries);
    return rc;
}

bool statei_is_link(const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0 && S_ISLNK(status.st_mode);
}

/* In "sluice-<uuid>.keep/step-<9 digits>": the slabs of one kept commit. In a drive: all. */
static int take_slabs(search *self, const char *path, const char *name, unsigned depth)
{
    if (statei_is_link(path))
        return 0;
    if (is_slab_name(name, ""))
        return add_slabs(self, path);
    bool holds_kept = is_slab_name(name, ".keep") || (depth == 1 && strncmp(name, "step-", 5) == 0);
    int rc = holds_kept && depth < 2 ? each_directory(self, path, depth + 1, take_slabs) : 0;
    return rc == ERR_INPUT ? 0 : rc; /* of another user, or removed meanwhile */
}

/* ---- the search ---- */

static int add_run(search *self, const char *path)
{
    state_found *out = self->out;
    struct place at, other;
    if (!identify(path, &at))
        return 0;
    for (uint32_t i = 0; i < out->run_count; i++)
        if (identify(out->runs[i].path, &other) && other.device == at.device &&
            other.inode == at.inode)
            return 0;
    state_found_run *grown =
        mem_resize(out->runs, (uint64_t)out->run_count + 1, sizeof *grown, "runs");
    if (!grown)
        return -ENOMEM;
    out->runs = grown;
    TRY(state_look_at_run(path, self->view, &out->runs[out->run_count], note_named, self));
    out->run_count++;
    return 0;
}

static int take_place(search *self, const char *path, const char *name, unsigned depth)
{
    if (state_is_run(path))
        return add_run(self, path);
    if (statei_is_link(path))
        return 0;
    if (is_slab_name(name, "") || is_slab_name(name, ".keep"))
        return take_slabs(self, path, name, 0);
    if (depth >= STATE_FIND_DEPTH)
        return 0;
    int rc = each_directory(self, path, depth + 1, take_place);
    return rc == ERR_INPUT ? 0 : rc; /* others' directories may not be readable */
}

/* Looks for slabs beside those that runs name. */
static int look_at_drives(search *self)
{
    for (uint32_t i = 0; i < self->out->run_count; i++) {
        char drive[FILE_PATH_BYTES];
        bool has_record = state_view_open(self->view, self->out->runs[i].path, false) == 0 &&
                          self->view->has_record;
        const manifest_slabs *slabs = &self->view->record.slabs;
        int rc = 0;
        for (uint32_t r = 0; rc == 0 && has_record && r < slabs->rank_count; r++)
            for (uint32_t d = 0; rc == 0 && d < slabs->drive_count; d++)
                if (state_drive_of_rank(slabs, r, d, drive) == 0 && access(drive, R_OK) == 0)
                    rc = each_directory(self, drive, 0, take_slabs);
        state_view_close(self->view);
        if (rc == -ENOMEM)
            return rc;
    }
    return 0;
}

/* Drops the slabs that a run names, in the list or by its note. */
static int drop_named(search *self)
{
    state_found *out = self->out;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < out->slabs_count; i++) {
        state_found_slabs *slabs = &out->slabs[i];
        struct place at;
        bool is_named = !identify(slabs->path, &at);
        for (uint64_t n = 0; n < self->named_count && !is_named; n++)
            is_named = self->named[n].device == at.device && self->named[n].inode == at.inode;
        int owned = is_named ? 1 : state_slabs_are_owned(slabs->path, slabs->owner);
        TRY(owned);
        if (!owned)
            out->slabs[kept++] = *slabs;
    }
    out->slabs_count = kept;
    return 0;
}

static int compare_runs(const void *a, const void *b)
{
    return strcmp(((const state_found_run *)a)->path, ((const state_found_run *)b)->path);
}

static int compare_slabs(const void *a, const void *b)
{
    return strcmp(((const state_found_slabs *)a)->path, ((const state_found_slabs *)b)->path);
}

static int search_all(search *self, const char *const *places, uint32_t place_count,
                      const char *const *drives, uint32_t drive_count)
{
    for (uint32_t i = 0; i < place_count; i++)
        TRY(state_is_run(places[i]) ? add_run(self, places[i])
                                    : each_directory(self, places[i], 1, take_place));
    for (uint32_t i = 0; i < drive_count; i++)
        TRY(each_directory(self, drives[i], 0, take_slabs));
    TRY(look_at_drives(self));
    return drop_named(self);
}

int state_find(const char *const *places, uint32_t place_count, const char *const *drives,
               uint32_t drive_count, state_found *out)
{
    search self = {.out = out};
    memset(out, 0, sizeof *out);
    self.view = mem_alloc(1, sizeof *self.view, "view of a run");
    int rc = self.view ? search_all(&self, places, place_count, drives, drive_count) : -ENOMEM;
    mem_free(self.named);
    mem_free(self.view);
    if (out->run_count > 0)
        qsort(out->runs, out->run_count, sizeof *out->runs, compare_runs);
    if (out->slabs_count > 0)
        qsort(out->slabs, out->slabs_count, sizeof *out->slabs, compare_slabs);
    return rc;
}

void state_found_fini(state_found *self)
{
    mem_free(self->runs);
    mem_free(self->slabs);
    memset(self, 0, sizeof *self);
}
