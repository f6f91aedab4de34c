/* The backend nccl: collectives between GPUs on the comm lane's stream. See comm.h.
 *
 *   commi_open_nccl ─► who has which GPU ─► id of rank 0 ─► communicator ─► trial of each one
 *   nccl_all_gather, nccl_reduce_scatter: enqueue, and return when NCCL has (not when the GPU has)
 *   nccl_all_to_all: the ranks tell each other the sizes, through pinned memory, and wait for them;
 *       then it enqueues like the others
 *   nccl_watch: NCCL's errors, a rank that does not come, a failure of the job ─► ncclCommAbort
 *
 * The communicator does not block: a call answers "in progress", and we ask again with pauses
 * between, so that the wait can end when a rank is gone. A collective on the stream whose other
 * ranks are gone runs until ncclCommAbort ends it. nccl_watch or the next bulk call does that, on
 * the thread of the bulk calls, so the communicator is never freed under a call.
 *
 * Sums are NCCL's: in the wire dtype, in the order of its algorithm. They are equal on every run of
 * the same ranks and NCCL, but not bit-equal to the other backends'.
 *
 * Once open, a call allocates nothing of ours. NCCL starts a thread for each communicator. Its
 * memory on the GPU is measured as the loss of free memory while it was opened. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/size.h"
#include "base/thread.h"
#include "comm/comm_internal.h"
#include "comm/nccl_library.h"
#include "tiers/device.h"

enum {
    TRIAL_BYTES = 256 << 10, /* of all ranks' shards, in the larger of the trial collectives */
    CAUSE_NS = 2000000000,   /* how long the hub may need to learn why a rank is gone */
    CAUSE_SLEEP_NS = 1000000,
};

static_assert(TRIAL_BYTES >= 2 * COMM_RANKS_MAX * sizeof(float), "each rank has its elements");

struct nccl_state {
    commi_nccl_library api;
    ncclComm_t handle; /* NULL: not made yet, or given up */
    comm_open_config config;
    device_event *end;   /* after the latest collective */
    int64_t enqueued_ns; /* when that collective was enqueued; 0: none was */
    int64_t said_ns;     /* when the hub was last told of a long wait */
    char label[COMM_LABEL_BYTES];
    /* For an all-to-all: the sizes of parcels for each rank and from each rank, pinned [world]
     * each, and the places of these numbers. NULL without comm_open_config.has_parcels. */
    uint64_t *sizes_sent, *sizes_received;
    rank_parcel *size_places;
};
typedef struct nccl_state nccl_state;

/* ---- failures ---- */

/* Ends what is on the stream and frees the communicator. Its result is ignored: the job has
 * failed. */
static void give_up(nccl_state *state)
{
    if (state->handle)
        (void)state->api.abort(state->handle);
    state->handle = NULL;
}

/* Fails with this thread's text. Returns the job's failure, which may be another one. */
static int fail_here(comm *self, nccl_state *state, int code)
{
    (void)comm_fail(self, code, err_text());
    give_up(state);
    return commi_is_aborted(self) ? commi_abort_error(self) : code;
}

static int fail_with_job(comm *self, nccl_state *state)
{
    give_up(state);
    return commi_abort_error(self);
}

/* NCCL refused or failed. A rank that is gone shows here first, as an error of the network; the hub
 * knows the reason a moment later, so this waits for the hub. */
static int refused(comm *self, nccl_state *state, const char *what, ncclResult_t result)
{
    bool is_peers = result == ncclRemoteError || result == ncclSystemError;
    const char *more = state->handle ? state->api.last_error(state->handle) : NULL;
    int rc =
        err_set(ERR_BACKEND, "%s: %s says %s%s%s", what, state->api.version,
                state->api.error_string(result), more && more[0] ? ": " : "", more ? more : "");
    err_record first;
    err_save(&first, rc);
    for (int64_t waited = 0; is_peers && self->world > 1 && waited < CAUSE_NS;
         waited += CAUSE_SLEEP_NS) {
        if (commi_is_aborted(self))
            return fail_with_job(self, state);
        commi_sleep_ns(CAUSE_SLEEP_NS);
    }
    return fail_here(self, state, err_restore(&first));
}

