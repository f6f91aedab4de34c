/* The control plane's thread: heartbeats out, frames in, who is gone, and the end of a process that does not end.
 * One per process of several ranks; allocates nothing, blocks nowhere but in poll(2). */
#include "comm/control_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/thread.h"

#define SECOND_NS ((int64_t)1000000000)
#define LOST_GRACE_NS                                                                              \
    SECOND_NS /* from a call's dead connection until the thread's must have spoken */
#define CLOSE_WAIT_NS (2 * SECOND_NS) /* of an orderly leave, for the other side's */
#define TELLER_WAIT_NS                                                                             \
    SECOND_NS /* of a failed rank, for the teller to print before launchers kill it */
#define HEAD_BYTES offsetof(commi_frame, text)

static int64_t beat_interval_ns(const commi_control *self)
{
    int64_t tenth = commi_timeout_ns(self->owner) / 10;
    return tenth < SECOND_NS ? tenth : SECOND_NS;
}

static bool is_hub(const commi_control *self)
{
    return self->owner->rank == 0;
}

void commi_control_wake(commi_control *self)
{
    (void)eventfd_write(self->wake_fd, 1);
}

/* ---- failures ---- */

void commi_control_record(commi_control *self, int code, const char *text, bool is_own)
{
    bool is_first = self->failure.code == 0;
    if (!is_first && !(self->is_own && !is_own))
        return;
    self->failure.code = code;
    snprintf(self->failure.text, sizeof self->failure.text, "%s", text);
    self->is_own = is_own;
    if (is_first) {
        self->failed_ns = commi_now_ns();
        atomic_store_explicit(&self->owner->is_aborted, true, memory_order_release);
        (void)eventfd_write(self->abort_fd, 1);
    }
    commi_control_wake(self);
}

/* "rank 2 on host n2 (process 4711) <event>; last seen at <label>", recorded. Mutex held. */
static void record_about(commi_control *self, uint32_t rank, int code, const char *event)
{
    const comm_rank *other = &self->owner->ranks[rank];
    const char *label = self->links[is_hub(self) ? rank : 0].label;
    if (rank == self->owner->rank)
        label = self->label;
    char text[ERR_TEXT_BYTES];
    snprintf(text, sizeof text, "rank %u on host %s (process %lld) %s%s%s", rank, other->host,
             (long long)other->pid, event, label[0] ? "; last seen at " : "", label);
    commi_control_record(self, code, text, false);
}

void commi_control_record_missing(commi_control *self, uint32_t rank, const char *what)
{
    char event[2 * COMM_LABEL_BYTES + 64];
    snprintf(event, sizeof event, "has not come to %s, where others have waited for %.1f s", what,
             (double)commi_timeout_ns(self->owner) * 1e-9);
    record_about(self, rank, -ETIMEDOUT, event);
}

static void on_death(commi_control *self, commi_link *link, int code, const char *event)
{
    pthread_mutex_lock(&self->mutex);
    if (!is_hub(self) && (self->failure.code == 0 || self->is_own))
        self->teller = 1;
    record_about(self, commi_link_rank(self, link), code, event);
    pthread_mutex_unlock(&self->mutex);
}

static void close_link(commi_link *link)
{
    if (link->fd >= 0)
        close(link->fd);
    link->fd = -1;
}

/* ---- frames in ---- */

/* Who has not come to the hub's call: the lowest of those that are silent too, else the lowest; 0: all have. */
static uint32_t find_missing(commi_control *self)
{
    int64_t now_ns = commi_now_ns();
    uint32_t lowest = 0;
    for (uint32_t r = 1; r < self->owner->world; r++) {
        if (atomic_load(&self->links[r].has_come))
            continue;
        if (now_ns - self->links[r].seen_ns > 3 * beat_interval_ns(self))
            return r;
        lowest = lowest ? lowest : r;
    }
    return lowest;
}

