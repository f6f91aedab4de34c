/* The read and write lanes over one io object. See lane_io.h.
 *
 *   submit ─► io_submit                             io_poll returns requests of both directions:
 *   poll   ─► io_poll ─► sort by direction ─► finished list of each lane ─► the caller's lane
 *
 * A completion that one lane's poll finds for the other lane waits in that lane's list. The other
 * lane's descriptor must then be readable although the io's own is no longer. So each lane's
 * descriptor is an epoll set of the io's descriptor and an eventfd that is set exactly while the
 * lane's list is not empty.
 *
 * With a table of sums or of places, a thread stands before and after io (sum_thread.h). Its
 * descriptor is in the sets too:
 *
 *   write  submit ─► thread: sum ─► io ─► store the sum ─► finished list
 *   read   submit ─► io ─► thread: compare ─► finished list
 *
 * An op passes the thread by if nothing is known or asked about its bytes. For optimizer state with
 * places (slot.entry) sum and place are the entry's; for all other requests the sums are the
 * table's (pair.verify).
 *
 * Nothing is allocated after creation; requests of io come from a pool of request_capacity per
 * lane. */
#include "swap/lane_io.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "swap/program_internal.h"
#include "swap/sum_thread.h"

enum { COLLECT_MAX = 64 };

/* A request of io with the data that belongs to it here. */
struct io_slot {
    io_request transfer; /* first: an io_request * is an io_slot * */
    swapi_sum_job job;   /* with a thread; job.user is the slot */
    place_entry *entry;  /* tile of optimizer state or frozen params with places; otherwise NULL */
    uint8_t which;       /* the place of the entry that is read or written */
};
typedef struct io_slot io_slot;

struct lane_io {
    lane base; /* first: a lane * is a lane_io * */
    struct lane_io_pair *pair;
    enum io_direction direction;
    bool alive;
    int epoll_fd;        /* what event_fd returns; watches the io's descriptor and pending_fd */
    int pending_fd;      /* eventfd, readable while `first` is not NULL */
    bool pending_set;    /* pending_fd is readable */
    lane_request *first; /* finished, not yet polled; in order of completion */
    lane_request *last;
    io_slot *pool;        /* [request_capacity] */
    io_slot **free_slots; /* [free_count] unused slots of the pool */
    uint32_t free_count;
    err_record error;
};
typedef struct lane_io lane_io;

struct lane_io_pair {
    io *transport;
    unsigned char *host_base;
    checksum_table *verify; /* or NULL */
    place_table *places;    /* or NULL */
    bool compares_not;
    swapi_sum_thread *sums; /* NULL if nothing is ever summed or compared */
    uint32_t summing_count; /* writes that the thread still sums */
    uint32_t request_capacity;
    bool dead;        /* poll failed: requests in flight never come back */
    lane_io lanes[2]; /* by enum io_direction */
};
typedef struct lane_io_pair lane_io_pair;

static_assert(IO_READ == 0 && IO_WRITE == 1, "a direction is an index of lane_io_pair.lanes");

/* Address of an operand in its arena. */
static uint64_t operand_offset(const program *prog, const operand *part)
{
    return prog->buffers[part->buffer_idx].offset_bytes + part->offset_bytes;
}

/* Gives a write before io has it, or a complete read, to the thread that sums. */
static void push_sum(lane_io_pair *pair, io_slot *slot, enum swapi_sum_task task)
{
    const io_request *transfer = &slot->transfer;
    const place_entry *entry = slot->entry;
    slot->job = (swapi_sum_job){.task = task,
                                .table = pair->verify,
                                .data = transfer->data,
                                .extent = {.offset = transfer->offset,
                                           .size_bytes = transfer->size_bytes,
                                           .sum = entry ? entry->sum[slot->which] : 0},
                                .elem_count = entry ? entry->elem_count : 0,
                                .streams = entry ? entry->streams : 0,
                                .user = slot};
    swapi_sum_thread_push(pair->sums, &slot->job);
}

