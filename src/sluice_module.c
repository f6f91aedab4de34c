/* The public interface: runs whose passes the caller computes. See sluice.h.
 *
 *   caller's threads        run's thread       worker of the library
 *   sluice_module_begin ──► train_step ──────► op of a pass
 *   sluice_module_wait  ◄──────────────────── api_run_pass posts its use, and sleeps
 *   sluice_module_pause ◄───────────────────► it runs the updates that wait, and sleeps
 *   sluice_module_done  ────────────────────► it goes on with the next op
 *   sluice_module_end   ◄── train_step is over
 *
 * Threads that wait sleep on a condition of the run. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/progress.h"
#include "engine/engine.h"
#include "sluice_internal.h"

/* ---- on threads of the library ---- */

/* Waits for a second at most. A caller that computes makes progress, however long it takes: other
 * ranks wait for it (comm/comm.h). */
static void wait_for_caller(sluice_run *self)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    pthread_cond_timedwait(&self->told, &self->lock, &until);
    if (self->use_state == API_USE_HELD)
        progress_note();
}

/* Runs the updates that wait, without the lock, while the caller waits for their end. */
static void run_pause(sluice_run *self)
{
    const model_pause *pause = &self->use->pause;
    pthread_mutex_unlock(&self->lock);
    pause->run(pause->user);
    pthread_mutex_lock(&self->lock);
    if (self->use_state == API_USE_PAUSED) /* else the step was given up meanwhile */
        self->use_state = API_USE_HELD;
    pthread_cond_broadcast(&self->told);
}

int api_run_pass(void *user, model_use *use)
{
    sluice_run *self = user;
    bool is_done = false; /* a step that is given up after its last use counts */
    pthread_mutex_lock(&self->lock);
    if (!self->is_given_up) {
        self->use = use;
        self->use_state = API_USE_POSTED;
        pthread_cond_broadcast(&self->told);
        while (self->use_state != API_USE_NOTHING)
            if (self->use_state == API_USE_PAUSED)
                run_pause(self);
            else
                wait_for_caller(self);
        is_done = self->use == NULL;
        self->use = NULL;
    }
    int rc = self->is_given_up && !is_done;
    if (rc)
        err_set(-ECANCELED, "%s", self->why);
    pthread_mutex_unlock(&self->lock);
    return rc;
}

int api_first_elems(void *user, uint32_t unit, uint64_t begin, uint64_t count, float *values)
{
    sluice_run *self = user;
    if (self->first(self->first_user, unit, begin, count, values) == 0)
        return 0;
    return err_set(-ECANCELED, "the program has no first weights of unit %u", unit);
}

static int evaluate(sluice_run *self, void *argument)
{
    (void)argument;
    self->made = (struct train_progress){.loss = (double)NAN};
    return train_evaluate(self->session, &self->made.loss);
}

/* ---- checks ---- */

static const module_spec *module_of(const sluice_run *self)
{
    return self->inputs.asked->module;
}

int api_check_closed(sluice_run *self, const char *function)
{
    if (self->is_open)
        return err_set(ERR_USAGE,
                       "a step or evaluation of the module is open: end it by sluice_module_end or "
                       "sluice_module_abort");
    if (function && module_of(self))
        return err_set(ERR_USAGE,
                       "%s: the passes of model.module are computed by the caller: use "
                       "sluice_module_begin",
                       function);
    return 0;
}

static int check_module(const sluice_run *self)
{
    if (module_of(self))
        return 0;
    return err_set(ERR_USAGE, "the job of this run has no model.module");
}

static int check_open(const sluice_run *self)
{
    TRY(check_module(self));
    if (self->is_open)
        return 0;
    return err_set(ERR_USAGE, "no step is open: call sluice_module_begin");
}

/* Names a use: "the backward of stage 3, block.2". */
static const char *name_use(const sluice_run *self, const model_use *use, char text[192])
{
    snprintf(text, 192, "the %s of stage %u, %s", use->is_backward ? "backward" : "forward",
             use->stage, module_of(self)->stages[use->stage].name);
    return text;
}

/* ---- a step ---- */

