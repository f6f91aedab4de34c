/* The control plane's thread: it sends heartbeats, receives frames, detects dead and silent ranks,
 * and ends a process that does not end by itself. control_judge.c decides what is a failure. There
 * is one per process of several ranks. It allocates nothing and blocks only in poll(2). */
#include "comm/control_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/progress.h"
#include "base/thread.h"

#define SECOND_NS ((int64_t)1000000000)
#define LOST_GRACE_NS                                                                              \
    SECOND_NS /* after a call finds a dead connection, how long the thread looks for the reason */
#define CLOSE_WAIT_NS    (2 * SECOND_NS) /* how long an orderly leave waits for the other side */
#define REPORTER_WAIT_NS SECOND_NS       /* wait for a reporter whose end this rank does not see */
#define HEAD_BYTES       offsetof(commi_frame, text)

void commi_control_wake(commi_control *self)
{
    (void)eventfd_write(self->wake_fd, 1);
}

/* ---- links that end ---- */

static void on_death(commi_control *self, commi_link *link, int code, const char *event)
{
    pthread_mutex_lock(&self->owner->mutex);
    if (!commi_is_hub(self) && (self->owner->failure.code == 0 || self->is_own))
        self->reporter = 1;
    commi_record_about(self, commi_link_rank(self, link), code, event);
    pthread_mutex_unlock(&self->owner->mutex);
}

/* A fork may come between any two lines: the child never closes a file that has got the number. */
static void close_link(commi_link *link)
{
    int fd = link->fd;
    link->fd = -1;
    if (fd >= 0)
        close(fd);
}

/* ---- frames in ---- */

static void note_progress(uint64_t now_count, int64_t now_ns, uint64_t *count, int64_t *since_ns)
{
    if (now_count == *count)
        return;
    *count = now_count;
    *since_ns = now_ns;
}

static void on_frame(commi_control *self, commi_link *link)
{
    commi_frame *frame = &link->in;
    frame->text[frame->text_bytes - 1] = '\0';
    pthread_mutex_lock(&self->owner->mutex);
    switch ((enum commi_frame_type)frame->type) {
    case COMMI_FRAME_BEAT:
        snprintf(link->label, sizeof link->label, "%.*s", COMM_LABEL_BYTES - 1, frame->text);
        link->waits = (unsigned)frame->code;
        note_progress(frame->number, link->seen_ns, &link->progress, &link->progress_ns);
        break;
    case COMMI_FRAME_FAIL:
        commi_control_record(self, frame->code < 0 ? (int)frame->code : ERR_INTERNAL, frame->text,
                             false);
        break;
    case COMMI_FRAME_ABORT:
        if (self->owner->failure.code == 0 || self->is_own)
            self->reporter = frame->rank;
        commi_control_record(self, frame->code < 0 ? (int)frame->code : ERR_INTERNAL, frame->text,
                             false);
        link->sent |= 1u << COMMI_FRAME_ABORT; /* the sender knows the failure */
        break;
    case COMMI_FRAME_MISSING:
        if (frame->rank < self->owner->world || frame->rank == COMMI_RANK_ANY)
            commi_judge(self, frame->rank, frame->number, frame->text);
        break;
    case COMMI_FRAME_BYE:
        link->has_bye = true;
        break;
    case COMMI_FRAME_TYPES:
        break;
    }
    pthread_mutex_unlock(&self->owner->mutex);
}

static bool is_frame_head(const commi_frame *frame)
{
    return frame->magic == COMMI_FRAME_MAGIC && frame->type < COMMI_FRAME_TYPES &&
           frame->text_bytes >= 1 && frame->text_bytes <= ERR_TEXT_BYTES;
}

/* Receives what has come. Returns false if the connection has ended. */
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
    /* fits: the source is an array of that length */
    frame->text_bytes = (uint32_t)strlen(text) + 1;
    memcpy(frame->text, text, frame->text_bytes - 1);
    frame->text[frame->text_bytes - 1] = '\0';
    link->out_bytes = HEAD_BYTES + frame->text_bytes;
    link->out_done = 0;
    link->sent |= 1u << type;
}

static void compose_failure(commi_control *self, commi_link *link, enum commi_frame_type type)
{
    compose(link, type, self->owner->failure.text);
    link->out.code = self->owner->failure.code;
    link->out.rank = self->reporter;
}