/* Finds where the op's bytes lie. Optimizer state, and params that the table of places knows (those
 * that do not learn, and halves of split masters), lie at the place of their extent. All others lie
 * at their address in the nvme arena. */
static int find_place(const lane_io_pair *pair, const lane_request *request,
                      const operand *on_drive, io_slot *slot)
{
    uint64_t offset = operand_offset(request->prog, on_drive);
    uint64_t elem_count = request->item->elem_count;
    slot->entry = NULL;
    slot->transfer.offset = offset;
    bool is_state = request->item->state_kind == STATE_OPTIMIZER ||
                    request->prog->buffers[on_drive->buffer_idx].is_committed;
    if (!pair->places || elem_count == 0 ||
        (!is_state && request->item->state_kind != STATE_PARAMS))
        return 0;
    place_entry *entry = place_table_find(pair->places, offset, on_drive->size_bytes);
    if (!entry && !is_state)
        return 0;
    if (!entry || entry->elem_count != elem_count)
        return err_set(ERR_INTERNAL,
                       "the table of places has no extent of %llu elements in %llu bytes at %llu "
                       "of the nvme arena",
                       (unsigned long long)elem_count, (unsigned long long)on_drive->size_bytes,
                       (unsigned long long)offset);
    bool is_read = request->item->kind == OP_READ;
    if (is_read && entry->newest == PLACE_NONE)
        return err_set(ERR_INTERNAL,
                       "nothing was written yet to the extent of unit %u, tile %u at %llu of the "
                       "nvme arena",
                       entry->unit, entry->tile, (unsigned long long)offset);
    slot->entry = entry;
    slot->which = is_read ? entry->newest : place_to_write(entry);
    slot->transfer.offset = entry->offset[slot->which];
    return 0;
}

/* The io request that this one goes behind; io has it or will have it. NULL: there is none, or it
 * has finished. */
static const io_request *find_first(const io_slot *slot)
{
    const lane_request *request = slot->transfer.user;
    const io_slot *first = request->behind ? request->behind->lane_private : NULL;
    return first ? &first->transfer : NULL;
}

/* Submits to io. Only now it is certain what a write that was summed meanwhile still goes
 * behind. */
static int hand_over(lane_io_pair *pair, io_slot *slot)
{
    slot->transfer.behind = find_first(slot);
    return io_submit(pair->transport, &slot->transfer);
}

/* Starts a write. From here on the extent's old sum does not hold; the new one holds once the write
 * is complete. */
static int submit_write(lane_io_pair *pair, io_slot *slot)
{
    if (slot->entry)
        place_begin_write(slot->entry, slot->which);
    else if (pair->verify)
        checksum_forget(pair->verify, slot->transfer.offset, slot->transfer.size_bytes);
    if (!slot->entry && (!pair->verify || pair->compares_not))
        return hand_over(pair, slot);
    push_sum(pair, slot, SWAPI_SUM_TAKE);
    pair->summing_count++;
    return 0;
}

/* Names the op of a request, for the transport's warnings. */
static void describe(const io_request *transfer, char *text, size_t capacity)
{
    const lane_request *request = transfer->user;
    char op_text[SWAPI_OP_TEXT_BYTES];
    snprintf(text, capacity, "%s", swapi_op_text(request->prog, request->op_idx, op_text));
}

static int io_lane_submit(lane *base, lane_request *request)
{
    lane_io *self = (lane_io *)base;
    lane_io_pair *pair = self->pair;
    const program *prog = request->prog;
    const operand *source = op_operand(request->item, ROLE_SOURCE);
    const operand *target = op_operand(request->item, ROLE_TARGET);
    bool is_read = self->direction == IO_READ;
    if (request->item->kind != (is_read ? OP_READ : OP_WRITE) || !source || !target ||
        source->size_bytes != target->size_bytes)
        return err_set(
            ERR_INTERNAL, "lane %s: op %u is a %s or lacks a source or target of its size",
            base->ops->name, request->op_idx, op_kind_name((enum op_kind)request->item->kind));
    if (self->free_count == 0 || io_room(pair->transport) <= pair->summing_count)
        return err_set(-EAGAIN, "lane %s: all %u requests are in flight", base->ops->name,
                       pair->request_capacity);
    const operand *on_drive = is_read ? source : target;
    const operand *in_host = is_read ? target : source;
    io_slot *slot = self->free_slots[self->free_count - 1];
    slot->transfer = (io_request){
        .direction = self->direction,
        .data = lane_operand_address(pair->host_base, prog, in_host),
        .size_bytes = on_drive->size_bytes,
        .user = request,
        .describe = describe,
    };
    TRY(find_place(pair, request, on_drive, slot));
    TRY(is_read ? hand_over(pair, slot) : submit_write(pair, slot));
    self->free_count--;
    request->lane_private = slot;
    return 0;
}

