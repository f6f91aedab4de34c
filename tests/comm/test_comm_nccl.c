/* The backend nccl (src/comm/nccl.c). On the simulated GPU with tests/fake_nccl, ranks being
 * processes on hosts of different names; on a real GPU with the NCCL that is there, one rank.
 * Instances: one (a world of one rank), ranks (values, refusals), failures (simulated alone). */
#include <errno.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/ops.h"
#include "tests/comm/comm_fixture.h"
#include "tests/unit.h"
#include "tiers/device.h"

#ifdef SLUICE_SIMULATED_GPU
#include "tests/fake_nccl/fake_nccl.h"
#endif

enum { ELEMS = 5000, UNTOUCHED = 999, NO_GPU = -20000 };

/* A rank's GPU objects. They are made in its process, since CUDA does not survive a fork. */
struct rank_rig {
    device *gpu;
    device_stream *stream;
    kernel_context *context;
    unsigned char *base; /* of the GPU: source, target, scratch */
    float *host;         /* [world * ELEMS], pinned */
};
typedef struct rank_rig rank_rig;

static int convert(void *user, void *stream, const void *source, enum dtype source_type,
                   void *target, enum dtype target_type, uint64_t count)
{
    return kernels_cuda()->convert(user, stream, source, source_type, target, target_type, count);
}

static int open_nccl(comm *self, const rank_rig *rig)
{
    return comm_open(self, &(comm_open_config){.backend = COMM_NCCL,
                                               .gpu = rig->gpu,
                                               .stream = rig->stream,
                                               .convert = convert,
                                               .convert_user = rig->context,
                                               .has_parcels = true});
}

static uint64_t part_bytes(const comm *self)
{
    return comm_get_world(self) * ELEMS * sizeof(float);
}

static int open_rig(const comm *self, rank_rig *rig)
{
    char text[DEVICE_TEXT_BYTES];
    void *host;
    memset(rig, 0, sizeof *rig);
    if (device_count(text) == 0)
        return err_set(NO_GPU, "%s", text);
    if (comm_nccl_check() < 0)
        return err_set(NO_GPU, "%s", err_text());
    TRY(device_open(0, &rig->gpu));
    TRY(device_reserve(rig->gpu, 3 * part_bytes(self), &rig->base));
    TRY(device_alloc_pinned(rig->gpu, part_bytes(self), &host));
    rig->host = host;
    TRY(device_stream_create(rig->gpu, true, &rig->stream));
    return kernels_cuda()->context_create(&(kernel_context_config){.device_idx = 0}, &rig->context);
}

static void close_rig(rank_rig *rig)
{
    kernels_cuda()->context_destroy(rig->context);
    device_close(rig->gpu);
}

/* ---- values ---- */

/* Rank r's element i: a small number, so that sums are exact in every dtype. */
static float value_of(uint32_t r, uint64_t i)
{
    return (float)((i * 7 + r * 13) % 17) - 8.0f;
}

static int move(const rank_rig *rig, void *target, const void *source, uint64_t bytes,
                enum device_direction direction)
{
    TRY(device_copy(rig->gpu, rig->stream, target, source, bytes, direction));
    return device_synchronize(rig->gpu, rig->stream);
}

static int check_gather(comm *self, const rank_rig *rig)
{
    uint32_t world = comm_get_world(self), own = comm_get_rank(self);
    uint64_t sent = comm_sent_bytes(self), bytes = ELEMS * sizeof(float) - 3;
    unsigned char *target = rig->base + part_bytes(self), *got = (void *)rig->host;
    for (uint64_t i = 0; i < ELEMS; i++)
        rig->host[i] = value_of(own, i);
    TRY(move(rig, rig->base, rig->host, bytes, DEVICE_FROM_HOST));
    TRY(comm_all_gather(self, &(comm_call){.label = "all-gather of block.3",
                                           .source = rig->base,
                                           .target = target,
                                           .count = bytes}));
    TRY(move(rig, rig->host, target, world * bytes, DEVICE_TO_HOST));
    for (uint32_t r = 0; r < world; r++)
        for (uint64_t i = 0; i < bytes / sizeof(float); i++) {
            float value;
            memcpy(&value, got + r * bytes + i * sizeof value, sizeof value);
            if (value != value_of(r, i))
                return err_set(ERR_INTERNAL, "rank %u: element %llu of rank %u is %g", own,
                               (unsigned long long)i, r, (double)value);
        }
    if (comm_sent_bytes(self) - sent != (world - 1) * bytes)
        return err_set(ERR_INTERNAL, "sent_bytes counts %llu",
                       (unsigned long long)(comm_sent_bytes(self) - sent));
    return comm_watch(self);
}

