/* The reader of safetensors files; see safetensors.h. */
#include "format/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/text.h"
#include "format/format_json.h"

enum { NAME_BYTES_MAX = 200 };

static const format_json_limits header_limits = {
    .bytes_max = SAFETENSORS_HEADER_MAX_BYTES,
    .values_max = 8 << 20, /* a million tensors */
    .depth_max = 3,        /* header, tensor, shape */
};

struct type_row {
    const char *name;
    enum safetensors_type type;
    uint32_t bits;
};

static const struct type_row type_rows[] = {
    {"F32", SAFETENSORS_F32, 32},          {"BF16", SAFETENSORS_BF16, 16},
    {"F16", SAFETENSORS_F16, 16},          {"BOOL", SAFETENSORS_OTHER, 8},
    {"U8", SAFETENSORS_OTHER, 8},          {"I8", SAFETENSORS_OTHER, 8},
    {"I16", SAFETENSORS_OTHER, 16},        {"U16", SAFETENSORS_OTHER, 16},
    {"I32", SAFETENSORS_OTHER, 32},        {"U32", SAFETENSORS_OTHER, 32},
    {"I64", SAFETENSORS_OTHER, 64},        {"U64", SAFETENSORS_OTHER, 64},
    {"F64", SAFETENSORS_OTHER, 64},        {"C64", SAFETENSORS_OTHER, 64},
    {"F8_E4M3", SAFETENSORS_OTHER, 8},     {"F8_E5M2", SAFETENSORS_OTHER, 8},
    {"F8_E8M0", SAFETENSORS_OTHER, 8},     {"F6_E2M3", SAFETENSORS_OTHER, 6},
    {"F6_E3M2", SAFETENSORS_OTHER, 6},     {"F4", SAFETENSORS_OTHER, 4},
    {"F8_E4M3FNUZ", SAFETENSORS_OTHER, 8}, {"F8_E5M2FNUZ", SAFETENSORS_OTHER, 8},
};

/* Names the file and tensor that are read, for messages. */
struct decoder {
    const char *path;
    const char *name; /* of the tensor */
    uint64_t data_begin, data_bytes;
};

static int read_type(const struct decoder *at, const json_t *item, safetensors_tensor *out,
                     uint32_t *bits)
{
    char shown[FORMAT_SHOWN_BYTES];
    const char *name = json_string_value(json_object_get(item, "dtype"));
    if (!name)
        return err_set(ERR_INPUT, "%s: tensor \"%s\" has no dtype", at->path, at->name);
    for (size_t i = 0; i < sizeof type_rows / sizeof type_rows[0]; i++) {
        if (strcmp(type_rows[i].name, name) != 0)
            continue;
        out->type = type_rows[i].type;
        *bits = type_rows[i].bits;
        snprintf(out->type_name, sizeof out->type_name, "%s", name);
        return 0;
    }
    return err_set(ERR_INPUT, "%s: tensor \"%s\" has dtype \"%s\", which is not known", at->path,
                   at->name, format_show(name, shown));
}

/* Reads a whole number of at least 0; jansson refuses those above 2^63. */
static bool read_count(const json_t *item, uint64_t *out)
{
    if (!json_is_integer(item) || json_integer_value(item) < 0)
        return false;
    *out = (uint64_t)json_integer_value(item);
    return true;
}

static int read_shape(const struct decoder *at, const json_t *item, safetensors_tensor *out)
{
    const json_t *shape = json_object_get(item, "shape");
    size_t count = json_array_size(shape);
    if (!json_is_array(shape))
        return err_set(ERR_INPUT, "%s: tensor \"%s\" has no shape", at->path, at->name);
    if (count > SAFETENSORS_DIMS_MAX)
        return err_set(ERR_INPUT, "%s: tensor \"%s\" has %zu dimensions, at most %d are read",
                       at->path, at->name, count, SAFETENSORS_DIMS_MAX);
    out->dim_count = (uint32_t)count;
    out->elem_count = 1;
    for (size_t i = 0; i < count; i++) {
        if (!read_count(json_array_get(shape, i), &out->shape[i]))
            return err_set(ERR_INPUT,
                           "%s: tensor \"%s\": number %zu of its shape is no whole number "
                           "from 0 on",
                           at->path, at->name, i);
        if (size_mul(out->elem_count, out->shape[i], &out->elem_count) < 0)
            return err_set(ERR_INPUT, "%s: tensor \"%s\" has a shape of more than 2^64 elements",
                           at->path, at->name);
    }
    return 0;
}

