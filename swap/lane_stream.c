/* The lanes of a GPU as streams: submitting and polling. See lane_stream.h.
 *
 *   stream_submit ─► wait_for_others ─► events around the work ─► signal stream: post_completion
 *   post_completion (a thread of the driver) ─► count of the stream's finished ops, eventfd
 *   stream_poll ◄─ eventfd, or the timer: has the GPU failed? ─► times, config.finish, request
 *
 * Each stream keeps its ops in flight in a ring. A stream completes in order, so post_completion
 * need only count: the oldest op in the ring is the next to finish. A place of the ring has two
 * events of its own, which its ops use one after the other.
 *
 * Order between streams. An op waits for the end event of the latest op in flight on each other
 * stream that it depends on. Its other dependencies need no event:
 * - An op that was polled is complete, and so is everything before it on its stream.
 * - A skipped (conditional) op was never submitted. The executor skips an op when everything that
 *   the op would have waited for is complete, on a chain lane also all ops before it; so nothing in
 *   flight stands before a skipped op. Ops of a lane come in the order of their indices. So the op
 *   to wait for is the latest one in flight whose index is not above the highest index depended on,
 *   whether that op itself is in flight, complete or skipped.
 * - An op on a lane that is not served here was complete before the executor submitted this op.
 * CUDA captures the record that an event holds when the wait is enqueued. So a place of the ring
 * may be reused as soon as its op is polled, even if the GPU has not reached a wait for that op.
 * Nothing is in flight between two programs.
 *
 * Work that config.watch failed for still runs to its end, so post_completion is called for it. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "swap/lane_stream_internal.h"
#include "swap/program_internal.h"

static flight *flight_at(const lane_stream *self, const gpu_stream *stream, uint64_t number)
{
    return &stream->ring[number % self->config.depth];
}

/* The prepared program; NULL: it was not prepared. */
static const stream_graphs *find_prepared(const lane_stream *self, const program *prog)
{
    for (uint32_t i = 0; i < self->prepared_count; i++)
        if (self->prepared[i].plan.prog == prog)
            return &self->prepared[i];
    return NULL;
}

/* --- times ------------------------------------------------------------------------------------ */

static uint64_t clamp_ns(uint64_t value, uint64_t least, uint64_t most)
{
    if (value > most)
        value = most;
    return value < least ? least : value;
}

/* Sets the times of a complete op. They are in order on its stream and not in the future; an error
 * of the clock could put them there by a few microseconds. Without timed events an op begins when
 * it is submitted and the op before it is complete, and ends when it is polled. */
static int take_times(lane_stream *self, gpu_stream *stream, const flight *item, uint64_t now_ns)
{
    lane_request *request = item->request;
    uint64_t start_ns = item->submitted_ns, end_ns = now_ns, last_ns = stream->last_end_ns;
    if (self->config.is_timed) {
        TRY(stream_clock_time(&self->clock, item->start, &start_ns));
        TRY(stream_clock_time(&self->clock, item->end, &end_ns));
    }
    request->start_ns = clamp_ns(start_ns, last_ns, now_ns);
    request->end_ns = clamp_ns(end_ns, request->start_ns, now_ns);
    request->wait_ns = request->start_ns - last_ns;
    stream->last_end_ns = request->end_ns;
    return 0;
}

/* --- submit ----------------------------------------------------------------------------------- */

/* Runs on a thread of the driver when an op is complete. It makes no call of CUDA, takes no lock
 * and allocates nothing. The note's place may be used again once the count is stored. */
static void post_completion(void *user)
{
    const note *posted = user;
    mailbox *box = posted->box;
    /* Release: a reader of the count also sees what the ops wrote to pinned memory. */
    atomic_store_explicit(&box->finished_count, posted->count, memory_order_release);
    int rc = eventfd_write(box->news_fd, 1);
    assert(rc == 0);
    (void)rc;
}

static uint64_t finished_count(const gpu_stream *stream)
{
    return atomic_load_explicit(&stream->box->finished_count, memory_order_acquire);
}

/* Makes `stream` wait for the ops in flight on those other streams of which `waits` has the bit, as
 * far as the request depends on them. */
static int wait_for_others(lane_stream *self, gpu_stream *stream, const lane_request *request,
                           uint8_t waits)
{
    const program *prog = request->prog;
    const op *item = request->item;
    uint32_t highest[LANE_COUNT]; /* 1 + the highest op depended on; 0: none */
    for (int kind = 0; kind < LANE_COUNT; kind++)
        highest[kind] = 0;
    for (uint32_t k = 0; k < item->dep_count; k++) {
        uint32_t dep = prog->deps[item->dep_begin + k];
        uint8_t dep_kind = prog->ops[dep].lane;
        if (dep >= highest[dep_kind])
            highest[dep_kind] = dep + 1;
    }
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        gpu_stream *other = &self->streams[kind];
        if (highest[kind] == 0 || other == stream || !other->work || !(waits >> kind & 1u))
            continue;
        uint64_t number = other->submitted_count;
        while (number > other->polled_count &&
               flight_at(self, other, number - 1)->request->op_idx >= highest[kind])
            number--;
        /* The first `number` ops of the stream must be complete. */
        if (number <= finished_count(other))
            continue;
        const flight *last = flight_at(self, other, number - 1);
        assert(last->has_end);
        TRY(device_wait(self->config.gpu, stream->work, last->end));
    }
    return 0;
}

