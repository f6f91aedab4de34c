/* The stand-in for io_uring: threads that call pread and pwrite, one transfer each at a time. They sleep
 * on a condition variable while there is nothing to do. Allocates at open.
 *
 *   owner: staged --flush--> todo --(worker)--> pread/pwrite --> done --reap--> owner
 *
 * `mutex` guards todo, done and stop; it is not held during I/O. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/size.h"
#include "tiers/io_internal.h"

struct pool_state {
    const slab *target;
    int event_fd;
    tieri_list staged;    /* owner's: taken, not yet flushed */
    tieri_list collected; /* owner's: taken from done, not yet reaped */
    pthread_mutex_t mutex;
    pthread_cond_t wake; /* todo has work, or stop */
    tieri_list todo, done;
    bool stop;
    uint32_t thread_count;
    pthread_t *threads; /* [thread_count] */
};
typedef struct pool_state pool_state;

static uint64_t pool_span(void *state, const void *data, uint64_t size_bytes)
{
    (void)state;
    (void)data;
    return size_bytes;
}

static void pool_submit(void *state, tieri_transfer *item)
{
    pool_state *self = state;
    tieri_list_push(&self->staged, item);
}

static int pool_flush(void *state)
{
    pool_state *self = state;
    if (!self->staged.first)
        return 0;
    bool several = self->staged.first != self->staged.last;
    pthread_mutex_lock(&self->mutex);
    if (self->todo.last)
        self->todo.last->next = self->staged.first;
    else
        self->todo.first = self->staged.first;
    self->todo.last = self->staged.last;
    pthread_mutex_unlock(&self->mutex);
    self->staged = (tieri_list){NULL, NULL};
    if (several)
        pthread_cond_broadcast(&self->wake);
    else
        pthread_cond_signal(&self->wake);
    return 0;
}

static tieri_transfer *pool_reap(void *state)
{
    pool_state *self = state;
    if (!self->collected.first) {
        pthread_mutex_lock(&self->mutex);
        self->collected = self->done;
        self->done = (tieri_list){NULL, NULL};
        pthread_mutex_unlock(&self->mutex);
    }
    return tieri_list_pop(&self->collected);
}

static void move_bytes(const pool_state *self, tieri_transfer *item)
{
    int fd = self->target->files[item->drive_idx].fd;
    ssize_t moved = item->direction == IO_READ
                        ? pread(fd, item->data, item->ask_bytes, (off_t)item->file_offset)
                        : pwrite(fd, item->data, item->ask_bytes, (off_t)item->file_offset);
    item->result = moved >= 0 ? moved : -errno;
}

static void *pool_run(void *argument)
{
    pool_state *self = argument;
    pthread_mutex_lock(&self->mutex);
    for (;;) {
        while (!self->todo.first && !self->stop)
            pthread_cond_wait(&self->wake, &self->mutex);
        tieri_transfer *item = tieri_list_pop(&self->todo);
        if (!item)
            break;
        pthread_mutex_unlock(&self->mutex);
        move_bytes(self, item);
        pthread_mutex_lock(&self->mutex);
        /* The first one wakes the owner, who then takes all there are. If the owner is faster than the
         * write below, it only wakes once for nothing. */
        bool first = self->done.first == NULL;
        tieri_list_push(&self->done, item);
        if (!first)
            continue;
        pthread_mutex_unlock(&self->mutex);
        uint64_t one = 1;
        while (write(self->event_fd, &one, sizeof one) < 0 && errno == EINTR)
            ;
        pthread_mutex_lock(&self->mutex);
    }
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

static void pool_close(void *state)
{
    pool_state *self = state;
    pthread_mutex_lock(&self->mutex);
    self->stop = true;
    self->todo = (tieri_list){NULL, NULL}; /* what no thread has begun never runs */
    pthread_mutex_unlock(&self->mutex);
    pthread_cond_broadcast(&self->wake);
    for (uint32_t i = 0; i < self->thread_count; i++)
        pthread_join(self->threads[i], NULL);
    pthread_cond_destroy(&self->wake);
    pthread_mutex_destroy(&self->mutex);
    mem_free(self->threads);
    mem_free(self);
}

int tieri_pool_open(const tieri_backend_config *config, io_stats *stats, void **state)
{
    *state = NULL;
    stats->files_registered = stats->buffers_registered = false;
    pool_state *self = mem_alloc(1, sizeof *self, "io pool");
    if (!self)
        return -ENOMEM;
    uint32_t wanted = (uint32_t)size_min(config->thread_count, config->transfer_count);
    self->threads = mem_alloc(wanted, sizeof *self->threads, "io pool threads");
    if (!self->threads) {
        mem_free(self);
        return -ENOMEM;
    }
    self->target = config->target;
    self->event_fd = config->event_fd;
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->wake, NULL);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all,
                    &before); /* signals stay with the threads that expect them */
    int rc = 0;
    while (self->thread_count < wanted && rc == 0) {
        rc = pthread_create(&self->threads[self->thread_count], NULL, pool_run, self);
        if (rc == 0)
            pthread_setname_np(self->threads[self->thread_count++], "sluice-io");
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (self->thread_count == 0) {
        pool_close(self);
        return err_errno(rc, "io: starting a thread for reads and writes");
    }
    *state = self;
    return 0;
}

const tieri_backend tieri_pool_backend = {
    .span = pool_span,
    .submit = pool_submit,
    .flush = pool_flush,
    .reap = pool_reap,
    .close = pool_close,
};
