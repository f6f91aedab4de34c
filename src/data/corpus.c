/* Files as one sequence of tokens. See corpus.h.
 *
 * One thread. Only opening allocates. A read allocates nothing: pread fills a buffer on the stack,
 * where tokens are widened and checked against the vocabulary. Lists of documents, too, stay in the
 * files: they are checked at opening, and read again for one document at a time. */
#include "data/corpus.h"

#include <errno.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/utf8.h"
#include "data/data_internal.h"

enum { BYTE_VOCAB = 256, PIECE_BYTES = 32768 };

/* Tokens that are checked before a run begins. Reading them takes about 0.1 s, and a file of
 * another tokenizer or format is usually detected there. */
#define SCAN_BYTES (64 * MIB)

struct corpus {
    datai_file *files; /* [file_count] */
    uint32_t file_count;
    uint64_t token_count, document_count, counted;
    uint64_t vocab_size;
    int32_t end_token; /* -1: none */
};

static int64_t token_at(const unsigned char *raw, datai_type type, uint64_t idx)
{
    raw += idx * type.bytes;
    switch (type.bytes) {
    case 1:
        return type.is_signed ? (int64_t)(int8_t)raw[0] : (int64_t)raw[0];
    case 2: {
        uint16_t value;
        memcpy(&value, raw, sizeof value);
        return type.is_signed ? (int64_t)(int16_t)value : (int64_t)value;
    }
    case 4: {
        uint32_t value;
        memcpy(&value, raw, sizeof value);
        return type.is_signed ? (int64_t)(int32_t)value : (int64_t)value;
    }
    default: {
        int64_t value;
        memcpy(&value, raw, sizeof value);
        return value;
    }
    }
}

static int refuse_token(const datai_file *file, uint64_t idx, int64_t token, uint64_t vocab_size)
{
    return err_set(ERR_INPUT,
                   "token %llu (from 0) of %s is %lld, but model.vocab_size is %llu: set it to the "
                   "vocabulary of the tokenizer that made the file, or data.format to the file's "
                   "format",
                   (unsigned long long)idx, file->path, (long long)token,
                   (unsigned long long)vocab_size);
}

/* The length of the part of a text that belongs to a character which begins before `offset`, where
 * the text begins. Reads that character again. */
static int find_rest(const datai_file *file, uint64_t offset, uint64_t bytes, const char *text,
                     uint64_t *rest)
{
    char edge[6]; /* up to 3 bytes before the text, and the first of the text */
    uint64_t before = size_min(3, offset - file->data_begin);
    uint64_t count = before + size_min(3, bytes);
    *rest = 0;
    if (before == 0 || !utf8_is_inner(text[0]))
        return 0;
    TRY(datai_pread(file->fd, file->path, offset - before, before, edge));
    memcpy(edge + before, text, count - before);
    uint64_t begin = utf8_before(edge, before);
    int length = utf8_character(edge + begin, count - begin);
    uint64_t end = length == 0 ? count : begin + (uint64_t)(length > 0 ? length : 0);
    bool is_cut = length == 0 && offset + bytes == file->file_bytes;
    if (end <= before || is_cut)
        return datai_refuse_text(file->fd, file->path, offset - (length > 0 ? 0 : before - begin));
    *rest = end - before;
    return 0;
}

/* Checks bytes [offset, offset + bytes) of a file of text. Their first and their last character may
 * be incomplete. */
static int check_text(const datai_file *file, uint64_t offset, uint64_t bytes, const char *text)
{
    uint64_t at;
    TRY(find_rest(file, offset, bytes, text, &at));
    at += datai_find_bad(text + at, bytes - at, offset + bytes == file->file_bytes);
    return at == bytes ? 0 : datai_refuse_text(file->fd, file->path, offset + at);
}

