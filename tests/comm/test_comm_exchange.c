/* All-gather, reduce-scatter and all-to-all between ranks, compared with a serial reference by
 * memcmp, for many numbers of ranks, sizes of staging, counts, wires and placements of ranks on
 * hosts. The number of bytes sent is checked too. A rank that dies, stays away or calls something
 * else ends all ranks.
 *
 *   test_comm_exchange          forked ranks of one host
 *   test_comm_exchange mpirun   four ranks of mpirun that are told to be on 1 to 4 hosts */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/progress.h"
#include "base/rng.h"
#include "comm/comm_internal.h"
#include "comm/sum.h"
#include "tests/comm/comm_fixture.h"
#include "tests/unit.h"

static uint64_t seed;

static const uint64_t counts[] = {0, 1, 15, 100, 4096, 10007, 40000};
static const uint64_t stagings[] = {0, 8192, 50000, 300000};
enum {
    COUNTS = sizeof counts / sizeof counts[0],
    STAGINGS = sizeof stagings / sizeof stagings[0],
    COUNT_MAX = 40000,
};

/* ---- the loops ---- */

static void fill_bits(uint32_t *words, size_t count, uint64_t stream)
{
    static const uint32_t edges[] = {
        0,           0x80000000u, 1,           0x007fffffu, 0x00800000u, 0x33000000u,
        0x33000001u, 0x337fffffu, 0x387fffffu, 0x38800000u, 0x477fefffu, 0x477ff000u,
        0x7f7fffffu, 0x7f800000u, 0x7f800001u, 0xffc00000u, 0x3f808000u, 0x3f818000u};
    for (size_t i = 0; i < count; i++)
        words[i] = i < sizeof edges / 4 ? edges[i] : (uint32_t)rng_u64(seed, stream, i);
}

static void loops_have_the_bits_of_dtype(void **state)
{
    enum { ELEMS = 70001 };
    static uint32_t bits[ELEMS];
    static uint16_t packed[ELEMS], expected[ELEMS];
    static float total[ELEMS];
    fill_bits(bits, ELEMS, 1);
    for (enum cpu_isa isa = CPU_BASELINE; isa <= CPU_AVX512; isa++) {
        bool is_here = isa <= cpu_isa() && cpu_has(isa);
        const sum_loops *loops = sum_loops_of(isa);
        print_message("%s: %s\n", cpu_isa_name(isa), is_here ? "compared" : "not on this CPU");
        for (enum dtype wire = DTYPE_BF16; is_here && wire <= DTYPE_FP16; wire++) {
            loops->pack((const float *)(void *)bits, packed, wire, ELEMS);
            dtype_convert(bits, DTYPE_FP32, expected, wire, ELEMS);
            assert_memory_equal(packed, expected, sizeof packed);
            for (uint32_t i = 0; i < ELEMS; i++)
                packed[i] = (uint16_t)i;
            loops->add(total, packed, wire, ELEMS, 1);
            static float wide[ELEMS];
            dtype_convert(packed, wire, wide, DTYPE_FP32, ELEMS);
            assert_memory_equal(total, wide, sizeof wide);
        }
    }
}

/* ---- values against a serial reference ---- */

struct values_case {
    uint64_t staging_bytes;
    uint32_t host_count;   /* mpi: ranks are told that they are on so many hosts */
    bool has_foreign_pids; /* no process can open another's memfd */
};
typedef struct values_case values_case;

/* Magnitudes that make rounding show, some of them subnormal as fp16. */
static float value_of(uint32_t rank, uint64_t i)
{
    uint64_t bits = rng_u64(seed, 100 + rank, i);
    float value = (float)(int32_t)(bits & 0xffffffu) - (float)0x800000;
    return value * (bits >> 32 & 7 ? 0x1p-20f : 0x1p-40f);
}

static float rounded(float value, enum dtype wire)
{
    if (wire == DTYPE_BF16)
        return fp32_from_bf16(bf16_from_fp32(value));
    return wire == DTYPE_FP16 ? fp32_from_fp16(fp16_from_fp32(value)) : value;
}

