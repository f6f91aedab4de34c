/* Declarations that the files of src/setup share. */
#ifndef SLUICE_SETUP_INTERNAL_H
#define SLUICE_SETUP_INTERNAL_H

#include "base/log.h"
#include "setup/setup.h"
#include "setup/summary.h"

/* ---- the identity of a run: "key=value" lines ---- */

/* Fills self->identity and self->fingerprint. Call it when the model and the kernels' context are
 * made. */
int setupi_make_identity(struct setup *self) MUST_CHECK;
/* The line with the algorithms of the matrix products; only if some were chosen by time. */
#define SETUPI_PRODUCTS_KEY "products="
/* The line with the hash of a module's units and tensors. */
#define SETUPI_TENSORS_KEY "model.module.tensors="
/* Copies the value of the line that begins with `key`, or "". */
void setupi_identity_value(const char *identity, const char *key, char *value, size_t capacity);
/* ERR_INPUT, which names what differs, if the job cannot go on from `found`, the last commit of the
 * run in `run_dir`. `borrows`: the state comes from another run. */
int setupi_check_identity(const struct setup *self, const manifest *found, const char *run_dir,
                          bool borrows) MUST_CHECK;

/* ---- the inputs of the plan ---- */

/* Fills self->plan and what it points to, without budgets, machine and drives. Call it when the
 * model is made. */
int setupi_make_plan_inputs(struct setup *self, const struct setup_options *options) MUST_CHECK;
/* The streams code (base/tile.h) of the job's optimizer state. All streams are fp32 with
 * params_alone. */
uint32_t setupi_state_streams(const struct job *asked, bool params_alone);

/* ---- experts that ranks own: expert_ranks.c ---- */

/* Fills the spec's members about ranks, and setup's bytes of both ways. ERR_CONFIG if the job asks
 * for something that is not possible. Call it when it is known what computes. */
int setupi_choose_expert_ranks(struct setup *self, const struct setup_options *options,
                               model_spec *spec) MUST_CHECK;
/* Fills plan.is_owned. Call it when the model is made. */
int setupi_find_owned(struct setup *self) MUST_CHECK;

/* ---- device, drives, machine ---- */

/* Sets `ops`, and for a GPU also `gpu` and `context`. ERR_CONFIG if the job demands a GPU that is
 * not there. If the job leaves the choice, an unusable GPU is only a warning. */
int setupi_choose_backend(struct setup *self) MUST_CHECK;
/* With Muon: finds the units whose update orthogonalizes matrices, and the work and scratch that it
 * takes. ERR_CONFIG if one of the matrices is cut. Call it after the plan's inputs are made. */
int setupi_find_matrices(struct setup *self) MUST_CHECK;
int setupi_make_cpu_context(struct setup *self) MUST_CHECK; /* call it after the cores are placed */
/* Prepares the models, and with them the choice of algorithms. All ranks together. */
int setupi_prepare_models(struct setup *self, const struct setup_options *options) MUST_CHECK;
/* The device budget on a GPU: what the job asks for, or (asked_bytes 0) all that the free memory
 * allows. ERR_NO_FIT if the job asks for more than that. Call it after model_prepare, when the
 * libraries have taken their memory. */
int setupi_gpu_budget(const struct setup *self, uint64_t asked_bytes,
                      uint64_t *budget_bytes) MUST_CHECK;
/* Chooses how collectives move, the same way on all ranks. Call it after setupi_choose_backend. */
int setupi_choose_collectives(struct setup *self) MUST_CHECK;
/* Fills the drives and their budget. They are the job's drives, or those of an existing slab, or
 * the run directory if only the final state is written. */
int setupi_make_drives(struct setup *self, const struct setup_options *options) MUST_CHECK;
/* Fills the bytes of the drives' budgets that the plan cannot use. drive_count must be set. */
void setupi_fill_overhead(struct setup *self);
/* The number of threads of a rank with which the machine's kernels were measured; 0: not known. */
double setupi_measured_threads(const struct machine *from);
/* Bytes of all drives of a host together, at most INT64_MAX. */
uint64_t setupi_drives_capacity(const struct machine *on);

/* With is_described, these three replace what is otherwise found out on this machine:
 *
 *   ranks     how the ranks are placed on the described hosts
 *   device    ops (kernels/reference), context, thread counts and collectives
 *   budgets   budgets and drives; call it after the plan's inputs are made
 *
 * ERR_CONFIG if the machine cannot have such ranks, ERR_NO_FIT for budgets above its own memory. */
int setupi_described_ranks(struct setup *self) MUST_CHECK;
int setupi_described_device(struct setup *self) MUST_CHECK;
int setupi_described_budgets(struct setup *self) MUST_CHECK;

/* Writes why the described machine could not run the job although it fits: its GPUs are too old for
 * the kernels. "": it could, or it is not known. */
void setupi_why_not_run(const struct setup *self, char text[SETUP_CANNOT_RUN_BYTES]);

/* ---- the plan ---- */

/* Fills the seconds of passes and stages from the machine's measured kernels. It does nothing if
 * `from` is NULL, was not measured with the model's dtype, or computes on another kind of device.
 * Call it after setup_machine_figures. */
void setupi_price_passes(struct setup *self, const struct machine *from);
/* Applies the figures of the machine that the watch states. */
void setupi_watch_inputs(struct setup *self, const struct setup_options *options);
/* Fills homes and update from the job, chooses those that the job leaves open, and compiles. */
int setupi_place_and_compile(struct setup *self) MUST_CHECK;
/* Makes the inputs of the plan equal on all ranks:
 *
 *   budgets      the smallest of all ranks
 *   workspaces   the largest of all ranks
 *   identity, figures of the machine, times of the passes: rank 0's */
int setupi_share_inputs(struct setup *self) MUST_CHECK;
/* ERR_INTERNAL, on all ranks, if their programs differ. */
int setupi_compare_programs(const struct setup *self) MUST_CHECK;

/* ---- the critical path (plan/waits.h): waits_text.c ---- */

/* Fills the waits of a summary whose other figures are known. None where memory is short. */
void setupi_summarize_waits(const struct setup *self, struct setup_summary *out);
/* The waits as an array of objects, with the sentences that `sluice plan` prints. The caller owns
 * it. NULL: no memory. */
struct json_t *setupi_waits_json(const struct setup_summary *plan);

#endif