static int read_offsets(const struct decoder *at, const json_t *item, uint32_t bits,
                        safetensors_tensor *out)
{
    const json_t *offsets = json_object_get(item, "data_offsets");
    uint64_t begin, end, whole_bits;
    if (json_array_size(offsets) != 2 || !read_count(json_array_get(offsets, 0), &begin) ||
        !read_count(json_array_get(offsets, 1), &end) || begin > end)
        return err_set(ERR_INPUT,
                       "%s: tensor \"%s\": data_offsets are not two numbers, the first not "
                       "above the second",
                       at->path, at->name);
    if (end > at->data_bytes)
        return err_set(ERR_INPUT,
                       "%s: tensor \"%s\" ends at byte %" PRIu64 " of the data, but the file "
                       "has %" PRIu64 " bytes of data: it is cut short, or damaged",
                       at->path, at->name, end, at->data_bytes);
    char shape[SAFETENSORS_SHAPE_BYTES];
    if (size_mul(out->elem_count, bits, &whole_bits) < 0 || whole_bits % 8 != 0 ||
        whole_bits / 8 != end - begin)
        return err_set(
            ERR_INPUT,
            "%s: tensor \"%s\" of shape %s and dtype %s has data_offsets of %" PRIu64 " bytes",
            at->path, at->name, safetensors_shape(out, shape), out->type_name, end - begin);
    out->file_offset = at->data_begin + begin;
    out->size_bytes = end - begin;
    return 0;
}

static int read_tensor(const struct decoder *at, const json_t *item, safetensors_tensor *out)
{
    char shown[FORMAT_SHOWN_BYTES];
    uint32_t bits = 0;
    if (!json_is_object(item))
        return err_set(ERR_INPUT, "%s: tensor \"%s\" is no object", at->path, at->name);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)item, key, value)
    {
        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 &&
            strcmp(key, "data_offsets") != 0)
            return err_set(ERR_INPUT, "%s: tensor \"%s\" has a key \"%s\" that is not known",
                           at->path, at->name, format_show(key, shown));
    }
    TRY(read_type(at, item, out, &bits));
    TRY(read_shape(at, item, out));
    TRY(read_offsets(at, item, bits, out));
    out->name = mem_string(at->name, "tensor name");
    return out->name ? 0 : -ENOMEM;
}

static int compare_offsets(const void *left, const void *right)
{
    const safetensors_tensor *a = left, *b = right;
    if (a->file_offset != b->file_offset)
        return a->file_offset < b->file_offset ? -1 : 1;
    if (a->size_bytes != b->size_bytes) /* tensors without bytes come first */
        return a->size_bytes < b->size_bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Checks that each tensor begins where the one before ends. */
static int check_places(const safetensors_table *self, uint64_t data_begin)
{
    uint64_t end = data_begin;
    for (uint32_t i = 0; i < self->count; i++) {
        const safetensors_tensor *tensor = &self->tensors[i];
        const char *before = i > 0 ? self->tensors[i - 1].name : "";
        if (tensor->file_offset < end)
            return err_set(ERR_INPUT, "%s: the data of tensors \"%s\" and \"%s\" overlap",
                           self->path, before, tensor->name);
        if (tensor->file_offset > end)
            return err_set(ERR_INPUT,
                           "%s: %" PRIu64 " bytes before the data of tensor \"%s\" are no "
                           "tensor's",
                           self->path, tensor->file_offset - end, tensor->name);
        end = tensor->file_offset + tensor->size_bytes;
    }
    if (end != self->file_bytes)
        return err_set(ERR_INPUT, "%s: the last %" PRIu64 " bytes of the file are no tensor's",
                       self->path, self->file_bytes - end);
    return 0;
}

static int compare_names(const void *left, const void *right)
{
    return strcmp((*(const safetensors_tensor *const *)left)->name,
                  (*(const safetensors_tensor *const *)right)->name);
}

static int check_metadata(const char *path, const json_t *metadata)
{
    char shown[FORMAT_SHOWN_BYTES];
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return err_set(ERR_INPUT, "%s: __metadata__ is no object", path);
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value)
    {
        if (!json_is_string(value))
            return err_set(ERR_INPUT, "%s: \"%s\" in __metadata__ is no text", path,
                           format_show(key, shown));
    }
    return 0;
}

