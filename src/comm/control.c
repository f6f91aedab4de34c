/* The control plane's calls, failures and labels. See comm.h and control_internal.h. The calls run
 * on the caller's thread and wait in poll(2) for the connections or for a failure. Only
 * commi_control_open allocates. */
#include "comm/control_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/progress.h"
#include "base/size.h"
#include "base/thread.h"

static const char *const kind_names[] = {"gather",    "broadcast", "exchange", "barrier",
                                         "agreement", "meeting",   "end"};

static_assert(sizeof kind_names / sizeof kind_names[0] == COMMI_END + 1, "each kind has a name");

/* ---- membership ---- */

static void close_links(commi_control *self)
{
    for (uint32_t l = self->first_link; self->links && l < self->link_count; l++) {
        commi_link *link = &self->links[l];
        if (link->fd >= 0)
            close(link->fd);
        if (link->data_fd >= 0)
            close(link->data_fd);
        link->fd = link->data_fd = -1;
    }
}

/* A forked process, one that loads data for example, has copies of the connections. While it has
 * them open, the other ranks do not see that this process has died. So it closes them. */

static pthread_mutex_t forks = PTHREAD_MUTEX_INITIALIZER;
static commi_control *connected; /* a list of all that have connections; guarded by forks */

static void before_fork(void)
{
    pthread_mutex_lock(&forks);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&forks);
}

static void after_fork_in_child(void)
{
    for (commi_control *each = connected; each; each = each->next)
        close_links(each);
    pthread_mutex_unlock(&forks);
}

static void watch_forks(void)
{
    (void)pthread_atfork(before_fork, after_fork, after_fork_in_child);
}

static void list_connected(commi_control *self)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, watch_forks);
    pthread_mutex_lock(&forks);
    self->next = connected;
    connected = self;
    pthread_mutex_unlock(&forks);
}

static void destroy(commi_control *self)
{
    pthread_mutex_lock(&forks);
    for (commi_control **at = &connected; *at; at = &(*at)->next)
        if (*at == self) {
            *at = self->next;
            break;
        }
    close_links(self);
    pthread_mutex_unlock(&forks);
    if (self->wake_fd >= 0)
        close(self->wake_fd);
    if (self->abort_fd >= 0)
        close(self->abort_fd);
    mem_free(self->links);
    mem_free(self->thread_fds);
    mem_free(self->call_fds);
    mem_free(self->verdicts);
    mem_free(self);
}

static int reserve(commi_control *self)
{
    uint32_t world = self->owner->world;
    bool is_hub = self->owner->rank == 0;
    self->link_count = is_hub ? world : 1;
    self->first_link = is_hub ? 1 : 0;
    self->links = mem_alloc(self->link_count, sizeof *self->links, "comm links");
    self->thread_fds = mem_alloc(world + 1, sizeof *self->thread_fds, "comm links");
    self->call_fds = mem_alloc(world + 1, sizeof *self->call_fds, "comm links");
    self->verdicts = mem_alloc(is_hub ? world : 1, sizeof *self->verdicts, "comm links");
    if (!self->links || !self->thread_fds || !self->call_fds || !self->verdicts)
        return -ENOMEM;
    for (uint32_t l = 0; l < self->link_count; l++)
        self->links[l].fd = self->links[l].data_fd = -1;
    self->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    self->abort_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (self->wake_fd < 0 || self->abort_fd < 0)
        return err_errno(errno, "creating an eventfd");
    return 0;
}

static int start_thread(commi_control *self)
{
    int errno_value = thread_start(&self->thread, commi_control_run, self);
    return errno_value ? err_errno(errno_value, "creating the control plane's thread") : 0;
}

int commi_control_open(comm *self, const comm_join_config *config)
{
    commi_control *control = mem_alloc(1, sizeof *control, "comm control");
    if (!control)
        return -ENOMEM;
    control->owner = self;
    control->wake_fd = control->abort_fd = -1;
    int rc;
    TRY_GOTO(rc, reserve(control), failed);
    list_connected(control); /* before it connects: a fork may come at any time */
    TRY_GOTO(rc, commi_control_connect(control, config), failed);
    int64_t now_ns = commi_now_ns();
    for (uint32_t l = 0; l < control->link_count; l++)
        control->links[l].seen_ns = now_ns;
    TRY_GOTO(rc, start_thread(control), failed);
    self->control = control;
    return 0;
failed:
    destroy(control);
    return rc;
}

