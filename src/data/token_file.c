/* Writes token files. See token_file.h. Tokens go through a buffer of 1 MiB. The ends of documents
 * go to a file without a name, since there may be billions, and from there to where the format
 * wants them. */
#include "data/token_file.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/size.h"
#include "data/data_internal.h"

enum {
    BUFFER_BYTES = 1 << 20,
    VOCAB_OF_2_BYTES = 65536,
    MEGATRON_INT32 = 4,
    MEGATRON_UINT16 = 8,
    ENDS_AT_ONCE = 8192,
};

/* A file to which data is only appended. */
struct output {
    char path[PATH_MAX]; /* the name under which it is written */
    int fd;              /* -1: not open */
    uint64_t used;
    unsigned char *buffer; /* [BUFFER_BYTES] */
};

struct token_file {
    char name[PATH_MAX], index_name[PATH_MAX]; /* the final names */
    char ends_name[PATH_MAX];
    token_file_options options;
    uint32_t token_bytes;
    struct output tokens;
    struct output index; /* of Megatron's */
    struct output ends;  /* ends of documents in tokens, uint64; for megatron and made */
    uint64_t token_count, counted, document_count, document_end;
};

/* Opens the file that is written for `name`. */
static int output_open(struct output *self, const char *name, int mode)
{
    self->buffer = mem_alloc(BUFFER_BYTES, 1, "tokens to be written");
    if (!self->buffer)
        return -ENOMEM;
    int rc = file_open_temporary(name, mode, self->path, &self->fd);
    return rc < 0 ? err_prefix(rc, "the token file") : 0;
}

static int output_flush(struct output *self)
{
    int rc = file_write_at(self->fd, FILE_CURRENT, self->buffer, self->used);
    if (rc < 0)
        return err_errno(-rc, "cannot write %llu bytes to %s", (unsigned long long)self->used,
                         self->path);
    self->used = 0;
    return 0;
}

/* Appends at most BUFFER_BYTES bytes. */
static int output_add(struct output *self, const void *data, uint64_t bytes)
{
    if (self->used + bytes > BUFFER_BYTES)
        TRY(output_flush(self));
    memcpy(self->buffer + self->used, data, bytes);
    self->used += bytes;
    return 0;
}

static void output_close(struct output *self)
{
    if (self->fd >= 0)
        close(self->fd);
    self->fd = -1;
    mem_free(self->buffer);
    self->buffer = NULL;
}

void token_file_abandon(token_file *self)
{
    if (!self)
        return;
    if (self->tokens.fd >= 0)
        unlink(self->tokens.path);
    if (self->index.fd >= 0)
        unlink(self->index.path);
    output_close(&self->tokens);
    output_close(&self->index);
    output_close(&self->ends);
    mem_free(self);
}

/* --- names --- */

static int make_names(token_file *self, const char *name)
{
    size_t length = strlen(name);
    bool is_pair = self->options.format == DATA_MEGATRON;
    if (length == 0 || name[length - 1] == '/')
        return err_set(ERR_INPUT, "\"%s\" names no file to write", name);
    if (length + sizeof ".bin.ends.partial" > PATH_MAX)
        return err_set(ERR_INPUT, "the path of the token file %.100s... is too long", name);
    if (is_pair && length > 4 && strcmp(name + length - 4, ".bin") == 0)
        length -= 4;
    snprintf(self->name, sizeof self->name, "%.*s%s", (int)length, name, is_pair ? ".bin" : "");
    snprintf(self->index_name, sizeof self->index_name, "%.*s.idx", (int)length, name);
    snprintf(self->ends_name, sizeof self->ends_name, "%.*s.ends", (int)length, name);
    return 0;
}

