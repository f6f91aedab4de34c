/* What the files of an export share (train.h): export.c reads and writes, export_files.c lists what there is to
 * write, export_config.c makes config.json. One thread. */
#ifndef SLUICE_TRAIN_EXPORT_INTERNAL_H
#define SLUICE_TRAIN_EXPORT_INTERNAL_H

#include <jansson.h>
#include <limits.h>

#include "format/safetensors.h"
#include "train/run_view.h"
#include "train/train.h"

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
    enum dtype type;
};
typedef struct export_list export_list;

/* export_files.c */
/* The tensors of the model, in files of at most shard_bytes of them each. ERR_CONFIG for adapters. */
int exporti_list(const model *net, enum dtype type, uint64_t shard_bytes,
                 export_list *out) MUST_CHECK;
void exporti_list_fini(export_list *self); /* abandons the files that are not finished */
/* Begins all files: their space is reserved. */
int exporti_create(export_list *self, const char *dir) MUST_CHECK;
/* Gives all files their names, then the index; what an export before has left of other names is removed. */
int exporti_finish(export_list *self, const char *dir, uint64_t param_count) MUST_CHECK;
/* Makes the directory; ERR_INPUT where it holds something, unless `force`. */
int exporti_take_directory(const char *dir, bool force) MUST_CHECK;

/* export_config.c: config.json of the run's model in this type: that of the checkpoint which it began with, or a new
 * one; and what goes along from there and from the run's tokenizer. *count: files. */
int exporti_write_side_files(const traini_view *run, const char *dir, enum dtype type,
                             uint64_t *count) MUST_CHECK;

#endif