void commi_control_close(comm *self)
{
    commi_control *control = self->control;
    pthread_mutex_lock(&self->mutex);
    control->is_closing = true;
    control->closing_ns = commi_now_ns();
    pthread_mutex_unlock(&self->mutex);
    commi_control_wake(control);
    pthread_join(control->thread, NULL);
    self->control = NULL;
    destroy(control);
}

/* ---- failures and labels ---- */

/* One rank: the first failure counts. */
static void fail_alone(comm *self, int code, const char *text)
{
    pthread_mutex_lock(&self->mutex);
    if (self->failure.code == 0) {
        self->failure.code = code;
        snprintf(self->failure.text, sizeof self->failure.text, "%s", text);
        atomic_store_explicit(&self->is_aborted, true, memory_order_release);
    }
    pthread_mutex_unlock(&self->mutex);
}

/* Records this rank's failure, from which the thread tells the others. */
static void fail_among_ranks(comm *self, int code, const char *text)
{
    commi_control *control = self->control;
    char named[ERR_TEXT_BYTES];
    pthread_mutex_lock(&self->mutex);
    if (control->refusal[0] != '\0' && strstr(text, control->refusal))
        /* a refusal of another rank, which the text names */
        snprintf(named, sizeof named, "%s", text);
    else
        snprintf(named, sizeof named, "rank %u on host %s: %.*s", self->rank,
                 self->ranks[self->rank].host, (int)(ERR_TEXT_BYTES - 96), text);
    commi_control_record(control, code, named, self->rank != 0);
    pthread_mutex_unlock(&self->mutex);
}

int comm_fail(comm *self, int code, const char *text)
{
    assert(code < 0);
    if (self && self->control)
        fail_among_ranks(self, code, text);
    else if (self)
        fail_alone(self, code, text);
    return code;
}

bool commi_control_is_reporter(comm *self)
{
    commi_control *control = self->control;
    pthread_mutex_lock(&self->mutex);
    bool is_reporter = control->reporter == self->rank && !control->has_reported;
    pthread_mutex_unlock(&self->mutex);
    return is_reporter;
}

void comm_note(comm *self, const char *label)
{
    if (!self || !self->control)
        return;
    size_t bytes = strnlen(label, COMM_LABEL_BYTES - 1);
    pthread_mutex_lock(&self->mutex);
    memcpy(self->control->label, label, bytes);
    self->control->label[bytes] = '\0';
    pthread_mutex_unlock(&self->mutex);
}

void commi_say_waiting(comm *self, uint32_t rank, const char *what)
{
    commi_control *control = self->control;
    if (!control)
        return;
    pthread_mutex_lock(&self->mutex);
    control->has_missing = true;
    control->missing_rank = rank;
    control->missing_number = COMMI_NUMBER_BULK;
    snprintf(control->missing_what, sizeof control->missing_what, "%s", what);
    pthread_mutex_unlock(&self->mutex);
    commi_control_wake(control);
}

/* ---- calls ---- */

/* The connection of a call has ended. The thread knows why, or soon will (see LOST_GRACE_NS). */
static void report_lost(commi_control *self, commi_link *link)
{
    int64_t none = 0;
    int fd = link->data_fd;
    if (fd < 0)
        return;
    link->data_fd = -1; /* before it is closed: a forked child closes what stands there */
    close(fd);
    (void)atomic_compare_exchange_strong(&link->lost_ns, &none, commi_now_ns());
    commi_control_wake(self);
}

/* Receives as much as it can without waiting. done_bytes counts head and payload. Returns false if
 * the connection ended. */
