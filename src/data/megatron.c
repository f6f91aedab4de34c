/* The index of Megatron's token files, NAME.idx beside NAME.bin. See corpus.h.
 *
 *   offset        bytes  field
 *   0             9      "MMIDIDX\0\0"
 *   9             8      version, 1
 *   17            1      type of the tokens (enum below)
 *   18            8      S, sequences
 *   26            8      D, entries of the list of documents
 *   34            4 S    length of each sequence in tokens, int32
 *   34 + 4 S      8 S    offset of each sequence in the .bin in bytes, int64
 *   34 + 12 S     8 D    first sequence of each document, int64; the writer may add an entry of S,
 *                        which ends the last document
 *   34 + 12S + 8D S      the mode of each sequence, int8, only in multimodal files
 *
 * Megatron writes sequences one after another, so the whole .bin is the stream of all documents in
 * their order. This is checked here once, entry by entry; afterwards the index is used only to find
 * a document. It is read in pieces, because an index may have gigabytes. One thread.
 *
 * Documents consist of whole sequences. The first document begins with the first sequence, whatever
 * the list says, and the last document ends with the last sequence. Source:
 * megatron/core/datasets/indexed_dataset.py of Megatron-LM. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/size.h"
#include "data/data_internal.h"

enum {
    MAGIC_BYTES = 9,
    VERSION_AT = 9,
    TYPE_AT = 17,
    SEQUENCE_COUNT_AT = 18,
    DOCUMENT_COUNT_AT = 26,
    HEADER_BYTES = 34,
    PIECE_ENTRIES = 8192,
};

#define MAGIC "MMIDIDX\0" /* 9 bytes with its terminating NUL */

static const struct {
    const char *name;
    datai_type type; /* bytes 0: not a type of tokens */
} stored_types[] = {
    {"", {0}},
    {"uint8", {.bytes = 1}},
    {"int8", {.bytes = 1, .is_signed = true}},
    {"int16", {.bytes = 2, .is_signed = true}},
    {"int32", {.bytes = 4, .is_signed = true}},
    {"int64", {.bytes = 8, .is_signed = true}},
    {"float64", {0}},
    {"float32", {0}},
    {"uint16", {.bytes = 2}},
};
enum { STORED_TYPE_COUNT = sizeof stored_types / sizeof stored_types[0] };

/* An open index, and the piece of it that is being read. */
struct index {
    const char *path;
    int fd;
    uint64_t bytes;
    uint64_t sequence_count, document_count;
    int32_t lengths[PIECE_ENTRIES];
    int64_t places[PIECE_ENTRIES]; /* of sequences, or of documents */
};