int sluice_module_begin(sluice_run *run, int is_training)
{
    int rc = check_module(run);
    if (rc == 0)
        rc = api_check_closed(run, NULL);
    if (rc < 0)
        return api_status_of(rc);
    run->is_open = true;
    run->is_given_up = false;
    run->use_state = API_USE_NOTHING;
    api_begin_call(run, is_training ? api_make_step : evaluate, NULL);
    return SLUICE_DONE;
}

/* Waits until a use is there or the step is over. True if a use is there. Call it with the lock. */
static bool wait_use(sluice_run *self)
{
    while (self->use_state == API_USE_NOTHING && self->call)
        pthread_cond_wait(&self->told, &self->lock);
    return self->use_state != API_USE_NOTHING;
}

int sluice_module_wait(sluice_run *run, struct sluice_use *use)
{
    memset(use, 0, sizeof *use);
    int rc = check_open(run);
    if (rc < 0)
        return api_status_of(rc);
    char text[192];
    pthread_mutex_lock(&run->lock);
    if (run->use_state == API_USE_HELD || run->use_state == API_USE_PAUSED)
        rc = err_set(ERR_USAGE, "%s is not over: call sluice_module_done before the next use",
                     name_use(run, run->use, text));
    else if (wait_use(run)) {
        const model_use *from = run->use;
        run->use_state = API_USE_HELD;
        *use = (struct sluice_use){
            .stage = from->stage,
            .pass = from->is_backward ? SLUICE_BACKWARD : SLUICE_FORWARD,
            .micro_batch = from->micro_batch,
            .unit_count = from->unit_count,
            .is_training = from->trains,
            .lends = from->lent != NULL,
            .grad_scale = (double)from->grad_scale,
        };
        for (uint32_t i = 0; i < from->unit_count; i++) {
            use->units[i] = from->units[i];
            use->params[i] = from->params[i];
            use->grads[i] = from->grads[i];
            use->fresh[i] = from->fresh[i];
            use->elems[i] = from->elems[i];
        }
    } else if (run->result.code < 0) {
        rc = err_restore(&run->result);
    } else {
        rc = err_set(ERR_USAGE, "the step has no more uses: call sluice_module_end");
    }
    pthread_mutex_unlock(&run->lock);
    return api_status_of(rc);
}

int sluice_module_lend(sluice_run *run, const void *const *grads, uint32_t tensor_count)
{
    int rc = check_open(run);
    if (rc < 0)
        return api_status_of(rc);
    pthread_mutex_lock(&run->lock);
    const model_use *use = run->use_state == API_USE_HELD ? run->use : NULL;
    uint32_t wanted = use ? train_model(run->session)->units[use->units[0]].tensor_count : 0;
    if (!use || !use->lent)
        rc = err_set(ERR_USAGE, "no use is held that lends its gradients");
    else if (tensor_count != wanted)
        rc = err_set(ERR_USAGE, "%u gradients are lent of a unit of %u tensors", tensor_count,
                     wanted);
    else
        memcpy(use->lent, grads, tensor_count * sizeof *grads);
    pthread_mutex_unlock(&run->lock);
    return api_status_of(rc);
}

int sluice_module_pause(sluice_run *run)
{
    pthread_mutex_lock(&run->lock);
    const model_pause *pause = run->use_state == API_USE_HELD ? &run->use->pause : NULL;
    bool is_wanted = pause && pause->run && pause->is_wanted(pause->user);
    if (is_wanted) {
        run->use_state = API_USE_PAUSED;
        pthread_cond_broadcast(&run->told);
        while (run->use_state == API_USE_PAUSED)
            pthread_cond_wait(&run->told, &run->lock);
    }
    pthread_mutex_unlock(&run->lock);
    return is_wanted;
}

int sluice_module_done(sluice_run *run, const double *loss)
{
    int rc = check_open(run);
    if (rc < 0)
        return api_status_of(rc);
    pthread_mutex_lock(&run->lock);
    if (run->use_state == API_USE_HELD) {
        run->use->loss = loss ? *loss : (double)NAN;
        run->use = NULL;
        run->use_state = API_USE_NOTHING;
        pthread_cond_broadcast(&run->told);
    } else {
        rc = err_set(ERR_USAGE, "no use is held: call sluice_module_wait");
    }
    pthread_mutex_unlock(&run->lock);
    return api_status_of(rc);
}

