/* One collective in rounds. See exchange_internal.h. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/progress.h"
#include "base/size.h"
#include "base/tile.h"
#include "comm/exchange_internal.h"

/* At the start of each chunk of an all-to-all: the bytes of the reader's parcel, and those of the
 * writer's largest one, which decides the number of rounds. */
struct exchange_lead {
    uint64_t bytes, most_bytes;
};
typedef struct exchange_lead exchange_lead;

/* A running collective. */
struct passage {
    exchange *self;
    struct staged *gpu; /* NULL: host memory */
    const comm_call *call;
    const comm_parcels *parcels;      /* of an all-to-all, whose `call` has a label and no more */
    uint64_t slot_bytes, chunk_count; /* per round: bytes (gather) or elements (reduce) */
    uint64_t wire_bytes;              /* of one byte or element as it travels */
    uint32_t first_round;
    segment_head head; /* publish sets the round */
};
typedef struct passage passage;

/* The part of the shard that the round at `begin` moves. */
static uint64_t round_count(const passage *way, uint64_t begin)
{
    assert(begin <= way->call->count);
    return size_min(way->chunk_count, way->call->count - begin);
}

uint64_t exchangei_reduce_chunk(const exchange *self, bool is_staged, enum dtype wire)
{
    uint64_t bytes = self->reduce_slot_bytes - sizeof(segment_head);
    uint64_t elems = bytes / (is_staged ? sizeof(float) : dtype_bytes(wire));
    uint64_t step = elems >= SHARD_ELEMS_STEP ? SHARD_ELEMS_STEP : 16;
    return elems / step * step;
}

static uint64_t gather_chunk(const exchange *self)
{
    uint64_t bytes = self->gather_slot_bytes - sizeof(segment_head);
    uint64_t step = bytes >= 4 * SHARD_ELEMS_STEP ? 4 * SHARD_ELEMS_STEP : 64;
    return bytes / step * step;
}

static uint64_t head_hash(const segment_head *head)
{
    uint64_t words[] = {head->kind, head->count, head->wire};
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        hash = (hash ^ words[i]) * 0x100000001b3u;
    for (const char *at = head->label; *at != '\0'; at++)
        hash = (hash ^ (unsigned char)*at) * 0x100000001b3u;
    return hash;
}

static void begin(passage *way, exchange *self, struct staged *gpu, enum exchange_kind kind,
                  const comm_call *call)
{
    bool is_gather = kind == EXCHANGE_GATHER;
    *way = (passage){.self = self, .gpu = gpu, .call = call};
    way->slot_bytes = is_gather ? self->gather_slot_bytes : self->reduce_slot_bytes;
    way->chunk_count =
        is_gather ? gather_chunk(self) : exchangei_reduce_chunk(self, gpu != NULL, call->wire);
    way->wire_bytes = is_gather ? 1 : dtype_bytes(call->wire);
    assert(way->chunk_count > 0);
    way->first_round = self->round + 1;
    way->head.kind = kind;
    way->head.count = call->count;
    way->head.wire = is_gather ? 0 : call->wire;
    (void)snprintf(way->head.label, sizeof way->head.label, "%s", call->label);
    way->head.hash = head_hash(&way->head);
}

static int copy(passage *way, void *target, const void *source, uint64_t bytes,
                enum device_direction direction)
{
    if (way->gpu != NULL)
        return stagedi_copy(way->gpu, target, source, bytes, direction);
    if (target != source)
        memcpy(target, source, bytes);
    return 0;
}

static int finish(passage *way)
{
    return way->gpu != NULL ? stagedi_finish(way->gpu) : 0;
}

/* The offset in a half, or a message, of the slot from `writer` for `reader`. The slot begins with
 * the head. */
static uint64_t slot_offset(const passage *way, uint32_t writer, uint32_t reader)
{
    if (way->head.kind == EXCHANGE_GATHER)
        return 0;
    return (reader - (reader > writer)) * way->slot_bytes;
}