/* NCCL has needed longer than timeout_ns. With one rank that is a failure; with several the hub
 * knows whether one of them works. */
static int overdue(comm *self, nccl_state *state, const char *what)
{
    char named[COMM_LABEL_BYTES];
    int64_t now_ns = commi_now_ns();
    if (self->world == 1)
        return fail_here(self, state,
                         err_set(-ETIMEDOUT, "%s by NCCL has not ended after %.0f s", what,
                                 (double)commi_timeout_ns(self) * 1e-9));
    if (now_ns - state->said_ns > commi_timeout_ns(self) / 10) {
        state->said_ns = now_ns;
        snprintf(named, sizeof named, "%.80s by NCCL", what);
        commi_say_waiting(self, COMMI_RANK_ANY, named);
    }
    return 0;
}

/* ---- waiting ---- */

/* Waits until NCCL has accepted a call; `result` is what the call returned. */
static int settle(comm *self, nccl_state *state, const char *what, ncclResult_t result)
{
    int64_t begin_ns = commi_now_ns();
    backoff wait = {0};
    while (result == ncclInProgress) {
        if (commi_is_aborted(self))
            return fail_with_job(self, state);
        int64_t waited_ns = commi_now_ns() - begin_ns;
        atomic_store(&self->waits, waited_ns > commi_timeout_ns(self) / 2);
        if (waited_ns > commi_timeout_ns(self))
            TRY(overdue(self, state, what));
        backoff_pause(&wait);
        ncclResult_t asked = state->api.get_async_error(state->handle, &result);
        if (asked != ncclSuccess)
            result = asked;
    }
    atomic_store(&self->waits, false);
    return result == ncclSuccess ? 0 : refused(self, state, what, result);
}

static int nccl_watch(comm *self)
{
    nccl_state *state = self->bulk_state;
    ncclResult_t result = ncclSuccess;
    if (commi_is_aborted(self))
        return fail_with_job(self, state);
    if (!state->handle)
        return err_set(ERR_POISONED, "NCCL's communicator was given up");
    ncclResult_t asked = state->api.get_async_error(state->handle, &result);
    if (asked != ncclSuccess)
        result = asked;
    if (result != ncclSuccess && result != ncclInProgress)
        return refused(self, state, state->label, result);
    /* Collectives are enqueued one after the other, a few ahead. So while one of them does not end,
     * no new one is enqueued for long. */
    int64_t waited_ns = state->enqueued_ns == 0 ? 0 : commi_now_ns() - state->enqueued_ns;
    int is_done = 1;
    if (waited_ns > commi_timeout_ns(self) / 2)
        is_done = device_event_done(state->config.gpu, state->end);
    if (is_done < 0)
        return fail_here(self, state, is_done);
    atomic_store(&self->waits, !is_done);
    if (is_done || waited_ns <= commi_timeout_ns(self))
        return 0;
    return overdue(self, state, state->label);
}

/* Waits until the GPU has completed everything on the stream. */
static int await_stream(comm *self, nccl_state *state)
{
    int is_done = 0;
    backoff wait = {0};
    while (is_done == 0) {
        TRY(nccl_watch(self));
        is_done = device_event_done(state->config.gpu, state->end);
        if (is_done == 0)
            backoff_pause(&wait);
    }
    return is_done < 0 ? fail_here(self, state, is_done) : 0;
}

/* ---- collectives ---- */

/* Notes the enqueued collective for nccl_watch, and counts the bytes that this rank sends. */
static int note_enqueued(comm *self, nccl_state *state, const char *label, uint64_t sent_bytes)
{
    snprintf(state->label, sizeof state->label, "%s", label);
    state->enqueued_ns = commi_now_ns();
    atomic_fetch_add(&self->sent_bytes, sent_bytes);
    int rc = device_record(state->config.gpu, state->end, state->config.stream);
    return rc < 0 ? fail_here(self, state, rc) : 0;
}

static int nccl_all_gather(comm *self, const comm_call *call)
{
    nccl_state *state = self->bulk_state;
    if (!state->handle)
        return nccl_watch(self);
    TRY(settle(self, state, call->label,
               state->api.all_gather(call->source, call->target, call->count, ncclUint8,
                                     state->handle, state->config.stream)));
    return note_enqueued(self, state, call->label, (self->world - 1) * call->count);
}