static int check_reduce(comm *self, float *source, float *target, uint64_t count, enum dtype wire)
{
    uint32_t world = comm_get_world(self), rank = comm_get_rank(self);
    for (uint64_t i = 0; i < world * count; i++)
        source[i] = value_of(rank, i);
    for (uint64_t i = 0; i < count + 16; i++)
        target[i] = 12345.0f;
    uint64_t sent = comm_sent_bytes(self);
    comm_call call = {.label = "reduce-scatter of the test", .source = source, .target = target};
    call.count = count;
    call.wire = wire;
    TRY(comm_reduce_scatter(self, &call));
    sent = comm_sent_bytes(self) - sent;
    if (sent != (world - 1) * count * dtype_bytes(wire))
        return err_set(ERR_INTERNAL, "%llu bytes were sent", (unsigned long long)sent);
    for (uint64_t i = 0; i < count + 16; i++) {
        float expected = rounded(value_of(0, rank * count + i), wire);
        for (uint32_t p = 1; p < world; p++)
            expected += rounded(value_of(p, rank * count + i), wire);
        if (world == 1)
            expected = value_of(0, i);
        if (i >= count)
            expected = 12345.0f;
        if (memcmp(&expected, &target[i], sizeof expected) != 0)
            return err_set(ERR_INTERNAL, "rank %u of %u, %llu as %s: element %llu is %a, not %a",
                           rank, world, (unsigned long long)count, dtype_name(wire),
                           (unsigned long long)i, (double)target[i], (double)expected);
    }
    return 0;
}

static int check_gather(comm *self, unsigned char *source, unsigned char *target, uint64_t count)
{
    uint32_t world = comm_get_world(self), rank = comm_get_rank(self);
    for (uint64_t i = 0; i < count; i++)
        source[i] = (unsigned char)(i * 31 + rank * 7 + (i >> 8));
    memset(target, 0x5a, world * count + 16);
    uint64_t sent = comm_sent_bytes(self);
    comm_call call = {.label = "all-gather of the test", .source = source, .target = target};
    call.count = count;
    TRY(comm_all_gather(self, &call));
    sent = comm_sent_bytes(self) - sent;
    if (sent != (world - 1) * count)
        return err_set(ERR_INTERNAL, "%llu bytes were sent", (unsigned long long)sent);
    for (uint64_t i = 0; i < world * count + 16; i++) {
        uint64_t p = count > 0 ? i / count : world, k = count > 0 ? i % count : 0;
        unsigned char expected = p < world ? (unsigned char)(k * 31 + p * 7 + (k >> 8)) : 0x5a;
        if (target[i] != expected)
            return err_set(ERR_INTERNAL, "rank %u of %u, %llu bytes: byte %llu is %u, not %u", rank,
                           world, (unsigned long long)count, (unsigned long long)i, target[i],
                           expected);
    }
    return 0;
}

/* Bytes that rank `from` sends to rank `to`: of very different sizes, some of them 0. */
static uint64_t parcel_bytes(uint32_t from, uint32_t to, uint64_t count)
{
    return (from + to) % 3 == 0 ? 0 : count * (1 + (from * 5 + to * 3) % 4) / 4;
}

static int check_parcels(comm *self, unsigned char *source, unsigned char *target, uint64_t count)
{
    uint32_t world = comm_get_world(self), rank = comm_get_rank(self);
    rank_parcel sent[COMM_FIXTURE_RANKS_MAX], received[COMM_FIXTURE_RANKS_MAX];
    uint64_t end = 0, must_send = 0;
    for (uint32_t p = 0; p < world; p++) {
        sent[p] = (rank_parcel){end, parcel_bytes(rank, p, count)};
        for (uint64_t i = 0; i < sent[p].size_bytes; i++)
            source[end + i] = (unsigned char)(i * 31 + rank * 7 + p * 3 + (i >> 8));
        end += sent[p].size_bytes;
        must_send += p == rank ? 0 : sent[p].size_bytes;
        received[p] = (rank_parcel){p * (count + 16), count};
    }
    memset(target, 0x5a, world * (count + 16));
    uint64_t before = comm_sent_bytes(self);
    const comm_parcels call = {.label = "all-to-all of the test",
                               .source = source,
                               .target = target,
                               .sent = sent,
                               .received = received};
    TRY(comm_all_to_all(self, &call));
    if (comm_sent_bytes(self) - before != must_send)
        return err_set(ERR_INTERNAL, "other bytes were sent than %llu",
                       (unsigned long long)must_send);
    for (uint32_t p = 0; p < world; p++) {
        const unsigned char *at = target + p * (count + 16);
        if (received[p].size_bytes != parcel_bytes(p, rank, count))
            return err_set(ERR_INTERNAL, "rank %u has %llu bytes of rank %u", rank,
                           (unsigned long long)received[p].size_bytes, p);
        for (uint64_t i = 0; i < count + 16; i++) {
            unsigned char expected = (unsigned char)(i * 31 + p * 7 + rank * 3 + (i >> 8));
            if (at[i] != (i < received[p].size_bytes ? expected : 0x5a))
                return err_set(ERR_INTERNAL, "rank %u: byte %llu of rank %u", rank,
                               (unsigned long long)i, p);
        }
    }
    return 0;
}