static unsigned char *half_data(exchange *self, uint32_t p, uint32_t round)
{
    return self->peers[p].shared.data + (round & 1) * self->half_bytes;
}

/* ---- publish ---- */

/* Fills the readers' slots with this rank's contributions to a reduce-scatter, rounded to the wire
 * type. */
static int fill_slots(passage *way, uint32_t round, uint64_t at, uint64_t count)
{
    exchange *self = way->self;
    const comm_call *call = way->call;
    uint32_t rank = self->group->rank, world = self->group->world;
    bool is_packed = call->wire != DTYPE_FP32;
    for (int pass = 0; pass < 2;
         pass++) { /* pass 0 enqueues all copies of a GPU, pass 1 rounds what they brought */
        for (uint32_t p = 0; p < world; p++) {
            const float *from = (const float *)call->source + p * call->count + at;
            unsigned char *slot =
                half_data(self, rank, round) + slot_offset(way, rank, p) + sizeof(segment_head);
            float *bounce = way->gpu == NULL ? NULL
                            : p == rank      ? stagedi_own(way->gpu, round)
                                             : stagedi_outgoing(way->gpu, p - (p > rank));
            bool is_direct = p != rank && !is_packed;
            if (pass == 0 && way->gpu != NULL)
                TRY(copy(way, is_direct ? (void *)slot : bounce, from, count * sizeof(float),
                         DEVICE_TO_HOST));
            if (pass == 1 && p != rank && (way->gpu == NULL || is_packed))
                self->loops->pack(way->gpu != NULL ? bounce : from, slot, call->wire, count);
        }
        TRY(finish(way));
    }
    return 0;
}

/* Sends a chunk of so many bytes to rank p, if it is on another host. Does not wait for it. */
static int send_slot(passage *way, uint32_t round, uint32_t p, uint64_t bytes)
{
    exchange *self = way->self;
    uint32_t rank = self->group->rank;
    if (!self->peers[p].is_remote)
        return 0;
    unsigned char *slot = half_data(self, rank, round) + slot_offset(way, rank, p);
    memcpy(slot, &way->head, sizeof way->head);
    return commi_mpi_send(self->group, &self->peers[p].sends[round & 1], slot,
                          sizeof(segment_head) + bytes, p);
}

/* Waits until the round's half is free, and puts the head in it. */
static int open_round(passage *way, uint32_t round)
{
    exchange *self = way->self;
    segment_page *page = self->peers[self->group->rank].shared.page;
    TRY(exchangei_wait_free(self, round, way->call->label));
    for (uint32_t p = 0; self->has_remote && p < self->group->world; p++) {
        /* room for the longest slot: a rank with another call sends another length */
        exchange_peer *peer = &self->peers[p];
        if (peer->is_remote)
            TRY(commi_mpi_receive(self->group, &peer->receives[round & 1], peer->inbox[round & 1],
                                  self->gather_slot_bytes, p));
    }
    way->head.round = round;
    page->heads[round & 1] = way->head;
    return 0;
}

/* Shows the ranks of this host the round's half, of which `sent` bytes count as sent. */
static void close_round(passage *way, uint32_t round, uint64_t sent)
{
    exchange *self = way->self;
    self->round = round;
    segment_raise(&self->peers[self->group->rank].shared.page->published, round);
    atomic_fetch_add_explicit(&self->group->sent_bytes, sent, memory_order_relaxed);
}

static int publish(passage *way, uint64_t index)
{
    exchange *self = way->self;
    uint32_t rank = self->group->rank, round = way->first_round + (uint32_t)index;
    uint64_t at = index * way->chunk_count, count = round_count(way, at);
    TRY(open_round(way, round));
    if (way->head.kind == EXCHANGE_REDUCE) {
        TRY(fill_slots(way, round, at, count));
    } else {
        unsigned char *slot = half_data(self, rank, round) + sizeof(segment_head);
        TRY(copy(way, slot, (const unsigned char *)way->call->source + at, count, DEVICE_TO_HOST));
        TRY(finish(way));
    }
    uint64_t bytes = count * way->wire_bytes;
    close_round(way, round, bytes * (self->group->world - 1));
    for (uint32_t p = 0; p < self->group->world; p++)
        TRY(send_slot(way, round, p, bytes));
    return 0;
}

