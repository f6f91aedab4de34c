/* Writes token files in the formats of other programs. See token_file.h. Tokens go through a buffer
 * of 1 MiB. Lengths of documents go to a file without a name, since there may be billions, and from
 * there to the index. */
#include "data/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/size.h"
#include "data/data_internal.h"

enum {
    BUFFER_BYTES = 1 << 20,
    VOCAB_OF_2_BYTES = 65536,
    LLMC_HEADER_INTS = 256,
    LLMC_HEADER_BYTES = 4 * LLMC_HEADER_INTS,
    LLMC_MAGIC_2 = 20240520,
    LLMC_MAGIC_4 = 20240801,
    LLMC_VERSION_2 = 1,
    LLMC_VERSION_4 = 7,
    MEGATRON_INT32 = 4,
    MEGATRON_UINT16 = 8,
    LENGTHS_AT_ONCE = 8192,
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
    enum data_format format;
    uint32_t token_bytes;
    struct output tokens, index, lengths;
    uint64_t token_count, document_count, document_begin;
};

static int output_open(struct output *self, bool is_nameless)
{
    self->buffer = mem_alloc(BUFFER_BYTES, 1, "tokens to be written");
    if (!self->buffer)
        return -ENOMEM;
    self->fd = open(self->path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (self->fd < 0)
        return err_errno(errno, "cannot make %s", self->path);
    if (is_nameless)
        unlink(self->path);
    return 0;
}

static int output_flush(struct output *self)
{
    for (uint64_t done = 0; done < self->used;) {
        ssize_t put = write(self->fd, self->buffer + done, self->used - done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return err_errno(errno, "cannot write %llu bytes to %s",
                             (unsigned long long)(self->used - done), self->path);
        done += (uint64_t)put;
        progress_note();
    }
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
    output_close(&self->lengths);
    mem_free(self);
}

/* --- names --- */

static int make_names(token_file *self, const char *name)
{
    size_t length = strlen(name);
    bool is_pair = self->format == DATA_MEGATRON;
    if (length == 0 || name[length - 1] == '/')
        return err_set(ERR_INPUT, "\"%s\" names no file to write", name);
    if (length + sizeof ".bin.part.lengths" > PATH_MAX)
        return err_set(ERR_INPUT, "the path of the token file %.100s... is too long", name);
    if (is_pair && length > 4 && strcmp(name + length - 4, ".bin") == 0)
        length -= 4;
    snprintf(self->name, sizeof self->name, "%.*s%s", (int)length, name, is_pair ? ".bin" : "");
    snprintf(self->index_name, sizeof self->index_name, "%.*s.idx", (int)length, name);
    struct {
        struct output *file;
        const char *of, *suffix;
    } parts[] = {{&self->tokens, self->name, ".part"},
                 {&self->index, self->index_name, ".part"},
                 {&self->lengths, self->index_name, ".part.lengths"}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char *path = parts[i].file->path;
        memcpy(path, parts[i].of, strlen(parts[i].of) + 1);
        strcat(path, parts[i].suffix); /* fits: see above */
    }
    return 0;
}

static int begin(token_file *self, const char *name, uint64_t vocab_size)
{
    bool is_short =
        self->format == DATA_U16 || (self->format != DATA_U32 && vocab_size <= VOCAB_OF_2_BYTES);
    if (self->format != DATA_MEGATRON && self->format != DATA_LLMC && self->format != DATA_U16 &&
        self->format != DATA_U32)
        return err_set(ERR_INPUT, "tokens are written as megatron, llmc, u16 or u32 alone");
    if (self->format == DATA_U16 && vocab_size > VOCAB_OF_2_BYTES)
        return err_set(ERR_INPUT, "u16 cannot hold a vocabulary of %llu tokens: take u32",
                       (unsigned long long)vocab_size);
    self->token_bytes = is_short ? 2 : 4;
    TRY(make_names(self, name));
    TRY(output_open(&self->tokens, false));
    if (self->format == DATA_LLMC) {
        static const unsigned char header[LLMC_HEADER_BYTES];
        TRY(output_add(&self->tokens, header, sizeof header));
    }
    if (self->format != DATA_MEGATRON)
        return 0;
    TRY(output_open(&self->index, false));
    return output_open(&self->lengths, true);
}

int token_file_create(const char *name, enum data_format format, uint64_t vocab_size,
                      token_file **out)
{
    *out = NULL;
    token_file *self = mem_alloc(1, sizeof *self, "token file");
    if (!self)
        return -ENOMEM;
    self->tokens.fd = self->index.fd = self->lengths.fd = -1;
    self->format = format == DATA_AUTO ? DATA_MEGATRON : format;
    int rc = begin(self, name, vocab_size);
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
        TRY(output_add(&self->tokens, self->token_bytes == 2 ? (const void *)&narrow : &tokens[i],
                       self->token_bytes));
    }
    self->token_count += count;
    return 0;
}

int token_file_end_document(token_file *self)
{
    uint64_t length = self->token_count - self->document_begin;
    if (length == 0)
        return 0;
    if (self->format == DATA_MEGATRON) {
        int32_t stored = (int32_t)length;
        if (length > INT32_MAX)
            return err_set(ERR_INPUT,
                           "a document of %llu tokens: an index of Megatron's holds up to %d of "
                           "one; cut it, or take u32",
                           (unsigned long long)length, INT32_MAX);
        TRY(output_add(&self->lengths, &stored, sizeof stored));
    }
    self->document_begin = self->token_count;
    self->document_count++;
    return 0;
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

/* Appends the lengths to the index, or the places of sequences computed from them. */
static int copy_lengths(token_file *self, bool as_places)
{
    static const uint64_t length_bytes = sizeof(int32_t);
    int32_t lengths[LENGTHS_AT_ONCE];
    int64_t place = 0;
    for (uint64_t done = 0; done < self->document_count;) {
        uint64_t part = size_min(self->document_count - done, LENGTHS_AT_ONCE);
        TRY(datai_pread(self->lengths.fd, self->lengths.path, done * length_bytes,
                        part * length_bytes, lengths));
        for (uint64_t i = 0; i < part; i++) {
            TRY(as_places ? output_add(&self->index, &place, sizeof place)
                          : output_add(&self->index, &lengths[i], sizeof lengths[i]));
            place += (int64_t)lengths[i] * self->token_bytes;
        }
        done += part;
    }
    return 0;
}

/* See megatron.c for the layout. */
static int write_index(token_file *self)
{
    static const char magic[9] = "MMIDIDX"; /* with its two zeros */
    uint64_t version = 1, sequences = self->document_count, ends = sequences + 1;
    uint8_t type = self->token_bytes == 2 ? MEGATRON_UINT16 : MEGATRON_INT32;
    TRY(output_flush(&self->lengths));
    TRY(output_add(&self->index, magic, sizeof magic));
    TRY(output_add(&self->index, &version, sizeof version));
    TRY(output_add(&self->index, &type, sizeof type));
    TRY(output_add(&self->index, &sequences, sizeof sequences));
    TRY(output_add(&self->index, &ends, sizeof ends));
    TRY(copy_lengths(self, false));
    TRY(copy_lengths(self, true));
    for (uint64_t document = 0; document < ends; document++)
        TRY(output_add(&self->index, &document, sizeof document));
    return output_flush(&self->index);
}

static int write_llmc_header(token_file *self)
{
    int32_t header[LLMC_HEADER_INTS] = {LLMC_MAGIC_2, LLMC_VERSION_2};
    if (self->token_count > INT32_MAX)
        return err_set(ERR_INPUT,
                       "%llu tokens: a file of llm.c's holds up to %d; take megatron or u32",
                       (unsigned long long)self->token_count, INT32_MAX);
    if (self->token_bytes == 4) {
        header[0] = LLMC_MAGIC_4;
        header[1] = LLMC_VERSION_4;
    }
    header[2] = (int32_t)self->token_count;
    TRY(output_flush(&self->tokens));
    if (pwrite(self->tokens.fd, header, sizeof header, 0) != (ssize_t)sizeof header)
        return err_errno(errno, "cannot write the header of %s", self->tokens.path);
    return 0;
}

static int publish(token_file *self)
{
    bool is_pair = self->format == DATA_MEGATRON;
    if (self->token_count == 0)
        return err_set(ERR_INPUT, "the input gives not one token");
    TRY(token_file_end_document(self));
    if (self->format == DATA_LLMC)
        TRY(write_llmc_header(self));
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
    if (rc < 0) {
        err_record first;
        err_save(&first, rc);
        token_file_abandon(self);
        return err_restore(&first);
    }
    output_close(&self->tokens);
    output_close(&self->index);
    output_close(&self->lengths);
    mem_free(self);
    return 0;
}