/* In pieces of `scratch_elems` of each rank. */
static int check_sums(comm *self, const rank_rig *rig, enum dtype wire, uint64_t scratch_elems)
{
    uint32_t world = comm_get_world(self), own = comm_get_rank(self);
    uint64_t sent = comm_sent_bytes(self);
    unsigned char *target = rig->base + part_bytes(self), *scratch = target + part_bytes(self);
    for (uint64_t i = 0; i < world * ELEMS; i++) /* alone nothing is rounded */
        rig->host[i] = world == 1 ? 0.1f * (float)i : value_of(own, i);
    TRY(move(rig, rig->base, rig->host, part_bytes(self), DEVICE_FROM_HOST));
    TRY(comm_reduce_scatter(self, &(comm_call){.label = "reduce-scatter of block.3",
                                               .source = rig->base,
                                               .target = target,
                                               .count = ELEMS,
                                               .wire = wire,
                                               .scratch = wire == DTYPE_FP32 ? NULL : scratch,
                                               .scratch_elems = scratch_elems}));
    TRY(move(rig, rig->host, target, ELEMS * sizeof(float), DEVICE_TO_HOST));
    for (uint64_t i = 0; i < ELEMS; i++) {
        float sum = world == 1 ? 0.1f * (float)i : 0.0f;
        for (uint32_t r = 0; world > 1 && r < world; r++)
            sum += value_of(r, own * ELEMS + i);
        if (rig->host[i] != sum)
            return err_set(ERR_INTERNAL, "rank %u, %s: element %llu is %g instead of %g", own,
                           dtype_name(wire), (unsigned long long)i, (double)rig->host[i],
                           (double)sum);
    }
    if (comm_sent_bytes(self) - sent != (world - 1) * ELEMS * dtype_bytes(wire))
        return err_set(ERR_INTERNAL, "sent_bytes counts %llu",
                       (unsigned long long)(comm_sent_bytes(self) - sent));
    return 0;
}

/* Elements that rank `from` sends to rank `to`. */
static uint64_t parcel_elems(uint32_t from, uint32_t to)
{
    return (from + to) % 3 == 1 ? 0 : ELEMS - 7 * from - to;
}

/* Exchanges the ranks' parcels, of sizes that the receivers know, or of others. Before that the
 * target is full of UNTOUCHED. */
static int exchange_parcels(comm *self, const rank_rig *rig, bool are_known, rank_parcel sent[4],
                            rank_parcel received[4])
{
    uint32_t world = comm_get_world(self), own = comm_get_rank(self);
    uint64_t part = ELEMS * sizeof(float);
    unsigned char *target = rig->base + part_bytes(self);
    for (uint64_t i = 0; i < world * ELEMS; i++)
        rig->host[i] = UNTOUCHED;
    TRY(move(rig, target, rig->host, part_bytes(self), DEVICE_FROM_HOST));
    for (uint32_t p = 0; p < world; p++) {
        sent[p] = (rank_parcel){p * part, parcel_elems(own, p) * sizeof(float)};
        received[p] =
            (rank_parcel){p * part, are_known ? parcel_elems(p, own) * sizeof(float) : part};
        for (uint64_t i = 0; i < ELEMS; i++)
            rig->host[p * ELEMS + i] = value_of(own, i + p);
    }
    TRY(move(rig, rig->base, rig->host, part_bytes(self), DEVICE_FROM_HOST));
    return comm_all_to_all(self, &(comm_parcels){.label = "rows of block.3",
                                                 .source = rig->base,
                                                 .target = target,
                                                 .sent = sent,
                                                 .received = received,
                                                 .sizes_are_known = are_known});
}

