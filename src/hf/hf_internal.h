/* Declarations that files of src/hf share: those of an export (hf_export in hf.h), of the weights
 * of a checkpoint, and of an import. */
#ifndef SLUICE_HF_INTERNAL_H
#define SLUICE_HF_INTERNAL_H

#include <jansson.h>
#include <limits.h>
#include <signal.h>

#include "format/hf_checkpoint.h"
#include "hf/hf.h"
#include "hf/layout.h"
#include "kernels/ops.h"
#include "state/run_view.h"

/* A tensor of the exported checkpoint. Its rows may come from several units. */
struct export_tensor {
    char name[2 * HF_NAME_BYTES]; /* name in the checkpoint */
    hf_layout layout;
    enum dtype type;           /* that of the list, or fp32 for constants */
    enum stored_format format; /* STORED_WORKING: values of `type`; others: codes, with what they */
                               /* need in the rows after */
    uint32_t file_idx, row_idx; /* the file of the export that has it, and its row there */
    uint64_t size_bytes;
};
typedef struct export_tensor export_tensor;

/* A file of weights. It is written under another name until all sums are compared. */
struct export_file {
    char name[NAME_MAX + 1];
    safetensors_writer *writer; /* NULL: not begun, or finished */
    uint32_t first, count;      /* range of the list's tensors */
    uint32_t row_count;
};
typedef struct export_file export_file;

struct export_list {
    export_tensor *tensors; /* [count] in the order of the units */
    uint32_t count;
    /* [unit_count][tensors of the unit]: index into tensors of the first of hf_layout_range. */
    uint32_t **of_unit;
    export_file *files; /* [file_count] */
    uint32_t file_count;
    uint64_t total_bytes; /* of all tensors */
    uint64_t elem_count;  /* of all tensors */
    enum dtype type;
    bool is_fused; /* layout.h */
};
typedef struct export_list export_list;

/* ---- export_files.c ----
 *
 * Lists the tensors of the model, without adapters, in files of at most shard_bytes of tensors
 * each. `is_quantized`: packed matrices as codes (hfi_check_packed). */
int hfi_list(const model *net, enum dtype type, bool is_fused, bool is_quantized,
             uint64_t shard_bytes, export_list *out) MUST_CHECK;
void hfi_list_fini(export_list *self); /* abandons files that are not finished */
/* Begins all files and reserves their space. */
int hfi_create(export_list *self, const char *dir) MUST_CHECK;
/* Writes elements [at, at + count) of a tensor of the model, which are all of one stored tensor and
 * not transposed, to row `row` of a file, in its dtype of `width` bytes. */
int hfi_write(const hf_layout *layout, safetensors_writer *writer, uint32_t row, uint64_t at,
              uint64_t count, const void *data, uint64_t width) MUST_CHECK;
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
/* Writes the document to DIR/NAME with flags of json_dumps, and releases it. NULL: there was no
 * memory to make it; returns -ENOMEM. */
int hfi_write_json(const char *dir, const char *name, json_t *doc, size_t flags) MUST_CHECK;

/* ---- export_packed.c: packed matrices as a checkpoint has them ---- */

enum { HF_STORED_NAME_BYTES = 2 * HF_NAME_BYTES + 64, EXPORT_ROWS_MAX = 6 };
/* The tensors in a file that a packed matrix becomes. */
struct export_rows {
    safetensors_row rows[EXPORT_ROWS_MAX];
    char names[EXPORT_ROWS_MAX][HF_STORED_NAME_BYTES];
    uint32_t count;
    uint64_t bytes;
};
/* ERR_CONFIG unless the model has packed matrices, and a checkpoint can hold all of them. */
int hfi_check_packed(const model *net) MUST_CHECK;
/* True if an export with packed matrices has this one as codes. Others in mxfp4 than gpt-oss's
 * experts are expanded, which is exact. */
bool hfi_stays_packed(const model *net, const model_tensor *tensor);
void hfi_packed_rows(const export_tensor *from, struct export_rows *out);
/* The block quantization_config; the caller owns it. NULL: there is no memory. */
json_t *hfi_packed_config(const model *net, const export_list *list);

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
/* Allocates the memory alone. Close it in any case. */
int hfi_adapters_reserve(const model *net, export_adapters *out) MUST_CHECK;
/* The name of an adapter's tensor in files. */
void hfi_adapter_name(const model *net, uint32_t unit, const model_tensor *tensor, char *name,
                      size_t name_bytes);
