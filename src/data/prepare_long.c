/* Long lines and long texts without a safe cut, in memory that does not grow with them. See
 * prepare.h. On the caller's thread.
 *
 * A text without a safe cut goes to the tokenizer as a stream, which begins where the last batch
 * ended and ends at the first safe cut.
 *
 * A long record is read twice. First it is copied without its long texts: a mark replaces each of
 * them, and the place of its content in the file is noted. The copy is parsed like other records.
 * Then the text that is wanted is read again, with its escapes decoded, as if it were a file of
 * text. The other long texts are only checked. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/utf8.h"
#include "data/data_internal.h"
#include "data/prepare_internal.h"

enum {
    READ_BYTES = 64 << 10,
    UNIT_BYTES = 12,        /* the longest escape: a pair of surrogates */
    LONG_TEXT_BYTES = 4096, /* longer texts are left out of the copy */
    MARK_EVERY = 1 << 20,
    COPY_SHARE = 8, /* the copy may take this part of a batch */
    CONTEXT = 4,    /* bytes before a cut that tell whether it is safe */
};

/* A place in a text: of the file, and of the decoded text. */
struct place {
    uint64_t file, text;
};
typedef struct place place;

/* The text of a record, between its quotes. */
struct prepi_record {
    prepi_maker *maker;
    uint64_t begin, end; /* of its content in the file */
    uint64_t line;       /* of the record */
    place at;            /* what is decoded next */
    char held[4];        /* decoded bytes before at.text, not given yet */
    size_t held_bytes;
    place *marks; /* [mark_count] places to go back to */
    size_t mark_count, mark_capacity;
    char *piece; /* [READ_BYTES] of the file, from piece_at on */
    uint64_t piece_at, piece_bytes;
};
typedef struct prepi_record prepi_record;

/* ---- decoding ---- */

static int refuse_unit(const prepi_record *self, const char *what)
{
    return err_set(ERR_INPUT, "byte %" PRIu64 " of the file: %s", self->at.file, what);
}

/* The four hexadecimal digits of an escape; -1: there are none. */
static int32_t hexadecimal(const char *digits)
{
    int32_t value = 0;
    for (int i = 0; i < 4; i++) {
        static const char all[] = "0123456789abcdefABCDEF";
        const char *found = digits[i] ? strchr(all, digits[i]) : NULL;
        if (!found)
            return -1;
        int32_t digit = (int32_t)(found - all);
        value = 16 * value + (digit < 16 ? digit : digit - 6);
    }
    return value;
}

static size_t put_character(uint32_t c, char *out)
{
    size_t count = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = count; i-- > 1; c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(first[count] | c);
    return count;
}

/* Decodes an escape, which begins with a backslash. Returns its length in the file, or an error. */
static int decode_escape(prepi_record *self, const char *text, size_t left, char *out,
                         size_t *out_bytes)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *found = left > 1 && text[1] ? strchr(names, text[1]) : NULL;
    if (found) {
        out[0] = values[found - names];
        *out_bytes = 1;
        return 2;
    }
    int32_t high = left >= 6 && text[1] == 'u' ? hexadecimal(text + 2) : -1;
    if (high < 0)
        return refuse_unit(self, "invalid escape");
    int length = 6;
    uint32_t character = (uint32_t)high;
    if (high >= 0xd800 && high < 0xe000) {
        bool is_pair = high < 0xdc00 && left >= 12 && text[6] == '\\' && text[7] == 'u';
        int32_t low = is_pair ? hexadecimal(text + 8) : -1;
        if (low < 0xdc00 || low > 0xdfff)
            return refuse_unit(self, "invalid Unicode: half of a surrogate pair");
        character = 0x10000 + (((uint32_t)high & 0x3ff) << 10 | ((uint32_t)low & 0x3ff));
        length = 12;
    }
    *out_bytes = put_character(character, out);
    return length;
}

/* Makes the next bytes of the file available. *left: how many there are, at least UNIT_BYTES unless
 * the text ends before. */