static int begin(token_file *self, const char *name)
{
    static const unsigned char no_header[DATAI_LLMC_HEADER_BYTES];
    enum data_format format = self->options.format;
    uint64_t vocab_size = self->options.vocab_size;
    bool is_short = format == DATA_U16 || (format != DATA_U32 && vocab_size <= VOCAB_OF_2_BYTES &&
                                           !self->options.has_marks);
    if (format != DATA_MEGATRON && format != DATA_LLMC && format != DATA_U16 &&
        format != DATA_U32 && format != DATA_MADE)
        return err_set(ERR_INPUT, "tokens are written as megatron, llmc, u16 or u32 alone");
    if (format == DATA_U16 && vocab_size > VOCAB_OF_2_BYTES)
        return err_set(ERR_INPUT, "u16 cannot hold a vocabulary of %llu tokens: take u32",
                       (unsigned long long)vocab_size);
    self->token_bytes = is_short ? 2 : 4;
    TRY(make_names(self, name));
    TRY(output_open(&self->tokens, self->name, self->options.mode));
    if (format == DATA_LLMC)
        TRY(output_add(&self->tokens, no_header, DATAI_LLMC_HEADER_BYTES));
    if (format == DATA_MADE)
        TRY(output_add(&self->tokens, no_header, sizeof(struct datai_made_header)));
    if (format == DATA_MEGATRON)
        TRY(output_open(&self->index, self->index_name, self->options.mode));
    if (format != DATA_MEGATRON && format != DATA_MADE)
        return 0;
    TRY(output_open(&self->ends, self->ends_name, FILE_PRIVATE));
    unlink(self->ends.path); /* the file has no name, and is gone with its descriptor */
    return 0;
}

int token_file_create(const char *name, const token_file_options *options, token_file **out)
{
    *out = NULL;
    token_file *self = mem_alloc(1, sizeof *self, "token file");
    if (!self)
        return -ENOMEM;
    self->tokens.fd = self->index.fd = self->ends.fd = -1;
    self->options = *options;
    int rc = begin(self, name);
    if (rc < 0)
        token_file_abandon(self);
    else
        *out = self;
    return rc;
}

/* --- tokens --- */

int token_file_add(token_file *self, const uint32_t *tokens, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        uint16_t narrow = (uint16_t)tokens[i];
        assert(self->token_bytes == 4 || tokens[i] == narrow);
        self->counted += !(tokens[i] & TOKEN_UNCOUNTED);
        TRY(output_add(&self->tokens, self->token_bytes == 2 ? (const void *)&narrow : &tokens[i],
                       self->token_bytes));
    }
    self->token_count += count;
    return 0;
}

int token_file_end_document(token_file *self)
{
    uint64_t length = self->token_count - self->document_end;
    if (length == 0)
        return 0;
    if (self->options.format == DATA_MEGATRON && length > INT32_MAX)
        return err_set(ERR_INPUT,
                       "a document of %llu tokens: an index of Megatron's holds up to %d of one; "
                       "cut it, or take u32",
                       (unsigned long long)length, INT32_MAX);
    self->document_end = self->token_count;
    self->document_count++;
    return self->ends.fd < 0
               ? 0
               : output_add(&self->ends, &self->document_end, sizeof self->document_end);
}

uint64_t token_file_tokens(const token_file *self)
{
    return self->token_count;
}

uint64_t token_file_documents(const token_file *self)
{
    return self->document_count;
}

/* --- the end --- */

/* A list that is made from the ends of documents: the ends, the lengths of the documents, or the
 * places of their first bytes. */
enum part { ENDS, LENGTHS, PLACES };

static int append_part(token_file *self, struct output *out, enum part part)
{
    uint64_t ends[ENDS_AT_ONCE], last = 0;
    TRY(output_flush(&self->ends));
    for (uint64_t done = 0; done < self->document_count;) {
        uint64_t count = size_min(self->document_count - done, ENDS_AT_ONCE);
        TRY(datai_pread(self->ends.fd, self->ends.path, done * sizeof *ends, count * sizeof *ends,
                        ends));
        for (uint64_t i = 0; i < count; i++) {
            int32_t length = (int32_t)(ends[i] - last);
            uint64_t place = last * self->token_bytes;
            last = ends[i];
            TRY(part == ENDS      ? output_add(out, &ends[i], sizeof ends[i])
                : part == LENGTHS ? output_add(out, &length, sizeof length)
                                  : output_add(out, &place, sizeof place));
        }
        done += count;
    }
    return 0;
}

