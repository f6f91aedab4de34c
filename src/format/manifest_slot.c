/* The bytes of one slot. See manifest.h; tiers/FORMAT.md has the tables.
 *
 *   [ header        ]   232 bytes
 *   [ slab directories ][ directories of slabs to remove ]   each ended by NUL, padded to 8
 *   [ ranks of the run ][ ranks of slabs to remove ]         68 bytes each, padded to 8
 *   [ identity      ]   padded to 8
 *   [ extents       ]   56 bytes each
 *
 * One version is read and written. The first 32 bytes mean the same in every version, so that a
 * program can tell a slot of another version from a damaged one.
 *
 * Nothing read is used before the checksum is right, and no length in it is believed even then;
 * each byte is either a value or must be 0. One thread per call. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* For a hash state on the stack. Its layout is stable since xxHash 0.8. */
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "base/mem.h"
#include "base/size.h"
#include "format/manifest_internal.h"

/* Returns the value of the placeholder at the start of `text`, and its length; NULL: there is
 * none. */
static const char *placeholder(const char *text, const char *const values[3], size_t *length)
{
    static const char *const names[3] = {"{rank}", "{local_rank}", "{host}"};
    for (int i = 0; i < 3; i++) {
        *length = strlen(names[i]);
        if (strncmp(text, names[i], *length) == 0)
            return values[i];
    }
    return NULL;
}

bool manifest_expand_path(const char *path, uint32_t rank, uint32_t local_rank, const char *host,
                          char *out, uint64_t out_bytes)
{
    char rank_text[16], local_text[16];
    snprintf(rank_text, sizeof rank_text, "%u", rank);
    snprintf(local_text, sizeof local_text, "%u", local_rank);
    const char *const values[3] = {rank_text, local_text, host};
    uint64_t used = 0;
    if (out_bytes == 0)
        return false;
    while (*path) {
        size_t length;
        const char *value = placeholder(path, values, &length);
        size_t bytes = value ? strlen(value) : 1;
        if (used + bytes >= out_bytes)
            return false;
        memcpy(out + used, value ? value : path, bytes);
        used += bytes;
        path += value ? length : 1;
    }
    out[used] = '\0';
    return true;
}

