/* Declarations that the files of src/infer share: bringing params to their homes in an engine that
 * only computes forward. */
#ifndef SLUICE_INFER_INTERNAL_H
#define SLUICE_INFER_INTERNAL_H

#include <signal.h>

#include "base/log.h"
#include "engine/engine.h"
#include "hf/hf.h"
#include "infer/infer.h"
#include "state/run_dir.h"
#include "state/state.h"

/* Makes params from fp32 master weights and puts them where they rest, in an engine with
 * params_alone. One filler per engine. */
struct inferi_filler {
    struct engine *engine;   /* borrowed */
    kernel_context *context; /* context of the CPU's kernels */
    void *block;             /* the allocation that holds `copy` */
    unsigned char *copy;     /* [copy_elems] params on their way to a GPU or to drives */
    uint64_t copy_elems;
    uint32_t unit; /* params on drives: the part that is being filled */
    uint64_t part_begin, part_elems;
};
typedef struct inferi_filler inferi_filler;
int inferi_filler_init(inferi_filler *self, struct engine *engine, uint64_t copy_elems) MUST_CHECK;
void inferi_filler_fini(inferi_filler *self);
/* Fills elements [begin, begin + count) of a unit from `master`, which holds these `count` elements
 * in fp32; count <= copy_elems. Call it for the units in order, and for each unit from 0 to its
 * end. */
int inferi_fill(inferi_filler *self, uint32_t unit, uint64_t begin, uint64_t count,
                const float *master) MUST_CHECK;

/* Brings the params of a commit to their homes in the engine. Any number of ranks may have made the
 * commit. `copy_rank`: whose slab is read if record->is_replicated. `stop`: ERR_STOPPED when it is
 * set; may be NULL. */
int inferi_load_params(struct engine *engine, const manifest *record, uint32_t copy_rank,
                       const volatile sig_atomic_t *stop) MUST_CHECK;

#endif