/* ---- read ---- */

static const char *kind_text(const segment_head *head, char text[96])
{
    if (head->kind == EXCHANGE_GATHER)
        (void)snprintf(text, 96, "all-gather of %" PRIu64 " bytes", head->count);
    else if (head->kind == EXCHANGE_PARCELS)
        (void)snprintf(text, 96, "all-to-all");
    else
        (void)snprintf(text, 96, "reduce-scatter of %" PRIu64 " elements as %s", head->count,
                       dtype_name(head->wire < DTYPE_COUNT ? (enum dtype)head->wire : DTYPE_FP32));
    return text;
}

/* Waits for the round of rank p and finds its chunk. */
static int come_in(passage *way, uint32_t p, uint32_t round, const unsigned char **chunk)
{
    exchange *self = way->self;
    comm *group = self->group;
    exchange_peer *peer = &self->peers[p];
    TRY(exchangei_wait_published(self, p, round, way->call->label));
    const unsigned char *slot = peer->is_remote
                                    ? peer->inbox[round & 1]
                                    : half_data(self, p, round) + slot_offset(way, p, group->rank);
    segment_head head =
        peer->shared.page != NULL ? peer->shared.page->heads[round & 1] : (segment_head){0};
    if (peer->is_remote)
        memcpy(&head, slot, sizeof head);
    *chunk = slot + sizeof(segment_head);
    if (head.hash == way->head.hash && head.round == round)
        return 0;
    char theirs[96], ours[96];
    head.label[sizeof head.label - 1] = '\0';
    return err_set(ERR_INTERNAL,
                   "ranks disagree on the order of collectives: rank %u on %s is at \"%s\" (%s, "
                   "round %u) where rank %u on %s is at \"%s\" (%s, round %u)",
                   p, group->ranks[p].host, head.label, kind_text(&head, theirs), head.round,
                   group->rank, group->ranks[group->rank].host, way->head.label,
                   kind_text(&way->head, ours), round);
}

static int read_gather(passage *way, uint32_t round, uint64_t at, uint64_t count)
{
    comm *group = way->self->group;
    for (uint32_t p = 0; p < group->world; p++) {
        unsigned char *target = (unsigned char *)way->call->target + p * way->call->count + at;
        const unsigned char *chunk = (const unsigned char *)way->call->source + at;
        if (p != group->rank)
            TRY(come_in(way, p, round, &chunk));
        TRY(copy(way, target, chunk, count, p == group->rank ? DEVICE_WITHIN : DEVICE_FROM_HOST));
    }
    return finish(way);
}

static int read_reduce(passage *way, uint32_t round, uint64_t at, uint64_t count)
{
    comm *group = way->self->group;
    const comm_call *call = way->call;
    const sum_loops *loops = way->self->loops;
    const unsigned char *chunks[COMM_RANKS_MAX];
    const float *own = (const float *)call->source + group->rank * call->count + at;
    float *target = (float *)call->target + at;
    float *total = target;
    if (way->gpu != NULL) {
        own = stagedi_own(way->gpu, round);
        total = stagedi_total(way->gpu);
    }
    for (uint32_t p = 0; p < group->world; p++)
        if (p != group->rank)
            TRY(come_in(way, p, round, &chunks[p]));
    for (uint64_t i = 0; i < count; i += SUM_BLOCK_ELEMS) {
        uint64_t elems = size_min(SUM_BLOCK_ELEMS, count - i);
        for (uint32_t p = 0; p < group->world; p++) {
            if (p == group->rank)
                loops->add_own(total + i, own + i, call->wire, elems, p == 0);
            else
                loops->add(total + i, chunks[p] + i * way->wire_bytes, call->wire, elems, p == 0);
        }
    }
    if (way->gpu != NULL)
        TRY(copy(way, target, total, count * sizeof(float), DEVICE_FROM_HOST));
    return finish(way);
}

