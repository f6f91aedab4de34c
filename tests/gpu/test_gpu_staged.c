/* Collectives of a GPU's memory through the host (src/comm, backend staged): ranks that share one
 * GPU, against a serial sum by memcmp. */
#include <errno.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tests/comm/comm_fixture.h"
#include "tests/unit.h"
#include "tiers/device.h"

enum { COUNT_MAX = 30000, UNTOUCHED = 999 };
static const uint64_t counts[] = {0, 4, 1000, 4096, 30000};
static uint64_t seed = 1;

struct rig {
    device *gpu;
    device_stream *stream;
    float *source, *target; /* [world * COUNT_MAX], the GPU's */
    float *host;            /* as much */
};
typedef struct rig rig;

static float value_of(uint32_t rank, uint64_t i)
{
    return (float)(int32_t)rng_u64(seed, rank, i) * 0x1p-28f;
}

static float rounded(float value, enum dtype wire)
{
    if (wire == DTYPE_BF16)
        return fp32_from_bf16(bf16_from_fp32(value));
    return wire == DTYPE_FP16 ? fp32_from_fp16(fp16_from_fp32(value)) : value;
}

static int move(rig *on, float *target, const float *source, uint64_t count,
                enum device_direction direction)
{
    if (count > 0)
        TRY(device_copy(on->gpu, on->stream, target, source, count * sizeof(float), direction));
    return device_synchronize(on->gpu, on->stream);
}

static int check(comm *self, rig *on, uint64_t count, enum dtype wire, bool is_gather)
{
    uint32_t world = comm_get_world(self), rank = comm_get_rank(self);
    uint64_t source_count = is_gather ? count : world * count;
    uint64_t target_count = is_gather ? world * count : count;
    for (uint64_t i = 0; i < source_count; i++)
        on->host[i] = value_of(rank, i);
    TRY(move(on, on->source, on->host, source_count, DEVICE_FROM_HOST));
    comm_call call = {.label = "a collective of the test", .source = on->source};
    call.target = on->target;
    call.count = is_gather ? count * sizeof(float) : count;
    call.wire = wire;
    TRY(is_gather ? comm_all_gather(self, &call) : comm_reduce_scatter(self, &call));
    TRY(move(on, on->host, on->target, target_count, DEVICE_TO_HOST));
    for (uint64_t i = 0; i < target_count; i++) {
        float expected = is_gather    ? value_of((uint32_t)(i / count), i % count)
                         : world == 1 ? value_of(0, i)
                                      : rounded(value_of(0, rank * count + i), wire);
        for (uint32_t p = 1; !is_gather && p < world; p++)
            expected += rounded(value_of(p, rank * count + i), wire);
        if (memcmp(&expected, &on->host[i], sizeof expected) != 0)
            return err_set(ERR_INTERNAL, "rank %u of %u, %llu as %s: element %llu is %a, not %a",
                           rank, world, (unsigned long long)count, dtype_name(wire),
                           (unsigned long long)i, (double)on->host[i], (double)expected);
    }
    return 0;
}

/* Rank r sends rank p the elements from p on, (r + 2p) % 3 thirds of `count`. */
static int check_parcels(comm *self, rig *on, uint64_t count)
{
    uint32_t world = comm_get_world(self), rank = comm_get_rank(self);
    rank_parcel sent[3], received[3];
    for (uint32_t p = 0; p < world; p++) {
        sent[p] =
            (rank_parcel){p * sizeof(float), count / 3 * ((rank + 2 * p) % 3) * sizeof(float)};
        received[p] = (rank_parcel){p * count * sizeof(float), count * sizeof(float)};
    }
    for (uint64_t i = 0; i < world * count; i++)
        on->host[i] = UNTOUCHED;
    TRY(move(on, on->target, on->host, world * count, DEVICE_FROM_HOST));
    for (uint64_t i = 0; i < count + world; i++)
        on->host[i] = value_of(rank, i);
    TRY(move(on, on->source, on->host, count + world, DEVICE_FROM_HOST));
    TRY(comm_all_to_all(self, &(comm_parcels){.label = "rows of the test",
                                              .source = on->source,
                                              .target = on->target,
                                              .sent = sent,
                                              .received = received}));
    TRY(move(on, on->host, on->target, world * count, DEVICE_TO_HOST));
    for (uint32_t p = 0; p < world; p++) {
        uint64_t elems = count / 3 * ((p + 2 * rank) % 3);
        if (received[p].size_bytes != elems * sizeof(float))
            return err_set(ERR_INTERNAL, "rank %u has %llu bytes of rank %u", rank,
                           (unsigned long long)received[p].size_bytes, p);
        for (uint64_t i = 0; i < count; i++)
            if (on->host[p * count + i] != (i < elems ? value_of(p, i + rank) : UNTOUCHED))
                return err_set(ERR_INTERNAL, "rank %u: element %llu of rank %u is wrong", rank,
                               (unsigned long long)i, p);
    }
    return 0;
}

static int staged_body(comm *self, void *user)
{
    const uint64_t *staging_bytes = user;
    rig on = {0};
    uint64_t elems = (uint64_t)comm_get_world(self) * COUNT_MAX;
    unsigned char *base;
    TRY(device_open(0, &on.gpu));
    TRY(device_reserve(on.gpu, 2 * elems * sizeof(float), &base));
    TRY(device_stream_create(on.gpu, false, &on.stream));
    on.source = (float *)(void *)base;
    on.target = on.source + elems;
    on.host = mem_alloc(elems, sizeof(float), "test");
    if (on.host == NULL)
        return -ENOMEM;
    comm_open_config config = {.backend = COMM_STAGED, .gpu = on.gpu};
    config.staging_bytes = *staging_bytes;
    TRY(comm_open(self, &config));
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        TRY(check(self, &on, counts[c], DTYPE_FP32, true));
        TRY(check_parcels(self, &on, counts[c] < COUNT_MAX ? counts[c] : COUNT_MAX - 3));
        for (enum dtype wire = DTYPE_FP32; wire < DTYPE_COUNT; wire++)
            TRY(check(self, &on, counts[c], wire, false));
    }
    return 0; /* the device ends with the process, after the comm that uses it */
}

static void ranks_share_a_gpu(void **state)
{
    static const uint64_t stagings[] = {0, 60000};
    for (uint32_t world = 1; world <= 3; world++) {
        for (int s = 0; s < 2; s++) {
            uint64_t staging_bytes = stagings[s];
            comm_fixture run = {.world = world};
            comm_fixture_run(&run, staged_body, &staging_bytes);
            comm_fixture_expect_ok(&run);
        }
    }
}

static int count_gpus(comm *self, void *user)
{
    char text[DEVICE_TEXT_BYTES];
    *(uint32_t *)user = device_count(text); /* in a child: CUDA does not survive a fork */
    return 0;
}

int main(void)
{
    seed = unit_seed(1);
    uint32_t *gpus = comm_fixture_shared(4096);
    comm_fixture run = {.world = 1};
    comm_fixture_run(&run, count_gpus, gpus);
    if (*gpus == 0) {
        puts("skipped: there is no GPU");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_share_a_gpu)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