static int open_case(comm *self, const values_case *which)
{
    for (uint32_t p = 0; p < self->world; p++) {
        if (which->host_count > 0) {
            self->ranks[p].host_idx = p % which->host_count;
            self->ranks[p].local_rank = p / which->host_count;
        }
        if (which->has_foreign_pids && p != self->rank)
            self->ranks[p].pid = INT64_C(99999999);
    }
    comm_open_config config = {.backend = COMM_MPI, .staging_bytes = which->staging_bytes};
    TRY(comm_open(self, &config));
    if (comm_sent_bytes(self) != 0)
        return err_set(ERR_INTERNAL, "bytes of the warm-up are counted");
    return 0;
}

static int check_values(comm *self)
{
    uint64_t elems = comm_get_world(self) * COUNT_MAX + 16;
    float *source = mem_alloc(elems, sizeof(float), "test");
    float *target = mem_alloc(elems, sizeof(float), "test");
    if (source == NULL || target == NULL)
        return -ENOMEM;
    uint64_t held = comm_held_bytes(self);
    mem_seal();
    for (int c = 0; c < COUNTS; c++) {
        TRY(check_gather(self, (unsigned char *)source, (unsigned char *)target, counts[c]));
        TRY(check_parcels(self, (unsigned char *)source, (unsigned char *)target, counts[c]));
        for (enum dtype wire = DTYPE_FP32; wire < DTYPE_COUNT; wire++)
            TRY(check_reduce(self, source, target, counts[c], wire));
    }
    mem_unseal();
    mem_stats stats;
    mem_get_stats(&stats);
    if (stats.call_count_after_seal != 0 || comm_held_bytes(self) != held)
        return err_set(ERR_INTERNAL, "collectives allocate (%s)", stats.first_tag_after_seal);
    mem_free(source);
    mem_free(target);
    return 0;
}

static int values_body(comm *self, void *user)
{
    TRY(open_case(self, user));
    return check_values(self);
}

static void values_are_those_of_a_serial_sum(void **state)
{
    for (uint32_t world = 1; world <= 5; world++) {
        for (int s = 0; s < STAGINGS; s++) {
            values_case which = {.staging_bytes = stagings[s]};
            which.has_foreign_pids = s == 2;
            comm_fixture run = {.world = world};
            comm_fixture_run(&run, values_body, &which);
            comm_fixture_expect_ok(&run);
        }
    }
}

/* ---- refusals ---- */

static int large_parcel_body(comm *self, void *user)
{
    static unsigned char source[64], target[64];
    rank_parcel sent[2] = {{0, 16}, {16, 32}}, received[2] = {{0, 16}, {16, 16}};
    TRY(open_case(self, &(values_case){0}));
    const comm_parcels call = {.label = "rows of block.4",
                               .source = source,
                               .target = target,
                               .sent = sent,
                               .received = received};
    if (comm_get_rank(self) == 1)
        sent[1].size_bytes = 16;
    return comm_all_to_all(self, &call);
}

static int open_body(comm *self, void *user)
{
    return open_case(self, user);
}

static void expect_all(const comm_fixture *run, int code, const char *part)
{
    for (uint32_t p = 0; p < run->world; p++) {
        print_message("rank %u: %d: %s\n", p, run->codes[p], run->texts[p]);
        assert_int_equal(run->codes[p], code);
        assert_non_null(strstr(run->texts[p], part));
    }
}

static void parcels_without_room_are_refused(void **state)
{
    comm_fixture run = {.world = 2};
    comm_fixture_run(&run, large_parcel_body, NULL);
    assert_int_equal(run.codes[1], ERR_INTERNAL); /* rank 0 may be through */
    assert_non_null(strstr(run.texts[1], "rank 0 sends 32 bytes to rank 1, which has room for 16"));
}