static int read_round(passage *way, uint64_t index)
{
    exchange *self = way->self;
    uint32_t round = way->first_round + (uint32_t)index;
    uint64_t at = index * way->chunk_count, count = round_count(way, at);
    if (way->head.kind == EXCHANGE_GATHER)
        TRY(read_gather(way, round, at, count));
    else
        TRY(read_reduce(way, round, at, count));
    segment_raise(&self->peers[self->group->rank].shared.page->consumed, round);
    progress_note();
    return 0;
}

/* ---- the whole ---- */

static int run(passage *way)
{
    /* A call of 0 bytes has a round too, so that the ranks compare their order. */
    uint64_t rounds = size_max(size_div_up(way->call->count, way->chunk_count), 1);
    TRY(publish(way, 0));
    for (uint64_t i = 0; i < rounds; i++) {
        if (i + 1 < rounds)
            TRY(publish(way, i + 1));
        TRY(read_round(way, i));
    }
    return 0;
}

/* A single rank copies without rounding. */
static int run_alone(struct staged *gpu, enum exchange_kind kind, const comm_call *call)
{
    uint64_t bytes = call->count * (kind == EXCHANGE_GATHER ? 1 : sizeof(float));
    if (gpu == NULL) {
        if (call->target != call->source)
            memcpy(call->target, call->source, bytes);
        return 0;
    }
    TRY(stagedi_attach(gpu));
    TRY(stagedi_copy(gpu, call->target, call->source, bytes, DEVICE_WITHIN));
    return stagedi_finish(gpu);
}

int exchangei_run(exchange *self, struct staged *gpu, enum exchange_kind kind,
                  const comm_call *call)
{
    passage way;
    if (self->group->world == 1)
        return run_alone(gpu, kind, call);
    begin(&way, self, gpu, kind, call);
    int rc = gpu != NULL ? stagedi_attach(gpu) : 0;
    if (rc == 0)
        rc = run(&way);
    if (rc < 0 && !commi_is_aborted(self->group))
        return comm_fail(self->group, rc, err_text());
    return rc;
}

/* ---- all-to-all ---- */

static uint64_t parcels_chunk(const exchange *self)
{
    uint64_t bytes = self->reduce_slot_bytes - sizeof(segment_head) - sizeof(exchange_lead);
    return bytes / 16 * 16;
}

/* The bytes of a parcel that a round moves. */
static uint64_t parcel_count(const passage *way, uint64_t parcel_bytes, uint64_t index)
{
    uint64_t begin = index * way->chunk_count;
    return begin < parcel_bytes ? size_min(way->chunk_count, parcel_bytes - begin) : 0;
}

/* Each reader's slot has its own length, so that ranks with short parcels send little. */
static int publish_parcels(passage *way, uint64_t index, uint64_t most_bytes)
{
    exchange *self = way->self;
    const rank_parcel *parcels = way->parcels->sent;
    const unsigned char *source =
        (const unsigned char *)way->parcels->source + index * way->chunk_count;
    uint32_t rank = self->group->rank, round = way->first_round + (uint32_t)index;
    uint64_t sent = 0;
    TRY(open_round(way, round));
    for (uint32_t p = 0; p < self->group->world; p++) {
        const exchange_lead lead = {parcels[p].size_bytes, most_bytes};
        uint64_t count = parcel_count(way, parcels[p].size_bytes, index);
        if (p == rank)
            continue;
        unsigned char *slot =
            half_data(self, rank, round) + slot_offset(way, rank, p) + sizeof(segment_head);
        memcpy(slot, &lead, sizeof lead);
        if (count > 0)
            TRY(copy(way, slot + sizeof lead, source + parcels[p].begin_bytes, count,
                     DEVICE_TO_HOST));
        sent += count;
    }
    TRY(finish(way));
    close_round(way, round, sent);
    for (uint32_t p = 0; p < self->group->world; p++)
        TRY(send_slot(way, round, p,
                      sizeof(exchange_lead) + parcel_count(way, parcels[p].size_bytes, index)));
    return 0;
}

