/* The replacement for io_uring: threads that call pread and pwrite, one transfer each at a time.
 * They sleep on a semaphore while they have no work: pthread_cond_signal of glibc 2.25 to 2.40 can
 * leave all of several waiters asleep (its bug 25847). Allocates at open.
 *
 *   owner: staged --flush--> todo --(worker)--> pread/pwrite --> done --reap--> owner
 *
 * `mutex` guards todo, done and the flags; it is not held during I/O. A thread that does not return
 * from a drive cannot be ended. After it was abandoned it may use only its pool, since nothing else
 * exists any more; so it works on copies during I/O. The last thread to return frees the pool. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/thread.h"
#include "tiers/io_internal.h"

struct pool_state {
    int fds[DRIVES_MAX]; /* of the slab's files */
    int event_fd;
    tieri_list staged;    /* owner only: taken, not yet flushed */
    tieri_list collected; /* owner only: taken from done, not yet reaped */
    pthread_mutex_t mutex;
    sem_t wake;           /* posted for each transfer in todo; for each thread at the stop */
    pthread_cond_t ended; /* a thread has ended; by CLOCK_MONOTONIC; the owner alone waits */
    tieri_list todo, done;
    bool stop;              /* threads begin no further transfer */
    bool abandoned;         /* the io is freed; only the pool still exists */
    uint32_t running_count; /* threads that have not ended */
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
    uint32_t count = 0;
    for (const tieri_transfer *at = self->staged.first; at; at = at->next)
        count++;
    pthread_mutex_lock(&self->mutex);
    if (self->todo.last)
        self->todo.last->next = self->staged.first;
    else
        self->todo.first = self->staged.first;
    self->todo.last = self->staged.last;
    pthread_mutex_unlock(&self->mutex);
    self->staged = (tieri_list){NULL, NULL};
    while (count-- > 0)
        sem_post(&self->wake);
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

/* The bytes moved, or -errno. */
static int64_t move_bytes(int fd, enum io_direction direction, unsigned char *data,
                          uint64_t size_bytes, uint64_t offset)
{
    ssize_t moved = direction == IO_READ ? pread(fd, data, size_bytes, (off_t)offset)
                                         : pwrite(fd, data, size_bytes, (off_t)offset);
    return moved >= 0 ? moved : -errno;
}

static void free_pool(pool_state *self)
{
    pthread_cond_destroy(&self->ended);
    sem_destroy(&self->wake);
    pthread_mutex_destroy(&self->mutex);
    mem_free(self->threads);
    mem_free(self);
}

static void *pool_run(void *argument)
{
    pool_state *self = argument;
    for (;;) {
        while (sem_wait(&self->wake) < 0) /* interrupted by a signal */
            ;
        pthread_mutex_lock(&self->mutex);
        tieri_transfer *item = tieri_list_pop(&self->todo);
        if (!item)
            break;
        const tieri_transfer copy = *item;
        pthread_mutex_unlock(&self->mutex);
        int64_t result = move_bytes(self->fds[copy.drive_idx], copy.direction, copy.data,
                                    copy.ask_bytes, copy.file_offset);
        pthread_mutex_lock(&self->mutex);
        if (self->abandoned)
            break;
        item->result = result;
        /* The first finished transfer wakes the owner, which then takes all of them. If the owner
         * is faster than this write, it wakes once in vain. */
        bool first = self->done.first == NULL;
        tieri_list_push(&self->done, item);
        bool wakes = first && !self->stop;
        pthread_mutex_unlock(&self->mutex);
        if (wakes)
            (void)eventfd_write(self->event_fd, 1);
    }
    self->running_count--;
    bool is_last = self->abandoned && self->running_count == 0;
    pthread_cond_signal(&self->ended);
    pthread_mutex_unlock(&self->mutex);
    if (is_last)
        free_pool(self);
    return NULL;
}

/* Waits for a limited time until all threads have ended. False if some have not: then the pool
 * belongs to them. */
static bool wait_or_abandon(pool_state *self)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += TIERI_CLOSE_WAIT_MS / 1000;
    pthread_mutex_lock(&self->mutex);
    while (self->running_count > 0 &&
           pthread_cond_timedwait(&self->ended, &self->mutex, &until) != ETIMEDOUT)
        ;
    uint32_t left_count = self->running_count, thread_count = self->thread_count;
    if (left_count > 0) {
        self->abandoned = true;
        for (uint32_t i = 0; i < thread_count; i++)
            pthread_detach(self->threads[i]);
    }
    pthread_mutex_unlock(&self->mutex);
    if (left_count > 0)
        log_warn("%u of %u threads do not come back from reads and writes: they are left behind",
                 left_count, thread_count);
    return left_count == 0;
}

static bool pool_close(void *state, bool hung)
{
    pool_state *self = state;
    pthread_mutex_lock(&self->mutex);
    self->stop = true;
    self->todo = (tieri_list){NULL, NULL}; /* transfers that no thread has begun never run */
    for (uint32_t i = 0; i < self->thread_count; i++)
        sem_post(&self->wake);
    pthread_mutex_unlock(&self->mutex);
    if (hung && !wait_or_abandon(self))
        return false;
    for (uint32_t i = 0; i < self->thread_count; i++)
        pthread_join(self->threads[i], NULL);
    free_pool(self);
    return true;
}

/* Starts up to `wanted` threads. Fails only if it cannot start one. */
static int start_threads(pool_state *self, uint32_t wanted)
{
    int rc = 0;
    pthread_mutex_lock(&self->mutex);
    while (self->thread_count < wanted && rc == 0) {
        rc = thread_start(&self->threads[self->thread_count], pool_run, self);
        if (rc == 0)
            pthread_setname_np(self->threads[self->thread_count++], "sluice-io");
    }
    self->running_count = self->thread_count;
    pthread_mutex_unlock(&self->mutex);
    return self->thread_count ? 0 : err_errno(rc, "io: starting a thread for reads and writes");
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
    for (uint32_t i = 0; i < config->target->drive_count; i++)
        self->fds[i] = config->target->files[i].fd;
    self->event_fd = config->event_fd;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&self->mutex, NULL);
    sem_init(&self->wake, 0, 0);
    pthread_cond_init(&self->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = start_threads(self, wanted);
    if (rc < 0) {
        free_pool(self);
        return rc;
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