static int convert(comm *self, nccl_state *state, const void *source, enum dtype source_type,
                   void *target, enum dtype target_type, uint64_t count)
{
    int rc = state->config.convert(state->config.convert_user, state->config.stream, source,
                                   source_type, target, target_type, count);
    return rc < 0 ? fail_here(self, state, rc) : 0;
}

/* Rounds elements [begin, begin + count) of every rank's part of the source into scratch, where the
 * parts lie end to end. */
static int fill_scratch(comm *self, nccl_state *state, const comm_call *call, uint64_t begin,
                        uint64_t count)
{
    const float *source = call->source;
    unsigned char *scratch = call->scratch;
    if (count == call->count)
        return convert(self, state, source, DTYPE_FP32, scratch, call->wire, self->world * count);
    for (uint32_t r = 0; r < self->world; r++)
        TRY(convert(self, state, source + r * call->count + begin, DTYPE_FP32,
                    scratch + r * count * dtype_bytes(call->wire), call->wire, count));
    return 0;
}

/* Runs piece by piece in place within scratch: NCCL puts the sum over this rank's part of it. */
static int reduce_scatter_16_bit(comm *self, nccl_state *state, const comm_call *call)
{
    ncclDataType_t type = call->wire == DTYPE_BF16 ? ncclBfloat16 : ncclFloat16;
    unsigned char *scratch = call->scratch;
    float *target = call->target;
    if (!state->config.convert || !call->scratch || call->scratch_elems == 0)
        return fail_here(self, state,
                         err_set(ERR_INTERNAL, "%s: a wire of %s needs scratch and a conversion",
                                 call->label, dtype_name(call->wire)));
    for (uint64_t begin = 0; begin < call->count; begin += call->scratch_elems) {
        uint64_t count = size_min(call->scratch_elems, call->count - begin);
        unsigned char *part = scratch + self->rank * count * dtype_bytes(call->wire);
        TRY(fill_scratch(self, state, call, begin, count));
        TRY(settle(self, state, call->label,
                   state->api.reduce_scatter(scratch, part, count, type, ncclSum, state->handle,
                                             state->config.stream)));
        TRY(convert(self, state, part, call->wire, target + begin, DTYPE_FP32, count));
    }
    return 0;
}

/* A single rank copies without rounding. */
static int nccl_reduce_scatter(comm *self, const comm_call *call)
{
    nccl_state *state = self->bulk_state;
    bool is_16_bit = call->wire != DTYPE_FP32 && self->world > 1;
    if (!state->handle)
        return nccl_watch(self);
    if (is_16_bit)
        TRY(reduce_scatter_16_bit(self, state, call));
    else
        TRY(settle(self, state, call->label,
                   state->api.reduce_scatter(call->source, call->target, call->count, ncclFloat32,
                                             ncclSum, state->handle, state->config.stream)));
    uint64_t elem_bytes = dtype_bytes(is_16_bit ? call->wire : DTYPE_FP32);
    return note_enqueued(self, state, call->label, (self->world - 1) * call->count * elem_bytes);
}

/* Enqueues all parcels as one group, those of all pairs of ranks at once. */
static int enqueue_parcels(comm *self, nccl_state *state, const comm_parcels *call)
{
    commi_nccl_library *api = &state->api;
    const unsigned char *source = call->source;
    unsigned char *target = call->target;
    ncclResult_t result = api->group_start();
    for (uint32_t r = 0; r < self->world; r++) {
        const rank_parcel *sent = &call->sent[r], *received = &call->received[r];
        if (sent->size_bytes > 0 && result == ncclSuccess)
            result = api->send(source + sent->begin_bytes, sent->size_bytes, ncclUint8, (int)r,
                               state->handle, state->config.stream);
        if (received->size_bytes > 0 && result == ncclSuccess)
            result = api->receive(target + received->begin_bytes, received->size_bytes, ncclUint8,
                                  (int)r, state->handle, state->config.stream);
    }
    ncclResult_t ended = api->group_end();
    return settle(self, state, call->label, result == ncclSuccess ? ended : result);
}