static int enqueue_copy(lane_stream *self, gpu_stream *stream, const lane_request *request)
{
    const program *prog = request->prog;
    const operand *source = op_operand(request->item, ROLE_SOURCE);
    const operand *target = op_operand(request->item, ROLE_TARGET);
    bool from_host = request->item->kind == OP_H2D;
    uint8_t source_arena = from_host ? TIER_HOST : TIER_DEVICE;
    uint8_t target_arena = from_host ? TIER_DEVICE : TIER_HOST;
    if (!source || !target || source->size_bytes != target->size_bytes ||
        prog->buffers[source->buffer_idx].arena != source_arena ||
        prog->buffers[target->buffer_idx].arena != target_arena)
        return err_set(ERR_INTERNAL,
                       "lane gpu: op %u lacks a source or target of its size, or they are in other "
                       "arenas than a copy between host and device has",
                       request->op_idx);
    return device_copy(self->config.gpu, stream->work,
                       lane_operand_address(self->config.arena_base[target_arena], prog, target),
                       lane_operand_address(self->config.arena_base[source_arena], prog, source),
                       source->size_bytes, from_host ? DEVICE_FROM_HOST : DEVICE_TO_HOST);
}

/* Enqueues the op's own work. If a graph replays it, the graph's first op enqueues the graph, and
 * the others nothing. */
static int enqueue_work(lane_stream *self, gpu_stream *stream, const lane_request *request)
{
    const stream_graphs *own = find_prepared(self, request->prog);
    uint32_t segment = own ? own->plan.segment_of[request->op_idx] : PROGRAM_NONE;
    if (segment != PROGRAM_NONE && own->items[segment]) {
        if (own->plan.segments[segment].first_op != request->op_idx)
            return 0;
        return device_graph_launch(self->config.gpu, own->items[segment], stream->work);
    }
    if (request->item->kind == OP_H2D || request->item->kind == OP_D2H)
        return enqueue_copy(self, stream, request);
    return self->config.enqueue(self->config.user, request->prog, request->item, stream->work);
}

/* Makes the completion of op `count` - 1 of the stream, which is at `place`, and of all before it,
 * known to the host. */
static int report(lane_stream *self, gpu_stream *stream, flight *place, uint64_t count)
{
    device *gpu = self->config.gpu;
    if (!place->has_end)
        TRY(device_record(gpu, place->end, stream->work));
    place->has_end = true;
    place->posted->count = count;
    TRY(device_wait(gpu, stream->signal, place->end));
    TRY(device_call(gpu, stream->signal, post_completion, place->posted));
    stream->reported_count = count;
    return 0;
}

static int enqueue_op(lane_stream *self, gpu_stream *stream, const lane_request *request)
{
    device *gpu = self->config.gpu;
    flight *place = flight_at(self, stream, stream->submitted_count);
    const stream_graphs *own = find_prepared(self, request->prog);
    uint8_t marks = own ? own->plan.marks[request->op_idx] : STREAM_REPORTS | STREAM_ENDS;
    uint32_t unreported = (uint32_t)(stream->submitted_count - stream->reported_count);
    place->has_end = false;
    place->submitted_ns = clock_ns();
    TRY(wait_for_others(self, stream, request, own ? own->plan.waits[request->op_idx] : 0xff));
    if (place->start)
        TRY(device_record(gpu, place->start, stream->work));
    TRY(enqueue_work(self, stream, request));
    if (place->start || (marks & STREAM_ENDS)) {
        TRY(device_record(gpu, place->end, stream->work));
        place->has_end = true;
    }
    if (!stream_must_report(marks, unreported, self->config.depth))
        return 0;
    return report(self, stream, place, stream->submitted_count + 1);
}

/* Reports the latest op of each stream. The program may end early, after a failure elsewhere, and
 * then the op that would have reported is never submitted. */
static int report_all(lane_stream *self)
{
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        gpu_stream *stream = &self->streams[kind];
        if (stream->reported_count < stream->submitted_count && swapi_in_flight(stream) > 0)
            TRY(report(self, stream, flight_at(self, stream, stream->submitted_count - 1),
                       stream->submitted_count));
    }
    return 0;
}

/* Asks for the oldest event in flight of each stream. A failed GPU calls nobody, so this is how its
 * failure shows. CUDA does not say which of the ops in flight failed. */
