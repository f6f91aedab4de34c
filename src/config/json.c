/* JSON as people write it: comments and trailing commas, with exact positions in messages. See
 * config_internal.h. Called by job_read; allocates the text and (jansson) the document. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/foreign_json.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "config/config_internal.h"

/* The position of configi_strip. Output never overtakes input, so both share the buffer. */
struct strip {
    const char *file;
    const char *text;
    size_t text_bytes;
    size_t in;  /* next byte to read */
    size_t out; /* next byte to write */
    /* the place of the last significant character, if it is a comma after a value */
    size_t comma_out;
    bool comma;
    char last; /* the last significant character: neither blank nor comment */
    uint64_t line, column;
};
typedef struct strip strip;

static char strip_peek(const strip *self, size_t ahead)
{
    return self->in + ahead < self->text_bytes ? self->text[self->in + ahead] : '\0';
}

/* Copies one byte, or writes a blank instead. A character becomes one blank whatever number of
 * bytes it has, because columns count characters and must stay. */
static void strip_pass(strip *self, char *target, bool blank)
{
    char byte = self->text[self->in++];
    bool is_continuation = utf8_is_inner(byte);
    if (byte == '\n') {
        self->line++;
        self->column = 1;
    } else if (!is_continuation) {
        self->column++;
    }
    if (!blank || byte == '\n')
        target[self->out++] = byte;
    else if (!is_continuation)
        target[self->out++] = ' ';
}

/* Copies a string up to its closing quote. A line end also ends it; the parser then reports the
 * place. */
static void strip_string(strip *self, char *target)
{
    strip_pass(self, target, false);
    while (self->in < self->text_bytes && strip_peek(self, 0) != '\n') {
        char byte = strip_peek(self, 0);
        strip_pass(self, target, false);
        if (byte == '"')
            return;
        if (byte == '\\' && self->in < self->text_bytes && strip_peek(self, 0) != '\n')
            strip_pass(self, target, false);
    }
}

static void strip_line_comment(strip *self, char *target)
{
    while (self->in < self->text_bytes && strip_peek(self, 0) != '\n')
        strip_pass(self, target, true);
}

static int strip_block_comment(strip *self, char *target)
{
    uint64_t line = self->line, column = self->column;
    strip_pass(self, target, true);
    strip_pass(self, target, true);
    while (self->in < self->text_bytes) {
        if (strip_peek(self, 0) == '*' && strip_peek(self, 1) == '/') {
            strip_pass(self, target, true);
            strip_pass(self, target, true);
            return 0;
        }
        strip_pass(self, target, true);
    }
    return err_set(ERR_CONFIG, "%s:%" PRIu64 ":%" PRIu64 ": the comment that begins here has no */",
                   self->file, line, column);
}

/* Copies one character that the parser reads. */
static void strip_significant(strip *self, char *target)
{
    char byte = strip_peek(self, 0);
    if ((byte == '}' || byte == ']') && self->comma)
        target[self->comma_out] = ' ';
    self->comma = byte == ',' && self->last != ',' && self->last != '[' && self->last != '{' &&
                  self->last != ':' && self->last != '\0';
    self->comma_out = self->out;
    self->last = byte;
    if (byte == '"')
        strip_string(self, target);
    else
        strip_pass(self, target, false);
}