static void hosts_without_mpi_are_refused(void **state)
{
    values_case which = {0};
    comm_fixture run = {.world = 3, .hosts = {"a", "a", "b"}};
    comm_fixture_run(&run, open_body, &which);
    expect_all(&run, ERR_CONFIG, "rank 2 on b are on different hosts");
}

static void too_little_staging_is_refused(void **state)
{
    values_case which = {.staging_bytes = 1024};
    comm_fixture run = {.world = 4};
    comm_fixture_run(&run, open_body, &which);
    expect_all(&run, ERR_CONFIG, "too few for 4 ranks: at least 1536");
}

static int disorder_body(comm *self, void *user)
{
    static float source[4 * 256], target[4 * 256];
    TRY(open_case(self, &(values_case){0}));
    comm_call call = {.label = "all-gather of block.1", .source = source, .target = target};
    call.count = 256;
    if (comm_get_rank(self) != 1)
        return comm_all_gather(self, &call);
    call.label = "reduce-scatter of block.2";
    return comm_reduce_scatter(self, &call);
}

static void another_order_is_found(void **state)
{
    comm_fixture run = {.world = 3};
    comm_fixture_run(&run, disorder_body, NULL);
    expect_all(&run, ERR_INTERNAL, "all-gather of block.1");
    expect_all(&run, ERR_INTERNAL, "reduce-scatter of block.2");
}

/* ---- ranks that are gone ---- */

struct gone_case {
    uint32_t victim;
    _Atomic uint32_t *steps; /* collectives that the victim has done; shared */
    uint32_t steps_before;
    uint32_t is_killed;
};
typedef struct gone_case gone_case;

static int work_body(comm *self, void *user)
{
    gone_case *which = user;
    enum { ELEMS = 200000 };
    uint32_t world = comm_get_world(self);
    float *source = mem_alloc((uint64_t)world * ELEMS, sizeof(float), "test");
    float *target = mem_alloc(ELEMS, sizeof(float), "test");
    if (source == NULL || target == NULL)
        return -ENOMEM;
    TRY(open_case(self, &(values_case){.staging_bytes = 65536}));
    comm_call call = {.label = "reduce-scatter of block.7", .source = source, .target = target};
    call.count = ELEMS;
    for (;;) {
        TRY(comm_reduce_scatter(self, &call));
        if (comm_get_rank(self) == which->victim)
            atomic_fetch_add(which->steps, 1);
    }
}

static void kill_one(void *user, const pid_t *pids, uint32_t world)
{
    gone_case *which = user;
    if (which->is_killed || atomic_load(which->steps) < which->steps_before)
        return;
    which->is_killed = 1;
    kill(pids[which->victim], SIGKILL);
}

static void a_killed_rank_ends_all(void **state)
{
    for (uint32_t victim = 0; victim < 3; victim++) {
        gone_case which = {.victim = victim, .steps = comm_fixture_shared(4096)};
        which.steps_before = 1 + (uint32_t)rng_below(seed, 5, victim, 40);
        comm_fixture run = {.world = 3, .watch = kill_one};
        comm_fixture_run(&run, work_body, &which);
        char part[32];
        (void)snprintf(part, sizeof part, "rank %u", victim);
        for (uint32_t p = 0; p < run.world; p++) {
            print_message("victim %u, rank %u: %d: %s\n", victim, p, run.codes[p], run.texts[p]);
            if (p == victim)
                continue;
            assert_true(run.codes[p] < 0);
            assert_non_null(strstr(run.texts[p], part));
        }
    }
}

/* An all-to-all of so many bytes for each rank. */
static int send_rows(comm *self, const char *label, uint64_t bytes)
{
    static unsigned char source[4 * 4096], target[4 * 4096];
    rank_parcel sent[4], received[4];
    for (uint32_t p = 0; p < 4; p++)
        sent[p] = received[p] = (rank_parcel){p * bytes, bytes};
    return comm_all_to_all(self, &(comm_parcels){.label = label,
                                                 .source = source,
                                                 .target = target,
                                                 .sent = sent,
                                                 .received = received});
}

/* In `user` the label of the all-to-all for which rank 1 does not come, or NULL. */
static int late_body(comm *self, void *user)
{
    const char *rows = user;
    static float source[4 * 256], target[4 * 256];
    TRY(open_case(self, &(values_case){.staging_bytes = 8192}));
    comm_call call = {.label = "all-gather of block.3", .source = source, .target = target};
    call.count = 256;
    TRY(comm_all_gather(self, &call));
    if (rows)
        TRY(send_rows(self, "rows of block.2", 4096));
    if (comm_get_rank(self) != 1)
        return rows ? send_rows(self, rows, 4096) : comm_all_gather(self, &call);
    comm_note(self, "looking out of the window");
    while (comm_check(self) == 0)
        (void)nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    return comm_check(self);
}