/* Someone waits for `frame->rank`. Who is late is known here: rank 0 may itself wait for another. Mutex held. */
static void on_missing(commi_control *self, const commi_frame *frame)
{
    if (frame->rank >= self->owner->world)
        return;
    if (frame->number == COMMI_NUMBER_BULK) {
        commi_control_record_missing(self, frame->rank, frame->text);
        return;
    }
    if (self->is_calling) {
        uint32_t missing = find_missing(self);
        if (missing != 0) {
            commi_control_record_missing(self, missing, self->call.what);
            return;
        }
    }
    if (self->call.number < frame->number)
        commi_control_record_missing(self, 0, frame->text);
}

static void on_frame(commi_control *self, commi_link *link)
{
    commi_frame *frame = &link->in;
    uint32_t rank = commi_link_rank(self, link);
    frame->text[frame->text_bytes - 1] = '\0';
    pthread_mutex_lock(&self->mutex);
    switch ((enum commi_frame_type)frame->type) {
    case COMMI_FRAME_BEAT:
        snprintf(link->label, sizeof link->label, "%.*s", COMM_LABEL_BYTES - 1, frame->text);
        break;
    case COMMI_FRAME_FAIL: {
        char text[ERR_TEXT_BYTES];
        int code = frame->code < 0 ? (int)frame->code : ERR_INTERNAL;
        snprintf(text, sizeof text, "rank %u on host %s: %.*s", rank, self->owner->ranks[rank].host,
                 (int)(ERR_TEXT_BYTES - 96), frame->text);
        commi_control_record(self, code, text, false);
        break;
    }
    case COMMI_FRAME_ABORT:
        if (self->failure.code == 0 || self->is_own)
            self->teller = frame->rank;
        commi_control_record(self, frame->code < 0 ? (int)frame->code : ERR_INTERNAL, frame->text,
                             false);
        link->sent |= 1u << COMMI_FRAME_ABORT; /* it knows */
        break;
    case COMMI_FRAME_MISSING:
        on_missing(self, frame);
        break;
    case COMMI_FRAME_BYE:
        link->has_bye = true;
        break;
    case COMMI_FRAME_TYPES:
        break;
    }
    pthread_mutex_unlock(&self->mutex);
}

static bool is_frame_head(const commi_frame *frame)
{
    return frame->magic == COMMI_FRAME_MAGIC && frame->type < COMMI_FRAME_TYPES &&
           frame->text_bytes >= 1 && frame->text_bytes <= ERR_TEXT_BYTES;
}

