/* NumPy's array files as token files. See corpus.h.
 *
 *   offset  bytes  field
 *   0       6      "\x93NUMPY"
 *   6       2      version: 1.0, 2.0 or 3.0
 *   8       2      length of the header (4 bytes from version 2.0 on)
 *   10, 12         header: a Python dictionary of three keys, in any order, such as
 *                  {'descr': '<u2', 'fortran_order': False, 'shape': (1000,), },
 *                  then blanks and a newline
 *   then           the elements
 *
 * Supported are integers of 1 to 8 bytes, little-endian, of one dimension, or of two in C order,
 * where each row is a document. Anything else in the header is refused, and the file must be
 * exactly as long as its shape says. Source: NumPy, numpy/lib/format.py. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "data/data_internal.h"

enum {
    MAGIC_BYTES = 6,
    LENGTH_AT = 8,
    HEADER_MAX = 65536, /* the header of such an array has about 100 bytes */
    DESCR_BYTES = 16,
    DIMENSIONS_MAX = 2,
};

/* The dictionary during reading. */
struct header {
    const char *path;
    const char *at, *end;
    char descr[DESCR_BYTES];
    bool has_descr, has_order, has_shape, is_fortran;
    uint64_t shape[DIMENSIONS_MAX];
    uint32_t dimension_count;
};

bool datai_is_npy(const unsigned char *begin, uint64_t bytes)
{
    return bytes >= MAGIC_BYTES && memcmp(begin, "\x93NUMPY", MAGIC_BYTES) == 0;
}

static int damaged(const struct header *self, const char *what)
{
    return err_set(ERR_INPUT, "the header of the NumPy file %s cannot be read: %s", self->path,
                   what);
}

static void skip_blanks(struct header *self)
{
    while (self->at < self->end && isspace((unsigned char)*self->at))
        self->at++;
}

/* Skips blanks. If the next character is `wanted`, takes it and returns true. */
static bool take(struct header *self, char wanted)
{
    skip_blanks(self);
    if (self->at == self->end || *self->at != wanted)
        return false;
    self->at++;
    return true;
}

/* Reads a quoted text without escapes. */
static int take_text(struct header *self, char *text, size_t text_bytes)
{
    skip_blanks(self);
    char quote = self->at < self->end ? *self->at : '\0';
    if (quote != '\'' && quote != '"')
        return damaged(self, "text in quotes was expected");
    const char *from = ++self->at;
    while (self->at < self->end && *self->at != quote && *self->at != '\\')
        self->at++;
    size_t length = (size_t)(self->at - from);
    if (self->at == self->end || *self->at != quote || length >= text_bytes)
        return damaged(self, "a text is too long or does not end");
    memcpy(text, from, length);
    text[length] = '\0';
    self->at++;
    return 0;
}

static bool take_word(struct header *self, const char *word)
{
    skip_blanks(self);
    size_t length = strlen(word);
    if ((size_t)(self->end - self->at) < length || memcmp(self->at, word, length) != 0)
        return false;
    self->at += length;
    return true;
}

static int take_count(struct header *self, uint64_t *out)
{
    *out = 0;
    skip_blanks(self);
    if (self->at == self->end || !isdigit((unsigned char)*self->at))
        return damaged(self, "a whole number was expected in its shape");
    for (; self->at < self->end && isdigit((unsigned char)*self->at); self->at++) {
        TRY(size_mul(*out, 10, out));
        TRY(size_add(*out, (uint64_t)(*self->at - '0'), out));
    }
    if (self->at < self->end && *self->at == 'L') /* the suffix of Python 2 */
        self->at++;
    return 0;
}

static int take_shape(struct header *self)
{
    if (!take(self, '('))
        return damaged(self, "its shape is no tuple");
    while (!take(self, ')')) {
        if (self->dimension_count == DIMENSIONS_MAX)
            return err_set(
                ERR_INPUT,
                "the NumPy file %s has an array of more than two dimensions; give tokens "
                "in one, or documents as rows",
                self->path);
        TRY(take_count(self, &self->shape[self->dimension_count++]));
        if (take(self, ','))
            continue;
        if (!take(self, ')'))
            return damaged(self, "its shape does not end");
        break;
    }
    return 0;
}

static int take_entry(struct header *self)
{
    char key[DESCR_BYTES];
    TRY(take_text(self, key, sizeof key));
    if (!take(self, ':'))
        return damaged(self, "a key has no value");
    if (strcmp(key, "descr") == 0 && !self->has_descr) {
        self->has_descr = true;
        skip_blanks(self);
        if (self->at < self->end && *self->at == '[')
            return err_set(ERR_INPUT,
                           "the NumPy file %s has an array of structures, which are not tokens",
                           self->path);
        return take_text(self, self->descr, sizeof self->descr);
    }
    if (strcmp(key, "fortran_order") == 0 && !self->has_order) {
        self->has_order = true;
        self->is_fortran = take_word(self, "True");
        return self->is_fortran || take_word(self, "False")
                   ? 0
                   : damaged(self, "fortran_order is neither True nor False");
    }
    if (strcmp(key, "shape") == 0 && !self->has_shape) {
        self->has_shape = true;
        return take_shape(self);
    }
    return damaged(self, "a key is unknown, or is there twice");
}

