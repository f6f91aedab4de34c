/* Paced lanes. See lane_pace.h. Everything runs on the executor's thread; the timer says when an op
 * is over.
 *
 *   submit ─► inner lane, and the tail of the queue of its kind
 *   queue's head: WAITING ─ its start ─► RUNNING ─ its share of the machine done ─► OVER ─ its
 *   work done too ─► released: into the paced lane's list, from which poll returns it; the next op
 *   becomes head
 *
 * The clock goes from event to event (a start, or an end at the present rates), and never beyond
 * the present: each submit and each poll first advances it. So an event has the time at which it
 * was due, not the later time at which a thread woke up for it. Times are seconds since
 * creation. */
#include "lane_pace.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
#include "plan/plan.h"

enum pace_resource {
    PACE_DRIVE,
    PACE_H2D,
    PACE_D2H,
    PACE_COMM,
    PACE_DRAM,
    PACE_CORES,
    PACE_DEVICE,
    PACE_RESOURCES
};

enum head_state { HEAD_NONE, HEAD_WAITING, HEAD_RUNNING, HEAD_OVER };

enum { DEPTH_WITHOUT_WORK = 16, COLLECT_MAX = 64 };

static const char tag[] = "paced lanes";

struct paced_lane;

/* An op of the present program. */
struct paced_op {
    lane_request *request;
    struct paced_lane *owner; /* the lane that it came by */
    uint32_t next;            /* the next op of its lane's queue, or of the owner's list */
    bool is_done;             /* its work is done */
    double ready;             /* when its prerequisites were over, except for the lane */
    double start, work_end;
    double end; /* when it was over and done; 0: not in this run */
};
typedef struct paced_op paced_op;

struct op_list {
    uint32_t first, last; /* PROGRAM_NONE: empty */
};
typedef struct op_list op_list;

/* The ops in flight on one lane. `state` and the members after it describe the first one. */
struct pace_queue {
    op_list ops;
    enum head_state state;
    double start;               /* WAITING: when it will run */
    double use[PACE_RESOURCES]; /* share of each resource at full speed */
    double seconds;             /* alone */
    double done;                /* 0 .. 1 */
    double rate;                /* per second, as long as the same ops run */
    double free_since;          /* end of the op before it */
};
typedef struct pace_queue pace_queue;

struct lane_pace {
    pace_rates rates;
    double late_seconds;
    uint64_t origin_ns;
    int timer_fd;
    double timer; /* the time it is set to; INFINITY: none */
    double now;   /* the clock's time */
    const program *prog;
    paced_op *ops; /* [op_capacity] of prog */
    uint64_t op_capacity;
    pace_queue queues[LANE_COUNT];
    uint32_t in_flight;
    uint32_t released; /* released and not polled */
};

struct paced_lane {
    lane base; /* first: a lane * is a paced_lane * */
    lane_pace *pace;
    lane *inner;  /* or NULL */
    int epoll_fd; /* of inner and timer; -1 without inner */
    op_list released;
    err_record no_error;
};
typedef struct paced_lane paced_lane;

static_assert(offsetof(paced_lane, base) == 0, "a paced_lane starts with its lane");

/* --- what an op needs --- */

static double divide(double amount, double rate)
{
    return rate > 0 ? amount / rate : 0;
}

/* Seconds of each resource that the op needs; returns its time alone. */
static double find_needs(const pace_rates *rates, const op *item, double needs[PACE_RESOURCES])
{
    const op_demand *asked = &item->demand;
    double device = fmax(divide(asked->device_flops, rates->device_flops),
                         divide((double)asked->device_bytes, rates->device_bytes));
    needs[PACE_DRIVE] = divide((double)asked->drive_read_bytes, rates->drive_read_bytes) +
                        divide((double)asked->drive_write_bytes, rates->drive_write_bytes);
    needs[PACE_H2D] = divide((double)asked->h2d_bytes, rates->h2d_bytes);
    needs[PACE_D2H] = divide((double)asked->d2h_bytes, rates->d2h_bytes);
    needs[PACE_COMM] = divide((double)asked->comm_bytes, rates->comm_bytes);
    needs[PACE_DRAM] = divide((double)asked->dram_bytes, rates->dram_bytes);
    needs[PACE_CORES] =
        divide(asked->core_seconds, rates->cores) + (rates->device_is_cpu ? device : 0);
    needs[PACE_DEVICE] = rates->device_is_cpu ? 0 : device;
    double longest = 0;
    for (int r = 0; r < PACE_RESOURCES; r++)
        longest = fmax(longest, needs[r]);
    return fmax(longest + rates->op_seconds + asked->wait_seconds, 1e-9);
}