int64_t configi_strip(const char *file, char *text, size_t text_bytes)
{
    strip self = {.file = file, .text = text, .text_bytes = text_bytes, .line = 1, .column = 1};
    if (text_bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        self.in = 3; /* a byte order mark is not a character of the first line */
    while (self.in < text_bytes) {
        char byte = strip_peek(&self, 0);
        char next = strip_peek(&self, 1);
        if (byte == '#' || (byte == '/' && next == '/'))
            strip_line_comment(&self, text);
        else if (byte == '/' && next == '*')
            TRY(strip_block_comment(&self, text));
        else if (byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n')
            strip_pass(&self, text, false);
        else
            strip_significant(&self, text);
    }
    return (int64_t)self.out;
}

/* Returns advice if the library stopped at a word of Python, else "". */
static const char *python_word(const char *message)
{
    if (strstr(message, "near 'True'"))
        return "; JSON writes true";
    if (strstr(message, "near 'False'"))
        return "; JSON writes false";
    return strstr(message, "near 'None'") ? "; JSON writes null" : "";
}

int configi_parse(const char *file, const char *text, size_t text_bytes, bool any, json_t **doc)
{
    *doc = NULL;
    char *copy = mem_alloc(text_bytes + 1, 1, "JSON text");
    if (!copy)
        return -ENOMEM;
    if (text_bytes > 0)
        memcpy(copy, text, text_bytes);
    json_error_t error;
    size_t flags = JSON_REJECT_DUPLICATES | (any ? JSON_DECODE_ANY : 0);
    int64_t stripped_bytes = configi_strip(file, copy, text_bytes);
    if (stripped_bytes >= 0)
        *doc = foreign_json_parse(copy, (size_t)stripped_bytes, flags, &error);
    mem_free(copy);
    if (stripped_bytes < 0)
        return (int)stripped_bytes;
    if (!*doc)
        return err_set(ERR_CONFIG, "%s:%d:%d: %s%s", file, error.line, error.column, error.text,
                       python_word(error.text));
    return 0;
}

int configi_read_json(const char *path, json_t **doc)
{
    char *text;
    uint64_t text_bytes;
    *doc = NULL;
    TRY(file_read_any(path, CONFIGI_FILE_BYTES_MAX, &text, &text_bytes));
    int rc = configi_parse(file_name_any(path), text, text_bytes, false, doc);
    mem_free(text);
    return rc;
}

int configi_put(const char *file, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) < 0)
        return err_set(-ENOMEM, "no memory for %s", file);
    return 0;
}

/* True if the text reads back as the same document. */
static bool reads_back(const json_t *doc, const char *text, size_t text_bytes)
{
    json_t *again = json_loadb(text, text_bytes, JSON_DECODE_ANY, NULL);
    bool equal = again && json_equal(again, doc);
    json_decref(again);
    return equal;
}

int configi_dump(const json_t *doc, char **text)
{
    enum { DIGITS_USUAL = 15, DIGITS_EXACT = 17 };
    *text = NULL;
    for (int digits = DIGITS_USUAL; digits <= DIGITS_EXACT; digits++) {
        size_t flags = JSON_INDENT(2) | JSON_ENCODE_ANY | JSON_REAL_PRECISION((size_t)digits);
        size_t bytes = json_dumpb(doc, NULL, 0, flags);
        if (bytes == 0)
            return err_set(ERR_INTERNAL, "a document cannot be written as JSON");
        char *buffer = mem_alloc(bytes + 2, 1, "JSON text");
        if (!buffer)
            return -ENOMEM;
        json_dumpb(doc, buffer, bytes, flags);
        if (digits == DIGITS_EXACT || reads_back(doc, buffer, bytes)) {
            buffer[bytes] = '\n';
            *text = buffer;
            return 0;
        }
        mem_free(buffer);
    }
    return err_set(ERR_INTERNAL, "a document's numbers cannot be written exactly");
}

/* Shows a string value in quotes, on one line, cut between characters. */
static void show_string(const char *value, char text[CONFIGI_VALUE_BYTES])
{
    enum { ROOM = CONFIGI_VALUE_BYTES - 6 }; /* two quotes, three dots, the NUL */
    size_t length = strlen(value), shown = length < ROOM ? length : ROOM;
    while (shown < length && shown > 0 && utf8_is_inner(value[shown]))
        shown--;
    snprintf(text, CONFIGI_VALUE_BYTES, "\"%.*s%s\"", (int)shown, value,
             shown < length ? "..." : "");
}

char *configi_show(const json_t *value, char text[CONFIGI_VALUE_BYTES])
{
    enum { ROOM = CONFIGI_VALUE_BYTES - 4 };
    if (json_is_string(value)) {
        show_string(json_string_value(value), text);
        return text;
    }
    /* The library leaves out what does not fit; the zeros end the text. */
    memset(text, 0, CONFIGI_VALUE_BYTES);
    size_t flags = JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(12);
    if (json_dumpb(value, text, ROOM, flags) > ROOM)
        strcat(text, "...");
    return text;
}