/* Checks that the name can stand in messages unchanged. */
static int check_name(const char *path, const char *name)
{
    char shown[FORMAT_SHOWN_BYTES];
    size_t length = 0;
    while (name[length] && (unsigned char)name[length] >= ' ' && name[length] != 0x7f)
        length++;
    if (name[length] || length == 0 || length > NAME_BYTES_MAX)
        return err_set(ERR_INPUT,
                       "%s: the name of tensor \"%s\" is empty, longer than %d bytes, or has "
                       "control characters",
                       path, format_show(name, shown), NAME_BYTES_MAX);
    return 0;
}

static int fill(safetensors_table *self, const json_t *doc, uint64_t data_begin)
{
    const char *name;
    json_t *item;
    self->tensors = mem_alloc(json_object_size(doc), sizeof *self->tensors, "tensors of a file");
    self->by_name = mem_alloc(json_object_size(doc), sizeof *self->by_name, "tensors of a file");
    if (!self->tensors || !self->by_name)
        return -ENOMEM;
    json_object_foreach((json_t *)(uintptr_t)doc, name, item)
    {
        const struct decoder at = {.path = self->path,
                                   .name = name,
                                   .data_begin = data_begin,
                                   .data_bytes = self->file_bytes - data_begin};
        if (strcmp(name, "__metadata__") == 0) {
            TRY(check_metadata(self->path, item));
            continue;
        }
        TRY(check_name(self->path, name));
        TRY(read_tensor(&at, item, &self->tensors[self->count++]));
    }
    qsort(self->tensors, self->count, sizeof *self->tensors, compare_offsets);
    for (uint32_t i = 0; i < self->count; i++)
        self->by_name[i] = &self->tensors[i];
    qsort(self->by_name, self->count, sizeof *self->by_name, compare_names);
    return check_places(self, data_begin);
}

int safetensors_decode(const char *path, const char *header, uint64_t header_bytes,
                       uint64_t file_bytes, safetensors_table *out)
{
    memset(out, 0, sizeof *out);
    json_t *doc;
    if (header_bytes == 0 || header[0] != '{')
        return err_set(ERR_INPUT, "%s is not a safetensors file: its header does not begin with {",
                       path);
    TRY(format_json_parse(path, header, header_bytes, &header_limits, &doc));
    out->file_bytes = file_bytes;
    out->path = mem_string(path, "path of a file");
    int rc = out->path ? fill(out, doc, SAFETENSORS_LENGTH_BYTES + header_bytes) : -ENOMEM;
    json_decref(doc);
    if (rc < 0)
        safetensors_close(out);
    return rc;
}

/* Reads `size_bytes` of the file from `offset` on. */
static int read_at(const char *path, int fd, uint64_t offset, uint64_t size_bytes, void *target)
{
    int64_t got = file_read_at(fd, offset, target, size_bytes);
    if (got < 0)
        return err_errno((int)-got, "cannot read %" PRIu64 " bytes at offset %" PRIu64 " of %s",
                         size_bytes, offset, path);
    if ((uint64_t)got < size_bytes)
        return err_set(ERR_INPUT, "%s ends at byte %" PRIu64 ", before its header says", path,
                       offset + (uint64_t)got);
    return 0;
}