double lane_pace_alone_seconds(const pace_rates *rates, const op *item)
{
    double needs[PACE_RESOURCES];
    return find_needs(rates, item, needs);
}

/* --- the clock --- */

/* The speed, as a share of their full speed, that the unsettled queues reach together before one
 * more resource is used up; at most 1. */
static double find_level(const lane_pace *self, const bool settled[LANE_COUNT],
                         const double taken[PACE_RESOURCES], bool is_full[PACE_RESOURCES])
{
    double level = 1, reached[PACE_RESOURCES];
    for (int r = 0; r < PACE_RESOURCES; r++) {
        double open = 0;
        for (int kind = 0; kind < LANE_COUNT; kind++)
            if (self->queues[kind].state == HEAD_RUNNING && !settled[kind])
                open += self->queues[kind].use[r];
        reached[r] = open > 0 ? fmax(1 - taken[r], 0) / open : INFINITY;
        level = fmin(level, reached[r]);
    }
    for (int r = 0; r < PACE_RESOURCES; r++)
        is_full[r] = reached[r] <= level * (1 + 1e-9);
    return level;
}

/* Max-min fair sharing: all running ops speed up together; an op that uses a full resource keeps
 * its speed. */
static void share(lane_pace *self)
{
    bool settled[LANE_COUNT], is_full[PACE_RESOURCES];
    double taken[PACE_RESOURCES] = {0};
    int open = 0;
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        settled[kind] = self->queues[kind].state != HEAD_RUNNING;
        open += !settled[kind];
    }
    while (open > 0) {
        double level = find_level(self, settled, taken, is_full);
        for (int kind = 0; kind < LANE_COUNT; kind++) {
            pace_queue *queue = &self->queues[kind];
            bool stays = level >= 1;
            for (int r = 0; r < PACE_RESOURCES && !settled[kind]; r++)
                stays = stays || (queue->use[r] > 0 && is_full[r]);
            if (settled[kind] || !stays)
                continue;
            settled[kind] = true;
            open--;
            queue->rate = fmax(level, 1e-9) / queue->seconds;
            for (int r = 0; r < PACE_RESOURCES; r++)
                taken[r] += level * queue->use[r];
        }
    }
}

/* Makes the first op of the queue, if there is one, its head. */
static void take_head(lane_pace *self, int kind)
{
    pace_queue *queue = &self->queues[kind];
    queue->state = queue->ops.first == PROGRAM_NONE ? HEAD_NONE : HEAD_WAITING;
    if (queue->state == HEAD_NONE)
        return;
    paced_op *head = &self->ops[queue->ops.first];
    head->start = fmax(fmax(head->ready, queue->free_since), self->now);
    double needs[PACE_RESOURCES];
    queue->seconds = find_needs(&self->rates, head->request->item, needs);
    for (int r = 0; r < PACE_RESOURCES; r++)
        queue->use[r] = needs[r] / queue->seconds;
    queue->done = 0;
}

static void list_push(lane_pace *self, op_list *list, uint32_t op_idx)
{
    self->ops[op_idx].next = PROGRAM_NONE;
    if (list->first == PROGRAM_NONE)
        list->first = op_idx;
    else
        self->ops[list->last].next = op_idx;
    list->last = op_idx;
}

static uint32_t list_pop(lane_pace *self, op_list *list)
{
    uint32_t op_idx = list->first;
    list->first = self->ops[op_idx].next;
    return op_idx;
}