/* See megatron.c for the layout. */
static int write_index(token_file *self)
{
    static const char magic[9] = "MMIDIDX"; /* with its two zeros */
    uint64_t version = 1, sequences = self->document_count, ends = sequences + 1;
    uint8_t type = self->token_bytes == 2 ? MEGATRON_UINT16 : MEGATRON_INT32;
    TRY(output_add(&self->index, magic, sizeof magic));
    TRY(output_add(&self->index, &version, sizeof version));
    TRY(output_add(&self->index, &type, sizeof type));
    TRY(output_add(&self->index, &sequences, sizeof sequences));
    TRY(output_add(&self->index, &ends, sizeof ends));
    TRY(append_part(self, &self->index, LENGTHS));
    TRY(append_part(self, &self->index, PLACES));
    for (uint64_t document = 0; document < ends; document++)
        TRY(output_add(&self->index, &document, sizeof document));
    return output_flush(&self->index);
}

/* Fills the room that was left for the header. */
static int put_header(token_file *self, const void *header, size_t bytes)
{
    TRY(output_flush(&self->tokens));
    if (pwrite(self->tokens.fd, header, bytes, 0) != (ssize_t)bytes)
        return err_errno(errno, "cannot write the header of %s", self->tokens.path);
    return 0;
}

static int write_llmc_header(token_file *self)
{
    const datai_llmc_kind *kind = &datai_llmc_kinds[self->token_bytes == 4];
    if (self->token_count > INT32_MAX)
        return err_set(ERR_INPUT,
                       "%llu tokens: a file of llm.c's holds up to %d; take megatron or u32",
                       (unsigned long long)self->token_count, INT32_MAX);
    uint32_t header[DATAI_LLMC_HEADER_BYTES / 4] = {kind->magic, kind->version,
                                                    (uint32_t)self->token_count};
    return put_header(self, header, sizeof header);
}

/* Appends the ends, after the tokens are padded to a multiple of 8, and writes the header. */
static int finish_made(token_file *self)
{
    static const unsigned char zeros[8];
    bool has_marks = self->counted < self->token_count;
    struct datai_made_header header = {
        .version = DATAI_MADE_VERSION,
        .token_bytes = self->token_bytes,
        .flags =
            (has_marks ? DATAI_MADE_MARKS : 0u) | (self->options.is_bytes ? DATAI_MADE_BYTES : 0u),
        .key = self->options.key,
        .token_count = self->token_count,
        .document_count = self->document_count,
        .counted = self->counted,
    };
    memcpy(header.magic, DATAI_MADE_MAGIC, sizeof header.magic);
    header.sum = XXH3_64bits(&header, offsetof(struct datai_made_header, sum));
    TRY(output_add(&self->tokens, zeros, -(self->token_count * self->token_bytes) % 8));
    TRY(append_part(self, &self->tokens, ENDS));
    return put_header(self, &header, sizeof header);
}

static int publish(token_file *self)
{
    bool is_pair = self->options.format == DATA_MEGATRON;
    if (self->token_count == 0)
        return err_set(ERR_INPUT, "the input holds no tokens");
    TRY(token_file_end_document(self));
    if (self->options.format == DATA_LLMC)
        TRY(write_llmc_header(self));
    if (self->options.format == DATA_MADE)
        TRY(finish_made(self));
    TRY(output_flush(&self->tokens));
    if (is_pair) {
        TRY(write_index(self));
        if (unlink(self->index_name) != 0 && errno != ENOENT)
            return err_errno(errno, "cannot replace %s", self->index_name);
        TRY(file_sync_parent(self->name));
    }
    TRY(file_publish(&self->tokens.fd, self->tokens.path, self->name));
    return is_pair ? file_publish(&self->index.fd, self->index.path, self->index_name) : 0;
}

int token_file_finish(token_file *self)
{
    int rc = publish(self);
    token_file_abandon(self); /* removes only what was not published */
    return rc;
}
