/* Hugging Face checkpoints and adapters:
 * - hf_first_*: the weights that a new run begins with, from a checkpoint or the model's own.
 * - RUN/hf: the side files that a run keeps (config.json, the tokenizer's files).
 * - hf_import: a checkpoint becomes a run at step 0.
 * - hf_export: a run's last commit becomes a checkpoint, or adapters.
 *
 * weights.h reads the tensors. A checkpoint is a directory with config.json and model.safetensors,
 * or several such files with an index. Import and export run in one process, whatever number of
 * ranks trained. Messages name the file and the tensor that is wrong. */
#ifndef SLUICE_HF_HF_H
#define SLUICE_HF_HF_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "hf/weights.h"
#include "setup/setup.h"
#include "state/run_dir.h"

struct io_faults;

/* ---- the weights that a new run begins with ----
 *
 * They come from model.hf, or are the model's own initial weights. */

/* The source of a new run's weights; all zeros before hf_first_open. Order of calls: open,
 * begin, engine_create with hf_first_elems, end, close. Each rank reads only what its own state
 * and params need. Owner: the loop's thread; hf_first_elems runs on the thread of an op between
 * begin and end. */
struct hf_first_weights {
    struct hf_weights *from;   /* NULL: the model's own initial weights */
    const struct setup *setup; /* borrowed, from begin to end */
    bool logs_progress;
    uint64_t done_bytes, total_bytes; /* as fp32, of this rank */
    uint64_t begin_ns, reported_ns;
};
/* Opens the checkpoint of model.hf and compares it with the model. Does nothing if the job names
 * none, or it is open already. Collective: ERR_INPUT on all ranks if one of them sees another
 * checkpoint than rank 0. */
int hf_first_open(struct hf_first_weights *self, const struct ranks *ranks, const struct job *asked,
                  const model *net) MUST_CHECK;
void hf_first_begin(struct hf_first_weights *self, const struct setup *setup, bool logs_progress);
/* An engine_first_elems; `user` is the hf_first_weights. master: [count] fp32 on the host. */
int hf_first_elems(void *user, uint32_t unit, uint64_t begin, uint64_t count,
                   float *master) MUST_CHECK;
/* An engine_first_codes, of the same user. */
int hf_first_codes(void *user, uint32_t unit, uint32_t tensor, uint64_t matrix, void *codes,
                   void *scales) MUST_CHECK;
void hf_first_end(struct hf_first_weights *self);
void hf_first_close(struct hf_first_weights *self);

/* ---- RUN/hf: the files that belong to the model beside its weights ---- */

/* Copies the side files that exist to hf/ in the run directory. They come from the run `from_run`
 * if it is not NULL, else from the checkpoint directory from_hf ("": copies nothing). Returns their
 * number. */
int hf_carry_side_files(const struct state_run_dir *to, const char *from_hf,
                        const char *from_run) MUST_CHECK;
/* Returns the name of the tokenizer's file within a checkpoint directory, if the job's tokenizer is
 * the one of its checkpoint; else NULL. */
const char *hf_job_tokenizer(const struct job *asked);
/* True if the job names a tokenizer (also "bytes") that exists and is not its checkpoint's. It
 * takes precedence over RUN/hf. */
bool hf_names_tokenizer(const struct job *asked);

/* ---- import and export ---- */

/* Import makes a run directory whose commit of step 0 has a checkpoint's weights, and moments of
 * zero. */
struct hf_import_options {
    const char *hf_dir;  /* the checkpoint directory */
    const char *run_dir; /* must not exist, or hold no run */
    /* The job of the run; "-": standard input; NULL: a job is made, with the checkpoint's dtype. */
    const char *job_path;
    const char *const *set; /* [set_count] overrides, "key.path=value" */
    uint32_t set_count;
    const volatile sig_atomic_t *stop; /* may be NULL */
    void (*on_progress)(void *user, uint64_t done_bytes, uint64_t total_bytes, double seconds);
    void *user;
};

