/* Declarations that the files of src/engine share. */
#ifndef SLUICE_ENGINE_INTERNAL_H
#define SLUICE_ENGINE_INTERNAL_H

#include "base/log.h"
#include "engine/engine.h"

/* ---- lanes.c: called in this order, after arenas, places and the drives' lanes ---- */
int enginei_make_workers(struct engine *self) MUST_CHECK;
int enginei_open_collectives(struct engine *self) MUST_CHECK; /* all ranks together */
/* Replaces the engine's lanes by those of a test (setup_test.lanes). */
int enginei_wrap_lanes(struct engine *self, const struct setup_lanes *test) MUST_CHECK;
int enginei_make_executor(struct engine *self) MUST_CHECK;
void enginei_destroy_lanes(struct engine *self);
/* `group` is a core_group. For threads that mostly wait. */
int enginei_start_io_thread(void *group);
void enginei_list_programs(const struct engine *self, const program *programs[PROGRAM_KIND_COUNT]);

/* ---- norm.c: the global gradient norm ---- */

/* Allocates the memory for the sums of squares. */
int enginei_make_norm(struct engine *self) MUST_CHECK;
/* Reduces part `part` (plan_set.norm_part_begin). `sums` holds this rank's sums or, with several
 * ranks, the gathered sums of all ranks, which are first put in order in `ordered`. With a GPU the
 * work is enqueued on `stream`. */
int enginei_reduce_norm(const struct engine *self, void *stream, uint32_t part, const double *sums,
                        double *ordered) MUST_CHECK;
/* The sum of squares. Call it when all parts are complete. */
double enginei_norm_total(const struct engine *self);
/* Sets the step's norm from the complete sum. If the update follows in this program, also makes its
 * scalars. */
void enginei_take_norm(struct engine *self);

/* ---- compute.c: callbacks of the lanes' workers; `user` is the engine ---- */
int enginei_run_op(void *user, const program *prog, const op *item);
/* On a GPU an op is enqueued on its stream; enginei_finish_op is called when it is complete. */
int enginei_enqueue_op(void *user, const program *prog, const op *item, void *stream);
/* True for ops whose work is the same at each step (lane_stream_graphs.may_replay). */
bool enginei_may_replay(void *user, const program *prog, const op *item);
int enginei_finish_op(void *user, const program *prog, const op *item);
int enginei_run_copy(void *user, const program *prog, const op *item);
int enginei_run_collective(void *user, const program *prog, const op *item);
/* Names the collective, such as "all-gather of params of block.3", for messages about a missing
 * rank. */
void enginei_name_collective(const struct engine *self, const op *item,
                             char label[COMM_LABEL_BYTES]);
/* The address of the op's operand with this role; NULL if it has none. */
void *enginei_role_address(const struct engine *self, const program *prog, const op *item,
                           enum operand_role role);

/* ---- unite_hits.c: the units that are hit, of all ranks ---- */

/* Makes what the op needs. Call it before the arenas' memory is sealed, on the owner's thread. */
int enginei_make_united(struct engine *self) MUST_CHECK;
/* `stream`: NCCL's, where the op is only enqueued, and enginei_take_hits follows when it is
 * complete. NULL: the op is complete when the call returns. */
int enginei_unite_hits(struct engine *self, const program *prog, const op *item,
                       void *stream) MUST_CHECK;
void enginei_take_hits(struct engine *self, const program *prog, const op *item);

/* ---- exchange_rows.c: rows of activations, for experts that belong to ranks ---- */

/* Makes the tables of parcels, and room for offsets if the model has experts. Call it before memory
 * is sealed. */
int enginei_make_parcels(struct engine *self) MUST_CHECK;
/* A micro-batch's tables, NULL if ranks own no experts; and its offsets, NULL if there are no
 * experts. */
model_parcels enginei_parcels_of(const struct engine *self, uint32_t micro_batch);
/* For a step of a pass that is not computed (setup_watch.only_transfers): fills the tables as if
 * tokens chose all experts equally often, which is what the plan counts. */
void enginei_send_usual(struct engine *self, const op *item);
int enginei_exchange_rows(struct engine *self, const program *prog, const op *item) MUST_CHECK;

/* ---- lent_grads.c: gradients that the program of a module lends ---- */

/* A unit's lent gradients (LENT GRADIENTS in swap/program.h). */
struct enginei_lent {
    const model_unit *unit;
    const void *const *grads; /* [unit->tensor_count] by tensor, contiguous; NULL: zeros */
    enum dtype type;
};
/* Gradients of elements that follow each other in the unit's flat vector. */
struct enginei_lent_part {
    uint64_t count; /* a multiple of SHARD_ELEMS_STEP */
    const void *grads;
};
/* The gradients of at most `most` elements from element `begin` on, both multiples of
 * SHARD_ELEMS_STEP: as many as lie in one tensor, at its own address; or those of one block,
 * gathered in `block` [SHARD_ELEMS_STEP]. */
struct enginei_lent_part enginei_lent_part(const struct enginei_lent *lent, uint64_t begin,
                                           uint64_t most, float *block);

/* ---- run_update.c: the optimizer's ops, for compute.c ---- */

/* The kernels and the context with which an op of the optimizer computes. */
const kernel_ops *enginei_worker(const struct engine *self, const op *item,
                                 kernel_context **context);
int enginei_run_update(struct engine *self, const program *prog, const op *item,
                       void *stream) MUST_CHECK;
int enginei_run_direction(struct engine *self, const program *prog, const op *item) MUST_CHECK;
int enginei_run_orthogonalize(struct engine *self, const program *prog, const op *item) MUST_CHECK;

#endif
