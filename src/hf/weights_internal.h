/* Declarations that weights.c and weights_read.c share: weights.c opens a checkpoint and compares
 * it with the model, weights_read.c reads its numbers. */
#ifndef SLUICE_HF_WEIGHTS_INTERNAL_H
#define SLUICE_HF_WEIGHTS_INTERNAL_H

#include <limits.h>

#include "format/hf_checkpoint.h"
#include "hf/weights.h"

/* The place in the checkpoint of a tensor of a unit. */
struct weights_source {
    hf_tensor at;       /* tensor NULL: an adapter, which is not in the checkpoint */
    bool is_transposed; /* stored [columns, whole_rows] */
};

/* Rows [row_begin, row_begin + rows) of a transposed matrix, in its own dtype, stored as [rows,
 * columns]. */
struct weights_strip {
    const safetensors_tensor *of; /* the matrix that it is of; NULL: none yet */
    uint64_t row_begin, rows;
    unsigned char *data; /* [capacity_bytes] */
    uint64_t capacity_bytes;
};

struct hf_weights {
    const model *net; /* borrowed */
    hf_checkpoint *files;
    char dir[PATH_MAX];
    struct weights_source *sources; /* one for each tensor of all units, in order */
    struct weights_source **units;  /* [unit_count] first entry of a unit in sources */
    /* Prefix that the checkpoint's names have and the model's lack; and the reverse. */
    const char *added, *dropped;
    struct weights_strip strip;
    unsigned char *pieces; /* [thread_count][piece_bytes] */
    uint64_t piece_bytes;
    int thread_count;
    uint64_t total_bytes;
    bool has_type[DTYPE_COUNT];
};

#endif
