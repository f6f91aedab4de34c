/* The public interface: an open run. See sluice.h; sluice_tasks.c has the other functions. */
#include "sluice_internal.h"

#include <errno.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "config/machine.h"
#include "hf/hf.h"
#include "setup/setup.h"
#include "setup/summary.h"

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
    log_set_level(verbose > 0 ? LOG_INFO : verbose < 0 ? LOG_QUIET : LOG_WARN);
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

/* comm_join_config.share */
static int share(void *user, void *data, uint64_t bytes, double timeout_seconds)
{
    const struct sluice_options *options = user;
    if (options->share(options->share_user, data, bytes, timeout_seconds) == 0)
        return 0;
    return err_set(-ECANCELED, "the program does not pass on where the ranks meet");
}

/* comm_join_config.report: the program has not closed the run since a rank failed, and its process
 * is ended. */
static void report(int code)
{
    (void)code;
    log_warn("%s; ending this process, whose program has not closed the run", err_text());
}

int api_inputs_init(struct api_inputs *self, const char *job_path,
                    const struct sluice_options *options)
{
    const char *const *set = options->set;
    uint32_t set_count = (uint32_t)options->set_count;
    const comm_join_config as_launched = {
        .timeout_seconds = job_peek_timeout(job_path, options->job_text, set, set_count),
        .report = report,
        .share = options->share ? share : NULL,
        .share_user = (void *)options,
    };
    bool fresh;
    memset(self, 0, sizeof *self);
    TRY(api_begin(options->verbose, true));
    TRY(comm_join(&as_launched, &self->ranks));
    TRY(setup_read_job(self->ranks, job_path, options->job_text, set, set_count, &self->asked,
                       &fresh));
    if (self->asked->module)
        TRY(setup_compare_lines(self->ranks, options->alike ? options->alike : ""));
    TRY(read_machine(self, options->machine));
    self->train = (struct train_options){
        .job = self->asked,
        .comm = self->ranks,
        .machine = self->figures,
        .fresh = fresh || options->fresh != 0,
        .is_temporary = options->temporary != 0,
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

/* ---- the run's thread ---- */

/* Tells the caller's threads what sluice_get_info answers. */
static void note_info(sluice_run *self)
{
    if (!self->session)
        return;
    train_get_summary(self->session, &self->summary, &self->plan);
    self->info = (struct sluice_info){
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

static void *serve(void *argument)
{
    sluice_run *self = argument;
    pthread_mutex_lock(&self->lock);
    while (true) {
        while (!self->call && !self->ends)
            pthread_cond_wait(&self->asked, &self->lock);
        if (!self->call)
            break;
        pthread_mutex_unlock(&self->lock);
        int rc = self->call(self, self->argument);
        pthread_mutex_lock(&self->lock);
        err_save(&self->result, rc);
        note_info(self);
        self->call = NULL;
        pthread_cond_broadcast(&self->told);
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

void api_begin_call(sluice_run *self, int (*call)(sluice_run *self, void *argument), void *argument)
{
    pthread_mutex_lock(&self->lock);
    self->argument = argument;
    self->call = call;
    pthread_cond_signal(&self->asked);
    pthread_mutex_unlock(&self->lock);
}

int api_end_call(sluice_run *self)
{
    pthread_mutex_lock(&self->lock);
    while (self->call)
        pthread_cond_wait(&self->told, &self->lock);
    pthread_mutex_unlock(&self->lock);
    return self->result.code < 0 ? err_restore(&self->result) : self->result.code;
}

int api_call(sluice_run *self, int (*call)(sluice_run *self, void *argument), void *argument)
{
    api_begin_call(self, call, argument);
    return api_end_call(self);
}

static int create(sluice_run **out)
{
    sluice_run *self = *out = mem_alloc(1, sizeof *self, "run");
    if (!self)
        return err_set(-ENOMEM, "no memory for a run");
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->asked, NULL);
    pthread_cond_init(&self->told, NULL);
    int failed = thread_start(&self->thread, serve, self);
    if (failed == 0)
        return 0;
    mem_free(self);
    *out = NULL;
    return err_errno(failed, "a run has no thread");
}

/* Ends the thread and frees the run, whose session is closed. */
static void destroy(sluice_run *self)
{
    pthread_mutex_lock(&self->lock);
    self->ends = true;
    pthread_cond_signal(&self->asked);
    pthread_mutex_unlock(&self->lock);
    pthread_join(self->thread, NULL);
    pthread_cond_destroy(&self->told);
    pthread_cond_destroy(&self->asked);
    pthread_mutex_destroy(&self->lock);
    mem_free(self);
}

/* ---- calls, on the run's thread ---- */

static int open_session(sluice_run *self, void *argument)
{
    const struct sluice_options *options = argument;
    int rc = api_inputs_init(&self->inputs, self->job_path, options);
    self->inputs.train.run_module = api_run_pass;
    self->inputs.train.module_user = self;
    if (options->first)
        self->inputs.train.first_elems = api_first_elems;
    if (rc == 0)
        rc = train_open(&self->inputs.train, &self->session);
    return rc < 0 ? api_inputs_fini(&self->inputs, rc) : rc;
}

static int close_session(sluice_run *self, void *argument)
{
    (void)argument;
    train_session *session = self->session;
    self->session = NULL;
    return api_inputs_fini(&self->inputs, train_close(session));
}

int api_make_step(sluice_run *self, void *argument)
{
    (void)argument;
    return train_step(self->session, &self->made);
}

static int evaluate(sluice_run *self, void *argument)
{
    return train_evaluate(self->session, argument);
}

static int commit(sluice_run *self, void *argument)
{
    return train_commit(self->session, argument);
}

struct broadcast_call {
    void *data;
    uint64_t bytes;
};

static int broadcast(sluice_run *self, void *argument)
{
    const struct broadcast_call *call = argument;
    return train_broadcast(self->session, call->data, call->bytes);
}

static int export_run(sluice_run *self, void *argument)
{
    struct hf_export_summary made;
    return train_export(self->session, argument, &made);
}

/* ---- the caller's side ---- */

int sluice_open(const char *job_path, const struct sluice_options *options, sluice_run **out)
{
    static const struct sluice_options defaults;
    sluice_run *self;
    *out = NULL;
    if (!options)
        options = &defaults;
    int rc = create(&self);
    if (rc < 0)
        return api_status_of(rc);
    self->job_path = job_path;
    self->first = options->first;
    self->first_user = options->first_user;
    rc = api_call(self, open_session, (void *)(uintptr_t)options);
    self->job_path = NULL;
    if (rc < 0) {
        destroy(self);
        return api_status_of(rc);
    }
    *out = self;
    return SLUICE_DONE;
}

void sluice_get_info(const sluice_run *run, struct sluice_info *info)
{
    sluice_run *self = (sluice_run *)(uintptr_t)run;
    pthread_mutex_lock(&self->lock);
    *info = self->info;
    pthread_mutex_unlock(&self->lock);
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
    int rc = api_check_closed(run, "sluice_step");
    if (rc == 0)
        rc = api_call(run, api_make_step, NULL);
    if (rc < 0 || !info)
        return api_status_of(rc);
    *info = api_step_info(&run->made);
    return SLUICE_DONE;
}

int sluice_evaluate(sluice_run *run, double *loss)
{
    int rc = api_check_closed(run, "sluice_evaluate");
    return api_status_of(rc < 0 ? rc : api_call(run, evaluate, loss));
}

int sluice_commit(sluice_run *run, uint64_t *step)
{
    uint64_t which;
    int rc = api_check_closed(run, NULL);
    if (rc == 0)
        rc = api_call(run, commit, &which);
    if (rc == 0 && step)
        *step = which;
    return api_status_of(rc);
}

int sluice_broadcast(sluice_run *run, void *data, uint64_t bytes)
{
    struct broadcast_call call = {data, bytes};
    int rc = api_check_closed(run, NULL);
    return api_status_of(rc < 0 ? rc : api_call(run, broadcast, &call));
}

int sluice_export(sluice_run *run, const char *directory,
                  const struct sluice_export_options *options)
{
    static const struct sluice_export_options defaults;
    if (!options)
        options = &defaults;
    struct hf_export_options asked = {
        .hf_dir = directory,
        .type = options->dtype,
        .adapters = options->adapters != 0,
        .force = options->force != 0,
    };
    int rc = api_check_closed(run, NULL);
    return api_status_of(rc < 0 ? rc : api_call(run, export_run, &asked));
}

void sluice_set_failure(sluice_run *run, const char *failure)
{
    snprintf(run->failure, sizeof run->failure, "%s", failure ? failure : "");
}

int sluice_close(sluice_run *run)
{
    if (!run)
        return SLUICE_DONE;
    bool has_failed = run->failure[0] != '\0';
    if (has_failed)
        comm_note_failure(run->inputs.ranks, run->failure);
    if (run->is_open && api_give_up(run, has_failed ? run->failure : "the run was closed") < 0)
        (void)err_text(); /* a run that cannot go on says so when it is closed */
    int rc = api_call(run, close_session, NULL);
    err_record first;
    err_save(&first, rc);
    destroy(run);
    return api_status_of(rc < 0 ? err_restore(&first) : rc);
}
