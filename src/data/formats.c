/* Opens token files: decides which format a path names, and reads the formats without an index. See
 * corpus.h.
 *
 * One thread. Allocates the path of each file. No number from a file is used as a length before it
 * was checked against the file's own length. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/text.h"
#include "data/data_internal.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are little-endian");

const datai_llmc_kind datai_llmc_kinds[2] = {
    {20240520, 1, {.bytes = 2}},
    {20240801, 7, {.bytes = 4}},
};

int datai_open(const char *path, int *out, uint64_t *bytes)
{
    TRY(file_open(path, out, bytes));
    if (*bytes > 0)
        return 0;
    close(*out);
    *out = -1;
    return err_set(ERR_INPUT, "the token file %s is empty", path);
}

int datai_pread(int fd, const char *path, uint64_t offset, uint64_t bytes, void *target)
{
    int64_t got = file_read_at(fd, offset, target, bytes);
    if (got < 0)
        return err_errno((int)-got, "cannot read %llu bytes at %llu of the token file %s",
                         (unsigned long long)bytes, (unsigned long long)offset, path);
    if ((uint64_t)got < bytes)
        return err_set(ERR_INPUT,
                       "the token file %s ends at byte %llu, earlier than when it was opened; "
                       "it must not change during a run",
                       path, (unsigned long long)(offset + (uint64_t)got));
    return 0;
}

/* ---- llm.c ---- */

static const datai_llmc_kind *llmc_kind_of(const unsigned char *begin)
{
    uint32_t magic;
    memcpy(&magic, begin, sizeof magic);
    for (int i = 0; i < 2; i++)
        if (datai_llmc_kinds[i].magic == magic)
            return &datai_llmc_kinds[i];
    return NULL;
}

static int read_llmc(datai_file *self, const unsigned char *begin)
{
    const datai_llmc_kind *kind = llmc_kind_of(begin);
    uint32_t header[DATAI_LLMC_HEADER_BYTES / 4];
    memcpy(header, begin, DATAI_BEGIN_BYTES);
    if (!kind)
        return err_set(ERR_INPUT,
                       "%s begins with %u, which is no magic number of llm.c's token files (%u or "
                       "%u); if it holds only token ids, set data.format to u16 or u32",
                       self->path, header[0], datai_llmc_kinds[0].magic, datai_llmc_kinds[1].magic);
    if (self->file_bytes < DATAI_LLMC_HEADER_BYTES)
        return err_set(ERR_INPUT,
                       "%s has %llu bytes, fewer than the %d of the header of an llm.c token file; "
                       "it is truncated",
                       self->path, (unsigned long long)self->file_bytes, DATAI_LLMC_HEADER_BYTES);
    TRY(datai_pread(self->fd, self->path, 0, sizeof header, header));
    if (header[1] != kind->version)
        return err_set(ERR_INPUT,
                       "%s is an llm.c token file of version %u with the magic %u, whose version "
                       "should be %u",
                       self->path, header[1], header[0], kind->version);
    uint64_t token_count = header[2];
    if (token_count == 0)
        return err_set(ERR_INPUT, "%s is an llm.c token file without tokens", self->path);
    uint64_t expected = DATAI_LLMC_HEADER_BYTES + token_count * kind->type.bytes;
    if (self->file_bytes != expected)
        return err_set(ERR_INPUT,
                       "%s says that %llu tokens of %u bytes follow its header, which makes %llu "
                       "bytes, but has %llu: it is %s",
                       self->path, (unsigned long long)token_count, kind->type.bytes,
                       (unsigned long long)expected, (unsigned long long)self->file_bytes,
                       self->file_bytes < expected ? "truncated" : "no whole llm.c token file");
    self->type = kind->type;
    self->data_begin = DATAI_LLMC_HEADER_BYTES;
    self->token_count = token_count;
    return 0;
}

/* ---- ids or bytes alone ---- */

