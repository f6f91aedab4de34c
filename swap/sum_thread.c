/* See sum_thread.h. `mutex` guards the two lists and the flags; it is not held while summing.
 *
 * Threads wait on a semaphore, not on a condition: with several that wait, glibc before 2.41 can
 * lose the signal of a condition (its bug 25847), and the job would lie there for ever. */
#include "swap/sum_thread.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/thread.h"
#include "swap/lane_io.h"

struct job_list {
    swapi_sum_job *first, *last;
};
typedef struct job_list job_list;

struct swapi_sum_thread {
    int (*start)(void *user);
    void *user;
    int event_fd;
    job_list taken; /* owner only: taken out of done, not yet returned */
    pthread_t threads[LANE_IO_SUM_THREADS_MAX];
    uint32_t running_count; /* owner only: threads to be joined */
    pthread_mutex_t mutex;
    sem_t work;    /* a unit for each job in todo; at the end one for each thread */
    sem_t started; /* a unit for each thread that has called `start` */
    job_list todo, done;
    bool stop;
    err_record start_error;
};

static void list_push(job_list *list, swapi_sum_job *job)
{
    job->next = NULL;
    if (list->last)
        list->last->next = job;
    else
        list->first = job;
    list->last = job;
}

static swapi_sum_job *list_pop(job_list *list)
{
    swapi_sum_job *job = list->first;
    if (job && !(list->first = job->next))
        list->last = NULL;
    return job;
}

static void do_job(swapi_sum_job *job)
{
    checksum_extent *extent = &job->extent;
    if (job->task == SWAPI_SUM_VERIFY) {
        job->result = checksum_verify(job->table, extent->offset, extent->size_bytes, job->data,
                                      &job->expected, &job->found);
        return;
    }
    uint64_t sum = checksum_sum(job->data, extent->size_bytes, job->elem_count, job->streams);
    if (job->task == SWAPI_SUM_TAKE) {
        extent->sum = sum;
        return;
    }
    job->expected = *extent;
    job->found = sum;
    job->result = sum == extent->sum ? 0 : ERR_CORRUPT;
}

static void wait_for(sem_t *semaphore)
{
    while (sem_wait(semaphore) < 0)
        assert(errno == EINTR);
}

static void *run_thread(void *argument)
{
    swapi_sum_thread *self = argument;
    thread_ask_short_slice(); /* ops wait for its work after each transfer */
    int rc = self->start ? self->start(self->user) : 0;
    if (rc < 0)
        err_save(&self->start_error, rc); /* before the owner looks; no other thread starts */
    sem_post(&self->started);
    for (;;) {
        wait_for(&self->work);
        pthread_mutex_lock(&self->mutex);
        swapi_sum_job *job = self->stop ? NULL : list_pop(&self->todo);
        pthread_mutex_unlock(&self->mutex);
        if (!job)
            return NULL;
        do_job(job);
        pthread_mutex_lock(&self->mutex);
        bool first = self->done.first == NULL; /* otherwise the owner is awake or about to be */
        list_push(&self->done, job);
        pthread_mutex_unlock(&self->mutex);
        if (first)
            (void)eventfd_write(self->event_fd, 1);
    }
}

/* Starts a thread with all signals blocked, and waits for its `start`. */
static int start_thread(swapi_sum_thread *self)
{
    pthread_t *thread = &self->threads[self->running_count];
    int rc = thread_start(thread, run_thread, self);
    if (rc != 0)
        return err_errno(rc, "starting a thread for checksums");
    self->running_count++;
    pthread_setname_np(*thread, "sluice-sums");
    wait_for(&self->started);
    return self->start_error.code ? err_restore(&self->start_error) : 0;
}

int swapi_sum_thread_create(uint32_t thread_count, int (*start)(void *user), void *user,
                            swapi_sum_thread **out)
{
    *out = NULL;
    assert(thread_count > 0 && thread_count <= LANE_IO_SUM_THREADS_MAX);
    swapi_sum_thread *self = mem_alloc(1, sizeof *self, "checksum thread");
    if (!self)
        return -ENOMEM;
    self->start = start;
    self->user = user;
    pthread_mutex_init(&self->mutex, NULL);
    sem_init(&self->work, 0, 0);
    sem_init(&self->started, 0, 0);
    self->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = self->event_fd >= 0 ? 0 : err_errno(errno, "checksums: eventfd");
    for (uint32_t i = 0; i < thread_count && rc == 0; i++)
        rc = start_thread(self);
    if (rc < 0) {
        swapi_sum_thread_destroy(self);
        return rc;
    }
    *out = self;
    return 0;
}

void swapi_sum_thread_destroy(swapi_sum_thread *self)
{
    if (!self)
        return;
    pthread_mutex_lock(&self->mutex);
    self->stop = true;
    pthread_mutex_unlock(&self->mutex);
    for (uint32_t i = 0; i < self->running_count; i++)
        sem_post(&self->work);
    for (uint32_t i = 0; i < self->running_count; i++)
        pthread_join(self->threads[i], NULL);
    if (self->event_fd >= 0)
        close(self->event_fd);
    sem_destroy(&self->started);
    sem_destroy(&self->work);
    pthread_mutex_destroy(&self->mutex);
    mem_free(self);
}

void swapi_sum_thread_push(swapi_sum_thread *self, swapi_sum_job *job)
{
    pthread_mutex_lock(&self->mutex);
    list_push(&self->todo, job);
    pthread_mutex_unlock(&self->mutex);
    sem_post(&self->work); /* makes no system call if no thread sleeps */
}

static void take_done(swapi_sum_thread *self)
{
    pthread_mutex_lock(&self->mutex);
    self->taken = self->done;
    self->done = (job_list){NULL, NULL};
    pthread_mutex_unlock(&self->mutex);
}

swapi_sum_job *swapi_sum_thread_take(swapi_sum_thread *self)
{
    if (!self->taken.first)
        take_done(self);
    if (!self->taken.first) {
        /* drained before the second look: a job that finishes later makes it readable again */
        eventfd_t count;
        (void)eventfd_read(self->event_fd, &count);
        take_done(self);
        if (self->taken.first && self->taken.first->next) /* its signal was drained just now */
            (void)eventfd_write(self->event_fd, 1);
    }
    return list_pop(&self->taken);
}

int swapi_sum_thread_fd(const swapi_sum_thread *self)
{
    return self->event_fd;
}