static int look_ahead(prepi_record *self, const char **text, size_t *left)
{
    uint64_t there = self->piece_at + self->piece_bytes;
    bool is_there =
        self->at.file >= self->piece_at &&
        (self->at.file + UNIT_BYTES <= there || (self->at.file <= there && there == self->end));
    if (!is_there) {
        self->piece_at = self->at.file;
        self->piece_bytes = size_min(READ_BYTES, self->end - self->at.file);
        TRY(datai_pread(self->maker->fd, self->maker->work->path, self->piece_at, self->piece_bytes,
                        self->piece));
    }
    *text = self->piece + (self->at.file - self->piece_at);
    *left = (size_t)(self->piece_at + self->piece_bytes - self->at.file);
    return 0;
}

/* Decodes one character, or a run of ASCII that fits. Returns the number of bytes written to
 * out[bytes], which has room for four more; 0 at the end. */
static int decode_some(prepi_record *self, char *out, size_t bytes)
{
    const char *text;
    size_t left, count = 0;
    TRY(look_ahead(self, &text, &left));
    if (left == 0)
        return 0;
    while (count < bytes && count < left && text[count] != '\\' &&
           (unsigned char)text[count] < 0x80 && (unsigned char)text[count] >= ' ')
        count++;
    memcpy(out, text, count);
    if (count == 0) {
        int length = text[0] == '\\'                ? decode_escape(self, text, left, out, &count)
                     : (unsigned char)text[0] < ' ' ? 0
                                                    : utf8_character(text, left);
        if (text[0] == '\\')
            TRY(length);
        else if (length <= 0)
            return refuse_unit(self, (unsigned char)text[0] < ' ' ? "a control character in a text"
                                                                  : "the record is not UTF-8");
        else
            memcpy(out, text, count = (size_t)length);
        self->at.file += (uint64_t)length;
    } else {
        self->at.file += count;
    }
    self->at.text += count;
    return (int)count;
}

static int put_mark(prepi_record *self)
{
    uint64_t last = self->mark_count ? self->marks[self->mark_count - 1].text : 0;
    if (self->mark_count && self->at.text < last + MARK_EVERY)
        return 0;
    void *list = self->marks;
    TRY(prepi_make_room(&list, &self->mark_capacity, self->mark_count, 1, sizeof *self->marks));
    self->marks = list;
    self->marks[self->mark_count++] = self->at;
    return 0;
}

/* Gives decoded bytes that follow the last ones. */
static int64_t read_on(prepi_record *self, char *target, uint64_t bytes)
{
    uint64_t done = 0;
    while (done < bytes) {
        char some[4];
        if (self->held_bytes == 0) {
            TRY(put_mark(self));
            bool is_direct = bytes - done > sizeof some;
            int got = decode_some(self, is_direct ? target + done : some,
                                  is_direct ? (size_t)(bytes - done) - sizeof some : 1);
            TRY(got);
            if (got == 0)
                break;
            if (is_direct) {
                done += (uint64_t)got;
                continue;
            }
            memcpy(self->held, some, sizeof some);
            self->held_bytes = (size_t)got;
        }
        target[done++] = self->held[0];
        memmove(self->held, self->held + 1, --self->held_bytes);
    }
    return (int64_t)done;
}

static int64_t read_record(prepi_record *self, uint64_t offset, char *target, uint64_t bytes)
{
    if (offset < self->at.text - self->held_bytes) {
        size_t mark = self->mark_count - 1; /* the first one is at 0 */
        while (self->marks[mark].text > offset)
            mark--;
        self->at = self->marks[mark];
        self->held_bytes = 0;
    }
    for (uint64_t now; (now = self->at.text - self->held_bytes) < offset;) {
        char skipped[1024];
        int64_t got = read_on(self, skipped, size_min(offset - now, sizeof skipped));
        if (got <= 0)
            return got;
    }
    return read_on(self, target, bytes);
}

/* ---- what is read ---- */