static int check_parcels(comm *self, const rank_rig *rig, bool are_known)
{
    uint32_t world = comm_get_world(self), own = comm_get_rank(self);
    uint64_t before = comm_sent_bytes(self), must_send = 0;
    rank_parcel sent[4], received[4];
    TRY(exchange_parcels(self, rig, are_known, sent, received));
    TRY(move(rig, rig->host, rig->base + part_bytes(self), part_bytes(self), DEVICE_TO_HOST));
    for (uint32_t r = 0; r < world; r++) {
        must_send += r == own ? 0 : sent[r].size_bytes;
        if (received[r].size_bytes != parcel_elems(r, own) * sizeof(float))
            return err_set(ERR_INTERNAL, "rank %u has %llu bytes of rank %u", own,
                           (unsigned long long)received[r].size_bytes, r);
        for (uint64_t i = 0; i < ELEMS; i++)
            if (rig->host[r * ELEMS + i] !=
                (i < parcel_elems(r, own) ? value_of(r, i + own) : UNTOUCHED))
                return err_set(ERR_INTERNAL, "rank %u: element %llu of rank %u is %g", own,
                               (unsigned long long)i, r, (double)rig->host[r * ELEMS + i]);
    }
    if (comm_sent_bytes(self) - before != must_send)
        return err_set(ERR_INTERNAL, "sent_bytes counts %llu",
                       (unsigned long long)(comm_sent_bytes(self) - before));
    return 0;
}

static int exchange_values(comm *self, void *user)
{
    rank_rig rig;
    TRY(open_rig(self, &rig));
#ifdef SLUICE_SIMULATED_GPU
    fake_nccl.questions = 2;
#endif
    TRY(open_nccl(self, &rig));
    if (comm_sent_bytes(self) != 0 || comm_held_bytes(self) == 0)
        return err_set(ERR_INTERNAL, "it has sent %llu and holds %llu",
                       (unsigned long long)comm_sent_bytes(self),
                       (unsigned long long)comm_held_bytes(self));
    for (int round = 0; round < 2; round++) {
        TRY(check_gather(self, &rig));
        TRY(check_parcels(self, &rig, round == 1));
        TRY(check_sums(self, &rig, DTYPE_FP32, 0));
        TRY(check_sums(self, &rig, DTYPE_BF16, ELEMS));
        TRY(check_sums(self, &rig, DTYPE_FP16, ELEMS));
        TRY(check_sums(self, &rig, DTYPE_BF16, 1024)); /* five pieces, the last one is shorter */
        TRY(check_sums(self, &rig, DTYPE_FP16, ELEMS - 8));
    }
    comm_close(self);
#ifdef SLUICE_SIMULATED_GPU
    if (fake_nccl.live_handle_count != 0 || fake_nccl.abort_count != 0)
        return err_set(ERR_INTERNAL, "the communicator was not closed");
#endif
    close_rig(&rig);
    return 0;
}

static bool is_skipped(const comm_fixture *fixture)
{
    if (fixture->codes[0] == NO_GPU)
        printf("skipped: %s\n", fixture->texts[0]);
    return fixture->codes[0] == NO_GPU;
}

static const char *const hosts[] = {"alpha", "beta", "gamma", "delta"};

static comm_fixture fixture_of(uint32_t world)
{
    comm_fixture made = {.world = world, .exit_seconds = 5.0};
    for (uint32_t r = 0; r < world; r++)
        made.hosts[r] = hosts[r];
#ifdef SLUICE_SIMULATED_GPU
    fake_nccl = (struct fake_nccl){.shared = comm_fixture_shared(sizeof *fake_nccl.shared)};
#endif
    return made;
}

static void one_rank_runs_on_nccl(void **state)
{
    comm_fixture fixture = fixture_of(1);
    comm_fixture_run(&fixture, exchange_values, NULL);
    if (is_skipped(&fixture))
        _exit(77);
    comm_fixture_expect_ok(&fixture);
}

#ifdef SLUICE_SIMULATED_GPU
static void several_ranks_exchange(void **state)
{
    for (uint32_t world = 2; world <= 4; world++) {
        comm_fixture fixture = fixture_of(world);
        comm_fixture_run(&fixture, exchange_values, NULL);
        comm_fixture_expect_ok(&fixture);
    }
}
#endif

/* ---- refusals: the same on all ranks, and the ranks continue ---- */