static int read_dictionary(struct header *self)
{
    if (!take(self, '{'))
        return damaged(self, "it is no dictionary");
    while (!take(self, '}')) {
        TRY(take_entry(self));
        if (take(self, ','))
            continue;
        if (!take(self, '}'))
            return damaged(self, "the dictionary does not end");
        break;
    }
    skip_blanks(self);
    if (self->at != self->end)
        return damaged(self, "something follows the dictionary");
    if (!self->has_descr || !self->has_order || !self->has_shape)
        return damaged(self, "descr, fortran_order or shape is missing");
    return 0;
}

static int find_type(struct header *self, datai_type *type)
{
    static const char *const orders = "<|=";
    const char *descr = self->descr;
    bool is_known = strlen(descr) == 3 && (descr[1] == 'u' || descr[1] == 'i') &&
                    strchr("1248", descr[2]) != NULL;
    if (!is_known)
        return err_set(ERR_INPUT,
                       "the NumPy file %s holds elements of type %s, which are not tokens; store "
                       "integers, such as uint16, int32, uint32 or int64",
                       self->path, self->descr);
    *type = (datai_type){.bytes = (uint32_t)(descr[2] - '0'), .is_signed = descr[1] == 'i'};
    if (type->bytes == 1 || strchr(orders, descr[0]))
        return 0;
    return err_set(ERR_INPUT,
                   "the NumPy file %s holds elements of type %s, in big-endian order; store them "
                   "little-endian",
                   self->path, self->descr);
}

/* Checks type, shape and the file's length against each other. */
static int take_array(struct header *self, uint64_t data_begin, datai_file *file)
{
    TRY(find_type(self, &file->type));
    bool is_matrix = self->dimension_count == 2;
    if (self->dimension_count == 0)
        return err_set(ERR_INPUT, "the NumPy file %s holds a single number", self->path);
    if (is_matrix && self->is_fortran && self->shape[0] > 1 && self->shape[1] > 1)
        return err_set(
            ERR_INPUT,
            "the NumPy file %s holds columns one after another (fortran_order); store it "
            "in C order, so that documents are rows",
            self->path);
    uint64_t count = self->shape[0], bytes;
    int rc = is_matrix ? size_mul(count, self->shape[1], &count) : 0;
    if (rc == 0)
        rc = size_mul(count, file->type.bytes, &bytes);
    if (rc == 0)
        rc = size_add(bytes, data_begin, &bytes);
    if (rc < 0 || bytes != file->file_bytes) {
        char rows[48] = "";
        if (is_matrix)
            snprintf(rows, sizeof rows, "%llu rows of ", (unsigned long long)self->shape[0]);
        return err_set(ERR_INPUT,
                       "the NumPy file %s has %llu bytes, but its shape, %s%llu elements of %u "
                       "bytes, is %s: it is truncated or damaged",
                       self->path, (unsigned long long)file->file_bytes, rows,
                       (unsigned long long)self->shape[is_matrix ? 1 : 0], file->type.bytes,
                       rc < 0 ? "beyond all files" : "not as long");
    }
    if (count == 0)
        return err_set(ERR_INPUT, "the NumPy file %s holds no tokens", self->path);
    file->data_begin = data_begin;
    file->token_count = count;
    if (is_matrix) {
        file->documents = DATAI_ROWS;
        file->document_count = self->shape[0];
        file->row_tokens = self->shape[1];
    }
    return 0;
}

int datai_npy(datai_file *self)
{
    unsigned char begin[LENGTH_AT + 4] = {0};
    uint64_t known = size_min(self->file_bytes, sizeof begin);
    TRY(datai_pread(self->fd, self->path, 0, known, begin));
    if (!datai_is_npy(begin, self->file_bytes))
        return err_set(ERR_INPUT, "%s does not begin as a NumPy array does (\\x93NUMPY)",
                       self->path);
    unsigned major = begin[MAGIC_BYTES], minor = begin[MAGIC_BYTES + 1];
    if (known < sizeof begin || major < 1 || major > 3 || minor != 0)
        return err_set(ERR_INPUT, "the NumPy file %s has version %u.%u; 1.0, 2.0 and 3.0 are known",
                       self->path, major, minor);
    uint64_t length_bytes = major == 1 ? 2 : 4, length = 0;
    memcpy(&length, begin + LENGTH_AT, length_bytes);
    uint64_t data_begin = LENGTH_AT + length_bytes + length;
    if (data_begin > self->file_bytes)
        return err_set(
            ERR_INPUT,
            "the NumPy file %s says that its header has %llu bytes, but the file has %llu: "
            "it is truncated or damaged",
            self->path, (unsigned long long)length, (unsigned long long)self->file_bytes);
    if (length > HEADER_MAX)
        return err_set(ERR_INPUT,
                       "the header of the NumPy file %s has %llu bytes, and up to %d are read: "
                       "save the array again as integers",
                       self->path, (unsigned long long)length, (int)HEADER_MAX);
    char *text = mem_alloc(length, 1, "header of a NumPy file");
    if (!text)
        return -ENOMEM;
    struct header header = {.path = self->path, .at = text, .end = text + length};
    int rc = datai_pread(self->fd, self->path, LENGTH_AT + length_bytes, length, text);
    if (rc == 0)
        rc = read_dictionary(&header);
    if (rc == -EOVERFLOW)
        rc = damaged(&header, "its shape has too large a number");
    if (rc == 0)
        rc = take_array(&header, data_begin, self);
    mem_free(text);
    return rc;
}