/* *most_bytes becomes the size of the largest parcel that any rank sends to another one. Each rank
 * begins with the one after it, so that they do not all read the same one. */
static int read_parcels(passage *way, uint64_t index, uint64_t *most_bytes)
{
    exchange *self = way->self;
    uint32_t rank = self->group->rank, round = way->first_round + (uint32_t)index;
    unsigned char *target = (unsigned char *)way->parcels->target + index * way->chunk_count;
    for (uint32_t i = 1; i < self->group->world; i++) {
        uint32_t p = (rank + i) % self->group->world;
        rank_parcel *item = &way->parcels->received[p];
        const unsigned char *chunk;
        exchange_lead lead;
        TRY(come_in(way, p, round, &chunk));
        memcpy(&lead, chunk, sizeof lead);
        if (index == 0)
            TRY(commi_check_parcel(way->parcels, p, rank, lead.bytes));
        item->size_bytes = lead.bytes;
        *most_bytes = size_max(*most_bytes, lead.most_bytes);
        uint64_t count = parcel_count(way, lead.bytes, index);
        if (count > 0)
            TRY(copy(way, target + item->begin_bytes, chunk + sizeof lead, count,
                     DEVICE_FROM_HOST));
    }
    TRY(finish(way));
    segment_raise(&self->peers[rank].shared.page->consumed, round);
    progress_note();
    return 0;
}

static int copy_own_parcel(passage *way)
{
    const comm_parcels *parcels = way->parcels;
    uint32_t rank = way->self->group->rank;
    const rank_parcel *own = &parcels->sent[rank];
    TRY(commi_check_parcel(parcels, rank, rank, own->size_bytes));
    parcels->received[rank].size_bytes = own->size_bytes;
    if (own->size_bytes == 0)
        return 0;
    return copy(way, (unsigned char *)parcels->target + parcels->received[rank].begin_bytes,
                (const unsigned char *)parcels->source + own->begin_bytes, own->size_bytes,
                DEVICE_WITHIN);
}

/* The second round follows when the first is read, since that tells whether there is one. From then
 * on a round is published before the one before it is read, as in other collectives. */
static int run_parcels(passage *way)
{
    const comm_parcels *parcels = way->parcels;
    uint32_t rank = way->self->group->rank, world = way->self->group->world;
    uint64_t most_bytes = 0;
    for (uint32_t p = 0; p < world; p++)
        most_bytes = p == rank ? most_bytes : size_max(most_bytes, parcels->sent[p].size_bytes);
    TRY(publish_parcels(way, 0, most_bytes));
    TRY(copy_own_parcel(way));
    TRY(read_parcels(way, 0, &most_bytes));
    uint64_t rounds = size_max(size_div_up(most_bytes, way->chunk_count), 1);
    if (rounds > 1)
        TRY(publish_parcels(way, 1, most_bytes));
    for (uint64_t i = 1; i < rounds; i++) {
        if (i + 1 < rounds)
            TRY(publish_parcels(way, i + 1, most_bytes));
        TRY(read_parcels(way, i, &most_bytes));
    }
    return 0;
}

int exchangei_run_parcels(exchange *self, struct staged *gpu, const comm_parcels *call)
{
    passage way;
    const comm_call named = {.label = call->label};
    begin(&way, self, gpu, EXCHANGE_PARCELS, &named);
    way.parcels = call;
    way.chunk_count = parcels_chunk(self);
    int rc = gpu != NULL ? stagedi_attach(gpu) : 0;
    if (rc == 0)
        rc = self->group->world > 1 ? run_parcels(&way) : copy_own_parcel(&way);
    if (rc == 0)
        rc = finish(&way);
    if (rc < 0 && !commi_is_aborted(self->group))
        return comm_fail(self->group, rc, err_text());
    return rc;
}
