/* See fake_nccl.h. It is compiled with the headers of CUDA and NCCL, like src/comm/nccl.c. */
#include "fake_nccl.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/dtype.h"
#include "base/size.h"
#include "comm/nccl_library.h"
#include "tests/simulated_gpu/simulated_gpu.h"

struct fake_nccl fake_nccl;

/* Never freed: a stream may look at it after it was aborted. */
struct ncclComm {
    uint32_t world, rank;
    uint32_t questions_left;
    atomic_bool is_aborted;
    void *held; /* the GPU's memory, while the handle lives */
};

struct parcel {
    unsigned char *data; /* of a send it is only read */
    size_t bytes;
};

/* The sends and receives of a group, by rank; of none: 0 bytes. */
struct group {
    struct parcel sent[FAKE_NCCL_RANKS], received[FAKE_NCCL_RANKS];
};

/* The calls of this thread since group_start. */
static struct {
    struct group group;
    struct ncclComm *handle; /* NULL: no call yet */
    cudaStream_t stream;
    bool is_open;
} pending;

static struct {
    struct ncclComm *handle;
    cudaStream_t stream;
} last; /* that a collective was enqueued with */

/* A collective on a stream. */
struct collective {
    struct ncclComm *handle;
    const unsigned char *source;
    unsigned char *target;
    size_t count; /* of a shard */
    ncclDataType_t type;
    bool is_sum;
    bool is_group;
    struct group group;
};

static size_t type_bytes(ncclDataType_t type)
{
    return type == ncclUint8 ? 1 : type == ncclFloat32 ? 4 : 2;
}

/* ---- on the stream's thread ---- */

/* False: aborted. */
static bool meet(struct ncclComm *handle)
{
    struct fake_nccl_shared *shared = fake_nccl.shared;
    uint32_t generation = atomic_load(&shared->generation);
    if (atomic_fetch_add(&shared->arrived_count, 1) + 1 == handle->world) {
        atomic_store(&shared->arrived_count, 0);
        atomic_store(&shared->generation, generation + 1);
    }
    while (atomic_load(&shared->generation) == generation) {
        if (atomic_load(&handle->is_aborted))
            return false;
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    return true;
}

static bool gather(const struct collective *self)
{
    struct fake_nccl_shared *shared = fake_nccl.shared;
    for (size_t at = 0; at < self->count; at += FAKE_NCCL_PIECE_BYTES) {
        size_t bytes = size_min(FAKE_NCCL_PIECE_BYTES, self->count - at);
        memcpy(shared->pieces[self->handle->rank], self->source + at, bytes);
        if (!meet(self->handle))
            return false;
        for (uint32_t r = 0; r < self->handle->world; r++)
            memcpy(self->target + r * self->count + at, shared->pieces[r], bytes);
        if (!meet(self->handle))
            return false;
    }
    return true;
}

static float load(const unsigned char *from, size_t i, ncclDataType_t type)
{
    float wide;
    uint16_t half;
    if (type == ncclFloat32) {
        memcpy(&wide, from + 4 * i, 4);
        return wide;
    }
    memcpy(&half, from + 2 * i, 2);
    return type == ncclBfloat16 ? fp32_from_bf16(half) : fp32_from_fp16(half);
}

static void store(unsigned char *to, size_t i, ncclDataType_t type, float value)
{
    if (type == ncclFloat32) {
        memcpy(to + 4 * i, &value, 4);
        return;
    }
    uint16_t half = type == ncclBfloat16 ? bf16_from_fp32(value) : fp16_from_fp32(value);
    memcpy(to + 2 * i, &half, 2);
}

static void add_pieces(const struct collective *self, size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float sum = load(fake_nccl.shared->pieces[0], i, self->type);
        for (uint32_t r = 1; r < self->handle->world; r++)
            sum += load(fake_nccl.shared->pieces[r], i, self->type);
        store(self->target, first + i, self->type, sum);
    }
}

static bool reduce(const struct collective *self)
{
    size_t bytes = type_bytes(self->type), most = FAKE_NCCL_PIECE_BYTES / bytes;
    for (uint32_t to = 0; to < self->handle->world; to++)
        for (size_t at = 0; at < self->count; at += most) {
            size_t count = size_min(most, self->count - at);
            memcpy(fake_nccl.shared->pieces[self->handle->rank],
                   self->source + (to * self->count + at) * bytes, count * bytes);
            if (!meet(self->handle))
                return false;
            if (to == self->handle->rank)
                add_pieces(self, at, count);
            if (!meet(self->handle))
                return false;
        }
    return true;
}

static void check_lengths(const struct collective *self)
{
    for (uint32_t r = 0; r < self->handle->world; r++) {
        uint64_t sent = fake_nccl.shared->sent_bytes[r][self->handle->rank];
        if (sent == self->group.received[r].bytes)
            continue;
        fprintf(stderr, "fake_nccl: rank %u sends %llu bytes to rank %u, which receives %zu\n", r,
                (unsigned long long)sent, self->handle->rank, self->group.received[r].bytes);
        abort();
    }
}

