/* What the files of src/infer share: parameters brought to their homes in an engine that only
 * computes forward. */
#ifndef SLUICE_INFER_INTERNAL_H
#define SLUICE_INFER_INTERNAL_H

#include <signal.h>

#include "base/log.h"
#include "engine/engine.h"
#include "hf/hf.h"
#include "infer/infer.h"
#include "state/run_dir.h"
#include "state/state.h"

/* Params from fp32 master weights to where they rest, in an engine with params_alone; one filler
 * per engine. */
struct inferi_filler {
    struct engine *engine;   /* borrowed */
    kernel_context *context; /* of the CPU's kernels */
    void *block;             /* memory of copy */
    unsigned char *copy;     /* [copy_elems] params on their way to a GPU or to drives */
    uint64_t copy_elems;
    uint32_t unit; /* on drives: the part that is being filled */
    uint64_t part_begin, part_elems;
};
typedef struct inferi_filler inferi_filler;
int inferi_filler_init(inferi_filler *self, struct engine *engine, uint64_t copy_elems) MUST_CHECK;
void inferi_filler_fini(inferi_filler *self);
/* master: [count] elements [begin, begin + count) of a unit, count <= copy_elems; each unit in
 * order, from 0 to its end. */
int inferi_fill(inferi_filler *self, uint32_t unit, uint64_t begin, uint64_t count,
                const float *master) MUST_CHECK;

/* Brings the params of a commit, of any number of ranks, to their homes in the engine. `copy_rank`:
 * whose slab is read if the record is_replicated. `stop`: ERR_STOPPED; may be NULL. */
int inferi_load_params(struct engine *engine, const manifest *record, uint32_t copy_rank,
                       const volatile sig_atomic_t *stop) MUST_CHECK;

#endif
