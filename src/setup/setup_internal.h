/* What the files of src/setup share. */
#ifndef SLUICE_SETUP_INTERNAL_H
#define SLUICE_SETUP_INTERNAL_H

#include "base/log.h"
#include "setup/setup.h"
#include "setup/summary.h"

/* ---- the identity of a run: "key=value" lines ---- */

/* Lines of keys that most models leave at their defaults, of a spec that model_create has
 * completed. Returns the length as snprintf does. */
int setupi_variant_identity(const model_spec *spec, char *text, size_t capacity);
/* Lines of state formats; none where all is fp32. Returns the length as snprintf does. */
int setupi_state_identity(const struct job *asked, char *text, size_t capacity);
/* Lines that say what learns; none where everything does. Returns their length. */
size_t setupi_name_learning(const model *net, char *text, size_t capacity);
/* The part of an identity that an imported checkpoint keeps. */
void setupi_import_identity(const char *identity, char text[MANIFEST_TEXT_BYTES]);
/* ERR_INPUT, which names what differs, where a job of this identity cannot go on from the
 * import. */
int setupi_check_import(const manifest *found, const char *identity,
                        const char *run_dir) MUST_CHECK;

/* ---- device, drives, machine ---- */

/* Sets ops, and for a GPU gpu and context. ERR_CONFIG where the job demands a GPU that is not
 * there. Where the job leaves the choice, an unusable GPU is a warning. */
int setupi_choose_backend(struct setup *self) MUST_CHECK;
/* ERR_CONFIG where the updating backend has no kernel for the job's state formats. */
int setupi_check_state_kernels(const struct setup *self) MUST_CHECK;
int setupi_make_cpu_context(struct setup *self) MUST_CHECK; /* after cores are placed */
/* The device budget on a GPU: what the job asks (0: all it can have), ERR_NO_FIT above what its
 * free memory allows. Call it after model_prepare, when the libraries have taken their memory. */
int setupi_gpu_budget(const struct setup *self, uint64_t asked_bytes,
                      uint64_t *budget_bytes) MUST_CHECK;
/* How collectives move, the same on all ranks. After setupi_choose_backend. */
int setupi_choose_collectives(struct setup *self) MUST_CHECK;
/* Drives: the job's, those of an existing slab, or the run directory for the final state alone. */
int setupi_make_drives(struct setup *self, const struct setup_options *options) MUST_CHECK;
/* The bytes of the drives' budgets that the plan cannot have. Needs drive_count. */
void setupi_fill_overhead(struct setup *self);
/* Threads of a rank that the machine's kernels were measured with; 0: not known. */
double setupi_measured_threads(const struct machine *from);
/* Bytes of all drives of a host, at most INT64_MAX. */
uint64_t setupi_drives_capacity(const struct machine *on);

/* With is_described these replace what is otherwise found out on this machine: how the ranks lie on
 * its hosts; ops (kernels/reference), context, thread counts and collectives; budgets and drives,
 * after the plan's inputs. ERR_CONFIG where the machine cannot have such ranks, ERR_NO_FIT for
 * budgets above what it has. */
int setupi_described_ranks(struct setup *self) MUST_CHECK;
int setupi_described_device(struct setup *self) MUST_CHECK;
int setupi_described_budgets(struct setup *self) MUST_CHECK;

/* ---- the plan ---- */

/* Fills the seconds of passes and stages from the machine's measured kernels. Does nothing where
 * `from` is NULL, was not measured with the model's dtype, or computes on another kind of device.
 * After setup_machine_figures. */
void setupi_price_passes(struct setup *self, const struct machine *from);
/* Applies what the watch states of the machine. */
void setupi_watch_inputs(struct setup *self, const struct setup_options *options);
/* Fills homes and update from the job, chooses what it leaves open, and compiles. */
int setupi_place_and_compile(struct setup *self) MUST_CHECK;
/* All ranks plan with the least of their budgets, the most of their workspaces, and rank 0's
 * figures of the machine, times of the passes, and identity. */
int setupi_share_inputs(struct setup *self) MUST_CHECK;
/* ERR_INTERNAL, on all ranks, where their programs differ. */
int setupi_compare_programs(const struct setup *self) MUST_CHECK;
/* Predicted nanoseconds of a step: the mean of steps with and without a commit as they come in a
 * run. */
double setupi_mean_step_ns(const plan_job *plan, const plan_set *set);

#endif
