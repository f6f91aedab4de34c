/* The writer of safetensors files; see safetensors.h. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/size.h"
#include "format/safetensors.h"

enum { HEADER_STEP = 8 }; /* the data begins at a multiple of this */

/* After this many bytes the kernel is asked to begin writing, so that the sync at the end has
 * little left. */
#define WRITE_BEHIND_BYTES (32 * MIB)

struct writer_row {
    uint64_t file_offset, elem_count;
    uint64_t written; /* elements */
    uint64_t elem_bytes;
};

struct safetensors_writer {
    char path[FILE_PATH_BYTES], partial[FILE_PATH_BYTES];
    int fd;
    uint32_t count;
    struct writer_row *rows;
    uint64_t behind_bytes; /* written since the last hint to write */
};

static const char *const type_names[DTYPE_COUNT] = {
    [DTYPE_FP32] = "F32", [DTYPE_BF16] = "BF16", [DTYPE_FP16] = "F16"};

static uint64_t elem_bytes_of(const safetensors_row *row)
{
    return row->byte_type ? 1 : dtype_bytes(row->type);
}

static int row_bytes(const safetensors_row *row, uint64_t *elem_count, uint64_t *bytes)
{
    *elem_count = 1;
    for (uint32_t d = 0; d < row->dim_count; d++)
        TRY(size_mul(*elem_count, row->shape[d], elem_count));
    return size_mul(*elem_count, elem_bytes_of(row), bytes);
}