struct hf_import_summary {
    uint64_t param_count, unit_count;
    uint64_t read_bytes;    /* bytes of the checkpoint's tensors */
    uint64_t written_bytes; /* to the slabs: fp32 masters */
    uint64_t side_files;    /* copied to RUN/hf */
    const char *type;       /* dtype of the tensors, such as "bf16" */
    char slab_dir[4096];    /* the directory of the slab, on the first of several drives */
    double seconds;
    uint64_t resident_bytes_max; /* of this process so far */
};

/* Reads the checkpoint once, tile by tile; quantized matrices are expanded. Blocks. If it fails or
 * is stopped (ERR_STOPPED), nothing of the run stays. Memory: some 100 MiB, and for GPT-2 a strip
 * (weights.h). Moments of zero are holes in the slab's file. Errors:
 * - ERR_INPUT: the checkpoint is damaged or not the job's model, or the directory holds a run.
 * - ERR_CONFIG: the job is not valid, or its train.only or train.lora splits units.
 * - ERR_NO_FIT: the drives have too little space. */
int hf_import(const struct hf_import_options *options,
              struct hf_import_summary *summary) MUST_CHECK;

/* Export writes a run's last commit as a checkpoint that Hugging Face's transformers loads. */
struct hf_export_options {
    const char *run_dir;  /* a run directory, or that of a kept commit */
    const char *hf_dir;   /* is made if needed; must be empty unless `force` */
    const char *type;     /* "fp32", "bf16" or "fp16"; NULL: the run's working dtype */
    uint64_t shard_bytes; /* most bytes of tensors in a file; 0: 5 GB (5 * 10^9) */
    /* For a run with train.lora. True: writes only the adapters, in the format of PEFT. False: adds
     * them to the weights that are written. */
    bool adapters;
    /* Mixtures: one tensor for all experts of a block, as transformers has them in memory. False:
     * tensors for each expert, as they are published. */
    bool fused_experts;
    /* Matrices that the run keeps packed are written as codes, in the layout of bitsandbytes, of
     * fp8 in blocks or of gpt-oss's mxfp4. Those with an adapter are quantized again after the sum.
     * False: all are expanded. */
    bool quantized;
    bool force; /* replaces such files in a directory that is not empty */
    /* The caller has the run open and makes no step meanwhile; the run's lock is not taken. */
    bool is_held;
    const volatile sig_atomic_t *stop; /* may be NULL */
    const struct io_faults *faults;    /* for tests: faults of the drives; or NULL */
    void (*on_progress)(void *user, uint64_t done_bytes, uint64_t total_bytes, double seconds);
    void *user;
};

struct hf_export_summary {
    uint64_t step, param_count, tensor_count;
    uint32_t file_count;    /* files of weights */
    uint64_t written_bytes; /* bytes of weights */
    uint64_t read_bytes;    /* read from the slabs and compared with their sums */
    uint64_t side_files;    /* copied beside the weights */
    const char *type;
    double seconds;
    uint64_t resident_bytes_max; /* of this process so far */
};

/* Reads all extents of the commit, compares them with their sums, and writes their master weights
 * in the chosen dtype. Blocks. A file appears under its final name only when it is whole; the index
 * and config.json come last. With `adapters` only the extents of adapters are read. Errors:
 * - ERR_CORRUPT: an extent does not match its sum; state_verify lists all.
 * - ERR_INPUT: there is no commit, hf_dir is not empty, or a weight is too large for fp16.
 * - ERR_CONFIG: with `adapters`, if the run has none or learned more than they hold; with
 *   `quantized`, if no such checkpoint can hold the run's packed matrices.
 * - ERR_USAGE for an unknown dtype; -ENOSPC; ERR_STOPPED. */
int hf_export(const struct hf_export_options *options,
              struct hf_export_summary *summary) MUST_CHECK;

#endif