static int open_refused(comm *self, void *user)
{
    const char *part = user;
    rank_rig rig;
    int rc = open_rig(self, &rig);
    TRY(rc == NO_GPU ? rc : comm_agree(self, "a GPU", rc));
#ifdef SLUICE_SIMULATED_GPU
    fake_nccl.is_absent = comm_get_rank(self) == 1 && strcmp(part, "cannot be loaded") == 0;
    if (comm_get_rank(self) == 1 && strcmp(part, "of version code") == 0)
        fake_nccl.version_code = 22003;
#endif
    rc = open_nccl(self, &rig);
    if (rc == 0 || !strstr(err_text(), part))
        return err_set(ERR_INTERNAL, "opened with %d: \"%s\"", rc, rc < 0 ? err_text() : "");
    if (!strstr(err_text(), "staged") && strcmp(part, "cannot be loaded") != 0)
        return err_set(ERR_INTERNAL, "no advice: \"%s\"", err_text());
    close_rig(&rig);
    return comm_barrier(self, "after the refusal");
}

static void ranks_of_one_gpu_are_refused(void **state)
{
    comm_fixture fixture = fixture_of(2);
    fixture.hosts[1] = fixture.hosts[0];
    comm_fixture_run(&fixture, open_refused, "ranks 0 and 1 on alpha have the same GPU");
    if (is_skipped(&fixture))
        _exit(77);
    comm_fixture_expect_ok(&fixture);
}

#ifdef SLUICE_SIMULATED_GPU
static void one_rank_without_nccl_stops_all(void **state)
{
    comm_fixture fixture = fixture_of(3);
    comm_fixture_run(&fixture, open_refused, "cannot be loaded");
    comm_fixture_expect_ok(&fixture);
    fixture = fixture_of(2);
    comm_fixture_run(&fixture, open_refused, "of version code");
    comm_fixture_expect_ok(&fixture);
}

/* ---- failures ---- */

enum mishap { DIES, DIES_BEFORE_ROWS, STAYS_AWAY, NCCL_FAILS, NCCL_REFUSES };

static void pause_ms(long milliseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = milliseconds * 1000000}, NULL);
}

/* Watches until the job fails; then the stream must come to its end. */
static int await_failure(comm *self, const rank_rig *rig)
{
    int rc = 0;
    while (rc == 0) {
        rc = comm_watch(self);
        pause_ms(5);
    }
    err_record first;
    err_save(&first, rc);
    TRY(device_synchronize(rig->gpu, rig->stream));
    if (fake_nccl.live_handle_count != 0 || fake_nccl.abort_count != 1)
        return err_set(ERR_INTERNAL, "the communicator was not aborted");
    rc = comm_all_gather(self, &(comm_call){.label = "another",
                                            .source = rig->base,
                                            .target = rig->base + part_bytes(self),
                                            .count = 64});
    if (rc != first.code)
        return err_set(ERR_INTERNAL, "a call after the failure gave %d", rc);
    return err_restore(&first);
}

/* Rank 1 has the mishap while the others are in an all-gather. */
static int fail_midway(comm *self, void *user)
{
    enum mishap mishap = *(enum mishap *)user;
    bool is_unlucky = comm_get_rank(self) == 1;
    rank_rig rig;
    TRY(open_rig(self, &rig));
    TRY(open_nccl(self, &rig));
    if (is_unlucky && mishap == DIES)
        _exit(9);
    if (is_unlucky && mishap == STAYS_AWAY) { /* with heartbeats */
        int rc = 0;
        for (int i = 0; rc == 0 && i < 2000; i++, pause_ms(5))
            rc = comm_check(self);
        return rc;
    }
    if (is_unlucky && mishap == NCCL_FAILS)
        fake_nccl.failure = 3; /* ncclInternalError */
    if (is_unlucky && mishap == NCCL_REFUSES)
        fake_nccl.refusal = 5; /* ncclInvalidUsage */
    if (mishap == DIES_BEFORE_ROWS) {
        rank_parcel sent[4], received[4];
        fake_nccl.deadly_rows = is_unlucky ? 1 : 0;
        int rc = exchange_parcels(self, &rig, false, sent, received);
        return rc < 0 ? rc : await_failure(self, &rig);
    }
    int rc = comm_all_gather(self, &(comm_call){.label = "all-gather of block.3",
                                                .source = rig.base,
                                                .target = rig.base + part_bytes(self),
                                                .count = 4096});
    return rc < 0 ? rc : await_failure(self, &rig);
}

