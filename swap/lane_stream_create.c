/* Makes and ends the lanes of a GPU: streams, events, descriptors, and the programs made ready.
 * lane_stream.c says how the lanes work. See lane_stream.h. */
#include <assert.h>
#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "swap/lane_stream_internal.h"
#include "swap/program_internal.h"

enum { WATCH_SECONDS = 1 /* how often the timer makes poll check the GPU */ };

static const char tag[] = "gpu lanes";

static int stream_event_fd(const lane *base)
{
    return ((const lane_stream *)base)->epoll_fd;
}

static const err_record *stream_error(const lane *base)
{
    return &((const lane_stream *)base)->error;
}

/* --- programs made ready ---------------------------------------------------------------------- */

int lane_stream_prepare(lane *base, const program *const *programs, uint32_t count,
                        const lane_stream_graphs *graphs)
{
    lane_stream *self = (lane_stream *)base;
    stream_plan_config config = {.serves = self->config.serves,
                                 .may_replay = graphs->bytes_max > 0 ? graphs->may_replay : NULL,
                                 .user = self->config.user,
                                 .only_single = self->config.is_timed};
    stream_capture how = {.gpu = self->config.gpu,
                          .stream = self->streams[LANE_COMPUTE].work,
                          .enqueue = self->config.enqueue,
                          .user = self->config.user,
                          .bytes_max = graphs->bytes_max};
    assert(!self->prepared);
    self->prepared = mem_alloc(count, sizeof *self->prepared, tag);
    if (!self->prepared)
        return -ENOMEM;
    TRY(device_free_bytes(self->config.gpu, &how.free_bytes_before));
    for (uint32_t i = 0; i < count; i++) {
        TRY(stream_graphs_init(&self->prepared[i], programs[i], &config, &how));
        self->prepared_count++;
        if (self->prepared[i].is_refused)
            config.may_replay = NULL;
    }
    return 0;
}

/* --- creation --------------------------------------------------------------------------------- */

/* Waits for the streams, so that no work touches the arenas and no function is called later. If the
 * GPU has failed, waiting fails at once, no work runs and no function is called any more. But one
 * function may still be running: for it the mailboxes and their descriptor stay. */
static void stream_destroy(lane *base)
{
    if (!base)
        return;
    lane_stream *self = (lane_stream *)base;
    int rc = 0;
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        gpu_stream *stream = &self->streams[kind];
        assert(self->dead || swapi_in_flight(stream) == 0);
        if (stream->work)
            TRY_KEEP(rc, device_synchronize(self->config.gpu, stream->work));
        if (stream->signal)
            TRY_KEEP(rc, device_synchronize(self->config.gpu, stream->signal));
        mem_free(stream->ring);
    }
    for (uint32_t i = 0; i < self->prepared_count; i++)
        stream_graphs_fini(&self->prepared[i], self->config.gpu);
    mem_free(self->prepared);
    if (self->epoll_fd >= 0)
        close(self->epoll_fd);
    if (self->timer_fd >= 0)
        close(self->timer_fd);
    if (rc == 0 && self->news_fd >= 0)
        close(self->news_fd);
    if (rc == 0)
        mem_free(self->boxes);
    mem_free(self);
}

static const struct lane_ops stream_ops = {
    .name = "gpu",
    .submit = swapi_stream_submit,
    .poll = swapi_stream_poll,
    .event_fd = stream_event_fd,
    .error = stream_error,
    .destroy = stream_destroy,
};

