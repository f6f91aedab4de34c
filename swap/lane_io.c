/* The lane of reads and writes over one io object. See lane_io.h.
 *
 *   submit ─► io_submit
 *   io_poll ─► requests of both directions, in order of completion ─► poll
 *
 * With a table of sums or of places, threads stand beside io (sum_thread.h):
 *
 *   write  submit ─► io_submit, held ─► a thread: sum ─► io_release ─► store the sum ─► poll
 *   read   submit ─► io_submit ─► a thread: compare ─► poll
 *
 * So io has all requests in the order of their submission, however long a sum takes. Otherwise two
 * writes and a read could wait for each other in a circle: the second write, summed first, behind
 * the read, the read behind the first write, and the first write in the queue after the second.
 *
 * An op passes the threads by if nothing is known or asked about its bytes. For optimizer state
 * with places (slot.entry) sum and place are the entry's; for all other requests the sums are the
 * table's (config.verify).
 *
 * Nothing is allocated after creation; requests of io come from a pool. */
#include "swap/lane_io.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/size.h"
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
    lane_io_config config;
    swapi_sum_thread *sums; /* NULL if nothing is ever summed or compared */
    int epoll_fd;           /* what event_fd returns; watches those of io and of the threads */
    bool dead;              /* poll failed: requests in flight never come back */
    io_slot *pool;          /* [slot_count] */
    io_slot **free_slots;   /* [free_count] unused slots of the pool */
    uint32_t slot_count, free_count;
    err_record error;
};
typedef struct lane_io lane_io;

static_assert(offsetof(lane_io, base) == 0, "a lane_io starts with its lane");

/* Address of an operand in its arena. */
static uint64_t operand_offset(const program *prog, const operand *part)
{
    return prog->buffers[part->buffer_idx].offset_bytes + part->offset_bytes;
}

/* Gives a held write or a complete read to the threads that sum. */
static void push_sum(lane_io *self, io_slot *slot, enum swapi_sum_task task)
{
    const io_request *transfer = &slot->transfer;
    const place_entry *entry = slot->entry;
    slot->job = (swapi_sum_job){.task = task,
                                .table = self->config.verify,
                                .data = transfer->data,
                                .extent = {.offset = transfer->offset,
                                           .size_bytes = transfer->size_bytes,
                                           .sum = entry ? entry->sum[slot->which] : 0},
                                .elem_count = entry ? entry->elem_count : 0,
                                .streams = entry ? entry->streams : 0,
                                .user = slot};
    swapi_sum_thread_push(self->sums, &slot->job);
}

/* Finds where the op's bytes lie. Optimizer state, and params that the table of places knows (those
 * that do not learn, and halves of split masters), lie at the place of their extent. All others lie
 * at their address in the nvme arena. */