static int check_gpu(lane_stream *self)
{
    char suspects[LANE_COUNT * (SWAPI_OP_TEXT_BYTES + 2)] = "", text[SWAPI_OP_TEXT_BYTES];
    int rc = 0;
    for (int kind = 0; kind < LANE_COUNT && rc >= 0; kind++) {
        const gpu_stream *stream = &self->streams[kind];
        for (uint64_t n = stream->polled_count; n < stream->submitted_count; n++)
            if (flight_at(self, stream, n)->has_end) {
                rc = device_event_done(self->config.gpu, flight_at(self, stream, n)->end);
                break;
            }
    }
    for (int kind = 0; rc < 0 && kind < LANE_COUNT; kind++) {
        const gpu_stream *stream = &self->streams[kind];
        if (swapi_in_flight(stream) == 0)
            continue;
        const lane_request *request = flight_at(self, stream, stream->polled_count)->request;
        text_add(suspects, sizeof suspects, "%s%s", suspects[0] ? ", " : "",
                 swapi_op_text(request->prog, request->op_idx, text));
    }
    return rc < 0 ? err_prefix(rc, "the GPU failed with %s in flight", suspects) : 0;
}

/* Keeps the error of a submit. If the GPU has failed, every call fails: then it is not this op's
 * error. */
static int keep_refusal(lane_stream *self, int code)
{
    err_record first;
    err_save(&first, code);
    int rc = check_gpu(self);
    if (rc == 0)
        rc = report_all(self);
    self->dead = rc < 0;
    return err_keep(&self->error, rc < 0 ? rc : err_restore(&first));
}

int swapi_stream_submit(lane *base, lane_request *request)
{
    lane_stream *self = (lane_stream *)base;
    gpu_stream *stream = &self->streams[request->item->lane];
    if (!stream->work)
        return err_set(ERR_INTERNAL, "lane gpu: has no stream for lane %s",
                       lane_kind_name((enum lane_kind)request->item->lane));
    if (self->error.code != 0) {
        err_restore(&self->error);
        return err_prefix(ERR_POISONED, "lane gpu: refused, an op failed before");
    }
    uint32_t count = swapi_in_flight(stream);
    if (count == self->config.depth)
        return err_set(-EAGAIN, "lane gpu: all %u ops of lane %s are in flight", count,
                       lane_kind_name((enum lane_kind)request->item->lane));
    const flight *before = flight_at(self, stream, stream->submitted_count - 1);
    assert(count == 0 || (before->request->prog == request->prog &&
                          before->request->op_idx < request->op_idx)); /* see wait_for_others */
    (void)before; /* where assertions are off */
    int rc = self->config.is_timed ? stream_clock_refresh(&self->clock) : 0;
    if (rc == 0)
        rc = enqueue_op(self, stream, request);
    if (rc < 0)
        return keep_refusal(self, rc);
    flight_at(self, stream, stream->submitted_count)->request = request;
    stream->submitted_count++;
    return 0;
}

/* --- poll ------------------------------------------------------------------------------------- */

/* Reads an eventfd or timerfd. False if it has counted nothing. */
static bool read_counter(int fd)
{
    uint64_t value;
    return read(fd, &value, sizeof value) == (ssize_t)sizeof value;
}

/* Returns the oldest op of the stream, which is complete, as *done. */
static int finish_oldest(lane_stream *self, gpu_stream *stream, uint64_t now_ns,
                         lane_request **done)
{
    flight *oldest = flight_at(self, stream, stream->polled_count);
    lane_request *request = oldest->request;
    assert(request != NULL);
    TRY(take_times(self, stream, oldest, now_ns));
    oldest->request = NULL;
    stream->polled_count++;
    assert(stream->polled_count <= stream->submitted_count);
    request->next = NULL;
    request->result = 0;
    if (self->is_finish_failed) {
        request->result = ERR_POISONED;
    } else if (self->config.finish) {
        int rc = self->config.finish(self->config.user, request->prog, request->item);
        if (rc < 0) {
            request->result = err_keep(&self->error, rc);
            self->is_finish_failed = true;
            TRY(report_all(self));
        }
    }
    *done = request;
    return 0;
}

/* Stores up to `max` finished requests and returns how many. A failure shows once there are
 * none. */
static int collect(lane_stream *self, lane_request **done, size_t max)
{
    uint64_t now_ns = clock_ns();
    size_t count = 0;
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        gpu_stream *stream = &self->streams[kind];
        uint64_t complete_count = stream->box ? finished_count(stream) : 0;
        while (count < max && stream->polled_count < complete_count) {
            int rc = finish_oldest(self, stream, now_ns, &done[count]);
            if (rc < 0)
                return count > 0 ? (int)count : rc;
            count++;
        }
    }
    return (int)count;
}

int swapi_stream_poll(lane *base, lane_request **done, size_t max)
{
    lane_stream *self = (lane_stream *)base;
    if (self->dead)
        return err_restore(&self->error);
    /* First the descriptor, then the counts: an op that finishes in between makes the descriptor
     * readable again. */
    bool is_watch_due = !read_counter(self->news_fd) && read_counter(self->timer_fd);
    int count = collect(self, done, max);
    if (count == 0 && is_watch_due && self->is_idle)
        count = report_all(self);
    if (count != 0 || is_watch_due)
        self->is_idle = count == 0;
    if (count == 0 && is_watch_due)
        count = check_gpu(self);
    if (count == 0 && is_watch_due && self->config.watch)
        count = self->config.watch(self->config.user);
    if (count < 0) {
        self->dead = true;
        err_keep(&self->error, count);
    }
    return count;
}
