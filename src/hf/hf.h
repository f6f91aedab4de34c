/* Hugging Face checkpoints and adapters: into a run (import), out of a run (export), and as the
 * weights that a new run begins with. weights.h reads the tensors. Import and export run in one
 * process, whatever number of ranks trained. */
#ifndef SLUICE_HF_HF_H
#define SLUICE_HF_HF_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "hf/weights.h"
#include "setup/setup.h"

struct io_faults;

/* ---- what a new run begins with: model.hf's weights, or the model's own initial ones ---- */

/* All zeros before hf_first_open. Each rank reads what its own state and params need, and no more.
 * Owner: the loop's thread; hf_first_elems runs on the thread of an op between begin and end. */
struct hf_first_weights {
    struct hf_weights *from;   /* NULL: the model's own initial weights */
    const struct setup *setup; /* borrowed, from begin to end */
    bool logs_progress;
    uint64_t done_bytes, total_bytes; /* of fp32, of this rank */
    uint64_t begin_ns, told_ns;
};
/* Opens the checkpoint of model.hf and holds it against the model; nothing if the job names none or
 * it is open already. ERR_INPUT, on all ranks, where one of them sees another checkpoint than rank
 * 0. Collective. */
int hf_first_open(struct hf_first_weights *self, const struct ranks *ranks, const struct job *asked,
                  const model *net) MUST_CHECK;
void hf_first_begin(struct hf_first_weights *self, const struct setup *setup, bool logs_progress);
/* An engine_first_elems; `user` is the hf_first_weights. */
int hf_first_elems(void *user, uint32_t unit, uint64_t begin, uint64_t count,
                   float *master) MUST_CHECK;
void hf_first_end(struct hf_first_weights *self);
void hf_first_close(struct hf_first_weights *self);

/* ---- RUN/hf: the files that belong to the model beside its weights (config.json, the tokenizer's
 * files, ...) ---- */

/* Copies the side files that exist to RUN/hf: from the run `from_run` if it is not NULL, else from
 * the checkpoint directory from_hf ("": nothing). Returns their number. */
int hf_carry_side_files(const char *run_dir, const char *from_hf, const char *from_run) MUST_CHECK;
/* If the job's tokenizer is that of its checkpoint: the name of its file in such a directory; else
 * NULL. */
const char *hf_job_tokenizer(const struct job *asked);
/* True if the job names a tokenizer ("bytes" too) that exists and is not its checkpoint's: it takes
 * precedence over RUN/hf. */
bool hf_names_tokenizer(const struct job *asked);

/* ---- import and export ---- */

/* A run directory whose commit of step 0 has a checkpoint's weights and moments of zero. */
struct hf_import_options {
    const char *hf_dir;  /* config.json, model.safetensors or its index, and what belongs to them */
    const char *run_dir; /* must be new, or hold no run */
    /* a job for what the run is to be; "-": standard input; NULL: one is made, of the checkpoint's
     * dtype */
    const char *job_path;
    const char *const *set; /* [set_count] overrides, "key.path=value" */
    uint32_t set_count;
    const volatile sig_atomic_t *stop; /* may be NULL */
    void (*on_progress)(void *user, uint64_t done_bytes, uint64_t total_bytes, double seconds);
    void *user;
};

struct hf_import_summary {
    uint64_t param_count, unit_count;
    uint64_t read_bytes;    /* of the checkpoint's tensors */
    uint64_t written_bytes; /* to the slabs: fp32 masters */
    uint64_t side_files;    /* copied to RUN/hf */
    const char *type;       /* of the tensors: "bf16" */
    char slab_dir[4096];    /* where the slab is; of several drives the first */
    double seconds;
    uint64_t resident_bytes_max; /* of this process so far */
};

/* Reads the checkpoint once, tile by tile; nothing of the run stays where it fails or is stopped
 * (ERR_STOPPED). Memory: some 100 MiB, and for GPT-2 a strip (weights.h). Moments of zero are holes
 * of the slab's file. ERR_INPUT for a checkpoint that is damaged or not the job's model, or a run
 * directory that holds a run; ERR_CONFIG; ERR_NO_FIT where the drives have too little space. */
int hf_import(const struct hf_import_options *options,
              struct hf_import_summary *summary) MUST_CHECK;

/* A checkpoint as Hugging Face's transformers loads it, of a run's last commit. */
struct hf_export_options {
    const char *run_dir;  /* or that of a commit that was kept */
    const char *hf_dir;   /* is made; must be empty, unless `force` */
    const char *type;     /* "fp32", "bf16", "fp16"; NULL: the run's working dtype */
    uint64_t shard_bytes; /* most bytes of a file's tensors; 0: 5 GB (5 * 10^9) */
    /* of a run with train.lora: the adapters alone, as PEFT has them; else they are added to the
     * weights that are written */
    bool adapters;
    bool force;   /* replaces files of these names in a directory that is not empty */
    bool is_held; /* the caller has the run open, and it makes no step meanwhile */
    const volatile sig_atomic_t *stop; /* may be NULL */
    const struct io_faults *faults;    /* tests: of the drives, or NULL */
    void (*on_progress)(void *user, uint64_t done_bytes, uint64_t total_bytes, double seconds);
    void *user;
};

struct hf_export_summary {
    uint64_t step, param_count, tensor_count;
    uint32_t file_count;    /* of weights */
    uint64_t written_bytes; /* of weights */
    uint64_t read_bytes;    /* of the slabs, compared with their sums */
    uint64_t side_files;    /* carried along */
    const char *type;
    double seconds;
    uint64_t resident_bytes_max; /* of this process so far */
};

/* Reads all extents of the commit, compares them with their sums, and writes their master weights
 * in the type. Every file is whole or not there under its name; the index and config.json come
 * last. ERR_CORRUPT as state_verify says it; ERR_INPUT where there is no commit, hf_dir is not
 * empty, or a weight has no place in fp16; -ENOSPC. With `adapters` only those are read; ERR_CONFIG
 * where there are none, or more has learned than they. */
int hf_export(const struct hf_export_options *options,
              struct hf_export_summary *summary) MUST_CHECK;

#endif
