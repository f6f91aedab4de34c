/* A thread behind one or more in-order lanes. See lane.h.
 *
 *   executor's thread                         worker thread
 *   submit ─► queue of the lane ─► [ pick: priority lane first, if its head may run ] ─► run
 *   poll   ◄─ finished list     ◄───────────────────────── eventfd when it was empty ◄───┘
 *
 * The executor may submit an op while an op that it depends on is still queued here on another
 * lane. So pick checks: a head may run unless one of its dependencies is on another lane of this
 * worker and not finished yet. Lanes are FIFOs in op order, so a dependency is unfinished if it is
 * not below the head of its queue. The head with the lowest op index may always run, so the worker
 * cannot deadlock. During a pause of an op the worker runs heads of the priority lane that may run;
 * if one fails, the paused op still goes on to its end. After a failed op nothing more is run:
 * queued ops come back with ERR_POISONED. The mutex guards only the lists and is not held while an
 * op runs. Nothing is allocated per op. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "swap/lane.h"

struct request_list {
    lane_request *first, *last;
};
typedef struct request_list request_list;

struct lane_worker {
    lane base; /* first: a lane * is a lane_worker * */
    lane_worker_config config;
    int event_fd;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t work; /* signals queued work, stop, and (to create) that the thread is ready */
    /* Under the mutex: */
    request_list queues[LANE_COUNT];
    request_list finished;
    bool ready, stop;
    int start_result;
    err_record error; /* written once, by the worker, before the failed request is finished */
    /* The worker's own: */
    uint64_t idle_since_ns;
    lane_request *running;
};
typedef struct lane_worker lane_worker;

static_assert(offsetof(lane_worker, base) == 0, "a lane_worker starts with its lane");

static void list_push(request_list *list, lane_request *request)
{
    request->next = NULL;
    if (list->last)
        list->last->next = request;
    else
        list->first = request;
    list->last = request;
}

static lane_request *list_pop(request_list *list)
{
    lane_request *request = list->first;
    if (!request)
        return NULL;
    list->first = request->next;
    if (!list->first)
        list->last = NULL;
    request->next = NULL;
    return request;
}

/* True if the head of its queue may run: no dependency of it is queued on another lane of this
 * worker. */
static bool may_run(const lane_worker *self, const lane_request *request)
{
    const program *prog = request->prog;
    const op *item = request->item;
    for (uint32_t k = 0; k < item->dep_count; k++) {
        uint32_t dep = prog->deps[item->dep_begin + k];
        uint8_t dep_lane = prog->ops[dep].lane;
        const lane_request *head = self->queues[dep_lane].first;
        if (dep_lane != item->lane && head && head->op_idx <= dep)
            return false;
    }
    return true;
}

/* The queue of the priority lane if its head may run, or NULL. Called with the mutex. */
static request_list *pick_urgent(lane_worker *self)
{
    request_list *urgent = &self->queues[self->config.priority_lane];
    return urgent->first && may_run(self, urgent->first) ? urgent : NULL;
}

/* The queue to serve next, or NULL when all are empty. */
static request_list *pick(lane_worker *self)
{
    request_list *best = pick_urgent(self);
    if (best)
        return best;
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        lane_request *head = self->queues[kind].first;
        if (head && (!best || head->op_idx < best->first->op_idx))
            best = &self->queues[kind];
    }
    return best;
}

static void run_request(lane_worker *self, lane_request *request)
{
    self->running = request;
    request->paused_ns = 0;
    request->start_ns = clock_ns();
    request->wait_ns = request->start_ns - self->idle_since_ns;
    if (self->error.code != 0)
        request->result = ERR_POISONED;
    else
        request->result = self->config.run(self->config.user, request->prog, request->item);
    request->end_ns = clock_ns();
    self->idle_since_ns = request->end_ns;
    if (request->result > 0)
        request->result = 0;
}

/* Runs the head of the queue, which may run. Called with the mutex, which is unlocked while the op
 * runs. */
static void serve(lane_worker *self, request_list *queue)
{
    lane_request *request = queue->first; /* stays the head while it runs: see may_run */
    pthread_mutex_unlock(&self->mutex);
    run_request(self, request);
    pthread_mutex_lock(&self->mutex);
    err_keep(&self->error, request->result);
    list_pop(queue);
    bool was_empty = !self->finished.first;
    list_push(&self->finished, request);
    if (was_empty) {
        int rc = eventfd_write(self->event_fd, 1);
        assert(rc == 0);
        (void)rc;
    }
}

bool lane_worker_is_pause_wanted(lane *worker)
{
    lane_worker *self = (lane_worker *)worker;
    pthread_mutex_lock(&self->mutex);
    bool is_wanted = pick_urgent(self) != NULL;
    pthread_mutex_unlock(&self->mutex);
    return is_wanted;
}