bool datai_megatron_is_index(const char *path)
{
    char begin[MAGIC_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    bool is = pread(fd, begin, sizeof begin, 0) == (ssize_t)sizeof begin &&
              memcmp(begin, MAGIC, sizeof begin) == 0;
    close(fd);
    return is;
}

static uint64_t u64_at(const unsigned char *bytes)
{
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
    return value;
}

/* True if the file's length agrees with its counts. Counts must not be used before this check. */
static bool length_agrees(const struct index *self, uint64_t mode_bytes)
{
    uint64_t rest = self->bytes - HEADER_BYTES, each = 12 + mode_bytes;
    if (self->sequence_count > rest / each)
        return false;
    rest -= self->sequence_count * each;
    return rest % 8 == 0 && rest / 8 == self->document_count;
}

static int read_header(struct index *self, datai_type *type)
{
    unsigned char header[HEADER_BYTES];
    if (self->bytes < HEADER_BYTES)
        return err_set(ERR_INPUT,
                       "the index %s has %llu bytes, fewer than the %d of its header; it is "
                       "truncated",
                       self->path, (unsigned long long)self->bytes, HEADER_BYTES);
    TRY(datai_pread(self->fd, self->path, 0, sizeof header, header));
    if (memcmp(header, MAGIC, MAGIC_BYTES) != 0)
        return err_set(
            ERR_INPUT, "the index %s does not begin as Megatron's does (MMIDIDX)%s", self->path,
            memcmp(header, "TNTIDX", 6) == 0 ? "; its oldest format (TNTIDX) is not supported"
                                             : "");
    uint64_t version = u64_at(header + VERSION_AT);
    if (version == (uint64_t)1 << 56)
        return err_set(ERR_INPUT, "the index %s is in big-endian order; write it little-endian",
                       self->path);
    if (version != 1)
        return err_set(ERR_INPUT, "the index %s has version %llu; only version 1 is known",
                       self->path, (unsigned long long)version);
    unsigned code = header[TYPE_AT];
    if (code == 0 || code >= STORED_TYPE_COUNT)
        return err_set(ERR_INPUT, "the index %s names the token type %u; 1 to %d are known",
                       self->path, code, STORED_TYPE_COUNT - 1);
    if (stored_types[code].type.bytes == 0)
        return err_set(ERR_INPUT, "the index %s is of %s numbers, which are not tokens", self->path,
                       stored_types[code].name);
    *type = stored_types[code].type;
    self->sequence_count = u64_at(header + SEQUENCE_COUNT_AT);
    self->document_count = u64_at(header + DOCUMENT_COUNT_AT);
    if (length_agrees(self, 0))
        return 0;
    if (length_agrees(self, 1))
        return err_set(
            ERR_INPUT,
            "the index %s has a mode for each sequence: multimodal files are not supported",
            self->path);
    return err_set(ERR_INPUT,
                   "the index %s says that it has %llu sequences and %llu entries of documents, "
                   "but its %llu bytes do not match that: it is truncated or damaged",
                   self->path, (unsigned long long)self->sequence_count,
                   (unsigned long long)self->document_count, (unsigned long long)self->bytes);
}

/* Checks that sequences follow one another from byte 0. *end is the end of the last one, or of the
 * first that ends beyond `limit`; up to there the sums cannot overflow. */
static int check_sequences(struct index *self, uint32_t token_bytes, uint64_t limit, uint64_t *end)
{
    uint64_t count = self->sequence_count, places_at = HEADER_BYTES + 4 * count;
    *end = 0;
    for (uint64_t done = 0; done < count;) {
        uint64_t part = size_min(count - done, PIECE_ENTRIES);
        TRY(datai_pread(self->fd, self->path, HEADER_BYTES + 4 * done, 4 * part, self->lengths));
        TRY(datai_pread(self->fd, self->path, places_at + 8 * done, 8 * part, self->places));
        for (uint64_t i = 0; i < part; i++) {
            if (self->lengths[i] < 0)
                return err_set(ERR_INPUT, "the index %s gives sequence %llu a length of %d tokens",
                               self->path, (unsigned long long)(done + i), self->lengths[i]);
            if ((uint64_t)self->places[i] != *end)
                return err_set(
                    ERR_INPUT,
                    "the index %s puts sequence %llu at byte %lld of the .bin, but the "
                    "one before ends at %llu; only sequences that follow one another "
                    "can be read: make the files again with Megatron's preprocess_data.py",
                    self->path, (unsigned long long)(done + i), (long long)self->places[i],
                    (unsigned long long)*end);
            *end += (uint64_t)self->lengths[i] * token_bytes;
            if (*end > limit)
                return 0;
        }
        done += part;
    }
    return 0;
}

/* Checks that the documents' first sequences are in order. */
static int check_documents(struct index *self)
{
    uint64_t count = self->document_count, places_at = HEADER_BYTES + 12 * self->sequence_count;
    int64_t last = 0;
    for (uint64_t done = 0; done < count;) {
        uint64_t part = size_min(count - done, PIECE_ENTRIES);
        TRY(datai_pread(self->fd, self->path, places_at + 8 * done, 8 * part, self->places));
        for (uint64_t i = 0; i < part; i++) {
            if (self->places[i] < last || (uint64_t)self->places[i] > self->sequence_count)
                return err_set(ERR_INPUT,
                               "the index %s lets document %llu begin with sequence %lld, and the "
                               "one before it with %lld, of %llu sequences: it is damaged",
                               self->path, (unsigned long long)(done + i),
                               (long long)self->places[i], (long long)last,
                               (unsigned long long)self->sequence_count);
            last = self->places[i];
        }
        done += part;
    }
    return 0;
}

/* Sets the number of documents. An entry that only ends the last document does not count. */
static int note_documents(const struct index *self, datai_file *tokens)
{
    uint64_t count = self->document_count;
    int64_t last;
    tokens->documents = DATAI_ONE;
    tokens->document_count = 1;
    if (count == 0)
        return 0;
    TRY(datai_pread(self->fd, self->path, tokens->index_at + 8 * (count - 1), 8, &last));
    if (count > 1 && (uint64_t)last == self->sequence_count)
        count--;
    tokens->documents = DATAI_MEGATRON;
    tokens->document_count = count;
    return 0;
}

/* The first token of sequence `idx`; for an index beyond the last sequence, the end of all. */
static int sequence_begin(const datai_file *tokens, uint64_t idx, uint64_t *out)
{
    uint64_t place, at = HEADER_BYTES + 4 * tokens->sequence_count;
    *out = tokens->token_count;
    if (idx >= tokens->sequence_count)
        return 0;
    TRY(datai_pread(tokens->index_fd, tokens->index_path, at + 8 * idx, 8, &place));
    *out =
        /* the index may have changed since */
        size_min(place / tokens->type.bytes, tokens->token_count);
    return 0;
}

int datai_megatron_document(const datai_file *self, uint64_t idx, uint64_t *begin, uint64_t *end)
{
    uint64_t firsts[2] = {0, self->sequence_count};
    bool is_last = idx + 1 == self->document_count;
    TRY(datai_pread(self->index_fd, self->index_path, self->index_at + 8 * idx, is_last ? 8 : 16,
                    firsts));
    if (is_last)
        firsts[1] = self->sequence_count;
    if (idx == 0)
        firsts[0] = 0;
    TRY(sequence_begin(self, firsts[0], begin));
    TRY(sequence_begin(self, firsts[1], end));
    if (*begin <= *end)
        return 0;
    return err_set(
        ERR_INPUT,
        "the index %s has changed since it was opened: document %llu ends before it begins",
        self->index_path, (unsigned long long)idx);
}

static int check_index(struct index *self, datai_file *tokens)
{
    uint64_t end;
    TRY(read_header(self, &tokens->type));
    TRY(check_sequences(self, tokens->type.bytes, tokens->file_bytes, &end));
    TRY(check_documents(self));
    if (end == 0)
        return err_set(ERR_INPUT, "the index %s has no tokens", self->path);
    if (end != tokens->file_bytes)
        return err_set(
            ERR_INPUT, "the index %s describes %llu bytes of tokens%s, but %s has %llu: %s",
            self->path, (unsigned long long)end, end > tokens->file_bytes ? " or more" : "",
            tokens->path, (unsigned long long)tokens->file_bytes,
            end > tokens->file_bytes ? "it is truncated, or they are not a pair"
                                     : "they are not a pair");
    tokens->token_count = end / tokens->type.bytes;
    tokens->sequence_count = self->sequence_count;
    tokens->index_at = HEADER_BYTES + 12 * self->sequence_count;
    return note_documents(self, tokens);
}

int datai_megatron_index(datai_file *self, const char *idx_path)
{
    struct index *index = mem_alloc(1, sizeof *index, "index of a token file");
    if (!index)
        return -ENOMEM;
    index->path = idx_path;
    int rc = datai_open(idx_path, &index->fd, &index->bytes);
    self->index_fd = index->fd;
    if (rc == 0)
        rc = check_index(index, self);
    mem_free(index);
    TRY(rc);
    self->index_path = mem_string(idx_path, "index path");
    return self->index_path ? 0 : -ENOMEM;
}