static int make_stream(lane_stream *self, int kind)
{
    device *gpu = self->config.gpu;
    gpu_stream *stream = &self->streams[kind];
    note *notes = (note *)(self->boxes + LANE_COUNT) + (size_t)kind * self->config.depth;
    stream->box = &self->boxes[kind];
    stream->box->news_fd = self->news_fd;
    stream->last_end_ns = clock_ns();
    stream->ring = mem_alloc(self->config.depth, sizeof *stream->ring, tag);
    if (!stream->ring)
        return -ENOMEM;
    /* The streams that feed the compute lane have priority, if the GPU can choose. */
    TRY(device_stream_create(gpu, kind != LANE_COMPUTE, &stream->work));
    TRY(device_stream_create(gpu, true, &stream->signal));
    for (uint32_t i = 0; i < self->config.depth; i++) {
        flight *place = &stream->ring[i];
        notes[i].box = stream->box;
        place->posted = &notes[i];
        if (self->config.is_timed)
            TRY(device_event_create(gpu, true, &place->start));
        TRY(device_event_create(gpu, self->config.is_timed, &place->end));
    }
    return 0;
}

static int watch(lane_stream *self, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(self->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
        return err_errno(errno, "lane gpu: watching descriptor %d", fd);
    return 0;
}

static int make_descriptors(lane_stream *self)
{
    self->news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (self->news_fd < 0)
        return err_errno(errno, "lane gpu: making its eventfd");
    self->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (self->timer_fd < 0)
        return err_errno(errno, "lane gpu: making its timer");
    struct itimerspec period = {.it_interval.tv_sec = WATCH_SECONDS,
                                .it_value.tv_sec = WATCH_SECONDS};
    if (timerfd_settime(self->timer_fd, 0, &period, NULL) < 0)
        return err_errno(errno, "lane gpu: starting its timer");
    self->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (self->epoll_fd < 0)
        return err_errno(errno, "lane gpu: making its epoll set");
    TRY(watch(self, self->news_fd));
    return watch(self, self->timer_fd);
}

static int make_parts(lane_stream *self)
{
    TRY(make_descriptors(self));
    self->boxes =
        mem_alloc(1, LANE_COUNT * (sizeof(mailbox) + self->config.depth * sizeof(note)), tag);
    if (!self->boxes)
        return -ENOMEM;
    for (int kind = 0; kind < LANE_COUNT; kind++)
        if (self->config.serves[kind])
            TRY(make_stream(self, kind));
    return self->config.is_timed ? stream_clock_start(&self->clock, self->config.gpu) : 0;
}

static int check_config(const lane_stream_config *config)
{
    bool serves_any = false, serves_copies = false, serves_others = false;
    for (int kind = 0; kind < LANE_COUNT; kind++) {
        bool is_copy = kind == LANE_H2D || kind == LANE_D2H;
        if (config->serves[kind] && !swapi_lane_is_chain((uint8_t)kind))
            return err_set(-EINVAL, "gpu lanes: lane %s does not complete in order",
                           lane_kind_name((enum lane_kind)kind));
        serves_any |= config->serves[kind];
        serves_copies |= config->serves[kind] && is_copy;
        serves_others |= config->serves[kind] && !is_copy;
    }
    if (!config->gpu || config->depth == 0 || !serves_any)
        return err_set(-EINVAL, "gpu lanes: need a device, a depth and a lane to serve");
    if (serves_copies && (!config->arena_base[TIER_DEVICE] || !config->arena_base[TIER_HOST]))
        return err_set(-EINVAL, "gpu lanes: copies need both arenas");
    if (serves_others && !config->enqueue)
        return err_set(-EINVAL, "gpu lanes: kernels need a callback that enqueues them");
    return 0;
}

int lane_stream_create(const lane_stream_config *config, lane **out)
{
    *out = NULL;
    TRY(check_config(config));
    lane_stream *self = mem_alloc(1, sizeof *self, tag);
    if (!self)
        return -ENOMEM;
    self->config = *config;
    self->base =
        (lane){.ops = &stream_ops, .depth = config->depth, .in_order = 1, .owner = config->owner};
    self->epoll_fd = self->news_fd = self->timer_fd = -1;
    int rc = make_parts(self);
    if (rc < 0) {
        err_record first;
        err_save(&first, rc);
        stream_destroy(&self->base);
        return err_restore(&first);
    }
    *out = &self->base;
    return 0;
}

device_stream *lane_stream_of(const lane *base, enum lane_kind kind)
{
    return ((const lane_stream *)base)->streams[kind].work;
}