/* Waits until the sizes of all parcels for this rank are known, and puts them in call->received. */
static int share_sizes(comm *self, nccl_state *state, const comm_parcels *call)
{
    const comm_parcels sizes = {.label = call->label,
                                .source = state->sizes_sent,
                                .target = state->sizes_received,
                                .sent = state->size_places,
                                .received = state->size_places};
    for (uint32_t r = 0; r < self->world; r++)
        state->sizes_sent[r] = call->sent[r].size_bytes;
    TRY(enqueue_parcels(self, state, &sizes));
    TRY(note_enqueued(self, state, call->label, 0));
    TRY(await_stream(self, state));
    for (uint32_t r = 0; r < self->world; r++) {
        int rc = commi_check_parcel(call, r, self->rank, state->sizes_received[r]);
        if (rc < 0)
            return fail_here(self, state, rc);
        call->received[r].size_bytes = state->sizes_received[r];
    }
    return 0;
}

static int nccl_all_to_all(comm *self, const comm_parcels *call)
{
    nccl_state *state = self->bulk_state;
    uint64_t sent = 0;
    if (!state->handle)
        return nccl_watch(self);
    assert(state->size_places); /* has_parcels */
    if (!call->sizes_are_known)
        TRY(share_sizes(self, state, call));
    assert(call->sent[self->rank].size_bytes == call->received[self->rank].size_bytes);
    TRY(enqueue_parcels(self, state, call));
    for (uint32_t r = 0; r < self->world; r++)
        sent += r == self->rank ? 0 : call->sent[r].size_bytes;
    return note_enqueued(self, state, call->label, sent);
}

/* Does not wait for a collective on the stream: its other ranks may be gone. */
static void nccl_close(comm *self)
{
    nccl_state *state = self->bulk_state;
    if (state->handle && !commi_is_aborted(self) &&
        device_event_done(state->config.gpu, state->end) == 1 &&
        settle(self, state, "closing NCCL's communicator", state->api.finalize(state->handle)) ==
            0 &&
        state->api.destroy(state->handle) == ncclSuccess)
        state->handle = NULL;
    give_up(state);
    mem_free(state->size_places);
    mem_free(state);
    self->bulk_state = NULL;
}

static const commi_bulk_ops nccl_ops = {
    .all_gather = nccl_all_gather,
    .reduce_scatter = nccl_reduce_scatter,
    .all_to_all = nccl_all_to_all,
    .close = nccl_close,
    .watch = nccl_watch,
};

/* ---- opening ---- */

/* Describes a rank's GPU and NCCL to the other ranks. */
struct presence {
    char pci_bus_id[16];
    int32_t version_code;
};
typedef struct presence presence;

/* Refuses what NCCL cannot do, with the same text on all ranks. */
static int check_presences(comm *self, const presence *all)
{
    for (uint32_t r = 1; r < self->world; r++) {
        const comm_rank *one = &self->ranks[r];
        if (all[r].version_code != all[0].version_code)
            return err_set(
                ERR_CONFIG,
                "rank %u on %s has NCCL of version code %d, rank 0 on %s of %d: all ranks "
                "need the same, or set comm.backend to \"staged\"",
                r, one->host, all[r].version_code, self->ranks[0].host, all[0].version_code);
        for (uint32_t k = 0; k < r; k++)
            if (self->ranks[k].host_idx == one->host_idx &&
                strncmp(all[k].pci_bus_id, all[r].pci_bus_id, sizeof all[k].pci_bus_id) == 0)
                return err_set(
                    ERR_CONFIG,
                    "ranks %u and %u on %s have the same GPU (%.16s), which NCCL refuses: "
                    "start one rank per GPU, or set comm.backend to \"staged\" or \"auto\"",
                    k, r, one->host, all[r].pci_bus_id);
    }
    return 0;
}

static int exchange_presences(comm *self, nccl_state *state)
{
    presence mine = {.version_code = state->api.version_code};
    snprintf(mine.pci_bus_id, sizeof mine.pci_bus_id, "%s",
             device_get_info(state->config.gpu)->pci_bus_id);
    presence *all = mem_alloc(self->world, sizeof *all, "nccl presences");
    if (!all)
        return -ENOMEM;
    int rc = comm_exchange(self, "the ranks' GPUs", &mine, sizeof mine, all);
    if (rc == 0)
        rc = check_presences(self, all);
    mem_free(all);
    return rc;
}