void hfi_adapter_shape(const model *net, const model_tensor *tensor, uint64_t shape[2]);
/* How a file orders the elements of an A or B; that of routed experts has all experts. */
struct hfi_adapter_layout {
    hf_layout plain; /* of a matrix that is no experts' */
    uint64_t each, columns, experts,
        stride;                     /* rows of one expert, ...; of a row of B in the file */
    bool is_plain, is_a, is_paired; /* paired: rows of gate and up by turns */
};
typedef struct hfi_adapter_layout hfi_adapter_layout;

hfi_adapter_layout hfi_adapter_layout_of(const model *net, const model_tensor *tensor);
/* The place in the stored tensor of element `at` of the whole A or B. */
uint64_t hfi_adapter_place(const hfi_adapter_layout *self, uint64_t at);

/* ---- import_peft.c ----
 *
 * Reads the adapters of a directory, which must be those of the model, no fewer and no others.
 * Close `out` in any case. ERR_INPUT names the file and the tensor. */
int hfi_adapters_load(const char *dir, const model *net, export_adapters *out) MUST_CHECK;
/* Puts adapters' elements, of elements [begin, begin + count) of a unit, into master. */
void hfi_adapters_put(const export_adapters *self, uint32_t unit, uint64_t begin, uint64_t count,
                      float *master);
uint64_t hfi_adapters_identity(const export_adapters *self); /* XXH3-64 over the values */

/* Memory for the largest packed unit, and more. All zeros where the model has none. */
struct export_room {
    unsigned char *packed; /* the unit, as it comes */
    float *unpacked;       /* one of its tensors */
    unsigned char *codes;  /* a matrix that is quantized again, with its scales */
    float *scales;         /* of such a matrix, before double quantization */
    unsigned char *blocks; /* an expert in mxfp4, as files have it: codes, and then scales */
};
int hfi_room_reserve(const model *net, struct export_room *self) MUST_CHECK;
void hfi_room_free(struct export_room *self);
/* Writes the matrices of a tensor of the unit in `packed` as codes: those that are kept, or with an
 * adapter those of the sum. `unpacked` has the tensor. */
int hfi_put_matrices(const model *net, const export_list *list, struct export_room *room,
                     const export_adapters *adapters, kernel_context *context, uint32_t unit,
                     uint32_t tensor_idx) MUST_CHECK;

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

/* ---- carry_config.c ----
 *
 * Writes the text of config.json `source` to `target` with this dtype ("bfloat16") and this
 * quantization_config, a JSON object, or without one if it is NULL. ERR_INPUT if the file is no
 * object with keys. */
int hfi_carry_config(const char *source, const char *target, const char *type,
                     const char *quantization) MUST_CHECK;

/* ---- side_files.c ----
 *
 * Writes config.json of the run's model with this dtype, and copies the other side files.
 * config.json is that of the checkpoint that the run began with, or a new one. The others come from
 * there and from the run's tokenizer. *count: files copied, without config.json. The files of the
 * tokenizer "bytes" are made. quantization: the block of config.json; NULL: none. */
int hfi_write_side_files(const state_view *run, const char *dir, enum dtype type,
                         json_t *quantization, uint64_t *count) MUST_CHECK;
/* ERR_CONFIG if no config.json can describe the run's model. Call it before anything is written. */
int hfi_check_config(const state_view *run) MUST_CHECK;

/* ---- weights.c opens a checkpoint and compares it with the model; weights_read.c reads it ---- */

/* The place in the checkpoint of a tensor of a unit. */
struct weights_source {
    hf_layout layout;
    /* Stored tensors [first, first + stored_count) of the layout. An adapter has none: it is not in
     * the checkpoint. */
    hf_tensor *stored;
    uint64_t first, stored_count;
};

/* How a stored tensor is quantized, with what lies beside its codes. */
struct weights_packed {
    enum stored_format format; /* STORED_WORKING: it is not */
    uint64_t rows, columns;
    hf_tensor scales;
    hf_tensor groups; /* with double quantization: the fp32 of each 256 scales, */
    float mean;       /* and the one of all */
};

/* Stored columns [row_begin, row_begin + rows) of a transposed matrix, in its own dtype, as [rows,
 * columns]. */
struct weights_strip {
    const safetensors_tensor *of; /* the tensor that it is of; NULL: none yet */
    uint64_t matrix;              /* which of its matrices */
    uint64_t row_begin, rows;
    unsigned char *data; /* [capacity_bytes] */
    uint64_t capacity_bytes;
    uint64_t least_bytes; /* of the largest matrix in pairs, which it has to hold whole */
};

