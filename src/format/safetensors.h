/* Safetensors files: named tensors behind a JSON header.
 *
 *   offset 0        8 bytes     N, the header's length, little-endian
 *   offset 8        N bytes     {"__metadata__": {text: text}, NAME: {"dtype": "BF16",
 *                               "shape": [2, 3], "data_offsets": [begin, end]}, ...}, then spaces
 *   offset 8 + N    the data    of all tensors, row-major, little-endian; data_offsets count from
 *                               here
 *
 * What is opened has been checked, so that nobody need ask again: the header is at most 100 MB of
 * JSON without duplicate names; every tensor's offsets are as many bytes as dtype and shape say;
 * tensors neither overlap nor leave holes, and the last ends where the file does. Reading: any
 * number of tables, one thread each; the reads of one table (safetensors_read) may run on several
 * threads at once. Files are of others: whatever is in them, the answer is an error in one
 * sentence. */
#ifndef SLUICE_FORMAT_SAFETENSORS_H
#define SLUICE_FORMAT_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"

enum { SAFETENSORS_DIMS_MAX = 8, SAFETENSORS_LENGTH_BYTES = 8 };
#define SAFETENSORS_HEADER_MAX_BYTES ((uint64_t)100000000)

/* What an element is; the first three are those that parameters can have. */
enum safetensors_type {
    SAFETENSORS_F32 = DTYPE_FP32,
    SAFETENSORS_BF16 = DTYPE_BF16,
    SAFETENSORS_F16 = DTYPE_FP16,
    SAFETENSORS_OTHER /* integers, booleans, 8 bits and fewer, fp64: named, but not read */
};

struct safetensors_tensor {
    char *name;
    enum safetensors_type type;
    char type_name[16]; /* as the header has it: "BF16" */
    uint32_t dim_count; /* 0: one element */
    uint64_t shape[SAFETENSORS_DIMS_MAX];
    uint64_t elem_count;
    uint64_t file_offset, size_bytes; /* of its data in the file */
};
typedef struct safetensors_tensor safetensors_tensor;

/* The tensors of one file. */
struct safetensors_table {
    char *path;
    safetensors_tensor *tensors; /* [count] in the order of their data; mem_alloc'd */
    uint32_t *by_name;           /* [count] indices, sorted by name */
    uint32_t count;
    uint64_t file_bytes;
};
typedef struct safetensors_table safetensors_table;

/* Reads the header of a file. ERR_INPUT with path and reason for a file that is not there, is no
 * regular file or breaks a rule above; -errno, -ENOMEM. The file is closed again. */
int safetensors_open(const char *path, safetensors_table *out) MUST_CHECK;
/* The same of a header in memory, for a file of `file_bytes` that is called `path`. */
int safetensors_decode(const char *path, const char *header, uint64_t header_bytes,
                       uint64_t file_bytes, safetensors_table *out) MUST_CHECK;
void safetensors_close(safetensors_table *self); /* all zero is allowed */

/* NULL: there is none of that name. */
const safetensors_tensor *safetensors_find(const safetensors_table *self, const char *name);

/* "[2, 3]"; returns `text`. */
enum { SAFETENSORS_SHAPE_BYTES = 8 * 22 + 4 };
char *safetensors_shape(const safetensors_tensor *tensor, char text[SAFETENSORS_SHAPE_BYTES]);

/* Bytes [begin, begin + count) of the tensor's data from an open file of the table. ERR_INPUT where
 * the file has become shorter, -errno. */
int safetensors_read(const safetensors_table *self, int fd, const safetensors_tensor *tensor,
                     uint64_t begin, uint64_t count, void *target) MUST_CHECK;

/* ---- writing ----
 *
 *   create: "<path>.partial", header -> write: elements, in any order, each once -> finish: sync,
 *   rename
 *
 * Under its own name the file is either whole or what it was before. One thread. */
typedef struct safetensors_writer safetensors_writer;

/* What a tensor of the file is to be; `type` one of the three. */
struct safetensors_row {
    const char *name;
    enum dtype type;
    uint32_t dim_count;
    uint64_t shape[SAFETENSORS_DIMS_MAX];
};
typedef struct safetensors_row safetensors_row;

/* The data of tensors lie in the order of the rows. Space is reserved at once: -ENOSPC, and other
 * -errno, with the path; ERR_INPUT for a header above the format's limit. */
int safetensors_create(const char *path, const safetensors_row *rows, uint32_t count,
                       safetensors_writer **out) MUST_CHECK;
/* Elements [begin, begin + count) of tensor `row`, in its type. -errno with the path. */
int safetensors_write(safetensors_writer *self, uint32_t row, uint64_t begin, uint64_t count,
                      const void *source) MUST_CHECK;
/* Everything is written: durable, and under its own name. ERR_INTERNAL where elements are missing.
 * Destroys the writer in either case; after an error nothing stays. */
int safetensors_finish(safetensors_writer *self) MUST_CHECK;
void safetensors_abandon(safetensors_writer *self); /* nothing stays; NULL is allowed */

/* Bytes of the file that such rows make. */
int safetensors_file_bytes(const safetensors_row *rows, uint32_t count, uint64_t *bytes) MUST_CHECK;

#endif