const char *manifest_uuid_text(const manifest_slabs *slabs, char text[MANIFEST_UUID_TEXT_BYTES])
{
    for (int i = 0; i < MANIFEST_UUID_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", slabs->uuid[i]);
    return text;
}

void manifest_fini(manifest *self)
{
    mem_free(self->extents);
    self->extents = NULL;
    self->extent_count = 0;
}

/* ---- from a record to bytes ---- */

static void add_part(manifesti_parts *self, const void *data, uint64_t bytes)
{
    self->parts[self->count++] = (manifesti_part){data, bytes};
}

static uint64_t add_padding(manifesti_parts *self, uint64_t bytes)
{
    static const char zeros[MANIFESTI_PAD];
    uint64_t padded_bytes = size_round_up(bytes, MANIFESTI_PAD);
    add_part(self, zeros, padded_bytes - bytes);
    return padded_bytes;
}

static uint64_t add_slabs(manifesti_parts *self, const manifest_slabs *slabs)
{
    uint64_t bytes = 0;
    for (uint32_t d = 0; d < slabs->drive_count; d++) {
        uint64_t length = strlen(slabs->drives[d]) + 1;
        add_part(self, slabs->drives[d], length);
        bytes += length;
    }
    return add_padding(self, bytes);
}

/* Returns the bytes of the entries of `count` ranks, padding included. */
static uint64_t ranks_bytes(uint32_t count)
{
    return size_round_up((uint64_t)count * sizeof(manifest_rank), MANIFESTI_PAD);
}

static uint64_t add_ranks(manifesti_parts *self, const manifest_slabs *slabs)
{
    static const manifest_rank unnoted;
    uint32_t count = manifesti_ranks(slabs->rank_count);
    uint64_t bytes = (uint64_t)count * sizeof(manifest_rank);
    add_part(self, slabs->rank_count ? slabs->ranks : &unnoted, bytes);
    return add_padding(self, bytes);
}

static uint64_t parts_checksum(const manifesti_parts *self)
{
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (int i = 0; i < self->count; i++)
        if (self->parts[i].bytes > 0)
            XXH3_64bits_update(&state, self->parts[i].data, self->parts[i].bytes);
    return XXH3_64bits_digest(&state);
}

int manifesti_collect(const manifest *self, manifesti_parts *out)
{
    manifesti_header *header = &out->header;
    *header = (manifesti_header){
        .magic = {'S', 'L', 'U', 'M', 'A', 'N', 'I', 'F'},
        .version = MANIFESTI_VERSION,
        .state = (uint32_t)self->state,
        .generation = self->generation,
        .fingerprint = self->fingerprint,
        .step = self->point.step,
        .window_count = self->point.window_count,
        .seed = self->point.seed,
        .skipped_count = self->point.skipped_count,
        .loss_scale = self->point.loss_scale,
        .tile_elems = self->tile_elems,
        .total_bytes = self->total_bytes,
        .stripe_bytes = self->stripe_bytes,
        .extent_count = self->extent_count,
        .drive_count = self->slabs.drive_count,
        .state_streams = self->state_streams,
        .scale_iteration = self->point.scale_iteration,
        .scale_last_overflow = self->point.scale_last_overflow,
        .scale_hysteresis_left = self->point.scale_hysteresis_left,
        .leftover_count = self->leftover.drive_count,
        .world_size = manifesti_ranks(self->world_size),
        .zero_stage = self->zero_stage,
        .is_replicated = self->is_replicated,
    };
    memcpy(header->uuid, self->slabs.uuid, sizeof header->uuid);
    if (self->leftover.drive_count) {
        memcpy(header->leftover_uuid, self->leftover.uuid, sizeof header->leftover_uuid);
        header->leftover_rank_count = manifesti_ranks(self->leftover.rank_count);
    }
    out->count = 0;
    add_part(out, header, sizeof *header);
    header->drives_bytes = add_slabs(out, &self->slabs);
    header->leftover_bytes = add_slabs(out, &self->leftover);
    uint64_t both_bytes = add_ranks(out, &self->slabs);
    if (self->leftover.drive_count)
        both_bytes += add_ranks(out, &self->leftover);
    uint64_t identity_bytes = strlen(self->identity), extents_bytes;
    add_part(out, self->identity, identity_bytes);
    header->identity_bytes = add_padding(out, identity_bytes);
    TRY(size_mul(self->extent_count, sizeof(manifest_extent), &extents_bytes));
    add_part(out, self->extents, extents_bytes);
    TRY(size_add(sizeof *header + header->drives_bytes + header->leftover_bytes + both_bytes +
                     header->identity_bytes,
                 extents_bytes, &header->file_bytes));
    header->checksum = parts_checksum(out); /* the field is 0 until here */
    return 0;
}

/* ---- from bytes to a record ---- */

/* True if the lengths of all parts add up to the length of the file. */
static bool lengths_agree(const manifesti_header *header, uint64_t file_bytes)
{
    const uint64_t texts[] = {header->drives_bytes, header->leftover_bytes,
                              ranks_bytes(header->world_size),
                              ranks_bytes(header->leftover_rank_count), header->identity_bytes};
    uint64_t rest = file_bytes - sizeof *header;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (texts[i] > rest || texts[i] % MANIFESTI_PAD != 0)
            return false;
        rest -= texts[i];
    }
    return rest % sizeof(manifest_extent) == 0 &&
           rest / sizeof(manifest_extent) == header->extent_count;
}

bool manifesti_read_header(const void *bytes, uint64_t size_bytes, uint64_t file_bytes,
                           manifesti_header *out, manifesti_reason *reason)
{
    static const char zeros[sizeof out->magic];
    *out = (manifesti_header){.version = 0};
    if (size_bytes < MANIFESTI_PREFIX_BYTES)
        return manifesti_wrong(reason, "it has %" PRIu64 " bytes, fewer than a header", size_bytes);
    memcpy(out, bytes, size_min(size_bytes, sizeof *out));
    if (memcmp(out->magic, zeros, sizeof zeros) == 0)
        return manifesti_wrong(reason, "it begins with zeros, as after a write that failed");
    if (memcmp(out->magic, MANIFESTI_MAGIC, sizeof out->magic) != 0)
        return manifesti_wrong(reason, "it does not begin with %s", MANIFESTI_MAGIC);
    if (out->version == MANIFESTI_VERSION && size_bytes < sizeof *out)
        return manifesti_wrong(reason, "it has %" PRIu64 " bytes, fewer than a header", size_bytes);
    if (out->file_bytes != file_bytes || file_bytes > MANIFESTI_FILE_MAX)
        return manifesti_wrong(reason,
                               "its lengths do not match its %" PRIu64 " bytes (%" PRIu64 " said)",
                               file_bytes, out->file_bytes);
    if (out->version == 0)
        return manifesti_wrong(reason, "it has version 0, which there never was");
    if (out->version != MANIFESTI_VERSION)
        return true;
    if (!lengths_agree(out, file_bytes))
        return manifesti_wrong(reason, "its lengths do not match its %" PRIu64 " bytes",
                               file_bytes);
    return true;
}

