/* What the files of an export share (train.h): export.c reads and writes, export_files.c lists what
 * there is to write, export_config.c makes config.json. One thread. */
#ifndef SLUICE_HF_EXPORT_INTERNAL_H
#define SLUICE_HF_EXPORT_INTERNAL_H

#include <jansson.h>
#include <limits.h>

#include "format/safetensors.h"
#include "hf/hf.h"
#include "kernels/ops.h"
#include "state/run_view.h"

/* A tensor of the checkpoint, which may lie in several units. */
struct export_tensor {
    char name[2 * MODEL_NAME_BYTES]; /* as it is stored */
    uint64_t rows, columns;          /* of the whole, as the model has it */
    bool is_transposed;
    uint32_t file_idx, row_idx; /* in which file of the export, and its row there */
    uint64_t size_bytes;
};
typedef struct export_tensor export_tensor;

/* Files of weights, written under other names until all is compared. */
struct export_file {
    char name[NAME_MAX + 1];
    safetensors_writer *writer; /* NULL: not begun, or finished */
    uint32_t first, count;      /* of the list's tensors */
};
typedef struct export_file export_file;

struct export_list {
    export_tensor *tensors; /* [count] in the order in which the units have them */
    uint32_t count;
    uint32_t **of_unit; /* [unit_count] for each tensor of the unit which of the list */
    export_file *files; /* [file_count] */
    uint32_t file_count;
    uint64_t total_bytes; /* of all tensors */
    uint64_t elem_count;  /* likewise */
    enum dtype type;
};
typedef struct export_list export_list;

/* export_files.c */
/* The tensors of the model but adapters, in files of at most shard_bytes of them each. */
int hfi_list(const model *net, enum dtype type, uint64_t shard_bytes, export_list *out) MUST_CHECK;
void hfi_list_fini(export_list *self); /* abandons the files that are not finished */
/* Begins all files: their space is reserved. */
int hfi_create(export_list *self, const char *dir) MUST_CHECK;
/* Gives all files their names, then the index; what an export before has left of other names is
 * removed. */
int hfi_finish(export_list *self, const char *dir) MUST_CHECK;
/* Once adapters are whole: removes the names of a whole export (config.json first), but of the
 * checkpoint `base` itself, where that is the directory. Then the reverse. */
int hfi_remove_whole(const char *dir, const char *base) MUST_CHECK;
int hfi_remove_adapters(const char *dir) MUST_CHECK;
/* Makes the directory and those above it; ERR_INPUT where it holds something, unless `force`. */
int hfi_take_directory(const char *dir, bool force) MUST_CHECK;

/* export_peft.c: a run's adapters. */
struct export_adapters {
    const model *net;
    manifest record; /* the view's, with the extents of units of adapters alone */
    uint64_t extent_bytes;
    float **values; /* [unit_count] whole units, NULL where there are no adapters */
};
typedef struct export_adapters export_adapters;

/* Room for them, and the record to sweep for them; hfi_adapters_take is what on_weights hands over.
 * To be closed in either case. */
int hfi_adapters_open(const model *net, const manifest *record, export_adapters *out) MUST_CHECK;
int hfi_adapters_take(export_adapters *self, uint64_t extent_idx, uint64_t begin_bytes,
                      const void *data, uint64_t size_bytes) MUST_CHECK;
void hfi_adapters_close(export_adapters *self);

bool hfi_has_adapter(const export_adapters *self, uint32_t unit, const model_tensor *tensor);
/* weights += (alpha / rank) B A, of elements [begin, begin + count) of such a tensor; sums in fp64,
 * rounded once. */
void hfi_merge(const export_adapters *self, uint32_t unit, const model_tensor *tensor,
               uint64_t begin, uint64_t count, float *weights);

/* ERR_CONFIG where adapters alone do not say what was learnt. */
int hfi_check_adapters(const model *net) MUST_CHECK;
/* adapter_model.safetensors and, last, adapter_config.json, as PEFT reads them. base: of which they
 * are adapters, or NULL. */
int hfi_adapters_write(const export_adapters *self, kernel_context *context, const char *base,
                       const char *dir, enum dtype type, uint32_t *tensor_count,
                       uint64_t *written_bytes) MUST_CHECK;

/* export_config.c: config.json of the run's model in this type: that of the checkpoint which it
 * began with, or a new one; and what goes along from there and from the run's tokenizer. *count:
 * files. */
int hfi_write_side_files(const state_view *run, const char *dir, enum dtype type,
                         uint64_t *count) MUST_CHECK;

#endif