/* All ranks send to rank `to`, which takes what they send, piece by piece. */
static bool send_to(const struct collective *self, uint32_t to)
{
    struct fake_nccl_shared *shared = fake_nccl.shared;
    const struct group *group = &self->group;
    uint32_t rank = self->handle->rank, world = self->handle->world;
    uint64_t most = 0;
    for (uint32_t r = 0; r < world; r++)
        most = size_max(most, shared->sent_bytes[r][to]);
    for (uint64_t at = 0; at < most; at += FAKE_NCCL_PIECE_BYTES) {
        if (at < group->sent[to].bytes)
            memcpy(shared->pieces[rank], group->sent[to].data + at,
                   size_min(FAKE_NCCL_PIECE_BYTES, group->sent[to].bytes - at));
        if (!meet(self->handle))
            return false;
        for (uint32_t r = 0; r < world && rank == to; r++)
            if (at < group->received[r].bytes)
                memcpy(group->received[r].data + at, shared->pieces[r],
                       size_min(FAKE_NCCL_PIECE_BYTES, group->received[r].bytes - at));
        if (!meet(self->handle))
            return false;
    }
    return true;
}

static bool run_group(const struct collective *self)
{
    struct fake_nccl_shared *shared = fake_nccl.shared;
    for (uint32_t r = 0; r < self->handle->world; r++)
        shared->sent_bytes[self->handle->rank][r] = self->group.sent[r].bytes;
    if (!meet(self->handle))
        return false;
    check_lengths(self);
    for (uint32_t to = 0; to < self->handle->world; to++)
        if (!send_to(self, to))
            return false;
    return meet(self->handle); /* all have read the lengths */
}

static void run(void *user)
{
    const struct collective *self = user;
    if (self->is_group)
        (void)run_group(self);
    else if (self->handle->world == 1)
        memcpy(self->target, self->source, self->count * type_bytes(self->type));
    else
        (void)(self->is_sum ? reduce(self) : gather(self));
}

/* ---- NCCL's calls ---- */

static ncclResult_t begin(struct ncclComm *handle)
{
    handle->questions_left = fake_nccl.questions;
    return fake_nccl.questions > 0 ? ncclInProgress : ncclSuccess;
}

static ncclResult_t enqueue(struct collective item, size_t source_bytes, size_t target_bytes,
                            cudaStream_t stream)
{
    if (fake_nccl.refusal != 0) {
        ncclResult_t result = (ncclResult_t)fake_nccl.refusal;
        fake_nccl.refusal = 0;
        return result;
    }
    if (item.handle->questions_left > 0) /* a call before it was not awaited */
        return ncclInvalidUsage;
    if (!simulated_gpu_may_touch(item.source, source_bytes) ||
        !simulated_gpu_may_touch(item.target, target_bytes))
        return ncclInvalidArgument;
    struct collective *made = malloc(sizeof *made);
    *made = item;
    if (simulated_gpu_enqueue(stream, "fake_nccl", run, free, made) != cudaSuccess)
        return ncclUnhandledCudaError;
    fake_nccl.collective_count++;
    last.handle = item.handle;
    last.stream = stream;
    return begin(item.handle);
}

static ncclResult_t all_gather(const void *source, void *target, size_t count, ncclDataType_t type,
                               ncclComm_t handle, cudaStream_t stream)
{
    struct collective item = {
        .handle = handle, .source = source, .target = target, .count = count, .type = type};
    return type != ncclUint8 ? ncclInvalidArgument
                             : enqueue(item, count, handle->world * count, stream);
}

static ncclResult_t reduce_scatter(const void *source, void *target, size_t count,
                                   ncclDataType_t type, ncclRedOp_t kind, ncclComm_t handle,
                                   cudaStream_t stream)
{
    struct collective item = {.handle = handle,
                              .source = source,
                              .target = target,
                              .count = count,
                              .type = type,
                              .is_sum = true};
    size_t bytes = count * type_bytes(type);
    return kind != ncclSum ? ncclInvalidArgument
                           : enqueue(item, handle->world * bytes, bytes, stream);
}

/* A send or a receive within a group. */
static ncclResult_t join_group(struct parcel parcels[FAKE_NCCL_RANKS], struct parcel one,
                               ncclDataType_t type, int rank, ncclComm_t handle,
                               cudaStream_t stream)
{
    if (!pending.is_open || handle->questions_left > 0 ||
        (pending.handle && (pending.handle != handle || pending.stream != stream)))
        return ncclInvalidUsage;
    if (type != ncclUint8 || rank < 0 || (uint32_t)rank >= handle->world ||
        !simulated_gpu_may_touch(one.data, one.bytes))
        return ncclInvalidArgument;
    pending.handle = handle;
    pending.stream = stream;
    parcels[rank] = one;
    return ncclSuccess;
}