int sluice_module_end(sluice_run *run, struct sluice_step_info *info)
{
    char text[192];
    int rc = check_open(run);
    if (rc < 0)
        return api_status_of(rc);
    pthread_mutex_lock(&run->lock);
    if (wait_use(run))
        rc = err_set(ERR_USAGE, "the step is not over: it waits for %s",
                     name_use(run, run->use, text));
    pthread_mutex_unlock(&run->lock);
    if (rc < 0)
        return api_status_of(rc);
    run->is_open = false;
    rc = api_end_call(run);
    if (rc == 0 && info)
        *info = api_step_info(&run->made);
    return api_status_of(rc);
}

int api_give_up(sluice_run *self, const char *why)
{
    pthread_mutex_lock(&self->lock);
    snprintf(self->why, sizeof self->why, "%s", why);
    self->is_given_up = true;
    self->use_state = API_USE_NOTHING;
    pthread_cond_broadcast(&self->told);
    pthread_mutex_unlock(&self->lock);
    self->is_open = false;
    return api_end_call(self);
}

int sluice_module_abort(sluice_run *run, const char *why)
{
    int rc = check_open(run);
    if (rc < 0)
        return api_status_of(rc);
    rc = api_give_up(run, why ? why : "the program gave it up");
    /* A step that was gone through without computing: the run is as it was before. */
    if (rc == -ECANCELED && train_is_usable(run->session))
        rc = 0;
    return api_status_of(rc);
}

/* ---- between steps ---- */

int sluice_module_set_group(sluice_run *run, uint32_t group, const struct sluice_group *numbers)
{
    const engine_group given = {
        .learning_rate = numbers->lr,
        .weight_decay = numbers->weight_decay,
        .beta1 = numbers->betas[0],
        .beta2 = numbers->betas[1],
        .epsilon = numbers->eps,
    };
    int rc = check_module(run);
    if (rc == 0)
        rc = api_check_closed(run, NULL);
    return api_status_of(rc < 0 ? rc : train_set_group(run->session, group, &given));
}

int sluice_module_locate(const sluice_run *run, uint32_t unit, uint32_t tensor,
                         uint64_t *offset_elems, uint64_t *elems)
{
    int rc = check_module(run);
    const model *net = rc == 0 ? train_model(run->session) : NULL;
    *offset_elems = *elems = 0;
    if (rc == 0 && (unit >= net->unit_count || tensor >= net->units[unit].tensor_count))
        rc = err_set(ERR_USAGE, "there is no tensor %u of unit %u", tensor, unit);
    if (rc < 0)
        return api_status_of(rc);
    const model_tensor *found = &net->units[unit].tensors[tensor];
    *offset_elems = found->offset_elems;
    *elems = found->rows * found->columns;
    return SLUICE_DONE;
}

struct home_call {
    uint32_t unit;
    void *params;
    uint64_t bytes;
};

static int find_home(sluice_run *self, void *argument)
{
    struct home_call *call = argument;
    return train_home(self->session, call->unit, &call->params, &call->bytes);
}

int sluice_module_home(sluice_run *run, uint32_t unit, void **params, uint64_t *bytes)
{
    struct home_call call = {.unit = unit};
    int rc = check_module(run);
    if (rc == 0)
        rc = api_check_closed(run, NULL);
    if (rc == 0)
        rc = api_call(run, find_home, &call);
    *params = rc == 0 ? call.params : NULL;
    *bytes = rc == 0 ? call.bytes : 0;
    return api_status_of(rc);
}

int sluice_module_close(sluice_run *run, int keeps_params, struct sluice_memory *memory)
{
    arena kept[2] = {{.base = NULL}};
    if (run) /* its thread reads this when it closes the session */
        train_keep_memory(run->session, keeps_params, kept);
    int status = sluice_close(run);
    for (int a = 0; a < 2; a++) {
        memory->base[a] = kept[a].base;
        memory->bytes[a] = kept[a].size_bytes;
    }
    return status;
}

void sluice_module_unmap(struct sluice_memory *memory)
{
    for (int a = 0; a < 2; a++)
        arena_fini(&(arena){.base = memory->base[a], .size_bytes = memory->bytes[a]});
    *memory = (struct sluice_memory){.base = {NULL}};
}