/* All surviving ranks end with the code, and a text with both parts. */
static void run_failing(uint32_t world, enum mishap mishap, double timeout_seconds, int code,
                        const char *part, const char *other)
{
    comm_fixture fixture = fixture_of(world);
    fixture.timeout_seconds = timeout_seconds;
    comm_fixture_run(&fixture, fail_midway, &mishap);
    for (uint32_t r = 0; r < world; r++) {
        if ((mishap == DIES || mishap == DIES_BEFORE_ROWS) && r == 1)
            continue;
        printf("rank %u: %d, \"%s\"\n", r, fixture.codes[r], fixture.texts[r]);
        assert_true(code == 0 ? fixture.codes[r] < 0 : fixture.codes[r] == code);
        assert_non_null(strstr(fixture.texts[r], part));
        assert_non_null(strstr(fixture.texts[r], other));
        assert_true(WIFEXITED(fixture.statuses[r]) && WEXITSTATUS(fixture.statuses[r]) == 1);
    }
}

static void a_rank_that_dies_ends_all(void **state)
{
    run_failing(3, DIES, 0.0, 0, "rank 1", "beta");
}

static void a_rank_that_dies_before_its_rows_ends_all(void **state)
{
    run_failing(3, DIES_BEFORE_ROWS, 0.0, 0, "rank 1", "beta");
}

static void a_rank_that_stays_away_ends_all(void **state)
{
    run_failing(2, STAYS_AWAY, 1.5, -ETIMEDOUT, "rank 1 on host",
                "has not come to all-gather of block.3 by NCCL");
}

/* Rank 0 is in an all-gather, to which the others do not come. */
static int close_midway(comm *self, void *user)
{
    rank_rig rig;
    TRY(open_rig(self, &rig));
    TRY(open_nccl(self, &rig));
    if (comm_get_rank(self) == 0) {
        TRY(comm_all_gather(self, &(comm_call){.label = "all-gather of block.3",
                                               .source = rig.base,
                                               .target = rig.base + part_bytes(self),
                                               .count = 4096}));
        comm_close(self);
        TRY(device_synchronize(rig.gpu, rig.stream));
        if (fake_nccl.live_handle_count != 0 || fake_nccl.abort_count != 1)
            return err_set(ERR_INTERNAL, "the communicator was not aborted");
    }
    TRY(comm_barrier(self, "the end"));
    comm_close(self);
    close_rig(&rig);
    return 0;
}

static void closing_waits_for_nobody(void **state)
{
    comm_fixture fixture = fixture_of(2);
    comm_fixture_run(&fixture, close_midway, NULL);
    comm_fixture_expect_ok(&fixture);
}

static void what_nccl_says_ends_all(void **state)
{
    run_failing(2, NCCL_FAILS, 0.0, ERR_BACKEND, "says internal error: as the fake was told",
                "rank 1");
    run_failing(2, NCCL_REFUSES, 0.0, ERR_BACKEND, "all-gather of block.3: NCCL", "rank 1");
}
#endif

static int run_one(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_runs_on_nccl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

static int run_ranks(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_one_gpu_are_refused),
#ifdef SLUICE_SIMULATED_GPU
        cmocka_unit_test(several_ranks_exchange),
        cmocka_unit_test(one_rank_without_nccl_stops_all),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

static int run_failures(void)
{
#ifdef SLUICE_SIMULATED_GPU
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_dies_ends_all),
        cmocka_unit_test(a_rank_that_dies_before_its_rows_ends_all),
        cmocka_unit_test(a_rank_that_stays_away_ends_all),
        cmocka_unit_test(closing_waits_for_nobody),
        cmocka_unit_test(what_nccl_says_ends_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
#else
    printf("skipped: needs a GPU for each rank\n");
    return 77;
#endif
}

int main(int argc, char **argv)
{
    const char *instance = argc > 1 ? argv[1] : "one";
    if (strcmp(instance, "one") == 0)
        return run_one();
    return strcmp(instance, "ranks") == 0 ? run_ranks() : run_failures();
}