int64_t prepi_read(prepi_maker *self, uint64_t offset, char *target, uint64_t bytes)
{
    datai_input *input = &self->input;
    if (self->record)
        return read_record(self->record, offset, target, bytes);
    if (offset < input->offset) { /* it was checked when it was read first */
        bytes = size_min(bytes, input->offset - offset);
        TRY(datai_pread(self->fd, self->work->path, offset, bytes, target));
        return (int64_t)bytes;
    }
    bytes = size_min(bytes, self->work->bytes - offset);
    if (bytes > 0)
        TRY(datai_input_read(input, bytes, target));
    return (int64_t)bytes;
}

uint64_t prepi_begin(const prepi_maker *self)
{
    return self->record ? 0 : self->work->begin;
}

uint64_t prepi_line(const prepi_maker *self)
{
    return self->record ? self->record->line : self->line;
}

uint64_t prepi_progress(const prepi_maker *self)
{
    if (self->record)
        return self->record->at.file;
    return size_max(self->text_offset, self->input.offset - self->text_bytes); /* in a stream */
}

/* ---- text without a safe cut ---- */

struct stretch {
    prepi_maker *maker;
    uint64_t begin; /* offset of its first byte */
    uint64_t end;   /* of the safe cut after it; UINT64_MAX: none is found */
    uint64_t seen;  /* offset up to which cuts were looked for */
    bool is_ended;  /* its last id is the end token */
};

/* Looks for a safe cut in bytes that are read for the first time. A cut near the ends of the bytes
 * may be missed. */
static void look_for_cut(struct stretch *self, const char *text, uint64_t offset, uint64_t bytes)
{
    const tokenizer *words = self->maker->options->words;
    if (offset + bytes <= self->seen || !self->maker->can_cut)
        return;
    for (uint64_t at = CONTEXT; at + 1 < bytes; at++)
        if (tokenizer_cut_is_safe(words, text, bytes, at)) {
            self->end = offset + at;
            return;
        }
    self->seen = offset + bytes;
}

static int read_stretch(void *user, uint64_t offset, char *target, size_t bytes)
{
    struct stretch *self = user;
    prepi_maker *maker = self->maker;
    uint64_t at = self->begin + offset, held = maker->text_offset + maker->text_bytes;
    TRY(prepi_check_stop(maker));
    if (at < held) {
        bytes = (size_t)size_min(bytes, held - at);
        memcpy(target, maker->text + (at - maker->text_offset), bytes);
        return (int)bytes;
    }
    int64_t got = prepi_read(maker, at, target, size_min(bytes, self->end - at));
    if (got > 0) {
        look_for_cut(self, target, at, (uint64_t)got);
        got = (int64_t)size_min((uint64_t)got, self->end - at);
    }
    return (int)got;
}

static int add_stretch(void *user, const int32_t *ids, size_t count)
{
    struct stretch *self = user;
    prepi_maker *maker = self->maker;
    prepi_piece *piece = &maker->pieces[0];
    piece->token_count = piece->end_count = 0;
    TRY(prepi_add_ids(&maker->rules, piece, ids, count));
    self->is_ended = prepi_is_end(&maker->rules, ids[count - 1]);
    TRY(prepi_write(maker, piece));
    prepi_tell(maker, false);
    return 0;
}

static int encode_stretch(struct stretch *self)
{
    prepi_maker *maker = self->maker;
    prepi_piece *piece = &maker->pieces[0];
    const tokenize_source source = {self, read_stretch};
    const tokenize_sink sink = {self, add_stretch};
    piece->failed.code = 0;
    piece->token_count = piece->end_count = 0;
    piece->is_record = maker->record != NULL;
    if (self->begin == prepi_begin(maker)) {
        TRY(prepi_begin_text(&maker->rules, piece));
        TRY(prepi_write(maker, piece));
    }
    TRY(tokenizer_encode_stream(maker->options->words, &source, false, &sink));
    if (self->end != UINT64_MAX)
        return 0;
    piece->token_count = piece->end_count = 0;
    TRY(prepi_end_text(&maker->rules, piece, self->is_ended));
    return prepi_write(maker, piece);
}

