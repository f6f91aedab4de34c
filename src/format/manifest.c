/* The two manifest slots: layout, writing, reading. See manifest.h; tiers/FORMAT.md has the table.
 *
 *   [ header 192 bytes ][ drive paths, each ended by NUL, padded to 8 ][ extents, 48 bytes each ]
 *
 * One thread. Writing allocates nothing, so a commit may happen while memory is sealed: checksum
 * and file are made piece by piece from where the parts lie. Reading allocates the extents and, for
 * a moment, the file. Nothing read from a file is used before its checksum is right, and no length
 * in it is believed even then. */
#include "format/manifest.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* For a hash state on the stack; its layout is stable since xxHash 0.8. */
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"

enum {
    MANIFEST_VERSION = 2,
    MANIFEST_VERSION_MIN = 1, /* without the state of the loss scaler: bytes 152 to 175 are 0 */
    SLOT_COUNT = 2,
    DRIVES_MAX = MANIFEST_DRIVES_MAX,
    REASON_BYTES = 160,
};

#define MANIFEST_MAGIC "SLUMANIF" /* 8 bytes, no NUL */

/* As stored, little-endian. */
struct slot_header {
    char magic[8];
    uint32_t version;
    uint32_t state;      /* enum manifest_state */
    uint64_t file_bytes; /* of the whole slot */
    uint64_t checksum;   /* XXH3-64 of the whole slot with this field 0 */
    uint64_t generation;
    uint8_t uuid[MANIFEST_UUID_BYTES];
    uint64_t fingerprint;
    uint64_t step;
    uint64_t window_count;
    uint64_t seed;
    uint64_t skipped_count;
    double loss_scale; /* IEEE binary64 */
    uint64_t tile_elems;
    uint64_t total_bytes;
    uint64_t stripe_bytes;
    uint64_t drives_bytes; /* of the paths, NULs and padding included */
    uint64_t extent_count;
    uint32_t drive_count;
    uint32_t reserved; /* 0 */
    uint64_t scale_iteration;
    int64_t scale_last_overflow;
    uint64_t scale_hysteresis_left;
    uint64_t reserved_end[2]; /* 0 */
};
typedef struct slot_header slot_header;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "stored structs are little-endian");
static_assert(sizeof(slot_header) == 192, "stored header");
static_assert(offsetof(slot_header, state) == 12, "stored header");
static_assert(offsetof(slot_header, file_bytes) == 16, "stored header");
static_assert(offsetof(slot_header, checksum) == 24, "stored header");
static_assert(offsetof(slot_header, generation) == 32, "stored header");
static_assert(offsetof(slot_header, uuid) == 40, "stored header");
static_assert(offsetof(slot_header, fingerprint) == 56, "stored header");
static_assert(offsetof(slot_header, loss_scale) == 96, "stored header");
static_assert(offsetof(slot_header, drives_bytes) == 128, "stored header");
static_assert(offsetof(slot_header, extent_count) == 136, "stored header");
static_assert(offsetof(slot_header, drive_count) == 144, "stored header");
static_assert(offsetof(slot_header, reserved) == 148, "stored header");
static_assert(offsetof(slot_header, scale_iteration) == 152, "stored header");
static_assert(offsetof(slot_header, scale_hysteresis_left) == 168, "stored header");
static_assert(offsetof(slot_header, reserved_end) == 176, "stored header");
/* Extents are written as they lie in memory. */
static_assert(sizeof(manifest_extent) == 48, "stored extent");
static_assert(offsetof(manifest_extent, tile) == 4, "stored extent");
static_assert(offsetof(manifest_extent, offset_bytes) == 8, "stored extent");
static_assert(offsetof(manifest_extent, size_bytes) == 16, "stored extent");
static_assert(offsetof(manifest_extent, elem_begin) == 24, "stored extent");
static_assert(offsetof(manifest_extent, elem_count) == 32, "stored extent");
static_assert(offsetof(manifest_extent, checksum) == 40, "stored extent");

void manifest_fini(manifest *self)
{
    mem_free(self->extents);
    self->extents = NULL;
    self->extent_count = 0;
}

static int slot_path(char path[PATH_MAX], const char *state_dir, unsigned slot)
{
    int length = snprintf(path, PATH_MAX, "%s/manifest-%u", state_dir, slot);
    if (length < 0 || length >= PATH_MAX)
        return err_errno(ENAMETOOLONG, "the run's state directory %s", state_dir);
    return 0;
}

/* ---- writing ---- */

/* The parts of a slot in file order, borrowed from the manifest. */
enum { PARTS_MAX = 1 + DRIVES_MAX + 1 + 1 };

struct slot_parts {
    struct {
        const void *data;
        uint64_t bytes;
    } parts[PARTS_MAX];
    int count;
};