void lane_worker_pause(lane *worker)
{
    lane_worker *self = (lane_worker *)worker;
    lane_request *paused = self->running;
    if (paused->item->lane == self->config.priority_lane)
        return;
    uint64_t begin_ns = 0; /* nothing ran yet */
    pthread_mutex_lock(&self->mutex);
    for (request_list *urgent; (urgent = pick_urgent(self)) != NULL;) {
        if (begin_ns == 0)
            begin_ns = self->idle_since_ns = clock_ns();
        serve(self, urgent);
    }
    pthread_mutex_unlock(&self->mutex);
    if (begin_ns > 0)
        paused->paused_ns += self->idle_since_ns - begin_ns;
    self->running = paused;
}

static void *worker_main(void *argument)
{
    lane_worker *self = argument;
    const lane_worker_config *config = &self->config;
    void *start_user = config->start_user ? config->start_user : config->user;
    bool has_rested = false; /* since the last request */
    int start_result = config->start_thread ? config->start_thread(start_user) : 0;
    pthread_mutex_lock(&self->mutex);
    self->start_result = start_result < 0 ? start_result : 0;
    if (self->start_result < 0)
        err_save(&self->error, self->start_result);
    self->ready = true;
    self->idle_since_ns = clock_ns();
    pthread_cond_broadcast(&self->work);
    while (self->start_result == 0) {
        request_list *queue = pick(self);
        if (!queue && self->stop)
            break;
        if (!queue && config->rest && !has_rested) {
            pthread_mutex_unlock(&self->mutex);
            config->rest();
            pthread_mutex_lock(&self->mutex);
            has_rested = true;
            continue;
        }
        if (!queue) {
            pthread_cond_wait(&self->work, &self->mutex);
            continue;
        }
        has_rested = false;
        serve(self, queue);
    }
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

static int worker_submit(lane *base, lane_request *request)
{
    lane_worker *self = (lane_worker *)base;
    pthread_mutex_lock(&self->mutex);
    list_push(&self->queues[request->item->lane], request);
    pthread_cond_signal(&self->work);
    pthread_mutex_unlock(&self->mutex);
    return 0;
}

static int worker_poll(lane *base, lane_request **done, size_t max)
{
    lane_worker *self = (lane_worker *)base;
    size_t count = 0;
    pthread_mutex_lock(&self->mutex);
    while (count < max && self->finished.first)
        done[count++] = list_pop(&self->finished);
    if (count > 0 && !self->finished.first) {
        /* Under the mutex, so that it does not clear the signal of a request that finishes next. */
        eventfd_t news;
        (void)eventfd_read(self->event_fd, &news); /* EAGAIN: there was no signal to clear */
    }
    pthread_mutex_unlock(&self->mutex);
    return (int)count;
}

static int worker_event_fd(const lane *base)
{
    return ((const lane_worker *)base)->event_fd;
}

/* The worker writes it once, before it finishes the failed request. It is read after that request
 * was polled under the mutex. */
static const err_record *worker_error(const lane *base)
{
    return &((const lane_worker *)base)->error;
}

static void free_parts(lane_worker *self)
{
    pthread_mutex_destroy(&self->mutex);
    pthread_cond_destroy(&self->work);
    if (self->event_fd >= 0)
        close(self->event_fd);
    mem_free(self);
}

static void worker_destroy(lane *base)
{
    if (!base)
        return;
    lane_worker *self = (lane_worker *)base;
    pthread_mutex_lock(&self->mutex);
    self->stop = true;
    pthread_cond_broadcast(&self->work);
    pthread_mutex_unlock(&self->mutex);
    pthread_join(self->thread, NULL);
    free_parts(self);
}

static const struct lane_ops worker_ops = {
    .name = "worker",
    .submit = worker_submit,
    .poll = worker_poll,
    .event_fd = worker_event_fd,
    .error = worker_error,
    .destroy = worker_destroy,
};

/* Starts the thread and waits until start_thread has returned there. */
static int start_worker(lane_worker *self)
{
    int code = pthread_create(&self->thread, NULL, worker_main, self);
    if (code != 0)
        return err_errno(code, "lane %s: starting its thread", self->config.name);
    pthread_mutex_lock(&self->mutex);
    while (!self->ready)
        pthread_cond_wait(&self->work, &self->mutex);
    pthread_mutex_unlock(&self->mutex);
    if (self->start_result == 0)
        return 0;
    pthread_join(self->thread, NULL);
    err_restore(&self->error);
    return err_prefix(self->start_result, "lane %s", self->config.name);
}

int lane_worker_create(const lane_worker_config *config, lane **out)
{
    *out = NULL;
    if (!config->run || config->depth == 0 || (unsigned)config->priority_lane >= LANE_COUNT)
        return err_set(-EINVAL, "lane %s: needs a callback and a depth",
                       config->name ? config->name : "worker");
    lane_worker *self = mem_alloc(1, sizeof *self, "lane worker");
    if (!self)
        return -ENOMEM;
    self->config = *config;
    if (!self->config.name)
        self->config.name = "worker";
    self->base =
        (lane){.ops = &worker_ops, .depth = config->depth, .in_order = 1, .owner = config->owner};
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->work, NULL);
    self->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = self->event_fd < 0 ? err_errno(errno, "lane %s: making its eventfd", self->config.name)
                                : start_worker(self);
    if (rc < 0) {
        free_parts(self);
        return rc;
    }
    *out = &self->base;
    return 0;
}