int prepi_stream(prepi_maker *self)
{
    struct stretch stretch = {.maker = self,
                              .begin = self->text_offset,
                              .end = UINT64_MAX,
                              .seen = self->text_offset + self->text_bytes};
    int rc = encode_stretch(&stretch);
    if (rc < 0 && rc != ERR_STOPPED)
        return err_prefix(rc, "%s:%" PRIu64, self->work->path, prepi_line(self));
    TRY(rc);
    self->is_over = stretch.end == UINT64_MAX;
    self->text_offset = self->is_over ? self->input.offset : stretch.end;
    self->text_bytes = 0;
    return 0;
}

/* ---- long records ---- */

/* The record without its long texts. */
struct shortened {
    char *text; /* [capacity] */
    size_t count, capacity;
    bool in_text, is_escaped, is_long;
    size_t text_at; /* where the present text begins in `text` */
    place *longs;   /* the contents of the long texts in the file: begin and end */
    size_t long_count, long_capacity;
    uint64_t begin; /* of the present text in the file */
};
typedef struct shortened shortened;

static const char mark_begin[] = "\\u0000long text ";

static int put(shortened *self, char byte)
{
    if (self->count == self->capacity)
        return err_set(ERR_INPUT,
                       "a long record that has more than %zu bytes beside its long texts; give a "
                       "larger tiers.host.budget, or cut it",
                       self->capacity);
    self->text[self->count++] = byte;
    return 0;
}

/* True if the present text begins with a zero, which can be written in one way only. It is left out
 * too, so that a text with a zero in front is always a mark. */
static bool is_like_mark(const shortened *self)
{
    enum { ZERO_BYTES = 6 };
    return self->count - self->text_at >= ZERO_BYTES &&
           memcmp(self->text + self->text_at, mark_begin, ZERO_BYTES) == 0;
}

static int put_long(shortened *self, uint64_t end)
{
    char mark[48];
    self->count = self->text_at;
    void *list = self->longs;
    TRY(prepi_make_room(&list, &self->long_capacity, self->long_count, 1, sizeof *self->longs));
    self->longs = list;
    snprintf(mark, sizeof mark, "%s%zu", mark_begin, self->long_count);
    self->longs[self->long_count++] = (place){.file = self->begin, .text = end};
    for (const char *at = mark; *at; at++)
        TRY(put(self, *at));
    return 0;
}

/* Takes one byte of the record. */
static int shorten(shortened *self, char byte, uint64_t offset)
{
    if (!self->in_text) {
        TRY(put(self, byte));
        self->in_text = byte == '"';
        self->text_at = self->count;
        self->begin = offset + 1;
        return 0;
    }
    bool was_escaped = self->is_escaped;
    self->is_escaped = !was_escaped && byte == '\\';
    if (byte == '"' && !was_escaped) {
        self->is_long = self->is_long || is_like_mark(self);
        if (self->is_long)
            TRY(put_long(self, offset));
        self->in_text = self->is_long = false;
        return put(self, byte);
    }
    if (self->is_long)
        return 0;
    if (self->count - self->text_at < LONG_TEXT_BYTES)
        return put(self, byte);
    self->is_long = true;
    self->count = self->text_at;
    return 0;
}

/* Reads the record up to its newline, or the end of the file. Nothing is left in the buffer. */
static int shorten_record(prepi_maker *self, shortened *out)
{
    uint64_t offset = self->text_offset;
    for (bool is_over = false; !is_over;) {
        for (uint64_t i = 0; i < self->text_bytes; i++)
            TRY(shorten(out, self->text[i], offset + i));
        TRY(prepi_check_stop(self));
        offset += self->text_bytes;
        datai_input before = self->input;
        int64_t got = prepi_read(self, offset, self->text, self->capacity);
        if (got < 0)
            return (int)got;
        const char *newline = memchr(self->text, '\n', (size_t)got);
        is_over = newline || got == 0;
        self->text_bytes = (uint64_t)(newline ? newline - self->text : got);
        if (!newline)
            continue;
        self->input = before; /* what follows the newline is read again */
        TRY(datai_input_read(&self->input, self->text_bytes + 1, self->text));
        for (uint64_t i = 0; i < self->text_bytes; i++)
            TRY(shorten(out, self->text[i], offset + i));
    }
    self->text_offset = self->input.offset;
    self->text_bytes = 0;
    return 0;
}