static json_t *describe(const safetensors_row *row, uint64_t begin, uint64_t end)
{
    json_t *shape = json_array();
    for (uint32_t d = 0; d < row->dim_count; d++)
        json_array_append_new(shape, json_integer((json_int_t)row->shape[d]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype",
                     row->byte_type ? row->byte_type : type_names[row->type], "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)end);
}

/* Makes the header's text, without its length and padding; the caller frees it with free(). Fills
 * `places` with offsets that count from the start of the data. */
static int make_header(const safetensors_row *rows, uint32_t count, struct writer_row *places,
                       char **text, uint64_t *data_bytes)
{
    json_t *doc = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    int rc = doc ? 0 : -ENOMEM;
    uint64_t end = 0;
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        uint64_t bytes, elem_count;
        TRY_GOTO(rc, row_bytes(&rows[i], &elem_count, &bytes), done);
        places[i] = (struct writer_row){
            .file_offset = end, .elem_count = elem_count, .elem_bytes = elem_bytes_of(&rows[i])};
        TRY_GOTO(rc, size_add(end, bytes, &bytes), done);
        if (json_object_set_new(doc, rows[i].name, describe(&rows[i], end, bytes)) < 0)
            rc = -ENOMEM;
        end = bytes;
    }
    if (rc == 0 && !(*text = json_dumps(doc, JSON_COMPACT)))
        rc = -ENOMEM;
    *data_bytes = end;
done:
    json_decref(doc);
    return rc == -ENOMEM ? err_set(rc, "no memory for the header of %u tensors", count) : rc;
}

/* Computes the bytes of the header as it is stored. */
static int stored_bytes(const char *text, uint64_t *bytes)
{
    *bytes = size_round_up(strlen(text), HEADER_STEP);
    if (*bytes <= SAFETENSORS_HEADER_MAX_BYTES)
        return 0;
    return err_set(ERR_INPUT,
                   "a header of %" PRIu64 " bytes is more than the %" PRIu64
                   " that a safetensors file can have: write smaller files (--shard-size)",
                   *bytes, SAFETENSORS_HEADER_MAX_BYTES);
}

static int write_at(const safetensors_writer *self, uint64_t offset, uint64_t size_bytes,
                    const void *source)
{
    int rc = file_write_at(self->fd, (int64_t)offset, source, size_bytes);
    return rc < 0 ? err_errno(-rc, "cannot write %s", self->partial) : 0;
}

/* Reserves all of the file's space, so that a lack of space shows before anything is written. */
static int reserve(const safetensors_writer *self, uint64_t file_bytes)
{
    char size[SIZE_TEXT_BYTES];
    int failed = fallocate(self->fd, 0, 0, (off_t)file_bytes) == 0 ? 0 : errno;
    if (failed == EOPNOTSUPP || failed == ENOSYS)
        failed = ftruncate(self->fd, (off_t)file_bytes) == 0 ? 0 : errno;
    if (failed != 0)
        return err_errno(failed, "no room for %s of %s", size_format(file_bytes, size), self->path);
    return 0;
}

static int begin_file(safetensors_writer *self, const safetensors_row *rows)
{
    char *text = NULL;
    uint64_t data_bytes = 0, header_bytes = 0;
    int rc = make_header(rows, self->count, self->rows, &text, &data_bytes);
    if (rc == 0)
        rc = stored_bytes(text, &header_bytes);
    unsigned char *stored =
        rc == 0 ? mem_alloc(SAFETENSORS_LENGTH_BYTES + header_bytes, 1, "header of a file") : NULL;
    if (rc == 0 && !stored)
        rc = -ENOMEM;
    if (rc == 0) {
        size_t length = strlen(text);
        for (int i = 0; i < SAFETENSORS_LENGTH_BYTES; i++)
            stored[i] = (unsigned char)(header_bytes >> 8 * i);
        memcpy(stored + SAFETENSORS_LENGTH_BYTES, text, length);
        memset(stored + SAFETENSORS_LENGTH_BYTES + length, ' ', header_bytes - length);
        rc = reserve(self, SAFETENSORS_LENGTH_BYTES + header_bytes + data_bytes);
    }
    if (rc == 0)
        rc = write_at(self, 0, SAFETENSORS_LENGTH_BYTES + header_bytes, stored);
    for (uint32_t i = 0; i < self->count; i++)
        self->rows[i].file_offset += SAFETENSORS_LENGTH_BYTES + header_bytes;
    mem_free(stored);
    free(text);
    return rc;
}

int safetensors_create(const char *path, const safetensors_row *rows, uint32_t count,
                       safetensors_writer **out)
{
    *out = NULL;
    safetensors_writer *self = mem_alloc(1, sizeof *self, "safetensors writer");
    if (!self)
        return -ENOMEM;
    self->fd = -1;
    self->count = count;
    self->rows = mem_alloc(count, sizeof *self->rows, "tensors to write");
    int rc =
        self->rows ? file_open_temporary(path, FILE_SHARED, self->partial, &self->fd) : -ENOMEM;
    snprintf(self->path, sizeof self->path, "%s", path);
    if (rc == 0)
        rc = begin_file(self, rows);
    if (rc < 0) {
        safetensors_abandon(self);
        return rc;
    }
    *out = self;
    return 0;
}

int safetensors_write(safetensors_writer *self, uint32_t row, uint64_t begin, uint64_t count,
                      const void *source)
{
    struct writer_row *to = &self->rows[row];
    if (row >= self->count || count > to->elem_count || begin > to->elem_count - count)
        return err_set(ERR_INTERNAL, "%s: elements [%" PRIu64 ", +%" PRIu64 ") of tensor %u",
                       self->path, begin, count, row);
    uint64_t width = to->elem_bytes, offset = to->file_offset + begin * width;
    TRY(write_at(self, offset, count * width, source));
    to->written += count;
    self->behind_bytes += count * width;
    if (self->behind_bytes < WRITE_BEHIND_BYTES)
        return 0;
    self->behind_bytes = 0;
    /* This is a hint. The sync at the end reports errors. */
    (void)sync_file_range(self->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    return 0;
}

int safetensors_finish(safetensors_writer *self)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < self->count; i++)
        if (self->rows[i].written != self->rows[i].elem_count)
            rc = err_set(ERR_INTERNAL,
                         "%s: of tensor %u %" PRIu64 " elements were written, and it has %" PRIu64,
                         self->path, i, self->rows[i].written, self->rows[i].elem_count);
    if (rc == 0)
        rc = file_publish(&self->fd, self->partial, self->path);
    safetensors_abandon(self);
    return rc;
}

void safetensors_abandon(safetensors_writer *self)
{
    if (!self)
        return;
    if (self->fd >= 0) {
        close(self->fd);
        unlink(self->partial);
    }
    mem_free(self->rows);
    mem_free(self);
}