struct hf_weights {
    const model *net; /* borrowed */
    hf_checkpoint *files;
    char dir[PATH_MAX];
    struct weights_source *sources; /* one for each tensor of all units, in order */
    struct weights_source **units;  /* [unit_count] first entry of a unit in sources */
    hf_tensor *stored;              /* [stored_count] of all sources */
    struct weights_packed *packed;  /* [stored_count] the same tensors */
    uint64_t stored_count;
    /* Prefix that the checkpoint's names have and the model's lack. The reverse is that of the
     * model's first tensor, of dropped_bytes. */
    const char *added;
    size_t dropped_bytes;
    struct weights_strip strip;
    unsigned char *pieces; /* [thread_count][piece_bytes] */
    uint64_t piece_bytes;
    int thread_count;
    uint64_t total_bytes;
    bool has_type[DTYPE_COUNT];
    /* Where tensors are quantized: memory for a piece of one, and the context that expands. */
    bool has_packed;
    export_adapters adapters; /* all zeros without hf_weights_take_adapters */
    kernel_context *context;
    unsigned char *codes;
    float *values;
    /* `values` holds elements of this tensor, from this one on; NULL: nothing. */
    const safetensors_tensor *expanded;
    uint64_t expanded_begin;
};

/* ---- weights_packed.c ---- */

/* Codes of a format, of 4 and of 8 bits. */
enum { HFI_CODES_4BIT = 16, HFI_CODES_8BIT = 256 };
/* Computes the values of codes 0 to count - 1 with a scale of 1: bitsandbytes keeps them beside the
 * codes. */
int hfi_code_values(kernel_context *context, enum stored_format format, uint64_t count,
                    float *values) MUST_CHECK;
/* Finds how a stored tensor is quantized, if it is, and checks what lies beside it. ERR_INPUT if
 * that is missing, or its dtype is not read. */
int hfi_find_packed(hf_weights *self, const hf_tensor *at, const hf_layout *layout,
                    struct weights_packed *out) MUST_CHECK;
/* True if a tensor of this name holds codes of 4 bits. Any dtype is possible. */
bool hfi_is_4bit(const hf_checkpoint *files, const char *name);
/* True if a tensor of this name belongs to the codes of another one. Writes that one's name. */
bool hfi_is_beside(const char *name, char codes[HF_STORED_NAME_BYTES]);
/* Reserves memory when all tensors are found. */
int hfi_reserve_packed(hf_weights *self) MUST_CHECK;
/* Expands elements [begin, begin + count) of a quantized tensor. */
int hfi_read_packed(hf_weights *self, const hf_tensor *at, uint64_t begin, uint64_t count,
                    float *master) MUST_CHECK;

/* ---- import_stream.c ----
 *
 * Streams an import's tiles from the checkpoint to the slab, at the drive's speed.
 *
 *   lane 0   [ read | convert | sum ][ read | convert | sum ] ...
 *            write -----------------> write ---------------->
 *   lane 1   ...                                    each takes the next tile that no lane has taken
 *
 * A lane is a thread with its own tiles and its own queue of writes. So reads, arithmetic and
 * writes of several tiles overlap, and lanes share only the number of the next tile. Matrices that
 * are stored transposed pass through one strip: with such a checkpoint tiles are read one after the
 * other, in order, and only sums and writes overlap with that.
 *
 * Memory: IMPORT_LANES * (IMPORT_SLOTS tiles of masters + WEIGHTS_ROOM_BYTES), on huge pages, and
 * what weights.h says. */
enum {
    IMPORT_LANES = 4,
    IMPORT_SLOTS = 3, /* tiles of a lane: one is filled while the others are written */
};

struct import_stream {
    hf_weights *from;
    const model *net;
    slab *disk;
    /* Its extents' sums are filled in; state_streams and seed are read. */
    manifest *record;
    const volatile sig_atomic_t *stop; /* may be NULL */
    /* Called on the caller's thread, a few times a second and at the end; or NULL. The bytes are
     * those of masters. */
    void (*on_progress)(void *user, uint64_t done_bytes, uint64_t total_bytes, double seconds);
    void *user;
};
typedef struct import_stream import_stream;

/* Fills the slab and syncs it. Blocks. Returns the bytes written and the time that it took. Errors:
 * ERR_STOPPED, or the first failure of a lane, as in weights.h and tiers/io.h. All lanes have ended
 * when this returns. */
int import_stream_run(const import_stream *self, uint64_t *written_bytes,
                      double *seconds) MUST_CHECK;

#endif
