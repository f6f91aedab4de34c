/* Kinds of JSON records: which one a file holds, by the names of the members of its first record.
 * See data_internal.h. Reads as much of the file as the first record takes, in pieces. One thread;
 * allocates nothing. */
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "base/text.h"
#include "base/utf8.h"
#include "data/data_internal.h"

enum { PIECE_BYTES = 32768 };

/* The kinds, in the order in which they are looked for. A record with the members of several is of
 * the first kind: data sets often have, beside these members, the whole as "text". */
static const struct kind {
    enum data_format format;
    const char *members[2]; /* those that a record must have */
} kinds[] = {
    {DATA_MESSAGES, {"messages", NULL}},
    {DATA_SHAREGPT, {"conversations", NULL}},
    {DATA_ALPACA, {"instruction", "output"}},
    {DATA_PROMPT_COMPLETION, {"prompt", "completion"}},
};
enum { KIND_COUNT = sizeof kinds / sizeof kinds[0] };

bool corpus_is_json(enum data_format format)
{
    return format == DATA_JSONL || format == DATA_MESSAGES || format == DATA_ALPACA ||
           format == DATA_SHAREGPT || format == DATA_PROMPT_COMPLETION;
}

/* ---- names of members ---- */

/* True if `name`, which may have been cut, is that of a member. */
static bool is_name(const char *name, const char *member)
{
    return strncmp(name, member, DATAI_NAME_BYTES - 1) == 0;
}

/* True for members that decide the kind of a record. */
static bool decides(const datai_names *self, const char *name)
{
    bool is_one = is_name(name, self->field);
    for (size_t i = 0; i < KIND_COUNT; i++)
        for (int m = 0; m < 2; m++)
            is_one = is_one || (kinds[i].members[m] && is_name(name, kinds[i].members[m]));
    return is_one;
}

void datai_names_add(datai_names *self, const char *name, size_t bytes, char value)
{
    char short_name[DATAI_NAME_BYTES];
    size_t whole = utf8_valid_bytes(name, size_min(bytes, DATAI_NAME_BYTES - 1));
    memcpy(short_name, name, whole);
    short_name[whole] = '\0';
    uint32_t slot = self->count++;
    if (slot >= DATAI_NAMES_MAX) {
        if (!decides(self, short_name) || datai_names_value(self, short_name) != '\0')
            return;
        for (slot = DATAI_NAMES_MAX - 1; slot > 0 && decides(self, self->names[slot]);)
            slot--;
    }
    memcpy(self->names[slot], short_name, whole + 1);
    self->values[slot] = value;
}

char datai_names_value(const datai_names *self, const char *name)
{
    for (uint32_t i = 0; i < self->count && i < DATAI_NAMES_MAX; i++)
        if (is_name(self->names[i], name))
            return self->values[i];
    return '\0';
}

static bool has(const datai_names *self, const char *name)
{
    return datai_names_value(self, name) != '\0';
}

bool datai_kind_fits(enum data_format kind, const char *field, const datai_names *names)
{
    for (size_t i = 0; i < KIND_COUNT; i++)
        if (kinds[i].format == kind)
            return has(names, kinds[i].members[0]) &&
                   (!kinds[i].members[1] || has(names, kinds[i].members[1]));
    return has(names, field);
}

enum data_format datai_kind_of(const char *field, const datai_names *names)
{
    if (strcmp(field, "text") != 0 && has(names, field))
        return DATA_JSONL; /* somebody has named this field */
    for (size_t i = 0; i < KIND_COUNT; i++)
        if (datai_kind_fits(kinds[i].format, field, names))
            return kinds[i].format;
    return has(names, field) ? DATA_JSONL : DATA_AUTO;
}

int datai_refuse_kind(enum data_format wanted, const char *field, const datai_names *names)
{
    char found[DATAI_KIND_BYTES] = "", known[DATAI_KIND_BYTES] = "";
    for (uint32_t i = 0; i < names->count && i < DATAI_NAMES_MAX; i++)
        text_add(found, sizeof found, "%s\"%s\"", i ? ", " : "", names->names[i]);
    if (names->count > DATAI_NAMES_MAX)
        text_add(found, sizeof found, " and %u more", names->count - DATAI_NAMES_MAX);
    for (size_t i = 0; i < KIND_COUNT; i++)
        text_add(known, sizeof known, "%s (\"%s\"%s%s%s), ", data_format_name(kinds[i].format),
                 kinds[i].members[0], kinds[i].members[1] ? ", \"" : "",
                 kinds[i].members[1] ? kinds[i].members[1] : "", kinds[i].members[1] ? "\"" : "");
    text_add(known, sizeof known, "or a text in \"%s\" (the member that \"field\" names)", field);
    char kind[64] = "";
    if (wanted == DATA_JSONL)
        snprintf(kind, sizeof kind, ", and records of text are read");
    else if (wanted != DATA_AUTO)
        snprintf(kind, sizeof kind, ", and records of the kind %s are read",
                 data_format_name(wanted));
    return err_set(ERR_INPUT, "the record has %s%s; known are %s",
                   names->count ? found : "no members", kind, known);
}