static int make_handle(comm *self, nccl_state *state)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int rc = 0;
    memset(&id, 0, sizeof id);
    if (self->rank == 0) {
        ncclResult_t result = state->api.get_unique_id(&id);
        if (result != ncclSuccess)
            rc = err_set(ERR_BACKEND, "%s makes no id: %s", state->api.version,
                         state->api.error_string(result));
    }
    TRY(comm_agree(self, "NCCL's id", rc));
    TRY(comm_broadcast(self, "NCCL's id", &id, sizeof id));
    config.blocking = 0;
    ncclResult_t result =
        state->api.init_rank(&state->handle, (int)self->world, id, (int)self->rank, &config);
    return settle(self, state, "opening NCCL's communicator", result);
}

/* Pinned memory, which NCCL uses like a GPU's: three parts of TRIAL_BYTES. */
struct trial {
    float *source, *target;
    void *scratch;
};
typedef struct trial trial;

/* The sum for element i. One rank contributes all of it, so it is exact in every dtype. */
static float trial_sum(const comm *self, uint64_t elem)
{
    return (float)(elem % self->world % 100 + 1);
}

static int try_all_gather(comm *self, nccl_state *state, const trial *memory, uint64_t count)
{
    unsigned char *source = (void *)memory->source, *target = (void *)memory->target;
    memset(source, (int)(self->rank % 251 + 1), count);
    TRY(nccl_all_gather(self, &(comm_call){.label = "a first all-gather",
                                           .source = source,
                                           .target = target,
                                           .count = count}));
    TRY(await_stream(self, state));
    for (uint64_t i = 0; i < self->world * count; i++)
        if (target[i] != i / count % 251 + 1)
            return fail_here(self, state,
                             err_set(ERR_BACKEND, "%s: byte %llu of a first all-gather is wrong",
                                     state->api.version, (unsigned long long)i));
    return 0;
}

static int try_reduce_scatter(comm *self, nccl_state *state, const trial *memory, uint64_t count,
                              enum dtype wire)
{
    for (uint64_t i = 0; i < self->world * count; i++)
        memory->source[i] = i % self->world == self->rank ? trial_sum(self, i) : 0.0f;
    TRY(nccl_reduce_scatter(self, &(comm_call){.label = "a first reduce-scatter",
                                               .source = memory->source,
                                               .target = memory->target,
                                               .count = count,
                                               .wire = wire,
                                               .scratch = memory->scratch,
                                               .scratch_elems = count}));
    /* note_enqueued has recorded behind the last conversion. */
    TRY(await_stream(self, state));
    for (uint64_t i = 0; i < count; i++)
        if (memory->target[i] != trial_sum(self, self->rank * count + i))
            return fail_here(self, state,
                             err_set(ERR_BACKEND,
                                     "%s: element %llu of a first reduce-scatter in %s is wrong",
                                     state->api.version, (unsigned long long)i, dtype_name(wire)));
    return 0;
}

/* Rank r sends rank p `count` bytes, and one less if r + p is odd. */
static int try_all_to_all(comm *self, nccl_state *state, const trial *memory, uint64_t count)
{
    unsigned char *target = (void *)memory->target;
    rank_parcel *sent = mem_alloc(2 * (uint64_t)self->world, sizeof *sent, "nccl parcels");
    if (!sent)
        return fail_here(self, state, -ENOMEM);
    rank_parcel *received = sent + self->world;
    int rc = 0;
    memset(memory->source, (int)(self->rank % 251 + 1), self->world * count);
    for (uint32_t r = 0; r < self->world; r++) {
        sent[r] = (rank_parcel){r * count, count - (r + self->rank) % 2};
        received[r] = (rank_parcel){r * count, count};
    }
    TRY_GOTO(rc,
             nccl_all_to_all(self, &(comm_parcels){.label = "a first all-to-all",
                                                   .source = memory->source,
                                                   .target = target,
                                                   .sent = sent,
                                                   .received = received}),
             done);
    TRY_GOTO(rc, await_stream(self, state), done);
    for (uint32_t r = 0; r < self->world && rc == 0; r++)
        for (uint64_t i = 0; i < received[r].size_bytes && rc == 0; i++)
            if (received[r].size_bytes != sent[r].size_bytes ||
                target[r * count + i] != r % 251 + 1)
                rc = fail_here(self, state,
                               err_set(ERR_BACKEND,
                                       "%s: byte %llu from rank %u in a first all-to-all is wrong",
                                       state->api.version, (unsigned long long)i, r));
done:
    mem_free(sent);
    return rc;
}