static int read_raw(datai_file *self, const unsigned char *begin, uint32_t token_bytes)
{
    const datai_llmc_kind *kind = self->file_bytes >= 8 ? llmc_kind_of(begin) : NULL;
    uint32_t version;
    memcpy(&version, begin + 4, sizeof version);
    if (kind && version == kind->version)
        return err_set(ERR_INPUT,
                       "%s has the header of an llm.c token file, but data.format is u%u; set it "
                       "to llmc or auto",
                       self->path, 8 * token_bytes);
    if (self->file_bytes % token_bytes != 0)
        return err_set(
            ERR_INPUT,
            "%s has %llu bytes, which is not a multiple of %u: it is truncated, or it is "
            "not in the format u%u",
            self->path, (unsigned long long)self->file_bytes, token_bytes, 8 * token_bytes);
    self->type = (datai_type){.bytes = token_bytes};
    self->token_count = self->file_bytes / token_bytes;
    return 0;
}

/* Text whose format nobody named must be UTF-8, which is checked where it is read. */
static int read_text(datai_file *self, const unsigned char *begin)
{
    self->is_bytes = true;
    self->type = (datai_type){.bytes = 1};
    self->data_begin = self->is_checked ? datai_bom_bytes(begin, self->file_bytes) : 0;
    self->token_count = self->file_bytes - self->data_begin;
    if (self->token_count == 0)
        return err_set(ERR_INPUT, "%s holds nothing but a byte order mark", self->path);
    if (self->data_begin > 0)
        log_info("%s: the byte order mark at its beginning is left out", self->path);
    return 0;
}

/* ---- which format ---- */

/* out = `path` with its .bin or .idx, if it has one, replaced by `end`. */
static int sibling(const char *path, const char *end, char out[PATH_MAX])
{
    bool has_end = text_ends_with(path, ".bin") || text_ends_with(path, ".idx");
    int stem = (int)(strlen(path) - (has_end ? 4 : 0));
    int length = snprintf(out, PATH_MAX, "%.*s%s", stem, path, end);
    if (length < 0 || length >= PATH_MAX)
        return err_set(ERR_INPUT, "the path of the token file %.100s... is too long", path);
    return 0;
}

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/* True in *out if a path names a pair of Megatron's files: by its index, by its tokens with the
 * index beside them, or by the common part of both names. */
static int is_megatron(const char *path, bool *out)
{
    char idx_path[PATH_MAX], bin_path[PATH_MAX];
    *out = false;
    TRY(sibling(path, ".idx", idx_path));
    TRY(sibling(path, ".bin", bin_path));
    if (text_ends_with(path, ".idx") || text_ends_with(path, ".bin"))
        *out = datai_megatron_is_index(idx_path);
    else
        *out = !exists(path) && datai_megatron_is_index(idx_path);
    return 0;
}

static int open_megatron(datai_file *self, const char *path)
{
    char idx_path[PATH_MAX], bin_path[PATH_MAX];
    TRY(sibling(path, ".idx", idx_path));
    TRY(sibling(path, ".bin", bin_path));
    self->path = mem_string(bin_path, "corpus path");
    if (!self->path)
        return -ENOMEM;
    if (!exists(idx_path))
        return err_set(ERR_INPUT,
                       "there is no %s, the index of Megatron's %s; both are needed, or another "
                       "data.format",
                       idx_path, bin_path);
    TRY(datai_open(bin_path, &self->fd, &self->file_bytes));
    return datai_megatron_index(self, idx_path);
}

/* Text or JSON records? A name of JSON decides; any other file holds records if it begins with one
 * of a known kind. */
static int recognize_text(const datai_file *self, const char *field, enum data_format *format)
{
    static const char *const ends[] = {".json", ".jsonl", ".ndjson"};
    datai_record first;
    *format = DATA_JSONL;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (text_ends_with(self->path, ends[i]))
            return 0;
    TRY(datai_first_record(self->fd, self->path, self->file_bytes, field, &first));
    if (!first.is_object || !first.is_whole || datai_kind_of(field, &first.names) == DATA_AUTO)
        *format = DATA_TEXT;
    return 0;
}

