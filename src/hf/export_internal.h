/* Declarations that the files of an export share (hf_export in hf.h). One thread. */
#ifndef SLUICE_HF_EXPORT_INTERNAL_H
#define SLUICE_HF_EXPORT_INTERNAL_H

#include <jansson.h>
#include <limits.h>

#include "format/safetensors.h"
#include "hf/hf.h"
#include "kernels/ops.h"
#include "state/run_view.h"

/* A tensor of the exported checkpoint. Its rows may come from several units. */
struct export_tensor {
    char name[2 * MODEL_NAME_BYTES]; /* name in the checkpoint */
    uint64_t rows, columns;          /* of the whole tensor, as the model has it */
    bool is_transposed;
    uint32_t file_idx, row_idx; /* the file of the export that has it, and its row there */
    uint64_t size_bytes;
};
typedef struct export_tensor export_tensor;

/* A file of weights. It is written under another name until all sums are compared. */
struct export_file {
    char name[NAME_MAX + 1];
    safetensors_writer *writer; /* NULL: not begun, or finished */
    uint32_t first, count;      /* range of the list's tensors */
};
typedef struct export_file export_file;

struct export_list {
    export_tensor *tensors; /* [count] in the order of the units */
    uint32_t count;
    /* [unit_count][tensors of the unit]: index into tensors. */
    uint32_t **of_unit;
    export_file *files; /* [file_count] */
    uint32_t file_count;
    uint64_t total_bytes; /* of all tensors */
    uint64_t elem_count;  /* of all tensors */
    enum dtype type;
};
typedef struct export_list export_list;

/* ---- export_files.c ----
 *
 * Lists the tensors of the model, without adapters, in files of at most shard_bytes of tensors
 * each. */
int hfi_list(const model *net, enum dtype type, uint64_t shard_bytes, export_list *out) MUST_CHECK;
void hfi_list_fini(export_list *self); /* abandons files that are not finished */
/* Begins all files and reserves their space. */
int hfi_create(export_list *self, const char *dir) MUST_CHECK;
/* Gives all files their final names, then writes the index. Files with other names that an earlier
 * export left are removed. */
int hfi_finish(export_list *self, const char *dir) MUST_CHECK;
/* After adapters are written: removes the files of a whole export, config.json first. Does nothing
 * if `dir` is the directory of the checkpoint `base` itself. hfi_remove_adapters does the reverse,
 * after a whole export. */
int hfi_remove_whole(const char *dir, const char *base) MUST_CHECK;
int hfi_remove_adapters(const char *dir) MUST_CHECK;
/* Makes the directory and those above it. ERR_INPUT if it is not empty, unless `force`. */
int hfi_take_directory(const char *dir, bool force) MUST_CHECK;

/* ---- export_peft.c ----
 *
 * A run's adapters in memory. */
struct export_adapters {
    const model *net;
    manifest record; /* the view's record, with only the extents of units that have adapters */
    uint64_t extent_bytes;
    float **values; /* [unit_count] whole units, fp32; NULL for a unit without adapters */
};
typedef struct export_adapters export_adapters;

/* Allocates memory for the adapters and makes the record to sweep for them. Then pass what
 * on_weights gets to hfi_adapters_take. Close it in any case, also after an error. */
int hfi_adapters_open(const model *net, const manifest *record, export_adapters *out) MUST_CHECK;
int hfi_adapters_take(export_adapters *self, uint64_t extent_idx, uint64_t begin_bytes,
                      const void *data, uint64_t size_bytes) MUST_CHECK;
void hfi_adapters_close(export_adapters *self);

bool hfi_has_adapter(const export_adapters *self, uint32_t unit, const model_tensor *tensor);
/* weights[count] += (alpha / rank) B A, for elements [begin, begin + count) of a tensor that has an
 * adapter. The sum is in fp64 and rounded once. */
void hfi_merge(const export_adapters *self, uint32_t unit, const model_tensor *tensor,
               uint64_t begin, uint64_t count, float *weights);

/* ERR_CONFIG if the run learned more than adapters, or has none: adapters alone would not hold what
 * it learned. */
int hfi_check_adapters(const model *net) MUST_CHECK;
/* Writes adapter_model.safetensors and then adapter_config.json, as PEFT reads them. `base`: the
 * checkpoint that they adapt, or NULL. */
int hfi_adapters_write(const export_adapters *self, kernel_context *context, const char *base,
                       const char *dir, enum dtype type, uint32_t *tensor_count,
                       uint64_t *written_bytes) MUST_CHECK;

/* ---- export_config.c ----
 *
 * Writes config.json of the run's model with this dtype, and copies the other side files.
 * config.json is that of the checkpoint that the run began with, or a new one. The others come from
 * there and from the run's tokenizer. *count: files copied, without config.json. */
int hfi_write_side_files(const state_view *run, const char *dir, enum dtype type,
                         uint64_t *count) MUST_CHECK;

#endif