/* Memory for the sizes of parcels. */
static int make_sizes(comm *self, nccl_state *state)
{
    void *memory;
    TRY(device_alloc_pinned(state->config.gpu, 2 * self->world * sizeof(uint64_t), &memory));
    state->sizes_sent = memory;
    state->sizes_received = state->sizes_sent + self->world;
    state->size_places = mem_alloc(self->world, sizeof *state->size_places, "nccl parcels");
    if (!state->size_places)
        return -ENOMEM;
    for (uint32_t r = 0; r < self->world; r++)
        state->size_places[r] = (rank_parcel){r * sizeof(uint64_t), sizeof(uint64_t)};
    return 0;
}

/* NCCL connects the ranks and loads its kernels at the first collective of a kind and size. */
static int try_collectives(comm *self, nccl_state *state)
{
    uint64_t most = TRIAL_BYTES / sizeof(float) / self->world;
    const uint64_t counts[] = {2, most};
    void *memory;
    TRY(device_alloc_pinned(state->config.gpu, 3 * (uint64_t)TRIAL_BYTES, &memory));
    trial parts = {memory, (float *)memory + TRIAL_BYTES / sizeof(float),
                   (char *)memory + 2 * (size_t)TRIAL_BYTES};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        TRY(try_all_gather(self, state, &parts, counts[i] * sizeof(float)));
        TRY(try_reduce_scatter(self, state, &parts, counts[i], DTYPE_FP32));
        for (int wire = DTYPE_BF16; state->config.convert && wire <= DTYPE_FP16; wire++)
            TRY(try_reduce_scatter(self, state, &parts, counts[i], (enum dtype)wire));
        if (state->size_places)
            TRY(try_all_to_all(self, state, &parts, counts[i] * sizeof(float)));
    }
    return 0;
}

/* All ranks run this together; each refusal is the same on all of them. */
static int open_parts(comm *self, nccl_state *state)
{
    uint64_t before = 0, after = 0;
    int rc = commi_nccl_load(&state->api);
    if (rc == 0 && (!state->config.gpu || !state->config.stream))
        rc = err_set(ERR_INTERNAL, "the backend nccl needs a GPU and its comm lane's stream");
    if (rc == 0)
        rc = device_event_create(state->config.gpu, false, &state->end);
    if (rc == 0 && state->config.has_parcels)
        rc = make_sizes(self, state);
    if (rc == 0)
        rc = device_free_bytes(state->config.gpu, &before);
    TRY(comm_agree(self, "loading NCCL", rc));
    TRY(exchange_presences(self, state));
    TRY(make_handle(self, state));
    TRY(try_collectives(self, state));
    TRY(device_free_bytes(state->config.gpu, &after));
    atomic_store(&self->held_bytes, before - size_min(before, after) + 3 * (uint64_t)TRIAL_BYTES);
    atomic_store(&self->sent_bytes, 0); /* count only the program's collectives */
    return 0;
}

int comm_nccl_check(void)
{
    commi_nccl_library api;
    return commi_nccl_load(&api);
}

int commi_open_nccl(comm *self, const comm_open_config *config)
{
    nccl_state *state = mem_alloc(1, sizeof *state, "nccl");
    if (!state)
        return -ENOMEM;
    state->config = *config;
    self->bulk_state = state;
    int rc = open_parts(self, state);
    if (rc < 0) {
        err_record first;
        err_save(&first, rc);
        give_up(state);
        mem_free(state->size_places);
        mem_free(state);
        self->bulk_state = NULL;
        return err_restore(&first);
    }
    self->bulk = &nccl_ops;
    return 0;
}