static uint64_t bytes_checksum(const unsigned char *bytes, uint64_t size_bytes)
{
    static const char zeros[sizeof(uint64_t)];
    const uint64_t before = offsetof(manifesti_header, checksum), after = before + sizeof zeros;
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    XXH3_64bits_update(&state, bytes, before);
    XXH3_64bits_update(&state, zeros, sizeof zeros);
    XXH3_64bits_update(&state, bytes + after, size_bytes - after);
    return XXH3_64bits_digest(&state);
}

/* True if fields without a meaning are 0: the reserved one, and those of slabs to remove if there
 * are none. */
static bool unused_is_zero(const manifesti_header *header)
{
    uint64_t unused = header->reserved;
    if (header->leftover_count == 0)
        for (int i = 0; i < MANIFEST_UUID_BYTES; i++)
            unused |= header->leftover_uuid[i] | header->leftover_rank_count;
    return unused == 0 && header->is_replicated <= 1;
}

static bool is_padding(const char *text, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        if (text[i] != '\0')
            return false;
    return bytes < MANIFESTI_PAD;
}

/* Copies `count` paths. Returns false unless `bytes` are exactly these paths and padding. */
static bool read_slabs(const char *text, uint64_t bytes, uint32_t count, manifest_slabs *out)
{
    if (count > DRIVES_MAX)
        return false;
    uint64_t at = 0;
    for (uint32_t d = 0; d < count; d++) {
        uint64_t length = strnlen(text + at, bytes - at);
        if (length == 0 || length == bytes - at || length >= MANIFEST_TEXT_BYTES)
            return false;
        memcpy(out->drives[d], text + at, length + 1);
        at += length + 1;
    }
    out->drive_count = count;
    return is_padding(text + at, bytes - at);
}

/* Copies the entries of `count` ranks. Returns false unless `text` is exactly these entries and
 * padding. */
static bool read_ranks(const char *text, uint32_t count, manifest_slabs *out)
{
    if (count > MANIFEST_RANKS_MAX)
        return false;
    uint64_t bytes = (uint64_t)count * sizeof(manifest_rank);
    memcpy(out->ranks, text, bytes);
    out->rank_count = count;
    return is_padding(text + bytes, ranks_bytes(count) - bytes);
}

/* Reads the ranks of the run and those of the slabs to remove. They follow the paths of both. */
static bool read_both_ranks(const char *text, const manifesti_header *header, manifest *out)
{
    return header->world_size > 0 &&
           (header->leftover_rank_count > 0) == (header->leftover_count > 0) &&
           read_ranks(text, header->world_size, &out->slabs) &&
           read_ranks(text + ranks_bytes(header->world_size), header->leftover_rank_count,
                      &out->leftover);
}

static bool read_identity(const char *text, uint64_t bytes, manifest *out)
{
    uint64_t length = strnlen(text, bytes);
    if (length >= MANIFEST_TEXT_BYTES)
        return false;
    memcpy(out->identity, text, length);
    return is_padding(text + length, bytes - length);
}

static void read_values(const manifesti_header *header, manifest *out)
{
    /* manifesti_is_possible refuses a state that does not exist. */
    out->state = header->state <= INT32_MAX ? (enum manifest_state)header->state : 0;
    out->generation = header->generation;
    memcpy(out->slabs.uuid, header->uuid, sizeof out->slabs.uuid);
    memcpy(out->leftover.uuid, header->leftover_uuid, sizeof out->leftover.uuid);
    out->fingerprint = header->fingerprint;
    out->point.step = header->step;
    out->point.window_count = header->window_count;
    out->point.seed = header->seed;
    out->point.skipped_count = header->skipped_count;
    out->point.loss_scale = header->loss_scale;
    out->point.scale_iteration = header->scale_iteration;
    out->point.scale_last_overflow = header->scale_last_overflow;
    out->point.scale_hysteresis_left = header->scale_hysteresis_left;
    out->tile_elems = header->tile_elems;
    out->total_bytes = header->total_bytes;
    out->stripe_bytes = header->stripe_bytes;
    out->state_streams = header->state_streams;
    out->world_size = header->world_size;
    out->zero_stage = header->zero_stage;
    out->is_replicated = header->is_replicated;
}