static void add_part(struct slot_parts *self, const void *data, uint64_t bytes)
{
    self->parts[self->count].data = data;
    self->parts[self->count++].bytes = bytes;
}

static int collect_parts(const manifest *self, slot_header *header, struct slot_parts *out)
{
    static const char padding[8];
    if (self->state != MANIFEST_COMMITTED && self->state != MANIFEST_RUNNING)
        return err_set(-EINVAL, "a manifest in state %d cannot be written", (int)self->state);
    if (self->slabs.drive_count > DRIVES_MAX)
        return err_set(-EINVAL, "a manifest holds %d drives, not %u", DRIVES_MAX,
                       self->slabs.drive_count);
    uint64_t extents_bytes, drives_bytes = 0;
    TRY(size_mul(self->extent_count, sizeof(manifest_extent), &extents_bytes));
    add_part(out, header, sizeof *header);
    for (uint32_t i = 0; i < self->slabs.drive_count; i++) {
        uint64_t length = strnlen(self->slabs.drives[i], MANIFEST_TEXT_BYTES);
        if (length == 0 || length == MANIFEST_TEXT_BYTES)
            return err_set(-EINVAL, "the path of drive %u is %s", i, length ? "too long" : "empty");
        add_part(out, self->slabs.drives[i], length + 1);
        drives_bytes += length + 1;
    }
    uint64_t padded_bytes = size_round_up(drives_bytes, sizeof padding);
    add_part(out, padding, padded_bytes - drives_bytes);
    add_part(out, self->extents, extents_bytes);
    *header = (slot_header){
        .version = MANIFEST_VERSION,
        .state = (uint32_t)self->state,
        .generation = self->generation,
        .fingerprint = self->fingerprint,
        .step = self->step,
        .window_count = self->window_count,
        .seed = self->seed,
        .skipped_count = self->skipped_count,
        .loss_scale = self->loss_scale,
        .tile_elems = self->tile_elems,
        .total_bytes = self->total_bytes,
        .stripe_bytes = self->stripe_bytes,
        .drives_bytes = padded_bytes,
        .extent_count = self->extent_count,
        .drive_count = self->slabs.drive_count,
        .scale_iteration = self->scale_iteration,
        .scale_last_overflow = self->scale_last_overflow,
        .scale_hysteresis_left = self->scale_hysteresis_left,
    };
    memcpy(header->magic, MANIFEST_MAGIC, sizeof header->magic);
    memcpy(header->uuid, self->slabs.uuid, sizeof header->uuid);
    return size_add(sizeof *header + padded_bytes, extents_bytes, &header->file_bytes);
}

static uint64_t parts_checksum(const struct slot_parts *parts)
{
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (int i = 0; i < parts->count; i++)
        if (parts->parts[i].bytes > 0)
            XXH3_64bits_update(&state, parts->parts[i].data, parts->parts[i].bytes);
    return XXH3_64bits_digest(&state);
}

static int write_parts(int fd, const char *path, const struct slot_parts *parts)
{
    uint64_t offset = 0;
    for (int i = 0; i < parts->count; i++) {
        const char *data = parts->parts[i].data;
        uint64_t left = parts->parts[i].bytes;
        while (left > 0) {
            ssize_t put = pwrite(fd, data, left, (off_t)offset);
            if (put < 0 && errno == EINTR)
                continue;
            if (put <= 0)
                return err_errno(put < 0 ? errno : EIO, "cannot write the manifest %s at byte %llu",
                                 path, (unsigned long long)offset);
            data += put;
            left -= (uint64_t)put;
            offset += (uint64_t)put;
        }
    }
    if (ftruncate(fd, (off_t)offset) < 0)
        return err_errno(errno, "cannot set the length of the manifest %s", path);
    if (fsync(fd) < 0)
        return err_errno(errno, "cannot make the manifest %s durable", path);
    return 0;
}