/* Keeps the first error, code and this thread's text. */
static void keep_error(lane_io *self, int code)
{
    if (self->error.code == 0)
        err_save(&self->error, code);
}

/* Makes the error of a read that returned other bytes than were written. */
static int corrupt_error(const lane_io_pair *pair, const io_slot *slot)
{
    const swapi_sum_job *job = &slot->job;
    const lane_request *request = slot->transfer.user;
    uint32_t kind = request->item->state_kind;
    const slab *disk = io_target(pair->transport);
    slab_piece piece;
    slab_map(disk, job->expected.offset, job->expected.size_bytes, &piece);
    return err_set(
        job->result,
        "%s: %llu bytes at offset %llu of %s%s have checksum %016llx, but %016llx was written: the "
        "drive or the way to it changes bytes; look at its health and the kernel's log, and run "
        "`sluice verify` on the run directory to see what else is damaged",
        kind < STATE_KIND_COUNT ? state_kind_name((enum state_kind)kind) : "state",
        (unsigned long long)job->expected.size_bytes, (unsigned long long)piece.file_offset,
        disk->files[piece.drive_idx].path,
        piece.size_bytes < job->expected.size_bytes ? " and in the stripes that follow" : "",
        (unsigned long long)job->found, (unsigned long long)job->expected.sum);
}

/* Puts a request with its result into the list of its lane. The error's text is this thread's. */
static void finish_request(lane_io_pair *pair, io_slot *slot, int result, uint64_t end_ns)
{
    const io_request *transfer = &slot->transfer;
    lane_io *self = &pair->lanes[transfer->direction];
    lane_request *request = transfer->user;
    request->result = result;
    request->start_ns = transfer->start_ns;
    request->end_ns = end_ns;
    request->wait_ns = 0;
    request->lane_private = NULL;
    request->next = NULL;
    if (result < 0)
        keep_error(self, result);
    assert(self->free_count < pair->request_capacity);
    self->free_slots[self->free_count++] = slot;
    if (self->last)
        self->last->next = request;
    else
        self->first = request;
    self->last = request;
}

/* Gives a complete read to the thread that sums, if something is known of its bytes. */
static bool push_comparison(lane_io_pair *pair, io_slot *slot)
{
    const lane_request *request = slot->transfer.user;
    bool is_unread = slot->entry && (slot->entry->is_unread || request->prog->kind == PROGRAM_LOAD);
    /* Bytes that another process has written are always compared once: they may be from an older
     * slab. */
    bool compares = !pair->compares_not || is_unread;
    if (slot->entry)
        slot->entry->is_unread = 0;
    if (!compares || (slot->entry ? !slot->entry->has_sum[slot->which] : !pair->verify))
        return false;
    push_sum(pair, slot, slot->entry ? SWAPI_SUM_COMPARE : SWAPI_SUM_VERIFY);
    return true;
}

/* A summed write is complete: keeps its sum. A write that is in none of the table's programs is not
 * verified. */
static int keep_sum(lane_io_pair *pair, io_slot *slot)
{
    if (slot->entry) {
        place_written(slot->entry, slot->which, slot->job.extent.sum);
        return 0;
    }
    if (!pair->verify || pair->compares_not)
        return 0;
    int rc = checksum_put(pair->verify, &slot->job.extent);
    return rc == -ENOENT ? 0 : rc;
}