static ncclResult_t send_one(const void *source, size_t count, ncclDataType_t type, int rank,
                             ncclComm_t handle, cudaStream_t stream)
{
    struct parcel one = {(unsigned char *)(uintptr_t)source, count};
    return join_group(pending.group.sent, one, type, rank, handle, stream);
}

static ncclResult_t receive_one(void *target, size_t count, ncclDataType_t type, int rank,
                                ncclComm_t handle, cudaStream_t stream)
{
    struct parcel one = {target, count};
    return join_group(pending.group.received, one, type, rank, handle, stream);
}

static ncclResult_t group_start(void)
{
    if (pending.is_open)
        return ncclInvalidUsage;
    memset(&pending, 0, sizeof pending);
    pending.is_open = true;
    return ncclSuccess;
}

/* Ends the process if the group is the one for that: the rows of an all-to-all. The ranks have told
 * each other their sizes in the group before. */
static void die_before_rows(const struct ncclComm *handle)
{
    static bool follows_sizes;
    bool is_after_sizes = follows_sizes;
    follows_sizes = true;
    for (uint32_t r = 0; r < handle->world; r++)
        follows_sizes = follows_sizes && pending.group.sent[r].bytes == sizeof(uint64_t);
    if (is_after_sizes && fake_nccl.deadly_rows > 0 && --fake_nccl.deadly_rows == 0)
        (void)raise(SIGKILL);
}

/* A rank without sends and receives takes part too, with the handle that it used last. */
static ncclResult_t group_end(void)
{
    struct collective item = {.handle = pending.handle ? pending.handle : last.handle,
                              .is_group = true,
                              .group = pending.group};
    if (!pending.is_open)
        return ncclInvalidUsage;
    pending.is_open = false;
    die_before_rows(item.handle);
    return enqueue(item, 0, 0, pending.handle ? pending.stream : last.stream);
}

static ncclResult_t get_version(int *version)
{
    *version = fake_nccl.version_code ? fake_nccl.version_code : 22809;
    return ncclSuccess;
}

static ncclResult_t get_unique_id(ncclUniqueId *id)
{
    memset(id, 0x5a, sizeof *id);
    return ncclSuccess;
}

static ncclResult_t init_rank(ncclComm_t *out, int world, ncclUniqueId id, int rank,
                              ncclConfig_t *config)
{
    if (id.internal[NCCL_UNIQUE_ID_BYTES - 1] != 0x5a || config->blocking != 0 ||
        world > FAKE_NCCL_RANKS)
        return ncclInvalidArgument;
    struct ncclComm *made = calloc(1, sizeof *made);
    made->world = (uint32_t)world;
    made->rank = (uint32_t)rank;
    if (fake_nccl.held_bytes > 0 && cudaMalloc(&made->held, fake_nccl.held_bytes) != cudaSuccess)
        return ncclUnhandledCudaError;
    fake_nccl.live_handle_count++;
    *out = made;
    return begin(made);
}

static ncclResult_t finalize(ncclComm_t handle)
{
    return begin(handle);
}

static ncclResult_t destroy(ncclComm_t handle)
{
    fake_nccl.live_handle_count--;
    (void)cudaFree(handle->held);
    return handle->questions_left > 0 ? ncclInvalidUsage : ncclSuccess;
}

static ncclResult_t abort_all(ncclComm_t handle)
{
    atomic_store(&handle->is_aborted, true);
    fake_nccl.live_handle_count--;
    (void)cudaFree(handle->held);
    fake_nccl.abort_count++;
    return ncclSuccess;
}

static ncclResult_t get_async_error(ncclComm_t handle, ncclResult_t *result)
{
    *result = ncclSuccess;
    if (fake_nccl.failure != 0)
        *result = (ncclResult_t)fake_nccl.failure;
    else if (handle->questions_left > 0 && --handle->questions_left > 0)
        *result = ncclInProgress;
    return ncclSuccess;
}

static const char *error_string(ncclResult_t result)
{
    return result == ncclInternalError  ? "internal error"
           : result == ncclRemoteError  ? "remote process exited"
           : result == ncclInvalidUsage ? "invalid usage"
                                        : "another error";
}

static const char *last_error(ncclComm_t handle)
{
    return "as the fake was told";
}

int commi_nccl_load(commi_nccl_library *api)
{
    if (fake_nccl.is_absent)
        return err_set(ERR_BACKEND, "NCCL cannot be loaded: there is no fake");
    *api = (commi_nccl_library){
        get_version,     get_unique_id, init_rank,  finalize,   destroy,        abort_all,
        get_async_error, error_string,  last_error, all_gather, reduce_scatter, send_one,
        receive_one,     group_start,   group_end,  0,          "NCCL (fake)"};
    return get_version(&api->version_code) == ncclSuccess ? 0 : ERR_BACKEND;
}