static int sync_directory(const char *state_dir)
{
    int fd = open(state_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(errno, "cannot open the state directory %s", state_dir);
    int rc = 0;
    if (fsync(fd) < 0)
        rc = err_errno(errno, "cannot make the state directory %s durable", state_dir);
    close(fd);
    return rc;
}

int manifest_write(const char *state_dir, const manifest *self)
{
    slot_header header;
    struct slot_parts parts = {.count = 0};
    char path[PATH_MAX];
    TRY(collect_parts(self, &header, &parts));
    header.checksum = parts_checksum(&parts);
    TRY(slot_path(path, state_dir, (unsigned)(self->generation % SLOT_COUNT)));
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_errno(errno, "cannot open the manifest %s for writing", path);
    int rc = write_parts(fd, path, &parts);
    if (close(fd) < 0 && rc == 0)
        rc = err_errno(errno, "cannot close the manifest %s", path);
    if (rc < 0)
        return rc;
    return sync_directory(state_dir);
}

/* ---- reading ---- */

/* What a look at one slot gave. */
struct slot_view {
    enum { SLOT_ABSENT, SLOT_DAMAGED, SLOT_VALID } outcome;
    char reason[REASON_BYTES]; /* where damaged */
    char *bytes;               /* where valid: the whole slot, from mem_alloc */
};

__attribute__((format(printf, 2, 3))) static int damaged(struct slot_view *view, const char *format,
                                                         ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(view->reason, sizeof view->reason, format, args);
    va_end(args);
    view->outcome = SLOT_DAMAGED;
    return 0;
}

/* Reads to the end of the file or `bytes`; the count read, or -errno without a text. */
static int64_t read_fully(int fd, char *target, uint64_t bytes)
{
    uint64_t done = 0;
    while (done < bytes) {
        ssize_t got = pread(fd, target + done, bytes - done, (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            break;
        done += (uint64_t)got;
    }
    return (int64_t)done;
}

/* Lengths of a header against the length of the file: all of them must meet exactly. */
static bool lengths_agree(const slot_header *header, uint64_t file_bytes)
{
    uint64_t rest = file_bytes - sizeof *header;
    return header->file_bytes == file_bytes && header->drive_count <= DRIVES_MAX &&
           header->drives_bytes % 8 == 0 && header->drives_bytes <= rest &&
           (rest - header->drives_bytes) % sizeof(manifest_extent) == 0 &&
           (rest - header->drives_bytes) / sizeof(manifest_extent) == header->extent_count;
}

/* The path that begins at text[*at], moved past its NUL; NULL where there is none within bounds. */
static const char *next_drive(const char *text, uint64_t text_bytes, uint64_t *at)
{
    const char *path = text + *at;
    uint64_t left = text_bytes - *at;
    uint64_t length = strnlen(path, left);
    if (length == left || length == 0 || length >= MANIFEST_TEXT_BYTES)
        return NULL;
    *at += length + 1;
    return path;
}

static bool drives_agree(const slot_header *header, const char *text)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < header->drive_count; i++)
        if (!next_drive(text, header->drives_bytes, &at))
            return false;
    return size_round_up(at, 8) == header->drives_bytes;
}

static bool values_agree(const slot_header *header, unsigned slot)
{
    uint64_t unused = header->reserved | header->reserved_end[0] | header->reserved_end[1];
    if (header->version == 1)
        unused |= header->scale_iteration | (uint64_t)header->scale_last_overflow |
                  header->scale_hysteresis_left;
    return unused == 0 &&
           (header->state == MANIFEST_COMMITTED || header->state == MANIFEST_RUNNING) &&
           header->generation % SLOT_COUNT == slot;
}

/* Fills view->bytes from an open slot. Sets the outcome; negative only where the machine failed. */
static int examine_open(int fd, unsigned slot, struct slot_view *view)
{
    struct stat info;
    if (fstat(fd, &info) < 0)
        return damaged(view, "it cannot be examined (%s)", strerror(errno));
    if (!S_ISREG(info.st_mode))
        return damaged(view, "it is not a regular file");
    uint64_t file_bytes = (uint64_t)info.st_size;
    slot_header header;
    if (file_bytes < sizeof header)
        return damaged(view, "it has %llu bytes, fewer than its header's %zu",
                       (unsigned long long)file_bytes, sizeof header);
    int64_t got = read_fully(fd, (char *)&header, sizeof header);
    if (got != sizeof header)
        return damaged(view, "it cannot be read (%s)",
                       got < 0 ? strerror((int)-got) : "it ends early");
    if (memcmp(header.magic, MANIFEST_MAGIC, sizeof header.magic) != 0)
        return damaged(view, "it does not begin with %s", MANIFEST_MAGIC);
    if (header.version < MANIFEST_VERSION_MIN || header.version > MANIFEST_VERSION)
        return damaged(view, "it has version %u and this program reads versions %d to %d",
                       header.version, MANIFEST_VERSION_MIN, MANIFEST_VERSION);
    if (!lengths_agree(&header, file_bytes))
        return damaged(view, "its lengths do not match its %llu bytes",
                       (unsigned long long)file_bytes);
    view->bytes = mem_alloc(file_bytes, 1, "manifest slot");
    if (!view->bytes)
        return -ENOMEM;
    got = read_fully(fd, view->bytes, file_bytes);
    if (got < 0 || (uint64_t)got != file_bytes)
        return damaged(view, "it cannot be read (%s)",
                       got < 0 ? strerror((int)-got) : "it ends early");
    memset(view->bytes + offsetof(slot_header, checksum), 0, sizeof header.checksum);
    uint64_t checksum = XXH3_64bits(view->bytes, file_bytes);
    if (checksum != header.checksum)
        return damaged(view, "its checksum is %016llx and should be %016llx",
                       (unsigned long long)checksum, (unsigned long long)header.checksum);
    if (!values_agree(&header, slot) || !drives_agree(&header, view->bytes + sizeof header))
        return damaged(view, "its checksum is right but its values are not possible");
    view->outcome = SLOT_VALID;
    return 0;
}

static int examine_slot(const char *state_dir, unsigned slot, struct slot_view *view)
{
    char path[PATH_MAX];
    TRY(slot_path(path, state_dir, slot));
    *view = (struct slot_view){.outcome = SLOT_ABSENT};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0) /* not the slot's fault: going back a commit for it would lose one */
        return err_errno(errno, "cannot open the manifest %s", path);
    int rc = examine_open(fd, slot, view);
    close(fd);
    if (rc < 0 || view->outcome != SLOT_VALID) {
        mem_free(view->bytes);
        view->bytes = NULL;
    }
    return rc;
}