/* Takes what has come; false where the connection has ended. */
static bool receive_frames(commi_control *self, commi_link *link)
{
    for (;;) {
        size_t want = HEAD_BYTES;
        if (link->in_bytes >= HEAD_BYTES)
            want += link->in.text_bytes;
        ssize_t bytes =
            recv(link->fd, (char *)&link->in + link->in_bytes, want - link->in_bytes, MSG_DONTWAIT);
        if (bytes < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (bytes <= 0)
            return false;
        link->seen_ns = commi_now_ns();
        link->in_bytes += (size_t)bytes;
        if (link->in_bytes == HEAD_BYTES && !is_frame_head(&link->in))
            return false;
        if (link->in_bytes > HEAD_BYTES && link->in_bytes == HEAD_BYTES + link->in.text_bytes) {
            on_frame(self, link);
            link->in_bytes = 0;
        }
    }
}

/* ---- frames out ---- */

static void compose(commi_link *link, enum commi_frame_type type, const char *text)
{
    commi_frame *frame = &link->out;
    memset(frame, 0, HEAD_BYTES);
    frame->magic = COMMI_FRAME_MAGIC;
    frame->type = type;
    frame->text_bytes = (uint32_t)strlen(text) + 1; /* of an array that is no longer */
    memcpy(frame->text, text, frame->text_bytes - 1);
    frame->text[frame->text_bytes - 1] = '\0';
    link->out_bytes = HEAD_BYTES + frame->text_bytes;
    link->out_done = 0;
    link->sent |= 1u << type;
}

static void compose_failure(commi_control *self, commi_link *link, enum commi_frame_type type)
{
    compose(link, type, self->failure.text);
    link->out.code = self->failure.code;
    link->out.rank = self->teller;
}

/* The next frame to send on the link, most urgent first. Mutex held. */
static bool compose_next(commi_control *self, commi_link *link, int64_t now_ns)
{
    enum commi_frame_type failing =
        is_hub(self) || !self->is_own ? COMMI_FRAME_ABORT : COMMI_FRAME_FAIL;
    if (self->failure.code != 0 && !(link->sent & 1u << failing)) {
        compose_failure(self, link, failing);
        return true;
    }
    if (self->has_missing) {
        compose(link, COMMI_FRAME_MISSING, self->missing_what);
        link->out.rank = self->missing_rank;
        link->out.number = self->missing_number;
        self->has_missing = false;
        return true;
    }
    if (self->is_closing && self->failure.code == 0 && !(link->sent & 1u << COMMI_FRAME_BYE)) {
        compose(link, COMMI_FRAME_BYE, "");
        return true;
    }
    if (!self->is_closing && now_ns - link->beat_ns >= beat_interval_ns(self)) {
        link->beat_ns = now_ns;
        compose(link, COMMI_FRAME_BEAT, self->label);
        return true;
    }
    return false;
}

/* Sends what there is; false where the connection has ended. */
static bool send_frames(commi_control *self, commi_link *link, int64_t now_ns)
{
    for (;;) {
        if (link->out_done == link->out_bytes) {
            pthread_mutex_lock(&self->mutex);
            bool is_more = compose_next(self, link, now_ns);
            pthread_mutex_unlock(&self->mutex);
            if (!is_more)
                return true;
        }
        ssize_t bytes = send(link->fd, (char *)&link->out + link->out_done,
                             link->out_bytes - link->out_done, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (bytes < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (bytes < 0)
            return false;
        link->out_done += (size_t)bytes;
    }
}

/* ---- time ---- */

static void check_silence(commi_control *self, commi_link *link, int64_t now_ns)
{
    int64_t silent_ns = now_ns - link->seen_ns;
    int64_t lost_ns = atomic_load(&link->lost_ns);
    if (lost_ns != 0 && now_ns - lost_ns > LOST_GRACE_NS) {
        on_death(self, link, -ECONNRESET, "is gone: its connection broke");
    } else if (silent_ns > commi_timeout_ns(self->owner)) {
        char event[64];
        snprintf(event, sizeof event, "has not answered for %.1f s", (double)silent_ns * 1e-9);
        on_death(self, link, -ETIMEDOUT, event);
    }
}

/* Rank 0 itself waits in a call for longer than it may, or another rank does for rank 0. */
static void check_call(commi_control *self, int64_t now_ns)
{
    pthread_mutex_lock(&self->mutex);
    if (self->is_calling && self->failure.code == 0 &&
        now_ns - self->call_since_ns > commi_timeout_ns(self->owner)) {
        commi_frame frame = {.rank = 0, .number = self->call.number};
        if (is_hub(self)) {
            on_missing(self, &frame);
        } else {
            self->has_missing = true;
            self->missing_rank = 0;
            self->missing_number = self->call.number;
            snprintf(self->missing_what, sizeof self->missing_what, "%s", self->call.what);
            self->call_since_ns = now_ns; /* and again after as long */
        }
    }
    pthread_mutex_unlock(&self->mutex);
}

/* Whether the thread is done: all is sent, and who is to be waited for has been. */
static bool is_closed(commi_control *self, int64_t now_ns)
{
    pthread_mutex_lock(&self->mutex);
    bool is_closing = self->is_closing;
    bool has_failed = self->failure.code != 0;
    bool waits_for_teller = has_failed && self->teller == 0 && !is_hub(self);
    int64_t waited_ns = now_ns - self->closing_ns;
    pthread_mutex_unlock(&self->mutex);
    if (!is_closing)
        return false;
    bool is_waiting = false;
    for (uint32_t l = self->first_link; l < self->link_count; l++) {
        const commi_link *link = &self->links[l];
        bool is_sending = link->out_done < link->out_bytes;
        if (link->fd >= 0 && (is_sending || waits_for_teller || (!has_failed && !link->has_bye)))
            is_waiting = true;
    }
    return !is_waiting || waited_ns > (has_failed ? TELLER_WAIT_NS : CLOSE_WAIT_NS);
}

/* A process that was stopped as a whole, or a machine that slept, has seen nobody for as long: that is no silence. */
static void forgive(commi_control *self, int64_t away_ns)
{
    for (uint32_t l = self->first_link; l < self->link_count; l++)
        self->links[l].seen_ns += away_ns;
}

static void end_if_overdue(commi_control *self, int64_t now_ns)
{
    pthread_mutex_lock(&self->mutex);
    bool is_overdue =
        self->failure.code != 0 && now_ns - self->failed_ns > atomic_load(&self->owner->exit_ns);
    pthread_mutex_unlock(&self->mutex);
    if (is_overdue)
        _exit(1);
}

static void serve(commi_control *self, commi_link *link, short events, int64_t now_ns)
{
    bool is_alive = true;
    if (events & (POLLIN | POLLHUP | POLLERR | POLLRDHUP))
        is_alive = receive_frames(self, link);
    if (is_alive && !send_frames(self, link, now_ns)) {
        (void)receive_frames(self, link); /* why it ended may stand in what came before */
        is_alive = false;
    }
    if (!is_alive) {
        if (!link->has_bye)
            on_death(self, link, -ECONNRESET, "is gone: its connection closed");
        close_link(link);
    } else if (!link->has_bye && !commi_is_aborted(self->owner)) {
        check_silence(self, link, now_ns);
    }
}

static void wait_for_events(commi_control *self, int64_t interval_ns)
{
    struct pollfd *fds = self->thread_fds;
    fds[0] = (struct pollfd){.fd = self->wake_fd, .events = POLLIN};
    for (uint32_t l = self->first_link; l < self->link_count; l++) {
        const commi_link *link = &self->links[l];
        fds[1 + l] = (struct pollfd){.fd = link->fd, .events = POLLIN};
        if (link->out_done < link->out_bytes)
            fds[1 + l].events |= POLLOUT;
    }
    if (self->first_link)
        fds[1] = (struct pollfd){.fd = -1};
    (void)poll(fds, self->link_count + 1, (int)(interval_ns / 1000000) + 1);
    if (fds[0].revents & POLLIN) {
        eventfd_t count;
        (void)eventfd_read(self->wake_fd, &count);
    }
}

void *commi_control_run(void *control)
{
    commi_control *self = control;
    thread_ask_short_slice();
    int64_t before_ns = commi_now_ns();
    for (;;) {
        int64_t interval_ns = beat_interval_ns(self);
        wait_for_events(self, interval_ns);
        int64_t now_ns = commi_now_ns();
        if (now_ns - before_ns > 3 * interval_ns + SECOND_NS / 2)
            forgive(self, now_ns - before_ns - interval_ns);
        before_ns = now_ns;
        for (uint32_t l = self->first_link; l < self->link_count; l++)
            if (self->links[l].fd >= 0)
                serve(self, &self->links[l], self->thread_fds[1 + l].revents, now_ns);
        check_call(self, now_ns);
        end_if_overdue(self, now_ns);
        /* A failure found on one link goes to those served before it. */
        for (uint32_t l = self->first_link; commi_is_aborted(self->owner) && l < self->link_count;
             l++)
            if (self->links[l].fd >= 0)
                (void)send_frames(self, &self->links[l], now_ns);
        if (is_closed(self, now_ns))
            return NULL;
    }
}