/* The next frame to send on the link, most urgent first. Mutex held. */
static bool compose_next(commi_control *self, commi_link *link, int64_t now_ns)
{
    enum commi_frame_type failing =
        commi_is_hub(self) || !self->is_own ? COMMI_FRAME_ABORT : COMMI_FRAME_FAIL;
    if (self->owner->failure.code != 0 && !(link->sent & 1u << failing)) {
        compose_failure(self, link, failing);
        return true;
    }
    if (self->has_missing && !commi_is_hub(self)) {
        compose(link, COMMI_FRAME_MISSING, self->missing_what);
        link->out.rank = self->missing_rank;
        link->out.number = self->missing_number;
        self->has_missing = false;
        return true;
    }
    if (self->is_closing && self->owner->failure.code == 0 &&
        !(link->sent & 1u << COMMI_FRAME_BYE)) {
        compose(link, COMMI_FRAME_BYE, "");
        return true;
    }
    if (!self->is_closing && now_ns - link->beat_ns >= commi_beat_interval_ns(self)) {
        link->beat_ns = now_ns;
        compose(link, COMMI_FRAME_BEAT, self->label);
        link->out.number = progress_count();
        link->out.code = commi_own_waits(self);
        return true;
    }
    return false;
}

/* Sends what is due. Returns false if the connection has ended. */
static bool send_frames(commi_control *self, commi_link *link, int64_t now_ns)
{
    for (;;) {
        if (link->out_done == link->out_bytes) {
            pthread_mutex_lock(&self->owner->mutex);
            bool is_more = compose_next(self, link, now_ns);
            pthread_mutex_unlock(&self->owner->mutex);
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

/* Asks the hub to judge when this rank has waited in a control call for longer than it may. */
static void check_call(commi_control *self, int64_t now_ns)
{
    if (!self->is_calling || now_ns - self->call_since_ns <= commi_timeout_ns(self->owner) ||
        now_ns - self->call_said_ns < commi_beat_interval_ns(self) || self->has_missing)
        return;
    self->has_missing = true;
    self->missing_rank = 0;
    self->missing_number = self->call.number;
    snprintf(self->missing_what, sizeof self->missing_what, "%s", self->call.what);
    self->call_said_ns = now_ns;
}

static void check_waiting(commi_control *self, int64_t now_ns)
{
    pthread_mutex_lock(&self->owner->mutex);
    note_progress(progress_count(), now_ns, &self->progress, &self->progress_ns);
    if (self->owner->failure.code == 0) {
        check_call(self, now_ns);
        commi_check_own_end(self, now_ns);
        if (commi_is_hub(self))
            commi_check_meeting(self, now_ns);
    }
    if (self->has_missing && commi_is_hub(self)) {
        commi_judge(self, self->missing_rank, self->missing_number, self->missing_what);
        self->has_missing = false;
    }
    pthread_mutex_unlock(&self->owner->mutex);
}

/* True if the thread is done: it has sent everything and need not wait for anybody. */
static bool is_closed(commi_control *self, int64_t now_ns)
{
    pthread_mutex_lock(&self->owner->mutex);
    bool is_closing = self->is_closing;
    bool has_failed = self->owner->failure.code != 0;
    uint32_t reporter = has_failed ? self->reporter : self->owner->rank;
    int64_t waited_ns = now_ns - self->closing_ns;
    pthread_mutex_unlock(&self->owner->mutex);
    if (!is_closing)
        return false;
    bool is_unsaid = false, sees_reporter = false, is_waiting_for = false;
    for (uint32_t l = self->first_link; l < self->link_count; l++) {
        const commi_link *link = &self->links[l];
        if (link->fd < 0)
            continue;
        is_unsaid = is_unsaid || link->out_done < link->out_bytes;
        sees_reporter = sees_reporter || commi_link_rank(self, link) == reporter;
        is_waiting_for = is_waiting_for || !link->has_bye;
    }
    if (!has_failed)
        return (!is_unsaid && !is_waiting_for) || waited_ns > CLOSE_WAIT_NS;
    if (reporter == self->owner->rank)
        return !is_unsaid || waited_ns > REPORTER_WAIT_NS;
    /* The launcher ends all ranks when the first one ends. So this rank waits until the reporter
     * has ended, which prints first. Without a connection to the reporter it waits for a fixed
     * time. */
    return reporter == 0 || commi_is_hub(self) ? !sees_reporter : waited_ns > REPORTER_WAIT_NS;
}

/* A process that was stopped, or a machine that slept, has received nothing for that time. That is
 * not the other ranks' silence. */
static void forgive(commi_control *self, int64_t away_ns)
{
    pthread_mutex_lock(&self->owner->mutex);
    for (uint32_t l = self->first_link; l < self->link_count; l++) {
        self->links[l].seen_ns += away_ns;
        self->links[l].progress_ns += away_ns;
    }
    self->progress_ns += away_ns;
    self->call_since_ns += away_ns;
    pthread_mutex_unlock(&self->owner->mutex);
}

/* How long the reporter has to print. If a rank has died, its launcher ends the others (Open MPI
 * within two seconds), while this rank's threads may hang in MPI. */
static int64_t reporting_ns(const commi_control *self, int code)
{
    int64_t most_ns = atomic_load(&self->owner->exit_ns) / 4 * 3;
    bool is_hurried = code == -ECONNRESET && self->owner->mpi;
    return is_hurried && most_ns > SECOND_NS ? SECOND_NS : most_ns;
}

/* Reports in place of the reporter's own thread, which has not reported in time. */
static void report_for_it(commi_control *self)
{
    pthread_mutex_lock(&self->owner->mutex);
    self->has_reported = true;
    pthread_mutex_unlock(&self->owner->mutex);
    if (self->owner->report)
        self->owner->report(commi_abort_error(self->owner));
}

static void end_if_overdue(commi_control *self, int64_t now_ns)
{
    int64_t exit_ns = atomic_load(&self->owner->exit_ns);
    pthread_mutex_lock(&self->owner->mutex);
    int64_t since_ns = self->owner->failure.code != 0 ? now_ns - self->failed_ns : 0;
    bool is_reporter = self->reporter == self->owner->rank;
    int64_t due_ns = reporting_ns(self, self->owner->failure.code);
    pthread_mutex_unlock(&self->owner->mutex);
    if (since_ns > due_ns && is_reporter && !self->has_reported &&
        !atomic_load(&self->owner->is_leaving))
        report_for_it(self);
    if (since_ns > exit_ns)
        _exit(1);
}

static void serve(commi_control *self, commi_link *link, short events, int64_t now_ns)
{
    bool is_alive = true;
    if (events & (POLLIN | POLLHUP | POLLERR | POLLRDHUP))
        is_alive = receive_frames(self, link);
    if (is_alive && !send_frames(self, link, now_ns)) {
        /* the reason may be among the frames that came before the end */
        (void)receive_frames(self, link);
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
    pthread_mutex_lock(&self->owner->mutex);
    self->progress_ns = before_ns;
    pthread_mutex_unlock(&self->owner->mutex);
    for (uint32_t l = self->first_link; l < self->link_count; l++)
        self->links[l].progress_ns = before_ns;
    for (;;) {
        int64_t interval_ns = commi_beat_interval_ns(self);
        if (commi_is_aborted(self->owner) && interval_ns > SECOND_NS / 10)
            interval_ns = SECOND_NS / 10; /* after a failure deadlines are close */
        wait_for_events(self, interval_ns);
        int64_t now_ns = commi_now_ns();
        if (now_ns - before_ns > 3 * interval_ns + SECOND_NS / 2)
            forgive(self, now_ns - before_ns - interval_ns);
        before_ns = now_ns;
        for (uint32_t l = self->first_link; l < self->link_count; l++)
            if (self->links[l].fd >= 0)
                serve(self, &self->links[l], self->thread_fds[1 + l].revents, now_ns);
        check_waiting(self, now_ns);
        end_if_overdue(self, now_ns);
        /* Sends a failure found on one link to the links that were served before it. */
        for (uint32_t l = self->first_link; commi_is_aborted(self->owner) && l < self->link_count;
             l++)
            if (self->links[l].fd >= 0)
                (void)send_frames(self, &self->links[l], now_ns);
        if (is_closed(self, now_ns))
            return NULL;
    }
}