static int open_header(const char *path, int fd, uint64_t file_bytes, safetensors_table *out)
{
    unsigned char bytes[SAFETENSORS_LENGTH_BYTES];
    uint64_t length = 0;
    if (file_bytes < sizeof bytes)
        return err_set(ERR_INPUT, "%s has %" PRIu64 " bytes, too few for a safetensors file", path,
                       file_bytes);
    TRY(read_at(path, fd, 0, sizeof bytes, bytes));
    for (int i = SAFETENSORS_LENGTH_BYTES - 1; i >= 0; i--)
        length = length << 8 | bytes[i];
    if (memcmp(bytes, "version ", sizeof bytes) == 0)
        return err_set(ERR_INPUT,
                       "%s is a pointer of Git LFS in place of the weights: git lfs pull, in its "
                       "repository, fetches them",
                       path);
    if (length > SAFETENSORS_HEADER_MAX_BYTES)
        return err_set(ERR_INPUT,
                       "%s: a header of %" PRIu64 " bytes is more than the %" PRIu64
                       " that a safetensors file can have: it is another file, or damaged",
                       path, length, SAFETENSORS_HEADER_MAX_BYTES);
    if (length > file_bytes - sizeof bytes)
        return err_set(ERR_INPUT,
                       "%s: the header has %" PRIu64 " bytes, but the file %" PRIu64
                       ": it is cut short, or damaged",
                       path, length, file_bytes);
    char *header = mem_alloc(length, 1, "header of a file");
    if (!header)
        return -ENOMEM;
    int rc = read_at(path, fd, sizeof bytes, length, header);
    if (rc == 0)
        rc = safetensors_decode(path, header, length, file_bytes, out);
    mem_free(header);
    return rc;
}

int safetensors_open(const char *path, safetensors_table *out)
{
    int fd;
    uint64_t file_bytes;
    memset(out, 0, sizeof *out);
    TRY(file_open(path, &fd, &file_bytes));
    int rc = open_header(path, fd, file_bytes, out);
    close(fd);
    return rc;
}

void safetensors_close(safetensors_table *self)
{
    for (uint32_t i = 0; i < self->count; i++)
        mem_free(self->tensors[i].name);
    mem_free(self->tensors);
    mem_free(self->by_name);
    mem_free(self->path);
    memset(self, 0, sizeof *self);
}

static int compare_name(const void *name, const void *item)
{
    return strcmp(name, (*(const safetensors_tensor *const *)item)->name);
}

const safetensors_tensor *safetensors_find(const safetensors_table *self, const char *name)
{
    const safetensors_tensor *const *found =
        self->count ? bsearch(name, self->by_name, self->count, sizeof *found, compare_name) : NULL;
    return found ? *found : NULL;
}

char *safetensors_shape(const safetensors_tensor *tensor, char text[SAFETENSORS_SHAPE_BYTES])
{
    snprintf(text, SAFETENSORS_SHAPE_BYTES, "[");
    for (uint32_t i = 0; i < tensor->dim_count; i++)
        text_add(text, SAFETENSORS_SHAPE_BYTES, "%s%" PRIu64, i > 0 ? ", " : "", tensor->shape[i]);
    text_add(text, SAFETENSORS_SHAPE_BYTES, "]");
    return text;
}

int safetensors_read(const safetensors_table *self, int fd, const safetensors_tensor *tensor,
                     uint64_t begin, uint64_t count, void *target)
{
    if (count > tensor->size_bytes || begin > tensor->size_bytes - count)
        return err_set(ERR_INTERNAL, "%s: bytes [%" PRIu64 ", +%" PRIu64 ") of tensor %s",
                       self->path, begin, count, tensor->name);
    return read_at(self->path, fd, tensor->file_offset + begin, count, target);
}
