/* Turns a file that is one JSON array of records into JSON lines, as it reads it.
 *
 *   [                      |            (spaces)
 *     {"text": "a, b",     |            {"text": "a, b",      "more": [1, 2]}
 *      "more": [1, 2]},    |
 *     {"text": "c"}        |            {"text": "c"}
 *   ]                      |
 *
 * Each byte stays or becomes another one: a comma between records becomes a newline, a newline
 * anywhere else a space. So record n stands on line n, and the text can be cut wherever JSON lines
 * can. Only brackets and texts are followed here; each record is parsed later, when it is encoded.
 * Pure, but for datai_array_line. */
#include <string.h>
#include <unistd.h>

#include "base/size.h"
#include "data/data_internal.h"

enum { PIECE_BYTES = 32768 };

static int refuse(const datai_array *self, const char *path, const char *what)
{
    return err_set(ERR_INPUT, "%s:%llu: record %llu of the array: %s", path,
                   (unsigned long long)self->line + 1, (unsigned long long)self->record_idx + 1,
                   what);
}

/* Takes one byte that stands in no text. */
static int take(datai_array *self, const char *path, char *byte)
{
    switch (*byte) {
    case '\n':
        self->line++;
        *byte = ' ';
        return 0;
    case ' ':
    case '\t':
    case '\r':
        return 0;
    case ']':
        if (self->depth != 1)
            break;
        if (!self->has_record && self->record_idx > 0)
            return refuse(self, path, "the array ends after a comma");
        self->depth = 0;
        self->is_over = true;
        *byte = ' ';
        return 0;
    case '}':
        if (self->depth == 1)
            return refuse(self, path, "there is a } without its {");
        break;
    case ',':
        if (self->depth != 1)
            return 0;
        if (!self->has_record)
            return refuse(self, path, "there is a comma where the record should be");
        self->has_record = false;
        self->record_idx++;
        *byte = '\n';
        return 0;
    default:
        break;
    }
    self->has_record = true;
    self->in_text = *byte == '"';
    self->depth += *byte == '{' || *byte == '[';
    self->depth -= *byte == '}' || *byte == ']';
    return 0;
}

int datai_array_flatten(datai_array *self, const char *path, char *text, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++) {
        if (self->in_text) {
            bool was_escaped = self->is_escaped;
            if (text[i] == '\n')
                return refuse(self, path, "a text in it does not end on its line");
            self->is_escaped = !was_escaped && text[i] == '\\';
            self->in_text = was_escaped || text[i] != '"';
        } else if (self->depth > 0) {
            TRY(take(self, path, &text[i]));
        } else if (text[i] == '\n') {
            self->line++;
            text[i] = ' ';
        } else if (text[i] == '[' && !self->is_over) {
            self->depth = 1;
            text[i] = ' ';
        } else if (!strchr(" \t\r", text[i]) || text[i] == '\0') {
            return err_set(ERR_INPUT,
                           "%s:%llu: more text follows the end of the array; a file is one array, "
                           "or has one object a line",
                           path, (unsigned long long)self->line + 1);
        }
    }
    return 0;
}

int datai_array_end(const datai_array *self, const char *path)
{
    return self->is_over ? 0 : refuse(self, path, "the file ends before the array does");
}

uint64_t datai_array_line(const char *path, uint64_t record_idx, uint64_t offset)
{
    char piece[PIECE_BYTES];
    datai_input input;
    datai_array array = {.depth = 0};
    uint64_t bytes, in_record = 0;
    bool is_found = false;
    int fd;
    if (datai_open(path, &fd, &bytes) < 0)
        return 0;
    datai_input_start(&input, path, fd, bytes, DATAI_RECORDS, 0);
    while (!is_found && input.offset < bytes) {
        uint64_t part = size_min(bytes - input.offset, sizeof piece);
        if (datai_input_read(&input, part, piece) < 0)
            break;
        for (uint64_t i = 0; i < part && !is_found; i++)
            is_found = (array.record_idx == record_idx && in_record++ == offset) ||
                       datai_array_flatten(&array, path, &piece[i], 1) < 0;
    }
    close(fd);
    return array.line + 1;
}
