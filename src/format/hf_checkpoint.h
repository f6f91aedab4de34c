/* A Hugging Face checkpoint as a set of named tensors.
 *
 *   DIR/model.safetensors              all tensors in one file; if it is there, it is used
 *   DIR/model.safetensors.index.json   else {"weight_map": {NAME: FILE, ...}}; FILE lies in DIR
 *
 * Opening reads all headers and no data. Memory: the headers. Files are opened when data is read
 * from them, at most HF_FILES_OPEN_MAX at a time.
 *
 * Threads: one thread, with this exception: any number of threads may be in hf_read and
 * hf_read_direct at the same time. */
#ifndef SLUICE_FORMAT_HF_CHECKPOINT_H
#define SLUICE_FORMAT_HF_CHECKPOINT_H

#include "format/safetensors.h"

enum {
    HF_FILES_MAX = 4096,
    HF_FILES_OPEN_MAX = 64,
    HF_BLOCK_BYTES = 4096, /* of direct reads */
};

typedef struct hf_checkpoint hf_checkpoint;

/* Opens the checkpoint in `dir`. Returns ERR_INPUT with file, tensor and reason in these cases, and
 * in those of safetensors_open:
 * - Neither of the two files is there.
 * - The index is damaged, or names a file outside DIR.
 * - A shard is missing, or a tensor is not in its shard.
 * - Two files have the same tensor. */
int hf_open(const char *dir, hf_checkpoint **out) MUST_CHECK;
void hf_close(hf_checkpoint *self); /* NULL is allowed */

struct hf_tensor {
    const safetensors_tensor *tensor; /* owned by the checkpoint */
    uint32_t file_idx;
};
typedef struct hf_tensor hf_tensor;

bool hf_find(const hf_checkpoint *self, const char *name, hf_tensor *out);
/* All tensors, sorted by file and then by the order of their data; idx is below the count. */
uint64_t hf_count(const hf_checkpoint *self);
hf_tensor hf_at(const hf_checkpoint *self, uint64_t idx);
const char *hf_path(const hf_checkpoint *self, uint32_t file_idx);
/* XXH3 over names, shapes, dtypes and places of all tensors. The name of the directory does not
 * matter. */
uint64_t hf_identity(const hf_checkpoint *self);

/* Reads bytes [begin, begin + count) of a tensor's data. Returns ERR_INPUT if the file is gone, is
 * not the one that was opened, or has become shorter; else -errno. */
int hf_read(hf_checkpoint *self, const hf_tensor *from, uint64_t begin, uint64_t count,
            void *target) MUST_CHECK;
/* Does the same without the page cache, because filling the cache costs a core a copy of each byte.
 * It uses the cache if the kernel has all of the range there, or if the file system has no direct
 * reads. `room` is the caller's, aligned to HF_BLOCK_BYTES, with `count` bytes and two blocks.
 * *data says where in it the bytes are, aligned to the tensor's elements. The tensor has one of the
 * three types of parameters. */
int hf_read_direct(hf_checkpoint *self, const hf_tensor *from, uint64_t begin, uint64_t count,
                   void *room, const void **data) MUST_CHECK;
/* Says that hf_read will read this range soon, so that the drive may begin. */
void hf_read_ahead(hf_checkpoint *self, const hf_tensor *from, uint64_t begin, uint64_t count);

/* The names of the files beside the weights that belong to a model; NULL after the last. */
extern const char *const hf_side_files[];
/* ERR_INPUT with the path if one of them cannot be copied:
 * - It is a symbolic link that leads out of the directory. Links to the blobs of the same model in
 *   a cache of Hugging Face's hub are followed.
 * - It is not what its name says: a JSON object, a text in UTF-8, a SentencePiece model.
 * - It is larger than 1 GiB. */
int hf_check_side_files(const char *directory) MUST_CHECK;
/* Copies those side files that exist, each completely or not at all, and returns how many. Creates
 * `target` if it is missing. `mode`: permissions of what is made (base/file.h). ERR_INPUT as
 * above, or -errno, with the path. */
int hf_copy_side_files(const char *source, const char *target, int mode) MUST_CHECK;
/* Copies one of them to a directory that exists. Returns 1, or 0 if there is no such file. */
int hf_copy_side_file(const char *source, const char *target, const char *name,
                      int mode) MUST_CHECK;
/* Removes the files that hf_copy_side_files makes, and then the directory if it is empty. */
int hf_remove_side_files(const char *target) MUST_CHECK;

#endif
