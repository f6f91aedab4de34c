/* See crash_image.h. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/state/crash_case.h"
#include "tests/state/crash_image.h"
#include "tests/unit.h"

enum { STREAM_TEAR = 530, SECTOR_BYTES = 512, METRICS = 4 };

static const char *const paths[CRASH_FILE_COUNT] = {"state/manifest-0", "state/manifest-1",
                                                    "state/manifest-0.new", "state/manifest-1.new",
                                                    "metrics.jsonl"};

static uint64_t inode_of(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 ? (uint64_t)status.st_ino : 0;
}

static void read_file(crash_file *self, const char *path)
{
    struct stat status;
    self->inode = self->size_bytes = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return;
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &status), 0);
    assert_true(status.st_size <= CRASH_FILE_BYTES);
    ssize_t got = pread(fd, self->data, CRASH_FILE_BYTES, 0);
    assert_true(got >= 0);
    close(fd);
    self->inode = (uint64_t)status.st_ino;
    self->size_bytes = (uint64_t)got;
}

void crash_files_read(crash_files *self, const char *name)
{
    for (int i = 0; i < CRASH_FILE_COUNT; i++)
        read_file(&self->files[i], fixture_path(name, paths[i]));
}

void crash_files_write(const crash_files *self, const char *name)
{
    for (int i = 0; i < CRASH_FILE_COUNT; i++) {
        const crash_file *file = &self->files[i];
        const char *path = fixture_path(name, paths[i]);
        if (!file->inode) {
            assert_true(unlink(path) == 0 || errno == ENOENT);
            continue;
        }
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        assert_true(fd >= 0);
        assert_int_equal(pwrite(fd, file->data, file->size_bytes, 0), file->size_bytes);
        close(fd);
    }
}

/* ---- what is durable ------------------------------------------------------------------------- */

static const crash_file *find_synced(const crash_disk *self, uint64_t inode)
{
    static const crash_file nothing;
    for (uint32_t i = 0; i < CRASH_SYNCED_COUNT; i++)
        if (inode && self->synced[i].inode == inode)
            return &self->synced[i];
    return &nothing;
}

static void note_content(crash_disk *self, const char *path)
{
    crash_file *kept = (crash_file *)find_synced(self, inode_of(path));
    if (!kept->inode)
        kept = &self->synced[self->next++ % CRASH_SYNCED_COUNT];
    read_file(kept, path);
}

void crash_disk_begin(crash_disk *self, const char *name)
{
    memset(self, 0, sizeof *self);
    for (int i = 0; i < CRASH_FILE_COUNT; i++) {
        const char *path = fixture_path(name, paths[i]);
        self->names[i] = inode_of(path);
        if (self->names[i])
            note_content(self, path);
    }
}

void crash_disk_synced(crash_disk *self, const char *name, int fd)
{
    struct stat status;
    assert_int_equal(fstat(fd, &status), 0);
    bool is_state = (uint64_t)status.st_ino == inode_of(fixture_path(name, "state"));
    for (int i = 0; i < CRASH_FILE_COUNT; i++) {
        const char *path = fixture_path(name, paths[i]);
        uint64_t inode = inode_of(path);
        bool is_itself = inode == (uint64_t)status.st_ino;
        if (is_itself)
            note_content(self, path);
        /* A new file's name goes with its first sync on the file systems in use, and nothing but
         * the metrics relies on it. */
        if ((is_state && i != METRICS) || (is_itself && i == METRICS))
            self->names[i] = inode;
    }
}

/* ---- what a loss leaves ---------------------------------------------------------------------- */

/* Sectors and length are those that were synced, or those of `now`. */
static bool tear_content(const crash_file *synced, crash_file *now, crash_draws *draws)
{
    uint64_t survivors = crash_draw_below(draws, 5); /* of four sectors */
    uint64_t before_bytes = synced->inode ? synced->size_bytes : 0, now_bytes = now->size_bytes;
    uint64_t size_bytes = crash_draw_below(draws, 2) ? now_bytes : before_bytes;
    if (before_bytes == now_bytes && memcmp(synced->data, now->data, now_bytes) == 0)
        return false;
    for (uint64_t at = 0; at < size_bytes; at += SECTOR_BYTES) {
        uint64_t end = at + SECTOR_BYTES < size_bytes ? at + SECTOR_BYTES : size_bytes;
        bool is_new = crash_draw_below(draws, 4) < survivors;
        for (uint64_t i = at; i < end; i++) {
            unsigned char old = i < before_bytes ? synced->data[i] : 0;
            unsigned char new = i < now_bytes ? now->data[i] : 0;
            now->data[i] = is_new ? new : old;
        }
    }
    now->size_bytes = size_bytes;
    return true;
}

/* Appended, or cut and appended to, since it was synced: what follows may be missing. */
static void tear_metrics(const crash_file *synced, crash_file *now, crash_draws *draws)
{
    uint64_t least = synced->inode ? synced->size_bytes : 0;
    bool is_longer =
        now->inode && now->size_bytes >= least && memcmp(now->data, synced->data, least) == 0;
    if (is_longer)
        now->size_bytes = least + crash_draw_below(draws, now->size_bytes - least + 1);
    else if (synced->inode && crash_draw_below(draws, 2))
        *now = *synced; /* the cut did not reach the drive */
}

bool crash_files_tear(const crash_disk *disk, crash_files *now, uint64_t seed)
{
    crash_draws draws = {.seed = seed, .stream = STREAM_TEAR};
    bool is_torn = false;
    for (int i = 0; i < METRICS; i++) {
        crash_file *file = &now->files[i];
        bool goes_back = disk->names[i] != file->inode && crash_draw_below(&draws, 2);
        if (goes_back) {
            is_torn = true;
            *file = *find_synced(disk, disk->names[i]);
        } else if (file->inode) {
            is_torn |= tear_content(find_synced(disk, file->inode), file, &draws);
        }
    }
    crash_file *metrics = &now->files[METRICS];
    tear_metrics(find_synced(disk, metrics->inode), metrics, &draws);
    return is_torn;
}