static int recognize(const datai_file *self, const unsigned char begin[DATAI_BEGIN_BYTES],
                     const char *field, enum data_format *format)
{
    if (self->file_bytes >= 4 && llmc_kind_of(begin)) {
        *format = DATA_LLMC;
        return 0;
    }
    if (datai_is_npy(begin, self->file_bytes) || datai_is_made(begin, self->file_bytes)) {
        *format = datai_is_made(begin, self->file_bytes) ? DATA_MADE : DATA_NPY;
        return 0;
    }
    TRY(datai_refuse_foreign(self->path, begin, self->file_bytes, 2));
    if (text_ends_with(self->path, ".idx"))
        return err_set(ERR_INPUT,
                       "%s does not begin as the index of Megatron's token files does (MMIDIDX)",
                       self->path);
    if (text_ends_with(self->path, ".bin"))
        return err_set(ERR_INPUT,
                       "the format of %s is unknown: it has no header of llm.c, and no .idx of "
                       "Megatron lies beside it; set data.format to u16 or u32 if it holds only "
                       "token ids, or to text if it holds bytes",
                       self->path);
    return recognize_text(self, field, format);
}

/* Opens a file whose format is known and whose first bytes are read. */
static int open_as(datai_file *self, const unsigned char begin[DATAI_BEGIN_BYTES])
{
    switch (self->format) {
    case DATA_TEXT:
        return read_text(self, begin);
    case DATA_U16:
    case DATA_U32:
        TRY(datai_refuse_foreign(self->path, begin, self->file_bytes, 6));
        return read_raw(self, begin, self->format == DATA_U16 ? 2 : 4);
    case DATA_NPY:
        return datai_npy(self);
    case DATA_MADE:
        return datai_made(self);
    case DATA_JSONL:
    case DATA_MESSAGES:
    case DATA_ALPACA:
    case DATA_SHAREGPT:
    case DATA_PROMPT_COMPLETION:
        return err_set(ERR_INPUT, "%s holds JSON records, which must be converted to tokens first",
                       self->path);
    default:
        TRY(datai_refuse_foreign(self->path, begin, self->file_bytes, 2));
        return read_llmc(self, begin);
    }
}

int datai_format_of(const char *path, enum data_format asked, const char *field,
                    enum data_format *out)
{
    bool megatron = false;
    *out = asked;
    if (asked != DATA_AUTO)
        return 0;
    TRY(is_megatron(path, &megatron));
    *out = DATA_MEGATRON;
    if (megatron)
        return 0;
    datai_file file = {.fd = -1, .index_fd = -1, .path = mem_string(path, "corpus path")};
    unsigned char begin[DATAI_BEGIN_BYTES] = {0};
    int rc = file.path ? datai_open(path, &file.fd, &file.file_bytes) : -ENOMEM;
    if (rc == 0)
        rc = datai_pread(file.fd, path, 0, size_min(file.file_bytes, sizeof begin), begin);
    if (rc == 0)
        rc = recognize(&file, begin, field, out);
    datai_file_close(&file);
    return rc;
}

int datai_file_open(datai_file *self, const char *path, enum data_format format)
{
    unsigned char begin[DATAI_BEGIN_BYTES] = {0};
    self->index_fd = -1;
    self->document_count = 1;
    TRY(datai_format_of(path, format, "text", &self->format));
    self->is_checked = format == DATA_AUTO && self->format == DATA_TEXT;
    if (self->format == DATA_MEGATRON) {
        TRY(open_megatron(self, path));
    } else {
        self->path = mem_string(path, "corpus path");
        if (!self->path)
            return -ENOMEM;
        TRY(datai_open(path, &self->fd, &self->file_bytes));
        TRY(datai_pread(self->fd, path, 0, size_min(self->file_bytes, sizeof begin), begin));
        TRY(open_as(self, begin));
    }
    if (!self->has_marks)
        self->counted = self->token_count;
    return 0;
}

void datai_file_close(datai_file *self)
{
    if (self->fd >= 0)
        close(self->fd);
    if (self->index_fd >= 0)
        close(self->index_fd);
    self->fd = self->index_fd = -1;
    mem_free(self->path);
    mem_free(self->index_path);
    self->path = self->index_path = NULL;
}