/* Reads the last part. Returns -ENOMEM if there is no memory. */
static int read_extents(const char *text, const manifesti_header *header, manifest *out)
{
    out->extents = mem_alloc(header->extent_count, sizeof *out->extents, "manifest extents");
    if (!out->extents)
        return -ENOMEM;
    out->extent_count = header->extent_count;
    if (out->extent_count)
        memcpy(out->extents, text, out->extent_count * sizeof *out->extents);
    return 0;
}

/* Reads all parts after a header whose lengths add up. Returns 1, 0 or -ENOMEM. */
static int read_parts(const unsigned char *bytes, const manifesti_header *header, manifest *out,
                      manifesti_reason *reason)
{
    const char *text = (const char *)bytes + sizeof *header;
    if (!read_slabs(text, header->drives_bytes, header->drive_count, &out->slabs))
        return manifesti_wrong(reason, "the paths of its %" PRIu32 " drives are not whole",
                               header->drive_count);
    text += header->drives_bytes;
    if (!read_slabs(text, header->leftover_bytes, header->leftover_count, &out->leftover))
        return manifesti_wrong(reason, "the paths of its %" PRIu32 " leftover slabs are not whole",
                               header->leftover_count);
    text += header->leftover_bytes;
    if (!read_both_ranks(text, header, out))
        return manifesti_wrong(
            reason, "its %" PRIu32 " ranks and the %" PRIu32 " of its leftover slabs are not whole",
            header->world_size, header->leftover_rank_count);
    text += ranks_bytes(header->world_size) + ranks_bytes(header->leftover_rank_count);
    if (!read_identity(text, header->identity_bytes, out))
        return manifesti_wrong(reason, "its identity text is not whole");
    text += header->identity_bytes;
    TRY(read_extents(text, header, out));
    return 1;
}

static int decode(const unsigned char *bytes, uint64_t size_bytes, unsigned slot, manifest *out,
                  manifesti_reason *reason)
{
    manifesti_header header;
    if (!manifesti_read_header(bytes, size_bytes, size_bytes, &header, reason))
        return 0;
    uint64_t checksum = bytes_checksum(bytes, size_bytes);
    if (checksum != header.checksum)
        return manifesti_wrong(reason, "its checksum is %016" PRIx64 " and should be %016" PRIx64,
                               checksum, header.checksum);
    if (header.version != MANIFESTI_VERSION) {
        reason->other_version = header.version;
        return manifesti_wrong(reason,
                               "it has version %" PRIu32 " and this program reads version %d alone",
                               header.version, MANIFESTI_VERSION);
    }
    if (!unused_is_zero(&header))
        return manifesti_wrong(reason, "bytes without a meaning are not 0");
    if (header.generation % MANIFESTI_SLOTS != slot)
        return manifesti_wrong(reason, "generation %" PRIu64 " belongs into manifest-%d",
                               header.generation, (int)(header.generation % MANIFESTI_SLOTS));
    read_values(&header, out);
    int rc = read_parts(bytes, &header, out, reason);
    if (rc <= 0)
        return rc;
    if (!manifesti_is_possible(out, reason))
        return 0;
    return manifesti_is_apart(out, reason);
}

int manifesti_decode(const void *bytes, uint64_t size_bytes, unsigned slot, manifest *out,
                     manifesti_reason *reason)
{
    memset(out, 0, sizeof *out);
    *reason = (manifesti_reason){.other_version = 0};
    int rc = decode(bytes, size_bytes, slot, out, reason);
    if (rc <= 0) {
        manifest_fini(out);
        memset(out, 0, sizeof *out);
    }
    return rc;
}

int manifest_decode(const void *bytes, uint64_t size_bytes, unsigned slot, manifest *out)
{
    manifesti_reason reason;
    int rc = manifesti_decode(bytes, size_bytes, slot, out, &reason);
    if (rc == 0)
        return err_set(ERR_CORRUPT, "the manifest slot is damaged: %s", reason.text);
    return rc < 0 ? rc : 0;
}
