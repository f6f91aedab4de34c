/* A Hugging Face checkpoint as a set of named tensors.
 *
 *   DIR/model.safetensors              all tensors in one file; it counts if it is there
 *   DIR/model.safetensors.index.json   else {"weight_map": {NAME: FILE, ...}}; FILE lies in DIR
 *
 * Opening reads all headers and no data. Memory: the headers. Files are opened when they are read
 * from, at most HF_FILES_OPEN_MAX at a time. One thread, but that any number may be in hf_read and
 * hf_read_direct at once. */
#ifndef SLUICE_FORMAT_HF_CHECKPOINT_H
#define SLUICE_FORMAT_HF_CHECKPOINT_H

#include "format/safetensors.h"

enum {
    HF_FILES_MAX = 4096,
    HF_FILES_OPEN_MAX = 64,
    HF_BLOCK_BYTES = 4096, /* of direct reads */
};

typedef struct hf_checkpoint hf_checkpoint;

/* ERR_INPUT naming file, tensor and reason: neither of the two files is there, an index that is
 * damaged or leads out of DIR, a shard or a tensor in it that is not there, a tensor that two files
 * have; and what safetensors_open says. */
int hf_open(const char *dir, hf_checkpoint **out) MUST_CHECK;
void hf_close(hf_checkpoint *self); /* NULL is allowed */

struct hf_tensor {
    const safetensors_tensor *tensor; /* the checkpoint's */
    uint32_t file_idx;
};
typedef struct hf_tensor hf_tensor;

bool hf_find(const hf_checkpoint *self, const char *name, hf_tensor *out);
/* All of them, by file and in the order of their data; idx below the count. */
uint64_t hf_count(const hf_checkpoint *self);
hf_tensor hf_at(const hf_checkpoint *self, uint64_t idx);
const char *hf_path(const hf_checkpoint *self, uint32_t file_idx);
/* XXH3 over names, shapes, dtypes and places of all tensors, whatever the directory is called. */
uint64_t hf_identity(const hf_checkpoint *self);

/* Bytes [begin, begin + count) of a tensor's data. ERR_INPUT for a file that is gone, is another
 * than the one that was opened, or has become shorter; -errno. */
int hf_read(hf_checkpoint *self, const hf_tensor *from, uint64_t begin, uint64_t count,
            void *target) MUST_CHECK;
/* The same past the page cache, which takes a core a copy of each byte, unless the kernel has all
 * of it there or the file system has no direct reads. `room`: the caller's, aligned to
 * HF_BLOCK_BYTES, of `count` and two blocks; *data: where in it the bytes are, aligned to the
 * tensor's elements. One of the three types. */
int hf_read_direct(hf_checkpoint *self, const hf_tensor *from, uint64_t begin, uint64_t count,
                   void *room, const void **data) MUST_CHECK;
/* The same as hf_read is wanted soon: the drive may begin. */
void hf_read_ahead(hf_checkpoint *self, const hf_tensor *from, uint64_t begin, uint64_t count);

/* The files beside the weights that belong to a model, in the order of which; NULL behind the last.
 */
extern const char *const hf_side_files[];
/* Copies those of them that are there, each whole or not at all; how many. `target` is made where
 * it is missing. ERR_INPUT, -errno, with the path. */
int hf_copy_side_files(const char *source, const char *target) MUST_CHECK;
/* One of them, to a directory that is there: 1, or 0 where there is none. */
int hf_copy_side_file(const char *source, const char *target, const char *name) MUST_CHECK;
/* Removes what hf_copy_side_files makes, and the directory where that leaves it empty. */
int hf_remove_side_files(const char *target) MUST_CHECK;

#endif
