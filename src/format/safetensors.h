/* Safetensors files: named tensors after a JSON header.
 *
 *   offset 0        8 bytes     N, the header's length, little-endian
 *   offset 8        N bytes     {"__metadata__": {text: text}, NAME: {"dtype": "BF16",
 *                               "shape": [2, 3], "data_offsets": [begin, end]}, ...}, then spaces
 *   offset 8 + N    the data    of all tensors, row-major, little-endian; data_offsets count from
 *                               here
 *
 * Opening a file checks these rules, so that other code can rely on them:
 * - The header is at most 100 MB of JSON without duplicate names.
 * - Every tensor's offsets enclose as many bytes as its dtype and shape say.
 * - Tensors neither overlap nor leave gaps, and the last one ends at the end of the file.
 *
 * Files are untrusted: whatever they contain, the result is an error in one sentence.
 *
 * Threads: each table belongs to one thread, but several threads may call safetensors_read on one
 * table at the same time. */
#ifndef SLUICE_FORMAT_SAFETENSORS_H
#define SLUICE_FORMAT_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/error.h"

enum { SAFETENSORS_DIMS_MAX = 8, SAFETENSORS_LENGTH_BYTES = 8 };
#define SAFETENSORS_HEADER_MAX_BYTES ((uint64_t)100000000)

/* The type of an element. Parameters can have the first three. */
enum safetensors_type {
    SAFETENSORS_F32 = DTYPE_FP32,
    SAFETENSORS_BF16 = DTYPE_BF16,
    SAFETENSORS_F16 = DTYPE_FP16,
    SAFETENSORS_OTHER /* integers, booleans, 8 bits and fewer, fp64: listed, but not read */
};

struct safetensors_tensor {
    char *name;
    enum safetensors_type type;
    char type_name[16]; /* as the header writes it: "BF16" */
    uint32_t dim_count; /* 0: one element */
    uint64_t shape[SAFETENSORS_DIMS_MAX];
    uint64_t elem_count;
    uint64_t file_offset, size_bytes; /* of its data in the file */
};
typedef struct safetensors_tensor safetensors_tensor;

/* The tensors of one file. */
struct safetensors_table {
    char *path;
    safetensors_tensor *tensors;        /* [count] in the order of their data; from mem_alloc */
    const safetensors_tensor **by_name; /* [count] sorted by name */
    uint32_t count;
    uint64_t file_bytes;
};
typedef struct safetensors_table safetensors_table;

/* Reads the header of a file and closes the file again. Returns ERR_INPUT with path and reason if
 * the file is not there, is not a regular file or breaks a rule above; else -errno, -ENOMEM. */
int safetensors_open(const char *path, safetensors_table *out) MUST_CHECK;
/* Does the same for a header in memory, of a file of `file_bytes` that is called `path`. */
int safetensors_decode(const char *path, const char *header, uint64_t header_bytes,
                       uint64_t file_bytes, safetensors_table *out) MUST_CHECK;
void safetensors_close(safetensors_table *self); /* a table that is all zero is allowed */

/* Returns the tensor of that name; NULL: there is none. */
const safetensors_tensor *safetensors_find(const safetensors_table *self, const char *name);

/* Writes the shape as "[2, 3]". Returns `text`. */
enum { SAFETENSORS_SHAPE_BYTES = 8 * 22 + 4 };
char *safetensors_shape(const safetensors_tensor *tensor, char text[SAFETENSORS_SHAPE_BYTES]);

/* Reads bytes [begin, begin + count) of the tensor's data from an open file of the table. Returns
 * ERR_INPUT if the file has become shorter, else -errno. */
int safetensors_read(const safetensors_table *self, int fd, const safetensors_tensor *tensor,
                     uint64_t begin, uint64_t count, void *target) MUST_CHECK;

/* ---- writing ----
 *
 *   create: "<path>.partial", header -> write: elements, in any order, each once -> finish: sync,
 *   rename
 *
 * Under its own name the file is always complete: the new one, or the one that was there before.
 * One thread. */
typedef struct safetensors_writer safetensors_writer;

/* Describes one tensor of the new file; `type` is one of the three types of parameters. */
struct safetensors_row {
    const char *name;
    enum dtype type;
    const char
        *byte_type; /* "U8", "I8", "F8_E4M3": elements of a byte in place of `type`; or NULL */
    uint32_t dim_count;
    uint64_t shape[SAFETENSORS_DIMS_MAX];
};
typedef struct safetensors_row safetensors_row;

/* Begins a file whose tensors lie in the order of the rows. Reserves all space at once. Returns
 * -ENOSPC or another -errno with the path, or ERR_INPUT for a header above the format's limit. */
int safetensors_create(const char *path, const safetensors_row *rows, uint32_t count,
                       safetensors_writer **out) MUST_CHECK;
/* Writes elements [begin, begin + count) of tensor `row`, in its type. -errno with the path. */
int safetensors_write(safetensors_writer *self, uint32_t row, uint64_t begin, uint64_t count,
                      const void *source) MUST_CHECK;
/* After all elements are written, makes the file durable and gives it its own name. Returns
 * ERR_INTERNAL if elements are missing. Destroys the writer in either case. After an error no
 * partial file is left. */
int safetensors_finish(safetensors_writer *self) MUST_CHECK;
void safetensors_abandon(safetensors_writer *self); /* leaves no file; NULL is allowed */

#endif