/* Handles a transfer that io has completed: reads are compared before they are finished. */
static void finish_transfer(lane_io_pair *pair, io_request *transfer)
{
    io_slot *slot = (io_slot *)transfer;
    int result = 0;
    if (transfer->result < 0)
        result = io_request_error(pair->transport, transfer);
    else if (transfer->direction == IO_WRITE)
        result = keep_sum(pair, slot);
    else if (push_comparison(pair, slot))
        return;
    finish_request(pair, slot, result, transfer->end_ns);
}

/* Collects jobs from the thread: writes go on to io, reads to their lane. Returns how many. */
static uint32_t collect_sums(lane_io_pair *pair)
{
    uint32_t count = 0;
    for (swapi_sum_job *job; pair->sums && (job = swapi_sum_thread_take(pair->sums)); count++) {
        io_slot *slot = job->user;
        uint64_t now_ns = clock_ns();
        if (slot->transfer.direction == IO_READ) {
            finish_request(pair, slot, job->result < 0 ? corrupt_error(pair, slot) : 0, now_ns);
            continue;
        }
        assert(pair->summing_count > 0);
        pair->summing_count--;
        int rc = hand_over(pair, slot);
        if (rc < 0) { /* not for lack of room, which submit has checked */
            io_forget(pair->transport, &slot->transfer);
            slot->transfer.start_ns = now_ns;
            finish_request(pair, slot, rc, now_ns);
        }
    }
    return count;
}

/* Makes pending_fd readable iff the list holds something. */
static int show_pending(lane_io *self)
{
    bool pending = self->first != NULL;
    if (pending == self->pending_set || !self->alive)
        return 0;
    uint64_t count = 1;
    ssize_t moved = pending ? write(self->pending_fd, &count, sizeof count)
                            : read(self->pending_fd, &count, sizeof count);
    if (moved != (ssize_t)sizeof count)
        return err_errno(errno ? errno : EIO, "lane %s: its eventfd", self->base.ops->name);
    self->pending_set = pending;
    return 0;
}

static int poll_pair(lane_io *self, lane_request **done, size_t max)
{
    lane_io_pair *pair = self->pair;
    io_request *transfers[COLLECT_MAX];
    int found;
    uint32_t summed;
    do {
        summed = collect_sums(pair);
        found = io_poll(pair->transport, transfers, COLLECT_MAX);
        if (found < 0)
            return found;
        for (int i = 0; i < found; i++)
            finish_transfer(pair, transfers[i]);
    } while (found == COLLECT_MAX || summed > 0);
    size_t count = 0;
    while (count < max && self->first) {
        done[count++] = self->first;
        self->first = self->first->next;
    }
    if (!self->first)
        self->last = NULL;
    TRY(show_pending(&pair->lanes[IO_READ]));
    TRY(show_pending(&pair->lanes[IO_WRITE]));
    return (int)count;
}

static int io_lane_poll(lane *base, lane_request **done, size_t max)
{
    lane_io *self = (lane_io *)base;
    int count = poll_pair(self, done, max);
    if (count < 0)
        self->pair->dead = true;
    return count;
}

static int io_lane_event_fd(const lane *base)
{
    return ((const lane_io *)base)->epoll_fd;
}

static const err_record *io_lane_error(const lane *base)
{
    return &((const lane_io *)base)->error;
}

static void lane_fini(lane_io *self)
{
    if (self->epoll_fd >= 0)
        close(self->epoll_fd);
    if (self->pending_fd >= 0)
        close(self->pending_fd);
    mem_free(self->pool);
    mem_free(self->free_slots);
    self->pool = NULL;
    self->free_slots = NULL;
    self->epoll_fd = -1;
    self->pending_fd = -1;
    self->alive = false;
}

/* The pair is freed with its second lane. After a failure of poll requests may still be out, and
 * the kernel may work on them. io_destroy, which comes next, waits for that and does not read the
 * requests, so their pool may be freed now. */