/* ---- the first record ---- */

struct reader {
    int fd;
    const char *path;
    uint64_t bytes, offset; /* of the file; of the next byte after the piece */
    char piece[PIECE_BYTES];
    size_t at, count;
    bool spans_lines; /* a newline was read */
};

/* The next byte, or -1 at the end of the file. An error goes to *rc. */
static int peek(struct reader *self, int *rc)
{
    if (self->at < self->count)
        return (unsigned char)self->piece[self->at];
    self->at = self->count = 0;
    uint64_t part = size_min(self->bytes - self->offset, sizeof self->piece);
    if (*rc == 0 && part > 0)
        *rc = datai_pread(self->fd, self->path, self->offset, part, self->piece);
    if (*rc < 0 || part == 0)
        return -1;
    self->offset += part;
    self->count = part;
    return (unsigned char)self->piece[0];
}

static int next(struct reader *self, int *rc)
{
    int byte = peek(self, rc);
    self->at += byte >= 0;
    self->spans_lines = self->spans_lines || byte == '\n';
    return byte;
}

static int next_of_blanks(struct reader *self, int *rc)
{
    int byte;
    do
        byte = next(self, rc);
    while (byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n');
    return byte;
}

/* Reads a text after its opening quote. The first bytes of it go to name[DATAI_NAME_BYTES], if that
 * is not NULL. False if it does not end. */
static bool read_text(struct reader *self, int *rc, char *name)
{
    size_t length = 0;
    for (int byte; (byte = next(self, rc)) >= 0;) {
        if (byte == '"') {
            if (name)
                name[length] = '\0';
            return true;
        }
        if (name && length + 1 < DATAI_NAME_BYTES)
            name[length++] = (char)byte;
        if (byte == '\\')
            (void)next(self, rc);
    }
    return false;
}

/* Passes over a value. Returns the comma or bracket that follows it, or -1. */
static int skip_value(struct reader *self, int *rc)
{
    uint64_t depth = 0;
    for (int byte; (byte = next(self, rc)) >= 0;) {
        if (byte == '"' && !read_text(self, rc, NULL))
            return -1;
        if (depth == 0 && (byte == ',' || byte == '}' || byte == ']'))
            return byte;
        depth += byte == '{' || byte == '[';
        depth -= byte == '}' || byte == ']';
    }
    return -1;
}

/* Reads the members of an object after its opening bracket. True if all is well-formed. */
static bool read_members(struct reader *self, int *rc, datai_names *names)
{
    char name[DATAI_NAME_BYTES];
    int byte = next_of_blanks(self, rc);
    while (byte == '"') {
        if (!read_text(self, rc, name) || next_of_blanks(self, rc) != ':')
            return false;
        byte = next_of_blanks(self, rc);
        if (byte < 0)
            return false;
        datai_names_add(names, name, strlen(name), byte > 0 ? (char)byte : '?');
        self->at--; /* it was read from the piece, and belongs to the value */
        byte = skip_value(self, rc);
        if (byte == ',')
            byte = next_of_blanks(self, rc);
    }
    return byte == '}';
}

int datai_first_record(int fd, const char *path, uint64_t bytes, const char *field,
                       datai_record *out)
{
    struct reader reader = {.fd = fd, .path = path, .bytes = bytes};
    char begin[3] = "";
    int rc = 0;
    *out = (datai_record){.names = {.field = field}};
    TRY(datai_pread(fd, path, 0, size_min(bytes, sizeof begin), begin));
    reader.offset = datai_bom_bytes(begin, bytes);
    int byte = next_of_blanks(&reader, &rc);
    if (byte == '[') {
        out->is_array = true;
        byte = next_of_blanks(&reader, &rc);
    }
    reader.spans_lines = false;
    out->is_object = byte == '{';
    if (out->is_object)
        out->is_whole = read_members(&reader, &rc, &out->names);
    out->spans_lines = reader.spans_lines;
    return rc;
}
