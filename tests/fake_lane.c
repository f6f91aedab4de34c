/* See fake_lane.h. */
#include "fake_lane.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "swap_fixture.h"

enum { FAKE_DEPTH_MAX = 64 };

struct fake_lane {
    lane base;
    fake_lane_config config;
    uint64_t draws;
    int event_fd;
    bool event_set;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t work;
    bool stop;
    lane_request *pending[FAKE_DEPTH_MAX * LANE_COUNT]; /* in submit order */
    uint32_t pending_count;
    lane_request *finished[FAKE_DEPTH_MAX * LANE_COUNT];
    uint32_t finished_count;
    err_record error;
};
typedef struct fake_lane fake_lane;

/* --- watch ------------------------------------------------------------------------------------ */

void fake_watch_init(fake_watch *self, const program *prog)
{
    memset(self, 0, sizeof *self);
    self->prog = prog;
    self->states = mem_alloc(prog->op_count, 1, "fake watch");
    must(self->states != NULL, "self->states != NULL");
}

void fake_watch_fini(fake_watch *self)
{
    mem_free(self->states);
}

/* Done for an op that waits for it: seen as done, or skipped and everything it would have waited
 * for is done. */
static bool is_done(fake_watch *self, uint32_t op_idx)
{
    const program *prog = self->prog;
    const op *item = &prog->ops[op_idx];
    if (self->states[op_idx] != 0 || !self->skipped || !self->skipped[op_idx])
        return self->states[op_idx] == 2;
    for (uint32_t k = 0; k < item->dep_count; k++)
        if (!is_done(self, prog->deps[item->dep_begin + k]))
            return false;
    for (uint32_t before = op_idx; before-- > 0 && item->lane >= LANE_H2D;)
        if (prog->ops[before].lane == item->lane) {
            if (!is_done(self, before))
                return false;
            break;
        }
    self->states[op_idx] = 2;
    return true;
}

static void watch_submit(fake_watch *self, const lane_request *request)
{
    const op *item = request->item;
    bool early = false;
    self->fifo_violations += request->op_idx < self->next_min[item->lane];
    self->next_min[item->lane] = request->op_idx + 1;
    for (uint32_t k = 0; k < item->dep_count; k++) {
        uint32_t dep = self->prog->deps[item->dep_begin + k];
        const lane *a = self->lanes[self->prog->ops[dep].lane], *b = self->lanes[item->lane];
        if (is_done(self, dep))
            continue;
        if (self->states[dep] == 1 && a->in_order && b->in_order && a->owner == b->owner)
            early = true;
        else
            self->dep_violations++;
    }
    if (item->behind != PROGRAM_NONE) {
        bool in_flight = self->states[item->behind] == 1;
        bool good = in_flight ? self->lanes[item->lane]->keeps_behind : is_done(self, item->behind);
        good = good && (request->behind != NULL) == in_flight;
        good = good && (!in_flight || request->behind->op_idx == item->behind);
        self->behind_violations += !good;
        self->behind_submits += in_flight;
    }
    self->early_submits += early;
    self->submits_after_failure += self->failed;
    self->skipped_submits += self->skipped && self->skipped[request->op_idx];
    self->states[request->op_idx] = 1;
    self->in_flight[item->lane]++;
    if (self->in_flight[item->lane] > self->in_flight_max[item->lane])
        self->in_flight_max[item->lane] = self->in_flight[item->lane];
    for (int other = 0; other < LANE_COUNT; other++)
        self->together[item->lane][other] += other != item->lane && self->in_flight[other] > 0;
}

static void watch_done(fake_watch *self, const lane_request *request)
{
    must(self->states[request->op_idx] == 1, "self->states[request->op_idx] == 1");
    self->states[request->op_idx] = 2;
    self->in_flight[request->item->lane]--;
    self->failed |= request->result < 0;
}

static bool watch_has_work(const fake_watch *self)
{
    for (int kind = 0; kind < LANE_COUNT; kind++)
        if (self->in_flight[kind] > 0)
            return true;
    return false;
}

/* --- the lane --------------------------------------------------------------------------------- */

/* Under the mutex where the lane has a thread. */
static uint64_t draw(fake_lane *self, uint64_t bound)
{
    return rng_below(self->config.seed, 21, self->draws++, bound);
}

static void set_event(fake_lane *self, bool set)
{
    uint64_t value = 1;
    if (set == self->event_set)
        return;
    ssize_t moved = set ? write(self->event_fd, &value, sizeof value)
                        : read(self->event_fd, &value, sizeof value);
    must(moved == (ssize_t)sizeof value, "moved == (ssize_t)sizeof value");
    self->event_set = set;
}

static void execute(fake_lane *self, lane_request *request)
{
    request->start_ns = clock_ns();
    request->result = 0;
    if (request->op_idx == self->config.fail_op_idx)
        request->result =
            err_set(self->config.fail_code, "fake lane: op %u was told to fail", request->op_idx);
    else if (self->config.run)
        request->result = self->config.run(self->config.user, request->prog, request->item);
    request->end_ns = clock_ns();
}

/* Takes one pending request out: the oldest of an in-order lane, any of another. */
static lane_request *take_pending(fake_lane *self)
{
    uint32_t at = self->config.in_order ? 0 : (uint32_t)draw(self, self->pending_count);
    lane_request *request = self->pending[at];
    self->pending_count--;
    memmove(&self->pending[at], &self->pending[at + 1],
            (self->pending_count - at) * sizeof(lane_request *));
    return request;
}

