/* The public interface: an open run. See sluice.h; sluice_tasks.c has the other functions. */
#include "sluice_internal.h"

#include <errno.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "comm/comm.h"
#include "config/machine.h"
#include "hf/hf.h"
#include "setup/setup.h"
#include "setup/summary.h"

struct sluice_run {
    struct api_inputs inputs;
    train_session *session;
    struct train_summary summary;
    struct setup_summary plan;
};

const char *sluice_version(void)
{
    return SLUICE_VERSION;
}

const char *sluice_error(void)
{
    return err_text();
}

void sluice_set_data_directory(const char *directory)
{
    if (config_set_directory(directory) < 0)
        log_warn("%s", err_text());
}

void sluice_free(char *text)
{
    free(text);
}

int api_status_of(int rc)
{
    switch (rc) {
    case ERR_USAGE:
    case ERR_CONFIG:
    case ERR_INPUT:
        return SLUICE_WRONG;
    case ERR_NO_FIT:
        return SLUICE_NO_FIT;
    case ERR_STOPPED:
        return SLUICE_STOPPED;
    default:
        return rc < 0 ? SLUICE_FAILED : SLUICE_DONE;
    }
}

int api_begin(int verbose, bool computes)
{
    log_set_level(verbose ? LOG_INFO : LOG_WARN);
    TRY(cpu_isa_check());
    TRY(limits_begin());
    return computes ? limits_check_threads((uint32_t)omp_get_max_threads()) : 0;
}

/* Reads the machine file on rank 0 and sends it to all ranks. */
static int read_machine(struct api_inputs *self, const char *path)
{
    int rc = 0;
    if (!path)
        return 0;
    self->figures = mem_alloc(1, sizeof *self->figures, "machine");
    if (!self->figures)
        rc = -ENOMEM;
    else if (comm_get_rank(self->ranks) == 0)
        rc = machine_read(path, self->figures);
    TRY(comm_agree(self->ranks, "reading the machine file", rc));
    return comm_broadcast(self->ranks, "the machine file", self->figures, sizeof *self->figures);
}

int api_inputs_init(struct api_inputs *self, const char *job_path,
                    const struct sluice_options *options)
{
    const char *const *set = options->set;
    uint32_t set_count = (uint32_t)options->set_count;
    const comm_join_config as_launched = {
        .timeout_seconds = options->job_text
                               ? job_peek_timeout_text(options->job_text, set, set_count)
                               : job_peek_timeout(job_path, set, set_count),
    };
    bool fresh;
    memset(self, 0, sizeof *self);
    TRY(api_begin(options->verbose, true));
    TRY(comm_join(&as_launched, &self->ranks));
    TRY(setup_read_job_text(self->ranks, job_path, options->job_text, set, set_count, &self->asked,
                            &fresh));
    TRY(read_machine(self, options->machine));
    self->train = (struct train_options){
        .job = self->asked,
        .comm = self->ranks,
        .machine = self->figures,
        .fresh = fresh || options->fresh != 0,
        .from = options->from,
    };
    return 0;
}

int api_inputs_fini(struct api_inputs *self, int rc)
{
    err_record first;
    err_save(&first, rc);
    job_destroy(self->asked);
    mem_free(self->figures);
    /* all ranks have agreed on a stop, and each knows of it */
    if (rc < 0 && rc != ERR_STOPPED) {
        comm_fail(self->ranks, rc, first.text);
        err_restore(&first);
    }
    comm_leave(self->ranks, rc == ERR_STOPPED ? 0 : rc);
    return rc < 0 ? err_restore(&first) : rc;
}

static int destroy(struct sluice_run *self, int rc)
{
    rc = api_inputs_fini(&self->inputs, rc);
    mem_free(self);
    return rc;
}

int sluice_open(const char *job_path, const struct sluice_options *options, sluice_run **out)
{
    static const struct sluice_options defaults;
    *out = NULL;
    if (!options)
        options = &defaults;
    sluice_run *self = mem_alloc(1, sizeof *self, "run");
    if (!self)
        return api_status_of(err_set(-ENOMEM, "no memory for a run"));
    int rc = api_inputs_init(&self->inputs, job_path, options);
    if (rc == 0)
        rc = train_open(&self->inputs.train, &self->session);
    if (rc < 0)
        return api_status_of(destroy(self, rc));
    *out = self;
    return SLUICE_DONE;
}

void sluice_get_info(const sluice_run *run, struct sluice_info *info)
{
    /* the function uses the run's summaries as scratch memory */
    sluice_run *self = (sluice_run *)(uintptr_t)run;
    train_get_summary(self->session, &self->summary, &self->plan);
    *info = (struct sluice_info){
        .param_count = self->plan.param_count,
        .step = self->summary.step,
        .steps = self->inputs.asked->run.steps,
        .tokens_per_step = self->plan.tokens_per_step,
        .rank = comm_get_rank(self->inputs.ranks),
        .world = comm_get_world(self->inputs.ranks),
        .device_bytes = self->plan.peak_bytes[TIER_DEVICE],
        .host_bytes = self->plan.peak_bytes[TIER_HOST],
        .nvme_bytes = self->plan.peak_bytes[TIER_NVME],
        .step_seconds = self->plan.step_seconds,
    };
}

struct sluice_step_info api_step_info(const struct train_progress *made)
{
    return (struct sluice_step_info){
        .step = made->step,
        .tokens = made->tokens,
        .loss = made->loss,
        .grad_norm = made->grad_norm,
        .learning_rate = made->learning_rate,
        .skipped = made->skipped,
        .seconds = made->seconds,
        .tokens_per_second = made->tokens_per_second,
        .model_flops = made->model_tflops * 1e12,
    };
}

int sluice_step(sluice_run *run, struct sluice_step_info *info)
{
    struct train_progress made;
    int rc = train_step(run->session, &made);
    if (rc < 0 || !info)
        return api_status_of(rc);
    *info = api_step_info(&made);
    return SLUICE_DONE;
}

int sluice_evaluate(sluice_run *run, double *loss)
{
    return api_status_of(train_evaluate(run->session, loss));
}

int sluice_commit(sluice_run *run, uint64_t *step)
{
    uint64_t which;
    int rc = train_commit(run->session, &which);
    if (rc == 0 && step)
        *step = which;
    return api_status_of(rc);
}

int sluice_export(sluice_run *run, const char *directory,
                  const struct sluice_export_options *options)
{
    static const struct sluice_export_options defaults;
    if (!options)
        options = &defaults;
    const struct hf_export_options asked = {
        .hf_dir = directory,
        .type = options->dtype,
        .adapters = options->adapters != 0,
        .force = options->force != 0,
    };
    struct hf_export_summary made;
    return api_status_of(train_export(run->session, &asked, &made));
}

int sluice_close(sluice_run *run)
{
    if (!run)
        return SLUICE_DONE;
    return api_status_of(destroy(run, train_close(run->session)));
}