static bool receive_some(commi_link *link, void *payload, uint64_t bytes)
{
    while (link->done_bytes < sizeof link->head + bytes) {
        uint64_t done = link->done_bytes;
        bool is_head = done < sizeof link->head;
        char *to =
            is_head ? (char *)&link->head + done : (char *)payload + done - sizeof link->head;
        uint64_t want = (is_head ? sizeof link->head : sizeof link->head + bytes) - done;
        ssize_t got = recv(link->data_fd, to, want, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (got <= 0)
            return false;
        link->done_bytes += (uint64_t)got;
        if (link->done_bytes == sizeof link->head)
            return true; /* the caller checks the head before it receives the payload */
    }
    return true;
}

static bool send_some(commi_link *link, const commi_call_head *head, const void *payload)
{
    while (link->done_bytes < sizeof *head + head->bytes) {
        uint64_t done = link->done_bytes;
        bool is_head = done < sizeof *head;
        const char *from =
            is_head ? (const char *)head + done : (const char *)payload + done - sizeof *head;
        uint64_t want = (is_head ? sizeof *head : sizeof *head + head->bytes) - done;
        int flags = MSG_DONTWAIT | MSG_NOSIGNAL | (is_head && head->bytes ? MSG_MORE : 0);
        ssize_t sent = send(link->data_fd, from, want, flags);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (sent < 0)
            return false;
        link->done_bytes += (uint64_t)sent;
    }
    return true;
}

/* One of two ranks has come to a meeting, and the other goes on. */
static int refuse_meeting(comm *self, uint32_t rank, const char *what, uint32_t other,
                          const char *others_what)
{
    char text[ERR_TEXT_BYTES];
    snprintf(text, sizeof text,
             "rank %u on host %s has come to %.*s, and rank %u goes on with \"%.*s\"%s", rank,
             self->ranks[rank].host, COMM_LABEL_BYTES - 1, what, other, COMM_LABEL_BYTES - 1,
             others_what, commi_meeting_advice(what));
    pthread_mutex_lock(&self->mutex);
    commi_control_record(self->control, -ECONNRESET, text, self->rank != 0);
    pthread_mutex_unlock(&self->mutex);
    return commi_abort_error(self);
}

static int refuse_mismatch(comm *self, uint32_t rank, const commi_call_head *theirs,
                           const commi_call_head *ours)
{
    const char *kind = theirs->kind <= COMMI_END ? kind_names[theirs->kind] : "?";
    char text[ERR_TEXT_BYTES];
    if (commi_is_meeting(theirs->kind) && ours->kind != theirs->kind)
        return refuse_meeting(self, rank, theirs->what, self->rank, ours->what);
    if (commi_is_meeting(ours->kind) && theirs->kind != ours->kind)
        return refuse_meeting(self, self->rank, ours->what, rank, theirs->what);
    snprintf(
        text, sizeof text,
        "the ranks do not do the same: rank %u on host %s is at %s %llu, \"%.*s\" of %llu bytes; "
        "rank %u on host %s is at %s %llu, \"%s\" of %llu bytes",
        rank, self->ranks[rank].host, kind, (unsigned long long)theirs->number,
        COMM_LABEL_BYTES - 1, theirs->what, (unsigned long long)theirs->bytes, self->rank,
        self->ranks[self->rank].host, kind_names[ours->kind], (unsigned long long)ours->number,
        ours->what, (unsigned long long)ours->bytes);
    fail_among_ranks(self, ERR_INTERNAL, text);
    return commi_abort_error(self);
}

static bool is_same_call(const commi_call_head *a, const commi_call_head *b)
{
    return a->magic == b->magic && a->kind == b->kind && a->number == b->number &&
           a->bytes == b->bytes &&
           (a->kind == COMMI_END || strncmp(a->what, b->what, COMM_LABEL_BYTES) == 0);
}

/* One direction of a call over all links of this rank, until it is complete or fails. The payload
 * of link l is at payload + l * stride. */
struct transfer {
    const commi_call_head *head;
    char *payload;
    uint64_t stride;
    bool is_send;
};

/* Moves the bytes of one link on. 1: complete; 0: more to come. */
static int move_link(comm *self, commi_link *link, const struct transfer *transfer)
{
    const commi_call_head *head = transfer->head;
    commi_control *control = self->control;
    char *payload = transfer->payload + (size_t)(link - control->links) * transfer->stride;
    bool is_alive;
    if (link->data_fd < 0)
        return 0;
    if (transfer->is_send) {
        is_alive = send_some(link, head, payload);
    } else {
        is_alive = receive_some(link, payload, head->bytes);
        if (is_alive && link->done_bytes == sizeof *head) {
            if (!is_same_call(&link->head, head))
                return refuse_mismatch(self, commi_link_rank(control, link), &link->head, head);
            atomic_store(&link->has_come, true);
            is_alive = receive_some(link, payload, head->bytes);
        }
    }
    if (!is_alive)
        report_lost(control, link);
    return is_alive && link->done_bytes == sizeof *head + head->bytes;
}

/* Runs a transfer to its end. call_fds: [0] is the failure, [1 + l] is link l, or -1 once that is
 * done. */
static int run_transfer(comm *self, const struct transfer *transfer)
{
    commi_control *control = self->control;
    struct pollfd *fds = control->call_fds;
    fds[0] = (struct pollfd){.fd = control->abort_fd, .events = POLLIN};
    uint32_t left = 0;
    for (uint32_t l = 0; l < control->link_count; l++) {
        fds[1 + l] = (struct pollfd){.fd = -1};
        if (l < control->first_link)
            continue;
        control->links[l].done_bytes = 0;
        fds[1 + l].revents = POLLIN; /* try all links once before waiting */
        left++;
        fds[1 + l].fd = control->links[l].data_fd;
        fds[1 + l].events = transfer->is_send ? POLLOUT : POLLIN;
    }
    for (;;) {
        for (uint32_t l = control->first_link; l < control->link_count; l++) {
            if (fds[1 + l].fd < 0 || fds[1 + l].revents == 0)
                continue;
            int done = move_link(self, &control->links[l], transfer);
            TRY(done);
            if (done || control->links[l].data_fd < 0)
                fds[1 + l].fd = -1;
            left -= done ? 1 : 0;
        }
        if (left == 0)
            return 0;
        if (poll(fds, control->link_count + 1, -1) < 0 && errno != EINTR)
            return err_errno(errno, "waiting for the other ranks");
        TRY(comm_check(self));
    }
}

static void begin_call(comm *self, enum commi_call_kind kind, const char *what)
{
    commi_control *control = self->control;
    for (uint32_t l = 0; l < control->link_count; l++)
        atomic_store(&control->links[l].has_come, false);
    pthread_mutex_lock(&self->mutex);
    memset(&control->call, 0, sizeof control->call);
    control->call.magic = COMMI_DATA_MAGIC;
    control->call.kind = kind;
    control->call.number = ++control->number;
    snprintf(control->call.what, sizeof control->call.what, "%s", what);
    control->call_since_ns = control->call_said_ns = commi_now_ns();
    control->is_calling = true;
    pthread_mutex_unlock(&self->mutex);
}

/* A call: `up_bytes` from each rank to the hub, which gets [world][up_bytes]; then `down_bytes`
 * from the hub to all ranks. */
static int call_all(comm *self, enum commi_call_kind kind, const char *what, const void *up,
                    uint64_t up_bytes, void *all, void *down, uint64_t down_bytes, bool has_down)
{
    commi_control *control = self->control;
    bool is_hub = self->rank == 0;
    TRY(comm_check(self));
    begin_call(self, kind, what);
    progress_note();
    commi_call_head head = control->call;
    head.bytes = up_bytes;
    struct transfer rising = {&head, is_hub ? all : (char *)up, is_hub ? up_bytes : 0, !is_hub};
    if (is_hub && up_bytes)
        memcpy(all, up, up_bytes);
    int rc = run_transfer(self, &rising);
    if (rc == 0 && has_down) {
        head.bytes = down_bytes;
        struct transfer falling = {&head, down, 0, is_hub};
        rc = run_transfer(self, &falling);
    }
    pthread_mutex_lock(&self->mutex);
    control->is_calling = false;
    pthread_mutex_unlock(&self->mutex);
    progress_note();
    return rc;
}

/* True if there is nobody to talk to: one rank, or pretended ranks. */
static bool is_alone(const comm *self)
{
    return comm_get_world(self) == 1 || comm_is_pretended(self);
}

/* Fills `all` as if every rank had sent this rank's bytes. */
static int say_alone(comm *self, const void *mine, uint64_t bytes, void *all)
{
    TRY(comm_check(self));
    for (uint32_t r = 0; bytes && r < comm_get_world(self); r++)
        memcpy((unsigned char *)all + r * bytes, mine, bytes);
    return 0;
}

int comm_gather(comm *self, const char *what, const void *mine, uint64_t bytes, void *all)
{
    if (is_alone(self))
        return comm_get_rank(self) == 0 ? say_alone(self, mine, bytes, all) : comm_check(self);
    return call_all(self, COMMI_GATHER, what, mine, bytes, all, NULL, 0, false);
}

int comm_broadcast(comm *self, const char *what, void *data, uint64_t bytes)
{
    if (is_alone(self))
        return comm_check(self);
    return call_all(self, COMMI_BROADCAST, what, NULL, 0, NULL, data, bytes, true);
}

int comm_exchange(comm *self, const char *what, const void *mine, uint64_t bytes, void *all)
{
    uint64_t all_bytes;
    TRY(size_mul(bytes, comm_get_world(self), &all_bytes));
    if (is_alone(self))
        return say_alone(self, mine, bytes, all);
    return call_all(self, COMMI_EXCHANGE, what, mine, bytes, all, all, all_bytes, true);
}

int comm_barrier(comm *self, const char *what)
{
    if (is_alone(self))
        return comm_check(self);
    return call_all(self, COMMI_BARRIER, what, NULL, 0, NULL, NULL, 0, true);
}

static const char failed_end[] = "its end after ";

const char *commi_meeting_advice(const char *what)
{
    bool has_failed = strncmp(what, failed_end, sizeof failed_end - 1) == 0;
    return has_failed ? "" : ": all ranks must make the same calls";
}

void comm_note_failure(comm *self, const char *failure)
{
    if (!self || is_alone(self))
        return;
    commi_control *control = self->control;
    pthread_mutex_lock(&self->mutex);
    snprintf(control->failed_end, sizeof control->failed_end, "%s%s", failed_end, failure);
    control->progress_ns = commi_now_ns();
    pthread_mutex_unlock(&self->mutex);
}

static int meet(comm *self, enum commi_call_kind kind, const char *what)
{
    comm_note(self, what);
    return call_all(self, kind, what, NULL, 0, NULL, NULL, 0, true);
}

int comm_meet(comm *self, const char *what)
{
    return is_alone(self) ? comm_check(self) : meet(self, COMMI_MEET, what);
}

int comm_end(comm *self)
{
    if (is_alone(self))
        return comm_check(self);
    char what[COMM_LABEL_BYTES];
    pthread_mutex_lock(&self->mutex);
    bool has_failed = self->control->failed_end[0] != '\0';
    snprintf(what, sizeof what, "%s",
             has_failed ? self->control->failed_end : "the end of its run");
    pthread_mutex_unlock(&self->mutex);
    int rc = meet(self, COMMI_END, what);
    pthread_mutex_lock(&self->mutex);
    self->control->failed_end[0] = '\0';
    pthread_mutex_unlock(&self->mutex);
    return rc;
}

struct verdict {
    uint32_t rank;
    err_record record;
};

int comm_agree(comm *self, const char *what, int code)
{
    if (is_alone(self))
        return code < 0 ? code : comm_check(self);
    TRY(comm_check(self));
    commi_control *control = self->control;
    struct verdict verdict = {0};
    err_record mine;
    err_save(&mine, code < 0 ? code : 0);
    TRY(call_all(self, COMMI_AGREE, what, &mine, sizeof mine, control->verdicts, NULL, 0, false));
    for (uint32_t r = 0; self->rank == 0 && r < self->world; r++)
        if (control->verdicts[r].code < 0) {
            verdict.rank = r;
            verdict.record = control->verdicts[r];
            break;
        }
    TRY(comm_broadcast(self, what, &verdict, sizeof verdict));
    if (verdict.record.code == 0)
        return 0;
    (void)err_restore(&verdict.record);
    if (verdict.rank == self->rank)
        return verdict.record.code;
    err_prefix(verdict.record.code, "rank %u on %s", verdict.rank, self->ranks[verdict.rank].host);
    pthread_mutex_lock(&self->mutex);
    snprintf(control->refusal, sizeof control->refusal, "%s", err_text());
    pthread_mutex_unlock(&self->mutex);
    return verdict.record.code;
}