static uint64_t to_ns(const lane_pace *self, double seconds)
{
    return self->origin_ns + (uint64_t)(seconds * 1e9);
}

static double to_seconds(const lane_pace *self, uint64_t ns)
{
    return ns > self->origin_ns ? (double)(ns - self->origin_ns) * 1e-9 : 0;
}

/* The head is over and done: releases it and goes on to the next. */
static void release_head(lane_pace *self, int kind)
{
    pace_queue *queue = &self->queues[kind];
    uint32_t op_idx = list_pop(self, &queue->ops);
    paced_op *item = &self->ops[op_idx];
    item->end = fmax(self->now, item->work_end);
    item->request->start_ns = to_ns(self, item->start);
    item->request->end_ns = to_ns(self, item->end);
    item->request->wait_ns = (uint64_t)(fmax(item->start - queue->free_since, 0) * 1e9);
    queue->free_since = item->end;
    list_push(self, &item->owner->released, op_idx);
    self->released++;
    take_head(self, kind);
}

static double end_of_running(const lane_pace *self, const pace_queue *queue)
{
    return self->now + fmax(1 - queue->done, 0) / queue->rate;
}

/* The time of the next event. */
static double next_event(const lane_pace *self)
{
    double at = INFINITY;
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        const pace_queue *queue = &self->queues[kind];
        if (queue->state == HEAD_WAITING)
            at = fmin(at, self->ops[queue->ops.first].start);
        else if (queue->state == HEAD_RUNNING)
            at = fmin(at, end_of_running(self, queue));
    }
    return at;
}

/* Advances everything that runs to the time `at`; no event is due before it. */
static void pass(lane_pace *self, double at)
{
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        pace_queue *queue = &self->queues[kind];
        if (queue->state != HEAD_RUNNING)
            continue;
        bool ends = end_of_running(self, queue) <= at; /* however the sum rounds */
        queue->done = ends ? 1 : queue->done + (at - self->now) * queue->rate;
    }
    self->now = at;
}

/* Advances the clock to `until`, with all events on the way. */
static void advance(lane_pace *self, double until)
{
    for (double at = next_event(self); at <= until; at = next_event(self)) {
        pass(self, fmax(at, self->now));
        for (int kind = 0; kind < LANE_COUNT; kind++) {
            pace_queue *queue = &self->queues[kind];
            if (queue->state == HEAD_RUNNING && queue->done >= 1) {
                queue->state = HEAD_OVER;
                if (self->ops[queue->ops.first].is_done)
                    release_head(self, kind);
            }
            if (queue->state == HEAD_WAITING && self->ops[queue->ops.first].start <= self->now)
                queue->state = HEAD_RUNNING;
        }
        share(self);
    }
}