/* Reads tokens [begin, begin + count) of one file. If `tokens` is NULL they are only checked. */
static int read_file_tokens(const datai_file *file, uint64_t begin, uint64_t count,
                            uint64_t vocab_size, bool are_targets, int32_t *tokens)
{
    _Alignas(64) unsigned char raw[PIECE_BYTES];
    for (uint64_t done = 0; done < count;) {
        uint64_t part = size_min(count - done, PIECE_BYTES / file->type.bytes);
        uint64_t offset = file->data_begin + (begin + done) * file->type.bytes;
        TRY(datai_pread(file->fd, file->path, offset, part * file->type.bytes, raw));
        if (file->is_checked)
            TRY(check_text(file, offset, part, (const char *)raw));
        for (uint64_t i = 0; i < part; i++) {
            int64_t token = token_at(raw, file->type, i);
            bool is_marked = file->has_marks && token & TOKEN_UNCOUNTED;
            if (is_marked)
                token &= ~(int64_t)TOKEN_UNCOUNTED;
            if ((uint64_t)token >= vocab_size) /* a negative token too */
                return refuse_token(file, begin + done + i, token, vocab_size);
            if (tokens)
                tokens[done + i] = is_marked && are_targets ? -1 : (int32_t)token;
        }
        done += part;
    }
    return 0;
}

static int scan_first_tokens(const corpus *self)
{
    for (uint32_t i = 0; i < self->file_count; i++) {
        const datai_file *file = &self->files[i];
        uint64_t share = SCAN_BYTES / self->file_count / file->type.bytes;
        TRY(read_file_tokens(file, 0, size_min(file->token_count, share), self->vocab_size, false,
                             NULL));
    }
    return 0;
}

static int open_files(corpus *self, const char *const *paths, const enum data_format *formats)
{
    for (uint32_t i = 0; i < self->file_count; i++) {
        datai_file *file = &self->files[i];
        TRY(datai_file_open(file, paths[i], formats[i]));
        file->token_begin = self->token_count;
        file->document_begin = self->document_count;
        TRY(size_add(self->token_count, file->token_count, &self->token_count));
        TRY(size_add(self->document_count, file->document_count, &self->document_count));
        self->counted += file->counted;
        const datai_file *first = &self->files[0];
        if (file->is_bytes != first->is_bytes)
            return err_set(ERR_INPUT,
                           "%s is %s and %s is %s, and both cannot be in one corpus; give files of "
                           "one kind, or set data.format",
                           first->path, first->is_bytes ? "text" : "a token file", file->path,
                           file->is_bytes ? "text" : "a token file");
    }
    return 0;
}

int corpus_open_each(const char *const *paths, const enum data_format *formats, uint32_t path_count,
                     uint64_t vocab_size, corpus **out)
{
    *out = NULL;
    if (path_count == 0)
        return err_set(ERR_INPUT, "the data block names no file; give at least one");
    for (uint32_t i = 0; i < path_count; i++)
        if ((unsigned)formats[i] >= DATA_FORMAT_COUNT)
            return err_set(-EINVAL, "there is no data format of number %d", (int)formats[i]);
    corpus *self = mem_alloc(1, sizeof *self, "corpus");
    if (!self)
        return -ENOMEM;
    int rc = -ENOMEM;
    self->files = mem_alloc(path_count, sizeof *self->files, "corpus files");
    if (!self->files)
        goto failed;
    self->file_count = path_count;
    self->end_token = -1;
    for (uint32_t i = 0; i < path_count; i++)
        self->files[i].fd = self->files[i].index_fd = -1;
    TRY_GOTO(rc, open_files(self, paths, formats), failed);
    self->vocab_size = size_min(vocab_size ? vocab_size : UINT64_MAX, (uint64_t)INT32_MAX + 1);
    if (corpus_is_text(self))
        self->vocab_size = size_min(self->vocab_size, BYTE_VOCAB);
    TRY_GOTO(rc, scan_first_tokens(self), failed);
    if (!corpus_is_text(self))
        log_info("%s%s: %llu tokens of %u bits", self->files[0].path,
                 self->file_count > 1 ? " and others" : "", (unsigned long long)self->token_count,
                 8 * self->files[0].type.bytes);
    *out = self;
    return 0;
failed:
    corpus_close(self);
    return rc;
}