/* From the checked bytes of a slot. */
static int decode(const char *bytes, manifest *out)
{
    slot_header header;
    memcpy(&header, bytes, sizeof header);
    out->extents = mem_alloc(header.extent_count, sizeof *out->extents, "manifest extents");
    if (!out->extents)
        return -ENOMEM;
    out->state = (enum manifest_state)header.state;
    out->generation = header.generation;
    memcpy(out->slabs.uuid, header.uuid, sizeof out->slabs.uuid);
    out->fingerprint = header.fingerprint;
    out->step = header.step;
    out->window_count = header.window_count;
    out->seed = header.seed;
    out->skipped_count = header.skipped_count;
    out->loss_scale = header.loss_scale;
    out->scale_iteration = header.scale_iteration;
    out->scale_last_overflow = header.version == 1 ? -1 : header.scale_last_overflow;
    out->scale_hysteresis_left = header.version == 1 ? 1 : header.scale_hysteresis_left;
    out->tile_elems = header.tile_elems;
    out->total_bytes = header.total_bytes;
    out->stripe_bytes = header.stripe_bytes;
    out->slabs.drive_count = header.drive_count;
    out->extent_count = header.extent_count;
    const char *text = bytes + sizeof header;
    uint64_t at = 0;
    for (uint32_t i = 0; i < header.drive_count; i++) {
        const char *path = next_drive(text, header.drives_bytes, &at);
        memcpy(out->slabs.drives[i], path, strlen(path) + 1);
    }
    memcpy(out->extents, text + header.drives_bytes, header.extent_count * sizeof *out->extents);
    return 0;
}

static uint64_t view_generation(const struct slot_view *view)
{
    uint64_t generation;
    memcpy(&generation, view->bytes + offsetof(slot_header, generation), sizeof generation);
    return generation;
}

/* The newest valid slot, or -1. Warns where a damaged slot was passed over. */
static int newest_slot(const char *state_dir, const struct slot_view views[SLOT_COUNT])
{
    int newest = -1;
    for (int slot = 0; slot < SLOT_COUNT; slot++)
        if (views[slot].outcome == SLOT_VALID &&
            (newest < 0 || view_generation(&views[slot]) > view_generation(&views[newest])))
            newest = slot;
    if (newest >= 0 && views[1 - newest].outcome == SLOT_DAMAGED)
        log_warn(
            "%s/manifest-%d does not count: %s; the commit of manifest-%d (generation %llu) is "
            "used",
            state_dir, 1 - newest, views[1 - newest].reason, newest,
            (unsigned long long)view_generation(&views[newest]));
    return newest;
}

static const char *view_text(const struct slot_view *view)
{
    return view->outcome == SLOT_ABSENT ? "it is missing" : view->reason;
}

int manifest_read(const char *state_dir, manifest *out, int *found)
{
    struct slot_view views[SLOT_COUNT] = {{.outcome = SLOT_ABSENT}, {.outcome = SLOT_ABSENT}};
    int rc = 0;
    *found = 0;
    memset(out, 0, sizeof *out);
    for (unsigned slot = 0; slot < SLOT_COUNT; slot++)
        TRY_GOTO(rc, examine_slot(state_dir, slot, &views[slot]), done);
    int newest = newest_slot(state_dir, views);
    if (newest >= 0) {
        TRY_GOTO(rc, decode(views[newest].bytes, out), done);
        *found = rc = 1;
    } else if (views[0].outcome != SLOT_ABSENT || views[1].outcome != SLOT_ABSENT) {
        rc = err_set(ERR_CORRUPT,
                     "no manifest in %s is valid, so its state cannot be resumed: manifest-0: %s; "
                     "manifest-1: %s",
                     state_dir, view_text(&views[0]), view_text(&views[1]));
    }
done:
    for (unsigned slot = 0; slot < SLOT_COUNT; slot++)
        mem_free(views[slot].bytes);
    return rc;
}