/* Wakes the executor at the next event, or at once if a lane has something that was not polled. */
static void set_timer(lane_pace *self)
{
    double at = self->released > 0 ? 0 : next_event(self);
    if (at == self->timer)
        return;
    self->timer = at;
    uint64_t ns = isinf(at) ? 0 : size_max(to_ns(self, at), 1) + 1;
    struct itimerspec when = {
        .it_value = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)}};
    timerfd_settime(self->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void clear_timer(lane_pace *self)
{
    uint64_t count;
    if (read(self->timer_fd, &count, sizeof count) == (ssize_t)sizeof count)
        self->timer = INFINITY; /* it has gone off and is set no more */
}

/* --- the lane --- */

/* The first op of a run: forgets everything of earlier runs. */
static void begin_run(lane_pace *self, const program *prog, double now)
{
    self->prog = prog;
    self->now = now;
    memset(self->ops, 0, prog->op_count * sizeof *self->ops);
    for (int kind = 0; kind < LANE_COUNT; kind++)
        self->queues[kind].free_since = now;
}

/* When all prerequisites of the op were over; the present if one of them was not on a paced
 * lane. */
static double find_ready(const lane_pace *self, const op *item, double now)
{
    double ready = self->queues[item->lane].free_since;
    for (uint32_t k = 0; k < item->dep_count; k++) {
        const paced_op *dep = &self->ops[self->prog->deps[item->dep_begin + k]];
        ready = fmax(ready, dep->end > 0 ? dep->end : now);
    }
    if (item->behind != PROGRAM_NONE) {
        double end = self->ops[item->behind].end;
        ready = fmax(ready, end > 0 ? end : now);
    }
    return fmin(fmax(ready, now - self->late_seconds), now);
}

static int paced_submit(lane *base, lane_request *request)
{
    paced_lane *self = (paced_lane *)base;
    lane_pace *pace = self->pace;
    if (request->prog->op_count > pace->op_capacity)
        return err_set(ERR_INTERNAL, "paced lanes: they were not made for this program");
    double now = to_seconds(pace, clock_ns());
    if (self->inner)
        TRY(self->inner->ops->submit(self->inner, request));
    uint32_t op_idx = request->op_idx;
    if (pace->in_flight == 0 && (pace->prog != request->prog || pace->ops[op_idx].end > 0))
        begin_run(pace, request->prog, now);
    paced_op *item = &pace->ops[op_idx];
    *item = (paced_op){.request = request, .owner = self, .is_done = !self->inner};
    item->ready = find_ready(pace, request->item, now);
    if (!self->inner)
        request->result = 0;
    pace->in_flight++;
    pace_queue *queue = &pace->queues[request->item->lane];
    list_push(pace, &queue->ops, op_idx);
    if (queue->state == HEAD_NONE)
        take_head(pace, request->item->lane);
    advance(pace, now);
    set_timer(pace);
    return 0;
}

/* The inner lane has finished the op's work. */
static void note_done(lane_pace *self, lane_request *request)
{
    paced_op *item = &self->ops[request->op_idx];
    pace_queue *queue = &self->queues[request->item->lane];
    item->is_done = true;
    item->work_end = fmin(to_seconds(self, request->end_ns), to_seconds(self, clock_ns()));
    if (queue->ops.first == request->op_idx && queue->state == HEAD_OVER)
        release_head(self, request->item->lane);
}

static int collect_inner(paced_lane *self)
{
    lane_request *done[COLLECT_MAX];
    int count = self->inner->ops->poll(self->inner, done, COLLECT_MAX);
    for (int i = 0; i < count; i++)
        note_done(self->pace, done[i]);
    return count;
}

static int paced_poll(lane *base, lane_request **done, size_t max)
{
    paced_lane *self = (paced_lane *)base;
    lane_pace *pace = self->pace;
    clear_timer(pace);
    if (self->inner)
        TRY(collect_inner(self));
    int count = 0;
    advance(pace, to_seconds(pace, clock_ns()));
    while ((size_t)count < max && self->released.first != PROGRAM_NONE) {
        done[count++] = pace->ops[list_pop(pace, &self->released)].request;
        pace->released--;
        pace->in_flight--;
    }
    set_timer(pace);
    return count;
}

static int paced_event_fd(const lane *base)
{
    const paced_lane *self = (const paced_lane *)base;
    return self->inner ? self->epoll_fd : self->pace->timer_fd;
}

static const err_record *paced_error(const lane *base)
{
    const paced_lane *self = (const paced_lane *)base;
    if (self->inner)
        return self->inner->ops->error ? self->inner->ops->error(self->inner) : NULL;
    return &self->no_error;
}

static void paced_destroy(lane *base)
{
    if (!base)
        return;
    paced_lane *self = (paced_lane *)base;
    if (self->inner)
        self->inner->ops->destroy(self->inner);
    if (self->epoll_fd >= 0)
        close(self->epoll_fd);
    mem_free(self);
}

static const struct lane_ops paced_ops = {
    .name = "paced",
    .submit = paced_submit,
    .poll = paced_poll,
    .event_fd = paced_event_fd,
    .error = paced_error,
    .destroy = paced_destroy,
};

/* --- creation --- */

static int watch(paced_lane *self)
{
    const int fds[] = {self->inner->ops->event_fd(self->inner), self->pace->timer_fd};
    self->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (self->epoll_fd < 0)
        return err_errno(errno, "paced lanes: making an epoll descriptor");
    for (int i = 0; i < 2; i++) {
        struct epoll_event event = {.events = EPOLLIN};
        if (epoll_ctl(self->epoll_fd, EPOLL_CTL_ADD, fds[i], &event) < 0)
            return err_errno(errno, "paced lanes: watching a descriptor");
    }
    return 0;
}

int lane_pace_wrap(lane_pace *self, lane *inner, lane **out)
{
    paced_lane *made = mem_alloc(1, sizeof *made, tag);
    if (!made)
        return -ENOMEM;
    *made = (paced_lane){.base = {.ops = &paced_ops,
                                  .depth = inner ? inner->depth : DEPTH_WITHOUT_WORK,
                                  .owner = inner ? inner->owner : 0},
                         .pace = self,
                         .inner = inner,
                         .epoll_fd = -1,
                         .released = {PROGRAM_NONE, PROGRAM_NONE}};
    int rc = inner ? watch(made) : 0;
    if (rc < 0) {
        made->inner = NULL;
        paced_destroy(&made->base);
        return rc;
    }
    *out = &made->base;
    return 0;
}

static bool are_rates(const pace_rates *rates)
{
    return rates->drive_read_bytes >= 0 && rates->drive_write_bytes >= 0 && rates->h2d_bytes >= 0 &&
           rates->d2h_bytes >= 0 && rates->comm_bytes >= 0 && rates->dram_bytes >= 0 &&
           rates->device_flops >= 0 && rates->device_bytes >= 0 && rates->cores >= 0 &&
           rates->op_seconds >= 0;
}

int lane_pace_create(const lane_pace_config *config, lane_pace **out)
{
    *out = NULL;
    if (!are_rates(&config->rates) || !(config->late_seconds >= 0))
        return err_set(-EINVAL, "paced lanes: a rate below 0");
    lane_pace *self = mem_alloc(1, sizeof *self, tag);
    if (!self)
        return -ENOMEM;
    self->rates = config->rates;
    self->late_seconds = config->late_seconds > 0 ? config->late_seconds : 0.005;
    self->origin_ns = clock_ns() - 1000000000u; /* so that 0 is before all that happens */
    self->timer = INFINITY;
    for (int kind = 0; kind < LANE_COUNT; kind++)
        self->queues[kind].ops = (op_list){PROGRAM_NONE, PROGRAM_NONE};
    for (uint32_t i = 0; i < config->program_count; i++)
        self->op_capacity = size_max(self->op_capacity, config->programs[i]->op_count);
    self->ops = mem_alloc(self->op_capacity, sizeof *self->ops, tag);
    self->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    int rc = self->ops ? 0 : -ENOMEM;
    if (rc == 0 && self->timer_fd < 0)
        rc = err_errno(errno, "paced lanes: making a timer");
    if (rc < 0) {
        lane_pace_destroy(self);
        return rc;
    }
    *out = self;
    return 0;
}

void lane_pace_destroy(lane_pace *self)
{
    if (!self)
        return;
    if (self->timer_fd >= 0)
        close(self->timer_fd);
    mem_free(self->ops);
    mem_free(self);
}

pace_rates pace_rates_of(const plan_machine *machine)
{
    return (pace_rates){
        .drive_read_bytes = machine->drive_read_bytes_per_second,
        .drive_write_bytes = machine->drive_write_bytes_per_second,
        .h2d_bytes = machine->h2d_bytes_per_second,
        .d2h_bytes = machine->d2h_bytes_per_second,
        .comm_bytes = machine->comm_bytes_per_second,
        .dram_bytes = machine->dram_bytes_per_second,
        .device_flops = machine->device_flops_per_second,
        .device_bytes = machine->device_bytes_per_second,
        .cores = machine->core_count,
        .device_is_cpu = machine->device_is_cpu,
        .op_seconds = machine->op_seconds,
    };
}