static void put_finished(fake_lane *self, lane_request *request)
{
    if (request->result < 0 && self->error.code == 0)
        err_save(&self->error, request->result);
    self->finished[self->finished_count++] = request;
}

static void *fake_main(void *argument)
{
    fake_lane *self = argument;
    pthread_mutex_lock(&self->mutex);
    for (;;) {
        while (self->pending_count == 0 && !self->stop)
            pthread_cond_wait(&self->work, &self->mutex);
        if (self->pending_count == 0)
            break;
        long delay_ns = draw(self, 4) == 0 ? (long)draw(self, 60000) : 0;
        pthread_mutex_unlock(&self->mutex);
        if (delay_ns > 0) /* time for more to arrive, so that the pick has a choice */
            nanosleep(&(struct timespec){.tv_nsec = delay_ns}, NULL);
        pthread_mutex_lock(&self->mutex);
        lane_request *request = take_pending(self);
        pthread_mutex_unlock(&self->mutex);
        execute(self, request);
        pthread_mutex_lock(&self->mutex);
        put_finished(self, request);
        set_event(self, true);
    }
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

static int fake_submit(lane *base, lane_request *request)
{
    fake_lane *self = (fake_lane *)base;
    if (self->config.fail_submit && request->op_idx == self->config.fail_op_idx)
        return err_set(self->config.fail_code, "fake lane: op %u was refused", request->op_idx);
    pthread_mutex_lock(&self->mutex);
    bool has_work = self->pending_count + self->finished_count > 0 ||
                    (self->config.busy_for_others && watch_has_work(self->config.watch));
    bool busy =
        has_work && self->config.busy_one_in > 0 && draw(self, self->config.busy_one_in) == 0;
    if (!busy) {
        must(self->pending_count < FAKE_DEPTH_MAX * LANE_COUNT,
             "self->pending_count < FAKE_DEPTH_MAX * LANE_COUNT");
        self->pending[self->pending_count++] = request;
        if (self->config.watch)
            watch_submit(self->config.watch, request);
        if (!self->config.threaded)
            set_event(self, true);
        pthread_cond_signal(&self->work);
    }
    pthread_mutex_unlock(&self->mutex);
    return busy ? err_set(-EAGAIN, "fake lane: busy") : 0;
}

/* Without a thread: each pending request has an even chance to complete in this poll. */
static void advance(fake_lane *self)
{
    for (uint32_t chances = self->pending_count; chances > 0; chances--) {
        if (draw(self, 2) != 0)
            continue;
        lane_request *request = take_pending(self);
        execute(self, request);
        put_finished(self, request);
    }
}

static int fake_poll(lane *base, lane_request **done, size_t max)
{
    fake_lane *self = (fake_lane *)base;
    pthread_mutex_lock(&self->mutex);
    if (self->config.fail_poll)
        for (uint32_t i = 0; i < self->pending_count; i++)
            if (self->pending[i]->op_idx == self->config.fail_op_idx) {
                self->pending_count = 0;
                pthread_mutex_unlock(&self->mutex);
                return err_set(self->config.fail_code, "fake lane: the lane is broken");
            }
    if (!self->config.threaded)
        advance(self);
    size_t count = 0;
    while (count < max && count < self->finished_count) {
        done[count] = self->finished[count];
        if (self->config.watch)
            watch_done(self->config.watch, done[count]);
        count++;
    }
    self->finished_count -= (uint32_t)count;
    memmove(self->finished, &self->finished[count], self->finished_count * sizeof(lane_request *));
    bool more = self->finished_count > 0 || (!self->config.threaded && self->pending_count > 0);
    set_event(self, more);
    pthread_mutex_unlock(&self->mutex);
    return (int)count;
}

static int fake_event_fd(const lane *base)
{
    return ((const fake_lane *)base)->event_fd;
}

static const err_record *fake_error(const lane *base)
{
    return &((const fake_lane *)base)->error;
}

static void fake_destroy(lane *base)
{
    fake_lane *self = (fake_lane *)base;
    if (self->config.threaded) {
        pthread_mutex_lock(&self->mutex);
        self->stop = true;
        pthread_cond_signal(&self->work);
        pthread_mutex_unlock(&self->mutex);
        pthread_join(self->thread, NULL);
    }
    must(self->pending_count == 0 && self->finished_count == 0,
         "self->pending_count == 0 && self->finished_count == 0");
    pthread_mutex_destroy(&self->mutex);
    pthread_cond_destroy(&self->work);
    close(self->event_fd);
    mem_free(self);
}

static const struct lane_ops fake_ops = {
    .name = "fake",
    .submit = fake_submit,
    .poll = fake_poll,
    .event_fd = fake_event_fd,
    .error = fake_error,
    .destroy = fake_destroy,
};

lane *fake_lane_create(const fake_lane_config *config)
{
    fake_lane *self = mem_alloc(1, sizeof *self, "fake lane");
    must(self != NULL && config->depth <= FAKE_DEPTH_MAX,
         "self != NULL && config->depth <= FAKE_DEPTH_MAX");
    self->config = *config;
    self->base = (lane){.ops = &fake_ops,
                        .depth = config->depth,
                        .in_order = config->in_order,
                        .keeps_behind = config->keeps_behind,
                        .owner = config->owner};
    self->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    must(self->event_fd >= 0, "self->event_fd >= 0");
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->work, NULL);
    if (config->threaded) {
        int code = pthread_create(&self->thread, NULL, fake_main, self);
        must(code == 0, "code == 0");
    }
    return &self->base;
}