/* Converts the text of a record, or only checks it. */
static int read_text(prepi_maker *self, const place *text, uint64_t line, bool is_wanted)
{
    prepi_record record = {.maker = self,
                           .begin = text->file,
                           .end = text->text,
                           .line = line,
                           .at = {.file = text->file}};
    uint64_t offset = self->text_offset;
    record.piece = mem_alloc(READ_BYTES, 1, "a long record");
    int rc = record.piece ? 0 : -ENOMEM;
    if (rc == 0 && is_wanted) {
        self->record = &record;
        self->text_offset = 0;
        rc = prepi_make(self);
        self->record = NULL;
        self->text_offset = offset;
        self->text_bytes = 0;
        self->is_over = false;
    }
    for (int64_t got = 1; rc == 0 && !is_wanted && got > 0;) {
        got = read_on(&record, self->text, self->capacity);
        rc = got < 0 ? (int)got : 0;
    }
    mem_free(record.piece);
    mem_free(record.marks);
    return rc;
}

/* The number of the long text that stands in the field of a record; -1: the text is not long. */
static int64_t find_long(const prepi_maker *self, const json_t *record, const shortened *from)
{
    const json_t *text = json_object_get(record, self->rules.field);
    size_t begin_bytes = sizeof mark_begin - sizeof "\\u0000" + 1; /* decoded */
    const char *value = json_string_value(text);
    if (json_string_length(text) <= begin_bytes || value[0] != '\0' ||
        memcmp(value + 1, mark_begin + 6, begin_bytes - 1) != 0)
        return -1;
    uint64_t number = strtoull(value + begin_bytes, NULL, 10);
    return number < from->long_count ? (int64_t)number : -1;
}

static int take_shortened(prepi_maker *self, const shortened *from, uint64_t line)
{
    json_error_t error;
    prepi_piece *piece = &self->pieces[0];
    json_t *record =
        json_loadb(from->text, from->count, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &error);
    if (!record)
        return err_set(ERR_INPUT, "%s", error.text);
    int64_t wanted = find_long(self, record, from);
    int rc = prepi_check_record(&self->rules, record);
    for (size_t i = 0; rc == 0 && i < from->long_count; i++)
        rc = (int64_t)i == wanted ? 0 : read_text(self, &from->longs[i], line, false);
    piece->failed.code = 0;
    piece->token_count = piece->end_count = 0;
    if (rc == 0 && wanted < 0)
        rc = prepi_take_record(&self->rules, piece, record);
    if (rc == 0 && wanted < 0)
        rc = prepi_write(self, piece);
    json_decref(record);
    return rc == 0 && wanted >= 0 ? read_text(self, &from->longs[wanted], line, true) : rc;
}

int prepi_long_record(prepi_maker *self)
{
    shortened shorter = {.capacity = self->capacity / COPY_SHARE};
    uint64_t line = self->line;
    shorter.text = mem_alloc(shorter.capacity, 1, "a long record");
    int rc = shorter.text ? shorten_record(self, &shorter) : -ENOMEM;
    if (rc == 0)
        rc = take_shortened(self, &shorter, line);
    mem_free(shorter.text);
    mem_free(shorter.longs);
    self->line = line + 1;
    bool has_place = strncmp(err_text(), self->work->path, strlen(self->work->path)) == 0;
    return rc < 0 && !has_place ? prepi_prefix_place(&self->rules, line, 0, rc) : rc;
}