int corpus_open_as(const char *const *paths, uint32_t path_count, enum data_format format,
                   uint64_t vocab_size, corpus **out)
{
    enum data_format *formats = mem_alloc(path_count, sizeof *formats, "formats of files");
    *out = NULL;
    if (!formats)
        return -ENOMEM;
    for (uint32_t i = 0; i < path_count; i++)
        formats[i] = format;
    int rc = corpus_open_each(paths, formats, path_count, vocab_size, out);
    mem_free(formats);
    return rc;
}

void corpus_close(corpus *self)
{
    if (!self)
        return;
    for (uint32_t i = 0; i < self->file_count; i++)
        datai_file_close(&self->files[i]);
    mem_free(self->files);
    mem_free(self);
}

uint64_t corpus_token_count(const corpus *self)
{
    return self->token_count;
}

bool corpus_is_text(const corpus *self)
{
    return self->files[0].is_bytes;
}

bool corpus_has_marks(const corpus *self)
{
    return self->counted < self->token_count;
}

uint64_t corpus_counted(const corpus *self)
{
    return self->counted;
}

uint64_t corpus_document_count(const corpus *self)
{
    return self->document_count;
}

/* The file that holds a token, or a document. Binary search, because a corpus may have thousands of
 * files. */
static uint32_t file_of(const corpus *self, uint64_t idx, bool is_document)
{
    uint32_t low = 0, high = self->file_count - 1;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        const datai_file *file = &self->files[middle];
        if ((is_document ? file->document_begin : file->token_begin) <= idx)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static int read_tokens(const corpus *self, uint64_t begin, uint64_t count, bool are_targets,
                       int32_t *tokens)
{
    if (count == 0)
        return 0;
    if (begin > self->token_count || count > self->token_count - begin)
        return err_set(-EINVAL, "tokens %llu to %llu were requested from a corpus of %llu",
                       (unsigned long long)begin, (unsigned long long)(begin + count),
                       (unsigned long long)self->token_count);
    uint64_t done = 0;
    for (uint32_t i = file_of(self, begin, false); done < count; i++) {
        const datai_file *file = &self->files[i];
        uint64_t file_begin = begin + done - file->token_begin;
        uint64_t part = size_min(count - done, file->token_count - file_begin);
        TRY(read_file_tokens(file, file_begin, part, self->vocab_size, are_targets, tokens + done));
        done += part;
    }
    return 0;
}

int corpus_read(corpus *self, uint64_t begin, uint64_t count, int32_t *tokens)
{
    return read_tokens(self, begin, count, false, tokens);
}

int corpus_read_targets(corpus *self, uint64_t begin, uint64_t count, int32_t *tokens)
{
    return read_tokens(self, begin, count, true, tokens);
}

/* ---- documents ---- */

/* A file of DATA_MADE: reads the end of the document before and its own end. */
static int document_by_ends(const datai_file *self, uint64_t idx, uint64_t *begin, uint64_t *end)
{
    uint64_t ends[2] = {0, 0};
    uint64_t from = idx ? idx - 1 : 0, count = idx ? 2 : 1;
    TRY(datai_pread(self->fd, self->path, self->index_at + 8 * from, 8 * count, ends + 2 - count));
    *begin = ends[0];
    *end = ends[1];
    if (*begin <= *end && *end <= self->token_count)
        return 0;
    return err_set(ERR_INPUT,
                   "%s has changed since it was opened: document %llu ends at token %llu of %llu",
                   self->path, (unsigned long long)idx, (unsigned long long)*end,
                   (unsigned long long)self->token_count);
}

/* Document `idx` of a file: its tokens [*begin, *end) within the file. */
static int file_document(const datai_file *self, uint64_t idx, uint64_t *begin, uint64_t *end)
{
    switch (self->documents) {
    case DATAI_ROWS:
        *begin = idx * self->row_tokens;
        *end = *begin + self->row_tokens;
        return 0;
    case DATAI_MEGATRON:
        return datai_megatron_document(self, idx, begin, end);
    case DATAI_ENDS:
        return document_by_ends(self, idx, begin, end);
    case DATAI_ONE:
        break;
    }
    *begin = 0;
    *end = self->token_count;
    return 0;
}

int corpus_document(corpus *self, uint64_t idx, uint64_t *begin, uint64_t *count)
{
    *begin = *count = 0;
    if (idx >= self->document_count)
        return err_set(-EINVAL, "document %llu was requested from a corpus of %llu",
                       (unsigned long long)idx, (unsigned long long)self->document_count);
    const datai_file *file = &self->files[file_of(self, idx, true)];
    uint64_t end;
    TRY(file_document(file, idx - file->document_begin, begin, &end));
    *count = end - *begin;
    *begin += file->token_begin;
    return 0;
}

int corpus_document_of(corpus *self, uint64_t at, uint64_t *idx)
{
    if (at >= self->token_count)
        return err_set(-EINVAL, "the document of token %llu was requested from a corpus of %llu",
                       (unsigned long long)at, (unsigned long long)self->token_count);
    const datai_file *file = &self->files[file_of(self, at, false)];
    uint64_t low = 0, high = file->document_count - 1, begin, end;
    while (low < high) { /* the last document that begins at or before the token */
        uint64_t middle = low + (high - low + 1) / 2;
        TRY(file_document(file, middle, &begin, &end));
        if (begin <= at - file->token_begin)
            low = middle;
        else
            high = middle - 1;
    }
    *idx = file->document_begin + low;
    return 0;
}

int corpus_set_end_token(corpus *self, int32_t token)
{
    self->end_token = -1;
    for (uint32_t i = 0; i < self->file_count && token >= 0; i++) {
        datai_file *file = &self->files[i];
        int32_t first;
        if (file->documents != DATAI_ONE || file->is_bytes || file->token_count == 0)
            continue;
        TRY(read_file_tokens(file, 0, 1, self->vocab_size, false, &first));
        file->end = first == token ? DATAI_END_FIRST : DATAI_END_LAST;
        self->end_token = token;
    }
    return 0;
}

bool corpus_has_documents(const corpus *self)
{
    return self->document_count > 1 || self->end_token >= 0;
}

/* ---- which document a token belongs to ---- */

/* Divides inputs [first, last) at the end tokens among them. */
static void note_ends(const corpus *self, enum datai_end end, uint64_t first, uint64_t last,
                      const int32_t *inputs, int32_t *targets, int32_t *begins)
{
    for (uint64_t t = first, begin = first; t < last; t++) {
        bool is_end = inputs[t] == self->end_token;
        if (end == DATAI_END_FIRST && is_end)
            begin = t;
        begins[t] = (int32_t)begin;
        if (end == DATAI_END_LAST && is_end)
            begin = t + 1;
        if (end == DATAI_END_FIRST ? targets[t] == self->end_token : is_end)
            targets[t] = -1;
    }
}

void datai_note_document(const corpus *self, uint64_t idx, datai_stretch of, const int32_t *inputs,
                         int32_t *targets, int32_t *begins)
{
    enum datai_end end = self->files[file_of(self, idx, true)].end;
    uint64_t last = size_min(of.last, of.count);
    if (end != DATAI_END_NONE)
        note_ends(self, end, of.first, last, inputs, targets, begins);
    else
        for (uint64_t t = of.first; t < last; t++)
            begins[t] = (int32_t)of.first;
    if (of.is_begun && of.first > 0)
        targets[of.first - 1] = -1;
}

int corpus_separate(corpus *self, uint64_t from, uint64_t count, const int32_t *inputs,
                    int32_t *targets, int32_t *begins)
{
    const uint64_t end = from + count + 1;
    uint64_t idx;
    TRY(corpus_document_of(self, from, &idx));
    for (uint64_t at = from; at < end; idx++) {
        uint64_t begin, length;
        TRY(corpus_document(self, idx, &begin, &length));
        uint64_t last = size_min(begin + length, end);
        if (last <= at)
            continue; /* it is empty */
        datai_note_document(self, idx, (datai_stretch){at - from, last - from, count, begin == at},
                            inputs, targets, begins);
        at = last;
    }
    return 0;
}