static void a_rank_that_stays_away_is_named(void **state)
{
    static char rows[] = "rows of block.4";
    for (int i = 0; i < 2; i++) {
        comm_fixture run = {.world = 3, .timeout_seconds = 1.5};
        comm_fixture_run(&run, late_body, i == 0 ? NULL : rows);
        for (uint32_t p = 0; p < run.world; p++) {
            print_message("rank %u: %d: %s\n", p, run.codes[p], run.texts[p]);
            assert_true(run.codes[p] < 0);
            assert_non_null(strstr(run.texts[p], "rank 1"));
            assert_non_null(strstr(run.texts[p], i == 0 ? "all-gather of block.3" : rows));
        }
    }
}

/* Rank 1 has other work for longer than the timeout, and comes. */
static int busy_body(comm *self, void *user)
{
    uint32_t rank = comm_get_rank(self);
    uint64_t own = rank + 1, all[3] = {0};
    TRY(open_case(self, &(values_case){0}));
    for (int i = 0; rank == 1 && i < 16; i++) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
        progress_note();
    }
    comm_call call = {.label = "all-gather of block.3", .source = &own, .target = all};
    call.count = sizeof own;
    TRY(comm_all_gather(self, &call));
    return all[0] == 1 && all[1] == 2 && all[2] == 3 ? 0 : err_set(ERR_INTERNAL, "wrong values");
}

static void a_rank_that_works_is_waited_for(void **state)
{
    comm_fixture run = {.world = 3, .timeout_seconds = 0.6};
    comm_fixture_run(&run, busy_body, NULL);
    comm_fixture_expect_ok(&run);
}

/* ---- under mpirun: every layout of hosts has the bits of the serial sum ---- */

static int be_launched(void)
{
    comm_join_config config = {.timeout_seconds = 30};
    comm *self = NULL;
    int rc;
    TRY_GOTO(rc, comm_join(&config, &self), failed);
    if (comm_get_world(self) != 4 || !commi_has_mpi(self))
        TRY_GOTO(rc, err_set(ERR_INTERNAL, "these are not 4 ranks of MPI"), failed);
    for (uint32_t hosts = 1; hosts <= 4; hosts++) {
        for (int s = 0; s < STAGINGS; s++) {
            values_case which = {.staging_bytes = stagings[s], .host_count = hosts};
            TRY_GOTO(rc, open_case(self, &which), failed);
            TRY_GOTO(rc, check_values(self), failed);
            TRY_GOTO(rc, comm_barrier(self, "next layout"), failed);
            self->bulk->close(self);
            self->bulk = NULL;
        }
    }
    if (comm_get_rank(self) == 0)
        printf("4 ranks on 1 to 4 hosts: the same bits\n");
    comm_leave(self, 0);
    return 0;
failed:
    fprintf(stderr, "%s\n", err_text());
    comm_leave(self, rc);
    return 1;
}

static int run_mpirun(const char *program)
{
    if (system("command -v mpirun >/dev/null") != 0 || commi_mpi_version()[0] == '\0') {
        puts("skipped: there is no mpirun, or this build has no MPI");
        return 77;
    }
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("SLUICE_TEST_SEED", "1", 0); /* the same for all ranks */
    char command[4096];
    (void)snprintf(command, sizeof command, "exec mpirun --oversubscribe -n 4 '%s' rank", program);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv)
{
    seed = unit_seed((uint64_t)time(NULL));
    if (argc > 1 && strcmp(argv[1], "rank") == 0)
        return be_launched();
    if (argc > 1 && strcmp(argv[1], "mpirun") == 0)
        return run_mpirun(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loops_have_the_bits_of_dtype),
        cmocka_unit_test(values_are_those_of_a_serial_sum),
        cmocka_unit_test(parcels_without_room_are_refused),
        cmocka_unit_test(hosts_without_mpi_are_refused),
        cmocka_unit_test(too_little_staging_is_refused),
        cmocka_unit_test(another_order_is_found),
        cmocka_unit_test(a_killed_rank_ends_all),
        cmocka_unit_test(a_rank_that_stays_away_is_named),
        cmocka_unit_test(a_rank_that_works_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