static int find_place(const lane_io *self, const lane_request *request, const operand *on_drive,
                      io_slot *slot)
{
    uint64_t offset = operand_offset(request->prog, on_drive);
    uint64_t elem_count = request->item->elem_count;
    slot->entry = NULL;
    slot->transfer.offset = offset;
    bool is_state = request->item->state_kind == STATE_OPTIMIZER ||
                    request->prog->buffers[on_drive->buffer_idx].is_committed;
    if (!self->config.places || elem_count == 0 ||
        (!is_state && request->item->state_kind != STATE_PARAMS))
        return 0;
    place_entry *entry = place_table_find(self->config.places, offset, on_drive->size_bytes);
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

/* The io request that this one goes behind. NULL: there is none, or it has finished. */
static const io_request *find_first(const lane_request *request)
{
    const io_slot *first = request->behind ? request->behind->lane_private : NULL;
    return first ? &first->transfer : NULL;
}

/* Starts a write. From here on the extent's old sum does not hold; the new one holds once the write
 * is complete. */
static int submit_write(lane_io *self, io_slot *slot)
{
    bool is_summed = slot->entry || (self->config.verify && !self->config.trusts_reads);
    slot->transfer.is_held = is_summed && !self->config.sums_nothing;
    slot->job.extent.sum = 0;
    TRY(io_submit(self->config.transport, &slot->transfer));
    if (slot->entry)
        place_begin_write(slot->entry, slot->which);
    else if (self->config.verify)
        checksum_forget(self->config.verify, slot->transfer.offset, slot->transfer.size_bytes);
    if (slot->transfer.is_held)
        push_sum(self, slot, SWAPI_SUM_TAKE);
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
    const program *prog = request->prog;
    const operand *source = op_operand(request->item, ROLE_SOURCE);
    const operand *target = op_operand(request->item, ROLE_TARGET);
    bool is_read = request->item->kind == OP_READ;
    if ((!is_read && request->item->kind != OP_WRITE) || !source || !target ||
        source->size_bytes != target->size_bytes)
        return err_set(ERR_INTERNAL,
                       "lane nvme: op %u is a %s or lacks a source or target of its size",
                       request->op_idx, op_kind_name((enum op_kind)request->item->kind));
    if (self->free_count == 0 || io_room(self->config.transport) == 0)
        return err_set(-EAGAIN, "lane nvme: all %u requests are in flight", self->slot_count);
    const operand *on_drive = is_read ? source : target;
    const operand *in_host = is_read ? target : source;
    io_slot *slot = self->free_slots[self->free_count - 1];
    slot->transfer = (io_request){
        .direction = is_read ? IO_READ : IO_WRITE,
        .data = lane_operand_address(self->config.host_base, prog, in_host),
        .size_bytes = on_drive->size_bytes,
        .user = request,
        .describe = describe,
        .behind = find_first(request),
    };
    TRY(find_place(self, request, on_drive, slot));
    TRY(is_read ? io_submit(self->config.transport, &slot->transfer) : submit_write(self, slot));
    self->free_count--;
    request->lane_private = slot;
    return 0;
}

/* Makes the error of a read that returned other bytes than were written. */
static int corrupt_error(const lane_io *self, const io_slot *slot)
{
    const swapi_sum_job *job = &slot->job;
    const lane_request *request = slot->transfer.user;
    uint32_t kind = request->item->state_kind;
    const slab *disk = io_target(self->config.transport);
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

/* Frees the slot of a request and gives the request its result, whose text is this thread's. */
static lane_request *finish_request(lane_io *self, io_slot *slot, int result, uint64_t end_ns)
{
    lane_request *request = slot->transfer.user;
    request->result = result;
    request->start_ns = slot->transfer.start_ns;
    request->end_ns = end_ns;
    request->wait_ns = 0;
    request->lane_private = NULL;
    request->next = NULL;
    err_keep(&self->error, result);
    assert(self->free_count < self->slot_count);
    self->free_slots[self->free_count++] = slot;
    return request;
}

/* Gives a complete read to the threads that sum, if something is known of its bytes. */
static bool push_comparison(lane_io *self, io_slot *slot)
{
    const lane_request *request = slot->transfer.user;
    bool is_unread = slot->entry && (slot->entry->is_unread || request->prog->kind == PROGRAM_LOAD);
    /* Bytes that another process has written are always compared once: they may be from an older
     * slab. */
    bool compares = (!self->config.trusts_reads || is_unread) && !self->config.sums_nothing;
    if (slot->entry)
        slot->entry->is_unread = 0;
    if (!compares || (slot->entry ? !slot->entry->has_sum[slot->which] : !self->config.verify))
        return false;
    push_sum(self, slot, slot->entry ? SWAPI_SUM_COMPARE : SWAPI_SUM_VERIFY);
    return true;
}

/* A summed write is complete: keeps its sum. A write that is in none of the table's programs is not
 * verified. */
static int keep_sum(lane_io *self, io_slot *slot)
{
    if (slot->entry) {
        place_written(slot->entry, slot->which, slot->job.extent.sum);
        return 0;
    }
    if (!self->config.verify || self->config.trusts_reads || self->config.sums_nothing)
        return 0;
    int rc = checksum_put(self->config.verify, &slot->job.extent);
    return rc == -ENOENT ? 0 : rc;
}

/* Handles a transfer that io has completed. NULL: a read, which is compared before it is
 * finished. */
static lane_request *finish_transfer(lane_io *self, io_request *transfer)
{
    io_slot *slot = (io_slot *)transfer;
    int result = 0;
    if (transfer->result < 0)
        result = io_request_error(self->config.transport, transfer);
    else if (transfer->direction == IO_WRITE)
        result = keep_sum(self, slot);
    else if (push_comparison(self, slot))
        return NULL;
    return finish_request(self, slot, result, transfer->end_ns);
}

/* Handles a job that a thread has done. NULL: a write, which io may now hand over. */
static lane_request *finish_job(lane_io *self, const swapi_sum_job *job)
{
    io_slot *slot = job->user;
    if (slot->transfer.direction == IO_READ)
        return finish_request(self, slot, job->result < 0 ? corrupt_error(self, slot) : 0,
                              clock_ns());
    io_release(self->config.transport, &slot->transfer);
    return NULL;
}

/* Requests beyond `max` stay where they are and keep the descriptor readable. */
static int io_lane_poll(lane *base, lane_request **done, size_t max)
{
    lane_io *self = (lane_io *)base;
    io_request *transfers[COLLECT_MAX];
    size_t count = 0;
    uint32_t summed;
    int found;
    do {
        summed = 0;
        for (swapi_sum_job *job; self->sums && count < max; summed++) {
            job = swapi_sum_thread_take(self->sums);
            if (!job)
                break;
            done[count] = finish_job(self, job);
            count += done[count] != NULL;
        }
        found = io_poll(self->config.transport, transfers, size_min(COLLECT_MAX, max - count));
        for (int i = 0; i < found; i++) {
            done[count] = finish_transfer(self, transfers[i]);
            count += done[count] != NULL;
        }
    } while (count < max && (found == COLLECT_MAX || (found >= 0 && summed > 0)));
    if (found < 0) {
        self->dead = true;
        return found;
    }
    return (int)count;
}

static int io_lane_event_fd(const lane *base)
{
    return ((const lane_io *)base)->epoll_fd;
}

static const err_record *io_lane_error(const lane *base)
{
    return &((const lane_io *)base)->error;
}

/* After a failure of poll requests may still be out, and the kernel may work on them. io_destroy,
 * which comes next, waits for that and does not read the requests, so their pool may be freed
 * now. */
static void io_lane_destroy(lane *base)
{
    if (!base)
        return;
    lane_io *self = (lane_io *)base;
    assert(self->dead || self->free_count == self->slot_count);
    swapi_sum_thread_destroy(self->sums); /* before its jobs are freed */
    if (self->epoll_fd >= 0)
        close(self->epoll_fd);
    mem_free(self->pool);
    mem_free(self->free_slots);
    mem_free(self);
}

static const struct lane_ops io_lane_ops = {
    .name = "nvme",
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
        return err_errno(errno, "lane nvme: watching descriptor %d", fd);
    return 0;
}

static int make_parts(lane_io *self)
{
    const lane_io_config *config = &self->config;
    self->pool = mem_alloc(2 * (uint64_t)config->depth, sizeof *self->pool, "io lane");
    self->free_slots = mem_alloc(2 * (uint64_t)config->depth, sizeof *self->free_slots, "io lane");
    if (!self->pool || !self->free_slots)
        return -ENOMEM;
    self->slot_count = 2 * config->depth;
    for (; self->free_count < self->slot_count; self->free_count++)
        self->free_slots[self->free_count] = &self->pool[self->slot_count - 1 - self->free_count];
    self->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (self->epoll_fd < 0)
        return err_errno(errno, "lane nvme: making its epoll set");
    TRY(watch(self, io_event_fd(config->transport)));
    if (!config->places && (!config->verify || config->trusts_reads))
        return 0;
    uint32_t thread_count = (uint32_t)size_max(config->sum_thread_count, 1);
    TRY(swapi_sum_thread_create(thread_count, config->start_thread, config->user, &self->sums));
    return watch(self, swapi_sum_thread_fd(self->sums));
}

uint32_t lane_io_sum_threads(double bytes_per_second, double seconds_per_byte, uint32_t core_count)
{
    uint64_t most = size_min(size_max((core_count + 3) / 4, 1), LANE_IO_SUM_THREADS_MAX);
    /* A thread that waits for a core, or for the next job, does not sum. */
    const double busy_share = 0.7;
    double wanted = ceil(bytes_per_second * seconds_per_byte / busy_share);
    return (uint32_t)fmin(fmax(wanted, 1), (double)most);
}

int lane_io_create(const lane_io_config *config, lane **out)
{
    *out = NULL;
    if (!config->transport || config->depth == 0 ||
        config->sum_thread_count > LANE_IO_SUM_THREADS_MAX)
        return err_set(-EINVAL, "lane nvme: needs a transport and a depth, and sums by %u threads",
                       config->sum_thread_count);
    lane_io *self = mem_alloc(1, sizeof *self, "io lane");
    if (!self)
        return -ENOMEM;
    self->config = *config;
    self->base = (lane){.ops = &io_lane_ops, .depth = config->depth, .keeps_behind = 1};
    self->epoll_fd = -1;
    int rc = make_parts(self);
    if (rc < 0) {
        io_lane_destroy(&self->base);
        return rc;
    }
    *out = &self->base;
    return 0;
}