static void io_lane_destroy(lane *base)
{
    if (!base)
        return;
    lane_io *self = (lane_io *)base;
    lane_io_pair *pair = self->pair;
    assert(pair->dead || self->free_count == pair->request_capacity);
    swapi_sum_thread_destroy(
        pair->sums); /* before its jobs are freed; neither lane has a request left */
    pair->sums = NULL;
    lane_fini(self);
    if (!pair->lanes[IO_READ].alive && !pair->lanes[IO_WRITE].alive)
        mem_free(pair);
}

static const struct lane_ops read_ops = {
    .name = "read",
    .submit = io_lane_submit,
    .poll = io_lane_poll,
    .event_fd = io_lane_event_fd,
    .error = io_lane_error,
    .destroy = io_lane_destroy,
};

static const struct lane_ops write_ops = {
    .name = "write",
    .submit = io_lane_submit,
    .poll = io_lane_poll,
    .event_fd = io_lane_event_fd,
    .error = io_lane_error,
    .destroy = io_lane_destroy,
};

static int watch(lane_io *self, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(self->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
        return err_errno(errno, "lane %s: watching descriptor %d", self->base.ops->name, fd);
    return 0;
}

/* Fills one lane; on failure the caller calls lane_fini. */
static int lane_init(lane_io_pair *pair, enum io_direction direction, const lane_io_config *config)
{
    lane_io *self = &pair->lanes[direction];
    self->base = (lane){
        .ops = direction == IO_READ ? &read_ops : &write_ops,
        .depth = config->depth,
        .in_order = 0,
        .keeps_behind = 1,
        .owner = 0, /* has no meaning on a lane that is not in order */
    };
    self->pair = pair;
    self->direction = direction;
    self->alive = true;
    self->pool = mem_alloc(config->request_capacity, sizeof *self->pool, "io lane");
    self->free_slots = mem_alloc(config->request_capacity, sizeof *self->free_slots, "io lane");
    if (!self->pool || !self->free_slots)
        return -ENOMEM;
    for (uint32_t i = 0; i < config->request_capacity; i++)
        self->free_slots[i] = &self->pool[config->request_capacity - 1 - i];
    self->free_count = config->request_capacity;
    self->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (self->epoll_fd < 0)
        return err_errno(errno, "lane %s: making its epoll set", self->base.ops->name);
    self->pending_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (self->pending_fd < 0)
        return err_errno(errno, "lane %s: making its eventfd", self->base.ops->name);
    TRY(watch(self, io_event_fd(config->transport)));
    if (pair->sums)
        TRY(watch(self, swapi_sum_thread_fd(pair->sums)));
    return watch(self, self->pending_fd);
}

int lane_io_create(const lane_io_config *config, lane **read_lane, lane **write_lane)
{
    *read_lane = NULL;
    *write_lane = NULL;
    if (!config->transport || config->depth == 0 || config->request_capacity < config->depth)
        return err_set(-EINVAL,
                       "io lanes: need a transport, a depth, and at least as many requests");
    lane_io_pair *pair = mem_alloc(1, sizeof *pair, "io lane");
    if (!pair)
        return -ENOMEM;
    pair->transport = config->transport;
    pair->host_base = config->host_base;
    pair->verify = config->verify;
    pair->places = config->places;
    pair->compares_not = config->compares_not;
    pair->request_capacity = config->request_capacity;
    for (int direction = 0; direction < 2; direction++) {
        pair->lanes[direction].epoll_fd = -1;
        pair->lanes[direction].pending_fd = -1;
    }
    bool sums = config->places || (config->verify && !config->compares_not);
    int rc = sums ? swapi_sum_thread_create(config->start_thread, config->user, &pair->sums) : 0;
    if (rc == 0)
        rc = lane_init(pair, IO_READ, config);
    if (rc == 0)
        rc = lane_init(pair, IO_WRITE, config);
    if (rc < 0) {
        lane_fini(&pair->lanes[IO_READ]);
        lane_fini(&pair->lanes[IO_WRITE]);
        swapi_sum_thread_destroy(pair->sums);
        mem_free(pair);
        return rc;
    }
    *read_lane = &pair->lanes[IO_READ].base;
    *write_lane = &pair->lanes[IO_WRITE].base;
    return 0;
}
